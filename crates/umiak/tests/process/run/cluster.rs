//! Behaviour specific to clusters: queues, names, retries by the cluster, eviction, and outliving the supervisor.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use umiak_sys::descend;
use umiak_testkit::components::trials;
use umiak_testkit::sandbox::{Outcome, Running};
use umiak_testkit::suite::Suite;

use super::chaos::{Dice, note, seed, side_by_side};
use super::house::wait_for;
use super::{Stage, attempts, exit, name, stories, text};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run: cluster: queue, names and nodes", &[], queue)
        .test("run: cluster: its own retries", &[], preempted)
        .test("run: cluster: names where others have addresses", &[], names)
        .test("run: cluster: eviction and lost nodes", &[], evicted)
        .test("run: cluster: killed beside its supervisor", &[], killed_cluster)
        .test("run: cluster: gone before the run is resumed", &[], gone_cluster)
        .test("run: cluster: ends with a run that is stopped or removed", &[], closed)
        .test("run: cluster: ends with the third Ctrl-C", &[], third_signal)
        .test("run: cluster: a home with a long name", &[], long_home)
        .test("run: cluster: detached and adopted", &[], detached)
        .test("run: cluster: supervisors killed at any moment", &[], killed_at_any_moment)
        .test("run: cluster: supervisors killed at every record", &[], killed_at_every_record);
}

fn stage() -> Stage {
    Stage::new("mock-cluster")
}

fn of<'a>(facts: &'a [Value], kind: &str) -> Vec<&'a Value> {
    facts.iter().filter(|fact| fact["type"] == kind).collect()
}

/// Kills the supervisor; its replicas keep running.
fn kill(stage: &Stage, running: Running<'_>) -> Outcome {
    running.signal(9);
    let outcome = running.finish_unchecked();
    stage.wait_until_free();
    outcome
}

fn wait_for_fact(stage: &Stage, running: &Running<'_>, kind: &str) {
    running.wait_until(kind, || !of(&stage.journal(), kind).is_empty());
}

/// Returns the process id of the run's mock cluster.
fn cluster(stage: &Stage) -> Option<u32> {
    let processes = stage.sandbox.processes();
    processes.into_iter().find(|(_, command)| command.contains("umiak mock-cluster ")).map(|(pid, _)| pid)
}

fn queue() {
    let stage = stage();
    let outcome = stage
        .run("umiak: v1\nname: ctr\nroles: {server: {command: [actor]}, trainer: {replicas: 2, command: [actor, '1:queue=300ms', queue=100ms]}}")
        .finish();
    outcome.expect_code(0);
    let facts = super::facts(&stage, &outcome);
    let reasons: Vec<&str> = of(&facts, "pending").into_iter().map(|fact| text(&fact["reason"])).collect();
    assert_eq!(reasons, ["queued behind 2 gangs", "too few free nodes for 3 replicas"]);
    let at = |fact: &Value| fact["at"].as_u64().expect("a time");
    let started = of(&facts, "started");
    assert!(at(started[0]) - at(of(&facts, "submitted")[0]) >= 300_000, "the longest time counts");
    let instances: Vec<(&str, &str)> = started.iter().map(|fact| (text(&fact["name"]), text(&fact["node"]))).collect();
    assert_eq!(instances, [("ctr-server-0", "node-1"), ("ctr-trainer-0", "node-2"), ("ctr-trainer-1", "node-3")]);
    assert!(started.iter().all(|fact| fact["pid"].is_null()));
    stage.assert_nothing_left();
}

/// Names are known before anything runs, and do not change between attempts and supervisors.
fn names() {
    let stage = stage();
    let document = "umiak: v1\nname: ctr\ncontracts: [paddle, torch]\nroles: {server: {completes: false, ports: {rpc: {port: 7164}}, contracts: [], command: [actor, ready, sleep=60]}, trainer: {replicas: 2, start_after: server, command: [actor]}}";
    let outcome = stage.run(document).finish();
    outcome.expect_code(0);
    let task = |name: &str| {
        std::fs::read_to_string(stage.run_dir().join(format!("tasks/{name}/attempt-1/env"))).expect("variables")
    };
    let common = std::fs::read_to_string(stage.run_dir().join("common.env")).expect("variables");
    let has = |text: &str, line: &str| assert!(text.contains(line), "{line} is not in\n{text}");
    has(&common, "UMIAK_HOSTS_TRAINER=ctr-trainer-0,ctr-trainer-1");
    has(&common, "UMIAK_ENDPOINTS_SERVER_RPC=ctr-server-0:7164");
    has(&task("server-0"), "POD_IP=ctr-server-0");
    let trainer = task("trainer-1");
    has(&trainer, "UMIAK_HOST=ctr-trainer-1");
    has(&trainer, "MASTER_ADDR=ctr-trainer-0");
    has(&trainer, "PADDLE_TRAINER_ENDPOINTS=ctr-trainer-0:");
    has(&trainer, "PADDLE_CURRENT_ENDPOINT=ctr-trainer-1:");
    let planned = stage.umiak("plan job.yaml --engine mock-cluster").finish();
    planned.expect_code(0);
    has(&planned.out(), "ctr-trainer-1");
    assert!(!planned.out().contains("127."), "{}", planned.out());
    stage.assert_nothing_left();
}

