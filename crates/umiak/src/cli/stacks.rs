//! `umiak stacks [RUN]`: what the replicas of a live run are doing.

use std::process::ExitCode;

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};

use crate::clock::wall_micros;
use crate::driver::stacks::{Answer, stacks};
use crate::history::{Home, find, only_live};
use crate::views::Output;
use crate::views::stacks::{SeenRun, elsewhere, human};

use super::runs::{Done, Format, print_json, print_text};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Run id, last digits of its number, or name (live runs first); the only live run when omitted
    #[arg(value_name = "RUN")]
    run: Option<String>,
    #[command(flatten)]
    format: Format,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let home = Home::from_environment()?;
    let run = match &arguments.run {
        Some(word) => find(&home, word)?,
        None => only_live(&home)?.ok_or_else(|| {
            Diagnostic::error(Code::J0025, "no live runs").hint("`umiak ls` lists the runs that have ended")
        })?,
    };
    let Answer { replicas, live, status } = stacks(&run)?;
    let (name, at, elsewhere) = (status.name.clone(), wall_micros(), elsewhere(&status));
    let seen = SeenRun { v: 1, run: run.id(), name, at, live, replicas, elsewhere };
    match arguments.format.output {
        Output::Json => print_json(&seen),
        Output::Human | Output::Quiet => print_text(&human(&arguments.format.style(), &seen)),
    }?;
    Ok(ExitCode::SUCCESS)
}
