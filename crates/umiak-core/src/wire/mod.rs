//! The bytes between agents and the coordinator: who may speak, and where a message ends.
//!
//! * [`auth`]: keys, proofs and tags.
//! * [`handshake`]: the first bytes of a connection, both sides of it.
//! * [`frame`]: what follows: messages, the last word of a dead front, pieces of logs.
//!
//! Nothing here reads or writes a socket: bytes are handed in as they come, and bytes to send come out. Nonces are
//! arguments. `docs/design/rendezvous.md` has the layout. Nothing is secret on the wire, only proven.

pub mod auth;
pub mod frame;
pub mod handshake;
#[cfg(test)]
mod tests;

/// Of the protocol: sides of different versions do not talk.
pub const VERSION: u16 = 4;

/// How long a frame from an agent may be that has not joined.
pub const BEFORE_JOIN: usize = 1 << 20;
/// How long any other frame may be.
pub const AFTER_JOIN: usize = 16 << 20;

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Agent,
    Coordinator,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Agent => Self::Coordinator,
            Self::Coordinator => Self::Agent,
        }
    }
}

/// A connection whose two ends have proven themselves. The halves may go apart.
#[derive(Debug)]
pub struct Session {
    pub sealer: frame::Sealer,
    pub decoder: frame::Decoder,
}

impl Session {
    fn new(key: auth::SessionKey, side: Side) -> Self {
        Self { decoder: frame::Decoder::new(key.clone(), side.other()), sealer: frame::Sealer::new(key, side) }
    }
}
