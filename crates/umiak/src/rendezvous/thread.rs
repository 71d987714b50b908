//! The loop: waits for one thing, asks a machine, performs. It owns all state; tasks only send it events.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, channel};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::{debug, error, info, trace, warn};
use umiak_core::machine::round::agent::{self, Agent};
use umiak_core::machine::round::coordinator::{self, Coordinator};
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::logs::{Hello, Member};
use umiak_core::machine::round::messages::{Answer, FromAgent, Join, Start, ToAgent};
use umiak_core::model::Timestamp;
use umiak_core::wire::frame::{MessageError, Payload};

use crate::clock::Clock;

use super::door::{self, Identity};
use super::gather::{self, GatherNews, Gatherer};
use super::link::{Ear, Link, Outgoing, Parts, Said};
use super::{Host, Options, Order, Report, Reporter, Target};

/// Connections that have not proven themselves.
const MAX_UNPROVEN: usize = 4096;
/// The most nodes there can be, each with a connection that replaces another.
const MAX_LINKS: usize = 2 * 16_384;
const MAX_PROBES: usize = 64;
/// Events that wait for the loop; their senders wait too.
const MAX_EVENTS: usize = 64;
/// How long a connection that we close may take to be closed by the peer too.
const LINGER: Duration = Duration::from_secs(2);
/// After an error of the listener.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two ticks, whatever a machine asks for.
const TICK: Duration = Duration::from_millis(2);
/// When nothing at all is to be done.
const LONG: Duration = Duration::from_secs(3600);

/// Of the whole host, and of our process: no more open files.
const OUT_OF_FILES: [i32; 2] = [23, 24];
/// How many that have not proven themselves go then.
const MAKE_ROOM: usize = 64;

/// What tasks tell the loop.
#[derive(Debug)]
pub(super) enum Event {
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
enum Happening {
    /// `None`: the front is gone.
    Order(Option<Order>),
    Event(Event),
    Knock(io::Result<TcpStream>),
    Time,
}

/// Everything, before it runs.
#[derive(Debug)]
pub(super) struct Thread {
    runtime: Runtime,
    inbox: Inbox,
    round: Round,
}

impl Thread {
    pub(super) fn new(options: Options, orders: UnboundedReceiver<Order>, reporter: Reporter) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (events, from_tasks) = channel(MAX_EVENTS);
        let round = {
            let _guard = runtime.enter();
            Round::new(options, events, reporter)?
        };
        Ok(Self { runtime, inbox: Inbox { orders, events: from_tasks, knocks_first: false }, round })
    }

    pub(super) fn run(mut self) {
        self.runtime.block_on(self.round.run(&mut self.inbox));
        // A name that is still being resolved keeps nobody.
        self.runtime.shutdown_background();
    }
}

/// The same without a thread of its own, for a runtime that has many of them.
pub(super) fn member(
    options: Options,
    orders: UnboundedReceiver<Order>,
    reporter: Reporter,
) -> io::Result<impl Future<Output = ()> + Send> {
    let (events, from_tasks) = channel(MAX_EVENTS);
    let mut round = Round::new(options, events, reporter)?;
    let mut inbox = Inbox { orders, events: from_tasks, knocks_first: false };
    Ok(async move { round.run(&mut inbox).await })
}

/// What the loop listens to.
#[derive(Debug)]
struct Inbox {
    orders: UnboundedReceiver<Order>,
    events: Receiver<Event>,
    /// They take turns: a crowd at the door does not keep those inside from being heard, nor the other way.
    knocks_first: bool,
}

