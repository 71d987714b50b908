//! From the document as written to the model: defaults, references between parts, and the script of each instance.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::raw::{RawDeployed, RawJob, RawPlugin, RawPrerequisite, RawRole};
use super::script::{Part, script};
use super::values::{Below, RoleValues, Values};
use crate::diag::{Code, Span};
use crate::formats::document::expansion;
use crate::formats::document::limits::MAX_PORTS;
use crate::formats::document::names::pai_names;
use crate::formats::document::reader::{At, Reader, did_you_mean};
use crate::formats::document::template::{Templates as _, fill, words};
use crate::formats::document::tree::{Node, Value, shortened};
use crate::model::{
    Completion, Contract, Exits, Job, JobId, MinSucceeded, Policy, PortNeed, Resources, Restart, Role, RoleName,
    RoleRestart, Scope, Success, Work, pai_name,
};

/// Restarts after failures that are not the program's; OpenPAI has no limit.
const MAX_TRANSIENT: u32 = 10;
/// Ports that every instance has.
const USUAL_PORTS: [&str; 2] = ["ssh", "http"];

/// Returns `None` if the document has errors, which are in the reader.
pub(super) fn lower(reader: &mut Reader<'_>, root: &Node, raw: &RawJob<'_>, values: &Values<'_>) -> Option<Job> {
    pai_names(reader, "task role", raw.roles.iter().map(|role| &role.name));
    let is_filled = |key: &Node| {
        key.text().is_some_and(|key| matches!(key, "taskRoles" | "deployments" | "extras" | "prerequisites"))
    };
    if let Some(error) = expansion::refused(reader.source, root, values, is_filled) {
        reader.errors.add(|| error);
        return None;
    }
    reader.check_total(raw.roles.iter().map(|role| (role.instances, role.name.at)));
    let images = raw.prerequisites.items.iter().filter(|one| one.kind == "dockerimage");
    for auth in images.filter_map(|image| image.node.child("auth")) {
        fill(reader, &mut auth.clone(), values);
    }
    let deployed = deployment(reader, raw);
    let shelf = Shelf::new(raw);
    unused(reader, raw);
    let mut budget = reader.source.text.len() + expansion::MAX_EXPANSION;
    let mut roles = Vec::new();
    for role in &raw.roles {
        let of_role = deployed.get(role.name.value.as_str()).copied();
        let own = role.uses.iter().filter_map(|(kind, name)| Some((*kind, shelf.find(reader, name, Some(kind))?.1)));
        let known = RoleValues { shared: values, own: own.collect() };
        let mut filler = Filler { values: &known, budget: &mut budget };
        roles.extend(lower_role(reader, raw, role, of_role, &shelf, &mut filler));
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
    let policy = Policy {
        restart: restart(raw.retries),
        success: Success::First,
        exits: Some(Exits::Pai),
        gang: raw.extras.is_gang(),
        ..Policy::default()
    };
    Some(Job {
        name,
        labels: BTreeMap::new(),
        agent_store: false,
        contracts: vec![Contract::Pai, Contract::Torch],
        roles,
        policy,
    })
}

/// The prerequisites by name, each with what is below it.
struct Shelf<'r, 'n> {
    raw: &'r RawJob<'n>,
    below: Vec<Below<'n>>,
    positions: HashMap<(&'r str, &'r str), usize>,
    by_name: HashMap<&'r str, usize>,
}

impl<'r, 'n> Shelf<'r, 'n> {
    fn new(raw: &'r RawJob<'n>) -> Self {
        let all = || raw.prerequisites.items.iter().enumerate();
        Self {
            raw,
            below: raw.prerequisites.items.iter().map(|one| Below::new(one.node)).collect(),
            positions: all().map(|(at, one)| ((one.kind, one.name.value.as_str()), at)).collect(),
            by_name: all().rev().map(|(at, one)| (one.name.value.as_str(), at)).collect(),
        }
    }

    /// The prerequisite of this name, and of this kind if there is one.
    fn find(
        &self,
        reader: &mut Reader<'_>,
        wanted: &At<String>,
        kind: Option<&str>,
    ) -> Option<(&'r RawPrerequisite<'n>, &Below<'n>)> {
        let name = wanted.value.as_str();
        let found = match kind {
            Some(kind) => self.positions.get(&(kind, name)),
            None => self.by_name.get(name),
        };
        let Some(at) = found else {
            if !self.raw.prerequisites.is_whole {
                return None;
            }
            let same = self.raw.prerequisites.items.iter().filter(|one| kind.is_none_or(|kind| one.kind == kind));
            let label =
                did_you_mean(reader.nearest(name, same.map(|one| one.name.value.as_str())), "not in `prerequisites`");
            reader.error(Code::F0017, wanted.at, format!("unknown prerequisite `{name}`"), label);
            return None;
        };
        Some((&self.raw.prerequisites.items[*at], &self.below[*at]))
    }
}

/// Fills templates, within what a document may expand to: commands of plugins are copied for every role.
struct Filler<'f, 'v, 'n> {
    values: &'f RoleValues<'v, 'n>,
    budget: &'f mut usize,
}

