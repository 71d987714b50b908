//! The driver of every job, from `launch` or from a document.
//!
//! Waits for one event, asks the machine, records, performs. The machine decides, the engine runs attempts, the
//! recorder writes each fact before the action that it announces. Whatever is specific to the command that started the
//! job (other nodes, Paddle's own lines, task directories) is in its [`Door`]: a source of events and an observer of
//! facts.
//!
//! | part | in one sentence |
//! |---|---|
//! | [`job`] | one job: its machine, its plan, its state |
//! | [`steps`] | runs with several jobs |
//! | [`sources`] | signals, the control socket, and all other descriptors: waited for in one place |
//! | [`turn`] | one round of waiting, whose results are applied; the stages of a run |
//! | [`perform`] | effects of the machine, in order |
//! | [`record`] | writes facts to the journal, and to stdout for programs |
//! | [`note`] | updates the driver's state from recorded facts |
//! | [`hang`] | looks for progress of replicas |
//! | [`observe`] | what the others are doing when one has failed |
//! | [`gather`] | evidence for attempts that ended badly |
//! | [`tell`], [`words`] | console lines, and names for groups of replicas |
//! | [`tree`] | the nodes of a pipeline: a tree on a terminal, lines elsewhere |
//! | [`timers`] | pending timers |
//! | [`probe`] | ports that must be open before other replicas start |
//! | [`store`] | torch's store, if this process hosts it |
//! | [`control`], [`stop`], [`stacks`] | orders from other processes: both ends |

#![expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the path of a method is for one lifetime, and a job is borrowed for each call"
)]

pub(crate) mod control;
mod gather;
mod hang;
mod job;
mod note;
mod observe;
mod perform;
pub(crate) mod probe;
pub(crate) mod record;
pub(crate) mod sources;
pub(crate) mod stacks;
pub(crate) mod steps;
pub(crate) mod stop;
pub(crate) mod store;
mod tell;
mod timers;
pub(crate) mod tree;
mod turn;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use umiak_core::diag::Diagnostic;
use umiak_core::facts::{Fact, Finding, Verdict};
use umiak_core::machine::attempt::End;
use umiak_core::machine::job::{AttemptId, Event, Stand};
use umiak_core::model::{OutputMode, Show, Slot, StepIndex, StepName, Timestamp, Whose};
use umiak_core::plan::{Console, Log, Plan, Process};
use umiak_core::status::Status;

use crate::clock::{Clock, time_of_day};
use crate::engine::{Common, Engine, Swept};
use crate::host::kernel::Kernel;
use crate::screen::summary::ReplicaPlace;
use crate::screen::{MirrorTo, Screen, Style};

pub(crate) use job::JobRun;
pub(crate) use tell::short_signal;

use record::Recorder;
use sources::Sources;
use steps::{Conducted, Steps};
use tree::NodesShown;

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

/// What all jobs of a run share.
pub(crate) struct Run {
    pub(crate) talk: Talk,
    pub(crate) style: Style,
    pub(crate) clock: Clock,
    pub(crate) sources: Sources,
    pub(crate) screen: Screen,
    pub(crate) recorder: Recorder,
    kernel: Kernel,
    /// Shared with the thread that answers `umiak stacks`, while there is one.
    asked_stacks: Arc<()>,
    /// The job, and its attempt, whose common settings the engine has.
    shared: Option<(StepIndex, u32)>,
    /// Time of the next line that reports progress to a log.
    heartbeat_at: Option<Timestamp>,
    return_terminal: bool,
    /// Determines the exit code if the terminal is returned, which only a signal can cause.
    last_signal: i32,
    /// A signal or an order has asked for the end: the next signal kills during the sweep.
    is_asked: bool,
    /// Processes stopped between two attempts when the run ended.
    cleared: Vec<u32>,
    /// Result of the last sweep, once it is over.
    swept: Option<Swept>,
    /// What is shown of a pipeline's nodes.
    nodes: NodesShown,
}

/// One job, and what it shares with the other jobs of its run.
pub(crate) struct Core<'a> {
    pub(crate) run: &'a mut Run,
    pub(crate) job: &'a mut JobRun,
}

