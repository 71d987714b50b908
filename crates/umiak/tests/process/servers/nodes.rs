//! Servers and trainers on several hosts.

mod faults;
mod kill;

use umiak_testkit::components::Component::Netns;
use umiak_testkit::sandbox::{Outcome, Running, toy};
use umiak_testkit::suite::Suite;

use super::{SERVERS, TRAINERS, environment, expect_variables, expect_well, list, logs};
use crate::nodes::{Cluster, finish};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("servers::nodes::the_guides_lists", &[Netns], the_guides_lists)
        .test("servers::nodes::workers_without_ports", &[Netns], workers_without_ports)
        .test("servers::nodes::servers_on_one_and_trainers_on_another", &[Netns], apart)
        .test("servers::nodes::servers_outlast_the_last_trainer", &[Netns], the_last_trainer)
        .test("servers::nodes::trainers_wait_for_servers_elsewhere", &[Netns], late_server)
        .test("servers::nodes::gloos_rendezvous_is_an_answer_elsewhere", &[Netns], gloo)
        .test("servers::nodes::ips_and_numbers", &[Netns], ips)
        .test("servers::nodes::master_and_numbers", &[Netns], master)
        .test("servers::nodes::other_numbers_on_each_node", &[Netns], uneven)
        .test("servers::nodes::heterogeneous_workers", &[Netns], heter_workers)
        .test("servers::nodes::heterogeneous_stages", &[Netns], heter_stages)
        .test("servers::nodes::logs_are_gathered", &[Netns], gathered);
    faults::register(suite);
    kill::register(suite);
}

/// Two hosts with the addresses of the user guide's examples.
fn guides_cluster() -> Cluster {
    let cluster = Cluster::new(2);
    for (host, address) in cluster.network.hosts().iter().zip(["192.168.0.16", "192.168.0.17"]) {
        host.add_address(address.parse().expect("an address"));
    }
    cluster
}

/// Runs the line after `umiak` on every host; flags are split at spaces.
fn paste(cluster: &Cluster, line: &str, actions: &[&str]) -> Vec<Outcome> {
    let snapshot = cluster.snapshot();
    let runs: Vec<Running<'_>> = cluster
        .sandboxes
        .iter()
        .zip(cluster.network.hosts())
        .map(|(sandbox, host)| {
            let mut words: Vec<String> = line.split(' ').map(|word| word.replace('"', "")).collect();
            words.extend([toy(), "toy".to_owned()]);
            words.extend(actions.iter().map(|action| (*action).to_owned()));
            sandbox.umiak(words).on(host).start()
        })
        .collect();
    let outcomes = finish(runs);
    snapshot.assert_as_before();
    outcomes
}

/// Fails unless the process that wrote this file on this host has these variables.
#[track_caller]
fn expect_on(cluster: &Cluster, host: usize, file: &str, expected: &[(&str, &str)]) {
    expect_variables(&environment(&cluster.sandboxes[host], file), file, expected);
}

