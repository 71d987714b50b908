//! What running processes are doing: state, wait channel, CPU time, sockets. Reading changes nothing in them.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};

use crate::descend::{children, descendants};
use crate::net::socket_line;
use crate::wait::read_small;

/// Descriptors of one process that are looked at.
const DESCRIPTORS: usize = 4096;
/// Wrappers (`sh -c`) that are followed to the process that works.
const WRAPPERS: usize = 4;

/// A running process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The process that works: the child, if this one only waits for it, as a shell does.
    pub pid: u32,
    /// As in `/proc`: `R`, `S`, `D`, `T`, `t`, `Z`, `X`.
    pub state: char,
    /// The kernel function in which the main thread waits.
    pub waits_in: Option<String>,
    pub cpu: Duration,
    /// Its TCP sockets; `None` if the time was over.
    pub sockets: Option<Vec<Socket>>,
}

/// A TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Socket {
    pub local: SocketAddr,
    /// Absent if it listens.
    pub remote: Option<SocketAddr>,
}

/// Looks at these processes until the deadline. A process that is gone is left out, and the last facts to be read, the
/// sockets, may be missing.
pub fn processes(pids: &[u32], deadline: Instant) -> Vec<(u32, Process)> {
    let mut found: Vec<(u32, Process)> = Vec::with_capacity(pids.len());
    for pid in pids {
        if Instant::now() >= deadline {
            break;
        }
        found.extend(process(*pid).map(|process| (*pid, process)));
    }
    let mut owners: HashMap<u64, usize> = HashMap::new();
    let mut looked_at = 0;
    for (position, (_, process)) in found.iter().enumerate() {
        if Instant::now() >= deadline {
            break;
        }
        owners.extend(socket_inodes(process.pid).into_iter().map(|inode| (inode, position)));
        looked_at += 1;
    }
    let Some(sockets) = sockets(deadline, &owners) else { return found };
    for (_, process) in &mut found[..looked_at] {
        process.sockets = Some(Vec::new());
    }
    for (owner, socket) in sockets {
        if let Some(list) = &mut found[owner].1.sockets {
            list.push(socket);
        }
    }
    found
}

/// The state, wait channel and CPU time of the process that works for `pid`.
fn process(pid: u32) -> Option<Process> {
    let mut pid = pid;
    for _ in 0..WRAPPERS {
        let process = one(pid)?;
        if process.waits_in.as_deref() != Some("do_wait") {
            return Some(process);
        }
        match children(pid)[..] {
            [child] => pid = child,
            _ => return Some(process),
        }
    }
    one(pid)
}

/// The process that works for `pid`: the child of a shell that waits for it.
pub fn worker(pid: u32) -> u32 {
    process(pid).map_or(pid, |process| process.pid)
}

fn one(pid: u32) -> Option<Process> {
    let stat = read_small(format!("/proc/{pid}/stat"))?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let mut ticks = fields.skip(10).map(|field| field.parse::<u64>().unwrap_or(0));
    let ticks = ticks.next()? + ticks.next()?;
    let waits_in = read_small(format!("/proc/{pid}/wchan")).filter(|name| !name.is_empty() && name != "0");
    let cpu = Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / ticks_per_second()));
    Some(Process { pid, state, waits_in, cpu, sockets: None })
}

fn ticks_per_second() -> u64 {
    // SAFETY: reads a constant of the system.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok().filter(|ticks| *ticks > 0).unwrap_or(100)
}

/// The inodes of the sockets that a process has open.
fn socket_inodes(pid: u32) -> Vec<u64> {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let targets = descriptors.take(DESCRIPTORS).flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let inode =
        |target: &[u8]| std::str::from_utf8(target.strip_prefix(b"socket:[")?.strip_suffix(b"]")?).ok()?.parse().ok();
    targets.filter_map(|target| inode(target.as_os_str().as_bytes())).collect()
}

/// The TCP sockets of these owners, by inode. `None` if the tables could not be read in time.
fn sockets(deadline: Instant, owners: &HashMap<u64, usize>) -> Option<Vec<(usize, Socket)>> {
    let mut found = Vec::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let Ok(file) = fs::File::open(table) else { continue };
        for line in BufReader::with_capacity(1 << 16, file).lines() {
            let Ok(line) = line else { break };
            if Instant::now() >= deadline {
                return None;
            }
            if let Some(line) = socket_line(&line)
                && let Some(owner) = owners.get(&line.inode)
            {
                let remote = (!line.listens).then_some(line.remote);
                found.push((*owner, Socket { local: line.local, remote }));
            }
        }
    }
    Some(found)
}

/// Sums of the bytes that each process and its descendants have read, written, sent and received. A process without
/// progress keeps its number. `None` if a counter could not be read: `/proc/PID/io` of another user's process, or the
/// table of sockets if the process has some.
pub fn moved(pids: &[u32]) -> Vec<(u32, Option<u64>)> {
    let mut owners: HashMap<u64, usize> = HashMap::new();
    let mut sums: Vec<(u32, Option<u64>)> = Vec::with_capacity(pids.len());
    for (position, pid) in pids.iter().enumerate() {
        let mut sum = Some(0u64);
        for pid in std::iter::once(*pid).chain(descendants(*pid)) {
            owners.extend(socket_inodes(pid).into_iter().map(|inode| (inode, position)));
            sum = sum.zip(read_and_written(pid)).map(|(sum, bytes)| sum.wrapping_add(bytes));
        }
        sums.push((*pid, sum));
    }
    add_sockets(&mut sums, &owners, tcp_bytes());
    sums
}

