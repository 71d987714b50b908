//! Whether a stream is a terminal, and how large.

use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd};

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
