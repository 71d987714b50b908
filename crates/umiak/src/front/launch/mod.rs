//! `umiak launch`: runs a checked command line.
//!
//! | part | in one sentence |
//! |---|---|
//! | [`prepare`] | from a command line to a plan, with ports that are held and files that are written |
//! | [`door`] | what only a launched job has: shared logs, Paddle's own lines, its peers |
//! | [`meeting`], [`peers`], [`rounds`] | other nodes: where they meet, until all have joined, and after that |
//! | [`succession`] | jobs over etcd: coordinators that are elected |
//! | [`store`] | torch's store, if umiak hosts it |
//! | [`relay`] | Paddle's store, if ranks reach it through umiak |
//! | [`token`] | the secret that nodes share |
//! | [`log_dir`] | one live launch in a log directory |
//! | [`restart`] | from a failed attempt to the next one |
//! | [`leaving`] | the end of a job on several nodes: logs on their way |
//! | [`torch`] | what only `torchrun` has: its directory of logs, its summary |
//! | [`hook`] | the command before each round |
//! | [`pod_log`], [`gpu_log`] | files that Paddle's launcher writes |
//! | [`words`], [`peer_words`] | messages |

mod door;
mod gpu_log;
mod hook;
mod leaving;
mod log_dir;
mod meeting;
mod peer_words;
mod peers;
mod pod_log;
pub(crate) mod prepare;
mod relay;
mod restart;
mod rounds;
mod store;
mod succession;
mod token;
mod torch;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::info;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::Began;
use umiak_core::formats::launch::LaunchSpec;
use umiak_core::machine::exit_code::{CodeStyle, NodeCount};
use umiak_core::machine::job::Machine;
use umiak_core::machine::round::messages::{Stage, Start};
use umiak_core::model::{Device, FIRST_ATTEMPT, Nodes, OutputMode, Request, StepIndex};
use umiak_core::plan::pool::Pool;
use umiak_core::plan::{Inventory, Plan, Run, Share};

use door::LaunchDoor;
use gpu_log::GpuLog;
use leaving::Leaving;
use peers::Peers;
use pod_log::{PodLog, pod_log_name};

use crate::clock::Clock;
use crate::driver::record::{Journal, Recorder};
use crate::driver::sources::Sources;
use crate::driver::store::JobStore;
use crate::driver::{self, Driver, JobRun, Talk};
use crate::engine::local::Local;
use crate::engine::{Engine as _, NotLeased};
use crate::front::document::detach::Said;
use crate::front::preparing::{self, Voice, Watch};
use crate::history::{Error, Home};
use crate::host::inventory::{self, Extras};
use crate::rendezvous::StoreDoor;
use crate::screen::{self, Screen, Style};
use crate::secrets;
use crate::views::errors;

/// Runs the job and returns the exit code. The process must have only one thread.
pub(crate) fn launch(mut spec: LaunchSpec, env: BTreeMap<String, String>) -> u8 {
    let token = token::complete(&mut spec);
    torch::complete(&mut spec);
    let spec = Arc::new(spec);
    let style = talk(&spec).style();
    let result = if let Err(diagnostic) = token {
        Err(diagnostic)
    } else if spec.own.dry_run {
        dry(&spec, env, &style)
    } else {
        run(&spec, env, &style)
    };
    result.unwrap_or_else(|diagnostic| {
        report(&style, talk(&spec).output, &diagnostic);
        let code = diagnostic.exit_code();
        if spec.own.detach {
            Said::Failed(diagnostic).say();
        }
        code
    })
}

fn talk(spec: &LaunchSpec) -> Talk {
    let own = &spec.own;
    Talk {
        // A detached launch writes text to its log.
        output: if own.detach { OutputMode::Human } else { own.output },
        mirror: own.mirror,
        show: own.show.clone(),
        stdin: own.stdin.clone(),
        ascii: own.ascii,
        no_progress: own.no_progress,
        detached: own.detach,
    }
}

/// Prints a diagnostic before anything is started.
fn report(style: &Style, output: OutputMode, diagnostic: &Diagnostic) {
    screen::say(&style.diagnostic(diagnostic));
    if output == OutputMode::Json {
        let _ = screen::write_json(&errors::line(diagnostic));
    }
}

