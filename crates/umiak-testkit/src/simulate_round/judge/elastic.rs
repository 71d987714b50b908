//! Rules for elastic jobs. The journal is replayed: which nodes were connected, ready and running at each moment, and
//! whether the coordinator did what it had to do by then.

use std::collections::BTreeMap;
use std::time::Duration;

use umiak_core::facts::{Finding, Outcome};
use umiak_core::machine::round::limits::GOODBYE;
use umiak_core::machine::round::messages::{
    AttemptEnd, Decision, LastAttempt, Loss, NodeName, Stage, Standing, Start, Why as Reason,
};
use umiak_core::model::{Exit, FIRST_ATTEMPT, Timestamp};

use super::super::journal::Entry;
use super::super::scenario::{Fault, Way};
use super::super::world::Run;
use super::{Judge, Rule};
use crate::simulate::Why;

/// What is due is done within this time.
const PROMPT: Duration = Duration::from_secs(1);
/// A node whose ranks alone fail in so many attempts in a row is left out.
const FAILURES: u32 = 3;

impl Judge<'_> {
    pub(super) fn elastic(&mut self) {
        let run = self.run;
        let mut replay = Replay::new(run);
        for (at, entry) in &run.journal {
            replay.pass(self, *at);
            replay.apply(self, *at, entry);
        }
        replay.finish(self);
        self.traffic();
        let Some((_, decision)) = replay.decisions.last().filter(|(_, decision)| decision.restart.is_none()) else {
            return;
        };
        for (index, node) in run.nodes.iter().enumerate() {
            let succeeded = node.finished.is_some_and(|(_, outcome, code)| outcome == Outcome::Succeeded || code == 0);
            let truth = self.truth(decision.attempt);
            let well =
                truth.values().all(|death| death.is_some_and(|death| death.exit.is_success() && death.why == Why::Own));
            let is_right = decision.outcome == Outcome::Succeeded && well && !truth.is_empty();
            self.check(!succeeded || is_right, Rule::Success, || {
                format!("node {index} calls this success: {decision:?} of {truth:?}")
            });
        }
    }

    /// The number of messages of a round grows with the nodes, not faster.
    fn traffic(&mut self) {
        let run = self.run;
        let joins = |node: usize| run.traffic.get(&(node, "join", 0)).copied().unwrap_or_default();
        let all_joins: u32 = (0..run.nodes.len()).map(joins).sum();
        let seconds = run.journal.last().map_or(0, |(at, _)| at.as_micros() / 1_000_000) as u32;
        let attempts = run.journal.iter().filter(|(_, entry)| matches!(entry, Entry::Decision(..))).count() as u32;
        for ((node, kind, attempt), count) in &run.traffic {
            let most = match *kind {
                "start" | "stop" => 1 + joins(*node),
                // That of the attempt before is repeated too.
                "decision" => 1 + 2 * joins(*node),
                "standing" => 8,
                "waiting" => seconds + attempts + joins(*node) + 1,
                // Each node is suspected and heard again.
                "suspects" => 2 * (run.scenario.faults.len() as u32 + all_joins),
                "welcome" => 2 * joins(*node),
                _ => u32::MAX,
            };
            self.check(*count <= most, Rule::Traffic, || {
                format!("node {node}, attempt {attempt}: {count} messages `{kind}`, at most {most}")
            });
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    Between,
    Running,
    Stopping,
    Over,
}

struct Replay<'a> {
    run: &'a Run,
    min: usize,
    max: usize,
    phase: Phase,
    /// The next attempt, or the current one.
    attempt: u32,
    /// All attempts so far, with the nodes in their order.
    starts: Vec<(Timestamp, &'a Start, Vec<usize>)>,
    /// How they ended.
    decisions: Vec<(Timestamp, &'a Decision)>,
    nodes: Vec<State>,
    arrivals: usize,
    /// What each connection said last.
    said: BTreeMap<usize, &'a Standing>,
    /// Since when the next attempt can start with enough nodes, or with as many as possible.
    enough: Option<Timestamp>,
    full: Option<Timestamp>,
    /// The same for nodes that wait to join.
    joining: Option<Timestamp>,
    joining_full: Option<Timestamp>,
    /// A lost member, and when that must have been noticed.
    lost: Option<(usize, Timestamp)>,
    /// Until when the coordinator's umiak is suspended.
    asleep: Timestamp,
    is_headless: bool,
    last_fault: Option<Fault>,
}

#[derive(Debug, Clone, Default)]
struct State {
    is_here: bool,
    came: Timestamp,
    conn: Option<usize>,
    /// When it was closed: its ranks may run on for a while.
    closed: Option<Timestamp>,
    is_moving: bool,
    arrived: usize,
    alive: Option<u32>,
    /// When ranks of an attempt that is over must have ended.
    must_end: Option<Timestamp>,
    /// Until when a fault disturbs it.
    disturbed: Timestamp,
    /// In how many attempts in a row only its ranks have failed.
    failures: u32,
}

impl<'a> Replay<'a> {
    fn new(run: &'a Run) -> Self {
        let (min, max) = run.scenario.range();
        Self {
            run,
            min,
            max,
            phase: Phase::Between,
            attempt: FIRST_ATTEMPT,
            starts: Vec::new(),
            decisions: Vec::new(),
            nodes: vec![State::default(); run.nodes.len()],
            arrivals: 0,
            said: BTreeMap::new(),
            enough: None,
            full: None,
            joining: None,
            joining_full: None,
            lost: None,
            asleep: Timestamp::default(),
            is_headless: false,
            last_fault: None,
        }
    }

    fn members(&self) -> &[usize] {
        self.starts.last().map_or(&[], |(_, _, members)| members)
    }

    fn is_ready(&self, node: usize) -> bool {
        let said = self.nodes[node].conn.and_then(|conn| self.said.get(&conn));
        matches!(said, Some(Standing { stage: Stage::Ready(_), .. }))
    }

    /// True if a member of the last attempt has not said yet that it is ready for the next one, and is not lost yet.
    fn is_awaited(&self, node: usize, now: Timestamp) -> bool {
        let Some(said) = self.nodes[node].conn.map(|conn| self.said.get(&conn)) else {
            let lost = self.run.scenario.limits.lost();
            return self.nodes[node].closed.is_some_and(|closed| now < closed.max(self.asleep) + lost);
        };
        said.is_none_or(|said| said.attempt < self.attempt) || !self.is_ready(node)
    }

    fn ready(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.is_ready(*node)).collect()
    }

    fn by_launch(&self, launch: u64) -> Option<usize> {
        self.run.scenario.nodes.iter().position(|node| node.launch == launch)
    }

    fn by_name(&self, name: &NodeName) -> Option<usize> {
        let is = |node: &super::super::NodeScript| node.address == name.address && node.host() == name.host;
        self.run.scenario.nodes.iter().position(is)
    }

    /// Time has passed without anything in the journal.
    fn pass(&mut self, judge: &mut Judge<'_>, now: Timestamp) {
        if self.is_headless {
            return;
        }
        let (window, is_first) = (self.run.scenario.window, self.starts.is_empty());
        let last = |since: Option<Timestamp>, full: Option<Timestamp>, window: Duration| {
            let by = since.map(|since| since + window);
            let due = by.into_iter().chain(full).min()?;
            Some(due.max(self.asleep) + PROMPT).filter(|due| now > *due)
        };
        let due = last(self.enough, self.full, if is_first { window } else { Duration::ZERO });
        judge.check(due.is_none(), Rule::Prompt, || {
            format!("attempt {} could start before {due:?}, and has not at {now:?}", self.attempt)
        });
        let due = last(self.joining, self.joining_full, window);
        judge.check(due.is_none(), Rule::Prompt, || {
            format!("nodes wait to join attempt {} before {due:?}, and it runs on at {now:?}", self.attempt)
        });
        if let Some((node, due)) = self.lost {
            let due =
                due.max(self.asleep + self.run.scenario.limits.lost() + self.run.scenario.limits.reconnect) + PROMPT;
            judge.check(now <= due, Rule::LostNode, || format!("node {node} was lost, unnoticed until {now:?}"));
        }
        if due.is_some() {
            // Reported once.
            (self.enough, self.full, self.joining, self.joining_full, self.lost) = (None, None, None, None, None);
        }
    }

    fn apply(&mut self, judge: &mut Judge<'_>, now: Timestamp, entry: &'a Entry) {
        match entry {
            Entry::Came { node } => {
                (self.nodes[*node].is_here, self.nodes[*node].came) = (true, now);
            }
            Entry::Left { node } => {
                self.nodes[*node].is_here = false;
                self.is_headless |= *node == 0;
            }
            Entry::Died { node } => {
                self.nodes[*node].is_here = false;
                self.is_headless |= *node == 0;
                self.nodes[*node].must_end = None;
                self.lose(*node, now);
            }
            Entry::Fault(fault) => self.fault(*fault, now),
            Entry::Heard { node, conn, standing } => {
                self.said.insert(*conn, standing);
                // Connections are numbered: this is a later one, which replaces the other.
                self.nodes[*node].is_moving = self.nodes[*node].conn.is_some_and(|old| old < *conn);
            }
            Entry::Closed { conn } => {
                self.said.remove(conn);
                if let Some(node) = self.nodes.iter().position(|node| node.conn == Some(*conn)) {
                    (self.nodes[node].conn, self.nodes[node].closed) = (None, Some(now));
                    if !self.members().contains(&node) && !self.nodes[node].is_moving {
                        self.nodes[node].arrived = 0;
                    }
                }
            }
            Entry::Welcome { node, conn } => self.welcome(*node, *conn, now),
            Entry::Refused { .. } => {}
            Entry::Start(start, nodes) => self.start(judge, now, start, nodes),
            Entry::Stop(stop, _) => {
                if self.phase != Phase::Over && stop.attempt == self.attempt {
                    self.phase = Phase::Stopping;
                }
            }
            Entry::Decision(decision, nodes) => self.decide(judge, now, decision, nodes),
            Entry::Spawned { node, attempt } => {
                let running = self.nodes[*node].alive;
                judge.check(running.is_none(), Rule::OneSide, || {
                    format!("node {node} starts attempt {attempt} while ranks of {running:?} run there")
                });
                self.check_one_side(judge, *attempt);
                self.nodes[*node].alive = Some(*attempt);
                if *attempt < self.attempt {
                    self.must_end(*node, now);
                }
            }
            Entry::Ended { node, .. } => {
                let state = &mut self.nodes[*node];
                state.alive = None;
                if let Some(due) = state.must_end.take() {
                    judge.check(now <= due, Rule::NoRank, || {
                        format!("ranks of node {node} ended at {now:?}, which was due at {due:?}")
                    });
                }
            }
        }
        self.recount(now);
    }

    fn finish(&mut self, judge: &mut Judge<'_>) {
        let run = self.run;
        for (index, state) in self.nodes.iter().enumerate() {
            let scripts = run.scenario.nodes[index].ranks.iter().flatten();
            let is_stuck = scripts.into_iter().any(|rank| rank.on_kill.is_none());
            let attempt = state.alive.filter(|_| !is_stuck && run.nodes[index].died.is_none());
            judge.check(attempt.is_none(), Rule::NoRank, || {
                format!("ranks of attempt {attempt:?} of node {index} live on")
            });
        }
    }

    /// No rank of an earlier attempt lives on a node of this one.
    fn check_one_side(&self, judge: &mut Judge<'_>, attempt: u32) {
        let Some((_, _, members)) = self.starts.iter().find(|(_, start, _)| start.attempt == attempt) else { return };
        for member in members {
            let alive = self.nodes[*member].alive.filter(|alive| *alive < attempt);
            judge.check(alive.is_none(), Rule::OneSide, || {
                format!("attempt {attempt} starts while node {member}, which belongs to it, runs ranks of {alive:?}")
            });
        }
    }

    fn fault(&mut self, fault: Fault, now: Timestamp) {
        let node = fault.node();
        let until = now + fault.lasts();
        self.last_fault = Some(fault);
        if let (0, Fault::Pause { .. }) = (node, fault) {
            self.asleep = self.asleep.max(until);
            // No node can reach it meanwhile.
            for node in 0..self.nodes.len() {
                self.disturb(node, until);
            }
        }
        self.disturb(node, until);
        if let Fault::KillFront { node } | Fault::KillBoth { node } | Fault::Vanish { node } = fault
            && node == 0
        {
            for node in 0..self.nodes.len() {
                self.must_end(node, now);
            }
        }
    }

    fn disturb(&mut self, node: usize, until: Timestamp) {
        let farewell = self.run.scenario.farewell();
        let state = &mut self.nodes[node];
        state.disturbed = state.disturbed.max(until);
        state.must_end = state.must_end.map(|due| due.max(until + farewell));
    }

    /// A member dies: the coordinator learns that from its guardian, or after a while.
    fn lose(&mut self, node: usize, now: Timestamp) {
        if self.phase != Phase::Running || self.lost.is_some() || !self.members().contains(&node) {
            return;
        }
        let scenario = &self.run.scenario;
        let tells = matches!(self.last_fault, Some(Fault::KillFront { .. }))
            && self.nodes[node].conn.is_some()
            && !self.was_cut(node, now + scenario.ways());
        let notice =
            if tells { scenario.ways() } else { scenario.limits.lost() + scenario.limits.reconnect + scenario.ways() };
        self.lost = Some((node, now.max(self.nodes[node].disturbed) + notice));
    }

    /// True if its connection has had a fault of any kind.
    fn was_cut(&self, node: usize, now: Timestamp) -> bool {
        let cuts = |fault: &Fault| match fault {
            Fault::Break { node: of } | Fault::BreakLate { node: of, .. } | Fault::Partition { node: of, .. } => {
                *of == node
            }
            Fault::Pause { .. } => true,
            _ => false,
        };
        self.run.scenario.faults.iter().any(|(at, fault)| *at <= now && cuts(fault)) || self.run.scenario.flaky
    }

    fn must_end(&mut self, node: usize, now: Timestamp) {
        let state = &mut self.nodes[node];
        if state.alive.is_some() {
            let due = now.max(state.disturbed) + self.run.scenario.farewell();
            state.must_end.get_or_insert(due);
        }
    }

    fn welcome(&mut self, node: usize, conn: usize, now: Timestamp) {
        let stop = self.run.scenario.stop_time();
        let state = &mut self.nodes[node];
        (state.conn, state.closed, state.is_moving) = (Some(conn), None, false);
        if state.arrived == 0 {
            self.arrivals += 1;
            state.arrived = self.arrivals;
        }
        // It hears that the job has gone on.
        if let Some(due) = &mut state.must_end
            && state.disturbed <= now
        {
            *due = (*due).min(now + stop);
        }
    }

    fn start(&mut self, judge: &mut Judge<'_>, now: Timestamp, start: &'a Start, nodes: &[usize]) {
        if let Some((_, first, _)) = self.starts.iter().find(|(_, other, _)| other.attempt == start.attempt) {
            return judge.check(*first == start, Rule::Start, || format!("{start:?}\n  differs from {first:?}"));
        }
        judge.check(self.phase == Phase::Between && start.attempt == self.attempt, Rule::Start, || {
            format!("attempt {} starts, {:?} of {}", start.attempt, self.phase, self.attempt)
        });
        let members: Vec<usize> = start.nodes.iter().filter_map(|share| self.by_launch(share.launch)).collect();
        let (size, ready) = (members.len(), self.ready());
        judge.check((self.min..=self.max).contains(&size) && members.contains(&0), Rule::Start, || {
            format!("attempt {} with {members:?}", start.attempt)
        });
        for member in &members {
            judge.check(ready.contains(member), Rule::Start, || format!("node {member} starts, and is not ready"));
        }
        let connected: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].conn.is_some()).collect();
        for node in self.members().iter().filter(|node| connected.contains(node)) {
            judge.check(members.contains(node), Rule::Places, || {
                format!("node {node} took part and is connected, but attempt {} does without it", start.attempt)
            });
        }
        let left = ready.iter().filter(|node| !members.contains(node)).count();
        judge
            .check(left == 0 || size == self.max, Rule::Places, || format!("{left} nodes are left, for {size} places"));
        judge.check(connected.iter().all(|node| nodes.contains(node)), Rule::Start, || {
            format!("{connected:?} are connected, and {nodes:?} hear of attempt {}", start.attempt)
        });
        self.starts.push((now, start, members));
        (self.phase, self.attempt) = (Phase::Running, start.attempt);
        self.check_one_side(judge, start.attempt);
        self.check_received(judge, start);
        for node in 0..self.nodes.len() {
            if self.nodes[node].alive.is_some_and(|alive| alive < start.attempt) {
                self.must_end(node, now);
            }
        }
        for member in self.members().to_vec() {
            if let Some(conn) = self.nodes[member].conn {
                self.said.remove(&conn);
            }
        }
    }

    /// Checks what the nodes received: the same start everywhere, with the right places and the right past.
    fn check_received(&self, judge: &mut Judge<'_>, sent: &Start) {
        let received = self.run.nodes.iter().enumerate();
        let received = received.flat_map(|(index, node)| node.starts.iter().map(move |(_, start)| (index, start)));
        let before = self.starts.len().checked_sub(2).map(|before| &self.starts[before]);
        for (index, start) in received.filter(|(_, start)| start.attempt == sent.attempt) {
            let same = Start { you: 0, ..start.clone() };
            judge.check(same == *sent, Rule::Start, || format!("node {index} received {same:?}\n  sent {sent:?}"));
            let you = start.nodes.get(start.you as usize).and_then(|share| self.by_launch(share.launch));
            judge.check(you == Some(index), Rule::Start, || format!("node {index} takes the place of {you:?}"));
            let sizes = start.nodes.iter().all(|share| {
                let node = self.by_launch(share.launch);
                node.is_some_and(|node| self.run.scenario.nodes[node].ranks[0].len() == share.processes.len())
            });
            judge.check(sizes, Rule::Start, || format!("wrong numbers of ranks: {start:?}"));
            let order: Vec<usize> = start.nodes.iter().filter_map(|share| self.by_launch(share.launch)).collect();
            let before_it = before.map_or(&[][..], |(_, _, members)| members);
            let right = self.places(before_it, &order);
            // One that comes back after it missed an attempt may count from either arrival.
            let came_back = |node: &usize| {
                let took_part = self.starts.iter().rev().skip(2).any(|(_, _, members)| members.contains(node));
                took_part && !before_it.contains(node)
            };
            let keep = |nodes: &[usize]| -> Vec<Option<usize>> {
                nodes.iter().map(|node| before_it.contains(node).then_some(*node)).collect()
            };
            let is_right = order == right || order.iter().any(came_back) && keep(&order) == keep(&right);
            judge.check(is_right, Rule::Places, || format!("attempt {}: {order:?}, not {right:?}", start.attempt));
            let end = match self.decisions.last().and_then(|(_, decision)| decision.why.as_ref()) {
                Some(Reason::Joined { .. }) => AttemptEnd::NodeJoined,
                Some(Reason::NodeLost { how: Loss::Left, .. }) => AttemptEnd::NodeLeft,
                Some(Reason::NodeLost { .. }) => AttemptEnd::NodeLost,
                Some(Reason::Hung) => AttemptEnd::Hung,
                _ => AttemptEnd::RankFailed,
            };
            let is_change = !matches!(end, AttemptEnd::Hung | AttemptEnd::RankFailed);
            let last = before.map(|(_, start, _)| LastAttempt {
                world: start.nodes.iter().map(|share| share.processes.len() as u32).sum(),
                end,
                changes: start.last.map_or(0, |last| last.changes) + u32::from(is_change),
                counted: start.last.map_or(0, |last| last.counted) + u32::from(!is_change),
            });
            judge.check(start.last == last, Rule::Last, || {
                format!("node {index}, attempt {}: {:?}, not {last:?}", start.attempt, start.last)
            });
        }
    }

    /// Each node keeps its number while the job is large enough for it. The others fill the gaps from 0 on, in the order
    /// of their numbers, or of their arrival.
    fn places(&self, before: &[usize], members: &[usize]) -> Vec<usize> {
        let number = |node: &usize| before.iter().position(|other| other == node);
        let mut others: Vec<usize> = members.to_vec();
        others.retain(|node| number(node).is_none_or(|number| number >= members.len()));
        others.sort_by_key(|node| (number(node).unwrap_or(usize::MAX), *node != 0, self.nodes[*node].arrived));
        let mut others = others.into_iter();
        let place = |place: usize| {
            let keeps = before.get(place).copied().filter(|node| members.contains(node));
            keeps.or_else(|| others.next())
        };
        (0..members.len()).filter_map(place).collect()
    }

    fn decide(&mut self, judge: &mut Judge<'_>, now: Timestamp, decision: &'a Decision, nodes: &[usize]) {
        // Decisions for one node, which leaves, are no end of the attempt; nor are repeated ones.
        let is_own = self.nodes[0].conn.is_some_and(|_| nodes.contains(&0));
        let is_new = self.decisions.last().is_none_or(|(_, last)| last.attempt < decision.attempt);
        let is_dismissal = decision.restart.is_none() && nodes.len() == 1 && !is_own;
        if self.phase == Phase::Over || !is_new || is_dismissal {
            return;
        }
        self.decisions.push((now, decision));
        self.check_failures(judge, decision);
        self.check_loss(judge, decision);
        if let Some(restart) = decision.restart {
            judge.check(restart.attempt == decision.attempt + 1, Rule::Attempts, || format!("{decision:?}"));
            (self.phase, self.attempt) = (Phase::Between, restart.attempt);
            return;
        }
        self.phase = Phase::Over;
        for node in 0..self.nodes.len() {
            self.must_end(node, now);
        }
        self.check_end(judge, now, decision, nodes);
    }

    /// Every connected node hears of the end, and ends with it.
    fn check_end(&self, judge: &mut Judge<'_>, now: Timestamp, decision: &Decision, nodes: &[usize]) {
        for (index, state) in self.nodes.iter().enumerate().filter(|(_, state)| state.conn.is_some() && state.is_here) {
            judge.check(nodes.contains(&index), Rule::Spares, || format!("node {index} is connected, and not told"));
            let own = |fault: &Fault| {
                matches!(fault, Fault::Signal { .. } | Fault::Stop { .. } | Fault::GuardianLost { .. })
                    && fault.node() == index
            };
            let late = now + GOODBYE + self.run.scenario.ways();
            let mut faults = self.run.scenario.faults.iter();
            // Its agent may just have given up.
            let is_disturbed = state.disturbed + self.run.scenario.ways() + PROMPT >= now
                || faults.clone().any(|(at, fault)| (now..=late).contains(at) && [0, index].contains(&fault.node()));
            if is_disturbed || faults.any(|(_, fault)| own(fault)) || self.run.scenario.nodes[index].unable.is_some() {
                continue;
            }
            let end = self.run.nodes[index].finished.map(|(_, outcome, _)| outcome);
            judge.check(end == Some(decision.outcome), Rule::Spares, || {
                let other = &self.run.nodes[index].other_end;
                format!("node {index} ends with {end:?} ({other:?}), the job with {:?}", decision.outcome)
            });
        }
        let started = !self.starts.is_empty();
        judge.check(!(started && matches!(decision.why, Some(Reason::Refused { .. }))), Rule::Forms, || {
            "a node that does not fit ended a job that had started".to_owned()
        });
        if let Some(Reason::TimeUp { .. }) = decision.why {
            let steady: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_steady(*node, now)).collect();
            let enough = steady.len() >= self.min && steady.contains(&0) || self.enough.is_some();
            judge.check(!enough, Rule::Forms, || format!("time was up at {now:?} with {steady:?} there"));
        }
    }

    /// True if nothing prevented this node from being ready for a while.
    fn is_steady(&self, node: usize, now: Timestamp) -> bool {
        let scenario = &self.run.scenario;
        let state = &self.nodes[node];
        let settled = now.since(state.came.max(state.disturbed).max(self.asleep));
        let script = &scenario.nodes[node];
        state.is_here
            && settled >= scenario.limits.rendezvous * 3 / 4
            && script.unable.is_none()
            && script.expects == scenario.expects
            && self.run.nodes[node].other_end.is_none()
            && self.run.nodes[node].finished.is_none_or(|(at, ..)| at >= now)
            && state.alive.is_none()
    }

    /// Restarts are counted, and a node is left out only after three failures of its own.
    fn check_failures(&mut self, judge: &mut Judge<'_>, decision: &Decision) {
        let max = self.run.scenario.restart.max as usize;
        let is_failure = |decision: &Decision| matches!(decision.why, Some(Reason::RankFailed { .. } | Reason::Hung));
        let counted = self.decisions.iter().filter(|(_, past)| is_failure(past) && past.restart.is_some()).count();
        judge.check(counted <= max, Rule::Budget, || format!("{counted} restarts of {max}"));
        let causes = decision.verdict.as_ref().map_or(&[][..], |verdict| &verdict.causes);
        let cannot_start = |cause: &Finding| matches!(cause.exit, Exit::Spawn(_));
        if is_failure(decision) && decision.restart.is_none() && counted < max {
            // `umiak stop` is about the job, on every node.
            let own = |fault: &Fault| fault.node() == 0 || matches!(fault, Fault::Stop { .. });
            let is_own = self.run.scenario.faults.iter().any(|(_, fault)| own(fault));
            let spawn = causes.iter().any(cannot_start);
            // The coordinator waits for the report of a failed node longer than its own node waits for the decision.
            let is_alone = self.run.nodes[0].other_end.is_some();
            judge.check(is_own || spawn || is_alone, Rule::Budget, || {
                format!("{counted} restarts of {max}, and it ends: {decision:?}")
            });
        }
        let left_out = match &decision.why {
            Some(Reason::NodeLost { node, how: Loss::LeftOut { failures } }) => Some((self.by_name(node), *failures)),
            _ => None,
        };
        if !is_failure(decision) && left_out.is_none() {
            return;
        }
        let Some((_, start, members)) = self.starts.last() else { return };
        let ranks = (0u32..)
            .zip(start.nodes.iter().zip(members).flat_map(|(share, node)| share.processes.iter().map(move |_| *node)));
        let ranks: BTreeMap<u32, usize> = ranks.collect();
        let blamed: Vec<usize> = causes.iter().filter_map(|cause| ranks.get(&cause.subject.rank?.0).copied()).collect();
        let only = blamed.first().copied().filter(|first| blamed.iter().all(|node| node == first));
        for (index, state) in self.nodes.iter_mut().enumerate() {
            state.failures = if only == Some(index) { state.failures + 1 } else { 0 };
        }
        let others = |node: usize| {
            self.nodes.iter().enumerate().filter(|(other, state)| *other != node && state.conn.is_some()).count()
        };
        if let Some((node, failures)) = left_out {
            let Some(node) = node else {
                return judge.check(false, Rule::LeftOut, || format!("no such node: {decision:?}"));
            };
            let truth = judge.truth(decision.attempt);
            let failed = truth.iter().any(|(rank, death)| {
                ranks.get(rank) == Some(&node)
                    && death.is_some_and(|death| death.why != Why::Ours && !death.exit.is_success())
            });
            let counted = self.nodes[node].failures;
            let earned = counted >= FAILURES || !causes.is_empty() && causes.iter().all(cannot_start);
            let right = node != 0 && failed && counted >= failures && earned && others(node) >= self.min;
            judge.check(right, Rule::LeftOut, || format!("node {node} is left out, {counted} failures: {decision:?}"));
        } else if let Some(node) = only {
            // One that was lost in between begins anew.
            let is_due = self.nodes[node].failures >= FAILURES
                && node != 0
                && others(node) >= self.min
                && self.nodes[node].disturbed == Timestamp::default();
            judge.check(!is_due, Rule::LeftOut, || format!("node {node} fails again and again, and is kept"));
        }
    }

    /// Only a node that had a fault, or left, is lost.
    fn check_loss(&self, judge: &mut Judge<'_>, decision: &Decision) {
        let Some(Reason::NodeLost { node: name, how }) = &decision.why else { return };
        let Some(node) = self.by_name(name) else {
            return judge.check(false, Rule::LostNode, || format!("no such node: {name}"));
        };
        let scenario = &self.run.scenario;
        let script = &scenario.nodes[node];
        let fails = |fault: &Fault| fault.node() == node || matches!(fault, Fault::Pause { node: 0, .. });
        let is_stuck = script.ranks.iter().flatten().any(|rank| rank.on_kill.is_none());
        let had_one = scenario.faults.iter().any(|(_, fault)| fails(fault)) || scenario.flaky;
        let right = had_one || is_stuck || script.unable.is_some() || matches!(how, Loss::LeftOut { .. });
        judge.check(right, Rule::LostNode, || format!("node {node} is called lost, {how:?}"));
        // A partition away from the coordinator alone is noticed by the agent.
        let cut = |fault: &Fault| matches!(fault, Fault::Partition { way: Way::FromCoordinator, .. });
        let only_cut = scenario.faults.iter().filter(|(_, fault)| fault.node() == node).all(|(_, fault)| cut(fault));
        let silent = matches!(how, Loss::Silent { .. }) && !scenario.flaky && self.asleep == Timestamp::default();
        judge.check(!(silent && only_cut), Rule::LostNode, || format!("node {node} was heard all the time"));
    }

    /// Which starts and stops are due now.
    fn recount(&mut self, now: Timestamp) {
        let ready = self.ready();
        let can_start = self.phase == Phase::Between
            && ready.len() >= self.min
            && ready.contains(&0)
            && !self.members().iter().any(|node| self.is_awaited(*node, now));
        let guests = ready.iter().filter(|node| !self.members().contains(node)).count();
        let room = self.max.saturating_sub(self.members().len());
        let can_join = self.phase == Phase::Running && guests > 0 && room > 0;
        let is_full = ready.len() >= self.max;
        let since = |since: Option<Timestamp>, holds: bool| holds.then(|| since.unwrap_or(now));
        self.enough = since(self.enough, can_start);
        self.full = since(self.full, can_start && is_full);
        self.joining = since(self.joining, can_join);
        self.joining_full = since(self.joining_full, can_join && guests >= room);
        if self.phase != Phase::Running {
            self.lost = None;
        }
    }
}
