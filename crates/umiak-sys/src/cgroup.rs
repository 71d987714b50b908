//! A cgroup (version 2) for each job, where we may make one: everything the job starts is in it, whatever it
//! does to its session, and the kernel can end all of it at once.
//!
//! The guardian is cloned into it, so ranks are born there and nothing is ever moved: moving takes the kernel
//! milliseconds. The name holds the owner's process id, start time and PID namespace, so that the next umiak on
//! the host recognises what a killed front and guardian left, and cleans it. The namespace is there because a
//! container may share our tree of cgroups: its numbers mean nothing here, and ours nothing there.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::wait::read_small;

const PREFIX: &str = "umiak-";

/// A job's own cgroup. It is not removed by dropping: the guardian holds it too.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    directory: File,
}

impl Cgroup {
    /// Makes one below our own, named after this process; `None` where that is not permitted.
    pub fn create() -> Option<Self> {
        let parent = own_directory()?;
        let path = parent.join(format!("{PREFIX}{}", owner_name()?));
        fs::create_dir(&path).ok()?;
        let cgroup = File::open(&path).ok().map(|directory| Self { path: path.clone(), directory });
        // A container may show the tree and still not let us put anything in.
        let usable = cgroup.filter(|_| File::options().write(true).open(path.join("cgroup.procs")).is_ok());
        if usable.is_none() {
            let _ = fs::remove_dir(&path);
        }
        usable
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Processes in it.
    pub fn processes(&self) -> Vec<u32> {
        processes(&self.path)
    }

    /// Ends everything in it but `spare`, and everything in cgroups below it.
    pub fn kill_all_but(&self, spare: u32) {
        for pid in self.processes().into_iter().filter(|pid| *pid != spare) {
            crate::descend::signal(pid, libc::SIGKILL);
        }
    }

    /// Removes it once it is empty.
    pub fn remove(&self) -> bool {
        remove_tree(&self.path)
    }

    /// For the last one in it: goes back to where it was made, and removes it.
    pub fn leave_and_remove(&self) {
        if let Some(parent) = self.path.parent() {
            let _ = fs::write(parent.join("cgroup.procs"), "0");
        }
        self.remove();
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Ends and removes what killed umiak processes left in this cgroup: their fronts and guardians are gone, so
/// nobody else will. Returns the processes that were ended.
pub fn clean_orphans() -> Vec<u32> {
    let Some(parent) = own_directory() else { return Vec::new() };
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let mut ended = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().and_then(|name| Owner::parse(name.strip_prefix(PREFIX)?)) else { continue };
        if owner.may_live() || has_guardian(&entry.path()) {
            continue;
        }
        ended.extend(processes(&entry.path()));
        let _ = fs::write(entry.path().join("cgroup.kill"), "1");
        let deadline = Instant::now() + Duration::from_secs(2);
        while !remove_tree(&entry.path()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    ended
}

/// This process as names tell it: id, start time, PID namespace.
pub fn owner_name() -> Option<String> {
    let pid = std::process::id();
    Some(format!("{pid}-{}-{}", start_time(pid)?, pid_namespace()?))
}

/// Whether the owner that a name begins with is certainly gone.
pub fn is_gone(name: &str) -> bool {
    Owner::parse(name).is_some_and(|owner| !owner.may_live())
}

/// A front that was killed leaves a guardian that is still finishing; its job is not an orphan yet.
fn has_guardian(path: &Path) -> bool {
    processes(path)
        .into_iter()
        .any(|pid| read_small(format!("/proc/{pid}/comm")).is_some_and(|comm| comm.trim() == "umiak-guardian"))
}

/// The front that made a cgroup, as its name tells.
#[derive(Debug, PartialEq, Eq)]
struct Owner {
    pid: u32,
    started: u64,
    namespace: u64,
}

impl Owner {
    fn parse(name: &str) -> Option<Self> {
        let mut fields = name.split('-');
        let mut number = || fields.next()?.parse::<u64>().ok();
        Some(Self { pid: u32::try_from(number()?).ok()?, started: number()?, namespace: number()? })
    }

    /// A number of another PID namespace says nothing here, so its owner is left in peace.
    fn may_live(&self) -> bool {
        pid_namespace() != Some(self.namespace) || start_time(self.pid) == Some(self.started)
    }
}

/// Which PID namespace our numbers belong to.
fn pid_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// Processes in it and below it. Those that our PID namespace does not see have the number 0, which would be us.
pub(crate) fn processes(path: &Path) -> Vec<u32> {
    let mut found: Vec<u32> = fs::read_to_string(path.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok().filter(|pid| *pid != 0))
        .collect();
    for entry in fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
    {
        found.extend(processes(&entry.path()));
    }
    found
}

/// Children first: a cgroup with others below it cannot be removed.
pub(crate) fn remove_tree(path: &Path) -> bool {
    for entry in fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
    {
        remove_tree(&entry.path());
    }
    fs::remove_dir(path).is_ok() || !path.exists()
}

/// The directory of the cgroup we are in, where version 2 is mounted.
fn own_directory() -> Option<PathBuf> {
    let mount = mount_point(&read_small("/proc/self/mountinfo")?)?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let directory = mount.join(path.trim_start_matches('/'));
    directory.is_dir().then_some(directory)
}

/// Where the version 2 tree is mounted.
fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        (filesystem.split(' ').next() == Some("cgroup2")).then_some(())?;
        Some(PathBuf::from(mount.split(' ').nth(4)?))
    })
}

/// When a process started, in the kernel's clock ticks: with its id, this names it for good.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything; what follows its last bracket may not.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mount() {
        let text = "30 23 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n40 30 0:35 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point(text), Some(PathBuf::from("/sys/fs/cgroup/unified")));
    }

    #[test]
    fn names_hold_the_owner() {
        assert_eq!(Owner::parse("12-345-6"), Some(Owner { pid: 12, started: 345, namespace: 6 }));
        assert_eq!(Owner::parse("12-345"), None);
        let me = std::process::id();
        let owner = |started, namespace| Owner { pid: me, started, namespace };
        let (started, namespace) = (start_time(me).unwrap(), pid_namespace().unwrap());
        assert!(owner(started, namespace).may_live());
        assert!(!owner(started + 1, namespace).may_live());
        assert!(owner(started + 1, namespace + 1).may_live());
    }
}
