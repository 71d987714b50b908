//! `--gather-logs`: all logs reach the coordinator, despite failures on the way.

use std::path::Path;
use std::time::Duration;

use umiak_testkit::components::Component::{Namespaces, Netns};
use umiak_testkit::net::Relay;
use umiak_testkit::sandbox::{Outcome, Sandbox, binary, toy};
use umiak_testkit::suite::Suite;

use super::{Cluster, finish};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("nodes::logs::of_all_nodes_are_gathered", &[Netns], gathered)
        .test("nodes::logs::survive_a_cut", &[Netns], cut)
        .test("nodes::logs::survive_the_death_of_connections", &[Netns], broken)
        .test("nodes::logs::of_a_crash_are_complete", &[Netns], crash)
        .test("nodes::logs::of_restarts_go_on", &[Netns], restarts)
        .test("nodes::logs::in_a_shared_directory_are_left_alone", &[Netns], shared)
        .test("nodes::logs::a_full_disk_costs_copies_only", &[Netns, Namespaces], full_disk)
        .test("nodes::logs::a_coordinator_that_gathers_none_says_so", &[Netns], not_wanted)
        .test("nodes::logs::ctrl_c_gives_up", &[Netns], given_up)
        .test("nodes::logs::a_killed_node_holds_up_nobody", &[Netns], killed);
}

const FLAGS: &str = "--ips $IPS --nproc_per_node 2 --gather-logs";

fn bytes(sandbox: &Sandbox, rank: usize) -> Vec<u8> {
    sandbox.read_if_there(&format!("log/workerlog.{rank}")).unwrap_or_else(|| panic!("no log of rank {rank}"))
}

/// Fails unless the coordinator has exactly the logs of all nodes.
#[track_caller]
fn assert_gathered(cluster: &Cluster) {
    assert_gathered_in(&cluster.sandboxes);
}

#[track_caller]
fn assert_gathered_in(sandboxes: &[Sandbox]) {
    let first = &sandboxes[0];
    for rank in 0..2 * sandboxes.len() {
        let (own, copy) = (bytes(&sandboxes[rank / 2], rank), bytes(first, rank));
        assert!(own == copy, "rank {rank}: {} bytes on its node, {} gathered", own.len(), copy.len());
    }
    assert_eq!(first.list("log").iter().filter(|name| name.starts_with("workerlog")).count(), 2 * sandboxes.len());
    for sandbox in &sandboxes[1..] {
        assert_eq!(sandbox.list("log").iter().filter(|name| name.starts_with("workerlog")).count(), 2);
    }
}

#[track_caller]
fn all_well(outcomes: &[Outcome]) {
    for outcome in outcomes {
        outcome.expect_code(0);
        assert!(!outcome.err().contains("R0010"), "{}", outcome.err());
    }
}

fn gathered() {
    let cluster = Cluster::new(3);
    let actions: &[&str] = &[
        "2:flood 50000000",
        "3:partial \\xff\\xfe\\x00a\\x80",
        "4:print hello;flood 300000;err \\xc3\\x28",
        "0:flood 70",
    ];
    all_well(&cluster.run(FLAGS, actions));
    assert_eq!(bytes(&cluster.sandboxes[0], 2).len(), 50_000_000);
    assert_gathered(&cluster);
    // A second run appends on both sides; with `--log_overwrite` it replaces the files.
    let before = bytes(&cluster.sandboxes[0], 4).len();
    all_well(&cluster.run(FLAGS, &["4:print again"]));
    assert_eq!(bytes(&cluster.sandboxes[0], 4).len(), before + 6);
    assert_gathered(&cluster);
    all_well(&cluster.run(&format!("{FLAGS} --log_overwrite true"), &["4:print anew"]));
    assert_eq!(bytes(&cluster.sandboxes[0], 4), b"anew\n");
    assert_eq!(bytes(&cluster.sandboxes[0], 2), b"");
    assert_gathered(&cluster);
    let outcome = cluster.sandboxes[0].umiak(["logs", "3", "4"]).finish();
    outcome.expect_code(125).expect_err("`trainer-4` ran on node 192.168.0.3;").expect_err("/log/workerlog.4\n");
}

