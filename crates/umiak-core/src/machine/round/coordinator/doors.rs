//! Admission: which nodes join, which are refused, and which are missing.

use std::collections::HashSet;
use std::net::IpAddr;

use super::super::messages::{
    Answer, Decision, Expects, Join, Loss, Missing, NodeName, Refusal, Servers, Stage, Stop, ToAgent, Waiting, Why,
};
use super::{Coordinator, Effect, Link, Node, Phase};
use crate::model::{MAX_NODES, Timestamp};

impl Coordinator {
    pub(super) fn joined(
        &mut self,
        link: Link,
        join: Join,
        source: Option<IpAddr>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(node) = self.nodes.iter().position(|node| node.join.launch == join.launch) {
            return self.rejoined(node, link, join, now, effects);
        }
        // The node beside the coordinator is always admitted first.
        let is_own = join.launch == self.options.launch;
        if self.is_forming() && !is_own && self.nodes.is_empty() {
            if self.early.len() < self.options.expects.nodes() {
                self.early.push((link, join, source));
            } else {
                effects.push(Effect::Close { link });
            }
            return;
        }
        if let Phase::Ended { decision, .. } = &self.phase
            && decision.is_refusal()
        {
            self.misfits += 1;
            effects.push(Effect::Send { links: vec![link], message: ToAgent::Decision(decision.clone()) });
            return effects.push(Effect::Close { link });
        }
        if let Err(refusal) = self.admit(&join, source) {
            return self.refuse(link, join, refusal, now, effects);
        }
        self.answers.retain(|(address, _)| *address != join.address);
        let standing = join.standing.clone();
        self.nodes.push(Node {
            join,
            source,
            link: Some(link),
            heard: now,
            down: None,
            stage: None,
            offer: None,
            listens: false,
            ends: Vec::new(),
            lost: None,
            interrupted: false,
            turn: None,
            bye: false,
            is_member: false,
            was_member: false,
            failures: 0,
            attempt: standing.attempt,
        });
        effects.push(Effect::Send { links: vec![link], message: ToAgent::Welcome });
        if let Phase::Running { start } = &self.phase {
            effects.push(Effect::Send { links: vec![link], message: ToAgent::Start((**start).clone()) });
        }
        self.news.pending = true;
        self.standing(self.nodes.len() - 1, standing, now, effects);
        for (link, join, source) in std::mem::take(&mut self.early) {
            // If the first node cannot start, the others hear that decision.
            self.advance(now, effects);
            self.joined(link, join, source, now, effects);
        }
    }

    /// Refuses a node; both sides display it. If nodes of one job contradict each other, it does not form. A node
    /// with another command belongs to a second job, which does not end this one.
    fn refuse(&mut self, link: Link, join: Join, refusal: Refusal, now: Timestamp, effects: &mut Vec<Effect>) {
        self.answered(join.address, Answer::TurnedAway(refusal.kind()));
        let same_command = self.nodes.first().is_some_and(|first| first.join.command == join.command);
        // An elastic job that has started goes on without a newcomer that does not fit.
        let is_common = same_command && refusal.is_contradiction() && self.members.started.is_empty();
        if !is_common && self.refusals.is_new(join.address, refusal.kind(), now) {
            // Our own console first: the other node may disconnect as soon as it is refused.
            let (address, host) = (join.address, join.host.clone());
            effects.push(Effect::Refused { address, host, refusal: refusal.clone() });
        }
        effects.push(Effect::Send { links: vec![link], message: ToAgent::Refused(refusal.clone()) });
        effects.push(Effect::Close { link });
        if is_common {
            self.misfits += 1;
            let node = NodeName { node: self.nodes.len() as u32, address: join.address, host: join.host };
            self.stop(Why::Refused { node, refusal }, now, effects);
        }
    }

