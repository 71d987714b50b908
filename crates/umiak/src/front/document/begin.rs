//! Starts the supervisor of a run directory: lock, engine, places, first facts.

use std::sync::Arc;

use umiak_core::diag::{Code, Diagnostic, Source};
use umiak_core::facts::{Began, Outcome};
use umiak_core::formats::document::Format;
use umiak_core::machine::exit_code::CodeStyle;
use umiak_core::machine::job::{Again, AttemptId, Machine};
use umiak_core::mask::Known;
use umiak_core::model::{Device, DeviceKind, ExitCodes, Generation, Job, Resources, StepIndex};
use umiak_core::plan::document::{self, RunPlace, Submission};
use umiak_core::plan::pool::Pool;
use umiak_core::plan::{Gpu, Inventory, Plan, Replica, Wishes};
use umiak_core::status::{State, Status};
use umiak_sys::memory::{self, MemoryCgroup, Refused};
use umiak_sys::regular;

use super::door::DocumentDoor;
use super::submit::check_variables;
use super::{needs, submit, tasks};
use crate::clock::Clock;
use crate::driver::record::{Journal, Recorder};
use crate::driver::sources::Sources;
use crate::driver::{self, Core, Driver, Talk};
use crate::engine::local::Local;
use crate::engine::mock::Mock;
use crate::engine::mock_cluster::MockCluster;
use crate::engine::{Engine, EngineKind, FixedPort};
use crate::front::preparing::{self, Voice, Watch};
use crate::history::journal::{self, Writer};
use crate::history::{Home, RunDir, cannot_write, replace};
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

const CODES: CodeStyle = CodeStyle { codes: ExitCodes::Umiak, generation: Generation::Current, document: true };

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
    let (job, wishes) = (&submission.job, submission.wishes);
    let known = secrets::learn(&submission);
    crate::front::launch::prepare::clean_scratch();
    umiak_sys::cgroup::clean_orphans();
    memory::clean_orphans();
    check_stage(&run, why, writer.status())?;
    run.drop_unfinished();
    if matches!(why, Began::Retried | Began::RetriedAll) {
        submit::write(&submission, &run).map_err(|error| cannot_write(&run.secrets(), &error))?;
    }
    let kind = EngineKind::parse(&submission.engine)?;
    let inventory = inventory::gather(submission.environment.clone(), Extras::default());
    let needed = document::needs(job);
    let cpus = (wishes.strict_resources && kind.capabilities().here).then(own_cpus);
    check_cpus(job, &run, needed.cpus, cpus.as_deref())?;
    let (room, unlimited) = make_room(kind, job, &run);
    notices.extend(unenforced(job, kind, wishes, unlimited.as_ref())?);
    early.hear()?;
    let mut engine = start_engine(kind, &run, wishes, room)?;
    // The lock is free when supervisor and guardian have exited, and the replicas with them.
    engine.keep(writer.lock());
    early.watch = Some(Watch::start(&early.sources, early.voice.clone())?);
    let granted = needs::lease(engine.as_mut(), job, &needed)?;
    let candidates = candidates(&inventory);
    let devices = if needed.gpus > 0 {
        engine.lease_devices(StepIndex::default(), &candidates, needed.gpus)?
    } else {
        Vec::new()
    };
    check_devices(job, &run, needed.gpus, devices.len() as u32, candidates.len())?;
    let (cpus_here, attached) = (inventory.cpus, !talk.detached);
    let (id, tasks, scratch) = (run.id().to_string(), run.tasks(None), run.scratch());
    let user = umiak_sys::host::user().unwrap_or_default();
    let place = RunPlace { run: id, user, cpus: cpus_here, tasks, scratch, attached };
    let plan = document::place(&submission, place, granted);
    talk.console(&plan)?;
    if talk.stdin.is_some() && !kind.capabilities().stdin {
        let message = format!("`--stdin`: replicas on engine `{}` cannot read this terminal", kind.word());
        return Err(Diagnostic::error(Code::L0001, message).hint("use `--engine local`, or omit `--stdin`").into());
    }
    check_variables(kind, &plan)?;
    write_plan(&run, &plan, &known)?;
    engine.check_ports(&fixed_ports(&plan))?;
    engine.remove_at_end(std::slice::from_ref(&plan.scratch));
    let style = talk.style();
    let screen = talk.screen(&style)?;
    early.hear()?;
    let mut sources = early.sources;
    sources.listen(&run).map_err(|error| cannot_write(&run.control(), &error))?;
    let mut machine = Machine::new(plan.job.clone(), CODES, fastrand::u64(..));
    let mut adopted = Vec::new();
    // The status after this supervisor is recorded: a retry resets it.
    let mut status = writer.status().clone();
    writer.number(clock.now(), [driver::record::supervised(why)]).iter().for_each(|record| status.add(record));
    if why != Began::Submitted {
        adopted = adopt(engine.as_mut(), &plan, &status)?;
        machine.recover(&status, again(why), &|id| adopted.contains(&id));
    }
    let mut journal = Journal::new(home.clone(), run.clone(), writer, true, &plan.engine);
    let masked = |(name, value): (&String, &String)| (name.clone(), known.masked(name, value));
    journal.labels = plan.job.labels.iter().map(masked).collect();
    journal.control = run.control().to_string_lossy().into_owned();
    let pool = Pool::new(devices, cpus);
    let door = DocumentDoor { run, known, environment: submission.environment };
    let recorder = Recorder::new(Some(journal), why);
    let plan = Arc::new(plan);
    let core = Core::new(talk, style, clock, sources, machine, screen, recorder, plan, pool);
    let mut driver = Driver { core, engine, door: Box::new(door) };
    driver.announce(&notices)?;
    driver.adopt(&adopted, &status);
    Ok((driver, notices))
}

