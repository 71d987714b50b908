//! Memory limits: a cgroup for each limited attempt, all below one cgroup of the run.
//!
//! In version 1 any cgroup of the memory hierarchy may have children. In version 2 the kernel enables controllers for
//! children only if the cgroup itself contains no processes (except the root), and ours contains us. If no other
//! process is in it, we move into a child; otherwise there are no limits.
//!
//! The run's cgroup is locked while its front or guardian lives, so that the next umiak on the host recognises what
//! killed ones left.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cgroup::{self, processes, remove_tree};
use crate::descend;
use crate::hold;
use crate::kernel;
use crate::wait::read_small;

/// Followed by the name of the run, such as `run-000032`.
const PREFIX: &str = "umiak-";
const RUN: &str = "umiak-run-";
const CONTROLLER: &str = "memory";
const MEMBERS: &str = "cgroup.procs";
/// Controllers that are enabled for the children.
const DIVIDED: &str = "cgroup.subtree_control";
/// How long killed processes may take to leave a cgroup.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why memory limits are not available.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("no cgroup with a memory controller is mounted")]
    NotMounted,
    #[error("the memory controller is not available in umiak's cgroup `{0}`")]
    NotGiven(PathBuf),
    #[error("umiak's cgroup `{0}` contains other processes, so the kernel allows no limits below it")]
    NotAlone(PathBuf),
    #[error("cannot create a cgroup with a limit below `{0}`: {1}")]
    NotPermitted(PathBuf, io::Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Version {
    One,
    Two,
}

/// The cgroup of a run. Dropping does not remove it: front and guardian both hold it.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    version: Version,
    /// The child that we moved into to enable limits.
    aside: Option<Aside>,
    /// Its lock.
    directory: File,
}

/// Where a cgroup for memory limits is, for another process that uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPlace {
    path: PathBuf,
    version: Version,
    aside: Option<Aside>,
}

impl Refused {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        let is_alone = "run it in a cgroup of its own: `systemd-run --user --scope -p Delegate=yes umiak run …`";
        matches!(self, Self::NotAlone(_)).then_some(is_alone)
    }
}

impl MemoryCgroup {
    /// Creates a cgroup below our own and tests that limits can be set in it. Must be called while we have one thread.
    pub fn create(run: &str) -> Result<Self, Refused> {
        let (own, version) = own_cgroup().ok_or(Refused::NotMounted)?;
        let aside = match version {
            Version::One => None,
            Version::Two => divide(&own)?,
        };
        let name = format!("{PREFIX}{run}-{}", cgroup::owner_name().unwrap_or_default());
        let made = make_locked(&own.join(name)).and_then(|(path, directory)| {
            let room = Self { path, version, aside: aside.clone(), directory };
            room.try_out().inspect_err(|_| room.remove()).map(|()| room)
        });
        made.map_err(|error| {
            if let Some(aside) = aside {
                aside.come_back();
            }
            Refused::NotPermitted(own, error)
        })
    }

    /// The one that another process has created, with its lock.
    pub(crate) fn at(place: MemoryPlace, lock: OwnedFd) -> Self {
        let MemoryPlace { path, version, aside } = place;
        Self { path, version, aside, directory: lock.into() }
    }

    /// Where it is, and its lock, for another process.
    pub(crate) fn place(&self) -> (MemoryPlace, BorrowedFd<'_>) {
        let place = MemoryPlace { path: self.path.clone(), version: self.version, aside: self.aside.clone() };
        (place, self.directory.as_fd())
    }

    fn try_out(&self) -> io::Result<()> {
        if self.version == Version::Two {
            fs::write(self.path.join(DIVIDED), format!("+{CONTROLLER}"))?;
        }
        let cell = self.enclose("try", 1 << 30)?;
        let entered = enter_in_child(&cell);
        clear(&cell);
        entered
    }

    /// Creates a cgroup in it with this limit.
    pub(crate) fn enclose(&self, name: &str, bytes: u64) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        self.limit(&path, bytes).inspect_err(|_| drop(fs::remove_dir(&path)))?;
        Ok(path)
    }

    fn limit(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let set = |file: &str, value: u64| fs::write(path.join(file), value.to_string());
        // Not every kernel counts swap, and older ones of version 2 have no group kill.
        let set_if_there = |file: &str, value: u64| if path.join(file).exists() { set(file, value) } else { Ok(()) };
        match self.version {
            Version::One => {
                set("memory.limit_in_bytes", bytes)?;
                set_if_there("memory.memsw.limit_in_bytes", bytes)
            }
            Version::Two => {
                set("memory.max", bytes)?;
                set_if_there("memory.swap.max", 0)?;
                set_if_there("memory.oom.group", 1)
            }
        }
    }

    /// Kills all processes in it, and removes the cgroups of attempts.
    pub(crate) fn empty(&self) {
        for cell in children(&self.path) {
            clear(&cell);
        }
    }

    /// Kills all processes in it and removes it.
    pub fn remove(&self) {
        clear(&self.path);
        if let Some(aside) = &self.aside {
            aside.come_back();
        }
    }
}

