//! Merges lines of several attempts by their times, where these are known. Nothing is read twice, and only a piece of
//! each log is held in memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::path::PathBuf;

use umiak_core::diag::Diagnostic;

use crate::cli::runs::write;
use crate::views::logs::LogLines;
use crate::views::times::{LineTime, Times, stamp};

use super::source::{self, Open};

/// Longer lines are split into pieces of this size.
const PIECE: usize = 64 << 10;
/// Bytes collected before they are written.
const AT_ONCE: usize = 64 << 10;
/// Number of lines examined to see whether a log has times.
const SAMPLE: usize = 200;

/// The output of one attempt while it is written.
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
    /// The next line, with its line feed if it has one.
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

    /// Copies everything unchanged.
    pub(super) fn copy(mut self) -> Result<(), Diagnostic> {
        while self.fill()? {
            self.start = self.buffer.len();
            if !write(&self.buffer)? {
                break;
            }
        }
        Ok(())
    }

    /// True if one of the first lines has a time.
    pub(super) fn has_times(&mut self) -> Result<bool, Diagnostic> {
        while self.buffer.len() < PIECE && self.fill()? {}
        let mut lines = self.buffer.split(|byte| *byte == b'\n').take(SAMPLE);
        Ok(lines.any(|line| stamp(line, 2000).is_some()))
    }

    /// Reads the next chunk; `false` at the end of the last part.
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

    /// Finds the next line not older than `since`. When following, an unfinished line stays in the buffer.
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

    /// Takes this number of bytes as the next line. `false` if it is older than `since`.
    fn take(&mut self, length: usize, since: Option<u64>) -> bool {
        let line = self.buffer[self.start..self.start + length].to_vec();
        self.start += length;
        let time = self.times.of(&line);
        let is_wanted = since.is_none_or(|since| time.at >= since);
        self.next = is_wanted.then_some((time, line));
        is_wanted
    }

    /// Writes the unfinished line at the end. When following, more of it may come.
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

    /// The line state, and the last file with its read position, for following.
    pub(super) fn into_rest(self) -> (LogLines, Option<(File, PathBuf, u64)>) {
        (self.lines, self.last)
    }
}

/// Writes all lines, oldest first. `false` when the reader has closed the pipe.
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
        // Lines of one attempt stay together until another attempt has an older line.
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
