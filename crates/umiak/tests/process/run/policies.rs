//! Policies as decision tables through the real binary: a document, what happens, and the result.

use serde_json::Value;
use umiak_testkit::gpus;
use umiak_testkit::suite::Suite;

use super::{Stage, attempts, facts, stories, text, together};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run: policies: completion", &[], || check(COMPLETION))
        .test("run: policies: restarts", &[], || check(RESTARTS))
        .test("run: policies: restarts in a window", &[], window)
        .test("run: policies: time limits", &[], || check(LIMITS))
        .test("run: policies: a reason for being late", &[], reasons)
        .test("run: policies: grace of a role", &[], grace)
        .test("run: policies: time to end by itself", &[], linger)
        .test("run: policies: replicas wait for devices", &[], devices_in_turn)
        .test("run: policies: who waits for a device is not started when all is over", &[], devices_never)
        .test("run: policies: too few devices for a gang", &[], too_few_devices)
        .test("run: policies: exit codes before anything starts", &[], refused);
}

struct Row {
    policy: &'static str,
    /// The job's policy and its roles.
    document: &'static str,
    outcome: &'static str,
    code: i32,
    /// Number of attempts of each replica.
    attempts: &'static [(&'static str, usize)],
    /// True if only the mock can run it.
    on_paper: bool,
}

const fn row(
    policy: &'static str,
    document: &'static str,
    (outcome, code): (&'static str, i32),
    attempts: &'static [(&'static str, usize)],
) -> Row {
    Row { policy, document, outcome, code, attempts, on_paper: false }
}

const SUCCEEDED: (&str, i32) = ("succeeded", 0);

const COMPLETION: &[Row] = &[
    row(
        "min_failed 1: the first failure ends it",
        "roles: {w: {replicas: 2, command: [actor, '0:exit=3', sleep=60]}}",
        ("failed", 3),
        &[("w-0", 1), ("w-1", 1)],
    ),
    row(
        "min_failed 2: one failure does not, and then too few can succeed",
        "roles: {w: {replicas: 2, completion: {min_failed: 2}, command: [actor, '0:exit=3']}}",
        ("failed", 3),
        &[("w-0", 1), ("w-1", 1)],
    ),
    row(
        "min_failed 2, two fail",
        "roles: {w: {replicas: 3, completion: {min_failed: 2, min_succeeded: 1}, command: [actor, '0:exit=3', '1:exit=3', sleep=60]}}",
        ("failed", 3),
        &[("w-2", 1)],
    ),
    row(
        "min_failed 0: failures never fail it",
        "roles: {w: {replicas: 3, completion: {min_failed: 0, min_succeeded: 1}, command: [actor, '0,1:exit=3', '2:sleep=300ms']}}",
        SUCCEEDED,
        &[("w-0", 1), ("w-1", 1), ("w-2", 1)],
    ),
    row(
        "min_failed 0, and no replica succeeds: completed",
        "roles: {w: {replicas: 2, completion: {min_failed: 0, min_succeeded: 1}, command: [actor, exit=3]}}",
        SUCCEEDED,
        &[("w-0", 1), ("w-1", 1)],
    ),
    row(
        "min_succeeded 1: the others are stopped",
        "roles: {w: {replicas: 2, completion: {min_succeeded: 1}, command: [actor, '1:sleep=60']}}",
        SUCCEEDED,
        &[("w-1", 1)],
    ),
    row(
        "completes false: its success decides nothing",
        "roles: {s: {completes: false, command: [actor]}, w: {command: [actor, sleep=300ms, exit=4]}}",
        ("failed", 1),
        &[("s-0", 1), ("w-0", 1)],
    ),
    row(
        "completes false: its failure does",
        "roles: {s: {completes: false, command: [actor, exit=4]}, w: {command: [actor, sleep=60]}}",
        ("failed", 1),
        &[("s-0", 1), ("w-0", 1)],
    ),
    row(
        "two roles decide: both must end",
        "roles: {a: {command: [actor]}, b: {command: [actor, sleep=300ms]}}",
        SUCCEEDED,
        &[("a-0", 1), ("b-0", 1)],
    ),
    row(
        "start_after succeeded, and it fails",
        "roles: {a: {command: [actor, exit=4]}, b: {command: [actor], start_after: {role: a, when: succeeded}}}",
        ("failed", 1),
        &[("a-0", 1), ("b-0", 0)],
    ),
];

