//! `umiak launch`: a checked command line, performed.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::launch::{LaunchSpec, OutputMode};
use umiak_core::model::{Nodes, Request};
use umiak_core::plan::{Inventory, Plan, Run};
use umiak_sys::cgroup::Cgroup;
use umiak_sys::guardian::{Guardian, Options};
use umiak_sys::ports::{LeaseError, LeaseRequest, Leased};
use umiak_sys::protocol::{Command, Notice};
use umiak_sys::wait::Signals;

use crate::screen::{MirrorTo, Screen, Style};

use super::front::{Front, SIGTSTP};
use super::gpu_log::GpuLog;
use super::pod_log::{PodLog, pod_log_name};
use super::several::Peers;
use super::{console, dry_run, inventory, prepare, several};
use crate::clock::Clock;

/// Signals that ask us to stop (SIGHUP, SIGINT, SIGQUIT, SIGTERM) or to pause (SIGTSTP).
const HANDLED: [i32; 5] = [1, 2, 3, 15, SIGTSTP];

/// Runs the job and returns the exit code. To be called while the process has one thread.
pub fn launch(spec: &LaunchSpec, env: BTreeMap<String, String>) -> u8 {
    let style = Style::detect(spec.own.ascii, spec.own.no_progress || spec.own.output != OutputMode::Human);
    let result = if spec.own.dry_run { dry(spec, env, &style) } else { run(spec, env, &style) };
    result.unwrap_or_else(|diagnostic| {
        report(&style, spec.own.output, &diagnostic);
        diagnostic.exit_code()
    })
}

/// An error before anything was started.
fn report(style: &Style, output: OutputMode, diagnostic: &Diagnostic) {
    use std::io::Write as _;
    let _ = std::io::stderr().write_all(console::diagnostic(style, diagnostic).as_bytes());
    if output == OutputMode::Json {
        let line = serde_json::json!({ "error": diagnostic });
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

fn dry(spec: &LaunchSpec, env: BTreeMap<String, String>, style: &Style) -> Result<u8, Diagnostic> {
    let inventory = inventory::gather(env, spec.request.numa);
    let mut held = Vec::new();
    let mut lease = |request| {
        let (leased, leases) = umiak_sys::ports::lease(&request)?;
        held.extend(leases);
        Ok::<Leased, LeaseError>(leased)
    };
    let outline = prepare::outline(&spec.request, &inventory, &mut lease)?;
    let share = match spec.request.nodes {
        Nodes::One => outline.alone(&spec.request, &inventory),
        _ => several::rehearse(&spec.request, &inventory, &outline)?,
    };
    // Nothing is made: the plan names the directory a run would make.
    let (plan, _) = outline.complete(spec, &inventory, share, std::env::temp_dir().join("umiak-XXXXXX"));
    for notice in &plan.notices {
        report(style, OutputMode::Human, notice);
    }
    dry_run::print(&plan, spec.own.output)?;
    Ok(0)
}

fn run(spec: &LaunchSpec, env: BTreeMap<String, String>, style: &Style) -> Result<u8, Diagnostic> {
    let clock = Clock::start();
    prepare::clean_scratch();
    let orphans = umiak_sys::cgroup::clean_orphans();
    if !orphans.is_empty() {
        let list = orphans.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let notice = Diagnostic::notice(Code::L0027, "a killed umiak had left processes behind, which were ended")
            .row("ended", format!("pid {list}"));
        report(style, OutputMode::Human, &notice);
    }
    // Blocked before the fork, so that no signal falls between the guardian's start and our loop.
    let signals = Signals::block(&HANDLED).map_err(|error| failed("block signals", &error))?;
    let options = Options { cgroup: Cgroup::create(), isolate: spec.own.isolate };
    let mut guardian = Guardian::start(options).map_err(|error| {
        if !spec.own.isolate {
            return failed("start the guardian", &error);
        }
        Diagnostic::error(Code::L0028, "`--isolate` is not permitted here")
            .row("reason", error.to_string())
            .hint("run as root, allow user namespaces, or leave `--isolate` out")
    })?;
    let scratch = prepare::Scratch::choose(&spec.request.logs.dir);
    // A guardian that is gone cannot remove it; one that lives finds nothing left to do.
    let mut around = Around { spec, style, clock, signals: &signals, guardian: &mut guardian, scratch: &scratch };
    let ready = match prepare(&mut around, env).inspect_err(|_| scratch.remove()) {
        Ok(ready) => ready,
        Err(Ended::Wrong(diagnostic)) => return Err(*diagnostic),
        Err(Ended::Code(code)) => return Ok(code),
    };
    let _gpu_log = GpuLog::start(&spec.request, &ready.plan);
    Front::new(spec, style.clone(), clock, signals, guardian, ready).run()
}

/// What preparing needs of the run.
pub(super) struct Around<'a> {
    pub(super) spec: &'a LaunchSpec,
    pub(super) style: &'a Style,
    pub(super) clock: Clock,
    pub(super) signals: &'a Signals,
    pub(super) guardian: &'a mut Guardian,
    pub(super) scratch: &'a prepare::Scratch,
}

/// Why there is nothing to run.
pub(super) enum Ended {
    /// To be told, with its code.
    Wrong(Box<Diagnostic>),
    /// Told already.
    Code(u8),
}

impl From<Diagnostic> for Ended {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Wrong(Box::new(diagnostic))
    }
}

