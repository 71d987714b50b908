//! The console of a pipeline: a tree on a terminal, lines elsewhere.

use std::path::Path;

use umiak_testkit::sandbox::binary;
use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::{Session, render};

use super::Place;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pipelines::progress::a_tree_is_drawn_and_leaves_nothing", &[], tree)
        .test("pipelines::progress::output_and_the_tree_do_not_mix", &[], output)
        .test("pipelines::progress::a_failure_is_explained_after_the_last_tree", &[], failure)
        .test("pipelines::progress::ctrl_c_is_answered_once", &[], interrupted)
        .test("pipelines::progress::a_retry_shows_what_is_kept", &[], retried)
        .test("pipelines::progress::a_narrow_terminal_and_ascii", &[], narrow)
        .test("pipelines::progress::lines_in_a_pipe", &[], lines)
        .test("pipelines::progress::siblings_of_a_failed_step_say_why_they_stop", &[], fail_fast)
        .test("pipelines::progress::attach_shows_the_same", &[], attached);
}

const SIZE: (u16, u16) = (100, 30);

/// Waits for a file.
const WAIT: &str = "until [ -e go ]; do sleep 0.02; done";

/// A loop, a DAG with a condition that is false, a distributed step, a step after it and one at the end.
fn document() -> String {
    format!(
        "
name: ctr
entry_points:
  prepare: {{command: 'true'}}
  split: {{deps: prepare, command: 'true', loop_argument: [a, b, c]}}
  check:
    deps: split
    entry_points:
      rows: {{command: 'true'}}
      extra: {{deps: rows, condition: '1 > 2', command: 'true'}}
  train:
    deps: check
    distributed_job:
      framework: paddle
      members:
        - {{role: pserver, replicas: 2, command: '{WAIT}'}}
        - {{role: pworker, replicas: 2, command: '{WAIT}'}}
  evaluate: {{deps: train, command: 'true'}}
post_process:
  notify: {{command: 'true'}}
"
    )
}

fn has(screen: &[String], text: &str) -> bool {
    screen.iter().any(|line| line.contains(text))
}

/// Everything that a finished session left on the terminal, also what was scrolled away.
fn scrolled(bytes: &[u8]) -> Vec<String> {
    render(bytes, (SIZE.0, 300)).into_iter().filter(|line| !line.is_empty()).collect()
}

/// The first words of lines: mark and name.
fn heads(lines: &[String]) -> Vec<String> {
    let head = |line: &String| line.split("  ").find(|part| !part.is_empty()).unwrap_or_default().trim().to_owned();
    lines.iter().map(head).collect()
}

const LAST_TREE: [&str; 9] = [
    "✓ prepare",
    "✓ split [3/3]",
    "✓ check",
    "✓ rows",
    "⊘ extra",
    "✓ train",
    "✓ evaluate",
    "✓ notify (post)",
    "Finished 9 steps in",
];

fn tree() {
    let place = Place::default();
    let session = Session::of(place.run(&document(), &[]), SIZE);
    session.wait_for("the tree", |screen| has(screen, "▸ train") && has(screen, "pserver ▸▸  worker ▸▸"));
    let screen = session.screen();
    for text in [
        " ▸ run-000001 ctr  0:00:0",
        "6/9 steps  1 running  0 cached  0 failed  █████████████░░░░░░░",
        "✓ prepare",
        "✓ split [3/3]",
        "✓ check",
        "· evaluate                waits for train",
        "· notify (post)           runs at the end, whatever happens",
    ] {
        assert!(has(&screen, text), "{text}:\n{}", screen.join("\n"));
    }
    place.sandbox.write("go", "");
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(0));
    let lines = scrolled(&bytes);
    assert!(lines[0].starts_with("   Planned pipeline ctr · 7 steps"), "{}", lines.join("\n"));
    let heads = heads(&lines[1..]);
    assert_eq!(heads.len(), LAST_TREE.len(), "nothing of the drawn tree remains:\n{}", lines.join("\n"));
    for (head, expected) in heads.iter().zip(LAST_TREE) {
        assert!(head.starts_with(expected), "{expected}:\n{}", lines.join("\n"));
    }
}

