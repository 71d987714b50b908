//! etcd in virtual time: a key with a lease, a watch, and requests whose answers may be lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use umiak_core::facts::Outcome;
use umiak_core::machine::round::election::{Leader, Reign};
use umiak_core::model::Timestamp;

use super::world::{Item, World};

pub(super) type LeaseId = u64;

/// How a job ended, for nodes that have not heard it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) job: u64,
    pub(super) outcome: Outcome,
    pub(super) code: u8,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    List,
    Grant,
    Renew(LeaseId),
    /// The first part of a claim: a lease, this one if it lives.
    ClaimLease(Option<LeaseId>, Leader, Timestamp),
    Create(LeaseId, Leader, Timestamp),
    Revoke(LeaseId),
    /// The last requests of a node: how the job ended, and its lease.
    Finish(Option<End>, Option<LeaseId>),
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    Listed {
        key: Option<Reign>,
        end: Option<End>,
        at: u64,
    },
    Lease(LeaseId),
    /// The lease is unknown.
    Expired,
    Created(u64),
    Taken(Reign),
    Done,
    /// No answer in time.
    Nothing,
}

/// News of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Key { key: Option<Reign>, at: u64 },
    End(Option<End>),
    Range(u32, u32),
}

#[derive(Debug, Default)]
pub(super) struct Etcd {
    revision: u64,
    /// When each lease expires.
    leases: BTreeMap<LeaseId, Timestamp>,
    last_lease: LeaseId,
    key: Option<(Reign, LeaseId)>,
    end: Option<End>,
    pub(super) away: Timestamp,
    calls: BTreeMap<u64, (usize, Ask)>,
    last_call: u64,
}

/// The watch of one node: what is under way to it, in order.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) is_open: bool,
    pub(super) changes: VecDeque<Change>,
}

