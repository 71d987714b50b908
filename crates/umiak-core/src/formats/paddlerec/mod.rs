//! Submissions of PaddleRec: `config.yaml`, which says what is trained, and `backend.yaml`, which says where. Two trees in,
//! a [`Workload`](crate::model::Workload) and diagnostics out.
//!
//! Both files exist in three generations, which are told apart by their keys. One of them is the document that a command
//! names; the other one comes with [`Given`](super::Given).
//!
//! | step | module |
//! |---|---|
//! | the command line of `umiak submit` and `python -m paddlerec.run` | [`line`] |
//! | which file it is, and how both are read together | this one |
//! | tree to the files as written | `config`, `raw` and `section`, by the tables in [`keys`] |
//! | that to the model | `lower` |
//! | the files of a submission to PaddleCloud | [`cloud`] |

pub mod cloud;
mod config;
pub mod keys;
pub mod line;
mod lower;
mod raw;
mod section;

use std::path::Path;

use super::Given;
use super::document::masked::{Secrets, masked};
use super::document::reader::Reader;
use super::document::template::{Templates, Unfilled};
use super::document::tree::{Node, Value};
use super::document::{Reading, Tree, recognise};
use crate::diag::{Code, Diagnostic, Source, shown};
pub use lower::Target;
use lower::{Around, Lowered, Readers};
pub use raw::Backend;

/// One of the two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    Config,
    Backend,
}

impl File {
    /// Which file a text is, by its keys.
    pub fn of(source: &Source) -> Option<Self> {
        match recognise(source).1 {
            Ok(tree) => Self::of_tree(&tree.root),
            Err(_) => Self::of_lines(&source.text),
        }
    }

    /// A quick look at the lines of a text: false if it is neither file.
    pub fn is_likely(text: &str) -> bool {
        text.trim_start().starts_with('{') || Self::of_lines(text).is_some()
    }

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Config => Self::Backend,
            Self::Backend => Self::Config,
        }
    }

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Config => "config.yaml",
            Self::Backend => "backend.yaml",
        }
    }

    pub(super) fn of_tree(root: &Node) -> Option<Self> {
        let find = |name: &str| root.entries().iter().find(|(key, _)| key.text() == Some(name)).map(|(_, value)| value);
        Self::of_keys(
            |name| find(name).is_some(),
            |name, below| {
                find(name).is_some_and(|node| node.entries().iter().any(|(key, _)| key.text() == Some(below)))
            },
        )
    }

    /// The same for a text that is not YAML: its keys by their lines.
    pub(super) fn of_lines(text: &str) -> Option<Self> {
        let mut keys: Vec<(&str, &str)> = Vec::new();
        let mut top = "";
        for (key, _) in text.lines().filter_map(|line| line.split_once(':')) {
            let name = key.trim().trim_matches(['"', '\'']);
            if key.starts_with([' ', '\t']) {
                keys.push((top, name));
            } else {
                top = name;
                keys.push((name, ""));
            }
        }
        Self::of_keys(|name| keys.contains(&(name, "")), |name, below| keys.contains(&(name, below)))
    }

    fn of_keys(has: impl Fn(&str) -> bool, below: impl Fn(&str, &str) -> bool) -> Option<Self> {
        let any = |name: &str, keys: [&str; 3]| keys.into_iter().any(|key| below(name, key));
        let is_backend = any("engine", ["backend", "job_name", "submit"])
            || (has("backend") && (has("cluster_type") || has("submit") || has("config")));
        let is_config = any("train", ["engine", "workspace", "trainer"])
            || (has("runner") && (has("mode") || has("phase") || has("dataset")))
            || has("hyper_parameters");
        if is_backend { Some(Self::Backend) } else { is_config.then_some(Self::Config) }
    }
}

/// Checks that a text is this file of the two.
pub fn expect(source: &Source, file: File) -> Result<(), Diagnostic> {
    let tree = recognise(source).1?;
    if File::of_tree(&tree.root) == Some(file) {
        return Ok(());
    }
    let first = tree.root.entries().first().map_or(tree.root.at, |(key, _)| key.at);
    let error = Diagnostic::error(Code::F0003, format!("`{}` is not a `{}` of PaddleRec", source.name, file.name()))
        .label(source.label(first, ""));
    Err(match (File::of_tree(&tree.root), file) {
        (Some(_), File::Config) => error.hint("it is a `backend.yaml`: give it with `-b`"),
        (Some(_), File::Backend) => error.hint("it is a `config.yaml`: give it with `-m`"),
        (None, File::Config) => {
            error.hint("it has `train`, with `engine` and `workspace`; or `runner`, `mode` and `phase`")
        }
        (None, File::Backend) => error.hint("it has `engine`, with `backend` and `submit`; or `backend` and `submit`"),
    })
}

