//! From a checked document to the model: references are replaced by copies, templates by what they refer to.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::check::{Disabled, literal_of};
use super::graph::{Field, Graph, Meaning};
use super::job::{Jobs, Parts, scope};
use super::keys::{MAX_PARALLELISM, PARALLELISM};
use super::literal;
use super::overrides::Overrides;
use super::raw::{Component, RawBody, RawCache, RawStep, Variable};
use super::template::{templates, whole};
use crate::diag::{Code, Span};
use crate::formats::document::reader::Reader;
use crate::formats::document::tree::{Node as Leaf, Value as Written};
use crate::formats::engines;
use crate::model::{
    Body, Cache, Given, Input, Items, Job, JobId, Node, NodeId, Output, Parameter, Piece, Pipeline, Policy, Reference,
    Role, RoleName, Step, Text, Value,
};

pub(super) struct Lowering<'a, 'r, 'n> {
    pub(super) graph: &'a Graph<'r, 'n>,
    pub(super) jobs: Jobs<'a>,
    pub(super) overrides: &'a Overrides,
    pub(super) disabled: &'a Disabled,
    /// Parameters without a value, and where they are.
    pub(super) needed: Vec<(String, Span)>,
    nodes: Vec<Node>,
}

/// The nodes of the components of one DAG.
type Ids = HashMap<usize, NodeId>;

impl<'a, 'r, 'n> Lowering<'a, 'r, 'n> {
    pub(super) fn new(
        graph: &'a Graph<'r, 'n>,
        jobs: Jobs<'a>,
        overrides: &'a Overrides,
        disabled: &'a Disabled,
    ) -> Self {
        Self { graph, jobs, overrides, disabled, needed: Vec::new(), nodes: Vec::new() }
    }

    pub(super) fn pipeline(&mut self, reader: &mut Reader<'_>) -> Option<Pipeline> {
        let raw = self.graph.raw;
        let name = JobId::new(raw.name.as_ref()?.value.clone()).ok()?;
        let root = Node { name: name.as_str().to_owned(), ..blank(Pipeline::ROOT) };
        self.nodes.push(root);
        let children = self.dag(reader, &raw.entry_points, Pipeline::ROOT, "")?;
        self.nodes[0].body = Body::Dag { children };
        let post = match raw.post.first() {
            Some(_) => self.dag(reader, &raw.post[..1], Pipeline::ROOT, "")?.first().copied(),
            None => None,
        };
        let store = raw.main_fs.as_ref().map(|main| self.jobs.files.store(reader, main));
        Some(Pipeline {
            name,
            labels: BTreeMap::new(),
            nodes: std::mem::take(&mut self.nodes),
            post,
            parallelism: parallelism(reader, raw.parallelism.as_ref().map(|at| (at.value, at.at))),
            on_failure: raw.on_failure,
            store,
            paddleflow: true,
        })
    }

    /// The nodes of the components of a DAG, each with all that is in it. `around` is the path of the DAG.
    fn dag(
        &mut self,
        reader: &mut Reader<'_>,
        components: &[usize],
        parent: NodeId,
        around: &str,
    ) -> Option<Vec<NodeId>> {
        let mut ids = Ids::with_capacity(components.len());
        let mut children = Vec::with_capacity(components.len());
        for at in components {
            let id = NodeId(u32::try_from(self.nodes.len()).ok()?);
            ids.insert(*at, id);
            children.push(id);
            self.nodes.push(Node { name: self.graph.component(*at).name.value.clone(), ..blank(parent) });
        }
        for (at, id) in components.iter().zip(&children) {
            let mut node = self.node(reader, *at, *id, &ids, around)?;
            node.parent = parent;
            self.nodes[id.0 as usize] = node;
        }
        Some(children)
    }

