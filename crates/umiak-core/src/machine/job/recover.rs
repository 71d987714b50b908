//! Going on where the facts of an earlier supervisor end.

use std::time::Duration;

use super::{Attempt, AttemptId, Effect, Exit, Fact, Machine, Past, Slot, Timestamp};
use crate::machine::attempt::End;
use crate::model::{Blame, Scope};
use crate::status::{self, ReplicaStatus, Stage, Status};

/// What is run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The supervisor was lost: only what has not ended by itself.
    Unfinished,
    /// The run has ended: what has not succeeded.
    Unsuccessful,
    All,
}

impl Machine {
    /// Takes over from the facts of a run. Before the start.
    pub fn recover(&mut self, status: &Status, again: Again) {
        self.attempt = status.attempt;
        self.order = status.next_order;
        if again == Again::Unfinished {
            self.supervised = Duration::from_micros(status.used_micros());
            let is_platform = |at: &u64| status.platform_restarts.contains(at);
            let (platform, user): (Vec<u64>, Vec<u64>) = status.restarts.iter().partition(|at| is_platform(at));
            let times = |times: Vec<u64>| times.into_iter().map(Timestamp::from_micros).collect();
            self.restarts = Past { user: times(user), platform: times(platform) };
        }
        for slot in self.slots() {
            match status.replica(&self.replica_name(slot)) {
                Some(replica) => self.recover_replica(slot, replica, again),
                None => self.place_mut(slot).number = status.attempt,
            }
        }
    }

    fn recover_replica(&mut self, slot: Slot, replica: &ReplicaStatus, again: Again) {
        let place = self.place_mut(slot);
        place.number = replica.attempt;
        place.begun = replica.stage != Stage::Waiting;
        let of = |scope: Scope| {
            let times = |blame: Blame| {
                let retries = replica.retries.iter().filter(|retry| (retry.scope, retry.blame) == (scope, blame));
                retries.map(|retry| Timestamp::from_micros(retry.at)).collect()
            };
            Past { user: times(Blame::User), platform: times(Blame::Platform) }
        };
        place.lost = replica.is_live();
        if again == Again::Unfinished {
            place.past = of(Scope::Replica);
            // The role's budget was spent for all of it at once.
            self.groups[slot.role as usize].past = of(Scope::Role);
        }
        if let Stage::Ended(ended) = &replica.stage
            && stays(ended, again)
        {
            self.roles[slot.role as usize][slot.index as usize] = Attempt::Ended(End {
                exit: ended.exit.clone(),
                by_us: ended.by_us,
                before_stop: ended.before_stop,
                timed_out: ended.timed_out,
                order: ended.order,
                usage: None,
                started: Timestamp::from_micros(ended.started),
                ended: Timestamp::from_micros(ended.ended),
            });
        }
    }

    /// The start of a supervisor that took over: what was live is lost, and starts again without spending anything. What
    /// had failed, and nobody had decided about, is decided now.
    pub(super) fn close_lost(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for slot in self.slots() {
            if std::mem::take(&mut self.place_mut(slot).lost) {
                let (subject, order) = (self.subject(slot), self.order);
                self.order += 1;
                let exit = Exit::Lost;
                let id = AttemptId { slot, attempt: subject.attempt };
                effects.push(Effect::Record(Fact::Ended {
                    subject,
                    exit: exit.clone(),
                    by_us: false,
                    order,
                    usage: None,
                    log_end: None,
                }));
                let (by_us, before_stop, timed_out, usage) = (false, true, None, None);
                let end = End { exit, by_us, before_stop, timed_out, order, usage, started: now, ended: now };
                effects.push(Effect::Release { id, end: Box::new(end) });
            }
        }
        // Only now: who stops a role for the failure of one must not wait for those that are gone.
        for slot in self.slots() {
            if matches!(self.attempt_of(slot), Some(Attempt::Ended(_))) {
                self.after_end(slot, now, effects);
            }
        }
    }
}

/// Whether this end is final.
fn stays(ended: &status::Ended, again: Again) -> bool {
    match again {
        Again::Unfinished => ended.is_success() || (ended.is_failure() && ended.exit != Exit::Lost),
        Again::Unsuccessful => ended.is_success(),
        Again::All => false,
    }
}
