//! The front: waits for one event, asks the machine, records, performs. It owns the job's state.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Evidence, Fact, Outcome, StopReason, Verdict};
use umiak_core::formats::launch::{LaunchSpec, OutputMode};
use umiak_core::machine::attempt::Attempt;
use umiak_core::machine::exit_code::Style as CodeStyle;
use umiak_core::machine::job::{AttemptId, Effect, Event, Machine, Timer};
use umiak_core::model::{Exit, Slot, Timestamp, signal_name};
use umiak_core::plan::pool::Given;
use umiak_core::plan::{self, Inventory, Layout, Plan, Replica, Run, paddle_lines};
use umiak_sys::descend;
use umiak_sys::guardian::Guardian;
use umiak_sys::logger::Rotate;
use umiak_sys::protocol::{Batch, Command, Key, Notice, Process};
use umiak_sys::wait::{Signals, readable};

use crate::engine::local::{self, attempt, key};
use crate::rendezvous::logs::Logs;
use crate::screen::{Screen, Style};

use super::kernel::{Ended, Kernel};
use super::knock::Knocker;
use super::launch::{Prepared, failed};
use super::pod_log::PodLog;
use super::record::Recorder;
use super::several::Peers;
use super::{console, evidence, prepare};
use crate::clock::Clock;

mod logs;
mod peers;
mod recording;
mod restart;
mod servers;
mod tell;

pub(super) const SIGTSTP: i32 = 20;
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

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
    /// What all attempts share; the plan is the current one's.
    inventory: Arc<Inventory>,
    run: Run,
    plan: Arc<Plan>,
    pod_log: PodLog,
    kernel: Kernel,
    machine: Machine,
    screen: Screen,
    /// With the attempt they belong to.
    timers: BTreeMap<Timer, (u32, Timestamp)>,
    late_files: Option<JoinHandle<()>>,
    /// Where this node records the run.
    recorder: Option<Recorder>,
    /// Facts that the next thing to be done waits for.
    facts: Vec<Fact>,
    /// Where there are several nodes: the others, and our part of the attempt for which they are waited.
    peers: Option<Peers>,
    /// With `--gather-logs`, on nodes that send theirs.
    logs: Option<Logs>,
    next: Option<Layout>,
    /// Servers that are waited for, and who of those on other nodes has not answered.
    knocker: Option<Knocker>,
    missing: Vec<String>,
    awaits: Option<servers::Awaits>,
    attempt_started: Instant,
    seq: u64,
    pids: HashMap<Slot, u32>,
    /// How each replica ended, and whether by us: for the summary.
    ends: HashMap<Slot, (Exit, bool)>,
    /// How long each log was when we first signalled its rank: what stands before is the rank's own account.
    log_at_stop: HashMap<Slot, u64>,
    /// When, why and with what we began to stop.
    stopping: Option<(Instant, StopReason)>,
    killed: bool,
    /// Somebody did not go even after SIGKILL.
    abandoned: bool,
    verdict: Option<Verdict>,
    /// Ranks were still going when the verdict was told.
    told_while_going: bool,
    told_started: bool,
    return_terminal: bool,
    last_signal: i32,
    end: Option<(Outcome, u8)>,
}

impl<'a> Front<'a> {
    pub(super) fn new(
        spec: &'a LaunchSpec,
        style: Style,
        clock: Clock,
        signals: Signals,
        guardian: Guardian,
        prepared: Prepared,
    ) -> Self {
        let codes =
            CodeStyle { codes: spec.request.exit_codes, generation: spec.request.generation(), document: false };
        let Prepared { screen, peers, inventory, run, plan, pod_log } = prepared;
        let machine = Machine::new(plan.job.clone(), codes, fastrand::u64(..));
        let mut machine = machine.ranks_from(plan.first_rank()).numbered(plan.numbers());
        servers::expect_elsewhere(&mut machine, &plan);
        let is_shared = peers.is_some();
        if is_shared {
            machine.share();
        }
        Self {
            spec,
            style,
            clock,
            signals,
            guardian,
            guardian_gone: false,
            inventory,
            run,
            plan,
            pod_log,
            kernel: Kernel::from_now(),
            machine,
            screen,
            timers: BTreeMap::new(),
            late_files: None,
            recorder: None,
            facts: Vec::new(),
            peers,
            logs: None,
            next: None,
            knocker: None,
            missing: Vec::new(),
            awaits: None,
            // How long other nodes were waited for says nothing about this one.
            attempt_started: if is_shared { Instant::now() } else { clock.started() },
            seq: 0,
            pids: HashMap::new(),
            ends: HashMap::new(),
            log_at_stop: HashMap::new(),
            stopping: None,
            killed: false,
            abandoned: false,
            verdict: None,
            told_while_going: false,
            told_started: false,
            return_terminal: false,
            last_signal: 2,
            end: None,
        }
    }

