//! A separate cgroup for each worker. The leftovers of a trial are then cleaned by the next umiak of that worker, and
//! are not visible to other tests that run meanwhile.

use std::path::{Path, PathBuf};

/// The directory of our own cgroup in the version 2 tree: cgroups of jobs are below it.
pub(super) fn own_cgroup() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        system.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4)).flatten()
    })?;
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(Path::new(mount).join(path.trim_start_matches('/')))
}

/// Left and removed when dropped.
#[derive(Debug)]
pub(super) struct Corner {
    parent: PathBuf,
    path: PathBuf,
}

impl Corner {
    /// `None` if cgroups cannot be created; then jobs have none either.
    pub(super) fn enter() -> Option<Self> {
        let parent = own_cgroup()?;
        let path = parent.join(format!("umiak-test-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let corner = Self { parent, path };
        std::fs::write(corner.path.join("cgroup.procs"), "0").ok()?;
        Some(corner)
    }
}

impl Drop for Corner {
    fn drop(&mut self) {
        let _ = std::fs::write(self.parent.join("cgroup.procs"), "0");
        for job in std::fs::read_dir(&self.path).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
            let _ = std::fs::remove_dir(job.path());
        }
        let _ = std::fs::remove_dir(&self.path);
    }
}
