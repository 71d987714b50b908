//! Launched jobs are recorded: their facts, and where their logs are.

use serde_json::Value;
use umiak_testkit::components::Component::Netns;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

use crate::nodes::Cluster;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("recorded::what_is_printed_is_what_is_recorded", &[], printed)
        .test("recorded::a_launch_is_named_by_its_script", &[], named)
        .test("recorded::a_failure_is_explained_afterwards", &[], explained)
        .test("recorded::a_run_shows_its_own_part_of_a_log", &[], own_part)
        .test("recorded::each_attempt_has_its_part_of_a_log", &[], attempts)
        .test("recorded::not_where_it_is_not_wanted", &[], unwanted)
        .test("recorded::a_home_that_cannot_be_used_stops_nobody", &[], unusable)
        .test("recorded::a_third_signal_ends_the_record", &[], third_signal)
        .test("recorded::there_is_nothing_to_resume", &[], nothing_to_resume)
        .test("recorded::of_several_nodes_the_coordinators", &[Netns], several);
}

/// Returns the stdout of a command about runs.
#[track_caller]
fn out(sandbox: &Sandbox, line: &str) -> String {
    let outcome = sandbox.umiak(line.split_whitespace()).finish();
    outcome.expect_code(0);
    outcome.out()
}

fn runs(sandbox: &Sandbox) -> Vec<Value> {
    let listed: Value = serde_json::from_str(&out(sandbox, "ls --output json")).expect("JSON");
    listed["runs"].as_array().cloned().unwrap_or_default()
}

fn printed() {
    let sandbox = Sandbox::new();
    let printed = sandbox.launch_toy("--nproc_per_node 2 --output json", &["*:print hello"]).finish();
    printed.expect_code(0);
    assert_eq!(out(&sandbox, "events 1 --output json"), printed.out(), "to the byte");
    let runs = runs(&sandbox);
    assert_eq!((runs.len(), &runs[0]["status"]), (1, &"succeeded".into()));
}

/// The run is named after the script; the job keeps the id used in Paddle's file names.
fn named() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path().join("tools")).expect("the sandbox can be written");
    sandbox.write("tools/train.sh", "#!/bin/sh\necho hello\n");
    let launch = |flags: &[&str]| {
        let script = ["/bin/sh", "tools/train.sh", "--api-key", "s3cret", "a b"];
        sandbox.umiak(["launch"].iter().chain(flags).chain(&script)).finish().expect_code(0);
    };
    launch(&["--nproc_per_node", "1"]);
    launch(&["--job_id", "nightly"]);
    let runs = runs(&sandbox);
    let line = "umiak launch --nproc_per_node 1 /bin/sh tools/train.sh --api-key '********' 'a b'";
    assert_eq!((&runs[1]["name"], &runs[1]["command"]), (&"train".into(), &line.into()));
    assert_eq!(runs[0]["name"], "nightly");
    let listed = out(&sandbox, "ls");
    assert!(listed.contains("train") && listed.contains(line), "{listed}");
    let shown = out(&sandbox, "show train");
    assert!(
        shown.starts_with("✓ run-000001 train succeeded\n  command     umiak launch --nproc_per_node 1"),
        "{shown}"
    );
    let json: Value = serde_json::from_str(&out(&sandbox, "show nightly --output json")).expect("JSON");
    assert_eq!((&json["run"], &json["name"]), (&"run-000002".into(), &"nightly".into()));
    assert!(sandbox.list("log").iter().any(|name| name.starts_with("default.")), "{:?}", sandbox.list("log"));
    let planned = out(&sandbox, "events 1 --output json");
    assert!(planned.contains("\"job\":\"default\"") && !planned.contains("s3cret"), "{planned}");
}

fn explained() {
    let sandbox = Sandbox::new();
    let failed = sandbox.launch_toy("--nproc_per_node 2", &["0:sleep 60000", "1:err ValueError: bad batch;exit 7"]);
    let failed = failed.finish();
    failed.expect_code(7).expect_err("umiak explain run-000001");
    let explained = out(&sandbox, "explain run-000001");
    assert!(explained.contains("rank 1") && explained.contains("ValueError: bad batch"), "{explained}");
    assert!(out(&sandbox, "logs 1").contains("ValueError: bad batch"), "the cause's log is the one to show");
}

