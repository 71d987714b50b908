//! The document as it is written: types that mirror the format, read from the tree without a thought for each other.
//! What it means is `lower`'s business.

use std::time::Duration;

use super::keys::{self, CONTRACTS, LATER_CONTRACTS, MAX_PORTS, MAX_REPLICAS};
use super::read::{At, Entries, Reader, either, is_broken, one_or_many};
use super::units;
use crate::diag::{Code, Span, nearest};
use crate::formats::yaml::{Node, Value};
use crate::model::Contract;

#[derive(Debug, Default)]
pub(super) struct RawDocument {
    pub(super) name: Option<At<String>>,
    pub(super) labels: Vec<(At<String>, At<String>)>,
    pub(super) contracts: Option<Vec<Contract>>,
    pub(super) policy: RawPolicy,
    pub(super) roles: Vec<RawRole>,
}

#[derive(Debug, Default)]
pub(super) struct RawPolicy {
    pub(super) restarts: RawRestart,
    pub(super) scope: Option<At<&'static str>>,
    pub(super) timeout: Option<Duration>,
    pub(super) grace: Option<Duration>,
    pub(super) gang: Option<bool>,
    pub(super) settle: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct RawRestart {
    pub(super) max: Option<u32>,
    pub(super) scope: Option<&'static str>,
    pub(super) max_platform: Option<u32>,
    pub(super) backoff: Option<At<Duration>>,
    pub(super) max_backoff: Option<At<Duration>>,
    pub(super) window: Option<At<Duration>>,
}

#[derive(Debug)]
pub(super) struct RawRole {
    pub(super) name: At<String>,
    /// Nothing where it is wrong, and told.
    pub(super) replicas: Option<At<u32>>,
    pub(super) command: Vec<String>,
    pub(super) env: Vec<(At<String>, At<String>)>,
    pub(super) dir: Option<String>,
    pub(super) image: Option<String>,
    pub(super) queue: Option<At<String>>,
    pub(super) priority: Option<String>,
    pub(super) cpu: Option<u32>,
    pub(super) memory: Option<u64>,
    pub(super) gpu: Option<u32>,
    pub(super) flavour: Option<At<String>>,
    pub(super) ports: Vec<RawPort>,
    pub(super) completes: Option<bool>,
    pub(super) min_failed: Option<At<u32>>,
    pub(super) min_succeeded: Option<At<Option<u32>>>,
    pub(super) restart: Option<RawRestart>,
    pub(super) start_after: Vec<RawStartAfter>,
    pub(super) timeout: Option<Duration>,
    pub(super) start_timeout: Option<At<Duration>>,
    pub(super) grace: Option<Duration>,
    pub(super) contracts: Option<Vec<Contract>>,
}

#[derive(Debug)]
pub(super) struct RawPort {
    pub(super) name: At<String>,
    pub(super) count: u32,
    pub(super) port: Option<u32>,
}

#[derive(Debug)]
pub(super) struct RawStartAfter {
    pub(super) role: At<String>,
    pub(super) when: Option<At<&'static str>>,
}

/// Reads a document whose templates are filled. `params` have been read already.
pub(super) fn document(reader: &mut Reader<'_>, root: &Node) -> RawDocument {
    let mut raw = RawDocument::default();
    let Some(entries) = reader.entries("the document", root, &keys::DOCUMENT) else { return raw };
    version(reader, &entries);
    raw.name = entries.get("name").and_then(|node| reader.word("`name`", node));
    raw.labels = entries.get("labels").and_then(|node| reader.texts("`labels`", node)).unwrap_or_default();
    raw.contracts = entries.get("contracts").map(|node| contracts(reader, node));
    raw.policy = entries.get("policy").map(|node| policy(reader, node)).unwrap_or_default();
    match entries.get("roles") {
        Some(node) => {
            let roles = reader.named("`roles`", node).unwrap_or_default();
            if roles.is_empty() && matches!(&node.value, Value::Map(_)) {
                reader.error(Code::F0012, node.at, "`roles` is empty", "at least one role");
            }
            raw.roles = roles.into_iter().filter_map(|(name, node)| role(reader, name, node)).collect();
        }
        None if entries.is_misspelt("roles") => {}
        None => {
            let at = entries.key("roles").unwrap_or_else(|| first_line(root));
            reader.error(Code::F0012, at, "the document has no `roles`", "");
            reader.hint("the least is `roles: {main: {command: \"python train.py\"}}`");
        }
    }
    raw
}

fn first_line(node: &Node) -> Span {
    match &node.value {
        Value::Map(entries) => entries.first().map_or(node.at, |(key, value)| key.at.to(value.at)),
        _ => node.at,
    }
}

fn version(reader: &mut Reader<'_>, entries: &Entries<'_>) {
    match entries.get("umiak") {
        None => {
            let at = entries.key("umiak").unwrap_or(Span::new(entries.at.start, entries.at.start));
            reader.error(Code::F0012, at, "the document has no version", "write `umiak: v1`");
        }
        Some(node) => {
            let Some(version) = reader.text("`umiak`", node) else { return };
            if version.value != "v1" {
                let message = format!("version `{}` of the format is not known here", version.value);
                reader.error(Code::F0004, version.at, message, "this umiak knows `v1`");
            }
        }
    }
}

fn contracts(reader: &mut Reader<'_>, node: &Node) -> Vec<Contract> {
    let mut contracts = Vec::new();
    for item in one_or_many(node) {
        let Some(word) = reader.word("a contract", item) else { continue };
        let contract = match word.value.as_str() {
            "paddle" => Contract::Paddle,
            "torch" => Contract::Torch,
            later if LATER_CONTRACTS.contains(&later) => {
                let message = format!("contract `{later}` is not in this version");
                reader.error(
                    Code::F0004,
                    word.at,
                    message,
                    format!("there are {}", either(CONTRACTS).replace(" or ", " and ")),
                );
                continue;
            }
            other => {
                let near = nearest(other, CONTRACTS.iter().chain(LATER_CONTRACTS).copied());
                let label = near.map_or("unknown".to_owned(), |near| format!("did you mean `{near}`?"));
                reader.error(Code::F0017, word.at, format!("there is no contract `{other}`"), label);
                reader.hint(format!("a contract is {}", either(CONTRACTS)));
                continue;
            }
        };
        if !contracts.contains(&contract) {
            contracts.push(contract);
        }
    }
    contracts
}

fn policy(reader: &mut Reader<'_>, node: &Node) -> RawPolicy {
    let mut raw = RawPolicy::default();
    let Some(entries) = reader.entries("`policy`", node, &keys::POLICY) else { return raw };
    if let Some(node) = entries.get("restarts") {
        raw.restarts = restart(reader, "`restarts`", node, &keys::RESTART);
    }
    let backoff = entries.get("backoff").and_then(|node| reader.duration("`backoff`", node));
    raw.restarts.backoff = one_of_two(reader, "backoff", raw.restarts.backoff.take(), backoff);
    let longest = entries.get("max_backoff").and_then(|node| reader.duration("`max_backoff`", node));
    raw.restarts.max_backoff = one_of_two(reader, "max_backoff", raw.restarts.max_backoff.take(), longest);
    let window = entries.get("window").and_then(|node| reader.limit("`window`", node));
    raw.restarts.window = one_of_two(reader, "window", raw.restarts.window.take(), window);
    raw.scope = entries.get("scope").and_then(|node| reader.choice("`scope`", node, &["job", "role", "replica"]));
    raw.timeout = entries.get("timeout").and_then(|node| reader.limit("`timeout`", node)).map(|at| at.value);
    raw.grace = entries.get("grace").and_then(|node| reader.duration("`grace`", node)).map(|at| at.value);
    raw.gang = entries.get("gang").and_then(|node| reader.boolean("`gang`", node)).map(|at| at.value);
    raw.settle = entries.get("settle").and_then(|node| reader.duration("`settle`", node)).map(|at| at.value);
    raw
}

/// `backoff` and the like stand in `policy` or in `policy.restarts`, not in both.
fn one_of_two<T>(reader: &mut Reader<'_>, name: &str, inner: Option<At<T>>, outer: Option<At<T>>) -> Option<At<T>> {
    if let (Some(inner), Some(outer)) = (&inner, &outer) {
        reader.error(Code::F0018, outer.at, format!("`{name}` is there twice"), "in `policy`");
        let label = reader.source.label(inner.at, "in `restarts`");
        if let Some(error) = reader.errors.last_mut() {
            error.labels.push(label);
        }
    }
    inner.or(outer)
}

/// A number, or a mapping.
fn restart(reader: &mut Reader<'_>, what: &str, node: &Node, table: &'static keys::Table) -> RawRestart {
    let mut raw = RawRestart::default();
    if !matches!(&node.value, Value::Map(_)) {
        raw.max = reader.number(what, node, 0, 1_000_000).map(|at| at.value);
        return raw;
    }
    let Some(entries) = reader.entries(what, node, table) else { return raw };
    raw.max = entries.get("max").and_then(|node| reader.number("`max`", node, 0, 1_000_000)).map(|at| at.value);
    if table.names().any(|name| name == "scope") {
        raw.scope = entries
            .get("scope")
            .and_then(|node| reader.choice("`scope`", node, &["role", "replica"]))
            .map(|at| at.value);
    }
    raw.max_platform = entries
        .get("max_platform")
        .and_then(|node| reader.number("`max_platform`", node, 0, 1_000_000))
        .map(|at| at.value);
    raw.backoff = entries.get("backoff").and_then(|node| reader.duration("`backoff`", node));
    raw.max_backoff = entries.get("max_backoff").and_then(|node| reader.duration("`max_backoff`", node));
    raw.window = entries.get("window").and_then(|node| reader.limit("`window`", node));
    raw
}

fn role(reader: &mut Reader<'_>, name: At<String>, node: &Node) -> Option<RawRole> {
    role_name(reader, &name);
    let what = format!("role `{}`", name.value);
    if node.is_null() {
        reader.error(Code::F0012, name.at, format!("{what} has no `command`"), "");
        return None;
    }
    let entries = reader.entries(&what, node, &keys::ROLE)?;
    let mut raw = RawRole {
        replicas: match entries.get("replicas") {
            Some(node) => replicas(reader, node),
            None => Some(At { value: 1, at: name.at }),
        },
        command: command(reader, &what, &name, &entries),
        env: entries.get("env").map(|node| env(reader, node)).unwrap_or_default(),
        dir: entries.get("dir").and_then(|node| reader.word("`dir`", node)).map(|at| at.value),
        image: entries.get("image").and_then(|node| reader.word("`image`", node)).map(|at| at.value),
        queue: entries.get("queue").and_then(|node| reader.word("`queue`", node)),
        priority: entries.get("priority").and_then(|node| reader.word("`priority`", node)).map(|at| at.value),
        cpu: None,
        memory: None,
        gpu: None,
        flavour: entries.get("flavour").and_then(|node| reader.word("`flavour`", node)),
        ports: entries.get("ports").map(|node| ports(reader, node)).unwrap_or_default(),
        completes: entries.get("completes").and_then(|node| reader.boolean("`completes`", node)).map(|at| at.value),
        min_failed: None,
        min_succeeded: None,
        restart: None,
        start_after: entries.get("start_after").map(|node| start_after(reader, node)).unwrap_or_default(),
        timeout: entries.get("timeout").and_then(|node| reader.limit("`timeout`", node)).map(|at| at.value),
        start_timeout: entries.get("start_timeout").and_then(|node| reader.limit("`start_timeout`", node)),
        grace: entries.get("grace").and_then(|node| reader.duration("`grace`", node)).map(|at| at.value),
        contracts: entries.get("contracts").map(|node| contracts(reader, node)),
        name,
    };
    if let Some(node) = entries.get("resources") {
        resources(reader, node, &mut raw);
    }
    if let Some(node) = entries.get("completion") {
        completion(reader, node, &mut raw);
    }
    if let (Some(one), Some(_)) = (entries.key("restart"), entries.key("restarts")) {
        reader.error(Code::F0018, one, format!("{what} has both `restart` and `restarts`"), "one of them is enough");
    }
    raw.restart = ["restarts", "restart"]
        .iter()
        .find_map(|key| entries.get(key).map(|node| restart(reader, &format!("`{key}`"), node, &keys::ROLE_RESTART)));
    Some(raw)
}

/// A role name becomes a directory and a part of variables.
fn role_name(reader: &mut Reader<'_>, name: &At<String>) {
    let text = &name.value;
    let why = if text.len() > 63 {
        "at most 63 characters"
    } else if !text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
        "letters, digits, `-`, `_` and `.`"
    } else if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        "it begins with a letter or a digit"
    } else {
        return;
    };
    reader.error(Code::F0014, name.at, format!("`{text}` cannot be the name of a role"), why);
}

