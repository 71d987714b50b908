//! From a checked command line to a plan that is ready to run. Finds all errors that can be found before the first rank
//! starts.

use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use umiak_core::contract::Topology;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::launch::LaunchSpec;
use umiak_core::machine::round::messages::Start;
use umiak_core::model::{Crew, FIRST_ATTEMPT, Generation, Mode, Part, Port, PortRequest, Request};
use umiak_core::plan::command;
use umiak_core::plan::files::{Author, FilePlan};
use umiak_core::plan::{self, Inventory, Layout, Plan, Ports, Run, Share};
use umiak_sys::files::{self, Contents};
use umiak_sys::logger;
use umiak_sys::ports::{LeaseError, LeaseRequest, Leased, PortRange};

use crate::engine::{NotLeased, no_sockets, reserved_by};
use crate::front::preparing;
use crate::host::inventory;

/// Leases ports, in this process or in an engine.
pub(super) type Lease<'a> = dyn FnMut(LeaseRequest) -> Result<Leased, NotLeased> + 'a;

/// What this node plans before it knows the other nodes.
pub(super) struct Outline {
    pub(super) layout: Layout,
    pub(super) ports: Ports,
    command: command::Resolved,
    pub(super) log_dir: PathBuf,
    pub(super) notices: Vec<Diagnostic>,
}

/// Plans everything that does not depend on other nodes. Writes nothing.
pub(super) fn outline(request: &Request, inventory: &Inventory, lease: &mut Lease<'_>) -> Result<Outline, Diagnostic> {
    let mut asked = request.command.clone();
    if asked.is_check {
        asked.script = inventory::paddle_check(&asked, &inventory.env)?.into();
    }
    let files = inventory::look_up(&asked, &inventory.env);
    let command = command::resolve(&asked, &files)?;
    let layout = plan::layout(request, inventory)?;
    let log_dir = match &request.torch {
        // Chosen later: it depends on the run.
        Some(_) => request.logs.dir.clone(),
        None => std::path::absolute(&request.logs.dir).map_err(|error| log_dir_error(&request.logs.dir, &error))?,
    };
    let mut notices = Vec::new();
    let ports = Leasing { request, layout: &layout, lease, notices: &mut notices }.all()?;
    Ok(Outline { layout, ports, command, log_dir, notices })
}

impl Outline {
    /// The plan of the first attempt, and the data it shares with later ones.
    pub(super) fn complete(
        self,
        spec: &LaunchSpec,
        inventory: &Inventory,
        share: Share,
        scratch: PathBuf,
        start: Option<&Start>,
    ) -> (Plan, Run) {
        let Self { layout, command, log_dir, notices, .. } = self;
        let directory = std::env::current_dir().unwrap_or_default();
        let pod_name = std::iter::repeat_with(fastrand::lowercase).take(6).collect();
        let (attempt, last) = start.map_or((FIRST_ATTEMPT, None), |start| (start.attempt, start.last));
        let run = Run { pod_name, scratch, directory, log_dir, command, attempt, last };
        let mut plan = plan::finish(&spec.request, inventory, layout, share, &run);
        plan.notices.splice(0..0, spec.notices.iter().cloned());
        plan.notices.extend(notices);
        (plan, run)
    }
}

/// Places and ports of a later attempt; ports that the user fixed stay the same, and leased.
pub(super) fn outline_again(
    request: &Request,
    inventory: &Inventory,
    last: &Plan,
    lease: &mut Lease<'_>,
) -> Result<(Layout, Ports), Diagnostic> {
    let layout = plan::layout(request, inventory)?;
    let ports = if keeps_ports(request) {
        let stores = Leasing { request, layout: &layout, lease, notices: &mut Vec::new() }.stores_again(last)?;
        Ports { endpoints: endpoints(last).collect(), stores }
    } else {
        fresh_ports(request, &layout, last, lease)?
    };
    Ok((layout, ports))
}

/// Ports that the last attempt did not have, if possible: a range may have no others. Notices about the choice were
/// shown at the first attempt.
fn fresh_ports(request: &Request, layout: &Layout, last: &Plan, lease: &mut Lease<'_>) -> Result<Ports, Diagnostic> {
    let Topology { paddle_store, relayed_store, torch_store, .. } = last.topology();
    let stores = [paddle_store, torch_store].into_iter().chain(relayed_store).map(|store| store.port);
    let old: Vec<Port> = endpoints(last).chain(stores).collect();
    let mut take = || Leasing { request, layout, lease: &mut *lease, notices: &mut Vec::new() }.all();
    let ports = take()?;
    if !ports.endpoints.iter().chain(&ports.stores).any(|port| old.contains(port)) {
        return Ok(ports);
    }
    // The first choice stays leased meanwhile, so the second differs from it, and most likely from the old ones.
    Ok(take().unwrap_or(ports))
}