fn the_guides_lists() {
    let cluster = guides_cluster();
    let line = "python -m paddle.distributed.launch --servers=\"192.168.0.16:6170,192.168.0.17:6170\" \
                --workers=\"192.168.0.16:6171,192.168.0.16:6172,192.168.0.17:6171,192.168.0.17:6172\"";
    let outcomes = paste(&cluster, line, &["*:env env", SERVERS, TRAINERS]);
    let reached = "reached 192.168.0.16:6170\nreached 192.168.0.17:6170\n";
    for (outcome, first) in outcomes.iter().zip(["trainer-0", "trainer-2"]) {
        expect_well(outcome);
        outcome.expect_err("2 servers and 4 trainers on 2 nodes");
        assert_eq!(outcome.out(), format!("I am {first}\n{reached}"), "each node shows its first trainer");
    }
    // Numbers count through the whole role.
    assert_eq!(logs(&cluster.sandboxes[0]), ["serverlog.0", "workerlog.0", "workerlog.1"]);
    assert_eq!(logs(&cluster.sandboxes[1]), ["serverlog.1", "workerlog.2", "workerlog.3"]);
    for (host, file, role, address, port) in [
        (0, "env.pserver-0", "PSERVER", "192.168.0.16", "6170"),
        (0, "env.0", "TRAINER", "192.168.0.16", "6171"),
        (0, "env.1", "TRAINER", "192.168.0.16", "6172"),
        (1, "env.pserver-1", "PSERVER", "192.168.0.17", "6170"),
        (1, "env.2", "TRAINER", "192.168.0.17", "6171"),
        (1, "env.3", "TRAINER", "192.168.0.17", "6172"),
    ] {
        expect_on(
            &cluster,
            host,
            file,
            &[
                ("TRAINING_ROLE", role),
                ("POD_IP", address),
                ("PADDLE_PORT", port),
                ("PADDLE_TRAINERS_NUM", "4"),
                ("PADDLE_PSERVERS_IP_PORT_LIST", "192.168.0.16:6170,192.168.0.17:6170"),
                ("PADDLE_TRAINER_ENDPOINTS", "192.168.0.16:6171,192.168.0.16:6172,192.168.0.17:6171,192.168.0.17:6172"),
            ],
        );
        let seen = environment(&cluster.sandboxes[host], file);
        let meeting = seen["PADDLE_GLOO_HTTP_ENDPOINT"].as_str().unwrap_or_default();
        assert!(meeting.starts_with("192.168.0.16:"), "at the first server's host: {meeting}");
    }
}

fn workers_without_ports() {
    let cluster = guides_cluster();
    let line = "python -m paddle.distributed.launch --servers=\"192.168.0.16:6170,192.168.0.17:6170\" \
                --workers=\"192.168.0.16,192.168.0.17\"";
    for outcome in paste(&cluster, line, &["*:env env", SERVERS, TRAINERS]) {
        expect_well(&outcome);
    }
    for (host, file) in [(0, "env.0"), (1, "env.1")] {
        expect_on(&cluster, host, file, &[("PADDLE_TRAINER_ENDPOINTS", "192.168.0.16:6172,192.168.0.17:6173")]);
    }
}

fn apart() {
    for (servers, workers) in [(0, 1), (1, 0)] {
        let cluster = Cluster::new(2);
        let (server, worker) = (cluster.network.host(servers).ip(), cluster.network.host(workers).ip());
        let flags = format!("--servers {server}:6170,{server}:6171 --workers {worker}:6170,{worker}:6171");
        let outcomes = cluster.run(&flags, &["*:env env", SERVERS, TRAINERS]);
        for outcome in &outcomes {
            expect_well(outcome);
        }
        assert_eq!(outcomes[servers].out(), "", "no server is on a console");
        assert!(outcomes[workers].out().starts_with("I am trainer-0\n"), "{}", outcomes[workers].out());
        assert_eq!(logs(&cluster.sandboxes[servers]), ["serverlog.0", "serverlog.1"]);
        assert_eq!(logs(&cluster.sandboxes[workers]), ["workerlog.0", "workerlog.1"]);
    }
}

/// The trainers of one node have ended; those of another still need their server.
fn the_last_trainer() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let flags = "--servers 192.168.0.1:6170 --workers 192.168.0.2:6170,192.168.0.3:6170";
    let actions = ["*:pid", SERVERS, "0:reach", "1:await go;reach"];
    let runs = cluster.launch_all(flags, &actions);
    let first = super::kill::find(&runs[1], &cluster.sandboxes[1], "trainer-0");
    runs[1].wait_until("the first trainer's end", || !std::path::Path::new(&format!("/proc/{first}")).exists());
    runs[2].wait_for_file("pid.trainer-1");
    cluster.go();
    for outcome in finish(runs) {
        expect_well(&outcome);
    }
    snapshot.assert_as_before();
}

fn late_server() {
    let cluster = Cluster::new(2);
    // Trainers on the same node wait too.
    let flags = "--servers 192.168.0.1:6170,192.168.0.2:6170 --workers 192.168.0.1:6171,192.168.0.2:6171";
    for late in ["pserver-0:sleep 1000", "pserver-1:sleep 1000"] {
        for outcome in cluster.run(flags, &[late, SERVERS, TRAINERS]) {
            expect_well(&outcome);
            assert!(outcome.out().contains("reached 192.168.0.2:6170"), "{}", outcome.out());
        }
    }
}

