//! The pipeline as it is written. Positions are kept, because templates, dependencies and references are checked later.

use std::collections::HashSet;
use std::time::Duration;

use super::keys::{self, MAX_REPLICAS, STRATEGIES, TYPES};
use super::literal;
use super::template::{Braces, place};
use crate::diag::{Code, Span};
use crate::formats::document::keys::Table;
use crate::formats::document::reader::{At, Entries, NameRule, Reader, did_you_mean};
use crate::formats::document::template::refuse_unquoted;
use crate::formats::document::tree::{Node, ScalarKind, Value, shortened};
use crate::model::{OnFailure, Resources, SystemParameter};

const COMPONENT: &[NameRule] = &[
    (|name| !name.is_empty() && name.chars().count() <= 30, "at most 30 characters, and at least one"),
    (|name| name.starts_with(|c: char| c.is_ascii_alphabetic()), "must begin with a letter"),
    (|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "only letters, digits and `-`"),
];
const VARIABLE: &[NameRule] = &[
    (|name| !name.is_empty() && name.chars().count() <= 50, "at most 50 characters, and at least one"),
    (|name| !name.starts_with(|c: char| c.is_ascii_digit()), "must not begin with a digit"),
    (|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "only letters, digits and `_`"),
];
const PIPELINE: &[NameRule] = &[
    (|name| !name.is_empty() && name.chars().count() <= 128, "at most 128 characters, and at least one"),
    (|name| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'), "must begin with a letter or `_`"),
    (
        |name| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')),
        "only letters, digits, `_` and `-`",
    ),
];

/// Variables of one step or member.
const MAX_VARIABLES: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct RawPipeline<'n> {
    pub(super) name: Option<At<String>>,
    pub(super) image: Option<At<String>>,
    /// Every component; a DAG before those in it.
    pub(super) all: Vec<Component<'n>>,
    pub(super) entry_points: Vec<usize>,
    pub(super) templates: Vec<usize>,
    pub(super) post: Vec<usize>,
    pub(super) parallelism: Option<At<i64>>,
    pub(super) disabled: Vec<At<String>>,
    pub(super) cache: RawCache<'n>,
    pub(super) on_failure: OnFailure,
    pub(super) main_fs: Option<RawMount>,
    pub(super) extra_fs: Vec<RawMount>,
    /// False if something of these could not be read: what refers to it is not reported too.
    pub(super) knows_templates: bool,
    pub(super) knows_files: bool,
    /// What other versions of PaddleFlow do not have, in the order of the document.
    pub(super) special: Vec<(Special, Span)>,
}

/// A key that not every version of PaddleFlow has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Distributed,
    /// `queue` or `priority` of a member.
    Early(&'static str),
    /// `fs`, `extra_fs`, `labels` or `annotations` of a member.
    Late(&'static str),
    /// Ours.
    Own(&'static str),
}

/// Where a component is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Home {
    EntryPoints,
    Templates,
    Post,
    /// In this DAG.
    Dag(usize),
}

#[derive(Debug)]
pub(super) struct Component<'n> {
    pub(super) name: At<String>,
    pub(super) home: Home,
    pub(super) deps: Vec<At<String>>,
    pub(super) parameters: Vec<RawParameter<'n>>,
    pub(super) inputs: Vec<(At<String>, &'n Node)>,
    pub(super) outputs: Vec<(At<String>, Option<&'n Node>)>,
    pub(super) condition: Option<&'n Node>,
    pub(super) items: Option<&'n Node>,
    pub(super) body: RawBody<'n>,
    /// False if something of these could not be read: what refers to it is not reported too.
    pub(super) knows_deps: bool,
    pub(super) knows_names: bool,
}

#[derive(Debug)]
pub(super) enum RawBody<'n> {
    Dag(Vec<usize>),
    Step(Box<RawStep<'n>>),
    Reference(At<String>),
    /// It could not be read.
    Broken,
}

impl Component<'_> {
    /// For messages: step `train`.
    pub(super) fn what(&self) -> String {
        let kind = if matches!(self.body, RawBody::Dag(_)) { "DAG" } else { "step" };
        format!("{kind} `{}`", shortened(&self.name.value))
    }
}

#[derive(Debug)]
pub(super) struct RawParameter<'n> {
    pub(super) name: At<String>,
    pub(super) kind: Option<&'static str>,
    /// `None` for a type without a default.
    pub(super) node: Option<&'n Node>,
}

