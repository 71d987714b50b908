//! A seeded simulator of the job's state machine: thousands of runs on a virtual clock.
//!
//! A seed gives a [`Scenario`]: a job with its policies, and for every process what it will do and how
//! the news of it travels. The [`world`] performs what the machine orders and answers with events: in
//! any order, late, twice, or about attempts that never were. What was said is kept as a list of
//! [`Step`]s, and [`invariants`] judges that list without looking into the machine. The hidden truth
//! (who really died first, and of what) is known to the judge and to nobody else.
//!
//! ```no_run
//! let run = umiak_testkit::simulate::run(42);
//! assert!(run.violations().is_empty(), "{run}");
//! ```
//!
//! It does not run processes, and it does not simulate the supervisor's own crash.

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

/// The same with a driver that is broken in one way: proof that the judge sees it.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Run {
    world::run(Scenario::new(seed), Some(sabotage))
}
