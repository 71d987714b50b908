//! The requests of PyTorch's TCPStore protocol, as clients of torch 2.2 and later send them.
//!
//! All numbers are little-endian; a string is a `u64` length and its bytes. A request may arrive in any number of
//! pieces, and several may arrive at once. Lengths are checked as soon as they are known, before anything is allocated
//! for them. `docs/design/0008-store.md` has the limits.

#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::machine::store::{Request, Strings};

/// Limits of torch's own server.
pub const MAX_KEY: usize = 8 << 10;
pub const MAX_VALUE: usize = 8 << 20;
pub const MAX_KEYS: usize = 128 << 10;

/// Follows the opcode of the first message.
const MAGIC: [u8; 4] = 0x3C85_F7CE_u32.to_le_bytes();

/// The opcodes of torch 2.12 to 2.15; older versions have fewer.
mod opcode {
    pub(super) const VALIDATE: u8 = 0;
    pub(super) const SET: u8 = 1;
    pub(super) const COMPARE_SET: u8 = 2;
    pub(super) const GET: u8 = 3;
    pub(super) const ADD: u8 = 4;
    pub(super) const CHECK: u8 = 5;
    pub(super) const WAIT: u8 = 6;
    pub(super) const NUM_KEYS: u8 = 7;
    pub(super) const DELETE: u8 = 8;
    pub(super) const APPEND: u8 = 9;
    pub(super) const MULTI_GET: u8 = 10;
    pub(super) const MULTI_SET: u8 = 11;
    pub(super) const CANCEL_WAIT: u8 = 12;
    pub(super) const PING: u8 = 13;
    pub(super) const QUEUE_PUSH: u8 = 14;
    pub(super) const QUEUE_POP: u8 = 15;
    pub(super) const QUEUE_LEN: u8 = 16;
    pub(super) const LIST_KEYS: u8 = 17;
    pub(super) const BARRIER: u8 = 18;
}

/// Why a connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    #[error("the client is torch 2.1 or older; torch 2.2 or later is required")]
    Torch22,
    #[error("the first bytes are not those of a torch client")]
    NotTorch,
    #[error("unknown request {0}")]
    Opcode(u8),
    #[error("key of {0} bytes exceeds the limit of {MAX_KEY}")]
    LongKey(u64),
    #[error("value of {0} bytes exceeds the limit of {MAX_VALUE}")]
    LongValue(u64),
    #[error("list of {0} keys exceeds the limit of {MAX_KEYS}")]
    ManyKeys(u64),
}

/// Finds the requests in the bytes of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reader {
    is_validated: bool,
    /// Strings of the request that are still to come, once `at` is not 0.
    left: u32,
    /// Bytes of the current request that have been checked.
    at: usize,
}

impl Reader {
    /// True once the first message has been read.
    pub fn is_validated(&self) -> bool {
        self.is_validated
    }

    /// The request that `bytes` begin with, and its length; nothing if more bytes are needed. The next call must pass
    /// the same bytes and more of them, or, after a request, what follows it. After an error the connection must be
    /// closed.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(Request<'a>, usize)>, Violation> {
        if !self.is_validated {
            self.is_validated = is_valid(bytes)?;
            return Ok(self.is_validated.then_some((Request::Validate, 1 + MAGIC.len())));
        }
        let Some(length) = self.measure(bytes)? else { return Ok(None) };
        (self.at, self.left) = (0, 0);
        Ok(decode(&bytes[..length]).map(|request| (request, length)))
    }

    /// The length of the request, once all of it is there. What has been checked is not checked again: a request of
    /// many strings in many pieces costs as much as in one.
    fn measure(&mut self, bytes: &[u8]) -> Result<Option<usize>, Violation> {
        let Some(&operation) = bytes.first() else { return Ok(None) };
        if self.at == 0 {
            let (strings, head) = match operation {
                opcode::NUM_KEYS | opcode::CANCEL_WAIT | opcode::PING | opcode::LIST_KEYS => (0, 1),
                opcode::GET
                | opcode::ADD
                | opcode::DELETE
                | opcode::QUEUE_POP
                | opcode::QUEUE_LEN
                | opcode::BARRIER => (1, 1),
                opcode::SET | opcode::APPEND | opcode::QUEUE_PUSH => (2, 1),
                opcode::COMPARE_SET => (3, 1),
                opcode::CHECK | opcode::WAIT | opcode::MULTI_GET | opcode::MULTI_SET => {
                    let Some(count) = number(bytes, 1) else { return Ok(None) };
                    if count > MAX_KEYS as u64 {
                        return Err(Violation::ManyKeys(count));
                    }
                    (if operation == opcode::MULTI_SET { 2 * count as u32 } else { count as u32 }, 9)
                }
                other => return Err(Violation::Opcode(other)),
            };
            (self.left, self.at) = (strings, head);
        }
        while self.left > 0 {
            let Some(length) = number(bytes, self.at) else { return Ok(None) };
            let is_key = match operation {
                opcode::SET | opcode::APPEND | opcode::QUEUE_PUSH | opcode::MULTI_SET => self.left.is_multiple_of(2),
                opcode::COMPARE_SET => self.left == 3,
                _ => true,
            };
            if is_key && length > MAX_KEY as u64 {
                return Err(Violation::LongKey(length));
            }
            if length > MAX_VALUE as u64 {
                return Err(Violation::LongValue(length));
            }
            let end = self.at + 8 + length as usize;
            if bytes.len() < end {
                return Ok(None);
            }
            self.at = end;
            self.left -= 1;
        }
        let tail = match operation {
            opcode::ADD | opcode::BARRIER => 8,
            opcode::PING => 4,
            _ => 0,
        };
        let length = self.at + tail;
        Ok((bytes.len() >= length).then_some(length))
    }
}