#[derive(Debug, Default)]
pub(super) struct RawStep<'n> {
    pub(super) command: Option<&'n Node>,
    pub(super) env: Vec<Variable<'n>>,
    pub(super) image: Option<At<String>>,
    pub(super) cache: RawCache<'n>,
    pub(super) extra_fs: Vec<RawMount>,
    pub(super) knows_files: bool,
    pub(super) framework: Option<At<String>>,
    pub(super) members: Vec<RawMember<'n>>,
    pub(super) knows_members: bool,
    pub(super) distributed: Option<Span>,
    pub(super) retries: Option<(u32, Option<Duration>)>,
    pub(super) timeout: Option<Duration>,
    pub(super) engine: Option<At<String>>,
}

#[derive(Debug)]
pub(super) struct Variable<'n> {
    pub(super) name: At<String>,
    pub(super) value: String,
    /// Where it is written; its templates are in its text.
    pub(super) node: &'n Node,
}

#[derive(Debug, Default)]
pub(super) struct RawCache<'n> {
    pub(super) enable: Option<At<bool>>,
    pub(super) max_age: Option<i64>,
    pub(super) scope: Vec<RawScope<'n>>,
}

/// Paths on a file system, and where they are written.
#[derive(Debug)]
pub(super) struct RawScope<'n> {
    pub(super) name: At<String>,
    pub(super) paths: Vec<(String, &'n Node)>,
}

#[derive(Debug, Clone)]
pub(super) struct RawMount {
    pub(super) name: At<String>,
    pub(super) host_path: Option<String>,
    pub(super) mount_path: Option<At<String>>,
    pub(super) sub_path: Option<At<String>>,
    pub(super) read_only: Option<At<bool>>,
}

#[derive(Debug)]
pub(super) struct RawMember<'n> {
    pub(super) role: At<String>,
    pub(super) replicas: u32,
    pub(super) image: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) command: Option<&'n Node>,
    pub(super) flavour: RawFlavour,
    pub(super) env: Vec<Variable<'n>>,
    pub(super) queue: Option<At<String>>,
    pub(super) priority: Option<At<String>>,
    pub(super) fs: Option<RawMount>,
    pub(super) extra_fs: Option<Vec<RawMount>>,
    pub(super) labels: Vec<(At<String>, At<String>)>,
}

#[derive(Debug, Default)]
pub(super) struct RawFlavour {
    pub(super) name: Option<At<String>>,
    /// What is written inline.
    pub(super) inline: Resources,
    pub(super) gpus: Option<u32>,
}

/// Marks templates without quotes, each with an error.
pub(super) fn refuse_braces(reader: &mut Reader<'_>, node: &mut Node) {
    if refuse_unquoted::<Braces>(reader, node) {
        node.value = Value::scalar("", ScalarKind::Broken);
        return;
    }
    match &mut node.value {
        Value::Scalar(_) => {}
        Value::List(items) => items.iter_mut().for_each(|item| refuse_braces(reader, item)),
        Value::Map(entries) => entries.iter_mut().for_each(|(_, value)| refuse_braces(reader, value)),
    }
}

