//! The guardian: a small, single-threaded process that forks every rank.
//!
//! It is forked before the front has a thread or a plan, so that fork stays cheap and so that the
//! parent-death signal of the ranks, which follows the forking *thread*, hangs on a thread that lives as
//! long as the process. It sits in its own session (Ctrl-C does not reach it), is a subreaper, and holds
//! port leases and temporary directories. When the front goes away it stops the ranks by itself:
//! SIGTERM, grace, SIGKILL. When the guardian goes away the kernel kills the ranks, and the front, a
//! subreaper too, stops what they left.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{CStr, OsStr};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::ptr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::SigSet;
use nix::sys::socket::MsgFlags;

use crate::addresses;
use crate::cgroup::{self, Cgroup};
use crate::descend::{self, Reaped};
use crate::devices;
use crate::fork::{Namespaces, fork_into};
use crate::hooks;
use crate::logger;
use crate::memory::{self, Room};
use crate::ports::{self, Lease};
use crate::protocol::{self, Batch, Command, Doing, Inbox, Key, Limits, Notice, Process, Usage};
use crate::spawn::{Base, FailureSlots, Prepared};
use crate::wait::{self, Signals};

const FRONT: u64 = u64::MAX;
const CHILDREN: u64 = u64::MAX - 1;

/// How long a place is cleared for whoever starts there.
const CLEARING: Duration = Duration::from_millis(500);
/// How long a process may take to go after SIGKILL before it is reported and left.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the guardian is set up.
#[derive(Debug, Default)]
pub struct Options {
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
    room: Option<Room>,
}

impl Guardian {
    /// Forks the guardian. To be called before this process has a second thread.
    pub fn start(options: Options) -> io::Result<Self> {
        Self::start_with(options, None)
    }

