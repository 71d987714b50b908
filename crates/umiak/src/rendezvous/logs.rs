//! A node's side of `--gather-logs`: a task that follows the logs of its ranks and sends them to the coordinator, over
//! its own connection. Ranks write their files and never wait for it.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use umiak_core::machine::round::limits::{CONNECT, Limits, REFUSED, RETRY};
use umiak_core::machine::round::logs::{CHUNK, FromSender, Hello, ToSender};
use umiak_core::machine::round::messages::{Answer, FromAgent};
use umiak_core::model::JobId;
use umiak_core::wire::auth::Key;
use umiak_core::wire::frame::{Frame, Payload, Sealer, read_message};
use umiak_sys::wait::{Growth, Waker, read_at};

use super::Target;
use super::door::{self, Identity};
use super::frames::Frames;
use super::link::{Parts, write_all};

/// Delay after a file has grown, to collect more output before sending.
const COLLECT: Duration = Duration::from_millis(20);
/// Poll interval for files that cannot be watched.
const LOOK: Duration = Duration::from_millis(250);

/// What to send, and where.
#[derive(Debug)]
pub(crate) struct LogsOptions {
    pub(crate) coordinator: Target,
    pub(crate) job_id: JobId,
    pub(crate) key: Key,
    pub(crate) limits: Limits,
    /// Launch id with which the node joined.
    pub(crate) launch: u64,
    pub(crate) log_dir: PathBuf,
    pub(crate) files: Vec<LogFile>,
}

/// A rank's log, from the offset where this run began to write.
#[derive(Debug, Clone)]
pub(crate) struct LogFile {
    pub(crate) rank: u32,
    pub(crate) path: PathBuf,
    pub(crate) start: u64,
}

/// How sending ended; reported once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogsEnded {
    Complete,
    /// The coordinator was not started with `--gather-logs`.
    NotWanted,
    /// The coordinator uses the same log directory.
    Shared,
    Refused(String),
    /// The coordinator is no longer reachable.
    Lost,
    /// The front did not wait.
    GivenUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The ranks have ended: the files are complete.
    Finish,
    GiveUp,
}

/// The driver's handle on the task.
#[derive(Debug)]
pub(crate) struct Logs {
    orders: UnboundedSender<Order>,
    ended: Receiver<LogsEnded>,
    waker: Arc<Waker>,
}

impl Logs {
    pub(crate) fn start(options: LogsOptions) -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        let (orders, from_front) = unbounded_channel();
        let (sender, ended) = channel();
        let mut end = End { sender, waker: Arc::clone(&waker), said: false };
        crate::network::spawn(async move {
            let ended = Follower::new(options, from_front).run().await;
            end.say(ended);
        })?;
        Ok(Self { orders, ended, waker })
    }

    /// The ranks have ended: sends the rest and ends the task.
    pub(crate) fn finish(&self) {
        let _ = self.orders.send(Order::Finish);
    }

    pub(crate) fn give_up(&self) {
        let _ = self.orders.send(Order::GiveUp);
    }

    /// Returns how it ended, if it has; never blocks.
    pub(crate) fn ended(&self) -> Option<LogsEnded> {
        self.waker.clear();
        self.ended.try_recv().ok()
    }
}

/// Readable once it has ended.
impl AsFd for Logs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// Reports the end exactly once, also when the task panics.
struct End {
    sender: Sender<LogsEnded>,
    waker: Arc<Waker>,
    said: bool,
}

impl End {
    fn say(&mut self, ended: LogsEnded) {
        if !std::mem::replace(&mut self.said, true) {
            let _ = self.sender.send(ended);
            self.waker.wake();
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.say(LogsEnded::Lost);
    }
}

/// A log and the position up to which it was sent.
#[derive(Debug)]
struct Follow {
    log: LogFile,
    /// Created by the rank, so it may not exist yet.
    file: Option<File>,
    sent: u64,
    /// The coordinator accepts no more of it.
    enough: bool,
}

impl Follow {
    /// Returns the next piece; empty if there is none now.
    fn next<'a>(&mut self, buffer: &'a mut [u8]) -> &'a [u8] {
        if self.enough {
            return &[];
        }
        if self.file.is_none() {
            self.file = umiak_sys::regular::open_to_read(&self.log.path).ok();
        }
        let Some(file) = &self.file else { return &[] };
        let count = read_at(file, buffer, self.log.start + self.sent).unwrap_or(0);
        &buffer[..count]
    }
}

/// `None`: the connection broke. `Some`: sending is over.
type Stop = Option<LogsEnded>;

struct Follower {
    coordinator: Target,
    identity: Arc<Identity>,
    limits: Limits,
    launch: u64,
    log_dir: PathBuf,
    files: Vec<Follow>,
    orders: UnboundedReceiver<Order>,
    /// Watches the log directory.
    growth: Option<AsyncFd<Growth>>,
    ending: bool,
    /// Time of the coordinator's last message.
    heard: Instant,
    buffer: Vec<u8>,
}

