//! Jobs, roles and their policies: data only. What a policy decides is in [`crate::machine`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{JobId, RoleName};

/// A job: roles that start together, and the policies that say when it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub name: JobId,
    pub contracts: Vec<Contract>,
    pub roles: Vec<Role>,
    pub policy: Policy,
}

/// Replicas with one command and one purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    pub name: RoleName,
    pub replicas: u32,
    pub completion: Completion,
}

/// When a role has ended, and whether its end decides the job's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MinSucceeded {
    All,
    Count(u32),
}

/// Policies of the whole job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub restart: Restart,
    pub stop: StopPolicy,
    /// After the first failure, how long later exits may still turn out to be the cause. Delays the
    /// report, never the stopping.
    pub settle: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self { restart: Restart::default(), stop: StopPolicy::default(), settle: Duration::from_millis(500) }
    }
}

/// How often the whole group may be started again after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// This many restarts, beside the first start.
    pub max: u32,
    /// Before the first restart; doubled for each one that counts.
    pub backoff: Duration,
    pub max_backoff: Duration,
    /// Only restarts of this last stretch of time count; without it, all of the run.
    pub window: Option<Duration>,
}

impl Restart {
    /// How many starts there can be at most, where that is known: with a window there is no end to them.
    pub fn attempts(&self) -> Option<u32> {
        (self.max == 0 || self.window.is_none()).then(|| self.max.saturating_add(1))
    }
}

impl Default for Restart {
    fn default() -> Self {
        Self { max: 0, backoff: Duration::from_secs(1), max_backoff: Duration::from_secs(30), window: None }
    }
}

/// How ranks are stopped: SIGTERM, then SIGKILL, then given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopPolicy {
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// From SIGKILL until a process that does not go (uninterruptible sleep) is reported and left.
    pub abandon: Duration,
}

impl Default for StopPolicy {
    fn default() -> Self {
        Self { grace: Duration::from_secs(5), abandon: Duration::from_secs(10) }
    }
}

/// An environment dialect that replicas are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contract {
    Paddle,
    Torch,
}

/// What a command is made of: program and arguments, as bytes of the platform.
pub type Command = Vec<std::ffi::OsString>;

/// A kind of accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    Gpu,
    Xpu,
    Npu,
}

impl DeviceKind {
    /// `gpu`, as in messages and in `FLAGS_selected_gpus`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Xpu => "xpu",
            Self::Npu => "npu",
        }
    }

    /// The variable that limits which devices a process sees.
    pub fn visible_variable(self) -> &'static str {
        match self {
            Self::Gpu => "CUDA_VISIBLE_DEVICES",
            Self::Xpu => "XPU_VISIBLE_DEVICES",
            Self::Npu => "ASCEND_RT_VISIBLE_DEVICES",
        }
    }
}

/// One device as a process sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// What the user calls it: a physical number or a `GPU-…`/`MIG-…` label.
    pub label: String,
    /// Its place in the exported visible list, which is what frameworks count by.
    pub position: u32,
}
