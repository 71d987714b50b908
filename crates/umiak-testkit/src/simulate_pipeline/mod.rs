//! A seeded simulator of pipelines whose supervisors are lost.
//!
//! A seed produces a [`Scenario`]: a pipeline with nested DAGs and loops, and for every instance what becomes of it. The
//! [`world`] performs the machine's effects, keeps the journal, and sometimes loses the supervisor: between two events,
//! or between two effects of one. Another machine then continues from the journal. A run that has not succeeded may be
//! repeated by another one. The result is a list of [`Moment`]s, in which instances have their names, and [`judge`]
//! checks that list against the pipeline.
//!
//! The jobs of steps are no more than their first and last fact here: [`crate::simulate_roles`] covers them.

mod campaign;
mod coverage;
mod judge;
mod scenario;
mod timeline;
mod world;

pub use campaign::campaign;
pub use coverage::{Pair, pairs};
pub use scenario::Scenario;
pub use timeline::{Done, Moment, Rule, Run, Violation, What};
pub use world::Sabotage;

/// One run, with all its supervisors and the runs that repeat it, in the world of this seed.
pub fn run(seed: u64) -> Run {
    world::run(Scenario::new(seed), None)
}

/// The same with a driver that is broken in one way: proves that the judge detects it.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Run {
    world::run(Scenario::new(seed), Some(sabotage))
}
