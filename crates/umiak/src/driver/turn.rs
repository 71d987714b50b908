//! One round of waiting, and what arrived is applied; and the stages of a run, from its first start to its exit code.

use std::io::Write as _;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};

use tracing::info;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Outcome};
use umiak_core::machine::attempt::Attempt;
use umiak_core::machine::job::{AttemptId, Event};
use umiak_core::model::Instance;

use super::control::ControlOrder;
use super::probe::Prober;
use super::timers::Timers;
use super::{Core, Driver, short_signal};
use crate::engine::{EngineNews, Swept};

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunStage {
    Going,
    /// Attempts are over: what they left behind is stopped.
    Sweeping,
    /// Other nodes are waited for, until a signal or an order gives that up.
    Leaving,
}

impl Driver {
    /// The plan is recorded and told, and what is worth knowing before anything starts. An error where a run that must be
    /// recorded cannot be.
    pub(crate) fn announce(&mut self, notices: &[Diagnostic]) -> Result<(), Diagnostic> {
        self.core.recorder.fact(self.core.planned());
        for notice in notices {
            self.core.notice(notice);
        }
        self.flush();
        self.core.recorder.register()?;
        self.tell_planned();
        Ok(())
    }

    /// The whole run; returns the exit code.
    pub(crate) fn run(mut self) -> Result<u8, Diagnostic> {
        self.dispatch(Event::Start);
        self.core.register_beside_ranks();
        while self.core.now.end.is_none() && !self.core.now.return_terminal {
            self.turn()?;
        }
        if self.core.now.return_terminal {
            return self.leave();
        }
        info!(end = ?self.core.now.end, "attempts are over");
        self.begin_sweep();
        while self.stage() == RunStage::Sweeping {
            self.turn()?;
        }
        self.tell_swept(&self.core.now.swept.clone().unwrap_or_default());
        while self.door.is_busy(&mut self.core) {
            self.turn()?;
        }
        self.finish()
    }

    fn stage(&self) -> RunStage {
        match (&self.core.now.end, &self.core.now.swept) {
            (None, _) => RunStage::Going,
            (Some(_), None) => RunStage::Sweeping,
            (Some(_), Some(_)) => RunStage::Leaving,
        }
    }

    /// `select`, then `apply`: waits until something arrives, and applies everything that has.
    fn turn(&mut self) -> Result<(), Diagnostic> {
        // Many attempts end at once: one write for all that is left of the round before.
        self.flush();
        let stage = self.stage();
        let core = &mut self.core;
        let (now, door_at) = (core.clock.now(), self.door.deadline());
        let prober_at = core.prober.as_ref().and_then(Prober::tell_at);
        let retry_at = core.recorder.retry_at().filter(|_| stage == RunStage::Going);
        let heartbeat_at = core.now.heartbeat_at.filter(|_| stage == RunStage::Going);
        let times = [core.now.timers.next(), retry_at, prober_at, door_at, heartbeat_at];
        let timeout = times.into_iter().flatten().map(|at| at.since(now)).min();
        // Once it has swept, the end of an engine stays readable.
        let mut fds: Vec<BorrowedFd<'_>> =
            self.engine.watch().filter(|_| stage != RunStage::Leaving).into_iter().collect();
        let of_engine = 0..fds.len();
        fds.extend(core.prober.as_ref().map(Prober::as_fd));
        let of_prober = of_engine.end..fds.len();
        if stage != RunStage::Sweeping {
            fds.extend(self.door.watch());
        }
        let heard = core.sources.wait(&fds, timeout)?;
        let is_ready = |of: Range<usize>| heard.ready[of].contains(&true);
        let (engine, prober, door) =
            (is_ready(of_engine), is_ready(of_prober.clone()), is_ready(of_prober.end..fds.len()));
        if engine {
            self.hear_engine();
        }
        if heard.pause {
            self.pause();
        }
        for signal in heard.signals {
            info!(signal, "signal heard");
            self.hear_signal(stage, signal);
        }
        for order in heard.orders {
            info!(?order, "order heard");
            self.hear_order(stage, order);
        }
        if door || door_at.is_some_and(|at| at <= self.core.clock.now()) {
            self.door.hear(&mut self.core, self.engine.as_mut());
            self.work();
        }
        if prober {
            self.hear_prober();
        }
        self.tell_awaited();
        while let Some((timer, attempt)) = self.core.now.timers.take_due(self.core.clock.now()) {
            self.dispatch(Event::Timer(timer, attempt));
        }
        if stage == RunStage::Going {
            self.try_again();
            self.give_up_starts();
            self.show_status();
            self.tell_heartbeat();
        }
        Ok(())
    }

