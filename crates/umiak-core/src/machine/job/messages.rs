//! What goes into the job's machine and what comes out of it.

use crate::facts::{Evidence, Fact, Outcome, Usage, Verdict};
use crate::model::{Exit, Slot, Timestamp};

/// One start of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    pub slot: Slot,
    pub attempt: u32,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Start,
    Spawned {
        id: AttemptId,
        pid: u32,
    },
    Exited {
        id: AttemptId,
        exit: Exit,
        usage: Option<Usage>,
    },
    /// We received a signal that asks us to stop.
    Signalled {
        signal: i32,
    },
    Timer(Timer),
    /// The answer to [`Effect::Gather`].
    Gathered(Vec<(Slot, Evidence)>),
    /// The process that holds the ranks is gone, and the ranks with it.
    GuardianLost,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Record(Fact),
    Spawn(Vec<AttemptId>),
    Signal {
        signal: i32,
        targets: Vec<AttemptId>,
    },
    ArmTimer {
        timer: Timer,
        at: Timestamp,
    },
    /// Read what these replicas left about their end, and answer with [`Event::Gathered`].
    Gather {
        /// Ended badly by themselves.
        ended: Vec<Slot>,
        /// Ended by our signal: only what stood in their logs before it counts.
        stopped: Vec<Slot>,
    },
    /// Tell the user: the verdict stands.
    Report(Verdict),
    /// Give the terminal back; the guardian finishes alone.
    ReturnTerminal,
    /// It is over: end with this code.
    Finish {
        outcome: Outcome,
        code: u8,
    },
}

/// Timers; each is armed at most once in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// The settle window is over.
    Settle,
    /// SIGTERM was not enough.
    Grace,
    /// SIGKILL was not enough.
    Abandon,
}

impl Event {
    /// In a few words, for the record of an event that was not acted on.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Start => "Start".to_owned(),
            Self::Spawned { id, .. } => format!("Spawned, attempt {}", id.attempt),
            Self::Exited { id, .. } => format!("Exited, attempt {}", id.attempt),
            Self::Signalled { signal } => format!("Signalled {signal}"),
            Self::Timer(timer) => format!("Timer {timer:?}"),
            Self::Gathered(_) => "Gathered".to_owned(),
            Self::GuardianLost => "GuardianLost".to_owned(),
        }
    }
}
