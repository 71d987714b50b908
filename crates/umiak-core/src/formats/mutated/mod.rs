//! Every key of a format with every mistake that can be made with it, each in another style of writing: one error, in the
//! line of the mistake, that names the key. A format has a document with all its keys, and rules for their values.

mod tree;

use std::collections::BTreeMap;

pub(crate) use tree::{Entry, Tree};

use super::document;
use super::document::keys::Table;
use crate::diag::{Diagnostic, Severity, Source};

/// What the value of a key must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Version,
    /// Any scalar.
    Text,
    Word,
    Name,
    /// A number of at least this.
    Number(i64),
    Switch,
    Choice,
    Map,
    /// A list of mappings, with at least one.
    Maps,
    /// A list of mappings.
    List,
    /// A list of words.
    Words,
    /// A list of strings, with at least one.
    Lines,
    /// A value with a unit.
    Measure,
    /// Anything: it is not used here.
    Unused,
    /// The values that are wrong.
    Not(&'static [&'static str]),
}

use Shape::{Choice, Lines, List, Map, Maps, Measure, Name, Not, Number, Switch, Text, Unused, Version, Word, Words};

/// A format, for the trials.
pub(crate) struct Format {
    /// A document that has every key.
    pub(crate) full: &'static str,
    /// Keys by their place; `*` is any key or item. The last column is true for a key that must be there.
    pub(crate) rules: &'static [(&'static str, Shape, bool)],
    /// Mappings with fixed keys, by their place, and whether they may have others. A later one wins.
    pub(crate) tables: Vec<(&'static str, Vec<&'static str>, bool)>,
    /// Items of lists are named by these keys.
    pub(crate) item_names: &'static [&'static str],
    pub(crate) read: fn(&Source) -> Vec<Diagnostic>,
    /// True for errors about what refers to something that is missing.
    pub(crate) follows: fn(&Diagnostic) -> bool,
    /// True for mappings whose other keys have a notice.
    pub(crate) is_told: fn(&str) -> bool,
}

/// Values that are wrong for a shape.
fn wrong(shape: Shape) -> &'static [&'static str] {
    match shape {
        Version => &["1", "3", "two", "2.0", "[2]", "{a: 2}", "''"],
        Text => &["[a]", "{a: b}", "[]", "{}"],
        Word => &["[a]", "{a: b}", "''", "'  '", "[]"],
        Name => &["[a]", "{a: b}", "''", "a b", "ä", "a.b", "'a\\nb'"],
        Number(-2) => &["word", "1.5", "-3", "99999999999", "[1]", "{a: 1}", "true", "'1'", "''", "1e3", "0x1"],
        Number(-1) => &["word", "1.5", "-2", "99999999999", "[1]", "{a: 1}", "true", "'1'", "''", "1e3", "0x1"],
        Number(0) => &["word", "1.5", "-1", "99999999999", "[1]", "{a: 1}", "true", "'1'", "''", "1e3", "-0"],
        Number(_) => &["word", "1.5", "0", "-1", "99999999999", "[1]", "{a: 1}", "false", "'1'", "''", "1e3"],
        Switch => &["word", "1", "'true'", "[true]", "{a: b}", "''"],
        Choice => &["word", "1", "[a]", "{a: b}", "''", "true"],
        Map => &["word", "1", "[a]", "''", "true"],
        Maps => &["word", "1", "{a: b}", "[]", "''", "[1]", "[[a]]", "[null]"],
        List => &["word", "1", "{a: b}", "''", "[1]", "[[a]]", "[null]"],
        Words => &["word", "1", "{a: b}", "''", "[[a]]", "[{a: b}]", "[null]", "['']"],
        Lines => &["word", "1", "{a: b}", "[]", "''", "[[a]]", "[{a: b}]", "[null]"],
        Measure => &["word", "-1", "[1]", "{a: 1}", "true", "''"],
        Unused => &[],
        Not(values) => values,
    }
}

fn is_at(path: &str, pattern: &str) -> bool {
    let (path, pattern): (Vec<&str>, Vec<&str>) = (path.split('/').collect(), pattern.split('/').collect());
    path.len() == pattern.len() && path.iter().zip(pattern).all(|(word, wanted)| wanted == "*" || *word == wanted)
}

impl Format {
    pub(crate) fn tree(&self) -> Tree {
        let (_, tree) = document::recognise(&Source::new("full.yaml", self.full));
        Tree::new(&tree.expect("it is YAML").root)
    }

    pub(crate) fn path(&self, tree: &Tree, place: &[usize]) -> String {
        let mut at = tree;
        let mut words = Vec::new();
        for position in place {
            let entry = &at.entries()[*position];
            at = &entry.value;
            let name = at.entries().iter().find(|entry| self.item_names.contains(&entry.key.as_str()));
            words.push(match (entry.key.as_str(), name.map(|name| &name.value)) {
                ("", Some(Tree::Leaf(name))) => name.text.clone(),
                ("", _) => "*".to_owned(),
                (key, _) => key.to_owned(),
            });
        }
        words.join("/")
    }

