//! Checks the shared reader with a second, made-up format: `<% $parameters.name %>` as templates, a mapping of secrets,
//! plugin keys that are passed on, and numbers that may be negative.

use std::collections::BTreeMap;

use insta::assert_snapshot;

use super::masked::{Secrets, masked};
use super::reader::{At, Entries, Reader, did_you_mean};
use super::template::{Templates, Unfilled, fill};
use super::tree::Node;
use super::yaml;
use crate::diag::{Code, Diagnostic, Source, nearest};

#[derive(Debug, PartialEq)]
struct Task {
    name: String,
    retries: i32,
    memory: Option<u64>,
    commands: Vec<String>,
    /// Keys that are passed on.
    plugin: Vec<String>,
}

/// The words of templates, with their values.
struct References(BTreeMap<String, String>);

impl Templates for References {
    const OPEN: &'static str = "<%";
    const CLOSE: &'static str = "%>";
    const LITERAL: &'static str = "a command cannot hold `<%`";

    fn value(&self, word: &str) -> Result<&str, Unfilled> {
        if !word.starts_with('$') {
            return Err(Unfilled::NotAName);
        }
        self.0.get(word).map(String::as_str).ok_or(Unfilled::Unknown)
    }

    fn unknown(&self, word: &str) -> String {
        did_you_mean(nearest(word, self.0.keys().map(String::as_str)), "not in this document")
    }
}

const SECRETS: Secrets =
    Secrets { named: &["parameters", "env"], all: &["secrets"], params: "parameters", prefix: "$parameters." };

fn references(reader: &mut Reader<'_>, root: &Entries<'_>) -> References {
    let mut words = BTreeMap::new();
    for key in ["parameters", "secrets"] {
        for (name, value) in root.read(reader, key, Reader::named).unwrap_or_default() {
            words.extend(value.text().map(|text| (format!("${key}.{}", name.value), text.to_owned())));
        }
    }
    References(words)
}

fn task(reader: &mut Reader<'_>, name: At<String>, node: &Node) -> Option<Task> {
    let what = format!("task `{}`", name.value);
    reader.name(&name, "a task", &[(|name| name.chars().all(char::is_alphabetic), "letters")]);
    let entries = reader.open_entries(&what, node, ["retries", "memory", "commands"])?;
    for (key, _) in entries.rest.iter().filter(|(key, _)| key.value == "ignored") {
        reader.notice(Code::F0051, key.at, "`ignored` is not used here", "without effect");
    }
    let commands = entries.required(reader, &what, "commands", name.at);
    Some(Task {
        retries: entries.value(reader, "retries", |reader, what, node| reader.number(what, node, -1, 9)).unwrap_or(0),
        memory: entries.value(reader, "memory", Reader::memory),
        commands: commands
            .map_or(&[][..], Node::one_or_many)
            .iter()
            .filter_map(|node| reader.word("a command", node))
            .map(|at| at.value)
            .collect(),
        plugin: entries.rest.iter().map(|(key, _)| key.value.clone()).collect(),
        name: name.value,
    })
}

/// The tasks, the notices, the masked text and the names of secret parameters.
type Read = (Vec<Task>, String, String, Vec<String>);

fn read(text: &str) -> Result<Read, String> {
    let plain = |all: &[Diagnostic]| all.iter().map(Diagnostic::to_plain).collect::<Vec<_>>().join("\n");
    let source = Source::new("tasks.yaml", text);
    let tree = yaml::parse(&source).unwrap();
    let mut reader = Reader::new(&source, tree.errors);
    let mut tasks = Vec::new();
    if let Some(root) = reader.entries("the document", &tree.root, ["parameters", "secrets", "tasks"]) {
        let references = references(&mut reader, &root);
        let mut node = root.required(&mut reader, "the document", "tasks", root.at).cloned();
        if let Some(node) = &mut node {
            fill(&mut reader, node, &references);
        }
        let named = node.as_ref().and_then(|node| reader.named("`tasks`", node)).unwrap_or_default();
        tasks = named.into_iter().filter_map(|(name, node)| task(&mut reader, name, node)).collect();
    }
    let (text, names) = masked::<References>(&source, &tree.root, &SECRETS, Vec::new());
    if reader.errors.is_empty() {
        Ok((tasks, plain(&reader.notices.into_vec()), text, names))
    } else {
        Err(plain(&reader.errors.into_sorted()))
    }
}

#[test]
fn a_second_format() {
    let text = "parameters: {epochs: 5, hidden: s3cret}\nsecrets: {anything: s3cret, more: {list: [s3cret, s3cret]}}\ntasks:\n  train:\n    retries: -1\n    memory: 2Gi\n    commands:\n    - run <% $parameters.epochs %> {{literal}} <%$secrets.anything%>\n    - again\n    env: {TOKEN: <% $parameters.hidden %>}\n    ignored: 1\n";
    let (tasks, notices, masked, names) = read(text).unwrap();
    let task = Task {
        name: "train".to_owned(),
        retries: -1,
        memory: Some(2 << 30),
        commands: vec!["run 5 {{literal}} s3cret".to_owned(), "again".to_owned()],
        plugin: vec!["env".to_owned(), "ignored".to_owned()],
    };
    assert_eq!(tasks, [task]);
    assert_eq!(names, ["hidden"]);
    assert!(!masked.contains("s3cret"), "{masked}");
    assert_snapshot!(format!("{notices}\n{masked}"));
}

#[test]
fn its_errors_all_at_once() {
    assert_snapshot!(
        read("paramters: {}\nparameters: {epochs: 5}\ntasks:\n  a1:\n    retries: -2\n    memory: much\n    commands: [\"<% $parameters.epoch %>\", \"<% epochs %>\", \"x <% $parameters.epochs\"]\n  b:\n    retries: 1.5\n    retries: 2\n").unwrap_err()
    );
}
