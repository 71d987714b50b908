//! The text of a document without its secrets. They are recognised by the names of keys, and by their shape in any text.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ffi::OsString;
use std::ops::Range;

use super::template::{Templates, words};
use super::tree::{Node, Value};
use crate::diag::{Source, Span};
use crate::mask;

/// Where a format may contain secrets.
pub(crate) struct Secrets {
    /// Mappings whose keys show which values are secrets.
    pub(crate) named: &'static [&'static str],
    /// Mappings at the root in which every value is a secret.
    pub(crate) all: &'static [&'static str],
    /// The mapping of parameters, at the root.
    pub(crate) params: &'static str,
    /// The prefix of a parameter's name in templates.
    pub(crate) prefix: &'static str,
}

/// The masked text, and the names of the secret parameters. `also` are leaves that the format knows to be secrets.
pub(crate) fn masked<T: Templates>(
    source: &Source,
    root: &Node,
    secrets: &Secrets,
    also: Vec<Span>,
) -> (String, Vec<String>) {
    let mut places: Vec<(Span, String)> = also.into_iter().map(|span| (span, format!("\"{}\"", mask::MASK))).collect();
    let texts = Texts { source, compact: Source::new("", compact::<T>(&source.text)) };
    walk(&texts, root, Place::Root, secrets, &mut places);
    in_order(&mut places);
    let names = secret_params::<T>(source, root, secrets, &mut places);
    in_order(&mut places);
    let mut text = String::with_capacity(source.text.len());
    let mut end = 0;
    for (span, replacement) in places {
        if span.start < end {
            continue;
        }
        text += source.slice(Span::new(end, span.start));
        text += &replacement;
        end = span.end;
    }
    (text + source.text.get(end..).unwrap_or(""), names)
}

/// A document as written, and [`compact`].
struct Texts<'s> {
    source: &'s Source,
    compact: Source,
}

/// The same text without blanks in templates: each is a part of one word. All else keeps its place.
fn compact<T: Templates>(text: &str) -> String {
    let mut compact = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(T::OPEN) {
        let Some((word, after)) = behind.split_once(T::CLOSE) else { break };
        compact.extend([before, T::OPEN, &word.replace([' ', '\t'], "_"), T::CLOSE]);
        rest = after;
    }
    compact + rest
}

/// Sorts places, each once. A part of a command comes after the whole, which then covers it.
fn in_order(places: &mut Vec<(Span, String)>) {
    places.sort_by_key(|(span, _)| (span.start, Reverse(span.end)));
    places.dedup_by_key(|(span, _)| *span);
}

/// Where a node is.
#[derive(Clone, Copy)]
enum Place<'n> {
    Root,
    /// Below a key.
    Below(&'n str),
    /// Anywhere below a mapping of secrets.
    Secret,
}

fn walk(texts: &Texts<'_>, node: &Node, place: Place<'_>, secrets: &Secrets, places: &mut Vec<(Span, String)>) {
    let is_all = matches!(place, Place::Secret);
    match &node.value {
        Value::List(items) if !is_all && items.iter().all(|item| item.text().is_some()) => {
            words_of(items, texts, places);
        }
        Value::List(items) => {
            for item in items {
                walk(texts, item, if is_all { place } else { Place::Below("") }, secrets, places);
            }
        }
        Value::Map(entries) => {
            for (key, value) in entries {
                let name = key.text().unwrap_or("");
                // Anchors below `x-` may contain anything, including variables.
                let is_named = matches!(place, Place::Below(parent) if secrets.named.contains(&parent) || parent.starts_with("x-"));
                let is_secret = is_named && mask::is_secret(name) || mask::clearly_names_a_secret(name);
                if is_secret && is_value(value) {
                    places.push((value.written, format!("\"{}\"", mask::MASK)));
                    continue;
                }
                let below = match place {
                    Place::Secret => Place::Secret,
                    Place::Root if secrets.all.contains(&name) => Place::Secret,
                    _ => Place::Below(name),
                };
                walk(texts, value, below, secrets, places);
            }
        }
        Value::Scalar(_) if is_all && is_value(node) => places.push((node.written, format!("\"{}\"", mask::MASK))),
        Value::Scalar(_) => text_of(node, texts, places),
    }
}

/// A list of words may be a command: the word after a flag that names a secret is one.
fn words_of(items: &[Node], texts: &Texts<'_>, places: &mut Vec<(Span, String)>) {
    let words: Vec<OsString> = items.iter().map(|item| item.text().unwrap_or_default().into()).collect();
    for (item, masked) in items.iter().zip(mask::words(&words)) {
        if masked == *mask::MASK && is_value(item) {
            places.push((item.written, format!("\"{}\"", mask::MASK)));
        } else {
            text_of(item, texts, places);
        }
    }
}

/// The secrets in a leaf, each at its own place: the rest may use parameters that are no secrets.
fn text_of(node: &Node, texts: &Texts<'_>, places: &mut Vec<(Span, String)>) {
    let written = texts.compact.slice(node.written);
    let inner = inside(written);
    let secrets = mask::secrets_of(&written[inner.clone()]);
    if inner.start == 0 && secrets.first().is_some_and(|secret| secret.start == 0) {
        // A leaf that begins with an asterisk needs quotes.
        let mut masked = texts.source.slice(node.written).to_owned();
        secrets.into_iter().rev().for_each(|secret| masked.replace_range(secret, mask::MASK));
        return places.push((node.written, format!("{masked:?}")));
    }
    let at = node.written.start + inner.start;
    places.extend(
        secrets.into_iter().map(|secret| (Span::new(at + secret.start, at + secret.end), mask::MASK.to_owned())),
    );
}

/// A leaf without its YAML quotes, which are not the shell's.
fn inside(written: &str) -> Range<usize> {
    // The text of a block may begin with a quote.
    let is_quoted = written.len() > 1 && ['"', '\''].iter().any(|c| written.starts_with(*c) && written.ends_with(*c));
    if is_quoted { 1..written.len() - 1 } else { 0..written.len() }
}

fn is_value(node: &Node) -> bool {
    node.text().is_some() && !node.is_null()
}

/// A parameter that fills a secret variable is a secret, whatever its own name is.
fn secret_params<T: Templates>(
    source: &Source,
    root: &Node,
    secrets: &Secrets,
    places: &mut Vec<(Span, String)>,
) -> Vec<String> {
    let masked: String = places.iter().map(|(span, _)| source.slice(*span)).collect::<Vec<_>>().join("\n");
    let used: HashSet<&str> = words::<T>(&masked).filter_map(|word| word.strip_prefix(secrets.prefix)).collect();
    let mut names = Vec::new();
    for (key, value) in root.child(secrets.params).map_or(&[][..], Node::entries) {
        let Some(name) = key.text() else { continue };
        let is_used = used.contains(name);
        if is_used || mask::is_secret(name) {
            names.push(name.to_owned());
        }
        if is_used && is_value(value) {
            places.push((value.written, format!("\"{}\"", mask::MASK)));
        }
    }
    names
}
