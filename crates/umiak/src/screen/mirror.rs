//! Follows a log file that somebody else writes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

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
}

impl Mirror {
    pub(super) fn open(path: &Path, offset: u64) -> io::Result<Self> {
        // Watch first, read afterwards: growth between the two is then reported, not lost.
        let growth = Growth::of(path)?;
        Ok(Self { file: File::open(path)?, growth, offset, buffer: vec![0; CHUNK], path: path.to_owned() })
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
        let count = read_at(&self.file, &mut self.buffer[..wanted], self.offset).unwrap_or(0);
        self.offset += count as u64;
        &self.buffer[..count]
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
