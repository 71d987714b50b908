//! The values of the instances of a running pipeline: parameters, artifacts, items of loops, and the job of a step.
//!
//! Only what cannot be worked out again is kept: parameters with references, items of loops, outputs of DAGs, and outputs
//! that another run made.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use md5::{Digest as _, Md5};

use super::fingerprint::hexadecimal;
use super::{Tree, condition, text};
use crate::facts::{NodeValues, SkipReason};
use crate::mask::MASK;
use crate::model::{
    Body, Given, Items, Job, JobId, Node, NodeId, Piece, Pipeline, Place, Reference, Step, StepIndex, Store,
    SystemParameter, Text, Value,
};

/// The largest artifact whose content is used in a condition, in bytes.
pub const MAX_CONDITION: usize = 1024;
/// The largest artifact whose content is the list of a loop, in bytes.
pub const MAX_LOOP: usize = 1024 * 1024;
/// The longest text that references may produce, in bytes: the kernel passes no longer word or variable to a process.
const MAX_TEXT: usize = 128 * 1024 - 1;
/// Steps, DAGs and items of loops of one run. Each needs memory until the run ends.
pub const MAX_INSTANCES: usize = 250_000;
/// DAGs inside each other.
const MAX_DEPTH: u32 = 256;

/// Reads at most so many bytes of a text file; fails if it is larger.
pub type Read<'a> = dyn FnMut(&Path, usize) -> Result<String, String> + 'a;

/// What happens to an instance whose turn has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It runs.
    Run,
    /// It runs, unless the cache has a result of it.
    Lookup,
    /// It runs once for each of these items, which are resolved again, each for its own.
    Loop(Vec<Value>),
    Skip(SkipReason),
}

/// What must be done before a step starts. The step itself makes its artifacts: files or directories.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preparation {
    /// Directories to create, with their parents.
    pub create: Vec<PathBuf>,
    /// Files and directories of an earlier start to remove.
    pub remove: Vec<PathBuf>,
}

/// The values of a run.
#[derive(Debug, Clone)]
pub struct Scope {
    run: String,
    user: String,
    /// By instance; nothing for one whose values follow from the document and its place.
    known: Vec<Option<Box<Known>>>,
    /// By the DAG around the loop, and its node.
    loops: HashMap<(StepIndex, NodeId), Loop>,
    /// The number of their items.
    items: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Known {
    /// The parameters whose values have references, with their positions.
    parameters: Vec<(u32, Value)>,
    /// Instead of the paths that follow from the instance's place.
    outputs: Option<Vec<(String, Vec<String>)>>,
}

#[derive(Debug, Clone)]
struct Loop {
    id: StepIndex,
    items: Vec<Value>,
}

impl Scope {
    /// The values of a run that begins. `user` is the name of the user who runs it.
    pub fn new(run: impl Into<String>, user: impl Into<String>) -> Self {
        Self { run: run.into(), user: user.into(), known: Vec::new(), loops: HashMap::new(), items: 0 }
    }

    /// Resolves an instance: its parameters, inputs and loop; then, unless it is a loop, its condition.
    pub fn resolve(
        &mut self,
        pipeline: &Pipeline,
        tree: &dyn Tree,
        id: StepIndex,
        read: &mut Read<'_>,
    ) -> Result<Answer, String> {
        let node = pipeline.node(tree.node(id));
        let view = View { scope: self, pipeline, tree };
        let parameters = view.evaluate_parameters(id)?;
        for input in &node.inputs {
            let length = view.input(id, &input.name)?.iter().map(|path| path.len() + 1).sum::<usize>();
            if length > MAX_TEXT {
                return Err(format!("the paths of input artifact `{}` are longer than {MAX_TEXT} bytes", input.name));
            }
        }
        self.keep_parameters(id, parameters);
        let view = View { scope: self, pipeline, tree };
        if let (Some(items), None) = (&node.items, tree.item(id)) {
            let fits =
                |count| if count > MAX_INSTANCES - self.items.min(MAX_INSTANCES) { Err(too_many()) } else { Ok(()) };
            if let Items::List(items) = items {
                fits(items.len())?;
            }
            let items = view.items(id, items, read)?;
            fits(items.len())?;
            self.keep_loop(tree, id, items.clone());
            return Ok(Answer::Loop(items));
        }
        if let Some(condition) = &node.condition
            && !view.holds(id, condition, read)?
        {
            return Ok(Answer::Skip(SkipReason::Condition));
        }
        if node.disabled {
            return Ok(Answer::Skip(SkipReason::Disabled));
        }
        match &node.body {
            Body::Step(step) if step.cache.is_some() => Ok(Answer::Lookup),
            Body::Step(_) | Body::Dag { .. } => Ok(Answer::Run),
        }
    }

    /// The values of a resolved instance, as they are recorded.
    pub fn values(&self, pipeline: &Pipeline, tree: &dyn Tree, id: StepIndex) -> Result<NodeValues, String> {
        let view = View { scope: self, pipeline, tree };
        let node = view.node(id);
        let parameters = node.parameters.iter();
        let inputs = node.inputs.iter();
        // Those of a DAG are known when it has ended; a loop has those of its items.
        let has_outputs = match node.body {
            Body::Dag { .. } => self.known(id).is_some_and(|known| known.outputs.is_some()),
            Body::Step(_) => node.items.is_none() || tree.item(id).is_some(),
        };
        let outputs = node.outputs.iter().filter(|_| has_outputs);
        Ok(NodeValues {
            parameters: parameters
                .map(|given| Ok((given.name.clone(), view.parameter(id, &given.name)?)))
                .collect::<Result<_, String>>()?,
            inputs: inputs
                .map(|input| Ok((input.name.clone(), view.input(id, &input.name)?)))
                .collect::<Result<_, String>>()?,
            outputs: outputs
                .map(|output| Ok((output.name.clone(), view.output(id, &output.name)?)))
                .collect::<Result<_, String>>()?,
            item: view.item(id).cloned(),
        })
    }

    /// Returns the job of a step: its texts filled, and the variables of the pipeline.
    pub fn job(&self, pipeline: &Pipeline, tree: &dyn Tree, id: StepIndex) -> Result<Job, String> {
        View { scope: self, pipeline, tree }.job(id)
    }

    /// What must be done before a step starts.
    pub fn prepare(&self, pipeline: &Pipeline, tree: &dyn Tree, id: StepIndex) -> Result<Preparation, String> {
        let view = View { scope: self, pipeline, tree };
        let mut preparation = Preparation::default();
        for output in &view.node(id).outputs {
            let path = view.own_path(id, &output.name)?;
            let directory = path.parent().unwrap_or(&path);
            if preparation.create.iter().all(|other| other != directory) {
                preparation.create.push(directory.to_owned());
            }
            preparation.remove.push(path);
        }
        Ok(preparation)
    }