impl Inbox {
    async fn next(&mut self, listener: Option<&TcpListener>, wait: Duration) -> Happening {
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

/// The state: the agent, and on one node the coordinator.
#[derive(Debug)]
struct Round {
    clock: Clock,
    reporter: Reporter,
    events: Sender<Event>,
    identity: Arc<Identity>,
    /// Of the last connection; none is ever used twice.
    last_id: u64,
    agent: Agent,
    target: Target,
    line: Line,
    said_bye: bool,
    /// Our own.
    launch: u64,
    host: Option<Hosting>,
    /// Links that are being closed, and until when.
    closing: VecDeque<(Timestamp, u64)>,
    ticked: Timestamp,
    leaving: bool,
    broken: bool,
}

/// The way to the coordinator.
#[derive(Debug)]
enum Line {
    Down,
    Trying { id: u64, task: AbortHandle },
    Up { id: u64, link: Link, local: IpAddr, gone: Vec<u8> },
}

/// The coordinator's side.
#[derive(Debug)]
struct Hosting {
    machine: Coordinator,
    /// Closed when all is over.
    listener: Option<TcpListener>,
    not_before: Option<Timestamp>,
    port: u16,
    links: HashMap<u64, Link>,
    /// Whose links they are.
    launches: HashMap<u64, u64>,
    /// Who will send logs, and who takes them.
    senders: HashSet<u64>,
    gatherer: Option<Gatherer>,
    /// By age.
    unproven: BTreeMap<u64, AbortHandle>,
    probes: VecDeque<IpAddr>,
    probing: HashSet<IpAddr>,
    /// What follows from effects.
    pending: VecDeque<coordinator::Event>,
}

impl Hosting {
    fn new(host: Host, limits: Limits, clock: Clock, events: &Sender<Event>) -> io::Result<Self> {
        umiak_sys::limits::raise();
        let gatherer = host.gather.map(|gather| Gatherer::start(gather, limits, clock, events.clone())).transpose()?;
        host.listener.set_nonblocking(true)?;
        let port = host.listener.local_addr()?.port();
        Ok(Self {
            machine: Coordinator::new(host.options, clock.now()),
            listener: Some(TcpListener::from_std(host.listener)?),
            not_before: None,
            port,
            links: HashMap::new(),
            launches: HashMap::new(),
            senders: HashSet::new(),
            gatherer,
            unproven: BTreeMap::new(),
            probes: VecDeque::new(),
            probing: HashSet::new(),
            pending: VecDeque::new(),
        })
    }

    /// The ranks of all nodes are known: who sends which logs?
    fn note_members(&self, start: &Start, own: u64) {
        let Some(gatherer) = &self.gatherer else { return };
        let mut first = 0;
        let members = start.nodes.iter().map(|node| {
            let ranks = first..first + node.processes.len() as u32;
            first = ranks.end;
            // Our own ranks write where logs are gathered.
            let sends = node.launch != own && self.senders.contains(&node.launch);
            Member { launch: node.launch, ranks, sends }
        });
        gatherer.members(members.collect());
    }

    /// Nobody is let in any more.
    fn close_door(&mut self) {
        self.listener = None;
        self.not_before = None;
        self.close_oldest(usize::MAX);
    }

    /// Closes those that have had the most time.
    fn close_oldest(&mut self, count: usize) {
        for _ in 0..count {
            let Some((_, task)) = self.unproven.pop_first() else { return };
            task.abort();
        }
    }

    /// Those that wait for their turn are not asked for twice.
    fn queue_probes(&mut self, addresses: Vec<IpAddr>) {
        for address in addresses {
            if !self.probing.contains(&address) && !self.probes.contains(&address) {
                self.probes.push_back(address);
            }
        }
    }
}

impl Round {
    fn new(options: Options, events: Sender<Event>, reporter: Reporter) -> io::Result<Self> {
        let Options { coordinator: target, host, join, limits, job_id, key, clock } = options;
        let now = clock.now();
        let launch = join.launch;
        let describe = host.as_ref().map(|host| host.describe.clone()).unwrap_or_default();
        let host = host.map(|host| Hosting::new(host, limits, clock, &events)).transpose()?;
        Ok(Self {
            clock,
            reporter,
            events,
            identity: Arc::new(Identity { job_id, key, describe }),
            last_id: 0,
            agent: Agent::new(join, limits, now),
            target,
            line: Line::Down,
            said_bye: false,
            launch,
            host,
            closing: VecDeque::new(),
            ticked: Timestamp::from_micros(0),
            leaving: false,
            broken: false,
        })
    }

    async fn run(&mut self, inbox: &mut Inbox) {
        while !self.is_done() {
            let now = self.clock.now();
            let listener = self.host.as_ref().filter(|host| host.not_before.is_none_or(|at| at <= now));
            let listener = listener.and_then(|host| host.listener.as_ref());
            match inbox.next(listener, self.wait(now)).await {
                Happening::Order(Some(order)) => self.obey(order),
                Happening::Order(None) => return,
                Happening::Event(event) => self.apply(event),
                Happening::Knock(result) => self.knock(result),
                Happening::Time => self.tick(),
            }
        }
    }

    /// The front wants to go, and everybody has heard what we had to say.
    fn is_done(&self) -> bool {
        let over = |host: &Hosting| host.machine.is_over() && host.links.is_empty() && host.gatherer.is_none();
        self.broken || (self.leaving && matches!(self.line, Line::Down) && self.host.as_ref().is_none_or(over))
    }

    fn wait(&self, now: Timestamp) -> Duration {
        let agent = if self.leaving { None } else { self.agent.deadline() };
        let host = self.host.as_ref();
        let times = [
            agent,
            host.and_then(|host| host.machine.deadline()),
            host.and_then(|host| host.not_before),
            self.closing.front().map(|(until, _)| *until),
        ];
        match times.into_iter().flatten().min() {
            Some(time) => time.max(self.ticked + TICK).since(now).min(LONG),
            None => LONG,
        }
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        self.ticked = now;
        while let Some((_, id)) = self.closing.front().copied().filter(|(until, _)| *until <= now) {
            self.closing.pop_front();
            self.forget(id);
        }
        if let Some(host) = &mut self.host {
            host.not_before.take_if(|at| *at <= now);
            self.decide(coordinator::Event::Tick);
        }
        if !self.leaving {
            self.step(agent::Event::Tick);
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Standing(standing) if !self.leaving => self.step(agent::Event::Standing(standing)),
            Order::Standing(_) => {}
            Order::Mark(mark) => {
                if let Some(gatherer) = self.host.as_ref().and_then(|host| host.gatherer.as_ref()) {
                    gatherer.mark(mark);
                }
            }
            Order::Leave => self.leave(),
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Joined { link, parts, join } => self.admit(link, *parts, *join),
            Event::Logs { link, parts, hello } => self.take_logs(link, *parts, hello),
            Event::TurnedAway { address, answer } => {
                info!(%address, ?answer, "connection turned away");
                self.decide(coordinator::Event::TurnedAway { address, answer });
            }
            Event::Left { link } => {
                if let Some(host) = &mut self.host {
                    host.unproven.remove(&link);
                }
            }
            Event::FromAgent(link, said) => self.hear_agent(link, said),
            Event::Probed { address, answer } => {
                if let Some(host) = &mut self.host {
                    host.probing.remove(&address);
                    self.decide(coordinator::Event::Probed { address, answer });
                    self.probe();
                }
            }
            Event::Reached { line, result } => self.reached(line, result),
            Event::ToAgent(line, said) => self.hear_coordinator(line, said),
            Event::GatherNews(news) => self.reporter.tell(Report::Gather(news)),
            Event::Gathered => {
                if let Some(host) = &mut self.host {
                    host.gatherer = None;
                    if host.machine.is_over() {
                        host.close_door();
                    }
                }
            }
        }
    }

    // The agent.

    fn step(&mut self, event: agent::Event) {
        let effects = self.agent.step(event, self.clock.now());
        trace!(effects = effects.len(), "agent");
        for effect in effects {
            match effect {
                agent::Effect::Connect => self.connect(),
                agent::Effect::Disconnect => self.line = Line::Down,
                agent::Effect::Send(message) => self.say(message),
                agent::Effect::Tell(news) => self.reporter.tell(Report::News(news)),
            }
        }
        if let (true, Line::Trying { task, .. }) = (self.agent.is_over(), &self.line) {
            task.abort();
            self.line = Line::Down;
        }
    }

    fn connect(&mut self) {
        self.last_id += 1;
        let id = self.last_id;
        let (target, identity) = (self.target.clone(), Arc::clone(&self.identity));
        let events = self.events.clone();
        let task = tokio::spawn(async move {
            let result = door::reach(target, identity).await;
            let _ = events.send(Event::Reached { line: id, result }).await;
        });
        debug!(coordinator = ?self.target, "connect");
        self.line = Line::Trying { id, task: task.abort_handle() };
    }

    fn reached(&mut self, line: u64, result: Result<Box<Parts>, Answer>) {
        if !matches!(&self.line, Line::Trying { id, .. } if *id == line) {
            return;
        }
        let parts = match result {
            Ok(parts) => *parts,
            Err(answer) => {
                debug!(?answer, "coordinator not reached");
                self.line = Line::Down;
                return self.step(agent::Event::NotConnected(answer));
            }
        };
        let socket = parts.halves.0.as_ref();
        let local = socket.local_addr().map_or(IpAddr::from([0; 4]), |local| local.ip().to_canonical());
        let duplicate = socket.as_fd().try_clone_to_owned();
        let gone = parts.session.sealer.prepared_gone();
        let ear = Ear { id: line, wrap: Event::ToAgent, accepts: |_| true, events: self.events.clone() };
        self.line = Line::Up { id: line, link: Link::open(parts, ear), local, gone: gone.clone() };
        // Without it the others learn only from silence that we are gone.
        if let Ok(socket) = duplicate {
            self.reporter.tell(Report::Lifeline { socket, frame: gone });
        }
        info!(coordinator = ?self.target, %local, "connected");
        self.step(agent::Event::Connected);
    }

    fn say(&mut self, mut message: FromAgent) {
        let Line::Up { link, local, .. } = &self.line else { return };
        match &mut message {
            FromAgent::Join(join) if join.address.is_unspecified() => join.address = *local,
            FromAgent::Bye => self.said_bye = true,
            _ => {}
        }
        match Payload::message(&message) {
            Ok(payload) => {
                if !link.send(Outgoing::Payload(Arc::new(payload))) {
                    self.line = Line::Down;
                    self.step(agent::Event::Closed);
                }
            }
            Err(error) => self.give_up(&error),
        }
    }

    fn hear_coordinator(&mut self, line: u64, said: Said<ToAgent>) {
        if !matches!(&self.line, Line::Up { id, .. } if *id == line) {
            return;
        }
        let event = match said {
            Said::Message(message) => agent::Event::Heard(Box::new(message)),
            Said::Gone => return,
            Said::Closed => {
                info!(leaving = self.leaving, "connection to the coordinator closed");
                self.line = Line::Down;
                agent::Event::Closed
            }
        };
        if !self.leaving {
            self.step(event);
        }
    }

    /// The last words. Who has not said goodbye has not heard the decision, and will not.
    fn leave(&mut self) {
        if !self.agent.is_over() {
            self.step(agent::Event::Ended);
        }
        self.leaving = true;
        if let Some(gatherer) = self.host.as_ref().and_then(|host| host.gatherer.as_ref()) {
            gatherer.finish();
        }
        match &mut self.line {
            Line::Up { id, link, gone, .. } if link.is_open() => {
                if !self.said_bye {
                    let _ = link.send(Outgoing::Frame(std::mem::take(gone)));
                }
                link.close();
                self.closing.push_back((self.clock.now() + LINGER, *id));
            }
            Line::Trying { task, .. } => {
                task.abort();
                self.line = Line::Down;
            }
            Line::Up { .. } | Line::Down => {}
        }
    }

    // The coordinator.

    fn decide(&mut self, event: coordinator::Event) {
        let now = self.clock.now();
        let mut next = Some(event);
        while let Some(event) = next {
            let Some(host) = &mut self.host else { return };
            let effects = host.machine.step(event, now);
            trace!(effects = effects.len(), "coordinator");
            for effect in effects {
                self.perform(effect, now);
            }
            next = self.host.as_mut().and_then(|host| host.pending.pop_front());
        }
    }

    fn perform(&mut self, effect: coordinator::Effect, now: Timestamp) {
        let Some(host) = &mut self.host else { return };
        match effect {
            coordinator::Effect::Send { links, message } => {
                if let ToAgent::Start(start) = &message {
                    host.note_members(start, self.launch);
                }
                let payload = match Payload::message(&message) {
                    Ok(payload) => Arc::new(payload),
                    Err(error) => return self.give_up(&error),
                };
                for id in links {
                    let Some(link) = host.links.get(&id) else { continue };
                    if !link.send(Outgoing::Payload(Arc::clone(&payload))) {
                        host.links.remove(&id);
                        host.pending.push_back(coordinator::Event::Closed { link: id });
                    }
                }
            }
            coordinator::Effect::Close { link: id } => {
                if let Some(link) = host.links.get_mut(&id) {
                    link.close();
                    self.closing.push_back((now + LINGER, id));
                }
            }
            coordinator::Effect::Probe { addresses } => {
                host.queue_probes(addresses);
                self.probe();
            }
            coordinator::Effect::Refused { address, host, refusal } => {
                info!(%address, host, ?refusal, "node refused");
                self.reporter.tell(Report::Refused { address, host, refusal });
            }
            coordinator::Effect::Finish => {
                info!(links = host.links.len(), "round over");
                // Who brings logs may still have to come back.
                if host.gatherer.is_none() {
                    host.close_door();
                }
                host.probes.clear();
                for (id, link) in &mut host.links {
                    link.close();
                    self.closing.push_back((now + LINGER, *id));
                }
            }
        }
    }

    fn probe(&mut self) {
        let Some(host) = &mut self.host else { return };
        while host.probing.len() < MAX_PROBES {
            let Some(address) = host.probes.pop_front() else { return };
            host.probing.insert(address);
            tokio::spawn(door::probe(address, host.port, self.events.clone()));
        }
    }

    /// Nothing that happens at the door closes it.
    fn knock(&mut self, result: io::Result<TcpStream>) {
        let Some(host) = &mut self.host else { return };
        match result {
            Ok(stream) => {
                self.last_id += 1;
                let greet = door::greet(self.last_id, stream, Arc::clone(&self.identity), self.events.clone());
                host.unproven.insert(self.last_id, tokio::spawn(greet).abort_handle());
                host.close_oldest(host.unproven.len().saturating_sub(MAX_UNPROVEN));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                warn!(%error, "connection not accepted");
                if error.raw_os_error().is_some_and(|errno| OUT_OF_FILES.contains(&errno)) {
                    host.close_oldest(MAKE_ROOM);
                }
                host.not_before = Some(self.clock.now() + PAUSE);
            }
        }
    }

    fn admit(&mut self, id: u64, parts: Parts, join: Join) {
        let Some(host) = &mut self.host else { return };
        host.unproven.remove(&id);
        if host.machine.is_over() || host.links.len() >= MAX_LINKS {
            return;
        }
        let ear = Ear {
            id,
            wrap: Event::FromAgent,
            // It has joined, once.
            accepts: |message| !matches!(message, FromAgent::Join(_) | FromAgent::Logs(_)),
            events: self.events.clone(),
        };
        info!(link = id, address = %join.address, host = join.host, rank = join.rank, "node joined");
        host.links.insert(id, Link::open(parts, ear));
        host.launches.insert(id, join.launch);
        if join.logs {
            host.senders.insert(join.launch);
        }
        self.decide(coordinator::Event::Joined { link: id, join: Box::new(join) });
    }

    fn take_logs(&mut self, id: u64, parts: Parts, hello: Hello) {
        let Some(host) = &mut self.host else { return };
        host.unproven.remove(&id);
        match &host.gatherer {
            Some(gatherer) => gatherer.take(parts, hello),
            None => drop(tokio::spawn(gather::decline(parts))),
        }
    }

    fn hear_agent(&mut self, link: u64, said: Said<FromAgent>) {
        let Some(host) = &mut self.host else { return };
        let Some(known) = host.links.get(&link) else { return };
        let is_open = known.is_open();
        if let (Said::Gone, Some(gatherer), Some(launch)) = (&said, &host.gatherer, host.launches.get(&link)) {
            gatherer.gone(*launch);
        }
        let event = match said {
            Said::Closed => {
                debug!(link, "connection closed");
                host.links.remove(&link);
                host.launches.remove(&link);
                coordinator::Event::Closed { link }
            }
            // It has been told all that it will be.
            _ if !is_open => return,
            Said::Gone => coordinator::Event::Gone { link },
            // Its first message was another, and there is no second of these.
            Said::Message(FromAgent::Join(_) | FromAgent::Logs(_)) => return,
            Said::Message(FromAgent::Standing(standing)) => coordinator::Event::Standing { link, standing },
            Said::Message(FromAgent::Beat) => coordinator::Event::Beat { link },
            Said::Message(FromAgent::Bye) => coordinator::Event::Bye { link },
        };
        self.decide(event);
    }

    // Both.

    /// A peer that we have closed has not closed in time.
    fn forget(&mut self, id: u64) {
        if matches!(&self.line, Line::Up { id: line, .. } if *line == id) {
            self.line = Line::Down;
        }
        if let Some(host) = &mut self.host {
            host.links.remove(&id);
            host.launches.remove(&id);
        }
    }

    /// What has to be said cannot be.
    fn give_up(&mut self, error: &MessageError) {
        error!(%error, "round broken");
        self.broken = true;
        self.reporter.tell(Report::Broken(error.to_string()));
    }
}
