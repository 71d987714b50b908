//! What `<% $parameters.name %>` and the like stand for.

use std::collections::BTreeMap;

use crate::diag::nearest;
use crate::formats::document::reader::did_you_mean;
use crate::formats::document::template::{Templates, Unfilled};
use crate::formats::document::tree::{Node, Value};

/// References and their values, by their full names: `$parameters.model`, `$data.uri.0`.
#[derive(Debug, Clone, Default)]
pub(super) struct Values {
    /// `None` if a value must be given before the job can run.
    known: BTreeMap<String, Option<String>>,
}

impl Values {
    /// Adds everything below a node: items of lists by number, and lists as a whole, joined by commas.
    pub(super) fn add(&mut self, name: &str, node: &Node) {
        match &node.value {
            Value::Scalar(_) if node.is_null() => {}
            Value::Scalar(scalar) => self.set(name, Some(scalar.text.clone())),
            Value::List(items) => {
                let texts: Vec<&str> = items.iter().filter_map(Node::text).collect();
                self.set(name, Some(texts.join(",")));
                for (index, item) in items.iter().enumerate() {
                    self.add(&format!("{name}.{index}"), item);
                }
            }
            Value::Map(entries) => {
                for (key, value) in entries {
                    if let Some(key) = key.text() {
                        self.add(&format!("{name}.{key}"), value);
                    }
                }
            }
        }
    }

    pub(super) fn set(&mut self, name: &str, value: Option<String>) {
        self.known.insert(name.to_owned(), value);
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.known.get(name)?.as_deref()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// The references below a prefix, without it, and their values.
    pub(super) fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.known.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_deref()?)))
    }

    /// Of two values of a reference the longer one, for the budget of the whole document.
    pub(super) fn merge_longer(&mut self, other: &Self) {
        for (name, value) in &other.known {
            let known = self.known.entry(name.clone()).or_default();
            if value.as_ref().map(String::len) > known.as_ref().map(String::len) {
                known.clone_from(value);
            }
        }
    }
}

/// The full name of a reference: `[n]` is another way to write `.n`.
pub(super) fn canonical(word: &str) -> String {
    word.replace('[', ".").replace(']', "")
}

impl Templates for Values {
    const OPEN: &'static str = "<%";
    const CLOSE: &'static str = "%>";
    const LITERAL: &'static str = "references are `$parameters.NAME`, `$secrets.NAME`, and `$data.KEY`, `$output.KEY` and `$script.KEY` of what the role uses";

    fn value(&self, word: &str) -> Result<&str, Unfilled> {
        let kinds = ["$parameters.", "$secrets.", "$data.", "$output.", "$script."];
        if !kinds.iter().any(|kind| word.strip_prefix(kind).is_some_and(|rest| !rest.is_empty())) {
            return Err(Unfilled::NotAName);
        }
        self.known.get(&canonical(word)).ok_or(Unfilled::Unknown)?.as_deref().ok_or(Unfilled::Missing)
    }

    fn unknown(&self, word: &str) -> String {
        let kind = word.split_once('.').map_or(word, |(kind, _)| kind);
        let among = self.known.keys().map(String::as_str).filter(|name| name.starts_with(kind));
        let otherwise = match kind {
            "$parameters" => "not in `parameters`",
            "$secrets" => "not in `secrets`",
            "$data" => "the role has no such `data`",
            "$output" => "the role has no such `output`",
            _ => "the role has no such `script`",
        };
        did_you_mean(nearest(word, among), otherwise)
    }
}
