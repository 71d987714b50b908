//! Pipelines of PaddleFlow: a tree in, a [`Pipeline`] and diagnostics out.
//!
//! | step | module |
//! |---|---|
//! | tree to the document as written | `raw`, by the tables in [`keys`]; `literal` for values |
//! | components by name, references, what templates refer to | `graph`, `template` |
//! | the rules between components | `check`, `members`, `files` |
//! | parameters of the command line | `overrides` |
//! | all that to the model | `lower`, `job` |
//! | secret parameters | `secrets` |
//!
//! Components are checked where they are written. References are replaced by copies only in a document without errors.

mod check;
mod files;
mod graph;
mod job;
pub mod keys;
mod literal;
mod lower;
mod members;
mod overrides;
mod raw;
mod secrets;
mod template;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::Given;
use super::document::Reading;
use super::document::masked::{Secrets, masked};
use super::document::reader::Reader;
use super::document::tree::Node;
use crate::diag::{Code, Span};
use crate::model::Workload;
use graph::Graph;
use job::Jobs;
use lower::Lowering;
use raw::RawPipeline;
pub(crate) use raw::Special;
use template::Braces;

const SECRETS: Secrets = Secrets { named: &["env", "parameters", "labels"], all: &[], params: "", prefix: "" };

/// The versions of PaddleFlow that accept a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// All, the develop branch included.
    Develop,
    /// Pull request #1164, which adds `distributed_job`.
    PullRequest,
    /// Its early versions, in which members have `queue` and `priority`.
    PullRequestEarly,
    /// None: it has keys of umiak.
    Umiak,
}

pub(super) fn read(reader: &mut Reader<'_>, mut root: Node, given: &Given<'_>) -> Reading {
    reader.spellings = keys::CAMEL;
    raw::refuse_braces(reader, &mut root);
    let raw = raw::pipeline(reader, &root);
    let graph = Graph::new(reader, &raw);
    let (places, names) = secrets::places(&graph);
    let (masked, _) = masked::<Braces>(reader.source, &root, &SECRETS, places);
    files::check(reader, &raw);
    let disabled = check::check(reader, &graph, given.disabled);
    let overrides = overrides::overrides(reader, &graph, given.params);
    let mut reading = Reading {
        work: None,
        masked,
        secrets: secrets::values(&graph, &names, given.params),
        special: raw.special.clone(),
        ..Reading::default()
    };
    reader.hidden = reading.secrets.clone();
    if reader.errors.is_empty() {
        lower(reader, &raw, &graph, &overrides, &disabled, given, &mut reading);
    }
    reading
}

fn lower(
    reader: &mut Reader<'_>,
    raw: &RawPipeline<'_>,
    graph: &Graph<'_, '_>,
    overrides: &overrides::Overrides,
    disabled: &check::Disabled,
    given: &Given<'_>,
    reading: &mut Reading,
) {
    let files = files::Files::new(given.settings, given.dir);
    let jobs = Jobs { raw, settings: given.settings, files, unknown: BTreeMap::new(), queues: BTreeMap::new() };
    let mut lowering = Lowering::new(graph, jobs, overrides, disabled);
    reading.work = lowering.pipeline(reader).map(|pipeline| Workload::Pipeline(Box::new(pipeline)));
    job::say_queues(reader, given.settings, &lowering.jobs.queues);
    reading.needed = lowering.needed;
    reading.flavours = lowering.jobs.unknown;
}

pub(super) fn dialect(special: &[(Special, Span)]) -> Dialect {
    let has = |is_it: fn(&Special) -> bool| special.iter().any(|(special, _)| is_it(special));
    if has(|special| matches!(special, Special::Own(_))) {
        Dialect::Umiak
    } else if has(|special| matches!(special, Special::Early(_))) {
        Dialect::PullRequestEarly
    } else if has(|special| matches!(special, Special::Distributed)) {
        Dialect::PullRequest
    } else {
        Dialect::Develop
    }
}

/// Says which versions of PaddleFlow reject or ignore something, each key once.
pub(super) fn versions(reader: &mut Reader<'_>, special: &[(Special, Span)]) {
    let mut said: Vec<Special> = Vec::new();
    for (special, at) in special {
        if said.contains(special) {
            continue;
        }
        said.push(*special);
        let message = match special {
            Special::Distributed => "`distributed_job` is rejected by PaddleFlow's develop branch".to_owned(),
            Special::Early(key) => format!("`{key}` of a member is ignored by the final version of pull request #1164"),
            Special::Late(key) => format!("`{key}` of a member is ignored by early versions of pull request #1164"),
            Special::Own(key) => format!("`{key}` is a key of umiak, which PaddleFlow rejects"),
        };
        let label = match special {
            Special::Distributed => "needs pull request #1164",
            Special::Early(_) | Special::Late(_) | Special::Own(_) => "",
        };
        reader.notice(Code::F0123, *at, message, label);
    }
}

#[cfg(test)]
mod tests;