    /// Handles a reconnected node: repeats the messages that it may have missed.
    pub(super) fn rejoined(&mut self, node: usize, link: Link, join: Join, now: Timestamp, effects: &mut Vec<Effect>) {
        if join.connected < self.nodes[node].join.connected {
            return effects.push(Effect::Close { link });
        }
        if self.is_elastic() && self.turns_back(node, link, &join, now, effects) {
            return;
        }
        let place = &mut self.nodes[node];
        if let Some(old) = place.link.replace(link).filter(|old| *old != link) {
            effects.push(Effect::Close { link: old });
        }
        place.join.connected = join.connected;
        (place.heard, place.down) = (now, None);
        effects.push(Effect::Send { links: vec![link], message: ToAgent::Welcome });
        // It may have missed the decision on the previous attempt. In an elastic job, a node that is ready accepts any
        // later attempt; only one that is awaited must say that it is ready for the next.
        let attempt = join.standing.attempt;
        let is_awaited = matches!(self.phase, Phase::Gathering { .. }) && !self.is_guest(node);
        let is_ready = self.is_elastic() && matches!(join.standing.stage, Stage::Ready(_));
        let has_missed = |last: &Decision| {
            if is_ready { is_awaited && attempt <= last.attempt } else { attempt == last.attempt }
        };
        if let Some(last) = self.last.clone().filter(|last| has_missed(last)) {
            effects.push(Effect::Send { links: vec![link], message: ToAgent::Decision(last) });
        }
        let message = match &self.phase {
            Phase::Stopping { .. } if !self.nodes[node].is_member => None,
            Phase::Gathering { .. } => Some(ToAgent::Waiting(self.waiting())),
            Phase::Running { start } => Some(ToAgent::Start((**start).clone())),
            Phase::Stopping { why, .. } => Some(ToAgent::Stop(Stop { attempt: self.attempt, why: why.clone() })),
            Phase::Ended { decision, .. } => Some(ToAgent::Decision(decision.clone())),
            Phase::Over => None,
        };
        if let Some(message) = message {
            effects.push(Effect::Send { links: vec![link], message });
        }
        if matches!(self.phase, Phase::Running { .. }) && self.nodes.iter().any(Node::has_servers) {
            let servers = Servers { attempt: self.attempt, missing: self.deaf() };
            effects.push(Effect::Send { links: vec![link], message: ToAgent::Servers(servers) });
        }
        // It has just been told to start.
        let starts = matches!((&self.phase, &join.standing.stage), (Phase::Running { .. }, Stage::Ready(_)));
        if !starts || !self.nodes[node].is_member {
            self.standing(node, join.standing, now, effects);
        }
    }

    /// Handles a member of an elastic job that comes back when the job no longer waits for it. True if it was one.
    fn turns_back(&mut self, node: usize, link: Link, join: &Join, now: Timestamp, effects: &mut Vec<Effect>) -> bool {
        let has_ranks = join.standing.stage.has_ranks();
        let is_lost = self.nodes[node].lost.is_some();
        if is_lost && matches!(self.phase, Phase::Stopping { .. }) {
            if has_ranks {
                self.refuse(link, join.clone(), Refusal::GivenUp, now, effects);
            } else {
                // It joins as a new node once the attempt that lost it is decided.
                effects.push(Effect::Close { link });
            }
            return true;
        }
        let attempt = join.standing.attempt;
        let has_left = matches!(join.standing.stage, Stage::Ready(_)) && attempt > self.attempt;
        let is_running = matches!(self.phase, Phase::Running { .. } | Phase::Stopping { .. });
        if has_left && is_running && self.nodes[node].is_member {
            // It took this coordinator for lost, and has stopped its ranks.
            let since = self.nodes[node].down.unwrap_or(self.nodes[node].heard);
            self.leave(node, Loss::Disconnected { after: now.since(since) }, now, effects);
            effects.push(Effect::Close { link });
            return true;
        }
        // Its ranks belong to an attempt whose end it can no longer be told.
        let is_known = attempt == self.attempt || self.last.as_ref().is_some_and(|last| last.attempt == attempt);
        let is_behind = attempt != self.attempt && self.nodes[node].is_member;
        if !has_ranks || is_lost || is_known && !is_behind {
            return false;
        }
        let since = self.nodes[node].down.unwrap_or(self.nodes[node].heard);
        self.refuse(link, join.clone(), Refusal::GivenUp, now, effects);
        self.leave(node, Loss::Disconnected { after: now.since(since) }, now, effects);
        true
    }

