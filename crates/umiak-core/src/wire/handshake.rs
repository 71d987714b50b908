//! The first bytes of a connection: both sides show that they belong to the same job before anything else is said.
//!
//! Both machines are fed with bytes as they come and take no more than they need: what is left in the input afterwards
//! is the beginning of the first frame. What they append to `send` is to be sent whatever they return, also when they
//! fail; then the connection is closed. They hold less than [`MAX_TEXT`] and some bytes, whatever comes.

use thiserror::Error;

use super::auth::{Key, Nonce, Nonces, PROOF};
use super::{Session, Side, VERSION};
use crate::model::JobId;

const MAGIC: &[u8; 6] = b"UMIAK\0";
/// Magic and version: the same in all versions.
const HEAD: usize = MAGIC.len() + 2;
const NONCE: usize = size_of::<Nonce>();
/// The longest text in an answer.
pub const MAX_TEXT: usize = 1024;
/// What an agent sends at most until it has proven itself.
pub const MAX_FROM_AGENT: usize = 512;

const _: () = assert!(HEAD + 1 + u8::MAX as usize + NONCE + PROOF <= MAX_FROM_AGENT);

const GO_ON: u8 = 0;
const OTHER_VERSION: u8 = 1;
const OTHER_JOB: u8 = 2;
const WRONG_TOKEN: u8 = 3;
const TOO_MANY: u8 = 4;
const OVER: u8 = 5;

/// Why two sides do not come together. Texts are the peer's, without control characters: it has not proven itself.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HandshakeError {
    #[error("the peer does not speak umiak's protocol")]
    NotUmiak,
    #[error("the peer speaks version {version} of the protocol, and we speak {VERSION}")]
    OtherVersion { version: u16 },
    /// For an agent: what the coordinator says about its job; for the coordinator: the job id that an agent gave.
    #[error("the peer belongs to another job: {text}")]
    OtherJob { text: String },
    #[error("the peer has another token")]
    WrongToken,
    #[error("the peer has too many connections: {text}")]
    TooMany { text: String },
    #[error("the job is over: {text}")]
    Over { text: String },
    #[error("the peer breaks the protocol")]
    Malformed,
}

/// Why the coordinator wants nobody at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwanted {
    /// This is not the job's coordinator any more, or never was.
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
    /// Speaks first: the preamble is appended to `send`.
    pub fn new(job_id: JobId, nonce: Nonce, key: Key, send: &mut Vec<u8>) -> Self {
        append_head(send);
        // No job id is that long; one that was would not be proven.
        let name = job_id.as_str().as_bytes();
        let name = &name[..name.len().min(u8::MAX.into())];
        send.push(name.len() as u8);
        send.extend_from_slice(name);
        send.extend_from_slice(&nonce);
        Self { job_id, key, nonce, step: AgentStep::Answer, part: Part::default() }
    }

    /// `None` as long as more must come.
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
    /// What agents of other jobs are told.
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
    /// `about_us` is for agents of other jobs: our job id, since when, our pid.
    pub fn new(job_id: JobId, nonce: Nonce, key: Key, about_us: impl Into<String>) -> Self {
        let (step, part) = (CoordinatorStep::Preamble, Part::default());
        Self { job_id, key, nonce, about_us: about_us.into(), unwanted: None, step, part }
    }

    /// Turns the agent away: at once if it is being waited for, else as the answer to its preamble, since a connection
    /// that is closed with bytes unread may lose what was sent on it.
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

    /// `None` as long as more must come.
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

/// The bytes of one part of a handshake, as far as they have come and are needed.
#[derive(Debug, Default)]
struct Part(Vec<u8>);

impl Part {
    /// Takes what is missing up to `end`; true when that much is there.
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

    /// Whether magic and version are there, and ours. A wrong beginning is known by its first byte.
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

    /// Whether the coordinator's word at this place is there, and is to go on.
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
            // Another version is known by the head.
            _ => HandshakeError::Malformed,
        })
    }
}

fn append_head(send: &mut Vec<u8>) {
    send.extend_from_slice(MAGIC);
    send.extend_from_slice(&VERSION.to_le_bytes());
}

fn append_refusal(send: &mut Vec<u8>, status: u8, text: &str) {
    let mut length = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    send.push(status);
    send.extend_from_slice(&(length as u16).to_le_bytes());
    send.extend_from_slice(&text.as_bytes()[..length]);
}

/// Words of somebody unknown, for a terminal.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char }).collect()
}
