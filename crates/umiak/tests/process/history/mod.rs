//! Recorded runs through the real binary: the tests write run directories and run commands on them.

mod listing;
mod logs;
mod reading;
mod removing;
mod waiting;

use std::fs;
use std::path::{Path, PathBuf};

use umiak::history::journal::{Writer, sealed};
use umiak::history::{Home, RunDir, Supervisor};
use umiak_core::facts::{Fact, Record};
use umiak_core::model::Timestamp;
use umiak_testkit::sandbox::{Run, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    listing::register(suite);
    reading::register(suite);
    logs::register(suite);
    waiting::register(suite);
    removing::register(suite);
}

/// A home with runs, in a sandbox.
#[derive(Debug)]
struct Runs {
    sandbox: Sandbox,
    home: Home,
}

impl Runs {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let home = Home::at(sandbox.path().join("state"));
        Self { sandbox, home }
    }

    /// Creates a run with the journal of a fixture.
    fn fixture(&self, name: &str) -> RunDir {
        self.with_journal(&fixture(name))
    }

    /// Creates a run with these records, which get its checksums.
    fn with_journal(&self, journal: &str) -> RunDir {
        let run = RunDir::create(&self.home).expect("the sandbox can be written");
        fs::write(run.journal(), sealed(run.id(), journal)).expect("the sandbox can be written");
        run
    }

    /// Creates a run with the first records of a fixture; it is live until the writer is dropped.
    fn live(&self, name: &str, records: usize) -> (RunDir, Live) {
        let run = RunDir::create(&self.home).expect("the sandbox can be written");
        let mut writer = Writer::create(&run).expect("a new journal");
        let mut rest: Vec<Record> =
            fixture(name).lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
        let later = rest.split_off(records);
        writer.append(&rest).expect("the sandbox can be written");
        // The process of the test outlives the supervisor that it plays.
        let supervisor = Supervisor { start: 0, ..Supervisor::here(0, Path::new("")) };
        run.write_supervisor(&supervisor).expect("the sandbox can be written");
        (run, Live { writer, later })
    }

    /// Writes the log of an attempt, where runs of documents keep it.
    fn log(run: &RunDir, replica: &str, attempt: u32, bytes: impl AsRef<[u8]>) -> PathBuf {
        let directory = run.attempt(None, replica, attempt);
        fs::create_dir_all(&directory).expect("the sandbox can be written");
        fs::write(directory.join("log"), bytes).expect("the sandbox can be written");
        directory.join("log")
    }

    /// Runs the line, split at spaces.
    fn umiak(&self, line: &str) -> Run<'_> {
        self.sandbox.umiak(line.split_whitespace()).env("UMIAK_HOME", self.home.path()).env("USER", "li")
    }

    /// Expects success and returns stdout.
    fn out(&self, line: &str) -> String {
        let outcome = self.umiak(line).finish();
        outcome.expect_code(0);
        self.neutral(&outcome.out())
    }

    /// Expects this exit code and returns stderr.
    fn err(&self, line: &str, code: i32) -> String {
        let outcome = self.umiak(line).finish();
        outcome.expect_code(code);
        self.neutral(&outcome.err())
    }

    fn neutral(&self, text: &str) -> String {
        text.replace(&*self.home.path().to_string_lossy(), "HOME")
    }
}

/// A supervisor played by the test.
#[derive(Debug)]
struct Live {
    writer: Writer,
    /// The remaining records of the fixture.
    later: Vec<Record>,
}

impl Live {
    /// Writes the next records of the fixture.
    fn go_on(&mut self, count: usize) {
        let rest = self.later.split_off(count.min(self.later.len()));
        self.writer.append(&self.later).expect("the sandbox can be written");
        self.later = rest;
    }

    fn write(&mut self, fact: Fact) {
        let at = Timestamp::from_micros(self.writer.status().last + 1);
        let records = self.writer.number(at, [(None, fact)]);
        self.writer.append(&records).expect("the sandbox can be written");
    }
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/journals").join(format!("{name}.jsonl"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns records without their checksums, as `events` prints them.
fn unsealed(journal: &str) -> String {
    let end = ",\"sum\":\"0123456789abcdef\"}".len();
    let line = |line: &str| {
        if line.contains(",\"sum\":\"") { format!("{}}}\n", &line[..line.len() - end]) } else { format!("{line}\n") }
    };
    journal.lines().map(line).collect()
}

/// Returns the first lines of a text, with their line feeds.
fn first(text: &str, count: usize) -> String {
    text.split_inclusive('\n').take(count).collect()
}
