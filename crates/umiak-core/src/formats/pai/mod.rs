//! Documents of OpenPAI, `protocolVersion: 2`: a tree in, a [`Job`] and diagnostics out.
//!
//! | step | module |
//! |---|---|
//! | parameters and secrets, for the templates | `values` |
//! | tree to the document as written | `raw`, by the names in `keys` |
//! | that to the model | `lower` |
//! | commands and plugins to one script | `script` |

mod keys;
pub(crate) mod lower;
mod raw;
mod script;
mod values;

use super::document::Reading;
use super::document::masked::{Secrets, masked};
use super::document::reader::Reader;
use super::document::template::words;
use super::document::tree::Node;
use crate::diag::Span;
use crate::mask::{self, Known};
use values::{Values, canonical};

const SECRETS: Secrets =
    Secrets { named: &["parameters"], all: &["secrets"], params: "parameters", prefix: "$parameters." };

pub(super) fn read(reader: &mut Reader<'_>, root: &Node, given: &[(String, String)]) -> Reading {
    let (masked, names) = masked::<Values>(reader.source, root, &SECRETS);
    let (values, needed) = values(reader, root, given);
    let raw = raw::document(reader, root);
    let job = lower::lower(reader, root, &raw, &values);
    let mut secrets = Known::default();
    names.iter().filter_map(|name| values.get(&format!("$parameters.{name}"))).for_each(|value| secrets.add(value));
    values.below("$secrets.").for_each(|(_, value)| secrets.add(value));
    Reading { job, masked, secrets, needed }
}

/// Parameters and secrets. Of secrets that are masked, those that are used must be given again.
fn values(reader: &mut Reader<'_>, root: &Node, given: &[(String, String)]) -> (Values, Vec<(String, Span)>) {
    let mut values = Values::default();
    for (name, prefix) in [("parameters", "$parameters"), ("secrets", "$secrets")] {
        match root.child(name) {
            Some(node) if !node.entries().is_empty() => values.add(prefix, node),
            Some(node) if name == "parameters" || !is_masked(node) => {
                reader.open_entries(&format!("`{name}`"), node, []);
            }
            _ => {}
        }
    }
    let hidden: Vec<String> = values
        .below("$secrets.")
        .filter(|(_, value)| is_mask(value))
        .map(|(name, _)| format!("$secrets.{name}"))
        .collect();
    for name in &hidden {
        values.set(name, None);
    }
    let is_hidden = root.child("secrets").is_some_and(is_masked);
    for word in words::<Values>(&reader.source.text).map(canonical) {
        if is_hidden && word.starts_with("$secrets.") && !values.has(&word) {
            values.set(&word, None);
        }
    }
    for (name, value) in given {
        let full = if name.starts_with("secrets.") { format!("${name}") } else { format!("$parameters.{name}") };
        if values.has(&full) {
            values.set(&full, Some(value.clone()));
        } else {
            reader.unknown_parameter(name, values.below("$parameters.").map(|(name, _)| name));
        }
    }
    let used: Vec<String> = words::<Values>(&reader.source.text).map(canonical).collect();
    let mut needed: Vec<(String, Span)> = Vec::new();
    let at = root.entries().iter().find(|(key, _)| key.text() == Some("secrets")).map_or(root.at, |(key, _)| key.at);
    for name in used.iter().filter(|name| values.has(name) && values.get(name).is_none()) {
        let name = name.trim_start_matches('$').to_owned();
        if !needed.iter().any(|(other, _)| *other == name) {
            needed.push((name, at));
        }
    }
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
