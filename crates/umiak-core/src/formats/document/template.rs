//! Templates in the strings of a document: filled after parsing, on the leaves, never in the raw text. A value is
//! inserted unchanged, so a parameter can neither add a template nor change the structure of the document.

use super::reader::Reader;
use super::tree::{Node, ScalarKind, Value, shortened};
use crate::diag::{Code, Source, Span};

/// The templates of one format: their syntax and their values.
pub(crate) trait Templates {
    const OPEN: &'static str;
    const CLOSE: &'static str;
    /// The hint for a malformed template: how to write a literal `OPEN`.
    const LITERAL: &'static str;

    /// The value of a template that contains `word`.
    fn value(&self, word: &str) -> Result<&str, Unfilled>;

    /// The label of the error about an unknown parameter.
    fn unknown(&self, word: &str) -> String;
}

/// Why a template has no value.
#[derive(Debug)]
pub(crate) enum Unfilled {
    NotAName,
    Unknown,
    /// It has parts, and no value of its own.
    Mapping,
    /// The template stays as it is written.
    Kept,
    /// The parameter has no value, which is reported at the parameter: texts with it are excluded from further checks.
    Missing,
}

/// Fills every text below a node.
pub(crate) fn fill<T: Templates>(reader: &mut Reader<'_>, node: &mut Node, templates: &T) {
    if refuse_unquoted::<T>(reader, node) {
        node.value = Value::scalar("", ScalarKind::Broken);
        return;
    }
    match &mut node.value {
        Value::List(items) => items.iter_mut().for_each(|item| fill(reader, item, templates)),
        Value::Map(entries) => entries.iter_mut().for_each(|(_, value)| fill(reader, value, templates)),
        Value::Scalar(scalar) if scalar.kind == ScalarKind::Text && scalar.text.contains(T::OPEN) => {
            node.value = match filled(reader, &scalar.text, node.written, templates) {
                Some(text) => Value::scalar(text, ScalarKind::Filled),
                None => Value::scalar("", ScalarKind::Broken),
            };
        }
        Value::Scalar(_) => {}
    }
}

/// `None` if there are errors, which are then reported.
fn filled<T: Templates>(reader: &mut Reader<'_>, text: &str, written: Span, templates: &T) -> Option<String> {
    let mut result = String::with_capacity(text.len());
    let mut is_whole = true;
    let mut rest = text;
    let mut count = 0;
    while let Some(start) = rest.find(T::OPEN) {
        result += &rest[..start];
        let inner = &rest[start + T::OPEN.len()..];
        // It is searched from the start of the leaf, so only for errors that are kept.
        let has_room = reader.errors.has_room();
        let at = |source: &Source| if has_room { place::<T>(source, written, count, inner) } else { written };
        let Some((word, behind)) = inner.split_once(T::CLOSE) else {
            let at = at(reader.source);
            reader.error(Code::F0032, at, "unterminated template", format!("`{}` is missing", T::CLOSE));
            reader.hint(T::LITERAL);
            return None;
        };
        rest = behind;
        let trimmed = word.trim();
        let value = templates.value(trimmed);
        is_whole &= matches!(value, Ok(_) | Err(Unfilled::Kept));
        match value {
            Ok(value) => result += value,
            Err(Unfilled::Kept) => {
                result.extend([T::OPEN, word, T::CLOSE]);
                // As above: searched only for notices that are kept.
                let is_kept = reader.notices.has_room();
                let at = if is_kept { place::<T>(reader.source, written, count, inner) } else { written };
                let label = if is_kept { templates.unknown(trimmed) } else { String::new() };
                reader.notice(Code::F0054, at, format!("`{}` is left as it is written", shortened(trimmed)), label);
            }
            Err(Unfilled::Missing) => {}
            Err(Unfilled::NotAName) => {
                let at = at(reader.source);
                reader.error(Code::F0032, at, format!("`{}` is not a valid parameter name", shortened(trimmed)), "");
                reader.hint(T::LITERAL);
            }
            Err(why @ (Unfilled::Unknown | Unfilled::Mapping)) => {
                let at = at(reader.source);
                let label = if has_room { templates.unknown(trimmed) } else { String::new() };
                let message = match why {
                    Unfilled::Mapping => format!("`{trimmed}` is a mapping"),
                    _ => format!("unknown parameter `{trimmed}`"),
                };
                reader.error(Code::F0030, at, message, label);
            }
        }
        // A delimiter inside the template counts too.
        count += 1 + word.matches(T::OPEN).count();
    }
    is_whole.then(|| result + rest)
}

/// The contents of the templates in a text.
pub(crate) fn words<T: Templates>(text: &str) -> impl Iterator<Item = &str> {
    text.split(T::OPEN).skip(1).filter_map(|rest| Some(rest.split_once(T::CLOSE)?.0.trim()))
}

/// Position of the `count`th template of a leaf; the whole leaf where escapes make that unclear.
fn place<T: Templates>(source: &Source, written: Span, count: usize, inner: &str) -> Span {
    let slice = source.slice(written);
    let Some((start, _)) = slice.match_indices(T::OPEN).nth(count) else { return written };
    let behind = &slice[start + T::OPEN.len()..];
    let Some((word, _)) = inner.split_once(T::CLOSE) else { return Span::new(written.start + start, written.end) };
    if behind.split_once(T::CLOSE).is_none_or(|(found, _)| found != word) {
        return written;
    }
    let start = written.start + start;
    Span::new(start, start + T::OPEN.len() + word.len() + T::CLOSE.len())
}

/// Reports `{{name}}` without quotes, which YAML reads as a mapping whose only key is a mapping. True if it was one.
pub(crate) fn refuse_unquoted<T: Templates>(reader: &mut Reader<'_>, node: &Node) -> bool {
    let [(key, value)] = node.entries() else { return false };
    let [(name, nothing)] = key.entries() else { return false };
    match name.text() {
        Some(name) if T::OPEN == "{{" && value.is_null() && nothing.is_null() => {
            let message = format!("`{{{{{name}}}}}` without quotes is a YAML mapping, not a template");
            reader.error(Code::F0031, node.at, message, format!("write \"{{{{{name}}}}}\""));
            true
        }
        _ => false,
    }
}
