//! `umiak stop`: asks a supervisor to end its run, or records the end of a run whose supervisor died.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Began, Fact, NodeEnd, Outcome, StopReason, Subject};
use umiak_core::machine::exit_code::STOPPED;
use umiak_core::model::{Exit, StepName};
use umiak_core::status::{NodeStatus, PipelineStatus, Status};

use super::control::{self, ControlAnswer, ControlOrder};
use crate::clock::Clock;
use crate::engine;
use crate::history::journal::{self, Writer};
use crate::history::{Home, Life, RunDir, Supervisor, index, is_held, life_of, tidy};

/// Time for a new supervisor to open its socket.
const BEGINNING: Duration = Duration::from_secs(5);

/// The result of a stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The supervisor was asked, and the run has ended.
    Over,
    /// The supervisor was asked; the end was not waited for.
    Asked,
    /// The supervisor had died; the run is now recorded as ended.
    Closed,
}

pub(crate) fn stop(home: &Home, run: &RunDir, kill: bool, wait: bool) -> Result<Stopped, Diagnostic> {
    let replay = journal::replay(run).map_err(|error| error.diagnostic())?;
    match life_of(run, replay.is_finished()).map_err(|error| error.diagnostic())? {
        Life::Finished => Err(ended(run)),
        Life::Elsewhere { host } => Err(elsewhere(run, &host, "stop")),
        Life::Lost => close(home, run).map(|()| Stopped::Closed),
        // A shared home shows the lock of another host's supervisor, but its socket cannot be reached from here.
        Life::Live { supervisor: Some(supervisor) } if supervisor.is_elsewhere() => {
            Err(elsewhere(run, &supervisor.host, "stop"))
        }
        Life::Live { supervisor } => {
            if supervisor.as_ref().is_some_and(|supervisor| supervisor.control.is_empty()) {
                return Err(deaf(run, supervisor.as_ref()));
            }
            match ask(run, &ControlOrder::Stop { kill }) {
                Ok(answer) if answer.ok => {}
                // The supervisor was killed a moment ago, and its replicas end with it: the end is recorded below.
                _ if !supervisor.as_ref().is_none_or(Supervisor::is_alive) => {}
                Ok(answer) => return Err(no_answer(run, supervisor.as_ref(), &answer.error.unwrap_or_default())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let why = format!("no answer within {} s", control::ANSWER.as_secs());
                    return Err(no_answer(run, supervisor.as_ref(), &why));
                }
                Err(error) => return Err(no_answer(run, supervisor.as_ref(), &error.to_string())),
            }
            if !wait {
                return Ok(Stopped::Asked);
            }
            wait_for_end(run)?;
            // The supervisor may have died before it recorded the end.
            let replay = journal::replay(run).map_err(|error| error.diagnostic())?;
            // A damaged journal does not say it, and is not written to.
            let is_over = replay.status.is_finished() || replay.seen.damage.is_some();
            if is_over { Ok(Stopped::Over) } else { close(home, run).map(|()| Stopped::Closed) }
        }
    }
}

fn ended(run: &RunDir) -> Diagnostic {
    Diagnostic::error(Code::J0025, format!("{} has already ended", run.id()))
        .hint(format!("`umiak show {}` shows how it ended", run.id()))
}

