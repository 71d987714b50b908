//! The front: waits for one event, asks the machine, records, performs. It owns the job's state.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{
    Evidence, Fact, Finding, Outcome, Planned, PlannedReplica, Record, StopReason, Usage, VERSION, Verdict,
};
use umiak_core::formats::launch::{LaunchSpec, OutputMode};
use umiak_core::machine::attempt::Attempt;
use umiak_core::machine::exit_code::Style as CodeStyle;
use umiak_core::machine::job::{AttemptId, Effect, Event, Machine, Timer};
use umiak_core::model::{Exit, Slot, SpawnError, Timestamp, signal_name};
use umiak_core::plan::{Plan, paddle_lines};
use umiak_sys::descend;
use umiak_sys::guardian::{self, Guardian};
use umiak_sys::protocol::{Batch, Command, Key, Notice, Process};
use umiak_sys::wait::{Signals, readable};

use crate::screen::summary::{self, Others, Place};
use crate::screen::{MirrorTo, Screen, Status, Style};

use super::clock::{Clock, paddle_stamp};
use super::launch::failed;
use super::pod_log::PodLog;
use super::{console, evidence, prepare};

/// How long what is left may resist SIGKILL before it is reported and left.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Front<'a> {
    spec: &'a LaunchSpec,
    style: Style,
    clock: Clock,
    signals: Signals,
    guardian: Guardian,
    /// The guardian has ended; ranks cannot be reached through it.
    guardian_gone: bool,
    plan: Plan,
    log_starts: Vec<u64>,
    pod_log: PodLog,
    machine: Machine,
    screen: Screen,
    timers: BTreeMap<Timer, Timestamp>,
    seq: u64,
    pids: HashMap<Slot, u32>,
    /// How each replica ended, and whether by us: for the summary.
    ends: HashMap<Slot, (Exit, bool)>,
    /// How long each log was when we first signalled its rank: what stands before is the rank's own account.
    log_at_stop: HashMap<Slot, u64>,
    /// When, why and with what we began to stop.
    stopping: Option<(Instant, StopReason)>,
    killed: bool,
    verdict: Option<Verdict>,
    /// Ranks were still going when the verdict was told.
    told_while_going: bool,
    told_started: bool,
    return_terminal: bool,
    last_signal: i32,
    end: Option<(Outcome, u8)>,
}

impl<'a> Front<'a> {
    #[expect(clippy::too_many_arguments, reason = "the one place where everything comes together")]
    pub(super) fn new(
        spec: &'a LaunchSpec,
        style: Style,
        clock: Clock,
        signals: Signals,
        guardian: Guardian,
        plan: Plan,
        log_starts: Vec<u64>,
        pod_log: PodLog,
    ) -> Result<Self, Diagnostic> {
        let mirror_to = match (spec.own.output, spec.own.mirror) {
            (OutputMode::Json, true) => MirrorTo::Stderr,
            (OutputMode::Json, false) => MirrorTo::Nowhere,
            (OutputMode::Human | OutputMode::Quiet, _) => MirrorTo::Stdout,
        };
        let screen = Screen::start(style.clone(), mirror_to).map_err(|error| failed("start its screen", &error))?;
        let codes = CodeStyle { codes: spec.own.exit_codes, generation: spec.generation };
        let machine = Machine::new(plan.job.clone(), codes);
        Ok(Self {
            spec,
            style,
            clock,
            signals,
            guardian,
            guardian_gone: false,
            plan,
            log_starts,
            pod_log,
            machine,
            screen,
            timers: BTreeMap::new(),
            seq: 0,
            pids: HashMap::new(),
            ends: HashMap::new(),
            log_at_stop: HashMap::new(),
            stopping: None,
            killed: false,
            verdict: None,
            told_while_going: false,
            told_started: false,
            return_terminal: false,
            last_signal: 2,
            end: None,
        })
    }

    /// The whole run; returns the exit code.
    pub(super) fn run(mut self) -> Result<u8, Diagnostic> {
        self.announce();
        self.dispatch(Event::Start);
        let late_files = prepare::write_late_files(&self.plan);
        while self.end.is_none() && !self.return_terminal {
            self.wait_once()?;
        }
        if self.return_terminal {
            // Dropping our end of the socket tells the guardian to finish alone.
            return Ok(128u8.wrapping_add(self.last_signal as u8));
        }
        self.sweep();
        if let Some(thread) = late_files {
            let _ = thread.join();
        }
        let (_, code) = self.end.unwrap_or((Outcome::Failed, 125));
        self.close();
        Ok(code)
    }

