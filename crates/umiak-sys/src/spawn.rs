//! From fork to exec: a rank becomes the leader of its own session and dies with its guardian.
//!
//! Everything the child needs is prepared before the fork; the child itself only makes system calls.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;
use std::time::Duration;

use crate::files;
use crate::fork::{fork_sharing_memory, fork_with_descriptor};
use crate::memory::{self, enter};
use crate::mounts;
use crate::protocol::{ProcessLimits, ProcessSpec, SCRIPT, SpawnAction};

/// Shared memory where children of a batch record the step that failed; read after their exit.
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

    /// The step that failed in the child of this slot, if any.
    pub(crate) fn read(&self, slot: usize) -> Option<(SpawnAction, i32)> {
        assert!(slot < self.count);
        // SAFETY: in bounds by the assertion; the writer has exited, so there are no writes now.
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

/// The environment that all processes of a batch start from, by name, in the format of exec.
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

/// A process ready to be forked: all strings are in the format of exec.
#[derive(Debug)]
pub(crate) struct PreparedProcess<'a> {
    program: CString,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    /// Owns the strings that the pointers refer to, except those in `base`.
    _own: Vec<CString>,
    base: PhantomData<&'a Base>,
    dir: Option<CString>,
    script: Vec<u8>,
    log: CString,
    stderr: Option<CString>,
    /// Another user can change the directory of the log: a link there is not followed.
    log_is_exposed: bool,
    inherit_stdin: bool,
    /// Preferred CPUs.
    cpus: Option<libc::cpu_set_t>,
    /// Enforced CPUs.
    bound: Option<libc::cpu_set_t>,
    /// Writing to this file enters the cgroup.
    members: Option<CString>,
    mounts: Option<mounts::Prepared>,
}

impl<'a> PreparedProcess<'a> {
    /// `cell` is its cgroup, if it has its own.
    pub(crate) fn new(
        process: &ProcessSpec,
        base: &'a Base,
        limits: Option<&ProcessLimits>,
        cell: Option<&Path>,
    ) -> io::Result<Self> {
        let mut environment: BTreeMap<&[u8], *const libc::c_char> =
            base.0.iter().map(|(name, entry)| (name.as_slice(), entry.as_ptr())).collect();
        let mut own = Vec::with_capacity(process.env.len() + process.argv.len());
        // Heap data does not move when the list that owns it does.
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
            dir: working_directory(process)?,
            script: process.script.clone(),
            log: CString::new(process.log.as_slice())?,
            stderr: (!process.stderr.is_empty()).then(|| CString::new(process.stderr.as_slice())).transpose()?,
            log_is_exposed: files::has_foreign_directory(Path::new(OsStr::from_bytes(&process.log))),
            inherit_stdin: process.inherit_stdin,
            cpus: cpu_set(&process.cpus),
            bound: limits.and_then(|limits| cpu_set(&limits.cpus)),
            members: cell.map(|cell| CString::new(memory::members(cell).as_os_str().as_bytes())).transpose()?,
            mounts: mounts::Prepared::new(&process.mounts)?,
        })
    }

    /// Forks. The child becomes a session leader tied to `guardian` and executes the program. The returned descriptor
    /// becomes readable when the child exits. With `waits`, this returns when the program is executed: cheaper for one
    /// process, slower for many.
    pub(crate) fn fork(
        &self,
        guardian: libc::pid_t,
        slots: &FailureSlots,
        slot: usize,
        pause: Duration,
        waits: bool,
        output: Option<BorrowedFd<'_>>,
    ) -> io::Result<(libc::pid_t, OwnedFd)> {
        let failure = slots.slot(slot);
        // Copying the guardian's descriptors into every rank, only to close them there, takes longer with each rank. A
        // rank that opens its log by itself shares the table until it has its own.
        let shares_files = output.is_none();
        // Mounts may take long, and a pause is for tests that look at what is going on meanwhile.
        if waits && pause.is_zero() && self.mounts.is_none() {
            let mut child = Child { prepared: self, guardian, failure, output: output.map(|fd| fd.as_raw_fd()) };
            // SAFETY: the child only makes system calls and ends by exec or _exit; `child` outlives the wait for it.
            let forked = unsafe { fork_sharing_memory(shares_files, Child::run, (&raw mut child).cast()) };
            if let Some(forked) = forked {
                return Ok(forked);
            }
        }
        // SAFETY: the guardian is single-threaded, so the child's memory is a consistent copy; it only makes
        // async-signal-safe calls and ends by exec or _exit.
        match unsafe { fork_with_descriptor(shares_files)? } {
            None => {
                // SAFETY: this is the child of a single-threaded process; all pointers outlive exec, and both lists end
                // with null.
                unsafe { self.become_rank(guardian, failure, pause, output.map(|fd| fd.as_raw_fd())) }
            }
            Some(child) => Ok(child),
        }
    }

    /// The child's side of fork.
    ///
    /// SAFETY: must only be called in a fresh child.
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
            // First of all: until then the descriptor table is the guardian's too.
            if output.is_none() && !leave_descriptors() {
                fail(SpawnAction::OpenLog);
            }
            libc::setsid();
            // The signal follows the forking thread, which is the guardian's only one. If the guardian died before this
            // call the signal would never come, so check the parent again.
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
            let flags = if self.log_is_exposed { flags | libc::O_NOFOLLOW } else { flags };
            let open = |path: &CString| {
                // A named pipe without a reader must fail, not block: the guardian may wait for the exec.
                let fd = libc::open(path.as_ptr(), flags | libc::O_NONBLOCK, files::READABLE);
                // errno is that of the open.
                if fd >= 0 {
                    libc::fcntl(fd, libc::F_SETFL, libc::O_APPEND);
                }
                fd
            };
            let is_settled = |fd| fd >= 0 && (output.is_some() || files::settle(fd, self.log_is_exposed));
            let log = output.unwrap_or_else(|| open(&self.log));
            if !is_settled(log) || libc::dup2(log, 1) < 0 {
                fail(SpawnAction::OpenLog);
            }
            let stderr = self.stderr.as_ref().filter(|_| output.is_none()).map_or(log, open);
            if !is_settled(stderr) || libc::dup2(stderr, 2) < 0 {
                fail(SpawnAction::OpenLog);
            }
            if output.is_some() {
                // Ranks do not inherit our caller's descriptors. Kernels before 5.9 lack the call, which is harmless.
                libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, 0 as libc::c_uint);
            }
            if let Some(mounts) = &self.mounts {
                if !mounts.enter() {
                    fail(SpawnAction::Mount);
                }
                // A user namespace may have cleared it.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != guardian {
                    libc::_exit(127);
                }
            }
            if !self.script.is_empty() && !pass(&self.script) {
                fail(SpawnAction::Execute);
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

/// What a child that shares our memory gets.
struct Child<'a> {
    prepared: &'a PreparedProcess<'a>,
    guardian: libc::pid_t,
    failure: *mut u32,
    output: Option<RawFd>,
}

