//! A job on several nodes, seen from one of them: failures are told instead of judged, and the end is what all nodes
//! were told.

use std::time::Duration;

use super::verdict::{Diagnosis, Failure};
use super::{Decided, Effect, Event, Machine, Stand, Timer, Timestamp};
use crate::diagnose;
use crate::facts::{Outcome, StopReason, Verdict, Weight};
use crate::machine::role;
use crate::model::Exit;

/// What we told the other nodes last, and what we were told.
#[derive(Debug, Clone, Default)]
pub(super) struct Several {
    stood: Option<Stand>,
    decided: Option<Decided>,
    /// Nobody can be asked.
    alone: bool,
}

impl Machine {
    /// This node is one of several. Before the start.
    pub fn share(&mut self) {
        self.several = Some(Several::default());
    }

    pub(super) fn is_shared(&self) -> bool {
        self.several.is_some()
    }

    /// Nobody here decides any more, and nobody has said yet that all of the job is over: what runs here may be needed by
    /// trainers on other nodes.
    pub(super) fn is_needed_elsewhere(&self) -> bool {
        self.several.as_ref().is_some_and(|several| several.decided.is_none() && !several.alone)
    }

    /// By a signal or an order, here or on another node: no rank is to blame.
    fn is_asked_to_stop(&self) -> bool {
        self.stop().is_some_and(|stop| is_asked(stop.outcome))
    }

    /// Tells how things stand here, if that is news.
    pub(super) fn stand(&mut self, stand: Stand, effects: &mut Vec<Effect>) {
        let Some(several) = &mut self.several else { return };
        if several.stood.as_ref() != Some(&stand) {
            several.stood = Some(stand.clone());
            effects.push(Effect::Stand(stand));
        }
    }

    /// By a signal or by `umiak stop`: all nodes stop.
    pub(super) fn tell_interrupted(&mut self, signal: Option<i32>, kill: bool, effects: &mut Vec<Effect>) {
        let decided = self.several.as_ref().and_then(|several| several.decided.as_ref());
        let open = decided.is_none_or(|decided| decided.restart.is_some());
        if open && self.signals + self.stops == 1 {
            self.stand(Stand::Interrupted { signal, kill }, effects);
        }
    }

    /// The settle window of this node is closed.
    pub(super) fn tell(&mut self, ends: Vec<diagnose::End>, effects: &mut Vec<Effect>) {
        self.failure.diagnosis = Diagnosis::Told(ends.clone());
        match &self.several {
            // The others did not wait for us.
            Some(Several { decided: Some(decided), .. }) => self.adopt(&decided.clone(), effects),
            Some(Several { alone: true, .. }) => self.decide_alone(effects),
            _ => self.stand(Stand::Told(ends), effects),
        }
    }

    pub(super) fn stopped_elsewhere(&mut self, reason: StopReason, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.is_shared() || self.is_pausing() || !self.has_started() {
            return self.ignore(&Event::StoppedElsewhere(reason), effects);
        }
        match reason {
            StopReason::SignalElsewhere { signal } => {
                self.stop_all(reason, Outcome::Interrupted, Some(signal), now, effects);
            }
            StopReason::User => self.stop_all(reason, Outcome::Stopped, None, now, effects),
            _ => self.fail_elsewhere(reason, now, effects),
        }
    }

    /// Our ranks are stopped, and how they ended before or while that happened is told.
    fn fail_elsewhere(&mut self, reason: StopReason, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.failure.failed && !self.is_asked_to_stop() {
            self.failure.failed = true;
            self.stop_all(reason, Outcome::Failed, None, now, effects);
            if self.live().0 > 0 {
                self.arm(Timer::Settle, now + self.job.policy.settle, effects);
            }
        }
    }

