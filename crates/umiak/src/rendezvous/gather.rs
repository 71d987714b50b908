//! The coordinator's side of `--gather-logs`: receives logs of other nodes and writes them to its own log directory. A
//! slow disk delays this task and its connections, never the network's loop.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::logs::{CHUNK, FromSender, Have, Hello, Ledger, Member, ToSender, fresh};
use umiak_core::model::Timestamp;
use umiak_core::wire::Session;
use umiak_core::wire::frame::{Frame, LogChunk, Payload, Sealer, read_message};
use umiak_sys::files::{self, Contents};

use crate::clock::Clock;

use super::LogDirMark;
use super::events::NetEvent;
use super::frames::Frames;
use super::link::{Parts, write_all};

/// Chunks that wait for the disk; when full, connections wait.
const MAX_WAITING: usize = 16;
/// Maximum overhead of a frame over its chunk of log.
const AROUND: usize = 256;
/// Time for a node whose logs are complete to close its connection.
const LINGER: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(3600);

/// Settings of `--gather-logs`.
#[derive(Debug, Clone)]
pub(crate) struct Gather {
    pub(crate) log_dir: PathBuf,
    /// Set by `--log_overwrite`.
    pub(crate) overwrite: bool,
}

/// A message to the front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GatherNews {
    /// A file cannot be written; only the first failure is reported.
    NotWritten { path: PathBuf, reason: String },
    /// The job has ended and logs of this many nodes are still arriving.
    Waiting { nodes: usize },
    /// At the end: the logs of these ranks are incomplete.
    Incomplete { ranks: Vec<u32> },
}

/// A request from the network's loop.
#[derive(Debug)]
enum Command {
    /// Identifies our log directory.
    Mark(LogDirMark),
    Members(Vec<Member>),
    Connection(Box<Arrival>),
    /// The launcher of that node is dead.
    Gone(u64),
    /// The job is over.
    Finish,
}

#[derive(Debug)]
struct Arrival {
    stream: TcpStream,
    session: Session,
    rest: Vec<u8>,
    hello: Hello,
}

/// A message from a connection.
#[derive(Debug)]
enum Event {
    Chunk(u64, LogChunk),
    Said(u64, FromSender),
    Closed(u64),
}

enum Happening {
    /// `None`: the network's loop has ended.
    Command(Option<Command>),
    Event(Event),
    Time,
}

/// The network loop's handle on the gathering task.
#[derive(Debug)]
pub(super) struct Gatherer(UnboundedSender<Command>);

impl Gatherer {
    pub(super) fn start(gather: Gather, limits: Limits, clock: Clock, net: Sender<NetEvent>) -> io::Result<Self> {
        let (sender, commands) = unbounded_channel();
        let (events, from_links) = channel(MAX_WAITING);
        let desk = Desk {
            mark: None,
            early: Vec::new(),
            gather,
            limits,
            clock,
            net,
            events,
            ledger: Ledger::new(limits),
            links: HashMap::new(),
            last_link: 0,
            copies: BTreeMap::new(),
            broken: BTreeSet::new(),
            told_waiting: false,
            leaving: None,
        };
        crate::network::spawn(desk.run(commands, from_links))?;
        Ok(Self(sender))
    }

    fn send(&self, command: Command) {
        // A task that has ended has already reported its end.
        let _ = self.0.send(command);
    }

    pub(super) fn mark(&self, mark: LogDirMark) {
        self.send(Command::Mark(mark));
    }

    pub(super) fn members(&self, members: Vec<Member>) {
        self.send(Command::Members(members));
    }

    /// Takes over a connection that will send logs.
    pub(super) fn take(&self, parts: Parts, hello: Hello) {
        let Parts { halves: (reader, writer), session, rest } = parts;
        let Ok(stream) = reader.reunite(writer) else { return };
        if let Ok(stream) = stream.into_std() {
            self.send(Command::Connection(Box::new(Arrival { stream, session, rest, hello })));
        }
    }