const RESTARTS: &[Row] = &[
    row("none", "roles: {w: {command: [actor, exit=3]}}", ("failed", 3), &[("w-0", 1)]),
    row(
        "of the replica, spent",
        "roles: {w: {replicas: 2, restarts: {max: 2, backoff: 10ms}, command: [actor, '0:exit=3', sleep=60]}}",
        ("failed", 3),
        &[("w-0", 3), ("w-1", 1)],
    ),
    row(
        "of the replica: each has its own",
        "roles: {w: {replicas: 2, restarts: {max: 1, backoff: 10ms}, command: [actor, '@1:exit=3']}}",
        SUCCEEDED,
        &[("w-0", 2), ("w-1", 2)],
    ),
    row(
        "of the role, spent",
        "roles: {w: {replicas: 2, restart: {max: 1, scope: role, backoff: 10ms}, command: [actor, '0:exit=3', sleep=60]}}",
        ("failed", 3),
        &[("w-0", 2), ("w-1", 2)],
    ),
    row(
        "of the role: other roles continue",
        "roles: {w: {restart: {max: 1, scope: role, backoff: 10ms}, command: [actor, '@1:exit=3']}, b: {command: [actor, sleep=500ms]}}",
        SUCCEEDED,
        &[("w-0", 2), ("b-0", 1)],
    ),
    row(
        "of the job, spent",
        "policy: {restarts: 2, backoff: 10ms}\nroles: {w: {replicas: 2, command: [actor, '0:exit=3', sleep=60]}}",
        ("failed", 3),
        &[("w-0", 3), ("w-1", 3)],
    ),
    row(
        "of the job: all roles",
        "policy: {restarts: 1, backoff: 10ms}\nroles: {a: {command: [actor, '@1:exit=3']}, b: {command: [actor, '@1:sleep=60']}}",
        SUCCEEDED,
        &[("a-0", 2), ("b-0", 2)],
    ),
    row(
        "scope of the policy holds for every role",
        "policy: {restarts: 1, backoff: 10ms, scope: replica}\nroles: {w: {replicas: 2, command: [actor, '0@1:exit=3', sleep=500ms]}}",
        SUCCEEDED,
        &[("w-0", 2), ("w-1", 1)],
    ),
    row(
        "of the role, then of the job, which resets the role's budget",
        "policy: {restarts: 1, backoff: 10ms}\nroles: {w: {restarts: {max: 1, backoff: 10ms}, command: [actor, exit=3]}}",
        ("failed", 3),
        &[("w-0", 4)],
    ),
    row("no restart after a success", "roles: {w: {restarts: 3, command: [actor]}}", SUCCEEDED, &[("w-0", 1)]),
    row(
        "after a time-out",
        "roles: {w: {restarts: {max: 1, backoff: 10ms}, timeout: 300ms, command: [actor, '@1:sleep=60']}}",
        SUCCEEDED,
        &[("w-0", 2)],
    ),
    Row {
        policy: "a failure of the platform spends no budget of the program",
        document: "roles: {w: {restarts: {max: 1, backoff: 10ms}, command: [actor, '@1:spawn-fails=11', '@2:exit=3', '@3:spawn-fails=12']}}",
        outcome: "succeeded",
        code: 0,
        attempts: &[("w-0", 4)],
        on_paper: true,
    },
    Row {
        policy: "max_platform of the role, spent",
        document: "policy: {restarts: {max_platform: 0}}\nroles: {w: {restarts: {max: 5, max_platform: 2, backoff: 10ms}, command: [actor, spawn-fails=11]}}",
        outcome: "failed",
        code: 125,
        attempts: &[("w-0", 3)],
        on_paper: true,
    },
    Row {
        policy: "max_platform of the job, spent",
        document: "policy: {restarts: {max: 5, max_platform: 1, backoff: 10ms}}\nroles: {w: {restarts: {max_platform: 0}, command: [actor, spawn-fails=11]}}",
        outcome: "failed",
        code: 125,
        attempts: &[("w-0", 2)],
        on_paper: true,
    },
];

