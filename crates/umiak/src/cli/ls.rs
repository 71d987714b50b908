//! `umiak ls`: runs, past and present.

use clap::Args;
use umiak_core::diag::Diagnostic;

use crate::clock::wall_micros;
use crate::front::glob::matches;
use crate::history::Home;
use crate::history::index::{self, IndexEntry};
use crate::views::Output;
use crate::views::listing::{ListedRun, RunListing, human};
use crate::views::standing::RunStanding;

use super::runs::{Done, Format, print_json, print_text};
use super::values::point;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only runs with this status: `running`, `lost`, `succeeded`, `failed`, …
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(RunStanding::WORDS), hide_possible_values = true)]
    status: Vec<String>,
    /// Only runs whose name matches this pattern with `*` and `?`
    #[arg(long, value_name = "GLOB")]
    name: Option<String>,
    /// Only runs with this label, or with this label and value
    #[arg(long, value_name = "KEY[=VALUE]")]
    label: Vec<String>,
    /// Only runs that began after this: an age as in `2d`, or a date
    #[arg(long, value_name = "WHEN", value_parser = point)]
    since: Option<u64>,
    /// Only runs that began before this
    #[arg(long, value_name = "WHEN", value_parser = point)]
    until: Option<u64>,
    /// At most N runs, the newest
    #[arg(short = 'n', long = "limit", value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    format: Format,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let home = Home::from_environment()?;
    let chosen = choose(&home, arguments)?;
    match arguments.format.output {
        Output::Quiet => {
            print_text(&chosen.iter().fold(String::new(), |text, (entry, _)| text + &format!("{}\n", entry.run)))
        }
        Output::Json => print_json(&RunListing {
            v: 1,
            runs: chosen.into_iter().map(|(entry, standing)| ListedRun::new(entry, &standing)).collect(),
        }),
        Output::Human if chosen.is_empty() => {
            let has_runs = !index::entries(&home)?.is_empty();
            super::say(if has_runs { "no run matches\n" } else { "no runs yet\n" });
            print_text("")
        }
        Output::Human => print_text(&human(&arguments.format.style(), &chosen, wall_micros())),
    }
}

/// The runs that the flags select, newest first.
fn choose(home: &Home, arguments: &Arguments) -> Result<Vec<(IndexEntry, RunStanding)>, Diagnostic> {
    let wanted = |entry: &IndexEntry| {
        let has = |label: &String| match label.split_once('=') {
            Some((key, value)) => entry.labels.get(key).is_some_and(|found| found == value),
            None => entry.labels.contains_key(label),
        };
        arguments.name.as_ref().is_none_or(|pattern| matches(pattern, &entry.name))
            && arguments.label.iter().all(has)
            && arguments.since.is_none_or(|since| entry.created >= since)
            && arguments.until.is_none_or(|until| entry.created < until)
    };
    let entries = index::entries(home)?;
    let chosen = entries.into_iter().rev().filter(wanted).filter_map(|entry| {
        let standing = RunStanding::of_entry(home, &entry);
        let is_wanted = arguments.status.is_empty() || arguments.status.iter().any(|word| word == standing.word());
        is_wanted.then_some((entry, standing))
    });
    Ok(chosen.take(arguments.limit.unwrap_or(usize::MAX)).collect())
}
