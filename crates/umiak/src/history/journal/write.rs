//! Writes a journal: one supervisor at a time, whole lines; failed writes are kept and retried.

use std::fs::File;
use std::io::{self, BufReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

use tracing::{debug, warn};
use umiak_core::facts::{Fact, Record, VERSION};
use umiak_core::model::{StepName, Timestamp};
use umiak_core::status::{PipelineStatus, RunStatus, Status};
use umiak_sys::hooks::{self, JournalDeath};

use super::super::{Error, RunDir};
use super::{Chain, Reader};

/// A check of a run's life holds its lock for a moment: locking is retried this often, at this interval.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// The only writer of a journal. Dropping it releases the lock, unless a fork has inherited the file.
#[derive(Debug)]
pub struct Writer {
    file: File,
    run: RunDir,
    status: RunStatus,
    epoch: u32,
    next_seq: u64,
    chain: Chain,
    /// Lines that are not completely in the file yet, and how much of them is.
    pending: Vec<u8>,
    written: usize,
    /// Expected length of the file.
    length: u64,
    is_named_on_disk: bool,
    death: Option<JournalDeath>,
    /// Offset in `pending` at which a test kills this process.
    die_at: Option<usize>,
    /// Simulated free space.
    #[cfg(test)]
    pub(super) room: Option<usize>,
}

impl Writer {
    /// The open file whose lock says that the run is live.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Starts the journal of a new run.
    pub fn create(run: &RunDir) -> Result<Self, Error> {
        Self::begin(run, File::options().append(true).read(true).create_new(true).mode(0o600))
    }

    /// Opens the journal of an existing run for its next supervisor. Truncates an incomplete last line.
    pub fn open(run: &RunDir) -> Result<Self, Error> {
        // The previous supervisor may have died before it created the journal.
        Self::begin(run, File::options().append(true).read(true).create(true).mode(0o600))
    }

    fn begin(run: &RunDir, options: &mut std::fs::OpenOptions) -> Result<Self, Error> {
        let path = run.journal();
        let failed = |doing| move |source| Error::Journal { doing, path: run.journal(), source };
        let file = super::open(run, options).map_err(failed("open"))?;
        lock(&file, run)?;
        let reading = file.try_clone().map_err(failed("open"))?;
        let mut reader = Reader::new(BufReader::new(reading), run);
        let mut status = RunStatus::default();
        let seen = super::read_through(&mut reader, run, run.supervisor().exists(), |item| status.add(&item.record))?;
        if let Some(found) = seen.newer {
            return Err(Error::Newer { path, found, known: VERSION });
        }
        if let Some(damage) = seen.damage {
            return Err(Error::Damaged(damage));
        }
        let length = reader.end();
        if file.metadata().map_err(failed("access"))?.len() > length {
            file.set_len(length).map_err(failed("truncate the incomplete end of"))?;
        }
        let epoch = if status.run.next_seq == 0 { 0 } else { status.run.epoch + 1 };
        debug!(run = %run.id(), epoch, records = status.run.next_seq, "journal opened");
        Ok(Self {
            file,
            run: run.clone(),
            next_seq: status.run.next_seq,
            chain: reader.chain(),
            status,
            epoch,
            pending: Vec::new(),
            written: 0,
            length,
            is_named_on_disk: false,
            death: JournalDeath::asked_for(),
            die_at: None,
            #[cfg(test)]
            room: None,
        })
    }

    /// The number of this supervisor, part of each of its records.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// A duplicate of the file, to sync it on another thread.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// The status after all records, including those not in the file yet.
    pub fn status(&self) -> &Status {
        &self.status.run
    }

    /// The status of the run and of its nodes after all records.
    pub fn recorded(&self) -> &RunStatus {
        &self.status
    }

    /// The state of the nodes after all records, if the run is a pipeline.
    pub fn pipeline(&self) -> Option<&PipelineStatus> {
        self.status.pipeline.as_deref()
    }

    /// Numbers facts, about steps or about the run, as the next records.
    pub fn number(&self, at: Timestamp, facts: impl IntoIterator<Item = (Option<StepName>, Fact)>) -> Vec<Record> {
        let (at, epoch) = (at.as_micros(), self.epoch);
        (self.next_seq..)
            .zip(facts)
            .map(|(seq, (step, fact))| Record { run: None, v: VERSION, seq, at, epoch, step, fact })
            .collect()
    }

    /// Adds records, with one write for all that is pending. If it fails they are kept, and retried with the next ones
    /// or by [`Writer::retry`].
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        for record in records {
            let begin = self.pending.len();
            serde_json::to_writer(&mut self.pending, record).expect("a record is JSON");
            self.chain.seal(&mut self.pending, begin, record.epoch);
            self.pending.push(b'\n');
            if let Some(death) = self.death
                && let Some(at) = death.within(record.seq, self.pending.len() - begin)
            {
                self.die_at = Some(begin + at);
            }
            self.status.add(record);
            self.next_seq = record.seq + 1;
        }
        self.retry()
    }

    /// Writes what is pending.
    pub fn retry(&mut self) -> io::Result<()> {
        self.write_pending().inspect_err(|error| {
            warn!(run = %self.run.id(), waiting = self.pending.len() - self.written, %error, "journal not written");
        })
    }

    fn write_pending(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.is_removed() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the run's directory was removed"));
        }
        if self.written > 0 {
            self.take_up()?;
        }
        let stop = self.die_at.unwrap_or(self.pending.len());
        while self.written < stop {
            match self.write(stop) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.written += count;
                    self.length += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.die_at.is_some() {
            hooks::die();
        }
        self.pending.clear();
        self.written = 0;
        Ok(())
    }

    /// Continues an incomplete line. If the file has changed, another supervisor took over and truncated that line:
    /// then the line is written again from its start, so that no half line remains in the middle. (Our records have an
    /// old epoch then, and are ignored.)
    fn take_up(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length != self.length {
            self.written = self.pending[..self.written].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            self.length = length;
        }
        Ok(())
    }

    #[cfg(not(test))]
    fn write(&mut self, stop: usize) -> io::Result<usize> {
        self.file.write(&self.pending[self.written..stop])
    }

    #[cfg(test)]
    fn write(&mut self, stop: usize) -> io::Result<usize> {
        let bytes = &self.pending[self.written..stop];
        let room = self.room.unwrap_or(bytes.len()).min(bytes.len());
        if room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let count = self.file.write(&bytes[..room])?;
        self.room = self.room.map(|room| room - count);
        Ok(count)
    }

    /// True if the file was removed: further writes would be lost.
    pub fn is_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }

    /// Syncs what was written to disk; the first time, the directory entries too.
    pub fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        if !self.is_named_on_disk {
            for directory in self.run.path().ancestors().take(2) {
                File::open(directory)?.sync_all()?;
            }
            self.is_named_on_disk = true;
        }
        Ok(())
    }

    pub fn path(&self) -> PathBuf {
        self.run.journal()
    }
}

/// Locks an open journal, or fails if another process holds it.
pub(in crate::history) fn lock(file: &File, run: &RunDir) -> Result<(), Error> {
    for _ in 0..TRIES {
        match umiak_sys::hold::try_exclusive(file) {
            Ok(true) => return Ok(()),
            Ok(false) => std::thread::sleep(PAUSE),
            Err(source) => return Err(Error::Journal { doing: "lock", path: run.journal(), source }),
        }
    }
    Err(Error::Held { run: run.id() })
}
