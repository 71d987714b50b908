//! The index that `ls` reads: one line for each change of a run; the last line of a run counts. Derived from the
//! journals, and rebuilt from them if it is missing, damaged or outdated.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use umiak_core::facts::Outcome;
use umiak_core::model::replica_parts;
use umiak_core::status::{State, Status};
use umiak_sys::regular;

use super::run_dir::{ids, replace};
use super::{Error, Home, RunDir, RunId, journal, tidy};

/// Length of the tail that is read for the highest number.
const TAIL: u64 = 64 << 10;

/// One line about a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    pub run: RunId,
    /// Name of the run.
    pub name: String,
    /// The command line of a launch.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    #[serde(default = "local")]
    pub engine: String,
    pub state: Word,
    /// In microseconds since the Unix epoch.
    pub created: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleSize>,
    /// The number of steps of a pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub user: String,
    /// The state is the one before a damaged record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
}

/// `trainer 4`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoleSize {
    pub role: String,
    pub replicas: u32,
}

/// The state of a run, as recorded in its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    Pending,
    Running,
    Stopping,
    Restarting,
    /// A node of an elastic job that is not needed now.
    Spare,
    Succeeded,
    Failed,
    Interrupted,
    Stopped,
}

impl Word {
    pub fn of(status: &Status) -> Self {
        match status.state {
            State::Restarting if status.is_spare() => Self::Spare,
            State::Pending => Self::Pending,
            State::Running => Self::Running,
            State::Stopping => Self::Stopping,
            State::Restarting => Self::Restarting,
            State::Finished { outcome, .. } => match outcome {
                Outcome::Succeeded => Self::Succeeded,
                Outcome::Failed => Self::Failed,
                Outcome::Interrupted => Self::Interrupted,
                Outcome::Stopped => Self::Stopped,
            },
        }
    }

    pub fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Interrupted | Self::Stopped)
    }
}

fn local() -> String {
    "local".to_owned()
}

impl IndexEntry {
    /// Returns the entry for a status. Fields that only the plan has are empty.
    pub fn new(run: RunId, status: &Status) -> Self {
        let state = Word::of(status);
        let code = match status.state {
            State::Finished { exit_code, .. } => Some(exit_code),
            _ => None,
        };
        Self {
            run,
            name: status.name.clone(),
            command: status.command.clone(),
            engine: local(),
            state,
            created: status.began,
            ended: state.is_finished().then_some(status.last),
            code,
            roles: roles(status),
            steps: status.steps,
            labels: BTreeMap::new(),
            user: user(),
            damaged: false,
        }
    }

    /// True if the run has ended, and nothing else will be known about it.
    pub fn is_final(&self) -> bool {
        self.state.is_finished() && !self.damaged
    }