pub(super) fn pipeline<'n>(reader: &mut Reader<'_>, root: &'n Node) -> RawPipeline<'n> {
    let mut raw = RawPipeline::default();
    let Some(entries) = reader.entries("the pipeline", root, keys::DOCUMENT.names()) else { return raw };
    let first = root.entries().first().map_or(root.at, |(key, _)| key.at);
    raw.name = entries.required(reader, "the pipeline", "name", first).and_then(|node| reader.text("`name`", node));
    raw.name = raw.name.take().filter(|name| reader.name(name, "a pipeline", PIPELINE));
    raw.image = entries.read(reader, "docker_env", Reader::text);
    raw.parallelism =
        entries.read(reader, "parallelism", |reader, what, node| reader.number(what, node, i64::MIN, i64::MAX));
    raw.disabled = entries.get("disabled").and_then(|node| names(reader, "`disabled`", node)).unwrap_or_default();
    raw.cache = entries.get("cache").map(|node| cache(reader, node)).unwrap_or_default();
    if let Some(node) = entries.get("failure_options")
        && let Some(options) = reader.entries("`failure_options`", node, keys::FAILURE.names())
    {
        let strategy = options.value(reader, "strategy", |reader, what, node| reader.choice(what, node, STRATEGIES));
        raw.on_failure = if strategy == Some("continue") { OnFailure::Continue } else { OnFailure::FailFast };
    }
    raw.knows_files = is_known(&entries, "fs_options");
    if let Some(node) = entries.get("fs_options") {
        let options = reader.entries("`fs_options`", node, keys::FILES.names());
        raw.knows_files = options.as_ref().is_some_and(|options| is_known(options, "main_fs"));
        if let Some(options) = options {
            raw.main_fs = options.get("main_fs").and_then(|node| mount(reader, "`main_fs`", node, &keys::MOUNT));
            let extra = mounts(reader, &options, &keys::MOUNT);
            raw.knows_files &= extra.is_whole && raw.main_fs.is_some() == options.get("main_fs").is_some();
            raw.extra_fs = extra.items;
        }
    }
    raw.knows_templates = is_known(&entries, "components")
        && entries.get("components").is_none_or(|node| matches!(node.value, Value::Map(_)));
    let node = entries.required(reader, "the pipeline", "entry_points", first);
    raw.entry_points = node.map(|node| components(reader, &mut raw, node, Home::EntryPoints)).unwrap_or_default();
    if let Some(node) = node.filter(|node| node.entries().is_empty() && matches!(node.value, Value::Map(_))) {
        reader.error(Code::F0012, node.at, "`entry_points` is empty", "add at least one step");
    }
    if let Some(node) = entries.get("components") {
        raw.templates = components(reader, &mut raw, node, Home::Templates);
    }
    if let Some(node) = entries.get("post_process") {
        raw.post = components(reader, &mut raw, node, Home::Post);
    }
    raw
}

fn components<'n>(reader: &mut Reader<'_>, raw: &mut RawPipeline<'n>, node: &'n Node, home: Home) -> Vec<usize> {
    let what = match home {
        Home::EntryPoints | Home::Dag(_) => "`entry_points`",
        Home::Templates => "`components`",
        Home::Post => "`post_process`",
    };
    let named = once(reader.named(what, node).unwrap_or_default());
    named.into_iter().map(|(name, node)| component(reader, raw, name, node, home)).collect()
}

/// Entries without duplicates, which are reported already.
fn once<T>(mut entries: Vec<(At<String>, T)>) -> Vec<(At<String>, T)> {
    let mut seen = HashSet::with_capacity(entries.len());
    entries.retain(|(name, _)| seen.insert(name.value.clone()));
    entries
}

/// False for a key that is misspelt.
fn is_known(entries: &Entries<'_>, name: &str) -> bool {
    entries.get(name).is_some() || entries.lacks(name)
}

fn component<'n>(
    reader: &mut Reader<'_>,
    raw: &mut RawPipeline<'n>,
    name: At<String>,
    node: &'n Node,
    home: Home,
) -> usize {
    reader.name(&name, "a component", COMPONENT);
    let is_dag = node.entries().iter().any(|(key, _)| matches!(key.text(), Some("entry_points" | "entryPoints")));
    let (kind, table) = if is_dag { ("DAG", &keys::DAG) } else { ("step", &keys::STEP) };
    let what = format!("{kind} `{}`", shortened(&name.value));
    let at = raw.all.len();
    raw.all.push(Component {
        name,
        home,
        deps: Vec::new(),
        parameters: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        condition: None,
        items: None,
        body: RawBody::Broken,
        knows_deps: false,
        knows_names: false,
    });
    if node.is_null() {
        reader.error(Code::F0012, raw.all[at].name.at, format!("{what} is empty"), "");
    } else if let Some(entries) = reader.entries_beside(&what, node, table.names(), |key| key == "name") {
        fill(reader, raw, at, &what, &entries, is_dag);
    }
    at
}

