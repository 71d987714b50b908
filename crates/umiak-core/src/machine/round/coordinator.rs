//! The coordinator's side of the round: which nodes take part, when to start, when to stop, and how it ends for all
//! nodes.
//!
//! ```text
//! Gathering ─► Running ─► Stopping ─► Ended ─► over
//!     ▲                                 │
//!     └──────────── restart ◄───────────┘
//! ```

use std::net::IpAddr;
use std::time::Duration;

use super::limits::{GOODBYE, Limits, NEWS, PROBE, RECHECK, REFUSED};
use super::messages::{
    Answer, AttemptEnd, Decision, Expects, Join, Loss, NodeName, NodeShare, Offer, Refusal, Servers, Stage, Standing,
    Start, Stop, ToAgent, Told, Why,
};
use crate::facts::Outcome;
use crate::model::{self, ElasticLevel, Endpoint, Exit, FIRST_ATTEMPT, Part, Timestamp};

mod doors;
mod members;
mod refusals;
mod time;
mod verdict;

use members::Members;
use refusals::Refusals;

/// A connection, numbered by the network; never reused.
pub type Link = u64;

/// Settings of the coordinator, from its own node's command line.
#[derive(Debug, Clone)]
pub struct Options {
    pub expects: Expects,
    /// Launch id of the agent beside the coordinator, which is the first node unless another order is given.
    pub launch: u64,
    pub uneven: bool,
    pub limits: Limits,
    /// How long ends are collected after a failure.
    pub settle: Duration,
    /// The time without progress after which a job hangs, if it is limited.
    pub hang: Option<Duration>,
    pub restart: model::Restart,
    /// How long an elastic job with enough nodes waits for others.
    pub window: Duration,
    /// What an elastic job survives.
    pub level: ElasticLevel,
    /// For jobs over etcd, whose coordinator can be lost.
    pub succession: Option<Succession>,
    /// Jitter of back-offs.
    pub seed: u64,
}

/// What only the coordinators of jobs over etcd have.
#[derive(Debug, Clone)]
pub struct Succession {
    /// Where this coordinator is reached.
    pub at: Endpoint,
    /// Ranks find their store there too.
    pub has_store: bool,
    /// What this node knows of the job, if it has had another coordinator before.
    pub past: Option<Past>,
    /// The job has had one, and this node knows nothing of it: how long ranks may still run elsewhere.
    pub unknown: Option<Duration>,
}

/// A job that goes on under a new coordinator.
#[derive(Debug, Clone)]
pub struct Past {
    /// The last start that this node has heard of.
    pub start: Box<Start>,
    /// The launch id of the last coordinator, which is not awaited.
    pub coordinator: u64,
    /// How its time ended.
    pub end: AttemptEnd,
    /// How long the other nodes are awaited. After that, those that are absent have stopped their ranks.
    pub patience: Duration,
}

/// Input of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Joined {
        link: Link,
        join: Box<Join>,
        /// The address it connects from; `None` from this host.
        source: Option<IpAddr>,
    },
    Standing {
        link: Link,
        standing: Standing,
    },
    Beat {
        link: Link,
        sent: Timestamp,
    },
    Bye {
        link: Link,
    },
    /// A guardian reported that its front is dead.
    Gone {
        link: Link,
    },
    Closed {
        link: Link,
    },
    /// The result of [`Effect::Watch`]: nothing of the node runs anymore.
    Vanished {
        launch: u64,
    },
    /// A connection from this address was closed before it joined.
    TurnedAway {
        address: IpAddr,
        answer: Answer,
    },
    /// The answer to [`Effect::Probe`].
    Probed {
        address: IpAddr,
        answer: Answer,
    },
    /// The number of nodes was changed in etcd.
    Scaled {
        min: u32,
        max: u32,
    },
    /// The lease in etcd may expire soon, or is gone: another node may become the coordinator.
    Fenced(Loss),
    /// The node beside the coordinator has left.
    Deserted,
    /// The time of [`Coordinator::deadline`] has come.
    Tick,
}

