//! What goes wrong on several hosts: a rank, a node, the network, a launcher, strangers. Every console says the same,
//! every code is the same, and nothing is left on any host.

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

/// A loss is waited for.
const SHORT: &str = "--ips $IPS --node-timeout 2s --reconnect-window 3s --rdzv-timeout 60s --grace 1s";
/// Nobody is to be lost, however busy the machine is.
const LONG: &str = "--ips $IPS --node-timeout 30s --reconnect-window 60s --rdzv-timeout 60s --grace 1s";
/// For what is expected to take a while, and less than this.
const SOON: Duration = Duration::from_secs(60);
/// A rank that is up, and goes on when it is let.
const UNTIL_LET: &str = "*:touch up;await go";
/// Paused, continued, killed.
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;
const SIGKILL: i32 = 9;

impl Cluster {
    /// Starts it everywhere, and returns when a rank of every node is up.
    fn launch_and_wait(&self, flags: &str, actions: &[&str]) -> Vec<Running<'_>> {
        let runs = self.launch_all(flags, actions);
        for run in &runs {
            run.wait_for_file("up");
        }
        runs
    }

    /// How other nodes call this one.
    fn name(&self, host: usize) -> String {
        format!("{} ({})", self.network.host(host).ip(), umiak_sys::host::name())
    }

    /// The node was lost, says this console.
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

/// Waits until a console that goes to a file says this.
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

/// A launch whose console can be read while it runs: in the file `console`.
fn launch_aloud<'a>(cluster: &'a Cluster, host: usize, flags: &str, actions: &[&str]) -> Running<'a> {
    let flags = flags.replace("$IPS", &cluster.network.ips());
    let console = std::fs::File::create(cluster.sandboxes[host].path().join("console")).unwrap();
    let mut run = cluster.sandboxes[host].launch_toy(&flags, actions).on(cluster.network.host(host));
    run.command.stderr(console);
    run.start()
}

/// What [`launch_aloud`] has said so far.
fn console(cluster: &Cluster, host: usize) -> String {
    cluster.sandboxes[host].read("console")
}
