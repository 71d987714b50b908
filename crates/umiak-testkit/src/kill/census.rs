//! All processes seen in a job, by process id *and* start time: an id alone is soon reused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use umiak_sys::descend::descendants;
use umiak_sys::descend::start_time;

use super::corner::own_cgroup;
use crate::toy::family::read_register;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Rank,
    InGroup,
    Daemon,
    /// Rotates logs, and lives as long as a process writes to it.
    Logger,
    Umiak,
}

/// The processes of a job, by kind.
#[derive(Debug)]
pub(super) struct Census {
    front: u32,
    pub(super) guardian: Option<u32>,
    directory: PathBuf,
    cgroup: Option<PathBuf>,
    seen: BTreeMap<(u32, u64), Kind>,
}

impl Census {
    pub(super) fn new(front: u32, directory: &Path) -> Self {
        // A killed process keeps its entry until this process reaps it.
        let started = start_time(front).unwrap_or(0);
        let seen = BTreeMap::from([((front, started), Kind::Umiak)]);
        let cgroup = find_cgroup(&format!("umiak-{front}-{started}"));
        Self { front, guardian: None, directory: directory.to_owned(), cgroup, seen }
    }

    /// Records all processes that can be found: below this process, in the job's cgroup, in the family's register.
    pub(super) fn take(&mut self) {
        let in_cgroup = self.cgroup.as_deref().map(processes).unwrap_or_default();
        for pid in descendants(std::process::id()).into_iter().chain(in_cgroup) {
            let Some(started) = start_time(pid) else { continue };
            // The last classification counts: a logger starts with the guardian's name.
            self.seen.insert((pid, started), self.classify(pid));
        }
        for (name, pid, started) in read_register(&self.directory) {
            let kind = match name.as_str() {
                "toy-child" => Kind::InGroup,
                "toy-daemon" => Kind::Daemon,
                _ => Kind::Rank,
            };
            self.seen.insert((pid, started), kind);
        }
    }

    fn classify(&self, pid: u32) -> Kind {
        if pid == self.front || Some(pid) == self.guardian {
            return Kind::Umiak;
        }
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        match name.trim_end() {
            "toy-child" => Kind::InGroup,
            "toy-daemon" => Kind::Daemon,
            "umiak-logger" => Kind::Logger,
            // Before its exec a rank has the guardian's name.
            "umiak" | "umiak-guardian" if self.guardian.is_none() => Kind::Umiak,
            _ => Kind::Rank,
        }
    }

    pub(super) fn count(&self, kind: Kind) -> usize {
        self.seen.values().filter(|seen| **seen == kind).count()
    }

    /// The processes that are still alive. A zombie has ended and only needs to be reaped.
    pub(super) fn living(&self, kind: Kind) -> Vec<u32> {
        let of_kind = self.seen.iter().filter(|(_, seen)| **seen == kind);
        of_kind.filter(|((pid, started), _)| is_alive(*pid, *started)).map(|((pid, _), _)| *pid).collect()
    }

    /// Removes the job's cgroup if it is empty.
    pub(super) fn remove_cgroup(&self) {
        if let Some(cgroup) = &self.cgroup {
            let _ = std::fs::remove_dir(cgroup);
        }
    }
}

fn is_alive(pid: u32, started: u64) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let same = fields.get(19).and_then(|text| text.parse().ok()) == Some(started);
    same && !matches!(fields.first(), Some(&("Z" | "X")))
}

fn processes(cgroup: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// The job's cgroup: its name begins with its owner's process id and start time.
fn find_cgroup(owner: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(own_cgroup()?).ok()?.flatten();
    let mut matching = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(owner));
    matching.next().map(|entry| entry.path())
}
