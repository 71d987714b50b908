//! The parts of an allocation. Roles with equal resources and the same queue share a part; several parts are a
//! heterogeneous job.

use super::super::Seating;
use crate::model::{Job, Resources, Role, SlurmOptions};

const MIB: u64 = 1 << 20;

/// What roles of one part have in common: their resources and their queue.
type Common<'a> = (Need, Option<&'a str>);

/// The roles of each part, by position, in the order of the document. With an agent for each replica, a task's number
/// must be its replica's, so only roles that follow each other share a part.
pub fn parts(job: &Job, options: &SlurmOptions) -> Vec<Vec<u16>> {
    let mut parts: Vec<(Common<'_>, Vec<u16>)> = Vec::new();
    for (role, position) in job.roles.iter().zip(0..) {
        let need = (Need::of(&role.work.resources), queue(role, options));
        let from = if options.direct { parts.len().saturating_sub(1) } else { 0 };
        match parts[from..].iter_mut().find(|(other, _)| *other == need) {
            Some((_, roles)) => roles.push(position),
            None => parts.push((need, vec![position])),
        }
    }
    parts.into_iter().map(|(_, roles)| roles).collect()
}

/// The partition that a role asks for, unless the options give one for all.
pub(super) fn queue<'a>(role: &'a Role, options: &SlurmOptions) -> Option<&'a str> {
    role.work.queue.as_deref().filter(|_| options.value("partition").is_none())
}

/// How the replicas of a job are divided among agents.
pub fn seating(job: &Job, options: &SlurmOptions) -> Seating {
    if options.direct { Seating::Replicas } else { Seating::Nodes { parts: parts(job, options) } }
}

/// What a task needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    /// 0: as many as Slurm gives, which is one.
    pub(super) cpus: u32,
    /// In MiB, of each CPU.
    pub(super) memory: Option<u64>,
    pub(super) gpus: u32,
}

impl Need {
    /// Memory is requested by CPU: that of a task cannot be requested, and that of a node would depend on how many tasks
    /// come to it.
    pub(super) fn of(resources: &Resources) -> Self {
        let cpus = resources.whole_cpus();
        let of_cpu = |bytes: u64| bytes.div_ceil(MIB).div_ceil(u64::from(cpus.max(1))).max(1);
        Self { cpus, memory: resources.memory_bytes.map(of_cpu), gpus: resources.gpus }
    }
}
