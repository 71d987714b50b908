//! A seeded simulator of jobs with roles, and of supervisors that are lost on the way.
//!
//! A seed gives a [`Scenario`]: a job with several roles and all their policies, and for every attempt of every replica
//! what its process will do. The [`world`] performs what the machine orders, keeps the journal, and now and then loses
//! the supervisor: between two events, or between a record and what it announces. Another machine goes on with what the
//! journal says. Everything that lived is gone then, or runs on, in worlds whose engine keeps it. What was said is kept as a list of [`Step`]s, and [`judge`] looks
//! at nothing else, but for the truth about ports.
//!
//! The launch of one group, with its evidence and its causes, is [`crate::simulate`]'s.

mod campaign;
mod judge;
mod policy;
mod restarts;
mod scenario;
mod shadow;
mod stops;
mod timeline;
mod world;

pub use campaign::campaign;
pub use scenario::Scenario;
pub use timeline::{Rule, Run, Step, Violation, What};
pub use world::Sabotage;

/// One run, with all its supervisors, in the world of this seed.
pub fn run(seed: u64) -> Run {
    world::run(Scenario::new(seed), None)
}

/// The same with a driver that is broken in one way: proof that the judge sees it.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Run {
    world::run(Scenario::new(seed), Some(sabotage))
}
