//! A seeded simulator of jobs over etcd, whose coordinator is elected: nodes, their clocks, the network between them, and
//! etcd, on a virtual clock.
//!
//! A seed produces a [`Scenario`]: nodes that come and go, partitions between them, and times without etcd. The [`world`]
//! couples the real machines (election, coordinator, agent and job of each node) as `umiak launch` does, and keeps a
//! journal. [`judge`] replays it: at most one coordinator, one side that trains, and a job that goes on when it can.
//!
//! Each node has a clock of its own, which differs in rate. Messages are not reordered on one connection; a partition, also
//! of one direction, holds them back. A request to etcd may be performed although its answer is lost.
//!
//! It does not simulate suspended processes, and rounds in which the coordinator is fixed: `simulate_round` does.

mod campaign;
mod candidate;
mod etcd;
mod front;
mod journal;
mod judge;
mod network;
mod ranks;
mod scenario;
mod world;

pub use campaign::campaign;
pub use journal::Entry;
pub use judge::{Rule, Violation};
pub use scenario::{Fault, FrontScript, Scenario};
pub use world::{Run, Sabotage};

/// One job in the world of this seed.
pub fn run(seed: u64) -> Run {
    world::run(Scenario::new(seed), None)
}

/// The same with a driver that is broken in one way: proves that the judge detects it.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Run {
    world::run(Scenario::new(seed), Some(sabotage))
}
