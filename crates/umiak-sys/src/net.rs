//! The coordinator's socket, nonblocking connections, listening sockets, random bytes, and Unix sockets with long
//! paths.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getsockopt, setsockopt, socket, sockopt,
};

const BACKLOG: i32 = 4096;

/// Calls with a short path to the Unix socket `name` in `directory`. The path of a socket is limited to 107 bytes, so
/// the directory is named by a descriptor.
pub fn in_directory<T>(directory: &Path, name: &str, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let directory = std::fs::File::open(directory)?;
    call(&PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name))
}

/// Listens on all addresses of both families, or of IPv4 only if there is no IPv6. Connections in TIME_WAIT do not
/// prevent it; another listener does. `send_buffer` applies to accepted connections.
pub fn listen(port: u16, send_buffer: usize) -> io::Result<TcpListener> {
    listen_on_all(port, Some(send_buffer))
}

/// Listens for clients that exchange short messages, on `address` or on all addresses as [`listen`] does. Accepted
/// connections send without delay.
pub fn listen_promptly(address: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    let listener = match address {
        Some(address) if !address.is_unspecified() || address.is_ipv4() => {
            listen_on(SocketAddr::new(address, port), None)
        }
        _ => listen_on_all(port, None),
    }?;
    // Accepted sockets inherit it.
    setsockopt(&listener, sockopt::TcpNoDelay, &true).map_err(io::Error::from)?;
    Ok(listener)
}

fn listen_on_all(port: u16, send_buffer: Option<usize>) -> io::Result<TcpListener> {
    match listen_on(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), send_buffer) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
            listen_on(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), send_buffer)
        }
        other => other,
    }
}

/// Acknowledges what has arrived on a TCP socket, and what arrives next, at once. The kernel forgets it when data flows,
/// so it is called before each read. A peer that waits for acknowledgements between its short writes is not held up.
pub fn acknowledge_promptly(socket: BorrowedFd<'_>) {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open while borrowed, and the option reads one `int`, which outlives the call.
    unsafe {
        // An error changes nothing but the delay.
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_QUICKACK,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        );
    }
}

/// A nonblocking connection in progress; dropping it cancels it.
#[derive(Debug)]
pub struct Connecting(OwnedFd);

impl Connecting {
    pub fn begin(address: SocketAddr) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(family(address), SockType::Stream, flags, None).map_err(io::Error::from)?;
        match connect(fd.as_raw_fd(), &SockaddrStorage::from(address)) {
            Ok(()) | Err(Errno::EINPROGRESS) => Ok(Self(fd)),
            Err(error) => Err(error.into()),
        }
    }

    /// True once it is connected; an error if it failed.
    pub fn is_made(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLOUT)];
        if poll(&mut polled, PollTimeout::ZERO).map_err(io::Error::from)? == 0 {
            return Ok(false);
        }
        match getsockopt(&self.0, sockopt::SocketError).map_err(io::Error::from)? {
            0 => Ok(true),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// The listening TCP sockets of this network namespace. Read from the kernel's tables: a test connection would count as
/// a client, and some servers accept only a fixed number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listeners(Vec<SocketAddr>);

impl From<Vec<SocketAddr>> for Listeners {
    fn from(addresses: Vec<SocketAddr>) -> Self {
        Self(addresses)
    }
}

impl Listeners {
    /// Empty if the tables cannot be read.
    pub fn read() -> Self {
        let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(std::fs::read_to_string);
        Self(tables.iter().flatten().flat_map(|table| table.lines().filter_map(listener)).collect())
    }

    /// True if a socket accepts connections to this port of this address; without an address, of any.
    pub fn accepts(&self, address: Option<IpAddr>, port: u16) -> bool {
        let is_for = |ip: IpAddr, address: IpAddr| {
            let of_family = ip.is_ipv4() == address.is_ipv4() || ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            ip == address || (ip.is_unspecified() && of_family)
        };
        let mut of_port = self.0.iter().filter(|listener| listener.port() == port);
        of_port.any(|listener| address.is_none_or(|address| is_for(listener.ip(), address)))
    }
}

/// The local address in a line of `/proc/net/tcp` if that socket listens: `   0: 0100007F:1F90 00000000:0000 0A …`.
fn listener(line: &str) -> Option<SocketAddr> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_ascii_whitespace();
    let local = fields.nth(1)?;
    (fields.nth(1)? == LISTEN).then(|| socket_address(local)).flatten()
}

