//! Failures on one of two hosts: both consoles name the cause, both codes are equal, and nothing is left.

use umiak_testkit::components::Component::Netns;
use umiak_testkit::net::Echo;
use umiak_testkit::suite::Suite;

use super::super::kill::find;
use super::super::{SERVERS, TRAINERS, WAIT, expect_cause, expect_well};
use crate::nodes::{Cluster, finish};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("servers::nodes::a_trainer_fails", &[Netns], || fails("trainer-1:reach;exit 7", "trainer-1", 7))
        .test("servers::nodes::a_server_of_the_first_fails", &[Netns], || fails("pserver-0:exit 3", "pserver-0", 3))
        .test("servers::nodes::a_server_of_the_second_fails", &[Netns], server_of_the_second)
        .test("servers::nodes::a_node_of_servers_is_told_of_a_failure", &[Netns], only_servers)
        .test("servers::nodes::a_server_that_never_listens", &[Netns], silent_server)
        .test("servers::nodes::a_server_behind_a_firewall_is_seen_by_its_own_node", &[Netns], firewall)
        .test("servers::nodes::a_server_that_has_ended_is_not_waited_for", &[Netns], server_ends_early)
        .test("servers::nodes::a_server_that_accepts_one_connection", &[Netns], one_connection)
        .test("servers::nodes::interrupt_of_the_first_while_servers_are_waited_for", &[Netns], || interrupt_the_wait(0))
        .test("servers::nodes::interrupt_of_the_second_while_servers_are_waited_for", &[Netns], || {
            interrupt_the_wait(1);
        })
        .test("servers::nodes::a_server_that_ends_well_is_no_failure", &[Netns], server_ends_well)
        .test("servers::nodes::a_server_fails_when_its_own_trainers_are_done", &[Netns], server_fails_late)
        .test("servers::nodes::trainers_do_not_wait_where_told_so", &[Netns], no_waiting)
        .test("servers::nodes::a_port_that_is_taken", &[Netns], taken_port)
        .test("servers::nodes::restart_is_of_everybody", &[Netns], restart);
}

/// A server and a trainer on each host.
pub(super) const FLAGS: &str = "--servers 192.168.0.1:6170,192.168.0.2:6170 \
     --workers 192.168.0.1:6171,192.168.0.2:6171 --node-timeout 30s --reconnect-window 60s --grace 1s";

fn fails(action: &str, cause: &str, code: i32) {
    let cluster = Cluster::new(2);
    for outcome in cluster.run(FLAGS, &[action, SERVERS, &format!("trainer:{WAIT}")]) {
        outcome.expect_code(code);
        expect_cause(&outcome, cause, 2, &format!("exited with {code} after"));
    }
}

/// Before trainers start, and while they run.
fn server_of_the_second() {
    fails("pserver-1:exit 3", "pserver-1", 3);
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let actions = ["pserver-1:listen;await go;exit 3", SERVERS, &format!("trainer:pid;{WAIT}")];
    let runs = cluster.launch_all(FLAGS, &actions);
    for (host, run) in runs.iter().enumerate() {
        run.wait_for_file(&format!("pid.trainer-{host}"));
    }
    cluster.go();
    for outcome in finish(runs) {
        outcome.expect_code(3);
        expect_cause(&outcome, "pserver-1", 2, "exited with 3 after");
    }
    snapshot.assert_as_before();
}

fn only_servers() {
    for host in 0..2 {
        let cluster = Cluster::new(2);
        let (server, worker) = (cluster.network.host(host).ip(), cluster.network.host(1 - host).ip());
        let flags = format!("--servers {server}:6170,{server}:6171 --workers {worker}:6170,{worker}:6171 --grace 1s");
        for outcome in cluster.run(&flags, &[SERVERS, "1:reach;exit 7", &format!("0:{WAIT}")]) {
            outcome.expect_code(7);
            expect_cause(&outcome, "trainer-1", 2, "exited with 7 after");
        }
    }
}

fn silent_server() {
    let cluster = Cluster::new(2);
    let actions = ["pserver-0:listen", &format!("pserver:{WAIT}"), "trainer:touch started"];
    for outcome in cluster.run(&format!("{FLAGS} --server-timeout 3s"), &actions) {
        outcome.expect_code(124);
        expect_cause(&outcome, "pserver-1", 2, "it did not listen on its ports within its `--server-timeout`");
    }
    for sandbox in &cluster.sandboxes {
        assert!(!sandbox.path().join("started").exists(), "no trainer was started");
    }
}

/// The server's own node checks that it listens, and reports it. Trainers must find out whether they can reach it.
fn firewall() {
    let cluster = Cluster::new(2);
    cluster.network.host(1).filter(6170);
    let flags = format!("{FLAGS} --server-timeout 60s");
    for outcome in cluster.run(&flags, &[SERVERS, "trainer:touch started"]) {
        expect_well(&outcome);
    }
    for sandbox in &cluster.sandboxes {
        assert!(sandbox.path().join("started").exists());
    }
}

