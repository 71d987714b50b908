//! What the loop wakes up for: orders of the front, events of its tasks, knocks at the door, time.

use std::future::{Future as _, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, channel};
use tokio::time::sleep;
use umiak_core::machine::round::logs::Hello;
use umiak_core::machine::round::messages::{Answer, FromAgent, Join, ToAgent};

use super::NetOrder;
use super::gather::GatherNews;
use super::link::{Parts, Said};

/// Events that wait for the loop; their senders wait too.
const MAX_EVENTS: usize = 64;

/// What tasks tell the loop.
#[derive(Debug)]
pub(super) enum NetEvent {
    /// A knock at our door led to this,
    Joined {
        link: u64,
        parts: Box<Parts>,
        join: Box<Join>,
    },
    /// or to this,
    Logs {
        link: u64,
        parts: Box<Parts>,
        hello: Hello,
    },
    /// or to this, after which it leaves,
    TurnedAway {
        address: IpAddr,
        answer: Answer,
    },
    /// or it is gone, and not worth a word.
    Left {
        link: u64,
    },
    FromAgent(u64, Said<FromAgent>),
    Probed {
        address: IpAddr,
        answer: Answer,
    },
    /// We have reached the coordinator, or not.
    Reached {
        line: u64,
        result: Result<Box<Parts>, Answer>,
    },
    ToAgent(u64, Said<ToAgent>),
    GatherNews(GatherNews),
    /// All logs are here that will come.
    Gathered,
}

/// What the loop wakes up for.
pub(super) enum Happening {
    /// `None`: the front is gone.
    Order(Option<NetOrder>),
    Event(NetEvent),
    Knock(io::Result<TcpStream>),
    Time,
}

/// What the loop listens to.
#[derive(Debug)]
pub(super) struct Inbox {
    orders: UnboundedReceiver<NetOrder>,
    events: Receiver<NetEvent>,
    /// They take turns: a crowd at the door does not keep those inside from being heard, nor the other way.
    knocks_first: bool,
}

impl Inbox {
    /// With the end that tasks send their events to.
    pub(super) fn new(orders: UnboundedReceiver<NetOrder>) -> (Self, Sender<NetEvent>) {
        let (sender, events) = channel(MAX_EVENTS);
        (Self { orders, events, knocks_first: false }, sender)
    }

    pub(super) async fn next(&mut self, listener: Option<&TcpListener>, wait: Duration) -> Happening {
        if wait.is_zero() {
            // Time goes first, but the orders and the tasks have their turn too.
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
