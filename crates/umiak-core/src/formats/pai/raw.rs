//! The document as written: types that mirror the protocol, each read from the tree on its own.

use std::collections::{HashMap, HashSet};

use super::keys;
use crate::diag::{Code, Diagnostic, Span};
use crate::formats::document::reader::{At, Entries, NameRule, Reader};
use crate::formats::document::tree::{Node, Value, shortened};
use crate::model::pai_name;

const MAX_INSTANCES: u32 = 10_000;
const MAX_RETRIES: u32 = 1_000_000;
const MAX_NAME: usize = 255;

#[derive(Debug, Default)]
pub(super) struct RawJob<'n> {
    pub(super) name: Option<At<String>>,
    pub(super) retries: u32,
    pub(super) prerequisites: Vec<RawPrerequisite<'n>>,
    pub(super) roles: Vec<RawRole<'n>>,
    pub(super) deployments: Vec<RawDeployment<'n>>,
    pub(super) cluster: Option<String>,
    pub(super) deployment: Option<At<String>>,
    pub(super) extras: RawExtras<'n>,
}

#[derive(Debug)]
pub(super) struct RawPrerequisite<'n> {
    /// `dockerimage`, `script`, `output` or `data`.
    pub(super) kind: &'static str,
    pub(super) name: At<String>,
    pub(super) uri: Option<String>,
    pub(super) plugin: Option<RawPlugin<'n>>,
    pub(super) node: &'n Node,
}

#[derive(Debug)]
pub(super) struct RawRole<'n> {
    pub(super) name: At<String>,
    pub(super) instances: u32,
    pub(super) min_failed: Option<At<i64>>,
    pub(super) min_succeeded: Option<At<i64>>,
    pub(super) retries: Option<At<i64>>,
    pub(super) prerequisites: Vec<At<String>>,
    pub(super) image: Option<At<String>>,
    /// `data`, `output` and `script`, as far as they are set.
    pub(super) uses: Vec<(&'static str, At<String>)>,
    pub(super) cpu: u32,
    pub(super) memory_mb: u32,
    pub(super) gpu: u32,
    pub(super) ports: Vec<(At<String>, u16)>,
    pub(super) shm_mb: Option<u32>,
    pub(super) infiniband: Option<Span>,
    pub(super) commands: Vec<&'n Node>,
}

#[derive(Debug)]
pub(super) struct RawDeployment<'n> {
    pub(super) name: At<String>,
    pub(super) roles: Vec<RawDeployed<'n>>,
}

#[derive(Debug)]
pub(super) struct RawDeployed<'n> {
    pub(super) role: At<String>,
    pub(super) before: Vec<&'n Node>,
    pub(super) after: Vec<&'n Node>,
}

#[derive(Debug, Default)]
pub(super) struct RawExtras<'n> {
    gang: Option<bool>,
    pub(super) plugins: Vec<RawPlugin<'n>>,
    pub(super) priority: Option<String>,
    /// Extras that this machine does not act on.
    pub(super) unused: Vec<At<String>>,
}

impl RawExtras<'_> {
    /// All instances start together, unless the document says otherwise.
    pub(super) fn is_gang(&self) -> bool {
        self.gang != Some(false)
    }
}

/// A runtime plugin, from the extras or from a prerequisite.
#[derive(Debug, Default)]
pub(super) struct RawPlugin<'n> {
    pub(super) name: At<String>,
    /// The roles to which it applies; `None` for all.
    pub(super) roles: Option<Vec<At<String>>>,
    /// Their internal names.
    internal: HashSet<String>,
    /// Commands before and after those of the user; only `cmd` has some.
    pub(super) before: Vec<&'n Node>,
    pub(super) after: Vec<&'n Node>,
    pub(super) is_strict: bool,
}

impl RawPlugin<'_> {
    /// True if umiak does what it says.
    pub(super) fn is_known(&self) -> bool {
        self.name.value == keys::RUNS_COMMANDS
    }

    /// True if it applies to the role with this internal name.
    pub(super) fn applies_to(&self, role: &str) -> bool {
        self.roles.is_none() || self.internal.contains(role)
    }
}

