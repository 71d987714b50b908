//! The driver of every job, from `launch` or from a document.
//!
//! Waits for one event, asks the machine, records, performs. The machine decides, the engine runs attempts, the
//! recorder writes each fact before the action that it announces. Whatever is specific to the command that started the
//! job (other nodes, Paddle's own lines, task directories) is in its [`Door`]: a source of events and an observer of
//! facts.
//!
//! | part | in one sentence |
//! |---|---|
//! | [`sources`] | signals, the control socket, and all other descriptors: waited for in one place |
//! | [`turn`] | one round of waiting, whose results are applied; the stages of a run |
//! | [`perform`] | effects of the machine, in order |
//! | [`record`] | writes facts to the journal, and to stdout for programs |
//! | [`note`] | updates the driver's state from recorded facts |
//! | [`hang`] | looks for progress of replicas |
//! | [`observe`] | what the others are doing when one has failed |
//! | [`gather`] | evidence for attempts that ended badly |
//! | [`tell`], [`words`] | console lines, and names for groups of replicas |
//! | [`timers`] | pending timers |
//! | [`probe`] | ports that must be open before other replicas start |
//! | [`control`], [`stop`], [`stacks`] | orders from other processes: both ends |

pub(crate) mod control;
mod gather;
mod hang;
mod note;
mod observe;
mod perform;
pub(crate) mod probe;
pub(crate) mod record;
pub(crate) mod sources;
pub(crate) mod stacks;
pub(crate) mod stop;
mod tell;
mod timers;
mod turn;
pub(crate) mod words;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::IsTerminal as _;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umiak_core::diag::Diagnostic;
use umiak_core::facts::{Fact, Finding, Outcome, StopReason, Subject, Verdict};
use umiak_core::machine::attempt::{Attempt, End};
use umiak_core::machine::job::{AttemptId, Event, Machine, Stand};
use umiak_core::model::{Exit, Instance, OutputMode, Show, Slot, Timestamp, Whose};
use umiak_core::plan::pool::Pool;
use umiak_core::plan::{Console, Log, Plan, Process};
use umiak_core::status::{Stage, Status};

use crate::clock::Clock;
use crate::engine::{Common, Engine, Swept};
use crate::host::kernel::Kernel;
use crate::host::observe::Seen;
use crate::screen::summary::ReplicaPlace;
use crate::screen::{MirrorTo, Screen, Style};

pub(crate) use tell::short_signal;

use probe::Prober;
use record::Recorder;
use sources::Sources;
use timers::Timers;

/// Output options of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Talk {
    pub(crate) output: OutputMode,
    /// With JSON: the mirror is written to stderr.
    pub(crate) mirror: bool,
    /// Replicas whose output is shown on the console.
    pub(crate) show: Show,
    /// The replica that reads our stdin, if given.
    pub(crate) stdin: Option<Whose>,
    pub(crate) ascii: bool,
    pub(crate) no_progress: bool,
    /// No terminal: lines are written to a file, and the mirror is off.
    pub(crate) detached: bool,
}

impl Talk {
    pub(crate) fn style(&self) -> Style {
        let style = Style::detect(self.ascii, self.no_progress || self.detached || self.output != OutputMode::Human);
        // Keyboard input for a rank would be mixed with the status line.
        let is_typed = self.stdin.is_some() && std::io::stdin().is_terminal();
        Style { live: style.live && !is_typed, ..style }
    }

    /// Checks that the replicas named by `--show` and `--stdin` exist.
    pub(crate) fn console(&self, plan: &Plan) -> Result<Console, Diagnostic> {
        plan.console(&self.show, self.stdin.as_ref())
    }

    pub(crate) fn screen(&self, style: &Style) -> Result<Screen, Diagnostic> {
        let mirror_to = match (self.output, self.mirror) {
            _ if self.detached => MirrorTo::Nowhere,
            (OutputMode::Json, true) => MirrorTo::Stderr,
            (OutputMode::Json, false) => MirrorTo::Nowhere,
            (OutputMode::Human | OutputMode::Quiet, _) => MirrorTo::Stdout,
        };
        Screen::start(style.clone(), mirror_to).map_err(|error| Diagnostic::failed("start its console output", &error))
    }
}

