//! Lines of several attempts in one order: by their times, as far as these are known. Nothing is read twice, and no more
//! than a piece of each log is held.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::path::PathBuf;

use umiak_core::diag::Diagnostic;

use crate::cli::runs::write;
use crate::views::logs::LogLines;
use crate::views::times::{LineTime, Times, stamp};

use super::source::{self, Open};

/// A line that does not end is taken in pieces of this size.
const PIECE: usize = 64 << 10;
/// So much is gathered before it is written.
const AT_ONCE: usize = 64 << 10;
/// So many lines show whether a log carries times.
const SAMPLE: usize = 200;

/// The output of one attempt on its way out.
#[derive(Debug)]
pub(super) struct Telling {
    replica: String,
    attempt: u32,
    parts: VecDeque<Open>,
    /// The file that was read last, and how far.
    last: Option<(File, PathBuf, u64)>,
    buffer: Vec<u8>,
    start: usize,
    times: Times,
    pub(super) lines: LogLines,
    /// The next line with its end, where it has one.
    next: Option<(LineTime, Vec<u8>)>,
}

impl Telling {
    pub(super) fn new(replica: &str, attempt: u32, parts: Vec<Open>, began: u64, lines: LogLines) -> Self {
        Self {
            replica: replica.to_owned(),
            attempt,
            parts: parts.into(),
            last: None,
            buffer: Vec::new(),
            start: 0,
            times: Times::since(began),
            lines,
            next: None,
        }
    }

    pub(super) fn replica(&self) -> &str {
        &self.replica
    }

    pub(super) fn began(&self) -> u64 {
        self.times.last()
    }

    /// All of it, as it is.
    pub(super) fn copy(mut self) -> Result<(), Diagnostic> {
        while self.fill()? {
            self.start = self.buffer.len();
            if !write(&self.buffer)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether its lines carry times, as far as its beginning shows.
    pub(super) fn has_times(&mut self) -> Result<bool, Diagnostic> {
        while self.buffer.len() < PIECE && self.fill()? {}
        let mut lines = self.buffer.split(|byte| *byte == b'\n').take(SAMPLE);
        Ok(lines.any(|line| stamp(line, 2000).is_some()))
    }

    /// Reads on; `false` at the end of all.
    fn fill(&mut self) -> Result<bool, Diagnostic> {
        while let Some(part) = self.parts.front_mut() {
            let path = part.path();
            let chunk = part.next().map_err(|error| source::unreadable(&self.replica, self.attempt, &path, &error))?;
            if let Some(chunk) = chunk {
                self.buffer.drain(..self.start);
                self.start = 0;
                self.buffer.extend_from_slice(chunk);
                return Ok(true);
            }
            if let Some(part) = self.parts.pop_front() {
                let offset = part.offset();
                self.last = Some((part.file(), path, offset));
            }
        }
        Ok(false)
    }

    /// The next line that was not written before `since`. What has no end yet is left where more of it may come.
    fn advance(&mut self, since: Option<u64>, is_followed: bool) -> Result<(), Diagnostic> {
        loop {
            let held = &self.buffer[self.start..];
            let end = held.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
            let Some(end) = end.or((held.len() >= PIECE).then_some(held.len())) else {
                if self.fill()? {
                    continue;
                }
                self.next = None;
                let length = self.buffer.len() - self.start;
                if !is_followed && length > 0 {
                    self.take(length, since);
                }
                return Ok(());
            };
            if self.take(end, since) {
                return Ok(());
            }
        }
    }

    /// So many bytes are the next line, unless it was written before `since`.
    fn take(&mut self, length: usize, since: Option<u64>) -> bool {
        let line = self.buffer[self.start..self.start + length].to_vec();
        self.start += length;
        let time = self.times.of(&line);
        let is_wanted = since.is_none_or(|since| time.at >= since);
        self.next = is_wanted.then_some((time, line));
        is_wanted
    }

    /// Everything is out but for the beginning of a line. More of it may come where the attempt is followed.
    fn end(&mut self, is_followed: bool, since: Option<u64>, out: &mut Vec<u8>) {
        let rest = self.buffer.split_off(self.start);
        let time = self.times.of(&rest);
        if since.is_none_or(|since| time.at >= since) {
            out.extend(self.lines.feed(&rest, time));
        }
        if !is_followed {
            out.extend(self.lines.finish(time));
        }
    }

    /// What is left to follow: its lines, and the file with how far it was read.
    pub(super) fn into_rest(self) -> (LogLines, Option<(File, PathBuf, u64)>) {
        (self.lines, self.last)
    }
}

/// Writes all of them, the oldest line first. `false` when the reader has gone away.
pub(super) fn tell(all: &mut [Telling], since: &[Option<u64>], is_followed: bool) -> Result<bool, Diagnostic> {
    let mut heap = BinaryHeap::new();
    let mut out = Vec::new();
    for (index, telling) in all.iter_mut().enumerate() {
        telling.advance(since[index], is_followed)?;
        match &telling.next {
            Some((time, _)) => heap.push(Reverse((time.at, index))),
            None => telling.end(is_followed, since[index], &mut out),
        }
    }
    while let Some(Reverse((_, index))) = heap.pop() {
        let telling = &mut all[index];
        // The lines of one stay together for as long as none of another is older.
        let until = heap.peek().map(|Reverse(next)| *next);
        while let Some((time, line)) = telling.next.take() {
            out.extend(telling.lines.feed(&line, time));
            if out.len() >= AT_ONCE && !write(&std::mem::take(&mut out))? {
                return Ok(false);
            }
            telling.advance(since[index], is_followed)?;
            match &telling.next {
                None => telling.end(is_followed, since[index], &mut out),
                Some((time, _)) if until.is_some_and(|until| (time.at, index) > until) => {
                    heap.push(Reverse((time.at, index)));
                    break;
                }
                Some(_) => {}
            }
        }
    }
    write(&out)
}
