//! Forks that the C library does not offer: into a cgroup, into namespaces, with a pid descriptor.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// From the kernel's headers; the C library's bindings do not have it on every platform.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Namespaces that a process starts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespaces {
    None,
    Process,
    ProcessAndUser,
}

/// Forks into a cgroup and a PID namespace, if given. Returns 0 in the child.
///
/// SAFETY: the caller has one thread, or the child only makes system calls until it executes a program.
pub(crate) unsafe fn fork_into(cgroup: Option<BorrowedFd<'_>>, namespaces: Namespaces) -> io::Result<libc::pid_t> {
    let mut flags = match namespaces {
        Namespaces::None => 0,
        Namespaces::Process => (libc::CLONE_NEWPID | libc::CLONE_NEWNS) as u64,
        Namespaces::ProcessAndUser => (libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWUSER) as u64,
    };
    if cgroup.is_some() {
        flags |= CLONE_INTO_CGROUP;
    }
    if flags == 0 {
        // SAFETY: passed on to the caller.
        return unsafe { plain_fork() };
    }
    // SAFETY: plain data.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags;
    arguments.cgroup = cgroup.map_or(0, |fd| fd.as_raw_fd() as u64);
    // SAFETY: passed on to the caller.
    unsafe { clone(&mut arguments) }
}

/// Forks; `None` in the child. With `shares_files` the child shares the descriptor table itself until it unshares.
///
/// SAFETY: the caller has one thread. The child may only make system calls, and must end by exec or `_exit`.
pub(crate) unsafe fn fork_with_descriptor(shares_files: bool) -> io::Result<Option<(libc::pid_t, OwnedFd)>> {
    let mut descriptor: libc::c_int = -1;
    // SAFETY: plain data.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = (libc::CLONE_PIDFD | if shares_files { libc::CLONE_FILES } else { 0 }) as u64;
    arguments.pidfd = (&raw mut descriptor) as u64;
    // SAFETY: passed on to the caller; the kernel writes the descriptor to a place that outlives the call.
    match unsafe { clone(&mut arguments) } {
        Ok(0) => Ok(None),
        // SAFETY: a fresh descriptor with no other owner; the kernel marks it close-on-exec.
        Ok(pid) => Ok(Some((pid, unsafe { OwnedFd::from_raw_fd(descriptor) }))),
        // A container's seccomp filter may reject the call.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            // SAFETY: passed on to the caller.
            match unsafe { plain_fork()? } {
                0 => Ok(None),
                pid => pidfd_open(pid).map(|descriptor| Some((pid, descriptor))),
            }
        }
        Err(error) => Err(error),
    }
}

/// Bytes of stack for a child that shares our memory: system calls, and paths of the kernel's longest length.
const STACK: usize = 64 << 10;

/// Starts a child that shares our memory and runs `child`, while we wait until it has executed a program or ended. Nothing
/// of ours is copied, so its cost does not grow with our memory. `None` if the kernel does not let us.
///
/// SAFETY: `child` may only make system calls and must end by exec or `_exit`; it gets `argument` as it is.
pub(crate) unsafe fn fork_sharing_memory(
    shares_files: bool,
    child: extern "C" fn(*mut libc::c_void) -> libc::c_int,
    argument: *mut libc::c_void,
) -> Option<(libc::pid_t, OwnedFd)> {
    let mut stack = MaybeUninit::<[u8; STACK]>::uninit();
    let mut descriptor: libc::c_int = -1;
    let sharing = if shares_files { libc::CLONE_FILES } else { 0 };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD | sharing;
    // SAFETY: the stack grows down from its end, and both outlive the child's use of our memory, because we wait. The
    // kernel writes the descriptor to its place.
    let pid = unsafe {
        let top = stack.as_mut_ptr().cast::<u8>().add(STACK);
        libc::clone(child, top.cast(), flags, argument, &raw mut descriptor)
    };
    // SAFETY: a fresh descriptor with no other owner; the kernel marks it close-on-exec.
    (pid > 0).then(|| (pid, unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

/// SAFETY: the caller has one thread; pointers in `arguments` are valid.
unsafe fn clone(arguments: &mut libc::clone_args) -> io::Result<libc::pid_t> {
    arguments.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM and a stack this is a fork; the arguments are complete and live long enough.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const *arguments, size_of::<libc::clone_args>()) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as libc::pid_t) }
}

/// SAFETY: the caller has one thread.
unsafe fn plain_fork() -> io::Result<libc::pid_t> {
    // SAFETY: passed on to the caller.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(pid),
    }
}

pub(crate) fn pidfd_open(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is checked and owned at once (pid descriptors are close-on-exec).
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The contents of the files that map our user and group to themselves in a user namespace.
#[derive(Debug)]
pub(crate) struct UserMap {
    user: CString,
    group: CString,
}

impl UserMap {
    pub(crate) fn of_this_process() -> Self {
        // SAFETY: no arguments, no failure.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let line = |id: u32| CString::new(format!("{id} {id} 1")).expect("numbers have no null byte");
        Self { user: line(user), group: line(group) }
    }

    /// Writes them for this process, which has a new user namespace. Only makes system calls.
    pub(crate) fn keep(&self) {
        let write = |path: &CStr, text: &CStr| {
            // SAFETY: both are C strings; the descriptor is closed where it was opened.
            unsafe {
                let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                libc::write(file, text.as_ptr().cast(), text.count_bytes());
                libc::close(file);
            }
        };
        // This view of /proc is still the outer one, in which `self` is this process.
        write(c"/proc/self/setgroups", c"deny");
        write(c"/proc/self/uid_map", &self.user);
        write(c"/proc/self/gid_map", &self.group);
    }
}