/// Asks the supervisor, which takes the lock a moment before it opens its socket.
pub(super) fn ask(run: &RunDir, order: &ControlOrder) -> std::io::Result<ControlAnswer> {
    let begin = Instant::now();
    loop {
        match control::ask(run, order) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                    && begin.elapsed() < BEGINNING
                    && is_held(run).unwrap_or(false) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// The error for a supervisor on another host.
pub(crate) fn elsewhere(run: &RunDir, host: &str, command: &str) -> Diagnostic {
    Diagnostic::error(Code::J0008, format!("{} belongs to host `{host}`", run.id())).hint(format!(
        "run `umiak {command} {}` on that host, or `ssh {host} umiak {command} {}`",
        run.id(),
        run.id()
    ))
}

/// The error for a run whose socket could not be created.
pub(super) fn deaf(run: &RunDir, supervisor: Option<&Supervisor>) -> Diagnostic {
    let pid = supervisor.map_or(0, |supervisor| supervisor.pid);
    Diagnostic::error(
        Code::J0026,
        format!("{} has no control socket: its directory does not support sockets", run.id()),
    )
    .hint(format!("press Ctrl-C where it runs, or `kill -TERM {pid}`"))
}

pub(super) fn no_answer(run: &RunDir, supervisor: Option<&Supervisor>, why: &str) -> Diagnostic {
    let error = Diagnostic::error(Code::J0026, format!("the supervisor of {} does not respond", run.id()))
        .row("reason", why.to_owned());
    match supervisor {
        Some(supervisor) if umiak_sys::hold::is_paused(supervisor.pid) => error.hint(format!(
            "it is suspended: resume it with `fg` in its terminal or with `kill -CONT {}`, then stop it again",
            supervisor.pid
        )),
        Some(supervisor) => error.hint(format!("`kill -TERM {}` also stops it", supervisor.pid)),
        None => error,
    }
}

fn wait_for_end(run: &RunDir) -> Result<(), Diagnostic> {
    // A stop takes up to its grace period; the death of the supervisor ends the wait too.
    let mut pause = Duration::from_millis(2);
    let begin = Instant::now();
    // Until the lock is released: the next command may need the run.
    while matches!(life_of(run, false).map_err(|error| error.diagnostic())?, Life::Live { .. }) {
        std::thread::sleep(pause);
        let longest = if begin.elapsed() > Duration::from_secs(2) { 200 } else { 20 };
        pause = (pause * 2).min(Duration::from_millis(longest));
    }
    Ok(())
}

/// Records the end of a run whose supervisor died.
fn close(home: &Home, run: &RunDir) -> Result<(), Diagnostic> {
    let mut writer = Writer::open(run).map_err(|error| error.diagnostic())?;
    // The run may have been resumed since the first check.
    if writer.status().is_finished() {
        return Err(ended(run));
    }
    engine::end_orphans(run.path(), &handles(&writer))?;
    let clock = Clock::start();
    let of_run = |fact| (None, fact);
    let begin = [super::record::supervised(Began::Resumed), Fact::Stopping { reason: StopReason::User }];
    let mut facts: Vec<(Option<StepName>, Fact)> = begin.into_iter().map(of_run).collect();
    let nodes = writer.recorded().pipeline.as_deref();
    facts.extend(nodes.into_iter().flat_map(open_nodes));
    facts.extend(lost(writer.status()).into_iter().map(of_run));
    facts.push(of_run(Fact::Finished { outcome: Outcome::Stopped, exit_code: STOPPED }));
    let records = writer.number(clock.now(), facts);
    let written = writer.append(&records).and_then(|()| writer.sync());
    written.map_err(|error| crate::history::cannot_write(&run.journal(), &error))?;
    drop(writer);
    tidy(run);
    if let Some(entry) = index::IndexEntry::of(run) {
        let _ = index::append(home, &entry);
    }
    Ok(())
}

/// What engines call that which they may still run: for a pipeline, of all its steps.
fn handles(writer: &Writer) -> Vec<String> {
    let steps = writer.pipeline().into_iter().flat_map(PipelineStatus::nodes);
    let steps = steps.filter_map(|(_, node)| node.job_status());
    std::iter::once(writer.status()).chain(steps).flat_map(|job| job.handles.iter().cloned()).collect()
}

/// The ends of nodes of a pipeline that had begun and not ended, parts before the whole.
pub(super) fn open_nodes(nodes: &PipelineStatus) -> Vec<(Option<StepName>, Fact)> {
    let mut facts = Vec::new();
    let open = |node: &NodeStatus| node.ended().is_none() && node.times().0.is_some();
    for (name, node) in nodes.nodes().filter(|(_, node)| open(node)).collect::<Vec<_>>().into_iter().rev() {
        let Ok(name) = StepName::new(name) else { continue };
        let of_node = |fact| (Some(name.clone()), fact);
        match node.job_status() {
            Some(job) => {
                facts.extend(lost(job).into_iter().map(of_node));
                facts.push(of_node(Fact::Finished { outcome: Outcome::Stopped, exit_code: STOPPED }));
            }
            None => facts.push(of_node(Fact::Left { end: NodeEnd::Stopped })),
        }
    }
    facts
}

/// Returns the ends of replicas that were live when the supervisor died.
fn lost(status: &Status) -> Vec<Fact> {
    let live = status.replicas.iter().filter(|replica| replica.is_live());
    live.zip(0..)
        .map(|(replica, order)| Fact::Ended {
            subject: Subject { replica: replica.replica.clone(), rank: replica.rank, attempt: replica.attempt },
            exit: Exit::Lost,
            classed: None,
            by_us: false,
            order,
            usage: None,
            log_end: None,
        })
        .collect()
}
