//! Many seeds at once, and what was met on the way: a campaign that meets nothing proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use umiak_core::facts::{Began, Fact, Limit, Outcome, StopReason};
use umiak_core::machine::job::{Effect, Event};
use umiak_core::model::{Blame, Exit, Scope};

use super::timeline::{Run, What};
use crate::seeds::spread;

/// What a campaign has seen.
#[derive(Debug, Default)]
pub struct Summary {
    pub runs: u64,
    pub steps: u64,
    /// In how many runs each kind of thing happened.
    pub met: BTreeMap<&'static str, u64>,
    /// Seeds of the runs in which something was wrong.
    pub failing: Vec<u64>,
}

/// Runs all these seeds, on all processors.
pub fn campaign(seeds: Range<u64>) -> Summary {
    let mut whole = spread(seeds, |summary: &mut Summary, seed| summary.add(&super::run(seed)), Summary::merge);
    whole.failing.sort_unstable();
    whole
}

impl Summary {
    fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.steps += run.steps.len() as u64;
        for thing in things(run) {
            *self.met.entry(thing).or_default() += 1;
        }
        if !run.violations().is_empty() {
            self.failing.push(run.scenario.seed);
        }
    }

    fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.steps += other.steps;
        for (thing, count) in other.met {
            *self.met.entry(thing).or_default() += count;
        }
        self.failing.extend(other.failing);
    }
}

/// What happened in a run, by name.
fn things(run: &Run) -> BTreeSet<&'static str> {
    let mut things = BTreeSet::new();
    for step in &run.steps {
        match &step.what {
            What::Began(Began::Resumed) => things.insert("resumed"),
            What::Began(Began::Retried) => things.insert("retried"),
            What::Began(Began::RetriedAll) => things.insert("all retried"),
            What::Event(Event::GuardianLost) => things.insert("guardian lost"),
            _ => false,
        };
        let spawns = |effect: &Effect| matches!(effect, Effect::Spawn(_));
        let announces = |effect: &Effect| matches!(effect, Effect::Record(Fact::Starting { .. }));
        if step.lost && step.effects.iter().any(announces) && !step.effects.iter().any(spawns) {
            things.insert("lost between record and effect");
        }
        things.extend(step.effects.iter().filter_map(thing));
    }
    let supervisors = run.steps.iter().filter(|step| step.what == What::Began(Began::Resumed)).count();
    if supervisors >= 3 {
        things.insert("resumed three times");
    }
    things
}

fn thing(effect: &Effect) -> Option<&'static str> {
    let Effect::Record(fact) = effect else { return None };
    Some(match fact {
        Fact::Finished { outcome: Outcome::Succeeded, .. } => "succeeded",
        Fact::Finished { exit_code: 124, .. } => "run timed out",
        Fact::Finished { outcome: Outcome::Failed, .. } => "failed",
        Fact::Finished { outcome: Outcome::Interrupted, .. } => "interrupted",
        Fact::Finished { outcome: Outcome::Stopped, .. } => "stopped",
        Fact::Signalled { signal: 9, .. } => "killed",
        Fact::Abandoned { .. } => "abandoned",
        Fact::Ignored { .. } => "stale event",
        Fact::Stopping { reason: StopReason::Completed } => "stopped without blame",
        Fact::Restarting { blame: Blame::User, .. } => "job restarted",
        Fact::Restarting { .. } => "job restarted for the platform",
        Fact::Retrying { scope: Scope::Replica, blame: Blame::User, .. } => "replica restarted",
        Fact::Retrying { scope: Scope::Replica, .. } => "replica restarted for the platform",
        Fact::Retrying { blame: Blame::User, .. } => "role restarted",
        Fact::Retrying { .. } => "role restarted for the platform",
        Fact::Ready { .. } => "ready",
        Fact::AttemptFailed(_) => "attempt told",
        Fact::TimedOut { what: Limit::Run, .. } => "attempt timed out",
        Fact::TimedOut { .. } => "start timed out",
        Fact::Ended { exit: Exit::Spawn(error), .. } if error.doing.starts_with("wait") => "refused",
        Fact::Ended { exit: Exit::Lost, .. } => "closed as lost",
        _ => return None,
    })
}
