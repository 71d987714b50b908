//! The job's side of the round: who is here, when to start, when to stop, and how it ends, for all nodes alike.
//!
//! ```text
//! Gathering ─► Running ─► Stopping ─► Ended ─► over
//!     ▲                                 │
//!     └──────────── restart ◄───────────┘
//! ```

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use super::limits::{GOODBYE, Limits, NEWS, PROBE, TELL, TELL_WHY};
use super::messages::{
    Answer, Decision, Expects, Join, Loss, Missing, NodeName, NodeShare, Offer, RankPlace, Refusal, Restart, Stage,
    Standing, Start, Stop, ToAgent, Told, Waiting, Why,
};
use crate::diagnose;
use crate::facts::{Finding, Outcome, Verdict, Weight};
use crate::machine::restart;
use crate::model::{self, Endpoint, Exit, Timestamp};

/// A connection, as the runtime counts them; never used twice.
pub type Link = u64;

/// What the coordinator goes by: its own node's command line.
#[derive(Debug, Clone)]
pub struct Options {
    pub expects: Expects,
    /// Of the agent beside the coordinator, which is the first node where nothing else decides.
    pub launch: u64,
    pub uneven: bool,
    pub limits: Limits,
    /// How long ends are collected after a failure.
    pub settle: Duration,
    pub restart: model::Restart,
    /// For the jitter of back-offs.
    pub seed: u64,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Joined {
        link: Link,
        join: Box<Join>,
    },
    Standing {
        link: Link,
        standing: Standing,
    },
    Beat {
        link: Link,
    },
    Bye {
        link: Link,
    },
    /// A guardian told that its front is dead.
    Gone {
        link: Link,
    },
    Closed {
        link: Link,
    },
    /// Somebody came from there and did not get as far as joining.
    TurnedAway {
        address: IpAddr,
        answer: Answer,
    },
    /// The answer to [`Effect::Probe`].
    Probed {
        address: IpAddr,
        answer: Answer,
    },
    /// The time of [`Coordinator::deadline`] has come.
    Tick,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The same to all of them.
    Send { links: Vec<Link>, message: ToAgent },
    /// After what was sent before.
    Close { link: Link },
    /// Try how these addresses answer.
    Probe { addresses: Vec<IpAddr> },
    /// For the console beside the coordinator: this node was not taken.
    Refused { address: IpAddr, host: String, refusal: Refusal },
    /// Nobody is waited for any more.
    Finish,
}

/// The state of the round.
#[derive(Debug, Clone)]
pub struct Coordinator {
    options: Options,
    nodes: Vec<Node>,
    /// By place in the job, once it has started; indices of `nodes`.
    order: Vec<usize>,
    attempt: u32,
    phase: Phase,
    /// How missing addresses answer, as far as somebody has asked.
    answers: Vec<(IpAddr, Answer)>,
    /// Came before the node beside us.
    early: Vec<(Link, Join)>,
    restarts: Vec<Timestamp>,
    /// What ended the attempt before this one, for nodes that missed it.
    last: Option<Box<Decision>>,
    /// How many nodes have told of a bad end in this attempt.
    turns: u64,
    news: News,
    /// The last step.
    stepped: Timestamp,
    next_beat: Timestamp,
    next_probe: Timestamp,
    suspects: Vec<u32>,
}

/// What has changed since all were told who is there.
#[derive(Debug, Clone, Copy)]
struct News {
    pending: bool,
    last: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct Node {
    join: Join,
    link: Option<Link>,
    heard: Timestamp,
    /// Since when it has no connection.
    down: Option<Timestamp>,
    /// In the current attempt; `None` until it says something about it.
    stage: Option<Stage>,
    offer: Option<Offer>,
    /// How its ranks ended, once it has told that.
    ends: Vec<Told>,
    lost: Option<Loss>,
    /// Somebody asked for the end there: no other attempt is wanted.
    interrupted: bool,
    /// In which order nodes told of bad ends.
    turn: Option<u64>,
    bye: bool,
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
        Self {
            options,
            nodes: Vec::new(),
            order: Vec::new(),
            attempt: 0,
            phase: Phase::Gathering { since: now },
            answers: Vec::new(),
            early: Vec::new(),
            restarts: Vec::new(),
            last: None,
            turns: 0,
            news: News { pending: false, last: None },
            stepped: now,
            next_beat: now,
            next_probe: now + PROBE,
            suspects: Vec::new(),
        }
    }

