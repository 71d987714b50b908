//! The first bytes of a connection: both sides prove that they belong to the same job before any message is sent.
//!
//! Both machines are fed with received bytes and consume no more than they need: the rest of the input is the beginning
//! of the first frame. Bytes that they append to `send` must be sent even if they return an error; then the connection
//! is closed. They buffer little more than [`MAX_TEXT`] bytes, whatever is received.

use thiserror::Error;

use super::auth::{Key, Nonce, Nonces, PROOF};
use super::{Session, Side, VERSION};
use crate::machine::round::bounds::cut;
use crate::model::JobId;

pub const MAGIC: &[u8; 6] = b"UMIAK\0";
/// Magic and version: the same in all versions.
const HEAD: usize = MAGIC.len() + 2;
const NONCE: usize = size_of::<Nonce>();
/// The longest text in an answer.
pub const MAX_TEXT: usize = 1024;
/// The most bytes that an agent sends before it is authenticated.
pub const MAX_FROM_AGENT: usize = 512;

const _: () = assert!(HEAD + 1 + u8::MAX as usize + NONCE + PROOF <= MAX_FROM_AGENT);

const GO_ON: u8 = 0;
const OTHER_VERSION: u8 = 1;
const OTHER_JOB: u8 = 2;
const WRONG_TOKEN: u8 = 3;
const TOO_MANY: u8 = 4;
const OVER: u8 = 5;

/// Why a handshake failed. Texts come from a peer that is not authenticated; control characters are removed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HandshakeError {
    #[error("the peer does not use umiak's protocol")]
    NotUmiak,
    #[error("the peer uses protocol version {version}, this umiak uses version {VERSION}")]
    OtherVersion { version: u16 },
    /// For an agent: the coordinator's description of its job; for the coordinator: the agent's job id.
    #[error("the peer belongs to another job: {text}")]
    OtherJob { text: String },
    #[error("the peer has a different token")]
    WrongToken,
    #[error("the peer has too many connections: {text}")]
    TooMany { text: String },
    #[error("the job is over: {text}")]
    Over { text: String },
    #[error("the peer violates the protocol")]
    Malformed,
}

/// Why the coordinator refuses all agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwanted {
    /// This is not, or no longer, the job's coordinator.
    OtherJob,
    TooMany,
    Over,
}

impl Unwanted {
    fn status(self) -> u8 {
        match self {
            Self::OtherJob => OTHER_JOB,
            Self::TooMany => TOO_MANY,
            Self::Over => OVER,
        }
    }

    fn error(self, text: String) -> HandshakeError {
        match self {
            Self::OtherJob => HandshakeError::OtherJob { text },
            Self::TooMany => HandshakeError::TooMany { text },
            Self::Over => HandshakeError::Over { text },
        }
    }
}

/// The side that connects.
#[derive(Debug)]
pub struct AgentHandshake {
    job_id: JobId,
    key: Key,
    nonce: Nonce,
    step: AgentStep,
    part: Part,
}

#[derive(Debug, Clone, Copy)]
enum AgentStep {
    Answer,
    Proof(Nonces),
    Over,
}

impl AgentHandshake {
    /// Appends the preamble to `send`: the agent sends first.
    pub fn new(job_id: JobId, nonce: Nonce, key: Key, send: &mut Vec<u8>) -> Self {
        append_head(send);
        // No job id is that long; a truncated one would fail authentication.
        let name = job_id.as_str().as_bytes();
        let name = &name[..name.len().min(u8::MAX.into())];
        send.push(name.len() as u8);
        send.extend_from_slice(name);
        send.extend_from_slice(&nonce);
        Self { job_id, key, nonce, step: AgentStep::Answer, part: Part::default() }
    }

    /// Returns `None` while more bytes are needed.
    pub fn feed(&mut self, input: &mut &[u8], send: &mut Vec<u8>) -> Result<Option<Session>, HandshakeError> {
        let result = self.proceed(input, send);
        if !matches!(result, Ok(None)) {
            self.step = AgentStep::Over;
        }
        result
    }

