//! Timed actions: suspicion, loss, news.

use std::time::Duration;

use super::super::limits::{GOODBYE, NEWS, PROBE, TELL, TELL_WHY};
use super::super::messages::{Expects, Loss, Stage, ToAgent};
use super::{Coordinator, Effect, Link, News, Node, Phase};
use crate::model::Timestamp;

impl Coordinator {
    /// Steps come at least as often as heartbeats. After a longer gap this process itself was suspended, so that time
    /// does not count as silence.
    pub(super) fn wake(&mut self, now: Timestamp) {
        let slept = now.since(self.stepped);
        self.stepped = now;
        if slept >= self.options.limits.suspect() {
            for node in &mut self.nodes {
                node.heard = (node.heard + slept).min(now);
                node.down = node.down.map(|down| (down + slept).min(now));
            }
        }
    }

    /// When [`Event::Tick`] is due at the latest.
    pub fn deadline(&self) -> Option<Timestamp> {
        let limits = &self.options.limits;
        // Called for every event: one allocation.
        let mut times = Vec::with_capacity(self.nodes.len() + 4);
        times.push(self.next_wake);
        match &self.phase {
            Phase::Over => return None,
            Phase::Gathering { since } => {
                times.push(*since + limits.rendezvous);
                if self.is_forming() {
                    times.push(self.next_probe);
                    if let (true, Some(last)) = (self.news.pending, self.news.last) {
                        times.push(last + NEWS);
                    }
                }
            }
            Phase::Running { .. } => {
                if let (true, Some(last)) = (self.servers.pending, self.servers.last) {
                    times.push(last + NEWS);
                }
            }
            Phase::Stopping { since, .. } => times.push(*since + self.options.settle + self.patience()),
            // Losses no longer matter.
            Phase::Ended { since, .. } => return Some(self.next_wake.min(*since + GOODBYE)),
        }
        times.extend(self.window_ends());
        for node in self.nodes.iter().filter(|node| node.lost.is_none()) {
            times.push(self.lost_at(node));
        }
        times.into_iter().min()
    }

    /// Handles everything that is due by time: suspicion, loss, news.
    pub(super) fn watch(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        if now >= self.next_wake {
            self.next_wake = now + self.options.limits.beat();
        }
        effects.extend(self.refusals.due(now).map(|count| Effect::RefusedMore { count }));
        self.lose(now, effects);
        self.suspect(now, effects);
        if !self.is_forming() {
            return;
        }
        if self.news.pending && self.news.last.is_none_or(|last| now >= last + NEWS) {
            // The time that is left is told again.
            self.news = News { pending: self.is_awaiting(), last: Some(now) };
            self.send_all(ToAgent::Waiting(self.waiting()), effects);
        }
        if now >= self.next_probe {
            self.next_probe = now + PROBE;
            if let Expects::List(list) = &self.options.expects {
                let addresses = self.absent(list);
                if !addresses.is_empty() {
                    effects.push(Effect::Probe { addresses });
                }
            }
        }
    }

    pub(super) fn lose(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Ended { .. }) {
            return;
        }
        let is_gone = |round: &Self, node: &Node| node.lost.is_none() && now >= round.lost_at(node);
        while let Some(node) = self.nodes.iter().position(|node| is_gone(self, node)) {
            let limits = &self.options.limits;
            let how = match self.nodes[node].down {
                Some(down) => Loss::Disconnected { after: now.since(down).min(limits.reconnect) },
                None => Loss::Silent { after: limits.silence },
            };
            self.leave(node, how, now, effects);
        }
    }

    /// When a node is lost that is not heard until then. In an elastic job, its ranks have stopped by then, connected or
    /// not: its last message was the last one that was answered.
    fn lost_at(&self, node: &Node) -> Timestamp {
        let limits = &self.options.limits;
        let silent = node.heard + limits.lost();
        match node.down.map(|down| down + limits.reconnect) {
            Some(gone) if !self.is_elastic() => gone,
            Some(_) | None => silent,
        }
    }

    pub(super) fn suspect(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let limit = self.options.limits.suspect();
        let quiet =
            |node: &Node| node.is_member && node.lost.is_none() && (node.down.is_some() || now >= node.heard + limit);
        if self.suspects.is_empty() && !self.nodes.iter().any(quiet) {
            return;
        }
        let suspects: Vec<usize> = (0..self.nodes.len()).filter(|node| quiet(&self.nodes[*node])).collect();
        let places: Vec<u32> = suspects.iter().map(|node| self.place(*node)).collect();
        // A node that is lost is no longer suspect, and its loss is told.
        if !matches!(self.phase, Phase::Running { .. }) {
            return self.suspects.clear();
        }
        if places != self.suspects {
            self.suspects = places;
            let names = suspects.into_iter().map(|node| self.name(node)).collect();
            let members = self.nodes.iter().filter(|node| node.is_member);
            let links: Vec<Link> = members.filter_map(|node| node.link).collect();
            if !links.is_empty() {
                effects.push(Effect::Send { links, message: ToAgent::Suspects { nodes: names } });
            }
        }
    }

    /// How long ends are collected after the settle window. A node that reported a failed rank has the reason, and a
    /// busy host may need a while to send it.
    pub(super) fn patience(&self) -> Duration {
        let knows = |node: &Node| matches!(node.stage, Some(Stage::Failed { .. })) && node.has_more_to_tell();
        if self.nodes.iter().any(knows) { TELL_WHY } else { TELL }
    }
}
