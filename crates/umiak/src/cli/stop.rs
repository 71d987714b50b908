//! `umiak stop`: stops live runs.

use std::process::ExitCode;

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};

use crate::driver::stop::{self, Stopped};
use crate::history::index::Word;
use crate::history::{Home, RunDir, find_whole, journal, only_live};
use crate::views::Output;
use crate::views::ends::{StoppedRun, StoppedRuns};
use crate::views::standing::RunStanding;

use super::fail;
use super::runs::{Done, Format, print_json, print_text, talk};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Run id, full number, or name (live runs first); the only live run when omitted
    #[arg(value_name = "RUN")]
    run: Vec<String>,
    /// Stop every live run
    #[arg(long, conflicts_with = "run")]
    all: bool,
    /// Send SIGKILL at once
    #[arg(long)]
    kill: bool,
    /// Do not wait until the runs have ended
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    format: Format,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let home = Home::from_environment()?;
    let (mut runs, mut errors) = (Vec::new(), Vec::new());
    // An error on one run does not keep the others from being stopped.
    for run in meant(&home, arguments)? {
        match run.and_then(|run| stop_one(&home, &run, arguments)) {
            Ok(stopped) => runs.push(stopped),
            Err(diagnostic) => errors.push(diagnostic),
        }
    }
    match arguments.format.output {
        Output::Json => drop(print_json(&StoppedRuns { v: 2, runs })?),
        Output::Human if runs.is_empty() && errors.is_empty() => super::say("no live runs\n"),
        Output::Human | Output::Quiet => {}
    }
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { fail(&errors) })
}

fn meant(home: &Home, arguments: &Arguments) -> Result<Vec<Result<RunDir, Diagnostic>>, Diagnostic> {
    if arguments.all {
        let live = crate::history::find::live(home)?;
        return Ok(live.into_iter().map(|entry| Ok(RunDir::at(home, entry.run))).collect());
    }
    if arguments.run.is_empty() {
        let only = only_live(home)?.ok_or_else(|| {
            Diagnostic::error(Code::J0025, "no live runs").hint("`umiak ls` lists the runs that have ended")
        })?;
        return Ok(vec![Ok(only)]);
    }
    Ok(arguments.run.iter().map(|word| find_whole(home, word).map_err(Into::into)).collect())
}

fn stop_one(home: &Home, run: &RunDir, arguments: &Arguments) -> Result<StoppedRun, Diagnostic> {
    let stopped = stop::stop(home, run, arguments.kill, !arguments.no_wait)?;
    let replay = journal::replay(run)?;
    let word = match &replay.seen.damage {
        // It was asked to stop, and is gone: its journal does not say more.
        Some(damage) => {
            talk(&damage.notice());
            Word::Stopped
        }
        None => Word::of(&replay.status),
    };
    let status = match stopped {
        Stopped::Asked => Word::Stopping,
        Stopped::Over | Stopped::Closed => word,
    };
    let status = RunStanding::Is(status).word();
    let text = match (&stopped, word) {
        (Stopped::Asked, _) => "is stopping".to_owned(),
        (Stopped::Closed, _) => "had lost its supervisor; recorded as stopped".to_owned(),
        (Stopped::Over, Word::Stopped) => "stopped".to_owned(),
        // It ended by itself first.
        (Stopped::Over, Word::Interrupted) => "was interrupted before it could be stopped".to_owned(),
        (Stopped::Over, _) => format!("had {status} before it could be stopped"),
    };
    if arguments.format.output == Output::Human {
        print_text(&format!("{} {text}\n", run.id()))?;
    }
    Ok(StoppedRun { run: run.id(), status: status.to_owned() })
}
