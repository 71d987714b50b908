//! Pending timers. Finding the next one costs the same however many there are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use umiak_core::machine::job::Timer;
use umiak_core::model::Timestamp;

/// Timers, each with the attempt for which it was armed.
#[derive(Debug, Default)]
pub(super) struct Timers {
    armed: BTreeMap<Timer, (u32, Timestamp)>,
    by_time: BTreeSet<(Timestamp, Timer)>,
}

impl Timers {
    pub(super) fn arm(&mut self, timer: Timer, attempt: u32, at: Timestamp) {
        self.disarm(timer);
        self.armed.insert(timer, (attempt, at));
        self.by_time.insert((at, timer));
    }

    pub(super) fn disarm(&mut self, timer: Timer) {
        if let Some((_, at)) = self.armed.remove(&timer) {
            self.by_time.remove(&(at, timer));
        }
    }

    pub(super) fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns the first timer that is due. One at a time, because handling one may disarm others.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<(Timer, u32)> {
        let (at, timer) = *self.by_time.first().filter(|(at, _)| *at <= now)?;
        self.by_time.remove(&(at, timer));
        self.armed.remove(&timer).map(|(attempt, _)| (timer, attempt))
    }

    /// Keeps only the job's deadline, for another attempt of the whole job.
    pub(super) fn keep_deadline(&mut self) {
        self.armed.retain(|timer, _| *timer == Timer::Deadline);
        self.by_time.retain(|(_, timer)| *timer == Timer::Deadline);
    }

    /// Postpones all timers by the time that the run was suspended.
    pub(super) fn postpone(&mut self, by: Duration) {
        for (_, at) in self.armed.values_mut() {
            *at = *at + by;
        }
        self.by_time = self.armed.iter().map(|(timer, (_, at))| (*at, *timer)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn one_that_an_earlier_one_disarmed_does_not_fire() {
        let mut timers = Timers::default();
        timers.arm(Timer::Grace, 0, at(5));
        timers.arm(Timer::Settle, 1, at(3));
        assert_eq!(timers.next(), Some(at(3)));
        assert_eq!(timers.take_due(at(2)), None);
        assert_eq!(timers.take_due(at(9)), Some((Timer::Settle, 1)));
        timers.disarm(Timer::Grace);
        assert_eq!((timers.take_due(at(9)), timers.next()), (None, None));
    }

    #[test]
    fn armed_again_it_is_due_once() {
        let mut timers = Timers::default();
        timers.arm(Timer::Grace, 0, at(5));
        timers.arm(Timer::Grace, 1, at(8));
        timers.postpone(Duration::from_micros(2));
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.take_due(at(10)), Some((Timer::Grace, 1)));
        assert_eq!(timers.take_due(at(10)), None);
    }
}
