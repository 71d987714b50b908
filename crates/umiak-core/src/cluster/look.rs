//! What a scheduler says about a unit.

/// The state of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// It waits, for this reason.
    Pending {
        reason: String,
    },
    /// It would wait for ever, for this reason.
    Hopeless {
        reason: String,
    },
    Running,
    /// It has its nodes, and does not run.
    Suspended {
        reason: String,
    },
    Over(Over),
    /// The scheduler does not answer, for this reason. Nothing is known about the unit.
    Unknown {
        reason: String,
    },
}

/// How a unit has ended, as its scheduler says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// Its agents have exited by themselves.
    Done,
    /// It was cancelled from outside.
    Cancelled {
        by: Option<String>,
    },
    Preempted {
        reason: String,
    },
    TimeLimit {
        reason: String,
    },
    NodeLost {
        node: String,
    },
    /// Anything else, in words.
    Failed {
        reason: String,
    },
    /// The scheduler no longer knows it.
    Forgotten,
}
