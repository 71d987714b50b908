//! Steps on different engines in one run.

use umiak_testkit::components::Component;
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

use super::Place;
use crate::run::wait_until_free;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pipelines::engines::each_step_on_its_own", &[], each_on_its_own)
        .test("pipelines::engines::failures", &[], failures)
        .test("pipelines::engines::a_stop_reaches_all", &[], stop)
        .test("pipelines::engines::a_run_is_resumed", &[], resume)
        .test("pipelines::engines::a_stop_ends_what_a_dead_supervisor_left", &[], stop_orphans)
        .test("pipelines::engines::a_stop_ends_jobs_of_slurm", &[Component::Slurm], stop_slurm)
        .test("pipelines::engines::choices_that_are_refused", &[], refused);
}

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// Two engines, in both orders of dependency, and an engine that `umiak.toml` names.
fn each_on_its_own() {
    let place = Place::default();
    place.file("umiak.toml", "[engine.far]\nkind = \"mock-cluster\"\n[queue.q]\nengine = \"far\"\n");
    let document = "umiak: v1\nname: p\nsteps:\n  \
        one: {command: echo here > made}\n  \
        two: {after: one, engine: far, replicas: 2, command: [actor, queue=50ms, print=far]}\n  \
        three: {after: two, queue: q, command: [actor, print=queued]}\n  \
        four: {after: two, command: cat made}\n";
    place.run(document, &[]).finish().expect_code(0).expect_err("engine local, mock-cluster");
    place.expect_ends("succeeded, one succeeded, two succeeded, three succeeded, four succeeded");
    assert_eq!([place.log_of("two", "main-1"), place.log_of("four", "main-0")], ["far\n", "here\n"]);
    assert_eq!(place.log_of("three", "main-0"), "queued\n");
    let pending = place.journal().into_iter().find(|fact| fact["type"] == "pending").expect("it waited");
    assert_eq!(pending["step"], "two", "{pending}");
    place.sandbox.umiak(["show", "1"]).finish().expect_code(0).expect_out("engine local, mock-cluster");
    // All of it on one, whatever the document says.
    place
        .run("umiak: v1\nsteps: {a: {engine: far, command: 'true'}}\n", &["--engine", "local"])
        .finish()
        .expect_code(0);
    let cluster = "umiak: v1\nname: c\nsteps: {a: {command: [actor]}, b: {after: a, command: [actor]}}\n";
    place.run(cluster, &["--engine", "far"]).finish().expect_code(0);
    place.sandbox.assert_nothing_left();
}

/// A failure on one engine stops the steps of the other.
fn failures() {
    for (bad, other) in [
        ("engine: mock-cluster, command: [actor, sleep=0.3, exit=3]", "command: exec sleep 60"),
        ("command: sleep 0.3; exit 3", "engine: mock-cluster, command: [actor, sleep=60]"),
    ] {
        let place = Place::default();
        let document = format!(
            "umiak: v1\nname: p\nsteps:\n  bad: {{{bad}}}\n  other: {{{other}}}\n  after: {{after: bad, command: x}}\n"
        );
        place.run(&document, &[]).finish().expect_code(1);
        place.expect_ends("failed, bad failed, other stopped, after cancelled");
        place.sandbox.assert_nothing_left();
    }
    let place = Place::default();
    let document = "umiak: v1\nname: p\nsteps:\n  flaky: {engine: mock-cluster, policy: {restarts: {max: 1, backoff: 1ms}}, command: [actor, '0@1:exit=3']}\n  local: {command: sleep 0.1}\n";
    place.run(document, &[]).finish().expect_code(0);
}

const LONG: &str = "umiak: v1\nname: p\nsteps:\n  near: {command: 'touch near; until test -e go; do sleep 0.02; done'}\n  far: {engine: mock-cluster, command: [actor, print=up, sleep=1]}\n  last: {after: [near, far], command: touch last}\n";

fn is_up(place: &Place) -> bool {
    let started = place.journal().iter().filter(|fact| fact["type"] == "started").count();
    started == 2 && place.log_of("far", "main-0").contains("up")
}

