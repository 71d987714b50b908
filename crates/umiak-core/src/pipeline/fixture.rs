//! Pipelines and instances for tests.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Answer, Scope, Tree};
use crate::model::{
    Body, Given, Input, Job, JobId, Node, NodeId, OnFailure, Output, Parameter, Piece, Pipeline, Place, Policy,
    Reference, Role, RoleName, Step, StepIndex, Store, SystemParameter, Text, Value,
};

/// Instances in the order in which they came to be.
pub(super) struct Instances(Vec<Instance>);

struct Instance {
    node: NodeId,
    parent: Option<StepIndex>,
    item: Option<u32>,
    is_loop: bool,
}

impl Instances {
    pub(super) fn new() -> Self {
        Self(vec![Instance { node: Pipeline::ROOT, parent: None, item: None, is_loop: false }])
    }

    pub(super) fn add(&mut self, parent: StepIndex, node: NodeId, item: Option<u32>) -> StepIndex {
        self.0.push(Instance { node, parent: Some(parent), item, is_loop: false });
        StepIndex(self.0.len() as u32 - 1)
    }

    pub(super) fn add_loop(&mut self, parent: StepIndex, node: NodeId) -> StepIndex {
        self.0.push(Instance { node, parent: Some(parent), item: None, is_loop: true });
        StepIndex(self.0.len() as u32 - 1)
    }
}

impl Tree for Instances {
    fn node(&self, id: StepIndex) -> NodeId {
        self.0[id.0 as usize].node
    }

    fn parent(&self, id: StepIndex) -> Option<StepIndex> {
        self.0[id.0 as usize].parent
    }

    fn item(&self, id: StepIndex) -> Option<u32> {
        self.0[id.0 as usize].item
    }

    fn instances(&self, dag: StepIndex, child: NodeId) -> Vec<StepIndex> {
        let all = (0..).map(StepIndex).zip(&self.0);
        let of_child = all.filter(|(_, one)| one.node == child && one.parent == Some(dag) && !one.is_loop);
        of_child.map(|(id, _)| id).collect()
    }
}

pub(super) const ROOT: StepIndex = StepIndex(0);

/// A pipeline with no nodes but its root, whose artifacts are below `/ppl`.
pub(super) fn pipeline(name: &str) -> Pipeline {
    let root = Node::new(name.to_owned(), Pipeline::ROOT, Body::Dag { children: Vec::new() });
    Pipeline {
        name: JobId::new(name).unwrap(),
        labels: BTreeMap::new(),
        nodes: vec![root],
        post: None,
        parallelism: 10,
        on_failure: OnFailure::FailFast,
        store: Some(Store { name: "ppl".to_owned(), dir: "/ppl".into(), sub_path: None, mount_path: None }),
        paddleflow: true,
    }
}

/// Adds a node; `change` gives it values.
pub(super) fn add(
    pipeline: &mut Pipeline,
    parent: NodeId,
    name: &str,
    body: Body,
    change: impl FnOnce(&mut Node),
) -> NodeId {
    let id = NodeId(pipeline.nodes.len() as u32);
    let mut node = Node { name: name.to_owned(), parent, body, ..pipeline.nodes[0].clone() };
    change(&mut node);
    pipeline.nodes.push(node);
    if let Body::Dag { children } = &mut pipeline.nodes[parent.0 as usize].body {
        children.push(id);
    }
    id
}

pub(super) fn dag() -> Body {
    Body::Dag { children: Vec::new() }
}

/// A step of one replica that runs `sh -c LINE`.
pub(super) fn step(line: Text) -> Body {
    let mut role = Role::new(RoleName::new("main").unwrap(), 1);
    role.work.command = vec!["/bin/sh".to_owned(), "-c".to_owned(), String::new()];
    let job = Job {
        name: JobId::new("step").unwrap(),
        labels: BTreeMap::new(),
        agent_store: false,
        contracts: Vec::new(),
        roles: vec![role],
        policy: Policy::default(),
    };
    let texts = vec![(Place::Word { role: 0, word: 2 }, line)];
    Body::Step(Box::new(Step { job, texts, cache: None, engine: None }))
}

pub(super) fn step_of(pipeline: &mut Pipeline, id: NodeId) -> &mut Step {
    match &mut pipeline.nodes[id.0 as usize].body {
        Body::Step(step) => step,
        Body::Dag { .. } => panic!("a DAG"),
    }
}

/// A text: `$run`, `$step`, `$user`, `$item` are system parameters, `$^` the item around, `$<x` an input, `$>x` an output,
/// `$N:x` of a sibling, `$.x` of the parent, other words with `$` own parameters.
pub(super) fn line(text: &str) -> Text {
    let mut pieces = Vec::new();
    for (position, part) in text.split('$').enumerate() {
        if position == 0 {
            pieces.push(Piece::Plain(part.to_owned()));
            continue;
        }
        let end = part.find([' ', '/', ';']).unwrap_or(part.len());
        pieces.extend([Piece::Of(reference(&part[..end])), Piece::Plain(part[end..].to_owned())]);
    }
    pieces.retain(|piece| !matches!(piece, Piece::Plain(plain) if plain.is_empty()));
    Text(pieces)
}

pub(super) fn reference(word: &str) -> Reference {
    match word {
        "run" => Reference::System(SystemParameter::RunId),
        "step" => Reference::System(SystemParameter::StepName),
        "user" => Reference::System(SystemParameter::UserName),
        "item" => Reference::System(SystemParameter::LoopArgument),
        "^" => Reference::ParentItem,
        _ => match word.split_at(1) {
            ("<", name) => Reference::Input(name.to_owned()),
            (">", name) => Reference::Output(name.to_owned()),
            (".", name) => Reference::Parent(name.to_owned()),
            _ => match word.split_once(':') {
                Some((node, name)) => Reference::Sibling { node: NodeId(node.parse().unwrap()), name: name.to_owned() },
                None => Reference::Parameter(word.to_owned()),
            },
        },
    }
}

pub(super) fn given(name: &str, text: &str) -> Parameter {
    Parameter { name: name.to_owned(), value: Given::Text(line(text)) }
}

pub(super) fn constant(name: &str, value: Value) -> Parameter {
    Parameter { name: name.to_owned(), value: Given::Value(value) }
}

pub(super) fn input(name: &str, from: &str) -> Input {
    Input { name: name.to_owned(), from: reference(from) }
}

pub(super) fn output(name: &str) -> Output {
    Output { name: name.to_owned(), from: None }
}

pub(super) fn scope() -> Scope {
    Scope::new("run-000007", "ann")
}

/// Resolves where no file is read.
pub(super) fn resolve(
    scope: &mut Scope,
    pipeline: &Pipeline,
    tree: &Instances,
    id: StepIndex,
) -> Result<Answer, String> {
    scope.resolve(pipeline, tree, id, &mut |path: &Path, _| Err(format!("{} was read", path.display())))
}

/// Resolves a loop and its items.
pub(super) fn unroll(
    scope: &mut Scope,
    pipeline: &Pipeline,
    tree: &mut Instances,
    dag: StepIndex,
    node: NodeId,
) -> Vec<StepIndex> {
    let id = tree.add_loop(dag, node);
    let Answer::Loop(items) = resolve(scope, pipeline, tree, id).unwrap() else { panic!("no loop") };
    let ids: Vec<_> = (0..items.len() as u32).map(|item| tree.add(dag, node, Some(item))).collect();
    for id in &ids {
        resolve(scope, pipeline, tree, *id).unwrap();
    }
    ids
}
