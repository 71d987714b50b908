//! The key-value store that clients of PyTorch's TCPStore see: keys, counters, queues, and the clients that wait.
//!
//! `(connection, request)` in, a reply and the connections to wake out. The semantics are those of torch's libuv server;
//! `docs/design/0008-store.md` lists the differences. Every request costs as much as the bytes it carries, however many
//! keys and waiting clients there are.

mod request;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use thiserror::Error;

pub use request::{ConnectionId, Request, Strings, StringsIter};
use waits::{Rest, Taken, Waits};

/// Values longer than this are shared with the reply instead of copied: a request for very many of them must not make the
/// server hold much more than the request.
const SHARED: usize = 512;
/// A larger allocation is not kept for the next reply.
const KEPT: usize = 1 << 20;

/// The end of a wait, in a reply.
pub const WOKEN: u8 = 0;
const NOT_READY: u8 = 1;
const CANCELLED: u8 = 1;

/// The data of one store, and its waiting clients.
#[derive(Debug, Default)]
pub struct Store {
    values: HashMap<Box<[u8]>, Value>,
    /// None of them is empty.
    queues: HashMap<Box<[u8]>, VecDeque<Rc<Vec<u8>>>>,
    waits: Waits,
    /// The reply to `LIST_KEYS`, until a key is added or removed.
    listing: Option<Rc<Vec<u8>>>,
}

#[derive(Debug, Clone)]
enum Value {
    Bytes(Rc<Vec<u8>>),
    /// Decimal text, as far as clients can see.
    Counter(i64),
}

/// What a request changed about the wait of its own connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Unchanged,
    /// The connection waits, and is answered later.
    Waiting,
    /// The connection does not wait (any more).
    Free,
}

/// `ADD` or `BARRIER` on a value that is not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the value is not a number")]
pub struct NotANumber;

/// Bytes for one client. Long values are not copied: `shared` has them with the offset in `bytes` before which each of
/// them is sent.
#[derive(Debug, Default)]
pub struct Reply {
    pub bytes: Vec<u8>,
    pub shared: Vec<(usize, Rc<Vec<u8>>)>,
}

impl Reply {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.shared.is_empty()
    }

    /// Empties it; a usual allocation is kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.shared.clear();
        self.bytes.shrink_to(KEPT);
        self.shared.shrink_to(KEPT / size_of::<(usize, Rc<Vec<u8>>)>());
    }

    /// All bytes in order.
    pub fn concat(&self) -> Vec<u8> {
        let (mut whole, mut at) = (Vec::new(), 0);
        for (before, value) in &self.shared {
            whole.extend_from_slice(&self.bytes[at..*before]);
            whole.extend_from_slice(value);
            at = *before;
        }
        whole.extend_from_slice(&self.bytes[at..]);
        whole
    }

    fn number(&mut self, number: i64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn length(&mut self, length: usize) {
        self.bytes.extend_from_slice(&(length as u64).to_le_bytes());
    }

    fn string(&mut self, string: &[u8]) {
        self.length(string.len());
        self.bytes.extend_from_slice(string);
    }

    fn share(&mut self, bytes: &Rc<Vec<u8>>) {
        if bytes.len() > SHARED {
            self.shared.push((self.bytes.len(), Rc::clone(bytes)));
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn shared_string(&mut self, string: &Rc<Vec<u8>>) {
        self.length(string.len());
        self.share(string);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Bytes(bytes) => self.shared_string(bytes),
            Value::Counter(number) => {
                let start = self.bytes.len();
                self.length(0);
                write_decimal(&mut self.bytes, *number);
                let length = (self.bytes.len() - start - 8) as u64;
                self.bytes[start..start + 8].copy_from_slice(&length.to_le_bytes());
            }
        }
    }
}

impl Value {
    fn new(bytes: &[u8]) -> Self {
        Self::Bytes(Rc::new(bytes.to_vec()))
    }

    fn is_text(&self, text: &[u8]) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.as_slice() == text,
            Self::Counter(number) => {
                let mut own = Vec::with_capacity(20);
                write_decimal(&mut own, *number);
                own == text
            }
        }
    }

    fn number(&self) -> Result<i64, NotANumber> {
        match self {
            Self::Bytes(bytes) => read_decimal(bytes).ok_or(NotANumber),
            Self::Counter(number) => Ok(*number),
        }
    }
}

