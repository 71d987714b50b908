//! The coordinator's half of the loop, on one node: the listener, the links of all agents, probes, gathered logs.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Sender;
use tokio::task::AbortHandle;
use tracing::{debug, info, trace, warn};
use umiak_core::machine::round::coordinator::{self, Coordinator};
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::logs::{Hello, Member};
use umiak_core::machine::round::messages::{FromAgent, Join, Start, ToAgent};
use umiak_core::model::{FIRST_ATTEMPT, Timestamp};
use umiak_core::wire::frame::Payload;

use super::door;
use super::events::NetEvent;
use super::gather::{self, Gatherer};
use super::link::{Ear, Outgoing, Parts, PeerLink, Said};
use super::thread::{LINGER, Round};
use super::vigil::{self, Vigils};
use super::{Host, NetReport};
use crate::clock::Clock;

/// Limit on connections that are not authenticated yet.
const MAX_UNPROVEN: usize = 4096;
/// The maximum number of nodes, each with a second connection that replaces the first.
const MAX_LINKS: usize = 2 * 16_384;
/// Limit on dismissed connections whose peers have not closed them.
const MAX_CLOSING: usize = 4096;
const MAX_PROBES: usize = 64;
/// Delay after an error of the listener.
const PAUSE: Duration = Duration::from_millis(20);
/// `ENFILE` and `EMFILE`: no more open files, in the host or in this process.
const OUT_OF_FILES: [i32; 2] = [23, 24];
/// Number of unauthenticated connections to close in that case.
const MAKE_ROOM: usize = 64;

/// State of the coordinator's side.
#[derive(Debug)]
pub(super) struct Hosting {
    pub(super) machine: Coordinator,
    /// `None` once the rendezvous is over.
    pub(super) listener: Option<TcpListener>,
    pub(super) not_before: Option<Timestamp>,
    pub(super) port: u16,
    pub(super) links: HashMap<u64, PeerLink>,
    /// Launch id of each link.
    pub(super) launches: HashMap<u64, u64>,
    /// Launch ids in the order of the nodes, and the attempt, once all have joined.
    pub(super) started: (u32, Vec<u64>),
    /// Launches that send logs.
    pub(super) senders: HashSet<u64>,
    pub(super) gatherer: Option<Gatherer>,
    /// Ordered by age.
    pub(super) unproven: BTreeMap<u64, AbortHandle>,
    pub(super) probes: VecDeque<IpAddr>,
    pub(super) probing: HashSet<IpAddr>,
    pub(super) vigils: Vigils,
    /// Events that follow from effects.
    pub(super) pending: VecDeque<coordinator::Event>,
}

impl Hosting {
    pub(super) fn new(host: Host, limits: Limits, clock: Clock, events: &Sender<NetEvent>) -> io::Result<Self> {
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
            started: (0, Vec::new()),
            senders: HashSet::new(),
            gatherer,
            unproven: BTreeMap::new(),
            probes: VecDeque::new(),
            probing: HashSet::new(),
            vigils: Vigils::new(clock, events.clone()),
            pending: VecDeque::new(),
        })
    }

    /// Records which node sends the logs of which ranks, once all ranks are assigned.
    fn note_members(&self, start: &Start, own: u64) {
        let Some(gatherer) = &self.gatherer else { return };
        let mut first = 0;
        let members = start.nodes.iter().map(|node| {
            let ranks = first..first + node.processes.len() as u32;
            first = ranks.end;
            // This node's ranks already write to the directory where logs are gathered.
            let sends = node.launch != own && self.senders.contains(&node.launch);
            Member { launch: node.launch, ranks, sends }
        });
        gatherer.members(members.collect());
    }

    /// Stops accepting connections.
    pub(super) fn close_door(&mut self) {
        self.listener = None;
        self.not_before = None;
        self.close_oldest(usize::MAX);
    }

    /// Closes the oldest unauthenticated connections.
    fn close_oldest(&mut self, count: usize) {
        for _ in 0..count {
            let Some((_, task)) = self.unproven.pop_first() else { return };
            task.abort();
        }
    }

    /// True if the node is connected, or may come back.
    pub(super) fn is_known(&self, launch: u64) -> bool {
        self.machine.misses(launch) || self.launches.values().any(|other| *other == launch)
    }

    pub(super) fn drop_link(&mut self, id: u64) {
        self.links.remove(&id);
        if let Some(launch) = self.launches.remove(&id) {
            self.forget_door(launch);
        }
    }

    fn forget_door(&mut self, launch: u64) {
        if !self.is_known(launch) {
            self.vigils.forget(launch);
        }
    }

    /// Queues addresses that are neither queued nor being probed.
    fn queue_probes(&mut self, addresses: Vec<IpAddr>) {
        for address in addresses {
            if !self.probing.contains(&address) && !self.probes.contains(&address) {
                self.probes.push_back(address);
            }
        }
    }
}

