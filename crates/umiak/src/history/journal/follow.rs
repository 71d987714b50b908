//! Follows a journal as it grows, until its run has ended or its writer is gone.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use umiak_core::status::{PipelineStatus, RunStatus, Status};
use umiak_sys::wait::readable;
use umiak_sys::watch::Watch;

use super::super::{Error, Life, RunDir, life_of};
use super::{JournalItem, Reader};

/// Poll interval for a run of another host: the kernel reports only local writes.
const LOOK: Duration = Duration::from_secs(2);

/// The kernel reports that a file is closed before it releases the lock: after a writer's death, the first check may
/// still see it alive. The check is repeated after this time, doubled each time up to the maximum.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Follows a run by its journal. Does not wake up while nothing is written.
#[derive(Debug)]
pub struct Follower {
    run: RunDir,
    reader: Option<Reader>,
    watch: Watch,
    status: RunStatus,
    /// Set after an event: the time until the next check.
    again: Option<Duration>,
}

impl Follower {
    pub fn open(run: &RunDir) -> Result<Self, Error> {
        let failed = |source| Error::Journal { doing: "watch", path: run.journal(), source };
        let watch = Watch::new().map_err(failed)?;
        let mut follower = Self { run: run.clone(), reader: None, watch, status: RunStatus::default(), again: None };
        follower.begin()?;
        Ok(follower)
    }

    /// Opens the journal, which is created a moment after its directory.
    fn begin(&mut self) -> Result<(), Error> {
        let path = self.run.journal();
        let watched = if path.exists() { &path } else { self.run.path() };
        self.watch.add(watched).map_err(|source| Error::Journal { doing: "watch", path: watched.into(), source })?;
        if path.exists() {
            self.reader = Some(Reader::open(&self.run)?);
        }
        Ok(())
    }

    /// Returns the next fact that is available, and adds it to the status.
    #[expect(clippy::should_implement_trait, reason = "an item borrows the reader's line")]
    pub fn next(&mut self) -> Result<Option<JournalItem<'_>>, Error> {
        if self.reader.is_none() {
            self.begin()?;
        }
        let Some(reader) = &mut self.reader else { return Ok(None) };
        let item = reader.next()?;
        if let Some(item) = &item {
            self.status.add(&item.record);
        }
        Ok(item)
    }

    /// The status after the facts read so far.
    pub fn status(&self) -> &Status {
        &self.status.run
    }

    /// The state of the nodes after the facts read so far, if the run is a pipeline.
    pub fn pipeline(&self) -> Option<&PipelineStatus> {
        self.status.pipeline.as_deref()
    }

    /// Reads everything that is available.
    pub fn catch_up(&mut self) -> Result<(), Error> {
        while self.next()?.is_some() {}
        Ok(())
    }

    /// The watch of [`Follower::wait`], to add more files.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Returns whether the run has a supervisor. Facts may have been written since they were read.
    pub fn life(&self) -> Result<Life, Error> {
        life_of(&self.run, self.status.run.is_finished())
    }

    /// Waits until something is written, the writer is gone, or one of `others` is readable; returns true in the last
    /// case. Call it after checking that the run still goes on.
    pub fn wait(&mut self, others: &[BorrowedFd<'_>]) -> Result<bool, Error> {
        self.wait_for(others, None)
    }

    /// Like [`Follower::wait`], with a timeout.
    pub fn wait_for(&mut self, others: &[BorrowedFd<'_>], limit: Option<Duration>) -> Result<bool, Error> {
        let is_here = self.run.read_supervisor().is_none_or(|supervisor| supervisor.is_of_this_boot());
        let mut fds = vec![self.watch.as_fd()];
        fds.extend_from_slice(others);
        let look = (!is_here).then_some(LOOK);
        let ready = readable(&fds, self.again.into_iter().chain(look).chain(limit).min())
            .map_err(|source| Error::Journal { doing: "watch", path: self.run.journal(), source })?;
        self.watch.clear();
        self.again = match self.again {
            _ if ready[0] => Some(AGAIN.0),
            Some(again) if again < AGAIN.1 => Some((again * 2).min(AGAIN.1)),
            _ => None,
        };
        Ok(ready[1..].contains(&true))
    }
}
