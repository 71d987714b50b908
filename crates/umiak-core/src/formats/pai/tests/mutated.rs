//! Every key of the protocol with every mistake that can be made with it, each in another style of writing: one
//! error, in the line of the mistake, that names the key.

use std::collections::BTreeMap;

use super::super::keys;
use super::tree::{Entry, Tree};
use crate::diag::{Code, Diagnostic, Severity, Source};
use crate::formats::document::keys::Table;
use crate::formats::document::tree::{Scalar, ScalarKind};
use crate::formats::settings::Settings;
use crate::formats::{check, document};

/// What the value of a key must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
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
    /// A list of words.
    Words,
    /// A list of strings, with at least one.
    Lines,
    /// Anything: it is not used here.
    Unused,
}

use Shape::{Choice, Lines, Map, Maps, Name, Number, Switch, Text, Unused, Version, Word, Words};

/// Keys by their place; `*` is any key or item. The last column is true for a key that must be there.
const RULES: &[(&str, Shape, bool)] = &[
    ("protocolVersion", Version, true),
    ("name", Name, true),
    ("type", Choice, true),
    ("version", Text, false),
    ("contributor", Text, false),
    ("description", Text, false),
    ("prerequisites", Maps, false),
    ("parameters", Map, false),
    ("secrets", Map, false),
    ("jobRetryCount", Number(0), false),
    ("taskRoles", Map, true),
    ("deployments", Maps, false),
    ("defaults", Map, false),
    ("extras", Map, false),
    ("prerequisites/*/protocolVersion", Version, false),
    ("prerequisites/*/name", Name, true),
    ("prerequisites/*/type", Choice, true),
    ("prerequisites/*/version", Text, false),
    ("prerequisites/*/contributor", Text, false),
    ("prerequisites/*/description", Text, false),
    ("prerequisites/image/uri", Word, true),
    ("prerequisites/image/auth", Map, false),
    ("prerequisites/image/auth/username", Text, false),
    ("prerequisites/image/auth/password", Text, false),
    ("prerequisites/image/auth/registryuri", Text, false),
    ("prerequisites/cifar/uri", Words, false),
    ("prerequisites/results/uri", Text, false),
    ("prerequisites/code/uri", Text, false),
    ("prerequisites/cifar/require", Words, false),
    ("prerequisites/code/plugin", Word, false),
    ("prerequisites/code/failurePolicy", Choice, false),
    ("prerequisites/code/callbacks", Maps, false),
    ("prerequisites/code/callbacks/*/event", Choice, true),
    ("prerequisites/code/callbacks/*/commands", Lines, true),
    ("taskRoles/*", Map, false),
    ("taskRoles/*/protocolVersion", Version, false),
    ("taskRoles/*/instances", Number(1), false),
    ("taskRoles/*/completion", Map, false),
    ("taskRoles/*/completion/minFailedInstances", Number(-1), false),
    ("taskRoles/*/completion/minSucceededInstances", Number(-1), false),
    ("taskRoles/*/taskRetryCount", Number(-2), false),
    ("taskRoles/*/prerequisites", Words, false),
    ("taskRoles/*/dockerImage", Word, true),
    ("taskRoles/*/data", Word, false),
    ("taskRoles/*/output", Word, false),
    ("taskRoles/*/script", Word, false),
    ("taskRoles/*/extraContainerOptions", Map, false),
    ("taskRoles/*/extraContainerOptions/shmMB", Number(0), false),
    ("taskRoles/*/extraContainerOptions/infiniband", Switch, false),
    ("taskRoles/*/resourcePerInstance", Map, true),
    ("taskRoles/*/resourcePerInstance/cpu", Number(0), true),
    ("taskRoles/*/resourcePerInstance/memoryMB", Number(0), true),
    ("taskRoles/*/resourcePerInstance/gpu", Number(0), true),
    ("taskRoles/*/resourcePerInstance/ports", Map, false),
    ("taskRoles/*/resourcePerInstance/ports/*", Number(1), false),
    ("taskRoles/*/commands", Lines, true),
    ("deployments/*/name", Name, true),
    ("deployments/*/taskRoles", Map, true),
    ("deployments/*/taskRoles/*", Map, false),
    ("deployments/*/taskRoles/*/preCommands", Lines, false),
    ("deployments/*/taskRoles/*/postCommands", Lines, false),
    ("defaults/virtualCluster", Word, false),
    ("defaults/deployment", Word, false),
    ("extras/gangAllocation", Switch, false),
    ("extras/com.microsoft.pai.runtimeplugin", Maps, false),
    ("extras/com.microsoft.pai.runtimeplugin/*/plugin", Word, true),
    ("extras/com.microsoft.pai.runtimeplugin/*/taskroles", Words, false),
    ("extras/com.microsoft.pai.runtimeplugin/*/failurePolicy", Choice, false),
    ("extras/com.microsoft.pai.runtimeplugin/cmd/parameters", Map, false),
    ("extras/com.microsoft.pai.runtimeplugin/cmd/parameters/preCommands", Lines, false),
    ("extras/com.microsoft.pai.runtimeplugin/cmd/parameters/postCommands", Lines, false),
    ("extras/com.microsoft.pai.runtimeplugin/ssh/parameters", Unused, false),
    ("extras/storages", Unused, false),
    ("extras/hivedScheduler", Unused, false),
    ("extras/hivedScheduler/jobPriorityClass", Choice, false),
    ("extras/jobStatusChangeNotification", Unused, false),
    ("extras/submitFrom", Unused, false),
];

