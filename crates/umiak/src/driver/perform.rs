//! Asks the machine and performs its effects, in order. A fact is in the journal before the action that it announces.

use std::path::Path;
use std::time::Instant;

use tracing::trace;
use umiak_core::facts::Fact;
use umiak_core::machine::job::{AttemptId, Effect, Event};
use umiak_core::model::{Exit, FIRST_ATTEMPT, Rank, Slot, SpawnError, SpawnStage, StopHow, Stream, Unit};
use umiak_core::plan::{self, Log};
use umiak_sys::files::{self, Contents};

use super::probe::Prober;
use super::{JobDriver, JobRun, Run};
use crate::engine::{Start, Swept};
use crate::history::artifact;
use crate::host::evidence::LogSize;
use crate::host::log_end;
use crate::screen::{Mirrored, Naming};
use crate::secrets;

const SIGTERM: i32 = 15;

/// Batch size for engines that start replicas one by one: the first run while directories of the next are created.
const TOGETHER: usize = 32;

impl JobDriver<'_> {
    pub(super) fn dispatch(&mut self, event: Event) {
        self.core.job.queue(event);
        self.work();
    }

    /// Applies events until the queue is empty.
    pub(super) fn work(&mut self) {
        loop {
            while let Some(event) = self.core.job.now.queue.pop_front() {
                self.apply(event);
            }
            // Only now: the attempt that released a device may also have been the reason to stop the attempts that wait
            // for it.
            if !std::mem::take(&mut self.core.job.now.is_freed) || self.core.job.now.waiting.is_empty() {
                return;
            }
            self.flush();
            let waiting = std::mem::take(&mut self.core.job.now.waiting);
            self.spawn(&waiting);
        }
    }

    fn apply(&mut self, event: Event) {
        // Other nodes may still send messages about a job that has ended here.
        if self.core.job.now.end.is_some() {
            return;
        }
        trace!(?event);
        let effects = self.core.job.machine.step(event, self.core.run.clock.now());
        trace!(effects = effects.len());
        for effect in effects {
            match effect {
                Effect::Record(fact @ Fact::Finished { .. }) => self.core.job.now.last = Some(fact),
                Effect::Record(fact) => self.prerecord(fact),
                effect => {
                    self.flush();
                    self.perform(effect);
                }
            }
        }
    }

    /// Queues a fact of the machine, completed with what only the driver has.
    fn prerecord(&mut self, mut fact: Fact) {
        if let Fact::Ended { subject, log_end, .. } = &mut fact
            && let Some(log) = subject.rank.and_then(|rank| self.core.job.plan.replica(rank)?.log.as_ref())
        {
            // The file is shared with other attempts and runs.
            *log_end = log_end::read(log, self.core.job.plan.logs.rotates()).ok();
        }
        self.core.fact(fact);
    }

    fn perform(&mut self, effect: Effect) {
        trace!(?effect, "perform");
        match effect {
            Effect::Record(_) => {}
            Effect::Spawn(attempts) if self.core.run.recorder.is_broken() => {
                self.core.job.now.unrecorded.extend(attempts);
            }
            Effect::Spawn(attempts) => self.spawn(&attempts),
            Effect::Stop { how, targets } => self.stop(how, &targets),
            Effect::ArmTimer { timer, attempt, at } => self.core.job.now.timers.arm(timer, attempt, at),
            Effect::DisarmTimer(timer) => self.core.job.now.timers.disarm(timer),
            Effect::Await(id) => self.await_ready(id),
            Effect::AwaitElsewhere { role, attempt } => {
                let missing = self.core.job.machine.missing_elsewhere(role).to_vec();
                if let Some(prober) = self.prober() {
                    prober.await_elsewhere(missing);
                }
                self.door.await_elsewhere(&mut self.core, role, attempt);
            }
            Effect::TellReady { attempt } => self.door.tell_ready(attempt),
            Effect::StartUnready { role } => self.start_unready(role),
            Effect::Inspect(id) => {
                let mut gathered = self.gather(&[id], &[], &[]);
                let evidence = gathered.pop().and_then(|gathered| gathered.evidence).map(Box::new);
                // Applied at once: the cause is recorded and shown before its consequences.
                self.apply(Event::Inspected { id, evidence });
            }
            Effect::TellFailed(finding) => self.tell_failed(&finding),
            Effect::Observe(ids) => self.observe(&ids),
            Effect::Gather { ended, stopped, done } => {
                self.record_observed();
                let ids =
                    |slots: Vec<Slot>| slots.into_iter().map(|slot| self.core.job.machine.id(slot)).collect::<Vec<_>>();
                let (ended, stopped, done) = (ids(ended), ids(stopped), ids(done));
                let gathered = self.gather(&ended, &stopped, &done);
                self.core.job.queue(Event::Gathered(gathered));
            }
            Effect::Release { id, end } => {
                self.door.ended(&self.core, id, &end);
                self.core.job.pool.give_back(id.slot);
                self.core.job.now.is_freed = true;
                if let Some(prober) = &mut self.core.job.prober {
                    prober.forget(id);
                }
            }
            Effect::Forsake(ids) => self.engine.forsake(&ids),
            Effect::Report(verdict) => self.report(&verdict),
            Effect::Prepare { attempt } if self.core.job.step.is_some() => {
                // Other steps run: only what this one left is stopped, and killed when its next attempt starts.
                self.core.job.prober = None;
                let ids: Vec<AttemptId> = self.core.job.slots().map(|slot| self.core.job.machine.id(slot)).collect();
                self.engine.forsake(&ids);
                self.prepare(attempt, &Swept::default());
            }
            Effect::Prepare { attempt } => {
                // Only logs of the failed attempt are kept.
                self.core.job.now.preparing = Some(attempt);
                self.core.job.prober = None;
                self.engine.clear(self.door.keeps_ports());
            }
            Effect::Stand(stand) => self.door.stand(&mut self.core, stand),
            Effect::ReturnTerminal => self.core.run.return_terminal = true,
            Effect::Finish { outcome, code } => self.core.job.now.end = Some((outcome, code)),
        }
    }

    pub(super) fn spawn(&mut self, attempts: &[AttemptId]) {
        let shared = (self.core.job.machine.step_index(), self.core.job.plan.attempt);
        if self.core.run.shared.replace(shared) != Some(shared) {
            self.core.set_console();
            self.engine.share(self.door.common(&self.core.job.plan));
        }
        if self.core.job.machine.is_whole_start(attempts.len())
            && let Err((path, error)) = artifact::make_room(&self.core.job.preparation)
        {
            let reason = format!("`{}`: {error}", path.display());
            for id in attempts {
                self.not_made(*id, &path, &error, reason.clone());
            }
            return;
        }
        let mut starts = Vec::new();
        let can = self.engine.capabilities(self.core.job.machine.step_index());
        let together = match can.unit {
            Unit::Replica => TOGETHER,
            Unit::Gang | Unit::Allocation => usize::MAX,
        };
        if self.core.job.machine.attempt() > FIRST_ATTEMPT {
            self.core.job.now.attempt_started.get_or_insert_with(Instant::now);
        }
        for id in attempts {
            let given = self.core.job.pool.take(id.slot, self.core.job.plan.role(id.slot).work.resources);
            let Some(given) = given else {
                self.core.job.now.waiting.push(*id);
                continue;
            };
            let (of_job, retries) = (self.core.job.machine.attempt(), self.core.job.machine.retries(id.slot));
            let attempt = plan::Attempt { slot: id.slot, number: id.attempt, of_job, retries, given: &given };
            let mut process = self.core.job.plan.process(&attempt);
            process.is_secret = process.shell_line().is_some_and(|line| secrets::are_in(&line.to_string_lossy()));
            process.inherit_stdin = match self.core.job.now.console.stdin {
                Some(reader) => reader == id.slot,
                // A replica has a session of its own: in the background nothing would stop it from reading what is typed
                // for the shell.
                None => process.inherit_stdin && can.stdin && !umiak_sys::terminal::is_background(&std::io::stdin()),
            };
            if let Err(error) = self.door.make(&mut self.core, *id, &process) {
                self.core.job.pool.give_back(id.slot);
                self.not_made(*id, &process.log.path, &error, error.to_string());
                continue;
            }
            if self.core.job.is_shown(id.slot) {
                self.follow(id.slot, &process.log);
            }
            starts.push(Start { id: *id, of_job, retries, process, bound: !given.cpus.is_empty() });
            if starts.len() == together {
                self.start(std::mem::take(&mut starts));
            }
        }
        self.start(starts);
        self.door.starting(&mut self.core, attempts);
    }

    /// Prepares the next attempt of the whole job, after the processes of the last one are gone.
    pub(super) fn prepare(&mut self, attempt: u32, swept: &Swept) {
        self.core.job.stores.iter_mut().for_each(|store| store.renew());
        self.door.prepare(&mut self.core, self.engine, attempt, swept);
    }

    /// A directory or file of an attempt cannot be made: it waits for space, or has ended.
    fn not_made(&mut self, id: AttemptId, path: &Path, error: &std::io::Error, reason: String) {
        if is_full(error) {
            self.core.job.now.unrecorded.push(id);
            self.wait_for_room(path, error);
            return;
        }
        let errno = error.raw_os_error().unwrap_or(0);
        let exit = Exit::Spawn(SpawnError { doing: SpawnStage::MakeDirectory, errno, reason });
        let classed = self.classify(id, &exit, false);
        self.core.job.queue(Event::Exited { id, exit, classed, usage: None });
    }

    /// Starts one unit. A unit that survives its supervisor starts only after its handle is recorded.
    fn start(&mut self, starts: Vec<Start>) {
        let ids: Vec<AttemptId> = starts.iter().map(|start| start.id).collect();
        if let Some(handle) = self.engine.handle(&ids).filter(|_| !ids.is_empty()) {
            self.record(Fact::Submitted { handle });
            if self.core.run.recorder.is_broken() {
                return self.core.job.now.unrecorded.extend(ids);
            }
        }
        if !starts.is_empty() {
            self.engine.start(&self.core.job.plan, starts);
        }
    }

    /// Mirrors the output of this attempt on the console.
    pub(super) fn follow(&mut self, slot: Slot, log: &Log) {
        let key = self.core.job.mirror_key(slot);
        let (Run { screen, talk, .. }, JobRun { step, plan, now, .. }) = (&*self.core.run, &mut *self.core.job);
        let Some(replica) = plan.at(slot).filter(|_| !talk.detached) else { return };
        let Rank(rank) = replica.rank;
        // A file shared by attempts is followed once.
        if now.followed.get(&slot) != Some(&log.path) {
            let is_interactive = now.console.stdin == Some(slot);
            let is_elsewhere = plan.writes_elsewhere();
            let mirror = |stream: Stream, path: &Path, start: u64, naming: Naming| {
                // The replica creates it only a moment later.
                let _ = files::open(path, Contents::Append, files::READABLE);
                let mirrored = Mirrored { key, rank, stream, naming, is_interactive, is_elsewhere };
                screen.follow(mirrored, path.to_owned(), start);
            };
            if let Some(stderr) = &log.stderr {
                let host = umiak_sys::host::name();
                for (stream, path) in [(Stream::Out, &log.path), (Stream::Err, stderr)] {
                    match plan.stream_prefix(replica, stream, &host) {
                        None => {}
                        Some(prefix) if prefix.is_empty() && plan.replicas.len() == 1 => {
                            mirror(stream, path, 0, Naming::Alone);
                        }
                        Some(prefix) => mirror(stream, path, 0, Naming::Text(prefix)),
                    }
                }
            } else {
                let naming = match step {
                    None if now.console.is_prefixed => Naming::Name(replica.name.clone(), now.console.width),
                    None => Naming::Alone,
                    Some(step) if plan.replicas.len() == 1 => Naming::Name(step.to_string(), 0),
                    Some(step) => Naming::Name(format!("{step}/{}", replica.name), 0),
                };
                mirror(Stream::Out, &log.path, log.start, naming);
            }
            now.followed.insert(slot, log.path.clone());
        }
        screen.take_up(key);
    }

    fn stop(&mut self, how: StopHow, targets: &[AttemptId]) {
        // Attempts that were never started end at once.
        let now = &mut self.core.job.now;
        let (unborn, born): (Vec<AttemptId>, Vec<AttemptId>) =
            targets.iter().partition(|id| now.unrecorded.contains(id) || now.waiting.contains(id));
        now.unrecorded.retain(|id| !unborn.contains(id));
        now.waiting.retain(|id| !unborn.contains(id));
        for id in unborn {
            let exit = Exit::Signal { signal: SIGTERM, core_dumped: false };
            now.queue.push_back(Event::Exited { id, exit, classed: None, usage: None });
        }
        if born.is_empty() {
            return;
        }
        // Before the signal: a handler may write at once.
        for id in &born {
            let size = self.core.job.log(*id).map(|log| LogSize::of(&log)).unwrap_or_default();
            self.core.job.now.log_at_stop.entry(id.slot).or_insert(size);
        }
        self.engine.stop(&born, how);
        self.door.stopping(&mut self.core, &born);
    }

    fn await_ready(&mut self, id: AttemptId) {
        if !self.engine.await_ready(id) {
            let at = self
                .core
                .job
                .plan
                .at(id.slot)
                .map(|replica| self.core.job.plan.listens_at(replica))
                .unwrap_or_default();
            if let Some(prober) = self.prober() {
                prober.await_own(id, at);
            }
        }
    }

    /// Without a prober nothing is seen to listen, and the timeout applies.
    fn prober(&mut self) -> Option<&mut Prober> {
        if self.core.job.prober.is_none() {
            self.core.job.prober = Prober::start(self.core.run.clock.now()).ok();
        }
        self.core.job.prober.as_mut()
    }

    /// Gives up starts that wait for a run directory that was removed, once no other attempt is live.
    pub(super) fn give_up_starts(&mut self) {
        let now = &self.core.job.now;
        if now.unrecorded.is_empty() || !self.core.run.recorder.is_broken() || !self.core.run.recorder.is_removed() {
            return;
        }
        if self.core.job.machine.live_ids().iter().all(|id| now.unrecorded.contains(id)) {
            self.dispatch(Event::StopAsked { kill: false });
        }
    }
}

/// True if the error can go away when space is freed.
fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}
