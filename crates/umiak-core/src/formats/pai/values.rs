//! What `<% $parameters.name %>` and the like stand for. References are looked up in the tree, never listed: a document
//! may have many values below long names.

use std::collections::HashMap;

use crate::diag::nearest;
use crate::formats::document::reader::did_you_mean;
use crate::formats::document::template::{Templates, Unfilled};
use crate::formats::document::tree::{Node, Value};
use crate::mask;

/// Everything below one node, by reference.
#[derive(Debug, Default)]
pub(super) struct Below<'n> {
    root: Option<&'n Node>,
    /// Entries of mappings, by the place of the mapping and the key.
    entries: HashMap<(usize, &'n str), &'n Node>,
    /// Lists as a whole: their items, joined by commas.
    lists: HashMap<usize, String>,
}

fn place(node: &Node) -> usize {
    std::ptr::from_ref(node) as usize
}

impl<'n> Below<'n> {
    pub(super) fn new(root: &'n Node) -> Self {
        let mut below = Self { root: Some(root), ..Self::default() };
        below.add(root);
        below
    }

    fn add(&mut self, node: &'n Node) {
        match &node.value {
            Value::Scalar(_) => {}
            Value::List(items) => {
                let texts: Vec<&str> = items.iter().filter_map(Node::text).collect();
                self.lists.insert(place(node), texts.join(","));
                for item in items {
                    self.add(item);
                }
            }
            Value::Map(entries) => {
                for (key, value) in entries {
                    if let Some(key) = key.text() {
                        self.entries.insert((place(node), key), value);
                    }
                    self.add(value);
                }
            }
        }
    }

    /// What is at `uri.0`.
    fn at(&self, path: &str) -> Option<&'n Node> {
        let mut node = self.root?;
        for part in path.split('.') {
            node = match &node.value {
                Value::Map(_) => self.entries.get(&(place(node), part))?,
                Value::List(items) => items.get(part.parse::<usize>().ok()?)?,
                Value::Scalar(_) => return None,
            };
        }
        Some(node)
    }

    /// The value of `uri.0`.
    fn get(&self, path: &str) -> Option<&str> {
        let node = self.at(path)?;
        match &node.value {
            Value::Scalar(_) if node.is_null() => None,
            Value::Scalar(scalar) => Some(&scalar.text),
            Value::List(_) => self.lists.get(&place(node)).map(String::as_str),
            Value::Map(_) => None,
        }
    }

    /// The names directly below the root.
    pub(super) fn names(&self) -> impl Iterator<Item = &'n str> {
        self.root.into_iter().flat_map(Node::entries).filter_map(|(key, _)| key.text())
    }

    /// Calls `take` with the texts that are secrets: all, or those below a key that names one.
    pub(super) fn secrets(&self, all: bool, take: &mut dyn FnMut(&str)) {
        fn walk(node: &Node, is_secret: bool, take: &mut dyn FnMut(&str)) {
            match &node.value {
                Value::Scalar(scalar) if is_secret && !node.is_null() => take(&scalar.text),
                Value::Scalar(_) => {}
                Value::List(items) => {
                    for item in items {
                        walk(item, is_secret, take);
                    }
                }
                Value::Map(entries) => {
                    for (key, value) in entries {
                        walk(value, is_secret || key.text().is_some_and(mask::is_secret), take);
                    }
                }
            }
        }
        if let Some(root) = self.root {
            walk(root, all, take);
        }
    }
}

/// Parameters and secrets: those of the document, and those of the command line.
#[derive(Debug, Default)]
pub(super) struct Values<'n> {
    pub(super) parameters: Below<'n>,
    pub(super) secrets: Below<'n>,
    /// By full name (`$secrets.token`); `None` for a value that must be given before the job can run.
    pub(super) given: HashMap<String, Option<String>>,
    /// Kinds whose mapping cannot be read, which is already reported.
    pub(super) broken: Vec<&'static str>,
}

impl<'n> Values<'n> {
    /// The value of a full name, if it has one: that of the command line, else that of the document.
    pub(super) fn known(&self, name: &str) -> Option<&str> {
        self.given.get(name).map_or_else(|| self.written(name), |given| given.as_deref())
    }

    /// The value of a full name in the document.
    pub(super) fn written(&self, name: &str) -> Option<&str> {
        let (below, path) = self.place(name)?;
        below.get(path)
    }

