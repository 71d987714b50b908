//! A cgroup (version 2) for each job, where permitted. It contains everything the job starts, whatever the processes do
//! to their session, and the kernel can kill all of it at once.
//!
//! The guardian is cloned into it, so ranks start there and nothing is ever moved: a move takes the kernel
//! milliseconds. The name holds the owner's process id, start time and PID namespace, so that the next umiak on the
//! host recognises and cleans what a killed front and guardian left. The namespace is included because a container may
//! share our cgroup tree, where its process ids mean nothing to us, and ours nothing to it.
//!
//! The next umiak may run in another cgroup. So a directory of this host and user has a link to the cgroup of each job,
//! named like it: reading one directory finds them all, wherever they are.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::descend::start_time;
use crate::wait::read_small;

const PREFIX: &str = "umiak-";

/// The cgroup of a job. Dropping does not remove it: the guardian holds it too.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    directory: File,
}

impl Cgroup {
    /// Creates a cgroup below our own, named after this process; `None` if that is not permitted.
    pub fn create() -> Option<Self> {
        let parent = own_directory()?;
        let path = parent.join(format!("{PREFIX}{}", owner_name()?));
        fs::create_dir(&path).ok()?;
        let cgroup = File::open(&path).ok().map(|directory| Self { path: path.clone(), directory });
        // A container may show the tree without permission to add processes.
        let usable = cgroup.filter(|_| File::options().write(true).open(path.join("cgroup.procs")).is_ok());
        match &usable {
            Some(_) => note(&path),
            None => drop(fs::remove_dir(&path)),
        }
        usable
    }

    /// Moves this process into a cgroup that the front has created.
    pub(crate) fn enter(path: &Path) -> Option<Self> {
        fs::write(path.join("cgroup.procs"), "0").ok()?;
        File::open(path).ok().map(|directory| Self { path: path.to_owned(), directory })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn processes(&self) -> Vec<u32> {
        processes(&self.path)
    }

    /// Kills everything in it and below it, except `spare`.
    pub fn kill_all_but(&self, spare: u32) {
        for pid in self.processes().into_iter().filter(|pid| *pid != spare) {
            crate::descend::signal(pid, libc::SIGKILL);
        }
    }

    /// Removes it if it is empty.
    pub fn remove(&self) -> bool {
        let is_removed = remove_tree(&self.path);
        if is_removed {
            forget(&self.path);
        }
        is_removed
    }

    /// For the last process in it: moves back to the parent and removes it.
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

/// Kills and removes what killed umiak processes of this user left, since their fronts and guardians are gone: in this
/// cgroup, and in those that are noted on this host. Returns the killed processes.
pub fn clean_orphans() -> Vec<u32> {
    let Some(parent) = own_directory() else { return Vec::new() };
    let mut ended: Vec<u32> = children(&parent).flat_map(|path| clean(&path)).collect();
    for note in noted() {
        // Only a link to a cgroup of the same name is ours.
        let path = fs::read_link(&note).unwrap_or_default();
        let is_same = path.file_name().zip(note.file_name()).is_some_and(|(path, note)| path == note);
        if is_same && is_cgroup(&path) {
            ended.extend(clean(&path));
        }
        if !is_cgroup(&path) && is_abandoned(&note) {
            let _ = fs::remove_file(&note);
        }
    }
    ended
}

/// Like [`clean_orphans`], in the whole hierarchy as far as permitted.
pub fn clean_all_orphans() {
    let mut ahead: Vec<PathBuf> =
        read_small("/proc/self/mountinfo").and_then(|text| mount_point(&text)).into_iter().collect();
    while let Some(directory) = ahead.pop() {
        for path in children(&directory) {
            clean(&path);
            ahead.push(path);
        }
    }
}

/// Kills what is in a job's cgroup and removes it, if the job is ours, and its front and guardian are gone.
fn clean(path: &Path) -> Vec<u32> {
    if !is_abandoned(path) || !is_ours(path) || has_guardian(path) {
        return Vec::new();
    }
    let ended = processes(path);
    kill_and_remove(path);
    ended
}

/// True if the name is that of a job whose owner is certainly gone.
fn is_abandoned(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX));
    name.is_some_and(is_gone)
}