    pub(super) fn gone(&self, launch: u64) {
        self.send(Command::Gone(launch));
    }

    pub(super) fn finish(&self) {
        self.send(Command::Finish);
    }
}

/// Tells the sender that logs are not gathered, and closes the connection.
pub(super) async fn decline(parts: Parts) {
    let Parts { halves: (_reader, writer), mut session, .. } = parts;
    if let Ok(payload) = Payload::message(&ToSender::NotWanted) {
        let _ = timeout(LINGER, write_all(&writer, &session.sealer.seal(&payload))).await;
    }
}

/// A connection. Dropping it closes it at once.
#[derive(Debug)]
struct Link {
    /// `None` after the last message.
    queue: Option<UnboundedSender<ToSender>>,
    tasks: [AbortHandle; 2],
}

impl Link {
    fn say(&self, message: ToSender) {
        if let Some(queue) = &self.queue {
            let _ = queue.send(message);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The copy of a rank's log.
#[derive(Debug)]
struct Copy {
    file: File,
    /// Length of the file before this run.
    base: u64,
    written: u64,
}

impl Copy {
    fn open(path: &Path, overwrite: bool) -> io::Result<Self> {
        let file = files::open(path, if overwrite { Contents::Replace } else { Contents::Keep }, files::READABLE)?;
        let base = file.metadata()?.len();
        Ok(Self { file, base, written: 0 })
    }

    /// Writes the part of a chunk that is new. Returns false if there is a gap before it.
    fn take(&mut self, chunk: &LogChunk) -> io::Result<bool> {
        let Some(from) = fresh(self.written, chunk.offset, chunk.bytes.len()) else { return Ok(false) };
        let bytes = &chunk.bytes[from..];
        self.file.write_all_at(bytes, self.base + self.written)?;
        self.written += bytes.len() as u64;
        Ok(true)
    }
}

/// State of the gathering task.
#[derive(Debug)]
struct Desk {
    gather: Gather,
    limits: Limits,
    clock: Clock,
    net: Sender<NetEvent>,
    events: Sender<Event>,
    ledger: Ledger,
    links: HashMap<u64, Link>,
    last_link: u64,
    copies: BTreeMap<u32, Copy>,
    /// Ranks whose files can no longer be written.
    broken: BTreeSet<u32>,
    mark: Option<LogDirMark>,
    /// Connections that arrived before `mark` was known.
    early: Vec<Arrival>,
    told_waiting: bool,
    /// Deadline for nodes whose logs are complete to close their connections.
    leaving: Option<Timestamp>,
}

impl Desk {
    async fn run(mut self, mut commands: UnboundedReceiver<Command>, mut events: Receiver<Event>) {
        while !self.is_done() {
            let wait = self.wait();
            match next(&mut commands, &mut events, wait).await {
                Happening::Command(Some(command)) => self.obey(command).await,
                Happening::Command(None) => return,
                Happening::Event(event) => self.hear(event).await,
                Happening::Time => self.ledger.tick(self.clock.now()),
            }
        }
        let mut ranks: BTreeSet<u32> = self.ledger.lost().into_iter().collect();
        ranks.extend(&self.broken);
        if !ranks.is_empty() {
            self.tell(GatherNews::Incomplete { ranks: ranks.into_iter().collect() }).await;
        }
        let _ = self.net.send(NetEvent::Gathered).await;
    }

    fn is_done(&mut self) -> bool {
        if !self.ledger.is_over() {
            return false;
        }
        let now = self.clock.now();
        self.links.is_empty() || *self.leaving.get_or_insert(now + LINGER) <= now
    }

    fn wait(&self) -> Duration {
        let now = self.clock.now();
        let times = [self.ledger.deadline(), self.leaving].into_iter().flatten().min();
        times.map_or(LONG, |time| time.since(now).max(Duration::from_millis(1)))
    }

    async fn tell(&self, news: GatherNews) {
        let _ = self.net.send(NetEvent::GatherNews(news)).await;
    }

    async fn obey(&mut self, command: Command) {
        let now = self.clock.now();
        match command {
            Command::Mark(mark) => {
                self.mark = Some(mark);
                for arrival in std::mem::take(&mut self.early) {
                    self.admit(arrival);
                }
            }
            Command::Members(members) => self.ledger.members(members, now),
            Command::Connection(arrival) => self.admit(*arrival),
            Command::Gone(launch) => self.ledger.gone(launch),
            Command::Finish => {
                self.ledger.finish(now);
                if self.ledger.open() > 0 && !std::mem::replace(&mut self.told_waiting, true) {
                    self.tell(GatherNews::Waiting { nodes: self.ledger.open() }).await;
                }
            }
        }
    }

    fn admit(&mut self, arrival: Arrival) {
        let Some(LogDirMark { marker, .. }) = self.mark.clone() else { return self.early.push(arrival) };
        let Arrival { stream, session, rest, hello } = arrival;
        self.last_link += 1;
        let id = self.last_link;
        let answer = match self.ledger.hello(id, &hello, self.clock.now()) {
            Ok(replaced) => {
                replaced.and_then(|old| self.links.remove(&old));
                ToSender::Have { marker, ranks: hello.ranks.iter().map(|rank| self.have(*rank)).collect() }
            }
            Err(why) => ToSender::Refused { why },
        };
        let is_refused = matches!(answer, ToSender::Refused { .. });
        let Session { sealer, mut decoder } = session;
        decoder.set_limit(CHUNK + AROUND);
        let Ok((reader, writer)) = tokio::net::TcpStream::from_std(stream).map(tokio::net::TcpStream::into_split)
        else {
            return self.ledger.closed(id, self.clock.now());
        };
        let Ok(frames) = Frames::new(reader, decoder, &rest) else {
            return self.ledger.closed(id, self.clock.now());
        };
        let (queue, messages) = unbounded_channel();
        let reader = tokio::spawn(listen(id, frames, self.limits.silence, self.events.clone()));
        let writer = tokio::spawn(speak(writer, sealer, messages, self.limits.beat()));
        let mut link = Link { queue: Some(queue), tasks: [reader.abort_handle(), writer.abort_handle()] };
        link.say(answer);
        if is_refused {
            link.queue = None;
        }
        self.links.insert(id, link);
    }

    fn have(&self, rank: u32) -> Have {
        Have { rank, bytes: self.copies.get(&rank).map_or(0, |copy| copy.written) }
    }

    async fn hear(&mut self, event: Event) {
        match event {
            Event::Chunk(id, chunk) if self.links.contains_key(&id) => self.write(id, chunk).await,
            Event::Said(id, message) if self.links.contains_key(&id) => match message {
                FromSender::Checked { shared } => self.ledger.checked(id, shared),
                FromSender::Beat => {}
                FromSender::End => self.complete(id).await,
                FromSender::GiveUp => self.ledger.give_up(id),
            },
            Event::Chunk(..) | Event::Said(..) => {}
            Event::Closed(id) => self.close(id),
        }
    }

    fn close(&mut self, id: u64) {
        self.links.remove(&id);
        self.ledger.closed(id, self.clock.now());
    }

    async fn write(&mut self, id: u64, chunk: LogChunk) {
        let rank = chunk.rank;
        if !self.ledger.may_send(id, rank) {
            return self.close(id);
        }
        if self.broken.contains(&rank) {
            return;
        }
        match self.with_copy(rank, move |copy| copy.take(&chunk)).await {
            Ok(true) => {}
            Ok(false) => self.close(id),
            Err(error) => self.give_up_file(id, rank, &error).await,
        }
    }

    /// Works on the copy of a rank's log in a blocking task, so that a slow disk delays only this one.
    async fn with_copy<T: Send + 'static>(
        &mut self,
        rank: u32,
        work: impl FnOnce(&mut Copy) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let path = self.gather.log_dir.join(file_name(self.mark.as_ref(), rank));
        let (copy, overwrite) = (self.copies.remove(&rank), self.gather.overwrite);
        let on_disk = move || {
            let mut copy = match copy {
                Some(copy) => copy,
                None => Copy::open(&path, overwrite)?,
            };
            let done = work(&mut copy);
            Ok::<_, io::Error>((copy, done))
        };
        let (copy, done) = tokio::task::spawn_blocking(on_disk).await.map_err(io::Error::other)??;
        self.copies.insert(rank, copy);
        done
    }

    /// Stops gathering a rank's log. The job continues; the rank's own node still has the log.
    async fn give_up_file(&mut self, id: u64, rank: u32, error: &io::Error) {
        let is_first = self.broken.is_empty();
        self.broken.insert(rank);
        if let Some(link) = self.links.get(&id) {
            link.say(ToSender::Enough { rank });
        }
        if is_first {
            let path = self.gather.log_dir.join(file_name(self.mark.as_ref(), rank));
            self.tell(GatherNews::NotWritten { path, reason: error.to_string() }).await;
        }
    }

    async fn complete(&mut self, id: u64) {
        // A rank that has written nothing gets an empty file.
        for rank in self.ledger.ranks(id) {
            if self.broken.contains(&rank) {
                continue;
            }
            if let Err(error) = self.with_copy(rank, |_| Ok(())).await {
                self.give_up_file(id, rank, &error).await;
            }
        }
        if !self.ledger.complete(id) {
            return self.close(id);
        }
        if let Some(link) = self.links.get_mut(&id) {
            link.say(ToSender::Complete);
            link.queue = None;
        }
    }
}

async fn next(commands: &mut UnboundedReceiver<Command>, events: &mut Receiver<Event>, wait: Duration) -> Happening {
    let mut sleep = pin!(sleep(wait));
    poll_fn(|cx| {
        if let Poll::Ready(command) = commands.poll_recv(cx) {
            return Poll::Ready(Happening::Command(command));
        }
        if let Poll::Ready(Some(event)) = events.poll_recv(cx) {
            return Poll::Ready(Happening::Event(event));
        }
        sleep.as_mut().poll(cx).map(|()| Happening::Time)
    })
    .await
}

async fn listen(id: u64, mut frames: Frames, silence: Duration, events: Sender<Event>) {
    loop {
        let event = match frames.next(silence).await {
            Ok(Frame::Log(chunk)) => Some(Event::Chunk(id, chunk)),
            Ok(Frame::Message(payload)) => read_message(&payload).ok().map(|message| Event::Said(id, message)),
            Ok(Frame::Gone) | Err(_) => None,
        };
        let Some(event) = event else {
            let _ = events.send(Event::Closed(id)).await;
            return;
        };
        let _ = events.send(event).await;
    }
}

/// Sends queued messages, and a heartbeat when there are none. Dropping the half signals the end to the peer.
async fn speak(half: OwnedWriteHalf, mut sealer: Sealer, mut messages: UnboundedReceiver<ToSender>, beat: Duration) {
    loop {
        let message = match timeout(beat, messages.recv()).await {
            Ok(Some(message)) => message,
            Ok(None) => return,
            Err(_) => ToSender::Beat,
        };
        let Ok(payload) = Payload::message(&message) else { return };
        if write_all(&half, &sealer.seal(&payload)).await.is_err() {
            return;
        }
    }
}

/// Returns the file name of a rank's log.
fn file_name(mark: Option<&LogDirMark>, rank: u32) -> String {
    let name = mark.and_then(|mark| mark.names.get(rank as usize));
    name.cloned().unwrap_or_else(|| format!("workerlog.{rank}"))
}