/// Connections survive lost packets and a link that goes down.
fn cut() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let (first, second) = (cluster.network.host(0), cluster.network.host(1));
    let flags = format!("{FLAGS} --node-timeout 20s");
    let runs = cluster.launch_all(&flags, &["2,3:flood 2000000;touch up;await go;flood 3000000", "*:await go"]);
    runs[1].wait_for_file("up");
    // Probably in the middle of the transfer.
    first.cut(second);
    cluster.sandboxes[1].write("go", "");
    std::thread::sleep(Duration::from_secs(2));
    first.join(second);
    second.link_down();
    std::thread::sleep(Duration::from_secs(1));
    second.link_up();
    cluster.go();
    all_well(&finish(runs));
    assert_gathered(&cluster);
    snapshot.assert_as_before();
}

/// All connections of a node break, while its ranks run and while the rest of their logs is sent.
fn broken() {
    // The third host relays between the second and the first.
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let (first, third) = (cluster.network.host(0), cluster.network.host(2));
    let relay = || Relay::start(third, third.at(7001), first.at(7000), Duration::ZERO);
    let flags = "--nnodes 2 --nproc_per_node 2 --gather-logs --master";
    let actions: &[&str] = &["2:flood 3000000;await go;flood 20000000", "3:print hello;await go;print bye"];
    let coordinator = cluster.launch(0, &format!("{flags} {}", first.at(7000)), actions);
    coordinator.wait_until("the coordinator", || first.listening_ports().contains(&7000));
    let mut way = relay();
    let node = cluster.launch(1, &format!("{flags} {}", way.address()), actions);
    for length in [500_000, 3_500_000, 12_000_000] {
        coordinator.wait_until("some of it", || {
            let copy = std::fs::metadata(cluster.sandboxes[0].path().join("log/workerlog.2"));
            copy.is_ok_and(|copy| copy.len() > length)
        });
        drop(way);
        way = relay();
        cluster.go();
    }
    all_well(&finish(vec![coordinator, node]));
    assert_gathered_in(&cluster.sandboxes[..2]);
    drop(way);
    snapshot.assert_as_before();
}

fn crash() {
    let cluster = Cluster::new(3);
    let outcomes =
        cluster.run(FLAGS, &["*:print begin", "5:flood 100000;err RuntimeError:\\sdead;exit 7", "*:sleep 60000"]);
    for outcome in &outcomes {
        outcome.expect_code(7).expect_err("rank=[5]");
    }
    assert!(bytes(&cluster.sandboxes[0], 5).ends_with(b"RuntimeError: dead\n"));
    assert_gathered(&cluster);
}

fn restarts() {
    let cluster = Cluster::new(2);
    let flags = format!("{FLAGS} --max_restart 2 --restart-backoff 10ms");
    let outcomes = cluster.run(&flags, &["*:print begin;flood 100000", "3@1:exit 1", "2@2:exit 1", "*:sleep 100"]);
    for outcome in &outcomes {
        outcome.expect_code(0);
    }
    for rank in [2, 3] {
        // A rank that is stopped early may not have printed it.
        let begun = String::from_utf8_lossy(&bytes(&cluster.sandboxes[0], rank)).matches("begin").count();
        assert!(begun >= 2, "rank {rank} began {begun} times");
    }
    assert_gathered(&cluster);
}

fn shared() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let directory = cluster.sandboxes[0].path().join("log");
    let flags = format!("{FLAGS} --log_overwrite true --log_dir {}", directory.display());
    let runs = (0..2).map(|host| cluster.launch(host, &flags, &["*:print hello;flood 100000"])).collect();
    let outcomes = finish(runs);
    outcomes[0].expect_code(0);
    outcomes[1].expect_code(0).expect_err("R0010").expect_err("the coordinator uses the same log directory");
    for rank in 0..4 {
        assert_eq!(bytes(&cluster.sandboxes[0], rank).len(), 100_006, "rank {rank}");
    }
    snapshot.assert_as_before();
}

