//! Why an attempt failed: the settle window, the evidence, the verdict.

use std::collections::BTreeMap;

use super::replicas::Replica;
use super::{Attempt, Effect, Event, Gathered, Machine, Slot, Timestamp};
use crate::diagnose;
use crate::facts::{Fact, Verdict};
use crate::machine::attempt::End;
use crate::model::Exit;

const SIGTERM: i32 = 15;

/// How many of the replicas that completed their work are considered, earliest first.
const DONE: usize = 16;

/// Whether the attempt has failed, and the diagnosis so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Failure {
    pub(super) failed: bool,
    pub(super) diagnosis: Diagnosis,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Diagnosis {
    #[default]
    None,
    /// The settle window is closed, with these ends.
    Gathering(Vec<(Slot, End)>),
    /// The coordinator decides; these ends were reported to it.
    Told(Vec<diagnose::End>),
    Done(Verdict),
}

impl Machine {
    /// Closes the settle window: all ends so far are compared, and what is still being stopped.
    pub(super) fn diagnose(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.failure.failed || self.failure.diagnosis != Diagnosis::None {
            return;
        }
        let mut ends: Vec<(Slot, End)> =
            self.replicas.iter().filter_map(|(slot, replica)| Some((slot, end_of(replica, now)?))).collect();
        let first_failed = ends.iter().filter(|(_, end)| end.is_failure()).map(|(_, end)| end.started).min();
        // What had completed its work and ran together with one that failed may have ended too early. On another node,
        // all that ran here may be missed.
        let is_shared = self.is_shared();
        let may_be_missed = |end: &End| is_shared || first_failed.is_some_and(|started| started < end.ended);
        ends.retain(|(_, end)| !end.is_success() || may_be_missed(end));
        ends.sort_by_key(|(_, end)| end.order);
        let mut successes = 0;
        ends.retain(|(_, end)| {
            successes += usize::from(end.is_success());
            !end.is_success() || successes <= DONE
        });
        let slots = |of: fn(&End) -> bool| {
            let mut slots: Vec<Slot> = ends.iter().filter(|(_, end)| of(end)).map(|(slot, _)| *slot).collect();
            slots.sort_unstable();
            slots
        };
        let (ended, done) = (slots(End::is_failure), slots(End::is_success));
        let stopped = slots(|end| !end.is_failure() && !end.is_success());
        self.failure.diagnosis = Diagnosis::Gathering(ends);
        effects.push(Effect::Gather { ended, stopped, done });
    }

    pub(super) fn gathered(&mut self, gathered: Vec<Gathered>, effects: &mut Vec<Effect>) {
        let Diagnosis::Gathering(ends) = &self.failure.diagnosis else {
            return self.ignore(&Event::Gathered(gathered), effects);
        };
        let mut gathered: BTreeMap<Slot, Gathered> = gathered.into_iter().map(|it| (it.slot, it)).collect();
        let some_decide = self.job.roles.iter().any(|role| role.completion.decides);
        let ends = ends.iter().map(|(slot, end)| {
            let gathered = gathered.remove(slot).unwrap_or_else(|| Gathered::nothing(*slot));
            diagnose::End {
                subject: self.subject(*slot),
                exit: end.exit.clone(),
                classed: end.classed.clone(),
                ran: end.ended.since(end.started),
                order: end.order,
                by_us: end.by_us,
                before_stop: end.before_stop,
                serves: some_decide && !self.job.roles[slot.role as usize].completion.decides,
                timed_out: end.timed_out,
                evidence: gathered.evidence,
                snapshot: gathered.snapshot,
                addresses: gathered.addresses,
                usage: end.usage,
            }
        });
        let ends = ends.collect();
        if self.is_shared() {
            return self.tell(ends, effects);
        }
        self.judge(diagnose::rank(ends), effects);
    }

    pub(super) fn judge(&mut self, verdict: Verdict, effects: &mut Vec<Effect>) {
        self.failure.diagnosis = Diagnosis::Done(verdict.clone());
        effects.push(Effect::Record(Fact::Diagnosed(verdict.clone())));
        effects.push(Effect::Report(verdict));
    }
}

/// How an attempt ended; one that is still being stopped counts as ended by our signal.
fn end_of(replica: &Replica, now: Timestamp) -> Option<End> {
    match &replica.attempt {
        Attempt::Ended(end) => Some(end.clone()),
        Attempt::Stopping { since, .. } => Some(End {
            exit: Exit::Signal { signal: SIGTERM, core_dumped: false },
            classed: None,
            by_us: true,
            before_stop: false,
            timed_out: replica.timed_out,
            order: u64::MAX,
            usage: None,
            started: *since,
            ended: now,
        }),
        Attempt::Waiting | Attempt::Starting { .. } | Attempt::Running { .. } | Attempt::Abandoned => None,
    }
}