/// The ports of this node's ranks.
fn endpoints(plan: &Plan) -> impl Iterator<Item = Port> {
    plan.replicas.iter().filter_map(|replica| replica.endpoint.as_ref()).map(|endpoint| endpoint.port)
}

/// True if a later attempt gets the same ports. They stay leased: a port whose connections were just closed cannot be
/// bound for a minute, except with `SO_REUSEADDR`, which ranks set.
pub(super) fn keeps_ports(request: &Request) -> bool {
    let listed = match &request.mode {
        Mode::Servers(mode) => matches!(mode.servers, Crew::Listed(_)) || mode.pod.is_some(),
        Mode::Collective | Mode::Rpc => false,
    };
    listed || matches!(request.ports, PortRequest::Fixed { .. })
}

/// Leases what a layout needs.
struct Leasing<'a, 'l> {
    request: &'a Request,
    layout: &'a Layout,
    lease: &'a mut Lease<'l>,
    notices: &'a mut Vec<Diagnostic>,
}

impl Leasing<'_, '_> {
    fn all(&mut self) -> Result<Ports, Diagnostic> {
        let open = self.layout.seats.iter().filter(|seat| seat.port.is_none()).count() as u16;
        let mut named = Vec::with_capacity(self.layout.seats.len());
        for seat in &self.layout.seats {
            if let Some(port) = seat.port {
                named.extend(self.exactly(port, self.lists(seat.part))?);
            }
        }
        let stores = plan::STORES - u16::from(self.layout.store.is_some());
        let mut chosen = match self.place() {
            // A fixed start applies to the endpoints; the stores get any free ports.
            PortRange::Exactly { .. } if open == 0 => self.take(stores, PortRange::Anywhere)?,
            // The same for the usual ports.
            place @ (PortRange::Exactly { .. } | PortRange::Rather { .. }) => {
                let mut endpoints = self.take(open, place)?;
                endpoints.extend(self.take(stores, PortRange::Anywhere)?);
                endpoints
            }
            place @ (PortRange::Anywhere | PortRange::Within { .. }) => self.take(open + stores, place)?,
        };
        let mut stores = chosen.split_off(open as usize);
        if let Some(port) = self.layout.store {
            let source = match self.request.generation() {
                Generation::Legacy => "--http_port",
                Generation::Current => "--gloo_port",
            };
            stores.splice(0..0, self.exactly(port, source)?);
        }
        stores.extend(self.relayed()?);
        let (mut named, mut chosen) = (named.into_iter(), chosen.into_iter());
        let seats = self.layout.seats.iter();
        let endpoints = seats.filter_map(|seat| if seat.port.is_some() { named.next() } else { chosen.next() });
        Ok(Ports { endpoints: endpoints.collect(), stores })
    }

    /// Ports for the stores of a later attempt that keeps its ports: a named one stays too.
    fn stores_again(&mut self, last: &Plan) -> Result<Vec<Port>, Diagnostic> {
        let kept = self.layout.store.map(|_| last.topology().paddle_store.port);
        let fresh = self.take(plan::STORES - u16::from(kept.is_some()), PortRange::Anywhere)?;
        Ok(kept.into_iter().chain(fresh).chain(self.relayed()?).collect())
    }

    /// The port of Paddle's store behind a relay, if there is one.
    fn relayed(&mut self) -> Result<Vec<Port>, Diagnostic> {
        let place = match self.place() {
            within @ PortRange::Within { .. } => within,
            PortRange::Anywhere | PortRange::Rather { .. } | PortRange::Exactly { .. } => PortRange::Anywhere,
        };
        if self.request.store_relay { self.take(1, place) } else { Ok(Vec::new()) }
    }

    fn place(&self) -> PortRange {
        match self.request.ports {
            PortRequest::Free => match self.request.usual_port() {
                Some(start) => PortRange::Rather { start },
                None => PortRange::Anywhere,
            },
            PortRequest::Range { low, high, .. } => PortRange::Within { low, high },
            PortRequest::Fixed { start, .. } => PortRange::Exactly { start },
        }
    }

