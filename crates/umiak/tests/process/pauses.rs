//! What a user sees of a job between two attempts.

use serde_json::Value;
use umiak_testkit::sandbox::{Running, Sandbox};
use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::Session;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pauses::the_log_is_of_the_last_attempt_that_ran", &[], log_of_the_last)
        .test("pauses::an_ended_run_shows_how_its_last_attempt_ended", &[], ended)
        .test("pauses::a_retry_after_a_pause_counts_on", &[], retried)
        .test("pauses::many_attempts_are_shown_in_short", &[], many)
        .test("pauses::the_status_line_says_when_it_goes_on", &[], status_line);
}

/// The first attempt fails and restarts at once; the second one is killed and waits for long.
const DOCUMENT: &str = "
umiak: v1
name: again
policy: {restarts: {max: 3, backoff: 1ms, platform_backoff: 10m, max_backoff: 10m}, exits: pai}
roles:
  w: {replicas: 2, command: 'echo attempt $UMIAK_ATTEMPT; test -e go || case $UMIAK_ATTEMPT in 1) exit 5;; *) kill -KILL $$;; esac'}
";

fn show(sandbox: &Sandbox) -> Value {
    let outcome = sandbox.umiak(["show", "--output", "json"]).start().finish_unchecked();
    serde_json::from_str(&outcome.out()).unwrap_or_default()
}

fn out(sandbox: &Sandbox, line: &str) -> String {
    sandbox.umiak(line.split(' ')).start().finish_unchecked().expect_code(0).out()
}

/// A job that waits after its second attempt.
fn paused(sandbox: &Sandbox) -> Running<'_> {
    sandbox.write("job.yaml", DOCUMENT);
    let running = sandbox.umiak(["run", "job.yaml"]).start();
    running.wait_until("the pause", || show(sandbox)["restarts"].as_array().is_some_and(|list| list.len() == 2));
    running
}

fn stop(sandbox: &Sandbox, running: Running<'_>) {
    sandbox.umiak(["stop"]).start().finish_unchecked().expect_code(0);
    running.finish();
}

fn status_line() {
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", DOCUMENT);
    let mut session = Session::start(&sandbox, (100, 30), &["run".to_owned(), "job.yaml".to_owned()]);
    let waits = |screen: &[String]| screen.iter().any(|line| line.contains("attempt 3 starts at "));
    session.wait_for("the time of the next attempt", waits);
    session.type_keys(b"\x03");
    let (status, _) = session.finish();
    assert_eq!(status.code(), Some(130));
}

fn log_of_the_last() {
    let sandbox = Sandbox::new();
    let running = paused(&sandbox);
    let check = |when: &str| {
        for place in 0..2 {
            let log = show(&sandbox)["replicas"][place]["log"].as_str().expect("a path").to_owned();
            assert!(log.ends_with(&format!("tasks/w-{place}/attempt-2/log")), "{when}: {log}");
        }
        let text = out(&sandbox, "show");
        assert!(!text.contains("attempt-1/log"), "{when}\n{text}");
        let pai: Value = serde_json::from_str(&out(&sandbox, "show --as pai --output json")).expect("JSON");
        let log = pai["taskRoles"]["w"]["taskStatuses"][1]["containerLog"].as_str().expect("a path");
        assert!(log.ends_with("tasks/w-1/attempt-2/log"), "{when}: {log}");
        assert_eq!(out(&sandbox, "logs"), "attempt 2\n", "{when}");
    };
    check("in the pause");
    stop(&sandbox, running);
    check("after the stop");
}

fn ended() {
    let sandbox = Sandbox::new();
    let running = paused(&sandbox);
    assert!(out(&sandbox, "show").contains("· waiting"));
    stop(&sandbox, running);
    let text = out(&sandbox, "show");
    assert!(!text.contains("waiting") && !text.contains("tolerated"), "{text}");
    for replica in show(&sandbox)["replicas"].as_array().expect("replicas") {
        assert_eq!((&replica["attempt"], &replica["stage"]["status"]), (&2.into(), &"ended".into()), "{replica:#}");
        assert_eq!(replica["past"].as_array().map(Vec::len), Some(1), "{replica:#}");
    }
}

fn retried() {
    let sandbox = Sandbox::new();
    let running = paused(&sandbox);
    stop(&sandbox, running);
    sandbox.write("go", "");
    sandbox.umiak(["retry"]).start().finish_unchecked().expect_code(0);
    for replica in show(&sandbox)["replicas"].as_array().expect("replicas") {
        let past: Vec<u64> =
            replica["past"].as_array().expect("a list").iter().filter_map(|past| past["attempt"].as_u64()).collect();
        assert_eq!((replica["attempt"].as_u64(), past), (Some(3), vec![1, 2]), "{replica:#}");
    }
    assert_eq!(out(&sandbox, "logs"), "attempt 3\n");
}

fn many() {
    let sandbox = Sandbox::new();
    let document = "
umiak: v1
policy: {restarts: {max: 20, backoff: 1ms, max_backoff: 1ms}}
roles: {w: {command: 'exit $UMIAK_ATTEMPT'}}
";
    sandbox.write("job.yaml", document);
    sandbox.umiak(["run", "job.yaml"]).finish().expect_code(21);
    let text = out(&sandbox, "show");
    let expected = "  21 (… 18: exited with 18; 19: exited with 19; 20: exited with 20)  ";
    assert!(text.contains(expected), "{text}");
    let shown = show(&sandbox);
    assert_eq!(shown["replicas"][0]["past"].as_array().map(Vec::len), Some(20), "JSON has all of them");
    let ascii = out(&sandbox, "show --ascii");
    assert!(ascii.contains("  21 (... 18: "), "{ascii}");
}
