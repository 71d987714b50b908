//! When a job hangs: for the limit no replica has written, read or sent anything, and two samples of their stacks are
//! equal. CPU time is no sign of progress: replicas that wait for each other often spin.
//!
//! Counters that cannot be read count as progress: a job is never called hung for what is not known. Stacks are a second
//! opinion only: of programs other than Python none can be read, so missing ones count as unchanged. A replica that waits
//! for its standard input, as in a debugger, is not hung, and others may wait for it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::facts::StackFrame;
use crate::model::{Slot, Timestamp};

/// Time between the two samples of stacks.
const BETWEEN: Duration = Duration::from_secs(5);
/// How long stacks may be read.
const READING: Duration = Duration::from_secs(30);
/// Bounds of the time between two looks.
const OFTEN: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_secs(5);

/// What a running replica has done so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Another process is progress.
    pub pid: u32,
    /// Length of its log.
    pub log: u64,
    /// Bytes read, written, sent and received by its processes, if known.
    pub bytes: Option<u64>,
    /// Its main thread waits for its standard input: the job does not hang, it waits for the user.
    pub awaits_input: bool,
}

/// Of the replicas that run.
pub type Progress = BTreeMap<Slot, Counters>;
/// Of the replicas whose stacks could be read.
pub type Stacks = BTreeMap<Slot, Vec<StackFrame>>;

/// Input of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was time to look. Empty if nothing is watched: no replica runs, or all are being stopped.
    Looked(Progress),
    /// The answer to [`Effect::ReadStacks`].
    Read(Stacks),
    /// Replicas were suspended and resumed: the time without progress counts anew.
    Resumed,
}

/// What the caller must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Read the stacks of all replicas. It may take a while; looks continue.
    ReadStacks,
    /// The job hangs, or no longer does.
    Hung(bool),
}

/// What is known about the progress of one attempt of the job.
#[derive(Debug, Clone)]
pub struct Watch {
    limit: Duration,
    /// When to look again.
    at: Option<Timestamp>,
    last: Progress,
    /// When something last moved.
    moved: Option<Timestamp>,
    /// The first sample of stacks.
    sample: Option<(Timestamp, Stacks)>,
    /// Since when stacks are being read.
    reading: Option<Timestamp>,
    is_hung: bool,
}

impl Watch {
    pub fn new(limit: Duration) -> Self {
        let (at, last, moved, sample) = (None, Progress::new(), None, None);
        Self { limit, at, last, moved, sample, reading: None, is_hung: false }
    }

    /// When to look next; at once if absent.
    pub fn next(&self) -> Option<Timestamp> {
        self.at
    }

    /// True while a report that the job hangs is not withdrawn.
    pub fn is_hung(&self) -> bool {
        self.is_hung
    }

    pub fn step(&mut self, event: Event, now: Timestamp) -> Option<Effect> {
        match event {
            Event::Looked(progress) => self.looked(progress, now),
            Event::Read(stacks) => self.read(stacks, now),
            Event::Resumed => {
                // The next look withdraws a report that they hang.
                *self = Self { is_hung: self.is_hung, ..Self::new(self.limit) };
                None
            }
        }
    }

    fn looked(&mut self, progress: Progress, now: Timestamp) -> Option<Effect> {
        let next = now + interval(self.limit);
        self.at = Some(next);
        if progress.is_empty() || has_moved(&self.last, &progress) {
            let is_withdrawn = std::mem::take(&mut self.is_hung) && !progress.is_empty();
            (self.last, self.moved, self.sample, self.reading) = (progress, Some(now), None, None);
            return is_withdrawn.then_some(Effect::Hung(false));
        }
        let quiet_until = *self.moved.get_or_insert(now) + self.limit;
        if now < quiet_until || self.is_hung {
            return None;
        }
        if let Some(since) = self.reading {
            // A reader that does not return is blocked by what hangs: nothing is known of the stacks.
            return if now < since + READING { None } else { self.read(Stacks::new(), now) };
        }
        if let Some(second) = self.sample.as_ref().map(|(taken, _)| *taken + BETWEEN).filter(|at| now < *at) {
            self.at = Some(next.min(second));
            return None;
        }
        self.reading = Some(now);
        Some(Effect::ReadStacks)
    }