    /// Works out the outputs of a DAG whose children have all ended well.
    pub fn close(&mut self, pipeline: &Pipeline, tree: &dyn Tree, dag: StepIndex) -> Result<NodeValues, String> {
        let view = View { scope: self, pipeline, tree };
        let outputs = view.node(dag).outputs.iter();
        let outputs = outputs.map(|output| Ok((output.name.clone(), view.output(dag, &output.name)?)));
        let outputs: Vec<_> = outputs.collect::<Result<_, String>>()?;
        if !outputs.is_empty() {
            self.known_mut(dag).outputs = Some(outputs);
        }
        self.values(pipeline, tree, dag)
    }

    /// A step does not run: the outputs of another run stand for its own.
    pub fn reuse(&mut self, id: StepIndex, outputs: Vec<(String, Vec<String>)>) {
        if !outputs.is_empty() {
            self.known_mut(id).outputs = Some(outputs);
        }
    }

    /// Takes values that were recorded, by this run or by one whose steps are kept. Values that were masked are worked
    /// out again.
    pub fn restore(&mut self, pipeline: &Pipeline, tree: &dyn Tree, id: StepIndex, values: NodeValues) {
        let view = View { scope: self, pipeline, tree };
        let node = view.node(id);
        let mut recorded: HashMap<String, Value> = values.parameters.into_iter().collect();
        let again = view.evaluate_parameters(id).unwrap_or_default();
        let given = (0..).zip(&node.parameters).filter(|(_, given)| matches!(given.value, Given::Text(_)));
        let parameters = given.filter_map(|(position, given)| {
            let again = again.iter().find(|(other, _)| *other == position).map(|(_, value)| value.clone());
            let value = recorded.remove(&given.name).filter(|value| !is_masked(value)).or(again)?;
            Some((position, value))
        });
        let parameters = parameters.collect();
        let own = |name: &str| view.own_path(id, name).map(|path| vec![path_text(&path)]);
        let is_own = matches!(node.body, Body::Step(_))
            && values.outputs.iter().all(|(name, paths)| own(name).as_ref() == Ok(paths));
        self.keep_parameters(id, parameters);
        if !is_own {
            self.reuse(id, values.outputs);
        }
    }

    /// Takes the items of a loop that were recorded, after its values, if those were recorded too.
    pub fn restore_loop(&mut self, pipeline: &Pipeline, tree: &dyn Tree, id: StepIndex, items: Vec<Value>) {
        if self.known(id).is_none() {
            self.restore(pipeline, tree, id, NodeValues::default());
        }
        let view = View { scope: self, pipeline, tree };
        let again = if items.iter().any(is_masked) {
            let unread = &mut |_: &Path, _: usize| Err(String::new());
            view.node(id).items.as_ref().and_then(|given| view.items(id, given, unread).ok())
        } else {
            None
        };
        let items = again.filter(|again| again.len() == items.len()).unwrap_or(items);
        self.keep_loop(tree, id, items);
    }

    fn keep_loop(&mut self, tree: &dyn Tree, id: StepIndex, items: Vec<Value>) {
        if let Some(dag) = tree.parent(id) {
            self.items += items.len();
            self.loops.insert((dag, tree.node(id)), Loop { id, items });
        }
    }

    fn keep_parameters(&mut self, id: StepIndex, mut parameters: Vec<(u32, Value)>) {
        if !parameters.is_empty() {
            parameters.shrink_to_fit();
            self.known_mut(id).parameters = parameters;
        }
    }

    fn known(&self, id: StepIndex) -> Option<&Known> {
        self.known.get(id.0 as usize)?.as_deref()
    }

    fn known_mut(&mut self, id: StepIndex) -> &mut Known {
        let position = id.0 as usize;
        if self.known.len() <= position {
            self.known.resize(position + 1, None);
        }
        self.known[position].get_or_insert_default()
    }
}

/// Why something is refused that would give a run more than [`MAX_INSTANCES`].
pub fn too_many() -> String {
    format!(
        "the run would have more than {MAX_INSTANCES} steps, DAGs and items of loops; use shorter loops, or several runs"
    )
}

fn is_masked(value: &Value) -> bool {
    match value {
        Value::Text(text) => text.contains(MASK),
        Value::List(items) => items.iter().any(is_masked),
        Value::Int(_) | Value::Float(_) => false,
    }
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A directory as steps see it.
fn seen(store: Option<&Store>, path: &str) -> String {
    let mounted = store.and_then(|store| {
        let below = Path::new(path).strip_prefix(root(store)).ok()?;
        Some(path_text(&store.mount_path.as_ref()?.join(below)))
    });
    mounted.unwrap_or_else(|| path.to_owned())
}

/// The directory of a store below which artifacts are kept.
pub(super) fn root(store: &Store) -> PathBuf {
    store.sub_path.as_ref().map_or_else(|| store.dir.clone(), |below| store.dir.join(below))
}

/// The directory of all runs' artifacts in a store.
pub(super) const ARTIFACTS: &str = ".pipeline";

/// How references of a job are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// By their values.
    Values,
    /// References to outputs stay, and those to inputs if so: their paths differ between runs.
    Keep { inputs: bool },
}

/// The values of a run with what they are of.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) scope: &'a Scope,
    pub(super) pipeline: &'a Pipeline,
    pub(super) tree: &'a dyn Tree,
}

