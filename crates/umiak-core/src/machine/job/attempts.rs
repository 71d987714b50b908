//! Events for attempts, and the facts and effects that follow for the job.

use super::{Attempt, AttemptId, Effect, Machine, Slot, Timestamp, attempt};
use crate::facts::{Fact, Usage};
use crate::model::{Classed, Exit, Instance, StopHow};

impl Machine {
    pub(super) fn for_all(&mut self, event: &attempt::Event, now: Timestamp, effects: &mut Vec<Effect>) {
        self.for_these(&self.replicas.slots(), event, now, effects);
    }

    /// Sends one event to these attempts. Their effects are recorded and performed together.
    pub(super) fn for_these(
        &mut self,
        slots: &[Slot],
        event: &attempt::Event,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let mut spawn = Vec::new();
        let mut stops: Vec<(StopHow, Vec<AttemptId>)> = Vec::new();
        let mut abandoned = Vec::new();
        for slot in slots.iter().copied() {
            let id = self.id(slot);
            for effect in self.apply(slot, event.clone(), now) {
                match effect {
                    attempt::Effect::Spawn => spawn.push(id),
                    attempt::Effect::Stop(how) => match stops.iter_mut().find(|(other, _)| *other == how) {
                        Some((_, targets)) => targets.push(id),
                        None => stops.push((how, vec![id])),
                    },
                    attempt::Effect::NoteAbandoned => abandoned.push(self.replica_name(slot)),
                    attempt::Effect::NoteStarted(_) | attempt::Effect::NoteEnded(_) | attempt::Effect::Ignore => {}
                }
            }
        }
        effects.extend(spawn.iter().map(|id| Effect::Record(Fact::Starting { subject: self.subject(id.slot) })));
        if !spawn.is_empty() {
            effects.push(Effect::Spawn(spawn));
        }
        for (how, targets) in stops {
            self.send_stop(how, targets, effects);
        }
        if !abandoned.is_empty() {
            effects.push(Effect::Record(Fact::Abandoned { replicas: abandoned }));
        }
    }

    pub(super) fn send_stop(&self, how: StopHow, targets: Vec<AttemptId>, effects: &mut Vec<Effect>) {
        let replicas = targets.iter().map(|id| self.replica_name(id.slot)).collect();
        effects.push(Effect::Record(Fact::StopSent { how, replicas }));
        effects.push(Effect::Stop { how, targets });
    }

    pub(super) fn apply(&mut self, slot: Slot, event: attempt::Event, now: Timestamp) -> Vec<attempt::Effect> {
        let observer = self.observer;
        self.replicas.change(slot, |replica| {
            if let Some(observer) = observer {
                observer(&replica.attempt, &event);
            }
            let attempt = std::mem::replace(&mut replica.attempt, Attempt::Waiting);
            let was_over = attempt.is_over();
            let (mut next, effects) = attempt::step(attempt, event, now);
            if let Attempt::Ended(end) = &mut next
                && !was_over
            {
                end.timed_out = replica.timed_out;
            }
            replica.attempt = next;
            effects
        })
    }

    /// Applies an event that affects only this attempt: a start or an end.
    fn step_attempt(&mut self, slot: Slot, event: attempt::Event, now: Timestamp, effects: &mut Vec<Effect>) {
        let name = event.name();
        let state = self.attempt_of(slot).map_or("", Attempt::name);
        for effect in self.apply(slot, event, now) {
            match effect {
                attempt::Effect::NoteStarted(instance) => {
                    effects.push(Effect::Record(Fact::Started { subject: self.subject(slot), instance }));
                }
                attempt::Effect::NoteEnded(end) => {
                    effects.push(Effect::Record(Fact::Ended {
                        subject: self.subject(slot),
                        exit: end.exit.clone(),
                        classed: end.classed.clone(),
                        by_us: end.by_us,
                        order: end.order,
                        usage: end.usage,
                        log_end: None,
                    }));
                    effects.push(Effect::Release { id: self.id(slot), end: Box::new(end) });
                }
                attempt::Effect::Ignore => effects.push(Effect::Record(Fact::Ignored {
                    event: format!("{} {name}", self.replica_name(slot)),
                    state: state.to_owned(),
                })),
                attempt::Effect::Spawn | attempt::Effect::Stop(_) | attempt::Effect::NoteAbandoned => {}
            }
        }
    }

    pub(super) fn attempt_started(
        &mut self,
        slot: Slot,
        instance: Instance,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        // A duplicate notification does not restart the time limit.
        let first = matches!(self.attempt_of(slot), Some(Attempt::Starting { .. }));
        self.step_attempt(slot, attempt::Event::Started(instance), now, effects);
        if first {
            self.limit(slot, now, effects);
        }
    }

    pub(super) fn exited(
        &mut self,
        slot: Slot,
        exit: Exit,
        classed: Option<Classed>,
        usage: Option<Usage>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        // It was stopped at its limit: how it ended then says nothing.
        let classed = classed.filter(|_| self.replicas.find(slot).is_some_and(|replica| replica.timed_out.is_none()));
        let order = self.order;
        // A duplicate notification takes no place in the order.
        let live = self.attempt_of(slot).is_some_and(Attempt::is_live);
        self.order += u64::from(live);
        self.step_attempt(slot, attempt::Event::Exited { exit, classed, order, usage }, now, effects);
        if live {
            self.after_end(slot, now, effects);
        }
    }
}
