//! `umiak launch` on several hosts: real namespaces, real veth pairs, the real binary on each of them.

mod containers;
mod faults;
mod guide;
mod logs;
mod meeting;

use umiak_testkit::net::{Network, Snapshot};
use umiak_testkit::sandbox::{Outcome, Running, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    guide::register(suite);
    containers::register(suite);
    meeting::register(suite);
    faults::register(suite);
    logs::register(suite);
}

/// A rank that waits until it is stopped, longer than any test.
const WAIT: &str = "sleep 60000";

/// A cluster with a sandbox on each host: every host has its own file system.
pub(crate) struct Cluster {
    pub(crate) network: Network,
    pub(crate) sandboxes: Vec<Sandbox>,
}

impl Cluster {
    pub(crate) fn new(hosts: usize) -> Self {
        Self { network: Network::new(hosts), sandboxes: (0..hosts).map(|_| Sandbox::new()).collect() }
    }

    /// Records the current state, for comparison at the end.
    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        let directories: Vec<_> = self.sandboxes.iter().map(|sandbox| sandbox.path().join("tmp")).collect();
        self.network.snapshot(&directories.iter().map(std::path::PathBuf::as_path).collect::<Vec<_>>())
    }

    /// `umiak launch FLAGS… TOY ACTIONS…` on one host; `$IPS` in the flags is the list of all hosts.
    pub(crate) fn launch(&self, host: usize, flags: &str, actions: &[&str]) -> Running<'_> {
        let flags = flags.replace("$IPS", &self.network.ips());
        self.sandboxes[host].launch_toy(&flags, actions).on(self.network.host(host)).start()
    }

    /// Starts the same on every host.
    pub(crate) fn launch_all(&self, flags: &str, actions: &[&str]) -> Vec<Running<'_>> {
        (0..self.sandboxes.len()).map(|host| self.launch(host, flags, actions)).collect()
    }

    /// Runs the same on every host to the end; nothing may be left on any of them.
    pub(crate) fn run(&self, flags: &str, actions: &[&str]) -> Vec<Outcome> {
        let snapshot = self.snapshot();
        let outcomes = finish(self.launch_all(flags, actions));
        snapshot.assert_as_before();
        outcomes
    }

    /// Continues the ranks that wait in `await go`.
    pub(crate) fn go(&self) {
        for sandbox in &self.sandboxes {
            sandbox.write("go", "");
        }
    }
}

pub(crate) fn finish(runs: Vec<Running<'_>>) -> Vec<Outcome> {
    runs.into_iter().map(Running::finish).collect()
}
