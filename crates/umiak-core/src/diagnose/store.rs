//! Which ranks are missing when others wait at torch's store.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::facts::{StoreKey, StoreWaits};
use crate::model::Rank;

/// Keys that are kept, the most wanted first.
const KEYS: usize = 4;
/// Bytes of a key that are kept.
const KEY: usize = 120;

/// A client of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreClient {
    /// `None` if it is unknown which rank it is.
    pub rank: Option<Rank>,
    /// How long it has waited, if it waits.
    pub waits: Option<Duration>,
}

/// Judges a store of `world` ranks from all its clients and the keys that some of them wait for.
///
/// A rank may have several connections. If the rank of a client is unknown, ranks without a connection cannot be told; then
/// the keys may tell: gloo's ranks wait for a key that ends in the number of each peer.
pub fn judge(world: u32, clients: &[StoreClient], keys: &[(Vec<u8>, usize)]) -> StoreWaits {
    let waiting: BTreeSet<Rank> =
        clients.iter().filter(|client| client.waits.is_some()).filter_map(|client| client.rank).collect();
    let connected: BTreeSet<Rank> = clients.iter().filter_map(|client| client.rank).collect();
    let all = || (0..world).map(Rank);
    let is_known = clients.iter().all(|client| client.rank.is_some());
    let named: BTreeSet<Rank> = keys.iter().filter_map(|(key, _)| peer(key)).filter(|rank| rank.0 < world).collect();
    let (missing, absent): (Vec<Rank>, bool) = if !is_known {
        (all().filter(|rank| named.contains(rank) && !connected.contains(rank)).collect(), true)
    } else if connected.len() < world as usize {
        (all().filter(|rank| !connected.contains(rank)).collect(), true)
    } else {
        (all().filter(|rank| !waiting.contains(rank)).collect(), false)
    };
    let longest = clients.iter().filter_map(|client| client.waits).max().unwrap_or_default();
    StoreWaits {
        clients: clients.iter().filter(|client| client.waits.is_some()).count() as u32,
        waiting: waiting.into_iter().collect(),
        missing,
        absent,
        keys: keys
            .iter()
            .take(KEYS)
            .map(|(key, clients)| StoreKey { key: text(key), clients: *clients as u32 })
            .collect(),
        longest_micros: u64::try_from(longest.as_micros()).unwrap_or(u64::MAX),
    }
}

/// The rank at the end of a key: `/default_pg/0//cpu//0/5`.
fn peer(key: &[u8]) -> Option<Rank> {
    let number = key.rsplit(|byte| *byte == b'/').next()?;
    let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
    // The last part alone is a name, not a peer.
    let is_path = key.len() > number.len() + 1;
    std::str::from_utf8(number).ok().filter(|_| is_number && is_path)?.parse().ok().map(Rank)
}

/// A key as shown, without the slash that torch puts in front of every key.
fn text(key: &[u8]) -> String {
    let key = key.strip_prefix(b"/").unwrap_or(key);
    let shown = String::from_utf8_lossy(&key[..key.len().min(KEY)]).into_owned();
    if key.len() > KEY { format!("{shown}…") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(rank: Option<u32>, waits: bool) -> StoreClient {
        StoreClient { rank: rank.map(Rank), waits: waits.then_some(Duration::from_secs(4)) }
    }

    fn missing(clients: &[StoreClient], keys: &[&str]) -> (Vec<u32>, bool) {
        let keys: Vec<(Vec<u8>, usize)> = keys.iter().map(|key| (key.as_bytes().to_vec(), 1)).collect();
        let waits = judge(4, clients, &keys);
        (waits.missing.iter().map(|rank| rank.0).collect(), waits.absent)
    }

    #[test]
    fn who_is_missing() {
        let waits = |ranks: &[u32]| ranks.iter().map(|rank| client(Some(*rank), true)).collect::<Vec<_>>();
        assert_eq!(missing(&waits(&[0, 2]), &["/default_pg/0//cpu//0/1"]), (vec![1, 3], true));
        // A rank with a connection that does not wait, and one with two connections.
        let mut all = waits(&[0, 1, 2]);
        all.extend([client(Some(3), false), client(Some(1), false)]);
        assert_eq!(missing(&all, &["/k"]), (vec![3], false));
        // Unknown clients: only the keys tell.
        let unknown = [client(None, true), client(Some(0), true)];
        assert_eq!(missing(&unknown, &["/default_pg/0//cpu//0/3", "/default_pg/0//cpu//0/0"]), (vec![3], true));
        assert_eq!(missing(&unknown, &["/7", "/a/b", "/a/9"]), (vec![], true));
    }

    #[test]
    fn keys_are_bounded() {
        let key = [b"/".as_slice(), &[b'k'; 500], b"\xff"].concat();
        let waits = judge(2, &[client(Some(0), true)], &vec![(key, 3); 9]);
        assert_eq!((waits.keys.len(), waits.keys[0].clients, waits.longest_micros), (KEYS, 3, 4_000_000));
        assert!(waits.keys[0].key.len() < 130);
    }
}
