//! A run directory becomes a supervisor: the lock, the engine, the places, the first facts.

use std::collections::BTreeMap;
use std::path::Path;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Began, Fact, Outcome, Planned, PlannedReplica, PlannedRole, Supervised};
use umiak_core::formats::launch::OutputMode;
use umiak_core::machine::exit_code::Style as CodeStyle;
use umiak_core::machine::job::{Again, Machine};
use umiak_core::mask::Known;
use umiak_core::model::{Device, DeviceKind, ExitCodes, Generation, Job};
use umiak_core::plan::document;
use umiak_core::plan::pool::Pool;
use umiak_core::plan::{Gpu, Inventory, Log, Plan, Replica, Wishes};
use umiak_core::status::{State, Status};
use umiak_sys::cgroup::Cgroup;
use umiak_sys::guardian::{Guardian, Options};
use umiak_sys::memory::{self, Refused, Room};
use umiak_sys::wait::Signals;

use super::Talk;
use super::control::Control;
use super::submit::{Secrets, check_variables};
use super::supervise::{Now, Supervisor};
use super::tasks;
use crate::clock::Clock;
use crate::engine::local::Local;
use crate::engine::mock::Mock;
use crate::engine::{Engine, Kind};
use crate::history::journal::{self, Writer};
use crate::history::{Home, RunDir, Supervisor as Who, replace};
use crate::runtime::launch::failed;
use crate::runtime::{inventory, kernel, prepare};
use crate::screen::{MirrorTo, Screen};

/// Signals that ask us to stop (SIGHUP, SIGINT, SIGQUIT, SIGTERM) or to pause (SIGTSTP).
const HANDLED: [i32; 5] = [1, 2, 3, 15, 20];

/// Why a supervisor begins, and what it needs for that.
pub(crate) struct Beginning<'a> {
    pub(crate) home: &'a Home,
    pub(crate) run: RunDir,
    pub(crate) secrets: Secrets,
    pub(crate) notices: Vec<Diagnostic>,
    pub(crate) why: Began,
    /// For runs that are taken up again.
    pub(crate) again: Again,
    pub(crate) talk: Talk,
}

/// Supervises a run to its end and returns the exit code. To be called while the process has one thread. `ready` is
/// called when the run is in good hands, with the notices that came up on the way there. A beginning that fails leaves
/// things as they were: no run that was never started, no secrets of one that has ended.
pub(crate) fn supervise(beginning: Beginning<'_>, ready: impl FnOnce(&[Diagnostic])) -> Result<u8, Diagnostic> {
    let (why, run, given) = (beginning.why, beginning.run.clone(), beginning.notices.len());
    let writer = if why == Began::Submitted { Writer::create(&run) } else { Writer::open(&run) };
    let writer = writer.map_err(|error| error.diagnostic())?;
    // The run is ours until we have cleaned up: whoever is next may need what is taken back here.
    let lock = writer.file().map_err(|error| failed("hold the run", &error))?;
    let (supervisor, notices) = begin(beginning, writer).inspect_err(|_| take_back(&run, why))?;
    drop(lock);
    ready(&notices[given..]);
    supervisor.run()
}

fn take_back(run: &RunDir, why: Began) {
    match why {
        Began::Submitted => drop(std::fs::remove_dir_all(run.path())),
        Began::Retried | Began::RetriedAll if journal::replay(run).is_ok_and(|replay| replay.status.is_finished()) => {
            let _ = std::fs::remove_file(run.secrets());
        }
        Began::Resumed | Began::Retried | Began::RetriedAll => {}
    }
}