    /// The transition function: synchronous, pure but for `self`, total. A link that nobody knows says nothing.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.wake(now);
        match event {
            Event::Joined { link, join } => self.joined(link, *join, now, &mut effects),
            Event::Standing { link, standing } => {
                if let Some(node) = self.hear(link, now) {
                    self.standing(node, standing, now, &mut effects);
                }
            }
            Event::Beat { link } => {
                self.hear(link, now);
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
            Event::Closed { link } => self.closed(link, now),
            Event::TurnedAway { address, answer } | Event::Probed { address, answer } => self.answered(address, answer),
            Event::Tick => {}
        }
        self.watch(now, &mut effects);
        self.advance(now, &mut effects);
        effects
    }

    /// Steps come at least with every beat. Where they did not, it was us who slept: nobody can be called silent for
    /// that time.
    fn wake(&mut self, now: Timestamp) {
        let slept = now.since(self.stepped);
        self.stepped = now;
        if slept >= self.options.limits.suspect() {
            for node in &mut self.nodes {
                node.heard = (node.heard + slept).min(now);
                node.down = node.down.map(|down| (down + slept).min(now));
            }
        }
    }

    /// When [`Event::Tick`] is due at the latest.
    pub fn deadline(&self) -> Option<Timestamp> {
        let limits = &self.options.limits;
        // Once for each event: room for all of them at once.
        let mut times = Vec::with_capacity(self.nodes.len() + 4);
        times.push(self.next_beat);
        match &self.phase {
            Phase::Over => return None,
            Phase::Gathering { since } => {
                times.push(*since + limits.rendezvous);
                if self.is_forming() {
                    times.push(self.next_probe);
                    if let (true, Some(last)) = (self.news.pending, self.news.last) {
                        times.push(last + NEWS);
                    }
                }
            }
            Phase::Running { .. } => {}
            Phase::Stopping { since, .. } => times.push(*since + self.options.settle + self.patience()),
            // Who is lost by now no longer matters.
            Phase::Ended { since, .. } => return Some(self.next_beat.min(*since + GOODBYE)),
        }
        for node in self.nodes.iter().filter(|node| node.lost.is_none()) {
            match node.down {
                Some(down) => times.push(down + limits.reconnect),
                None => times.push(node.heard + limits.silence),
            }
        }
        times.into_iter().min()
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Nodes still come and go: nothing has been started yet.
    fn is_forming(&self) -> bool {
        self.attempt == 0 && matches!(self.phase, Phase::Gathering { .. })
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

    /// Its number, as far as that is known before the start.
    fn place(&self, node: usize) -> u32 {
        if let Some(place) = self.order.iter().position(|other| *other == node) {
            return place as u32;
        }
        match &self.options.expects {
            Expects::List(list) => list.iter().position(|address| *address == self.nodes[node].join.address),
            Expects::Count { .. } => Some(node),
        }
        .unwrap_or(node) as u32
    }

    fn links(&self) -> Vec<Link> {
        self.nodes.iter().filter_map(|node| node.link).collect()
    }

    fn send_all(&self, message: ToAgent, effects: &mut Vec<Effect>) {
        let links = self.links();
        if !links.is_empty() {
            effects.push(Effect::Send { links, message });
        }
    }

    fn joined(&mut self, link: Link, join: Join, now: Timestamp, effects: &mut Vec<Effect>) {
        if let Some(node) = self.nodes.iter().position(|node| node.join.launch == join.launch) {
            return self.rejoined(node, link, join, now, effects);
        }
        // The node beside us is the first to take its place, whoever is quicker.
        let is_own = join.launch == self.options.launch;
        if self.is_forming() && !is_own && self.nodes.is_empty() {
            if self.early.len() < self.options.expects.nodes() {
                self.early.push((link, join));
            } else {
                effects.push(Effect::Close { link });
            }
            return;
        }
        if let Err(refusal) = self.admit(&join) {
            let answer = Answer::TurnedAway(Box::new(refusal.clone()));
            self.answered(join.address, answer);
            // On our own console first: the other may be gone as soon as it knows.
            effects.push(Effect::Refused { address: join.address, host: join.host, refusal: refusal.clone() });
            effects.push(Effect::Send { links: vec![link], message: ToAgent::Refused(refusal) });
            effects.push(Effect::Close { link });
            return;
        }
        self.answers.retain(|(address, _)| *address != join.address);
        let standing = join.standing.clone();
        self.nodes.push(Node {
            join,
            link: Some(link),
            heard: now,
            down: None,
            stage: None,
            offer: None,
            ends: Vec::new(),
            lost: None,
            interrupted: false,
            turn: None,
            bye: false,
        });
        effects.push(Effect::Send { links: vec![link], message: ToAgent::Welcome });
        self.news.pending = true;
        self.standing(self.nodes.len() - 1, standing, now, effects);
        for (link, join) in std::mem::take(&mut self.early) {
            self.joined(link, join, now, effects);
        }
    }

    /// A node that was here before has a new connection: it hears again what it may have missed.
    fn rejoined(&mut self, node: usize, link: Link, join: Join, now: Timestamp, effects: &mut Vec<Effect>) {
        let place = &mut self.nodes[node];
        if let Some(old) = place.link.replace(link).filter(|old| *old != link) {
            effects.push(Effect::Close { link: old });
        }
        (place.heard, place.down) = (now, None);
        effects.push(Effect::Send { links: vec![link], message: ToAgent::Welcome });
        // It may have missed the end of the attempt before this one.
        if let Some(last) = self.last.clone().filter(|last| last.attempt == join.standing.attempt) {
            effects.push(Effect::Send { links: vec![link], message: ToAgent::Decision(last) });
        }
        let message = match &self.phase {
            Phase::Gathering { .. } => Some(ToAgent::Waiting(self.waiting())),
            Phase::Running { start } => Some(ToAgent::Start((**start).clone())),
            Phase::Stopping { why, .. } => Some(ToAgent::Stop(Stop { attempt: self.attempt, why: why.clone() })),
            Phase::Ended { decision, .. } => Some(ToAgent::Decision(decision.clone())),
            Phase::Over => None,
        };
        if let Some(message) = message {
            effects.push(Effect::Send { links: vec![link], message });
        }
        // It has just been told to start.
        let starts = matches!((&self.phase, &join.standing.stage), (Phase::Running { .. }, Stage::Ready(_)));
        if !starts {
            self.standing(node, join.standing, now, effects);
        }
    }

    /// Whether a node that was not here before belongs here.
    fn admit(&self, join: &Join) -> Result<(), Refusal> {
        if !self.is_forming() {
            return Err(Refusal::TooLate);
        }
        if join.expects != self.options.expects {
            let (ours, theirs) = (self.options.expects.clone(), join.expects.clone());
            return Err(Refusal::OtherNodes { ours, theirs });
        }
        let taken =
            |by: usize| Refusal::Taken { by: self.name(by), same_command: self.nodes[by].join.command == join.command };
        match &self.options.expects {
            Expects::List(list) => {
                if !list.contains(&join.address) {
                    return Err(Refusal::NotListed { address: join.address, list: list.clone() });
                }
                if let Some(by) = self.nodes.iter().position(|node| node.join.address == join.address) {
                    return Err(taken(by));
                }
            }
            Expects::Count { nodes, .. } => {
                if self.nodes.len() >= *nodes as usize {
                    return Err(Refusal::Full { nodes: *nodes });
                }
                if self.nodes.iter().any(|node| node.join.rank.is_some() != join.rank.is_some()) {
                    return Err(Refusal::MixedRanks);
                }
                if let Some(rank) = join.rank {
                    let by = self.nodes.iter().position(|node| node.join.rank == Some(rank));
                    if rank >= *nodes || by.is_some() {
                        return Err(Refusal::Rank { rank, nodes: *nodes, by: by.map(|by| self.name(by)) });
                    }
                }
            }
        }
        // Who cannot start says why, and that matters more than how many it would have been.
        let processes = |join: &Join| match &join.standing.stage {
            Stage::Ready(offer) => Some(offer.processes.len() as u32),
            _ => None,
        };
        if let (false, Some(first)) = (self.options.uneven, self.nodes.first())
            && let (Some(ours), Some(theirs)) = (processes(&first.join), processes(join))
            && ours != theirs
        {
            return Err(Refusal::Processes { ours, theirs, first: self.name(0) });
        }
        Ok(())
    }

    fn standing(&mut self, node: usize, standing: Standing, now: Timestamp, effects: &mut Vec<Effect>) {
        // What an older attempt still says is no longer asked for.
        if standing.attempt != self.attempt || self.nodes[node].lost.is_some() {
            return;
        }
        let bad = match &standing.stage {
            Stage::Failed => true,
            Stage::Told(ends) => !ends.is_empty(),
            _ => false,
        };
        if bad && self.nodes[node].turn.is_none() {
            self.nodes[node].turn = Some(self.turns);
            self.turns += 1;
        }
        if let Stage::Ready(offer) = &standing.stage {
            self.nodes[node].offer = Some(offer.clone());
        }
        if let Stage::Told(ends) = &standing.stage {
            self.nodes[node].ends.clone_from(ends);
        }
        let stage = standing.stage;
        let place = &mut self.nodes[node];
        if let Stage::Interrupted { .. } = stage {
            place.interrupted = true;
        }
        // What it has to tell about its ranks is still waited for.
        let hurries = matches!((&place.stage, &stage), (Some(Stage::Failed), Stage::Interrupted { .. }));
        if !hurries {
            place.stage = Some(stage.clone());
        }
        match stage {
            Stage::Ready(_) | Stage::Running | Stage::Succeeded => {}
            Stage::Failed | Stage::Told(_) => {
                let why = Why::RankFailed { node: self.name(node) };
                self.stop(why, now, effects);
            }
            Stage::Interrupted { signal } => {
                let why = Why::Interrupted { node: self.name(node), signal };
                self.stop(why, now, effects);
            }
            Stage::Unable { why } => {
                let why = Why::Unable { node: self.name(node), why };
                self.stop(why, now, effects);
            }
        }
    }

    /// All nodes stop what they have started; the first reason stands.
    fn stop(&mut self, why: Why, now: Timestamp, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Gathering { .. } | Phase::Running { .. }) {
            self.send_all(ToAgent::Stop(Stop { attempt: self.attempt, why: why.clone() }), effects);
            self.phase = Phase::Stopping { why, since: now };
        }
    }

    fn closed(&mut self, link: Link, now: Timestamp) {
        self.early.retain(|(other, _)| *other != link);
        let Some(node) = self.by_link(link) else { return };
        if self.is_forming() {
            return self.forget(node);
        }
        let node = &mut self.nodes[node];
        node.link = None;
        node.down.get_or_insert(now);
    }

    /// Before the start a node that goes is simply missing again.
    fn forget(&mut self, node: usize) {
        let address = self.nodes.remove(node).join.address;
        self.answered(address, Answer::Left);
        self.news.pending = true;
    }

    /// A node is gone for good.
    fn leave(&mut self, node: usize, how: Loss, now: Timestamp, effects: &mut Vec<Effect>) {
        let link = self.nodes[node].link.take();
        effects.extend(link.map(|link| Effect::Close { link }));
        // Without the node beside the coordinator there is nothing to wait for.
        if self.is_forming() && self.nodes[node].join.launch != self.options.launch {
            return self.forget(node);
        }
        let place = &mut self.nodes[node];
        place.lost.get_or_insert(how);
        place.down.get_or_insert(now);
        let why = Why::NodeLost { node: self.name(node), how };
        self.stop(why, now, effects);
    }

    fn answered(&mut self, address: IpAddr, answer: Answer) {
        if !self.is_forming() {
            return;
        }
        let Some(known) = self.answers.iter().position(|(other, _)| *other == address) else {
            // Junk from anywhere must not fill the list.
            if self.answers.len() < 1024 {
                self.answers.push((address, answer));
                self.news.pending = true;
            }
            return;
        };
        // Who was refused says more about it than who does not listen there.
        let old = &self.answers[known].1;
        let says_why = matches!(old, Answer::TurnedAway(_) | Answer::OtherToken | Answer::OtherVersion { .. });
        let says_less = matches!(answer, Answer::Refused | Answer::Silent | Answer::NoRoute | Answer::Left);
        if *old == answer || (says_why && says_less) {
            return;
        }
        self.answers[known].1 = answer;
        self.news.pending = true;
    }

    fn waiting(&self) -> Waiting {
        let answer = |address: &IpAddr| {
            let known = self.answers.iter().find(|(other, _)| other == address);
            known.map_or(Answer::Unknown, |(_, answer)| answer.clone())
        };
        let missing = match &self.options.expects {
            Expects::List(list) => {
                self.absent(list).into_iter().map(|address| Missing { answer: answer(&address), address }).collect()
            }
            // Nobody knows where they are; who was turned away is worth telling.
            Expects::Count { .. } => self
                .answers
                .iter()
                .map(|(address, answer)| Missing { address: *address, answer: answer.clone() })
                .collect(),
        };
        Waiting { joined: self.nodes.len() as u32, of: self.options.expects.nodes() as u32, missing }
    }

    fn absent(&self, list: &[IpAddr]) -> Vec<IpAddr> {
        let here: HashSet<IpAddr> = self.nodes.iter().map(|node| node.join.address).collect();
        list.iter().copied().filter(|address| !here.contains(address)).collect()
    }

    /// What time brings: beats, suspicion, loss, news.
    fn watch(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        if now >= self.next_beat {
            self.next_beat = now + self.options.limits.beat();
            self.send_all(ToAgent::Beat, effects);
        }
        self.lose(now, effects);
        self.suspect(now, effects);
        if !self.is_forming() {
            return;
        }
        if self.news.pending && self.news.last.is_none_or(|last| now >= last + NEWS) {
            self.news = News { pending: false, last: Some(now) };
            self.send_all(ToAgent::Waiting(self.waiting()), effects);
        }
        if now >= self.next_probe {
            self.next_probe = now + PROBE;
            if let Expects::List(list) = &self.options.expects {
                let addresses = self.absent(list);
                if !addresses.is_empty() {
                    effects.push(Effect::Probe { addresses });
                }
            }
        }
    }

    fn lose(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Ended { .. }) {
            return;
        }
        let limits = self.options.limits;
        let gone = |node: &Node| {
            if node.lost.is_some() {
                return None;
            }
            match node.down {
                Some(down) => {
                    (now >= down + limits.reconnect).then_some(Loss::Disconnected { after: limits.reconnect })
                }
                None => (now >= node.heard + limits.silence).then_some(Loss::Silent { after: limits.silence }),
            }
        };
        while let Some((node, how)) = self.nodes.iter().enumerate().find_map(|(n, node)| Some((n, gone(node)?))) {
            self.leave(node, how, now, effects);
        }
    }