/// Output of the machine, to be performed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The same message to all of these links.
    Send { links: Vec<Link>, message: ToAgent },
    /// After all messages sent before.
    Close { link: Link },
    /// Check how these addresses answer.
    Probe { addresses: Vec<IpAddr> },
    /// The connection of this node broke: check whether anything of it still runs, as long as
    /// [`Coordinator::misses`] it.
    Watch { launch: u64 },
    /// For the console beside the coordinator: this node was refused.
    Refused { address: IpAddr, host: String, refusal: Refusal },
    /// The same for so many more nodes.
    RefusedMore { count: u64 },
    /// For the record beside the coordinator: these nodes have joined and do not take part in the attempt.
    Spares { nodes: Vec<NodeName> },
    /// No node is waited for any more.
    Finish,
}

/// The state of the round.
#[derive(Debug, Clone)]
pub struct Coordinator {
    options: Options,
    nodes: Vec<Node>,
    /// Nodes by their place in the job, once it has started; indices into `nodes`.
    order: Vec<usize>,
    attempt: u32,
    phase: Phase,
    /// How missing addresses answer, as far as they were probed.
    answers: Vec<(IpAddr, Answer)>,
    /// How many nodes were refused because they contradict the others, or came after such a refusal.
    misfits: usize,
    /// Nodes that joined before the node beside the coordinator.
    early: Vec<(Link, Join, Option<IpAddr>)>,
    refusals: Refusals,
    restarts: Vec<Timestamp>,
    members: Members,
    /// The decision on the previous attempt, for nodes that missed it.
    last: Option<Box<Decision>>,
    /// How many nodes have reported a bad end in this attempt.
    turns: u64,
    news: News,
    /// The same for servers that listen.
    servers: News,
    /// When a node last reported that its trainers have ended. Others that waited for it may move again.
    ended: Option<Timestamp>,
    /// Time of the last step.
    stepped: Timestamp,
    next_wake: Timestamp,
    next_probe: Timestamp,
    suspects: Vec<u32>,
}

/// Whether something has changed since the last message to all nodes, and when that was sent.
#[derive(Debug, Clone, Copy, Default)]
struct News {
    pending: bool,
    last: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct Node {
    join: Join,
    /// Where its first connection came from; `None` for this host.
    source: Option<IpAddr>,
    link: Option<Link>,
    heard: Timestamp,
    /// Since when it has no connection.
    down: Option<Timestamp>,
    /// In the current attempt; `None` until its first report.
    stage: Option<Stage>,
    offer: Option<Offer>,
    /// All its servers listen, or have ended well.
    listens: bool,
    /// How its ranks ended, once it has reported that.
    ends: Vec<Told>,
    lost: Option<Loss>,
    /// A stop was requested on it: no other attempt follows.
    interrupted: bool,
    /// Position among the nodes that reported bad ends.
    turn: Option<u64>,
    bye: bool,
    /// It takes part in the current attempt.
    is_member: bool,
    /// It took part in the last one, and has not been lost since.
    was_member: bool,
    /// In how many attempts in a row only its ranks have failed.
    failures: u32,
    /// The attempt that it is ready for, by its own count.
    attempt: u32,
}

#[derive(Debug, Clone)]
enum Phase {
    Gathering { since: Timestamp },
    Running { start: Box<Start> },
    Stopping { why: Why, since: Timestamp },
    Ended { decision: Box<Decision>, since: Timestamp },
    Over,
}

impl Coordinator {
    pub fn new(options: Options, now: Timestamp) -> Self {
        let past = options.succession.as_ref().and_then(|succession| succession.past.as_ref());
        let unknown = options.succession.as_ref().and_then(|succession| succession.unknown);
        let members = match (past, unknown) {
            (Some(past), _) => Members::after(past, now),
            (None, Some(patience)) => Members::after_unknown(patience, now),
            (None, None) => Members::default(),
        };
        let attempt = past.map_or(FIRST_ATTEMPT, |past| past.start.attempt + 1);
        // Failures that counted then count as if they had happened just now.
        let restarts = members.last.map_or(0, |last| last.counted);
        Self {
            options,
            nodes: Vec::new(),
            order: Vec::new(),
            attempt,
            phase: Phase::Gathering { since: now },
            answers: Vec::new(),
            misfits: 0,
            early: Vec::new(),
            refusals: Refusals::default(),
            restarts: vec![now; restarts as usize],
            members,
            last: None,
            turns: 0,
            news: News::default(),
            servers: News::default(),
            ended: None,
            stepped: now,
            next_wake: now,
            next_probe: now + PROBE,
            suspects: Vec::new(),
        }
    }

