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
use super::document::tree::{Node, Value};
use crate::diag::{Code, Span};
use crate::mask::{self, Known};
use crate::model::{Exits, Job, Restart, Success, Workload};
pub(super) use convert::{Conversion, convert};
use values::{Below, Values, canonical};

const SECRETS: Secrets =
    Secrets { named: &["parameters"], all: &["secrets"], params: "parameters", prefix: "$parameters." };

pub(super) fn read(reader: &mut Reader<'_>, root: &Node, given: &[(String, String)]) -> Reading {
    let (masked, names) = masked::<Values>(reader.source, root, &SECRETS, Vec::new());
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
    let work = job.map(|job| Workload::Job(Box::new(job)));
    Reading { work, masked, secrets, needed, ..Reading::default() }
}

/// OpenPAI's own rules in the two places where umiak has others: a job whose instances have all failed may succeed, and
/// failures of the platform are repeated at once, as often as it takes.
pub fn make_strict(job: &mut Job) {
    job.policy.success = Success::End;
    let rules = job.roles.iter_mut().map(|role| &mut role.restart.rule).filter(|rule| rule.max_platform > 0);
    for rule in rules.chain([&mut job.policy.restart]) {
        (rule.max_platform, rule.platform_backoff) = (Restart::UNLIMITED, Some(Duration::ZERO));
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
    for name in &used {
        let is_secret = name.starts_with("$secrets.");
        let is_mask = || is_secret && values.written(name).map_or(is_hidden, is_mask);
        if values.node(name).is_some_and(Node::is_null) || is_mask() {
            values.given.insert(name.clone(), None);
        }
    }
    for (name, value) in given {
        let full = full_name(name);
        match values.node(&full) {
            Some(Node { value: Value::Map(entries), at, .. }) => {
                let part = entries.iter().find_map(|(key, _)| key.text()).unwrap_or("PART");
                reader.error(Code::F0033, *at, format!("`{name}` is a mapping"), "has no value of its own");
                reader.hint(format!("set a part of it: `-p {name}.{part}=…`"));
            }
            None if !values.given.contains_key(&full) => {
                let secrets: Vec<String> = values.secrets.names().map(|name| format!("secrets.{name}")).collect();
                let kind = if full.starts_with("$secrets.") { "secrets." } else { "" };
                let plain = values.parameters.names().filter(|_| kind.is_empty());
                reader.unknown_parameter(name, kind, plain.chain(secrets.iter().map(String::as_str)));
            }
            _ => {
                values.given.insert(full, Some(value.clone()));
            }
        }
    }
    for (name, _) in given {
        refuse_part(reader, name, &values, &used);
    }
    let place = |name: &str| {
        let key = |node: &Node, name: &str| {
            node.entries().iter().find(|(key, _)| key.text() == Some(name)).map(|(key, _)| key.at)
        };
        let mut parts = name.trim_start_matches('$').split('.');
        let (kind, first) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        root.child(kind).and_then(|node| key(node, first)).or_else(|| key(root, kind)).unwrap_or(root.at)
    };
    let is_needed = |name: &&String| values.given.get(*name) == Some(&None);
    let needed = used.iter().filter(is_needed).map(|name| (given_name(name).to_owned(), place(name))).collect();
    (values, needed)
}

/// The full name of a parameter of the command line.
fn full_name(given: &str) -> String {
    let name = canonical(given);
    if name.starts_with("secrets.") { format!("${name}") } else { format!("$parameters.{name}") }
}

/// The name on the command line of a full name.
fn given_name(full: &str) -> &str {
    full.strip_prefix("$parameters.").unwrap_or(full.trim_start_matches('$'))
}

/// Refuses a value for a list of which an item is used, and for an item of a list that is used as a whole: the template
/// would keep the value of the document.
fn refuse_part(reader: &mut Reader<'_>, name: &str, values: &Values<'_>, used: &BTreeSet<String>) {
    let full = full_name(name);
    let below = format!("{full}.");
    let parts = used.range(below.clone()..).take_while(|one| one.starts_with(&below)).map(String::as_str);
    let wholes = full.match_indices('.').map(|(at, _)| &full[..at]).filter(|whole| used.contains(*whole));
    let is_old = |one: &&str| !values.given.contains_key(*one) && values.written(one).is_some();
    if let Some(one) = parts.chain(wholes).find(is_old) {
        let at = values.node(one).map_or_else(Span::default, |node| node.at);
        reader.error(Code::F0033, at, format!("`-p {name}=…` does not change `<% {one} %>`"), "keeps this value");
        reader.hint(format!("set it with `-p {}=…`", given_name(one)));
    }
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
