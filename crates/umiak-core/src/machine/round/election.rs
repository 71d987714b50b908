//! Which node of a job over etcd is the coordinator: the one whose lease holds the job's key.
//!
//! ```text
//! Idle ─► Looking ─► a node holds the key ─► Following ─► the key has changed: Vacated ─┐
//!  ▲            └──► the key is vacant ─► claim it ─► Leading                          │
//!  └─────────────────────── the lease may expire soon, or the key is gone: Fence ◄──┘ ◄┘
//! ```
//!
//! At most one node leads. A coordinator stops after two thirds of its lease without a renewal, counted from when the
//! last successful one was *asked* for; etcd frees the key after the whole lease, counted from when it answered. The
//! third between them is for clocks that differ in rate, and for ranks that take their grace.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::messages::Loss;
use crate::model::{Port, Timestamp};

/// A node that is not reached is asked for again after this time, if it still holds the key.
const AGAIN: Duration = Duration::from_secs(1);
/// Time between two attempts to claim the key.
const CLAIM: Duration = Duration::from_millis(500);

/// The value of the key: the node that leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Where it listens for other nodes.
    pub at: SocketAddr,
    /// The launch id of its node.
    pub launch: u64,
    /// Tells this job from an earlier one with the same id; all its coordinators pass it on.
    pub job: u64,
    /// A port of its host that is open as long as its umiak or its guardian runs there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive: Option<Port>,
}

/// One node's time as coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reign {
    pub leader: Leader,
    /// Of the key; no two reigns have the same.
    pub revision: u64,
}

/// Input of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// This node, with this launch id, needs a coordinator. The one of this revision could not be reached, or has left.
    Look { launch: u64, lost: Option<u64> },
    /// The key, as it was at this revision of etcd.
    Seen { key: Option<Reign>, at: u64 },
    /// The answer to [`Effect::Claim`]: this node leads.
    Claimed { reign: Reign, asked: Timestamp },
    /// Another node holds the key.
    Taken(Reign),
    /// etcd was not reached.
    NotClaimed,
    /// The lease has been renewed; the request was sent at this time.
    Renewed { asked: Timestamp },
    /// etcd no longer knows the lease.
    Expired,
    /// The coordinator has accepted this node.
    Settled,
    /// Nothing of the node that held the key at this revision runs anymore.
    Vanished { revision: u64 },
    /// The time of [`Election::deadline`] has come.
    Tick,
}

/// Output of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Create the key with this node's lease.
    Claim,
    /// End the lease, so that the key is free at once.
    Resign,
    /// This node is the coordinator.
    Lead(Reign),
    /// Another one is.
    Follow(Reign),
    /// The node that is followed is no longer the coordinator.
    Vacated,
    /// Delete the key of this reign, if it is still there: nothing of its node runs anymore.
    Evict(Reign),
    /// This node must stop being the coordinator: another one may be elected soon. Says why.
    Fence(Loss),
}

/// What becomes of a job's keys when a node leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastWord {
    /// Other nodes go on.
    Stay,
    /// No other node is known to etcd, but ranks of one that was cut off may run: the keys expire.
    Expire,
    /// Nothing of the job runs.
    Forget,
}

