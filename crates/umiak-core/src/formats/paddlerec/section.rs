//! A mapping of one of the files, with its place: every message names the whole path of a key.

use crate::diag::{Code, Span};
use crate::formats::document::keys::Table;
use crate::formats::document::reader::{At, Entries, Reader, did_you_mean, either};
use crate::formats::document::tree::{Node, Scalar, ScalarKind, Value, shortened};

/// What is said about keys that are not in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Others {
    /// They have no effect.
    Ignored,
    /// The model may read them; only those that look like a misspelt key are mentioned.
    OfModel,
}

/// The entries of a mapping, and its path.
pub(super) struct Section<'n> {
    entries: Entries<'n>,
    path: String,
    /// Keys that are probably meant, and where something like them is written.
    misspelt: Vec<(&'static str, Span)>,
}

impl<'n> Section<'n> {
    pub(super) fn open(
        reader: &mut Reader<'_>,
        path: &str,
        node: &'n Node,
        table: &Table,
        others: Others,
    ) -> Option<Self> {
        let what = if path.is_empty() { "the document".to_owned() } else { format!("`{path}`") };
        let mut entries = reader.open_entries(&what, node, table.names())?;
        let section = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        let mut misspelt = Vec::new();
        for (key, _) in std::mem::take(&mut entries.rest) {
            let near = reader.nearest(&key.value, table.names());
            misspelt.extend(near.map(|near| (near, key.at)));
            if near.is_some() || others == Others::Ignored {
                let message = format!("unknown key `{}` is ignored", section(&shortened(&key.value)));
                reader.notice(Code::F0055, key.at, message, did_you_mean(near, ""));
            }
        }
        Some(Self { entries, path: path.to_owned(), misspelt })
    }

    /// The path of a key.
    pub(super) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Where the mapping begins.
    pub(super) fn at(&self) -> Span {
        self.entries.at
    }

    pub(super) fn get(&self, name: &str) -> Option<&'n Node> {
        self.entries.get(name)
    }

    pub(super) fn read<'a, T>(
        &self,
        reader: &mut Reader<'a>,
        name: &str,
        read: impl FnOnce(&mut Reader<'a>, &str, &'n Node) -> Option<T>,
    ) -> Option<T> {
        let node = self.get(name)?;
        read(reader, &format!("`{}`", self.path(name)), node)
    }

    /// The value of a key that must be there.
    pub(super) fn required(&self, reader: &mut Reader<'_>, name: &str) -> Option<&'n Node> {
        let node = self.get(name);
        if node.is_none() {
            let near = self.misspelt.iter().find(|(near, _)| *near == name);
            let label = did_you_mean(near.map(|(near, _)| *near), "");
            let key = self.entries.key(name).or(near.map(|(_, at)| *at));
            let at = key.unwrap_or_else(|| first_line(reader, self.at()));
            reader.error(Code::F0012, at, format!("`{}` is missing", self.path(name)), label);
        }
        node
    }

    /// A mapping below a key.
    pub(super) fn section(
        &self,
        reader: &mut Reader<'_>,
        name: &str,
        table: &Table,
        others: Others,
    ) -> Option<Section<'n>> {
        Section::open(reader, &self.path(name), self.get(name)?, table, others)
    }

    /// A word, or nothing if it is empty: PaddleRec's samples have such values where a user fills in his own.
    pub(super) fn word(&self, reader: &mut Reader<'_>, name: &str) -> Option<At<String>> {
        self.read(reader, name, Reader::text).filter(|text| !text.value.trim().is_empty())
    }

    pub(super) fn number(&self, reader: &mut Reader<'_>, name: &str, least: u32, most: u32) -> Option<At<u32>> {
        self.read(reader, name, |reader, what, node| reader.number(what, &unquoted(node), least, most))
    }

    /// One of these words, in any case.
    pub(super) fn choice(
        &self,
        reader: &mut Reader<'_>,
        name: &str,
        words: &'static [&'static str],
    ) -> Option<At<&'static str>> {
        self.read(reader, name, |reader, what, node| choice(reader, what, node, words))
    }

    /// The items of a list of mappings with these keys, each with its name.
    pub(super) fn items(
        &self,
        reader: &mut Reader<'_>,
        name: &str,
        table: &Table,
    ) -> Option<Vec<(At<String>, Section<'n>)>> {
        let node = self.get(name)?;
        let Value::List(nodes) = &node.value else {
            reader.wrong_type(&format!("`{}`", self.path(name)), node, "a list of mappings");
            return None;
        };
        let mut items = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let path = format!("{}[{index}]", self.path(name));
            let Some(section) = Section::open(reader, &path, node, table, Others::OfModel) else { continue };
            if let Some(name) = section.required(reader, "name")
                && let Some(name) = reader.word(&format!("`{path}.name`"), name)
            {
                items.push((name, section));
            }
        }
        Some(items)
    }
}

/// Only the first line of a mapping is marked where a key is missing in it.
pub(super) fn first_line(reader: &Reader<'_>, at: Span) -> Span {
    let line = reader.source.slice(at).lines().next().unwrap_or_default();
    Span::new(at.start, at.start + line.len())
}

/// PaddleRec makes texts of all values: `"2"` is as good as `2`.
fn unquoted(node: &Node) -> Node {
    let mut node = node.clone();
    if let Value::Scalar(Scalar { kind: kind @ ScalarKind::Text, text }) = &mut node.value
        && !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_digit())
    {
        *kind = ScalarKind::Number;
    }
    node
}

pub(super) fn choice(
    reader: &mut Reader<'_>,
    what: &str,
    node: &Node,
    words: &'static [&'static str],
) -> Option<At<&'static str>> {
    let text = reader.text(what, node)?;
    let lower = text.value.to_ascii_lowercase();
    if let Some(word) = words.iter().find(|word| **word == lower) {
        return Some(At { value: word, at: text.at });
    }
    let near = reader.nearest(&lower, words.iter().copied());
    let label = did_you_mean(near, &format!("this is {}", node.found()));
    reader.error(Code::F0013, text.at, format!("{what} must be {}", either(words)), label);
    None
}