/// Mappings with fixed keys, by their place, and whether they may have others.
static TABLES: [(&str, &Table, bool); 14] = [
    ("", &keys::DOCUMENT, false),
    ("prerequisites/*", &keys::PREREQUISITE, true),
    ("prerequisites/image", &keys::IMAGE, false),
    ("prerequisites/image/auth", &keys::AUTH, false),
    ("prerequisites/code/callbacks/*", &keys::CALLBACK, false),
    ("taskRoles/*", &keys::ROLE, false),
    ("taskRoles/*/completion", &keys::COMPLETION, false),
    ("taskRoles/*/resourcePerInstance", &keys::RESOURCES, false),
    ("taskRoles/*/extraContainerOptions", &keys::CONTAINER, true),
    ("deployments/*", &keys::DEPLOYMENT, false),
    ("deployments/*/taskRoles/*", &keys::DEPLOYED_ROLE, false),
    ("defaults", &keys::DEFAULTS, true),
    ("extras", &keys::EXTRAS, true),
    ("extras/com.microsoft.pai.runtimeplugin/*", &keys::PLUGIN, false),
];

/// The same with the names of the keys, and mappings whose keys are those of several.
fn tables() -> Vec<(&'static str, Vec<&'static str>, bool)> {
    let own = [
        ("extras/com.microsoft.pai.runtimeplugin/cmd/parameters", vec!["preCommands", "postCommands"], true),
        ("prerequisites/code", vec!["callbacks", "failurePolicy"], true),
    ];
    TABLES.iter().map(|(place, table, is_open)| (*place, table.names().collect(), *is_open)).chain(own).collect()
}

/// The document that has every key. Items of lists are named by their `name` or `plugin`.
fn full() -> Tree {
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/documents/openpai/full.yaml"));
    let (_, tree) = document::recognise(&Source::new("full.yaml", text));
    Tree::new(&tree.expect("it is YAML").root)
}

fn path(tree: &Tree, place: &[usize]) -> String {
    let mut at = tree;
    let mut words = Vec::new();
    for position in place {
        let entry = &at.entries()[*position];
        at = &entry.value;
        let name = at.entries().iter().find(|entry| matches!(entry.key.as_str(), "name" | "plugin"));
        words.push(match (entry.key.as_str(), name.map(|name| &name.value)) {
            ("", Some(Tree::Leaf(name))) => name.text.clone(),
            ("", _) => "*".to_owned(),
            (key, _) => key.to_owned(),
        });
    }
    words.join("/")
}

fn is_at(path: &str, pattern: &str) -> bool {
    let (path, pattern): (Vec<&str>, Vec<&str>) = (path.split('/').collect(), pattern.split('/').collect());
    path.len() == pattern.len() && path.iter().zip(pattern).all(|(word, wanted)| wanted == "*" || *word == wanted)
}

fn rule(path: &str) -> Option<(Shape, bool)> {
    RULES.iter().find(|(pattern, ..)| is_at(path, pattern)).map(|(_, shape, is_required)| (*shape, *is_required))
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
        Switch => &["word", "1", "'true'", "[true]", "{a: b}", "yes", "''"],
        Choice => &["word", "1", "[a]", "{a: b}", "''", "true"],
        Map => &["word", "1", "[a]", "''", "true"],
        Maps => &["word", "1", "{a: b}", "[]", "''", "[1]", "[[a]]", "[null]"],
        Words => &["word", "1", "{a: b}", "''", "[[a]]", "[{a: b}]", "[null]", "['']"],
        Lines => &["word", "1", "{a: b}", "[]", "''", "[[a]]", "[{a: b}]", "[null]"],
        Unused => &[],
    }
}