    /// The whole run; returns the exit code.
    pub(super) fn run(mut self) -> Result<u8, Diagnostic> {
        self.begin_recording();
        self.announce();
        self.start_logs();
        self.dispatch(Event::Start);
        self.late_files = prepare::write_late_files(&self.inventory, &self.plan);
        while self.end.is_none() && !self.return_terminal {
            self.wait_once()?;
        }
        if self.return_terminal {
            // Dropping our end of the socket tells the guardian to finish alone.
            let code = 128u8.wrapping_add(self.last_signal as u8);
            self.leave_recording(code);
            return Ok(code);
        }
        self.sweep();
        self.tell_why_not_restarted();
        let elsewhere = self.interrupted_elsewhere();
        self.finish_logs();
        self.finish_peers();
        self.join_late_files();
        let (_, code) = self.end.unwrap_or((Outcome::Failed, 125));
        self.finish_recording();
        match self.close(elsewhere) {
            Some(error) => Err(Diagnostic::error(Code::L0016, "facts about the run could not be written to stdout")
                .row("reason", error.to_string())
                .row("the job", format!("ended with code {code}"))
                .hint("free space where stdout goes; the ranks' logs are complete")),
            None => Ok(code),
        }
    }

    /// `select`: one round of waiting, then everything that has arrived is applied.
    fn wait_once(&mut self) -> Result<(), Diagnostic> {
        // Many ranks end at once: one write for all that is left of the round before.
        self.flush();
        let now = self.clock.now();
        let times = self.timers.values().map(|(_, at)| *at).chain(self.tell_awaits_at());
        let timeout = times.map(|at| at.since(now)).min();
        let fds = [
            Some(self.guardian.as_fd()),
            Some(self.signals.as_fd()),
            self.peers.as_ref().map(AsFd::as_fd),
            self.logs.as_ref().map(AsFd::as_fd),
            self.knocker.as_ref().map(AsFd::as_fd),
        ];
        let there: Vec<_> = fds.iter().copied().flatten().collect();
        let ready = readable(&there, timeout).map_err(|error| failed("wait for events", &error))?;
        let mut ready = ready.into_iter();
        let [guardian, signals, peers, logs, servers] = fds.map(|fd| fd.is_some() && ready.next() == Some(true));
        if guardian {
            self.hear_guardian();
        }
        if signals {
            for signal in self.signals.read() {
                if signal == SIGTSTP {
                    self.pause();
                    continue;
                }
                self.last_signal = signal;
                self.dispatch(Event::Signalled { signal });
            }
            self.show_status();
        }
        if peers {
            self.hear_peers();
        }
        if logs {
            self.hear_logs();
        }
        if servers {
            self.hear_servers();
        }
        self.tell_awaits();
        let now = self.clock.now();
        let due: Vec<(Timer, u32)> = self
            .timers
            .iter()
            .filter(|(_, (_, at))| *at <= now)
            .map(|(timer, (attempt, _))| (*timer, *attempt))
            .collect();
        for (timer, attempt) in due {
            self.timers.remove(&timer);
            self.dispatch(Event::Timer(timer, attempt));
        }
        self.show_status();
        Ok(())
    }

    /// Ctrl-Z: the ranks stop, then we do; when we are continued, so are they. Timers have waited meanwhile.
    fn pause(&mut self) {
        let live: Vec<Key> = self.live_ids().into_iter().map(key).collect();
        let before = self.clock.now();
        self.record(&Fact::Paused);
        // SIGSTOP, because the kernel drops SIGTSTP for groups without a parent in their session.
        let _ = self.guardian.send(&Command::Signal { signal: SIGSTOP, keys: live.clone() });
        self.screen.status(None);
        umiak_sys::wait::stop_ourselves();
        let _ = self.guardian.send(&Command::Signal { signal: SIGCONT, keys: live });
        self.record(&Fact::Continued);
        let paused = self.clock.now().since(before);
        for (_, at) in self.timers.values_mut() {
            *at = *at + paused;
        }
    }

