//! Signals to ranks and to the processes that dead ranks left behind.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::asked::Target;
use super::ranks::{Rank, place};
use super::service::Service;
use crate::clock;
use crate::descend;
use crate::protocol::{Batch, ProcessKey};

/// How long to wait until leftovers of a replaced rank are gone.
const CLEARING: Duration = Duration::from_millis(500);

impl Service {
    pub(super) fn signal(&mut self, signal: i32, keys: &[ProcessKey]) {
        let wanted: HashSet<&ProcessKey> = keys.iter().collect();
        let mut reached = Vec::with_capacity(keys.len());
        let now = clock::ticks_since_boot();
        // While other ranks run, signal only leftovers of these ranks.
        let mut all_stop = true;
        for rank in self.ranks.values().filter(|rank| rank.is_alive()) {
            if wanted.contains(&rank.key) {
                signal_group(rank.pid, signal);
                reached.push(Target::Group(rank.pid));
            } else {
                all_stop = false;
            }
        }
        // Leftovers of dead ranks were reparented to the guardian: children that are not ranks.
        // One whose rank has just died of this signal is in its group, and has received it too.
        let groups: HashSet<Target> = reached.iter().copied().collect();
        for pid in if all_stop { self.orphans() } else { self.left_by(keys) } {
            if !descend::group(pid).is_some_and(|group| groups.contains(&Target::Group(group))) {
                descend::signal(pid, signal);
                reached.push(Target::Process(pid));
            }
        }
        if matches!(signal, libc::SIGINT | libc::SIGTERM) {
            for target in reached {
                self.asked.note(target, signal, now);
                // A suspended process receives the signal only when it continues.
                match target {
                    Target::Group(pid) => signal_group(pid, libc::SIGCONT),
                    Target::Process(pid) => descend::signal(pid, libc::SIGCONT),
                }
            }
        }
    }

    /// Asks the leftovers of these ranks to end.
    pub(super) fn forsake(&mut self, keys: &[ProcessKey]) {
        for pid in self.left_by(keys) {
            if !self.asked.concerns(pid) {
                self.asked.note(Target::Process(pid), libc::SIGTERM, clock::ticks_since_boot());
                descend::signal(pid, libc::SIGTERM);
            }
            descend::signal(pid, libc::SIGCONT);
        }
    }

    /// All ranks of this job have ended: asks what they have left to end, and forgets them if there is nothing.
    pub(super) fn retire(&mut self, job: u32) {
        let keys: Vec<ProcessKey> = self.ranks.values().map(|rank| rank.key).filter(|key| key.job == job).collect();
        if self.left_by(&keys).is_empty() {
            self.ranks.retain(|_, rank| rank.is_alive() || rank.key.job != job);
        } else {
            self.forsake(&keys);
        }
    }

    /// Children of the guardian that are neither ranks nor loggers.
    fn orphans(&self) -> Vec<u32> {
        let mut children = descend::children(self.me as u32);
        children.retain(|pid| !self.by_pid.contains_key(pid) && !self.loggers.contains(pid));
        children
    }

    /// Leftovers of earlier ranks with these places: found by session, or by their environment.
    pub(super) fn left_by(&self, keys: &[ProcessKey]) -> Vec<u32> {
        let orphans = self.orphans();
        if orphans.is_empty() {
            return orphans;
        }
        let places: HashSet<_> = keys.iter().map(|key| place(*key)).collect();
        let ranks: Vec<&Rank> = self.ranks.values().filter(|rank| places.contains(&rank.place())).collect();
        let mut found = orphans.clone();
        found.extend(orphans.into_iter().flat_map(descend::descendants));
        found.retain(|pid| {
            let session = descend::session(*pid);
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let variables: HashSet<&[u8]> = environment.split(|byte| *byte == 0).collect();
            let has = |mark: &Vec<u8>| variables.contains(mark.as_slice());
            ranks.iter().any(|rank| session == Some(rank.pid) || (!rank.marks.is_empty() && rank.marks.iter().all(has)))
        });
        found
    }

    /// Kills leftovers of earlier ranks in these places before new ranks start. True if nothing is left.
    pub(super) fn clear_places(&self, batch: &Batch) -> bool {
        let keys: Vec<ProcessKey> =
            batch.processes.iter().map(|process| process.key).filter(|key| key.is_again()).collect();
        let deadline = Instant::now() + CLEARING;
        while !keys.is_empty() {
            let left = self.left_by(&keys);
            if left.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                return false;
            }
            for pid in left {
                descend::signal(pid, libc::SIGKILL);
                descend::reap_one(pid);
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        true
    }
}

/// The environment variables that identify a replica of a document.
pub(super) fn marks(environment: &[(Vec<u8>, Vec<u8>)]) -> Vec<Vec<u8>> {
    let own = environment
        .iter()
        .filter(|(name, _)| matches!(name.as_slice(), b"UMIAK_STEP" | b"UMIAK_ROLE" | b"UMIAK_INDEX"));
    own.map(|(name, value)| [name.as_slice(), b"=", value.as_slice()].concat()).collect()
}

/// Signals the whole group. Between fork and `setsid` the group does not exist yet: then signals the process, which has
/// all signals blocked until exec and dies there.
fn signal_group(pid: u32, signal: i32) {
    // SAFETY: kill has no memory effects. The rank is not reaped yet, so its number is not reused.
    unsafe {
        if libc::kill(-(pid as libc::pid_t), signal) == -1 {
            libc::kill(pid as libc::pid_t, signal);
        }
    }
}
