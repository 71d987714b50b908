//! Reading values out of a tree, with every error collected: whoever gets nothing back goes on without it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::keys::Table;
use super::units;
use crate::diag::{Code, Diagnostic, Source, Span, nearest};
use crate::formats::yaml::{Kind, Node, Scalar, Value};

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) at: Span,
}

/// Collects what is wrong with one source.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) source: &'a Source,
    pub(crate) errors: Vec<Diagnostic>,
    pub(crate) notices: Vec<Diagnostic>,
}

/// The entries of a mapping with fixed keys, by name. Each is taken once.
pub(crate) struct Entries<'n> {
    table: &'static Table,
    found: BTreeMap<&'static str, (&'n Node, &'n Node)>,
    /// Keys that are missing because they are misspelt, which has been told.
    misspelt: Vec<&'static str>,
    /// Of the whole mapping.
    pub(crate) at: Span,
}

impl<'n> Entries<'n> {
    /// The value of a key; nothing where it is left out or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&'n Node> {
        debug_assert!(self.table.names().any(|known| known == name), "`{name}` is not in its table");
        self.found.get(name).map(|(_, value)| *value).filter(|value| !value.is_null())
    }

    pub(crate) fn is_misspelt(&self, name: &str) -> bool {
        self.misspelt.contains(&name)
    }

    /// Where the key stands, for errors about what is empty.
    pub(crate) fn key(&self, name: &str) -> Option<Span> {
        self.found.get(name).map(|(key, _)| key.at)
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: &'a Source) -> Self {
        Self { source, errors: Vec::new(), notices: Vec::new() }
    }

    pub(crate) fn error(&mut self, code: Code, at: Span, message: impl Into<String>, label: impl Into<String>) {
        let label = self.source.label(at, bounded(label.into()));
        self.errors.push(Diagnostic::error(code, bounded(message.into())).label(label));
    }

    /// A hint for the error that was just told.
    pub(crate) fn hint(&mut self, hint: impl Into<String>) {
        if let Some(error) = self.errors.last_mut() {
            error.hints.push(hint.into());
        }
    }

    pub(crate) fn wrong_type(&mut self, what: &str, node: &Node, expected: &str) {
        if is_broken(node) {
            return;
        }
        let label = format!("this is {}", node.found());
        self.error(Code::F0011, node.at, format!("{what} takes {expected}"), label);
    }

    /// A mapping with fixed keys. Keys that are in no table are told, with the nearest name.
    pub(crate) fn entries<'n>(&mut self, what: &str, node: &'n Node, table: &'static Table) -> Option<Entries<'n>> {
        let Value::Map(entries) = &node.value else {
            self.wrong_type(what, node, "a mapping");
            return None;
        };
        let mut found = BTreeMap::new();
        let mut misspelt = Vec::new();
        for (key, value) in entries {
            let Some(text) = self.key_text(key) else { continue };
            if let Some(name) = table.names().find(|name| *name == text) {
                found.insert(name, (key, value));
            } else {
                misspelt.extend(self.unknown_key(what, &text, key.at, table));
            }
        }
        Some(Entries { table, found, misspelt, at: node.at })
    }

    /// The key that is probably meant.
    fn unknown_key(&mut self, what: &str, key: &str, at: Span, table: &'static Table) -> Option<&'static str> {
        let known: Vec<&'static str> = table.names().collect();
        let near = nearest(key, known.iter().copied());
        let label = near.map_or("unknown".to_owned(), |near| format!("did you mean `{near}`?"));
        self.error(Code::F0010, at, format!("{what} has no key `{key}`"), label);
        if near.is_none() {
            self.hint(format!(
                "known keys: {}",
                known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            ));
        }
        near
    }

    /// A mapping with names that the author chooses, in their order.
    pub(crate) fn named<'n>(&mut self, what: &str, node: &'n Node) -> Option<Vec<(At<String>, &'n Node)>> {
        let Value::Map(entries) = &node.value else {
            self.wrong_type(what, node, "a mapping");
            return None;
        };
        Some(
            entries
                .iter()
                .filter_map(|(key, value)| Some((At { value: self.key_text(key)?, at: key.at }, value)))
                .collect(),
        )
    }

    fn key_text(&mut self, key: &Node) -> Option<String> {
        match &key.value {
            Value::Scalar(scalar) if scalar.kind != Kind::Null => Some(scalar.text.clone()),
            _ => {
                self.error(Code::F0011, key.at, "a key is a text", format!("this is {}", key.found()));
                None
            }
        }
    }

    fn scalar<'n>(&mut self, what: &str, node: &'n Node, expected: &str) -> Option<&'n Scalar> {
        match &node.value {
            Value::Scalar(scalar) if scalar.kind == Kind::Broken => None,
            Value::Scalar(scalar) if scalar.kind != Kind::Null => Some(scalar),
            _ => {
                self.wrong_type(what, node, expected);
                None
            }
        }
    }

    /// Any scalar, as it is written.
    pub(crate) fn text(&mut self, what: &str, node: &Node) -> Option<At<String>> {
        let scalar = self.scalar(what, node, "a text")?;
        if scalar.text.contains('\0') {
            self.error(Code::F0013, node.at, format!("{what} cannot hold a NUL byte"), "");
            return None;
        }
        Some(At { value: scalar.text.clone(), at: node.at })
    }

    /// A text that says something.
    pub(crate) fn word(&mut self, what: &str, node: &Node) -> Option<At<String>> {
        let text = self.text(what, node)?;
        if text.value.trim().is_empty() {
            self.error(Code::F0013, node.at, format!("{what} is empty"), "");
            return None;
        }
        Some(text)
    }

    pub(crate) fn boolean(&mut self, what: &str, node: &Node) -> Option<At<bool>> {
        let scalar = self.scalar(what, node, "`true` or `false`")?;
        let value = match (scalar.kind, scalar.text.to_ascii_lowercase().as_str()) {
            (Kind::Bool | Kind::Filled, "true") => true,
            (Kind::Bool | Kind::Filled, "false") => false,
            _ => {
                self.wrong_type(what, node, "`true` or `false`");
                return None;
            }
        };
        Some(At { value, at: node.at })
    }

    pub(crate) fn number(&mut self, what: &str, node: &Node, least: u32, most: u32) -> Option<At<u32>> {
        let scalar = self.scalar(what, node, "a whole number")?;
        let is_whole = !scalar.text.is_empty() && scalar.text.bytes().all(|byte| byte.is_ascii_digit());
        let value = scalar.text.parse::<u32>().ok().filter(|number| (least..=most).contains(number));
        match value {
            Some(value) if is_whole && matches!(scalar.kind, Kind::Number | Kind::Filled) => {
                Some(At { value, at: node.at })
            }
            _ if matches!(scalar.kind, Kind::Number | Kind::Filled) && is_number(&scalar.text) => {
                let message = format!("{what} takes a whole number from {least} to {most}");
                self.error(Code::F0013, node.at, message, format!("this is {}", node.found()));
                None
            }
            _ => {
                self.wrong_type(what, node, "a whole number");
                None
            }
        }
    }

    pub(crate) fn choice(&mut self, what: &str, node: &Node, words: &[&'static str]) -> Option<At<&'static str>> {
        let scalar = self.scalar(what, node, &either(words))?;
        if let Some(word) = words.iter().find(|word| **word == scalar.text) {
            return Some(At { value: word, at: node.at });
        }
        let label = match nearest(&scalar.text, words.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("this is {}", node.found()),
        };
        self.error(Code::F0013, node.at, format!("{what} is {}", either(words)), label);
        None
    }

    pub(crate) fn duration(&mut self, what: &str, node: &Node) -> Option<At<Duration>> {
        self.measure(what, node, units::duration)
    }

    /// A time limit: none at all is written by leaving it out.
    pub(crate) fn limit(&mut self, what: &str, node: &Node) -> Option<At<Duration>> {
        let limit = self.duration(what, node)?;
        if limit.value.is_zero() {
            self.error(Code::F0013, node.at, format!("{what} cannot be 0"), "");
            self.hint("leave the key out for no limit");
            return None;
        }
        Some(limit)
    }

    /// A scalar with a unit.
    pub(crate) fn measure<T>(
        &mut self,
        what: &str,
        node: &Node,
        read: fn(&str) -> Result<T, &'static str>,
    ) -> Option<At<T>> {
        // What is expected stands in the parser's own error.
        let scalar = match &node.value {
            Value::Scalar(scalar) if scalar.kind == Kind::Broken => return None,
            Value::Scalar(scalar) => scalar.text.as_str(),
            _ => "",
        };
        match read(scalar) {
            Ok(value) => Some(At { value, at: node.at }),
            Err(expected)
                if matches!(
                    &node.value,
                    Value::Scalar(Scalar { kind: Kind::Text | Kind::Number | Kind::Filled, .. })
                ) =>
            {
                let message = format!("{what} takes {expected}");
                self.error(Code::F0013, node.at, message, format!("this is {}", node.found()));
                None
            }
            Err(expected) => {
                self.wrong_type(what, node, expected);
                None
            }
        }
    }

    /// Names to scalars.
    pub(crate) fn texts(&mut self, what: &str, node: &Node) -> Option<Vec<(At<String>, At<String>)>> {
        let entries = self.named(what, node)?;
        let mut texts = Vec::new();
        for (name, value) in entries {
            let what = format!("`{}` in {what}", name.value);
            if value.is_null() {
                self.error(Code::F0011, name.at, format!("{what} has no value"), "");
                self.hint("write \"\" for an empty text");
                continue;
            }
            if let Some(text) = self.text(&what, value) {
                texts.push((name, text));
            }
        }
        Some(texts)
    }
}

/// One, or a list.
pub(crate) fn one_or_many(node: &Node) -> Vec<&Node> {
    match &node.value {
        Value::List(items) => items.iter().collect(),
        _ => vec![node],
    }
}

/// A name may be megabytes long; a sentence may not.
fn bounded(text: String) -> String {
    match text.char_indices().nth(300) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

pub(crate) fn is_broken(node: &Node) -> bool {
    matches!(&node.value, Value::Scalar(Scalar { kind: Kind::Broken, .. }))
}

fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok()
}

/// "`a`, `b` or `c`".
pub(crate) fn either(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}
