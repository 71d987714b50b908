//! Starts the supervisor of a run directory: lock, engine, places, first facts.

use std::sync::Arc;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Began, Outcome};
use umiak_core::machine::exit_code::CodeStyle;
use umiak_core::machine::job::{Again, AttemptId, Machine};
use umiak_core::mask::Known;
use umiak_core::model::{ExitCodes, Generation, Hosts, Pipeline, StepIndex, Workload};
use umiak_core::plan::document::Submission;
use umiak_core::plan::{PipelinePlan, Plan, Replica, Wishes};
use umiak_core::status::{PipelineStatus, State, Status};
use umiak_sys::memory::{self, MemoryCgroup, Refused};

use super::door::DocumentDoor;
use super::mounts::check_mounts;
use super::site::Site;
use super::steps::PipelineSteps;
use super::{submit, tasks};
use crate::clock::Clock;
use crate::driver::record::{Journal, Recorder};
use crate::driver::sources::Sources;
use crate::driver::store::JobStore;
use crate::driver::{self, Driver, JobRun, Run, Talk};
use crate::engine::cluster::Cluster;
use crate::engine::local::Local;
use crate::engine::mock::Mock;
use crate::engine::mock_cluster::MockCluster;
use crate::engine::several::Several;
use crate::engine::{self, Engine, EngineKind};
use crate::front::preparing::{self, Voice, Watch};
use crate::history::journal::{self, Writer};
use crate::history::{Home, RunDir, cannot_write, find, replace};
use crate::host::inventory::{self, Extras};
use crate::secrets;

/// What a supervisor needs to begin.
pub(crate) struct Beginning<'a> {
    pub(crate) home: &'a Home,
    pub(crate) run: RunDir,
    pub(crate) submission: Submission,
    pub(crate) notices: Vec<Diagnostic>,
    pub(crate) why: Began,
    pub(crate) talk: Talk,
    pub(crate) early: Early,
}

/// Signals, from before the first file of a run is made.
pub(crate) struct Early {
    sources: Sources,
    voice: Voice,
    watch: Option<Watch>,
}

impl Early {
    pub(crate) fn new(talk: &Talk) -> Result<Self, Diagnostic> {
        let sources = Sources::new()?;
        let voice = Voice { style: talk.style(), output: talk.output, codes: CODES };
        let watch = Some(Watch::start(&sources, voice.clone())?);
        Ok(Self { sources, voice, watch })
    }

    /// Reads signals in this thread again. Fails if one has arrived.
    fn hear(&mut self) -> Result<(), NotBegun> {
        self.watch.take().and_then(Watch::finish).map_or(Ok(()), |signal| Err(NotBegun::Signal(signal)))
    }

    /// Ends the wait for signals. If one has arrived, shows that and returns the exit code.
    pub(crate) fn end(mut self) -> Option<u8> {
        let signal = self.watch.take().and_then(Watch::finish)?;
        self.voice.say_stopped(signal);
        Some(self.voice.code(signal))
    }
}

/// Why a run has not begun.
enum NotBegun {
    Wrong(Box<Diagnostic>),
    Signal(i32),
}

impl From<Diagnostic> for NotBegun {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Wrong(Box::new(diagnostic))
    }
}

pub(super) const CODES: CodeStyle =
    CodeStyle { codes: ExitCodes::Umiak, generation: Generation::Current, document: true, etcd: None };

/// Supervises a run to its end and returns the exit code. The process must have only one thread. `ready` is called once
/// the run has begun, with the notices added until then. On an error before that, a new run is removed, and so are the
/// secrets written for a retry.
pub(crate) fn supervise(beginning: Beginning<'_>, ready: impl FnOnce(&[Diagnostic])) -> Result<u8, Diagnostic> {
    let (why, run, given) = (beginning.why, beginning.run.clone(), beginning.notices.len());
    let writer = if why == Began::Submitted { Writer::create(&run) } else { Writer::open(&run) };
    let writer = writer.map_err(|error| error.diagnostic())?;
    // The lock is held until the cleanup is done: the next supervisor may need what is removed here.
    let lock = writer.file().map_err(|error| Diagnostic::failed("keep the lock of the run", &error))?;
    let voice = beginning.early.voice.clone();
    let (driver, notices) = match begin(beginning, writer).inspect_err(|_| take_back(&run, why)) {
        Ok(begun) => begun,
        Err(NotBegun::Wrong(diagnostic)) => return Err(*diagnostic),
        Err(NotBegun::Signal(signal)) => {
            voice.say_stopped(signal);
            return Ok(voice.code(signal));
        }
    };
    drop(lock);
    ready(&notices[given..]);
    driver.run()
}