    /// Reads the entry from the run's own files.
    pub fn of(run: &RunDir) -> Option<Self> {
        let replay = journal::replay(run).ok()?;
        let mut entry = Self::new(run.id(), &replay.status);
        entry.damaged = replay.seen.damage.is_some();
        let metadata = fs::metadata(run.path()).ok()?;
        if entry.created == 0 {
            entry.created = u64::try_from(metadata.ctime()).unwrap_or(0) * 1_000_000;
        }
        if Some(metadata.uid()) != fs::metadata("/proc/self").ok().map(|own| own.uid()) {
            entry.user = metadata.uid().to_string();
        }
        // The plan is read leniently: unexpected values are ignored.
        let plan: serde_json::Value =
            regular::read(&run.plan()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        if let Some(labels) = plan["job"]["labels"].as_object() {
            let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            entry.labels = labels.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        }
        if let Some(engine) = plan["engine"].as_str() {
            engine.clone_into(&mut entry.engine);
        }
        Some(entry)
    }
}

/// Counts replicas per role, from the plan or, if it names no roles, from the names of the replicas.
fn roles(status: &Status) -> Vec<RoleSize> {
    if !status.roles.is_empty() {
        return status.roles.iter().map(|role| RoleSize { role: role.role.clone(), replicas: role.replicas }).collect();
    }
    let elsewhere = status.nodes.iter().flat_map(|node| &node.replicas);
    let here = status.replicas.iter().map(|replica| &replica.replica).filter(|_| status.nodes.is_empty());
    let mut roles: Vec<RoleSize> = Vec::new();
    for role in elsewhere.chain(here).map(|replica| replica_parts(replica).0) {
        match roles.iter_mut().find(|other| other.role == role) {
            Some(other) => other.replicas += 1,
            None => roles.push(RoleSize { role: role.to_owned(), replicas: 1 }),
        }
    }
    roles
}

/// Returns the user's name if the environment has it, else the user id.
pub fn user() -> String {
    let name =
        ["USER", "LOGNAME"].into_iter().filter_map(|name| std::env::var(name).ok()).find(|name| !name.is_empty());
    name.or_else(umiak_sys::host::user)
        .unwrap_or_else(|| fs::metadata("/proc/self").map_or_else(|_| String::new(), |own| own.uid().to_string()))
}

/// A line with the highest number ever used.
#[derive(Debug, Serialize, Deserialize)]
struct Highest {
    highest: RunId,
}

/// Appends a line: a run begins, or has ended.
pub fn append(home: &Home, entry: &IndexEntry) -> Result<(), Error> {
    let mut line = serde_json::to_vec(entry).expect("an entry is JSON");
    line.push(b'\n');
    let path = home.index();
    append_line(&path, line).map_err(|source| Error::Home { doing: "write", path, source })
}

/// Appends a line to a file, which is created with mode 0600. One write, so that processes can append concurrently.
pub(super) fn append_line(path: &Path, mut line: Vec<u8>) -> io::Result<()> {
    let mut file = regular::open(File::options().append(true).create(true).mode(0o600), path)?;
    // An incomplete line of another process must not corrupt ours.
    if !ends_a_line(path)? {
        line.insert(0, b'\n');
    }
    file.write_all(&line)
}

fn ends_a_line(path: &Path) -> io::Result<bool> {
    let mut file = regular::open_to_read(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Returns the highest number in the tail of the index.
pub fn highest(home: &Home) -> Option<RunId> {
    #[derive(Deserialize)]
    struct Named {
        run: Option<RunId>,
        highest: Option<RunId>,
    }
    let mut file = regular::open_to_read(&home.index()).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let named = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Named>(line).ok());
    named.filter_map(|named| named.run.max(named.highest)).max()
}

#[derive(Debug, Default)]
struct Read {
    entries: BTreeMap<RunId, IndexEntry>,
    highest: Option<RunId>,
    lines: usize,
    damaged: bool,
}

fn read(home: &Home) -> Result<Read, Error> {
    let path = home.index();
    let bytes = match regular::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Read::default()),
        Err(source) => return Err(Error::Home { doing: "read", path, source }),
    };
    let mut read = Read::default();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        read.lines += 1;
        if let Ok(entry) = serde_json::from_slice::<IndexEntry>(line) {
            read.highest = read.highest.max(Some(entry.run));
            read.entries.insert(entry.run, entry);
        } else if let Ok(mark) = serde_json::from_slice::<Highest>(line) {
            read.highest = read.highest.max(Some(mark.highest));
        } else {
            read.damaged = true;
        }
    }
    Ok(read)
}

/// Returns every run, oldest first, as its journal has it now. Repairs the index if it can be written.
pub fn entries(home: &Home) -> Result<Vec<IndexEntry>, Error> {
    let mut read = read(home)?;
    let present: BTreeSet<RunId> = ids(home)?.into_iter().collect();
    if read.damaged {
        // Any line may be the damaged one, so all entries are read again.
        read.entries.clear();
    }
    let known = read.entries.len();
    read.entries.retain(|run, _| present.contains(run));
    let is_behind = read.entries.len() < known;
    let mut changed: Vec<IndexEntry> = Vec::new();
    for run in &present {
        let old = read.entries.get(run);
        if old.is_some_and(IndexEntry::is_final) {
            continue;
        }
        // A run that cannot be read is listed by its number; `show` reports why.
        let run_dir = RunDir::at(home, *run);
        let mut entry = IndexEntry::of(&run_dir).unwrap_or_else(|| IndexEntry::new(*run, &Status::default()));
        if let Some(old) = old {
            entry.engine.clone_from(&old.engine);
            entry.user.clone_from(&old.user);
            if entry.labels.is_empty() {
                entry.labels.clone_from(&old.labels);
            }
            if entry.name.is_empty() {
                entry.name.clone_from(&old.name);
                entry.command.clone_from(&old.command);
                entry.created = old.created;
            }
        }
        if old != Some(&entry) {
            changed.push(entry);
        }
    }
    let missing = changed.iter().filter(|entry| !read.entries.contains_key(&entry.run)).count();
    let finished: Vec<IndexEntry> = changed.iter().filter(|entry| entry.is_final()).cloned().collect();
    read.entries.extend(changed.into_iter().map(|entry| (entry.run, entry)));
    let is_long = read.lines > 2 * read.entries.len() + 1000;
    if read.damaged || is_long || is_behind || missing > 100 {
        let _ = write(home, &read);
    } else {
        for entry in &finished {
            let _ = append(home, entry);
        }
    }
    for entry in &finished {
        tidy(&RunDir::at(home, entry.run));
    }
    Ok(read.entries.into_values().collect())
}

