//! The guardian: a small, single-threaded process that forks every rank.
//!
//! It is forked before the front has a thread or a plan, so that fork stays cheap and so that the
//! parent-death signal of the ranks, which follows the forking *thread*, hangs on a thread that lives as
//! long as the process. It sits in its own session (Ctrl-C does not reach it), is a subreaper, and holds
//! port leases and temporary directories. When the front goes away it stops the ranks by itself:
//! SIGTERM, grace, SIGKILL. When the guardian goes away the kernel kills the ranks, and the front, a
//! subreaper too, stops what they left.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::ptr;
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
use crate::logger;
use crate::ports::{self, Lease};
use crate::protocol::{self, Batch, Command, Doing, Inbox, Key, Notice, Usage};
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
}

impl Guardian {
    /// Forks the guardian. To be called before this process has a second thread.
    pub fn start(options: Options) -> io::Result<Self> {
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
        if pid.is_err()
            && let Some(unused) = &cgroup
        {
            unused.remove();
        }
        if !matches!(pid, Ok(0))
            && let Ok(own) = std::ffi::CString::new(own.trim_end())
        {
            set_name(&own);
        }
        match pid? {
            0 => {
                drop(front);
                run(guardian, cgroup, made)
            }
            pid => Ok(Self {
                pid: pid as u32,
                stream: front,
                inbox: Inbox::default(),
                cgroup: cgroup.map(|cgroup| cgroup.path().to_owned()),
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
        if let Some(path) = &self.cgroup {
            cgroup::remove_tree(path);
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
fn run(front: UnixStream, cgroup: Option<Cgroup>, namespaces: Namespaces) -> ! {
    if namespaces == Namespaces::ProcessAndUser {
        keep_user();
    }
    if namespaces != Namespaces::None {
        mount_own_proc();
    }
    let code = match Run::new(front, cgroup).and_then(|mut run| run.serve()) {
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
    /// Held open while the rank lives; closing it takes it out of the epoll set.
    pidfd: Option<OwnedFd>,
    batch: usize,
    slot: usize,
    /// Variables that everything below it has too, unless it takes care not to.
    marks: Vec<Vec<u8>>,
}

impl Rank {
    fn is_alive(&self) -> bool {
        self.pidfd.is_some()
    }
}

#[derive(Debug)]
struct Run {
    front: UnixStream,
    inbox: Inbox,
    outbox: Vec<u8>,
    epoll: Epoll,
    children: Signals,
    me: libc::pid_t,
    ranks: Vec<Rank>,
    by_pid: HashMap<u32, usize>,
    batches: Vec<FailureSlots>,
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
    pause_before_exec: Duration,
}

impl Run {
    fn new(front: UnixStream, cgroup: Option<Cgroup>) -> io::Result<Self> {
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
            ranks: Vec::new(),
            by_pid: HashMap::new(),
            batches: Vec::new(),
            leases: Vec::new(),
            blocks: Vec::new(),
            gpus: Vec::new(),
            loggers: Vec::new(),
            remove_at_end: Vec::new(),
            grace: Duration::from_secs(5),
            last_words: None,
            cgroup,
            pause_before_exec: pause_before_exec(),
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
                        for command in commands {
                            if self.obey(command)? {
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
            if let Ok(index) = usize::try_from(*token)
                && index < self.ranks.len()
            {
                self.collect(index);
            }
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
                    self.collect(token as usize);
                }
            }
            while let Reaped::Ended { pid, status, usage } = descend::reap() {
                if let Some(index) = self.by_pid.get(&pid).copied() {
                    self.ended(index, status, usage);
                }
            }
        }
        Ok(())
    }

    fn collect(&mut self, index: usize) {
        let pid = self.ranks[index].pid;
        if !self.ranks[index].is_alive() {
            return;
        }
        if let Some((status, usage)) = descend::reap_one(pid) {
            self.ended(index, status, usage);
        }
    }

    fn ended(&mut self, index: usize, status: i32, usage: Usage) {
        let rank = &mut self.ranks[index];
        if let Some(pidfd) = rank.pidfd.take() {
            let _ = self.epoll.delete(&pidfd);
        }
        self.by_pid.remove(&rank.pid);
        let notice = match self.batches[rank.batch].read(rank.slot) {
            Some((doing, errno)) => Notice::SpawnFailed { key: rank.key, doing, errno },
            None => Notice::Exited { key: rank.key, pid: rank.pid, status, usage },
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

    /// Returns true when the work is done.
    fn obey(&mut self, command: Command) -> io::Result<bool> {
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
            Command::Spawn(batch) => self.spawn(&batch)?,
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
                // Whoever says more, or goes, does not want to wait.
                let hurry = || wait::readable(&[self.front.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready[0]);
                let sweep = descend::sweep_until(self.grace, PATIENCE, &self.loggers, hurry);
                // The loggers of this attempt have ended with its ranks.
                self.loggers.clear();
                if !keep_ports {
                    self.leases.clear();
                }
                // With a budget per time there is no end to attempts; what is over must not add up.
                if !self.ranks.iter().any(Rank::is_alive) {
                    self.ranks.clear();
                    self.by_pid.clear();
                    self.batches.clear();
                }
                self.tell(&Notice::Cleared { stopped: sweep.stopped, remaining: sweep.remaining });
            }
            Command::Finish { patient } => {
                let (grace, patience) = if patient { (self.grace, PATIENCE) } else { (Duration::ZERO, Duration::ZERO) };
                let sweep = descend::sweep(grace, patience, &self.loggers);
                self.clean_up();
                self.tell(&Notice::Swept { stopped: sweep.stopped, remaining: sweep.remaining });
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn spawn(&mut self, batch: &Batch) -> io::Result<()> {
        self.clear_places(batch);
        let base = Base::new(&batch.unset, &batch.set)?;
        // All before the first fork: from then on, whatever the guardian writes to has to be copied first.
        let prepared: Vec<_> = batch.processes.iter().map(|process| Prepared::new(process, &base)).collect();
        let slots = FailureSlots::new(batch.processes.len())?;
        let batch_index = self.batches.len();
        let mut notices = Vec::with_capacity(batch.processes.len());
        let outputs = self.start_logger(batch)?;
        make_room_for_descriptors(batch.processes.len());
        for (slot, (process, prepared)) in batch.processes.iter().zip(prepared).enumerate() {
            let output = outputs.get(slot).map(AsFd::as_fd);
            let forked =
                prepared.and_then(|prepared| prepared.fork(self.me, &slots, slot, self.pause_before_exec, output));
            match forked {
                Ok((pid, pidfd)) => {
                    let pid = pid as u32;
                    let index = self.ranks.len();
                    self.epoll
                        .add(&pidfd, EpollEvent::new(EpollFlags::EPOLLIN, index as u64))
                        .map_err(io::Error::from)?;
                    self.by_pid.insert(pid, index);
                    let marks = marks(&process.env);
                    self.ranks.push(Rank {
                        key: process.key,
                        pid,
                        pidfd: Some(pidfd),
                        batch: batch_index,
                        slot,
                        marks,
                    });
                    notices.push(Notice::Spawned { key: process.key, pid });
                }
                Err(error) => notices.push(Notice::SpawnFailed {
                    key: process.key,
                    doing: Doing::Fork,
                    errno: error.raw_os_error().unwrap_or(libc::EINVAL),
                }),
            }
        }
        self.batches.push(slots);
        for notice in notices {
            self.tell(&notice);
        }
        Ok(())
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
        for rank in self.ranks.iter().filter(|rank| rank.is_alive() && keys.contains(&rank.key)) {
            signal_group(rank.pid, signal);
        }
        // What dead ranks left behind has come home to us: our children that are no ranks. While others go on, only
        // what belongs to these.
        let everybody = self.ranks.iter().filter(|rank| rank.is_alive()).all(|rank| keys.contains(&rank.key));
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
        let is_place = |key: Key| keys.iter().any(|other| (other.role, other.index) == (key.role, key.index));
        let ranks: Vec<&Rank> = self.ranks.iter().filter(|rank| is_place(rank.key)).collect();
        let mut found = orphans.clone();
        found.extend(orphans.into_iter().flat_map(descend::descendants));
        found.retain(|pid| {
            let session = descend::session(*pid);
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let has = |mark: &Vec<u8>| environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_slice());
            ranks.iter().any(|rank| session == Some(rank.pid) || (!rank.marks.is_empty() && rank.marks.iter().all(has)))
        });
        found
    }

    /// Whoever takes a place finds it empty: what was asked to go and did not is killed.
    fn clear_places(&self, batch: &Batch) {
        let keys: Vec<Key> = batch.processes.iter().map(|process| process.key).filter(|key| key.attempt > 0).collect();
        let deadline = Instant::now() + CLEARING;
        while !keys.is_empty() {
            let left = self.left_by(&keys);
            if left.is_empty() || Instant::now() > deadline {
                return;
            }
            for pid in left {
                descend::signal(pid, libc::SIGKILL);
                descend::reap_one(pid);
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// The front is gone: stop everything, and leave nothing.
    fn finish_alone(&mut self) -> io::Result<()> {
        if let Some((socket, words)) = self.last_words.take() {
            // Once, and without waiting: a peer that takes no more finds out by itself.
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let _ = nix::sys::socket::send(socket.as_raw_fd(), &words, flags);
        }
        let live: Vec<Key> = self.ranks.iter().filter(|rank| rank.is_alive()).map(|rank| rank.key).collect();
        self.signal(libc::SIGTERM, &live);
        let deadline = Instant::now() + self.grace;
        while self.ranks.iter().any(Rank::is_alive) {
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
    }
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

/// For tests of the moment between fork and exec.
fn pause_before_exec() -> Duration {
    let millis = std::env::var("UMIAK_TEST_PAUSE_BEFORE_EXEC").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(millis.unwrap_or(0))
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
