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
//! [engine.slurm]
//! partition = "cpu"
//! [engine.gpu-cluster]
//! kind = "slurm"
//! partition = "gpu"
//! time = "2:00:00"
//! [hosts]
//! node-a = "192.168.0.1"
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::MAX_BYTES;
use super::document::reader::{At, Reader, did_you_mean};
use super::document::tree::{Node, ScalarKind, Value, shortened};
use super::{engines, kubernetes, units};
use crate::diag::{Code, Collected, Diagnostic, Source, Span};
use crate::model::{ClusterOptions, Connect, EngineChoice, EngineKind, MpiOptions, Resources, SlurmOptions};

/// The names that documents may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub queues: BTreeMap<String, Queue>,
    pub flavours: BTreeMap<String, Resources>,
    /// Mount points of file systems on this host.
    pub filesystems: BTreeMap<String, PathBuf>,
    /// By their names. Each kind is there under its own word.
    pub engines: BTreeMap<String, Engine>,
    /// Addresses by name.
    pub hosts: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Queue {
    /// The engine that has the queue; the default engine if omitted.
    pub engine: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    pub kind: EngineKind,
    pub cluster: ClusterOptions,
}

impl Settings {
    /// The engine of this name.
    pub fn engine(&self, name: &str) -> Option<EngineChoice> {
        let name = usual_name(name);
        let Engine { kind, cluster } = self.engines.get(name)?.clone();
        Some(EngineChoice { name: name.to_owned(), kind, cluster })
    }
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
            engines: EngineKind::ALL
                .map(|kind| (kind.word().to_owned(), Engine { kind, cluster: ClusterOptions::default() }))
                .into(),
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
    let named = file.get("engine").and_then(|node| reader.named("`engine`", node)).unwrap_or_default();
    for (name, node) in named {
        let engine = engine(&mut reader, &name, node);
        settings.engines.extend(engine.map(|engine| (usual_name(&name.value).to_owned(), engine)));
    }
    for (name, at) in queue_engines(&mut reader, file.get("queue")) {
        if !settings.engines.contains_key(usual_name(&name)) {
            let near = reader.nearest(&name, settings.engines.keys().map(String::as_str));
            let label = did_you_mean(near, "");
            reader.error(Code::F0017, at, format!("unknown engine `{}`", shortened(&name)), label);
            reader.hint(format!("define it: `[engine.{}]`, with `kind`", shortened(&name)));
        }
    }
    if let Some(hosts) = file.get("hosts") {
        let hosts = reader.texts("`[hosts]`", hosts).unwrap_or_default();
        settings.hosts = hosts.into_iter().map(|(name, address)| (name.value, address.value)).collect();
    }
    if reader.errors.is_empty() { Ok(settings) } else { Err(reader.errors.into_vec()) }
}

/// The name of an engine, `kubernetes` for `k8s`.
fn usual_name(name: &str) -> &str {
    let (other, kind) = EngineKind::OTHER_NAME;
    if name == other { kind.word() } else { name }
}

/// The engines that queues name.
fn queue_engines(reader: &mut Reader<'_>, queues: Option<&Node>) -> Vec<(String, Span)> {
    let queues = queues.map_or(&[][..], Node::entries).iter();
    let engines = queues.filter_map(|(_, queue)| queue.child("engine"));
    engines.filter_map(|node| Some((node.text()?.to_owned(), node.at))).filter(|_| reader.errors.is_empty()).collect()
}

/// `[engine.NAME]`. Its keys depend on its kind, which is the name if it is omitted.
fn engine(reader: &mut Reader<'_>, name: &At<String>, node: &Node) -> Option<Engine> {
    let what = format!("`[engine.{}]`", shortened(&name.value));
    let word = node.child("kind").map(|node| reader.word("`kind`", node)).unwrap_or(Some(name.clone()))?;
    let Some(kind) = EngineKind::named(&word.value) else {
        let near = reader.nearest(&word.value, EngineKind::ALL.map(EngineKind::word));
        let (code, message) = if EngineKind::LATER.contains(&word.value.as_str()) {
            (Code::F0004, format!("engine `{}` is not supported yet", word.value))
        } else if word.at == name.at {
            (Code::F0012, format!("{what} has no `kind`"))
        } else {
            (Code::F0017, format!("unknown kind of engine `{}`", shortened(&word.value)))
        };
        reader.error(code, word.at, message, did_you_mean(near, ""));
        let kinds = EngineKind::ALL.map(|kind| format!("`{}`", kind.word()));
        reader.hint(format!("the kinds are {}", kinds.join(", ")));
        return None;
    };
    if EngineKind::named(&name.value).is_some_and(|own| own != kind) {
        let message = format!("{what} cannot be of kind `{}`", kind.word());
        reader.error(Code::F0018, word.at, message, "");
        reader.hint("choose another name for it");
    }
    let mut cluster = ClusterOptions::default();
    match kind {
        EngineKind::Slurm => cluster.slurm = slurm(reader, &what, node)?,
        EngineKind::Mpi => cluster.mpi = mpi(reader, &what, node)?,
        EngineKind::Kubernetes => cluster.kubernetes = kubernetes::table(reader, &what, node)?,
        EngineKind::Local | EngineKind::Mock | EngineKind::MockCluster => drop(reader.entries(&what, node, ["kind"])),
    }
    Some(Engine { kind, cluster })
}

