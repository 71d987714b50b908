//! The text of a document without its secrets: by the names of variables, parameters and labels, and passwords in
//! addresses anywhere.

use crate::diag::{Source, Span};
use crate::formats::yaml::{Kind, Node, Value};
use crate::mask;

/// The text, and the names of the parameters that are secrets.
pub(super) fn masked(source: &Source, root: &Node) -> (String, Vec<String>) {
    let mut places: Vec<(Span, String)> = Vec::new();
    walk(source, root, false, &mut places);
    let names = secret_params(source, root, &mut places);
    places.sort_by_key(|(span, _)| span.start);
    places.dedup_by_key(|(span, _)| *span);
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

/// `has_names`: keys of this mapping are names that may tell of secrets.
fn walk(source: &Source, node: &Node, has_names: bool, places: &mut Vec<(Span, String)>) {
    match &node.value {
        Value::List(items) => items.iter().for_each(|item| walk(source, item, false, places)),
        Value::Map(entries) => {
            for (key, value) in entries {
                let name = match &key.value {
                    Value::Scalar(scalar) => scalar.text.as_str(),
                    _ => "",
                };
                let is_value = matches!(&value.value, Value::Scalar(scalar) if scalar.kind != Kind::Null);
                if has_names && is_value && mask::is_secret(name) {
                    places.push((value.written, format!("\"{}\"", mask::MASK)));
                } else {
                    walk(source, value, matches!(name, "env" | "params" | "labels"), places);
                }
            }
        }
        Value::Scalar(_) => {
            let written = source.slice(node.written);
            let without = mask::masked("", written);
            if without != written {
                places.push((node.written, without));
            }
        }
    }
}

/// The parameters that a text names.
pub(super) fn used(text: &str) -> impl Iterator<Item = &str> {
    text.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0.trim()))
}

/// A parameter that fills a secret variable is a secret, whatever its own name is.
fn secret_params(source: &Source, root: &Node, places: &mut Vec<(Span, String)>) -> Vec<String> {
    let secrets: String = places.iter().map(|(span, _)| source.slice(*span)).collect::<Vec<_>>().join("\n");
    let used: Vec<&str> = used(&secrets).collect();
    let mut names = Vec::new();
    let Some(params) = super::child(root, "params") else { return names };
    let Value::Map(entries) = &params.value else { return names };
    for (key, value) in entries {
        let Value::Scalar(name) = &key.value else { continue };
        let is_used = used.contains(&name.text.as_str());
        if is_used || mask::is_secret(&name.text) {
            names.push(name.text.clone());
        }
        if is_used && matches!(&value.value, Value::Scalar(scalar) if scalar.kind != Kind::Null) {
            places.push((value.written, format!("\"{}\"", mask::MASK)));
        }
    }
    names
}
