//! The phases of a job, with the data of each.
//!
//! ```text
//! NotStarted ─► Running ─┬► Lingering ─┬► Completed ─► Finished
//!      │                 ├─────────────┤
//!      │                 └─────────────┴► Stopping ──► Finished
//!      └► Pausing ◄────────────────────────┘
//!            └► Running, as the next attempt
//! ```

use super::Machine;
use crate::facts::{Outcome, StopReason};
use crate::machine::exit_code;

#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// A stop requested before the start takes effect at the start.
    NotStarted(Option<Stop>),
    Running,
    /// All deciding roles have succeeded, and the others may end by themselves for a while.
    Lingering,
    /// All deciding roles have succeeded, and nothing has to be stopped.
    Completed,
    Stopping(Stop),
    /// Between two attempts.
    Pausing(Pause),
    Finished {
        in_pause: bool,
    },
}

/// Why all replicas are stopped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    pub(super) reason: StopReason,
    pub(super) first: StopReason,
    /// The outcome of the run: the first reason decides, later ones only speed up the stop.
    pub(super) outcome: Outcome,
    pub(super) signal: Option<i32>,
    /// SIGKILL was sent to all.
    pub(super) killed: bool,
}

/// Conditions for the next attempt.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pause {
    pub(super) waited: bool,
    pub(super) ready: Option<bool>,
    /// Set if there will be no next attempt.
    pub(super) stop: Option<Stop>,
}

impl Machine {
    pub(super) fn stop(&self) -> Option<&Stop> {
        match &self.phase {
            Phase::NotStarted(stop) => stop.as_ref(),
            Phase::Stopping(stop) => Some(stop),
            Phase::Pausing(pause) => pause.stop.as_ref(),
            Phase::Running | Phase::Lingering | Phase::Completed | Phase::Finished { .. } => None,
        }
    }

    pub(super) fn stop_mut(&mut self) -> Option<&mut Stop> {
        match &mut self.phase {
            Phase::NotStarted(stop) => stop.as_mut(),
            Phase::Stopping(stop) => Some(stop),
            Phase::Pausing(pause) => pause.stop.as_mut(),
            Phase::Running | Phase::Lingering | Phase::Completed | Phase::Finished { .. } => None,
        }
    }

    /// Records the first reason to stop.
    pub(super) fn enter_stop(&mut self, stop: Stop) {
        match &mut self.phase {
            Phase::NotStarted(before) => *before = Some(stop),
            Phase::Pausing(pause) => pause.stop = Some(stop),
            Phase::Running | Phase::Lingering | Phase::Completed | Phase::Stopping(_) => {
                self.phase = Phase::Stopping(stop);
            }
            Phase::Finished { .. } => {}
        }
    }

    pub(super) fn has_started(&self) -> bool {
        !matches!(self.phase, Phase::NotStarted(_))
    }

    /// True if no waiting replica will start in this attempt.
    pub(super) fn starts_nothing(&self) -> bool {
        self.stop().is_some() || matches!(self.phase, Phase::Lingering | Phase::Completed)
    }

    /// The exit code if this signal ends the supervisor before the machine has finished.
    pub fn code_after(&self, signal: i32) -> u8 {
        exit_code::interrupted(self.style, signal)
    }

    /// True between two attempts, and after an end in between.
    pub fn is_pausing(&self) -> bool {
        matches!(self.phase, Phase::Pausing(_) | Phase::Finished { in_pause: true })
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished { .. })
    }
}