    fn suspect(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let limit = self.options.limits.suspect();
        let quiet = |node: &Node| node.lost.is_none() && (node.down.is_some() || now >= node.heard + limit);
        if self.suspects.is_empty() && !self.nodes.iter().any(quiet) {
            return;
        }
        let suspects: Vec<usize> = (0..self.nodes.len()).filter(|node| quiet(&self.nodes[*node])).collect();
        let places: Vec<u32> = suspects.iter().map(|node| self.place(*node)).collect();
        if places != self.suspects && !self.is_forming() && !matches!(self.phase, Phase::Ended { .. }) {
            self.suspects = places;
            let nodes = suspects.into_iter().map(|node| self.name(node)).collect();
            self.send_all(ToAgent::Suspects { nodes }, effects);
        }
    }

    /// What follows from where everybody stands, whatever the event was.
    fn advance(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        match &self.phase {
            Phase::Gathering { since } => {
                if self.all_ready() {
                    return self.start(effects);
                }
                if now >= *since + self.options.limits.rendezvous {
                    let why = Why::TimeUp { waiting: self.waiting() };
                    self.end(Outcome::Failed, Some(why), None, now, effects);
                }
            }
            Phase::Running { .. } => {
                if self.nodes.iter().all(|node| node.stage == Some(Stage::Succeeded)) {
                    self.end(Outcome::Succeeded, None, None, now, effects);
                }
            }
            Phase::Stopping { why, since } => {
                let in_time = now < *since + self.options.settle + self.patience();
                match why {
                    Why::RankFailed { .. } | Why::NodeLost { .. } => {
                        if !(in_time && self.nodes.iter().any(Node::has_more_to_tell)) {
                            self.judge(why.clone(), now, effects);
                        }
                    }
                    // Nobody is to blame.
                    Why::Interrupted { .. } => {
                        self.end(Outcome::Interrupted, Some(why.clone()), None, now, effects);
                    }
                    _ => self.end(Outcome::Failed, Some(why.clone()), None, now, effects),
                }
            }
            Phase::Ended { since, .. } => {
                // Who is away for a moment is to hear it too.
                let goodbye = |node: &Node| node.bye || node.lost.is_some();
                if self.nodes.iter().all(goodbye) || now >= *since + GOODBYE {
                    self.phase = Phase::Over;
                    effects.push(Effect::Finish);
                }
            }
            Phase::Over => {}
        }
    }

