//! Connections in virtual time, and the machines at their ends: the agent of each node, and the coordinator of one.

use std::collections::VecDeque;
use std::time::Duration;

use umiak_core::machine::round::agent::{self, Agent};
use umiak_core::machine::round::coordinator::{self, Coordinator, Options};
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::messages::{Answer, FromAgent, JobKind, Join, ToAgent};
use umiak_core::model::Timestamp;

use super::journal::Entry;
use super::scenario::{HANDSHAKE, Scenario};
use super::world::{Item, Sabotage, State, World};

/// A node's part in the rounds of one coordinator.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) front: usize,
    pub(super) agent: Agent,
    pub(super) host: Option<Hosting>,
    /// The port of the coordinator.
    target: u16,
    /// False once its task has ended: its connections are closed.
    pub(super) is_alive: bool,
    /// The front has left it: the agent does nothing any more.
    is_left: bool,
    said_bye: bool,
    conn: Option<usize>,
    tries: u64,
    /// When the agent is woken next.
    wakes: Option<Timestamp>,
}

/// A coordinator.
#[derive(Debug)]
pub(super) struct Hosting {
    pub(super) machine: Coordinator,
    port: u16,
    launch: u64,
    /// It starts no ranks any more.
    has_reigned: bool,
    /// The last attempt that it has started.
    started: u32,
    /// When it is woken next.
    wakes: Option<Timestamp>,
}

/// One TCP connection. Its index is the coordinator's link.
#[derive(Debug)]
pub(super) struct Conn {
    /// The agent's end, and the coordinator's.
    net: usize,
    host: usize,
    /// It broke: nothing arrives any more.
    is_broken: bool,
    /// The coordinator has said its last.
    is_dismissed: bool,
    /// What is under way to the agent, and to the coordinator.
    packets: [VecDeque<Packet>; 2],
    last: [Timestamp; 2],
}

#[derive(Debug, Clone)]
pub(super) enum Packet {
    FromAgent(FromAgent),
    /// Sent by the guardian.
    Gone,
    ToAgent(ToAgent),
    /// The end of the stream.
    Fin,
}

impl World {
    /// Begins to join at this port, and hosts it if there are options.
    pub(super) fn begin_net(&mut self, front: usize, target: u16, options: Option<Options>) {
        let now = self.local(front);
        let node = &self.fronts[front];
        let script = &self.scenario.fronts[front];
        let join = Join {
            launch: node.launch,
            connected: Timestamp::default(),
            command: 1,
            line: String::new(),
            address: Scenario::address(script.host),
            host: format!("host{}", script.host),
            expects: self.scenario.expects(),
            kind: JobKind::Collective,
            rank: None,
            uneven: true,
            logs: false,
            alive: None,
            standing: node.ready.clone(),
        };
        let launch = node.launch;
        let host = options.map(|options| Hosting {
            machine: Coordinator::new(options, now),
            port: target,
            launch,
            has_reigned: false,
            started: 0,
            wakes: None,
        });
        let (is_host, limits) = (host.is_some(), self.scenario.limits);
        let net = self.nets.len();
        self.nets.push(Net {
            front,
            // One that does not answer may have lost its key meanwhile.
            agent: Agent::new(join, Limits { rendezvous: limits.silence, ..limits }, now),
            host,
            target,
            is_alive: true,
            is_left: false,
            said_bye: false,
            conn: None,
            tries: 0,
            wakes: None,
        });
        self.fronts[front].net = Some(net);
        if is_host {
            self.coordinator(net, coordinator::Event::Tick);
        }
        self.agent(net, agent::Event::Tick);
    }

    /// The front leaves; what is queued is still sent, and a coordinator stays until its nodes have heard it.
    pub(super) fn leave_net(&mut self, net: usize) {
        if !self.nets[net].is_alive || self.nets[net].is_left {
            return;
        }
        if !self.nets[net].agent.is_over() {
            self.agent(net, agent::Event::Ended);
        }
        self.coordinator(net, coordinator::Event::Deserted);
        self.nets[net].is_left = true;
        if let Some(conn) = self.nets[net].conn.take() {
            if !self.nets[net].said_bye {
                self.transmit(conn, true, Packet::Gone);
            }
            self.transmit(conn, true, Packet::Fin);
        }
        self.net_done(net);
    }

    fn net_done(&mut self, net: usize) {
        let is_over = self.nets[net].host.as_ref().is_none_or(|host| host.machine.is_over());
        if self.nets[net].is_left && is_over && self.nets[net].is_alive {
            self.drop_net(net, false);
            self.leave_etcd(self.nets[net].front);
        }
    }

