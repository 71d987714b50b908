//! Requirements for every engine: the same documents run on all of them and produce the same facts.
//!
//! Engines are columns, with their capabilities. A row is a document, an outside event, the exit code, and the expected
//! facts of each replica (see [`super::stories`]).

use std::collections::BTreeMap;

use umiak::engine::{Capabilities, EngineKind};
use umiak_testkit::components::Component;
use umiak_testkit::sandbox::Running;
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

use super::{Stage, facts, stories, together};
use umiak_core::model::Unit;

pub(crate) fn register(suite: &mut Suite) {
    let needs: [(Columns, &[Component]); 3] =
        [(Columns::Own, &[]), (Columns::Slurm, &[Component::Slurm]), (Columns::Mpi, &[Component::OpenMpi])];
    for (columns, needs) in needs {
        for (name, test) in TESTS {
            let name = match columns {
                Columns::Own => format!("run: engines: {name}"),
                Columns::Slurm => format!("slurm: engine: {name}"),
                Columns::Mpi => format!("mpi: engine: {name}"),
            };
            suite.test(&name, needs, move || test(columns));
        }
    }
}

type Named = (&'static str, fn(Columns));

const TESTS: [Named; 17] = [
    ("start", |columns| check(columns, START)),
    ("cause", |columns| check(columns, CAUSE)),
    ("stop", |columns| check(columns, STOP)),
    ("retry", |columns| check(columns, RETRY)),
    ("completion", |columns| check(columns, COMPLETION)),
    ("start order", |columns| check(columns, ORDER)),
    ("back-off is recorded", back_off),
    ("stop during a back-off", stop_in_back_off),
    ("stop while roles wait for others", stop_while_waiting),
    ("logs", logs),
    ("a lost supervisor", lost_supervisor),
    ("adopted while they run", adopted_running),
    ("adopted while they wait", adopted_pending),
    ("handed over and never started", killed_at_submission),
    ("ends that came without a supervisor", adopted_ends),
    ("stopped by the supervisor that adopted", adopted_and_stopped),
    ("what a replica left behind", left_behind),
];

/// Engines that run the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Columns {
    /// Those that need no other program.
    Own,
    Slurm,
    Mpi,
}

impl Columns {
    /// The engines, and a cluster for them.
    fn open(self) -> (&'static [EngineKind], Option<Slurm>) {
        match self {
            Self::Own => (&[EngineKind::Local, EngineKind::Mock, EngineKind::MockCluster], None),
            Self::Slurm => (&[EngineKind::Slurm], Some(Slurm::start(2))),
            Self::Mpi => (&[EngineKind::Mpi], None),
        }
    }
}

