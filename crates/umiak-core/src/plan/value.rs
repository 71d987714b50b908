//! The plan: one value for launched jobs and for documents. `--dry-run` prints it, a run executes it, and a recorded run
//! stores it as `plan.json`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::{Lazy, Member, NamedPorts, Options, RolePlaces, Topology, Variable};
use crate::diag::Diagnostic;
use crate::model::{
    ClusterOptions, Contract, Device, Endpoint, EngineKind, FIRST_ATTEMPT, Host, Job, NodeIndex, Part, Port, Rank,
    Role, RoleName, Rotation, Slot, StepName, StreamRules,
};

use super::command::Resolved;
use super::files::FilePlan;
use super::launch;
use super::script::ClusterScript;

/// The version of the plan's format that this build writes.
pub const VERSION: u32 = 1;

/// What a job runs on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Plan", description = "What a job runs on this node: `--dry-run`, `umiak plan`, `plan.json`")]
pub struct Plan {
    pub v: u32,
    /// True if nothing was started: `--dry-run`, `umiak plan`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    pub umiak: String,
    /// The id of the run, if it is recorded.
    pub run: Option<String>,
    /// The step, if the run has several jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepName>,
    /// The name of the run.
    #[serde(default)]
    pub name: String,
    /// The command line of a launch, secrets masked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub line: String,
    /// The parameters given with a document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub params: Vec<(String, String)>,
    pub engine: String,
    /// Directory where it was started or submitted.
    pub directory: PathBuf,
    /// The file of the document, unless it is a launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<PathBuf>,
    pub wishes: Wishes,
    /// Of engines that give the job to another scheduler.
    #[serde(default, skip_serializing_if = "ClusterOptions::is_default")]
    pub cluster: ClusterOptions,
    /// The attempt of a launched job, from 1. The plan of a document is for all attempts.
    pub attempt: u32,
    /// The job, with the replicas of this node.
    pub job: Job,
    /// True if nothing in the job was masked.
    pub whole: bool,
    /// The command of each role.
    pub commands: Vec<Resolved>,
    /// The replicas of this node, in the order of the roles. Ranks are numbered over all nodes.
    pub replicas: Vec<Replica>,
    /// Groups of ranks that communicate: all ranks of a launched job, those of a role of a document, or
    /// those of several roles.
    pub groups: Vec<Topology>,
    pub logs: LogLayout,
    /// Which output the console shows, for ranks that write stdout and stderr apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamRules>,
    /// `${local_rank}` in arguments stands for the local rank.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub substitutes: bool,
    /// Scratch directory, removed at the end.
    pub scratch: PathBuf,
    /// True if the only replica inherits the caller's stdin.
    pub inherit_stdin: bool,
    /// `OMP_NUM_THREADS` of replicas without a number of CPUs, if the environment does not set it.
    pub threads: Option<u32>,
    /// Variables removed from every environment.
    pub unset: Vec<String>,
    /// Variables added to every environment. Stored once, because there may be thousands of replicas.
    #[serde(with = "pairs")]
    #[schemars(with = "std::collections::BTreeMap<String, String>")]
    pub common: Vec<Variable>,
    pub options: Options,
    /// Servers on other nodes that trainers here wait for.
    pub awaited: Vec<AwaitedElsewhere>,
    /// Written before the first rank starts, or soon after.
    pub files: Vec<FilePlan>,
    /// What the scheduler of the engine gets, in a printed plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ClusterScript>,
    /// The objects of the engine `kubernetes`, in a printed plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub manifests: Vec<serde_json::Value>,
    /// Notices to print before anything starts.
    #[serde(skip)]
    pub notices: Vec<Diagnostic>,
    #[serde(skip)]
    pub(super) places: Lazy<Vec<RolePlaces>>,
}

/// Options of a run that are not in its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Wishes {
    /// Run in a PID namespace.
    #[serde(default)]
    pub isolate: bool,
    /// Bind replicas to their own CPUs, and fail on resources that cannot be enforced.
    #[serde(default)]
    pub strict_resources: bool,
    /// Run every step of a pipeline, and do not use results of earlier runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
    /// Use results of earlier runs without comparing the contents of inputs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aggressive_cache: bool,
}

/// One replica of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Replica {
    /// `trainer-3`: its role, and its number in the role over all nodes.
    #[serde(rename = "replica")]
    pub name: String,
    pub slot: Slot,
    /// The number in its name.
    pub index: u32,
    pub rank: Rank,
    pub host: Host,
    /// The endpoint of a rank of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint<Host>>,
    /// Ports by name, in the order of the document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<(String, Vec<Port>)>,
    /// Devices assigned for the whole run; others are assigned to each attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// CPUs that it may use; empty for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
    /// The log file of all its attempts, if they share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Log>,
    /// Its position in a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Membership>,
    /// Its variables, in a printed plan; a run computes them for each attempt.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "pairs")]
    #[schemars(with = "std::collections::BTreeMap<String, String>")]
    pub env: Vec<Variable>,
}

