//! Follows a log file that somebody else writes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use umiak_sys::logger;
use umiak_sys::wait::{Growth, read_at};

const CHUNK: usize = 128 << 10;

/// A file and how far it has been shown.
#[derive(Debug)]
pub(super) struct Mirror {
    file: File,
    growth: Growth,
    offset: u64,
    buffer: Vec<u8>,
    path: PathBuf,
    /// The number this file gets when it is cut by size: one more than those that were there before.
    number: u64,
}

impl Mirror {
    pub(super) fn open(path: &Path, offset: u64) -> io::Result<Self> {
        // Watch first, read afterwards: growth between the two is then reported, not lost.
        let growth = Growth::of(path)?;
        let number = logger::numbers(path).last().map_or(1, |last| last + 1);
        Ok(Self { file: File::open(path)?, growth, offset, buffer: vec![0; CHUNK], path: path.to_owned(), number })
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
            let (Ok(growth), Ok(file)) = (Growth::of(&path), File::open(&path)) else { return false };
            // The current file may have been cut while we opened it, and be the one after the next.
            if next.is_none() && later().is_some() {
                continue;
            }
            let number = next.unwrap_or_else(|| logger::numbers(&self.path).last().map_or(1, |last| last + 1));
            (self.growth, self.file, self.offset, self.number) = (growth, file, 0, number);
            return true;
        }
    }

    pub(super) fn clear(&self) {
        self.growth.clear();
    }
}

impl AsFd for Mirror {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.growth.as_fd()
    }
}