impl Follower {
    fn new(options: LogsOptions, orders: UnboundedReceiver<Order>) -> Self {
        let LogsOptions { coordinator, job_id, key, limits, launch, log_dir, files } = options;
        let follow = |log| Follow { log, file: None, sent: 0, enough: false };
        Self {
            coordinator,
            identity: Arc::new(Identity::new(job_id, key, String::new())),
            limits,
            launch,
            growth: watch(&log_dir),
            log_dir,
            files: files.into_iter().map(follow).collect(),
            orders,
            ending: false,
            heard: Instant::now(),
            buffer: vec![0; CHUNK],
        }
    }

    async fn run(mut self) -> LogsEnded {
        let mut refused: Option<Instant> = None;
        let mut pause = RETRY.0;
        loop {
            match door::reach(self.coordinator.clone(), Arc::clone(&self.identity), CONNECT).await {
                Ok(parts) => {
                    (refused, pause) = (None, RETRY.0);
                    if let Some(ended) = self.converse(*parts).await {
                        return ended;
                    }
                }
                Err(Answer::Refused) => {
                    refused.get_or_insert_with(Instant::now);
                }
                Err(_) => refused = None,
            }
            if let Some(ended) = self.pause(pause).await {
                return ended;
            }
            pause = (pause * 2).min(RETRY.1);
            // While ranks run, the loss of the coordinator is decided elsewhere.
            let nobody = refused.is_some_and(|since| since.elapsed() >= REFUSED);
            if self.ending && (nobody || self.heard.elapsed() > self.limits.reconnect) {
                return LogsEnded::Lost;
            }
        }
    }

    /// Waits before the next attempt; accepts orders meanwhile.
    async fn pause(&mut self, time: Duration) -> Stop {
        let until = tokio::time::Instant::now() + time;
        while let Ok(order) = tokio::time::timeout_at(until, self.orders.recv()).await {
            match order {
                Some(Order::Finish) => self.ending = true,
                Some(Order::GiveUp) | None => return Some(LogsEnded::GivenUp),
            }
        }
        None
    }

    /// Serves one connection until it ends.
    async fn converse(&mut self, parts: Parts) -> Stop {
        let Parts { halves: (reader, writer), session, rest } = parts;
        let frames = Frames::new(reader, session.decoder, &rest).ok()?;
        let (heard, messages) = unbounded_channel();
        let listener = tokio::spawn(listen(frames, self.limits.silence, heard));
        let mut line = Line { half: writer, sealer: session.sealer, messages, listener, said: Instant::now() };
        let ended = self.send_all(&mut line).await;
        if !line.listener.is_finished() {
            self.heard = Instant::now();
        }
        ended
    }

