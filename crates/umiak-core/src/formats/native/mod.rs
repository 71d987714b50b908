//! Native documents, `umiak: v1`: a tree in, a [`Job`] and diagnostics out.
//!
//! | step | module |
//! |---|---|
//! | parameters, for the templates | `params` |
//! | tree to the document as written | `raw`, by the table in [`keys`] |
//! | that to the model | `lower` |

pub mod keys;
mod lower;
mod params;
mod raw;
pub mod schema;

use std::collections::HashSet;

use super::document::expansion;
use super::document::masked::{Secrets, masked};
use super::document::reader::Reader;
use super::document::template::{fill, words};
use super::document::tree::{Node, Value};
use super::document::{Checked, Document, Tree};
use super::settings::Settings;
use crate::diag::{Code, Diagnostic, Source};
use crate::mask::Known;
use crate::model::Job;
use params::Params;

const SECRETS: Secrets = Secrets { named: &["env", "params", "labels"], all: &[], params: "params", prefix: "" };

/// The job that a document describes, or all its errors. `given` are the parameters of the command line.
pub(super) fn parse(
    source: &Source,
    Tree { root, errors }: Tree,
    given: &[(String, String)],
    settings: &Settings,
) -> Result<Document, Vec<Diagnostic>> {
    let mut reader = Reader::new(source, errors);
    let (masked, names) = masked::<Params>(source, &root, &SECRETS);
    let (job, params) = read(&mut reader, root, &names, given, settings);
    for (name, at) in &params.needed {
        reader.error(Code::F0034, *at, format!("parameter `{name}` has no value"), "no default");
        reader.hint(format!("set it with `-p {name}=…`"));
    }
    let Some(job) = job.filter(|_| reader.errors.is_empty()) else {
        return Err(reader.errors.into_sorted());
    };
    let mut secrets = Known::default();
    names.iter().filter_map(|name| params.get(name)).for_each(|value| secrets.add(value));
    Ok(Document { job, notices: reader.notices.into_vec(), masked, secrets })
}

/// Checks a document before its parameters are given.
pub(super) fn check(
    source: &Source,
    Tree { root, errors }: Tree,
    given: &[(String, String)],
    settings: &Settings,
) -> Checked {
    let mut reader = Reader::new(source, errors);
    let (_, names) = masked::<Params>(source, &root, &SECRETS);
    let (job, params) = read(&mut reader, root, &names, given, settings);
    let needed: Vec<String> = params.needed.into_iter().map(|(name, _)| name).collect();
    let Reader { errors, notices, .. } = reader;
    let job = job.filter(|_| errors.is_empty() && needed.is_empty());
    Checked { job, needed, diagnostics: if errors.is_empty() { notices.into_vec() } else { errors.into_sorted() } }
}

fn read(
    reader: &mut Reader<'_>,
    root: Node,
    secrets: &[String],
    given: &[(String, String)],
    settings: &Settings,
) -> (Option<Job>, Params) {
    let params = params::params(reader, root.child("params"), given);
    refuse_secret_name(reader, &root, secrets);
    let job = job(reader, root, &params, settings);
    (job, params)
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

fn job(reader: &mut Reader<'_>, mut root: Node, params: &Params, settings: &Settings) -> Option<Job> {
    // Values below `x-` are filled where they are used.
    let is_filled =
        |key: &Node| !key.text().is_some_and(|key| matches!(key, "umiak" | "params") || keys::is_extension(key));
    if let Some(error) = expansion::refused(reader.source, &root, params, is_filled) {
        reader.errors.add(|| error);
        return None;
    }
    if let Value::Map(entries) = &mut root.value {
        for (_, value) in entries.iter_mut().filter(|(key, _)| is_filled(key)) {
            fill(reader, value, params);
        }
    }
    let raw = raw::document(reader, &root);
    lower::lower(reader, &raw, settings)
}

#[cfg(test)]
mod tests;
