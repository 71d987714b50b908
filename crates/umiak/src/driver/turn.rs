//! One round of waiting, whose results are applied; and the stages of a run, from its first start to its exit code.

use std::io::Write as _;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use tracing::info;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Outcome};
use umiak_core::machine::attempt::Attempt;
use umiak_core::machine::job::{AttemptId, Event};
use umiak_core::model::Instance;
use umiak_sys::files::{self, Contents};

use super::control::{ControlOrder, Order};
use super::probe::Prober;
use super::timers::Timers;
use super::{Core, Driver, short_signal};
use crate::engine::{EngineNews, Swept};

/// The stage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunStage {
    Going,
    /// Attempts have ended; processes that they left behind are being stopped.
    Sweeping,
    /// Waiting for other nodes, until a signal or an order ends the wait.
    Leaving,
}

/// Stops what killed umiak processes left anywhere in the tree of cgroups, without delaying the ranks: the tree may be
/// large. Not awaited: what this run misses, the next one finds.
fn clean_beside_ranks() {
    let work = || {
        // Ranks that start now need the CPU, and a short run need not search at all.
        std::thread::sleep(Duration::from_secs(1));
        umiak_sys::cgroup::clean_all_orphans();
        umiak_sys::memory::clean_all_orphans();
    };
    let _ = std::thread::Builder::new().name("orphans".into()).stack_size(128 << 10).spawn(work);
}

impl Driver {
    /// Records and shows the plan and the notices before anything starts. Fails if a run that must be recorded cannot
    /// be.
    pub(crate) fn announce(&mut self, notices: &[Diagnostic]) -> Result<(), Diagnostic> {
        self.core.recorder.fact(self.core.planned());
        for notice in notices {
            self.core.notice(notice);
        }
        self.flush();
        self.core.recorder.register()?;
        if let Some((run, error)) = self.core.recorder.why_unwritten() {
            let notice = Diagnostic::notice(Code::J0003, format!("{} is not recorded so far", run.id()))
                .row("journal", run.journal().display().to_string())
                .row("reason", error.to_string())
                .hint("the job is not affected; free space there, or set `UMIAK_HOME` to another directory");
            self.core.notice(&notice);
        }
        self.tell_planned();
        Ok(())
    }

    /// Drives the whole run; returns the exit code.
    pub(crate) fn run(mut self) -> Result<u8, Diagnostic> {
        self.dispatch(Event::Start);
        self.core.register_beside_ranks();
        if self.engine.kind().capabilities().here {
            clean_beside_ranks();
        }
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
        // When many attempts end at once, all facts of the previous round take one write.
        self.flush();
        let stage = self.stage();
        let core = &mut self.core;
        let (now, door_at) = (core.clock.now(), self.door.deadline());
        let prober_at = core.prober.as_ref().and_then(Prober::tell_at);
        let retry_at = core.recorder.retry_at().filter(|_| stage == RunStage::Going);
        let heartbeat_at = core.now.heartbeat_at.filter(|_| stage == RunStage::Going);
        let watch_at = core.now.watching.next().filter(|_| stage == RunStage::Going);
        let times = [core.now.timers.next(), retry_at, prober_at, door_at, heartbeat_at, watch_at];
        let timeout = times.into_iter().flatten().map(|at| at.since(now)).min();
        // After the sweep, an engine's descriptor stays readable.
        let mut fds: Vec<BorrowedFd<'_>> =
            self.engine.watch().filter(|_| stage != RunStage::Leaving).into_iter().collect();
        let of_engine = 0..fds.len();
        fds.extend(core.prober.as_ref().map(Prober::as_fd));
        let of_prober = of_engine.end..fds.len();
        fds.extend(core.now.watching.descriptor());
        let of_reader = of_prober.end..fds.len();
        if stage != RunStage::Sweeping {
            fds.extend(self.door.watch());
        }
        let heard = core.sources.wait(&fds, timeout)?;
        let is_ready = |of: Range<usize>| heard.ready[of].contains(&true);
        let (engine, prober) = (is_ready(of_engine), is_ready(of_prober));
        let (reader, door) = (is_ready(of_reader.clone()), is_ready(of_reader.end..fds.len()));
        if engine {
            self.hear_engine();
        }
        if heard.pause {
            self.pause();
        }
        for signal in heard.signals {
            info!(signal, "signal received");
            self.hear_signal(stage, signal);
        }
        for order in heard.orders {
            info!(?order, "order received");
            self.hear_order(stage, order);
        }
        if door || door_at.is_some_and(|at| at <= self.core.clock.now()) {
            self.door.hear(&mut self.core, self.engine.as_mut());
            self.work();
        }
        if prober {
            self.hear_prober();
        }
        if reader {
            self.hear_stacks();
        }
        self.tell_awaited();
        while let Some((timer, attempt)) = self.core.now.timers.take_due(self.core.clock.now()) {
            self.dispatch(Event::Timer(timer, attempt));
        }
        if stage == RunStage::Going {
            self.try_again();
            self.watch_progress();
            self.give_up_starts();
            self.show_status();
            self.tell_heartbeat();
        }
        Ok(())
    }