/// Reads what a component has.
fn fill<'n>(
    reader: &mut Reader<'_>,
    raw: &mut RawPipeline<'n>,
    at: usize,
    what: &str,
    entries: &Entries<'n>,
    is_dag: bool,
) {
    let kind = if is_dag { "dag" } else { "step" };
    if let Some(said) = entries.read(reader, "type", Reader::text)
        && !said.value.eq_ignore_ascii_case(kind)
    {
        let why = if is_dag { "it has `entry_points`" } else { "it has no `entry_points`" };
        reader.error(Code::F0013, said.at, format!("`type` of {what} must be `{kind}`"), why);
    }
    let component = &mut raw.all[at];
    let deps = entries.get("deps").map(|node| names(reader, "`deps`", node));
    component.knows_deps = is_known(entries, "deps") && deps.as_ref().is_none_or(Option::is_some);
    component.deps = deps.flatten().unwrap_or_default();
    let mut knows_names = is_known(entries, "parameters") && is_known(entries, "artifacts");
    if let Some(node) = entries.get("parameters") {
        let parameters = parameters(reader, node);
        knows_names &= parameters.is_some();
        component.parameters = parameters.unwrap_or_default();
    }
    if let Some(node) = entries.get("artifacts") {
        knows_names &= artifacts(reader, node, is_dag, component).is_some();
    }
    component.knows_names = knows_names;
    component.condition = entries.read(reader, "condition", text);
    component.items = entries.get("loop_argument");
    let body = if is_dag {
        let node = entries.required(reader, what, "entry_points", component.name.at);
        let children = node.map(|node| components(reader, raw, node, Home::Dag(at))).unwrap_or_default();
        if let Some(node) = node.filter(|node| node.entries().is_empty() && matches!(node.value, Value::Map(_))) {
            reader.error(Code::F0012, node.at, format!("{what} has no components"), "add at least one step");
        }
        if node.is_some_and(|node| matches!(node.value, Value::Map(_))) {
            RawBody::Dag(children)
        } else {
            RawBody::Broken
        }
    } else if let Some(node) = entries.get("reference") {
        reference(reader, what, entries, node, &raw.all[at]).unwrap_or(RawBody::Broken)
    } else {
        RawBody::Step(Box::new(step(reader, raw, what, entries)))
    };
    raw.all[at].body = body;
}

/// A step that uses a template. It has nothing of its own but values.
fn reference<'n>(
    reader: &mut Reader<'_>,
    what: &str,
    entries: &Entries<'n>,
    node: &'n Node,
    component: &Component<'n>,
) -> Option<RawBody<'n>> {
    let allowed = ["type", "reference", "deps", "parameters", "artifacts"];
    let others = keys::STEP.names().filter(|name| !allowed.contains(name)).filter(|name| entries.get(name).is_some());
    for other in others {
        let at = entries.key(other).unwrap_or(node.at);
        let message = format!("{what} has both `reference` and `{other}`");
        reader.error(Code::F0112, at, message, "belongs into the component");
    }
    if let Some((name, _)) = component.outputs.first() {
        let message = format!("{what} has `reference` and output artifacts");
        reader.error(Code::F0112, name.at, message, "outputs are those of the component");
    }
    let entries = reader.entries("`reference`", node, keys::REFERENCE.names())?;
    let name = entries.required(reader, "`reference`", "component", node.at)?;
    reader.word("`component`", name).map(RawBody::Reference)
}

