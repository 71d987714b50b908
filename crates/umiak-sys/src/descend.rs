//! Finding and stopping all descendants of this process.
//!
//! As a subreaper this process inherits every orphan below it. So walking down from its children always finds what
//! ranks left behind: a process cannot escape by `setsid` or by forking twice.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How long signalled groups may take to exit before a process counts as a leftover.
const QUIET: Duration = Duration::from_millis(20);

/// Makes this process the parent of orphaned descendants.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: a prctl on our own process without pointers.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Direct children of any thread of `pid`.
pub fn children(pid: u32) -> Vec<u32> {
    let mut children = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return children };
    for task in tasks.flatten() {
        if let Ok(text) = fs::read_to_string(task.path().join("children")) {
            children.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    children
}

/// All descendants of `pid`, parents before children.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut next = 0;
    while next < found.len() {
        let below = children(found[next]);
        found.extend(below.into_iter().filter(|child| !found.contains(child)).collect::<Vec<_>>());
        next += 1;
    }
    found
}

/// Our process ids of the processes below `guardian`, by the ids that they have in its namespace. Reads a file for each.
pub fn outer_pids(guardian: u32) -> HashMap<u32, u32> {
    let inner = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        ids.split_whitespace().last()?.parse().ok()
    };
    descendants(guardian).into_iter().filter_map(|pid| Some((inner(pid)?, pid))).collect()
}

/// The parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    stat(pid, 1)
}

/// The process group of a process.
pub(crate) fn group(pid: u32) -> Option<u32> {
    stat(pid, 2)
}

/// The session id of a process.
pub fn session(pid: u32) -> Option<u32> {
    stat(pid, 3)
}

/// Start time of a process, in clock ticks since boot. Together with the id it identifies the process.
pub fn start_time(pid: u32) -> Option<u64> {
    stat(pid, 19)
}

/// A field of `/proc/PID/stat`, counted from the state of the process.
fn stat<T: std::str::FromStr>(pid: u32, field: usize) -> Option<T> {
    let stat = crate::wait::read_small(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may contain anything, so parse after the last one.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(field)?.parse().ok()
}

pub fn signal(pid: u32, signal: i32) {
    // SAFETY: kill has no memory effects; a process that is gone is fine.
    unsafe {
        libc::kill(pid as libc::pid_t, signal);
    }
}

/// Reaps one child that has exited.
pub fn reap() -> Reaped {
    let mut status = 0;
    // SAFETY: rusage is plain data that the kernel fills; the pointers are ours.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
    match pid {
        0 => Reaped::NoneYet,
        pid if pid > 0 => Reaped::Ended { pid: pid as u32, status, usage: convert(&usage) },
        _ => Reaped::NoChildren,
    }
}

/// Reaps this child if it has exited.
pub(crate) fn reap_one(pid: u32) -> Option<(i32, ProcessUsage)> {
    let mut status = 0;
    // SAFETY: as in `reap`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as in `reap`.
    let ended = unsafe { libc::wait4(pid as libc::pid_t, &raw mut status, libc::WNOHANG, &raw mut usage) };
    (ended == pid as libc::pid_t).then(|| (status, convert(&usage)))
}

fn convert(usage: &libc::rusage) -> ProcessUsage {
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    ProcessUsage {
        user_micros: micros(usage.ru_utime),
        system_micros: micros(usage.ru_stime),
        max_rss_kib: usage.ru_maxrss as u64,
    }
}

/// Resource usage of a process, from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessUsage {
    pub user_micros: u64,
    pub system_micros: u64,
    pub max_rss_kib: u64,
}

/// The result of [`reap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaped {
    Ended { pid: u32, status: i32, usage: ProcessUsage },
    NoneYet,
    NoChildren,
}

/// A decoded wait status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitStatus {
    Code(i32),
    Signal { signal: i32, core_dumped: bool },
}

pub fn decode(status: i32) -> WaitStatus {
    if libc::WIFSIGNALED(status) {
        WaitStatus::Signal { signal: libc::WTERMSIG(status), core_dumped: libc::WCOREDUMP(status) }
    } else {
        WaitStatus::Code(libc::WEXITSTATUS(status))
    }
}

/// The result of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sweep {
    pub stopped: Vec<u32>,
    pub remaining: Vec<u32>,
}

/// Stops all descendants: SIGTERM, `grace`, then SIGKILL until none is left. Returns at once if there are none.
/// Processes that survive SIGKILL for longer than `patience` are returned as remaining.
pub fn sweep(grace: Duration, patience: Duration) -> Sweep {
    Sweeping { grace, patience, spare: &[], is_asked: &|_| false, hurry: &|| false }.run()
}

/// How to [`sweep`].
pub(crate) struct Sweeping<'a> {
    pub(crate) grace: Duration,
    pub(crate) patience: Duration,
    /// Children that exit by themselves once the others are gone: they are waited for, not signalled.
    pub(crate) spare: &'a [u32],
    /// True for a process that has already been asked to end: it is not asked again, and was stopped by the sweep only
    /// if it is killed.
    pub(crate) is_asked: &'a dyn Fn(u32) -> bool,
    /// Once it returns true, the waits end.
    pub(crate) hurry: &'a dyn Fn() -> bool,
}

impl Sweeping<'_> {
    pub(crate) fn run(&self) -> Sweep {
        let mut sweep = Sweep::default();
        // Processes that signals reached just now are exiting, and need no report.
        if !has_children() || is_gone_within(QUIET, self.hurry) {
            return sweep;
        }
        let asked = Instant::now();
        for pid in self.others() {
            if !(self.is_asked)(pid) {
                sweep.stopped.push(pid);
                signal(pid, libc::SIGTERM);
            }
            // A stopped process handles SIGTERM only once it runs again.
            signal(pid, libc::SIGCONT);
        }
        if is_gone_within(self.grace.saturating_sub(asked.elapsed()), self.hurry) {
            return sweep;
        }
        let killed = Instant::now();
        loop {
            let found = self.others();
            for pid in &found {
                if !sweep.stopped.contains(pid) {
                    sweep.stopped.push(*pid);
                }
                signal(*pid, libc::SIGKILL);
            }
            if !has_children() {
                return sweep;
            }
            if killed.elapsed() > self.patience {
                sweep.remaining = found;
                return sweep;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn others(&self) -> Vec<u32> {
        descendants(std::process::id()).into_iter().filter(|pid| !self.spare.contains(pid)).collect()
    }
}

/// Reaps until nothing is left or the time is over. True if nothing is left.
fn is_gone_within(patience: Duration, hurry: &dyn Fn() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        if !has_children() {
            return true;
        }
        if start.elapsed() >= patience || hurry() {
            return false;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Reaps all exited children. True if others are left.
fn has_children() -> bool {
    loop {
        match reap() {
            Reaped::Ended { .. } => {}
            Reaped::NoneYet => return true,
            Reaped::NoChildren => return false,
        }
    }
}
