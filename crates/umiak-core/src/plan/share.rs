//! The ranks of an attempt on all nodes: of this node alone, or as the coordinator assigns them.

use std::net::{IpAddr, Ipv4Addr};

use crate::contract::{Member, Node, Topology};
use crate::diag::{Code, Diagnostic};
use crate::machine::round::messages::{NodeProcess, NodeShare, Offer, Start};
use crate::model::{
    Crew, Device, DeviceKind, Endpoint, FIRST_ATTEMPT, Generation, Host, Mode, NodeIndex, Nodes, Part, Port, Rank,
    Request, StoreHost,
};

use super::devices::Assignment;
use super::seats::seats;
use super::{Inventory, Layout, Ports, Seat, nodes};

/// The ranks of all nodes, and which of them are this node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub topology: Topology,
    /// The index of this node.
    pub you: NodeIndex,
}

impl Share {
    /// The share as far as known without the coordinator: complete for one node. Other nodes are assumed to be like this
    /// one.
    pub fn without_others(
        request: &Request,
        inventory: &Inventory,
        layout: &Layout,
        ports: &Ports,
    ) -> Result<Self, Diagnostic> {
        let (addresses, you) = match &request.nodes {
            Nodes::One => (vec![layout.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))], 0),
            Nodes::List { addresses, source } => {
                let own = nodes::own_index(addresses, source, &inventory.addresses, request.host)?;
                (addresses.clone(), own)
            }
            Nodes::Master { nodes, .. } | Nodes::Auto { nodes, .. } | Nodes::Etcd { nodes, .. } => {
                let own = request.host.unwrap_or_else(|| nodes::likely_address(&inventory.addresses));
                (vec![own; *nodes as usize], request.node_rank.unwrap_or(0) as usize)
            }
        };
        let Offer { processes, stores, device_kind } = offer(layout, ports);
        let share = |(node, address): (usize, &IpAddr)| NodeShare {
            launch: 0,
            address: *address,
            host: inventory.hostname.clone(),
            processes: if node == you { processes.clone() } else { likely(request, node, *address, &processes) },
            device_kind,
        };
        let store = |port| Endpoint { address: addresses[0], port };
        let start = Start {
            attempt: FIRST_ATTEMPT,
            nodes: addresses.iter().enumerate().map(share).collect(),
            paddle_store: store(stores[0]),
            torch_store: store(stores[1]),
            restarts: None,
            last: None,
            commands: Vec::new(),
            you: you as u32,
        };
        Self::of(request, layout, &start)
    }

    /// The share of several nodes, from the coordinator's start message. It comes from another host, so it is checked.
    pub fn of(request: &Request, layout: &Layout, start: &Start) -> Result<Self, Diagnostic> {
        let bad = |what: &str| {
            Err(Diagnostic::error(Code::L0016, format!("invalid start message from the coordinator: {what}"))
                .hint("this is a bug in umiak; report it with this message"))
        };
        let Some(own) = start.nodes.get(start.you as usize) else { return bad("this node is not in it") };
        let same = own.processes.len() == layout.seats.len()
            && own.processes.iter().zip(&layout.seats).all(|(process, seat)| process.part == seat.part);
        if !same {
            return bad("its processes for this node differ from the planned ones");
        }
        if start.nodes.iter().any(|node| node.processes.is_empty()) {
            return bad("a node in it has no processes");
        }
        let members = members(request, &start.nodes)?;
        Ok(Self { topology: topology(request, start, members, own.device_kind), you: NodeIndex(start.you) })
    }

    /// The same, with a relay in front of Paddle's store, which rank 0 hosts on this port: the third of this node's ports
    /// for stores. Other nodes are not told.
    #[must_use]
    pub fn relaying(mut self, port: Option<&Port>) -> Self {
        if let (NodeIndex(0), Some(port)) = (self.you, port) {
            let address = self.topology.paddle_store.address.clone();
            self.topology.relayed_store = Some(Endpoint { address, port: *port });
        }
        self
    }
}

/// The processes and ports that this node offers for an attempt.
pub fn offer(layout: &Layout, ports: &Ports) -> Offer {
    let seats = layout.seats.iter().zip(&layout.assignment.processes).zip(&ports.endpoints);
    let process = |((seat, devices), port): ((&Seat, &Vec<Device>), &Port)| NodeProcess {
        port: *port,
        devices: devices.clone(),
        part: seat.part,
        stage: seat.stage,
    };
    Offer {
        processes: seats.map(process).collect(),
        stores: [ports.stores[0], ports.stores[1]],
        device_kind: device_kind(&layout.assignment),
    }
}

