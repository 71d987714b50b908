//! The document as written: types that mirror the format, each read from the tree on its own.
//! `lower` combines them.

use std::time::Duration;

use super::keys::{
    self, CONTRACTS, LATER_CONTRACTS, MAX_NAME, MAX_PARALLELISM, MAX_PORTS, MAX_REPLICAS, ON_FAILURE, PART_WORDS,
    PARTS, STORES,
};
use crate::diag::{Code, Span};
use crate::formats::document::reader::{At, Entries, NameRule, Reader, did_you_mean, either};
use crate::formats::document::tree::{Node, Value, shortened};
use crate::model::{Contract, Exits, MinSucceeded, Mount, Part};

#[derive(Debug, Default)]
pub(super) struct RawDocument {
    pub(super) name: Option<At<String>>,
    pub(super) labels: Vec<(At<String>, At<String>)>,
    pub(super) engine: Option<At<String>>,
    pub(super) job: RawJob,
    /// Of a pipeline.
    pub(super) steps: Option<RawSteps>,
}

#[derive(Debug, Default)]
pub(super) struct RawJob {
    pub(super) contracts: Option<Vec<Contract>>,
    pub(super) store: Option<At<&'static str>>,
    pub(super) policy: RawPolicy,
    pub(super) roles: Vec<RawRole>,
}

#[derive(Debug)]
pub(super) struct RawSteps {
    pub(super) steps: Vec<RawStep>,
    pub(super) parallelism: Option<u32>,
    pub(super) on_failure: Option<&'static str>,
}

#[derive(Debug)]
pub(super) struct RawStep {
    pub(super) name: At<String>,
    pub(super) after: Vec<At<String>>,
    pub(super) condition: Option<At<String>>,
    pub(super) engine: Option<At<String>>,
    pub(super) job: RawJob,
}