fn own_part() {
    let sandbox = Sandbox::new();
    for word in ["first", "second", "third"] {
        sandbox.launch_toy("--nproc_per_node 1", &[&format!("0:print {word}")]).finish().expect_code(0);
    }
    assert_eq!(sandbox.read("log/workerlog.0"), "first\nsecond\nthird\n");
    for (run, word) in ["first", "second", "third"].iter().enumerate() {
        assert_eq!(out(&sandbox, &format!("logs {}", run + 1)), format!("{word}\n"));
    }
}

fn attempts() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "fails.sh",
        "#!/bin/sh\necho attempt $((TORCHELASTIC_RESTART_COUNT + 1))\n[ $TORCHELASTIC_RESTART_COUNT = 2 ]\n",
    );
    let flags = ["launch", "--nproc_per_node", "1", "--max_restart", "2", "--restart-backoff", "1ms"];
    let run = sandbox.umiak(flags.into_iter().chain(["/bin/sh", "fails.sh"])).finish();
    run.expect_code(0);
    for attempt in 1..=3 {
        assert_eq!(out(&sandbox, &format!("logs 1 --attempt {attempt}")), format!("attempt {attempt}\n"));
    }
}

fn unwanted() {
    let sandbox = Sandbox::new();
    sandbox.launch_toy("--nproc_per_node 1 --no-record", &["0:print hello"]).finish().expect_code(0);
    sandbox.launch_toy("--nproc_per_node 1 --dry-run", &["0:print hello"]).finish().expect_code(0);
    assert_eq!(runs(&sandbox), Vec::<Value>::new());
}

fn unusable() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("file", "");
    for home in [file.join("home"), "/proc/nowhere".into()] {
        let run = sandbox.launch_toy("--nproc_per_node 1", &["0:print hello"]).env("UMIAK_HOME", &home);
        let outcome = run.finish();
        outcome.expect_code(0).expect_err("notice[J0001]: this run is not recorded");
        assert_eq!(outcome.out(), "hello\n");
    }
}

fn third_signal() {
    let sandbox = Sandbox::new();
    let stubborn = "0:stubborn;touch up.0;sleep 60000";
    let run = sandbox.launch_toy("--nproc_per_node 1 --grace 300ms", &[stubborn]).start();
    run.wait_for_file("up.0");
    run.signal(19);
    for signal in [1, 2, 15] {
        run.signal(signal);
    }
    run.signal(18);
    run.finish_unchecked().expect_code(128 + 15);
    assert_eq!(runs(&sandbox)[0]["status"], "interrupted");
    // The guardian finishes on its own.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !sandbox.processes().is_empty() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    sandbox.assert_nothing_left();
}

fn nothing_to_resume() {
    let sandbox = Sandbox::new();
    sandbox.launch_toy("--nproc_per_node 1", &["0:exit 3"]).finish().expect_code(3);
    for command in ["resume", "retry"] {
        let outcome = sandbox.umiak([command, "1"]).finish();
        // Both give the same answer: hints that name each other would loop.
        outcome
            .expect_code(2)
            .expect_err("error[J0028]: run-000001 was started with `umiak launch`")
            .expect_err("failed, code 3");
        outcome.expect_err("hint: start it again with `umiak launch --nproc_per_node 1 ");
    }
}

fn several() {
    let cluster = Cluster::new(2);
    let outcomes = cluster.run("--ips 192.168.0.1,192.168.0.2 --nproc_per_node 2", &["*:print hello"]);
    for outcome in outcomes {
        outcome.expect_code(0);
    }
    let recorded: Vec<usize> = cluster.sandboxes.iter().map(|sandbox| runs(sandbox).len()).collect();
    assert_eq!(recorded, [1, 0], "the coordinator's node records");
}
