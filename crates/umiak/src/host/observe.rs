//! What running ranks are doing, for the diagnosis of a failure.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use umiak_core::facts::{Child, NoStack, ProcessState, Snapshot};
use umiak_core::plan::Log;
use umiak_sys::descend::descendants;
use umiak_sys::net::Listeners;
use umiak_sys::observe::{Process, Socket, awaits_input, one, processes};

use super::stacks::{self, Stack};
use crate::secrets;

/// Time for all ranks together. Those that are not read in time are left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    facts: Duration,
    stacks: Duration,
    /// True if the stacks of child processes are read too.
    children: bool,
}

/// Before a stop: the peers of a failed rank wait for it.
pub(crate) const BEFORE_STOP: Limits =
    Limits { facts: Duration::from_millis(3), stacks: Duration::from_millis(50), children: false };
/// On a thread of its own: the job may hang, or `umiak stacks` asks. Both together are shorter than a client waits for an
/// answer.
pub(crate) const UNHURRIED: Limits =
    Limits { facts: Duration::from_secs(2), stacks: Duration::from_secs(2), children: true };
/// Addresses of one rank that are kept.
const ADDRESSES: usize = 64;
/// Child processes of one rank that are looked at.
const CHILDREN: usize = 64;

/// A running rank, as seen from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) snapshot: Snapshot,
    /// Its Python child processes.
    pub(crate) children: Vec<Child>,
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
    let below = |pid: u32| descendants(pid).into_iter().take(CHILDREN);
    let is_deep = stacks && limits.children;
    let children: HashMap<u32, Vec<u32>> =
        workers.iter().filter(|_| is_deep).map(|pid| (*pid, below(*pid).collect())).collect();
    let mut stacks = if stacks {
        // A rank's own stack before those of children.
        let below = workers.iter().filter_map(|pid| children.get(pid)).flatten();
        stacks::take(&workers.iter().chain(below).copied().collect::<Vec<_>>(), limits.stacks)
    } else {
        HashMap::new()
    };
    let keys: HashMap<u32, K> = ranks.iter().map(|(key, pid)| (*pid, *key)).collect();
    let seen = |(pid, process): (u32, Process)| {
        let key = *keys.get(&pid)?;
        let below = children.get(&process.pid).into_iter().flatten();
        let children: Vec<Child> = below.filter_map(|pid| child(*pid, stacks.remove(pid)?)).collect();
        let stack = stacks.remove(&process.pid);
        Some((key, Seen { children, ..Seen::of(process, stack) }))
    };
    found.into_iter().filter_map(seen).collect()
}

/// A child process, if it runs Python.
fn child(pid: u32, stack: Result<Stack, NoStack>) -> Option<Child> {
    if matches!(stack, Err(NoStack::NotPython | NoStack::Ended)) {
        return None;
    }
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let mut child = Child { pid, name: name.trim_end().to_owned(), snapshot: snapshot(&one(pid)?, Some(stack)) };
    secrets::mask_child(&mut child);
    Some(child)
}

/// Without its sockets.
fn snapshot(process: &Process, stack: Option<Result<Stack, NoStack>>) -> Snapshot {
    let awaits_input = stack.is_some() && awaits_input(process.pid);
    let (stack, no_stack) = match stack {
        Some(Ok(stack)) => (stack, None),
        Some(Err(why)) => (Stack::default(), Some(why)),
        None => (Stack::default(), None),
    };
    Snapshot {
        state: match process.state {
            'R' => ProcessState::Running,
            'D' => ProcessState::Blocked,
            'T' | 't' => ProcessState::Suspended,
            'Z' | 'X' => ProcessState::Exiting,
            _ => ProcessState::Sleeping,
        },
        waits_in: process.waits_in.clone(),
        cpu_micros: u64::try_from(process.cpu.as_micros()).unwrap_or(u64::MAX),
        quiet_micros: None,
        connections: None,
        listens: None,
        listeners: None,
        awaits_input,
        stack: stack.frames,
        more_frames: stack.more,
        no_stack,
    }
}

/// Time since the last output to a log that has grown since `start`.
pub(crate) fn quiet(log: &Log) -> Option<Duration> {
    let quiet = |path: &Path, start: u64| {
        let metadata = std::fs::metadata(path).ok().filter(|metadata| metadata.len() > start)?;
        SystemTime::now().duration_since(metadata.modified().ok()?).ok()
    };
    let err = log.stderr.as_deref().and_then(|path| quiet(path, 0));
    quiet(&log.path, log.start).into_iter().chain(err).min()
}

impl Seen {
    fn of(process: Process, stack: Option<Result<Stack, NoStack>>) -> Self {
        let mut snapshot = snapshot(&process, stack);
        let is_read = process.sockets.is_some();
        let sockets = process.sockets.unwrap_or_default();
        let (listening, connected): (Vec<Socket>, Vec<Socket>) =
            sockets.iter().partition(|socket| socket.remote.is_none());
        snapshot.connections = is_read.then_some(connected.len() as u32);
        snapshot.listeners = is_read.then_some(listening.len() as u32);
        // Before it leaves this process: who asks, and other nodes, do not know its secrets.
        secrets::mask_snapshot(&mut snapshot);
        let local = |sockets: &[Socket]| -> Vec<SocketAddr> {
            sockets.iter().map(|socket| socket.local).take(ADDRESSES).collect()
        };
        let listening = is_read.then(|| local(&listening).into());
        Self { snapshot, children: Vec::new(), addresses: local(&sockets), listening }
    }
}
