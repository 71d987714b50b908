//! The peers that a failed rank's message names, by rank or by address.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use regex::Regex;

use super::signatures::{self, Kind};
use crate::facts::Evidence;

/// A peer as a message names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    Rank(u32),
    /// The rank whose key is missing in the store.
    Missing(u32),
    /// The other end of a connection that broke or did not respond.
    At(SocketAddr),
    /// The address that the rank could not connect to.
    Sought(SocketAddr),
}

/// `[10.0.0.2]:4711`, `(10.0.0.2, 4711)`, `10.0.0.2:4711`, `10.0.0.2<4711>`, also with an IPv6 address in brackets.
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\[(?<a>[0-9a-fA-F:.]+)\]:(?<b>[0-9]+)|(?<c>[0-9]+(?:\.[0-9]+){3})(?::|<|, ?)(?<d>[0-9]+)")
        .expect("a test uses it")
});
/// The ranks that gloo's barrier, or a pair of Paddle's gloo, names.
static RANKS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"Ranks? (?<a>[0-9][0-9, ]*) failed to pass monitoredBarrier|pair_rank = (?<b>[0-9]+)")
        .expect("a test uses it")
});

/// The key that did not appear in torch's store. Its last number is a rank.
static KEY: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"wait timeout after [0-9]+ ?ms, keys: \S*/(?<a>[0-9]+)\b").expect("a test uses it"));

/// Returns the peers that the error names; if the error names none, those that the last lines name.
pub(super) fn named(evidence: &Evidence) -> Vec<Peer> {
    let headline = evidence.headline.iter().map(|line| line.text.as_str());
    let error: Vec<&str> = headline.chain(evidence.traceback.iter().map(String::as_str)).collect();
    let mut peers: Vec<Peer> = error.into_iter().flat_map(in_line).collect();
    if peers.is_empty() {
        peers = evidence.last_lines.iter().flat_map(|line| in_line(line)).collect();
    }
    let mut seen = Vec::new();
    peers.retain(|peer| {
        !seen.contains(peer) && {
            seen.push(*peer);
            true
        }
    });
    peers
}

fn in_line(line: &str) -> Vec<Peer> {
    let mut peers = Vec::new();
    for found in RANKS.captures_iter(line) {
        let list = found.name("a").or_else(|| found.name("b")).map_or("", |found| found.as_str());
        peers.extend(list.split([',', ' ']).filter_map(|number| number.parse().ok()).map(Peer::Rank));
    }
    let key = KEY.captures(line).and_then(|found| found["a"].parse().ok());
    peers.extend(key.map(Peer::Missing));
    let is_sought =
        ["trying to connect", "failed to connect", "onnection refused", "ECONNREFUSED", "not ready endpoints"]
            .iter()
            .any(|words| line.contains(words));
    // Warnings about a wait name the address of the store, which works.
    let is_lost = signatures::of_line(line).is_some_and(|signature| signature.kind == Kind::Victim);
    for found in ADDRESS.captures_iter(line).filter(|_| is_sought || is_lost) {
        let part = |one, other| found.name(one).or_else(|| found.name(other)).map_or("", |found| found.as_str());
        let (Ok(address), Ok(port)) = (part("a", "c").parse::<IpAddr>(), part("b", "d").parse::<u16>()) else {
            continue;
        };
        // Gloo prints the port in network byte order, as a number.
        let port = if line.contains("gloo/transport/tcp/pair.cc") { port.swap_bytes() } else { port };
        let address = SocketAddr::new(address.to_canonical(), port);
        peers.push(if is_sought { Peer::Sought(address) } else { Peer::At(address) });
    }
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_in_messages() {
        let at = |text: &str| Peer::At(text.parse().unwrap());
        let sought = |text: &str| Peer::Sought(text.parse().unwrap());
        let cases = [
            (
                "RuntimeError: [/w/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer \
                 [127.0.0.1]:19868. This is typically caused by a remote worker crashing",
                vec![at("127.0.0.1:40013")],
            ),
            (
                "The client socket has timed out after 6000ms while trying to connect to (127.0.0.1, 20048).",
                vec![sought("127.0.0.1:20048")],
            ),
            (
                "waitForInput: socket SocketImpl(fd=3, addr=[::ffff:127.0.0.1]:55812, remote=[::ffff:127.0.0.1]:18911) timed out",
                vec![],
            ),
            ("Connection closed by remote peer gpu-b<4711> 10.0.0.2<4711>", vec![at("10.0.0.2:4711")]),
            ("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms", vec![Peer::Rank(1), Peer::Rank(3)]),
            ("TIMEOUT self_rank = 0 pair_rank = 2 peer_str = [127.0.0.1]:4", vec![Peer::Rank(2), at("127.0.0.1:4")]),
            ("DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/2", vec![Peer::Missing(2)]),
            ("not ready endpoints:['127.0.0.1:6071']", vec![sought("127.0.0.1:6071")]),
            ("loss 0.1, step 12:30", vec![]),
        ];
        for (line, expected) in cases {
            assert_eq!(in_line(line), expected, "{line}");
        }
    }
}
