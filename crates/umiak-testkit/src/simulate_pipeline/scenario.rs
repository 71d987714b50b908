//! The scenario of a seed: a pipeline, and what becomes of each instance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use umiak_core::facts::{Outcome, SkipReason};
use umiak_core::machine::pipeline::Resolution;
use umiak_core::model::{Body, Items, Job, JobId, Node, NodeId, OnFailure, Output, Pipeline, Policy, Step, Value};

/// A pipeline, and everything that will happen to it.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub pipeline: Arc<Pipeline>,
    /// Probability that a step ends badly.
    pub bad: f64,
    /// Probability that a node does not run, although its turn has come.
    pub odd: f64,
    /// Probability that an event is duplicated, or that a stray one follows.
    pub echo: f64,
    /// How many supervisors may be lost, and how often the run may be repeated.
    pub losses: u32,
    pub retries: u32,
    /// How many requests to stop there are, and how late the last may be.
    pub stops: u32,
    pub patience: Duration,
}

/// What becomes of one instance.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) resolving: Duration,
    pub(super) what: Resolution,
    pub(super) life: Duration,
    pub(super) outcome: Outcome,
    /// How long it takes to stop, and how it ends then.
    pub(super) stopping: (Duration, Outcome),
    pub(super) closing: Duration,
    pub(super) closes: bool,
}

impl Scenario {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x0da6_0000);
        let rng = &mut rng;
        Self {
            seed,
            pipeline: Arc::new(pipeline(rng)),
            bad: pick(rng, &[0.0, 0.03, 0.1, 0.1, 0.3]),
            odd: pick(rng, &[0.0, 0.1, 0.3]),
            echo: pick(rng, &[0.0, 0.0, 0.1, 0.4]),
            losses: pick(rng, &[0, 0, 1, 2, 5]),
            retries: pick(rng, &[0, 1, 2]),
            stops: pick(rng, &[0, 0, 0, 1, 2, 3]),
            patience: Duration::from_millis(pick(rng, &[1, 500, 3000, 10_000])),
        }
    }

    /// What becomes of an instance: deterministic. Steps of later runs and attempts fail less often.
    pub(super) fn script(&self, name: &str, node: NodeId, is_item: bool, run: u32, attempt: u32) -> Script {
        let mut place = u64::from(run) << 32 | u64::from(attempt);
        for byte in name.bytes() {
            place = (place ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let mut rng = Rng::with_seed(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place);
        let rng = &mut rng;
        let tame = f64::from(run + attempt + 1);
        let is_bad = rng.f64() < self.bad / tame;
        let node = self.pipeline.node(node);
        let is_loop = node.items.is_some() && !is_item;
        let is_step = matches!(node.body, Body::Step(_)) && !is_loop;
        let is_odd = rng.f64() < self.odd;
        let skip = pick(rng, &[SkipReason::Condition, SkipReason::Disabled]);
        let what = match rng.u32(..4) {
            0 if is_bad => Resolution::Failed { reason: "refused".into() },
            0 | 1 if is_odd && is_step => Resolution::Cached { run: "run-9".into(), step: name.into() },
            2 | 3 if is_odd => Resolution::Skip { why: skip },
            _ if is_loop => {
                let count = pick(rng, &[0, 1, 2, 2, 3, 4]);
                Resolution::Loop { items: (0..count).map(Value::Int).collect() }
            }
            _ => Resolution::Run,
        };
        let slow = millis(rng, 1..3000);
        let quick = millis(rng, 0..10);
        Script {
            resolving: pick(rng, &[Duration::ZERO, Duration::ZERO, quick, slow]),
            what,
            life: pick(rng, &[quick, slow, slow]),
            outcome: match (is_bad, rng.u32(..5)) {
                (false, _) => Outcome::Succeeded,
                (true, 0) => pick(rng, &[Outcome::Stopped, Outcome::Interrupted]),
                (true, _) => Outcome::Failed,
            },
            stopping: (
                pick(rng, &[Duration::ZERO, quick, slow]),
                pick(rng, &[Outcome::Stopped, Outcome::Stopped, Outcome::Stopped, Outcome::Failed, Outcome::Succeeded]),
            ),
            closing: pick(rng, &[Duration::ZERO, quick, slow]),
            closes: rng.f64() >= self.bad / tame,
        }
    }
}

fn pipeline(rng: &mut Rng) -> Pipeline {
    let mut nodes = vec![node(String::new(), Pipeline::ROOT, Body::Dag { children: vec![] })];
    let width = pick(rng, &[1, 3, 5, 8]);
    children(rng, &mut nodes, Pipeline::ROOT, width, 0);
    let post = (rng.f64() < 0.4).then(|| {
        nodes.push(node("post".into(), Pipeline::ROOT, step()));
        NodeId(nodes.len() as u32 - 1)
    });
    Pipeline {
        name: JobId::new("simulated").expect("a plain name"),
        labels: BTreeMap::new(),
        nodes,
        post,
        parallelism: pick(rng, &[1, 1, 2, 3, 5, 20]),
        on_failure: pick(rng, &[OnFailure::FailFast, OnFailure::Continue]),
        store: None,
        paddleflow: false,
    }
}

/// Adds the children of a DAG.
fn children(rng: &mut Rng, nodes: &mut Vec<Node>, dag: NodeId, width: u32, depth: u32) {
    let dense = pick(rng, &[0.0, 0.2, 0.5]);
    let mut all: Vec<NodeId> = Vec::new();
    for number in 0..rng.u32(u32::from(depth == 0)..=width) {
        let id = NodeId(nodes.len() as u32);
        let is_dag = depth < 3 && rng.f64() < 0.25;
        let body = if is_dag { Body::Dag { children: vec![] } } else { step() };
        let mut node = node(format!("{}{number}", if is_dag { 'd' } else { 's' }), dag, body);
        node.deps = all.iter().copied().filter(|_| rng.f64() < dense).collect();
        // A dependency may be written twice.
        if let Some(dep) = node.deps.first().filter(|_| rng.f64() < 0.1) {
            node.deps.push(*dep);
        }
        if rng.f64() < 0.2 {
            node.items = Some(Items::List(vec![]));
        }
        if is_dag && rng.bool() {
            node.outputs = vec![Output { name: "out".into(), from: None }];
        }
        nodes.push(node);
        all.push(id);
        if is_dag {
            children(rng, nodes, id, width.min(4), depth + 1);
        }
    }
    if rng.bool() {
        rng.shuffle(&mut all);
    }
    nodes[dag.0 as usize].body = Body::Dag { children: all };
}

fn node(name: String, parent: NodeId, body: Body) -> Node {
    Node {
        name,
        parent,
        deps: vec![],
        parameters: vec![],
        inputs: vec![],
        outputs: vec![],
        condition: None,
        items: None,
        disabled: false,
        body,
    }
}

fn step() -> Body {
    let name = JobId::new("step").expect("a plain name");
    let (labels, policy) = (BTreeMap::new(), Policy::default());
    let job = Job { name, labels, agent_store: false, contracts: vec![], roles: vec![], policy };
    Body::Step(Box::new(Step { job, texts: vec![], cache: None, engine: None }))
}

pub(super) fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())].clone()
}

/// Whole milliseconds half of the time, so that events coincide.
fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    let micros = if rng.bool() { 0 } else { rng.u64(..1000) };
    Duration::from_micros(rng.u64(range) * 1000 + micros)
}
