//! Several nodes: the index of this node, the port where they meet, and the network interface of the ranks.

use std::ffi::OsString;
use std::net::IpAddr;

use crate::contract::Variable;
use crate::diag::{Code, Diagnostic};
use crate::machine::round::bounds::cut;
use crate::mask;
use crate::model::meeting::{self, FIRST_PORT, PORTS};
use crate::model::{CommandRequest, Crew, Mode, Port, PortRequest, Request, ServerMode};
use crate::quote;

use super::{Address, Inventory};

/// The index of this node in `list`: the address of one of its interfaces, or `host`, which is `--host` or `POD_IP`.
/// Every host has the loopback addresses, so they count only as `host`.
pub fn own_index(list: &[IpAddr], source: &str, own: &[Address], host: Option<IpAddr>) -> Result<usize, Diagnostic> {
    if let Some(host) = host {
        return list.iter().position(|listed| *listed == host).ok_or_else(|| {
            let message = format!("`--host` or `POD_IP` is {host}, which is not in `{source}`");
            Diagnostic::error(Code::L0004, message)
                .row("listed", lines(list))
                .row("this host", addresses(own))
                .hint("set `--host` or `POD_IP` to a listed address, or leave them out")
        });
    }
    let ours: Vec<usize> = (0..list.len())
        .filter(|index| !list[*index].is_loopback() && own.iter().any(|address| address.ip == list[*index]))
        .collect();
    match ours.as_slice() {
        [index] => Ok(*index),
        [] => Err(not_listed(list, source, own)),
        [first, ..] => {
            let ours: Vec<IpAddr> = ours.iter().map(|index| list[*index]).collect();
            Err(Diagnostic::error(Code::L0018, format!("several addresses in `{source}` belong to this host"))
                .row("this host", lines(&ours))
                .hint(format!("choose one with `--host {}`", list[*first])))
        }
    }
}

/// The error for a list without any address of this host.
pub(super) fn not_listed(list: &[IpAddr], source: &str, own: &[Address]) -> Diagnostic {
    let error = Diagnostic::error(Code::L0004, format!("this host is not in `{source}`"))
        .row("listed", lines(list))
        .row("this host", addresses(own));
    match list.first() {
        Some(first) => error.hint(format!("run on a listed node, or say which one this is with `--host {first}`")),
        None => error,
    }
}

/// One address on each line; the end of a long list is omitted.
fn lines(list: &[IpAddr]) -> String {
    const SHOWN: usize = 16;
    let mut lines: Vec<String> = list.iter().take(SHOWN).map(IpAddr::to_string).collect();
    if list.len() > SHOWN {
        lines.push(format!("and {} more", list.len() - SHOWN));
    }
    lines.join("\n")
}

fn addresses(own: &[Address]) -> String {
    let own: Vec<String> = own
        .iter()
        .filter(|address| !address.ip.is_loopback())
        .map(|address| format!("{} ({})", address.ip, address.interface))
        .collect();
    if own.is_empty() { "127.0.0.1 only".to_owned() } else { own.join("\n") }
}

/// The port where the nodes of `list` meet, if the command line does not set it. It depends on the job and the list, so
/// that concurrent jobs on the same hosts rarely collide. Every node computes the same port.
pub fn port(request: &Request, list: &[IpAddr]) -> Port {
    let named = named(request, list.len());
    let listed = listed(request);
    let is_named =
        |port: u16| named.is_some_and(|(low, high)| (low..high).contains(&u32::from(port))) || listed.contains(&port);
    let text = list.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
    let mut ports = meeting::ports(request.job_id.as_str(), &text).peekable();
    let offset = ports.peek().map_or(0, |first| first - FIRST_PORT);
    let found = ports.find(|port| !is_named(*port));
    // The ranks use all candidates: take a port after theirs.
    let beyond = || named.and_then(|(_, end)| u16::try_from(end + u32::from(offset)).ok());
    found.or_else(beyond).and_then(Port::new).unwrap_or_else(|| Port::new(FIRST_PORT - 1).expect("not 0"))
}

/// The ports of endpoint lists and of gloo on all hosts, because every node must compute the same result.
fn listed(request: &Request) -> Vec<u16> {
    let Mode::Servers(mode) = &request.mode else { return Vec::new() };
    let ports = crews(mode).flat_map(|crew| match crew {
        Crew::Listed(list) => list.as_slice(),
        Crew::Each(_) => &[],
    });
    ports.map(|endpoint| endpoint.port.get()).chain(mode.gloo_port.map(Port::get)).collect()
}

fn crews(mode: &ServerMode) -> impl Iterator<Item = &Crew> {
    let stages = mode.stages.iter().map(|stage| &stage.crew);
    [&mode.servers, &mode.trainers, &mode.coordinators].into_iter().chain(stages)
}