fn take_back(run: &RunDir, why: Began) {
    match why {
        Began::Submitted => drop(std::fs::remove_dir_all(run.path())),
        Began::Retried | Began::RetriedAll if journal::replay(run).is_ok_and(|replay| replay.is_finished()) => {
            let _ = std::fs::remove_file(run.secrets());
        }
        Began::Resumed | Began::Retried | Began::RetriedAll => {}
    }
}

/// Begins a run whose lock is held.
fn begin(beginning: Beginning<'_>, writer: Writer) -> Result<(Driver, Vec<Diagnostic>), NotBegun> {
    let clock = Clock::start();
    let Beginning { home, run, submission, mut notices, why, talk, mut early } = beginning;
    preparing::at(run.path());
    let known = secrets::learn(&submission);
    crate::front::launch::prepare::clean_scratch();
    umiak_sys::cgroup::clean_orphans();
    memory::clean_orphans();
    check_stage(&run, why, writer.status())?;
    run.drop_unfinished();
    if matches!(why, Began::Retried | Began::RetriedAll) {
        submit::write(&submission, &run).map_err(|error| cannot_write(&run.secrets(), &error))?;
    }
    let kind = engine::kind(&submission.engine)?;
    let wishes = submission.wishes;
    let inventory = inventory::gather(submission.environment.clone(), Extras::default());
    let site = Site::new(run.clone(), kind, submission, &inventory, !talk.detached);
    site.check_cpus()?;
    check_mounts(&site.submission.work, kind, &site.submission.directory)?;
    let (room, unlimited) = make_room(kind, &site.submission.work, &run);
    for own in site.submission.work.engines(kind) {
        notices.extend(unenforced(&site.submission.work, kind, own, wishes, unlimited.as_ref())?);
    }
    if talk.stdin.is_some() && !kind.capabilities().stdin {
        let message = format!("`--stdin`: replicas on engine `{}` cannot read this terminal", kind.word());
        return Err(Diagnostic::error(Code::L0001, message).hint("use `--engine local`, or omit `--stdin`").into());
    }
    early.hear()?;
    let mut engine = start_engines(&site.submission.work.engines(kind), &run, &site.submission, room)?;
    // The lock is free when supervisor and guardian have exited, and the replicas with them.
    engine.keep(writer.lock());
    early.watch = Some(Watch::start(&early.sources, early.voice.clone())?);
    engine.remove_at_end(&[run.scratch(None)]);
    // The status after this supervisor is recorded: a retry resets it.
    let mut recorded = writer.recorded().clone();
    let supervised = writer.number(clock.now(), [(None, driver::record::supervised(why))]);
    for record in &supervised {
        recorded.add(record);
    }
    let status = &recorded.run;
    let engines = site.engines();
    let (labels, environment) = (site.submission.work.labels().clone(), site.submission.environment.clone());
    let work = match &site.submission.work {
        Workload::Job(job) => {
            let (plan, pool) = site.place(engine.as_mut(), None, job, None, &site.submission.programs)?;
            talk.console(&plan)?;
            write_plan(&run, &plan, &known)?;
            let mut machine = Machine::new(plan.job.clone(), CODES, fastrand::u64(..));
            let mut adopted = Vec::new();
            if why != Began::Submitted {
                adopted = adopt(engine.as_mut(), StepIndex::default(), &plan, status)?;
                machine.recover(status, again(why), &|id| adopted.contains(&id));
            }
            let stores = JobStore::open(&plan, &mut None)?;
            let mut job = JobRun::new(None, machine, Arc::new(plan), pool);
            job.stores = stores;
            job.is_placed_later = kind.capabilities().hosts == Hosts::Placed;
            Begun::Job(Box::new(job), adopted)
        }
        Workload::Pipeline(pipeline) => {
            write_pipeline(&run, &site, pipeline, &known)?;
            let own = recorded.pipeline.as_deref().filter(|_| why != Began::Submitted);
            let repeated = match &site.submission.repeats {
                Some(run) => repeated(home, run)?,
                None => None,
            };
            let pipeline = Arc::new((**pipeline).clone());
            Begun::Pipeline(Box::new(PipelineSteps::new(pipeline, site, home, own, repeated.as_ref())?))
        }
    };
    let style = talk.style();
    let screen = talk.screen(&style)?;
    early.hear()?;
    let mut sources = early.sources;
    sources.listen(&run).map_err(|error| cannot_write(&run.control(), &error))?;
    let mut journal = Journal::new(home.clone(), run.clone(), writer, true, &engines);
    let masked = |(name, value): (&String, &String)| (name.clone(), known.masked(name, value));
    journal.labels = labels.iter().map(masked).collect();
    journal.control = run.control().to_string_lossy().into_owned();
    let door = Box::new(DocumentDoor::new(run, known, environment));
    let recorder = Recorder::new(Some(journal), why);
    let run = Run::new(talk, style, clock, sources, screen, recorder);
    let driver = match work {
        Begun::Job(job, adopted) => {
            let mut driver = Driver::of_job(run, engine, door, *job);
            driver.announce(&notices)?;
            driver.adopt(&adopted, status);
            driver
        }
        Begun::Pipeline(steps) => {
            let mut driver = Driver::of_steps(run, engine, door, steps);
            driver.announce(&notices)?;
            driver
        }
    };
    Ok((driver, notices))
}

