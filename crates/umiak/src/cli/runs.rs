//! Shared by the commands about recorded runs: finding and reading them, and printing.

use std::io::{ErrorKind, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::VERSION;

use crate::history::index::Word;
use crate::history::journal::{self, Damage, Replay, Seen};
use crate::history::{Home, RunDir, find, life_of, newest};
use crate::screen::{Style, style::has_colour};
use crate::views::Output;
use crate::views::standing::{LoadedRun, RunStanding};

/// The result of such a command.
pub(super) type Done = Result<ExitCode, Diagnostic>;

/// The flags of all these commands.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Format {
    /// Output format: `human`, `json` (versioned, see `umiak schema`) or `quiet`
    #[arg(long, value_enum, default_value = "human", value_name = "FORMAT", hide_possible_values = true)]
    pub(super) output: Output,
    /// Print ASCII characters only
    #[arg(long)]
    pub(super) ascii: bool,
}

impl Format {
    /// The style for stdout.
    pub(super) fn style(self) -> Style {
        let terminal = umiak_sys::terminal::size(&std::io::stdout());
        Style {
            colour: has_colour(&std::io::stdout()),
            ascii: self.ascii,
            // Lines in a pipe are not truncated.
            fixed_width: Some(terminal.map_or(usize::MAX, |(columns, _)| usize::from(columns))),
            ..Style::default()
        }
    }
}

/// The run that the word names.
pub(super) fn the_run(word: &str) -> Result<(Home, RunDir), Diagnostic> {
    let home = Home::from_environment()?;
    let run = find(&home, word)?;
    Ok((home, run))
}

/// The run that the word names; the newest one without a word.
pub(super) fn the_run_or_newest(word: Option<&str>) -> Result<(Home, RunDir), Diagnostic> {
    let home = Home::from_environment()?;
    let run = word.map_or_else(|| newest(&home), |word| find(&home, word))?;
    Ok((home, run))
}

/// Prints a notice if this version does not know all facts of the run.
pub(super) fn note_newer(run: &RunDir, newer: Option<u32>, unknown: u64) {
    let notice = match newer {
        Some(found) => Diagnostic::notice(Code::J0005, format!("`{}` was written by a newer umiak", run.id()))
            .row("journal", format!("version {found}"))
            .row("this umiak", format!("{}, up to version {VERSION}", env!("CARGO_PKG_VERSION"))),
        None if unknown > 0 => Diagnostic::notice(
            Code::J0011,
            format!("`{}` has {unknown} events that this version does not know", run.id()),
        ),
        None => return,
    };
    talk(&notice);
}

/// Prints a diagnostic on stderr.
pub(super) fn talk(diagnostic: &Diagnostic) {
    super::say(&Style::detect(false, false).diagnostic(diagnostic));
}

/// Prints JSON on stdout, with a line feed at the end.
pub(super) fn print_json(value: &impl Serialize) -> Done {
    let text = serde_json::to_string_pretty(value).expect("a report is JSON");
    crate::screen::write_json(&format!("{text}\n"))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn print_text(text: &str) -> Done {
    crate::screen::write_text(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes bytes to stdout. `false` when the reader has closed the pipe, which is not an error.
pub(super) fn write(bytes: &[u8]) -> Result<bool, Diagnostic> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(Diagnostic::error(Code::L0016, "umiak could not write its output").row("reason", error.to_string()))
        }
    }
}

/// Stdout, if it is a pipe. It reports an event only when its reader closes it, which a command that follows a quiet
/// run would not notice otherwise.
pub(super) fn reader_of_stdout() -> Vec<BorrowedFd<'static>> {
    static STDOUT: std::sync::OnceLock<std::io::Stdout> = std::sync::OnceLock::new();
    let is_pipe = std::fs::metadata("/proc/self/fd/1").is_ok_and(|metadata| metadata.file_type().is_fifo());
    is_pipe.then(|| STDOUT.get_or_init(std::io::stdout).as_fd()).into_iter().collect()
}

pub(super) fn load(run: RunDir) -> Result<LoadedRun, Diagnostic> {
    let replay = journal::replay(&run)?;
    note_newer(&run, replay.seen.newer, replay.seen.unknown);
    let life = life_of(&run, replay.is_finished())?;
    let Replay { status, pipeline, seen: Seen { damage, .. } } = replay;
    let standing = RunStanding::of(Word::of(&status), life, damage.is_some());
    Ok(LoadedRun { run, status, pipeline, standing, damage })
}

/// The result of a command that has shown what is recorded before the damage, if there is any.
pub(super) fn shown(code: ExitCode, damage: Option<&Damage>) -> Done {
    damage.map_or(Ok(code), |damage| Err(damage.diagnostic()))
}