    /// The task ends: its connections are closed. After a kill, the guardian says so.
    pub(super) fn drop_net(&mut self, net: usize, is_killed: bool) {
        if !std::mem::replace(&mut self.nets[net].is_alive, false) {
            return;
        }
        if let Some(conn) = self.nets[net].conn.take() {
            if is_killed {
                self.transmit(conn, true, Packet::Gone);
            }
            self.transmit(conn, true, Packet::Fin);
        }
        self.reigned(net);
        for conn in (0..self.conns.len()).filter(|conn| self.conns[*conn].host == net).collect::<Vec<_>>() {
            self.transmit(conn, false, Packet::Fin);
        }
    }

    /// The host is gone: nothing is closed.
    pub(super) fn vanish_net(&mut self, net: usize) {
        self.nets[net].is_alive = false;
        self.reigned(net);
    }

    fn reigned(&mut self, net: usize) {
        let front = self.nets[net].front;
        if let Some(host) = &mut self.nets[net].host
            && !std::mem::replace(&mut host.has_reigned, true)
        {
            self.record(Entry::Reigned { front });
        }
    }

    fn hosts(&self, conn: usize, up: bool) -> (usize, usize) {
        let host = |net: usize| self.scenario.fronts[self.nets[net].front].host;
        let (agent, coordinator) = (host(self.conns[conn].net), host(self.conns[conn].host));
        if up { (agent, coordinator) } else { (coordinator, agent) }
    }

    fn delay(&mut self, from: usize, to: usize) -> Duration {
        let most = if from == to { 0 } else { self.scenario.delay };
        Duration::from_micros(self.rng.u64(..=most))
    }

    pub(super) fn transmit(&mut self, conn: usize, up: bool, packet: Packet) {
        if self.conns[conn].is_broken {
            return;
        }
        let (from, to) = self.hosts(conn, up);
        let at = (self.now + self.delay(from, to)).max(self.conns[conn].last[usize::from(up)]);
        self.conns[conn].last[usize::from(up)] = at;
        self.conns[conn].packets[usize::from(up)].push_back(packet);
        self.plan(at, Item::Arrives { conn, up });
    }

    pub(super) fn arrives(&mut self, conn: usize, up: bool) {
        if self.conns[conn].is_broken {
            return;
        }
        let (from, to) = self.hosts(conn, up);
        if self.now < self.cut[from][to] {
            let at = self.cut[from][to];
            return self.plan(at, Item::Arrives { conn, up });
        }
        let Some(packet) = self.conns[conn].packets[usize::from(up)].pop_front() else { return };
        if up {
            self.deliver_up(conn, packet);
        } else {
            self.deliver_down(conn, packet);
        }
    }

    fn deliver_down(&mut self, conn: usize, packet: Packet) {
        let net = self.conns[conn].net;
        if self.nets[net].conn != Some(conn) || !self.nets[net].is_alive {
            return;
        }
        if let Packet::ToAgent(message) = packet {
            return self.agent(net, agent::Event::Heard(Box::new(message)));
        }
        self.nets[net].conn = None;
        self.agent(net, agent::Event::Closed);
    }

    fn deliver_up(&mut self, conn: usize, packet: Packet) {
        let (net, link) = (self.conns[conn].host, conn as u64);
        let event = match packet {
            Packet::Fin | Packet::ToAgent(_) => coordinator::Event::Closed { link },
            _ if self.conns[conn].is_dismissed => return,
            Packet::Gone => coordinator::Event::Gone { link },
            Packet::FromAgent(message) => match message {
                FromAgent::Join(join) => coordinator::Event::Joined { link, join, source: None },
                FromAgent::Standing(standing) => coordinator::Event::Standing { link, standing },
                FromAgent::Beat { sent } => coordinator::Event::Beat { link, sent },
                FromAgent::Bye => coordinator::Event::Bye { link },
                FromAgent::Logs(_) | FromAgent::Started { .. } => return,
            },
        };
        self.coordinator(net, event);
    }

    /// Both ends notice, the coordinator sometimes not.
    pub(super) fn break_links(&mut self, host: usize) {
        for conn in 0..self.conns.len() {
            let (from, to) = self.hosts(conn, true);
            let is_open = self.nets[self.conns[conn].net].conn == Some(conn) && !self.conns[conn].is_broken;
            if !is_open || from == to || from != host && to != host {
                continue;
            }
            self.conns[conn].is_broken = true;
            self.plan(self.now, Item::Notices { conn, up: false });
            if self.rng.u32(..4) > 0 {
                self.plan(self.now, Item::Notices { conn, up: true });
            }
        }
    }

