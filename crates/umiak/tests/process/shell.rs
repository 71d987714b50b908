//! A user's shell in a sandbox: command lines as typed, with `umiak` and a Python on `PATH`.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use umiak_testkit::gpus;
use umiak_testkit::sandbox::{Run, Sandbox, binary};

/// A directory with training scripts, and the programs on `PATH`.
#[derive(Debug)]
pub(crate) struct Shell {
    pub(crate) sandbox: Sandbox,
    driver: Option<PathBuf>,
}

impl Shell {
    /// `python` and `python3` are the real interpreter.
    pub(crate) fn with_python() -> Self {
        let shell = Self::bare();
        for name in ["python", "python3"] {
            symlink(real_python(), shell.bin().join(name)).expect("the sandbox can be written");
        }
        shell
    }

    /// `python` and `python3` only create the file `started`, for lines that must not start anything.
    pub(crate) fn with_decoy() -> Self {
        let shell = Self::bare();
        for name in ["bin/python", "bin/python3"] {
            let path = shell.sandbox.write(name, "#!/bin/sh\n: > started\n");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        shell
    }

    fn bare() -> Self {
        let sandbox = Sandbox::new();
        std::fs::create_dir(sandbox.path().join("bin")).expect("the sandbox can be written");
        for name in ["umiak", "fleetrun", "torchrun"] {
            symlink(binary(), sandbox.path().join("bin").join(name)).expect("the sandbox can be written");
        }
        Self { sandbox, driver: None }
    }

    /// Makes the driver show this many GPUs.
    pub(crate) fn with_gpus(mut self, count: u32) -> Self {
        self.driver = Some(gpus::fake(self.sandbox.path(), count));
        self
    }

    fn bin(&self) -> PathBuf {
        self.sandbox.path().join("bin")
    }

    /// Runs the line with `sh`. Variables are set by assignments at its start.
    pub(crate) fn line(&self, line: &str) -> Run<'_> {
        self.sh(&["-c", line])
    }

    /// Starts a shell for a [`Session`](umiak_testkit::terminal::Session), with the prompt `$`.
    pub(crate) fn interactive(&self) -> Run<'_> {
        self.sh(&["-i"]).env("PS1", "$ ")
    }

    fn sh(&self, arguments: &[&str]) -> Run<'_> {
        let path = format!("{}:{}", self.bin().display(), std::env::var("PATH").unwrap_or_default());
        let run = self.sandbox.program(Path::new("/bin/sh"), arguments).env("PATH", path);
        match &self.driver {
            Some(driver) => run.env("UMIAK_NVIDIA_PROC", driver),
            None => run,
        }
    }

    /// Replaces this sandbox's directory by `DIR`.
    pub(crate) fn neutral(&self, text: &str) -> String {
        let real = std::fs::canonicalize(self.sandbox.path()).expect("the sandbox is there");
        text.replace(&*real.to_string_lossy(), "DIR").replace(&*self.sandbox.path().to_string_lossy(), "DIR")
    }
}

/// The real interpreter: `python3` on `PATH` may be a wrapper script, which is slow and needs more of the environment
/// than a sandbox has.
fn real_python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        let output = output.expect("the test says that it needs Python");
        PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
    })
}
