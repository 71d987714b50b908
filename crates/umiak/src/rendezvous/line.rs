//! The agent's half of the loop: the connection to the coordinator and its messages.

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tracing::{debug, info, trace};
use umiak_core::machine::round::messages::{Answer, FromAgent, ToAgent};
use umiak_core::machine::round::{agent, coordinator};
use umiak_core::wire::frame::Payload;

use super::NetReport;
use super::door;
use super::events::NetEvent;
use super::link::{Ear, Outgoing, Parts, PeerLink, Said};
use super::thread::{LINGER, Round};

/// State of the connection to the coordinator.
#[derive(Debug)]
pub(super) enum Line {
    Down,
    Trying { id: u64, task: AbortHandle },
    Up { id: u64, link: PeerLink, local: IpAddr, gone: Vec<u8> },
}

impl Round {
    pub(super) fn step(&mut self, event: agent::Event) {
        let effects = self.agent.step(event, self.clock.now());
        trace!(effects = effects.len(), "agent");
        for effect in effects {
            match effect {
                agent::Effect::Connect { within } => self.connect(within),
                agent::Effect::Disconnect => self.drop_line(),
                agent::Effect::Send(message) => self.say(message),
                agent::Effect::Tell(news) => self.reporter.tell(NetReport::News(news)),
            }
        }
        if self.agent.is_over() {
            self.end_attempts();
        }
    }

    fn drop_line(&mut self) {
        self.end_attempts();
        self.line = Line::Down;
    }

    fn end_attempts(&mut self) {
        if let Some((_, task)) = self.second.take() {
            task.abort();
        }
        if let Line::Trying { task, .. } = &self.line {
            task.abort();
            self.line = Line::Down;
        }
    }

    fn connect(&mut self, within: Duration) {
        self.last_id += 1;
        let id = self.last_id;
        let (target, identity) = (self.target.clone(), Arc::clone(&self.identity));
        let events = self.events.clone();
        let task = tokio::spawn(async move {
            let result = door::reach(target, identity, within).await;
            let _ = events.send(NetEvent::Reached { line: id, result }).await;
        });
        debug!(coordinator = ?self.target, "connect");
        match self.line {
            Line::Up { .. } => self.second = Some((id, task.abort_handle())),
            Line::Down | Line::Trying { .. } => self.line = Line::Trying { id, task: task.abort_handle() },
        }
    }

    pub(super) fn reached(&mut self, line: u64, result: Result<Box<Parts>, Answer>) {
        let is_second = self.second.take_if(|(id, _)| *id == line).is_some();
        if !is_second && !matches!(&self.line, Line::Trying { id, .. } if *id == line) {
            return;
        }
        let parts = match result {
            Ok(parts) => *parts,
            Err(answer) => {
                debug!(?answer, "coordinator not reached");
                if !is_second {
                    self.line = Line::Down;
                }
                return self.step(agent::Event::NotConnected(answer));
            }
        };
        let socket = parts.halves.0.as_ref();
        let local = socket.local_addr().map_or(IpAddr::from([0; 4]), |local| local.ip().to_canonical());
        let duplicate = socket.as_fd().try_clone_to_owned();
        let gone = parts.session.sealer.prepared_gone();
        let ear = Ear { id: line, wrap: NetEvent::ToAgent, accepts: |_| true, events: self.events.clone() };
        self.line = Line::Up { id: line, link: PeerLink::open(parts, ear), local, gone: gone.clone() };
        // Without the lifeline, the other nodes detect our death only by silence.
        if let Ok(socket) = duplicate {
            let frame = super::LastWords { bytes: gone, after_ranks: self.is_elastic };
            self.reporter.tell(NetReport::Lifeline { socket, frame });
        }
        info!(coordinator = ?self.target, "connected");
        self.step(agent::Event::Connected);
    }

    pub(super) fn say(&mut self, mut message: FromAgent) {
        let Line::Up { link, local, .. } = &self.line else { return };
        match &mut message {
            FromAgent::Join(join) if join.address.is_unspecified() => join.address = *local,
            FromAgent::Bye => self.said_bye = true,
            _ => {}
        }
        match Payload::message(&message) {
            Ok(payload) => {
                if !link.send(Outgoing::Payload(Arc::new(payload))) {
                    self.drop_line();
                    self.step(agent::Event::Closed);
                }
            }
            Err(error) => self.give_up(&error),
        }
    }

    pub(super) fn hear_coordinator(&mut self, line: u64, said: Said<ToAgent>) {
        if !matches!(&self.line, Line::Up { id, .. } if *id == line) {
            return;
        }
        let event = match said {
            Said::Message(message) => agent::Event::Heard(Box::new(message)),
            Said::Gone => return,
            Said::Closed => {
                self.drop_line();
                agent::Event::Closed
            }
        };
        if !self.leaving {
            self.step(event);
        }
    }

    /// Sends the last messages. An agent that has not sent `Bye` has no decision and leaves without one.
    pub(super) fn leave(&mut self) {
        if !self.agent.is_over() {
            self.step(agent::Event::Ended);
        }
        self.leaving = true;
        self.decide(coordinator::Event::Deserted);
        if let Some(gatherer) = self.host.as_ref().and_then(|host| host.gatherer.as_ref()) {
            gatherer.finish();
        }
        self.end_attempts();
        match &mut self.line {
            Line::Up { id, link, gone, .. } if link.is_open() => {
                if !self.said_bye {
                    let _ = link.send(Outgoing::Frame(std::mem::take(gone)));
                }
                link.close();
                self.closing.push_back((self.clock.now() + LINGER, *id));
            }
            Line::Up { .. } | Line::Trying { .. } | Line::Down => {}
        }
    }
}
