//! What the judge knows of each replica and each role, from facts alone.

use umiak_core::facts::Limit;
use umiak_core::model::{Blame, Exit, StopHow, Timestamp};

/// Where a replica stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// It may be started, or started again.
    #[default]
    Idle,
    /// Announced; it may exist.
    Announced,
    Running {
        since: Timestamp,
    },
    Ended(End),
    /// Given up.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) exit: Exit,
    pub(super) by_us: bool,
    pub(super) timed_out: bool,
    pub(super) at: Timestamp,
}

impl End {
    pub(super) fn is_good(&self) -> bool {
        self.exit == Exit::Code { code: 0 } && !self.timed_out
    }

    pub(super) fn is_bad(&self) -> bool {
        !self.is_good() && (self.timed_out || !self.by_us)
    }
}

/// One replica.
#[derive(Debug, Clone, Default)]
pub(super) struct Shadow {
    /// The last number that was announced.
    pub(super) number: Option<u32>,
    pub(super) stage: Stage,
    pub(super) spawned: bool,
    pub(super) ready: bool,
    /// When it was interrupted or asked to end, whichever was first.
    pub(super) asked: Option<Timestamp>,
    /// Interrupted, before anything else.
    pub(super) interrupted: bool,
    /// Asked to end, or killed.
    pub(super) terminated: bool,
    pub(super) killed: Option<Timestamp>,
    pub(super) timed_out: Option<Limit>,
    /// In a back-off until then.
    pub(super) waits: Option<Timestamp>,
    /// When it was started again by itself.
    pub(super) past: Vec<(Blame, Timestamp)>,
    /// The number that was promised for its next attempt.
    pub(super) promised: Option<u32>,
    /// A supervisor that was lost had it live, and the engine does not have it any more.
    pub(super) lost: bool,
    /// The engine still has it, and the supervisor has not started.
    pub(super) adopted: bool,
    /// How it was stopped, according to the journal; and how, by a supervisor before this one.
    pub(super) stopped: Option<StopHow>,
    pub(super) stopped_before: Option<StopHow>,
    /// That stop has to be sent again.
    pub(super) again: Option<StopHow>,
    /// It has ended badly, and whether it starts again has not been said yet.
    pub(super) open: bool,
}

impl Shadow {
    pub(super) fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Announced | Stage::Running { .. })
    }

    pub(super) fn end(&self) -> Option<&End> {
        if let Stage::Ended(end) = &self.stage { Some(end) } else { None }
    }

    /// Nothing of the last attempt counts any more.
    pub(super) fn clear(&mut self) {
        let (number, past) = (self.number, std::mem::take(&mut self.past));
        *self = Self { number, past, ..Self::default() };
    }
}

/// One role.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    /// It is not waited for any longer.
    pub(super) overdue: bool,
    /// The failure for which all of it is being stopped, and when that was.
    pub(super) recycling: Option<(Blame, Timestamp)>,
    /// When all of it was started again.
    pub(super) past: Vec<(Blame, Timestamp)>,
}

pub(super) fn times(past: &[(Blame, Timestamp)], blame: Blame) -> Vec<Timestamp> {
    past.iter().filter(|(other, _)| *other == blame).map(|(_, at)| *at).collect()
}
