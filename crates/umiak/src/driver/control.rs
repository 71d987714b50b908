//! Orders of other processes: one JSON line asks, one answers, on a socket in the run's directory.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umiak_sys::net::in_directory;

use crate::history::RunDir;

/// Longer than any order.
const LONGEST: u64 = 4096;
/// A client that connects and says nothing is let go after so long. Nobody waits for it meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many are listened to at once; of more, the one that has been silent longest is let go.
const CLIENTS: usize = 32;
/// How long a client waits for a supervisor that is busy.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// What can be asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ControlOrder {
    Ping {},
    Stop { kill: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ControlAnswer {
    pub(crate) ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// The supervisor's end.
#[derive(Debug)]
pub(super) struct Control {
    listener: UnixListener,
    path: PathBuf,
    /// Who has connected and not said all of a line yet, oldest first.
    clients: VecDeque<Client>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    line: Vec<u8>,
    since: Instant,
}

/// What has become of a client.
enum Heard {
    /// It has not said all yet.
    Part,
    Line,
    Gone,
}

impl Client {
    /// Reads what is there, without waiting.
    fn hear(&mut self) -> Heard {
        let mut buffer = [0; 512];
        loop {
            match self.stream.read(&mut buffer) {
                // It says no more, and may still listen.
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

    /// What it asks for. Whoever is not there any more to be answered has given up, and has told somebody so.
    fn answer(mut self) -> Option<ControlOrder> {
        let order = serde_json::from_slice::<ControlOrder>(&self.line);
        let answer = match &order {
            Ok(_) => ControlAnswer { ok: true, error: None },
            Err(error) => ControlAnswer { ok: false, error: Some(error.to_string()) },
        };
        let mut text = serde_json::to_string(&answer).unwrap_or_default();
        text.push('\n');
        self.stream.write_all(text.as_bytes()).ok()?;
        order.ok()
    }
}

impl Control {
    /// What a killed supervisor left is replaced: whoever holds the lock is the only one.
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

    /// When somebody will have been silent for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.clients.front().map(|client| client.since + PATIENCE)
    }

    /// What has been asked for, in the order in which the askers came. Never waits.
    pub(super) fn orders(&mut self) -> Vec<ControlOrder> {
        // A descriptor that could not be had is asked for again: one of the others is let go for it.
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

/// The client's end.
pub(crate) fn ask(run: &RunDir, order: &ControlOrder) -> io::Result<ControlAnswer> {
    let mut stream = in_directory(run.path(), RunDir::CONTROL, |path| UnixStream::connect(path))?;
    stream.set_read_timeout(Some(ANSWER))?;
    let mut text = serde_json::to_string(order)?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}