/// An event from outside the run.
#[derive(Debug, Clone, Copy)]
enum Meanwhile {
    Nothing,
    /// `umiak stop` with these flags, once all replicas have printed `up`.
    Stop(&'static str),
    /// These signals, each sent after the previous one is recorded.
    Signals(&'static [i32]),
}

#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    document: &'static str,
    meanwhile: Meanwhile,
    in_parts: bool,
    code: i32,
    story: &'static [(&'static str, &'static str)],
}

/// Marks a document that restarts only part of a job, which gang engines refuse.
const fn in_parts(row: Row) -> Row {
    Row { in_parts: true, ..row }
}

const fn row(
    name: &'static str,
    document: &'static str,
    code: i32,
    story: &'static [(&'static str, &'static str)],
) -> Row {
    Row { name, document, meanwhile: Meanwhile::Nothing, in_parts: false, code, story }
}

const START: &[Row] = &[
    row(
        "one replica",
        "umiak: v1\nroles: {w: {command: [actor, print=hello]}}",
        0,
        &[("run", "submitted finished:succeeded=0"), ("w-0", "starting@1 started@1 ended@1=0")],
    ),
    row(
        "several of several roles",
        "umiak: v1\nroles: {a: {replicas: 2, command: [actor]}, b: {command: [actor]}}",
        0,
        &[
            ("run", "submitted finished:succeeded=0"),
            ("a-0", "starting@1 started@1 ended@1=0"),
            ("a-1", "starting@1 started@1 ended@1=0"),
            ("b-0", "starting@1 started@1 ended@1=0"),
        ],
    ),
];

const CAUSE: &[Row] = &[
    row(
        "a code",
        "umiak: v1\nroles: {w: {replicas: 3, command: [actor, '1:exit=7', sleep=60]}}",
        7,
        &[
            ("run", "submitted stopping:peer_failed diagnosed:w-1=7 finished:failed=7"),
            ("w-0", "starting@1 started@1 ended@1=SIG15/us"),
            ("w-1", "starting@1 started@1 ended@1=7"),
            ("w-2", "starting@1 started@1 ended@1=SIG15/us"),
        ],
    ),
    row(
        "a signal",
        "umiak: v1\nroles: {w: {replicas: 2, command: [actor, '0:signal=9', sleep=60]}}",
        137,
        &[
            ("run", "submitted stopping:peer_failed diagnosed:w-0=SIG9 finished:failed=137"),
            ("w-0", "starting@1 started@1 ended@1=SIG9"),
            ("w-1", "starting@1 started@1 ended@1=SIG15/us"),
        ],
    ),
    row(
        "no process",
        "umiak: v1\nroles: {w: {command: [broken, spawn-fails=2]}}",
        127,
        &[
            ("run", "submitted stopping:peer_failed diagnosed:w-0=spawn finished:failed=127"),
            ("w-0", "starting@1 started@1 ended@1=spawn"),
        ],
    ),
    row(
        "too slow",
        "umiak: v1\nroles: {w: {timeout: 300ms, command: [actor, sleep=60]}}",
        124,
        &[
            ("run", "submitted stopping:peer_failed diagnosed:w-0=SIG15 finished:failed=124"),
            ("w-0", "starting@1 started@1 timed_out@1:run ended@1=SIG15/us"),
        ],
    ),
    row(
        "never ready",
        "umiak: v1\nroles: {s: {start_timeout: 300ms, ports: {rpc: 1}, command: [actor, sleep=60]}, w: {command: [actor], start_after: s}}",
        1,
        &[
            ("run", "submitted stopping:peer_failed diagnosed:s-0=SIG15 finished:failed=1"),
            ("s-0", "starting@1 started@1 timed_out@1:start ended@1=SIG15/us"),
        ],
    ),
    row(
        "of several roles",
        "umiak: v1\nroles: {a: {command: [actor, sleep=60]}, b: {command: [actor, exit=7]}}",
        1,
        &[
            ("run", "submitted stopping:peer_failed diagnosed:b-0=7 finished:failed=1"),
            ("a-0", "starting@1 started@1 ended@1=SIG15/us"),
            ("b-0", "starting@1 started@1 ended@1=7"),
        ],
    ),
];

const SLEEPERS: &str = "umiak: v1\nroles: {w: {replicas: 2, command: [actor, print=up, sleep=60]}}";
const DEAF: &str =
    "umiak: v1\npolicy: {grace: 1m}\nroles: {w: {replicas: 2, command: [actor, ignore-term, print=up, sleep=60]}}";
const POLITE: &str = "umiak: v1\nroles: {w: {command: [actor, on-term=0, print=up, sleep=60]}}";

const STOP: &[Row] = &[
    Row {
        name: "umiak stop",
        document: SLEEPERS,
        meanwhile: Meanwhile::Stop(""),
        in_parts: false,
        code: 3,
        story: &[
            ("run", "submitted stopping:user finished:stopped=3"),
            ("w-0", "starting@1 started@1 ended@1=SIG15/us"),
            ("w-1", "starting@1 started@1 ended@1=SIG15/us"),
        ],
    },
    Row {
        name: "umiak stop --kill",
        document: DEAF,
        meanwhile: Meanwhile::Stop("--kill"),
        in_parts: false,
        code: 3,
        story: &[
            ("run", "submitted stopping:user finished:stopped=3"),
            ("w-0", "starting@1 started@1 ended@1=SIG9/us"),
            ("w-1", "starting@1 started@1 ended@1=SIG9/us"),
        ],
    },
    Row {
        name: "a replica that handles SIGTERM",
        document: POLITE,
        meanwhile: Meanwhile::Stop(""),
        in_parts: false,
        code: 3,
        story: &[("run", "submitted stopping:user finished:stopped=3"), ("w-0", "starting@1 started@1 ended@1=0/us")],
    },
    Row {
        name: "Ctrl-C",
        document: SLEEPERS,
        meanwhile: Meanwhile::Signals(&[2]),
        in_parts: false,
        code: 130,
        story: &[
            ("run", "submitted stopping:signal finished:interrupted=130"),
            ("w-0", "starting@1 started@1 ended@1=SIG2/us"),
            ("w-1", "starting@1 started@1 ended@1=SIG2/us"),
        ],
    },
    Row {
        name: "Ctrl-C twice",
        document: DEAF,
        meanwhile: Meanwhile::Signals(&[2, 2]),
        in_parts: false,
        code: 130,
        story: &[
            ("run", "submitted stopping:signal stopping:second_signal finished:interrupted=130"),
            ("w-0", "starting@1 started@1 ended@1=SIG9/us"),
            ("w-1", "starting@1 started@1 ended@1=SIG9/us"),
        ],
    },
    Row {
        name: "SIGTERM",
        document: SLEEPERS,
        meanwhile: Meanwhile::Signals(&[15]),
        in_parts: false,
        code: 143,
        story: &[
            ("run", "submitted stopping:signal finished:interrupted=143"),
            ("w-0", "starting@1 started@1 ended@1=SIG15/us"),
            ("w-1", "starting@1 started@1 ended@1=SIG15/us"),
        ],
    },
];

const RETRY: &[Row] = &[
    in_parts(row(
        "the replica",
        "umiak: v1\nroles: {w: {replicas: 2, restarts: {max: 2, backoff: 10ms}, command: [actor, '1@1:exit=3', '1@2:signal=9', sleep=1]}}",
        0,
        &[
            ("run", "submitted finished:succeeded=0"),
            ("w-0", "starting@1 started@1 ended@1=0"),
            (
                "w-1",
                "starting@1 started@1 ended@1=3 attempt_failed@1 retrying@2:user starting@2 started@2 ended@2=SIG9 attempt_failed@2 retrying@3:user starting@3 started@3 ended@3=0",
            ),
        ],
    )),
    in_parts(row(
        "its role",
        "umiak: v1\nroles: {w: {replicas: 2, restart: {max: 1, scope: role, backoff: 10ms}, command: [actor, '1@1:exit=3', '@1:sleep=60']}, other: {command: [actor, sleep=1]}}",
        0,
        &[
            ("run", "submitted finished:succeeded=0"),
            ("other-0", "starting@1 started@1 ended@1=0"),
            ("w-0", "starting@1 started@1 ended@1=SIG15/us retrying@2:user starting@2 started@2 ended@2=0"),
            ("w-1", "starting@1 started@1 ended@1=3 attempt_failed@1 retrying@2:user starting@2 started@2 ended@2=0"),
        ],
    )),
    row(
        "the job",
        "umiak: v1\npolicy: {restarts: 1, backoff: 10ms}\nroles: {w: {replicas: 2, command: [actor, '1@1:exit=3', '@1:sleep=60']}}",
        0,
        &[
            ("run", "submitted stopping:peer_failed diagnosed:w-1=3 restarting@2 finished:succeeded=0"),
            ("w-0", "starting@1 started@1 ended@1=SIG15/us starting@2 started@2 ended@2=0"),
            ("w-1", "starting@1 started@1 ended@1=3 starting@2 started@2 ended@2=0"),
        ],
    ),
    in_parts(row(
        "the replica, then the job, then no restart",
        "umiak: v1\npolicy: {restarts: 1, backoff: 10ms}\nroles: {w: {restarts: {max: 1, backoff: 10ms}, command: [actor, exit=3]}}",
        3,
        &[
            (
                "run",
                "submitted stopping:peer_failed diagnosed:w-0=3 restarting@2 stopping:peer_failed diagnosed:w-0=3 finished:failed=3",
            ),
            (
                "w-0",
                "starting@1 started@1 ended@1=3 attempt_failed@1 retrying@2:user starting@2 started@2 ended@2=3 starting@3 started@3 ended@3=3 attempt_failed@3 retrying@4:user starting@4 started@4 ended@4=3",
            ),
        ],
    )),
    in_parts(row(
        "a command that cannot be executed is not retried",
        "umiak: v1\npolicy: {restarts: 3}\nroles: {w: {restarts: 3, command: [broken, spawn-fails=2]}}",
        127,
        &[
            ("run", "submitted stopping:peer_failed diagnosed:w-0=spawn finished:failed=127"),
            ("w-0", "starting@1 started@1 ended@1=spawn"),
        ],
    )),
];

const COMPLETION: &[Row] = &[
    row(
        "one failure of two that are allowed",
        "umiak: v1\nroles: {w: {replicas: 3, completion: {min_failed: 2, min_succeeded: 2}, command: [actor, '1:exit=3', sleep=1]}}",
        0,
        &[
            ("run", "submitted finished:succeeded=0"),
            ("w-0", "starting@1 started@1 ended@1=0"),
            ("w-1", "starting@1 started@1 ended@1=3"),
            ("w-2", "starting@1 started@1 ended@1=0"),
        ],
    ),
    row(
        "the first success is enough",
        "umiak: v1\nroles: {w: {replicas: 2, completion: {min_succeeded: 1}, command: [actor, '1:sleep=60']}}",
        0,
        &[
            ("run", "submitted stopping:completed finished:succeeded=0"),
            ("w-0", "starting@1 started@1 ended@1=0"),
            ("w-1", "starting@1 started@1 ended@1=SIG15/us"),
        ],
    ),
    row(
        "a role that does not decide is stopped without blame",
        "umiak: v1\nroles: {s: {completes: false, command: [actor, sleep=60]}, w: {command: [actor]}}",
        0,
        &[
            ("run", "submitted stopping:completed finished:succeeded=0"),
            ("s-0", "starting@1 started@1 ended@1=SIG15/us"),
            ("w-0", "starting@1 started@1 ended@1=0"),
        ],
    ),
];

const ORDER: &[Row] = &[
    row(
        "started",
        "umiak: v1\nroles: {s: {command: [actor, sleep=1]}, w: {command: [actor], start_after: {role: s, when: started}}}",
        0,
        &[
            ("run", "submitted finished:succeeded=0"),
            ("s-0", "starting@1 started@1 ended@1=0"),
            ("w-0", "starting@1 started@1 ended@1=0"),
        ],
    ),
    row(
        "ready",
        "umiak: v1\nroles: {s: {completes: false, ports: {rpc: 2}, command: [actor, sleep=200ms, ready, sleep=60]}, w: {command: [actor], start_after: s}}",
        0,
        &[
            ("run", "submitted stopping:completed finished:succeeded=0"),
            ("s-0", "starting@1 started@1 ready@1 ended@1=SIG15/us"),
            ("w-0", "starting@1 started@1 ended@1=0"),
        ],
    ),
    row(
        "succeeded",
        "umiak: v1\nroles: {s: {replicas: 2, command: [actor, '1:sleep=300ms']}, w: {command: [actor], start_after: {role: s, when: succeeded}}}",
        0,
        &[
            ("run", "submitted finished:succeeded=0"),
            ("s-0", "starting@1 started@1 ended@1=0"),
            ("s-1", "starting@1 started@1 ended@1=0"),
            ("w-0", "starting@1 started@1 ended@1=0"),
        ],
    ),
];

/// Runs every row on every engine.
fn check(columns: Columns, rows: &'static [Row]) {
    let (engines, slurm) = columns.open();
    let all = rows.iter().flat_map(|row| engines.iter().map(move |engine| (row, *engine)));
    let slurm = slurm.as_ref();
    let trial = |(row, engine): (&'static Row, EngineKind)| {
        (format!("{} on {}", row.name, engine.word()), move || perform(row, engine, slurm))
    };
    together(all.map(trial).collect());
}

fn perform(row: &Row, engine: EngineKind, slurm: Option<&Slurm>) {
    let stage = Stage::on(engine.word(), slurm);
    if row.in_parts && engine.capabilities().unit == Unit::Gang {
        return refused(&stage, row.document);
    }
    let running = stage.run(row.document).start();
    intervene(&stage, &running, row.meanwhile);
    let outcome = running.finish();
    let facts = facts(&stage, &outcome);
    let expected: BTreeMap<String, String> =
        row.story.iter().map(|(who, story)| ((*who).to_owned(), (*story).to_owned())).collect();
    let seen = stories(&facts);
    assert!(seen == expected, "seen {seen:#?}\nexpected {expected:#?}\nstderr {}", outcome.err());
    outcome.expect_code(row.code);
    in_order(row, &facts);
    stage.assert_nothing_left();
}

/// The document is refused before a run exists.
fn refused(stage: &Stage, document: &str) {
    stage.run(document).finish().expect_code(2).expect_err("J0030").expect_err(stage.engine);
    assert!(!stage.run_dir().exists());
}

fn intervene(stage: &Stage, running: &Running<'_>, meanwhile: Meanwhile) {
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::Stop(flags) => {
            everybody_is_up(stage, running);
            stage.umiak(&format!("stop {flags} 1")).start().finish_unchecked().expect_code(0);
        }
        Meanwhile::Signals(signals) => {
            everybody_is_up(stage, running);
            for (number, signal) in signals.iter().enumerate() {
                running.signal(*signal);
                let stops = || stage.journal().iter().filter(|fact| fact["type"] == "stopping").count();
                running.wait_until("the signal is recorded", || stops() > number);
            }
        }
    }
}

