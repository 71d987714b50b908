//! The files between a supervisor and its agents. Each has one writer. They may be on a network's file system, which shows
//! the same bytes to all hosts only to those who open the file again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

pub(crate) const UNIT: &str = "unit.json";
pub(crate) const ORDERS: &str = "orders.jsonl";
pub(crate) const PLACEMENT: &str = "placement.json";
pub(crate) const SUPERVISOR: &str = "supervisor.json";

/// The file of an agent.
pub(crate) fn of_agent(directory: &Path, agent: usize) -> PathBuf {
    directory.join(format!("agent-{agent}.jsonl"))
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
        bytes[..end].split(|byte| *byte == b'\n').filter_map(line).collect()
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
}

impl Lines {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, unwritten: Vec::new() }
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
        let file = options.append(true).create(true).mode(0o600).open(&self.path);
        let Ok(mut file) = file.inspect_err(|error| warn!(path = %self.path.display(), %error, "not written")) else {
            return false;
        };
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
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    std::fs::rename(new, path)
}
