//! Many seeds at once, and what they met: a campaign that meets nothing proves nothing.

use std::collections::BTreeSet;
use std::ops::Range;

use umiak_core::facts::{Fact, StopReason};
use umiak_core::machine::job::{Effect, Event};
use umiak_core::model::{FIRST_ATTEMPT, StopHow};

use crate::seeds::{Seen, Summary, spread};

use super::coverage::Pair;
use super::timeline::{Death, Run};

/// Runs all these seeds, on all CPUs.
pub fn campaign(seeds: &Range<u64>) -> Summary<Pair> {
    spread(seeds, |seed| {
        let run = super::run(seed);
        Seen {
            things: things(&run).into_iter().map(str::to_owned).collect(),
            is_valid: run.violations().is_empty(),
            taken: run.taken.clone(),
        }
    })
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
            umiak_core::facts::Outcome::Stopped => "stopped",
        }),
        Effect::Stop { how: StopHow::Kill, .. } => Some("killed"),
        Effect::ReturnTerminal => Some("terminal returned"),
        Effect::Record(Fact::Abandoned { .. }) => Some("abandoned"),
        Effect::Record(Fact::Ignored { .. }) => Some("stale event"),
        Effect::Record(Fact::Stopping { reason: StopReason::Completed }) => Some("stopped without blame"),
        Effect::Record(Fact::Restarting { .. }) => Some("restarted"),
        Effect::Report(verdict) if !verdict.victims.is_empty() => Some("victims"),
        Effect::Report(_) => Some("causes only"),
        _ => None,
    }));
    if run.steps.iter().any(|step| step.event == Event::EngineLost { again: false }) {
        things.insert("guardian lost");
    }
    things.extend(restarts(run));
    if let Some(first) = run.first_cause(FIRST_ATTEMPT) {
        let notice = run.steps.iter().find_map(|step| match &step.event {
            Event::Exited { id, .. } if id.attempt == FIRST_ATTEMPT && run.scenario.rank(id.slot) == Some(first) => {
                Some(step.at)
            }
            _ => None,
        });
        let stop = run
            .steps
            .iter()
            .find(|step| step.effects.contains(&Effect::Record(Fact::Stopping { reason: StopReason::PeerFailed })));
        let evident = run.deaths[&FIRST_ATTEMPT][first].as_ref().is_some_and(Death::is_evident);
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

/// What happened to restarts.
fn restarts(run: &Run) -> Vec<&'static str> {
    let is_restart = |effect: &Effect| matches!(effect, Effect::Record(Fact::Restarting { .. }));
    let count = run.steps.iter().flat_map(|step| &step.effects).filter(|effect| is_restart(effect)).count();
    let attempts = run.deaths.len();
    let end = run.steps.iter().flat_map(|step| &step.effects).find_map(|effect| match effect {
        Effect::Finish { outcome, .. } => Some(*outcome),
        _ => None,
    });
    let mut things = Vec::new();
    if count >= 2 {
        things.push("restarted twice");
    }
    if count > run.scenario.job.policy.restart.max as usize {
        things.push("restarted beyond the number, by its window");
    }
    match (count >= attempts, end) {
        (true, Some(umiak_core::facts::Outcome::Interrupted)) => things.push("interrupted between attempts"),
        (true, Some(umiak_core::facts::Outcome::Failed)) => things.push("restart given up"),
        (false, Some(umiak_core::facts::Outcome::Succeeded)) if count > 0 => things.push("recovered by a restart"),
        (false, Some(umiak_core::facts::Outcome::Failed)) if count > 0 => things.push("failed for good"),
        _ => {}
    }
    things
}
