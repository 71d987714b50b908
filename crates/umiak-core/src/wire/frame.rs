//! Frames: `length u32, kind u8, payload, tag 16`. The length counts everything after it.
//!
//! The tag covers direction, position, kind and payload, so a frame that was changed, repeated, omitted, moved or sent
//! back is refused. After that the connection is not used any more.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::auth::{PayloadHash, Place, SessionKey, TAG};
use super::{AFTER_JOIN, BEFORE_JOIN, Side};

/// Length and kind.
const HEAD: usize = 5;
/// What the length counts besides the payload.
const AROUND: usize = 1 + TAG;
/// Rank and offset, before the bytes of a log.
const LOG_HEAD: usize = 12;

/// The longest text in the first message of a connection, with its escapes.
const MAX_FIRST_TEXT: usize = 64 << 10;

/// The position of `gone`: it is prepared in advance, when its real position is not known.
const NO_POSITION: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message = 0,
    Gone = 1,
    Log = 2,
}

impl Kind {
    fn from_u8(value: u8) -> Option<Self> {
        [Self::Message, Self::Gone, Self::Log].into_iter().find(|kind| *kind as u8 == value)
    }
}

/// A received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A payload for [`read_message`].
    Message(Vec<u8>),
    /// The peer's front has died; sent by its guardian.
    Gone,
    Log(LogChunk),
}

/// A piece of a rank's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChunk {
    pub rank: u32,
    /// Offset of the first byte in the whole log.
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// A frame that is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("frame of {length} bytes exceeds the limit of {limit}")]
    TooLong { length: usize, limit: usize },
    #[error("malformed frame")]
    Malformed,
    #[error("frame with a wrong tag")]
    WrongTag,
}

/// A message that cannot be read or sent.
#[derive(Debug, Error)]
pub enum MessageError {
    #[error("message of {length} bytes exceeds the limit of {limit}")]
    TooLong { length: usize, limit: usize },
    #[error("a text of the message exceeds the limit of {limit} bytes")]
    LongText { limit: usize },
    #[error("malformed message")]
    Json(#[source] serde_json::Error),
}

/// A payload to send, which can be sealed for any number of peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    kind: Kind,
    bytes: Vec<u8>,
    hash: PayloadHash,
}

impl Payload {
    /// [`FromAgent`](crate::machine::round::messages::FromAgent) or
    /// [`ToAgent`](crate::machine::round::messages::ToAgent).
    pub fn message<M: Serialize>(message: &M) -> Result<Self, MessageError> {
        let bytes = serde_json::to_vec(message).map_err(MessageError::Json)?;
        Self::new(Kind::Message, bytes)
    }

    pub fn log(rank: u32, offset: u64, bytes: &[u8]) -> Result<Self, MessageError> {
        let mut payload = Vec::with_capacity(LOG_HEAD + bytes.len());
        payload.extend_from_slice(&rank.to_le_bytes());
        payload.extend_from_slice(&offset.to_le_bytes());
        payload.extend_from_slice(bytes);
        Self::new(Kind::Log, payload)
    }

    fn new(kind: Kind, bytes: Vec<u8>) -> Result<Self, MessageError> {
        let length = bytes.len() + AROUND;
        if length > AFTER_JOIN {
            return Err(MessageError::TooLong { length, limit: AFTER_JOIN });
        }
        let hash = PayloadHash::of(&bytes);
        Ok(Self { kind, bytes, hash })
    }

    /// The payload of its frame.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The length of its frame.
    pub fn frame_length(&self) -> usize {
        HEAD + self.bytes.len() + TAG
    }
}

/// Reads the first message of a connection. Refuses texts that no field of it holds, known or not.
pub fn read_first<M: DeserializeOwned>(payload: &[u8]) -> Result<M, MessageError> {
    let mut bytes = payload.iter();
    while bytes.any(|byte| *byte == b'"') {
        let mut length = 0;
        while let Some(byte) = bytes.next().filter(|byte| **byte != b'"') {
            length += 1;
            if length > MAX_FIRST_TEXT {
                return Err(MessageError::LongText { limit: MAX_FIRST_TEXT });
            }
            if *byte == b'\\' {
                bytes.next();
            }
        }
    }
    read_message(payload)
}

