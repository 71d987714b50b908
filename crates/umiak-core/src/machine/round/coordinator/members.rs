//! Members of an elastic job, which may change between attempts. Nodes that have joined and do not take part in the
//! current attempt are guests: spares if the job is as large as it may be, else nodes that are waited with.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use super::super::messages::{
    AttemptEnd, Decision, Expects, LastAttempt, Loss, NodeCommand, NodeName, Stage, Standing, ToAgent, Why,
};
use super::{Coordinator, Effect, Past, Phase};
use crate::facts::{Outcome, Verdict};
use crate::model::{ElasticLevel, Exit, Timestamp};

/// A node whose ranks alone have failed in so many attempts in a row is left out.
const FAILURES: u32 = 3;

/// Number of nodes with another command that are told.
const COMMANDS: usize = 16;

/// No node has this launch id.
const UNKNOWN: u64 = 0;

/// The members of the last attempt, and what the next one waits for.
#[derive(Debug, Clone, Default)]
pub(super) struct Members {
    /// The launch ids of the last attempt's nodes, in their order.
    pub(super) started: Vec<u64>,
    /// The number of its ranks.
    pub(super) world: u32,
    /// Why it ended.
    pub(super) last: Option<LastAttempt>,
    /// Since when there are enough nodes for the first attempt.
    enough: Option<Timestamp>,
    /// Since when nodes wait to join the running one.
    joiners: Option<Timestamp>,
    /// The spares that were told last, by their launch ids.
    spares: Vec<u64>,
    /// Nodes that had another coordinator before, and until when they are awaited.
    awaited: Option<(Vec<u64>, Timestamp)>,
}

impl Members {
    /// Those of a job that goes on under a new coordinator.
    pub(super) fn after(past: &Past, now: Timestamp) -> Self {
        let started: Vec<u64> = past.start.nodes.iter().map(|node| node.launch).collect();
        let world = past.start.nodes.iter().map(|node| node.processes.len() as u32).sum();
        let (changes, counted) = past.start.last.map_or((0, 0), |last| (last.changes, last.counted));
        let awaited = started.iter().copied().filter(|launch| *launch != past.coordinator).collect();
        Self {
            started,
            world,
            last: Some(LastAttempt { world, end: past.end, changes: changes + 1, counted }),
            awaited: Some((awaited, now + past.patience)),
            ..Self::default()
        }
    }

    /// Those of a job whose last coordinator and nodes are unknown: ranks of it may still run for a while.
    pub(super) fn after_unknown(patience: Duration, now: Timestamp) -> Self {
        Self { awaited: Some((vec![UNKNOWN], now + patience)), ..Self::default() }
    }
}

impl Coordinator {
    pub(super) fn is_elastic(&self) -> bool {
        self.range().is_some()
    }

    fn range(&self) -> Option<(usize, usize)> {
        match self.options.expects {
            Expects::Range { min, max } => Some((min as usize, max as usize)),
            Expects::List(_) | Expects::Count { .. } => None,
        }
    }

    /// True if another node can become the coordinator.
    pub(super) fn may_move(&self) -> bool {
        self.options.succession.is_some()
    }

    /// True once the job goes on under another coordinator. Heartbeats are no longer answered: nodes that do not hear of it
    /// stop their ranks.
    pub fn has_moved(&self) -> bool {
        matches!(&self.phase, Phase::Ended { decision, .. } if decision.moves())
    }

    /// True for the node beside the coordinator.
    pub(super) fn is_own(&self, node: usize) -> bool {
        self.nodes[node].join.launch == self.options.launch
    }

    /// True if the current attempt does not need this node.
    pub(super) fn is_guest(&self, node: usize) -> bool {
        if !self.is_elastic() {
            return self.is_forming();
        }
        match self.phase {
            Phase::Gathering { .. } => !self.nodes[node].was_member,
            Phase::Running { .. } | Phase::Stopping { .. } => !self.nodes[node].is_member,
            Phase::Ended { .. } | Phase::Over => false,
        }
    }

