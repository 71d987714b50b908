//! Native documents, `umiak: v1`: YAML in, a [`Job`] and diagnostics out.
//!
//! | step | module |
//! |---|---|
//! | text to a tree with places | `formats::yaml` |
//! | templates are filled on the leaves | `template` |
//! | tree to the document as it is written, every error collected | `raw`, by the table in [`keys`] |
//! | that to the model | `lower` |
//!
//! What is recognised as another format is answered by its name: those come later.

pub mod keys;
mod lower;
mod masked;
mod raw;
pub(crate) mod read;
pub mod schema;
mod template;
pub(crate) mod units;

use crate::diag::{Code, Diagnostic, Source, Span};
use crate::formats::settings::Settings;
use crate::formats::yaml::{self, Node, Value};
use crate::mask::Known;
use crate::model::Job;

/// A format of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Native,
    PaddleFlow,
    OpenPai,
    PaddleRec,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "umiak",
            Self::PaddleFlow => "PaddleFlow",
            Self::OpenPai => "OpenPAI",
            Self::PaddleRec => "PaddleRec",
        }
    }
}

/// A document that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub job: Job,
    pub notices: Vec<Diagnostic>,
    /// The text with secrets replaced.
    pub masked: String,
    /// What its secret parameters are worth: to be replaced in anything else that is written of it.
    pub secrets: Known,
}

/// The format of a text, by keys that only it has. A text that is no YAML is told by its lines, so that its errors are
/// those of its format.
pub fn recognise(text: &str) -> Option<Format> {
    let source = Source::new("", text);
    let keys = match yaml::parse(&source).map(|tree| tree.root.value) {
        Ok(Value::Map(entries)) => entries
            .into_iter()
            .filter_map(|(key, _)| match key.value {
                Value::Scalar(scalar) => Some(scalar.text),
                _ => None,
            })
            .collect(),
        Ok(_) => Vec::new(),
        Err(_) => text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(key, _)| key.trim_start_matches('{').trim_end().trim_matches(['"', '\'']).to_owned())
            .collect::<Vec<String>>(),
    };
    let has = |name: &str| keys.iter().any(|key| key == name);
    if has("umiak") {
        Some(Format::Native)
    } else if has("entry_points") {
        Some(Format::PaddleFlow)
    } else if has("taskRoles") || has("protocolVersion") {
        Some(Format::OpenPai)
    } else if (has("runner") && (has("mode") || has("phase") || has("dataset")))
        || has("hyper_parameters")
        || (has("backend") && has("cluster_type"))
    {
        Some(Format::PaddleRec)
    } else {
        None
    }
}

/// A source from the bytes of a file. `name` is for messages.
pub fn decode(name: &str, bytes: &[u8]) -> Result<Source, Diagnostic> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(Diagnostic::error(Code::F0001, format!("`{name}` is UTF-16")).hint("save it as UTF-8"));
    }
    if bytes.contains(&0) {
        return Err(Diagnostic::error(Code::F0001, format!("`{name}` is not a text file"))
            .row("found", "a NUL byte")
            .row("expected", "YAML in UTF-8"));
    }
    if bytes.len() > yaml::MAX_BYTES {
        return Err(Diagnostic::error(Code::F0005, format!("`{name}` is too large for a document"))
            .row("limit", format!("{} bytes", yaml::MAX_BYTES)));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Source::new(name, text.trim_start_matches('\u{feff}'))),
        Err(error) => {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let line = before.matches('\n').count() + 1;
            Err(Diagnostic::error(Code::F0001, format!("`{name}` is not UTF-8"))
                .row("line", line.to_string())
                .row("byte", error.valid_up_to().to_string())
                .hint("save it as UTF-8"))
        }
    }
}

