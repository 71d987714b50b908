//! Tells when one of many files has changed, or when its last writer has let go of it.
//!
//! The kernel reports the close of a file that was open for writing when the last process that shares the open file
//! is gone: so whoever follows a file hears of its writer's death too, without asking again and again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Any number of files, as one thing to wait for.
#[derive(Debug)]
pub struct Watch(Inotify);

impl Watch {
    pub fn new() -> io::Result<Self> {
        Ok(Self(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(io::Error::from)?))
    }

    /// One more file, or a directory in which files come and go. The same path twice is one watch.
    pub fn add(&self, path: &Path) -> io::Result<()> {
        let flags = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        self.0.add_watch(path, flags).map_err(io::Error::from)?;
        Ok(())
    }

    /// Forgets what was reported. Look at the files after this, not before.
    pub fn clear(&self) {
        while self.0.read_events().is_ok() {}
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
