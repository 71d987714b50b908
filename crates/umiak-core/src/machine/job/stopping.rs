//! Stopping all replicas: the reason, the signal, and the loss of the engine.

use std::time::Duration;

use super::phase::Stop;
use super::{Effect, Event, Machine, Of, Timer, Timestamp, attempt};
use crate::facts::{Fact, Limit, Outcome, StopReason};
use crate::model::{Exit, StopHow};

const SIGINT: i32 = 2;
/// From SIGINT to SIGTERM, unless the grace is short.
const AFTER_INTERRUPT: Duration = Duration::from_secs(2);

/// How much of its grace period an interrupted attempt has before SIGTERM follows.
pub(super) fn after_interrupt(grace: Duration) -> Duration {
    AFTER_INTERRUPT.min(grace / 2)
}

impl Machine {
    pub(super) fn signalled(&mut self, signal: i32, now: Timestamp, effects: &mut Vec<Effect>) {
        self.signals += 1;
        self.tell_interrupted(Some(signal), false, effects);
        match self.signals {
            1 => self.stop_all(StopReason::Signal { signal }, Outcome::Interrupted, Some(signal), now, effects),
            2 => {
                self.stop_all(StopReason::SecondSignal { signal }, Outcome::Interrupted, Some(signal), now, effects);
                self.kill_all(now, effects);
            }
            _ => effects.push(Effect::ReturnTerminal),
        }
    }

    /// Tells all replicas to stop. A later, stronger reason is recorded and changes neither the outcome nor the cause.
    pub(super) fn stop_all(
        &mut self,
        reason: StopReason,
        outcome: Outcome,
        signal: Option<i32>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let is_first = self.stop().is_none();
        match self.stop_mut() {
            Some(stop) if stop.reason >= reason => return,
            Some(stop) => stop.reason = reason,
            None => self.enter_stop(Stop { reason, first: reason, outcome, signal, killed: false }),
        }
        if outcome == Outcome::Failed && is_first {
            let live = self.live_ids();
            if !live.is_empty() {
                effects.push(Effect::Observe(live));
            }
        }
        effects.push(Effect::Record(Fact::Stopping { reason }));
        self.give_up_restarts(effects);
        let how = match reason {
            StopReason::Signal { signal: SIGINT } | StopReason::SignalElsewhere { signal: SIGINT } => {
                StopHow::Interrupt
            }
            // A kill follows at once.
            StopReason::SecondSignal { .. } => StopHow::Interrupt,
            _ => StopHow::Terminate,
        };
        let before = effects.len();
        self.for_all(&attempt::Event::Stop(how), now, effects);
        // The grace period counts from the first signal.
        if effects.len() > before && !self.armed.contains(&Timer::Grace) {
            let grace = self.job.policy.stop.grace;
            if how == StopHow::Interrupt {
                self.arm(Timer::Terminate, now + after_interrupt(grace), effects);
            }
            self.arm(Timer::Grace, now + grace, effects);
            self.arm_own_graces(how, now, effects);
        }
    }

    /// Kills all replicas: the grace period is over or was skipped.
    pub(super) fn kill_all(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.stop().is_none_or(|stop| stop.killed) {
            return;
        }
        let before = effects.len();
        // Each abandon timer counts from its own SIGKILL.
        self.kill_these(&self.without_own_grace(), Timer::Abandon, now, effects);
        for role in self.with_own_grace() {
            self.kill_these(&self.slots_of(Of::Role(role)), Timer::AbandonOf(Of::Role(role)), now, effects);
        }
        let killed = effects.len() > before;
        if let Some(stop) = self.stop_mut() {
            stop.killed = killed;
        }
    }

    pub(super) fn stop_asked(&mut self, kill: bool, now: Timestamp, effects: &mut Vec<Effect>) {
        self.stops += 1;
        self.tell_interrupted(None, kill, effects);
        self.stop_all(StopReason::User, Outcome::Stopped, None, now, effects);
        if kill || self.stops > 1 {
            self.kill_all(now, effects);
        }
    }

    /// Not counted as a request: the first one by a user has its grace period.
    pub(super) fn halted(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.stop_all(StopReason::StepFailed, Outcome::Stopped, None, now, effects);
    }

    /// No replica here makes progress. With other nodes, the coordinator decides: a rank there may be at work.
    pub(super) fn hung(&mut self, hung: bool, now: Timestamp, effects: &mut Vec<Effect>) {
        let is_running = self.has_started() && !self.is_pausing() && self.stop().is_none();
        if !is_running || (!hung && !self.is_shared()) {
            return self.ignore(&Event::Hung(hung), effects);
        }
        if self.is_shared() {
            return self.tell_progress(hung, effects);
        }
        self.fail_hung(now, effects);
    }

    /// The job hangs: all that run have exceeded the limit.
    pub(super) fn fail_hung(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for id in self.live_ids() {
            self.replicas.change(id.slot, |replica| replica.timed_out = Some(Limit::Hang));
        }
        let limit_micros = self.job.policy.hang.unwrap_or_default().as_micros() as u64;
        effects.push(Effect::Record(Fact::Hung { limit_micros }));
        self.fail(StopReason::Hung, now, effects);
    }

    /// The job has failed: stops all replicas, and collects how they end until the settle window closes.
    pub(super) fn fail(&mut self, reason: StopReason, now: Timestamp, effects: &mut Vec<Effect>) {
        self.failure.failed = true;
        self.stop_all(reason, Outcome::Failed, None, now, effects);
        if self.replicas.total().live() > 0 {
            self.arm(Timer::Settle, now + self.job.policy.settle, effects);
        }
    }

    pub(super) fn lose_engine(&mut self, again: bool, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.engine_lost {
            return self.ignore(&Event::EngineLost { again }, effects);
        }
        if again {
            self.engine_failed = true;
        } else {
            self.engine_lost = true;
            self.give_up_restarts(effects);
        }
        self.lose_live(now, effects);
    }

    pub(super) fn lose_live(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for id in self.live_ids() {
            self.exited(id.slot, Exit::Lost, None, None, now, effects);
        }
    }
}
