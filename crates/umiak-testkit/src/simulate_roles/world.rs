//! The world around the machine: performs its effects on a virtual clock, keeps the journal, and loses supervisors.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use fastrand::Rng;
use umiak_core::facts::{Began, Fact, Record, Supervised, VERSION};
use umiak_core::machine::attempt::Attempt;
use umiak_core::machine::job::{Again, AttemptId, Effect, Event, Machine, Timer};
use umiak_core::model::{Exit, FIRST_ATTEMPT, Instance, Slot, StepIndex, StopHow, Timestamp};
use umiak_core::status::{Stage, Status};

use super::policy;
use super::scenario::{Scenario, Script, code, millis, pick};
use super::timeline::{Rule, Run, Step, Violation, What};

const SIGKILL: i32 = 9;

/// How long after the last event the user interrupts a run in which only processes still run.
const PATIENCE: Duration = Duration::from_secs(3600);

/// More steps than any run of a correct machine has.
const ENDLESS: usize = 3000;

/// A driver that is broken in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Back-offs are over as soon as they begin.
    HastyBackoff,
    /// Graces are over as soon as they begin.
    HastyGrace,
    /// Time limits of attempts are not enforced.
    ForgetLimits,
    /// Timers fire with another number than they were armed with.
    WrongFence,
    /// Processes are started before their start is in the journal.
    SpawnFirst,
    /// Restarts inside a role are not recorded.
    LoseRetrying,
    /// Ends are not recorded.
    LoseEnded,
    /// Ports are reported as ready at once.
    Unprobed,
    /// Restarts of the whole job are not recorded.
    LoseRestarting,
    /// A new supervisor does not learn what the engine still has.
    Disown,
}

/// What will happen at some time.
#[derive(Debug, Clone)]
enum Item {
    Event(Event),
    /// An old event that is stale by then; otherwise it would be wrong.
    Stray(Event),
    Timer(Timer, usize),
    Death(AttemptId, Exit),
    Answers(AttemptId),
}

struct World {
    scenario: Scenario,
    sabotage: Option<Sabotage>,
    rng: Rng,
    machine: Machine,
    status: Status,
    journal: Vec<Record>,
    epoch: u32,
    /// When the supervisor will be lost, counted in its steps.
    fate: Option<u32>,
    now: Timestamp,
    queue: BinaryHeap<Reverse<(Timestamp, usize)>>,
    items: Vec<Item>,
    /// Live processes.
    alive: BTreeMap<AttemptId, Script>,
    /// Attempts that the engine started, and their exit, if any.
    held: BTreeMap<AttemptId, Option<Exit>>,
    answered: BTreeMap<AttemptId, Timestamp>,
    awaited: Vec<AttemptId>,
    inspecting: BTreeSet<AttemptId>,
    gathering: bool,
    timers: BTreeMap<Timer, (u32, usize)>,
    /// Timers that were armed once, for strays.
    old_timers: Vec<(Timer, u32)>,
    steps: Vec<Step>,
    seen: Vec<Violation>,
}

pub(super) fn run(scenario: Scenario, sabotage: Option<Sabotage>) -> Run {
    let mut world = World {
        rng: Rng::with_seed(scenario.seed ^ 0x3071d),
        sabotage,
        machine: Machine::new(scenario.job.clone(), scenario.style, scenario.seed),
        status: Status::default(),
        journal: Vec::new(),
        epoch: 0,
        fate: None,
        now: Timestamp::from_micros(1_000_000),
        queue: BinaryHeap::new(),
        items: Vec::new(),
        alive: BTreeMap::new(),
        held: BTreeMap::new(),
        answered: BTreeMap::new(),
        awaited: Vec::new(),
        inspecting: BTreeSet::new(),
        gathering: false,
        timers: BTreeMap::new(),
        old_timers: Vec::new(),
        steps: Vec::new(),
        seen: Vec::new(),
        scenario,
    };
    let stalled = world.play();
    if Status::replay(&world.journal) != world.status {
        world.complain("the journal replayed is not the journal added".to_owned());
    }
    let World { scenario, steps, journal, answered, seen, .. } = world;
    Run { scenario, steps, journal, answered, seen, stalled }
}