impl Child<'_> {
    extern "C" fn run(child: *mut libc::c_void) -> libc::c_int {
        // SAFETY: this is a fresh child, and the pointer is the one that `fork` has passed.
        unsafe {
            let child = &*child.cast::<Child<'_>>();
            child.prepared.become_rank(child.guardian, child.failure, Duration::ZERO, child.output)
        }
    }
}

/// The directory that a process starts in; `None` for the guardian's. A process with its own root has to enter it anew.
fn working_directory(process: &ProcessSpec) -> io::Result<Option<CString>> {
    let is_lost = process.dir.is_empty() && !process.mounts.is_empty();
    let dir = if is_lost { std::env::current_dir()?.into_os_string().into_vec() } else { process.dir.clone() };
    Ok(if dir.is_empty() { None } else { Some(CString::new(dir)?) })
}

/// Makes a text readable at descriptor [`SCRIPT`], in memory only.
fn pass(text: &[u8]) -> bool {
    // SAFETY: system calls on our own descriptors; the pointers are to our own data.
    unsafe {
        // Some hosts permit only files that cannot be executed; older kernels do not know the flag.
        let mut file = libc::memfd_create(c"script".as_ptr(), libc::MFD_NOEXEC_SEAL);
        if file < 0 {
            file = libc::memfd_create(c"script".as_ptr(), 0);
        }
        if file < 0 {
            return false;
        }
        let mut rest = text;
        while !rest.is_empty() {
            match libc::write(file, rest.as_ptr().cast(), rest.len()) {
                count if count > 0 => rest = &rest[count as usize..],
                _ => return false,
            }
        }
        file == SCRIPT || (libc::dup2(file, SCRIPT) == SCRIPT && libc::close(file) == 0)
    }
}

/// Switches to an own descriptor table with only the first three. Before Linux 5.9 inherited descriptors stay open too,
/// which is harmless.
fn leave_descriptors() -> bool {
    // SAFETY: no pointers; only our copy is closed.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) == 0
            || libc::unshare(libc::CLONE_FILES) == 0
    }
}

fn cpu_set(cpus: &[u32]) -> Option<libc::cpu_set_t> {
    if cpus.is_empty() {
        return None;
    }
    // SAFETY: plain data; `CPU_SET` only sets bits inside it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in cpus.iter().filter(|cpu| (**cpu as usize) < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(*cpu as usize, &mut set);
        }
        Some(set)
    }
}

/// The C library's text for an errno.
pub fn describe_errno(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.strip_suffix(&format!(" (os error {errno})")).unwrap_or(&text).to_owned()
}
