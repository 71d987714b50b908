//! The coordinator's socket, connections that nobody waits for, what a process with thousands of connections needs, and
//! Unix sockets with long paths.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getsockopt, setsockopt, socket, sockopt,
};

const BACKLOG: i32 = 4096;

/// Calls with a path of the Unix socket `name` in `directory` that is short enough. A socket's path may have 107 bytes, and
/// a directory's may be longer: there it is named by a descriptor.
pub fn in_directory<T>(directory: &Path, name: &str, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let directory = std::fs::File::open(directory)?;
    call(&PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name))
}

/// Listens on all addresses of both families, or of IPv4 where there is no other. Connections that are being
/// forgotten by the kernel do not hinder; a listener that lives does. `send_buffer` is for the connections that come.
pub fn listen(port: u16, send_buffer: usize) -> io::Result<TcpListener> {
    match listen_on(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), send_buffer) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
            listen_on(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), send_buffer)
        }
        other => other,
    }
}

/// A connection that is being made. Nobody waits for it; dropping it gives it up.
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

    /// Whether somebody has answered; an error where nobody will.
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

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn listen_on(address: SocketAddr, send_buffer: usize) -> io::Result<TcpListener> {
    let family = family(address);
    let fd: OwnedFd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).map_err(io::Error::from)?;
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &false).map_err(io::Error::from)?;
    }
    setsockopt(&fd, sockopt::ReuseAddr, &true).map_err(io::Error::from)?;
    setsockopt(&fd, sockopt::SndBuf, &send_buffer).map_err(io::Error::from)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).map_err(io::Error::from)?;
    // SAFETY: takes no pointers; the descriptor is ours.
    if unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpListener::from(fd))
}

/// Bytes that nobody can guess.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256, "longer ones may come in pieces") };
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
        // Who closes first is the one that the kernel remembers.
        drop(listener.accept().unwrap());
        drop((client, listener));
        listen(port, 1 << 16).unwrap();
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
        // Where the queue is full, the kernel says nothing at all.
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
