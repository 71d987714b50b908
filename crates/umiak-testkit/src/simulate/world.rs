//! The world around the machine: performs its effects on a virtual clock and answers with events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use fastrand::Rng;
use umiak_core::diagnose;
use umiak_core::facts::{Evidence, Fact};
use umiak_core::machine::job::{AttemptId, Effect, Event, Gathered, Machine, Timer};
use umiak_core::model::{Exit, FIRST_ATTEMPT, Instance, Slot, StepIndex, StopHow, Timestamp};

use super::coverage;
use super::scenario::{Scenario, Words};
use super::timeline::{Death, Run, Step, Why};

const SIGKILL: i32 = 9;

/// How long after the last event the user interrupts a run that has not ended.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A driver that is broken in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// The grace timer never fires.
    ForgetGrace,
    /// The grace timer fires as soon as it is armed.
    HastyGrace,
    /// The back-off timer fires as soon as it is armed.
    HastyBackoff,
    /// The settle timer fires a minute late.
    SlowSettle,
    /// Evidence of a lost peer and of an own failure are swapped.
    SwapEvidence,
}

/// What will happen at some time.
#[derive(Debug, Clone)]
enum Item {
    /// An event for the machine.
    Event(Event),
    /// A timer or an answer that nothing waits for by then; otherwise it would be wrong.
    Stray(Event),
    /// The death of a process of this attempt.
    Death { attempt: u32, rank: usize, death: Fate },
}

/// How a process is about to end.
#[derive(Debug, Clone)]
struct Fate {
    exit: Exit,
    why: Why,
    words: Words,
}

struct World {
    scenario: Scenario,
    sabotage: Option<Sabotage>,
    rng: Rng,
    machine: Machine,
    now: Timestamp,
    /// By time, then in the order they were scheduled.
    queue: BinaryHeap<Reverse<(Timestamp, usize)>>,
    items: Vec<Item>,
    attempt: u32,
    alive: Vec<bool>,
    /// By attempt.
    deaths: BTreeMap<u32, Vec<Option<Death>>>,
    armed: BTreeSet<(Timer, u32)>,
    gathering: bool,
    stopping: bool,
    steps: Vec<Step>,
}

pub(super) fn run(scenario: Scenario, sabotage: Option<Sabotage>) -> Run {
    let mut machine = Machine::new(scenario.job.clone(), scenario.style, scenario.seed);
    machine.observe(coverage::observe);
    coverage::take();
    let size = scenario.scripts.len();
    let mut world = World {
        rng: Rng::with_seed(scenario.seed ^ 0x5eed),
        sabotage,
        machine,
        now: Timestamp::default(),
        queue: BinaryHeap::new(),
        items: Vec::new(),
        attempt: FIRST_ATTEMPT,
        alive: vec![false; size],
        deaths: BTreeMap::from([(FIRST_ATTEMPT, vec![None; size])]),
        armed: BTreeSet::new(),
        gathering: false,
        stopping: false,
        steps: Vec::new(),
        scenario,
    };
    world.play();
    Run { scenario: world.scenario, steps: world.steps, deaths: world.deaths, taken: coverage::take() }
}

impl World {
    fn play(&mut self) {
        self.plan(self.scenario.start, Item::Event(Event::Start));
        for (at, event) in self.scenario.visits.clone() {
            let item = if matches!(event, Event::Gathered(_)) { Item::Stray(event) } else { Item::Event(event) };
            self.plan(at, item);
        }
        for timer in [Timer::Settle, Timer::Terminate, Timer::Grace, Timer::Abandon, Timer::Backoff] {
            if self.rng.f64() < self.scenario.echo {
                let at = Timestamp::from_micros(self.rng.u64(..20_000_000));
                let attempt = self.rng.u32(..3);
                self.plan(at, Item::Stray(Event::Timer(timer, attempt)));
            }
        }
        self.drain();
        if !self.machine.is_finished() && !self.stopping {
            self.plan(self.now + PATIENCE, Item::Event(Event::Signalled { signal: 2 }));
            self.drain();
        }
    }

    fn plan(&mut self, at: Timestamp, item: Item) {
        self.queue.push(Reverse((at, self.items.len())));
        self.items.push(item);
    }

    fn drain(&mut self) {
        while let Some(Reverse((at, index))) = self.queue.pop() {
            self.now = at;
            match self.items[index].clone() {
                Item::Stray(event) if self.is_awaited(&event) => {}
                Item::Event(event) | Item::Stray(event) => self.tell(event),
                Item::Death { attempt, rank, death } if attempt == self.attempt => self.die(rank, death),
                Item::Death { .. } => {}
            }
        }
    }

