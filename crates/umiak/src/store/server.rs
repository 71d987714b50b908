//! The thread: waits for sockets, reads requests, sends replies.
//!
//! One read takes what a client has sent, all requests in it are answered with one write. A read that did not fill the
//! buffer has emptied the socket, so there is no second one. A client that does not read its replies is not read from.
//! What one client can make the thread do at a time is bounded; the rest is done after the turns of all others.

use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use thiserror::Error;
use tracing::{debug, error, trace};
use umiak_core::machine::store::{ConnectionId, NotANumber, Reply, Request, Standing, Store, WOKEN};
use umiak_core::wire::store::Violation;

use super::connection::{Connection, Sent, Waiting};
use super::news::{Inbox, StoreNews};
use super::patience::{Patience, Report};
use super::{Order, Orders, StoreId};

/// Readable when there are orders.
pub(super) const ORDERS: Token = Token(usize::MAX);
/// Tokens from here on are listeners, lower ones connections.
const LISTENERS: usize = 1 << 31;

const EVENTS: usize = 1024;
/// Bytes per read, of all clients in turn.
const BUFFER: usize = 256 << 10;
/// After this much has to be sent to a client, the others have their turn.
const REPLY: usize = 64 << 10;
/// Connections that a listener accepts in one turn.
const ACCEPTS: usize = 256;
/// A client must send its first message within this time.
const FIRST_MESSAGE: Duration = Duration::from_secs(30);
/// When to try again after descriptors ran out.
const STARVED: Duration = Duration::from_secs(1);
/// How many keys a report names.
const REPORTED_KEYS: usize = 8;
/// End of the key that NCCL's heartbeat monitor sets when a collective timed out.
const EXCEPTION_DUMP: &[u8] = b"exception_dump";

#[derive(Debug)]
pub(super) struct Server {
    poll: Poll,
    orders: Arc<Orders>,
    inbox: Arc<Inbox>,
    /// By [`StoreId`].
    stores: Vec<Option<Hosted>>,
    listeners: Vec<Option<Listening>>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    serial: u64,
    /// Connections that may have to be continued with.
    queued: Vec<usize>,
    /// Connections whose first message is missing, in order of arrival; others are among them.
    unvalidated: VecDeque<(Instant, usize, u64)>,
    /// When to accept again, after descriptors ran out.
    starved: Option<Instant>,
    /// The time in this turn, once it was needed.
    now: Option<Instant>,
    buffer: Box<[u8]>,
    reply: Reply,
    woken: Vec<ConnectionId>,
}

#[derive(Debug)]
struct Hosted {
    id: StoreId,
    store: Store,
    /// The connections that wait, in order of the beginning of the wait.
    waiting: Option<Line>,
    patience: Patience,
    is_dump_told: bool,
    is_refusal_told: bool,
}

/// The first and the last connection in a list through connections.
#[derive(Debug, Clone, Copy)]
struct Line {
    first: usize,
    last: usize,
}

#[derive(Debug)]
struct Listening {
    listener: TcpListener,
    store: usize,
    /// There may be connections to accept.
    is_readable: bool,
}

