//! Performs the machine's effects on a virtual clock, keeps the journal, and loses supervisors.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use umiak_core::facts::{
    Began, Fact, NodeValues, Outcome, Planned, PlannedPipeline, Record, SkipReason, StopReason, Supervised, VERSION,
};
use umiak_core::machine::pipeline::{Effect, Event, Machine, Recorded, Resolution, State};
use umiak_core::model::{StepIndex, StepName, Value};
use umiak_core::pipeline::Tree as _;
use umiak_core::status::{NodeState, PipelineStatus, RunStatus};

use super::coverage;
use super::scenario::{Scenario, Script, pick};
use super::timeline::{Done, Moment, Rule, Run, Violation, What};

/// A way in which a driver may be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Ends of DAGs, loops and cancelled nodes are not recorded.
    LoseLeft,
    /// The items of loops are not recorded.
    LoseLooping,
    /// The end of a step is not recorded.
    LoseFinished,
    /// Supervisors begin from nothing.
    Forget,
    /// A repeated run begins from nothing.
    Repeat,
}

/// Probability that a supervisor is lost after an event.
const LOSS: f64 = 0.06;

/// Something that will happen, unless its supervisor is lost before.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Coming {
    Event(Event, bool),
    /// The job of this step ends; void if it was asked to stop since.
    JobEnds(String, u32),
    /// Whoever supervises.
    Stop,
}

/// A job that runs.
#[derive(Debug, Clone)]
struct Job {
    id: StepIndex,
    script: Script,
    ends: u64,
    outcome: Outcome,
    asked: u32,
}

struct World {
    scenario: Scenario,
    rng: Rng,
    sabotage: Option<Sabotage>,
    now: u64,
    coming: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Coming>,
    number: u64,
    machine: Machine,
    status: RunStatus,
    /// Of the run that this one repeats.
    repeated: Option<Box<PipelineStatus>>,
    journal: Vec<Record>,
    jobs: BTreeMap<String, Job>,
    /// How often each step was run in this run.
    attempts: BTreeMap<String, u32>,
    run: u32,
    epoch: u32,
    losses: u32,
    retries: u32,
    finished: Option<Outcome>,
    result: Run,
}

pub(super) fn run(scenario: Scenario, sabotage: Option<Sabotage>) -> Run {
    let result = Run { scenario: scenario.clone(), moments: vec![], journals: vec![], seen: vec![], stalled: false };
    let mut world = World {
        rng: Rng::with_seed(scenario.seed ^ 0x77),
        sabotage,
        now: 1_000_000,
        coming: BinaryHeap::new(),
        what: BTreeMap::new(),
        number: 0,
        machine: Machine::new(Arc::clone(&scenario.pipeline)),
        status: RunStatus::default(),
        repeated: None,
        journal: Vec::new(),
        jobs: BTreeMap::new(),
        attempts: BTreeMap::new(),
        run: 0,
        epoch: 0,
        losses: scenario.losses,
        retries: scenario.retries,
        finished: None,
        scenario,
        result,
    };
    world.play();
    world.result.journals.push(world.journal);
    world.result
}

impl World {
    fn play(&mut self) {
        self.begin(Began::Submitted);
        while self.result.moments.len() < 20_000 {
            if let Some(outcome) = self.finished {
                if outcome == Outcome::Succeeded || self.retries == 0 {
                    // A few events come too late.
                    while let Some(coming) = self.next() {
                        self.happen(coming);
                    }
                    return;
                }
                self.retries -= 1;
                self.begin(Began::Retried);
            }
            let Some(coming) = self.next() else { break };
            self.happen(coming);
        }
        self.result.stalled = true;
    }

    fn next(&mut self) -> Option<Coming> {
        let Reverse((at, number)) = self.coming.pop()?;
        self.now = self.now.max(at);
        self.what.remove(&number)
    }

    fn come(&mut self, after: Duration, coming: Coming) {
        let at = self.now + after.as_micros() as u64;
        self.number += 1;
        self.coming.push(Reverse((at, self.number)));
        self.what.insert(self.number, coming);
    }

