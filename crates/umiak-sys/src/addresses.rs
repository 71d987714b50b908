//! Loopback addresses, leased until the job ends.
//!
//! All of 127.0.0.0/8 is this host, so that each replica of a job can be a host of its own. A lease is an abstract Unix
//! socket named after a block of 254 of them, as for ports: it keeps two jobs apart and dies with its owner.

use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// How many blocks there are: 127.1.0.x to 127.254.255.x. The rest is what others expect to find there.
const BLOCKS: u64 = 254 * 256;
/// Addresses of one block: not its first and last, which look like a network's own.
const SIZE: u32 = 254;

/// Holds one block; dropping it gives it back.
#[derive(Debug)]
pub struct AddressLease {
    _name: UnixDatagram,
}

/// Chooses and leases addresses, from a place that depends on the seed. Fewer than asked for when all are taken.
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

fn take(high: u8, low: u8) -> Option<AddressLease> {
    let address = SocketAddr::from_abstract_name(format!("umiak-address-127.{high}.{low}")).ok()?;
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