/// True if this user has created it. Another user's job may be named like one of ours.
fn is_ours(path: &Path) -> bool {
    // SAFETY: no arguments, no failure.
    let us = unsafe { libc::geteuid() };
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == us)
}

fn is_cgroup(path: &Path) -> bool {
    path.join("cgroup.procs").exists()
}

fn children(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// The place of notes, the same in every session of this user. `None` if another user made it.
fn notes() -> Option<PathBuf> {
    // SAFETY: no arguments, no failure.
    let us = unsafe { libc::geteuid() };
    let place = PathBuf::from(format!("/tmp/{PREFIX}jobs-{us}"));
    let _ = fs::DirBuilder::new().mode(0o700).create(&place);
    is_ours(&place).then_some(place)
}

fn noted() -> Vec<PathBuf> {
    let entries = notes().and_then(|place| fs::read_dir(place).ok());
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Notes the cgroup of a job. Without a note it is found only from the same cgroup.
fn note(path: &Path) {
    if let Some((place, name)) = notes().zip(path.file_name()) {
        let _ = std::os::unix::fs::symlink(path, place.join(name));
    }
}

/// Removes the note of a cgroup that is removed.
fn forget(path: &Path) {
    if let Some((place, name)) = notes().zip(path.file_name()) {
        let _ = fs::remove_file(place.join(name));
    }
}

/// Kills everything in it and removes it. Dead processes leave it a moment after they are reaped.
pub(crate) fn kill_and_remove(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(2);
    while !remove_tree(path) && Instant::now() < deadline {
        // Kernels before 5.14 cannot kill all of it at once.
        if fs::write(path.join("cgroup.kill"), "1").is_err() {
            for pid in processes(path) {
                crate::descend::signal(pid, libc::SIGKILL);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    forget(path);
}

/// This process as a name: id, start time, PID namespace.
pub fn owner_name() -> Option<String> {
    let pid = std::process::id();
    Some(format!("{pid}-{}-{}", start_time(pid)?, pid_namespace()?))
}

/// True if the owner that a name begins with is certainly gone.
pub fn is_gone(name: &str) -> bool {
    Owner::parse(name).is_some_and(|owner| !owner.may_live())
}

/// True if a guardian is in it. After a killed front the guardian is still finishing, so the job is not an orphan yet.
fn has_guardian(path: &Path) -> bool {
    processes(path)
        .into_iter()
        .any(|pid| read_small(format!("/proc/{pid}/comm")).is_some_and(|comm| comm.trim() == "umiak-guardian"))
}

/// The front that created a cgroup, parsed from its name.
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

    /// True unless the owner is certainly gone. A process id of another PID namespace cannot be checked.
    fn may_live(&self) -> bool {
        pid_namespace() != Some(self.namespace) || (start_time(self.pid) == Some(self.started) && !is_zombie(self.pid))
    }
}

/// True if it has ended, and its parent has not reaped it.
fn is_zombie(pid: u32) -> bool {
    let stat = read_small(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with(['Z', 'X']))
}

/// The PID namespace of this process.
fn pid_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// Processes in it and below it. A process that our PID namespace does not see is listed as 0, which must not be
/// signalled.
pub(crate) fn processes(path: &Path) -> Vec<u32> {
    let mut found: Vec<u32> = fs::read_to_string(path.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok().filter(|pid| *pid != 0))
        .collect();
    for child in children(path) {
        found.extend(processes(&child));
    }
    found
}

/// Removes children first: a cgroup with children cannot be removed.
pub(crate) fn remove_tree(path: &Path) -> bool {
    for child in children(path) {
        remove_tree(&child);
    }
    fs::remove_dir(path).is_ok() || !path.exists()
}

/// The directory of our own cgroup in the version 2 tree.
fn own_directory() -> Option<PathBuf> {
    let mount = mount_point(&fs::read_to_string("/proc/self/mountinfo").ok()?)?;
    let own = read_small("/proc/self/cgroup")?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let directory = mount.join(path.trim_start_matches('/'));
    directory.is_dir().then_some(directory)
}

/// The mount point of the version 2 tree.
fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        (filesystem.split(' ').next() == Some("cgroup2")).then_some(())?;
        Some(PathBuf::from(mount.split(' ').nth(4)?))
    })
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
