//! A supervisor that outlives its terminal: the same program in its own session.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use serde::{Deserialize, Serialize};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::Began;
use umiak_core::plan::DETACHED;
use umiak_sys::wait::{Signals, readable};

use crate::history::{Home, RunDir, RunId};

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// A line of JSON on the stdout of a new supervisor. The last one is `Ready`, `Begun` or `Failed`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    Notice(Diagnostic),
    Ready,
    /// Ready, as this run. With several nodes, only one has a run.
    Begun(Option<RunId>),
    Failed(Diagnostic),
}

impl Said {
    /// Writes it to the process that started this supervisor.
    pub(crate) fn say(&self) {
        let line = serde_json::to_string(self).expect("a diagnostic is JSON");
        let _ = crate::screen::write_data(&format!("{line}\n"));
    }
}

/// Starts a supervisor for this run, which records these notices, and waits until it has begun. Returns the
/// supervisor's own notices.
pub(crate) fn start(
    home: &Home,
    run: &RunDir,
    why: Began,
    notices: &[Diagnostic],
) -> Result<Vec<Diagnostic>, NotBegun> {
    let program = std::env::current_exe().map_err(|error| Diagnostic::failed("find its own executable", &error))?;
    let mut command = Command::new(program);
    command.arg("supervise").arg(run.id().to_string()).args(flag(why));
    begin(home, run, command, notices)
}

/// The flag that tells a supervisor why it begins.
fn flag(why: Began) -> Option<&'static str> {
    match why {
        Began::Submitted => None,
        Began::Resumed => Some("--resumed"),
        Began::Retried => Some("--retried"),
        Began::RetriedAll => Some("--retried-all"),
    }
}

/// Starts this command as the supervisor of the run.
fn begin(home: &Home, run: &RunDir, mut command: Command, notices: &[Diagnostic]) -> Result<Vec<Diagnostic>, NotBegun> {
    command.env("UMIAK_HOME", home.path()).stdin(Stdio::piped());
    let text = serde_json::to_vec(notices).expect("notices are JSON");
    let lost = |how: Lost| {
        let id = run.id();
        let error = Diagnostic::error(Code::J0007, format!("the supervisor of {id} died while it started"));
        how.of(error).hint(format!("`umiak resume {id}` continues the run"))
    };
    spawn(command, &run.supervisor_log(), &text, lost).map(|(noticed, _)| noticed)
}

/// A launch that continues without its terminal.
pub(crate) struct DetachedLaunch {
    /// With several nodes, only one records the run.
    pub(crate) run: Option<RunDir>,
    pub(crate) notices: Vec<Diagnostic>,
    /// Its stderr.
    pub(crate) log: PathBuf,
}

/// Starts this command line again in its own session, and waits until its run has begun.
pub(crate) fn launch(argv: &[OsString]) -> Result<DetachedLaunch, NotBegun> {
    let home = Home::from_environment().map_err(|error| error.diagnostic())?;
    home.make().map_err(|error| error.diagnostic())?;
    // It moves to the run's directory once that exists.
    let log = home.path().join(format!("detached-{}.log", std::process::id()));
    let program = std::env::current_exe().map_err(|error| Diagnostic::failed("find its own executable", &error))?;
    let mut command = Command::new(program);
    let (name, words) = argv.split_first().expect("a program has a name");
    command.arg0(name).args(words).env(DETACHED, "1").stdin(Stdio::null());
    let lost = |how: Lost| how.of(Diagnostic::error(Code::J0007, "the launch ended before its ranks were started"));
    let (notices, run) = spawn(command, &log, &[], lost).inspect_err(|_| drop(std::fs::remove_file(&log)))?;
    let Some(run) = run.map(|run| RunDir::at(&home, run)) else {
        return Ok(DetachedLaunch { run: None, notices, log });
    };
    let log = std::fs::rename(&log, run.supervisor_log()).map_or(log, |()| run.supervisor_log());
    Ok(DetachedLaunch { run: Some(run), notices, log })
}

/// Why a supervisor has not begun.
pub(crate) enum NotBegun {
    Failed(Box<Diagnostic>),
    /// By a signal to the process that started it.
    Interrupted {
        signal: i32,
    },
}

impl From<Diagnostic> for NotBegun {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Failed(Box::new(diagnostic))
    }
}

/// How a supervisor ended before it had begun.
struct Lost {
    status: ExitStatus,
    said: String,
}