    fn live_ids(&self) -> Vec<AttemptId> {
        let id = |replica: &&Replica| AttemptId { slot: replica.slot, attempt: self.machine.number(replica.slot) };
        self.live().iter().map(id).collect()
    }

    fn hear_guardian(&mut self) {
        let Ok(Some(notices)) = self.guardian.receive() else {
            let lost = self.lose_guardian();
            return self.dispatch(lost);
        };
        for notice in notices {
            if let Some(event) = self.event(&notice) {
                self.dispatch(event);
            }
        }
        self.tell_early_ends();
    }

    /// The kernel has killed the ranks with the guardian; what they had started has come to us.
    fn lose_guardian(&mut self) -> Event {
        self.guardian_gone = true;
        self.sweep_here();
        let diagnostic = Diagnostic::error(Code::L0017, "the process that held the ranks was killed from outside")
            .row("guardian", format!("pid {}", self.guardian.pid))
            .hint("look for who sent SIGKILL: the kernel's log tells of memory, `last` and `ps` of people");
        let text = console::diagnostic(&self.style, &diagnostic);
        self.screen.alert(text);
        Event::GuardianLost
    }

    fn event(&mut self, notice: &Notice) -> Option<Event> {
        match *notice {
            Notice::Spawned { key, pid } => {
                let id = attempt(key);
                // A namespace has numbers of its own; people want the ones that `ps` shows them.
                let outer = self.spec.own.isolate.then(|| descend::outer_pid(self.guardian.pid, pid)).flatten();
                let pid = outer.unwrap_or(pid);
                if id.attempt == self.machine.attempt() {
                    self.pids.insert(id.slot, pid);
                    self.tell_started();
                }
                if let Some(line) = paddle_lines::at_started(&self.spec.request, key.index, pid) {
                    self.pod_log.line(&line);
                }
                Some(Event::Spawned { id, pid })
            }
            Notice::Exited { .. } | Notice::SpawnFailed { .. } => {
                local::ended(notice).map(|(id, exit, usage)| Event::Exited { id, exit, usage })
            }
            Notice::Cleared { ref stopped, ref remaining } => self.prepare_next(stopped, remaining),
            Notice::Leased(_) | Notice::Addresses(_) | Notice::Gpus(_) | Notice::Swept { .. } => None,
        }
    }

    /// `apply`: asks the machine and performs, in order, until there is nothing left to do.
    fn dispatch(&mut self, event: Event) {
        let mut queue = VecDeque::from([event]);
        while let Some(event) = queue.pop_front() {
            for effect in self.machine.step(event, self.clock.now()) {
                if let Effect::Record(fact) = effect {
                    self.note(fact);
                    continue;
                }
                // A fact is in the journal before what it announces is done.
                self.flush();
                match effect {
                    Effect::Spawn(attempts) => self.spawn(&attempts),
                    Effect::Signal { signal, targets } => self.signal(signal, &targets),
                    Effect::ArmTimer { timer, attempt, at } => {
                        self.timers.insert(timer, (attempt, at));
                    }
                    Effect::DisarmTimer(timer) => {
                        self.timers.remove(&timer);
                    }
                    Effect::Await(id) => self.await_server(id),
                    Effect::AwaitElsewhere { role, attempt } => self.await_elsewhere(role, attempt),
                    // A launched group is one thing: no role of it starts again by itself.
                    Effect::Record(_) | Effect::Inspect(_) | Effect::TellFailed(_) => {}
                    Effect::Prepare { .. } => self.clear(),
                    Effect::Gather { ended, stopped } => {
                        queue.push_back(Event::Gathered(self.gather(&ended, &stopped)));
                    }
                    Effect::Report(verdict) => self.report(verdict),
                    Effect::Stand(stand) => self.stand(stand),
                    Effect::ReturnTerminal => self.return_terminal = true,
                    Effect::Finish { outcome, code } => self.end = Some((outcome, code)),
                }
            }
        }
    }

    /// A fact of our own.
    fn record(&mut self, fact: &Fact) {
        self.note(fact.clone());
        self.flush();
    }

