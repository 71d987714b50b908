//! Who may start: roles after those that they wait for.

use super::{Attempt, Effect, Exit, Fact, Machine, Timestamp, attempt, role};
use crate::machine::role::Counts;
use crate::model::{Slot, SpawnError, StartAfter, When};

/// In place of an error number: what was waited for did not come. With all roles anew it may.
pub(super) const UNMET: i32 = 0;

impl Machine {
    /// Starts everybody who waits for nothing any more, all at once. Tells whether somebody was refused.
    pub(super) fn start_due(&mut self, now: Timestamp, effects: &mut Vec<Effect>) -> bool {
        self.look_for_starts = self.job.roles.iter().any(|role| !role.start_after.is_empty());
        let mut due = Vec::new();
        let mut refused = false;
        for role in 0..self.job.roles.len() {
            let waiting: Vec<Slot> = self.waiting(role as u16);
            if waiting.is_empty() || self.groups[role].recycling.is_some() {
                continue;
            }
            match self.standing(role) {
                Standing::Due => due.extend(waiting),
                Standing::Waits => {}
                Standing::Never(other) => {
                    refused = true;
                    self.refuse(&waiting, other, now, effects);
                }
            }
        }
        for slot in &due {
            self.place_mut(*slot).begin();
        }
        self.for_these(&due, &attempt::Event::Start, now, effects);
        refused
    }

    /// Those of a role who are neither started nor in a back-off.
    fn waiting(&self, role: u16) -> Vec<Slot> {
        let attempts = self.roles[role as usize].iter().zip(&self.places[role as usize]).enumerate();
        attempts
            .filter(|(_, (attempt, place))| **attempt == Attempt::Waiting && !place.backing_off)
            .map(|(index, _)| Slot { role, index: index as u32 })
            .collect()
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

    /// Whether what is waited for has come; nothing if it never will.
    fn has_come(&self, after: StartAfter) -> Option<bool> {
        // What is stopped to be started again has not come, whatever some of it have done.
        if self.groups[after.role as usize].recycling.is_some() {
            return Some(false);
        }
        let other = &self.job.roles[after.role as usize];
        let attempts = &self.roles[after.role as usize];
        let outcome = role::outcome(&other.completion, &Counts::of(attempts));
        let when = if other.work.ports.is_empty() && after.when == When::Ready { When::Started } else { after.when };
        let come = match when {
            When::Succeeded => outcome == role::Outcome::Succeeded,
            When::Started | When::Ready => {
                attempts.iter().zip(&self.places[after.role as usize]).all(|(attempt, place)| {
                    match attempt {
                        Attempt::Running { .. } => when == When::Started || place.ready,
                        // What ended well needs nobody to wait for it.
                        Attempt::Ended(end) => end.is_success(),
                        Attempt::Waiting | Attempt::Starting { .. } | Attempt::Stopping { .. } | Attempt::Abandoned => {
                            false
                        }
                    }
                })
            }
        };
        // Who has ended badly for good will be neither started nor ready, whatever the others do.
        let is_bad = |attempt: &Attempt| match attempt {
            Attempt::Ended(end) => !end.is_success(),
            other => *other == Attempt::Abandoned,
        };
        let never = match when {
            When::Succeeded => attempts.iter().all(Attempt::is_over),
            When::Started | When::Ready => attempts.iter().any(is_bad),
        };
        if never && !come { None } else { Some(come) }
    }

    /// What these wait for has ended without it: they are told like a start that failed, so that somebody is to blame.
    fn refuse(&mut self, slots: &[Slot], other: u16, now: Timestamp, effects: &mut Vec<Effect>) {
        let other = self.job.roles[other as usize].name.clone();
        for slot in slots {
            let error = SpawnError {
                doing: format!("wait for `{other}`"),
                errno: UNMET,
                reason: "it has ended without what was waited for".to_owned(),
            };
            self.place_mut(*slot).begin();
            self.apply(*slot, attempt::Event::Start, now);
            effects.push(Effect::Record(Fact::Starting { subject: self.subject(*slot) }));
            self.exited(*slot, Exit::Spawn(error), None, now, effects);
        }
    }

    /// Whether somebody waits until the ports of this role answer.
    pub(super) fn is_awaited(&self, role: u16) -> bool {
        let this = &self.job.roles[role as usize];
        let waited_for = |after: &StartAfter| after.role == role && after.when == When::Ready;
        !this.work.ports.is_empty() && self.job.roles.iter().any(|other| other.start_after.iter().any(waited_for))
    }
}

/// Whether a role may start.
enum Standing {
    Due,
    Waits,
    /// This one will not come.
    Never(u16),
}