/// The job that a document describes, or everything that is wrong with it. `params` are those of the command line.
pub fn parse(source: &Source, params: &[(String, String)], settings: &Settings) -> Result<Document, Vec<Diagnostic>> {
    match recognise(&source.text) {
        Some(Format::Native) => {}
        Some(other) => {
            let message = format!("`{}` is a document of {}, which is not in this version", source.name, other.name());
            return Err(vec![
                Diagnostic::error(Code::F0004, message).hint("a native document starts with `umiak: v1`"),
            ]);
        }
        None => return Err(not_recognised(source)),
    }
    let yaml::Tree { root, errors } = yaml::parse(source).map_err(|error| vec![error])?;
    let mut reader = read::Reader::new(source);
    reader.errors = errors;
    let params = template::params(&mut reader, child(&root, "params"), params);
    let (masked, names) = masked::masked(source, &root);
    refuse_secret_name(&mut reader, &root, &names);
    let Some(job) = job(&mut reader, root.clone(), &params, settings) else {
        return Err(in_order(reader.errors));
    };
    let mut secrets = Known::default();
    names.iter().filter_map(|name| params.value(name)).for_each(|value| secrets.add(value));
    Ok(Document { job, notices: reader.notices, masked, secrets })
}

/// A name is how people find a run: it stands in lists, in messages and in variables, and cannot be masked there.
fn refuse_secret_name(reader: &mut read::Reader<'_>, root: &Node, secrets: &[String]) {
    let Some(name) = child(root, "name") else { return };
    if let Some(secret) = masked::used(reader.source.slice(name.written)).find(|used| secrets.iter().any(|s| s == used))
    {
        let label = format!("`{secret}` is a secret");
        reader.error(Code::F0014, name.at, "the name of a job cannot hold a secret", label);
    }
}

fn job(reader: &mut read::Reader<'_>, mut root: Node, params: &template::Params, settings: &Settings) -> Option<Job> {
    if let Value::Map(entries) = &mut root.value {
        for (key, value) in entries {
            let is_own =
                matches!(&key.value, Value::Scalar(scalar) if matches!(scalar.text.as_str(), "umiak" | "params"));
            if !is_own {
                template::fill(reader, value, params);
            }
        }
    }
    let raw = raw::document(reader, &root);
    let job = lower::lower(reader, &raw, settings);
    job.filter(|_| reader.errors.is_empty())
}

fn child<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    let Value::Map(entries) = &node.value else { return None };
    let found = entries.iter().find(|(key, _)| matches!(&key.value, Value::Scalar(scalar) if scalar.text == name));
    found.map(|(_, value)| value).filter(|value| !value.is_null())
}

/// Errors by their places; those without one come first.
fn in_order(mut errors: Vec<Diagnostic>) -> Vec<Diagnostic> {
    errors.sort_by_key(|error| error.labels.first().map(|label| label.start));
    errors
}

fn not_recognised(source: &Source) -> Vec<Diagnostic> {
    let root = match yaml::parse(source) {
        Ok(tree) => tree.root,
        Err(error) => return vec![error],
    };
    if root.is_null() {
        return vec![
            Diagnostic::error(Code::F0003, format!("`{}` is empty", source.name))
                .hint("a native document starts with `umiak: v1`"),
        ];
    }
    let first = match &root.value {
        Value::Map(entries) => entries.first().map_or(root.at, |(key, _)| key.at),
        _ => Span::new(root.at.start, root.at.end),
    };
    let error =
        Diagnostic::error(Code::F0003, "the format of this document is not recognised").label(source.label(first, ""));
    let error = if child(&root, "roles").is_some() {
        error.hint("add `umiak: v1` as its first line")
    } else if child(&root, "apiVersion").is_some() && child(&root, "kind").is_some() {
        error.hint("this is a manifest for Kubernetes; umiak runs documents that start with `umiak: v1`")
    } else {
        error.hint("a native document starts with `umiak: v1`; `umiak schema job` prints its schema")
    };
    vec![error]
}

#[cfg(test)]
mod tests;
