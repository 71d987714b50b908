//! Jobs, roles and their policies: data only. What a policy decides is in [`crate::machine`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{JobId, Mount, Part, RoleName, seconds};

/// A job: roles that start together, and the policies that decide when it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    pub name: JobId,
    /// For users and filters; they have no effect.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    pub contracts: Vec<Contract>,
    /// Umiak hosts torch's store of each group of ranks; otherwise the first rank does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent_store: bool,
    pub roles: Vec<Role>,
    pub policy: Policy,
}

impl Job {
    /// The time in which all of its replicas have stopped after SIGTERM.
    pub fn longest_grace(&self) -> Duration {
        let of_role = |role: &Role| role.grace.unwrap_or(self.policy.stop.grace);
        self.roles.iter().filter(|role| role.replicas > 0).map(of_role).max().unwrap_or(self.policy.stop.grace)
    }
}

/// Replicas with one command and one purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Role {
    pub name: RoleName,
    pub replicas: u32,
    pub work: Work,
    /// Roles that have a part are one group of ranks. Another role with contracts is a group of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    pub completion: Completion,
    pub restart: RoleRestart,
    /// The roles that this one waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start_after: Vec<StartAfter>,
    pub timeouts: Timeouts,
    /// Time from the first signal to SIGKILL, if it differs from the job's.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub grace: Option<Duration>,
}

impl Role {
    /// A role with default policies and no command.
    pub fn new(name: RoleName, replicas: u32) -> Self {
        Self {
            name,
            replicas,
            work: Work::default(),
            part: None,
            completion: Completion::default(),
            restart: RoleRestart::default(),
            start_after: Vec::new(),
            timeouts: Timeouts::default(),
            grace: None,
        }
    }
}

/// What each replica of a role runs, and what it needs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// Program and arguments; a line for the shell is `["/bin/sh", "-c", line]`.
    pub command: Vec<String>,
    /// In the order of the document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// Working directory; relative to where the job was submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Each attempt starts in a new directory, with links to what is in the working directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_dir: bool,
    pub resources: Resources,
    /// Ports of each replica, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortNeed>,
    /// Directories that replicas see at other paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// For engines that have images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// For engines that have queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// Overrides the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contracts: Option<Vec<Contract>>,
}

impl Work {
    /// Where a path of the replica is on the host; `directory` is where the job was submitted.
    pub fn on_host(&self, path: &Path, directory: &Path) -> PathBuf {
        let around = self.mounts.iter().filter(|mount| path.starts_with(&mount.path));
        // The inner one hides the outer one, and a later one an earlier one.
        let mount = around.max_by_key(|mount| mount.path.components().count());
        let inside = mount.and_then(|mount| Some((mount, path.strip_prefix(&mount.path).ok()?)));
        inside.map_or_else(|| path.to_owned(), |(mount, rest)| mount.below(directory).dir.join(rest))
    }

    /// True if umiak itself sets this variable, whatever `env` contains. Other variables that begin with `UMIAK_` are for
    /// an umiak that a replica may run.
    pub fn is_given(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix("UMIAK_") else { return name == "POD_IP" };
        let port = rest.strip_prefix("PORT_").or_else(|| rest.strip_prefix("PORTS_"));
        matches!(
            rest,
            "RUN" | "STEP" | "JOB" | "ROLE" | "INDEX" | "REPLICAS" | "RANK" | "WORLD_SIZE" | "ATTEMPT" | "HOST"
        ) || rest.starts_with("HOSTS_")
            || rest.starts_with("ENDPOINTS_")
            || port.is_some_and(|port| {
                let is_upper = !port.bytes().any(|byte| byte.is_ascii_lowercase());
                is_upper && self.ports.iter().any(|need| need.name.eq_ignore_ascii_case(port))
            })
    }
}

/// The resources of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// Thousandths of a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(default)]
    pub gpus: u32,
    /// The size of `/dev/shm`, for engines that have containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm_bytes: Option<u64>,
    /// Disk space for files of the replica, for engines that can limit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_bytes: Option<u64>,
}

impl Resources {
    /// The number of CPUs, rounded up, because CPUs are not shared; 0 if none are requested.
    pub fn whole_cpus(&self) -> u32 {
        self.cpu_millis.map_or(0, |millis| millis.div_ceil(1000).max(1))
    }
}

/// Ports of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortNeed {
    /// Letters, digits and `_`: it becomes part of variable names.
    pub name: String,
    pub count: u16,
    /// A fixed port, on the replica's own address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<u16>,
}

/// A role that another role waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartAfter {
    /// Its position among the roles.
    pub role: u16,
    pub when: When,
}

/// The condition for the start of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// All its processes exist.
    Started,
    /// It listens on all its ports.
    Ready,
    /// It has succeeded.
    Succeeded,
}

/// Time limits; absent means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
pub struct Timeouts {
    /// Time from the start of a replica until it listens on its ports, if another role waits for that. It then fails.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub start: Option<Duration>,
    /// How long other roles wait until it listens on its ports. They then start anyway.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub patience: Option<Duration>,
    /// Run time of one attempt of a replica, which then fails.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub run: Option<Duration>,
}

/// Restarts inside a role while the job keeps running. When they are used up, the completion policies decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
pub struct RoleRestart {
    pub scope: Scope,
    pub rule: Restart,
}

/// What is restarted after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The replica that failed.
    #[default]
    Replica,
    /// All replicas of its role: the others are stopped first.
    Role,
}

