//! A seeded simulator of the job's state machine: thousands of runs on a virtual clock.
//!
//! A seed produces a [`Scenario`]: a job with its policies, and for every process what it will do and how its
//! notifications travel. The [`world`] performs the machine's effects and answers with events: in any order, late,
//! twice, or about attempts that never existed. The result is a list of [`Step`]s, and [`invariants`] checks that list
//! without looking into the machine. Only the judge has the hidden truth: which process really died first, and why.
//!
//! ```no_run
//! let run = umiak_testkit::simulate::run(42);
//! assert!(run.violations().is_empty(), "{run}");
//! ```
//!
//! It does not run processes, and it does not simulate a crash of the supervisor.

mod campaign;
mod coverage;
pub mod invariants;
mod judge;
mod pause;
mod scenario;
mod timeline;
mod truth;
mod world;

pub use campaign::campaign;
pub use coverage::{Pair, pairs};
pub use invariants::{Rule, Violation};
pub(crate) use judge::after_interrupt;
pub use scenario::{Scenario, Script, Words};
pub use timeline::{Death, Run, Step, Why};
pub use world::Sabotage;

/// One run of the machine in the world of this seed.
pub fn run(seed: u64) -> Run {
    world::run(Scenario::new(seed), None)
}

/// The same with a driver that is broken in one way: proves that the judge detects it.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Run {
    world::run(Scenario::new(seed), Some(sabotage))
}