    fn rule(&self, path: &str) -> Option<(Shape, bool)> {
        let found = self.rules.iter().find(|(pattern, ..)| is_at(path, pattern));
        found.map(|(_, shape, is_required)| (*shape, *is_required))
    }

    /// The errors of a document, and its notices.
    pub(crate) fn read(&self, text: &str) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
        let found = (self.read)(&Source::new("job.yaml", text));
        found.into_iter().partition(|one| one.severity == Severity::Error)
    }

    /// Keys with a rule: their place, path, and name.
    fn keys(&self, tree: &Tree) -> Vec<(Vec<usize>, String, String)> {
        let places = tree.places().into_iter().map(|place| (self.path(tree, &place), place));
        let known = places.filter(|(path, _)| self.rule(path).is_some());
        known
            .map(|(path, place)| {
                let key = tree.clone().at(&place).key.clone();
                (place, path, key)
            })
            .filter(|(_, _, key)| !key.is_empty())
            .collect()
    }

    pub(crate) fn has_every_key(&self) {
        let tree = self.tree();
        let (text, _) = tree.write(1);
        assert_eq!(self.read(&text).0, [], "{text}");
        let paths: Vec<String> = tree.places().iter().map(|place| self.path(&tree, place)).collect();
        for (pattern, ..) in self.rules {
            assert!(paths.iter().any(|path| is_at(path, pattern)), "nothing at {pattern}");
        }
        for (table, names, _) in &self.tables {
            for name in names {
                let pattern = if table.is_empty() { (*name).to_owned() } else { format!("{table}/{name}") };
                let found = paths.iter().find(|path| is_at(path, &pattern));
                let found = found.unwrap_or_else(|| panic!("nothing at {pattern}"));
                assert!(self.rule(found).is_some(), "no rule for {found}");
            }
        }
    }

    /// The examples of the reference page are right. `is_it` decides between tables with equal places; names in examples
    /// may be unknown in the document, which `follows`.
    pub(crate) fn examples(
        &self,
        tables: &[(&'static str, &Table, bool)],
        is_it: impl Fn(&str, &str) -> bool,
        follows: impl Fn(&Diagnostic) -> bool,
    ) {
        let tree = self.tree();
        let places: Vec<(String, Vec<usize>)> =
            tree.places().into_iter().map(|place| (self.path(&tree, &place), place)).collect();
        for (table, key) in tables.iter().flat_map(|(place, table, _)| table.keys.iter().map(move |key| (*place, key)))
        {
            assert!(key.help.ends_with('.'), "{}", key.name);
            let pattern = if table.is_empty() { key.name.to_owned() } else { format!("{table}/{}", key.name) };
            let found = places.iter().find(|(path, _)| is_at(path, &pattern) && is_it(path, &pattern));
            let (_, place) = found.unwrap_or_else(|| panic!("nothing at {pattern}"));
            let mut tree = tree.clone();
            *tree.at(place) = Entry::raw(key.name, key.example);
            let (text, _) = tree.write(1);
            let mut errors = self.read(&text).0;
            errors.retain(|error| !follows(error));
            assert_eq!(errors, [], "{pattern}: {}\n{text}", key.example);
        }
    }

    pub(crate) fn wrong_types(&self) {
        let mut trial = Trial::new(self);
        let tree = self.tree();
        for (place, path, key) in self.keys(&tree) {
            let (shape, _) = self.rule(&path).expect("it has a rule");
            for value in wrong(shape) {
                let mut tree = tree.clone();
                *tree.at(&place) = Entry { marked: true, ..Entry::raw(&key, value) };
                trial.refused(&format!("{path}: {value}"), &tree, &key);
            }
        }
        trial.finish("wrong type");
    }

    pub(crate) fn missing_keys(&self) {
        let mut trial = Trial::new(self);
        let tree = self.tree();
        for (place, path, key) in self.keys(&tree) {
            let (_, is_required) = self.rule(&path).expect("it has a rule");
            for is_empty in [false, true] {
                let mut tree = tree.clone();
                let (_, around) = place.split_last().expect("a place");
                if is_empty {
                    *tree.at(&place) = Entry { marked: true, ..Entry::raw(&key, "") };
                } else {
                    tree.around(&place).remove(*place.last().expect("a place"));
                    if !around.is_empty() {
                        tree.at(around).marked = true;
                    }
                }
                // A name that the user has chosen needs a value.
                let is_named = self.rules.iter().any(|(pattern, ..)| pattern.ends_with('*') && is_at(&path, pattern));
                if is_required || (is_empty && is_named) {
                    let what = if is_empty { format!("{path}, empty") } else { path.clone() };
                    trial.refused(&what, &tree, &format!("`{key}`"));
                    continue;
                }
                let (text, _) = trial.write(&tree);
                let (errors, _) = self.read(&text);
                assert!(errors.iter().all(self.follows), "{path}: {errors:?}\n{text}");
            }
        }
        trial.finish("missing");
    }

    pub(crate) fn extra_keys(&self) {
        let mut trial = Trial::new(self);
        let tree = self.tree();
        let places = tree.places().into_iter().map(|place| (self.path(&tree, &place), place));
        for (path, place) in places.chain([(String::new(), vec![])]).collect::<Vec<_>>() {
            let found = self.tables.iter().rev().find(|(table, ..)| is_at(&path, table));
            let Some((_, names, is_open)) = found else { continue };
            let misspelt = names.iter().map(|name| format!("{name}s"));
            for (at, name) in ["zzzz", "x-y", "ключ"].map(str::to_owned).into_iter().chain(misspelt).enumerate() {
                let mut tree = tree.clone();
                let entries = if place.is_empty() { tree.entries_mut() } else { tree.at(&place).value.entries_mut() };
                let entry = Entry { marked: true, ..Entry::raw(&name, "1") };
                entries.insert(at % (entries.len() + 1), entry);
                if *is_open {
                    let (text, line) = trial.write(&tree);
                    let (errors, notices) = self.read(&text);
                    assert_eq!(errors, [], "{path}/{name}\n{text}");
                    let is_it = |notice: &Diagnostic| {
                        notice.labels.first().is_some_and(|label| label.start.line == line)
                            && notice.message.contains(&format!("{name}`"))
                    };
                    let is_told = notices.iter().any(is_it);
                    assert_eq!(is_told, (self.is_told)(&path), "{path}/{name}: {notices:?}\n{text}");
                } else {
                    trial.refused(&format!("{path}/{name}"), &tree, &format!("unknown key `{name}`"));
                }
            }
        }
        trial.finish("extra");
    }

    pub(crate) fn duplicate_keys(&self) {
        let mut trial = Trial::new(self);
        let tree = self.tree();
        for place in tree.places() {
            let path = self.path(&tree, &place);
            let mut tree = tree.clone();
            let copy = Entry { marked: true, ..tree.at(&place).clone() };
            let (key, last) = (copy.key.clone(), *place.last().expect("a place"));
            if key.is_empty() {
                continue;
            }
            tree.around(&place).insert(last + 1, copy);
            trial.refused(&path, &tree, &format!("duplicate key `{key}`"));
        }
        trial.finish("duplicate");
    }
}

/// Counts documents and collects what is wrong with their messages.
pub(crate) struct Trial<'f> {
    format: &'f Format,
    documents: usize,
    wrong: BTreeMap<String, String>,
}