    /// Handles a report that is none about the current attempt: a guest is ready, or a node leaves. True if it was one.
    pub(super) fn guest_stands(
        &mut self,
        node: usize,
        standing: &Standing,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if matches!(self.phase, Phase::Ended { .. } | Phase::Over) {
            return false;
        }
        let is_guest = self.is_guest(node);
        if let (true, Stage::Interrupted { signal: None, kill }) = (is_guest, &standing.stage) {
            let why = Why::Interrupted { node: self.name(node), signal: None, kill: *kill };
            self.stop(why, now, effects);
            return true;
        }
        let leaves = match &standing.stage {
            // `umiak stop` is about the job.
            Stage::Interrupted { signal: Some(signal), kill } => {
                let (node, signal) = (self.name(node), Some(*signal));
                Some((Outcome::Interrupted, Why::Interrupted { node, signal, kill: *kill }))
            }
            Stage::Unable { why } => Some((Outcome::Failed, Why::Unable { node: self.name(node), why: why.clone() })),
            _ => None,
        };
        let may_leave = !self.is_own(node) || self.may_move() && self.options.level != ElasticLevel::Off;
        if let Some((outcome, why)) = leaves.filter(|_| may_leave) {
            let attempt = standing.attempt;
            let (why, verdict, places) = (Some(why), None, Vec::new());
            let decision = Decision { attempt, outcome, why, verdict, places, restart: None, alone: true };
            self.dismiss(node, decision, effects);
            if self.is_own(node) {
                self.hand_over(Loss::Left, now, effects);
            } else {
                self.leave(node, Loss::Left, now, effects);
            }
            return true;
        }
        if let (true, Stage::Ready(offer)) = (is_guest, &standing.stage) {
            let place = &mut self.nodes[node];
            (place.stage, place.offer) = (Some(standing.stage.clone()), Some(offer.clone()));
            place.attempt = standing.attempt;
            // There was an attempt whose members are unknown here.
            if let Some((awaited, _)) = self.members.awaited.as_mut().filter(|_| standing.attempt > self.attempt) {
                awaited.push(UNKNOWN);
            }
        }
        is_guest
    }

    /// The coordinator leaves, or must no longer be it: the others go on under another one. Its own node goes on with them,
    /// unless it has been dismissed.
    pub(super) fn hand_over(&mut self, how: Loss, now: Timestamp, effects: &mut Vec<Effect>) {
        let own = (0..self.nodes.len()).find(|node| self.is_own(*node));
        let at = self.options.succession.as_ref().map_or(IpAddr::from([0; 4]), |succession| succession.at.address);
        let unknown = || NodeName { node: 0, address: at, host: String::new() };
        let name = own.map_or_else(unknown, |own| self.name(own));
        let decision = Box::new(Decision::coordinator_lost(self.attempt, name, how));
        if let Some(own) = own.filter(|_| !matches!(how, Loss::Fenced | Loss::Deposed)) {
            self.nodes[own].link = None;
            self.nodes[own].lost = Some(how);
        }
        effects.extend(self.refusals.rest().map(|count| Effect::RefusedMore { count }));
        self.send_all(ToAgent::Decision(decision.clone()), effects);
        effects.extend(self.early.drain(..).map(|(link, ..)| Effect::Close { link }));
        self.phase = Phase::Ended { decision, since: now };
    }

    pub(super) fn resign(&mut self, how: Loss, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.may_move() && !matches!(self.phase, Phase::Ended { .. } | Phase::Over) {
            self.hand_over(how, now, effects);
        }
    }

    /// The number of nodes was changed.
    pub(super) fn scaled(&mut self, min: u32, max: u32) {
        if self.is_elastic() {
            self.options.expects = Expects::Range { min, max };
            self.news.pending = true;
        }
    }

    /// Why the running attempt has too few or too many nodes, after their number was changed.
    pub(super) fn misfit(&self) -> Option<Why> {
        let Expects::Range { min, max } = self.options.expects else { return None };
        let nodes = self.order.len() as u32;
        (nodes < min || nodes > max).then_some(Why::Scaled { min, max })
    }

    /// Tells a node how the job ends for it, while the others continue.
    fn dismiss(&self, node: usize, decision: Decision, effects: &mut Vec<Effect>) {
        if let Some(link) = self.nodes[node].link {
            effects.push(Effect::Send { links: vec![link], message: ToAgent::Decision(Box::new(decision)) });
        }
    }

