//! Runs that were waited for, stopped, removed or detached: `umiak wait`, `stop`, `rm`, `gc` and `-d`.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use crate::history::RunId;

/// What `umiak wait --output json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WaitedRuns {
    pub v: u32,
    pub runs: Vec<WaitedRun>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WaitedRun {
    pub run: RunId,
    /// As in `umiak ls`.
    pub status: String,
    /// The exit code of the run; 124 if it had not ended in time, 125 if its supervisor died.
    pub code: u8,
}

/// What `umiak stop --output json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StoppedRuns {
    pub v: u32,
    pub runs: Vec<StoppedRun>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StoppedRun {
    pub run: RunId,
    /// As in `umiak ls`: `stopping` with `--no-wait`, or another status than `stopped` if the run had ended before it
    /// could be stopped.
    pub status: String,
}

/// What `-d --output json` prints: a run that continues without its terminal.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DetachedRun {
    pub v: u32,
    pub run: RunId,
}

/// Runs that were removed, or would be.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RemovedRuns {
    v: u32,
    /// True with `umiak gc --dry-run`: nothing was removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    removed: Vec<RemovedRun>,
    bytes: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RemovedRun {
    pub run: RunId,
    pub bytes: u64,
}

impl RemovedRuns {
    pub(crate) fn new(removed: Vec<RemovedRun>, dry_run: bool) -> Self {
        let bytes = removed.iter().map(|removed| removed.bytes).sum();
        Self { v: 1, dry_run, removed, bytes }
    }

    pub(crate) fn quiet(&self) -> String {
        self.removed.iter().fold(String::new(), |text, removed| text + &format!("{}\n", removed.run))
    }

    pub(crate) fn human(&self) -> String {
        let verb = if self.dry_run { "would remove" } else { "removed" };
        let mut text = String::new();
        for removed in &self.removed {
            let _ = writeln!(text, "{verb} {}  {}", removed.run, size(removed.bytes));
        }
        if self.removed.len() != 1 {
            let _ = writeln!(text, "{verb} {} runs, {}", self.removed.len(), size(self.bytes));
        }
        text
    }
}

/// `1.9 GiB`.
fn size(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { umiak_core::diagnose::kernel::size(bytes / 1024) }
}