    /// The same with a place in which limits of memory can be set.
    pub fn start_with(options: Options, room: Option<Room>) -> io::Result<Self> {
        descend::become_subreaper()?;
        let (front, guardian) = UnixStream::pair()?;
        let mut cgroup = options.cgroup;
        let namespaces = if options.isolate { Namespaces::Process } else { Namespaces::None };
        // What is not permitted is tried with less: a user namespace gives the right to make the others, and a
        // kernel or sandbox that does not let us be born in a cgroup still lets us be born.
        let mut tries = vec![(true, namespaces)];
        if options.isolate {
            tries.push((true, Namespaces::ProcessAndUser));
            tries.push((false, Namespaces::ProcessAndUser));
        } else {
            tries.push((false, Namespaces::None));
        }
        // Set before the fork: who cleans up after killed jobs must never meet a guardian without its name.
        let own = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        set_name(c"umiak-guardian");
        let mut pid = Err(io::Error::from_raw_os_error(libc::EPERM));
        let mut made = Namespaces::None;
        for (in_cgroup, namespaces) in tries {
            let place = cgroup.as_ref().filter(|_| in_cgroup).map(AsFd::as_fd);
            // SAFETY: documented to be called while single-threaded, so the child may use all of std; it never
            // returns.
            pid = unsafe { fork_into(place, namespaces) };
            if pid.is_ok() {
                made = namespaces;
                if !in_cgroup && let Some(unused) = cgroup.take() {
                    // In the child this fails quietly: the parent has removed it.
                    unused.remove();
                }
                break;
            }
        }
        if pid.is_err() {
            if let Some(unused) = &cgroup {
                unused.remove();
            }
            if let Some(unused) = &room {
                unused.remove();
            }
        }
        if !matches!(pid, Ok(0))
            && let Ok(own) = std::ffi::CString::new(own.trim_end())
        {
            set_name(&own);
        }
        match pid? {
            0 => {
                drop(front);
                run(guardian, cgroup, room, made)
            }
            pid => Ok(Self {
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

/// Names this process as `/proc` and `ps` show it.
fn set_name(name: &CStr) {
    // SAFETY: the kernel copies at most 16 bytes from a string that ends.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
    }
}

/// The guardian's whole life; never returns to the caller's code.
fn run(front: UnixStream, cgroup: Option<Cgroup>, room: Option<Room>, namespaces: Namespaces) -> ! {
    if namespaces == Namespaces::ProcessAndUser {
        keep_user();
    }
    if namespaces != Namespaces::None {
        mount_own_proc();
    }
    let code = match Run::new(front, cgroup, room).and_then(|mut run| run.serve()) {
        Ok(()) => 0,
        Err(_) => 125,
    };
    // SAFETY: leaves without running the front's destructors and exit handlers, which are not ours.
    unsafe { libc::_exit(code) }
}

#[derive(Debug)]
struct Rank {
    key: Key,
    pid: u32,
    /// Of one that has ended only what its leftovers are known by is kept, until its place is taken again.
    alive: Option<Alive>,
    /// Variables that everything below it has too, unless it takes care not to.
    marks: Vec<Vec<u8>>,
}

/// What is held while a rank lives.
#[derive(Debug)]
struct Alive {
    /// Closing it takes it out of the epoll set.
    pidfd: OwnedFd,
    /// Unmapped with the last of the batch.
    slots: Rc<FailureSlots>,
    slot: usize,
    /// Its cgroup, where its memory is limited.
    cell: Option<PathBuf>,
}

impl Rank {
    fn is_alive(&self) -> bool {
        self.alive.is_some()
    }

    fn place(&self) -> (u16, u32) {
        place(self.key)
    }
}

/// What is to be forked, and the cgroup it will be in.
type Ready<'a> = (Prepared<'a>, Option<PathBuf>);

/// Whoever has the same is another attempt of the same replica.
fn place(key: Key) -> (u16, u32) {
    (key.role, key.index)
}

#[derive(Debug)]
struct Run {
    front: UnixStream,
    inbox: Inbox,
    outbox: Vec<u8>,
    epoll: Epoll,
    children: Signals,
    me: libc::pid_t,
    /// In the order of their starts, by a number that is never used again: an event may be older than its rank's end.
    ranks: BTreeMap<u64, Rank>,
    next_rank: u64,
    by_pid: HashMap<u32, u64>,
    leases: Vec<Lease>,
    blocks: Vec<addresses::Block>,
    gpus: Vec<devices::GpuLease>,
    /// They end by themselves when nobody writes to them any more; signals are not for them.
    loggers: Vec<u32>,
    remove_at_end: Vec<PathBuf>,
    grace: Duration,
    /// For the coordinator of several nodes.
    last_words: Option<(OwnedFd, Vec<u8>)>,
    cgroup: Option<Cgroup>,
    room: Option<Room>,
    /// Of those that are started next.
    limits: HashMap<Key, Limits>,
    /// Cgroups of ranks that have ended: somebody may still be in them.
    emptying: Vec<PathBuf>,
    pause_before_exec: Duration,
}

impl Run {
    fn new(front: UnixStream, cgroup: Option<Cgroup>, room: Option<Room>) -> io::Result<Self> {
        // SAFETY: system calls on our own process; a failing setsid or prctl leaves us as we were.
        let me = unsafe {
            libc::setsid();
            libc::getpid()
        };
        descend::become_subreaper()?;
        raise_limits();
        // Nothing but SIGKILL and the front's end stops the guardian.
        SigSet::all().thread_set_mask().map_err(io::Error::from)?;
        let children = Signals::block(&[libc::SIGCHLD])?;
        // A pipe behind the front's stdout must see its end when the front ends, not when we do.
        redirect_output_to_null();
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
            leases: Vec::new(),
            blocks: Vec::new(),
            gpus: Vec::new(),
            loggers: Vec::new(),
            remove_at_end: Vec::new(),
            grace: Duration::from_secs(5),
            last_words: None,
            cgroup,
            room,
            limits: HashMap::new(),
            emptying: Vec::new(),
            pause_before_exec: hooks::pause_before_exec(),
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            // Exits first, in the order in which the kernel queued them; then orders.
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

    fn wait(&self, timeout: EpollTimeout) -> io::Result<Vec<u64>> {
        let mut events = [EpollEvent::empty(); 256];
        match self.epoll.wait(&mut events, timeout) {
            Ok(count) => Ok(events[..count].iter().map(EpollEvent::data).collect()),
            Err(nix::errno::Errno::EINTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn handle_exits(&mut self, ready: &[u64]) -> io::Result<()> {
        for token in ready {
            self.collect(*token);
        }
        if ready.contains(&CHILDREN) {
            self.children.read();
            // A pid descriptor is ready before the signal is sent, so ranks that ended before this point are
            // taken in kernel order here; what the loop below finds are orphans, and ranks of this very moment.
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

    /// Those that nobody is in any more.
    fn remove_cells(&mut self) {
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

    fn ended(&mut self, id: u64, status: i32, usage: Usage) {
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

    /// Kept until the end of the round: many ranks end at once, and one message is cheaper than many.
    fn tell(&mut self, notice: &Notice) {
        let _ = protocol::append(&mut self.outbox, notice);
    }

    /// A front that is gone is noticed by reading, not here.
    fn flush(&mut self) {
        if !self.outbox.is_empty() {
            let _ = self.front.write_all(&self.outbox);
            self.outbox.clear();
        }
    }

    /// Returns true when the work is done. `more` is whether other commands have come with this one.
    fn obey(&mut self, command: Command, more: bool) -> bool {
        match command {
            Command::Lease(request) => {
                let leased = ports::lease(&request).map(|(leased, leases)| {
                    self.leases.extend(leases);
                    leased
                });
                self.tell(&Notice::Leased(leased));
            }
            Command::LeaseAddresses { count, seed } => {
                let (addresses, blocks) = addresses::lease(count, seed);
                self.blocks.extend(blocks);
                self.tell(&Notice::Addresses(addresses));
            }
            Command::LeaseGpus { candidates, count } => {
                let gpus = devices::lease(&candidates, count);
                let minors = gpus.iter().map(devices::GpuLease::minor).collect();
                self.gpus.extend(gpus);
                self.tell(&Notice::Gpus(minors));
            }
            Command::RemoveAtEnd(paths) => {
                self.remove_at_end.extend(paths.iter().map(|path| PathBuf::from(OsStr::from_bytes(path))));
            }
            Command::Limit(limits) => self.limits.extend(limits.into_iter().map(|limits| (limits.key, limits))),
            Command::Spawn(batch) => self.spawn(&batch),
            Command::Signal { signal, keys } => self.signal(signal, &keys),
            Command::Grace { millis } => self.grace = Duration::from_millis(millis),
            Command::Hold { last_words } => {
                self.last_words = self.inbox.descriptor().map(|socket| (socket, last_words));
            }
            Command::Forsake(keys) => {
                for pid in self.left_by(&keys) {
                    descend::signal(pid, libc::SIGTERM);
                    descend::signal(pid, libc::SIGCONT);
                }
            }
            Command::Clear { keep_ports } => {
                let hurry = || more || is_urged(&self.front);
                let sweep = descend::sweep_until(self.grace, PATIENCE, &self.loggers, hurry);
                self.remove_cells();
                // The loggers of this attempt have ended with its ranks.
                self.loggers.clear();
                if !keep_ports {
                    self.leases.clear();
                }
                if !self.ranks.values().any(Rank::is_alive) {
                    self.ranks.clear();
                    self.by_pid.clear();
                }
                self.tell(&Notice::Cleared { stopped: sweep.stopped, remaining: sweep.remaining });
            }
            Command::Finish { patient } => {
                let (grace, patience) = if patient { (self.grace, PATIENCE) } else { (Duration::ZERO, Duration::ZERO) };
                let hurry = || more || is_urged(&self.front);
                let sweep = descend::sweep_until(grace, patience, &self.loggers, hurry);
                self.clean_up();
                self.tell(&Notice::Swept { stopped: sweep.stopped, remaining: sweep.remaining });
                return true;
            }
        }
        false
    }

    /// Whatever is missing for these, those who run already go on.
    fn spawn(&mut self, batch: &Batch) {
        if self.clear_places(batch) {
            self.forget_places(batch);
        }
        let base = match Base::new(&batch.unset, &batch.set) {
            Ok(base) => base,
            Err(error) => return self.refuse(batch, Doing::Execute, &error),
        };
        // All before the first fork: from then on, whatever the guardian writes to has to be copied first.
        let prepared: Vec<_> = batch.processes.iter().map(|process| self.prepare(process, &base)).collect();
        let slots = match FailureSlots::new(batch.processes.len()) {
            Ok(slots) => Rc::new(slots),
            Err(error) => return self.refuse(batch, Doing::Fork, &error),
        };
        let mut notices = Vec::with_capacity(batch.processes.len());
        let outputs = match self.start_logger(batch) {
            Ok(outputs) => outputs,
            Err(error) => return self.refuse(batch, Doing::OpenLog, &error),
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
            match prepared.fork(self.me, &slots, slot, self.pause_before_exec, output) {
                Ok((pid, pidfd)) => {
                    let pid = pid as u32;
                    let id = self.next_rank;
                    self.next_rank += 1;
                    // Where there is no room for one more, SIGCHLD tells of its end too, only not in the kernel's order.
                    let _ = self.epoll.add(&pidfd, EpollEvent::new(EpollFlags::EPOLLIN, id));
                    self.by_pid.insert(pid, id);
                    let alive = Some(Alive { pidfd, slots: Rc::clone(&slots), slot, cell });
                    self.ranks.insert(id, Rank { key: process.key, pid, alive, marks: marks(&process.env) });
                    notices.push(Notice::Spawned { key: process.key, pid });
                }
                Err(error) => {
                    self.emptying.extend(cell);
                    notices.push(not_spawned(process.key, Doing::Fork, &error));
                }
            }
        }
        for notice in notices {
            self.tell(&notice);
        }
    }

    /// With the cgroup it will be in, where its memory is limited.
    fn prepare<'a>(&mut self, process: &Process, base: &'a Base) -> Result<Ready<'a>, (Doing, io::Error)> {
        let limits = self.limits.remove(&process.key);
        let cell = match (&self.room, limits.as_ref().and_then(|limits| limits.memory.as_ref())) {
            (Some(room), Some(limit)) => Some(room.enclose(&limit.name, limit.bytes)),
            _ => None,
        };
        let cell = cell.transpose().map_err(|error| (Doing::LimitMemory, error))?;
        let prepared = Prepared::new(process, base, limits.as_ref(), cell.as_deref());
        match prepared {
            Ok(prepared) => Ok((prepared, cell)),
            Err(error) => {
                self.emptying.extend(cell);
                Err((Doing::Fork, error))
            }
        }
    }

    fn refuse(&mut self, batch: &Batch, doing: Doing, error: &io::Error) {
        for process in &batch.processes {
            self.tell(&not_spawned(process.key, doing, error));
        }
    }

    /// With a budget per time there is no end to attempts; what is over must not add up. Nothing is left of those whose
    /// places these take.
    fn forget_places(&mut self, batch: &Batch) {
        let again = batch.processes.iter().filter(|process| process.key.attempt > 0);
        let places: HashSet<_> = again.map(|process| place(process.key)).collect();
        if !places.is_empty() {
            self.ranks.retain(|_, rank| rank.is_alive() || !places.contains(&rank.place()));
        }
    }

    /// Starts the process that cuts logs by size, where asked for; returns what each process writes to.
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
                // SAFETY: names our own process, and leaves without the guardian's destructors. Our copy of the
                // guardian's socket goes first: while it is open, the front would not see the guardian's end.
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

    fn signal(&self, signal: i32, keys: &[Key]) {
        let wanted: HashSet<&Key> = keys.iter().collect();
        // While others go on, only what belongs to these is meant.
        let mut everybody = true;
        for rank in self.ranks.values().filter(|rank| rank.is_alive()) {
            if wanted.contains(&rank.key) {
                signal_group(rank.pid, signal);
            } else {
                everybody = false;
            }
        }
        // What dead ranks left behind has come home to us: our children that are no ranks.
        let orphans = if everybody { self.orphans() } else { self.left_by(keys) };
        for pid in orphans {
            descend::signal(pid, signal);
        }
    }

    /// Our children that are no ranks.
    fn orphans(&self) -> Vec<u32> {
        let mut children = descend::children(self.me as u32);
        children.retain(|pid| !self.by_pid.contains_key(pid) && !self.loggers.contains(pid));
        children
    }

    /// What earlier ranks of these places left behind: by their session, or by what stands in their environment.
    fn left_by(&self, keys: &[Key]) -> Vec<u32> {
        let orphans = self.orphans();
        if orphans.is_empty() {
            return orphans;
        }
        let places: HashSet<_> = keys.iter().map(|key| place(*key)).collect();
        let ranks: Vec<&Rank> = self.ranks.values().filter(|rank| places.contains(&rank.place())).collect();
        let mut found = orphans.clone();
        found.extend(orphans.into_iter().flat_map(descend::descendants));
        found.retain(|pid| {
            let session = descend::session(*pid);
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let variables: HashSet<&[u8]> = environment.split(|byte| *byte == 0).collect();
            let has = |mark: &Vec<u8>| variables.contains(mark.as_slice());
            ranks.iter().any(|rank| session == Some(rank.pid) || (!rank.marks.is_empty() && rank.marks.iter().all(has)))
        });
        found
    }

    /// Whoever takes a place finds it empty: what was asked to go and did not is killed. Whether nothing is left.
    fn clear_places(&self, batch: &Batch) -> bool {
        let keys: Vec<Key> = batch.processes.iter().map(|process| process.key).filter(|key| key.attempt > 0).collect();
        let deadline = Instant::now() + CLEARING;
        while !keys.is_empty() {
            let left = self.left_by(&keys);
            if left.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                return false;
            }
            for pid in left {
                descend::signal(pid, libc::SIGKILL);
                descend::reap_one(pid);
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        true
    }

    /// The front is gone: stop everything, and leave nothing.
    fn finish_alone(&mut self) -> io::Result<()> {
        if let Some((socket, words)) = self.last_words.take() {
            // Once, and without waiting: a peer that takes no more finds out by itself.
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let _ = nix::sys::socket::send(socket.as_raw_fd(), &words, flags);
        }
        let live: Vec<Key> = self.ranks.values().filter(|rank| rank.is_alive()).map(|rank| rank.key).collect();
        self.signal(libc::SIGTERM, &live);
        let deadline = Instant::now() + self.grace;
        while self.ranks.values().any(Rank::is_alive) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let timeout = EpollTimeout::try_from(left.as_millis().max(1)).unwrap_or(EpollTimeout::MAX);
            // The front's end stays readable for ever: stop looking at it.
            let _ = self.epoll.delete(&self.front);
            let ready = self.wait(timeout)?;
            self.handle_exits(&ready)?;
        }
        descend::sweep(deadline.saturating_duration_since(Instant::now()), PATIENCE, &self.loggers);
        self.clean_up();
        // With the front gone, nobody else will.
        if let Some(cgroup) = &self.cgroup {
            cgroup.leave_and_remove();
        }
        Ok(())
    }

    fn clean_up(&mut self) {
        for path in self.remove_at_end.drain(..) {
            let _ = std::fs::remove_dir_all(path);
        }
        self.leases.clear();
        self.blocks.clear();
        self.gpus.clear();
        // What is not a descendant of ours can only be here if it was put here on purpose; it goes too.
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill_all_but(self.me as u32);
        }
        if let Some(room) = &self.room {
            room.remove();
        }
    }
}

/// Whoever says more during a sweep, or goes, does not want to wait for it.
fn is_urged(front: &UnixStream) -> bool {
    wait::readable(&[front.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
}

fn not_spawned(key: Key, doing: Doing, error: &io::Error) -> Notice {
    Notice::SpawnFailed { key, doing, errno: error.raw_os_error().unwrap_or(libc::EINVAL) }
}

/// The variables of a document's replica that nobody else has.
fn marks(environment: &[(Vec<u8>, Vec<u8>)]) -> Vec<Vec<u8>> {
    let own = environment.iter().filter(|(name, _)| name == b"UMIAK_ROLE" || name == b"UMIAK_INDEX");
    own.map(|(name, value)| [name.as_slice(), b"=", value.as_slice()].concat()).collect()
}

/// To the whole group. Between fork and `setsid` the group does not exist yet: then to the process, which
/// has all signals blocked until exec and dies there.
fn signal_group(pid: u32, signal: i32) {
    // SAFETY: kill has no memory effects. The rank is not reaped yet, so its number is not reused.
    unsafe {
        if libc::kill(-(pid as libc::pid_t), signal) == -1 {
            libc::kill(pid as libc::pid_t, signal);
        }
    }
}

/// A table of descriptors that grows while a child shares it waits for every processor of the machine: it grows before.
/// Where there is no room, opening will say so.
fn make_room_for_descriptors(count: usize) {
    // SAFETY: copies of a descriptor, closed at once by whoever got them; errors are numbers below zero.
    unsafe {
        let lowest = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3);
        // Each rank may fill a gap, but it cannot get further than this.
        let highest = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, lowest.saturating_add(count as libc::c_int));
        for fd in [lowest, highest] {
            if fd >= 0 {
                libc::close(fd);
            }
        }
    }
}

/// Soft limits that training runs into, raised as far as we may; ranks inherit them.
pub(crate) fn raise_limits() {
    for resource in [libc::RLIMIT_NOFILE, libc::RLIMIT_MEMLOCK] {
        // SAFETY: rlimit is plain data; both calls concern our own process.
        unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            if libc::getrlimit(resource, &raw mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(resource, &raw const limit);
            }
        }
    }
}

/// In a user namespace we stay who we are: one user and one group, mapped to themselves.
fn keep_user() {
    // SAFETY: no arguments, no failure.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // This view of /proc is still the outer one, in which `self` is us.
    let _ = std::fs::write("/proc/self/setgroups", "deny");
    let _ = std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"));
    let _ = std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"));
}

/// In a PID namespace, programs must see that namespace's processes.
fn mount_own_proc() {
    // SAFETY: both calls concern our own mount namespace; a failure leaves the old view.
    unsafe {
        libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), libc::MS_REC | libc::MS_PRIVATE, ptr::null());
        libc::mount(c"proc".as_ptr(), c"/proc".as_ptr(), c"proc".as_ptr(), 0, ptr::null());
    }
}

fn redirect_output_to_null() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        // SAFETY: replaces descriptors 1 and 2 of this process only.
        unsafe {
            libc::dup2(null.as_raw_fd(), 1);
            libc::dup2(null.as_raw_fd(), 2);
        }
    }
}

/// An exit as the kernel's wait status tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Code(i32),
    Signal { signal: i32, core_dumped: bool },
}

pub fn decode(status: i32) -> Status {
    if libc::WIFSIGNALED(status) {
        Status::Signal { signal: libc::WTERMSIG(status), core_dumped: libc::WCOREDUMP(status) }
    } else {
        Status::Code(libc::WEXITSTATUS(status))
    }
}

pub use crate::spawn::describe_errno;

#[cfg(test)]
mod tests {
    use super::*;

    fn process(index: u32, attempt: u32, line: &str) -> Process {
        Process {
            key: Key { role: 0, index, attempt },
            program: b"/bin/sh".to_vec(),
            argv: ["sh", "-c", line].iter().map(|word| word.as_bytes().to_vec()).collect(),
            env: Vec::new(),
            dir: Vec::new(),
            log: b"/dev/null".to_vec(),
            cpus: Vec::new(),
            inherit_stdin: false,
        }
    }

    /// A guardian that is a process of its own as it should be, but begun by a test: what is checked in it shows in its
    /// exit code.
    fn in_a_guardian(check: impl FnOnce(&mut Run, &mut UnixStream) -> bool) {
        let (mut front, guardian) = UnixStream::pair().unwrap();
        // SAFETY: tests run in threads, so the child may only hope that nobody held the allocator; glibc sees to that.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", io::Error::last_os_error()),
            0 => {
                let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    check(&mut Run::new(guardian, None, None).unwrap(), &mut front)
                }));
                // SAFETY: leaves without the test's destructors.
                unsafe { libc::_exit(i32::from(!matches!(checked, Ok(true)))) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for our own child.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(decode(status), Status::Code(0));
            }
        }
    }

    fn until_all_ended(run: &mut Run) {
        while !run.by_pid.is_empty() {
            let ready = run.wait(EpollTimeout::NONE).unwrap();
            run.handle_exits(&ready).unwrap();
        }
    }

    #[test]
    fn attempts_without_end_leave_nothing() {
        in_a_guardian(|run, _| {
            run.spawn(&Batch { processes: vec![process(1, 0, "exec sleep 60")], ..Batch::default() });
            let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("/dev/zero").count();
            let before = mappings();
            for attempt in 0..20 {
                run.spawn(&Batch { processes: vec![process(0, attempt, "exit 3")], ..Batch::default() });
                while run.by_pid.len() > 1 {
                    let ready = run.wait(EpollTimeout::NONE).unwrap();
                    run.handle_exits(&ready).unwrap();
                }
            }
            let kept = run.ranks.len();
            run.signal(libc::SIGKILL, &[Key { role: 0, index: 1, attempt: 0 }]);
            until_all_ended(run);
            kept == 2 && before == 1 && mappings() == 0
        });
    }

    #[test]
    fn what_cannot_be_started_is_told_and_others_go_on() {
        in_a_guardian(|run, front| {
            run.spawn(&Batch { processes: vec![process(0, 0, "exec sleep 60")], ..Batch::default() });
            run.flush();
            let more = Batch { processes: vec![process(1, 0, "exit 0"), process(2, 0, "exit 0")], ..Batch::default() };
            let limit_memory = |most| {
                let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
                // SAFETY: concerns our own process.
                unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }
            };
            limit_memory(0);
            run.spawn(&more);
            limit_memory(libc::RLIM_INFINITY);
            run.flush();
            let live = run.ranks.values().filter(|rank| rank.is_alive()).count();
            run.signal(libc::SIGKILL, &[Key { role: 0, index: 0, attempt: 0 }]);
            until_all_ended(run);
            let notices: Vec<Notice> = Inbox::default().receive(front).unwrap().unwrap();
            let refused = |notice: &&Notice| matches!(notice, Notice::SpawnFailed { errno: libc::ENOMEM, .. });
            live == 1 && notices.iter().filter(refused).count() == 2
        });
    }

    #[test]
    fn who_cannot_be_held_to_its_limits_is_not_started() {
        in_a_guardian(|run, front| {
            let key = |index| Key { role: 0, index, attempt: 0 };
            let bound = |index, cpus: &[u32]| Limits { key: key(index), cpus: cpus.to_vec(), memory: None };
            let own = crate::host::allowed_cpus()[0];
            // No machine has the last one that there can be.
            run.obey(Command::Limit(vec![bound(0, &[own]), bound(1, &[1023])]), false);
            let look = format!("grep -qx 'Cpus_allowed_list:.{own}' /proc/self/status");
            run.spawn(&Batch { processes: vec![process(0, 0, &look), process(1, 0, "exit 0")], ..Batch::default() });
            until_all_ended(run);
            run.flush();
            let notices: Vec<Notice> = Inbox::default().receive(front).unwrap().unwrap();
            let bound = |notice: &Notice| matches!(notice, Notice::Exited { key: k, status: 0, .. } if *k == key(0));
            let refused = |notice: &Notice| matches!(notice, Notice::SpawnFailed { key: k, doing: Doing::BindCpus, .. } if *k == key(1));
            notices.iter().any(bound) && notices.iter().any(refused) && run.limits.is_empty()
        });
    }

    #[test]
    fn the_last_sweep_can_be_hurried() {
        in_a_guardian(|run, front| {
            run.grace = Duration::from_secs(60);
            // It leaves somebody behind who does not hear SIGTERM.
            let stubborn = "(trap '' TERM; while :; do sleep 60; done) & exit 0";
            run.spawn(&Batch { processes: vec![process(0, 0, stubborn)], ..Batch::default() });
            until_all_ended(run);
            let begun = Instant::now();
            let mut other = front.try_clone().unwrap();
            let urge = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                protocol::send(&mut other, &Command::Finish { patient: false }).unwrap();
            });
            let is_over = run.obey(Command::Finish { patient: true }, false);
            urge.join().unwrap();
            is_over && begun.elapsed() < Duration::from_secs(30) && descend::children(run.me as u32).is_empty()
        });
    }
}
