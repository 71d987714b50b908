//! Messages between front and guardian over their socket pair: length-prefixed frames.
//!
//! Both ends are the same binary, forked from one process, so there is no version. The length is still bounded: a
//! longer frame means memory corruption, not a large message.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::descend::ProcessUsage;
use crate::logger::Rotate;
use crate::memory::MemoryPlace;
use crate::mounts::BoundDirectory;
use crate::ports::{LeaseError, LeaseRequest, Leased};

/// Maximum length of a frame: enough for tens of thousands of ranks.
const MAX_FRAME: usize = 256 << 20;

/// Identifies an attempt of a replica; the guardian returns it unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessKey {
    /// The job, as in leases.
    pub job: u32,
    pub role: u16,
    pub index: u32,
    /// Numbered from 1.
    pub attempt: u32,
}

impl ProcessKey {
    /// True for every attempt but the first: an earlier process had the same place.
    pub(crate) fn is_again(self) -> bool {
        self.attempt > 1
    }
}

/// A message that the guardian sends if the front dies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastWords {
    pub bytes: Vec<u8>,
    /// Sent when all ranks are gone, and not at once.
    pub after_ranks: bool,
}

/// Front to guardian.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Lease ports for a job; answered by [`Notice::Leased`].
    Lease { job: u32, request: LeaseRequest },
    /// Lease loopback addresses for a job; answered by [`Notice::Addresses`].
    LeaseAddresses { job: u32, count: u32, seed: u64 },
    /// Lease those of these GPUs that are free for a job, by minor number; answered by [`Notice::Gpus`].
    LeaseGpus { job: u32, candidates: Vec<u32>, count: u32 },
    /// Release the ports, addresses and GPUs of a job. Not answered: later commands find them free.
    Release { job: u32 },
    /// Directories to remove at the very end, even if the front dies.
    RemoveAtEnd(Vec<Vec<u8>>),
    /// Limits of processes that are started next.
    Limit(Vec<ProcessLimits>),
    /// Start these, in order.
    Spawn(Batch),
    /// Signal the groups of these, and leftovers of dead ranks.
    Signal { signal: i32, keys: Vec<ProcessKey> },
    /// Time between SIGTERM and SIGKILL if the front dies.
    Grace { millis: u64 },
    /// Message to send on the socket that comes with this command if the front dies. Replaces an earlier one.
    Hold(LastWords),
    /// For a guardian that was executed: the cgroup to enter, and the one for memory limits, whose lock comes with this
    /// command.
    Place { cgroup: Option<PathBuf>, room: Option<MemoryPlace> },
    /// Keep the descriptor that comes with this command until the end: a lock lasts as long as the processes it protects.
    Keep,
    /// These ranks are over, and others will take their places: send SIGTERM to their leftovers. Remaining ones are
    /// killed when the new ranks start.
    Forsake(Vec<ProcessKey>),
    /// The ranks of this job are over, and those of other jobs may run: send SIGTERM to their leftovers.
    Retire { job: u32 },
    /// All ranks are over, and others will follow: stop leftovers, and release their ports unless `keep_ports` is set.
    /// Answered by [`Notice::Cleared`].
    Clear { keep_ports: bool },
    /// All ranks are over: stop leftovers and exit. Answered by [`Notice::Swept`]. Any later command ends the waits.
    Finish {
        /// False if leftovers were already abandoned: they are not waited for again.
        patient: bool,
    },
}

/// Guardian to front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    Leased(Result<Leased, LeaseError>),
    /// Fewer than requested if no more are free.
    Addresses(Vec<Ipv4Addr>),
    /// The leased ones; fewer than requested if others hold them.
    Gpus(Vec<u32>),
    Spawned {
        key: ProcessKey,
        pid: u32,
    },
    /// The attempt is over. `status` is the kernel's wait status.
    Exited {
        key: ProcessKey,
        pid: u32,
        status: i32,
        usage: ProcessUsage,
        /// The kernel killed one of its processes at its memory limit.
        over_limit: bool,
    },
    /// The attempt never ran.
    SpawnFailed {
        key: ProcessKey,
        doing: SpawnAction,
        errno: i32,
    },
    /// The answer to [`Command::Clear`], with the fields of [`Notice::Swept`].
    Cleared {
        stopped: Vec<u32>,
        remaining: Vec<u32>,
    },
    /// Leftovers that were stopped, and those that did not exit.
    Swept {
        stopped: Vec<u32>,
        remaining: Vec<u32>,
    },
}

/// The step that failed between fork and exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum SpawnAction {
    Fork = 1,
    OpenLog = 2,
    OpenStdin = 3,
    ChangeDirectory = 4,
    Execute = 5,
    LimitMemory = 6,
    BindCpus = 7,
    Mount = 8,
}

impl SpawnAction {
    pub fn from_u32(value: u32) -> Option<Self> {
        let before = [Self::Fork, Self::OpenLog, Self::OpenStdin, Self::ChangeDirectory, Self::LimitMemory];
        before.into_iter().chain([Self::BindCpus, Self::Mount, Self::Execute]).find(|doing| *doing as u32 == value)
    }
}

/// The descriptor of a script that is not an argument.
pub const SCRIPT: i32 = 9;

