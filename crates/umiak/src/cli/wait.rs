//! `umiak wait [RUN…]`: waits until runs have ended. Exits with the run's code; with several runs, the highest.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::status::State;

use crate::history::index::Word;
use crate::history::journal::Follower;
use crate::history::{Error, Home, Life, RunDir, find, life_of, newest, only_live};
use crate::screen::style::duration;
use crate::views::Output;
use crate::views::ends::{WaitedRun, WaitedRuns};
use crate::views::run::{after_loss, head};
use crate::views::standing::{LoadedRun, RunStanding};

use super::runs::{Done, Format, load, print_json, print_text, talk};
use super::values::limit;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Run id, last digits of its number, or name (live runs first); when omitted, the only live run, or the newest
    #[arg(value_name = "RUN")]
    run: Vec<String>,
    /// Longest wait for all runs together: `90s`, `10min`. Exits with 124 when it runs out
    #[arg(long, value_name = "TIME", value_parser = limit)]
    timeout: Option<Duration>,
    #[command(flatten)]
    format: Format,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let home = Home::from_environment()?;
    let runs = if arguments.run.is_empty() {
        vec![only_live(&home)?.map_or_else(|| newest(&home), Ok)?]
    } else {
        arguments.run.iter().map(|word| find(&home, word)).collect::<Result<Vec<_>, _>>()?
    };
    let deadline = arguments.timeout.map(|timeout| (Instant::now() + timeout, timeout));
    let style = arguments.format.style();
    let mut ends = Vec::new();
    for run in runs {
        let id = run.id();
        match end_of(run, deadline) {
            Ok((loaded, code)) => {
                if arguments.format.output == Output::Human {
                    print_text(&head(&style, &loaded))?;
                }
                ends.push(WaitedRun { run: id, status: loaded.standing.word().to_owned(), code });
            }
            // Still wait for the other runs.
            Err(diagnostic) if matches!(diagnostic.code, Code::J0007 | Code::J0012) => {
                talk(&diagnostic);
                let run = RunDir::at(&home, id);
                let status = load(run)?.standing.word().to_owned();
                ends.push(WaitedRun { run: id, status, code: diagnostic.exit_code() });
            }
            Err(diagnostic) => return Err(diagnostic),
        }
    }
    let worst = ends.iter().map(|end| end.code).max().unwrap_or(0);
    if arguments.format.output == Output::Json {
        print_json(&WaitedRuns { v: 1, runs: ends })?;
    }
    Ok(ExitCode::from(worst))
}

fn end_of(run: RunDir, deadline: Option<(Instant, Duration)>) -> Result<(LoadedRun, u8), Diagnostic> {
    let mut follower = Follower::open(&run)?;
    loop {
        // Checked before reading: everything written until then is read.
        let life = follower.life()?;
        let damage = match follower.catch_up() {
            Err(Error::Damaged(damage)) => Some(damage),
            other => other.map(|()| None)?,
        };
        if let Some(damage) = damage {
            // The end is not known, but it can be waited for.
            if !matches!(life_of(&run, false)?, Life::Live { .. }) {
                return Err(damage.diagnostic());
            }
        } else if let State::Finished { exit_code, .. } = follower.status().state {
            let status = follower.status().clone();
            let standing = RunStanding::Is(Word::of(&status));
            return Ok((LoadedRun { run, status, pipeline: None, standing, damage: None }, exit_code));
        } else if life == Life::Lost && follower.life()? == Life::Lost {
            return Err(lost(&run));
        }
        let left = deadline.map(|(at, _)| at.saturating_duration_since(Instant::now()));
        if let Some((_, timeout)) = deadline.filter(|_| left == Some(Duration::ZERO)) {
            return Err(too_late(&run, timeout));
        }
        follower.wait_for(&[], left)?;
    }
}

fn too_late(run: &RunDir, timeout: Duration) -> Diagnostic {
    let id = run.id();
    let error = Diagnostic::error(Code::J0012, format!("`{id}` has not ended after {}", duration(timeout)));
    error.hint(format!("it is still running: `umiak attach {id}` follows it, `umiak stop {id}` stops it"))
}

/// The error for a run whose supervisor died.
pub(super) fn lost(run: &RunDir) -> Diagnostic {
    let id = run.id();
    let mut error = Diagnostic::error(Code::J0007, format!("`{id}` did not finish: its supervisor died"));
    if let Some(supervisor) = run.read_supervisor() {
        error = error.row("supervisor", format!("pid {} on {}", supervisor.pid, supervisor.host));
    }
    match load(run.clone()) {
        Ok(loaded) => error.hint(after_loss(&loaded)),
        Err(_) => error,
    }
}