fn replicas(reader: &mut Reader<'_>, node: &Node) -> Option<At<u32>> {
    let is_range = match &node.value {
        Value::Map(entries) => entries.iter().any(|(key, _)| {
            matches!(&key.value, Value::Scalar(scalar) if matches!(scalar.text.as_str(), "min" | "max") || scalar.text.contains(".."))
        }),
        Value::Scalar(scalar) => scalar
            .text
            .split_once("..")
            .is_some_and(|(min, max)| [min, max].iter().all(|end| !end.is_empty() && end.bytes().all(|b| b.is_ascii_digit()))),
        Value::List(_) => false,
    };
    if is_range {
        reader.error(Code::F0004, node.at, "a changing number of replicas is not in this version", "write one number");
        return None;
    }
    reader.number("`replicas`", node, 1, MAX_REPLICAS)
}

fn command(reader: &mut Reader<'_>, what: &str, name: &At<String>, entries: &Entries<'_>) -> Vec<String> {
    let Some(node) = entries.get("command") else {
        let at = entries.key("command").unwrap_or(name.at);
        if entries.is_misspelt("command") {
            return Vec::new();
        }
        reader.error(Code::F0012, at, format!("{what} has no `command`"), "");
        return Vec::new();
    };
    match &node.value {
        Value::Scalar(_) => match reader.word("`command`", node) {
            Some(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line.value],
            None => Vec::new(),
        },
        Value::List(items) => {
            let words: Vec<String> =
                items.iter().filter_map(|item| reader.text("a word of `command`", item)).map(|at| at.value).collect();
            let is_broken = items.iter().any(is_broken);
            if !is_broken && words.len() == items.len() && words.first().is_none_or(String::is_empty) {
                reader.error(Code::F0013, node.at, "`command` is empty", "the first word is the program");
            }
            words
        }
        Value::Map(_) => {
            reader.wrong_type("`command`", node, "a line for the shell or a list of words");
            Vec::new()
        }
    }
}

