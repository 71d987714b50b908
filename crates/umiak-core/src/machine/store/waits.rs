//! Clients that wait for keys.
//!
//! A wait watches one key at a time: the first of its keys that is missing. So a wait for many keys costs no more than
//! its request, and the lines of clients are lists through the waits, from which each can be removed at once.

use std::collections::HashMap;
use std::rc::Rc;

use super::request::{ConnectionId, Strings};

/// How many keys are looked at for a report.
const LOOKS: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Waits {
    slots: Vec<Option<Wait>>,
    free: Vec<usize>,
    of: HashMap<ConnectionId, usize>,
    /// The line of each key that is watched.
    lines: HashMap<Rc<[u8]>, Line>,
}

#[derive(Debug)]
struct Wait {
    connection: ConnectionId,
    watched: Rc<[u8]>,
    rest: Rest,
    previous: Option<usize>,
    next: Option<usize>,
}

/// First and last wait in order of arrival.
#[derive(Debug, Clone, Copy)]
struct Line {
    first: usize,
    last: usize,
}

/// The keys to look at after the watched one.
#[derive(Debug, Default)]
pub(super) struct Rest {
    keys: Box<[u8]>,
    at: usize,
}

impl Rest {
    pub(super) fn new(keys: &[u8]) -> Self {
        Self { keys: keys.into(), at: 0 }
    }

    pub(super) fn keys(&self) -> Strings<'_> {
        Strings::new(self.keys.get(self.at..).unwrap_or_default())
    }

    pub(super) fn skip(self, length: usize) -> Self {
        Self { at: self.at + length, ..self }
    }
}

/// A wait that no longer watches a key.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) connection: ConnectionId,
    pub(super) rest: Rest,
}

impl Waits {
    /// The connection must not be waiting.
    pub(super) fn insert(&mut self, connection: ConnectionId, watched: &[u8], rest: Rest) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let (watched, previous) = match self.lines.get_key_value(watched) {
            Some((key, line)) => (Rc::clone(key), Some(line.last)),
            None => (Rc::from(watched), None),
        };
        if let Some(last) = previous.and_then(|last| self.slots[last].as_mut()) {
            last.next = Some(at);
        }
        let line = self.lines.entry(Rc::clone(&watched)).or_insert(Line { first: at, last: at });
        line.last = at;
        self.slots[at] = Some(Wait { connection, watched, rest, previous, next: None });
        self.of.insert(connection, at);
    }

    /// Ends the wait of a connection, if there is one.
    pub(super) fn remove(&mut self, connection: ConnectionId) {
        if self.of.is_empty() {
            return;
        }
        if let Some(at) = self.of.get(&connection).copied() {
            self.take(at);
        }
    }

    /// Takes the wait that has watched `key` for the longest time.
    pub(super) fn take_first(&mut self, key: &[u8]) -> Option<Taken> {
        if self.lines.is_empty() {
            return None;
        }
        let first = self.lines.get(key)?.first;
        self.take(first)
    }

    /// Takes all waits that watch `key`, in order of arrival.
    pub(super) fn take_all(&mut self, key: &[u8]) -> Vec<Taken> {
        let mut taken = Vec::new();
        if self.lines.is_empty() {
            return taken;
        }
        let mut next = self.lines.remove(key).map(|line| line.first);
        while let Some(wait) = next.and_then(|at| self.vacate(at)) {
            next = wait.next;
            taken.push(Taken { connection: wait.connection, rest: wait.rest });
        }
        taken
    }

    fn take(&mut self, at: usize) -> Option<Taken> {
        let wait = self.vacate(at)?;
        match (wait.previous, wait.next) {
            (None, None) => {
                self.lines.remove(&wait.watched);
            }
            (previous, next) => {
                if let Some(previous) = previous.and_then(|at| self.slots[at].as_mut()) {
                    previous.next = next;
                }
                if let Some(next) = next.and_then(|at| self.slots[at].as_mut()) {
                    next.previous = previous;
                }
                if let Some(line) = self.lines.get_mut(&wait.watched) {
                    line.first = if previous.is_none() { next.unwrap_or(line.first) } else { line.first };
                    line.last = if next.is_none() { previous.unwrap_or(line.last) } else { line.last };
                }
            }
        }
        Some(Taken { connection: wait.connection, rest: wait.rest })
    }

    fn vacate(&mut self, at: usize) -> Option<Wait> {
        let wait = self.slots[at].take()?;
        self.of.remove(&wait.connection);
        self.free.push(at);
        if self.of.is_empty() {
            // Nothing is left of a crowd.
            (self.slots, self.free) = (Vec::new(), Vec::new());
        }
        Some(wait)
    }

    /// The most wanted keys. `is_missing` decides about keys that are not watched yet.
    pub(super) fn keys(&self, limit: usize, is_missing: impl Fn(&[u8]) -> bool) -> Vec<(Vec<u8>, usize)> {
        let mut wanted: HashMap<&[u8], usize> = HashMap::new();
        let mut looks = LOOKS;
        for wait in self.slots.iter().flatten() {
            *wanted.entry(&wait.watched).or_default() += 1;
            for key in wait.rest.keys().into_iter().take(looks) {
                looks -= 1;
                if *key != *wait.watched && is_missing(key) {
                    *wanted.entry(key).or_default() += 1;
                }
            }
        }
        let mut wanted: Vec<(&[u8], usize)> = wanted.into_iter().collect();
        let order = |a: &(&[u8], usize), b: &(&[u8], usize)| b.1.cmp(&a.1).then(a.0.cmp(b.0));
        if wanted.len() > limit {
            wanted.select_nth_unstable_by(limit, order);
            wanted.truncate(limit);
        }
        wanted.sort_unstable_by(order);
        wanted.into_iter().map(|(key, count)| (key.to_vec(), count)).collect()
    }
}
