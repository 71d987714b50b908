//! Facts on their way to the journal, and to stdout for programs.
//!
//! Recording a launch must cost nothing that is felt: what need not be there before the first rank is done on a thread
//! beside it, and a home that cannot be used is one notice, not an error. A run of a document has to be recorded.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use tracing::warn;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Began, Fact, Record, Supervised, VERSION};
use umiak_core::model::{OutputMode, Timestamp};

use super::{Core, Driver};
use crate::clock::time_of_day;
use crate::history::journal::Writer;
use crate::history::{Error, Home, RunDir, Supervisor, index};

/// How often what cannot be written is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The end of a launched run that was shorter than this is not made to survive a power cut: that may take longer than ending.
const WORTH_SYNCING: Duration = Duration::from_secs(10);

/// Facts, and where they go.
pub(crate) struct Recorder {
    journal: Option<Journal>,
    /// Facts that the next thing to be done waits for.
    facts: Vec<Fact>,
    /// Of the next record, where there is no journal.
    seq: u64,
    /// When writing is tried again, and why it has to be.
    broken: Option<(Timestamp, String)>,
}

/// The journal of a run, and what `ls` says of it.
pub(crate) struct Journal {
    pub(crate) home: Home,
    pub(crate) run: RunDir,
    pub(crate) writer: Writer,
    /// Nothing starts that is not recorded, and facts that are lost are an error.
    pub(crate) required: bool,
    pub(crate) engine: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Where orders come in; empty where they do not.
    pub(crate) control: String,
    /// Says that the run is listed.
    listed: Option<Receiver<()>>,
}

impl Journal {
    pub(crate) fn new(home: Home, run: RunDir, writer: Writer, required: bool, engine: &str) -> Self {
        let (engine, labels, control, listed) = (engine.to_owned(), BTreeMap::new(), String::new(), None);
        Self { home, run, writer, required, engine, labels, control, listed }
    }

    /// For a run that may go unrecorded.
    pub(crate) fn begin(engine: &str) -> Result<Self, Error> {
        let home = Home::from_environment()?;
        let run = RunDir::create(&home)?;
        let writer = Writer::create(&run).inspect_err(|_| {
            // A run without a journal is none.
            let _ = std::fs::remove_dir_all(run.path());
        })?;
        Ok(Self::new(home, run, writer, false, engine))
    }

    fn entry(&self) -> index::IndexEntry {
        let mut entry = index::IndexEntry::new(self.run.id(), self.writer.status());
        entry.engine.clone_from(&self.engine);
        entry.labels.clone_from(&self.labels);
        entry
    }

    fn supervisor(&self) -> Supervisor {
        Supervisor::here(self.writer.epoch(), Path::new(&self.control))
    }
}