    fn is_awaited(&self, event: &Event) -> bool {
        match event {
            Event::Timer(timer, attempt) => self.armed.contains(&(*timer, *attempt)),
            _ => self.gathering,
        }
    }

    /// Passes one event to the machine and performs its effects.
    fn tell(&mut self, event: Event) {
        match &event {
            Event::Timer(timer, attempt) => {
                self.armed.remove(&(*timer, *attempt));
            }
            Event::Gathered(_) => self.gathering = false,
            Event::EngineLost { .. } => {
                for rank in 0..self.alive.len() {
                    self.bury(rank, Fate { exit: Exit::Lost, why: Why::Guardian, words: Words::Silence });
                }
            }
            _ => {}
        }
        let before = self.machine.clone();
        let effects = self.machine.step(event.clone(), self.now);
        assert!(self.machine.is_counted(), "{event:?} was miscounted");
        let ignored = matches!(effects.as_slice(), [Effect::Record(Fact::Ignored { .. })]);
        let unchanged = ignored && format!("{before:?}") == format!("{:?}", self.machine);
        self.steps.push(Step { at: self.now, event, effects: effects.clone(), unchanged });
        for effect in effects {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Spawn(ids) => {
                if let Some(id) = ids.first().filter(|id| id.attempt > self.attempt) {
                    self.attempt = id.attempt;
                    self.deaths.insert(self.attempt, vec![None; self.alive.len()]);
                }
                for id in ids {
                    self.spawn(id);
                }
            }
            Effect::Prepare { attempt } => {
                let ready = self.scenario.unprepared.is_none_or(|refused| attempt < refused);
                self.notice(Event::Prepared { attempt, ready }, self.scenario.prepare);
            }
            Effect::Stop { how, targets } => targets.into_iter().for_each(|id| self.stop(how, id.slot)),
            Effect::ArmTimer { timer, attempt, at } => self.arm(timer, attempt, at),
            Effect::Gather { ended: slots, .. } => {
                self.gathering = true;
                let found = |slot| Gathered { evidence: self.evidence(slot), ..Gathered::nothing(slot) };
                let found = slots.into_iter().map(found).collect();
                self.plan(self.now + self.scenario.gather, Item::Event(Event::Gathered(found)));
            }
            Effect::Record(Fact::Stopping { .. }) => self.stopping = true,
            Effect::Record(Fact::Restarting { .. }) => self.stopping = false,
            Effect::Record(_)
            | Effect::Report(_)
            | Effect::Observe(_)
            | Effect::Stand(_)
            | Effect::ReturnTerminal
            | Effect::DisarmTimer(_)
            | Effect::Await(_)
            | Effect::AwaitElsewhere { .. }
            | Effect::TellReady { .. }
            | Effect::StartUnready { .. }
            | Effect::Inspect(_)
            | Effect::Release { .. }
            | Effect::Forsake(_)
            | Effect::TellFailed(_)
            | Effect::Finish { .. } => {}
        }
    }

    fn arm(&mut self, timer: Timer, attempt: u32, at: Timestamp) {
        self.armed.insert((timer, attempt));
        let late = Duration::from_micros(self.rng.u64(..=self.scenario.late.as_micros() as u64));
        let fires = match (self.sabotage, timer) {
            (Some(Sabotage::ForgetGrace), Timer::Grace) => return,
            (Some(Sabotage::HastyGrace), Timer::Grace) | (Some(Sabotage::HastyBackoff), Timer::Backoff) => self.now,
            (Some(Sabotage::SlowSettle), Timer::Settle) => at + Duration::from_secs(61),
            _ => at + late,
        };
        self.plan(fires, Item::Event(Event::Timer(timer, attempt)));
        if self.rng.f64() < self.scenario.echo {
            let again = fires + Duration::from_millis(self.rng.u64(..500));
            self.plan(again, Item::Stray(Event::Timer(timer, attempt)));
        }
    }

