//! The part of a process in a group of ranks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Completion, PortNeed, Role, RoleName};

/// What a process does in its group. Processes are counted in this order; so are the roles of a launched job started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Comes first, and the others meet at it or are started by it. Launched jobs have none.
    Leader,
    /// Holds parameters.
    Server,
    /// A rank: the only role in a collective job.
    #[default]
    Trainer,
    /// In federated jobs.
    Coordinator,
    /// A trainer of a later stage, on another kind of device.
    HeterTrainer,
}

impl Part {
    pub const ALL: [Self; 5] = [Self::Leader, Self::Server, Self::Trainer, Self::Coordinator, Self::HeterTrainer];

    /// `pserver`, as in the replica name `pserver-1`.
    pub fn role(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Server => "pserver",
            Self::Trainer => "trainer",
            Self::Coordinator => "coordinator",
            Self::HeterTrainer => "heter_trainer",
        }
    }

    /// `TRAINING_ROLE`.
    pub fn training_role(self) -> &'static str {
        match self {
            Self::Server => "PSERVER",
            Self::Leader | Self::Trainer => "TRAINER",
            Self::Coordinator => "COORDINATOR",
            Self::HeterTrainer => "HETER_TRAINER",
        }
    }

    /// The stem of log file names: `serverlog.0`.
    pub fn log_stem(self) -> &'static str {
        match self {
            Self::Server => "serverlog",
            Self::Leader | Self::Trainer => "workerlog",
            Self::Coordinator => "coordinator",
            Self::HeterTrainer => "heterlog",
        }
    }

    /// Trainers decide the end of the job; the others are then stopped.
    pub fn as_role(self, replicas: u32) -> Role {
        let name = RoleName::new(self.role()).expect("a constant name is valid");
        let mut role = Role::new(name, replicas);
        role.completion = Completion { decides: self == Self::Trainer, ..Completion::default() };
        if self == Self::Server {
            role.work.ports = vec![PortNeed { name: "rpc".to_owned(), count: 1, fixed: None }];
        }
        role
    }
}
