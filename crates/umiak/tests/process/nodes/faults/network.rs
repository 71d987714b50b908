//! The network between hosts: links, partitions, delays, packet loss, foreign connections.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use umiak_testkit::components::Component::Netns;
use umiak_testkit::components::trials;
use umiak_testkit::net::{Junk, Relay, Spam, Stranger};
use umiak_testkit::sandbox::{Outcome, Running};
use umiak_testkit::suite::Suite;

use super::{
    Cluster, LONG, SHORT, SOON, UNTIL_LET, WAIT, await_words, console, expect_coordinator_lost, finish, launch_aloud,
};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("nodes::faults::link_of_a_node_goes_down", &[Netns], link_goes_down)
        .test("nodes::faults::link_of_the_coordinator_goes_down", &[Netns], coordinators_link_goes_down)
        .test("nodes::faults::short_partition_is_outlived", &[Netns], short_partition)
        .test("nodes::faults::long_partition_ends_the_job", &[Netns], long_partition)
        .test("nodes::faults::cuts_shorter_than_the_timeout_are_outlived", &[Netns], short_cuts)
        .test("nodes::faults::a_coordinator_cut_off_for_most_of_the_timeout", &[Netns], cut_off_coordinator)
        .test("nodes::faults::cuts_longer_than_the_timeout_end_the_job", &[Netns], long_cuts)
        .test("nodes::faults::broken_connections_come_back", &[Netns], connections_come_back)
        .test("nodes::faults::delayed_by_200_ms", &[Netns], delayed)
        .test("nodes::faults::a_part_of_all_packets_is_lost", &[Netns], packets_are_lost)
        .test("nodes::faults::junk_at_the_door", &[Netns], junk)
        .test("nodes::faults::joins_of_strangers", &[Netns], strangers);
}

/// The coordinator's port, in tests that need a fixed one.
const PORT: u16 = 7300;

fn link_goes_down() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_and_wait(SHORT, &[&format!("*:touch up;{WAIT}")]);
    cluster.network.host(2).link_down();
    let outcomes = finish(runs);
    for outcome in &outcomes[..2] {
        cluster.expect_lost(outcome, 2, "no message from it for 2.0 s");
    }
    expect_coordinator_lost(&outcomes[2], "its connection broke and was not restored within 3.0 s");
    snapshot.assert_as_before();
}

fn coordinators_link_goes_down() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_and_wait(SHORT, &[&format!("*:touch up;{WAIT}")]);
    cluster.network.host(0).link_down();
    let outcomes = finish(runs);
    // Both nodes are lost; it may name either.
    outcomes[0].expect_code(123).expect_err("error[R0004]: node 192.168.0.").expect_err("was lost: no message from it");
    for outcome in &outcomes[1..] {
        expect_coordinator_lost(outcome, "its connection broke and was not restored within 3.0 s");
    }
    snapshot.assert_as_before();
}

/// Longer than the time after which a node is suspect, and shorter than the node timeout.
fn short_partition() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let flags = "--ips $IPS --node-timeout 18s --reconnect-window 18s --rdzv-timeout 60s";
    let runs: Vec<Running<'_>> = (0..3).map(|host| launch_aloud(&cluster, host, flags, &[UNTIL_LET])).collect();
    for run in &runs {
        run.wait_for_file("up");
    }
    let (first, second) = (cluster.network.host(0), cluster.network.host(1));
    first.cut(second);
    let suspect = format!("no messages from {}; ranks keep running", cluster.name(1));
    await_words(&cluster, 0, &suspect);
    await_words(&cluster, 1, "no messages from the coordinator; ranks keep running");
    await_words(&cluster, 2, &suspect);
    first.join(second);
    await_words(&cluster, 0, "all nodes are reachable again");
    await_words(&cluster, 1, "the coordinator is reachable again");
    await_words(&cluster, 2, "all nodes are reachable again");
    cluster.go();
    for outcome in finish(runs) {
        outcome.expect_code(0);
    }
    snapshot.assert_as_before();
}

fn long_partition() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_and_wait(SHORT, &[&format!("*:touch up;{WAIT}")]);
    let (first, second) = (cluster.network.host(0), cluster.network.host(1));
    first.cut(second);
    let outcomes = finish(runs);
    for host in [0, 2] {
        cluster.expect_lost(&outcomes[host], 1, "no message from it for 2.0 s");
    }
    expect_coordinator_lost(&outcomes[1], "its connection broke and was not restored within 3.0 s");
    first.join(second);
    snapshot.assert_as_before();
}

/// Cuts a host off from all others for this time.
fn cut_off(cluster: &Cluster, host: usize, time: Duration) {
    let network = &cluster.network;
    let others = || network.hosts().iter().filter(|other| other.index() != host);
    others().for_each(|other| network.host(host).cut(other));
    std::thread::sleep(time);
    others().for_each(|other| network.host(host).join(other));
}