fn step<'n>(reader: &mut Reader<'_>, raw: &mut RawPipeline<'n>, what: &str, entries: &Entries<'n>) -> RawStep<'n> {
    let extra = mounts(reader, entries, &keys::MOUNT);
    let mut step = RawStep {
        command: entries.read(reader, "command", text),
        env: entries.get("env").map(|node| env(reader, "`env`", node)).unwrap_or_default(),
        image: entries.read(reader, "docker_env", Reader::text),
        cache: entries.get("cache").map(|node| cache(reader, node)).unwrap_or_default(),
        extra_fs: extra.items,
        knows_files: extra.is_whole && is_known(entries, "extra_fs"),
        knows_members: true,
        retries: entries.get("retries").and_then(|node| retries(reader, node)),
        timeout: entries.value(reader, "timeout", Reader::limit),
        engine: entries.read(reader, "engine", Reader::word),
        ..RawStep::default()
    };
    for own in ["retries", "timeout", "engine"] {
        raw.special.extend(entries.key(own).map(|at| (Special::Own(own), at)));
    }
    if let Some(node) = entries.get("distributed_job") {
        step.distributed = entries.key("distributed_job");
        raw.special.extend(step.distributed.map(|at| (Special::Distributed, at)));
        if let Some(entries) = ignoring(reader, "`distributed_job`", node, &keys::DISTRIBUTED) {
            step.framework = entries.read(reader, "framework", Reader::text);
            if let Some(node) = entries.get("members") {
                let members = list(reader, "`members`", node, |reader, node| member(reader, raw, node));
                (step.members, step.knows_members) = (members.items, members.is_whole);
            }
            if step.framework.is_none() && !step.members.is_empty() && entries.lacks("framework") {
                let at = entries.key("framework").or(step.distributed).unwrap_or(node.at);
                reader.error(Code::F0012, at, format!("`distributed_job` of {what} has no `framework`"), "");
            }
        }
    }
    step
}

/// A mapping whose other keys are ignored, each with a notice.
fn ignoring<'n>(reader: &mut Reader<'_>, what: &str, node: &'n Node, table: &Table) -> Option<Entries<'n>> {
    let entries = reader.open_entries(what, node, table.names())?;
    for (key, _) in entries.rest.iter().filter(|(key, _)| key.value != "id") {
        let near = reader.nearest(&key.value, table.names());
        let message = format!("`{}` of {what} is not used", shortened(&key.value));
        reader.notice(Code::F0051, key.at, message, did_you_mean(near, "has no effect"));
    }
    Some(entries)
}

fn member<'n>(reader: &mut Reader<'_>, raw: &mut RawPipeline<'n>, node: &'n Node) -> Option<RawMember<'n>> {
    let what = "a member";
    let entries = ignoring(reader, what, node, &keys::MEMBER)?;
    for key in ["queue", "priority"] {
        raw.special.extend(entries.key(key).map(|at| (Special::Early(key), at)));
    }
    for key in ["fs", "extra_fs", "labels", "annotations"] {
        raw.special.extend(entries.key(key).map(|at| (Special::Late(key), at)));
    }
    let role = entries.required(reader, what, "role", node.at).and_then(|node| reader.word("`role`", node));
    let replicas = entries.required(reader, what, "replicas", node.at);
    let replicas = replicas.and_then(|node| whole(reader, "`replicas`", node, 1, i64::from(MAX_REPLICAS)));
    let port = entries.get("port").and_then(|node| whole(reader, "`port`", node, 0, 65534));
    let flavour = entries.get("flavour").map(|node| flavour(reader, node)).unwrap_or_default();
    if let Some(annotations) = entries.get("annotations")
        && let Some([(name, _), ..]) = reader.texts("`annotations`", annotations).as_deref()
    {
        let at = entries.key("annotations").unwrap_or(name.at);
        reader.notice(Code::F0051, at, "`annotations` of a member is not used", "has no effect");
    }
    let labels = entries.get("labels").and_then(|node| reader.texts("`labels`", node));
    let member = RawMember {
        image: entries.value(reader, "image", Reader::text).filter(|image| !image.is_empty()),
        port: port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0),
        command: entries.read(reader, "command", text).filter(|node| node.text() != Some("")),
        flavour,
        env: entries.get("env").map(|node| env(reader, "`env` of a member", node)).unwrap_or_default(),
        queue: entries.read(reader, "queue", Reader::text).filter(|queue| !queue.value.is_empty()),
        priority: entries.read(reader, "priority", Reader::text).filter(|priority| !priority.value.is_empty()),
        fs: entries.get("fs").and_then(|node| mount(reader, "`fs` of a member", node, &keys::MEMBER_FS)),
        extra_fs: Some(mounts(reader, &entries, &keys::MEMBER_FS).items).filter(|extra| !extra.is_empty()),
        labels: labels.unwrap_or_default(),
        role: role?,
        replicas: u32::try_from(replicas?).unwrap_or(0),
    };
    Some(member)
}