const JOB_NAME: &[NameRule] = &[
    (|name| !name.is_empty() && name.len() <= MAX_NAME, "must have 1 to 255 characters"),
    (
        |name| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')),
        "must consist of letters, digits, `-` and `_`",
    ),
];
const IDENTIFIER: &[NameRule] = &[
    (|name| name.len() <= MAX_NAME, "must have at most 255 characters"),
    (
        |name| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        },
        "must consist of letters, digits and `_`, and not begin with a digit",
    ),
];

pub(super) fn document<'n>(reader: &mut Reader<'_>, root: &'n Node) -> RawJob<'n> {
    let Some(entries) = reader.entries("the document", root, keys::DOCUMENT.iter().copied()) else {
        return RawJob::default();
    };
    let first = root.entries().first().map_or(root.at, |(key, value)| key.at.to(value.at));
    version(reader, &entries, first);
    if let Some(node) = entries.required(reader, "the document", "type", first) {
        reader.choice("`type`", node, &["job"]);
    }
    for free in ["version", "contributor", "description"] {
        entries.read(reader, free, Reader::text);
    }
    let name = entries.required(reader, "the document", "name", first);
    let name = name.and_then(|node| reader.text("`name`", node)).filter(|name| reader.name(name, "a job", JOB_NAME));
    let defaults = entries
        .get("defaults")
        .and_then(|node| reader.open_entries("`defaults`", node, keys::DEFAULTS.iter().copied()));
    RawJob {
        name,
        retries: entries
            .value(reader, "jobRetryCount", |reader, what, node| reader.number(what, node, 0, MAX_RETRIES))
            .unwrap_or(0),
        prerequisites: entries.get("prerequisites").map(|node| prerequisites(reader, node)).unwrap_or_default(),
        roles: roles(reader, &entries, first),
        deployments: entries.get("deployments").map(|node| deployments(reader, node)).unwrap_or_default(),
        cluster: defaults.as_ref().and_then(|defaults| defaults.value(reader, "virtualCluster", Reader::word)),
        deployment: defaults.as_ref().and_then(|defaults| defaults.read(reader, "deployment", Reader::word)),
        extras: entries.get("extras").map(|node| extras(reader, node)).unwrap_or_default(),
    }
}

fn version(reader: &mut Reader<'_>, entries: &Entries<'_>, first: Span) {
    let Some(node) = entries.required(reader, "the document", "protocolVersion", first) else { return };
    if let Some(version) = reader.text("`protocolVersion`", node).filter(|version| version.value != "2") {
        let message = format!("version `{}` of the protocol is not supported", shortened(&version.value));
        reader.error(Code::F0004, version.at, message, "write `2`");
    }
}

/// The items of a list with at least one; none if it is no list.
fn items<'n>(reader: &mut Reader<'_>, what: &str, node: &'n Node) -> &'n [Node] {
    let Value::List(items) = &node.value else {
        reader.wrong_type(what, node, "a list");
        return &[];
    };
    if items.is_empty() {
        reader.error(Code::F0013, node.at, format!("{what} is empty"), "");
    }
    items
}

/// Lines of a script: a list of strings, whose templates are filled later.
fn lines<'n>(reader: &mut Reader<'_>, what: &str, node: &'n Node) -> Vec<&'n Node> {
    let items = items(reader, what, node);
    items.iter().filter(|item| reader.text(&format!("an item of {what}"), item).is_some()).collect()
}

fn words(reader: &mut Reader<'_>, what: &str, node: &Node) -> Vec<At<String>> {
    let Value::List(items) = &node.value else {
        reader.wrong_type(what, node, "a list");
        return Vec::new();
    };
    items.iter().filter_map(|item| reader.word(&format!("an item of {what}"), item)).collect()
}

fn prerequisites<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Vec<RawPrerequisite<'n>> {
    let mut seen: HashMap<(&'static str, String), Span> = HashMap::new();
    let mut found = Vec::new();
    for item in items(reader, "`prerequisites`", node) {
        let Some(prerequisite) = prerequisite(reader, item) else { continue };
        let (kind, name) = (prerequisite.kind, &prerequisite.name);
        if let Some(first) = seen.get(&(kind, name.value.clone())) {
            let source = reader.source;
            reader.errors.add(|| {
                Diagnostic::error(Code::F0018, format!("two prerequisites of type `{kind}` are named `{}`", name.value))
                    .label(source.label(name.at, "the second"))
                    .label(source.label(*first, "the first"))
            });
            continue;
        }
        seen.insert((kind, name.value.clone()), name.at);
        found.push(prerequisite);
    }
    found
}

