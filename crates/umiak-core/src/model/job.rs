//! Jobs, roles and their policies: data only. What a policy decides is in [`crate::machine`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{JobId, RoleName, seconds};

/// A job: roles that start together, and the policies that say when it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    pub name: JobId,
    /// For people and filters; they change nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    pub contracts: Vec<Contract>,
    pub roles: Vec<Role>,
    pub policy: Policy,
}

/// Replicas with one command and one purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Role {
    pub name: RoleName,
    pub replicas: u32,
    pub work: Work,
    pub completion: Completion,
    pub restart: RoleRestart,
    /// All of these come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start_after: Vec<StartAfter>,
    pub timeouts: Timeouts,
    /// From the first signal to SIGKILL, where it differs from the job's.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub grace: Option<Duration>,
}

impl Role {
    /// With every policy at its default, and nothing to run yet.
    pub fn new(name: RoleName, replicas: u32) -> Self {
        Self {
            name,
            replicas,
            work: Work::default(),
            completion: Completion::default(),
            restart: RoleRestart::default(),
            start_after: Vec::new(),
            timeouts: Timeouts::default(),
            grace: None,
        }
    }
}

/// What each replica of a role runs, and what it needs for that.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// Program and arguments; a line for the shell is `["/bin/sh", "-c", line]`.
    pub command: Vec<String>,
    /// In the order of the document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// Where it starts; relative to where the job was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    pub resources: Resources,
    /// Ports that each replica is given, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortNeed>,
    /// For engines that have images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// For engines that have queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// Instead of the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contracts: Option<Vec<Contract>>,
}

impl Work {
    /// Whether umiak itself sets the variable of this name, whatever `env` says. Others that begin with `UMIAK_` are for
    /// an umiak that a replica may run.
    pub fn is_given(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix("UMIAK_") else { return name == "POD_IP" };
        let port = rest.strip_prefix("PORT_").or_else(|| rest.strip_prefix("PORTS_"));
        matches!(rest, "RUN" | "JOB" | "ROLE" | "INDEX" | "REPLICAS" | "RANK" | "WORLD_SIZE" | "ATTEMPT" | "HOST")
            || rest.starts_with("HOSTS_")
            || rest.starts_with("ENDPOINTS_")
            || port.is_some_and(|port| self.ports.iter().any(|need| need.name.to_ascii_uppercase() == port))
    }
}

/// What one replica needs of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// Thousandths of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(default)]
    pub gpus: u32,
}

impl Resources {
    /// A part of a CPU is one that nobody else gets; 0 for who asks for none.
    pub fn whole_cpus(&self) -> u32 {
        self.cpu_millis.map_or(0, |millis| millis.div_ceil(1000).max(1))
    }
}

/// Ports of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortNeed {
    /// Lower case letters, digits and `_`: it becomes part of variables.
    pub name: String,
    pub count: u16,
    /// This very one, on the replica's own address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<u16>,
}

/// A role that comes before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartAfter {
    /// Its position among the roles.
    pub role: u16,
    pub when: When,
}

/// What is waited for before a role starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// All its processes exist.
    Started,
    /// All its ports answer.
    Ready,
    /// It has ended well.
    Succeeded,
}

/// How long things may take; nothing means for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
pub struct Timeouts {
    /// From the start of a replica until it listens at its ports, where another role waits for that. It has then failed.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub start: Option<Duration>,
    /// How long roles that wait until it listens at its ports do so. They then start all the same.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub patience: Option<Duration>,
    /// One attempt of a replica. It has then failed.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub run: Option<Duration>,
}

/// Restarts inside a role while the job goes on. When they are spent, the completion policies decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
pub struct RoleRestart {
    pub scope: Scope,
    pub rule: Restart,
}

/// Who is started again after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The one that failed.
    #[default]
    Replica,
    /// All of its role: the others are stopped first.
    Role,
}

/// Whose failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The user's program.
    #[default]
    User,
    /// The host, the cluster, or umiak itself.
    Platform,
}

/// When a role has ended, and whether its end decides the job's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Completion {
    /// This many failed replicas fail the role; 0 means that failures never do.
    pub min_failed: u32,
    pub min_succeeded: MinSucceeded,
    /// A role that does not decide is stopped, without blame, when the deciding ones have ended.
    pub decides: bool,
}

