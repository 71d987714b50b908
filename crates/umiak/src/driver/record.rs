//! Writes facts to the journal, and to stdout for programs.
//!
//! Recording must not slow down a launch: what is not needed before the first rank happens on another thread, and an
//! unusable home is a notice, not an error. A run of a document must be recorded.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use tracing::warn;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Began, Fact, Record, Supervised, VERSION};
use umiak_core::model::{OutputMode, StepName, Timestamp};
use umiak_core::status::RunStatus;

use super::{Driver, JobDriver, Run};
use crate::clock::time_of_day;
use crate::history::journal::Writer;
use crate::history::{Error, Home, RunDir, Supervisor, index};
use crate::secrets;

/// Retry interval for failed writes.
const RETRY: Duration = Duration::from_secs(1);
/// The end of a shorter launched run is not synced to disk: syncing may take longer than ending.
const WORTH_SYNCING: Duration = Duration::from_secs(10);

/// Queues facts and writes them.
pub(crate) struct Recorder {
    journal: Option<Journal>,
    /// Facts to be written before the next effect.
    facts: Vec<(Option<StepName>, Fact)>,
    /// Sequence number of the next record, without a journal.
    seq: u64,
    /// Time of the next retry, and the error.
    broken: Option<(Timestamp, String)>,
}

/// The journal of a run, and its entry in `ls`.
pub(crate) struct Journal {
    pub(crate) home: Home,
    pub(crate) run: RunDir,
    pub(crate) writer: Writer,
    /// Nothing starts unrecorded, and lost facts are an error.
    pub(crate) required: bool,
    pub(crate) engine: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Path of the control socket; empty if there is none.
    pub(crate) control: String,
    /// Receives a message once the run is listed.
    listed: Option<Receiver<()>>,
}

impl Journal {
    pub(crate) fn new(home: Home, run: RunDir, writer: Writer, required: bool, engine: &str) -> Self {
        let (engine, labels, control, listed) = (engine.to_owned(), BTreeMap::new(), String::new(), None);
        Self { home, run, writer, required, engine, labels, control, listed }
    }

    /// Creates a journal for a run that does not have to be recorded.
    pub(crate) fn begin(engine: &str) -> Result<Self, Error> {
        let home = Home::from_environment()?;
        let run = RunDir::create(&home)?;
        let writer = Writer::create(&run).inspect_err(|_| {
            // A run without a journal does not exist.
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

/// Returns the first fact of a supervisor.
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
        Self { journal, facts: vec![(None, supervised(why))], seq: 0, broken: None }
    }

    /// Queues a fact about a step, or about the run, to be written before the next effect.
    pub(crate) fn fact(&mut self, step: Option<&StepName>, fact: Fact) {
        self.facts.push((step.cloned(), fact));
    }

    pub(super) fn is_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// The directory of the run, if it is recorded.
    pub(super) fn run_dir(&self) -> Option<&RunDir> {
        self.journal.as_ref().map(|journal| &journal.run)
    }

    /// The status after all records, if the run is recorded.
    pub(super) fn recorded(&self) -> Option<&RunStatus> {
        self.journal.as_ref().map(|journal| journal.writer.recorded())
    }

    /// `run-000032`, if the run is recorded.
    pub(crate) fn run_name(&self) -> Option<String> {
        self.journal.as_ref().map(|journal| journal.run.id().to_string())
    }

    pub(super) fn retry_at(&self) -> Option<Timestamp> {
        self.broken.as_ref().map(|(at, _)| *at)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// True if the run's directory was removed for good.
    pub(super) fn is_removed(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.writer.is_removed())
    }

    /// Why a run that does not have to be recorded is not recorded so far.
    pub(super) fn why_unwritten(&mut self) -> Option<(RunDir, std::io::Error)> {
        let journal = self.journal.as_mut().filter(|journal| !journal.required)?;
        journal.writer.retry().err().map(|error| (journal.run.clone(), error))
    }

    /// For a run that is only found by its record. Fails, and leaves no run, if it is not written so far.
    pub(crate) fn check_written(&mut self) -> Result<(), Diagnostic> {
        let Some((run, error)) = self.why_unwritten() else { return Ok(()) };
        let _ = std::fs::remove_dir_all(run.path());
        Err(crate::history::cannot_write(&run.journal(), &error))
    }

    /// After the plan is written: syncs and lists a run that must be recorded, before anything starts.
    pub(super) fn register(&mut self) -> Result<(), Diagnostic> {
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.required) else { return Ok(()) };
        if let Some((_, why)) = &self.broken {
            let text = format!("`{}` cannot be written", journal.run.journal().display());
            let error = Diagnostic::error(Code::J0029, text).row("reason", why.clone());
            return Err(error.hint("free space there, or set `UMIAK_HOME` to another directory"));
        }
        let _ = journal.writer.sync();
        let _ = index::append(&journal.home, &journal.entry());
        let written = journal.run.write_supervisor(&journal.supervisor());
        written.map_err(|error| crate::history::cannot_write(&journal.run.supervisor(), &error))
    }

    /// Numbers the queued facts and writes them. Returns an error if nothing may start before they are written.
    fn write(&mut self, at: Timestamp) -> (Vec<Record>, Option<std::io::Error>) {
        let mut facts = std::mem::take(&mut self.facts);
        for (_, fact) in &mut facts {
            secrets::mask_fact(fact);
        }
        let Some(journal) = &mut self.journal else {
            let (v, first) = (VERSION, self.seq);
            self.seq += facts.len() as u64;
            let at = at.as_micros();
            let record = |(seq, (step, fact))| Record { run: None, v, seq, at, epoch: 0, step, fact };
            return ((first..).zip(facts).map(record).collect(), None);
        };
        let records = journal.writer.number(at, facts);
        // The writer keeps what it could not write, and retries it with the next facts.
        let failed = journal.writer.append(&records).err().filter(|_| journal.required);
        (records, failed)
    }

    /// Ends the record. Returns a diagnostic if some facts could not be written, and true if that is an error.
    pub(super) fn close(&mut self, took: Duration, code: u8) -> Option<(Diagnostic, bool)> {
        let journal = self.journal.as_mut()?;
        // The last index line of a run counts, so wait for the first one.
        if let Some(listed) = journal.listed.take() {
            let _ = listed.recv();
        }
        let lost = journal.writer.retry().err();
        if journal.required || took > WORTH_SYNCING {
            let _ = journal.writer.sync();
        }
        if lost.is_none() && !journal.writer.is_removed() {
            // Secrets are removed, unless missing facts make this a run to be resumed.
            if journal.required {
                let _ = std::fs::remove_file(journal.run.secrets());
            }
            // Last: an ended run that is not listed as ended still has files to clean up.
            let _ = index::append(&journal.home, &journal.entry());
        }
        let error = lost?;
        let path = journal.run.journal().display().to_string();
        let lost = if journal.required {
            Diagnostic::error(Code::J0003, "events of the run could not be written")
                .row("journal", path)
                .row("reason", error.to_string())
                .row("job", format!("ended with code {code}"))
                .hint("free space there; the replicas' logs are complete")
        } else {
            Diagnostic::notice(Code::J0003, format!("{} could not be recorded completely", journal.run.id()))
                .row("journal", path)
                .row("reason", error.to_string())
                .hint("the job is not affected; `--no-record` disables recording")
        };
        Some((lost, journal.required))
    }
}

impl Run {
    /// Lists a run that does not have to be recorded and opens its control socket, in parallel with its first ranks.
    pub(super) fn register_beside_ranks(&mut self) {
        let Some(journal) = self.recorder.journal.as_mut().filter(|journal| !journal.required) else { return };
        // Without a socket there are no orders: `umiak stop` reports that.
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
            // Not awaited: losing the record of such a short run in a power cut is acceptable.
            let _ = file.and_then(|file| file.sync_data());
        };
        let thread = std::thread::Builder::new().name("index".into()).stack_size(128 << 10).spawn(work);
        journal.listed = thread.ok().map(|_| receiver);
    }
}