/// The recorded nodes of the run that this one repeats.
fn repeated(home: &Home, run: &str) -> Result<Option<(PipelineStatus, String)>, Diagnostic> {
    let Ok(dir) = find(home, run) else { return Ok(None) };
    let replay = journal::replay(&dir).map_err(|error| error.diagnostic())?;
    Ok(replay.pipeline.map(|nodes| (*nodes, run.to_owned())))
}

/// What a supervisor runs.
enum Begun {
    Job(Box<JobRun>, Vec<AttemptId>),
    Pipeline(Box<PipelineSteps>),
}

/// Which replicas a supervisor that takes over runs.
fn again(why: Began) -> Again {
    match why {
        Began::Submitted | Began::Resumed => Again::Unfinished,
        Began::Retried => Again::Unsuccessful,
        Began::RetriedAll => Again::All,
    }
}

/// Checks that no other process has resumed or retried the run in the meantime.
fn check_stage(run: &RunDir, why: Began, status: &Status) -> Result<(), Diagnostic> {
    let succeeded = matches!(status.state, State::Finished { outcome: Outcome::Succeeded, .. });
    let is_ours = match why {
        Began::Submitted => true,
        Began::Resumed => !status.is_finished(),
        Began::Retried => status.is_finished() && !succeeded,
        Began::RetriedAll => status.is_finished(),
    };
    if is_ours {
        return Ok(());
    }
    Err(Diagnostic::error(Code::J0025, format!("another command has resumed or retried {} in the meantime", run.id()))
        .hint(format!("`umiak show {}` shows its state", run.id())))
}

/// Starts the engines of a run. The local one is the first: it forks while the process has one thread.
fn start_engines(
    kinds: &[EngineKind],
    run: &RunDir,
    submission: &Submission,
    mut room: Option<MemoryCgroup>,
) -> Result<Box<dyn Engine>, Diagnostic> {
    let mut engines = Vec::new();
    for kind in kinds {
        engines.push(start_engine(*kind, run, submission, room.take())?);
    }
    if engines.len() == 1 {
        return Ok(engines.remove(0));
    }
    let not_started = |error: std::io::Error| Diagnostic::failed("start the engines", &error);
    Ok(Box::new(Several::new(engines).map_err(not_started)?))
}

fn start_engine(
    kind: EngineKind,
    run: &RunDir,
    submission: &Submission,
    room: Option<MemoryCgroup>,
) -> Result<Box<dyn Engine>, Diagnostic> {
    let not_started = |error: std::io::Error| Diagnostic::failed("start the engine", &error);
    Ok(match kind {
        EngineKind::Local => Box::new(Local::start(submission.wishes.isolate, room)?),
        EngineKind::Mock => Box::new(Mock::new().map_err(not_started)?),
        EngineKind::MockCluster => Box::new(MockCluster::new(run.path(), run.id().to_string()).map_err(not_started)?),
        EngineKind::Slurm | EngineKind::Mpi => {
            let (run, id) = (run.path(), run.id().to_string());
            Box::new(Cluster::new(kind, run, id, submission.clone())?)
        }
        EngineKind::Kubernetes => return Err(engine::only_planned()),
    })
}

/// The attempts that the engine still runs after the supervisor died. The others are lost.
pub(super) fn adopt(
    engine: &mut dyn Engine,
    step: StepIndex,
    plan: &Plan,
    status: &Status,
) -> Result<Vec<AttemptId>, Diagnostic> {
    let live = |replica: &Replica| {
        let known = status.replica(&replica.name).filter(|known| known.is_live())?;
        Some(AttemptId { step, slot: replica.slot, attempt: known.attempt })
    };
    let live: Vec<AttemptId> = plan.replicas.iter().filter_map(live).collect();
    let mut adopted = Vec::new();
    for handle in &status.handles {
        adopted.extend(engine.adopt(handle, &live)?);
    }
    Ok(adopted)
}