/// True if this host has the address: a socket can be bound to it.
pub fn is_own(address: IpAddr) -> bool {
    TcpListener::bind((address, 0)).is_ok()
}

/// Addresses are words in host byte order.
fn socket_address(field: &str) -> Option<SocketAddr> {
    let (address, port) = field.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words: Vec<u8> = (0..4).map(word).collect::<Option<Vec<_>>>()?.concat();
            IpAddr::from(<[u8; 16]>::try_from(words).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn listen_on(address: SocketAddr, send_buffer: Option<usize>) -> io::Result<TcpListener> {
    let family = family(address);
    let fd: OwnedFd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).map_err(io::Error::from)?;
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &false).map_err(io::Error::from)?;
    }
    setsockopt(&fd, sockopt::ReuseAddr, &true).map_err(io::Error::from)?;
    if let Some(send_buffer) = send_buffer {
        setsockopt(&fd, sockopt::SndBuf, &send_buffer).map_err(io::Error::from)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).map_err(io::Error::from)?;
    // SAFETY: takes no pointers; the descriptor is ours.
    if unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpListener::from(fd))
}

/// Cryptographically random bytes.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256, "longer requests may return fewer bytes") };
    let mut bytes = [0; N];
    loop {
        // SAFETY: writes at most `N` bytes into our own buffer.
        let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
        if count == N as isize {
            return Ok(bytes);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn both_families_reach_it_and_a_second_one_is_refused() {
        let listener = listen(0, 1 << 16).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        if listener.local_addr().unwrap().is_ipv6() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        }
        assert_eq!(listen(port, 1 << 16).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_port_can_be_had_again_at_once() {
        let listener = listen(0, 1 << 16).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        // The side that closes first stays in TIME_WAIT.
        drop(listener.accept().unwrap());
        drop((client, listener));
        listen(port, 1 << 16).unwrap();
    }

    #[test]
    fn lines_of_the_kernels_tables() {
        if cfg!(target_endian = "little") {
            let v4 = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1";
            assert_eq!(listener(v4), Some("127.0.0.1:8080".parse().unwrap()));
            assert_eq!(listener(&v4.replace(" 0A ", " 01 ")), None);
            let v6 = "   1: B80D0120000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
            assert_eq!(listener(v6), Some("[2001:db8::1]:80".parse().unwrap()));
            let mapped = "   1: 0000000000000000FFFF00000100007F:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
            assert_eq!(listener(mapped), Some("127.0.0.1:80".parse().unwrap()));
        }
        assert_eq!(listener("  sl  local_address rem_address   st tx_queue rx_queue"), None);
    }

    #[test]
    fn sockets_that_listen_are_found_without_connecting() {
        let (here, there) = (Some(IpAddr::from([127, 0, 0, 1])), Some(IpAddr::from([127, 0, 0, 2])));
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = bound.local_addr().unwrap().port();
        let accepts = || [here, there, None].map(|address| Listeners::read().accepts(address, port));
        assert_eq!(accepts(), [true, false, true]);
        bound.set_nonblocking(true).unwrap();
        assert_eq!(bound.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(bound);
        assert_eq!(accepts(), [false, false, false]);
        let _all = listen(port, 1 << 16).unwrap();
        assert_eq!(accepts(), [true, true, true]);
        assert!(is_own(IpAddr::from([127, 9, 9, 9])) && !is_own(IpAddr::from([192, 0, 2, 1])));
    }

    #[test]
    fn nobody_waits_for_a_connection() {
        let answer = |connecting: &Connecting| loop {
            match connecting.is_made() {
                Ok(false) => std::thread::yield_now(),
                other => return other,
            }
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        assert!(answer(&Connecting::begin(address).unwrap()).unwrap());
        // If the backlog is full, the kernel does not answer at all.
        // SAFETY: takes no pointers; the descriptor is the listener's.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let waiting: Vec<Connecting> = (0..8).map(|_| Connecting::begin(address).unwrap()).collect();
        assert!(!waiting.last().unwrap().is_made().unwrap());
        drop((waiting, listener));
        let refused = Connecting::begin(address).and_then(|connecting| answer(&connecting));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random::<16>().unwrap(), random::<16>().unwrap());
    }
}