fn flavour(reader: &mut Reader<'_>, node: &Node) -> RawFlavour {
    let mut flavour = RawFlavour::default();
    let Some(entries) = ignoring(reader, "`flavour`", node, &keys::FLAVOUR) else { return flavour };
    flavour.name = entries.read(reader, "name", Reader::text).filter(|name| !name.value.is_empty());
    flavour.inline.cpu_millis = entries.value(reader, "cpu", Reader::cpu);
    flavour.inline.memory_bytes = entries.value(reader, "mem", Reader::memory);
    let scalars = entries.get("scalar_resources").and_then(|node| reader.texts("`scalar_resources`", node));
    for (name, amount) in scalars.unwrap_or_default() {
        if name.value != "nvidia.com/gpu" {
            let message = format!("`{}` of a flavour is not used", shortened(&name.value));
            reader.notice(Code::F0051, name.at, message, "has no effect");
            continue;
        }
        match amount.value.trim().parse() {
            Ok(gpus @ 0..=1024) => flavour.gpus = Some(gpus),
            _ => reader.error(Code::F0013, amount.at, "`nvidia.com/gpu` must be a whole number from 0 to 1024", ""),
        }
    }
    flavour
}

fn retries(reader: &mut Reader<'_>, node: &Node) -> Option<(u32, Option<Duration>)> {
    if !matches!(node.value, Value::Map(_)) {
        return reader.restarts("`retries`", node).map(|max| (max.value, None));
    }
    let entries = reader.entries("`retries`", node, keys::RETRIES.names())?;
    let backoff = entries.value(reader, "backoff", Reader::duration);
    Some((entries.value(reader, "max", Reader::restarts).unwrap_or(0), backoff))
}

fn cache<'n>(reader: &mut Reader<'_>, node: &'n Node) -> RawCache<'n> {
    let mut cache = RawCache::default();
    let Some(entries) = reader.entries("`cache`", node, keys::CACHING.names()) else { return cache };
    cache.enable = entries.read(reader, "enable", switch);
    if let Some(node) = entries.get("max_expired_time") {
        // A number, or a text that is one.
        let mut node = node.clone();
        if let Value::Scalar(scalar) = &mut node.value
            && scalar.kind == ScalarKind::Text
        {
            scalar.kind = ScalarKind::Filled;
        }
        cache.max_age = reader.number("`max_expired_time`", &node, -1, 3_000_000_000_i64).map(|at| at.value);
    }
    if let Some(node) = entries.get("fs_scope") {
        cache.scope = list(reader, "`fs_scope`", node, |reader, node| {
            let what = "an item of `fs_scope`";
            let entries = reader.entries_beside(what, node, keys::SCOPE.names(), |key| key == "id")?;
            let name = entries.required(reader, what, "name", node.at)?;
            let name = reader.word("`name`", name)?;
            let paths = entries.get("path").and_then(|node| Some((reader.text("`path`", node)?.value, node)));
            let paths = match paths {
                Some((paths, node)) => paths.split(',').map(|path| (path.trim().to_owned(), node)).collect(),
                None => vec![("/".to_owned(), node)],
            };
            Some(RawScope { name, paths })
        })
        .items;
    }
    cache
}

fn mounts(reader: &mut Reader<'_>, entries: &Entries<'_>, table: &'static Table) -> Items<RawMount> {
    let Some(node) = entries.get("extra_fs") else { return Items { items: Vec::new(), is_whole: true } };
    list(reader, "`extra_fs`", node, |reader, node| mount(reader, "an item of `extra_fs`", node, table))
}

