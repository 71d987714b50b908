//! A job on several nodes, seen from one of them. A node reports its failures instead of judging them, and ends as the
//! coordinator decided for all nodes.

use std::time::Duration;

use super::verdict::{Diagnosis, Failure};
use super::{Decided, Effect, Event, Machine, Stand, Timer, Timestamp};
use crate::diagnose;
use crate::facts::{Outcome, Resize, StopReason, Verdict, Weight};
use crate::machine::role;
use crate::model::Exit;

/// The last report to the other nodes, and their decision.
#[derive(Debug, Clone, Default)]
pub(super) struct Several {
    stood: Option<Stand>,
    decided: Option<Decided>,
    /// No other node can be reached.
    alone: bool,
}

impl Machine {
    /// Marks this node as one of several. Called before the start.
    pub fn share(&mut self) {
        self.several = Some(Several::default());
    }

    pub(super) fn is_shared(&self) -> bool {
        self.several.is_some()
    }

    /// True until the coordinator has decided. No role here decides any more, but trainers on other nodes may need what
    /// runs here.
    pub(super) fn is_needed_elsewhere(&self) -> bool {
        self.several.as_ref().is_some_and(|several| several.decided.is_none() && !several.alone)
    }

    /// True after a signal or `umiak stop`, here or on another node: no rank is the cause.
    fn is_asked_to_stop(&self) -> bool {
        self.stop().is_some_and(|stop| is_asked(stop.outcome))
    }

    /// Reports the state of this node, if it has changed.
    pub(super) fn stand(&mut self, stand: Stand, effects: &mut Vec<Effect>) {
        let Some(several) = &mut self.several else { return };
        if several.stood.as_ref() != Some(&stand) {
            several.stood = Some(stand.clone());
            effects.push(Effect::Stand(stand));
        }
    }

    /// Reports whether replicas make progress here. A node that only serves others waits for them anyway.
    pub(super) fn tell_progress(&mut self, hung: bool, effects: &mut Vec<Effect>) {
        let stood = self.several.as_ref().and_then(|several| several.stood.as_ref());
        match (hung, stood) {
            (true, None | Some(Stand::Moves)) => self.stand(Stand::Hung, effects),
            (false, Some(Stand::Hung)) => self.stand(Stand::Moves, effects),
            _ => {}
        }
    }

    /// Reports a signal or `umiak stop`: all nodes stop.
    pub(super) fn tell_interrupted(&mut self, signal: Option<i32>, kill: bool, effects: &mut Vec<Effect>) {
        let decided = self.several.as_ref().and_then(|several| several.decided.as_ref());
        let open = decided.is_none_or(|decided| decided.restart.is_some());
        if open && self.signals + self.stops == 1 {
            self.stand(Stand::Interrupted { signal, kill }, effects);
        }
    }

    /// Reports the ends of this node, after its settle window.
    pub(super) fn tell(&mut self, ends: Vec<diagnose::End>, effects: &mut Vec<Effect>) {
        self.failure.diagnosis = Diagnosis::Told(ends.clone());
        match &self.several {
            // The decision came before our report.
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
            StopReason::Hung if self.stop().is_none() => self.fail_hung(now, effects),
            _ => self.fail_elsewhere(reason, now, effects),
        }
    }

    /// Stops our ranks, and reports how they ended before or during the stop.
    fn fail_elsewhere(&mut self, reason: StopReason, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.failure.failed && !self.is_asked_to_stop() {
            self.fail(reason, now, effects);
        }
    }

