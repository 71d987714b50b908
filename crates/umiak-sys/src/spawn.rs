//! From fork to exec: one rank becomes a session of its own that dies with its guardian.
//!
//! Everything the child needs is prepared before the fork; the child itself only makes system calls.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;
use std::time::Duration;

use crate::fork::fork_with_descriptor;
use crate::memory::{self, enter};
use crate::protocol::{ProcessLimits, ProcessSpec, SpawnAction};

/// Where children of one batch leave the step that failed: shared memory, read after their exit.
#[derive(Debug)]
pub(crate) struct FailureSlots {
    base: *mut u32,
    count: usize,
}

impl FailureSlots {
    pub(crate) fn new(count: usize) -> io::Result<Self> {
        let length = (count.max(1)) * 8;
        // SAFETY: an anonymous shared mapping of `length` bytes; the result is checked below.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), count })
    }

    /// What the child of this slot could not do, if it got no further.
    pub(crate) fn read(&self, slot: usize) -> Option<(SpawnAction, i32)> {
        assert!(slot < self.count);
        // SAFETY: in bounds by the assertion; the writer has exited, so nobody writes now.
        let (doing, errno) =
            unsafe { (self.base.add(slot * 2).read_volatile(), self.base.add(slot * 2 + 1).read_volatile()) };
        SpawnAction::from_u32(doing).map(|doing| (doing, errno as i32))
    }

    fn slot(&self, slot: usize) -> *mut u32 {
        assert!(slot < self.count);
        // SAFETY: in bounds by the assertion.
        unsafe { self.base.add(slot * 2) }
    }
}

impl Drop for FailureSlots {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, unmapped once.
        unsafe {
            libc::munmap(self.base.cast(), self.count.max(1) * 8);
        }
    }
}

/// The environment every process of a batch starts from, by name, each entry as exec wants it.
#[derive(Debug)]
pub(crate) struct Base(BTreeMap<Vec<u8>, CString>);

impl Base {
    pub(crate) fn new(unset: &[Vec<u8>], set: &[(Vec<u8>, Vec<u8>)]) -> io::Result<Self> {
        let mut base = BTreeMap::new();
        for (name, value) in std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec())) {
            let entry = entry(&name, &value)?;
            base.insert(name, entry);
        }
        for name in unset {
            base.remove(name);
        }
        for (name, value) in set {
            base.insert(name.clone(), entry(name, value)?);
        }
        Ok(Self(base))
    }
}

fn entry(name: &[u8], value: &[u8]) -> io::Result<CString> {
    Ok(CString::new([name, b"=", value].concat())?)
}

/// A process ready to be forked: every string is already where exec wants it.
#[derive(Debug)]
pub(crate) struct PreparedProcess<'a> {
    program: CString,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    /// What the pointers point to, beside `base`.
    _own: Vec<CString>,
    base: PhantomData<&'a Base>,
    dir: Option<CString>,
    log: CString,
    inherit_stdin: bool,
    /// Wished for.
    cpus: Option<libc::cpu_set_t>,
    /// Held to.
    bound: Option<libc::cpu_set_t>,
    /// Who writes here is in its cgroup.
    members: Option<CString>,
}

impl<'a> PreparedProcess<'a> {
    /// `cell` is its cgroup, where it has one of its own.
    pub(crate) fn new(
        process: &ProcessSpec,
        base: &'a Base,
        limits: Option<&ProcessLimits>,
        cell: Option<&Path>,
    ) -> io::Result<Self> {
        let mut environment: BTreeMap<&[u8], *const libc::c_char> =
            base.0.iter().map(|(name, entry)| (name.as_slice(), entry.as_ptr())).collect();
        let mut own = Vec::with_capacity(process.env.len() + process.argv.len());
        // What is on the heap stays where it is when the list that owns it moves.
        let mut keep = |text: CString| {
            let pointer = text.as_ptr();
            own.push(text);
            pointer
        };
        for (name, value) in &process.env {
            environment.insert(name, keep(entry(name, value)?));
        }
        let mut argv = Vec::with_capacity(process.argv.len() + 1);
        for word in &process.argv {
            argv.push(keep(CString::new(word.as_slice())?));
        }
        argv.push(ptr::null());
        Ok(Self {
            program: CString::new(process.program.as_slice())?,
            argv,
            envp: environment.into_values().chain([ptr::null()]).collect(),
            _own: own,
            base: PhantomData,
            dir: (!process.dir.is_empty()).then(|| CString::new(process.dir.as_slice())).transpose()?,
            log: CString::new(process.log.as_slice())?,
            inherit_stdin: process.inherit_stdin,
            cpus: cpu_set(&process.cpus),
            bound: limits.and_then(|limits| cpu_set(&limits.cpus)),
            members: cell.map(|cell| CString::new(memory::members(cell).as_os_str().as_bytes())).transpose()?,
        })
    }

