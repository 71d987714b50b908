//! Errors about recorded runs, and their messages.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use umiak_core::diag::{Code, Diagnostic};

use super::is_held;
use super::journal::Damage;
use super::run_dir::RunId;

/// A failed operation on the home or on a run.
#[derive(Debug, Error)]
pub enum Error {
    #[error("no directory for recorded runs: neither `UMIAK_HOME`, `XDG_STATE_HOME` nor `HOME` is set")]
    NoHome,
    #[error("cannot {doing} `{}`", path.display())]
    Home { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("there is no run `{word}`")]
    NoRun { word: String, near: Option<String>, home: PathBuf },
    #[error("there are no runs yet")]
    NoRuns { home: PathBuf },
    /// Each with its command or name.
    #[error("{}", several_live(word.as_deref()))]
    SeveralLive { word: Option<String>, candidates: Vec<(RunId, String)> },
    #[error("`{word}` matches several runs")]
    Ambiguous { word: String, candidates: Vec<RunId> },
    #[error("cannot {doing} `{}`", path.display())]
    Journal { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{}", .0.message())]
    Damaged(Box<Damage>),
    #[error("`{}` was written by a newer umiak", path.display())]
    Newer { path: PathBuf, found: u32, known: u32 },
    #[error("`{run}` is still running")]
    Held { run: RunId },
}

impl Error {
    /// The error as a message for the user.
    pub fn diagnostic(&self) -> Diagnostic {
        let error = |code| Diagnostic::error(code, self.to_string());
        match self {
            Self::NoHome => error(Code::J0001).hint("set `UMIAK_HOME` to a directory"),
            Self::Home { source, .. } => error(Code::J0001)
                .row("reason", reason(source))
                .hint("free the path, or set `UMIAK_HOME` to another directory"),
            Self::NoRun { near, home, .. } => {
                let error = error(Code::J0002).row("looked in", home.display().to_string());
                match near {
                    Some(near) => error.hint(format!("did you mean `{near}`?")),
                    None => error.hint("`umiak ls` lists the runs; a run is an id, the end of its number, or a name"),
                }
            }
            Self::NoRuns { home } => error(Code::J0002).row("looked in", home.display().to_string()),
            Self::SeveralLive { candidates, .. } => {
                let shown = candidates.iter().rev().take(SHOWN);
                let error = shown.fold(error(Code::J0002), |error, (run, what)| error.row(run.to_string(), what));
                let error = match candidates.len().saturating_sub(SHOWN) {
                    0 => error,
                    more => error.row("and", format!("{more} more")),
                };
                error.hint("use the id of one of them")
            }
            Self::Ambiguous { candidates, .. } => {
                error(Code::J0002).row("runs", some_of(candidates)).hint("use more digits")
            }
            Self::Journal { source, .. } => error(Code::J0004).row("reason", reason(source)),
            Self::Damaged(damage) => damage.diagnostic(),
            Self::Newer { found, known, .. } => error(Code::J0005)
                .row("journal", format!("version {found}"))
                .row("this umiak", format!("{}, up to version {known}", env!("CARGO_PKG_VERSION")))
                .hint("use the version of umiak that wrote it"),
            Self::Held { run } => error(Code::J0006)
                .hint(format!("stop it with `umiak stop {run}`, or wait for its end with `umiak wait {run}`")),
        }
    }
}

impl Damage {
    /// The damage as an error: something is not known because of it.
    pub fn diagnostic(&self) -> Diagnostic {
        self.fill(Diagnostic::error(Code::J0004, self.message()))
    }

    /// The damage as a notice: the command did what it was asked.
    pub fn notice(&self) -> Diagnostic {
        self.fill(Diagnostic::notice(Code::J0004, self.message()))
    }

    /// The notice that what follows was removed; `copy` still has it.
    pub fn accepted(&self, copy: &Path) -> Diagnostic {
        Diagnostic::notice(Code::J0004, self.message())
            .row("found", self.why.clone())
            .row("kept as", copy.display().to_string())
            .hint("the run continues from the records before it")
    }

    fn message(&self) -> String {
        format!("the journal of {} is damaged at record {} (byte {})", self.run.id(), self.record, self.offset)
    }

    fn fill(&self, diagnostic: Diagnostic) -> Diagnostic {
        let id = self.run.id();
        let hint = if is_held(&self.run).unwrap_or(false) {
            format!("the run continues, and its end is not known; `umiak stop {id}` stops it")
        } else if !self.run.document().exists() {
            format!("`umiak show {id}` and `umiak logs {id}` show what is known; `umiak rm {id}` removes the run")
        } else {
            let command = if self.run.secrets().exists() { "resume" } else { "retry" };
            format!(
                "`umiak {command} --accept-damage {id}` continues from the records before it: what is recorded later is \
                 forgotten, and done again"
            )
        };
        diagnostic.row("file", self.run.journal().display().to_string()).row("found", self.why.clone()).hint(hint)
    }
}

impl From<Error> for Diagnostic {
    fn from(error: Error) -> Self {
        error.diagnostic()
    }
}

/// The text of an I/O error, in lower case and without `(os error 13)`.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.clone(), |(words, _)| words.to_lowercase())
}

/// Maximum number of runs listed in a message.
const SHOWN: usize = 8;

fn several_live(word: Option<&str>) -> String {
    match word {
        Some(word) => format!("several runs named `{word}` are running"),
        None => "several runs are running".to_owned(),
    }
}

fn some_of(runs: &[RunId]) -> String {
    let mut names: Vec<String> = runs.iter().take(SHOWN).map(ToString::to_string).collect();
    if runs.len() > SHOWN {
        names.push(format!("and {} more", runs.len() - SHOWN));
    }
    names.join(", ")
}
