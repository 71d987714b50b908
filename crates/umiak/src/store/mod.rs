//! The key-value store that torch's ranks use to find each other: any number of stores on one thread.
//!
//! * [`server`]: the thread: waits for sockets, reads requests, sends replies.
//! * [`connection`]: one client's socket, the part of a request that has arrived, replies that did not fit.
//! * [`patience`]: what is reported about clients that wait.
//!
//! [`umiak_core::wire::store`] reads requests, [`umiak_core::machine::store`] answers them; nothing is decided here.
//! The thread does not wake up while no client sends and none waits.

mod connection;
mod news;
mod patience;
mod server;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

pub(crate) use news::Client;
use news::Inbox;
pub(crate) use news::StoreNews;
use server::Server;

/// One store of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StoreId(u32);

/// Listens for clients of a store: on one address, or on all addresses of both families. Clients may connect at once;
/// they are answered after [`Stores::listen`].
pub(crate) fn bind(address: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    umiak_sys::net::listen_promptly(address, port)
}

/// The thread of all stores. It ends when this is dropped, and closes all connections.
#[derive(Debug)]
pub(crate) struct Stores {
    orders: Arc<Orders>,
    inbox: Arc<Inbox>,
    next: AtomicU32,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is asked to do, in order.
#[derive(Debug)]
struct Orders {
    /// `None` once the thread has ended.
    queue: Mutex<Option<Vec<Order>>>,
    waker: mio::Waker,
}

#[derive(Debug)]
enum Order {
    Open(StoreId),
    Listen(StoreId, TcpListener),
    Adopt(StoreId, TcpStream),
    /// The sender is dropped or used when it is done.
    Renew(StoreId, SyncSender<()>),
    Close(StoreId, SyncSender<()>),
    End,
}

impl Orders {
    fn give(&self, order: Order) {
        // An order that is not taken is dropped, and with it the sender that its caller waits for.
        if let Some(queue) = &mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner) {
            queue.push(order);
        }
        // It fails only if the thread's descriptors are gone.
        let _ = self.waker.wake();
    }

    fn take(&self) -> Vec<Order> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn end(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Stores {
    /// Starts the thread, without any store. Raises the limit of open files: each client is one.
    pub(crate) fn start() -> io::Result<Self> {
        umiak_sys::limits::raise();
        let inbox = Arc::new(Inbox::new()?);
        let poll = mio::Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), server::ORDERS)?;
        let orders = Arc::new(Orders { queue: Mutex::new(Some(Vec::new())), waker });
        let (their_orders, their_inbox) = (Arc::clone(&orders), Arc::clone(&inbox));
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .stack_size(512 << 10)
            .spawn(move || Server::new(poll, their_orders, their_inbox).run())?;
        Ok(Self { orders, inbox, next: AtomicU32::new(0), thread: Some(thread) })
    }

    /// Makes an empty store.
    pub(crate) fn open(&self) -> StoreId {
        let id = StoreId(self.next.fetch_add(1, Ordering::Relaxed));
        self.orders.give(Order::Open(id));
        id
    }

    /// Accepts clients of this store here, from [`bind`]. A store may have several listeners.
    pub(crate) fn listen(&self, id: StoreId, listener: TcpListener) {
        self.orders.give(Order::Listen(id, listener));
    }

    /// A client of this store that was accepted elsewhere. Nothing may have been read from it.
    pub(crate) fn adopt(&self, id: StoreId, stream: TcpStream) {
        self.orders.give(Order::Adopt(id, stream));
    }

    /// Drops all data and closes all connections, also those that are not accepted yet; listeners stay. When this
    /// returns, no client can see old data, and no old client is connected.
    pub(crate) fn renew(&self, id: StoreId) {
        self.order_and_wait(|done| Order::Renew(id, done));
    }

    /// Ends a store: its data, its connections and its listeners. When this returns, its ports are free.
    pub(crate) fn close(&self, id: StoreId) {
        self.order_and_wait(|done| Order::Close(id, done));
    }

    /// What has happened since the last call.
    pub(crate) fn news(&self) -> Vec<StoreNews> {
        self.inbox.take()
    }

    fn order_and_wait(&self, order: impl FnOnce(SyncSender<()>) -> Order) {
        let (sender, done) = sync_channel(1);
        self.orders.give(order(sender));
        // An error means that the thread has ended, and everything with it.
        let _ = done.recv();
    }
}

/// Readable when there is news.
impl AsFd for Stores {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.watch()
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        self.orders.give(Order::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
