//! How large a job may be, in any format.

use super::reader::Reader;
use crate::diag::{Code, Span};

pub const MAX_REPLICAS: u32 = 100_000;
/// Maximum number of ports of one replica.
pub const MAX_PORTS: u16 = 1024;

impl Reader<'_> {
    /// Refuses jobs with too many roles or replicas. `roles` are the replicas of each, and where that is written.
    pub(crate) fn check_total(&mut self, roles: impl Iterator<Item = (u32, Span)>) {
        let (mut total, mut count, mut last) = (0u64, 0usize, None);
        for (replicas, at) in roles {
            (total, count, last) = (total + u64::from(replicas), count + 1, Some(at));
        }
        if let Some(at) = last.filter(|_| total > u64::from(MAX_REPLICAS) || count > usize::from(u16::MAX)) {
            let message = format!("too many replicas: {total} in total");
            self.error(Code::F0013, at, message, format!("at most {MAX_REPLICAS}"));
        }
    }
}