/// How a supervisor ended.
enum Ended {
    Lost,
    Finished,
    Stalled,
}

impl World {
    fn play(&mut self) -> bool {
        let (mut losses, mut retries) = (self.scenario.losses, self.scenario.retries);
        let mut why = Began::Submitted;
        loop {
            self.fate = (losses > 0 && self.rng.f64() < 0.8).then(|| {
                let far = pick(&mut self.rng, &[3, 15, 60]);
                self.rng.u32(..far)
            });
            self.begin(why);
            why = match self.supervise() {
                Ended::Stalled => return true,
                Ended::Lost => {
                    losses -= 1;
                    Began::Resumed
                }
                Ended::Finished if retries > 0 && self.rng.f64() < 0.6 => {
                    retries -= 1;
                    pick(&mut self.rng, &[Began::Retried, Began::Retried, Began::RetriedAll])
                }
                Ended::Finished => return false,
            };
        }
    }

    /// A supervisor takes over.
    fn begin(&mut self, why: Began) {
        let again = match why {
            Began::Submitted => None,
            Began::Resumed => Some(Again::Unfinished),
            Began::Retried => Some(Again::Unsuccessful),
            Began::RetriedAll => Some(Again::All),
        };
        self.awaited.clear();
        self.inspecting.clear();
        self.gathering = false;
        self.timers.clear();
        if again.is_some() {
            self.epoch += 1;
            self.now = self.now + millis(&mut self.rng, 1..20_000);
        }
        if self.scenario.keeps && why == Began::Resumed {
            self.run_on();
        } else {
            self.queue.clear();
            self.items.clear();
            self.alive.clear();
            self.held.clear();
        }
        let mut adopted: BTreeSet<AttemptId> = self.held.keys().copied().collect();
        let what = What::Began(why, adopted.clone());
        if self.sabotage == Some(Sabotage::Disown) {
            adopted.clear();
        }
        self.steps.push(Step { at: self.now, what, effects: vec![], lost: false });
        self.machine = Machine::new(self.scenario.job.clone(), self.scenario.style, self.scenario.seed);
        let supervised = Fact::Supervised(Supervised { why, host: "here".into(), pid: 1, umiak: "0".into() });
        // Recording before or after the recovery makes no difference.
        if self.rng.bool() {
            self.record(supervised);
            again.inspect(|again| self.machine.recover(&self.status, *again, &|id| adopted.contains(&id)));
        } else {
            again.inspect(|again| self.machine.recover(&self.status, *again, &|id| adopted.contains(&id)));
            self.record(supervised);
        }
        if self.epoch > 0 && self.rng.f64() < 0.1 {
            self.write_as_the_last_one();
        }
        let start = self.now + millis(&mut self.rng, 0..20);
        self.plan(start, Item::Event(Event::Start));
        self.tell_held(&adopted);
        self.plan_visits(start);
    }

    /// Processes live and end without a supervisor. Those that are no longer in the journal do not matter.
    fn run_on(&mut self) {
        let mut later = Vec::new();
        while let Some(Reverse((at, index))) = self.queue.pop() {
            match self.items[index].clone() {
                item @ (Item::Death(..) | Item::Answers(_)) if at > self.now => later.push((at, item)),
                Item::Death(id, exit) if self.alive.remove(&id).is_some() => {
                    self.held.insert(id, Some(exit));
                }
                Item::Answers(id) if self.alive.contains_key(&id) => {
                    self.answered.insert(id, at);
                }
                _ => {}
            }
        }
        self.items.clear();
        for (at, item) in later {
            self.plan(at, item);
        }
        let (status, scenario) = (&self.status, &self.scenario);
        let is_live = |id: &AttemptId| {
            status
                .replica(&scenario.name(id.slot))
                .is_some_and(|replica| replica.is_live() && replica.attempt == id.attempt)
        };
        self.held.retain(|id, _| is_live(id));
        self.alive.retain(|id, _| is_live(id));
    }

