//! What a node does in etcd for its election: keeps its lease, claims the key, watches it. As `umiak::rendezvous::election`
//! does.

use std::net::SocketAddr;
use std::time::Duration;

use umiak_core::machine::round::election::{Effect, Event, Leader, Reign};
use umiak_core::model::Timestamp;

use super::etcd::{Ask, Change, End, LeaseId, Reply};
use super::world::{Item, Sabotage, State, World};

/// A message to the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    Lead(Reign),
    Follow(Reign),
    Vacated,
    Fence,
    Scaled {
        min: u32,
        max: u32,
    },
    Over(End),
    /// There will be no coordinator.
    Failed,
}

/// The state of the task.
#[derive(Debug)]
pub(super) struct Candidate {
    /// True once etcd was read.
    pub(super) begun: bool,
    pub(super) lease: Option<LeaseId>,
    pub(super) renewing: bool,
    pub(super) renew_at: Timestamp,
    /// The port that is bound for the next claim.
    pub(super) port: Option<u16>,
    pub(super) job: Option<u64>,
    pub(super) end: Option<End>,
    /// Since when a coordinator is looked for.
    pub(super) looking: Option<Timestamp>,
    pub(super) is_leading: bool,
    pub(super) tick: u64,
}

impl World {
    fn is_candidate(&self, front: usize) -> bool {
        matches!(self.fronts[front].state, State::Waiting | State::Running | State::Leaving)
    }

    pub(super) fn look(&mut self, front: usize) {
        let node = &self.fronts[front];
        let (launch, lost) = (node.launch, node.reign.map(|reign| reign.revision));
        if !node.candidate.begun || self.sabotage == Some(Sabotage::NeverLook) && lost.is_some() {
            return;
        }
        self.note(|| format!("{front} looks, lost {lost:?}"));
        let now = self.local(front);
        self.fronts[front].candidate.looking.get_or_insert(now);
        self.elect(front, Event::Look { launch, lost });
        self.candidate_turns(front);
    }

    fn report(&mut self, front: usize, report: Report) {
        self.note(|| format!("{front}: {report:?}"));
        let late = match (report, self.sabotage) {
            (Report::Fence, Some(Sabotage::NeverFence)) => return,
            (Report::Fence, Some(Sabotage::LateFence)) => self.scenario.lease + self.scenario.limits.silence,
            _ => Duration::ZERO,
        };
        self.plan(self.now + late, Item::Reported(front, report));
    }

    fn elect(&mut self, front: usize, event: Event) {
        let now = self.local(front);
        for effect in self.fronts[front].election.step(event, now) {
            match effect {
                Effect::Claim => self.claim(front),
                Effect::Resign => {
                    self.fronts[front].candidate.is_leading = false;
                    if let Some(lease) = self.fronts[front].candidate.lease.take() {
                        self.ask(front, Ask::Revoke(lease));
                    }
                }
                Effect::Lead(reign) => {
                    let candidate = &mut self.fronts[front].candidate;
                    (candidate.looking, candidate.is_leading, candidate.port) = (None, true, None);
                    if candidate.job.replace(reign.leader.job).is_none() {
                        self.forget_end();
                    }
                    self.report(front, Report::Lead(reign));
                }
                Effect::Follow(reign) => {
                    let candidate = &mut self.fronts[front].candidate;
                    candidate.job = Some(reign.leader.job);
                    self.report(front, Report::Follow(reign));
                }
                Effect::Vacated => self.report(front, Report::Vacated),
                // No host is asked whether its node lives.
                Effect::Evict(_) => {}
                Effect::Fence(_) => {
                    self.fronts[front].candidate.is_leading = false;
                    self.report(front, Report::Fence);
                }
            }
        }
    }

    /// What follows every input.
    fn candidate_turns(&mut self, front: usize) {
        if !self.is_candidate(front) {
            return;
        }
        self.renew_lease(front);
        self.elect(front, Event::Tick);
        let now = self.local(front);
        let patience = self.scenario.limits.rendezvous;
        let candidate = &mut self.fronts[front].candidate;
        if candidate.looking.is_some_and(|since| now >= since + patience) {
            candidate.looking = None;
            self.report(front, Report::Failed);
        }
        let candidate = &self.fronts[front].candidate;
        let renew = candidate.lease.filter(|_| !candidate.renewing).map(|_| candidate.renew_at);
        let patience = candidate.looking.map(|since| since + patience);
        let next = [self.fronts[front].election.deadline(), patience, renew].into_iter().flatten().min();
        if let Some(next) = next {
            self.fronts[front].candidate.tick += 1;
            let tick = self.fronts[front].candidate.tick;
            let at = self.global(front, next).max(self.now + Duration::from_millis(1));
            self.plan(at, Item::CandidateTick(front, tick));
        }
    }

