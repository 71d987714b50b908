//! A supervisor that outlives its terminal: the same program in a session of its own.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::Began;

use crate::history::{Home, RunDir};

/// What a new supervisor says on its stdout, a line of JSON for each. The last one is that it is ready, or why it is not.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    Notice(Diagnostic),
    Ready,
    Failed(Diagnostic),
}

impl Said {
    /// To whoever started this supervisor.
    pub(crate) fn say(&self) {
        let line = serde_json::to_string(self).expect("a diagnostic is JSON");
        let _ = crate::screen::write_data(&format!("{line}\n"));
    }
}

/// Starts a supervisor for this run, which is to record these notices, and waits until it has begun. Returns what it has
/// noticed itself.
pub(crate) fn start(
    home: &Home,
    run: &RunDir,
    why: Began,
    notices: &[Diagnostic],
) -> Result<Vec<Diagnostic>, Diagnostic> {
    let program = std::env::current_exe().map_err(|error| Diagnostic::failed("find itself", &error))?;
    let mut command = Command::new(program);
    command.arg("supervise").arg(run.id().to_string()).args(flag(why));
    begin(home, run, command, notices)
}

/// Says to a supervisor why it begins.
fn flag(why: Began) -> Option<&'static str> {
    match why {
        Began::Submitted => None,
        Began::Resumed => Some("--resumed"),
        Began::Retried => Some("--retried"),
        Began::RetriedAll => Some("--retried-all"),
    }
}

/// Starts this command as the supervisor of the run.
pub(crate) fn begin(
    home: &Home,
    run: &RunDir,
    mut command: Command,
    notices: &[Diagnostic],
) -> Result<Vec<Diagnostic>, Diagnostic> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(run.supervisor_log());
    let log = log.map_err(|error| crate::history::cannot_write(&run.supervisor_log(), &error))?;
    command.envs(crate::log::inherited());
    command.env("UMIAK_HOME", home.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let mut child = umiak_sys::helper::in_own_session(&mut command)
        .spawn()
        .map_err(|error| Diagnostic::failed("start a supervisor", &error))?;
    let text = serde_json::to_vec(notices).expect("notices are JSON");
    // One that is gone already shows itself below.
    let _ = child.stdin.take().expect("it was piped").write_all(&text);
    let mut noticed = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("it was piped")).lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Said::Notice(notice)) => noticed.push(notice),
            Ok(Said::Ready) => return Ok(noticed),
            Ok(Said::Failed(error)) => {
                // What it has taken back must be gone when we say so.
                let _ = child.wait();
                return Err(error);
            }
            Err(_) => break,
        }
    }
    let status = child.wait().map_err(|error| Diagnostic::failed("wait for its supervisor", &error))?;
    // It was killed, or it failed in a way that it could only write to its log.
    let how = std::fs::read_to_string(run.supervisor_log()).unwrap_or_default();
    let error = Diagnostic::error(Code::J0007, format!("the supervisor of {} was lost as it began", run.id()))
        .row("how", status.to_string());
    let error = if how.trim().is_empty() { error } else { error.row("it said", how.trim()) };
    Err(error.hint(format!("`umiak resume {}` goes on with the run", run.id())))
}

/// Those that whoever started this supervisor wants to have recorded, from stdin.
pub(crate) fn notices() -> Vec<Diagnostic> {
    serde_json::from_reader(std::io::stdin().lock()).unwrap_or_default()
}

/// A notice where the system ends what a user left running when that user logs out.
pub(crate) fn ends_at_logout() -> Option<Diagnostic> {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let in_session = cgroup.lines().any(|line| line.contains("/session-") && line.contains(".scope"));
    let user = crate::history::index::user();
    let lingers = Path::new("/var/lib/systemd/linger").join(&user).exists();
    if !in_session || lingers || user == "root" || !kills_user_processes() {
        return None;
    }
    Some(
        Diagnostic::notice(Code::J0024, "logging out ends this run: the system ends a user's processes then")
            .hint("`loginctl enable-linger` lets it go on"),
    )
}

/// The last word of logind's configuration files; without one, no.
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
