//! The frameworks of distributed jobs, with the rules of their operators on Kubernetes.

use super::{Contract, Job, Part};

/// A framework whose members have different parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framework {
    Paddle,
    Pytorch,
    Tensorflow,
}

impl Framework {
    pub const ALL: [Self; 3] = [Self::Paddle, Self::Pytorch, Self::Tensorflow];

    /// Its name in documents.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Paddle => "paddle",
            Self::Pytorch => "pytorch",
            Self::Tensorflow => "tensorflow",
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
            (Self::Pytorch, "pserver" | "master") => Some(Part::Leader),
            _ => None,
        }
    }

    /// Sets contracts and completion of a job whose roles have their parts.
    pub fn arrange(self, job: &mut Job) {
        job.contracts = match self {
            Self::Paddle => vec![Contract::PaddleJob],
            Self::Pytorch => vec![Contract::PytorchJob],
            Self::Tensorflow => vec![Contract::Tensorflow],
        };
        let has_leader = job.roles.iter().any(|role| role.part == Some(Part::Leader));
        let deciding = if has_leader { Part::Leader } else { Part::Trainer };
        for role in &mut job.roles {
            role.completion.decides = role.part == Some(deciding);
        }
    }
}
