//! The instances of a running pipeline, each a small value.
//!
//! The parts of a DAG (its children) and of a loop (its items) are next to each other, in their order, so that each one
//! is found by its position.

use std::cell::Cell;

use crate::facts::NodeEnd;
use crate::model::{Body, NodeId, Pipeline, StepIndex};

/// The instance of the whole pipeline.
pub(super) const ROOT: StepIndex = StepIndex(0);

/// One instance of a node.
#[derive(Debug, Clone)]
pub(super) struct Instance {
    pub(super) node: NodeId,
    /// The DAG or loop that it is a part of; the root's is itself.
    pub(super) whole: StepIndex,
    /// Its number in its loop.
    pub(super) item: Option<u32>,
    pub(super) kind: Kind,
    pub(super) state: State,
    /// Before it starts: siblings it waits for. Once it is open: parts that have not ended.
    pub(super) open: u32,
    /// Its parts.
    pub(super) first: StepIndex,
    pub(super) parts: u32,
    /// The worst end of its parts.
    pub(super) worst: Worst,
}

const _: () = assert!(size_of::<Instance>() <= 48, "a finished instance is a small value");

/// What an instance does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Step,
    Dag,
    /// Its parts are the items.
    Loop,
}

/// The state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// For siblings.
    Waiting,
    /// Steps: for a slot.
    Ready,
    Resolving,
    /// A DAG or loop with parts that have not ended.
    Open,
    /// A DAG whose outputs are being determined.
    Closing,
    Running,
    /// A running step that was asked to stop.
    Stopping,
    /// The same, without a grace period.
    Killing,
    Ended(NodeEnd),
}

impl State {
    /// True if its job exists.
    pub(super) fn is_live(self) -> bool {
        matches!(self, Self::Running | Self::Stopping | Self::Killing)
    }

    /// False while it waits or is being resolved.
    pub(super) fn has_begun(self) -> bool {
        !matches!(self, Self::Waiting | Self::Ready | Self::Resolving)
    }
}

/// Ends of parts, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worst {
    Good,
    Cancelled,
    Stopped,
    Failed,
}

impl From<NodeEnd> for Worst {
    fn from(end: NodeEnd) -> Self {
        match end {
            NodeEnd::Succeeded | NodeEnd::Skipped | NodeEnd::Cached => Self::Good,
            NodeEnd::Cancelled => Self::Cancelled,
            NodeEnd::Stopped => Self::Stopped,
            NodeEnd::Failed => Self::Failed,
        }
    }
}

/// All instances, by their number.
#[derive(Debug, Clone, Default)]
pub(super) struct Instances {
    list: Vec<Instance>,
    visits: Cell<u64>,
}

impl Instances {
    pub(super) fn len(&self) -> u32 {
        self.list.len() as u32
    }

    pub(super) fn find(&self, id: StepIndex) -> Option<&Instance> {
        self.visits.set(self.visits.get() + 1);
        self.list.get(id.0 as usize)
    }

    pub(super) fn get(&self, id: StepIndex) -> &Instance {
        self.visits.set(self.visits.get() + 1);
        &self.list[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: StepIndex) -> &mut Instance {
        self.visits.set(self.visits.get() + 1);
        &mut self.list[id.0 as usize]
    }

    pub(super) fn visits(&self) -> u64 {
        self.visits.get()
    }

    pub(super) fn push(
        &mut self,
        node: NodeId,
        whole: StepIndex,
        item: Option<u32>,
        kind: Kind,
        open: u32,
    ) -> StepIndex {
        let id = StepIndex(self.len());
        self.visits.set(self.visits.get() + 1);
        self.list.push(Instance {
            node,
            whole,
            item,
            kind,
            state: State::Waiting,
            open,
            first: id,
            parts: 0,
            worst: Worst::Good,
        });
        id
    }

    /// The parts of a DAG or loop.
    pub(super) fn parts(&self, id: StepIndex) -> impl Iterator<Item = StepIndex> + use<> {
        let Instance { first, parts, .. } = *self.get(id);
        (first.0..first.0 + parts).map(StepIndex)
    }
}

/// What the machine needs to know about the order of nodes, by node.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// Its position among the children of its parent; `None` for the root and the post step.
    positions: Vec<Option<u32>>,
    /// How many siblings it waits for.
    waits: Vec<u32>,
    /// Where its dependants begin in `dependants`, and at the end where the last ones end.
    begins: Vec<u32>,
    /// Positions of siblings.
    dependants: Vec<u32>,
}

impl Order {
    pub(super) fn new(pipeline: &Pipeline) -> Self {
        let count = pipeline.nodes.len();
        let mut positions = vec![None; count];
        for (id, node) in pipeline.iter() {
            if let Body::Dag { children } = &node.body {
                for (position, child) in (0..).zip(children) {
                    if pipeline.nodes.get(child.0 as usize).is_some_and(|node| node.parent == id) {
                        positions[child.0 as usize] = Some(position);
                    }
                }
            }
        }
        // A dependency on anything but a sibling would never end: there is none in a valid pipeline.
        let is_sibling = |id: NodeId, of: NodeId| {
            positions.get(id.0 as usize).is_some_and(Option::is_some)
                && pipeline.node(id).parent == pipeline.node(of).parent
        };
        let mut edges = Vec::new();
        let mut waits = vec![0; count];
        for (id, node) in pipeline.iter() {
            let Some(position) = positions[id.0 as usize] else { continue };
            for dep in node.deps.iter().filter(|dep| is_sibling(**dep, id)) {
                waits[id.0 as usize] += 1;
                edges.push((dep.0, position));
            }
        }
        edges.sort_unstable();
        let mut begins = vec![0; count + 1];
        for (from, _) in &edges {
            begins[*from as usize + 1] += 1;
        }
        for node in 0..count {
            begins[node + 1] += begins[node];
        }
        Self { positions, waits, begins, dependants: edges.into_iter().map(|(_, to)| to).collect() }
    }

    pub(super) fn position(&self, node: NodeId) -> Option<u32> {
        self.positions.get(node.0 as usize).copied().flatten()
    }

    pub(super) fn waits(&self, node: NodeId) -> u32 {
        self.waits[node.0 as usize]
    }

    /// The positions of the siblings that wait for a node.
    pub(super) fn dependants(&self, node: NodeId) -> &[u32] {
        let at = node.0 as usize;
        &self.dependants[self.begins[at] as usize..self.begins[at + 1] as usize]
    }
}
