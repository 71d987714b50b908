//! `umiak wait RUN…`: until they have ended. Its exit code is theirs; of several, the worst.

use std::process::ExitCode;

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::status::State;

use crate::history::index::Word;
use crate::history::journal::Follower;
use crate::history::{Life, RunDir};
use crate::views::Output;
use crate::views::ends::{WaitedRun, WaitedRuns};
use crate::views::run::head;
use crate::views::standing::{LoadedRun, RunStanding};

use super::runs::{Done, Format, print_json, print_text, talk, the_run};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// An id, the end of its number, or a name (its newest run)
    #[arg(value_name = "RUN", required = true)]
    run: Vec<String>,
    #[command(flatten)]
    format: Format,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let runs = arguments.run.iter().map(|word| Ok(the_run(word)?.1)).collect::<Result<Vec<_>, Diagnostic>>()?;
    let style = arguments.format.style();
    let mut ends = Vec::new();
    for run in runs {
        let id = run.id();
        match end_of(run) {
            Ok((loaded, code)) => {
                if arguments.format.output == Output::Human {
                    print_text(&head(&style, &loaded))?;
                }
                ends.push(WaitedRun { run: id, status: loaded.standing.word(), code });
            }
            // The others are waited for all the same.
            Err(diagnostic) if diagnostic.code == Code::J0007 => {
                talk(&diagnostic);
                ends.push(WaitedRun { run: id, status: RunStanding::Lost.word(), code: diagnostic.exit_code() });
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

fn end_of(run: RunDir) -> Result<(LoadedRun, u8), Diagnostic> {
    let mut follower = Follower::open(&run)?;
    loop {
        // Asked before the last look: whatever was written until then is seen.
        let life = follower.life()?;
        follower.catch_up()?;
        if let State::Finished { exit_code, .. } = follower.status().state {
            let status = follower.status().clone();
            let standing = RunStanding::Is(Word::of(status.state));
            return Ok((LoadedRun { run, status, standing }, exit_code));
        }
        if life == Life::Lost && follower.life()? == Life::Lost {
            return Err(lost(&run));
        }
        follower.wait(&[])?;
    }
}

/// Nobody will end it.
pub(super) fn lost(run: &RunDir) -> Diagnostic {
    let id = run.id();
    let mut error = Diagnostic::error(Code::J0007, format!("`{id}` has not ended, and nobody supervises it any more"));
    if let Some(supervisor) = run.read_supervisor() {
        error = error.row("supervisor", format!("pid {} on {}", supervisor.pid, supervisor.host));
    }
    error.hint(format!("`umiak resume {id}` goes on with what is not done"))
}
