//! Terminals: size, foreground, pseudo-terminals.

use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Columns and rows of the terminal behind `stream`, if it is one.
pub fn size(stream: &impl AsFd) -> Option<(u16, u16)> {
    let fd = stream.as_fd();
    if !fd.is_terminal() {
        return None;
    }
    // SAFETY: winsize is plain data that the kernel fills; the result is checked.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) } == 0;
    Some(if done && size.ws_col > 0 { (size.ws_col, size.ws_row) } else { (80, 24) })
}

/// True if two streams refer to the same file, pipe or terminal.
pub fn is_same(left: &impl AsFd, right: &impl AsFd) -> bool {
    let identity = |stream: BorrowedFd<'_>| {
        let status = nix::sys::stat::fstat(stream).ok()?;
        Some((status.st_dev, status.st_ino))
    };
    identity(left.as_fd()).is_some_and(|left| identity(right.as_fd()) == Some(left))
}

/// True while this process is in the foreground of the terminal behind `stream`. False if that is not its controlling
/// terminal.
pub fn is_foreground(stream: &impl AsFd) -> bool {
    nix::unistd::tcgetpgrp(stream).is_ok_and(|group| group == nix::unistd::getpgrp())
}

/// True while this process is in the background of its controlling terminal, which is behind `stream`.
pub fn is_background(stream: &impl AsFd) -> bool {
    nix::unistd::tcgetpgrp(stream).is_ok_and(|group| group != nix::unistd::getpgrp())
}

/// True if `stream` is a regular file or `/dev/null`, so that output to it cannot reach the terminal. The reader of a
/// pipe may print to the terminal at any time.
pub fn is_file_or_null(stream: &impl AsFd) -> bool {
    use nix::sys::stat::{SFlag, fstat, major, minor};
    fstat(stream).is_ok_and(|status| {
        let kind = SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT;
        let is_null = kind == SFlag::S_IFCHR && (major(status.st_rdev), minor(status.st_rdev)) == (1, 3);
        kind == SFlag::S_IFREG || is_null
    })
}

/// A pseudo-terminal of this size: the master side, and the side for programs.
pub fn open_pty(columns: u16, rows: u16) -> std::io::Result<(std::fs::File, std::fs::File)> {
    let size = nix::pty::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pair = nix::pty::openpty(Some(&size), None).map_err(std::io::Error::from)?;
    let pair = (std::fs::File::from(pair.master), std::fs::File::from(pair.slave));
    for file in [&pair.0, &pair.1] {
        // SAFETY: sets a flag on a descriptor we own, so that the terminal does not leak into child processes.
        unsafe {
            libc::fcntl(file.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
    Ok(pair)
}
