//! What was there before a test, and whether anything more is there after it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Network;

/// How long things that are about to go may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// What was there at a moment.
#[derive(Debug)]
#[must_use = "it is to be compared with what is there afterwards"]
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

    /// Waits a few seconds for everything that came since to go, then fails with what is left.
    #[track_caller]
    pub fn assert_as_before(&self) {
        let left = self.left(DEADLINE);
        assert!(left.is_empty(), "left behind, {DEADLINE:?} after the end:\n  {}", left.join("\n  "));
    }

    /// What is there that was not, once `patience` is over; nothing as soon as that is so.
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

/// Everything in words: they are compared, and they are the message.
fn look(network: &Network, directories: &[PathBuf]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for host in network.hosts() {
        let mut add = |what: String| seen.insert(format!("{}: {what}", host.ip()));
        for (pid, command) in host.processes() {
            add(format!("process {pid} `{command}`"));
        }
        for port in host.listening_ports() {
            add(format!("somebody listens on port {port}"));
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