    /// A supervisor begins.
    fn begin(&mut self, why: Began) {
        let pipeline = Arc::clone(&self.scenario.pipeline);
        self.machine = Machine::new(Arc::clone(&pipeline));
        self.machine.observe(coverage::observe);
        self.jobs.clear();
        let is_new = why != Began::Resumed;
        if is_new {
            self.coming.clear();
            self.what.clear();
            let (stops, patience) = (self.scenario.stops, self.scenario.patience.as_micros() as u64);
            for _ in 0..stops {
                let after = Duration::from_micros(self.rng.u64(0..=patience));
                self.come(after, Coming::Stop);
            }
        } else {
            // Requests come from outside.
            self.what.retain(|_, coming| *coming == Coming::Stop);
            let kept = |Reverse((_, number)): &Reverse<(u64, u64)>| self.what.contains_key(number);
            self.coming.retain(kept);
        }
        if why == Began::Retried {
            self.repeated = std::mem::take(&mut self.status).pipeline;
            self.result.journals.push(std::mem::take(&mut self.journal));
            self.attempts.clear();
            (self.run, self.epoch, self.finished) = (self.run + 1, 0, None);
        }
        let own = self.status.pipeline.as_deref().filter(|_| self.sabotage != Some(Sabotage::Forget));
        let repeated = self.repeated.as_deref().filter(|_| self.sabotage != Some(Sabotage::Repeat));
        if own.is_some() || repeated.is_some() {
            self.machine.recover(Recorded { own, repeated: repeated.map(|status| (status, "run-1")) });
        }
        let supervised = Supervised { why, host: "here".into(), pid: 1, umiak: "0".into() };
        self.record(None, Fact::Supervised(supervised));
        if self.status.pipeline.is_none() {
            let planned = PlannedPipeline {
                parallelism: pipeline.parallelism,
                on_failure: pipeline.on_failure,
                ..PlannedPipeline::default()
            };
            self.record(None, Fact::Pipeline(Box::new(planned)));
        }
        self.moment(What::Began(why), Vec::new(), Event::Start);
    }

    fn happen(&mut self, coming: Coming) {
        match coming {
            Coming::Stop => {
                let force = self.rng.f64() < 0.2;
                let reason = pick(&mut self.rng, &[StopReason::User, StopReason::Signal { signal: 2 }]);
                self.moment(What::StopAsked { force }, vec![], Event::StopAsked { reason, force });
            }
            Coming::JobEnds(name, asked) => {
                if self.jobs.get(&name).is_none_or(|job| job.asked != asked) {
                    return;
                }
                let Some(Job { id, outcome, .. }) = self.jobs.remove(&name) else { return };
                let fact = Fact::Finished { outcome, exit_code: u8::from(outcome != Outcome::Succeeded) };
                let facts = if self.sabotage == Some(Sabotage::LoseFinished) { vec![] } else { vec![fact] };
                let facts = facts.into_iter().map(|fact| (name.clone(), fact)).collect();
                let event = Event::Ended { id, outcome };
                self.echo(&event);
                self.moment(What::Ended(name, outcome), facts, event);
            }
            Coming::Event(event, is_stray) => {
                if !is_stray {
                    self.echo(&event);
                }
                let what = match &event {
                    _ if is_stray => What::Stray,
                    Event::Resolved { id, what, .. } => What::Resolved(self.name(*id), what.clone()),
                    Event::Closed { id, result } => What::Closed(self.name(*id), result.is_ok()),
                    Event::Start | Event::Ended { .. } | Event::StopAsked { .. } => What::Stray,
                };
                self.moment(what, vec![], event);
            }
        }
    }

    /// Duplicates an event, or adds one that does not fit.
    fn echo(&mut self, event: &Event) {
        if self.rng.f64() >= self.scenario.echo {
            return;
        }
        let after = Duration::from_millis(self.rng.u64(1..100));
        let id = StepIndex(self.rng.u32(..self.machine.len() + 2));
        let stray = match self.rng.u32(..4) {
            0 => event.clone(),
            1 => Event::Start,
            _ => self.stray(id),
        };
        self.come(after, Coming::Event(stray, true));
    }

