//! Client programs of schedulers: run to their end, within a time limit.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A client that does not answer in this time is killed.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

/// How a client ended.
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
    #[error("`{0}` did not answer within {limit} s", limit = PATIENCE.as_secs())]
    Late(String),
    #[error("`{program}` could not be run: {reason}")]
    Refused { program: String, reason: std::io::Error },
}

/// A client program, its arguments and environment.
#[derive(Debug)]
pub(super) struct Client {
    program: String,
    command: Command,
}

impl Client {
    pub(super) fn new(program: &str) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { program: program.to_owned(), command }
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

    /// Runs it to its end.
    pub(super) fn ask(mut self) -> Result<Answer, NoAnswer> {
        let program = self.program;
        let mut child = self.command.spawn().map_err(|reason| match reason.kind() {
            std::io::ErrorKind::NotFound => NoAnswer::Missing(program.clone()),
            _ => NoAnswer::Refused { program: program.clone(), reason },
        })?;
        let (out, error) = (reader(child.stdout.take()), reader(child.stderr.take()));
        let Some(is_success) = wait(&mut child) else {
            let _ = child.kill();
            let _ = child.wait();
            // A grandchild may hold the pipes: their threads are left to it.
            return Err(NoAnswer::Late(program));
        };
        let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
        let error = text(error).trim().replace(&format!("{program}: "), "");
        Ok(Answer { is_success, out: text(out), error })
    }
}

/// Whether it succeeded. `None` if it still runs after the time limit.
fn wait(child: &mut Child) -> Option<bool> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status.success());
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