    /// What has this full name in the document.
    pub(super) fn node(&self, name: &str) -> Option<&'n Node> {
        let (below, path) = self.place(name)?;
        below.at(path)
    }

    fn place<'w>(&self, name: &'w str) -> Option<(&Below<'n>, &'w str)> {
        match name.split_once('.')? {
            (PARAMETERS, path) => Some((&self.parameters, path)),
            (SECRET, path) => Some((&self.secrets, path)),
            _ => None,
        }
    }
}

/// The full name of a reference: `[n]` is another way to write `.n`.
pub(super) fn canonical(word: &str) -> String {
    word.replace('[', ".").replace(']', "")
}

pub(super) const PARAMETERS: &str = "$parameters";
pub(super) const SECRET: &str = "$secrets";
const KINDS: [&str; 5] = [PARAMETERS, SECRET, "$data", "$output", "$script"];

impl Templates for Values<'_> {
    const OPEN: &'static str = "<%";
    const CLOSE: &'static str = "%>";
    const LITERAL: &'static str = "references are `$parameters.NAME`, `$secrets.NAME`, and `$data.KEY`, `$output.KEY` and `$script.KEY` of what the role uses";

    fn value(&self, word: &str) -> Result<&str, Unfilled> {
        let Some((kind, _)) = word.split_once('.').filter(|(_, rest)| !rest.is_empty()) else {
            return Err(Unfilled::NotAName);
        };
        if !KINDS.contains(&kind) {
            return Err(nearest(kind, KINDS).map_or(Unfilled::NotAName, |_| Unfilled::Unknown));
        }
        if self.broken.contains(&kind) {
            return Err(Unfilled::Missing);
        }
        let name = canonical(word);
        match self.given.get(&name) {
            Some(value) => value.as_deref().ok_or(Unfilled::Missing),
            None => self.written(&name).ok_or_else(|| match self.node(&name).map(|node| &node.value) {
                Some(Value::Map(_)) => Unfilled::Mapping,
                _ => Unfilled::Unknown,
            }),
        }
    }

    fn unknown(&self, word: &str) -> String {
        if let Some(node) = self.node(&canonical(word)) {
            let part = node.entries().iter().find_map(|(key, _)| key.text());
            return part.map_or("it is empty".to_owned(), |part| format!("name a part of it, as `{word}.{part}`"));
        }
        match word.split_once('.') {
            Some((kind, name)) if !KINDS.contains(&kind) => {
                did_you_mean(nearest(kind, KINDS).map(|kind| format!("{kind}.{name}")).as_deref(), "no such kind")
            }
            Some((SECRET, name)) => did_you_mean(nearest(name, self.secrets.names()), "not in `secrets`"),
            Some((_, name)) => did_you_mean(nearest(name, self.parameters.names()), "not in `parameters`"),
            None => String::new(),
        }
    }
}

/// Values of one role: of the prerequisites that it uses, and those that all roles share.
pub(super) struct RoleValues<'v, 'n> {
    pub(super) shared: &'v Values<'n>,
    /// By `data`, `output` and `script`.
    pub(super) own: Vec<(&'static str, &'v Below<'n>)>,
}

impl<'v> RoleValues<'v, '_> {
    /// What the role uses of the kind of this reference; `None` if it is not of such a kind.
    fn of<'w>(&self, word: &'w str) -> Option<(Option<&'v Below<'_>>, &'w str)> {
        let (kind, path) = word.strip_prefix('$')?.split_once('.')?;
        matches!(kind, "data" | "output" | "script").then(|| {
            let found = self.own.iter().find(|(own, _)| *own == kind).map(|(_, below)| *below);
            (found, path)
        })
    }
}

impl Templates for RoleValues<'_, '_> {
    const OPEN: &'static str = Values::OPEN;
    const CLOSE: &'static str = Values::CLOSE;
    const LITERAL: &'static str = Values::LITERAL;

    fn value(&self, word: &str) -> Result<&str, Unfilled> {
        match self.of(word) {
            None | Some((_, "")) => self.shared.value(word),
            // OpenPAI leaves them too, and published documents have such references.
            Some((found, path)) => found.and_then(|below| below.get(&canonical(path))).ok_or(Unfilled::Kept),
        }
    }

    fn unknown(&self, word: &str) -> String {
        match self.of(word) {
            Some((Some(below), path)) => did_you_mean(nearest(path, below.names()), "no such key"),
            Some((None, _)) => "the task role uses none".to_owned(),
            None => self.shared.unknown(word),
        }
    }
}