/// A replica as a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Membership {
    /// Its position among the plan's groups.
    pub group: u16,
    /// Its position among the group's members.
    pub member: u32,
}

/// The layout of the logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "layout", rename_all = "snake_case")]
pub enum LogLayout {
    /// A file for each replica, to which its attempts append: `workerlog.3`.
    Files {
        dir: PathBuf,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rotation: Option<Rotation>,
    },
    /// A directory for each attempt: `tasks/trainer-3/attempt-1`, with its `log`.
    Attempts { dir: PathBuf },
    /// The same as `torchrun` names it, with a log for each stream: `attempt_0/3/stdout.log`.
    Streams { dir: PathBuf },
}

impl LogLayout {
    /// True if the logs are rotated.
    pub fn rotates(&self) -> bool {
        matches!(self, Self::Files { rotation: Some(_), .. })
    }

    pub fn dir(&self) -> &Path {
        match self {
            Self::Files { dir, .. } | Self::Attempts { dir } | Self::Streams { dir } => dir,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The log of one attempt: a file and the offset where its part begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Log {
    pub path: PathBuf,
    #[serde(default)]
    pub start: u64,
    /// The number of the last file that rotation had finished when the attempt began; 0 if there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rotated: u64,
    /// The log of stderr, if it has its own. It belongs to this attempt alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<PathBuf>,
}

impl Log {
    /// A log that no earlier attempt has written to.
    pub fn new(path: PathBuf) -> Self {
        Self { path, start: 0, rotated: 0, stderr: None }
    }
}

/// A server on another node, which reports when it listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AwaitedElsewhere {
    pub node: NodeIndex,
    /// `host:port` for messages.
    pub name: String,
}

/// A port that must be open before others start: the process's own, or one that it opens first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Awaited {
    /// `host:port` for messages.
    pub name: String,
    /// Any of these: `host:port`.
    pub at: Vec<String>,
}

impl Plan {
    /// The lowest rank of this node; its other ranks follow.
    pub fn first_rank(&self) -> Rank {
        self.replicas.first().map_or(Rank(0), |replica| replica.rank)
    }

    /// The replica of this rank, if it runs on this node.
    pub fn replica(&self, rank: Rank) -> Option<&Replica> {
        self.replicas.get(rank.0.checked_sub(self.first_rank().0)? as usize)
    }

    /// A replica of this node by its slot. Replicas are in the order of the roles.
    pub fn at(&self, slot: Slot) -> Option<&Replica> {
        let lower: u32 = self.job.roles.get(..slot.role as usize)?.iter().map(|role| role.replicas).sum();
        self.replicas.get((lower + slot.index) as usize).filter(|replica| replica.slot == slot)
    }

    pub fn role(&self, slot: Slot) -> &Role {
        &self.job.roles[slot.role as usize]
    }

    /// The numbers of the replicas of each role, in the order of their slots.
    pub fn numbers(&self) -> Vec<Vec<u32>> {
        let mut numbers = vec![Vec::new(); self.job.roles.len()];
        for replica in &self.replicas {
            numbers[replica.slot.role as usize].push(replica.index);
        }
        numbers
    }

    /// The replica whose output the console shows: the first one of the first role that decides, if it runs here.
    pub fn mirrored(&self) -> Option<&Replica> {
        let role = self.job.roles.iter().position(|role| role.completion.decides).unwrap_or(0);
        self.at(Slot { role: role as u16, index: 0 })
    }

    /// The group of a launched job, on all nodes. Roles of a document have their own groups.
    pub fn topology(&self) -> &Topology {
        self.groups.first().expect("a launched job is one group")
    }

    /// The group of a replica, and the replica as its member.
    pub fn member(&self, replica: &Replica) -> Option<(&Topology, &Member)> {
        let Membership { group, member } = replica.member?;
        let group = self.groups.get(group as usize)?;
        Some((group, group.members.get(member as usize)?))
    }

    /// The addresses at which its peers expect it, as far as they are numbers: its endpoint, its ports, and the stores
    /// of its group if it hosts them.
    pub fn addresses(&self, replica: &Replica) -> Vec<SocketAddr> {
        let ports = replica.ports.iter().flat_map(|(_, ports)| ports);
        let ports = ports.map(|port| Endpoint { address: replica.host.clone(), port: *port });
        let first = self.member(replica).filter(|(group, member)| group.members.first() == Some(member));
        let stores = first.into_iter().flat_map(|(group, member)| {
            let torch = (!group.agent_store).then(|| group.torch_store.clone());
            torch.into_iter().chain([group.paddle_store_of(member).clone()])
        });
        let all = replica.endpoint.iter().cloned().chain(ports).chain(stores);
        all.filter_map(|endpoint| endpoint.to_string().parse().ok()).collect()
    }

    /// True if other hosts write its logs: see [`EngineKind::writes_elsewhere`].
    pub fn writes_elsewhere(&self) -> bool {
        EngineKind::named(&self.engine).is_some_and(|kind| kind.writes_elsewhere(&self.cluster))
    }

    /// True for the plan of a document, false for a launch.
    pub fn is_document(&self) -> bool {
        matches!(self.logs, LogLayout::Attempts { .. })
    }