fn gloo() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let flags = "--servers 192.168.0.1:6170 --workers 192.168.0.2:6170,192.168.0.2:6171 --http_port 6180";
    let actions = ["pserver:listen-gloo;await go;listen;sleep 60000", "trainer:env env;pid;seek"];
    let runs: Vec<Running<'_>> = (0..2)
        .map(|host| {
            let run = cluster.sandboxes[host].launch_toy(flags, &actions).env("PADDLE_WITH_GLOO", "1");
            run.on(cluster.network.host(host)).start()
        })
        .collect();
    runs[1].wait_for_file("pid.trainer-0");
    cluster.go();
    for outcome in finish(runs) {
        expect_well(&outcome);
    }
    let expected = [("PADDLE_GLOO_HTTP_ENDPOINT", "192.168.0.1:6180"), ("PADDLE_WITH_GLOO", "1")];
    expect_on(&cluster, 1, "env.0", &expected);
    snapshot.assert_as_before();
}

/// Fails unless each node has this many servers and trainers, in the order of the nodes.
#[track_caller]
fn expect_each(cluster: &Cluster, servers: usize, trainers: usize) {
    let first = environment(&cluster.sandboxes[0], "env.0");
    let lists = ["PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS"].map(|name| list(&first, name));
    for (list, each) in lists.iter().zip([servers, trainers]) {
        assert_eq!(list.len(), 2 * each, "{list:?}");
        for (place, endpoint) in list.iter().enumerate() {
            assert!(endpoint.starts_with(&format!("192.168.0.{}:", place / each + 1)), "{list:?}");
        }
    }
    for host in 0..2 {
        let sandbox = &cluster.sandboxes[host];
        let mut expected: Vec<String> =
            (host * servers..(host + 1) * servers).map(|index| format!("serverlog.{index}")).collect();
        expected.extend((host * trainers..(host + 1) * trainers).map(|index| format!("workerlog.{index}")));
        assert_eq!(logs(sandbox), expected);
        for index in host * trainers..(host + 1) * trainers {
            let (address, port) = lists[1][index].rsplit_once(':').expect("an endpoint");
            let id = index.to_string();
            let own = [("POD_IP", address), ("PADDLE_PORT", port), ("PADDLE_TRAINER_ID", &id), ("PADDLE_NNODES", "2")];
            expect_on(cluster, host, &format!("env.{index}"), &own);
            let all = [("PADDLE_PSERVERS_IP_PORT_LIST", lists[0].join(","))];
            expect_on(cluster, host, &format!("env.{index}"), &[(all[0].0, all[0].1.as_str())]);
        }
    }
}

fn ips() {
    for flags in ["--server_num 1 --trainer_num 2", "--server_num 1 --worker_num 2"] {
        let cluster = Cluster::new(2);
        for outcome in cluster.run(&format!("--ips $IPS {flags}"), &["*:env env", SERVERS, TRAINERS]) {
            expect_well(&outcome);
        }
        expect_each(&cluster, 1, 2);
    }
}

fn master() {
    let cluster = Cluster::new(2);
    let flags = "--master 192.168.0.1:7000 --nnodes 2 --server_num 1 --trainer_num 1";
    for outcome in cluster.run(flags, &["*:env env", SERVERS, TRAINERS]) {
        expect_well(&outcome);
    }
    expect_each(&cluster, 1, 1);
}

/// A node of servers and a node of trainers, given by number.
fn uneven() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let master = "--master 192.168.0.1:7000 --nnodes 2 --run_mode ps";
    let actions = ["*:env env", SERVERS, TRAINERS];
    let numbers = ["--server_num 2 --trainer_num 0 --rank 0", "--server_num 0 --trainer_num 2 --rank 1"];
    let runs = (0..2).map(|host| cluster.launch(host, &format!("{master} {}", numbers[host]), &actions)).collect();
    for outcome in finish(runs) {
        expect_well(&outcome);
    }
    assert_eq!(logs(&cluster.sandboxes[0]), ["serverlog.0", "serverlog.1"]);
    assert_eq!(logs(&cluster.sandboxes[1]), ["workerlog.0", "workerlog.1"]);
    snapshot.assert_as_before();
}

