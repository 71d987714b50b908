//! Who takes part in an attempt, and where: this node alone, or as the coordinator says.

use std::net::{IpAddr, Ipv4Addr};

use crate::contract::{Member, Node, Topology};
use crate::diag::{Code, Diagnostic};
use crate::formats::launch::{Generation, LaunchSpec, Nodes};
use crate::machine::round::messages::{NodeShare, Offer, Process, Start};
use crate::model::{DeviceKind, Endpoint, NodeIndex, Port, Rank};

use super::devices::Assignment;
use super::{Inventory, Layout, Ports};

/// The ranks of all nodes, and which of them are this node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    topology: Topology,
    you: NodeIndex,
}

impl Share {
    /// One node, which needs nobody's word.
    pub fn alone(spec: &LaunchSpec, inventory: &Inventory, layout: &Layout, ports: &Ports) -> Self {
        let address = layout.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let processes = layout.assignment.processes.iter().zip(&ports.endpoints);
        let node = Placed {
            address,
            host: inventory.hostname.clone(),
            processes: processes.map(|(devices, port)| (*port, devices.clone())).collect(),
        };
        let store = |index: usize| Endpoint { address, port: ports.stores[index] };
        let kind = device_kind(&layout.assignment);
        Self { topology: topology(spec, vec![node], (store(0), store(1)), kind), you: NodeIndex(0) }
    }

    /// Several nodes, by the coordinator's order. It comes from another host, so nothing in it is taken for granted.
    pub fn of(spec: &LaunchSpec, layout: &Layout, start: &Start) -> Result<Self, Diagnostic> {
        let bad = |what: &str| {
            Err(Diagnostic::error(Code::L0016, format!("the coordinator's order to start cannot be followed: {what}"))
                .hint("this should not happen; report it with this text"))
        };
        let Some(own) = start.nodes.get(start.you as usize) else { return bad("it gives this node no place") };
        if own.processes.len() != layout.assignment.processes.len() {
            return bad("it has another number of processes for this node than there are");
        }
        let mut nodes = Vec::with_capacity(start.nodes.len());
        for NodeShare { address, host, processes, .. } in &start.nodes {
            if processes.is_empty() {
                return bad("a node in it has no processes");
            }
            let processes = processes.iter().map(|Process { port, devices }| (*port, devices.clone())).collect();
            nodes.push(Placed { address: *address, host: host.clone(), processes });
        }
        let stores = (start.paddle_store, start.torch_store);
        Ok(Self { topology: topology(spec, nodes, stores, own.device_kind), you: NodeIndex(start.you) })
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Which node this is.
    pub fn you(&self) -> NodeIndex {
        self.you
    }

    pub(super) fn into_parts(self) -> (Topology, NodeIndex) {
        (self.topology, self.you)
    }
}

/// What this node brings to an attempt.
pub fn offer(layout: &Layout, ports: &Ports) -> Offer {
    let processes = layout.assignment.processes.iter().zip(&ports.endpoints);
    Offer {
        processes: processes.map(|(devices, port)| Process { port: *port, devices: devices.clone() }).collect(),
        stores: [ports.stores[0], ports.stores[1]],
        device_kind: device_kind(&layout.assignment),
    }
}

/// The kind of the devices that processes really have.
fn device_kind(assignment: &Assignment) -> Option<DeviceKind> {
    assignment.kind.filter(|_| assignment.processes.iter().any(|devices| !devices.is_empty()))
}

/// A node whose ports are known.
struct Placed {
    address: IpAddr,
    host: String,
    processes: Vec<(Port, Vec<crate::model::Device>)>,
}

fn topology(
    spec: &LaunchSpec,
    nodes: Vec<Placed>,
    (paddle_store, torch_store): (Endpoint, Endpoint),
    device_kind: Option<DeviceKind>,
) -> Topology {
    let mut members: Vec<Member> = Vec::new();
    let mut hosts = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.into_iter().enumerate() {
        let Placed { address, host, processes } = node;
        hosts.push(Node { address, host, size: processes.len() as u32 });
        for (local, (port, devices)) in processes.into_iter().enumerate() {
            // Ranks go on from node to node.
            members.push(Member {
                rank: Rank(members.len() as u32),
                node: NodeIndex(index as u32),
                local_rank: local as u32,
                endpoint: Endpoint { address, port },
                devices,
            });
        }
    }
    // With a static node list the current launcher reserves no port for the store: the first endpoint is it.
    let is_static = spec.ip.is_some() || matches!(spec.nodes, Nodes::List { .. });
    let first_endpoint = spec.generation == Generation::Current && is_static;
    let paddle_store = if first_endpoint { members[0].endpoint } else { paddle_store };
    Topology::new(spec.job_id.clone(), hosts, members, (paddle_store, torch_store), device_kind)
}