    /// The hosts and ports of each role, on all nodes.
    pub fn places(&self) -> &[RolePlaces] {
        self.places.get_or_init(|| if self.is_document() { self.places_here() } else { self.places_of_group() })
    }

    fn places_here(&self) -> Vec<RolePlaces> {
        let of_role = |(position, role): (usize, &Role)| {
            let replicas = || self.replicas.iter().filter(move |replica| replica.slot.role as usize == position);
            let ports = role.work.ports.iter().enumerate().map(|(number, need)| NamedPorts {
                name: need.name.clone(),
                each: replicas().next().map_or(0, |first| first.ports[number].1.len()),
                ports: replicas().flat_map(|replica| &replica.ports[number].1).copied().collect(),
            });
            let hosts = replicas().map(|replica| replica.host.clone()).collect();
            RolePlaces { name: role.name.clone(), hosts, ports: ports.collect() }
        };
        self.job.roles.iter().enumerate().map(of_role).collect()
    }

    /// Each member of a launched job has one port, the only one of its role.
    fn places_of_group(&self) -> Vec<RolePlaces> {
        let Some(group) = self.groups.first() else { return Vec::new() };
        let parts = group.parts().into_iter().map(|part| {
            let these = group.members_of(part);
            let ports = these.iter().map(|member| member.endpoint.port).collect();
            RolePlaces {
                name: RoleName::new(part.role()).expect("a constant name is valid"),
                hosts: these.iter().map(|member| member.endpoint.address.clone()).collect(),
                ports: vec![NamedPorts { name: "rpc".to_owned(), each: 1, ports }],
            }
        });
        parts.collect()
    }

    /// The endpoints that a replica listens on when it is ready.
    pub fn listens_at(&self, replica: &Replica) -> Vec<Awaited> {
        if self.is_document() {
            let ports = replica.ports.iter().flat_map(|(_, ports)| ports);
            let endpoints = ports.map(|port| Endpoint { address: replica.host.clone(), port: *port }.to_string());
            return endpoints.map(|name| Awaited { at: vec![name.clone()], name }).collect();
        }
        let server = self.member(replica).filter(|(_, member)| member.part == Part::Server);
        let answers = |(group, server): (&Topology, &Member)| {
            launch::answers_at(&self.options, group, server.endpoint.to_string(), server.index)
        };
        server.map(answers).into_iter().collect()
    }

    /// The directory of one attempt, if attempts have directories.
    pub fn attempt_dir(&self, replica: &Replica, attempt: u32) -> Option<PathBuf> {
        match &self.logs {
            LogLayout::Files { .. } => None,
            LogLayout::Attempts { dir } => Some(dir.join(&replica.name).join(format!("attempt-{attempt}"))),
            LogLayout::Streams { dir } => {
                let local = self.member(replica).map_or(replica.slot.index, |(_, member)| member.local_rank);
                let restarts = attempt.saturating_sub(FIRST_ATTEMPT);
                Some(dir.join(format!("attempt_{restarts}")).join(local.to_string()))
            }
        }
    }

    /// The log of an attempt.
    pub fn log(&self, replica: &Replica, attempt: u32) -> Log {
        let own = || {
            let dir = self.attempt_dir(replica, attempt).unwrap_or_default();
            match self.logs {
                LogLayout::Streams { .. } => {
                    Log { stderr: Some(dir.join("stderr.log")), ..Log::new(dir.join("stdout.log")) }
                }
                LogLayout::Files { .. } | LogLayout::Attempts { .. } => Log::new(dir.join("log")),
            }
        };
        replica.log.clone().unwrap_or_else(own)
    }

    /// The file where torch may write its error.
    pub fn error_file(&self, replica: &Replica, attempt: u32) -> PathBuf {
        match self.attempt_dir(replica, attempt) {
            Some(dir) => dir.join("error.json"),
            None => self.scratch.join(format!("error.{attempt}.{}.json", replica.rank.0)),
        }
    }

    /// The directory where gloo's processes of a group, or an MPI launcher and its workers, meet in one attempt of the job.
    /// Each attempt has its own, because files of an earlier attempt would confuse gloo.
    pub fn meeting_dir(&self, group: u16, of_job: u32) -> PathBuf {
        self.scratch.join(format!("gloo.{group}.{of_job}"))
    }
}

/// The contracts of a role: its own, otherwise the job's if the role decides or has a part in a group.
pub(super) fn contracts<'a>(job: &'a Job, role: &'a Role) -> &'a [Contract] {
    match &role.work.contracts {
        Some(own) => own,
        None if role.part.is_some() => &job.contracts,
        None if role.completion.decides || job.roles.iter().all(|role| !role.completion.decides) => &job.contracts,
        None => &[],
    }
}

/// Serializes variables as one object, by name.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::contract::Variable;

    pub(super) fn serialize<S: Serializer>(variables: &[Variable], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(variables.iter().map(|(name, value)| (name, value)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Variable>, D::Error> {
        Ok(BTreeMap::deserialize(deserializer)?.into_iter().collect())
    }
}
