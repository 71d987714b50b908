//! Many seeds at once, and what was met on the way: a campaign that meets nothing proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::thread;

use umiak_core::facts::{Fact, StopReason};
use umiak_core::machine::job::{Effect, Event};

use super::coverage::Pair;
use super::timeline::{Death, Run};

/// What a campaign has seen.
#[derive(Debug, Default)]
pub struct Summary {
    pub runs: u64,
    pub steps: u64,
    /// Transitions that attempts took.
    pub taken: BTreeSet<Pair>,
    /// In how many runs each kind of thing happened.
    pub met: BTreeMap<&'static str, u64>,
    /// Seeds of the runs in which something was wrong.
    pub failing: Vec<u64>,
}

/// Runs all these seeds, on all processors.
pub fn campaign(seeds: Range<u64>) -> Summary {
    let threads = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let part = |thread: u64| {
        let mut summary = Summary::default();
        seeds.clone().filter(|seed| seed % threads == thread).for_each(|seed| summary.add(&super::run(seed)));
        summary
    };
    thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        let mut whole = Summary::default();
        for part in parts {
            whole.merge(part.join().expect("a simulated run does not panic"));
        }
        whole.failing.sort_unstable();
        whole
    })
}

impl Summary {
    fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.steps += run.steps.len() as u64;
        self.taken.extend(&run.taken);
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
        self.taken.extend(other.taken);
        for (thing, count) in other.met {
            *self.met.entry(thing).or_default() += count;
        }
        self.failing.extend(other.failing);
    }
}

/// What happened in a run, by name.
fn things(run: &Run) -> BTreeSet<&'static str> {
    let mut things = BTreeSet::new();
    let effects = run.steps.iter().flat_map(|step| &step.effects);
    things.extend(effects.filter_map(|effect| match effect {
        Effect::Finish { outcome, .. } => Some(match outcome {
            umiak_core::facts::Outcome::Succeeded => "succeeded",
            umiak_core::facts::Outcome::Failed => "failed",
            umiak_core::facts::Outcome::Interrupted => "interrupted",
        }),
        Effect::Signal { signal: 9, .. } => Some("killed"),
        Effect::ReturnTerminal => Some("terminal returned"),
        Effect::Record(Fact::Abandoned { .. }) => Some("abandoned"),
        Effect::Record(Fact::Ignored { .. }) => Some("stale event"),
        Effect::Record(Fact::Stopping { reason: StopReason::Completed }) => Some("stopped without blame"),
        Effect::Report(verdict) if !verdict.victims.is_empty() => Some("victims"),
        Effect::Report(_) => Some("causes only"),
        _ => None,
    }));
    if run.steps.iter().any(|step| step.event == Event::GuardianLost) {
        things.insert("guardian lost");
    }
    if let Some(first) = run.first_cause() {
        let notice = run.steps.iter().find_map(|step| match &step.event {
            Event::Exited { id, .. } if run.scenario.rank(id.slot) == Some(first) => Some(step.at),
            _ => None,
        });
        let stop = run
            .steps
            .iter()
            .find(|step| step.effects.contains(&Effect::Record(Fact::Stopping { reason: StopReason::PeerFailed })));
        let evident = run.deaths[first].as_ref().is_some_and(Death::is_evident);
        if let (true, Some(notice), Some(stop)) = (evident, notice, stop) {
            let settle = run.scenario.job.policy.settle;
            things.insert(match notice {
                notice if notice <= stop.at => "evident cause heard first",
                notice if notice <= stop.at + settle => "evident cause heard after its victims",
                _ => "evident cause heard too late",
            });
        }
    }
    things
}