/// Writes the pipeline, which a run that repeats this one starts from.
fn write_pipeline(run: &RunDir, site: &Site, pipeline: &Pipeline, known: &Known) -> Result<(), Diagnostic> {
    let plan = PipelinePlan::new(Some(run.id().to_string()), &site.submission, pipeline, known);
    let mut text = serde_json::to_vec(&plan).expect("a plan is JSON");
    text.push(b'\n');
    replace(&run.plan(), &text).map_err(|error| cannot_write(&run.plan(), &error))
}

/// Writes the plan, and the variables that all replicas get.
fn write_plan(run: &RunDir, plan: &Plan, known: &Known) -> Result<(), Diagnostic> {
    let mut text = serde_json::to_vec(&plan.masked(known)).expect("a plan is JSON");
    text.push(b'\n');
    replace(&run.plan(), &text).map_err(|error| cannot_write(&run.plan(), &error))?;
    let common = tasks::environment(&plan.common, known);
    replace(&run.common(), common.as_bytes()).map_err(|error| cannot_write(&run.common(), &error))
}

/// The cgroup for memory limits, if a role has one, or why it could not be created.
fn make_room(kind: EngineKind, work: &Workload, run: &RunDir) -> (Option<MemoryCgroup>, Option<Refused>) {
    let here = work.placed(kind).filter(|(_, kind)| kind.capabilities().here);
    let is_wanted = here.flat_map(|(job, _)| &job.roles).any(|role| role.work.resources.memory_bytes.is_some());
    match is_wanted.then(|| MemoryCgroup::create(&run.id().to_string())) {
        None => (None, None),
        Some(Ok(room)) => (Some(room), None),
        Some(Err(why)) => (None, Some(why)),
    }
}

/// Notices about resources that this engine does not enforce. With `--strict-resources`, an error.
fn unenforced(
    work: &Workload,
    usual: EngineKind,
    kind: EngineKind,
    wishes: Wishes,
    unlimited: Option<&Refused>,
) -> Result<Vec<Diagnostic>, Diagnostic> {
    let roles = || work.placed(usual).filter(|(_, other)| *other == kind).flat_map(|(job, _)| &job.roles);
    let has_cpu = roles().any(|role| role.work.resources.cpu_millis.is_some());
    let has_memory = roles().any(|role| role.work.resources.memory_bytes.is_some());
    let is_here = kind.capabilities().here;
    let on_engine = || format!("on engine `{}`", kind.word());
    let mut what = Vec::new();
    // Slurm allocates what is asked for.
    let is_asked = kind == EngineKind::Slurm;
    if has_cpu && !is_asked && (!is_here || !wishes.strict_resources) {
        what.push(("cpu", on_engine(), None));
    }
    if has_memory && !is_asked && !is_here {
        // Agents set limits on their hosts, as far as these let them.
        let where_not = if kind == EngineKind::Mpi { ", on hosts where umiak cannot create a cgroup" } else { "" };
        what.push(("memory", on_engine() + where_not, None));
    }
    if let Some(why) = unlimited.filter(|_| is_here) {
        what.push(("memory", format!("here: {why}"), why.hint()));
    }
    if roles().any(|role| role.work.resources.storage_bytes.is_some()) {
        what.push(("storage", on_engine(), None));
    }
    if let Some((what, why, hint)) = what.first().filter(|_| wishes.strict_resources) {
        let error = Diagnostic::error(Code::J0020, format!("`resources.{what}` cannot be enforced {why}"));
        let error = hint.iter().fold(error, |error, hint| error.hint(*hint));
        return Err(error.hint("omit `--strict-resources` to run without enforcing it"));
    }
    let notice = |(what, why, hint): (&str, String, Option<&str>)| {
        let notice = Diagnostic::notice(Code::J0023, format!("`resources.{what}` is not enforced {why}"));
        hint.into_iter().fold(notice, Diagnostic::hint)
    };
    let mut notices: Vec<Diagnostic> = what.into_iter().map(notice).collect();
    if roles().any(|role| role.work.image.is_some()) {
        let host = if is_here { "this host" } else { "its hosts" };
        let text = format!("`image` is not used on engine `{}`: commands run directly on {host}", kind.word());
        notices.push(Diagnostic::notice(Code::J0023, text));
    }
    Ok(notices)
}
