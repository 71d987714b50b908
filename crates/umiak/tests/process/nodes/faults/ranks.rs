//! Ranks that fail, are stopped or restart, while other ranks run on other hosts.

use serde_json::Value;
use umiak_testkit::components::Component::Netns;
use umiak_testkit::suite::Suite;

use super::{Cluster, LONG, SHORT, WAIT, await_words, console, finish, launch_aloud, nobody_is_blamed};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("nodes::faults::a_rank_of_the_first_node_fails", &[Netns], || a_rank_fails(2, 0))
        .test("nodes::faults::a_rank_of_the_second_node_fails", &[Netns], || a_rank_fails(2, 3))
        .test("nodes::faults::a_rank_of_the_last_of_five_nodes_fails", &[Netns], || a_rank_fails(5, 9))
        .test("nodes::faults::the_cause_is_named_and_not_who_lost_a_connection", &[Netns], victims_are_not_blamed)
        .test("nodes::faults::stubborn_rank_on_another_node", &[Netns], stubborn_rank)
        .test("nodes::faults::interrupt_on_the_first_node", &[Netns], || interrupt(0))
        .test("nodes::faults::interrupt_on_the_second_node", &[Netns], || interrupt(1))
        .test("nodes::faults::interrupt_of_the_first_while_one_is_missing", &[Netns], || interrupt_the_wait(0))
        .test("nodes::faults::interrupt_of_the_second_while_one_is_missing", &[Netns], || interrupt_the_wait(1))
        .test("nodes::faults::restart_after_a_failure_elsewhere", &[Netns], restart)
        .test("nodes::faults::restarts_are_spent_for_all", &[Netns], restarts_are_spent)
        .test("nodes::faults::interrupt_of_the_first_before_a_restart", &[Netns], || interrupt_the_pause(0))
        .test("nodes::faults::interrupt_of_the_second_before_a_restart", &[Netns], || interrupt_the_pause(1));
}

/// Two ranks on each host.
fn a_rank_fails(hosts: usize, rank: usize) {
    let cluster = Cluster::new(hosts);
    let snapshot = cluster.snapshot();
    let actions = ["*:touch up", &format!("{rank}:await go;err ValueError: bad batch;exit 7"), &format!("*:{WAIT}")];
    let runs = cluster.launch_and_wait(&format!("{LONG} --nproc_per_node 2"), &actions);
    cluster.go();
    let world = 2 * hosts;
    for (host, outcome) in finish(runs).iter().enumerate() {
        outcome
            .expect_code(7)
            .expect_err(&format!(
                "ABORT!!! Out of all {world} trainers, the trainer process with rank=[{rank}] was aborted."
            ))
            .expect_err(&format!("✗ rank {rank} on {} (pid ", umiak_sys::host::name()))
            .expect_err("exited with 7 after")
            .expect_err("ValueError: bad batch")
            .expect_err(&format!("log ./log/workerlog.{rank}"));
        let others: Vec<String> = (2 * host..2 * host + 2).filter(|r| *r != rank).map(|r| r.to_string()).collect();
        outcome.expect_err(&match others.as_slice() {
            [one] => format!("stopped by us  rank {one} (SIGTERM"),
            _ => format!("stopped by us  ranks {} (SIGTERM", others.join("-")),
        });
        assert_eq!(outcome.err().matches("✗ rank").count(), 1, "others were blamed:\n{}", outcome.err());
    }
    snapshot.assert_as_before();
}

/// The victim reports a lost connection and exits before the cause.
fn victims_are_not_blamed() {
    for (cause, victim) in [(0, 1), (1, 0)] {
        let cluster = Cluster::new(2);
        let snapshot = cluster.snapshot();
        let actions = [
            "*:stubborn;touch up;await go",
            &format!("{victim}:err RuntimeError: Connection reset by peer;exit 1"),
            &format!("{cause}:sleep 100;err ValueError: bad batch;exit 7"),
        ];
        let runs = cluster.launch_and_wait(LONG, &actions);
        cluster.go();
        for outcome in finish(runs) {
            outcome
                .expect_code(7)
                .expect_err(&format!("rank=[{cause}] was aborted"))
                .expect_err(&format!("✗ rank {cause} on "))
                .expect_err("ValueError: bad batch");
            assert!(!outcome.err().contains(&format!("✗ rank {victim}")), "{}", outcome.err());
        }
        snapshot.assert_as_before();
    }
}