    /// The flag or variable that names the ports of a part.
    fn lists(&self, part: Part) -> &'static str {
        match (part, self.request.generation()) {
            _ if matches!(&self.request.mode, Mode::Servers(mode) if mode.pod.is_some()) => "PADDLE_PORT",
            (Part::Server, _) => "--servers",
            (Part::Leader | Part::Trainer, Generation::Legacy) => "--workers",
            (Part::Leader | Part::Trainer, Generation::Current) => "--trainers",
            (Part::Coordinator, _) => "--coordinators",
            (Part::HeterTrainer, _) => "--heter_workers",
        }
    }

    /// Leases a named port.
    fn exactly(&mut self, port: Port, source: &str) -> Result<Vec<Port>, Diagnostic> {
        let request = PortRequest::Fixed { start: port.get(), source: source.to_owned() };
        self.ask(&request, 1, PortRange::Exactly { start: port.get() })
    }

    fn take(&mut self, count: u16, place: PortRange) -> Result<Vec<Port>, Diagnostic> {
        self.ask(&self.request.ports.clone(), count, place)
    }

    fn ask(&mut self, request: &PortRequest, count: u16, place: PortRange) -> Result<Vec<Port>, Diagnostic> {
        let address = self.layout.address.filter(|_| matches!(place, PortRange::Exactly { .. }));
        let leased = (self.lease)(LeaseRequest { count, range: place, address, seed: fastrand::u64(..) });
        let leased = leased.map_err(|error| match error {
            NotLeased::Lost(diagnostic) => *diagnostic,
            NotLeased::TooFew(error) => too_few_ports(request, &error),
        })?;
        if leased.inside_ephemeral && self.notices.is_empty() {
            self.notices.push(Diagnostic::notice(
                Code::L0022,
                "ports were chosen inside the kernel's ephemeral range: there is no room below it",
            ));
        }
        Ok(leased.ports.into_iter().filter_map(Port::new).collect())
    }
}

fn too_few_ports(request: &PortRequest, error: &LeaseError) -> Diagnostic {
    if let Some(errno) = error.refused {
        return no_sockets(Code::L0010, error.wanted, errno, "processes");
    }
    let range = (error.low, error.high);
    let few = plan::too_few_ports(request, error.wanted, error.found, range, &error.taken);
    reserved_by(few, &error.holders)
}

/// Prefix of the temporary directories of jobs.
const SCRATCH: &str = "umiak-run-";

/// Removes temporary directories whose front and guardian were both killed. A directory younger than a minute may still
/// have a guardian at work.
pub(crate) fn clean_scratch() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().and_then(|name| name.strip_prefix(SCRATCH)) else { continue };
        let age = entry.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > Duration::from_secs(60)) && umiak_sys::cgroup::is_gone(owner) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The job's temporary directory, in one of two places. Both paths are chosen before it is made and registered for
/// removal first, so that a killed front leaves nothing behind.
#[derive(Debug)]
pub(super) struct Scratch {
    candidates: [PathBuf; 2],
}

impl Scratch {
    pub(super) fn choose(dir: &Path) -> Self {
        // Long enough to be unique.
        let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(12).collect();
        let name = umiak_sys::cgroup::owner_name().map_or(random.clone(), |owner| format!("{owner}-{random}"));
        let log_dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        Self { candidates: [std::env::temp_dir(), log_dir].map(|parent| parent.join(format!("{SCRATCH}{name}"))) }
    }

    pub(super) fn candidates(&self) -> &[PathBuf] {
        &self.candidates
    }

    pub(super) fn make(&self) -> Result<PathBuf, Diagnostic> {
        let make = |directory: &PathBuf| {
            preparing::at(directory);
            DirBuilder::new().mode(0o700).create(directory)?;
            Ok::<_, std::io::Error>(directory.clone())
        };
        let [first, second] = &self.candidates;
        make(first).or_else(|_| make(second)).map_err(|error| {
            let tried = self.candidates.iter().filter_map(|path| path.parent());
            let tried: Vec<String> = tried.map(|path| path.display().to_string()).collect();
            Diagnostic::error(Code::L0016, "no scratch directory could be created")
                .row("tried", tried.join("\n"))
                .row("reason", error.to_string())
                .hint("set `TMPDIR` to a writable directory")
        })
    }

