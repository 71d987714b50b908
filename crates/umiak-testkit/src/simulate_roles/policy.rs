//! A second, independent implementation of the policies.

use std::time::Duration;

use umiak_core::model::{Blame, Completion, Exit, MinSucceeded, Restart, SpawnStage, Success, Timestamp};

/// The outcome of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    Good,
    Bad,
    /// Ended, without a meaning for the job.
    Over,
}

/// How many replicas of a role have ended well, badly, or otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub(super) replicas: usize,
    pub(super) good: usize,
    pub(super) bad: usize,
    pub(super) other: usize,
}

pub(super) fn fate(completion: &Completion, success: Success, ends: Ends) -> Fate {
    let Ends { replicas, good, bad, other } = ends;
    let enough_bad = match completion.min_failed {
        0 => usize::MAX,
        number => number as usize,
    };
    let enough_good = match completion.min_succeeded {
        MinSucceeded::All => replicas,
        MinSucceeded::Count(number) => replicas.min(number as usize),
        MinSucceeded::Never => usize::MAX,
    };
    let nobody_left = good + bad + other == replicas;
    match () {
        () if bad >= enough_bad => Fate::Bad,
        () if good >= enough_good => Fate::Good,
        () if nobody_left && success != Success::All => Fate::Over,
        () if nobody_left && completion.min_failed == 0 => Fate::Good,
        () if nobody_left && completion.min_succeeded == MinSucceeded::Never => Fate::Good,
        () if nobody_left => Fate::Bad,
        () => Fate::Open,
    }
}

pub(super) fn blame(exit: &Exit) -> Blame {
    match exit {
        Exit::Evicted { .. } | Exit::Preempted { .. } | Exit::NodeLost { .. } | Exit::Lost => Blame::Platform,
        Exit::Spawn(error) if error.doing == SpawnStage::Fork => Blame::Platform,
        _ => Blame::User,
    }
}

/// True if another try would fail in the same way.
pub(super) fn is_vain(exit: &Exit) -> bool {
    match exit {
        Exit::Spawn(error) => error.doing != SpawnStage::Fork,
        other => matches!(other, Exit::Unmet { .. }),
    }
}

/// The shortest and the longest possible back-off; `None` if no restart is left.
pub(super) fn backoff(rule: &Restart, blame: Blame, past: &[Timestamp], at: Timestamp) -> Option<(Duration, Duration)> {
    let recent = |then: &&Timestamp| rule.window.is_none_or(|window| at.since(**then) < window);
    let spent = past.iter().filter(recent).count() as u32;
    let budget = if blame == Blame::User { rule.max } else { rule.max_platform };
    let longest = rule.backoff.saturating_mul(2u32.saturating_pow(spent)).min(rule.max_backoff);
    (spent < budget).then_some((longest * 3 / 4, longest))
}

/// The exit code in a shell.
pub(super) fn number(exit: &Exit) -> u8 {
    match exit {
        Exit::Code { code } => (code & 255) as u8,
        Exit::Signal { signal, .. } => 128 + *signal as u8,
        Exit::Spawn(error) if error.doing == SpawnStage::Execute => 127,
        Exit::Spawn(_) | Exit::Unmet { .. } | Exit::Lost => 125,
        Exit::Evicted { .. } | Exit::Preempted { .. } | Exit::NodeLost { .. } => 123,
    }
}
