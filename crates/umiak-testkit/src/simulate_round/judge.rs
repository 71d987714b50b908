//! Rules that hold in every round, checked against what the nodes received, how they ended, and the truth.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use umiak_core::facts::Outcome;
use umiak_core::machine::exit_code::TIMED_OUT;
use umiak_core::machine::job::NODE_LOST;
use umiak_core::machine::round::limits::{ANSWER, GOODBYE, TELL};
use umiak_core::machine::round::messages::{Decision, Expects, NodeShare, Start, Why as Reason};
use umiak_core::model::{FIRST_ATTEMPT, Part};

use super::node::REACTION;
use super::scenario::{ABANDON, Fault, GRACE, Kind, LIFE, NOTICE, SETTLE};
use super::servers::ranks_of;
use super::world::{NodeRun, Run};
use crate::simulate::{Death, Why};

/// The rules, each with what it requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Every live node's round ends within the limits, and sooner without faults; so does the coordinator's.
    Ends,
    /// No machine is woken repeatedly without need.
    Wakes,
    /// All nodes that receive the decision on an attempt receive the same one.
    SameDecision,
    /// An attempt starts identically on all nodes, in the right order, once all were ready.
    Start,
    /// Attempt numbers grow by one, and stay within the budget.
    Attempts,
    /// Success only when every rank of the last attempt ended well.
    Success,
    /// The exit code matches the decision.
    Code,
    /// When a rank fails, all nodes are told at once.
    Stop,
    /// A rank that failed by itself is named, and its victims are not.
    Cause,
    /// A lost node is named if no rank is the cause.
    LostNode,
    /// No rank survives its node.
    NoRank,
    /// Short faults do not change the result.
    Gentle,
    /// Trainers start once all servers listen.
    Waits,
    /// Servers are stopped, and their node ends, once the whole job is over.
    Serves,
    /// A round in which a required server died is no success.
    Needed,
    /// An attempt starts when no rank of an earlier one lives on its nodes.
    OneSide,
    /// Failures of ranks cost restarts, changes of members do not.
    Budget,
    /// A node is left out after three failures in a row of its own, or if its ranks cannot start.
    LeftOut,
    /// With enough nodes the next attempt starts at once, the first one after the window; so do nodes that join.
    Prompt,
    /// Nodes keep their numbers, and others fill the gaps.
    Places,
    /// A start says how large the last attempt was, and why it ended.
    Last,
    /// Every connected node ends with the job.
    Spares,
    /// The number of messages grows with the nodes.
    Traffic,
    /// Enough nodes that stay form a job, and no other node ends it.
    Forms,
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

/// Everything that is wrong with a round.
pub(super) fn check(run: &Run) -> Vec<Violation> {
    let mut judge = Judge { run, violations: Vec::new() };
    if run.scenario.is_elastic() {
        judge.ends();
        judge.causes();
        judge.elastic();
        return judge.violations;
    }
    judge.ends();
    judge.starts();
    judge.decisions();
    judge.successes();
    judge.codes();
    judge.stops();
    judge.causes();
    judge.lost_node();
    judge.gentle();
    judge.servers();
    judge.violations
}

mod elastic;
mod servers;

struct Judge<'a> {
    run: &'a Run,
    violations: Vec<Violation>,
}

