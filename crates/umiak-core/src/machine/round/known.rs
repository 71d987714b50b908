//! What a node of a job over etcd knows of the job: its number, its range of nodes, and whether it has ended.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::facts::Outcome;
use crate::model::{MAX_NODES, Scaling};

/// The fewest and the most nodes.
pub type Range = (u32, u32);

/// How a job ended, for nodes that have not heard it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Tells it from other jobs of the same name.
    pub job: u64,
    pub outcome: Outcome,
    pub code: u8,
}

/// The knowledge of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Known {
    /// Which job this node takes part in, once it is known.
    job: Option<u64>,
    /// The number of nodes in etcd, and whether it stays there.
    range: Option<Range>,
    expires: bool,
    /// There was a job of this name, which has not ended: ranks of it may run.
    has_past: bool,
    /// How the last job of this name ended.
    end: Option<End>,
}

/// The key with the number of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeKey<'a> {
    pub value: &'a [u8],
    /// It has a lease.
    pub expires: bool,
}

/// What a new coordinator takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Takeover {
    /// True for the first coordinator of a job.
    pub is_new: bool,
    /// The number of nodes in etcd, if it was changed there.
    pub range: Option<Range>,
    /// True if a job that did not end was there before: ranks that this node knows nothing of may run.
    pub is_unknown: bool,
}

impl Known {
    /// What a newcomer finds: the number of nodes, the values of the nodes' keys, and the end of the last job.
    pub fn found<'a>(range: Option<RangeKey<'_>>, nodes: impl Iterator<Item = &'a [u8]>, end: Option<End>) -> Self {
        // Nodes of a job that has just lost its coordinator. One that has ended leaves the keys of killed nodes until
        // their leases expire.
        let job = nodes.filter_map(job_of).find(|job| end.is_none_or(|end| end.job != *job));
        let mut known = Self { job, has_past: true, end, ..Self::default() };
        known.scaled(range);
        known
    }

    pub fn job(&self) -> Option<u64> {
        self.job
    }

    pub fn has_past(&self) -> bool {
        self.has_past
    }

    /// Takes part in this job. True if that is new.
    pub fn belong(&mut self, job: u64) -> bool {
        self.job.replace(job) != Some(job)
    }

    /// The end of the job that this node takes part in.
    pub fn over(&self) -> Option<End> {
        self.end.filter(|end| Some(end.job) == self.job)
    }

    pub fn ended(&mut self, end: Option<End>) {
        self.end = end;
    }

    /// The number of nodes was changed, or deleted. Returns it.
    pub fn scaled(&mut self, key: Option<RangeKey<'_>>) -> Option<Range> {
        self.range = key.and_then(|key| read_range(key.value));
        self.expires = key.is_some_and(|key| key.expires);
        self.has_past &= key.is_some();
        self.range
    }

    /// The number of nodes that a new coordinator writes: that of its own command line if the job is new or has none, and
    /// the known one if that would expire, because a node that left last thought that nothing else was there.
    pub fn brings(&self, own: Range) -> Option<Range> {
        match self.range {
            Some(range) if self.job.is_some() => self.expires.then_some(range),
            _ => Some(own),
        }
    }

    /// This node becomes the coordinator.
    pub fn lead(&self) -> Takeover {
        let is_new = self.job.is_none();
        Takeover { is_new, range: self.range.filter(|_| !is_new), is_unknown: !is_new || self.has_past }
    }
}

/// How the number of nodes of a running job and the one of a newcomer's command line agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    Agreed,
    /// The one in etcd becomes this one.
    Replace(Range),
    Differs,
}

pub fn agree(found: Range, own: Range, scaling: Scaling) -> Agreement {
    let by = |number: u32, change: i64| {
        u32::try_from((i64::from(number) + change).clamp(1, MAX_NODES.into())).unwrap_or(number)
    };
    match scaling {
        Scaling::Same if found == own => Agreement::Agreed,
        Scaling::Same => Agreement::Differs,
        Scaling::By(change) => Agreement::Replace((by(found.0, change), by(found.1, change))),
        Scaling::Replace => Agreement::Replace(own),
    }
}

