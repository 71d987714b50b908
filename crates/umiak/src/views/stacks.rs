//! What replicas are doing, grouped by where they are.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::facts::Observed;
use umiak_core::model::replica_parts;

use crate::history::RunId;
use crate::screen::style::Style;
use crate::screen::summary::Crowd;

/// `umiak stacks --output json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SeenRun {
    /// The version of this format.
    pub(crate) v: u32,
    pub(crate) run: RunId,
    pub(crate) replicas: Vec<Observed>,
}

/// Groups of replicas with the same stack, the largest first; those without a stack by the function of the kernel in
/// which they wait.
pub(crate) fn groups(replicas: &[Observed]) -> Vec<Vec<&Observed>> {
    let mut groups: Vec<Vec<&Observed>> = Vec::new();
    for replica in replicas {
        let is_alike = |other: &Observed| {
            let (a, b) = (&replica.snapshot, &other.snapshot);
            a.stack == b.stack && a.state == b.state && (!a.stack.is_empty() || a.waits_in == b.waits_in)
        };
        match groups.iter_mut().find(|group| is_alike(group[0])) {
            Some(group) => group.push(replica),
            None => groups.push(vec![replica]),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

pub(crate) fn human(style: &Style, replicas: &[Observed]) -> String {
    let mut text = String::new();
    for group in groups(replicas) {
        let names = Crowd::replicas(group.iter().map(|it| replica_parts(&it.subject.replica))).names;
        let _ = writeln!(text, "  {} {}", style.bold(&names), group[0].snapshot.describe());
        for frame in &group[0].snapshot.stack {
            let _ = writeln!(text, "    {}", style.dim(&frame.describe()));
        }
    }
    if text.is_empty() {
        text.push_str("  no replica is running\n");
    }
    text
}
