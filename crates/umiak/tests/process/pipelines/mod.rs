//! Pipelines through the real binary.

mod control;
mod corpus;
mod engines;
mod examples;
mod mpi;
mod native;
mod progress;
mod seed;
mod semantics;

use std::collections::BTreeMap;

use serde_json::Value;
use umiak_testkit::sandbox::{Run, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    seed::register(suite);
    corpus::register(suite);
    semantics::register(suite);
    examples::register(suite);
    control::register(suite);
    progress::register(suite);
    mpi::register(suite);
    native::register(suite);
    engines::register(suite);
}

/// A directory with the files of a pipeline, and the run in it.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) sandbox: Sandbox,
}

impl Place {
    /// Writes a file and the directories above it.
    pub(crate) fn file(&self, name: &str, text: &str) {
        let path = self.sandbox.path().join(name);
        std::fs::create_dir_all(path.parent().expect("below the sandbox")).expect("the sandbox can be written");
        std::fs::write(path, text).expect("the sandbox can be written");
    }

    /// `umiak run` on this document, with these flags.
    pub(crate) fn run<'a>(&'a self, document: &str, flags: &'a [&'a str]) -> Run<'a> {
        self.sandbox.write("run.yaml", document);
        self.sandbox.umiak([&["run", "run.yaml"], flags].concat())
    }

    /// The records of the first run so far.
    pub(crate) fn journal(&self) -> Vec<Value> {
        self.journal_of("run-000001")
    }

    fn journal_of(&self, run: &str) -> Vec<Value> {
        let text = self.sandbox.read_if_there(&format!("state/runs/{run}/journal.jsonl")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        // The last one may be incomplete.
        text.split_inclusive('\n').filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// How each node of the first run ended, by its name. The run's own end has no name.
    pub(crate) fn ends(&self) -> BTreeMap<String, String> {
        self.ends_of("run-000001")
    }

    fn ends_of(&self, run: &str) -> BTreeMap<String, String> {
        let mut ends = BTreeMap::new();
        for fact in self.journal_of(run) {
            let end = match text(&fact["type"]) {
                "finished" => text(&fact["status"]).to_owned(),
                "skipped" => format!("skipped: {}", text(&fact["why"])),
                "refused" => "refused".to_owned(),
                "cached" => "cached".to_owned(),
                "left" => text(&fact["end"]).to_owned(),
                _ => continue,
            };
            ends.insert(fact["step"].as_str().unwrap_or_default().to_owned(), end);
        }
        ends
    }

    /// Fails unless the nodes of the first run ended so: `a succeeded, b skipped: condition`.
    #[track_caller]
    pub(crate) fn expect_ends(&self, expected: &str) {
        self.expect_ends_of("run-000001", expected);
    }

    #[track_caller]
    pub(crate) fn expect_ends_of(&self, run: &str, expected: &str) {
        let seen: Vec<String> =
            self.ends_of(run).iter().map(|(name, end)| format!("{name} {end}").trim().into()).collect();
        let mut expected: Vec<&str> = expected.split(", ").collect();
        // The run's own end comes first, as it has no name.
        expected[1..].sort_unstable();
        assert_eq!(seen.join(", "), expected.join(", "));
    }

    /// What the single process of a step printed.
    #[track_caller]
    pub(crate) fn log(&self, step: &str) -> String {
        self.log_of(step, "main-0")
    }

    #[track_caller]
    pub(crate) fn log_of(&self, step: &str, replica: &str) -> String {
        self.sandbox.read(&format!("state/runs/run-000001/tasks/{step}/{replica}/attempt-1/log"))
    }

    /// Variables that a replica printed with `env`.
    pub(crate) fn variables(&self, step: &str, replica: &str) -> BTreeMap<String, String> {
        let log = self.log_of(step, replica);
        log.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}"))
}

/// The user's name, as steps see it.
fn user() -> String {
    umiak_sys::host::user().unwrap_or_default()
}
