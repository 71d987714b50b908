//! The document as written: types that mirror the protocol, each read from the tree on its own.

use std::collections::{HashMap, HashSet};

use super::keys::{self, MAX_INSTANCES, MAX_RETRIES, PREREQUISITES};
use crate::diag::{Code, Diagnostic, Span};
use crate::formats::document::reader::{At, Entries, NameRule, Reader};
use crate::formats::document::tree::{Node, Value, shortened};
use crate::model::pai_name;

const MAX_NAME: usize = 255;

#[derive(Debug, Default)]
pub(super) struct RawJob<'n> {
    pub(super) name: Option<At<String>>,
    pub(super) retries: u32,
    pub(super) prerequisites: Named<RawPrerequisite<'n>>,
    pub(super) roles: Vec<RawRole<'n>>,
    pub(super) deployments: Named<RawDeployment<'n>>,
    pub(super) cluster: Option<String>,
    pub(super) deployment: Option<At<String>>,
    pub(super) extras: RawExtras<'n>,
}

/// Items of a list that other parts refer to by name.
#[derive(Debug)]
pub(super) struct Named<T> {
    pub(super) items: Vec<T>,
    /// False if some could not be read: a name that is not here may be one of those.
    pub(super) is_whole: bool,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self { items: Vec::new(), is_whole: true }
    }
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
    let Some(entries) = reader.entries("the document", root, keys::DOCUMENT.names()) else {
        return RawJob::default();
    };
    let first = root.entries().first().map_or(root.at, |(key, value)| key.at.to(value.at));
    entries.required(reader, "the document", "protocolVersion", first);
    version(reader, &entries);
    if let Some(node) = entries.required(reader, "the document", "type", first) {
        reader.choice("`type`", node, &["job"]);
    }
    for free in ["version", "contributor", "description"] {
        entries.read(reader, free, Reader::text);
    }
    let name = entries.required(reader, "the document", "name", first);
    let name = name.and_then(|node| reader.text("`name`", node)).filter(|name| reader.name(name, "a job", JOB_NAME));
    let defaults =
        entries.get("defaults").and_then(|node| reader.open_entries("`defaults`", node, keys::DEFAULTS.names()));
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

/// The version of the protocol, of the document or of a part.
fn version(reader: &mut Reader<'_>, entries: &Entries<'_>) {
    entries.read(reader, "protocolVersion", |reader, what, node| reader.choice(what, node, &["2"]));
}

/// The items of a list with at least one; `None` if it is not such a list.
fn items<'n>(reader: &mut Reader<'_>, what: &str, node: &'n Node) -> Option<&'n [Node]> {
    let Value::List(items) = &node.value else {
        reader.wrong_type(what, node, "a list");
        return None;
    };
    if items.is_empty() {
        reader.error(Code::F0013, node.at, format!("{what} is empty"), "");
        return None;
    }
    Some(items)
}

/// The items of a list of mappings, each read on its own.
fn maps<'n, T>(
    reader: &mut Reader<'_>,
    what: &str,
    node: &'n Node,
    mut read: impl FnMut(&mut Reader<'_>, &'n Node) -> Option<T>,
) -> Named<T> {
    let items = items(reader, what, node);
    let mut found = Named { items: Vec::new(), is_whole: items.is_some() };
    for item in items.unwrap_or_default() {
        if !matches!(&item.value, Value::Map(_)) {
            reader.wrong_type(&format!("an item of {what}"), item, "a mapping");
            found.is_whole = false;
            continue;
        }
        let item = read(reader, item);
        found.is_whole &= item.is_some();
        found.items.extend(item);
    }
    found
}

/// Lines of a script: a list of strings, whose templates are filled later.
fn lines<'n>(reader: &mut Reader<'_>, what: &str, node: &'n Node) -> Vec<&'n Node> {
    let items = items(reader, what, node).unwrap_or_default();
    items.iter().filter(|item| reader.text(&format!("an item of {what}"), item).is_some()).collect()
}

