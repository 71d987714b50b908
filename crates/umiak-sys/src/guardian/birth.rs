//! Forking the guardian, and setting up its process: name, namespaces, limits, descriptors.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use crate::cgroup::Cgroup;
use crate::fork::{Namespaces, UserMap, fork_into};

/// Forks the guardian with its name, into its cgroup and a PID namespace if requested. Returns 0 in the guardian. Must
/// be called while this process has one thread. `cgroup` becomes `None` if the guardian could not be placed in it.
pub(super) fn fork(cgroup: &mut Option<Cgroup>, isolate: bool) -> io::Result<(libc::pid_t, Namespaces)> {
    let namespaces = if isolate { Namespaces::Process } else { Namespaces::None };
    // If not permitted, try with less: a user namespace grants the right to create the others, and a kernel or sandbox
    // that refuses to clone into a cgroup still allows a fork.
    let mut tries = vec![(true, namespaces)];
    if isolate {
        tries.push((true, Namespaces::ProcessAndUser));
        tries.push((false, Namespaces::ProcessAndUser));
    } else {
        tries.push((false, Namespaces::None));
    }
    // Set before the fork: a cleaner of killed jobs must never see a guardian without its name.
    let own = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    set_name(c"umiak-guardian");
    let mut forked = Err(io::Error::from_raw_os_error(libc::EPERM));
    for (in_cgroup, namespaces) in tries {
        let place = cgroup.as_ref().filter(|_| in_cgroup).map(AsFd::as_fd);
        // SAFETY: documented to be called while single-threaded, so the child may use all of std; it never
        // returns.
        forked = unsafe { fork_into(place, namespaces) }.map(|pid| (pid, namespaces));
        if forked.is_ok() {
            if !in_cgroup && let Some(unused) = cgroup.take() {
                // In the child this fails silently: the parent has removed it.
                unused.remove();
            }
            break;
        }
    }
    if !matches!(forked, Ok((0, _)))
        && let Ok(own) = std::ffi::CString::new(own.trim_end())
    {
        set_name(&own);
    }
    forked
}

/// The descriptor of an executed guardian's socket.
pub(super) const SOCKET: RawFd = 3;

/// Forks a process that executes this program again with these words, and finds its socket at [`SOCKET`]. The caller
/// may have threads.
pub(super) fn execute(words: &[&CStr], socket: BorrowedFd<'_>, isolate: bool) -> io::Result<libc::pid_t> {
    let argv: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect();
    let user = UserMap::of_this_process();
    let tries: &[Namespaces] =
        if isolate { &[Namespaces::Process, Namespaces::ProcessAndUser] } else { &[Namespaces::None] };
    let mut forked = Err(io::Error::from_raw_os_error(libc::EPERM));
    for namespaces in tries {
        // SAFETY: the child only makes system calls, on memory prepared before, and ends by exec or `_exit`.
        forked = unsafe { fork_into(None, *namespaces) };
        match forked {
            // SAFETY: as above; the list ends with null.
            Ok(0) => unsafe {
                settle(*namespaces, &user);
                if socket.as_raw_fd() == SOCKET {
                    libc::fcntl(SOCKET, libc::F_SETFD, 0);
                } else {
                    libc::dup2(socket.as_raw_fd(), SOCKET);
                }
                libc::execv(c"/proc/self/exe".as_ptr(), argv.as_ptr());
                libc::_exit(127)
            },
            Ok(_) => break,
            Err(_) => {}
        }
    }
    forked
}

/// Sets the name of this process in `/proc` and `ps`.
pub(super) fn set_name(name: &CStr) {
    // SAFETY: the kernel copies at most 16 bytes from a terminated string.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
    }
}

/// Sets up new namespaces from inside. Only makes system calls.
pub(super) fn settle(namespaces: Namespaces, user: &UserMap) {
    if namespaces == Namespaces::ProcessAndUser {
        user.keep();
    }
    if namespaces != Namespaces::None {
        mount_own_proc();
    }
}

/// Mounts /proc of the PID namespace, so that programs see its processes.
fn mount_own_proc() {
    // SAFETY: both calls concern our own mount namespace; a failure leaves the old view.
    unsafe {
        libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), libc::MS_REC | libc::MS_PRIVATE, ptr::null());
        libc::mount(c"proc".as_ptr(), c"/proc".as_ptr(), c"proc".as_ptr(), 0, ptr::null());
    }
}

/// Redirects output to /dev/null. A pipe behind the front's stdout must close when the front ends, not when the
/// guardian does.
pub(super) fn redirect_output_to_null() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        // SAFETY: replaces descriptors 1 and 2 of this process only.
        unsafe {
            libc::dup2(null.as_raw_fd(), 1);
            libc::dup2(null.as_raw_fd(), 2);
        }
    }
}