/// True for a `config.yaml` that needs a `backend.yaml`, and for one that cannot be read.
pub fn is_cluster(source: &Source) -> bool {
    let Ok(Tree { mut root, errors }) = recognise(source).1 else { return true };
    let mut reader = Reader::new(source, errors);
    prepare(&mut reader, &mut root);
    let raw = config::config(&mut reader, &root);
    raw.is_none_or(|raw| raw.runs.iter().any(|run| run.engine.value == config::Engine::Cluster))
}

pub(super) fn read(reader: &mut Reader<'_>, mut root: Node, given: &Given<'_>) -> Reading {
    for (name, _) in given.params {
        reader.unknown_parameter(name, "", std::iter::empty());
    }
    let text = prepare(reader, &mut root);
    let file = File::of_tree(&root).unwrap_or(File::Config);
    let mut reading = match companion(reader, file, given) {
        Other::None => Reading { masked: text, ..alone(reader, &root, file, given) },
        Other::Broken => {
            // What can be found in this file alone.
            match file {
                File::Config => drop(config::config(reader, &root)),
                File::Backend => drop(raw::backend(reader, &root)),
            }
            Reading::default()
        }
        Other::There(mut other, mut other_root) => {
            let other_text = prepare(&mut other, &mut other_root);
            let (this, that) = (headed(reader.source, &text), headed(other.source, &other_text));
            let reading = match file {
                File::Config => Reading {
                    masked: [this, that].join("---\n"),
                    ..both((&mut *reader, &root), (&mut other, &other_root), given)
                },
                File::Backend => Reading {
                    masked: [that, this].join("---\n"),
                    ..both((&mut other, &other_root), (&mut *reader, &root), given)
                },
            };
            let Reader { errors, notices, hidden, .. } = other;
            reader.hidden.extend(&hidden);
            errors.into_vec().into_iter().for_each(|error| reader.errors.add(|| error));
            notices.into_vec().into_iter().for_each(|notice| reader.notices.add(|| notice));
            reading
        }
    };
    reading.secrets.extend(&reader.hidden);
    reading
}

/// The other file.
enum Other<'a> {
    None,
    /// It has an error, which is already reported.
    Broken,
    There(Reader<'a>, Node),
}

fn companion<'a>(reader: &mut Reader<'_>, file: File, given: &Given<'a>) -> Other<'a> {
    let Some(source) = given.companion else { return Other::None };
    let error = match recognise(source).1 {
        Ok(Tree { root, errors }) => match expect(source, file.other()) {
            Ok(()) => return Other::There(Reader::new(source, errors), root),
            Err(error) => error,
        },
        Err(error) => error,
    };
    reader.errors.add(|| error);
    Other::Broken
}

fn alone(reader: &mut Reader<'_>, root: &Node, file: File, given: &Given<'_>) -> Reading {
    if file == File::Backend {
        let raw = raw::backend(reader, root);
        let at = raw.and_then(|raw| raw.backend).map_or(root.at, |(_, word)| word.at);
        reader.error(Code::F0060, at, "this file says where a job runs, and there is no `config.yaml` beside it", "");
        reader.hint(format!("give both files: `umiak submit -m CONFIG -b {}`", reader.source.name));
        return Reading::default();
    }
    let Some(raw) = config::config(reader, root) else { return Reading::default() };
    let around = around(reader.source, given);
    reading(lower::lower(&mut Readers { config: &mut *reader, backend: None }, &raw, None, &around))
}

