//! Real launchers of MPI, and several hosts for them on this one.
//!
//! The hosts are names that need not resolve. A script takes the place of ssh: it hands the command to a thread of the
//! test, which runs it with the name of the host in [`HOST`]. So nothing of a host is a descendant of `mpirun`, as over a
//! real network: it ends only if its daemon does.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use tempfile::TempDir;
use umiak_core::cluster::mpi::{Launcher, LauncherKind, identify};
use umiak_sys::helper;

use crate::sandbox::{Sandbox, find_processes};

/// Has the name of the host.
pub const HOST: &str = "TEST_MPI_HOST";

/// A launcher that is installed.
#[derive(Debug, Clone)]
pub struct Installed {
    pub program: PathBuf,
    pub launcher: Launcher,
}

impl Installed {
    /// `None` if the program does not exist, or is another launcher.
    pub fn find(program: PathBuf, kind: LauncherKind) -> Option<Self> {
        let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output().ok()?;
        let launcher = identify(&program, &String::from_utf8_lossy(&output.stdout)).ok()?;
        (launcher.kind == kind).then_some(Self { program, launcher })
    }
}

/// Hosts that a launcher reaches without ssh. What still runs on them ends with the value.
#[derive(Debug)]
pub struct Hosts {
    directory: TempDir,
    /// A variable that all their processes have.
    mark: Vec<u8>,
    thread: Option<JoinHandle<()>>,
}

/// In the place of ssh. A launcher that is killed kills it too, and its host does not notice.
const RSH: &str = r#"#!/bin/sh
while :; do case $1 in -[olpiF]) shift 2 ;; -*) shift ;; *) break ;; esac; done
own=${0%/*}/$$
host=$1
shift
printf '%s' "$*" > "$own.command"
mkfifo "$own.code"
echo "$$ $host" > "${0%/*}/requests"
read code < "$own.code"
rm "$own.code"
exit "$code"
"#;

impl Hosts {
    /// Their processes have the environment of the sandbox, as a login there would have.
    ///
    /// # Panics
    ///
    /// If the files for requests cannot be made.
    pub fn start(sandbox: &Sandbox) -> Self {
        let directory = tempfile::Builder::new().prefix("umiak-hosts-").tempdir().expect("a temporary directory");
        let script = directory.path().join("rsh");
        std::fs::write(&script, RSH).expect("our own directory");
        std::fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("our own file");
        let requests = directory.path().join("requests");
        let made = Command::new("mkfifo").arg(&requests).status();
        assert!(made.is_ok_and(|status| status.success()), "a pipe cannot be made");
        // Also for writing: it does not end when a script has written its line.
        let requests = OpenOptions::new().read(true).write(true).open(requests).expect("our own pipe");
        let mut environment = sandbox.environment();
        environment.remove(&OsString::from("UMIAK_HOME"));
        let mark = environment.iter().find(|(name, _)| *name == "UMIAK_TEST_MARK").expect("every sandbox has it");
        let mark = [mark.0.as_encoded_bytes(), b"=", mark.1.as_encoded_bytes()].concat();
        let path = directory.path().to_owned();
        let serve = move || {
            for line in BufReader::new(requests).lines() {
                let Some((script, host)) = line.expect("our own pipe").split_once(' ').map(owned) else { return };
                let mut command = Command::new("sh");
                command.env_clear().envs(&environment);
                run(&path, &script, &host, command);
            }
        };
        Self { directory, mark, thread: Some(std::thread::spawn(serve)) }
    }

    /// Options by which a launcher uses them.
    pub fn arguments(&self, launcher: &Launcher) -> Vec<String> {
        let script = self.directory.path().join("rsh").display().to_string();
        let words: &[&str] = match launcher.kind {
            LauncherKind::OpenMpi4 => &["--mca", "plm_rsh_agent", &script],
            LauncherKind::OpenMpi5 => &["--prtemca", "plm_ssh_agent", &script],
            LauncherKind::Hydra => &["-launcher", "ssh", "-launcher-exec", &script],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// Kills the daemon of Open MPI on a host, and nothing else.
    ///
    /// # Panics
    ///
    /// If none runs there.
    pub fn kill_daemon(&self, host: &str) {
        let processes = self.processes(host);
        let is_daemon = |line: &str| line.split(' ').next().is_some_and(|program| program.ends_with("/orted"));
        let daemon = processes.iter().find(|(_, line)| is_daemon(line));
        umiak_sys::descend::signal(daemon.unwrap_or_else(|| panic!("no daemon on {host}: {processes:?}")).0, 9);
    }

    /// Processes of a host, with their commands.
    pub fn processes(&self, host: &str) -> Vec<(u32, String)> {
        let host = format!("{HOST}={host}");
        self.find(|variable| variable == host.as_bytes())
    }

    fn find(&self, is_host: impl Fn(&[u8]) -> bool) -> Vec<(u32, String)> {
        find_processes(|_, environment| {
            let has = |is_it: &dyn Fn(&[u8]) -> bool| environment.split(|byte| *byte == 0).any(is_it);
            has(&|variable| variable == self.mark) && has(&is_host)
        })
    }
}

fn owned((script, host): (&str, &str)) -> (String, String) {
    (script.to_owned(), host.to_owned())
}

/// Runs the command of a script with the script's streams. Hosts have temporary files of their own: with those of
/// another, the daemons of Open MPI 4 hang now and then.
fn run(directory: &Path, script: &str, host: &str, mut command: Command) {
    let Ok(text) = std::fs::read_to_string(directory.join(format!("{script}.command"))) else { return };
    let stream = |number: u32, is_written: bool| {
        let path = format!("/proc/{script}/fd/{number}");
        // Not for a script that is gone.
        OpenOptions::new().read(!is_written).write(is_written).open(path).ok()
    };
    let (Some(input), Some(output), Some(error)) = (stream(0, false), stream(1, true), stream(2, true)) else { return };
    let temporary = directory.join("tmp").join(host);
    std::fs::create_dir_all(&temporary).expect("our own directory");
    command.args(["-c", &text]).env(HOST, host).env("TMPDIR", &temporary).current_dir("/");
    command.stdin(input).stdout(output).stderr(error);
    let mut child = helper::in_own_session(&mut command).spawn().expect("a shell");
    let answer = directory.join(format!("{script}.code"));
    std::thread::spawn(move || {
        let status = child.wait().expect("our own child");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        // Fails if nobody waits for it.
        let answer = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(answer);
        let _ = answer.and_then(|mut answer| writeln!(answer, "{code}"));
    });
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let stop = File::options().write(true).open(self.directory.path().join("requests"));
        let _ = stop.and_then(|mut pipe| writeln!(pipe, "stop"));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let prefix = format!("{HOST}=");
        for (pid, _) in self.find(|variable| variable.starts_with(prefix.as_bytes())) {
            umiak_sys::descend::signal(pid, 9);
        }
    }
}
