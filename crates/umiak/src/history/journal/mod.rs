//! Facts of a run, one line each, in `journal.jsonl`.
//!
//! One [`Writer`] at a time; a [`Reader`] needs nobody's leave, and a [`Follower`] reads on as the file grows. A last
//! line that is incomplete was torn when its writer died: readers stop before it, the next writer cuts it. What is
//! damaged anywhere else is an error that names the line.

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

/// A journal from its first record to its last whole one.
#[derive(Debug, Default)]
pub struct Replay {
    pub status: Status,
    /// The highest version that a record has, where that is newer than ours.
    pub newer: Option<u32>,
    /// How many facts are of types that we do not know.
    pub unknown: u64,
}

/// What the journal adds up to. A run without a journal has just been made.
pub fn replay(run: &RunDir) -> Result<Replay, Error> {
    let mut status = Status::default();
    let (newer, unknown) = each(run, |item| status.add(&item.record))?;
    Ok(Replay { status, newer, unknown })
}

/// Shows every record of a journal to `see`; says whether newer ones were among them, and how many were not known.
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