    /// The transition function: synchronous, pure but for `self`, total. Events of unknown links are ignored.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.wake(now);
        match event {
            Event::Joined { link, join, source } => self.joined(link, *join, source, now, &mut effects),
            Event::Standing { link, standing } => {
                if let Some(node) = self.hear(link, now) {
                    self.standing(node, standing, now, &mut effects);
                }
            }
            Event::Beat { link, sent } => {
                if self.hear(link, now).is_some() && !self.has_moved() {
                    effects.push(Effect::Send { links: vec![link], message: ToAgent::Beat { sent } });
                }
            }
            Event::Bye { link } => {
                if let Some(node) = self.hear(link, now) {
                    self.nodes[node].bye = true;
                }
            }
            Event::Gone { link } => {
                if let Some(node) = self.hear(link, now) {
                    self.leave(node, Loss::Killed, now, &mut effects);
                }
            }
            Event::Closed { link } => self.closed(link, now, &mut effects),
            Event::Vanished { launch } => {
                if let Some(node) = self.missed(launch) {
                    self.leave(node, Loss::Vanished { after: REFUSED }, now, &mut effects);
                }
            }
            Event::TurnedAway { address, answer } | Event::Probed { address, answer } => self.answered(address, answer),
            Event::Scaled { min, max } => self.scaled(min, max),
            Event::Fenced(how) => self.resign(how, now, &mut effects),
            // If it had joined, it has said so.
            Event::Deserted if self.nodes.iter().any(|node| node.join.launch == self.options.launch) => {}
            Event::Deserted => self.resign(Loss::Left, now, &mut effects),
            Event::Tick => {}
        }
        self.watch(now, &mut effects);
        self.advance(now, &mut effects);
        effects.extend(self.spares());
        effects
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// True until the first start: nodes may still come and go. In an elastic job, before each start.
    fn is_forming(&self) -> bool {
        matches!(self.phase, Phase::Gathering { .. }) && (self.attempt == FIRST_ATTEMPT || self.is_elastic())
    }

    /// True for the connection of a node that was admitted, or will be when the node beside the coordinator is here.
    pub fn has_joined(&self, link: Link) -> bool {
        self.by_link(link).is_some() || self.early.iter().any(|(early, ..)| *early == link)
    }

    fn by_link(&self, link: Link) -> Option<usize> {
        self.nodes.iter().position(|node| node.link == Some(link))
    }

    fn hear(&mut self, link: Link, now: Timestamp) -> Option<usize> {
        let node = self.by_link(link)?;
        self.nodes[node].heard = now;
        Some(node)
    }

    fn name(&self, node: usize) -> NodeName {
        let join = &self.nodes[node].join;
        NodeName { node: self.place(node), address: join.address, host: join.host.clone() }
    }

    /// The number of a node; before the start, as far as it is known.
    fn place(&self, node: usize) -> u32 {
        if let Some(place) = self.order.iter().position(|other| *other == node) {
            return place as u32;
        }
        match &self.options.expects {
            Expects::List(list) => list.iter().position(|address| *address == self.nodes[node].join.address),
            Expects::Count { .. } | Expects::Range { .. } => Some(node),
        }
        .unwrap_or(node) as u32
    }

    fn links(&self) -> Vec<Link> {
        self.nodes.iter().filter_map(|node| node.link).collect()
    }

    /// Sends it to the nodes that take part in the current attempt; between two attempts to all.
    fn send_members(&self, message: ToAgent, effects: &mut Vec<Effect>) {
        let is_between = matches!(self.phase, Phase::Gathering { .. });
        let members = self.nodes.iter().filter(|node| node.is_member || is_between);
        let links: Vec<Link> = members.filter_map(|node| node.link).collect();
        if !links.is_empty() {
            effects.push(Effect::Send { links, message });
        }
    }

    fn send_all(&self, message: ToAgent, effects: &mut Vec<Effect>) {
        let links = self.links();
        if !links.is_empty() {
            effects.push(Effect::Send { links, message });
        }
    }