/// The run is ours.
fn begin(beginning: Beginning<'_>, mut journal: Writer) -> Result<(Supervisor, Vec<Diagnostic>), Diagnostic> {
    let clock = Clock::start();
    let Beginning { home, run, secrets, mut notices, why, again, talk } = beginning;
    let wishes = secrets.wishes;
    prepare::clean_scratch();
    umiak_sys::cgroup::clean_orphans();
    memory::clean_orphans();
    check_stage(&run, why, journal.status())?;
    run.drop_unfinished();
    if matches!(why, Began::Retried | Began::RetriedAll) {
        secrets.write(&run).map_err(|error| cannot_write(&run.secrets(), &error))?;
    }
    let signals = Signals::block(&HANDLED).map_err(|error| failed("block signals", &error))?;
    let kind = Kind::parse(&secrets.engine)?;
    let inventory = inventory::gather(secrets.environment.clone(), false);
    let needs = document::needs(&secrets.job);
    let cpus = (wishes.strict_resources && kind == Kind::Local).then(own_cpus);
    check_cpus(&secrets, needs.cpus, cpus.as_deref())?;
    let (room, unlimited) = make_room(kind, &secrets.job, &run);
    notices.extend(unenforced(&secrets, kind, wishes, unlimited.as_ref())?);
    // The guardian inherits the journal's lock: it is free when both are gone, and the replicas with them.
    let mut engine = start_engine(kind, wishes, &secrets.environment, room)?;
    let granted = engine.lease(&needs)?;
    let candidates = candidates(&inventory);
    let devices = if needs.gpus > 0 { engine.lease_devices(&candidates, needs.gpus) } else { Vec::new() };
    check_devices(&secrets, needs.gpus, devices.len() as u32, candidates.len())?;
    let submission = document::Submission {
        run: run.id().to_string(),
        engine: secrets.engine.clone(),
        directory: secrets.directory.clone(),
        wishes,
        programs: secrets.programs.clone(),
        inherited: secrets.environment.clone(),
        cpus: inventory.cpus,
        tasks: run.tasks(),
        scratch: run.scratch(),
        attached: !talk.detached,
    };
    let plan = document::place(secrets.job.clone(), submission, granted);
    check_variables(kind, &plan)?;
    write_plan(&run, &plan, &secrets.known)?;
    engine.prepare(&plan)?;
    let style = talk.style();
    let screen = Screen::start(style.clone(), mirror_to(talk)).map_err(|error| failed("start its screen", &error))?;
    let control = Control::listen(&run).map_err(|error| cannot_write(&run.control(), &error))?;
    let codes = CodeStyle { codes: ExitCodes::Umiak, generation: Generation::Current, document: true };
    let mut machine = Machine::new(plan.job.clone(), codes, fastrand::u64(..));
    let supervised = Supervised {
        why,
        host: umiak_sys::host::name(),
        pid: std::process::id(),
        umiak: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let first = journal.number(clock.now(), [Fact::Supervised(supervised)]);
    journal.append(&first).map_err(|error| cannot_write(&run.journal(), &error))?;
    if why != Began::Submitted {
        machine.recover(journal.status(), again);
    }
    let who = Who::here(journal.epoch(), &run.control());
    run.write_supervisor(&who).map_err(|error| cannot_write(&run.supervisor(), &error))?;
    let mut supervisor = Supervisor {
        talk,
        style,
        clock,
        signals,
        engine,
        home: home.clone(),
        run,
        journal,
        plan,
        known: secrets.known,
        pool: Pool::new(devices, cpus),
        kernel: kernel::Kernel::from_now(),
        machine,
        screen,
        control,
        now: Now::default(),
    };
    supervisor.show(&first);
    supervisor.announce(&notices)?;
    Ok((supervisor, notices))
}

/// Whoever was here a moment before us may have done what we were asked for.
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
    Err(Diagnostic::error(Code::J0025, format!("{} was taken up by somebody else meanwhile", run.id()))
        .hint(format!("`umiak show {}` tells where it stands", run.id())))
}