/// A server that exits with 0 before it listens is not a failure on either node.
fn server_ends_early() {
    let cluster = Cluster::new(2);
    let actions = ["pserver-1:exit 0", SERVERS, "trainer:touch started"];
    let outcomes = cluster.run(&format!("{FLAGS} --server-timeout 60s"), &actions);
    for (outcome, sandbox) in outcomes.iter().zip(&cluster.sandboxes) {
        expect_well(outcome);
        assert!(sandbox.path().join("started").exists());
    }
    outcomes[1].expect_err("notice[L0031]: pserver-1 exited with 0 before it listened on 192.168.0.2:6170");
}

/// No node connects to the port, which would take the trainer's place.
fn one_connection() {
    let cluster = Cluster::new(2);
    let flags = "--servers 192.168.0.2:6170 --workers 192.168.0.1:6171 --grace 1s";
    let outcomes = cluster.run(flags, &[&format!("pserver:listen-once;{WAIT}"), "trainer:reach"]);
    for outcome in &outcomes {
        expect_well(outcome);
    }
    assert!(outcomes[0].out().contains("reached"), "{}", outcomes[0].out());
}

fn interrupt_the_wait(host: usize) {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_all(FLAGS, &[&format!("pserver:pid;{WAIT}"), "trainer:touch started"]);
    for (place, run) in runs.iter().enumerate() {
        run.wait_for_file(&format!("pid.pserver-{place}"));
    }
    runs[host].signal(2);
    for outcome in finish(runs) {
        outcome.expect_code(130).expect_err("stopped by SIGINT");
        assert!(!outcome.err().contains("ABORT"), "an interrupt is not a failure:\n{}", outcome.err());
    }
    snapshot.assert_as_before();
}

/// A server may exit with 0 after it has served.
fn server_ends_well() {
    for server in 0..2 {
        let cluster = Cluster::new(2);
        let snapshot = cluster.snapshot();
        let ends = format!("pserver-{server}:pid;listen;await go;exit 0");
        let runs = cluster.launch_all(FLAGS, &[&ends, SERVERS, "trainer:reach;pid;await on"]);
        for (host, run) in runs.iter().enumerate() {
            run.wait_for_file(&format!("pid.trainer-{host}"));
        }
        let pid = find(&runs[server], &cluster.sandboxes[server], &format!("pserver-{server}"));
        cluster.go();
        runs[server].wait_until("the server's end", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
        for sandbox in &cluster.sandboxes {
            sandbox.write("on", "");
        }
        for outcome in finish(runs) {
            expect_well(&outcome);
        }
        snapshot.assert_as_before();
    }
}

/// The job is not over while trainers on another node need the server.
fn server_fails_late() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let actions = ["pserver-0:listen;await go;exit 3", SERVERS, "0:pid", &format!("1:reach;pid;{WAIT}")];
    let runs = cluster.launch_all(FLAGS, &actions);
    let first = find(&runs[0], &cluster.sandboxes[0], "trainer-0");
    runs[0].wait_until("the first trainer's end", || !std::path::Path::new(&format!("/proc/{first}")).exists());
    runs[1].wait_for_file("pid.trainer-1");
    cluster.go();
    for outcome in finish(runs) {
        outcome.expect_code(3);
        expect_cause(&outcome, "pserver-0", 2, "exited with 3 after");
    }
    snapshot.assert_as_before();
}

fn no_waiting() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let actions = ["pserver:await go;listen;sleep 60000", "trainer:pid;seek"];
    let runs = cluster.launch_all(&format!("{FLAGS} --server-timeout 0s"), &actions);
    for (host, run) in runs.iter().enumerate() {
        run.wait_for_file(&format!("pid.trainer-{host}"));
    }
    cluster.go();
    for outcome in finish(runs) {
        expect_well(&outcome);
    }
    snapshot.assert_as_before();
}

/// A foreign listener would answer in the server's place.
fn taken_port() {
    let cluster = Cluster::new(2);
    let stranger = Echo::start(cluster.network.host(1), cluster.network.host(1).at(6170));
    let outcomes = cluster.run(&format!("{FLAGS} --rdzv-timeout 5s"), &["*:touch started", SERVERS, TRAINERS]);
    outcomes[1].expect_err("6170");
    for (outcome, sandbox) in outcomes.iter().zip(&cluster.sandboxes) {
        assert_ne!(outcome.code(), 0, "{}", outcome.err());
        assert!(!sandbox.path().join("started").exists(), "nothing was started:\n{}", outcome.err());
    }
    drop(stranger);
}

fn restart() {
    let flags = format!("{FLAGS} --max_restart 1 --restart-backoff 1ms");
    for (fails, code) in [("pserver-1:fail-once 3", 3), ("trainer-0:reach;fail-once 7", 7)] {
        let cluster = Cluster::new(2);
        for outcome in cluster.run(&flags, &["pserver:name", fails, SERVERS, TRAINERS]) {
            outcome.expect_code(0).expect_err("estart").expect_err(&format!("exited with {code} after"));
            assert_eq!(outcome.err().matches("ABORT!!!").count(), 1, "{}", outcome.err());
        }
        for host in 0..2 {
            let log = cluster.sandboxes[host].read(&format!("log/serverlog.{host}"));
            assert!(log.matches("listening at").count() >= 1 && log.matches("I am ").count() >= 2, "{log}");
        }
    }
}
