//! Orders from other processes: one JSON line each for request and answer, on a socket in the run's directory.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umiak_core::facts::Observed;
use umiak_sys::net::in_directory;

use crate::history::RunDir;

/// Maximum length of an order.
const LONGEST: u64 = 4096;
/// Maximum length of an answer.
const LONGEST_ANSWER: u64 = 64 << 20;
/// A silent client is disconnected after this time. It blocks nothing meanwhile.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of clients; one more disconnects the oldest.
const CLIENTS: usize = 32;
/// How long a client waits for an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// A request of another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ControlOrder {
    Ping {},
    Stop {
        kill: bool,
    },
    /// What the replicas are doing, with their stacks.
    Stacks {},
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ControlAnswer {
    pub(crate) ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Number of live replicas, in the answer to [`ControlOrder::Stacks`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) live: Option<usize>,
    /// Those of them that have a process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) replicas: Vec<Observed>,
}

/// An order, and the client that waits for its answer, if that takes time.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) order: ControlOrder,
    pub(super) client: Option<UnixStream>,
}

/// The supervisor's end.
#[derive(Debug)]
pub(super) struct Control {
    listener: UnixListener,
    path: PathBuf,
    /// Clients that have not sent a whole line yet, oldest first.
    clients: VecDeque<Client>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    line: Vec<u8>,
    since: Instant,
}

/// What a read from a client returned.
enum Heard {
    /// The line is incomplete.
    Part,
    Line,
    Gone,
}

impl Client {
    /// Reads what is available, without waiting.
    fn hear(&mut self) -> Heard {
        let mut buffer = [0; 512];
        loop {
            match self.stream.read(&mut buffer) {
                // The client has shut down writing, and may still read.
                Ok(0) if self.line.is_empty() => return Heard::Gone,
                Ok(0) => return Heard::Line,
                Ok(count) => {
                    self.line.extend_from_slice(&buffer[..count]);
                    if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                        self.line.truncate(end);
                        return Heard::Line;
                    }
                    if self.line.len() > LONGEST as usize {
                        return Heard::Line;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Part,
                Err(_) => return Heard::Gone,
            }
        }
    }

    /// Answers and returns the order. An order whose client has disconnected is dropped: that client has reported a
    /// failure.
    fn answer(mut self) -> Option<Order> {
        let order = serde_json::from_slice::<ControlOrder>(&self.line);
        let error = match order {
            Ok(order @ ControlOrder::Stacks {}) => return Some(Order { order, client: Some(self.stream) }),
            Ok(_) => None,
            Err(ref error) => Some(error.to_string()),
        };
        answer(&mut self.stream, &ControlAnswer { ok: error.is_none(), error, ..ControlAnswer::default() }).ok()?;
        end(&self.stream);
        order.ok().map(|order| Order { order, client: None })
    }
}

impl Control {
    /// Replaces the socket of a killed supervisor: only the holder of the lock calls this.
    pub(super) fn listen(run: &RunDir) -> io::Result<Self> {
        let path = run.control();
        let _ = std::fs::remove_file(&path);
        let listener = in_directory(run.path(), RunDir::CONTROL, |path| UnixListener::bind(path))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path, clients: VecDeque::new() })
    }

    pub(super) fn watch(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.clients.iter().map(|client| client.stream.as_fd()))
    }

    /// Time when the oldest client is disconnected.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.clients.front().map(|client| client.since + PATIENCE)
    }

    /// Returns the orders received, in order of connection. Never waits.
    pub(super) fn orders(&mut self) -> Vec<Order> {
        // When descriptors run out, accepting is retried after disconnecting the oldest client.
        while let Some(stream) = self.accept() {
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push_back(Client { stream, line: Vec::new(), since: Instant::now() });
            }
            if self.clients.len() > CLIENTS {
                self.clients.pop_front();
            }
        }
        let mut orders = Vec::new();
        for mut client in std::mem::take(&mut self.clients) {
            match client.hear() {
                Heard::Part if client.since.elapsed() < PATIENCE => self.clients.push_back(client),
                Heard::Line => orders.extend(client.answer()),
                Heard::Part | Heard::Gone => {}
            }
        }
        orders
    }

    fn accept(&mut self) -> Option<UnixStream> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => return Some(stream),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {
                    self.clients.pop_front()?;
                }
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(super) fn answer(client: &mut UnixStream, answer: &ControlAnswer) -> io::Result<()> {
    let mut text = serde_json::to_string(answer)?;
    text.push('\n');
    client.write_all(text.as_bytes())
}

/// Ends an answer, which the client reads to the end.
pub(super) fn end(client: &UnixStream) {
    let _ = client.shutdown(Shutdown::Both);
}

/// The client's end.
pub(crate) fn ask(run: &RunDir, order: &ControlOrder) -> io::Result<ControlAnswer> {
    let mut stream = in_directory(run.path(), RunDir::CONTROL, |path| UnixStream::connect(path))?;
    stream.set_read_timeout(Some(ANSWER))?;
    let mut text = serde_json::to_string(order)?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    // To the end: the supervisor is then ready for the next order.
    let mut text = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}