    /// An event that probably does not fit the state of this instance.
    fn stray(&mut self, id: StepIndex) -> Event {
        let (run, step) = (String::new(), String::new());
        let what = match self.rng.u32(..7) {
            0 => return Event::Ended { id, outcome: Outcome::Succeeded },
            1 => return Event::Closed { id, result: Err(String::new()) },
            2 => Resolution::Run,
            3 => Resolution::Loop { items: vec![Value::Int(1)] },
            4 => Resolution::Failed { reason: String::new() },
            5 => Resolution::Skip { why: SkipReason::Condition },
            _ => Resolution::Cached { run, step },
        };
        Event::Resolved { id, values: Box::default(), what }
    }

    /// Steps the machine, after these facts were recorded, and performs its effects; perhaps not all of them.
    fn moment(&mut self, what: What, facts: Vec<(String, Fact)>, event: Event) {
        let is_stray = what == What::Stray;
        self.result.moments.push(Moment { at: self.now, what, done: Vec::new(), lost: false });
        for (name, fact) in facts {
            self.done(Done::Fact(Some(name.clone()), fact.clone()));
            self.record(Some(&name), fact);
        }
        // What the world believed not to fit may fit by now.
        if is_stray && self.fits(&event) {
            self.result.moments.pop();
            return;
        }
        let effects = self.machine.step(event);
        let dies = self.losses > 0 && self.finished.is_none() && self.rng.f64() < LOSS;
        let until = if dies { self.rng.usize(0..=effects.len()) } else { effects.len() };
        for effect in effects.into_iter().take(until) {
            self.perform(effect);
        }
        if dies && self.finished.is_none() {
            self.losses -= 1;
            self.epoch += 1;
            if let Some(moment) = self.result.moments.last_mut() {
                moment.lost = true;
            }
            self.now += self.rng.u64(0..2_000_000);
            self.begin(Began::Resumed);
        } else {
            self.compare();
        }
    }

    fn fits(&self, event: &Event) -> bool {
        match event {
            Event::Start | Event::StopAsked { .. } => false,
            Event::Resolved { id, .. } => self.machine.state(*id) == Some(State::Resolving),
            Event::Closed { id, .. } => self.machine.state(*id) == Some(State::Closing),
            Event::Ended { id, .. } => {
                matches!(self.machine.state(*id), Some(State::Running | State::Stopping | State::Killing))
            }
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Record { id, fact } => {
                let name = (id != Machine::RUN).then(|| self.name(id));
                self.done(Done::Fact(name.clone(), fact.clone()));
                let is_lost = match self.sabotage {
                    Some(Sabotage::LoseLeft) => matches!(fact, Fact::Left { .. }),
                    Some(Sabotage::LoseLooping) => matches!(fact, Fact::Looping { .. }),
                    Some(Sabotage::LoseFinished | Sabotage::Forget | Sabotage::Repeat) | None => false,
                };
                if !is_lost {
                    self.record(name.as_deref(), fact);
                }
            }
            Effect::Resolve(id) => {
                let name = self.name(id);
                self.done(Done::Resolve(name.clone()));
                let script = self.script(id, &name);
                let mut values = NodeValues {
                    item: self.machine.item(id).map(|item| Value::Int(item.into())),
                    ..NodeValues::default()
                };
                if self.rng.bool() {
                    values.parameters.push(("name".into(), Value::Text(name)));
                }
                let event = Event::Resolved { id, values: Box::new(values), what: script.what };
                self.come(script.resolving, Coming::Event(event, false));
            }
            Effect::Close(id) => {
                let name = self.name(id);
                self.done(Done::Close(name.clone()));
                let script = self.script(id, &name);
                let values = NodeValues { outputs: vec![("out".into(), vec![name])], ..NodeValues::default() };
                let result = if script.closes { Ok(Box::new(values)) } else { Err("no outputs".to_owned()) };
                self.come(script.closing, Coming::Event(Event::Closed { id, result }, false));
                self.disturb(id);
            }
            Effect::Run { id, stopping } => {
                let name = self.name(id);
                self.done(Done::Run { name: name.clone(), stopping });
                *self.attempts.entry(name.clone()).or_default() += 1;
                self.plan(&name);
                let script = self.script(id, &name);
                let (after, outcome) = if stopping { script.stopping } else { (script.life, script.outcome) };
                let ends = self.now + after.as_micros() as u64;
                self.come(after, Coming::JobEnds(name.clone(), 0));
                self.jobs.insert(name, Job { id, script, ends, outcome, asked: 0 });
            }
            Effect::Stop { ids, force } => {
                let names: Vec<String> = ids.iter().map(|id| self.name(*id)).collect();
                self.done(Done::Stop { names: names.clone(), force });
                for (id, name) in ids.into_iter().zip(names) {
                    self.disturb(id);
                    self.stop(&name, force);
                }
            }
            Effect::Finish(outcome) => {
                self.done(Done::Finish(outcome));
                self.record(None, Fact::Finished { outcome, exit_code: u8::from(outcome != Outcome::Succeeded) });
                self.finished = Some(outcome);
            }
        }
    }

