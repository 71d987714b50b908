//! From the document as written to the model: defaults, and references between parts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use super::keys::MAX_NAME;
use super::raw::{RawDocument, RawJob, RawPolicy, RawRestart, RawRole, RawStep, RawSteps};
use crate::diag::{Code, Diagnostic, Source, Span};
use crate::formats::document::names::pai_names;
use crate::formats::document::order::ordered;
use crate::formats::document::reader::{At, Reader, did_you_mean};
use crate::formats::document::tree::shortened;
use crate::formats::engines;
use crate::formats::settings::Settings;
use crate::model::{
    Body, Completion, Contract, Exits, Job, JobId, MinSucceeded, Node, NodeId, OnFailure, Part, Piece, Pipeline,
    Policy, PortNeed, Resources, Restart, Role, RoleName, RoleRestart, Scope, StartAfter, Step, StopPolicy, Success,
    Text, Timeouts, When, Work, Workload,
};
use crate::pipeline::condition::evaluate;

/// Default number of restarts after failures outside the program.
pub(super) const MAX_PLATFORM: u32 = 10;
/// Default start timeout of a role when another role waits for it to be ready.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(600);

/// Default number of steps that run at once, as in PaddleFlow.
const PARALLELISM: u32 = 10;

/// Roles of a cycle that are shown.
const MAX_SHOWN: usize = 8;

/// Returns `None` if the document has errors, which are in the reader.
pub(super) fn lower(reader: &mut Reader<'_>, raw: &RawDocument, settings: &Settings) -> Option<Workload> {
    // An invalid name is an error, and does not hide others.
    let name = job_name(reader, raw.name.as_ref()).or_else(|| JobId::new("job").ok())?;
    let labels = raw.labels.iter().map(|(name, value)| (name.value.clone(), value.value.clone())).collect();
    let work = match &raw.steps {
        None => lower_job(reader, &raw.job, name, settings).map(|job| Workload::Job(Box::new(Job { labels, ..job }))),
        Some(steps) => {
            let pipeline = pipeline(reader, steps, name, settings);
            pipeline.map(|pipeline| Workload::Pipeline(Box::new(Pipeline { labels, ..pipeline })))
        }
    };
    work.filter(|_| reader.errors.is_empty())
}

fn pipeline(
    reader: &mut Reader<'_>,
    RawSteps { steps, parallelism, on_failure }: &RawSteps,
    name: JobId,
    settings: &Settings,
) -> Option<Pipeline> {
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for (index, step) in steps.iter().enumerate() {
        positions.entry(&step.name.value).or_insert(index);
    }
    let orders: Vec<Vec<usize>> = steps.iter().map(|step| after(reader, step, steps, &positions)).collect();
    let next = |step: usize, nth: usize| orders[step].get(nth).copied();
    ordered(orders.len(), next, |path| {
        let cycle: Vec<usize> = path.collect();
        let at =
            |step: usize, name: &str| steps[step].after.iter().find(|after| after.value == name).map(|after| after.at);
        reader.errors.add(|| circle(reader.source, "steps", &cycle, |step| &steps[step].name, at));
    });
    let id = |index: usize| u32::try_from(index + 1).map(NodeId).ok();
    let root =
        Node::new(name.to_string(), Pipeline::ROOT, Body::Dag { children: (0..steps.len()).filter_map(id).collect() });
    let mut nodes = vec![root];
    for (step, order) in steps.iter().zip(&orders) {
        condition(reader, step);
        let name = JobId::new(step.name.value.clone()).ok();
        let engine = step.engine.as_ref().and_then(|name| engines::choose(reader, name, settings));
        let Some(job) = name.and_then(|name| lower_job(reader, &step.job, name, settings)) else { continue };
        let body = Body::Step(Box::new(Step { job, texts: Vec::new(), cache: None, engine }));
        nodes.push(Node {
            deps: order.iter().filter_map(|index| id(*index)).collect(),
            condition: step.condition.as_ref().map(|text| Text(vec![Piece::Plain(text.value.clone())])),
            ..Node::new(step.name.value.clone(), Pipeline::ROOT, body)
        });
    }
    if nodes.len() != steps.len() + 1 || steps.is_empty() {
        return None;
    }
    Some(Pipeline {
        name,
        labels: BTreeMap::new(),
        nodes,
        post: None,
        parallelism: parallelism.unwrap_or(PARALLELISM),
        on_failure: if *on_failure == Some("continue") { OnFailure::Continue } else { OnFailure::FailFast },
        store: None,
        paddleflow: false,
    })
}

