//! A valid exchange with fixed nonces: the reference of the wire's targets, and the source of their seeds.

mod documents;

pub use documents::read_document;

use umiak_core::machine::round::messages::{Expects, FromAgent, JobKind, Join, Stage, Standing};
use umiak_core::model::{JobId, Port, Timestamp};
use umiak_core::wire::Session;
use umiak_core::wire::auth::Key;
use umiak_core::wire::frame::{Frame, LogChunk, Payload};
use umiak_core::wire::handshake::{AgentHandshake, CoordinatorHandshake};

pub fn agent(send: &mut Vec<u8>) -> AgentHandshake {
    AgentHandshake::new(job_id(), [7; 16], Key::from_token("t"), send)
}

pub fn coordinator() -> CoordinatorHandshake {
    CoordinatorHandshake::new(job_id(), [9; 16], Key::from_token("t"), "job `ctr` since 12:03, pid 4121")
}

fn job_id() -> JobId {
    JobId::new("ctr").expect("a plain word is a job id")
}

/// The bytes of both sides until they are authenticated, and their sessions.
pub struct Exchange {
    pub from_agent: Vec<u8>,
    pub from_coordinator: Vec<u8>,
    pub agent: Session,
    pub coordinator: Session,
}

pub fn exchange() -> Exchange {
    let (mut from_agent, mut from_coordinator) = (Vec::new(), Vec::new());
    let (mut agent, mut coordinator) = (agent(&mut from_agent), coordinator());
    let preamble = from_agent.len();
    let more = coordinator.feed(&mut &from_agent[..], &mut from_coordinator).expect("the preamble is good");
    assert!(more.is_none());
    let answer = from_coordinator.len();
    let more = agent.feed(&mut &from_coordinator[..], &mut from_agent).expect("the answer is good");
    assert!(more.is_none());
    let at_coordinator = coordinator.feed(&mut &from_agent[preamble..], &mut from_coordinator);
    let at_agent = agent.feed(&mut &from_coordinator[answer..], &mut from_agent);
    Exchange {
        from_agent,
        from_coordinator,
        agent: at_agent.ok().flatten().expect("the coordinator proved itself"),
        coordinator: at_coordinator.ok().flatten().expect("the agent proved itself"),
    }
}

pub fn messages() -> Vec<FromAgent> {
    let standing = Standing::new(1, Stage::Interrupted { signal: Some(2), kill: false });
    let join = Join {
        launch: 1,
        connected: Timestamp::from_micros(3),
        command: 2,
        line: "train.py --lr 0.1".to_owned(),
        address: [10, 0, 0, 1].into(),
        host: "node0".to_owned(),
        expects: Expects::Count { nodes: 2, sort_ip: false },
        kind: JobKind::Collective,
        rank: None,
        uneven: false,
        logs: false,
        alive: Port::new(7),
        standing: standing.clone(),
    };
    let beat = FromAgent::Beat { sent: Timestamp::from_micros(5) };
    vec![FromAgent::Join(Box::new(join)), beat, FromAgent::Standing(standing), FromAgent::Bye]
}

/// Frames of the agent, and their meaning, except `gone` at the end.
pub fn stream() -> (Vec<u8>, Vec<Frame>) {
    let Exchange { agent: Session { mut sealer, .. }, .. } = exchange();
    let (mut bytes, mut frames) = (Vec::new(), Vec::new());
    for message in messages() {
        bytes.extend(sealer.seal(&Payload::message(&message).expect("it is short")));
        frames.push(Frame::Message(serde_json::to_vec(&message).expect("messages have a JSON form")));
    }
    let chunk = LogChunk { rank: 3, offset: 70_000, bytes: b"loss 0.1\n".to_vec() };
    bytes.extend(sealer.seal(&Payload::log(chunk.rank, chunk.offset, &chunk.bytes).expect("it is short")));
    frames.push(Frame::Log(chunk));
    bytes.extend(sealer.prepared_gone());
    (bytes, frames)
}

/// Splits an input into chunks of this many bytes; one chunk for 0.
pub fn pieces(bytes: &[u8], size: u8) -> impl Iterator<Item = &[u8]> {
    bytes.chunks(if size == 0 { usize::MAX } else { size.into() })
}
