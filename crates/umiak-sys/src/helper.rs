//! Short programs that are run for their output, killed at a time limit or when this process dies.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::fork::pidfd_open;
use crate::wait::readable;

/// Longest accepted output.
const MOST: usize = 64 << 20;
/// How long a killed helper may take to exit before it is left unreaped.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a helper wrote, and how it ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    pub error: Vec<u8>,
}

/// Runs `command` to its end. It is killed with its group after `limit`, when `stop` is readable, and when this thread
/// ends.
pub fn finish(mut command: Command, limit: Duration, stop: Option<BorrowedFd<'_>>) -> io::Result<Finished> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = bound(&mut command).spawn()?;
    let answer = read(&mut child, Instant::now() + limit, stop);
    if answer.is_err() {
        kill_group(&child);
    }
    // One that hangs in a driver survives even SIGKILL, and must not block us.
    let status = reap(&mut child);
    let (out, error) = answer?;
    let status = status?.ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))?;
    Ok(Finished { status, out, error })
}

/// Returns what `command` writes to stdout, as [`finish`] does. An error if it fails without output.
pub fn output(command: Command, limit: Duration, stop: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let Finished { status, out, .. } = finish(command, limit, Some(stop))?;
    if status.success() || !out.is_empty() { Ok(out) } else { Err(io::Error::other(status.to_string())) }
}

/// Runs a command whose output goes to a file. It is killed with its group when `stop` is readable, and when this thread
/// ends.
pub fn logged(mut command: Command, log: &File, stop: BorrowedFd<'_>) -> io::Result<ExitStatus> {
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    let mut child = bound(&mut command).spawn()?;
    let ended = pidfd_open(child.id() as libc::pid_t)?;
    let ready = readable(&[ended.as_fd(), stop], None)?;
    if !ready[0] {
        kill_group(&child);
    }
    child.wait()
}

/// Kills a child that is not reaped yet, and its group.
fn kill_group(child: &Child) {
    // SAFETY: kill has no memory effects; the group is that of our own child.
    unsafe {
        libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL);
    }
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

/// Reads what a child writes until it ends. What it started may keep the pipes open longer, and is not waited for.
fn read(child: &mut Child, deadline: Instant, stop: Option<BorrowedFd<'_>>) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let ended = pidfd_open(child.id() as libc::pid_t)?;
    let (out, error) = (child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from));
    let mut pipes = [out.map(File::from), error.map(File::from)];
    let mut texts = [Vec::new(), Vec::new()];
    let mut is_over = false;
    loop {
        let open: Vec<usize> = (0..pipes.len()).filter(|pipe| pipes[*pipe].is_some()).collect();
        let mut fds: Vec<BorrowedFd<'_>> =
            open.iter().filter_map(|pipe| Some(pipes[*pipe].as_ref()?.as_fd())).collect();
        fds.push(ended.as_fd());
        fds.extend(stop);
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = readable(&fds, Some(if is_over { Duration::ZERO } else { left }))?;
        if ready.get(open.len() + 1).is_some_and(|is_asked| *is_asked) {
            return Err(io::Error::from(io::ErrorKind::Interrupted));
        }
        let full: Vec<usize> = open.iter().zip(&ready).filter(|(_, ready)| **ready).map(|(pipe, _)| *pipe).collect();
        for pipe in &full {
            let mut buffer = [0; 16 << 10];
            match pipes[*pipe].as_mut().map_or(Ok(0), |pipe| pipe.read(&mut buffer))? {
                0 => pipes[*pipe] = None,
                count => texts[*pipe].extend_from_slice(&buffer[..count]),
            }
            if texts[*pipe].len() > MOST {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
        }
        if is_over && full.is_empty() {
            let [out, error] = texts;
            return Ok((out, error));
        }
        is_over |= ready[open.len()];
        if !is_over && left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
    }
}

/// Waits briefly for the end of a child.
fn reap(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let ended = pidfd_open(child.id() as libc::pid_t)?;
    readable(&[ended.as_fd()], Some(PATIENCE))?;
    child.try_wait()
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd as _;
    use std::os::unix::process::ExitStatusExt as _;

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
        let ended = |line| finish(shell(line), Duration::from_secs(5), None).unwrap();
        let failed = ended("echo out; echo error >&2; exit 3");
        assert_eq!((failed.status.code(), &*failed.out, &*failed.error), (Some(3), &b"out\n"[..], &b"error\n"[..]));
        assert_eq!(ended("kill -9 $$").status.signal(), Some(libc::SIGKILL));
        assert_eq!(ended("head -c 300000 /dev/zero").out.len(), 300_000);
        let left_behind = ended("sleep 60 & echo $!");
        let pid = String::from_utf8(left_behind.out).unwrap().trim().parse().unwrap();
        // SAFETY: kill has no memory effects; it is what the line above started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0, "its pipes are not waited for");
        // What a helper has started is killed with it.
        let begun = Instant::now();
        let late = finish(shell("sleep 60; true"), Duration::from_millis(50), None);
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(5));
        stop.wake();
        assert_eq!(run("exec sleep 60", 60_000).unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
}
