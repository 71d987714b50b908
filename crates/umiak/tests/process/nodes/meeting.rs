//! How nodes find each other, and which they refuse.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use umiak_testkit::components::Component::{Netns, Python};
use umiak_testkit::net::Echo;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

use super::{Cluster, WAIT, finish};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("nodes::masters_in_every_spelling", &[Netns], masters)
        .test("nodes::order_by_rank_by_address_by_arrival", &[Netns], order)
        .test("nodes::alone_with_nnodes_it_prints_the_command_for_others", &[Netns], auto)
        .test("nodes::five_nodes", &[Netns], five)
        .test("nodes::ports_are_paddles_where_they_are_free", &[Netns], usual_ports)
        .test("nodes::the_dry_run_says_which_node_it_is", &[Netns], dry_run)
        .test("nodes::a_node_with_several_addresses", &[Netns], several_addresses)
        .test("nodes::a_node_address_that_is_on_no_interface", &[Netns], foreign_address)
        .test("nodes::the_late_are_waited_for", &[Netns], late)
        .test("nodes::time_is_up", &[Netns], time_up)
        .test("nodes::another_order_of_ips", &[Netns], other_order)
        .test("nodes::another_number_of_restarts", &[Netns], other_restarts)
        .test("nodes::unequal_numbers_of_processes", &[Netns], unequal)
        .test("nodes::a_node_that_cannot_start_ends_the_others", &[Netns], unable)
        .test("nodes::the_same_address_twice", &[Netns], twice)
        .test("nodes::another_token", &[Netns], other_token)
        .test("nodes::tokens_are_not_exposed", &[Netns], exposed_tokens)
        .test("nodes::token_files", &[], token_files)
        .test("nodes::another_version", &[Netns, Python], other_version)
        .test("nodes::two_jobs_at_once", &[Netns], two_jobs)
        .test("nodes::a_port_that_is_taken", &[Netns], taken_port)
        .test("nodes::not_in_the_list", &[Netns], not_listed);
}

const HELLO: &[&str] = &["*:env PADDLE_TRAINER_ENDPOINTS;print hello"];

#[track_caller]
fn all_well(cluster: &Cluster, flags: &str) {
    for outcome in cluster.run(flags, HELLO) {
        outcome.expect_code(0);
    }
}

fn masters() {
    let cluster = Cluster::new(2);
    for master in ["192.168.0.1:7000", "http://192.168.0.1:7000", "[fd00::1]:7000"] {
        all_well(&cluster, &format!("--master {master} --nnodes 2 --nproc_per_node 2 --token s3cret"));
    }
    // Paddle's environment variables.
    let snapshot = cluster.snapshot();
    let runs: Vec<_> = (0..2)
        .map(|host| {
            let run = cluster.sandboxes[host].launch_toy("--nproc_per_node 2", HELLO);
            let run = run.env("PADDLE_MASTER", "192.168.0.1:7001").env("PADDLE_NNODES", "2");
            run.on(cluster.network.host(host)).start()
        })
        .collect();
    for outcome in finish(runs) {
        outcome.expect_code(0);
    }
    snapshot.assert_as_before();
}

/// Returns the lowest rank of each host, from the names of its logs.
fn first_ranks(cluster: &Cluster) -> Vec<u32> {
    cluster
        .sandboxes
        .iter()
        .map(|sandbox| {
            let ranks = sandbox.list("log");
            let ranks = ranks.iter().filter_map(|name| name.strip_prefix("workerlog.")?.parse().ok());
            ranks.min().expect("a log")
        })
        .collect()
}

