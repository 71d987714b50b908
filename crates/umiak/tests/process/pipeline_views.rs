//! What users see of pipelines: `logs`, `show`, `explain`, `plan`, `ls`, `events`.

use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pipeline_views::logs_of_steps", &[], logs)
        .test("pipeline_views::logs_follow_steps", &[], logs_follow)
        .test("pipeline_views::lists_and_events_name_steps", &[], lists)
        .test("pipeline_views::show_has_the_tree", &[], show)
        .test("pipeline_views::explain_names_step_replica_and_cause", &[], explain)
        .test("pipeline_views::plans_and_graphs", &[], plans);
}

/// A loop, a DAG, a condition that is false, a distributed step that fails, a step after it and one at the end.
const PIPELINE: &str = r#"
name: ctr
docker_env: paddle:2.0
fs_options:
  main_fs: {name: data}
entry_points:
  prepare:
    parameters: {day: 7}
    artifacts:
      output: [table]
    command: echo prepared day {{day}}; echo rows > {{table}}
  split:
    deps: prepare
    loop_argument: [a, b, c]
    command: echo shard {{PF_LOOP_ARGUMENT}}
  check:
    deps: prepare
    entry_points:
      rows:
        command: echo rows are fine
      extra:
        condition: "1 > 2"
        command: echo never
  train:
    deps: split, check, prepare
    artifacts:
      input:
        table: "{{prepare.table}}"
    distributed_job:
      framework: paddle
      members:
        - role: pserver
          replicas: 1
          command: echo serving; sleep 60
        - role: pworker
          replicas: 2
          command: |
            echo training
            [ "$PADDLE_TRAINER_ID" = 0 ] || { echo "ValueError: bad table" >&2; exit 3; }
            sleep 60
  evaluate:
    deps: train
    command: echo evaluated
post_process:
  notify:
    command: echo it is over
"#;

/// A sandbox in which the pipeline has run.
fn failed() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("pipeline.yaml", PIPELINE);
    sandbox.umiak(["run", "pipeline.yaml"]).finish().expect_code(1);
    sandbox
}

fn out(sandbox: &Sandbox, words: &str) -> String {
    let outcome = sandbox.umiak(words.split_whitespace()).start().finish_unchecked();
    outcome.expect_code(0);
    outcome.out()
}

fn err(sandbox: &Sandbox, words: &str, code: i32) -> String {
    let outcome = sandbox.umiak(words.split_whitespace()).start().finish_unchecked();
    outcome.expect_code(code);
    outcome.err()
}

fn logs() {
    let sandbox = failed();
    assert_eq!(out(&sandbox, "logs 1 prepare"), "prepared day 7\n");
    assert_eq!(out(&sandbox, "logs 1 split.1"), "shard b\n");
    assert_eq!(
        out(&sandbox, "logs 1 prepare split"),
        "prepare/main-0 | prepared day 7\nsplit.0/main-0 | shard a\nsplit.1/main-0 | shard b\nsplit.2/main-0 | shard c\n"
    );
    assert_eq!(out(&sandbox, "logs prepare"), "prepared day 7\n", "of the newest run");
    let all = out(&sandbox, "logs 1");
    let place = |line: &str| all.find(line).unwrap_or_else(|| panic!("{line} in {all}"));
    assert!(place("prepare/main-0    | prepared day 7\n") < place("train/worker-1    | ValueError: bad table\n"));
    assert!(place("check.rows/main-0 | rows are fine\n") < place("notify/main-0     | it is over\n"));
    assert!(out(&sandbox, "logs 1 check").ends_with("rows are fine\n"), "a DAG is all steps in it");
    assert_eq!(out(&sandbox, "logs 1 train worker-1 -n 1 --output quiet"), "ValueError: bad table\n");
    let line = out(&sandbox, "logs 1 split.2 --output json");
    assert!(line.contains(r#""step":"split.2","replica":"main-0""#), "{line}");
    assert!(err(&sandbox, "logs 1 prepair", 2).contains("there is a step `prepare`"));
    assert!(
        err(&sandbox, "logs 1 train worker-7", 2).contains("`train` of `run-000001` has no role or replica `worker-7`")
    );
    assert!(err(&sandbox, "logs 1 evaluate", 125).contains("`evaluate` of `run-000001` did not run"));
}

fn logs_follow() {
    let sandbox = Sandbox::new();
    let wait = "while ! [ -e $PF_STEP_NAME.go ]; do sleep 0.02; done";
    sandbox.write(
        "pipeline.yaml",
        format!(
            "name: two\nentry_points:\n  one:\n    command: echo first; {wait}\n  two:\n    deps: one\n    command: echo second; {wait}\n"
        ),
    );
    let run = sandbox.umiak(["run", "pipeline.yaml"]).start();
    let log = |step: &str| sandbox.read_if_there(&format!("state/runs/run-000001/tasks/{step}/main-0/attempt-1/log"));
    run.wait_until("the first step", || log("one").is_some_and(|log| !log.is_empty()));
    assert!(err(&sandbox, "logs 1 two", 125).contains("`two` of `run-000001` has not been started"));
    let all = sandbox.umiak(["logs", "1", "-f"]).start();
    let one = sandbox.umiak(["logs", "1", "one", "-f"]).start();
    let two = sandbox.umiak(["logs", "1", "two", "-f"]).start();
    sandbox.write("one.go", "");
    assert_eq!(one.finish_unchecked().out(), "first\n", "until the end of the step");
    run.wait_until("the second step", || log("two").is_some_and(|log| !log.is_empty()));
    sandbox.write("two.go", "");
    assert_eq!(two.finish_unchecked().out(), "second\n", "whether it had begun or not");
    assert_eq!(all.finish_unchecked().out(), "one/main-0 | first\ntwo/main-0 | second\n");
    run.finish().expect_code(0);
}

fn lists() {
    let sandbox = failed();
    assert!(out(&sandbox, "ls").contains("7 steps"));
    let events = out(&sandbox, "events 1");
    assert!(events.contains("  split: a loop over 3 items\n"), "{events}");
}

/// The line with this text.
fn line<'a>(text: &'a str, with: &str) -> &'a str {
    text.lines().find(|line| line.contains(with)).unwrap_or_else(|| panic!("{with} in {text}"))
}

