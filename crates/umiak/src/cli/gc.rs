//! `umiak gc`: removes old runs, and old logs of detached launches without a run.

use std::time::Duration;

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};

use crate::clock::wall_micros;
use crate::engine::cluster;
use crate::history::index::{self, IndexEntry};
use crate::history::journal;
use crate::history::{Home, RunDir, RunId, remove};
use crate::views::standing::RunStanding;

use super::rm::take_away;
use super::runs::{Done, Format, talk};
use super::values::{bytes, span};

/// When neither age nor size is given.
const OLD: Duration = Duration::from_secs(30 * 86_400);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Remove runs that ended longer ago than this; `30d` when `--keep-size` is omitted too
    #[arg(long, value_name = "SPAN", value_parser = span)]
    older_than: Option<Duration>,
    /// Remove the oldest runs until the rest takes no more than this
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    keep_size: Option<u64>,
    /// Print what would be removed and remove nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: Format,
}

impl Arguments {
    /// What ended before this time is removed, in microseconds since the Unix epoch.
    fn limit(&self) -> Option<u64> {
        let older_than = match (self.older_than, self.keep_size) {
            (None, None) => Some(OLD),
            (given, _) => given,
        };
        older_than.map(|span| wall_micros().saturating_sub(span.as_micros() as u64))
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let home = Home::from_environment()?;
    let entries = index::entries(&home)?;
    let Chosen { runs: chosen, kept } = choose(&home, &entries, arguments);
    if !kept.is_empty() {
        talk(&unfinished(&kept));
    }
    if !arguments.dry_run {
        remove::sweep(&home);
        if let Some(limit) = arguments.limit() {
            remove::sweep_detached(&home, limit);
        }
        umiak_sys::cgroup::clean_all_orphans();
        umiak_sys::memory::clean_all_orphans();
    }
    take_away(&home, &chosen, &[], arguments.dry_run, arguments.format)
}

/// When the run ended, or last wrote to its journal if its supervisor died.
fn last_heard_of(home: &Home, entry: &IndexEntry) -> u64 {
    let written = || journal::replay(&RunDir::at(home, entry.run)).ok().map(|replay| replay.status.last);
    entry.ended.or_else(written).unwrap_or(entry.created).max(entry.created)
}

/// What is done about old runs.
struct Chosen {
    /// Those to remove, oldest first.
    runs: Vec<RunDir>,
    /// Lost ones whose job may still run in a cluster.
    kept: Vec<RunId>,
}

/// A notice about lost runs whose job may still run in a cluster: their files lead to it.
fn unfinished(kept: &[RunId]) -> Diagnostic {
    let (runs, jobs, first) = match kept {
        [one] => (format!("`{one}` is"), "its job", one),
        _ => (format!("{} runs are", kept.len()), "their jobs", &kept[0]),
    };
    let listed: Vec<String> = kept.iter().map(ToString::to_string).collect();
    Diagnostic::notice(Code::J0036, format!("{runs} kept: not stopped, and {jobs} may still run in a cluster"))
        .row("kept", listed.join(", "))
        .hint(format!("`umiak stop {first}` ends it, `umiak resume {first}` continues with it"))
}

/// The runs to remove: only ended or lost ones.
fn choose(home: &Home, entries: &[IndexEntry], arguments: &Arguments) -> Chosen {
    let limit = arguments.limit();
    let mut total: u64 = match arguments.keep_size {
        Some(_) => entries.iter().map(|entry| remove::size(RunDir::at(home, entry.run).path())).sum(),
        None => 0,
    };
    let mut chosen = Chosen { runs: Vec::new(), kept: Vec::new() };
    for entry in entries {
        let standing = RunStanding::of_entry(home, entry);
        if !standing.is_over() && !standing.is_lost() {
            continue;
        }
        let is_old = limit.is_some_and(|limit| last_heard_of(home, entry) < limit);
        let is_too_much = arguments.keep_size.is_some_and(|size| total > size);
        if is_old || is_too_much {
            let run = RunDir::at(home, entry.run);
            if standing.is_lost() && cluster::is_unfinished(run.path()) {
                chosen.kept.push(run.id());
                continue;
            }
            total = total.saturating_sub(if arguments.keep_size.is_some() { remove::size(run.path()) } else { 0 });
            chosen.runs.push(run);
        }
    }
    chosen
}
