mod frames;
mod handshakes;
mod messages;

use proptest::prelude::*;

use super::Session;
use super::auth::Key;
use super::frame::{Frame, FrameError};
use super::handshake::{AgentHandshake, CoordinatorHandshake, HandshakeError};
use crate::model::JobId;

const ABOUT_US: &str = "job `ctr` since 12:03, pid 4121";

fn job(name: &str) -> JobId {
    JobId::new(name).unwrap()
}

fn agent(name: &str, token: &str, send: &mut Vec<u8>) -> AgentHandshake {
    AgentHandshake::new(job(name), [7; 16], Key::from_token(token), send)
}

fn coordinator(name: &str, token: &str) -> CoordinatorHandshake {
    CoordinatorHandshake::new(job(name), [9; 16], Key::from_token(token), ABOUT_US)
}

/// What each side of a handshake has sent, and its result.
struct Exchange {
    from_agent: Vec<u8>,
    from_coordinator: Vec<u8>,
    agent: Result<Option<Session>, HandshakeError>,
    coordinator: Result<Option<Session>, HandshakeError>,
}

/// Passes bytes back and forth until neither side sends any more.
fn talk(mut agent: AgentHandshake, preamble: Vec<u8>, mut coordinator: CoordinatorHandshake) -> Exchange {
    let mut exchange =
        Exchange { from_agent: preamble, from_coordinator: Vec::new(), agent: Ok(None), coordinator: Ok(None) };
    let (mut to_agent, mut to_coordinator) = (0, 0);
    loop {
        let mut input = &exchange.from_agent[to_coordinator..];
        if !input.is_empty() && matches!(exchange.coordinator, Ok(None)) {
            exchange.coordinator = coordinator.feed(&mut input, &mut exchange.from_coordinator);
            assert!(input.is_empty());
        }
        to_coordinator = exchange.from_agent.len();
        let mut input = &exchange.from_coordinator[to_agent..];
        if input.is_empty() {
            return exchange;
        }
        if matches!(exchange.agent, Ok(None)) {
            exchange.agent = agent.feed(&mut input, &mut exchange.from_agent);
        }
        to_agent = exchange.from_coordinator.len();
    }
}

fn meet(agent_of: (&str, &str), coordinator_of: (&str, &str)) -> Exchange {
    let mut preamble = Vec::new();
    let agent = agent(agent_of.0, agent_of.1, &mut preamble);
    talk(agent, preamble, coordinator(coordinator_of.0, coordinator_of.1))
}

/// Both ends of a connection: the agent's first.
fn sessions() -> (Session, Session) {
    let exchange = meet(("ctr", "t"), ("ctr", "t"));
    (exchange.agent.unwrap().unwrap(), exchange.coordinator.unwrap().unwrap())
}

/// All frames of these bytes, and the final result.
fn decode(session: &mut Session, pieces: &[&[u8]]) -> (Vec<Frame>, Option<FrameError>) {
    let mut frames = Vec::new();
    for piece in pieces {
        let mut input = *piece;
        loop {
            match session.decoder.next(&mut input) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        assert!(input.is_empty());
    }
    (frames, None)
}

/// Cuts at these positions, modulo the length.
fn cut<'a>(mut bytes: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for place in places {
        let (piece, rest) = bytes.split_at(place % (bytes.len() + 1));
        pieces.push(piece);
        bytes = rest;
    }
    pieces.push(bytes);
    pieces
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(prop_oneof![0..4_usize, 0..200_usize, any::<usize>()], 0..8)
}

/// Changes to a stream of bytes.
#[derive(Debug, Clone)]
enum Change {
    Set {
        at: usize,
        to: u8,
    },
    Insert {
        at: usize,
        byte: u8,
    },
    Remove {
        at: usize,
        count: usize,
    },
    /// Copies a piece to another place.
    Copy {
        from: usize,
        count: usize,
        to: usize,
    },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let at = || prop_oneof![0..40_usize, any::<usize>()];
    let change = prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, to)| Change::Set { at, to }),
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Insert { at, byte }),
        (at(), 1..60_usize).prop_map(|(at, count)| Change::Remove { at, count }),
        (at(), 1..60_usize, at()).prop_map(|(from, count, to)| Change::Copy { from, count, to }),
    ];
    proptest::collection::vec(change, 1..4)
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let place = |at: usize| at % (bytes.len() + 1);
        let range = |at: usize, count: usize| place(at)..(place(at) + count).min(bytes.len());
        match *change {
            Change::Set { at, to } => {
                let at = place(at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = to;
                }
            }
            Change::Insert { at, byte } => bytes.insert(place(at), byte),
            Change::Remove { at, count } => drop(bytes.drain(range(at, count))),
            Change::Copy { from, count, to } => {
                let (piece, to) = (bytes[range(from, count)].to_vec(), place(to));
                bytes.splice(to..to, piece);
            }
        }
    }
    bytes
}
