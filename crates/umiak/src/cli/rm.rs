//! `umiak rm RUN…`: takes runs away that nobody supervises.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use umiak_core::diag::{Code, Diagnostic};

use crate::history::{Error, Home, Life, RunDir, RunId, life, remove};

use super::runs::{Done, Format, Output, print_json, print_text, size, the_run};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// An id, the end of its number, or a name (its newest run)
    #[arg(value_name = "RUN", required = true)]
    run: Vec<String>,
    #[command(flatten)]
    format: Format,
}

/// What went, or would go.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    v: u32,
    removed: Vec<Gone>,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Gone {
    run: RunId,
    bytes: u64,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let home = Home::from_environment()?;
    let mut runs: Vec<RunDir> = Vec::new();
    for word in &arguments.run {
        let (_, run) = the_run(word)?;
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    // All or none: a run that may not go is found before the first goes.
    for run in &runs {
        match life(run) {
            Ok(Life::Live { .. }) => return Err(Error::Held { run: run.id() }.into()),
            Ok(Life::Elsewhere { host }) => {
                return Err(Diagnostic::error(Code::J0008, format!("`{}` may be live on {host}", run.id()))
                    .hint(format!("type `umiak rm {}` there", run.id())));
            }
            // A journal that cannot be read is no reason to keep it.
            Ok(Life::Lost | Life::Finished) | Err(_) => {}
        }
    }
    take_away(&home, &runs, false, arguments.format)
}

/// Removes them, or only says so.
pub(super) fn take_away(home: &Home, runs: &[RunDir], is_rehearsal: bool, format: Format) -> Done {
    let removed: Vec<Gone> = runs.iter().map(|run| Gone { run: run.id(), bytes: remove::size(run.path()) }).collect();
    if !is_rehearsal {
        remove::remove(home, runs)?;
    }
    let bytes = removed.iter().map(|gone| gone.bytes).sum();
    match format.output {
        Output::Quiet => {
            print_text(&removed.iter().fold(String::new(), |text, gone| text + &format!("{}\n", gone.run)))?
        }
        Output::Json => print_json(&Report { v: 1, removed, bytes })?,
        Output::Human => {
            let verb = if is_rehearsal { "would remove" } else { "removed" };
            let mut text = String::new();
            for gone in &removed {
                let _ = writeln!(text, "{verb} {}  {}", gone.run, size(gone.bytes));
            }
            if removed.len() != 1 {
                let _ = writeln!(text, "{verb} {} runs, {}", removed.len(), size(bytes));
            }
            print_text(&text)?
        }
    };
    Ok(ExitCode::SUCCESS)
}
