//! A remote shell within one host: a process runs commands for others, in its own surroundings, as sshd does on another
//! host. It is found by a Unix socket, which only its own user may use.

use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getuid};

use crate::net::in_directory;
use crate::protocol::{self, Inbox};

/// Interval of attempts to connect to a process that has not opened its socket yet.
const RETRY: Duration = Duration::from_millis(20);

/// Accepts commands at the socket `name` in `directory`, and runs each with `/bin/sh -c`, in this process's environment,
/// directory and process group. Returns only on errors.
pub fn serve(directory: &Path, name: &str) -> io::Result<()> {
    // An earlier attempt leaves its socket.
    let _ = std::fs::remove_file(directory.join(name));
    let listener = in_directory(directory, name, |path| UnixListener::bind(path))?;
    loop {
        let (stream, _) = listener.accept()?;
        std::thread::Builder::new().name("command".to_owned()).spawn(move || {
            // The other end sees the end of the stream.
            let _ = serve_one(stream);
        })?;
    }
}

fn serve_one(mut stream: UnixStream) -> io::Result<()> {
    let peer = getsockopt(&stream, sockopt::PeerCredentials)?;
    if peer.uid() != getuid().as_raw() {
        return Ok(());
    }
    let mut inbox = Inbox::default();
    let line: Vec<u8> = loop {
        let Some(messages) = inbox.receive(&mut stream)? else { return Ok(()) };
        if let Some(line) = messages.into_iter().next() {
            break line;
        }
    };
    let mut descriptors = std::iter::from_fn(|| inbox.descriptor()).collect::<Vec<OwnedFd>>().into_iter();
    let (Some(stdin), Some(stdout), Some(stderr)) = (descriptors.next(), descriptors.next(), descriptors.next()) else {
        return Ok(());
    };
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(std::ffi::OsStr::from_bytes(&line));
    command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
    let mut child = command.spawn()?;
    // It holds copies of the descriptors, which others may wait to see closed.
    drop(command);
    let pid = Pid::from_raw(child.id().cast_signed());
    let running = Arc::new(Mutex::new(true));
    let watched = (stream.try_clone()?, Arc::clone(&running));
    std::thread::Builder::new().name("caller".to_owned()).spawn(move || {
        let (mut stream, running) = watched;
        let _ = stream.read(&mut [0]);
        // The caller is gone, as when a connection breaks.
        if *running.lock().unwrap_or_else(PoisonError::into_inner) {
            // Not SIGHUP, which `nohup` has its children ignore.
            let _ = kill(pid, Signal::SIGTERM);
        }
    })?;
    // It is not reaped before the other thread knows that it has ended, so that its number is not another process's.
    let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
    *running.lock().unwrap_or_else(PoisonError::into_inner) = false;
    let status = child.wait()?;
    protocol::send(&mut stream, &code(status))?;
    stream.shutdown(Shutdown::Both)
}

/// The exit code as a shell sees it.
pub fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255)
}

/// Runs a command where `name` in `directory` is [`serve`]d, with this process's stdin, stdout and stderr. Waits for the
/// socket if there is none yet. Returns the exit code.
pub fn run(directory: &Path, name: &str, line: &[u8], patience: Duration) -> io::Result<i32> {
    let mut stream = connect(directory, name, patience)?;
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let standard: [BorrowedFd<'_>; 3] = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    protocol::send_with(&mut stream, &line, &standard)?;
    let mut inbox = Inbox::default();
    loop {
        match inbox.receive::<i32>(&mut stream)? {
            None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
            Some(codes) if codes.is_empty() => {}
            Some(codes) => return Ok(codes[0]),
        }
    }
}

fn connect(directory: &Path, name: &str, patience: Duration) -> io::Result<UnixStream> {
    let deadline = Instant::now() + patience;
    loop {
        match in_directory(directory, name, |path| UnixStream::connect(path)) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(RETRY);
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connects with these descriptors as standard ones.
    fn ask(directory: &Path, line: &str, output: &std::fs::File) -> UnixStream {
        let mut stream = connect(directory, "w", Duration::from_secs(30)).unwrap();
        let nothing = std::fs::File::open("/dev/null").unwrap();
        let standard = [nothing.as_fd(), output.as_fd(), output.as_fd()];
        protocol::send_with(&mut stream, &line.as_bytes(), &standard).unwrap();
        stream
    }

    fn answer(stream: &mut UnixStream) -> i32 {
        let mut inbox = Inbox::default();
        inbox.receive::<i32>(stream).unwrap().unwrap()[0]
    }

    #[test]
    fn commands_run_with_the_callers_output_and_end_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        std::thread::spawn(move || serve(&path, "w"));
        let output = directory.path().join("output");
        let file = std::fs::File::create(&output).unwrap();
        let mut first = ask(directory.path(), "echo one; exit 7", &file);
        assert_eq!(answer(&mut first), 7);
        assert_eq!(answer(&mut ask(directory.path(), "kill -9 $$", &file)), 137);
        assert_eq!(std::fs::read_to_string(&output).unwrap(), "one\n");
        // The pipe's other end is closed when the command has ended.
        let (mut end, given) = UnixStream::pair().unwrap();
        let stream = ask(directory.path(), "echo ready; exec sleep 600", &std::fs::File::from(OwnedFd::from(given)));
        let mut ready = [0; 6];
        end.read_exact(&mut ready).unwrap();
        drop(stream);
        assert_eq!(end.read(&mut ready).unwrap(), 0);
    }
}
