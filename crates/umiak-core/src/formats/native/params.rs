//! `params` of a document, and `{{ name }}` in its strings.

use std::collections::BTreeMap;

use crate::diag::{Code, Diagnostic, nearest};
use crate::formats::document::reader::{At, Reader, did_you_mean};
use crate::formats::document::template::{Templates, Unfilled, refuse_unquoted};
use crate::formats::document::tree::Node;

/// Parameters and their values.
#[derive(Debug, Default)]
pub(super) struct Params {
    values: BTreeMap<String, Option<String>>,
    /// Required parameters that are not given, with their errors.
    pub(super) needed: Vec<(String, Diagnostic)>,
}

impl Params {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.as_deref()
    }
}

impl Templates for Params {
    const OPEN: &'static str = "{{";
    const CLOSE: &'static str = "}}";
    const LITERAL: &'static str = "for literal braces, write `{{ '{{' }}`";

    fn value(&self, word: &str) -> Result<String, Unfilled> {
        if matches!(word, "'{{'" | "\"{{\"") {
            return Ok("{{".to_owned());
        }
        if !is_name(word) {
            return Err(Unfilled::NotAName);
        }
        let unknown = || {
            let near = nearest(word, self.values.keys().map(String::as_str));
            Unfilled::Unknown(did_you_mean(near, "not in `params`"))
        };
        self.values.get(word).ok_or_else(unknown)?.clone().ok_or(Unfilled::Missing)
    }
}

/// The document's `params`, overridden by `given` (`-p`).
pub(super) fn params(reader: &mut Reader<'_>, node: Option<&Node>, given: &[(String, String)]) -> Params {
    let mut params = Params::default();
    for (name, value) in node.and_then(|node| reader.named("`params`", node)).unwrap_or_default() {
        let rule = "must consist of letters, digits, `_`, `-` and `.`, and begin with a letter";
        if !reader.name(&name, "a parameter", &[(is_name, rule)]) {
            continue;
        }
        let At { value: name, at } = name;
        if refuse_unquoted::<Params>(reader, value) {
            params.values.insert(name, Some(String::new()));
            continue;
        }
        let has_no_default = value.is_null();
        let default = if has_no_default { None } else { reader.text(&format!("parameter `{name}`"), value) };
        let over = given.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.clone());
        let value = over.or(default.map(|text| text.value));
        if value.is_none() && has_no_default {
            let error = Diagnostic::error(Code::F0034, format!("parameter `{name}` has no value"));
            let error = error.label(reader.source.label(at, "no default"));
            params.needed.push((name.clone(), error.hint(format!("set it with `-p {name}=…`"))));
        }
        params.values.insert(name, value);
    }
    for (name, _) in given.iter().filter(|(name, _)| !params.values.contains_key(name)) {
        let error = Diagnostic::error(Code::F0033, format!("`{}` has no parameter `{name}`", reader.source.name));
        let known: Vec<&str> = params.values.keys().map(String::as_str).collect();
        reader.errors.push(match nearest(name, known.iter().copied()) {
            Some(near) => error.hint(format!("did you mean `-p {near}=…`?")),
            None if known.is_empty() => error.hint("the document defines no `params`"),
            None => error.row("parameters", known.join(", ")),
        });
    }
    params
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}
