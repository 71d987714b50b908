//! The rendezvous of a job's nodes: coordinator and agent, as tasks on the network's thread.
//!
//! The state machines in `umiak_core::machine::round` decide and `umiak_core::wire` defines the bytes; this module
//! reads and writes sockets. The front sends orders, is woken, and fetches reports (`docs/design/rendezvous.md`).
//!
//! * `thread`: the loop that owns all state: waits for one event, asks a machine, performs. Its two halves are `line`
//!   and `hosting`; `events` lists what it waits for.
//! * `door`: the handshake, from a connection to a session, on both sides; probes of addresses.
//! * `election`: of the coordinator of a job over etcd; a task of its own.
//! * `link`: an authenticated connection.
//! * `vigil`: whether anything of a node still runs whose connection broke.
//! * `bench`: coordinator and agents without a launcher, for the benchmark.
//! * `logs`, `gather`: tasks that send logs to the coordinator and receive them, over their own connections.

pub mod bench;
mod door;
pub(crate) mod election;
mod events;
mod farewell;
mod frames;
mod gather;
mod hosting;
mod line;
mod link;
pub(crate) mod logs;
#[cfg(test)]
mod tests;
mod thread;
mod vigil;
mod who;

pub(crate) use gather::{Gather, GatherNews};
pub(crate) use who::{Holder, who_holds};

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::messages::{Join, Loss, NodeName, Refusal, Standing};
use umiak_core::machine::round::{agent, coordinator};
use umiak_core::model::JobId;
use umiak_core::wire::auth::Key;
use umiak_sys::protocol::LastWords;
use umiak_sys::wait::Waker;

use crate::clock::Clock;
use crate::store::{StoreId, Stores};

/// Size of the kernel's send buffer: a control frame fits whole.
const SEND_BUFFER: u32 = 256 << 10;

/// Settings of the rendezvous on one node.
#[derive(Debug)]
pub(crate) struct NetOptions {
    pub(crate) coordinator: Target,
    /// Set on the coordinator's node.
    pub(crate) host: Option<Host>,
    /// An unspecified address is replaced by the local address of the connection to the coordinator.
    pub(crate) join: Join,
    pub(crate) limits: Limits,
    pub(crate) job_id: JobId,
    pub(crate) key: Key,
    pub(crate) clock: Clock,
}

/// Address of the coordinator.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Address(SocketAddr),
    /// Resolved at each attempt; its addresses are tried in order.
    Name {
        host: String,
        port: u16,
    },
}

/// Settings of the coordinator.
#[derive(Debug)]
pub(crate) struct Host {
    /// From [`bind`].
    pub(crate) listener: TcpListener,
    pub(crate) options: coordinator::Options,
    /// Sent to agents of other jobs: "job `ctr` since 12:03, pid 4121".
    pub(crate) describe: String,
    /// Set with `--gather-logs`.
    pub(crate) gather: Option<Gather>,
    /// Torch's store, if umiak hosts it: its clients connect to the same port.
    pub(crate) store: Option<StoreDoor>,
}

/// A store whose clients are accepted here.
#[derive(Debug, Clone)]
pub(crate) struct StoreDoor {
    pub(crate) stores: Arc<Stores>,
    pub(crate) id: StoreId,
    /// Counts renewals: a connection from before the last one belongs to the attempt before.
    epoch: Arc<AtomicU32>,
}

impl StoreDoor {
    pub(crate) fn new(stores: Stores, id: StoreId) -> Self {
        Self { stores: Arc::new(stores), id, epoch: Arc::default() }
    }

    fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Passes on a client that was accepted in this epoch.
    fn adopt(&self, stream: TcpStream, epoch: u32) {
        if epoch == self.epoch() {
            self.stores.adopt(self.id, stream);
        }
    }

    fn renew(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.stores.renew(self.id);
    }
}

