//! Many jobs at once, and what they met: a campaign that meets nothing proves nothing.

use std::collections::BTreeSet;
use std::ops::Range;

use umiak_core::facts::Outcome;
use umiak_core::machine::round::messages::{Loss, Why};

use super::journal::Entry;
use super::scenario::Fault;
use super::world::Run;
use crate::seeds::{Seen, Summary, spread};

/// Runs all these seeds, on all CPUs.
pub fn campaign(seeds: &Range<u64>) -> Summary {
    spread(seeds, |seed| {
        let run = super::run(seed);
        Seen { things: things(&run), is_valid: run.violations().is_empty(), taken: BTreeSet::new() }
    })
}

/// What happened in a job, by name.
fn things(run: &Run) -> BTreeSet<String> {
    let mut things = BTreeSet::new();
    let mut met = |name: &str| {
        things.insert(name.to_owned());
    };
    let (mut leads, mut starts) = (0, 0);
    for (_, entry) in &run.journal {
        match entry {
            Entry::Fault(fault) => met(match fault {
                Fault::Cut { .. } => "fault: cut",
                Fault::Break { .. } => "fault: break",
                Fault::CutEtcd { to: true, from: true, .. } => "fault: without etcd",
                Fault::CutEtcd { to: true, .. } => "fault: requests to etcd lost",
                Fault::CutEtcd { .. } => "fault: answers of etcd lost",
                Fault::EtcdAway { .. } => "fault: etcd away",
                Fault::Kill { .. } => "fault: front killed",
                Fault::Vanish { .. } => "fault: host lost",
                Fault::Signal { .. } => "fault: signal",
                Fault::Scale { .. } => "fault: scaled",
            }),
            Entry::Leads { .. } => leads += 1,
            Entry::Started { .. } => starts += 1,
            Entry::Decided { decision, .. } => met(match (&decision.why, decision.restart) {
                (Some(Why::NodeLost { how: Loss::Fenced, .. }), _) => "decided: fenced",
                (Some(Why::NodeLost { how: Loss::Left, .. }), Some(restart)) if restart.moves => "decided: handed over",
                (Some(Why::NodeLost { .. }), _) => "decided: node lost",
                (Some(Why::Joined { .. }), _) => "decided: nodes join",
                (Some(Why::Scaled { .. }), _) => "decided: scaled",
                (Some(Why::RankFailed { .. }), Some(_)) => "decided: restart",
                (Some(Why::RankFailed { .. }), None) => "decided: rank failed",
                (Some(Why::TimeUp { .. }), _) => "decided: time is up",
                (None, _) => "decided: success",
                _ => "decided: other",
            }),
            Entry::Left { outcome, .. } => met(match outcome {
                Outcome::Succeeded => "succeeded",
                Outcome::Failed => "failed",
                Outcome::Interrupted => "interrupted",
                Outcome::Stopped => "stopped",
            }),
            Entry::Came { .. }
            | Entry::Died { .. }
            | Entry::Reigned { .. }
            | Entry::Leaves { .. }
            | Entry::Spawned { .. }
            | Entry::Stopping { .. }
            | Entry::Ended { .. }
            | Entry::Failed { .. } => {}
        }
    }
    match leads {
        0 | 1 => {}
        2 => met("a second coordinator"),
        3 => met("a third coordinator"),
        _ => met("four coordinators"),
    }
    if starts >= 6 {
        met("six attempts");
    }
    things
}