    fn announce(&mut self) {
        for notice in std::mem::take(&mut self.plan.notices) {
            self.notice(&notice);
        }
        for line in paddle_lines::on_console(self.spec) {
            self.screen.talk(format!("{}\n", line.replace("<ts>", &paddle_stamp())));
        }
        self.record(&Fact::Planned(self.planned()));
        let log_dir = shown(&self.spec.log_dir);
        let text = console::planned(&self.style, &self.plan, &log_dir);
        self.talk(|_| text);
        // The first trainer of each node is the one on the console.
        if let (Some(replica), Some(start)) = (self.plan.replicas.first(), self.log_starts.first()) {
            self.screen.follow(replica.log.clone(), *start);
        }
    }

    fn notice(&mut self, notice: &Diagnostic) {
        self.record(&Fact::Noticed { code: notice.code.to_string(), message: notice.message.clone() });
        self.talk(|style| console::diagnostic(style, notice));
    }

    /// Lines for people: not in quiet or JSON mode.
    fn talk(&self, text: impl FnOnce(&Style) -> String) {
        if self.spec.own.output == OutputMode::Human {
            self.screen.talk(text(&self.style));
        }
    }

    fn planned(&self) -> Planned {
        Planned {
            job: self.plan.job.name.to_string(),
            umiak: env!("CARGO_PKG_VERSION").to_owned(),
            world_size: self.plan.topology.world_size().get(),
            log_dir: self.plan.log_dir.to_string_lossy().into_owned(),
            replicas: self
                .plan
                .replicas
                .iter()
                .zip(&self.log_starts)
                .map(|(replica, start)| PlannedReplica {
                    replica: self.machine.replica_name(replica.slot),
                    rank: replica.rank,
                    node: replica.node.to_string(),
                    endpoint: replica.endpoint.to_string(),
                    devices: replica.devices.iter().map(|device| device.label.clone()).collect(),
                    log: replica.log.to_string_lossy().into_owned(),
                    log_start: *start,
                })
                .collect(),
        }
    }

    /// `select`: one round of waiting, then everything that has arrived is applied.
    fn wait_once(&mut self) -> Result<(), Diagnostic> {
        let now = self.clock.now();
        let timeout = self.timers.values().min().map(|at| at.since(now));
        let ready = readable(&[self.guardian.as_fd(), self.signals.as_fd()], timeout)
            .map_err(|error| failed("wait for events", &error))?;
        if ready[0] {
            self.hear_guardian();
        }
        if ready[1] {
            for signal in self.signals.read() {
                self.last_signal = signal;
                self.dispatch(Event::Signalled { signal });
            }
            self.show_status();
        }
        let now = self.clock.now();
        let due: Vec<Timer> = self.timers.iter().filter(|(_, at)| **at <= now).map(|(timer, _)| *timer).collect();
        for timer in due {
            self.timers.remove(&timer);
            self.dispatch(Event::Timer(timer));
        }
        self.show_status();
        Ok(())
    }

    fn hear_guardian(&mut self) {
        match self.guardian.receive() {
            Ok(Some(notices)) => {
                for notice in notices {
                    if let Some(event) = self.event(&notice) {
                        self.dispatch(event);
                    }
                }
            }
            Ok(None) | Err(_) => self.lose_guardian(),
        }
    }

    /// The kernel has killed the ranks with the guardian; what they had started has come to us.
    fn lose_guardian(&mut self) {
        self.guardian_gone = true;
        descend::sweep(Duration::ZERO, PATIENCE);
        self.remove_scratch();
        let diagnostic = Diagnostic::error(Code::L0017, "the process that held the ranks was killed from outside")
            .row("guardian", format!("pid {}", self.guardian.pid))
            .hint("look for who sent SIGKILL: the kernel's log tells of memory, `last` and `ps` of people");
        let text = console::diagnostic(&self.style, &diagnostic);
        self.screen.alert(text);
        self.dispatch(Event::GuardianLost);
    }