fn prerequisite<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Option<RawPrerequisite<'n>> {
    let what = "a prerequisite";
    let kinds = ["dockerimage", "script", "output", "data"];
    let entries = reader.open_entries(what, node, keys::PREREQUISITE.iter().copied())?;
    let kind = entries.required(reader, what, "type", node.at).and_then(|node| reader.choice("`type`", node, &kinds));
    let is_image = kind.as_ref().is_some_and(|kind| kind.value == "dockerimage");
    let entries = if is_image { reader.entries(what, node, keys::IMAGE.iter().copied())? } else { entries };
    let name = entries.required(reader, what, "name", node.at).and_then(|node| reader.text("`name`", node));
    let name = name.filter(|name| reader.name(name, what, JOB_NAME));
    for free in ["version", "contributor", "description"] {
        entries.read(reader, free, Reader::text);
    }
    let uri = match kind.as_ref()?.value {
        "dockerimage" => {
            if let Some(auth) = entries.get("auth")
                && let Some(auth) = reader.entries("`auth`", auth, keys::AUTH.iter().copied())
            {
                for key in keys::AUTH {
                    auth.read(reader, key, Reader::text);
                }
            }
            entries.required(reader, "an image", "uri", node.at).and_then(|node| reader.word("`uri`", node))
        }
        "data" => {
            if let Some(node) = entries.get("uri") {
                words(reader, "`uri` of data", node);
            }
            None
        }
        _ => entries.read(reader, "uri", Reader::text),
    };
    let plugin = if is_image { None } else { entries.read(reader, "plugin", Reader::word) };
    let plugin = plugin.map(|name| {
        let short = name.value.strip_prefix(keys::PLUGINS).and_then(|rest| rest.strip_prefix('.'));
        let name = At { value: short.unwrap_or(&name.value).to_owned(), at: name.at };
        let is_strict = node.child("failurePolicy").and_then(Node::text) != Some("ignore");
        with_commands(reader, RawPlugin { name, is_strict, ..RawPlugin::default() }, node)
    });
    if let Some(at) = entries.key("require").filter(|_| !is_image) {
        reader.notice(Code::F0051, at, "`require` of a prerequisite is not used", "has no effect");
    }
    Some(RawPrerequisite { kind: kind?.value, name: name?, uri: uri.map(|uri| uri.value), plugin, node })
}

fn roles<'n>(reader: &mut Reader<'_>, entries: &Entries<'n>, first: Span) -> Vec<RawRole<'n>> {
    let Some(node) = entries.required(reader, "the document", "taskRoles", first) else { return Vec::new() };
    let roles = reader.named("`taskRoles`", node).unwrap_or_default();
    if roles.is_empty() && matches!(&node.value, Value::Map(_)) {
        reader.error(Code::F0012, node.at, "`taskRoles` is empty", "add at least one task role");
    }
    roles.into_iter().filter_map(|(name, node)| role(reader, name, node)).collect()
}

