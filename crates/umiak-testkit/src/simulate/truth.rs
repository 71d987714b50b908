//! Checks the verdict against the hidden truth, and the exit code.

use std::collections::BTreeSet;

use umiak_core::facts::{Outcome, StopReason, Verdict};
use umiak_core::machine::job::Event;
use umiak_core::model::{Exit, ExitCodes, Generation, SpawnStage};

use super::invariants::Rule;
use super::judge::{Judge, ShadowEnd};
use super::scenario::Words;
use super::timeline::{Death, Run, Step, Why};

impl Run {
    /// Which rank really failed first in an attempt: the earliest bad end that no other process caused.
    pub fn first_cause(&self, attempt: u32) -> Option<usize> {
        let own = |death: &Death| death.why == Why::Own && !death.exit.is_success();
        let dead =
            self.deaths.get(&attempt)?.iter().enumerate().filter_map(|(rank, death)| Some((rank, death.as_ref()?)));
        dead.filter(|(_, death)| own(death)).min_by_key(|(_, death)| death.at).map(|(rank, _)| rank)
    }
}

impl Death {
    /// True if its end is clear evidence: an error of its own, a failed start, a signal from the kernel.
    pub fn is_evident(&self) -> bool {
        self.words == Words::OwnError || matches!(self.exit, Exit::Spawn(_) | Exit::Signal { signal: 7 | 9 | 11, .. })
    }
}

impl Judge<'_> {
    pub(super) fn judge_verdict(&mut self, step: &Step, verdict: &Verdict) {
        let Event::Gathered(gathered) = &step.event else { return };
        let says_terminated = |rank: usize| {
            let slot = self.run.scenario.scripts[rank].slot;
            let found = gathered.iter().find(|other| other.slot == slot).and_then(|found| found.evidence.as_ref());
            found.and_then(|evidence| evidence.signature.as_ref()).is_some_and(|known| known.code == "U9101")
        };
        // Programs that catch our signal exit with a code of their own: a response, not a failure.
        let answers = |rank: usize, end: &ShadowEnd| {
            !end.before_stop && (matches!(end.exit, Exit::Code { code: 130 | 137 | 143 }) || says_terminated(rank))
        };
        let asked = self.gather.as_ref().map(|(ranks, _)| ranks.clone()).unwrap_or_default();
        let eligible: BTreeSet<usize> = asked
            .into_iter()
            .filter(|rank| self.shadows[*rank].end.as_ref().is_some_and(|end| !end.by_us && !answers(*rank, end)))
            .collect();
        let causes: Vec<usize> = verdict.causes.iter().map(|finding| self.subject(&finding.subject)).collect();
        let victims: Vec<usize> = verdict.victims.iter().map(|finding| self.subject(&finding.subject)).collect();
        let named: BTreeSet<usize> = causes.iter().chain(&victims).copied().collect();
        // A clue may point to a rank that did not fail: it was stopped, or ended with 0.
        let is_clued = verdict.causes.iter().any(|finding| finding.clue.is_some());
        let fits = if is_clued { named.is_superset(&eligible) } else { named == eligible };
        let all = fits && named.len() == causes.len() + victims.len();
        self.check(all, Rule::Causes, || format!("causes {causes:?}, victims {victims:?}, ended badly {eligible:?}"));
        let some = causes.is_empty() == eligible.is_empty();
        self.check(some, Rule::Causes, || format!("{} causes for {eligible:?}", causes.len()));
        let order = |rank: &usize| self.shadows[*rank].end.as_ref().map(|end| end.order);
        let sorted = causes.is_sorted_by_key(order);
        self.check(sorted, Rule::Causes, || format!("causes out of order: {causes:?}"));

        let Some(deaths) = self.run.deaths.get(&self.attempt) else { return };
        let Some(first) = self.run.first_cause(self.attempt).filter(|first| eligible.contains(first)) else { return };
        // If the guardian is lost before the notification, the exit status is unknown.
        let heard = self.shadows[first].end.as_ref().is_some_and(|end| end.exit != Exit::Lost);
        if heard && deaths[first].as_ref().is_some_and(Death::is_evident) {
            let named = causes.contains(&first);
            self.check(named, Rule::Truth, || format!("rank {first} was first, named {causes:?}"));
            let innocent = causes.iter().find(|rank| deaths[**rank].as_ref().is_none_or(|death| death.why != Why::Own));
            self.check(innocent.is_none(), Rule::Truth, || format!("rank {innocent:?} did not fail by itself"));
        }
    }

    pub(super) fn judge_code(&mut self, outcome: Outcome, code: u8) {
        let expected = match self.stop.map(|(_, reason)| reason) {
            None if self.pause.is_some() => Outcome::Failed,
            None | Some(StopReason::Completed) => Outcome::Succeeded,
            Some(
                StopReason::PeerFailed
                | StopReason::Resized
                | StopReason::NodeLost
                | StopReason::Hung
                | StopReason::Timeout,
            ) => Outcome::Failed,
            Some(StopReason::StepFailed | StopReason::User) => Outcome::Stopped,
            Some(StopReason::SignalElsewhere { .. } | StopReason::Signal { .. } | StopReason::SecondSignal { .. }) => {
                Outcome::Interrupted
            }
        };
        self.check(outcome == expected, Rule::Code, || format!("{outcome:?} instead of {expected:?}"));
        let style = self.run.scenario.style;
        let signal = self.first_signal.unwrap_or_default();
        let bad = || self.shadows.iter().filter_map(|shadow| shadow.end.as_ref()).find(|end| !end.exit.is_success());
        let expected = match (expected, style.codes, style.generation) {
            (Outcome::Succeeded, ..) => 0,
            (Outcome::Stopped, ..) => 3,
            (_, ExitCodes::Torch, _) | (Outcome::Failed, ExitCodes::Paddle, Generation::Legacy) => 1,
            (Outcome::Interrupted, ExitCodes::Paddle, Generation::Current) => signal,
            (Outcome::Interrupted, ..) => 128 + signal,
            (Outcome::Failed, ExitCodes::Paddle, Generation::Current) => match bad().map(|end| &end.exit) {
                Some(Exit::Signal { signal, .. }) => 256 - signal,
                Some(exit) => number(exit),
                None => 1,
            },
            (Outcome::Failed, ExitCodes::Umiak, _) => {
                let verdict = self.verdict.iter();
                let mut findings = verdict.flat_map(|verdict| verdict.causes.iter().chain(&verdict.victims));
                let found = findings.find(|found| !found.stopped_while_ending && !found.exit.is_success());
                found.map_or(1, |found| number(&found.exit))
            }
        };
        self.check(i32::from(code) == expected, Rule::Code, || format!("code {code} instead of {expected}"));
    }
}

/// The exit code in a shell.
fn number(exit: &Exit) -> i32 {
    match exit {
        Exit::Code { code } => code & 255,
        Exit::Signal { signal, .. } => 128 + signal,
        Exit::Spawn(error) if (error.doing, error.errno) == (SpawnStage::Execute, 2) => 127,
        Exit::Spawn(error) if error.doing == SpawnStage::Execute => 126,
        Exit::Spawn(_) | Exit::Unmet { .. } | Exit::Lost => 125,
        Exit::Evicted { .. }
        | Exit::Preempted { .. }
        | Exit::NodeLost { .. }
        | Exit::NoRoom { .. }
        | Exit::TimeLimit { .. } => 123,
    }
}
