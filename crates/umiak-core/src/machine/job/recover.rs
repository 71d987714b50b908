//! Recovery from the journal of an earlier supervisor.

use std::time::Duration;

use super::replicas::Inherited;
use super::stopping::after_interrupt;
use super::{Attempt, AttemptId, Effect, Machine, Of, Past, Slot, Timer, Timestamp};
use crate::facts::Fact;
use crate::machine::attempt::End;
use crate::model::{Blame, Exit, Scope, StopHow};
use crate::status::{self, ReplicaStatus, Stage, Status};

/// Which replicas run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// After a lost supervisor: those that have not ended by themselves.
    Unfinished,
    /// After the end of the run: those that have not succeeded.
    Unsuccessful,
    All,
}

impl Machine {
    /// Restores the state from the facts of a run. Called before the start. Live attempts for which `adopted` is true
    /// still exist in the engine and go on under their number. The other live attempts are lost.
    pub fn recover(&mut self, status: &Status, again: Again, adopted: &dyn Fn(AttemptId) -> bool) {
        let attempt = self.attempt.max(status.attempt);
        self.attempt = attempt;
        self.order = status.next_order;
        if again == Again::Unfinished {
            self.supervised = Duration::from_micros(status.used_micros());
            let times = |blame: Blame| {
                let past = status.restarts.iter().filter(|restart| restart.blame == blame);
                past.map(|restart| Timestamp::from_micros(restart.at)).collect()
            };
            self.restarts = Past::new(times);
        }
        for slot in self.replicas.slots() {
            match status.replica(&self.replica_name(slot)) {
                Some(replica) => self.recover_replica(slot, replica, again, adopted),
                None => self.replicas.change(slot, |replica| (replica.number, replica.first) = (attempt, attempt)),
            }
        }
    }

    fn recover_replica(
        &mut self,
        slot: Slot,
        replica: &ReplicaStatus,
        again: Again,
        adopted: &dyn Fn(AttemptId) -> bool,
    ) {
        self.replicas.change(slot, |own| {
            (own.number, own.first) = (replica.attempt, replica.first);
            own.begun = replica.stage != Stage::Waiting;
        });
        let of = |scope: Scope| {
            let times = |blame: Blame| {
                let retries = replica.retries.iter().filter(|retry| (retry.scope, retry.blame) == (scope, blame));
                retries.map(|retry| Timestamp::from_micros(retry.at)).collect()
            };
            Past::new(times)
        };
        if again == Again::Unfinished {
            self.replicas.change(slot, |own| own.past = of(Scope::Replica));
            // The role's budget is shared by its replicas.
            self.roles[slot.role as usize].past = of(Scope::Role);
        }
        if replica.is_live() {
            let adopted = adopted(self.id(slot));
            let inherited = if adopted { Inherited::Adopted } else { Inherited::Lost };
            self.replicas.change(slot, |own| own.inherited = Some(inherited));
            if adopted {
                self.adopt_replica(slot, replica);
            }
        }
        if let Stage::Ended(ended) = &replica.stage
            && !replica.withdrawn
            && stays(ended, again)
        {
            let end = End {
                exit: ended.exit.clone(),
                classed: ended.classed.clone(),
                by_us: ended.by_us,
                before_stop: ended.before_stop,
                timed_out: ended.timed_out,
                order: ended.order,
                usage: None,
                started: Timestamp::from_micros(ended.started),
                ended: Timestamp::from_micros(ended.ended),
            };
            self.replicas.change(slot, |own| own.attempt = Attempt::Ended(end));
        }
    }

    /// Restores an attempt that the engine still has to the state in the facts.
    fn adopt_replica(&mut self, slot: Slot, replica: &ReplicaStatus) {
        let (at, started, ready, timed_out) = match replica.stage {
            Stage::Starting { at } => (at, false, false, None),
            Stage::Running { at, ready, timed_out, .. } => (at, true, ready, timed_out),
            Stage::Waiting | Stage::Ended(_) | Stage::Abandoned => return,
        };
        let since = Timestamp::from_micros(at);
        let stopped = replica.stop_sent;
        self.replicas.change(slot, |own| {
            (own.ready, own.timed_out, own.stopped_before) = (ready, timed_out, stopped);
            own.attempt = match stopped {
                Some(sent) => Attempt::Stopping { since, started, sent },
                None if started => Attempt::Running { since },
                None => Attempt::Starting { since },
            };
        });
    }

