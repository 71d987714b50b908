//! The job of a step: one process, or the members of a distributed job.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use super::files::{Files, Seen};
use super::members::{Kind, is_default_queue, priority, steering};
use super::raw::{RawFlavour, RawMember, RawMount, RawPipeline, RawScope, RawStep, Variable};
use crate::diag::{Code, Span};
use crate::formats::document::reader::{At, Reader, did_you_mean};
use crate::formats::document::tree::{Node, shortened};
use crate::formats::settings::Settings;
use crate::model::{
    Framework, Job, JobId, Place, Policy, PortNeed, Resources, Restart, Role, RoleName, RoleRestart, Scope,
    SystemParameter, Text, Work,
};

/// Back-off of Kubernetes for containers that fail.
const POD_BACKOFF: Duration = Duration::from_secs(10);
const MAX_POD_BACKOFF: Duration = Duration::from_secs(300);
/// The role of a step that is not distributed.
const SINGLE: &str = "main";
/// A flavour of this name is what is written beside it.
const CUSTOM: &str = "customFlavour";

/// Makes jobs of steps.
pub(super) struct Jobs<'a> {
    pub(super) raw: &'a RawPipeline<'a>,
    pub(super) settings: &'a Settings,
    pub(super) files: Files<'a>,
    /// Flavours that are not defined, each once.
    pub(super) unknown: BTreeMap<String, Span>,
    /// Queues that have been mentioned.
    pub(super) queues: BTreeMap<String, Span>,
}

/// What a step is made of.
pub(super) struct Parts<'s, 'n> {
    pub(super) name: &'s str,
    pub(super) step: &'s RawStep<'n>,
    /// Variables that the pipeline sets for its artifacts.
    pub(super) artifacts: HashSet<String>,
    /// A text with references, or its literal form.
    pub(super) text: &'s dyn Fn(&Node) -> Result<String, Text>,
    /// The same for a variable.
    pub(super) variable: &'s dyn Fn(&Variable<'n>) -> Result<String, Text>,
    /// A text whose references are all known before the run.
    pub(super) known: &'s dyn Fn(&str) -> Option<String>,
}

/// A job, and its texts with references.
pub(super) type Made = (Job, Vec<(Place, Text)>);