/// The GPUs that the submitter may use, as others will see them.
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
    kind: Kind,
    wishes: Wishes,
    environment: &BTreeMap<String, String>,
    room: Option<Room>,
) -> Result<Box<dyn Engine>, Diagnostic> {
    match kind {
        Kind::Mock => Ok(Box::new(Mock::new().map_err(|error| failed("start the engine", &error))?)),
        Kind::Local => {
            let options = Options { cgroup: Cgroup::create(), isolate: wishes.isolate };
            let guardian = Guardian::start_with(options, room).map_err(|error| not_started(wishes, &error))?;
            Ok(Box::new(Local::new(guardian, wishes.isolate, environment)))
        }
    }
}

fn not_started(wishes: Wishes, error: &std::io::Error) -> Diagnostic {
    if !wishes.isolate {
        return failed("start the guardian", error);
    }
    Diagnostic::error(Code::L0028, "`--isolate` is not permitted here")
        .row("reason", error.to_string())
        .hint("run as root, allow user namespaces, or leave `--isolate` out")
}

fn mirror_to(talk: Talk) -> MirrorTo {
    match (talk.output, talk.mirror) {
        _ if talk.detached => MirrorTo::Nowhere,
        (OutputMode::Json, true) => MirrorTo::Stderr,
        (OutputMode::Json, false) => MirrorTo::Nowhere,
        (OutputMode::Human | OutputMode::Quiet, _) => MirrorTo::Stdout,
    }
}

/// The plan, and the variables that all replicas are given.
fn write_plan(run: &RunDir, plan: &Plan, known: &Known) -> Result<(), Diagnostic> {
    let mut text = serde_json::to_vec(&plan.masked(known)).expect("a plan is JSON");
    text.push(b'\n');
    replace(&run.plan(), &text).map_err(|error| cannot_write(&run.plan(), &error))?;
    let common = tasks::environment(&plan.common, known);
    replace(&run.common(), common.as_bytes()).map_err(|error| cannot_write(&run.common(), &error))
}

pub(crate) fn cannot_write(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(Code::J0029, format!("`{}` cannot be written", path.display()))
        .row("reason", error.to_string())
        .hint("free space there, or name another directory with `UMIAK_HOME`")
}

/// Devices are hard: there is no half of one.
fn check_devices(secrets: &Secrets, needed: u32, leased: u32, there: usize) -> Result<(), Diagnostic> {
    let widest = secrets.job.roles.iter().map(|role| role.work.resources.gpus).max().unwrap_or(0);
    let enough = if secrets.job.policy.gang { leased >= needed } else { leased >= widest };
    if enough {
        return Ok(());
    }
    let error = Diagnostic::error(Code::J0020, "too few GPUs are free on this host")
        .row("needed", needed.to_string())
        .row("free", format!("{leased} of {there}"));
    Err(if there == 0 {
        error.hint("this host has none: leave `gpu` out of `resources` to rehearse on CPUs")
    } else if secrets.job.policy.gang && leased >= widest {
        error.hint("end what uses them, start fewer replicas, or let replicas wait for each other with `policy: {gang: false}`")
    } else {
        error.hint("end what uses them, or ask for fewer")
    })
}

/// The CPUs that replicas can be bound to: those we may run on, and no more than our cgroup gives us time of.
fn own_cpus() -> Vec<u32> {
    let mut cpus = umiak_sys::host::allowed_cpus();
    cpus.truncate(umiak_sys::host::cpus());
    cpus
}

/// With `--strict-resources` CPUs are as hard as devices.
fn check_cpus(secrets: &Secrets, needed: u32, there: Option<&[u32]>) -> Result<(), Diagnostic> {
    let Some(there) = there.map(|cpus| cpus.len() as u32) else { return Ok(()) };
    let widest = secrets.job.roles.iter().map(|role| role.work.resources.whole_cpus()).max().unwrap_or(0);
    if there >= if secrets.job.policy.gang { needed } else { widest } {
        return Ok(());
    }
    let error = Diagnostic::error(Code::J0020, "too few CPUs on this host for `--strict-resources`")
        .row("needed", needed.to_string())
        .row("for us", there.to_string());
    Err(if there >= widest {
        error.hint("start fewer replicas, ask for less `cpu`, or let replicas wait for each other with `policy: {gang: false}`")
    } else {
        error.hint("ask for less `cpu`, or leave `--strict-resources` out to take it as advice")
    })
}

