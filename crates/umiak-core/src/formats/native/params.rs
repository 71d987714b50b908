//! `params` and `secrets` of a document, and `{{ name }}` in its strings.

use std::collections::{BTreeMap, HashMap};

use crate::diag::{Code, Span, nearest};
use crate::formats::document::reader::{At, Reader, did_you_mean};
use crate::formats::document::template::{Templates, Unfilled, refuse_unquoted};
use crate::formats::document::tree::{Node, shortened};

/// Parameters and their values.
#[derive(Debug, Default)]
pub(super) struct Params {
    values: BTreeMap<String, Option<String>>,
    /// Required parameters that are not given, with their positions.
    pub(super) needed: Vec<(String, Span)>,
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

    fn value(&self, word: &str) -> Result<&str, Unfilled> {
        match word {
            "'{{'" | "\"{{\"" => return Ok("{{"),
            "'{'" | "\"{\"" => return Ok("{"),
            _ => {}
        }
        if !is_name(word) {
            return Err(Unfilled::NotAName);
        }
        self.values.get(word).ok_or(Unfilled::Unknown)?.as_deref().ok_or(Unfilled::Missing)
    }

    fn unknown(&self, word: &str) -> String {
        did_you_mean(nearest(word, self.values.keys().map(String::as_str)), "not in `params` or `secrets`")
    }
}

/// The document's `params` and `secrets`, overridden by `given` (`-p`).
pub(super) fn params(reader: &mut Reader<'_>, root: &Node, given: &[(String, String)]) -> Params {
    let mut params = Params::default();
    let mut of =
        |key: &str| root.child(key).and_then(|node| reader.named(&format!("`{key}`"), node)).unwrap_or_default();
    let (plain, secret) = (of("params"), of("secrets"));
    let places: HashMap<&str, Span> = plain.iter().map(|(name, _)| (name.value.as_str(), name.at)).collect();
    for (name, _) in &secret {
        if let Some(first) = places.get(name.value.as_str()) {
            let message = format!("`{}` is in both `params` and `secrets`", shortened(&name.value));
            reader.error(Code::F0018, name.at, message, "use another name");
            let source = reader.source;
            reader.errors.complete_last(|error| error.label(source.label(*first, "in `params`")));
        }
    }
    for (name, value) in plain.into_iter().chain(secret) {
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
        let default =
            if has_no_default { None } else { reader.text(&format!("parameter `{}`", shortened(&name)), value) };
        let over = given.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.clone());
        let value = over.or(default.map(|text| text.value));
        if value.is_none() && has_no_default {
            params.needed.push((name.clone(), at));
        }
        params.values.insert(name, value);
    }
    for (name, _) in given.iter().filter(|(name, _)| !params.values.contains_key(name)) {
        reader.unknown_parameter(name, "", params.values.keys().map(String::as_str));
    }
    params
}

/// True for a name that a parameter may have.
pub(in crate::formats) fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}