/// The positions of the steps that a step waits for, each once.
fn after(reader: &mut Reader<'_>, step: &RawStep, steps: &[RawStep], positions: &HashMap<&str, usize>) -> Vec<usize> {
    let mut order = Vec::new();
    let mut seen = HashSet::new();
    for after in &step.after {
        let name = after.value.as_str();
        match positions.get(name) {
            Some(_) if name == step.name.value => {
                reader.error(Code::F0016, after.at, format!("step `{}` cannot run after itself", shortened(name)), "");
            }
            Some(index) if seen.insert(*index) => order.push(*index),
            Some(_) => {}
            None => {
                let near = reader.nearest(name, steps.iter().map(|other| other.name.value.as_str()));
                let label = did_you_mean(near, "not in `steps`");
                reader.error(Code::F0016, after.at, format!("unknown step `{}`", shortened(name)), label);
            }
        }
    }
    order
}

/// All values in a condition are known before the run.
fn condition(reader: &mut Reader<'_>, step: &RawStep) {
    let Some(text) = &step.condition else { return };
    if let Err(error) = evaluate(&text.value) {
        let message = format!("`if` of step `{}` is not a condition", shortened(&step.name.value));
        reader.error(Code::F0013, text.at, message, error.to_string());
    }
}

/// The value of `store` for umiak itself.
const AGENT: &str = "agent";

fn lower_job(reader: &mut Reader<'_>, raw: &RawJob, name: JobId, settings: &Settings) -> Option<Job> {
    let replicas = raw.roles.iter().filter_map(|role| role.replicas.as_ref());
    reader.check_total(replicas.map(|replicas| (replicas.value, replicas.at)));
    collisions(reader, raw);
    let contracts = raw.roles.iter().filter_map(|role| role.contracts.as_ref()).chain(&raw.contracts);
    if contracts.flatten().any(|contract| *contract == Contract::Pai) {
        let names = raw.roles.iter().map(|role| &role.name).filter(|name| name.value.len() <= MAX_NAME);
        pai_names(reader, "role", names);
        if let Some(store) = raw.store.as_ref().filter(|store| store.value == AGENT) {
            reader.error(Code::F0018, store.at, "`store: agent` cannot be combined with contract `pai`", "");
            reader.hint("scripts of OpenPAI choose the address of their store themselves; remove one of them");
        }
    }
    launcher(reader, raw);
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for (index, role) in raw.roles.iter().enumerate() {
        positions.entry(&role.name.value).or_insert(index);
    }
    let orders: Vec<Vec<StartAfter>> = raw.roles.iter().map(|role| order(reader, role, raw, &positions)).collect();
    circles(reader, raw, &orders);
    let awaited: HashSet<u16> =
        orders.iter().flatten().filter(|order| order.when == When::Ready).map(|order| order.role).collect();
    let mut roles = Vec::new();
    for (index, (role, order)) in raw.roles.iter().zip(orders).enumerate() {
        let is_awaited = u16::try_from(index).is_ok_and(|index| awaited.contains(&index));
        roles.extend(lower_role(reader, role, &raw.policy, settings, order, is_awaited));
    }
    if !raw.roles.is_empty() && raw.roles.iter().all(|role| role.completes == Some(false)) {
        let at = raw.roles[0].name.at;
        reader.error(Code::F0018, at, "no role decides when the job ends", "");
        reader.hint("remove `completes: false` from at least one role");
    }
    if roles.is_empty() {
        return None;
    }
    Some(Job {
        name,
        labels: BTreeMap::new(),
        contracts: raw.contracts.clone().unwrap_or_default(),
        agent_store: raw.store.as_ref().is_some_and(|store| store.value == AGENT),
        roles,
        policy: lower_policy(&raw.policy),
    })
}

/// `mpi` needs a role that starts processes, and one on which they run.
fn launcher(reader: &mut Reader<'_>, raw: &RawJob) {
    let is_mpi = |contracts: &Vec<Contract>| contracts.contains(&Contract::Mpi);
    let own = |role: &&RawRole| role.contracts.as_ref().or(raw.contracts.as_ref()).is_some_and(is_mpi);
    let Some(first) = raw.roles.iter().find(own) else { return };
    let has = |part: Part| raw.roles.iter().filter(own).any(|role| role.part == Some(part));
    if !(has(Part::Leader) && has(Part::Trainer)) {
        reader.error(Code::F0018, first.name.at, "contract `mpi` needs a launcher and workers", "");
        reader.hint(
            "write `part: leader` in the role that calls `mpirun`, and `part: trainer` in the role of its workers",
        );
    }
}

