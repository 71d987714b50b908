//! The one driver of every job: `launch`, documents, and whatever comes through another door.
//!
//! It waits for one event, asks the machine, records, performs. The machine decides, the engine runs attempts, the
//! recorder writes facts before what they announce is done. What is particular to the way a job came in (peers, Paddle's own
//! lines, task directories) is its [`Door`]: a source of events and an observer of facts.
//!
//! | part | in one sentence |
//! |---|---|
//! | [`sources`] | signals, the control socket, and whatever else is waited for: heard in one place |
//! | [`turn`] | one round of waiting, and what arrived is applied; the stages of a run |
//! | [`perform`] | effects of the machine, in order |
//! | [`record`] | facts on their way to the journal, and to stdout for programs |
//! | [`note`] | what a recorded fact changes in what the driver knows |
//! | [`gather`] | evidence of attempts that ended badly |
//! | [`tell`], [`words`] | what a person is told meanwhile, and how replicas are spoken of |
//! | [`timers`] | what is due when |
//! | [`probe`] | ports that must be listened at before others start |
//! | [`control`], [`stop`] | orders of other processes: both ends |

pub(crate) mod control;
mod gather;
mod note;
mod perform;
pub(crate) mod probe;
pub(crate) mod record;
pub(crate) mod sources;
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
use std::time::Instant;

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
use crate::screen::summary::ReplicaPlace;
use crate::screen::{MirrorTo, Screen, Style};

pub(crate) use tell::short_signal;

use probe::Prober;
use record::Recorder;
use sources::Sources;
use timers::Timers;

/// How a run talks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Talk {
    pub(crate) output: OutputMode,
    /// With JSON: the mirror goes to stderr.
    pub(crate) mirror: bool,
    /// Whose output is on the console.
    pub(crate) show: Show,
    /// Which replica has our stdin, if that was said.
    pub(crate) stdin: Option<Whose>,
    pub(crate) ascii: bool,
    pub(crate) no_progress: bool,
    /// There is no terminal: lines go to a file, and the mirror nowhere.
    pub(crate) detached: bool,
}

impl Talk {
    pub(crate) fn style(&self) -> Style {
        let style = Style::detect(self.ascii, self.no_progress || self.detached || self.output != OutputMode::Human);
        // What a person types to a rank would end up behind the status line.
        let is_typed = self.stdin.is_some() && std::io::stdin().is_terminal();
        Style { live: style.live && !is_typed, ..style }
    }

    /// Checks that those whom `--show` and `--stdin` name are there.
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
        Screen::start(style.clone(), mirror_to).map_err(|error| Diagnostic::failed("start its screen", &error))
    }
}

/// What the driver and every door work with.
pub(crate) struct Core {
    pub(crate) talk: Talk,
    pub(crate) style: Style,
    pub(crate) clock: Clock,
    pub(crate) sources: Sources,
    pub(crate) machine: Machine,
    pub(crate) screen: Screen,
    pub(crate) recorder: Recorder,
    /// Of the current attempt of the job.
    pub(crate) plan: Arc<Plan>,
    pub(crate) pool: Pool,
    pub(crate) now: Now,
    kernel: Kernel,
    prober: Option<Prober>,
}

