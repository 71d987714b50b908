//! The job: gang start, the first failure, stopping, the settle window, the verdict, the end.
//!
//! ```text
//! Start ─► every attempt starts ─► … ─► all deciding roles succeeded ─► stop the others ─► Finish
//!                                   └► a role failed ─► SIGTERM to all at once ─► grace ─► SIGKILL
//!                                        │               (exits keep coming)
//!                                        └► settle window, closed early when everybody is over
//!                                             └► Gather evidence ─► Diagnosed, Report ─► Finish when all are over
//! ```

use crate::diagnose;
use crate::facts::{Evidence, Fact, Outcome, StopReason, Subject, Usage, Verdict};
use crate::machine::attempt::{self, Attempt, End};
use crate::machine::exit_code::{self, Style};
use crate::machine::role::{self, Counts};
use crate::model::{Exit, Job, Rank, Slot, Timestamp};

/// One start of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    pub slot: Slot,
    pub attempt: u32,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Start,
    Spawned {
        id: AttemptId,
        pid: u32,
    },
    Exited {
        id: AttemptId,
        exit: Exit,
        usage: Option<Usage>,
    },
    /// We received a signal that asks us to stop.
    Signalled {
        signal: i32,
    },
    Timer(Timer),
    /// The answer to [`Effect::Gather`].
    Gathered(Vec<(Slot, Evidence)>),
    /// The process that holds the ranks is gone, and the ranks with it.
    GuardianLost,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Record(Fact),
    Spawn(Vec<AttemptId>),
    Signal {
        signal: i32,
        targets: Vec<AttemptId>,
    },
    ArmTimer {
        timer: Timer,
        at: Timestamp,
    },
    /// Read what these replicas left about their end, and answer with [`Event::Gathered`].
    Gather(Vec<Slot>),
    /// Tell the user: the verdict stands.
    Report(Verdict),
    /// Give the terminal back; the guardian finishes alone.
    ReturnTerminal,
    /// It is over: end with this code.
    Finish {
        outcome: Outcome,
        code: u8,
    },
}

/// Timers; each is armed at most once in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// The settle window is over.
    Settle,
    /// SIGTERM was not enough.
    Grace,
    /// SIGKILL was not enough.
    Abandon,
}

/// The state of a job.
#[derive(Debug, Clone)]
pub struct Machine {
    job: Job,
    style: Style,
    roles: Vec<Vec<Attempt>>,
    attempt: u32,
    started: bool,
    order: u64,
    stop: Option<Stop>,
    /// The first failure's time: the settle window counts from here.
    failed: Option<Timestamp>,
    diagnosis: Diagnosis,
    signals: u32,
    killed: bool,
    guardian_lost: bool,
    finished: bool,
}

#[derive(Debug, Clone, Copy)]
struct Stop {
    reason: StopReason,
    /// What the run's end will be called: the first reason decides, later ones only hurry.
    outcome: Outcome,
    signal: Option<i32>,
}

#[derive(Debug, Clone, PartialEq)]
enum Diagnosis {
    None,
    Gathering,
    Done(Verdict),
}

impl Machine {
    pub fn new(job: Job, style: Style) -> Self {
        let roles = job.roles.iter().map(|role| vec![Attempt::Waiting; role.replicas as usize]).collect();
        Self {
            job,
            style,
            roles,
            attempt: 0,
            started: false,
            order: 0,
            stop: None,
            failed: None,
            diagnosis: Diagnosis::None,
            signals: 0,
            killed: false,
            guardian_lost: false,
            finished: false,
        }
    }