#[derive(Debug, Default)]
pub(super) struct RawPolicy {
    pub(super) restarts: RawRestart,
    pub(super) scope: Option<At<&'static str>>,
    pub(super) timeout: Option<Duration>,
    pub(super) hang: Option<Duration>,
    pub(super) grace: Option<Duration>,
    pub(super) success: Option<At<&'static str>>,
    pub(super) exits: Option<At<&'static str>>,
    pub(super) linger: Option<Duration>,
    pub(super) gang: Option<bool>,
    pub(super) settle: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct RawRestart {
    pub(super) max: Option<u32>,
    pub(super) scope: Option<&'static str>,
    pub(super) max_platform: Option<u32>,
    pub(super) backoff: Option<At<Duration>>,
    pub(super) platform_backoff: Option<Duration>,
    pub(super) max_backoff: Option<At<Duration>>,
    pub(super) window: Option<At<Duration>>,
}

#[derive(Debug)]
pub(super) struct RawRole {
    pub(super) name: At<String>,
    /// `None` if it is wrong, which is already reported.
    pub(super) replicas: Option<At<u32>>,
    pub(super) command: Vec<String>,
    pub(super) env: Vec<(At<String>, At<String>)>,
    pub(super) dir: Option<String>,
    pub(super) own_dir: bool,
    pub(super) mounts: Vec<Mount>,
    pub(super) image: Option<String>,
    pub(super) queue: Option<At<String>>,
    pub(super) priority: Option<String>,
    pub(super) resources: RawResources,
    pub(super) flavour: Option<At<String>>,
    pub(super) ports: Vec<RawPort>,
    pub(super) completes: Option<bool>,
    pub(super) completion: RawCompletion,
    pub(super) restart: Option<RawRestart>,
    pub(super) start_after: Vec<RawStartAfter>,
    pub(super) timeout: Option<Duration>,
    pub(super) start_timeout: Option<At<Duration>>,
    pub(super) grace: Option<Duration>,
    pub(super) contracts: Option<Vec<Contract>>,
    pub(super) part: Option<Part>,
}

#[derive(Debug, Default)]
pub(super) struct RawResources {
    pub(super) cpu: Option<u32>,
    pub(super) memory: Option<u64>,
    pub(super) gpu: Option<u32>,
    pub(super) shm: Option<u64>,
    pub(super) storage: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct RawCompletion {
    pub(super) min_failed: Option<At<u32>>,
    pub(super) min_succeeded: Option<At<MinSucceeded>>,
}

#[derive(Debug)]
pub(super) struct RawPort {
    pub(super) name: At<String>,
    pub(super) count: u16,
    pub(super) port: Option<u16>,
}

#[derive(Debug)]
pub(super) struct RawStartAfter {
    pub(super) role: At<String>,
    pub(super) when: Option<At<&'static str>>,
}

/// Reads a document whose templates are filled. `params` are already read.
pub(super) fn document(reader: &mut Reader<'_>, root: &Node) -> RawDocument {
    let entries = reader.entries_beside("the document", root, keys::DOCUMENT.names(), keys::is_extension);
    let Some(entries) = entries else {
        return RawDocument::default();
    };
    version(reader, &entries);
    let name = entries.read(reader, "name", Reader::word);
    let labels = entries.read(reader, "labels", Reader::texts).unwrap_or_default();
    let engine = entries.read(reader, "engine", Reader::word);
    let contracts = entries.get("contracts").map(|node| contracts(reader, node));
    let policy = entries.read(reader, "policy", policy).unwrap_or_default();
    let store = entries.read(reader, "store", |reader, what, node| reader.choice(what, node, STORES));
    let steps = steps(reader, &entries, contracts.as_deref(), store.as_ref());
    let first_line = root.entries().first().map_or(root.at, |(key, value)| key.at.to(value.at));
    let roles = if steps.is_none() { roles(reader, "the document", &entries, first_line) } else { Vec::new() };
    RawDocument { name, labels, engine, job: RawJob { contracts, store, policy, roles }, steps }
}

/// The steps of a pipeline; `None` for a document with roles. Those without contracts or `store` have the document's.
fn steps(
    reader: &mut Reader<'_>,
    entries: &Entries<'_>,
    contracts: Option<&[Contract]>,
    store: Option<&At<&'static str>>,
) -> Option<RawSteps> {
    let parallelism =
        entries.read(reader, "parallelism", |reader, what, node| reader.number(what, node, 1, MAX_PARALLELISM));
    let on_failure = entries.read(reader, "on_failure", |reader, what, node| reader.choice(what, node, ON_FAILURE));
    let Some(node) = entries.get("steps") else {
        for key in ["parallelism", "on_failure"] {
            if let Some(at) = entries.key(key) {
                reader.notice(Code::F0051, at, format!("`{key}` is for documents with `steps`"), "has no effect");
            }
        }
        return None;
    };
    if let Some(at) = entries.key("roles") {
        reader.error(Code::F0018, at, "the document has both `steps` and `roles`", "");
        reader.hint("write the roles in a step");
    }
    if let Some(at) = entries.key("policy") {
        reader.error(Code::F0018, at, "the document has both `steps` and `policy`", "");
        reader.hint("write `policy` in each step");
    }
    let named = reader.named("`steps`", node).unwrap_or_default();
    if named.is_empty() && matches!(&node.value, Value::Map(_)) {
        reader.error(Code::F0012, node.at, "`steps` is empty", "add at least one step");
    }
    let mut steps: Vec<RawStep> = named.into_iter().filter_map(|(name, node)| step(reader, name, node)).collect();
    for step in &mut steps {
        step.job.contracts = step.job.contracts.take().or_else(|| contracts.map(<[Contract]>::to_vec));
        step.job.store = step.job.store.take().or_else(|| store.cloned());
    }
    Some(RawSteps { steps, parallelism: parallelism.map(|at| at.value), on_failure: on_failure.map(|at| at.value) })
}

/// A step name becomes a directory, and names of steps are joined by dots.
const STEP_NAME: &[NameRule] = &[
    (|name| name.len() <= MAX_NAME, "must have at most 63 characters"),
    (
        |name| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')),
        "must consist of letters, digits, `-` and `_`",
    ),
    (|name| name.starts_with(|c: char| c.is_ascii_alphabetic()), "must begin with a letter"),
];
/// The role of a step that has the keys of its role itself.
const SINGLE: &str = "main";

fn step(reader: &mut Reader<'_>, name: At<String>, node: &Node) -> Option<RawStep> {
    reader.name(&name, "a step", STEP_NAME);
    let what = format!("step `{}`", shortened(&name.value));
    if node.is_null() {
        reader.error(Code::F0012, name.at, format!("{what} has no `command`"), "");
        return None;
    }
    let names = keys::STEP.names().chain(keys::ROLE.names());
    let entries = reader.entries(&what, node, names)?;
    let after = entries.get("after").map(Node::one_or_many).unwrap_or_default();
    let after = after.iter().filter_map(|node| reader.word("`after`", node)).collect();
    let condition = entries.read(reader, "if", Reader::word);
    let engine = entries.read(reader, "engine", Reader::word);
    let policy = entries.read(reader, "policy", policy).unwrap_or_default();
    let store = entries.read(reader, "store", |reader, what, node| reader.choice(what, node, STORES));
    let job = if entries.get("roles").is_some() {
        let shared = ["contracts", "roles"];
        for key in keys::ROLE.names().filter(|key| !shared.contains(key)) {
            if let Some(at) = entries.key(key) {
                reader.error(Code::F0018, at, format!("{what} has both `roles` and `{key}`"), "");
                reader.hint(format!("write `{key}` in each role"));
            }
        }
        let contracts = entries.get("contracts").map(|node| contracts(reader, node));
        RawJob { contracts, store, policy, roles: roles(reader, &what, &entries, name.at) }
    } else {
        let single = At { value: SINGLE.to_owned(), at: name.at };
        RawJob { contracts: None, store, policy, roles: vec![role_of(reader, &what, single, &entries)] }
    };
    Some(RawStep { name, after, condition, engine, job })
}

fn version(reader: &mut Reader<'_>, entries: &Entries<'_>) {
    let Some(node) = entries.get("umiak") else {
        let at = entries.key("umiak").unwrap_or(Span::new(entries.at.start, entries.at.start));
        return reader.error(Code::F0012, at, "the document has no version", "write `umiak: v1`");
    };
    if let Some(version) = reader.text("`umiak`", node).filter(|version| version.value != "v1") {
        let message = format!("unknown version `{}` of the format", version.value);
        reader.error(Code::F0004, version.at, message, "this umiak supports `v1`");
    }
}

fn roles(reader: &mut Reader<'_>, what: &str, entries: &Entries<'_>, at: Span) -> Vec<RawRole> {
    let Some(node) = entries.required(reader, what, "roles", at) else {
        if entries.lacks("roles") {
            reader
                .hint("a minimal document has `roles: {main: {command: \"python train.py\"}}`; a pipeline has `steps`");
        }
        return Vec::new();
    };
    let roles = reader.named("`roles`", node).unwrap_or_default();
    if roles.is_empty() && matches!(&node.value, Value::Map(_)) {
        reader.error(Code::F0012, node.at, "`roles` is empty", "add at least one role");
    }
    roles.into_iter().filter_map(|(name, node)| role(reader, name, node)).collect()
}

fn contracts(reader: &mut Reader<'_>, node: &Node) -> Vec<Contract> {
    let mut contracts = Vec::new();
    let names: Vec<&str> = CONTRACTS.iter().map(|(name, _)| *name).collect();
    for item in node.one_or_many() {
        let Some(word) = reader.word("a contract", item) else { continue };
        let word_is = |name: &str| name == word.value;
        if let Some((_, contract)) = CONTRACTS.iter().find(|(name, _)| word_is(name)) {
            if !contracts.contains(contract) {
                contracts.push(*contract);
            }
        } else if LATER_CONTRACTS.iter().any(|later| word_is(later)) {
            let message = format!("contract `{}` is not supported yet", word.value);
            reader.error(Code::F0004, word.at, message, format!("use {}", either(&names)));
        } else {
            let near = reader.nearest(&word.value, names.iter().chain(LATER_CONTRACTS).copied());
            let message = format!("unknown contract `{}`", word.value);
            reader.error(Code::F0017, word.at, message, did_you_mean(near, ""));
            reader.hint(format!("use {}", either(&names)));
        }
    }
    contracts
}

fn policy(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<RawPolicy> {
    let entries = reader.entries(what, node, keys::POLICY.names())?;
    let mut restarts = entries.read(reader, "restarts", restart(&keys::RESTART)).unwrap_or_default();
    let backoff = entries.read(reader, "backoff", Reader::duration);
    restarts.backoff = one_of_two(reader, "backoff", restarts.backoff, backoff);
    let longest = entries.read(reader, "max_backoff", Reader::duration);
    restarts.max_backoff = one_of_two(reader, "max_backoff", restarts.max_backoff, longest);
    let window = entries.read(reader, "window", Reader::limit);
    restarts.window = one_of_two(reader, "window", restarts.window, window);
    Some(RawPolicy {
        restarts,
        scope: entries
            .read(reader, "scope", |reader, what, node| reader.choice(what, node, &["job", "role", "replica"])),
        timeout: entries.value(reader, "timeout", Reader::limit),
        hang: entries.value(reader, "hang", Reader::limit),
        grace: entries.value(reader, "grace", Reader::duration),
        success: entries
            .read(reader, "success", |reader, what, node| reader.choice(what, node, &["all", "first", "end"])),
        exits: entries.read(reader, "exits", |reader, what, node| reader.choice(what, node, Exits::WORDS)),
        linger: entries.value(reader, "linger", Reader::duration),
        gang: entries.value(reader, "gang", Reader::boolean),
        settle: entries.value(reader, "settle", Reader::duration),
    })
}

/// `backoff` and similar keys may be in `policy` or in `policy.restarts`, not in both.
fn one_of_two<T>(reader: &mut Reader<'_>, name: &str, inner: Option<At<T>>, outer: Option<At<T>>) -> Option<At<T>> {
    if let (Some(inner), Some(outer)) = (&inner, &outer) {
        reader.error(Code::F0018, outer.at, format!("`{name}` is set twice"), "in `policy`");
        let source = reader.source;
        reader.errors.complete_last(|error| error.label(source.label(inner.at, "in `restarts`")));
    }
    inner.or(outer)
}

/// A number, or a mapping.
fn restart<'a>(table: &'static keys::Table) -> impl Fn(&mut Reader<'a>, &str, &Node) -> Option<RawRestart> {
    let count = |reader: &mut Reader<'a>, what: &str, node: &Node| reader.restarts(what, node);
    move |reader, what, node| {
        if !matches!(&node.value, Value::Map(_)) {
            return Some(RawRestart { max: count(reader, what, node).map(|at| at.value), ..RawRestart::default() });
        }
        let entries = reader.entries(what, node, table.names())?;
        let has_scope = table.names().any(|name| name == "scope");
        let scope = |reader: &mut Reader<'a>, what: &str, node: &Node| reader.choice(what, node, &["role", "replica"]);
        Some(RawRestart {
            max: entries.value(reader, "max", count),
            scope: if has_scope { entries.value(reader, "scope", scope) } else { None },
            max_platform: entries.value(reader, "max_platform", count),
            backoff: entries.read(reader, "backoff", Reader::duration),
            platform_backoff: entries.value(reader, "platform_backoff", Reader::duration),
            max_backoff: entries.read(reader, "max_backoff", Reader::duration),
            window: entries.read(reader, "window", Reader::limit),
        })
    }
}

/// A role name becomes a directory and a part of variables.
const ROLE_NAME: &[NameRule] = &[
    (|name| name.len() <= MAX_NAME, "must have at most 63 characters"),
    (
        |name| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')),
        "must consist of letters, digits, `-`, `_` and `.`",
    ),
    (
        |name| name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'),
        "must begin with a letter, a digit or `_`",
    ),
];

fn role(reader: &mut Reader<'_>, name: At<String>, node: &Node) -> Option<RawRole> {
    reader.name(&name, "a role", ROLE_NAME);
    let what = format!("role `{}`", shortened(&name.value));
    if node.is_null() {
        reader.error(Code::F0012, name.at, format!("{what} has no `command`"), "");
        return None;
    }
    let entries = reader.entries(&what, node, keys::ROLE.names())?;
    Some(role_of(reader, &what, name, &entries))
}

/// A role from the keys of a mapping, which may have others.
fn role_of(reader: &mut Reader<'_>, what: &str, name: At<String>, entries: &Entries<'_>) -> RawRole {
    if let (Some(one), Some(_)) = (entries.key("restart"), entries.key("restarts")) {
        reader.error(Code::F0018, one, format!("{what} has both `restart` and `restarts`"), "use one of them");
    }
    RawRole {
        replicas: match entries.get("replicas") {
            Some(node) => replicas(reader, node),
            None => Some(At { value: 1, at: name.at }),
        },
        command: entries
            .required(reader, what, "command", name.at)
            .map(|node| command(reader, node))
            .unwrap_or_default(),
        env: entries.read(reader, "env", env).unwrap_or_default(),
        dir: entries.value(reader, "dir", Reader::word),
        own_dir: entries.value(reader, "own_dir", Reader::boolean).unwrap_or(false),
        mounts: entries.get("mounts").map(|node| mounts(reader, node)).unwrap_or_default(),
        image: entries.value(reader, "image", Reader::word),
        queue: entries.read(reader, "queue", Reader::word),
        priority: entries.value(reader, "priority", Reader::word),
        resources: entries.read(reader, "resources", resources).unwrap_or_default(),
        flavour: entries.read(reader, "flavour", Reader::word),
        ports: entries.read(reader, "ports", ports).unwrap_or_default(),
        completes: entries.value(reader, "completes", Reader::boolean),
        completion: entries.read(reader, "completion", completion).unwrap_or_default(),
        restart: ["restarts", "restart"].iter().find_map(|key| entries.read(reader, key, restart(&keys::ROLE_RESTART))),
        start_after: entries.get("start_after").map(|node| start_after(reader, node)).unwrap_or_default(),
        timeout: entries.value(reader, "timeout", Reader::limit),
        start_timeout: entries.read(reader, "start_timeout", Reader::limit),
        grace: entries.value(reader, "grace", Reader::duration),
        contracts: entries.get("contracts").map(|node| contracts(reader, node)),
        part: entries.value(reader, "part", part),
        name,
    }
}

fn part(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<At<Part>> {
    let At { value, at } = reader.choice(what, node, PART_WORDS)?;
    PARTS.iter().find(|(word, _)| *word == value).map(|(_, part)| At { value: *part, at })
}

fn mounts(reader: &mut Reader<'_>, node: &Node) -> Vec<Mount> {
    node.one_or_many().iter().filter_map(|item| mount(reader, item)).collect()
}

fn mount(reader: &mut Reader<'_>, node: &Node) -> Option<Mount> {
    const WHAT: &str = "a mount";
    let entries = reader.entries(WHAT, node, keys::MOUNT.names())?;
    let [dir, path] = ["dir", "path"].map(|key| {
        let node = entries.required(reader, WHAT, key, node.at)?;
        reader.word(&format!("`{key}`"), node)
    });
    let read_only = entries.value(reader, "read_only", Reader::boolean).unwrap_or(false);
    let path = path?;
    if !path.value.starts_with('/') {
        reader.error(Code::F0013, path.at, "`path` of a mount must be absolute", "");
        return None;
    }
    let dir = dir?.value;
    Some(Mount { name: dir.clone(), dir: dir.into(), path: path.value.into(), read_only })
}

fn replicas(reader: &mut Reader<'_>, node: &Node) -> Option<At<u32>> {
    let is_whole = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mut keys = node.entries().iter().filter_map(|(key, _)| key.text());
    let is_range = keys.any(|key| matches!(key, "min" | "max") || key.contains(".."))
        || node.text().and_then(|text| text.split_once("..")).is_some_and(|(min, max)| is_whole(min) && is_whole(max));
    if is_range {
        reader.error(Code::F0004, node.at, "a variable number of replicas is not supported yet", "write one number");
        return None;
    }
    reader.number("`replicas`", node, 1, MAX_REPLICAS)
}

fn command(reader: &mut Reader<'_>, node: &Node) -> Vec<String> {
    match &node.value {
        Value::Scalar(_) => match reader.word("`command`", node) {
            Some(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line.value],
            None => Vec::new(),
        },
        Value::List(items) => {
            let words: Vec<String> =
                items.iter().filter_map(|item| reader.text("an item of `command`", item)).map(|at| at.value).collect();
            let is_broken = items.iter().any(Node::is_broken);
            if !is_broken && words.len() == items.len() && words.first().is_none_or(String::is_empty) {
                reader.error(Code::F0013, node.at, "`command` is empty", "the first item is the program");
            }
            words
        }
        Value::Map(_) => {
            reader.wrong_type("`command`", node, "a shell command or a list of arguments");
            Vec::new()
        }
    }
}

fn env(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<Vec<(At<String>, At<String>)>> {
    let is_name =
        |name: &str| !name.is_empty() && !name.contains(|c: char| c == '=' || c.is_whitespace() || c.is_control());
    let env = reader.texts(what, node)?;
    for (name, value) in &env {
        reader.name(name, "a variable", &[(is_name, "must not be empty or contain `=` or spaces")]);
        if let Some(reference) = shell_reference(&value.value) {
            let message = format!("`{reference}` in `env` is not expanded: values are taken literally");
            reader.notice(Code::F0052, value.at, message, "");
            reader.notice_hint(
                "expand it in `command`, which a shell runs if it is a string, or use a parameter: `{{ name }}`",
            );
        }
    }
    Some(env)
}

/// `$NAME` or `${NAME}`, as a shell would expand it.
fn shell_reference(text: &str) -> Option<&str> {
    text.match_indices('$').find_map(|(at, _)| {
        let rest = &text[at + 1..];
        let is_braced = rest.starts_with('{');
        let name = rest.strip_prefix('{').unwrap_or(rest);
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let is_closed = !is_braced || name[end..].starts_with('}');
        (is_name && is_closed).then(|| &text[at..at + 1 + end + 2 * usize::from(is_braced)])
    })
}

fn resources(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<RawResources> {
    let entries = reader.entries(what, node, keys::RESOURCES.names())?;
    Some(RawResources {
        cpu: entries.value(reader, "cpu", Reader::cpu),
        memory: entries.value(reader, "memory", Reader::memory),
        gpu: entries.value(reader, "gpu", |reader, what, node| reader.number(what, node, 0, 1024)),
        shm: entries.value(reader, "shm", Reader::memory),
        storage: entries.value(reader, "storage", Reader::memory),
    })
}

fn completion(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<RawCompletion> {
    let entries = reader.entries(what, node, keys::COMPLETION.names())?;
    Some(RawCompletion {
        min_failed: entries.read(reader, "min_failed", |reader, what, node| reader.number(what, node, 0, MAX_REPLICAS)),
        min_succeeded: entries.read(reader, "min_succeeded", |reader, what, node| {
            let value = match node.text() {
                Some("all") => MinSucceeded::All,
                Some("never") => MinSucceeded::Never,
                _ => MinSucceeded::Count(reader.number(what, node, 1, MAX_REPLICAS)?.value),
            };
            Some(At { value, at: node.at })
        }),
    })
}

fn ports(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<Vec<RawPort>> {
    let is_name = |name: &str| {
        (1..=MAX_NAME).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let count = |reader: &mut Reader<'_>, what: &str, node: &Node| reader.number(what, node, 1, MAX_PORTS);
    let mut ports = Vec::new();
    for (name, node) in reader.named(what, node)? {
        let what = format!("port `{}`", shortened(&name.value));
        reader.name(&name, "a port", &[(is_name, "must consist of at most 63 letters, digits and `_`")]);
        let mut raw = RawPort { name, count: 1, port: None };
        if let Value::Map(_) = &node.value {
            let Some(entries) = reader.entries(&what, node, keys::PORT.names()) else { continue };
            let count = entries.read(reader, "count", count);
            raw.port = entries.value(reader, "port", |reader, what, node| reader.number(what, node, 1, u16::MAX));
            if let (Some(count), Some(port)) = (&count, raw.port)
                && count.value > 1
            {
                let message = format!("{what} has `count: {}` and `port: {port}`", count.value);
                reader.error(Code::F0018, count.at, message, "a fixed port is a single port");
            }
            raw.count = count.map_or(1, |at| at.value);
        } else if let Some(count) =
            count(reader, &format!("the number of ports `{}`", shortened(&raw.name.value)), node)
        {
            raw.count = count.value;
        } else if let Value::Scalar(scalar) = &node.value
            && let Ok(1..) = scalar.text.parse::<u16>()
        {
            reader.hint(format!("for a fixed port, write `{{port: {}}}`", scalar.text));
        }
        ports.push(raw);
    }
    let total: u32 = ports.iter().map(|port| u32::from(port.count)).sum();
    if total > u32::from(MAX_PORTS) {
        reader.error(
            Code::F0013,
            node.at,
            format!("too many ports for each replica: {total}"),
            format!("at most {MAX_PORTS}"),
        );
        ports.clear();
    }
    Some(ports)
}

fn start_after(reader: &mut Reader<'_>, node: &Node) -> Vec<RawStartAfter> {
    let what = "`start_after`";
    let mut roles = Vec::new();
    for item in node.one_or_many() {
        if !matches!(&item.value, Value::Map(_)) {
            roles.extend(reader.word(what, item).map(|role| RawStartAfter { role, when: None }));
            continue;
        }
        let Some(entries) = reader.entries(what, item, keys::START_AFTER.names()) else { continue };
        let when = entries
            .read(reader, "when", |reader, what, node| reader.choice(what, node, &["started", "ready", "succeeded"]));
        let role = entries.required(reader, what, "role", item.at).and_then(|node| reader.word("`role`", node));
        roles.extend(role.map(|role| RawStartAfter { role, when }));
    }
    roles
}
