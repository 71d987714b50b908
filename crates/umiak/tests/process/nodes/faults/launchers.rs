//! Launchers that are killed or paused.

use std::time::{Duration, Instant, SystemTime};

use umiak_sys::descend;
use umiak_testkit::components::Component::Netns;
use umiak_testkit::suite::Suite;

use super::{
    Cluster, LONG, SHORT, SIGCONT, SIGKILL, SIGSTOP, UNTIL_LET, WAIT, await_words, console, expect_coordinator_lost,
    expect_killed, finish, launch_aloud,
};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("nodes::faults::front_of_a_node_is_killed", &[Netns], front_is_killed)
        .test("nodes::faults::front_is_killed_before_a_restart", &[Netns], || killed_in_the_pause(1))
        .test("nodes::faults::coordinator_is_killed_before_a_restart", &[Netns], || killed_in_the_pause(0))
        .test("nodes::faults::front_is_killed_while_one_is_missing", &[Netns], front_is_killed_in_the_wait)
        .test("nodes::faults::front_of_the_coordinator_is_killed", &[Netns], coordinator_is_killed)
        .test("nodes::faults::front_and_guardian_of_a_node_are_killed", &[Netns], both_are_killed)
        .test("nodes::faults::guardian_of_a_node_is_killed", &[Netns], guardian_is_killed)
        .test("nodes::faults::short_pause_of_the_coordinator_is_outlived", &[Netns], short_pause)
        .test("nodes::faults::long_pause_of_the_coordinator_ends_the_job", &[Netns], long_pause);
}

/// The guardian reports it, so the other nodes do not wait for the node timeout.
fn front_is_killed() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_and_wait(LONG, &[&format!("*:child;touch up;{WAIT}")]);
    let killed = Instant::now();
    runs[1].signal(SIGKILL);
    let outcomes = finish(runs);
    assert!(killed.elapsed() < Duration::from_secs(15), "it waited for the node timeout: {:?}", killed.elapsed());
    expect_killed(&outcomes[1]);
    for host in [0, 2] {
        cluster.expect_lost(&outcomes[host], 1, "its umiak was killed");
    }
    snapshot.assert_as_before();
}

fn killed_in_the_pause(host: usize) {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let flags = format!("{LONG} --max_restart 1 --restart-backoff 60s");
    let actions = ["1:exit 3", &format!("0:{WAIT}")];
    let mut runs: Vec<_> = (0..2).map(|host| launch_aloud(&cluster, host, &flags, &actions)).collect();
    for host in [0, 1] {
        await_words(&cluster, host, "estarting");
    }
    let (killed, other) = (runs.remove(host), runs.remove(0));
    killed.signal(SIGKILL);
    expect_killed(&killed.finish());
    // The remaining node exits with the code of the failed attempt, or of the lost node.
    let (code, words) = match host {
        0 => (3, "the coordinator was lost: nothing listens there anymore".to_owned()),
        _ => (123, format!("node {} was lost: its umiak was killed", cluster.name(host))),
    };
    other.finish().expect_code(code);
    let console = console(&cluster, 1 - host);
    assert!(console.contains(&words), "{words:?} is not in:\n{console}");
    snapshot.assert_as_before();
}

/// Until all nodes have joined, a node may leave and join again.
fn front_is_killed_in_the_wait() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let [first, second] = [0, 1].map(|host| launch_aloud(&cluster, host, LONG, &["*:exit 0"]));
    await_words(&cluster, 1, "joined 2/3, missing 192.168.0.3");
    second.signal(SIGKILL);
    expect_killed(&second.finish());
    let mut runs = vec![first];
    runs.extend([1, 2].map(|host| cluster.launch(host, LONG, &["*:exit 0"])));
    for outcome in finish(runs) {
        outcome.expect_code(0);
    }
    snapshot.assert_as_before();
}

fn coordinator_is_killed() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_and_wait(LONG, &[&format!("*:child;touch up;{WAIT}")]);
    let killed = Instant::now();
    runs[0].signal(SIGKILL);
    let outcomes = finish(runs);
    assert!(killed.elapsed() < Duration::from_secs(25), "it waited for the node timeout: {:?}", killed.elapsed());
    expect_killed(&outcomes[0]);
    for outcome in &outcomes[1..] {
        expect_coordinator_lost(outcome, "nothing listens there anymore");
    }
    snapshot.assert_as_before();
}

/// No process is left to report it: the node is lost when the reconnect window is over.
fn both_are_killed() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let mut runs = cluster.launch_and_wait(SHORT, &[&format!("*:touch up;{WAIT}")]);
    let pids = [runs[1].pid(), descend::children(runs[1].pid())[0]];
    // SIGSTOP first, so that neither process notices the end of the other.
    for signal in [SIGSTOP, SIGKILL] {
        for pid in pids {
            descend::signal(pid, signal);
        }
    }
    let second = runs.remove(1).finish_unchecked();
    expect_killed(&second);
    for outcome in finish(runs) {
        cluster.expect_lost(&outcome, 1, "its connection broke and was not restored within 3.0 s");
    }
    // The next command removes the files of a node without processes, once they are old enough.
    let temporary = cluster.sandboxes[1].path().join("tmp");
    for name in cluster.sandboxes[1].list("tmp") {
        let directory = std::fs::File::open(temporary.join(name)).unwrap();
        directory.set_modified(SystemTime::now() - Duration::from_secs(120)).unwrap();
    }
    let next = cluster.sandboxes[1].umiak(["launch", "/bin/true"]).on(cluster.network.host(1));
    next.finish().expect_code(0);
    snapshot.assert_as_before();
}

/// The front is alive and reports it.
fn guardian_is_killed() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_and_wait(LONG, &[&format!("*:touch up;{WAIT}")]);
    descend::signal(descend::children(runs[1].pid())[0], SIGKILL);
    let outcomes = finish(runs);
    for outcome in &outcomes {
        outcome.expect_code(125);
    }
    outcomes[1].expect_err("error[L0017]");
    outcomes[0].expect_err("rank=[1] was aborted").expect_err("was lost after");
    snapshot.assert_as_before();
}

fn short_pause() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_and_wait(LONG, &[UNTIL_LET]);
    runs[0].signal(SIGSTOP);
    cluster.go();
    std::thread::sleep(Duration::from_secs(2));
    runs[0].signal(SIGCONT);
    for outcome in finish(runs) {
        outcome.expect_code(0);
    }
    snapshot.assert_as_before();
}

fn long_pause() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let mut runs = cluster.launch_and_wait(SHORT, &[&format!("*:touch up;{WAIT}")]);
    runs[0].signal(SIGSTOP);
    for outcome in finish(runs.split_off(1)) {
        expect_coordinator_lost(&outcome, "its connection broke and was not restored within 3.0 s");
    }
    runs[0].signal(SIGCONT);
    for outcome in finish(runs) {
        // It may name either node.
        outcome.expect_code(123).expect_err("error[R0004]: node 192.168.0.").expect_err("was lost: ");
    }
    snapshot.assert_as_before();
}
