//! The journal of an elastic job: what really happened, in its order, for the judge to replay.

use umiak_core::machine::round::coordinator::Effect;
use umiak_core::machine::round::messages::{Decision, FromAgent, Standing, Start, Stop, ToAgent};

use super::network::Packet;
use super::scenario::Fault;
use super::world::World;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// A node's umiak is started, exits, or dies.
    Came {
        node: usize,
    },
    Left {
        node: usize,
    },
    Died {
        node: usize,
    },
    Fault(Fault),
    /// The coordinator received the state of a node.
    Heard {
        node: usize,
        conn: usize,
        standing: Standing,
    },
    /// The coordinator learned that a connection is closed, or closed it.
    Closed {
        conn: usize,
    },
    /// The coordinator sent this to these nodes.
    Welcome {
        node: usize,
        conn: usize,
    },
    Refused {
        node: usize,
    },
    Start(Box<Start>, Vec<usize>),
    Stop(Box<Stop>, Vec<usize>),
    Decision(Box<Decision>, Vec<usize>),
    /// The ranks of a node start in this attempt, or the last of them has ended.
    Spawned {
        node: usize,
        attempt: u32,
    },
    Ended {
        node: usize,
        attempt: u32,
    },
}

impl World {
    pub(super) fn record(&mut self, entry: Entry) {
        if self.scenario.is_elastic() {
            self.journal.push((self.now, entry));
        }
    }

    /// The coordinator is about to receive this.
    pub(super) fn record_heard(&mut self, conn: usize, packet: &Packet) {
        if self.coordinator.is_none() {
            return;
        }
        let node = self.conns[conn].node;
        match packet {
            Packet::FromAgent(FromAgent::Join(join)) => {
                self.record(Entry::Heard { node, conn, standing: join.standing.clone() });
            }
            Packet::FromAgent(FromAgent::Standing(standing)) => {
                self.record(Entry::Heard { node, conn, standing: standing.clone() });
            }
            Packet::Gone | Packet::Fin => self.record(Entry::Closed { conn }),
            Packet::FromAgent(_) | Packet::ToAgent(_) => {}
        }
    }

    pub(super) fn record_sent(&mut self, effect: &Effect) {
        match effect {
            Effect::Close { link } => self.record(Entry::Closed { conn: *link as usize }),
            Effect::Send { links, message } => {
                let nodes: Vec<usize> = links.iter().map(|link| self.conns[*link as usize].node).collect();
                match message {
                    ToAgent::Welcome => self.record(Entry::Welcome { node: nodes[0], conn: links[0] as usize }),
                    ToAgent::Refused(_) => self.record(Entry::Refused { node: nodes[0] }),
                    ToAgent::Start(start) => self.record(Entry::Start(Box::new(start.clone()), nodes)),
                    ToAgent::Stop(stop) => self.record(Entry::Stop(Box::new(stop.clone()), nodes)),
                    ToAgent::Decision(decision) => self.record(Entry::Decision(decision.clone(), nodes)),
                    ToAgent::Waiting(_) | ToAgent::Servers(_) | ToAgent::Suspects { .. } | ToAgent::Beat { .. } => {}
                }
            }
            Effect::Probe { .. }
            | Effect::Watch { .. }
            | Effect::Refused { .. }
            | Effect::RefusedMore { .. }
            | Effect::Spares { .. }
            | Effect::Finish => {}
        }
    }

    /// Counts a message that is sent, heartbeats excepted.
    pub(super) fn count(&mut self, node: usize, packet: &Packet) {
        let (kind, attempt) = match packet {
            Packet::FromAgent(FromAgent::Beat { .. })
            | Packet::ToAgent(ToAgent::Beat { .. })
            | Packet::Gone
            | Packet::Fin => return,
            Packet::FromAgent(FromAgent::Join(_)) => ("join", 0),
            Packet::FromAgent(FromAgent::Standing(standing)) => ("standing", standing.attempt),
            Packet::FromAgent(_) => ("other", 0),
            Packet::ToAgent(ToAgent::Start(start)) => ("start", start.attempt),
            Packet::ToAgent(ToAgent::Stop(stop)) => ("stop", stop.attempt),
            Packet::ToAgent(ToAgent::Decision(decision)) => ("decision", decision.attempt),
            Packet::ToAgent(ToAgent::Waiting(_)) => ("waiting", 0),
            Packet::ToAgent(ToAgent::Suspects { .. }) => ("suspects", 0),
            Packet::ToAgent(_) => ("welcome", 0),
        };
        if self.scenario.is_elastic() {
            *self.traffic.entry((node, kind, attempt)).or_default() += 1;
        }
    }
}
