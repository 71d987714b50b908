//! Watches many files for changes and for the exit of their last writer.
//!
//! The kernel reports the close of a file that was open for writing when the last process that shares the open file is
//! gone. So a reader that follows a file also learns of its writer's death, without polling.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use crate::hooks;

/// Any number of files as one descriptor.
#[derive(Debug)]
pub struct Watch(Inotify);

/// One watched file. Adding a file twice, under any name, returns the same watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Watched(WatchDescriptor);

/// Changes since the last call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// In the order of their changes; may contain duplicates.
    pub files: Vec<Watched>,
    /// The kernel's queue overflowed: any file may have changed.
    pub overflowed: bool,
}

impl Watch {
    pub fn new() -> io::Result<Self> {
        Ok(Self(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(io::Error::from)?))
    }

    /// Adds a file, or a directory in which files appear. Adding the same path twice returns one watch.
    pub fn add(&self, path: &Path) -> io::Result<Watched> {
        if hooks::is_unreported(path) {
            return self.0.add_watch(path, AddWatchFlags::IN_DELETE_SELF).map(Watched).map_err(io::Error::from);
        }
        let flags = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        self.0.add_watch(path, flags).map(Watched).map_err(io::Error::from)
    }

    /// Removes a watch. This is cheap now, and makes closing the whole set faster.
    pub fn remove(&self, watched: Watched) {
        let _ = self.0.rm_watch(watched.0);
    }

    /// Returns the changes and clears them. Read the files after this, not before.
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

    /// Clears the changes. Read the files after this, not before.
    pub fn clear(&self) {
        self.changed();
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