/// What caused a failure.
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
    /// The number of failed replicas that fails the role; 0 means never.
    pub min_failed: u32,
    pub min_succeeded: MinSucceeded,
    /// A role that does not decide is stopped, without failing, when the deciding roles have ended.
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
    /// No number of successes does: the role completes when all its replicas have ended.
    Never,
}

/// Which roles must succeed for the job to succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Success {
    /// Every role that decides.
    #[default]
    All,
    /// The first role with enough successes ends the job. If all replicas of the roles that decide end without that, the
    /// job succeeds if one of them has succeeded.
    First,
    /// The same, but the job succeeds too if all replicas have failed.
    End,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_all(success: &Success) -> bool {
    *success == Success::All
}

/// A table of exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Exits {
    /// OpenPAI's: by exit code and the texts in the log.
    Pai,
}

impl Exits {
    pub const ALL: [Self; 1] = [Self::Pai];
    /// Their names in documents.
    pub const WORDS: &'static [&'static str] = &[Self::Pai.word()];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Pai => "pai",
        }
    }

    /// The table of this name.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|exits| exits.word() == word)
    }
}

/// Policies of the whole job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Policy {
    /// Restarts of all roles together, after the job has failed.
    pub restart: Restart,
    #[serde(default, skip_serializing_if = "is_all")]
    pub success: Success,
    /// The table that says which failures are repeated; without one, the kind of the exit does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exits: Option<Exits>,
    pub stop: StopPolicy,
    /// How long after the first failure an exit may still be the cause. Delays the report, never the stop.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub settle: Duration,
    /// Time limit of the whole run, including restarts, while a supervisor is running.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub timeout: Option<Duration>,
    /// The job fails if no replica makes progress for this long.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub hang: Option<Duration>,
    /// No replica starts unless all of them fit.
    pub gang: bool,
    /// How long roles that do not decide may run on, to end by themselves, once the deciding ones have succeeded.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub linger: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            restart: Restart::default(),
            success: Success::default(),
            exits: None,
            stop: StopPolicy::default(),
            settle: Duration::from_millis(500),
            timeout: None,
            hang: None,
            gang: true,
            linger: None,
        }
    }
}

/// How often something may be restarted after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Restart {
    /// Number of restarts, not counting the first start; 4294967295 for no limit.
    pub max: u32,
    /// Separate budget for failures that the program did not cause (no memory to fork, a lost host).
    pub max_platform: u32,
    /// Delay before the first restart; doubled for each further restart that counts.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub backoff: Duration,
    /// The same for failures that the program did not cause, if it is another.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub platform_backoff: Option<Duration>,
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub max_backoff: Duration,
    /// Only restarts within this time count; without it, all restarts of the run.
    #[serde(default, with = "seconds::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub window: Option<Duration>,
}

impl Restart {
    /// A number that stands for no limit.
    pub const UNLIMITED: u32 = u32::MAX;

    /// The number of restarts for failures of this kind.
    pub fn budget(&self, blame: Blame) -> u32 {
        match blame {
            Blame::User => self.max,
            Blame::Platform => self.max_platform,
        }
    }

    /// The same rule for failures of one kind only.
    #[must_use]
    pub fn of(&self, blame: Blame) -> Self {
        let backoff = self.platform_backoff.filter(|_| blame == Blame::Platform).unwrap_or(self.backoff);
        Self { max: self.budget(blame), backoff, ..*self }
    }

    /// The maximum number of starts; `None` with a window or unlimited restarts, because then there is no maximum.
    pub fn attempts(&self) -> Option<u32> {
        if self.max == 0 || self.window.is_none() { self.max.checked_add(1) } else { None }
    }
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            max: 0,
            max_platform: 0,
            backoff: Duration::from_secs(1),
            platform_backoff: None,
            max_backoff: Duration::from_secs(30),
            window: None,
        }
    }
}

/// How ranks are stopped: SIGTERM, then SIGKILL, then abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopPolicy {
    /// Time from the first signal (SIGTERM, or SIGINT at Ctrl-C) to SIGKILL.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub grace: Duration,
    /// Time from SIGKILL until a process that does not exit (uninterruptible sleep) is reported and abandoned.
    #[serde(with = "seconds")]
    #[schemars(with = "f64")]
    pub abandon: Duration,
}

impl Default for StopPolicy {
    fn default() -> Self {
        Self { grace: Duration::from_secs(5), abandon: Duration::from_secs(10) }
    }
}

/// An environment dialect of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Contract {
    Paddle,
    Torch,
    /// Paddle's for parameter-server jobs.
    PaddleServers,
    /// Paddle's for rpc jobs.
    PaddleRpc,
    /// OpenPAI's.
    Pai,
    /// Paddle's as the operators of Kubernetes set it, with and without parameter servers.
    PaddleJob,
    /// Torch's as the operator of Kubernetes sets it.
    PytorchJob,
    /// `TF_CONFIG`.
    Tensorflow,
    /// A leader that starts processes on the trainers with `mpirun`.
    Mpi,
}

/// A command: program and arguments, as platform strings.
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
    /// The user's name for it: a physical number or a `GPU-…`/`MIG-…` label.
    pub label: String,
    /// Its position in the exported list of visible devices, which frameworks use.
    pub position: u32,
}

impl Device {
    /// `gpu 0,1`; empty without devices.
    pub fn described(kind: DeviceKind, devices: &[Self]) -> String {
        if devices.is_empty() { String::new() } else { format!("{} {}", kind.word(), Self::labels(devices)) }
    }

    /// The labels of devices: `0,1`.
    pub fn labels<'a>(devices: impl IntoIterator<Item = &'a Self>) -> String {
        devices.into_iter().map(|device| device.label.as_str()).collect::<Vec<_>>().join(",")
    }
}