/// Where a run stands: nothing of this is there when it begins.
#[derive(Default)]
pub(crate) struct Now {
    /// What follows from what was done or heard.
    queue: VecDeque<Event>,
    timers: Timers,
    /// Their starts are not in the journal yet.
    unrecorded: Vec<AttemptId>,
    /// They wait for devices.
    waiting: Vec<AttemptId>,
    /// Some have been given back.
    is_freed: bool,
    /// What runs, as the engine knows it.
    pub(crate) instances: HashMap<Slot, Instance>,
    /// How the current attempt of each ended, and whether by us.
    pub(crate) ends: HashMap<Slot, (Exit, bool)>,
    /// How long each log was when its replica was first asked to end: what stands before is its own account.
    log_at_stop: HashMap<Slot, u64>,
    /// Something of their current attempt was killed, because it was at its limit of memory.
    over_limit: HashSet<Slot>,
    /// Since when, and why, everything is being stopped.
    pub(crate) stopping: Option<(Instant, StopReason)>,
    pub(crate) killed: bool,
    pub(crate) abandoned: bool,
    /// Something was told that makes a status line superfluous.
    pub(crate) told: bool,
    /// Attempts were still going when the verdict was told.
    told_while_going: bool,
    told_started: bool,
    /// The engine knows what the attempts of this plan have in common.
    shared: Option<u32>,
    /// Why nothing runs, as it was told last.
    pending: Option<String>,
    /// The files that are mirrored.
    followed: HashMap<Slot, PathBuf>,
    /// What of the plan's replicas has to do with the console.
    console: Console,
    /// When the next line says that the run goes on, in a log.
    heartbeat_at: Option<Timestamp>,
    pub(crate) attempt_started: Option<Instant>,
    /// The attempt of the job for which room is made.
    preparing: Option<u32>,
    return_terminal: bool,
    /// The terminal is given back after a signal, never before.
    last_signal: i32,
    pub(crate) end: Option<(Outcome, u8)>,
    /// A signal or an order has asked for the end: the next signal hurries the last sweep.
    is_asked: bool,
    /// What was stopped between two attempts when the end came.
    cleared: Vec<u32>,
    /// What the last sweep stopped, once it is over.
    swept: Option<Swept>,
    /// The last fact. It waits until nothing is left of the run: its readers may take that for granted.
    last: Option<Fact>,
}

impl Now {
    /// Another attempt of the whole job: nothing of the last one counts any more.
    pub(crate) fn begin_attempt(&mut self) {
        self.instances.clear();
        self.ends.clear();
        self.log_at_stop.clear();
        self.over_limit.clear();
        self.stopping = None;
        (self.killed, self.told, self.told_while_going, self.told_started) = (false, false, false, false);
    }
}

/// The way a job came in: what only that way has.
pub(crate) trait Door {
    /// What the line about the plan says.
    fn planned(&self, core: &Core) -> Vec<String>;

    /// Where a finding's replica ran, for people.
    fn place(&self, core: &Core, finding: &Finding) -> ReplicaPlace;

    /// What the attempts of a plan have in common.
    fn common(&self, plan: &Plan) -> Common;

    /// Makes what an attempt needs before it can start.
    fn make(&mut self, _core: &mut Core, _id: AttemptId, _process: &Process) -> std::io::Result<()> {
        Ok(())
    }
    /// These are being started.
    fn starting(&mut self, _core: &mut Core, _: &[AttemptId]) {}
    /// These have been asked to end.
    fn stopping(&mut self, _core: &mut Core, _: &[AttemptId]) {}
    /// An attempt is over.
    fn ended(&mut self, _core: &Core, _id: AttemptId, _end: &End) {}
    /// The next attempt of the whole job has the ports of the last one.
    fn keeps_ports(&self) -> bool {
        true
    }
    /// Nothing of the last attempt is left, but for what did not go: makes room for the next one, and answers with
    /// [`Event::Prepared`], now or later.
    fn prepare(&mut self, core: &mut Core, _: &mut dyn Engine, attempt: u32, swept: &Swept) {
        core.now.begin_attempt();
        core.queue(Event::Prepared { attempt, ready: swept.remaining.is_empty() });
    }
    /// Tells the other nodes how things stand here.
    fn stand(&mut self, _core: &mut Core, _: Stand) {}
    /// Tells the other nodes that what they wait for is ready here.
    fn tell_ready(&mut self, _attempt: u32) {}
    /// Some of this role on other nodes are waited for: from now on, and for what is known already, the answer is
    /// [`Event::AnsweredElsewhere`].
    fn await_elsewhere(&mut self, _core: &mut Core, _role: u16, _attempt: u32) {}

