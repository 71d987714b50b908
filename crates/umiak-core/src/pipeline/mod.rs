//! The values of a running pipeline. Which node runs when is decided by `machine::pipeline`; this module says with which
//! values: templates, conditions, loops, artifacts and fingerprints.

pub mod condition;
pub mod fingerprint;
#[cfg(test)]
mod fixture;
mod scope;
pub mod text;

pub use scope::{Answer, MAX_CONDITION, MAX_INSTANCES, MAX_LOOP, Preparation, Read, Scope, too_many};

use crate::model::{NodeId, StepIndex};

/// The instances of a running pipeline: each node has one in each run of the DAG around it, or one for each item of its
/// loop.
pub trait Tree {
    /// The node that it is an instance of.
    fn node(&self, id: StepIndex) -> NodeId;

    /// The instance of the DAG around it, also for an item of a loop; `None` for the root.
    fn parent(&self, id: StepIndex) -> Option<StepIndex>;

    /// Its number in its loop, from 0.
    fn item(&self, id: StepIndex) -> Option<u32>;

    /// The instances of a child of this DAG: one, or one for each item of its loop, in their order; not the loop itself.
    fn instances(&self, dag: StepIndex, child: NodeId) -> Vec<StepIndex>;
}