/// Decides about the keys of a job, for a node that leaves. `members` are the nodes of the last attempt, if it has heard
/// of one; `left` those that have ended with their ranks gone.
pub fn last_word(members: Option<&[u64]>, left: &[u64], is_alone: bool, has_past: bool) -> LastWord {
    match members {
        _ if !is_alone => LastWord::Stay,
        Some(members) if members.iter().all(|member| left.contains(member)) => LastWord::Forget,
        None if !has_past => LastWord::Forget,
        _ => LastWord::Expire,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Looking {
        lost: Option<u64>,
        /// When the same coordinator is tried again.
        again: Timestamp,
    },
    Following {
        revision: u64,
    },
    Leading {
        reign: Reign,
        renewed: Timestamp,
    },
}

/// The state of one node.
#[derive(Debug, Clone)]
pub struct Election {
    launch: u64,
    lease: Duration,
    state: State,
    /// The key as it was last seen, and when; `None` before the first time.
    seen: Option<(Option<Reign>, u64)>,
    /// The revision of this node's own last reign.
    own: u64,
    /// The last coordinator that this node has lost, and the last one of which nothing runs anymore.
    lost: Option<u64>,
    vanished: Option<u64>,
    /// True while the answer to a claim is awaited, and when the next may be made.
    claiming: bool,
    claim_at: Timestamp,
}

impl Election {
    pub fn new(lease: Duration, now: Timestamp) -> Self {
        Self {
            launch: 0,
            lease,
            state: State::Idle,
            seen: None,
            own: 0,
            lost: None,
            vanished: None,
            claiming: false,
            claim_at: now,
        }
    }

    /// The time without a renewal after which a coordinator stops.
    pub fn fence(lease: Duration) -> Duration {
        lease * 2 / 3
    }

    pub fn is_leading(&self) -> bool {
        matches!(self.state, State::Leading { .. })
    }

    /// The state of etcd is listed anew. If it is older than what was seen, etcd has lost its data and counts again.
    pub fn resync(&mut self, at: u64) {
        if self.seen.is_some_and(|(_, seen)| at < seen) {
            (self.seen, self.own) = (None, 0);
        }
    }

    /// The transition function: synchronous, pure but for `self`, total.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Look { launch, lost } => {
                (self.launch, self.lost) = (launch, lost);
                // A node may lose the coordinator in its own process, too.
                self.state = match self.state {
                    State::Leading { reign, .. } if lost == Some(reign.revision) => State::Idle,
                    state => state,
                };
                // Its ranks are gone by now.
                if self.seen.is_some_and(|(key, _)| key.is_some_and(|reign| self.is_own(reign))) && !self.is_leading() {
                    effects.push(Effect::Resign);
                }
                if !self.is_leading() {
                    self.state = State::Looking { lost, again: now + AGAIN };
                }
            }
            Event::Seen { key, at } => self.see(key, at, &mut effects),
            Event::Claimed { reign, asked } => {
                (self.claiming, self.own) = (false, reign.revision);
                self.see(Some(reign), reign.revision, &mut effects);
                // The key may be gone already, and nothing may wait for a coordinator any more.
                let holds = self.seen.is_some_and(|(key, _)| key == Some(reign));
                if let (State::Looking { .. }, true) = (self.state, holds) {
                    self.state = State::Leading { reign, renewed: asked };
                    effects.push(Effect::Lead(reign));
                } else {
                    effects.push(Effect::Resign);
                }
            }
            Event::Taken(reign) => {
                self.claiming = false;
                self.see(Some(reign), reign.revision, &mut effects);
            }
            // It may have been made all the same.
            Event::NotClaimed => {
                self.claiming = false;
                effects.push(Effect::Resign);
            }
            Event::Renewed { asked } => {
                if let State::Leading { renewed, .. } = &mut self.state {
                    *renewed = (*renewed).max(asked);
                }
            }
            Event::Expired => {
                if self.is_leading() {
                    self.fence_now(Loss::Deposed, &mut effects);
                }
            }
            Event::Settled => self.lost = None,
            Event::Vanished { revision } => self.vanished = Some(revision),
            Event::Tick => {}
        }
        self.evict(&mut effects);
        self.advance(now, &mut effects);
        effects
    }

    /// Frees the key of a coordinator that is dead, without the wait for its lease. Once: the lease expires anyway. Not
    /// before this node has lost it, and has stopped its own ranks.
    fn evict(&mut self, effects: &mut Vec<Effect>) {
        if let Some((Some(reign), _)) = self.seen
            && self.vanished == Some(reign.revision)
            && self.lost == self.vanished
            && !self.is_own(reign)
        {
            self.vanished = None;
            effects.push(Effect::Evict(reign));
        }
    }

    /// When [`Event::Tick`] is due at the latest; `None` if nothing is due.
    pub fn deadline(&self) -> Option<Timestamp> {
        match self.state {
            State::Idle | State::Following { .. } => None,
            State::Leading { renewed, .. } => Some(renewed + Self::fence(self.lease)),
            State::Looking { again, .. } => match self.seen {
                Some((Some(reign), _)) => (!self.is_own(reign)).then_some(again),
                Some((None, _)) if !self.claiming => Some(self.claim_at),
                _ => None,
            },
        }
    }

    fn advance(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        match self.state {
            State::Idle | State::Following { .. } => {}
            State::Leading { renewed, .. } => {
                if now >= renewed + Self::fence(self.lease) {
                    self.fence_now(Loss::Fenced, effects);
                }
            }
            State::Looking { lost, again } => match self.seen {
                Some((None, _)) if !self.claiming && now >= self.claim_at => {
                    (self.claiming, self.claim_at) = (true, now + CLAIM);
                    effects.push(Effect::Claim);
                }
                // Its own key is vacant soon.
                Some((Some(reign), _)) if self.is_own(reign) => {}
                Some((Some(reign), _)) if lost != Some(reign.revision) || now >= again => {
                    self.state = State::Following { revision: reign.revision };
                    effects.push(Effect::Follow(reign));
                }
                None | Some(_) => {}
            },
        }
    }

    /// Answers to requests and news of the watch may overtake each other: what is older is dropped.
    fn see(&mut self, key: Option<Reign>, at: u64, effects: &mut Vec<Effect>) {
        if self.seen.is_some_and(|(_, seen)| at < seen) {
            return;
        }
        self.seen = Some((key, at));
        match self.state {
            State::Leading { reign, .. } if at > reign.revision && key != Some(reign) => {
                self.fence_now(Loss::Deposed, effects);
            }
            State::Following { revision } if key.is_none_or(|key| key.revision != revision) => {
                self.state = State::Idle;
                effects.push(Effect::Vacated);
            }
            State::Leading { .. } | State::Following { .. } | State::Looking { .. } | State::Idle => {}
        }
    }

    /// True for a reign of this node, which is over: its key is vacant soon.
    fn is_own(&self, reign: Reign) -> bool {
        reign.revision == self.own || reign.leader.launch == self.launch
    }

    /// The lease is not ended: until it expires, ranks have time to stop.
    fn fence_now(&mut self, how: Loss, effects: &mut Vec<Effect>) {
        self.state = State::Idle;
        effects.push(Effect::Fence(how));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(9);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(millis * 1000)
    }

    fn reign(launch: u64, revision: u64) -> Reign {
        Reign { leader: Leader { at: "192.168.0.1:7".parse().unwrap(), launch, job: 1, alive: None }, revision }
    }

    fn vacant(at: u64) -> Event {
        Event::Seen { key: None, at }
    }

    fn held(reign: Reign) -> Event {
        Event::Seen { key: Some(reign), at: reign.revision }
    }

    fn node() -> Election {
        Election::new(LEASE, at(0))
    }

    #[test]
    fn the_last_node_forgets_the_job() {
        let word = |members: &[u64], left: &[u64], is_alone| last_word(Some(members), left, is_alone, true);
        assert_eq!(word(&[1, 2], &[1, 2], true), LastWord::Forget);
        assert_eq!(word(&[1, 2], &[2], true), LastWord::Expire, "node 1 may have been cut off");
        assert_eq!(word(&[1, 2], &[1, 2], false), LastWord::Stay);
        assert_eq!(last_word(None, &[1], true, false), LastWord::Forget, "nothing has ever run");
        assert_eq!(last_word(None, &[1], true, true), LastWord::Expire);
    }

    #[test]
    fn a_vacant_key_is_claimed_and_held() {
        let mut node = node();
        assert_eq!(node.step(Event::Look { launch: 1, lost: None }, at(0)), []);
        assert_eq!(node.step(vacant(1), at(10)), [Effect::Claim]);
        // One claim at a time.
        assert_eq!(node.step(Event::Tick, at(2000)), []);
        assert_eq!(node.step(Event::NotClaimed, at(2000)), [Effect::Resign, Effect::Claim]);
        let won = reign(1, 5);
        assert_eq!(node.step(Event::Claimed { reign: won, asked: at(2000) }, at(2500)), [Effect::Lead(won)]);
        // The watch shows what was before, and our own key.
        assert_eq!(node.step(vacant(4), at(2600)), []);
        assert_eq!(node.step(held(won), at(2600)), []);
        assert_eq!(node.deadline(), Some(at(8000)));
        assert_eq!(node.step(Event::Renewed { asked: at(5000) }, at(5100)), []);
        assert_eq!(node.step(Event::Tick, at(10_999)), []);
        assert_eq!(node.step(Event::Tick, at(11_000)), [Effect::Fence(Loss::Fenced)]);
        assert!(!node.is_leading());
    }

    #[test]
    fn a_coordinator_without_its_key_stops() {
        for event in [vacant(6), held(reign(2, 9)), Event::Expired] {
            let mut node = node();
            node.step(Event::Look { launch: 1, lost: None }, at(0));
            node.step(vacant(1), at(0));
            node.step(Event::Claimed { reign: reign(1, 5), asked: at(0) }, at(0));
            assert_eq!(node.step(event, at(1)), [Effect::Fence(Loss::Deposed)], "{event:?}");
        }
    }

    #[test]
    fn other_coordinators_are_followed() {
        let mut node = node();
        node.step(Event::Look { launch: 1, lost: None }, at(0));
        let first = reign(2, 5);
        assert_eq!(node.step(held(first), at(0)), [Effect::Follow(first)]);
        // The same one is tried again after a while, another one at once.
        assert_eq!(node.step(Event::Look { launch: 1, lost: Some(5) }, at(100)), []);
        assert_eq!(node.step(Event::Tick, at(1100)), [Effect::Follow(first)]);
        node.step(Event::Look { launch: 1, lost: Some(5) }, at(2000));
        assert_eq!(node.step(vacant(6), at(2100)), [Effect::Claim]);
        let second = reign(3, 8);
        node.step(Event::NotClaimed, at(2200));
        assert_eq!(node.step(held(second), at(2200)), [Effect::Follow(second)]);
    }

    #[test]
    fn the_key_of_a_dead_coordinator_is_freed_once_it_is_lost() {
        let first = reign(2, 5);
        let vanished = Event::Vanished { revision: 5 };
        let (look, lost) = (Event::Look { launch: 1, lost: None }, Event::Look { launch: 1, lost: Some(5) });
        let follower = || {
            let mut node = node();
            node.step(look, at(0));
            assert_eq!(node.step(held(first), at(0)), [Effect::Follow(first)]);
            node
        };
        // This node still has ranks.
        let mut node = follower();
        assert_eq!(node.step(vanished, at(2000)), []);
        assert_eq!(node.step(lost, at(2100)), [Effect::Evict(first)]);
        assert_eq!(node.step(Event::Tick, at(2200)), [], "once");
        assert_eq!(node.step(vacant(6), at(2300)), [Effect::Claim]);
        // It has lost it already, and follows it again.
        let mut node = follower();
        node.step(lost, at(100));
        assert_eq!(node.step(Event::Tick, at(1100)), [Effect::Follow(first)]);
        assert_eq!(node.step(vanished, at(2000)), [Effect::Evict(first)]);
        assert_eq!(node.step(vacant(6), at(2100)), [Effect::Vacated]);
        // It was back in between.
        let mut node = follower();
        node.step(lost, at(100));
        node.step(Event::Tick, at(1100));
        node.step(Event::Settled, at(1200));
        assert_eq!(node.step(vanished, at(5000)), []);
        assert_eq!(node.step(lost, at(5100)), [Effect::Evict(first)]);
        // Another one holds the key meanwhile.
        let mut node = follower();
        node.step(held(reign(3, 8)), at(100));
        assert_eq!(node.step(vanished, at(2000)), []);
        assert_eq!(node.step(lost, at(2100)), [Effect::Follow(reign(3, 8))]);
    }

    #[test]
    fn the_end_of_a_reign_is_told() {
        let mut node = node();
        node.step(Event::Look { launch: 1, lost: None }, at(0));
        assert_eq!(node.step(held(reign(2, 5)), at(0)), [Effect::Follow(reign(2, 5))]);
        assert_eq!(node.step(held(reign(2, 5)), at(1)), []);
        assert_eq!(node.step(vacant(9), at(2)), [Effect::Vacated]);
        assert_eq!(node.step(Event::Look { launch: 1, lost: Some(5) }, at(3)), [Effect::Claim]);
    }

    #[test]
    fn a_node_does_not_follow_itself() {
        let mut node = node();
        node.step(Event::Look { launch: 1, lost: None }, at(0));
        node.step(vacant(1), at(0));
        node.step(Event::Claimed { reign: reign(1, 5), asked: at(0) }, at(0));
        node.step(Event::Tick, at(6000));
        assert_eq!(node.step(Event::Look { launch: 1, lost: None }, at(6001)), [Effect::Resign], "its ranks are gone");
        assert_eq!((node.deadline(), node.step(Event::Tick, at(9000))), (None, vec![]));
        assert_eq!(node.step(vacant(7), at(9001)), [Effect::Claim]);
    }

    #[test]
    fn a_node_that_loses_its_own_coordinator_gives_the_key_back() {
        let mut node = node();
        node.step(Event::Look { launch: 1, lost: None }, at(0));
        node.step(vacant(1), at(0));
        node.step(Event::Claimed { reign: reign(1, 5), asked: at(0) }, at(0));
        // Asked before the front heard that it leads.
        assert_eq!(node.step(Event::Look { launch: 1, lost: Some(3) }, at(1)), []);
        assert!(node.is_leading());
        assert_eq!(node.step(Event::Look { launch: 1, lost: Some(5) }, at(2)), [Effect::Resign]);
        assert_eq!(node.step(vacant(6), at(1000)), [Effect::Claim]);
    }

    #[test]
    fn an_etcd_that_lost_its_data_is_believed() {
        let mut node = node();
        node.step(Event::Look { launch: 1, lost: None }, at(0));
        node.step(held(reign(2, 50)), at(0));
        node.resync(3);
        assert_eq!(node.step(vacant(3), at(1)), [Effect::Vacated]);
        assert_eq!(node.step(Event::Look { launch: 1, lost: Some(50) }, at(2)), [Effect::Claim]);
    }

    #[test]
    fn a_claim_whose_key_is_gone_already_is_none() {
        let mut node = node();
        node.step(Event::Look { launch: 1, lost: None }, at(0));
        assert_eq!(node.step(vacant(1), at(0)), [Effect::Claim]);
        node.step(vacant(9), at(1));
        assert_eq!(node.step(Event::Claimed { reign: reign(1, 5), asked: at(0) }, at(2))[0], Effect::Resign);
        assert!(!node.is_leading());
    }

    #[test]
    fn a_late_claim_is_given_back() {
        let mut node = node();
        node.step(Event::Look { launch: 1, lost: None }, at(0));
        assert_eq!(node.step(vacant(1), at(0)), [Effect::Claim]);
        let other = reign(2, 4);
        assert_eq!(node.step(held(other), at(5)), [Effect::Follow(other)]);
        let late = Event::Claimed { reign: reign(1, 5), asked: at(0) };
        assert_eq!(node.step(late, at(6)), [Effect::Vacated, Effect::Resign]);
    }
}
