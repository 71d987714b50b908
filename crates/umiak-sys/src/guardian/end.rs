//! Stopping leftovers and cleaning up: between two attempts, at the end, and when the front is gone.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollTimeout;
use nix::sys::socket::MsgFlags;

use super::leases::Leases;
use super::ranks::Rank;
use super::service::Service;
use crate::descend::{Sweep, Sweeping};
use crate::protocol::{Notice, ProcessKey};

/// How long a process may take to exit after SIGKILL before it is reported and abandoned.
const PATIENCE: Duration = Duration::from_secs(10);

impl Service {
    /// Cleans up between two attempts. `more` is true if other commands came with this one.
    pub(super) fn clear(&mut self, keep_ports: bool, more: bool) {
        let hurry = || more || is_urged(&self.front);
        let sweep = self.sweep(self.grace, PATIENCE, &hurry);
        self.remove_cells();
        // The loggers of this attempt have ended with its ranks.
        self.loggers.clear();
        if !keep_ports {
            self.leases.release_ports();
        }
        if !self.ranks.values().any(Rank::is_alive) {
            self.ranks.clear();
            self.by_pid.clear();
            self.asked.clear();
        }
        self.tell(&Notice::Cleared { stopped: sweep.stopped, remaining: sweep.remaining });
    }

    /// Cleans up after all ranks, before the guardian exits.
    pub(super) fn finish(&mut self, patient: bool, more: bool) {
        let (grace, patience) = if patient { (self.grace, PATIENCE) } else { (Duration::ZERO, Duration::ZERO) };
        let hurry = || more || is_urged(&self.front);
        let sweep = self.sweep(grace, patience, &hurry);
        self.clean_up();
        self.tell(&Notice::Swept { stopped: sweep.stopped, remaining: sweep.remaining });
        if waiting(&self.front) == Some(0) {
            self.remove_cgroup();
        }
    }

    /// Stops everything and cleans up after the front is gone.
    pub(super) fn finish_alone(&mut self) -> io::Result<()> {
        self.say_last_words(false);
        let live: Vec<ProcessKey> = self.ranks.values().filter(|rank| rank.is_alive()).map(|rank| rank.key).collect();
        self.signal(libc::SIGTERM, &live);
        let deadline = Instant::now() + self.grace;
        while self.ranks.values().any(Rank::is_alive) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let timeout = EpollTimeout::try_from(left.as_millis().max(1)).unwrap_or(EpollTimeout::MAX);
            // The closed front stays readable forever: stop polling it.
            let _ = self.epoll.delete(&self.front);
            let ready = self.wait(timeout)?;
            self.handle_exits(&ready)?;
        }
        self.sweep(deadline.saturating_duration_since(Instant::now()), PATIENCE, &|| false);
        self.say_last_words(true);
        self.clean_up();
        self.remove_cgroup();
        Ok(())
    }

    /// Sends the last message, if it is for now.
    fn say_last_words(&mut self, after_ranks: bool) {
        if let Some((socket, words)) = self.last_words.take_if(|(_, words)| words.after_ranks == after_ranks) {
            // Once, without blocking: a peer with a full buffer detects the loss by itself.
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let _ = nix::sys::socket::send(socket.as_raw_fd(), &words.bytes, flags);
        }
    }

    fn sweep(&self, grace: Duration, patience: Duration, hurry: &dyn Fn() -> bool) -> Sweep {
        let is_asked = |pid| self.asked.concerns(pid);
        Sweeping { grace, patience, spare: &self.loggers, is_asked: &is_asked, hurry }.run()
    }

    /// Removes the cgroup in place of the front, which is gone.
    fn remove_cgroup(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.leave_and_remove();
        }
    }

    fn clean_up(&mut self) {
        for path in self.remove_at_end.drain(..) {
            let _ = std::fs::remove_dir_all(path);
        }
        self.leases = Leases::default();
        // A process here that is not our descendant was moved here on purpose; kill it too.
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill_all_but(self.me as u32);
        }
        if let Some(room) = &self.room {
            room.remove();
        }
    }
}

/// True if the front sent another command during a sweep, so that it does not wait.
fn is_urged(front: &UnixStream) -> bool {
    waiting(front).is_some_and(|bytes| bytes > 0)
}

/// Unread bytes from the front: 0 if it has closed, `None` if nothing was sent.
fn waiting(front: &UnixStream) -> Option<usize> {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    nix::sys::socket::recv(front.as_raw_fd(), &mut [0], flags).ok()
}