    /// Reports everything that the engine has to a new supervisor.
    fn tell_held(&mut self, held: &BTreeSet<AttemptId>) {
        for id in held.iter().copied() {
            let soon = millis(&mut self.rng, 0..50);
            let name = self.scenario.name(id.slot);
            let known = self.status.replica(&name).is_some_and(|it| matches!(it.stage, Stage::Running { .. }));
            if self.scenario.script(id).refused.is_none() && (!known || self.rng.bool()) {
                self.notice(Event::Started { id, instance: Instance::of_pid(1000 + id.slot.index) }, soon);
            }
            if let Some(exit) = self.held[&id].clone() {
                self.exited(id, exit, soon);
            }
        }
    }

    /// Writes a record as the replaced supervisor, which does not know that it was replaced.
    fn write_as_the_last_one(&mut self) {
        let slot = pick(&mut self.rng, &self.scenario.slots());
        let fact = Fact::Starting { subject: self.machine.subject(slot) };
        let (seq, at, epoch) = (self.journal.len() as u64, self.now.as_micros(), self.epoch - 1);
        let record = Record { run: None, v: VERSION, seq, at, epoch, step: None, fact };
        self.status.add(&record);
        self.journal.push(record);
    }

    fn plan_visits(&mut self, start: Timestamp) {
        let chance = |rng: &mut Rng, chance: f64| rng.f64() < chance;
        let trouble = self.scenario.trouble;
        let moment = |rng: &mut Rng| {
            let far = pick(rng, &[30, 3000, 12_000]);
            Timestamp::from_micros(start.as_micros() - 20_000) + millis(rng, 0..far)
        };
        if chance(&mut self.rng, 0.25 * trouble) {
            let mut at = moment(&mut self.rng);
            for _ in 0..self.rng.u32(1..4) {
                let event = match self.rng.u32(..4) {
                    0 => Event::StopAsked { kill: self.rng.f64() < 0.2 },
                    3 => Event::Halted,
                    1 => Event::Signalled { signal: pick(&mut self.rng, &[2, 15]) },
                    _ => Event::StopAsked { kill: false },
                };
                self.plan(at.max(self.now), Item::Event(event));
                at = at + millis(&mut self.rng, 0..3000);
            }
        }
        if chance(&mut self.rng, 0.12 * trouble) {
            let at = moment(&mut self.rng);
            let again = self.rng.f64() < 0.5;
            self.plan(at.max(self.now), Item::Event(Event::EngineLost { again }));
        }
        for _ in 0..(f64::from(self.rng.u32(..6)) * trouble) as u32 {
            let slot = pick(&mut self.rng, &self.scenario.slots());
            let id = AttemptId { step: StepIndex(0), slot, attempt: self.rng.u32(..4) };
            let id = pick(
                &mut self.rng,
                &[id, id, AttemptId { step: StepIndex(0), slot: Slot { role: 9, ..slot }, attempt: FIRST_ATTEMPT }],
            );
            let event = match self.rng.u32(..8) {
                0 => Event::Started { id, instance: Instance::of_pid(1) },
                1 => Event::Exited { id, exit: code(1), classed: None, usage: None },
                2 => Event::Ready { id },
                3 => Event::Inspected { id, evidence: None },
                4 => Event::Gathered(vec![]),
                5 => Event::Prepared { attempt: self.rng.u32(..4), ready: false },
                _ => {
                    let Some((timer, attempt)) = self.rng.choice(&self.old_timers) else { continue };
                    Event::Timer(*timer, *attempt)
                }
            };
            let at = moment(&mut self.rng);
            self.plan(at.max(self.now), Item::Stray(event));
        }
    }

    fn plan(&mut self, at: Timestamp, item: Item) {
        self.queue.push(Reverse((at, self.items.len())));
        self.items.push(item);
    }