    /// Something that does not fit comes for this instance in particular.
    fn disturb(&mut self, id: StepIndex) {
        if self.rng.f64() < self.scenario.echo {
            let stray = self.stray(id);
            self.come(Duration::ZERO, Coming::Event(stray, true));
        }
    }

    /// A job that is asked to stop ends as it would have, or earlier.
    fn stop(&mut self, name: &str, force: bool) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(name) else { return };
        job.asked += 1;
        let (after, outcome) = job.script.stopping;
        let after = if force { after / 100 } else { after };
        if now + (after.as_micros() as u64) < job.ends {
            (job.ends, job.outcome) = (now + after.as_micros() as u64, outcome);
        }
        let (asked, after) = (job.asked, Duration::from_micros(job.ends.saturating_sub(now)));
        self.come(after, Coming::JobEnds(name.to_owned(), asked));
    }

    /// The first fact of a job.
    fn plan(&mut self, name: &str) {
        let planned = Planned {
            job: name.to_owned(),
            name: String::new(),
            command: String::new(),
            attempt: 1,
            umiak: "0".into(),
            world_size: 0,
            log_dir: String::new(),
            roles: vec![],
            replicas: vec![],
            nodes: vec![],
        };
        self.record(Some(name), Fact::Planned(planned));
    }

    fn script(&self, id: StepIndex, name: &str) -> Script {
        let attempt = self.attempts.get(name).copied().unwrap_or_default();
        self.scenario.script(name, self.machine.node(id), self.machine.item(id).is_some(), self.run, attempt)
    }

    fn name(&self, id: StepIndex) -> String {
        self.machine.name(id).map(String::from).unwrap_or_default()
    }

    fn done(&mut self, done: Done) {
        if let Some(moment) = self.result.moments.last_mut() {
            moment.done.push(done);
        }
    }

    fn record(&mut self, name: Option<&str>, fact: Fact) {
        let step = name.map(|name| StepName::new(name).expect("a name of the machine"));
        let seq = self.journal.len() as u64;
        let record = Record { run: None, v: VERSION, seq, at: self.now, epoch: self.epoch, step, fact };
        self.status.add(&record);
        self.journal.push(record);
    }

    /// The replayed facts and the machine must be in the same state.
    fn compare(&mut self) {
        let Some(status) = &self.status.pipeline else { return };
        let mut wrong = Vec::new();
        for id in (1..self.machine.len()).map(StepIndex) {
            let name = self.name(id);
            let state = self.machine.state(id).expect("it exists");
            let recorded = status.node(&name).map(|node| node.state);
            let is_same = match state {
                State::Waiting | State::Ready | State::Resolving => matches!(recorded, None | Some(NodeState::Pending)),
                State::Open | State::Closing => recorded == Some(NodeState::Open),
                State::Running | State::Stopping | State::Killing => recorded == Some(NodeState::Running),
                State::Ended(end) => recorded == Some(NodeState::Ended(end)),
            };
            if !is_same {
                wrong.push(format!("{name} is {state:?}, and recorded as {recorded:?}"));
            }
        }
        if status.nodes().count() as u32 + 1 > self.machine.len() {
            wrong.push("the machine does not know all recorded instances".to_owned());
        }
        let moment = self.result.moments.len().saturating_sub(1);
        let violations = wrong.into_iter().map(|message| Violation { rule: Rule::Replay, moment, message });
        self.result.seen.extend(violations);
    }
}