fn full_disk() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let flags = FLAGS.replace("$IPS", &cluster.network.ips());
    let sandbox = &cluster.sandboxes[0];
    std::fs::create_dir(sandbox.path().join("small")).expect("the sandbox can be written");
    let actions = "'2:flood 3000000' '3:print hello;await go'";
    let line = format!("{} launch {flags} --log_dir small/log '{}' toy {actions}", binary().display(), toy());
    let script = format!(
        "mount -t tmpfs -o size=256k tmpfs small || exit 99\n{line}\ncode=$?\ncp -r small/log log\nexit $code\n"
    );
    sandbox.write("line", script);
    let words = ["--user", "--map-root-user", "--mount", "sh", "line"];
    let first = sandbox.program(Path::new("unshare"), words).on(cluster.network.host(0)).start();
    let second = cluster.launch(1, FLAGS, &["2:flood 3000000;touch up", "3:print hello;await go"]);
    second.wait_for_file("up");
    cluster.go();
    let outcomes = finish(vec![first, second]);
    outcomes[0].expect_code(0).expect_err("workerlog.2` cannot be gathered").expect_err("No space left on device");
    // The other rank's log may be incomplete too.
    outcomes[0].expect_err("not complete here");
    assert_eq!(outcomes[0].err().matches("cannot be gathered").count(), 1);
    outcomes[1].expect_code(0);
    assert_eq!(bytes(&cluster.sandboxes[1], 2).len(), 3_000_000, "the node's own log is complete");
    assert!(bytes(sandbox, 2).len() < 256 << 10);
    snapshot.assert_as_before();
}

fn not_wanted() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let without = FLAGS.replace(" --gather-logs", "");
    let actions: &[&str] = &["*:print hello;await go"];
    let runs = vec![cluster.launch(0, &without, actions), cluster.launch(1, FLAGS, actions)];
    std::thread::sleep(Duration::from_secs(1));
    cluster.go();
    let outcomes = finish(runs);
    outcomes[0].expect_code(0);
    outcomes[1].expect_code(0).expect_err("the coordinator runs without `--gather-logs`");
    assert_eq!(cluster.sandboxes[0].list("log").iter().filter(|name| name.starts_with("workerlog")).count(), 2);
    // Conversely, the coordinator expects nothing and does not wait.
    let runs = vec![cluster.launch(0, FLAGS, actions), cluster.launch(1, &without, actions)];
    all_well(&finish(runs));
    snapshot.assert_as_before();
}

/// A node becomes unreachable before the end of its logs is gathered.
fn given_up() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let (first, second) = (cluster.network.host(0), cluster.network.host(1));
    let actions: &[&str] = &["*:print hello;touch up;await go"];
    let runs = cluster.launch_all(FLAGS, actions);
    for run in &runs {
        run.wait_for_file("up");
    }
    runs[0].wait_until("both copies", || {
        cluster.sandboxes[0].read_if_there("log/workerlog.3").is_some_and(|copy| copy == b"hello\n")
    });
    first.cut(second);
    runs[0].signal(2);
    runs[1].signal(2);
    // The ranks end at once; the rest of the other node's logs never arrives.
    let end = |host: usize| {
        let sandbox = &cluster.sandboxes[host];
        runs[host]
            .wait_until("the ranks' end", || sandbox.processes().iter().all(|(_, line)| line.contains(" launch ")));
        std::thread::sleep(Duration::from_secs(1));
        runs[host].signal(2);
    };
    end(0);
    end(1);
    let outcomes = finish(runs);
    outcomes[0].expect_code(130).expect_err("the logs of other nodes are not complete here");
    outcomes[1].expect_code(130);
    first.join(second);
    snapshot.assert_as_before();
}

/// The guardian reports the end of its node, so the coordinator does not wait for its logs.
fn killed() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_all(FLAGS, &["*:print hello;touch up;sleep 60000"]);
    for run in &runs {
        run.wait_for_file("up");
    }
    runs[1].signal(9);
    let outcomes = finish(runs);
    outcomes[0].expect_code(123).expect_err("its umiak was killed");
    outcomes[0].expect_err("the logs of ranks 2-3 are not complete here");
    snapshot.assert_as_before();
}