    /// How long ends are waited for after the settle window. Whoever has said that a rank of its own failed knows why, and
    /// a busy host may need a while to say so.
    fn patience(&self) -> Duration {
        let knows = |node: &Node| node.stage == Some(Stage::Failed) && node.has_more_to_tell();
        if self.nodes.iter().any(knows) { TELL_WHY } else { TELL }
    }

    fn all_ready(&self) -> bool {
        self.nodes.len() == self.options.expects.nodes()
            && self.nodes.iter().all(|node| matches!(node.stage, Some(Stage::Ready(_))) && node.link.is_some())
    }

    fn start(&mut self, effects: &mut Vec<Effect>) {
        if self.order.is_empty() {
            self.order = self.sorted();
        }
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
        let store = |port| Endpoint { address: first.address, port };
        let start = Start {
            attempt: self.attempt,
            nodes: shares.collect(),
            paddle_store: store(offer.stores[0]),
            torch_store: store(offer.stores[1]),
            you: 0,
        };
        self.send_all(ToAgent::Start(start.clone()), effects);
        for node in &mut self.nodes {
            node.stage = Some(Stage::Running);
        }
        self.phase = Phase::Running { start: Box::new(start) };
    }

    /// The order of the nodes: the list's, `--rank`'s, the addresses', or ours first and the others as they came.
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
            // Nodes on one host have one address: then as they came.
            Expects::Count { sort_ip: true, .. } => order.sort_by_key(|node| join(node).address),
            Expects::Count { .. } => order.sort_by_key(|node| join(node).launch != self.options.launch),
        }
        order
    }

    /// Everything that can be told has been: who was it?
    fn judge(&mut self, why: Why, now: Timestamp, effects: &mut Vec<Effect>) {
        let mut told: Vec<(u64, Told)> = Vec::new();
        for node in &self.nodes {
            if let Some(turn) = node.turn {
                told.extend(node.ends.iter().map(|end| (turn, end.clone())));
            }
        }
        // Within a node the kernel's order, between nodes that of their first word.
        told.sort_by_key(|(turn, told)| (*turn, told.end.order));
        let places: Vec<RankPlace> = told.iter().map(|(_, told)| told.place.clone()).collect();
        let ends =
            told.into_iter().enumerate().map(|(order, (_, told))| diagnose::End { order: order as u64, ..told.end });
        let mut verdict = diagnose::rank(ends.collect());
        let mut why = why;
        if let Some(silent) = self.silent(now)
            && verdict.causes.iter().all(points_elsewhere)
        {
            // Losing a connection is what follows when a node goes, and the node is what went.
            if matches!(why, Why::RankFailed { .. }) {
                let node = &self.nodes[silent];
                let since = node.down.unwrap_or(node.heard);
                let how = node.lost.unwrap_or(match node.down {
                    Some(_) => Loss::Disconnected { after: now.since(since) },
                    None => Loss::Silent { after: now.since(since) },
                });
                why = Why::NodeLost { node: self.name(silent), how };
            }
            verdict = Verdict { causes: Vec::new(), victims: [verdict.causes, verdict.victims].concat() };
        }
        let ranks = |verdict: &Verdict| {
            let all = verdict.causes.iter().chain(&verdict.victims);
            all.filter_map(|finding| finding.subject.rank).map(|rank| rank.0).collect::<Vec<u32>>()
        };
        let shown = ranks(&verdict);
        let places = places.into_iter().filter(|place| shown.contains(&place.rank)).collect();
        self.end(Outcome::Failed, Some(why), Some((verdict, places)), now, effects);
    }

    /// A node that is lost, or of which nothing has been heard for too long to be chance, or that did not tell when all
    /// others did and does not beat either.
    fn silent(&self, now: Timestamp) -> Option<usize> {
        let (limit, beat) = (self.options.limits.suspect(), self.options.limits.beat());
        // Of several the one that has been silent longest.
        let find = |is: &dyn Fn(&Node) -> bool| {
            let found = self.nodes.iter().enumerate().filter(|(_, node)| is(node));
            found.min_by_key(|(_, node)| node.heard).map(|(index, _)| index)
        };
        find(&|node| node.lost.is_some())
            .or_else(|| find(&|node| node.down.is_some()))
            .or_else(|| find(&|node| now >= node.heard + limit))
            .or_else(|| find(&|node| node.has_more_to_tell() && now >= node.heard + beat))
    }

    fn end(
        &mut self,
        outcome: Outcome,
        why: Option<Why>,
        verdict: Option<(Verdict, Vec<RankPlace>)>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let restart = self.restart(outcome, why.as_ref(), now);
        let (verdict, places) = verdict.map_or((None, Vec::new()), |(verdict, places)| (Some(verdict), places));
        let decision = Box::new(Decision { attempt: self.attempt, outcome, why, verdict, places, restart });
        self.send_all(ToAgent::Decision(decision.clone()), effects);
        match restart {
            Some(next) => {
                let policy = self.options.restart;
                self.restarts.retain(|at| restart::counts(&policy, *at, now));
                self.restarts.push(now);
                self.last = Some(decision);
                self.attempt = next.attempt;
                self.turns = 0;
                for node in &mut self.nodes {
                    (node.stage, node.offer, node.turn) = (None, None, None);
                    node.ends.clear();
                }
                self.phase = Phase::Gathering { since: now + next.delay };
            }
            None => self.phase = Phase::Ended { decision, since: now },
        }
    }

    /// The same members start again, if they may and all are there.
    fn restart(&self, outcome: Outcome, why: Option<&Why>, now: Timestamp) -> Option<Restart> {
        let may = outcome == Outcome::Failed
            && matches!(why, Some(Why::RankFailed { .. }))
            && self.nodes.iter().all(|node| node.lost.is_none() && !node.interrupted && !node.could_not_start());
        if !may {
            return None;
        }
        let delay = restart::delay(
            &self.options.restart,
            &self.restarts,
            now,
            self.options.seed.wrapping_add(u64::from(self.attempt)),
        )?;
        Some(Restart { attempt: self.attempt + 1, delay })
    }
}

/// An end that says nothing against its rank once a node is gone: it names a lost peer, or came after our stop.
fn points_elsewhere(finding: &Finding) -> bool {
    finding.weight >= Weight::Possible && finding.exit != Exit::Lost
}

impl Node {
    /// What cannot be started will not start the next time either.
    fn could_not_start(&self) -> bool {
        matches!(self.stage, Some(Stage::Unable { .. }))
            || self.ends.iter().any(|told| matches!(told.end.exit, Exit::Spawn(_)))
    }

    /// Its ranks were running, and it has not said yet how they ended. Of one that failed this is worth waiting for even
    /// while its connection is down.
    fn has_more_to_tell(&self) -> bool {
        match self.stage {
            Some(Stage::Running) => self.link.is_some() && self.lost.is_none(),
            Some(Stage::Failed) => self.lost.is_none(),
            _ => false,
        }
    }
}
