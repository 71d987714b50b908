//! Free ports, leased until the job ends.
//!
//! A lease is an abstract Unix socket named after the port: a kernel object that, like ports, belongs to the network
//! namespace, is shared by all users, and dies with its owner. It keeps two umiak jobs from choosing the same port
//! between the choice and the moment a rank listens. Binding tests that no other program listens. Chosen ports are
//! below the ephemeral range (an outgoing connection cannot take them) and not on the kernel's reserved list.
//!
//! A chosen port is leased on all addresses, since a rank may listen on all of them. A port requested by number is
//! leased on its address: 127.0.0.1 and 127.0.0.2 may both have it. Each lease is taken first and then checked against
//! those of the other kind, so at most one of two simultaneous leases stays.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::holders::{self, LeaseHolder};
use crate::wait::read_small;

/// Lowest port to choose: below are registered services.
const LOWEST: u16 = 10_000;

/// A request for ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    pub count: u16,
    pub range: PortRange,
    /// The address for exact ports; all addresses if `None`.
    pub address: Option<IpAddr>,
    /// Where to start searching, so that jobs started together do not compete for the same ports.
    pub seed: u64,
}

/// Where to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortRange {
    /// Below the ephemeral range, or inside it if that is full.
    Anywhere,
    /// Consecutive from here, as far as they are free; the rest as with `Anywhere`.
    Rather { start: u16 },
    /// Inside this range, bounds included.
    Within { low: u16, high: u16 },
    /// Exactly these, consecutive from here.
    Exactly { start: u16 },
}

/// The leased ports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Leased {
    pub ports: Vec<u16>,
    /// True if there was no room below the ephemeral range.
    pub inside_ephemeral: bool,
}

/// Not enough ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
#[error("{wanted} ports requested between {low} and {high}, {found} free")]
pub struct LeaseError {
    pub wanted: u16,
    pub found: u16,
    pub low: u16,
    pub high: u16,
    /// For exact requests: the ports that are taken, and whether another umiak job holds them.
    pub taken: Vec<(u16, bool)>,
    /// The errno, if the kernel refused to create sockets at all.
    pub refused: Option<i32>,
    /// The users whose umiak jobs hold ports, if leases are the reason.
    pub holders: Vec<LeaseHolder>,
}

/// Holds one port until dropped.
#[derive(Debug)]
pub struct PortLease {
    _name: UnixDatagram,
}

/// Leases ports, ascending from a start that depends on the seed.
pub fn lease(request: &LeaseRequest) -> Result<(Leased, Vec<PortLease>), LeaseError> {
    // Checked once and first: without descriptors every port would look taken.
    if let Err(error) = try_bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Bind::First) {
        let refused = Some(error.raw_os_error().unwrap_or(libc::EINVAL));
        return Err(LeaseError {
            wanted: request.count,
            found: 0,
            low: 0,
            high: 0,
            taken: Vec::new(),
            refused,
            holders: Vec::new(),
        });
    }
    let kernel = Kernel::read();
    match request.range {
        PortRange::Exactly { start } => exactly(start, request.count, request.address),
        PortRange::Within { low, high } => {
            walk(low, high, request, &[]).map(|(ports, leases)| (Leased { ports, inside_ephemeral: false }, leases))
        }
        PortRange::Anywhere => anywhere(&kernel, request),
        PortRange::Rather { start } => {
            let last = start.saturating_add(request.count.saturating_sub(1));
            let (mut ports, mut leases) = free(start..=last, request.count, &kernel.reserved, &mut None);
            let others = LeaseRequest { count: request.count - ports.len() as u16, ..request.clone() };
            let (mut leased, more) = anywhere(&kernel, &others)?;
            ports.append(&mut leased.ports);
            leases.extend(more);
            Ok((Leased { ports, ..leased }, leases))
        }
    }
}

