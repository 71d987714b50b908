//! Many rounds at once, and what they have met: a campaign that meets nothing proves nothing.

use std::collections::BTreeSet;
use std::ops::Range;

use umiak_core::facts::Outcome;
use umiak_core::machine::round::messages::Why;

use crate::seeds::{Seen, Summary, spread};

use super::world::Run;

/// Runs all these seeds, on all processors.
pub fn campaign(seeds: &Range<u64>) -> Summary {
    spread(seeds, |seed| {
        let run = super::run(seed);
        Seen { things: things(&run), is_valid: run.violations().is_empty(), taken: BTreeSet::new() }
    })
}

/// What happened in a round, by name.
fn things(run: &Run) -> BTreeSet<String> {
    let mut things = BTreeSet::new();
    let mut met = |name: &str| {
        things.insert(name.to_owned());
    };
    met(&format!("{:?}", run.scenario.kind));
    for node in &run.nodes {
        if let Some((_, outcome, _)) = node.finished {
            met(match outcome {
                Outcome::Succeeded => "succeeded",
                Outcome::Failed => "failed",
                Outcome::Interrupted => "interrupted",
                Outcome::Stopped => "stopped",
            });
        }
        for (_, decision) in &node.decisions {
            met(match &decision.why {
                None => "decided: success",
                Some(Why::RankFailed { .. }) if decision.restart.is_some() => "decided: restart",
                Some(Why::RankFailed { .. }) => "decided: rank failed",
                Some(Why::NodeLost { .. }) => "decided: node lost",
                Some(Why::Interrupted { .. }) => "decided: interrupted",
                Some(Why::Unable { .. }) => "decided: unable",
                Some(Why::TimeUp { .. }) => "decided: time is up",
                Some(Why::CoordinatorLost { .. }) => "decided: coordinator lost",
            });
        }
        if let Some(end) = &node.other_end {
            met(end.split(['(', ' ']).next().unwrap_or_default());
        }
        match node.starts.len() {
            0 => {}
            1 => met("started"),
            _ => met("started again"),
        }
    }
    if run.refusals > 0 {
        met("turned away");
    }
    if run.nodes.len() > 60 {
        met("64 nodes");
    }
    things
}
