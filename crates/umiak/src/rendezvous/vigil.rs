//! Whether anything of a node still runs after its connection broke: connections to the port that the node keeps open
//! while it runs. `machine::round::vigil` judges the answers.
//!
//! The port is used only if it once accepted a connection: a firewall may refuse connections too. Only the address that
//! the node itself connects from is ever tried, and only if the node knows it as its own: behind a translation of
//! addresses, the port of that number belongs to another host.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::sync::mpsc::Sender;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::debug;
use umiak_core::machine::round::messages::{Answer, Join};
use umiak_core::machine::round::vigil::{Next, Vigil};

use super::door;
use super::events::NetEvent;
use crate::clock::Clock;

/// Limit on connections to these ports at the same time.
const MAX_KNOCKS: usize = 256;

/// The ports of nodes, at their coordinator.
#[derive(Debug)]
pub(super) struct Vigils {
    clock: Clock,
    events: Sender<NetEvent>,
    room: Arc<Semaphore>,
    /// Those that once accepted a connection, by launch id.
    doors: HashMap<u64, SocketAddr>,
    /// Of nodes whose connection broke, by launch id.
    running: HashMap<u64, Task>,
}

/// Aborted when it is dropped.
#[derive(Debug)]
pub(super) struct Task(AbortHandle);

impl Task {
    pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Vigils {
    pub(super) fn new(clock: Clock, events: Sender<NetEvent>) -> Self {
        let room = Arc::new(Semaphore::new(MAX_KNOCKS));
        Self { clock, events, room, doors: HashMap::new(), running: HashMap::new() }
    }

    /// A node has joined, or reconnected, and has this port.
    pub(super) fn know(&mut self, launch: u64, at: Option<SocketAddr>) {
        self.doors.retain(|other, door| *other != launch || Some(*door) == at);
        let Some(at) = at.filter(|_| !self.doors.contains_key(&launch)) else { return };
        let (room, events) = (Arc::clone(&self.room), self.events.clone());
        tokio::spawn(async move {
            match knock(at, &room).await {
                Ok(()) => drop(events.send(NetEvent::Knocked { launch, at }).await),
                Err(answer) => debug!(%at, ?answer, "the port of the node is not reached, and not used"),
            }
        });
    }

    /// The port of a connected node accepted a connection.
    pub(super) fn knocked(&mut self, launch: u64, at: SocketAddr) {
        self.doors.insert(launch, at);
    }

    /// The connection of the node broke.
    pub(super) fn begin(&mut self, launch: u64) {
        let Some(at) = self.doors.get(&launch).copied() else { return };
        let (room, clock, events) = (Arc::clone(&self.room), self.clock, self.events.clone());
        let task = Task::spawn(async move {
            until_gone_within(at, clock, &room).await;
            let _ = events.send(NetEvent::Vanished { launch }).await;
        });
        self.running.insert(launch, task);
    }

    /// Ends those of nodes that are back, or lost, and returns their launch ids.
    pub(super) fn end_unless(&mut self, is_missed: impl Fn(u64) -> bool) -> Vec<u64> {
        self.running.extract_if(|launch, _| !is_missed(*launch)).map(|(launch, _)| launch).collect()
    }

    /// The node is not part of the job anymore.
    pub(super) fn forget(&mut self, launch: u64) {
        self.running.remove(&launch);
        self.doors.remove(&launch);
    }
}

/// Where to knock, if the node says so and the address is its own.
pub(super) fn door_of(join: &Join, peer: SocketAddr) -> Option<SocketAddr> {
    let (port, address) = (join.alive?.get(), peer.ip().to_canonical());
    if address != join.address.to_canonical() {
        return None;
    }
    Some(match peer {
        // With its scope.
        SocketAddr::V6(mut peer) if address.is_ipv6() => {
            peer.set_port(port);
            peer.into()
        }
        _ => SocketAddr::new(address, port),
    })
}

async fn knock(at: SocketAddr, room: &Semaphore) -> Result<(), Answer> {
    let _room = room.acquire().await;
    door::knock(at).await
}

/// Returns when connections to the port were refused for long enough.
pub(super) async fn until_gone(at: SocketAddr, clock: Clock) {
    until_gone_within(at, clock, &Semaphore::new(1)).await;
}

/// The same, with the others that share this room.
async fn until_gone_within(at: SocketAddr, clock: Clock, room: &Semaphore) {
    let mut vigil = Vigil::default();
    loop {
        let answer = knock(at, room).await;
        match vigil.answered(&answer, clock.now()) {
            Next::Gone => return,
            Next::Knock { after } => sleep(after).await,
        }
    }
}