/// A pre-empted gang restarts as the same attempt and keeps its output.
fn preempted() {
    let stage = stage();
    let document = "umiak: v1\nroles: {w: {replicas: 2, command: [actor, print=up, sleep=200ms, '1:preempt=2', sleep=200ms, print=down]}}";
    let outcome = stage.run(document).finish();
    outcome.expect_code(0);
    let facts = super::facts(&stage, &outcome);
    let seen = stories(&facts);
    for name in ["w-0", "w-1"] {
        assert_eq!(seen[name], "starting@1 started@1 started@1 started@1 ended@1=0");
        assert_eq!(stage.log(name, 1), "up\nup\nup\ndown\n");
    }
    assert!(of(&facts, "pending").iter().any(|fact| text(&fact["reason"]).starts_with("pre-empted by")));
    // The same without a supervisor.
    let stage = self::stage();
    let running = stage.run(document).start();
    stage.wait_for_log(&running, "w-1", 1, "up");
    kill(&stage, running);
    stage.umiak("resume 1").finish().expect_code(0);
    for name in ["w-0", "w-1"] {
        assert_eq!(stage.log(name, 1), "up\nup\nup\ndown\n");
        assert_eq!(attempts(&stage.journal(), name), 1);
    }
    stage.assert_nothing_left();
}

/// Umiak's own policy restarts after these: failures of the platform have their own budget.
fn evicted() {
    for (word, kind, words) in [("evict", "evicted", "was evicted"), ("node-lost", "node_lost", "lost with its node")] {
        let stage = stage();
        let outcome = stage
            .run(&format!("umiak: v1\npolicy: {{backoff: 10ms}}\nroles: {{w: {{replicas: 2, command: [actor, '1@1:{word}', '@1:sleep=60']}}}}"))
            .finish();
        outcome.expect_code(0);
        let seen = stories(&super::facts(&stage, &outcome));
        assert_eq!(seen["w-1"], format!("starting@1 started@1 ended@1={kind} starting@2 started@2 ended@2=0"));
        assert_eq!(
            seen["run"],
            format!("submitted stopping:peer_failed diagnosed:w-1={kind} restarting@2 finished:succeeded=0")
        );
        outcome.expect_err(words);
        stage.assert_nothing_left();
    }
}

/// If the cluster dies, its replicas are lost, and the run fails.
fn killed_cluster() {
    let stage = stage();
    let running = stage.run("umiak: v1\nroles: {w: {replicas: 2, command: [actor, print=up, sleep=60]}}").start();
    stage.wait_for_log(&running, "w-1", 1, "up");
    descend::signal(cluster(&stage).expect("a cluster"), 9);
    running.finish().expect_code(125).expect_err("L0017");
    stage.assert_nothing_left();
}

/// Nothing is left to adopt: live replicas are lost and restart.
fn gone_cluster() {
    let stage = stage();
    let running = stage.run("umiak: v1\nroles: {w: {replicas: 2, command: [actor, print=up, '@1:sleep=60']}}").start();
    stage.wait_for_log(&running, "w-1", 1, "up");
    let cluster = cluster(&stage).expect("a cluster");
    kill(&stage, running);
    descend::signal(cluster, 9);
    wait_for("the cluster's end", || self::cluster(&stage).is_none());
    stage.umiak("resume 1").finish().expect_code(0);
    let seen = stories(&stage.journal());
    for name in ["w-0", "w-1"] {
        assert_eq!(seen[name], "starting@1 started@1 ended@1=lost starting@2 started@2 ended@2=0");
    }
    stage.assert_nothing_left();
}

