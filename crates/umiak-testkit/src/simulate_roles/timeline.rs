//! What was said in a run, and how it is shown to whoever has to find out why it went wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use umiak_core::facts::{Began, Record};
use umiak_core::machine::job::{AttemptId, Effect, Event};
use umiak_core::model::Timestamp;

use super::judge;
use super::scenario::Scenario;

/// One thing that happened, and what the machine made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub at: Timestamp,
    pub what: What,
    /// Those that were performed.
    pub effects: Vec<Effect>,
    /// The supervisor was lost before it had performed all of them, or right after.
    pub lost: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A supervisor begins, and the engine still has these.
    Began(Began, BTreeSet<AttemptId>),
    Event(Event),
}

/// The rules, each with what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A fact stands before the effect it announces, and says the same.
    FactFirst,
    /// Numbers of attempts only grow; nobody is spawned twice with the same one.
    Numbers,
    /// Every attempt that was announced has exactly one end; the next supervisor closes as lost what is, and only that.
    OneEnd,
    /// An end is our doing exactly when it is by a signal that we had sent.
    OurDoing,
    /// Nobody starts before what it waits for; who waits for nothing is started at once; who waits in vain is told.
    Order,
    /// Never more restarts than the budget of their scope and blame, and no fewer.
    Budget,
    /// The back-off is as long as the policy says, and is waited for.
    Backoff,
    /// What has succeeded runs again only with all of its group, or when that was asked for.
    Rerun,
    /// Nothing is started after a stop or after the end.
    Spawn,
    /// Who lives is asked to end when the job stops, and nobody else.
    Terminate,
    /// SIGKILL after the grace of the role, or at once for the impatient; given up only after that.
    Kill,
    /// Nothing takes longer than it may, and only what does is stopped for that.
    Limits,
    /// The job is stopped exactly when its policies, the user or a lost guardian say so.
    Decision,
    /// The whole job starts again exactly when policy and circumstances allow it.
    Restart,
    /// Outcome and exit code.
    Code,
    /// The end comes once, when all is over, and it comes.
    Finish,
    /// An event that does not fit changes nothing.
    Stale,
    /// What the journal adds up to is what the machine has.
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
    /// What only the world could see.
    pub seen: Vec<Violation>,
    /// Nothing was left to happen, and the run had not ended, though no process lived.
    pub stalled: bool,
}

impl Run {
    /// Everything that is wrong with it.
    pub fn violations(&self) -> Vec<Violation> {
        let mut violations = self.seen.clone();
        violations.extend(judge::check(self));
        violations.sort_by_key(|violation| violation.step);
        violations
    }

    /// Panics with the whole timeline if something is wrong with it.
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