const LIMITS: &[Row] = &[
    row(
        "timeout of an attempt",
        "roles: {w: {timeout: 300ms, command: [actor, sleep=60]}}",
        ("failed", 124),
        &[("w-0", 1)],
    ),
    row(
        "timeout of an attempt: starts anew for each",
        "roles: {w: {timeout: 2500ms, restarts: {max: 2, backoff: 10ms}, command: [actor, sleep=1, '@1:exit=1', '@2:exit=1']}}",
        SUCCEEDED,
        &[("w-0", 3)],
    ),
    row(
        "start_timeout, while another role waits",
        "roles: {s: {start_timeout: 300ms, ports: {rpc: 1}, command: [actor, sleep=60]}, w: {command: [actor], start_after: s}}",
        ("failed", 1),
        &[("s-0", 1), ("w-0", 0)],
    ),
    row(
        "start_timeout, kept",
        "roles: {s: {completes: false, start_timeout: 60s, ports: {rpc: 1}, command: [actor, ready, sleep=60]}, w: {command: [actor], start_after: s}}",
        SUCCEEDED,
        &[("s-0", 1), ("w-0", 1)],
    ),
    row(
        "timeout of the run",
        "policy: {timeout: 400ms}\nroles: {w: {command: [actor, sleep=60]}}",
        ("failed", 124),
        &[("w-0", 1)],
    ),
    row(
        "timeout of the run: includes restarts",
        "policy: {timeout: 600ms, restarts: 100, backoff: 50ms}\nroles: {a: {command: [actor, sleep=10ms, exit=3]}, b: {command: [actor]}}",
        ("failed", 124),
        &[],
    ),
    row(
        "timeout of the run: during a back-off",
        "policy: {timeout: 500ms}\nroles: {w: {restarts: {max: 1, backoff: 60s, max_backoff: 60s}, command: [actor, exit=3]}}",
        ("failed", 124),
        &[("w-0", 1)],
    ),
    row("timeout of the run, kept", "policy: {timeout: 60s}\nroles: {w: {command: [actor]}}", SUCCEEDED, &[("w-0", 1)]),
];

/// Runs every row on both engines.
fn check(rows: &'static [Row]) {
    let engines = |row: &'static Row| if row.on_paper { &["mock"][..] } else { &["mock", "local"][..] };
    let trials = rows.iter().flat_map(|row| engines(row).iter().map(move |engine| (row, *engine)));
    together(
        trials.map(|(row, engine)| (format!("{} on {engine}", row.policy), move || perform(row, engine))).collect(),
    );
}

fn perform(row: &Row, engine: &'static str) {
    let stage = Stage::new(engine);
    let outcome = stage.run(&format!("umiak: v1\n{}", row.document)).finish();
    let facts = facts(&stage, &outcome);
    let end = facts.iter().find(|fact| fact["type"] == "finished");
    let seen = (end.map_or("nothing", |end| text(&end["status"])).to_owned(), outcome.code());
    let counts: Vec<(&str, usize)> = row.attempts.iter().map(|(name, _)| (*name, attempts(&facts, name))).collect();
    stage.assert_nothing_left();
    let expected = (row.outcome.to_owned(), row.code);
    assert!(
        seen == expected && counts == row.attempts,
        "{seen:?} {counts:?} instead of {expected:?} {:?}\n{:#?}\n{}",
        row.attempts,
        stories(&facts),
        outcome.err()
    );
}

/// Restarts older than the window do not count, so failures far apart never use up the budget.
fn window() {
    let far = "umiak: v1\nroles: {w: {restarts: {max: 1, window: 200ms, backoff: 10ms}, command: [actor, sleep=500ms, '@1:exit=1', '@2:exit=1', '@3:exit=1']}}";
    let near = "umiak: v1\nroles: {w: {restarts: {max: 1, window: 1h, backoff: 10ms}, command: [actor, '@1:exit=1', '@2:exit=1']}}";
    for engine in ["mock", "local"] {
        let stage = Stage::new(engine);
        let outcome = stage.run(far).finish();
        outcome.expect_code(0);
        assert_eq!(attempts(&facts(&stage, &outcome), "w-0"), 4, "{engine}");
        let stage = Stage::new(engine);
        let outcome = stage.run(near).finish();
        outcome.expect_code(1);
        assert_eq!(attempts(&facts(&stage, &outcome), "w-0"), 2, "{engine}");
    }
}