/// What a front needs to know about the job.
pub(super) struct Prepared {
    pub(super) screen: Screen,
    /// The other nodes, where there are some.
    pub(super) peers: Option<Peers>,
    pub(super) inventory: Arc<Inventory>,
    pub(super) run: Run,
    pub(super) plan: Arc<Plan>,
    pub(super) pod_log: PodLog,
}

/// Plans with ports that the guardian holds, meets the other nodes where there are some, and writes what has to be there
/// before the first rank.
fn prepare(around: &mut Around<'_>, env: BTreeMap<String, String>) -> Result<Prepared, Ended> {
    let (spec, scratch) = (around.spec, around.scratch);
    let inventory = inventory::gather(env, spec.request.numa);
    let tell = |guardian: &mut Guardian, command: &Command| {
        guardian.send(command).map_err(|error| failed("tell the guardian", &error))
    };
    // Before it exists, so that it is removed whatever becomes of us.
    let paths = scratch.candidates().iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    tell(around.guardian, &Command::RemoveAtEnd(paths))?;
    let mut broken = None;
    let guardian = &mut *around.guardian;
    let outline = prepare::outline(&spec.request, &inventory, &mut |request| lease(guardian, request, &mut broken));
    let outline = outline.map_err(|diagnostic| broken.unwrap_or(diagnostic))?;
    prepare::make_log_dir(outline.log_dir())?;
    let shared = lease_gpus(around.guardian, &outline.layout.assignment.gpus(&inventory))?;
    let directory = scratch.make()?;
    tell(around.guardian, &Command::Grace { millis: spec.request.policy.stop.grace.as_millis() as u64 })?;
    let screen = start_screen(around)?;
    let met = if spec.request.nodes == Nodes::One {
        Ok((outline.alone(&spec.request, &inventory), None))
    } else {
        several::meet(around, &screen, &inventory, &outline).map(|(share, peers)| (share, Some(peers)))
    };
    let (share, peers) = match met {
        Ok(met) => met,
        Err(ended) => {
            // What was said while we waited stands before what ends it.
            screen.close();
            screen.join();
            return Err(ended);
        }
    };
    let (mut plan, run) = outline.complete(spec, &inventory, share, directory);
    plan.notices.extend(shared);
    prepare::write_files(&spec.request, &inventory, &mut plan)?;
    let pod_log = open_pod_log(&spec.request, &inventory, &plan)?;
    let (inventory, plan) = (Arc::new(inventory), Arc::new(plan));
    Ok(Prepared { screen, peers, inventory, run, plan, pod_log })
}