    /// Whether a new node may take part.
    pub(super) fn admit(&self, join: &Join, source: Option<IpAddr>) -> Result<(), Refusal> {
        let is_over = matches!(self.phase, Phase::Ended { .. } | Phase::Over);
        if is_over || !self.is_forming() && !self.is_elastic() {
            return Err(Refusal::TooLate);
        }
        // The number of nodes in etcd counts, which each node has compared with its own.
        let is_scalable = self.may_move() && matches!(join.expects, Expects::Range { .. });
        if join.expects != self.options.expects && !is_scalable {
            let (ours, theirs) = (self.options.expects.clone(), join.expects.clone());
            return Err(Refusal::OtherNodes { ours, theirs });
        }
        if let Some(ours) = self.nodes.first().map(|first| first.join.kind).filter(|ours| *ours != join.kind) {
            return Err(Refusal::Kinds { ours, theirs: join.kind, first: self.name(0) });
        }
        let taken = |by: usize| {
            let node = &self.nodes[by];
            Refusal::Taken {
                by: self.name(by),
                from: node.source.filter(|source| *source != node.join.address),
                same_command: node.join.command == join.command,
            }
        };
        match &self.options.expects {
            Expects::List(list) => {
                if !list.contains(&join.address) {
                    return Err(Refusal::NotListed { address: join.address, list: list.clone() });
                }
                if let Some(by) = self.nodes.iter().position(|node| node.join.address == join.address) {
                    return Err(taken(by));
                }
            }
            Expects::Range { .. } => {
                if self.nodes.len() >= MAX_NODES as usize {
                    return Err(Refusal::Full { nodes: MAX_NODES });
                }
            }
            Expects::Count { nodes, .. } => {
                if self.nodes.len() >= *nodes as usize {
                    return Err(Refusal::Full { nodes: *nodes });
                }
                // Several nodes of one host share its address. From elsewhere it is a mistake, or not a node.
                let shares = |node: &Node| node.join.address == join.address && node.source != source;
                if let Some(by) = self.nodes.iter().position(shares) {
                    return Err(taken(by));
                }
                if self.nodes.iter().any(|node| node.join.rank.is_some() != join.rank.is_some()) {
                    return Err(Refusal::MixedRanks);
                }
                if let Some(rank) = join.rank {
                    let by = self.nodes.iter().position(|node| node.join.rank == Some(rank));
                    if rank >= *nodes || by.is_some() {
                        return Err(Refusal::Rank { rank, nodes: *nodes, by: by.map(|by| self.name(by)) });
                    }
                }
            }
        }
        if self.is_elastic() && join.standing.stage.has_ranks() {
            return Err(Refusal::GivenUp);
        }
        // A node that cannot start reports why, which matters more than its number of processes.
        let processes = |join: &Join| match &join.standing.stage {
            Stage::Ready(offer) => Some(offer.processes.len() as u32),
            _ => None,
        };
        if let (false, Some(first)) = (self.options.uneven, self.nodes.first())
            && let (Some(ours), Some(theirs)) = (processes(&first.join), processes(join))
            && ours != theirs
        {
            return Err(Refusal::Processes { ours, theirs, first: self.name(0) });
        }
        Ok(())
    }

    pub(super) fn answered(&mut self, address: IpAddr, answer: Answer) {
        if !self.is_forming() {
            return;
        }
        let Some(known) = self.answers.iter().position(|(other, _)| *other == address) else {
            // Stray connections must not fill the list.
            if self.answers.len() < 1024 {
                self.answers.push((address, answer));
                self.news.pending = true;
            }
            return;
        };
        // A refusal explains more than a failed probe.
        let old = &self.answers[known].1;
        let says_why = matches!(old, Answer::TurnedAway(_) | Answer::OtherToken | Answer::OtherVersion { .. });
        let says_less = matches!(answer, Answer::Refused | Answer::Silent | Answer::NoRoute | Answer::Left);
        if *old == answer || (says_why && says_less) {
            return;
        }
        self.answers[known].1 = answer;
        self.news.pending = true;
    }

    pub(super) fn waiting(&self) -> Waiting {
        let answer = |address: &IpAddr| {
            let known = self.answers.iter().find(|(other, _)| other == address);
            known.map_or(Answer::Unknown, |(_, answer)| answer.clone())
        };
        let missing = match &self.options.expects {
            Expects::List(list) => {
                self.absent(list).into_iter().map(|address| Missing { answer: answer(&address), address }).collect()
            }
            // The missing addresses are unknown; those that were turned away are worth showing.
            Expects::Count { .. } | Expects::Range { .. } => self
                .answers
                .iter()
                .map(|(address, answer)| Missing { address: *address, answer: answer.clone() })
                .chain(self.awaited().map(|address| Missing { address, answer: Answer::Unknown }))
                .collect(),
        };
        let (of, most) = match self.options.expects {
            Expects::Range { min, max } => (min, Some(max)),
            _ => (self.options.expects.nodes() as u32, None),
        };
        let window = self.window_ends().map(|end| end.since(self.stepped));
        Waiting { joined: self.nodes.len() as u32, of, missing, most, window }
    }

    pub(super) fn absent(&self, list: &[IpAddr]) -> Vec<IpAddr> {
        let here: HashSet<IpAddr> = self.nodes.iter().map(|node| node.join.address).collect();
        list.iter().copied().filter(|address| !here.contains(address)).collect()
    }
}