impl Filler<'_, '_, '_> {
    /// Commands with their templates filled, one script. Empty once the budget is used up, which is then reported.
    fn text(&mut self, reader: &mut Reader<'_>, lines: &[&Node]) -> String {
        let mut texts = Vec::new();
        for line in lines {
            let text = line.text().unwrap_or_default();
            let inserted = words::<Values<'_>>(text).filter_map(|word| self.values.value(word).ok()).map(str::len);
            let needed = inserted.fold(text.len(), usize::saturating_add);
            let Some(left) = self.budget.checked_sub(needed) else {
                if *self.budget > 0 {
                    reader.errors.add(|| expansion::too_far().label(reader.source.label(line.at, "")));
                }
                *self.budget = 0;
                return String::new();
            };
            *self.budget = left;
            let mut node = (*line).clone();
            // Before values are inserted, as in OpenPAI.
            if let Value::Scalar(scalar) = &mut node.value {
                text.trim().clone_into(&mut scalar.text);
            }
            fill(reader, &mut node, self.values);
            texts.extend(node.text().map(str::to_owned));
        }
        texts.join("\n")
    }
}

/// The roles of the deployment that is used, by name.
fn deployment<'r, 'n>(reader: &mut Reader<'_>, raw: &'r RawJob<'n>) -> HashMap<&'r str, &'r RawDeployed<'n>> {
    let named = raw.deployments.items.iter().flat_map(|deployment| &deployment.roles).map(|deployed| &deployed.role);
    known_roles(reader, raw, "a deployment", named, str::to_owned);
    let Some(wanted) = &raw.deployment else { return HashMap::new() };
    let all = &raw.deployments;
    let Some(found) = all.items.iter().find(|deployment| deployment.name.value == wanted.value) else {
        if all.is_whole {
            let names = all.items.iter().map(|deployment| deployment.name.value.as_str());
            let label = did_you_mean(reader.nearest(&wanted.value, names), "not in `deployments`");
            reader.error(Code::F0017, wanted.at, format!("unknown deployment `{}`", wanted.value), label);
        }
        return HashMap::new();
    };
    found.roles.iter().map(|deployed| (deployed.role.value.as_str(), deployed)).collect()
}

/// Names task roles that the job does not have, each where it is written. They are compared `by` a form of their names.
fn known_roles<'a>(
    reader: &mut Reader<'_>,
    raw: &RawJob<'_>,
    what: &str,
    named: impl Iterator<Item = &'a At<String>>,
    by: fn(&str) -> String,
) {
    let known: HashSet<String> = raw.roles.iter().map(|role| by(&role.name.value)).collect();
    for name in named.filter(|name| !known.contains(&by(&name.value))) {
        let roles = raw.roles.iter().map(|role| role.name.value.as_str());
        let label = did_you_mean(reader.nearest(&name.value, roles), "has no effect");
        let message = format!("{what} names a task role `{}`, which the job does not have", shortened(&name.value));
        reader.notice(Code::F0051, name.at, message, label);
    }
}

fn lower_role(
    reader: &mut Reader<'_>,
    raw: &RawJob<'_>,
    role: &RawRole<'_>,
    deployed: Option<&RawDeployed<'_>>,
    shelf: &Shelf<'_, '_>,
    filler: &mut Filler<'_, '_, '_>,
) -> Option<Role> {
    let name = RoleName::new(role.name.value.clone());
    let name = name.map_err(|error| {
        reader.error(Code::F0014, role.name.at, "invalid name for the task role", error.why);
    });
    let image = role.image.as_ref().and_then(|name| shelf.find(reader, name, Some("dockerimage")));
    let (before, after) = plugins(reader, raw, role, shelf, filler);
    let deployed_before = deployed.map(|deployed| &deployed.before[..]).unwrap_or_default();
    let deployed_after = deployed.map(|deployed| &deployed.after[..]).unwrap_or_default();
    let lines: Vec<&Node> = deployed_before.iter().chain(&role.commands).chain(deployed_after).copied().collect();
    let commands = filler.text(reader, &lines);
    let script = script(&before, commands.trim(), &after);
    if script.contains('\0') {
        reader.error(Code::F0013, role.name.at, "the commands of this task role contain a NUL byte", "");
    }
    let gang = raw.extras.is_gang();
    let retries = retries(reader, role, gang);
    let ports = ports(reader, role);
    Some(Role {
        replicas: role.instances,
        work: Work {
            command: vec!["bash".to_owned(), "-c".to_owned(), script],
            // As in a container of its own.
            own_dir: true,
            resources: Resources {
                cpu_millis: (role.cpu > 0).then(|| role.cpu.saturating_mul(1000)),
                memory_bytes: (role.memory_mb > 0).then(|| u64::from(role.memory_mb) << 20),
                gpus: role.gpu,
                shm_bytes: role.shm_mb.filter(|shm| *shm > 0).map(|shm| u64::from(shm) << 20),
                storage_bytes: None,
            },
            ports,
            image: image.and_then(|(image, _)| image.uri.clone()),
            queue: raw.cluster.clone(),
            priority: raw.extras.priority.clone(),
            ..Work::default()
        },
        completion: completion(reader, role),
        restart: RoleRestart { scope: Scope::Replica, rule: if gang { Restart::default() } else { restart(retries) } },
        ..Role::new(name.ok()?, role.instances)
    })
}