impl JobDriver<'_> {
    pub(super) fn record(&mut self, fact: Fact) {
        self.core.fact(fact);
        self.flush();
    }

    /// Writes the queued facts, shows them, and applies what each of them means.
    pub(super) fn flush(&mut self) {
        let records = self.core.run.write();
        for record in &records {
            self.note(&record.fact);
            self.door.observe(&mut self.core, &record.fact);
        }
    }

    /// Handles a failed write to an attempt's directory.
    pub(super) fn wait_for_room(&mut self, path: &Path, error: &std::io::Error) {
        self.core.run.wait_for_room(path, error);
    }
}

impl Run {
    /// Writes the queued facts, and shows them to programs; to people, what they say about the nodes of a pipeline.
    pub(super) fn write(&mut self) -> Vec<Record> {
        if self.recorder.facts.is_empty() {
            return Vec::new();
        }
        let (records, failed) = self.recorder.write(self.clock.now());
        if self.talk.output == OutputMode::Json {
            let run = self.recorder.run_name();
            let of_run = |record: &Record| serde_json::to_string(&Record { run: run.clone(), ..record.clone() });
            for line in records.iter().filter_map(|record| of_run(record).ok()) {
                self.screen.data(format!("{line}\n"));
            }
        }
        self.tell_nodes(&records);
        if let Some(error) = failed {
            warn!(%error, "facts cannot be written");
            let path = self.recorder.journal.as_ref().map(|journal| journal.run.journal()).unwrap_or_default();
            self.wait_for_room(&path, &error);
        }
        records
    }

    /// Handles a failed write to the journal or to an attempt's directory. Reported once, until writing works again.
    fn wait_for_room(&mut self, path: &Path, error: &std::io::Error) {
        let first = self.recorder.broken.is_none();
        self.recorder.broken = Some((self.clock.now() + RETRY, error.to_string()));
        if first {
            let notice = Diagnostic::notice(
                Code::J0003,
                "cannot write to the run's directory: replicas keep running, but none are started",
            )
            .row("path", path.display().to_string())
            .row("reason", error.to_string())
            .hint("free space there; writing is retried every second");
            self.screen.alert(self.style.diagnostic(&notice));
        }
    }
}

impl Driver {
    /// Retries failed writes, then starts the attempts that waited for them.
    pub(super) fn try_again(&mut self) {
        let now = self.run.clock.now();
        if self.run.recorder.retry_at().is_none_or(|at| at > now) {
            return;
        }
        let Some(journal) = &mut self.run.recorder.journal else { return };
        if let Err(error) = journal.writer.retry() {
            let path = journal.run.journal();
            return self.run.wait_for_room(&path, &error);
        }
        // Starts need directories: writing works again only when those can be created too.
        self.each(|job| {
            let unrecorded = std::mem::take(&mut job.core.job.now.unrecorded);
            job.spawn(&unrecorded);
        });
        if self.jobs.values().any(|job| !job.now.unrecorded.is_empty()) {
            return;
        }
        self.run.recorder.broken = None;
        let parts = ["the run's directory is writable again".to_owned()];
        self.run.screen.alert(self.run.style.progress("Recorded", &parts, &time_of_day()));
        self.each(|job| job.work());
    }
}
