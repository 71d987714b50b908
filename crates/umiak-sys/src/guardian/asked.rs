//! Groups and processes that have received a termination signal: none gets a second one, which some programs take as
//! "abort now".

use std::collections::HashMap;

use crate::descend;
use crate::wait;

/// A group or a process that was signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Group(u32),
    Process(u32),
}

/// The latest signal that asked each group or process to end.
#[derive(Debug, Default)]
pub(super) struct Asked(HashMap<Target, Ask>);

#[derive(Debug)]
struct Ask {
    signal: i32,
    /// In clock ticks since boot, as the start times of processes.
    at: u64,
}

impl Asked {
    pub(super) fn note(&mut self, target: Target, signal: i32, at: u64) {
        self.0.insert(target, Ask { signal, at });
    }

    /// True if the process has received a signal that it does not ignore, or works for one that has: what a handler
    /// starts to save its work is not disturbed.
    pub(super) fn concerns(&self, pid: u32) -> bool {
        self.has_reached(pid) || descend::parent(pid).is_some_and(|parent| parent > 1 && self.concerns(parent))
    }

    fn has_reached(&self, pid: u32) -> bool {
        let group = descend::group(pid).and_then(|group| self.0.get(&Target::Group(group)));
        let asks = [group, self.0.get(&Target::Process(pid))];
        let mut asks = asks.into_iter().flatten().peekable();
        if asks.peek().is_none() {
            return false;
        }
        // A process that started afterwards has not received it.
        let Some(started) = descend::start_time(pid) else { return true };
        let ignored = ignored_signals(pid);
        asks.any(|ask| started <= ask.at && ignored & (1 << (ask.signal - 1)) == 0)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The signals that a process ignores, as a mask.
fn ignored_signals(pid: u32) -> u64 {
    let status = wait::read_small(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