    /// The members of the next attempt in their order, if it can start. Members of the last one are waited for until they
    /// are lost. Others are waited for only before the first one.
    pub(super) fn ready_members(&mut self, now: Timestamp) -> Option<Vec<usize>> {
        let (min, max) = self.range()?;
        let is_first = self.members.started.is_empty();
        self.members.awaited.take_if(|(_, until)| now >= *until);
        let before: HashMap<u64, usize> = self.members.started.iter().copied().zip(0..).collect();
        let mut ready: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_ready()).collect();
        // The ranks of a member whose connection broke may still run.
        let is_awaited = |node: &super::Node| {
            let is_here = node.link.is_some() && before.contains_key(&node.join.launch);
            !node.is_ready() && (is_here || node.was_member)
        };
        if ready.len() < min || !ready.iter().any(|node| self.is_own(*node)) || self.nodes.iter().any(is_awaited) {
            self.members.enough = None;
            return None;
        }
        if let Some((awaited, _)) = &self.members.awaited {
            let is_here = |launch: &u64| ready.iter().any(|node| self.nodes[*node].join.launch == *launch);
            if !awaited.iter().all(is_here) {
                return None;
            }
            self.members.awaited = None;
        }
        let enough = *self.members.enough.get_or_insert(now);
        // The window does not outlast the rendezvous, which has not failed: there are enough.
        let is_late = matches!(self.phase, Phase::Gathering { since } if now >= since + self.options.limits.rendezvous);
        if is_first && ready.len() < max && now < enough + self.options.window && !is_late {
            return None;
        }
        // Members of the last attempt in their order, then the others as they came, the coordinator's own first.
        ready.sort_by_key(|node| {
            let launch = self.nodes[*node].join.launch;
            (before.get(&launch).copied().unwrap_or(usize::MAX), launch != self.options.launch)
        });
        ready.truncate(max);
        let place = |node: &usize| before.get(&self.nodes[*node].join.launch).copied();
        Some(placed(&ready, place))
    }

    /// The nodes that join now, if the running attempt is to end for them.
    pub(super) fn joining(&mut self, now: Timestamp) -> Option<Vec<NodeName>> {
        let (_, max) = self.range()?;
        let room = max.saturating_sub(self.order.len());
        let is_waiting = |node: &usize| !self.nodes[*node].is_member && self.nodes[*node].is_ready();
        let waiting: Vec<usize> = (0..self.nodes.len()).filter(is_waiting).collect();
        if room == 0 || waiting.is_empty() {
            self.members.joiners = None;
            return None;
        }
        let since = *self.members.joiners.get_or_insert(now);
        let is_time = waiting.len() >= room || now >= since + self.options.window;
        is_time.then(|| waiting.iter().take(room).map(|node| self.name(*node)).collect())
    }

    /// The commands of members that differ from the one of the coordinator's node, which comes first.
    pub(super) fn commands(&self) -> Vec<NodeCommand> {
        let join = |place: usize| &self.nodes[self.order[place]].join;
        let own = self.order.iter().position(|node| self.is_own(*node)).filter(|_| self.is_elastic());
        let Some(own) = own else { return Vec::new() };
        let differs = |place: &usize| !join(*place).line.is_empty() && join(*place).command != join(own).command;
        let others: Vec<usize> = (0..self.order.len()).filter(differs).take(COMMANDS).collect();
        let all = std::iter::once(own).filter(|_| !others.is_empty()).chain(others.iter().copied());
        all.map(|place| NodeCommand { node: place as u32, line: join(place).line.clone() }).collect()
    }

    /// The nodes that wait for their turn, if others than before.
    pub(super) fn spares(&mut self) -> Option<Effect> {
        if !self.is_elastic() || !matches!(self.phase, Phase::Running { .. }) {
            return None;
        }
        // While there is room, they join.
        let has_room = self.range().is_some_and(|(_, max)| self.order.len() < max);
        let is_spare = |node: &&super::Node| !has_room && !node.is_member && node.is_ready();
        let spares = self.nodes.iter().filter(is_spare).map(|node| node.join.launch);
        if spares.clone().eq(self.members.spares.iter().copied()) {
            return None;
        }
        self.members.spares = spares.collect();
        let nodes = (0..self.nodes.len()).filter(|node| is_spare(&&self.nodes[*node])).map(|node| self.name(node));
        Some(Effect::Spares { nodes: nodes.collect() })
    }

    /// True while nodes that had another coordinator before are awaited.
    pub(super) fn is_awaiting(&self) -> bool {
        self.members.awaited.is_some()
    }

    /// The addresses of those that have not come.
    pub(super) fn awaited(&self) -> impl Iterator<Item = IpAddr> {
        let past = self.options.succession.as_ref().and_then(|succession| succession.past.as_ref());
        let shares = past.into_iter().flat_map(|past| &past.start.nodes);
        let is_awaited = |launch: u64| self.members.awaited.as_ref().is_some_and(|(nodes, _)| nodes.contains(&launch));
        let is_here = |launch: u64| self.nodes.iter().any(|node| node.join.launch == launch);
        shares.filter(move |share| is_awaited(share.launch) && !is_here(share.launch)).map(|share| share.address)
    }

    /// When the window for other nodes closes.
    pub(super) fn window_ends(&self) -> Option<Timestamp> {
        if let (Phase::Gathering { .. }, Some((_, until))) = (&self.phase, &self.members.awaited) {
            return Some(*until);
        }
        let since = match self.phase {
            Phase::Gathering { .. } if self.members.started.is_empty() => self.members.enough,
            Phase::Running { .. } => self.members.joiners,
            _ => None,
        };
        since.map(|since| since + self.options.window)
    }

    /// Counts failures of single nodes. Returns the node to leave out, and the number of its failures: its ranks keep
    /// failing, or cannot be started, and the others are enough.
    pub(super) fn count_failures(&mut self, verdict: &Verdict) -> Option<(usize, u32)> {
        let (min, _) = self.range()?;
        let node_of = |rank: u32| {
            let has = |node: &super::Node| node.ends.iter().any(|told| told.place.rank == rank);
            self.nodes.iter().position(has)
        };
        let ranks = verdict.causes.iter().filter_map(|cause| cause.subject.rank);
        let nodes: Vec<usize> = ranks.filter_map(|rank| node_of(rank.0)).collect();
        let only = nodes.first().copied().filter(|first| nodes.iter().all(|node| node == first));
        for (index, node) in self.nodes.iter_mut().enumerate() {
            node.failures = if only == Some(index) { node.failures + 1 } else { 0 };
        }
        let only = only.filter(|only| !self.is_own(*only) || self.may_move())?;
        let failures = self.nodes[only].failures;
        if self.options.level == ElasticLevel::Nodes {
            return Some((only, failures));
        }
        let cannot_start = verdict.causes.iter().all(|cause| matches!(cause.exit, Exit::Spawn(_)));
        let others = self.nodes.iter().enumerate().filter(|(node, other)| *node != only && other.link.is_some());
        let is_left_out = (failures >= FAILURES || cannot_start) && others.count() >= min;
        is_left_out.then_some((only, if cannot_start { 0 } else { failures }))
    }

    /// Leaves a node out of the next attempt: it ends with the failure.
    pub(super) fn leave_out(
        &mut self,
        node: usize,
        failures: u32,
        decision: Decision,
        effects: &mut Vec<Effect>,
    ) -> Why {
        self.dismiss(node, decision, effects);
        let how = Loss::LeftOut { failures };
        let place = &mut self.nodes[node];
        effects.extend(place.link.take().map(|link| Effect::Close { link }));
        place.lost = Some(how);
        Why::NodeLost { node: self.name(node), how }
    }

    /// Prepares the next attempt: members that were lost are forgotten, and all others may take part.
    pub(super) fn gather_again(&mut self, why: Option<&Why>) {
        let end = match why {
            Some(Why::Joined { .. }) => AttemptEnd::NodeJoined,
            Some(Why::Scaled { .. }) => AttemptEnd::Scaled,
            Some(Why::NodeLost { how: Loss::Left, .. }) => AttemptEnd::NodeLeft,
            Some(Why::NodeLost { .. }) => AttemptEnd::NodeLost,
            Some(Why::Hung) => AttemptEnd::Hung,
            _ => AttemptEnd::RankFailed,
        };
        let is_failure = matches!(end, AttemptEnd::RankFailed | AttemptEnd::Hung);
        let changes = self.members.last.map_or(0, |last| last.changes) + u32::from(!is_failure);
        let counted = self.restarts.len() as u32;
        self.members.last = Some(LastAttempt { world: self.members.world, end, changes, counted });
        (self.members.enough, self.members.joiners) = (None, None);
        if self.is_elastic() {
            self.nodes.retain(|node| node.lost.is_none());
            self.order.clear();
            self.news.pending = true;
        }
    }
}

/// The order of nodes: each keeps its place if the job is still large enough for it, and the others fill the gaps from
/// the first on.
fn placed(nodes: &[usize], before: impl Fn(&usize) -> Option<usize>) -> Vec<usize> {
    let mut places: Vec<Option<usize>> = vec![None; nodes.len()];
    let mut others = Vec::new();
    for node in nodes {
        match before(node).filter(|place| *place < nodes.len()) {
            Some(place) => places[place] = Some(*node),
            None => others.push(*node),
        }
    }
    let mut others = others.into_iter();
    places.into_iter().filter_map(|place| place.or_else(|| others.next())).collect()
}
