//! Refused nodes on the coordinator's console: the first few in full, the others as a number. Without a token, any
//! process that knows the job id can be refused as often as it likes.

use std::net::IpAddr;
use std::time::Duration;

use super::super::messages::RefusalKind;
use crate::model::Timestamp;

/// Refusals shown in full.
const IN_FULL: usize = 8;
/// The shortest and the longest time between two numbers.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

#[derive(Debug, Clone, Default)]
pub(super) struct Refusals {
    /// Those shown in full.
    shown: Vec<(IpAddr, RefusalKind)>,
    last: Option<Timestamp>,
    /// Those not shown yet.
    more: u64,
    /// When the next number is due, and the time after that until the following one.
    next: Option<(Timestamp, Duration)>,
}

impl Refusals {
    /// True if this refusal is shown in full; otherwise it is counted. After a longest interval without a refusal, the
    /// same one is new again.
    pub(super) fn is_new(&mut self, address: IpAddr, kind: RefusalKind, now: Timestamp) -> bool {
        if self.more == 0 && self.last.is_some_and(|last| now >= last + INTERVAL.1) {
            *self = Self::default();
        }
        self.last = Some(now);
        if self.shown.len() < IN_FULL && !self.shown.contains(&(address, kind)) {
            self.shown.push((address, kind));
            return true;
        }
        // The first one may have company.
        let (next, interval) = self.next.unwrap_or((now, INTERVAL.0));
        let next = if self.more == 0 { next.max(now + INTERVAL.0) } else { next };
        self.next = Some((next, interval));
        self.more += 1;
        false
    }

    /// The number of refusals since the last one that was shown, if it is time to show it.
    pub(super) fn due(&mut self, now: Timestamp) -> Option<u64> {
        let (_, interval) = self.next.filter(|(at, _)| now >= *at)?;
        let count = self.rest()?;
        let interval = (interval * 2).min(INTERVAL.1);
        self.next = Some((now + interval, interval));
        Some(count)
    }

    /// The same at the end.
    pub(super) fn rest(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.more)).filter(|more| *more > 0)
    }
}
