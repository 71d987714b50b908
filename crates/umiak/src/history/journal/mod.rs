//! Facts of a run, one line each, in `journal.jsonl`.
//!
//! Only one [`Writer`] at a time; a [`Reader`] needs no lock, and a [`Follower`] reads new records as the file grows.
//! An incomplete last line was torn when its writer died: readers stop before it, the next writer truncates it. Damage
//! anywhere else is an error that names the line.

mod follow;
mod read;
mod write;

#[cfg(test)]
mod tests;

use std::io;

use umiak_core::status::Status;

use super::{Error, RunDir};

pub use follow::Follower;
pub use read::{JournalItem, Reader};
pub use write::Writer;
pub(super) use write::lock;

/// The content of a journal up to its last whole record.
#[derive(Debug, Default)]
pub struct Replay {
    pub status: Status,
    /// The highest version of a record, if it is newer than ours.
    pub newer: Option<u32>,
    /// Number of facts of unknown types.
    pub unknown: u64,
}

/// Computes the status from the journal. A run without a journal is new.
pub fn replay(run: &RunDir) -> Result<Replay, Error> {
    let mut status = Status::default();
    let (newer, unknown) = each(run, |item| status.add(&item.record))?;
    Ok(Replay { status, newer, unknown })
}

/// Passes every record of a journal to `see`. Returns the highest newer version, if any, and the number of unknown
/// facts.
pub fn each(run: &RunDir, mut see: impl FnMut(&JournalItem<'_>)) -> Result<(Option<u32>, u64), Error> {
    let mut reader = match Reader::open(run) {
        Err(Error::Journal { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok((None, 0)),
        other => other?,
    };
    while let Some(item) = reader.next()? {
        see(&item);
    }
    Ok((reader.newer(), reader.unknown()))
}
