//! What a scheduler of another system does for a unit.

use std::path::PathBuf;

pub(crate) use umiak_core::cluster::look::{Look, Over};
use umiak_core::plan::Plan;

/// A unit, for its scheduler.
#[derive(Debug, Clone)]
pub(crate) struct UnitPlace {
    /// The directory of the unit's files.
    pub(crate) directory: PathBuf,
    /// Variables that its agents need.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// Calls block, and are made by the thread of a unit.
pub(crate) trait Scheduler: Send {
    /// Submits the unit, whose files are written. Returns what the scheduler calls it, or why it was refused.
    fn submit(&mut self, unit: &UnitPlace, plan: &Plan) -> Result<String, String>;

    /// What users of the scheduler call a unit, if they can do something with that: `Slurm job 73`.
    fn name(&self, _job: &str) -> Option<String> {
        None
    }

    /// Asks for the state of a unit.
    fn look(&mut self, job: &str) -> Look;

    /// Asks the scheduler to end a unit. `kill`: at once. Returns why it did not accept that; it is then asked again.
    fn cancel(&mut self, job: &str, kill: bool) -> Result<(), String>;

    /// True if nothing may be left of a unit when its last agent has left and its run ends.
    fn is_awaited(&self) -> bool;
}
