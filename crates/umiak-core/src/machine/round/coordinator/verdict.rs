//! How an attempt ends, the same for all nodes.

use super::super::messages::{Decision, Loss, RankPlace, Restart, ToAgent, Told, Why};
use super::{Coordinator, Effect, News, Node, Phase};
use crate::diagnose;
use crate::facts::{Finding, Outcome, Verdict, Weight};
use crate::machine::restart;
use crate::model::{Exit, Timestamp};

impl Coordinator {
    /// Ranks all reported ends and decides what caused the failure.
    pub(super) fn judge(&mut self, why: Why, now: Timestamp, effects: &mut Vec<Effect>) {
        let mut told: Vec<(u64, Told)> = Vec::new();
        for node in &self.nodes {
            if let Some(turn) = node.turn {
                told.extend(node.ends.iter().map(|end| (turn, end.clone())));
            }
        }
        // Within a node in the kernel's order, between nodes in the order of their first report.
        told.sort_by_key(|(turn, told)| (*turn, told.end.order));
        let places: Vec<RankPlace> = told.iter().map(|(_, told)| told.place.clone()).collect();
        let ends =
            told.into_iter().enumerate().map(|(order, (_, told))| diagnose::End { order: order as u64, ..told.end });
        let mut verdict = diagnose::rank(ends.collect());
        let mut why = why;
        if let Some(silent) = self.silent(now)
            && verdict.causes.iter().all(points_elsewhere)
        {
            // Ranks lose connections because a node went away: the node is the cause.
            if matches!(why, Why::RankFailed { .. }) {
                let node = &self.nodes[silent];
                let since = node.down.unwrap_or(node.heard);
                let how = node.lost.unwrap_or(match node.down {
                    Some(_) => Loss::Disconnected { after: now.since(since) },
                    None => Loss::Silent { after: now.since(since) },
                });
                why = Why::NodeLost { node: self.name(silent), how };
            }
            verdict = Verdict { causes: Vec::new(), victims: [verdict.causes, verdict.victims].concat() };
        }
        let ranks = |verdict: &Verdict| {
            let all = verdict.causes.iter().chain(&verdict.victims);
            all.filter_map(|finding| finding.subject.rank).map(|rank| rank.0).collect::<Vec<u32>>()
        };
        let shown = ranks(&verdict);
        let places = places.into_iter().filter(|place| shown.contains(&place.rank)).collect();
        self.end(Outcome::Failed, Some(why), Some((verdict, places)), now, effects);
    }

    /// The node that is lost or disconnected, or silent for longer than chance explains, or that neither reported nor
    /// sent heartbeats when all others did.
    pub(super) fn silent(&self, now: Timestamp) -> Option<usize> {
        let (limit, beat) = (self.options.limits.suspect(), self.options.limits.beat());
        // Of several, the one with the longest silence.
        let find = |is: &dyn Fn(&Node) -> bool| {
            let found = self.nodes.iter().enumerate().filter(|(_, node)| is(node));
            found.min_by_key(|(_, node)| node.heard).map(|(index, _)| index)
        };
        find(&|node| node.lost.is_some())
            .or_else(|| find(&|node| node.down.is_some()))
            .or_else(|| find(&|node| now >= node.heard + limit))
            .or_else(|| find(&|node| node.has_more_to_tell() && now >= node.heard + beat))
    }

    pub(super) fn end(
        &mut self,
        outcome: Outcome,
        why: Option<Why>,
        verdict: Option<(Verdict, Vec<RankPlace>)>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let restart = self.restart(outcome, why.as_ref(), now);
        let (verdict, places) = verdict.map_or((None, Vec::new()), |(verdict, places)| (Some(verdict), places));
        let decision = Box::new(Decision { attempt: self.attempt, outcome, why, verdict, places, restart });
        if restart.is_none() {
            // Our own front still listens; after the decision it no longer does.
            effects.extend(self.refusals.rest().map(|count| Effect::RefusedMore { count }));
        }
        self.send_all(ToAgent::Decision(decision.clone()), effects);
        match restart {
            Some(next) => {
                let policy = self.options.restart;
                self.restarts.retain(|at| restart::counts(&policy, *at, now));
                self.restarts.push(now);
                self.last = Some(decision);
                self.attempt = next.attempt;
                (self.turns, self.servers) = (0, News::default());
                for node in &mut self.nodes {
                    (node.stage, node.offer, node.turn, node.listens) = (None, None, None, false);
                    node.ends.clear();
                }
                self.phase = Phase::Gathering { since: now + next.delay };
            }
            None => self.phase = Phase::Ended { decision, since: now },
        }
    }

    /// The next attempt of the same nodes, if the failure allows one and no node is lost.
    pub(super) fn restart(&self, outcome: Outcome, why: Option<&Why>, now: Timestamp) -> Option<Restart> {
        let may = outcome == Outcome::Failed
            && matches!(why, Some(Why::RankFailed { .. } | Why::Hung))
            && self.nodes.iter().all(|node| node.lost.is_none() && !node.interrupted && !node.could_not_start());
        if !may {
            return None;
        }
        // Only documents have a table of exits, and they run on one node.
        let delay = restart::delay(
            &self.options.restart,
            &self.restarts,
            now,
            self.options.seed.wrapping_add(u64::from(self.attempt)),
        )?;
        Some(Restart { attempt: self.attempt + 1, delay })
    }
}

/// True if an end does not count against its rank once a node is lost: it names a lost peer, came after our stop, or
/// never started because servers were missing.
fn points_elsewhere(finding: &Finding) -> bool {
    matches!(finding.exit, Exit::Unmet { .. }) || (finding.weight >= Weight::Possible && finding.exit != Exit::Lost)
}
