//! Starting ranks, and the state of each.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

use nix::fcntl::OFlag;
use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::leftovers::marks;
use super::service::Service;
use crate::logger;
use crate::protocol::{Batch, Notice, ProcessKey, ProcessSpec, SpawnAction};
use crate::spawn::{Base, FailureSlots, PreparedProcess};

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) key: ProcessKey,
    pub(super) pid: u32,
    /// `None` after the end: the rest identifies leftovers until the place is taken again.
    pub(super) alive: Option<Alive>,
    /// Variables that its descendants inherit, unless they clear their environment.
    pub(super) marks: Vec<Vec<u8>>,
}

/// Resources of a live rank.
#[derive(Debug)]
pub(super) struct Alive {
    /// Closing it removes it from the epoll set.
    pub(super) pidfd: OwnedFd,
    /// Unmapped with the last rank of the batch.
    pub(super) slots: Rc<FailureSlots>,
    pub(super) slot: usize,
    /// Its cgroup, if its memory is limited.
    pub(super) cell: Option<PathBuf>,
}

impl Rank {
    pub(super) fn is_alive(&self) -> bool {
        self.alive.is_some()
    }

    pub(super) fn place(&self) -> (u32, u16, u32) {
        place(self.key)
    }
}

/// A process ready to be forked, and its cgroup.
type Ready<'a> = (PreparedProcess<'a>, Option<PathBuf>);

/// The part of the key that all attempts of a replica share.
pub(super) fn place(key: ProcessKey) -> (u32, u16, u32) {
    (key.job, key.role, key.index)
}

impl Service {
    /// Starts a batch. A failure here does not affect running ranks.
    pub(super) fn spawn(&mut self, batch: &Batch) {
        if self.clear_places(batch) {
            self.forget_places(batch);
        }
        let base = match Base::new(&batch.unset, &batch.set) {
            Ok(base) => base,
            Err(error) => return self.refuse(batch, SpawnAction::Execute, &error),
        };
        // Prepared before the first fork: after it, every page the guardian writes must be copied first.
        let prepared: Vec<_> = batch.processes.iter().map(|process| self.prepare(process, &base)).collect();
        let slots = match FailureSlots::new(batch.processes.len()) {
            Ok(slots) => Rc::new(slots),
            Err(error) => return self.refuse(batch, SpawnAction::Fork, &error),
        };
        let mut notices = Vec::with_capacity(batch.processes.len());
        let outputs = match self.start_logger(batch) {
            Ok(outputs) => outputs,
            Err(error) => return self.refuse(batch, SpawnAction::OpenLog, &error),
        };
        make_room_for_descriptors(batch.processes.len());
        for (slot, (process, prepared)) in batch.processes.iter().zip(prepared).enumerate() {
            let output = outputs.get(slot).map(AsFd::as_fd);
            let (prepared, cell) = match prepared {
                Ok(prepared) => prepared,
                Err((doing, error)) => {
                    notices.push(not_spawned(process.key, doing, &error));
                    continue;
                }
            };
            let is_alone = batch.processes.len() == 1;
            match prepared.fork(self.me, &slots, slot, self.pause_before_exec, is_alone, output) {
                Ok((pid, pidfd)) => {
                    let pid = pid as u32;
                    let id = self.next_rank;
                    self.next_rank += 1;
                    // Without room in epoll, SIGCHLD still reports its end, but not in the kernel's order.
                    let _ = self.epoll.add(&pidfd, EpollEvent::new(EpollFlags::EPOLLIN, id));
                    self.by_pid.insert(pid, id);
                    let alive = Some(Alive { pidfd, slots: Rc::clone(&slots), slot, cell });
                    self.ranks.insert(id, Rank { key: process.key, pid, alive, marks: marks(&process.env) });
                    notices.push(Notice::Spawned { key: process.key, pid });
                }
                Err(error) => {
                    self.emptying.extend(cell);
                    notices.push(not_spawned(process.key, SpawnAction::Fork, &error));
                }
            }
        }
        for notice in notices {
            self.tell(&notice);
        }
    }

    /// Prepares a process, with its cgroup if its memory is limited.
    fn prepare<'a>(&mut self, process: &ProcessSpec, base: &'a Base) -> Result<Ready<'a>, (SpawnAction, io::Error)> {
        let limits = self.limits.remove(&process.key);
        let cell = match (&self.room, limits.as_ref().and_then(|limits| limits.memory.as_ref())) {
            (Some(room), Some(limit)) => Some(room.enclose(&limit.name, limit.bytes)),
            _ => None,
        };
        let cell = cell.transpose().map_err(|error| (SpawnAction::LimitMemory, error))?;
        let prepared = PreparedProcess::new(process, base, limits.as_ref(), cell.as_deref());
        match prepared {
            Ok(prepared) => Ok((prepared, cell)),
            Err(error) => {
                self.emptying.extend(cell);
                Err((SpawnAction::Fork, error))
            }
        }
    }

    fn refuse(&mut self, batch: &Batch, doing: SpawnAction, error: &io::Error) {
        for process in &batch.processes {
            self.tell(&not_spawned(process.key, doing, error));
        }
    }

    /// Drops ended ranks whose places are taken again. With a budget per time window attempts never end, so their
    /// records must not pile up.
    fn forget_places(&mut self, batch: &Batch) {
        let again = batch.processes.iter().filter(|process| process.key.is_again());
        let places: HashSet<_> = again.map(|process| place(process.key)).collect();
        if !places.is_empty() {
            self.ranks.retain(|_, rank| rank.is_alive() || !places.contains(&rank.place()));
        }
    }

    /// Starts the process that rotates logs, if requested. Returns the descriptors that the processes write to.
    fn start_logger(&mut self, batch: &Batch) -> io::Result<Vec<OwnedFd>> {
        let Some(rotate) = batch.rotate else { return Ok(Vec::new()) };
        let mut inputs = Vec::new();
        let mut outputs = Vec::new();
        for process in &batch.processes {
            let (input, output) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
            inputs.push((input, PathBuf::from(OsStr::from_bytes(&process.log))));
            outputs.push(output);
        }
        // SAFETY: we have one thread; the child never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(outputs);
                // SAFETY: names our own process, and exits without the guardian's destructors. Our copy of the
                // guardian's socket is closed first: while it is open, the front would not see the guardian's end.
                unsafe {
                    libc::close(self.front.as_raw_fd());
                    libc::prctl(libc::PR_SET_NAME, c"umiak-logger".as_ptr());
                    libc::_exit(i32::from(logger::run(inputs, rotate).is_err()));
                }
            }
            pid => {
                self.loggers.push(pid as u32);
                Ok(outputs)
            }
        }
    }
}

fn not_spawned(key: ProcessKey, doing: SpawnAction, error: &io::Error) -> Notice {
    Notice::SpawnFailed { key, doing, errno: error.raw_os_error().unwrap_or(libc::EINVAL) }
}

/// Grows the descriptor table in advance: growing it while a child shares it waits for every CPU of the machine. If
/// there is no room, a later open reports it.
fn make_room_for_descriptors(count: usize) {
    // SAFETY: duplicates of a descriptor, closed at once; errors are negative numbers.
    unsafe {
        let lowest = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3);
        // Ranks may fill gaps, but none gets a higher descriptor than this.
        let highest = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, lowest.saturating_add(count as libc::c_int));
        for fd in [lowest, highest] {
            if fd >= 0 {
                libc::close(fd);
            }
        }
    }
}
