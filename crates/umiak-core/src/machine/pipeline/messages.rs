//! Events and effects of the pipeline's machine.

use crate::facts::{Fact, NodeValues, Outcome, SkipReason, StopReason};
use crate::model::{StepIndex, Value};

/// Input of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Start,
    /// The answer to [`Effect::Resolve`].
    Resolved {
        id: StepIndex,
        /// Empty if it has none, or if they are not known.
        values: Box<NodeValues>,
        what: Resolution,
    },
    /// The job of a step is over. Its facts are recorded already.
    Ended {
        id: StepIndex,
        outcome: Outcome,
    },
    /// The answer to [`Effect::Close`]: the outputs of the DAG, or why they cannot be determined.
    Closed {
        id: StepIndex,
        result: Result<Box<NodeValues>, String>,
    },
    /// `umiak stop`, or a signal to the supervisor. A second request is forced: it kills, and the post step does not run.
    StopAsked {
        reason: StopReason,
        force: bool,
    },
}

/// What becomes of a node whose turn has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    Run,
    /// The items of a loop, which is resolved before each of them is. A loop without items is skipped.
    Loop {
        items: Vec<Value>,
    },
    Skip {
        why: SkipReason,
    },
    /// The result of this step of an earlier run is used.
    Cached {
        run: String,
        step: String,
    },
    Failed {
        reason: String,
    },
}

/// Output of the machine, to be performed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A fact about an instance; about the run, if it is the root.
    Record { id: StepIndex, fact: Fact },
    /// Determine the values of this instance, and answer with [`Event::Resolved`].
    Resolve(StepIndex),
    /// Run the job of this step, and report its end with [`Event::Ended`].
    Run {
        id: StepIndex,
        /// True if an earlier supervisor started it and the run is being stopped: the job is asked to stop before it
        /// starts, so that only what is left of it ends.
        stopping: bool,
    },
    /// Determine the outputs of this DAG, and answer with [`Event::Closed`].
    Close(StepIndex),
    /// Stop the jobs of these steps; without a grace period if `force` is true.
    Stop { ids: Vec<StepIndex>, force: bool },
    /// The run is over.
    Finish(Outcome),
}

impl Event {
    /// A short description, for the record of an ignored event.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Start => "Start".to_owned(),
            Self::Resolved { id, what, .. } => format!("Resolved, {}, {}", id.0, what.word()),
            Self::Ended { id, outcome } => format!("Ended, {}, {outcome:?}", id.0),
            Self::Closed { id, .. } => format!("Closed, {}", id.0),
            Self::StopAsked { force, .. } => format!("StopAsked, force {force}"),
        }
    }
}

impl Resolution {
    fn word(&self) -> &'static str {
        match self {
            Self::Run => "Run",
            Self::Loop { .. } => "Loop",
            Self::Skip { .. } => "Skip",
            Self::Cached { .. } => "Cached",
            Self::Failed { .. } => "Failed",
        }
    }
}
