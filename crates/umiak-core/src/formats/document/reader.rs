//! Reads values from a tree and collects every error: a value that cannot be read is skipped.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use super::tree::{Node, Scalar, ScalarKind, Value, shortened};
use crate::diag::{Code, Collected, Diagnostic, Source, Span, nearest};
use crate::formats::units;
use crate::mask::Known;

/// A value and its position.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) at: Span,
}

/// The check of a naming rule, and the rule in words.
pub(crate) type NameRule = (fn(&str) -> bool, &'static str);

/// Collects the errors of one source.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) source: &'a Source,
    pub(crate) errors: Collected,
    pub(crate) notices: Collected,
    /// Values that its messages must not show.
    pub(crate) hidden: Known,
    /// Other spellings of fixed keys, each with its usual one.
    pub(crate) spellings: &'static [(&'static str, &'static str)],
}

/// The entries of a mapping with fixed keys, by name.
pub(crate) struct Entries<'n> {
    names: Vec<&'static str>,
    found: BTreeMap<&'static str, (&'n Node, &'n Node)>,
    /// Keys that are missing because they are misspelt, which is already reported.
    misspelt: Vec<&'static str>,
    /// Entries with other keys, in a mapping that allows them.
    pub(crate) rest: Vec<(At<String>, &'n Node)>,
    /// Position of the whole mapping.
    pub(crate) at: Span,
}