fn env(reader: &mut Reader<'_>, node: &Node) -> Vec<(At<String>, At<String>)> {
    let env = reader.texts("`env`", node).unwrap_or_default();
    for (name, _) in &env {
        let text = &name.value;
        if text.is_empty() || text.contains(|c: char| c == '=' || c.is_whitespace() || c.is_control()) {
            let message = format!("`{}` cannot be the name of a variable", text.escape_debug());
            reader.error(Code::F0014, name.at, message, "no `=`, no spaces");
        }
    }
    env
}

fn resources(reader: &mut Reader<'_>, node: &Node, raw: &mut RawRole) {
    let Some(entries) = reader.entries("`resources`", node, &keys::RESOURCES) else { return };
    raw.cpu = entries.get("cpu").and_then(|node| reader.measure("`cpu`", node, units::cpu)).map(|at| at.value);
    raw.memory =
        entries.get("memory").and_then(|node| reader.measure("`memory`", node, units::memory)).map(|at| at.value);
    raw.gpu = entries.get("gpu").and_then(|node| reader.number("`gpu`", node, 0, 1024)).map(|at| at.value);
}

fn completion(reader: &mut Reader<'_>, node: &Node, raw: &mut RawRole) {
    let Some(entries) = reader.entries("`completion`", node, &keys::COMPLETION) else { return };
    raw.min_failed = entries.get("min_failed").and_then(|node| reader.number("`min_failed`", node, 0, MAX_REPLICAS));
    raw.min_succeeded = entries.get("min_succeeded").and_then(|node| match &node.value {
        Value::Scalar(scalar) if scalar.text == "all" => Some(At { value: None, at: node.at }),
        _ => reader
            .number("`min_succeeded`", node, 1, MAX_REPLICAS)
            .map(|At { value, at }| At { value: Some(value), at }),
    });
}

