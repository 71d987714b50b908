//! Which agent has which replicas.

use super::Seating;
use crate::formats::hostlist;
use crate::model::Job;

/// More tasks on a node are not believed.
const MOST: usize = 1 << 20;

/// The replicas of each agent, by rank. `tasks` is the number of tasks on each node of each part of the allocation, as
/// Slurm writes it, parts separated by `;`: `2(x3),1;4`.
///
/// # Errors
///
/// If the allocation has fewer tasks than the job has replicas.
pub fn seats(job: &Job, seating: &Seating, tasks: &str) -> Result<Vec<Vec<u32>>, String> {
    let mut next = 0;
    let mut ranks = Vec::new();
    for role in &job.roles {
        ranks.push((next..next + role.replicas).collect::<Vec<u32>>());
        next += role.replicas;
    }
    let parts = match seating {
        Seating::Replicas => return Ok((0..next).map(|rank| vec![rank]).collect()),
        Seating::Nodes { parts } => parts,
    };
    let mut agents = Vec::new();
    let mut texts = tasks.split(';');
    for roles in parts {
        let text = texts.next().unwrap_or_default();
        let counts = hostlist::counts(text, MOST).map_err(|_| format!("`{text}` is not a list of tasks per node"))?;
        let mut left = roles.iter().filter_map(|role| ranks.get(*role as usize)).flatten().copied();
        agents.extend(counts.iter().map(|count| left.by_ref().take(*count as usize).collect::<Vec<u32>>()));
        if left.next().is_some() {
            return Err(format!("the allocation has too few tasks: {text}"));
        }
    }
    Ok(agents)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::{JobId, Policy, Role, RoleName};

    fn job(replicas: &[u32]) -> Job {
        let role =
            |(number, replicas): (usize, &u32)| Role::new(RoleName::new(format!("r{number}")).unwrap(), *replicas);
        Job {
            name: JobId::new("ctr").unwrap(),
            labels: BTreeMap::default(),
            agent_store: false,
            contracts: Vec::new(),
            roles: replicas.iter().enumerate().map(role).collect(),
            policy: Policy::default(),
        }
    }

    #[test]
    fn nodes_have_as_many_replicas_as_tasks() {
        let seating = Seating::Nodes { parts: vec![vec![0, 1]] };
        assert_eq!(seats(&job(&[1, 4]), &seating, "2(x2),1").unwrap(), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(seats(&job(&[1, 1]), &seating, "2(x2)").unwrap(), [vec![0, 1], vec![]], "an agent without replicas");
        assert!(seats(&job(&[1, 4]), &seating, "2,2").is_err(), "too few");
        assert!(seats(&job(&[1]), &seating, "x").is_err());
    }

    #[test]
    fn parts_of_an_allocation_have_their_own_roles() {
        let seating = Seating::Nodes { parts: vec![vec![1], vec![0, 2]] };
        assert_eq!(seats(&job(&[1, 2, 2]), &seating, "2;1,2").unwrap(), [vec![1, 2], vec![0], vec![3, 4]]);
    }

    #[test]
    fn replicas_of_their_own_agents() {
        assert_eq!(seats(&job(&[1, 2]), &Seating::Replicas, "").unwrap(), [[0], [1], [2]]);
    }
}
