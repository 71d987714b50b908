//! Facts of a run, one line each, in `journal.jsonl`.
//!
//! Only one [`Writer`] at a time; a [`Reader`] needs no lock, and a [`Follower`] reads new records as the file grows.
//! An incomplete last line was torn when its writer died: readers stop before it, the next writer truncates it. Each
//! record ends with a checksum ([`Chain`]). A record that does not fit is [`Damage`]: readers have what is before it,
//! and a writer refuses it until [`accept_damage`] has removed it.

mod chain;
mod follow;
mod read;
mod write;

#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use umiak_core::status::{PipelineStatus, RunStatus, Status};

use super::{Error, RunDir};

pub use chain::{Chain, sealed};
pub use follow::Follower;
pub use read::{JournalItem, Reader};
pub use write::Writer;
pub(super) use write::lock;

/// The first record that is not what its supervisor wrote. Nothing from there on is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub run: RunDir,
    /// Its number, from 1.
    pub record: u64,
    /// Its place in the file, in bytes.
    pub offset: u64,
    pub why: String,
}

/// The content of a journal up to its last whole record, or up to its damage.
#[derive(Debug, Default)]
pub struct Replay {
    pub status: Status,
    /// The state of the nodes, if the run is a pipeline.
    pub pipeline: Option<Box<PipelineStatus>>,
    pub seen: Seen,
}

impl Replay {
    /// True if the run has ended. What a damaged journal says is not known.
    pub fn is_finished(&self) -> bool {
        self.status.is_finished() && self.seen.damage.is_none()
    }
}

/// What a reader came across.
#[derive(Debug, Default)]
pub struct Seen {
    /// The highest version of a record, if it is newer than ours.
    pub newer: Option<u32>,
    /// Number of facts of unknown types.
    pub unknown: u64,
    pub damage: Option<Box<Damage>>,
}

/// Computes the status from the journal. A run without a journal is new.
pub fn replay(run: &RunDir) -> Result<Replay, Error> {
    let mut status = RunStatus::default();
    let seen = each(run, |item| status.add(&item.record))?;
    let RunStatus { run: status, pipeline } = status;
    Ok(Replay { status, pipeline, seen })
}

/// Passes every record of a journal to `see`, up to a damaged one.
pub fn each(run: &RunDir, see: impl FnMut(&JournalItem<'_>)) -> Result<Seen, Error> {
    // Before the first read: it is written after the first record.
    let has_begun = run.supervisor().exists();
    let mut reader = match Reader::open(run) {
        Err(Error::Journal { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Seen { damage: has_begun.then(|| Box::new(empty(run))), ..Seen::default() });
        }
        other => other?,
    };
    read_through(&mut reader, run, has_begun, see)
}

fn read_through<R: io::BufRead + io::Seek>(
    reader: &mut Reader<R>,
    run: &RunDir,
    has_begun: bool,
    mut see: impl FnMut(&JournalItem<'_>),
) -> Result<Seen, Error> {
    let damage = loop {
        match reader.next() {
            Ok(Some(item)) => see(&item),
            Ok(None) => break (has_begun && reader.end() == 0).then(|| Box::new(empty(run))),
            Err(Error::Damaged(damage)) => break Some(damage),
            Err(error) => return Err(error),
        }
    };
    Ok(Seen { newer: reader.newer(), unknown: reader.unknown(), damage })
}

/// A supervisor records that it begins before it writes `supervisor.json`.
fn empty(run: &RunDir) -> Damage {
    let why = "there is no record, although the run has begun".to_owned();
    Damage { run: run.clone(), record: 1, offset: 0, why }
}

/// Removes a damaged record and all that follow it, and keeps the whole journal beside it. Returns the damage and the
/// path of the copy; `None` if there is no damage, or not any more.
pub fn accept_damage(run: &RunDir) -> Result<Option<(Box<Damage>, PathBuf)>, Error> {
    let failed = |doing| move |source| Error::Journal { doing, path: run.journal(), source };
    let file = open(run, File::options().read(true).append(true).create(true).mode(0o600)).map_err(failed("open"))?;
    lock(&file, run)?;
    let Some(damage) = each(run, |_| ())?.damage else { return Ok(None) };
    let mut names = (1..).map(|number| run.journal().with_extension(format!("damaged-{number}.jsonl")));
    let copy = names.find(|path| !path.exists()).expect("there is always another number");
    std::fs::copy(run.journal(), &copy)
        .and_then(|_| File::open(&copy)?.sync_all())
        .and_then(|()| file.set_len(damage.offset))
        .map_err(failed("keep a copy of"))?;
    if damage.offset == 0 {
        // The run has not begun.
        let _ = std::fs::remove_file(run.supervisor());
    }
    Ok(Some((damage, copy)))
}

/// Opens a journal. What is not a regular file is refused: opening it may block for ever.
pub(super) fn open(run: &RunDir, options: &mut OpenOptions) -> io::Result<File> {
    umiak_sys::regular::open(options, &run.journal()).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => io::Error::other("it is not a regular file"),
        _ => error,
    })
}