/// The half-open range of the ranks' ports on the command line, as every node computes it. `None` if a platform assigns
/// different ports to each node.
fn named(request: &Request, nodes: usize) -> Option<(u32, u32)> {
    let PortRequest::Fixed { start, source } = &request.ports else { return None };
    let listed = request.devices.as_ref().map(|devices| devices.ids.len() as u32);
    let processes = match &request.mode {
        // For processes set by number; lists have their own ports. Other nodes may have other numbers.
        Mode::Servers(_) => u32::from(PORTS),
        Mode::Collective | Mode::Rpc => request.processes.number().or(listed).unwrap_or(u32::from(PORTS)),
    };
    let start = u32::from(*start);
    match source.as_str() {
        "DISTRIBUTED_TRAINER_ENDPOINTS" => None,
        // Each node adds its rank to the port.
        "FLAGS_FIXED_PORT" => {
            let start = start.saturating_sub(request.node_rank.unwrap_or(0));
            Some((start, start + processes + nodes as u32))
        }
        _ => Some((start, start + processes)),
    }
}

/// A hash of script and arguments, which are usually equal on all nodes of one job and differ between jobs.
pub fn command_hash(command: &CommandRequest) -> u64 {
    let words = std::iter::once(&command.script).chain(&command.args);
    meeting::fnv(words.flat_map(|word| word.as_encoded_bytes().iter().copied().chain([0])))
}

/// Bytes of a command that other nodes see.
const LINE: usize = 2048;

/// Script and arguments as displayed on other nodes, without secrets.
pub fn command_line(command: &CommandRequest) -> String {
    let words: Vec<OsString> = std::iter::once(&command.script).chain(&command.args).cloned().collect();
    let words: Vec<String> = mask::words(&words).iter().map(|word| quote::shell::quoted(word)).collect();
    cut(&words.join(" "), LINE).to_owned()
}

/// The address at which other hosts most likely reach this one: the first that is not loopback or link-local.
pub fn likely_address(own: &[Address]) -> IpAddr {
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let candidates = || own.iter().map(|address| address.ip).filter(|ip| !ip.is_loopback() && !is_link_local(ip));
    let first = candidates().find(IpAddr::is_ipv4).or_else(|| candidates().next());
    first.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST))
}

/// Variables that set the interface for the frameworks' libraries.
pub const INTERFACE_VARIABLES: [&str; 3] = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"];

