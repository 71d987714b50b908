//! Things to wait for: signals, deadlines, wake-ups from another thread, and growth of a file.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Signals as a descriptor. They stay blocked in this thread and in threads it starts.
#[derive(Debug)]
pub struct Signals(SignalFd, SigSet);

impl Signals {
    /// Blocks `signals` and queues them here instead. Signals that our caller set to be ignored (`nohup`, a background
    /// job of a script) stay ignored.
    pub fn block(signals: &[i32]) -> io::Result<Self> {
        let mut set = SigSet::empty();
        for signal in signals.iter().filter(|signal| !is_ignored(**signal)) {
            set.add(Signal::try_from(*signal).map_err(io::Error::from)?);
        }
        set.thread_block().map_err(io::Error::from)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self(SignalFd::with_flags(&set, flags).map_err(io::Error::from)?, set))
    }

    /// Lets the next one of these signals end this process.
    pub fn release(&self) {
        let _ = self.1.thread_unblock();
    }

    /// The signals that have arrived, in order.
    pub fn read(&self) -> Vec<i32> {
        std::iter::from_fn(|| self.0.read_signal().ok().flatten()).map(|info| info.ssi_signo as i32).collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Ends this process at once, whatever its threads do.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: does not return, and runs nothing of ours.
    unsafe { libc::_exit(code.into()) }
}

/// Stops this process until it receives SIGCONT.
pub fn stop_ourselves() {
    // SAFETY: raises a signal against our own process; returns when it is continued.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGSTOP);
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: sigaction is plain data that the kernel fills; nothing is installed.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut current) == 0 && current.sa_sigaction == libc::SIG_IGN
    }
}

/// Wakes another thread.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers; the descriptor is checked and owned at once.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor with no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes from our own buffer; a full counter is a pending wake already.
        unsafe {
            libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len());
        }
    }

    pub fn clear(&self) {
        let mut value = [0u8; 8];
        // SAFETY: reads at most eight bytes into our own buffer.
        unsafe {
            libc::read(self.0.as_raw_fd(), value.as_mut_ptr().cast(), value.len());
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Several descriptors as one: readable when one of them is.
#[derive(Debug)]
pub struct Together(Epoll);

impl Together {
    pub fn new(all: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io::Error::from)?;
        for (position, fd) in (0..).zip(all) {
            epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, position)).map_err(io::Error::from)?;
        }
        Ok(Self(epoll))
    }
}

impl AsFd for Together {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// Reports when a file, or one in a directory, has grown.
#[derive(Debug)]
pub struct Growth(Inotify);

impl Growth {
    pub fn of(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(io::Error::from)?;
        let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ATTRIB;
        inotify.add_watch(path, flags).map_err(io::Error::from)?;
        Ok(Self(inotify))
    }

    /// Discards pending reports.
    pub fn clear(&self) {
        while self.0.read_events().is_ok() {}
    }
}

impl AsFd for Growth {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// For async runtimes.
impl AsRawFd for Growth {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Waits until one of `fds` is readable or `timeout` has passed. Returns which are readable.
pub fn readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Rounded up: waking too early would only mean waiting again.
    let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
        PollTimeout::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
    });
    match nix::poll::poll(&mut polled, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(polled.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect())
}

/// Reads until the buffer is full, the file ends or a read fails. Returns the number of bytes read, and an error only
/// if that is zero.
pub fn fill_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read_at(file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if filled == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(filled)
}

/// Reads at `offset` without moving the file position.
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    use std::os::unix::fs::FileExt;
    loop {
        match file.read_at(buffer, offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Reads a small file in `/proc` or `/sys`.
pub(crate) fn read_small(path: impl AsRef<Path>) -> Option<String> {
    // With room from the start: each read of such a file makes its text anew.
    let mut text = String::with_capacity(1 << 12);
    File::open(path).ok()?.take(1 << 16).read_to_string(&mut text).ok()?;
    Some(text)
}
