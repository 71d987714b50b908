//! One round of waiting, whose results are applied; and the stages of a run, from its first start to its exit code.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use tracing::info;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Outcome, StopReason};
use umiak_core::machine::attempt::Attempt;
use umiak_core::machine::job::{AttemptId, Event};
use umiak_core::model::{Instance, StepIndex, Timestamp};
use umiak_sys::files::{self, Contents};

use super::control::{ControlOrder, Order};
use super::probe::Prober;
use super::steps::Steps;
use super::stop::open_nodes;
use super::timers::Timers;
use super::{Door, Driver, JobDriver, JobRun, Run, short_signal, words};
use crate::engine::{Engine, EngineNews, Swept};

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

/// The owner of a descriptor that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    Engine,
    /// The ports of a job that are probed.
    Prober(StepIndex),
    /// The thread that reads the stacks of a job.
    Reader(StepIndex),
    /// Torch's stores of all jobs.
    Stores,
    /// The source of jobs.
    Steps,
    Door,
}

/// All descriptors to wait for, with their owners.
fn watched<'a>(
    stage: RunStage,
    engine: &'a dyn Engine,
    jobs: &'a BTreeMap<StepIndex, JobRun>,
    steps: Option<&'a dyn Steps>,
    door: &'a dyn Door,
) -> Vec<(Watched, BorrowedFd<'a>)> {
    // After the sweep, an engine's descriptor stays readable.
    let engine = engine.watch().filter(|_| stage != RunStage::Leaving);
    let mut watched: Vec<_> = engine.into_iter().map(|fd| (Watched::Engine, fd)).collect();
    for (step, job) in jobs {
        watched.extend(job.prober.as_ref().map(|prober| (Watched::Prober(*step), prober.as_fd())));
        watched.extend(job.now.watching.descriptor().map(|fd| (Watched::Reader(*step), fd)));
    }
    // All jobs share them.
    let stores = jobs.values().find_map(|job| job.stores.first());
    watched.extend(stores.map(|store| (Watched::Stores, store.stores.as_fd())));
    watched.extend(steps.and_then(Steps::watch).map(|fd| (Watched::Steps, fd)));
    if stage != RunStage::Sweeping {
        watched.extend(door.watch().into_iter().map(|fd| (Watched::Door, fd)));
    }
    watched
}

impl Driver {
    /// Records and shows the plan and the notices before anything starts. Fails if a run that must be recorded cannot
    /// be.
    pub(crate) fn announce(&mut self, notices: &[Diagnostic]) -> Result<(), Diagnostic> {
        if self.conducted.is_some() {
            return self.announce_steps(notices);
        }
        let Some(mut job) = self.first() else { return Ok(()) };
        job.core.fact(job.core.job.planned());
        for notice in notices {
            job.core.notice(notice);
        }
        job.flush();
        job.core.run.recorder.register()?;
        if let Some((run, error)) = job.core.run.recorder.why_unwritten() {
            let notice = Diagnostic::notice(Code::J0003, format!("{} is not recorded so far", run.id()))
                .row("journal", run.journal().display().to_string())
                .row("reason", error.to_string())
                .hint("the job is not affected; free space there, or set `UMIAK_HOME` to another directory");
            job.core.notice(&notice);
        }
        job.tell_planned();
        Ok(())
    }

    /// Drives the whole run; returns the exit code.
    pub(crate) fn run(mut self) -> Result<u8, Diagnostic> {
        self.each(|job| job.dispatch(Event::Start));
        self.conduct(|steps, desk| steps.start(desk));
        self.settle();
        self.run.register_beside_ranks();
        if self.engine.kind().capabilities().here {
            clean_beside_ranks();
        }
        while self.end().is_none() && !self.run.return_terminal {
            self.turn()?;
        }
        if self.run.return_terminal {
            return self.leave();
        }
        info!(end = ?self.end(), "attempts are over");
        self.begin_sweep();
        while self.stage() == RunStage::Sweeping {
            self.turn()?;
        }
        let swept = self.run.swept.clone().unwrap_or_default();
        self.tell_swept(&swept);
        while self.first().is_some_and(|mut job| job.door.is_busy(&mut job.core)) {
            self.turn()?;
        }
        self.finish()
    }