/// The errors of a document, or its notices.
fn read(text: &str) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
    let found = check(&Source::new("job.yaml", text), &[], &Settings::default()).diagnostics;
    found.into_iter().partition(|one| one.severity == Severity::Error)
}

/// Counts documents and collects what is wrong with their messages.
#[derive(Default)]
struct Trial {
    documents: usize,
    wrong: BTreeMap<String, String>,
}

impl Trial {
    /// The document has one error, in the marked line, with this word.
    fn refused(&mut self, what: &str, tree: &Tree, word: &str) {
        self.refused_at(what, tree, word, None);
    }

    /// The same, in the line that contains `mistake`.
    fn refused_at(&mut self, what: &str, tree: &Tree, word: &str, mistake: Option<&str>) {
        let (text, marked) = tree.write(self.documents as u64 * 31);
        let line = mistake.and_then(|mistake| text.lines().position(|line| line.contains(mistake)));
        let line = line.map_or(marked, |line| line + 1);
        self.documents += 1;
        let (errors, _) = read(&text);
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

    fn finish(self, kind: &str) {
        let Self { documents, wrong } = self;
        let first = wrong.values().next().cloned().unwrap_or_default();
        let all: Vec<&str> =
            wrong.iter().flat_map(|(what, text)| [what.as_str(), text.lines().next().unwrap_or("")]).collect();
        assert!(wrong.is_empty(), "{kind}: {} wrong\n{}\n\n{first}", wrong.len(), all.join("\n"));
        assert!(documents >= 100, "{kind}: {documents} documents");
    }
}

/// Keys with a rule: their place, path, and name.
fn keys_of(tree: &Tree) -> Vec<(Vec<usize>, String, String)> {
    let places = tree.places().into_iter().map(|place| (path(tree, &place), place));
    let known = places.filter(|(path, _)| rule(path).is_some());
    known
        .map(|(path, place)| {
            let key = tree.clone().at(&place).key.clone();
            (place, path, key)
        })
        .filter(|(_, _, key)| !key.is_empty())
        .collect()
}

#[test]
fn the_full_document_has_every_key() {
    let tree = full();
    let (text, _) = tree.write(1);
    assert_eq!(read(&text).0, [], "{text}");
    let paths: Vec<String> = tree.places().iter().map(|place| path(&tree, place)).collect();
    for (pattern, ..) in RULES {
        assert!(paths.iter().any(|path| is_at(path, pattern)), "nothing at {pattern}");
    }
    for (table, names, _) in tables() {
        for name in names {
            let pattern = if table.is_empty() { name.to_owned() } else { format!("{table}/{name}") };
            let found = paths.iter().find(|path| is_at(path, &pattern));
            let found = found.unwrap_or_else(|| panic!("nothing at {pattern}"));
            assert!(rule(found).is_some(), "no rule for {found}");
        }
    }
}

/// The examples of the reference page. Names in them may be unknown here.
#[test]
fn every_example() {
    let tree = full();
    let places: Vec<(String, Vec<usize>)> =
        tree.places().into_iter().map(|place| (path(&tree, &place), place)).collect();
    for (table, key) in TABLES.iter().flat_map(|(place, table, _)| table.keys.iter().map(move |key| (*place, key))) {
        assert!(key.help.ends_with('.'), "{}", key.name);
        let pattern = if table.is_empty() { key.name.to_owned() } else { format!("{table}/{}", key.name) };
        // An image has a table of its own.
        let is_it = |path: &str| is_at(path, &pattern) && path.contains("/image/") == pattern.contains("/image/");
        let (_, place) = places.iter().find(|(path, _)| is_it(path)).expect("the document has every key");
        let mut tree = tree.clone();
        *tree.at(place) = Entry::raw(key.name, key.example);
        let (text, _) = tree.write(1);
        let mut errors = read(&text).0;
        errors.retain(|error| error.code != Code::F0017 && error.code != Code::F0030);
        assert_eq!(errors, [], "{pattern}: {}\n{text}", key.example);
    }
}

#[test]
fn a_wrong_type() {
    let mut trial = Trial::default();
    let tree = full();
    for (place, path, key) in keys_of(&tree) {
        let (shape, _) = rule(&path).expect("it has a rule");
        for value in wrong(shape) {
            let mut tree = tree.clone();
            *tree.at(&place) = Entry { marked: true, ..Entry::raw(&key, value) };
            trial.refused(&format!("{path}: {value}"), &tree, &key);
        }
    }
    trial.finish("wrong type");
}

#[test]
fn a_missing_key() {
    let mut trial = Trial::default();
    let tree = full();
    for (place, path, key) in keys_of(&tree) {
        let (_, is_required) = rule(&path).expect("it has a rule");
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
            if is_required
                || (is_empty && RULES.iter().any(|(pattern, ..)| pattern.ends_with('*') && is_at(&path, pattern)))
            {
                let what = if is_empty { format!("{path}, empty") } else { path.clone() };
                trial.refused(&what, &tree, &format!("`{key}`"));
                continue;
            }
            // What refers to it is refused, and a mapping whose only entry it was.
            let (text, _) = tree.write(trial.documents as u64 * 31);
            trial.documents += 1;
            let (errors, _) = read(&text);
            let follows = |error: &Diagnostic| {
                matches!(error.code, Code::F0017 | Code::F0030)
                    || error.message == "`taskRoles` of a deployment is empty"
            };
            assert!(errors.iter().all(follows), "{path}: {errors:?}\n{text}");
        }
    }
    trial.finish("missing");
}

