//! The tree of instances, and their names.

use super::{Kind, Machine, ROOT};
use crate::model::{NodeId, StepIndex, StepName};
use crate::pipeline::Tree;

impl Machine {
    /// The name of an instance in the journal: the names from the root and the numbers in loops, joined by dots. `None`
    /// for the root, whose records are about the run.
    pub fn name(&self, id: StepIndex) -> Option<StepName> {
        let mut parts = Vec::new();
        let mut at = id;
        while at != ROOT {
            let instance = self.instances.get(at);
            parts.push(match instance.item {
                Some(item) => item.to_string(),
                None => self.pipeline.node(instance.node).name.clone(),
            });
            at = instance.whole;
        }
        parts.reverse();
        (id != ROOT).then(|| StepName::of_path(&parts.join(".")))
    }

    /// The loop that this instance is an item of.
    pub fn loop_of(&self, id: StepIndex) -> Option<StepIndex> {
        let instance = self.instances.get(id);
        instance.item.map(|_| instance.whole)
    }
}

impl Tree for Machine {
    fn node(&self, id: StepIndex) -> NodeId {
        self.instances.get(id).node
    }

    fn parent(&self, id: StepIndex) -> Option<StepIndex> {
        let whole = self.instances.get(self.loop_of(id).unwrap_or(id)).whole;
        (id != ROOT).then_some(whole)
    }

    fn item(&self, id: StepIndex) -> Option<u32> {
        self.instances.get(id).item
    }

    fn instances(&self, dag: StepIndex, child: NodeId) -> Vec<StepIndex> {
        let whole = self.instances.get(dag);
        let position = self.order.position(child).filter(|position| *position < whole.parts);
        let Some(id) = position.map(|position| StepIndex(whole.first.0 + position)) else { return Vec::new() };
        let instance = self.instances.get(id);
        match instance.kind {
            _ if instance.node != child => Vec::new(),
            Kind::Loop => self.instances.parts(id).collect(),
            Kind::Step | Kind::Dag => vec![id],
        }
    }
}