fn everybody_is_up(stage: &Stage, running: &Running<'_>) {
    let replicas = || stage.journal().iter().filter(|fact| fact["type"] == "started").count();
    running.wait_until("all replicas are started", || {
        let planned =
            stage.journal().iter().find(|fact| fact["type"] == "planned").map(|fact| fact["world_size"].clone());
        planned.and_then(|size| size.as_u64()).is_some_and(|size| replicas() as u64 == size)
    });
    for started in stage.journal().iter().filter(|fact| fact["type"] == "started") {
        stage.wait_for_log(running, super::name(&started["subject"]), 1, "up");
    }
}

/// A role with `start_after` starts after that condition is met.
fn in_order(row: &Row, facts: &[serde_json::Value]) {
    let first = match row.name {
        "started" => "started",
        "ready" => "ready",
        "succeeded" => "ended",
        _ => return,
    };
    let position = |kind: &str, role: &str| {
        let of = |fact: &serde_json::Value| {
            fact["type"] == kind && fact["subject"]["replica"].as_str().is_some_and(|name| name.starts_with(role))
        };
        facts.iter().rposition(of).expect("it is there")
    };
    assert!(position(first, "s-") < position("starting", "w-"), "{}", row.name);
}

fn on_all(columns: Columns, test: impl Fn(&Stage, Capabilities) + Copy + Send + Sync) {
    let (engines, slurm) = columns.open();
    let slurm = slurm.as_ref();
    let one = |engine: &EngineKind| {
        let engine = *engine;
        (engine.word().to_owned(), move || test(&Stage::on(engine.word(), slurm), engine.capabilities()))
    };
    together(engines.iter().map(one).collect());
}

