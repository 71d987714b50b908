//! `{{ name }}` in the texts of a document: filled after parsing, on the leaves, never on the raw text. A value is taken
//! as it is, so what a parameter holds can neither add a template nor change the shape of the document.

use std::collections::BTreeMap;

use super::read::{At, Reader};
use crate::diag::{Code, Diagnostic, Source, Span, nearest};
use crate::formats::yaml::{Kind, Node, Scalar, Value};

/// Parameters and what they are worth.
#[derive(Debug, Default)]
pub(super) struct Params {
    values: BTreeMap<String, Option<String>>,
}

impl Params {
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.as_deref()
    }
}

/// The document's `params`, with `given` (`-p`) over them.
pub(super) fn params(reader: &mut Reader<'_>, node: Option<&Node>, given: &[(String, String)]) -> Params {
    let mut params = Params::default();
    for (name, value) in node.and_then(|node| reader.named("`params`", node)).unwrap_or_default() {
        if !is_name(&name.value) {
            let message = format!("`{}` cannot be the name of a parameter", name.value);
            reader.error(Code::F0014, name.at, message, "letters, digits, `_`, `-` and `.`, beginning with a letter");
            continue;
        }
        let At { value: name, at } = name;
        if let Some(map) = unquoted(value) {
            tell_unquoted(reader, value.at, &map);
            params.values.insert(name, Some(String::new()));
            continue;
        }
        let has_no_default = value.is_null();
        let default = if has_no_default { None } else { reader.text(&format!("parameter `{name}`"), value) };
        let over = given.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.clone());
        let value = over.or(default.map(|text| text.value));
        if value.is_none() && has_no_default {
            reader.error(Code::F0034, at, format!("parameter `{name}` has no value"), "no default");
            reader.hint(format!("give it one: `-p {name}=…`"));
        }
        params.values.insert(name, value);
    }
    for (name, _) in given {
        if !params.values.contains_key(name) {
            let error = Diagnostic::error(Code::F0033, format!("`{}` has no parameter `{name}`", reader.source.name));
            let known: Vec<&str> = params.values.keys().map(String::as_str).collect();
            reader.errors.push(match nearest(name, known.iter().copied()) {
                Some(near) => error.hint(format!("did you mean `-p {near}=…`?")),
                None if known.is_empty() => error.hint("it has none; parameters stand under `params`"),
                None => error.row("parameters", known.join(", ")),
            });
        }
    }
    params
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

/// Fills every text below a node.
pub(super) fn fill(reader: &mut Reader<'_>, node: &mut Node, params: &Params) {
    if let Some(name) = unquoted(node) {
        tell_unquoted(reader, node.at, &name);
        node.value = broken();
        return;
    }
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(|item| fill(reader, item, params)),
        Value::Map(entries) => entries.iter_mut().for_each(|(_, value)| fill(reader, value, params)),
        Value::Scalar(scalar) if scalar.kind == Kind::Text && scalar.text.contains("{{") => {
            let before = reader.errors.len();
            let text = filled(reader, &scalar.text, node.written, params);
            let is_fine = reader.errors.len() == before;
            node.value = if is_fine { Value::Scalar(Scalar { text, kind: Kind::Filled }) } else { broken() };
        }
        Value::Scalar(_) => {}
    }
}

fn broken() -> Value {
    Value::Scalar(Scalar { text: String::new(), kind: Kind::Broken })
}

fn filled(reader: &mut Reader<'_>, text: &str, written: Span, params: &Params) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    let mut count = 0;
    while let Some(start) = rest.find("{{") {
        result += &rest[..start];
        let inner = &rest[start + 2..];
        let at = place(reader.source, written, count, inner);
        count += 1;
        let Some(end) = inner.find("}}") else {
            reader.error(Code::F0032, at, "a template without its end", "`}}` is missing");
            reader.hint("for braces that are meant literally write `{{ '{{' }}`");
            return result;
        };
        let word = inner[..end].trim();
        rest = &inner[end + 2..];
        if matches!(word, "'{{'" | "\"{{\"") {
            result += "{{";
            // The braces inside the quotes were one of those that are counted.
            count += 1;
        } else if !is_name(word) {
            reader.error(Code::F0032, at, format!("`{word}` is not the name of a parameter"), "");
            reader.hint("for braces that are meant literally write `{{ '{{' }}`");
        } else if let Some(value) = params.values.get(word) {
            result += value.as_deref().unwrap_or_default();
        } else {
            let near = nearest(word, params.values.keys().map(String::as_str));
            let label = near.map_or("not under `params`".to_owned(), |near| format!("did you mean `{near}`?"));
            reader.error(Code::F0030, at, format!("there is no parameter `{word}`"), label);
        }
    }
    result + rest
}

/// Where the `count`th template of a leaf stands; the whole leaf where escapes make that unclear.
fn place(source: &Source, written: Span, count: usize, inner: &str) -> Span {
    let slice = source.slice(written);
    let Some((start, _)) = slice.match_indices("{{").nth(count) else { return written };
    let behind = &slice[start + 2..];
    let Some(end) = inner.find("}}") else { return Span::new(written.start + start, written.end) };
    match behind.find("}}") {
        Some(found) if behind.get(..found) == inner.get(..end) => {
            Span::new(written.start + start, written.start + start + 2 + found + 2)
        }
        _ => written,
    }
}

/// `{{name}}` without quotes, which YAML reads as a mapping whose only key is a mapping.
fn unquoted(node: &Node) -> Option<String> {
    let Value::Map(outer) = &node.value else { return None };
    let [(key, value)] = outer.as_slice() else { return None };
    let Value::Map(inner) = &key.value else { return None };
    let [(name, nothing)] = inner.as_slice() else { return None };
    match &name.value {
        Value::Scalar(scalar) if value.is_null() && nothing.is_null() => Some(scalar.text.clone()),
        _ => None,
    }
}

fn tell_unquoted(reader: &mut Reader<'_>, at: Span, name: &str) {
    let message = format!("`{{{{{name}}}}}` without quotes is a YAML mapping, not a template");
    reader.error(Code::F0031, at, message, format!("write \"{{{{{name}}}}}\""));
}