fn order() {
    let master = "--master 192.168.0.2:7000 --nnodes 3 --nproc_per_node 1";
    let cluster = Cluster::new(3);
    let runs = (0..3).map(|host| cluster.launch(host, &format!("{master} --rank {}", 2 - host), HELLO)).collect();
    for outcome in finish(runs) {
        outcome.expect_code(0);
    }
    assert_eq!(first_ranks(&cluster), [2, 1, 0]);

    let cluster = Cluster::new(3);
    all_well(&cluster, &format!("{master} --sort_ip true"));
    assert_eq!(first_ranks(&cluster), [0, 1, 2]);

    let cluster = Cluster::new(3);
    all_well(&cluster, master);
    assert_eq!(first_ranks(&cluster)[1], 0, "the master's node is the first");

    let cluster = Cluster::new(2);
    let flags = "--master 192.168.0.1:7000 --nnodes 2 --nproc_per_node 1 --rdzv-timeout 20s";
    let first = cluster.launch(0, &format!("{flags} --rank 0"), HELLO);
    let second = cluster.launch(1, &format!("{flags} --rank 0"), HELLO).finish();
    second.expect_code(123).expect_err("`--rank 0` was given to two of 2 nodes");
    first.finish().expect_code(123).expect_err("`--rank 0` was given to two of 2 nodes");
}

/// Runs the command that it prints on the other node, unchanged.
fn auto() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let mut run = cluster.sandboxes[0].launch_toy("--nnodes 2 --nproc_per_node 1", HELLO).on(cluster.network.host(0));
    run.command.stderr(Stdio::piped());
    let mut first = run.command.spawn().expect("it starts");
    let mut text = String::new();
    let mut stderr = first.stderr.take().expect("a pipe");
    let command = loop {
        let mut byte = [0];
        assert_eq!(stderr.read(&mut byte).expect("readable"), 1, "{text}");
        text.push(byte[0] as char);
        let command = text.lines().find(|line| line.starts_with("umiak launch --master")).map(str::to_owned);
        if let (Some(command), true) = (command, text.ends_with('\n')) {
            break command;
        }
    };
    let umiak = umiak_testkit::sandbox::binary().display().to_string();
    let line = command.replacen("umiak", &umiak, 1);
    let second = cluster.sandboxes[1].program("/bin/sh".as_ref(), ["-c", &line]).on(cluster.network.host(1));
    second.start().finish().expect_code(0);
    std::io::copy(&mut stderr, &mut std::io::sink()).expect("readable");
    assert!(first.wait().expect("it ends").success());
    snapshot.assert_as_before();
}

fn five() {
    let cluster = Cluster::new(5);
    for outcome in cluster.run("--ips $IPS --nproc_per_node 2", HELLO) {
        outcome.expect_code(0).expect_err("10 ranks on 5 nodes");
    }
    assert_eq!(first_ranks(&cluster), [0, 2, 4, 6, 8]);
}

fn several_addresses() {
    let cluster = Cluster::new(2);
    cluster.network.host(1).add_address("192.168.0.77".parse().unwrap());
    all_well(&cluster, "--ips 192.168.0.1,192.168.0.77 --nproc_per_node 1");
    assert!(cluster.sandboxes[0].read("log/endpoints.log").contains("192.168.0.77:"));
    // Two addresses of this host in one list are ambiguous.
    let outcome = cluster.launch(1, "--ips 192.168.0.2,192.168.0.77 --nproc_per_node 1", HELLO).finish();
    outcome.expect_code(2).expect_err("several addresses in `--ips` belong to this host").expect_err("--host");
    // With `--host`, both nodes may be on one host.
    let snapshot = cluster.snapshot();
    let flags = "--ips 192.168.0.2,192.168.0.77 --nproc_per_node 1 --host";
    let runs = vec![
        cluster.launch(1, &format!("{flags} 192.168.0.2 --log_dir a"), HELLO),
        cluster.launch(1, &format!("{flags} 192.168.0.77 --log_dir b"), HELLO),
    ];
    for run in runs {
        run.finish_unchecked().expect_code(0);
    }
    snapshot.assert_as_before();
}