impl<'a> View<'a> {
    pub(super) fn node(&self, id: StepIndex) -> &'a Node {
        self.pipeline.node(self.tree.node(id))
    }

    pub(super) fn step(&self, id: StepIndex) -> Result<&'a Step, String> {
        match &self.node(id).body {
            Body::Step(step) => Ok(step),
            Body::Dag { .. } => Err(format!("`{}` is a DAG, not a step", self.node(id).name)),
        }
    }

    fn parent(&self, id: StepIndex) -> Result<StepIndex, String> {
        self.tree.parent(id).ok_or_else(|| "the pipeline itself has no DAG around it".to_owned())
    }

    fn item(&self, id: StepIndex) -> Option<&'a Value> {
        let position = self.tree.item(id)?;
        let repeated = self.scope.loops.get(&(self.tree.parent(id)?, self.tree.node(id)))?;
        repeated.items.get(position as usize)
    }

    fn system(&self, id: StepIndex, parameter: SystemParameter) -> String {
        match parameter {
            SystemParameter::RunId => self.scope.run.clone(),
            SystemParameter::StepName => self.node(id).name.clone(),
            SystemParameter::UserName => self.scope.user.clone(),
            SystemParameter::LoopArgument => self.item(id).map(text::print).unwrap_or_default(),
        }
    }

    /// The parameters that have references, with their positions.
    fn evaluate_parameters(&self, id: StepIndex) -> Result<Vec<(u32, Value)>, String> {
        let mut parameters = Vec::new();
        for (position, given) in (0..).zip(&self.node(id).parameters) {
            let Given::Text(text) = &given.value else { continue };
            let value = match text.0.as_slice() {
                // It keeps its type.
                [Piece::Of(reference)] => self.referred(id, reference),
                _ => fill(text, |reference| self.printed(id, reference)).map(Value::Text),
            };
            let value = value.map_err(|message| format!("parameter `{}`: {message}", given.name))?;
            parameters.push((position, value));
        }
        Ok(parameters)
    }

    fn referred(&self, id: StepIndex, reference: &Reference) -> Result<Value, String> {
        match reference {
            Reference::System(parameter) => Ok(Value::Text(self.system(id, *parameter))),
            Reference::Parameter(name) => self.parameter(id, name),
            Reference::Sibling { node, name } => {
                let dag = self.parent(id)?;
                let first = self.tree.instances(dag, *node).first().copied();
                let own = || self.scope.loops.get(&(dag, *node)).map(|repeated| repeated.id);
                // Of a loop, the first item; of one without items, the loop itself.
                let sibling = first.or_else(own).ok_or_else(|| self.unknown_value(*node, name))?;
                self.parameter(sibling, name)
            }
            Reference::Parent(name) => self.parameter(self.parent(id)?, name),
            Reference::ParentItem => {
                let parent = self.parent(id)?;
                let missing = || format!("`{}` is not a loop", self.node(parent).name);
                self.item(parent).cloned().ok_or_else(missing)
            }
            Reference::Input(name) => Ok(Value::Text(self.paths(&self.input(id, name)?))),
            Reference::Output(name) => Ok(Value::Text(self.paths(&self.output(id, name)?))),
        }
    }

    fn printed(&self, id: StepIndex, reference: &Reference) -> Result<String, String> {
        self.referred(id, reference).map(|value| text::print(&value))
    }

    fn unknown_value(&self, node: NodeId, name: &str) -> String {
        format!("`{}` has no value of `{name}`", self.pipeline.node(node).name)
    }

    fn parameter(&self, id: StepIndex, name: &str) -> Result<Value, String> {
        let node = self.node(id);
        let found = (0..).zip(&node.parameters).find(|(_, given)| given.name == name);
        let value = found.and_then(|(position, given)| match &given.value {
            Given::Value(value) => Some(value),
            Given::Text(_) => {
                let mut known = self.scope.known(id)?.parameters.iter();
                known.find(|(other, _)| *other == position).map(|(_, value)| value)
            }
        });
        value.cloned().ok_or_else(|| self.unknown_value(self.tree.node(id), name))
    }

    /// The paths of an input artifact, on this host.
    pub(super) fn input(&self, id: StepIndex, name: &str) -> Result<Vec<String>, String> {
        let (mut id, mut name) = (id, name);
        loop {
            let node = self.node(id);
            let input = node.inputs.iter().find(|input| input.name == name);
            let input = input.ok_or_else(|| format!("`{}` has no input artifact `{name}`", node.name))?;
            let dag = self.parent(id)?;
            match &input.from {
                Reference::Parent(outer) => (id, name) = (dag, outer),
                Reference::Sibling { node, name } => return self.outputs_of(dag, *node, name, 0),
                _ => return Err(format!("input artifact `{name}` is no artifact of another step")),
            }
        }
    }

    /// The paths of an output artifact, on this host.
    pub(super) fn output(&self, id: StepIndex, name: &str) -> Result<Vec<String>, String> {
        self.output_at(id, name, 0)
    }

    fn output_at(&self, id: StepIndex, name: &str, depth: u32) -> Result<Vec<String>, String> {
        let node = self.node(id);
        let known = self.scope.known(id).and_then(|known| known.outputs.as_ref());
        if let Some((_, paths)) = known.and_then(|outputs| outputs.iter().find(|(other, _)| other == name)) {
            return Ok(paths.clone());
        }
        let output = node.outputs.iter().find(|output| output.name == name);
        let output = output.ok_or_else(|| format!("`{}` has no output artifact `{name}`", node.name))?;
        match &output.from {
            Some(_) if depth == MAX_DEPTH => Err(format!("DAGs are nested more than {MAX_DEPTH} deep")),
            Some((child, inner)) => self.outputs_of(id, *child, inner, depth + 1),
            None => Ok(vec![path_text(&self.own_path(id, name)?)]),
        }
    }

    /// The paths of an output artifact of all instances of a child.
    fn outputs_of(&self, dag: StepIndex, child: NodeId, name: &str, depth: u32) -> Result<Vec<String>, String> {
        let mut paths = Vec::new();
        for id in self.tree.instances(dag, child) {
            paths.extend(self.output_at(id, name, depth)?);
        }
        Ok(paths)
    }

    /// Where a step makes an output artifact.
    pub(super) fn own_path(&self, id: StepIndex, name: &str) -> Result<PathBuf, String> {
        let store = self.pipeline.store.as_ref();
        let store = store.ok_or("there is no file system for artifacts; name one in `fs_options.main_fs`")?;
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(format!("`{name}` cannot be the name of an artifact"));
        }
        let root = root(store);
        if root.to_str().is_none() {
            return Err(format!("the path of file system `{}` is not valid UTF-8", store.name));
        }
        let node = self.node(id);
        let digest = hexadecimal(&Md5::digest(self.runtime_name(id)));
        let directory = format!("{}-{}-{digest}", node.name, self.tree.item(id).unwrap_or(0));
        let name_of_pipeline = self.pipeline.name.as_str();
        Ok(root.join(ARTIFACTS).join(&self.scope.run).join(name_of_pipeline).join(directory).join(name))
    }

    /// PaddleFlow's name of an instance.
    fn runtime_name(&self, id: StepIndex) -> String {
        let mut names = Vec::new();
        let mut at = id;
        while let Some(parent) = self.tree.parent(at) {
            names.push(numbered(&self.node(at).name, self.tree.item(at)));
            at = parent;
        }
        let kind = if self.pipeline.post == Some(self.tree.node(id)) { "post_process" } else { "entry_points" };
        names.extend([kind.to_owned(), self.pipeline.name.to_string()]);
        names.reverse();
        names.join(".")
    }

    /// Artifacts as steps see them.
    fn paths(&self, paths: &[String]) -> String {
        let store = self.pipeline.store.as_ref();
        paths.iter().map(|path| seen(store, path)).collect::<Vec<_>>().join(",")
    }

    fn content(&self, id: StepIndex, name: &str, limit: usize, read: &mut Read<'_>) -> Result<String, String> {
        let paths = self.input(id, name)?;
        match paths.as_slice() {
            [path] => read(Path::new(path), limit).map_err(|message| format!("input artifact `{name}`: {message}")),
            _ => Err(format!("input artifact `{name}` is {} files; only one can be read", paths.len())),
        }
    }

    fn items(&self, id: StepIndex, items: &Items, read: &mut Read<'_>) -> Result<Vec<Value>, String> {
        let (value, what) = match items {
            Items::List(items) => return Ok(items.clone()),
            Items::Of(Reference::Input(name)) => {
                (Value::Text(self.content(id, name, MAX_LOOP, read)?), format!("the content of `{name}`"))
            }
            Items::Of(reference @ Reference::Parameter(name)) => (self.referred(id, reference)?, format!("`{name}`")),
            Items::Of(reference) => (self.referred(id, reference)?, "its value".to_owned()),
        };
        text::items(value).map_err(|message| format!("the loop cannot run over {what}: {message}"))
    }

    fn holds(&self, id: StepIndex, condition: &Text, read: &mut Read<'_>) -> Result<bool, String> {
        let text = fill(condition, |reference| match reference {
            Reference::Input(name) => self.content(id, name, MAX_CONDITION, read),
            _ => self.printed(id, reference),
        });
        let text = text.map_err(|message| format!("condition: {message}"))?;
        condition::evaluate(&text).map_err(|error| format!("condition `{}`: {error}", condition::shorten(&text, 200)))
    }

    /// The job with its texts filled, without the variables of the pipeline, and with the name in the document.
    pub(super) fn filled(&self, id: StepIndex, how: Fill) -> Result<Job, String> {
        let step = self.step(id)?;
        let mut job = step.job.clone();
        for (place, text) in &step.texts {
            let filled = fill(text, |reference| match (reference, how) {
                (Reference::Output(name), Fill::Keep { .. })
                | (Reference::Input(name), Fill::Keep { inputs: true }) => Ok(format!("{{{{{name}}}}}")),
                _ => self.printed(id, reference),
            });
            let (slot, what) = match *place {
                Place::Word { role, word } => {
                    let role = job.roles.get_mut(role as usize);
                    (role.and_then(|role| role.work.command.get_mut(word as usize)), "command".to_owned())
                }
                Place::Variable { role, variable } => {
                    let role = job.roles.get_mut(role as usize);
                    match role.and_then(|role| role.work.env.get_mut(variable as usize)) {
                        Some((name, value)) => (Some(value), format!("variable `{name}`")),
                        None => (None, String::new()),
                    }
                }
            };
            let filled = filled.map_err(|message| format!("{what}: {message}"))?;
            *slot.ok_or("a text of the step has no place in its job")? = filled;
        }
        Ok(job)
    }

    fn job(&self, id: StepIndex) -> Result<Job, String> {
        let mut job = self.filled(id, Fill::Values)?;
        if !self.pipeline.paddleflow {
            return Ok(job);
        }
        let name = numbered(&format!("{}-{}", self.scope.run, self.node(id).name), self.tree.item(id));
        job.name = JobId::new(name).map_err(|error| error.to_string())?;
        let mut variables = self.variables(id)?;
        if job.roles.iter().map(|role| u64::from(role.replicas)).sum::<u64>() == 1 {
            variables.push(("PF_JOB_MODE".to_owned(), String::new()));
        }
        for role in &mut job.roles {
            let work_dir = role.work.dir.as_deref().map(|dir| ("PF_WORK_DIR".to_owned(), path_text(dir)));
            let own: HashSet<String> = role.work.env.iter().map(|(name, _)| name.clone()).collect();
            let added = variables.iter().cloned().chain(work_dir);
            role.work.env.extend(added.filter(|(name, _)| !own.contains(name)));
        }
        Ok(job)
    }

    /// PaddleFlow's variables of all members of a step.
    fn variables(&self, id: StepIndex) -> Result<Vec<(String, String)>, String> {
        let node = self.node(id);
        let mut variables: Vec<_> = SystemParameter::ALL
            .into_iter()
            .map(|parameter| (parameter.name().to_owned(), self.system(id, parameter)))
            .collect();
        for input in &node.inputs {
            let name = format!("PF_INPUT_ARTIFACT_{}", input.name.to_uppercase());
            variables.push((name, self.paths(&self.input(id, &input.name)?)));
        }
        for output in &node.outputs {
            let name = format!("PF_OUTPUT_ARTIFACT_{}", output.name.to_uppercase());
            variables.push((name, self.paths(&self.output(id, &output.name)?)));
        }
        variables.push(("PF_JOB_NAMESPACE".to_owned(), "default".to_owned()));
        Ok(variables)
    }
}

