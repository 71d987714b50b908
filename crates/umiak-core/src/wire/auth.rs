//! Keys, proofs and tags, all of them HMAC-SHA256.
//!
//! Tokens must be random: a recorded handshake allows guesses to be checked offline.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::Side;
use crate::model::JobId;

/// A random number of one side of one connection.
pub type Nonce = [u8; 16];

pub(super) const PROOF: usize = 32;
pub(super) const TAG: usize = 16;

type HmacSha256 = Hmac<Sha256>;

fn keyed(key: &[u8]) -> HmacSha256 {
    HmacSha256::new_from_slice(key).expect("HMAC accepts keys of any length")
}

fn digest(mac: &HmacSha256, parts: &[&[u8]]) -> HmacSha256 {
    let mut mac = mac.clone();
    for part in parts {
        mac.update(part);
    }
    mac
}

/// The key that the nodes of a job share.
#[derive(Clone)]
pub struct Key(HmacSha256);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// From `--token`.
    pub fn from_token(token: &str) -> Self {
        Self::derive(b"umiak token", token)
    }

    /// Without a token: prevents mix-ups, but does not protect against attackers.
    pub fn from_job_id(job_id: &JobId) -> Self {
        Self::derive(b"umiak job id", job_id.as_str())
    }

    fn derive(domain: &[u8], text: &str) -> Self {
        Self(keyed(&digest(&keyed(domain), &[text.as_bytes()]).finalize().into_bytes()))
    }

    pub(super) fn proof(&self, side: Side, nonces: &Nonces, job_id: &JobId) -> [u8; PROOF] {
        self.of(side.label(), nonces, job_id).finalize().into_bytes().into()
    }

    /// In constant time.
    pub(super) fn is_proof(&self, proof: &[u8], side: Side, nonces: &Nonces, job_id: &JobId) -> bool {
        self.of(side.label(), nonces, job_id).verify_slice(proof).is_ok()
    }

    pub(super) fn session(&self, nonces: &Nonces, job_id: &JobId) -> SessionKey {
        SessionKey(keyed(&self.of(b"session", nonces, job_id).finalize().into_bytes()))
    }

    /// Unambiguous: labels differ in their first byte, and all other parts have a fixed length except the job id, which
    /// is last.
    fn of(&self, label: &[u8], nonces: &Nonces, job_id: &JobId) -> HmacSha256 {
        digest(&self.0, &[label, &nonces.agent, &nonces.coordinator, job_id.as_str().as_bytes()])
    }
}

impl Side {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Agent => b"agent",
            Self::Coordinator => b"coordinator",
        }
    }
}

/// The nonces of both sides.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nonces {
    pub(super) agent: Nonce,
    pub(super) coordinator: Nonce,
}

/// The key of one connection.
#[derive(Clone)]
pub(super) struct SessionKey(HmacSha256);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

/// What a tag authenticates, besides the payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) from: Side,
    pub(super) counter: u64,
    pub(super) kind: u8,
}

impl SessionKey {
    pub(super) fn tag(&self, place: Place, payload: &PayloadHash) -> [u8; TAG] {
        let mut tag = [0; TAG];
        tag.copy_from_slice(&self.of(place, payload).finalize().into_bytes()[..TAG]);
        tag
    }

    /// In constant time.
    pub(super) fn is_tag(&self, tag: &[u8; TAG], place: Place, payload: &PayloadHash) -> bool {
        self.of(place, payload).verify_truncated_left(tag).is_ok()
    }

    fn of(&self, place: Place, payload: &PayloadHash) -> HmacSha256 {
        digest(&self.0, &[&[place.from as u8], &place.counter.to_le_bytes(), &[place.kind], &payload.0])
    }
}

/// Tags cover the hash of a payload, so that a payload for a thousand agents is hashed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PayloadHash([u8; 32]);

impl PayloadHash {
    pub(super) fn of(payload: &[u8]) -> Self {
        Self(Sha256::digest(payload).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> JobId {
        JobId::new(name).unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        use std::fmt::Write;
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    }

    /// RFC 4231, test case 2: checks that the crates are called correctly.
    #[test]
    fn hmac_of_the_rfc() {
        let mac = digest(&keyed(b"Jefe"), &[b"what do ya want ", b"for nothing?"]).finalize().into_bytes();
        assert_eq!(hex(&mac), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn everything_that_goes_into_a_proof_changes_it() {
        let nonces = Nonces { agent: [1; 16], coordinator: [2; 16] };
        let swapped = Nonces { agent: [2; 16], coordinator: [1; 16] };
        let token = Key::from_token("ctr");
        let without = Key::from_job_id(&job("ctr"));
        let mut proofs = vec![
            token.proof(Side::Agent, &nonces, &job("ctr")),
            token.proof(Side::Coordinator, &nonces, &job("ctr")),
            token.proof(Side::Agent, &swapped, &job("ctr")),
            token.proof(Side::Agent, &nonces, &job("ctr2")),
            without.proof(Side::Agent, &nonces, &job("ctr")),
            Key::from_token("ctr2").proof(Side::Agent, &nonces, &job("ctr")),
        ];
        assert!(token.is_proof(&proofs[0], Side::Agent, &nonces, &job("ctr")));
        assert!(!token.is_proof(&proofs[0][..31], Side::Agent, &nonces, &job("ctr")));
        assert!(!token.is_proof(&proofs[1], Side::Agent, &nonces, &job("ctr")));
        proofs.sort_unstable();
        proofs.dedup();
        assert_eq!(proofs.len(), 6);
    }

    #[test]
    fn keys_are_not_shown() {
        let key = Key::from_token("secret");
        let session = key.session(&Nonces { agent: [0; 16], coordinator: [0; 16] }, &job("j"));
        assert_eq!(format!("{key:?} {session:?}"), "Key SessionKey");
    }
}
