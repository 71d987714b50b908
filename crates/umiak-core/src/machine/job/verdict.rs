//! Why an attempt failed: the settle window, the evidence, the verdict.

use std::collections::{BTreeMap, BTreeSet};

use super::{Attempt, Effect, Event, Gathered, Machine, Slot};
use crate::diagnose;
use crate::facts::{Fact, Verdict};
use crate::machine::attempt::End;

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
    /// The settle window is closed; these are the candidates.
    Gathering(BTreeSet<Slot>),
    /// The coordinator decides; these ends were reported to it.
    Told(Vec<diagnose::End>),
    Done(Verdict),
}

impl Machine {
    /// Closes the settle window: all bad ends so far are candidates.
    pub(super) fn diagnose(&mut self, effects: &mut Vec<Effect>) {
        if !self.failure.failed || self.failure.diagnosis != Diagnosis::None {
            return;
        }
        let slots = |of: fn(&End) -> bool| self.ends(of).map(|(slot, _)| slot).collect::<Vec<Slot>>();
        let (ended, stopped) = (slots(End::is_failure), slots(|end| end.by_us && !end.is_failure()));
        let mut done: Vec<(Slot, &End)> =
            self.ends(End::is_success).filter(|(_, end)| self.may_be_missed(end)).collect();
        done.sort_by_key(|(_, end)| end.order);
        let done: Vec<Slot> = done.into_iter().take(DONE).map(|(slot, _)| slot).collect();
        let all = [&ended[..], &stopped, &done].concat();
        self.failure.diagnosis = Diagnosis::Gathering(all.into_iter().collect());
        effects.push(Effect::Gather { ended, stopped, done });
    }

    fn ends(&self, of: fn(&End) -> bool) -> impl Iterator<Item = (Slot, &End)> {
        self.replicas.iter().filter_map(move |(slot, replica)| match &replica.attempt {
            Attempt::Ended(end) if of(end) => Some((slot, end)),
            _ => None,
        })
    }

    /// True if a replica that has completed its work was running together with one that failed: it may have ended too
    /// early. On another node, all that ran here may be missed.
    fn may_be_missed(&self, end: &End) -> bool {
        self.is_shared() || self.ends(End::is_failure).any(|(_, failed)| failed.started < end.ended)
    }

    pub(super) fn gathered(&mut self, gathered: Vec<Gathered>, effects: &mut Vec<Effect>) {
        let Diagnosis::Gathering(asked) = &self.failure.diagnosis else {
            return self.ignore(&Event::Gathered(gathered), effects);
        };
        let mut gathered: BTreeMap<Slot, Gathered> = gathered.into_iter().map(|it| (it.slot, it)).collect();
        let ends = self
            .ends(|_| true)
            // Replicas that ended while the evidence was read are no candidates: their logs were not read.
            .filter(|(slot, _)| asked.contains(slot))
            .map(|(slot, end)| {
                let gathered = gathered.remove(&slot).unwrap_or_else(|| Gathered::nothing(slot));
                let Gathered { evidence, snapshot, addresses, .. } = gathered;
                diagnose::End {
                    subject: self.subject(slot),
                    exit: end.exit.clone(),
                    ran: end.ended.since(end.started),
                    order: end.order,
                    by_us: end.by_us,
                    before_stop: end.before_stop,
                    timed_out: end.timed_out,
                    evidence,
                    snapshot,
                    addresses,
                    usage: end.usage,
                }
            })
            .collect();
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
