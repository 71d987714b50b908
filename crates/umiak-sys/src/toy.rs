//! What the toy trainer of our tests does to itself: installing handlers and touching memory that is not there need
//! `unsafe`, which lives here.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// Ignores a signal from now on.
pub fn ignore_signal(signal: i32) {
    // SAFETY: installs a constant disposition.
    unsafe {
        libc::signal(signal, libc::SIG_IGN);
    }
}

/// Gives these signals their default meaning again. A suite that runs in the background of a script inherits some of
/// them as ignored, and what it starts would too.
pub fn default_signals(signals: &[i32]) {
    for signal in signals {
        // SAFETY: installs a constant disposition.
        unsafe {
            libc::signal(*signal, libc::SIG_DFL);
        }
    }
}

static CODE: AtomicI32 = AtomicI32::new(0);

/// Exits with `code` when SIGTERM comes, after one line on stdout.
pub fn exit_on_term(code: i32) {
    CODE.store(code, Ordering::SeqCst);
    let handler: extern "C" fn(i32) = handle;
    // SAFETY: the handler only makes async-signal-safe calls.
    unsafe {
        libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
    }
}

extern "C" fn handle(_signal: i32) {
    let text = b"caught SIGTERM\n";
    // SAFETY: write and _exit are async-signal-safe; the buffer is static.
    unsafe {
        libc::write(1, text.as_ptr().cast(), text.len());
        libc::_exit(CODE.load(Ordering::SeqCst));
    }
}

/// Writes to address 16, which nobody has.
pub fn fault() {
    let nowhere = std::ptr::without_provenance_mut::<u32>(16);
    // SAFETY: not sound, on purpose: the first page is never mapped, so the kernel ends this process.
    unsafe { nowhere.write_volatile(1) };
}

/// Maps `length` bytes of `file` and writes to each page: SIGBUS where the file system has no room for one.
pub fn touch_pages(file: &File, length: usize) {
    // SAFETY: a shared mapping of a file that outlives it; the result is checked.
    let start = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert!(start != libc::MAP_FAILED, "the file can be mapped");
    for offset in (0..length).step_by(4096) {
        // SAFETY: within the mapping; a page that cannot be had ends this process, which is the point.
        unsafe { start.cast::<u8>().add(offset).write_volatile(1) };
    }
}

/// What a careless trainer starts and forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grandchild {
    /// Stays in the rank's group and session.
    InGroup,
    /// Leaves the session and the parent: a double fork.
    Daemon,
}

impl Grandchild {
    /// Its name in `/proc`, which it has from the moment it exists.
    pub fn name(self) -> &'static str {
        match self {
            Self::InGroup => "toy-child",
            Self::Daemon => "toy-daemon",
        }
    }
}

/// Names this process as `/proc` shows it.
pub fn set_name(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        // SAFETY: the kernel copies at most 16 bytes from a string that ends.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        }
    }
}

/// Starts a grandchild that runs `live` and ends. To be called while the process has one thread.
///
/// Forked without an exec: nothing about it but its parent, its start and its cgroup can be found out, and it is
/// there within microseconds.
pub fn start_grandchild(kind: Grandchild, live: fn()) {
    let own = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    // Set before the fork, so that there is no moment in which it could be taken for its parent.
    set_name(kind.name());
    // SAFETY: one thread, so the child may use all of std; it leaves by _exit.
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
