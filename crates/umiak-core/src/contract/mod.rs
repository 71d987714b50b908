//! Environment dialects: a contract is a pure function from (topology, member) to variables.
//!
//! `launch` gives [`paddle`] and [`torch`] together, so either framework's script works. What differs from
//! the launchers we stand in for is listed in [`differences`], and nowhere else.

pub mod differences;
pub mod paddle;
pub mod torch;

use std::net::IpAddr;

use crate::model::{Device, DeviceKind, Endpoint, JobId, NodeIndex, Rank, WorldSize};

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
    endpoints: String,
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

/// One rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub rank: Rank,
    pub node: NodeIndex,
    pub local_rank: u32,
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
        let endpoints: Vec<String> = members.iter().map(|member| member.endpoint.to_string()).collect();
        let devices: Vec<String> = members.iter().map(|member| member.device_positions(":")).collect();
        let lists = Lists { endpoints: endpoints.join(","), devices: devices.join(",") };
        Self { job_id, nodes, members, paddle_store, torch_store, device_kind, lists }
    }

    pub fn world_size(&self) -> WorldSize {
        WorldSize::new(self.members.len() as u32).expect("a topology has at least one member")
    }

    pub fn local_size(&self, member: &Member) -> u32 {
        self.nodes[member.node.0 as usize].size
    }

    /// All endpoints by rank, joined by commas.
    pub fn endpoint_list(&self) -> &str {
        &self.lists.endpoints
    }

    /// `0:1,2:3` for two processes with two devices each; n − 1 commas on CPU.
    pub fn device_list(&self) -> &str {
        &self.lists.devices
    }
}

impl Member {
    /// Positions in the node's list of visible devices.
    pub fn device_positions(&self, separator: &str) -> String {
        self.devices.iter().map(|device| device.position.to_string()).collect::<Vec<_>>().join(separator)
    }
}
