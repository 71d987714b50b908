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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::diagnose;
use crate::facts::{Evidence, Fact, Limit, Outcome, StopReason, Subject, Usage, Verdict};
use crate::machine::attempt::{self, Attempt, End};
use crate::machine::exit_code::{self, Style};
use crate::machine::restart::Past;
use crate::machine::role::{self, Counts};
use crate::model::{Exit, Instance, Job, Rank, Slot, StepIndex, StopHow, Timestamp};

mod limits;
mod messages;
mod order;
mod places;
mod recover;
mod restart;
mod retry;
mod several;

pub use messages::{AttemptId, Decided, Effect, Event, Of, Stand, Timer};
use places::{Group, Place};
pub use recover::Again;
pub use several::NODE_LOST;

/// The state of a job.
#[derive(Debug, Clone)]
pub struct Machine {
    job: Job,
    /// Which job of the run this is.
    step: StepIndex,
    style: Style,
    /// For the jitter of back-offs.
    seed: u64,
    /// Ranks of lower nodes come first.
    first_rank: Rank,
    /// What replicas are called by, where it is not their rank: by role.
    numbers: Option<Vec<Vec<u32>>>,
    roles: Vec<Vec<Attempt>>,
    /// What is known of each replica beside its attempt.
    places: Vec<Vec<Place>>,
    /// What is known of each role as a whole.
    groups: Vec<Group>,
    /// Of the whole job: the one that runs, or in a pause the one that failed.
    attempt: u32,
    started: bool,
    order: u64,
    /// When the whole job was started again.
    restarts: Past,
    /// Somebody waits to be started.
    look_for_starts: bool,
    /// Everything that decides has ended well, and nobody has to be stopped.
    completed: bool,
    /// How long earlier supervisors were there.
    supervised: Duration,
    pause: Option<restart::Pause>,
    stop: Option<Stop>,
    /// The first failure's time: the settle window counts from here.
    failed: Option<Timestamp>,
    diagnosis: Diagnosis,
    /// Timers that were asked for and have not fired.
    armed: BTreeSet<Timer>,
    signals: u32,
    /// How often `umiak stop` was asked for.
    stops: u32,
    killed: bool,
    engine_lost: bool,
    /// Where other nodes take part: what we told them, and what we were told.
    several: Option<several::Several>,
    finished: bool,
    observer: Option<Observer>,
}

/// Sees every event an attempt is given, with the state it stands in.
pub type Observer = fn(&Attempt, &attempt::Event);

#[derive(Debug, Clone, Copy)]
struct Stop {
    reason: StopReason,
    first: StopReason,
    /// What the run's end will be called: the first reason decides, later ones only hurry.
    outcome: Outcome,
    signal: Option<i32>,
}

#[derive(Debug, Clone, PartialEq)]
enum Diagnosis {
    None,
    /// The window is closed, with these as the candidates.
    Gathering(Vec<Slot>),
    /// All nodes together decide; these were ours.
    Told(Vec<diagnose::End>),
    Done(Verdict),
}

impl Machine {
    /// The seed decides the jitter of back-offs, and nothing else.
    pub fn new(job: Job, style: Style, seed: u64) -> Self {
        let roles = job.roles.iter().map(|role| vec![Attempt::Waiting; role.replicas as usize]).collect();
        let places = job.roles.iter().map(|role| vec![Place::default(); role.replicas as usize]).collect();
        let groups = vec![Group::default(); job.roles.len()];
        Self {
            job,
            step: StepIndex::default(),
            style,
            seed,
            first_rank: Rank(0),
            numbers: None,
            roles,
            places,
            groups,
            attempt: 0,
            started: false,
            order: 0,
            restarts: Past::default(),
            look_for_starts: false,
            completed: false,
            supervised: Duration::ZERO,
            pause: None,
            stop: None,
            failed: None,
            diagnosis: Diagnosis::None,
            armed: BTreeSet::new(),
            signals: 0,
            stops: 0,
            killed: false,
            engine_lost: false,
            several: None,
            finished: false,
            observer: None,
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
        self.first_rank = first;
        self
    }

    /// What the replicas of each role are numbered over all nodes, by index.
    #[must_use]
    pub fn numbered(mut self, numbers: Vec<Vec<u32>>) -> Self {
        self.numbers = Some(numbers);
        self
    }

    /// For tests that count which transitions were taken.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
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
            Event::EngineLost => self.engine_lost(now, &mut effects),
            Event::StoppedElsewhere(reason) => self.stopped_elsewhere(reason, now, &mut effects),
            Event::Decided(decided) => self.decided(*decided, now, &mut effects),
            Event::Alone => self.alone(now, &mut effects),
        }
        self.advance(now, &mut effects);
        effects
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Which attempt runs, from 0.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether it waits between two attempts.
    pub fn is_pausing(&self) -> bool {
        self.pause.is_some()
    }

