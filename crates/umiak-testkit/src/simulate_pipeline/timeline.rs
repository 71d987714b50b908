//! The timeline of a run, and how it is displayed for debugging.

use std::fmt;

use umiak_core::facts::{Began, Fact, Outcome, Record};
use umiak_core::machine::pipeline::Resolution;
use umiak_core::model::Body;

use super::judge;
use super::scenario::Scenario;

/// One event and what was done for it. Instances have their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// In microseconds.
    pub at: u64,
    pub what: What,
    /// What was done, in this order.
    pub done: Vec<Done>,
    /// The supervisor was lost before it had done everything, or right after.
    pub lost: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A supervisor starts: `Submitted` for a new run, `Retried` for one that repeats the run before.
    Began(Began),
    Resolved(String, Resolution),
    Ended(String, Outcome),
    Closed(String, bool),
    StopAsked {
        force: bool,
    },
    /// An event that does not fit.
    Stray,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "most of them are facts")]
pub enum Done {
    /// About an instance, or about the run.
    Fact(Option<String>, Fact),
    Resolve(String),
    Run {
        name: String,
        stopping: bool,
    },
    Close(String),
    Stop {
        names: Vec<String>,
        force: bool,
    },
    Finish(Outcome),
}

/// The rules, each with what it requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Never more steps than `parallelism`.
    Slots,
    /// A node is resolved when its siblings have ended well, in the order of readiness, and once.
    Begin,
    /// A step runs once it is resolved; a supervisor runs again those that its predecessor ran.
    Run,
    /// Nothing waits without a reason.
    Idle,
    /// Every node ends exactly once.
    OneEnd,
    /// A node ends as its parts, its answer or its job say.
    End,
    /// Exactly what depends on a failure is cancelled, and what has not started at a stop.
    Cancel,
    /// Nothing but the post step starts after a stop, and everything that runs is asked to stop once.
    Stop,
    /// The post step runs once, after everything else.
    Post,
    /// The outcome of the run, once, when nothing runs.
    Finish,
    /// An event that does not fit changes nothing.
    Stale,
    /// A repeated run keeps exactly the good ends.
    Kept,
    /// The replayed journal matches the machine.
    Replay,
}

/// A rule that was broken, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub moment: usize,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at moment {}: {}", self.rule, self.moment, self.message)
    }
}

/// A run, and those that repeat it.
#[derive(Debug, Clone)]
pub struct Run {
    pub scenario: Scenario,
    pub moments: Vec<Moment>,
    /// The journal of each run.
    pub journals: Vec<Vec<Record>>,
    /// Violations that only the world could detect.
    pub seen: Vec<Violation>,
    /// True if no event was left, but the run had not ended.
    pub stalled: bool,
}

impl Run {
    /// Everything that is wrong with the run.
    pub fn violations(&self) -> Vec<Violation> {
        let mut violations = self.seen.clone();
        violations.extend(judge::check(self));
        violations.sort_by_key(|violation| violation.moment);
        violations
    }

    /// Panics with the whole timeline if anything is wrong.
    pub fn assert_valid(&self) {
        let violations = self.violations();
        let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "{self}\n{}\nreplay with UMIAK_SEED={}", list.join("\n"), self.scenario.seed);
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { seed, pipeline, .. } = &self.scenario;
        writeln!(f, "seed {seed}: {:?}, parallelism {}", pipeline.on_failure, pipeline.parallelism)?;
        for (id, node) in pipeline.iter().skip(1) {
            let deps: Vec<&str> = node.deps.iter().map(|dep| pipeline.node(*dep).name.as_str()).collect();
            let kind = match (&node.body, &node.items) {
                (Body::Dag { .. }, None) => "DAG",
                (Body::Dag { .. }, Some(_)) => "loop of DAGs",
                (Body::Step(_), None) => "step",
                (Body::Step(_), Some(_)) => "loop of steps",
            };
            let outputs = if node.outputs.is_empty() { "" } else { ", with outputs" };
            writeln!(f, "  {}: {kind} after {deps:?}{outputs}", pipeline.path(id))?;
        }
        for (index, moment) in self.moments.iter().enumerate() {
            writeln!(f, "{index:>4} {:>8}.{:03} ms {:?}", moment.at / 1000, moment.at % 1000, moment.what)?;
            for done in &moment.done {
                writeln!(f, "                       └ {done:?}")?;
            }
            if moment.lost {
                writeln!(f, "                       ✗ the supervisor is lost")?;
            }
        }
        Ok(())
    }
}
