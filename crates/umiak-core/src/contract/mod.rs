//! Environment dialects: a contract is a pure function from a view of a plan ([`View`]) and one replica to variables.
//!
//! `launch` sets [`paddle`] and [`torch`] together, so that scripts of either framework work; parameter-server jobs have
//! [`servers`] and rpc jobs [`rpc`] instead of [`paddle`]. Replicas of documents have [`umiak`] too. Differences from the
//! original launchers are listed in [`differences`], and nowhere else.

pub mod differences;
pub mod mpi;
pub mod paddle;
pub mod paddle_job;
pub mod pai;
pub mod pytorch_job;
pub mod rpc;
pub mod servers;
pub mod tensorflow;
pub mod torch;
pub mod umiak;

use std::path::Path;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{
    Backend, Contract, Device, DeviceKind, Endpoint, Host, Job, JobId, NodeIndex, PaddleVariables, Part, Port, Rank,
    RoleName, Slot, TorchVariables, WorldSize,
};

/// A variable and its value.
pub type Variable = (String, String);

/// Adds a variable, or changes its value.
fn set(variables: &mut Vec<Variable>, name: &str, value: String) {
    match variables.iter_mut().find(|(other, _)| other == name) {
        Some(variable) => variable.1 = value,
        None => variables.push((name.to_owned(), value)),
    }
}

/// A contract's view of a plan, for one attempt of one replica.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The ranks that include this replica.
    pub group: &'a Topology,
    /// All roles of the job, on all nodes.
    pub roles: &'a [RolePlaces],
    pub options: &'a Options,
    pub job: &'a Job,
    /// The id of the run; empty if there is none.
    pub run: &'a str,
    /// This replica.
    pub slot: Slot,
    /// The number of the whole job's attempt, from 1.
    pub job_attempt: u32,
    /// The number of the attempt, from 1, and the maximum number of restarts.
    pub attempt: u32,
    pub max_restarts: u32,
    /// Restarts of this replica in this attempt of the job.
    pub retries: u32,
    /// `POD_NAME`.
    pub pod_name: &'a str,
    /// An absolute path.
    pub log_dir: &'a Path,
    /// The directory for gloo's rendezvous of this attempt.
    pub gloo_dir: &'a Path,
    /// The file to which this rank may write its error as JSON.
    pub error_file: &'a Path,
}

impl View<'_> {
    /// The variables of one dialect.
    pub fn variables(&self, contract: Contract, member: &Member) -> Vec<Variable> {
        match contract {
            Contract::Paddle => paddle::variables(self, member),
            Contract::PaddleServers => servers::variables(self, member),
            Contract::PaddleRpc => rpc::variables(self, member),
            Contract::Torch => torch::variables(self, member),
            Contract::Pai => pai::variables(self),
            Contract::PaddleJob => paddle_job::variables(self, member),
            Contract::PytorchJob => pytorch_job::variables(self, member),
            Contract::Tensorflow => tensorflow::variables(self, member),
            Contract::Mpi => mpi::variables(self, member),
        }
    }
}

/// The hosts and ports of the replicas of one role, by index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolePlaces {
    pub name: RoleName,
    pub hosts: Vec<Host>,
    pub ports: Vec<NamedPorts>,
}

/// The ports of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPorts {
    pub name: String,
    /// Number of ports for each replica.
    pub each: usize,
    /// Replica by replica.
    pub ports: Vec<Port>,
}

impl NamedPorts {
    pub fn of(&self, replica: u32) -> &[Port] {
        let first = replica as usize * self.each;
        &self.ports[first..first + self.each]
    }

    /// The same, joined by commas.
    pub fn list(&self, replica: u32) -> String {
        self.of(replica).iter().map(|port| port.get().to_string()).collect::<Vec<_>>().join(",")
    }
}

/// What a launcher adds to the variables of all replicas.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Options {
    pub paddle: PaddleVariables,
    pub backend: Backend,
    /// `POD_NAME` of all processes of this node. Each replica of a document is its own pod.
    pub pod_name: Option<String>,
    /// `PADDLE_WITH_GLOO`.
    pub with_gloo: Option<String>,
    /// In `ps-heter`: the kind of device in each stage, the trainers' included.
    pub stages: Vec<String>,
    /// The user who submitted the job.
    pub user: String,
    #[serde(default, skip_serializing_if = "TorchVariables::are_usual")]
    pub torch: TorchVariables,
    /// The user has set `TORCH_NCCL_ASYNC_ERROR_HANDLING`.
    pub async_error_handling_is_set: bool,
    /// Variables that the platform set for the pod and that keep their values: host names, for example, are better than
    /// the addresses behind them. They are set explicitly, because variables that are not set may be removed.
    pub said: Vec<Variable>,
}

impl Options {
    /// Returns the platform's value of a variable, if it has one, else `value`.
    pub fn placed(&self, name: &str, value: String) -> String {
        self.said.iter().find(|(said, _)| said == name).map_or(value, |(_, value)| value.clone())
    }
}

/// A cached value that is computed on first use. It is ignored by comparisons.
#[derive(Debug, Clone)]
pub(crate) struct Lazy<T>(OnceLock<T>);

impl<T> Lazy<T> {
    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(make)
    }
}

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> PartialEq for Lazy<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Lazy<T> {}

