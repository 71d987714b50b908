//! Environment dialects: a contract is a pure function from (topology, member) to variables.
//!
//! `launch` gives [`paddle`] and [`torch`] together, so either framework's script works; jobs with servers have
//! [`servers`], and rpc jobs [`rpc`] instead of the former. What differs from the launchers we stand in for is listed in
//! [`differences`], and nowhere else.

pub mod differences;
pub mod paddle;
pub mod rpc;
pub mod servers;
pub mod torch;

use std::net::IpAddr;

use crate::model::{Device, DeviceKind, Endpoint, JobId, NodeIndex, Part, Rank, WorldSize};

/// A variable and its value.
pub type Variable = (String, String);

/// Who takes part and where, as every contract sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    pub job_id: JobId,
    pub nodes: Vec<Node>,
    /// By rank.
    pub members: Vec<Member>,
    /// Where Paddle's rank 0 hosts its store.
    pub paddle_store: Endpoint,
    /// Where torch's rank 0 hosts its store.
    pub torch_store: Endpoint,
    /// What the members' devices are; `None` on CPU.
    pub device_kind: Option<DeviceKind>,
    lists: Lists,
}

/// Lists over all members, which every member is given: made once.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lists {
    /// Of each part.
    endpoints: [String; Part::ALL.len()],
    devices: String,
}

/// One host of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub address: IpAddr,
    /// Its name, for people.
    pub host: String,
    /// How many members run here.
    pub size: u32,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Among all processes, node by node.
    pub rank: Rank,
    pub node: NodeIndex,
    pub local_rank: u32,
    pub part: Part,
    /// Among those of its part: a trainer's `PADDLE_TRAINER_ID`.
    pub index: u32,
    /// Of heterogeneous jobs: 1 is the trainers', and 0 that of who has none.
    pub stage: u32,
    pub endpoint: Endpoint,
    pub devices: Vec<Device>,
}

impl Topology {
    pub fn new(
        job_id: JobId,
        nodes: Vec<Node>,
        members: Vec<Member>,
        (paddle_store, torch_store): (Endpoint, Endpoint),
        device_kind: Option<DeviceKind>,
    ) -> Self {
        let endpoints = Part::ALL.map(|part| joined(&members, part, None));
        let devices: Vec<String> = members.iter().map(|member| member.device_positions(":")).collect();
        let lists = Lists { endpoints, devices: devices.join(",") };
        Self { job_id, nodes, members, paddle_store, torch_store, device_kind, lists }
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

    /// The endpoints of a part, in its own order.
    pub fn endpoints(&self, part: Part) -> &str {
        &self.lists.endpoints[part as usize]
    }

    /// The same for one stage of heterogeneous trainers.
    pub fn stage_endpoints(&self, stage: u32) -> String {
        joined(&self.members, Part::HeterTrainer, Some(stage))
    }

    /// How many of this part there are.
    pub fn count(&self, part: Part) -> u32 {
        self.members.iter().filter(|member| member.part == part).count() as u32
    }

    /// The parts that somebody has, in their order.
    pub fn parts(&self) -> Vec<Part> {
        Part::ALL.into_iter().filter(|part| self.count(*part) > 0).collect()
    }

    /// `0:1,2:3` for two processes with two devices each; n − 1 commas on CPU.
    pub fn device_list(&self) -> &str {
        &self.lists.devices
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
    /// What its log is called, on every node.
    pub fn log_name(&self) -> String {
        format!("{}.{}", self.part.log_stem(), self.index)
    }

    /// Positions in the node's list of visible devices.
    pub fn device_positions(&self, separator: &str) -> String {
        self.devices.iter().map(|device| device.position.to_string()).collect::<Vec<_>>().join(separator)
    }
}