fn job_name(reader: &mut Reader<'_>, name: Option<&At<String>>) -> Option<JobId> {
    let Some(name) = name else {
        let file = reader.source.name.rsplit('/').next().unwrap_or_default();
        let stem = file.split_once('.').map_or(file, |(stem, _)| stem);
        let stem = if stem.is_empty() || stem == "-" || stem.starts_with('<') { "job" } else { stem };
        return JobId::new(stem).or_else(|_| JobId::new("job")).ok();
    };
    match JobId::new(name.value.clone()) {
        Ok(name) => Some(name),
        Err(error) => {
            reader.error(Code::F0014, name.at, "invalid name for the job", error.why);
            None
        }
    }
}

/// The name as in variables: `UMIAK_HOSTS_PSERVER`.
fn variable(name: &str) -> String {
    name.to_ascii_uppercase().replace(['-', '.'], "_")
}

/// Reports roles and ports that would use the same variable.
fn collisions(reader: &mut Reader<'_>, raw: &RawJob) {
    let mut seen: BTreeMap<String, (String, Span)> = BTreeMap::new();
    // Longer names are errors already.
    let is_short = |name: &str| name.len() <= MAX_NAME;
    let roles = raw.roles.iter().filter(|role| is_short(&role.name.value));
    let ports = roles.clone().flat_map(|role| {
        role.ports.iter().filter(|port| is_short(&port.name.value)).map(|port| {
            let name = format!("UMIAK_ENDPOINTS_{}_{}", variable(&role.name.value), variable(&port.name.value));
            (name, format!("port `{}` of `{}`", port.name.value, role.name.value), port.name.at)
        })
    });
    let roles = roles.map(|role| {
        (format!("UMIAK_HOSTS_{}", variable(&role.name.value)), format!("role `{}`", role.name.value), role.name.at)
    });
    for (name, what, at) in roles.chain(ports) {
        if let Some((first, place)) = seen.get(&name) {
            // The same name twice is already reported as a duplicate key.
            if *first == what {
                continue;
            }
            // Two roles that collide would be reported again for each of their ports.
            if name.starts_with("UMIAK_ENDPOINTS_") && reader.errors.has(Code::F0015) {
                continue;
            }
            reader.errors.add(|| {
                Diagnostic::error(Code::F0015, format!("{first} and {what} would use the same environment variable"))
                    .label(reader.source.label(at, format!("`{name}` for {what}")))
                    .label(reader.source.label(*place, format!("and for {first}")))
            });
        } else {
            seen.insert(name, (what, at));
        }
    }
}

/// The roles that a role waits for.
fn order(reader: &mut Reader<'_>, role: &RawRole, raw: &RawJob, positions: &HashMap<&str, usize>) -> Vec<StartAfter> {
    let mut orders: Vec<StartAfter> = Vec::new();
    let mut seen = HashSet::new();
    for after in &role.start_after {
        let name = after.role.value.as_str();
        let Some(index) = positions.get(name).copied() else {
            let near = reader.nearest(name, raw.roles.iter().map(|other| other.name.value.as_str()));
            let label = did_you_mean(near, "not in `roles`");
            reader.error(Code::F0016, after.role.at, format!("unknown role `{name}`"), label);
            continue;
        };
        let other = &raw.roles[index];
        if other.name.value == role.name.value {
            reader.error(Code::F0016, after.role.at, format!("role `{name}` cannot start after itself"), "");
            continue;
        }
        let when = match after.when.as_ref().map(|when| when.value) {
            None if other.ports.is_empty() => When::Started,
            None | Some("ready") => When::Ready,
            Some("started") => When::Started,
            Some(_) => When::Succeeded,
        };
        if when == When::Ready && other.ports.is_empty() {
            let at = after.when.as_ref().map_or(after.role.at, |when| when.at);
            let message = format!("role `{name}` has no ports, so `when: ready` cannot be checked");
            reader.error(Code::F0016, at, message, "");
            reader.hint("add `ports` to the role, or write `when: started`");
            continue;
        }
        let after = StartAfter { role: u16::try_from(index).unwrap_or(u16::MAX), when };
        if seen.insert((after.role, after.when)) {
            orders.push(after);
        }
    }
    orders
}

