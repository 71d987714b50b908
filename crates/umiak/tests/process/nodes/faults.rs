//! Failures on several hosts: a rank, a node, the network, a launcher, foreign connections. All consoles report the
//! same, all exit codes are equal, and nothing is left on any host.

mod frameworks;
mod launchers;
mod network;
mod ranks;

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use umiak_testkit::sandbox::{Outcome, Running};
use umiak_testkit::suite::Suite;

use super::{Cluster, WAIT, finish};

pub(crate) fn register(suite: &mut Suite) {
    ranks::register(suite);
    network::register(suite);
    launchers::register(suite);
    frameworks::register(suite);
}

/// For tests that wait for the loss of a node.
const SHORT: &str = "--ips $IPS --node-timeout 2s --reconnect-window 3s --rdzv-timeout 60s --grace 1s";
/// For tests in which no node may be lost, even on a busy machine.
const LONG: &str = "--ips $IPS --node-timeout 30s --reconnect-window 60s --rdzv-timeout 60s --grace 1s";
/// Upper limit for slow steps.
const SOON: Duration = Duration::from_secs(60);
/// A rank that creates `up` and exits once `go` exists.
const UNTIL_LET: &str = "*:touch up;await go";
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;
const SIGKILL: i32 = 9;

impl Cluster {
    /// Starts the job on every host, and returns when a rank of every node is up.
    fn launch_and_wait(&self, flags: &str, actions: &[&str]) -> Vec<Running<'_>> {
        let runs = self.launch_all(flags, actions);
        for run in &runs {
            run.wait_for_file("up");
        }
        runs
    }

    /// The name of this node on the other nodes' consoles.
    fn name(&self, host: usize) -> String {
        format!("{} ({})", self.network.host(host).ip(), umiak_sys::host::name())
    }

    /// Fails unless this console reports the loss of the node.
    fn expect_lost(&self, outcome: &Outcome, host: usize, how: &str) {
        outcome.expect_code(123).expect_err(&format!("error[R0004]: node {} was lost: {how}", self.name(host)));
        nobody_is_blamed(outcome);
    }
}

fn expect_coordinator_lost(outcome: &Outcome, how: &str) {
    outcome.expect_code(123).expect_err(&format!("error[R0005]: the coordinator was lost: {how}"));
    nobody_is_blamed(outcome);
}

fn nobody_is_blamed(outcome: &Outcome) {
    assert!(!outcome.err().contains("ABORT"), "no rank is to blame:\n{}", outcome.err());
}

fn expect_killed(outcome: &Outcome) {
    assert_eq!(outcome.status.signal(), Some(SIGKILL), "{}", outcome.err());
}

/// Waits until a console that is redirected to a file shows these words.
fn await_words(cluster: &Cluster, host: usize, words: &str) {
    let deadline = Instant::now() + SOON;
    loop {
        let said = console(cluster, host);
        if said.contains(words) {
            return;
        }
        assert!(Instant::now() < deadline, "never said {words:?}:\n{said}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a launch whose console goes to the file `console`, to be read while it runs.
fn launch_aloud<'a>(cluster: &'a Cluster, host: usize, flags: &str, actions: &[&str]) -> Running<'a> {
    let flags = flags.replace("$IPS", &cluster.network.ips());
    let console = std::fs::File::create(cluster.sandboxes[host].path().join("console")).unwrap();
    let mut run = cluster.sandboxes[host].launch_toy(&flags, actions).on(cluster.network.host(host));
    run.command.stderr(console);
    run.start()
}

/// The output of [`launch_aloud`] so far.
fn console(cluster: &Cluster, host: usize) -> String {
    cluster.sandboxes[host].read("console")
}
