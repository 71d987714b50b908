//! The loop of `run`: one supervisor for each run, in the foreground or detached.
//!
//! | part | in one sentence |
//! |---|---|
//! | [`submit`] | a document becomes a run directory |
//! | [`begin`] | a run directory becomes a supervisor: lock, engine, places, journal |
//! | [`supervise`] | waits for one event, asks the machine, records, performs |
//! | [`tell`] | what a person is told meanwhile |
//! | [`tasks`] | the directories of attempts |
//! | [`control`] | orders of other processes |
//! | [`detach`] | a supervisor that outlives its terminal |

pub(crate) mod begin;
pub(crate) mod control;
pub(crate) mod detach;
pub(crate) mod stop;
pub(crate) mod submit;
mod supervise;
mod tasks;
mod tell;

use umiak_core::formats::launch::OutputMode;

use crate::screen::Style;

/// How a supervisor talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Talk {
    pub(crate) output: OutputMode,
    /// With JSON: the mirror goes to stderr.
    pub(crate) mirror: bool,
    pub(crate) ascii: bool,
    pub(crate) no_progress: bool,
    /// Nobody sees it: lines go to a file, and the mirror nowhere.
    pub(crate) detached: bool,
}

impl Talk {
    pub(crate) fn style(self) -> Style {
        Style::detect(self.ascii, self.no_progress || self.detached || self.output != OutputMode::Human)
    }
}