/// Closing a run for good also ends its cluster.
fn closed() {
    for command in ["stop 1", "rm 1"] {
        let stage = stage();
        let running = stage.run("umiak: v1\nroles: {w: {command: [actor, print=up, sleep=60]}}").start();
        stage.wait_for_log(&running, "w-0", 1, "up");
        kill(&stage, running);
        assert!(cluster(&stage).is_some());
        stage.umiak(command).finish().expect_code(0);
        assert_eq!(stage.run_dir().exists(), command == "stop 1");
        stage.assert_nothing_left();
    }
}

fn third_signal() {
    let stage = stage();
    // The cluster is paused, so nothing in it ends.
    let running =
        stage.run("umiak: v1\npolicy: {grace: 1m}\nroles: {w: {command: [actor, print=up, sleep=60]}}").start();
    stage.wait_for_log(&running, "w-0", 1, "up");
    let cluster = cluster(&stage).expect("a cluster");
    descend::signal(cluster, 19);
    for number in 1..=2 {
        running.signal(2);
        running.wait_until("the signal is recorded", || of(&stage.journal(), "stopping").len() == number);
    }
    running.signal(2);
    running.finish_unchecked().expect_code(130);
    descend::signal(cluster, 18);
    stage.assert_nothing_left();
}

/// Socket paths have a lower length limit than directories.
fn long_home() {
    let stage = stage();
    stage.sandbox.write("job.yaml", "umiak: v1\nroles: {w: {command: [actor, print=up, sleep=500ms, print=down]}}");
    let home = stage.sandbox.path().join("a".repeat(100)).join("b".repeat(100));
    let line = |line: &str| stage.umiak(line).env("UMIAK_HOME", &home);
    let running = line("run job.yaml --engine mock-cluster").start();
    let log = home.join("runs/run-000001/tasks/w-0/attempt-1/log");
    running.wait_until("output", || std::fs::read_to_string(&log).is_ok_and(|text| text == "up\n"));
    kill(&stage, running);
    line("resume 1").finish().expect_code(0);
    assert_eq!(std::fs::read_to_string(&log).expect("a log"), "up\ndown\n");
    stage.sandbox.assert_nothing_left();
}

fn detached() {
    let stage = stage();
    stage.sandbox.write("job.yaml", "umiak: v1\nroles: {w: {command: [actor, print=up, sleep=800ms, print=down]}}");
    stage.umiak("run -d job.yaml --engine mock-cluster").start().finish_unchecked().expect_code(0);
    wait_for("output", || stage.log("w-0", 1) == "up\n");
    let supervisor: Value =
        serde_json::from_slice(&std::fs::read(stage.run_dir().join("supervisor.json")).expect("a supervisor"))
            .expect("JSON");
    let pid = supervisor["pid"].as_u64().expect("a pid") as u32;
    descend::signal(pid, 9);
    stage.wait_until_free();
    stage.umiak("resume 1").finish().expect_code(0);
    assert_eq!(stories(&stage.journal())["w-0"], "starting@1 started@1 ended@1=0");
    assert_eq!(stage.log("w-0", 1), "up\ndown\n");
    stage.assert_nothing_left();
}

const TROUBLED: &[&str] = &[
    "umiak: v1\nroles: {w: {replicas: 3, command: [actor, print=a, sleep=60ms, print=b, sleep=60ms, print=c]}}",
    "umiak: v1\nroles: {w: {replicas: 2, command: [actor, queue=150ms, print=a, sleep=60ms, print=b, print=c]}}",
    "umiak: v1\nroles: {s: {command: [actor, print=a, sleep=50ms, print=b, print=c]}, w: {replicas: 2, command: [actor, print=a, print=b, sleep=40ms, print=c], start_after: {role: s, when: succeeded}}}",
    "umiak: v1\npolicy: {restarts: 1, backoff: 10ms, settle: 10ms}\nroles: {w: {replicas: 2, command: [actor, print=a, sleep=30ms, print=b, print=c, '1@1:exit=3', '@1:sleep=20ms']}}",
    "umiak: v1\nroles: {s: {completes: false, ports: {rpc: 1}, command: [actor, print=a, print=b, print=c, sleep=20ms, ready, sleep=60]}, w: {replicas: 2, command: [actor, print=a, print=b, sleep=40ms, print=c], start_after: s}}",
];

