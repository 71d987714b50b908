//! The state before a test, and what is left over after it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Network;

/// How long processes that are exiting may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// The state at one moment.
#[derive(Debug)]
#[must_use = "compare it with the state afterwards"]
pub struct Snapshot<'a> {
    network: &'a Network,
    directories: Vec<PathBuf>,
    before: BTreeSet<String>,
}

impl<'a> Snapshot<'a> {
    pub(super) fn take(network: &'a Network, directories: &[&Path]) -> Self {
        let directories: Vec<PathBuf> = directories.iter().map(|path| (*path).to_owned()).collect();
        let before = look(network, &directories);
        Self { network, directories, before }
    }

    /// Waits a few seconds until everything new is gone, then fails with what is left.
    #[track_caller]
    pub fn assert_as_before(&self) {
        let left = self.left(DEADLINE);
        assert!(left.is_empty(), "left behind, {DEADLINE:?} after the end:\n  {}", left.join("\n  "));
    }

    /// What is new after `patience`; returns early once nothing is.
    pub fn left(&self, patience: Duration) -> Vec<String> {
        let deadline = Instant::now() + patience;
        loop {
            let left: Vec<String> = look(self.network, &self.directories).difference(&self.before).cloned().collect();
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The state as text: compared, and used as the message.
fn look(network: &Network, directories: &[PathBuf]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for host in network.hosts() {
        let mut add = |what: String| seen.insert(format!("{}: {what}", host.ip()));
        for (pid, command) in host.processes() {
            add(format!("process {pid} `{command}`"));
        }
        for port in host.listening_ports() {
            add(format!("port {port} is listening"));
        }
        for name in host.abstract_sockets() {
            add(format!("socket {name}"));
        }
    }
    for directory in directories {
        walk(directory, &mut seen);
    }
    seen
}

fn walk(directory: &Path, seen: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        seen.insert(format!("file {}", entry.path().display()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), seen);
        }
    }
}