/// What the driver shares with every door.
pub(crate) struct Core {
    pub(crate) talk: Talk,
    pub(crate) style: Style,
    pub(crate) clock: Clock,
    pub(crate) sources: Sources,
    pub(crate) machine: Machine,
    pub(crate) screen: Screen,
    pub(crate) recorder: Recorder,
    /// The plan of the current attempt of the job.
    pub(crate) plan: Arc<Plan>,
    pub(crate) pool: Pool,
    pub(crate) now: Now,
    kernel: Kernel,
    prober: Option<Prober>,
}

/// State of a run; empty when it begins.
#[derive(Default)]
pub(crate) struct Now {
    /// Events for the machine, in order.
    queue: VecDeque<Event>,
    timers: Timers,
    /// Attempts whose starts are not in the journal yet.
    unrecorded: Vec<AttemptId>,
    /// Attempts that wait for devices.
    waiting: Vec<AttemptId>,
    /// True if devices have been released.
    is_freed: bool,
    /// Running attempts, as their engine identifies them.
    pub(crate) instances: HashMap<Slot, Instance>,
    /// How the current attempt of each replica ended, and true if we stopped it.
    pub(crate) ends: HashMap<Slot, (Exit, bool)>,
    /// Length of each log when its replica was first told to stop: lines before that are not caused by the stop.
    log_at_stop: HashMap<Slot, u64>,
    /// Progress, if the policy limits the time without.
    watching: hang::Watching,
    /// Shared with the thread that answers `umiak stacks`, while there is one.
    asked_stacks: Arc<()>,
    /// What the others were doing when the first had failed.
    seen: HashMap<Slot, Seen>,
    /// A rank of another node has failed because a peer did not respond.
    pub(crate) waited_elsewhere: bool,
    /// Replicas of whose current attempt a process was killed at its memory limit.
    over_limit: HashSet<Slot>,
    /// The time of day of the next attempt, during a delay that is worth showing.
    pause: Option<String>,
    /// How long logs of failed attempts have been searched.
    searched: Duration,
    /// When the stop of all replicas began, and why.
    pub(crate) stopping: Option<(Instant, StopReason)>,
    pub(crate) killed: bool,
    pub(crate) abandoned: bool,
    /// True once a report replaces the status line.
    pub(crate) told: bool,
    /// True if attempts were still running when the verdict was shown.
    told_while_going: bool,
    told_started: bool,
    /// Attempt whose common settings the engine has.
    shared: Option<u32>,
    /// The last reported reason why nothing runs.
    pending: Option<String>,
    /// Files that are mirrored.
    followed: HashMap<Slot, PathBuf>,
    /// Replicas connected to the console.
    console: Console,
    /// Time of the next line that reports progress to a log.
    heartbeat_at: Option<Timestamp>,
    pub(crate) attempt_started: Option<Instant>,
    /// The attempt of the job that is being prepared.
    pub(crate) preparing: Option<u32>,
    return_terminal: bool,
    /// Determines the exit code if the terminal is returned, which only a signal can cause.
    last_signal: i32,
    pub(crate) end: Option<(Outcome, u8)>,
    /// A signal or an order has asked for the end: the next signal kills during the sweep.
    is_asked: bool,
    /// Processes stopped between two attempts when the run ended.
    cleared: Vec<u32>,
    /// Result of the last sweep, once it is over.
    swept: Option<Swept>,
    /// The last fact. Written only when nothing of the run is left, as its readers expect.
    last: Option<Fact>,
}

impl Now {
    /// Resets the state for another attempt of the whole job.
    pub(crate) fn begin_attempt(&mut self) {
        self.instances.clear();
        self.ends.clear();
        self.log_at_stop.clear();
        self.over_limit.clear();
        self.searched = Duration::ZERO;
        self.seen.clear();
        self.watching = hang::Watching::default();
        self.waited_elsewhere = false;
        self.stopping = None;
        self.attempt_started = None;
        (self.killed, self.told, self.told_while_going, self.told_started) = (false, false, false, false);
    }
}

/// What is specific to the command that started a job.
pub(crate) trait Door {
    /// Parts of the line about the plan.
    fn planned(&self, core: &Core) -> Vec<String>;

    /// Where a finding's replica ran, for display.
    fn place(&self, core: &Core, finding: &Finding) -> ReplicaPlace;

    /// Settings that all attempts of a plan share.
    fn common(&self, plan: &Plan) -> Common;

