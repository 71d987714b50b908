//! Time limits of an attempt, its start and the whole run; stopping one replica or one role.

use std::time::Duration;

use super::stopping::after_interrupt;
use super::{Attempt, AttemptId, Effect, Machine, Of, Slot, Timer, Timestamp, attempt};
use crate::facts::{Fact, Limit};
use crate::model::StopHow;

impl Machine {
    /// Arms the limits of a process that has just started.
    pub(super) fn limit(&mut self, slot: Slot, now: Timestamp, effects: &mut Vec<Effect>) {
        if !matches!(self.attempt_of(slot), Some(Attempt::Running { .. })) {
            return;
        }
        self.look_for_starts |= self.job.roles.iter().any(|role| !role.start_after.is_empty());
        let timeouts = self.job.roles[slot.role as usize].timeouts;
        if let Some(run) = timeouts.run {
            self.arm(Timer::Run(slot), now + run, effects);
        }
        if self.is_awaited(slot.role) && !self.replicas.get(slot).ready {
            effects.push(Effect::Await(self.id(slot)));
            if let Some(start) = timeouts.start {
                self.arm(Timer::StartUp(slot), now + start, effects);
            }
        }
    }

    pub(super) fn ready(&mut self, id: AttemptId, effects: &mut Vec<Effect>) {
        let running = matches!(self.attempt_of(id.slot), Some(Attempt::Running { .. }));
        if !running || self.replicas.get(id.slot).ready {
            return self.ignore(&super::Event::Ready { id }, effects);
        }
        self.replicas.change(id.slot, |replica| replica.ready = true);
        self.look_for_starts = true;
        effects.push(Effect::Record(Fact::Ready { subject: self.subject(id.slot) }));
        self.disarm(Timer::StartUp(id.slot), effects);
    }

    /// Records the timeout, which is a failure, and stops the replica.
    pub(super) fn time_out(&mut self, slot: Slot, what: Limit, now: Timestamp, effects: &mut Vec<Effect>) {
        // A replica that is already being stopped is not late.
        if !matches!(self.attempt_of(slot), Some(Attempt::Starting { .. } | Attempt::Running { .. })) {
            return;
        }
        let timeouts = self.job.roles[slot.role as usize].timeouts;
        let limit = match what {
            Limit::Start => timeouts.start,
            Limit::Run => timeouts.run,
            Limit::Hang => self.job.policy.hang,
        };
        self.replicas.change(slot, |replica| replica.timed_out = Some(what));
        let limit_micros = limit.unwrap_or_default().as_micros() as u64;
        effects.push(Effect::Record(Fact::TimedOut { subject: self.subject(slot), what, limit_micros }));
        self.terminate(Of::Replica(slot), now, effects);
    }

    /// Sends SIGTERM to some replicas while the job goes on.
    pub(super) fn terminate(&mut self, of: Of, now: Timestamp, effects: &mut Vec<Effect>) {
        let grace = self.grace(role_of(of));
        let before = effects.len();
        self.for_these(&self.slots_of(of), &attempt::Event::Stop(StopHow::Terminate), now, effects);
        if effects.len() > before {
            self.arm(Timer::GraceOf(of), now + grace, effects);
        }
    }

    pub(super) fn kill_these(&mut self, slots: &[Slot], then: Timer, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.replicas.total().live() == 0 {
            return;
        }
        let before = effects.len();
        self.for_these(slots, &attempt::Event::Stop(StopHow::Kill), now, effects);
        if effects.len() > before {
            self.arm(then, now + self.job.policy.stop.abandon, effects);
        }
    }

    /// Late replicas without a timer of their own. One that was stopped later has a later timer.
    pub(super) fn overdue(&self, slots: Vec<Slot>, own: fn(Of) -> Timer) -> Vec<Slot> {
        slots.into_iter().filter(|slot| !self.armed.contains(&own(Of::Replica(*slot)))).collect()
    }

    pub(super) fn gave_up(&mut self, of: Of, now: Timestamp, effects: &mut Vec<Effect>) {
        let late = self.overdue(self.slots_of(of), Timer::AbandonOf);
        self.for_these(&late, &attempt::Event::GiveUp, now, effects);
        self.recycle_if_over(role_of(of), now, effects);
    }

    /// Disarms the timers of an attempt that is over.
    pub(super) fn disarm_all_of(&mut self, slot: Slot, effects: &mut Vec<Effect>) {
        let of = Of::Replica(slot);
        let stops = [Timer::TerminateOf(of), Timer::GraceOf(of), Timer::AbandonOf(of)];
        for timer in [Timer::Run(slot), Timer::StartUp(slot)].into_iter().chain(stops) {
            self.disarm(timer, effects);
        }
    }

    /// Time between the first stop signal and SIGKILL for a replica of this role.
    pub(super) fn grace(&self, role: u16) -> Duration {
        self.job.roles[role as usize].grace.unwrap_or(self.job.policy.stop.grace)
    }

    pub(super) fn with_own_grace(&self) -> Vec<u16> {
        (0..self.job.roles.len() as u16).filter(|role| self.job.roles[*role as usize].grace.is_some()).collect()
    }

    /// Replicas that use the grace period of the job.
    pub(super) fn without_own_grace(&self) -> Vec<Slot> {
        let roles = (0u16..).zip(&self.job.roles).filter(|(_, role)| role.grace.is_none());
        roles.flat_map(|(role, _)| self.replicas.slots_of(role)).collect()
    }

    /// Arms the timers of roles with a grace period of their own, after all were told to stop.
    pub(super) fn arm_own_graces(&mut self, how: StopHow, now: Timestamp, effects: &mut Vec<Effect>) {
        for role in self.with_own_grace() {
            let timer = Timer::GraceOf(Of::Role(role));
            let live = self.replicas.of_role(role).live() > 0;
            // A role that was already being stopped gets no extra time.
            if let Some(grace) = self.job.roles[role as usize].grace.filter(|_| live && !self.armed.contains(&timer)) {
                if how == StopHow::Interrupt {
                    self.arm(Timer::TerminateOf(Of::Role(role)), now + after_interrupt(grace), effects);
                }
                self.arm(timer, now + grace, effects);
            }
        }
    }

    /// Arms the limit of the run, less the time already used.
    pub(super) fn arm_deadline(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if let Some(timeout) = self.job.policy.timeout {
            self.arm(Timer::Deadline, now + timeout.saturating_sub(self.supervised), effects);
        }
    }
}

fn role_of(of: Of) -> u16 {
    match of {
        Of::Role(role) => role,
        Of::Replica(slot) => slot.role,
    }
}