/// `2` or `2:4`.
pub fn read_range(value: &[u8]) -> Option<Range> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let number = |text: &str| text.parse().ok().filter(|number| (1..=MAX_NODES).contains(number));
    let (min, max) = match text.split_once(':') {
        Some((min, max)) => (number(min)?, number(max)?),
        None => (number(text)?, number(text)?),
    };
    (min <= max).then_some((min, max))
}

pub fn range_words((min, max): Range) -> String {
    if min == max { min.to_string() } else { format!("{min}:{max}") }
}

/// The value of a node's key: its address, and the number of its job once it is known.
pub fn node_value(address: IpAddr, job: Option<u64>) -> String {
    job.map_or_else(|| address.to_string(), |job| format!("{address} {job}"))
}

/// The job of a node, by the value of its key.
fn job_of(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.split_once(' ')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [&[u8]; 3] = [b"10.0.0.1", b"junk", b"10.0.0.2 7"];

    fn key(value: &str) -> RangeKey<'_> {
        RangeKey { value: value.as_bytes(), expires: false }
    }

    fn end(job: u64) -> End {
        End { job, outcome: Outcome::Succeeded, code: 0 }
    }

    #[test]
    fn a_newcomer_takes_part_in_the_job_of_other_nodes() {
        let known = Known::found(Some(key("2:4")), NODES.into_iter(), Some(end(6)));
        assert_eq!((known.job(), known.over(), known.brings((1, 1))), (Some(7), None, None));
        assert_eq!(known.lead(), Takeover { is_new: false, range: Some((2, 4)), is_unknown: true });
        // The last node that left let it expire.
        let leased = Some(RangeKey { expires: true, ..key("2:4") });
        assert_eq!(Known::found(leased, NODES.into_iter(), None).brings((1, 1)), Some((2, 4)));
        // Nodes of an ended job beside those of the next.
        let both = [b"10.0.0.9 6".as_slice()].into_iter().chain(NODES);
        assert_eq!(Known::found(None, both, Some(end(6))).job(), Some(7));
        // Killed nodes of a job that has ended.
        let known = Known::found(None, NODES.into_iter(), Some(end(7)));
        assert_eq!((known.job(), known.brings((1, 1))), (None, Some((1, 1))));
        assert_eq!(known.lead(), Takeover { is_new: true, range: None, is_unknown: false });
    }

    #[test]
    fn a_number_without_nodes_is_of_a_job_whose_ranks_may_run() {
        let mut known = Known::found(Some(key("3")), std::iter::empty(), None);
        assert_eq!(known.lead(), Takeover { is_new: true, range: None, is_unknown: true });
        assert_eq!(known.scaled(None), None);
        assert!(!known.lead().is_unknown, "it was forgotten");
    }

    #[test]
    fn the_end_concerns_nodes_of_that_job() {
        let mut known = Known::default();
        known.ended(Some(end(7)));
        assert_eq!(known.over(), None);
        assert!(known.belong(7) && !known.belong(7));
        assert_eq!(known.over(), Some(end(7)));
    }

    #[test]
    fn numbers_of_nodes_agree_or_change() {
        let same = |own| agree((2, 4), own, Scaling::Same);
        assert_eq!((same((2, 4)), same((2, 3))), (Agreement::Agreed, Agreement::Differs));
        assert_eq!(agree((2, 4), (9, 9), Scaling::By(1)), Agreement::Replace((3, 5)));
        assert_eq!(agree((2, 4), (9, 9), Scaling::By(-3)), Agreement::Replace((1, 1)));
        assert_eq!(
            agree((2, 4), (9, 9), Scaling::By(i64::from(MAX_NODES))),
            Agreement::Replace((MAX_NODES, MAX_NODES))
        );
        assert_eq!(agree((2, 4), (9, 9), Scaling::Replace), Agreement::Replace((9, 9)));
    }

    #[test]
    fn values_of_keys() {
        for range in [(1, 1), (2, 4), (1, MAX_NODES)] {
            assert_eq!(read_range(range_words(range).as_bytes()), Some(range));
        }
        for junk in [&b"0"[..], b"4:2", b"x", b"", b"\xff", b"1:", b"99999999999"] {
            assert_eq!(read_range(junk), None, "{junk:?}");
        }
        let address = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(job_of(node_value(address, Some(u64::MAX)).as_bytes()), Some(u64::MAX));
        assert_eq!(job_of(node_value(address, None).as_bytes()), None);
    }
}
