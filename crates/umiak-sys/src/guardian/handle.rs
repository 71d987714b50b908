//! The front's end: starting the guardian, sending commands, receiving notices.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::ptr;

use super::birth;
use super::service::run;
use crate::cgroup::{self, Cgroup};
use crate::descend;
use crate::memory::MemoryCgroup;
use crate::protocol::{self, Command, Inbox, LastWords, Notice};

/// Setup of the guardian.
#[derive(Debug, Default)]
pub struct GuardianOptions {
    /// The guardian and everything it starts run in this cgroup.
    pub cgroup: Option<Cgroup>,
    /// A PID namespace for the guardian: when it ends, the kernel kills everything inside.
    pub isolate: bool,
}

/// The front's end.
#[derive(Debug)]
pub struct Guardian {
    /// Its process id outside the namespace.
    pub pid: u32,
    stream: UnixStream,
    inbox: Inbox,
    cgroup: Option<PathBuf>,
    room: Option<MemoryCgroup>,
}

impl Guardian {
    /// Forks the guardian. Must be called before this process has a second thread.
    pub fn start(options: GuardianOptions) -> io::Result<Self> {
        Self::start_with(options, None)
    }

    /// Like [`Guardian::start`], with a cgroup in which memory limits can be set.
    pub fn start_with(options: GuardianOptions, room: Option<MemoryCgroup>) -> io::Result<Self> {
        descend::become_subreaper()?;
        let (front, guardian) = UnixStream::pair()?;
        let mut cgroup = options.cgroup;
        let forked = birth::fork(&mut cgroup, options.isolate);
        if forked.is_err() {
            if let Some(unused) = &cgroup {
                unused.remove();
            }
            if let Some(unused) = &room {
                unused.remove();
            }
        }
        match forked? {
            (0, namespaces) => {
                drop(front);
                run(guardian, cgroup, room, namespaces)
            }
            (pid, _) => Ok(Self {
                pid: pid as u32,
                stream: front,
                inbox: Inbox::default(),
                cgroup: cgroup.map(|cgroup| cgroup.path().to_owned()),
                room,
            }),
        }
    }

    pub fn send(&mut self, command: &Command) -> io::Result<()> {
        protocol::send(&mut self.stream, command)
    }

    /// Gives the guardian a socket, and a message to send on it if the front dies.
    pub fn hold(&mut self, socket: BorrowedFd<'_>, last_words: LastWords) -> io::Result<()> {
        protocol::send_with(&mut self.stream, &Command::Hold(last_words), &[socket])
    }

    /// Gives the guardian a lock to hold until it exits.
    pub fn keep(&mut self, lock: BorrowedFd<'_>) -> io::Result<()> {
        protocol::send_with(&mut self.stream, &Command::Keep, &[lock])
    }

    /// Starts another guardian in the place of one that was killed. This process may have threads, so it executes its
    /// own program again with these words, which must lead to [`super::serve_executed`].
    pub fn start_again(&mut self, words: &[&CStr], isolate: bool) -> io::Result<()> {
        let (front, guardian) = UnixStream::pair()?;
        let pid = birth::execute(words, guardian.as_fd(), isolate)?;
        let cgroup = self.cgroup.take().and_then(|_| Cgroup::create());
        self.cgroup = cgroup.map(|cgroup| cgroup.path().to_owned());
        (self.pid, self.stream, self.inbox) = (pid as u32, front, Inbox::default());
        let place = self.room.as_ref().map(MemoryCgroup::place);
        let (room, lock) = place.map_or((None, None), |(room, lock)| (Some(room), Some(lock)));
        let command = Command::Place { cgroup: self.cgroup.clone(), room };
        match lock {
            Some(lock) => protocol::send_with(&mut self.stream, &command, &[lock]),
            None => protocol::send(&mut self.stream, &command),
        }
    }

    /// Closes the socket, so that the guardian exits by itself.
    pub fn hang_up(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// True if the guardian has exited. It is reaped then.
    pub fn has_exited(&self) -> bool {
        // SAFETY: waits for our own child; nothing is written.
        unsafe { libc::waitpid(self.pid as libc::pid_t, ptr::null_mut(), libc::WNOHANG) != 0 }
    }

    /// Reaps the guardian, which is about to exit or has exited.
    pub fn wait(&self) {
        // SAFETY: waits for our own child; nothing is written.
        unsafe {
            libc::waitpid(self.pid as libc::pid_t, ptr::null_mut(), 0);
        }
    }

    /// Kills what is left in the cgroups of a guardian that was killed, and removes them, except the one for memory
    /// limits itself: another guardian may use it.
    pub fn empty_cgroups(&self) {
        if let Some(path) = &self.cgroup {
            cgroup::kill_and_remove(path);
        }
        if let Some(room) = &self.room {
            room.empty();
        }
    }

    /// Removes the cgroups if the guardian was killed and could not.
    pub fn remove_cgroups(&self) {
        if let Some(path) = &self.cgroup {
            cgroup::kill_and_remove(path);
        }
        if let Some(room) = &self.room {
            room.remove();
        }
    }

    /// Waits for the next notices; `None` if the guardian is gone.
    pub fn receive(&mut self) -> io::Result<Option<Vec<Notice>>> {
        self.inbox.receive(&mut self.stream)
    }
}

impl AsFd for Guardian {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
