//! Events and effects of the job's machine.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::diagnose;
use crate::facts::{Evidence, Fact, Finding, Outcome, Resize, Snapshot, StopReason, Usage, Verdict};
use crate::machine::attempt::End;
use crate::model::{Classed, Exit, Instance, Slot, StepIndex, StopHow, Timestamp};

/// One start of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    pub step: StepIndex,
    pub slot: Slot,
    pub attempt: u32,
}

/// Input of the machine.
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
        /// What the job's table of exits says, if it has one.
        classed: Option<Classed>,
        usage: Option<Usage>,
    },
    /// This attempt listens at all its ports: the answer to [`Effect::Await`].
    Ready {
        id: AttemptId,
    },
    /// The answer to [`Effect::AwaitElsewhere`]: replicas that do not listen yet. Repeated until the list is empty.
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
    /// `umiak stop`. A second request, or `kill`, kills without a grace period.
    StopAsked {
        kill: bool,
    },
    /// The pipeline of this step goes no further, because another step failed.
    Halted,
    /// The supervisor received a signal that requests a stop.
    Signalled {
        signal: i32,
    },
    /// A timer fired. The number is the one it was armed with, and fences off old timers.
    Timer(Timer, u32),
    /// The answer to [`Effect::Gather`].
    Gathered(Vec<Gathered>),
    /// The answer to [`Effect::Prepare`].
    Prepared {
        attempt: u32,
        /// False if the old attempt left something behind, or ports or files were not available.
        ready: bool,
    },
    /// True: no replica here has made progress for the time that the policy allows. False: one has, after all.
    Hung(bool),
    /// The engine can no longer be reached; its processes are gone.
    EngineLost {
        /// True if it can be started again: attempts are then restarted as after any failure of the platform.
        again: bool,
    },
    /// Another node has told all nodes to stop.
    StoppedElsewhere(StopReason),
    /// How this attempt ends, the same on all nodes.
    Decided(Box<Decided>),
    /// No other node can say how this attempt ends.
    Alone,
}

/// What is known about the end of one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gathered {
    pub slot: Slot,
    pub evidence: Option<Evidence>,
    /// Taken for [`Effect::Observe`].
    pub snapshot: Option<Snapshot>,
    /// Its endpoint, and the local addresses of its sockets.
    pub addresses: Vec<SocketAddr>,
}

impl Gathered {
    /// Nothing is known.
    pub fn nothing(slot: Slot) -> Self {
        Self { slot, evidence: None, snapshot: None, addresses: Vec::new() }
    }
}

/// The decision sent to all nodes of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    pub attempt: u32,
    pub outcome: Outcome,
    /// Over the ranks of all nodes.
    pub verdict: Option<Verdict>,
    /// The signal that one of the nodes received.
    pub signal: Option<i32>,
    /// Kill without a grace period.
    pub kill: bool,
    /// The exit code when no rank caused the end.
    pub code: Option<u8>,
    /// All nodes start again after this delay.
    pub restart: Option<Duration>,
    /// They start again because members come or go, which is no failure.
    pub change: Option<Resize>,
}

/// Output of the machine, to be performed in order.
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
    /// The timer is no longer needed.
    DisarmTimer(Timer),
    /// Report when this attempt listens at all its ports, with [`Event::Ready`].
    Await(AttemptId),
    /// Report which replicas of this role on other nodes do not listen yet, with [`Event::AnsweredElsewhere`].
    AwaitElsewhere {
        role: u16,
        attempt: u32,
    },
    /// Tell the other nodes that an awaited role listens here, or has ended well.
    TellReady {
        attempt: u32,
    },
    /// Tell the user that roles waiting for this one start although some of its replicas do not listen. Stop checking
    /// those.
    StartUnready {
        role: u16,
    },
    /// Read the evidence of this attempt's end, and answer with [`Event::Inspected`]. The job goes on.
    Inspect(AttemptId),
    /// Tell the user why an attempt failed that will be restarted.
    TellFailed(Box<Finding>),
    /// Read the evidence of how these replicas ended, and answer with [`Event::Gathered`].
    Gather {
        /// Ended badly without our signal.
        ended: Vec<Slot>,
        /// Ended by our signal: only log lines from before it count.
        stopped: Vec<Slot>,
        /// Ended with 0 before the failure. Its last lines show how far it got.
        done: Vec<Slot>,
    },
    /// The first signal after a failure follows: note what these are doing. The answer is a part of
    /// [`Event::Gathered`].
    Observe(Vec<AttemptId>),
    /// This attempt is over: release its resources and keep its end.
    Release {
        id: AttemptId,
        end: Box<End>,
    },
    /// These have ended and will restart while others run: clean up everything they left behind before that.
    Forsake(Vec<AttemptId>),
    /// Show the verdict to the user.
    Report(Verdict),
    /// Prepare this attempt: stop leftovers of the last one, release its ports, plan again. Answer with
    /// [`Event::Prepared`].
    Prepare {
        attempt: u32,
    },
    /// Tell the other nodes the state of this one.
    Stand(Stand),
    /// Return the terminal to the shell; the guardian finishes alone.
    ReturnTerminal,
    /// The job is over: exit with this code.
    Finish {
        outcome: Outcome,
        code: u8,
    },
}

/// The state of this node in a job of several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stand {
    /// All deciding roles here have succeeded, or none is here; others still run.
    Serving,
    Succeeded,
    /// No replica here makes progress.
    Hung,
    /// One does, after all.
    Moves,
    Failed,
    /// The settle window is closed; these are all bad ends.
    Told(Vec<diagnose::End>),
    /// By this signal, or by `umiak stop`, possibly with `--kill`.
    Interrupted {
        signal: Option<i32>,
        kill: bool,
    },
}

/// The scope of a timer, where it is not the whole job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Of {
    Role(u16),
    Replica(Slot),
}

/// Timers. Each is armed at most once with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// The settle window is over.
    Settle,
    /// SIGINT was not enough: SIGTERM follows.
    Terminate,
    /// The grace period is over: SIGKILL follows.
    Grace,
    /// SIGKILL was not enough: no longer waited for.
    Abandon,
    /// The back-off is over: the next attempt may begin.
    Backoff,
    /// The whole run has exceeded its time limit.
    Deadline,
    /// The same for part of the job.
    TerminateOf(Of),
    GraceOf(Of),
    AbandonOf(Of),
    BackoffOf(Of),
    /// Roles that do not decide should have ended by now.
    Linger,
    /// Replicas of this role on other nodes should listen by now.
    Elsewhere(u16),
    /// Roles that wait for this one start without it.
    Patience(u16),
    /// The ports of this replica should answer by now.
    StartUp(Slot),
    /// The attempt should be over by now.
    Run(Slot),
}

impl Event {
    /// A short description, for the record of an ignored event.
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
            Self::Halted => "Halted".to_owned(),
            Self::Signalled { signal } => format!("Signalled {signal}"),
            Self::Timer(timer, attempt) => format!("Timer {timer:?}, attempt {attempt}"),
            Self::Prepared { attempt, .. } => format!("Prepared, attempt {attempt}"),
            Self::Gathered(_) => "Gathered".to_owned(),
            Self::EngineLost { .. } => "EngineLost".to_owned(),
            Self::Hung(hung) => format!("Hung {hung}"),
            Self::StoppedElsewhere(reason) => format!("StoppedElsewhere {reason:?}"),
            Self::Decided(decided) => format!("Decided, attempt {}", decided.attempt),
            Self::Alone => "Alone".to_owned(),
        }
    }
}
