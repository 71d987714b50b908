//! The restart policy: whether a failed group may start again, and after how long.

use std::time::Duration;

use crate::model::{Blame, ExitClass, Restart, Timestamp};

/// Times of past restarts, by kind of failure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Past([Vec<Timestamp>; 2]);

impl Past {
    pub fn new(times: impl Fn(Blame) -> Vec<Timestamp>) -> Self {
        Self([Blame::User, Blame::Platform].map(times))
    }

    pub fn of(&self, blame: Blame) -> &[Timestamp] {
        &self.0[blame as usize]
    }

    /// The back-off before one more restart after a failure of this class; `None` when there is none, or the budget is
    /// spent.
    pub fn delay(&self, rule: &Restart, class: ExitClass, now: Timestamp, seed: u64) -> Option<Duration> {
        let backoff = || delay(&rule.of(class.blame()), self.of(class.blame()), now, seed);
        match class {
            ExitClass::Permanent => None,
            ExitClass::Unknown | ExitClass::Transient => backoff(),
            ExitClass::Conflict => backoff().map(|_| conflict(seed)),
        }
    }

    /// Records one more restart, at the time that the journal has for it.
    pub fn spend(&mut self, rule: &Restart, blame: Blame, now: Timestamp) {
        let past = &mut self.0[blame as usize];
        past.retain(|at| counts(rule, *at, now));
        past.push(now);
    }
}

/// The shortest delay after a conflict, and by how much it may be longer: 1 to 15 minutes.
const CONFLICT: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(840));

/// A delay after which jobs that waited for each other's resources do not meet again.
fn conflict(seed: u64) -> Duration {
    let (shortest, range) = CONFLICT;
    shortest + Duration::from_micros(mix(seed) % range.as_micros() as u64)
}

/// The back-off before the next start; `None` when the budget is spent. `past` holds the times of earlier restarts. The
/// caller supplies the seed: nothing is random here.
pub fn delay(policy: &Restart, past: &[Timestamp], now: Timestamp, seed: u64) -> Option<Duration> {
    let counted = past.iter().filter(|at| counts(policy, **at, now)).count() as u32;
    if counted >= policy.max {
        return None;
    }
    let times = 1u32.checked_shl(counted).unwrap_or(u32::MAX);
    let longest = policy.backoff.saturating_mul(times).min(policy.max_backoff);
    // Jitter: jobs that lost the same file server must not all restart at the same moment.
    let share = (longest.as_micros() / 4 * u128::from(mix(seed) >> 32)) >> 32;
    Some(longest.saturating_sub(Duration::from_micros(share as u64)))
}

/// True if a restart at that time still counts against the budget.
pub fn counts(policy: &Restart, at: Timestamp, now: Timestamp) -> bool {
    policy.window.is_none_or(|window| now.since(at) < window)
}

/// The mixing step of `SplitMix64`: neighbouring seeds give unrelated numbers.
fn mix(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use ExitClass::{Conflict, Permanent, Transient, Unknown};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn the_delay_doubles_up_to_its_limit() {
        let policy = Restart { max: 100, ..Restart::default() };
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..50 {
            for (past, longest) in [(0, 1), (1, 2), (2, 4), (4, 16), (5, 30), (40, 30), (99, 30)] {
                let delay = delay(&policy, &vec![at(0); past], at(9), seed).unwrap();
                let longest = SECOND * longest;
                assert!((longest * 3 / 4..=longest).contains(&delay), "{delay:?} after {past}");
                seen.insert(delay);
            }
        }
        assert!(seen.len() > 200, "the seeds make no difference");
        let none = Restart { backoff: Duration::ZERO, ..policy };
        for past in 0..100 {
            assert_eq!(delay(&none, &vec![at(0); past], at(0), 1), Some(Duration::ZERO), "after {past}");
        }
        let endless = Restart { backoff: Duration::MAX, max_backoff: Duration::MAX, ..policy };
        assert!(delay(&endless, &[at(0)], at(0), 1).is_some(), "no size overflows");
    }

    #[test]
    fn the_class_decides() {
        let rule = Restart {
            max: 1,
            max_platform: 2,
            backoff: Duration::ZERO,
            platform_backoff: Some(SECOND),
            ..Restart::default()
        };
        let past = |user: usize, platform: usize| {
            Past::new(|blame| vec![at(1); if blame == Blame::User { user } else { platform }])
        };
        let range = |from: u64, to: u64| Some((SECOND * from as u32, SECOND * to as u32));
        for (class, spent, expected) in [
            (Permanent, (0, 0), None),
            (Unknown, (0, 0), range(0, 0)),
            (Unknown, (0, 9), range(0, 0)),
            (Unknown, (1, 0), None),
            (Transient, (9, 0), range(0, 1)),
            (Transient, (9, 1), range(1, 2)),
            (Transient, (0, 2), None),
            (Conflict, (9, 1), range(60, 900)),
            (Conflict, (0, 2), None),
        ] {
            let delays: Vec<_> = (0..100).map(|seed| past(spent.0, spent.1).delay(&rule, class, at(9), seed)).collect();
            let Some((from, to)) = expected else {
                assert!(delays.iter().all(Option::is_none), "{class:?} {spent:?}");
                continue;
            };
            let fits = |delay: &Option<Duration>| delay.is_some_and(|delay| (from..=to).contains(&delay));
            assert!(delays.iter().all(fits), "{class:?} {spent:?} {delays:?}");
        }
    }

    #[test]
    fn the_budget() {
        let policy = Restart { max: 2, ..Restart::default() };
        let window = Restart { window: Some(SECOND * 10), ..policy };
        for (policy, past, allowed) in [
            (Restart::default(), vec![], false),
            (policy, vec![], true),
            (policy, vec![at(1)], true),
            (policy, vec![at(1), at(2)], false),
            (window, vec![at(95), at(96)], false),
            (window, vec![at(90), at(96)], true),
            (window, vec![at(1), at(2), at(3), at(99)], true),
        ] {
            assert_eq!(delay(&policy, &past, at(100), 7).is_some(), allowed, "{policy:?} {past:?}");
        }
        // Restarts outside the window no longer lengthen the back-off.
        assert!(delay(&window, &[at(1), at(2), at(3)], at(100), 7).unwrap() <= SECOND);
        assert_eq!((policy.attempts(), window.attempts()), (Some(3), None));
    }
}