    fn event(&mut self, notice: &Notice) -> Option<Event> {
        match *notice {
            Notice::Spawned { key, pid } => {
                let id = attempt(key);
                self.pids.insert(id.slot, pid);
                self.tell_started();
                if let Some(line) = paddle_lines::at_started(self.spec, key.index, pid) {
                    self.pod_log.line(&line);
                }
                Some(Event::Spawned { id, pid })
            }
            Notice::Exited { key, status, usage, .. } => {
                let exit = match guardian::decode(status) {
                    guardian::Status::Code(code) => Exit::Code { code },
                    guardian::Status::Signal { signal, core_dumped } => Exit::Signal { signal, core_dumped },
                };
                let usage = Usage {
                    user_micros: usage.user_micros,
                    system_micros: usage.system_micros,
                    max_rss_kib: usage.max_rss_kib,
                };
                Some(Event::Exited { id: attempt(key), exit, usage: Some(usage) })
            }
            Notice::SpawnFailed { key, doing, errno } => {
                let error =
                    SpawnError { doing: doing.words().to_owned(), errno, reason: guardian::describe_errno(errno) };
                Some(Event::Exited { id: attempt(key), exit: Exit::Spawn(error), usage: None })
            }
            Notice::Leased(_) | Notice::Swept { .. } => None,
        }
    }

    /// `apply`: asks the machine and performs, in order, until there is nothing left to do.
    fn dispatch(&mut self, event: Event) {
        let mut queue = VecDeque::from([event]);
        while let Some(event) = queue.pop_front() {
            for effect in self.machine.step(event, self.clock.now()) {
                match effect {
                    Effect::Record(fact) => self.record(&fact),
                    Effect::Spawn(attempts) => self.spawn(&attempts),
                    Effect::Signal { signal, targets } => self.signal(signal, &targets),
                    Effect::ArmTimer { timer, at } => {
                        self.timers.insert(timer, at);
                    }
                    Effect::Gather { ended, stopped } => {
                        queue.push_back(Event::Gathered(self.gather(&ended, &stopped)))
                    }
                    Effect::Report(verdict) => self.report(verdict),
                    Effect::ReturnTerminal => self.return_terminal = true,
                    Effect::Finish { outcome, code } => self.end = Some((outcome, code)),
                }
            }
        }
    }

    fn record(&mut self, fact: &Fact) {
        match fact {
            Fact::Ended { subject, exit, by_us, .. } => {
                let slot = self.plan.replicas.iter().find(|replica| Some(replica.rank) == subject.rank);
                if let Some(replica) = slot {
                    self.ends.insert(replica.slot, (exit.clone(), *by_us));
                }
            }
            Fact::Stopping { reason } => {
                let first = self.stopping.is_none();
                self.stopping = Some((self.stopping.map_or_else(Instant::now, |(at, _)| at), *reason));
                if let (true, StopReason::Signal { signal }) = (first, reason) {
                    if let Some(line) = paddle_lines::at_signal(self.spec, *signal) {
                        self.pod_log.line(&line);
                    }
                    let ranks = self.live_ranks();
                    let text = console::stopping(&self.style, &short_signal(*signal), &ranks);
                    if self.spec.own.output == OutputMode::Human {
                        self.screen.alert(text);
                    }
                }
            }
            Fact::Signalled { signal: 9, .. } => self.killed = true,
            _ => {}
        }
        if self.spec.own.output == OutputMode::Json {
            let record = Record { v: VERSION, seq: self.seq, at: self.clock.now().as_micros(), fact: fact.clone() };
            if let Ok(line) = serde_json::to_string(&record) {
                self.screen.data(format!("{line}\n"));
            }
        }
        self.seq += 1;
    }

    fn spawn(&mut self, attempts: &[AttemptId]) {
        let bytes = |text: &String| text.as_bytes().to_vec();
        let variables = |variables: &[(String, String)]| {
            variables.iter().map(|(name, value)| (bytes(name), bytes(value))).collect::<Vec<_>>()
        };
        let processes = attempts
            .iter()
            .filter_map(|id| {
                self.plan.replicas.iter().find(|replica| replica.slot == id.slot).map(|replica| (id, replica))
            })
            .map(|(id, replica)| Process {
                key: key(*id),
                program: replica.program.as_os_str().as_bytes().to_vec(),
                argv: replica.argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
                env: variables(&replica.env),
                log: replica.log.as_os_str().as_bytes().to_vec(),
                inherit_stdin: replica.inherit_stdin,
            })
            .collect();
        let batch =
            Batch { unset: self.plan.unset.iter().map(bytes).collect(), set: variables(&self.plan.common), processes };
        // A guardian that is gone shows itself at its socket.
        let _ = self.guardian.send(&Command::Spawn(batch));
        if let Some(line) = paddle_lines::at_spawn(self.spec, &self.plan) {
            self.pod_log.line(&line);
        }
    }