fn role<'n>(reader: &mut Reader<'_>, name: At<String>, node: &'n Node) -> Option<RawRole<'n>> {
    reader.name(&name, "a task role", IDENTIFIER);
    let what = format!("task role `{}`", shortened(&name.value));
    let entries = reader.entries(&what, node, keys::ROLE.iter().copied())?;
    let retries =
        |reader: &mut Reader<'_>, what: &str, node: &Node| reader.number(what, node, -2, i64::from(MAX_RETRIES));
    let least =
        |reader: &mut Reader<'_>, what: &str, node: &Node| reader.number(what, node, -1, i64::from(MAX_INSTANCES));
    let completion = entries.get("completion");
    let completion = completion.and_then(|node| reader.entries("`completion`", node, keys::COMPLETION.iter().copied()));
    let completion = |reader: &mut Reader<'_>, key: &str| completion.as_ref()?.read(reader, key, least);
    let container = entries.get("extraContainerOptions");
    let container = container
        .and_then(|node| reader.open_entries("`extraContainerOptions`", node, keys::CONTAINER.iter().copied()));
    let resources = entries.required(reader, &what, "resourcePerInstance", name.at);
    let resources =
        resources.and_then(|node| reader.entries("`resourcePerInstance`", node, keys::RESOURCES.iter().copied()));
    let amount = |reader: &mut Reader<'_>, key: &str, most: u32| {
        let resources = resources.as_ref()?;
        let node = resources.required(reader, "`resourcePerInstance`", key, resources.at)?;
        reader.number(&format!("`{key}`"), node, 0, most)
    };
    let uses = ["data", "output", "script"].map(|key| Some((key, entries.read(reader, key, Reader::word)?)));
    let image = entries.required(reader, &what, "dockerImage", name.at);
    let commands = entries.required(reader, &what, "commands", name.at);
    Some(RawRole {
        instances: entries
            .value(reader, "instances", |reader, what, node| reader.number(what, node, 1, MAX_INSTANCES))
            .unwrap_or(1),
        min_failed: completion(reader, "minFailedInstances"),
        min_succeeded: completion(reader, "minSucceededInstances"),
        retries: entries.read(reader, "taskRetryCount", retries),
        prerequisites: entries
            .get("prerequisites")
            .map(|node| words(reader, "`prerequisites`", node))
            .unwrap_or_default(),
        image: image.and_then(|node| reader.word("`dockerImage`", node)),
        uses: uses.into_iter().flatten().collect(),
        cpu: amount(reader, "cpu", 100_000).map_or(0, |at| at.value),
        memory_mb: amount(reader, "memoryMB", u32::MAX).map_or(0, |at| at.value),
        gpu: amount(reader, "gpu", 1024).map_or(0, |at| at.value),
        ports: resources
            .as_ref()
            .and_then(|resources| resources.get("ports"))
            .map(|node| ports(reader, node))
            .unwrap_or_default(),
        shm_mb: container.as_ref().and_then(|container| {
            container.value(reader, "shmMB", |reader, what, node| reader.number(what, node, 0, u32::MAX))
        }),
        infiniband: container
            .as_ref()
            .and_then(|container| container.read(reader, "infiniband", Reader::boolean))
            .filter(|at| at.value)
            .map(|at| at.at),
        commands: commands.map(|node| lines(reader, "`commands`", node)).unwrap_or_default(),
        name,
    })
}

fn ports(reader: &mut Reader<'_>, node: &Node) -> Vec<(At<String>, u16)> {
    let ports = reader.named("`ports`", node).unwrap_or_default();
    if ports.is_empty() && matches!(&node.value, Value::Map(_)) {
        reader.error(Code::F0013, node.at, "`ports` is empty", "");
        reader.hint("omit the key if the instances need no ports of their own");
    }
    let mut found = Vec::new();
    for (label, node) in ports {
        reader.name(&label, "a port", IDENTIFIER);
        let count = reader.number(&format!("the number of ports `{}`", shortened(&label.value)), node, 1, 1024u16);
        found.extend(count.map(|count| (label, count.value)));
    }
    found
}

fn deployments<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Vec<RawDeployment<'n>> {
    let mut found: Vec<RawDeployment<'n>> = Vec::new();
    let mut seen: HashMap<String, Span> = HashMap::new();
    for item in items(reader, "`deployments`", node) {
        let what = "a deployment";
        let Some(entries) = reader.entries(what, item, keys::DEPLOYMENT.iter().copied()) else { continue };
        let name = entries.required(reader, what, "name", item.at).and_then(|node| reader.text("`name`", node));
        let name = name.filter(|name| reader.name(name, what, JOB_NAME));
        let roles = entries.required(reader, what, "taskRoles", item.at);
        let roles = roles.and_then(|node| reader.named("`taskRoles` of a deployment", node)).unwrap_or_default();
        let mut deployed = Vec::new();
        for (role, node) in roles {
            let what = format!("role `{}` of a deployment", shortened(&role.value));
            let Some(entries) = reader.entries(&what, node, keys::DEPLOYED_ROLE.iter().copied()) else { continue };
            let mut part = |key: &str| entries.get(key).map(|node| lines(reader, &format!("`{key}`"), node));
            let (before, after) = (part("preCommands"), part("postCommands"));
            deployed.push(RawDeployed { role, before: before.unwrap_or_default(), after: after.unwrap_or_default() });
        }
        let Some(name) = name else { continue };
        if let Some(first) = seen.insert(name.value.clone(), name.at) {
            let source = reader.source;
            reader.errors.add(|| {
                Diagnostic::error(Code::F0018, format!("two deployments are named `{}`", name.value))
                    .label(source.label(name.at, "the second"))
                    .label(source.label(first, "the first"))
            });
            continue;
        }
        found.push(RawDeployment { name, roles: deployed });
    }
    found
}