    /// What a fact means for us; it is written before anything else is done.
    fn note(&mut self, mut fact: Fact) {
        if let Fact::Ended { subject, log_end, .. } = &mut fact
            && let Some(replica) = subject.rank.and_then(|rank| self.plan.replica(rank))
        {
            let log = self.plan.log(replica, self.plan.attempt);
            *log_end = std::fs::metadata(log.path).ok().map(|metadata| metadata.len());
        }
        match &fact {
            Fact::Ended { subject, exit, by_us, .. } => {
                let slot = subject.rank.and_then(|rank| self.plan.replica(rank));
                // The one on the console.
                if subject.rank.is_some() && subject.rank == self.plan.mirrored().map(|replica| replica.rank) {
                    self.screen.let_go(true);
                }
                if let Some(replica) = slot {
                    self.ends.insert(replica.slot, (exit.clone(), *by_us));
                }
            }
            Fact::Stopping { reason } => {
                self.screen.let_go(false);
                let first = self.stopping.is_none();
                self.stopping = Some((self.stopping.map_or_else(Instant::now, |(at, _)| at), *reason));
                if let (true, StopReason::Signal { signal }) = (first, reason) {
                    if let Some(line) = paddle_lines::at_signal(&self.spec.request, *signal) {
                        self.pod_log.line(&line);
                    }
                    let live = self.crowd(&self.live());
                    // Between two attempts nobody has to be asked.
                    let text = console::stopping(&self.style, &short_signal(*signal), &live);
                    if self.spec.own.output == OutputMode::Human && live.count > 0 {
                        self.screen.alert(text);
                    }
                }
            }
            Fact::Signalled { signal: 9, .. } => self.killed = true,
            Fact::Abandoned { .. } => self.abandoned = true,
            Fact::Restarting { attempt, delay_micros, .. } => {
                self.tell_restarting(*attempt, Duration::from_micros(*delay_micros));
            }
            _ => {}
        }
        self.facts.push(fact);
    }

    fn spawn(&mut self, attempts: &[AttemptId]) {
        self.begin_attempt();
        let bytes = |text: &String| text.as_bytes().to_vec();
        let variables = |variables: &[(String, String)]| {
            variables.iter().map(|(name, value)| (bytes(name), bytes(value))).collect::<Vec<_>>()
        };
        let processes = attempts
            .iter()
            .map(|id| {
                let given = Given::default();
                let attempt =
                    plan::Attempt { slot: id.slot, number: id.attempt, of_job: self.plan.attempt, given: &given };
                let process = self.plan.process(&attempt);
                Process {
                    key: key(*id),
                    program: process.program.as_os_str().as_bytes().to_vec(),
                    argv: process.argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
                    env: process.env.into_iter().map(|(name, value)| (name.into_bytes(), value.into_bytes())).collect(),
                    dir: Vec::new(),
                    log: process.log.path.as_os_str().as_bytes().to_vec(),
                    cpus: process.cpus,
                    inherit_stdin: process.inherit_stdin,
                }
            })
            .collect();
        let rotation = self.spec.request.logs.rotation;
        let rotate = rotation.map(|rotation| Rotate { max_bytes: rotation.max_bytes, keep: rotation.keep });
        let batch = Batch {
            unset: self.plan.unset.iter().map(bytes).collect(),
            set: variables(&self.plan.common),
            rotate,
            processes,
        };
        // A guardian that is gone shows itself at its socket.
        self.screen.take_up();
        let _ = self.guardian.send(&Command::Spawn(batch));
        if let Some(line) = paddle_lines::at_spawn(&self.spec.request, &self.plan, attempts) {
            self.pod_log.line(&line);
        }
    }

    fn signal(&mut self, signal: i32, targets: &[AttemptId]) {
        let keys = targets.iter().map(|id| key(*id)).collect();
        let _ = self.guardian.send(&Command::Signal { signal, keys });
        for id in targets {
            if let Some(replica) = self.plan.at(id.slot) {
                let log = self.plan.log(replica, self.plan.attempt);
                let size = std::fs::metadata(log.path).map_or(0, |metadata| metadata.len());
                self.log_at_stop.entry(id.slot).or_insert(size);
            }
        }
        for pid in targets.iter().filter_map(|id| self.pids.get(&id.slot)) {
            if let Some(line) = paddle_lines::at_stop(&self.spec.request, *pid) {
                self.pod_log.line(&line);
            }
        }
    }