    fn node(&mut self, reader: &mut Reader<'_>, at: usize, id: NodeId, ids: &Ids, around: &str) -> Option<Node> {
        let graph = self.graph;
        let component = graph.component(at);
        let name = &component.name.value;
        let path = if around.is_empty() { name.clone() } else { format!("{around}.{name}") };
        let deps = component.deps.iter().filter_map(|dep| graph.find(component.home, &dep.value));
        let mut deps: Vec<NodeId> = deps.filter_map(|dep| ids.get(&dep).copied()).collect();
        deps.sort_unstable();
        deps.dedup();
        let bottom_at = graph.bottom_at(at)?;
        let bottom = graph.component(bottom_at);
        let mut node = Node { name: name.clone(), deps, ..blank(Pipeline::ROOT) };
        if self.disabled.contains(&path) {
            node.disabled = true;
            if let RawBody::Step(_) = bottom.body {
                node.body =
                    Body::Step(Box::new(Step { job: no_job(name)?, texts: Vec::new(), cache: None, engine: None }));
            }
            return Some(node);
        }
        // From the reference that is written here to the component at its end.
        let mut chain = vec![at];
        while let RawBody::Reference(next) = &graph.component(*chain.last()?).body {
            chain.push(graph.template(&next.value)?);
        }
        node.parameters = self.parameters(bottom, &chain, ids, &path);
        for (input, _) in &bottom.inputs {
            let found = chain.iter().find_map(|at| Some((*at, graph.input(*at, &input.value)?)));
            let from = found.and_then(|(at, leaf)| reference(graph, at, Field::Input, leaf, ids));
            node.inputs.extend(from.map(|from| Input { name: input.value.clone(), from }));
        }
        node.condition = bottom.condition.map(|leaf| {
            let expression = text(graph, bottom_at, Field::Condition, leaf.text().unwrap_or_default(), &Ids::new());
            expression.map_or_else(|text| text, |plain| Text(vec![Piece::Plain(plain)]))
        });
        node.items = bottom.items.and_then(|leaf| items(graph, bottom_at, leaf));
        match &bottom.body {
            RawBody::Dag(components) => {
                let children = self.dag(reader, components, id, &path)?;
                let below: Ids = components.iter().copied().zip(children.iter().copied()).collect();
                node.outputs = outputs(graph, bottom_at, &below);
                node.body = Body::Dag { children };
            }
            RawBody::Step(step) => {
                node.outputs =
                    bottom.outputs.iter().map(|(name, _)| Output { name: name.value.clone(), from: None }).collect();
                node.body = Body::Step(Box::new(self.step(reader, bottom_at, step, &node)?));
            }
            RawBody::Reference(_) | RawBody::Broken => return None,
        }
        Some(node)
    }

    /// The parameters of a component: values of the command line, of references, of the component itself.
    fn parameters(&mut self, bottom: &Component<'n>, chain: &[usize], ids: &Ids, path: &str) -> Vec<Parameter> {
        let given = self.overrides.get(path);
        let mut found = Vec::with_capacity(bottom.parameters.len());
        for parameter in &bottom.parameters {
            let name = &parameter.name.value;
            let from = chain.iter().find_map(|at| Some((*at, self.graph.parameter(*at, name)?.node?)));
            let value = match (given.and_then(|given| given.get(name)), from) {
                (Some(value), _) => Given::Value(value.clone()),
                (None, Some((at, leaf))) => {
                    match text(self.graph, at, Field::Parameters, leaf.text().unwrap_or_default(), ids) {
                        Err(text) => Given::Text(text),
                        Ok(_) => Given::Value(literal_of(leaf).unwrap_or(Value::Text(String::new()))),
                    }
                }
                (None, None) => {
                    self.needed.push((format!("{path}.{name}"), parameter.name.at));
                    Given::Value(Value::Text(String::new()))
                }
            };
            found.push(Parameter { name: name.clone(), value });
        }
        found
    }

    fn step(&mut self, reader: &mut Reader<'_>, at: usize, step: &RawStep<'n>, node: &Node) -> Option<Step> {
        let graph = self.graph;
        let text = |leaf: &Leaf| text(graph, at, Field::Command, leaf.text().unwrap_or_default(), &Ids::new());
        let variable = |variable: &Variable<'n>| self::text(graph, at, Field::Env, &variable.value, &Ids::new());
        let known = |text: &str| known(text, &node.parameters);
        let input = node.inputs.iter().map(|input| format!("PF_INPUT_ARTIFACT_{}", input.name.to_ascii_uppercase()));
        let output =
            node.outputs.iter().map(|output| format!("PF_OUTPUT_ARTIFACT_{}", output.name.to_ascii_uppercase()));
        let parts = Parts {
            name: &node.name,
            step,
            artifacts: input.chain(output).collect(),
            text: &text,
            variable: &variable,
            known: &known,
        };
        let (job, texts) = self.jobs.job(reader, &parts)?;
        let is_post = matches!(graph.component(at).home, super::raw::Home::Post);
        let cache = self.cache(reader, &step.cache, is_post);
        let engine = step.engine.as_ref().and_then(|name| engines::choose(reader, name, self.jobs.settings));
        Some(Step { job, texts, cache, engine })
    }

    /// Options of a step win over those of the pipeline; what both list counts.
    fn cache(&mut self, reader: &mut Reader<'_>, own: &RawCache<'_>, is_post: bool) -> Option<Cache> {
        let of_all = &self.graph.raw.cache;
        let enable = own.enable.as_ref().or(of_all.enable.as_ref().filter(|_| !is_post));
        if !enable.is_some_and(|enable| enable.value) {
            return None;
        }
        let max_age = own.max_age.or(of_all.max_age).and_then(|age| u64::try_from(age).ok()).map(Duration::from_secs);
        let mut paths = scope(reader, &mut self.jobs.files, &own.scope);
        paths.extend(scope(reader, &mut self.jobs.files, &of_all.scope));
        Some(Cache { max_age, scope: paths })
    }
}

