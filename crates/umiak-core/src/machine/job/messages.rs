//! What goes into the job's machine and what comes out of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::diagnose;
use crate::facts::{Evidence, Fact, Finding, Outcome, StopReason, Usage, Verdict};
use crate::machine::attempt::End;
use crate::model::{Exit, Instance, Slot, StepIndex, StopHow, Timestamp};

/// One start of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    pub step: StepIndex,
    pub slot: Slot,
    pub attempt: u32,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Start,
    Started {
        id: AttemptId,
        instance: Instance,
    },
    Exited {
        id: AttemptId,
        exit: Exit,
        usage: Option<Usage>,
    },
    /// This attempt listens at all its ports: the answer to [`Effect::Await`].
    Ready {
        id: AttemptId,
    },
    /// The answer to [`Effect::AwaitElsewhere`]: those that do not listen yet, until none is left.
    AnsweredElsewhere {
        role: u16,
        attempt: u32,
        missing: Vec<String>,
    },
    /// The answer to [`Effect::Inspect`].
    Inspected {
        id: AttemptId,
        evidence: Option<Box<Evidence>>,
    },
    /// `umiak stop`; a second time, or with `kill`, nothing is waited for.
    StopAsked {
        kill: bool,
    },
    /// We received a signal that asks us to stop.
    Signalled {
        signal: i32,
    },
    /// A timer, with the number that it was armed with: old ones are fenced by it.
    Timer(Timer, u32),
    /// The answer to [`Effect::Gather`].
    Gathered(Vec<(Slot, Evidence)>),
    /// The answer to [`Effect::Prepare`].
    Prepared {
        attempt: u32,
        /// Not so when something of the old attempt is left, or ports or files could not be had.
        ready: bool,
    },
    /// The engine can no longer be reached, and what it ran is gone.
    EngineLost,
    /// Another node has asked all of them to stop.
    StoppedElsewhere(StopReason),
    /// How this attempt ends, for all nodes alike.
    Decided(Box<Decided>),
    /// No other node can be asked how this attempt ends.
    Alone,
}

/// What all nodes of a job were told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    pub attempt: u32,
    pub outcome: Outcome,
    /// Over the ranks of all nodes.
    pub verdict: Option<Verdict>,
    /// The signal that one of the nodes received.
    pub signal: Option<i32>,
    /// What runs is not given its time to end.
    pub kill: bool,
    /// Where no rank is to blame: the code to end with.
    pub code: Option<u8>,
    /// All nodes start again, after so long.
    pub restart: Option<Duration>,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Record(Fact),
    Spawn(Vec<AttemptId>),
    Stop {
        how: StopHow,
        targets: Vec<AttemptId>,
    },
    ArmTimer {
        timer: Timer,
        attempt: u32,
        at: Timestamp,
    },
    /// It is no longer waited for.
    DisarmTimer(Timer),
    /// Tell when this attempt listens at all its ports, with [`Event::Ready`].
    Await(AttemptId),
    /// Tell which of this role on other nodes do not listen yet, with [`Event::AnsweredElsewhere`].
    AwaitElsewhere {
        role: u16,
        attempt: u32,
    },
    /// Tell the other nodes: all of a role that is waited for listen here, or have ended well.
    TellReady {
        attempt: u32,
    },
    /// Tell the user: those that wait for this role start although some of it do not listen. They are not looked at any
    /// more.
    StartUnready {
        role: u16,
    },
    /// Read what this attempt left about its end, and answer with [`Event::Inspected`]. The job goes on.
    Inspect(AttemptId),
    /// Tell the user why an attempt failed that will be made good.
    TellFailed(Box<Finding>),
    /// Read what these replicas left about their end, and answer with [`Event::Gathered`].
    Gather {
        /// Ended badly by themselves.
        ended: Vec<Slot>,
        /// Ended by our signal: only what stood in their logs before it counts.
        stopped: Vec<Slot>,
    },
    /// This attempt is over: give back what it had, and keep how it ended.
    Release {
        id: AttemptId,
        end: Box<End>,
    },
    /// These have ended and will start again while others go on: nothing that they left behind may be there by then.
    Forsake(Vec<AttemptId>),
    /// Tell the user: the verdict stands.
    Report(Verdict),
    /// Make room for this attempt: stop what the last one left behind, give its ports back, plan anew. Answer with
    /// [`Event::Prepared`].
    Prepare {
        attempt: u32,
    },
    /// Tell the other nodes how things stand here.
    Stand(Stand),
    /// Give the terminal back; the guardian finishes alone.
    ReturnTerminal,
    /// It is over: end with this code.
    Finish {
        outcome: Outcome,
        code: u8,
    },
}

/// How things stand on this node, where there are several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stand {
    /// Everybody here who decides has ended well, or nobody does; others still run.
    Serving,
    Succeeded,
    Failed,
    /// The settle window is closed: all bad ends.
    Told(Vec<diagnose::End>),
    /// By this signal, or by `umiak stop`, which may ask to kill.
    Interrupted {
        signal: Option<i32>,
        kill: bool,
    },
}

/// Whom a timer speaks of, where it is not the whole job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Of {
    Role(u16),
    Replica(Slot),
}

/// Timers; each is armed at most once with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// The settle window is over.
    Settle,
    /// SIGINT was not enough.
    Terminate,
    /// Asking was not enough.
    Grace,
    /// Killing was not enough.
    Abandon,
    /// The next attempt may begin.
    Backoff,
    /// The whole run has taken too long.
    Deadline,
    /// The same for some of the job.
    TerminateOf(Of),
    GraceOf(Of),
    AbandonOf(Of),
    BackoffOf(Of),
    /// Those of this role on other nodes should answer by now.
    Elsewhere(u16),
    /// This role is not waited for any longer.
    Patience(u16),
    /// Its ports should answer by now.
    StartUp(Slot),
    /// The attempt should be over by now.
    Run(Slot),
}

impl Event {
    /// In a few words, for the record of an event that was not acted on.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Start => "Start".to_owned(),
            Self::Started { id, .. } => format!("Started, attempt {}", id.attempt),
            Self::Exited { id, .. } => format!("Exited, attempt {}", id.attempt),
            Self::Ready { id } => format!("Ready, attempt {}", id.attempt),
            Self::AnsweredElsewhere { role, attempt, missing } => {
                format!("AnsweredElsewhere, role {role}, attempt {attempt}, {} missing", missing.len())
            }
            Self::Inspected { id, .. } => format!("Inspected, attempt {}", id.attempt),
            Self::StopAsked { .. } => "StopAsked".to_owned(),
            Self::Signalled { signal } => format!("Signalled {signal}"),
            Self::Timer(timer, attempt) => format!("Timer {timer:?}, attempt {attempt}"),
            Self::Prepared { attempt, .. } => format!("Prepared, attempt {attempt}"),
            Self::Gathered(_) => "Gathered".to_owned(),
            Self::EngineLost => "EngineLost".to_owned(),
            Self::StoppedElsewhere(reason) => format!("StoppedElsewhere {reason:?}"),
            Self::Decided(decided) => format!("Decided, attempt {}", decided.attempt),
            Self::Alone => "Alone".to_owned(),
        }
    }
}
