//! A launched job is a run too: its facts go to a journal, which points into the log directory.
//!
//! Recording must cost a launch nothing that is felt: what need not be there before the first rank is done on a thread
//! beside it, and a home that cannot be used is one notice, not an error.

use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Record};
use umiak_core::model::Timestamp;

use crate::history::journal::Writer;
use crate::history::{Error, Home, RunDir, RunId, index};

/// The end of a run that was shorter than this is not made to survive a power cut: that may take longer than ending.
const WORTH_SYNCING: Duration = Duration::from_secs(10);

/// The journal of a launched job.
pub(super) struct Recorder {
    home: Home,
    run: RunDir,
    writer: Writer,
    /// Says that the run is listed.
    listed: Option<Receiver<()>>,
}

impl Recorder {
    pub(super) fn begin() -> Result<Self, Error> {
        let home = Home::from_environment()?;
        let run = RunDir::create(&home)?;
        let writer = Writer::create(&run).inspect_err(|_| {
            // A run without a journal is none.
            let _ = std::fs::remove_dir_all(run.path());
        })?;
        Ok(Self { home, run, writer, listed: None })
    }

    pub(super) fn id(&self) -> RunId {
        self.run.id()
    }

    pub(super) fn number(&self, at: Timestamp, facts: Vec<Fact>) -> Vec<Record> {
        self.writer.number(at, facts)
    }

    /// What cannot be written waits, and is tried again with the next.
    pub(super) fn append(&mut self, records: &[Record]) {
        let _ = self.writer.append(records);
    }

    /// The plan is written: what `ls` needs, and the disk, are told while the ranks start.
    pub(super) fn begun(&mut self) {
        let (home, entry) = (self.home.clone(), index::IndexEntry::new(self.run.id(), self.writer.status()));
        let who = crate::history::Supervisor::here(self.writer.epoch(), std::path::Path::new(""));
        let (run, file) = (self.run.clone(), self.writer.file());
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            let _ = run.write_supervisor(&who);
            let _ = index::append(&home, &entry);
            let _ = sender.send(());
            // Nobody waits for the disk: a run that is over before it is on it is soon forgotten anyway.
            let _ = file.and_then(|file| file.sync_data());
        };
        let thread = std::thread::Builder::new().name("index".into()).stack_size(128 << 10).spawn(work);
        self.listed = thread.ok().map(|_| receiver);
    }

    /// The run is over; what is to be said if some of it could not be recorded.
    pub(super) fn finish(mut self, took: Duration) -> Option<Diagnostic> {
        // The last line about a run is the one that counts.
        if let Some(listed) = self.listed.take() {
            let _ = listed.recv();
        }
        let lost = self.writer.retry().err();
        if took > WORTH_SYNCING {
            let _ = self.writer.sync();
        }
        let _ = index::append(&self.home, &index::IndexEntry::new(self.run.id(), self.writer.status()));
        lost.map(|error| {
            Diagnostic::notice(Code::J0003, format!("not all facts of {} could be recorded", self.run.id()))
                .row("journal", self.run.journal().display().to_string())
                .row("reason", error.to_string())
                .hint("the job is not affected; `--no-record` leaves the recording out")
        })
    }
}
