//! Native documents, `umiak: v1`: a tree in, a [`Job`] and diagnostics out.
//!
//! | step | module |
//! |---|---|
//! | parameters, for the templates | `params` |
//! | tree to the document as it is written | `raw`, by the table in [`keys`] |
//! | that to the model | `lower` |

pub mod keys;
mod lower;
mod params;
mod raw;
pub mod schema;

use super::document::masked::{Secrets, masked};
use super::document::reader::Reader;
use super::document::template::{fill, words};
use super::document::tree::{Node, Value};
use super::document::{Document, Tree};
use super::settings::Settings;
use crate::diag::{Code, Diagnostic, Source};
use crate::mask::Known;
use crate::model::Job;
use params::Params;

const SECRETS: Secrets = Secrets { named: &["env", "params", "labels"], all: &[], params: "params", prefix: "" };

/// The job that a document describes, or everything that is wrong with it. `given` are the parameters of the command
/// line.
pub(super) fn parse(
    source: &Source,
    Tree { root, errors }: Tree,
    given: &[(String, String)],
    settings: &Settings,
) -> Result<Document, Vec<Diagnostic>> {
    let mut reader = Reader::new(source, errors);
    let params = params::params(&mut reader, root.child("params"), given);
    let (masked, names) = masked::<Params>(source, &root, &SECRETS);
    refuse_secret_name(&mut reader, &root, &names);
    let Some(job) = job(&mut reader, root, &params, settings) else {
        return Err(reader.into_errors());
    };
    let mut secrets = Known::default();
    names.iter().filter_map(|name| params.get(name)).for_each(|value| secrets.add(value));
    Ok(Document { job, notices: reader.notices, masked, secrets })
}

/// A name is how people find a run: it stands in lists, in messages and in variables, and cannot be masked there.
fn refuse_secret_name(reader: &mut Reader<'_>, root: &Node, secrets: &[String]) {
    let Some(name) = root.child("name") else { return };
    let source = reader.source;
    let mut used = words::<Params>(source.slice(name.written));
    if let Some(secret) = used.find(|used| secrets.iter().any(|secret| secret == used)) {
        let label = format!("`{secret}` is a secret");
        reader.error(Code::F0014, name.at, "the name of a job cannot hold a secret", label);
    }
}

fn job(reader: &mut Reader<'_>, mut root: Node, params: &Params, settings: &Settings) -> Option<Job> {
    if let Value::Map(entries) = &mut root.value {
        for (key, value) in entries {
            if !matches!(key.text(), Some("umiak" | "params")) {
                fill(reader, value, params);
            }
        }
    }
    let raw = raw::document(reader, &root);
    let job = lower::lower(reader, &raw, settings);
    job.filter(|_| reader.errors.is_empty())
}

#[cfg(test)]
mod tests;
