//! Continuing from recorded facts: of earlier supervisors of the run, and of the run that this one repeats.

use super::{Effect, Kind, Machine, NodeEnd, OnFailure, ROOT, State, StepIndex, Stop};
use crate::facts::Fact;
use crate::model::Value;
use crate::status::{NodeState, NodeStatus, PipelineStatus};

/// Recorded facts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recorded<'a> {
    /// Of earlier supervisors of this run: every end counts, and a stop is completed. Steps that ran are run again, and
    /// their jobs continue from their own facts.
    pub own: Option<&'a PipelineStatus>,
    /// Of the run that this one repeats, with its name: only good ends count, and they are recorded again. A supervisor
    /// may die before it has recorded all of them, so the next one needs this, too.
    pub repeated: Option<(&'a PipelineStatus, &'a str)>,
}

impl<'a> Recorded<'a> {
    /// What this run has recorded of a node that has begun in it.
    fn begun(self, name: &str) -> Option<&'a NodeStatus> {
        self.own.and_then(|own| own.node(name)).filter(|recorded| has_begun(recorded))
    }
}

/// Where the parts of a DAG or loop come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin<'a> {
    recorded: Recorded<'a>,
    /// The whole has ended: none of its parts begins.
    closed: bool,
}

enum Parts<'a> {
    Children,
    Items(&'a [Value]),
}

impl Machine {
    /// Continues from recorded facts; called before [`Event::Start`](super::Event::Start).
    pub fn recover(&mut self, recorded: Recorded<'_>) {
        let from = Origin { recorded, closed: false };
        if let Some(own) = recorded.own {
            self.recover_post(own, from);
            if let Some(reason) = own.stopping {
                let is_cancelled = |post| self.instances.get(post).state == State::Ended(NodeEnd::Cancelled);
                self.stop = Some(Stop { reason, force: self.post.is_some_and(is_cancelled) });
                self.inherited.push(Effect::Record { id: ROOT, fact: Fact::Stopping { reason } });
            }
        }
        self.open_dag(ROOT, Some(from));
        for id in (0..self.instances.len()).map(StepIndex) {
            if self.instances.get(id).state == State::Running {
                let is_spared = self.post == Some(id) && !self.is_killed();
                let stopping = self.is_halted() && !is_spared;
                self.instances.get_mut(id).state = if stopping { State::Stopping } else { State::Running };
                self.inherited.push(Effect::Run { id, stopping });
            }
        }
    }

