//! Parameter-server jobs: servers, trainers, heterogeneous trainers and coordinators, on one node, on several, and in
//! pods placed by a platform.

mod ends;
mod kill;
mod nodes;
mod one_node;
mod pods;
mod recorded;

use serde_json::Value;
use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    one_node::register(suite);
    ends::register(suite);
    recorded::register(suite);
    kill::register(suite);
    nodes::register(suite);
    pods::register(suite);
}

/// A process that waits until it is stopped, longer than any test.
const WAIT: &str = "sleep 60000";
/// Servers that listen and keep running.
const SERVERS: &str = "pserver:name;listen;sleep 60000";
/// Trainers that reach every server at once and succeed.
const TRAINERS: &str = "trainer:name;reach";

/// Returns the environment that a process wrote with `env NAME`.
fn environment(sandbox: &Sandbox, file: &str) -> Value {
    serde_json::from_str(&sandbox.read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Fails unless these variables have these values.
#[track_caller]
fn expect_variables(seen: &Value, who: &str, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(seen[*name], *value, "{name} of {who}");
    }
}

/// Returns the entries of a variable that is a list.
fn list(seen: &Value, name: &str) -> Vec<String> {
    let text = seen[name].as_str().unwrap_or_else(|| panic!("{name} is not set"));
    text.split(',').filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
}

/// Returns the names of the process logs, sorted.
fn logs(sandbox: &Sandbox) -> Vec<String> {
    let stems = ["serverlog.", "workerlog.", "heterlog.", "coordinator."];
    sandbox.list("log").into_iter().filter(|name| stems.iter().any(|stem| name.starts_with(stem))).collect()
}

/// Fails if a process failed or was reported as failed.
#[track_caller]
fn expect_well(outcome: &Outcome) {
    outcome.expect_code(0);
    for word in ["ABORT", "✗", "error["] {
        assert!(!outcome.err().contains(word), "{word}:\n{}", outcome.err());
    }
}

/// Fails unless this is the only cause, with this kind of end and this number of replicas in its role.
#[track_caller]
fn expect_cause(outcome: &Outcome, cause: &str, count: usize, how: &str) {
    let (role, index) = cause.rsplit_once('-').expect("ROLE-INDEX");
    outcome
        .expect_err(&format!(
            "ABORT!!! Out of all {count} {role}s, the {role} process with rank=[{index}] was aborted. Please check its log."
        ))
        .expect_err(&format!("✗ {cause} on {}", umiak_sys::host::name()))
        .expect_err(how);
    assert_eq!(outcome.err().matches('✗').count(), 1, "others were blamed:\n{}", outcome.err());
    assert_eq!(outcome.err().matches("ABORT!!!").count(), 1, "{}", outcome.err());
}
