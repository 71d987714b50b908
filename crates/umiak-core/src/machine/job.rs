//! The job: gang start, the first failure, stopping, the settle window, the verdict, the end.
//!
//! ```text
//! Start ─► roles that need not wait start ─► … ─► all deciding roles succeeded ─► stop the others ─► Finish
//!                                         └► a role failed ─► SIGTERM to all ─► grace ─► SIGKILL
//!                                              │             (exits keep coming)
//!                                              └► settle window, closed early when all have ended
//!                                                   └► Gather evidence ─► Diagnosed, Report ─► all ended ─┬► Finish
//!                                                        every replica starts a new attempt ◄─ back-off ◄─┘
//! ```
//!
//! The cost of an event does not depend on the number of replicas: [`replicas`] keeps counts. Only events that concern
//! all of them, such as a start or a stop, visit each one.

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

pub use messages::{AttemptId, Decided, Effect, Event, Gathered, Of, Stand, Timer};
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
    /// Position of this job in the run.
    step: StepIndex,
    style: CodeStyle,
    /// Jitter of back-offs.
    seed: u64,
    names: names::Names,
    observer: Option<Observer>,
    phase: Phase,
    replicas: Replicas,
    roles: Vec<RoleState>,
    failure: Failure,
    /// Attempt of the whole job: the running one, or during a pause the one that failed.
    attempt: u32,
    /// Position of the next exit in the order of exits.
    order: u64,
    /// When the whole job was restarted.
    restarts: Past,
    /// How many attempts ended because the members of an elastic job changed: they are not limited.
    changes: u32,
    /// Total time under earlier supervisors.
    supervised: Duration,
    /// A waiting replica may have become due.
    look_for_starts: bool,
    /// Timers that are armed and have not fired.
    armed: BTreeSet<Timer>,
    /// How many signals, and how many `umiak stop` requests, have asked for a stop.
    signals: u32,
    stops: u32,
    /// The engine is gone for good.
    engine_lost: bool,
    /// The engine was lost in this attempt of the job and can be started again.
    engine_failed: bool,
    /// With several nodes: the last report to the other nodes, and their decision.
    several: Option<several::Several>,
}

/// Called for every event of an attempt, with the state before it.
pub type Observer = fn(&Attempt, &attempt::Event);

