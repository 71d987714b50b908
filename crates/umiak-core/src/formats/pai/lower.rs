//! From the document as written to the model: defaults, references between parts, and the script of each instance.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::keys;
use super::raw::{self, RawDeployed, RawJob, RawPlugin, RawPrerequisite, RawRole};
use super::script::{Part, script};
use super::values::Values;
use crate::diag::{Code, Diagnostic, Span};
use crate::formats::document::expansion;
use crate::formats::document::reader::{At, Reader, did_you_mean};
use crate::formats::document::template::{Templates, Unfilled, fill};
use crate::formats::document::tree::Node;
use crate::model::{
    Completion, Contract, Job, JobId, MinSucceeded, Policy, PortNeed, Resources, Restart, Role, RoleName, RoleRestart,
    Scope, Success, Work, pai_name,
};

/// Restarts after failures that are not the program's; OpenPAI has no limit.
const MAX_TRANSIENT: u32 = 10;
/// The plugin that runs commands.
const COMMANDS: &str = "cmd";
/// Ports that every instance has.
const USUAL_PORTS: [&str; 2] = ["ssh", "http"];

/// References to what a role uses.
const OWN: [&str; 3] = ["$data", "$output", "$script"];

/// Returns `None` if the document has errors, which are in the reader.
pub(super) fn lower(reader: &mut Reader<'_>, root: &Node, raw: &RawJob<'_>, values: &Values) -> Option<Job> {
    internal_names(reader, raw);
    let deployed = deployment(reader, raw);
    let owns: Vec<Values> = raw.roles.iter().map(|role| own_values(reader, raw, role)).collect();
    if is_too_far(reader, root, values, &owns) {
        return None;
    }
    unused(reader, raw);
    let mut roles = Vec::new();
    for (role, own) in raw.roles.iter().zip(owns) {
        let of_role = deployed.iter().find(|deployed| deployed.role.value == role.name.value).copied();
        let known = RoleValues { shared: values, own };
        roles.extend(lower_role(reader, raw, role, of_role, &known));
    }
    if raw.roles.len() > 1 && raw.roles.iter().all(|role| role.min_succeeded.is_none()) {
        let message = "the first task role whose instances all succeed ends the job, and stops the others";
        reader.notice(Code::F0053, raw.roles[0].name.at, message, "");
        reader.notice_hint("write `completion: {minSucceededInstances: -1}` in roles that must not decide");
    }
    if !reader.errors.is_empty() || roles.is_empty() {
        return None;
    }
    let name = raw.name.as_ref()?;
    let name = match JobId::new(name.value.clone()) {
        Ok(name) => name,
        Err(error) => {
            reader.error(Code::F0014, name.at, "invalid name for the job", error.why);
            return None;
        }
    };
    let gang = raw.extras.gang != Some(false);
    let policy = Policy { restart: restart(raw.retries), success: Success::First, gang, ..Policy::default() };
    Some(Job { name, labels: BTreeMap::new(), contracts: vec![Contract::Pai, Contract::Torch], roles, policy })
}

/// Roles whose internal names are equal would have the same variables.
fn internal_names(reader: &mut Reader<'_>, raw: &RawJob<'_>) {
    let mut seen: HashMap<String, &At<String>> = HashMap::new();
    for role in &raw.roles {
        let name = pai_name(&role.name.value);
        if name.is_empty() {
            reader.error(Code::F0014, role.name.at, "the name of a task role needs a letter or a digit", "");
            continue;
        }
        let Some(first) = seen.get(&name) else {
            seen.insert(name, &role.name);
            continue;
        };
        if first.value == role.name.value {
            continue;
        }
        let (source, (one, other)) = (reader.source, (&first.value, &role.name.value));
        reader.errors.add(|| {
            Diagnostic::error(Code::F0015, format!("task roles `{one}` and `{other}` would use the same variables"))
                .label(source.label(role.name.at, format!("`PAI_HOST_IP_{name}_0` for `{other}`")))
                .label(source.label(first.at, format!("and for `{one}`")))
        });
    }
}