    fn supervise(&mut self) -> Ended {
        let mut patient = true;
        loop {
            while let Some(Reverse((at, index))) = self.queue.pop() {
                self.now = at;
                let event = match self.items[index].clone() {
                    Item::Event(event) => event,
                    Item::Stray(event) if self.is_stray(&event) => event,
                    Item::Timer(timer, token) if self.timers.get(&timer).is_some_and(|(_, other)| *other == token) => {
                        let (attempt, _) = self.timers.remove(&timer).expect("it was just seen");
                        let wrong = self.sabotage == Some(Sabotage::WrongFence);
                        Event::Timer(timer, attempt + u32::from(wrong))
                    }
                    Item::Death(id, exit) => {
                        self.die(id, exit);
                        continue;
                    }
                    Item::Answers(id) if self.alive.contains_key(&id) => {
                        self.answered.insert(id, at);
                        if self.awaited.contains(&id) {
                            self.notice(Event::Ready { id }, Duration::ZERO);
                        }
                        continue;
                    }
                    Item::Stray(_) | Item::Timer(..) | Item::Answers(_) => continue,
                };
                if self.tell(event) {
                    return Ended::Lost;
                }
                if self.steps.len() > ENDLESS {
                    return Ended::Stalled;
                }
                // Events may still arrive after the end.
                if self.machine.is_finished() && self.rng.f64() < 0.3 {
                    return Ended::Finished;
                }
            }
            if self.machine.is_finished() {
                return Ended::Finished;
            }
            if !patient || self.alive.is_empty() {
                return Ended::Stalled;
            }
            patient = false;
            self.plan(self.now + PATIENCE, Item::Event(Event::Signalled { signal: 2 }));
        }
    }

    /// True if nothing waits for this event, so that it may be sent as a stray.
    fn is_stray(&self, event: &Event) -> bool {
        let is_old = |id: &AttemptId| {
            let known = self.machine.attempt_of(id.slot).is_some();
            !known
                || (!self.alive.contains_key(id)
                    && (self.machine.number(id.slot) != id.attempt
                        || !self.machine.attempt_of(id.slot).is_some_and(Attempt::is_live)))
        };
        match event {
            Event::Timer(timer, attempt) => self.timers.get(timer).is_none_or(|(other, _)| other != attempt),
            Event::Started { id, .. } | Event::Exited { id, .. } | Event::Ready { id } => is_old(id),
            Event::Inspected { id, .. } => !self.inspecting.contains(id),
            Event::Gathered(_) => !self.gathering,
            Event::Prepared { .. } => !self.machine.is_pausing(),
            _ => true,
        }
    }

