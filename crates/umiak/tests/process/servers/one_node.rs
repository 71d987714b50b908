//! Successful jobs on one node: which processes start, when, with which variables, and where their output goes.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use umiak_testkit::components::Component::Netns;
use umiak_testkit::gpus;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

use super::{SERVERS, TRAINERS, environment, expect_variables, expect_well, list, logs};
use crate::nodes::Cluster;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("servers::numbers_of_servers_and_workers", &[], || numbers("--server_num 2 --worker_num 2", "0"))
        .test("servers::run_mode_ps", &[], || numbers("--run_mode ps --server_num 2 --trainer_num 2", "1"))
        .test("servers::run_mode_ps_by_implication", &[], || numbers("--server_num=2 --trainer_num=2", "1"))
        .test("servers::lists_of_one_node", &[], lists)
        .test("servers::one_port_on_two_addresses", &[], two_addresses)
        .test("servers::workers_without_ports", &[Netns], workers_without_ports)
        .test("servers::trainers_wait_for_late_servers", &[], late_servers)
        .test("servers::trainers_do_not_wait_where_told_so", &[], no_waiting)
        .test("servers::gloos_rendezvous_is_an_answer", &[], gloo)
        .test("servers::heterogeneous_stages", &[], stages)
        .test("servers::heterogeneous_workers_without_devices", &[], without_devices)
        .test("servers::coordinators", &[], coordinators)
        .test("servers::run_mode_rpc", &[], rpc)
        .test("servers::a_server_has_no_device", &[], no_device)
        .test("servers::dry_run_names_everybody", &[], dry_run);
}

/// Returns free ports that no other test here chooses, below the ephemeral range.
pub(super) fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Parallel suites start at different ports.
    let first = 21_000 + (std::process::id() % 100) as u16 * 100;
    let mut ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed) % 1000);
    let ports = ports.by_ref().filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    ports.take(count).collect()
}

fn numbers(flags: &str, gloo: &str) {
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy(flags, &["*:env env", SERVERS, TRAINERS]).finish();
    expect_well(&outcome);
    outcome.expect_err("2 servers and 2 trainers");
    let servers = list(&environment(&sandbox, "env.0"), "PADDLE_PSERVERS_IP_PORT_LIST");
    let trainers = list(&environment(&sandbox, "env.0"), "PADDLE_TRAINER_ENDPOINTS");
    assert_eq!((servers.len(), trainers.len()), (2, 2));
    let reached = format!("reached {}\nreached {}\n", servers[0], servers[1]);
    assert_eq!(outcome.out(), format!("I am trainer-0\n{reached}"), "only trainer 0 is on the console");
    assert_eq!(logs(&sandbox), ["serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1"]);
    for (index, server) in servers.iter().enumerate() {
        let log = sandbox.read(&format!("log/serverlog.{index}"));
        assert_eq!(log, format!("I am pserver-{index}\nlistening at {server}\n"));
        assert_eq!(sandbox.read(&format!("log/workerlog.{index}")), format!("I am trainer-{index}\n{reached}"));
    }
    for (file, role, endpoint) in [
        ("env.pserver-0", "PSERVER", &servers[0]),
        ("env.pserver-1", "PSERVER", &servers[1]),
        ("env.0", "TRAINER", &trainers[0]),
        ("env.1", "TRAINER", &trainers[1]),
    ] {
        let seen = environment(&sandbox, file);
        let (address, port) = endpoint.rsplit_once(':').expect("an endpoint");
        expect_variables(
            &seen,
            file,
            &[
                ("TRAINING_ROLE", role),
                ("POD_IP", address),
                ("PADDLE_PORT", port),
                ("PADDLE_TRAINERS_NUM", "2"),
                ("PADDLE_PSERVERS_IP_PORT_LIST", &servers.join(",")),
                ("PADDLE_TRAINER_ENDPOINTS", &trainers.join(",")),
                ("PADDLE_WITH_GLOO", gloo),
                ("PADDLE_GLOO_RENDEZVOUS", "3"),
            ],
        );
        let id = file.strip_prefix("env.").filter(|_| role == "TRAINER");
        assert_eq!(seen["PADDLE_TRAINER_ID"].as_str(), id, "{file}");
        let meeting = seen["PADDLE_GLOO_HTTP_ENDPOINT"].as_str().expect("it is set").to_owned();
        assert!(!servers.contains(&meeting) && !trainers.contains(&meeting), "a port of its own: {meeting}");
    }
}