/// Keys that are not ours are options of `sbatch`.
fn slurm(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<SlurmOptions> {
    let entries = reader.open_entries(what, node, ["kind", "direct", "requeue", "warning", "umiak", "connect"])?;
    let mut native = Vec::new();
    for (key, node) in &entries.rest {
        let Value::Scalar(scalar) = &node.value else {
            reader.wrong_type(&format!("`{}`", shortened(&key.value)), node, "a string, a number, `true` or `false`");
            continue;
        };
        let value = match (scalar.kind, scalar.text.as_str()) {
            // Not given.
            (ScalarKind::Bool, "false") => continue,
            (ScalarKind::Bool, _) => None,
            (_, text) => Some(text),
        };
        match engines::slurm_native(&key.value, value) {
            Ok(option) => native.push(option),
            Err(why) => {
                let message = format!("`{}` in {what} is not valid", shortened(&key.value));
                reader.error(Code::F0013, key.at, message, why);
            }
        }
    }
    Some(SlurmOptions {
        native,
        direct: entries.value(reader, "direct", Reader::boolean).unwrap_or(false),
        requeue: entries.value(reader, "requeue", Reader::boolean).unwrap_or(false),
        warning: entries.value(reader, "warning", |reader, what, node| by(reader, what, node, engines::slurm_warning)),
        umiak: entries.value(reader, "umiak", |reader, what, node| by(reader, what, node, engines::agent)),
        connect: entries.value(reader, "connect", connect).flatten(),
    })
}

/// `true`, `false`, `"HOST"` or `"HOST:PORT"`.
fn connect(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<At<Option<Connect>>> {
    match &node.value {
        Value::Scalar(scalar) if scalar.kind == ScalarKind::Bool => {
            let value = (scalar.text == "true").then(Connect::default);
            Some(At { value, at: node.at })
        }
        _ => by(reader, what, node, |text| engines::connect(text).map(Some)),
    }
}

fn mpi(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<MpiOptions> {
    let entries = reader.entries(what, node, ["kind", "launcher", "hosts", "arguments", "umiak"])?;
    let items = |name: &str| entries.get(name).map(Node::one_or_many).unwrap_or_default();
    let hosts = items("hosts").iter().filter_map(|node| by(reader, "`hosts`", node, engines::mpi_hosts));
    let hosts = hosts.flat_map(|hosts| hosts.value).collect();
    let arguments = items("arguments").iter().filter_map(|node| reader.text("`arguments`", node));
    let arguments = arguments.map(|word| word.value).collect();
    let launcher: Option<String> = entries.value(reader, "launcher", Reader::word);
    let umiak = entries.value(reader, "umiak", |reader, what, node| by(reader, what, node, engines::agent));
    Some(MpiOptions { launcher: launcher.map(PathBuf::from), hosts, arguments, umiak })
}

/// A text, by the rules of [`engines`].
fn by<T>(
    reader: &mut Reader<'_>,
    what: &str,
    node: &Node,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Option<At<T>> {
    let text = reader.word(what, node)?;
    match read(&text.value) {
        Ok(value) => Some(At { value, at: node.at }),
        Err(why) => {
            reader.error(Code::F0013, node.at, format!("{what} is not valid"), why);
            None
        }
    }
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
        assert_eq!(settings.engines["here"].kind, EngineKind::Local);
        assert_eq!(settings.hosts["node-a"], "192.168.0.1");
    }

    #[test]
    fn engines_of_clusters() {
        let text = "[engine.slurm]\npartition = \"cpu\"\nexclusive = true\noversubscribe = false\nnice = 10\ndirect = true\nwarning = \"2m\"\numiak = \"/opt/umiak\"\nconnect = \"login:7000\"\n\
            [engine.gpu-cluster]\nkind = \"slurm\"\npartition = \"gpu\"\nrequeue = true\n\
            [engine.mpi]\nlauncher = \"mpiexec\"\nhosts = [\"a:4\", \"b\"]\narguments = [\"--bind-to\", \"none\"]\n\
            [queue.gpu]\nengine = \"gpu-cluster\"\n";
        let settings = parse(&Source::new("umiak.toml", text)).unwrap();
        let slurm = settings.engine("slurm").unwrap().cluster.slurm;
        let native = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
        assert_eq!(
            slurm,
            SlurmOptions {
                native: vec![native("exclusive", None), native("nice", Some("10")), native("partition", Some("cpu"))],
                direct: true,
                requeue: false,
                warning: Some(120),
                umiak: Some("/opt/umiak".into()),
                connect: Some(Connect { host: Some("login".to_owned()), port: Some(7000) }),
            }
        );
        let EngineChoice { name, kind, cluster } = settings.engine("gpu-cluster").unwrap();
        assert_eq!((name.as_str(), kind, cluster.slurm.requeue), ("gpu-cluster", EngineKind::Slurm, true));
        assert_eq!(cluster.slurm.value("partition"), Some("gpu"));
        let mpi = settings.engine("mpi").unwrap().cluster.mpi;
        assert_eq!(mpi.hosts, [("a".to_owned(), 4), ("b".to_owned(), 1)]);
        assert_eq!(
            (mpi.launcher, mpi.arguments),
            (Some("mpiexec".into()), vec!["--bind-to".to_owned(), "none".into()])
        );
    }

    #[test]
    fn errors_of_engines() {
        insta::assert_snapshot!(errors(
            "[engine.gpu]\npartition = \"gpu\"\n[engine.a]\nkind = \"slrum\"\n[engine.b]\nkind = \"container\"\n\
             [engine.slurm]\nrequeue = 1\nsignal = \"USR1\"\ngres = [1]\nwarning = \"0s\"\numiak = \"umiak\"\n\
             [engine.mpi]\nhosts = [\"a:x\"]\npartition = \"x\"\n[engine.local]\ntime = 1\n"
        ));
        insta::assert_snapshot!(errors("[queue.q]\nengine = \"slrum\"\n"));
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
