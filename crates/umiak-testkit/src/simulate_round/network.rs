//! Connections in virtual time.

use std::time::Duration;

use umiak_core::machine::round::limits::REFUSED;
use umiak_core::machine::round::messages::{Answer, FromAgent, Start, ToAgent};
use umiak_core::machine::round::{agent, coordinator};
use umiak_core::model::Timestamp;

use super::scenario::HANDSHAKE;
use super::world::{Item, Sabotage, State, World};

/// One TCP connection. Its index is the coordinator's link.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) node: usize,
    /// True if it broke: nothing arrives any more.
    cut: bool,
    /// When the last packet arrives, by direction.
    last: [Timestamp; 2],
    /// What was sent to the coordinator arrives then; nothing else does any more.
    late: Option<Timestamp>,
}

/// The contents of a packet.
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
    fn delay(&mut self, node: usize) -> Duration {
        let most = if node == 0 { 0 } else { self.scenario.delay * 1000 };
        Duration::from_micros(self.rng.u64(..=most))
    }

    /// Sends a packet, behind those before it.
    pub(super) fn transmit(&mut self, conn: usize, up: bool, packet: Packet) {
        let node = self.conns[conn].node;
        self.count(node, &packet);
        let mut at = self.now + self.delay(node);
        let healed = self.nodes[node].partition[usize::from(up)];
        if self.now < healed {
            at = at.max(healed + Duration::from_micros(1));
        }
        let last = &mut self.conns[conn].last[usize::from(up)];
        at = at.max(*last);
        *last = at;
        if !self.conns[conn].cut {
            self.plan(at, Item::Arrive { conn, up, packet });
        }
    }

    pub(super) fn arrive(&mut self, conn: usize, up: bool, packet: Packet) {
        let (node, cut) = (self.conns[conn].node, self.conns[conn].cut);
        let mut healed = self.nodes[node].partition[usize::from(up)];
        if let Some(late) = self.conns[conn].late {
            // The agent has closed its end.
            if !up {
                return;
            }
            healed = healed.max(late);
        }
        if cut {
            return;
        }
        if self.now < healed {
            return self.plan(healed, Item::Arrive { conn, up, packet });
        }
        if up {
            self.deliver_up(conn, packet);
        } else if self.nodes[node].conn == Some(conn) {
            match packet {
                Packet::ToAgent(message) => self.agent(node, agent::Event::Heard(Box::new(message))),
                _ => self.closed_here(node, conn),
            }
        }
    }

    pub(super) fn deliver_up(&mut self, conn: usize, packet: Packet) {
        let link = conn as u64;
        if self.sabotage == Some(Sabotage::HideLosses) && matches!(packet, Packet::Gone | Packet::Fin) {
            return;
        }
        self.record_heard(conn, &packet);
        self.coordinator(match packet {
            // The round does not hear of it.
            Packet::FromAgent(FromAgent::Started { .. }) => return,
            Packet::FromAgent(FromAgent::Join(join)) => coordinator::Event::Joined { link, join, source: None },
            Packet::FromAgent(FromAgent::Standing(standing)) => coordinator::Event::Standing { link, standing },
            Packet::FromAgent(FromAgent::Beat { sent }) => coordinator::Event::Beat { link, sent },
            Packet::FromAgent(FromAgent::Bye) => coordinator::Event::Bye { link },
            Packet::Gone => coordinator::Event::Gone { link },
            // Logs have separate connections.
            Packet::Fin | Packet::ToAgent(_) | Packet::FromAgent(FromAgent::Logs(_)) => {
                coordinator::Event::Closed { link }
            }
        });
    }

    /// The agent detects that its connection is gone.
    pub(super) fn closed_here(&mut self, node: usize, conn: usize) {
        if self.nodes[node].conn == Some(conn) {
            self.nodes[node].conn = None;
            self.agent(node, agent::Event::Closed);
        }
    }

    /// The agent loses its connection; the coordinator still receives what was sent, late.
    pub(super) fn break_late(&mut self, node: usize, late: Duration) {
        let Some(conn) = self.nodes[node].conn else { return };
        self.transmit(conn, true, Packet::Fin);
        self.conns[conn].late = Some(self.now + late);
        self.plan(self.now, Item::Notice { conn, up: false });
    }

    /// Breaks a connection. Data in flight is lost, and both sides notice; the coordinator sometimes does not.
    pub(super) fn break_link(&mut self, node: usize) {
        let Some(conn) = self.nodes[node].conn else { return };
        self.conns[conn].cut = true;
        let at = self.now + self.delay(node);
        self.plan(at, Item::Notice { conn, up: false });
        if self.rng.u32(..5) > 0 {
            let at = (self.now + self.delay(node)).max(self.nodes[node].partition[1]);
            self.plan(at, Item::Notice { conn, up: true });
        }
    }

    pub(super) fn connect(&mut self, node: usize) {
        self.nodes[node].tries += 1;
        let (tried, began) = (self.nodes[node].tries, self.now);
        let at = self.now + self.delay(node);
        self.plan(at, Item::Connect { node, tried, began });
    }

    /// Answers a connection attempt.
    pub(super) fn connected(&mut self, node: usize, tried: u64, began: Timestamp) {
        if tried != self.nodes[node].tries {
            return;
        }
        let given_up = began + HANDSHAKE;
        let again = Item::Connect { node, tried, began };
        let refuse = |answer| agent::Event::NotConnected(answer);
        let [down, up] = self.nodes[node].partition;
        let deaf = down.max(up).max(self.nodes[0].paused);
        let silent = self.nodes[0].vanished && self.coordinator.is_none();
        if self.now >= given_up && (silent || self.now < deaf) {
            return self.agent(node, refuse(Answer::Silent));
        }
        if silent {
            return self.plan(given_up, again);
        }
        if self.now < deaf {
            return self.plan(given_up.min(deaf), again);
        }
        let spurious = self.scenario.flaky && node > 0 && self.rng.u32(..40) == 0;
        if self.coordinator.is_none() || spurious {
            return self.agent(node, refuse(Answer::Refused));
        }
        let conn = self.conns.len();
        self.conns.push(Conn { node, cut: false, last: [self.now; 2], late: None });
        // A second connection replaces the first.
        if let Some(old) = self.nodes[node].conn.replace(conn) {
            self.transmit(old, true, Packet::Fin);
        }
        self.agent(node, agent::Event::Connected);
    }

    pub(super) fn perform_coordinator(&mut self, effect: coordinator::Effect) {
        use coordinator::Effect;
        self.record_sent(&effect);
        match effect {
            Effect::Send { links, message } => {
                let dropped = match self.sabotage {
                    Some(Sabotage::DropStops) => matches!(message, ToAgent::Stop(_)),
                    Some(Sabotage::DropDecisions) => matches!(message, ToAgent::Decision(_)),
                    _ => false,
                };
                for link in links.into_iter().filter(|_| !dropped) {
                    let node = self.conns[link as usize].node;
                    let is_end = matches!(message, ToAgent::Decision(_));
                    if self.sabotage == Some(Sabotage::DropSpares) && is_end && self.nodes[node].is_waiting {
                        continue;
                    }
                    if self.sabotage == Some(Sabotage::RepeatStarts) && matches!(message, ToAgent::Start(_)) {
                        self.transmit(link as usize, false, Packet::ToAgent(message.clone()));
                    }
                    let packet = match (&message, self.sabotage) {
                        // Each node receives an order with itself first.
                        (ToAgent::Start(start), Some(Sabotage::TurnStarts)) => {
                            let mut start = start.clone();
                            let turn = self.conns[link as usize].node % start.nodes.len();
                            start.nodes.rotate_left(turn);
                            ToAgent::Start(start)
                        }
                        (ToAgent::Start(start), Some(Sabotage::SortStarts)) => {
                            let mut start = start.clone();
                            start.nodes.sort_by_key(|share| share.launch);
                            ToAgent::Start(start)
                        }
                        (ToAgent::Start(start), Some(Sabotage::ForgetLast)) => {
                            ToAgent::Start(Start { last: None, ..start.clone() })
                        }
                        _ => message.clone(),
                    };
                    self.transmit(link as usize, false, Packet::ToAgent(packet));
                }
            }
            Effect::Close { link } => self.transmit(link as usize, false, Packet::Fin),
            Effect::Probe { addresses } => {
                for address in addresses {
                    self.coordinator_later(coordinator::Event::Probed { address, answer: Answer::Refused });
                }
            }
            Effect::Watch { launch } => {
                // Its host still answers.
                let is_dead = |node: usize| self.nodes[node].state == State::Dead && !self.nodes[node].vanished;
                let node = self.scenario.nodes.iter().position(|node| node.launch == launch);
                if node.is_some_and(is_dead) {
                    self.plan(self.now + REFUSED, Item::Coordinator(coordinator::Event::Vanished { launch }));
                }
            }
            Effect::RefusedMore { .. } | Effect::Refused { .. } => self.refusals += 1,
            Effect::Spares { .. } => {}
            Effect::Finish => {
                self.end_coordinator();
                self.leave_if_over(0);
            }
        }
    }

    /// The coordinator stops listening, and all connections end.
    pub(super) fn end_coordinator(&mut self) {
        self.coordinator = None;
        self.coordinator_over = Some(self.now);
        for conn in 0..self.conns.len() {
            self.transmit(conn, false, Packet::Fin);
        }
    }
}