    /// The start of a supervisor that takes over. Adopted attempts go on with their full time limits. Other live
    /// attempts are lost and start again without spending budget. Failures that were not handled yet are handled now.
    pub(super) fn take_over(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let mut adopted = Vec::new();
        for slot in self.replicas.slots() {
            match self.replicas.change(slot, |own| own.inherited.take()) {
                Some(Inherited::Lost) => {
                    let (subject, order) = (self.subject(slot), self.order);
                    self.order += 1;
                    let exit = Exit::Lost;
                    effects.push(Effect::Record(Fact::Ended {
                        subject,
                        exit: exit.clone(),
                        classed: None,
                        by_us: false,
                        order,
                        usage: None,
                        log_end: None,
                    }));
                    let (by_us, before_stop, timed_out, usage) = (false, true, None, None);
                    let end = End {
                        exit,
                        classed: None,
                        by_us,
                        before_stop,
                        timed_out,
                        order,
                        usage,
                        started: now,
                        ended: now,
                    };
                    effects.push(Effect::Release { id: self.id(slot), end: Box::new(end) });
                }
                Some(Inherited::Adopted) => adopted.push(slot),
                None => {}
            }
        }
        self.go_on_with(&adopted, now, effects);
        // Only now: a role restart must not wait for replicas that are gone.
        for slot in self.replicas.slots() {
            if matches!(self.attempt_of(slot), Some(Attempt::Ended(_))) {
                self.after_end(slot, now, effects);
            }
        }
    }

    /// Arms the timers of adopted attempts. A recorded stop may never have been sent, so it is sent again.
    fn go_on_with(&mut self, adopted: &[Slot], now: Timestamp, effects: &mut Vec<Effect>) {
        for how in [StopHow::Interrupt, StopHow::Terminate, StopHow::Kill] {
            let stopped = |slot: &&Slot| {
                self.replicas.get(**slot).stopped_before.is_some_and(|sent| sent.last == how)
                    && matches!(self.attempt_of(**slot), Some(Attempt::Stopping { sent, .. }) if sent.last == how)
            };
            let targets: Vec<AttemptId> = adopted.iter().filter(stopped).map(|slot| self.id(*slot)).collect();
            if targets.is_empty() {
                continue;
            }
            self.send_stop(how, targets.clone(), effects);
            for slot in targets.into_iter().map(|id| id.slot) {
                let of = Of::Replica(slot);
                let grace = self.grace(slot.role);
                if how == StopHow::Interrupt {
                    self.arm(Timer::TerminateOf(of), now + after_interrupt(grace), effects);
                }
                let (timer, after) = match how {
                    StopHow::Interrupt | StopHow::Terminate => (Timer::GraceOf(of), grace),
                    StopHow::Kill => (Timer::AbandonOf(of), self.job.policy.stop.abandon),
                };
                self.arm(timer, now + after, effects);
            }
        }
        for slot in adopted.iter().copied() {
            match (self.attempt_of(slot), self.replicas.get(slot).timed_out) {
                // It had timed out when the supervisor was lost.
                (Some(Attempt::Running { .. }), Some(_)) => self.terminate(Of::Replica(slot), now, effects),
                (Some(Attempt::Running { .. }), None) => self.limit(slot, now, effects),
                _ => {}
            }
        }
    }
}

/// True if this end is final.
fn stays(ended: &status::Ended, again: Again) -> bool {
    match again {
        Again::Unfinished => ended.is_success() || (ended.is_failure() && ended.exit != Exit::Lost),
        Again::Unsuccessful => ended.is_success(),
        Again::All => false,
    }
}
