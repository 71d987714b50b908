//! Waits for one event, asks the machine, records, performs. It owns the run's state.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::diagnose::kernel::add_over_limit;
use umiak_core::facts::{Evidence, Fact, Outcome, Record, StopReason, Usage};
use umiak_core::formats::launch::OutputMode;
use umiak_core::machine::attempt::Attempt;
use umiak_core::machine::job::{AttemptId, Effect, Event, Machine, Timer};
use umiak_core::mask::Known;
use umiak_core::model::{Endpoint, Exit, Slot, SpawnError, Timestamp};
use umiak_core::plan::document::{self, Placement, Process, Surroundings};
use umiak_core::plan::pool::Pool;
use umiak_sys::wait::{Signals, readable};

use super::control::{Control, Order};
use super::{Talk, tasks};
use crate::clock::{Clock, time_of_day};
use crate::engine::{Engine, Memory, News, Start, Swept};
use crate::history::journal::Writer;
use crate::history::{Home, RunDir, index};
use crate::runtime::kernel::{Ended, Kernel};
use crate::runtime::launch::failed;
use crate::runtime::{console, evidence};
use crate::screen::{Screen, Style};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;
const SIGTSTP: i32 = 20;

/// How often what cannot be written is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// So many are handed to the engine at a time: the first run while directories of the next are made.
const TOGETHER: usize = 32;
/// Ports are looked at so often: at first, and in the long run.
const PROBE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

pub(super) struct Supervisor {
    pub(super) talk: Talk,
    pub(super) style: Style,
    pub(super) clock: Clock,
    pub(super) signals: Signals,
    pub(super) engine: Box<dyn Engine>,
    pub(super) home: Home,
    pub(super) run: RunDir,
    pub(super) journal: Writer,
    pub(super) placement: Placement,
    /// What is written nowhere.
    pub(super) known: Known,
    pub(super) around: Surroundings,
    pub(super) pool: Pool,
    pub(super) kernel: Kernel,
    pub(super) machine: Machine,
    pub(super) screen: Screen,
    pub(super) control: Control,
    pub(super) now: Now,
}

/// Where a supervisor stands: nothing of this is there when it begins.
#[derive(Default)]
pub(super) struct Now {
    /// Facts that the next thing to be done waits for.
    facts: Vec<Fact>,
    /// What follows from what was done.
    queue: VecDeque<Event>,
    timers: BTreeMap<Timer, (u32, Timestamp)>,
    /// Their starts are not in the journal yet.
    unrecorded: Vec<AttemptId>,
    /// They wait for devices.
    waiting: Vec<AttemptId>,
    /// Whose ports are looked at, when next, and how long after that.
    probes: BTreeMap<AttemptId, (Timestamp, Duration)>,
    /// When writing is tried again, and why it has to be.
    broken: Option<(Timestamp, String)>,
    pub(super) pids: HashMap<Slot, u32>,
    /// How the current attempt of each ended, and whether by us.
    pub(super) ends: HashMap<Slot, (Exit, bool)>,
    /// How long each log was when we first signalled its replica: what stands before is its own account.
    log_at_stop: HashMap<Slot, u64>,
    /// Something of their current attempt was killed, because it was at its limit of memory.
    over_limit: HashSet<Slot>,
    /// Since when, and why, everything is being stopped.
    pub(super) stopping: Option<(Instant, StopReason)>,
    pub(super) killed: bool,
    pub(super) abandoned: bool,
    /// Something was told that makes a status line superfluous.
    pub(super) told: bool,
    pub(super) told_started: bool,
    /// The attempt of the job for which room is made.
    preparing: Option<u32>,
    return_terminal: bool,
    /// The terminal is given back after a signal, never before.
    last_signal: i32,
    pub(super) end: Option<(Outcome, u8)>,
    /// The last fact. It waits until nothing is left of the run: whoever reads it may take that for granted.
    last: Option<Fact>,
}