/// Processes to start together. Each environment is based on the guardian's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Batch {
    /// Removed from every environment.
    pub unset: Vec<Vec<u8>>,
    /// Added to every environment.
    pub set: Vec<(Vec<u8>, Vec<u8>)>,
    /// Rotate logs by size: a logger then copies the output of each process to its file.
    pub rotate: Option<Rotate>,
    pub processes: Vec<ProcessSpec>,
}

/// One process to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    pub key: ProcessKey,
    /// Path of the program; `argv[0]` may differ.
    pub program: Vec<u8>,
    pub argv: Vec<Vec<u8>>,
    /// What the process reads from descriptor [`SCRIPT`]; empty for none.
    pub script: Vec<u8>,
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory; empty for the guardian's.
    pub dir: Vec<u8>,
    /// File for stdout, and for stderr if that has none of its own.
    pub log: Vec<u8>,
    /// File for stderr, in the same directory; empty for none. Rotated logs have none.
    pub stderr: Vec<u8>,
    /// Preferred CPUs; empty for any. Not enforced: a missing CPU does not prevent the start.
    pub cpus: Vec<u32>,
    /// Inherit the caller's stdin instead of `/dev/null`.
    pub inherit_stdin: bool,
    /// Directories that it sees at other paths.
    pub mounts: Vec<BoundDirectory>,
}

/// Enforced limits of one process. If they cannot be set, it does not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    pub key: ProcessKey,
    /// Allowed CPUs; empty for any.
    pub cpus: Vec<u32>,
    pub memory: Option<MemoryLimit>,
}

/// A memory limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// Name of its cgroup, below the run's.
    pub name: String,
    pub bytes: u64,
}

/// Writes one frame.
pub fn send<T: Serialize>(stream: &mut UnixStream, message: &T) -> io::Result<()> {
    let mut frame = Vec::new();
    append(&mut frame, message)?;
    stream.write_all(&frame)
}

/// Writes one frame together with descriptors.
pub(crate) fn send_with<T: Serialize>(stream: &mut UnixStream, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut frame = Vec::new();
    append(&mut frame, message)?;
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    // The descriptors go with the first byte; the rest may follow later.
    let sent = sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&frame)], &rights, MsgFlags::MSG_NOSIGNAL, None)
        .map_err(io::Error::from)?;
    stream.write_all(&frame[sent..])
}

/// Appends one frame to a buffer.
pub(crate) fn append<T: Serialize>(bytes: &mut Vec<u8>, message: &T) -> io::Result<()> {
    let frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = frame.len() - 4;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "frame too long"));
    }
    bytes.extend_from_slice(&frame);
    let start = bytes.len() - frame.len();
    bytes[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

/// Splits a byte stream into messages.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: VecDeque<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Inbox {
    /// Reads once and returns the complete messages; `None` at the end of the stream.
    pub fn receive<T: DeserializeOwned>(&mut self, stream: &mut UnixStream) -> io::Result<Option<Vec<T>>> {
        let mut buffer = [0; 1 << 14];
        let mut control = nix::cmsg_space!([i32; 4]);
        let count = loop {
            let mut slices = [IoSliceMut::new(&mut buffer)];
            match recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
                Err(Errno::EINTR) => {}
                // A peer that died with unread bytes in its socket resets the connection: same as end of stream.
                Err(Errno::ECONNRESET) => break 0,
                Err(error) => return Err(error.into()),
                Ok(message) => {
                    for rights in message.cmsgs().into_iter().flatten() {
                        if let ControlMessageOwned::ScmRights(fds) = rights {
                            // SAFETY: the kernel has just created these for us, and they have no other owner.
                            self.descriptors.extend(fds.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }));
                        }
                    }
                    break message.bytes;
                }
            }
        };
        if count == 0 {
            return Ok(None);
        }
        self.bytes.extend(&buffer[..count]);
        let mut messages = Vec::new();
        while let Some(message) = self.next()? {
            messages.push(message);
        }
        Ok(Some(messages))
    }

    /// The next descriptor that came with a message.
    pub(crate) fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        if self.bytes.len() < 4 {
            return Ok(None);
        }
        let bytes = self.bytes.make_contiguous();
        let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        if length > MAX_FRAME {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "frame too long"));
        }
        if bytes.len() < 4 + length {
            return Ok(None);
        }
        let message = postcard::from_bytes(&bytes[4..4 + length]).map_err(io::Error::other)?;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_being_cut() {
        let (mut left, mut right) = UnixStream::pair().unwrap();
        let commands = vec![
            Command::Signal { signal: 15, keys: vec![ProcessKey { job: 0, role: 0, index: 3, attempt: 1 }] },
            Command::RemoveAtEnd(vec![vec![b'x'; 100_000]]),
            Command::Finish { patient: true },
        ];
        let sent = commands.clone();
        let writer = std::thread::spawn(move || {
            for command in &sent {
                send(&mut left, command).unwrap();
            }
        });
        let mut inbox = Inbox::default();
        let mut received: Vec<Command> = Vec::new();
        while let Some(messages) = inbox.receive(&mut right).unwrap() {
            received.extend(messages);
        }
        writer.join().unwrap();
        assert_eq!(received, commands);
    }
}