/// Delays double each time, with some jitter, up to the maximum.
fn back_off(columns: Columns) {
    let document =
        "umiak: v1\nroles: {w: {restarts: {max: 3, backoff: 100ms, max_backoff: 300ms}, command: [actor, exit=3]}}";
    on_all(columns, |stage, can| {
        if can.unit == Unit::Gang {
            return refused(stage, document);
        }
        let outcome = stage.run(document).finish();
        outcome.expect_code(3);
        let facts = facts(stage, &outcome);
        let at = |fact: &serde_json::Value| fact["at"].as_u64().expect("a time");
        let of = |kind: &str| facts.iter().filter(|fact| fact["type"] == kind).cloned().collect::<Vec<_>>();
        let waits =
            of("retrying").iter().map(|fact| fact["delay_micros"].as_u64().expect("a time")).collect::<Vec<_>>();
        let starts = of("starting");
        assert_eq!((waits.len(), starts.len()), (3, 4));
        for ((delay, ended), start) in waits.iter().zip(of("ended")).zip(&starts[1..]) {
            // Records are stamped when written, which may be slightly after the decision.
            let waited = at(start) - at(&ended);
            assert!(waited >= delay / 2, "started after {waited} µs instead of {delay}");
        }
        for (delay, expected) in waits.iter().zip([100_000, 200_000, 300_000]) {
            assert!((expected / 2..=expected * 3 / 2).contains(delay), "{waits:?}");
        }
    });
}

