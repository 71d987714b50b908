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
}

/// One host of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub address: IpAddr,
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
    pub fn world_size(&self) -> WorldSize {
        WorldSize::new(self.members.len() as u32).expect("a topology has at least one member")
    }

    pub fn local_size(&self, member: &Member) -> u32 {
        self.nodes[member.node.0 as usize].size
    }

    /// All endpoints by rank, joined by commas.
    pub fn endpoint_list(&self) -> String {
        self.members.iter().map(|member| member.endpoint.to_string()).collect::<Vec<_>>().join(",")
    }
}
