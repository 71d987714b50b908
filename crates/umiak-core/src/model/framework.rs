//! The frameworks of distributed jobs, with the rules of their operators on Kubernetes.

use std::time::Duration;

use super::{Contract, Job, Part};

/// How long parameter servers may run on after the last worker.
const LINGER: Duration = Duration::from_secs(30);

/// A framework whose members have different parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framework {
    Paddle,
    Pytorch,
    Tensorflow,
    Mpi,
}

impl Framework {
    pub const ALL: [Self; 4] = [Self::Paddle, Self::Pytorch, Self::Tensorflow, Self::Mpi];

    /// Its name in documents.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Paddle => "paddle",
            Self::Pytorch => "pytorch",
            Self::Tensorflow => "tensorflow",
            Self::Mpi => "mpi",
        }
    }

    /// The framework of this name.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|framework| framework.word() == word)
    }

    /// The part of members with this role; `None` if the framework has no such members.
    pub fn part(self, role: &str) -> Option<Part> {
        match (self, role) {
            (_, "worker" | "pworker") => Some(Part::Trainer),
            (Self::Paddle, "pserver") | (Self::Tensorflow, "pserver" | "master") => Some(Part::Server),
            (Self::Pytorch, "pserver" | "master") | (Self::Mpi, "master") => Some(Part::Leader),
            _ => None,
        }
    }

    /// Sets contracts and completion of a job whose roles have their parts. Parts that do not decide have 30 s to end by
    /// themselves; workers of MPI only wait for the launcher.
    pub fn arrange(self, job: &mut Job) {
        job.policy.linger = (self != Self::Mpi).then_some(LINGER);
        job.contracts = match self {
            Self::Paddle => vec![Contract::PaddleJob],
            Self::Pytorch => vec![Contract::PytorchJob],
            Self::Tensorflow => vec![Contract::Tensorflow],
            Self::Mpi => vec![Contract::Mpi],
        };
        let has_leader = job.roles.iter().any(|role| role.part == Some(Part::Leader));
        let deciding = if has_leader { Part::Leader } else { Part::Trainer };
        for role in &mut job.roles {
            role.completion.decides = role.part == Some(deciding);
        }
    }
}