/// The commands of plugins, in the order in which they run.
fn plugins(
    reader: &mut Reader<'_>,
    raw: &RawJob<'_>,
    role: &RawRole<'_>,
    shelf: &Shelf<'_, '_>,
    filler: &mut Filler<'_, '_, '_>,
) -> (Vec<Part>, Vec<Part>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let own: Vec<&RawPlugin<'_>> =
        role.prerequisites.iter().filter_map(|name| shelf.find(reader, name, None)?.0.plugin.as_ref()).collect();
    let name = pai_name(&role.name.value);
    let of_job = raw.extras.plugins.iter().filter(|plugin| plugin.applies_to(&name));
    for plugin in own.into_iter().chain(of_job) {
        let mut part = |lines: &[&Node]| Part { lines: filler.text(reader, lines), is_strict: plugin.is_strict };
        if !plugin.before.is_empty() {
            before.push(part(&plugin.before));
        }
        if !plugin.after.is_empty() {
            after.insert(0, part(&plugin.after));
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
    let plugins = raw.extras.plugins.iter().chain(raw.prerequisites.items.iter().filter_map(|one| one.plugin.as_ref()));
    for plugin in plugins.filter(|plugin| !plugin.is_known()) {
        has_no_effect(reader, plugin.name.at, format!("plugin `{}`", plugin.name.value));
    }
    let named = raw.extras.plugins.iter().filter_map(|plugin| plugin.roles.as_ref()).flatten();
    known_roles(reader, raw, "a plugin", named, pai_name);
    for role in &raw.roles {
        if let Some(at) = role.infiniband {
            has_no_effect(reader, at, "`infiniband`".to_owned());
        }
    }
}

fn restart(max: u32) -> Restart {
    Restart {
        max,
        max_platform: MAX_TRANSIENT,
        backoff: Duration::ZERO,
        platform_backoff: Some(Duration::from_secs(1)),
        max_backoff: Duration::from_secs(60),
        window: None,
    }
}

/// Restarts of single instances.
fn retries(reader: &mut Reader<'_>, role: &RawRole<'_>, gang: bool) -> u32 {
    let Some(retries) = &role.retries else { return 0 };
    if gang && retries.value != 0 {
        let message = "`taskRetryCount` is not used while all instances start together";
        reader.notice(Code::F0051, retries.at, message, "has no effect");
        reader.notice_hint("set `extras: {gangAllocation: false}`, or use `jobRetryCount`");
    }
    // Negative numbers are without a limit in OpenPAI's controller.
    if !gang && retries.value == -2 {
        let message = "an instance that has succeeded is not started again";
        reader.notice(Code::F0051, retries.at, message, "restarts failed instances only");
    }
    u32::try_from(retries.value).unwrap_or(Restart::UNLIMITED)
}

/// The labels of the document, and those that every instance has.
fn ports(reader: &mut Reader<'_>, role: &RawRole<'_>) -> Vec<PortNeed> {
    let mut needs: Vec<PortNeed> = Vec::new();
    let mut seen: HashMap<String, &str> = HashMap::new();
    for (label, count) in &role.ports {
        if let Some(other) = seen.insert(label.value.to_ascii_lowercase(), &label.value) {
            if other == label.value {
                // A duplicate key, which is already reported.
                continue;
            }
            let message = format!("ports `{other}` and `{}` differ only in case", label.value);
            reader.error(Code::F0015, label.at, message, "rename one of them");
            continue;
        }
        needs.push(PortNeed { name: label.value.clone(), count: *count, fixed: None });
    }
    let total: u32 = role.ports.iter().map(|(_, count)| u32::from(*count)).sum();
    if total > u32::from(MAX_PORTS) {
        let message = format!("too many ports for each instance: {total}");
        reader.error(Code::F0013, role.name.at, message, format!("at most {MAX_PORTS}"));
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
                // As -1: never.
                number if number > i64::from(role.instances) => 0,
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