    /// How many attempts live, and how many there are.
    pub fn live(&self) -> (usize, usize) {
        let all = self.roles.iter().flatten();
        (all.clone().filter(|attempt| attempt.is_live()).count(), all.count())
    }

    /// How many of a role live.
    pub fn live_of(&self, role: u16) -> usize {
        self.roles[role as usize].iter().filter(|attempt| attempt.is_live()).count()
    }

    /// How many are asked for and do not run yet.
    pub fn starting(&self) -> usize {
        self.roles.iter().flatten().filter(|attempt| matches!(attempt, Attempt::Starting { .. })).count()
    }

    /// How many are not asked for yet.
    pub fn waiting(&self) -> usize {
        self.roles.iter().flatten().filter(|attempt| **attempt == Attempt::Waiting).count()
    }

    pub fn attempt_of(&self, slot: Slot) -> Option<&Attempt> {
        self.roles.get(slot.role as usize)?.get(slot.index as usize)
    }

    /// `trainer-3`: the number counts over all nodes.
    pub fn replica_name(&self, slot: Slot) -> String {
        let number = match &self.numbers {
            Some(numbers) => numbers[slot.role as usize][slot.index as usize],
            None => self.first_rank.0 + slot.index,
        };
        format!("{}-{number}", self.job.roles[slot.role as usize].name)
    }

    pub fn subject(&self, slot: Slot) -> Subject {
        Subject { replica: self.replica_name(slot), rank: Some(self.rank(slot)), attempt: self.place(slot).number }
    }

    /// Ranks count through the roles in their order.
    fn rank(&self, slot: Slot) -> Rank {
        let lower: u32 = self.job.roles[..slot.role as usize].iter().map(|role| role.replicas).sum();
        Rank(self.first_rank.0 + lower + slot.index)
    }

    /// The replica of this rank, if it is one of this machine's.
    pub fn slot_of(&self, rank: Rank) -> Option<Slot> {
        let mut index = rank.0.checked_sub(self.first_rank.0)?;
        for (role, of) in self.job.roles.iter().enumerate() {
            if index < of.replicas {
                return Some(Slot { role: role as u16, index });
            }
            index -= of.replicas;
        }
        None
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
        self.attempt_of(id.slot).is_some() && id == self.id(id.slot)
    }

    fn start(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.started = true;
        self.take_over(now, effects);
        // A signal that came first is obeyed first: nothing is started only to be stopped.
        if self.stop.is_some() {
            return;
        }
        self.arm_deadline(now, effects);
        self.look_for_starts = true;
        self.await_elsewhere(now, effects);
        if self.engine_lost {
            // Nobody is left who could start them or tell how they ended.
            self.start_due(now, effects);
            effects.retain(|effect| !matches!(effect, Effect::Spawn(_)));
            self.lose_live(now, effects);
        }
    }

    fn for_all(&mut self, event: &attempt::Event, now: Timestamp, effects: &mut Vec<Effect>) {
        self.for_these(&self.slots(), event, now, effects);
    }