/// The variables that name the interface with this node's `address`, except those that the user has set.
pub(super) fn interface(address: IpAddr, inventory: &Inventory) -> Result<Vec<Variable>, Diagnostic> {
    let unset = || INTERFACE_VARIABLES.into_iter().filter(|name| !inventory.env.contains_key(*name));
    // All of 127.0.0.0/8 is on the loopback interface, which lists only one address.
    let is_there =
        |own: &&Address| own.ip == address || address.is_loopback() && own.ip.is_loopback() && address.is_ipv4();
    let own = inventory.addresses.iter();
    let found = own.clone().find(|own| own.ip == address).or_else(|| own.clone().find(is_there));
    match found {
        Some(own) => Ok(unset().map(|name| (name.to_owned(), own.interface.clone())).collect()),
        None if unset().next().is_none() => Ok(Vec::new()),
        None => Err(Diagnostic::notice(
            Code::L0029,
            format!("no network interface of this host has the node's address {address}"),
        )
        .row("this host", addresses(&inventory.addresses))
        .hint("gloo and NCCL choose an interface themselves; set `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` to choose one")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::request::tests::request;
    use crate::model::{Endpoint, JobId};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn list(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| ip(text)).collect()
    }

    fn own() -> Vec<Address> {
        [("lo", "127.0.0.1"), ("eth0", "10.0.0.2"), ("eth0", "fe80::2"), ("ib0", "10.1.0.2")]
            .map(|(interface, address)| Address { interface: interface.to_owned(), ip: ip(address) })
            .to_vec()
    }

    #[test]
    fn which_node_this_is() {
        for (listed, host, expected) in [
            (&["10.0.0.1", "10.0.0.2"][..], None, Ok(1)),
            (&["10.0.0.2", "10.0.0.1"], None, Ok(0)),
            (&["fe80::1", "fe80::2"], None, Ok(1)),
            // Interfaces do not matter if the address is given.
            (&["192.168.0.1", "192.168.0.2"], Some("192.168.0.1"), Ok(0)),
            (&["10.0.0.1", "10.0.0.2"], Some("10.0.0.1"), Ok(0)),
            (&["10.0.0.1", "10.0.0.2"], Some("10.0.0.9"), Err(Code::L0004)),
            (&["192.168.0.1", "192.168.0.2"], None, Err(Code::L0004)),
            // Two networks of one host.
            (&["10.0.0.2", "10.1.0.2"], None, Err(Code::L0018)),
            (&["10.0.0.2", "10.1.0.2"], Some("10.1.0.2"), Ok(1)),
            (&["127.0.0.2", "127.0.0.3"], None, Err(Code::L0004)),
            (&["127.0.0.2", "127.0.0.3"], Some("127.0.0.3"), Ok(1)),
        ] {
            let seen = own_index(&list(listed), "--ips", &own(), host.map(ip)).map_err(|diagnostic| diagnostic.code);
            assert_eq!(seen, expected, "{listed:?} {host:?}");
        }
        assert_eq!(
            own_index(&list(&["10.0.0.1", "10.0.0.3"]), "--ips", &own(), None).unwrap_err().to_plain(),
            "error[L0004]: this host is not in `--ips`\n  listed     10.0.0.1\n             10.0.0.3\n  this host  10.0.0.2 (eth0)\n             fe80::2 (eth0)\n             10.1.0.2 (ib0)\nhint: run on a listed node, or say which one this is with `--host 10.0.0.1`\n"
        );
        assert_eq!(
            own_index(&list(&["10.0.0.2", "10.1.0.2"]), "--ips", &own(), None).unwrap_err().to_plain(),
            "error[L0018]: several addresses in `--ips` belong to this host\n  this host  10.0.0.2\n             10.1.0.2\nhint: choose one with `--host 10.0.0.2`\n"
        );
        let many: Vec<IpAddr> = (0..40).map(|last| ip(&format!("10.9.0.{last}"))).collect();
        assert!(own_index(&many, "--ips", &[], None).unwrap_err().to_plain().contains("and 24 more"));
    }

    #[test]
    fn the_port_is_the_same_for_ever() {
        let two = list(&["192.168.0.1", "192.168.0.2"]);
        // These are part of the protocol: nodes with different builds must agree.
        let named = |job: &str| Request { job_id: JobId::new(job).unwrap(), ..request() };
        let ports: Vec<u16> = ["default", "job1", "job2"].map(|job| port(&named(job), &two).get()).to_vec();
        assert_eq!(ports, [7231, 7230, 7203]);
        assert!(ports.iter().all(|port| (FIRST_PORT..FIRST_PORT + PORTS).contains(port)));
    }

    #[test]
    fn the_port_is_none_that_ranks_were_given() {
        let two = list(&["192.168.0.1", "192.168.0.2"]);
        let free = port(&request(), &two).get();
        let fixed = |start: u16, source: &str, processes: Option<u32>| Request {
            ports: PortRequest::Fixed { start, source: source.to_owned() },
            processes: processes.map_or(crate::model::Processes::PerDevice, crate::model::Processes::Number),
            ..request()
        };
        let next = |port: u16| FIRST_PORT + (port - FIRST_PORT + 1) % PORTS;
        assert_eq!(port(&fixed(6070, "--start_port", None), &two).get(), free);
        assert_eq!(port(&fixed(free, "--start_port", Some(1)), &two).get(), next(free));
        assert_eq!(port(&fixed(FIRST_PORT, "--start_port", Some(64)), &two).get(), free + PORTS);
        assert_eq!(port(&fixed(FIRST_PORT, "--start_port", None), &two).get(), free + PORTS);
        // Both nodes compute each other's ports.
        let ranked =
            |rank: u32| Request { node_rank: Some(rank), ..fixed(free - 1 + rank as u16, "FLAGS_FIXED_PORT", Some(1)) };
        assert_eq!(port(&ranked(0), &two), port(&ranked(1), &two));
        assert_ne!(port(&ranked(0), &two).get(), free);
    }

    #[test]
    fn the_port_is_none_of_the_lists() {
        let two = list(&["192.168.0.1", "192.168.0.2"]);
        let free = port(&request(), &two).get();
        let endpoint = |port: u16| Endpoint { address: two[1], port: Port::new(port).unwrap() };
        let mode = ServerMode {
            servers: Crew::Listed(vec![endpoint(free)]),
            trainers: Crew::Each(1),
            coordinators: Crew::Each(0),
            stages: Vec::new(),
            gloo_port: Port::new(FIRST_PORT),
            with_gloo: "1".to_owned(),
            pod: None,
        };
        assert_eq!(free, FIRST_PORT + PORTS - 1);
        let request = Request { mode: Mode::Servers(Box::new(mode)), ..request() };
        assert_eq!(port(&request, &two).get(), FIRST_PORT + 1);
    }

    #[test]
    fn interfaces() {
        let mut inventory = Inventory { addresses: own(), ..Inventory::default() };
        let names = |interface: &str| INTERFACE_VARIABLES.map(|name| (name.to_owned(), interface.to_owned())).to_vec();
        for (address, expected) in [("10.0.0.2", "eth0"), ("10.1.0.2", "ib0"), ("fe80::2", "eth0"), ("127.0.0.7", "lo")]
        {
            assert_eq!(interface(ip(address), &inventory), Ok(names(expected)), "{address}");
        }
        assert_eq!(interface(ip("172.16.0.1"), &inventory).unwrap_err().code, Code::L0029);
        inventory.env.insert("NCCL_SOCKET_IFNAME".into(), "ib0".into());
        let set: Vec<String> = interface(ip("10.0.0.2"), &inventory).unwrap().into_iter().map(|it| it.0).collect();
        assert_eq!(set, ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"]);
        for name in INTERFACE_VARIABLES {
            inventory.env.insert(name.into(), "eth7".into());
        }
        assert_eq!(interface(ip("172.16.0.1"), &inventory), Ok(vec![]));
    }
}
