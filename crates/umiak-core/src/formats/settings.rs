//! `umiak.toml`: the names that a site or a user defines. The caller reads the file; this module turns its text into
//! [`Settings`].
//!
//! ```toml
//! [queue.gpu]
//! engine = "local"
//! [flavour.large]
//! cpu = 8
//! mem = "32Gi"
//! gpu = 2
//! [fs.data]
//! dir = "/mnt/data"
//! [engine.local]
//! kind = "local"
//! [hosts]
//! node-a = "192.168.0.1"
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::MAX_BYTES;
use super::document::reader::Reader;
use super::document::tree::{Node, ScalarKind, Value, shortened};
use super::units;
use crate::diag::{Code, Collected, Diagnostic, Source, Span};
use crate::model::Resources;

/// The names that documents may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub queues: BTreeMap<String, Queue>,
    pub flavours: BTreeMap<String, Resources>,
    /// Mount points of file systems on this host.
    pub filesystems: BTreeMap<String, PathBuf>,
    pub engines: BTreeMap<String, Engine>,
    /// Addresses by name.
    pub hosts: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Queue {
    /// The engine that has the queue; the default engine if omitted.
    pub engine: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Engine {
    /// The kind of engine; the engine's name if omitted.
    pub kind: Option<String>,
}

impl Default for Settings {
    /// The settings without a file: the queue `default`, and the flavours that PaddleFlow installs.
    fn default() -> Self {
        let flavour = |cpus: u32, gib: u64, gpus| Resources {
            cpu_millis: Some(cpus * 1000),
            memory_bytes: Some(gib << 30),
            gpus,
            shm_bytes: None,
            storage_bytes: None,
        };
        Self {
            queues: BTreeMap::from([("default".to_owned(), Queue::default())]),
            flavours: BTreeMap::from([
                ("flavour1".to_owned(), flavour(1, 1, 0)),
                ("flavour2".to_owned(), flavour(4, 8, 1)),
                ("flavour3".to_owned(), flavour(4, 8, 2)),
            ]),
            filesystems: BTreeMap::new(),
            engines: BTreeMap::from([("local".to_owned(), Engine::default())]),
            hosts: BTreeMap::new(),
        }
    }
}

/// The resources of a flavour on a command line: `cpu=1,mem=1Gi,gpu=2`, or why they are wrong.
pub fn flavour(text: &str) -> Result<Resources, String> {
    let mut resources = Resources::default();
    for part in text.split(',') {
        let (name, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not NAME=VALUE"))?;
        match name.trim() {
            "cpu" => resources.cpu_millis = Some(units::cpu(value)?),
            "mem" => resources.memory_bytes = Some(units::memory(value)?),
            "gpu" => {
                let wrong = |_| format!("`{value}` is not a number of GPUs");
                resources.gpus = value.trim().parse().map_err(wrong)?;
            }
            other => return Err(format!("`{other}` is not known")),
        }
    }
    Ok(resources)
}

/// The settings of a file on top of the built-in ones, or all errors of the file.
pub fn parse(source: &Source) -> Result<Settings, Vec<Diagnostic>> {
    if source.text.len() > MAX_BYTES {
        return Err(vec![Diagnostic::error(Code::F0005, format!("`{}` is too large", source.name))]);
    }
    let (root, errors) = DeTable::parse_recoverable(&source.text);
    if !errors.is_empty() {
        let mut collected = Collected::default();
        for error in &errors {
            collected.add(|| not_toml(source, error));
        }
        return Err(collected.into_vec());
    }
    let root = node(DeValue::Table(root.into_inner()), Span::new(0, source.text.len()));
    let mut reader = Reader::new(source, Collected::default());
    let mut settings = Settings::default();
    let names = ["queue", "flavour", "fs", "engine", "hosts"];
    let Some(file) = reader.entries("`umiak.toml`", &root, names) else {
        return Err(reader.errors.into_vec());
    };
    settings.queues.extend(each(&mut reader, file.get("queue"), "queue", |reader, what, node| {
        let entries = reader.entries(what, node, ["engine"])?;
        Some(Queue { engine: entries.value(reader, "engine", Reader::word) })
    }));
    settings.flavours.extend(each(&mut reader, file.get("flavour"), "flavour", |reader, what, node| {
        let entries = reader.entries(what, node, ["cpu", "mem", "gpu"])?;
        Some(Resources {
            cpu_millis: entries.value(reader, "cpu", Reader::cpu),
            memory_bytes: entries.value(reader, "mem", Reader::memory),
            gpus: entries.value(reader, "gpu", |reader, what, node| reader.number(what, node, 0, 1024)).unwrap_or(0),
            shm_bytes: None,
            storage_bytes: None,
        })
    }));
    settings.filesystems.extend(each(&mut reader, file.get("fs"), "fs", |reader, what, node| {
        let entries = reader.entries(what, node, ["dir"])?;
        let dir = entries.required(reader, what, "dir", node.at)?;
        reader.word("`dir`", dir).map(|at| PathBuf::from(at.value))
    }));
    settings.engines.extend(each(&mut reader, file.get("engine"), "engine", |reader, what, node| {
        let entries = reader.entries(what, node, ["kind"])?;
        Some(Engine { kind: entries.value(reader, "kind", Reader::word) })
    }));
    if let Some(hosts) = file.get("hosts") {
        let hosts = reader.texts("`[hosts]`", hosts).unwrap_or_default();
        settings.hosts = hosts.into_iter().map(|(name, address)| (name.value, address.value)).collect();
    }
    if reader.errors.is_empty() { Ok(settings) } else { Err(reader.errors.into_vec()) }
}

/// `[kind.NAME]` tables.
fn each<T>(
    reader: &mut Reader<'_>,
    node: Option<&Node>,
    kind: &str,
    mut read: impl FnMut(&mut Reader<'_>, &str, &Node) -> Option<T>,
) -> Vec<(String, T)> {
    let Some(entries) = node.and_then(|node| reader.named(&format!("`{kind}`"), node)) else { return Vec::new() };
    entries
        .into_iter()
        .filter_map(|(name, node)| {
            let what = format!("`[{kind}.{}]`", shortened(&name.value));
            read(reader, &what, node).map(|value| (name.value, value))
        })
        .collect()
}

fn not_toml(source: &Source, error: &toml::de::Error) -> Diagnostic {
    let diagnostic = Diagnostic::error(Code::F0040, format!("`{}` is not valid TOML", source.name));
    let diagnostic = match error.span() {
        Some(span) => diagnostic.label(source.label(Span::new(span.start, span.end), "")),
        None => diagnostic,
    };
    diagnostic.row("the parser said", error.message())
}

/// The same tree as YAML's, so that one reader serves both.
fn node(value: DeValue<'_>, at: Span) -> Node {
    let value = match value {
        DeValue::String(text) => Value::scalar(text, ScalarKind::Text),
        DeValue::Integer(number) => Value::scalar(number.as_str(), ScalarKind::Number),
        DeValue::Float(number) => Value::scalar(number.as_str(), ScalarKind::Number),
        DeValue::Boolean(value) => Value::scalar(if value { "true" } else { "false" }, ScalarKind::Bool),
        DeValue::Datetime(time) => Value::scalar(time.to_string(), ScalarKind::Text),
        DeValue::Array(items) => Value::List(items.into_iter().map(spanned).collect()),
        DeValue::Table(entries) => Value::Map(
            entries
                .into_iter()
                .map(|(key, value)| {
                    let at = Span::new(key.span().start, key.span().end);
                    (
                        Node { value: Value::scalar(key.get_ref().as_ref(), ScalarKind::Text), at, written: at },
                        spanned(value),
                    )
                })
                .collect(),
        ),
    };
    Node { value, at, written: at }
}

fn spanned(value: Spanned<DeValue<'_>>) -> Node {
    let span = value.span();
    node(value.into_inner(), Span::new(span.start, span.end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn errors(text: &str) -> String {
        let errors = parse(&Source::new("umiak.toml", text)).unwrap_err();
        errors.iter().map(Diagnostic::to_plain).collect()
    }

    #[test]
    fn built_in() {
        let settings = parse(&Source::new("umiak.toml", "")).unwrap();
        assert_eq!(settings, Settings::default());
        assert_eq!(
            settings.flavours["flavour1"],
            Resources { cpu_millis: Some(1000), memory_bytes: Some(1 << 30), ..Resources::default() }
        );
        assert!(settings.queues.contains_key("default"));
    }

    #[test]
    fn everything() {
        let text = "[queue.gpu]\nengine = \"local\"\n[flavour.large]\ncpu = 8\nmem = \"32Gi\"\ngpu = 2\n[flavour.flavour1]\ncpu = \"500m\"\n[fs.data]\ndir = \"/mnt/data\"\n[engine.here]\nkind = \"local\"\n[hosts]\nnode-a = \"192.168.0.1\"\n";
        let settings = parse(&Source::new("umiak.toml", text)).unwrap();
        assert_eq!(settings.queues["gpu"].engine.as_deref(), Some("local"));
        assert_eq!(
            settings.flavours["large"],
            Resources {
                cpu_millis: Some(8000),
                memory_bytes: Some(32 << 30),
                gpus: 2,
                shm_bytes: None,
                storage_bytes: None
            }
        );
        assert_eq!(settings.flavours["flavour1"], Resources { cpu_millis: Some(500), ..Resources::default() });
        assert_eq!(settings.filesystems["data"], PathBuf::from("/mnt/data"));
        assert_eq!(settings.engines["here"].kind.as_deref(), Some("local"));
        assert_eq!(settings.hosts["node-a"], "192.168.0.1");
    }

    #[test]
    fn all_errors_with_places() {
        insta::assert_snapshot!(errors(
            "queues = 1\n[flavour.large]\ncpus = 8\nmem = \"many\"\ngpu = -1\n[fs.data]\n[queue]\nx = 5\n[engine.here]\nkind = \"\"\n"
        ));
        insta::assert_snapshot!(errors("[flavour.a]\ncpu = \n[flavour.a]\n"));
    }

    proptest! {
        #[test]
        fn never_panics(text in "[a-z0-9=\\[\\]{}.\"'#, \\n\\t角]{0,80}") {
            let _ = parse(&Source::new("umiak.toml", text));
        }
    }
}