    /// Creates what an attempt needs before it can start.
    fn make(&mut self, _core: &mut Core, _id: AttemptId, _process: &Process) -> std::io::Result<()> {
        Ok(())
    }
    /// Called when these attempts are being started.
    fn starting(&mut self, _core: &mut Core, _: &[AttemptId]) {}
    /// Called when these attempts have been told to stop.
    fn stopping(&mut self, _core: &mut Core, _: &[AttemptId]) {}
    /// Called when an attempt has ended.
    fn ended(&mut self, _core: &Core, _id: AttemptId, _end: &End) {}
    /// True if the next attempt of the whole job uses the same ports.
    fn keeps_ports(&self) -> bool {
        true
    }
    /// Called when processes of the last attempt are gone, except those in `swept.remaining`. Prepares the next attempt
    /// and answers with [`Event::Prepared`], now or later.
    fn prepare(&mut self, core: &mut Core, _: &mut dyn Engine, attempt: u32, swept: &Swept) {
        core.now.begin_attempt();
        core.queue(Event::Prepared { attempt, ready: swept.remaining.is_empty() });
    }
    /// Reports the state of this node to the other nodes.
    fn stand(&mut self, _core: &mut Core, _: Stand) {}
    /// Tells the other nodes that this node's awaited servers are ready.
    fn tell_ready(&mut self, _attempt: u32) {}
    /// Waits for replicas of this role on other nodes. Answers, now and later, with [`Event::AnsweredElsewhere`].
    fn await_elsewhere(&mut self, _core: &mut Core, _role: u16, _attempt: u32) {}

    /// Additional descriptors to wait for.
    fn watch(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    /// Time when `hear` must be called even if nothing arrives.
    fn deadline(&self) -> Option<Timestamp> {
        None
    }
    /// Called when one of [`Door::watch`] is readable, or at the deadline. Events go to the queue.
    fn hear(&mut self, _: &mut Core, _: &mut dyn Engine) {}

    /// Called when a fact is recorded.
    fn observe(&mut self, _core: &mut Core, _fact: &Fact) {}
    /// Text before the explanation of a failure, or instead of it.
    fn report(&mut self, _core: &mut Core, _: &Verdict) -> FailureReport {
        FailureReport::default()
    }
    /// Origin of a stop on another node: `SIGINT on node …`.
    fn stopped_by(&self) -> Option<String> {
        None
    }
    /// Called after all attempts have ended and leftovers are stopped. True while messages or logs of other nodes are
    /// outstanding.
    fn is_busy(&mut self, _: &mut Core) -> bool {
        false
    }
    /// Ends that wait.
    fn give_up(&mut self, _: &mut Core) {}
    /// Sends the last messages to other nodes, before the end is recorded.
    fn close(&mut self, _: &mut Core) {}
}

/// A door's report of a failure.
#[derive(Debug, Default)]
pub(crate) struct FailureReport {
    /// Before the explanation.
    pub(crate) head: String,
    /// After it.
    pub(crate) tail: String,
    /// Replaces the explanation: no attempt is the cause.
    pub(crate) instead: bool,
    pub(crate) notice: Option<Diagnostic>,
}

/// A job from its first start to its exit code.
pub(crate) struct Driver {
    pub(crate) core: Core,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) door: Box<dyn Door>,
}

impl Driver {
    /// Takes over running attempts, as recorded: they keep their devices, and the mirror shows their new output.
    pub(crate) fn adopt(&mut self, adopted: &[AttemptId], status: &Status) {
        if adopted.is_empty() {
            return;
        }
        let core = &mut self.core;
        core.now.pending.clone_from(&status.pending);
        for slot in adopted.iter().map(|id| id.slot) {
            core.pool.take(slot, core.plan.role(slot).work.resources);
            let known = core.plan.at(slot).and_then(|replica| status.replica(&replica.name));
            if let Some(Stage::Running { instance, .. }) = known.map(|known| &known.stage) {
                core.now.instances.insert(slot, instance.clone());
            }
        }
        core.now.told_started = !core.now.instances.is_empty();
        let slots: Vec<Slot> = adopted.iter().map(|id| id.slot).collect();
        self.progress("Adopted", &[words::counted(&self.core.plan, &slots)]);
        self.core.set_console();
        for id in adopted {
            if let Some(log) = self.core.log(*id).filter(|_| self.core.is_shown(id.slot)) {
                let start = std::fs::metadata(&log.path).map_or(log.start, |metadata| metadata.len());
                self.follow(id.slot, &Log { start, ..log });
            }
        }
    }
}

