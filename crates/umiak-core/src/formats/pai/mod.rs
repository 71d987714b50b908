//! Documents of OpenPAI, `protocolVersion: 2`: a tree in, a [`Job`] and diagnostics out.
//!
//! | step | module |
//! |---|---|
//! | parameters and secrets, for the templates | `values` |
//! | tree to the document as written | `raw`, by the tables in [`keys`] |
//! | that to the model | `lower` |
//! | commands and plugins to one script | `script` |
//! | the job as a native document | `convert` |

mod convert;
pub mod keys;
mod lower;
mod raw;
mod script;
mod values;

use std::collections::BTreeSet;
use std::time::Duration;

use super::document::Reading;
use super::document::masked::{Secrets, masked};
use super::document::reader::Reader;
use super::document::template::words;
use super::document::tree::Node;
use crate::diag::Span;
use crate::mask::{self, Known};
use crate::model::{Exits, Job, Success};
pub(super) use convert::{Conversion, convert};
use values::{Below, Values, canonical};

const SECRETS: Secrets =
    Secrets { named: &["parameters"], all: &["secrets"], params: "parameters", prefix: "$parameters." };

pub(super) fn read(reader: &mut Reader<'_>, root: &Node, given: &[(String, String)]) -> Reading {
    let (masked, names) = masked::<Values>(reader.source, root, &SECRETS);
    let (values, needed) = values(reader, root, given);
    let raw = raw::document(reader, root);
    let job = lower::lower(reader, root, &raw, &values);
    let mut secrets = Known::default();
    let mut add = |value: &str| {
        secrets.add(value);
        // As it is inside the quotes of a script.
        if value.contains('\'') {
            secrets.add(&value.replace('\'', "'\\''"));
        }
    };
    for name in &names {
        let name = format!("$parameters.{name}");
        values.written(&name).into_iter().for_each(&mut add);
    }
    values.parameters.secrets(false, &mut add);
    values.secrets.secrets(true, &mut add);
    of_prerequisites(root, |_, value| add(value));
    for (name, value) in &values.given {
        let is_secret = name.starts_with("$secrets.") || name.split('.').any(mask::is_secret);
        let is_used_as_one = name.strip_prefix("$parameters.").is_some_and(|name| names.iter().any(|one| one == name));
        if is_secret || is_used_as_one {
            value.as_deref().into_iter().for_each(&mut add);
        }
    }
    Reading { job, masked, secrets, needed }
}

/// OpenPAI's own rules in the two places where umiak has others: a job whose instances have all failed may succeed, and
/// failures of the platform are repeated at once, as often as it takes.
pub fn make_strict(job: &mut Job) {
    job.policy.success = Success::End;
    let rules = job.roles.iter_mut().map(|role| &mut role.restart.rule).filter(|rule| rule.max_platform > 0);
    for rule in rules.chain([&mut job.policy.restart]) {
        (rule.max_platform, rule.platform_backoff) = (u32::MAX, Some(Duration::ZERO));
    }
}

/// True if the job has these rules.
pub fn is_strict(job: &Job) -> bool {
    let mut strict = job.clone();
    make_strict(&mut strict);
    job.policy.exits == Some(Exits::Pai) && strict == *job
}

/// Calls `take` with the secrets of prerequisites: their keys and values.
fn of_prerequisites(root: &Node, mut take: impl FnMut(&str, &str)) {
    let prerequisites = root.child("prerequisites").map_or(&[][..], Node::one_or_many);
    for (key, value) in prerequisites.iter().flat_map(Node::entries) {
        let name = key.text().unwrap_or_default();
        // The name of a user and of a registry are no secrets.
        let (name, value) = if name == "auth" { ("password", value.child("password")) } else { (name, Some(value)) };
        if let Some(value) = value {
            Below::new(value).secrets(mask::is_secret(name), &mut |value| take(name, value));
        }
    }
}

/// Parameters and secrets. Of secrets that are masked, those that are used must be given again.
fn values<'n>(
    reader: &mut Reader<'_>,
    root: &'n Node,
    given: &[(String, String)],
) -> (Values<'n>, Vec<(String, Span)>) {
    let mut values = Values::default();
    let mut below = |kind: &'static str| {
        let name = &kind[1..];
        let node = root.child(name).filter(|node| name != "secrets" || !is_masked(node));
        match node.map(|node| reader.open_entries(&format!("`{name}`"), node, []).map(|_| node)) {
            Some(Some(node)) => Below::new(node),
            Some(None) => {
                values.broken.push(kind);
                Below::default()
            }
            None => Below::default(),
        }
    };
    (values.parameters, values.secrets) = (below("$parameters"), below("$secrets"));
    let is_hidden = root.child("secrets").is_some_and(is_masked);
    let used: BTreeSet<String> = words::<Values>(&reader.source.text).map(canonical).collect();
    for name in used.iter().filter(|name| name.starts_with("$secrets.")) {
        if values.written(name).map_or(is_hidden, is_mask) {
            values.given.insert(name.clone(), None);
        }
    }
    for (name, value) in given {
        let full = if name.starts_with("secrets.") { format!("${name}") } else { format!("$parameters.{name}") };
        if values.given.contains_key(&full) || values.written(&full).is_some() {
            values.given.insert(full, Some(value.clone()));
        } else {
            reader.unknown_parameter(name, values.parameters.names());
        }
    }
    let at = root.entries().iter().find(|(key, _)| key.text() == Some("secrets")).map_or(root.at, |(key, _)| key.at);
    let is_needed = |name: &&String| values.given.get(*name) == Some(&None);
    let needed = used.iter().filter(is_needed).map(|name| (name.trim_start_matches('$').to_owned(), at)).collect();
    (values, needed)
}

/// `secrets: "******"`, as OpenPAI shows the document of a job.
fn is_masked(node: &Node) -> bool {
    node.text().is_some_and(is_mask)
}

fn is_mask(text: &str) -> bool {
    text == mask::MASK || (text.len() >= 6 && text.bytes().all(|byte| byte == b'*'))
}

#[cfg(test)]
mod tests;