    /// Sends one event to these attempts; what comes out is recorded and performed for all of them at once.
    fn for_these(&mut self, slots: &[Slot], event: &attempt::Event, now: Timestamp, effects: &mut Vec<Effect>) {
        let mut spawn = Vec::new();
        let mut stops: Vec<(StopHow, Vec<AttemptId>)> = Vec::new();
        let mut abandoned = Vec::new();
        for slot in slots.iter().copied() {
            let id = self.id(slot);
            for effect in self.apply(slot, event.clone(), now) {
                match effect {
                    attempt::Effect::Spawn => spawn.push(id),
                    attempt::Effect::Stop(how) => match stops.iter_mut().find(|(other, _)| *other == how) {
                        Some((_, targets)) => targets.push(id),
                        None => stops.push((how, vec![id])),
                    },
                    attempt::Effect::NoteAbandoned => abandoned.push(self.replica_name(slot)),
                    attempt::Effect::NoteStarted(_) | attempt::Effect::NoteEnded(_) | attempt::Effect::Ignore => {}
                }
            }
        }
        effects.extend(spawn.iter().map(|id| Effect::Record(Fact::Starting { subject: self.subject(id.slot) })));
        if !spawn.is_empty() {
            effects.push(Effect::Spawn(spawn));
        }
        for (how, targets) in stops {
            self.send_stop(how, targets, effects);
        }
        if !abandoned.is_empty() {
            effects.push(Effect::Record(Fact::Abandoned { replicas: abandoned }));
        }
    }

    fn send_stop(&self, how: StopHow, targets: Vec<AttemptId>, effects: &mut Vec<Effect>) {
        let replicas = targets.iter().map(|id| self.replica_name(id.slot)).collect();
        effects.push(Effect::Record(Fact::StopSent { how, replicas }));
        effects.push(Effect::Stop { how, targets });
    }

    fn apply(&mut self, slot: Slot, event: attempt::Event, now: Timestamp) -> Vec<attempt::Effect> {
        let place = &mut self.roles[slot.role as usize][slot.index as usize];
        if let Some(observer) = self.observer {
            observer(place, &event);
        }
        let (next, effects) = attempt::step(std::mem::replace(place, Attempt::Waiting), event, now);
        *place = next;
        effects
    }

    /// One event for one attempt that changes nobody else: a start or an end.
    fn step_attempt(&mut self, slot: Slot, event: attempt::Event, now: Timestamp, effects: &mut Vec<Effect>) {
        let name = event.name();
        let state = self.attempt_of(slot).map_or("", Attempt::name);
        let timed_out = self.place(slot).timed_out;
        for effect in self.apply(slot, event, now) {
            match effect {
                attempt::Effect::NoteStarted(instance) => {
                    effects.push(Effect::Record(Fact::Started { subject: self.subject(slot), instance }));
                }
                attempt::Effect::NoteEnded(end) => {
                    if let Attempt::Ended(end) = &mut self.roles[slot.role as usize][slot.index as usize] {
                        end.timed_out = timed_out;
                    }
                    effects.push(Effect::Record(Fact::Ended {
                        subject: self.subject(slot),
                        exit: end.exit.clone(),
                        by_us: end.by_us,
                        order: end.order,
                        usage: end.usage,
                        log_end: None,
                    }));
                    effects.push(Effect::Release { id: self.id(slot), end: Box::new(end) });
                }
                attempt::Effect::Ignore => effects.push(Effect::Record(Fact::Ignored {
                    event: format!("{} {name}", self.replica_name(slot)),
                    state: state.to_owned(),
                })),
                attempt::Effect::Spawn | attempt::Effect::Stop(_) | attempt::Effect::NoteAbandoned => {}
            }
        }
    }

    fn attempt_started(&mut self, slot: Slot, instance: Instance, now: Timestamp, effects: &mut Vec<Effect>) {
        // A notice that comes twice gives nobody more time.
        let first = matches!(self.attempt_of(slot), Some(Attempt::Starting { .. }));
        self.step_attempt(slot, attempt::Event::Started(instance), now, effects);
        if first {
            self.limit(slot, now, effects);
        }
    }

    fn exited(&mut self, slot: Slot, exit: Exit, usage: Option<Usage>, now: Timestamp, effects: &mut Vec<Effect>) {
        let order = self.order;
        // A notice that comes twice takes no place in the order.
        let live = self.attempt_of(slot).is_some_and(Attempt::is_live);
        self.order += u64::from(live);
        self.step_attempt(slot, attempt::Event::Exited { exit, order, usage }, now, effects);
        if live {
            self.after_end(slot, now, effects);
        }
    }