    fn standing(&mut self, node: usize, standing: Standing, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.nodes[node].lost.is_some() {
            return;
        }
        if self.is_elastic() && self.guest_stands(node, &standing, now, effects) {
            return;
        }
        // Reports about older attempts are no longer needed.
        if standing.attempt != self.attempt {
            return;
        }
        let bad = match &standing.stage {
            Stage::Failed { .. } => true,
            Stage::Told(ends) => !ends.is_empty(),
            _ => false,
        };
        if bad && self.nodes[node].turn.is_none() {
            self.nodes[node].turn = Some(self.turns);
            self.turns += 1;
        }
        if let Stage::Ready(offer) = &standing.stage {
            (self.nodes[node].offer, self.nodes[node].attempt) = (Some(offer.clone()), standing.attempt);
        }
        if let Stage::Told(ends) = &standing.stage {
            self.nodes[node].ends.clone_from(ends);
        }
        let stage = standing.stage;
        let place = &mut self.nodes[node];
        self.servers.pending |= standing.listens && !place.listens;
        place.listens |= standing.listens;
        if let Stage::Interrupted { .. } = stage {
            place.interrupted = true;
        }
        // The ends of its ranks are still awaited.
        let hurries = matches!((&place.stage, &stage), (Some(Stage::Failed { .. }), Stage::Interrupted { .. }));
        if !hurries {
            place.stage = Some(stage.clone());
        }
        match stage {
            Stage::Ready(_) | Stage::Running | Stage::Hung => {}
            Stage::Serving | Stage::Succeeded => self.ended = Some(now),
            Stage::Failed { .. } | Stage::Told(_) => {
                let waited = matches!(stage, Stage::Failed { waited: true });
                let why = Why::RankFailed { node: self.name(node), waited };
                self.stop(why, now, effects);
            }
            Stage::Interrupted { signal, kill } => {
                let why = Why::Interrupted { node: self.name(node), signal, kill };
                self.stop(why, now, effects);
            }
            Stage::Unable { why } => {
                let why = Why::Unable { node: self.name(node), why };
                self.stop(why, now, effects);
            }
        }
    }

    /// Stops all nodes; the first reason stands.
    fn stop(&mut self, why: Why, now: Timestamp, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Gathering { .. } | Phase::Running { .. }) {
            self.send_members(ToAgent::Stop(Stop { attempt: self.attempt, why: why.clone() }), effects);
            self.phase = Phase::Stopping { why, since: now };
        }
    }

    fn closed(&mut self, link: Link, now: Timestamp, effects: &mut Vec<Effect>) {
        self.early.retain(|(other, ..)| *other != link);
        let Some(node) = self.by_link(link) else { return };
        if self.is_guest(node) {
            return self.forget(node);
        }
        let node = &mut self.nodes[node];
        node.link = None;
        node.down.get_or_insert(now);
        let launch = node.join.launch;
        if self.is_elastic() && self.misses(launch) {
            effects.push(Effect::Watch { launch });
        }
    }

    /// True if the connection of this node broke, and it is neither back nor lost.
    pub fn misses(&self, launch: u64) -> bool {
        !matches!(self.phase, Phase::Over) && self.missed(launch).is_some()
    }

    fn missed(&self, launch: u64) -> Option<usize> {
        let is_missed = |node: &Node| node.link.is_none() && node.lost.is_none() && !node.bye;
        self.nodes.iter().position(|node| node.join.launch == launch && is_missed(node))
    }

    /// Before the start, a node that leaves is missing again.
    fn forget(&mut self, node: usize) {
        let address = self.nodes.remove(node).join.address;
        self.order.iter_mut().filter(|place| **place > node).for_each(|place| *place -= 1);
        self.answered(address, Answer::Left);
        self.news.pending = true;
    }

    /// Removes a node for good.
    fn leave(&mut self, node: usize, how: Loss, now: Timestamp, effects: &mut Vec<Effect>) {
        let link = self.nodes[node].link.take();
        effects.extend(link.map(|link| Effect::Close { link }));
        // The job cannot form without the node beside the coordinator.
        let is_guest = self.is_guest(node) || self.is_elastic() && self.is_forming();
        if is_guest && !self.is_own(node) {
            return self.forget(node);
        }
        let place = &mut self.nodes[node];
        place.lost.get_or_insert(how);
        place.down.get_or_insert(now);
        let why = Why::NodeLost { node: self.name(node), how };
        self.stop(why, now, effects);
    }