    /// How the run ended, once all its attempts have.
    fn end(&self) -> Option<(Outcome, u8)> {
        match &self.conducted {
            Some(conducted) => conducted.steps.end(),
            None => self.jobs.values().next().and_then(|job| job.now.end),
        }
    }

    fn stage(&self) -> RunStage {
        match (self.end(), &self.run.swept) {
            (None, _) => RunStage::Going,
            (Some(_), None) => RunStage::Sweeping,
            (Some(_), Some(_)) => RunStage::Leaving,
        }
    }

    /// The time when there is something to do even if nothing arrives.
    fn next_at(&self, stage: RunStage) -> Option<Timestamp> {
        let is_going = stage == RunStage::Going;
        let Run { recorder, heartbeat_at, .. } = &self.run;
        let tree_at = self.run.tree_due().map(|wait| self.run.clock.now() + wait);
        let while_going = [recorder.retry_at(), *heartbeat_at, tree_at].map(|at| at.filter(|_| is_going));
        let of_job = |job: &JobRun| {
            let prober_at = job.prober.as_ref().and_then(Prober::tell_at);
            [job.now.timers.next(), prober_at, job.now.watching.next().filter(|_| is_going)]
        };
        let of_jobs = self.jobs.values().flat_map(of_job);
        while_going.into_iter().chain([self.door.deadline()]).chain(of_jobs).flatten().min()
    }