/// The outputs of a DAG: those of its components.
fn outputs(graph: &Graph<'_, '_>, dag: usize, ids: &Ids) -> Vec<Output> {
    let from = |leaf: &Leaf| {
        let template = whole(leaf.text()?)?;
        match graph.meaning(dag, Field::Output, &template).ok()? {
            Meaning::Of(child, name) => Some((*ids.get(&child)?, name.to_owned())),
            _ => None,
        }
    };
    let outputs = graph.component(dag).outputs.iter();
    outputs.map(|(name, leaf)| Output { name: name.value.clone(), from: leaf.and_then(from) }).collect()
}

fn items(graph: &Graph<'_, '_>, at: usize, leaf: &Leaf) -> Option<Items> {
    if let Written::List(items) = &leaf.value {
        return Some(Items::List(items.iter().filter_map(literal_of).collect()));
    }
    if let Some(reference) = reference(graph, at, Field::Loop, leaf, &Ids::new()) {
        return Some(Items::Of(reference));
    }
    match literal::json_list(leaf.text()?)? {
        Value::List(items) => Some(Items::List(items)),
        _ => None,
    }
}

/// A text that is one template.
fn reference(graph: &Graph<'_, '_>, at: usize, field: Field, leaf: &Leaf, ids: &Ids) -> Option<Reference> {
    let template = whole(leaf.text()?)?;
    referred(graph.meaning(at, field, &template).ok()?, ids)
}

/// A text without references, or `Err` with its references.
fn text(graph: &Graph<'_, '_>, at: usize, field: Field, text: &str, ids: &Ids) -> Result<String, Text> {
    let mut pieces = Vec::new();
    let mut end = 0;
    for template in templates(text) {
        let meaning = graph.meaning(at, field, &template).ok();
        let Some(reference) = meaning.and_then(|meaning| referred(meaning, ids)) else { continue };
        if template.range.start > end {
            pieces.push(Piece::Plain(text[end..template.range.start].to_owned()));
        }
        pieces.push(Piece::Of(reference));
        end = template.range.end;
    }
    if pieces.is_empty() {
        return Ok(text.to_owned());
    }
    if end < text.len() {
        pieces.push(Piece::Plain(text[end..].to_owned()));
    }
    Err(Text(pieces))
}

/// A text whose references are parameters with known values.
fn known(text: &str, parameters: &[Parameter]) -> Option<String> {
    let mut result = String::new();
    let mut end = 0;
    for template in templates(text) {
        let is_it = |parameter: &&Parameter| parameter.name == template.name && template.owner.is_none();
        let value = match &parameters.iter().find(is_it)?.value {
            Given::Value(Value::Text(text)) => text.clone(),
            Given::Value(Value::Int(number)) => number.to_string(),
            _ => return None,
        };
        result += &text[end..template.range.start];
        result += &value;
        end = template.range.end;
    }
    Some(result + &text[end..])
}

fn referred(meaning: Meaning<'_>, ids: &Ids) -> Option<Reference> {
    Some(match meaning {
        Meaning::System(system) => Reference::System(system),
        Meaning::Parameter(name) => Reference::Parameter(name.to_owned()),
        Meaning::Input(name) => Reference::Input(name.to_owned()),
        Meaning::Output(name) => Reference::Output(name.to_owned()),
        Meaning::Of(at, name) => Reference::Sibling { node: *ids.get(&at)?, name: name.to_owned() },
        Meaning::Parent(name) => Reference::Parent(name.to_owned()),
        Meaning::ParentItem => Reference::ParentItem,
    })
}

/// A node with nothing in it.
fn blank(parent: NodeId) -> Node {
    Node::new(String::new(), parent, Body::Dag { children: Vec::new() })
}

/// The job of a step that is disabled: it is never started, and may contain anything.
fn no_job(name: &str) -> Option<Job> {
    let role = Role::new(RoleName::new("main").ok()?, 1);
    let name = JobId::new(name).ok()?;
    Some(Job {
        name,
        labels: BTreeMap::new(),
        agent_store: false,
        contracts: Vec::new(),
        roles: vec![role],
        policy: Policy::default(),
    })
}

/// PaddleFlow replaces values out of range silently.
fn parallelism(reader: &mut Reader<'_>, written: Option<(i64, Span)>) -> u32 {
    let Some((value, at)) = written else { return PARALLELISM };
    let used = match u32::try_from(value) {
        Ok(0) | Err(_) if value <= 0 => PARALLELISM,
        Ok(value) => value.min(MAX_PARALLELISM),
        Err(_) => MAX_PARALLELISM,
    };
    if i64::from(used) != value {
        reader.notice(Code::F0122, at, format!("`parallelism` is {used}, as in PaddleFlow"), "replaced");
    }
    used
}
