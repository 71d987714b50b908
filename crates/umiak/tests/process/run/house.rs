//! A sandbox with a home, documents whose replicas keep ledgers, and checks of a run that has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use umiak::history::{Home, RunDir, is_held, journal};
use umiak_core::facts::{Began, Fact, Record};
use umiak_core::model::Exit;
use umiak_core::status::{State, Status};
use umiak_testkit::sandbox::{Outcome, Run, Sandbox};

/// First command of every replica: appends the attempt number to the replica's ledger.
pub(super) const LEDGER: &str = "echo $UMIAK_ATTEMPT >> ledger/$UMIAK_ROLE-$UMIAK_INDEX";

pub(super) struct House {
    pub(super) sandbox: Sandbox,
    pub(super) home: Home,
}

impl House {
    pub(super) fn new() -> Self {
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.path().join("ledger")).expect("the sandbox can be written");
        let home = Home::at(sandbox.path().join("state"));
        Self { sandbox, home }
    }

    /// Writes this document; `LEDGER` in it stands for the command above.
    pub(super) fn with(document: &str) -> Self {
        let house = Self::new();
        house.document(document);
        house
    }

    pub(super) fn document(&self, document: &str) {
        self.sandbox.write("job.yaml", document.replace("LEDGER", LEDGER));
    }

    /// Runs the line, split at spaces.
    pub(super) fn umiak(&self, line: &str) -> Run<'_> {
        self.sandbox.umiak(line.split_whitespace()).env("UMIAK_HOME", self.home.path()).env("USER", "li")
    }

    /// The first run's directory.
    pub(super) fn run(&self) -> RunDir {
        RunDir::at(&self.home, "run-000001".parse().expect("an id"))
    }

    pub(super) fn runs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.home.runs()).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    pub(super) fn touch(&self, name: &str) {
        self.sandbox.write(name, "");
    }

    /// Waits until neither supervisor nor guardian is left.
    pub(super) fn wait_until_free(&self) {
        wait_for("the run's lock to be free", || !is_held(&self.run()).expect("the lock can be checked"));
    }

    pub(super) fn wait_for_file(&self, name: &str) {
        wait_for(name, || self.sandbox.path().join(name).exists());
    }

    pub(super) fn status(&self) -> Status {
        let replay = journal::replay(&self.run()).expect("a journal that can be read");
        assert!(replay.seen.damage.is_none(), "{:?}", replay.seen.damage);
        replay.status
    }

    pub(super) fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        let seen = journal::each(&self.run(), |item| records.push(item.record.clone()));
        let seen = seen.expect("a journal that can be read");
        assert!(seen.damage.is_none(), "{:?}", seen.damage);
        records
    }

    pub(super) fn neutral(&self, text: &str) -> String {
        text.replace(&*self.sandbox.path().to_string_lossy(), "DIR")
    }

    /// Returns the attempts that wrote a line, by replica.
    pub(super) fn ledger(&self) -> BTreeMap<String, Vec<u32>> {
        let names = self.sandbox.list("ledger").into_iter();
        let lines = |name: &String| {
            let text = self.sandbox.read(&format!("ledger/{name}"));
            text.lines().map(|line| line.parse().unwrap_or_else(|_| panic!("{name}: {line:?}"))).collect()
        };
        names.map(|name| (name.clone(), lines(&name))).collect()
    }

    /// Checks everything that holds for an ended run, regardless of how often its supervisors were killed.
    pub(super) fn check_ended(&self) {
        let records = self.records();
        let mut text = String::new();
        for record in &records {
            let _ = writeln!(text, "{}", serde_json::to_string(record).expect("a record is JSON"));
        }
        let broken = broken(&records, &self.ledger());
        assert!(broken.is_empty(), "{broken:#?}\nledger {:?}\n{text}", self.ledger());
        assert_eq!(Status::replay(&records), self.status(), "{text}");
        let run = self.run();
        for path in [run.secrets(), run.control(), run.scratch(None)] {
            assert!(!path.exists(), "{} is left\n{text}", path.display());
        }
        assert_eq!(unfinished_files(&run), [] as [PathBuf; 0], "{text}");
        self.check_listed();
        self.sandbox.assert_nothing_left();
    }

    /// Checks that `ls` agrees with the journal, and the index too after `ls`.
    fn check_listed(&self) {
        let State::Finished { exit_code, .. } = self.status().state else { panic!("it has not ended") };
        let listed = self.umiak("ls --output json").finish_unwatched();
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
        let runs = listed["runs"].as_array().unwrap_or_else(|| panic!("{listed}"));
        assert_eq!(runs.len(), 1, "{listed}");
        assert_eq!(runs[0]["code"], exit_code, "{listed}");
        let index = fs::read_to_string(self.home.index()).expect("an index");
        let last = index.lines().rfind(|line| line.contains("\"run\":\"run-000001\"")).expect("a line for the run");
        assert!(last.contains(&format!("\"code\":{exit_code}")), "{index}");
    }
}

