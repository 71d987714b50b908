//! A directory for each test, runs of the real binary in it, and a check for leftovers.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::net::Host;
pub use crate::programs::toy;

static BINARY: OnceLock<PathBuf> = OnceLock::new();
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Time limit of a run.
const DEADLINE: Duration = Duration::from_secs(120);

/// Sets the path of the binary under test.
pub fn set_binary(path: impl Into<PathBuf>) {
    let _ = BINARY.set(path.into());
}

/// The binary under test.
pub fn binary() -> &'static Path {
    BINARY.get().expect("the suite sets the path of the binary")
}

/// The directory, temporary directory and environment of a test.
#[derive(Debug)]
pub struct Sandbox {
    directory: TempDir,
    mark: String,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Sandbox {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("umiak-test-").tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join("tmp")).expect("the sandbox can be written");
        let mark = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { directory, mark }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("the sandbox can be written");
        path
    }

    pub fn read(&self, name: &str) -> String {
        let bytes = std::fs::read(self.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The contents of a file, if it exists.
    pub fn read_if_there(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.path().join(name)).ok()
    }

    /// Names in a directory of the sandbox, sorted.
    pub fn list(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The environment of a run: minimal, and the same on every machine.
    pub fn environment(&self) -> BTreeMap<OsString, OsString> {
        let mut environment: BTreeMap<OsString, OsString> = ["PATH", "HOME"]
            .into_iter()
            .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
            .collect();
        let mut set = |name: &str, value: OsString| environment.insert(name.into(), value);
        set("LANG", "C.UTF-8".into());
        set("TMPDIR", self.path().join("tmp").into());
        // GPUs of the machine must not affect a test.
        set("UMIAK_NVIDIA_PROC", self.path().join("no-gpus").into());
        set("UMIAK_PCI_DEVICES", self.path().join("no-gpus").into());
        set("UMIAK_HOME", self.path().join("state").into());
        set("UMIAK_TEST_MARK", self.mark.clone().into());
        environment
    }

    /// `umiak` with these arguments, in the sandbox.
    pub fn umiak<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Run<'_> {
        self.program(binary(), arguments)
    }

    /// `umiak launch FLAGS… TOY ACTIONS…`, both split at spaces and at `|`.
    pub fn launch_toy(&self, flags: &str, actions: &[&str]) -> Run<'_> {
        let mut words: Vec<String> = vec!["launch".into()];
        words.extend(flags.split_whitespace().map(str::to_owned));
        words.push(toy());
        words.push("toy".into());
        words.extend(actions.iter().map(|action| (*action).to_owned()));
        self.umiak(words)
    }

    /// Any other program in the same environment.
    pub fn program<S: AsRef<OsStr>>(&self, program: &Path, arguments: impl IntoIterator<Item = S>) -> Run<'_> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.path()).env_clear().envs(self.environment());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run { sandbox: self, command }
    }

    /// Waits briefly for processes of this sandbox to exit, then fails if any process or scratch directory is left.
    pub fn assert_nothing_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut left = self.processes();
        while !left.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            left = self.processes();
        }
        assert!(left.is_empty(), "processes left behind: {left:?}");
        let scratch = self.list("tmp");
        assert!(scratch.is_empty(), "files left in the temporary directory: {scratch:?}");
        // Ports need no separate check: the kernel closes them with the last process that holds them, and leases are
        // sockets too. Shared memory is a file.
        let shared: Vec<String> = names("/dev/shm").into_iter().filter(|name| name.contains("umiak")).collect();
        assert!(shared.is_empty(), "shared memory left behind: {shared:?}");
    }

    /// Processes that have this sandbox's mark in their environment, or work in its directory: at least one of the two
    /// survives whatever a program does.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let mark = format!("UMIAK_TEST_MARK={}", self.mark);
        find_processes(|entry, environment| {
            let is_marked = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
            is_marked || std::fs::read_link(entry.join("cwd")).is_ok_and(|path| path.starts_with(self.path()))
        })
    }
}

/// Processes by their directory in `/proc` and their environment: pid and command.
pub(crate) fn find_processes(is_it: impl Fn(&Path, &[u8]) -> bool) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        if is_it(&entry.path(), &environment) {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push((pid, String::from_utf8_lossy(&command).replace('\0', " ")));
        }
    }
    found
}