/// When a cut of 8 s ends, TCP repeats what was lost only after another 4.6 s. The rest of the timeout is for a busy
/// machine: changing the rules takes time too.
fn short_cuts() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let flags = "--ips $IPS --node-timeout 12s --reconnect-window 12s --rdzv-timeout 60s";
    let runs: Vec<Running<'_>> = (0..3).map(|host| launch_aloud(&cluster, host, flags, &[UNTIL_LET])).collect();
    for run in &runs {
        run.wait_for_file("up");
    }
    let mut healed = 0;
    for millis in [3_000, 8_000] {
        for host in [0, 1] {
            cut_off(&cluster, host, Duration::from_millis(millis));
            healed += 1;
            let deadline = Instant::now() + SOON;
            let is_back = |said: String| said.matches("all nodes are reachable again").count() >= healed;
            while !is_back(console(&cluster, 0)) {
                assert!(Instant::now() < deadline, "{millis} ms, host {host}:\n{}", console(&cluster, 0));
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    cluster.go();
    for outcome in finish(runs) {
        outcome.expect_code(0);
    }
    snapshot.assert_as_before();
}

/// When a cut of 4 s ends, TCP repeats what was lost only after another 2.2 s, which is longer than the timeout.
fn cut_off_coordinator() {
    // Changing the rules of a busy machine takes time, which is a part of the cut: such a trial proves nothing.
    let most = Duration::from_millis(5_300);
    for millis in [4_000, 4_500, 5_000] {
        let has_proved = (0..5).any(|_| {
            let cluster = Cluster::new(3);
            let flags = "--ips $IPS --node-timeout 6s --reconnect-window 6s --rdzv-timeout 60s";
            let mut runs: Vec<Running<'_>> =
                (0..3).map(|host| launch_aloud(&cluster, host, flags, &[UNTIL_LET])).collect();
            for run in &runs {
                run.wait_for_file("up");
            }
            let start = Instant::now();
            cut_off(&cluster, 0, Duration::from_millis(millis));
            let is_short = start.elapsed() < most;
            let is_back = || console(&cluster, 0).contains("all nodes are reachable again");
            while !is_back() && runs[0].is_running() {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(is_back() || !is_short, "{millis} ms:\n{}", console(&cluster, 0));
            cluster.go();
            let codes: Vec<i32> = finish(runs).iter().map(Outcome::code).collect();
            assert!(codes == [0, 0, 0] || !is_short, "{millis} ms: {codes:?}");
            is_short
        });
        assert!(has_proved, "the machine is too busy for a cut of {millis} ms");
    }
}

fn long_cuts() {
    for host in [0, 1] {
        let cluster = Cluster::new(2);
        let snapshot = cluster.snapshot();
        let flags = SHORT.replace("--reconnect-window 3s", "--reconnect-window 60s");
        let runs = cluster.launch_and_wait(&flags, &[&format!("*:touch up;{WAIT}")]);
        cut_off(&cluster, host, Duration::from_secs(4));
        let outcomes = finish(runs);
        cluster.expect_lost(&outcomes[0], 1, "no message from it for 2.0 s");
        expect_coordinator_lost(&outcomes[1], "nothing listens there anymore");
        snapshot.assert_as_before();
    }
}

/// Two nodes, connected through a relay on a third host.
struct Between {
    cluster: Cluster,
    relay: SocketAddr,
}

impl Between {
    fn new() -> Self {
        let cluster = Cluster::new(3);
        let relay = cluster.network.host(2).at(PORT + 1);
        Self { cluster, relay }
    }

    fn relay(&self, delay: Duration) -> Relay {
        let network = &self.cluster.network;
        Relay::start(network.host(2), self.relay, network.host(0).at(PORT), delay)
    }

    fn launch(&self, actions: &[&str]) -> Vec<Running<'_>> {
        let masters = [self.cluster.network.host(0).at(PORT), self.relay];
        let launch = |(host, master): (usize, &SocketAddr)| {
            let flags = format!("--master {master} --nnodes 2 --rdzv-timeout 60s --grace 1s");
            launch_aloud(&self.cluster, host, &flags, actions)
        };
        let runs: Vec<Running<'_>> = masters.iter().enumerate().map(launch).collect();
        for run in &runs {
            run.wait_for_file("up");
        }
        runs
    }
}

fn connections_come_back() {
    let between = Between::new();
    let snapshot = between.cluster.snapshot();
    let mut relay = between.relay(Duration::ZERO);
    let runs = between.launch(&[UNTIL_LET]);
    for _ in 0..3 {
        drop(relay);
        relay = between.relay(Duration::ZERO);
    }
    await_words(&between.cluster, 1, "the coordinator is reachable again");
    between.cluster.go();
    for outcome in finish(runs) {
        outcome.expect_code(0);
    }
    drop(relay);
    snapshot.assert_as_before();
}

fn delayed() {
    let between = Between::new();
    let snapshot = between.cluster.snapshot();
    let relay = between.relay(Duration::from_millis(200));
    let actions = ["*:touch up", "1:await go;err ValueError: bad batch;exit 7", &format!("*:{WAIT}")];
    let runs = between.launch(&actions);
    between.cluster.go();
    for (host, outcome) in finish(runs).iter().enumerate() {
        outcome.expect_code(7);
        let console = console(&between.cluster, host);
        for words in ["rank=[1] was aborted", "exited with 7 after", "ValueError: bad batch"] {
            assert!(console.contains(words), "{words:?} is not in:\n{console}");
        }
    }
    drop(relay);
    snapshot.assert_as_before();
}

fn packets_are_lost() {
    let cluster = Cluster::new(3);
    for host in cluster.network.hosts() {
        host.lose(5);
    }
    for trial in 0..trials(10).min(100) {
        for outcome in cluster.run(LONG, &["*:sleep 20"]) {
            assert_eq!(outcome.code(), 0, "trial {trial}:\n{}", outcome.err());
        }
    }
}

/// Memory of a process in bytes: `VmRSS:` now, `VmHWM:` at its peak.
fn memory(pid: u32, row: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(row)).and_then(|line| line.split_whitespace().next());
    value.unwrap().parse::<u64>().unwrap() << 10
}

/// Ten thousand foreign connections before the last node joins.
fn junk() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let flags = format!("{LONG} --rdzv-port {PORT}");
    let mut runs: Vec<Running<'_>> = (0..2).map(|host| launch_aloud(&cluster, host, &flags, &["*:exit 0"])).collect();
    await_words(&cluster, 1, "joined 2/3, missing 192.168.0.3");
    let front = runs[0].pid();
    let before = memory(front, "VmRSS:");
    let junk = Junk::start(cluster.network.host(2), cluster.network.host(0).at(PORT), 10_000, Duration::from_secs(1));
    let report = junk.finish();
    let peak = memory(front, "VmHWM:");
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(peak < before + (20 << 20), "{before} bytes before, {peak} at most");
    // More of them while the last node joins.
    let more = Junk::start(cluster.network.host(2), cluster.network.host(0).at(PORT), 1_000, Duration::from_secs(60));
    runs.push(launch_aloud(&cluster, 2, &flags, &["*:exit 0"]));
    for outcome in finish(runs) {
        outcome.expect_code(0);
    }
    drop(more);
    snapshot.assert_as_before();
}