/// Adds the bytes of their sockets to the sums of these owners.
fn add_sockets(sums: &mut [(u32, Option<u64>)], owners: &HashMap<u64, usize>, table: io::Result<Vec<(u64, u64)>>) {
    let Ok(table) = table else {
        for owner in owners.values() {
            sums[*owner].1 = None;
        }
        return;
    };
    for (inode, bytes) in table {
        if let Some(owner) = owners.get(&inode) {
            sums[*owner].1 = sums[*owner].1.map(|sum| sum.wrapping_add(bytes));
        }
    }
}

/// Zero for a process that has ended: its parent's number changes when it does.
fn read_and_written(pid: u32) -> Option<u64> {
    let Some(text) = read_small(format!("/proc/{pid}/io")) else {
        let has_ended = one(pid).is_none_or(|process| matches!(process.state, 'Z' | 'X'));
        return has_ended.then_some(0);
    };
    let counter = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value?.parse::<u64>().ok()
    };
    Some(counter("rchar")?.wrapping_add(counter("wchar")?))
}

/// The bytes that each TCP socket has sent and received, by inode.
fn tcp_bytes() -> io::Result<Vec<(u64, u64)>> {
    let mut found = tcp_bytes_of(AF_INET)?;
    found.extend(tcp_bytes_of(AF_INET6)?);
    Ok(found)
}

fn tcp_bytes_of(family: u8) -> io::Result<Vec<(u64, u64)>> {
    let mut socket = netlink_sys::Socket::new(netlink_sys::protocols::NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO,
        states: StateFlags::all(),
        socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
    };
    let mut request = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let size = socket.recv(&mut &mut buffer[..], 0)?;
        let mut rest = &buffer[..size];
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest).map_err(io::Error::other)?;
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                    let moved = response.nlas.iter().find_map(|nla| match nla {
                        Nla::TcpInfo(info) => Some(info.bytes_acked.wrapping_add(info.bytes_received)),
                        _ => None,
                    });
                    found.push((u64::from(response.header.inode), moved.unwrap_or(0)));
                }
                NetlinkPayload::Done(done) if done.code == 0 => return Ok(found),
                NetlinkPayload::Done(done) => return Err(io::Error::from_raw_os_error(done.code.abs())),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::Overrun(_) => return Err(io::Error::other("the table of sockets is incomplete")),
                _ => {}
            }
            // Messages are aligned to four bytes.
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length.max(4)..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;

    use super::*;

    #[test]
    fn sees_state_and_sockets() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        let later = Instant::now() + Duration::from_secs(60);
        let [(_, process)] = &processes(&[std::process::id()], later)[..] else { panic!("we are running") };
        let sockets = process.sockets.as_ref().unwrap();
        assert!(sockets.contains(&Socket { local: address, remote: None }), "{sockets:?}");
        let client = stream.local_addr().unwrap();
        assert!(sockets.contains(&Socket { local: client, remote: Some(address) }), "{sockets:?}");
    }

    #[test]
    fn counts_bytes_that_are_sent() {
        use std::io::{Read as _, Write as _};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let inode = |stream: &TcpStream| {
            let link = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(stream))).unwrap();
            link.to_str().unwrap().trim_start_matches("socket:[").trim_end_matches(']').parse::<u64>().unwrap()
        };
        let of =
            |inode: u64| tcp_bytes().unwrap().into_iter().find(|(other, _)| *other == inode).map(|(_, bytes)| bytes);
        let inode = inode(&peer);
        let before = of(inode).expect("an open socket is in the table");
        stream.write_all(&[7; 1000]).unwrap();
        peer.read_exact(&mut [0; 1000]).unwrap();
        assert_eq!(of(inode), Some(before + 1000));
        let [(_, Some(sum))] = moved(&[std::process::id()])[..] else { panic!("we are running") };
        assert!(sum >= 2000, "{sum}");
    }

    #[test]
    fn bytes_are_unknown_if_the_table_of_sockets_is() {
        let mut sums = [(10, Some(5)), (11, Some(6))];
        add_sockets(&mut sums, &HashMap::from([(77, 1)]), Err(io::Error::other("no table")));
        assert_eq!(sums, [(10, Some(5)), (11, None)], "a process without sockets is known");
    }

    #[test]
    fn follows_a_shell_to_its_child() {
        let mut shell = Command::new("sh").args(["-c", "sleep 600; true"]).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        let child = loop {
            match processes(&[shell.id()], until)[..] {
                [(of, ref process)] if process.pid != of => break process.pid,
                _ if Instant::now() > until => panic!("the child of {} was not found", shell.id()),
                _ => std::thread::yield_now(),
            }
        };
        crate::descend::signal(child, libc::SIGSTOP);
        while one(child).is_some_and(|process| process.state != 'T') {
            std::thread::yield_now();
        }
        crate::descend::signal(child, libc::SIGKILL);
        shell.wait().unwrap();
        assert!(processes(&[child], until).is_empty(), "a process that is gone is left out");
    }
}