fn anywhere(kernel: &Kernel, request: &LeaseRequest) -> Result<(Leased, Vec<PortLease>), LeaseError> {
    let room = (kernel.ephemeral.0 > LOWEST).then(|| (LOWEST, kernel.ephemeral.0 - 1));
    let below = room.and_then(|(low, high)| walk(low, high, request, &kernel.reserved).ok());
    match below {
        Some((ports, leases)) => Ok((Leased { ports, inside_ephemeral: false }, leases)),
        None => walk(kernel.ephemeral.0.max(1024), kernel.ephemeral.1, request, &kernel.reserved)
            .map(|(ports, leases)| (Leased { ports, inside_ephemeral: true }, leases)),
    }
}

fn exactly(start: u16, count: u16, address: Option<IpAddr>) -> Result<(Leased, Vec<PortLease>), LeaseError> {
    let last = start.saturating_add(count.saturating_sub(1));
    let mut leases = Vec::new();
    let mut taken = Vec::new();
    let mut refused = None;
    for port in start..=last {
        match take(port, address, Bind::Again) {
            Ok(lease) => leases.push(lease),
            Err(Taken::ByUmiak) => taken.push((port, true)),
            Err(Taken::ByOther) => taken.push((port, false)),
            Err(Taken::Refused(errno)) => refused = Some(errno),
        }
    }
    if leases.len() == count as usize {
        Ok((Leased { ports: (start..=last).collect(), inside_ephemeral: false }, leases))
    } else {
        let ours = |port: u16| taken.contains(&(port, true));
        let holders = if taken.iter().any(|(_, ours)| *ours) { holders_of(ours) } else { Vec::new() };
        Err(LeaseError { wanted: count, found: leases.len() as u16, low: start, high: last, taken, refused, holders })
    }
}

fn walk(
    low: u16,
    high: u16,
    request: &LeaseRequest,
    reserved: &[(u16, u16)],
) -> Result<(Vec<u16>, Vec<PortLease>), LeaseError> {
    let size = u64::from(high.saturating_sub(low)) + 1;
    let from_seed = (0..size).map(|step| low + ((request.seed % size + step) % size) as u16);
    let mut refused = None;
    let (ports, leases) = free(from_seed, request.count, reserved, &mut refused);
    if ports.len() == request.count as usize {
        Ok((ports, leases))
    } else {
        let (found, holders) = (ports.len() as u16, holders_of(|port| (low..=high).contains(&port)));
        Err(LeaseError { wanted: request.count, found, low, high, taken: Vec::new(), refused, holders })
    }
}

/// Leases up to `count` free candidates on all addresses.
fn free(
    candidates: impl Iterator<Item = u16>,
    count: u16,
    reserved: &[(u16, u16)],
    refused: &mut Option<i32>,
) -> (Vec<u16>, Vec<PortLease>) {
    let is_reserved = |port: &u16| reserved.iter().any(|(first, last)| (*first..=*last).contains(port));
    let mut candidates = candidates.filter(|port| !is_reserved(port));
    let mut found: Vec<(u16, PortLease)> = Vec::new();
    loop {
        while found.len() < count as usize
            && refused.is_none()
            && let Some(port) = candidates.next()
        {
            match take(port, None, Bind::First) {
                Ok(lease) => found.push((port, lease)),
                Err(Taken::Refused(errno)) => *refused = Some(errno),
                Err(Taken::ByUmiak | Taken::ByOther) => {}
            }
        }
        // All at once, since it reads a kernel table.
        let before = found.len();
        if before > 0 {
            let leased = leased_on_addresses();
            found.retain(|(port, _)| !leased.contains(port));
        }
        if found.len() == before {
            return found.into_iter().unzip();
        }
    }
}

enum Taken {
    ByUmiak,
    ByOther,
    /// No further socket is permitted: the errno.
    Refused(i32),
}

impl Taken {
    fn or_refused(self, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EPERM)) => {
                Self::Refused(errno)
            }
            _ => self,
        }
    }
}