/// Reports roles that wait for each other, each cycle once.
fn circles(reader: &mut Reader<'_>, raw: &RawJob, orders: &[Vec<StartAfter>]) {
    let next = |role: usize, nth: usize| orders[role].get(nth).map(|after| usize::from(after.role));
    let at = |role: usize, name: &str| {
        let mut after = raw.roles[role].start_after.iter();
        after.find(|after| after.role.value == name).map(|after| after.role.at)
    };
    ordered(orders.len(), next, |path| {
        let cycle: Vec<usize> = path.collect();
        reader.errors.add(|| circle(reader.source, "roles", &cycle, |role| &raw.roles[role].name, at));
    });
}

/// The error about roles or steps that wait for each other, each for the next. `waits` is where one names another.
fn circle<'r>(
    source: &Source,
    what: &str,
    cycle: &[usize],
    named: impl Fn(usize) -> &'r At<String>,
    waits: impl Fn(usize, &str) -> Option<Span>,
) -> Diagnostic {
    let name = |step: usize| named(cycle[step % cycle.len()]).value.as_str();
    let shown = cycle.len().min(MAX_SHOWN);
    let names: Vec<String> = (0..shown).map(|step| format!("`{}`", shortened(name(step)))).collect();
    let more = if cycle.len() > shown { format!(" and {} more", cycle.len() - shown) } else { String::new() };
    let error = Diagnostic::error(Code::F0016, format!("{what} wait for each other: {}{more}", names.join(", ")));
    (0..shown).fold(error, |error, step| {
        let awaited = name(step + 1);
        let at = waits(cycle[step], awaited).unwrap_or(named(cycle[step]).at);
        error.label(source.label(at, format!("{} starts after `{}`", names[step], shortened(awaited))))
    })
}

fn lower_role(
    reader: &mut Reader<'_>,
    raw: &RawRole,
    policy: &RawPolicy,
    settings: &Settings,
    start_after: Vec<StartAfter>,
    is_awaited: bool,
) -> Option<Role> {
    let completion = completion(reader, raw);
    let resources = resources(reader, raw, settings);
    queue(reader, raw, settings);
    if let Some(at) = raw.start_timeout.as_ref().filter(|_| !is_awaited) {
        let message = format!("no role waits for role `{}` to be ready", raw.name.value);
        reader.notice(Code::F0051, at.at, message, "has no effect");
    }
    let work = Work {
        command: raw.command.clone(),
        env: raw.env.iter().map(|(name, value)| (name.value.clone(), value.value.clone())).collect(),
        dir: raw.dir.as_ref().map(PathBuf::from),
        own_dir: raw.own_dir,
        resources,
        ports: raw
            .ports
            .iter()
            .map(|port| PortNeed { name: port.name.value.clone(), count: port.count, fixed: port.port })
            .collect(),
        mounts: raw.mounts.clone(),
        image: raw.image.clone(),
        queue: raw.queue.as_ref().map(|queue| queue.value.clone()),
        priority: raw.priority.clone(),
        contracts: raw.contracts.clone(),
    };
    for (name, _) in raw.env.iter().filter(|(name, _)| work.is_given(&name.value)) {
        let message = format!("umiak sets `{}` itself", name.value);
        reader.notice(Code::F0051, name.at, message, "has no effect");
    }
    let start = raw.start_timeout.as_ref().map(|at| at.value).or(is_awaited.then_some(START_TIMEOUT));
    Some(Role {
        name: RoleName::new(raw.name.value.clone()).ok()?,
        replicas: raw.replicas.as_ref()?.value,
        work,
        part: raw.part,
        completion,
        restart: role_restart(raw.restart.as_ref(), policy),
        start_after,
        timeouts: Timeouts { start, patience: None, run: raw.timeout },
        grace: raw.grace,
    })
}