/// One whole request, whose lengths have been checked.
fn decode(bytes: &[u8]) -> Option<Request<'_>> {
    let (operation, body) = bytes.split_first()?;
    let mut strings = Strings::new(body).into_iter();
    let mut string = || strings.next();
    let last = || bytes.last_chunk::<8>().map(|bytes| i64::from_le_bytes(*bytes));
    let list = || Some(Strings::new(body.get(8..)?));
    Some(match *operation {
        opcode::SET => Request::Set { key: string()?, value: string()? },
        opcode::COMPARE_SET => Request::CompareSet { key: string()?, expected: string()?, desired: string()? },
        opcode::GET => Request::Get { key: string()? },
        opcode::ADD => Request::Add { key: string()?, delta: last()? },
        opcode::CHECK => Request::Check(list()?),
        opcode::WAIT => Request::Wait(list()?),
        opcode::NUM_KEYS => Request::NumKeys,
        opcode::DELETE => Request::Delete { key: string()? },
        opcode::APPEND => Request::Append { key: string()?, value: string()? },
        opcode::MULTI_GET => Request::MultiGet(list()?),
        opcode::MULTI_SET => Request::MultiSet(list()?),
        opcode::CANCEL_WAIT => Request::CancelWait,
        opcode::PING => Request::Ping(u32::from_le_bytes(*body.first_chunk::<4>()?)),
        opcode::QUEUE_PUSH => Request::QueuePush { key: string()?, value: string()? },
        opcode::QUEUE_POP => Request::QueuePop { key: string()? },
        opcode::QUEUE_LEN => Request::QueueLen { key: string()? },
        opcode::LIST_KEYS => Request::ListKeys,
        opcode::BARRIER => Request::Barrier { key: string()?, size: last()? },
        _ => return None,
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?))
}

/// True if a connection begins as it must, false if more bytes are needed.
fn is_valid(bytes: &[u8]) -> Result<bool, Violation> {
    let Some((&operation, rest)) = bytes.split_first() else { return Ok(false) };
    let known = rest.len().min(MAGIC.len());
    if operation == opcode::VALIDATE && rest[..known] == MAGIC[..known] {
        return Ok(known == MAGIC.len());
    }
    torch22_environment(operation, rest).map(|()| false)
}

/// Torch 2.1 and older have no first message, and each opcode is one lower (with one more before 2.1). Their first
/// request is `ADD init/` as a rule, or another one with a key, which begins with a slash.
fn torch22_environment(operation: u8, rest: &[u8]) -> Result<(), Violation> {
    const LISTS: [u8; 4] = [4, 5, 9, 10];
    const LAST: u8 = 10;
    const INIT: &[u8] = b"init/";
    if operation > LAST {
        return Err(Violation::NotTorch);
    }
    let mut rest = rest;
    let heads: &[usize] = if LISTS.contains(&operation) { &[MAX_KEYS, MAX_KEY] } else { &[MAX_KEY] };
    for limit in heads {
        let mut head = [0; 8];
        let known = rest.len().min(8);
        head[..known].copy_from_slice(&rest[..known]);
        let value = u64::from_le_bytes(head);
        if value > *limit as u64 || (known == 8 && value == 0) {
            return Err(Violation::NotTorch);
        }
        if known < 8 {
            return Ok(());
        }
        rest = &rest[8..];
    }
    let known = rest.len().min(INIT.len());
    match rest.first() {
        Some(b'/') => Err(Violation::Torch22),
        _ if known == INIT.len() && rest.starts_with(INIT) => Err(Violation::Torch22),
        _ if rest[..known] != INIT[..known] => Err(Violation::NotTorch),
        _ => Ok(()),
    }
}
