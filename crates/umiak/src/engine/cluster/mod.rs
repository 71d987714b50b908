//! The engines `slurm` and `mpi`: a scheduler of another system gets an allocation with room for all replicas of a job, and
//! agents of umiak run in it. See [`umiak_core::cluster`] for the files between them.
//!
//! | part | in one sentence |
//! |---|---|
//! | this file | the engine: a unit for each job |
//! | [`unit`] | a unit from its submission to its end |
//! | [`scheduler`] | what a scheduler does for a unit |
//! | [`slurm`], [`mpi`] | the schedulers |
//! | [`command`] | calls programs of a scheduler |
//! | [`files`] | files that one side writes and the other follows |
//! | [`post`] | copies them over a connection, for nodes that do not see them |

mod command;
pub(crate) mod files;
pub(crate) mod mpi;
pub(crate) mod post;
pub(crate) mod scheduler;
pub(crate) mod slurm;
mod unit;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info};
use umiak_core::cluster::{self, Order, Seating, StartOrder, UnitFile};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{ClusterOptions, Device, Exit, Job, SpawnError, SpawnStage, StepIndex, StopHow};
use umiak_core::plan::Plan;
use umiak_core::plan::document::{RunPlace, Submission};
use umiak_sys::ports::{LeaseRequest, Leased};

use super::actors::ended;
use super::inbox::Inbox;
use super::mock::Paper;
use super::{Common, Engine, EngineKind, EngineNews, NotLeased, Start, Swept};
use files::Lines;
use mpi::Mpi;
use scheduler::{Look, Scheduler, UnitPlace};
use slurm::Slurm;
use umiak_sys::wait::readable;
use unit::{Begin, Beginning, Ending, Unit};

/// How long a scheduler may take to end a unit without a supervisor.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a supervisor that exits early waits until a unit is cancelled.
const HURRY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Cluster {
    kind: EngineKind,
    /// The directory of the run.
    directory: PathBuf,
    run: String,
    submission: Submission,
    inbox: Arc<Inbox>,
    /// The unit of each job.
    units: BTreeMap<StepIndex, Unit>,
    /// Units whose jobs have ended.
    retired: Vec<Unit>,
    grace: Duration,
    remove: Vec<PathBuf>,
    paper: Paper,
    /// `mpirun` of the run, if that is its engine. A step may name another.
    launcher: Option<Mpi>,
}

fn seating(kind: EngineKind, job: &Job, options: &ClusterOptions) -> Seating {
    match kind {
        EngineKind::Slurm => cluster::slurm::seating(job, &options.slurm),
        _ => Seating::Replicas,
    }
}

/// Fails if a scheduler cannot take this job with these options.
pub(crate) fn check(kind: EngineKind, job: &Job, options: &ClusterOptions) -> Result<(), Diagnostic> {
    match kind {
        EngineKind::Slurm => {
            cluster::slurm::check(&options.slurm).into_iter().next().map_or(Ok(()), Err)?;
            let Some(connect) = &options.slurm.connect else { return Ok(()) };
            post::office::check(connect).map_err(|reason| {
                Diagnostic::error(Code::E0205, "agents cannot connect to this host")
                    .row("reason", reason)
                    .hint("name an address that the nodes reach: `--slurm-connect=HOST`; or use a directory that they share, without `--slurm-connect`")
            })
        }
        EngineKind::Mpi => cluster::mpi::check(job, &options.mpi),
        EngineKind::Kubernetes => {
            cluster::kubernetes::check(job, &options.kubernetes).into_iter().next().map_or(Ok(()), Err)
        }
        _ => Ok(()),
    }
}

/// Fails if the programs of a scheduler are missing.
pub(crate) fn check_programs(kind: EngineKind) -> Result<(), Diagnostic> {
    if kind == EngineKind::Slurm { slurm::check() } else { Ok(()) }
}

/// The directory of a unit: `units/0.1`.
fn directory_of(run: &Path, name: &str) -> PathBuf {
    run.join("units").join(name)
}

