//! Why an attempt failed: the settle window, the evidence, the verdict.

use std::collections::{BTreeMap, BTreeSet};

use super::{Attempt, Effect, Event, Machine, Slot};
use crate::diagnose;
use crate::facts::{Evidence, Fact, Verdict};
use crate::machine::attempt::End;

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
        let slots = |by_us| self.bad_ends(by_us).into_iter().map(|(slot, _)| slot).collect::<Vec<Slot>>();
        let (ended, stopped) = (slots(false), slots(true));
        self.failure.diagnosis = Diagnosis::Gathering(ended.iter().chain(&stopped).copied().collect());
        effects.push(Effect::Gather { ended, stopped });
    }

    fn bad_ends(&self, by_us: bool) -> Vec<(Slot, &End)> {
        self.replicas
            .iter()
            .filter_map(|(slot, replica)| match &replica.attempt {
                Attempt::Ended(end) if end.is_failure() && !by_us => Some((slot, end)),
                Attempt::Ended(end) if !end.is_failure() && !end.exit.is_success() && by_us => Some((slot, end)),
                _ => None,
            })
            .collect()
    }

    pub(super) fn gathered(&mut self, evidence: Vec<(Slot, Evidence)>, effects: &mut Vec<Effect>) {
        let Diagnosis::Gathering(asked) = &self.failure.diagnosis else {
            return self.ignore(&Event::Gathered(evidence), effects);
        };
        let mut evidence: BTreeMap<Slot, Evidence> = evidence.into_iter().collect();
        let ends = [self.bad_ends(false), self.bad_ends(true)]
            .concat()
            .into_iter()
            // Replicas that ended while the evidence was read are no candidates: their logs were not read.
            .filter(|(slot, _)| asked.contains(slot))
            .map(|(slot, end)| diagnose::End {
                subject: self.subject(slot),
                exit: end.exit.clone(),
                ran: end.ended.since(end.started),
                order: end.order,
                by_us: end.by_us,
                before_stop: end.before_stop,
                timed_out: end.timed_out,
                evidence: evidence.remove(&slot),
                usage: end.usage,
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
