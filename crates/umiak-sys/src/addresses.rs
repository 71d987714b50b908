//! Loopback addresses, leased until the job ends.
//!
//! All of 127.0.0.0/8 belongs to this host, so each replica of a job can act as a separate host. A lease is an abstract
//! Unix socket named after a block of 254 addresses, as for ports: it keeps two jobs apart and dies with its owner.

use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::holders::{self, LeaseHolder};

/// Number of blocks: 127.1.0.x to 127.254.255.x. Other programs expect to use the rest.
const BLOCKS: u64 = 254 * 256;
/// Addresses in a block: without the first and the last, which look like network and broadcast addresses.
pub const SIZE: u32 = 254;

/// Holds one block until dropped.
#[derive(Debug)]
pub struct AddressLease {
    _name: UnixDatagram,
}

/// Leases addresses, starting at a block that depends on the seed. Returns fewer than requested if all are taken.
pub fn lease(count: u32, seed: u64) -> (Vec<Ipv4Addr>, Vec<AddressLease>) {
    let (mut addresses, mut blocks) = (Vec::new(), Vec::new());
    for step in 0..BLOCKS {
        let missing = count - addresses.len() as u32;
        if missing == 0 {
            break;
        }
        let block = (seed.wrapping_add(step)) % BLOCKS;
        let (high, low) = ((block / 256 + 1) as u8, (block % 256) as u8);
        let Some(name) = take(high, low) else { continue };
        blocks.push(name);
        addresses.extend((1..=missing.min(SIZE)).map(|last| Ipv4Addr::new(127, high, low, last as u8)));
    }
    (addresses, blocks)
}

/// The users that hold addresses.
pub fn holders() -> Vec<LeaseHolder> {
    holders::holders(|name| name.starts_with(NAME))
}

/// Names of leases: `umiak-address-127.3.0`.
const NAME: &str = "umiak-address-";

fn take(high: u8, low: u8) -> Option<AddressLease> {
    let address = SocketAddr::from_abstract_name(format!("{NAME}127.{high}.{low}")).ok()?;
    UnixDatagram::bind_addr(&address).ok().map(|name| AddressLease { _name: name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_nobody_elses() {
        let (first, held) = lease(300, 7);
        let (second, _) = lease(3, 7);
        assert_eq!((first.len(), held.len(), second.len()), (300, 2, 3));
        assert!(second.iter().all(|address| !first.contains(address)));
        assert!(first.iter().all(|address| address.is_loopback() && address.octets()[1] > 0));
        drop(held);
        assert_eq!(lease(3, 7).0, first[..3]);
    }
}