/// A request from the front.
#[derive(Debug)]
pub(crate) enum NetOrder {
    Standing(Standing),
    /// All servers of this node listen in this attempt, or have exited with success.
    Listening {
        attempt: u32,
    },
    /// The processes of this node's ranks, by local rank.
    Started {
        attempt: u32,
        pids: Vec<u32>,
    },
    /// The log directory into which logs are gathered.
    Mark(LogDirMark),
    /// The number of nodes was changed in etcd; for the coordinator.
    Scaled {
        min: u32,
        max: u32,
    },
    /// This node must no longer be the coordinator.
    Fence(Loss),
    /// The last order: the task sends what is queued and ends. A node that leaves before the decision reports its
    /// departure to the others.
    Leave,
}

/// Identifies a log directory and names its files.
#[derive(Debug, Clone)]
pub(crate) struct LogDirMark {
    /// A file in our log directory whose name is unique.
    pub(crate) marker: String,
    /// File names of the ranks' logs, by rank.
    pub(crate) names: Vec<String>,
}

/// A message to the front.
#[derive(Debug)]
pub(crate) enum NetReport {
    News(agent::News),
    /// The coordinator in this process refused a node.
    Refused {
        address: IpAddr,
        host: String,
        refusal: Refusal,
    },
    /// The same for so many more nodes.
    RefusedMore {
        count: u64,
    },
    /// The coordinator in this process has these spare nodes.
    Spares(Vec<NodeName>),
    /// A new connection to the coordinator: a duplicate for the guardian, and the frame that announces the death of
    /// this front.
    Lifeline {
        socket: OwnedFd,
        frame: LastWords,
    },
    /// The processes of a node's ranks in the current attempt, by local rank.
    Started {
        node: u32,
        pids: Vec<u32>,
    },
    Gather(GatherNews),
    /// The rendezvous failed.
    Broken(String),
    /// The task has ended; always the last report.
    Ended,
}

/// The driver's handle on the rendezvous. Dropping it aborts the task without a farewell.
#[derive(Debug)]
pub(crate) struct Net {
    orders: UnboundedSender<NetOrder>,
    reports: Receiver<NetReport>,
    waker: Arc<Waker>,
    /// Closed when the task ends.
    ended: Receiver<()>,
}

/// Listens for nodes on all addresses, on this port or (with 0) on a free one.
pub(crate) fn bind(port: u16) -> io::Result<TcpListener> {
    umiak_sys::net::listen(port, SEND_BUFFER as usize)
}

impl Net {
    pub(crate) fn start(options: NetOptions) -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        let (orders, from_front) = unbounded_channel();
        let (to_front, reports) = channel();
        let (alive, ended) = channel();
        let reporter = Reporter { reports: to_front, waker: Arc::clone(&waker) };
        let network = crate::network::handle()?;
        let member = {
            let _context = network.enter();
            thread::member(options, from_front, reporter)?
        };
        network.spawn(async move {
            let _alive: Sender<()> = alive;
            member.await;
        });
        Ok(Self { orders, reports, waker, ended })
    }

    /// Sends an order; has no effect once the task has ended.
    pub(crate) fn order(&self, order: NetOrder) {
        let _ = self.orders.send(order);
    }

    /// Returns the reports since the last call; never blocks.
    pub(crate) fn reports(&mut self) -> Vec<NetReport> {
        self.waker.clear();
        self.reports.try_iter().collect()
    }

    /// Ends the task: sends what is queued and, on the coordinator, waits for the nodes; all within `patience`.
    pub(crate) fn finish(self, patience: Duration) {
        self.order(NetOrder::Leave);
        // Nothing is ever sent here; the end of the task closes it. A task that takes longer ends when `self` is
        // dropped.
        let end = self.ended.recv_timeout(patience);
        debug_assert!(matches!(end, Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)));
    }
}

/// Readable when reports are waiting.
impl AsFd for Net {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// The task's channel to the front.
#[derive(Debug)]
struct Reporter {
    reports: Sender<NetReport>,
    waker: Arc<Waker>,
}

impl Reporter {
    /// Sends a report; has no effect once the front is gone.
    fn tell(&self, report: NetReport) {
        let _ = self.reports.send(report);
        self.waker.wake();
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell(NetReport::Broken("the network task panicked".to_owned()));
        }
        self.tell(NetReport::Ended);
    }
}
