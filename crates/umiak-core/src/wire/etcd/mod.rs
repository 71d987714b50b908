//! etcd's key-value protocol, version 3, as its JSON gateway speaks it.
//!
//! * [`request`]: what is posted, and where.
//! * [`answer`]: what the gateway answers.
//! * [`refusal`]: why etcd refuses a request, and what a client does then.
//!
//! Quirks of the gateway: keys and values are base64, 64-bit numbers are strings, and fields that are zero, false or empty
//! are absent. Answers of streams (`/v3/watch`, `/v3/lease/keepalive`) are one JSON text in a line each, inside `result`.
//! etcd 3.4, 3.5 and 3.6 differ in the form of errors only.

pub mod answer;
mod base64;
pub mod refusal;
pub mod request;
#[cfg(test)]
mod tests;

pub use answer::{Event, Fault, KeyValue, Listing, Written};
pub use refusal::{Refusal, Remedy};
pub use request::Request;

/// A state of the key space: every change increments it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A lease. The client chooses its number, so that a repeated request does not leave a second lease behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(u64);

impl LeaseId {
    /// A lease from random bits: etcd's numbers are positive and signed.
    pub fn from_random(bits: u64) -> Self {
        Self((bits >> 1).max(1))
    }

    /// `None` for 0, which is no lease.
    fn read(number: u64) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }
}