    pub(super) fn notices(&mut self, conn: usize, up: bool) {
        if up {
            self.deliver_up(conn, Packet::Fin);
        } else {
            self.deliver_down(conn, Packet::Fin);
        }
    }

    /// Answers a connection attempt.
    pub(super) fn connects(&mut self, net: usize, tried: u64, given_up: Timestamp) {
        if tried != self.nets[net].tries || !self.nets[net].is_alive || self.nets[net].agent.is_over() {
            return;
        }
        let target = self.nets[net].target;
        let from = self.scenario.fronts[self.nets[net].front].host;
        let found = self.nets.iter().position(|net| net.host.as_ref().is_some_and(|host| host.port == target));
        // A claim whose answer is under way: the port is bound.
        let bound = self.fronts.iter().position(|front| front.candidate.port == Some(target) && front.state.is_here());
        let owner = found.map(|net| self.nets[net].front).or(bound);
        let to = owner.map(|front| self.scenario.fronts[front].host);
        let silent = owner.is_some_and(|front| self.fronts[front].has_vanished);
        let deaf = to.map_or(Timestamp::default(), |to| self.cut[from][to].max(self.cut[to][from]));
        let is_waiting = silent || self.now < deaf || found.is_none() && bound.is_some();
        if is_waiting {
            if self.now >= given_up {
                return self.agent(net, agent::Event::NotConnected(Answer::Silent));
            }
            let again = if self.now < deaf { deaf } else { self.now + Duration::from_millis(100) };
            return self.plan(given_up.min(again), Item::Connects { net, tried, given_up });
        }
        let is_open = |net: &Net| net.is_alive && net.host.as_ref().is_some_and(|host| !host.machine.is_over());
        let Some(host) = found.filter(|found| is_open(&self.nets[*found])) else {
            return self.agent(net, agent::Event::NotConnected(Answer::Refused));
        };
        let conn = self.conns.len();
        self.conns.push(Conn {
            net,
            host,
            is_broken: false,
            is_dismissed: false,
            packets: [VecDeque::new(), VecDeque::new()],
            last: [self.now; 2],
        });
        // A second connection replaces the first.
        if let Some(old) = self.nets[net].conn.replace(conn) {
            self.transmit(old, true, Packet::Fin);
        }
        self.agent(net, agent::Event::Connected);
    }

    pub(super) fn agent_tick(&mut self, net: usize) {
        if self.nets[net].wakes != Some(self.now) {
            return;
        }
        self.nets[net].wakes = None;
        let front = self.nets[net].front;
        if self.nets[net].agent.deadline().is_some_and(|deadline| self.local(front) < deadline) {
            return self.wake_agent(net);
        }
        self.agent(net, agent::Event::Tick);
    }

    /// Plans the next tick, unless one comes before it.
    fn wake_agent(&mut self, net: usize) {
        let Some(deadline) = self.nets[net].agent.deadline() else { return };
        let at = self.global(self.nets[net].front, deadline).max(self.now + Duration::from_millis(2));
        if self.nets[net].wakes.is_none_or(|wakes| at < wakes) {
            self.nets[net].wakes = Some(at);
            self.plan(at, Item::AgentTick(net));
        }
    }

    pub(super) fn agent(&mut self, net: usize, event: agent::Event) {
        if !self.nets[net].is_alive || self.nets[net].is_left {
            return;
        }
        let front = self.nets[net].front;
        let is_quiet = match &event {
            agent::Event::Tick => true,
            agent::Event::Heard(message) => matches!(**message, ToAgent::Beat { .. } | ToAgent::Waiting(_)),
            _ => false,
        };
        if !is_quiet {
            self.note(|| format!("agent {front} ← {event:?}"));
        }
        let now = self.local(front);
        for effect in self.nets[net].agent.step(event, now) {
            match effect {
                agent::Effect::Connect { within } => {
                    self.nets[net].tries += 1;
                    let tried = self.nets[net].tries;
                    let at = self.now + Duration::from_micros(self.rng.u64(..=self.scenario.delay));
                    let given_up = self.now + within.min(HANDSHAKE);
                    self.plan(at, Item::Connects { net, tried, given_up });
                }
                agent::Effect::Disconnect => {
                    if let Some(conn) = self.nets[net].conn.take() {
                        self.transmit(conn, true, Packet::Fin);
                    }
                }
                agent::Effect::Send(message) => {
                    self.nets[net].said_bye |= message == FromAgent::Bye;
                    if let Some(conn) = self.nets[net].conn {
                        self.transmit(conn, true, Packet::FromAgent(message));
                    }
                }
                agent::Effect::Tell(news) => self.plan(self.now, Item::News { net, news }),
            }
        }
        self.wake_agent(net);
    }