/// The error names the limit.
fn reasons() {
    for (document, words) in [
        (
            "umiak: v1\nroles: {s: {start_timeout: 300ms, ports: {rpc: 1}, command: [actor, sleep=60]}, w: {command: [actor], start_after: s}}",
            ["s-0", "start_timeout"],
        ),
        ("umiak: v1\nroles: {w: {timeout: 300ms, command: [actor, sleep=60]}}", ["w-0", "`timeout`"]),
        (
            "umiak: v1\npolicy: {timeout: 300ms}\nroles: {w: {command: [actor, sleep=60]}}",
            ["w-0", "the run exceeded its `timeout`"],
        ),
    ] {
        let stage = Stage::new("local");
        stage.sandbox.write("job.yaml", document);
        let outcome = stage.umiak("run job.yaml").finish();
        for word in words {
            outcome.expect_err(word);
        }
        // `explain` repeats it.
        let explained = stage.umiak("explain 1").finish();
        explained.expect_code(0);
        assert!(explained.out().contains(words[0]), "{}", explained.out());
    }
}

/// A role's own grace period takes precedence over the job's.
fn grace() {
    for (document, code) in [
        (
            "policy: {grace: 60s}\nroles: {w: {grace: 200ms, command: [actor, ignore-term, print=up, sleep=60]}}",
            "signal",
        ),
        ("policy: {grace: 10ms}\nroles: {w: {grace: 60s, command: [actor, on-term=5, print=up, sleep=60]}}", "code"),
    ] {
        for engine in ["mock", "local"] {
            let stage = Stage::new(engine);
            let running = stage.run(&format!("umiak: v1\n{document}")).start();
            stage.wait_for_log(&running, "w-0", 1, "up");
            running.signal(2);
            let outcome = running.finish();
            outcome.expect_code(130);
            let facts = facts(&stage, &outcome);
            let end = facts.iter().find(|fact| fact["type"] == "ended").expect("an end");
            assert_eq!(text(&end["exit"]["kind"]), code, "{engine}: {end}");
            stage.assert_nothing_left();
        }
    }
}

/// A role that does not decide ends by itself if `linger` gives it time; otherwise it is stopped.
fn linger() {
    for (policy, by_us) in [("{linger: 60s}", false), ("{linger: 10ms}", true), ("{linger: 0s}", true)] {
        let command = if by_us { "sleep=60" } else { "sleep=300ms" };
        let document = format!(
            "umiak: v1\npolicy: {policy}\nroles: {{w: {{start_after: s, command: [actor]}}, s: {{completes: false, command: [actor, {command}]}}}}"
        );
        for engine in ["mock", "local"] {
            let stage = Stage::new(engine);
            let outcome = stage.run(&document).finish();
            outcome.expect_code(0);
            let facts = facts(&stage, &outcome);
            let is_end = |fact: &&Value| fact["type"] == "ended" && fact["subject"]["replica"] == "s-0";
            let end = facts.iter().find(is_end).expect("an end");
            assert_eq!(end["by_us"] == true, by_us, "{engine}, {policy}: {end}");
            stage.assert_nothing_left();
        }
    }
}

const IN_TURN: &str = "umiak: v1\npolicy: {gang: false}\nroles: {w: {replicas: 3, resources: {gpu: 1}, command: [actor, variable=CUDA_VISIBLE_DEVICES, sleep=100ms]}}";

/// Two devices and three replicas: the third waits for a free device.
fn devices_in_turn() {
    let stage = Stage::new("local");
    let driver = gpus::fake(stage.sandbox.path(), 2);
    let outcome = stage.run(IN_TURN).env("UMIAK_NVIDIA_PROC", driver).finish();
    outcome.expect_code(0);
    let facts = facts(&stage, &outcome);
    let at = |kind: &str, replica: &str| {
        facts.iter().position(|fact| fact["type"] == kind && fact["subject"]["replica"] == replica).expect("a fact")
    };
    let first_end = at("ended", "w-0").min(at("ended", "w-1"));
    assert!(first_end < at("started", "w-2"), "two replicas share a device");
    let seen = |replica: &str| stage.log(replica, 1);
    assert_ne!(seen("w-0"), seen("w-1"));
    for replica in ["w-0", "w-1", "w-2"] {
        assert!(["CUDA_VISIBLE_DEVICES=0\n", "CUDA_VISIBLE_DEVICES=1\n"].contains(&&*seen(replica)), "{replica}");
    }
}