fn write_decimal(text: &mut Vec<u8>, number: i64) {
    use std::io::Write as _;
    let _ = write!(text, "{number}");
}

/// As C's `strtoll`: white space, a sign, digits; what follows is ignored.
fn read_decimal(text: &[u8]) -> Option<i64> {
    let start = text.iter().position(|byte| !byte.is_ascii_whitespace() && *byte != 0x0b)?;
    let text = &text[start..];
    let signed = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let digits = text[signed..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..signed + digits]).ok()?.parse().ok()
}

impl Store {
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers one request of `connection`. Connections whose wait ends are added to `woken` and are sent [`WOKEN`];
    /// `connection` itself may be among them. After an error the connection must be closed.
    pub fn apply(
        &mut self,
        connection: ConnectionId,
        request: Request<'_>,
        reply: &mut Reply,
        woken: &mut Vec<ConnectionId>,
    ) -> Result<Standing, NotANumber> {
        match request {
            Request::Validate => {}
            Request::Ping(nonce) => reply.bytes.extend_from_slice(&nonce.to_le_bytes()),
            Request::Set { key, value } => self.set(key, value, woken),
            Request::MultiSet(pairs) => pairs.pairs().for_each(|(key, value)| self.set(key, value, woken)),
            Request::Append { key, value } => self.append(key, value, woken),
            Request::CompareSet { key, expected, desired } => self.compare_set(key, expected, desired, reply, woken),
            Request::Get { key } => self.get(key, reply),
            Request::MultiGet(keys) => keys.into_iter().for_each(|key| self.get(key, reply)),
            Request::Add { key, delta } => {
                let number = self.add(key, delta)?;
                reply.number(number);
                self.wake(key, woken);
            }
            Request::Check(keys) => {
                let is_ready = keys.into_iter().all(|key| self.contains(key));
                reply.bytes.push(if is_ready { WOKEN } else { NOT_READY });
            }
            Request::Wait(keys) => return Ok(self.wait(connection, keys, reply)),
            Request::Barrier { key, size } => return self.barrier(connection, key, size, reply, woken),
            Request::CancelWait => {
                self.waits.remove(connection);
                reply.bytes.push(CANCELLED);
                return Ok(Standing::Free);
            }
            Request::NumKeys => reply.number(self.values.len() as i64),
            Request::Delete { key } => {
                let is_removed = self.values.remove(key).is_some();
                if is_removed {
                    self.listing = None;
                }
                reply.number(is_removed.into());
            }
            Request::ListKeys => self.list(reply),
            Request::QueuePush { key, value } => self.push(key, value, woken),
            Request::QueuePop { key } => self.pop(key, reply),
            Request::QueueLen { key } => reply.number(self.queues.get(key).map_or(0, VecDeque::len) as i64),
        }
        Ok(Standing::Unchanged)
    }

    /// Drops the wait of a connection that was closed.
    pub fn forget(&mut self, connection: ConnectionId) {
        self.waits.remove(connection);
    }

    /// The keys that clients wait for, most wanted first, with the number of these clients. Of long lists of keys only
    /// the first missing ones are counted.
    pub fn awaited(&self, limit: usize) -> Vec<(Vec<u8>, usize)> {
        self.waits.keys(limit, |key| !self.contains(key))
    }

    fn contains(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || (!self.queues.is_empty() && self.queues.contains_key(key))
    }

    fn put(&mut self, key: &[u8], value: Value) {
        if let Some(old) = self.values.get_mut(key) {
            *old = value;
        } else {
            self.values.insert(key.into(), value);
            self.listing = None;
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8], woken: &mut Vec<ConnectionId>) {
        self.put(key, Value::new(value));
        self.wake(key, woken);
    }

    fn append(&mut self, key: &[u8], value: &[u8], woken: &mut Vec<ConnectionId>) {
        match self.values.get_mut(key) {
            Some(Value::Bytes(old)) => Rc::make_mut(old).extend_from_slice(value),
            Some(counter @ Value::Counter(_)) => {
                let Value::Counter(number) = *counter else { return };
                let mut text = Vec::with_capacity(20 + value.len());
                write_decimal(&mut text, number);
                text.extend_from_slice(value);
                *counter = Value::Bytes(Rc::new(text));
            }
            None => self.put(key, Value::new(value)),
        }
        self.wake(key, woken);
    }

    fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: &[u8],
        reply: &mut Reply,
        woken: &mut Vec<ConnectionId>,
    ) {
        let is_equal = match self.values.get(key) {
            Some(value) if value.is_text(expected) => true,
            Some(value) => {
                reply.value(value);
                return;
            }
            None => expected.is_empty(),
        };
        if is_equal {
            self.set(key, desired, woken);
            reply.string(desired);
        } else {
            reply.string(expected);
        }
    }

    fn get(&self, key: &[u8], reply: &mut Reply) {
        match self.values.get(key) {
            Some(value) => reply.value(value),
            None => reply.length(0),
        }
    }

    fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, NotANumber> {
        if let Some(value) = self.values.get_mut(key) {
            let number = value.number()?.wrapping_add(delta);
            *value = Value::Counter(number);
            return Ok(number);
        }
        self.put(key, Value::Counter(delta));
        Ok(delta)
    }

    fn wait(&mut self, connection: ConnectionId, keys: Strings<'_>, reply: &mut Reply) -> Standing {
        // A client has one request in progress; one that asks again has given up the first.
        self.waits.remove(connection);
        let missing = keys.with_ends().find(|(key, _)| !self.contains(key));
        let Some((key, end)) = missing else {
            reply.bytes.push(WOKEN);
            return Standing::Free;
        };
        self.waits.insert(connection, key, Rest::new(&keys.bytes()[end..]));
        Standing::Waiting
    }

    fn barrier(
        &mut self,
        connection: ConnectionId,
        key: &[u8],
        size: i64,
        reply: &mut Reply,
        woken: &mut Vec<ConnectionId>,
    ) -> Result<Standing, NotANumber> {
        self.waits.remove(connection);
        if self.add(key, 1)? < size {
            // The key exists, so a `WAIT` for it that began earlier goes on until the barrier opens, as with libuv.
            self.waits.insert(connection, key, Rest::default());
            return Ok(Standing::Waiting);
        }
        self.wake(key, woken);
        reply.bytes.push(WOKEN);
        Ok(Standing::Free)
    }

    fn list(&mut self, reply: &mut Reply) {
        let values = &self.values;
        let listing = self.listing.get_or_insert_with(|| {
            let length = 8 + values.keys().map(|key| 8 + key.len()).sum::<usize>();
            let mut listing = Reply { bytes: Vec::with_capacity(length), shared: Vec::new() };
            listing.length(values.len());
            for key in values.keys() {
                listing.string(key);
            }
            Rc::new(listing.bytes)
        });
        reply.share(listing);
    }

    fn push(&mut self, key: &[u8], value: &[u8], woken: &mut Vec<ConnectionId>) {
        let value = Rc::new(value.to_vec());
        match self.queues.get_mut(key) {
            Some(queue) => queue.push_back(value),
            None => {
                self.queues.insert(key.into(), VecDeque::from([value]));
            }
        }
        // Only one consumer can have the value.
        while let Some(first) = self.waits.take_first(key) {
            if self.proceed(first, woken) {
                return;
            }
        }
    }

    fn pop(&mut self, key: &[u8], reply: &mut Reply) {
        let Some(queue) = self.queues.get_mut(key) else {
            reply.number(0);
            return;
        };
        reply.number(queue.len() as i64);
        if let Some(value) = queue.pop_front() {
            reply.shared_string(&value);
        }
        if queue.is_empty() {
            self.queues.remove(key);
        }
    }

    /// A key has been set: its waiting clients go on.
    fn wake(&mut self, key: &[u8], woken: &mut Vec<ConnectionId>) {
        for one in self.waits.take_all(key) {
            self.proceed(one, woken);
        }
    }

    /// The key that this wait watched exists. True if that was the last one.
    fn proceed(&mut self, wait: Taken, woken: &mut Vec<ConnectionId>) -> bool {
        let missing = wait.rest.keys().with_ends().find(|(key, _)| !self.contains(key));
        let Some((key, end)) = missing else {
            woken.push(wait.connection);
            return true;
        };
        let key = Box::<[u8]>::from(key);
        self.waits.insert(wait.connection, &key, wait.rest.skip(end));
        false
    }
}