    pub(super) fn decided(&mut self, decided: Decided, now: Timestamp, effects: &mut Vec<Effect>) {
        let Some(several) = &mut self.several else {
            return self.ignore(&Event::Decided(Box::new(decided)), effects);
        };
        // While this attempt is still ending here, a later one may be decided already: this node skips those between.
        let (next, current) = match &several.decided {
            None => (false, decided.attempt == self.attempt && !several.alone),
            Some(last) => (true, last.restart.is_some() && decided.attempt > self.attempt),
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
        // Our ends are reported and the decision is here: nothing else is awaited.
        if matches!(self.failure.diagnosis, Diagnosis::Told(_)) {
            self.adopt(&decided, effects);
        }
    }

    /// All deciding roles have succeeded on every node. A failure here between our own report and that decision no
    /// longer counts.
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

    /// Handles the decision on an attempt that this node missed. Joins the next attempt, if there is one.
    fn miss(&mut self, decided: &Decided, next: bool, now: Timestamp, effects: &mut Vec<Effect>) {
        // The verdict that ended the job replaces the one of our last attempt.
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

    /// Reports the verdict of the decision.
    fn adopt(&mut self, decided: &Decided, effects: &mut Vec<Effect>) {
        let nobody = || Verdict { causes: Vec::new(), victims: Vec::new() };
        let verdict = decided.verdict.clone().unwrap_or_else(nobody);
        // That members come or go is told as such.
        if decided.change.is_some() && verdict.causes.is_empty() {
            self.failure.diagnosis = Diagnosis::Done(verdict);
        } else {
            self.judge(verdict, effects);
        }
    }

    /// No other node can be reached: stops, and judges by the ends of this node alone.
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
        // A rank that ended only after the stop did not cause it.
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
            change: None,
        };
        self.adopt(&decided, effects);
        if let Some(several) = &mut self.several {
            several.decided = Some(decided);
        }
    }

    /// Finishes before anything was started: the other nodes have decided, or a stop was requested.
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

    /// True if the job may end, now that all replicas here have ended without failure. With other nodes, it ends only
    /// by their decision or a requested stop.
    pub(super) fn may_end(&mut self, effects: &mut Vec<Effect>) -> bool {
        if !self.is_shared() || self.is_asked_to_stop() {
            return true;
        }
        self.stand(Stand::Succeeded, effects);
        self.several.as_ref().is_some_and(|several| several.decided.is_some())
    }

    /// The delay before the next attempt, decided here or by the coordinator.
    pub(super) fn next_delay(&self, now: Timestamp) -> Option<Duration> {
        let Some(several) = &self.several else { return self.backoff(now) };
        // A requested stop cancels the restart; an abandoned process still holds devices and ports.
        let urged = self.stop().is_some_and(|stop| match stop.reason {
            StopReason::StepFailed | StopReason::User | StopReason::Signal { .. } | StopReason::SecondSignal { .. } => {
                true
            }
            StopReason::Completed
            | StopReason::PeerFailed
            | StopReason::Resized
            | StopReason::NodeLost
            | StopReason::Hung
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
            // This node has a failed rank, whatever was decided about the same attempt.
            Some(decided)
                if decided.outcome == Outcome::Succeeded && self.failure.failed && decided.attempt == self.attempt =>
            {
                (Outcome::Failed, None)
            }
            Some(decided) => (decided.outcome, decided.signal),
            None if several.alone => (Outcome::Failed, None),
            None => (outcome, signal),
        }
    }

    /// The exit code when no rank caused the end.
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

    /// How the members change before the next attempt.
    pub(super) fn change(&self) -> Option<&Resize> {
        self.several.as_ref()?.decided.as_ref()?.change.as_ref()
    }

    /// Clears the decision before the next attempt.
    pub(super) fn forget_decision(&mut self) {
        if self.is_shared() {
            self.several = Some(Several::default());
        }
    }

    /// True if a decision between two attempts rules out the next one.
    pub(super) fn is_decided_in_pause(&self) -> bool {
        let Some(decided) = self.several.as_ref().and_then(|several| several.decided.as_ref()) else { return false };
        decided.restart.is_none()
    }
}

fn is_asked(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Interrupted | Outcome::Stopped)
}

/// A node was lost, and no rank caused the failure.
pub const NODE_LOST: u8 = 123;
