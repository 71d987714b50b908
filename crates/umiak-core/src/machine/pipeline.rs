//! The pipeline: which node runs when. It knows neither values nor jobs: [`Effect::Resolve`] asks for the first, and
//! [`Effect::Run`] starts the second.
//!
//! ```text
//!           siblings ended well          slot free            Run
//! Waiting ──────────────────────► Ready ───────────► Resolving ──► Running ──────────────► Ended(how)
//!    │                              │                    │  │        └► Stopping ► Killing ──►┘
//!    │                              │                    │  └ DAG, loop ► Open ─┬► Closing ──►┘
//!    └──────── a sibling failed, or the run stops ───────┘                      └────────────►┘
//! ```
//!
//! The cost of an event does not depend on the number of nodes. Only events that concern all of them, such as a stop,
//! visit each one.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::facts::{Fact, NodeEnd, NodeValues, Outcome, SkipReason, StopReason};
use crate::model::{Body, NodeId, OnFailure, Pipeline, StepIndex};
use crate::pipeline::{MAX_INSTANCES, too_many};

mod instances;
mod messages;
mod recover;
mod stopping;
#[cfg(test)]
mod tests;
mod tree;

pub use instances::State;
use instances::{Instance, Instances, Kind, Order, ROOT, Worst};
pub use messages::{Effect, Event, Resolution};
use recover::Origin;
pub use recover::Recorded;
use stopping::Stop;

/// The state of a pipeline.
#[derive(Debug, Clone)]
pub struct Machine {
    pipeline: Arc<Pipeline>,
    order: Order,
    instances: Instances,
    phase: Phase,
    /// Ready steps, which wait for a slot, in the order in which they became ready.
    queue: VecDeque<StepIndex>,
    /// Ready DAGs and loops, which need none.
    due: Vec<StepIndex>,
    /// Ends whose consequences are not drawn yet.
    ended: VecDeque<StepIndex>,
    /// How many slots are taken.
    slots: u32,
    stop: Option<Stop>,
    /// A failure has stopped the rest.
    failed_fast: bool,
    post: Option<StepIndex>,
    tally: Tally,
    /// What the start has to do for instances that began earlier.
    inherited: Vec<Effect>,
    observer: Option<Observer>,
}

/// Numbers of steps. Those that were stopped or cancelled are neither.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Succeeded, skipped, or known from an earlier run.
    pub done: u32,
    pub failed: u32,
}

/// Called for every event of an instance, with the state before it.
pub type Observer = fn(State, &Event);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    NotStarted,
    Running,
    Finished,
}

impl Machine {
    /// The run itself, in effects and events.
    pub const RUN: StepIndex = ROOT;

    pub fn new(pipeline: Arc<Pipeline>) -> Self {
        let mut instances = Instances::default();
        instances.push(Pipeline::ROOT, ROOT, None, Kind::Dag, 0);
        Self {
            order: Order::new(&pipeline),
            pipeline,
            instances,
            phase: Phase::NotStarted,
            queue: VecDeque::new(),
            due: Vec::new(),
            ended: VecDeque::new(),
            slots: 0,
            stop: None,
            failed_fast: false,
            post: None,
            tally: Tally::default(),
            inherited: Vec::new(),
            observer: None,
        }
    }

