//! `umiak events RUN`: its facts, as JSON from the journal or as text.

use std::process::ExitCode;

use clap::Args;

use crate::history::Life;
use crate::history::journal::{Follower, Reader};
use crate::views::Output;
use crate::views::facts::RecordLines;

use super::runs::{Done, Format, note_newer, reader_of_stdout, the_run_or_newest, write};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Run id, last digits of its number, or name (live runs first); the newest run when omitted
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Print new events until the run has ended
    #[arg(short = 'f', long)]
    follow: bool,
    #[command(flatten)]
    format: Format,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let (_, run) = the_run_or_newest(arguments.run.as_deref())?;
    let output = arguments.format.output;
    if !arguments.follow {
        let mut reader = Reader::open(&run)?;
        let mut text = Vec::new();
        let mut lines = RecordLines::new(output, run.id());
        // Lines before a damaged one are shown before the error.
        let end = loop {
            match reader.next() {
                Ok(Some(item)) => lines.add(&mut text, &item.record, item.raw),
                other => break other.map(|_| ()),
            }
            if text.len() > 64 << 10 {
                if !write(&text)? {
                    return Ok(ExitCode::SUCCESS);
                }
                text.clear();
            }
        };
        write(&text)?;
        end?;
        if output == Output::Human {
            note_newer(&run, reader.newer(), reader.unknown());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut follower = Follower::open(&run)?;
    let mut lines = RecordLines::new(output, run.id());
    loop {
        let mut text = Vec::new();
        // Checked before reading: everything written until then is read.
        let life = follower.life()?;
        // Lines before a damaged one are shown before the error.
        let end = loop {
            match follower.next() {
                Ok(Some(item)) => lines.add(&mut text, &item.record, item.raw),
                other => break other.map(|_| ()),
            }
        };
        let is_read = write(&text)?;
        end?;
        if !is_read || follower.status().is_finished() {
            return Ok(ExitCode::SUCCESS);
        }
        if life == Life::Lost && text.is_empty() && follower.life()? == Life::Lost {
            return Err(super::wait::lost(&run));
        }
        if text.is_empty() && follower.wait(&reader_of_stdout())? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}