    pub(super) fn host_tick(&mut self, net: usize) {
        let now = self.local(self.nets[net].front);
        let Some(host) = self.nets[net].host.as_mut().filter(|host| host.wakes == Some(self.now)) else { return };
        host.wakes = None;
        if host.machine.deadline().is_some_and(|deadline| now < deadline) {
            return self.wake_host(net);
        }
        self.coordinator(net, coordinator::Event::Tick);
    }

    fn wake_host(&mut self, net: usize) {
        let Some(deadline) = self.nets[net].host.as_ref().and_then(|host| host.machine.deadline()) else { return };
        let at = self.global(self.nets[net].front, deadline).max(self.now + Duration::from_millis(2));
        if let Some(host) = &mut self.nets[net].host
            && host.wakes.is_none_or(|wakes| at < wakes)
        {
            host.wakes = Some(at);
            self.plan(at, Item::HostTick(net));
        }
    }

    pub(super) fn coordinator(&mut self, net: usize, event: coordinator::Event) {
        let front = self.nets[net].front;
        let now = self.local(front);
        if !self.nets[net].is_alive {
            return;
        }
        let Some(host) = self.nets[net].host.as_mut().filter(|host| !host.machine.is_over()) else { return };
        let is_quiet = matches!(event, coordinator::Event::Tick | coordinator::Event::Beat { .. });
        let may_resign = matches!(event, coordinator::Event::Fenced(_) | coordinator::Event::Deserted);
        let text = (self.loud && !is_quiet).then(|| format!("coordinator {front} ← {event:?}"));
        let effects = host.machine.step(event, now);
        if let Some(text) = text {
            self.note(|| text);
        }
        for effect in effects {
            self.perform_coordinator(net, effect);
        }
        let has_moved = |host: &Hosting| host.machine.has_moved();
        if may_resign && self.nets[net].host.as_ref().is_some_and(has_moved) {
            self.reigned(net);
        }
        self.wake_host(net);
    }

    fn perform_coordinator(&mut self, net: usize, effect: coordinator::Effect) {
        match effect {
            coordinator::Effect::Send { links, message } => {
                self.record_sent(net, &links, &message);
                if let (ToAgent::Beat { .. }, Some(Sabotage::FalseAnswers)) = (&message, self.sabotage) {
                    let sent = Timestamp::from_micros(u64::MAX);
                    for conn in (0..self.conns.len()).filter(|conn| self.conns[*conn].host == net).collect::<Vec<_>>() {
                        self.transmit(conn, false, Packet::ToAgent(ToAgent::Beat { sent }));
                    }
                    return;
                }
                for link in links {
                    self.transmit(link as usize, false, Packet::ToAgent(message.clone()));
                }
            }
            coordinator::Effect::Close { link } => {
                self.conns[link as usize].is_dismissed = true;
                self.transmit(link as usize, false, Packet::Fin);
            }
            coordinator::Effect::Finish => {
                self.reigned(net);
                for conn in (0..self.conns.len()).filter(|conn| self.conns[*conn].host == net).collect::<Vec<_>>() {
                    self.transmit(conn, false, Packet::Fin);
                }
                self.net_done(net);
            }
            coordinator::Effect::Probe { .. }
            | coordinator::Effect::Watch { .. }
            | coordinator::Effect::Refused { .. }
            | coordinator::Effect::RefusedMore { .. }
            | coordinator::Effect::Spares { .. } => {}
        }
    }

    fn record_sent(&mut self, net: usize, links: &[u64], message: &ToAgent) {
        let front = self.nets[net].front;
        let Some(host) = &mut self.nets[net].host else { return };
        let (launch, last) = (host.launch, host.started);
        match message {
            ToAgent::Start(start) if start.attempt > last => {
                host.started = start.attempt;
                let members = start.nodes.iter().map(|node| self.launches[&node.launch]).collect();
                self.record(Entry::Started { front, start: Box::new(start.clone()), members });
            }
            ToAgent::Decision(decision) => {
                let is_own = links.iter().any(|link| {
                    let agent = &self.nets[self.conns[*link as usize].net];
                    self.fronts[agent.front].launch == launch
                });
                if decision.moves() || decision.restart.is_none() && (is_own || !decision.alone) {
                    self.reigned(net);
                }
                self.record(Entry::Decided { front, decision: decision.clone() });
            }
            _ => {}
        }
    }
}

impl State {
    pub(super) fn is_here(self) -> bool {
        matches!(self, Self::Waiting | Self::Running | Self::Leaving | Self::Finishing)
    }
}
