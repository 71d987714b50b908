//! The protocol between agents and the coordinator: authentication and framing.
//!
//! * [`auth`]: keys, proofs and tags.
//! * [`handshake`]: the first bytes of a connection, for both sides.
//! * [`frame`]: what follows: messages, the notice that a front has died, pieces of logs.
//!
//! Beside it, [`store`] reads the requests of torch's store clients, and [`etcd`] writes requests to etcd and reads its
//! answers.
//!
//! Nothing here reads or writes a socket: received bytes are passed in, and bytes to send are returned. Nonces are
//! arguments. `docs/design/rendezvous.md` has the layout. The protocol authenticates but does not encrypt.

pub mod auth;
pub mod etcd;
pub mod frame;
pub mod handshake;
pub mod store;
#[cfg(test)]
mod tests;

/// The protocol version. Sides with different versions refuse each other.
pub const VERSION: u16 = 10;

/// Maximum length of a frame from an agent that has not joined.
pub const BEFORE_JOIN: usize = 1 << 20;
/// Maximum length of any other frame.
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

/// An authenticated connection. The two halves can be used separately.
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
