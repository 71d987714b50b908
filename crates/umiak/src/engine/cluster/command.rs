//! Client programs of schedulers: run to their end, within a time limit. Ctrl-C of the terminal does not reach them, and
//! they do not outlive umiak.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use umiak_sys::helper;

/// A client that does not answer in this time is killed, unless it is given more.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a client said before it ended by itself.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) is_success: bool,
    pub(super) out: String,
    /// Without the name of the program in front.
    pub(super) error: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("`{0}` is not installed here")]
    Missing(String),
    #[error("`{program}` did not answer within {limit} s", limit = .limit.as_secs())]
    Late { program: String, limit: Duration },
    #[error("`{program}` was killed by signal {signal}")]
    Killed { program: String, signal: i32 },
    #[error("`{program}` could not be run: {reason}")]
    Refused { program: String, reason: std::io::Error },
}

impl NoAnswer {
    /// True if the client has run: what it asked for may have been done.
    pub(super) fn has_begun(&self) -> bool {
        matches!(self, Self::Late { .. } | Self::Killed { .. })
    }
}

/// A client program, its arguments and environment.
#[derive(Debug)]
pub(super) struct Client {
    program: String,
    command: Command,
    limit: Duration,
}

impl Client {
    pub(super) fn new(program: &str) -> Self {
        Self { program: program.to_owned(), command: Command::new(program), limit: PATIENCE }
    }

    pub(super) fn args(mut self, words: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.command.args(words.into_iter().map(Into::into));
        self
    }

    pub(super) fn directory(mut self, directory: PathBuf) -> Self {
        self.command.current_dir(directory);
        self
    }

    pub(super) fn set(mut self, name: &str, value: OsString) -> Self {
        self.command.env(name, value);
        self
    }

    pub(super) fn unset(mut self, name: &OsString) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(super) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it to its end.
    pub(super) fn ask(self) -> Result<Answer, NoAnswer> {
        let Self { program, command, limit } = self;
        let finished = helper::finish(command, limit, None).map_err(|reason| match reason.kind() {
            std::io::ErrorKind::NotFound => NoAnswer::Missing(program.clone()),
            std::io::ErrorKind::TimedOut => NoAnswer::Late { program: program.clone(), limit },
            _ => NoAnswer::Refused { program: program.clone(), reason },
        })?;
        if let Some(signal) = finished.status.signal() {
            return Err(NoAnswer::Killed { program, signal });
        }
        let error = String::from_utf8_lossy(&finished.error).trim().replace(&format!("{program}: "), "");
        let out = String::from_utf8_lossy(&finished.out).into_owned();
        Ok(Answer { is_success: finished.status.success(), out, error })
    }
}
