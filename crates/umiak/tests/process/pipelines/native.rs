//! Native documents with `steps`.

use umiak_testkit::components::Component::Python;
use umiak_testkit::suite::Suite;

use super::Place;
use crate::frameworks::example;
use crate::run::wait_until_free;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pipelines::native::the_example_runs", &[Python], the_example)
        .test("pipelines::native::failures", &[], failures)
        .test("pipelines::native::steps_are_disabled", &[], disabled)
        .test("pipelines::native::a_retry_keeps_what_ended_well", &[], retry)
        .test("pipelines::native::a_run_is_resumed", &[], resume);
}

const SIGKILL: i32 = 9;

fn the_example() {
    for (check, end) in [("yes", "succeeded"), ("no", "skipped: condition")] {
        let place = Place::default();
        let text = std::fs::read_to_string(example("pipelines/native.yaml")).expect("the example is there");
        let parameters = [format!("script={}", example("ring_allreduce.py")), format!("check={check}")];
        place.run(&text, &["-p", &parameters[0], "-p", &parameters[1]]).finish().expect_code(0);
        place.expect_ends(&format!("succeeded, prepare succeeded, train succeeded, check {end}, clean succeeded"));
        assert!(place.log_of("train", "trainer-0").contains("rank 0"), "{}", place.log_of("train", "trainer-0"));
    }
}

/// A step is a job: it restarts, has a time limit, and variables of its own.
fn failures() {
    let document = |on_failure: &str| {
        format!(
            "umiak: v1\nname: p\non_failure: {on_failure}\nsteps:\n  bad: {{command: exit 3}}\n  after: {{after: bad, command: x}}\n  late: {{policy: {{timeout: 100ms, grace: 100ms}}, command: exec sleep 600}}\n  flaky: {{restarts: {{max: 2, backoff: 1ms}}, command: 'echo $UMIAK_STEP $UMIAK_ROLE $UMIAK_ATTEMPT $PF_RUN_ID; [ $UMIAK_ATTEMPT = 3 ]'}}\n"
        )
    };
    let place = Place::default();
    place.run(&document("continue"), &[]).finish().expect_code(1);
    place.expect_ends("failed, bad failed, after cancelled, late failed, flaky succeeded");
    let log = place.sandbox.read("state/runs/run-000001/tasks/flaky/main-0/attempt-3/log");
    assert_eq!(log, "flaky main 3\n");
    let place = Place::default();
    place.run(&document("fail_fast"), &["--disable", "late", "--disable", "flaky"]).finish().expect_code(1);
    assert_eq!(place.ends()["after"], "cancelled");
}

fn disabled() {
    let place = Place::default();
    let document = "umiak: v1\nname: p\nsteps: {one: {command: exit 1}, two: {after: one, command: 'true'}}\n";
    place.run(document, &["--disable", "one"]).finish().expect_code(0);
    place.expect_ends("succeeded, one skipped: disabled, two succeeded");
    place.run(document, &["--disable", "on"]).finish().expect_code(2).expect_err("did you mean `one`?");
}

fn retry() {
    let place = Place::default();
    let document = "umiak: v1\nname: p\nsteps:\n  good: {command: echo good >> calls}\n  bad: {after: good, command: echo bad >> calls; test -e fixed}\n";
    place.run(document, &[]).finish().expect_code(1);
    place.file("fixed", "");
    place.sandbox.umiak(["retry", "run-000001"]).finish().expect_code(0);
    assert_eq!(place.sandbox.read("calls"), "good\nbad\nbad\n");
}

/// The supervisor is killed while a step runs.
fn resume() {
    let place = Place::default();
    let document = "umiak: v1\nname: p\nsteps:\n  good: {command: echo good >> calls}\n  long: {after: good, command: 'touch here; until test -e go; do sleep 0.02; done'}\n  last: {after: long, command: echo last >> calls}\n";
    let running = place.run(document, &[]).start();
    running.wait_for_file("here");
    running.signal(SIGKILL);
    running.finish_unchecked();
    wait_until_free(&place.sandbox);
    place.file("go", "");
    place.sandbox.umiak(["resume", "run-000001"]).finish().expect_code(0);
    assert_eq!(place.sandbox.read("calls"), "good\nlast\n");
    place.expect_ends("succeeded, good succeeded, long succeeded, last succeeded");
}