fn stubborn_rank() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let actions = ["0:touch up;await go;exit 5", &format!("1:stubborn;touch up;{WAIT}")];
    let runs = cluster.launch_and_wait("--ips $IPS --grace 500ms", &actions);
    cluster.go();
    for outcome in finish(runs) {
        outcome.expect_code(5).expect_err("rank=[0] was aborted").expect_err("exited with 5 after");
    }
    snapshot.assert_as_before();
}

fn interrupt(host: usize) {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_and_wait(LONG, &[&format!("*:touch up;{WAIT}")]);
    runs[host].signal(2);
    for (other, outcome) in finish(runs).iter().enumerate() {
        let place = if other == host { String::new() } else { format!(" on node {}", cluster.name(host)) };
        outcome.expect_code(130).expect_err(&format!("stopped by SIGINT{place}: 1 rank ended within"));
        nobody_is_blamed(outcome);
    }
    snapshot.assert_as_before();
}

fn interrupt_the_wait(host: usize) {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let runs = [0, 1].map(|host| launch_aloud(&cluster, host, SHORT, &["*:exit 0"]));
    for host in [0, 1] {
        await_words(&cluster, host, "joined 2/3, missing 192.168.0.3");
    }
    runs[host].signal(2);
    for (host, run) in runs.into_iter().enumerate() {
        run.finish().expect_code(130);
        let console = console(&cluster, host);
        assert!(console.contains("stopped by SIGINT"), "{console}");
    }
    snapshot.assert_as_before();
}

/// The environment of a rank in an attempt.
fn environment(cluster: &Cluster, name: &str, rank: usize) -> Value {
    serde_json::from_str(&cluster.sandboxes[rank].read(&format!("{name}.{rank}"))).unwrap()
}

fn restart() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let actions = ["*@1:env first;touch up", "1@1:await go;exit 3", &format!("0@1:{WAIT}"), "*@2:env second"];
    let runs = cluster.launch_and_wait(&format!("{LONG} --max_restart 1 --restart-backoff 1ms"), &actions);
    cluster.go();
    for outcome in finish(runs) {
        outcome.expect_code(0).expect_err("rank=[1] was aborted").expect_err("estart");
    }
    for name in ["PADDLE_TRAINER_ENDPOINTS", "MASTER_PORT"] {
        let of = |attempt: &str| {
            let seen = [0, 1].map(|rank| environment(&cluster, attempt, rank)[name].clone());
            assert_eq!(seen[0], seen[1], "all nodes have the same value");
            seen[0].as_str().expect("it is set").to_owned()
        };
        assert_ne!(of("first"), of("second"), "{name}");
    }
    snapshot.assert_as_before();
}

fn restarts_are_spent() {
    let cluster = Cluster::new(3);
    let flags = format!("{LONG} --max_restart 1 --restart-backoff 1ms");
    for outcome in cluster.run(&flags, &["2:err KeyError: 'x';exit 9", &format!("*:{WAIT}")]) {
        outcome.expect_code(9).expect_err("rank=[2] was aborted").expect_err("KeyError: 'x'");
        assert_eq!(outcome.err().matches("ABORT!!!").count(), 2, "once for each attempt:\n{}", outcome.err());
    }
}

fn interrupt_the_pause(host: usize) {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let flags = format!("{LONG} --max_restart 1 --restart-backoff 60s");
    let runs = [0, 1].map(|host| launch_aloud(&cluster, host, &flags, &["1:exit 3", &format!("0:{WAIT}")]));
    for host in [0, 1] {
        await_words(&cluster, host, "estarting");
    }
    runs[host].signal(2);
    for (other, run) in runs.into_iter().enumerate() {
        run.finish().expect_code(130);
        let place = if other == host { String::new() } else { format!(" on node {}", cluster.name(host)) };
        let (words, console) = (format!("stopped by SIGINT{place} before"), console(&cluster, other));
        assert!(console.contains(&words), "{words:?} is not in:\n{console}");
    }
    snapshot.assert_as_before();
}
