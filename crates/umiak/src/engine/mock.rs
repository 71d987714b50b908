//! The mock engine: nobody runs. Replicas do what the words of their command say, in memory, so that policies can be
//! tried without processes, and so that the conformance suite has a second engine to hold the first against.
//!
//! Words, in order: `print=TEXT`, `sleep=50ms`, `ready`, `ignore-term`, `on-term=CODE`, and the end: `exit=CODE` or
//! `signal=NUMBER`. Other words do nothing; without an end it is `exit=0`. `spawn-fails=ERRNO` anywhere: the
//! process cannot be made, or not become the program.
//!
//! A word may have a condition in front: `INDICES@ATTEMPT:WORD` holds for these replicas of the role in this attempt
//! only, and either may be left out: `0,2:exit=1`, `@0:exit=1`, `1@0:signal=9`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{debug, info, trace};
use umiak_core::diag::Diagnostic;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Device, Exit, Instance, SpawnError, SpawnStage, StepIndex, StopHow};
use umiak_sys::guardian;
use umiak_sys::ports::{LeaseRequest, Leased};
use umiak_sys::wait::Waker;

use super::{Common, Engine, Kind, News, NotLeased, Start, Swept};

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
/// Why a fork is refused; anything else is what a process meets when it has been forked.
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;

#[derive(Debug)]
pub(crate) struct Mock {
    sender: Sender<Order>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Removed at the end.
    remove: Vec<PathBuf>,
    ports: u16,
}

#[derive(Debug)]
struct Shared {
    news: Mutex<Vec<News>>,
    waker: Waker,
}

impl Shared {
    fn tell(&self, news: News) {
        trace!(?news);
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push(news);
        self.waker.wake();
    }
}

#[derive(Debug)]
enum Order {
    /// Together: nobody acts before all of them have entered.
    Start(Vec<(AttemptId, Vec<Step>, PathBuf)>),
    Stop(StopHow, Vec<AttemptId>),
    AwaitReady(AttemptId),
    End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Print(String),
    Sleep(Duration),
    Ready,
    IgnoreTerm,
    OnTerm(i32),
    End(Exit),
    /// The process cannot be made, for this reason.
    NoSpawn(i32),
}

impl Mock {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let shared = Arc::new(Shared { news: Mutex::default(), waker: Waker::new()? });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("mock".into()).spawn(move || Stage::new(own).play(&receiver))?;
        info!(engine = Kind::Mock.word(), "engine started");
        Ok(Self { sender, shared, thread: Some(thread), remove: Vec::new(), ports: 0 })
    }
}

impl Engine for Mock {
    fn kind(&self) -> Kind {
        Kind::Mock
    }

    fn lease_addresses(&mut self, _: StepIndex, count: u32) -> Result<Vec<IpAddr>, Diagnostic> {
        Ok((0..count).map(|number| IpAddr::V4(Ipv4Addr::from(0x7f00_0100 + number))).collect())
    }

    fn lease_ports(&mut self, _: StepIndex, request: LeaseRequest) -> Result<Leased, NotLeased> {
        let ports = (self.ports..).take(request.count as usize).map(|number| 20_000 + number % 40_000).collect();
        self.ports = self.ports.wrapping_add(request.count) % 40_000;
        Ok(Leased { ports, inside_ephemeral: false })
    }

    /// On paper there are as many as are asked for, whatever this host has.
    fn lease_devices(&mut self, _: StepIndex, _: &[(u32, Device)], count: u32) -> Result<Vec<Device>, Diagnostic> {
        Ok((0..count).map(|position| Device { label: position.to_string(), position }).collect())
    }

    fn release(&mut self, _: StepIndex) {}

    fn remove_at_end(&mut self, directories: &[PathBuf]) {
        self.remove = directories.to_vec();
    }

    fn share(&mut self, _: Common) {}

    fn start(&mut self, starts: Vec<Start>) {
        debug!(attempts = starts.len(), "start");
        let one = |start: Start| (start.id, steps(&start.process.argv, start.id), start.process.log.path);
        // The thread lives as long as we do.
        let _ = self.sender.send(Order::Start(starts.into_iter().map(one).collect()));
    }

    fn stop(&mut self, targets: &[AttemptId], how: StopHow) {
        let _ = self.sender.send(Order::Stop(how, targets.to_vec()));
    }