/// Ports start at 6070, or at 6170 in the older generation, and a taken port is replaced. Ports given by the user take
/// precedence.
fn usual_ports() {
    let cluster = Cluster::new(2);
    let endpoints = |flags: &str| {
        all_well(&cluster, &format!("--ips $IPS {flags} --log_overwrite true"));
        let text = cluster.sandboxes[0].read("log/endpoints.log");
        assert_eq!(text, cluster.sandboxes[1].read("log/endpoints.log"));
        text
    };
    let paddles = endpoints("--nproc_per_node 2");
    for endpoint in ["192.168.0.1:6070", "192.168.0.1:6071", "192.168.0.2:6070", "192.168.0.2:6071"] {
        assert!(paddles.contains(endpoint), "{endpoint}: {paddles}");
    }
    let older = endpoints("--gpus 0 --selected_gpus 0");
    assert!(older.contains("192.168.0.1:6170") && older.contains("192.168.0.2:6170"), "{older}");
    let _taken = Echo::start(cluster.network.host(1), cluster.network.host(1).at(6070));
    let moved = endpoints("--nproc_per_node 2");
    for (endpoint, is_there) in [("192.168.0.1:6070", true), ("192.168.0.2:6070", false), ("192.168.0.2:6071", true)] {
        assert_eq!(moved.contains(endpoint), is_there, "{endpoint}: {moved}");
    }
    let fixed = endpoints("--nproc_per_node 2 --start_port 9100");
    assert!(fixed.contains("192.168.0.2:9101"), "{fixed}");
}

fn dry_run() {
    let cluster = Cluster::new(2);
    for host in 0..2 {
        let run =
            cluster.sandboxes[host].launch_toy("--dry-run --ips 192.168.0.1,192.168.0.2 --nproc_per_node 1", HELLO);
        let outcome = run.on(cluster.network.host(host)).finish();
        let node = format!("\nnode {0} of 2, 192.168.0.{0}\n", host + 1);
        assert!(outcome.expect_code(0).out().contains(&node), "{}", outcome.out());
    }
}

/// A container that other nodes reach by its host's address.
fn foreign_address() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let flags = "--master 192.168.0.1:7000 --nnodes 2 --nproc_per_node 1";
    let runs = vec![cluster.launch(0, flags, HELLO), cluster.launch(1, &format!("{flags} --host 10.9.9.9"), HELLO)];
    let outcomes = finish(runs);
    outcomes[0].expect_code(0);
    outcomes[1].expect_code(0).expect_err("10.9.9.9");
    assert!(cluster.sandboxes[0].read("log/endpoints.log").contains("10.9.9.9:"));
    snapshot.assert_as_before();
}

fn late() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let flags = "--ips $IPS --nproc_per_node 1";
    let mut runs = vec![cluster.launch(2, flags, HELLO), cluster.launch(0, flags, HELLO)];
    std::thread::sleep(std::time::Duration::from_millis(4500));
    runs.push(cluster.launch(1, flags, HELLO));
    let outcomes = finish(runs);
    for outcome in &outcomes {
        outcome.expect_code(0);
    }
    // In a pipe, the state is printed only after a while.
    outcomes[1].expect_err("joined 2/3, missing 192.168.0.2");
    snapshot.assert_as_before();
}

fn time_up() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let flags = "--ips $IPS --nproc_per_node 1 --rdzv-timeout 5s";
    let outcomes = finish(vec![cluster.launch(0, flags, HELLO), cluster.launch(2, flags, HELLO)]);
    for outcome in &outcomes {
        outcome.expect_code(123).expect_err("only 2 of 3 nodes joined in time").expect_err("192.168.0.2");
        outcome.expect_err("nothing listens on that port");
        assert!(outcome.out().is_empty(), "nothing was started");
    }
    // The coordinator never starts.
    let outcome = cluster.launch(1, "--ips $IPS --nproc_per_node 1 --rdzv-timeout 1s", HELLO).finish();
    outcome.expect_code(123).expect_err("could not be reached in time").expect_err("192.168.0.1:");
    snapshot.assert_as_before();
}