/// There is no replica to stop, so the run ends at once.
fn stop_in_back_off(columns: Columns) {
    let of_replica = "roles: {w: {restarts: {max: 1, backoff: 1h, max_backoff: 1h}, command: [actor, exit=3]}}";
    let of_job = "policy: {restarts: 1, backoff: 1h, max_backoff: 1h}\nroles: {w: {command: [actor, exit=3]}}";
    for (document, fact) in [(of_replica, "retrying"), (of_job, "restarting")] {
        let is_refused = |can: Capabilities| can.unit == Unit::Gang && document == of_replica;
        on_all(columns, |stage, can| {
            if is_refused(can) {
                return refused(stage, &format!("umiak: v1\n{document}"));
            }
            let running = stage.run(&format!("umiak: v1\n{document}")).start();
            running.wait_until(fact, || stage.journal().iter().any(|record| record["type"] == fact));
            stage.umiak("stop 1").start().finish_unchecked().expect_code(0);
            running.finish().expect_code(3);
            assert!(stories(&stage.journal())["run"].ends_with("finished:stopped=3"), "{:?}", stage.journal());
            stage.assert_nothing_left();
        });
        on_all(columns, |stage, can| {
            if is_refused(can) {
                return;
            }
            let running = stage.run(&format!("umiak: v1\n{document}")).start();
            running.wait_until(fact, || stage.journal().iter().any(|record| record["type"] == fact));
            running.signal(2);
            running.finish().expect_code(130);
            stage.assert_nothing_left();
        });
    }
}