    fn proceed(&mut self, input: &mut &[u8], send: &mut Vec<u8>) -> Result<Option<Session>, HandshakeError> {
        if let AgentStep::Answer = self.step {
            if !self.part.head(input)? || !self.part.goes_on(HEAD, input)? {
                return Ok(None);
            }
            let Some(coordinator) = self.part.array(HEAD + 1, input) else { return Ok(None) };
            let nonces = Nonces { agent: self.nonce, coordinator };
            send.extend_from_slice(&self.key.proof(Side::Agent, &nonces, &self.job_id));
            self.step = AgentStep::Proof(nonces);
            self.part = Part::default();
        }
        let AgentStep::Proof(nonces) = self.step else { return Err(HandshakeError::Malformed) };
        if !self.part.goes_on(0, input)? {
            return Ok(None);
        }
        let Some(proof) = self.part.array::<PROOF>(1, input) else { return Ok(None) };
        if !self.key.is_proof(&proof, Side::Coordinator, &nonces, &self.job_id) {
            return Err(HandshakeError::WrongToken);
        }
        Ok(Some(Session::new(self.key.session(&nonces, &self.job_id), Side::Agent)))
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.part.0.capacity()
    }
}

/// The side that listens.
#[derive(Debug)]
pub struct CoordinatorHandshake {
    job_id: JobId,
    key: Key,
    nonce: Nonce,
    /// The text sent to agents of other jobs.
    about_us: String,
    unwanted: Option<(Unwanted, String)>,
    step: CoordinatorStep,
    part: Part,
}

#[derive(Debug, Clone, Copy)]
enum CoordinatorStep {
    Preamble,
    Proof(Nonces),
    Over,
}

impl CoordinatorHandshake {
    /// `about_us` is sent to agents of other jobs: the job id, its start time and the pid.
    pub fn new(job_id: JobId, nonce: Nonce, key: Key, about_us: impl Into<String>) -> Self {
        let (step, part) = (CoordinatorStep::Preamble, Part::default());
        Self { job_id, key, nonce, about_us: about_us.into(), unwanted: None, step, part }
    }

    /// Refuses the agent: at once if its proof is awaited, otherwise in answer to its preamble, because a connection that
    /// is closed with unread bytes may lose data that was sent.
    pub fn refuse(&mut self, why: Unwanted, text: impl Into<String>, send: &mut Vec<u8>) {
        let text = text.into();
        match self.step {
            CoordinatorStep::Preamble => self.unwanted = Some((why, text)),
            CoordinatorStep::Proof(_) => {
                append_refusal(send, why.status(), &text);
                self.step = CoordinatorStep::Over;
            }
            CoordinatorStep::Over => {}
        }
    }

    /// Returns `None` while more bytes are needed.
    pub fn feed(&mut self, input: &mut &[u8], send: &mut Vec<u8>) -> Result<Option<Session>, HandshakeError> {
        let result = self.proceed(input, send);
        if !matches!(result, Ok(None)) {
            self.step = CoordinatorStep::Over;
        }
        result
    }

    fn proceed(&mut self, input: &mut &[u8], send: &mut Vec<u8>) -> Result<Option<Session>, HandshakeError> {
        if let CoordinatorStep::Preamble = self.step {
            let Some(agent) = self.preamble(input, send)? else { return Ok(None) };
            append_head(send);
            send.push(GO_ON);
            send.extend_from_slice(&self.nonce);
            self.step = CoordinatorStep::Proof(Nonces { agent, coordinator: self.nonce });
            self.part = Part::default();
        }
        let CoordinatorStep::Proof(nonces) = self.step else { return Err(HandshakeError::Malformed) };
        let Some(proof) = self.part.array::<PROOF>(0, input) else { return Ok(None) };
        if !self.key.is_proof(&proof, Side::Agent, &nonces, &self.job_id) {
            append_refusal(send, WRONG_TOKEN, "");
            return Err(HandshakeError::WrongToken);
        }
        send.push(GO_ON);
        send.extend_from_slice(&self.key.proof(Side::Coordinator, &nonces, &self.job_id));
        Ok(Some(Session::new(self.key.session(&nonces, &self.job_id), Side::Coordinator)))
    }