fn output() {
    let place = Place::default();
    let document = format!(
        "name: loud\nentry_points:\n  a: {{command: 'for i in $(seq 100); do echo line $i; sleep 0.01; done; {WAIT}'}}\n  b: {{deps: a, command: 'true'}}\n"
    );
    let session = Session::of(place.run(&document, &["--show", "all"]), SIZE);
    session.wait_for("the tree below the last line", |screen| {
        let at = |text: &str| screen.iter().position(|line| line.contains(text));
        at("line 100").zip(at("▸ a")).is_some_and(|(line, tree)| line < tree) && has(screen, "waits for a")
    });
    place.sandbox.write("go", "");
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(0));
    let lines = scrolled(&bytes);
    let shown: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("a | line ")).collect();
    let expected: Vec<String> = (1..=100).map(|number| number.to_string()).collect();
    assert_eq!(shown, expected, "{}", lines.join("\n"));
    assert_eq!(heads(&lines[101..])[..2], ["✓ a", "✓ b"], "{}", lines.join("\n"));
}

const FAILS: &str = "name: bad\nentry_points:\n  a: {command: 'echo ValueError: bad table; exit 3'}\n  b: {command: 'exec sleep 100'}\n  c: {deps: a, command: 'true'}\n";

fn failure() {
    let place = Place::default();
    let (status, bytes) = Session::of(place.run(FAILS, &[]), SIZE).finish();
    assert_eq!(status.code(), Some(1));
    let lines = scrolled(&bytes);
    let at =
        |text: &str| lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {lines:#?}"));
    let order = [at("✗ a"), at("⊘ b"), at("⊘ c"), at("✗ step a"), at("Failed 1 step")];
    assert!(order.is_sorted(), "{}", lines.join("\n"));
    assert!(lines[at("✗ a")].ends_with("main-0 exited with 3: ValueError: bad table"), "{}", lines.join("\n"));
    assert_eq!(lines.iter().filter(|line| line.contains("✗ step a")).count(), 1);
}

fn interrupted() {
    let place = Place::default();
    let mut session = Session::of(
        place.run("name: p\nentry_points:\n  a: {command: 'exec sleep 100'}\n  b: {command: 'exec sleep 100'}\n", &[]),
        SIZE,
    );
    session.wait_for("both steps", |screen| has(screen, "2 running"));
    session.type_keys(b"\x03");
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(130));
    let lines = scrolled(&bytes);
    let answers: Vec<&String> = lines.iter().filter(|line| line.contains("Stopping")).collect();
    assert_eq!(answers.len(), 1, "{}", lines.join("\n"));
    assert!(answers[0].ends_with("Stopping 2 steps after SIGINT; press Ctrl-C again to kill"), "{}", answers[0]);
    assert!(has(&lines, "⊘ a") && has(&lines, "⊘ b"), "{}", lines.join("\n"));
}

fn retried() {
    let place = Place::default();
    let document = "name: p\nentry_points:\n  a: {command: 'true'}\n  b: {deps: a, command: 'exit 1'}\n";
    place.run(document, &[]).finish().expect_code(1);
    let piped = place.sandbox.umiak(["retry", "1"]).finish();
    assert!(piped.expect_code(1).err().contains(" a cached from run-000001\n"), "{}", piped.err());
    let (status, bytes) = Session::of(place.sandbox.umiak(["retry", "1"]), SIZE).finish();
    assert_eq!(status.code(), Some(1));
    let lines = scrolled(&bytes);
    let a = lines.iter().find(|line| line.contains("≈ a")).unwrap_or_else(|| panic!("{}", lines.join("\n")));
    assert!(a.ends_with("cached from run-000001"), "{a}");
}

fn narrow() {
    let place = Place::default();
    let session = Session::of(place.run(&document(), &["--ascii"]), (50, 12));
    session.wait_for("the short form", |screen| {
        screen.iter().any(|line| line.starts_with(" > 0:00:") && line.ends_with("6/9  1 >"))
            && screen.iter().any(|line| line.starts_with("  > train 0:0"))
    });
    place.sandbox.write("go", "");
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(0));
    assert!(bytes.is_ascii(), "{}", String::from_utf8_lossy(&bytes));
}