/// Finishes without checking for other processes in the sandbox.
pub(super) trait Unwatched {
    fn finish_unwatched(self) -> Outcome;
}

impl Unwatched for Run<'_> {
    fn finish_unwatched(self) -> Outcome {
        self.start().finish_unchecked()
    }
}

pub(super) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Temporary files that were not renamed into place.
fn unfinished_files(run: &RunDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(run.path()).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "next")).collect()
}

/// Lists contradictions in the facts and the ledgers.
fn broken(records: &[Record], ledger: &BTreeMap<String, Vec<u32>>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut started: BTreeMap<(String, u32), u32> = BTreeMap::new();
    let mut ended: BTreeMap<(String, u32), (Exit, bool)> = BTreeMap::new();
    let mut abandoned: BTreeSet<String> = BTreeSet::new();
    let mut succeeded: BTreeSet<String> = BTreeSet::new();
    for (position, record) in records.iter().enumerate() {
        if record.seq != position as u64 {
            wrong.push(format!("record {position} has the number {}", record.seq));
        }
        if position > 0 && record.epoch < records[position - 1].epoch {
            wrong.push(format!("record {position} is of an old epoch"));
        }
        match &record.fact {
            Fact::Supervised(supervised) if supervised.why == Began::RetriedAll => succeeded.clear(),
            Fact::Restarting { .. } => succeeded.clear(),
            Fact::Retrying { subjects, .. } => {
                for subject in subjects {
                    succeeded.remove(&subject.replica);
                }
            }
            Fact::Starting { subject } => {
                *started.entry((subject.replica.clone(), subject.attempt)).or_default() += 1;
                if succeeded.contains(&subject.replica) {
                    wrong.push(format!("{} had succeeded, and started again", subject.replica));
                }
            }
            Fact::Ended { subject, exit, by_us, .. } => {
                let key = (subject.replica.clone(), subject.attempt);
                if *exit == (Exit::Code { code: 0 }) && !by_us {
                    succeeded.insert(subject.replica.clone());
                }
                if !started.contains_key(&key) && !matches!(exit, Exit::Spawn(_) | Exit::Unmet { .. }) {
                    wrong.push(format!("{key:?} ended and never started"));
                }
                if ended.insert(key.clone(), (exit.clone(), *by_us)).is_some() {
                    wrong.push(format!("{key:?} ended twice"));
                }
            }
            Fact::Abandoned { replicas } => abandoned.extend(replicas.iter().cloned()),
            _ => {}
        }
    }
    for (key, count) in &started {
        if *count != 1 {
            wrong.push(format!("{key:?} started {count} times"));
        }
        let has_line = ledger.get(&key.0).is_some_and(|lines| lines.contains(&key.1));
        match ended.get(key) {
            None if !abandoned.contains(&key.0) => wrong.push(format!("{key:?} never ended")),
            // Lost, refused, or stopped before its first command.
            Some((exit, by_us))
                if !has_line && !by_us && !matches!(exit, Exit::Lost | Exit::Spawn(_) | Exit::Unmet { .. }) =>
            {
                wrong.push(format!("{key:?} has no line, and ended as {exit:?}"));
            }
            _ => {}
        }
    }
    for (replica, lines) in ledger {
        let mut seen = BTreeSet::new();
        for attempt in lines {
            if !seen.insert(attempt) {
                wrong.push(format!("{replica} wrote two lines as attempt {attempt}"));
            }
            if !started.contains_key(&(replica.clone(), *attempt)) {
                wrong.push(format!("{replica} attempt {attempt} has a line and no record"));
            }
        }
    }
    let ends = records.iter().filter(|record| matches!(record.fact, Fact::Finished { .. })).count();
    let retries = records
        .iter()
        .filter(|record| matches!(&record.fact, Fact::Supervised(supervised) if matches!(supervised.why, Began::Retried | Began::RetriedAll)))
        .count();
    if ends != 1 + retries {
        wrong.push(format!("{ends} ends"));
    }
    if !records.last().is_some_and(|record| matches!(record.fact, Fact::Finished { .. })) {
        wrong.push("the last record is not the end".to_owned());
    }
    wrong
}