fn lists() {
    let sandbox = Sandbox::new();
    let endpoints: Vec<String> = free_ports(4).iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let (servers, workers) = (endpoints[..2].join(","), endpoints[2..].join(","));
    let flags = format!("--servers={servers} --workers={workers}");
    expect_well(&sandbox.launch_toy(&flags, &["*:env env", SERVERS, TRAINERS]).finish());
    for (file, endpoint) in ["env.pserver-0", "env.pserver-1", "env.0", "env.1"].iter().zip(&endpoints) {
        let (address, port) = endpoint.rsplit_once(':').expect("an endpoint");
        let lists = [("PADDLE_PSERVERS_IP_PORT_LIST", servers.as_str()), ("PADDLE_TRAINER_ENDPOINTS", &workers)];
        let seen = environment(&sandbox, file);
        expect_variables(&seen, file, &lists);
        expect_variables(&seen, file, &[("POD_IP", address), ("PADDLE_PORT", port)]);
    }
}

/// Ports of workers follow those of the servers. Runs on a separate host, where they are free.
fn workers_without_ports() {
    let cluster = Cluster::new(1);
    let flags = "--servers 127.0.0.1:6170,127.0.0.1:6171 --workers 127.0.0.1,127.0.0.1";
    for outcome in cluster.run(flags, &["*:env env", SERVERS, TRAINERS]) {
        expect_well(&outcome);
    }
    let seen = environment(&cluster.sandboxes[0], "env.1");
    let ports = [("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:6172,127.0.0.1:6173"), ("PADDLE_PORT", "6173")];
    expect_variables(&seen, "trainer-1", &ports);
}

/// Two nodes on one host: each address has its own ports.
fn two_addresses() {
    let ports = free_ports(3);
    let [server, worker, meeting] = [ports[0], ports[1], ports[2]];
    let list = |port: u16| format!("127.0.0.2:{port},127.0.0.3:{port}");
    let flags = format!("--servers {} --workers {} --rdzv-port {meeting}", list(server), list(worker));
    let sandboxes = [Sandbox::new(), Sandbox::new()];
    let launch = |number: usize| {
        let flags = format!("{flags} --host 127.0.0.{}", number + 2);
        sandboxes[number].launch_toy(&flags, &["*:env env", SERVERS, TRAINERS]).start()
    };
    let runs = [launch(0), launch(1)];
    for run in runs {
        expect_well(&run.finish());
    }
    for (number, sandbox) in sandboxes.iter().enumerate() {
        let own = [("POD_IP", format!("127.0.0.{}", number + 2)), ("PADDLE_PORT", server.to_string())];
        let own = own.each_ref().map(|(name, value)| (*name, value.as_str()));
        expect_variables(&environment(sandbox, &format!("env.pserver-{number}")), "the server", &own);
    }
}

/// Trainers that start earlier would not reach the servers. A server that listens at once does not start them early.
fn late_servers() {
    let sandbox = Sandbox::new();
    let late = ["pserver-0:listen", "pserver-1:sleep 1000;touch awake;listen", "pserver:sleep 60000", TRAINERS];
    let outcome = sandbox.launch_toy("--server_num 2 --worker_num 2", &late).finish();
    expect_well(&outcome);
    assert!(outcome.out().contains("reached"), "{}", outcome.out());
    assert!(sandbox.path().join("awake").exists());
}

/// The servers listen only when trainers run, so waiting would block both forever.
fn no_waiting() {
    let sandbox = Sandbox::new();
    let actions = ["pserver:await up;listen;sleep 60000", "trainer:touch up;seek"];
    let flags = "--server_num 2 --worker_num 2 --server-timeout 0s";
    expect_well(&sandbox.launch_toy(flags, &actions).finish());
}

