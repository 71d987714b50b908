//! Follows a log file that somebody else writes.
//!
//! A file that lives is watched by inotify, so that nothing wakes up while nothing is written. The kernel takes up
//! to fifteen milliseconds to give a watch back, and a launcher that ends must not wait for that: a young job is
//! looked at every few milliseconds instead and watched only once it has lived a while, and a watch is taken off as
//! soon as the end has begun.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use umiak_sys::logger;
use umiak_sys::wait::{Growth, read_at};

const CHUNK: usize = 128 << 10;
/// From when on a file is worth watching.
const WATCH_AFTER: Duration = Duration::from_millis(300);
/// How often it is looked at before, and while its writer is being stopped.
const LOOK: Duration = Duration::from_millis(4);

#[derive(Debug)]
enum Attention {
    /// Too young to be watched.
    Young {
        since: Instant,
    },
    Watched(Growth),
    /// Its writer is being stopped: looked at, no longer watched.
    Ending(Option<Growth>),
    /// Its writer has ended: what is there is all.
    Ended(Option<Growth>),
}

/// A file and how far it has been shown.
#[derive(Debug)]
pub(super) struct Mirror {
    file: File,
    attention: Attention,
    offset: u64,
    buffer: Vec<u8>,
    path: PathBuf,
    /// The number this file gets when it is cut by size: one more than those that were there before.
    number: u64,
}

impl Mirror {
    pub(super) fn open(path: &Path, offset: u64) -> io::Result<Self> {
        let number = logger::numbers(path).last().map_or(1, |last| last + 1);
        let attention = Attention::Young { since: Instant::now() };
        Ok(Self { file: File::open(path)?, attention, offset, buffer: vec![0; CHUNK], path: path.to_owned(), number })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's size now.
    pub(super) fn end(&self) -> u64 {
        self.file.metadata().map_or(self.offset, |metadata| metadata.len())
    }

    /// The next bytes before `end`; empty when there are none.
    pub(super) fn next(&mut self, end: u64) -> &[u8] {
        let wanted = end.saturating_sub(self.offset).min(CHUNK as u64) as usize;
        let mut count = read_at(&self.file, &mut self.buffer[..wanted], self.offset).unwrap_or(0);
        if count == 0 && self.advance() {
            count = read_at(&self.file, &mut self.buffer, 0).unwrap_or(0);
        }
        self.offset += count as u64;
        &self.buffer[..count]
    }

    /// Goes on to the next file if this one has been cut and is read to its end.
    fn advance(&mut self) -> bool {
        let is_cut = |metadata: &std::fs::Metadata| {
            let is_removed = metadata.nlink() == 0;
            is_removed || std::fs::metadata(&self.path).is_ok_and(|current| current.ino() != metadata.ino())
        };
        if !self.file.metadata().is_ok_and(|metadata| self.offset >= metadata.len() && is_cut(&metadata)) {
            return false;
        }
        loop {
            // Whoever reads slowly may be several files behind; the oldest may be gone.
            let later = || logger::numbers(&self.path).into_iter().find(|number| *number > self.number);
            let next = later();
            let path = next.map_or_else(|| self.path.clone(), |number| logger::finished(&self.path, number));
            let Ok(file) = File::open(&path) else { return false };
            // The current file may have been cut while we opened it, and be the one after the next.
            if next.is_none() && later().is_some() {
                continue;
            }
            let number = next.unwrap_or_else(|| logger::numbers(&self.path).last().map_or(1, |last| last + 1));
            (self.file, self.offset, self.number) = (file, 0, number);
            // It is read now; whether it grows later is seen by looking, until it is watched in its turn.
            if matches!(self.attention, Attention::Watched(_)) {
                self.attention = Attention::Young { since: Instant::now() };
            }
            return true;
        }
    }

    /// When to look again, and whether by being told; a file that has become old enough is watched from here on.
    pub(super) fn attend(&mut self) -> Option<Duration> {
        match &self.attention {
            Attention::Young { since } if since.elapsed() >= WATCH_AFTER => {
                // Where there is nothing to watch with, looking goes on.
                let Ok(growth) = Growth::of(&self.path) else { return Some(LOOK) };
                self.attention = Attention::Watched(growth);
                // What came between the last look and the watch is seen now, not reported later.
                Some(Duration::ZERO)
            }
            Attention::Young { .. } | Attention::Ending(_) => Some(LOOK),
            Attention::Watched(_) | Attention::Ended(_) => None,
        }
    }

    /// Its writer is being stopped, or has ended.
    pub(super) fn let_go(&mut self, ended: bool) {
        let growth = match std::mem::replace(&mut self.attention, Attention::Ended(None)) {
            Attention::Watched(growth) => {
                growth.stop();
                Some(growth)
            }
            Attention::Ending(growth) | Attention::Ended(growth) => growth,
            Attention::Young { .. } => None,
        };
        self.attention = if ended { Attention::Ended(growth) } else { Attention::Ending(growth) };
    }

    /// It has a writer again.
    pub(super) fn take_up(&mut self) {
        self.attention = Attention::Young { since: Instant::now() };
    }

    pub(super) fn clear(&self) {
        if let Attention::Watched(growth) = &self.attention {
            growth.clear();
        }
    }

    /// What tells of growth, while there is such a thing.
    pub(super) fn watched(&self) -> Option<BorrowedFd<'_>> {
        match &self.attention {
            Attention::Watched(growth) => Some(growth.as_fd()),
            Attention::Young { .. } | Attention::Ending(_) | Attention::Ended(_) => None,
        }
    }
}