    /// Observes transitions, for coverage tests.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    /// The transition function: synchronous, pure but for `self`, total. Nothing in it depends on the time.
    pub fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(observer) = self.observer {
            observer(self.state_for(&event), &event);
        }
        match event {
            _ if self.phase == Phase::Finished => self.ignore(&event, &mut effects),
            Event::Resolved { .. } | Event::Ended { .. } | Event::Closed { .. } if self.phase == Phase::NotStarted => {
                self.ignore(&event, &mut effects);
            }
            Event::Start if self.phase == Phase::NotStarted => self.start(&mut effects),
            Event::Resolved { id, values, what } if self.may_become(id, &what) => {
                self.resolved(id, values, what, &mut effects);
            }
            Event::Ended { id, outcome } if self.is(id, State::is_live) => {
                self.end(id, outcome.into(), &mut effects);
            }
            Event::Closed { id, result } if self.is(id, |state| state == State::Closing) => match result {
                Ok(values) => {
                    record_values(id, values, &mut effects);
                    self.leave(id, NodeEnd::Succeeded, &mut effects);
                }
                Err(reason) => self.refuse(id, reason, &mut effects),
            },
            Event::StopAsked { reason, force } if !self.is_killed() => self.stop_asked(reason, force, &mut effects),
            Event::Start
            | Event::Resolved { .. }
            | Event::Ended { .. }
            | Event::Closed { .. }
            | Event::StopAsked { .. } => self.ignore(&event, &mut effects),
        }
        self.advance(&mut effects);
        effects
    }

    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// How steps have ended so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// How many steps hold a slot.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The number of instances so far.
    pub fn len(&self) -> u32 {
        self.instances.len()
    }

    /// False: there is always the root.
    pub fn is_empty(&self) -> bool {
        self.instances.len() == 0
    }

    /// The state of an instance; `None` if it does not exist.
    pub fn state(&self, id: StepIndex) -> Option<State> {
        self.instances.find(id).map(|instance| instance.state)
    }

    /// How often instances were visited so far. For tests: visits per event do not grow with the pipeline.
    pub fn visits(&self) -> u64 {
        self.instances.visits()
    }

    fn start(&mut self, effects: &mut Vec<Effect>) {
        self.phase = Phase::Running;
        effects.append(&mut self.inherited);
        if self.instances.get(ROOT).state == State::Waiting {
            self.open_dag(ROOT, None);
        }
        self.complete(ROOT, effects);
        if self.is_halted() {
            self.halt(effects);
        }
    }

    /// Draws the consequences of what has ended, and lets begin what may.
    fn advance(&mut self, effects: &mut Vec<Effect>) {
        if self.phase != Phase::Running {
            return;
        }
        while let Some(id) = self.ended.pop_front() {
            self.follow(id, effects);
        }
        for id in std::mem::take(&mut self.due) {
            self.resolve(id, effects);
        }
        while self.slots < self.pipeline.parallelism.max(1)
            && let Some(id) = self.queue.pop_front()
        {
            self.slots += 1;
            self.resolve(id, effects);
        }
    }

    fn resolve(&mut self, id: StepIndex, effects: &mut Vec<Effect>) {
        self.instances.get_mut(id).state = State::Resolving;
        effects.push(Effect::Resolve(id));
    }

    fn resolved(&mut self, id: StepIndex, values: Box<NodeValues>, what: Resolution, effects: &mut Vec<Effect>) {
        record_values(id, values, effects);
        let parts = match (&what, &self.pipeline.node(self.instances.get(id).node).body) {
            (Resolution::Loop { items }, _) => items.len(),
            (Resolution::Run, Body::Dag { children }) => children.len(),
            _ => 0,
        };
        if parts > 0 && self.instances.len() as usize + parts > MAX_INSTANCES {
            return self.refuse(id, too_many(), effects);
        }
        match what {
            Resolution::Run if self.instances.get(id).kind == Kind::Dag => {
                effects.push(Effect::Record { id, fact: Fact::Entered });
                self.open_dag(id, None);
                self.complete(id, effects);
            }
            Resolution::Run => {
                self.instances.get_mut(id).state = State::Running;
                effects.push(Effect::Run { id, stopping: false });
            }
            Resolution::Loop { items } if items.is_empty() => self.skip(id, SkipReason::NoItems, effects),
            Resolution::Loop { items } => {
                let count = items.len() as u32;
                effects.push(Effect::Record { id, fact: Fact::Looping { items } });
                self.open_loop(id, count, None);
            }
            Resolution::Skip { why } => self.skip(id, why, effects),
            Resolution::Cached { run, step } => {
                effects.push(Effect::Record { id, fact: Fact::Cached { from_run: run, from_step: step } });
                self.end(id, NodeEnd::Cached, effects);
            }
            Resolution::Failed { reason } => self.refuse(id, reason, effects),
        }
    }

    fn skip(&mut self, id: StepIndex, why: SkipReason, effects: &mut Vec<Effect>) {
        effects.push(Effect::Record { id, fact: Fact::Skipped { why } });
        self.end(id, NodeEnd::Skipped, effects);
    }

    fn refuse(&mut self, id: StepIndex, reason: String, effects: &mut Vec<Effect>) {
        // Its steps have not come to be: it counts as one.
        self.tally.failed += u32::from(self.instances.get(id).kind != Kind::Step);
        effects.push(Effect::Record { id, fact: Fact::Refused { reason } });
        self.end(id, NodeEnd::Failed, effects);
    }

    fn leave(&mut self, id: StepIndex, end: NodeEnd, effects: &mut Vec<Effect>) {
        if id != ROOT {
            effects.push(Effect::Record { id, fact: Fact::Left { end } });
        }
        self.end(id, end, effects);
    }

    /// Ends an instance. The facts that say so are recorded already.
    fn end(&mut self, id: StepIndex, end: NodeEnd, effects: &mut Vec<Effect>) {
        let instance = self.instances.get_mut(id);
        if instance.kind == Kind::Step && (instance.state == State::Resolving || instance.state.is_live()) {
            self.slots -= 1;
        }
        instance.state = State::Ended(end);
        self.count(id, end);
        self.ended.push_back(id);
        // A step that ends as stopped although it was not asked to has failed, too.
        if matches!(end, NodeEnd::Failed | NodeEnd::Stopped) && self.post != Some(id) {
            self.fail_fast(effects);
        }
    }

    fn count(&mut self, id: StepIndex, end: NodeEnd) {
        if self.instances.get(id).kind == Kind::Step {
            self.tally.done += u32::from(end.is_good());
            self.tally.failed += u32::from(end == NodeEnd::Failed);
        }
    }

    /// The consequences of an end, for the siblings that wait for it and for the whole it is a part of.
    fn follow(&mut self, id: StepIndex, effects: &mut Vec<Effect>) {
        let Instance { node, whole, item, state, .. } = *self.instances.get(id);
        let State::Ended(end) = state else { return };
        if id == ROOT {
            self.begin_post();
        }
        if id == ROOT || self.post == Some(id) {
            self.finish(effects);
            return;
        }
        if item.is_none() {
            let first = self.instances.get(whole).first;
            for at in 0..self.order.dependants(node).len() {
                let sibling = StepIndex(first.0 + self.order.dependants(node)[at]);
                let instance = self.instances.get_mut(sibling);
                match instance.state {
                    State::Waiting if end.is_good() => {
                        instance.open -= 1;
                        if instance.open == 0 {
                            self.ready(sibling);
                        }
                    }
                    State::Waiting => self.leave(sibling, NodeEnd::Cancelled, effects),
                    _ => {}
                }
            }
        }
        let whole_of = self.instances.get_mut(whole);
        if whole_of.state == State::Open {
            whole_of.open -= 1;
            whole_of.worst = whole_of.worst.max(end.into());
            self.complete(whole, effects);
        }
    }

    /// Ends a DAG or loop, if all its parts have ended.
    fn complete(&mut self, id: StepIndex, effects: &mut Vec<Effect>) {
        let Instance { node, kind, open, worst, .. } = *self.instances.get(id);
        if open > 0 {
            return;
        }
        let end = match worst {
            Worst::Good if kind == Kind::Dag && !self.pipeline.node(node).outputs.is_empty() => {
                self.instances.get_mut(id).state = State::Closing;
                effects.push(Effect::Close(id));
                return;
            }
            Worst::Good => NodeEnd::Succeeded,
            Worst::Failed => NodeEnd::Failed,
            Worst::Stopped if !self.is_halted() => NodeEnd::Failed,
            Worst::Stopped | Worst::Cancelled => NodeEnd::Stopped,
        };
        self.leave(id, end, effects);
    }

    /// Lets an instance begin as soon as it may.
    fn ready(&mut self, id: StepIndex) {
        let instance = self.instances.get_mut(id);
        instance.state = State::Ready;
        match instance.kind {
            Kind::Step => self.queue.push_back(id),
            Kind::Dag | Kind::Loop => self.due.push(id),
        }
    }

    /// Creates the children of a DAG. Those that wait for no sibling are ready.
    fn open_dag(&mut self, id: StepIndex, from: Option<Origin<'_>>) {
        let pipeline = Arc::clone(&self.pipeline);
        let Body::Dag { children } = &pipeline.node(self.instances.get(id).node).body else { return };
        self.open(id, children.iter().map(|child| (*child, None)), from);
    }

    /// Creates the items of a loop, all of them ready.
    fn open_loop(&mut self, id: StepIndex, count: u32, from: Option<Origin<'_>>) {
        let node = self.instances.get(id).node;
        self.open(id, (0..count).map(|item| (node, Some(item))), from);
    }

    fn open(
        &mut self,
        id: StepIndex,
        parts: impl ExactSizeIterator<Item = (NodeId, Option<u32>)>,
        from: Option<Origin<'_>>,
    ) {
        let (first, count) = (self.instances.len(), parts.len() as u32);
        let instance = self.instances.get_mut(id);
        (instance.first, instance.parts, instance.open) = (StepIndex(first), count, count);
        instance.state = State::Open;
        // All of them first: they are next to each other.
        for (node, item) in parts {
            self.create(node, id, item);
        }
        for part in (first..first + count).map(StepIndex) {
            let has_begun = from.is_some_and(|from| self.adopt(part, from));
            if !has_begun && self.instances.get(part).open == 0 {
                self.ready(part);
            }
        }
    }

    fn create(&mut self, node: NodeId, whole: StepIndex, item: Option<u32>) -> StepIndex {
        let kind = match &self.pipeline.node(node) {
            looped if looped.items.is_some() && item.is_none() => Kind::Loop,
            plain => match plain.body {
                Body::Dag { .. } => Kind::Dag,
                Body::Step(_) => Kind::Step,
            },
        };
        let waits = if item.is_none() { self.order.waits(node) } else { 0 };
        self.instances.push(node, whole, item, kind, waits)
    }

    /// The post step is the last one to run.
    fn begin_post(&mut self) {
        if self.post.is_none()
            && let Some(node) = self.pipeline.post
        {
            let id = self.create(node, ROOT, None);
            self.post = Some(id);
            self.ready(id);
        }
    }

    /// Ends the run, if the root and the post step have ended.
    fn finish(&mut self, effects: &mut Vec<Effect>) {
        if self.is_finished() {
            return;
        }
        let Instance { state: State::Ended(_), worst, .. } = *self.instances.get(ROOT) else { return };
        let post = self.post.map_or(State::Ended(NodeEnd::Succeeded), |post| self.instances.get(post).state);
        let State::Ended(post) = post else { return };
        let outcome = match worst.max(post.into()) {
            Worst::Good => Outcome::Succeeded,
            Worst::Failed => Outcome::Failed,
            Worst::Stopped | Worst::Cancelled => self.stop.map_or(Outcome::Failed, Stop::outcome),
        };
        self.phase = Phase::Finished;
        effects.push(Effect::Finish(outcome));
    }

    fn is(&self, id: StepIndex, is: impl FnOnce(State) -> bool) -> bool {
        self.instances.find(id).is_some_and(|instance| is(instance.state))
    }

    fn may_become(&self, id: StepIndex, what: &Resolution) -> bool {
        let Some(Instance { kind, state: State::Resolving, .. }) = self.instances.find(id) else { return false };
        match what {
            Resolution::Run => *kind != Kind::Loop,
            Resolution::Loop { .. } => *kind == Kind::Loop,
            Resolution::Cached { .. } => *kind == Kind::Step,
            Resolution::Skip { .. } | Resolution::Failed { .. } => true,
        }
    }

    /// The state that an event is for.
    fn state_for(&self, event: &Event) -> State {
        let id = match event {
            Event::Resolved { id, .. } | Event::Ended { id, .. } | Event::Closed { id, .. } => *id,
            Event::Start | Event::StopAsked { .. } => ROOT,
        };
        self.instances.find(id).map_or(State::Waiting, |instance| instance.state)
    }

    fn ignore(&self, event: &Event, effects: &mut Vec<Effect>) {
        let state = match self.phase {
            Phase::NotStarted => "not started".to_owned(),
            Phase::Running => format!("{:?}", self.state_for(event)),
            Phase::Finished => "finished".to_owned(),
        };
        effects.push(Effect::Record { id: ROOT, fact: Fact::Ignored { event: event.describe(), state } });
    }
}

fn record_values(id: StepIndex, values: Box<NodeValues>, effects: &mut Vec<Effect>) {
    if !values.is_empty() {
        effects.push(Effect::Record { id, fact: Fact::Resolved(values) });
    }
}
