//! From a failed attempt to the next one.
//!
//! ```text
//! failed, reported, all over ─► Restarting ─► back-off elapsed, and the driver is prepared ─► every attempt starts
//!                                           ├► a signal ─► Finish, interrupted
//!                                           └► the driver cannot ─► Finish with the failure
//! ```

use std::time::Duration;

use super::phase::{Pause, Phase};
use super::verdict::{Diagnosis, Failure};
use super::{Attempt, Effect, Event, Machine, Timer, Timestamp};
use crate::facts::{Fact, Finding, Outcome, StopReason};
use crate::machine::role;
use crate::model::{Blame, Exit, ExitClass, replica_parts};

impl Machine {
    /// The delay before the next attempt; `None` if there is none.
    pub(super) fn backoff(&self, now: Timestamp) -> Option<Duration> {
        // A stop requested while a failed attempt ends also cancels the restart.
        let failed = self.stop().is_some_and(|stop| stop.outcome == Outcome::Failed);
        let urged = self.stop().is_some_and(|stop| !matches!(stop.reason, StopReason::PeerFailed | StopReason::Hung));
        // A failed spawn would fail again; an abandoned process still holds devices and ports.
        let hopeless = self.replicas.iter().any(|(_, replica)| match &replica.attempt {
            Attempt::Ended(end) => {
                matches!(end.exit, Exit::Spawn(_))
                    && match end.class() {
                        ExitClass::Permanent => true,
                        ExitClass::Transient | ExitClass::Conflict => self.job.policy.restart.max_platform == 0,
                        ExitClass::Unknown => false,
                    }
            }
            Attempt::Waiting => false,
            _ => true,
        });
        if !failed || urged || hopeless || self.engine_lost {
            return None;
        }
        let seed = self.seed.wrapping_add(u64::from(self.attempt));
        self.restarts.delay(&self.job.policy.restart, self.class(), now, seed)
    }

    /// The cause that decides on another attempt: the one with the least hope. A failure that its role tolerates decides
    /// only if there is no other.
    fn decisive(&self) -> Option<&Finding> {
        let Diagnosis::Done(verdict) = &self.failure.diagnosis else { return None };
        let is_tolerated = |cause: &Finding| {
            let name = replica_parts(&cause.subject.replica).0;
            let role = self.job.roles.iter().position(|role| role.name.as_str() == name);
            !role.is_some_and(|role| self.outcome_of(role as u16) == role::Outcome::Failed)
        };
        verdict.causes.iter().min_by_key(|cause| (is_tolerated(cause), cause.class()))
    }

    /// The class of the failure.
    fn class(&self) -> ExitClass {
        self.decisive().map_or(ExitClass::Unknown, Finding::class)
    }

    pub(super) fn enter_pause(&mut self, delay: Duration, now: Timestamp, effects: &mut Vec<Effect>) {
        let policy = self.job.policy.restart;
        let blame = self.class().blame();
        let attempt = self.attempt + 1;
        // The budget does not include restarts after platform failures.
        let of = self.most_attempts().filter(|_| blame == Blame::User && self.restarts.of(Blame::Platform).is_empty());
        let delay_micros = delay.as_micros() as u64;
        let cause = self.decisive().map(|cause| cause.subject.replica.clone());
        effects.push(Effect::Record(match self.change() {
            Some(change) => Fact::Resizing { attempt, change: change.clone() },
            None => Fact::Restarting { attempt, of, delay_micros, blame, cause },
        }));
        self.restarts.spend(&policy, blame, now);
        // From here on a signal interrupts the pause, and the timers of the failed attempt no longer apply.
        self.phase = Phase::Pausing(Pause::default());
        self.armed.retain(|timer| *timer == Timer::Deadline);
        self.arm(Timer::Backoff, now + delay, effects);
        effects.push(Effect::Prepare { attempt });
    }

    pub(super) fn waited(&mut self) {
        if let Phase::Pausing(pause) = &mut self.phase {
            pause.waited = true;
        }
    }

    pub(super) fn prepared(&mut self, attempt: u32, ready: bool, effects: &mut Vec<Effect>) {
        // A node of several may have missed attempts, and joins a later one.
        let is_next = attempt == self.attempt + 1 || self.is_shared() && attempt > self.attempt;
        match &mut self.phase {
            Phase::Pausing(pause) if pause.ready.is_none() && is_next => {
                pause.ready = Some(ready);
                // The back-off after an attempt that is long over does not apply.
                pause.waited |= attempt > self.attempt + 1;
                self.attempt = attempt - 1;
            }
            _ => self.ignore(&Event::Prepared { attempt, ready }, effects),
        }
    }

    pub(super) fn leave_pause(&mut self, pause: Pause, now: Timestamp, effects: &mut Vec<Effect>) {
        if pause.stop.is_some() || self.engine_lost || pause.ready == Some(false) || self.is_decided_in_pause() {
            self.finish(effects);
        } else if pause.waited && pause.ready == Some(true) {
            self.next_attempt(now, effects);
        }
    }

    /// Starts all replicas again, however each one ended.
    fn next_attempt(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.phase = Phase::Running;
        self.attempt += 1;
        self.forget_decision();
        self.renew();
        self.failure = Failure::default();
        self.engine_failed = false;
        self.armed.retain(|timer| *timer == Timer::Deadline);
        self.begin_waits(now, effects);
        self.start_due(now, effects);
    }
}