impl<'n> Entries<'n> {
    /// The value of a key; `None` if it is omitted or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&'n Node> {
        debug_assert!(self.names.contains(&name), "`{name}` is not in its table");
        self.found.get(name).map(|(_, value)| *value).filter(|value| !value.is_null())
    }

    /// The value of a key, read by one of the reader's functions or by a function of the format.
    pub(crate) fn read<'a, T>(
        &self,
        reader: &mut Reader<'a>,
        name: &str,
        read: impl FnOnce(&mut Reader<'a>, &str, &'n Node) -> Option<T>,
    ) -> Option<T> {
        read(reader, &format!("`{name}`"), self.get(name)?)
    }

    /// The same without its position.
    pub(crate) fn value<'a, T>(
        &self,
        reader: &mut Reader<'a>,
        name: &str,
        read: impl FnOnce(&mut Reader<'a>, &str, &'n Node) -> Option<At<T>>,
    ) -> Option<T> {
        self.read(reader, name, read).map(|at| at.value)
    }

    /// The value of a key that `what` must have. `at` is the position of the error if it is missing.
    pub(crate) fn required(&self, reader: &mut Reader<'_>, what: &str, name: &str, at: Span) -> Option<&'n Node> {
        if self.lacks(name) {
            reader.error(Code::F0012, self.key(name).unwrap_or(at), format!("{what} has no `{name}`"), "");
        }
        self.get(name)
    }

    /// True for a key that is omitted or empty, but not misspelt.
    pub(crate) fn lacks(&self, name: &str) -> bool {
        self.get(name).is_none() && !self.misspelt.contains(&name)
    }

    /// Position of the key, for errors about empty values.
    pub(crate) fn key(&self, name: &str) -> Option<Span> {
        self.found.get(name).map(|(key, _)| key.at)
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: &'a Source, errors: Collected) -> Self {
        Self { source, errors, notices: Collected::default(), hidden: Known::default(), spellings: &[] }
    }

    /// Hides every value below `secrets`, whatever its shape: a label shows the whole line of an error.
    pub(crate) fn hide_secrets(&mut self, root: &Node) {
        let secrets = root.entries().iter().filter(|(key, _)| key.text() == Some("secrets"));
        secrets.for_each(|(_, value)| value.each_leaf(&mut |_, text| self.hidden.add(text)));
    }

    /// The errors, in the order of their positions; without errors, the notices.
    pub(crate) fn into_diagnostics(self) -> Vec<Diagnostic> {
        let Self { errors, notices, hidden, .. } = self;
        let all = if errors.is_empty() { notices.into_vec() } else { errors.into_sorted() };
        let rewrite = |text: &str| if hidden.are_in(text) { hidden.text(text) } else { text.to_owned() };
        all.into_iter().map(|diagnostic| diagnostic.rewritten(&rewrite)).collect()
    }

    pub(crate) fn error(&mut self, code: Code, at: Span, message: impl Into<String>, label: impl Into<String>) {
        self.errors.add(|| Diagnostic::error(code, message).label(self.source.label(at, label)));
    }

    /// Adds a hint to the last error.
    pub(crate) fn hint(&mut self, hint: impl Into<String>) {
        self.errors.complete_last(|error| error.hint(hint));
    }

    pub(crate) fn notice(&mut self, code: Code, at: Span, message: impl Into<String>, label: impl Into<String>) {
        self.notices.add(|| Diagnostic::notice(code, message).label(self.source.label(at, label)));
    }

    /// Adds a hint to the last notice.
    pub(crate) fn notice_hint(&mut self, hint: impl Into<String>) {
        self.notices.complete_last(|notice| notice.hint(hint));
    }

    /// The nearest name, for an error or a notice that will be kept.
    pub(crate) fn nearest<'c>(&self, word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
        if self.errors.has_room() && self.notices.has_room() { nearest(word, candidates) } else { None }
    }

    /// A parameter of the command line that the document does not have. `kind` is what the names of its kind begin with.
    pub(crate) fn unknown_parameter<'c>(&mut self, name: &str, kind: &str, known: impl Iterator<Item = &'c str>) {
        let known: Vec<&str> = known.collect();
        let is_it = |known: &&&str| known.strip_suffix(name).is_some_and(|kind| kind.ends_with('.'));
        let near = known.iter().find(is_it).copied().or_else(|| {
            let of_kind = known.iter().filter_map(|known| known.strip_prefix(kind));
            let near = nearest(name.strip_prefix(kind)?, of_kind)?;
            known.iter().find(|known| known.strip_prefix(kind) == Some(near)).copied()
        });
        self.errors.add(|| {
            let error = Diagnostic::error(Code::F0033, format!("`{}` has no parameter `{name}`", self.source.name));
            match near {
                Some(near) => error.hint(format!("did you mean `-p {near}=…`?")),
                None if known.is_empty() => error.hint("the document defines no parameters"),
                None => error.row("parameters", known.join(", ")),
            }
        });
    }

    pub(crate) fn wrong_type(&mut self, what: &str, node: &Node, expected: &str) {
        if !node.is_broken() {
            let label = format!("this is {}", node.found());
            self.error(Code::F0011, node.at, format!("{what} must be {expected}"), label);
        }
    }

    /// A mapping with fixed keys. A key that is not among `names` is an error that suggests the nearest name.
    pub(crate) fn entries<'n>(
        &mut self,
        what: &str,
        node: &'n Node,
        names: impl IntoIterator<Item = &'static str>,
    ) -> Option<Entries<'n>> {
        self.entries_beside(what, node, names, |_| false)
    }

    /// The same, but keys for which `is_ignored` is true are ignored.
    pub(crate) fn entries_beside<'n>(
        &mut self,
        what: &str,
        node: &'n Node,
        names: impl IntoIterator<Item = &'static str>,
        is_ignored: fn(&str) -> bool,
    ) -> Option<Entries<'n>> {
        let mut entries = self.open_entries(what, node, names)?;
        for (key, _) in std::mem::take(&mut entries.rest).into_iter().filter(|(key, _)| !is_ignored(&key.value)) {
            let near = self.nearest(&key.value, entries.names.iter().copied());
            let label = did_you_mean(near, "");
            self.error(Code::F0010, key.at, format!("unknown key `{}` in {what}", key.value), label);
            if near.is_none() {
                let names: Vec<String> = entries.names.iter().map(|name| format!("`{name}`")).collect();
                self.hint(format!("known keys: {}", names.join(", ")));
            }
            entries.misspelt.extend(near);
        }
        Some(entries)
    }

    /// A mapping with fixed keys that may also have others.
    pub(crate) fn open_entries<'n>(
        &mut self,
        what: &str,
        node: &'n Node,
        names: impl IntoIterator<Item = &'static str>,
    ) -> Option<Entries<'n>> {
        let Value::Map(entries) = &node.value else {
            self.wrong_type(what, node, "a mapping");
            return None;
        };
        let names: Vec<&'static str> = names.into_iter().collect();
        let mut found: BTreeMap<&'static str, (&Node, &Node)> = BTreeMap::new();
        let mut rest = Vec::new();
        for (key, value) in entries {
            let Some(text) = self.key_text(key) else { continue };
            let usual = self.spellings.iter().find(|(other, _)| *other == text.value).map_or("", |(_, usual)| usual);
            let Some(name) = names.iter().find(|name| **name == text.value || **name == usual) else {
                rest.push((text, value));
                continue;
            };
            let first = found.insert(*name, (key, value));
            if let Some((first, _)) = first.filter(|(first, _)| first.text() != key.text()) {
                let message = format!("duplicate key `{name}`");
                self.error(Code::F0006, key.at, message, "the same in another spelling");
                let source = self.source;
                self.errors.complete_last(|error| error.label(source.label(first.at, "first here")));
            }
        }
        Some(Entries { names, found, misspelt: Vec::new(), rest, at: node.at })
    }

    /// A mapping with user-defined names, in the order of the document.
    pub(crate) fn named<'n>(&mut self, what: &str, node: &'n Node) -> Option<Vec<(At<String>, &'n Node)>> {
        self.open_entries(what, node, []).map(|entries| entries.rest)
    }

    fn key_text(&mut self, key: &Node) -> Option<At<String>> {
        match &key.value {
            Value::Scalar(scalar) if scalar.kind != ScalarKind::Null => {
                Some(At { value: scalar.text.clone(), at: key.at })
            }
            _ => {
                self.error(Code::F0011, key.at, "a key must be a string", format!("this is {}", key.found()));
                None
            }
        }
    }

    /// Reports the first rule that a name breaks; false if it breaks one.
    pub(crate) fn name(&mut self, name: &At<String>, of: &str, rules: &[NameRule]) -> bool {
        let broken = rules.iter().find(|(holds, _)| !holds(&name.value));
        if let Some((_, rule)) = broken {
            let message = format!("`{}` is not a valid name for {of}", shortened(&name.value).escape_debug());
            self.error(Code::F0014, name.at, message, *rule);
        }
        broken.is_none()
    }

    fn scalar<'n>(&mut self, what: &str, node: &'n Node, expected: &str) -> Option<&'n Scalar> {
        match &node.value {
            Value::Scalar(scalar) if scalar.kind == ScalarKind::Broken => None,
            Value::Scalar(scalar) if scalar.kind != ScalarKind::Null => Some(scalar),
            _ => {
                self.wrong_type(what, node, expected);
                None
            }
        }
    }

    /// Any scalar, as written.
    pub(crate) fn text(&mut self, what: &str, node: &Node) -> Option<At<String>> {
        let scalar = self.scalar(what, node, "a string")?;
        if scalar.text.contains('\0') {
            self.error(Code::F0013, node.at, format!("{what} must not contain a NUL byte"), "");
            return None;
        }
        Some(At { value: scalar.text.clone(), at: node.at })
    }

    /// A text that is not blank.
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
            (ScalarKind::Bool | ScalarKind::Filled, "true") => true,
            (ScalarKind::Bool | ScalarKind::Filled, "false") => false,
            _ => {
                self.wrong_type(what, node, "`true` or `false`");
                return None;
            }
        };
        Some(At { value, at: node.at })
    }

    /// A whole number in these bounds, without sign or exponent where it cannot be negative.
    pub(crate) fn number<N: Into<i64> + TryFrom<i64> + Display + Copy>(
        &mut self,
        what: &str,
        node: &Node,
        least: N,
        most: N,
    ) -> Option<At<N>> {
        let scalar = self.scalar(what, node, "a whole number")?;
        let is_number = matches!(scalar.kind, ScalarKind::Number | ScalarKind::Filled);
        let digits = scalar.text.strip_prefix('-').filter(|_| least.into() < 0).unwrap_or(&scalar.text);
        let value = (is_number && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| scalar.text.parse().ok())
            .flatten()
            .filter(|number| (least.into()..=most.into()).contains(number));
        if let Some(value) = value.and_then(|value| N::try_from(value).ok()) {
            return Some(At { value, at: node.at });
        }
        if is_number && scalar.text.parse::<f64>().is_ok() {
            let message = format!("{what} must be a whole number from {least} to {most}");
            self.error(Code::F0013, node.at, message, format!("this is {}", node.found()));
        } else {
            self.wrong_type(what, node, "a whole number");
        }
        None
    }

    pub(crate) fn choice(&mut self, what: &str, node: &Node, words: &[&'static str]) -> Option<At<&'static str>> {
        let scalar = self.scalar(what, node, &either(words))?;
        if let Some(word) = words.iter().find(|word| **word == scalar.text) {
            return Some(At { value: word, at: node.at });
        }
        let near = self.nearest(&scalar.text, words.iter().copied());
        let label = did_you_mean(near, &format!("this is {}", node.found()));
        self.error(Code::F0013, node.at, format!("{what} must be {}", either(words)), label);
        None
    }

    pub(crate) fn duration(&mut self, what: &str, node: &Node) -> Option<At<Duration>> {
        self.measure(what, node, units::duration)
    }

    /// A time limit greater than zero; omitting the key means no limit.
    pub(crate) fn limit(&mut self, what: &str, node: &Node) -> Option<At<Duration>> {
        let limit = self.duration(what, node)?;
        if limit.value.is_zero() {
            self.error(Code::F0013, node.at, format!("{what} must be greater than zero"), "");
            self.hint("omit the key for no limit");
            return None;
        }
        Some(limit)
    }

    /// CPUs, in thousandths.
    pub(crate) fn cpu(&mut self, what: &str, node: &Node) -> Option<At<u32>> {
        self.measure(what, node, units::cpu)
    }

    /// Memory, in bytes.
    pub(crate) fn memory(&mut self, what: &str, node: &Node) -> Option<At<u64>> {
        self.measure(what, node, units::memory)
    }

    /// A scalar with a unit.
    fn measure<T>(&mut self, what: &str, node: &Node, read: fn(&str) -> Result<T, &'static str>) -> Option<At<T>> {
        if node.is_broken() {
            return None;
        }
        match read(node.text().unwrap_or("")) {
            Ok(value) => Some(At { value, at: node.at }),
            Err(expected) => {
                let is_word = matches!(
                    &node.value,
                    Value::Scalar(Scalar { kind: ScalarKind::Text | ScalarKind::Number | ScalarKind::Filled, .. })
                );
                let code = if is_word { Code::F0013 } else { Code::F0011 };
                self.error(code, node.at, format!("{what} must be {expected}"), format!("this is {}", node.found()));
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
                self.hint("write \"\" for an empty string");
                continue;
            }
            if let Some(text) = self.text(&what, value) {
                texts.push((name, text));
            }
        }
        Some(texts)
    }
}

/// A label: suggests the nearest name if there is one.
pub(crate) fn did_you_mean(near: Option<&str>, otherwise: &str) -> String {
    near.map_or(otherwise.to_owned(), |near| format!("did you mean `{near}`?"))
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
