//! `umiak stacks`: what the replicas of a live run are doing, at both ends of the control socket.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{NoStack, Observed, ProcessState, Snapshot, Subject};
use umiak_core::machine::job::AttemptId;
use umiak_core::status::Status;

use super::control::{ControlAnswer, ControlOrder, PATIENCE, answer, end};
use super::stop::{ask, deaf, elsewhere, no_answer};
use super::{Driver, JobRun};
use crate::history::{Life, RunDir, journal, life_of};
use crate::host::observe::{self, Seen};

impl Driver {
    /// Answers in a thread: reading the stacks of many replicas takes a while, and the run goes on. One at a time.
    pub(super) fn tell_stacks(&self, client: Option<UnixStream>) {
        let Some(mut client) = client else { return };
        let refusal = if !self.engine.kind().capabilities().here {
            Some("the replicas of this engine do not run on this host")
        } else if Arc::strong_count(&self.run.asked_stacks) > 1 {
            Some("another `umiak stacks` is running")
        } else {
            None
        };
        if let Some(error) = refusal {
            let text = ControlAnswer { error: Some(error.to_owned()), ..ControlAnswer::default() };
            let _ = answer(&mut client, &text);
            return end(&client);
        }
        let here = self.jobs.iter().filter(|(step, _)| self.engine.capabilities(**step).here).map(|(_, job)| job);
        let live: Vec<(&JobRun, AttemptId)> =
            here.flat_map(|job| job.machine.live_ids().into_iter().map(move |id| (job, id))).collect();
        let ranks = live.iter().filter_map(|(job, id)| {
            let quiet = job.log(*id).and_then(|log| observe::quiet(&log));
            let mut subject = job.machine.subject(id.slot);
            if let Some(step) = &job.step {
                subject.replica = format!("{step}/{}", subject.replica);
            }
            Some((subject, quiet, job.pid(id.slot)?))
        });
        let ranks: Vec<(Subject, Option<Duration>, u32)> = ranks.collect();
        let live = live.len();
        let asked = Arc::clone(&self.run.asked_stacks);
        let worker = std::thread::Builder::new().name("stacks".to_owned()).spawn(move || {
            let text = ControlAnswer { ok: true, error: None, live: Some(live), replicas: look(&ranks) };
            let set = client.set_nonblocking(false).and_then(|()| client.set_write_timeout(Some(PATIENCE)));
            if let Err(error) = set.and_then(|()| answer(&mut client, &text)) {
                debug!(%error, "the client of `stacks` has gone, or does not read");
            }
            // Before the client sees the end: it may ask again at once.
            drop(asked);
            end(&client);
        });
        drop(worker);
    }
}

fn look(ranks: &[(Subject, Option<Duration>, u32)]) -> Vec<Observed> {
    let pids: Vec<(usize, u32)> = ranks.iter().enumerate().map(|(position, (_, _, pid))| (position, *pid)).collect();
    let seen = observe::look(&pids, observe::UNHURRIED, true);
    let mut seen: HashMap<usize, Seen> = seen.into_iter().collect();
    let observed = ranks.iter().enumerate().map(|(position, (subject, quiet, pid))| {
        let Seen { mut snapshot, children, .. } = seen.remove(&position).unwrap_or_else(|| unseen(*pid));
        snapshot.quiet_micros = quiet.and_then(|quiet| u64::try_from(quiet.as_micros()).ok());
        Observed { subject: subject.clone(), snapshot, children }
    });
    observed.collect()
}

/// A process that was not looked at: it has ended, or there was not enough time.
fn unseen(pid: u32) -> Seen {
    let has_ended = umiak_sys::observe::one(pid).is_none();
    let (state, why) =
        if has_ended { (ProcessState::Exiting, NoStack::Ended) } else { (ProcessState::default(), NoStack::NotInTime) };
    Seen { snapshot: Snapshot { state, no_stack: Some(why), ..Snapshot::default() }, ..Seen::default() }
}

/// The answer of a supervisor.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) replicas: Vec<Observed>,
    /// Number of live replicas, also of those without a process yet.
    pub(crate) live: usize,
    /// The run, as recorded.
    pub(crate) status: Status,
}

/// Asks the supervisor of a live run.
pub(crate) fn stacks(run: &RunDir) -> Result<Answer, Diagnostic> {
    let replay = journal::replay(run).map_err(|error| error.diagnostic())?;
    let supervisor = match life_of(run, replay.is_finished()).map_err(|error| error.diagnostic())? {
        Life::Finished | Life::Lost => {
            return Err(Diagnostic::error(Code::J0025, format!("{} is not running", run.id()))
                .hint("stacks can be read only while a run is live; `umiak explain` shows those of a failure"));
        }
        Life::Elsewhere { host } => return Err(elsewhere(run, &host, "stacks")),
        Life::Live { supervisor } => supervisor,
    };
    if let Some(other) = supervisor.as_ref().filter(|supervisor| supervisor.is_elsewhere()) {
        return Err(elsewhere(run, &other.host, "stacks"));
    }
    if supervisor.as_ref().is_some_and(|supervisor| supervisor.control.is_empty()) {
        return Err(deaf(run, supervisor.as_ref()));
    }
    match ask(run, &ControlOrder::Stacks {}) {
        Ok(ControlAnswer { ok: true, live, replicas, .. }) => {
            let live = live.unwrap_or(replicas.len());
            Ok(Answer { replicas, live, status: replay.status })
        }
        Ok(answer) => Err(Diagnostic::error(Code::J0026, format!("the stacks of {} cannot be read", run.id()))
            .row("reason", answer.error.unwrap_or_default())),
        Err(error) => Err(no_answer(run, supervisor.as_ref(), &error.to_string())),
    }
}