    fn spawn(&mut self, id: AttemptId) {
        let rank = self.scenario.rank(id.slot).expect("the machine names slots of its job");
        let script = self.scenario.script(id.attempt, rank).clone();
        let (exit, words) = match script.refused {
            Some(error) => (Exit::Spawn(error), Words::Silence),
            None => (script.end, script.words),
        };
        let refused = matches!(exit, Exit::Spawn(_));
        self.alive[rank] = true;
        let death = Fate { exit, why: Why::Own, words };
        if refused {
            return self.die(rank, death);
        }
        self.notice(Event::Started { id, instance: Instance::of_pid(1000 + rank as u32) }, script.announced);
        if let Some(life) = script.life {
            self.plan(self.now + life, Item::Death { attempt: id.attempt, rank, death });
        }
    }

    fn stop(&mut self, how: StopHow, slot: Slot) {
        let rank = self.scenario.rank(slot).expect("the machine names slots of its job");
        let script = self.scenario.script(self.attempt, rank);
        let (after, exit, words) = match how {
            StopHow::Interrupt => match script.on_interrupt.clone() {
                Some(reaction) => reaction,
                None => return,
            },
            StopHow::Terminate => match script.on_term.clone() {
                Some(reaction) => reaction,
                None => return,
            },
            StopHow::Kill => match script.on_kill {
                Some(after) => (after, Exit::Signal { signal: SIGKILL, core_dumped: false }, Words::Silence),
                None => return,
            },
        };
        let death = Fate { exit, why: Why::Ours, words };
        self.plan(self.now + after, Item::Death { attempt: self.attempt, rank, death });
    }

    /// The process is dead; its notification and the consequences for its peers follow.
    fn die(&mut self, rank: usize, death: Fate) {
        let Fate { exit, why, .. } = death.clone();
        if !self.bury(rank, death) {
            return;
        }
        let script = self.scenario.script(self.attempt, rank);
        let id = AttemptId { step: StepIndex(0), slot: script.slot, attempt: self.attempt };
        let reported = script.reported;
        let ran_badly = !exit.is_success() && !matches!(exit, Exit::Spawn(_));
        self.notice(Event::Exited { id, exit, classed: None, usage: None }, reported);
        if why == Why::Own && ran_badly {
            for peer in (0..self.alive.len()).filter(|peer| self.alive[*peer]).collect::<Vec<_>>() {
                if let Some((after, exit, words)) = self.scenario.script(self.attempt, peer).on_lost_peer.clone() {
                    let death = Fate { exit, why: Why::Peer, words };
                    self.plan(self.now + after, Item::Death { attempt: self.attempt, rank: peer, death });
                }
            }
        }
    }

    /// False if it was dead already.
    fn bury(&mut self, rank: usize, Fate { exit, why, words }: Fate) -> bool {
        let lived = std::mem::replace(&mut self.alive[rank], false);
        if lived {
            let deaths = self.deaths.get_mut(&self.attempt).expect("every attempt has a list");
            deaths[rank] = Some(Death { at: self.now, exit, why, words });
        }
        lived
    }

    /// Schedules a notification, sometimes duplicated.
    fn notice(&mut self, event: Event, after: Duration) {
        let at = self.now + after;
        if self.rng.f64() < self.scenario.echo {
            let again = at + Duration::from_millis(self.rng.u64(..2000));
            self.plan(again, Item::Event(event.clone()));
        }
        self.plan(at, Item::Event(event));
    }

    /// The log of this process, as evidence.
    fn evidence(&self, slot: Slot) -> Option<Evidence> {
        let rank = self.scenario.rank(slot)?;
        let words = self.deaths[&self.attempt][rank].as_ref()?.words;
        let signature = |code| diagnose::explain(code).map(diagnose::Signature::to_match);
        let words = match (self.sabotage, words) {
            (Some(Sabotage::SwapEvidence), Words::OwnError) => Words::LostPeer,
            (Some(Sabotage::SwapEvidence), Words::LostPeer) => Words::OwnError,
            (_, words) => words,
        };
        let evidence = match words {
            // An empty log, or none that could be read.
            Words::Silence if slot.index.is_multiple_of(2) => return None,
            Words::Silence => Evidence::default(),
            Words::OwnError => Evidence {
                traceback: vec!["Traceback (most recent call last):".into(), "OSError: [Errno 5]".into()],
                // A known signature or none: both are errors of its own.
                signature: if slot.index.is_multiple_of(2) { signature("U1204") } else { None },
                ..Evidence::default()
            },
            Words::LostPeer => Evidence { signature: signature("U9202"), ..Evidence::default() },
            Words::Terminated => Evidence { signature: signature("U9101"), ..Evidence::default() },
        };
        Some(evidence)
    }
}