/// The probable offer of another node: the processes in the lists, otherwise the same as this node's.
fn likely(request: &Request, node: usize, address: IpAddr, own: &[NodeProcess]) -> Vec<NodeProcess> {
    // Server pods come first, and each pod has one process.
    if let Mode::Servers(mode) = &request.mode
        && let Some(pod) = &mode.pod
    {
        let part = if node < pod.servers.len() { Part::Server } else { Part::Trainer };
        return own.iter().take(1).map(|own| NodeProcess { part, devices: Vec::new(), ..own.clone() }).collect();
    }
    let mut free = own.iter();
    let process = |seat: Seat| match seat.port {
        Some(port) => Some(NodeProcess { port, devices: Vec::new(), part: seat.part, stage: seat.stage }),
        None => free.find(|process| process.part == seat.part).cloned(),
    };
    match &request.mode {
        Mode::Servers(_) => seats(request, Some(address), 0).into_iter().filter_map(process).collect(),
        Mode::Collective | Mode::Rpc => own.to_vec(),
    }
}

/// The kind of the devices that are assigned to processes.
fn device_kind(assignment: &Assignment) -> Option<DeviceKind> {
    assignment.kind.filter(|_| assignment.processes.iter().any(|devices| !devices.is_empty()))
}

/// All members, node by node. Members of a part are numbered node by node too, unless a list sets their order.
fn members(request: &Request, nodes: &[NodeShare]) -> Result<Vec<Member>, Diagnostic> {
    let mut members: Vec<Member> = Vec::new();
    let mut counts = [0; Part::ALL.len()];
    for (node, NodeShare { address, processes, .. }) in nodes.iter().enumerate() {
        for (local, process) in processes.iter().enumerate() {
            let NodeProcess { port, devices, part, stage } = process;
            let endpoint = Endpoint { address: *address, port: *port };
            let count = &mut counts[*part as usize];
            let index = match listed(request, *part) {
                None => *count,
                Some(list) => {
                    let place = list.iter().position(|other| **other == endpoint);
                    place.ok_or_else(|| not_in_the_list(*part, endpoint))? as u32
                }
            };
            *count += 1;
            members.push(Member {
                // Ranks are numbered across nodes.
                rank: Rank(members.len() as u32),
                node: NodeIndex(node as u32),
                local_rank: local as u32,
                part: *part,
                index,
                stage: *stage,
                endpoint: endpoint.into(),
                devices: devices.clone(),
            });
        }
    }
    Ok(members)
}

/// The list that sets the order of a part, if any.
fn listed(request: &Request, part: Part) -> Option<Vec<&Endpoint>> {
    let Mode::Servers(mode) = &request.mode else { return None };
    let crews: Vec<&Crew> = match part {
        Part::Leader => return None,
        Part::Server => vec![&mode.servers],
        Part::Trainer => vec![&mode.trainers],
        Part::Coordinator => vec![&mode.coordinators],
        Part::HeterTrainer => mode.stages.iter().map(|stage| &stage.crew).collect(),
    };
    let lists = crews.into_iter().map(|crew| match crew {
        Crew::Listed(list) => Some(list),
        Crew::Each(_) => None,
    });
    Some(lists.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

fn not_in_the_list(part: Part, endpoint: Endpoint) -> Diagnostic {
    let message = format!("another node has a {} at {endpoint}, which is not in this node's list", part.role());
    Diagnostic::error(Code::L0004, message).hint("give every node the same lists, in the same order")
}

fn topology(request: &Request, start: &Start, members: Vec<Member>, device_kind: Option<DeviceKind>) -> Topology {
    let hosts = start.nodes.iter().map(|NodeShare { address, host, processes, .. }| Node {
        address: (*address).into(),
        host: host.clone(),
        size: processes.len() as u32,
    });
    // With a static node list, the current launcher reserves no port for the store and uses the first endpoint.
    let is_static = request.ip.is_some() || matches!(request.nodes, Nodes::List { .. });
    let is_current = request.paddle.as_ref().is_some_and(|paddle| paddle.variables.generation == Generation::Current);
    let first_endpoint = is_current && is_static && !matches!(request.mode, Mode::Servers(_)) && !request.store_relay;
    let paddle_store = if first_endpoint { members[0].endpoint.clone() } else { start.paddle_store.into() };
    let stores = (paddle_store, start.torch_store.into());
    let mut topology = Topology::new(request.job_id.clone(), hosts.collect(), members, stores, device_kind);
    topology.changes = start.last.map_or(0, |last| last.changes);
    match agent_store(request, start) {
        Some(at) => topology.with_agent_store(at),
        None => topology,
    }
}

/// Where ranks find the store that umiak hosts. With several nodes that is where the nodes meet.
fn agent_store(request: &Request, start: &Start) -> Option<Endpoint<Host>> {
    let StoreHost::Agent { host, port } = &request.store else { return None };
    let usual = match &request.nodes {
        Nodes::Master { host, port, .. } => Endpoint { address: Host::from(host.clone()), port: *port },
        Nodes::One | Nodes::List { .. } | Nodes::Auto { .. } | Nodes::Etcd { .. } => start.torch_store.into(),
    };
    let address = host.clone().map_or(usual.address, Host::from);
    Some(Endpoint { address, port: port.unwrap_or(usual.port) })
}
