//! Logs sent to the coordinator: the messages on a log connection, and which nodes are still awaited.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::limits::{Limits, REFUSED};
use crate::model::Timestamp;

/// The largest part of a log in one frame.
pub const CHUNK: usize = 64 << 10;

/// The first message on a connection that carries logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Launch id of the node.
    pub launch: u64,
    /// The ranks whose logs it sends: some of its own. File names are not sent; they follow from the rank.
    pub ranks: Vec<u32>,
}

/// From the node whose ranks write the logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromSender {
    /// The node has looked for the marker. If the directory is shared, nothing is sent and no message follows.
    Checked {
        shared: bool,
    },
    Beat,
    /// Its ranks have ended and everything is sent.
    End,
    /// A user on that node does not want to wait.
    GiveUp,
}

/// From the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToSender {
    /// How much has arrived already, and the marker to look for in the node's own log directory.
    Have {
        marker: String,
        ranks: Vec<Have>,
    },
    /// Logs are not gathered.
    NotWanted,
    Refused {
        why: String,
    },
    Beat,
    /// The file of this rank is full.
    Enough {
        rank: u32,
    },
    /// Everything is written.
    Complete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Have {
    pub rank: u32,
    pub bytes: u64,
}

/// Offset in a chunk of the first byte that is new; `None` if bytes before the chunk are missing.
pub fn fresh(have: u64, offset: u64, length: usize) -> Option<usize> {
    let known = have.checked_sub(offset)?;
    Some(usize::try_from(known).map_or(length, |known| known.min(length)))
}

/// A node of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub launch: u64,
    pub ranks: Range<u32>,
    /// True if it was started with `--gather-logs`.
    pub sends: bool,
}

/// Which nodes send, and their progress. Does no I/O.
#[derive(Debug)]
pub struct Ledger {
    limits: Limits,
    nodes: BTreeMap<u64, Node>,
    /// When the job ended.
    ending: Option<Timestamp>,
}

#[derive(Debug)]
struct Node {
    ranks: Range<u32>,
    link: Option<u64>,
    /// When it was last connected.
    seen: Timestamp,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Expected,
    Sending,
    /// Everything has arrived, or nothing had to be sent.
    Complete,
    Lost,
}

impl Ledger {
    pub fn new(limits: Limits) -> Self {
        Self { limits, nodes: BTreeMap::new(), ending: None }
    }

    /// Adds the members of the job. Later attempts have the same members.
    pub fn members(&mut self, members: Vec<Member>, now: Timestamp) {
        for Member { launch, ranks, .. } in members.into_iter().filter(|member| member.sends) {
            let fresh = Node { ranks: ranks.clone(), link: None, seen: now, state: State::Expected };
            self.nodes.entry(launch).or_insert(fresh).ranks = ranks;
        }
    }

    /// Registers a connection. Returns the one it replaces, or why it is refused.
    pub fn hello(&mut self, link: u64, hello: &Hello, now: Timestamp) -> Result<Option<u64>, String> {
        let node = self.nodes.get_mut(&hello.launch).ok_or("this node is not expected to send logs")?;
        if hello.ranks.iter().any(|rank| !node.ranks.contains(rank)) {
            return Err("the node sent logs of ranks that are not its own".to_owned());
        }
        if node.state == State::Lost {
            return Err("the coordinator had already given up waiting for this node".to_owned());
        }
        node.seen = now;
        Ok(node.link.replace(link))
    }

    fn by_link(&mut self, link: u64) -> Option<&mut Node> {
        self.nodes.values_mut().find(|node| node.link == Some(link))
    }

    pub fn checked(&mut self, link: u64, shared: bool) {
        if let Some(node) = self.by_link(link).filter(|node| node.state == State::Expected) {
            node.state = if shared { State::Complete } else { State::Sending };
        }
    }

    /// True if chunks of this rank are accepted on this connection.
    pub fn may_send(&mut self, link: u64, rank: u32) -> bool {
        self.by_link(link).is_some_and(|node| node.state == State::Sending && node.ranks.contains(&rank))
    }

    /// The ranks of the node on this connection, if it sends logs.
    pub fn ranks(&mut self, link: u64) -> Range<u32> {
        self.by_link(link).filter(|node| node.state == State::Sending).map_or(0..0, |node| node.ranks.clone())
    }

    /// Marks a node as complete. False if it neither sent nor was complete.
    #[must_use]
    pub fn complete(&mut self, link: u64) -> bool {
        match self.by_link(link) {
            Some(node) if matches!(node.state, State::Sending | State::Complete) => {
                node.state = State::Complete;
                true
            }
            _ => false,
        }
    }

    pub fn give_up(&mut self, link: u64) {
        if let Some(node) = self.by_link(link) {
            node.lose();
        }
    }

    /// The umiak process of that node is dead.
    pub fn gone(&mut self, launch: u64) {
        if let Some(node) = self.nodes.get_mut(&launch) {
            node.lose();
        }
    }

    pub fn closed(&mut self, link: u64, now: Timestamp) {
        if let Some(node) = self.by_link(link) {
            node.link = None;
            node.seen = now;
        }
    }

    /// The job is over: from now on nodes have limited time.
    pub fn finish(&mut self, now: Timestamp) {
        self.ending.get_or_insert(now);
    }

    /// Gives up nodes that did not reconnect in time.
    pub fn tick(&mut self, now: Timestamp) {
        let limits = self.limits;
        let Some(ending) = self.ending else { return };
        for node in self.nodes.values_mut().filter(|node| node.link.is_none()) {
            if node.until(&limits, ending) <= now {
                node.lose();
            }
        }
    }