    pub(super) fn decided(&mut self, decided: Decided, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(several) = &mut self.several else {
            return self.ignore(&Event::Decided(Box::new(decided)), effects);
        };
        // While this attempt still ends here, the next can be over already: then there is none.
        let (next, current) = match &several.decided {
            None => (false, decided.attempt == self.attempt && !several.alone),
            Some(last) => (true, last.restart.is_some() && decided.attempt == self.attempt + 1),
        };
        if !current {
            return self.ignore(&Event::Decided(Box::new(decided)), effects);
        }
        several.decided = Some(decided.clone());
        if next || !self.has_started() {
            return self.miss(&decided, next, now, effects);
        }
        match (decided.outcome, decided.signal) {
            (Outcome::Succeeded, _) => self.forgive(effects),
            (Outcome::Interrupted, Some(signal)) => {
                self.stop_all(StopReason::SignalElsewhere { signal }, Outcome::Interrupted, Some(signal), now, effects);
            }
            (Outcome::Stopped, _) => {
                self.stop_all(StopReason::User, Outcome::Stopped, None, now, effects);
                if decided.kill {
                    self.kill_all(now, effects);
                }
            }
            _ => {
                self.fail_elsewhere(StopReason::NodeLost, now, effects);
                if self.failure.diagnosis == Diagnosis::None {
                    self.adopt(&decided, effects);
                }
            }
        }
        // Whatever was decided, we have told what we know and wait for nothing else.
        if matches!(self.failure.diagnosis, Diagnosis::Told(_)) {
            self.adopt(&decided, effects);
        }
    }

    /// All who decide have ended well, on every node. What has failed here since we said so of ours, and before we heard of
    /// it, was needed by nobody any more.
    fn forgive(&mut self, effects: &mut Vec<Effect>) {
        let mut deciding = (0u16..).zip(&self.job.roles).filter(|(_, role)| role.completion.decides);
        let has_failed = deciding.any(|(role, _)| self.outcome_of(role) == role::Outcome::Failed);
        if !self.failure.failed || self.engine_lost || has_failed {
            return;
        }
        self.failure = Failure::default();
        self.disarm(Timer::Settle, effects);
        if let Some(stop) = self.stop_mut().filter(|stop| stop.outcome == Outcome::Failed) {
            stop.outcome = Outcome::Succeeded;
        }
    }

    /// All of that attempt happened without us: we were away. If there is another one, we are back for it.
    fn miss(&mut self, decided: &Decided, next: bool, now: Timestamp, effects: &mut Vec<Effect>) {
        // What ended that attempt for good is what is reported, not what ended ours.
        if next
            && decided.restart.is_none()
            && decided.verdict.is_some()
            && matches!(self.failure.diagnosis, Diagnosis::Done(_))
        {
            self.adopt(decided, effects);
        }
        let Some(delay) = decided.restart.filter(|_| self.stop().is_none() && self.is_pausing() == next) else {
            return;
        };
        self.attempt = decided.attempt;
        self.failure.failed = true;
        self.adopt(decided, effects);
        self.enter_pause(delay, now, effects);
    }

    /// What was decided is what is reported here.
    fn adopt(&mut self, decided: &Decided, effects: &mut Vec<Effect>) {
        let nobody = || Verdict { causes: Vec::new(), victims: Vec::new() };
        self.judge(decided.verdict.clone().unwrap_or_else(nobody), effects);
    }

    /// Nobody can be asked: we stop, and our own ends are all there is to judge by.
    pub(super) fn alone(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let open = |several: &Several| several.decided.as_ref().is_none_or(|decided| decided.restart.is_some());
        let Some(several) = self.several.as_mut().filter(|several| open(several) && !several.alone) else {
            return self.ignore(&Event::Alone, effects);
        };
        several.alone = true;
        if let Some(decided) = &mut several.decided {
            // There will be no other attempt, and this one has its verdict.
            decided.restart = None;
        } else if matches!(self.failure.diagnosis, Diagnosis::Told(_)) {
            self.decide_alone(effects);
        } else if self.has_started() {
            self.fail_elsewhere(StopReason::NodeLost, now, effects);
        }
    }