fn completion(reader: &mut Reader<'_>, raw: &RawRole) -> Completion {
    let mut completion = Completion { decides: raw.completes.unwrap_or(true), ..Completion::default() };
    let beyond = |reader: &mut Reader<'_>, name: &str, at: &At<u32>| {
        if let Some(replicas) = raw.replicas.as_ref().filter(|replicas| at.value > replicas.value) {
            let message = format!("`{name}` exceeds the number of replicas of role `{}`", raw.name.value);
            reader.error(Code::F0018, at.at, message, format!("the role has {}", replicas.value));
        }
    };
    if let Some(at) = &raw.completion.min_failed {
        beyond(reader, "min_failed", at);
        completion.min_failed = at.value;
    }
    if let Some(At { value, at }) = raw.completion.min_succeeded {
        if let MinSucceeded::Count(count) = value {
            beyond(reader, "min_succeeded", &At { value: count, at });
        }
        completion.min_succeeded = value;
    }
    completion
}

fn resources(reader: &mut Reader<'_>, raw: &RawRole, settings: &Settings) -> Resources {
    let mut resources = Resources::default();
    if let Some(flavour) = &raw.flavour {
        if let Some(found) = settings.flavours.get(&flavour.value) {
            resources = *found;
        } else {
            let near = reader.nearest(&flavour.value, settings.flavours.keys().map(String::as_str));
            let label = did_you_mean(near, "");
            reader.error(Code::F0017, flavour.at, format!("unknown flavour `{}`", flavour.value), label);
            reader.hint(format!("define it in `umiak.toml`: `[flavour.{}]`", flavour.value));
        }
    }
    resources.cpu_millis = raw.resources.cpu.or(resources.cpu_millis);
    resources.memory_bytes = raw.resources.memory.or(resources.memory_bytes);
    resources.gpus = raw.resources.gpu.unwrap_or(resources.gpus);
    resources.shm_bytes = raw.resources.shm.or(resources.shm_bytes);
    resources.storage_bytes = raw.resources.storage.or(resources.storage_bytes);
    resources
}

fn queue(reader: &mut Reader<'_>, raw: &RawRole, settings: &Settings) {
    if let Some(queue) = raw.queue.as_ref().filter(|queue| !settings.queues.contains_key(&queue.value)) {
        let near = reader.nearest(&queue.value, settings.queues.keys().map(String::as_str));
        let message = format!("queue `{}` is not in `umiak.toml`", queue.value);
        reader.notice(Code::F0050, queue.at, message, did_you_mean(near, ""));
    }
}

fn rule(raw: &RawRestart) -> Restart {
    let default = Restart::default();
    let backoff = raw.backoff.as_ref().map_or(default.backoff, |at| at.value);
    Restart {
        max: raw.max.unwrap_or(0),
        max_platform: raw.max_platform.unwrap_or(MAX_PLATFORM),
        backoff,
        platform_backoff: raw.platform_backoff,
        // A first wait above the default maximum raises the maximum.
        max_backoff: raw
            .max_backoff
            .as_ref()
            .map_or(default.max_backoff.max(backoff).max(raw.platform_backoff.unwrap_or_default()), |at| at.value),
        window: raw.window.as_ref().map(|at| at.value),
    }
}

/// A role's own rule; otherwise the policy's, if its scope is smaller than the job; otherwise none, and the job's applies.
fn role_restart(own: Option<&RawRestart>, policy: &RawPolicy) -> RoleRestart {
    let scope = |word: Option<&str>| if word == Some("role") { Scope::Role } else { Scope::Replica };
    let inherited = policy.scope.as_ref().map(|scope| scope.value).filter(|word| *word != "job");
    match (own, inherited) {
        (Some(own), _) => RoleRestart { scope: scope(own.scope), rule: rule(own) },
        (None, Some(word)) => RoleRestart { scope: scope(Some(word)), rule: rule(&policy.restarts) },
        (None, None) => RoleRestart::default(),
    }
}

fn lower_policy(raw: &RawPolicy) -> Policy {
    let default = Policy::default();
    let mut restart = rule(&raw.restarts);
    if raw.scope.as_ref().is_some_and(|scope| scope.value != "job") {
        restart.max = 0;
    }
    Policy {
        restart,
        stop: StopPolicy { grace: raw.grace.unwrap_or(default.stop.grace), ..default.stop },
        settle: raw.settle.unwrap_or(default.settle),
        timeout: raw.timeout,
        hang: raw.hang,
        success: match raw.success.as_ref().map(|at| at.value) {
            Some("first") => Success::First,
            Some("end") => Success::End,
            _ => Success::All,
        },
        exits: raw.exits.as_ref().and_then(|at| Exits::named(at.value)),
        gang: raw.gang.unwrap_or(default.gang),
        linger: raw.linger.filter(|linger| !linger.is_zero()),
    }
}
