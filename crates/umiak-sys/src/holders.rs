//! Which users hold leases: the owners of abstract Unix sockets, from the kernel's socket tables.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use serde::{Deserialize, Serialize};

/// A user, and the number of leases that its processes hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    pub user: u32,
    pub leases: u32,
}

/// The users that hold names for which `is_it` is true, those with most of them first. Empty if the kernel does not say.
pub fn holders(is_it: impl Fn(&str) -> bool) -> Vec<LeaseHolder> {
    let mut by_user = BTreeMap::new();
    for (name, user) in abstract_sockets().unwrap_or_default() {
        if is_it(&name) {
            *by_user.entry(user).or_insert(0) += 1;
        }
    }
    let mut holders: Vec<LeaseHolder> =
        by_user.into_iter().map(|(user, leases)| LeaseHolder { user, leases }).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.leases));
    holders
}

// From `linux/netlink.h`, `linux/sock_diag.h` and `linux/unix_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const SHOW_NAME_AND_UID: u32 = 0x1 | 0x40;
const NAME: u16 = 0;
const UID: u16 = 7;
const HEADER: usize = 16;

/// The names of all abstract sockets of this network namespace, and their owners.
fn abstract_sockets() -> io::Result<Vec<(String, u32)>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let link = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkSockDiag)?;
    let mut request = Vec::with_capacity(HEADER + 24);
    request.extend(((HEADER + 24) as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    // Sequence number and port.
    request.extend([0; 8]);
    request.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(0u32.to_ne_bytes());
    request.extend(SHOW_NAME_AND_UID.to_ne_bytes());
    request.extend([0xff; 8]);
    send(link.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = recv(link.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = &buffer[..count];
        while let Some((kind, body)) = next(&mut rest) {
            match kind {
                DONE => return Ok(found),
                ERROR => return Err(ErrorKind::Unsupported.into()),
                // 16 bytes about the socket, then its attributes.
                _ => found.extend(body.get(16..).and_then(owned_name)),
            }
        }
    }
}

/// Takes the next message: its kind and its body.
fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER..length)?;
    *bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body))
}

/// The abstract name and the owner, from the attributes of a socket.
fn owned_name(mut attributes: &[u8]) -> Option<(String, u32)> {
    let (mut name, mut user) = (None, None);
    while let Some(length) = attributes.get(..2) {
        let length = usize::from(u16::from_ne_bytes(length.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let value = attributes.get(4..length)?;
        match kind {
            NAME => name = value.strip_prefix(b"\0").map(|name| String::from_utf8_lossy(name).into_owned()),
            UID => user = Some(u32::from_ne_bytes(value.try_into().ok()?)),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    name.zip(user)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    #[test]
    fn leases_have_owners() {
        let prefix = format!("umiak-test-{}-", std::process::id());
        let bind = |number: u32| {
            let address = SocketAddr::from_abstract_name(format!("{prefix}{number}")).unwrap();
            UnixDatagram::bind_addr(&address).unwrap()
        };
        let _held: Vec<UnixDatagram> = (0..300).map(bind).collect();
        // SAFETY: no arguments, no failure.
        let user = unsafe { libc::geteuid() };
        assert_eq!(holders(|name| name.starts_with(&prefix)), [LeaseHolder { user, leases: 300 }]);
        assert_eq!(holders(|name| name == prefix), []);
    }
}
