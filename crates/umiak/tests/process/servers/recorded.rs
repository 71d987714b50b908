//! Records of parameter-server jobs, and commands about such runs.

use serde_json::Value;
use umiak_core::facts::Record;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

use super::{SERVERS, TRAINERS, WAIT};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("servers::facts_have_roles", &[], facts)
        .test("servers::facts_of_a_failure_name_it", &[], facts_of_a_failure)
        .test("servers::commands_about_runs_know_names", &[], commands);
}

/// Fails unless every line can be read and written again without loss: the schema is made from the same types.
#[track_caller]
fn expect_understood(lines: &str) {
    for line in lines.lines() {
        let read: Record = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let (again, before) = (serde_json::to_value(&read).unwrap(), serde_json::from_str::<Value>(line).unwrap());
        assert_eq!(again, before);
    }
}

fn facts() {
    let sandbox = Sandbox::new();
    let flags = "--output json --server_num 2 --worker_num 2 --heter_worker_num 1 --heter_devices cpu";
    let actions = [SERVERS, "heter_trainer:touch up;sleep 60000", "trainer:await up", TRAINERS];
    let outcome = sandbox.launch_toy(flags, &actions).finish();
    outcome.expect_code(0);
    expect_understood(&outcome.out());
    let facts = outcome.facts();
    let planned = facts.iter().find(|fact| fact["type"] == "planned").expect("a plan");
    let roles: Vec<(&str, u64, bool)> = planned["roles"]
        .as_array()
        .expect("roles")
        .iter()
        .map(|role| (role["role"].as_str().unwrap(), role["replicas"].as_u64().unwrap(), role["decides"] == true))
        .collect();
    assert_eq!(roles, [("pserver", 2, false), ("trainer", 2, true), ("heter_trainer", 1, false)]);
    let names = |kind: &str| -> Vec<&str> {
        let of_kind = facts.iter().filter(|fact| fact["type"] == kind);
        of_kind.map(|fact| fact["subject"]["replica"].as_str().expect("a name")).collect()
    };
    let starting = names("starting");
    assert_eq!(starting, ["pserver-0", "pserver-1", "trainer-0", "trainer-1", "heter_trainer-0"]);
    let position = |kind: &str, name: &str| {
        let found = facts.iter().position(|fact| fact["type"] == kind && fact["subject"]["replica"] == name);
        found.unwrap_or_else(|| panic!("no fact {kind} of {name}"))
    };
    for server in ["pserver-0", "pserver-1"] {
        assert!(position("started", server) < position("starting", "trainer-0"), "servers start first");
        assert!(position("ended", server) > position("ended", "trainer-0"), "servers end last");
    }
    let last = facts.last().unwrap();
    assert_eq!((last["status"].as_str(), last["code"].as_u64()), (Some("succeeded"), Some(0)));
    let recorded = sandbox.umiak(["events", "1", "--output", "json"]).finish();
    assert_eq!(recorded.out(), outcome.out(), "what is printed is what is recorded");
}

fn facts_of_a_failure() {
    let sandbox = Sandbox::new();
    let actions = [SERVERS.replace("pserver:", "pserver-0:"), "pserver-1:listen;await up;exit 3".to_owned()];
    let trainers = format!("trainer:touch up;{WAIT}");
    let flags = "--output json --server_num 2 --worker_num 2";
    let outcome = sandbox.launch_toy(flags, &[&actions[0], &actions[1], &trainers]).finish();
    outcome.expect_code(3);
    expect_understood(&outcome.out());
    let facts = outcome.facts();
    let verdict = facts.iter().find(|fact| fact["type"] == "diagnosed").expect("a verdict");
    assert_eq!(verdict["causes"].as_array().map(Vec::len), Some(1), "{verdict}");
    assert_eq!(verdict["causes"][0]["subject"]["replica"], "pserver-1");
    let last = facts.last().unwrap();
    assert_eq!((last["status"].as_str(), last["code"].as_u64()), (Some("failed"), Some(3)));
}

fn commands() {
    let sandbox = Sandbox::new();
    let out = |line: &str| {
        let outcome = sandbox.umiak(line.split_whitespace()).finish();
        outcome.expect_code(0);
        outcome.out()
    };
    let actions = ["pserver-1:name;listen;await up;err ValueError: bad row;exit 3", SERVERS];
    // The server fails only after this trainer has written its log, which is read below.
    let trainers = [format!("trainer-0:name;touch up;{WAIT}"), format!("trainer:name;{WAIT}")];
    let actions = [actions[0], actions[1], &trainers[0], &trainers[1]];
    let run = sandbox.launch_toy("--server_num 2 --worker_num 2", &actions);
    run.finish().expect_code(3).expect_err("umiak explain run-000001");
    let explained = out("explain 1");
    assert!(explained.contains("pserver-1") && explained.contains("ValueError: bad row"), "{explained}");
    assert!(out("logs 1").contains("ValueError: bad row"), "the cause's log is the one to show");
    let server = out("logs 1 pserver-1");
    assert!(server.starts_with("I am pserver-1\n") && server.ends_with("ValueError: bad row\n"), "{server}");
    assert_eq!(out("logs 1 trainer-0"), "I am trainer-0\n");
    let servers = out("logs 1 pserver");
    assert!(servers.contains("pserver-0 | I am pserver-0") && servers.contains("pserver-1 | I am"), "{servers}");
    let shown = out("show 1");
    for words in ["pserver", "trainer", "failed"] {
        assert!(shown.contains(words), "{words}:\n{shown}");
    }
    let shown: Value = serde_json::from_str(&out("show 1 --output json")).expect("JSON");
    let roles: Vec<&str> =
        shown["roles"].as_array().into_iter().flatten().filter_map(|role| role["role"].as_str()).collect();
    assert_eq!(roles, ["pserver", "trainer"], "{shown}");
    // Without a cause, `logs` shows the first replica that decides the result.
    sandbox.launch_toy("--server_num 1 --worker_num 1", &[SERVERS, TRAINERS]).finish().expect_code(0);
    assert!(out("logs 2").starts_with("I am trainer-0\n"));
    assert!(out("logs 2 pserver-0").starts_with("I am pserver-0\n"));
}