/// A group of ranks: its members and their nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Topology {
    pub job_id: JobId,
    pub nodes: Vec<Node>,
    /// By rank.
    pub members: Vec<Member>,
    /// Where ranks find Paddle's store: at rank 0, or at the relay on its node.
    pub paddle_store: Endpoint<Host>,
    /// Where rank 0 hosts Paddle's store, if `paddle_store` is a relay. Known on its node only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relayed_store: Option<Endpoint<Host>>,
    /// Where torch's store is.
    pub torch_store: Endpoint<Host>,
    /// True if umiak hosts torch's store; otherwise rank 0 does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent_store: bool,
    /// How many attempts before this one ended because nodes came or went, and not with a failure.
    #[serde(default, skip_serializing_if = "is_none")]
    pub changes: u32,
    /// The kind of the members' devices; `None` on CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_kind: Option<DeviceKind>,
    #[serde(skip)]
    lists: Lazy<Lists>,
    /// The trainers' hosts, joined by commas.
    #[serde(skip)]
    hosts: Lazy<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_none(changes: &u32) -> bool {
    *changes == 0
}

/// Lists of all members, set for every member and therefore computed once.
#[derive(Debug, Clone)]
struct Lists {
    /// For each part.
    endpoints: [String; Part::ALL.len()],
    devices: String,
}

/// One host of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    pub address: Host,
    /// Its host name, for messages.
    pub host: String,
    /// Number of members on this node.
    pub size: u32,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Member {
    /// Among all processes, node by node.
    pub rank: Rank,
    pub node: NodeIndex,
    pub local_rank: u32,
    pub part: Part,
    /// Index within its part: a trainer's `PADDLE_TRAINER_ID`.
    pub index: u32,
    /// Stage in heterogeneous jobs: 1 for trainers, 0 for members without a stage.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stage: u32,
    pub endpoint: Endpoint<Host>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Topology {
    pub fn new(
        job_id: JobId,
        nodes: Vec<Node>,
        members: Vec<Member>,
        (paddle_store, torch_store): (Endpoint<Host>, Endpoint<Host>),
        device_kind: Option<DeviceKind>,
    ) -> Self {
        Self {
            job_id,
            nodes,
            members,
            paddle_store,
            relayed_store: None,
            torch_store,
            agent_store: false,
            changes: 0,
            device_kind,
            lists: Lazy::default(),
            hosts: Lazy::default(),
        }
    }

    fn lists(&self) -> &Lists {
        self.lists.get_or_init(|| {
            let devices: Vec<String> = self.members.iter().map(|member| member.device_positions(":")).collect();
            Lists { endpoints: Part::ALL.map(|part| joined(&self.members, part, None)), devices: devices.join(",") }
        })
    }

    /// The same, with torch's store hosted by umiak at this endpoint.
    #[must_use]
    pub fn with_agent_store(mut self, at: Endpoint<Host>) -> Self {
        (self.torch_store, self.agent_store) = (at, true);
        self
    }

    /// Where this member finds Paddle's store; for rank 0, where it hosts it.
    pub fn paddle_store_of(&self, member: &Member) -> &Endpoint<Host> {
        self.relayed_store.as_ref().filter(|_| member.rank == Rank(0)).unwrap_or(&self.paddle_store)
    }

    pub fn world_size(&self) -> WorldSize {
        WorldSize::new(self.members.len() as u32).expect("a topology has at least one member")
    }

    pub fn local_size(&self, member: &Member) -> u32 {
        self.nodes[member.node.0 as usize].size
    }

    /// The trainers' endpoints by rank, joined by commas.
    pub fn endpoint_list(&self) -> &str {
        self.endpoints(Part::Trainer)
    }

    /// The trainers' hosts by rank, joined by commas.
    pub fn host_list(&self) -> &str {
        self.hosts.get_or_init(|| {
            let trainers = self.members_of(Part::Trainer);
            trainers.iter().map(|member| member.endpoint.address.to_string()).collect::<Vec<_>>().join(",")
        })
    }

    /// The endpoints of a part, by index.
    pub fn endpoints(&self, part: Part) -> &str {
        &self.lists().endpoints[part as usize]
    }

    /// The same for one stage of heterogeneous trainers.
    pub fn stage_endpoints(&self, stage: u32) -> String {
        joined(&self.members, Part::HeterTrainer, Some(stage))
    }

    /// The members of a part, by index.
    pub fn members_of(&self, part: Part) -> Vec<&Member> {
        let mut these: Vec<&Member> = self.members.iter().filter(|member| member.part == part).collect();
        these.sort_by_key(|member| member.index);
        these
    }

    /// The number of members of this part.
    pub fn count(&self, part: Part) -> u32 {
        self.members.iter().filter(|member| member.part == part).count() as u32
    }

    /// The parts that have members, in their order.
    pub fn parts(&self) -> Vec<Part> {
        Part::ALL.into_iter().filter(|part| self.count(*part) > 0).collect()
    }

    /// `0:1,2:3` for two processes with two devices each; n − 1 commas on CPU.
    pub fn device_list(&self) -> &str {
        &self.lists().devices
    }
}

fn joined(members: &[Member], part: Part, stage: Option<u32>) -> String {
    let mut these: Vec<&Member> = members
        .iter()
        .filter(|member| member.part == part && stage.is_none_or(|stage| stage == member.stage))
        .collect();
    these.sort_by_key(|member| member.index);
    these.iter().map(|member| member.endpoint.to_string()).collect::<Vec<_>>().join(",")
}

impl Member {
    /// The name of its log file, on every node.
    pub fn log_name(&self) -> String {
        format!("{}.{}", self.part.log_stem(), self.index)
    }

    /// Positions in the node's list of visible devices.
    pub fn device_positions(&self, separator: &str) -> String {
        self.devices.iter().map(|device| device.position.to_string()).collect::<Vec<_>>().join(separator)
    }
}