fn ports(reader: &mut Reader<'_>, node: &Node) -> Vec<RawPort> {
    let mut ports = Vec::new();
    for (name, node) in reader.named("`ports`", node).unwrap_or_default() {
        let what = format!("port `{}`", name.value);
        let is_fine = !name.value.is_empty()
            && name.value.len() <= 63
            && name.value.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !is_fine {
            let message = format!("`{}` cannot be the name of a port", name.value);
            reader.error(Code::F0014, name.at, message, "lower case letters, digits and `_`, at most 63");
        }
        let mut raw = RawPort { name, count: 1, port: None };
        if let Value::Map(_) = &node.value {
            let Some(entries) = reader.entries(&what, node, &keys::PORT) else { continue };
            let count = entries.get("count").and_then(|node| reader.number("`count`", node, 1, MAX_PORTS));
            raw.port = entries.get("port").and_then(|node| reader.number("`port`", node, 1, 65535)).map(|at| at.value);
            if let (Some(count), Some(port)) = (&count, raw.port)
                && count.value > 1
            {
                let message = format!("{what} asks for {} ports and for port {port}", count.value);
                reader.error(Code::F0018, count.at, message, "a fixed port is one");
            }
            raw.count = count.map_or(1, |at| at.value);
        } else {
            raw.count = reader.number(&what, node, 1, MAX_PORTS).map_or(1, |at| at.value);
        }
        ports.push(raw);
    }
    let total: u32 = ports.iter().map(|port| port.count).sum();
    if total > MAX_PORTS && ports.iter().all(|port| port.count <= MAX_PORTS) {
        reader.error(Code::F0013, node.at, format!("{total} ports for each replica"), format!("at most {MAX_PORTS}"));
    }
    ports
}

fn start_after(reader: &mut Reader<'_>, node: &Node) -> Vec<RawStartAfter> {
    let mut roles = Vec::new();
    for item in one_or_many(node) {
        if let Value::Map(_) = &item.value {
            let Some(entries) = reader.entries("`start_after`", item, &keys::START_AFTER) else { continue };
            let when =
                entries.get("when").and_then(|node| reader.choice("`when`", node, &["started", "ready", "succeeded"]));
            match entries.get("role") {
                Some(node) => {
                    roles.extend(reader.word("`role`", node).map(|role| RawStartAfter { role, when }));
                }
                None => reader.error(Code::F0012, item.at, "`start_after` has no `role`", ""),
            }
        } else {
            roles.extend(reader.word("`start_after`", item).map(|role| RawStartAfter { role, when: None }));
        }
    }
    roles
}