impl Round {
    pub(super) fn decide(&mut self, event: coordinator::Event) {
        let now = self.clock.now();
        let mut next = Some(event);
        while let Some(event) = next {
            let Some(host) = &mut self.host else { return };
            let closed = if let coordinator::Event::Closed { link } = &event { Some(*link) } else { None };
            let effects = host.machine.step(event, now);
            trace!(effects = effects.len(), "coordinator");
            for effect in effects {
                self.perform(effect, now);
            }
            // The machine says first whether the node may come back.
            if let (Some(host), Some(link)) = (&mut self.host, closed) {
                host.drop_link(link);
            }
            next = self.host.as_mut().and_then(|host| host.pending.pop_front());
        }
        if let Some(host) = &mut self.host {
            for launch in host.vigils.end_unless(|launch| host.machine.misses(launch)) {
                host.forget_door(launch);
            }
        }
    }

    fn perform(&mut self, effect: coordinator::Effect, now: Timestamp) {
        let Some(host) = &mut self.host else { return };
        match effect {
            coordinator::Effect::Send { links, message } => {
                if let ToAgent::Start(start) = &message {
                    host.note_members(start, self.launch);
                    // Before any node hears it: all ranks of the last attempt are gone, and none of the next has begun.
                    if host.started.0 != start.attempt {
                        host.started = (start.attempt, start.nodes.iter().map(|node| node.launch).collect());
                        if let Some(store) = self.identity.store.as_ref().filter(|_| start.attempt > FIRST_ATTEMPT) {
                            store.renew();
                        }
                    }
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
                    link.dismiss();
                    self.closing.push_back((now + LINGER, id));
                }
                while self.closing.len() > MAX_CLOSING
                    && let Some((_, oldest)) = self.closing.pop_front()
                {
                    self.forget(oldest);
                }
            }
            coordinator::Effect::Probe { addresses } => {
                host.queue_probes(addresses);
                self.probe();
            }
            coordinator::Effect::Watch { launch } => host.vigils.begin(launch),
            coordinator::Effect::Refused { address, host, refusal } => {
                info!(%address, host, ?refusal, "node refused");
                self.reporter.tell(NetReport::Refused { address, host, refusal });
            }
            coordinator::Effect::Spares { nodes } => self.reporter.tell(NetReport::Spares(nodes)),
            coordinator::Effect::RefusedMore { count } => self.reporter.tell(NetReport::RefusedMore { count }),
            coordinator::Effect::Finish => {
                info!(links = host.links.len(), "round over");
                // A node that sends logs may still reconnect.
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

    pub(super) fn probe(&mut self) {
        let Some(host) = &mut self.host else { return };
        while host.probing.len() < MAX_PROBES {
            let Some(address) = host.probes.pop_front() else { return };
            host.probing.insert(address);
            tokio::spawn(door::probe(address, host.port, self.events.clone()));
        }
    }

    /// Handles an accepted connection or an error of the listener. No error closes the listener.
    pub(super) fn knock(&mut self, result: io::Result<TcpStream>) {
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

    pub(super) fn admit(&mut self, id: u64, parts: Parts, join: Join, source: Option<IpAddr>) {
        let Some(host) = &mut self.host else { return };
        host.unproven.remove(&id);
        if host.machine.is_over() || host.links.len() >= MAX_LINKS {
            return;
        }
        let ear = Ear {
            id,
            wrap: NetEvent::FromAgent,
            // An agent joins only once per connection.
            accepts: |message| !matches!(message, FromAgent::Join(_) | FromAgent::Logs(_)),
            events: self.events.clone(),
        };
        let peer = parts.halves.0.as_ref().peer_addr().ok();
        host.links.insert(id, PeerLink::open(parts, ear));
        host.launches.insert(id, join.launch);
        if join.logs {
            host.senders.insert(join.launch);
        }
        let (launch, door) = (join.launch, peer.and_then(|peer| vigil::door_of(&join, peer)));
        self.decide(coordinator::Event::Joined { link: id, join: Box::new(join), source });
        // Strangers are not asked anything.
        if let Some(host) = self.host.as_mut().filter(|host| host.machine.has_joined(id))
            && launch != self.launch
        {
            host.vigils.know(launch, door);
        }
    }

    pub(super) fn take_logs(&mut self, id: u64, parts: Parts, hello: Hello) {
        let Some(host) = &mut self.host else { return };
        host.unproven.remove(&id);
        match &host.gatherer {
            Some(gatherer) => gatherer.take(parts, hello),
            None => drop(tokio::spawn(gather::decline(parts))),
        }
    }

    pub(super) fn hear_agent(&mut self, link: u64, said: Said<FromAgent>) {
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
                coordinator::Event::Closed { link }
            }
            // The last message for this agent is already queued.
            _ if !is_open => return,
            Said::Gone => coordinator::Event::Gone { link },
            Said::Message(FromAgent::Started { attempt, pids }) => {
                let launch = host.launches.get(&link);
                let node = host.started.1.iter().position(|other| Some(other) == launch);
                if let Some(node) = node.filter(|_| host.started.0 == attempt) {
                    self.reporter.tell(NetReport::Started { node: node as u32, pids });
                }
                return;
            }
            // Valid only as the first message.
            Said::Message(FromAgent::Join(_) | FromAgent::Logs(_)) => return,
            Said::Message(FromAgent::Standing(standing)) => coordinator::Event::Standing { link, standing },
            Said::Message(FromAgent::Beat { sent }) => coordinator::Event::Beat { link, sent },
            Said::Message(FromAgent::Bye) => coordinator::Event::Bye { link },
        };
        self.decide(event);
    }
}
