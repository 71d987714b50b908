//! Names and ranks of replicas.

use super::{Machine, Rank, Slot};
use crate::facts::Subject;

#[derive(Debug, Clone)]
pub(super) struct Names {
    /// Ranks of lower nodes come first.
    pub(super) first_rank: Rank,
    /// Numbers in replica names where they differ from the rank, by role.
    pub(super) numbers: Option<Vec<Vec<u32>>>,
}

impl Default for Names {
    fn default() -> Self {
        Self { first_rank: Rank(0), numbers: None }
    }
}

impl Machine {
    /// A name such as `trainer-3`; the number counts over all nodes.
    pub fn replica_name(&self, slot: Slot) -> String {
        let number = match &self.names.numbers {
            Some(numbers) => numbers[slot.role as usize][slot.index as usize],
            None => self.names.first_rank.0 + slot.index,
        };
        format!("{}-{number}", self.job.roles[slot.role as usize].name)
    }

    pub fn subject(&self, slot: Slot) -> Subject {
        Subject { replica: self.replica_name(slot), rank: Some(self.rank(slot)), attempt: self.number(slot) }
    }

    /// Ranks count through the roles in order.
    fn rank(&self, slot: Slot) -> Rank {
        let lower: u32 = self.job.roles[..slot.role as usize].iter().map(|role| role.replicas).sum();
        Rank(self.names.first_rank.0 + lower + slot.index)
    }
}