fn dry(spec: &LaunchSpec, env: BTreeMap<String, String>, style: &Style) -> Result<u8, Diagnostic> {
    let inventory = inventory::gather(env, Extras::of(&spec.request));
    let mut held = Vec::new();
    let mut lease = |request| {
        let (leased, leases) = umiak_sys::ports::lease(&request).map_err(NotLeased::TooFew)?;
        held.extend(leases);
        Ok(leased)
    };
    let mut outline = prepare::outline(&spec.request, &inventory, &mut lease)?;
    torch::suppose_logs(&spec.request, &mut outline);
    let share = Share::without_others(&spec.request, &inventory, &outline.layout, &outline.ports)?;
    let share = share.relaying(outline.ports.stores.get(2));
    // Not created: the plan shows a placeholder.
    let (plan, _) = outline.complete(spec, &inventory, share, std::env::temp_dir().join("umiak-XXXXXX"), None);
    talk(spec).console(&plan)?;
    for notice in &plan.notices {
        report(style, OutputMode::Human, notice);
    }
    let known = secrets::known();
    match spec.own.output {
        OutputMode::Json => screen::write_json(&plan.json(&known))?,
        OutputMode::Human => screen::write_text(&crate::views::plan::text(&plan, &known))?,
        OutputMode::Quiet => {}
    }
    Ok(0)
}

fn run(spec: &Arc<LaunchSpec>, env: BTreeMap<String, String>, style: &Style) -> Result<u8, Diagnostic> {
    let clock = Clock::start();
    prepare::clean_scratch();
    let orphans = umiak_sys::cgroup::clean_orphans();
    if !orphans.is_empty() {
        let list = orphans.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let notice = Diagnostic::notice(Code::L0027, "stopped processes that a killed umiak had left behind")
            .row("stopped", format!("pid {list}"));
        report(style, OutputMode::Human, &notice);
    }
    // Signals are blocked before the fork, so that none is missed between the guardian's start and our loop.
    let sources = Sources::new()?;
    let engine = Local::start(spec.own.isolate, None)?;
    let scratch = prepare::Scratch::choose(&spec.request.logs.dir);
    let screen = talk(spec).screen(style)?;
    let journal = None;
    // Threads come after the fork.
    let watch = Some(Watch::start(&sources, voice(spec, style))?);
    let (shown, store) = (Vec::new(), None);
    let mut around =
        Around { spec: Arc::clone(spec), style, clock, sources, engine, scratch, screen, journal, store, shown, watch };
    let prepared = prepare(&mut around, env);
    let Around { spec, mut sources, mut engine, scratch, screen, journal, store, shown, watch, .. } = around;
    drop(watch);
    let spec = &spec;
    let (mut door, plan) = match prepared {
        Ok(prepared) => prepared,
        Err(ended) => {
            // A guardian that died cannot remove it; one that is alive finds nothing to remove.
            scratch.remove();
            if let Some(Ok(journal)) = journal {
                let _ = std::fs::remove_dir_all(journal.run.path());
            }
            // Pending output comes before the error.
            sources.finish(screen);
            return match ended {
                NotRun::Wrong(diagnostic) => Err(*diagnostic),
                NotRun::Code(code) => Ok(code),
            };
        }
    };
    let machine = machine(spec, &plan, door.peers.is_some());
    let mut notices = plan.notices.clone();
    let recorder = record(journal, &mut engine, &mut notices);
    notices.extend(door.start_logs(&plan));
    let (talk, style) = (talk(spec), style.clone());
    // A launched job has its devices from the start.
    let pool = Pool::default();
    let mut job = JobRun::new(None, machine, plan, pool);
    let is_shared = spec.request.nodes != Nodes::One;
    job.stores = store.into_iter().map(|StoreDoor { stores, id, .. }| JobStore::new(stores, id, is_shared)).collect();
    let run = driver::Run::new(talk, style, clock, sources, screen, recorder);
    let mut driver = Driver::of_job(run, Box::new(engine), Box::new(door), job);
    driver.announce(&notices)?;
    if spec.own.detach {
        driver.run.recorder.check_written()?;
    }
    for notice in &shown {
        driver.run.record_notice(None, notice);
    }
    if spec.own.detach {
        let run = driver.run.recorder.run_name().and_then(|run| run.parse().ok());
        notices.into_iter().map(Said::Notice).chain([Said::Begun(run)]).for_each(|said| said.say());
        umiak_sys::helper::silence_stdout();
    }
    driver.run()
}