fn other_order() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    // The lists differ only in the order of the second and third node, so all agree on the coordinator.
    let flags = "--nproc_per_node 1 --rdzv-port 7100 --ips";
    let first = cluster.launch(0, &format!("{flags} 192.168.0.1,192.168.0.2,192.168.0.3"), HELLO);
    let second = cluster.launch(1, &format!("{flags} 192.168.0.1,192.168.0.3,192.168.0.2"), HELLO).finish();
    second.expect_code(123).expect_err("the lists of nodes differ");
    second.expect_err("192.168.0.1,192.168.0.2,192.168.0.3").expect_err("192.168.0.1,192.168.0.3,192.168.0.2");
    // The first node exits for the same reason.
    let first = first.finish();
    first.expect_code(123).expect_err("the lists of nodes differ").expect_err("refused          192.168.0.2 (");
    first.expect_err("192.168.0.1,192.168.0.3,192.168.0.2");
    let flags = "--nproc_per_node 1 --master 192.168.0.1:7100 --nnodes";
    let runs = vec![cluster.launch(0, &format!("{flags} 2"), HELLO), cluster.launch(1, &format!("{flags} 3"), HELLO)];
    for outcome in finish(runs) {
        outcome.expect_code(123).expect_err("the numbers of nodes differ");
        outcome.expect_err("hint: give every node the same `--nnodes`\n");
    }
    let flags = "--master 192.168.0.1:7100 --nnodes 2";
    let runs = vec![
        cluster.launch(0, &format!("{flags} --run_mode ps --server_num 1 --trainer_num 1"), HELLO),
        cluster.launch(1, &format!("{flags} --nproc_per_node 2"), HELLO),
    ];
    let expected = " node runs a `collective` job, but 192.168.0.1 (";
    for outcome in finish(runs) {
        outcome.expect_code(123).expect_err("error[R0002]").expect_err(expected).expect_err("`--run_mode`");
        assert!(outcome.out().is_empty(), "nothing was started");
    }
    snapshot.assert_as_before();
}

fn other_restarts() {
    let cluster = Cluster::new(2);
    let flags = "--nproc_per_node 1 --master 192.168.0.1:7100 --nnodes 2 --max_restart";
    let runs = vec![cluster.launch(0, &format!("{flags} 1"), HELLO), cluster.launch(1, &format!("{flags} 2"), HELLO)];
    let [first, second] = &finish(runs)[..] else { panic!("two nodes") };
    let applies = "the coordinator's `--max_restart` applies to all nodes\n  coordinator  1\n  this node    2\n";
    second.expect_code(0).expect_err(applies);
    first.expect_code(0);
    assert!(!first.err().contains("max_restart"), "{}", first.err());
}

/// Before it has joined, as the coordinator or as another node, first or last.
fn unable() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    for flags in ["--ips $IPS", "--master 192.168.0.1:7000 --nnodes 3"] {
        for (unable, is_first) in [(0, true), (0, false), (1, true), (1, false)] {
            let begin = |host: usize| {
                let log_dir = if host == unable { "/dev/null/log" } else { "log" };
                cluster.launch(host, &format!("{flags} --nproc_per_node 1 --log_dir {log_dir}"), HELLO)
            };
            let mut others: Vec<usize> = (0..3).filter(|host| *host != unable).collect();
            let mut runs = Vec::new();
            if is_first {
                runs.push(begin(unable));
                runs.extend(others.iter().map(|host| begin(*host)));
                others.insert(0, unable);
            } else {
                runs.extend(others.iter().map(|host| begin(*host)));
                runs.push(begin(unable));
                others.push(unable);
            }
            for (host, outcome) in others.into_iter().zip(finish(runs)) {
                if host == unable {
                    outcome.expect_code(125).expect_err("error[L0014]");
                } else {
                    let name = format!("error[R0006]: node 192.168.0.{} (", unable + 1);
                    outcome.expect_code(123).expect_err(&name).expect_err("/dev/null/log");
                }
                assert!(outcome.out().is_empty(), "nothing was started");
            }
        }
    }
    snapshot.assert_as_before();
}