    /// The transition function: synchronous, pure but for `self`, total.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.finished {
            self.ignore(&event, &mut effects);
            return effects;
        }
        match event {
            Event::Start if !self.started => self.start(now, &mut effects),
            Event::Start => self.ignore(&event, &mut effects),
            Event::Spawned { id, pid } if self.is_current(id) => {
                self.step_attempt(id.slot, attempt::Event::Spawned { pid }, now, &mut effects);
            }
            Event::Exited { id, exit, usage } if self.is_current(id) => {
                let order = self.order;
                self.order += 1;
                self.step_attempt(id.slot, attempt::Event::Exited { exit, order, usage }, now, &mut effects);
            }
            Event::Spawned { .. } | Event::Exited { .. } => self.ignore(&event, &mut effects),
            Event::Signalled { signal } => self.signalled(signal, now, &mut effects),
            Event::Timer(Timer::Settle) => self.diagnose(&mut effects),
            Event::Timer(Timer::Grace) => self.kill(now, &mut effects),
            Event::Timer(Timer::Abandon) => self.abandon(now, &mut effects),
            Event::Gathered(evidence) => self.gathered(evidence, &mut effects),
            Event::GuardianLost => self.guardian_lost(now, &mut effects),
        }
        self.advance(now, &mut effects);
        effects
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// How many attempts live, and how many there are.
    pub fn live(&self) -> (usize, usize) {
        let all = self.roles.iter().flatten();
        (all.clone().filter(|attempt| attempt.is_live()).count(), all.count())
    }

    pub fn attempt_of(&self, slot: Slot) -> Option<&Attempt> {
        self.roles.get(slot.role as usize)?.get(slot.index as usize)
    }

    /// `trainer-3`.
    pub fn replica_name(&self, slot: Slot) -> String {
        format!("{}-{}", self.job.roles[slot.role as usize].name, slot.index)
    }

    pub fn subject(&self, slot: Slot) -> Subject {
        Subject { replica: self.replica_name(slot), rank: Some(self.rank(slot)), attempt: self.attempt }
    }

    /// Ranks count through the roles in their order.
    fn rank(&self, slot: Slot) -> Rank {
        let lower: u32 = self.job.roles[..slot.role as usize].iter().map(|role| role.replicas).sum();
        Rank(lower + slot.index)
    }

    fn slots(&self) -> Vec<Slot> {
        self.roles
            .iter()
            .enumerate()
            .flat_map(|(role, attempts)| {
                (0..attempts.len()).map(move |index| Slot { role: role as u16, index: index as u32 })
            })
            .collect()
    }

    fn is_current(&self, id: AttemptId) -> bool {
        id.attempt == self.attempt && self.attempt_of(id.slot).is_some()
    }

    fn start(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.started = true;
        // A signal that came first is obeyed first: nothing is started only to be stopped.
        if self.stop.is_none() {
            self.for_all(&attempt::Event::Start, now, effects);
        }
    }

    /// Sends one event to every attempt; what comes out is recorded and performed for all of them at once.
    fn for_all(&mut self, event: &attempt::Event, now: Timestamp, effects: &mut Vec<Effect>) {
        let mut spawn = Vec::new();
        let mut signals: Vec<(i32, Vec<AttemptId>)> = Vec::new();
        let mut abandoned = Vec::new();
        for slot in self.slots() {
            let id = AttemptId { slot, attempt: self.attempt };
            for effect in self.apply(slot, event.clone(), now) {
                match effect {
                    attempt::Effect::Spawn => spawn.push(id),
                    attempt::Effect::Signal(signal) => match signals.iter_mut().find(|(other, _)| *other == signal) {
                        Some((_, targets)) => targets.push(id),
                        None => signals.push((signal, vec![id])),
                    },
                    attempt::Effect::NoteAbandoned => abandoned.push(self.replica_name(slot)),
                    attempt::Effect::NoteStarted { .. } | attempt::Effect::NoteEnded(_) | attempt::Effect::Ignore => {}
                }
            }
        }
        effects.extend(spawn.iter().map(|id| Effect::Record(Fact::Starting { subject: self.subject(id.slot) })));
        if !spawn.is_empty() {
            effects.push(Effect::Spawn(spawn));
        }
        for (signal, targets) in signals {
            let replicas = targets.iter().map(|id| self.replica_name(id.slot)).collect();
            effects.push(Effect::Record(Fact::Signalled { signal, replicas }));
            effects.push(Effect::Signal { signal, targets });
        }
        if !abandoned.is_empty() {
            effects.push(Effect::Record(Fact::Abandoned { replicas: abandoned }));
        }
    }

    fn apply(&mut self, slot: Slot, event: attempt::Event, now: Timestamp) -> Vec<attempt::Effect> {
        let place = &mut self.roles[slot.role as usize][slot.index as usize];
        let (next, effects) = attempt::step(std::mem::replace(place, Attempt::Waiting), event, now);
        *place = next;
        effects
    }

    /// One event for one attempt that changes nobody else: a start or an end.
    fn step_attempt(&mut self, slot: Slot, event: attempt::Event, now: Timestamp, effects: &mut Vec<Effect>) {
        let name = event.name();
        let state = self.attempt_of(slot).map_or("", Attempt::name);
        for effect in self.apply(slot, event, now) {
            match effect {
                attempt::Effect::NoteStarted { pid } => {
                    effects.push(Effect::Record(Fact::Started { subject: self.subject(slot), pid }));
                }
                attempt::Effect::NoteEnded(end) => {
                    effects.push(Effect::Record(Fact::Ended {
                        subject: self.subject(slot),
                        exit: end.exit,
                        by_us: end.by_us,
                        order: end.order,
                        usage: end.usage,
                    }));
                }
                attempt::Effect::Ignore => effects.push(Effect::Record(Fact::Ignored {
                    event: format!("{} {name}", self.replica_name(slot)),
                    state: state.to_owned(),
                })),
                attempt::Effect::Spawn | attempt::Effect::Signal(_) | attempt::Effect::NoteAbandoned => {}
            }
        }
    }

    fn signalled(&mut self, signal: i32, now: Timestamp, effects: &mut Vec<Effect>) {
        self.signals += 1;
        match self.signals {
            1 => self.stop(StopReason::Signal { signal }, Outcome::Interrupted, Some(signal), now, effects),
            2 => {
                self.stop(StopReason::SecondSignal { signal }, Outcome::Interrupted, Some(signal), now, effects);
                self.kill(now, effects);
            }
            _ => effects.push(Effect::ReturnTerminal),
        }
    }

    /// Asks everybody to end. A later, stronger reason is recorded and changes neither outcome nor blame.
    fn stop(
        &mut self,
        reason: StopReason,
        outcome: Outcome,
        signal: Option<i32>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        match &mut self.stop {
            Some(stop) if stop.reason >= reason => return,
            Some(stop) => stop.reason = reason,
            None => self.stop = Some(Stop { reason, outcome, signal }),
        }
        effects.push(Effect::Record(Fact::Stopping { reason }));
        let before = effects.len();
        self.for_all(&attempt::Event::Terminate, now, effects);
        if effects.len() > before {
            effects.push(Effect::ArmTimer { timer: Timer::Grace, at: now + self.job.policy.stop.grace });
        }
    }

    fn kill(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.killed {
            return;
        }
        let before = effects.len();
        self.for_all(&attempt::Event::Kill, now, effects);
        if effects.len() > before {
            self.killed = true;
            effects.push(Effect::ArmTimer { timer: Timer::Abandon, at: now + self.job.policy.stop.abandon });
        }
    }

    fn abandon(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.for_all(&attempt::Event::GiveUp, now, effects);
    }

    fn guardian_lost(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.guardian_lost {
            return;
        }
        self.guardian_lost = true;
        for slot in self.slots() {
            if self.attempt_of(slot).is_some_and(Attempt::is_live) {
                let order = self.order;
                self.order += 1;
                let event = attempt::Event::Exited { exit: Exit::Lost, order, usage: None };
                self.step_attempt(slot, event, now, effects);
            }
        }
    }

    /// What follows from the counts, whatever the event was.
    fn advance(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.started || self.finished {
            return;
        }
        if self.stop.is_none() || self.stop.is_some_and(|stop| stop.outcome == Outcome::Succeeded) {
            self.decide(now, effects);
        }
        let over = self.roles.iter().flatten().all(|attempt| attempt.is_over() || *attempt == Attempt::Waiting);
        if !over {
            return;
        }
        match (self.failed, &self.diagnosis) {
            (Some(_), Diagnosis::None) => self.diagnose(effects),
            (Some(_), Diagnosis::Gathering) => {}
            (None, _) | (Some(_), Diagnosis::Done(_)) => self.finish(effects),
        }
    }

    /// Asks each role's policy; the first failure or the last needed success stops the rest.
    fn decide(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let mut deciding_succeeded = true;
        let mut failed = false;
        for (role, attempts) in self.job.roles.iter().zip(&self.roles) {
            let outcome = role::outcome(&role.completion, &counts(attempts));
            // Once everything that decides has succeeded, how the others end is no failure.
            let blameless = self.stop.is_some();
            match outcome {
                role::Outcome::Failed if !blameless => failed = true,
                role::Outcome::Running if role.completion.decides => deciding_succeeded = false,
                _ => {}
            }
        }
        if failed {
            self.failed = Some(now);
            self.stop(StopReason::PeerFailed, Outcome::Failed, None, now, effects);
            let everybody_over = self.roles.iter().flatten().all(Attempt::is_over);
            if !everybody_over {
                effects.push(Effect::ArmTimer { timer: Timer::Settle, at: now + self.job.policy.settle });
            }
        } else if deciding_succeeded && self.stop.is_none() {
            let somebody_lives = self.roles.iter().flatten().any(Attempt::is_live);
            if somebody_lives {
                self.stop(StopReason::Completed, Outcome::Succeeded, None, now, effects);
            }
        }
    }

    /// Closes the settle window: everything that ended badly by now is a candidate.
    fn diagnose(&mut self, effects: &mut Vec<Effect>) {
        if self.failed.is_none() || self.diagnosis != Diagnosis::None {
            return;
        }
        self.diagnosis = Diagnosis::Gathering;
        let candidates = self.candidates().into_iter().map(|(slot, _)| slot).collect();
        effects.push(Effect::Gather(candidates));
    }

    fn candidates(&self) -> Vec<(Slot, &End)> {
        self.slots()
            .into_iter()
            .filter_map(|slot| match self.attempt_of(slot) {
                Some(Attempt::Ended(end)) if !end.exit.is_success() && !end.by_us => Some((slot, end)),
                _ => None,
            })
            .collect()
    }

    fn gathered(&mut self, evidence: Vec<(Slot, Evidence)>, effects: &mut Vec<Effect>) {
        if self.diagnosis != Diagnosis::Gathering {
            self.ignore(&Event::Gathered(evidence), effects);
            return;
        }
        let mut evidence: std::collections::BTreeMap<Slot, Evidence> = evidence.into_iter().collect();
        let ends = self
            .candidates()
            .into_iter()
            .map(|(slot, end)| diagnose::End {
                subject: self.subject(slot),
                exit: end.exit.clone(),
                ran: end.ended.since(end.started),
                order: end.order,
                by_us: end.by_us,
                before_stop: end.before_stop,
                evidence: evidence.remove(&slot),
            })
            .collect();
        let verdict = diagnose::rank(ends);
        self.diagnosis = Diagnosis::Done(verdict.clone());
        effects.push(Effect::Record(Fact::Diagnosed(verdict.clone())));
        effects.push(Effect::Report(verdict));
    }

    fn finish(&mut self, effects: &mut Vec<Effect>) {
        self.finished = true;
        let (outcome, signal) = self.stop.map_or((Outcome::Succeeded, None), |stop| (stop.outcome, stop.signal));
        let verdict = match &self.diagnosis {
            Diagnosis::Done(verdict) => Some(verdict),
            Diagnosis::None | Diagnosis::Gathering => None,
        };
        let ends: Vec<Exit> = self
            .roles
            .iter()
            .flatten()
            .filter_map(|attempt| match attempt {
                Attempt::Ended(end) => Some(end.exit.clone()),
                _ => None,
            })
            .collect();
        let code = exit_code::of(self.style, outcome, signal, verdict, &ends);
        effects.push(Effect::Record(Fact::Finished { outcome, exit_code: code }));
        effects.push(Effect::Finish { outcome, code });
    }

    fn ignore(&self, event: &Event, effects: &mut Vec<Effect>) {
        let event = match event {
            Event::Start => "Start".to_owned(),
            Event::Spawned { id, .. } => format!("Spawned, attempt {}", id.attempt),
            Event::Exited { id, .. } => format!("Exited, attempt {}", id.attempt),
            Event::Signalled { signal } => format!("Signalled {signal}"),
            Event::Timer(timer) => format!("Timer {timer:?}"),
            Event::Gathered(_) => "Gathered".to_owned(),
            Event::GuardianLost => "GuardianLost".to_owned(),
        };
        let state = if self.finished { "Finished".to_owned() } else { format!("attempt {}", self.attempt) };
        effects.push(Effect::Record(Fact::Ignored { event, state }));
    }
}

fn counts(attempts: &[Attempt]) -> Counts {
    let mut counts = Counts { replicas: attempts.len() as u32, ..Counts::default() };
    for attempt in attempts {
        match attempt {
            Attempt::Ended(end) => {
                counts.over += 1;
                if end.exit.is_success() {
                    counts.succeeded += 1;
                } else if !end.by_us {
                    counts.failed += 1;
                }
            }
            Attempt::Abandoned => counts.over += 1,
            Attempt::Waiting | Attempt::Starting { .. } | Attempt::Running { .. } | Attempt::Stopping { .. } => {}
        }
    }
    counts
}
