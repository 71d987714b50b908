//! Stopping pipelines: Ctrl-C, once and twice, `umiak stop`, `umiak stop --kill`.

use serde_json::Value;
use umiak_testkit::sandbox::Running;
use umiak_testkit::suite::Suite;

use super::Place;
use crate::run::wait_until_free;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pipelines::control::interrupted", &[], interrupted)
        .test("pipelines::control::interrupted_twice", &[], interrupted_twice)
        .test("pipelines::control::stopped", &[], stopped)
        .test("pipelines::control::stopped_at_once", &[], stopped_at_once)
        .test("pipelines::control::stopped_while_the_post_step_runs", &[], stopped_late)
        .test("pipelines::control::killed_while_the_post_step_runs", &[], killed_late)
        .test("pipelines::control::stopped_after_a_failure", &[], stopped_after_a_failure)
        .test("pipelines::control::stopped_after_its_supervisor_died", &[], stopped_after_death)
        .test("pipelines::control::retried_with_another_parameter", &[], retried)
        .test("pipelines::control::a_retry_has_artifacts_of_its_own", &[], retried_artifacts)
        .test("pipelines::control::each_start_of_a_step_makes_its_artifacts", &[], started_again)
        .test("pipelines::control::a_retry_asks_for_secrets", &[], retried_secrets)
        .test("pipelines::control::a_retry_needs_the_artifacts_of_what_it_keeps", &[], retried_without)
        .test("pipelines::control::a_refused_node_is_explained", &[], explained);
}

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// Steps that run until they are stopped: one in a loop, one of two processes. `stubborn` ignores requests to end.
fn document(stubborn: bool) -> String {
    let first = if stubborn { "trap \"\" INT TERM; " } else { "" };
    format!(
        "name: p\nentry_points:\n  long: {{command: '{first}echo $PF_LOOP_ARGUMENT > here.$PF_LOOP_ARGUMENT; while :; do sleep 0.1; done', loop_argument: [1, 2]}}\n  train:\n    distributed_job: {{framework: paddle, members: [{{role: worker, replicas: 2, command: 'touch here.w$PADDLE_TRAINER_ID; exec sleep 100'}}]}}\n  after: {{deps: long, command: 'true'}}\npost_process: {{mail: {{command: echo mail}}}}\n"
    )
}

fn wait(running: &Running<'_>) {
    for name in ["here.1", "here.2", "here.w0", "here.w1"] {
        running.wait_for_file(name);
    }
}

/// How the run, its nodes and its post step end.
fn ends(jobs: &str, post: &str) -> String {
    format!("{jobs}, long stopped, long.0 {jobs}, long.1 {jobs}, train {jobs}, after cancelled, mail {post}")
}

fn interrupted() {
    let place = Place::default();
    let running = place.run(&document(false), &[]).start();
    wait(&running);
    running.signal(SIGINT);
    running.finish().expect_code(130);
    place.expect_ends(&ends("interrupted", "succeeded"));
}

fn interrupted_twice() {
    let place = Place::default();
    let running = place.run(&document(true), &[]).start();
    wait(&running);
    running.signal(SIGINT);
    running.wait_until("the first request is recorded", || {
        place.journal().iter().any(|fact| fact["type"] == "stopping" && fact["step"] == "long.0")
    });
    running.signal(SIGINT);
    running.finish().expect_code(130);
    place.expect_ends(&ends("interrupted", "cancelled"));
}

fn stopped() {
    let place = Place::default();
    let running = place.run(&document(false), &[]).start();
    wait(&running);
    place.sandbox.umiak(["stop", "run-000001"]).start().finish_unchecked().expect_code(0);
    running.finish().expect_code(3);
    place.expect_ends(&ends("stopped", "succeeded"));
}

fn stopped_at_once() {
    let place = Place::default();
    let running = place.run(&document(true), &[]).start();
    wait(&running);
    place.sandbox.umiak(["stop", "--kill", "run-000001"]).start().finish_unchecked().expect_code(0);
    running.finish().expect_code(3);
    place.expect_ends(&ends("stopped", "cancelled"));
}

const POST: &str = "name: p\nentry_points: {a: {command: 'true'}}\npost_process: {mail: {command: 'touch here; until test -e go; do sleep 0.05; done'}}\n";

/// The first request spares the post step: nothing is left to be stopped.
fn stopped_late() {
    let place = Place::default();
    let running = place.run(POST, &[]).start();
    running.wait_for_file("here");
    running.signal(SIGINT);
    running.wait_until("the stop is recorded", || place.journal().iter().any(is_stopping));
    place.file("go", "");
    let outcome = running.finish();
    outcome.expect_code(0);
    assert!(outcome.err().contains("waiting for the post step; press Ctrl-C again to kill it"), "{}", outcome.err());
    place.expect_ends("succeeded, a succeeded, mail succeeded");
}

