//! Several launches with one log directory: each writes, explains and shows only its own lines.

use umiak_testkit::components::Component::{Netns, Python};
use umiak_testkit::sandbox::{Running, Sandbox};
use umiak_testkit::suite::Suite;

use crate::nodes::{Cluster, finish};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("log_dir::a_later_launch_writes_below_it", &[], later_launch)
        .test("log_dir::without_a_record_the_process_names_it", &[], unrecorded)
        .test("log_dir::free_again_when_the_first_was_killed", &[], killed)
        .test("log_dir::held_until_the_ranks_of_a_killed_launch_are_gone", &[], killed_with_ranks)
        .test("log_dir::rotated_logs_of_several_runs", &[Python], rotated)
        .test("log_dir::runs_of_the_same_number", &[], same_number)
        .test("log_dir::a_log_that_was_overwritten_is_not_shown", &[], overwritten)
        .test("log_dir::a_killed_run_ends_where_the_next_begins", &[], killed_run_ends)
        .test("log_dir::nodes_of_one_job_share_it", &[Netns], nodes_share);
}

/// Starts a launch that prints `first`, and fails once the file `fail` exists.
fn first(sandbox: &Sandbox) -> Running<'_> {
    let actions = ["0:print first;touch up;await fail;err ValueError: the first;exit 7"];
    let run = sandbox.launch_toy("--nproc_per_node 1", &actions).start();
    run.wait_for_file("up");
    run
}

fn later_launch() {
    let sandbox = Sandbox::new();
    let running = first(&sandbox);
    let later = sandbox.launch_toy(
        "--nproc_per_node 2",
        &["0:print second;touch printed", "1:await printed;err KeyError: the second;exit 3"],
    );
    let later = later.start().finish_unchecked();
    later.expect_code(3);
    let said = later.err().matches("`./log` is in use by another launch").count();
    assert_eq!(said, 1, "said once:\n{}", later.err());
    later
        .expect_err("logs ./log/run-000002")
        .expect_err("KeyError: the second")
        .expect_err("./log/run-000002/workerlog.1");
    assert!(!later.err().contains("the first") && !later.out().contains("first"), "{}{}", later.out(), later.err());
    for file in ["workerlog.0", "workerlog.1", "endpoints.log"] {
        assert!(sandbox.path().join("log/run-000002").join(file).exists(), "{file}");
    }
    assert_eq!(sandbox.read("log/workerlog.0"), "first\n");
    sandbox.write("fail", "");
    let first = running.finish();
    first.expect_code(7).expect_err("ValueError: the first");
    assert!(!first.err().contains("second"), "{}", first.err());
    let logs = sandbox.umiak(["logs", "2", "rank", "0"]).finish();
    assert_eq!(logs.out(), "second\n");
    // The next launch has the directory to itself.
    let third = sandbox.launch_toy("--nproc_per_node 1", &["0:print third"]).finish();
    third.expect_code(0);
    assert!(!third.err().contains("in use"), "{}", third.err());
    assert_eq!(sandbox.read("log/workerlog.0"), "first\nValueError: the first\nthird\n");
}

fn unrecorded() {
    let sandbox = Sandbox::new();
    let running = first(&sandbox);
    let later = sandbox.launch_toy("--nproc_per_node 1 --no-record", &["0:print second"]).start().finish_unchecked();
    later.expect_code(0).expect_err("logs ./log/launch-");
    sandbox.write("fail", "");
    running.finish().expect_code(7);
}

fn killed() {
    let sandbox = Sandbox::new();
    let running = first(&sandbox);
    running.signal(9);
    running.finish();
    let later = sandbox.launch_toy("--nproc_per_node 1", &["0:print second"]).finish();
    later.expect_code(0);
    assert!(!later.err().contains("in use"), "{}", later.err());
}

/// The ranks of a killed launch still write, and the run lives until they are gone.
fn killed_with_ranks() {
    let sandbox = Sandbox::new();
    let actions = ["0:stubborn;print first;touch up;await go"];
    let running = sandbox.launch_toy("--nproc_per_node 1 --grace 60s", &actions).start();
    running.wait_for_file("up");
    running.signal(9);
    running.finish_unchecked();
    let later = sandbox.launch_toy("--nproc_per_node 1", &["0:print second"]).start().finish_unchecked();
    later.expect_code(0).expect_err("`./log` is in use by another launch");
    let shown = sandbox.umiak(["show", "1", "--output", "quiet"]).start().finish_unchecked();
    assert_eq!(shown.out(), "running\n");
    sandbox.write("go", "");
    let third = || {
        let third = sandbox.launch_toy("--nproc_per_node 1", &["0:print third"]).start().finish_unchecked();
        !third.err().contains("in use")
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !third() {
        assert!(std::time::Instant::now() < deadline, "the lock outlives the ranks");
    }
    sandbox.assert_nothing_left();
}

/// Each run is shown with its own lines, wherever rotation has put them.
fn rotated() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "talk.py",
        "import sys\nfor n in range(int(sys.argv[2])): print(sys.argv[1], n, 'y' * 80, flush=True)\n",
    );
    let launch = |flags: &str, name: &str, lines: usize| {
        let words = format!("launch --nproc_per_node 1 --show none {flags} python3 -u talk.py {name} {lines}");
        sandbox.umiak(words.split_whitespace()).finish().expect_code(0);
    };
    let logs = |run: &str| {
        let outcome = sandbox.umiak(["logs", run]).finish();
        let names: Vec<String> =
            outcome.out().lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        (outcome.code(), names)
    };
    let keep = "--log-max-size 4K --log-keep 1000";
    launch("", "a", 10);
    launch(keep, "b", 200);
    launch("", "c", 10);
    launch(keep, "d", 200);
    for (run, name, lines) in [("1", "a", 10), ("2", "b", 200), ("3", "c", 10), ("4", "d", 200)] {
        assert_eq!(logs(run), (0, vec![name.to_owned(); lines]));
    }
    // Rotation keeps few files, and those of later runs only.
    launch("--log-max-size 4K --log-keep 1", "e", 400);
    for run in ["1", "2", "3", "4"] {
        assert_eq!(logs(run), (125, Vec::new()), "{run}");
    }
    let (code, names) = logs("5");
    // A file may begin within a line.
    assert!(code == 0 && names.len() > 10 && names.iter().skip(1).all(|name| name == "e"), "{names:?}");
}

