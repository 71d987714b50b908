//! Rules that hold in every job, checked by replaying its journal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use umiak_core::facts::Outcome;
use umiak_core::machine::round::messages::{Decision, Why};
use umiak_core::model::Timestamp;

use super::journal::Entry;
use super::world::Run;

/// The rules, each with what it requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// At most one node is a coordinator that may start ranks.
    OneCoordinator,
    /// Ranks of two attempts never run at once, unless those of the older one have been ordered to stop.
    OneSide,
    /// Ranks end within the grace after they were ordered to stop, and no rank is left over.
    NoRank,
    /// The number of an attempt is greater than those of all attempts before, on each node and for each of its members.
    Attempts,
    /// Failures of ranks cost restarts, over all coordinators; nothing else does.
    Budget,
    /// When all is well again and there are enough nodes, ranks run soon.
    Runs,
    /// It then succeeds, or ends because its restarts are spent. Every node ends.
    Ends,
    /// No machine is woken repeatedly without need.
    Wakes,
}

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.message)
    }
}

/// Everything that is wrong with a job.
pub(super) fn check(run: &Run) -> Vec<Violation> {
    let mut judge = Judge {
        run,
        violations: Vec::new(),
        here: BTreeSet::new(),
        leaving: BTreeSet::new(),
        ranks: BTreeMap::new(),
        last: BTreeMap::new(),
        reigns: BTreeSet::new(),
        restarts: 0,
        started: 0,
        fails: None,
        is_decided: false,
        runs: None,
        present: None,
    };
    for (at, entry) in &run.journal {
        judge.pass(*at);
        judge.apply(*at, entry);
    }
    judge.pass(run.scenario.bound());
    judge.finish();
    judge.violations
}

struct Ranks {
    attempt: u32,
    /// Since when they are being stopped.
    stopping: Option<Timestamp>,
}

struct Judge<'run> {
    run: &'run Run,
    violations: Vec<Violation>,
    here: BTreeSet<usize>,
    leaving: BTreeSet<usize>,
    ranks: BTreeMap<usize, Ranks>,
    /// The last attempt of each launch.
    last: BTreeMap<usize, u32>,
    reigns: BTreeSet<usize>,
    restarts: u32,
    /// The last attempt that was started.
    started: u32,
    /// The coordinator that has decided on a restart. If it is lost before the start, the restart is not counted.
    fails: Option<usize>,
    /// True once a coordinator has ended the job.
    is_decided: bool,
    /// When ranks first ran, after all was well.
    runs: Option<Timestamp>,
    /// The launches that are there when all is well.
    present: Option<BTreeSet<usize>>,
}