/// Replicas that were never started have no facts.
fn stop_while_waiting(columns: Columns) {
    let document = "umiak: v1\nroles: {s: {ports: {rpc: 1}, command: [actor, print=up, sleep=60]}, w: {command: [actor], start_after: s}}";
    on_all(columns, |stage, _| {
        let running = stage.run(document).start();
        stage.wait_for_log(&running, "s-0", 1, "up");
        stage.umiak("stop 1").start().finish_unchecked().expect_code(0);
        let outcome = running.finish();
        outcome.expect_code(3);
        let seen = stories(&facts(stage, &outcome));
        assert_eq!(seen["s-0"], "starting@1 started@1 ended@1=SIG15/us");
        assert!(!seen.contains_key("w-0"), "{seen:?}");
        stage.assert_nothing_left();
    });
}

fn logs(columns: Columns) {
    let of_replica = "umiak: v1\nroles: {w: {replicas: 2, restarts: {max: 1, backoff: 10ms}, command: [actor, '0:print=zero', '1:print=one', '1@1:exit=3']}}";
    let of_job = "umiak: v1\npolicy: {restarts: 1, backoff: 10ms}\nroles: {w: {replicas: 2, command: [actor, '0:print=zero', '1:print=one', '1@1:exit=3']}}";
    on_all(columns, |stage, can| {
        let document = if can.unit == Unit::Gang { of_job } else { of_replica };
        stage.run(document).finish().expect_code(0);
        assert_eq!(
            (stage.log("w-0", 1), stage.log("w-1", 1), stage.log("w-1", 2)),
            ("zero\n".into(), "one\n".into(), "one\n".into())
        );
        let said = stage.umiak("logs 1 w").finish();
        said.expect_code(0);
        let mut lines: Vec<String> = said.out().lines().map(str::to_owned).collect();
        lines.sort();
        assert!(lines.iter().any(|line| line.contains("w-0") && line.contains("zero")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("w-1") && line.contains("one")), "{lines:?}");
        for name in ["command", "env", "log", "exit.json"] {
            assert!(stage.run_dir().join("tasks/w-1/attempt-1").join(name).exists(), "{name} is missing");
        }
    });
}