    /// Other descriptors that are waited for.
    fn watch(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    /// When it wants to be asked, whatever arrives.
    fn deadline(&self) -> Option<Timestamp> {
        None
    }
    /// Some of [`Door::watch`] are readable, or it is time. Events go to the queue.
    fn hear(&mut self, _: &mut Core, _: &mut dyn Engine) {}

    /// A fact is recorded.
    fn observe(&mut self, _core: &mut Core, _fact: &Fact) {}
    /// Words that stand before the explanation of a failure, or instead of it.
    fn report(&mut self, _core: &mut Core, _: &Verdict) -> FailureReport {
        FailureReport::default()
    }
    /// Where the end was asked for, if not here: `SIGINT on node …`.
    fn stopped_by(&self) -> Option<String> {
        None
    }
    /// All attempts are over, and what they left behind is gone. What is still to be sent to other nodes, or to come
    /// from them, is waited for as long as this is true.
    fn is_busy(&mut self, _: &mut Core) -> bool {
        false
    }
    /// It is not to be waited for.
    fn give_up(&mut self, _: &mut Core) {}
    /// The last words to other nodes, before the end is recorded.
    fn close(&mut self, _: &mut Core) {}
}

/// What a door says about a failure.
#[derive(Debug, Default)]
pub(crate) struct FailureReport {
    /// Before the explanation.
    pub(crate) head: String,
    /// After it.
    pub(crate) tail: String,
    /// All there is to say: no attempt is the cause.
    pub(crate) instead: bool,
    pub(crate) notice: Option<Diagnostic>,
}

/// A job on its way from its first start to its exit code.
pub(crate) struct Driver {
    pub(crate) core: Core,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) door: Box<dyn Door>,
}

impl Driver {
    /// These run on, as they stand in the facts: what they have for themselves is theirs, and the mirror shows what they
    /// will write.
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

    /// For the plan that is executed now. Its words were checked when the run began.
    fn set_console(&mut self) {
        self.now.console = self.talk.console(&self.plan).unwrap_or_default();
    }

    /// Its output is on the console.
    pub(crate) fn is_shown(&self, slot: Slot) -> bool {
        self.now.console.shown.binary_search(&slot).is_ok()
    }

    /// For the machine, after what it is being asked about now.
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

    /// The node of a cluster that runs it.
    pub(crate) fn node(&self, slot: Slot) -> Option<String> {
        self.now.instances.get(&slot)?.node.clone()
    }

    /// Some servers on other nodes listen: these do not yet.
    pub(crate) fn listen_elsewhere(&mut self, role: u16, attempt: u32, missing: Vec<String>) {
        if let Some(prober) = &mut self.prober {
            prober.await_elsewhere(missing.clone());
        }
        self.queue(Event::AnsweredElsewhere { role, attempt, missing });
    }

    /// Where this attempt does not listen yet, if that is waited for.
    pub(crate) fn awaited_at(&self, id: AttemptId) -> Option<String> {
        self.prober.as_ref()?.awaited_at(id)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.plan.replicas.iter().map(|replica| replica.slot)
    }

    /// What an attempt writes.
    pub(crate) fn log(&self, id: AttemptId) -> Option<Log> {
        self.plan.at(id.slot).map(|replica| self.plan.log(replica, id.attempt))
    }

    /// `attempt 1 of 3`, where a launched job can have several.
    pub(crate) fn attempt_words(&self) -> Option<String> {
        let attempt = self.machine.attempt();
        match self.plan.job.policy.restart.attempts() {
            _ if self.plan.is_document() => None,
            Some(1) => None,
            Some(attempts) => Some(format!("attempt {attempt} of {attempts}")),
            None => Some(format!("attempt {attempt}")),
        }
    }

    /// The plan as the journal has it.
    pub(crate) fn planned(&self) -> Fact {
        words::fact(&self.plan, &self.machine, &self.pool)
    }

    /// Lines for people: not in quiet or JSON mode.
    pub(crate) fn say(&self, text: impl FnOnce(&Style) -> String) {
        if self.talk.output == OutputMode::Human {
            self.screen.talk(text(&self.style));
        }
    }

    /// The same for what cannot wait.
    pub(crate) fn alert(&self, text: impl FnOnce(&Style) -> String) {
        if self.talk.output == OutputMode::Human {
            self.screen.alert(text(&self.style));
        }
    }

    /// Recorded, and told.
    pub(crate) fn notice(&mut self, notice: &Diagnostic) {
        self.recorder.fact(Fact::Noticed { code: notice.code.to_string(), message: notice.message.clone() });
        self.say(|style| style.diagnostic(notice));
    }
}