fn unequal() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let equal = "--ips $IPS --nproc_per_node 2";
    let others = vec![cluster.launch(0, equal, HELLO), cluster.launch(2, equal, HELLO)];
    let second = cluster.launch(1, "--ips $IPS --nproc_per_node 3", HELLO).finish();
    second.expect_code(123).expect_err("this node starts 3 processes, but 192.168.0.1").expect_err("--uneven");
    // The other nodes stop waiting for it.
    for outcome in finish(others) {
        outcome.expect_code(123).expect_err("that node starts 3 processes, but 192.168.0.1").expect_err("--uneven");
        assert!(outcome.out().is_empty(), "nothing was started");
    }
    // Allowed with `--uneven`, and with `--master` as in Paddle.
    for flags in ["--ips $IPS --uneven", "--master 192.168.0.1:7000 --nnodes 3"] {
        let launch = |(host, processes)| cluster.launch(host, &format!("{flags} --nproc_per_node {processes}"), HELLO);
        for outcome in finish([(0, 1), (1, 3), (2, 2)].map(launch).into()) {
            outcome.expect_code(0).expect_err("6 ranks on 3 nodes");
        }
    }
    snapshot.assert_as_before();
}

fn twice() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let wait: &[&str] = &["*:touch up", &format!("*:{WAIT}")];
    let runs = cluster.launch_all("--ips $IPS --nproc_per_node 1", wait);
    for run in &runs {
        run.wait_for_file("up");
    }
    // A second start fails: on the second node the job has begun, on the first the port is taken.
    let second = cluster.launch(1, "--ips $IPS --nproc_per_node 1 --log_dir b", HELLO).finish_unchecked();
    second.expect_code(123).expect_err("the job has started without this node").expect_err("--job_id");
    let first = cluster.launch(0, "--ips $IPS --nproc_per_node 1 --log_dir b", HELLO).finish_unchecked();
    first.expect_code(125).expect_err("is in use").expect_err("a job `default` that already runs on this node");
    runs[0].signal(2);
    for outcome in finish(runs) {
        outcome.expect_code(130);
    }
    // A second start also fails while other nodes are missing.
    let first = cluster.launch(0, "--ips 192.168.0.1,192.168.0.2,192.168.0.3 --nproc_per_node 1", HELLO);
    let third = cluster.launch(1, "--ips 192.168.0.1,192.168.0.2,192.168.0.3 --nproc_per_node 1", HELLO);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let again = cluster.launch(1, "--ips 192.168.0.1,192.168.0.2,192.168.0.3 --nproc_per_node 1", &["*:exit 0"]);
    again.finish_unchecked().expect_code(123).expect_err("has already joined this job").expect_err("--job_id");
    third.signal(2);
    for outcome in finish(vec![first, third]) {
        outcome.expect_code(130);
    }
    snapshot.assert_as_before();
}

fn other_token() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let flags = "--ips $IPS --nproc_per_node 1 --rdzv-timeout 20s";
    let first = cluster.launch(0, &format!("{flags} --token one"), HELLO);
    let second = cluster.launch(1, &format!("{flags} --token two"), HELLO).finish();
    second.expect_code(123).expect_err("the coordinator rejected this node").expect_err("the token differs");
    std::thread::sleep(std::time::Duration::from_millis(3500));
    first.signal(2);
    let first = first.finish();
    first.expect_code(130).expect_err("192.168.0.2 (other token)");
    for outcome in [&first, &second] {
        assert!(!outcome.err().contains("--token one") && !outcome.err().contains("two\n"), "secrets are not shown");
    }
    // The token from the variable, equal on both nodes.
    let runs: Vec<_> = (0..2)
        .map(|host| {
            let run = cluster.sandboxes[host]
                .launch_toy(&flags.replace("$IPS", &cluster.network.ips()), &["*:env UMIAK_TOKEN;print hello"]);
            run.env("UMIAK_TOKEN", "s3cret").on(cluster.network.host(host)).start()
        })
        .collect();
    for outcome in finish(runs) {
        outcome.expect_code(0);
        assert!(!outcome.out().contains("s3cret"), "ranks must not get the token");
    }
    snapshot.assert_as_before();
}

/// A coordinator and an agent with another protocol version.
fn other_version() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let sandbox = &cluster.sandboxes[0];
    let coordinator = r#"