/// Live replicas that could not survive restart without blame; ended ones do not.
fn lost_supervisor(columns: Columns) {
    on_all(columns, |stage, can| {
        let time = if can.adoption { 1 } else { 60 };
        let running = stage.run(&format!("umiak: v1\nroles: {{done: {{command: [actor, print=done]}}, w: {{command: [actor, '@1:print=up', '@1:sleep={time}']}}}}")).start();
        stage.wait_for_log(&running, "w-0", 1, "up");
        running.wait_until("`done` has ended", || stage.journal().iter().any(|fact| fact["type"] == "ended"));
        running.signal(9);
        running.finish_unchecked();
        if !can.adoption {
            stage.sandbox.assert_nothing_left();
        }
        let outcome = stage.umiak("resume 1 --output json").finish();
        outcome.expect_code(0);
        let seen = stories(&stage.journal());
        let expected = if can.adoption {
            "starting@1 started@1 ended@1=0"
        } else {
            "starting@1 started@1 ended@1=lost starting@2 started@2 ended@2=0"
        };
        assert_eq!(seen["w-0"], expected);
        assert_eq!(seen["done-0"], "starting@1 started@1 ended@1=0");
        assert_eq!(seen["run"], "submitted resumed finished:succeeded=0");
        stage.assert_nothing_left();
    });
}

/// A process left behind by a replica is found and stopped, on engines with processes.
fn left_behind(columns: Columns) {
    let document = "umiak: v1\nroles: {w: {command: [actor, leave]}}";
    on_all(columns, |stage, _| {
        let outcome = stage.run(document).finish();
        outcome.expect_code(0);
        let swept = facts(stage, &outcome).into_iter().find(|fact| fact["type"] == "swept");
        let has_processes = !stage.engine.starts_with("mock");
        assert_eq!(swept.is_some(), has_processes);
        stage.assert_nothing_left();
    });
}

/// Runs the test on engines whose replicas survive the supervisor.
fn on_adopting(columns: Columns, test: impl Fn(&Stage) + Copy + Send + Sync) {
    on_all(columns, |stage, can| {
        if can.adoption {
            test(stage);
        }
    });
}

/// Kills the supervisor; its replicas keep running.
fn kill(stage: &Stage, running: Running<'_>) {
    running.signal(9);
    running.finish_unchecked();
    stage.wait_until_free();
}

/// The supervisor is killed, and the next one adopts all replicas: one start, one end, all output.
fn adopted_running(columns: Columns) {
    on_adopting(columns, |stage| {
        let document = "umiak: v1\nroles: {w: {replicas: 3, command: [actor, print=up, sleep=700ms, print=on, sleep=500ms, print=down]}}";
        let running = stage.run(document).start();
        everybody_is_up(stage, &running);
        kill(stage, running);
        let outcome = stage.umiak("resume 1").finish();
        outcome.expect_code(0).expect_err("adopted 3 replicas");
        let seen = stories(&stage.journal());
        assert_eq!(seen["run"], "submitted resumed finished:succeeded=0");
        for name in ["w-0", "w-1", "w-2"] {
            assert_eq!(seen[name], "starting@1 started@1 ended@1=0");
            assert_eq!(stage.log(name, 1), "up\non\ndown\n");
        }
        stage.assert_nothing_left();
    });
}