fn start_screen(around: &Around<'_>) -> Result<Screen, Diagnostic> {
    let own = &around.spec.own;
    let mirror_to = match (own.output, own.mirror) {
        (OutputMode::Json, true) => MirrorTo::Stderr,
        (OutputMode::Json, false) => MirrorTo::Nowhere,
        (OutputMode::Human | OutputMode::Quiet, _) => MirrorTo::Stdout,
    };
    Screen::start(around.style.clone(), mirror_to).map_err(|error| failed("start its screen", &error))
}

/// Has the guardian lease ports; `broken` is why it could not even be asked.
pub(super) fn lease(
    guardian: &mut Guardian,
    request: LeaseRequest,
    broken: &mut Option<Diagnostic>,
) -> Result<Leased, LeaseError> {
    ask_for_lease(guardian, &Command::Lease(request)).unwrap_or_else(|error| {
        *broken = Some(failed("lease ports", &error));
        Err(LeaseError { wanted: 0, found: 0, low: 0, high: 0, taken: Vec::new(), refused: None })
    })
}

fn ask_for_lease(guardian: &mut Guardian, command: &Command) -> std::io::Result<Result<Leased, LeaseError>> {
    ask(guardian, command, |notice| match notice {
        Notice::Leased(leased) => Some(leased),
        _ => None,
    })
}

fn ask<T>(guardian: &mut Guardian, command: &Command, answer: fn(Notice) -> Option<T>) -> std::io::Result<T> {
    guardian.send(command)?;
    loop {
        let notices = guardian.receive()?.ok_or_else(|| std::io::Error::other("the guardian has ended"))?;
        if let Some(answer) = notices.into_iter().find_map(answer) {
            return Ok(answer);
        }
    }
}

/// Has the guardian hold the GPUs of this node's ranks, so that runs of documents keep away from them. Who names a GPU on
/// the command line gets it even when another run has it, and is told.
fn lease_gpus(guardian: &mut Guardian, gpus: &[(u32, String)]) -> Result<Option<Diagnostic>, Diagnostic> {
    if gpus.is_empty() {
        return Ok(None);
    }
    let candidates: Vec<u32> = gpus.iter().map(|(minor, _)| *minor).collect();
    let command = Command::LeaseGpus { count: candidates.len() as u32, candidates };
    let held = ask(guardian, &command, |notice| match notice {
        Notice::Gpus(minors) => Some(minors),
        _ => None,
    });
    let held = held.map_err(|error| failed("lease GPUs", &error))?;
    let taken: Vec<&str> =
        gpus.iter().filter(|(minor, _)| !held.contains(minor)).map(|(_, label)| label.as_str()).collect();
    Ok((!taken.is_empty()).then(|| {
        let are = if taken.len() == 1 { "is" } else { "are" };
        Diagnostic::notice(Code::L0030, format!("gpu {} {are} in use by another run of umiak", taken.join(", ")))
            .hint("they share it; name other devices with `--gpus`, or wait for that run to end")
    }))
}

fn open_pod_log(request: &Request, inventory: &Inventory, plan: &Plan) -> Result<PodLog, Diagnostic> {
    let path = plan.logs.dir().join(pod_log_name(plan));
    let mut log = PodLog::open(&path).map_err(|error| pod_log_error(&path, &error))?;
    log.lines(&umiak_core::plan::paddle_lines::at_start(request, inventory, plan));
    Ok(log)
}

fn pod_log_error(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(Code::L0014, format!("`{}` cannot be written", path.display()))
        .row("reason", error.to_string())
        .hint("choose another directory with `--log_dir`")
}

pub(crate) fn failed(doing: &str, error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(Code::L0016, format!("umiak could not {doing}")).row("reason", error.to_string())
}