impl Machine {
    /// The seed affects only the jitter of back-offs.
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
            changes: 0,
            supervised: Duration::ZERO,
            look_for_starts: false,
            armed: BTreeSet::new(),
            signals: 0,
            stops: 0,
            engine_lost: false,
            engine_failed: false,
            several: None,
        }
    }

    /// Sets the position in a run of several jobs. Attempts carry it, and events of other steps are ignored.
    #[must_use]
    pub fn of_step(mut self, step: StepIndex) -> Self {
        self.step = step;
        self
    }

    /// Sets the first rank of this node.
    #[must_use]
    pub fn ranks_from(mut self, first: Rank) -> Self {
        self.names.first_rank = first;
        self
    }

    /// Sets the numbers of each role's replicas over all nodes, by index.
    #[must_use]
    pub fn numbered(mut self, numbers: Vec<Vec<u32>>) -> Self {
        self.names.numbers = Some(numbers);
        self
    }

    /// Sets both for the next attempt, in which nodes may have other places.
    pub fn rename(&mut self, first: Rank, numbers: Vec<Vec<u32>>) {
        (self.names.first_rank, self.names.numbers) = (first, Some(numbers));
    }

    /// Begins with this attempt: this node joins a job that has had others.
    #[must_use]
    pub fn joining_at(mut self, attempt: u32) -> Self {
        if attempt > self.attempt {
            self.attempt = attempt;
            self.renew();
        }
        self
    }

    /// Sets how many attempts before this one ended because the members of an elastic job changed.
    pub fn set_changes(&mut self, changes: u32) {
        self.changes = changes;
    }

    /// The most attempts that this job can have, if there is a limit.
    pub fn most_attempts(&self) -> Option<u32> {
        self.job.policy.restart.attempts()?.checked_add(self.changes)
    }

    /// Observes transitions, for coverage tests.
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
            Event::Exited { id, exit, classed, usage } if self.is_current(id) => {
                self.exited(id.slot, exit, classed, usage, now, &mut effects);
            }
            Event::Start | Event::Started { .. } | Event::Ready { .. } | Event::Exited { .. } => {
                self.ignore(&event, &mut effects);
            }
            Event::StopAsked { kill } => self.stop_asked(kill, now, &mut effects),
            Event::Halted => self.halted(now, &mut effects),
            Event::Signalled { signal } => self.signalled(signal, now, &mut effects),
            Event::Timer(timer, attempt) => self.timer(timer, attempt, now, &mut effects),
            Event::Gathered(evidence) => self.gathered(evidence, &mut effects),
            Event::Prepared { attempt, ready } => self.prepared(attempt, ready, &mut effects),
            Event::EngineLost { again } => self.lose_engine(again, now, &mut effects),
            Event::Hung(hung) => self.hung(hung, now, &mut effects),
            Event::StoppedElsewhere(reason) => self.stopped_elsewhere(reason, now, &mut effects),
            Event::Decided(decided) => self.decided(*decided, now, &mut effects),
            Event::Alone => self.alone(now, &mut effects),
        }
        self.advance(now, &mut effects);
        effects
    }

    /// The current attempt of the whole job.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How many attempts are live, and how many replicas exist.
    pub fn live(&self) -> (usize, usize) {
        (self.replicas.total().live() as usize, self.replicas.total().all() as usize)
    }

    /// Like [`Machine::live`], for one role.
    pub fn live_of(&self, role: u16) -> (usize, usize) {
        (self.replicas.of_role(role).live() as usize, self.replicas.of_role(role).all() as usize)
    }

    /// How many attempts were requested and have not started yet.
    pub fn starting(&self) -> usize {
        self.replicas.total().starting() as usize
    }

    /// How many replicas have not started: in a back-off, or waiting for another role.
    pub fn waiting(&self) -> usize {
        self.replicas.total().waiting() as usize
    }

    /// True if the job starts as a whole with so many attempts, which are being started: no other replica is live or has
    /// ended.
    pub fn is_whole_start(&self, attempts: usize) -> bool {
        self.starting() == attempts && self.starting() + self.waiting() == self.live().1
    }

    /// The live attempts. Visits all replicas.
    pub fn live_ids(&self) -> Vec<AttemptId> {
        self.replicas.iter().filter(|(_, replica)| replica.attempt.is_live()).map(|(slot, _)| self.id(slot)).collect()
    }

    pub fn attempt_of(&self, slot: Slot) -> Option<&Attempt> {
        self.replicas.find(slot).map(|replica| &replica.attempt)
    }

    /// The current attempt of a replica.
    pub fn id(&self, slot: Slot) -> AttemptId {
        AttemptId { step: self.step, slot, attempt: self.number(slot) }
    }

    /// The number of the attempt that runs, ran last, or comes next after a back-off.
    pub fn number(&self, slot: Slot) -> u32 {
        self.replicas.get(slot).number
    }

    /// Restarts of the replica in this attempt of the job.
    pub fn retries(&self, slot: Slot) -> u32 {
        let replica = self.replicas.get(slot);
        replica.number.saturating_sub(replica.first)
    }

    /// How often replicas were visited so far. For tests: visits per event do not grow with the job.
    pub fn visits(&self) -> u64 {
        self.replicas.visits()
    }

    /// Position of this job in the run.
    pub fn step_index(&self) -> StepIndex {
        self.step
    }

    /// True if the counts match a recount. For tests: always true.
    pub fn is_counted(&self) -> bool {
        self.replicas.are_counted()
    }

    fn is_current(&self, id: AttemptId) -> bool {
        self.replicas.find(id.slot).is_some() && id == self.id(id.slot)
    }

    fn start(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.phase = self.stop().copied().map_or(Phase::Running, Phase::Stopping);
        self.take_over(now, effects);
        // A stop before the start wins: nothing is started only to be stopped.
        if self.stop().is_some() {
            return;
        }
        self.arm_deadline(now, effects);
        self.look_for_starts = true;
        self.begin_waits(now, effects);
        if self.engine_lost {
            // The engine is lost: it can neither start them nor report their end.
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