/// A text with its references replaced.
fn fill(text: &Text, mut of: impl FnMut(&Reference) -> Result<String, String>) -> Result<String, String> {
    let mut filled = String::new();
    for piece in &text.0 {
        match piece {
            Piece::Plain(plain) => filled.push_str(plain),
            Piece::Of(reference) => filled.push_str(&of(reference)?),
        }
        if filled.len() > MAX_TEXT {
            return Err(format!("with its references replaced, it is longer than {MAX_TEXT} bytes"));
        }
    }
    Ok(filled)
}

/// A name with PaddleFlow's mark of the items of a loop: the first has none.
fn numbered(name: &str, item: Option<u32>) -> String {
    item.filter(|item| *item > 0).map_or_else(|| name.to_owned(), |item| format!("{name}-{item}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{
        Instances, ROOT, add, constant, dag, given, input, line, output, pipeline, reference, resolve, scope, step,
        step_of, unroll,
    };
    use super::*;
    use crate::model::{Cache, Output, Role, RoleName};

    fn value(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn command(scope: &Scope, pipeline: &Pipeline, tree: &Instances, id: StepIndex) -> String {
        scope.job(pipeline, tree, id).unwrap().roles[0].work.command[2].clone()
    }

    fn variable(job: &Job, role: usize, name: &str) -> Option<String> {
        let mut found = job.roles[role].work.env.iter().filter(|(other, _)| other == name);
        let value = found.next().map(|(_, value)| value.clone());
        assert_eq!(found.next(), None, "{name} is set twice");
        value
    }

    /// The vectors of the specification, which are those of PaddleFlow's documentation.
    #[test]
    fn artifacts_are_where_paddleflow_puts_them() {
        for (name, step_name, item, expected) in [
            ("artifact_example", "preprocess", None, "preprocess-0-037175363b6ef656300d85b2821919a1"),
            ("artifact_example", "train", None, "train-0-2b2bc734db42989f06b47d4a59b3d6d4"),
            ("loop_example", "process", Some(0), "process-0-244d8cc3b7f925461e4520c24a2640cc"),
            ("loop_example", "process", Some(1), "process-1-5737bb0763051eb2940da7442cd7fb00"),
        ] {
            let mut pipeline = pipeline(name);
            let node = add(&mut pipeline, Pipeline::ROOT, step_name, step(line("$>data")), |node| {
                node.outputs = vec![output("data")];
            });
            let mut tree = Instances::new();
            let id = tree.add(ROOT, node, item);
            let directory = format!("/ppl/.pipeline/run-000007/{name}/{expected}");
            assert_eq!(command(&scope(), &pipeline, &tree, id), format!("{directory}/data"));
            let expected = Preparation {
                create: vec![directory.clone().into()],
                remove: vec![format!("{directory}/data").into()],
            };
            assert_eq!(scope().prepare(&pipeline, &tree, id).unwrap(), expected);
        }
    }

    #[test]
    fn items_are_numbered_at_each_level() {
        let mut pipeline = pipeline("p");
        let outer = add(&mut pipeline, Pipeline::ROOT, "outer", dag(), |_| ());
        let inner = add(&mut pipeline, outer, "inner", step(line("")), |_| ());
        let post = add(&mut pipeline, Pipeline::ROOT, "clean", step(line("")), |_| ());
        pipeline.post = Some(post);
        let mut tree = Instances::new();
        for (outer_item, inner_item, name) in [
            (None, None, "p.entry_points.outer.inner"),
            (Some(0), Some(0), "p.entry_points.outer.inner"),
            (Some(1), None, "p.entry_points.outer-1.inner"),
            (Some(2), Some(3), "p.entry_points.outer-2.inner-3"),
        ] {
            let parent = tree.add(ROOT, outer, outer_item);
            let id = tree.add(parent, inner, inner_item);
            assert_eq!(View { scope: &scope(), pipeline: &pipeline, tree: &tree }.runtime_name(id), name);
        }
        let id = tree.add(ROOT, post, None);
        assert_eq!(View { scope: &scope(), pipeline: &pipeline, tree: &tree }.runtime_name(id), "p.post_process.clean");
    }

    #[test]
    fn steps_see_artifacts_below_the_mount() {
        let mut pipeline = pipeline("p");
        let make = add(&mut pipeline, Pipeline::ROOT, "make", step(line("")), |node| node.outputs = vec![output("x")]);
        let take = add(&mut pipeline, Pipeline::ROOT, "take", step(line("cat $<y ;")), |node| {
            node.inputs = vec![input("y", "1:x")];
        });
        let store = pipeline.store.as_mut().unwrap();
        store.sub_path = Some("team/a".into());
        store.mount_path = Some("/mnt/ppl".into());
        let mut tree = Instances::new();
        let made = tree.add(ROOT, make, None);
        let taken = tree.add(ROOT, take, None);
        let mut scope = scope();
        resolve(&mut scope, &pipeline, &tree, taken).unwrap();
        let values = scope.values(&pipeline, &tree, taken).unwrap();
        let host = &values.inputs[0].1[0];
        assert!(host.starts_with("/ppl/team/a/.pipeline/run-000007/p/make-0-"), "{host}");
        let seen = host.replace("/ppl/team/a", "/mnt/ppl");
        assert_eq!(command(&scope, &pipeline, &tree, taken), format!("cat {seen} ;"));
        let job = scope.job(&pipeline, &tree, taken).unwrap();
        assert_eq!(variable(&job, 0, "PF_INPUT_ARTIFACT_Y").unwrap(), seen);
        // What another run made is below the same mount; what is elsewhere stays there.
        for (elsewhere, seen) in [
            ("/ppl/team/a/.pipeline/run-000001/p/m/x", "/mnt/ppl/.pipeline/run-000001/p/m/x"),
            ("/ppl/team/ab/x", "/ppl/team/ab/x"),
        ] {
            scope.reuse(made, vec![("x".to_owned(), vec![elsewhere.to_owned()])]);
            assert_eq!(command(&scope, &pipeline, &tree, taken), format!("cat {seen} ;"));
        }
        assert!(
            scope.prepare(&pipeline, &tree, made).unwrap().remove[0].starts_with("/ppl/team/a/.pipeline/run-000007")
        );
    }

    /// The document of the user's example: `data_path` of one step is `train_data` of the next.
    #[test]
    fn parameters_come_from_siblings_and_the_run() {
        let mut pipeline = pipeline("distributed_job_example");
        let preprocess =
            add(&mut pipeline, Pipeline::ROOT, "preprocess", step(line("bash data.sh $data_path")), |node| {
                node.parameters = vec![given("data_path", "./data/$run")];
            });
        let train = add(
            &mut pipeline,
            Pipeline::ROOT,
            "train",
            step(line("echo $epoch $train_data of $user in $step")),
            |node| {
                node.parameters = vec![constant("epoch", Value::Int(5)), given("train_data", "$1:data_path")];
            },
        );
        let mut tree = Instances::new();
        let (first, second) = (tree.add(ROOT, preprocess, None), tree.add(ROOT, train, None));
        let mut scope = scope();
        assert_eq!(resolve(&mut scope, &pipeline, &tree, first), Ok(Answer::Run));
        assert_eq!(resolve(&mut scope, &pipeline, &tree, second), Ok(Answer::Run));
        assert_eq!(command(&scope, &pipeline, &tree, first), "bash data.sh ./data/run-000007");
        assert_eq!(command(&scope, &pipeline, &tree, second), "echo 5 ./data/run-000007 of ann in train");
        let values = scope.values(&pipeline, &tree, second).unwrap();
        let expected = [("epoch".to_owned(), Value::Int(5)), ("train_data".to_owned(), value("./data/run-000007"))];
        assert_eq!(values.parameters, expected);
        assert_eq!(scope.job(&pipeline, &tree, second).unwrap().name.as_str(), "run-000007-train");
    }

    #[test]
    fn a_sole_reference_keeps_its_type() {
        let mut pipeline = pipeline("p");
        let list = Value::List(vec![Value::Int(1), value("a")]);
        let a = add(&mut pipeline, Pipeline::ROOT, "a", step(line("")), |node| {
            node.parameters = vec![constant("list", list.clone())];
        });
        let b = add(&mut pipeline, Pipeline::ROOT, "b", step(line("$same $text")), |node| {
            node.parameters = vec![given("same", "$1:list"), given("text", "of $1:list")];
        });
        let mut tree = Instances::new();
        tree.add(ROOT, a, None);
        let id = tree.add(ROOT, b, None);
        let mut scope = scope();
        resolve(&mut scope, &pipeline, &tree, id).unwrap();
        let values = scope.values(&pipeline, &tree, id).unwrap();
        assert_eq!(values.parameters, [("same".to_owned(), list), ("text".to_owned(), value("of [1 a]"))]);
        assert_eq!(command(&scope, &pipeline, &tree, id), "[1 a] of [1 a]");
    }

    #[test]
    fn variables_of_a_step() {
        let mut pipeline = pipeline("p");
        let make = add(&mut pipeline, Pipeline::ROOT, "make", step(line("")), |node| node.outputs = vec![output("x")]);
        let node = add(&mut pipeline, Pipeline::ROOT, "train", step(line("")), |node| {
            node.inputs = vec![input("data", "1:x")];
            node.outputs = vec![output("model")];
            node.parameters = vec![constant("lr", Value::Float(crate::model::Float(0.1)))];
        });
        let step = step_of(&mut pipeline, node);
        step.job.roles[0].work.dir = Some("/ppl".into());
        step.job.roles[0].work.env =
            vec![("USER_ABC".to_owned(), String::new()), ("PF_USER_NAME".to_owned(), "bob".to_owned())];
        step.texts.push((Place::Variable { role: 0, variable: 0 }, line("123_$user/$lr")));
        let mut tree = Instances::new();
        tree.add(ROOT, make, None);
        let id = tree.add(ROOT, node, Some(1));
        let job = scope().job(&pipeline, &tree, id).unwrap();
        assert_eq!(job.name.as_str(), "run-000007-train-1");
        for (name, value) in [
            ("USER_ABC", Some("123_ann/0.1")),
            ("PF_RUN_ID", Some("run-000007")),
            ("PF_STEP_NAME", Some("train")),
            // That of a member wins.
            ("PF_USER_NAME", Some("bob")),
            ("PF_LOOP_ARGUMENT", Some("")),
            ("PF_JOB_NAMESPACE", Some("default")),
            ("PF_JOB_MODE", Some("")),
            ("PF_WORK_DIR", Some("/ppl")),
            ("lr", None),
        ] {
            assert_eq!(variable(&job, 0, name).as_deref(), value, "{name}");
        }
        assert!(variable(&job, 0, "PF_INPUT_ARTIFACT_DATA").unwrap().ends_with("/x"));
        assert!(variable(&job, 0, "PF_OUTPUT_ARTIFACT_MODEL").unwrap().ends_with("/model"));
        // Several members: no mode, and the directory of each.
        step_of(&mut pipeline, node).job.roles.push(Role::new(RoleName::new("worker").unwrap(), 2));
        let job = scope().job(&pipeline, &tree, id).unwrap();
        assert_eq!(variable(&job, 0, "PF_JOB_MODE"), None);
        assert_eq!(variable(&job, 1, "PF_USER_NAME").as_deref(), Some("ann"));
        assert_eq!(variable(&job, 1, "PF_WORK_DIR"), None);
        // A native pipeline has none of them.
        pipeline.paddleflow = false;
        let job = scope().job(&pipeline, &tree, id).unwrap();
        assert_eq!(job.roles[0].work.env.len(), 2);
        assert_eq!(job.name.as_str(), "step");
    }

    #[test]
    fn loops_have_an_item_each() {
        let mut pipeline = pipeline("p");
        let over = vec![Value::Int(1_000_000), value("two")];
        let each = add(&mut pipeline, Pipeline::ROOT, "each", step(line("$item $named")), |node| {
            node.items = Some(Items::List(over.clone()));
            node.parameters = vec![given("named", "item $item")];
            node.outputs = vec![output("x")];
        });
        let after = add(&mut pipeline, Pipeline::ROOT, "after", step(line("$first $<xs")), |node| {
            node.parameters = vec![given("first", "$1:named")];
            node.inputs = vec![input("xs", "1:x")];
        });
        let mut tree = Instances::new();
        let mut scope = scope();
        let ids = unroll(&mut scope, &pipeline, &mut tree, ROOT, each);
        let commands: Vec<_> = ids.iter().map(|id| command(&scope, &pipeline, &tree, *id)).collect();
        assert_eq!(commands, ["1000000 item 1000000", "two item two"]);
        let job = scope.job(&pipeline, &tree, ids[1]).unwrap();
        assert_eq!(variable(&job, 0, "PF_LOOP_ARGUMENT").as_deref(), Some("two"));
        assert_eq!(scope.values(&pipeline, &tree, ids[1]).unwrap().item, Some(value("two")));
        let after = tree.add(ROOT, after, None);
        resolve(&mut scope, &pipeline, &tree, after).unwrap();
        let paths: Vec<_> =
            ids.iter().flat_map(|id| scope.values(&pipeline, &tree, *id).unwrap().outputs[0].1.clone()).collect();
        assert!(paths[0].contains("/each-0-") && paths[1].contains("/each-1-"), "{paths:?}");
        // A parameter is that of the first item; an artifact is those of all, in their order.
        assert_eq!(command(&scope, &pipeline, &tree, after), format!("item 1000000 {},{}", paths[0], paths[1]));
    }

    #[test]
    fn lists_of_loops_come_from_parameters_and_files() {
        let mut pipeline = pipeline("p");
        let make = add(&mut pipeline, Pipeline::ROOT, "make", step(line("")), |node| node.outputs = vec![output("x")]);
        let each = add(&mut pipeline, Pipeline::ROOT, "each", step(line("")), |node| {
            node.parameters = vec![
                constant("list", Value::List(vec![Value::Int(1)])),
                constant("json", value("[2, 3]")),
                constant("no", Value::Int(1)),
                constant("empty", value("[]")),
            ];
            node.inputs = vec![input("file", "1:x")];
        });
        let mut tree = Instances::new();
        tree.add(ROOT, make, None);
        let id = tree.add_loop(ROOT, each);
        let mut over = |word: &str, content: Result<&str, &str>| {
            pipeline.nodes[each.0 as usize].items = Some(Items::Of(reference(word)));
            scope().resolve(&pipeline, &tree, id, &mut |path, limit| {
                assert!(path.ends_with("x") && limit == MAX_LOOP, "{path:?}");
                content.map(str::to_owned).map_err(str::to_owned)
            })
        };
        assert_eq!(over("list", Err("")), Ok(Answer::Loop(vec![Value::Int(1)])));
        assert_eq!(over("json", Err("")), Ok(Answer::Loop(vec![Value::Int(2), Value::Int(3)])));
        assert_eq!(over("empty", Err("")), Ok(Answer::Loop(vec![])));
        assert_eq!(over("<file", Ok("[4]\n")), Ok(Answer::Loop(vec![Value::Int(4)])));
        assert_eq!(
            over("<file", Ok("")).unwrap_err(),
            "the loop cannot run over the content of `file`: it is not a JSON list: EOF while parsing a value at line 1 column 0"
        );
        assert_eq!(
            over("<file", Err("`x` is larger than 1 MiB")).unwrap_err(),
            "input artifact `file`: `x` is larger than 1 MiB"
        );
        assert_eq!(over("no", Err("")).unwrap_err(), "the loop cannot run over `no`: it is a number, not a list");
    }

    #[test]
    fn an_empty_loop_still_has_parameters() {
        let mut pipeline = pipeline("p");
        let each = add(&mut pipeline, Pipeline::ROOT, "each", step(line("")), |node| {
            node.items = Some(Items::List(Vec::new()));
            node.parameters = vec![given("in", "of $run")];
            node.outputs = vec![output("x")];
        });
        let after = add(&mut pipeline, Pipeline::ROOT, "after", step(line("$in [$<xs ]")), |node| {
            node.parameters = vec![given("in", "$1:in")];
            node.inputs = vec![input("xs", "1:x")];
        });
        let mut tree = Instances::new();
        let mut scope = scope();
        let id = tree.add_loop(ROOT, each);
        assert_eq!(resolve(&mut scope, &pipeline, &tree, id), Ok(Answer::Loop(vec![])));
        let id = tree.add(ROOT, after, None);
        assert_eq!(resolve(&mut scope, &pipeline, &tree, id), Ok(Answer::Run));
        assert_eq!(command(&scope, &pipeline, &tree, id), "of run-000007 [ ]");
    }

    /// A looping DAG whose children use its item, its parameters and its inputs, and whose output is a child's.
    #[test]
    fn values_cross_the_border_of_a_dag() {
        let mut pipeline = pipeline("p");
        let make = add(&mut pipeline, Pipeline::ROOT, "make", step(line("")), |node| node.outputs = vec![output("x")]);
        let outer = add(&mut pipeline, Pipeline::ROOT, "outer", dag(), |node| {
            node.items = Some(Items::List(vec![value("a"), value("b")]));
            node.parameters = vec![given("size", "$run")];
            node.inputs = vec![input("in", "1:x")];
        });
        let inner = add(&mut pipeline, outer, "inner", step(line("$which $size $<in")), |node| {
            node.parameters = vec![given("which", "$^"), given("size", "$.size")];
            node.inputs = vec![input("in", ".in")];
            node.outputs = vec![output("y")];
        });
        pipeline.nodes[outer.0 as usize].outputs =
            vec![Output { name: "out".to_owned(), from: Some((inner, "y".to_owned())) }];
        let after = add(&mut pipeline, Pipeline::ROOT, "after", step(line("$<all")), |node| {
            node.inputs = vec![input("all", "2:out")];
        });
        let mut tree = Instances::new();
        let mut scope = scope();
        tree.add(ROOT, make, None);
        let dags = unroll(&mut scope, &pipeline, &mut tree, ROOT, outer);
        let mut outputs = Vec::new();
        for (position, dag) in dags.into_iter().enumerate() {
            assert_eq!(scope.values(&pipeline, &tree, dag).unwrap().outputs, []);
            let id = tree.add(dag, inner, None);
            resolve(&mut scope, &pipeline, &tree, id).unwrap();
            let item = ["a", "b"][position];
            let line = command(&scope, &pipeline, &tree, id);
            assert!(line.starts_with(&format!("{item} run-000007 /ppl/.pipeline/run-000007/p/make-0-")), "{line}");
            let closed = scope.close(&pipeline, &tree, dag).unwrap();
            assert_eq!(closed.outputs[0].1, scope.values(&pipeline, &tree, id).unwrap().outputs[0].1);
            outputs.extend(closed.outputs[0].1.clone());
        }
        let id = tree.add(ROOT, after, None);
        resolve(&mut scope, &pipeline, &tree, id).unwrap();
        assert_eq!(outputs.len(), 2);
        assert_eq!(command(&scope, &pipeline, &tree, id), outputs.join(","));
    }

    #[test]
    fn conditions_come_before_disabling_and_the_cache() {
        let mut pipeline = pipeline("p");
        let make = add(&mut pipeline, Pipeline::ROOT, "make", step(line("")), |node| node.outputs = vec![output("x")]);
        let node = add(&mut pipeline, Pipeline::ROOT, "maybe", step(line("")), |node| {
            node.parameters = vec![constant("num", Value::Int(10))];
            node.inputs = vec![input("score", "1:x")];
        });
        let mut tree = Instances::new();
        tree.add(ROOT, make, None);
        let id = tree.add(ROOT, node, None);
        let answer = |pipeline: &Pipeline, condition: &str, content: &str| {
            let mut pipeline = pipeline.clone();
            pipeline.nodes[node.0 as usize].condition = Some(line(condition));
            scope().resolve(&pipeline, &tree, id, &mut |_, limit| {
                assert_eq!(limit, MAX_CONDITION);
                Ok(content.to_owned())
            })
        };
        assert_eq!(answer(&pipeline, "$num > 0", ""), Ok(Answer::Run));
        assert_eq!(answer(&pipeline, "$num < 0", ""), Ok(Answer::Skip(SkipReason::Condition)));
        assert_eq!(answer(&pipeline, "$<score > 0.5", "0.75\n"), Ok(Answer::Run));
        assert_eq!(
            answer(&pipeline, "$<score > 0.5", "n/a").unwrap_err(),
            "condition `n/a > 0.5`: `/` needs two numbers, not the text `n` and the text `a`, at character 2"
        );
        step_of(&mut pipeline, node).cache = Some(Cache { max_age: None, scope: Vec::new() });
        assert_eq!(answer(&pipeline, "$num > 0", ""), Ok(Answer::Lookup));
        pipeline.nodes[node.0 as usize].disabled = true;
        assert_eq!(answer(&pipeline, "$num > 0", ""), Ok(Answer::Skip(SkipReason::Disabled)));
        assert_eq!(answer(&pipeline, "$num < 0", ""), Ok(Answer::Skip(SkipReason::Condition)));
        assert!(answer(&pipeline, "$num <", "").is_err());
    }

    /// Each step doubles the text of the one before.
    #[test]
    fn texts_do_not_grow_without_limit() {
        let mut pipeline = pipeline("p");
        let mut tree = Instances::new();
        let mut scope = scope();
        let first = add(&mut pipeline, Pipeline::ROOT, "s0", step(line("")), |node| {
            node.parameters = vec![constant("x", value("0123456789"))];
        });
        tree.add(ROOT, first, None);
        let ended = (1..60).find_map(|number| {
            let text = format!("${number}:x ${number}:x");
            let node = add(&mut pipeline, Pipeline::ROOT, "s", step(line("")), |node| {
                node.parameters = vec![given("x", &text)];
            });
            let id = tree.add(ROOT, node, None);
            resolve(&mut scope, &pipeline, &tree, id).err()
        });
        assert_eq!(ended.unwrap(), "parameter `x`: with its references replaced, it is longer than 131071 bytes");
    }

    #[test]
    fn nothing_is_kept_for_steps_without_values() {
        let mut pipeline = pipeline("p");
        let node = add(&mut pipeline, Pipeline::ROOT, "s", step(line("$x")), |node| {
            node.parameters = vec![constant("x", Value::Int(1))];
            node.outputs = vec![output("y")];
        });
        let mut tree = Instances::new();
        let mut scope = scope();
        for _ in 0..100 {
            let id = tree.add(ROOT, node, None);
            resolve(&mut scope, &pipeline, &tree, id).unwrap();
        }
        assert!(scope.known.is_empty());
    }

    /// What was recorded gives the same values back, in this run and for steps that another run keeps.
    #[test]
    fn recorded_values_are_restored() {
        let mut pipeline = pipeline("p");
        let make = add(&mut pipeline, Pipeline::ROOT, "make", step(line("$dir $>x")), |node| {
            node.parameters = vec![given("dir", "./$run"), given("secret", "key-$run"), constant("n", Value::Int(1))];
            node.outputs = vec![output("x")];
        });
        let each = add(&mut pipeline, Pipeline::ROOT, "each", step(line("$item $<x $dir $>y")), |node| {
            node.items = Some(Items::List(vec![Value::Int(1), value("k")]));
            node.parameters = vec![given("dir", "$1:dir")];
            node.inputs = vec![input("x", "1:x")];
            node.outputs = vec![output("y")];
        });
        let mut tree = Instances::new();
        let mut before = scope();
        let made = tree.add(ROOT, make, None);
        resolve(&mut before, &pipeline, &tree, made).unwrap();
        let ids = unroll(&mut before, &pipeline, &mut tree, ROOT, each);
        let recorded = |id| before.values(&pipeline, &tree, id).unwrap();
        let around = StepIndex(ids[0].0 - 1);
        assert_eq!(recorded(around).outputs, [], "those of its items");

        let mut resumed = scope();
        let mut kept = Scope::new("run-000008", "ann");
        for scope in [&mut resumed, &mut kept] {
            scope.restore(&pipeline, &tree, made, recorded(made));
            scope.restore(&pipeline, &tree, around, recorded(around));
            scope.restore_loop(&pipeline, &tree, around, vec![Value::Int(1), value("k")]);
            assert_eq!(scope.values(&pipeline, &tree, around).unwrap(), recorded(around));
            for id in &ids {
                scope.restore(&pipeline, &tree, *id, recorded(*id));
            }
            for id in [made, ids[0], ids[1]] {
                assert_eq!(scope.values(&pipeline, &tree, id).unwrap(), recorded(id));
                assert_eq!(command(scope, &pipeline, &tree, id), command(&before, &pipeline, &tree, id));
            }
        }
        assert!(
            resumed.known[made.0 as usize].as_ref().unwrap().outputs.is_none(),
            "they follow from the step's place"
        );

        // What was masked is worked out again.
        let mut masked = recorded(made);
        masked.parameters[1].1 = value(&format!("key-{MASK}"));
        let mut scope = scope();
        scope.restore(&pipeline, &tree, made, masked);
        scope.restore_loop(&pipeline, &tree, around, vec![Value::Int(1), value(MASK)]);
        assert_eq!(scope.values(&pipeline, &tree, made).unwrap(), recorded(made));
        scope.restore(&pipeline, &tree, ids[1], recorded(ids[1]));
        assert_eq!(scope.values(&pipeline, &tree, ids[1]).unwrap(), recorded(ids[1]));
    }

    #[test]
    fn unknown_names_are_errors() {
        for (text, message) in [
            ("$x", "command: `s` has no value of `x`"),
            ("$<x", "command: `s` has no input artifact `x`"),
            ("$>x", "command: `s` has no output artifact `x`"),
            ("$^", "command: `p` is not a loop"),
            ("$.x", "command: `p` has no value of `x`"),
            ("$1:x", "command: `s` has no value of `x`"),
        ] {
            let mut pipeline = pipeline("p");
            let node = add(&mut pipeline, Pipeline::ROOT, "s", step(line(text)), |_| ());
            let mut tree = Instances::new();
            let id = tree.add(ROOT, node, None);
            assert_eq!(scope().job(&pipeline, &tree, id).unwrap_err(), message);
        }
        let mut pipeline = pipeline("p");
        pipeline.store = None;
        let node = add(&mut pipeline, Pipeline::ROOT, "s", step(line("")), |node| node.outputs = vec![output("x")]);
        let mut tree = Instances::new();
        let id = tree.add(ROOT, node, None);
        assert!(scope().prepare(&pipeline, &tree, id).unwrap_err().contains("no file system"));
        pipeline.store = Some(Store { name: "x".to_owned(), dir: "/x".into(), sub_path: None, mount_path: None });
        for name in ["..", "a/b", "", "."] {
            pipeline.nodes[node.0 as usize].outputs = vec![output(name)];
            assert!(scope().prepare(&pipeline, &tree, id).is_err(), "{name:?}");
        }
    }

    proptest! {
        /// Values are inserted as they are: a template in a value stays as it is.
        #[test]
        fn values_are_not_searched_for_references(text in "(\\{\\{ ?(PF_RUN_ID|x|y)? ?\\}\\}|[{}$ a]|\\PC){0,12}") {
            let mut pipeline = pipeline("p");
            let node = add(&mut pipeline, Pipeline::ROOT, "s", step(line("<$x /$y ;")), |node| {
                node.parameters = vec![constant("x", value(&text)), constant("y", value("{{x}}"))];
            });
            let mut tree = Instances::new();
            let id = tree.add(ROOT, node, None);
            prop_assert_eq!(command(&scope(), &pipeline, &tree, id), format!("<{text} /{{{{x}}}} ;"));
        }
    }
}
