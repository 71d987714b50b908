//! Timers. Each is armed at most once with the same number, which fences off old timers.

use super::{Effect, Event, Machine, Of, Timer, Timestamp, attempt};
use crate::facts::{Limit, Outcome, StopReason};
use crate::model::StopHow;

impl Machine {
    pub(super) fn arm(&mut self, timer: Timer, at: Timestamp, effects: &mut Vec<Effect>) {
        self.armed.insert(timer);
        effects.push(Effect::ArmTimer { timer, attempt: self.fence(timer), at });
    }

    pub(super) fn disarm(&mut self, timer: Timer, effects: &mut Vec<Effect>) {
        if self.armed.remove(&timer) {
            effects.push(Effect::DisarmTimer(timer));
        }
    }

    /// The number that fences a timer.
    pub(super) fn fence(&self, timer: Timer) -> u32 {
        match timer {
            Timer::TerminateOf(Of::Replica(slot))
            | Timer::GraceOf(Of::Replica(slot))
            | Timer::AbandonOf(Of::Replica(slot))
            | Timer::BackoffOf(Of::Replica(slot))
            | Timer::StartUp(slot)
            | Timer::Run(slot) => self.number(slot),
            Timer::Deadline => 0,
            // A role can restart several times within one attempt of the job.
            Timer::TerminateOf(Of::Role(role))
            | Timer::GraceOf(Of::Role(role))
            | Timer::AbandonOf(Of::Role(role))
            | Timer::BackoffOf(Of::Role(role)) => self.roles[role as usize].cycle,
            Timer::Settle
            | Timer::Terminate
            | Timer::Grace
            | Timer::Abandon
            | Timer::Backoff
            | Timer::Linger
            | Timer::Elsewhere(_)
            | Timer::Patience(_) => self.attempt,
        }
    }

    pub(super) fn timer(&mut self, timer: Timer, attempt: u32, now: Timestamp, effects: &mut Vec<Effect>) {
        // A stale timer must not kill ranks that were not told to stop.
        if !self.armed.contains(&timer) || attempt != self.fence(timer) || !self.armed.remove(&timer) {
            return self.ignore(&Event::Timer(timer, attempt), effects);
        }
        match timer {
            Timer::Settle => self.diagnose(now, effects),
            Timer::Terminate => {
                let late = self.without_own_grace();
                self.for_these(&late, &attempt::Event::Stop(StopHow::Terminate), now, effects);
            }
            Timer::TerminateOf(of) => {
                self.for_these(&self.slots_of(of), &attempt::Event::Stop(StopHow::Terminate), now, effects);
            }
            Timer::Grace => {
                let late = self.overdue(self.without_own_grace(), Timer::GraceOf);
                self.kill_these(&late, Timer::Abandon, now, effects);
            }
            Timer::Abandon => {
                let late = self.overdue(self.without_own_grace(), Timer::AbandonOf);
                self.for_these(&late, &attempt::Event::GiveUp, now, effects);
            }
            Timer::Backoff => self.waited(),
            Timer::Deadline => self.stop_all(StopReason::Timeout, Outcome::Failed, None, now, effects),
            Timer::Linger => self.stop_all(StopReason::Completed, Outcome::Succeeded, None, now, effects),
            Timer::GraceOf(of) => {
                let late = self.overdue(self.slots_of(of), Timer::GraceOf);
                self.kill_these(&late, Timer::AbandonOf(of), now, effects);
            }
            Timer::AbandonOf(of) => self.gave_up(of, now, effects),
            Timer::BackoffOf(of) => self.backed_off(of),
            Timer::Elsewhere(role) => self.miss_elsewhere(role, now, effects),
            Timer::Patience(role) => self.lose_patience(role, effects),
            Timer::StartUp(slot) => self.time_out(slot, Limit::Start, now, effects),
            Timer::Run(slot) => self.time_out(slot, Limit::Run, now, effects),
        }
    }
}
