//! `umiak rm RUN…`: removes runs without a supervisor.

use std::path::{Path, PathBuf};

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::pipeline::fingerprint;
use umiak_core::plan::PipelinePlan;

use crate::engine::cluster;
use crate::history::{Error, Home, Life, RunDir, RunId, find_whole, index, journal, life, remove};
use crate::views::Output;
use crate::views::ends::{RemovedRun, RemovedRuns};

use super::runs::{Done, Format, print_json, print_text};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Run id, full number, or name (its newest run)
    #[arg(value_name = "RUN", required = true)]
    run: Vec<String>,
    /// Remove the artifacts of pipelines too: `.pipeline/RUN` on the main file system
    #[arg(long)]
    artifacts: bool,
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
            Ok(Life::Lost) if cluster::is_unfinished(run.path()) => {
                let message = format!("`{}` was not stopped, and its job may still run in its cluster", run.id());
                return Err(Diagnostic::error(Code::J0036, message)
                    .hint(format!("`umiak stop {0}` ends it, `umiak resume {0}` continues with it", run.id())));
            }
            // A run with an unreadable journal can be removed too.
            Ok(Life::Lost | Life::Finished) | Err(_) => {}
        }
    }
    let artifacts = if arguments.artifacts { unused_artifacts(&home, &runs)? } else { Vec::new() };
    take_away(&home, &runs, &artifacts, false, arguments.format)
}

/// The directories of the artifacts of these runs. Fails if a run that stays uses one of them: after a retry, or a hit in
/// the cache.
fn unused_artifacts(home: &Home, runs: &[RunDir]) -> Result<Vec<(RunId, PathBuf)>, Diagnostic> {
    let directories: Vec<(RunId, PathBuf)> = runs.iter().filter_map(|run| Some((run.id(), artifacts(run)?))).collect();
    if directories.is_empty() {
        return Ok(directories);
    }
    let others = index::entries(home)?.into_iter().map(|entry| entry.run);
    for other in others.filter(|other| runs.iter().all(|run| run.id() != *other)) {
        let Some(pipeline) = journal::replay(&RunDir::at(home, other)).ok().and_then(|replay| replay.pipeline) else {
            continue;
        };
        let values = pipeline.nodes().filter_map(|(_, node)| node.values());
        let mut outputs = values.flat_map(|values| &values.outputs).flat_map(|(_, paths)| paths);
        let used =
            outputs.find_map(|path| directories.iter().find(|(_, directory)| Path::new(path).starts_with(directory)));
        if let Some((run, _)) = used {
            return Err(Diagnostic::error(Code::J0032, format!("`{other}` uses artifacts of `{run}`"))
                .hint(format!("remove both: `umiak rm --artifacts {run} {other}`; without `--artifacts` they stay")));
        }
    }
    Ok(directories)
}

/// The directory of a run's artifacts, if there is one.
fn artifacts(run: &RunDir) -> Option<PathBuf> {
    let plan: PipelinePlan = serde_json::from_slice(&umiak_sys::regular::read(&run.plan()).ok()?).ok()?;
    let directory = fingerprint::artifacts(&plan.pipeline)?.join(run.id().to_string());
    // A link leads to what may not be the run's.
    std::fs::symlink_metadata(&directory).is_ok_and(|found| found.is_dir()).then_some(directory)
}

/// Removes the runs and these directories of artifacts, or only prints what would be removed.
pub(super) fn take_away(
    home: &Home,
    runs: &[RunDir],
    artifacts: &[(RunId, PathBuf)],
    is_rehearsal: bool,
    format: Format,
) -> Done {
    let of = |run: RunId| artifacts.iter().filter(move |(other, _)| *other == run).map(|(_, path)| remove::size(path));
    let removed: Vec<RemovedRun> = runs
        .iter()
        .map(|run| RemovedRun { run: run.id(), bytes: remove::size(run.path()) + of(run.id()).sum::<u64>() })
        .collect();
    if !is_rehearsal {
        // First: a run that is still there says where they are.
        for (_, path) in artifacts {
            std::fs::remove_dir_all(path)
                .map_err(|error| Diagnostic::failed(&format!("remove `{}`", path.display()), &error))?;
        }
        remove::remove(home, runs)?;
    }
    let removed = RemovedRuns::new(removed, is_rehearsal);
    match format.output {
        Output::Quiet => print_text(&removed.quiet()),
        Output::Json => print_json(&removed),
        Output::Human => print_text(&removed.human()),
    }
}
