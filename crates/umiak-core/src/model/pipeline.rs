//! Pipelines: a DAG of jobs, as data. [`crate::machine::pipeline`] decides what runs when; [`crate::pipeline`] fills
//! templates and names artifacts.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{EngineChoice, EngineKind, Job, JobId, seconds};

/// What a document describes: one job, or a pipeline of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    Job(Box<Job>),
    Pipeline(Box<Pipeline>),
}

impl Workload {
    pub fn name(&self) -> &JobId {
        match self {
            Self::Job(job) => &job.name,
            Self::Pipeline(pipeline) => &pipeline.name,
        }
    }

    pub fn labels(&self) -> &BTreeMap<String, String> {
        match self {
            Self::Job(job) => &job.labels,
            Self::Pipeline(pipeline) => &pipeline.labels,
        }
    }

    /// The name and the labels, to be changed.
    pub fn head(&mut self) -> (&mut JobId, &mut BTreeMap<String, String>) {
        match self {
            Self::Job(job) => (&mut job.name, &mut job.labels),
            Self::Pipeline(pipeline) => (&mut pipeline.name, &mut pipeline.labels),
        }
    }

    /// The same jobs as [`Workload::jobs`] with their engines; `usual` is that of the run.
    pub fn placed(&self, usual: EngineKind) -> Box<dyn Iterator<Item = (&Job, EngineKind)> + '_> {
        match self {
            Self::Job(job) => Box::new(std::iter::once((&**job, usual))),
            Self::Pipeline(pipeline) => {
                let kind = move |step: &Step| step.engine.as_ref().map_or(usual, |own| own.kind);
                Box::new(pipeline.iter_steps().map(move |step| (&step.job, kind(step))))
            }
        }
    }

    /// The engines of all jobs, each once.
    pub fn engines(&self, usual: EngineKind) -> Vec<EngineKind> {
        EngineKind::ALL.into_iter().filter(|kind| self.placed(usual).any(|(_, other)| other == *kind)).collect()
    }

    /// The job, or those of all steps. Texts of steps may be empty: they have references.
    pub fn jobs(&self) -> Box<dyn Iterator<Item = &Job> + '_> {
        match self {
            Self::Job(job) => Box::new(std::iter::once(&**job)),
            Self::Pipeline(pipeline) => Box::new(pipeline.jobs()),
        }
    }
}

/// A DAG of jobs, with nested DAGs, loops and conditions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pipeline {
    pub name: JobId,
    /// For users and filters; they have no effect.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Parents before their children. The first is the DAG of the whole pipeline.
    pub nodes: Vec<Node>,
    /// A step that runs when everything else has ended, whatever happened. Its parent is the root, whose children do not
    /// include it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post: Option<NodeId>,
    /// The maximum number of steps that run at once.
    pub parallelism: u32,
    pub on_failure: OnFailure,
    /// Where artifacts are kept; without it there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Store>,
    /// Steps get PaddleFlow's variables (`PF_RUN_ID`, `PF_INPUT_ARTIFACT_*`, …) and its job names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paddleflow: bool,
}

impl Pipeline {
    /// The DAG of the whole pipeline.
    pub const ROOT: NodeId = NodeId(0);

    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// All nodes with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        (0..).map(NodeId).zip(&self.nodes)
    }

    /// The names from the root to a node, without the root's: `dag.child`.
    pub fn path(&self, id: NodeId) -> String {
        let mut names = Vec::new();
        let mut at = id;
        while at != Self::ROOT {
            names.push(self.node(at).name.as_str());
            at = self.node(at).parent;
        }
        names.reverse();
        names.join(".")
    }

    /// The jobs of all steps.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.iter_steps().map(|step| &step.job)
    }

    pub fn iter_steps(&self) -> impl Iterator<Item = &Step> {
        self.nodes.iter().filter_map(|node| match &node.body {
            Body::Step(step) => Some(&**step),
            Body::Dag { .. } => None,
        })
    }

    pub fn iter_steps_mut(&mut self) -> impl Iterator<Item = &mut Step> {
        self.nodes.iter_mut().filter_map(|node| match &mut node.body {
            Body::Step(step) => Some(&mut **step),
            Body::Dag { .. } => None,
        })
    }

    /// The number of steps, each loop counted once.
    pub fn steps(&self) -> usize {
        self.nodes.iter().filter(|node| matches!(node.body, Body::Step(_))).count()
    }
}

/// The position of a node in a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// What happens to the rest after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Everything else is stopped or cancelled.
    #[default]
    FailFast,
    /// Only what depends on it is cancelled.
    Continue,
}

/// A directory that keeps the artifacts of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Store {
    /// The name of its file system.
    pub name: String,
    /// On this host.
    pub dir: PathBuf,
    /// Below `dir`: what steps see of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<PathBuf>,
    /// Where steps see it; at its own place if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_path: Option<PathBuf>,
}