    fn signalled(&mut self, signal: i32, now: Timestamp, effects: &mut Vec<Effect>) {
        self.signals += 1;
        self.tell_interrupted(Some(signal), effects);
        match self.signals {
            1 => self.stop(StopReason::Signal { signal }, Outcome::Interrupted, Some(signal), now, effects),
            2 => {
                self.stop(StopReason::SecondSignal { signal }, Outcome::Interrupted, Some(signal), now, effects);
                self.kill_all(now, effects);
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
            None => self.stop = Some(Stop { reason, first: reason, outcome, signal }),
        }
        effects.push(Effect::Record(Fact::Stopping { reason }));
        self.give_up_restarts(effects);
        let before = effects.len();
        self.for_all(&attempt::Event::Stop(StopHow::Graceful), now, effects);
        if effects.len() > before {
            self.arm(Timer::Grace, now + self.job.policy.stop.grace, effects);
            self.arm_own_graces(now, effects);
        }
    }

    /// Asking was not enough, or is not waited for.
    fn kill_all(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.killed {
            return;
        }
        let before = effects.len();
        // How long each is waited for counts from when it was killed.
        self.kill_these(&self.without_own_grace(), Timer::Abandon, now, effects);
        for role in self.with_own_grace() {
            self.kill_these(&self.slots_of(Of::Role(role)), Timer::AbandonOf(Of::Role(role)), now, effects);
        }
        self.killed = effects.len() > before;
    }

    fn stop_asked(&mut self, kill: bool, now: Timestamp, effects: &mut Vec<Effect>) {
        self.stops += 1;
        self.tell_interrupted(None, effects);
        self.stop(StopReason::User, Outcome::Stopped, None, now, effects);
        if kill || self.stops > 1 {
            self.kill_all(now, effects);
        }
    }

    fn arm(&mut self, timer: Timer, at: Timestamp, effects: &mut Vec<Effect>) {
        self.armed.insert(timer);
        effects.push(Effect::ArmTimer { timer, attempt: self.fence(timer), at });
    }

    fn disarm(&mut self, timer: Timer, effects: &mut Vec<Effect>) {
        if self.armed.remove(&timer) {
            effects.push(Effect::DisarmTimer(timer));
        }
    }

    /// The attempt that a timer belongs to.
    fn fence(&self, timer: Timer) -> u32 {
        match timer {
            Timer::GraceOf(Of::Replica(slot))
            | Timer::AbandonOf(Of::Replica(slot))
            | Timer::BackoffOf(Of::Replica(slot))
            | Timer::StartUp(slot)
            | Timer::Run(slot) => self.place(slot).number,
            Timer::Deadline => 0,
            // A role can be stopped and started again often while the job is at one attempt.
            Timer::GraceOf(Of::Role(role)) | Timer::AbandonOf(Of::Role(role)) | Timer::BackoffOf(Of::Role(role)) => {
                self.groups[role as usize].cycle
            }
            Timer::Settle | Timer::Grace | Timer::Abandon | Timer::Backoff | Timer::Elsewhere(_) => self.attempt,
        }
    }

    fn timer(&mut self, timer: Timer, attempt: u32, now: Timestamp, effects: &mut Vec<Effect>) {
        // A timer that nobody waits for must not kill ranks that nobody asked to end.
        if !self.armed.contains(&timer) || attempt != self.fence(timer) || !self.armed.remove(&timer) {
            return self.ignore(&Event::Timer(timer, attempt), effects);
        }
        match timer {
            Timer::Settle => self.diagnose(effects),
            Timer::Grace => self.kill_these(&self.without_own_grace(), Timer::Abandon, now, effects),
            Timer::Abandon => self.for_these(&self.without_own_grace(), &attempt::Event::GiveUp, now, effects),
            Timer::Backoff => self.waited(),
            Timer::Deadline => self.stop(StopReason::Timeout, Outcome::Failed, None, now, effects),
            Timer::GraceOf(of) => self.kill_these(&self.slots_of(of), Timer::AbandonOf(of), now, effects),
            Timer::AbandonOf(of) => self.gave_up(of, now, effects),
            Timer::BackoffOf(of) => self.backed_off(of),
            Timer::Elsewhere(role) => self.miss_elsewhere(role, now, effects),
            Timer::StartUp(slot) => self.time_out(slot, Limit::Start, now, effects),
            Timer::Run(slot) => self.time_out(slot, Limit::Run, now, effects),
        }
    }

    fn engine_lost(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.engine_lost {
            return self.ignore(&Event::EngineLost, effects);
        }
        self.engine_lost = true;
        self.give_up_restarts(effects);
        self.lose_live(now, effects);
    }

    fn lose_live(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for slot in self.slots() {
            if self.attempt_of(slot).is_some_and(Attempt::is_live) {
                self.exited(slot, Exit::Lost, None, now, effects);
            }
        }
    }

    /// What follows from the counts, whatever the event was.
    fn advance(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.finished {
            return;
        }
        if !self.started {
            return self.end_before_start(effects);
        }
        if let Some(pause) = self.pause {
            return self.leave_pause(pause, now, effects);
        }
        loop {
            if self.stop.is_none_or(|stop| stop.outcome == Outcome::Succeeded) {
                self.decide(now, effects);
            }
            let nobody_starts = self.stop.is_some() || self.completed || self.engine_lost;
            // Who is refused has failed, and that may decide.
            if nobody_starts || !self.look_for_starts || !self.start_due(now, effects) {
                break;
            }
        }
        let nobody_starts = self.stop.is_some() || self.completed;
        let is_over = |attempt: &Attempt| attempt.is_over() || (nobody_starts && *attempt == Attempt::Waiting);
        if !self.roles.iter().flatten().all(is_over) {
            return;
        }
        if self.failed.is_none() && !self.may_end(effects) {
            return;
        }
        match (self.failed, &self.diagnosis) {
            (Some(_), Diagnosis::None) => self.diagnose(effects),
            (Some(_), Diagnosis::Gathering(_) | Diagnosis::Told(_)) => {}
            (None, _) => self.finish(effects),
            (Some(_), Diagnosis::Done(_)) => match self.next_delay(now) {
                Some(delay) => self.enter_pause(delay, now, effects),
                None => self.finish(effects),
            },
        }
    }

    /// Asks each role's policy; the first failure or the last needed success stops the rest.
    fn decide(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        // Once everything that decides has succeeded, how the others end is no failure.
        let blameless = self.stop.is_some();
        // Where no role decides, all of them do: otherwise the job would be over as it starts.
        let nobody_decides = !self.job.roles.iter().any(|role| role.completion.decides);
        let mut deciding_succeeded = true;
        // What a policy allows its replicas is no excuse for us: losing the guardian is our failure.
        let mut failed = !blameless && self.engine_lost && self.has_lost();
        for ((role, attempts), group) in self.job.roles.iter().zip(&self.roles).zip(&self.groups) {
            if group.recycling.is_some() {
                deciding_succeeded &= !role.completion.decides && !nobody_decides;
                continue;
            }
            match role::outcome(&role.completion, &Counts::of(attempts)) {
                role::Outcome::Failed if !blameless => failed = true,
                role::Outcome::Running if role.completion.decides || nobody_decides => deciding_succeeded = false,
                _ => {}
            }
        }
        // Who waits will never start: there is nobody left to start them.
        let somebody_lives = self.roles.iter().flatten().any(Attempt::is_live);
        failed |= !blameless && self.engine_lost && !deciding_succeeded && !somebody_lives;
        if failed {
            self.failed = Some(now);
            self.stand(Stand::Failed, effects);
            self.stop(StopReason::PeerFailed, Outcome::Failed, None, now, effects);
            if somebody_lives {
                self.arm(Timer::Settle, now + self.job.policy.settle, effects);
            }
        } else if deciding_succeeded && self.stop.is_none() {
            if self.is_needed_elsewhere() {
                let somebody_waits = self.roles.iter().flatten().any(|attempt| *attempt == Attempt::Waiting);
                if somebody_lives {
                    self.stand(Stand::Serving, effects);
                } else {
                    self.completed = !somebody_waits;
                }
            } else if somebody_lives {
                self.stop(StopReason::Completed, Outcome::Succeeded, None, now, effects);
            } else {
                self.completed = true;
            }
        }
    }

    fn has_lost(&self) -> bool {
        self.roles.iter().flatten().any(|attempt| matches!(attempt, Attempt::Ended(end) if end.exit == Exit::Lost))
    }

    /// Closes the settle window: everything that ended badly by now is a candidate.
    fn diagnose(&mut self, effects: &mut Vec<Effect>) {
        if self.failed.is_none() || self.diagnosis != Diagnosis::None {
            return;
        }
        let slots = |by_us| self.bad_ends(by_us).into_iter().map(|(slot, _)| slot).collect::<Vec<Slot>>();
        let (ended, stopped) = (slots(false), slots(true));
        self.diagnosis = Diagnosis::Gathering([ended.as_slice(), stopped.as_slice()].concat());
        effects.push(Effect::Gather { ended, stopped });
    }

    fn bad_ends(&self, by_us: bool) -> Vec<(Slot, &End)> {
        self.slots()
            .into_iter()
            .filter_map(|slot| match self.attempt_of(slot) {
                Some(Attempt::Ended(end)) if end.is_failure() && !by_us => Some((slot, end)),
                Some(Attempt::Ended(end)) if !end.is_failure() && !end.exit.is_success() && by_us => Some((slot, end)),
                _ => None,
            })
            .collect()
    }

    fn gathered(&mut self, evidence: Vec<(Slot, Evidence)>, effects: &mut Vec<Effect>) {
        let Diagnosis::Gathering(asked) = &self.diagnosis else {
            return self.ignore(&Event::Gathered(evidence), effects);
        };
        let mut evidence: BTreeMap<Slot, Evidence> = evidence.into_iter().collect();
        let ends = [self.bad_ends(false), self.bad_ends(true)]
            .concat()
            .into_iter()
            // Who ended while the evidence was read came too late, and nobody read its log.
            .filter(|(slot, _)| asked.contains(slot))
            .map(|(slot, end)| diagnose::End {
                subject: self.subject(slot),
                exit: end.exit.clone(),
                ran: end.ended.since(end.started),
                order: end.order,
                by_us: end.by_us,
                before_stop: end.before_stop,
                timed_out: end.timed_out,
                evidence: evidence.remove(&slot),
                usage: end.usage,
            })
            .collect();
        if self.is_shared() {
            return self.tell(ends, effects);
        }
        self.judge(diagnose::rank(ends), effects);
    }

    fn judge(&mut self, verdict: Verdict, effects: &mut Vec<Effect>) {
        self.diagnosis = Diagnosis::Done(verdict.clone());
        effects.push(Effect::Record(Fact::Diagnosed(verdict.clone())));
        effects.push(Effect::Report(verdict));
    }

    fn finish(&mut self, effects: &mut Vec<Effect>) {
        self.finished = true;
        let (outcome, signal) = match (self.stop, self.pause) {
            (Some(stop), _) => (stop.outcome, stop.signal),
            // The failure that was to be made good stands.
            (None, Some(_)) => (Outcome::Failed, None),
            (None, None) => (Outcome::Succeeded, None),
        };
        let verdict = match &self.diagnosis {
            Diagnosis::Done(verdict) => Some(verdict),
            Diagnosis::None | Diagnosis::Gathering(_) | Diagnosis::Told(_) => None,
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
        let (outcome, signal) = self.outcome_of_all(outcome, signal);
        let timed_out = self.stop.is_some_and(|stop| stop.first == StopReason::Timeout);
        let several_roles = self.style.document && self.job.roles.len() > 1;
        let code = match self.code_of_all() {
            Some(code) => code,
            None if timed_out => exit_code::TIMED_OUT,
            None if several_roles && outcome == Outcome::Failed => 1,
            // Nobody ended badly: they could not be started again.
            None if self.engine_lost && verdict.is_some_and(|verdict| verdict.causes.is_empty()) => {
                Exit::Lost.shell_code()
            }
            None => exit_code::of(self.style, outcome, signal, verdict, &ends),
        };
        effects.push(Effect::Record(Fact::Finished { outcome, exit_code: code }));
        effects.push(Effect::Finish { outcome, code });
    }

    fn ignore(&self, event: &Event, effects: &mut Vec<Effect>) {
        let state = if self.finished { "Finished".to_owned() } else { format!("attempt {}", self.attempt) };
        effects.push(Effect::Record(Fact::Ignored { event: event.describe(), state }));
    }
}

#[cfg(test)]
mod tests;