fn mount(reader: &mut Reader<'_>, what: &str, node: &Node, table: &'static Table) -> Option<RawMount> {
    let is_of_member = std::ptr::eq(table, &raw const keys::MEMBER_FS);
    let entries = if is_of_member {
        ignoring(reader, what, node, table)?
    } else {
        reader.entries_beside(what, node, table.names(), |key| key == "id")?
    };
    let host_path = if is_of_member {
        entries.value(reader, "host_path", Reader::text).filter(|path| !path.is_empty())
    } else {
        None
    };
    let name = match entries.get("name") {
        None if host_path.is_some() => At { value: host_path.clone().unwrap_or_default(), at: node.at },
        _ => {
            let name = entries.required(reader, what, "name", node.at)?;
            reader.word("`name`", name)?
        }
    };
    let path =
        |reader: &mut Reader<'_>, key: &str| entries.read(reader, key, Reader::text).filter(|at| !at.value.is_empty());
    Some(RawMount {
        mount_path: path(reader, "mount_path"),
        sub_path: path(reader, "sub_path"),
        read_only: entries.read(reader, "read_only", switch),
        name,
        host_path,
    })
}

/// `None` if they cannot be read.
fn parameters<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Option<Vec<RawParameter<'n>>> {
    let named = once(reader.named("`parameters`", node)?);
    Some(named.into_iter().map(|(name, node)| parameter(reader, name, node)).collect())
}

fn parameter<'n>(reader: &mut Reader<'_>, name: At<String>, node: &'n Node) -> RawParameter<'n> {
    reader.name(&name, "a parameter", VARIABLE);
    if SystemParameter::ALL.iter().any(|system| system.name() == name.value) {
        let message = format!("parameter `{}` is not used: templates mean the system parameter", name.value);
        reader.notice(Code::F0051, name.at, message, "has no effect; use another name");
    }
    let what = format!("parameter `{}`", shortened(&name.value));
    let has = |key: &str| node.entries().iter().any(|(one, _)| one.text() == Some(key));
    if !has("type") && !has("default") {
        if node.is_null() {
            reader.error(Code::F0011, name.at, format!("{what} has no value"), "");
            reader.hint("write \"\" for an empty string");
        } else {
            literal::value(reader, &what, node);
        }
        return RawParameter { name, kind: None, node: Some(node) };
    }
    let Some(entries) = reader.entries(&what, node, keys::PARAMETER.names()) else {
        return RawParameter { name, kind: None, node: None };
    };
    let kind = entries.required(reader, &what, "type", name.at);
    let kind = kind.and_then(|node| reader.choice("`type`", node, TYPES)).map(|at| at.value);
    let default = entries.get("default").filter(|node| node.text() != Some(""));
    if let (Some(kind), Some(node)) = (kind, default)
        && let Some(value) = literal::value(reader, &what, node)
    {
        literal::typed(reader, &what, kind, &value, node.at);
    }
    RawParameter { name, kind, node: default }
}

/// Reads inputs and outputs; `None` if some names are not known.
fn artifacts<'n>(reader: &mut Reader<'_>, node: &'n Node, is_dag: bool, component: &mut Component<'n>) -> Option<()> {
    let table = if is_dag { &keys::DAG_ARTIFACTS } else { &keys::ARTIFACTS };
    let entries = reader.entries("`artifacts`", node, table.names())?;
    let mut is_whole = is_known(&entries, "input") && is_known(&entries, "output");
    if let Some(node) = entries.get("input") {
        let inputs = texts(reader, "`input`", node);
        is_whole &= inputs.is_some();
        component.inputs = inputs.unwrap_or_default();
    }
    match entries.get("output") {
        Some(node) if is_dag => {
            let outputs = texts(reader, "`output` of a DAG", node);
            is_whole &= outputs.is_some();
            component.outputs = outputs.into_iter().flatten().map(|(name, node)| (name, Some(node))).collect();
        }
        Some(node) => match &node.value {
            Value::List(items) => {
                for item in items {
                    let name = reader.text("an item of `output`", item);
                    match name.filter(|name| reader.name(name, "an `output` artifact", VARIABLE)) {
                        Some(name) => component.outputs.push((name, None)),
                        None => is_whole = false,
                    }
                }
            }
            Value::Map(_) => {
                let outputs = texts(reader, "`output`", node);
                for (name, value) in outputs.into_iter().flatten() {
                    if value.text().is_some_and(|text| !text.is_empty()) {
                        let message = format!("output `{}` of a step has a value", name.value);
                        reader.error(Code::F0013, value.at, message, "write \"\", or a list of names");
                        is_whole = false;
                    }
                    component.outputs.push((name, None));
                }
            }
            Value::Scalar(_) => {
                reader.wrong_type("`output`", node, "a list of names");
                is_whole = false;
            }
        },
        None => {}
    }
    is_whole.then_some(())
}