/// With gloo, the first server opens its port only after the trainers have met.
fn gloo() {
    let servers = ["pserver-0:listen-gloo;await met;listen", "pserver-1:listen", "pserver:sleep 60000"];
    let actions = [servers[0], servers[1], servers[2], "trainer:touch met;seek"];
    let sandbox = Sandbox::new();
    let run = sandbox.launch_toy("--server_num 2 --worker_num 2", &actions).env("PADDLE_WITH_GLOO", "1");
    expect_well(&run.finish());
    // In the current generation gloo is on by default, and its port can be chosen.
    let sandbox = Sandbox::new();
    expect_well(&sandbox.launch_toy("--run_mode ps --server_num 2 --trainer_num 2", &actions).finish());
    let sandbox = Sandbox::new();
    let port = free_ports(1)[0];
    let flags = format!("--server_num 2 --worker_num 2 --http_port {port}");
    let run = sandbox.launch_toy(&flags, &["*:env env", actions[0], actions[1], actions[2], actions[3]]);
    expect_well(&run.env("PADDLE_WITH_GLOO", "1").finish());
    let endpoint = format!("127.0.0.1:{port}");
    for file in ["env.pserver-0", "env.pserver-1", "env.0"] {
        expect_variables(&environment(&sandbox, file), file, &[("PADDLE_GLOO_HTTP_ENDPOINT", &endpoint)]);
    }
}

/// Heterogeneous trainers are stopped when the trainers have ended.
const HETER: &str = "heter_trainer:reach;sleep 60000";

fn stages() {
    let sandbox = Sandbox::new();
    let flags = "--server_num 1 --worker_num 1 --heter_worker_num 1;1 --heter_devices cpu;cpu";
    let up = ["heter_trainer:pid", "trainer:await pid.heter_trainer-0;await pid.heter_trainer-1"];
    let actions = ["*:env env", up[0], SERVERS, HETER, up[1], TRAINERS];
    let outcome = sandbox.launch_toy(flags, &actions).finish();
    expect_well(&outcome);
    assert!(outcome.out().starts_with("I am trainer-0\nreached "), "{}", outcome.out());
    assert_eq!(logs(&sandbox), ["heterlog.0", "heterlog.1", "serverlog.0", "workerlog.0"]);
    let trainer = environment(&sandbox, "env.0");
    let own = |seen: &serde_json::Value| format!("{}:{}", text(seen, "POD_IP"), text(seen, "PADDLE_PORT"));
    let heter = [0, 1].map(|index| environment(&sandbox, &format!("env.heter_trainer-{index}")));
    let endpoints = [own(&heter[0]), own(&heter[1])];
    for (seen, who, stage, next, previous) in [
        (&trainer, "trainer-0", "1", endpoints[0].as_str(), String::new()),
        (&heter[0], "heter_trainer-0", "2", &endpoints[1], own(&trainer)),
        (&heter[1], "heter_trainer-1", "3", "", endpoints[0].clone()),
    ] {
        expect_variables(
            seen,
            who,
            &[
                ("STAGE_ID", stage),
                ("STAGE_NUM", "3"),
                ("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", &endpoints.join(",")),
                ("PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST", next),
                ("PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST", &previous),
            ],
        );
    }
    expect_variables(&heter[0], "heter_trainer-0", &[("TRAINING_ROLE", "HETER_TRAINER"), ("HETER_DEVICE_TYPE", "cpu")]);
}

fn text<'a>(seen: &'a serde_json::Value, name: &str) -> &'a str {
    seen[name].as_str().unwrap_or_default()
}

/// The user guide's form.
fn without_devices() {
    let ports = free_ports(3);
    let lists = format!(
        "--servers 127.0.0.1:{} --workers 127.0.0.1:{} --heter_workers 127.0.0.1:{}",
        ports[0], ports[1], ports[2]
    );
    for flags in ["--server_num 1 --worker_num 1 --heter_worker_num 1", &lists] {
        let sandbox = Sandbox::new();
        let outcome = sandbox.launch_toy(flags, &[SERVERS, HETER, TRAINERS]).finish();
        expect_well(&outcome);
        outcome.expect_err("--heter_devices");
        assert_eq!(logs(&sandbox), ["heterlog.0", "serverlog.0", "workerlog.0"], "{flags}");
    }
}