/// Reads the payload of [`Frame::Message`]. Unknown fields are ignored.
pub fn read_message<M: DeserializeOwned>(payload: &[u8]) -> Result<M, MessageError> {
    serde_json::from_slice(payload).map_err(MessageError::Json)
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct Sealer {
    key: SessionKey,
    side: Side,
    sent: u64,
}

impl Sealer {
    pub(super) fn new(key: SessionKey, side: Side) -> Self {
        Self { key, side, sent: 0 }
    }

    /// Seals the next frame. All sealed frames must be sent, in order.
    pub fn seal(&mut self, payload: &Payload) -> Vec<u8> {
        let frame = self.frame(payload, self.sent);
        self.sent += 1;
        frame
    }

    /// Seals the next frame and returns its head and tag. The payload goes between them and is not copied.
    pub fn seal_around(&mut self, payload: &Payload) -> ([u8; HEAD], [u8; TAG]) {
        let around = self.around(payload, self.sent);
        self.sent += 1;
        around
    }

    /// A `gone` frame that may be sent after any other frame.
    pub fn prepared_gone(&self) -> Vec<u8> {
        self.frame(&Payload { kind: Kind::Gone, bytes: Vec::new(), hash: PayloadHash::of(&[]) }, NO_POSITION)
    }

    fn frame(&self, payload: &Payload, counter: u64) -> Vec<u8> {
        let (head, tag) = self.around(payload, counter);
        [&head, payload.bytes.as_slice(), &tag].concat()
    }

    fn around(&self, payload: &Payload, counter: u64) -> ([u8; HEAD], [u8; TAG]) {
        let kind = payload.kind as u8;
        let [a, b, c, d] = ((payload.bytes.len() + AROUND) as u32).to_le_bytes();
        ([a, b, c, d, kind], self.key.tag(Place { from: self.side, counter, kind }, &payload.hash))
    }
}

/// The receiving half of a connection: splits bytes into frames and returns those with a valid tag.
#[derive(Debug)]
pub struct Decoder {
    key: SessionKey,
    from: Side,
    received: u64,
    limit: usize,
    head: [u8; HEAD],
    head_length: usize,
    /// Received bytes of payload and tag. Grows with the bytes, not with the length in the head.
    body: Vec<u8>,
    failed: Option<FrameError>,
}

impl Decoder {
    /// Agents have a smaller limit until they join.
    pub(super) fn new(key: SessionKey, from: Side) -> Self {
        let limit = match from {
            Side::Agent => BEFORE_JOIN,
            Side::Coordinator => AFTER_JOIN,
        };
        Self { key, from, received: 0, limit, head: [0; HEAD], head_length: 0, body: Vec::new(), failed: None }
    }

    /// Sets the maximum length of frames, from the next one on.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The length of the frame that has begun, once its head has been received.
    pub fn begun(&self) -> Option<usize> {
        let [length @ .., _] = self.head;
        (self.head_length == HEAD).then(|| u32::from_le_bytes(length) as usize)
    }

    /// Consumes bytes up to the end of the next frame. Returns `None` if it is not complete yet. After an error every
    /// call returns that error.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let result = self.proceed(input);
        self.failed = result.as_ref().err().copied();
        result
    }

    fn proceed(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        if self.head_length < HEAD {
            let now = take(input, HEAD - self.head_length);
            self.head[self.head_length..][..now.len()].copy_from_slice(now);
            self.head_length += now.len();
            if self.head_length < HEAD {
                return Ok(None);
            }
        }
        let [length @ .., kind] = self.head;
        let length = u32::from_le_bytes(length) as usize;
        let kind = Kind::from_u8(kind).ok_or(FrameError::Malformed)?;
        if length < AROUND {
            return Err(FrameError::Malformed);
        }
        if self.body.is_empty() && length > self.limit {
            return Err(FrameError::TooLong { length, limit: self.limit });
        }

        let whole = length - 1;
        let now = take(input, whole - self.body.len());
        let reached = self.body.len() + now.len();
        if reached > self.body.capacity() {
            let room = (2 * self.body.capacity()).clamp(reached, whole);
            self.body.reserve_exact(room - self.body.len());
        }
        self.body.extend_from_slice(now);
        if reached < whole {
            return Ok(None);
        }
        self.head_length = 0;
        let body = std::mem::take(&mut self.body);
        self.open(kind, body).map(Some)
    }

    fn open(&mut self, kind: Kind, mut body: Vec<u8>) -> Result<Frame, FrameError> {
        let (payload, tag) = body.split_last_chunk::<TAG>().ok_or(FrameError::Malformed)?;
        let counter = if kind == Kind::Gone { NO_POSITION } else { self.received };
        let place = Place { from: self.from, counter, kind: kind as u8 };
        if !self.key.is_tag(tag, place, &PayloadHash::of(payload)) {
            return Err(FrameError::WrongTag);
        }
        body.truncate(body.len() - TAG);
        if kind == Kind::Gone {
            return if body.is_empty() { Ok(Frame::Gone) } else { Err(FrameError::Malformed) };
        }
        self.received += 1;
        if kind == Kind::Message {
            return Ok(Frame::Message(body));
        }
        let (rank, rest) = body.split_first_chunk().ok_or(FrameError::Malformed)?;
        let offset = rest.first_chunk().ok_or(FrameError::Malformed)?;
        let (rank, offset) = (u32::from_le_bytes(*rank), u64::from_le_bytes(*offset));
        body.drain(..LOG_HEAD);
        Ok(Frame::Log(LogChunk { rank, offset, bytes: body }))
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.body.capacity()
    }
}

fn take<'a>(input: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (now, later) = input.split_at(count.min(input.len()));
    *input = later;
    now
}
