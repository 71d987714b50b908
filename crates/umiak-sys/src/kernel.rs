//! Kernel information about dead processes: the kernel log, the count of OOM kills, where core dumps go, free disk
//! space. Read at the time of death, where permitted.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::wait::read_small;

/// Limit for reading the log: more than the kernel's buffer usually holds.
const MOST: usize = 16 << 20;
/// Version 1 writes "no limit" as a number near the maximum.
const UNLIMITED: u64 = 1 << 60;
/// The name of the initial PID namespace on every kernel. The log uses its process ids.
const FIRST_PIDS: &str = "pid:[4026531836]";

/// The kernel log from some moment on: earlier messages may be about other processes with the same ids.
#[derive(Debug)]
pub struct KernelLog(File);

impl KernelLog {
    /// Starts at the current end; `None` if the log is not readable or uses other process ids than ours.
    pub fn from_now() -> Option<Self> {
        let names_us = std::fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name == Path::new(FIRST_PIDS));
        let file =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").ok().filter(|_| names_us)?;
        // SAFETY: moves the position of our own descriptor.
        let moved = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
        (moved >= 0).then_some(Self(file))
    }

    /// New messages since the last call, with time stamps in microseconds.
    pub fn read(&mut self, wanted: impl Fn(&str) -> bool) -> Vec<(u64, String)> {
        let mut found = Vec::new();
        let mut total = 0;
        let mut record = vec![0; 8192];
        while total < MOST {
            // Each read returns one record; EAGAIN marks the end.
            match self.0.read(&mut record) {
                Ok(0) => break,
                Ok(count) => {
                    total += count;
                    let text = String::from_utf8_lossy(&record[..count]);
                    found.extend(
                        message(&text).filter(|(_, message)| wanted(message)).map(|(at, text)| (at, text.to_owned())),
                    );
                }
                // Records were overwritten during the read, or it was interrupted: go on with the next.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        found
    }
}

/// Parses `priority,sequence,time,flags;message`, followed by lines of details.
fn message(record: &str) -> Option<(u64, &str)> {
    let (head, rest) = record.split_once(';')?;
    Some((head.split(',').nth(2)?.parse().ok()?, rest.lines().next().unwrap_or("")))
}

/// The time on the log's clock. Of the available clocks this one stays within a second of it, because neither is
/// adjusted.
pub fn now_micros() -> u64 {
    // SAFETY: timespec is plain data that the kernel fills.
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: as above; the pointer is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &raw mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Free space on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskRoom {
    pub free_bytes: u64,
    pub total_bytes: u64,
}

impl DiskRoom {
    /// True if less than one percent, or less than 64 KiB, is left.
    pub fn is_full(self) -> bool {
        self.total_bytes > 0 && (self.free_bytes < 64 << 10 || self.free_bytes < self.total_bytes / 100)
    }
}

/// Free space for us on the file system of `path`; `None` if it cannot be determined.
pub fn room(path: &Path) -> Option<DiskRoom> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: statvfs is plain data that the kernel fills; the result is checked.
    let mut stats: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above; the path is a valid C string.
    let known = unsafe { libc::statvfs(path.as_ptr(), &raw mut stats) } == 0;
    known
        .then(|| DiskRoom { free_bytes: stats.f_bavail * stats.f_frsize, total_bytes: stats.f_blocks * stats.f_frsize })
}

/// Where core dumps go: the kernel's pattern, with the process id that `core_uses_pid` appends.
pub fn core_pattern() -> Option<String> {
    let pattern = read_small("/proc/sys/kernel/core_pattern")?.trim().to_owned();
    let append = !pattern.starts_with('|')
        && !pattern.contains("%p")
        && read_small("/proc/sys/kernel/core_uses_pid").is_some_and(|text| text.trim() != "0");
    Some(if append { format!("{pattern}.%p") } else { pattern })
}

/// Number of OOM kills in our memory cgroup so far, in version 2 or 1.
pub fn oom_kills() -> Option<u64> {
    let cgroup = memory_cgroup()?;
    ["memory.events", "memory.oom_control"].iter().find_map(|file| {
        read_small(cgroup.join(file))?.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    })
}

/// The memory limit of our cgroup and its ancestors, if any.
pub fn memory_limit() -> Option<u64> {
    let cgroup = memory_cgroup()?;
    let inherited = read_small(cgroup.join("memory.stat")).and_then(|text| {
        text.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit ")?.trim().parse().ok())
    });
    // Version 2 does not report inherited limits; `max` does not parse as a number.
    let above = cgroup.ancestors().filter_map(|path| read_small(path.join("memory.max"))?.trim().parse().ok());
    inherited.or_else(|| above.min()).filter(|limit| *limit < UNLIMITED)
}

/// The directory of the cgroup that accounts for our memory.
pub fn memory_cgroup() -> Option<PathBuf> {
    own_directories()
        .into_iter()
        .find(|path| path.join("memory.oom_control").exists() || path.join("memory.events").exists())
}

/// Candidates for the cgroup that accounts for our memory.
pub(crate) fn own_directories() -> Vec<PathBuf> {
    // Hosts with many containers have long lists of mounts.
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    cgroup_directories(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
}

/// Candidate directories, version 1 first: a host with both accounts for memory there. A container shows its own cgroup
/// as the root of the mount, while `/proc/self/cgroup` may still have the host's path.
fn cgroup_directories(mountinfo: &str, own: &str) -> Vec<PathBuf> {
    let mount = |wanted: &dyn Fn(&str, &str) -> bool| {
        mountinfo.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let mut after = after.split(' ');
            let (kind, options) = (after.next()?, after.nth(1)?);
            wanted(kind, options).then(|| before.split(' ').nth(4).map(PathBuf::from))?
        })
    };
    let path = |wanted: &dyn Fn(&str) -> bool| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            wanted(controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let has_memory = |list: &str| list.split(',').any(|word| word == "memory");
    let first = mount(&|kind, options| kind == "cgroup" && has_memory(options)).zip(path(&has_memory));
    let second = mount(&|kind, _| kind == "cgroup2").zip(path(&str::is_empty));
    first.into_iter().chain(second).flat_map(|(mount, path)| [mount.join(path), mount]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_log() {
        let record = "6,339,5140900,-;python3[4121]: segfault at 0\n SUBSYSTEM=x\n";
        assert_eq!(message(record), Some((5_140_900, "python3[4121]: segfault at 0")));
        assert_eq!(message("6,339"), None);
    }

    #[test]
    fn room_is_known() {
        assert!(room(Path::new("/")).is_some());
        assert_eq!(room(Path::new("/nonexistent")), None);
        for (free_bytes, total_bytes, full) in
            [(0, 1 << 16, true), (0, 0, false), (1 << 20, 1 << 30, true), (1 << 30, 1 << 33, false)]
        {
            assert_eq!(DiskRoom { free_bytes, total_bytes }.is_full(), full, "{free_bytes} of {total_bytes}");
        }
    }

    #[test]
    fn cgroups_of_either_version() {
        let both = "30 23 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n33 30 0:29 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n40 30 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = cgroup_directories(both, "4:memory:/job/1\n1:cpu:/\n0::/\n");
        assert_eq!(found[..2], [PathBuf::from("/sys/fs/cgroup/memory/job/1"), PathBuf::from("/sys/fs/cgroup/memory")]);
        let second = "40 30 0:35 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = cgroup_directories(second, "0::/user.slice\n");
        assert_eq!(found, [PathBuf::from("/sys/fs/cgroup/user.slice"), PathBuf::from("/sys/fs/cgroup")]);
    }
}
