//! Templates in the texts of a document: filled after parsing, on the leaves, never on the raw text. A value is taken as
//! it is, so what a parameter holds can neither add a template nor change the shape of the document.

use super::reader::Reader;
use super::tree::{Node, ScalarKind, Value};
use crate::diag::{Code, Source, Span};

/// The templates of one format: how they are written and what they stand for.
pub(crate) trait Templates {
    const OPEN: &'static str;
    const CLOSE: &'static str;
    /// How `OPEN` is written where no template is meant: the hint for one that cannot be read.
    const LITERAL: &'static str;

    /// What stands for a template whose inside is `word`.
    fn value(&self, word: &str) -> Result<String, Unfilled>;
}

/// Why a template has no value.
#[derive(Debug)]
pub(crate) enum Unfilled {
    NotAName,
    /// With the label of the error.
    Unknown(String),
    /// The parameter has no value, which is told where it stands: what it fills is left out of all further checks.
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

/// Nothing where something is wrong, and told.
fn filled<T: Templates>(reader: &mut Reader<'_>, text: &str, written: Span, templates: &T) -> Option<String> {
    let mut result = String::with_capacity(text.len());
    let mut is_whole = true;
    let mut rest = text;
    let mut count = 0;
    while let Some(start) = rest.find(T::OPEN) {
        result += &rest[..start];
        let inner = &rest[start + T::OPEN.len()..];
        let at = place::<T>(reader.source, written, count, inner);
        let Some((word, behind)) = inner.split_once(T::CLOSE) else {
            reader.error(Code::F0032, at, "a template without its end", format!("`{}` is missing", T::CLOSE));
            reader.hint(T::LITERAL);
            return None;
        };
        rest = behind;
        // A delimiter inside the template is one of those that are counted.
        count += 1 + word.matches(T::OPEN).count();
        let word = word.trim();
        let value = templates.value(word);
        is_whole &= value.is_ok();
        match value {
            Ok(value) => result += &value,
            Err(Unfilled::Missing) => {}
            Err(Unfilled::NotAName) => {
                reader.error(Code::F0032, at, format!("`{word}` is not the name of a parameter"), "");
                reader.hint(T::LITERAL);
            }
            Err(Unfilled::Unknown(label)) => {
                reader.error(Code::F0030, at, format!("there is no parameter `{word}`"), label);
            }
        }
    }
    is_whole.then(|| result + rest)
}

/// The insides of the templates of a text.
pub(crate) fn words<T: Templates>(text: &str) -> impl Iterator<Item = &str> {
    text.split(T::OPEN).skip(1).filter_map(|rest| Some(rest.split_once(T::CLOSE)?.0.trim()))
}

/// Where the `count`th template of a leaf stands; the whole leaf where escapes make that unclear.
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

/// `{{name}}` without quotes, which YAML reads as a mapping whose only key is a mapping. True where it was one.
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