/// The roles of the deployment that is used.
fn deployment<'r, 'n>(reader: &mut Reader<'_>, raw: &'r RawJob<'n>) -> Vec<&'r RawDeployed<'n>> {
    let Some(wanted) = &raw.deployment else { return Vec::new() };
    let Some(found) = raw.deployments.iter().find(|deployment| deployment.name.value == wanted.value) else {
        let names = raw.deployments.iter().map(|deployment| deployment.name.value.as_str());
        let label = did_you_mean(reader.nearest(&wanted.value, names), "not in `deployments`");
        reader.error(Code::F0017, wanted.at, format!("unknown deployment `{}`", wanted.value), label);
        return Vec::new();
    };
    for deployed in &found.roles {
        if !raw.roles.iter().any(|role| role.name.value == deployed.role.value) {
            let names = raw.roles.iter().map(|role| role.name.value.as_str());
            let label = did_you_mean(reader.nearest(&deployed.role.value, names), "has no effect");
            let message =
                format!("the deployment names a task role `{}`, which the job does not have", deployed.role.value);
            reader.notice(Code::F0051, deployed.role.at, message, label);
        }
    }
    found.roles.iter().collect()
}

fn find<'r, 'n>(
    reader: &mut Reader<'_>,
    raw: &'r RawJob<'n>,
    wanted: &At<String>,
    is_kind: impl Fn(&str) -> bool,
) -> Option<&'r RawPrerequisite<'n>> {
    let mut candidates = raw.prerequisites.iter().filter(|one| is_kind(one.kind));
    let found = candidates.clone().find(|one| one.name.value == wanted.value);
    if found.is_none() {
        let near = reader.nearest(&wanted.value, candidates.by_ref().map(|one| one.name.value.as_str()));
        let label = did_you_mean(near, "not in `prerequisites`");
        reader.error(Code::F0017, wanted.at, format!("unknown prerequisite `{}`", wanted.value), label);
    }
    found
}

/// The values that only one role has: of the prerequisites that it uses.
fn own_values(reader: &mut Reader<'_>, raw: &RawJob<'_>, role: &RawRole<'_>) -> Values {
    let mut values = Values::default();
    for (kind, name) in &role.uses {
        if let Some(found) = find(reader, raw, name, |one| one == *kind) {
            values.add(&format!("${kind}"), found.node);
        }
    }
    values
}

/// Reports a document that its templates expand too far.
fn is_too_far(reader: &mut Reader<'_>, root: &Node, values: &Values, owns: &[Values]) -> bool {
    let mut longest = values.clone();
    for own in owns {
        longest.merge_longer(own);
    }
    let is_filled = |key: &Node| {
        key.text().is_some_and(|key| matches!(key, "taskRoles" | "deployments" | "extras" | "prerequisites"))
    };
    let Some(error) = expansion::refused(reader.source, root, &longest, is_filled) else { return false };
    reader.errors.add(|| error);
    true
}

/// Values of one role: its own, and those that all share.
struct RoleValues<'v> {
    shared: &'v Values,
    own: Values,
}

impl Templates for RoleValues<'_> {
    const OPEN: &'static str = Values::OPEN;
    const CLOSE: &'static str = Values::CLOSE;
    const LITERAL: &'static str = Values::LITERAL;

    fn value(&self, word: &str) -> Result<&str, Unfilled> {
        let is_own = OWN.iter().any(|kind| word.starts_with(kind));
        match self.own.value(word) {
            // OpenPAI does so, and published documents have such references.
            Err(Unfilled::Unknown) if is_own => Err(Unfilled::Kept),
            Err(Unfilled::Unknown) => self.shared.value(word),
            other => other,
        }
    }

    fn unknown(&self, word: &str) -> String {
        let is_own = OWN.iter().any(|kind| word.starts_with(kind));
        if is_own { self.own.unknown(word) } else { self.shared.unknown(word) }
    }
}

