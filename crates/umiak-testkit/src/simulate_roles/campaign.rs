//! Many seeds at once, and what they met: a campaign that meets nothing proves nothing.

use std::collections::BTreeSet;
use std::ops::Range;

use umiak_core::facts::{Began, Fact, Limit, Outcome, StopReason};
use umiak_core::machine::job::{Effect, Event};
use umiak_core::model::{Blame, Exit, Scope, StopHow};

use super::timeline::{Run, What};
use crate::seeds::{Seen, Summary, spread};

/// Runs all these seeds, on all CPUs.
pub fn campaign(seeds: &Range<u64>) -> Summary {
    spread(seeds, |seed| {
        let run = super::run(seed);
        Seen {
            things: things(&run).into_iter().map(str::to_owned).collect(),
            is_valid: run.violations().is_empty(),
            taken: BTreeSet::new(),
        }
    })
}

/// What happened in a run, by name.
fn things(run: &Run) -> BTreeSet<&'static str> {
    let mut things = BTreeSet::new();
    for step in &run.steps {
        match &step.what {
            What::Began(Began::Resumed, adopted) => {
                if !adopted.is_empty() {
                    things.insert("adopted");
                }
                things.insert("resumed")
            }
            What::Began(Began::Retried, _) => things.insert("retried"),
            What::Began(Began::RetriedAll, _) => things.insert("all retried"),
            What::Event(Event::EngineLost { again: false }) => things.insert("guardian lost"),
            What::Event(Event::EngineLost { again: true }) => things.insert("guardian replaced"),
            _ => false,
        };
        let spawns = |effect: &Effect| matches!(effect, Effect::Spawn(_));
        let announces = |effect: &Effect| matches!(effect, Effect::Record(Fact::Starting { .. }));
        if step.lost && step.effects.iter().any(announces) && !step.effects.iter().any(spawns) {
            things.insert("lost between record and effect");
        }
        things.extend(step.effects.iter().filter_map(thing));
    }
    let supervisors = run.steps.iter().filter(|step| matches!(step.what, What::Began(Began::Resumed, _))).count();
    if supervisors >= 3 {
        things.insert("resumed three times");
    }
    things
}

/// Only after a conflict is a delay that long.
const CONFLICT: u64 = 60_000_000;

fn thing(effect: &Effect) -> Option<&'static str> {
    let Effect::Record(fact) = effect else { return None };
    Some(match fact {
        Fact::Finished { outcome: Outcome::Succeeded, .. } => "succeeded",
        Fact::Finished { exit_code: 124, .. } => "run timed out",
        Fact::Finished { outcome: Outcome::Failed, .. } => "failed",
        Fact::Finished { outcome: Outcome::Interrupted, .. } => "interrupted",
        Fact::Finished { outcome: Outcome::Stopped, .. } => "stopped",
        Fact::StopSent { how: StopHow::Kill, .. } => "killed",
        Fact::Abandoned { .. } => "abandoned",
        Fact::Ignored { .. } => "stale event",
        Fact::Stopping { reason: StopReason::Completed } => "stopped without blame",
        Fact::Restarting { delay_micros: CONFLICT.., .. } => "job restarted after a conflict",
        Fact::Retrying { delay_micros: CONFLICT.., .. } => "restarted after a conflict",
        Fact::Restarting { blame: Blame::User, .. } => "job restarted",
        Fact::Restarting { .. } => "job restarted for the platform",
        Fact::Retrying { scope: Scope::Replica, blame: Blame::User, .. } => "replica restarted",
        Fact::Retrying { scope: Scope::Replica, .. } => "replica restarted for the platform",
        Fact::Retrying { blame: Blame::User, .. } => "role restarted",
        Fact::Retrying { .. } => "role restarted for the platform",
        Fact::Ready { .. } => "ready",
        Fact::AttemptFailed(_) => "attempt reported",
        Fact::TimedOut { what: Limit::Run, .. } => "attempt timed out",
        Fact::TimedOut { .. } => "start timed out",
        Fact::Ended { exit: Exit::Unmet { .. }, .. } => "refused",
        Fact::Ended { exit: Exit::Lost, .. } => "closed as lost",
        _ => return None,
    })
}
