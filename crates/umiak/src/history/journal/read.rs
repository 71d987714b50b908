//! Reads a journal, also while it is written.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

use serde::Deserialize;
use umiak_core::facts::{Fact, Record, VERSION};
use umiak_core::model::StepName;

use super::super::{Error, RunDir};
use super::{Chain, Damage, chain};

/// Maximum length of a record: a plan of a hundred thousand replicas takes a tenth of it.
const LONGEST: u64 = 256 << 20;

/// The types of facts of this version. A known one that cannot be parsed is damage; an unknown one comes from a newer
/// umiak and is skipped.
pub(super) const KNOWN: &[&str] = &[
    "supervised",
    "planned",
    "starting",
    "submitted",
    "accepted",
    "pending",
    "cancelled",
    "started",
    "ready",
    "timed_out",
    "store_waits",
    "collective_timeout",
    "ended",
    "stopping",
    "stop_sent",
    "paused",
    "continued",
    "hung",
    "observed",
    "diagnosed",
    "noticed",
    "ignored",
    "pipeline",
    "resolved",
    "looping",
    "entered",
    "skipped",
    "cached",
    "refused",
    "left",
    "abandoned",
    "engine_lost",
    "swept",
    "attempt_failed",
    "retrying",
    "resizing",
    "spares",
    "restarting",
    "finished",
];

/// One record and its line.
#[derive(Debug)]
pub struct JournalItem<'a> {
    /// An unknown fact is represented by [`Fact::Ignored`], which changes nothing.
    pub record: Record,
    pub is_known: bool,
    /// The line in the file, without its checksum and the line feed.
    pub raw: &'a [u8],
}

/// Reads a journal. Returns `None` at its end, and continues from there on the next call.
#[derive(Debug)]
pub struct Reader<R = BufReader<File>> {
    source: R,
    run: RunDir,
    line: Vec<u8>,
    chain: Chain,
    number: u64,
    /// Number of the next record of a supervisor that was not replaced.
    seq: u64,
    /// Offset after the last whole record.
    end: u64,
    newer: Option<u32>,
    unknown: u64,
}

impl Reader {
    pub fn open(run: &RunDir) -> Result<Self, Error> {
        match super::open(run, File::options().read(true)) {
            Ok(file) => Ok(Self::new(BufReader::with_capacity(128 << 10, file), run)),
            Err(source) => Err(Error::Journal { doing: "read", path: run.journal(), source }),
        }
    }
}

impl<R: BufRead + Seek> Reader<R> {
    pub fn new(source: R, run: &RunDir) -> Self {
        let (run, chain) = (run.clone(), Chain::new(run.id()));
        Self { source, run, line: Vec::new(), chain, number: 0, seq: 0, end: 0, newer: None, unknown: 0 }
    }

    /// The checksums that the next records depend on.
    pub(super) fn chain(self) -> Chain {
        self.chain
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

    /// Returns the next whole record. Behind a damaged one there are none: the error is returned again.
    #[expect(clippy::should_implement_trait, reason = "an item borrows the reader's line")]
    pub fn next(&mut self) -> Result<Option<JournalItem<'_>>, Error> {
        let is_last = match self.read_line() {
            Ok(None) => return Ok(None),
            Ok(Some(is_last)) => is_last,
            Err(source) => return Err(Error::Journal { doing: "read", path: self.run.journal(), source }),
        };
        let count = self.line.len() as u64;
        let is_whole = self.line.pop_if(|last| *last == b'\n').is_some();
        let found = match is_whole {
            false if count == LONGEST => Err("unterminated line".to_owned()),
            false => Ok(Line::Damaged(String::new())),
            true => Ok(read(&self.line)),
        };
        let checked = found.and_then(|line| match line {
            Line::Known(record) => self.check(&record).map(|()| Some((record, true))),
            Line::Unknown(record) => self.check(&record).map(|()| Some((record, false))),
            // Torn, or still being written. The next writer may truncate it, so it is not kept.
            Line::Damaged(_) if !is_whole || is_last => Ok(None),
            Line::Damaged(why) | Line::Wrong(why) => Err(why),
        });
        let (record, is_known) = match checked {
            Ok(Some(checked)) => checked,
            Ok(None) => return self.go_back().map(|()| None),
            Err(why) => {
                self.go_back()?;
                let (run, record, offset) = (self.run.clone(), self.number + 1, self.end);
                return Err(Error::Damaged(Box::new(Damage { run, record, offset, why })));
            }
        };
        self.number += 1;
        self.end += count;
        if record.v > VERSION {
            self.newer = self.newer.max(Some(record.v));
        }
        self.unknown += u64::from(!is_known);
        Ok(Some(JournalItem { record, is_known, raw: &self.line }))
    }

    /// Reads a line, and whether nothing follows it; `None` at the end of the file.
    fn read_line(&mut self) -> std::io::Result<Option<bool>> {
        self.line.clear();
        let count = (&mut self.source).take(LONGEST).read_until(b'\n', &mut self.line)?;
        if count == 0 {
            return Ok(None);
        }
        Ok(Some(self.source.fill_buf()?.is_empty()))
    }

    /// The next read begins behind the last whole record again.
    fn go_back(&mut self) -> Result<(), Error> {
        let sought = self.source.seek(SeekFrom::Start(self.end));
        sought.map(drop).map_err(|source| Error::Journal { doing: "read", path: self.run.journal(), source })
    }

    /// Checks that the line is the next record, and removes its checksum. The rules of a newer version are not known.
    fn check(&mut self, record: &Record) -> Result<(), String> {
        if record.v > VERSION {
            return Ok(());
        }
        let Some((body, sum)) = chain::split(&self.line) else {
            return Err(excerpt("the record has no checksum", &self.line));
        };
        let (length, is_stale) = (body.len(), self.chain.is_replaced(record.epoch));
        if !self.chain.take(body, sum, record.epoch) {
            let (seq, expected) = (record.seq, self.seq);
            let why = match seq.cmp(&expected) {
                _ if is_stale => "the checksum does not match".to_owned(),
                Ordering::Equal => {
                    "the checksum does not match: the record was changed, or is of another run".to_owned()
                }
                Ordering::Greater => {
                    format!("`seq` is {seq} instead of {expected}: records before it were removed or moved")
                }
                Ordering::Less => format!("`seq` is {seq} instead of {expected}: the record was repeated or moved"),
            };
            return Err(excerpt(&why, &self.line));
        }
        if !is_stale {
            self.seq = record.seq + 1;
        }
        self.line.truncate(length);
        self.line.push(b'}');
        Ok(())
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