/// The failure of the replica that holds the device must not start the one that waits for it.
fn devices_never() {
    let document = "umiak: v1\npolicy: {gang: false}\nroles: {w: {replicas: 2, resources: {gpu: 1}, command: [actor, print=up, '0:exit=3', sleep=60]}}";
    let stage = Stage::new("local");
    let driver = gpus::fake(stage.sandbox.path(), 1);
    let outcome = stage.run(document).env("UMIAK_NVIDIA_PROC", driver).finish();
    outcome.expect_code(3);
    let facts = facts(&stage, &outcome);
    let started = facts.iter().filter(|fact| fact["type"] == "started").count();
    assert_eq!((started, stage.log("w-1", 1)), (1, String::new()), "{facts:#?}");
    stage.assert_nothing_left();
}

fn too_few_devices() {
    let gang = IN_TURN.replace("policy: {gang: false}\n", "");
    // One replica needs more than the host has.
    let wide = IN_TURN.replace("gpu: 1", "gpu: 3");
    let stage = Stage::new("local");
    let driver = gpus::fake(stage.sandbox.path(), 2);
    let outcome = stage.run(&gang).env("UMIAK_NVIDIA_PROC", &driver).finish();
    outcome.expect_code(125).expect_err("error[J0020]").expect_err("needed  3").expect_err("free    2 of 2");
    outcome.expect_err("gang: false");
    assert!(!stage.run_dir().exists(), "no run was recorded");
    let outcome = stage.run(&wide).env("UMIAK_NVIDIA_PROC", &driver).finish();
    outcome.expect_code(125).expect_err("error[J0020]");
    // The hints have the keys of the format.
    for (gpus, count, hint) in
        [(0, 1, "set `gpu: 0` in `resourcePerInstance`"), (2, 3, "extras: {gangAllocation: false}")]
    {
        let driver = gpus::fake(&stage.sandbox.path().join(format!("of-{gpus}")), gpus);
        let openpai = format!(
            "protocolVersion: 2\nname: x\ntype: job\nprerequisites: [{{type: dockerimage, name: i, uri: u}}]\ntaskRoles: {{w: {{instances: {count}, dockerImage: i, resourcePerInstance: {{cpu: 1, memoryMB: 64, gpu: 1}}, commands: ['true']}}}}\n"
        );
        let outcome = stage.run(&openpai).env("UMIAK_NVIDIA_PROC", driver).finish();
        outcome.expect_code(125).expect_err("error[J0020]").expect_err(hint);
    }
    // The mock always has enough.
    for document in [gang, wide] {
        let stage = Stage::new("mock");
        let driver = gpus::fake(stage.sandbox.path(), 2);
        let outcome = stage.run(&document).env("UMIAK_NVIDIA_PROC", &driver).finish();
        outcome.expect_code(0);
        assert_eq!(outcome.facts().iter().filter(|fact| fact["type"] == "started").count(), 3);
    }
}

fn refused() {
    let stage = Stage::new("local");
    for (document, code, words) in [
        ("umiak: v1", 2, "error[F0012]"),
        ("umiak: v1\nroles: {w: {}}", 2, "role `w` has no `command`"),
        ("umiak: v1\nroles: {w: {command: [no-such-program]}}", 127, "error[J0021]"),
        ("umiak: v1\nroles: {w: {command: [./job.yaml]}}", 126, "error[J0022]"),
        ("umiak: v1\nroles: {w: {command: [/]}}", 126, "it is a directory"),
        ("umiak: v1\nroles: {w: {command: 'exit 7'}}", 7, "exited with 7"),
    ] {
        stage.sandbox.write("job.yaml", document);
        stage.umiak("run job.yaml").finish().expect_code(code).expect_err(words);
    }
}