    /// Removes it, for a job that did not start.
    pub(super) fn remove(&self) {
        for directory in &self.candidates {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// A notice if the log directory can no longer be written: the output of ranks is then lost. `effect` is what this means.
pub(super) fn why_full(log_dir: &Path, effect: &str) -> Option<Diagnostic> {
    let probe = || tempfile::tempfile_in(log_dir)?.write_all(&[0; 4096]);
    let error = probe().err()?;
    Some(
        Diagnostic::notice(Code::L0026, format!("`{}` can no longer be written", log_dir.display()))
            .row("reason", error.to_string())
            .hint(format!("{effect}; free space there, or choose another directory with `--log_dir`")),
    )
}

pub(super) fn log_dir_error(path: &Path, error: &std::io::Error) -> Diagnostic {
    let in_the_way = path.ancestors().find(|ancestor| ancestor.exists()).filter(|ancestor| !ancestor.is_dir());
    let reason = match in_the_way {
        Some(file) => format!("`{}` is a file, not a directory", file.display()),
        None => error.to_string(),
    };
    Diagnostic::error(Code::L0014, format!("the log directory `{}` cannot be used", path.display()))
        .row("reason", reason)
        .hint("choose another one with `--log_dir`")
}

/// Writes the files that must exist before the first rank starts, and records where this attempt begins in each log.
pub(super) fn write_files(request: &Request, inventory: &Inventory, plan: &mut Plan) -> Result<(), Diagnostic> {
    let gloo = plan.meeting_dir(0, plan.attempt);
    std::fs::create_dir(&gloo).map_err(|error| file_error(&gloo, &error))?;
    // Output of an earlier attempt belongs to this run, and is kept.
    let overwrite = request.logs.overwrite && plan.attempt == FIRST_ATTEMPT;
    let author = Author::new(inventory, plan);
    for file in &plan.files {
        preparing::at(&file.path);
        let done = if file.late { files::check(&file.path).map(drop) } else { write_file(file, &author) };
        done.map_err(|error| file_error(&file.path, &error))?;
    }
    let mirrored = plan.mirrored().map(|replica| replica.rank);
    let rotated = logger::last_numbers(plan.logs.dir());
    for (rank, log) in plan.replicas.iter_mut().filter_map(|replica| Some((replica.rank, replica.log.as_mut()?))) {
        preparing::at(&log.path);
        // The mirror needs an existing file; the other files are created when their ranks start.
        let start =
            if mirrored == Some(rank) || overwrite { open_log(&log.path, overwrite) } else { files::check(&log.path) };
        log.start = start.map_err(|error| file_error(&log.path, &error))?;
        log.rotated = log.path.file_name().and_then(|name| rotated.get(name)).copied().unwrap_or(0);
    }
    Ok(())
}

/// Writes the other files on a thread, while the ranks start. Errors do not stop the job.
pub(super) fn write_late_files(inventory: &Arc<Inventory>, plan: &Arc<Plan>) -> Option<JoinHandle<()>> {
    let (inventory, plan) = (Arc::clone(inventory), Arc::clone(plan));
    let write = move || {
        let author = Author::new(&inventory, &plan);
        for file in plan.files.iter().filter(|file| file.late) {
            let _ = write_file(file, &author);
        }
    };
    std::thread::Builder::new().name("files".into()).stack_size(128 << 10).spawn(write).ok()
}

pub(super) fn file_error(path: &Path, error: &std::io::Error) -> Diagnostic {
    // Refusals of our own have no number.
    let remedy = if error.raw_os_error().is_some() { "free space there" } else { "remove the file" };
    Diagnostic::error(Code::L0014, format!("`{}` cannot be written", path.display()))
        .row("reason", error.to_string())
        .hint(format!("choose another directory with `--log_dir`, or {remedy}"))
}

fn write_file(file: &FilePlan, author: &Author<'_>) -> std::io::Result<()> {
    let contents = if file.append { Contents::Append } else { Contents::Replace };
    let mode = if file.private { 0o600 } else { files::READABLE };
    files::open(&file.path, contents, mode)?.write_all(author.text(file.content).as_bytes())
}

/// Opens the log as the rank will, so that an error is found before the start.
fn open_log(path: &Path, overwrite: bool) -> std::io::Result<u64> {
    let file = files::open(path, Contents::Append, files::READABLE)?;
    if overwrite {
        file.set_len(0)?;
    }
    Ok(file.metadata()?.len())
}