    pub(super) fn candidate_tick(&mut self, front: usize, tick: u64) {
        if self.is_candidate(front) && tick == self.fronts[front].candidate.tick {
            self.candidate_turns(front);
        }
    }

    fn claim(&mut self, front: usize) {
        let node = &mut self.fronts[front];
        let candidate = &mut node.candidate;
        if let Some(end) = candidate.end.filter(|end| Some(end.job) == candidate.job) {
            candidate.looking = None;
            return self.report(front, Report::Over(end));
        }
        let port = *candidate.port.get_or_insert_with(|| {
            self.last_port += 1;
            self.last_port
        });
        let address = super::Scenario::address(self.scenario.fronts[front].host);
        let job = candidate.job.unwrap_or(node.launch);
        let leader = Leader { at: SocketAddr::new(address, port), launch: node.launch, job, alive: None };
        let (lease, asked) = (candidate.lease, self.local(front));
        self.ask(front, Ask::ClaimLease(lease, leader, asked));
    }

    fn renew_lease(&mut self, front: usize) {
        let now = self.local(front);
        let candidate = &mut self.fronts[front].candidate;
        if candidate.renewing || now < candidate.renew_at {
            return;
        }
        (candidate.renewing, candidate.renew_at) = (true, now + self.scenario.lease / 6);
        let ask = candidate.lease.map_or(Ask::Grant, Ask::Renew);
        self.fronts[front].asked = now;
        self.ask(front, ask);
    }

    /// etcd has answered, or not.
    pub(super) fn candidate_hears(&mut self, front: usize, ask: Ask, reply: Reply) {
        if let Ask::Finish(..) = ask {
            return self.exit(front);
        }
        if !self.is_candidate(front) {
            return;
        }
        match (ask, reply) {
            (Ask::List, Reply::Listed { key, end, at }) => {
                let candidate = &mut self.fronts[front].candidate;
                (candidate.begun, candidate.end) = (true, end);
                self.elect(front, Event::Seen { key, at });
                return self.look(front);
            }
            // The client repeats what was not answered.
            (Ask::List, _) => self.ask(front, Ask::List),
            (Ask::Grant | Ask::Renew(_), reply) => self.renewed(front, ask, reply),
            (Ask::ClaimLease(_, leader, asked), Reply::Lease(lease)) => {
                self.ask(front, Ask::Create(lease, leader, asked));
            }
            (Ask::Create(lease, leader, asked), Reply::Created(revision)) => {
                self.has_lease(front, lease);
                self.elect(front, Event::Claimed { reign: Reign { leader, revision }, asked });
            }
            (Ask::Create(lease, ..), Reply::Taken(reign)) => {
                self.has_lease(front, lease);
                self.elect(front, Event::Taken(reign));
            }
            (Ask::ClaimLease(..) | Ask::Create(..), _) => self.elect(front, Event::NotClaimed),
            (Ask::Revoke(_) | Ask::Finish(..), _) => {}
        }
        self.candidate_turns(front);
    }

    fn has_lease(&mut self, front: usize, lease: LeaseId) {
        let renew_at = self.local(front) + self.scenario.lease / 6;
        let candidate = &mut self.fronts[front].candidate;
        (candidate.lease, candidate.renew_at) = (Some(lease), renew_at);
    }

    fn renewed(&mut self, front: usize, ask: Ask, reply: Reply) {
        let old = |ask: Ask| if let Ask::Renew(lease) = ask { Some(lease) } else { None };
        let asked = self.fronts[front].asked;
        let candidate = &mut self.fronts[front].candidate;
        candidate.renewing = false;
        match (ask, reply) {
            // The lease may have been given up meanwhile.
            (ask, Reply::Lease(lease)) if candidate.lease == old(ask) => {
                candidate.lease = Some(lease);
                self.elect(front, Event::Renewed { asked });
            }
            (Ask::Renew(lease), Reply::Expired) if candidate.lease == Some(lease) => {
                candidate.lease = None;
                self.elect(front, Event::Expired);
            }
            _ => {}
        }
    }

    pub(super) fn candidate_sees(&mut self, front: usize, change: Change) {
        if !self.is_candidate(front) {
            return;
        }
        match change {
            Change::Key { key, at } => self.elect(front, Event::Seen { key, at }),
            Change::End(end) => self.fronts[front].candidate.end = end,
            Change::Range(min, max) if self.fronts[front].candidate.is_leading => {
                self.report(front, Report::Scaled { min, max });
            }
            Change::Range(..) => {}
        }
        self.candidate_turns(front);
    }
}
