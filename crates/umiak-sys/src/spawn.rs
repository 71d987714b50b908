//! From fork to exec: one rank becomes a session of its own that dies with its guardian.
//!
//! Everything the child needs is prepared before the fork; the child itself only makes system calls.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::ptr;
use std::time::Duration;

use crate::protocol::{Doing, Process};

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
    pub(crate) fn read(&self, slot: usize) -> Option<(Doing, i32)> {
        assert!(slot < self.count);
        // SAFETY: in bounds by the assertion; the writer has exited, so nobody writes now.
        let (doing, errno) =
            unsafe { (self.base.add(slot * 2).read_volatile(), self.base.add(slot * 2 + 1).read_volatile()) };
        Doing::from_u32(doing).map(|doing| (doing, errno as i32))
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

/// The environment every process of a batch starts from.
pub(crate) fn base_environment(unset: &[Vec<u8>], set: &[(Vec<u8>, Vec<u8>)]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut base: BTreeMap<Vec<u8>, Vec<u8>> =
        std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec())).collect();
    for name in unset {
        base.remove(name);
    }
    base.extend(set.iter().cloned());
    base
}

/// A process ready to be forked: every string is already where exec wants it.
#[derive(Debug)]
pub(crate) struct Prepared {
    program: CString,
    argv: Vec<CString>,
    envp: Vec<CString>,
    log: CString,
    inherit_stdin: bool,
    cpus: Option<libc::cpu_set_t>,
}

impl Prepared {
    pub(crate) fn new(process: &Process, base: &BTreeMap<Vec<u8>, Vec<u8>>) -> io::Result<Self> {
        let mut environment: BTreeMap<&[u8], &[u8]> =
            base.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        environment.extend(process.env.iter().map(|(name, value)| (name.as_slice(), value.as_slice())));
        let envp = environment
            .into_iter()
            .map(|(name, value)| CString::new([name, b"=", value].concat()))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            program: CString::new(process.program.as_slice())?,
            argv: process.argv.iter().map(|word| CString::new(word.as_slice())).collect::<Result<_, _>>()?,
            envp,
            log: CString::new(process.log.as_slice())?,
            inherit_stdin: process.inherit_stdin,
            cpus: (!process.cpus.is_empty()).then(|| cpu_set(&process.cpus)),
        })
    }

    /// Forks. The child becomes a session leader bound to `guardian` and executes the program.
    pub(crate) fn fork(
        &self,
        guardian: libc::pid_t,
        slots: &FailureSlots,
        slot: usize,
        pause: Duration,
        output: Option<BorrowedFd<'_>>,
    ) -> io::Result<libc::pid_t> {
        let pointers = |words: &[CString]| -> Vec<*const libc::c_char> {
            words.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect()
        };
        let argv = pointers(&self.argv);
        let envp = pointers(&self.envp);
        let failure = slots.slot(slot);
        // SAFETY: the guardian is single-threaded, so the child's memory is a consistent copy; it only makes
        // async-signal-safe calls and leaves by exec or _exit.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: we are the child of a single-threaded process; all pointers outlive exec.
                unsafe { self.become_rank(guardian, &argv, &envp, failure, pause, output.map(|fd| fd.as_raw_fd())) }
            }
            pid => Ok(pid),
        }
    }

    /// The child's side of fork.
    ///
    /// SAFETY: to be called in a fresh child only; `argv` and `envp` end with null.
    unsafe fn become_rank(
        &self,
        guardian: libc::pid_t,
        argv: &[*const libc::c_char],
        envp: &[*const libc::c_char],
        failure: *mut u32,
        pause: Duration,
        output: Option<RawFd>,
    ) -> ! {
        let fail = |doing: Doing| -> ! {
            // SAFETY: `failure` points at our slot of the shared mapping; errno is read before anything else.
            unsafe {
                failure.add(1).write_volatile(*libc::__errno_location() as u32);
                failure.write_volatile(doing as u32);
                libc::_exit(127)
            }
        };
        // SAFETY: plain system calls on our own process and descriptors.
        unsafe {
            libc::setsid();
            // Follows the forking thread, which is the guardian's only one. If the guardian died before this
            // call the signal would never come: hence the second look at the parent.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != guardian {
                libc::_exit(127);
            }
            if let Some(cpus) = &self.cpus {
                // A wish, not a condition: a CPU that went away is no reason not to start.
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), ptr::from_ref(cpus));
            }
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            if !self.inherit_stdin {
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                if null < 0 || libc::dup2(null, 0) < 0 {
                    fail(Doing::OpenStdin);
                }
            }
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
            let log = output.unwrap_or_else(|| libc::open(self.log.as_ptr(), flags, 0o644));
            if log < 0 || libc::dup2(log, 1) < 0 || libc::dup2(log, 2) < 0 {
                fail(Doing::OpenLog);
            }
            // What our caller left open is not for the ranks. Kernels before 5.9 do not know the call: no matter.
            libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, 0 as libc::c_uint);
            // Rust ignores SIGPIPE from the start; programs expect the default. Handlers are reset by exec.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
            libc::execve(self.program.as_ptr(), argv.as_ptr(), envp.as_ptr());
            fail(Doing::Execute)
        }
    }
}

fn cpu_set(cpus: &[u32]) -> libc::cpu_set_t {
    // SAFETY: plain data; the macro's function only sets bits inside it, and ignores what is beyond.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in cpus.iter().filter(|cpu| (**cpu as usize) < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(*cpu as usize, &mut set);
        }
        set
    }
}

/// The errno in the C library's words.
pub fn describe_errno(errno: i32) -> String {
    // SAFETY: strerror returns a valid string; we are single-threaded or only lose a race for text.
    let text = unsafe { CStr::from_ptr(libc::strerror(errno)) };
    text.to_string_lossy().into_owned()
}