    pub fn deadline(&self) -> Option<Timestamp> {
        let ending = self.ending?;
        let absent = self.nodes.values().filter(|node| node.link.is_none() && node.is_open());
        absent.map(|node| node.until(&self.limits, ending)).min()
    }

    /// True if the job is over and no node is awaited.
    pub fn is_over(&self) -> bool {
        self.ending.is_some() && !self.nodes.values().any(Node::is_open)
    }

    /// How many nodes are awaited.
    pub fn open(&self) -> usize {
        self.nodes.values().filter(|node| node.is_open()).count()
    }

    /// The ranks of nodes that were lost.
    pub fn lost(&self) -> Vec<u32> {
        let lost = self.nodes.values().filter(|node| node.state == State::Lost);
        let mut ranks: Vec<u32> = lost.flat_map(|node| node.ranks.clone()).collect();
        ranks.sort_unstable();
        ranks
    }
}

impl Node {
    fn is_open(&self) -> bool {
        matches!(self.state, State::Expected | State::Sending)
    }

    fn lose(&mut self) {
        if self.is_open() {
            self.state = State::Lost;
        }
    }

    /// A node that was away for long still gets a short time after the end: it reconnects at once if it can.
    fn until(&self, limits: &Limits, ending: Timestamp) -> Timestamp {
        let moment: Duration = REFUSED.min(limits.reconnect);
        (self.seen + limits.reconnect).max(ending + moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn hello(launch: u64, ranks: &[u32]) -> Hello {
        Hello { launch, ranks: ranks.to_vec() }
    }

    /// Three nodes of two ranks; the first is the coordinator's own.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(Limits::default());
        let member = |launch: u64, first: u32| Member { launch, ranks: first..first + 2, sends: launch != 1 };
        ledger.members(vec![member(1, 0), member(2, 2), member(3, 4)], at(0));
        ledger
    }

    #[test]
    fn only_nodes_of_the_job_and_only_with_their_own_ranks() {
        let mut ledger = ledger();
        assert!(ledger.hello(10, &hello(9, &[2]), at(1)).is_err());
        assert!(ledger.hello(10, &hello(1, &[0]), at(1)).is_err(), "the coordinator's own");
        assert!(ledger.hello(10, &hello(2, &[2, 4]), at(1)).is_err());
        assert_eq!(ledger.hello(10, &hello(2, &[2, 3]), at(1)), Ok(None));
        assert!(!ledger.may_send(10, 2), "the marker was not checked yet");
        ledger.checked(10, false);
        assert!(ledger.may_send(10, 2) && !ledger.may_send(10, 4) && !ledger.may_send(11, 2));
    }

    #[test]
    fn a_new_connection_replaces_the_old_one() {
        let mut ledger = ledger();
        assert_eq!(ledger.hello(10, &hello(2, &[2, 3]), at(1)), Ok(None));
        ledger.checked(10, false);
        assert_eq!(ledger.hello(11, &hello(2, &[2, 3]), at(2)), Ok(Some(10)));
        ledger.closed(10, at(3));
        assert!(ledger.may_send(11, 2), "closing the old connection has no effect");
        assert!(!ledger.complete(10));
    }

    #[test]
    fn it_is_over_when_all_are_complete_shared_or_lost() {
        let mut ledger = ledger();
        ledger.hello(10, &hello(2, &[2, 3]), at(1)).unwrap();
        ledger.checked(10, true);
        ledger.hello(11, &hello(3, &[4, 5]), at(1)).unwrap();
        assert!(!ledger.complete(11), "the marker was not checked yet");
        ledger.checked(11, false);
        assert!(!ledger.is_over());
        ledger.finish(at(2));
        assert_eq!((ledger.is_over(), ledger.open()), (false, 1));
        assert!(ledger.complete(11));
        assert!(ledger.is_over() && ledger.lost().is_empty());
    }

    #[test]
    fn who_does_not_come_back_is_not_waited_for_beyond_the_window() {
        let mut ledger = ledger();
        ledger.hello(10, &hello(2, &[2, 3]), at(1)).unwrap();
        ledger.checked(10, false);
        ledger.closed(10, at(100));
        ledger.tick(at(1000));
        assert_eq!(ledger.deadline(), None, "no limit while the job runs");
        ledger.finish(at(110));
        // The third node never connected, and the window since the start is long over.
        assert_eq!(ledger.deadline(), Some(at(112)));
        ledger.tick(at(112));
        assert_eq!(ledger.lost(), [4, 5]);
        assert_eq!(ledger.deadline(), Some(at(160)));
        ledger.tick(at(159));
        assert!(!ledger.is_over());
        ledger.tick(at(160));
        assert!(ledger.is_over());
        assert!(ledger.hello(12, &hello(2, &[2, 3]), at(161)).is_err());
    }

    #[test]
    fn the_dead_and_those_who_give_up_are_not_waited_for() {
        let mut ledger = ledger();
        ledger.hello(10, &hello(2, &[2, 3]), at(1)).unwrap();
        ledger.checked(10, false);
        ledger.finish(at(2));
        ledger.give_up(10);
        ledger.gone(3);
        assert!(ledger.is_over());
        assert_eq!(ledger.lost(), [2, 3, 4, 5]);
    }

    #[test]
    fn chunks_are_taken_once_and_none_is_left_out() {
        assert_eq!(fresh(0, 0, 10), Some(0));
        assert_eq!(fresh(4, 0, 10), Some(4));
        assert_eq!(fresh(10, 0, 10), Some(10));
        assert_eq!(fresh(u64::MAX, 0, 10), Some(10));
        assert_eq!(fresh(3, 4, 10), None);
    }
}
