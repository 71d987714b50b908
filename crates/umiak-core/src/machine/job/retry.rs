//! Restarts inside a role, while the job goes on.
//!
//! ```text
//! a replica fails ─┬► scope replica, budget left ─► reported ─► back-off ─► it starts again
//!                  ├► scope role, budget left ─► the others of the role are stopped ─► back-off ─► all of it starts again
//!                  └► no budget: the completion policies decide
//! ```

use std::time::Duration;

use super::{Attempt, AttemptId, Effect, Event, Machine, Of, Slot, Timer, Timestamp};
use crate::diagnose;
use crate::facts::{Evidence, Fact, Subject};
use crate::model::{Blame, Exit, Scope};

impl Machine {
    /// Handles the end of an attempt: restarts the replica or its role if the policy allows.
    pub(super) fn after_end(&mut self, slot: Slot, now: Timestamp, effects: &mut Vec<Effect>) {
        self.disarm_all_of(slot, effects);
        self.look_for_starts |= self.job.roles.iter().any(|role| !role.start_after.is_empty());
        if self.roles[slot.role as usize].recycling.is_some() {
            return self.recycle_if_over(slot.role, now, effects);
        }
        let Some(Attempt::Ended(end)) = self.attempt_of(slot) else { return };
        if end.by_us && self.is_wanted_again(slot) {
            self.replicas.change(slot, |replica| replica.attempt = Attempt::Waiting);
            self.look_for_starts = true;
            return;
        }
        // What it waited for has failed, and would be missing again.
        let is_unmet = matches!(end.exit, Exit::Unmet { .. });
        if !end.is_failure() || is_unmet || self.stop().is_some() || self.engine_lost {
            return;
        }
        let (end, class) = (end.clone(), end.class());
        let restart = self.job.roles[slot.role as usize].restart;
        let number = self.number(slot);
        let seed = self.seed.wrapping_add(u64::from(slot.index) << 32).wrapping_add(u64::from(number));
        let past = match restart.scope {
            Scope::Replica => &self.replicas.get(slot).past,
            Scope::Role => &self.roles[slot.role as usize].past,
        };
        // After a takeover, the decision is the one the earlier supervisor would have made.
        let Some(delay) = past.delay(&restart.rule, class, end.ended, seed) else { return };
        let blame = class.blame();
        self.replicas.change(slot, |replica| replica.untold.push((number, end)));
        effects.push(Effect::Inspect(self.id(slot)));
        match restart.scope {
            Scope::Replica => self.retry(&[slot], Of::Replica(slot), blame, delay, now, effects),
            Scope::Role => {
                let group = &mut self.roles[slot.role as usize];
                group.recycling = Some((delay, blame));
                group.cycle += 1;
                self.terminate(Of::Role(slot.role), now, effects);
                self.recycle_if_over(slot.role, now, effects);
            }
        }
    }

    /// True if an earlier supervisor stopped it and this one does not: it restarts like a lost attempt.
    fn is_wanted_again(&self, slot: Slot) -> bool {
        let replica = self.replicas.get(slot);
        replica.stopped_before.is_some() && replica.timed_out.is_none() && self.stop().is_none() && !self.engine_lost
    }

    /// Restarts these replicas after a back-off.
    fn retry(
        &mut self,
        slots: &[Slot],
        of: Of,
        blame: Blame,
        delay: Duration,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let restart = self.job.roles[slots[0].role as usize].restart;
        let next = |slot: &Slot| {
            let subject = self.subject(*slot);
            Subject { attempt: subject.attempt + u32::from(self.replicas.get(*slot).begun), ..subject }
        };
        effects.push(Effect::Record(Fact::Retrying {
            scope: restart.scope,
            subjects: slots.iter().map(next).collect(),
            blame,
            max: restart.rule.budget(blame),
            delay_micros: delay.as_micros() as u64,
        }));
        effects.push(Effect::Forsake(slots.iter().map(|slot| self.id(*slot)).collect()));
        for slot in slots {
            self.replicas.change(*slot, |replica| {
                (replica.attempt, replica.backing_off) = (Attempt::Waiting, true);
            });
        }
        match of {
            Of::Replica(slot) => {
                self.replicas.change(slot, |replica| replica.past.spend(&restart.rule, blame, now));
            }
            Of::Role(role) => {
                let group = &mut self.roles[role as usize];
                group.past.spend(&restart.rule, blame, now);
                group.cycle += 1;
            }
        }
        self.arm(Timer::BackoffOf(of), now + delay, effects);
    }

    /// Restarts a role once its last replica has ended.
    pub(super) fn recycle_if_over(&mut self, role: u16, now: Timestamp, effects: &mut Vec<Effect>) {
        let of = Of::Role(role);
        let Some((delay, blame)) = self.roles[role as usize].recycling else { return };
        if self.replicas.of_role(role).live() > 0 {
            return;
        }
        let stuck = self.replicas.of_role(role).abandoned() > 0;
        self.roles[role as usize].recycling = None;
        self.disarm(Timer::TerminateOf(of), effects);
        self.disarm(Timer::GraceOf(of), effects);
        self.disarm(Timer::AbandonOf(of), effects);
        // An abandoned process still holds devices and ports: no restart, and the completion policies decide.
        if stuck {
            return;
        }
        self.retry(&self.slots_of(of), of, blame, delay, now, effects);
    }

    pub(super) fn backed_off(&mut self, of: Of) {
        self.look_for_starts = true;
        for slot in self.slots_of(of) {
            self.replicas.change(slot, |replica| replica.backing_off = false);
        }
    }

    /// Cancels all pending restarts, because everything is being stopped.
    pub(super) fn give_up_restarts(&mut self, effects: &mut Vec<Effect>) {
        for role in 0..self.job.roles.len() as u16 {
            self.roles[role as usize].recycling = None;
            self.disarm(Timer::BackoffOf(Of::Role(role)), effects);
            for slot in self.replicas.backing_off(role) {
                self.disarm(Timer::BackoffOf(Of::Replica(slot)), effects);
                self.replicas.change(slot, |replica| replica.backing_off = false);
            }
        }
    }

    /// Reports a failed attempt, now that its evidence has been read.
    pub(super) fn inspected(&mut self, id: AttemptId, evidence: Option<Box<Evidence>>, effects: &mut Vec<Effect>) {
        let untold = self.replicas.find(id.slot).filter(|_| id.step == self.step).map(|replica| &replica.untold);
        let position = untold.and_then(|untold| untold.iter().position(|(number, _)| *number == id.attempt));
        let Some(position) = position else {
            return self.ignore(&Event::Inspected { id, evidence }, effects);
        };
        let (number, end) = self.replicas.change(id.slot, |replica| replica.untold.remove(position));
        let verdict = diagnose::rank(vec![diagnose::End {
            subject: Subject { attempt: number, ..self.subject(id.slot) },
            exit: end.exit,
            classed: end.classed,
            ran: end.ended.since(end.started),
            order: end.order,
            by_us: end.by_us,
            before_stop: end.before_stop,
            serves: false,
            timed_out: end.timed_out,
            evidence: evidence.map(|evidence| *evidence),
            snapshot: None,
            addresses: Vec::new(),
            usage: end.usage,
        }]);
        if let Some(finding) = verdict.causes.into_iter().next() {
            let finding = Box::new(finding);
            effects.push(Effect::Record(Fact::AttemptFailed(finding.clone())));
            effects.push(Effect::TellFailed(finding));
        }
    }
}