/// The first fact of a supervisor.
pub(crate) fn supervised(why: Began) -> Fact {
    Fact::Supervised(Supervised {
        why,
        host: umiak_sys::host::name(),
        pid: std::process::id(),
        umiak: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

impl Recorder {
    pub(crate) fn new(journal: Option<Journal>, why: Began) -> Self {
        Self { journal, facts: vec![supervised(why)], seq: 0, broken: None }
    }

    /// One more, to be written before the next effect.
    pub(crate) fn fact(&mut self, fact: Fact) {
        self.facts.push(fact);
    }

    pub(super) fn is_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// `run-000032`, where the run is recorded.
    pub(crate) fn run_name(&self) -> Option<String> {
        self.journal.as_ref().map(|journal| journal.run.id().to_string())
    }

    pub(super) fn retry_at(&self) -> Option<Timestamp> {
        self.broken.as_ref().map(|(at, _)| *at)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// The run's directory was removed and will not come back.
    pub(super) fn is_removed(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.writer.is_removed())
    }

    /// The plan is written: a run that must be recorded is listed, and the disk told, before anything starts.
    pub(super) fn register(&mut self) -> Result<(), Diagnostic> {
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.required) else { return Ok(()) };
        if let Some((_, why)) = &self.broken {
            let text = format!("`{}` cannot be written", journal.run.journal().display());
            let error = Diagnostic::error(Code::J0029, text).row("reason", why.clone());
            return Err(error.hint("free space there, or name another directory with `UMIAK_HOME`"));
        }
        let _ = journal.writer.sync();
        let _ = index::append(&journal.home, &journal.entry());
        let written = journal.run.write_supervisor(&journal.supervisor());
        written.map_err(|error| crate::history::cannot_write(&journal.run.supervisor(), &error))
    }

    /// Numbers the facts that wait, and writes them. An error where nothing may start before they are written.
    fn write(&mut self, at: Timestamp) -> (Vec<Record>, Option<std::io::Error>) {
        let facts = std::mem::take(&mut self.facts);
        let Some(journal) = &mut self.journal else {
            let (v, first) = (VERSION, self.seq);
            self.seq += facts.len() as u64;
            let at = at.as_micros();
            let record = |(seq, fact)| Record { run: None, v, seq, at, epoch: 0, step: None, fact };
            return ((first..).zip(facts).map(record).collect(), None);
        };
        let records = journal.writer.number(at, facts);
        // What cannot be written waits in the writer, and is tried again with the next.
        let failed = journal.writer.append(&records).err().filter(|_| journal.required);
        (records, failed)
    }

    /// The run is over. What is to be said if some of it could not be recorded, and whether that is an error.
    pub(super) fn close(&mut self, took: Duration, code: u8) -> Option<(Diagnostic, bool)> {
        let journal = self.journal.as_mut()?;
        // The last line about a run is the one that counts.
        if let Some(listed) = journal.listed.take() {
            let _ = listed.recv();
        }
        let lost = journal.writer.retry().err();
        if journal.required || took > WORTH_SYNCING {
            let _ = journal.writer.sync();
        }
        if lost.is_none() && !journal.writer.is_removed() {
            // Nothing stays that only a living run needs, unless what is missing makes it one to be resumed.
            if journal.required {
                let _ = std::fs::remove_file(journal.run.secrets());
            }
            // Last: a run that has ended and is not listed so has something to be tidied.
            let _ = index::append(&journal.home, &journal.entry());
        }
        let error = lost?;
        let path = journal.run.journal().display().to_string();
        let lost = if journal.required {
            Diagnostic::error(Code::J0003, "facts about the run could not be written")
                .row("journal", path)
                .row("reason", error.to_string())
                .row("the job", format!("ended with code {code}"))
                .hint("free space there; the replicas' logs are complete")
        } else {
            Diagnostic::notice(Code::J0003, format!("not all facts of {} could be recorded", journal.run.id()))
                .row("journal", path)
                .row("reason", error.to_string())
                .hint("the job is not affected; `--no-record` leaves the recording out")
        };
        Some((lost, journal.required))
    }
}

impl Core {
    /// A run that may go unrecorded is listed, and hears orders, beside its first ranks: they do not wait for that.
    pub(super) fn register_beside_ranks(&mut self) {
        let Some(journal) = self.recorder.journal.as_mut().filter(|journal| !journal.required) else { return };
        // A home that allows no sockets allows no orders: `umiak stop` says so.
        if self.sources.listen(&journal.run).is_ok() {
            journal.control = journal.run.control().to_string_lossy().into_owned();
        }
        let (home, run, entry, who) =
            (journal.home.clone(), journal.run.clone(), journal.entry(), journal.supervisor());
        let file = journal.writer.file();
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            let _ = run.write_supervisor(&who);
            let _ = index::append(&home, &entry);
            let _ = sender.send(());
            // Not awaited: that a power cut loses the record of so short a run is acceptable.
            let _ = file.and_then(|file| file.sync_data());
        };
        let thread = std::thread::Builder::new().name("index".into()).stack_size(128 << 10).spawn(work);
        journal.listed = thread.ok().map(|_| receiver);
    }
}

impl Driver {
    pub(super) fn record(&mut self, fact: Fact) {
        self.core.recorder.fact(fact);
        self.flush();
    }

    /// Writes the facts that wait, shows them, and notes what each of them means.
    pub(super) fn flush(&mut self) {
        let core = &mut self.core;
        if core.recorder.facts.is_empty() {
            return;
        }
        let json = core.talk.output == OutputMode::Json;
        let (records, failed) = core.recorder.write(core.clock.now());
        if json {
            let run = core.recorder.run_name();
            let of_run = |record: &Record| serde_json::to_string(&Record { run: run.clone(), ..record.clone() });
            for line in records.iter().filter_map(|record| of_run(record).ok()) {
                core.screen.data(format!("{line}\n"));
            }
        }
        if let Some(error) = failed {
            warn!(%error, "facts cannot be written");
            let path = core.recorder.journal.as_ref().map(|journal| journal.run.journal()).unwrap_or_default();
            self.wait_for_room(&path, &error);
        }
        for record in &records {
            self.note(&record.fact);
            self.door.observe(&mut self.core, &record.fact);
        }
    }

    /// The journal, or the directory of an attempt, cannot be written. Said once, until all can be written again.
    pub(super) fn wait_for_room(&mut self, path: &Path, error: &std::io::Error) {
        let core = &mut self.core;
        let first = core.recorder.broken.is_none();
        core.recorder.broken = Some((core.clock.now() + RETRY, error.to_string()));
        if first {
            let notice = Diagnostic::notice(
                Code::J0003,
                "the run's directory cannot be written: replicas run on, nothing new is started",
            )
            .row("path", path.display().to_string())
            .row("reason", error.to_string())
            .hint("free space there: writing is tried again every second");
            core.screen.alert(core.style.diagnostic(&notice));
        }
    }

    /// Tries again, and starts what has waited for it.
    pub(super) fn try_again(&mut self) {
        let now = self.core.clock.now();
        if self.core.recorder.retry_at().is_none_or(|at| at > now) {
            return;
        }
        let Some(journal) = &mut self.core.recorder.journal else { return };
        if let Err(error) = journal.writer.retry() {
            let path = journal.run.journal();
            return self.wait_for_room(&path, &error);
        }
        // They need directories: only when those can be made too is there room again.
        let unrecorded = std::mem::take(&mut self.core.now.unrecorded);
        self.spawn(&unrecorded);
        if !self.core.now.unrecorded.is_empty() {
            return;
        }
        self.core.recorder.broken = None;
        let parts = ["the run's directory can be written again".to_owned()];
        self.core.screen.alert(self.core.style.progress("Recorded", &parts, &time_of_day()));
        self.work();
    }
}