import socket, struct
server = socket.create_server(("", 7000))
while True:
    peer, _ = server.accept()
    peer.recv(512)
    text = b"99"
    peer.sendall(b"UMIAK\0" + struct.pack("<HBH", 99, 1, len(text)) + text + bytes(16))
    peer.close()
"#;
    let script = sandbox.write("coordinator.py", coordinator);
    let mut server = cluster.network.host(0).command("python3").arg(script).spawn().expect("python runs");
    let flags = "--master 192.168.0.1:7000 --nnodes 2 --nproc_per_node 1 --rdzv-timeout 20s";
    let outcome = cluster.launch(1, flags, HELLO).finish();
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    outcome.expect_code(123).expect_err("another version of umiak, with protocol 99");

    let first = cluster.launch(0, "--ips $IPS --nproc_per_node 1 --rdzv-port 7000", HELLO);
    let agent = r#"
import socket, struct, time
for _ in range(100):
    try:
        peer = socket.create_connection(("192.168.0.1", 7000))
        break
    except OSError:
        time.sleep(0.1)
peer.sendall(b"UMIAK\0" + struct.pack("<HB", 99, 7) + b"default" + bytes(16))
print(peer.recv(512)[:9].hex())
"#;
    let mut python = cluster.network.host(1).command("python3");
    let mut python = python.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python runs");
    python.stdin.take().expect("a pipe").write_all(agent.as_bytes()).expect("it reads");
    let said = python.wait_with_output().expect("it ends").stdout;
    assert_eq!(String::from_utf8_lossy(&said).trim(), "554d49414b000a0001", "version 10, status 1");
    std::thread::sleep(std::time::Duration::from_millis(3500));
    first.signal(2);
    first.finish().expect_code(130).expect_err("192.168.0.2 (another version)");
    snapshot.assert_as_before();
}

fn two_jobs() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let wait: &[&str] = &["*:await go"];
    let flags = |job: &str| format!("--ips $IPS --nproc_per_node 2 --job_id {job} --log_dir {job}");
    let mut runs = cluster.launch_all(&flags("one"), wait);
    runs.extend(cluster.launch_all(&flags("two"), wait));
    for job in ["one", "two"] {
        for sandbox in &cluster.sandboxes {
            runs[0].wait_until("all ranks", || sandbox.read_if_there(&format!("{job}/endpoints.log")).is_some());
        }
    }
    cluster.go();
    for run in runs {
        run.finish_unchecked().expect_code(0);
    }
    let endpoints: Vec<String> =
        ["one", "two"].map(|job| cluster.sandboxes[0].read(&format!("{job}/endpoints.log"))).to_vec();
    assert!(endpoints[0].lines().skip(1).all(|endpoint| !endpoints[1].contains(endpoint)), "{endpoints:?}");
    snapshot.assert_as_before();
    // Another job holds the requested port.
    let first = cluster.launch(0, "--ips $IPS --nproc_per_node 1 --job_id one --rdzv-port 7000", HELLO);
    first.wait_until("the coordinator listens", || cluster.network.host(0).listening_ports().contains(&7000));
    let second = cluster.launch(0, "--ips $IPS --nproc_per_node 1 --job_id two --rdzv-port 7000", HELLO);
    second.finish_unchecked().expect_code(125).expect_err("port 7000 is in use").expect_err("job `one` since");
    let agent = cluster.launch(1, "--ips $IPS --nproc_per_node 1 --job_id two --rdzv-port 7000", HELLO).finish();
    agent.expect_code(123).expect_err("job `one` since");
    first.signal(2);
    first.finish().expect_code(130);
    snapshot.assert_as_before();
}

fn taken_port() {
    let cluster = Cluster::new(2);
    let stranger = Echo::start(cluster.network.host(0), cluster.network.host(0).at(7000));
    let outcome = cluster.launch(0, "--ips $IPS --nproc_per_node 1 --rdzv-port 7000", HELLO).finish();
    outcome.expect_code(125).expect_err("7000").expect_err("--rdzv-port");
    drop(stranger);
}

