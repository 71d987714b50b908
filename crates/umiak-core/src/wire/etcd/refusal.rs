//! Why etcd refuses a request.

use thiserror::Error;

/// What etcd said. Its texts are stable: clients in all languages compare them.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("no leader")]
    NoLeader,
    /// The members did not agree in time. The request may have been performed.
    #[error("the members did not agree in time")]
    TimedOut,
    /// The member cannot serve now: it stops, starts, or has too much to do. The request may have been performed.
    #[error("{0}")]
    Unavailable(String),
    #[error("wrong user name or password")]
    Password,
    #[error("a user name and a password are required")]
    NoUser,
    /// The token has expired, or the member that restarted does not know it.
    #[error("the session has expired")]
    Token,
    #[error("authentication is not enabled")]
    AuthenticationOff,
    #[error("permission denied")]
    Permission,
    #[error("no such lease")]
    NoLease,
    #[error("the lease exists already")]
    LeaseExists,
    #[error("the storage is full")]
    Full,
    #[error("the request is too large")]
    TooLarge,
    /// The revision is no longer kept.
    #[error("the revision has been compacted")]
    Compacted,
    #[error("{0}")]
    Other(String),
}

/// What a client does after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Reports it: no member would answer differently.
    GiveUp,
    /// Authenticates again.
    Authenticate,
    /// Asks another member, or again later. `maybe_done` if the request may have been performed.
    TryAgain { maybe_done: bool },
}

/// Longest text of etcd that is kept.
const LONGEST: usize = 200;

/// Refusals that pass but have numbers of others: while a member stops, is overloaded, or the leader moves.
const PASSING: &[&str] =
    &["too many requests", "server stopped", "raft proposal dropped", "raft: stopped", "not a primary lessor"];

/// Numbers of gRPC.
mod number {
    pub(super) const CANCELLED: u64 = 1;
    pub(super) const DEADLINE_EXCEEDED: u64 = 4;
    pub(super) const UNAVAILABLE: u64 = 14;
    pub(super) const UNAUTHENTICATED: u64 = 16;
}

impl Refusal {
    /// From the number of gRPC and the text.
    pub(super) fn new(number: u64, text: &str) -> Self {
        let has = |part: &str| text.contains(part);
        match number {
            _ if has("no leader") => Self::NoLeader,
            _ if has("invalid user ID or password") => Self::Password,
            _ if has("user name is empty") => Self::NoUser,
            _ if has("authentication is not enabled") => Self::AuthenticationOff,
            _ if has("permission denied") => Self::Permission,
            _ if has("lease not found") => Self::NoLease,
            _ if has("lease already exists") => Self::LeaseExists,
            _ if has("space exceeded") => Self::Full,
            _ if has("request is too large") => Self::TooLarge,
            _ if has("has been compacted") => Self::Compacted,
            number::UNAUTHENTICATED => Self::Token,
            // The first in a cancelled watch, which has no number; the second after a change of users.
            _ if has("invalid auth token") || has("auth store is old") => Self::Token,
            number::DEADLINE_EXCEEDED => Self::TimedOut,
            _ if has("request timed out") || has("leader changed") => Self::TimedOut,
            number::UNAVAILABLE | number::CANCELLED => Self::Unavailable(shortened(text)),
            _ if PASSING.iter().any(|part| has(part)) => Self::Unavailable(shortened(text)),
            _ => Self::Other(shortened(text)),
        }
    }

    pub fn remedy(&self) -> Remedy {
        match self {
            // The member looks for its leader before it does anything.
            Self::NoLeader => Remedy::TryAgain { maybe_done: false },
            Self::TimedOut | Self::Unavailable(_) => Remedy::TryAgain { maybe_done: true },
            Self::Token => Remedy::Authenticate,
            Self::Password
            | Self::NoUser
            | Self::AuthenticationOff
            | Self::Permission
            | Self::NoLease
            | Self::LeaseExists
            | Self::Full
            | Self::TooLarge
            | Self::Compacted
            | Self::Other(_) => Remedy::GiveUp,
        }
    }
}

pub(super) fn shortened(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