fn names(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// A program to run.
#[derive(Debug)]
pub struct Run<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub command: Command,
}

impl<'a> Run<'a> {
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs on a host of a [`crate::net::Network`]. Its streams are set up as usual again.
    #[must_use]
    pub fn on(mut self, host: &Host) -> Self {
        let mut command = host.command(self.command.get_program());
        command.args(self.command.get_args()).env_clear();
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(self.command.get_current_dir().unwrap_or(self.sandbox.path()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command = command;
        self
    }

    #[must_use]
    pub fn current_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.command.current_dir(path);
        self
    }

    #[must_use]
    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.command.stdin(stdin);
        self
    }

    /// The same as a shell command line.
    pub fn line(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        let quoted = words.map(|word| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''")));
        quoted.collect::<Vec<_>>().join(" ")
    }

    /// Runs it to the end, checks for leftovers, and returns its output.
    pub fn finish(self) -> Outcome {
        self.start().finish()
    }

    pub fn start(self) -> Running<'a> {
        let mut running = self.start_unread();
        running.stdout = running.child.stdout.take().map(collect);
        running
    }

    /// Starts it without a reader for its stdout.
    pub fn start_unread(mut self) -> Running<'a> {
        let started = Instant::now();
        let mut child = self.command.spawn().unwrap_or_else(|error| panic!("{:?}: {error}", self.command));
        let stderr = child.stderr.take().map(collect);
        Running { sandbox: self.sandbox, child, stdout: None, stderr, started }
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        bytes
    })
}

/// A running program.
#[derive(Debug)]
pub struct Running<'a> {
    sandbox: &'a Sandbox,
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    started: Instant,
}

impl Running<'_> {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: i32) {
        umiak_sys::descend::signal(self.pid(), signal);
    }

    /// Its stdout, for tests that read it themselves.
    pub fn take_stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("started with `start_unread`")
    }

    /// True if it has not exited yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_none()
    }

    /// Waits until a file of the sandbox exists.
    pub fn wait_for_file(&self, name: &str) {
        self.wait_until(name, || self.sandbox.path().join(name).exists());
    }

    pub fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "never happened: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for its end, and fails if it left anything behind.
    pub fn finish(self) -> Outcome {
        let sandbox = self.sandbox;
        let outcome = self.finish_unchecked();
        sandbox.assert_nothing_left();
        outcome
    }

    /// For foreign programs: does not check for leftovers.
    pub fn finish_unchecked(mut self) -> Outcome {
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("still running after {DEADLINE:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let elapsed = self.started.elapsed();
        let text = |stream: Option<JoinHandle<Vec<u8>>>| {
            stream.map(|thread| thread.join().expect("a reader")).unwrap_or_default()
        };
        Outcome { status, stdout: text(self.stdout.take()), stderr: text(self.stderr.take()), elapsed }
    }
}

impl Drop for Running<'_> {
    /// A failed test does not leave its job running, which would slow down all that follow.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The output and exit status of a run.
#[derive(Debug)]
pub struct Outcome {
    pub status: std::process::ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub elapsed: Duration,
}

impl Outcome {
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by a signal: {:?}\n{}", self.status, self.err()))
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Fails with all output unless the code is this one.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Self {
        let seen = self.status.code();
        assert!(
            seen == Some(code),
            "code {seen:?} instead of {code}\nstdout:\n{}\nstderr:\n{}",
            self.out(),
            self.err()
        );
        self
    }

    /// Fails unless stderr contains this text.
    #[track_caller]
    pub fn expect_err(&self, text: &str) -> &Self {
        assert!(self.err().contains(text), "stderr lacks {text:?}:\n{}", self.err());
        self
    }

    /// Fails unless stdout contains this text.
    #[track_caller]
    pub fn expect_out(&self, text: &str) -> &Self {
        assert!(self.out().contains(text), "stdout lacks {text:?}:\n{}", self.out());
        self
    }

    /// The facts of `--output json`.
    pub fn facts(&self) -> Vec<serde_json::Value> {
        self.out()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }
}
