//! Forking the guardian, and setting up its process: name, namespaces, limits, descriptors.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use crate::cgroup::Cgroup;
use crate::fork::{Namespaces, fork_into};

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

/// Sets the name of this process in `/proc` and `ps`.
fn set_name(name: &CStr) {
    // SAFETY: the kernel copies at most 16 bytes from a terminated string.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
    }
}

/// Sets up new namespaces from inside.
pub(super) fn settle(namespaces: Namespaces) {
    if namespaces == Namespaces::ProcessAndUser {
        keep_user();
    }
    if namespaces != Namespaces::None {
        mount_own_proc();
    }
}

/// Maps our user and group to themselves in the user namespace.
fn keep_user() {
    // SAFETY: no arguments, no failure.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // This view of /proc is still the outer one, in which `self` is this process.
    let _ = std::fs::write("/proc/self/setgroups", "deny");
    let _ = std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"));
    let _ = std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"));
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
