//! The loop: waits for one event, asks a machine, performs. It owns all state; tasks only send it events.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{Sender, UnboundedReceiver};
use tokio::task::AbortHandle;
use tracing::{error, info};
use umiak_core::machine::round::agent::{self, Agent};
use umiak_core::machine::round::coordinator;
use umiak_core::machine::round::messages::{Expects, FromAgent};
use umiak_core::model::Timestamp;
use umiak_core::wire::frame::MessageError;

use super::door::Identity;
use super::events::{Happening, Inbox, NetEvent};
use super::hosting::Hosting;
use super::line::Line;
use super::{NetOptions, NetOrder, NetReport, Reporter, Target};
use crate::clock::Clock;

/// Time for the peer to close a connection that we have closed.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// Minimum time between two ticks, regardless of a machine's deadline.
const TICK: Duration = Duration::from_millis(2);
/// Wait when nothing is due.
const LONG: Duration = Duration::from_secs(3600);

/// Returns the whole rendezvous as a task. Must be called inside a runtime.
pub(super) fn member(
    options: NetOptions,
    orders: UnboundedReceiver<NetOrder>,
    reporter: Reporter,
) -> io::Result<impl Future<Output = ()> + Send> {
    let (mut inbox, events) = Inbox::new(orders);
    let mut round = Round::new(options, events, reporter)?;
    Ok(async move { round.run(&mut inbox).await })
}

/// State: the agent, and on one node the coordinator.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) clock: Clock,
    pub(super) reporter: Reporter,
    pub(super) events: Sender<NetEvent>,
    pub(super) identity: Arc<Identity>,
    /// Id of the last connection; ids are never reused.
    pub(super) last_id: u64,
    pub(super) agent: Agent,
    pub(super) target: Target,
    pub(super) line: Line,
    /// The attempt at another connection while the line is up.
    pub(super) second: Option<(u64, AbortHandle)>,
    pub(super) said_bye: bool,
    /// Launch id of this node.
    pub(super) launch: u64,
    /// Other nodes go on when this one is lost, and not before its ranks are gone.
    pub(super) is_elastic: bool,
    pub(super) host: Option<Hosting>,
    /// Links that are being closed, with their deadlines.
    pub(super) closing: VecDeque<(Timestamp, u64)>,
    pub(super) ticked: Timestamp,
    pub(super) leaving: bool,
    pub(super) broken: bool,
}

impl Round {
    fn new(options: NetOptions, events: Sender<NetEvent>, reporter: Reporter) -> io::Result<Self> {
        let NetOptions { coordinator: target, host, join, limits, job_id, key, clock } = options;
        let now = clock.now();
        let (launch, is_elastic) = (join.launch, matches!(join.expects, Expects::Range { .. }));
        let describe = host.as_ref().map(|host| host.describe.clone()).unwrap_or_default();
        let store = host.as_ref().and_then(|host| host.store.clone());
        let host = host.map(|host| Hosting::new(host, limits, clock, &events)).transpose()?;
        Ok(Self {
            clock,
            reporter,
            events,
            identity: Arc::new(Identity::new(job_id, key, describe).with_store(store)),
            last_id: 0,
            agent: Agent::new(join, limits, now),
            target,
            line: Line::Down,
            second: None,
            said_bye: false,
            launch,
            is_elastic,
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

    /// True if the front has left and every message has been delivered.
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

    fn obey(&mut self, order: NetOrder) {
        match order {
            NetOrder::Standing(standing) if !self.leaving => self.step(agent::Event::Standing(standing)),
            NetOrder::Listening { attempt } if !self.leaving => self.step(agent::Event::Listening { attempt }),
            NetOrder::Started { attempt, pids } if !self.leaving => self.say(FromAgent::Started { attempt, pids }),
            NetOrder::Standing(_) | NetOrder::Listening { .. } | NetOrder::Started { .. } => {}
            NetOrder::Mark(mark) => {
                if let Some(gatherer) = self.host.as_ref().and_then(|host| host.gatherer.as_ref()) {
                    gatherer.mark(mark);
                }
            }
            NetOrder::Scaled { min, max } => self.decide(coordinator::Event::Scaled { min, max }),
            NetOrder::Fence(how) => self.decide(coordinator::Event::Fenced(how)),
            NetOrder::Leave => self.leave(),
        }
    }

    fn apply(&mut self, event: NetEvent) {
        match event {
            NetEvent::Joined { link, parts, join, source, room: _room } => self.admit(link, *parts, *join, source),
            NetEvent::Logs { link, parts, hello } => self.take_logs(link, *parts, hello),
            NetEvent::TurnedAway { address, answer } => {
                info!(%address, ?answer, "connection turned away");
                self.decide(coordinator::Event::TurnedAway { address, answer });
            }
            NetEvent::Left { link } => {
                if let Some(host) = &mut self.host {
                    host.unproven.remove(&link);
                }
            }
            NetEvent::FromAgent(link, said) => self.hear_agent(link, said),
            NetEvent::Probed { address, answer } => {
                if let Some(host) = &mut self.host {
                    host.probing.remove(&address);
                    self.decide(coordinator::Event::Probed { address, answer });
                    self.probe();
                }
            }
            NetEvent::Knocked { launch, at } => {
                if let Some(host) = self.host.as_mut().filter(|host| host.is_known(launch)) {
                    host.vigils.knocked(launch, at);
                }
            }
            NetEvent::Vanished { launch } => {
                info!(launch, "nothing of the node runs anymore");
                self.decide(coordinator::Event::Vanished { launch });
            }
            NetEvent::Reached { line, result } => self.reached(line, result),
            NetEvent::ToAgent(line, said) => self.hear_coordinator(line, said),
            NetEvent::GatherNews(news) => self.reporter.tell(NetReport::Gather(news)),
            NetEvent::Gathered => {
                if let Some(host) = &mut self.host {
                    host.gatherer = None;
                    if host.machine.is_over() {
                        host.close_door();
                    }
                }
            }
        }
    }

    /// Drops a closed link whose peer has not closed in time.
    pub(super) fn forget(&mut self, id: u64) {
        if matches!(&self.line, Line::Up { id: line, .. } if *line == id) {
            self.line = Line::Down;
        }
        if let Some(host) = &mut self.host {
            host.drop_link(id);
        }
    }

    /// Ends the rendezvous: a message cannot be encoded.
    pub(super) fn give_up(&mut self, error: &MessageError) {
        error!(%error, "round broken");
        self.broken = true;
        self.reporter.tell(NetReport::Broken(error.to_string()));
    }
}