    /// The facts that an instance has continued from. `None` if it begins in this run: then nothing that another run has
    /// recorded about it counts, such as the paths of its artifacts.
    pub fn continued<'a>(&self, id: StepIndex, recorded: Recorded<'a>) -> Option<&'a NodeStatus> {
        let name = self.name(id).filter(|_| self.instances.get(id).state.has_begun())?;
        recorded.begun(name.as_str()).or_else(|| recorded.repeated.and_then(|(status, _)| status.node(name.as_str())))
    }

    /// The post step, if it has begun or was cancelled. A run that repeats another has its own.
    fn recover_post(&mut self, own: &PipelineStatus, from: Origin<'_>) {
        let Some(node) = self.pipeline.post else { return };
        let recorded = own.node(&self.pipeline.node(node).name);
        if recorded.is_some_and(has_begun) {
            let id = self.create(node, ROOT, None);
            self.post = Some(id);
            self.adopt(id, from);
        }
    }

    /// Gives an instance the state that is recorded for it. Returns false if it has not begun.
    pub(super) fn adopt(&mut self, id: StepIndex, from: Origin<'_>) -> bool {
        let name = self.name(id).map(String::from).unwrap_or_default();
        let own = from.recorded.begun(&name);
        let repeated = from.recorded.repeated.and_then(|(status, run)| Some((status.node(&name)?, run)));
        let adopted = match (own, repeated) {
            (Some(recorded), _) => self.resume(id, recorded, from),
            (None, Some((recorded, run))) => self.repeat(id, &name, recorded, run, from),
            (None, None) => false,
        };
        if !adopted && from.closed {
            self.adopt_end(id, NodeEnd::Cancelled);
        }
        adopted || from.closed
    }

    fn resume(&mut self, id: StepIndex, recorded: &NodeStatus, from: Origin<'_>) -> bool {
        let end = recorded.ended();
        let is_open = self.adopt_parts(id, recorded, end, from);
        match end {
            Some(end) => self.adopt_end(id, end),
            None if is_open => {}
            None if recorded.state == NodeState::Running && self.instances.get(id).kind == Kind::Step => {
                self.slots += 1;
                self.instances.get_mut(id).state = State::Running;
            }
            None => return false,
        }
        true
    }

    fn repeat(&mut self, id: StepIndex, name: &str, recorded: &NodeStatus, run: &str, from: Origin<'_>) -> bool {
        let end = recorded.ended().filter(|end| end.is_good());
        let begin = self.parts(id, recorded).map(|parts| match parts {
            Parts::Items(items) => Fact::Looping { items: items.to_vec() },
            Parts::Children => Fact::Entered,
        });
        if end.is_none() && begin.is_none() {
            return false;
        }
        let values = recorded.values().map(|values| Fact::Resolved(Box::new(values.clone())));
        self.inherited.extend(values.into_iter().chain(begin).map(|fact| Effect::Record { id, fact }));
        self.adopt_parts(id, recorded, end, from);
        let Some(end) = end else { return true };
        let cached = |run: &str, step: &str| Fact::Cached { from_run: run.to_owned(), from_step: step.to_owned() };
        let (fact, end) = match (recorded.cached_from(), recorded.skipped) {
            (Some((run, step)), _) => (cached(run, step), end),
            (None, Some(why)) => (Fact::Skipped { why }, end),
            // Its result is used as that of an earlier run.
            (None, None) if self.instances.get(id).kind == Kind::Step => (cached(run, name), NodeEnd::Cached),
            (None, None) => (Fact::Left { end }, end),
        };
        self.inherited.push(Effect::Record { id, fact });
        self.adopt_end(id, end);
        true
    }

    /// The parts of a DAG or loop that has begun.
    fn parts<'a>(&self, id: StepIndex, recorded: &'a NodeStatus) -> Option<Parts<'a>> {
        match self.instances.get(id).kind {
            Kind::Step => None,
            Kind::Dag => recorded.times().0.map(|_| Parts::Children),
            Kind::Loop => recorded.items().map(Parts::Items),
        }
    }

    /// Creates the parts of a DAG or loop that has begun.
    fn adopt_parts(&mut self, id: StepIndex, recorded: &NodeStatus, end: Option<NodeEnd>, from: Origin<'_>) -> bool {
        let from = Origin { closed: from.closed || end.is_some(), ..from };
        match self.parts(id, recorded) {
            Some(Parts::Items(items)) => self.open_loop(id, items.len() as u32, Some(from)),
            Some(Parts::Children) => self.open_dag(id, Some(from)),
            None => return false,
        }
        if !from.closed {
            let mut effects = std::mem::take(&mut self.inherited);
            self.complete(id, &mut effects);
            self.inherited = effects;
        }
        true
    }

    fn adopt_end(&mut self, id: StepIndex, end: NodeEnd) {
        self.instances.get_mut(id).state = State::Ended(end);
        self.count(id, end);
        self.ended.push_back(id);
        // A recorded failure has the consequences that it had.
        if matches!(end, NodeEnd::Failed | NodeEnd::Stopped) && self.post != Some(id) {
            self.failed_fast |= self.pipeline.on_failure == OnFailure::FailFast;
        }
    }
}

fn has_begun(recorded: &NodeStatus) -> bool {
    recorded.state != NodeState::Pending
}