fn lower_role(
    reader: &mut Reader<'_>,
    raw: &RawJob<'_>,
    role: &RawRole<'_>,
    deployed: Option<&RawDeployed<'_>>,
    values: &RoleValues<'_>,
) -> Option<Role> {
    let image = role.image.as_ref().and_then(|name| find(reader, raw, name, |kind| kind == "dockerimage"));
    let (before, after) = plugins(reader, raw, role, values);
    let deployed_before = deployed.map(|deployed| &deployed.before[..]).unwrap_or_default();
    let deployed_after = deployed.map(|deployed| &deployed.after[..]).unwrap_or_default();
    let lines: Vec<&Node> = deployed_before.iter().chain(&role.commands).chain(deployed_after).copied().collect();
    let commands = text(reader, &lines, values);
    let script = script(&before, commands.trim(), &after);
    if script.contains('\0') {
        reader.error(Code::F0013, role.name.at, "the commands of this task role contain a NUL byte", "");
    }
    let gang = raw.extras.gang != Some(false);
    let retries = retries(reader, role, gang);
    let ports = ports(reader, role);
    Some(Role {
        replicas: role.instances,
        work: Work {
            command: vec!["bash".to_owned(), "-c".to_owned(), script],
            resources: Resources {
                cpu_millis: (role.cpu > 0).then(|| role.cpu.saturating_mul(1000)),
                memory_bytes: (role.memory_mb > 0).then(|| u64::from(role.memory_mb) << 20),
                gpus: role.gpu,
                shm_bytes: role.shm_mb.filter(|shm| *shm > 0).map(|shm| u64::from(shm) << 20),
            },
            ports,
            image: image.and_then(|image| image.uri.clone()),
            queue: raw.cluster.clone(),
            priority: raw.extras.priority.clone(),
            ..Work::default()
        },
        completion: completion(reader, role),
        restart: RoleRestart { scope: Scope::Replica, rule: if gang { Restart::default() } else { restart(retries) } },
        ..Role::new(RoleName::new(role.name.value.clone()).ok()?, role.instances)
    })
}

/// Commands with their templates filled, one script.
fn text(reader: &mut Reader<'_>, lines: &[&Node], values: &RoleValues<'_>) -> String {
    let mut texts = Vec::new();
    for line in lines {
        let mut node = (*line).clone();
        fill(reader, &mut node, values);
        texts.extend(node.text().map(|text| text.trim().to_owned()));
    }
    texts.join("\n")
}

/// `cmd` for `com.microsoft.pai.runtimeplugin.cmd`.
fn short_name(plugin: &str) -> Option<&str> {
    plugin.strip_prefix(keys::PLUGINS)?.strip_prefix('.')
}

/// The commands of plugins, in the order in which they run.
fn plugins(
    reader: &mut Reader<'_>,
    raw: &RawJob<'_>,
    role: &RawRole<'_>,
    values: &RoleValues<'_>,
) -> (Vec<Part>, Vec<Part>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut own = Vec::new();
    for name in &role.prerequisites {
        let Some(found) = find(reader, raw, name, |_| true) else { continue };
        let Some(plugin) = &found.plugin else { continue };
        let Some(short) = short_name(&plugin.value) else { continue };
        let is_strict = found.node.child("failurePolicy").and_then(Node::text) != Some("ignore");
        let name = At { value: short.to_owned(), at: plugin.at };
        own.push(RawPlugin { name, roles: None, parameters: Some(found.node), is_strict });
    }
    let name = pai_name(&role.name.value);
    let applies = |plugin: &&RawPlugin<'_>| {
        plugin.roles.as_ref().is_none_or(|roles| roles.iter().any(|other| pai_name(other) == name))
    };
    for plugin in own.iter().chain(raw.extras.plugins.iter().filter(applies)) {
        let Some(parameters) = plugin.parameters.filter(|_| plugin.name.value == COMMANDS) else { continue };
        let (first, last) = raw::commands(reader, parameters);
        let mut part = |lines: &[&Node]| Part { lines: text(reader, lines, values), is_strict: plugin.is_strict };
        if !first.is_empty() {
            before.push(part(&first));
        }
        if !last.is_empty() {
            after.insert(0, part(&last));
        }
    }
    (before, after)
}