    fn signal(&mut self, signal: i32, targets: &[AttemptId]) {
        let keys = targets.iter().map(|id| key(*id)).collect();
        let _ = self.guardian.send(&Command::Signal { signal, keys });
        for id in targets {
            if let Some(replica) = self.plan.replicas.iter().find(|replica| replica.slot == id.slot) {
                let size = std::fs::metadata(&replica.log).map_or(0, |metadata| metadata.len());
                self.log_at_stop.entry(id.slot).or_insert(size);
            }
        }
        for pid in targets.iter().filter_map(|id| self.pids.get(&id.slot)) {
            if let Some(line) = paddle_lines::at_stop(self.spec, *pid) {
                self.pod_log.line(&line);
            }
        }
    }

    fn gather(&self, ended: &[Slot], stopped: &[Slot]) -> Vec<(Slot, Evidence)> {
        let place = |slot: &Slot| {
            let position = self.plan.replicas.iter().position(|replica| replica.slot == *slot)?;
            Some((&self.plan.replicas[position], self.log_starts[position]))
        };
        let told = ended.iter().filter_map(|slot| {
            let (replica, start) = place(slot)?;
            Some((*slot, evidence::read(&replica.log, start, None, &replica.error_file)))
        });
        // Most were healthy: those whose last words before our signal hold no error are not looked at twice.
        let hurried = stopped.iter().filter_map(|slot| {
            let (replica, start) = place(slot)?;
            let end = *self.log_at_stop.get(slot)?;
            evidence::has_error(&replica.log, start, end)
                .then(|| (*slot, evidence::read(&replica.log, start, Some(end), &replica.error_file)))
        });
        told.chain(hurried).collect()
    }

    /// Tells the user what happened, in every output mode.
    fn report(&mut self, verdict: Verdict) {
        let mut causes: Vec<u32> = verdict.causes.iter().filter_map(|cause| cause.subject.rank).map(|r| r.0).collect();
        causes.sort_unstable();
        let world = self.plan.topology.world_size().get();
        let abort = summary::abort(world, &causes);
        for line in paddle_lines::at_failure(self.spec, &self.plan, &verdict, &abort) {
            self.pod_log.line(&line);
        }
        self.told_while_going = self.machine.live().0 > 0;
        let explained = summary::failure(&self.style, &verdict, &self.others(), |finding| self.place(finding));
        let container = paddle_lines::container_failed(self.spec, &self.plan, &verdict)
            .map(|lines| format!("{}\n", lines.replace("<ts>", &paddle_stamp())))
            .unwrap_or_default();
        let abort = self.style.red(&abort);
        self.screen.status(None);
        self.screen.alert(format!("{abort}\n{container}{explained}"));
        if let Some(notice) = prepare::why_full(&self.plan.log_dir) {
            self.notice(&notice);
        }
        self.verdict = Some(verdict);
    }

    fn others(&self) -> Others {
        let Some((since, _)) = self.stopping else { return Others::Nobody };
        let live = self.live_ranks();
        if !live.is_empty() {
            return Others::Going { ranks: live, grace: self.plan.job.policy.stop.grace };
        }
        let mut stopped: Vec<u32> =
            self.ends.iter().filter(|(_, (_, by_us))| *by_us).map(|(slot, _)| slot.index).collect();
        stopped.sort_unstable();
        if stopped.is_empty() {
            return Others::Nobody;
        }
        Others::Gone { ranks: stopped, by: if self.killed { "SIGKILL" } else { "SIGTERM" }, after: since.elapsed() }
    }

    fn live_ranks(&self) -> Vec<u32> {
        self.plan
            .replicas
            .iter()
            .filter(|replica| self.machine.attempt_of(replica.slot).is_some_and(Attempt::is_live))
            .map(|replica| replica.rank.0)
            .collect()
    }

    fn place(&self, finding: &Finding) -> Place {
        let Some(replica) = self.plan.replicas.iter().find(|replica| Some(replica.rank) == finding.subject.rank) else {
            return Place::default();
        };
        let kind = self.plan.topology.device_kind.map_or("", umiak_core::model::DeviceKind::word);
        let labels: Vec<&str> = replica.devices.iter().map(|device| device.label.as_str()).collect();
        Place {
            host: umiak_sys::host::name(),
            pid: self.pids.get(&replica.slot).copied(),
            devices: if labels.is_empty() { String::new() } else { format!("{kind} {}", labels.join(",")) },
            log: shown(&self.spec.log_dir.join(replica.log.file_name().unwrap_or_default())),
        }
    }

