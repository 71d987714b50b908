//! The nodes of a job come together: coordinator and agent, as tasks on the network's thread.
//!
//! The machines of `umiak_core::machine::round` decide and those of `umiak_core::wire` know the bytes; here sockets are
//! read and written. The front gives orders, is woken, and fetches reports (`docs/design/rendezvous.md`).
//!
//! * `thread`: the loop that owns all state: waits for one thing, asks a machine, performs. Its two halves are `line` and `hosting`,
//!   and what it waits for is in `events`.
//! * `door`: from a connection to a session, on both sides; looking at addresses.
//! * `link`: a connection whose two ends have proven themselves.
//! * `bench`: coordinator and agents by themselves, for the benchmark.
//! * `logs`, `gather`: logs on their way to the coordinator, as tasks with connections of their own.

pub mod bench;
mod door;
mod events;
mod frames;
mod gather;
mod hosting;
mod line;
mod link;
pub(crate) mod logs;
#[cfg(test)]
mod tests;
mod thread;
mod who;

pub(crate) use gather::{Gather, GatherNews};
pub(crate) use who::{Holder, who_holds};

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::messages::{Join, Refusal, Standing};
use umiak_core::machine::round::{agent, coordinator};
use umiak_core::model::JobId;
use umiak_core::wire::auth::Key;
use umiak_sys::wait::Waker;

use crate::clock::Clock;

/// Room in the kernel for what we send: control frames go out in one piece.
const SEND_BUFFER: u32 = 256 << 10;

/// What the round goes by.
#[derive(Debug)]
pub(crate) struct NetOptions {
    pub(crate) coordinator: Target,
    /// On the coordinator's node.
    pub(crate) host: Option<Host>,
    /// An unspecified address stands for the local end of the connection to the coordinator.
    pub(crate) join: Join,
    pub(crate) limits: Limits,
    pub(crate) job_id: JobId,
    pub(crate) key: Key,
    pub(crate) clock: Clock,
}

/// Where the coordinator is.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Address(SocketAddr),
    /// Resolved at each try, and its addresses tried in their order.
    Name {
        host: String,
        port: u16,
    },
}

/// What a coordinator needs.
#[derive(Debug)]
pub(crate) struct Host {
    /// From [`bind`].
    pub(crate) listener: TcpListener,
    pub(crate) options: coordinator::Options,
    /// What agents of other jobs are told: "job `ctr` since 12:03, pid 4121".
    pub(crate) describe: String,
    /// With `--gather-logs`.
    pub(crate) gather: Option<Gather>,
}

/// From the front.
#[derive(Debug)]
pub(crate) enum NetOrder {
    Standing(Standing),
    /// All servers of this node listen in this attempt, or have ended well.
    Listening {
        attempt: u32,
    },
    /// Where logs are gathered.
    Mark(LogDirMark),
    /// Nothing more will be ordered: what is queued is sent, and then the task ends. A node that leaves before the
    /// decision tells the others that it is gone.
    Leave,
}

/// How a log directory is known, and what is in it.
#[derive(Debug, Clone)]
pub(crate) struct LogDirMark {
    /// A file in our log directory with a name that nobody else has.
    pub(crate) marker: String,
    /// What each rank's log is called, by rank.
    pub(crate) names: Vec<String>,
}

/// To the front.
#[derive(Debug)]
pub(crate) enum NetReport {
    News(agent::News),
    /// The coordinator beside us has refused a node.
    Refused {
        address: IpAddr,
        host: String,
        refusal: Refusal,
    },
    /// A new connection to the coordinator: a duplicate for the guardian, and the frame that says that this front is
    /// gone.
    Lifeline {
        socket: OwnedFd,
        frame: Vec<u8>,
    },
    Gather(GatherNews),
    /// The round cannot go on.
    Broken(String),
    /// The task has ended: the last of all.
    Ended,
}

/// The round, as the driver sees it. Dropping it ends its task without ceremony.
#[derive(Debug)]
pub(crate) struct Net {
    orders: UnboundedSender<NetOrder>,
    reports: Receiver<NetReport>,
    waker: Arc<Waker>,
    /// Closed by the end of the task.
    ended: Receiver<()>,
}

/// Listens for nodes: on all addresses, on this port or a free one.
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

    /// A task that has ended takes no orders.
    pub(crate) fn order(&self, order: NetOrder) {
        let _ = self.orders.send(order);
    }

    /// What has happened; never blocks.
    pub(crate) fn reports(&mut self) -> Vec<NetReport> {
        self.waker.clear();
        self.reports.try_iter().collect()
    }

    /// Ends the task: what is queued is sent, a coordinator waits for its nodes, all that for `patience` at most.
    pub(crate) fn finish(self, patience: Duration) {
        self.order(NetOrder::Leave);
        // The task says nothing here, and ends. After that time it ends for want of a front.
        let end = self.ended.recv_timeout(patience);
        debug_assert!(matches!(end, Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)));
    }
}

/// Readable when there are reports.
impl AsFd for Net {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// The thread's way to the front.
#[derive(Debug)]
struct Reporter {
    reports: Sender<NetReport>,
    waker: Arc<Waker>,
}

impl Reporter {
    /// Nobody hears it when the front is gone.
    fn tell(&self, report: NetReport) {
        let _ = self.reports.send(report);
        self.waker.wake();
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell(NetReport::Broken("its task has panicked".to_owned()));
        }
        self.tell(NetReport::Ended);
    }
}
