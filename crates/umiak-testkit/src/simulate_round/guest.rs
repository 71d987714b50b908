//! The front of a node in an elastic job that has not taken part yet: it waits for its first start, as a joiner or a
//! spare. Its job does not exist until then.

use std::time::Duration;

use umiak_core::facts::Outcome;
use umiak_core::machine::job::{AttemptId, Event, NODE_LOST};
use umiak_core::machine::round::agent::{self, News};
use umiak_core::machine::round::messages::{Stage, Standing};
use umiak_core::model::{FIRST_ATTEMPT, Rank, StepIndex};

use super::network::Packet;
use super::node::Fate;
use super::scenario::RankScript;
use super::world::{Item, Sabotage, World, new_machine};
use crate::simulate::{Death, Why, Words};

/// How long a node that cannot start tries to say so.
pub(super) const TELLING: Duration = Duration::from_secs(3);

impl World {
    /// True if the front has left the job before its first start. The coordinator's own then waits for the coordinator.
    pub(super) fn has_left_waiting(&self, node: usize) -> bool {
        self.nodes[node].is_waiting && self.nodes[node].run.finished.is_some()
    }

    pub(super) fn tell_waiting(&mut self, node: usize, news: News) {
        match news {
            News::Decision(decision) => {
                let (outcome, code) = match decision.outcome {
                    Outcome::Succeeded => (Outcome::Succeeded, 0),
                    outcome => (outcome, NODE_LOST),
                };
                self.nodes[node].run.decisions.push((self.now, *decision));
                self.leave_waiting(node, outcome, code);
            }
            News::Refused(_)
            | News::TurnedAway(_)
            | News::TimeUp(_)
            | News::Alone { .. }
            | News::Lost(_)
            | News::Moved(_) => {
                self.nodes[node].run.other_end = Some(format!("{news:?}"));
                if self.sabotage != Some(Sabotage::NeverAlone) {
                    self.leave_waiting(node, Outcome::Failed, NODE_LOST);
                }
            }
            News::Spare { .. } => self.nodes[node].run.spare += 1,
            News::Start(_)
            | News::Stop(_)
            | News::Servers(_)
            | News::Unreached(_)
            | News::Waiting(_)
            | News::Suspects(_)
            | News::Quiet
            | News::Back => {}
        }
    }

    pub(super) fn signal_waiting(&mut self, node: usize, signal: i32) {
        let stage = Stage::Interrupted { signal: Some(signal), kill: false };
        self.agent(node, agent::Event::Standing(Standing::new(FIRST_ATTEMPT, stage)));
        self.leave_waiting(node, Outcome::Interrupted, 128 + signal as u8);
    }

    /// The front leaves. Unless the agent has said goodbye, its last message is that it is gone.
    pub(super) fn leave_waiting(&mut self, node: usize, outcome: Outcome, code: u8) {
        let front = &mut self.nodes[node];
        if !front.is_waiting || front.run.finished.is_some() {
            return;
        }
        front.run.finished = Some((self.now, outcome, code));
        front.run.known = front.run.decisions.len();
        let has_said_bye = front.agent.is_over() && front.run.other_end.is_none();
        if !self.nodes[node].agent.is_over() {
            self.agent(node, agent::Event::Ended);
        }
        if let Some(conn) = self.nodes[node].conn.take() {
            if !has_said_bye {
                self.transmit(conn, true, Packet::Gone);
            }
            self.transmit(conn, true, Packet::Fin);
        }
        self.leave_if_over(node);
    }

    /// Gives the ranks of this node their numbers in this attempt. True if it is the first one for this node, whose job
    /// is made for it.
    pub(super) fn name(&mut self, node: usize, attempt: u32) -> bool {
        let first = self.nodes[node].first_rank;
        let numbers = vec![(first..first + self.nodes[node].alive.len() as u32).collect()];
        if self.nodes[node].is_waiting {
            let machine = new_machine(&self.scenario, node).ranks_from(Rank(first)).numbered(numbers);
            self.nodes[node].machine = machine.joining_at(attempt);
            self.nodes[node].is_waiting = false;
            return true;
        }
        if self.sabotage != Some(Sabotage::NoRename) {
            self.nodes[node].machine.rename(Rank(first), numbers);
        }
        false
    }

    /// The front has prepared the next attempt, or cannot.
    pub(super) fn prepared(&mut self, node: usize, standing: Standing) {
        if self.nodes[node].machine.is_finished() {
            return;
        }
        let (attempt, is_unable) = (standing.attempt, matches!(standing.stage, Stage::Unable { .. }));
        if self.sabotage == Some(Sabotage::DropReady) && !is_unable {
            return;
        }
        self.stand(node, standing);
        if is_unable && self.scenario.is_elastic() {
            self.job(node, Event::Prepared { attempt, ready: false });
        }
    }

    /// A rank cannot be started.
    pub(super) fn refuse_spawn(&mut self, node: usize, attempt: u32, rank: usize, script: &RankScript) {
        let fate = Fate { exit: script.end.clone(), why: Why::Own, words: Words::Silence };
        let death = Death { at: self.now, exit: fate.exit.clone(), why: fate.why, words: fate.words };
        if let Some((_, deaths)) = self.nodes[node].run.deaths.last_mut() {
            deaths[rank] = Some(death);
        }
        let id = AttemptId { step: StepIndex(0), slot: self.scenario.slot(node, rank), attempt };
        let exited = Event::Exited { id, exit: fate.exit, classed: None, usage: None };
        self.plan(self.now + script.reported, Item::Job(node, exited));
    }
}
