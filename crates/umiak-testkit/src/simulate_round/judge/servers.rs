//! Rules for rounds with servers.

use std::time::Duration;

use umiak_core::facts::Outcome;
use umiak_core::machine::round::messages::Start;
use umiak_core::model::{FIRST_ATTEMPT, Part};

use super::super::scenario::{Fault, Kind, NOTICE};
use super::super::servers::ranks_of;
use super::super::world::NodeRun;
use super::{Judge, Rule};
use crate::simulate::{Death, Why};

impl Judge<'_> {
    pub(super) fn servers(&mut self) {
        self.waits();
        self.serves();
        self.needed();
    }

    /// Trainers start once each server on any node listens or has ended well, or when the time to wait is over.
    fn waits(&mut self) {
        let run = self.run;
        if !run.scenario.waits() {
            return;
        }
        for (index, node) in run.nodes.iter().enumerate() {
            for (attempt, at) in &node.trained {
                let Some((begun, start)) = node.starts.iter().find(|(_, start)| start.attempt == *attempt) else {
                    continue;
                };
                if !run.scenario.patient && *at >= *begun + run.scenario.server_timeout.unwrap_or_default() {
                    continue;
                }
                let truth = self.truth(*attempt);
                for rank in ranks_of(start, Part::Server) {
                    let heard = |(of, server, since): &(_, _, _)| (of, server) == (attempt, &rank) && since <= at;
                    let ended = |death: &Death| death.exit.is_success() && death.at <= *at;
                    let is_over = truth.get(&rank).copied().flatten().is_some_and(ended);
                    let listens = run.nodes.iter().any(|node| node.answers.iter().any(heard));
                    self.check(listens || is_over, Rule::Waits, || {
                        format!("node {index} started trainers at {at:?}, and server {rank} did not listen")
                    });
                }
            }
        }
    }

    /// A node serves until it receives the decision.
    fn serves(&mut self) {
        for (index, node) in self.run.nodes.iter().enumerate() {
            let faults = self.run.scenario.faults.iter();
            let own = |fault: &Fault| match fault {
                Fault::Signal { node, .. } | Fault::Stop { node } | Fault::GuardianLost { node } => *node == index,
                _ => false,
            };
            if faults.clone().any(|(_, fault)| own(fault)) {
                continue;
            }
            for (attempt, since) in &node.served {
                let end = node.signals.iter().find(|(of, at)| of == attempt && at >= since).map(|(_, at)| *at);
                let heard = node
                    .decisions
                    .iter()
                    .any(|(at, decision)| decision.attempt == *attempt && end.is_none_or(|end| *at <= end))
                    || node.stops.iter().any(|(of, at)| of == attempt && end.is_none_or(|end| *at <= end))
                    || node.other_end.is_some();
                let failed = fails_by_itself(node, *attempt);
                self.check(end.is_none() || heard || failed, Rule::Serves, || {
                    format!("node {index} stopped its servers at {end:?}, before any decision")
                });
            }
            if let Some((end, outcome, _)) = node.finished {
                let attempt = node.starts.last().map_or(FIRST_ATTEMPT, |(_, start)| start.attempt);
                let known = node.decisions[..node.known].iter().any(|(_, decision)| decision.attempt == attempt);
                let decided = known || node.other_end.is_some();
                self.check(decided || matches!(outcome, Outcome::Interrupted | Outcome::Stopped), Rule::Serves, || {
                    format!("node {index} was over at {end:?}, {outcome:?}, without a decision")
                });
            }
        }
    }

    /// A round in which a server died while trainers needed it is no success. While the last message is on its way
    /// either result is fine, if it is the same on all nodes.
    fn needed(&mut self) {
        if self.run.scenario.kind != Kind::Calm {
            return;
        }
        let way = Duration::from_millis(self.run.scenario.delay);
        for (attempt, decision) in self.decided() {
            let starts = self.run.nodes.iter().flat_map(|node| &node.starts);
            let Some((_, start)) = starts.clone().find(|(_, start)| start.attempt == attempt) else { continue };
            let truth = self.truth(attempt);
            let died = |rank: &u32| truth.get(rank).copied().flatten();
            let servers = ranks_of(start, Part::Server);
            let bad = |rank: &&u32| died(rank).is_some_and(|death| death.why == Why::Own && !death.exit.is_success());
            let Some(first) = servers.iter().filter(bad).filter_map(died).map(|death| death.at).min() else { continue };
            let last = ranks_of(start, Part::Trainer).iter().filter_map(died).map(|death| death.at).max();
            let missed = last.is_some_and(|last| first + NOTICE + way < last);
            self.check(!missed || decision.outcome != Outcome::Succeeded, Rule::Needed, || {
                format!("a server died at {first:?}, trainers ended at {last:?}, and the round succeeded")
            });
        }
    }

    /// True if a server of this attempt will not listen in time, or exits by itself.
    pub(super) fn is_late(&self, start: &Start) -> bool {
        let scripts = start.nodes.iter().filter_map(|share| {
            let node = self.run.scenario.nodes.iter().find(|node| node.launch == share.launch)?;
            Some(&node.script(start.attempt)[..node.servers])
        });
        let timeout = self.run.scenario.server_timeout.unwrap_or_default();
        scripts.flatten().any(|rank| {
            let late = |server: &super::super::ServerScript| server.answers.is_none_or(|answers| answers >= timeout);
            rank.server.as_ref().is_some_and(late) || rank.life.is_some()
        })
    }
}

/// True if one of its ranks ended badly by itself, or exceeded its limit.
fn fails_by_itself(node: &NodeRun, attempt: u32) -> bool {
    let place = node.spawned.iter().position(|(spawned, _)| *spawned == attempt);
    let deaths = place.and_then(|place| node.deaths.get(place)).map_or(&[][..], |(_, deaths)| deaths);
    node.late > 0 || deaths.iter().flatten().any(|death| death.why != Why::Ours && !death.exit.is_success())
}
