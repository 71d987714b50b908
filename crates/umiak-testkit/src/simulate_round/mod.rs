//! A seeded simulator of whole rounds: the coordinator, agents, and each node's own job, on a virtual clock.
//!
//! A seed produces a [`Scenario`]: nodes with their ranks and what those will do, and faults of nodes and connections.
//! The [`world`] couples the real machines, performs their effects, and records in a [`Run`] what the nodes received
//! and how they ended. [`judge`] compares that with the truth, which no machine has.
//!
//! Connections behave like TCP: nothing is reordered or duplicated on one of them, and data in flight is lost when it
//! breaks. A partition delays messages until it is over. A paused node receives nothing, and then everything at once.
//!
//! [`elastic`] jobs have a range of nodes, which come and go: such a world also keeps a journal, which the judge replays.

mod campaign;
mod elastic;
mod guest;
mod journal;
mod judge;
mod network;
mod node;
mod scenario;
mod servers;
mod world;

pub use campaign::{campaign, elastic_campaign};
pub use journal::Entry;
pub use judge::{Rule, Violation};
pub use scenario::{Fault, Kind, NodeScript, RankScript, Scenario, Way};
pub use servers::ServerScript;
pub use world::{NodeRun, Run, Sabotage};

/// One round in the world of this seed.
pub fn run(seed: u64) -> Run {
    world::run(Scenario::new(seed), None)
}

/// The same with a driver that is broken in one way: proves that the judge detects it.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Run {
    world::run(Scenario::new(seed), Some(sabotage))
}

/// The rounds of one elastic job, whose nodes come and go, in the world of this seed.
pub fn run_elastic(seed: u64) -> Run {
    world::run(Scenario::elastic(seed), None)
}

/// The same with a driver that is broken in one way.
pub fn run_elastic_sabotaged(seed: u64, sabotage: Sabotage) -> Run {
    world::run(Scenario::elastic(seed), Some(sabotage))
}
