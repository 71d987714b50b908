//! Where the nodes of a job meet: which of them is the coordinator, and on which port.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::launch::LaunchSpec;
use umiak_core::machine::round::messages::Expects;
use umiak_core::model::{Nodes, Port};
use umiak_core::plan::{Inventory, nodes};
use umiak_core::wire::auth::Key;

use crate::rendezvous::{self, Holder, Target};

/// What this node needs to join the job.
pub(super) struct MeetingPlace {
    pub(super) target: Target,
    pub(super) host: Option<std::net::TcpListener>,
    pub(super) address: IpAddr,
    pub(super) expects: Expects,
    pub(super) at: String,
}

impl MeetingPlace {
    /// Where processes of all nodes reach the coordinator: as the nodes were told, or this node's own address.
    pub(super) fn reached_at(&self, nodes: &Nodes) -> (String, Option<Port>) {
        let port = match &self.target {
            Target::Address(address) => address.port(),
            Target::Name { port, .. } => *port,
        };
        let host = match nodes {
            Nodes::Master { host, .. } => host.clone(),
            Nodes::List { addresses, .. } => addresses[0].to_string(),
            Nodes::One | Nodes::Auto { .. } | Nodes::Etcd { .. } => self.address.to_string(),
        };
        (host, Port::new(port))
    }

    /// True if no other host can reach it.
    pub(super) fn is_loopback(&self) -> bool {
        match &self.target {
            _ if !self.address.is_unspecified() => self.address.is_loopback(),
            Target::Address(address) => address.ip().is_loopback(),
            Target::Name { host, .. } => host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()) || host == "localhost",
        }
    }
}

pub(super) fn place(spec: &LaunchSpec, inventory: &Inventory, key: &Key) -> Result<MeetingPlace, Diagnostic> {
    match &spec.request.nodes {
        Nodes::List { addresses, source } => {
            let own = nodes::own_index(addresses, source, &inventory.addresses, spec.request.host)?;
            let port = spec.own.rdzv_port.unwrap_or_else(|| nodes::port(&spec.request, addresses)).get();
            let at = SocketAddr::new(addresses[0], port);
            let host = if own == 0 { Some(listen(port, spec, key)?) } else { None };
            Ok(MeetingPlace {
                target: Target::Address(if host.is_some() { beside(port) } else { at }),
                host,
                address: addresses[own],
                expects: Expects::List(addresses.clone()),
                at: at.to_string(),
            })
        }
        Nodes::Master { host, port, nodes, .. } => at_master(spec, inventory, key, (host, *port), *nodes),
        Nodes::Auto { nodes, .. } => {
            let listener = rendezvous::bind(0).map_err(|error| Diagnostic::failed("listen for other nodes", &error))?;
            let port = listener.local_addr().map_or(0, |address| address.port());
            let address = spec.request.host.unwrap_or_else(|| nodes::likely_address(&inventory.addresses));
            Ok(MeetingPlace {
                target: Target::Address(beside(port)),
                host: Some(listener),
                address,
                expects: expects(spec, *nodes),
                at: SocketAddr::new(address, port).to_string(),
            })
        }
        Nodes::One | Nodes::Etcd { .. } => {
            Err(Diagnostic::error(Code::L0016, "nodes of this job do not meet at a fixed address"))
        }
    }
}

/// As many nodes, or fewer if they may come and go.
fn expects(spec: &LaunchSpec, nodes: u32) -> Expects {
    match &spec.request.elastic {
        Some(elastic) => Expects::Range { min: elastic.min, max: nodes },
        None => Expects::Count { nodes, sort_ip: spec.request.sort_ip },
    }
}

/// The address for the coordinator's own node: it works without a network.
pub(super) fn beside(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// `--master`: the first node with that address becomes the coordinator, unless a scheduler says which node does. Several
/// nodes of a scheduler may be one host.
fn at_master(
    spec: &LaunchSpec,
    inventory: &Inventory,
    key: &Key,
    (host, port): (&str, Port),
    count: u32,
) -> Result<MeetingPlace, Diagnostic> {
    let port = port.get();
    let expects = expects(spec, count);
    let at = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    // A name that does not resolve yet may do so later: the agent tries again.
    let resolved: Vec<IpAddr> =
        (host, port).to_socket_addrs().map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default();
    let is_own = |ip: &IpAddr| ip.is_loopback() || inventory.addresses.iter().any(|own| own.ip == *ip);
    let leads = spec.request.placement.as_ref().and_then(|placement| placement.leads);
    if leads == Some(true) {
        let host = Some(listen(port, spec, key)?);
        // A host's own name may stand for 127.0.1.1 there, as in Debian, where other nodes do not reach it.
        let is_reached = |ip: &&IpAddr| is_own(ip) && (!ip.is_loopback() || **ip == Ipv4Addr::LOCALHOST);
        let own = resolved.iter().find(is_reached).copied();
        let address = spec.request.host.or(own).unwrap_or_else(|| nodes::likely_address(&inventory.addresses));
        return Ok(MeetingPlace { target: Target::Address(beside(port)), host, address, expects, at });
    }
    if let Some(own) = resolved.iter().find(|ip| leads.is_none() && is_own(ip)) {
        match rendezvous::bind(port) {
            Ok(listener) => {
                return Ok(MeetingPlace {
                    target: Target::Address(beside(port)),
                    host: Some(listener),
                    address: spec.request.host.unwrap_or(*own),
                    expects,
                    at,
                });
            }
            // Another node of this job, on this host, may be the coordinator.
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                check_holder(port, spec, key, true)?;
            }
            Err(error) => return Err(cannot_listen(port, &error)),
        }
    }
    Ok(MeetingPlace {
        target: Target::Name { host: host.to_owned(), port },
        host: None,
        address: spec.request.host.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        expects,
        at,
    })
}

fn listen(port: u16, spec: &LaunchSpec, key: &Key) -> Result<std::net::TcpListener, Diagnostic> {
    rendezvous::bind(port).map_err(|error| {
        if error.kind() != std::io::ErrorKind::AddrInUse {
            return cannot_listen(port, &error);
        }
        check_holder(port, spec, key, false).err().unwrap_or_else(|| cannot_listen(port, &error))
    })
}

fn cannot_listen(port: u16, error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(Code::R0003, format!("this node cannot listen on port {port} for the others"))
        .row("reason", error.to_string())
        .hint("choose another port with `--rdzv-port`, the same on every node")
}

/// Finds out what listens on our port. It may be the coordinator of this job, if `may_join`.
fn check_holder(port: u16, spec: &LaunchSpec, key: &Key, may_join: bool) -> Result<(), Diagnostic> {
    let taken = |by: String| Diagnostic::error(Code::R0003, format!("port {port} is in use")).row("by", by);
    match rendezvous::who_holds(beside(port), &spec.request.job_id, key) {
        Holder::SameJob if may_join => Ok(()),
        Holder::SameJob => Err(taken(format!("a job `{}` that already runs on this node", spec.request.job_id))
            .hint("give each job on the same nodes its own `--job_id`")),
        Holder::OtherJob(text) => {
            Err(taken(text).hint("give this job another `--job_id`, or another port with `--rdzv-port`, on every node"))
        }
        Holder::OtherToken => Err(taken("a job of the same name with another token".to_owned())
            .hint("give this job its own `--job_id`, on every node")),
        Holder::SomebodyElse => Err(taken("another program".to_owned())
            .hint("choose another port with `--rdzv-port` (or `--master`), the same on every node")),
    }
}