impl Default for Completion {
    fn default() -> Self {
        Self { min_failed: 1, min_succeeded: MinSucceeded::All, decides: true }
    }
}

/// How many successes complete a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MinSucceeded {
    All,
    Count(u32),
}

/// Policies of the whole job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Policy {
    /// Of all roles together, after the job has failed.
    pub restart: Restart,
    pub stop: StopPolicy,
    /// After the first failure, how long later exits may still turn out to be the cause. Delays the
    /// report, never the stopping.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub settle: Duration,
    /// The whole run, restarts and all, as long as somebody supervises it.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub timeout: Option<Duration>,
    /// Nobody starts unless there is room for everybody.
    pub gang: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            restart: Restart::default(),
            stop: StopPolicy::default(),
            settle: Duration::from_millis(500),
            timeout: None,
            gang: true,
        }
    }
}

/// How often something may be started again after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Restart {
    /// This many restarts, beside the first start.
    pub max: u32,
    /// Failures that are not the program's (no memory to fork, a lost host) have a budget of their own.
    pub max_platform: u32,
    /// Before the first restart; doubled for each one that counts.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub backoff: Duration,
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub max_backoff: Duration,
    /// Only restarts of this last stretch of time count; without it, all of the run.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub window: Option<Duration>,
}

impl Restart {
    /// How many restarts there are for failures of this kind.
    pub fn budget(&self, blame: Blame) -> u32 {
        match blame {
            Blame::User => self.max,
            Blame::Platform => self.max_platform,
        }
    }

    /// How many starts there can be at most, where that is known: with a window there is no end to them.
    pub fn attempts(&self) -> Option<u32> {
        (self.max == 0 || self.window.is_none()).then(|| self.max.saturating_add(1))
    }
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            max: 0,
            max_platform: 0,
            backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
            window: None,
        }
    }
}

/// How ranks are stopped: SIGTERM, then SIGKILL, then given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopPolicy {
    /// From the first signal (SIGTERM, at Ctrl-C SIGINT) to SIGKILL.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub grace: Duration,
    /// From SIGKILL until a process that does not go (uninterruptible sleep) is reported and left.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub abandon: Duration,
}

impl Default for StopPolicy {
    fn default() -> Self {
        Self { grace: Duration::from_secs(5), abandon: Duration::from_secs(10) }
    }
}

/// An environment dialect that replicas are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Contract {
    Paddle,
    Torch,
    /// Paddle's for jobs with servers.
    PaddleServers,
    /// Paddle's for rpc jobs.
    PaddleRpc,
}

/// What a command is made of: program and arguments, as bytes of the platform.
pub type Command = Vec<std::ffi::OsString>;

/// A kind of accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    Gpu,
    Xpu,
    Npu,
    Mlu,
}

impl DeviceKind {
    /// `gpu`, as in messages and in `FLAGS_selected_gpus`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Xpu => "xpu",
            Self::Npu => "npu",
            Self::Mlu => "mlu",
        }
    }

    /// The variable that limits which devices a process sees.
    pub fn visible_variable(self) -> &'static str {
        match self {
            Self::Gpu => "CUDA_VISIBLE_DEVICES",
            Self::Xpu => "XPU_VISIBLE_DEVICES",
            Self::Npu => "ASCEND_RT_VISIBLE_DEVICES",
            Self::Mlu => "MLU_VISIBLE_DEVICES",
        }
    }
}

/// One device as a process sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// What the user calls it: a physical number or a `GPU-…`/`MIG-…` label.
    pub label: String,
    /// Its place in the exported visible list, which is what frameworks count by.
    pub position: u32,
}

impl Device {
    /// `gpu 0,1`; nothing where there are none.
    pub fn described(kind: DeviceKind, devices: &[Self]) -> String {
        if devices.is_empty() { String::new() } else { format!("{} {}", kind.word(), Self::labels(devices)) }
    }

    /// `0,1`: what some of them are called.
    pub fn labels<'a>(devices: impl IntoIterator<Item = &'a Self>) -> String {
        devices.into_iter().map(|device| device.label.as_str()).collect::<Vec<_>>().join(",")
    }
}