impl<'a> Judge<'a> {
    fn check(&mut self, holds: bool, rule: Rule, message: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation { rule, message: message() });
        }
    }

    fn ends(&mut self) {
        let run = self.run;
        let scenario = &run.scenario;
        self.check(!run.spun, Rule::Wakes, || format!("{} steps", run.steps));
        let bound = scenario.bound();
        for (index, (script, node)) in scenario.nodes.iter().zip(&run.nodes).enumerate() {
            if script.comes.is_none() || node.died.is_some() {
                continue;
            }
            let in_time = node.left.is_some_and(|left| left <= bound);
            self.check(in_time, Rule::Ends, || format!("node {index} left at {:?}, bound {bound:?}", node.left));
            let mut scripts = node.spawned.iter().flat_map(|(attempt, _)| script.script(*attempt));
            let stuck = scripts.any(|rank| rank.on_kill.is_none());
            let none = node.survivors == 0 || stuck;
            self.check(none, Rule::NoRank, || format!("{} ranks of node {index} live on", node.survivors));
            self.ends_soon(index, node);
        }
        if run.nodes[0].died.is_none() && scenario.nodes[0].comes.is_some() {
            let over = run.coordinator_over;
            let in_time = over.is_some_and(|over| over <= bound);
            self.check(in_time, Rule::Ends, || format!("the coordinator is over at {over:?}"));
        }
    }

    /// A node that has the decision does not wait for anything else.
    fn ends_soon(&mut self, index: usize, node: &NodeRun) {
        let scenario = &self.run.scenario;
        let paused = |fault: &Fault| matches!(fault, Fault::Pause { node, .. } if *node == index);
        if scenario.faults.iter().any(|(_, fault)| paused(fault)) {
            return;
        }
        let stop = SETTLE + GRACE + ABANDON + Duration::from_millis(400);
        let last = node.decisions.iter().rev().find(|(_, decision)| decision.restart.is_none()).map(|(at, _)| *at);
        if let (Some(at), Some((end, ..))) = (last, node.finished) {
            self.check(end <= at + stop, Rule::Ends, || format!("node {index}: decided at {at:?}, over at {end:?}"));
        }
        if let (Some((end, ..)), Some(left), true) = (node.finished, node.left, index > 0) {
            // A last report that crossed a restart, or could not be sent, is sent twice.
            let soon = left <= end + ANSWER * 2;
            self.check(soon, Rule::Ends, || format!("node {index}: over at {end:?}, left at {left:?}"));
        }
        // Without faults, an attempt takes as long as its ranks.
        if scenario.kind == Kind::Calm {
            let ways = Duration::from_millis(scenario.delay * 6);
            let attempt = scenario.start_up()
                + LIFE
                + stop
                + TELL
                + ways
                + scenario.restart.max_backoff
                + Duration::from_millis(300);
            let bound = scenario.quiet_from() + attempt * node.starts.len() as u32 + ways + GOODBYE;
            let late = node.left.is_none_or(|left| left > bound);
            self.check(!late, Rule::Ends, || format!("node {index} took until {:?}, bound {bound:?}", node.left));
        }
    }

    fn starts(&mut self) {
        let run = self.run;
        let mut firsts: BTreeMap<u32, Start> = BTreeMap::new();
        for (index, (script, node)) in run.scenario.nodes.iter().zip(&run.nodes).enumerate() {
            // A disconnected node can miss one.
            let forward = node.starts.is_sorted_by(|(_, one), (_, next)| one.attempt < next.attempt);
            self.check(forward, Rule::Attempts, || format!("node {index}: attempts do not go forward"));
            for (at, start) in &node.starts {
                let counted = start.attempt - FIRST_ATTEMPT <= run.scenario.restart.max;
                self.check(counted, Rule::Attempts, || format!("node {index} starts attempt {}", start.attempt));
                let same = Start { you: 0, ..start.clone() };
                let first = firsts.entry(start.attempt).or_insert_with(|| same.clone()).clone();
                self.check(first == same, Rule::Start, || format!("node {index}: {same:?}\n  others: {first:?}"));
                let you = start.nodes.get(start.you as usize).map(|share| share.launch);
                self.check(you == Some(script.launch), Rule::Start, || {
                    format!("node {index} takes the place of another node")
                });
                for share in &start.nodes {
                    let ready =
                        self.run.scenario.nodes.iter().position(|other| other.launch == share.launch).is_some_and(
                            |other| {
                                run.nodes[other]
                                    .ready
                                    .iter()
                                    .any(|(attempt, since)| *attempt == start.attempt && since <= at)
                            },
                        );
                    self.check(ready, Rule::Start, || format!("{} was not ready for {}", share.host, start.attempt));
                }
            }
            for (attempt, at) in &node.spawned {
                let told = node.starts.iter().any(|(since, start)| start.attempt == *attempt && since <= at);
                self.check(told, Rule::Start, || format!("node {index} started attempt {attempt} by itself"));
            }
        }
        for start in firsts.values() {
            self.order(start);
        }
    }

    fn order(&mut self, start: &Start) {
        let expects = &self.run.scenario.expects;
        let script = |share: &NodeShare| self.run.scenario.nodes.iter().find(|node| node.launch == share.launch);
        let right = start.nodes.len() == expects.nodes()
            && match expects {
                Expects::List(list) => start.nodes.iter().zip(list).all(|(share, address)| share.address == *address),
                // Elastic jobs have rules of their own.
                Expects::Range { .. } => true,
                Expects::Count { sort_ip, .. } => {
                    let ranks: Vec<_> =
                        start.nodes.iter().map(|share| script(share).and_then(|node| node.rank)).collect();
                    if ranks.iter().all(Option::is_some) {
                        ranks.iter().zip(0..).all(|(rank, place)| *rank == Some(place))
                    } else if *sort_ip {
                        start.nodes.is_sorted_by_key(|share| share.address)
                    } else {
                        start.nodes[0].launch == self.run.scenario.nodes[0].launch
                    }
                }
            };
        self.check(right, Rule::Start, || format!("out of order: {:?}", start.nodes));
        let first = &start.nodes[0];
        let serves = |share: &&NodeShare| share.processes.iter().any(|process| process.part == Part::Server);
        let server = start.nodes.iter().find(serves).unwrap_or(first);
        let stores = start.paddle_store.address == server.address && start.torch_store.address == first.address;
        self.check(stores, Rule::Start, || "the stores are not the first node's".into());
    }

    fn decisions(&mut self) {
        let mut firsts: BTreeMap<u32, &Decision> = BTreeMap::new();
        for (index, node) in self.run.nodes.iter().enumerate() {
            for (turn, (_, decision)) in node.decisions.iter().enumerate() {
                let first = *firsts.entry(decision.attempt).or_insert(decision);
                self.check(first == decision, Rule::SameDecision, || {
                    format!("node {index}: {decision:?}\n  others: {first:?}")
                });
                let counted = (decision.attempt - FIRST_ATTEMPT) as usize == turn;
                self.check(counted, Rule::Attempts, || format!("node {index} heard of attempt {}", decision.attempt));
            }
            let restarts = node.decisions.iter().filter(|(_, decision)| decision.restart.is_some()).count();
            let allowed = self.run.scenario.restart.max as usize;
            self.check(restarts <= allowed, Rule::Attempts, || format!("{restarts} restarts of {allowed}"));
        }
    }

    /// All ends of one attempt, by rank.
    fn truth(&self, attempt: u32) -> BTreeMap<u32, Option<&'a Death>> {
        let nodes = self.run.nodes.iter().filter_map(|node| {
            let place = node.spawned.iter().position(|(spawned, _)| *spawned == attempt)?;
            node.deaths.get(place)
        });
        nodes.flat_map(|(first, deaths)| (*first..).zip(deaths.iter().map(Option::as_ref))).collect()
    }

    fn successes(&mut self) {
        for (index, node) in self.run.nodes.iter().enumerate() {
            let Some((_, outcome, code)) = node.finished else { continue };
            if outcome != Outcome::Succeeded && code != 0 {
                continue;
            }
            let last = node.starts.last().map(|(_, start)| start);
            // Servers are stopped; how they end does not matter.
            let trainers = last.map(|start| ranks_of(start, Part::Trainer)).unwrap_or_default();
            let truth = self.truth(last.map_or(FIRST_ATTEMPT, |start| start.attempt));
            let well =
                |death: Option<&Death>| death.is_some_and(|death| death.exit.is_success() && death.why == Why::Own);
            let all = last.is_some() && trainers.iter().all(|rank| well(truth.get(rank).copied().flatten()));
            self.check(all, Rule::Success, || format!("node {index} calls this success: {truth:?}"));
            let blamed = last.is_some_and(|start| node.reports.contains(&start.attempt));
            self.check(!blamed, Rule::Success, || format!("node {index} reports causes, and then success"));
        }
    }

    fn codes(&mut self) {
        for (index, node) in self.run.nodes.iter().enumerate() {
            let Some((_, outcome, code)) = node.finished else { continue };
            let asked = self.run.scenario.faults.iter().any(|(_, fault)| match fault {
                Fault::Signal { node, .. } | Fault::Stop { node } | Fault::GuardianLost { node } => *node == index,
                _ => false,
            });
            // A node that ended before it received the decision has its own reason.
            let known = node.decisions[..node.known].last();
            let Some((_, decision)) = known.filter(|(_, last)| last.restart.is_none() && !asked) else { continue };
            let expected = match (decision.outcome, &decision.why) {
                (Outcome::Succeeded, _) => 0,
                (Outcome::Interrupted, Some(Reason::Interrupted { signal: Some(signal), .. })) => 128 + *signal as u8,
                (Outcome::Stopped, Some(Reason::Interrupted { signal: None, .. })) => 3,
                _ => match decision.verdict.as_ref().and_then(|verdict| Some((verdict, verdict.causes.first()?))) {
                    Some((_, cause)) if cause.timed_out.is_some() => TIMED_OUT,
                    Some((verdict, _)) => {
                        let mut findings = verdict.causes.iter().chain(&verdict.victims);
                        let found = findings.find(|found| !found.stopped_while_ending && !found.exit.is_success());
                        found.map_or(1, |found| found.exit.shell_code())
                    }
                    None => NODE_LOST,
                },
            };
            let fits = (outcome, code) == (decision.outcome, expected);
            self.check(fits, Rule::Code, || format!("node {index}: {outcome:?}, {code} after {decision:?}"));
        }
    }

    /// The decisions on each attempt, from any node that received one.
    fn decided(&self) -> BTreeMap<u32, &'a Decision> {
        if self.run.scenario.is_elastic() {
            // Those for all members, not those for a node that leaves.
            let decisions = self.run.nodes[0].decisions.iter().map(|(_, decision)| decision);
            return decisions.map(|decision| (decision.attempt, decision)).collect();
        }
        let decisions = self.run.nodes.iter().flat_map(|node| &node.decisions);
        decisions.map(|(_, decision)| (decision.attempt, decision)).collect()
    }

    fn stops(&mut self) {
        if self.run.scenario.kind != Kind::Calm {
            return;
        }
        let way = Duration::from_millis(self.run.scenario.delay);
        for (attempt, decision) in self.decided() {
            let truth = self.truth(attempt);
            let bad = truth.values().flatten().filter(|death| !death.exit.is_success());
            let Some(first) = bad.map(|death| death.at).min().filter(|_| decision.outcome == Outcome::Failed) else {
                continue;
            };
            for (index, node) in self.run.nodes.iter().enumerate() {
                let heard = node.stops.iter().find(|(stopped, _)| *stopped == attempt).map(|(_, at)| *at);
                let soon = heard.is_some_and(|heard| heard <= first + NOTICE + way + way);
                self.check(soon, Rule::Stop, || format!("node {index}: failed at {first:?}, told to stop {heard:?}"));
            }
        }
    }

    fn causes(&mut self) {
        for (attempt, decision) in self.decided() {
            let truth = self.truth(attempt);
            let Some(verdict) = &decision.verdict else { continue };
            let ranks = |findings: &[umiak_core::facts::Finding]| -> Vec<u32> {
                findings.iter().filter_map(|finding| finding.subject.rank).map(|rank| rank.0).collect()
            };
            let (causes, victims) = (ranks(&verdict.causes), ranks(&verdict.victims));
            let death = |rank: &u32| truth.get(rank).copied().flatten();
            let is_own = |rank: &u32| death(rank).is_some_and(|death| death.why == Why::Own && death.is_evident());
            // A rank with an error of its own comes before ranks that lost a peer.
            let told = causes.iter().chain(&victims).any(is_own);
            let innocent = causes.iter().find(|rank| death(rank).is_some_and(|death| death.why == Why::Peer));
            self.check(!(told && innocent.is_some()), Rule::Cause, || {
                format!("rank {innocent:?} is blamed in attempt {attempt}: {causes:?}, victims {victims:?}")
            });
            let placed = causes.iter().all(|rank| decision.places.iter().any(|place| place.rank == *rank));
            self.check(placed, Rule::Cause, || format!("no place for {causes:?}"));
            if !matches!(self.run.scenario.kind, Kind::Calm) || decision.outcome != Outcome::Failed {
                continue;
            }
            // Without faults, the first failure is always reported in time.
            let bad = truth.iter().filter_map(|(rank, death)| Some((rank, (*death)?)));
            let first = bad.filter(|(_, death)| !death.exit.is_success()).min_by_key(|(_, death)| death.at);
            if let Some((rank, _)) = first.filter(|(rank, _)| is_own(rank)) {
                self.check(causes.contains(rank), Rule::Cause, || {
                    format!("rank {rank} was first in attempt {attempt}, named {causes:?}, victims {victims:?}")
                });
            }
        }
    }

    fn lost_node(&mut self) {
        let scenario = &self.run.scenario;
        let &[(at, Fault::KillFront { node } | Fault::KillBoth { node } | Fault::Vanish { node })] =
            scenario.faults.as_slice()
        else {
            return;
        };
        // All nodes were running when it died, and none was done.
        let running =
            |run: &NodeRun| run.spawned.iter().any(|(attempt, since)| *attempt == FIRST_ATTEMPT && *since <= at);
        let ended = |death: Option<&Death>| death.is_some_and(|death| death.at + REACTION < at);
        if scenario.kind != Kind::OneDies
            || !self.run.nodes.iter().all(running)
            || self.truth(FIRST_ATTEMPT).values().copied().any(ended)
        {
            return;
        }
        let address = scenario.nodes[node].address;
        for (index, other) in self.run.nodes.iter().enumerate().filter(|(index, _)| *index != node) {
            let named = other.decisions.iter().any(
                |(_, decision)| matches!(&decision.why, Some(Reason::NodeLost { node, .. }) if node.address == address),
            );
            let code = other.finished.map(|(_, _, code)| code);
            // A node that only served and vanished is not missed if the trainers succeed before that is noticed.
            let only_served = scenario.nodes[node].servers == scenario.nodes[node].ranks[0].len();
            let is_over = |(_, decision): &(_, Decision)| decision.outcome == Outcome::Succeeded;
            if only_served && other.decisions.iter().any(is_over) {
                continue;
            }
            self.check(named && code == Some(NODE_LOST), Rule::LostNode, || {
                format!("node {index} ends with {code:?} and heard {:?}", other.decisions)
            });
        }
    }

    /// All nodes joined and no fault lasted long: only the ranks decide the result.
    fn gentle(&mut self) {
        let scenario = &self.run.scenario;
        let stuck =
            scenario.nodes.iter().flat_map(|node| node.ranks.iter().flatten()).any(|rank| rank.on_kill.is_none());
        if !matches!(scenario.kind, Kind::Calm | Kind::Gentle) || stuck {
            return;
        }
        for (index, node) in self.run.nodes.iter().enumerate() {
            let alone = node.other_end.clone();
            self.check(alone.is_none(), Rule::Gentle, || format!("node {index} decided alone: {alone:?}"));
            let last = node.decisions.last().map(|(_, decision)| decision);
            let truth = self.truth(last.map_or(FIRST_ATTEMPT, |decision| decision.attempt));
            let start = node.starts.last().map(|(_, start)| start);
            let trainers = start.map(|start| ranks_of(start, Part::Trainer)).unwrap_or_default();
            let failed = |death: &Death| death.why == Why::Own && !death.exit.is_success();
            let bad: Vec<u32> =
                truth.iter().filter(|(_, death)| death.is_some_and(failed)).map(|(rank, _)| *rank).collect();
            let fits = match last.map(|decision| decision.outcome) {
                Some(Outcome::Succeeded) => !bad.iter().any(|rank| trainers.contains(rank)),
                Some(Outcome::Failed) => !bad.is_empty() || start.is_some_and(|start| self.is_late(start)),
                _ => false,
            };
            self.check(fits, Rule::Gentle, || format!("node {index} heard {last:?} of {truth:?}"));
            let ends = [index, 0].map(|node| self.run.nodes[node].finished.map(|(_, outcome, code)| (outcome, code)));
            self.check(ends[0] == ends[1], Rule::Gentle, || format!("nodes {index} and 0 end differently: {ends:?}"));
        }
    }
}