fn not_listed() {
    let cluster = Cluster::new(1);
    let outcome = cluster.launch(0, "--ips 192.168.0.7,192.168.0.8 --nproc_per_node 1", HELLO).finish();
    outcome.expect_code(2).expect_err("this host is not in `--ips`").expect_err("192.168.0.1 (eth0)");
    let outcome = cluster.launch(0, "--ips 127.0.0.1,192.168.0.8 --nproc_per_node 1", HELLO).finish();
    outcome.expect_code(2).expect_err("`127.0.0.1` cannot be one of several nodes");
}

/// Neither the command line nor the environment of any process on any node shows the token, however it was given.
fn exposed_tokens() {
    const TOKEN: &str = "correct-horse-battery-staple";
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let file = cluster.sandboxes[2].write("token", format!("{TOKEN}\n"));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let ways = [format!("--token {TOKEN}"), String::new(), format!("--token-file {}", file.display())];
    let runs: Vec<_> = (0..3)
        .map(|host| {
            let flags = format!("--ips {} --nproc_per_node 1 --rdzv-timeout 60s {}", cluster.network.ips(), ways[host]);
            let mut run = cluster.sandboxes[host].launch_toy(&flags, &["*:touch up;await go"]);
            if ways[host].is_empty() {
                run = run.env("UMIAK_TOKEN", TOKEN);
            }
            run.on(cluster.network.host(host)).start()
        })
        .collect();
    for run in &runs {
        run.wait_for_file("up");
    }
    for host in cluster.network.hosts() {
        let processes = host.processes();
        // The front, the guardian and the rank.
        assert!(processes.len() >= 3, "{processes:?}");
        for (pid, _) in processes {
            for file in ["cmdline", "environ"] {
                let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                let text = String::from_utf8_lossy(&bytes);
                assert!(!text.contains(TOKEN), "{file} of {pid}: {text}");
            }
        }
    }
    cluster.go();
    for outcome in finish(runs) {
        outcome.expect_code(0);
        assert!(!outcome.err().contains("R0012"), "{}", outcome.err());
    }
    snapshot.assert_as_before();
}

fn token_files() {
    let sandbox = Sandbox::new();
    let dry = |file: &str| sandbox.launch_toy(&format!("--nnodes 2 --dry-run --token-file {file}"), HELLO).finish();
    let mode = |name: &str, text: &[u8], mode: u32| {
        let path = sandbox.write(name, text);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let fifo = std::process::Command::new("mkfifo").arg(sandbox.path().join("pipe")).status().unwrap();
    assert!(fifo.success());
    mode("empty", b" \n", 0o600);
    mode("lines", b"one\ntwo\n", 0o600);
    mode("long", &[b'x'; 4097], 0o600);
    mode("odd", b"\xff\xfe", 0o600);
    mode("writable", b"0123456789abcdef\n", 0o666);
    mode("shared", b"0123456789abcdef\n", 0o620);
    for (file, reason) in [
        ("missing", "No such file"),
        ("pipe", "it is a named pipe, not a regular file"),
        ("/dev/zero", "it is a device, not a regular file"),
        (".", "it is a directory, not a regular file"),
        ("empty", "it is empty"),
        ("lines", "it has more than one line"),
        ("long", "it has more than 4096 bytes"),
        ("odd", "it is not text"),
        ("writable", "other users of this host can write it"),
        ("shared", "other users of this host can write it"),
    ] {
        let message = format!("error[R0011]: the token file `{file}` cannot be used");
        dry(file).expect_code(2).expect_err(&message).expect_err(reason);
    }
    mode("good", b"0123456789abcdef\n", 0o600);
    assert!(!dry("good").expect_code(0).err().contains("R0012"));
    for readable in [0o640, 0o604, 0o644] {
        mode("readable", b"0123456789abcdef\n", readable);
        dry("readable").expect_code(0).expect_err("notice[R0012]: other users of this host can read the token file");
    }
    mode("short", b"0123456789abcde\n", 0o600);
    let short = dry("short");
    short.expect_code(0).expect_err("notice[R0012]: the token has fewer than 16 characters and can be guessed");
    assert_eq!(short.err().matches("R0012").count(), 1);
}