    /// One that asks us to end. While what is left is swept, the second one in all hurries that; while other nodes are
    /// waited for, one is enough to give that up. A turn that brings the end of its stage still belongs to it.
    fn hear_signal(&mut self, stage: RunStage, signal: i32) {
        match stage {
            RunStage::Going => {
                (self.core.now.last_signal, self.core.now.is_asked) = (signal, true);
                self.dispatch(Event::Signalled { signal });
            }
            RunStage::Sweeping => {
                let is_asked = std::mem::replace(&mut self.core.now.is_asked, true);
                self.tell_sweeping(&format!("{} received", short_signal(signal)), is_asked);
                if is_asked {
                    self.engine.end(false);
                }
            }
            RunStage::Leaving => self.door.give_up(&mut self.core),
        }
    }

    fn hear_order(&mut self, stage: RunStage, order: ControlOrder) {
        match (order, stage) {
            (ControlOrder::Ping {}, _) => {}
            (ControlOrder::Stop { kill }, RunStage::Going) => {
                self.core.now.is_asked = true;
                self.dispatch(Event::StopAsked { kill });
            }
            (ControlOrder::Stop { kill }, RunStage::Sweeping) => {
                self.tell_sweeping("asked by `umiak stop`", kill);
                if kill {
                    self.engine.end(false);
                }
            }
            (ControlOrder::Stop { .. }, RunStage::Leaving) => self.door.give_up(&mut self.core),
        }
    }

    fn hear_engine(&mut self) {
        for news in self.engine.news() {
            let event = match news {
                EngineNews::Output { id, at, bytes } => {
                    self.keep_output(id, at, &bytes);
                    continue;
                }
                _ if self.stage() != RunStage::Going => {
                    self.hear_sweep(news);
                    continue;
                }
                EngineNews::Pending { reason } => {
                    // A supervisor that took over hears it again.
                    if self.core.now.pending.as_ref() != Some(&reason) {
                        self.progress("Waiting", std::slice::from_ref(&reason));
                        self.core.now.pending = Some(reason.clone());
                        self.record(Fact::Pending { reason });
                    }
                    continue;
                }
                // It was adopted, and its start is recorded.
                EngineNews::Started { id, instance } if self.is_known(id, &instance) => continue,
                // The engine has started it again by itself.
                EngineNews::Started { id, instance } if self.is_running(id) => {
                    self.core.now.pending = None;
                    self.core.now.instances.insert(id.slot, instance.clone());
                    self.record(Fact::Started { subject: self.core.machine.subject(id.slot), instance });
                    continue;
                }
                EngineNews::Started { id, instance } => {
                    if id.attempt == self.core.machine.number(id.slot) {
                        self.core.now.pending = None;
                        self.core.now.instances.insert(id.slot, instance.clone());
                    }
                    self.dispatch(Event::Started { id, instance });
                    // Before anything that it does is told.
                    self.tell_started();
                    continue;
                }
                EngineNews::Ready { id } => Event::Ready { id },
                EngineNews::Ended { id, exit, usage, over_limit } => {
                    if over_limit && id.attempt == self.core.machine.number(id.slot) {
                        self.core.now.over_limit.insert(id.slot);
                    }
                    Event::Exited { id, exit, usage }
                }
                EngineNews::Cleared(swept) => {
                    self.tell_swept(&swept);
                    if let Some(attempt) = self.core.now.preparing.take() {
                        self.door.prepare(&mut self.core, self.engine.as_mut(), attempt, &swept);
                        self.work();
                    }
                    continue;
                }
                EngineNews::Swept(_) => continue,
                EngineNews::Lost => {
                    self.tell_lost();
                    Event::EngineLost
                }
            };
            self.dispatch(event);
        }
        self.tell_started();
    }

    /// Attempts are over: what else an engine has to say of them changes nothing.
    fn hear_sweep(&mut self, news: EngineNews) {
        let now = &mut self.core.now;
        match news {
            // What was being cleared when the end came.
            EngineNews::Cleared(cleared) => now.cleared.extend(cleared.stopped),
            EngineNews::Swept(last) if now.swept.is_none() => {
                let stopped = now.cleared.drain(..).chain(last.stopped).collect();
                now.swept = Some(Swept { stopped, ..last });
            }
            _ => {}
        }
    }

    fn is_known(&self, id: AttemptId, instance: &Instance) -> bool {
        id == self.core.machine.id(id.slot) && self.core.now.instances.get(&id.slot) == Some(instance)
    }