/// How free a port must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bind {
    /// For any program that binds it.
    First,
    /// Connections of a finished job may still be in TIME_WAIT. A port requested by number is reused by the next job,
    /// and frameworks set SO_REUSEADDR when they bind.
    Again,
}

/// Names of leases: `umiak-port-6170` on all addresses, `umiak-port-6170-127.0.0.1` on one.
const NAME: &str = "umiak-port-";

fn take(port: u16, address: Option<IpAddr>, how: Bind) -> Result<PortLease, Taken> {
    let named = |name: String| UnixAddr::from_abstract_name(name).map_err(|_| Taken::ByUmiak);
    let everywhere = named(format!("{NAME}{port}"))?;
    let name = match address {
        Some(address) => named(format!("{NAME}{port}-{address}"))?,
        None => everywhere.clone(),
    };
    let name = UnixDatagram::bind_addr(&name).map_err(|error| Taken::ByUmiak.or_refused(&error))?;
    // A name that accepts a connection is held.
    if address.is_some() && name.connect_addr(&everywhere).is_ok() {
        return Err(Taken::ByUmiak);
    }
    is_free(port, address, how).map_err(|error| Taken::ByOther.or_refused(&error))?;
    Ok(PortLease { _name: name })
}

/// The users that hold leases of these ports.
fn holders_of(is_it: impl Fn(u16) -> bool) -> Vec<LeaseHolder> {
    holders::holders(|name| {
        let port = name.strip_prefix(NAME).and_then(|name| name.split('-').next()?.parse().ok());
        port.is_some_and(&is_it)
    })
}

/// The ports leased on single addresses. Lines of `/proc/net/unix` end with the name.
fn leased_on_addresses() -> BTreeSet<u16> {
    let table = std::fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let names = table.lines().filter_map(|line| line.rsplit_once('@')?.1.strip_prefix(NAME)?.split_once('-'));
    names.filter_map(|(port, _)| port.parse().ok()).collect()
}

/// Checks that the port is free on this address; without one, on every address of both families, with one socket.
fn is_free(port: u16, address: Option<IpAddr>, how: Bind) -> io::Result<()> {
    if let Some(address) = address {
        match try_bind(SocketAddr::new(address, port), how) {
            // The address belongs to another host: check all addresses.
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {}
            other => return other.map(drop),
        }
    }
    match try_bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), how) {
        // A host without IPv6 is fine.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
            try_bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), how).map(drop)
        }
        other => other.map(drop),
    }
}

/// Binds without listening: this conflicts with any listener, and nothing can connect meanwhile.
fn try_bind(address: SocketAddr, how: Bind) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).map_err(io::Error::from)?;
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &false).map_err(io::Error::from)?;
    }
    if how == Bind::Again {
        setsockopt(&fd, sockopt::ReuseAddr, &true).map_err(io::Error::from)?;
    }
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrStorage::from(address)).map_err(io::Error::from)?;
    Ok(fd)
}

/// Port ranges that the kernel uses or reserves.
struct Kernel {
    ephemeral: (u16, u16),
    reserved: Vec<(u16, u16)>,
}