/// Lines without their times and durations.
fn untimed(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let (time, rest) = line.split_once(' ').unwrap_or_else(|| panic!("no time: {line}"));
        assert!(time.len() == 8 && time.as_bytes()[2] == b':', "no time: {line}");
        rest.split(" in ").next().unwrap_or_default().to_owned()
    };
    text.lines().map(line).collect()
}

fn lines() {
    let place = Place::default();
    place.sandbox.write("go", "");
    let document = document().replace("[a, b, c]", "[a]");
    let outcome = place.run(&document, &[]).finish();
    outcome.expect_code(0);
    let expected = [
        "planned pipeline ctr, 7 steps, engine local, run-000001",
        "prepare started",
        "prepare finished",
        "split started (1 item)",
        "split.0 started",
        "split.0 finished",
        "split finished",
        "check started",
        "check.rows started",
        "check.rows finished",
        "check.extra skipped: its condition is false",
        "check finished",
        "train started (2 pserver, 2 worker)",
        "train finished",
        "evaluate started",
        "evaluate finished",
        "notify started",
        "notify finished",
        "finished 7 steps",
    ];
    assert_eq!(untimed(&outcome.err()), expected);
}

fn fail_fast() {
    let place = Place::default();
    let outcome = place.run(FAILS, &[]).finish();
    outcome.expect_code(1);
    let err = outcome.err();
    assert!(err.contains(" b stopping with SIGTERM: step a failed\n"), "{err}");
    assert!(err.contains(" b stopped after ") && err.contains(" c cancelled\n"), "{err}");
    assert!(!err.contains("umiak stop"), "nobody has asked for it: {err}");
    let events = place.sandbox.umiak(["events", "1"]).start().finish_unchecked().out();
    assert!(events.contains("b: stopping: another step failed\n"), "{events}");
    assert!(!events.contains("umiak stop"), "{events}");
}

fn attached() {
    let place = Place::default();
    let running = place.run(&document(), &[]).start();
    running.wait_until("the step that waits", || {
        place.journal().iter().filter(|fact| fact["type"] == "started" && fact["step"] == "train").count() == 4
    });
    let session = Session::of(place.sandbox.umiak(["attach"]), SIZE);
    session.wait_for("the tree", |screen| has(screen, "▸ train") && has(screen, "pserver ▸▸  worker ▸▸"));
    assert!(has(&session.screen(), "6/9 steps  1 running"), "{}", session.screen().join("\n"));
    let mut left = Session::of(place.sandbox.umiak(["attach", "1"]), SIZE);
    left.wait_for("another tree", |screen| has(screen, "▸ train"));
    left.type_keys(b"\x03");
    left.wait_for("how to come back", |screen| {
        has(screen, "detached; run-000001 is still running") && !has(screen, "▸")
    });
    let unknown = place.sandbox.umiak(["attach", "1", "trian"]).start().finish_unchecked();
    unknown.expect_code(2).expect_err("there is a step `train`");
    let line = format!("exec {} attach 1 2> attached.txt", binary().display());
    let piped = place.sandbox.program(Path::new("/bin/sh"), ["-c", &line]).start();
    let err = || String::from_utf8(place.sandbox.read_if_there("attached.txt").unwrap_or_default()).expect("text");
    piped.wait_until("it is attached", || err().contains("attached run-000001, ctr, 1 running\n"));
    place.sandbox.write("go", "");
    running.finish_unchecked().expect_code(0);
    piped.finish_unchecked().expect_code(0);
    assert_eq!(
        untimed(err().rsplit_once("✓ run-000001 ctr succeeded").expect("the end").0)[1..],
        ["train finished", "evaluate started", "evaluate finished", "notify started", "notify finished"],
    );
    assert_eq!(left.finish().0.code(), Some(130));
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(0));
    let lines = scrolled(&bytes);
    assert!(lines[0].ends_with("Attached run-000001 · ctr · 1 running"), "{}", lines.join("\n"));
    assert_eq!(heads(&lines[1..])[..8], LAST_TREE[..8], "{}", lines.join("\n"));
}
