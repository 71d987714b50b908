//! Starts to what is submitted. Pure: `umiak plan` can show it, and a test can hold it against a snapshot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use umiak_core::machine::job::AttemptId;
use umiak_core::plan::Plan;

use super::super::{Common, Start};

/// A gang as the cluster is given it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) unit: String,
    pub(super) job: String,
    /// Of all replicas.
    pub(super) env: BTreeMap<String, String>,
    pub(super) replicas: Vec<Member>,
}

/// One replica of a gang.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) id: AttemptId,
    /// In the cluster: `ctr-trainer-0`.
    pub(super) name: String,
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory_bytes: Option<u64>,
}

/// The unit of these starts.
pub(super) fn render(unit: String, plan: &Plan, common: &Common, starts: &[Start]) -> Manifest {
    let member = |start: &Start| {
        let replica = plan.at(start.id.slot).map(|replica| replica.name.as_str()).unwrap_or_default();
        Member {
            id: start.id,
            name: format!("{}-{replica}", plan.job.name),
            argv: start.process.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            env: start.process.env.iter().cloned().collect(),
            memory_bytes: start.process.memory.as_ref().map(|memory| memory.bytes),
        }
    };
    Manifest {
        unit,
        job: plan.job.name.to_string(),
        env: common.set.iter().cloned().collect(),
        replicas: starts.iter().map(member).collect(),
    }
}
