//! Rules that hold in every run, checked only against the timeline and the hidden truth.

use std::fmt;

use super::judge::Judge;
use super::timeline::Run;

/// The rules, each with what it requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A fact precedes the effect it announces, and matches it.
    FactFirst,
    /// Every start has exactly one end; nothing ends that was not started.
    OneEnd,
    /// Time goes forward; exits are numbered in the order of their notices, without gaps; subjects
    /// name rank and attempt.
    Numbering,
    /// An end counts as ours exactly when a signal that we had sent caused it.
    OurDoing,
    /// The job is stopped exactly when its policies, the user or a lost guardian require it.
    Decision,
    /// One SIGTERM per attempt, to all live ones, in the step that decides.
    Terminate,
    /// SIGKILL after the grace period or at the second signal, to all live ones; abandoned only after that.
    Kill,
    /// A timer is armed at most once, for the time in the policy.
    Timers,
    /// Nothing is started too early, after a stop, or after the guardian is gone.
    Spawn,
    /// An event that does not fit is recorded as ignored and changes nothing; others are not ignored.
    Stale,
    /// The settle window closes in time, with the right candidates; one report for a failure, none otherwise.
    Report,
    /// Every rank that ended badly by itself is named, and no rank that we stopped.
    Causes,
    /// The true first cause is named if its notification came in time and its evidence is clear.
    Truth,
    /// The exit code and the outcome.
    Code,
    /// A failed group restarts exactly when policy and circumstances allow it: after its back-off, prepared, as a
    /// whole, as the next attempt.
    Restart,
    /// The end comes once, when all is over, and as soon as it can.
    Finish,
    /// Stopping ends in bounded time.
    Bounded,
}

/// A rule that was broken, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// Index into the steps; their count if it concerns the whole run.
    pub step: usize,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at step {}: {}", self.rule, self.step, self.message)
    }
}

/// Everything that is wrong with a run.
pub fn check(run: &Run) -> Vec<Violation> {
    Judge::new(run).judge()
}

/// All rules, so that a test can show that each can be broken.
pub const RULES: &[Rule] = &[
    Rule::FactFirst,
    Rule::OneEnd,
    Rule::Numbering,
    Rule::OurDoing,
    Rule::Decision,
    Rule::Terminate,
    Rule::Kill,
    Rule::Timers,
    Rule::Spawn,
    Rule::Stale,
    Rule::Report,
    Rule::Causes,
    Rule::Truth,
    Rule::Code,
    Rule::Restart,
    Rule::Finish,
    Rule::Bounded,
];
