//! What running ranks are doing, for the diagnosis of a failure.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use umiak_core::facts::{ProcessState, Snapshot};
use umiak_sys::net::Listeners;
use umiak_sys::observe::{Process, Socket, processes};

use super::stacks;
use crate::secrets;

/// Time for all ranks together. Those that are not read in time are left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    facts: Duration,
    stacks: Duration,
}

/// Before a stop: the peers of a failed rank wait for it.
pub(crate) const BEFORE_STOP: Limits = Limits { facts: Duration::from_millis(3), stacks: Duration::from_millis(50) };
/// On a thread of its own: the job may hang, or `umiak stacks` asks. Both together are shorter than a client waits for an
/// answer.
pub(crate) const UNHURRIED: Limits = Limits { facts: Duration::from_secs(2), stacks: Duration::from_secs(2) };
/// Addresses of one rank that are kept.
const ADDRESSES: usize = 64;

/// A running rank, as seen from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) snapshot: Snapshot,
    /// The local addresses of its sockets.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Those on which it listens, if its sockets were read.
    pub(crate) listening: Option<Listeners>,
}

/// Looks at these processes; with `stacks`, at their interpreters too.
pub(crate) fn look<K: Copy>(ranks: &[(K, u32)], limits: Limits, stacks: bool) -> Vec<(K, Seen)> {
    let pids: Vec<u32> = ranks.iter().map(|(_, pid)| *pid).collect();
    let found = processes(&pids, Instant::now() + limits.facts);
    let workers: Vec<u32> = found.iter().map(|(_, process)| process.pid).collect();
    let stacks = if stacks { stacks::take(&workers, limits.stacks) } else { Vec::new() };
    let keys: HashMap<u32, K> = ranks.iter().map(|(key, pid)| (*pid, *key)).collect();
    let seen = |(pid, process): (u32, Process)| {
        let stack = stacks.iter().find(|(of, _)| *of == process.pid).map(|(_, stack)| stack.clone());
        Some((*keys.get(&pid)?, Seen::of(process, stack.unwrap_or_default())))
    };
    found.into_iter().filter_map(seen).collect()
}

/// Time since the last output to a log that has grown since `start`.
pub(crate) fn quiet(log: &Path, start: u64) -> Option<Duration> {
    let metadata = std::fs::metadata(log).ok().filter(|metadata| metadata.len() > start)?;
    SystemTime::now().duration_since(metadata.modified().ok()?).ok()
}

impl Seen {
    fn of(process: Process, stack: Vec<umiak_core::facts::StackFrame>) -> Self {
        let is_read = process.sockets.is_some();
        let sockets = process.sockets.unwrap_or_default();
        let (listening, connected): (Vec<Socket>, Vec<Socket>) =
            sockets.iter().partition(|socket| socket.remote.is_none());
        let mut snapshot = Snapshot {
            state: match process.state {
                'R' => ProcessState::Running,
                'D' => ProcessState::Blocked,
                'T' | 't' => ProcessState::Suspended,
                'Z' | 'X' => ProcessState::Exiting,
                _ => ProcessState::Sleeping,
            },
            waits_in: process.waits_in,
            cpu_micros: u64::try_from(process.cpu.as_micros()).unwrap_or(u64::MAX),
            quiet_micros: None,
            connections: is_read.then_some(connected.len() as u32),
            listens: None,
            listeners: is_read.then_some(listening.len() as u32),
            stack,
        };
        // Before it leaves this process: who asks, and other nodes, do not know its secrets.
        secrets::mask_snapshot(&mut snapshot);
        let local = |sockets: &[Socket]| sockets.iter().map(|socket| socket.local).take(ADDRESSES).collect();
        Self { snapshot, addresses: local(&sockets), listening: is_read.then(|| local(&listening).into()) }
    }
}