    /// Passes one event to the machine and performs its effects. True if the supervisor was lost during this.
    fn tell(&mut self, event: Event) -> bool {
        match &event {
            Event::EngineLost { .. } => {
                self.alive.clear();
                self.held.clear();
            }
            Event::Gathered(_) => self.gathering = false,
            Event::Inspected { id, .. } => {
                self.inspecting.remove(id);
            }
            _ => {}
        }
        let may_be_stale = !matches!(event, Event::Timer(..));
        let before = may_be_stale.then(|| self.machine.clone());
        let mut effects = self.machine.step(event.clone(), self.now);
        if self.sabotage == Some(Sabotage::SpawnFirst)
            && let Some(place) = effects.iter().position(|effect| matches!(effect, Effect::Spawn(_)))
        {
            let spawn = effects.remove(place);
            effects.insert(0, spawn);
        }
        let ignored = matches!(effects.as_slice(), [Effect::Record(Fact::Ignored { .. })]);
        let changed = |before: Machine| format!("{before:?}") != format!("{:?}", self.machine);
        if ignored && before.is_some_and(changed) {
            let (step, message) = (self.steps.len(), format!("{event:?} was ignored and changed something"));
            self.seen.push(Violation { rule: Rule::Stale, step, message });
        }
        let lost = match &mut self.fate {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        if lost {
            effects.truncate(self.rng.usize(..=effects.len()));
        }
        self.steps.push(Step { at: self.now, what: What::Event(event), effects: effects.clone(), lost });
        for effect in effects {
            self.perform(effect);
        }
        if lost {
            if !self.scenario.keeps {
                self.alive.clear();
            }
            // Everything was performed: for the user it has ended.
            return !self.status.is_finished();
        }
        self.compare();
        false
    }

    fn record(&mut self, fact: Fact) {
        let lost = match (self.sabotage, &fact) {
            (Some(Sabotage::LoseRetrying), Fact::Retrying { .. })
            | (Some(Sabotage::LoseRestarting), Fact::Restarting { .. }) => true,
            (Some(Sabotage::LoseEnded), Fact::Ended { .. }) => self.rng.f64() < 0.2,
            _ => false,
        };
        if !lost {
            let (seq, at) = (self.journal.len() as u64, self.now.as_micros());
            let record = Record { run: None, v: VERSION, seq, at, epoch: self.epoch, step: None, fact };
            self.status.add(&record);
            self.journal.push(record);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Record(fact) => self.record(fact),
            Effect::Spawn(ids) => ids.into_iter().for_each(|id| self.spawn(id)),
            Effect::Stop { how, targets } => targets.into_iter().for_each(|id| self.stop(how, id)),
            Effect::ArmTimer { timer, attempt, at } => self.arm(timer, attempt, at),
            Effect::DisarmTimer(timer) => {
                self.timers.remove(&timer);
            }
            Effect::Await(id) => {
                self.awaited.push(id);
                if self.answered.contains_key(&id) || self.sabotage == Some(Sabotage::Unprobed) {
                    self.notice(Event::Ready { id }, Duration::ZERO);
                }
            }
            Effect::Inspect(id) => {
                self.inspecting.insert(id);
                self.notice(Event::Inspected { id, evidence: None }, self.scenario.gather);
            }
            Effect::Gather { .. } => {
                self.gathering = true;
                self.notice(Event::Gathered(vec![]), self.scenario.gather);
            }
            Effect::Prepare { attempt } => {
                let ready = self.rng.f64() < 0.93;
                let after = pick(&mut self.rng, &[Duration::ZERO, Duration::from_millis(700)]);
                self.notice(Event::Prepared { attempt, ready }, after);
            }
            // There are no other nodes.
            Effect::AwaitElsewhere { .. }
            | Effect::TellReady { .. }
            | Effect::StartUnready { .. }
            | Effect::Release { .. }
            | Effect::Forsake(_)
            | Effect::Observe(_)
            | Effect::TellFailed(_)
            | Effect::Report(_)
            | Effect::Stand(_)
            | Effect::ReturnTerminal
            | Effect::Finish { .. } => {}
        }
    }

    fn arm(&mut self, timer: Timer, attempt: u32, at: Timestamp) {
        let token = self.items.len();
        self.old_timers.push((timer, attempt));
        let late = Duration::from_micros(self.rng.u64(..=self.scenario.late.as_micros() as u64));
        let fires = match (self.sabotage, timer) {
            (Some(Sabotage::ForgetLimits), Timer::Run(_)) => return,
            (Some(Sabotage::HastyBackoff), Timer::Backoff | Timer::BackoffOf(_))
            | (Some(Sabotage::HastyGrace), Timer::Grace | Timer::GraceOf(_)) => self.now,
            _ => at + late,
        };
        self.timers.insert(timer, (attempt, token));
        self.plan(fires, Item::Timer(timer, token));
        if self.rng.f64() < self.scenario.echo {
            let again = fires + millis(&mut self.rng, 0..1500);
            self.plan(again, Item::Stray(Event::Timer(timer, attempt)));
        }
    }

    fn spawn(&mut self, id: AttemptId) {
        let script = self.scenario.script(id);
        self.held.insert(id, script.refused.clone().map(Exit::Spawn));
        if let Some(error) = script.refused {
            return self.exited(id, Exit::Spawn(error), script.reported);
        }
        self.notice(Event::Started { id, instance: Instance::of_pid(1000 + id.slot.index) }, script.announced);
        if let Some(life) = script.life {
            self.plan(self.now + life, Item::Death(id, script.end.clone()));
        }
        if let Some(ready) = script.ready {
            self.plan(self.now + ready, Item::Answers(id));
        }
        self.alive.insert(id, script);
    }

    fn stop(&mut self, how: StopHow, id: AttemptId) {
        let Some(script) = self.alive.get(&id) else { return };
        let death = match how {
            StopHow::Interrupt => script.on_interrupt.clone(),
            StopHow::Terminate => script.on_term.clone(),
            StopHow::Kill => script.on_kill.map(|after| (after, Exit::Signal { signal: SIGKILL, core_dumped: false })),
        };
        if let Some((after, exit)) = death {
            self.plan(self.now + after, Item::Death(id, exit));
        }
    }

    /// The process is dead; its notification follows.
    fn die(&mut self, id: AttemptId, exit: Exit) {
        if let Some(script) = self.alive.remove(&id) {
            self.held.insert(id, Some(exit.clone()));
            self.exited(id, exit, script.reported);
        }
    }

    fn exited(&mut self, id: AttemptId, exit: Exit, after: Duration) {
        let classed = policy::classed(self.scenario.job.policy.exits, &exit);
        self.notice(Event::Exited { id, exit, classed, usage: None }, after);
    }

    /// Schedules a notification, sometimes duplicated.
    fn notice(&mut self, event: Event, after: Duration) {
        let at = self.now + after;
        self.plan(at, Item::Event(event.clone()));
        // A second answer could be taken for the answer to the next request.
        if self.rng.f64() < self.scenario.echo && !matches!(event, Event::Gathered(_)) {
            let again = at + millis(&mut self.rng, 0..2000);
            self.plan(again, Item::Event(event));
        }
    }

    fn complain(&mut self, message: String) {
        let step = self.steps.len().saturating_sub(1);
        self.seen.push(Violation { rule: Rule::Replay, step, message });
    }

    /// Compares the replayed journal with the machine.
    fn compare(&mut self) {
        let mut complaints = Vec::new();
        if !self.machine.is_counted() {
            complaints.push("the machine has miscounted".to_owned());
        }
        if self.status.is_finished() != self.machine.is_finished() {
            complaints.push("journal and machine disagree about the end".to_owned());
        }
        let attempt = self.machine.attempt() + u32::from(self.machine.is_pausing());
        if self.status.attempt != attempt && !self.machine.is_finished() {
            complaints.push(format!("attempt {} of the job against {attempt}", self.status.attempt));
        }
        for slot in self.scenario.slots() {
            let (Some(attempt), number) = (self.machine.attempt_of(slot), self.machine.number(slot)) else { continue };
            let name = self.scenario.name(slot);
            let Some(replica) = self.status.replica(&name) else {
                if *attempt != Attempt::Waiting {
                    complaints.push(format!("{name} is not in the journal"));
                }
                continue;
            };
            let same = match (attempt, &replica.stage) {
                // Between two attempts the journal is ahead, and an end that does not stay is dropped at once.
                _ if self.machine.is_pausing() || self.machine.is_finished() => true,
                (Attempt::Waiting, Stage::Waiting) => (number..=number + 1).contains(&replica.attempt),
                (Attempt::Waiting, Stage::Ended(ended)) => number == replica.attempt && !ended.is_success(),
                (Attempt::Waiting | Attempt::Abandoned, Stage::Abandoned)
                | (Attempt::Starting { .. }, Stage::Starting { .. })
                | (Attempt::Running { .. }, Stage::Running { .. })
                | (Attempt::Stopping { started: false, .. }, Stage::Starting { .. })
                | (Attempt::Stopping { started: true, .. }, Stage::Running { .. }) => number == replica.attempt,
                (Attempt::Ended(end), Stage::Ended(ended)) => {
                    number == replica.attempt
                        && (end.is_success(), end.is_failure()) == (ended.is_success(), ended.is_failure())
                        && end.exit == ended.exit
                }
                // Before the start of a supervisor that took over.
                (Attempt::Waiting, Stage::Starting { .. } | Stage::Running { .. }) => !self.has_started(),
                _ => false,
            };
            if !same {
                complaints.push(format!(
                    "{name}: {attempt:?} as {number} against {:?} as {}",
                    replica.stage, replica.attempt
                ));
            }
        }
        for message in complaints {
            self.complain(message);
        }
    }

    fn has_started(&self) -> bool {
        let mut steps = self.steps.iter().rev();
        steps.find_map(|step| match step.what {
            What::Began(..) => Some(false),
            What::Event(Event::Start) => Some(true),
            What::Event(_) => None,
        }) == Some(true)
    }
}
