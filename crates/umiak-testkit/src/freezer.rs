//! Uninterruptible sleep on demand: a process in a frozen cgroup (version 1) survives even SIGKILL until it is thawed,
//! like one that waits for a dead file server or a broken driver.

use std::path::PathBuf;
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/fs/cgroup/freezer";

/// A freezer cgroup; thawed and removed when dropped.
#[derive(Debug)]
pub struct Freezer {
    path: PathBuf,
}

impl Freezer {
    /// `None` if there is no freezer or it is not permitted.
    pub fn new(name: &str) -> Option<Self> {
        let path = PathBuf::from(ROOT).join(format!("umiak-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let freezer = Self { path };
        freezer.path.join("freezer.state").exists().then_some(freezer)
    }

    /// Freezes these, and returns once they are frozen.
    pub fn freeze(&self, pids: &[u32]) {
        for pid in pids {
            std::fs::write(self.path.join("cgroup.procs"), pid.to_string()).expect("move the process");
        }
        self.set("FROZEN");
    }

    pub fn thaw(&self) {
        self.set("THAWED");
    }

    fn set(&self, state: &str) {
        let file = self.path.join("freezer.state");
        std::fs::write(&file, state).expect("set the state");
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::fs::read_to_string(&file).unwrap_or_default().trim() != state {
            assert!(Instant::now() < deadline, "never {state}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path.join("freezer.state"), "THAWED");
        // It can be removed only once it is empty, which may take a moment.
        let deadline = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.path).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