/// A stranger that knows the job id, when the job has no token: thousands of joins under the address of another node.
fn strangers() {
    const JOINS: usize = 3_000;
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let to = cluster.network.host(0).at(PORT);
    let flags = format!("--master {to} --nnodes 3 --rdzv-timeout 300s --node-timeout 30s --grace 1s");
    let mut runs: Vec<Running<'_>> = (0..2).map(|host| launch_aloud(&cluster, host, &flags, &["*:exit 0"])).collect();
    await_words(&cluster, 0, "joined 2/3");
    let front = runs[0].pid();
    let before = memory(front, "VmRSS:");
    let spam = |count, stranger| Spam::start(cluster.network.host(2), to, count, stranger);
    let address = cluster.network.host(1).ip();
    // Names that no host has: closed without an answer, and not shown.
    assert_eq!(spam(JOINS / 10, Stranger::Joins { address, name: 100_000 }).made(), 0);
    assert!(!console(&cluster, 0).contains("refused"), "{}", console(&cluster, 0));
    // An address that has joined from elsewhere: refused, the first in full.
    assert_eq!(spam(JOINS, Stranger::Joins { address, name: 255 }).made(), JOINS);
    // Long messages that never end.
    let mut stalls = spam(JOINS, Stranger::Stalls { bytes: 1_000_000 });
    stalls.made();
    let peak = memory(front, "VmHWM:");
    assert!(peak < before + (64 << 20), "{before} bytes before, {peak} at most");
    // The last node joins nevertheless.
    runs.push(launch_aloud(&cluster, 2, &flags, &["*:exit 0"]));
    for outcome in finish(runs) {
        outcome.expect_code(0);
    }
    drop(stalls);
    let console = console(&cluster, 0);
    assert_eq!(console.matches("`192.168.0.2` has already joined this job").count(), 1, "{console}");
    assert_eq!(summed(&console), JOINS - 1, "{console}");
    assert!(console.len() < 8 << 10, "{} bytes", console.len());
    // The record has the same lines.
    let events = cluster.sandboxes[0].umiak(["events", "--output", "json"]).finish();
    assert_eq!(summed(&events.expect_code(0).out()), JOINS - 1);
    snapshot.assert_as_before();
}

/// The sum of all `refused N more`.
fn summed(text: &str) -> usize {
    let after = text.split("refused ").skip(1).filter_map(|rest| rest.split_once(" more ")?.0.parse::<usize>().ok());
    after.sum()
}