    /// `select`, then `apply`: waits until something arrives, and applies everything that has.
    fn turn(&mut self) -> Result<(), Diagnostic> {
        // When many attempts end at once, all facts of the previous round take one write.
        self.with_first(|job| job.flush());
        self.door.settled();
        let stage = self.stage();
        let (now, door_at) = (self.run.clock.now(), self.door.deadline());
        let timeout = self.next_at(stage).map(|at| at.since(now));
        let steps = self.conducted.as_ref().map(|conducted| conducted.steps.as_ref());
        let (owners, fds): (Vec<Watched>, Vec<BorrowedFd<'_>>) =
            watched(stage, self.engine.as_ref(), &self.jobs, steps, self.door.as_ref()).into_iter().unzip();
        let heard = self.run.sources.wait(&fds, timeout)?;
        let is_ready = |(owner, ready): (Watched, bool)| ready.then_some(owner);
        let ready: Vec<Watched> = owners.into_iter().zip(heard.ready).filter_map(is_ready).collect();
        if ready.contains(&Watched::Engine) {
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
        if ready.contains(&Watched::Door) || door_at.is_some_and(|at| at <= self.run.clock.now()) {
            self.with_first(|job| {
                job.door.hear(&mut job.core, job.engine);
                job.work();
            });
        }
        for owner in ready {
            match owner {
                Watched::Prober(step) => self.with(step, |job| job.hear_prober()),
                Watched::Reader(step) => self.with(step, |job| job.hear_stacks()),
                Watched::Stores => self.hear_stores(),
                Watched::Steps => self.conduct(|steps, desk| steps.hear(desk)),
                Watched::Engine | Watched::Door => {}
            }
        }
        self.each(|job| job.hear_timers());
        self.settle();
        if stage == RunStage::Going {
            self.try_again();
            self.each(|job| {
                job.watch_progress();
                job.give_up_starts();
            });
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
                (self.run.last_signal, self.run.is_asked) = (signal, true);
                if self.conducted.is_some() {
                    let reason = StopReason::Signal { signal };
                    return self.stop_steps(reason, false, || Event::Signalled { signal });
                }
                self.each(|job| job.dispatch(Event::Signalled { signal }));
            }
            RunStage::Sweeping => {
                let is_asked = std::mem::replace(&mut self.run.is_asked, true);
                self.tell_sweeping(&short_signal(signal), is_asked);
                if is_asked {
                    self.engine.end(false);
                }
            }
            RunStage::Leaving => self.with_first(|job| job.door.give_up(&mut job.core)),
        }
    }

    fn hear_order(&mut self, stage: RunStage, order: Order) {
        match (order.order, stage) {
            (ControlOrder::Ping {}, _) => {}
            (ControlOrder::Stacks {}, _) => self.tell_stacks(order.client),
            (ControlOrder::Stop { kill }, RunStage::Going) => {
                self.run.is_asked = true;
                if self.conducted.is_some() {
                    return self.stop_steps(StopReason::User, kill, || Event::StopAsked { kill });
                }
                self.each(|job| job.dispatch(Event::StopAsked { kill }));
            }
            (ControlOrder::Stop { kill }, RunStage::Sweeping) => {
                self.tell_sweeping("`umiak stop`", kill);
                if kill {
                    self.engine.end(false);
                }
            }
            (ControlOrder::Stop { .. }, RunStage::Leaving) => {
                self.with_first(|job| job.door.give_up(&mut job.core));
            }
        }
    }

    fn hear_engine(&mut self) {
        for news in self.engine.news() {
            match news {
                EngineNews::Output { id, at, bytes } => {
                    self.with(id.step, |job| job.keep_output(id, at, &bytes));
                }
                EngineNews::Notice(notice) => {
                    self.run.record_notice(None, &notice);
                    self.run.say(|style| style.diagnostic(&notice));
                }
                _ if self.stage() != RunStage::Going => self.hear_sweep(news),
                EngineNews::Started { id, .. } | EngineNews::Ready { id } | EngineNews::Ended { id, .. } => {
                    self.with(id.step, |job| job.hear_attempt(news));
                }
                EngineNews::Cancelled { by } => self.hear_cancelled(&by),
                EngineNews::Accepted { step, .. } | EngineNews::Pending { step, .. } => {
                    self.with(step, |job| job.hear_attempt(news));
                }
                EngineNews::Cleared(_) => self.with_first(|job| job.hear_attempt(news)),
                EngineNews::Swept(_) => {}
                EngineNews::Lost { pid, again, why } => {
                    self.tell_lost(why);
                    self.each(|job| job.lose_engine(pid, again));
                }
                EngineNews::OneLost { kind, pid, again, why } => {
                    self.tell_lost(why);
                    self.each(|job| {
                        if job.core.job.plan.engine == kind.word() {
                            job.lose_engine(pid, again);
                        }
                    });
                }
            }
        }
        self.each(|job| job.tell_started());
    }

    /// The job was cancelled in its cluster: that is a stop by a user.
    fn hear_cancelled(&mut self, by: &str) {
        self.run.is_asked = true;
        self.each(|job| {
            job.core.job.now.cancelled_by = Some(by.to_owned());
            job.record(Fact::Cancelled { by: by.to_owned() });
        });
        if self.conducted.is_some() {
            return self.stop_steps(StopReason::User, false, || Event::StopAsked { kill: false });
        }
        self.each(|job| job.dispatch(Event::StopAsked { kill: false }));
    }

    /// Handles news of an engine during the sweep; attempts have ended and do not change any more.
    fn hear_sweep(&mut self, news: EngineNews) {
        let run = &mut self.run;
        match news {
            // A clear that was under way when the run ended.
            EngineNews::Cleared(cleared) => run.cleared.extend(cleared.stopped),
            EngineNews::Swept(last) if run.swept.is_none() => {
                let stopped = run.cleared.drain(..).chain(last.stopped).collect();
                run.swept = Some(Swept { stopped, ..last });
            }
            _ => {}
        }
    }

    /// Ctrl-Z: suspends the replicas, then this process; on SIGCONT, resumes the replicas. Timers are postponed
    /// meanwhile.
    fn pause(&mut self) {
        let live: Vec<AttemptId> = self.jobs.values().flat_map(|job| job.machine.live_ids()).collect();
        let can_suspend = |step: &StepIndex| self.engine.capabilities(*step).suspend;
        if !self.engine.kind().capabilities().suspend || !self.jobs.keys().all(can_suspend) {
            return;
        }
        let before = self.run.clock.now();
        self.each(|job| job.record(Fact::Paused));
        self.engine.suspend(&live, true);
        self.run.screen.hide_status();
        umiak_sys::wait::stop_ourselves();
        self.engine.suspend(&live, false);
        self.each(|job| job.record(Fact::Continued));
        self.run.redraw_tree();
        let paused = self.run.clock.now().since(before);
        self.each(|job| {
            job.core.job.now.timers.postpone(paused);
            job.watch_again();
        });
    }

    /// Stops the processes that replicas left behind. Timers and probes belong to attempts that have ended, and are
    /// dropped.
    fn begin_sweep(&mut self) {
        let mut abandoned = false;
        for (step, job) in &mut self.jobs {
            (job.now.timers, job.prober) = (Timers::default(), None);
            abandoned |= job.now.abandoned;
            self.engine.release(*step);
        }
        self.engine.end(!abandoned);
    }

    /// Exits on the third signal without waiting for replicas. Closing our end of the guardian's socket makes it finish
    /// alone; the end is recorded here, so that the run does not look like one whose supervisor died.
    fn leave(mut self) -> Result<u8, Diagnostic> {
        self.door.settled();
        let mut code = 125;
        let signal = self.run.last_signal;
        self.each(|job| {
            let machine = &job.core.job.machine;
            code = machine.code_after(signal);
            let live = machine.live_ids();
            if !live.is_empty() {
                let replicas = live.iter().map(|id| machine.replica_name(id.slot)).collect();
                job.core.fact(Fact::Abandoned { replicas });
            }
            job.core.fact(Fact::Finished { outcome: Outcome::Interrupted, exit_code: code });
            job.flush();
        });
        self.run.tell_causes();
        if self.conducted.is_some() {
            code = 128u8.wrapping_add(signal as u8);
            let nodes = self.run.recorder.recorded().and_then(|status| status.pipeline.as_deref());
            for (step, fact) in nodes.map(open_nodes).unwrap_or_default() {
                self.run.recorder.fact(step.as_ref(), fact);
            }
            self.run.recorder.fact(None, Fact::Finished { outcome: Outcome::Interrupted, exit_code: code });
            self.run.write();
        }
        self.engine.leave();
        match self.run.close_journal(code) {
            Some(error) => Err(error),
            None => Ok(code),
        }
    }

    /// Records the end of the run, and removes what only a live run needs.
    fn finish(mut self) -> Result<u8, Diagnostic> {
        self.door.settled();
        let (_, code) = self.end().unwrap_or((Outcome::Failed, 125));
        self.with_first(|job| {
            job.door.close(&mut job.core);
            if let Some(last) = job.core.job.now.last.take() {
                job.core.fact(last);
            }
            job.flush();
            job.core.run.screen.status(None);
            job.tell_end();
        });
        if let (Some(conducted), Some((outcome, exit_code))) = (&self.conducted, self.end()) {
            self.run.recorder.fact(None, Fact::Finished { outcome, exit_code });
            self.run.write();
            self.run.tell_last_tree();
            conducted.steps.tell_end(&self.run);
        }
        let missing = self.run.close_journal(code);
        let Run { mut sources, screen, recorder, .. } = self.run;
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
}

impl Run {
    /// Tries for the last time to write pending facts. Returns an error if they had to be recorded and are lost.
    fn close_journal(&mut self, code: u8) -> Option<Diagnostic> {
        let took = self.clock.started().elapsed();
        let (lost, is_error) = self.recorder.close(took, code)?;
        if is_error {
            return Some(lost);
        }
        self.screen.alert(self.style.diagnostic(&lost));
        None
    }
}

impl JobDriver<'_> {
    /// Handles news about an attempt of this job, or about the engine.
    fn hear_attempt(&mut self, news: EngineNews) {
        let event = match news {
            EngineNews::Accepted { name, .. } => {
                self.progress("Submitted", std::slice::from_ref(&name));
                return self.record(Fact::Accepted { name });
            }
            EngineNews::Pending { reason, .. } => {
                // A resumed supervisor receives the same reason again.
                if self.core.job.now.pending.as_ref() != Some(&reason) {
                    self.progress("Waiting", std::slice::from_ref(&reason));
                    self.core.job.now.pending = Some(reason.clone());
                    self.record(Fact::Pending { reason });
                }
                return;
            }
            // An adopted attempt, whose start is already recorded.
            EngineNews::Started { id, instance } if self.is_known(id, &instance) => return,
            // The engine has restarted it on its own.
            EngineNews::Started { id, instance } if self.is_running(id) => {
                self.core.job.now.pending = None;
                self.core.job.now.instances.insert(id.slot, instance.clone());
                return self.record(Fact::Started { subject: self.core.job.machine.subject(id.slot), instance });
            }
            EngineNews::Started { id, instance } => {
                if id.attempt == self.core.job.machine.number(id.slot) {
                    self.core.job.now.pending = None;
                    self.core.job.now.instances.insert(id.slot, instance.clone());
                }
                self.dispatch(Event::Started { id, instance });
                // Before any output of the attempt is shown.
                return self.tell_started();
            }
            EngineNews::Ready { id } => Event::Ready { id },
            EngineNews::Ended { id, exit, usage, over_limit } => {
                if over_limit && id.attempt == self.core.job.machine.number(id.slot) {
                    self.core.job.now.over_limit.insert(id.slot);
                }
                let classed = self.classify(id, &exit, over_limit);
                Event::Exited { id, exit, classed, usage }
            }
            EngineNews::Cleared(swept) => {
                self.core.run.tell_swept(words::noun(&self.core.job.plan), &swept);
                if let Some(attempt) = self.core.job.now.preparing.take() {
                    self.prepare(attempt, &swept);
                    self.work();
                }
                return;
            }
            EngineNews::Output { .. }
            | EngineNews::Notice(_)
            | EngineNews::Cancelled { .. }
            | EngineNews::Swept(_)
            | EngineNews::Lost { .. }
            | EngineNews::OneLost { .. } => return,
        };
        self.dispatch(event);
    }

    /// The engine is lost, with all its attempts.
    fn lose_engine(&mut self, pid: Option<u32>, again: bool) {
        self.record(Fact::EngineLost { pid });
        // The clean-up before the next attempt was lost too.
        if again && self.core.job.now.preparing.is_some() {
            self.engine.clear(self.door.keeps_ports());
        }
        self.dispatch(Event::EngineLost { again });
    }

    /// Reports late ports, and handles due timers.
    fn hear_timers(&mut self) {
        self.tell_awaited();
        while let Some((timer, attempt)) = self.core.job.now.timers.take_due(self.core.run.clock.now()) {
            self.dispatch(Event::Timer(timer, attempt));
        }
    }

    fn is_known(&self, id: AttemptId, instance: &Instance) -> bool {
        id == self.core.job.machine.id(id.slot) && self.core.job.now.instances.get(&id.slot) == Some(instance)
    }

    fn is_running(&self, id: AttemptId) -> bool {
        let is_current = id == self.core.job.machine.id(id.slot);
        is_current && matches!(self.core.job.machine.attempt_of(id.slot), Some(Attempt::Running { .. }))
    }

    /// Appends streamed output to the attempt's log, skipping what the file already has: a resumed supervisor receives
    /// all of it again. Write errors are ignored, as for a replica that writes its own log.
    fn keep_output(&self, id: AttemptId, at: u64, bytes: &[u8]) {
        let Some(log) = self.core.job.log(id) else { return };
        let Ok(mut file) = files::open(&log.path, Contents::Append, files::READABLE) else { return };
        let kept = file.metadata().map_or(0, |metadata| metadata.len().saturating_sub(log.start));
        let known = usize::try_from(kept.saturating_sub(at)).unwrap_or(usize::MAX);
        if let Some(new) = bytes.get(known..) {
            let _ = file.write_all(new);
        }
    }

    fn hear_prober(&mut self) {
        for id in self.core.job.prober.as_mut().map(Prober::listening).unwrap_or_default() {
            self.dispatch(Event::Ready { id });
        }
        if self.core.job.prober.as_ref().is_some_and(Prober::is_done) {
            self.core.job.prober = None;
        }
    }
}