impl Supervisor {
    /// The plan, and what is worth knowing before anything starts.
    pub(super) fn announce(&mut self, notices: &[Diagnostic]) -> Result<(), Diagnostic> {
        let planned = super::begin::planned(&self.placement, &self.run, &self.machine, &self.pool);
        self.now.facts.push(Fact::Planned(planned));
        for notice in notices {
            let message = self.known.masked("", &notice.message);
            self.now.facts.push(Fact::Noticed { code: notice.code.to_string(), message });
            self.say(|style| console::diagnostic(style, notice));
        }
        self.flush();
        if let Some((_, why)) = &self.now.broken {
            return Err(Diagnostic::error(
                Code::J0029,
                format!("`{}` cannot be written", self.run.journal().display()),
            )
            .row("reason", why.clone())
            .hint("free space there, or name another directory with `UMIAK_HOME`"));
        }
        let _ = self.journal.sync();
        self.index();
        self.tell_planned();
        Ok(())
    }

    /// The whole run; returns the exit code.
    pub(super) fn run(mut self) -> Result<u8, Diagnostic> {
        self.dispatch(Event::Start);
        while self.now.end.is_none() && !self.now.return_terminal {
            self.wait_once()?;
        }
        if self.now.return_terminal {
            return self.leave();
        }
        let swept = self.sweep()?;
        self.tell_swept(&swept);
        self.now.facts.extend(self.now.last.take());
        self.flush();
        self.finish()
    }

    /// What replicas left behind is stopped. Who signals once more meanwhile, or asks to kill, does not want to wait for it.
    fn sweep(&mut self) -> Result<Swept, Diagnostic> {
        let mut is_asked = self.now.stopping.is_some_and(|(_, reason)| reason >= StopReason::User);
        let mut swept = Swept::default();
        self.engine.end(!self.now.abandoned);
        loop {
            let clients = self.control.deadline().map(|at| at.saturating_duration_since(Instant::now()));
            let mut fds = vec![self.engine.watch(), self.signals_fd()];
            fds.extend(self.control.watch());
            let ready = readable(&fds, clients).map_err(|error| failed("wait for events", &error))?;
            let news = if ready[0] { self.engine.news() } else { Vec::new() };
            for news in news {
                match news {
                    // What was being cleared when the end was asked for.
                    News::Cleared(cleared) => swept.stopped.extend(cleared.stopped),
                    News::Swept(last) => {
                        swept.stopped.extend(last.stopped);
                        return Ok(Swept { remaining: last.remaining, ..swept });
                    }
                    News::Started { .. } | News::Ended { .. } | News::Lost => {}
                }
            }
            let mut hurry = false;
            for _ in self.signals.read().into_iter().filter(|signal| *signal != SIGTSTP) {
                hurry |= std::mem::replace(&mut is_asked, true);
            }
            hurry |= self.control.orders().contains(&Order::Stop { kill: true });
            if hurry {
                self.engine.end(false);
            }
        }
    }

    /// The third signal: those who do not go are not waited for. Dropping our end of the guardian's socket tells it to
    /// finish alone; the record ends here, or the run would look as if its supervisor had been lost.
    fn leave(mut self) -> Result<u8, Diagnostic> {
        let code = 128u8.wrapping_add(self.now.last_signal as u8);
        let live = self.live();
        let replicas: Vec<String> = live.iter().map(|id| self.placement.placed(id.slot).replica.clone()).collect();
        if !replicas.is_empty() {
            self.now.facts.push(Fact::Abandoned { replicas });
        }
        self.now.facts.push(Fact::Finished { outcome: Outcome::Interrupted, exit_code: code });
        self.flush();
        match self.close_journal() {
            Some(error) => Err(lost(&self.run, &error, code)),
            None => Ok(code),
        }
    }

    /// The last try. Nothing stays that only a living run needs, unless what is missing makes it one to be resumed.
    fn close_journal(&mut self) -> Option<std::io::Error> {
        let lost = self.journal.retry().err();
        let _ = self.journal.sync();
        if lost.is_none() && !self.journal.is_removed() {
            let _ = std::fs::remove_file(self.run.secrets());
            // Last, so that whoever finds a run that has ended and is not listed so knows that there is something to
            // tidy.
            self.index();
        }
        lost
    }