/// Names of artifacts to texts; `None` if they cannot be read.
fn texts<'n>(reader: &mut Reader<'_>, what: &str, node: &'n Node) -> Option<Vec<(At<String>, &'n Node)>> {
    let named = once(reader.named(what, node)?);
    for (name, node) in &named {
        if reader.name(name, "an artifact", VARIABLE) {
            text(reader, &format!("`{}` in {what}", name.value), node);
        }
    }
    Some(named)
}

fn env<'n>(reader: &mut Reader<'_>, what: &str, node: &'n Node) -> Vec<Variable<'n>> {
    let named = reader.named(what, node).unwrap_or_default();
    if named.len() > MAX_VARIABLES {
        reader.error(
            Code::F0013,
            node.at,
            format!("{what} has too many variables"),
            format!("at most {MAX_VARIABLES}"),
        );
        return Vec::new();
    }
    let mut found = Vec::with_capacity(named.len());
    for (name, node) in once(named) {
        if !reader.name(&name, "a variable", VARIABLE) {
            continue;
        }
        if node.is_null() {
            reader.error(Code::F0011, name.at, format!("`{}` in {what} has no value", name.value), "");
            reader.hint("write \"\" for an empty string");
        } else if let Some(value) = literal::variable(reader, &format!("`{}` in {what}", name.value), node) {
            found.push(Variable { name, value, node });
        }
    }
    found
}

/// Names in a text, separated by commas; `None` if it is no text.
fn names(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<Vec<At<String>>> {
    if matches!(node.value, Value::List(_)) {
        reader.wrong_type(what, node, "a string");
        reader.hint("separate the names by commas");
        return None;
    }
    let text = reader.text(what, node)?;
    let mut from = 0;
    let mut found = Vec::new();
    for part in text.value.split(',') {
        let name = part.trim();
        let start = from + (part.len() - part.trim_start().len());
        from += part.len() + 1;
        if !name.is_empty() {
            // Positions inside the text are only computed where they are cheap.
            let at = if text.value.len() < 1000 {
                place(reader.source, node, &(start..start + name.len()))
            } else {
                node.at
            };
            found.push(At { value: name.to_owned(), at });
        }
    }
    Some(found)
}

/// Items of a list.
struct Items<T> {
    items: Vec<T>,
    /// False if one could not be read.
    is_whole: bool,
}

/// A list whose items are mappings.
fn list<'n, T>(
    reader: &mut Reader<'_>,
    what: &str,
    node: &'n Node,
    mut read: impl FnMut(&mut Reader<'_>, &'n Node) -> Option<T>,
) -> Items<T> {
    let Value::List(written) = &node.value else {
        reader.wrong_type(what, node, "a list");
        return Items { items: Vec::new(), is_whole: false };
    };
    let items: Vec<T> = written.iter().filter_map(|item| read(reader, item)).collect();
    let is_whole = items.len() == written.len();
    Items { items, is_whole }
}

/// A text, which may have templates.
fn text<'n>(reader: &mut Reader<'_>, what: &str, node: &'n Node) -> Option<&'n Node> {
    reader.text(what, node).map(|_| node)
}

/// A switch in YAML 1.1, where `yes` and `on` are booleans.
fn switch(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<At<bool>> {
    match literal::old_boolean(reader, node) {
        Some(value) => Some(At { value, at: node.at }),
        None => reader.boolean(what, node),
    }
}

/// A whole number, or one with a fraction, which is cut.
fn whole(reader: &mut Reader<'_>, what: &str, node: &Node, least: i64, most: i64) -> Option<i64> {
    if let Value::Scalar(scalar) = &node.value
        && scalar.kind == ScalarKind::Number
        && let Some(value) = literal::number(&scalar.text).and_then(|value| literal::truncated(&value))
        && (least..=most).contains(&value)
    {
        return Some(value);
    }
    reader.number(what, node, least, most).map(|at| at.value)
}
