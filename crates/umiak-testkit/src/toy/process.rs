//! Operations of the toy trainer on its own process: signal handlers, faults, forks without an exec.

#![expect(unsafe_code, reason = "signal handlers, faults and forks on purpose")]

use std::arch::asm;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::prctl;

/// Ignores a signal from now on.
pub(super) fn ignore_signal(signal: i32) {
    // SAFETY: installs a constant disposition.
    unsafe {
        libc::signal(signal, libc::SIG_IGN);
    }
}

/// Resets these signals to their default action. A suite in the background of a script inherits some of them as
/// ignored, and so would its children.
pub(crate) fn default_signals(signals: &[i32]) {
    for signal in signals {
        // SAFETY: installs a constant disposition.
        unsafe {
            libc::signal(*signal, libc::SIG_DFL);
        }
    }
}

static CODE: AtomicI32 = AtomicI32::new(0);

/// Exits with `code` on one of these signals, after one line on stdout.
pub(super) fn exit_on(signals: &[i32], code: i32) {
    CODE.store(code, Ordering::SeqCst);
    let handler: extern "C" fn(i32) = handle;
    for signal in signals {
        // SAFETY: the handler only makes async-signal-safe calls.
        unsafe {
            libc::signal(*signal, handler as libc::sighandler_t);
        }
    }
}

extern "C" fn handle(signal: i32) {
    let text: &[u8] = if signal == libc::SIGTERM { b"caught SIGTERM\n" } else { b"caught SIGINT\n" };
    // SAFETY: write and _exit are async-signal-safe; the buffer is static.
    unsafe {
        libc::write(1, text.as_ptr().cast(), text.len());
        libc::_exit(CODE.load(Ordering::SeqCst));
    }
}

/// Writes to address 16: the kernel kills this process with SIGSEGV, and logs the address.
pub(super) fn fault() -> ! {
    // SAFETY: no Rust object is at address 16, since the first page is never mapped. The block does not return: the
    // first instruction traps, and if it did not, the second would.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov dword ptr [{address}], 1", "ud2", address = in(reg) 16_usize, options(noreturn));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("str wzr, [{address}]", "brk #1", address = in(reg) 16_usize, options(noreturn));
    }
}

/// Maps `length` bytes of `file` and writes to each page: SIGBUS if the file system has no room for one.
pub(super) fn touch_pages(file: &File, length: usize) {
    // SAFETY: a shared mapping of a file that outlives it; the result is checked.
    let start = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert!(start != libc::MAP_FAILED, "the file can be mapped");
    for offset in (0..length).step_by(4096) {
        // SAFETY: within the mapping, which nothing else refers to. The kernel kills this process at a page that the
        // file system cannot provide.
        unsafe { start.cast::<u8>().add(offset).write_volatile(1) };
    }
}

/// A process that a careless trainer starts and forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grandchild {
    /// Stays in the rank's group and session.
    InGroup,
    /// Leaves the session and the parent: a double fork.
    Daemon,
}

impl Grandchild {
    /// Its name in `/proc`, which it has from its start.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InGroup => "toy-child",
            Self::Daemon => "toy-daemon",
        }
    }
}

/// Sets the name of this process in `/proc`.
pub(super) fn set_name(name: &str) {
    let name = std::ffi::CString::new(name).expect("a name without a zero byte");
    prctl::set_name(&name).expect("a process can name itself");
}

/// Starts a grandchild that runs `live` and exits. Panics if this process has a second thread.
///
/// Forked without an exec: it exists within microseconds, and only its parent, its start time and its cgroup identify
/// it.
pub(super) fn start_grandchild(kind: Grandchild, live: fn()) {
    let threads = std::fs::read_dir("/proc/self/task").expect("/proc can be read").count();
    assert_eq!(threads, 1, "only a process with one thread can go on in a fork");
    let own = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    // Set before the fork, so that it is never mistaken for its parent.
    set_name(kind.name());
    // SAFETY: one thread, so the child may use all of std; it ends by _exit.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            if kind == Grandchild::Daemon {
                libc::setsid();
                if libc::fork() != 0 {
                    libc::_exit(0);
                }
            }
            live();
            libc::_exit(0);
        }
        if kind == Grandchild::Daemon {
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
    set_name(own.trim_end());
}