/// Why a connection is closed.
#[derive(Debug, Error)]
enum End {
    #[error("the client has left")]
    Left,
    #[error(transparent)]
    Failed(#[from] io::Error),
    #[error(transparent)]
    Refused(#[from] Violation),
    #[error(transparent)]
    NotANumber(#[from] NotANumber),
    #[error("the client does not read its replies")]
    Stuffed,
}

/// Ends the queue of orders with the thread.
struct Ended(Arc<Orders>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Hosted {
    fn new(id: StoreId) -> Self {
        let (store, patience) = (Store::new(), Patience::default());
        Self { id, store, waiting: None, patience, is_dump_told: false, is_refusal_told: false }
    }
}

impl Server {
    pub(super) fn new(poll: Poll, orders: Arc<Orders>, inbox: Arc<Inbox>) -> Self {
        Self {
            poll,
            orders,
            inbox,
            stores: Vec::new(),
            listeners: Vec::new(),
            connections: Vec::new(),
            free: Vec::new(),
            serial: 0,
            queued: Vec::new(),
            unvalidated: VecDeque::new(),
            starved: None,
            now: None,
            buffer: vec![0; BUFFER].into(),
            reply: Reply::default(),
            woken: Vec::new(),
        }
    }

    /// Runs until it is told to end.
    pub(super) fn run(mut self) {
        // However it ends: what waits for an order to be done must not wait for ever.
        let _ended = Ended(Arc::clone(&self.orders));
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    error!(%error, "the store cannot wait for its clients");
                    return;
                }
            }
            self.now = None;
            for event in &events {
                match event.token() {
                    ORDERS => {
                        if !self.obey() {
                            return;
                        }
                    }
                    Token(token) if token >= LISTENERS => self.accept(token - LISTENERS),
                    Token(at) => self.hear(at, event),
                }
            }
            self.go_on();
        }
    }

    /// How long to wait for events; forever if nothing is due. Does what is due now.
    fn timeout(&mut self) -> Option<Duration> {
        loop {
            if !self.queued.is_empty() || self.listeners.iter().flatten().any(|one| one.is_readable) {
                return Some(Duration::ZERO);
            }
            let deadline = self.deadline()?;
            let now = Instant::now();
            if deadline > now {
                return Some(deadline - now);
            }
            self.now = Some(now);
            self.do_what_is_due(now);
        }
    }

    fn deadline(&mut self) -> Option<Instant> {
        while let Some((_, at, serial)) = self.unvalidated.front() {
            let connection = self.connections[*at].as_ref();
            if connection.is_some_and(|one| one.serial == *serial && !one.reader.is_validated()) {
                break;
            }
            self.unvalidated.pop_front();
        }
        let unvalidated = self.unvalidated.front().map(|(since, ..)| *since + FIRST_MESSAGE);
        let stores = self.stores.iter().flatten().filter_map(|hosted| hosted.patience.deadline(self.longest(hosted)));
        stores.chain(unvalidated).chain(self.starved).min()
    }

    /// The beginning of the longest wait.
    fn longest(&self, hosted: &Hosted) -> Option<Instant> {
        let first = self.connections[hosted.waiting?.first].as_ref()?;
        Some(first.wait?.since)
    }

    fn do_what_is_due(&mut self, now: Instant) {
        while let Some((since, at, serial)) = self.unvalidated.front().copied() {
            if since + FIRST_MESSAGE > now {
                break;
            }
            self.unvalidated.pop_front();
            let connection = self.connections[at].as_ref();
            if connection.is_some_and(|one| one.serial == serial && !one.reader.is_validated()) {
                self.close(at, &End::Refused(Violation::NotTorch));
            }
        }
        if self.starved.is_some_and(|at| at <= now) {
            self.starved = None;
            self.listeners.iter_mut().flatten().for_each(|one| one.is_readable = true);
            self.accept_more();
        }
        for at in 0..self.stores.len() {
            let Some(hosted) = &self.stores[at] else { continue };
            let longest = self.longest(hosted);
            if hosted.patience.deadline(longest).is_none_or(|deadline| deadline > now) {
                continue;
            }
            let report = report(hosted, at, &self.connections);
            let Some(hosted) = &mut self.stores[at] else { continue };
            if let Some(news) = hosted.patience.look(hosted.id, longest, now, report) {
                self.inbox.tell(news);
            }
        }
    }

    /// The time of this turn.
    fn now(&mut self) -> Instant {
        *self.now.get_or_insert_with(Instant::now)
    }

    /// Does what other threads asked for. False if that is to end.
    fn obey(&mut self) -> bool {
        for order in self.orders.take() {
            trace!(?order);
            match order {
                Order::Open(id) => {
                    let at = id.0 as usize;
                    self.stores.resize_with(self.stores.len().max(at + 1), || None);
                    self.stores[at] = Some(Hosted::new(id));
                }
                Order::Listen(id, listener) => self.listen(id, listener),
                Order::Adopt(id, stream) => self.adopt(id, stream),
                Order::Renew(id, done) => {
                    self.empty(id);
                    self.stores[id.0 as usize] = Some(Hosted::new(id));
                    let _ = done.send(());
                }
                Order::Close(id, done) => {
                    self.empty(id);
                    self.stores[id.0 as usize] = None;
                    for one in &mut self.listeners {
                        one.take_if(|one| one.store == id.0 as usize);
                    }
                    let _ = done.send(());
                }
                Order::End => return false,
            }
        }
        true
    }

    fn listen(&mut self, id: StoreId, listener: std::net::TcpListener) {
        let at = self.listeners.iter().position(Option::is_none).unwrap_or(self.listeners.len());
        let registered = listener.set_nonblocking(true).and_then(|()| {
            let mut listener = TcpListener::from_std(listener);
            self.poll.registry().register(&mut listener, Token(LISTENERS + at), Interest::READABLE)?;
            Ok(listener)
        });
        match registered {
            Ok(listener) => {
                let listening = Listening { listener, store: id.0 as usize, is_readable: false };
                if at == self.listeners.len() {
                    self.listeners.push(None);
                }
                self.listeners[at] = Some(listening);
            }
            Err(error) => error!(%error, "the store cannot listen"),
        }
    }

    fn adopt(&mut self, id: StoreId, stream: std::net::TcpStream) {
        let prepared = (|| {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            stream.peer_addr()
        })();
        match prepared {
            Ok(peer) => self.welcome(id.0 as usize, TcpStream::from_std(stream), peer),
            Err(error) => debug!(%error, "a client has left before it was accepted"),
        }
    }

    /// Closes all connections of a store, also those in the backlog.
    fn empty(&mut self, id: StoreId) {
        for at in 0..self.connections.len() {
            if self.connections[at].take_if(|one| one.store == id.0 as usize).is_some() {
                self.free.push(at);
            }
        }
        for one in self.listeners.iter().flatten().filter(|one| one.store == id.0 as usize) {
            while one.listener.accept().is_ok() {}
        }
        self.inbox.retract(id);
    }

    fn accept(&mut self, at: usize) {
        let Some(listening) = self.listeners.get_mut(at).and_then(Option::as_mut) else { return };
        listening.is_readable = true;
        let store = listening.store;
        for _ in 0..ACCEPTS {
            let Some(listening) = &mut self.listeners[at] else { return };
            match listening.listener.accept() {
                Ok((stream, peer)) => self.welcome(store, stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    listening.is_readable = false;
                    return;
                }
                // They concern one connection.
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => {
                    // Out of descriptors or memory: clients stay in the backlog, and see no error.
                    debug!(%error, "the store cannot accept clients at present");
                    listening.is_readable = false;
                    self.starved = Some(self.now() + STARVED);
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, store: usize, mut stream: TcpStream, peer: std::net::SocketAddr) {
        let Some(hosted) = self.stores.get_mut(store).and_then(Option::as_mut) else { return };
        let at = self.free.pop().unwrap_or(self.connections.len());
        if let Err(error) = self.poll.registry().register(&mut stream, Token(at), Interest::READABLE) {
            debug!(%error, "a client cannot be watched");
            if at < self.connections.len() {
                self.free.push(at);
            }
            return;
        }
        hosted.patience.has_changed = true;
        self.serial += 1;
        let mut connection = Connection::new(stream, store, peer, self.serial);
        // Clients send as soon as they are connected.
        connection.is_readable = true;
        if at == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[at] = Some(connection);
        let now = self.now();
        self.unvalidated.push_back((now, at, self.serial));
        self.turn(at);
    }

    /// An event of a connection.
    fn hear(&mut self, at: usize, event: &mio::event::Event) {
        let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { return };
        connection.is_readable = true;
        connection.is_finished |= event.is_read_closed();
        if connection.unsent.is_some() {
            match connection.flush() {
                Ok(Sent::Later) if !event.is_write_closed() => return,
                Ok(Sent::Later) => return self.close(at, &End::Left),
                Ok(Sent::All) => {
                    if let Err(error) = self.watch(at, Interest::READABLE) {
                        return self.close(at, &End::Failed(error));
                    }
                }
                Err(error) => return self.close(at, &End::Failed(error)),
            }
        }
        self.turn(at);
    }

    /// Continues where a turn ended before everything was done.
    fn go_on(&mut self) {
        let mut queued = std::mem::take(&mut self.queued);
        for at in queued.drain(..) {
            if let Some(connection) = &mut self.connections[at] {
                connection.is_queued = false;
                self.turn(at);
            }
        }
        // Keeps the allocation.
        if self.queued.is_empty() {
            self.queued = queued;
        }
        self.accept_more();
    }

    fn accept_more(&mut self) {
        for at in 0..self.listeners.len() {
            if self.listeners[at].as_ref().is_some_and(|one| one.is_readable) {
                self.accept(at);
            }
        }
    }

    /// Reads from a client, if nothing is left to process, and answers.
    fn turn(&mut self, at: usize) {
        let end = self.serve(at);
        match end {
            Ok(()) => {
                let Some(connection) = &mut self.connections[at] else { return };
                let has_more = connection.has_requests || connection.is_readable;
                if has_more && connection.unsent.is_none() && !connection.is_queued {
                    connection.is_queued = true;
                    self.queued.push(at);
                }
            }
            Err(end) => self.close(at, &end),
        }
    }

    fn serve(&mut self, at: usize) -> Result<(), End> {
        let Some(connection) = &mut self.connections[at] else { return Ok(()) };
        if connection.unsent.is_some() {
            return Ok(());
        }
        if connection.has_requests {
            return self.process_input(at);
        }
        if !connection.is_readable {
            return Ok(());
        }
        let length = match connection.stream.read(&mut self.buffer) {
            Ok(0) => return Err(End::Left),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.is_readable = false;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        // Without an event of its own, the end behind the last bytes would not be seen.
        connection.is_readable = length == self.buffer.len() || connection.is_finished;
        if !connection.input.is_empty() {
            connection.input.drain(..std::mem::take(&mut connection.start));
            connection.input.extend_from_slice(&self.buffer[..length]);
            return self.process_input(at);
        }
        let buffer = std::mem::take(&mut self.buffer);
        let processed = self.process(at, &buffer[..length]);
        if let (Ok(processed), Some(connection)) = (&processed, &mut self.connections[at]) {
            connection.input.extend_from_slice(&buffer[*processed..length]);
        }
        self.buffer = buffer;
        processed.map(|_| ())
    }

    /// Processes what has been received before.
    fn process_input(&mut self, at: usize) -> Result<(), End> {
        let Some(connection) = &mut self.connections[at] else { return Ok(()) };
        let (input, start) = (std::mem::take(&mut connection.input), connection.start);
        let processed = self.process(at, &input[start..])?;
        let Some(connection) = &mut self.connections[at] else { return Ok(()) };
        // An allocation is kept only while it is needed.
        if start + processed < input.len() {
            (connection.input, connection.start) = (input, start + processed);
        } else {
            connection.start = 0;
        }
        Ok(())
    }

    /// Answers the requests in `bytes`. Returns how many bytes have been processed.
    fn process(&mut self, at: usize, bytes: &[u8]) -> Result<usize, End> {
        let mut done = 0;
        let answered = self.answer(at, bytes, &mut done);
        if !self.woken.is_empty() {
            self.wake();
        }
        let Some(connection) = &mut self.connections[at] else { return Ok(done) };
        let sent = connection.send(&mut self.reply);
        self.reply.clear();
        let sent = sent?;
        if connection.is_stuffed() {
            return Err(End::Stuffed);
        }
        if sent == Sent::Later {
            self.watch(at, Interest::READABLE | Interest::WRITABLE)?;
        }
        answered.map(|()| done)
    }

    fn answer(&mut self, at: usize, bytes: &[u8], done: &mut usize) -> Result<(), End> {
        let id = ConnectionId(at as u32);
        loop {
            let Some(connection) = &mut self.connections[at] else { return Ok(()) };
            connection.has_requests = self.reply.bytes.len() > REPLY || !self.reply.shared.is_empty();
            if connection.has_requests {
                return Ok(());
            }
            let next = connection.reader.next(&bytes[*done..])?;
            let Some((request, length)) = next else { return Ok(()) };
            *done += length;
            let Some(hosted) = self.stores[connection.store].as_mut() else { return Err(End::Left) };
            match request {
                Request::Ping(nonce) if connection.client.pid.is_none() => {
                    connection.client.pid = Some(nonce);
                    hosted.patience.has_changed = true;
                }
                Request::Set { key, .. } if !hosted.is_dump_told && key.ends_with(EXCEPTION_DUMP) => {
                    hosted.is_dump_told = true;
                    self.inbox.tell(StoreNews::ExceptionDump { store: hosted.id, client: connection.client });
                }
                _ => {}
            }
            let was_waiting = connection.wait.is_some();
            let applied = hosted.store.apply(id, request, &mut self.reply, &mut self.woken);
            match applied? {
                Standing::Unchanged => {}
                Standing::Waiting => {
                    self.unlink(at);
                    self.link(at);
                }
                Standing::Free => self.unlink(at),
            }
            if was_waiting && let Some(own) = self.woken.iter().position(|one| *one == id) {
                // In its place among the replies.
                self.woken.swap_remove(own);
                self.reply.bytes.push(WOKEN);
                self.unlink(at);
            }
        }
    }

    /// Answers connections whose wait has ended.
    fn wake(&mut self) {
        let mut woken = std::mem::take(&mut self.woken);
        for ConnectionId(at) in woken.drain(..) {
            let at = at as usize;
            self.unlink(at);
            let Some(connection) = &mut self.connections[at] else { continue };
            let had_unsent = connection.unsent.is_some();
            match connection.send_byte(WOKEN) {
                Ok(Sent::All) => {}
                Ok(Sent::Later) if had_unsent => {}
                Ok(Sent::Later) => {
                    if let Err(error) = self.watch(at, Interest::READABLE | Interest::WRITABLE) {
                        self.close(at, &End::Failed(error));
                    }
                }
                Err(error) => self.close(at, &End::Failed(error)),
            }
        }
        self.woken = woken;
    }

    fn watch(&mut self, at: usize, interest: Interest) -> io::Result<()> {
        let Some(connection) = &mut self.connections[at] else { return Ok(()) };
        self.poll.registry().reregister(&mut connection.stream, Token(at), interest)
    }

    fn close(&mut self, at: usize, end: &End) {
        self.unlink(at);
        let Some(connection) = self.connections[at].take() else { return };
        self.free.push(at);
        debug!(%end, client = ?connection.client, "closed");
        if let Some(hosted) = &mut self.stores[connection.store] {
            hosted.store.forget(ConnectionId(at as u32));
            hosted.patience.has_changed = true;
            match end {
                // Usually all ranks have the same version: one is enough.
                End::Refused(why @ Violation::Torch22) if !hosted.is_refusal_told => {
                    hosted.is_refusal_told = true;
                    let (store, client) = (hosted.id, connection.client);
                    self.inbox.tell(StoreNews::Refused { store, client, why: *why });
                }
                _ => {}
            }
        }
        if self.starved.is_some() {
            // A descriptor is free.
            self.starved = Some(self.now());
        }
    }

    /// Adds a connection at the end of those that wait.
    fn link(&mut self, at: usize) {
        let since = self.now();
        let Some(connection) = &mut self.connections[at] else { return };
        let Some(hosted) = &mut self.stores[connection.store] else { return };
        hosted.patience.has_changed = true;
        let previous = hosted.waiting.map(|line| line.last);
        connection.wait = Some(Waiting { since, previous, next: None });
        hosted.waiting = Some(Line { first: hosted.waiting.map_or(at, |line| line.first), last: at });
        if let Some(last) = previous {
            self.neighbour(last, |last| last.next = Some(at));
        }
    }

    /// Removes a connection from those that wait, if it is one.
    fn unlink(&mut self, at: usize) {
        let Some(connection) = &mut self.connections[at] else { return };
        let Some(wait) = connection.wait.take() else { return };
        let Some(hosted) = &mut self.stores[connection.store] else { return };
        hosted.patience.has_changed = true;
        hosted.waiting = hosted.waiting.and_then(|line| {
            let first = if line.first == at { wait.next? } else { line.first };
            let last = if line.last == at { wait.previous? } else { line.last };
            Some(Line { first, last })
        });
        if let Some(previous) = wait.previous {
            self.neighbour(previous, |previous| previous.next = wait.next);
        }
        if let Some(next) = wait.next {
            self.neighbour(next, |next| next.previous = wait.previous);
        }
    }

    fn neighbour(&mut self, at: usize, change: impl FnOnce(&mut Waiting)) {
        if let Some(wait) = self.connections[at].as_mut().and_then(|one| one.wait.as_mut()) {
            change(wait);
        }
    }
}

/// What the clients of a store wait for.
fn report(hosted: &Hosted, store: usize, connections: &[Option<Connection>]) -> Report {
    let connected = connections.iter().flatten().filter(|one| one.store == store && one.reader.is_validated());
    let connected = connected.map(|one| one.client).collect();
    let mut next = hosted.waiting.map(|line| line.first);
    let waiting = std::iter::from_fn(|| {
        let connection = connections[next?].as_ref()?;
        let wait = connection.wait?;
        next = wait.next;
        Some((connection.client, wait.since))
    });
    Report { connected, waiting: waiting.collect(), keys: hosted.store.awaited(REPORTED_KEYS) }
}