/// Where limits of memory are set, if anybody asks for one; and why there is no such place.
fn make_room(kind: Kind, job: &Job, run: &RunDir) -> (Option<Room>, Option<Refused>) {
    let is_wanted = kind == Kind::Local && job.roles.iter().any(|role| role.work.resources.memory_bytes.is_some());
    match is_wanted.then(|| Room::create(&run.id().to_string())) {
        None => (None, None),
        Some(Ok(room)) => (Some(room), None),
        Some(Err(why)) => (None, Some(why)),
    }
}

/// What the document asks for and nobody is held to: said once, or an error where that was asked for.
fn unenforced(
    secrets: &Secrets,
    kind: Kind,
    wishes: Wishes,
    unlimited: Option<&Refused>,
) -> Result<Vec<Diagnostic>, Diagnostic> {
    let roles = &secrets.job.roles;
    let has_cpu = roles.iter().any(|role| role.work.resources.cpu_millis.is_some());
    let has_memory = roles.iter().any(|role| role.work.resources.memory_bytes.is_some());
    let is_mock = kind == Kind::Mock;
    let on_engine = || format!("on engine `{}`", kind.word());
    let mut what = Vec::new();
    if has_cpu && (is_mock || !wishes.strict_resources) {
        what.push(("cpu", on_engine(), None));
    }
    if has_memory && is_mock {
        what.push(("memory", on_engine(), None));
    }
    if let Some(why) = unlimited {
        what.push(("memory", format!("here: {why}"), why.hint()));
    }
    if let Some((what, why, hint)) = what.first().filter(|_| wishes.strict_resources) {
        let error = Diagnostic::error(Code::J0020, format!("`{what}` of `resources` cannot be enforced {why}"));
        let error = hint.iter().fold(error, |error, hint| error.hint(*hint));
        return Err(error.hint("leave `--strict-resources` out to take it as advice"));
    }
    let notice = |(what, why, hint): (&str, String, Option<&str>)| {
        let notice = Diagnostic::notice(Code::J0023, format!("`{what}` of `resources` is advice {why}"));
        hint.into_iter().fold(notice, Diagnostic::hint)
    };
    let mut notices: Vec<Diagnostic> = what.into_iter().map(notice).collect();
    if roles.iter().any(|role| role.work.image.is_some()) {
        let text = format!("engine `{}` uses no images: commands run on this host as it is", kind.word());
        notices.push(Diagnostic::notice(Code::J0023, text));
    }
    Ok(notices)
}

/// The plan as the journal has it.
pub(super) fn planned(plan: &Plan, machine: &Machine, pool: &Pool) -> Planned {
    let role = |role: &umiak_core::model::Role| PlannedRole {
        role: role.name.to_string(),
        replicas: role.replicas,
        decides: role.completion.decides,
    };
    let replica = |replica: &Replica| {
        let Log { path, start } = plan.log(replica, machine.number(replica.slot));
        PlannedReplica {
            replica: replica.name.clone(),
            rank: replica.rank,
            node: replica.host.to_string(),
            endpoint: replica.endpoint.map_or_else(|| replica.host.to_string(), |endpoint| endpoint.to_string()),
            devices: pool.devices_of(replica.slot).iter().map(|device| device.label.clone()).collect(),
            log: path.to_string_lossy().into_owned(),
            log_start: start,
        }
    };
    Planned {
        job: plan.job.name.to_string(),
        attempt: machine.attempt(),
        umiak: env!("CARGO_PKG_VERSION").to_owned(),
        world_size: plan.replicas.len() as u32,
        log_dir: plan.logs.dir().to_string_lossy().into_owned(),
        roles: plan.job.roles.iter().map(role).collect(),
        replicas: plan.replicas.iter().map(replica).collect(),
    }
}