    /// Forks. The child becomes a session leader bound to `guardian` and executes the program. The descriptor is the
    /// child's, and becomes readable at its end.
    pub(crate) fn fork(
        &self,
        guardian: libc::pid_t,
        slots: &FailureSlots,
        slot: usize,
        pause: Duration,
        output: Option<BorrowedFd<'_>>,
    ) -> io::Result<(libc::pid_t, OwnedFd)> {
        let failure = slots.slot(slot);
        // Copying the guardian's descriptors into every rank, only to close them there, takes longer with each rank.
        // A rank that writes to its log by itself shares them until it has a table of its own.
        let shares_files = output.is_none();
        // SAFETY: the guardian is single-threaded, so the child's memory is a consistent copy; it only makes
        // async-signal-safe calls and leaves by exec or _exit.
        match unsafe { fork_with_descriptor(shares_files)? } {
            None => {
                // SAFETY: we are the child of a single-threaded process; all pointers outlive exec, and both lists end
                // with null.
                unsafe { self.become_rank(guardian, failure, pause, output.map(|fd| fd.as_raw_fd())) }
            }
            Some(child) => Ok(child),
        }
    }

    /// The child's side of fork.
    ///
    /// SAFETY: to be called in a fresh child only.
    unsafe fn become_rank(
        &self,
        guardian: libc::pid_t,
        failure: *mut u32,
        pause: Duration,
        output: Option<RawFd>,
    ) -> ! {
        let fail = |doing: SpawnAction| -> ! {
            // SAFETY: `failure` points at our slot of the shared mapping; errno is read before anything else.
            unsafe {
                failure.add(1).write_volatile(*libc::__errno_location() as u32);
                failure.write_volatile(doing as u32);
                libc::_exit(127)
            }
        };
        // SAFETY: plain system calls on our own process and descriptors.
        unsafe {
            // First of all: until then the descriptors are the guardian's too.
            if output.is_none() && !leave_descriptors() {
                fail(SpawnAction::OpenLog);
            }
            libc::setsid();
            // Follows the forking thread, which is the guardian's only one. If the guardian died before this
            // call the signal would never come: hence the second look at the parent.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != guardian {
                libc::_exit(127);
            }
            if let Some(members) = &self.members
                && !enter(members)
            {
                fail(SpawnAction::LimitMemory);
            }
            let bind = |cpus| libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), ptr::from_ref(cpus)) == 0;
            if let Some(cpus) = &self.cpus {
                bind(cpus);
            }
            if self.bound.as_ref().is_some_and(|cpus| !bind(cpus)) {
                fail(SpawnAction::BindCpus);
            }
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            if !self.inherit_stdin {
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                if null < 0 || libc::dup2(null, 0) < 0 {
                    fail(SpawnAction::OpenStdin);
                }
            }
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
            let log = output.unwrap_or_else(|| libc::open(self.log.as_ptr(), flags, 0o644));
            if log < 0 || libc::dup2(log, 1) < 0 || libc::dup2(log, 2) < 0 {
                fail(SpawnAction::OpenLog);
            }
            if output.is_some() {
                // What our caller left open is not for the ranks. Kernels before 5.9 do not know the call: no matter.
                libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, 0 as libc::c_uint);
            }
            if let Some(dir) = &self.dir
                && libc::chdir(dir.as_ptr()) != 0
            {
                fail(SpawnAction::ChangeDirectory);
            }
            // Rust ignores SIGPIPE from the start; programs expect the default. Handlers are reset by exec.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            libc::execve(self.program.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr());
            fail(SpawnAction::Execute)
        }
    }
}

/// A descriptor table of our own, with nothing in it but the first three. Before Linux 5.9 what our caller left open
/// stays open too: no matter.
fn leave_descriptors() -> bool {
    // SAFETY: no pointers; what is closed is our copy.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) == 0
            || libc::unshare(libc::CLONE_FILES) == 0
    }
}

fn cpu_set(cpus: &[u32]) -> Option<libc::cpu_set_t> {
    if cpus.is_empty() {
        return None;
    }
    // SAFETY: plain data; the macro's function only sets bits inside it, and ignores what is beyond.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in cpus.iter().filter(|cpu| (**cpu as usize) < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(*cpu as usize, &mut set);
        }
        Some(set)
    }
}

/// The errno in the C library's words.
pub fn describe_errno(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.strip_suffix(&format!(" (os error {errno})")).unwrap_or(&text).to_owned()
}
