//! What must hold in every run, judged from what was said and from the hidden truth alone.

use std::fmt;

use super::judge::Judge;
use super::timeline::Run;

/// The rules, each with what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A fact stands before the effect it announces, and says the same.
    FactFirst,
    /// Every start has exactly one end; nothing ends that was not started.
    OneEnd,
    /// Time goes forward; exits are numbered in the order of their notices, without gaps; subjects
    /// name rank and attempt.
    Numbering,
    /// An end is our doing exactly when it is by a signal that we had sent.
    OurDoing,
    /// The job is stopped exactly when its policies, the user or a lost guardian say so.
    Decision,
    /// One SIGTERM for each attempt, to all that live, in the step that decides.
    Terminate,
    /// SIGKILL after the grace or at the second signal, to all that live; given up only after that.
    Kill,
    /// A timer is armed at most once, for the time that the policy says.
    Timers,
    /// Nothing is started before its time, after a stop, or when the guardian is gone.
    Spawn,
    /// An event that does not fit is recorded as ignored and changes nothing; others are not ignored.
    Stale,
    /// The settle window closes in time, with the right candidates; one report for a failure, none else.
    Report,
    /// Who is named: everybody who ended badly by itself, and nobody whom we ended.
    Causes,
    /// The true first cause is named when its notice came in time and its evidence is of its own kind.
    Truth,
    /// The exit code and the outcome.
    Code,
    /// The end comes once, when all is over, and as soon as it can.
    Finish,
    /// Stopping ends in bounded time.
    Bounded,
}

/// A rule that was broken, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// Index into the steps; their number where the whole run is meant.
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

/// All of them, so that a test can show that each can be broken.
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
    Rule::Finish,
    Rule::Bounded,
];