    /// Handles a signal that asks umiak to end. During the sweep, the second signal overall kills what is left; while
    /// waiting for other nodes, one signal ends the wait. A turn in which a stage ends still counts as part of that
    /// stage.
    fn hear_signal(&mut self, stage: RunStage, signal: i32) {
        match stage {
            RunStage::Going => {
                (self.core.now.last_signal, self.core.now.is_asked) = (signal, true);
                self.dispatch(Event::Signalled { signal });
            }
            RunStage::Sweeping => {
                let is_asked = std::mem::replace(&mut self.core.now.is_asked, true);
                self.tell_sweeping(&short_signal(signal), is_asked);
                if is_asked {
                    self.engine.end(false);
                }
            }
            RunStage::Leaving => self.door.give_up(&mut self.core),
        }
    }

    fn hear_order(&mut self, stage: RunStage, order: Order) {
        match (order.order, stage) {
            (ControlOrder::Ping {}, _) => {}
            (ControlOrder::Stacks {}, _) => self.tell_stacks(order.client),
            (ControlOrder::Stop { kill }, RunStage::Going) => {
                self.core.now.is_asked = true;
                self.dispatch(Event::StopAsked { kill });
            }
            (ControlOrder::Stop { kill }, RunStage::Sweeping) => {
                self.tell_sweeping("`umiak stop`", kill);
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
                    // A resumed supervisor receives the same reason again.
                    if self.core.now.pending.as_ref() != Some(&reason) {
                        self.progress("Waiting", std::slice::from_ref(&reason));
                        self.core.now.pending = Some(reason.clone());
                        self.record(Fact::Pending { reason });
                    }
                    continue;
                }
                // An adopted attempt, whose start is already recorded.
                EngineNews::Started { id, instance } if self.is_known(id, &instance) => continue,
                // The engine has restarted it on its own.
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
                    // Before any output of the attempt is shown.
                    self.tell_started();
                    continue;
                }
                EngineNews::Ready { id } => Event::Ready { id },
                EngineNews::Ended { id, exit, usage, over_limit } => {
                    if over_limit && id.attempt == self.core.machine.number(id.slot) {
                        self.core.now.over_limit.insert(id.slot);
                    }
                    let classed = self.classify(id, &exit, over_limit);
                    Event::Exited { id, exit, classed, usage }
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
                EngineNews::Lost { pid, again, why } => {
                    self.tell_lost(why);
                    self.record(Fact::EngineLost { pid });
                    // The clean-up before the next attempt was lost too.
                    if again && self.core.now.preparing.is_some() {
                        self.engine.clear(self.door.keeps_ports());
                    }
                    Event::EngineLost { again }
                }
            };
            self.dispatch(event);
        }
        self.tell_started();
    }

    /// Handles news of an engine during the sweep; attempts have ended and do not change any more.
    fn hear_sweep(&mut self, news: EngineNews) {
        let now = &mut self.core.now;
        match news {
            // A clear that was under way when the run ended.
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

    /// Appends streamed output to the attempt's log, skipping what the file already has: a resumed supervisor receives
    /// all of it again. Write errors are ignored, as for a replica that writes its own log.
    fn keep_output(&self, id: AttemptId, at: u64, bytes: &[u8]) {
        let Some(log) = self.core.log(id) else { return };
        let Ok(mut file) = files::open(&log.path, Contents::Append, files::READABLE) else { return };
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

    /// Ctrl-Z: suspends the replicas, then this process; on SIGCONT, resumes the replicas. Timers are postponed
    /// meanwhile.
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
        self.watch_again();
    }

    /// Stops the processes that replicas left behind. Timers and probes belong to attempts that have ended, and are
    /// dropped.
    fn begin_sweep(&mut self) {
        let now = &mut self.core.now;
        (now.timers, self.core.prober) = (Timers::default(), None);
        self.engine.release(self.core.machine.step_index());
        self.engine.end(!self.core.now.abandoned);
    }

    /// Exits on the third signal without waiting for replicas. Closing our end of the guardian's socket makes it finish
    /// alone; the end is recorded here, so that the run does not look like one whose supervisor died.
    fn leave(mut self) -> Result<u8, Diagnostic> {
        let code = self.core.machine.code_after(self.core.now.last_signal);
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

    /// Records the end of the run, and removes what only a live run needs.
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
        // The run is over: do not wait for readers of its output. The socket is removed while we hold the lock.
        sources.hush();
        drop(recorder);
        let shown = sources.finish(screen);
        if let Some(error) = missing {
            return Err(error);
        }
        match shown {
            Some(error) => Err(Diagnostic::error(Code::L0016, "events of the run could not be written to stdout")
                .row("reason", error.to_string())
                .row("job", format!("ended with code {code}"))
                .hint(if is_recorded {
                    "`umiak events` prints them from the journal"
                } else {
                    "free space where stdout is written; the replicas' logs are complete"
                })),
            None => Ok(code),
        }
    }

    /// Tries for the last time to write pending facts. Returns an error if they had to be recorded and are lost.
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