impl Lost {
    fn of(&self, error: Diagnostic) -> Diagnostic {
        let error = error.row("how", self.status.to_string());
        if self.said.is_empty() { error } else { error.row("stderr", &*self.said) }
    }
}

/// Starts a supervisor that writes to this log, and waits until it has begun. Returns its notices, and its run if it
/// names one.
fn spawn(
    mut command: Command,
    log: &Path,
    input: &[u8],
    lost: impl FnOnce(Lost) -> Diagnostic,
) -> Result<(Vec<Diagnostic>, Option<RunId>), NotBegun> {
    let file = umiak_sys::regular::open(OpenOptions::new().create(true).append(true).mode(0o600), log);
    let file = file.map_err(|error| crate::history::cannot_write(log, &error))?;
    command.envs(crate::log::inherited()).stdout(Stdio::piped()).stderr(file);
    let mut child = umiak_sys::helper::in_own_session(&mut command)
        .spawn()
        .map_err(|error| Diagnostic::failed("start a supervisor", &error))?;
    // A child that has already exited is detected below.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input);
    }
    // Until it has begun, Ctrl-C is meant for it.
    let signals = Signals::block(&[SIGINT, SIGTERM]).map_err(|error| Diagnostic::failed("wait for signals", &error))?;
    let mut interrupted = None;
    let mut noticed = Vec::new();
    let mut output = BufReader::new(child.stdout.take().expect("it was piped"));
    loop {
        if output.buffer().is_empty() {
            let ready = readable(&[output.get_ref().as_fd(), signals.as_fd()], None);
            if ready.is_ok_and(|ready| ready[1]) {
                for signal in signals.read() {
                    umiak_sys::descend::signal(child.id(), signal);
                    interrupted = Some(signal);
                }
                continue;
            }
        }
        let mut line = String::new();
        if !output.read_line(&mut line).is_ok_and(|count| count > 0) {
            break;
        }
        match serde_json::from_str(&line) {
            Ok(Said::Notice(notice)) => noticed.push(notice),
            Ok(Said::Ready) => return Ok((noticed, None)),
            Ok(Said::Begun(run)) => return Ok((noticed, run)),
            Ok(Said::Failed(error)) => {
                // It removes its files before it exits, and the error is reported after that.
                let _ = child.wait();
                return Err(error.into());
            }
            Err(_) => break,
        }
    }
    let status = child.wait().map_err(|error| Diagnostic::failed("wait for its supervisor", &error))?;
    if let Some(signal) = interrupted {
        return Err(NotBegun::Interrupted { signal });
    }
    // It was killed, or its error is only in its log.
    let said = std::fs::read_to_string(log).unwrap_or_default().trim().to_owned();
    Err(lost(Lost { status, said }).into())
}

/// The notices to record, from the stdin of this supervisor.
pub(crate) fn notices() -> Vec<Diagnostic> {
    serde_json::from_reader(std::io::stdin().lock()).unwrap_or_default()
}

/// A notice if the system kills the processes of a user at logout.
pub(crate) fn ends_at_logout() -> Option<Diagnostic> {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let in_session = cgroup.lines().any(|line| line.contains("/session-") && line.contains(".scope"));
    let user = crate::history::index::user();
    let lingers = Path::new("/var/lib/systemd/linger").join(&user).exists();
    if !in_session || lingers || user == "root" || !kills_user_processes() {
        return None;
    }
    Some(
        Diagnostic::notice(Code::J0024, "this run ends when you log out: the system then kills your processes")
            .hint("`loginctl enable-linger` keeps it running"),
    )
}

/// The last `KillUserProcesses` in logind's configuration files; off by default.
fn kills_user_processes() -> bool {
    let directories = ["/usr/lib/systemd", "/run/systemd", "/etc/systemd"];
    let mut files: Vec<std::path::PathBuf> = vec!["/etc/systemd/logind.conf".into()];
    for directory in directories {
        let entries = std::fs::read_dir(Path::new(directory).join("logind.conf.d")).into_iter().flatten().flatten();
        files.extend(entries.map(|entry| entry.path()));
    }
    let mut kills = false;
    for text in files.iter().filter_map(|path| std::fs::read_to_string(path).ok()) {
        for line in text.lines() {
            if let Some(value) = line.trim().strip_prefix("KillUserProcesses=") {
                kills = matches!(value.trim(), "yes" | "true" | "1" | "on");
            }
        }
    }
    kills
}