    async fn send_all(&mut self, line: &mut Line) -> Stop {
        let ranks = self.files.iter().map(|follow| follow.log.rank).collect();
        line.say(&FromAgent::Logs(Hello { launch: self.launch, ranks })).await.ok()?;
        let (marker, have) = loop {
            match line.messages.recv().await? {
                ToSender::Have { marker, ranks } => break (marker, ranks),
                ToSender::NotWanted => return Some(LogsEnded::NotWanted),
                ToSender::Refused { why } => return Some(LogsEnded::Refused(why)),
                ToSender::Beat | ToSender::Enough { .. } | ToSender::Complete => {}
            }
        };
        self.heard = Instant::now();
        let shared = is_there(&self.log_dir, &marker);
        line.say(&FromSender::Checked { shared }).await.ok()?;
        if shared {
            return Some(LogsEnded::Shared);
        }
        for follow in &mut self.files {
            follow.sent = have.iter().find(|have| have.rank == follow.log.rank).map_or(0, |have| have.bytes);
        }
        let mut said_end = false;
        loop {
            loop {
                match line.messages.try_recv() {
                    Ok(message) => {
                        if let Some(ended) = self.hear(&message) {
                            return Some(ended);
                        }
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return None,
                }
            }
            while let Ok(order) = self.orders.try_recv() {
                if order == Order::GiveUp {
                    let _ = timeout(REFUSED, line.say(&FromSender::GiveUp)).await;
                    return Some(LogsEnded::GivenUp);
                }
                self.ending = true;
            }
            if self.pump(line).await.ok()? {
                continue;
            }
            if self.ending && !said_end {
                line.say(&FromSender::End).await.ok()?;
                said_end = true;
            }
            match self.wait(line).await {
                Happening::Message(Some(message)) => {
                    if let Some(ended) = self.hear(&message) {
                        return Some(ended);
                    }
                }
                Happening::Message(None) => return None,
                Happening::Order(Some(Order::Finish)) => self.ending = true,
                Happening::Order(Some(Order::GiveUp) | None) => {
                    let _ = timeout(REFUSED, line.say(&FromSender::GiveUp)).await;
                    return Some(LogsEnded::GivenUp);
                }
                Happening::Growth => {
                    if let Some(growth) = &self.growth {
                        growth.get_ref().clear();
                    }
                    if !self.ending {
                        sleep(COLLECT).await;
                    }
                }
                Happening::Time => {}
            }
            if line.said.elapsed() >= self.limits.beat() {
                line.say(&FromSender::Beat).await.ok()?;
            }
        }
    }

    fn hear(&mut self, message: &ToSender) -> Stop {
        self.heard = Instant::now();
        match message {
            ToSender::Complete => return Some(LogsEnded::Complete),
            ToSender::Refused { why } => return Some(LogsEnded::Refused(why.clone())),
            ToSender::Enough { rank } => {
                for follow in self.files.iter_mut().filter(|follow| follow.log.rank == *rank) {
                    follow.enough = true;
                }
            }
            ToSender::Have { .. } | ToSender::NotWanted | ToSender::Beat => {}
        }
        None
    }

    /// Sends one piece of each log that has grown. Returns true if there was any.
    async fn pump(&mut self, line: &mut Line) -> io::Result<bool> {
        let mut any = false;
        for follow in &mut self.files {
            let bytes = follow.next(&mut self.buffer);
            if bytes.is_empty() {
                continue;
            }
            any = true;
            let payload = Payload::log(follow.log.rank, follow.sent, bytes).map_err(io::Error::other)?;
            follow.sent += bytes.len() as u64;
            line.send(&payload).await?;
        }
        Ok(any)
    }

    async fn wait(&mut self, line: &mut Line) -> Happening {
        let time = if self.growth.is_some() { self.limits.beat() } else { LOOK.min(self.limits.beat()) };
        let mut sleep = pin!(sleep(time));
        let (orders, growth) = (&mut self.orders, &self.growth);
        poll_fn(|cx| {
            if let Poll::Ready(order) = orders.poll_recv(cx) {
                return Poll::Ready(Happening::Order(order));
            }
            if let Poll::Ready(message) = line.messages.poll_recv(cx) {
                return Poll::Ready(Happening::Message(message));
            }
            if let Some(growth) = growth
                && let Poll::Ready(guard) = growth.poll_read_ready(cx)
            {
                if let Ok(mut guard) = guard {
                    guard.clear_ready();
                }
                return Poll::Ready(Happening::Growth);
            }
            sleep.as_mut().poll(cx).map(|()| Happening::Time)
        })
        .await
    }
}

enum Happening {
    /// `None`: the connection has ended.
    Message(Option<ToSender>),
    /// `None`: the front is gone.
    Order(Option<Order>),
    Growth,
    Time,
}

/// A connection to the coordinator.
struct Line {
    half: OwnedWriteHalf,
    sealer: Sealer,
    messages: UnboundedReceiver<ToSender>,
    listener: JoinHandle<()>,
    /// Time of the last send.
    said: Instant,
}

impl Line {
    async fn say<M: serde::Serialize>(&mut self, message: &M) -> io::Result<()> {
        self.send(&Payload::message(message).map_err(io::Error::other)?).await
    }

    /// Waits for a slow coordinator as long as it sends heartbeats.
    async fn send(&mut self, payload: &Payload) -> io::Result<()> {
        let frame = self.sealer.seal(payload);
        let (half, listener) = (&self.half, &mut self.listener);
        let mut write = pin!(write_all(half, &frame));
        let result = poll_fn(|cx| {
            if let Poll::Ready(result) = write.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            // A finished task must not be polled again.
            if listener.is_finished() || pin!(&mut *listener).poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            Poll::Pending
        })
        .await;
        self.said = Instant::now();
        result
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn listen(mut frames: Frames, silence: Duration, heard: UnboundedSender<ToSender>) {
    while let Ok(Frame::Message(payload)) = frames.next(silence).await {
        let Ok(message) = read_message(&payload) else { return };
        if heard.send(message).is_err() {
            return;
        }
    }
}

#[expect(deprecated, reason = "its successor is unsafe; a `Growth` has one descriptor for all its life")]
fn watch(log_dir: &Path) -> Option<AsyncFd<Growth>> {
    Growth::of(log_dir).ok().and_then(|growth| AsyncFd::new(growth).ok())
}

/// True if the directory contains this name. Paths are rejected.
fn is_there(log_dir: &Path, marker: &str) -> bool {
    let is_name = !marker.is_empty() && marker != "." && marker != ".." && !marker.contains('/');
    is_name && log_dir.join(marker).symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_a_name() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("ctr.abcdef.log")).unwrap();
        assert!(is_there(directory.path(), "ctr.abcdef.log"));
        for marker in ["", ".", "..", "/", "../..", "ctr.other.log", "ctr.abcdef.log/."] {
            assert!(!is_there(directory.path(), marker), "{marker}");
        }
    }
}
