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
