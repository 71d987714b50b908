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
//! | [`tell`] | what a person is told meanwhile |
//! | [`timers`] | what is due when |
//! | [`probe`] | ports that have to answer before others start |
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

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Instant;

use umiak_core::diag::Diagnostic;
use umiak_core::facts::{Fact, Finding, Outcome, StopReason, Usage, Verdict};
use umiak_core::formats::launch::OutputMode;
use umiak_core::machine::attempt::Attempt;
use umiak_core::machine::job::{AttemptId, Event, Machine, Stand};
use umiak_core::model::{Exit, Instance, Job, Slot, SpawnError, Timestamp};
use umiak_core::plan::Awaited;

use crate::clock::Clock;
use crate::engine::{Engine, Start, Swept};
use crate::host::kernel::Kernel;
use crate::screen::summary::{Crowd, ReplicaPlace};
use crate::screen::{MirrorTo, Screen, Style};

pub(crate) use tell::short_signal;

use probe::Prober;
use record::Recorder;
use sources::Sources;
use timers::Timers;

/// How a run talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Talk {
    pub(crate) output: OutputMode,
    /// With JSON: the mirror goes to stderr.
    pub(crate) mirror: bool,
    pub(crate) ascii: bool,
    pub(crate) no_progress: bool,
    /// There is no terminal: lines go to a file, and the mirror nowhere.
    pub(crate) detached: bool,
}

impl Talk {
    pub(crate) fn style(self) -> Style {
        Style::detect(self.ascii, self.no_progress || self.detached || self.output != OutputMode::Human)
    }