/// The second does not, although the post step has not seen the first.
fn killed_late() {
    let place = Place::default();
    let document = POST
        .replace("{command: 'true'}", "{command: 'touch up; exec sleep 100'}")
        .replace("touch here", "trap \"\" INT; touch here");
    let running = place.run(&document, &[]).start();
    running.wait_for_file("up");
    running.signal(SIGINT);
    running.wait_for_file("here");
    running.signal(SIGINT);
    running.finish().expect_code(130);
    place.expect_ends("interrupted, a interrupted, mail interrupted");
    let ended = place.journal().into_iter().find(|fact| fact["type"] == "ended" && fact["step"] == "mail");
    assert_eq!(ended.expect("it has ended")["exit"]["signal"], 9);
}

/// Steps beside one that has failed are not told that a user stopped them, and have their grace period when one does.
fn stopped_after_a_failure() {
    let place = Place::default();
    let document = "name: p\nentry_points:\n  a: {command: 'until test -e up; do sleep 0.05; done; exit 7'}\n  b: {command: 'trap \"echo bye; touch bye\" TERM; touch up; until test -e go; do sleep 0.05; done'}\n";
    let running = place.run(document, &[]).start();
    running.wait_for_file("bye");
    place.sandbox.umiak(["stop", "run-000001", "--no-wait"]).start().finish_unchecked().expect_code(0);
    running.wait_until("the stop is recorded", || place.journal().iter().any(is_stopping));
    place.file("go", "");
    running.finish().expect_code(1);
    let reasons: Vec<_> = place
        .journal()
        .into_iter()
        .filter(|fact| fact["type"] == "stopping" && fact["step"] == "b")
        .map(|fact| fact["reason"]["why"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(reasons.first().map(String::as_str), Some("step_failed"), "{reasons:?}");
    let ended = place.journal().into_iter().find(|fact| fact["type"] == "ended" && fact["step"] == "b");
    assert_ne!(ended.expect("it has ended")["exit"]["signal"], 9);
}

/// Nothing that had begun looks as if it still ran.
fn stopped_after_death() {
    let place = Place::default();
    let running = place.run(&document(false), &[]).start();
    wait(&running);
    running.signal(SIGKILL);
    running.finish_unchecked();
    place.sandbox.umiak(["stop", "run-000001"]).finish().expect_code(0);
    place.expect_ends("stopped, long stopped, long.0 stopped, long.1 stopped, train stopped");
    let shown = place.sandbox.umiak(["show", "run-000001"]).finish();
    assert!(!shown.out().contains("running"), "{}", shown.out());
}

/// What the command line said about the document holds for the new run too.
fn retried() {
    let place = Place::default();
    let document = "name: p\nentry_points:\n  a: {command: 'exit 1'}\n  b: {parameters: {n: 1}, command: 'test {{n}} = 2 && echo {{n}} > {{out}}', artifacts: {output: [out]}}\nfs_options: {main_fs: {name: here}}\n";
    place.file("elsewhere/x", "");
    place.run(document, &["--disable", "a", "--fs", "here=elsewhere"]).finish().expect_code(1);
    place.sandbox.umiak(["retry", "run-000001", "-p", "b.n=2"]).finish().expect_code(0);
    place.expect_ends_of("run-000002", "succeeded, a skipped: disabled, b succeeded");
    assert!(place.sandbox.path().join("elsewhere/.pipeline/run-000002").is_dir());
}

/// What runs again makes its artifacts below the new run, and changes none of the old one; what is kept has its old ones.
fn retried_artifacts() {
    let place = Place::default();
    let document = "name: p\nfailure_options: {strategy: continue}\nentry_points:\n  kept: {command: 'echo kept > {{out}}', artifacts: {output: [out]}}\n  each: {command: 'cat val > {{out}} && { test $PF_LOOP_ARGUMENT = 1 || test -e fixed; }', loop_argument: [1, 2], artifacts: {output: [out]}}\n  last: {deps: 'kept, each', command: 'cat {{kept}}; echo {{each}} | tr , \\\\n | xargs cat; echo {{kept}},{{each}}', artifacts: {input: {kept: '{{kept.out}}', each: '{{each.out}}'}}}\nfs_options: {main_fs: {name: here}}\n";
    place.file("val", "old\n");
    place.run(document, &["--fs", "here=."]).finish().expect_code(1);
    place.file("val", "new\n");
    place.file("fixed", "");
    place.sandbox.umiak(["retry", "run-000001"]).finish().expect_code(0);
    let log = place.sandbox.read("state/runs/run-000002/tasks/last/main-0/attempt-1/log");
    let lines: Vec<&str> = log.lines().collect();
    let [kept, first, second, paths] = lines[..] else { panic!("{log}") };
    assert_eq!([kept, first, second], ["kept", "old", "new"]);
    let runs: Vec<&str> = paths.split(',').filter_map(|path| path.split("/.pipeline/").nth(1)?.get(..10)).collect();
    assert_eq!(runs, ["run-000001", "run-000001", "run-000002"], "{paths}");
    let second = paths.rsplit(',').next().expect("three paths").replace("run-000002", "run-000001");
    assert_eq!(std::fs::read_to_string(second).expect("that of the first run"), "old\n");
}

/// What an earlier start of a step has made is gone: after a failure, and after the death of the supervisor.
fn started_again() {
    let place = Place::default();
    let document = "name: p\nentry_points:\n  a: {command: 'mkdir {{d}} && echo partial >> {{o}} && cat {{o}} && { test -e once || { touch once; exit 1; }; }', retries: {max: 1, backoff: 0s}, artifacts: {output: [d, o]}}\n  b: {deps: a, command: 'echo partial >> {{o}}; touch here; until test -e go; do sleep 0.02; done; cat {{o}}', artifacts: {output: [o]}}\nfs_options: {main_fs: {name: ppl}}\n";
    let running = place.run(document, &[]).start();
    running.wait_for_file("here");
    running.signal(SIGKILL);
    running.finish_unchecked();
    wait_until_free(&place.sandbox);
    place.file("go", "");
    place.sandbox.umiak(["resume", "run-000001"]).finish().expect_code(0);
    for step in ["a", "b"] {
        let log = place.sandbox.read(&format!("state/runs/run-000001/tasks/{step}/main-0/attempt-2/log"));
        assert_eq!(log, "partial\n", "{step}");
    }
    let blocked = Place::default();
    blocked.file(".pipeline", "");
    blocked.run(document, &[]).finish().expect_code(1).expect_err(".pipeline/run-000001/p/a-0-");
}

/// Secrets are given again; those that are in the document itself cannot be.
fn retried_secrets() {
    let place = Place::default();
    let document = "name: p\nentry_points:\n  a: {command: 'test {{password}} = open-\"sesame\"; echo $? > seen; test -e fixed', parameters: {password: {type: string, default: x}}}\n";
    place.run(document, &["-p", "password=open-sesame"]).finish().expect_code(1);
    let retry = |words: &[&str]| place.sandbox.umiak([&["retry", "run-000001"], words].concat()).finish();
    retry(&[]).expect_code(2).expect_err("hint: add `-p password=…`\n");
    place.file("fixed", "");
    retry(&["-p", "password=open-sesame"]).expect_code(0);
    assert_eq!(place.sandbox.read("seen"), "0\n");
    for file in ["document.yaml", "plan.json", "journal.jsonl"] {
        assert!(!place.sandbox.read(&format!("state/runs/run-000002/{file}")).contains("open-sesame"), "{file}");
    }
    let fixed = Place::default();
    fixed.run(&document.replace("test -e fixed", "false --password open-sesame"), &[]).finish().expect_code(1);
    let outcome = fixed.sandbox.umiak(["retry", "run-000001", "-p", "password=open-sesame"]).finish();
    outcome.expect_code(2).expect_err("must be given again");
}

fn retried_without() {
    let place = Place::default();
    let document = "name: p\nentry_points:\n  no: {command: 'true', condition: '1 > 2', artifacts: {output: [out]}}\n  make: {command: 'echo 1 > {{out}}', artifacts: {output: [out]}}\n  use: {deps: make, command: 'test -e fixed && cat {{in}}', artifacts: {input: {in: '{{make.out}}'}}}\nfs_options: {main_fs: {name: ppl}}\n";
    place.run(document, &[]).finish().expect_code(1);
    place.file("fixed", "");
    std::fs::remove_dir_all(place.sandbox.path().join(".pipeline")).expect("a step has written there");
    let outcome = place.sandbox.umiak(["retry", "run-000001"]).finish();
    outcome.expect_code(2).expect_err("an artifact of step `make`, which has ended well in run-000001, does not exist");
    outcome.expect_err("hint: `umiak retry --all run-000001` runs all steps again\n");
    assert_eq!(place.sandbox.list("state/runs"), ["run-000001"]);
    place.sandbox.umiak(["retry", "--all", "run-000001"]).finish().expect_code(0);
}

fn explained() {
    let place = Place::default();
    let document = "name: p\nentry_points:\n  a: {command: 'true', parameters: {n: 3}, condition: '{{n}} + 1'}\n";
    let outcome = place.run(document, &[]).finish();
    outcome.expect_code(1);
    for text in ["error[J0033]: step `a` cannot begin", "failed 1 step after"] {
        assert!(outcome.err().contains(text), "{}", outcome.err());
    }
}

/// The run as a whole is being stopped.
fn is_stopping(fact: &Value) -> bool {
    fact["type"] == "stopping" && fact["step"].is_null()
}
