//! Conditions between two attempts.

use std::time::Duration;

use umiak_core::facts::StopReason;
use umiak_core::machine::job::Timer;
use umiak_core::model::{Exit, Timestamp};

use super::invariants::Rule;
use super::judge::{Judge, Shadow};
use super::timeline::Step;

/// The expected state between two attempts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pause {
    since: Timestamp,
    pub(super) delay: Duration,
    /// Whether preparation was requested, and the answer.
    asked: bool,
    pub(super) ready: Option<bool>,
}

impl Judge<'_> {
    /// True if an answer about this attempt is awaited.
    pub(super) fn awaits(&self, attempt: u32) -> bool {
        attempt == self.attempt + 1 && self.pause.is_some_and(|pause| pause.asked && pause.ready.is_none())
    }

    /// The longest back-off that the policy allows now; `None` if there must be no restart.
    fn longest_backoff(&self, now: Timestamp) -> Option<Duration> {
        let policy = self.run.scenario.job.policy.restart;
        let recent = |at: &&Timestamp| policy.window.is_none_or(|window| **at + window > now);
        let counted = self.restarts.iter().filter(recent).count();
        let hopeless = |shadow: &Shadow| {
            shadow.abandoned || shadow.end.as_ref().is_none_or(|end| matches!(end.exit, Exit::Spawn(_)))
        };
        let possible = self.strongest == Some(StopReason::PeerFailed)
            && self.live().is_empty()
            && self.reported
            && !self.guardian_lost
            && !self.shadows.iter().any(hopeless);
        let longest = (0..counted).fold(policy.backoff, |delay, _| delay * 2).min(policy.max_backoff);
        (possible && counted < policy.max as usize).then_some(longest)
    }

    pub(super) fn see_restarting(&mut self, step: &Step, attempt: u32, of: Option<u32>, delay: Duration) {
        let longest = self.longest_backoff(step.at).filter(|_| self.pause.is_none());
        let policy = self.run.scenario.job.policy.restart;
        let attempts = if policy.window.is_some() { None } else { Some(policy.max + 1) };
        let fits = longest.is_some_and(|longest| (longest * 3 / 4..=longest).contains(&delay));
        let told = attempt == self.attempt + 1 && of == attempts;
        self.check(fits && told, Rule::Restart, || format!("attempt {attempt} of {of:?} after {delay:?}: {longest:?}"));
        let reported = self.reported;
        self.check(reported, Rule::Report, || "the failure was not reported".into());
        let open = self.live().len();
        self.check(open == 0, Rule::OneEnd, || format!("{open} starts without an end"));
        self.check_bound(step.at);
        self.restarts.push(step.at);
        self.pause = Some(Pause { since: step.at, delay, asked: false, ready: None });
        self.stop = None;
        self.strongest = None;
        self.killed_at = None;
        self.timers.clear();
    }

    pub(super) fn see_prepare(&mut self, attempt: u32) {
        let right = attempt == self.attempt + 1 && self.pause.is_some_and(|pause| !pause.asked);
        self.check(right, Rule::Restart, || format!("room was made for attempt {attempt}"));
        if let Some(pause) = &mut self.pause {
            pause.asked = true;
        }
    }

    /// The first start of the next attempt is recorded.
    pub(super) fn see_next_attempt(&mut self, step: &Step) {
        let Some(pause) = self.pause.take() else { return };
        let waited = step.at >= pause.since + pause.delay && self.timers.get(&Timer::Backoff) == Some(&true);
        let allowed = waited && pause.ready == Some(true) && self.stop.is_none() && !self.guardian_lost;
        self.check(allowed, Rule::Restart, || format!("started again after {pause:?}"));
        self.attempt += 1;
        self.shadows = vec![Shadow::default(); self.shadows.len()];
        self.gather = None;
        self.verdict = None;
        self.reported = false;
        self.timers.clear();
    }

    /// Conditions after a step in a pause.
    pub(super) fn settle_pause(&mut self) {
        let Some(pause) = self.pause else { return };
        let armed = self.timers.get(&Timer::Backoff).copied();
        self.check(pause.asked && armed.is_some(), Rule::Restart, || "nothing is done for the next attempt".into());
        let due = self.stop.is_some() || self.guardian_lost || pause.ready == Some(false);
        self.check(!due, Rule::Finish, || "all is over and nothing happens".into());
        let ready = armed == Some(true) && pause.ready == Some(true);
        self.check(!ready, Rule::Restart, || "the next attempt is due and does not start".into());
    }

    /// Checks that the run may end with this attempt.
    pub(super) fn see_last_attempt(&mut self, step: &Step) {
        let owed = self.pause.is_none() && self.longest_backoff(step.at).is_some();
        self.check(!owed, Rule::Restart, || "ended though another attempt was allowed".into());
        if let Some(pause) = self.pause {
            let reason = self.stop.is_some() || self.guardian_lost || pause.ready == Some(false);
            self.check(reason, Rule::Restart, || format!("no reason to give up: {pause:?}"));
        }
    }
}
