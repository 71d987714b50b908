//! Who takes part in an attempt, and where: this node alone, or as the coordinator says.

use std::net::{IpAddr, Ipv4Addr};

use crate::contract::{Member, Node, Topology};
use crate::diag::{Code, Diagnostic};
use crate::machine::round::messages::{NodeShare, Offer, Process, Start};
use crate::model::{Crew, Device, DeviceKind, Endpoint, Generation, Mode, NodeIndex, Nodes, Part, Port, Rank, Request};

use super::devices::Assignment;
use super::seats::seats;
use super::{Inventory, Layout, Ports, Seat};

/// The ranks of all nodes, and which of them are this node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    topology: Topology,
    you: NodeIndex,
}

impl Share {
    /// One node, which needs nobody's word.
    pub fn alone(request: &Request, inventory: &Inventory, layout: &Layout, ports: &Ports) -> Self {
        let address = layout.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let node = Placed { address, host: inventory.hostname.clone(), processes: offer(layout, ports).processes };
        let store = |index: usize| Endpoint { address, port: ports.stores[index] };
        let kind = device_kind(&layout.assignment);
        let members = members(request, std::slice::from_ref(&node)).expect("one node is where its own list says");
        Self { topology: topology(request, vec![node], members, (store(0), store(1)), kind), you: NodeIndex(0) }
    }

    /// Several nodes, by the coordinator's order. It comes from another host, so nothing in it is taken for granted.
    pub fn of(request: &Request, layout: &Layout, start: &Start) -> Result<Self, Diagnostic> {
        let bad = |what: &str| {
            Err(Diagnostic::error(Code::L0016, format!("the coordinator's order to start cannot be followed: {what}"))
                .hint("this should not happen; report it with this text"))
        };
        let Some(own) = start.nodes.get(start.you as usize) else { return bad("it gives this node no place") };
        let same = own.processes.len() == layout.seats.len()
            && own.processes.iter().zip(&layout.seats).all(|(process, seat)| process.part == seat.part);
        if !same {
            return bad("it has other processes for this node than there are");
        }
        let mut nodes = Vec::with_capacity(start.nodes.len());
        for NodeShare { address, host, processes, .. } in &start.nodes {
            if processes.is_empty() {
                return bad("a node in it has no processes");
            }
            nodes.push(Placed { address: *address, host: host.clone(), processes: processes.clone() });
        }
        let members = members(request, &nodes)?;
        let stores = (start.paddle_store, start.torch_store);
        Ok(Self { topology: topology(request, nodes, members, stores, own.device_kind), you: NodeIndex(start.you) })
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
    let seats = layout.seats.iter().zip(&layout.assignment.processes).zip(&ports.endpoints);
    let process = |((seat, devices), port): ((&Seat, &Vec<Device>), &Port)| Process {
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

/// What another node would probably bring: what the lists say of it, and otherwise the same as this one.
pub fn rehearsed(request: &Request, address: IpAddr, own: &Offer) -> Vec<Process> {
    let mut free = own.processes.iter();
    let process = |seat: Seat| match seat.port {
        Some(port) => Some(Process { port, devices: Vec::new(), part: seat.part, stage: seat.stage }),
        None => free.find(|process| process.part == seat.part).cloned(),
    };
    match &request.mode {
        Mode::Servers(_) => seats(request, Some(address), 0).into_iter().filter_map(process).collect(),
        Mode::Collective | Mode::Rpc => own.processes.clone(),
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
    processes: Vec<Process>,
}

/// Everybody, node by node. A part is counted node by node too, unless a list gives it an order of its own.
fn members(request: &Request, nodes: &[Placed]) -> Result<Vec<Member>, Diagnostic> {
    let mut members: Vec<Member> = Vec::new();
    let mut counts = [0; Part::ALL.len()];
    for (node, Placed { address, processes, .. }) in nodes.iter().enumerate() {
        for (local, process) in processes.iter().enumerate() {
            let Process { port, devices, part, stage } = process;
            let endpoint = Endpoint { address: *address, port: *port };
            let count = &mut counts[*part as usize];
            let index = match listed(request, *part) {
                Listed::No => *count,
                Listed::In(list) => {
                    let place = list.iter().position(|other| **other == endpoint);
                    place.ok_or_else(|| not_in_the_list(*part, endpoint))? as u32
                }
            };
            *count += 1;
            members.push(Member {
                // Ranks go on from node to node.
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

/// Where the order of a part comes from.
enum Listed<'a> {
    No,
    In(Vec<&'a Endpoint>),
}

fn listed(request: &Request, part: Part) -> Listed<'_> {
    let Mode::Servers(mode) = &request.mode else { return Listed::No };
    let crews: Vec<&Crew> = match part {
        Part::Server => vec![&mode.servers],
        Part::Trainer => vec![&mode.trainers],
        Part::Coordinator => vec![&mode.coordinators],
        Part::HeterTrainer => mode.stages.iter().map(|stage| &stage.crew).collect(),
    };
    let lists = crews.iter().map(|crew| match crew {
        Crew::Listed(list) => Some(list.iter()),
        Crew::Each(_) => None,
    });
    match lists.collect::<Option<Vec<_>>>() {
        Some(lists) => Listed::In(lists.into_iter().flatten().collect()),
        None => Listed::No,
    }
}

fn not_in_the_list(part: Part, endpoint: Endpoint) -> Diagnostic {
    let message = format!("another node has a {} at {endpoint}, which is not in the list of this one", part.role());
    Diagnostic::error(Code::L0004, message).hint("give every node the same lists, in the same order")
}

fn topology(
    request: &Request,
    nodes: Vec<Placed>,
    members: Vec<Member>,
    (paddle_store, torch_store): (Endpoint, Endpoint),
    device_kind: Option<DeviceKind>,
) -> Topology {
    let hosts = nodes.into_iter().map(|Placed { address, host, processes }| Node {
        address: address.into(),
        host,
        size: processes.len() as u32,
    });
    // With a static node list the current launcher reserves no port for the store: the first endpoint is it.
    let is_static = request.ip.is_some() || matches!(request.nodes, Nodes::List { .. });
    let is_current = request.paddle.as_ref().is_some_and(|paddle| paddle.variables.generation == Generation::Current);
    let first_endpoint = is_current && is_static && !matches!(request.mode, Mode::Servers(_));
    let paddle_store = if first_endpoint { members[0].endpoint.clone() } else { paddle_store.into() };
    Topology::new(request.job_id.clone(), hosts.collect(), members, (paddle_store, torch_store.into()), device_kind)
}
