//! Facts about the nodes of a pipeline. Their records name the node: `train`, `dag.child`, or `split.3` for an item of a
//! loop. A step that runs a job has the job's facts too, from `planned` to `finished`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Outcome;
use crate::model::{OnFailure, Value};

/// A pipeline as it will be run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PlannedPipeline {
    pub pipeline: String,
    /// The name of the run, if it is not the pipeline's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub umiak: String,
    /// The number of steps, each loop counted once.
    pub steps: u32,
    pub parallelism: u32,
    pub on_failure: OnFailure,
    /// The run whose finished steps are kept, if this run repeats another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<String>,
}

/// The values of a node, once it can start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NodeValues {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<(String, Value)>,
    /// Paths on this host, by the names of the artifacts. A loop before it gives several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<(String, Vec<String>)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<(String, Vec<String>)>,
    /// The item of a loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<Value>,
}

impl NodeValues {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn values(&mut self) -> Vec<&mut Value> {
        self.parameters.iter_mut().map(|(_, value)| value).chain(&mut self.item).collect()
    }

    pub(super) fn texts(&mut self) -> Vec<&mut String> {
        self.inputs.iter_mut().chain(&mut self.outputs).flat_map(|(_, paths)| paths).collect()
    }
}

/// Why a node does not run, although its turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// Its condition is false.
    Condition,
    /// The document or the command line disables it.
    Disabled,
    /// Its loop has no items.
    NoItems,
}

/// How a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeEnd {
    Succeeded,
    Failed,
    /// It was stopped after its start.
    Stopped,
    /// It was never started.
    Cancelled,
    Skipped,
    /// The result of an earlier run is used.
    Cached,
}

impl From<Outcome> for NodeEnd {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Succeeded => Self::Succeeded,
            Outcome::Failed => Self::Failed,
            Outcome::Interrupted | Outcome::Stopped => Self::Stopped,
        }
    }
}

impl NodeEnd {
    /// True if what depends on it may run.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Succeeded | Self::Skipped | Self::Cached)
    }
}
