//! Tells when one of many files has changed, or when its last writer has let go of it.
//!
//! The kernel reports the close of a file that was open for writing when the last process that shares the open file
//! is gone: so whoever follows a file hears of its writer's death too, without asking again and again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

/// Any number of files, as one thing to wait for.
#[derive(Debug)]
pub struct Watch(Inotify);

/// One of them. A file that is added twice is one, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Watched(WatchDescriptor);

/// What has changed since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// In the order of their changes; one may stand there several times.
    pub files: Vec<Watched>,
    /// More has changed than the kernel could keep: any file may be among it.
    pub overflowed: bool,
}

impl Watch {
    pub fn new() -> io::Result<Self> {
        Ok(Self(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(io::Error::from)?))
    }

    /// One more file, or a directory in which files come and go. The same path twice is one watch.
    pub fn add(&self, path: &Path) -> io::Result<Watched> {
        let flags = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        self.0.add_watch(path, flags).map(Watched).map_err(io::Error::from)
    }

    /// Takes one off, which costs nothing now and makes the close of the whole cheap a few milliseconds later.
    pub fn remove(&self, watched: Watched) {
        let _ = self.0.rm_watch(watched.0);
    }

    /// What was reported, and forgets it. Look at the files after this, not before.
    pub fn changed(&self) -> Changed {
        let mut changed = Changed::default();
        while let Ok(events) = self.0.read_events() {
            for event in events {
                changed.overflowed |= event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
                changed.files.push(Watched(event.wd));
            }
        }
        changed
    }

    /// Forgets what was reported. Look at the files after this, not before.
    pub fn clear(&self) {
        self.changed();
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