fn place_of(directory: PathBuf) -> UnitPlace {
    UnitPlace { directory, variables: Vec::new() }
}

impl Cluster {
    /// Starts nothing.
    pub(crate) fn new(
        kind: EngineKind,
        directory: &Path,
        run: String,
        submission: Submission,
    ) -> Result<Self, Diagnostic> {
        let launcher = match kind {
            EngineKind::Mpi if submission.engine == kind.word() => Some(Mpi::find(&submission.cluster.mpi)?),
            _ => None,
        };
        if kind == EngineKind::Mpi {
            end_kept(directory);
        }
        info!(engine = kind.word(), "engine started");
        Ok(Self {
            kind,
            directory: directory.to_owned(),
            run,
            submission,
            inbox: Arc::new(Inbox::new().map_err(|error| Diagnostic::failed("start the engine", &error))?),
            units: BTreeMap::new(),
            retired: Vec::new(),
            grace: Duration::from_secs(5),
            remove: Vec::new(),
            paper: Paper::default(),
            launcher,
        })
    }

    fn handle_of(&self, name: &str) -> String {
        format!("{}:{}/{name}", self.kind.word(), self.run)
    }

    /// The scheduler of a unit with these options.
    fn scheduler(&self, options: &ClusterOptions) -> std::io::Result<Box<dyn Scheduler>> {
        if self.kind != EngineKind::Mpi {
            return Ok(Box::new(Slurm::new()));
        }
        let is_that_of_run = options.mpi.launcher == self.submission.cluster.mpi.launcher;
        Ok(Box::new(match self.launcher.as_ref().filter(|_| is_that_of_run) {
            Some(launcher) => launcher.another(),
            None => Mpi::find(&options.mpi).map_err(|error| std::io::Error::other(error.message))?,
        }))
    }

    /// The name of the next unit of a job.
    fn next_name(&self, step: StepIndex) -> String {
        let is_free = |name: &String| !directory_of(&self.directory, name).exists();
        let names = (1..).map(|number: u32| format!("{}.{number}", step.0));
        names.into_iter().find(is_free).unwrap_or_default()
    }

    /// Writes the files of a unit, and submits it.
    fn submit(&mut self, plan: &Plan, step: StepIndex, order: &Order, ids: &[AttemptId]) -> std::io::Result<()> {
        let name = self.next_name(step);
        let place = place_of(directory_of(&self.directory, &name));
        umiak_sys::files::make_own_directory(&self.directory.join("units"))?;
        umiak_sys::files::make_own_directory(&place.directory)?;
        let directory = place.directory.clone();
        match self.begin(plan, step, &name, place, order, ids) {
            Ok(unit) => {
                self.replace(step, unit);
                Ok(())
            }
            Err(error) => {
                unit::forget(&directory);
                Err(error)
            }
        }
    }

    fn begin(
        &self,
        plan: &Plan,
        step: StepIndex,
        name: &str,
        place: UnitPlace,
        order: &Order,
        ids: &[AttemptId],
    ) -> std::io::Result<Unit> {
        let options = &plan.cluster;
        let connect = options.slurm.connect.as_ref().filter(|_| self.kind == EngineKind::Slurm);
        // Agents that do not see the run have directories of their own.
        let below = |path: &Path| match connect {
            Some(_) => path.strip_prefix(&self.directory).unwrap_or(path).to_owned(),
            None => path.to_owned(),
        };
        let unit = UnitFile {
            v: cluster::VERSION,
            engine: self.kind.word().to_owned(),
            submission: Submission { cluster: options.clone(), ..self.submission.clone() },
            step,
            job: plan.job.clone(),
            programs: plan.commands.iter().map(|command| command.program.clone()).collect(),
            place: RunPlace {
                run: self.run.clone(),
                step: plan.step.clone(),
                user: plan.options.user.clone(),
                cpus: 1,
                tasks: below(plan.logs.dir()),
                scratch: below(&plan.scratch),
                attached: false,
            },
            seating: seating(self.kind, &plan.job, options),
        };
        files::replace(&place.directory.join(files::UNIT), &unit)?;
        if self.kind == EngineKind::Slurm && connect.is_none() && options.slurm.umiak.is_none() {
            copy_program(&place.directory);
        }
        let scheduler = self.scheduler(options)?;
        let mut orders = Lines::new(place.directory.join(files::ORDERS));
        orders.add(order);
        if !orders.write() {
            return Err(std::io::Error::other("its orders cannot be written"));
        }
        Unit::begin(Beginning {
            handle: self.handle_of(name),
            step,
            place,
            run: &self.directory,
            grace: self.grace,
            inbox: &self.inbox,
            scheduler,
            connect,
            begin: Begin::Submit(Box::new(plan.clone()), ids.to_vec()),
            orders,
        })
    }

