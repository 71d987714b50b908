//! The files between a supervisor and its agents. Each has one writer. They may be on a network's file system, which shows
//! new bytes of another host only after the file is opened again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

pub(crate) const UNIT: &str = "unit.json";
pub(crate) const ORDERS: &str = "orders.jsonl";
pub(crate) const PLACEMENT: &str = "placement.json";
/// Where an agent has the files of the others, if it does not share their directory.
pub(crate) const OTHERS: &str = "others";
pub(crate) const SUPERVISOR: &str = "supervisor.json";

/// A file with a higher number is not one of ours.
const MAX_AGENTS: usize = 100_000;

/// The file of an agent.
pub(crate) fn of_agent(directory: &Path, agent: usize) -> PathBuf {
    directory.join(format!("agent-{agent}.jsonl"))
}

/// The number of agents that have a file here: those of all starts of the unit.
pub(crate) fn agents(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| umiak_core::cluster::post::agent(entry.file_name().to_str()?));
    let numbers = numbers.filter(|number| *number < MAX_AGENTS);
    numbers.max().map_or(0, |last| last + 1)
}

/// Tells a file from another of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    inode: u64,
    pub(crate) length: u64,
    modified: (i64, i64),
}

impl Version {
    /// The file is opened: a network's file system may show what is new only then.
    pub(crate) fn of(path: &Path) -> io::Result<(Self, File)> {
        let file = File::open(path)?;
        let data = file.metadata()?;
        let modified = (data.mtime(), data.mtime_nsec());
        Ok((Self { inode: data.ino(), length: data.len(), modified }, file))
    }
}

/// Reads a file that is replaced, if it is another one than before.
pub(crate) fn read_new<T: DeserializeOwned>(path: &Path, known: &mut Option<Version>) -> Option<T> {
    let (version, mut file) = Version::of(path).ok().filter(|(version, _)| *known != Some(*version))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let value = serde_json::from_slice(&bytes).ok()?;
    *known = Some(version);
    Some(value)
}

/// The beginning and the end of a log, for a message.
pub(crate) fn beginning_and_end(path: &Path) -> io::Result<String> {
    const READ: u64 = 64 << 10;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    (&file).take(READ).read_to_end(&mut bytes)?;
    file.seek(SeekFrom::Start(length.saturating_sub(READ).max(bytes.len() as u64)))?;
    file.take(READ).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads the lines that are added to a file.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    at: u64,
}

impl Tail {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, at: 0 }
    }

    /// The new lines; none if the file does not exist. What is not such a line is skipped.
    pub(crate) fn read<T: DeserializeOwned>(&mut self) -> Vec<T> {
        let bytes = self.bytes().unwrap_or_default();
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        self.at += end as u64 + 1;
        let line = |line: &[u8]| {
            let read = serde_json::from_slice(line);
            read.inspect_err(|error| warn!(path = %self.path.display(), %error, "not a line of ours")).ok()
        };
        bytes[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).filter_map(line).collect()
    }

    fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        let mut bytes = Vec::new();
        if file.metadata()?.len() > self.at {
            file.seek(SeekFrom::Start(self.at))?;
            file.read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    }
}

/// Adds lines to a file, in one piece. What cannot be written is kept for the next time.
#[derive(Debug)]
pub(crate) struct Lines {
    path: PathBuf,
    unwritten: Vec<u8>,
    /// True once the file ends with a whole line: a writer before this one may have been killed inside one.
    is_begun: bool,
}

impl Lines {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, unwritten: Vec::new(), is_begun: false }
    }

    /// Takes what is not written, so that it can be written while more is added.
    pub(crate) fn take(&mut self) -> Self {
        Self { path: self.path.clone(), unwritten: std::mem::take(&mut self.unwritten), is_begun: self.is_begun }
    }

    /// Puts back what [`take`](Self::take) has given and could not be written.
    pub(crate) fn put_back(&mut self, mut taken: Self) {
        taken.unwritten.append(&mut self.unwritten);
        *self = taken;
    }

    pub(crate) fn add<T: Serialize>(&mut self, line: &T) {
        serde_json::to_writer(&mut self.unwritten, line).expect("plain data");
        self.unwritten.push(b'\n');
    }

    pub(crate) fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// True if all lines are in the file.
    pub(crate) fn write(&mut self) -> bool {
        if self.unwritten.is_empty() {
            return true;
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).mode(0o600).open(&self.path);
        let Ok(mut file) = file.inspect_err(|error| warn!(path = %self.path.display(), %error, "not written")) else {
            return false;
        };
        if !self.is_begun {
            let mut last = [b'\n'];
            if file.seek(SeekFrom::End(-1)).is_ok() {
                let _ = file.read(&mut last);
            }
            if last != [b'\n'] {
                self.unwritten.insert(0, b'\n');
            }
            self.is_begun = true;
        }
        while !self.unwritten.is_empty() {
            match file.write(&self.unwritten) {
                Ok(written) => drop(self.unwritten.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    warn!(path = %self.path.display(), %error, "not written");
                    return false;
                }
            }
        }
        true
    }
}

pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// Writes a file so that readers see all of it or nothing.
pub(crate) fn replace<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let new = path.with_extension("new");
    let bytes = serde_json::to_vec(value)?;
    let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
    let written = written.and_then(|mut file| file.write_all(&bytes)).and_then(|()| std::fs::rename(&new, path));
    // It may have secrets.
    written.inspect_err(|_| drop(std::fs::remove_file(&new)))
}