    fn decide_alone(&mut self, effects: &mut Vec<Effect>) {
        let Diagnosis::Told(ends) = &self.failure.diagnosis else { return };
        let verdict = diagnose::rank(ends.clone());
        // Who ended only when all were stopped is not why they were.
        let nobody = verdict.causes.iter().all(|cause| cause.weight >= Weight::Possible && cause.exit != Exit::Lost);
        let verdict = if nobody {
            Verdict { causes: Vec::new(), victims: [verdict.causes, verdict.victims].concat() }
        } else {
            verdict
        };
        let decided = Decided {
            attempt: self.attempt,
            outcome: Outcome::Failed,
            verdict: Some(verdict),
            signal: None,
            kill: false,
            code: nobody.then_some(NODE_LOST),
            restart: None,
        };
        self.adopt(&decided, effects);
        if let Some(several) = &mut self.several {
            several.decided = Some(decided);
        }
    }

    /// Nothing was started, and nothing will be: the others have decided, or we were asked to stop.
    pub(super) fn end_before_start(&mut self, effects: &mut Vec<Effect>) {
        let Some(several) = &self.several else { return };
        if let Some(decided) = several.decided.clone().filter(|decided| decided.outcome == Outcome::Failed) {
            self.adopt(&decided, effects);
        }
        if self.stop().is_some()
            || self.several.as_ref().is_some_and(|several| several.alone || several.decided.is_some())
        {
            self.finish(effects);
        }
    }

    /// Everybody here is over and nobody has failed: whether that is the end. Where there are other nodes it is theirs
    /// to say, unless we were asked to stop.
    pub(super) fn may_end(&mut self, effects: &mut Vec<Effect>) -> bool {
        if !self.is_shared() || self.is_asked_to_stop() {
            return true;
        }
        self.stand(Stand::Succeeded, effects);
        self.several.as_ref().is_some_and(|several| several.decided.is_some())
    }

    /// How long to wait before the next attempt, whoever decides that.
    pub(super) fn next_delay(&self, now: Timestamp) -> Option<Duration> {
        let Some(several) = &self.several else { return self.backoff(now) };
        // A user who asked us to stop wants no other one; what does not go holds devices and ports.
        let urged = self.stop().is_some_and(|stop| match stop.reason {
            StopReason::User | StopReason::Signal { .. } | StopReason::SecondSignal { .. } => true,
            StopReason::Completed
            | StopReason::PeerFailed
            | StopReason::NodeLost
            | StopReason::Timeout
            | StopReason::SignalElsewhere { .. } => false,
        });
        let stuck = self.replicas.total().abandoned() > 0;
        several.decided.as_ref()?.restart.filter(|_| !self.engine_lost && !urged && !stuck)
    }

    pub(super) fn outcome_of_all(&self, outcome: Outcome, signal: Option<i32>) -> (Outcome, Option<i32>) {
        let Some(several) = self.several.as_ref().filter(|_| !is_asked(outcome)) else {
            return (outcome, signal);
        };
        match &several.decided {
            // Nobody can know better than we that a rank of ours has failed.
            Some(decided) if decided.outcome == Outcome::Succeeded && self.failure.failed => (Outcome::Failed, None),
            Some(decided) => (decided.outcome, decided.signal),
            None if several.alone => (Outcome::Failed, None),
            None => (outcome, signal),
        }
    }

    /// The code to end with where no rank is to blame.
    pub(super) fn code_of_all(&self) -> Option<u8> {
        if self.is_asked_to_stop() {
            return None;
        }
        let several = self.several.as_ref()?;
        match &several.decided {
            Some(decided) => decided.code,
            None => several.alone.then_some(NODE_LOST),
        }
    }

    /// The next attempt begins: nothing has been said of it yet.
    pub(super) fn forget_decision(&mut self) {
        if self.is_shared() {
            self.several = Some(Several::default());
        }
    }

    /// Between two attempts a decision ends the wait.
    pub(super) fn is_decided_in_pause(&self) -> bool {
        let Some(decided) = self.several.as_ref().and_then(|several| several.decided.as_ref()) else { return false };
        decided.restart.is_none()
    }
}

fn is_asked(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Interrupted | Outcome::Stopped)
}

/// A node was lost, and no rank is to blame.
pub const NODE_LOST: u8 = 123;