    /// The unit of a job; one that it had before ends.
    fn replace(&mut self, step: StepIndex, unit: Unit) {
        if let Some(old) = self.units.insert(step, unit) {
            old.end(true);
            self.retired.push(old);
        }
    }

    /// The attempts of each job.
    fn by_step(targets: &[AttemptId]) -> BTreeMap<StepIndex, Vec<AttemptId>> {
        let mut by_step: BTreeMap<StepIndex, Vec<AttemptId>> = BTreeMap::new();
        for id in targets {
            by_step.entry(id.step).or_default().push(*id);
        }
        by_step
    }

    fn retire_unit(&mut self, step: StepIndex) {
        if let Some(unit) = self.units.remove(&step) {
            unit.end(true);
            self.retired.push(unit);
        }
    }
}

impl Engine for Cluster {
    fn kind(&self) -> EngineKind {
        self.kind
    }

    fn lease_ports(&mut self, _: StepIndex, request: LeaseRequest) -> Result<Leased, NotLeased> {
        Ok(self.paper.ports(request.count))
    }

    fn lease_devices(&mut self, _: StepIndex, _: &[(u32, Device)], count: u32) -> Result<Vec<Device>, Diagnostic> {
        Ok(Paper::devices(count))
    }

    fn release(&mut self, step: StepIndex) {
        self.retire_unit(step);
    }

    fn retire(&mut self, step: StepIndex) {
        self.retire_unit(step);
    }

    fn remove_at_end(&mut self, directories: &[PathBuf]) {
        self.remove = directories.to_vec();
    }

    fn share(&mut self, common: Common) {
        self.grace = common.grace;
    }

    /// A job keeps its unit while it can: the next unit has the next number.
    fn handle(&self, attempts: &[AttemptId]) -> Option<String> {
        if !self.kind.capabilities().adoption {
            return None;
        }
        let step = attempts.first()?.step;
        let unit = self.units.get(&step).filter(|unit| unit.is_open());
        Some(unit.map_or_else(|| self.handle_of(&self.next_name(step)), |unit| unit.handle.clone()))
    }

    fn adopt(&mut self, handle: &str, live: &[AttemptId]) -> Result<Vec<AttemptId>, Diagnostic> {
        let Some((_, name)) = handle.rsplit_once('/') else { return Ok(Vec::new()) };
        let place = place_of(directory_of(&self.directory, name));
        if self.units.values().any(|unit| unit.handle == handle) {
            return Ok(Vec::new());
        }
        let Some(found) = find(&place)? else { return Ok(Vec::new()) };
        let step = found.unit.step;
        let ordered = unit::ordered(&place.directory);
        let live: Vec<AttemptId> = live.iter().filter(|id| ordered.contains(id)).copied().collect();
        debug!(handle, job = found.job, ?live, "adopt");
        let begun = found.begin(handle.to_owned(), place, &self.directory, self.grace, &self.inbox, live.clone());
        let adopted = begun.map_err(|error| Diagnostic::failed("follow the agents", &error))?;
        if live.is_empty() {
            adopted.end(true);
            self.retired.push(adopted);
        } else {
            self.replace(step, adopted);
        }
        Ok(live)
    }

