//! Stopping: the reason, the targets, the time, and the outcome.

use std::time::Duration;

use umiak_core::facts::{Fact, Outcome, StopReason, Verdict};
use umiak_core::machine::job::{AttemptId, Event};
use umiak_core::model::{Exit, Slot, StopHow, Success};

use super::judge::Judge;
use super::policy::{self, Fate};
use super::shadow::{End, Shadow, Stage};
use super::timeline::{Rule, Step, What};
use crate::simulate::after_interrupt;

impl Judge<'_> {
    fn has_failed(&self) -> bool {
        let failed = (0..self.groups.len() as u16).any(|role| self.fate(role) == Fate::Bad);
        let lost = |shadow: &Shadow| shadow.end().is_some_and(|end| end.exit == Exit::Lost);
        let nobody = !self.shadows.values().any(Shadow::is_live) && !self.has_completed();
        let any_lost = self.shadows.values().any(lost);
        let in_vain = !self.deciding().contains(&Fate::Open) && !self.has_completed();
        failed || in_vain || (self.guardian_lost && (nobody || any_lost)) || (self.guardian_replaced && any_lost)
    }

    /// Replicas that a lost guardian took with it are the only causes.
    fn is_guardian_to_blame(&self) -> bool {
        let is_lost = |verdict: &Verdict| verdict.causes.iter().all(|cause| cause.exit == Exit::Lost);
        (self.guardian_lost || self.guardian_replaced) && self.verdict.as_ref().is_some_and(is_lost)
    }

    fn has_completed(&self) -> bool {
        let fates = self.deciding();
        let one_good = || {
            let slots = self.deciding_roles().into_iter().flat_map(|role| self.slots_of(role));
            slots.into_iter().any(|slot| self.shadows[&slot].end().is_some_and(End::is_good))
        };
        match self.run.scenario.job.policy.success {
            Success::All => fates.iter().all(|fate| *fate == Fate::Good),
            Success::First => fates.contains(&Fate::Good) || (!fates.contains(&Fate::Open) && one_good()),
            Success::End => fates.contains(&Fate::Good) || !fates.contains(&Fate::Open),
        }
    }

    /// The fates of the roles that decide.
    fn deciding(&self) -> Vec<Fate> {
        self.deciding_roles().into_iter().map(|role| self.fate(role)).collect()
    }

    fn deciding_roles(&self) -> Vec<u16> {
        let roles = &self.run.scenario.job.roles;
        let any = roles.iter().any(|role| role.completion.decides);
        let decides = |role: u16| roles[role as usize].completion.decides || !any;
        (0..roles.len() as u16).filter(|role| decides(*role)).collect()
    }

    pub(super) fn stopping(&mut self, reason: StopReason, step: &Step) {
        let What::Event(event) = &step.what else { return };
        let right = match reason {
            StopReason::PeerFailed => self.stop.is_none() && self.has_failed(),
            StopReason::Completed => self.stop.is_none() && self.has_completed() && !self.has_failed(),
            StopReason::Timeout => {
                let timeout = self.run.scenario.job.policy.timeout;
                let spent = self.started.map(|started| self.used + self.now.since(started));
                timeout.is_some_and(|timeout| spent.is_some_and(|spent| spent >= timeout))
            }
            StopReason::StepFailed => *event == Event::Halted,
            StopReason::User => matches!(event, Event::StopAsked { .. }),
            StopReason::Signal { signal } | StopReason::SecondSignal { signal } => {
                *event == Event::Signalled { signal }
            }
            StopReason::Resized | StopReason::NodeLost | StopReason::Hung | StopReason::SignalElsewhere { .. } => false,
        };
        self.check(right, Rule::Decision, || format!("stopped for {reason:?}"));
        let stop = self.stop;
        let stronger = stop.is_none_or(|(_, last)| last < reason);
        self.check(stronger, Rule::Decision, || format!("{reason:?} after {stop:?}"));
        self.stop = Some((self.stop.map_or(reason, |(first, _)| first), reason));
        self.forget_recycling();
    }

    pub(super) fn stop_sent(&mut self, how: StopHow, targets: &[AttemptId], announced: Option<&Fact>) {
        let replicas: Vec<String> = targets.iter().map(|id| self.run.scenario.name(id.slot)).collect();
        let same = announced == Some(&Fact::StopSent { how, replicas });
        self.check(same, Rule::FactFirst, || format!("{how:?} to {targets:?} is not in the journal"));
        for id in targets {
            let (now, grace) = (self.now, self.run.scenario.grace(id.slot));
            let shadow = self.shadows.get_mut(&id.slot).expect("slots of its job");
            let live = shadow.is_live() && shadow.number == Some(id.attempt) && shadow.spawned;
            if shadow.again == Some(how) {
                shadow.again = None;
                self.check(live, Rule::Terminate, || format!("{id:?} is not to be stopped"));
                continue;
            }
            let is_unsent = shadow.again.is_some() || self.started.is_none();
            if is_unsent && shadow.stopped_before == Some(StopHow::Interrupt) && how == StopHow::Terminate {
                // A new stop instead of the earlier supervisor's, with a grace period of its own.
                (shadow.again, shadow.asked) = (None, None);
            }
            let (asked, killed, timed_out) = (shadow.asked, shadow.killed, shadow.timed_out.is_some());
            let (interrupted, terminated) = (shadow.interrupted, shadow.terminated);
            shadow.asked = asked.or(Some(now));
            shadow.terminated |= how >= StopHow::Terminate;
            if how == StopHow::Kill {
                shadow.killed = killed.or(Some(now));
            }
            let waited = |least: Duration| asked.is_some_and(|asked| now.since(asked) >= least);
            let (rule, right) = match how {
                StopHow::Interrupt => {
                    let asks = matches!(self.stop, Some((_, StopReason::Signal { signal: 2 })));
                    (Rule::Terminate, asked.is_none() && asks)
                }
                StopHow::Terminate if asked.is_none() => {
                    let recycling = self.groups[id.slot.role as usize].recycling.is_some();
                    (Rule::Terminate, self.stop.is_some() || timed_out || recycling)
                }
                // An earlier supervisor interrupted it, and this one stops the job or its role for another reason.
                StopHow::Terminate => {
                    let other = self.stop.is_some_and(|(first, _)| first != StopReason::Signal { signal: 2 });
                    let recycling = self.groups[id.slot.role as usize].recycling.is_some();
                    let due = other || recycling || waited(after_interrupt(grace));
                    (Rule::Terminate, interrupted && !terminated && due)
                }
                // A kill request skips the grace period, if it was for the whole job.
                StopHow::Kill => {
                    let due = waited(grace) || (self.impatient && self.stop.is_some());
                    (Rule::Kill, killed.is_none() && due)
                }
            };
            self.check(live && right, rule, || format!("{how:?} to {id:?}, asked at {asked:?}, has {grace:?}"));
        }
    }

    pub(super) fn abandoned(&mut self, replicas: &[String]) {
        for name in replicas {
            let Some(slot) = self.slot(name) else { continue };
            let (now, abandon) = (self.now, self.run.scenario.job.policy.stop.abandon);
            let shadow = self.shadows.get_mut(&slot).expect("slots of its job");
            let waited = shadow.is_live() && shadow.killed.is_some_and(|killed| now.since(killed) >= abandon);
            shadow.stage = Stage::Gone;
            self.release(slot.role);
            self.check(waited, Rule::Kill, || format!("{name} was given up too soon"));
        }
    }

    /// Live replicas are being stopped, and none exceeds its limits.
    pub(super) fn after_stops(&mut self, event: &Event) {
        let (slack, abandon) = (self.run.scenario.late, self.run.scenario.job.policy.stop.abandon);
        for slot in self.shadows.keys().copied().collect::<Vec<Slot>>() {
            let shadow = &self.shadows[&slot];
            if !shadow.is_live() {
                continue;
            }
            let grace = self.run.scenario.grace(slot);
            let (asked, killed, timed_out) = (shadow.asked, shadow.killed, shadow.timed_out.is_some());
            let spared = shadow.interrupted && !shadow.terminated;
            let wanted = self.stop.is_some() || timed_out || self.groups[slot.role as usize].recycling.is_some();
            self.check(!wanted || asked.is_some(), Rule::Terminate, || format!("{slot:?} is not asked to end"));
            let late = spared && asked.is_some_and(|asked| self.now > asked + after_interrupt(grace) + slack);
            self.check(!late, Rule::Terminate, || format!("{slot:?} was interrupted, and is not asked to end"));
            let late = killed.is_none() && asked.is_some_and(|asked| self.now > asked + grace + slack);
            self.check(!late, Rule::Kill, || format!("{slot:?} is not killed"));
            let at_once = match event {
                Event::Signalled { .. } => self.signals >= 2,
                Event::StopAsked { kill } => *kill || self.stops >= 2,
                _ => false,
            };
            self.check(!at_once || killed.is_some(), Rule::Kill, || format!("{slot:?} is not killed at once"));
            let stuck = killed.is_some_and(|killed| self.now > killed + abandon + slack);
            self.check(!stuck, Rule::Kill, || format!("{slot:?} is still waited for"));
        }
        let late = self.stop.is_none() && self.deadline().is_some_and(|deadline| self.now > deadline + slack);
        self.check(!late, Rule::Limits, || "the run takes too long".to_owned());
    }

    /// Without a stop, no decision may be due.
    pub(super) fn should_have_decided(&mut self) {
        self.check(!self.has_failed(), Rule::Decision, || "a role has failed, and the job goes on".to_owned());
        self.check(!self.has_completed(), Rule::Decision, || "all roles are done, and the job goes on".to_owned());
    }

    pub(super) fn finish(&mut self, outcome: Outcome, code: u8) {
        self.finished = true;
        let live: Vec<Slot> =
            self.shadows.iter().filter(|(_, shadow)| shadow.is_live()).map(|(slot, _)| *slot).collect();
        self.check(live.is_empty(), Rule::Finish, || format!("{live:?} live"));
        if self.pause.is_none() {
            let owed = self.may_restart().is_some();
            self.check(!owed, Rule::Restart, || "there is a restart left".to_owned());
        }
        let first = self.stop.map(|(first, _)| first);
        let expected = match first {
            None if self.pause.is_some() => Outcome::Failed,
            None | Some(StopReason::Completed) => Outcome::Succeeded,
            Some(
                StopReason::PeerFailed
                | StopReason::Resized
                | StopReason::NodeLost
                | StopReason::Hung
                | StopReason::Timeout,
            ) => Outcome::Failed,
            Some(StopReason::StepFailed | StopReason::User) => Outcome::Stopped,
            Some(_) => Outcome::Interrupted,
        };
        self.check(outcome == expected, Rule::Code, || format!("{outcome:?} instead of {expected:?}"));
        let completed = first.is_some() || self.pause.is_some() || (self.has_completed() && !self.has_failed());
        self.check(completed, Rule::Decision, || "it ends before all roles are done".to_owned());
        let several = self.run.scenario.style.document && self.run.scenario.job.roles.len() > 1;
        let cause = self.verdict.as_ref().and_then(|verdict| verdict.causes.first());
        let expected = match expected {
            Outcome::Succeeded => 0,
            Outcome::Stopped => 3,
            Outcome::Interrupted => 128 + self.first_signal.unwrap_or_default() as u8,
            Outcome::Failed if first == Some(StopReason::Timeout) => 124,
            Outcome::Failed if several && !self.is_guardian_to_blame() => 1,
            Outcome::Failed => match cause.map(|cause| (&cause.exit, cause.timed_out)) {
                None if self.guardian_lost => 125,
                None => 1,
                Some((_, Some(_))) => 124,
                Some((exit, None)) => policy::number(exit).max(1),
            },
        };
        self.check(code == expected, Rule::Code, || format!("code {code} instead of {expected}"));
    }
}
