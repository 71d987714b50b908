//! The plan of a pipeline: `plan.json`, `umiak plan --output json`. The plan of each step is made when it starts.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::document::{Chosen, Submission};
use super::masked::mask_job;
use super::script::ClusterScript;
use super::{VERSION, Wishes};
use crate::mask::Known;
use crate::model::{Body, ClusterOptions, EngineKind, Given, Items, Node, Piece, Pipeline, Step, Text, Value};

/// A pipeline as it was submitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Pipeline plan", description = "The plan of a pipeline: `umiak plan`, `plan.json`")]
pub struct PipelinePlan {
    pub v: u32,
    pub umiak: String,
    /// The id of the run, if there is one.
    pub run: Option<String>,
    /// The parameters given with the document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub params: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Chosen::is_empty")]
    pub chosen: Chosen,
    pub engine: String,
    /// Directory where it was submitted.
    pub directory: PathBuf,
    /// The file of the document.
    pub document: PathBuf,
    pub wishes: Wishes,
    /// Of engines that give jobs to another scheduler.
    #[serde(default, skip_serializing_if = "ClusterOptions::is_default")]
    pub cluster: ClusterOptions,
    pub pipeline: Pipeline,
    /// What the schedulers of its engines get, in a printed plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scripts: Vec<ClusterScript>,
    /// True if nothing in the pipeline was masked.
    pub whole: bool,
}

impl PipelinePlan {
    /// The plan with all secrets masked, so that it may be written.
    pub fn new(run: Option<String>, submission: &Submission, pipeline: &Pipeline, known: &Known) -> Self {
        let Submission { params, chosen, engine, wishes, cluster, directory, document, .. } = submission;
        let mut plan = Self {
            v: VERSION,
            umiak: env!("CARGO_PKG_VERSION").to_owned(),
            run,
            params: params.clone(),
            chosen: chosen.clone(),
            engine: engine.clone(),
            directory: directory.clone(),
            document: document.clone(),
            wishes: *wishes,
            cluster: cluster.clone(),
            pipeline: pipeline.clone(),
            scripts: Vec::new(),
            whole: true,
        };
        for (name, value) in &mut plan.params {
            *value = known.masked(name, value);
        }
        for (name, value) in &mut plan.pipeline.labels {
            *value = known.masked(name, value);
        }
        plan.pipeline.nodes.iter_mut().for_each(|node| mask_node(node, known));
        plan.whole = plan.pipeline == *pipeline;
        plan
    }

    /// The engine of a step, and its options.
    fn engine_of<'a>(&'a self, step: &'a Step) -> Option<(EngineKind, &'a ClusterOptions)> {
        match &step.engine {
            Some(own) => Some((own.kind, &own.cluster)),
            None => Some((EngineKind::named(&self.engine)?, &self.cluster)),
        }
    }

    /// True if other hosts write the logs of a step: see [`EngineKind::writes_elsewhere`].
    pub fn writes_elsewhere(&self) -> bool {
        let of_step = |step| self.engine_of(step).is_some_and(|(kind, options)| kind.writes_elsewhere(options));
        self.pipeline.iter_steps().any(of_step)
    }
}

fn mask_node(node: &mut Node, known: &Known) {
    for parameter in &mut node.parameters {
        match &mut parameter.value {
            Given::Value(value) => mask_value(value, &parameter.name, known),
            Given::Text(text) => mask_text(text, &parameter.name, known),
        }
    }
    if let Some(condition) = &mut node.condition {
        mask_text(condition, "", known);
    }
    if let Some(Items::List(items)) = &mut node.items {
        for item in items {
            mask_value(item, "", known);
        }
    }
    if let Body::Step(step) = &mut node.body {
        for (place, text) in &mut step.texts {
            let name = step.job.variable(*place).unwrap_or_default().to_owned();
            mask_text(text, &name, known);
        }
        mask_job(&mut step.job, known);
    }
}

fn mask_value(value: &mut Value, name: &str, known: &Known) {
    value.rewrite(&|text| known.masked(name, text));
}

fn mask_text(text: &mut Text, name: &str, known: &Known) {
    for piece in &mut text.0 {
        if let Piece::Plain(plain) = piece {
            *plain = known.masked(name, plain);
        }
    }
}
