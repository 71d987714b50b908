//! The job: gang start, the first failure, stopping, the settle window, the verdict, the end.
//!
//! ```text
//! Start ─► who need not wait starts ─► … ─► all deciding roles succeeded ─► stop the others ─► Finish
//!                                   └► a role failed ─► all are asked to end ─► grace ─► they are killed
//!                                        │               (exits keep coming)
//!                                        └► settle window, closed early when everybody is over
//!                                             └► Gather evidence ─► Diagnosed, Report ─► all are over ─┬► Finish
//!                                                     every attempt starts, as a new one ◄─ back-off ◄─┘
//! ```
//!
//! The cost of an event does not depend on how many replicas there are: [`replicas`] keeps counts. Only what concerns all
//! of them, such as a start or a stop, looks at each.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::machine::attempt::{self, Attempt};
use crate::machine::exit_code::CodeStyle;
use crate::machine::restart::Past;
use crate::model::{FIRST_ATTEMPT, Job, Rank, Slot, StepIndex, Timestamp};

mod attempts;
mod decide;
mod limits;
mod messages;
mod names;
mod order;
mod phase;
mod recover;
mod replicas;
mod restart;
mod retry;
mod roles;
mod several;
mod stopping;
mod timers;
mod verdict;

pub use messages::{AttemptId, Decided, Effect, Event, Of, Stand, Timer};
use phase::Phase;
pub use recover::Again;
use replicas::Replicas;
use roles::RoleState;
pub use several::NODE_LOST;
use verdict::Failure;

/// The state of a job.
#[derive(Debug, Clone)]
pub struct Machine {
    job: Job,
    /// Which job of the run this is.
    step: StepIndex,
    style: CodeStyle,
    /// For the jitter of back-offs.
    seed: u64,
    names: names::Names,
    observer: Option<Observer>,
    phase: Phase,
    replicas: Replicas,
    roles: Vec<RoleState>,
    /// Whether the attempt has failed, and what is known about why.
    failure: Failure,
    /// Of the whole job: the one that runs, or in a pause the one that failed.
    attempt: u32,
    /// The position of the next exit in the order of exits.
    order: u64,
    /// When the whole job was started again.
    restarts: Past,
    /// How long earlier supervisors were there.
    supervised: Duration,
    /// Something that waits may have become due.
    look_for_starts: bool,
    /// Timers that were asked for and have not fired.
    armed: BTreeSet<Timer>,
    /// How often a signal asked for a stop, and how often `umiak stop` did.
    signals: u32,
    stops: u32,
    engine_lost: bool,
    /// Where other nodes take part: what we told them, and what we were told.
    several: Option<several::Several>,
}

/// Sees every event an attempt is given, with the state it stands in.
pub type Observer = fn(&Attempt, &attempt::Event);

impl Machine {
    /// The seed decides the jitter of back-offs, and nothing else.
    pub fn new(job: Job, style: CodeStyle, seed: u64) -> Self {
        Self {
            replicas: Replicas::new(job.roles.iter().map(|role| role.replicas)),
            roles: vec![RoleState::default(); job.roles.len()],
            job,
            step: StepIndex::default(),
            style,
            seed,
            names: names::Names::default(),
            observer: None,
            phase: Phase::NotStarted(None),
            failure: Failure::default(),
            attempt: FIRST_ATTEMPT,
            order: 0,
            restarts: Past::default(),
            supervised: Duration::ZERO,
            look_for_starts: false,
            armed: BTreeSet::new(),
            signals: 0,
            stops: 0,
            engine_lost: false,
            several: None,
        }
    }

    /// One job of several of a run: every attempt is stamped with this, and events of other steps are not its own.
    #[must_use]
    pub fn of_step(mut self, step: StepIndex) -> Self {
        self.step = step;
        self
    }

    /// One node of several: its ranks count from here.
    #[must_use]
    pub fn ranks_from(mut self, first: Rank) -> Self {
        self.names.first_rank = first;
        self
    }

    /// What the replicas of each role are numbered over all nodes, by index.
    #[must_use]
    pub fn numbered(mut self, numbers: Vec<Vec<u32>>) -> Self {
        self.names.numbers = Some(numbers);
        self
    }

