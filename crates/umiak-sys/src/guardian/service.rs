//! The guardian's main loop: exits first, then commands, one at a time.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::SigSet;

use super::asked::Asked;
use super::birth;
use super::leases::Leases;
use super::ranks::{Alive, Rank};
use crate::cgroup::{self, Cgroup};
use crate::descend::{self, ProcessUsage, Reaped};
use crate::fork::Namespaces;
use crate::hooks;
use crate::limits;
use crate::memory::{self, MemoryCgroup};
use crate::protocol::{self, Command, Inbox, LastWords, Notice, ProcessKey, ProcessLimits};
use crate::wait::Signals;

const FRONT: u64 = u64::MAX;
const CHILDREN: u64 = u64::MAX - 1;

/// Runs the guardian and exits the process.
pub(super) fn run(front: UnixStream, cgroup: Option<Cgroup>, room: Option<MemoryCgroup>, namespaces: Namespaces) -> ! {
    birth::settle(namespaces, &crate::fork::UserMap::of_this_process());
    let code = match Service::new(front, cgroup, room).and_then(|mut service| service.serve()) {
        Ok(()) => 0,
        Err(_) => 125,
    };
    // SAFETY: exits without running the front's destructors and exit handlers.
    unsafe { libc::_exit(code) }
}

/// Runs the guardian in a process that a front with threads has executed for it. Returns an error if it was not.
pub fn serve_executed() -> io::Result<()> {
    birth::set_name(c"umiak-guardian");
    // SAFETY: no pointers; an open descriptor has no other owner in a program that has just begun.
    let socket = unsafe {
        if libc::fcntl(birth::SOCKET, libc::F_SETFD, libc::FD_CLOEXEC) == -1 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(birth::SOCKET)
    };
    let front = UnixStream::from(socket);
    front.peer_addr()?;
    Service::new(front, None, None)?.serve()
}

#[derive(Debug)]
pub(super) struct Service {
    pub(super) front: UnixStream,
    pub(super) inbox: Inbox,
    pub(super) outbox: Vec<u8>,
    pub(super) epoll: Epoll,
    pub(super) children: Signals,
    pub(super) me: libc::pid_t,
    /// In start order, by a number that is never reused: an event may arrive after its rank has ended.
    pub(super) ranks: BTreeMap<u64, Rank>,
    pub(super) next_rank: u64,
    pub(super) by_pid: HashMap<u32, u64>,
    pub(super) leases: Leases,
    /// Each exits by itself with its last writer; they are never signalled.
    pub(super) loggers: Vec<u32>,
    pub(super) remove_at_end: Vec<PathBuf>,
    pub(super) grace: Duration,
    /// The socket to the coordinator of a job on several nodes, and the message to send on it.
    pub(super) last_words: Option<(OwnedFd, LastWords)>,
    pub(super) asked: Asked,
    /// Locks, released when the guardian exits.
    pub(super) kept: Vec<OwnedFd>,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) room: Option<MemoryCgroup>,
    /// Limits of the processes that are started next.
    pub(super) limits: HashMap<ProcessKey, ProcessLimits>,
    /// Cgroups of ended ranks that may still contain processes.
    pub(super) emptying: Vec<PathBuf>,
    pub(super) pause_before_exec: Duration,
}

impl Service {
    pub(super) fn new(front: UnixStream, cgroup: Option<Cgroup>, room: Option<MemoryCgroup>) -> io::Result<Self> {
        // SAFETY: system calls on our own process; a failing setsid or prctl changes nothing.
        let me = unsafe {
            libc::setsid();
            libc::getpid()
        };
        descend::become_subreaper()?;
        limits::raise();
        // Only SIGKILL and the end of the front stop the guardian.
        SigSet::all().thread_set_mask().map_err(io::Error::from)?;
        let children = Signals::block(&[libc::SIGCHLD])?;
        birth::redirect_output_to_null();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io::Error::from)?;
        epoll.add(&front, EpollEvent::new(EpollFlags::EPOLLIN, FRONT)).map_err(io::Error::from)?;
        epoll.add(&children, EpollEvent::new(EpollFlags::EPOLLIN, CHILDREN)).map_err(io::Error::from)?;
        Ok(Self {
            front,
            inbox: Inbox::default(),
            outbox: Vec::new(),
            epoll,
            children,
            me,
            ranks: BTreeMap::new(),
            next_rank: 0,
            by_pid: HashMap::new(),
            leases: Leases::default(),
            loggers: Vec::new(),
            remove_at_end: Vec::new(),
            grace: Duration::from_secs(5),
            last_words: None,
            asked: Asked::default(),
            kept: Vec::new(),
            cgroup,
            room,
            limits: HashMap::new(),
            emptying: Vec::new(),
            pause_before_exec: hooks::pause_before_exec(),
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            // Exits first, in the order in which the kernel queued them; then commands.
            self.flush();
            let ready = self.wait(EpollTimeout::NONE)?;
            self.handle_exits(&ready)?;
            self.flush();
            if ready.contains(&FRONT) {
                match self.inbox.receive::<Command>(&mut self.front) {
                    Ok(Some(commands)) => {
                        let mut commands = commands.into_iter();
                        while let Some(command) = commands.next() {
                            if self.obey(command, commands.len() > 0) {
                                self.flush();
                                return Ok(());
                            }
                        }
                    }
                    Ok(None) | Err(_) => return self.finish_alone(),
                }
            }
        }
    }