impl Jobs<'_> {
    pub(super) fn job(&mut self, reader: &mut Reader<'_>, parts: &Parts<'_, '_>) -> Option<Made> {
        let step = parts.step;
        let mut texts = Vec::new();
        env_of_ray(reader, step);
        let mut job = Job {
            name: JobId::new(parts.name).ok()?,
            labels: BTreeMap::new(),
            agent_store: false,
            contracts: Vec::new(),
            roles: Vec::new(),
            policy: policy(step),
        };
        let restart = Self::steer(reader, parts, "PF_JOB_RESTART_POLICY").is_some_and(|(policy, _)| {
            // Anything else is `Never`.
            matches!(policy.as_str(), "Always" | "OnFailure")
        });
        let mut members: Vec<Option<&RawMember<'_>>> = step.members.iter().map(Some).collect();
        // Ranks are counted in the order of roles: what others meet at comes first.
        members.sort_by_key(|member| member.and_then(|member| Kind::of(&member.role.value)));
        let kinds: Vec<Kind> = members.iter().flatten().filter_map(|member| Kind::of(&member.role.value)).collect();
        if members.is_empty() {
            members.push(None);
        }
        let mut counts = [0_u32; 3];
        for (position, member) in members.into_iter().enumerate() {
            let position = u16::try_from(position).ok()?;
            let mut role = self.role(reader, parts, member, position, &mut texts)?;
            if let Some(kind) = member.and_then(|member| Kind::of(&member.role.value)) {
                let count = &mut counts[kind as usize];
                *count += 1;
                let name = if *count == 1 { kind.name().to_owned() } else { format!("{}-{count}", kind.name()) };
                role.name = RoleName::new(name).ok()?;
            }
            if restart {
                role.restart = RoleRestart { scope: Scope::Replica, rule: pod_restart() };
            }
            for (name, value) in member.map(|member| &member.labels[..]).unwrap_or_default() {
                job.labels.insert(name.value.clone(), value.value.clone());
            }
            job.roles.push(role);
        }
        if let Some(framework) = Self::framework(step).filter(|_| !kinds.is_empty()) {
            for (role, kind) in job.roles.iter_mut().zip(&kinds) {
                role.part = framework.part(kind.name());
            }
            framework.arrange(&mut job);
        }
        Some((job, texts))
    }

    /// Of a distributed job. Others are refused elsewhere.
    fn framework(step: &RawStep<'_>) -> Option<Framework> {
        step.framework.as_ref().and_then(|framework| Framework::named(&framework.value))
    }

    fn role(
        &mut self,
        reader: &mut Reader<'_>,
        parts: &Parts<'_, '_>,
        member: Option<&RawMember<'_>>,
        position: u16,
        texts: &mut Vec<(Place, Text)>,
    ) -> Option<Role> {
        let step = parts.step;
        // The command of a step with `mpi` is that of the launcher: workers wait for it.
        let is_hosting = Self::framework(step) == Some(Framework::Mpi)
            && member.is_some_and(|member| Kind::of(&member.role.value) == Some(Kind::Worker));
        let command = member.and_then(|member| member.command).or(step.command.filter(|_| !is_hosting));
        let line = match command.map(|node| (parts.text)(node)) {
            Some(Ok(line)) => line,
            Some(Err(text)) => {
                texts.push((Place::Word { role: position, word: 2 }, text));
                String::new()
            }
            None => String::new(),
        };
        let own = member.map(|member| &member.env[..]).unwrap_or_default();
        let names: HashSet<&str> = own.iter().map(|own| own.name.value.as_str()).collect();
        let Seen { mounts, dir } = self.seen(reader, step, member);
        let is_set = |name: &str| match name {
            "PF_JOB_MODE" => member.is_none(),
            "PF_WORK_DIR" => dir.is_some(),
            name => is_set_by_us(name, &parts.artifacts),
        };
        let is_other = |name: &str| !names.contains(name) && !is_set(name);
        let mut env: Vec<(String, String)> = Vec::with_capacity(step.env.len() + own.len());
        for variable in step.env.iter().filter(|variable| is_other(&variable.name.value)) {
            let value = match (parts.variable)(variable) {
                Ok(value) => value,
                Err(text) => {
                    let at = u16::try_from(env.len()).ok()?;
                    texts.push((Place::Variable { role: position, variable: at }, text));
                    String::new()
                }
            };
            env.push((variable.name.value.clone(), value));
        }
        env.extend(own.iter().map(|variable| (variable.name.value.clone(), variable.value.clone())));
        let queue = member.and_then(|member| member.queue.clone());
        let queue =
            queue.or_else(|| Self::steer(reader, parts, "PF_JOB_QUEUE_NAME").map(|(value, at)| At { value, at }));
        if let Some(queue) = &queue {
            self.mention(queue);
        }
        let own_priority = member.and_then(|member| member.priority.as_ref()).map(|priority| priority.value.clone());
        let of_job = own_priority.or_else(|| Self::steer(reader, parts, "PF_JOB_PRIORITY").map(|(value, _)| value));
        let image = member.and_then(|member| member.image.clone());
        let image = image.or_else(|| step.image.as_ref().or(self.raw.image.as_ref()).map(|image| image.value.clone()));
        let port = member.and_then(|member| member.port);
        let work = Work {
            command: vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
            env,
            dir,
            resources: self.resources(reader, parts, member.map(|member| &member.flavour)),
            ports: port
                .map(|port| PortNeed { name: "port".to_owned(), count: 1, fixed: Some(port) })
                .into_iter()
                .collect(),
            mounts,
            image: image.filter(|image| !image.is_empty()),
            queue: queue.map(|queue| queue.value),
            priority: of_job.as_deref().and_then(priority).map(str::to_owned),
            ..Work::default()
        };
        let replicas = member.map_or(1, |member| member.replicas);
        Some(Role { work, ..Role::new(RoleName::new(SINGLE).ok()?, replicas) })
    }

    /// File systems: the main one, the step's, the pipeline's; a member may have others instead.
    fn seen(&mut self, reader: &mut Reader<'_>, step: &RawStep<'_>, member: Option<&RawMember<'_>>) -> Seen {
        let of_step = || step.extra_fs.iter().chain(&self.raw.extra_fs).collect();
        let extra: Vec<&RawMount> = match member.and_then(|member| member.extra_fs.as_ref()) {
            Some(extra) if !extra.is_empty() => extra.iter().collect(),
            _ => of_step(),
        };
        let main = member.and_then(|member| member.fs.as_ref()).or(self.raw.main_fs.as_ref());
        let mut seen = self.files.seen(reader, main.into_iter().chain(extra));
        if steering(step, "PF_MOUNT_PATH").is_some_and(|variable| variable.value == "NONE") {
            seen.dir = None;
        }
        seen
    }

    /// The value of a variable that steers the job, where it is known before the run.
    fn steer(reader: &mut Reader<'_>, parts: &Parts<'_, '_>, name: &str) -> Option<(String, Span)> {
        let variable = steering(parts.step, name)?;
        let Some(value) = (parts.known)(&variable.value) else {
            let message = format!("`{name}` depends on values of the run, and is not used");
            reader.notice(Code::F0051, variable.node.at, message, "has no effect");
            return None;
        };
        Some((value, variable.node.at)).filter(|(value, _)| !value.is_empty())
    }

    fn mention(&mut self, queue: &At<String>) {
        if !is_default_queue(&queue.value) && !self.settings.queues.contains_key(&queue.value) {
            self.queues.entry(queue.value.clone()).or_insert(queue.at);
        }
    }

    /// The resources of a replica: those of the named flavour, then what is written inline.
    fn resources(&mut self, reader: &mut Reader<'_>, parts: &Parts<'_, '_>, flavour: Option<&RawFlavour>) -> Resources {
        let inline = flavour.map(|flavour| (flavour.inline, flavour.gpus)).unwrap_or_default();
        let own = flavour.and_then(|flavour| flavour.name.clone());
        let is_inline = inline != Default::default();
        // A member with a flavour of its own, named or not, does not use the step's.
        let name = match own {
            Some(name) => Some(name).filter(|name| name.value != CUSTOM),
            None if is_inline => None,
            None => Self::steer(reader, parts, "PF_JOB_FLAVOUR").map(|(value, at)| At { value, at }),
        };
        let mut resources = name.as_ref().map(|name| self.flavour(name)).unwrap_or_default();
        let has_gpus = name.as_ref().is_some_and(|_| resources.gpus > 0);
        resources.cpu_millis = resources.cpu_millis.or(inline.0.cpu_millis);
        resources.memory_bytes = resources.memory_bytes.or(inline.0.memory_bytes);
        resources.gpus = if has_gpus { resources.gpus } else { inline.1.unwrap_or(0) };
        if let Some((limit, at)) = Self::steer(reader, parts, "PF_JOB_LIMIT_FLAVOUR") {
            let limit = At { value: limit, at };
            resources.memory_bytes = if limit.value == "NONE" { None } else { self.flavour(&limit).memory_bytes };
        }
        resources
    }

    fn flavour(&mut self, name: &At<String>) -> Resources {
        self.settings.flavours.get(&name.value).copied().unwrap_or_else(|| {
            self.unknown.entry(name.value.clone()).or_insert(name.at);
            Resources::default()
        })
    }
}

