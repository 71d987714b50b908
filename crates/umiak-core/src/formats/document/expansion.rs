//! How far aliases and templates expand a document: one budget for both.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::template::{Templates, words};
use super::tree::{Node, Value};
use crate::diag::{Code, Diagnostic, Source, Span};

/// Memory that the expansion of a document may take.
pub(crate) const MAX_MEMORY: usize = 64 << 20;
/// A text is held at most so often at the same time: in the tree, in the job, in the plan and in what is printed.
const COPIES: usize = 8;
/// Bytes that aliases and templates may add to a document.
pub(crate) const MAX_EXPANSION: usize = MAX_MEMORY / COPIES;

/// By the position of an anchor, or the name of a parameter.
type Shares = HashMap<(Option<usize>, String), Share>;

/// What one anchor or one parameter adds.
struct Share {
    /// `*name` or `{{ name }}`.
    name: String,
    bytes: usize,
    uses: usize,
    /// Where it is used first.
    at: Span,
    /// Where its value is written, for an anchor.
    written: Option<Span>,
}

/// The error about a document that expands too far. `is_filled` selects the entries of the root whose templates are
/// filled.
pub(crate) fn refused<T: Templates>(
    source: &Source,
    root: &Node,
    templates: &T,
    is_filled: impl Fn(&Node) -> bool,
) -> Option<Diagnostic> {
    let mut shares = Shares::new();
    for (key, value) in root.entries() {
        aliases(source, value, &mut shares);
        if is_filled(key) {
            insertions::<T>(value, templates, &mut shares);
        }
    }
    let total: usize = shares.values().map(|share| share.bytes).fold(0, usize::saturating_add);
    if total <= MAX_EXPANSION {
        return None;
    }
    // Of equal ones the first, so that the message is always the same.
    let largest = shares.into_values().max_by_key(|share| (share.bytes, std::cmp::Reverse(share.at.start)))?;
    let times = if largest.uses == 1 { "once".to_owned() } else { format!("{} times", largest.uses) };
    let label = format!("`{}` is used {times} and adds the most: {}", largest.name, size(largest.bytes));
    let error = too_far().label(source.label(largest.at, label)).row("added", size(total));
    let error = match largest.written {
        Some(written) => error.label(source.label(written, "written here")),
        None => error,
    };
    Some(error.row("limit", size(MAX_EXPANSION)))
}

pub(crate) fn too_far() -> Diagnostic {
    Diagnostic::error(Code::F0008, "aliases and parameters expand the document too far")
        .hint("put long values into files, and pass the names of the files")
}

/// What the aliases below a node add, by anchor.
fn aliases(source: &Source, node: &Node, shares: &mut Shares) {
    if node.at.start != node.written.start {
        let name = source.slice(node.at).chars().take(60).collect();
        let share = Share { name, bytes: bytes(node), uses: 1, at: node.at, written: Some(node.written) };
        return add(shares, (Some(node.written.start), String::new()), share);
    }
    match &node.value {
        Value::Scalar(_) => {}
        Value::List(items) => items.iter().for_each(|item| aliases(source, item, shares)),
        Value::Map(entries) => {
            for (key, value) in entries {
                aliases(source, key, shares);
                aliases(source, value, shares);
            }
        }
    }
}

/// What the templates below a node insert, by parameter.
fn insertions<T: Templates>(node: &Node, templates: &T, shares: &mut Shares) {
    match &node.value {
        Value::Scalar(scalar) => {
            for word in words::<T>(&scalar.text) {
                let Ok(value) = templates.value(word) else { continue };
                let name = format!("{} {word} {}", T::OPEN, T::CLOSE);
                let share = Share { name, bytes: value.len(), uses: 1, at: node.at, written: None };
                add(shares, (None, word.to_owned()), share);
            }
        }
        Value::List(items) => items.iter().for_each(|item| insertions(item, templates, shares)),
        Value::Map(entries) => entries.iter().for_each(|(_, value)| insertions(value, templates, shares)),
    }
}

fn add(shares: &mut Shares, key: (Option<usize>, String), share: Share) {
    match shares.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(share);
        }
        Entry::Occupied(mut entry) => {
            let known = entry.get_mut();
            known.bytes = known.bytes.saturating_add(share.bytes);
            known.uses += 1;
        }
    }
}

/// Bytes of all texts of a node.
fn bytes(node: &Node) -> usize {
    match &node.value {
        Value::Scalar(scalar) => scalar.text.len(),
        Value::List(items) => items.iter().map(bytes).sum(),
        Value::Map(entries) => entries.iter().map(|(key, value)| bytes(key) + bytes(value)).sum(),
    }
}

fn size(bytes: usize) -> String {
    const UNITS: [(&str, usize); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = UNITS.iter().find(|(_, unit)| bytes >= *unit);
    unit.map_or_else(|| format!("{bytes} bytes"), |(name, unit)| format!("{:.1} {name}", bytes as f64 / *unit as f64))
}