    fn start(&mut self, plan: &Plan, starts: Vec<Start>) {
        debug!(attempts = starts.len(), "start");
        let Some(first) = starts.first() else { return };
        let step = first.id.step;
        let ids: Vec<AttemptId> = starts.iter().map(|start| start.id).collect();
        let order = |start: &Start| StartOrder { id: start.id, of_job: start.of_job, retries: start.retries };
        let order = Order::Start(starts.iter().map(order).collect());
        if self.units.get(&step).is_some_and(|unit| unit.start(&order, &ids)) {
            return;
        }
        if let Err(error) = self.submit(plan, step, &order, &ids) {
            let (errno, reason) = (error.raw_os_error().unwrap_or(0), error.to_string());
            let refused = SpawnError { doing: SpawnStage::Submit, errno, reason };
            for id in ids {
                self.inbox.tell(ended(id, Exit::Spawn(refused.clone())));
            }
        }
    }

    fn stop(&mut self, targets: &[AttemptId], how: StopHow) {
        for (step, targets) in Self::by_step(targets) {
            if let Some(unit) = self.units.get(&step) {
                unit.stop(&targets, how);
            }
        }
    }

    fn forsake(&mut self, targets: &[AttemptId]) {
        for (step, targets) in Self::by_step(targets) {
            if let Some(unit) = self.units.get(&step) {
                unit.order(Order::Forsake { targets });
            }
        }
    }

    fn await_ready(&mut self, id: AttemptId) -> bool {
        if let Some(unit) = self.units.get(&id.step) {
            unit.order(Order::AwaitReady { id });
        }
        true
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.watch())
    }

    fn news(&mut self) -> Vec<EngineNews> {
        self.inbox.take()
    }

    /// Only a run with one job asks for it.
    fn clear(&mut self, _: bool) {
        match self.units.values().next() {
            Some(unit) => unit.clear(),
            None => self.inbox.tell(EngineNews::Cleared(Swept::default())),
        }
    }

    fn leave(&mut self) {
        self.units.values().for_each(|unit| unit.end(false));
        let until = Instant::now() + HURRY;
        self.units.values().for_each(|unit| unit.wait_for_cancel(until));
    }

    fn end(&mut self, patient: bool) {
        for directory in &self.remove {
            let _ = std::fs::remove_dir_all(directory);
        }
        let units: Vec<&Unit> = self.units.values().chain(&self.retired).collect();
        if units.is_empty() {
            return self.inbox.tell(EngineNews::Swept(Swept::default()));
        }
        let ending = Ending::new(units.len(), Arc::clone(&self.inbox));
        for unit in units {
            unit.end(patient);
            unit.report_to(&ending);
        }
    }
}

/// Puts this program where the script of Slurm finds it, for nodes that do not have it. Without it the script says so.
fn copy_program(directory: &Path) {
    let copy = directory.join(cluster::slurm::COPY_FILE);
    let copied = std::env::current_exe().and_then(|own| {
        // A link costs nothing, and is not possible from another file system.
        std::fs::hard_link(&own, &copy).or_else(|_| std::fs::copy(&own, &copy).map(drop))
    });
    if let Err(error) = copied {
        debug!(%error, "umiak could not be copied");
        // A part of it is no program.
        let _ = std::fs::remove_file(&copy);
    }
}

/// Waits until each `mpirun` of a dead supervisor has ended: their keepers end them. Removes what has secrets.
pub(super) fn end_kept(run: &Path) {
    let begun = Instant::now();
    for entry in std::fs::read_dir(run.join("units")).into_iter().flatten().flatten() {
        let Ok(log) = std::fs::File::open(entry.path().join(cluster::mpi::LOG)) else { continue };
        while umiak_sys::hold::is_held(&log).unwrap_or(false) && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        unit::forget(&entry.path());
    }
}

