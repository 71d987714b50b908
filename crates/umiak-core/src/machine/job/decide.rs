//! Decisions from the counts: success, failure, the end.

use super::phase::Phase;
use super::verdict::Diagnosis;
use super::{Attempt, Effect, Machine, Stand, Timer, Timestamp};
use crate::facts::{Fact, Outcome, StopReason};
use crate::machine::exit_code;
use crate::machine::role;
use crate::model::{Exit, Success};

impl Machine {
    /// Acts on the counts, whatever the event was.
    pub(super) fn advance(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::NotStarted(_) => return self.end_before_start(effects),
            Phase::Pausing(pause) => return self.leave_pause(pause, now, effects),
            Phase::Finished { .. } => return,
            Phase::Running | Phase::Lingering | Phase::Completed | Phase::Stopping(_) => {}
        }
        loop {
            if self.stop().is_none_or(|stop| stop.outcome == Outcome::Succeeded) {
                self.decide(now, effects);
            }
            // A refused replica counts as failed, which may change the decision.
            let may_start = self.look_for_starts && !self.starts_nothing() && !self.engine_lost;
            if !may_start || !self.start_due(now, effects) {
                break;
            }
        }
        self.tell_ready(effects);
        let total = self.replicas.total();
        let open = total.live() + if self.starts_nothing() { 0 } else { total.waiting() };
        if open > 0 || (!self.failure.failed && !self.may_end(effects)) {
            return;
        }
        match (self.failure.failed, &self.failure.diagnosis) {
            (true, Diagnosis::None) => self.diagnose(now, effects),
            (true, Diagnosis::Gathering(_) | Diagnosis::Told(_)) => {}
            (false, _) => self.finish(effects),
            (true, Diagnosis::Done(_)) => match self.next_delay(now) {
                Some(delay) => self.enter_pause(delay, now, effects),
                None => self.finish(effects),
            },
        }
    }

    /// Evaluates each role's policy. The first failure or the last required success stops the rest.
    fn decide(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        // Once all deciding roles have succeeded, the way the others end is no failure.
        let is_lingering = matches!(self.phase, Phase::Lingering);
        let blameless = self.stop().is_some() || is_lingering;
        // Without a deciding role, all roles decide: otherwise the job would be over at its start.
        let nobody_decides = !self.job.roles.iter().any(|role| role.completion.decides);
        let (mut standings, mut succeeded) = (Vec::with_capacity(self.job.roles.len()), 0);
        // Completion policies do not excuse a lost engine: that failure is ours.
        let mut failed = !blameless && (self.engine_lost || self.engine_failed) && self.replicas.total().lost() > 0;
        for (position, role) in (0u16..).zip(&self.job.roles) {
            let is_recycling = self.roles[position as usize].recycling.is_some();
            let outcome = if is_recycling { role::Outcome::Running } else { self.outcome_of(position) };
            failed |= outcome == role::Outcome::Failed && !blameless;
            if role.completion.decides || nobody_decides {
                standings.push(outcome);
                succeeded += self.replicas.of_role(position).counts().succeeded;
            }
        }
        let is_over = !standings.contains(&role::Outcome::Running);
        let deciding_succeeded = match self.job.policy.success {
            Success::First | Success::End if standings.contains(&role::Outcome::Succeeded) => true,
            Success::First => is_over && succeeded > 0,
            Success::All | Success::End => is_over,
        };
        failed |= is_over && !deciding_succeeded && !blameless;
        // Without the engine, waiting replicas never start.
        let some_live = self.replicas.total().live() > 0;
        failed |= !blameless && self.engine_lost && !deciding_succeeded && !some_live;
        if failed {
            self.stand(Stand::Failed, effects);
            self.fail(StopReason::PeerFailed, now, effects);
        } else if deciding_succeeded && self.stop().is_none() {
            if self.is_needed_elsewhere() {
                if some_live {
                    self.stand(Stand::Serving, effects);
                } else if self.replicas.total().waiting() == 0 {
                    self.phase = Phase::Completed;
                }
            } else if !some_live {
                self.disarm(Timer::Linger, effects);
                self.phase = Phase::Completed;
            } else if let Some(linger) = self.job.policy.linger {
                if !is_lingering {
                    self.linger(now + linger, effects);
                }
            } else {
                self.stop_all(StopReason::Completed, Outcome::Succeeded, None, now, effects);
            }
        }
    }

    /// Leaves the roles that do not decide alone until this time. The job has succeeded: no limit ends it any more.
    fn linger(&mut self, until: Timestamp, effects: &mut Vec<Effect>) {
        self.phase = Phase::Lingering;
        self.give_up_restarts(effects);
        self.disarm(Timer::Deadline, effects);
        self.arm(Timer::Linger, until, effects);
    }

    /// The outcome of a role under its completion policy.
    pub(super) fn outcome_of(&self, role: u16) -> role::Outcome {
        let completion = &self.job.roles[role as usize].completion;
        role::outcome(completion, self.job.policy.success, &self.replicas.of_role(role).counts())
    }

    /// True if the loss of the engine is the only cause of the failure.
    fn is_engine_to_blame(&self) -> bool {
        let Diagnosis::Done(verdict) = &self.failure.diagnosis else { return false };
        let is_lost = verdict.causes.iter().all(|cause| cause.exit == Exit::Lost);
        (self.engine_lost || self.engine_failed) && is_lost
    }

    pub(super) fn finish(&mut self, effects: &mut Vec<Effect>) {
        let stop = self.stop().copied();
        let (outcome, signal) = match stop {
            Some(stop) => (stop.outcome, stop.signal),
            // A failure whose restart was called off stands.
            None if self.is_pausing() => (Outcome::Failed, None),
            None => (Outcome::Succeeded, None),
        };
        let verdict = match &self.failure.diagnosis {
            Diagnosis::Done(verdict) => Some(verdict),
            Diagnosis::None | Diagnosis::Gathering(_) | Diagnosis::Told(_) => None,
        };
        let ends: Vec<Exit> = self
            .replicas
            .iter()
            .filter_map(|(_, replica)| match &replica.attempt {
                Attempt::Ended(end) => Some(end.exit.clone()),
                _ => None,
            })
            .collect();
        let (outcome, signal) = self.outcome_of_all(outcome, signal);
        let timed_out = stop.is_some_and(|stop| matches!(stop.first, StopReason::Timeout | StopReason::Hung));
        let several_roles = self.style.document && self.job.roles.len() > 1;
        let code = match self.code_of_all() {
            Some(code) => code,
            None if timed_out => exit_code::TIMED_OUT,
            None if several_roles && outcome == Outcome::Failed && !self.is_engine_to_blame() => 1,
            // Nothing ended badly, but a restart was not possible.
            None if self.engine_lost && verdict.is_some_and(|verdict| verdict.causes.is_empty()) => {
                Exit::Lost.shell_code()
            }
            None => exit_code::of(self.style, outcome, signal, verdict, &ends),
        };
        self.phase = Phase::Finished { in_pause: self.is_pausing() };
        effects.push(Effect::Record(Fact::Finished { outcome, exit_code: code }));
        effects.push(Effect::Finish { outcome, code });
    }
}