    fn await_ready(&mut self, id: AttemptId) -> bool {
        let _ = self.sender.send(Order::AwaitReady(id));
        true
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.waker.as_fd())
    }

    fn news(&mut self) -> Vec<News> {
        self.shared.waker.clear();
        std::mem::take(&mut self.shared.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn clear(&mut self, _: bool) {
        self.shared.tell(News::Cleared(Swept::default()));
    }

    fn end(&mut self, _: bool) {
        let _ = self.sender.send(Order::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for directory in &self.remove {
            let _ = std::fs::remove_dir_all(directory);
        }
        self.shared.tell(News::Swept(Swept::default()));
    }
}

/// What a command says to one attempt. A line for the shell is taken apart at its blanks.
fn steps(argv: &[OsString], id: AttemptId) -> Vec<Step> {
    // Words of a document are text.
    let argv: Vec<&str> = argv.iter().filter_map(|word| word.to_str()).collect();
    let words: Vec<&str> = match argv.as_slice() {
        [_, "-c", line] => line.split_whitespace().collect(),
        _ => argv,
    };
    let step = |word: &str| {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let number = value.parse::<i32>().ok();
        Some(match name {
            "print" => Step::Print(value.to_owned()),
            "sleep" => Step::Sleep(duration(value)?),
            "ready" => Step::Ready,
            "ignore-term" => Step::IgnoreTerm,
            "on-term" => Step::OnTerm(number?),
            "exit" => Step::End(Exit::Code { code: number? }),
            "signal" => Step::End(Exit::Signal { signal: number?, core_dumped: false }),
            "spawn-fails" => Step::NoSpawn(number?),
            _ => return None,
        })
    };
    let end = Step::End(Exit::Code { code: 0 });
    words.into_iter().filter_map(|word| step(holds(word, id)?)).chain([end]).collect()
}

/// The word behind its condition; nothing if that does not hold.
fn holds(word: &str, id: AttemptId) -> Option<&str> {
    let Some((condition, rest)) = word.split_once(':') else { return Some(word) };
    let is_condition = |c: char| c.is_ascii_digit() || c == ',' || c == '@';
    if condition.is_empty() || !condition.chars().all(is_condition) {
        return Some(word);
    }
    let (indices, attempts) = condition.split_once('@').unwrap_or((condition, ""));
    let names = |list: &str, number: u32| list.is_empty() || list.split(',').any(|one| one.parse() == Ok(number));
    (names(indices, id.slot.index) && names(attempts, id.attempt)).then_some(rest)
}

fn duration(text: &str) -> Option<Duration> {
    match text.strip_suffix("ms") {
        Some(millis) => millis.parse().ok().map(Duration::from_millis),
        None => text.strip_suffix('s').unwrap_or(text).parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()),
    }
}

/// The thread on which replicas exist.
struct Stage {
    shared: Arc<Shared>,
    actors: BTreeMap<AttemptId, Actor>,
    /// They are ready; or they are to be told when they are.
    ready: BTreeSet<AttemptId>,
    awaited: BTreeSet<AttemptId>,
    pids: u32,
}

struct Actor {
    steps: VecDeque<Step>,
    log: PathBuf,
    wakes: Instant,
    ignores_term: bool,
    on_term: Option<i32>,
}

impl Stage {
    fn new(shared: Arc<Shared>) -> Self {
        let (actors, ready, awaited) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { shared, actors, ready, awaited, pids: 100_000 }
    }

    fn play(&mut self, orders: &Receiver<Order>) {
        loop {
            let next = self.actors.values().map(|actor| actor.wakes).min();
            let wait = next.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(Instant::now()));
            match orders.recv_timeout(wait) {
                Ok(Order::Start(starts)) => starts.into_iter().for_each(|(id, steps, log)| self.enter(id, steps, log)),
                Ok(Order::Stop(how, targets)) => targets.into_iter().for_each(|id| self.stopped(how, id)),
                Ok(Order::AwaitReady(id)) => {
                    self.awaited.insert(id);
                    self.tell_ready(id);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            let due: Vec<AttemptId> = self.actors.iter().filter(|(_, a)| a.wakes <= now).map(|(id, _)| *id).collect();
            for id in due {
                self.act(id);
            }
        }
    }

    fn enter(&mut self, id: AttemptId, steps: Vec<Step>, log: PathBuf) {
        let refused = steps.iter().find_map(|step| if let Step::NoSpawn(errno) = step { Some(*errno) } else { None });
        let refuse = |doing: SpawnStage, errno: i32| {
            let error = SpawnError { doing, errno, reason: guardian::describe_errno(errno) };
            News::Ended { id, exit: Exit::Spawn(error), usage: None, over_limit: false }
        };
        if let Some(errno @ (EAGAIN | ENOMEM)) = refused {
            return self.shared.tell(refuse(SpawnStage::Fork, errno));
        }
        self.pids += 1;
        print(&log, "");
        self.shared.tell(News::Started { id, instance: Instance::of_pid(self.pids) });
        if let Some(errno) = refused {
            return self.shared.tell(refuse(SpawnStage::Execute, errno));
        }
        let steps = steps.into();
        self.actors.insert(id, Actor { steps, log, wakes: Instant::now(), ignores_term: false, on_term: None });
    }

    fn act(&mut self, id: AttemptId) {
        let Some(actor) = self.actors.get_mut(&id) else { return };
        while let Some(step) = actor.steps.pop_front() {
            match step {
                Step::Print(text) => print(&actor.log, &format!("{text}\n")),
                Step::Sleep(time) => {
                    actor.wakes = Instant::now() + time;
                    return;
                }
                Step::Ready => {
                    self.ready.insert(id);
                    if self.awaited.contains(&id) {
                        self.shared.tell(News::Ready { id });
                    }
                }
                Step::IgnoreTerm => actor.ignores_term = true,
                Step::OnTerm(code) => actor.on_term = Some(code),
                Step::End(exit) => return self.leave(id, exit),
                Step::NoSpawn(_) => {}
            }
        }
    }

    fn tell_ready(&self, id: AttemptId) {
        if self.ready.contains(&id) && self.awaited.contains(&id) {
            self.shared.tell(News::Ready { id });
        }
    }

    fn stopped(&mut self, how: StopHow, id: AttemptId) {
        let Some(actor) = self.actors.get(&id) else { return };
        let by = |signal| Exit::Signal { signal, core_dumped: false };
        match (how, actor.on_term) {
            (StopHow::Graceful, _) if actor.ignores_term => {}
            (StopHow::Graceful, Some(code)) => self.leave(id, Exit::Code { code }),
            (StopHow::Graceful, None) => self.leave(id, by(SIGTERM)),
            (StopHow::Kill, _) => self.leave(id, by(SIGKILL)),
        }
    }

    fn leave(&mut self, id: AttemptId, exit: Exit) {
        self.actors.remove(&id);
        self.shared.tell(News::Ended { id, exit, usage: None, over_limit: false });
    }
}

/// A log that cannot be written is the reader's problem, as with a real replica.
fn print(log: &Path, text: &str) {
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(log) {
        let _ = file.write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use umiak_core::model::Slot;

    use super::*;

    #[test]
    fn words_hold_for_whom_they_say() {
        let end = |code| Step::End(Exit::Code { code });
        let id = |index, attempt| AttemptId { step: StepIndex(0), slot: Slot { role: 0, index }, attempt };
        let argv = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<OsString>>();
        for (line, who, expected) in [
            ("actor", id(0, 0), vec![]),
            (
                "actor print=a:b sleep=50ms",
                id(0, 0),
                vec![Step::Print("a:b".into()), Step::Sleep(Duration::from_millis(50))],
            ),
            ("actor 1:exit=3", id(0, 0), vec![]),
            ("actor 1:exit=3", id(1, 4), vec![end(3)]),
            ("actor @1:exit=3", id(1, 0), vec![]),
            ("actor @1:exit=3", id(7, 1), vec![end(3)]),
            ("actor 0,2@1:exit=3", id(2, 1), vec![end(3)]),
            ("actor 0,2@1:exit=3", id(2, 0), vec![]),
            ("actor exit=many unknown", id(0, 0), vec![]),
        ] {
            let seen = steps(&argv(line), who);
            assert_eq!(seen, [expected, vec![end(0)]].concat(), "{line} for {who:?}");
        }
        let line = ["/bin/sh", "-c", "actor ready exit=2"].map(OsString::from);
        assert_eq!(steps(&line, id(0, 0)), [Step::Ready, end(2), end(0)]);
    }
}
