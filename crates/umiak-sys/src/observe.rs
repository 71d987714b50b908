//! What running processes are doing: state, wait channel, CPU time, sockets. Reading changes nothing in them.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use nix::sys::socket::{SockType, getsockopt, sockopt};

use crate::clock::ticks_per_second;
use crate::descend::{children, descendants};
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
    /// Its TCP sockets; `None` if they could not be read, or the time was over.
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
    for (_, process) in &mut found {
        if Instant::now() >= deadline {
            break;
        }
        process.sockets = sockets_of(process.pid).map(|sockets| sockets.into_iter().filter_map(connection).collect());
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

/// State, wait channel and CPU time of this very process.
pub fn one(pid: u32) -> Option<Process> {
    let stat = read_small(format!("/proc/{pid}/stat"))?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let mut ticks = fields.skip(10).map(|field| field.parse::<u64>().unwrap_or(0));
    let ticks = ticks.next()? + ticks.next()?;
    let waits_in = read_small(format!("/proc/{pid}/wchan")).filter(|name| !name.is_empty() && name != "0");
    let cpu = Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / ticks_per_second()));
    Some(Process { pid, state, waits_in, cpu, sockets: None })
}

/// Duplicates of the sockets that a process has open; drop them at once, because they keep a connection open. `None` if
/// they cannot be had: the process of another user, or a kernel before 5.6. The tables in `/proc/net` are no
/// alternative: reading them takes milliseconds, however few sockets there are.
fn sockets_of(pid: u32) -> Option<Vec<OwnedFd>> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let is_socket = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str().as_bytes().starts_with(b"socket:["))
    };
    let entries = descriptors.take(DESCRIPTORS).flatten().filter(is_socket);
    let numbers: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    if numbers.is_empty() {
        return Some(Vec::new());
    }
    // SAFETY: takes no pointers, and returns a new descriptor or -1.
    let handle = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }).ok()?;
    let mut sockets = Vec::with_capacity(numbers.len());
    for number in numbers {
        // SAFETY: as above.
        match owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle.as_raw_fd(), number, 0) }) {
            Ok(socket) => sockets.push(socket),
            // Closed in the meantime.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
            Err(_) => return None,
        }
    }
    Some(sockets)
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system call has just returned this descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
}

/// The addresses of a TCP socket that listens or is connected.
fn connection(socket: OwnedFd) -> Option<Socket> {
    if getsockopt(&socket, sockopt::SockType).ok()? != SockType::Stream {
        return None;
    }
    let listens = getsockopt(&socket, sockopt::AcceptConn).unwrap_or(false);
    let stream = TcpStream::from(socket);
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    // Sockets of other families have no such address.
    let local = canonical(stream.local_addr().ok()?);
    let remote = stream.peer_addr().ok().map(canonical);
    (listens || remote.is_some()).then_some(Socket { local, remote })
}

/// The bytes that a TCP socket has sent and received; zero for other sockets.
fn bytes_of(socket: &OwnedFd) -> u64 {
    /// Offsets in the kernel's `tcp_info`.
    const ACKED: usize = 120;
    const RECEIVED: usize = 128;
    let mut info = [0u8; 256];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into our buffer.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 || (length as usize) < RECEIVED + 8 {
        return 0;
    }
    let number = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().unwrap_or_default());
    number(ACKED).wrapping_add(number(RECEIVED))
}

/// The bytes that a process and its descendants have read, written, sent and received. Without progress the number
/// stays the same. `None` if a counter could not be read.
pub fn moved(pid: u32) -> Option<u64> {
    let mut sum = 0u64;
    for pid in std::iter::once(pid).chain(descendants(pid)) {
        let bytes = read_and_written(pid)?;
        let sockets = sockets_of(pid);
        if sockets.is_none() && one(pid).is_some_and(|process| !matches!(process.state, 'Z' | 'X')) {
            return None;
        }
        let sent = sockets.iter().flatten().map(bytes_of).fold(0, u64::wrapping_add);
        sum = sum.wrapping_add(bytes).wrapping_add(sent);
    }
    Some(sum)
}

/// System calls that wait for a descriptor: the first argument is the descriptor, the number of descriptors from 0 on, or
/// a list of them.
const READ: [libc::c_long; 2] = [libc::SYS_read, libc::SYS_readv];
#[cfg(target_arch = "x86_64")]
const SELECT: &[libc::c_long] = &[libc::SYS_pselect6, libc::SYS_select];
#[cfg(target_arch = "x86_64")]
const POLL: &[libc::c_long] = &[libc::SYS_ppoll, libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const SELECT: &[libc::c_long] = &[libc::SYS_pselect6];
#[cfg(not(target_arch = "x86_64"))]
const POLL: &[libc::c_long] = &[libc::SYS_ppoll];

/// True if the main thread waits for its standard input, and for nothing else: `input()`, or a debugger.
pub fn awaits_input(pid: u32) -> bool {
    let Some(text) = read_small(format!("/proc/{pid}/syscall")) else { return false };
    let mut words = text.split_ascii_whitespace();
    // `running`, or the number of the system call and its arguments.
    let Some(number) = words.next().and_then(|word| word.parse::<libc::c_long>().ok()) else { return false };
    let mut argument = || words.next().and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let (Some(first), Some(second)) = (argument(), argument()) else { return false };
    match number {
        _ if READ.contains(&number) => first == 0,
        _ if SELECT.contains(&number) => first == 1,
        _ if POLL.contains(&number) => second == 1 && polled(pid, first) == Some(0),
        _ => false,
    }
}

/// The first descriptor of a list for `poll`.
fn polled(pid: u32, at: u64) -> Option<i32> {
    let mut bytes = [0; 4];
    fs::File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut bytes, at).ok()?;
    Some(i32::from_ne_bytes(bytes))
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::{Command, Stdio};

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
        let of = |stream: &TcpStream| bytes_of(&OwnedFd::from(stream.try_clone().unwrap()));
        let before = of(&peer);
        stream.write_all(&[7; 1000]).unwrap();
        peer.read_exact(&mut [0; 1000]).unwrap();
        assert_eq!(of(&peer), before + 1000);
        assert!(moved(std::process::id()).expect("we may read our own counters") >= 2000);
    }

    #[test]
    fn a_program_that_reads_its_standard_input_awaits_it() {
        let await_end = |program: &str, expected: bool| {
            let mut command = Command::new("python3");
            command.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut line = [0; 3];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
            // It waits a moment later.
            let until = Instant::now() + Duration::from_secs(30);
            while one(child.id()).is_some_and(|process| process.state != 'S') && Instant::now() < until {
                std::thread::yield_now();
            }
            assert_eq!(awaits_input(child.id()), expected, "{program}");
            child.kill().unwrap();
            child.wait().unwrap();
        };
        for (wait, expected) in [
            ("input()", true),
            ("sys.stdin.readline()", true),
            ("select.select([0], [], [])", true),
            ("poll = select.poll(); poll.register(0); poll.poll()", true),
            ("poll = select.poll(); poll.register(os.pipe()[0], 1); poll.poll()", false),
            ("os.read(os.pipe()[0], 1)", false),
            ("select.select([os.pipe()[0]], [], [])", false),
            ("time.sleep(600)", false),
        ] {
            // The poll of descriptor 0 must not report that it can be written to.
            let wait = wait.replace("register(0)", "register(0, 1)");
            await_end(&format!("import os, select, sys, time; os.write(1, b'up\\n'); {wait}"), expected);
        }
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