    fn preamble(&mut self, input: &mut &[u8], send: &mut Vec<u8>) -> Result<Option<Nonce>, HandshakeError> {
        match self.part.head(input) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                if let HandshakeError::OtherVersion { .. } = error {
                    append_head(send);
                    append_refusal(send, OTHER_VERSION, &VERSION.to_string());
                }
                return Err(error);
            }
        }
        let Some([length]) = self.part.array(HEAD, input) else { return Ok(None) };
        let nonce_at = HEAD + 1 + usize::from(length);
        let Some(nonce) = self.part.array(nonce_at, input) else { return Ok(None) };
        let name = &self.part.0[HEAD + 1..nonce_at];
        if name != self.job_id.as_str().as_bytes() {
            append_head(send);
            append_refusal(send, OTHER_JOB, &self.about_us);
            return Err(HandshakeError::OtherJob { text: printable(name) });
        }
        if let Some((why, text)) = self.unwanted.take() {
            append_head(send);
            append_refusal(send, why.status(), &text);
            return Err(why.error(text));
        }
        Ok(Some(nonce))
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.part.0.capacity()
    }
}

/// The received bytes of one part of a handshake, as far as they are needed.
#[derive(Debug, Default)]
struct Part(Vec<u8>);

impl Part {
    /// Consumes the missing bytes up to `end`. Returns true once they are complete.
    fn reach(&mut self, end: usize, input: &mut &[u8]) -> bool {
        let missing = end.saturating_sub(self.0.len());
        let (now, later) = input.split_at(missing.min(input.len()));
        self.0.extend_from_slice(now);
        *input = later;
        self.0.len() >= end
    }

    fn array<const N: usize>(&mut self, at: usize, input: &mut &[u8]) -> Option<[u8; N]> {
        if !self.reach(at + N, input) {
            return None;
        }
        self.0[at..at + N].try_into().ok()
    }

    /// Returns true once magic and version have been received and match. Fails at the first wrong byte.
    fn head(&mut self, input: &mut &[u8]) -> Result<bool, HandshakeError> {
        let is_complete = self.reach(HEAD, input);
        if self.0.iter().zip(MAGIC).any(|(byte, expected)| byte != expected) {
            return Err(HandshakeError::NotUmiak);
        }
        if !is_complete {
            return Ok(false);
        }
        match u16::from_le_bytes([self.0[HEAD - 2], self.0[HEAD - 1]]) {
            VERSION => Ok(true),
            version => Err(HandshakeError::OtherVersion { version }),
        }
    }

    /// Returns true once the coordinator's status at this position has been received and is `GO_ON`.
    fn goes_on(&mut self, at: usize, input: &mut &[u8]) -> Result<bool, HandshakeError> {
        let Some([status]) = self.array(at, input) else { return Ok(false) };
        if status == GO_ON {
            return Ok(true);
        }
        let Some(length) = self.array(at + 1, input) else { return Ok(false) };
        let length = usize::from(u16::from_le_bytes(length));
        if length > MAX_TEXT {
            return Err(HandshakeError::Malformed);
        }
        if !self.reach(at + 3 + length, input) {
            return Ok(false);
        }
        let text = printable(&self.0[at + 3..]);
        Err(match status {
            OTHER_JOB => HandshakeError::OtherJob { text },
            WRONG_TOKEN => HandshakeError::WrongToken,
            TOO_MANY => HandshakeError::TooMany { text },
            OVER => HandshakeError::Over { text },
            // A different version is detected in the head.
            _ => HandshakeError::Malformed,
        })
    }
}

fn append_head(send: &mut Vec<u8>) {
    send.extend_from_slice(MAGIC);
    send.extend_from_slice(&VERSION.to_le_bytes());
}

fn append_refusal(send: &mut Vec<u8>, status: u8, text: &str) {
    let text = cut(text, MAX_TEXT);
    send.push(status);
    send.extend_from_slice(&(text.len() as u16).to_le_bytes());
    send.extend_from_slice(text.as_bytes());
}

/// Text of an unauthenticated peer, made safe for a terminal.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char }).collect()
}
