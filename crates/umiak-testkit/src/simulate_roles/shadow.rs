//! The judge's state of each replica and each role, from facts alone.

use umiak_core::facts::Limit;
use umiak_core::model::{Blame, Exit, ExitClass, StopHow, Timestamp};

/// The state of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// It may be started or restarted.
    #[default]
    Idle,
    /// Announced; the process may exist.
    Announced,
    Running {
        since: Timestamp,
    },
    Ended(End),
    /// Abandoned.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) exit: Exit,
    pub(super) class: ExitClass,
    pub(super) by_us: bool,
    pub(super) timed_out: bool,
    pub(super) at: Timestamp,
}

impl End {
    pub(super) fn is_good(&self) -> bool {
        self.exit == Exit::Code { code: 0 } && !self.timed_out && !self.by_us
    }

    pub(super) fn is_bad(&self) -> bool {
        self.timed_out || (self.exit != Exit::Code { code: 0 } && !self.by_us)
    }
}

/// One replica.
#[derive(Debug, Clone, Default)]
pub(super) struct Shadow {
    /// The last announced number.
    pub(super) number: Option<u32>,
    pub(super) stage: Stage,
    pub(super) spawned: bool,
    pub(super) ready: bool,
    /// When it first received SIGINT or SIGTERM.
    pub(super) asked: Option<Timestamp>,
    /// Its first signal was SIGINT.
    pub(super) interrupted: bool,
    /// It received SIGTERM or SIGKILL.
    pub(super) terminated: bool,
    pub(super) killed: Option<Timestamp>,
    pub(super) timed_out: Option<Limit>,
    /// In a back-off until this time.
    pub(super) waits: Option<Timestamp>,
    /// When it was restarted alone.
    pub(super) past: Vec<(Blame, Timestamp)>,
    /// The number announced for its next attempt.
    pub(super) promised: Option<u32>,
    /// It was live under a lost supervisor, and the engine no longer has it.
    pub(super) lost: bool,
    /// The engine still has it, and the supervisor has not started yet.
    pub(super) adopted: bool,
    /// How it was stopped according to the journal, and how by an earlier supervisor.
    pub(super) stopped: Option<StopHow>,
    pub(super) stopped_before: Option<StopHow>,
    /// The recorded stop that must be sent again.
    pub(super) again: Option<StopHow>,
    /// It has failed, and its restart is not decided yet.
    pub(super) open: bool,
}

impl Shadow {
    pub(super) fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Announced | Stage::Running { .. })
    }

    pub(super) fn end(&self) -> Option<&End> {
        if let Stage::Ended(end) = &self.stage { Some(end) } else { None }
    }

    /// Resets the state of the last attempt.
    pub(super) fn clear(&mut self) {
        let (number, past) = (self.number, std::mem::take(&mut self.past));
        *self = Self { number, past, ..Self::default() };
    }
}

/// One role.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    /// Roles behind it no longer wait for it.
    pub(super) overdue: bool,
    /// The failure for which the whole role is being stopped, and when.
    pub(super) recycling: Option<(ExitClass, Timestamp)>,
    /// When the whole role was restarted.
    pub(super) past: Vec<(Blame, Timestamp)>,
}

pub(super) fn times(past: &[(Blame, Timestamp)], blame: Blame) -> Vec<Timestamp> {
    past.iter().filter(|(other, _)| *other == blame).map(|(_, at)| *at).collect()
}