const HETER: &str = "heter_trainer:name;reach;pid;sleep 60000";

fn heter_workers() {
    let cluster = guides_cluster();
    let line = "python -m paddle.distributed.launch --servers=\"192.168.0.16:6170,192.168.0.17:6170\" \
                --workers=\"192.168.0.16:6171,192.168.0.17:6171\" --heter_workers=\"192.168.0.16:6172,192.168.0.17:6172\"";
    let outcomes = paste(
        &cluster,
        line,
        &["*:env env", SERVERS, HETER, "0:await pid.heter_trainer-0", "1:await pid.heter_trainer-1", TRAINERS],
    );
    for outcome in &outcomes {
        expect_well(outcome);
    }
    for host in 0..2 {
        assert_eq!(
            logs(&cluster.sandboxes[host]),
            [format!("heterlog.{host}"), format!("serverlog.{host}"), format!("workerlog.{host}")]
        );
        let address = format!("192.168.0.{}", 16 + host);
        let file = format!("env.heter_trainer-{host}");
        expect_on(
            &cluster,
            host,
            &file,
            &[
                ("TRAINING_ROLE", "HETER_TRAINER"),
                ("POD_IP", &address),
                ("PADDLE_PORT", "6172"),
                ("STAGE_ID", "2"),
                ("STAGE_NUM", "2"),
                ("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", "192.168.0.16:6172,192.168.0.17:6172"),
                ("PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST", "192.168.0.16:6171,192.168.0.17:6171"),
            ],
        );
    }
}

/// One stage per node.
fn heter_stages() {
    let cluster = Cluster::new(2);
    let flags = "--servers 192.168.0.1:6170 --workers 192.168.0.1:6171 \
                 --heter_workers 192.168.0.1:6172;192.168.0.2:6172 --heter_devices cpu;cpu";
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_all(flags, &["*:env env", SERVERS, HETER, "0:await go", TRAINERS]);
    runs[0].wait_for_file("pid.heter_trainer-0");
    runs[1].wait_for_file("pid.heter_trainer-1");
    cluster.go();
    for outcome in finish(runs) {
        expect_well(&outcome);
    }
    assert_eq!(logs(&cluster.sandboxes[0]), ["heterlog.0", "serverlog.0", "workerlog.0"]);
    assert_eq!(logs(&cluster.sandboxes[1]), ["heterlog.1"]);
    let expected =
        [("STAGE_ID", "3"), ("STAGE_NUM", "3"), ("PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST", "192.168.0.1:6172")];
    expect_on(&cluster, 1, "env.heter_trainer-1", &expected);
    snapshot.assert_as_before();
}

fn gathered() {
    let cluster = Cluster::new(2);
    let flags = "--servers 192.168.0.1:6170,192.168.0.2:6170 --workers 192.168.0.1:6171,192.168.0.2:6171 \
                 --heter_workers 192.168.0.1:6172,192.168.0.2:6172 --heter_devices cpu --gather-logs";
    let actions = ["*:name;flood 100000", SERVERS, HETER, TRAINERS];
    for outcome in cluster.run(flags, &actions) {
        expect_well(&outcome);
        assert!(!outcome.err().contains("R0010"), "{}", outcome.err());
    }
    let all = ["heterlog.0", "heterlog.1", "serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1"];
    assert_eq!(logs(&cluster.sandboxes[0]), all);
    let own = logs(&cluster.sandboxes[1]);
    assert_eq!(own, ["heterlog.1", "serverlog.1", "workerlog.1"]);
    for name in own {
        let [copy, original] = [0, 1].map(|host| cluster.sandboxes[host].read(&format!("log/{name}")));
        assert!(copy == original, "{name}: {} bytes, gathered {}", original.len(), copy.len());
        // A process stopped with the last trainer may not have printed anything.
        assert!(original.starts_with("I am ") || name.starts_with("heterlog"), "{name}");
    }
}