/// True if a supervisor that is gone may have left something in a cluster.
pub(crate) fn is_unfinished(run: &Path) -> bool {
    let units = std::fs::read_dir(run.join("units")).into_iter().flatten().flatten();
    units.into_iter().any(|unit| unit.path().join(files::UNIT).exists())
}

/// A unit that another supervisor has submitted.
struct Found {
    unit: UnitFile,
    job: String,
    scheduler: Slurm,
}

impl Found {
    /// Follows it from here on, with these attempts.
    fn begin(
        self,
        handle: String,
        place: UnitPlace,
        run: &Path,
        grace: Duration,
        inbox: &Arc<Inbox>,
        live: Vec<AttemptId>,
    ) -> std::io::Result<Unit> {
        let Self { unit, job, scheduler } = self;
        Unit::begin(Beginning {
            handle,
            step: unit.step,
            orders: Lines::new(place.directory.join(files::ORDERS)),
            place,
            run,
            grace,
            inbox,
            scheduler: Box::new(scheduler),
            connect: unit.submission.cluster.slurm.connect.as_ref(),
            begin: Begin::Adopt { job, live },
        })
    }
}

/// `None` if nothing is left of the unit.
fn find(place: &UnitPlace) -> Result<Option<Found>, Diagnostic> {
    let unknown = |reason: String| {
        Diagnostic::error(Code::J0026, "the run's cluster does not respond")
            .row("reason", reason)
            .hint("try again when it does")
    };
    let unit = unit::read(&place.directory).map_err(|error| unknown(format!("the unit cannot be read: {error}")))?;
    let Some(unit) = unit else { return Ok(None) };
    let mut scheduler = Slurm::new();
    let Some(job) = scheduler.find(place).map_err(unknown)? else {
        // It was never submitted.
        unit::forget(&place.directory);
        return Ok(None);
    };
    Ok(Some(Found { unit, job, scheduler }))
}

/// Ends what a dead supervisor left in a cluster, and waits for it.
pub(super) fn end_orphans(run: &Path, handles: &[&String]) -> Result<(), Diagnostic> {
    let names: BTreeSet<&str> = handles.iter().filter_map(|handle| Some(handle.rsplit_once('/')?.1)).collect();
    let mut found = Vec::new();
    for name in names {
        let place = place_of(directory_of(run, name));
        found.extend(find(&place)?.map(|unit| (name, place, unit)));
    }
    let Some(grace) = found.iter().map(|(_, _, found)| found.unit.job.longest_grace()).max() else { return Ok(()) };
    let failed = |error: std::io::Error| Diagnostic::failed("follow the agents", &error);
    let inbox = Arc::new(Inbox::new().map_err(failed)?);
    let jobs: Vec<String> = found.iter().map(|(_, _, found)| found.job.clone()).collect();
    let mut units = Vec::new();
    for (name, place, found) in found {
        let handle = format!("{}:{name}", EngineKind::Slurm.word());
        units.push(found.begin(handle, place, run, grace, &inbox, Vec::new()).map_err(failed)?);
    }
    let ending = Ending::new(units.len(), Arc::clone(&inbox));
    for unit in &units {
        unit.end(true);
        unit.report_to(&ending);
    }
    while !inbox.take().iter().any(|news| matches!(news, EngineNews::Swept(_))) {
        let _ = readable(&[inbox.watch()], None);
    }
    // A scheduler that does not answer is not waited for.
    let mut scheduler = Slurm::new();
    for job in jobs {
        let begun = Instant::now();
        loop {
            let look = scheduler.look(&job);
            if matches!(look, Look::Over(_)) {
                break;
            }
            if begun.elapsed() > PATIENCE {
                return Err(Diagnostic::error(Code::J0026, format!("job {job} of the run does not end"))
                    .row("state", format!("{look:?}"))
                    .hint("try again when Slurm responds"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}