    /// The end of the run is recorded, and nothing of it stays that only a living run needs.
    fn finish(mut self) -> Result<u8, Diagnostic> {
        let (_, code) = self.now.end.unwrap_or((Outcome::Failed, 125));
        self.tell_end();
        let missing = self.close_journal();
        // The run is over: nobody has to wait for those who read what it said. The socket goes while the lock is ours.
        let (run, screen, signals) = (self.run, self.screen, self.signals);
        drop(self.control);
        drop(self.journal);
        let shown = screen.finish(&signals);
        if let Some(error) = missing {
            return Err(lost(&run, &error, code));
        }
        match shown {
            Some(error) => Err(Diagnostic::error(Code::L0016, "facts about the run could not be written to stdout")
                .row("reason", error.to_string())
                .row("the job", format!("ended with code {code}"))
                .hint("they are in the journal: `umiak events`")),
            None => Ok(code),
        }
    }

    /// `select`: one round of waiting, then everything that has arrived is applied.
    fn wait_once(&mut self) -> Result<(), Diagnostic> {
        let now = self.clock.now();
        let timers = self.now.timers.values().map(|(_, at)| *at);
        let probes = self.now.probes.values().map(|(at, _)| *at);
        let retry = self.now.broken.as_ref().map(|(at, _)| *at);
        let clients = self.control.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timers.chain(probes).chain(retry).map(|at| at.since(now)).chain(clients).min();
        let mut fds = vec![self.engine.watch(), self.signals_fd()];
        fds.extend(self.control.watch());
        let ready = readable(&fds, timeout).map_err(|error| failed("wait for events", &error))?;
        if ready[0] {
            self.hear_engine();
        }
        if ready[1] {
            self.hear_signals();
        }
        self.hear_orders(ready[2..].contains(&true));
        self.hear_timers();
        self.probe();
        self.try_again();
        self.give_up_starts();
        self.show_status();
        Ok(())
    }