/// Tests that a child can enter, which needs more rights than creating it. Must be called while we have one thread.
fn enter_in_child(cell: &Path) -> io::Result<()> {
    let members = CString::new(members(cell).as_os_str().as_bytes())?;
    // SAFETY: we have one thread, by this function's contract; the child only makes system calls, and ends by `_exit`.
    // Its status is its errno, which is read before anything else.
    unsafe {
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => libc::_exit(if enter(&members) { 0 } else { *libc::__errno_location() }),
            child => {
                let mut status = 0;
                libc::waitpid(child, &raw mut status, 0);
                match descend::decode(status) {
                    descend::WaitStatus::Code(0) => Ok(()),
                    descend::WaitStatus::Code(errno) => Err(io::Error::from_raw_os_error(errno)),
                    descend::WaitStatus::Signal { .. } => Err(io::Error::other("a process that entered it was killed")),
                }
            }
        }
    }
}

/// True if the kernel killed something in it because of its own limit, not because the host ran out of memory.
pub(crate) fn is_over_limit(cell: &Path) -> bool {
    let field = |file: &str, name: &str| {
        let text = read_small(cell.join(file))?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    let is_some = |count: Option<u64>| count.is_some_and(|count| count > 0);
    // Version 1 also counts failures, but some kernels leave that at 0. A large allocation may fail slightly below the
    // limit.
    let is_full = |counter: &str| {
        let limit = field(&format!("{counter}.limit_in_bytes"), "");
        let most = field(&format!("{counter}.max_usage_in_bytes"), "");
        most.zip(limit).is_some_and(|(most, limit)| most >= limit - limit / 64)
    };
    let first =
        is_some(field("memory.oom_control", "oom_kill ")) && ["memory", "memory.memsw"].into_iter().any(is_full);
    first || is_some(field("memory.events", "oom_kill ")) && is_some(field("memory.events", "oom "))
}

/// Moves this process into the cgroup: its memory and that of its children counts there.
pub(crate) fn enter(members: &CStr) -> bool {
    // SAFETY: the path is a C string; one byte of ours is written; the descriptor is closed where it was opened.
    unsafe {
        let file = libc::open(members.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file < 0 || libc::write(file, c"0".as_ptr().cast(), 1) != 1 {
            return false;
        }
        libc::close(file);
    }
    true
}

/// The file that moves a process into the cgroup when it writes to it.
pub(crate) fn members(cell: &Path) -> PathBuf {
    cell.join(MEMBERS)
}

/// Kills and removes the unlocked cgroups that killed runs left beside us.
pub fn clean_orphans() {
    if let Some((own, _)) = own_cgroup() {
        clean_below(&own);
    }
}

/// Like [`clean_orphans`], in the whole hierarchy as far as permitted.
pub fn clean_all_orphans() {
    let Some((own, _)) = own_cgroup() else { return };
    let is_cgroup = |path: &&Path| path.join(MEMBERS).exists();
    if let Some(top) = own.ancestors().take_while(is_cgroup).last() {
        clean_tree(top);
    }
}

fn clean_tree(path: &Path) {
    clean_below(path);
    for child in children(path).filter(|child| !is_run(child)) {
        clean_tree(&child);
    }
}

fn clean_below(directory: &Path) {
    for path in children(directory).filter(|child| is_run(child)) {
        let Ok(file) = File::open(&path) else { continue };
        if matches!(hold::try_exclusive(&file), Ok(true)) {
            clear(&path);
        }
    }
}

fn is_run(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(RUN))
}

fn children(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// Kills until it is empty: a process may fork once more before it dies, and dead ones leave a moment after they are
/// reaped.
fn clear(path: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while !remove_tree(path) && Instant::now() < deadline {
        if fs::metadata(path).is_ok_and(|found| found.uid() != own_user() && own_user() != 0) {
            return;
        }
        for pid in processes(path) {
            descend::signal(pid, libc::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn own_user() -> u32 {
    // SAFETY: no arguments, no failure.
    unsafe { libc::geteuid() }
}

/// The cgroup that accounts for our memory: the candidate that contains this process.
fn own_cgroup() -> Option<(PathBuf, Version)> {
    let me = std::process::id().to_string();
    let has_us =
        |path: &PathBuf| fs::read_to_string(path.join(MEMBERS)).is_ok_and(|text| text.lines().any(|pid| pid == me));
    kernel::own_directories().into_iter().filter(has_us).find_map(|path| {
        let version = if path.join("memory.limit_in_bytes").exists() {
            Version::One
        } else if path.join("cgroup.controllers").exists() {
            Version::Two
        } else {
            return None;
        };
        Some((path, version))
    })
}

/// Creates and locks a cgroup. Until it is locked, a cleaner may take it for an orphan and remove it.
fn make_locked(path: &Path) -> io::Result<(PathBuf, File)> {
    for _ in 0..100 {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        let is_same = |file: &File| {
            let found = (file.metadata(), fs::metadata(path));
            matches!(found, (Ok(held), Ok(there)) if held.ino() == there.ino())
        };
        let held = File::open(path).ok().filter(|file| matches!(hold::try_exclusive(file), Ok(true)));
        if let Some(file) = held.filter(is_same) {
            return Ok((path.to_owned(), file));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::Error::other("another process keeps removing it"))
}

/// Enables limits for the children of `own`. Version 2 only.
fn divide(own: &Path) -> Result<Option<Aside>, Refused> {
    let names = |file: &str| {
        read_small(own.join(file)).is_some_and(|text| text.split_whitespace().any(|word| word == CONTROLLER))
    };
    if !names("cgroup.controllers") {
        return Err(Refused::NotGiven(own.to_owned()));
    }
    if names(DIVIDED) {
        return Ok(None);
    }
    let enable = || fs::write(own.join(DIVIDED), format!("+{CONTROLLER}"));
    let refused = |error| Refused::NotPermitted(own.to_owned(), error);
    match enable() {
        Ok(()) => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
        Err(error) => return Err(refused(error)),
    }
    let members = read_small(own.join(MEMBERS)).unwrap_or_default();
    let members: Vec<u32> = members.lines().filter_map(|line| line.parse().ok()).collect();
    if members.is_empty() || !members.iter().all(|pid| is_us(*pid)) {
        return Err(Refused::NotAlone(own.to_owned()));
    }
    let aside = Aside::step(own, &members).map_err(refused)?;
    match enable() {
        Ok(()) => Ok(Some(aside)),
        Err(error) => {
            aside.come_back();
            Err(refused(error))
        }
    }
}

/// True for this process, and for the parent that waits until a detached run has started.
fn is_us(pid: u32) -> bool {
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let is_caller = || pid == std::os::unix::process::parent_id() && program(pid) == program(std::process::id());
    pid == std::process::id() || is_caller()
}

/// The child of our cgroup that we are in while it has limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Aside {
    own: PathBuf,
    path: PathBuf,
}

impl Aside {
    /// Named like the cgroups of jobs, so that it is cleaned up with those if the front is killed.
    fn step(own: &Path, members: &[u32]) -> io::Result<Self> {
        let path = own.join(format!("{PREFIX}{}-front", cgroup::owner_name().unwrap_or_default()));
        fs::create_dir(&path)?;
        let aside = Self { own: own.to_owned(), path };
        for pid in members {
            move_to(&aside.path, *pid).inspect_err(|_| aside.come_back())?;
        }
        Ok(aside)
    }

    /// Moves back, unless others now need the limits.
    fn come_back(&self) {
        if children(&self.own).any(|child| child != self.path) {
            return;
        }
        let _ = fs::write(self.own.join(DIVIDED), format!("-{CONTROLLER}"));
        for pid in processes(&self.path) {
            let _ = move_to(&self.own, pid);
        }
        remove_tree(&self.path);
    }
}

/// Moves a process; one that has exited is no error.
fn move_to(cgroup: &Path, pid: u32) -> io::Result<()> {
    match fs::write(cgroup.join(MEMBERS), pid.to_string()) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        moved => moved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a cgroup.
    fn cell(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    #[test]
    fn kills_by_the_limit() {
        let kills = |count: u32| format!("oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n");
        let first = |count: u32, most: &str| {
            let kills = kills(count);
            let limit = ("memory.limit_in_bytes", "67108864\n");
            is_over_limit(cell(&[("memory.oom_control", &kills), limit, ("memory.max_usage_in_bytes", most)]).path())
        };
        assert!(first(1, "67108864\n"));
        assert!(first(1, "66900000\n"), "the last pages were too few");
        assert!(!first(0, "67108864\n"), "nothing was killed");
        assert!(!first(1, "1048576\n"), "the host ran out");
        let second = |text: &str| is_over_limit(cell(&[("memory.events", text)]).path());
        assert!(second("low 0\nhigh 0\nmax 31\noom 1\noom_kill 2\noom_group_kill 1\n"));
        assert!(!second("low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\noom_group_kill 0\n"), "the host ran out");
        assert!(!second("low 0\nhigh 0\nmax 31\noom 1\noom_kill 0\noom_group_kill 0\n"));
        assert!(!is_over_limit(cell(&[]).path()));
    }

    #[test]
    fn only_who_is_alone_divides() {
        let given = ("cgroup.controllers", "cpu memory pids\n");
        let refused = |files: &[(&str, &str)]| divide(cell(files).path()).err().map(|why| why.to_string());
        assert!(
            refused(&[("cgroup.controllers", "cpu pids\n")])
                .unwrap()
                .starts_with("the memory controller is not available")
        );
        assert_eq!(refused(&[given, (DIVIDED, "memory\n")]), None, "already enabled");
        assert_eq!(refused(&[given, (DIVIDED, "\n")]), None, "the kernel allows it");
    }
}