    fn gather(&mut self, ended: &[Slot], stopped: &[Slot]) -> Vec<(Slot, Evidence)> {
        let place = |slot: &Slot| {
            let (plan, attempt) = (&self.plan, self.plan.attempt);
            plan.at(*slot).map(|replica| (plan.log(replica, attempt), plan.error_file(replica, attempt)))
        };
        let told = ended.iter().filter_map(|slot| {
            let (log, error_file) = place(slot)?;
            Some((*slot, evidence::read(&log.path, log.start, None, &error_file)))
        });
        // Most were healthy: those whose last words before our signal hold no error are not looked at twice.
        let hurried = stopped.iter().filter_map(|slot| {
            let (log, error_file) = place(slot)?;
            let end = *self.log_at_stop.get(slot)?;
            evidence::has_error(&log.path, log.start, end)
                .then(|| (*slot, evidence::read(&log.path, log.start, Some(end), &error_file)))
        });
        let mut evidence: Vec<(Slot, Evidence)> = told.chain(hurried).collect();
        let ends = ended.iter().chain(stopped).filter_map(|slot| {
            let (pid, (exit, _)) = (*self.pids.get(slot)?, self.ends.get(slot)?);
            Some(Ended { slot: *slot, pid, exit: exit.clone(), stopped: self.log_at_stop.contains_key(slot) })
        });
        let ends: Vec<Ended> = ends.collect();
        self.kernel.explain(&ends, self.plan.logs.dir(), &mut evidence);
        evidence
    }

    fn live(&self) -> Vec<&Replica> {
        let is_live = |slot| self.machine.attempt_of(slot).is_some_and(Attempt::is_live);
        self.plan.replicas.iter().filter(|replica| is_live(replica.slot)).collect()
    }

    /// Has the guardian stop what ranks left behind, remove the scratch directory, and end.
    fn sweep(&mut self) {
        if self.guardian_gone {
            return;
        }
        if self.guardian.send(&Command::Finish { patient: !self.abandoned }).is_err() {
            return self.sweep_here();
        }
        loop {
            match self.guardian.receive() {
                Ok(Some(notices)) => {
                    for notice in notices {
                        match notice {
                            Notice::Swept { stopped, remaining } => {
                                self.tell_swept(&stopped, &remaining);
                                self.guardian.wait();
                                return;
                            }
                            // Asked for before a restart that was given up.
                            Notice::Cleared { stopped, remaining } => self.tell_swept(&stopped, &remaining),
                            _ => {}
                        }
                    }
                }
                Ok(None) | Err(_) => return self.sweep_here(),
            }
        }
    }

    fn sweep_here(&mut self) {
        descend::sweep(Duration::ZERO, PATIENCE, &[]);
        self.remove_scratch();
        self.guardian.wait();
    }

    fn remove_scratch(&self) {
        let _ = std::fs::remove_dir_all(&self.plan.scratch);
    }

    /// The last lines, and everything out of the mirror for as long as its reader takes it; Ctrl-C gives that up.
    fn close(mut self, elsewhere: Option<String>) -> Option<std::io::Error> {
        let (outcome, code) = self.end.unwrap_or((Outcome::Failed, 125));
        let took = self.clock.started().elapsed();
        let who = console::here(&self.plan);
        let signal = match self.stopping {
            Some((_, StopReason::Signal { signal } | StopReason::SecondSignal { signal })) => Some(signal),
            _ => None,
        };
        let first_failed = self
            .plan
            .replicas
            .iter()
            .filter_map(|replica| self.ends.get(&replica.slot))
            .map(|(exit, _)| exit)
            .find(|exit| !exit.is_success());
        for line in paddle_lines::at_end(&self.spec.request, &self.plan, outcome, signal, code, first_failed) {
            self.pod_log.line(&line);
        }
        self.screen.status(None);
        let by = signal.map(short_signal).or(elsewhere);
        let text = match (outcome, by, self.stopping) {
            (Outcome::Succeeded, ..) => Some(console::finished(&self.style, &who, took, self.attempt_words())),
            (Outcome::Interrupted, Some(by), _) if self.machine.is_pausing() => {
                Some(console::not_restarted(&self.style, &by))
            }
            (Outcome::Interrupted, Some(by), Some((since, _))) => {
                Some(console::interrupted(&self.style, &by, &who, since.elapsed(), self.killed))
            }
            // The report could only say that they had been asked to go.
            (Outcome::Failed, _, Some((since, _))) if self.told_while_going => {
                Some(console::gone(&self.style, since.elapsed(), self.killed, self.abandoned))
            }
            _ => None,
        };
        if let (Some(text), OutputMode::Human) = (text, self.spec.own.output) {
            self.screen.talk(text);
        }
        self.screen.finish(&self.signals)
    }
}

/// `SIGINT` without the words in brackets.
pub(super) fn short_signal(signal: i32) -> String {
    let name = signal_name(signal);
    name.split(' ').next().unwrap_or(&name).to_owned()
}
