//! Start order: a role starts after the roles it waits for.

use std::time::Duration;

use super::replicas::Replica;
use super::{Effect, Event, Machine, Slot, Timer, Timestamp, attempt};
use crate::facts::{Fact, Limit};
use crate::machine::role;
use crate::model::{Exit, StartAfter, When};

/// Extra time for replicas on other nodes. Their own node stops a late replica and reports it, so this limit only
/// catches a node that does not report.
const ELSEWHERE: Duration = Duration::from_secs(5);

impl Machine {
    /// Starts all replicas that no longer wait. True if some were refused.
    pub(super) fn start_due(&mut self, now: Timestamp, effects: &mut Vec<Effect>) -> bool {
        self.look_for_starts = self.job.roles.iter().any(|role| !role.start_after.is_empty());
        let mut due = Vec::new();
        let mut refused = false;
        for role in 0..self.job.roles.len() {
            if self.replicas.of_role(role as u16).waiting() == 0 || self.roles[role].recycling.is_some() {
                continue;
            }
            match self.standing(role) {
                Standing::Due => due.extend(self.replicas.due(role as u16)),
                Standing::Waits => {}
                Standing::Never(other) => {
                    let waiting = self.replicas.due(role as u16);
                    refused |= !waiting.is_empty();
                    self.refuse(&waiting, other, now, effects);
                }
            }
        }
        for slot in &due {
            self.replicas.change(*slot, Replica::begin);
        }
        self.for_these(&due, &attempt::Event::Start, now, effects);
        refused
    }

    fn standing(&self, role: usize) -> Standing {
        let mut standing = Standing::Due;
        for after in &self.job.roles[role].start_after {
            match self.has_come(*after) {
                Some(true) => {}
                Some(false) => standing = Standing::Waits,
                None => return Standing::Never(after.role),
            }
        }
        standing
    }

    /// True once the condition is met; `None` if it never will be.
    fn has_come(&self, after: StartAfter) -> Option<bool> {
        // A role that is being restarted meets no condition.
        if self.roles[after.role as usize].recycling.is_some() {
            return Some(false);
        }
        let other = &self.job.roles[after.role as usize];
        let tally = self.replicas.of_role(after.role);
        let overdue = self.roles[after.role as usize].overdue;
        let no_ports = other.work.ports.is_empty() || overdue;
        let when = if no_ports && after.when == When::Ready { When::Started } else { after.when };
        // A replica that ended well is no longer waited for.
        let come = match when {
            When::Succeeded => self.outcome_of(after.role) == role::Outcome::Succeeded,
            When::Started => tally.running() + tally.succeeded() == tally.all(),
            When::Ready => tally.ready() + tally.succeeded() == tally.all(),
        };
        // A replica that has failed for good will neither start nor become ready.
        let never = match when {
            When::Succeeded => tally.over() == tally.all(),
            When::Started | When::Ready => tally.over() > tally.succeeded(),
        };
        let elsewhere = self.roles[after.role as usize].elsewhere.as_ref();
        let come = come && (overdue || elsewhere.is_none_or(Vec::is_empty));
        if never && !come { None } else { Some(come) }
    }

    /// The role that these replicas wait for ended before the condition was met.
    fn refuse(&mut self, slots: &[Slot], other: u16, now: Timestamp, effects: &mut Vec<Effect>) {
        let why = Unmet { why: "it ended before the condition was met".to_owned(), limit: None };
        self.wait_in_vain(slots, other, &why, now, effects);
    }

    /// Records a failed start for each replica, so that the verdict has a cause.
    fn wait_in_vain(&mut self, slots: &[Slot], other: u16, unmet: &Unmet, now: Timestamp, effects: &mut Vec<Effect>) {
        let other = self.job.roles[other as usize].name.to_string();
        for slot in slots {
            let exit = Exit::Unmet { role: other.clone(), reason: unmet.why.clone() };
            self.replicas.change(*slot, |replica| {
                replica.begin();
                replica.timed_out = unmet.limit;
            });
            self.apply(*slot, attempt::Event::Start, now);
            effects.push(Effect::Record(Fact::Starting { subject: self.subject(*slot) }));
            self.exited(*slot, exit, None, None, now, effects);
        }
    }

    /// Sets the addresses of this role's replicas on other nodes that a role here waits for. Called before the start
    /// and before each restart.
    pub fn expect_elsewhere(&mut self, role: u16, addresses: Vec<String>) {
        self.roles[role as usize].elsewhere = Some(addresses);
    }

