//! How large a job may be, in any format.

use super::reader::{At, Reader};
use super::tree::Node;
use crate::diag::{Code, Span};
use crate::model::Restart;

pub const MAX_REPLICAS: u32 = 100_000;
/// Maximum number of ports of one replica.
pub const MAX_PORTS: u16 = 1024;
/// Maximum number of restarts, unless they are unlimited.
pub const MAX_RESTARTS: u32 = 1_000_000;
/// The word for restarts without a limit.
pub const UNLIMITED: &str = "unlimited";

impl Reader<'_> {
    /// A number of restarts, or `unlimited`.
    pub(crate) fn restarts(&mut self, what: &str, node: &Node) -> Option<At<u32>> {
        match node.text() {
            Some(UNLIMITED) => Some(At { value: Restart::UNLIMITED, at: node.at }),
            _ => self.number(what, node, 0, MAX_RESTARTS),
        }
    }

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
