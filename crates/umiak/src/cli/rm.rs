//! `umiak rm RUN…`: removes runs without a supervisor.

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};

use crate::history::{Error, Home, Life, RunDir, find_whole, life, remove};
use crate::views::Output;
use crate::views::ends::{RemovedRun, RemovedRuns};

use super::runs::{Done, Format, print_json, print_text};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Run id, full number, or name (its newest run)
    #[arg(value_name = "RUN", required = true)]
    run: Vec<String>,
    #[command(flatten)]
    format: Format,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let home = Home::from_environment()?;
    let mut runs: Vec<RunDir> = Vec::new();
    for word in &arguments.run {
        let run = find_whole(&home, word)?;
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    // All or none: every run is checked before the first is removed.
    for run in &runs {
        match life(run) {
            Ok(Life::Live { .. }) => return Err(Error::Held { run: run.id() }.into()),
            Ok(Life::Elsewhere { host }) => {
                return Err(Diagnostic::error(Code::J0008, format!("`{}` may still be running on {host}", run.id()))
                    .hint(format!("use `umiak rm {}` on that host", run.id())));
            }
            // A run with an unreadable journal can be removed too.
            Ok(Life::Lost | Life::Finished) | Err(_) => {}
        }
    }
    take_away(&home, &runs, false, arguments.format)
}

/// Removes the runs, or only prints what would be removed.
pub(super) fn take_away(home: &Home, runs: &[RunDir], is_rehearsal: bool, format: Format) -> Done {
    let removed: Vec<RemovedRun> =
        runs.iter().map(|run| RemovedRun { run: run.id(), bytes: remove::size(run.path()) }).collect();
    if !is_rehearsal {
        remove::remove(home, runs)?;
    }
    let removed = RemovedRuns::new(removed, is_rehearsal);
    match format.output {
        Output::Quiet => print_text(&removed.quiet()),
        Output::Json => print_json(&removed),
        Output::Human => print_text(&removed.human()),
    }
}