    /// Asks which replicas on other nodes listen, and arms the limits of all waits. Called when an attempt begins.
    pub(super) fn begin_waits(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for role in 0..self.roles.len() as u16 {
            let patience = self.job.roles[role as usize].timeouts.patience;
            if let Some(patience) = patience.filter(|_| self.waiting_for(role).next().is_some()) {
                self.arm(Timer::Patience(role), now + patience, effects);
            }
            if self.roles[role as usize].elsewhere.as_ref().is_none_or(Vec::is_empty) {
                continue;
            }
            effects.push(Effect::AwaitElsewhere { role, attempt: self.attempt });
            if let Some(start) = self.job.roles[role as usize].timeouts.start {
                self.arm(Timer::Elsewhere(role), now + start + ELSEWHERE, effects);
            }
        }
    }

    /// Awaited replicas of this role on other nodes that do not listen yet.
    pub fn missing_elsewhere(&self, role: u16) -> &[String] {
        self.roles[role as usize].elsewhere.as_deref().unwrap_or_default()
    }

    pub(super) fn answered_elsewhere(
        &mut self,
        role: u16,
        attempt: u32,
        missing: Vec<String>,
        effects: &mut Vec<Effect>,
    ) {
        let awaited = self.roles.get(role as usize).and_then(|group| group.elsewhere.as_ref());
        if attempt != self.attempt || self.is_pausing() || awaited.is_none_or(Vec::is_empty) {
            return self.ignore(&Event::AnsweredElsewhere { role, attempt, missing }, effects);
        }
        if missing.is_empty() {
            self.disarm(Timer::Elsewhere(role), effects);
            self.look_for_starts = true;
        }
        self.roles[role as usize].elsewhere = Some(missing);
    }

    /// Roles with waiting replicas here that start when this role listens.
    fn waiting_for(&self, role: u16) -> impl Iterator<Item = u16> {
        let waits = move |other: &u16| {
            let after = &self.job.roles[*other as usize].start_after;
            after.iter().any(|after| after.role == role && after.when == When::Ready)
        };
        (0..self.job.roles.len() as u16).filter(waits).filter(|other| self.replicas.of_role(*other).waiting() > 0)
    }

    /// The time to wait for this role is over.
    pub(super) fn lose_patience(&mut self, role: u16, effects: &mut Vec<Effect>) {
        if self.starts_nothing() || self.waiting_for(role).next().is_none() {
            return;
        }
        self.roles[role as usize].overdue = true;
        self.look_for_starts = true;
        effects.push(Effect::StartUnready { role });
    }

    /// Tells the other nodes, once, that an awaited role is ready here.
    pub(super) fn tell_ready(&mut self, effects: &mut Vec<Effect>) {
        if !self.is_shared() || self.stop().is_some() {
            return;
        }
        for role in 0..self.roles.len() as u16 {
            let tally = self.replicas.of_role(role);
            let ready = tally.all() > 0 && tally.ready() + tally.succeeded() == tally.all();
            if ready && !self.roles[role as usize].told_ready && self.is_awaited(role) {
                self.roles[role as usize].told_ready = true;
                effects.push(Effect::TellReady { attempt: self.attempt });
            }
        }
    }

    /// Replicas on other nodes were not seen listening in time, whatever their own node reports.
    pub(super) fn miss_elsewhere(&mut self, role: u16, now: Timestamp, effects: &mut Vec<Effect>) {
        let missing = self.roles[role as usize].elsewhere.clone().unwrap_or_default();
        let limit = self.job.roles[role as usize].timeouts.start.unwrap_or_default().as_secs_f64();
        let why = format!("no report that {} listens within {limit} s", missing.join(", "));
        let unmet = Unmet { why, limit: Some(Limit::Start) };
        let waits = |other: &u16| self.job.roles[*other as usize].start_after.iter().any(|after| after.role == role);
        let waiting: Vec<u16> = (0..self.job.roles.len() as u16).filter(waits).collect();
        for other in waiting {
            let slots = self.replicas.due(other);
            self.wait_in_vain(&slots, role, &unmet, now, effects);
        }
    }

    /// True if a role waits until this one listens at its ports.
    pub(super) fn is_awaited(&self, role: u16) -> bool {
        let this = &self.job.roles[role as usize];
        let waited_for = |after: &StartAfter| after.role == role && after.when == When::Ready;
        !this.work.ports.is_empty() && self.job.roles.iter().any(|other| other.start_after.iter().any(waited_for))
    }
}

/// Why a wait failed.
struct Unmet {
    why: String,
    limit: Option<Limit>,
}

/// Whether a role may start.
enum Standing {
    Due,
    Waits,
    /// This role will never meet the condition.
    Never(u16),
}
