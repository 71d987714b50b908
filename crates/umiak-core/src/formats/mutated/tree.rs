//! Documents as trees that can be changed, and written in many styles.

use crate::formats::document::tree::{Node, Scalar, ScalarKind, Value};

#[derive(Debug, Clone)]
pub(crate) enum Tree {
    Leaf(Scalar),
    /// YAML as it is written, in one line.
    Raw(String),
    List(Vec<Entry>),
    Map(Vec<Entry>),
}

/// An entry of a mapping or a list.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Empty in a list.
    pub(crate) key: String,
    pub(crate) value: Tree,
    /// The line of this entry is wanted.
    pub(crate) marked: bool,
}

impl Entry {
    pub(crate) fn new(key: &str, value: Tree) -> Self {
        Self { key: key.to_owned(), value, marked: false }
    }

    pub(crate) fn raw(key: &str, value: &str) -> Self {
        Self::new(key, Tree::Raw(value.to_owned()))
    }
}

impl Tree {
    pub(crate) fn new(node: &Node) -> Self {
        match &node.value {
            Value::Scalar(scalar) => Self::Leaf(scalar.clone()),
            Value::List(items) => Self::List(items.iter().map(|item| Entry::new("", Self::new(item))).collect()),
            Value::Map(entries) => {
                let entry = |(key, value): &(Node, Node)| Entry::new(key.text().expect("a word"), Self::new(value));
                Self::Map(entries.iter().map(entry).collect())
            }
        }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        match self {
            Self::List(entries) | Self::Map(entries) => entries,
            Self::Leaf(_) | Self::Raw(_) => &[],
        }
    }

    pub(crate) fn entries_mut(&mut self) -> &mut Vec<Entry> {
        match self {
            Self::List(entries) | Self::Map(entries) => entries,
            Self::Leaf(_) | Self::Raw(_) => panic!("no entries"),
        }
    }

    /// The place of every entry below this node: positions from the root on.
    pub(crate) fn places(&self) -> Vec<Vec<usize>> {
        let below = |(at, entry): (usize, &Entry)| {
            let deeper = entry.value.places().into_iter().map(move |place| [vec![at], place].concat());
            std::iter::once(vec![at]).chain(deeper)
        };
        self.entries().iter().enumerate().flat_map(below).collect()
    }

    pub(crate) fn at(&mut self, place: &[usize]) -> &mut Entry {
        match place {
            [] => panic!("the root has no entry"),
            [at] => &mut self.entries_mut()[*at],
            [at, rest @ ..] => self.entries_mut()[*at].value.at(rest),
        }
    }

    /// The list or mapping that has the entry at this place.
    pub(crate) fn around(&mut self, place: &[usize]) -> &mut Vec<Entry> {
        match place {
            [] | [_] => self.entries_mut(),
            [around @ .., _] => self.at(around).value.entries_mut(),
        }
    }

    /// Text in a style that the seed selects, and the line of the marked entry (of the first one if none is).
    pub(crate) fn write(&self, seed: u64) -> (String, usize) {
        let mut writer = Writer { random: seed, text: String::new(), marked: None, indent: 2, is_inset: false };
        writer.indent = if writer.one_in(3) { 4 } else { 2 };
        writer.is_inset = writer.one_in(2);
        if writer.one_in(4) {
            writer.text += "# a comment: of the user\n---\n";
        }
        writer.block(self, 0, true);
        let marked = writer.marked.unwrap_or_else(|| {
            let is_entry = |line: &str| !line.is_empty() && !line.starts_with(['#', '-']);
            writer.text.lines().position(is_entry).expect("an entry") + 1
        });
        let crlf = writer.one_in(5);
        (if crlf { writer.text.replace('\n', "\r\n") } else { writer.text }, marked)
    }
}

struct Writer {
    random: u64,
    text: String,
    marked: Option<usize>,
    indent: usize,
    /// Lists are indented below their keys.
    is_inset: bool,
}

impl Writer {
    fn number(&mut self, below: usize) -> usize {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % below as u64) as usize
    }

    fn one_in(&mut self, of: usize) -> bool {
        self.number(of) == 0
    }

    fn mark(&mut self, entry: &Entry) {
        if entry.marked {
            self.marked = Some(self.text.matches('\n').count() + 1);
        }
    }

    /// Entries on lines of their own. The first one continues a line if `is_new` is false.
    fn block(&mut self, tree: &Tree, depth: usize, mut is_new: bool) {
        let mut entries: Vec<&Entry> = tree.entries().iter().collect();
        if matches!(tree, Tree::Map(_)) {
            // Duplicates stay in their order: the second one is the mistake.
            let has_mark = |entries: &[&Entry]| entries.iter().any(|entry| entry.marked);
            let turn = if has_mark(&entries) { 0 } else { self.number(entries.len().max(1)) };
            entries.rotate_left(turn);
        }
        for entry in entries {
            if is_new {
                match self.number(12) {
                    0 => self.text.push('\n'),
                    1 => self.text += "# key: in a comment\n",
                    _ => {}
                }
                self.text += &" ".repeat(depth);
            }
            is_new = true;
            self.mark(entry);
            if entry.key.is_empty() {
                self.text += "- ";
            } else {
                let quote = if self.one_in(8) { "'" } else { "" };
                self.text += &[quote, &entry.key, quote, ":"].concat();
            }
            self.value(entry, depth);
        }
    }

    fn value(&mut self, entry: &Entry, depth: usize) {
        let is_item = entry.key.is_empty();
        let gap = if is_item { "" } else { " " };
        match &entry.value {
            Tree::Leaf(scalar) if scalar.text.contains('\n') => {
                self.text += &[gap, "|\n"].concat();
                for line in scalar.text.lines() {
                    self.text += &[&" ".repeat(depth + self.indent), line, "\n"].concat();
                }
            }
            value @ (Tree::List(_) | Tree::Map(_)) if !value.entries().is_empty() && !self.one_in(6) => {
                let depth = match value {
                    _ if is_item => depth + 2,
                    Tree::List(_) if !self.is_inset => depth,
                    _ => depth + self.indent,
                };
                if !is_item {
                    self.text.push('\n');
                }
                self.block(value, depth, !is_item);
            }
            value => {
                self.text += gap;
                self.flow(value);
                self.text.push('\n');
            }
        }
    }

    /// In one line.
    fn flow(&mut self, tree: &Tree) {
        match tree {
            Tree::Raw(text) => self.text += text,
            Tree::Leaf(Scalar { text, kind: ScalarKind::Text }) => {
                self.text += &serde_json::to_string(text).expect("a string has a JSON form");
            }
            Tree::Leaf(scalar) => self.text += &scalar.text,
            Tree::List(entries) | Tree::Map(entries) => {
                let (open, close) = if matches!(tree, Tree::List(_)) { ("[", "]") } else { ("{", "}") };
                self.text += open;
                for (at, entry) in entries.iter().enumerate() {
                    self.text += if at == 0 { "" } else { ", " };
                    self.mark(entry);
                    if !entry.key.is_empty() {
                        self.text += &[entry.key.as_str(), ": "].concat();
                    }
                    self.flow(&entry.value);
                }
                self.text += close;
            }
        }
    }
}