impl World {
    fn etcd_delay(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(500..=self.scenario.etcd_delay))
    }

    /// Sends a request of this node.
    pub(super) fn ask(&mut self, front: usize, ask: Ask) {
        self.etcd.last_call += 1;
        let call = self.etcd.last_call;
        self.etcd.calls.insert(call, (front, ask));
        let (at, until) = (self.now + self.etcd_delay(), self.now + self.scenario.call());
        self.plan(at, Item::Asked { call, front, ask });
        self.plan(until, Item::Answered { call, reply: Reply::Nothing });
    }

    /// A request arrives, late if the way was cut.
    pub(super) fn asked(&mut self, call: u64, front: usize, ask: Ask) {
        let host = self.scenario.fronts[front].host;
        let open = self.etcd_cut[host][0].max(self.etcd.away);
        if self.now < open {
            let at = open + self.etcd_delay();
            return self.plan(at, Item::Asked { call, front, ask });
        }
        // A connection that was closed meanwhile may have been sent on or not.
        if !self.etcd.calls.contains_key(&call) && self.rng.bool() {
            return;
        }
        let reply = self.serve(front, ask);
        self.note(|| format!("etcd: {ask:?} of {front} gives {reply:?}"));
        let is_lost =
            self.scenario.lossy > 0 && self.now < self.scenario.quiet && self.rng.u32(..self.scenario.lossy) == 0;
        if !is_lost {
            let at = self.now + self.etcd_delay();
            self.plan(at, Item::Answered { call, reply });
        }
    }

    pub(super) fn answered(&mut self, call: u64, reply: Reply) {
        let Some((front, ask)) = self.etcd.calls.get(&call).copied() else { return };
        let open = self.etcd_cut[self.scenario.fronts[front].host][1];
        if reply != Reply::Nothing && self.now < open {
            return self.plan(open, Item::Answered { call, reply });
        }
        self.etcd.calls.remove(&call);
        self.candidate_hears(front, ask, reply);
    }

    fn grant(&mut self) -> LeaseId {
        self.etcd.last_lease += 1;
        let lease = self.etcd.last_lease;
        self.renew(lease);
        lease
    }

    fn renew(&mut self, lease: LeaseId) {
        let until = self.now + self.scenario.granted();
        self.etcd.leases.insert(lease, until);
        self.plan(until, Item::Expires(lease));
    }

    fn serve(&mut self, front: usize, ask: Ask) -> Reply {
        match ask {
            Ask::List => {
                self.fronts[front].watch.is_open = true;
                let key = self.etcd.key.map(|(reign, _)| reign);
                Reply::Listed { key, end: self.etcd.end, at: self.etcd.revision }
            }
            Ask::Grant => {
                self.etcd.revision += 1;
                Reply::Lease(self.grant())
            }
            Ask::Renew(lease) => {
                if !self.etcd.leases.contains_key(&lease) {
                    return Reply::Expired;
                }
                self.renew(lease);
                Reply::Lease(lease)
            }
            Ask::ClaimLease(lease, ..) => match lease.filter(|lease| self.etcd.leases.contains_key(lease)) {
                Some(lease) => {
                    self.renew(lease);
                    Reply::Lease(lease)
                }
                None => Reply::Lease(self.grant()),
            },
            Ask::Create(lease, leader, _) => {
                if let Some((reign, _)) = self.etcd.key {
                    return Reply::Taken(reign);
                }
                if !self.etcd.leases.contains_key(&lease) {
                    return Reply::Expired;
                }
                self.etcd.revision += 1;
                let revision = self.etcd.revision;
                let reign = Reign { leader, revision };
                self.etcd.key = Some((reign, lease));
                self.tell_watches(Change::Key { key: Some(reign), at: revision });
                Reply::Created(revision)
            }
            Ask::Revoke(lease) => {
                self.remove_lease(lease);
                Reply::Done
            }
            Ask::Finish(end, lease) => {
                if let Some(end) = end {
                    self.etcd.revision += 1;
                    self.etcd.end = Some(end);
                    self.tell_watches(Change::End(Some(end)));
                }
                if let Some(lease) = lease {
                    self.remove_lease(lease);
                }
                Reply::Done
            }
        }
    }

    fn remove_lease(&mut self, lease: LeaseId) {
        if self.etcd.leases.remove(&lease).is_none() {
            return;
        }
        if self.etcd.key.is_some_and(|(_, of)| of == lease) {
            self.etcd.key = None;
            self.etcd.revision += 1;
            self.tell_watches(Change::Key { key: None, at: self.etcd.revision });
        }
    }

    pub(super) fn expires(&mut self, lease: LeaseId) {
        if self.etcd.leases.get(&lease).is_none_or(|until| self.now < *until) {
            return;
        }
        if self.now < self.etcd.away {
            return self.plan(self.etcd.away + Duration::from_micros(1), Item::Expires(lease));
        }
        self.note(|| format!("etcd: lease {lease} expires"));
        self.remove_lease(lease);
    }

    /// etcd works again.
    pub(super) fn etcd_returns(&mut self, renews: bool) {
        if renews {
            for lease in self.etcd.leases.keys().copied().collect::<Vec<_>>() {
                self.renew(lease);
            }
        }
    }

    pub(super) fn scale(&mut self, min: u32, max: u32) {
        self.etcd.revision += 1;
        self.tell_watches(Change::Range(min, max));
    }

    /// A new job of this name begins.
    pub(super) fn forget_end(&mut self) {
        self.etcd.revision += 1;
        self.etcd.end = None;
        self.tell_watches(Change::End(None));
    }

    fn tell_watches(&mut self, change: Change) {
        for front in 0..self.fronts.len() {
            if self.fronts[front].watch.is_open {
                self.fronts[front].watch.changes.push_back(change);
                let at = self.now + self.etcd_delay();
                self.plan(at, Item::Watched(front));
            }
        }
    }

    /// The next news of a watch is due.
    pub(super) fn watched(&mut self, front: usize) {
        let host = self.scenario.fronts[front].host;
        let open = self.etcd_cut[host][0].max(self.etcd_cut[host][1]).max(self.etcd.away);
        if self.now < open {
            let at = open + self.etcd_delay();
            return self.plan(at, Item::Watched(front));
        }
        if let Some(change) = self.fronts[front].watch.changes.pop_front() {
            self.candidate_sees(front, change);
        }
    }
}
