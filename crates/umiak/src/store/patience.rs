//! When the clients of a store that wait are reported.
//!
//! The first report comes when a client has waited for [`PATIENCE`]; later ones when something has changed, at most one
//! in [`BETWEEN`]. Without a change there is no timer.

use std::time::{Duration, Instant};

use super::StoreId;
use super::news::{Client, StoreNews};

/// A shorter wait is not reported.
pub(crate) const PATIENCE: Duration = Duration::from_secs(4);
/// Between two reports.
const BETWEEN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Patience {
    /// The last report.
    told: Option<Told>,
    /// A client came, went, began to wait or stopped since the last look.
    pub(super) has_changed: bool,
}

#[derive(Debug)]
struct Told {
    at: Instant,
    report: Report,
}

/// Who waits for what.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) connected: Vec<Client>,
    /// With the beginning of each wait, the longest first.
    pub(super) waiting: Vec<(Client, Instant)>,
    pub(super) keys: Vec<(Vec<u8>, usize)>,
}

impl Report {
    fn says_the_same_as(&self, other: &Self) -> bool {
        let waiting = |report: &Self| report.waiting.iter().map(|(client, _)| *client).collect::<Vec<_>>();
        self.connected == other.connected && self.keys == other.keys && waiting(self) == waiting(other)
    }
}

impl Patience {
    /// When to look, if `longest` is the beginning of the longest wait.
    pub(super) fn deadline(&self, longest: Option<Instant>) -> Option<Instant> {
        match &self.told {
            None => longest.map(|since| since + PATIENCE),
            Some(told) => self.has_changed.then(|| told.at + BETWEEN),
        }
    }

    /// Looks, at the time of [`deadline`](Self::deadline) or later.
    pub(super) fn look(
        &mut self,
        store: StoreId,
        longest: Option<Instant>,
        now: Instant,
        report: Report,
    ) -> Option<StoreNews> {
        self.has_changed = false;
        if longest.is_none_or(|since| since + PATIENCE > now) {
            return self.told.take().map(|_| StoreNews::Flowing { store });
        }
        let is_new = self.told.as_ref().is_none_or(|told| !told.report.says_the_same_as(&report));
        let news = is_new.then(|| StoreNews::Waiting {
            store,
            connected: report.connected.clone(),
            waiting: report.waiting.iter().map(|(client, since)| (*client, now.duration_since(*since))).collect(),
            keys: report.keys.clone(),
        });
        self.told = Some(Told { at: now, report });
        news
    }
}