/// What is specific to the command that started a job.
pub(crate) trait Door {
    /// Parts of the line about the plan.
    fn planned(&self, core: &Core<'_>) -> Vec<String>;

    /// Where a finding's replica ran, for display.
    fn place(&self, core: &Core<'_>, finding: &Finding) -> ReplicaPlace;

    /// Settings that all attempts of a plan share.
    fn common(&self, plan: &Plan) -> Common;

    /// Creates what an attempt needs before it can start.
    fn make(&mut self, _core: &mut Core<'_>, _id: AttemptId, _process: &Process) -> std::io::Result<()> {
        Ok(())
    }
    /// Called when these attempts are being started.
    fn starting(&mut self, _core: &mut Core<'_>, _: &[AttemptId]) {}
    /// Called when these attempts have been told to stop.
    fn stopping(&mut self, _core: &mut Core<'_>, _: &[AttemptId]) {}
    /// Called when an attempt has ended.
    fn ended(&mut self, _core: &Core<'_>, _id: AttemptId, _end: &End) {}
    /// Called before the driver waits, and at its end: does what nothing waits for.
    fn settled(&mut self) {}
    /// True if the next attempt of the whole job uses the same ports.
    fn keeps_ports(&self) -> bool {
        true
    }
    /// Called when processes of the last attempt are gone, except those in `swept.remaining`. Prepares the next attempt
    /// and answers with [`Event::Prepared`], now or later.
    fn prepare(&mut self, core: &mut Core<'_>, _: &mut dyn Engine, attempt: u32, swept: &Swept) {
        core.job.now.begin_attempt();
        core.job.queue(Event::Prepared { attempt, ready: swept.remaining.is_empty() });
    }
    /// Reports the state of this node to the other nodes.
    fn stand(&mut self, _core: &mut Core<'_>, _: Stand) {}
    /// Tells the other nodes that this node's awaited servers are ready.
    fn tell_ready(&mut self, _attempt: u32) {}
    /// Waits for replicas of this role on other nodes. Answers, now and later, with [`Event::AnsweredElsewhere`].
    fn await_elsewhere(&mut self, _core: &mut Core<'_>, _role: u16, _attempt: u32) {}

    /// Additional descriptors to wait for.
    fn watch(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    /// Time when `hear` must be called even if nothing arrives.
    fn deadline(&self) -> Option<Timestamp> {
        None
    }
    /// Called when one of [`Door::watch`] is readable, or at the deadline. Events go to the queue.
    fn hear(&mut self, _: &mut Core<'_>, _: &mut dyn Engine) {}

    /// Called when a fact is recorded.
    fn observe(&mut self, _core: &mut Core<'_>, _fact: &Fact) {}
    /// Text before the explanation of a failure, or instead of it.
    fn report(&mut self, _core: &mut Core<'_>, _: &Verdict) -> FailureReport {
        FailureReport::default()
    }
    /// Origin of a stop on another node: `SIGINT on node …`.
    fn stopped_by(&self) -> Option<String> {
        None
    }
    /// Called after all attempts have ended and leftovers are stopped. True while messages or logs of other nodes are
    /// outstanding.
    fn is_busy(&mut self, _: &mut Core<'_>) -> bool {
        false
    }
    /// Ends that wait.
    fn give_up(&mut self, _: &mut Core<'_>) {}
    /// Sends the last messages to other nodes, before the end is recorded.
    fn close(&mut self, _: &mut Core<'_>) {}
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

/// A run from its first start to its exit code.
pub(crate) struct Driver {
    pub(crate) run: Run,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) door: Box<dyn Door>,
    /// The jobs that have not ended. A run of one job keeps it.
    pub(crate) jobs: BTreeMap<StepIndex, JobRun>,
    /// Where they come from, if there are several.
    conducted: Option<Conducted>,
}

/// One job of a run, with all that its effects need.
pub(crate) struct JobDriver<'a> {
    pub(crate) core: Core<'a>,
    pub(crate) engine: &'a mut dyn Engine,
    pub(crate) door: &'a mut dyn Door,
}

impl Driver {
    /// A run of one job.
    pub(crate) fn of_job(run: Run, engine: Box<dyn Engine>, door: Box<dyn Door>, job: JobRun) -> Self {
        Self { run, engine, door, jobs: BTreeMap::from([(job.machine.step_index(), job)]), conducted: None }
    }

    /// A run of several jobs.
    pub(crate) fn of_steps(run: Run, engine: Box<dyn Engine>, door: Box<dyn Door>, steps: Box<dyn Steps>) -> Self {
        Self { run, engine, door, jobs: BTreeMap::new(), conducted: Some(Conducted::new(steps)) }
    }

    /// Takes over the running attempts of the only job.
    pub(crate) fn adopt(&mut self, adopted: &[AttemptId], status: &Status) {
        self.with_first(|job| job.adopt(adopted, status));
    }

    /// A job that has not ended.
    fn job(&mut self, step: StepIndex) -> Option<JobDriver<'_>> {
        let core = Core { run: &mut self.run, job: self.jobs.get_mut(&step)? };
        Some(JobDriver { core, engine: self.engine.as_mut(), door: self.door.as_mut() })
    }

    /// The only job of a run, or the first that has not ended.
    pub(crate) fn first(&mut self) -> Option<JobDriver<'_>> {
        let first = *self.jobs.first_key_value()?.0;
        self.job(first)
    }

    fn with(&mut self, step: StepIndex, f: impl FnOnce(&mut JobDriver<'_>)) {
        if let Some(mut job) = self.job(step) {
            f(&mut job);
        }
        if self.conducted.is_some() {
            self.settle_job(step);
        }
    }

    fn with_first(&mut self, f: impl FnOnce(&mut JobDriver<'_>)) {
        if let Some(mut job) = self.first() {
            f(&mut job);
        }
    }

    /// The same for every job that has not ended.
    fn each(&mut self, mut f: impl FnMut(&mut JobDriver<'_>)) {
        let steps: Vec<StepIndex> = self.jobs.keys().copied().collect();
        for step in steps {
            self.with(step, &mut f);
        }
    }
}

impl JobDriver<'_> {
    /// Takes over running attempts, as recorded: they keep their devices, and the mirror shows their new output.
    fn adopt(&mut self, adopted: &[AttemptId], status: &Status) {
        if adopted.is_empty() {
            return;
        }
        self.core.job.take_over(adopted, status);
        let slots: Vec<Slot> = adopted.iter().map(|id| id.slot).collect();
        self.progress("Adopted", &[words::counted(&self.core.job.plan, &slots)]);
        self.core.set_console();
        for id in adopted {
            if let Some(log) = self.core.job.log(*id).filter(|_| self.core.job.is_shown(id.slot)) {
                let start = std::fs::metadata(&log.path).map_or(log.start, |metadata| metadata.len());
                self.follow(id.slot, &Log { start, ..log });
            }
        }
    }
}

impl Run {
    pub(crate) fn new(
        talk: Talk,
        style: Style,
        clock: Clock,
        sources: Sources,
        screen: Screen,
        recorder: Recorder,
    ) -> Self {
        Self {
            talk,
            style,
            clock,
            sources,
            screen,
            recorder,
            kernel: Kernel::from_now(),
            asked_stacks: Arc::default(),
            shared: None,
            heartbeat_at: None,
            return_terminal: false,
            last_signal: 0,
            is_asked: false,
            cleared: Vec::new(),
            swept: None,
            nodes: NodesShown::default(),
        }
    }

    /// Prints for people: not in quiet or JSON mode.
    pub(crate) fn say(&self, text: impl FnOnce(&Style) -> String) {
        if self.talk.output == OutputMode::Human {
            self.screen.talk(text(&self.style));
        }
    }

    /// Like [`Run::say`], without delay.
    pub(crate) fn alert(&self, text: impl FnOnce(&Style) -> String) {
        if self.talk.output == OutputMode::Human {
            self.screen.alert(text(&self.style));
        }
    }

    /// Records a notice about a step, or about the run, that is shown already.
    pub(crate) fn record_notice(&mut self, step: Option<&StepName>, notice: &Diagnostic) {
        let fact = Fact::Noticed { code: notice.code.to_string(), message: notice.message.clone() };
        self.recorder.fact(step, fact);
    }

    /// A line about the progress of the run.
    pub(crate) fn progress(&self, verb: &str, parts: &[String]) {
        self.say(|style| style.progress(verb, parts, &time_of_day()));
    }
}

/// Which output of a step is shown: none, unless `--show` asks for all, or for the step by its name.
fn step_show(step: &StepName, show: &Show) -> Show {
    match show {
        Show::First | Show::All => show.clone(),
        Show::Some(whose) if whose.names(step.as_str()) => Show::All,
        Show::Usual | Show::None | Show::Some(_) => Show::None,
    }
}

impl Core<'_> {
    /// Applies the console options to the current plan. They were checked when the run began.
    fn set_console(&mut self) {
        let Talk { show, stdin, .. } = &self.run.talk;
        let console = match &self.job.step {
            None => self.job.plan.console(show, stdin.as_ref()),
            Some(step) => self.job.plan.console(&step_show(step, show), None),
        };
        self.job.now.console = console.unwrap_or_default();
    }

    /// Queues a fact about the job, to be written before the next effect.
    pub(crate) fn fact(&mut self, fact: Fact) {
        self.run.recorder.fact(self.job.step.as_ref(), fact);
    }

    /// Prints for people: not in quiet or JSON mode.
    pub(crate) fn say(&self, text: impl FnOnce(&Style) -> String) {
        self.run.say(text);
    }

    /// Like [`Core::say`], without delay.
    pub(crate) fn alert(&self, text: impl FnOnce(&Style) -> String) {
        self.run.alert(text);
    }

    /// Records and shows a notice.
    pub(crate) fn notice(&mut self, notice: &Diagnostic) {
        self.run.record_notice(self.job.step.as_ref(), notice);
        self.say(|style| style.diagnostic(notice));
    }
}
