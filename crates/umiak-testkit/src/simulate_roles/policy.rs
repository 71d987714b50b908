//! A second, independent implementation of the policies.

use std::time::Duration;

use umiak_core::model::{
    Blame, Classed, Completion, Exit, ExitClass, Exits, MinSucceeded, Restart, SpawnStage, Success, Timestamp,
};

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

/// What a table of exits says here.
pub(super) fn classed(exits: Option<Exits>, exit: &Exit) -> Option<Classed> {
    let class = match exit {
        _ if exits.is_none() => return None,
        Exit::Code { code: 0 } => return None,
        Exit::Code { code: 42 } | Exit::Signal { signal: 9, .. } => ExitClass::Transient,
        Exit::Code { code: 2 | 255 } => ExitClass::Conflict,
        Exit::Spawn(error) if error.doing == SpawnStage::Fork => ExitClass::Transient,
        Exit::Spawn(error) if error.doing == SpawnStage::ChangeDirectory => ExitClass::Unknown,
        Exit::Code { code: 7 } | Exit::Signal { signal: 11, .. } | Exit::Spawn(_) => ExitClass::Permanent,
        _ => ExitClass::Unknown,
    };
    Some(Classed { code: 255, name: String::new(), class })
}

/// The class of a bad end. What we stopped, for a time limit or for others, is not in the table.
pub(super) fn class(exits: Option<Exits>, exit: &Exit, is_ours: bool) -> ExitClass {
    match exit {
        // The machine itself reports these two.
        Exit::Lost => ExitClass::Transient,
        Exit::Unmet { .. } => ExitClass::Unknown,
        exit => match classed(exits, exit).filter(|_| !is_ours) {
            Some(classed) => classed.class,
            None => match exit {
                Exit::Evicted { .. } | Exit::Preempted { .. } | Exit::NodeLost { .. } => ExitClass::Transient,
                Exit::Spawn(error) if error.doing == SpawnStage::Fork => ExitClass::Transient,
                Exit::Spawn(_) => ExitClass::Permanent,
                _ => ExitClass::Unknown,
            },
        },
    }
}

/// The shortest and the longest possible back-off; `None` if no restart is left.
pub(super) fn backoff(
    rule: &Restart,
    class: ExitClass,
    past: &[Timestamp],
    at: Timestamp,
) -> Option<(Duration, Duration)> {
    let is_users = class.blame() == Blame::User;
    let recent = |then: &&Timestamp| rule.window.is_none_or(|window| at.since(**then) < window);
    let spent = past.iter().filter(recent).count() as u32;
    let budget = if is_users { rule.max } else { rule.max_platform };
    let first = if is_users { rule.backoff } else { rule.platform_backoff.unwrap_or(rule.backoff) };
    let longest = first.saturating_mul(2u32.saturating_pow(spent)).min(rule.max_backoff);
    match class {
        _ if spent >= budget => None,
        ExitClass::Permanent => None,
        ExitClass::Conflict => Some((Duration::from_secs(60), Duration::from_secs(900))),
        ExitClass::Unknown | ExitClass::Transient => Some((longest * 3 / 4, longest)),
    }
}

/// The exit code in a shell.
pub(super) fn number(exit: &Exit) -> u8 {
    match exit {
        Exit::Code { code } => (code & 255) as u8,
        Exit::Signal { signal, .. } => 128 + *signal as u8,
        Exit::Spawn(error) if error.doing == SpawnStage::Execute => 127,
        Exit::Spawn(_) | Exit::Unmet { .. } | Exit::Lost => 125,
        Exit::Evicted { .. }
        | Exit::Preempted { .. }
        | Exit::NodeLost { .. }
        | Exit::NoRoom { .. }
        | Exit::TimeLimit { .. } => 123,
    }
}
