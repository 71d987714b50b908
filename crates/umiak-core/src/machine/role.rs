//! The outcome of a role, from its completion policy and its counts.

use crate::model::{Completion, MinSucceeded, Success};

/// How many replicas of a role are in which state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub replicas: u32,
    pub succeeded: u32,
    /// Ended badly for a reason other than our stop, or could not be stopped.
    pub failed: u32,
    /// Over in any way, including by our stop.
    pub over: u32,
}

/// What the counts mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Running,
    Succeeded,
    Failed,
    /// All replicas have ended, which decides nothing: the role that succeeds first does.
    Over,
}

/// Failure is checked first: a role with both enough failures and enough successes has failed.
pub fn outcome(completion: &Completion, success: Success, counts: &Counts) -> Outcome {
    let needed = match completion.min_succeeded {
        MinSucceeded::All => Some(counts.replicas),
        MinSucceeded::Count(count) => Some(count.min(counts.replicas)),
        MinSucceeded::Never => None,
    };
    if completion.min_failed > 0 && counts.failed >= completion.min_failed {
        Outcome::Failed
    } else if needed.is_some_and(|needed| counts.succeeded >= needed) {
        Outcome::Succeeded
    } else if counts.over < counts.replicas {
        Outcome::Running
    } else if success != Success::All {
        Outcome::Over
    } else if completion.min_failed == 0 || needed.is_none() {
        // A role that failures cannot fail, or successes not complete, has completed.
        Outcome::Succeeded
    } else {
        // All have ended without reaching success.
        Outcome::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_table() {
        let all = Completion::default();
        let one = Completion { min_succeeded: MinSucceeded::Count(1), ..all };
        let tolerant = Completion { min_failed: 2, ..all };
        let never = Completion { min_failed: 0, ..all };
        let endless = Completion { min_succeeded: MinSucceeded::Never, ..tolerant };
        let counts = |succeeded, failed, over| Counts { replicas: 4, succeeded, failed, over };
        for (policy, counts, expected) in [
            (all, counts(0, 0, 0), Outcome::Running),
            (all, counts(3, 0, 3), Outcome::Running),
            (all, counts(4, 0, 4), Outcome::Succeeded),
            (all, counts(3, 1, 4), Outcome::Failed),
            (all, counts(0, 1, 1), Outcome::Failed),
            (all, counts(0, 0, 4), Outcome::Failed),
            (one, counts(1, 0, 1), Outcome::Succeeded),
            (one, counts(1, 1, 2), Outcome::Failed),
            (tolerant, counts(0, 1, 1), Outcome::Running),
            (tolerant, counts(3, 1, 4), Outcome::Failed),
            (tolerant, counts(0, 2, 2), Outcome::Failed),
            (never, counts(0, 3, 3), Outcome::Running),
            (never, counts(0, 4, 4), Outcome::Succeeded),
            (endless, counts(3, 0, 3), Outcome::Running),
            (endless, counts(3, 1, 4), Outcome::Succeeded),
            (endless, counts(2, 2, 4), Outcome::Failed),
        ] {
            assert_eq!(outcome(&policy, Success::All, &counts), expected, "{policy:?} {counts:?}");
            let ends = counts.over == 4 && counts.succeeded < 4;
            let is_reached = expected == Outcome::Failed && counts.failed >= policy.min_failed.max(1);
            let expected = if ends && !is_reached { Outcome::Over } else { expected };
            assert_eq!(outcome(&policy, Success::First, &counts), expected, "first: {policy:?} {counts:?}");
        }
    }
}
