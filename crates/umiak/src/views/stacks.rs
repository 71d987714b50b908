//! What replicas are doing, grouped by where they are.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::facts::{Observed, ProcessState};
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
    /// Number of live replicas. Those that could not be read are not in `replicas`.
    pub(crate) live: usize,
    pub(crate) replicas: Vec<Observed>,
}

/// Groups of replicas with the same stack, the largest first; those without a stack by the function of the kernel in
/// which they wait.
pub(crate) fn groups(replicas: &[Observed]) -> Vec<Vec<&Observed>> {
    let mut groups: Vec<Vec<&Observed>> = Vec::new();
    for replica in replicas {
        let is_alike = |other: &Observed| {
            let (a, b) = (&replica.snapshot, &other.snapshot);
            // A loop that waits is running or sleeping by chance.
            let is_chance = |state| matches!(state, ProcessState::Running | ProcessState::Sleeping);
            let is_same_state = a.state == b.state || (is_chance(a.state) && is_chance(b.state));
            let is_same_wait = a.state == b.state && a.waits_in == b.waits_in;
            a.stack == b.stack && if a.stack.is_empty() { is_same_wait } else { is_same_state }
        };
        match groups.iter_mut().find(|group| is_alike(group[0])) {
            Some(group) => group.push(replica),
            None => groups.push(vec![replica]),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

/// With the number of replicas that could not be read.
pub(crate) fn human(style: &Style, replicas: &[Observed], missing: usize) -> String {
    let mut text = String::new();
    for group in groups(replicas) {
        let names = Crowd::replicas(group.iter().map(|it| replica_parts(&it.subject.replica))).names;
        let _ = writeln!(text, "  {} {}", style.bold(&names), group[0].snapshot.describe());
        for frame in &group[0].snapshot.stack {
            let _ = writeln!(text, "    {}", style.dim(&frame.describe()));
        }
    }
    if missing > 0 {
        let noun = if missing == 1 { "replica" } else { "replicas" };
        let _ = writeln!(text, "  {missing} {noun} could not be read");
    }
    if text.is_empty() {
        text.push_str("  no replica is running\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_many_could_not_be_read() {
        let style = Style::default();
        assert_eq!(human(&style, &[], 0), "  no replica is running\n");
        assert_eq!(human(&style, &[], 1), "  1 replica could not be read\n");
        assert_eq!(human(&style, &[], 3), "  3 replicas could not be read\n");
    }
}