fn voice(spec: &LaunchSpec, style: &Style) -> Voice {
    Voice { style: style.clone(), output: talk(spec).output, codes: code_style(spec) }
}

fn code_style(spec: &LaunchSpec) -> CodeStyle {
    let request = &spec.request;
    CodeStyle {
        codes: request.exit_codes,
        generation: request.generation(),
        document: false,
        etcd: nodes_in_etcd(request),
    }
}

/// Fixed or a range, if the nodes meet in etcd.
fn nodes_in_etcd(request: &Request) -> Option<NodeCount> {
    let Nodes::Etcd { nodes, .. } = &request.nodes else { return None };
    let is_range = request.elastic.as_ref().is_some_and(|elastic| elastic.min < *nodes);
    Some(if is_range { NodeCount::Range } else { NodeCount::Fixed })
}

fn machine(spec: &LaunchSpec, plan: &Plan, is_shared: bool) -> Machine {
    let machine = Machine::new(plan.job.clone(), code_style(spec), fastrand::u64(..));
    let mut machine = machine.ranks_from(plan.first_rank()).numbered(plan.numbers()).joining_at(plan.attempt);
    machine.set_changes(plan.topology().changes);
    restart::expect_elsewhere(&mut machine, plan);
    if is_shared {
        machine.share();
    }
    machine
}

fn begin_journal() -> Result<Journal, Error> {
    if let Ok(home) = Home::from_environment() {
        preparing::at(home.path());
    }
    Journal::begin("local").inspect(|journal| preparing::made(journal.run.path()))
}

/// The record of the run, if it has one.
fn record(begun: Option<Result<Journal, Error>>, engine: &mut Local, notices: &mut Vec<Diagnostic>) -> Recorder {
    let journal = begun.and_then(|journal| {
        let not_recorded = |error: &Error| {
            Diagnostic::notice(Code::J0001, "this run is not recorded")
                .row("reason", error.diagnostic().message)
                .hint("set `UMIAK_HOME` to a writable directory, or use `--no-record`")
        };
        journal.inspect_err(|error| notices.push(not_recorded(error))).ok()
    });
    // The guardian outlives a killed launch until the last rank is gone. The run ends with it.
    if let Some(journal) = &journal {
        engine.keep(journal.writer.lock());
    }
    Recorder::new(journal, Began::Submitted)
}

/// The state of a launch during preparation.
struct Around<'a> {
    spec: Arc<LaunchSpec>,
    style: &'a Style,
    clock: Clock,
    sources: Sources,
    engine: Local,
    scratch: prepare::Scratch,
    screen: Screen,
    /// Begun early if the name of the run is needed.
    journal: Option<Result<Journal, Error>>,
    /// Torch's store, if this node hosts it.
    store: Option<StoreDoor>,
    /// Notices that were shown and are not recorded yet.
    shown: Vec<Diagnostic>,
    /// Reads signals while this thread prepares.
    watch: Option<Watch>,
}

impl Around<'_> {
    /// The name of the run, if this is the only node and records it.
    fn run_name(&mut self) -> Option<String> {
        if self.spec.own.no_record || !matches!(self.spec.request.nodes, Nodes::One) {
            return None;
        }
        let journal = self.journal.get_or_insert_with(begin_journal);
        journal.as_ref().ok().map(|journal| journal.run.id().to_string())
    }

    /// Begins the record of the run, which gives it its number. With several nodes, only the coordinator's records it; with
    /// etcd each may become the coordinator.
    fn begin_record(&mut self, peers: Option<&Peers>) {
        if !self.spec.own.no_record && peers.is_none_or(|peers| peers.is_host || peers.may_move()) {
            self.journal.get_or_insert_with(begin_journal);
        }
    }

    fn notice(&self, notice: &Diagnostic) {
        if self.spec.own.output == OutputMode::Human {
            self.screen.talk(self.style.diagnostic(notice));
        }
    }

    /// Reads signals in this thread again. Fails if one has arrived.
    fn hear_signals(&mut self) -> Result<(), Interrupted> {
        let Some(signal) = self.watch.take().and_then(Watch::finish) else { return Ok(()) };
        let voice = voice(&self.spec, self.style);
        if voice.output == OutputMode::Human {
            self.screen.talk(voice.stopped(signal));
        }
        Err(Interrupted { signal, code: voice.code(signal) })
    }

    /// Leaves them to the other thread again.
    fn leave_signals(&mut self) -> Result<(), Diagnostic> {
        self.watch = Some(Watch::start(&self.sources, voice(&self.spec, self.style))?);
        Ok(())
    }

    /// Shows a notice now, and records it once there is a record.
    fn notice_and_record(&mut self, notice: Diagnostic) {
        self.notice(&notice);
        self.shown.push(notice);
    }

    /// Shows a line about other nodes.
    fn say(&self, text: &str) {
        if self.spec.own.output == OutputMode::Human {
            self.screen.talk(words::nodes(self.style, text));
        }
    }
}