    /// Acts on the state of all nodes, whatever the event was.
    fn advance(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        match &self.phase {
            Phase::Gathering { since } => {
                let since = *since;
                if let Some(members) = self.ready(now) {
                    return self.start(members, effects);
                }
                if now >= since + self.options.limits.rendezvous {
                    let why = Why::TimeUp { waiting: self.waiting() };
                    self.end(Outcome::Failed, Some(why), None, now, effects);
                }
            }
            Phase::Running { .. } => {
                // The decision stops nodes that only serve.
                let is_done = |node: &Node| matches!(node.stage, Some(Stage::Serving | Stage::Succeeded));
                if self.order.iter().all(|node| is_done(&self.nodes[*node])) {
                    return self.end(Outcome::Succeeded, None, None, now, effects);
                }
                if self.is_hung(now) {
                    return self.stop(Why::Hung, now, effects);
                }
                if let Some(why) = self.misfit() {
                    return self.stop(why, now, effects);
                }
                if let Some(nodes) = self.joining(now) {
                    return self.stop(Why::Joined { nodes }, now, effects);
                }
                self.tell_servers(now, effects);
            }
            Phase::Stopping { why, since } => {
                let in_time = now < *since + self.options.settle + self.patience();
                match why {
                    Why::RankFailed { .. }
                    | Why::NodeLost { .. }
                    | Why::Joined { .. }
                    | Why::Scaled { .. }
                    | Why::Hung => {
                        if !(in_time && self.nodes.iter().any(Node::has_more_to_tell)) {
                            self.judge(why.clone(), now, effects);
                        }
                    }
                    // No rank caused it.
                    Why::Interrupted { signal, .. } => {
                        let outcome = if signal.is_some() { Outcome::Interrupted } else { Outcome::Stopped };
                        self.end(outcome, Some(why.clone()), None, now, effects);
                    }
                    _ => self.end(Outcome::Failed, Some(why.clone()), None, now, effects),
                }
            }
            Phase::Ended { since, decision } => {
                // Waits for nodes that are briefly disconnected, and for nodes that have yet to join.
                let goodbye = |node: &Node| node.bye || node.lost.is_some();
                let expected = self.options.expects.nodes();
                let came = !decision.is_refusal() || self.nodes.len() + self.misfits >= expected;
                if (came && self.nodes.iter().all(goodbye)) || now >= *since + GOODBYE {
                    self.phase = Phase::Over;
                    effects.push(Effect::Finish);
                }
            }
            Phase::Over => {}
        }
    }

    /// True if a node is without progress, and no other node runs trainers that are not. Whichever came last.
    fn is_hung(&self, now: Timestamp) -> bool {
        let is_still = |node: &Node| {
            node.lost.is_none() && matches!(node.stage, Some(Stage::Hung | Stage::Serving | Stage::Succeeded))
        };
        let mut members = self.order.iter().map(|node| &self.nodes[*node]);
        members.clone().any(|node| matches!(node.stage, Some(Stage::Hung)))
            && members.all(is_still)
            && self.ended.is_none_or(|ended| now >= ended + self.options.hang.unwrap_or_default().max(RECHECK))
    }

    /// Reports which nodes have servers that do not listen yet: at once when none is left, before that at intervals.
    fn tell_servers(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.servers.pending {
            return;
        }
        let missing = self.deaf();
        if missing.is_empty() || self.servers.last.is_none_or(|last| now >= last + NEWS) {
            self.servers = News { pending: false, last: Some(now) };
            self.send_members(ToAgent::Servers(Servers { attempt: self.attempt, missing }), effects);
        }
    }

    /// The nodes with servers that do not listen yet.
    fn deaf(&self) -> Vec<u32> {
        let order = (0..).zip(&self.order).filter(|(_, node)| !self.nodes[**node].listens);
        order.filter(|(_, node)| self.nodes[**node].has_servers()).map(|(place, _)| place).collect()
    }

    /// The members of the next attempt in their order, if it can start.
    fn ready(&mut self, now: Timestamp) -> Option<Vec<usize>> {
        if self.is_elastic() {
            return self.ready_members(now);
        }
        let is_complete = self.nodes.len() == self.options.expects.nodes() && self.nodes.iter().all(Node::is_ready);
        is_complete.then(|| if self.order.is_empty() { self.sorted() } else { self.order.clone() })
    }

