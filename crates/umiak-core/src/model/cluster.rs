//! How jobs are given to schedulers of other systems.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::KubernetesOptions;

/// Options of the engines that give a job to another scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ClusterOptions {
    #[serde(default)]
    pub slurm: SlurmOptions,
    #[serde(default)]
    pub mpi: MpiOptions,
    #[serde(default)]
    pub kubernetes: KubernetesOptions,
}

impl ClusterOptions {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How a job is submitted to Slurm.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SlurmOptions {
    /// Options of `sbatch` in their long form, without dashes: `partition` with `gpu`, `exclusive` without a value. A later
    /// one replaces an earlier one of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub native: Vec<(String, Option<String>)>,
    /// `srun` starts a task for each replica, instead of an agent for each node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
    /// Slurm starts the job again after the loss of a node, a pre-emption, or its time limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requeue: bool,
    /// Seconds before the time limit at which replicas are stopped; when omitted, 60, or the longest grace
    /// period and 10 more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<u32>,
    /// The umiak program on the nodes; when omitted, the path of the one that submits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umiak: Option<PathBuf>,
    /// Nodes do not see the directory of the run: agents connect to the host that submits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<Connect>,
}

/// Where agents reach the host that submits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Connect {
    /// Its name or address; when omitted, all its addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// When omitted, a free one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl SlurmOptions {
    /// Adds options that win over these.
    pub fn add(&mut self, over: &Self) {
        let Self { native, direct, requeue, warning, umiak, connect } = over;
        self.native.retain(|(name, _)| native.iter().all(|(other, _)| other != name));
        self.native.extend(native.iter().cloned());
        self.direct |= direct;
        self.requeue |= requeue;
        self.warning = warning.or(self.warning);
        self.umiak = umiak.clone().or(self.umiak.take());
        self.connect = connect.clone().or(self.connect.take());
    }

    /// The value of a native option, as it applies.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.native.iter().rev().find(|(given, _)| given == name).and_then(|(_, value)| value.as_deref())
    }
}

/// How a job is started by `mpirun`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MpiOptions {
    /// The program; when omitted, `mpirun`, else `mpiexec`, of the `PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher: Option<PathBuf>,
    /// Hosts and their slots. Without any: those of the allocation that `mpirun` finds, else this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<(String, u32)>,
    /// Options that are passed on unchanged, before the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// The umiak program on the hosts; when omitted, the path of the one that starts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umiak: Option<PathBuf>,
}

impl MpiOptions {
    /// Adds options that win over these.
    pub fn add(&mut self, over: &Self) {
        let Self { launcher, hosts, arguments, umiak } = over;
        self.launcher = launcher.clone().or(self.launcher.take());
        if !hosts.is_empty() {
            self.hosts.clone_from(hosts);
        }
        self.arguments.extend(arguments.iter().cloned());
        self.umiak = umiak.clone().or(self.umiak.take());
    }
}

/// Beginnings of the variables that Slurm sets for the processes of a job, and that its clients read.
pub const SLURM_VARIABLES: [&str; 3] = ["SLURM", "SBATCH_", "SRUN_"];
/// Beginnings of the variables by which launchers of MPI and their processes find each other.
pub const MPI_VARIABLES: [&str; 6] = ["OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDI_", "MPI_LOCAL"];

/// True for a variable that a scheduler or launcher sets for the processes that it starts.
pub fn is_of_scheduler(name: &str) -> bool {
    SLURM_VARIABLES.iter().chain(&MPI_VARIABLES).any(|beginning| name.starts_with(beginning))
}

/// True for a variable that belongs to a node: what it is on the host that submits says nothing about another one.
pub fn is_of_node(name: &str) -> bool {
    const NAMES: [&str; 11] = [
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HOST",
        "HOSTNAME",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "TMPDIR",
        "XDG_RUNTIME_DIR",
        "XDG_SESSION_ID",
        "XPU_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    ];
    NAMES.contains(&name)
}