/// Names what has no effect, each once.
fn unused(reader: &mut Reader<'_>, raw: &RawJob<'_>) {
    let has_no_effect = |reader: &mut Reader<'_>, at: Span, what: String| {
        reader.notice(Code::F0051, at, format!("{what} is not used"), "has no effect");
    };
    for extra in &raw.extras.unused {
        has_no_effect(reader, extra.at, format!("`extras.{}`", extra.value));
    }
    for plugin in raw.extras.plugins.iter().filter(|plugin| plugin.name.value != COMMANDS) {
        has_no_effect(reader, plugin.name.at, format!("plugin `{}`", plugin.name.value));
    }
    for prerequisite in &raw.prerequisites {
        if let Some(plugin) = &prerequisite.plugin
            && short_name(&plugin.value) != Some(COMMANDS)
        {
            has_no_effect(reader, plugin.at, format!("plugin `{}`", plugin.value));
        }
    }
    for role in &raw.roles {
        if let Some(at) = role.infiniband {
            has_no_effect(reader, at, "`infiniband`".to_owned());
        }
    }
}

fn restart(max: u32) -> Restart {
    Restart { max, max_platform: MAX_TRANSIENT, max_backoff: Duration::from_secs(60), ..Restart::default() }
}

/// Restarts of single instances.
fn retries(reader: &mut Reader<'_>, role: &RawRole<'_>, gang: bool) -> u32 {
    let Some(retries) = &role.retries else { return 0 };
    if gang && retries.value > 0 {
        let message = "`taskRetryCount` is not used while all instances start together";
        reader.notice(Code::F0051, retries.at, message, "has no effect");
        reader.notice_hint("set `extras: {gangAllocation: false}`, or use `jobRetryCount`");
    }
    // Negative numbers are without a limit in OpenPAI's controller.
    if retries.value < 0 { u32::MAX } else { u32::try_from(retries.value).unwrap_or(u32::MAX) }
}

/// The labels of the document, and those that every instance has.
fn ports(reader: &mut Reader<'_>, role: &RawRole<'_>) -> Vec<PortNeed> {
    let mut needs: Vec<PortNeed> = Vec::new();
    for (label, count) in &role.ports {
        if let Some(other) = needs.iter().find(|need| need.name.eq_ignore_ascii_case(&label.value)) {
            let message = format!("ports `{}` and `{}` differ only in case", other.name, label.value);
            reader.error(Code::F0015, label.at, message, "rename one of them");
            continue;
        }
        needs.push(PortNeed { name: label.value.clone(), count: *count, fixed: None });
    }
    for name in USUAL_PORTS {
        if !needs.iter().any(|need| need.name.eq_ignore_ascii_case(name)) {
            needs.push(PortNeed { name: name.to_owned(), count: 1, fixed: None });
        }
    }
    needs
}

fn completion(reader: &mut Reader<'_>, role: &RawRole<'_>) -> Completion {
    let mut unreachable = |name: &str, at: &At<i64>| {
        if at.value > i64::from(role.instances) {
            let message = format!("`{name}` is more than the instances of task role `{}`", role.name.value);
            reader.notice(Code::F0051, at.at, message, format!("never reached with {}", role.instances));
        }
    };
    let min_failed = match &role.min_failed {
        None => 1,
        Some(at) => {
            unreachable("minFailedInstances", at);
            match at.value {
                0 => 1,
                -1 => 0,
                number => u32::try_from(number).unwrap_or(0),
            }
        }
    };
    let min_succeeded = match &role.min_succeeded {
        None => MinSucceeded::All,
        Some(at) => {
            unreachable("minSucceededInstances", at);
            match u32::try_from(at.value) {
                Ok(0) => MinSucceeded::All,
                Ok(count) if count <= role.instances => MinSucceeded::Count(count),
                _ => MinSucceeded::Never,
            }
        }
    };
    Completion { min_failed, min_succeeded, decides: true }
}