/// Launches with different homes have runs of the same number.
fn same_number() {
    let sandbox = Sandbox::new();
    let running = first(&sandbox);
    let launch = |home: &str, actions: &str| {
        let run = sandbox.launch_toy("--nproc_per_node 1", &[actions]);
        run.env("UMIAK_HOME", sandbox.path().join(home)).start()
    };
    let second = launch("a", "0:print second;touch up2;await fail");
    second.wait_for_file("up2");
    let third = launch("b", "0:print third").finish_unchecked();
    third.expect_code(0).expect_err("logs ./log/run-000001-2");
    assert_eq!(sandbox.read("log/run-000001/workerlog.0"), "second\n");
    assert_eq!(sandbox.read("log/run-000001-2/workerlog.0"), "third\n");
    sandbox.write("fail", "");
    second.finish_unchecked().expect_code(0);
    running.finish().expect_code(7);
}

fn overwritten() {
    let sandbox = Sandbox::new();
    let old = "0:print a first run with a longer line;print and one more";
    sandbox.launch_toy("--nproc_per_node 1", &[old]).finish().expect_code(0);
    let logs = |run: &str| sandbox.umiak(["logs", run]).finish();
    assert_eq!(logs("1").out(), "a first run with a longer line\nand one more\n");
    let new = format!("0:{}", ["print of a later run"; 9].join(";"));
    sandbox.launch_toy("--nproc_per_node 1 --log_overwrite true", &[&new]).finish().expect_code(0);
    let gone = logs("1");
    gone.expect_code(125).expect_err("the log of `trainer-0`").expect_err("was overwritten");
    assert_eq!(gone.out(), "");
    assert_eq!(logs("2").out(), "of a later run\n".repeat(9));
    // A launch that appends does not change the logs of earlier runs.
    sandbox.launch_toy("--nproc_per_node 1", &["0:print appended"]).finish().expect_code(0);
    assert_eq!(logs("2").out(), "of a later run\n".repeat(9));
    assert_eq!(logs("3").out(), "appended\n");
}

/// A killed supervisor could not record where its output ends.
fn killed_run_ends() {
    let sandbox = Sandbox::new();
    let running = first(&sandbox);
    running.signal(9);
    running.finish();
    sandbox.launch_toy("--nproc_per_node 1", &["0:print second"]).finish().expect_code(0);
    assert_eq!(sandbox.read("log/workerlog.0"), "first\nsecond\n");
    assert_eq!(sandbox.umiak(["logs", "1"]).finish().out(), "first\n");
    sandbox.launch_toy("--nproc_per_node 1 --log_overwrite true", &["0:print third"]).finish().expect_code(0);
    sandbox.umiak(["logs", "1"]).finish().expect_code(125).expect_err("was overwritten");
}

/// Files are named by global rank. A launch on one node uses another directory.
fn nodes_share() {
    let cluster = Cluster::new(2);
    let shared = cluster.sandboxes[0].path().join("shared");
    let flags = format!("--nproc_per_node 1 --log_dir {}", shared.display());
    let nodes = cluster.launch_all(&format!("--ips $IPS {flags}"), &["*:print both;touch up;await go"]);
    for node in &nodes {
        node.wait_for_file("up");
    }
    let sandbox = &cluster.sandboxes[0];
    let alone = sandbox.launch_toy(&flags, &["0:print alone"]).start().finish_unchecked();
    alone.expect_code(0).expect_err("is in use by another launch");
    let logs = sandbox.list("shared");
    assert_eq!(logs.iter().filter(|name| name.starts_with("workerlog")).count(), 2, "{logs:?}");
    assert_eq!(sandbox.read("shared/workerlog.0"), "both\n");
    // So does another job on the same nodes, before it starts.
    let other = cluster.launch_all(&format!("--ips $IPS --job_id other {flags}"), &["*:print other"]);
    for outcome in other.into_iter().map(Running::finish_unchecked) {
        outcome.expect_code(0).expect_err("is in use by another launch");
    }
    assert_eq!(sandbox.read("shared/workerlog.0"), "both\n");
    cluster.go();
    for outcome in finish(nodes) {
        outcome.expect_code(0);
        assert!(!outcome.err().contains("in use"), "{}", outcome.err());
    }
}