fn coordinators() {
    let sandbox = Sandbox::new();
    let actions = ["coordinator:name;env env;touch up;sleep 60000", SERVERS, "trainer:env env;await up", TRAINERS];
    let outcome = sandbox.launch_toy("--server_num 1 --worker_num 2 --coordinator_num 1", &actions).finish();
    expect_well(&outcome);
    assert!(outcome.out().starts_with("I am trainer-0\n"), "{}", outcome.out());
    assert_eq!(logs(&sandbox), ["coordinator.0", "serverlog.0", "workerlog.0", "workerlog.1"]);
    assert_eq!(sandbox.read("log/coordinator.0"), "I am coordinator-0\n");
    let seen = environment(&sandbox, "env.coordinator-0");
    let own = format!("{}:{}", text(&seen, "POD_IP"), text(&seen, "PADDLE_PORT"));
    let expected = [("TRAINING_ROLE", "COORDINATOR"), ("PADDLE_COORDINATOR_ENDPOINTS", own.as_str())];
    expect_variables(&seen, "coordinator-0", &expected);
    expect_variables(&environment(&sandbox, "env.1"), "trainer-1", &expected[1..]);
}

/// Without servers, all ranks start at once and find each other by their variables.
fn rpc() {
    let sandbox = Sandbox::new();
    let actions = ["*:env env;print hello", "0:touch up.0;await up.1", "1:touch up.1;await up.0"];
    let outcome = sandbox.launch_toy("--run_mode rpc --nproc_per_node 2", &actions).finish();
    expect_well(&outcome);
    assert_eq!(outcome.out(), "hello\n");
    assert_eq!(logs(&sandbox), ["workerlog.0", "workerlog.1"]);
    let seen = [0, 1].map(|rank| environment(&sandbox, &format!("env.{rank}")));
    for (rank, seen) in seen.iter().enumerate() {
        let expected = [("PADDLE_TRAINER_ID", rank.to_string()), ("PADDLE_TRAINERS_NUM", "2".to_owned())];
        for (name, value) in expected {
            assert_eq!(text(seen, name), value, "{name} of rank {rank}");
        }
        assert!(!text(seen, "PADDLE_MASTER_ENDPOINT").is_empty(), "{seen}");
        assert!(!text(seen, "PADDLE_WORKER_ENDPOINT").is_empty(), "{seen}");
    }
    assert_eq!(text(&seen[0], "PADDLE_MASTER_ENDPOINT"), text(&seen[1], "PADDLE_MASTER_ENDPOINT"));
    assert_ne!(text(&seen[0], "PADDLE_WORKER_ENDPOINT"), text(&seen[1], "PADDLE_WORKER_ENDPOINT"));
}

/// The trainer has the host's GPU; the report of a server names none.
fn no_device() {
    let sandbox = Sandbox::new();
    let driver = gpus::fake(sandbox.path(), 1);
    let run = sandbox.launch_toy("--server_num 1 --worker_num 1", &["pserver:exit 7", TRAINERS]);
    let outcome = run.env("UMIAK_NVIDIA_PROC", &driver).finish();
    outcome.expect_code(7).expect_err("pserver-0 on ").expect_err(" (pid ");
}

fn dry_run() {
    let sandbox = Sandbox::new();
    let flags = "--server_num 1 --worker_num 1 --heter_worker_num 1 --heter_devices cpu --dry-run";
    let outcome = sandbox.launch_toy(flags, &["*:touch started"]).finish();
    outcome.expect_code(0);
    for words in ["pserver-0", "trainer-0", "heter_trainer-0", "TRAINING_ROLE=PSERVER", "TRAINING_ROLE=HETER_TRAINER"] {
        assert!(outcome.out().contains(words), "{words}:\n{}", outcome.out());
    }
    assert_eq!(sandbox.list("."), ["tmp"], "nothing was made or started");
}