    pub(crate) fn screen(self, style: &Style) -> Result<Screen, Diagnostic> {
        let mirror_to = match (self.output, self.mirror) {
            _ if self.detached => MirrorTo::Nowhere,
            (OutputMode::Json, true) => MirrorTo::Stderr,
            (OutputMode::Json, false) => MirrorTo::Nowhere,
            (OutputMode::Human | OutputMode::Quiet, _) => MirrorTo::Stdout,
        };
        Screen::start(style.clone(), mirror_to).map_err(|error| crate::engine::failed("start its screen", &error))
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
    /// Why nothing runs, as it was told last.
    pending: Option<String>,
    /// What the mirror shows.
    followed: Option<PathBuf>,
    pub(crate) attempt_started: Option<Instant>,
    /// The attempt of the job for which room is made.
    preparing: Option<u32>,
    return_terminal: bool,
    /// The terminal is given back after a signal, never before.
    last_signal: i32,
    pub(crate) end: Option<(Outcome, u8)>,
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

/// Why an attempt is not started now.
pub(crate) enum NotStarted {
    /// Devices are not free.
    Waits,
    /// There is no room on the disk for this.
    Full(PathBuf, std::io::Error),
    Failed(SpawnError),
}

/// Where an attempt writes, and what it may leave.
pub(crate) struct LogOf {
    pub(crate) path: PathBuf,
    /// Where this attempt's part begins.
    pub(crate) start: u64,
    /// Where torch may leave its error.
    pub(crate) error_file: PathBuf,
    /// Other runs and attempts write to the same file.
    pub(crate) shared: bool,
}

/// The way a job came in: what only that way has.
pub(crate) trait Door {
    fn job(&self) -> &Job;

    /// `4 ranks`, `2 servers and 1 trainer`, `4 replicas`.
    fn counted(&self, slots: &[Slot]) -> String;
    /// `ranks 0-3`, `trainer-0-3, pserver-1`.
    fn crowd(&self, slots: &[Slot]) -> Crowd;
    /// What one of many is called, in the plural.
    fn noun(&self) -> &'static str;
    fn place(&self, core: &Core, finding: &Finding) -> ReplicaPlace;
    /// `attempt 1 of 3`, where there can be several.
    fn attempt_words(&self, core: &Core) -> Option<String>;
    /// What the line about the plan says.
    fn planned(&self, core: &Core) -> Vec<String>;
    /// Name and status of the job, for the status line.
    fn status(&self, core: &Core) -> Option<crate::screen::StatusLine>;
    /// The end of a run has a line of its own, which names it.
    fn names_its_end(&self) -> bool;
    /// The log directory, for facts about full file systems.
    fn log_dir(&self) -> PathBuf;
    /// Whose output is shown.
    fn mirrored(&self) -> Option<Slot>;
    fn log(&self, id: AttemptId) -> Option<LogOf>;
    /// The limit of memory of a replica, where it has one.
    fn memory_limit(&self, _: Slot) -> Option<u64> {
        None
    }
    /// Where an attempt answers when it is ready.
    fn answers(&self, slot: Slot) -> Vec<Awaited>;

    /// Makes what an attempt needs.
    fn start(&mut self, core: &mut Core, id: AttemptId) -> Result<Start, NotStarted>;
    /// These are being started.
    fn starting(&mut self, _core: &mut Core, _: &[AttemptId]) {}
    /// These have been asked to end.
    fn stopping(&mut self, _core: &mut Core, _: &[AttemptId]) {}
    /// An attempt has ended: gives back what it had.
    fn release(&mut self, _id: AttemptId, _exit: &Exit, _by_us: bool, _usage: Option<Usage>) {}
    /// The next attempt of the whole job has the ports of the last one.
    fn keeps_ports(&self) -> bool {
        true
    }
    /// Nothing of the last attempt is left, but for what did not go: makes room for the next one, and answers with
    /// [`Event::Prepared`], now or later.
    fn prepare(&mut self, core: &mut Core, _: &mut dyn Engine, attempt: u32, swept: &Swept) {
        core.queue(Event::Prepared { attempt, ready: swept.remaining.is_empty() });
    }
    /// Tells the other nodes how things stand here.
    fn stand(&mut self, _core: &mut Core, _: Stand) {}
    /// Replicas of this role on other nodes that have to answer.
    fn elsewhere(&self, _role: u16) -> Vec<Awaited> {
        Vec::new()
    }

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
    fn report(&mut self, _core: &mut Core, _: &Verdict) -> Report {
        Report::default()
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
    /// The end is recorded: the last words to other nodes, and lines of its own.
    fn close(&mut self, _: &mut Core) {}
}

/// What a door says about a failure.
#[derive(Debug, Default)]
pub(crate) struct Report {
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
    core: Core,
    engine: Box<dyn Engine>,
    door: Box<dyn Door>,
}

/// What a driver begins with.
pub(crate) struct Beginning {
    pub(crate) talk: Talk,
    pub(crate) style: Style,
    pub(crate) clock: Clock,
    pub(crate) sources: Sources,
    pub(crate) machine: Machine,
    pub(crate) screen: Screen,
    pub(crate) recorder: Recorder,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) door: Box<dyn Door>,
}

impl Driver {
    pub(crate) fn new(beginning: Beginning) -> Self {
        let Beginning { talk, style, clock, sources, machine, screen, recorder, engine, door } = beginning;
        let (now, kernel, prober) = (Now::default(), Kernel::from_now(), None);
        Self {
            core: Core { talk, style, clock, sources, machine, screen, recorder, now, kernel, prober },
            engine,
            door,
        }
    }
}

impl Core {
    /// For the machine, after what it is being asked about now.
    pub(crate) fn queue(&mut self, event: Event) {
        self.now.queue.push_back(event);
    }

    pub(crate) fn id(&self, slot: Slot) -> AttemptId {
        self.machine.id(slot)
    }

    pub(crate) fn is_live(&self, slot: Slot) -> bool {
        self.machine.attempt_of(slot).is_some_and(Attempt::is_live)
    }

    pub(crate) fn pid(&self, slot: Slot) -> Option<u32> {
        self.now.instances.get(&slot)?.pid
    }

    /// Where this attempt has not answered yet, if that is waited for.
    pub(crate) fn awaited_at(&self, id: AttemptId) -> Option<&str> {
        self.prober.as_ref()?.awaited_at(id)
    }

    /// All that live, in the order of the roles.
    pub(crate) fn live(&self, job: &Job) -> Vec<AttemptId> {
        slots(job).filter(|slot| self.is_live(*slot)).map(|slot| self.id(slot)).collect()
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

/// Every replica of a job.
pub(crate) fn slots(job: &Job) -> impl Iterator<Item = Slot> {
    let roles = job.roles.iter().enumerate();
    roles.flat_map(|(role, of)| (0..of.replicas).map(move |index| Slot { role: role as u16, index }))
}
