//! `wait`.

use std::fs;
use std::time::Duration;

use umiak_testkit::suite::Suite;

use super::Runs;

pub(super) fn register(suite: &mut Suite) {
    suite.test("history::wait_gives_up_in_time", &[], timeout);
    suite.test("history::wait_has_the_runs_code", &[], codes).test("history::wait_ends_with_the_run", &[], ends).test(
        "history::wait_ends_when_the_supervisor_is_lost",
        &[],
        lost,
    );
}

fn codes() {
    let runs = Runs::new();
    for name in ["v1-success", "v1-job-restart", "v1-timed-out"] {
        runs.fixture(name);
    }
    runs.umiak("wait 1").finish().expect_code(0);
    runs.umiak("wait 2").finish().expect_code(3);
    let several = runs.umiak("wait 1 2 3").finish();
    several.expect_code(143);
    assert_eq!(
        several.out(),
        "✓ run-000001 ctr-dnn succeeded\n✗ run-000002 bert-ft failed with 3\n✗ run-000003 eval failed with 143\n"
    );
    let json = runs.umiak("wait 2 --output json").finish();
    let json: serde_json::Value = serde_json::from_str(&json.out()).expect("JSON");
    assert_eq!(json["runs"][0]["code"], 3);
    runs.umiak("wait").finish().expect_code(143);
    runs.umiak("wait 9").finish().expect_code(2);
}

fn ends() {
    let runs = Runs::new();
    let (_, mut live) = runs.live("v1-job-restart", 8);
    let mut running = runs.umiak("wait 1 --output quiet").start();
    let pid = running.pid();
    // It does not wake up while nothing is written.
    running.wait_until("it sleeps without waking up", || {
        let before = wakes(pid);
        std::thread::sleep(Duration::from_millis(200));
        is_watching(pid) && wakes(pid) == before
    });
    assert!(running.is_running());
    live.go_on(99);
    let outcome = running.finish();
    outcome.expect_code(3);
    assert_eq!(outcome.out(), "");
}

/// True if the process sleeps and has an inotify descriptor.
fn is_watching(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let is_asleep = stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" S"));
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut targets = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    is_asleep && targets.any(|target| target.to_string_lossy().contains("inotify"))
}

/// Number of times the process went to sleep.
fn wakes(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap_or_default().to_owned()
}

fn lost() {
    let runs = Runs::new();
    let (run, live) = runs.live("v1-job-restart", 8);
    fs::write(run.document(), "umiak: v1\n").expect("written");
    let running = runs.umiak("wait 1").start();
    drop(live);
    let outcome = running.finish();
    outcome.expect_code(125).expect_err("error[J0007]: `run-000001` did not finish: its supervisor died");
    outcome.expect_err("hint: `umiak resume run-000001` continues it");
}

fn timeout() {
    let runs = Runs::new();
    let (_, mut live) = runs.live("v1-job-restart", 8);
    for line in ["wait --timeout 50ms", "wait 1 --timeout 0 --output json"] {
        let outcome = runs.umiak(line).finish();
        outcome.expect_code(124).expect_err("error[J0012]: `run-000001` has not ended after");
        assert!(outcome.out().is_empty() || outcome.out().contains("\"status\": \"stopping\""), "{}", outcome.out());
    }
    live.go_on(99);
    runs.umiak("wait --timeout 60").finish().expect_code(3);
    assert!(runs.err("wait 1 --timeout soon", 2).contains("soon"));
}