    pub(super) fn wait(&self, timeout: EpollTimeout) -> io::Result<Vec<u64>> {
        let mut events = [EpollEvent::empty(); 256];
        match self.epoll.wait(&mut events, timeout) {
            Ok(count) => Ok(events[..count].iter().map(EpollEvent::data).collect()),
            Err(nix::errno::Errno::EINTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn handle_exits(&mut self, ready: &[u64]) -> io::Result<()> {
        for token in ready {
            self.collect(*token);
        }
        if ready.contains(&CHILDREN) {
            self.children.read();
            // A pid descriptor is ready before SIGCHLD is sent, so ranks that ended before this point are collected
            // here in kernel order. The loop below finds orphans, and ranks that end just now.
            loop {
                let more: Vec<u64> =
                    self.wait(EpollTimeout::ZERO)?.into_iter().filter(|token| *token < CHILDREN).collect();
                if more.is_empty() {
                    break;
                }
                for token in more {
                    self.collect(token);
                }
            }
            while let Reaped::Ended { pid, status, usage } = descend::reap() {
                if let Some(id) = self.by_pid.get(&pid).copied() {
                    self.ended(id, status, usage);
                } else {
                    self.loggers.retain(|logger| *logger != pid);
                }
            }
        }
        self.remove_cells();
        Ok(())
    }

    /// Removes the cgroups that are empty.
    pub(super) fn remove_cells(&mut self) {
        self.emptying.retain(|cell| !cgroup::remove_tree(cell));
    }

    fn collect(&mut self, id: u64) {
        if let Some(rank) = self.ranks.get(&id)
            && rank.is_alive()
            && let Some((status, usage)) = descend::reap_one(rank.pid)
        {
            self.ended(id, status, usage);
        }
    }

    fn ended(&mut self, id: u64, status: i32, usage: ProcessUsage) {
        let Some(rank) = self.ranks.get_mut(&id) else { return };
        let (key, pid) = (rank.key, rank.pid);
        self.by_pid.remove(&pid);
        let Some(Alive { pidfd, slots, slot, cell }) = rank.alive.take() else { return };
        let _ = self.epoll.delete(&pidfd);
        let over_limit = cell.as_deref().is_some_and(memory::is_over_limit);
        self.emptying.extend(cell);
        let notice = match slots.read(slot) {
            Some((doing, errno)) => Notice::SpawnFailed { key, doing, errno },
            None => Notice::Exited { key, pid, status, usage, over_limit },
        };
        self.tell(&notice);
    }

    /// Buffers a notice until the next flush: many ranks end at once, and one message is cheaper than many.
    pub(super) fn tell(&mut self, notice: &Notice) {
        let _ = protocol::append(&mut self.outbox, notice);
    }

    /// Sends the buffered notices. A dead front is detected by reading, not here.
    pub(super) fn flush(&mut self) {
        if !self.outbox.is_empty() {
            let _ = self.front.write_all(&self.outbox);
            self.outbox.clear();
        }
    }

    /// Executes a command. True if it was the last one. `more` is true if other commands came with this one.
    pub(super) fn obey(&mut self, command: Command, more: bool) -> bool {
        match command {
            Command::Lease { job, request } => {
                let leased = self.leases.ports(job, &request);
                self.tell(&Notice::Leased(leased));
            }
            Command::LeaseAddresses { job, count, seed } => {
                let addresses = self.leases.addresses(job, count, seed);
                self.tell(&Notice::Addresses(addresses));
            }
            Command::LeaseGpus { job, candidates, count } => {
                let gpus = self.leases.gpus(job, &candidates, count);
                self.tell(&Notice::Gpus(gpus));
            }
            Command::Release { job } => self.leases.release(job),
            Command::RemoveAtEnd(paths) => {
                self.remove_at_end.extend(paths.iter().map(|path| PathBuf::from(OsStr::from_bytes(path))));
            }
            Command::Limit(limits) => self.limits.extend(limits.into_iter().map(|limits| (limits.key, limits))),
            Command::Spawn(batch) => self.spawn(&batch),
            Command::Signal { signal, keys } => self.signal(signal, &keys),
            Command::Grace { millis } => self.grace = Duration::from_millis(millis),
            Command::Hold(last_words) => {
                self.last_words = self.inbox.descriptor().map(|socket| (socket, last_words));
            }
            Command::Place { cgroup, room } => {
                self.cgroup = cgroup.and_then(|path| Cgroup::enter(&path));
                self.room = room.zip(self.inbox.descriptor()).map(|(place, lock)| MemoryCgroup::at(place, lock));
            }
            Command::Keep => self.kept.extend(self.inbox.descriptor()),
            Command::Forsake(keys) => self.forsake(&keys),
            Command::Retire { job } => self.retire(job),
            Command::Clear { keep_ports } => self.clear(keep_ports, more),
            Command::Finish { patient } => {
                self.finish(patient, more);
                return true;
            }
        }
        false
    }
}
