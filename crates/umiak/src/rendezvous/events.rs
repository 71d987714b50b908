//! What the loop waits for: orders from the front, events from its tasks, new connections, time.

use std::future::{Future as _, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, channel};
use tokio::time::sleep;
use umiak_core::machine::round::logs::Hello;
use umiak_core::machine::round::messages::{Answer, FromAgent, Join, ToAgent};

use super::NetOrder;
use super::gather::GatherNews;
use super::link::{Parts, Said};

/// Events that wait for the loop; when full, senders wait.
const MAX_EVENTS: usize = 64;

/// An event from one of the loop's tasks.
#[derive(Debug)]
pub(super) enum NetEvent {
    /// A new connection has authenticated and joins the job.
    Joined {
        link: u64,
        parts: Box<Parts>,
        join: Box<Join>,
        /// The address it connects from; `None` from this host.
        source: Option<IpAddr>,
        /// The memory that a long first message takes, until the loop has handled it.
        room: Option<OwnedSemaphorePermit>,
    },
    /// A new connection has authenticated and sends logs.
    Logs {
        link: u64,
        parts: Box<Parts>,
        hello: Hello,
    },
    /// A new connection failed the handshake with an answer; `Left` follows.
    TurnedAway {
        address: IpAddr,
        answer: Answer,
    },
    /// A new connection has ended without joining.
    Left {
        link: u64,
    },
    FromAgent(u64, Said<FromAgent>),
    Probed {
        address: IpAddr,
        answer: Answer,
    },
    /// A node's port accepted a connection.
    Knocked {
        launch: u64,
        at: SocketAddr,
    },
    /// Nothing of this node runs anymore.
    Vanished {
        launch: u64,
    },
    /// The result of a connection attempt to the coordinator.
    Reached {
        line: u64,
        result: Result<Box<Parts>, Answer>,
    },
    ToAgent(u64, Said<ToAgent>),
    GatherNews(GatherNews),
    /// No more logs will arrive.
    Gathered,
}

/// What woke the loop.
pub(super) enum Happening {
    /// `None`: the front is gone.
    Order(Option<NetOrder>),
    Event(NetEvent),
    Knock(io::Result<TcpStream>),
    Time,
}

/// Receives everything that the loop waits for.
#[derive(Debug)]
pub(super) struct Inbox {
    orders: UnboundedReceiver<NetOrder>,
    events: Receiver<NetEvent>,
    /// Alternates, so that neither new connections nor events of existing ones can starve the other.
    knocks_first: bool,
}

impl Inbox {
    /// Returns also the sender for the tasks' events.
    pub(super) fn new(orders: UnboundedReceiver<NetOrder>) -> (Self, Sender<NetEvent>) {
        let (sender, events) = channel(MAX_EVENTS);
        (Self { orders, events, knocks_first: false }, sender)
    }

    pub(super) async fn next(&mut self, listener: Option<&TcpListener>, wait: Duration) -> Happening {
        if wait.is_zero() {
            // Time has priority; yielding lets tasks run.
            tokio::task::yield_now().await;
            return Happening::Time;
        }
        let Self { orders, events, knocks_first } = self;
        *knocks_first = !*knocks_first;
        let mut sleep = pin!(sleep(wait));
        let knock = |cx: &mut Context<'_>| match listener.map(|listener| listener.poll_accept(cx)) {
            Some(Poll::Ready(result)) => Poll::Ready(Happening::Knock(result.map(|(stream, _)| stream))),
            Some(Poll::Pending) | None => Poll::Pending,
        };
        poll_fn(|cx| {
            if let Poll::Ready(order) = orders.poll_recv(cx) {
                return Poll::Ready(Happening::Order(order));
            }
            if *knocks_first && let Poll::Ready(knock) = knock(cx) {
                return Poll::Ready(knock);
            }
            if let Poll::Ready(Some(event)) = events.poll_recv(cx) {
                return Poll::Ready(Happening::Event(event));
            }
            if !*knocks_first && let Poll::Ready(knock) = knock(cx) {
                return Poll::Ready(knock);
            }
            sleep.as_mut().poll(cx).map(|()| Happening::Time)
        })
        .await
    }
}