fn words(reader: &mut Reader<'_>, what: &str, node: &Node) -> Vec<At<String>> {
    let Value::List(items) = &node.value else {
        reader.wrong_type(what, node, "a list");
        return Vec::new();
    };
    items.iter().filter_map(|item| reader.word(&format!("an item of {what}"), item)).collect()
}

fn prerequisites<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Named<RawPrerequisite<'n>> {
    let mut seen: HashMap<(&'static str, String), Span> = HashMap::new();
    maps(reader, "`prerequisites`", node, |reader, item| {
        let prerequisite = prerequisite(reader, item)?;
        let (kind, name) = (prerequisite.kind, &prerequisite.name);
        if let Some(first) = seen.get(&(kind, name.value.clone())) {
            let what = format!("two prerequisites of type `{kind}` are named `{}`", name.value);
            twice(reader, what, name.at, *first);
        } else {
            seen.insert((kind, name.value.clone()), name.at);
        }
        Some(prerequisite)
    })
}

/// Two items of a list have one name.
fn twice(reader: &mut Reader<'_>, what: String, second: Span, first: Span) {
    let source = reader.source;
    reader.errors.add(|| {
        Diagnostic::error(Code::F0018, what)
            .label(source.label(second, "the second"))
            .label(source.label(first, "the first"))
    });
}

