//! `rm` and `gc`.

use std::fs;

use umiak_testkit::suite::Suite;

use super::{Runs, first, fixture};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("history::rm_removes", &[], removes)
        .test("history::rm_refuses_live_runs", &[], refuses)
        .test("history::gc_takes_old_ones", &[], old)
        .test("history::gc_keeps_runs_whose_job_is_in_a_cluster", &[], unfinished)
        .test("history::gc_takes_old_logs_of_detached_launches", &[], detached_logs)
        .test("history::gc_keeps_a_size", &[], keeps_size);
}

fn removes() {
    let runs = Runs::new();
    for _ in 0..3 {
        runs.fixture("v1-stopped");
    }
    runs.with_journal("no journal\nat all\n");
    runs.out("ls");
    assert!(runs.out("rm 2 run-000002").starts_with("removed run-000002  "));
    assert_eq!(runs.out("ls --output quiet"), "run-000004\nrun-000003\nrun-000001\n");
    assert!(runs.err("rm 1 2", 2).contains("there is no run `2`"), "all or none");
    assert_eq!(runs.out("rm 4 3 --output quiet"), "run-000004\nrun-000003\n");
    assert_eq!(runs.sandbox.list("state/runs"), ["run-000001"]);
    assert_eq!(runs.fixture("v1-stopped").id().to_string(), "run-000005", "numbers are not used twice");
}

fn refuses() {
    let runs = Runs::new();
    runs.fixture("v1-stopped");
    let (_, mut live) = runs.live("v1-success", 8);
    let text = runs.err("rm 1 2", 2);
    assert!(text.contains("error[J0006]: `run-000002` is still running"), "{text}");
    assert!(text.contains("hint: stop it with `umiak stop run-000002`"), "{text}");
    live.go_on(99);
    // The end is recorded, but the supervisor still holds the lock.
    assert!(runs.err("rm 2", 2).contains("error[J0006]"));
    assert_eq!(runs.sandbox.list("state/runs"), ["run-000001", "run-000002"]);
    drop(live);
    runs.out("rm 1 2");
    assert_eq!(runs.sandbox.list("state/runs"), [""; 0]);
}

fn detached_logs() {
    let runs = Runs::new();
    fs::create_dir_all(runs.home.path()).expect("made");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(40 * 86_400);
    let log = |name: &str, is_old: bool| {
        let file = fs::File::create(runs.home.path().join(name)).expect("made");
        if is_old {
            file.set_modified(old).expect("set");
        }
        file
    };
    log("detached-1.log", true);
    log("detached-2.log", false);
    log("other.log", true);
    let mut user = std::process::Command::new("sleep");
    let mut user = user.arg("60").stderr(log("detached-3.log", true)).spawn().expect("it starts");
    let logs = || runs.sandbox.list("state").into_iter().filter(|name| name.contains(".log")).collect::<Vec<_>>();
    runs.out("gc --dry-run");
    assert_eq!(logs().len(), 4);
    runs.out("gc");
    assert_eq!(logs(), ["detached-2.log", "detached-3.log", "other.log"]);
    user.kill().and_then(|()| user.wait()).expect("it ends");
    runs.out("gc --keep-size 1G");
    assert_eq!(logs().len(), 3);
    runs.out("gc --older-than 1d");
    assert_eq!(logs(), ["detached-2.log", "other.log"]);
}

/// Returns the fixture's journal with all times set to this many days ago.
fn aged(name: &str, days: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_micros() as u64;
    let text = fixture(name);
    let lines = text.lines().map(|line| {
        let mut record: serde_json::Value = serde_json::from_str(line).expect("a record");
        record["at"] = (now - days * 86_400_000_000).into();
        format!("{record}\n")
    });
    lines.collect()
}

fn old() {
    let runs = Runs::new();
    runs.with_journal(&aged("v1-success", 40));
    runs.with_journal(&aged("v1-stopped", 10));
    let unfinished: String = first(&aged("v1-success", 40), 8);
    runs.with_journal(&unfinished);
    let (_, live) = runs.live("v1-success", 8);
    let rehearsal = runs.out("gc --dry-run");
    assert!(
        rehearsal.contains("would remove run-000001") && rehearsal.contains("would remove run-000003"),
        "{rehearsal}"
    );
    assert!(rehearsal.contains("would remove 2 runs, "), "{rehearsal}");
    assert_eq!(runs.out("ls --output quiet").lines().count(), 4);
    fs::create_dir(runs.home.runs().join(".removed-run-000009")).expect("made");
    assert_eq!(runs.out("gc --output quiet"), "run-000001\nrun-000003\n");
    assert_eq!(runs.out("gc --older-than 5d --output quiet"), "run-000002\n");
    assert_eq!(runs.sandbox.list("state/runs"), ["run-000004"], "live runs are kept");
    drop(live);
    assert!(runs.err("gc --older-than soon", 2).contains("expected a duration such as `10s`"));
    assert!(runs.err("gc --older-than 30", 2).contains("write the unit, as in `2d`"));
}

fn unfinished() {
    let runs = Runs::new();
    let lost: String = first(&aged("v1-success", 40), 8);
    for journal in [&lost, &lost, &aged("v1-success", 40)] {
        let run = runs.with_journal(journal);
        let unit = run.path().join("units/0.1");
        fs::create_dir_all(&unit).expect("made");
        // The supervisor removes it when the job of the cluster has ended.
        fs::write(unit.join("unit.json"), "{}").expect("written");
    }
    runs.with_journal(&lost);
    let rehearsal = runs.umiak("gc --dry-run").finish();
    rehearsal.expect_code(0).expect_out("would remove 2 runs").expect_err("notice[J0036]: 2 runs are kept");
    for flags in ["--output quiet", "--keep-size 0 --output quiet"] {
        let outcome = runs.umiak(&format!("gc {flags}")).finish();
        outcome.expect_code(0).expect_err("run-000001, run-000002").expect_err("`umiak stop run-000001` ends it");
    }
    assert_eq!(runs.sandbox.list("state/runs"), ["run-000001", "run-000002"]);
    assert!(runs.err("rm 2", 125).contains("error[J0036]"));
    fs::remove_file(runs.home.path().join("runs/run-000002/units/0.1/unit.json")).expect("removed");
    runs.umiak("gc --output quiet").finish().expect_code(0).expect_err("notice[J0036]: `run-000001` is kept");
    assert_eq!(runs.sandbox.list("state/runs"), ["run-000001"]);
}

fn keeps_size() {
    let runs = Runs::new();
    for _ in 0..3 {
        let run = runs.fixture("v1-stopped");
        Runs::log(&run, "trainer-0", 1, vec![b'x'; 1 << 20]);
    }
    assert_eq!(runs.out("gc --keep-size 10M --output quiet"), "");
    assert_eq!(runs.out("gc --keep-size 2500K --output quiet"), "run-000001\n");
    let json: serde_json::Value = serde_json::from_str(&runs.out("gc --keep-size 0 --output json")).expect("JSON");
    assert_eq!(json["removed"].as_array().map(Vec::len), Some(2));
    assert!(json["bytes"].as_u64().is_some_and(|bytes| bytes > 2 << 20));
}
