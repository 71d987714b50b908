//! Restarts of one replica, of a role, of the whole job.

use umiak_core::facts::{Finding, Subject};
use umiak_core::model::{Blame, Exit, ExitClass, FIRST_ATTEMPT, Scope, Slot, Timestamp};

use super::judge::Judge;
use super::policy::{self, Fate};
use super::shadow::{End, Group, Stage, times};
use super::timeline::Rule;

impl Judge<'_> {
    /// Handles the end of a replica: decides whether its whole role is stopped for it.
    pub(super) fn recycle(&mut self, slot: Slot) {
        let is_open = self.stop.is_none() && !self.guardian_lost;
        let Some(end) = self.shadows[&slot].end().cloned() else { return };
        let recycling = self.groups[slot.role as usize].recycling.is_some();
        if recycling {
            self.shadows.get_mut(&slot).expect("it was just seen").open = false;
        } else if self.scope(slot) == Scope::Role && is_open && end.is_bad() && self.may_retry(slot, &end).is_some() {
            self.groups[slot.role as usize].recycling = Some((end.class, end.at));
            self.open_none(slot.role);
        }
    }

    /// A role with an abandoned process is not restarted: that process holds devices and ports.
    pub(super) fn release(&mut self, role: u16) {
        let slots = self.slots_of(role);
        let live = slots.iter().any(|slot| self.shadows[slot].is_live());
        let stuck = slots.iter().any(|slot| self.shadows[slot].stage == Stage::Gone);
        if stuck && !live {
            self.groups[role as usize].recycling = None;
        }
    }

    fn open_none(&mut self, role: u16) {
        for slot in self.slots_of(role) {
            self.shadows.get_mut(&slot).expect("slots of its job").open = false;
        }
    }

    /// The back-off after such an end.
    fn may_retry(&self, slot: Slot, end: &End) -> Option<(std::time::Duration, std::time::Duration)> {
        let rule = self.run.scenario.job.roles[slot.role as usize].restart;
        let past = match rule.scope {
            Scope::Replica => &self.shadows[&slot].past,
            Scope::Role => &self.groups[slot.role as usize].past,
        };
        if matches!(end.exit, Exit::Unmet { .. }) {
            return None;
        }
        policy::backoff(&rule.rule, end.class, &times(past, end.class.blame()), end.at)
    }

    pub(super) fn retrying(&mut self, scope: Scope, subjects: &[Subject], blame: Blame, max: u32, delay: u64) {
        let slots: Vec<Slot> = subjects.iter().filter_map(|subject| self.slot(&subject.replica)).collect();
        let Some(first) = slots.first().copied() else { return };
        self.check(self.scope(first) == scope, Rule::Budget, || format!("{subjects:?} by {scope:?}"));
        self.check(self.stop.is_none() && !self.guardian_lost, Rule::Spawn, || format!("{subjects:?} after a stop"));
        let rule = self.run.scenario.job.roles[first.role as usize].restart.rule;
        self.check(rule.budget(blame) == max, Rule::Budget, || format!("{max} of {blame:?} for {subjects:?}"));
        // After a takeover, none of them had to be stopped.
        if scope == Scope::Role {
            for slot in self.slots_of(first.role) {
                if self.shadows[&slot].open {
                    self.recycle(slot);
                }
            }
        }
        let (why, at, past) = match scope {
            Scope::Replica => {
                let shadow = &self.shadows[&first];
                let end = shadow.end().filter(|end| end.is_bad() && !matches!(end.exit, Exit::Unmet { .. }));
                (end.map(|end| end.class), end.map(|end| end.at), times(&shadow.past, blame))
            }
            Scope::Role => {
                let group = &self.groups[first.role as usize];
                let whole = slots == self.slots_of(first.role);
                let over =
                    slots.iter().all(|slot| !self.shadows[slot].is_live() && self.shadows[slot].stage != Stage::Gone);
                let why = group.recycling.filter(|_| whole && over);
                (why.map(|(why, _)| why), why.map(|(_, at)| at), times(&group.past, blame))
            }
        };
        let whose = why.map(ExitClass::blame);
        self.check(whose == Some(blame), Rule::Budget, || format!("{blame:?} instead of {why:?} for {subjects:?}"));
        let bounds = why.and_then(|why| policy::backoff(&rule, why, &past, at.unwrap_or(self.now)));
        self.check(bounds.is_some(), Rule::Budget, || format!("{subjects:?} after {past:?}"));
        let (least, most) = bounds.unwrap_or_default();
        let right = (least.as_micros() as u64..=most.as_micros() as u64).contains(&delay);
        self.check(right, Rule::Backoff, || format!("{delay} is not in {least:?} to {most:?}"));
        let until = self.now + std::time::Duration::from_micros(delay);
        let spent = (blame, self.now);
        for (slot, subject) in slots.iter().zip(subjects) {
            let shadow = self.shadows.get_mut(slot).expect("slots of its job");
            shadow.clear();
            (shadow.waits, shadow.promised) = (Some(until), Some(subject.attempt));
            if scope == Scope::Replica {
                shadow.past.push(spent);
            }
        }
        if scope == Scope::Role {
            let group = &mut self.groups[first.role as usize];
            group.recycling = None;
            group.past.push(spent);
        }
    }

    /// Every replica that failed with a restart left has been scheduled by now.
    pub(super) fn should_have_retried(&mut self) {
        for slot in self.shadows.keys().copied().collect::<Vec<_>>() {
            let Some(end) = self.shadows[&slot].end().cloned() else { continue };
            let owed = self.shadows[&slot].open && !self.guardian_lost && self.may_retry(slot, &end).is_some();
            self.shadows.get_mut(&slot).expect("slots of its job").open = false;
            self.check(!owed, Rule::Budget, || format!("{slot:?} has a restart left"));
        }
        for role in 0..self.groups.len() as u16 {
            let slots = self.slots_of(role);
            if self.groups[role as usize].recycling.is_none() || slots.iter().any(|slot| self.shadows[slot].is_live()) {
                continue;
            }
            self.groups[role as usize].recycling = None;
            self.check(self.guardian_lost, Rule::Budget, || format!("role {role} has a restart left"));
        }
    }

    /// The class of the failure of the whole job.
    fn class_of_all(&self) -> ExitClass {
        let exits = self.run.scenario.job.policy.exits;
        let causes = self.verdict.iter().flat_map(|verdict| &verdict.causes);
        let rank = |cause: &Finding| {
            let slot = self.slot(&cause.subject.replica);
            let by_us = slot.and_then(|slot| self.shadows[&slot].end()).is_some_and(|end| end.by_us);
            let class = policy::class(exits, &cause.exit, by_us || cause.timed_out.is_some());
            (!slot.is_some_and(|slot| self.fate(slot.role) == Fate::Bad), class)
        };
        causes.map(rank).min().map_or(ExitClass::Unknown, |(_, class)| class)
    }

    /// The delay before the restart of the whole job, if there is one.
    pub(super) fn may_restart(&self) -> Option<(std::time::Duration, std::time::Duration)> {
        use umiak_core::facts::StopReason;
        let rule = &self.run.scenario.job.policy.restart;
        let failed = self.stop == Some((StopReason::PeerFailed, StopReason::PeerFailed));
        let hopeless = self.shadows.values().any(|shadow| match &shadow.stage {
            Stage::Gone => true,
            Stage::Ended(end) => match &end.exit {
                Exit::Spawn(_) => match end.class {
                    ExitClass::Permanent => true,
                    ExitClass::Transient | ExitClass::Conflict => rule.max_platform == 0,
                    ExitClass::Unknown => false,
                },
                _ => false,
            },
            _ => false,
        });
        if !failed || hopeless || self.guardian_lost || self.verdict.is_none() {
            return None;
        }
        let class = self.class_of_all();
        policy::backoff(rule, class, &times(&self.restarts, class.blame()), self.now)
    }

    pub(super) fn restarting(&mut self, attempt: u32, delay: u64, blame: Blame) {
        let last = self.attempt;
        self.check(attempt == last + 1, Rule::Restart, || format!("{attempt} after {last}"));
        let bounds = self.may_restart();
        self.check(bounds.is_some(), Rule::Restart, || "there is no restart left".to_owned());
        self.check(blame == self.class_of_all().blame(), Rule::Restart, || format!("{blame:?} is not to blame"));
        let (least, most) = bounds.unwrap_or_default();
        let right = (least.as_micros() as u64..=most.as_micros() as u64).contains(&delay);
        self.check(right, Rule::Backoff, || format!("{delay} is not in {least:?} to {most:?}"));
        let live = self.shadows.values().any(super::shadow::Shadow::is_live);
        self.check(!live, Rule::Restart, || "a replica is live".to_owned());
        self.attempt = attempt;
        self.restarts.push((blame, self.now));
        self.pause = Some((self.now + std::time::Duration::from_micros(delay), None));
        self.stop = None;
        for shadow in self.shadows.values_mut() {
            let promised =
                shadow.promised.max(shadow.number.map(|number| number + 1)).unwrap_or(FIRST_ATTEMPT).max(attempt);
            shadow.clear();
            shadow.past.clear();
            shadow.promised = Some(promised);
        }
        self.groups = vec![Group::default(); self.groups.len()];
    }

    pub(super) fn forget_recycling(&mut self) {
        self.groups.iter_mut().for_each(|group| group.recycling = None);
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let timeout = self.run.scenario.job.policy.timeout?;
        Some(self.started? + timeout)
    }
}