    /// Stacks that were read before something moved are ignored.
    fn read(&mut self, stacks: Stacks, now: Timestamp) -> Option<Effect> {
        self.reading.take()?;
        self.is_hung = self.sample.as_ref().is_some_and(|(_, first)| are_alike(first, &stacks));
        self.sample = Some((now, stacks));
        self.is_hung.then_some(Effect::Hung(true))
    }
}

/// Time between two looks.
pub(super) fn interval(limit: Duration) -> Duration {
    (limit / 10).clamp(OFTEN, SELDOM)
}

/// True if something has changed, or may have.
fn has_moved(last: &Progress, current: &Progress) -> bool {
    last != current || current.values().any(|counters| counters.bytes.is_none() || counters.awaits_input)
}

/// True unless a replica in both samples has another stack. A stack that could not be read says nothing.
fn are_alike(first: &Stacks, second: &Stacks) -> bool {
    second.iter().all(|(slot, stack)| first.get(slot).is_none_or(|other| other == stack))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(millis * 1000)
    }

    fn slot(index: u32) -> Slot {
        Slot { role: 0, index }
    }

    /// Two replicas, of which the second has moved this many bytes.
    fn looked(bytes: impl Into<Option<u64>>) -> Event {
        let counters = |bytes| Counters { pid: 7, log: 100, bytes, awaits_input: false };
        Event::Looked(Progress::from([(slot(0), counters(Some(1))), (slot(1), counters(bytes.into()))]))
    }

    fn read(lines: &[(u32, u32)]) -> Event {
        let stack = |line| vec![StackFrame { function: "step".to_owned(), file: "train.py".to_owned(), line }];
        Event::Read(lines.iter().map(|(index, line)| (slot(*index), stack(*line))).collect())
    }

    fn changed(change: impl Fn(&mut Counters)) -> Event {
        let Event::Looked(mut progress) = looked(5) else { return Event::Resumed };
        progress.entry(slot(1)).and_modify(change);
        Event::Looked(progress)
    }

    const READ: Option<Effect> = Some(Effect::ReadStacks);
    const HUNG: Option<Effect> = Some(Effect::Hung(true));
    const MOVES: Option<Effect> = Some(Effect::Hung(false));

    type Story = (&'static str, Vec<(u64, Event, Option<Effect>)>);

    /// Each story begins with a look at 0 and one at 9 s, and the limit is 10 s.
    #[test]
    fn a_job_hangs_if_nothing_moves_and_no_stack_changes() {
        let nothing = || Event::Looked(Progress::new());
        let other_pid = || changed(|counters| counters.pid = 8);
        let in_debugger = || changed(|counters| counters.awaits_input = true);
        let stories: Vec<Story> = vec![
            (
                "it hangs, and is reported once",
                vec![
                    (10_000, looked(5), READ),
                    (10_500, looked(5), None),
                    (11_000, read(&[(0, 3), (1, 4)]), None),
                    (15_900, looked(5), None),
                    (16_000, looked(5), READ),
                    (16_500, read(&[(0, 3), (1, 4)]), HUNG),
                    (30_000, looked(5), None),
                ],
            ),
            (
                "stacks of programs other than Python cannot be read",
                vec![
                    (10_000, looked(5), READ),
                    (10_000, read(&[]), None),
                    (15_000, looked(5), READ),
                    (15_000, read(&[]), HUNG),
                ],
            ),
            (
                "only stacks in both samples are compared",
                vec![
                    (10_000, looked(5), READ),
                    (10_000, read(&[(0, 3)]), None),
                    (15_000, looked(5), READ),
                    (15_000, read(&[(1, 4)]), HUNG),
                ],
            ),
            (
                "a stack changes: the second sample is the first of the next pair",
                vec![
                    (10_000, looked(5), READ),
                    (10_000, read(&[(0, 3), (1, 4)]), None),
                    (15_000, looked(5), READ),
                    (15_000, read(&[(0, 3), (1, 5)]), None),
                    (20_000, looked(5), READ),
                    (20_000, read(&[(0, 3), (1, 5)]), HUNG),
                ],
            ),
            (
                "something moves while stacks are read",
                vec![
                    (10_000, looked(5), READ),
                    (11_000, looked(6), None),
                    (11_500, read(&[(0, 3)]), None),
                    (20_900, looked(6), None),
                    (21_000, looked(6), READ),
                ],
            ),
            (
                "something moves between the samples",
                vec![
                    (10_000, looked(5), READ),
                    (10_000, read(&[(0, 3)]), None),
                    (12_000, looked(6), None),
                    (15_000, looked(6), None),
                    (22_000, looked(6), READ),
                ],
            ),
            (
                "the reader of stacks is blocked itself",
                vec![
                    (10_000, looked(5), READ),
                    (39_900, looked(5), None),
                    (40_000, looked(5), None),
                    (45_000, looked(5), READ),
                    (75_000, looked(5), HUNG),
                ],
            ),
            ("counters that cannot be read", vec![(10_000, looked(None), None), (60_000, looked(None), None)]),
            ("a restarted replica", vec![(10_000, other_pid(), None), (19_000, other_pid(), None)]),
            (
                "a replica waits for input",
                vec![
                    (10_000, in_debugger(), None),
                    (60_000, in_debugger(), None),
                    (61_000, looked(5), None),
                    (70_900, looked(5), None),
                    (71_000, looked(5), READ),
                ],
            ),
            (
                "the report is withdrawn",
                vec![
                    (10_000, looked(5), READ),
                    (10_000, read(&[]), None),
                    (15_000, looked(5), READ),
                    (15_000, read(&[]), HUNG),
                    (40_000, looked(6), MOVES),
                    (41_000, looked(6), None),
                ],
            ),
            (
                "a resumed job counts anew, and its report is withdrawn",
                vec![
                    (10_000, looked(5), READ),
                    (10_000, read(&[]), None),
                    (15_000, looked(5), READ),
                    (15_000, read(&[]), HUNG),
                    (15_500, Event::Resumed, None),
                    (16_000, looked(5), MOVES),
                    (25_900, looked(5), None),
                    (26_000, looked(5), READ),
                ],
            ),
            (
                "nothing is watched during a stop",
                vec![
                    (10_000, looked(5), READ),
                    (10_500, nothing(), None),
                    (11_000, read(&[]), None),
                    (20_000, looked(5), None),
                    (29_000, looked(5), None),
                ],
            ),
        ];
        for (name, story) in stories {
            let mut watch = Watch::new(Duration::from_secs(10));
            assert_eq!(watch.step(looked(5), at(0)), None);
            assert_eq!(watch.step(looked(5), at(9_000)), None);
            for (millis, event, expected) in story {
                assert_eq!(watch.step(event, at(millis)), expected, "{name}, at {millis} ms");
            }
        }
    }

    #[test]
    fn looks_are_seldom_but_the_second_sample_is_in_time() {
        let mut watch = Watch::new(Duration::from_secs(600));
        assert_eq!(watch.next(), None);
        watch.step(looked(5), at(0));
        assert_eq!(watch.next(), Some(at(5_000)));
        assert_eq!(watch.step(looked(5), at(600_000)), READ);
        watch.step(read(&[]), at(602_000));
        assert_eq!(watch.step(looked(5), at(605_000)), None);
        assert_eq!(watch.next(), Some(at(607_000)));
        assert_eq!(interval(Duration::from_millis(300)), OFTEN);
    }
}
