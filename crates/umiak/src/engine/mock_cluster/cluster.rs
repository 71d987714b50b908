//! The cluster: the hidden command `umiak mock-cluster DIR`.
//!
//! Keeps all state of its units until they are forgotten, so that it can be replayed to a supervisor that takes over.
//! Exits on request, when its socket or the run's directory is removed, and some time after all units have ended
//! without a supervisor connecting.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Exit, Instance, StepIndex, StopHow};

use super::super::EngineNews;
use super::super::actors::{Entry, Stage, Step, ended, steps, stopped};
use super::render::{Manifest, Member};
use super::wire::{self, Order, Told};

/// In the run's directory.
pub(super) const SOCKET: &str = "cluster.sock";

/// How often the existence of its socket is checked.
const LOOK: Duration = Duration::from_secs(1);
/// How long ended units are kept for a supervisor that may connect.
const KEPT: Duration = Duration::from_secs(600);
/// The same without any units.
const EMPTY: Duration = Duration::from_secs(10);
/// Minimum wait of a pre-empted gang before its restart.
const PREEMPTED: Duration = Duration::from_millis(50);

/// Runs a cluster. Its stdin is the listening socket.
pub(crate) fn serve(directory: &Path) -> io::Result<()> {
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (sender, inputs) = mpsc::channel();
    thread("listener", move || accept(&listener, &sender))?;
    let socket = directory.join(SOCKET);
    let inode = || std::fs::metadata(&socket).ok().map(|metadata| metadata.ino());
    let own = inode();
    let is_there = || own.is_some() && inode() == own;
    Cluster::default().play(&inputs, is_there);
    if is_there() {
        let _ = std::fs::remove_file(&socket);
    }
    Ok(())
}

/// A message, with the number of its connection.
enum Input {
    Connected(u64, Sender<String>),
    Said(u64, Order),
    Gone(u64),
}