/// Which replicas a supervisor that takes over runs.
fn again(why: Began) -> Again {
    match why {
        Began::Submitted | Began::Resumed => Again::Unfinished,
        Began::Retried => Again::Unsuccessful,
        Began::RetriedAll => Again::All,
    }
}

fn fixed_ports(plan: &Plan) -> Vec<FixedPort<'_>> {
    let mut fixed = Vec::new();
    for replica in &plan.replicas {
        let role = plan.role(replica.slot);
        for need in &role.work.ports {
            if let (Some(port), Some(address)) = (need.fixed, replica.host.address()) {
                fixed.push(FixedPort { role: role.name.as_str(), name: &need.name, address, port });
            }
        }
    }
    fixed
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

/// The GPUs that the submitter may use, labelled as `CUDA_VISIBLE_DEVICES` names them.
fn candidates(inventory: &Inventory) -> Vec<(u32, Device)> {
    let limit = inventory.env.get(DeviceKind::Gpu.visible_variable()).filter(|value| *value != "all");
    let named = |gpu: &Gpu| match limit {
        None => Some(gpu.index.to_string()),
        Some(list) => {
            let is_it = |label: &&str| *label == gpu.index.to_string() || *label == gpu.uuid;
            list.split(',').map(str::trim).find(is_it).map(str::to_owned)
        }
    };
    let device = |gpu: &Gpu| Some((gpu.minor, Device { label: named(gpu)?, position: gpu.index }));
    inventory.gpus.iter().filter_map(device).collect()
}

fn start_engine(
    kind: EngineKind,
    run: &RunDir,
    wishes: Wishes,
    room: Option<MemoryCgroup>,
) -> Result<Box<dyn Engine>, Diagnostic> {
    let not_started = |error: std::io::Error| Diagnostic::failed("start the engine", &error);
    Ok(match kind {
        EngineKind::Local => Box::new(Local::start(wishes.isolate, room)?),
        EngineKind::Mock => Box::new(Mock::new().map_err(not_started)?),
        EngineKind::MockCluster => Box::new(MockCluster::new(run.path(), run.id().to_string()).map_err(not_started)?),
    })
}

/// The attempts that the engine still runs after the supervisor died. The others are lost.
fn adopt(engine: &mut dyn Engine, plan: &Plan, status: &Status) -> Result<Vec<AttemptId>, Diagnostic> {
    let live = |replica: &Replica| {
        let known = status.replica(&replica.name).filter(|known| known.is_live())?;
        Some(AttemptId { step: StepIndex::default(), slot: replica.slot, attempt: known.attempt })
    };
    let live: Vec<AttemptId> = plan.replicas.iter().filter_map(live).collect();
    let mut adopted = Vec::new();
    for handle in &status.handles {
        adopted.extend(engine.adopt(handle, &live)?);
    }
    Ok(adopted)
}

/// Writes the plan, and the variables that all replicas get.
fn write_plan(run: &RunDir, plan: &Plan, known: &Known) -> Result<(), Diagnostic> {
    let mut text = serde_json::to_vec(&plan.masked(known)).expect("a plan is JSON");
    text.push(b'\n');
    replace(&run.plan(), &text).map_err(|error| cannot_write(&run.plan(), &error))?;
    let common = tasks::environment(&plan.common, known);
    replace(&run.common(), common.as_bytes()).map_err(|error| cannot_write(&run.common(), &error))
}

/// Checks that `there` is enough for all replicas at once or, without a gang, for the largest one.
fn check_enough(job: &Job, there: u32, needed: u32, of_role: impl Fn(&Resources) -> u32) -> Result<(), Shortage> {
    let widest = job.roles.iter().map(|role| of_role(&role.work.resources)).max().unwrap_or(0);
    match there {
        _ if there >= needed || !job.policy.gang && there >= widest => Ok(()),
        _ if there >= widest => Err(Shortage::OfAll),
        _ => Err(Shortage::OfOne),
    }
}

