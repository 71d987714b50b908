//! Locks on whole files, and what tells one start of a machine or of a process from another.
//!
//! The lock belongs to the open file, not to the process: whoever is forked from its holder holds it too, and it is
//! free when the last of them is gone, however they went.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::wait::read_small;

/// Tries to be the only holder; says whether it worked. Never waits.
pub fn try_exclusive(file: &File) -> io::Result<bool> {
    lock(file, libc::LOCK_EX)
}

/// Tries to be one of several holders; says whether it worked, which it does not beside an only holder. Never waits.
pub fn try_shared(file: &File) -> io::Result<bool> {
    lock(file, libc::LOCK_SH)
}

/// Whether somebody is the only holder. Asking holds the file for a moment.
pub fn is_held(file: &File) -> io::Result<bool> {
    let free = lock(file, libc::LOCK_SH)?;
    if free {
        // SAFETY: flock takes no pointers; the descriptor is open as long as the borrow.
        unsafe {
            libc::flock(file.as_raw_fd(), libc::LOCK_UN);
        }
    }
    Ok(!free)
}

fn lock(file: &File, how: libc::c_int) -> io::Result<bool> {
    loop {
        // SAFETY: flock takes no pointers; the descriptor is open as long as the borrow.
        if unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EWOULDBLOCK) => return Ok(false),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

/// Which start of this machine it is.
pub fn boot_id() -> String {
    read_small("/proc/sys/kernel/random/boot_id").map_or_else(String::new, |id| id.trim().to_owned())
}

/// When this process began, in the kernel's ticks since the machine did: a pid that is used again has another.
pub fn process_start(pid: u32) -> Option<u64> {
    let stat = read_small(format!("/proc/{pid}/stat"))?;
    // The name of the program may hold anything, brackets too; what follows the last one is numbers.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whether a process is stopped by a signal, as Ctrl-Z does it.
pub fn is_paused(pid: u32) -> bool {
    let stat = read_small(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in brackets may hold anything.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_seen_until_it_is_dropped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (holder, other) = (file.reopen().unwrap(), file.reopen().unwrap());
        assert!(!is_held(&other).unwrap());
        assert!(try_exclusive(&holder).unwrap());
        assert!(is_held(&other).unwrap());
        assert!(!try_exclusive(&other).unwrap());
        let inherited = holder.try_clone().unwrap();
        drop(holder);
        assert!(is_held(&other).unwrap(), "whoever inherited the file holds it");
        drop(inherited);
        assert!(!is_held(&other).unwrap());
        assert!(try_shared(&other).unwrap());
        let third = file.reopen().unwrap();
        assert!(try_shared(&third).unwrap() && !is_held(&third).unwrap(), "shared holders keep only one out");
        assert!(!try_exclusive(&file.reopen().unwrap()).unwrap());
    }

    #[test]
    fn this_process_has_a_start() {
        assert!(process_start(std::process::id()).is_some_and(|start| start > 0));
        assert_eq!(process_start(u32::MAX), None);
    }
}
