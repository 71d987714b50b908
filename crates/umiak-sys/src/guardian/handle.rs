//! The front's end: starting the guardian, commands to it, notices from it.

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
use crate::protocol::{self, Command, Inbox, Notice};

/// How the guardian is set up.
#[derive(Debug, Default)]
pub struct GuardianOptions {
    /// The guardian, and with it everything it starts, is born here.
    pub cgroup: Option<Cgroup>,
    /// A PID namespace of its own: when the guardian ends, the kernel ends everything in it.
    pub isolate: bool,
}

/// The front's end.
#[derive(Debug)]
pub struct Guardian {
    /// As this process counts, in a namespace or not.
    pub pid: u32,
    stream: UnixStream,
    inbox: Inbox,
    cgroup: Option<PathBuf>,
    room: Option<MemoryCgroup>,
}

impl Guardian {
    /// Forks the guardian. To be called before this process has a second thread.
    pub fn start(options: GuardianOptions) -> io::Result<Self> {
        Self::start_with(options, None)
    }

    /// The same with a place in which limits of memory can be set.
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

    /// Gives the guardian a socket, and what to say on it if we are gone.
    pub fn hold(&mut self, socket: BorrowedFd<'_>, last_words: Vec<u8>) -> io::Result<()> {
        protocol::send_with(&mut self.stream, &Command::Hold { last_words }, socket)
    }

    /// Reaps the guardian, which is about to end or has ended.
    pub fn wait(&self) {
        // SAFETY: waits for our own child; nothing is written.
        unsafe {
            libc::waitpid(self.pid as libc::pid_t, ptr::null_mut(), 0);
        }
        self.remove_cgroups();
    }

    /// For when the guardian could not, because it was killed.
    pub fn remove_cgroups(&self) {
        if let Some(path) = &self.cgroup {
            cgroup::remove_tree(path);
        }
        if let Some(room) = &self.room {
            room.remove();
        }
    }

    /// Waits for the next notices; `None` when the guardian is gone.
    pub fn receive(&mut self) -> io::Result<Option<Vec<Notice>>> {
        self.inbox.receive(&mut self.stream)
    }
}

impl AsFd for Guardian {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
