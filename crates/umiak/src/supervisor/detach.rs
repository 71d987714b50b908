//! A supervisor that outlives its terminal: the same program in a session of its own.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use umiak_core::diag::{Code, Diagnostic};

use crate::history::{Home, RunDir};
use crate::runtime::launch::failed;

/// What the new supervisor says on its stdout when the run is in good hands.
pub(crate) const READY: &str = "ready";

/// How the new supervisor's beginning went.
#[derive(Debug)]
pub(crate) enum Began {
    Ready,
    /// It has said why, and ended with this code.
    Failed {
        said: String,
        code: u8,
    },
}

/// Starts a supervisor for this run and waits until it has begun.
pub(crate) fn start(home: &Home, run: &RunDir) -> Result<Began, Diagnostic> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(run.supervisor_log());
    let log = log.map_err(|error| super::begin::cannot_write(&run.supervisor_log(), &error))?;
    let program = std::env::current_exe().map_err(|error| failed("find itself", &error))?;
    let mut command = Command::new(program);
    command.arg("supervise").arg(run.id().to_string());
    command.env("UMIAK_HOME", home.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = umiak_sys::helper::in_own_session(&mut command)
        .spawn()
        .map_err(|error| failed("start a supervisor", &error))?;
    let mut output = BufReader::new(child.stdout.take().expect("it was piped"));
    let mut first = String::new();
    let _ = output.read_line(&mut first);
    if first.trim_end() == READY {
        return Ok(Began::Ready);
    }
    let mut said = first;
    let _ = output.read_to_string(&mut said);
    let status = child.wait().map_err(|error| failed("wait for its supervisor", &error))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    if said.is_empty() {
        // It was killed, or it failed in a way that it could only write to its log.
        let how = std::fs::read_to_string(run.supervisor_log()).unwrap_or_default();
        let error = Diagnostic::error(Code::J0007, format!("the supervisor of {} was lost as it began", run.id()))
            .row("how", status.to_string());
        let error = if how.trim().is_empty() { error } else { error.row("it said", how.trim()) };
        said = error.hint(format!("`umiak resume {}` goes on with the run", run.id())).to_plain();
    }
    Ok(Began::Failed { said, code: code.unwrap_or(125) })
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
