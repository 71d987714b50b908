//! What really happened, in its order, for the judge to replay.

use umiak_core::facts::Outcome;
use umiak_core::machine::round::messages::{Decision, Start};

use super::scenario::Fault;

/// One thing that happened. Launches of umiak are numbered as in the scenario.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    Came {
        front: usize,
    },
    /// The job has ended there, and it begins to leave.
    Leaves {
        front: usize,
    },
    Left {
        front: usize,
        outcome: Outcome,
    },
    Died {
        front: usize,
    },
    Fault(Fault),
    /// It is the coordinator, by this revision of its key. `restarts`: how many it knows of, from the
    /// last start that it has heard of.
    Leads {
        front: usize,
        revision: u64,
        restarts: u32,
    },
    /// Its round is over, handed over or fenced: it starts no ranks any more.
    Reigned {
        front: usize,
    },
    /// The coordinator starts an attempt on these launches of umiak.
    Started {
        front: usize,
        start: Box<Start>,
        members: Vec<usize>,
    },
    /// The coordinator decides, for all or for one node.
    Decided {
        front: usize,
        decision: Box<Decision>,
    },
    /// The ranks of a node start, are ordered to stop, and have all ended.
    Spawned {
        front: usize,
        attempt: u32,
    },
    Stopping {
        front: usize,
        attempt: u32,
    },
    Ended {
        front: usize,
        attempt: u32,
    },
    /// A rank failed by itself.
    Failed {
        front: usize,
        attempt: u32,
    },
}