/// The supervisor is killed before anything has started.
fn adopted_pending(columns: Columns) {
    on_adopting(columns, |stage| {
        let is_simulated = stage.engine == "mock-cluster";
        // In a real queue it waits for a time.
        let (queue, flags) = if is_simulated { ("queue=1s, ", "") } else { ("", "--slurm begin=now+3") };
        let document = format!("umiak: v1\nroles: {{w: {{replicas: 2, command: [actor, {queue}print=up]}}}}");
        stage.sandbox.write("job.yaml", &document);
        let line = format!("run job.yaml --output json --engine {} {flags}", stage.engine);
        let running = stage.umiak(&line).start();
        running.wait_until("a reason", || stage.journal().iter().any(|fact| fact["type"] == "pending"));
        kill(stage, running);
        stage.umiak("resume 1 --output json").finish().expect_code(0);
        let facts = stage.journal();
        let seen = stories(&facts);
        assert_eq!(seen["run"], "submitted resumed finished:succeeded=0");
        for name in ["w-0", "w-1"] {
            assert_eq!(seen[name], "starting@1 started@1 ended@1=0");
            assert_eq!(stage.log(name, 1), "up\n");
        }
        let reasons: Vec<&str> =
            facts.iter().filter(|fact| fact["type"] == "pending").map(|fact| super::text(&fact["reason"])).collect();
        if is_simulated {
            let expected = ["queued behind 2 gangs", "too few free nodes for 2 replicas"];
            assert_eq!(reasons, expected, "each reason is recorded once");
        }
        stage.assert_nothing_left();
    });
}

/// The supervisor records the handle and is killed before it submits, so the engine has no such gang.
fn killed_at_submission(columns: Columns) {
    on_adopting(columns, |stage| {
        let document = "umiak: v1\nroles: {w: {replicas: 2, command: [actor, print=up]}}";
        let usual = stage.another();
        usual.run(document).finish().expect_code(0);
        let facts = usual.journal();
        let submitted = facts.iter().position(|fact| fact["type"] == "submitted").expect("a handle");
        let die = (submitted + 1).to_string();
        stage.run(document).env("UMIAK_TEST_JOURNAL_DIE", die).start().finish_unchecked();
        assert_eq!(stage.journal().last().expect("records")["type"], "submitted");
        stage.umiak("resume 1").finish().expect_code(0);
        let seen = stories(&stage.journal());
        for name in ["w-0", "w-1"] {
            assert_eq!(seen[name], "starting@1 ended@1=lost starting@2 started@2 ended@2=0");
            assert_eq!((stage.log(name, 1), stage.log(name, 2)), (String::new(), "up\n".to_owned()));
        }
        stage.assert_nothing_left();
    });
}

/// All replicas end while there is no supervisor; the next supervisor handles it.
fn adopted_ends(columns: Columns) {
    on_adopting(columns, |stage| {
        let document = "umiak: v1\nroles: {w: {replicas: 2, command: [actor, print=up, sleep=300ms, '1:print=bad', '1:exit=7', sleep=100ms, print=good]}}";
        let running = stage.run(document).start();
        everybody_is_up(stage, &running);
        kill(stage, running);
        // Most have ended by now; the expected result is the same either way.
        std::thread::sleep(std::time::Duration::from_millis(700));
        stage.umiak("resume 1").finish().expect_code(7);
        let seen = stories(&stage.journal());
        assert_eq!(seen["w-1"], "starting@1 started@1 ended@1=7");
        assert!(seen["run"].starts_with("submitted resumed stopping:peer_failed diagnosed:w-1=7"), "{seen:?}");
        assert_eq!(stage.log("w-1", 1), "up\nbad\n");
        stage.assert_nothing_left();
    });
}

/// A stop through the second supervisor reaches replicas started by the first.
fn adopted_and_stopped(columns: Columns) {
    on_adopting(columns, |stage| {
        for (document, end) in [(SLEEPERS, "SIG15/us"), (DEAF, "SIG9/us")] {
            let stage = &stage.another();
            let running = stage.run(document).start();
            everybody_is_up(stage, &running);
            kill(stage, running);
            let resumed = stage.umiak("resume 1").start();
            let is_resumed = |fact: &serde_json::Value| fact["why"] == "resumed";
            resumed.wait_until("a second supervisor", || stage.journal().iter().any(is_resumed));
            let flags = if document == DEAF { "--kill" } else { "" };
            stage.umiak(&format!("stop {flags} 1")).start().finish_unchecked().expect_code(0);
            resumed.finish().expect_code(3);
            let seen = stories(&stage.journal());
            assert_eq!(seen["run"], "submitted resumed stopping:user finished:stopped=3");
            for name in ["w-0", "w-1"] {
                assert_eq!(seen[name], format!("starting@1 started@1 ended@1={end}"));
            }
            stage.assert_nothing_left();
        }
    });
}
