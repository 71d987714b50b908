//! How an attempt ends, the same for all nodes.

use std::time::Duration;

use super::super::messages::{Decision, Loss, RankPlace, Restart, ToAgent, Told, Why};
use super::{Coordinator, Effect, News, Node, Phase};
use crate::diagnose;
use crate::facts::{Finding, Outcome, Verdict, Weight};
use crate::machine::restart;
use crate::model::{ElasticLevel, Exit, Timestamp};

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
        // Nothing failed when nodes join, so a node that is only slow to report explains nothing.
        let is_wish = matches!(why, Why::Joined { .. } | Why::Scaled { .. });
        let explains = |node: &usize| !is_wish || self.nodes[*node].lost.is_some();
        if let Some(silent) = self.silent(now).filter(explains)
            && verdict.causes.iter().all(points_elsewhere)
        {
            // Ranks lose connections because a node went away: the node is the cause.
            if is_wish || matches!(why, Why::RankFailed { .. }) {
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
            let found = self.nodes.iter().enumerate().filter(|(_, node)| node.is_member && is(node));
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
        let (verdict, places) = verdict.map_or((None, Vec::new()), |(verdict, places)| (Some(verdict), places));
        let mut why = why;
        let left_out = verdict.as_ref().filter(|_| matches!(why, Some(Why::RankFailed { .. })));
        if let Some((node, failures)) = left_out.and_then(|verdict| self.count_failures(verdict)) {
            let its = Decision {
                attempt: self.attempt,
                outcome,
                why: why.clone(),
                verdict: verdict.clone(),
                places: places.clone(),
                restart: None,
                alone: true,
            };
            why = Some(self.leave_out(node, failures, its, effects));
            if self.is_own(node) {
                return self.hand_over(Loss::LeftOut { failures }, now, effects);
            }
        }
        let restart = self.restart(outcome, why.as_ref(), now);
        let (attempt, alone) = (self.attempt, false);
        let decision = Box::new(Decision { attempt, outcome, why, verdict, places, restart, alone });
        if restart.is_none() {
            // Our own front still listens; after the decision it no longer does.
            effects.extend(self.refusals.rest().map(|count| Effect::RefusedMore { count }));
            self.send_all(ToAgent::Decision(decision.clone()), effects);
        } else {
            self.send_members(ToAgent::Decision(decision.clone()), effects);
        }
        match restart {
            Some(next) => {
                let policy = self.options.restart;
                self.restarts.retain(|at| restart::counts(&policy, *at, now));
                // Members that come and go are no failures.
                if !is_change(decision.why.as_ref()) {
                    self.restarts.push(now);
                }
                self.gather_again(decision.why.as_ref());
                self.last = Some(decision);
                self.attempt = next.attempt;
                (self.turns, self.servers) = (0, News::default());
                let is_elastic = self.is_elastic();
                for node in &mut self.nodes {
                    node.was_member = node.is_member;
                }
                for node in self.nodes.iter_mut().filter(|node| node.is_member) {
                    node.is_member = !is_elastic;
                    (node.stage, node.offer, node.turn, node.listens) = (None, None, None, false);
                    node.ends.clear();
                }
                self.phase = Phase::Gathering { since: now + next.delay };
            }
            None => self.phase = Phase::Ended { decision, since: now },
        }
    }

    /// The next attempt, if the failure allows one: of the same nodes, unless the job is elastic.
    pub(super) fn restart(&self, outcome: Outcome, why: Option<&Why>, now: Timestamp) -> Option<Restart> {
        let is_change = self.is_elastic() && is_change(why);
        let may_be_lost = |node: usize| self.is_elastic() && !self.is_own(node);
        let may = outcome == Outcome::Failed
            && (is_change || matches!(why, Some(Why::RankFailed { .. } | Why::Hung)))
            && !(self.is_elastic() && self.options.level == ElasticLevel::Off)
            && self.nodes.iter().enumerate().all(|(index, node)| match node.lost {
                Some(_) => may_be_lost(index),
                None => !node.interrupted && !node.could_not_start(),
            });
        if !may {
            return None;
        }
        if is_change {
            return Some(Restart { attempt: self.attempt + 1, delay: Duration::ZERO, moves: false });
        }
        // Only documents have a table of exits, and they run on one node.
        let delay = restart::delay(
            &self.options.restart,
            &self.restarts,
            now,
            self.options.seed.wrapping_add(u64::from(self.attempt)),
        )?;
        Some(Restart { attempt: self.attempt + 1, delay, moves: false })
    }
}

/// True if the attempt ended because the members of the job change.
fn is_change(why: Option<&Why>) -> bool {
    matches!(why, Some(Why::NodeLost { .. } | Why::Joined { .. } | Why::Scaled { .. }))
}

/// True if an end does not count against its rank once a node is lost: it names a lost peer, came after our stop, or
/// never started because servers were missing.
fn points_elsewhere(finding: &Finding) -> bool {
    matches!(finding.exit, Exit::Unmet { .. }) || (finding.weight >= Weight::Possible && finding.exit != Exit::Lost)
}