    fn show_status(&mut self) {
        let (live, total) = self.machine.live();
        if self.verdict.is_some() || self.spec.own.output != OutputMode::Human {
            return;
        }
        self.screen.status(Some(Status {
            job: self.plan.job.name.to_string(),
            since: self.clock.started(),
            live,
            total,
            stopping: self.stopping.is_some(),
        }));
    }

    /// Once the last rank exists, and before anything that it does is told.
    fn tell_started(&mut self) {
        let total = self.plan.replicas.len();
        if self.pids.len() == total && !self.told_started {
            self.told_started = true;
            let text = console::started(&self.style, total, self.clock.started().elapsed());
            self.talk(|_| text);
        }
    }

    /// Has the guardian stop what ranks left behind, remove the scratch directory, and end.
    fn sweep(&mut self) {
        if self.guardian_gone {
            return;
        }
        if self.guardian.send(&Command::Finish).is_err() {
            return self.sweep_here();
        }
        loop {
            match self.guardian.receive() {
                Ok(Some(notices)) => {
                    for notice in notices {
                        if let Notice::Swept { stopped, remaining } = notice {
                            self.tell_swept(stopped, &remaining);
                            self.guardian.wait();
                            return;
                        }
                    }
                }
                Ok(None) | Err(_) => return self.sweep_here(),
            }
        }
    }

    fn sweep_here(&mut self) {
        descend::sweep(Duration::ZERO, PATIENCE);
        self.remove_scratch();
    }

    fn tell_swept(&mut self, stopped: Vec<u32>, remaining: &[u32]) {
        if stopped.is_empty() {
            return;
        }
        let list = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let mut notice = Diagnostic::notice(Code::L0025, "ranks left processes behind, which were stopped")
            .row("stopped", format!("pid {}", list(&stopped)));
        if !remaining.is_empty() {
            notice = notice.row("still there", format!("pid {}", list(remaining)));
        }
        self.record(&Fact::Swept { pids: stopped });
        self.talk(|style| console::diagnostic(style, &notice));
    }

    fn remove_scratch(&self) {
        if let Some(scratch) = self.plan.replicas.first().and_then(|replica| replica.error_file.parent()) {
            let _ = std::fs::remove_dir_all(scratch);
        }
    }

    /// The last lines, and everything out of the mirror for as long as its reader takes it; Ctrl-C gives that up.
    fn close(self) {
        let (outcome, code) = self.end.unwrap_or((Outcome::Failed, 125));
        let took = self.clock.started().elapsed();
        let total = self.plan.replicas.len();
        let mut pod_log = self.pod_log;
        let signal = match self.stopping {
            Some((_, StopReason::Signal { signal } | StopReason::SecondSignal { signal })) => Some(signal),
            _ => None,
        };
        for line in paddle_lines::at_end(self.spec, outcome, signal, code) {
            pod_log.line(&line);
        }
        self.screen.status(None);
        let text = match (outcome, signal, self.stopping) {
            (Outcome::Succeeded, ..) => Some(console::finished(&self.style, total, took)),
            (Outcome::Interrupted, Some(signal), Some((since, _))) => {
                let killed = self.killed;
                Some(console::interrupted(&self.style, &short_signal(signal), total, since.elapsed(), killed))
            }
            _ => None,
        };
        if let (Some(text), OutputMode::Human) = (text, self.spec.own.output) {
            self.screen.talk(text);
        }
        self.screen.close();
        loop {
            let Ok(ready) = readable(&[self.screen.done().as_fd(), self.signals.as_fd()], None) else { return };
            if ready[0] {
                return self.screen.join();
            }
            if ready[1] && !self.signals.read().is_empty() {
                return;
            }
        }
    }
}

fn attempt(key: Key) -> AttemptId {
    AttemptId { slot: Slot { role: key.role, index: key.index }, attempt: key.attempt }
}

fn key(id: AttemptId) -> Key {
    Key { role: id.slot.role, index: id.slot.index, attempt: id.attempt }
}

/// `SIGINT` without the words in brackets.
fn short_signal(signal: i32) -> String {
    let name = signal_name(signal);
    name.split(' ').next().unwrap_or(&name).to_owned()
}

/// A path as the user would type it: `./log` for `log`.
fn shown(path: &Path) -> String {
    if path.is_absolute() || path.starts_with(".") || path.starts_with("..") {
        return path.display().to_string();
    }
    PathBuf::from(".").join(path).display().to_string()
}