    /// For tests that count which transitions were taken.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// The transition function: synchronous, pure but for `self`, total.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.is_finished() {
            self.ignore(&event, &mut effects);
            return effects;
        }
        match event {
            Event::Start if !self.has_started() => self.start(now, &mut effects),
            Event::Started { id, instance } if self.is_current(id) => {
                self.attempt_started(id.slot, instance, now, &mut effects);
            }
            Event::Ready { id } if self.is_current(id) => self.ready(id, &mut effects),
            Event::AnsweredElsewhere { role, attempt, missing } => {
                self.answered_elsewhere(role, attempt, missing, &mut effects);
            }
            Event::Inspected { id, evidence } => self.inspected(id, evidence, &mut effects),
            Event::Exited { id, exit, usage } if self.is_current(id) => {
                self.exited(id.slot, exit, usage, now, &mut effects);
            }
            Event::Start | Event::Started { .. } | Event::Ready { .. } | Event::Exited { .. } => {
                self.ignore(&event, &mut effects);
            }
            Event::StopAsked { kill } => self.stop_asked(kill, now, &mut effects),
            Event::Signalled { signal } => self.signalled(signal, now, &mut effects),
            Event::Timer(timer, attempt) => self.timer(timer, attempt, now, &mut effects),
            Event::Gathered(evidence) => self.gathered(evidence, &mut effects),
            Event::Prepared { attempt, ready } => self.prepared(attempt, ready, &mut effects),
            Event::EngineLost => self.lose_engine(now, &mut effects),
            Event::StoppedElsewhere(reason) => self.stopped_elsewhere(reason, now, &mut effects),
            Event::Decided(decided) => self.decided(*decided, now, &mut effects),
            Event::Alone => self.alone(now, &mut effects),
        }
        self.advance(now, &mut effects);
        effects
    }

    /// Which attempt runs.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How many attempts live, and how many there are.
    pub fn live(&self) -> (usize, usize) {
        (self.replicas.total().live() as usize, self.replicas.total().all() as usize)
    }

    /// The same of one role.
    pub fn live_of(&self, role: u16) -> (usize, usize) {
        (self.replicas.of_role(role).live() as usize, self.replicas.of_role(role).all() as usize)
    }

    /// How many attempts were asked for, and have not started yet.
    pub fn starting(&self) -> usize {
        self.replicas.total().starting() as usize
    }

    /// How many replicas are not started, in a back-off or behind others.
    pub fn waiting(&self) -> usize {
        self.replicas.total().waiting() as usize
    }

    /// The attempts that live. Looks at all replicas.
    pub fn live_ids(&self) -> Vec<AttemptId> {
        self.replicas.iter().filter(|(_, replica)| replica.attempt.is_live()).map(|(slot, _)| self.id(slot)).collect()
    }

    pub fn attempt_of(&self, slot: Slot) -> Option<&Attempt> {
        self.replicas.find(slot).map(|replica| &replica.attempt)
    }

    /// The attempt that a replica is at.
    pub fn id(&self, slot: Slot) -> AttemptId {
        AttemptId { step: self.step, slot, attempt: self.number(slot) }
    }

    /// Which attempt of this replica runs, ran last, or will be the next after a back-off.
    pub fn number(&self, slot: Slot) -> u32 {
        self.replicas.get(slot).number
    }

    /// How often a replica was looked at so far. For tests: this per event does not grow with the job.
    pub fn visits(&self) -> u64 {
        self.replicas.visits()
    }

    /// Which job of the run this is.
    pub fn step_index(&self) -> StepIndex {
        self.step
    }

    /// Whether the counts are what counting anew would give. For tests: they always are.
    pub fn is_counted(&self) -> bool {
        self.replicas.are_counted()
    }

    fn is_current(&self, id: AttemptId) -> bool {
        self.replicas.find(id.slot).is_some() && id == self.id(id.slot)
    }

    fn start(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.phase = self.stop().copied().map_or(Phase::Running, Phase::Stopping);
        self.take_over(now, effects);
        // A signal that came first is obeyed first: nothing is started only to be stopped.
        if self.stop().is_some() {
            return;
        }
        self.arm_deadline(now, effects);
        self.look_for_starts = true;
        self.begin_waits(now, effects);
        if self.engine_lost {
            // Nothing is left that could start them or tell how they ended.
            self.start_due(now, effects);
            effects.retain(|effect| !matches!(effect, Effect::Spawn(_)));
            self.lose_live(now, effects);
        }
    }

    fn ignore(&self, event: &Event, effects: &mut Vec<Effect>) {
        let state = if self.is_finished() { "Finished".to_owned() } else { format!("attempt {}", self.attempt) };
        effects.push(Effect::Record(crate::facts::Fact::Ignored { event: event.describe(), state }));
    }
}

#[cfg(test)]
mod tests;
