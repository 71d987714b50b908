//! Native documents, `umiak: v1`: a tree in, a job or a pipeline and diagnostics out.
//!
//! | step | module |
//! |---|---|
//! | parameters, for the templates | `params` |
//! | tree to the document as written | `raw`, by the table in [`keys`] |
//! | that to the model | `lower` |
//! | and back: a job as a document | `write` |

pub mod keys;
mod lower;
mod params;
mod raw;
pub mod schema;
pub(super) mod write;

use std::collections::HashSet;

use super::document::Reading;
use super::document::expansion;
use super::document::masked::{Secrets, masked};
use super::document::reader::Reader;
use super::document::template::{fill, words};
use super::document::tree::{Node, Value, shortened};
use super::engines;
use super::settings::Settings;
use crate::diag::{Code, Diagnostic, nearest};
use crate::mask::Known;
use crate::model::{EngineChoice, Workload};
use params::Params;
pub(super) use params::is_name;

const SECRETS: Secrets =
    Secrets { named: &["env", "params", "labels"], all: &["secrets"], params: "params", prefix: "" };

pub(super) fn read(reader: &mut Reader<'_>, root: Node, given: &[(String, String)], settings: &Settings) -> Reading {
    let (masked, mut names) = masked::<Params>(reader.source, &root, &SECRETS, Vec::new());
    let secrets = root.child("secrets").map_or(&[][..], Node::entries);
    names.extend(secrets.iter().filter_map(|(name, _)| name.text()).map(str::to_owned));
    let params = params::params(reader, &root, given);
    refuse_secret_name(reader, &root, &names);
    let (work, engine) = work(reader, root, &params, settings);
    let mut secrets = Known::default();
    names.iter().filter_map(|name| params.get(name)).for_each(|value| secrets.add(value));
    Reading { work, masked, secrets, needed: params.needed, engine, ..Reading::default() }
}

/// Steps that are skipped on request.
pub(super) fn disable(reader: &mut Reader<'_>, reading: &mut Reading, names: &[String]) {
    let Some(Workload::Pipeline(pipeline)) = &mut reading.work else { return };
    for name in names {
        let mut steps = pipeline.nodes.iter_mut().skip(1);
        let Some(node) = steps.find(|node| node.name == *name) else {
            let near = nearest(name, pipeline.nodes.iter().skip(1).map(|node| node.name.as_str()));
            let error = Diagnostic::error(Code::F0114, format!("the pipeline has no step `{}`", shortened(name)));
            reader.errors.add(|| near.iter().fold(error, |error, near| error.hint(format!("did you mean `{near}`?"))));
            continue;
        };
        node.disabled = true;
    }
}

/// The name of a job appears in lists, messages and variables, where it cannot be masked.
fn refuse_secret_name(reader: &mut Reader<'_>, root: &Node, secrets: &[String]) {
    let Some(name) = root.child("name") else { return };
    let source = reader.source;
    let mut used = words::<Params>(source.slice(name.written));
    let secrets: HashSet<&str> = secrets.iter().map(String::as_str).collect();
    if let Some(secret) = used.find(|used| secrets.contains(used)) {
        let label = format!("`{secret}` is a secret");
        reader.error(Code::F0014, name.at, "the name of a job must not contain a secret", label);
    }
}

fn work(
    reader: &mut Reader<'_>,
    mut root: Node,
    params: &Params,
    settings: &Settings,
) -> (Option<Workload>, Option<EngineChoice>) {
    // Values below `x-` are filled where they are used.
    let is_filled = |key: &Node| {
        !key.text().is_some_and(|key| matches!(key, "umiak" | "params" | "secrets") || keys::is_extension(key))
    };
    if let Some(error) = expansion::refused(reader.source, &root, params, is_filled) {
        reader.errors.add(|| error);
        return (None, None);
    }
    if let Value::Map(entries) = &mut root.value {
        for (_, value) in entries.iter_mut().filter(|(key, _)| is_filled(key)) {
            fill(reader, value, params);
        }
    }
    let raw = raw::document(reader, &root);
    let engine = raw.engine.as_ref().and_then(|name| engines::choose(reader, name, settings));
    (lower::lower(reader, &raw, settings), engine)
}

#[cfg(test)]
mod tests;