#[test]
fn an_extra_key() {
    let mut trial = Trial::default();
    let (tree, tables) = (full(), tables());
    let places = tree.places().into_iter().map(|place| (path(&tree, &place), place)).chain([(String::new(), vec![])]);
    for (path, place) in places.collect::<Vec<_>>() {
        let Some((_, names, is_open)) = tables.iter().rev().find(|(table, ..)| is_at(&path, table)) else { continue };
        let misspelt = names.iter().map(|name| format!("{name}s"));
        for (at, name) in ["zzzz", "x-y", "ключ"].map(str::to_owned).into_iter().chain(misspelt).enumerate() {
            let mut tree = tree.clone();
            let entries = if place.is_empty() { tree.entries_mut() } else { tree.at(&place).value.entries_mut() };
            let entry = Entry { marked: true, ..Entry::raw(&name, "1") };
            entries.insert(at % (entries.len() + 1), entry);
            if *is_open {
                let (text, line) = tree.write(trial.documents as u64 * 31);
                trial.documents += 1;
                let (errors, notices) = read(&text);
                assert_eq!(errors, [], "{path}/{name}\n{text}");
                let is_told = notices
                    .iter()
                    .any(|notice| notice.labels[0].start.line == line && notice.message.contains(&format!("{name}`")));
                assert_eq!(is_told, path == "extras", "{path}/{name}: {notices:?}\n{text}");
            } else {
                trial.refused(&format!("{path}/{name}"), &tree, &format!("unknown key `{name}`"));
            }
        }
    }
    trial.finish("extra");
}

#[test]
fn a_duplicate_key() {
    let mut trial = Trial::default();
    let tree = full();
    for place in tree.places() {
        let path = path(&tree, &place);
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

/// Templates that cannot be filled, with the word that must be named.
const TEMPLATES: &[(&str, &str)] = &[
    ("<% $parameters.mistake %>", "`$parameters.mistake`"),
    ("<% $secrets.mistake %>", "`$secrets.mistake`"),
    ("<%$parameters.files[9]%>", "`$parameters.files[9]`"),
    ("<% $parameters.deep %>", "`$parameters.deep`"),
    ("<% $parameters.deep.key.more %>", "`$parameters.deep.key.more`"),
    ("<% $parameters %>", "`$parameters`"),
    ("<% $parameters. %>", "`$parameters.`"),
    ("<% mistake %>", "`mistake`"),
    ("<%%>", "``"),
    ("<% $mistake.key %>", "`$mistake.key`"),
    ("<% $data. %>", "`$data.`"),
    ("<% $parameters.open", "unterminated template"),
    ("<% $parameters.open }}", "unterminated template"),
    ("{{ x }} <% {{ x }} %>", "`{{ x }}`"),
];

#[test]
fn a_wrong_template() {
    let mut trial = Trial::default();
    let tree = full();
    let filled = ["commands", "preCommands", "postCommands"];
    for place in tree.places() {
        let path = path(&tree, &place);
        let words: Vec<&str> = path.split('/').collect();
        let is_line = matches!(words[..], [.., list, "*"] if filled.contains(&list)) || path.contains("/auth/");
        if !is_line || path.contains("deployments/test") {
            continue;
        }
        for (template, word) in TEMPLATES {
            let mut tree = tree.clone();
            let entry = tree.at(&place);
            entry.marked = true;
            let Tree::Leaf(Scalar { text, kind }) = &mut entry.value else { panic!("{path} is a text") };
            *kind = ScalarKind::Text;
            let lines = text.lines().count();
            *text = if lines > 1 { format!("{text}more {template} x\n") } else { format!("{text} {template}") };
            trial.refused_at(&format!("{path}: {template}"), &tree, word, Some(template));
        }
    }
    trial.finish("wrong template");
}