impl Core {
    #[expect(clippy::too_many_arguments, reason = "each is made before the driver is, in its own way")]
    pub(crate) fn new(
        talk: Talk,
        style: Style,
        clock: Clock,
        sources: Sources,
        machine: Machine,
        screen: Screen,
        recorder: Recorder,
        plan: Arc<Plan>,
        pool: Pool,
    ) -> Self {
        let (now, kernel, prober) = (Now::default(), Kernel::from_now(), None);
        Self { talk, style, clock, sources, machine, screen, recorder, plan, pool, now, kernel, prober }
    }

    /// Applies the console options to the current plan. They were checked when the run began.
    fn set_console(&mut self) {
        self.now.console = self.talk.console(&self.plan).unwrap_or_default();
    }

    /// True if its output is shown on the console.
    pub(crate) fn is_shown(&self, slot: Slot) -> bool {
        self.now.console.shown.binary_search(&slot).is_ok()
    }

    /// Queues an event for the machine, after the current one.
    pub(crate) fn queue(&mut self, event: Event) {
        self.now.queue.push_back(event);
    }

    pub(crate) fn is_live(&self, slot: Slot) -> bool {
        self.machine.attempt_of(slot).is_some_and(Attempt::is_live)
    }

    pub(crate) fn slot_of(&self, subject: &Subject) -> Option<Slot> {
        self.plan.replica(subject.rank?).map(|replica| replica.slot)
    }

    pub(crate) fn pid(&self, slot: Slot) -> Option<u32> {
        self.now.instances.get(&slot)?.pid
    }

    /// The cluster node that runs it.
    pub(crate) fn node(&self, slot: Slot) -> Option<String> {
        self.now.instances.get(&slot)?.node.clone()
    }

    /// Records that servers on other nodes listen, except these.
    pub(crate) fn listen_elsewhere(&mut self, role: u16, attempt: u32, missing: Vec<String>) {
        if let Some(prober) = &mut self.prober {
            prober.await_elsewhere(missing.clone());
        }
        self.queue(Event::AnsweredElsewhere { role, attempt, missing });
    }

    /// Returns the port at which this attempt does not listen yet, if that is awaited.
    pub(crate) fn awaited_at(&self, id: AttemptId) -> Option<String> {
        self.prober.as_ref()?.awaited_at(id)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.plan.replicas.iter().map(|replica| replica.slot)
    }

    /// Returns the log of an attempt.
    pub(crate) fn log(&self, id: AttemptId) -> Option<Log> {
        self.plan.at(id.slot).map(|replica| self.plan.log(replica, id.attempt))
    }

    /// `attempt 1 of 3`, if a launched job can have several.
    pub(crate) fn attempt_words(&self) -> Option<String> {
        let attempt = self.machine.attempt();
        match self.plan.job.policy.restart.attempts() {
            _ if self.plan.is_document() => None,
            Some(1) => None,
            Some(attempts) => Some(format!("attempt {attempt} of {attempts}")),
            None => Some(format!("attempt {attempt}")),
        }
    }

    /// The plan as a fact for the journal.
    pub(crate) fn planned(&self) -> Fact {
        words::fact(&self.plan, &self.machine, &self.pool)
    }

    /// Prints for people: not in quiet or JSON mode.
    pub(crate) fn say(&self, text: impl FnOnce(&Style) -> String) {
        if self.talk.output == OutputMode::Human {
            self.screen.talk(text(&self.style));
        }
    }

    /// Like [`Core::say`], without delay.
    pub(crate) fn alert(&self, text: impl FnOnce(&Style) -> String) {
        if self.talk.output == OutputMode::Human {
            self.screen.alert(text(&self.style));
        }
    }

    /// Records a notice that is shown already.
    pub(crate) fn record_notice(&mut self, notice: &Diagnostic) {
        self.recorder.fact(Fact::Noticed { code: notice.code.to_string(), message: notice.message.clone() });
    }

    /// Records and shows a notice.
    pub(crate) fn notice(&mut self, notice: &Diagnostic) {
        self.record_notice(notice);
        self.say(|style| style.diagnostic(notice));
    }
}