/// A step or a DAG.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    pub name: String,
    /// The DAG that contains it; the root's is itself.
    pub parent: NodeId,
    /// Siblings that must have ended well before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deps: Vec<NodeId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<Parameter>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Output>,
    /// An expression; if it is false, the node is skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Text>,
    /// It runs once for each item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Items>,
    /// It is skipped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    pub body: Body,
}

impl Node {
    /// A node without values and dependencies.
    pub fn new(name: String, parent: NodeId, body: Body) -> Self {
        Self {
            name,
            parent,
            deps: Vec::new(),
            parameters: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            condition: None,
            items: None,
            disabled: false,
            body,
        }
    }
}

/// What a node does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    Dag { children: Vec<NodeId> },
    Step(Box<Step>),
}

/// A job, and what makes it a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Its texts that contain references are in `texts`, and empty here. A variable in `env` wins over the one that the
    /// pipeline sets (`PF_RUN_ID`): formats leave out those that have no effect.
    pub job: Job,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<(Place, Text)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// Its engine, if it is not that of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineChoice>,
}

/// A text of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A word of a role's command.
    Word { role: u16, word: u16 },
    /// The value of a role's variable.
    Variable { role: u16, variable: u16 },
}

impl Job {
    /// The name of a variable.
    pub fn variable(&self, place: Place) -> Option<&str> {
        let Place::Variable { role, variable } = place else { return None };
        let (name, _) = self.roles.get(role as usize)?.work.env.get(variable as usize)?;
        Some(name)
    }
}

/// A parameter of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parameter {
    pub name: String,
    pub value: Given,
}

/// The value of a parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Given {
    Value(Value),
    /// A text that is one reference keeps the type of what it refers to.
    Text(Text),
}

/// A value of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Value {
    Int(i64),
    Float(Float),
    Text(String),
    List(Vec<Value>),
}

impl Value {
    /// Replaces the texts in it, and numbers whose text is replaced.
    pub fn rewrite(&mut self, with: &dyn Fn(&str) -> String) {
        let number = match self {
            Self::List(items) => return items.iter_mut().for_each(|item| item.rewrite(with)),
            Self::Text(text) => return *text = with(text),
            Self::Int(number) => number.to_string(),
            Self::Float(Float(number)) => number.to_string(),
        };
        let text = with(&number);
        if text != number {
            *self = Self::Text(text);
        }
    }
}

/// A number with a fraction. Equal bits are equal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Float(pub f64);

impl PartialEq for Float {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Float {}

/// A text with references, which are replaced when the node starts. Values are never searched for references.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Text(pub Vec<Piece>);

/// A part of a [`Text`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    Plain(String),
    Of(Reference),
}

/// What a template stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    System(SystemParameter),
    /// A parameter of the node itself.
    Parameter(String),
    /// The path of an input artifact of the node itself; in conditions and loops, its content.
    Input(String),
    /// The path of an output artifact of the node itself.
    Output(String),
    /// A parameter of a sibling; for an input, one of its output artifacts.
    Sibling {
        node: NodeId,
        name: String,
    },
    /// A parameter of the enclosing DAG; for an input, one of its input artifacts.
    Parent(String),
    /// The item of the loop of the enclosing DAG.
    ParentItem,
}

/// A value that every step has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SystemParameter {
    RunId,
    StepName,
    UserName,
    LoopArgument,
}

impl SystemParameter {
    pub const ALL: [Self; 4] = [Self::RunId, Self::StepName, Self::UserName, Self::LoopArgument];

    /// Its name in templates and in the environment.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RunId => "PF_RUN_ID",
            Self::StepName => "PF_STEP_NAME",
            Self::UserName => "PF_USER_NAME",
            Self::LoopArgument => "PF_LOOP_ARGUMENT",
        }
    }
}

impl fmt::Display for SystemParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An input artifact: an output of a sibling, or an input of the enclosing DAG.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Input {
    pub name: String,
    /// [`Reference::Sibling`] or [`Reference::Parent`].
    pub from: Reference,
}

/// An output artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Output {
    pub name: String,
    /// Of a DAG: the output of one of its children. Steps make theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<(NodeId, String)>,
}

/// What a loop runs over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Items {
    List(Vec<Value>),
    /// A parameter of the node itself, or the content of one of its input artifacts: a list, or a text with a JSON list.
    Of(Reference),
}

/// When the result of an earlier run is used instead of running the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// Results older than this are not used.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub max_age: Option<Duration>,
    /// Files and directories on this host whose contents count as inputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<PathBuf>,
}

/// A directory that a replica sees at another path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mount {
    /// The name of its file system.
    pub name: String,
    /// On this host; relative to where the job was submitted.
    pub dir: PathBuf,
    /// Where the replica sees it.
    pub path: PathBuf,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

impl Mount {
    /// With a directory that does not depend on where the job was submitted.
    #[must_use]
    pub fn below(&self, directory: &Path) -> Self {
        Self { dir: directory.join(&self.dir), ..self.clone() }
    }
}
