//! A seeded simulator of whole rounds: the coordinator, agents, and each node's own job, on a virtual clock.
//!
//! A seed gives a [`Scenario`]: nodes with their ranks and what those will do, and what happens to nodes and
//! connections. The [`world`] couples the real machines, performs what they order, and keeps what the nodes have heard
//! and how they ended in a [`Run`]; [`judge`] compares that with the truth, which no machine is told.
//!
//! Connections are TCP's: nothing is reordered or comes twice on one of them, and what is in flight when one breaks is
//! gone. A partition holds messages back until it is over. A paused node hears nothing, and then everything at once.

mod campaign;
mod judge;
mod network;
mod node;
mod scenario;
mod servers;
mod world;

pub use campaign::campaign;
pub use judge::{Rule, Violation};
pub use scenario::{Fault, Kind, NodeScript, RankScript, Scenario};
pub use servers::ServerScript;
pub use world::{NodeRun, Run, Sabotage};

/// One round in the world of this seed.
pub fn run(seed: u64) -> Run {
    world::run(Scenario::new(seed), None)
}

/// The same with a driver that is broken in one way: proof that the judge sees it.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Run {
    world::run(Scenario::new(seed), Some(sabotage))
}
