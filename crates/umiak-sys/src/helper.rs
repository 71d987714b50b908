//! Short programs that are run for their output, killed at a time limit or when this process dies.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::fork::pidfd_open;
use crate::wait::readable;

/// Longest accepted output.
const MOST: usize = 1 << 20;
/// How long a killed helper may take to exit before it is left unreaped.
const PATIENCE: Duration = Duration::from_millis(100);

/// Returns what `command` writes to stdout. It is killed after `limit`, when `stop` is readable, and when this thread
/// ends.
pub fn output(mut command: Command, limit: Duration, stop: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = bound(&mut command).spawn()?;
    let answer = read(&mut child, Instant::now() + limit, stop);
    let _ = child.kill();
    let status = reap(&mut child);
    let answer = answer?;
    match status {
        Some(status) if !status.success() && answer.is_empty() => Err(io::Error::other(status.to_string())),
        _ => Ok(answer),
    }
}

/// Runs a command whose output goes to a file. It is killed with its group when `stop` is readable, and when this thread
/// ends.
pub fn logged(mut command: Command, log: &File, stop: BorrowedFd<'_>) -> io::Result<ExitStatus> {
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    let mut child = bound(&mut command).spawn()?;
    let ended = pidfd_open(child.id() as libc::pid_t)?;
    let ready = readable(&[ended.as_fd(), stop], None)?;
    if !ready[0] {
        // SAFETY: kill has no memory effects; the group is that of our own child, which is not reaped yet.
        unsafe {
            libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL);
        }
    }
    child.wait()
}

/// Puts a command into a process group of its own, so that Ctrl-C on our terminal does not reach it, and makes it end with
/// the thread that starts it.
fn bound(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    command.process_group(0);
    // SAFETY: plain system calls between fork and exec, without memory of ours.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // If the parent died before the prctl, no signal comes.
            if libc::getppid() as u32 == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        })
    }
}

/// Makes a command start in a session of its own, unaffected by the end of the terminal, and without inherited
/// descriptors: a reader of an inherited pipe would wait until the command exits.
pub fn in_own_session(command: &mut Command) -> &mut Command {
    // SAFETY: plain system calls between fork and exec, without memory of ours.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            // Close-on-exec instead of closed: a failed exec is reported through one of them. Kernels before 5.11
            // reject the flag, which is harmless.
            let (all, flag) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, all, flag);
            Ok(())
        })
    }
}

/// Redirects stdout to /dev/null, so that its reader sees the end.
pub fn silence_stdout() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        // SAFETY: replaces one descriptor of this process.
        unsafe {
            libc::dup2(null.as_raw_fd(), 1);
        }
    }
}

fn read(child: &mut Child, deadline: Instant, stop: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let Some(mut stdout) = child.stdout.take() else { return Ok(Vec::new()) };
    let mut answer = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    while answer.len() < MOST {
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = readable(&[stdout.as_fd(), stop], Some(left))?;
        if ready[1] {
            return Err(io::Error::from(io::ErrorKind::Interrupted));
        }
        if !ready[0] {
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            continue;
        }
        match stdout.read(&mut buffer)? {
            0 => break,
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
    // It has closed its output; wait a moment for its status.
    let end = deadline.min(Instant::now() + PATIENCE);
    while child.try_wait()?.is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(answer)
}

/// Waits briefly: a process that hangs in a driver survives even SIGKILL, and must not block us.
fn reap(child: &mut Child) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) | Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd as _;

    use super::*;
    use crate::wait::Waker;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn a_session_of_its_own_begins_without_what_was_left_open() {
        let mut ends = [0; 2];
        // SAFETY: two fresh descriptors, deliberately without close-on-exec.
        let (mut reader, writer) = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            (std::fs::File::from_raw_fd(ends[0]), std::fs::File::from_raw_fd(ends[1]))
        };
        let mut command = shell("exec sleep 60");
        let mut child = in_own_session(&mut command).spawn().unwrap();
        drop(writer);
        // A parallel test may fork at this moment and hold the pipe until its exec.
        let ready = readable(&[reader.as_fd()], Some(Duration::from_secs(10))).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ready[0]);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn answers_failures_and_limits() {
        let stop = Waker::new().unwrap();
        let run = |line: &str, millis| output(shell(line), Duration::from_millis(millis), stop.as_fd());
        assert_eq!(run("echo text", 5000).unwrap(), b"text\n");
        assert!(run("exit 3", 5000).is_err());
        assert_eq!(run("exec sleep 60", 50).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let absent = output(Command::new("/nonexistent"), Duration::from_secs(5), stop.as_fd());
        assert_eq!(absent.unwrap_err().kind(), io::ErrorKind::NotFound);
        stop.wake();
        assert_eq!(run("exec sleep 60", 60_000).unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
}