/// Variables that describe a Ray cluster. As in the pull request, they have no effect.
fn env_of_ray(reader: &mut Reader<'_>, step: &RawStep<'_>) {
    let is = |name: &str, value: &str| steering(step, name).filter(|one| one.value.eq_ignore_ascii_case(value));
    if let (Some(kind), true) = (is("PF_JOB_TYPE", "distributed"), step.members.is_empty()) {
        let framework = steering(step, "PF_JOB_FRAMEWORK").map_or("", |one| one.value.as_str());
        let message =
            format!("this step is one process: variables do not describe a distributed job `{}`", shortened(framework));
        reader.notice(Code::F0051, kind.node.at, message, "has no effect");
        reader.notice_hint("write `distributed_job` for several processes");
    }
}

/// True for variables of a step that the pipeline overwrites in every job.
fn is_set_by_us(name: &str, artifacts: &HashSet<String>) -> bool {
    name == "PF_JOB_NAMESPACE"
        || SystemParameter::ALL.iter().any(|system| system.name() == name)
        || artifacts.contains(name)
}

fn policy(step: &RawStep<'_>) -> Policy {
    let mut policy = Policy { timeout: step.timeout, ..Policy::default() };
    if let Some((max, backoff)) = step.retries {
        let backoff = backoff.unwrap_or(policy.restart.backoff);
        policy.restart =
            Restart { max, backoff, max_backoff: policy.restart.max_backoff.max(backoff), ..policy.restart };
    }
    policy
}

/// As Kubernetes restarts the containers of a pod.
fn pod_restart() -> Restart {
    Restart { max: Restart::UNLIMITED, backoff: POD_BACKOFF, max_backoff: MAX_POD_BACKOFF, ..Restart::default() }
}

/// Queues that are not defined, each once.
pub(super) fn say_queues(reader: &mut Reader<'_>, settings: &Settings, queues: &BTreeMap<String, Span>) {
    for (queue, at) in queues {
        let near = reader.nearest(queue, settings.queues.keys().map(String::as_str));
        let message = format!("queue `{}` is not in `umiak.toml`", shortened(queue));
        reader.notice(Code::F0050, *at, message, did_you_mean(near, ""));
    }
}

/// The paths of a cache's scope.
pub(super) fn scope(reader: &mut Reader<'_>, files: &mut Files<'_>, scope: &[RawScope<'_>]) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for RawScope { name, paths: below } in scope {
        paths.extend(below.iter().map(|(path, _)| files.path(reader, name, path)));
    }
    paths
}