impl<'f> Trial<'f> {
    pub(crate) fn new(format: &'f Format) -> Self {
        Self { format, documents: 0, wrong: BTreeMap::new() }
    }

    /// The document in its own style, and the line of its mark.
    fn write(&mut self, tree: &Tree) -> (String, usize) {
        self.documents += 1;
        tree.write((self.documents as u64 - 1) * 31)
    }

    /// The document has one error, in the marked line, with this word.
    pub(crate) fn refused(&mut self, what: &str, tree: &Tree, word: &str) {
        self.refused_at(what, tree, word, None);
    }

    /// The same, in the line that contains `mistake`.
    pub(crate) fn refused_at(&mut self, what: &str, tree: &Tree, word: &str, mistake: Option<&str>) {
        let (text, marked) = self.write(tree);
        let line = mistake.and_then(|mistake| text.lines().position(|line| line.contains(mistake)));
        let line = line.map_or(marked, |line| line + 1);
        let (errors, _) = self.format.read(&text);
        let told: Vec<(Option<usize>, &str)> = errors
            .iter()
            .map(|error| (error.labels.first().map(|label| label.start.line), error.message.as_str()))
            .collect();
        let is_right = matches!(&told[..], [(Some(at), said)] if *at == line && said.contains(word));
        if !is_right {
            let numbered = text.lines().enumerate().map(|(at, line)| format!("{:3} {line}", at + 1));
            let shown = numbered.collect::<Vec<_>>().join("\n");
            let text = format!("line {line}, `{word}`: {told:?}\n{shown}");
            self.wrong.entry(what.to_owned()).or_insert(text);
        }
    }

    pub(crate) fn finish(self, kind: &str) {
        let Self { documents, wrong, .. } = self;
        let first = wrong.values().next().cloned().unwrap_or_default();
        let all: Vec<&str> =
            wrong.iter().flat_map(|(what, text)| [what.as_str(), text.lines().next().unwrap_or("")]).collect();
        assert!(wrong.is_empty(), "{kind}: {} wrong\n{}\n\n{first}", wrong.len(), all.join("\n"));
        assert!(documents >= 100, "{kind}: {documents} documents");
    }
}