fn prerequisite<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Option<RawPrerequisite<'n>> {
    let what = "a prerequisite";
    let entries = reader.open_entries(what, node, keys::PREREQUISITE.names())?;
    let kind =
        entries.required(reader, what, "type", node.at).and_then(|node| reader.choice("`type`", node, PREREQUISITES));
    let is_image = kind.as_ref().is_some_and(|kind| kind.value == "dockerimage");
    let entries = if is_image { reader.entries(what, node, keys::IMAGE.names())? } else { entries };
    let name = entries.required(reader, what, "name", node.at).and_then(|node| reader.text("`name`", node));
    let name = name.filter(|name| reader.name(name, what, JOB_NAME));
    version(reader, &entries);
    for free in ["version", "contributor", "description"] {
        entries.read(reader, free, Reader::text);
    }
    let uri = match kind.as_ref()?.value {
        "dockerimage" => {
            if let Some(auth) = entries.get("auth")
                && let Some(auth) = reader.entries("`auth`", auth, keys::AUTH.names())
            {
                for key in keys::AUTH.names() {
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
        let policy = node.child("failurePolicy").and_then(|node| failure_policy(reader, "`failurePolicy`", node));
        let is_strict = policy.is_none_or(|policy| policy.value == "fail");
        with_commands(reader, RawPlugin { name, is_strict, ..RawPlugin::default() }, node)
    });
    if let Some(node) = if is_image { None } else { entries.get("require") } {
        words(reader, "`require`", node);
        let at = entries.key("require").unwrap_or(node.at);
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
    let entries = reader.entries(&what, node, keys::ROLE.names())?;
    version(reader, &entries);
    let retries =
        |reader: &mut Reader<'_>, what: &str, node: &Node| reader.number(what, node, -2, i64::from(MAX_RETRIES));
    let least =
        |reader: &mut Reader<'_>, what: &str, node: &Node| reader.number(what, node, -1, i64::from(MAX_INSTANCES));
    let completion = entries.get("completion");
    let completion = completion.and_then(|node| reader.entries("`completion`", node, keys::COMPLETION.names()));
    let completion = |reader: &mut Reader<'_>, key: &str| completion.as_ref()?.read(reader, key, least);
    let container = entries.get("extraContainerOptions");
    let container =
        container.and_then(|node| reader.open_entries("`extraContainerOptions`", node, keys::CONTAINER.names()));
    let resources = entries.required(reader, &what, "resourcePerInstance", name.at);
    let resources_at = entries.key("resourcePerInstance").unwrap_or(name.at);
    let resources = resources.and_then(|node| reader.entries("`resourcePerInstance`", node, keys::RESOURCES.names()));
    let amount = |reader: &mut Reader<'_>, key: &str, most: u32| {
        let resources = resources.as_ref()?;
        let node = resources.required(reader, "`resourcePerInstance`", key, resources_at)?;
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

fn deployments<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Named<RawDeployment<'n>> {
    let mut seen: HashMap<String, Span> = HashMap::new();
    maps(reader, "`deployments`", node, |reader, item| {
        let deployment = deployment(reader, item)?;
        let name = &deployment.name;
        if let Some(first) = seen.insert(name.value.clone(), name.at) {
            twice(reader, format!("two deployments are named `{}`", name.value), name.at, first);
        }
        Some(deployment)
    })
}

fn deployment<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Option<RawDeployment<'n>> {
    let what = "a deployment";
    let entries = reader.entries(what, node, keys::DEPLOYMENT.names())?;
    let name = entries.required(reader, what, "name", node.at).and_then(|node| reader.text("`name`", node));
    let name = name.filter(|name| reader.name(name, what, JOB_NAME));
    let mut roles = Vec::new();
    if let Some(node) = entries.required(reader, what, "taskRoles", node.at) {
        let named = reader.named("`taskRoles` of a deployment", node);
        if named.as_ref().is_some_and(Vec::is_empty) {
            reader.error(Code::F0012, node.at, "`taskRoles` of a deployment is empty", "add at least one task role");
        }
        for (role, node) in named.unwrap_or_default() {
            let what = format!("role `{}` of a deployment", shortened(&role.value));
            let Some(entries) = reader.entries(&what, node, keys::DEPLOYED_ROLE.names()) else { continue };
            let mut part = |key: &str| entries.get(key).map(|node| lines(reader, &format!("`{key}`"), node));
            let (before, after) = (part("preCommands"), part("postCommands"));
            roles.push(RawDeployed { role, before: before.unwrap_or_default(), after: after.unwrap_or_default() });
        }
    }
    Some(RawDeployment { name: name?, roles })
}

fn extras<'n>(reader: &mut Reader<'_>, node: &'n Node) -> RawExtras<'n> {
    let Some(entries) = reader.open_entries("`extras`", node, keys::EXTRAS.names()) else {
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
        extras.plugins = maps(reader, &format!("`{}`", keys::PLUGINS), node, plugin).items;
    }
    let unused = ["storages", "hivedScheduler", "jobStatusChangeNotification"];
    let known = unused.iter().filter_map(|key| Some(At { value: (*key).to_owned(), at: entries.key(key)? }));
    extras.unused = known.chain(entries.rest.iter().map(|(key, _)| key.clone())).collect();
    extras
}

fn plugin<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Option<RawPlugin<'n>> {
    let what = "a plugin";
    let entries = reader.entries(what, node, keys::PLUGIN.names())?;
    let policy = entries.read(reader, "failurePolicy", failure_policy);
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

fn failure_policy(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<At<&'static str>> {
    reader.choice(what, node, &["fail", "ignore"])
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
    let Some(entries) = reader.open_entries(what, node, keys::COMMANDS.names()) else {
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
    let callbacks = entries.get("callbacks").map(|node| maps(reader, "`callbacks`", node, callback));
    for (event, commands) in callbacks.unwrap_or_default().items {
        let part = if event == "taskStarts" { &mut before } else { &mut after };
        part.extend(commands);
    }
    (before, after)
}

/// The event of a callback, and its commands.
fn callback<'n>(reader: &mut Reader<'_>, node: &'n Node) -> Option<(&'static str, Vec<&'n Node>)> {
    let what = "a callback";
    let entries = reader.entries(what, node, keys::CALLBACK.names())?;
    let event = entries.required(reader, what, "event", node.at);
    let event = event.and_then(|node| reader.choice("`event`", node, &["taskStarts", "taskSucceeds"]));
    let commands = entries.required(reader, what, "commands", node.at);
    let commands = commands.map(|node| lines(reader, "`commands` of a callback", node));
    Some((event?.value, commands?))
}
