//! Starting a command, and waiting until it and all its descendants are gone.
//!
//! This process is a subreaper: whatever a launcher leaves behind becomes our child, so everything is gone when we have
//! no child left, and its cost is in our children's resource usage.

use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeVal;
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;
use umiak_sys::descend;
use umiak_testkit::floor::monotonic_nanos;

/// A started command, with everything started beside it.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) pid: u32,
    pub(crate) began: u64,
    cpu_before: Duration,
    watchdog: Watchdog,
}

/// The result of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// The launcher's own exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    /// When the last process was gone, in nanoseconds; that of the command alone after [`Running::exit`].
    pub(crate) gone: u64,
    /// User and system time of all processes.
    pub(crate) cpu_ms: f64,
    /// True if the time limit passed and everything was killed.
    pub(crate) is_late: bool,
}

impl Running {
    /// Starts `command`; everything is killed after `limit`.
    pub(crate) fn start(command: &mut Command, limit: Duration) -> anyhow::Result<Self> {
        Self::start_all(std::slice::from_mut(command), limit)
    }

    /// Starts all of these at the same moment; the exit code is that of the first.
    pub(crate) fn start_all(commands: &mut [Command], limit: Duration) -> anyhow::Result<Self> {
        let watchdog = Watchdog::start(limit);
        let cpu_before = cpu();
        let began = monotonic_nanos();
        // Reaped in `end`, with everything else.
        let children = commands.iter_mut().map(Command::spawn).collect::<Result<Vec<_>, _>>()?;
        let pid = children.first().context("nothing to start")?.id();
        Ok(Self { pid, began, cpu_before, watchdog })
    }

    /// Starts `command` beside others of our children, which stay. Only [`Self::exit`] may follow: after `limit`, the command
    /// and everything below it is killed, and nothing else.
    pub(crate) fn start_beside(command: &mut Command, limit: Duration) -> anyhow::Result<Self> {
        let cpu_before = cpu();
        let began = monotonic_nanos();
        let pid = command.spawn()?.id();
        Ok(Self { pid, began, cpu_before, watchdog: Watchdog::start_for(Some(pid), limit) })
    }

    /// Waits until the command itself has exited.
    pub(crate) fn exit(self) -> anyhow::Result<Ended> {
        let code = loop {
            match wait() {
                Ok(WaitStatus::Exited(pid, exit)) if pid.as_raw() as u32 == self.pid => break Some(exit),
                Ok(WaitStatus::Signaled(pid, ..)) if pid.as_raw() as u32 == self.pid => break None,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let gone = monotonic_nanos();
        let cpu_ms = cpu().saturating_sub(self.cpu_before).as_secs_f64() * 1e3;
        Ok(Ended { code, gone, cpu_ms, is_late: self.watchdog.disarm() })
    }

    /// Waits until no process is left.
    pub(crate) fn end(self) -> anyhow::Result<Ended> {
        let mut code = None;
        loop {
            match wait() {
                Ok(WaitStatus::Exited(pid, exit)) if pid.as_raw() as u32 == self.pid => code = Some(exit),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::ECHILD) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let gone = monotonic_nanos();
        let cpu_ms = cpu().saturating_sub(self.cpu_before).as_secs_f64() * 1e3;
        Ok(Ended { code, gone, cpu_ms, is_late: self.watchdog.disarm() })
    }

    /// Sends SIGTERM to the launcher, and kills what is left after `grace`.
    pub(crate) fn stop(mut self, grace: Duration) -> anyhow::Result<Ended> {
        let late = std::mem::replace(&mut self.watchdog, Watchdog::start(grace)).disarm();
        let _ = kill(Pid::from_raw(self.pid as i32), Signal::SIGTERM);
        Ok(Ended { is_late: late, ..self.end()? })
    }
}

impl Ended {
    /// Why this result does not count, if it does not.
    pub(crate) fn trouble(&self, limit: Duration, is_expected: impl Fn(i32) -> bool) -> Option<String> {
        if self.is_late {
            return Some(format!("did not finish within {} s", limit.as_secs()));
        }
        match self.code {
            Some(code) if is_expected(code) => None,
            Some(code) => Some(format!("exit code {code}")),
            None => Some("killed by a signal".to_owned()),
        }
    }
}

/// Milliseconds between two time stamps.
pub(crate) fn millis(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}

/// User and system time of all children that were waited for, and of their descendants.
fn cpu() -> Duration {
    let time = |value: TimeVal| Duration::new(value.tv_sec() as u64, value.tv_usec() as u32 * 1000);
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .map_or(Duration::ZERO, |usage| time(usage.user_time()) + time(usage.system_time()))
}

/// Kills all descendants once the limit has passed, unless it is disarmed.
#[derive(Debug)]
struct Watchdog {
    disarm: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watchdog {
    fn start(limit: Duration) -> Self {
        Self::start_for(None, limit)
    }

    /// Kills all descendants of this process, or one of them with its own.
    fn start_for(only: Option<u32>, limit: Duration) -> Self {
        let (disarm, disarmed) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut patience = limit;
            let mut barked = false;
            while disarmed.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                barked = true;
                patience = Duration::from_millis(20);
                let below = descend::descendants(only.unwrap_or_else(std::process::id));
                for pid in only.into_iter().chain(below) {
                    descend::signal(pid, Signal::SIGKILL as i32);
                }
            }
            barked
        });
        Self { disarm, thread }
    }

    /// True if it had to kill.
    fn disarm(self) -> bool {
        drop(self.disarm);
        self.thread.join().unwrap_or(true)
    }
}
