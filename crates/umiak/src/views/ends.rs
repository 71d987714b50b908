//! Runs that were waited for, and runs that were removed: `umiak wait`, `rm` and `gc`.

use std::fmt::Write as _;

use serde::Serialize;

use crate::history::RunId;

/// What `umiak wait --output json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct WaitedRuns {
    pub v: u32,
    pub runs: Vec<WaitedRun>,
}

#[derive(Debug, Serialize)]
pub(crate) struct WaitedRun {
    pub run: RunId,
    pub status: &'static str,
    pub code: u8,
}

/// Runs that were removed, or would be.
#[derive(Debug, Serialize)]
pub(crate) struct RemovedRuns {
    v: u32,
    removed: Vec<RemovedRun>,
    bytes: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct RemovedRun {
    pub run: RunId,
    pub bytes: u64,
}

impl RemovedRuns {
    pub(crate) fn new(removed: Vec<RemovedRun>) -> Self {
        let bytes = removed.iter().map(|removed| removed.bytes).sum();
        Self { v: 1, removed, bytes }
    }

    pub(crate) fn quiet(&self) -> String {
        self.removed.iter().fold(String::new(), |text, removed| text + &format!("{}\n", removed.run))
    }

    pub(crate) fn human(&self, is_rehearsal: bool) -> String {
        let verb = if is_rehearsal { "would remove" } else { "removed" };
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