/// Why the job does not run.
enum NotRun {
    /// An error to show.
    Wrong(Box<Diagnostic>),
    /// The exit code; the reason has been shown.
    Code(u8),
}

/// A signal arrived while the job was prepared, and was shown.
struct Interrupted {
    signal: i32,
    code: u8,
}

impl From<Interrupted> for NotRun {
    fn from(interrupted: Interrupted) -> Self {
        Self::Code(interrupted.code)
    }
}

impl From<Diagnostic> for NotRun {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Wrong(Box::new(diagnostic))
    }
}

/// Plans with ports that the guardian holds, joins the other nodes, if any, and writes the files that must exist before
/// the first rank starts.
fn prepare(around: &mut Around<'_>, env: BTreeMap<String, String>) -> Result<(LaunchDoor, Arc<Plan>), NotRun> {
    let spec = Arc::clone(&around.spec);
    let inventory = inventory::gather(env, Extras::of(&spec.request));
    // Registered before it exists, so that it is removed even if this process is killed.
    around.engine.remove_at_end(around.scratch.candidates());
    let mut taken = match take(around, &inventory) {
        Err(diagnostic) if matches!(spec.request.nodes, Nodes::List { .. } | Nodes::Master { .. }) => {
            around.hear_signals()?;
            return Err(refuse(around, &inventory, diagnostic));
        }
        taken => taken?,
    };
    hook::before_first(around, &taken.outline.log_dir)?;
    store::open(around, &taken)?;
    let relay = relay::open(&around.spec.request, taken.outline.layout.address, &mut taken.outline.ports)?;
    let spec = Arc::clone(&around.spec);
    let (share, peers, start) = if spec.request.nodes == Nodes::One {
        let outline = &taken.outline;
        (Share::without_others(&spec.request, &inventory, &outline.layout, &outline.ports)?, None, None)
    } else {
        around.hear_signals()?;
        let (share, peers, start) = peers::meet(around, &inventory, &taken.outline)?;
        around.leave_signals()?;
        (share, Some(peers), Some(start))
    };
    let attempt = start.as_ref().map_or(FIRST_ATTEMPT, |start| start.attempt);
    let begun = relay::begin(relay, share);
    around.begin_record(peers.as_ref());
    let spec = Arc::clone(&around.spec);
    let taken = torch::choose_logs(around, taken);
    let completed = taken.and_then(|taken| {
        let (share, relay) = begun?;
        Ok((complete(&spec, &inventory, taken, share, start.as_deref())?, relay))
    });
    let (Completed { plan, run, log_dir, pod_log }, relay) = match completed {
        Ok(completed) => completed,
        Err(diagnostic) => {
            return Err(match peers {
                Some(peers) => peers.give_up(attempt, diagnostic).into(),
                None => diagnostic.into(),
            });
        }
    };
    if let Err(interrupted) = around.hear_signals() {
        if let Some(mut peers) = peers {
            let signal = Some(interrupted.signal);
            peers.stand(attempt, Stage::Interrupted { signal, kill: false });
            peers.finish();
        }
        return Err(interrupted.into());
    }
    log_dir.share(&mut around.engine);
    let door = LaunchDoor {
        spec: Arc::clone(&spec),
        _log_dir: log_dir,
        _gpu_log: GpuLog::start(&spec.request, &plan),
        inventory: Arc::new(inventory),
        run,
        pod_log,
        late_files: None,
        late_files_due: true,
        told_attempt: attempt,
        peers,
        hook: None,
        next: None,
        relay,
        servers: None,
        logs: None,
        leaving: Leaving::NotYet,
        tell_at: None,
        summary: None,
        why: None,
        places: Vec::new(),
        error: None,
        awaits: None,
        is_spare: false,
    };
    Ok((door, Arc::new(plan)))
}