fn show() {
    let sandbox = failed();
    let text = out(&sandbox, "show 1");
    for (name, words) in [
        ("✓ prepare", "ms"),
        ("→ table", "/.pipeline/run-000001/ctr/prepare-"),
        ("✓ split [3/3]", "ms"),
        ("    ✓ rows", "ms"),
        ("    ⊘ extra", "skipped: its condition is false"),
        ("✗ train", "worker-1 exited with 3: ValueError: bad table"),
        ("⊘ evaluate", "cancelled"),
        ("✓ notify (post)", "ms"),
    ] {
        assert!(line(&text, name).contains(words), "{name}: {text}");
    }
    assert!(!text.contains("day = 7") && !text.contains("← table"), "{text}");
    let all = out(&sandbox, "show 1 --all --ascii");
    assert!(line(&all, "+ 1 (b)").contains("ms") && all.contains("day = 7") && all.contains("<- table"), "{all}");
    assert!(all.is_ascii(), "{all}");
    let json: serde_json::Value = serde_json::from_str(&out(&sandbox, "show 1 --output json")).expect("JSON");
    assert_eq!((&json["paddleflow"], &json["steps"]), (&"failed".into(), &7.into()));
    let nodes = json["pipeline"].as_array().expect("nodes");
    let node = |name: &str| nodes.iter().find(|node| node["name"] == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!((&node("split")["kind"], &node("split")["items"]), (&"loop".into(), &3.into()));
    assert_eq!(
        (&node("evaluate")["status"], &node("evaluate")["paddleflow"]),
        (&"cancelled".into(), &"cancelled".into())
    );
    assert_eq!(node("check.extra")["skipped"], "condition");
    assert_eq!(node("prepare")["parameters"][0][1], 7);
    let step = out(&sandbox, "show 1 train");
    assert!(step.starts_with("✗ run-000001 train failed with 1\n"), "{step}");
    assert!(line(&step, "worker-1 ").contains("exited with 3"), "{step}");
    assert!(line(&out(&sandbox, "show 1 check.extra"), "extra").contains("skipped"));
    assert!(err(&sandbox, "show 1 trian", 2).contains("there is a step `train`"));
    let graph = out(&sandbox, "show 1 --graph text");
    assert!(line(&graph, "✗ train").contains("prepare, split, check"), "{graph}");
}

fn explain() {
    let sandbox = failed();
    let text = out(&sandbox, "explain 1");
    assert!(text.contains("✗ run-000001 train failed with 1\n") && text.contains("✗ worker-1 exited with 3"), "{text}");
    assert!(text.contains("ValueError: bad table") && text.contains("1 node was stopped or cancelled"), "{text}");
    assert_eq!(out(&sandbox, "explain 1 --output quiet"), "train/worker-1\n");
    let json: serde_json::Value = serde_json::from_str(&out(&sandbox, "explain 1 --output json")).expect("JSON");
    assert_eq!(json["steps"][0]["step"], "train");
    assert_eq!(json["steps"][0]["verdicts"][0]["causes"][0]["subject"]["replica"], "worker-1");
}

fn plans() {
    let sandbox = Sandbox::new();
    sandbox.write("pipeline.yaml", PIPELINE);
    let text = out(&sandbox, "plan pipeline.yaml");
    assert!(line(&text, "train  ").contains("pserver 1, worker 2"), "{text}");
    assert!(
        text.contains("input table = {{prepare.table}}") && text.contains("echo shard {{PF_LOOP_ARGUMENT}}"),
        "{text}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&out(&sandbox, "plan pipeline.yaml --output json")).expect("JSON");
    assert_eq!(json["pipeline"]["name"], "ctr");
    assert!(out(&sandbox, "plan pipeline.yaml --graph mermaid").starts_with("flowchart TD\n"));
    assert!(out(&sandbox, "plan pipeline.yaml --graph dot").contains("subgraph cluster_n"));
    sandbox.write("job.yaml", "umiak: v1\nname: j\nroles:\n  a: {command: [true]}\n");
    assert!(err(&sandbox, "plan job.yaml --graph text", 2).contains("`--graph` draws pipelines"));
}