fn extras<'n>(reader: &mut Reader<'_>, node: &'n Node) -> RawExtras<'n> {
    let Some(entries) = reader.open_entries("`extras`", node, keys::EXTRAS.iter().copied()) else {
        return RawExtras::default();
    };
    let mut extras = RawExtras {
        gang: entries.value(reader, "gangAllocation", Reader::boolean),
        priority: entries
            .get("hivedScheduler")
            .and_then(|node| node.child("jobPriorityClass"))
            .and_then(|node| reader.choice("`jobPriorityClass`", node, &["crit", "prod", "test", "oppo"]))
            .map(|at| at.value.to_owned()),
        ..RawExtras::default()
    };
    if let Some(node) = entries.get(keys::PLUGINS) {
        for item in items(reader, "the list of plugins", node) {
            extras.plugins.extend(plugin(reader, item));
        }
    }
    let unused = ["storages", "hivedScheduler", "jobStatusChangeNotification"];
    let known = unused.iter().filter_map(|key| Some(At { value: (*key).to_owned(), at: entries.key(key)? }));
    extras.unused = known.chain(entries.rest.iter().map(|(key, _)| key.clone())).collect();
    extras
}

fn plugin<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Option<RawPlugin<'n>> {
    let what = "a plugin";
    let entries = reader.entries(what, node, keys::PLUGIN.iter().copied())?;
    let policy =
        entries.read(reader, "failurePolicy", |reader, what, node| reader.choice(what, node, &["fail", "ignore"]));
    let roles = entries.get("taskroles").map(|node| words(reader, "`taskroles`", node));
    let plugin = RawPlugin {
        internal: roles.iter().flatten().map(|role| pai_name(&role.value)).collect(),
        roles,
        name: entries.required(reader, what, "plugin", node.at).and_then(|node| reader.word("`plugin`", node))?,
        is_strict: policy.is_none_or(|policy| policy.value == "fail"),
        ..RawPlugin::default()
    };
    Some(match entries.get("parameters") {
        Some(parameters) => with_commands(reader, plugin, parameters),
        None => plugin,
    })
}

fn with_commands<'n>(reader: &mut Reader<'_>, mut plugin: RawPlugin<'n>, parameters: &'n Node) -> RawPlugin<'n> {
    if plugin.is_known() {
        (plugin.before, plugin.after) = commands(reader, parameters);
    }
    plugin
}

/// The commands of the plugin `cmd`, before and after those of the user.
fn commands<'n>(reader: &mut Reader<'_>, node: &'n Node) -> (Vec<&'n Node>, Vec<&'n Node>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let what = "the parameters of `cmd`";
    let Some(entries) = reader.open_entries(what, node, keys::COMMANDS.iter().copied()) else {
        return (before, after);
    };
    if let (Some(at), true) =
        (entries.key("callbacks"), entries.key("preCommands").or(entries.key("postCommands")).is_some())
    {
        reader.error(Code::F0018, at, "`cmd` has both `callbacks` and other commands", "use one of them");
    }
    for (key, part) in [("preCommands", &mut before), ("postCommands", &mut after)] {
        if let Some(node) = entries.get(key) {
            part.extend(lines(reader, &format!("`{key}`"), node));
        }
    }
    let callbacks = entries.get("callbacks").map(|node| items(reader, "`callbacks`", node)).unwrap_or_default();
    for item in callbacks {
        let Some(entries) = reader.entries("a callback", item, keys::CALLBACK.iter().copied()) else { continue };
        let event = entries.required(reader, "a callback", "event", item.at);
        let event = event.and_then(|node| reader.choice("`event`", node, &["taskStarts", "taskSucceeds"]));
        let commands = entries.required(reader, "a callback", "commands", item.at);
        let commands = commands.map(|node| lines(reader, "`commands` of a callback", node)).unwrap_or_default();
        match event.map(|event| event.value) {
            Some("taskStarts") => before.extend(commands),
            Some(_) => after.extend(commands),
            None => {}
        }
    }
    (before, after)
}
