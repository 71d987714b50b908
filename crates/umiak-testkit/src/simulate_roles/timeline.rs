//! The timeline of a run, and how it is displayed for debugging.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use umiak_core::facts::{Began, Record};
use umiak_core::machine::job::{AttemptId, Effect, Event};
use umiak_core::model::Timestamp;

use super::judge;
use super::scenario::Scenario;

/// One event and its effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub at: Timestamp,
    pub what: What,
    /// The effects that were performed.
    pub effects: Vec<Effect>,
    /// The supervisor was lost before it had performed all effects, or right after.
    pub lost: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A supervisor starts; the engine still has these attempts.
    Began(Began, BTreeSet<AttemptId>),
    Event(Event),
}

/// The rules, each with what it requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A fact precedes the effect it announces, and matches it.
    FactFirst,
    /// Attempt numbers only grow; none is spawned twice.
    Numbers,
    /// Every announced attempt has exactly one end; the next supervisor closes lost ones, and only those.
    OneEnd,
    /// An end counts as ours exactly when a signal that we had sent caused it.
    OurDoing,
    /// No replica starts before its condition is met; one without a condition starts at once; one whose condition
    /// cannot be met is reported.
    Order,
    /// Exactly as many restarts as the budget of their scope and blame allows.
    Budget,
    /// The back-off has the length in the policy, and is waited for.
    Backoff,
    /// A succeeded replica runs again only with its whole group, or on request.
    Rerun,
    /// Nothing is started after a stop or after the end.
    Spawn,
    /// When the job stops, exactly the live replicas are told to end.
    Terminate,
    /// SIGKILL after the grace period of the role, or at once on a kill request; abandoned only after that.
    Kill,
    /// No attempt exceeds its limit, and only those that would are stopped for it.
    Limits,
    /// The job is stopped exactly when its policies, the user or a lost guardian require it.
    Decision,
    /// The whole job starts again exactly when policy and circumstances allow it.
    Restart,
    /// Outcome and exit code.
    Code,
    /// The end comes exactly once, when all is over.
    Finish,
    /// An event that does not fit changes nothing.
    Stale,
    /// The replayed journal matches the machine.
    Replay,
}

/// A rule that was broken, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub step: usize,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at step {}: {}", self.rule, self.step, self.message)
    }
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Run {
    pub scenario: Scenario,
    pub steps: Vec<Step>,
    pub journal: Vec<Record>,
    /// When the ports of each attempt really answered.
    pub answered: BTreeMap<AttemptId, Timestamp>,
    /// Violations that only the world could detect.
    pub seen: Vec<Violation>,
    /// True if no event was left and no process lived, but the run had not ended.
    pub stalled: bool,
}

impl Run {
    /// Everything that is wrong with the run.
    pub fn violations(&self) -> Vec<Violation> {
        let mut violations = self.seen.clone();
        violations.extend(judge::check(self));
        violations.sort_by_key(|violation| violation.step);
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
        let Scenario { seed, job, style, .. } = &self.scenario;
        writeln!(f, "seed {seed}: {:?}, {style:?}", job.policy)?;
        for role in &job.roles {
            writeln!(f, "  {} × {}: {:?}, {:?}", role.name, role.replicas, role.completion, role.restart)?;
            let ports = role.work.ports.len();
            writeln!(
                f,
                "    {ports} ports, after {:?}, {:?}, grace {:?}",
                role.start_after, role.timeouts, role.grace
            )?;
        }
        for (index, step) in self.steps.iter().enumerate() {
            let micros = step.at.as_micros();
            writeln!(f, "{index:>4} {:>8}.{:03} ms {:?}", micros / 1000, micros % 1000, step.what)?;
            for effect in &step.effects {
                writeln!(f, "                       └ {effect:?}")?;
            }
            if step.lost {
                writeln!(f, "                       ✗ the supervisor is lost")?;
            }
        }
        Ok(())
    }
}