/// What the host has too little for.
enum Shortage {
    OfOne,
    /// For all at once; they could run in turns.
    OfAll,
}

/// What hints suggest, in the keys of the document's format.
struct Keys {
    no_gpus: &'static str,
    no_gang: &'static str,
}

impl Keys {
    fn of(run: &RunDir) -> Self {
        let bytes = regular::read(&run.document()).unwrap_or_default();
        match Format::of(&Source::new("", String::from_utf8_lossy(&bytes))) {
            Some(Format::OpenPai) => {
                Self { no_gpus: "set `gpu: 0` in `resourcePerInstance`", no_gang: "extras: {gangAllocation: false}" }
            }
            Some(Format::Native | Format::PaddleFlow | Format::PaddleRec) | None => {
                Self { no_gpus: "remove `gpu` from `resources`", no_gang: "policy: {gang: false}" }
            }
        }
    }
}

/// Checks that enough GPUs are leased.
fn check_devices(job: &Job, run: &RunDir, needed: u32, leased: u32, there: usize) -> Result<(), Diagnostic> {
    check_enough(job, leased, needed, |resources| resources.gpus).map_err(|shortage| {
        let Keys { no_gpus, no_gang } = Keys::of(run);
        Diagnostic::error(Code::J0020, "too few GPUs are free on this host")
            .row("needed", needed.to_string())
            .row("free", format!("{leased} of {there}"))
            .hint(match shortage {
                _ if there == 0 => format!("this host has no GPUs; {no_gpus} to run on CPUs"),
                Shortage::OfAll => format!("stop the processes that use them, start fewer replicas, or let replicas wait for each other with `{no_gang}`"),
                Shortage::OfOne => "stop the processes that use them, or request fewer GPUs".to_owned(),
            })
    })
}

/// The CPUs that replicas can be bound to: those this process may run on, limited by the CPU quota of its cgroup.
fn own_cpus() -> Vec<u32> {
    let mut cpus = umiak_sys::host::allowed_cpus();
    cpus.truncate(umiak_sys::host::cpus());
    cpus
}

/// Checks that there are enough CPUs, with `--strict-resources`.
fn check_cpus(job: &Job, run: &RunDir, needed: u32, there: Option<&[u32]>) -> Result<(), Diagnostic> {
    let Some(there) = there.map(|cpus| cpus.len() as u32) else { return Ok(()) };
    check_enough(job, there, needed, Resources::whole_cpus).map_err(|shortage| {
        Diagnostic::error(Code::J0020, "too few CPUs on this host for `--strict-resources`")
            .row("needed", needed.to_string())
            .row("usable", there.to_string())
            .hint(match shortage {
                Shortage::OfAll => format!(
                    "start fewer replicas, request less `cpu`, or let replicas wait for each other with `{}`",
                    Keys::of(run).no_gang
                ),
                Shortage::OfOne => {
                    "request less `cpu`, or omit `--strict-resources` to run without enforcing it".to_owned()
                }
            })
    })
}

/// The cgroup for memory limits, if a role has one, or why it could not be created.
fn make_room(kind: EngineKind, job: &Job, run: &RunDir) -> (Option<MemoryCgroup>, Option<Refused>) {
    let is_wanted = kind.capabilities().here && job.roles.iter().any(|role| role.work.resources.memory_bytes.is_some());
    match is_wanted.then(|| MemoryCgroup::create(&run.id().to_string())) {
        None => (None, None),
        Some(Ok(room)) => (Some(room), None),
        Some(Err(why)) => (None, Some(why)),
    }
}

/// Notices about resources that are not enforced. With `--strict-resources`, an error.
fn unenforced(
    job: &Job,
    kind: EngineKind,
    wishes: Wishes,
    unlimited: Option<&Refused>,
) -> Result<Vec<Diagnostic>, Diagnostic> {
    let roles = &job.roles;
    let has_cpu = roles.iter().any(|role| role.work.resources.cpu_millis.is_some());
    let has_memory = roles.iter().any(|role| role.work.resources.memory_bytes.is_some());
    let is_here = kind.capabilities().here;
    let on_engine = || format!("on engine `{}`", kind.word());
    let mut what = Vec::new();
    if has_cpu && (!is_here || !wishes.strict_resources) {
        what.push(("cpu", on_engine(), None));
    }
    if has_memory && !is_here {
        what.push(("memory", on_engine(), None));
    }
    if let Some(why) = unlimited {
        what.push(("memory", format!("here: {why}"), why.hint()));
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
    if roles.iter().any(|role| role.work.image.is_some()) {
        let text = format!("`image` is not used on engine `{}`: commands run directly on this host", kind.word());
        notices.push(Diagnostic::notice(Code::J0023, text));
    }
    Ok(notices)
}