fn stop() {
    for signal in [Some(SIGINT), None] {
        let place = Place::default();
        let running = place.run(&LONG.replace("sleep=1", "sleep=60"), &[]).start();
        running.wait_until("both run", || is_up(&place));
        match signal {
            Some(signal) => running.signal(signal),
            None => drop(place.sandbox.umiak(["stop", "1"]).start().finish_unchecked().expect_code(0)),
        }
        running.finish().expect_code(if signal.is_some() { 130 } else { 3 });
        assert!(!place.sandbox.path().join("last").exists());
        place.sandbox.assert_nothing_left();
    }
}

/// Steps of both engines start again, and units of the dead supervisor are gone.
fn resume() {
    let place = Place::default();
    let running = place.run(LONG, &[]).start();
    running.wait_until("both run", || is_up(&place));
    running.signal(SIGKILL);
    running.finish_unchecked();
    wait_until_free(&place.sandbox);
    place.file("go", "");
    place.sandbox.umiak(["resume", "run-000001"]).finish().expect_code(0);
    place.expect_ends("succeeded, near succeeded, far succeeded, last succeeded");
    place.sandbox.assert_nothing_left();
}

/// `umiak stop` of a run whose supervisor was killed ends the units of its steps.
fn stop_orphans() {
    let place = Place::default();
    let running = place.run(&LONG.replace("sleep=1", "sleep=60"), &[]).start();
    running.wait_until("both run", || is_up(&place));
    running.signal(SIGKILL);
    running.finish_unchecked();
    wait_until_free(&place.sandbox);
    place.sandbox.umiak(["stop", "1"]).finish().expect_code(0);
    place.sandbox.assert_nothing_left();
}

fn stop_slurm() {
    let (place, slurm) = (Place::default(), Slurm::start(1));
    let document = "umiak: v1\nname: p\nsteps:\n  near: {command: exec sleep 60}\n  far: {engine: slurm, command: 'touch up; exec sleep 60'}\n";
    let running = place.run(document, &[]).env("SLURM_CONF", slurm.conf()).start();
    running.wait_until("the job runs", || place.sandbox.path().join("up").exists());
    running.signal(SIGKILL);
    running.finish_unchecked();
    wait_until_free(&place.sandbox);
    let job = slurm.first_job().to_string();
    assert_eq!(slurm.state(&job), "RUNNING");
    place.sandbox.umiak(["stop", "1"]).env("SLURM_CONF", slurm.conf()).finish().expect_code(0);
    slurm.wait("the job is over", || !["RUNNING", "COMPLETING"].contains(&slurm.state(&job).as_str()));
    place.sandbox.assert_nothing_left();
}

fn refused() {
    let place = Place::default();
    let unknown = "umiak: v1\nsteps: {a: {engine: slrum, command: x}}\n";
    place.run(unknown, &[]).finish().expect_code(2).expect_err("F0017").expect_err("did you mean `slurm`?");
    let gang = "umiak: v1\nsteps: {a: {engine: mock-cluster, restarts: 1, command: x}, b: {command: x}}\n";
    place.run(gang, &[]).finish().expect_code(2).expect_err("J0030");
    let job = "umiak: v1\nroles: {a: {command: 'true'}}\n";
    for (flags, words) in [
        (
            &["--slurm", "partition=gpu"][..],
            &["L0002", "`--slurm` is a flag of engine `slurm`", "engine of this run  `local`"][..],
        ),
        (&["--engine", "slurm", "--mpi-arg", "--verbose"], &["L0002", "`--mpi-arg` is a flag of engine `mpi`"]),
        (&["--engine", "mock", "--agent", "/umiak"], &["`--agent` is a flag of engine `slurm` and `mpi`"]),
        (&["--engine", "slurm", "--slurm=--partition=gpu"], &["without dashes"]),
        (&["--engine", "slurm", "--slurm-warning", "0s"], &["--slurm-warning"]),
        (&["--engine", "mpi", "--mpi-hosts", "a:0"], &["the slots of `a` must be a number"]),
        (&["--engine", "slrum"], &["unknown engine `slrum`", "did you mean `slurm`?"]),
    ] {
        let outcome = place.run(job, flags).finish();
        outcome.expect_code(2);
        for word in words {
            outcome.expect_err(word);
        }
    }
}