/// Regardless of how often supervisors were killed, every attempt starts once and ends once, no running replica is
/// lost, and logs are complete.
fn check(stage: &Stage) {
    let facts = stage.journal();
    let story = || facts.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let mut counts: BTreeMap<(String, u64), (u32, bool, u32)> = BTreeMap::new();
    for fact in &facts {
        let subject = &fact["subject"];
        let Some(attempt) = subject["attempt"].as_u64() else { continue };
        let count = counts.entry((name(subject).to_owned(), attempt)).or_default();
        match text(&fact["type"]) {
            "starting" => count.0 += 1,
            "started" => {
                assert!(!count.1, "{subject} started twice\n{}", story());
                count.1 = true;
            }
            "ended" => {
                count.2 += 1;
                let end = exit(&fact["exit"]);
                assert!(!count.1 || end != "lost", "{subject} ran and was lost\n{}", story());
                let log = stage.log(name(subject), attempt as u32);
                let expected = if end == "lost" { "" } else { "a\nb\nc\n" };
                assert!(log == expected || end == "15" || fact["by_us"] == true, "{subject}: {log:?}\n{}", story());
            }
            _ => {}
        }
    }
    for (attempt, (starts, _, ends)) in counts {
        assert_eq!((starts, ends), (1, 1), "{attempt:?}\n{}", story());
    }
    assert_eq!(text(&facts.last().expect("facts")["type"]), "finished", "{}", story());
    assert_eq!(facts.last().expect("facts")["code"], 0, "{}", story());
    assert!(of(&facts, "ignored").is_empty(), "{}", story());
    // `ls` cleans up after a supervisor that was killed after it had recorded the end.
    stage.umiak("ls").finish().expect_code(0);
    stage.assert_nothing_left();
}

fn is_finished(stage: &Stage) -> bool {
    !of(&stage.journal(), "finished").is_empty()
}

/// Resumes the run unless it has finished.
fn resume(stage: &Stage) {
    if !is_finished(stage) {
        stage.umiak("resume 1").start().finish_unchecked().expect_code(0);
    }
}

fn killed_at_any_moment() {
    let (seed, count) = (seed(), trials(30).max(1));
    let hits = AtomicUsize::new(0);
    side_by_side(
        count,
        |trial| format!("trial {trial}"),
        |trial| {
            let mut dice = Dice::new(seed, trial);
            let stage = stage();
            let mut running = stage.run(TROUBLED[trial % TROUBLED.len()]).start();
            wait_for_fact(&stage, &running, "planned");
            for _ in 0..dice.below(4) {
                std::thread::sleep(dice.moment(Duration::from_millis(250)));
                let killed = kill(&stage, running);
                hits.fetch_add(usize::from(killed.status.code().is_none()), Ordering::Relaxed);
                running = stage.umiak("resume 1").start();
            }
            running.finish_unchecked();
            check(&stage);
        },
    );
    note(&format!("{count} trials, {} hits, seed {seed}\n", hits.into_inner()));
}

/// Every boundary between two records, and the middle of every record.
fn killed_at_every_record() {
    let seed = seed();
    let usual = |document: &&str| {
        let stage = stage();
        stage.run(document).finish().expect_code(0);
        check(&stage);
        stage.journal().len()
    };
    let mut deaths = Vec::new();
    for (document, records) in TROUBLED.iter().map(usual).enumerate() {
        deaths.extend((2..records).flat_map(|at| [(document, at.to_string()), (document, format!("{at}.20"))]));
    }
    let (all, mut dice) = (deaths.len(), Dice::new(seed, usize::MAX));
    for position in (1..all).rev() {
        deaths.swap(position, dice.below(position + 1));
    }
    let count = trials(40).max(1);
    side_by_side(
        count,
        |trial| format!("trial {trial}: {:?}", deaths[trial % all]),
        |trial| {
            let (document, die) = &deaths[trial % all];
            let mut dice = Dice::new(seed, trial);
            let stage = stage();
            stage.run(TROUBLED[*document]).env("UMIAK_TEST_JOURNAL_DIE", die).start().finish_unchecked();
            stage.wait_until_free();
            for _ in 0..dice.below(3) {
                let at = stage.journal().len() + 1 + dice.below(8);
                if !is_finished(&stage) {
                    let again = stage.umiak("resume 1").env("UMIAK_TEST_JOURNAL_DIE", at.to_string());
                    again.start().finish_unchecked();
                    stage.wait_until_free();
                }
            }
            resume(&stage);
            check(&stage);
        },
    );
    note(&format!("{count} trials, {all} different first deaths, seed {seed}\n"));
}