/// Removes runs from the index.
pub fn forget(home: &Home, runs: &[RunId]) -> Result<(), Error> {
    let mut read = read(home)?;
    read.highest = read.highest.max(runs.iter().copied().max());
    read.entries.retain(|run, _| !runs.contains(run));
    write(home, &read).map_err(|source| Error::Home { doing: "write", path: home.index(), source })
}

/// Writes one line for each run, then the highest number, so that none is reused.
fn write(home: &Home, read: &Read) -> io::Result<()> {
    let mut text = Vec::new();
    for entry in read.entries.values() {
        serde_json::to_writer(&mut text, entry)?;
        text.push(b'\n');
    }
    if let Some(highest) = read.highest.max(read.entries.keys().next_back().copied()) {
        serde_json::to_writer(&mut text, &Highest { highest })?;
        text.push(b'\n');
    }
    replace(&home.index(), &text)
}

#[cfg(test)]
mod tests {
    use umiak_core::facts::{Fact, Planned, Record};

    use super::*;
    use crate::history::remove::remove;

    fn record(seq: u64, fact: Fact) -> Record {
        Record { run: None, v: 1, seq, at: 1_000_000 + seq, epoch: 0, step: None, fact }
    }

    fn run(home: &Home, name: &str) -> RunDir {
        let run = RunDir::create(home).unwrap();
        let planned = Planned {
            job: name.to_owned(),
            name: String::new(),
            command: String::new(),
            attempt: 1,
            umiak: "0.1.0".to_owned(),
            world_size: 0,
            log_dir: String::new(),
            roles: Vec::new(),
            replicas: Vec::new(),
            nodes: Vec::new(),
        };
        let mut writer = journal::Writer::create(&run).unwrap();
        let finished = Fact::Finished { outcome: Outcome::Succeeded, exit_code: 0 };
        writer.append(&[record(0, Fact::Planned(planned)), record(1, finished)]).unwrap();
        run
    }

    fn home() -> (tempfile::TempDir, Home) {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        (directory, home)
    }

    fn names(home: &Home) -> Vec<String> {
        entries(home).unwrap().into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn runs_are_listed_with_and_without_an_index() {
        let (_directory, home) = home();
        assert_eq!(names(&home), [""; 0]);
        run(&home, "a");
        run(&home, "b");
        assert_eq!(names(&home), ["a", "b"]);
        let text = fs::read_to_string(home.index()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert_eq!(names(&home), ["a", "b"]);
        assert_eq!(fs::read_to_string(home.index()).unwrap(), text, "what is up to date is left alone");
    }

    #[test]
    fn garbage_is_mended_from_the_journals() {
        let (_directory, home) = home();
        run(&home, "a");
        run(&home, "b");
        entries(&home).unwrap();
        let mut text = fs::read_to_string(home.index()).unwrap();
        text.insert_str(10, "\0\n");
        text.push_str("{\"run\":\"run-0000");
        fs::write(home.index(), text).unwrap();
        assert_eq!(names(&home), ["a", "b"]);
        assert!(!read(&home).unwrap().damaged);
    }

    #[test]
    fn a_line_without_an_end_does_not_spoil_the_next() {
        let (_directory, home) = home();
        let first = run(&home, "a");
        fs::write(home.index(), "{\"run\":\"run-").unwrap();
        append(&home, &IndexEntry::of(&first).unwrap()).unwrap();
        assert_eq!(read(&home).unwrap().entries.len(), 1);
    }

    #[test]
    fn a_number_is_not_used_twice() {
        let (_directory, home) = home();
        let first = run(&home, "a");
        let second = run(&home, "b");
        remove(&home, std::slice::from_ref(&second)).unwrap();
        assert_eq!(names(&home), ["a"]);
        assert_eq!(run(&home, "c").id(), RunId::new(3));
        remove(&home, &[first]).unwrap();
        assert_eq!(names(&home), ["c"]);
    }
}