fn accept(listener: &UnixListener, inputs: &Sender<Input>) {
    for (number, stream) in (0..).zip(listener.incoming().map_while(Result::ok)) {
        let Ok(writer) = stream.try_clone() else { continue };
        let (sender, lines) = mpsc::channel();
        // Sent from this thread, so that connections are reported in order.
        let _ = inputs.send(Input::Connected(number, sender));
        let inputs = inputs.clone();
        // A connection without threads is dropped, which its engine notices.
        let _ = thread("writer", move || write(writer, &lines));
        let _ = thread("reader", move || hear(number, &stream, &inputs));
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// Writes on its own thread: the cluster does not wait for a suspended supervisor.
fn write(mut stream: UnixStream, lines: &Receiver<String>) {
    for line in lines {
        if stream.write_all(line.as_bytes()).is_err() {
            return;
        }
    }
}

/// Reads one connection until it ends.
fn hear(number: u64, stream: &UnixStream, inputs: &Sender<Input>) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Some(order) = wire::read(&line) else { break };
        let _ = inputs.send(Input::Said(number, order));
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
    let _ = inputs.send(Input::Gone(number));
}

#[derive(Default)]
struct Cluster {
    stage: Stage,
    units: BTreeMap<String, Unit>,
    /// The supervisor's connection, and the channel to it.
    connection: Option<(u64, Sender<String>)>,
    /// Number of nodes used; none is used twice.
    nodes: u32,
    /// Counts ends, to replay them in order.
    order: u64,
}

/// A gang.
struct Unit {
    members: BTreeMap<AttemptId, Kept>,
    /// Set while it waits for nodes.
    queue: Option<Queue>,
    /// Number of starts.
    starts: u32,
    /// True if the connected supervisor has submitted or adopted it, and receives its news.
    is_followed: bool,
}

struct Queue {
    until: Instant,
    /// Reasons that are still to be reported, with their times.
    reasons: VecDeque<(Instant, String)>,
    reason: String,
}

/// A replica and all that was reported about it.
struct Kept {
    replica: Member,
    instance: Option<Instance>,
    output: String,
    ended: Option<(u64, Exit)>,
}

impl Unit {
    fn new(manifest: Manifest) -> Self {
        let kept = |replica: Member| (replica.id, Kept { replica, instance: None, output: String::new(), ended: None });
        Self { members: manifest.replicas.into_iter().map(kept).collect(), queue: None, starts: 0, is_followed: true }
    }

    fn step(&self) -> StepIndex {
        self.members.keys().next().map(|id| id.step).unwrap_or_default()
    }

    fn is_over(&self) -> bool {
        self.members.values().all(|member| member.ended.is_some())
    }

    /// The longest queue time that a replica asks for.
    fn delay(&self) -> Duration {
        let steps = self.members.values().flat_map(|member| steps(&member.replica.argv, member.replica.id));
        steps.filter_map(|step| if let Step::Queue(time) = step { Some(time) } else { None }).max().unwrap_or_default()
    }

    fn enqueue(&mut self, now: Instant, delay: Duration, first: &str) {
        let waiting = self.members.values().filter(|member| member.ended.is_none()).count();
        let nodes = format!("too few free nodes for {waiting} replica{}", if waiting == 1 { "" } else { "s" });
        let reasons = if delay.is_zero() {
            VecDeque::new()
        } else {
            VecDeque::from([(now, first.to_owned()), (now + delay / 2, nodes)])
        };
        self.queue = Some(Queue { until: now + delay, reasons, reason: String::new() });
    }
}

impl Cluster {
    fn play(mut self, inputs: &Receiver<Input>, is_there: impl Fn() -> bool) {
        let mut idle_since = None;
        loop {
            let wait = self.wakes().map_or(LOOK, |at| at.saturating_duration_since(Instant::now()).min(LOOK));
            match inputs.recv_timeout(wait) {
                Ok(Input::Said(_, Order::End {})) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(input) => self.hear(input),
                Err(RecvTimeoutError::Timeout) if !is_there() => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.turn(Instant::now());
            if self.connection.is_some() || !self.units.values().all(Unit::is_over) {
                idle_since = None;
                continue;
            }
            let patience = if self.units.is_empty() { EMPTY } else { KEPT };
            if idle_since.get_or_insert_with(Instant::now).elapsed() > patience {
                return;
            }
        }
    }

    /// Time of the next action.
    fn wakes(&self) -> Option<Instant> {
        let queues = self.units.values().filter_map(|unit| unit.queue.as_ref());
        let due = queues.map(|queue| queue.reasons.front().map_or(queue.until, |(at, _)| *at));
        due.chain(self.stage.wakes()).min()
    }

    fn hear(&mut self, input: Input) {
        match input {
            Input::Connected(number, sender) => {
                self.stage.forget_awaited();
                self.units.values_mut().for_each(|unit| unit.is_followed = false);
                self.connection = Some((number, sender));
            }
            Input::Gone(number) if self.is_current(number) => self.connection = None,
            Input::Said(number, order) if self.is_current(number) => self.obey(order),
            // A previous supervisor.
            Input::Gone(_) | Input::Said(..) => {}
        }
    }

    fn is_current(&self, number: u64) -> bool {
        self.connection.as_ref().is_some_and(|(current, _)| *current == number)
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Hello {} => self.say(&Told::Answer { attempts: Vec::new() }),
            Order::Submit(manifest) => {
                let unit = self.units.entry(manifest.unit.clone());
                unit.or_insert_with(|| {
                    let mut unit = Unit::new(manifest);
                    unit.enqueue(Instant::now(), unit.delay(), "queued behind 2 gangs");
                    unit
                });
            }
            Order::Adopt { unit, live } => self.adopt(&unit, &live),
            Order::Stop { how, targets } => targets.into_iter().for_each(|id| self.stop(id, how)),
            Order::AwaitReady { id } => {
                let news = self.stage.await_ready(id);
                self.tell_all(news);
            }
            Order::Forget {} => {
                for id in std::mem::take(&mut self.units).into_values().flat_map(|unit| unit.members.into_keys()) {
                    self.stage.withdraw(id);
                }
            }
            Order::End {} => {}
        }
    }

    /// Performs what is due: reasons, starts, and steps of replicas.
    fn turn(&mut self, now: Instant) {
        let mut reasons = Vec::new();
        for unit in self.units.values_mut() {
            let (is_over, step) = (unit.is_over(), unit.step());
            let Some(queue) = &mut unit.queue else { continue };
            if is_over {
                unit.queue = None;
                continue;
            }
            while queue.reasons.front().is_some_and(|(at, _)| *at <= now) {
                queue.reason = queue.reasons.pop_front().map(|(_, reason)| reason).unwrap_or_default();
                if unit.is_followed {
                    reasons.push((step, queue.reason.clone()));
                }
            }
        }
        for (step, reason) in reasons {
            self.say(&Told::Pending { step, reason });
        }
        let is_due = |(_, unit): &(&String, &Unit)| unit.queue.as_ref().is_some_and(|queue| queue.until <= now);
        let due: Vec<String> = self.units.iter().filter(is_due).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.place(&name);
        }
        let news = self.stage.act(now);
        self.tell_all(news);
    }

    /// Starts all members of a gang that have not ended, each on its own node.
    fn place(&mut self, name: &str) {
        let Some(unit) = self.units.get_mut(name) else { return };
        unit.queue = None;
        let starts = unit.starts;
        unit.starts += 1;
        let mut news = Vec::new();
        for (id, member) in unit.members.iter().filter(|(_, member)| member.ended.is_none()) {
            self.nodes += 1;
            let name = Some(member.replica.name.clone());
            let instance = Instance { pid: None, name, node: Some(format!("node-{}", self.nodes)) };
            let (steps, written) = (steps(&member.replica.argv, *id), member.output.len() as u64);
            news.extend(self.stage.enter(Entry { id: *id, steps, instance, starts, written }));
        }
        self.tell_all(news);
    }

    /// Stops an attempt. One that waits for a node ends at once.
    fn stop(&mut self, id: AttemptId, how: StopHow) {
        let waits =
            |unit: &Unit| unit.queue.is_some() && unit.members.get(&id).is_some_and(|member| member.ended.is_none());
        let news =
            if self.units.values().any(waits) { vec![ended(id, stopped(how))] } else { self.stage.stop(id, how) };
        self.tell_all(news);
    }

    fn adopt(&mut self, name: &str, live: &[AttemptId]) {
        let Some(unit) = self.units.get_mut(name) else {
            return self.say(&Told::Answer { attempts: Vec::new() });
        };
        let stage = &mut self.stage;
        unit.is_followed = true;
        unit.members.retain(|id, _| {
            let is_live = live.contains(id);
            if !is_live {
                stage.withdraw(*id);
            }
            is_live
        });
        let mut told = vec![Told::Answer { attempts: unit.members.keys().copied().collect() }];
        if let Some(queue) = unit.queue.as_ref().filter(|queue| !queue.reason.is_empty()) {
            told.push(Told::Pending { step: unit.step(), reason: queue.reason.clone() });
        }
        let mut ends = Vec::new();
        for (id, member) in &unit.members {
            if let Some(instance) = member.instance.clone() {
                told.push(Told::Output { id: *id, at: 0, text: member.output.clone() });
                told.push(Told::Started { id: *id, instance });
            }
            ends.extend(member.ended.as_ref().map(|(order, exit)| (*order, *id, exit.clone())));
        }
        ends.sort_by_key(|(order, ..)| *order);
        told.extend(ends.into_iter().map(|(_, id, exit)| Told::Ended { id, exit }));
        for told in &told {
            self.say(told);
        }
    }

    fn tell_all(&mut self, news: Vec<EngineNews>) {
        for news in news {
            self.tell(news);
        }
    }

    /// Keeps news, and reports it if a supervisor follows the unit. Pre-emption is handled here.
    fn tell(&mut self, news: EngineNews) {
        let id = match &news {
            EngineNews::Ended { id, exit: Exit::Preempted { reason }, .. } => return self.preempt(*id, reason),
            EngineNews::Started { id, .. }
            | EngineNews::Output { id, .. }
            | EngineNews::Ready { id }
            | EngineNews::Ended { id, .. } => *id,
            EngineNews::Pending { .. }
            | EngineNews::Notice(_)
            | EngineNews::Accepted { .. }
            | EngineNews::Cancelled { .. }
            | EngineNews::Cleared(_)
            | EngineNews::Swept(_)
            | EngineNews::Lost { .. }
            | EngineNews::OneLost { .. } => {
                return;
            }
        };
        let Some(unit) = self.units.values_mut().find(|unit| unit.members.contains_key(&id)) else { return };
        let Some(kept) = unit.members.get_mut(&id) else { return };
        let told = match news {
            EngineNews::Started { instance, .. } => {
                kept.instance = Some(instance.clone());
                Told::Started { id, instance }
            }
            EngineNews::Output { at, bytes, .. } => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                kept.output += &text;
                Told::Output { id, at, text }
            }
            EngineNews::Ended { exit, .. } => {
                self.order += 1;
                kept.ended = Some((self.order, exit.clone()));
                Told::Ended { id, exit }
            }
            _ => Told::Ready { id },
        };
        if unit.is_followed {
            self.say(&told);
        }
    }

    /// Returns the gang to the queue; its output is kept.
    fn preempt(&mut self, id: AttemptId, reason: &str) {
        let Some(unit) = self.units.values_mut().find(|unit| unit.members.contains_key(&id)) else { return };
        for other in unit.members.keys() {
            self.stage.withdraw(*other);
        }
        unit.enqueue(Instant::now(), unit.delay().max(PREEMPTED), &format!("pre-empted by {reason}"));
    }

    fn say(&self, told: &Told) {
        if let Some((_, sender)) = &self.connection {
            let _ = sender.send(wire::line(told));
        }
    }
}