/// All that is there before the first rank starts.
struct Completed {
    plan: Plan,
    run: Run,
    log_dir: log_dir::LogDirLock,
    pod_log: Option<PodLog>,
}

/// The plan with every node's share, and the files that ranks expect.
fn complete(
    spec: &LaunchSpec,
    inventory: &Inventory,
    taken: Taken,
    share: Share,
    start: Option<&Start>,
) -> Result<Completed, Diagnostic> {
    let Taken { outline, log_dir, shared, directory } = taken;
    let (mut plan, run) = outline.complete(spec, inventory, share, directory, start);
    talk(spec).console(&plan)?;
    plan.notices.extend(shared);
    info!(
        pod = run.pod_name,
        ranks = plan.replicas.len(),
        world = plan.topology().world_size().get(),
        awaited = plan.awaited.len(),
        files = plan.files.len(),
        notices = plan.notices.len(),
        "planned"
    );
    prepare::write_files(&spec.request, inventory, &mut plan)?;
    let pod_log = open_pod_log(&spec.request, inventory, &plan)?;
    Ok(Completed { plan, run, log_dir, pod_log })
}

/// What this node's ranks need, before the other nodes are asked.
struct Taken {
    outline: prepare::Outline,
    log_dir: log_dir::LogDirLock,
    shared: Option<Diagnostic>,
    directory: std::path::PathBuf,
}

fn take(around: &mut Around<'_>, inventory: &Inventory) -> Result<Taken, Diagnostic> {
    let mut outline = prepare::outline(&around.spec.request, inventory, &mut |request| {
        around.engine.lease_ports(StepIndex::default(), request)
    })?;
    let log_dir = match around.spec.request.torch {
        Some(_) => log_dir::LogDirLock::default(),
        None => log_dir::take(around, &mut outline)?,
    };
    let shared = lease_gpus(&mut around.engine, &outline.layout.assignment.gpus(inventory))?;
    let directory = around.scratch.make()?;
    Ok(Taken { outline, log_dir, shared, directory })
}

/// This node cannot start. That is shown first: the other nodes may take a while to hear it.
fn refuse(around: &mut Around<'_>, inventory: &Inventory, diagnostic: Diagnostic) -> NotRun {
    let is_shown = around.spec.own.output == OutputMode::Human && !around.spec.own.detach;
    if is_shown {
        around.screen.talk(around.style.diagnostic(&diagnostic));
    }
    peers::tell_unable(around, inventory, &diagnostic);
    if is_shown { NotRun::Code(diagnostic.exit_code()) } else { diagnostic.into() }
}

/// Leases the GPUs of this node's ranks, so that runs of documents use others. A GPU that another run has leased is used
/// anyway, with a notice.
fn lease_gpus(engine: &mut Local, gpus: &[(u32, String)]) -> Result<Option<Diagnostic>, Diagnostic> {
    if gpus.is_empty() {
        return Ok(None);
    }
    let candidate = |(minor, label): &(u32, String)| (*minor, Device { label: label.clone(), position: 0 });
    let candidates: Vec<(u32, Device)> = gpus.iter().map(candidate).collect();
    let held = engine.lease_devices(StepIndex::default(), &candidates, candidates.len() as u32)?;
    let is_held = |label: &String| held.iter().any(|device| device.label == *label);
    let taken: Vec<&str> = gpus.iter().filter(|(_, label)| !is_held(label)).map(|(_, label)| label.as_str()).collect();
    Ok((!taken.is_empty()).then(|| {
        let are = if taken.len() == 1 { "is" } else { "are" };
        Diagnostic::notice(Code::L0030, format!("gpu {} {are} in use by another run of umiak", taken.join(", ")))
            .hint("both runs share it; choose other devices with `--gpus`, or wait for that run to end")
    }))
}

fn open_pod_log(request: &Request, inventory: &Inventory, plan: &Plan) -> Result<Option<PodLog>, Diagnostic> {
    if request.paddle.is_none() {
        return Ok(None);
    }
    let path = plan.logs.dir().join(pod_log_name(plan));
    preparing::at(&path);
    let mut log = PodLog::open(&path).map_err(|error| prepare::file_error(&path, &error))?;
    log.lines(&umiak_core::plan::paddle_lines::at_start(request, inventory, plan));
    Ok(Some(log))
}
