//! A seeded simulator of jobs with roles whose supervisors are lost.
//!
//! A seed produces a [`Scenario`]: a job with several roles and all their policies, and for every attempt of every
//! replica what its process will do. The [`world`] performs the machine's effects, keeps the journal, and sometimes
//! loses the supervisor: between two events, or between a record and its effect. Another machine then continues from
//! the journal. Live processes are gone by then or, if the engine keeps them, still run. The result is a list of
//! [`Step`]s, and [`judge`] checks only that list and the truth about ports.
//!
//! [`crate::simulate`] covers the launch of one group, with its evidence and causes.

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

/// The same with a driver that is broken in one way: proves that the judge detects it.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Run {
    world::run(Scenario::new(seed), Some(sabotage))
}