    fn start(&mut self, members: Vec<usize>, effects: &mut Vec<Effect>) {
        self.order = members;
        // Nodes that come from another coordinator may have seen later attempts than this one.
        self.attempt = self.order.iter().map(|node| self.nodes[*node].attempt).fold(self.attempt, u32::max);
        let shares = self.order.iter().map(|node| {
            let Node { join, offer, .. } = &self.nodes[*node];
            let (processes, kind) =
                offer.as_ref().map_or((Vec::new(), None), |offer| (offer.processes.clone(), offer.device_kind));
            NodeShare {
                launch: join.launch,
                address: join.address,
                host: join.host.clone(),
                processes,
                device_kind: kind,
            }
        });
        let Some((first, Some(offer))) = self.order.first().map(|n| (&self.nodes[*n].join, &self.nodes[*n].offer))
        else {
            return;
        };
        // In a parameter-server job the first node with servers hosts it.
        let mut serving = self.order.iter().map(|node| &self.nodes[*node]).filter(|node| node.has_servers());
        let paddle = serving.find_map(|Node { join, offer, .. }| {
            let offer = offer.as_ref()?;
            Some(Endpoint { address: join.address, port: offer.stores[0] })
        });
        let store = |port| Endpoint { address: first.address, port };
        let start = Start {
            attempt: self.attempt,
            nodes: shares.collect(),
            paddle_store: paddle.unwrap_or_else(|| store(offer.stores[0])),
            torch_store: match &self.options.succession {
                Some(Succession { at, has_store: true, .. }) => *at,
                _ => store(offer.stores[1]),
            },
            restarts: Some(self.options.restart.max),
            last: self.members.last,
            commands: self.commands(),
            you: 0,
        };
        self.send_all(ToAgent::Start(start.clone()), effects);
        for node in &self.order {
            let place = &mut self.nodes[*node];
            (place.stage, place.is_member) = (Some(Stage::Running), true);
        }
        self.members.world = start.nodes.iter().map(|node| node.processes.len() as u32).sum();
        self.members.started = self.order.iter().map(|node| self.nodes[*node].join.launch).collect();
        self.phase = Phase::Running { start: Box::new(start) };
    }

    /// The order of the nodes: by list, by `--rank`, by address, or the coordinator's own first and the rest as they
    /// joined.
    fn sorted(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        let join = |node: &usize| &self.nodes[*node].join;
        match &self.options.expects {
            Expects::List(list) => {
                order.sort_by_key(|node| list.iter().position(|address| *address == join(node).address));
            }
            Expects::Count { .. } if self.nodes.iter().all(|node| node.join.rank.is_some()) => {
                order.sort_by_key(|node| join(node).rank);
            }
            // Nodes on one host share an address: those stay in the order they joined.
            Expects::Count { sort_ip: true, .. } => order.sort_by_key(|node| join(node).address),
            Expects::Count { .. } | Expects::Range { .. } => {
                order.sort_by_key(|node| join(node).launch != self.options.launch);
            }
        }
        order
    }
}

impl Node {
    fn is_ready(&self) -> bool {
        matches!(self.stage, Some(Stage::Ready(_))) && self.link.is_some()
    }

    fn has_servers(&self) -> bool {
        let mut processes = self.offer.iter().flat_map(|offer| &offer.processes);
        processes.any(|process| process.part == Part::Server)
    }

    /// True if another start would fail in the same way. A wait that failed may succeed next time.
    fn could_not_start(&self) -> bool {
        matches!(self.stage, Some(Stage::Unable { .. }))
            || self.ends.iter().any(|told| matches!(told.end.exit, Exit::Spawn(_)))
    }

    /// True if its ranks were running and it has not reported their ends. The report of a failed node is worth waiting
    /// for even while its connection is down.
    fn has_more_to_tell(&self) -> bool {
        match self.stage {
            // Ranks that have ended with 0 may have done so too early.
            Some(Stage::Running | Stage::Serving | Stage::Hung | Stage::Succeeded) => {
                self.link.is_some() && self.lost.is_none()
            }
            Some(Stage::Failed { .. }) => self.lost.is_none(),
            _ => false,
        }
    }
}
