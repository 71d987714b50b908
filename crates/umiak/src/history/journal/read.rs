//! Reads a journal, also while it is written.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde::Deserialize;
use umiak_core::facts::{Fact, Record, VERSION};
use umiak_core::model::StepName;

use super::super::{Error, RunDir};

/// Maximum length of a record: a plan of a hundred thousand replicas takes a tenth of it.
const LONGEST: u64 = 256 << 20;

/// The types of facts of this version. A known one that cannot be parsed is damage; an unknown one comes from a newer
/// umiak and is skipped.
pub(super) const KNOWN: &[&str] = &[
    "supervised",
    "planned",
    "starting",
    "submitted",
    "pending",
    "started",
    "ready",
    "timed_out",
    "ended",
    "stopping",
    "stop_sent",
    "paused",
    "continued",
    "diagnosed",
    "noticed",
    "ignored",
    "abandoned",
    "swept",
    "attempt_failed",
    "retrying",
    "restarting",
    "finished",
];

/// One record and its line.
#[derive(Debug)]
pub struct JournalItem<'a> {
    /// An unknown fact is represented by [`Fact::Ignored`], which changes nothing.
    pub record: Record,
    pub is_known: bool,
    /// The line in the file, without the line feed.
    pub raw: &'a [u8],
}

/// Reads a journal. Returns `None` at its end, and continues from there on the next call.
#[derive(Debug)]
pub struct Reader<R = BufReader<File>> {
    source: R,
    path: PathBuf,
    line: Vec<u8>,
    number: u64,
    /// Offset after the last whole record.
    end: u64,
    newer: Option<u32>,
    unknown: u64,
}

impl Reader {
    pub fn open(run: &RunDir) -> Result<Self, Error> {
        let path = run.journal();
        match File::open(&path) {
            Ok(file) => Ok(Self::new(BufReader::with_capacity(128 << 10, file), path)),
            Err(source) => Err(Error::Journal { doing: "read", path, source }),
        }
    }
}

impl<R: BufRead + Seek> Reader<R> {
    pub fn new(source: R, path: PathBuf) -> Self {
        Self { source, path, line: Vec::new(), number: 0, end: 0, newer: None, unknown: 0 }
    }

    /// The highest version seen, if it is newer than ours.
    pub fn newer(&self) -> Option<u32> {
        self.newer
    }

    /// Number of facts of unknown types.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Offset after the last whole record; what follows is torn, or still being written.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the next whole record.
    #[expect(clippy::should_implement_trait, reason = "an item borrows the reader's line")]
    pub fn next(&mut self) -> Result<Option<JournalItem<'_>>, Error> {
        let failed = |path: &PathBuf, source| Error::Journal { doing: "read", path: path.clone(), source };
        self.line.clear();
        let count = (&mut self.source)
            .take(LONGEST)
            .read_until(b'\n', &mut self.line)
            .map_err(|source| failed(&self.path, source))?;
        if count == 0 {
            return Ok(None);
        }
        let is_whole = self.line.last() == Some(&b'\n');
        if !is_whole && count as u64 == LONGEST {
            return Err(self.garbage("unterminated line".to_owned()));
        }
        let read = if is_whole { read(&self.line[..count - 1]) } else { Line::Damaged(String::new()) };
        let (record, is_known) = match read {
            Line::Known(record) => (record, true),
            Line::Unknown(record) => (record, false),
            Line::Damaged(why) => {
                let is_last = self.source.fill_buf().map_err(|source| failed(&self.path, source))?.is_empty();
                if is_whole && !is_last {
                    return Err(self.garbage(why));
                }
                // Torn, or still being written. The next writer may truncate it, so it is not kept.
                self.source.seek(SeekFrom::Start(self.end)).map_err(|source| failed(&self.path, source))?;
                return Ok(None);
            }
            Line::Wrong(why) => return Err(self.garbage(why)),
        };
        self.number += 1;
        self.end += count as u64;
        if record.v > VERSION {
            self.newer = self.newer.max(Some(record.v));
        }
        self.unknown += u64::from(!is_known);
        Ok(Some(JournalItem { record, is_known, raw: &self.line[..count - 1] }))
    }

    fn garbage(&self, why: String) -> Error {
        Error::Garbage { path: self.path.clone(), line: self.number + 1, why }
    }
}

enum Line {
    Known(Record),
    Unknown(Record),
    /// Not JSON: torn if it is the last line.
    Damaged(String),
    /// JSON, but not a valid record.
    Wrong(String),
}

fn read(line: &[u8]) -> Line {
    #[derive(Deserialize)]
    struct Head {
        v: u32,
        seq: u64,
        at: u64,
        #[serde(default)]
        epoch: u32,
        #[serde(default)]
        step: Option<StepName>,
        r#type: String,
    }
    let error = match serde_json::from_slice::<Record>(line) {
        Ok(record) => return Line::Known(record),
        Err(error) => error,
    };
    let head = match serde_json::from_slice::<Head>(line) {
        Ok(head) => head,
        Err(other) if other.is_data() => return Line::Wrong(excerpt(&other.to_string(), line)),
        Err(other) => return Line::Damaged(excerpt(&other.to_string(), line)),
    };
    if head.v <= VERSION && KNOWN.contains(&head.r#type.as_str()) {
        return Line::Wrong(excerpt(&error.to_string(), line));
    }
    let Head { v, seq, at, epoch, step, r#type } = head;
    Line::Unknown(Record {
        run: None,
        v,
        seq,
        at,
        epoch,
        step,
        fact: Fact::Ignored { event: r#type, state: "not known here".into() },
    })
}

/// The reason, and the beginning of the line.
fn excerpt(why: &str, line: &[u8]) -> String {
    const SHOWN: usize = 60;
    let text = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
    let text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let more = if line.len() > SHOWN { "…" } else { "" };
    format!("{text}{more}\n({why})")
}