    fn signals_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.signals)
    }

    fn hear_engine(&mut self) {
        for news in self.engine.news() {
            let event = match news {
                News::Started { id, pid } => {
                    if id.attempt == self.machine.number(id.slot) {
                        self.now.pids.insert(id.slot, pid);
                    }
                    Event::Spawned { id, pid }
                }
                News::Ended { id, exit, usage, over_limit } => {
                    if over_limit && id.attempt == self.machine.number(id.slot) {
                        self.now.over_limit.insert(id.slot);
                    }
                    Event::Exited { id, exit, usage }
                }
                News::Cleared(swept) => {
                    self.tell_swept(&swept);
                    let Some(attempt) = self.now.preparing.take() else { continue };
                    (self.now.stopping, self.now.killed, self.now.told, self.now.told_started) =
                        (None, false, false, false);
                    Event::Prepared { attempt, ready: swept.remaining.is_empty() }
                }
                News::Swept(_) => continue,
                News::Lost => {
                    let diagnostic = Diagnostic::error(
                        Code::L0017,
                        "the process that held the replicas was killed from outside",
                    )
                    .hint("look for who sent SIGKILL: the kernel's log tells of memory, `last` and `ps` of people");
                    self.screen.alert(console::diagnostic(&self.style, &diagnostic));
                    Event::GuardianLost
                }
            };
            self.dispatch(event);
        }
        self.tell_started();
    }

    fn hear_signals(&mut self) {
        for signal in self.signals.read() {
            if signal == SIGTSTP {
                self.pause();
                continue;
            }
            self.now.last_signal = signal;
            self.dispatch(Event::Signalled { signal });
        }
    }

    fn hear_orders(&mut self, ready: bool) {
        let silent = self.control.deadline().is_some_and(|at| at <= Instant::now());
        if !ready && !silent {
            return;
        }
        for order in self.control.orders() {
            match order {
                Order::Ping {} => {}
                Order::Stop { kill } => self.dispatch(Event::StopAsked { kill }),
            }
        }
    }

    fn hear_timers(&mut self) {
        let now = self.clock.now();
        let due = self.now.timers.iter().filter(|(_, (_, at))| *at <= now);
        let due: Vec<(Timer, u32)> = due.map(|(timer, (attempt, _))| (*timer, *attempt)).collect();
        for (timer, attempt) in due {
            // An earlier one may have disarmed it.
            if self.now.timers.remove(&timer).is_some() {
                self.dispatch(Event::Timer(timer, attempt));
            }
        }
    }

    /// Ctrl-Z: the replicas stop, then we do; when we are continued, so are they. Timers have waited meanwhile.
    fn pause(&mut self) {
        if !self.engine.kind().capabilities().suspend {
            return;
        }
        let live = self.live();
        let before = self.clock.now();
        self.record_now(Fact::Paused);
        self.engine.signal(SIGSTOP, &live);
        self.screen.status(None);
        umiak_sys::wait::stop_ourselves();
        self.engine.signal(SIGCONT, &live);
        self.record_now(Fact::Continued);
        let paused = self.clock.now().since(before);
        for (_, at) in self.now.timers.values_mut() {
            *at = *at + paused;
        }
    }

    pub(super) fn live(&self) -> Vec<AttemptId> {
        let slots = self.placement.replicas.iter().map(|placed| placed.slot);
        let live = slots.filter(|slot| self.machine.attempt_of(*slot).is_some_and(Attempt::is_live));
        live.map(|slot| AttemptId { slot, attempt: self.machine.number(slot) }).collect()
    }

    /// `apply`: asks the machine and performs, in order, until there is nothing left to do. Facts that stand before
    /// an effect are in the journal before it is performed.
    fn dispatch(&mut self, event: Event) {
        self.now.queue.push_back(event);
        self.work();
    }

    fn work(&mut self) {
        loop {
            while let Some(event) = self.now.queue.pop_front() {
                self.apply(event);
            }
            self.flush();
            // Only now: whoever ended and gave its device back may have been the reason to stop those who wait for it.
            let waiting = std::mem::take(&mut self.now.waiting);
            self.spawn(&waiting);
            if self.now.queue.is_empty() {
                return;
            }
        }
    }

    fn apply(&mut self, event: Event) {
        for effect in self.machine.step(event, self.clock.now()) {
            if let Effect::Record(fact) = effect {
                if matches!(fact, Fact::Finished { .. }) {
                    self.now.last = Some(fact);
                    continue;
                }
                self.now.facts.push(fact);
                continue;
            }
            self.flush();
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Record(_) | Effect::Stand(_) | Effect::AwaitElsewhere { .. } => {}
            Effect::Spawn(attempts) if self.now.broken.is_some() => self.now.unrecorded.extend(attempts),
            Effect::Spawn(attempts) => self.spawn(&attempts),
            Effect::Signal { signal, targets } => self.signal(signal, &targets),
            Effect::ArmTimer { timer, attempt, at } => {
                self.now.timers.insert(timer, (attempt, at));
            }
            Effect::DisarmTimer(timer) => {
                self.now.timers.remove(&timer);
            }
            Effect::Await(id) => {
                self.now.probes.insert(id, (self.clock.now(), PROBE.0));
            }
            Effect::Inspect(id) => {
                let mut evidence = self.gather(&[id.slot], &[], |_| id.attempt);
                let evidence = evidence.pop().map(|(_, evidence)| Box::new(evidence));
                // At once: why it failed is recorded and told before what follows from it.
                self.apply(Event::Inspected { id, evidence });
            }
            Effect::TellFailed(finding) => self.tell_failed(&finding),
            Effect::Gather { ended, stopped } => {
                let numbers: HashMap<Slot, u32> =
                    ended.iter().chain(&stopped).map(|slot| (*slot, self.machine.number(*slot))).collect();
                let evidence = self.gather(&ended, &stopped, |slot| numbers[&slot]);
                self.now.queue.push_back(Event::Gathered(evidence));
            }
            Effect::Report(verdict) => self.report(&verdict),
            Effect::Prepare { attempt } => {
                // Nothing of the failed attempt stays but its logs.
                self.now.preparing = Some(attempt);
                self.engine.clear();
            }
            Effect::ReturnTerminal => self.now.return_terminal = true,
            Effect::Finish { outcome, code } => self.now.end = Some((outcome, code)),
        }
    }

    /// What a fact means for us, once it is in the journal.
    fn note(&mut self, fact: &Fact) {
        match fact {
            Fact::Starting { subject } => {
                if let Some(slot) = self.slot(&subject.replica) {
                    self.now.pids.remove(&slot);
                    self.now.ends.remove(&slot);
                    self.now.log_at_stop.remove(&slot);
                    self.now.over_limit.remove(&slot);
                }
            }
            Fact::Ended { subject, exit, by_us, usage, .. } => {
                self.note_end(&subject.replica, subject.attempt, exit, *by_us, *usage);
            }
            Fact::Stopping { reason } => {
                self.screen.let_go(false);
                let first = self.now.stopping.is_none();
                self.now.stopping = Some((self.now.stopping.map_or_else(Instant::now, |(at, _)| at), *reason));
                if first {
                    self.tell_stopping(*reason);
                }
            }
            Fact::Signalled { signal: 9, .. } if self.now.stopping.is_some() => self.now.killed = true,
            Fact::Abandoned { .. } => self.now.abandoned = true,
            Fact::Retrying { scope, subjects, delay_micros, .. } => {
                let ids = subjects.iter().filter_map(|subject| {
                    Some(AttemptId { slot: self.slot(&subject.replica)?, attempt: subject.attempt })
                });
                let ids: Vec<AttemptId> = ids.collect();
                self.engine.forsake(&ids);
                self.tell_retrying(*scope, subjects, Duration::from_micros(*delay_micros));
            }
            Fact::Restarting { attempt, delay_micros, of, .. } => {
                self.tell_restarting(*attempt, *of, Duration::from_micros(*delay_micros));
            }
            _ => {}
        }
    }

    fn note_end(&mut self, replica: &str, attempt: u32, exit: &Exit, by_us: bool, usage: Option<Usage>) {
        let Some(slot) = self.slot(replica) else { return };
        self.now.ends.insert(slot, (exit.clone(), by_us));
        self.now.probes.remove(&AttemptId { slot, attempt });
        if self.mirrored() == slot {
            self.screen.let_go(true);
        }
        let dir = self.run.attempt(replica, attempt);
        tasks::write_end(&dir, &tasks::End { v: 1, replica, attempt, exit, by_us, usage });
        self.pool.give_back(slot);
    }

    pub(super) fn slot(&self, replica: &str) -> Option<Slot> {
        let (role, index) = crate::screen::summary::replica_parts(replica);
        let role = self.placement.job.roles.iter().position(|other| other.name.as_str() == role)?;
        Some(Slot { role: role as u16, index })
    }

    /// Writes the facts that wait, shows them, and does what follows from each. What cannot be written waits in the
    /// journal's own memory.
    fn flush(&mut self) {
        if self.now.facts.is_empty() {
            return;
        }
        let records = self.journal.number(self.clock.now(), std::mem::take(&mut self.now.facts));
        let written = self.journal.append(&records);
        self.show(&records);
        if let Err(error) = written {
            self.wait_for_room(&self.run.journal(), &error);
        }
        for record in &records {
            self.note(&record.fact);
        }
    }

    pub(super) fn record_now(&mut self, fact: Fact) {
        self.now.facts.push(fact);
        self.flush();
    }

    pub(super) fn show(&mut self, records: &[Record]) {
        if self.talk.output != OutputMode::Json {
            return;
        }
        for line in records.iter().filter_map(|record| serde_json::to_string(record).ok()) {
            self.screen.data(format!("{line}\n"));
        }
    }

    /// The journal, or the directory of an attempt, cannot be written. Said once, until all can be written again.
    fn wait_for_room(&mut self, path: &Path, error: &std::io::Error) {
        let first = self.now.broken.is_none();
        self.now.broken = Some((self.clock.now() + RETRY, error.to_string()));
        if first {
            let notice = Diagnostic::notice(
                Code::J0003,
                "the run's directory cannot be written: replicas run on, nothing new is started",
            )
            .row("path", path.display().to_string())
            .row("reason", error.to_string())
            .hint("free space there: writing is tried again every second");
            self.screen.alert(console::diagnostic(&self.style, &notice));
        }
    }

    /// Tries again, and starts what has waited for it.
    fn try_again(&mut self) {
        let now = self.clock.now();
        if self.now.broken.as_ref().is_none_or(|(at, _)| *at > now) {
            return;
        }
        if let Err(error) = self.journal.retry() {
            return self.wait_for_room(&self.run.journal(), &error);
        }
        // They need directories: only when those can be made too is there room again.
        let unrecorded = std::mem::take(&mut self.now.unrecorded);
        self.spawn(&unrecorded);
        if !self.now.unrecorded.is_empty() {
            return;
        }
        self.now.broken = None;
        let parts = ["the run's directory can be written again".to_owned()];
        self.screen.alert(self.style.progress("Recorded", &parts, &time_of_day()));
        self.work();
    }

    /// The run's directory was removed and will not come back: those who wait for it are all that is left.
    fn give_up_starts(&mut self) {
        if self.now.unrecorded.is_empty() || self.now.broken.is_none() || !self.journal.is_removed() {
            return;
        }
        if self.live().iter().all(|id| self.now.unrecorded.contains(id)) {
            self.dispatch(Event::StopAsked { kill: false });
        }
    }

    /// Whose output is shown: the first replica of the first role that decides.
    pub(super) fn mirrored(&self) -> Slot {
        let roles = &self.placement.job.roles;
        let role = roles.iter().position(|role| role.completion.decides).unwrap_or(0);
        Slot { role: role as u16, index: 0 }
    }

    fn spawn(&mut self, attempts: &[AttemptId]) {
        let mut starts = Vec::new();
        for id in attempts {
            let resources = self.placement.role(id.slot).work.resources;
            let Some(given) = self.pool.take(id.slot, resources) else {
                self.now.waiting.push(*id);
                continue;
            };
            let replica = self.placement.placed(id.slot).replica.clone();
            let dir = self.run.attempt(&replica, id.attempt);
            let of_job = self.machine.attempt();
            let devices = &given.devices;
            let attempt = document::Attempt { slot: id.slot, number: id.attempt, of_job, devices, dir: &dir };
            let process = self.placement.process(attempt, &self.around);
            if let Err(error) = self.make_task(*id, &dir, &process) {
                if is_full(&error) {
                    self.pool.give_back(id.slot);
                    self.now.unrecorded.push(*id);
                    self.wait_for_room(&dir, &error);
                    continue;
                }
                let reason = error.to_string();
                let errno = error.raw_os_error().unwrap_or(0);
                let error = SpawnError { doing: "make its directory".to_owned(), errno, reason };
                self.now.queue.push_back(Event::Exited { id: *id, exit: Exit::Spawn(error), usage: None });
                continue;
            }
            let sole = self.placement.replicas.len() == 1 && !self.talk.detached;
            let name = format!("{replica}.{}", id.attempt);
            let memory = resources.memory_bytes.map(|bytes| Memory { name, bytes });
            starts.push(Start { id: *id, process, cpus: given.cpus, memory, inherit_stdin: sole });
            if starts.len() == TOGETHER {
                self.engine.start(std::mem::take(&mut starts));
            }
        }
        if !starts.is_empty() {
            self.engine.start(starts);
        }
    }

    fn make_task(&mut self, id: AttemptId, dir: &Path, process: &Process) -> std::io::Result<()> {
        tasks::make(dir, process, &self.known)?;
        let role = self.placement.role(id.slot);
        std::fs::create_dir_all(document::gloo_dir(&self.around.scratch, role, self.machine.attempt()))?;
        if self.mirrored() == id.slot {
            tasks::touch_log(process)?;
            self.screen.follow(process.log.clone(), 0);
            self.screen.take_up();
        }
        Ok(())
    }

    fn signal(&mut self, signal: i32, targets: &[AttemptId]) {
        // Those that were never started end at once: there is nobody to ask.
        let (unborn, born): (Vec<AttemptId>, Vec<AttemptId>) =
            targets.iter().partition(|id| self.now.unrecorded.contains(id) || self.now.waiting.contains(id));
        self.now.unrecorded.retain(|id| !unborn.contains(id));
        self.now.waiting.retain(|id| !unborn.contains(id));
        for id in unborn {
            let exit = Exit::Signal { signal: SIGTERM, core_dumped: false };
            self.now.queue.push_back(Event::Exited { id, exit, usage: None });
        }
        if born.is_empty() {
            return;
        }
        self.engine.signal(signal, &born);
        for id in born {
            let size = std::fs::metadata(self.log(id)).map_or(0, |metadata| metadata.len());
            self.now.log_at_stop.entry(id.slot).or_insert(size);
        }
    }

    pub(super) fn log(&self, id: AttemptId) -> std::path::PathBuf {
        self.run.attempt(&self.placement.placed(id.slot).replica, id.attempt).join("log")
    }

    fn gather(&mut self, ended: &[Slot], stopped: &[Slot], number: impl Fn(Slot) -> u32) -> Vec<(Slot, Evidence)> {
        let place = |slot: Slot| {
            let log = self.log(AttemptId { slot, attempt: number(slot) });
            let error_file = log.with_file_name("error.json");
            (log, error_file)
        };
        let told = ended.iter().map(|slot| {
            let (log, error_file) = place(*slot);
            (*slot, evidence::read(&log, 0, None, &error_file))
        });
        // Most were healthy: those whose last words before our signal hold no error are not looked at twice.
        let hurried = stopped.iter().filter_map(|slot| {
            let (log, error_file) = place(*slot);
            let end = *self.now.log_at_stop.get(slot)?;
            evidence::has_error(&log, 0, end).then(|| (*slot, evidence::read(&log, 0, Some(end), &error_file)))
        });
        let mut evidence: Vec<(Slot, Evidence)> = told.chain(hurried).collect();
        let ends = ended.iter().chain(stopped).filter_map(|slot| {
            let (pid, (exit, _)) = (*self.now.pids.get(slot)?, self.now.ends.get(slot)?);
            Some(Ended { slot: *slot, pid, exit: exit.clone(), stopped: self.now.log_at_stop.contains_key(slot) })
        });
        let ends: Vec<Ended> = ends.collect();
        self.kernel.explain(&ends, self.run.path(), &mut evidence);
        for end in ends.iter().filter(|end| self.is_over_limit(end)) {
            let Some(bytes) = self.placement.role(end.slot).work.resources.memory_bytes else { continue };
            let position = evidence.iter().position(|(slot, _)| *slot == end.slot).unwrap_or_else(|| {
                evidence.push((end.slot, Evidence::default()));
                evidence.len() - 1
            });
            add_over_limit(&mut evidence[position].1, bytes >> 10);
        }
        evidence
    }

    /// Whether its end is its limit's doing. Of one that we stopped that is sure only when it did not end by our signal.
    fn is_over_limit(&self, end: &Ended) -> bool {
        let by_kernel = end.exit.signal() == Some(SIGKILL) && !self.now.killed;
        self.now.over_limit.contains(&end.slot) && (by_kernel || !end.stopped)
    }

    /// Looks at ports that somebody waits for.
    fn probe(&mut self) {
        let now = self.clock.now();
        let due: Vec<AttemptId> = self.now.probes.iter().filter(|(_, (at, _))| *at <= now).map(|(id, _)| *id).collect();
        for id in due {
            let placed = self.placement.placed(id.slot);
            let ports = placed.ports.iter().flat_map(|(_, ports)| ports);
            let endpoints: Vec<Endpoint> = ports.map(|port| Endpoint { address: placed.host, port: *port }).collect();
            if self.engine.answers(id, &endpoints) {
                self.now.probes.remove(&id);
                self.dispatch(Event::Ready { id });
            } else if let Some((at, pause)) = self.now.probes.get_mut(&id) {
                *at = now + *pause;
                *pause = (*pause * 2).min(PROBE.1);
            }
        }
    }

    /// What `ls` reads. It can be made again from the journal, so losing it is no matter.
    pub(super) fn index(&self) {
        let mut entry = index::IndexEntry::new(self.run.id(), self.journal.status());
        entry.engine.clone_from(&self.placement.engine);
        let labels = self.placement.job.labels.iter();
        entry.labels = labels.map(|(name, value)| (name.clone(), self.known.masked(name, value))).collect();
        let _ = index::append(&self.home, &entry);
    }
}

/// Facts that nobody will read.
fn lost(run: &RunDir, error: &std::io::Error, code: u8) -> Diagnostic {
    Diagnostic::error(Code::J0003, "facts about the run could not be written")
        .row("journal", run.journal().display().to_string())
        .row("reason", error.to_string())
        .row("the job", format!("ended with code {code}"))
        .hint("free space there; the replicas' logs are complete")
}

/// What goes away when somebody makes room.
fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}