    fn is_running(&self, id: AttemptId) -> bool {
        let is_current = id == self.core.machine.id(id.slot);
        is_current && matches!(self.core.machine.attempt_of(id.slot), Some(Attempt::Running { .. }))
    }

    /// Output that is streamed goes into the attempt's log, as far as it is not there yet: a supervisor that takes over
    /// gets all of it again. A log that cannot be written is its reader's problem, as it is with a replica that writes by
    /// itself.
    fn keep_output(&self, id: AttemptId, at: u64, bytes: &[u8]) {
        let Some(log) = self.core.log(id) else { return };
        let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(log.path) else { return };
        let kept = file.metadata().map_or(0, |metadata| metadata.len().saturating_sub(log.start));
        let known = usize::try_from(kept.saturating_sub(at)).unwrap_or(usize::MAX);
        if let Some(new) = bytes.get(known..) {
            let _ = file.write_all(new);
        }
    }

    fn hear_prober(&mut self) {
        for id in self.core.prober.as_mut().map(Prober::listening).unwrap_or_default() {
            self.dispatch(Event::Ready { id });
        }
        if self.core.prober.as_ref().is_some_and(Prober::is_done) {
            self.core.prober = None;
        }
    }

    /// Ctrl-Z: the replicas stop, then we do; when we are continued, so are they. Timers have waited meanwhile.
    fn pause(&mut self) {
        if !self.engine.kind().capabilities().suspend {
            return;
        }
        let live = self.core.machine.live_ids();
        let before = self.core.clock.now();
        self.record(Fact::Paused);
        self.engine.suspend(&live, true);
        self.core.screen.hide_status();
        umiak_sys::wait::stop_ourselves();
        self.engine.suspend(&live, false);
        self.record(Fact::Continued);
        let paused = self.core.clock.now().since(before);
        self.core.now.timers.postpone(paused);
    }

    /// What replicas left behind is stopped. Nothing else is due any more: timers and probes were of attempts that are
    /// over.
    fn begin_sweep(&mut self) {
        let now = &mut self.core.now;
        (now.timers, self.core.prober) = (Timers::default(), None);
        self.engine.release(self.core.machine.step_index());
        self.engine.end(!self.core.now.abandoned);
    }

    /// The third signal: those that do not go are not waited for. Dropping our end of the guardian's socket tells it to
    /// finish alone; the record ends here, or the run would look as if its supervisor had been lost.
    fn leave(mut self) -> Result<u8, Diagnostic> {
        let code = 128u8.wrapping_add(self.core.now.last_signal as u8);
        let live = self.core.machine.live_ids();
        if !live.is_empty() {
            let replicas = live.iter().map(|id| self.core.machine.replica_name(id.slot)).collect();
            self.core.recorder.fact(Fact::Abandoned { replicas });
        }
        self.core.recorder.fact(Fact::Finished { outcome: Outcome::Interrupted, exit_code: code });
        self.flush();
        self.engine.leave();
        match self.close_journal(code) {
            Some(error) => Err(error),
            None => Ok(code),
        }
    }

    /// The end of the run is recorded, and nothing of it stays that only a living run needs.
    fn finish(mut self) -> Result<u8, Diagnostic> {
        let (_, code) = self.core.now.end.unwrap_or((Outcome::Failed, 125));
        self.door.close(&mut self.core);
        if let Some(last) = self.core.now.last.take() {
            self.core.recorder.fact(last);
        }
        self.flush();
        self.core.screen.status(None);
        self.tell_end();
        let missing = self.close_journal(code);
        let Core { mut sources, screen, recorder, .. } = self.core;
        let is_recorded = recorder.is_journal();
        // The run is over: it does not wait for those that read what it said. The socket goes while the lock is ours.
        sources.hush();
        drop(recorder);
        let shown = sources.finish(screen);
        if let Some(error) = missing {
            return Err(error);
        }
        match shown {
            Some(error) => Err(Diagnostic::error(Code::L0016, "facts about the run could not be written to stdout")
                .row("reason", error.to_string())
                .row("the job", format!("ended with code {code}"))
                .hint(if is_recorded {
                    "they are in the journal: `umiak events`"
                } else {
                    "free space where stdout goes; the replicas' logs are complete"
                })),
            None => Ok(code),
        }
    }

    /// The last try to write what could not be written. An error where that had to be.
    fn close_journal(&mut self, code: u8) -> Option<Diagnostic> {
        let took = self.core.clock.started().elapsed();
        let (lost, is_error) = self.core.recorder.close(took, code)?;
        if is_error {
            return Some(lost);
        }
        self.core.screen.alert(self.core.style.diagnostic(&lost));
        None
    }
}