fn both(
    (config_reader, config_root): (&mut Reader<'_>, &Node),
    (backend_reader, backend_root): (&mut Reader<'_>, &Node),
    given: &Given<'_>,
) -> Reading {
    let raw_config = config::config(config_reader, config_root);
    let raw_backend = raw::backend(backend_reader, backend_root);
    let around = around(config_reader.source, given);
    reading(raw_config.and_then(|config| {
        let mut readers = Readers { config: &mut *config_reader, backend: Some(&mut *backend_reader) };
        lower::lower(&mut readers, &config, raw_backend.as_ref(), &around)
    }))
}

fn reading(lowered: Option<Lowered>) -> Reading {
    let Some(Lowered { work, target, engine }) = lowered else { return Reading::default() };
    Reading { work: Some(work), target: Some(Box::new(target)), engine, ..Reading::default() }
}

/// The text of one file, below its name.
fn headed(source: &Source, text: &str) -> String {
    format!("# {}\n{}\n", shown(&source.name), text.trim_end())
}

fn around<'a>(config: &Source, given: &Given<'a>) -> Around<'a> {
    let is_file = !config.name.starts_with('<');
    let path = is_file.then(|| given.dir.join(Path::new(&config.name)).components().collect::<std::path::PathBuf>());
    let config = path.map(|path| path.to_string_lossy().into_owned());
    Around { python: given.python, config, settings: given.settings, engine: given.engine }
}

/// What the readers of both files do first: of duplicate keys the last one counts, as in PaddleRec, whose own sample has
/// some; and secrets are hidden, those of ignored keys too. Returns the text without them.
fn prepare(reader: &mut Reader<'_>, root: &mut Node) -> String {
    for mut error in std::mem::take(&mut reader.errors).into_vec() {
        if error.code != Code::F0006 {
            reader.errors.add(|| error);
            continue;
        }
        for (label, text) in error.labels.iter_mut().zip(["this one is used", "this one is ignored"]) {
            text.clone_into(&mut label.label);
        }
        let notice = Diagnostic::notice(Code::F0056, error.message);
        reader.notices.add(|| Diagnostic { labels: error.labels, ..notice });
    }
    let secrets = secrets(root);
    for text in secrets.iter().filter_map(|node| node.text()) {
        reader.hidden.add(text);
        // `user,password`
        text.split_once(',').into_iter().for_each(|(_, password)| reader.hidden.add(password));
    }
    let places = secrets.iter().map(|node| node.written).collect();
    let (text, _) = masked::<Plain>(reader.source, root, &SECRETS, places);
    last_wins(root);
    text
}

fn last_wins(node: &mut Node) {
    match &mut node.value {
        Value::Scalar(_) => {}
        Value::List(items) => items.iter_mut().for_each(last_wins),
        Value::Map(entries) => {
            let mut seen = std::collections::HashSet::new();
            let mut kept: Vec<(Node, Node)> = std::mem::take(entries).into_iter().rev().collect();
            kept.retain(|(key, _)| key.text().is_none_or(|text| seen.insert(text.to_owned())));
            kept.reverse();
            for (_, value) in &mut kept {
                last_wins(value);
            }
            *entries = kept;
        }
    }
}

/// The values of PaddleCloud's keys and passwords, at every place where they are written.
fn secrets(root: &Node) -> Vec<&Node> {
    let paths: [&[&str]; 5] = [
        &["submit", "ak"],
        &["submit", "sk"],
        &["engine", "submit", "ak"],
        &["engine", "submit", "sk"],
        &["config", "fs_ugi"],
    ];
    let leaves = paths.into_iter().flat_map(|path| path.iter().fold(vec![root], |nodes, name| children(&nodes, name)));
    leaves.filter(|node| node.text().is_some() && !node.is_null()).collect()
}

/// The values of a key, which may be repeated.
fn children<'n>(nodes: &[&'n Node], name: &str) -> Vec<&'n Node> {
    let entries = nodes.iter().flat_map(|node| node.entries());
    entries.filter(|(key, _)| key.text() == Some(name)).map(|(_, value)| value).collect()
}

const SECRETS: Secrets = Secrets { named: &["submit", "config"], all: &[], params: "", prefix: "" };

/// The files have no templates that are filled here: `{workspace}` is for the model.
struct Plain;

impl Templates for Plain {
    const OPEN: &'static str = "{workspace";
    const CLOSE: &'static str = "}";
    const LITERAL: &'static str = "";

    fn value(&self, _: &str) -> Result<&str, Unfilled> {
        Err(Unfilled::Kept)
    }

    fn unknown(&self, _: &str) -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests;