impl Kernel {
    fn read() -> Self {
        let range = read_small("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let mut words = range.split_whitespace().filter_map(|word| word.parse().ok());
        let ephemeral = (words.next().unwrap_or(32_768), words.next().unwrap_or(60_999));
        let reserved = read_small("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
        Self { ephemeral, reserved: parse_ranges(&reserved) }
    }
}

/// Parses ranges such as `8080,9148-9150`.
fn parse_ranges(text: &str) -> Vec<(u16, u16)> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn occupy() -> (TcpListener, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn request(count: u16, range: PortRange) -> LeaseRequest {
        LeaseRequest { count, range, address: None, seed: u64::from(std::process::id()) * 131 }
    }

    fn exact(port: u16, address: [u8; 4]) -> LeaseRequest {
        LeaseRequest { address: Some(address.into()), ..request(1, PortRange::Exactly { start: port }) }
    }

    #[test]
    fn a_named_port_is_leased_on_its_address() {
        let (leased, held) = lease(&request(1, PortRange::Anywhere)).unwrap();
        let port = leased.ports[0];
        // A chosen port is leased on all addresses.
        assert_eq!(lease(&exact(port, [127, 0, 0, 1])).unwrap_err().taken, [(port, true)]);
        drop(held);
        let first = lease(&exact(port, [127, 0, 0, 1])).unwrap();
        let second = lease(&exact(port, [127, 0, 0, 2])).unwrap();
        assert_eq!(lease(&exact(port, [127, 0, 0, 2])).unwrap_err().taken, [(port, true)]);
        // A chosen port never conflicts with a requested one.
        let chosen = |range| lease(&request(1, range)).map(|(leased, _)| leased.ports);
        assert_eq!(chosen(PortRange::Within { low: port, high: port }).unwrap_err().found, 0);
        assert_ne!(chosen(PortRange::Rather { start: port }).unwrap(), [port]);
        drop((first, second));
        assert_eq!(chosen(PortRange::Rather { start: port }).unwrap(), [port]);
        let _listener = TcpListener::bind(("127.0.0.2", port)).unwrap();
        assert_eq!(lease(&exact(port, [127, 0, 0, 2])).unwrap_err().taken, [(port, false)]);
        assert!(lease(&exact(port, [127, 0, 0, 1])).is_ok());
        assert_ne!(chosen(PortRange::Rather { start: port }).unwrap(), [port], "a rank may listen on all addresses");
        // An address of another host is no obstacle.
        assert!(lease(&exact(port + 1, [192, 0, 2, 1])).is_ok());
    }

    #[test]
    fn preferred_ports_come_first_and_others_stand_in_for_those_that_are_taken() {
        let (leased, held) = lease(&request(3, PortRange::Anywhere)).unwrap();
        let start = leased.ports[0];
        drop(held);
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, start + 1)).unwrap();
        let (leased, _held) = lease(&request(3, PortRange::Rather { start })).unwrap();
        assert_eq!((leased.ports.len(), leased.ports[0], leased.ports[1]), (3, start, start + 2));
        assert!(!leased.ports.contains(&(start + 1)));
    }

    #[test]
    fn leases_exclude_each_other_and_end_with_their_owner() {
        let (leased, leases) = lease(&request(8, PortRange::Anywhere)).unwrap();
        assert_eq!(leased.ports.len(), 8);
        let again = request(1, PortRange::Exactly { start: leased.ports[0] });
        assert_eq!(lease(&again).unwrap_err().taken, [(leased.ports[0], true)]);
        drop(leases);
        assert!(lease(&again).is_ok());
    }

    #[test]
    fn a_listener_on_any_address_makes_a_port_taken() {
        let (_listener, port) = occupy();
        let error = lease(&request(1, PortRange::Exactly { start: port })).unwrap_err();
        assert_eq!(error.taken, [(port, false)]);
    }

    #[test]
    fn a_named_port_can_be_had_again_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (served, _) = listener.accept().unwrap();
        // The side that closes first stays in TIME_WAIT.
        drop(served);
        drop(listener);
        drop(client);
        assert!(is_free(port, None, Bind::First).is_err());
        assert!(lease(&request(1, PortRange::Exactly { start: port })).is_ok());
    }

    #[test]
    fn too_few_says_how_many() {
        let (_listener, port) = occupy();
        let error = lease(&request(2, PortRange::Within { low: port, high: port })).unwrap_err();
        assert_eq!((error.wanted, error.found), (2, 0));
    }

    #[test]
    fn reserved_ranges() {
        assert_eq!(parse_ranges("8080,9148-9150\n"), [(8080, 8080), (9148, 9150)]);
        assert_eq!(parse_ranges("\n"), []);
    }
}
