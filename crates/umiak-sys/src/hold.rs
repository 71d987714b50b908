//! Locks on whole files, and identifying a boot or a process.
//!
//! The lock belongs to the open file, not to the process: children forked from its holder hold it too, and it is
//! released when the last of them exits in any way.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::wait::read_small;

/// Tries to take an exclusive lock, without waiting. True on success.
pub fn try_exclusive(file: &File) -> io::Result<bool> {
    lock(file, libc::LOCK_EX)
}

/// Tries to take a shared lock, without waiting. False if another process has an exclusive lock.
pub fn try_shared(file: &File) -> io::Result<bool> {
    lock(file, libc::LOCK_SH)
}

/// True if a process has an exclusive lock. The check holds a shared lock for a moment.
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

/// Marks an open file or directory with a number, as long as it is open here or in a process that inherits it. Any number
/// of processes may have the same mark, and no file is written. True if another process has marked it with another number.
pub fn mark(file: &File, number: u64) -> io::Result<bool> {
    // Offsets are positive, and a range ends before the last one.
    let number = (number % (i64::MAX as u64 - 2)) as i64 + 1;
    let lock = |command, kind: libc::c_int, start, length| {
        // SAFETY: `flock` is plain data, for which zeros are valid.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        range.l_type = kind as libc::c_short;
        (range.l_start, range.l_len) = (start, length);
        // SAFETY: the descriptor is open as long as the borrow, and the range lives on this frame.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut range) } == 0 {
            Ok(range.l_type != libc::F_UNLCK as libc::c_short)
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // A mark is a shared lock on one byte, which need not exist.
    lock(libc::F_OFD_SETLK, libc::F_RDLCK, number, 1)?;
    let is_other = |start, length| lock(libc::F_OFD_GETLK, libc::F_WRLCK, start, length);
    // A length of 0 is up to the end.
    Ok(is_other(0, number)? || is_other(number + 1, 0)?)
}

/// The id of the current boot.
pub fn boot_id() -> String {
    read_small("/proc/sys/kernel/random/boot_id").map_or_else(String::new, |id| id.trim().to_owned())
}

/// Start time of a process, in clock ticks since boot: distinguishes processes that reuse a pid.
pub fn process_start(pid: u32) -> Option<u64> {
    let stat = read_small(format!("/proc/{pid}/stat"))?;
    // The program name may contain anything, even parentheses, so parse after the last one.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// True if a process is stopped by a signal, as by Ctrl-Z.
pub fn is_paused(pid: u32) -> bool {
    state(pid) == Some('T')
}

/// True if a process has ended, and its parent has not read its status yet.
pub fn is_zombie(pid: u32) -> bool {
    matches!(state(pid), Some('Z' | 'X'))
}

fn state(pid: u32) -> Option<char> {
    // The name in parentheses may contain anything.
    read_small(format!("/proc/{pid}/stat"))?.rsplit_once(')')?.1.trim_start().chars().next()
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
        assert!(is_held(&other).unwrap(), "an inherited file holds the lock");
        drop(inherited);
        assert!(!is_held(&other).unwrap());
        assert!(try_shared(&other).unwrap());
        let third = file.reopen().unwrap();
        assert!(try_shared(&third).unwrap() && !is_held(&third).unwrap(), "shared locks exclude only an exclusive one");
        assert!(!try_exclusive(&file.reopen().unwrap()).unwrap());
    }

    #[test]
    fn marks_of_others_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let open = || File::open(directory.path()).unwrap();
        let (one, same, other) = (open(), open(), open());
        assert!(!mark(&one, 7).unwrap());
        assert!(!mark(&same, 7).unwrap(), "the same mark");
        assert!(mark(&other, 8).unwrap());
        assert!(mark(&one, 7).unwrap(), "seen by the first one too");
        let inherited = one.try_clone().unwrap();
        drop((one, same));
        assert!(mark(&other, 8).unwrap());
        drop(inherited);
        assert!(!mark(&other, 8).unwrap());
        for number in [0, 1, u64::MAX, i64::MAX as u64] {
            assert!(mark(&open(), number).unwrap(), "{number}: 8 is still there");
        }
    }

    #[test]
    fn this_process_has_a_start() {
        assert!(process_start(std::process::id()).is_some_and(|start| start > 0));
        assert_eq!(process_start(u32::MAX), None);
    }
}