impl Judge<'_> {
    fn check(&mut self, holds: bool, rule: Rule, message: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation { rule, message: message() });
        }
    }

    /// Time passes until this entry.
    fn pass(&mut self, at: Timestamp) {
        let quiet = self.run.scenario.quiet;
        if at > quiet && self.present.is_none() {
            self.present = Some(self.here.difference(&self.leaving).copied().collect());
            if self.ranks.values().any(|ranks| ranks.stopping.is_none()) {
                self.runs = Some(quiet);
            }
        }
    }

    fn apply(&mut self, now: Timestamp, entry: &Entry) {
        match entry {
            Entry::Came { front } => {
                self.here.insert(*front);
            }
            Entry::Leaves { front } => {
                self.leaving.insert(*front);
            }
            Entry::Left { front, .. } => {
                self.here.remove(front);
            }
            Entry::Died { front } => {
                self.here.remove(front);
                // The guardian gives them the grace again.
                if let Some(ranks) = self.ranks.get_mut(front) {
                    ranks.stopping = Some(now);
                }
            }
            Entry::Fault(_) | Entry::Failed { .. } => {}
            Entry::Leads { front, revision, restarts } => {
                // Restarts of which it has not heard are not counted, nor any by a newcomer.
                self.restarts = self.restarts.min(*restarts);
                // One that was lost before the start is not known to the next coordinator.
                self.fails = None;
                let others = self.reigns.clone();
                self.check(others.is_empty(), Rule::OneCoordinator, || {
                    format!("{front} leads by revision {revision} while {others:?} still do, at {now:?}")
                });
                self.reigns.insert(*front);
            }
            Entry::Reigned { front } => {
                self.reigns.remove(front);
            }
            Entry::Started { front, start, members } => {
                let max = self.run.scenario.restart.max;
                self.started = start.attempt;
                self.restarts += u32::from(self.fails.take() == Some(*front));
                let restarts = self.restarts;
                self.check(restarts <= max, Rule::Budget, || format!("{restarts} restarts of {max}"));
                let before = members.iter().filter_map(|member| self.last.get(member)).max().copied();
                self.check(before.is_none_or(|before| start.attempt > before), Rule::Attempts, || {
                    format!("{front} starts attempt {}, after attempt {before:?} of its members", start.attempt)
                });
            }
            Entry::Decided { front, decision } => self.decided(*front, decision),
            Entry::Spawned { front, attempt } => self.spawned(now, *front, *attempt),
            Entry::Stopping { front, .. } => {
                if let Some(ranks) = self.ranks.get_mut(front) {
                    ranks.stopping.get_or_insert(now);
                }
            }
            Entry::Ended { front, .. } => {
                let since = self.ranks.remove(front).and_then(|ranks| ranks.stopping);
                let due = since.map(|since| since + self.run.grace(*front));
                self.check(due.is_none_or(|due| now <= due), Rule::NoRank, || {
                    format!("ranks of {front} ended at {now:?}, which was due at {due:?}")
                });
            }
        }
    }

    fn spawned(&mut self, now: Timestamp, front: usize, attempt: u32) {
        let own = self.ranks.get(&front).map(|ranks| ranks.attempt);
        self.check(own.is_none(), Rule::OneSide, || {
            format!("{front} starts attempt {attempt} while ranks of {own:?} run there")
        });
        let others = self.ranks.iter().filter(|(_, ranks)| ranks.attempt != attempt && ranks.stopping.is_none());
        let others: Vec<(usize, u32)> = others.map(|(front, ranks)| (*front, ranks.attempt)).collect();
        self.check(others.is_empty(), Rule::OneSide, || {
            format!("{front} starts attempt {attempt} at {now:?} while these train (launch, attempt): {others:?}")
        });
        let last = self.last.insert(front, attempt);
        self.check(last.is_none_or(|last| attempt > last), Rule::Attempts, || {
            format!("{front} runs attempt {attempt} after {last:?}")
        });
        self.ranks.insert(front, Ranks { attempt, stopping: None });
        if self.present.is_some() {
            self.runs.get_or_insert(now);
        }
    }

    fn decided(&mut self, front: usize, decision: &Decision) {
        let is_failure = matches!(decision.why, Some(Why::RankFailed { .. } | Why::Hung));
        if decision.alone || decision.moves() {
            return;
        }
        if decision.restart.is_none() {
            self.is_decided = true;
        } else if is_failure && decision.attempt >= self.started {
            // An earlier one is repeated for a node that comes back.
            self.fails = Some(front);
        }
    }

    fn finish(&mut self) {
        let run = self.run;
        self.check(!run.spun, Rule::Wakes, || format!("{} steps", run.steps));
        let ranks: Vec<usize> = self.ranks.keys().copied().collect();
        self.check(ranks.is_empty(), Rule::NoRank, || format!("ranks of {ranks:?} live on"));
        let here = self.here.clone();
        self.check(here.is_empty(), Rule::Ends, || format!("{here:?} did not end"));
        let present = self.present.clone().unwrap_or_default();
        let enough = present.len() >= run.scenario.min as usize;
        if !enough || self.is_decided && self.runs.is_none() {
            return;
        }
        let due = run.scenario.quiet + run.scenario.succession();
        let runs = self.runs;
        self.check(runs.is_some_and(|runs| runs <= due), Rule::Runs, || {
            format!(
                "{present:?} are enough at {:?}, and ranks run at {runs:?}, which was due at {due:?}",
                run.scenario.quiet
            )
        });
        let outcome = |front: usize| {
            run.journal.iter().find_map(|(_, entry)| match entry {
                Entry::Left { front: left, outcome } if *left == front => Some(*outcome),
                _ => None,
            })
        };
        let succeeded = present.iter().any(|front| outcome(*front) == Some(Outcome::Succeeded));
        let is_decided = self.is_decided;
        self.check(succeeded || is_decided, Rule::Ends, || format!("{present:?} were enough, and did not succeed"));
    }
}
