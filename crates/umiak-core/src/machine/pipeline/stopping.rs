//! What ends a pipeline early: a failure under `fail_fast`, or a request to stop.

use super::{Effect, Machine, OnFailure, Outcome, Phase, ROOT, State, StepIndex, StopReason};
use crate::facts::{Fact, NodeEnd};

/// A request to stop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    /// The first reason decides the outcome.
    pub(super) reason: StopReason,
    /// Steps are killed, and the post step does not run.
    pub(super) force: bool,
}

impl Stop {
    pub(super) fn outcome(self) -> Outcome {
        match self.reason {
            StopReason::Signal { .. } | StopReason::SecondSignal { .. } | StopReason::SignalElsewhere { .. } => {
                Outcome::Interrupted
            }
            StopReason::Completed
            | StopReason::PeerFailed
            | StopReason::Resized
            | StopReason::NodeLost
            | StopReason::Hung
            | StopReason::Timeout
            | StopReason::StepFailed
            | StopReason::User => Outcome::Stopped,
        }
    }
}

impl Machine {
    pub(super) fn is_killed(&self) -> bool {
        self.stop.is_some_and(|stop| stop.force)
    }

    /// True if the post step runs although the run is asked to stop.
    pub fn spares_post(&self) -> bool {
        self.stop.is_some() && self.post.is_some_and(|post| self.instances.get(post).state == State::Running)
    }

    /// True if nothing but the post step starts any more.
    pub(super) fn is_halted(&self) -> bool {
        self.failed_fast || self.stop.is_some()
    }

    pub(super) fn stop_asked(&mut self, reason: StopReason, force: bool, effects: &mut Vec<Effect>) {
        effects.push(Effect::Record { id: ROOT, fact: Fact::Stopping { reason } });
        self.stop = Some(match self.stop {
            Some(first) => Stop { force: true, ..first },
            None => Stop { reason, force },
        });
        if self.phase == Phase::Running {
            self.halt(effects);
        }
    }

    pub(super) fn fail_fast(&mut self, effects: &mut Vec<Effect>) {
        if self.pipeline.on_failure == OnFailure::FailFast && !self.failed_fast {
            self.failed_fast = true;
            self.halt(effects);
        }
    }

    /// Stops what runs and cancels what has not started. The post step is spared, unless the stop is forced.
    pub(super) fn halt(&mut self, effects: &mut Vec<Effect>) {
        let force = self.is_killed();
        if force
            && self.post.is_none()
            && let Some(node) = self.pipeline.post
        {
            self.post = Some(self.create(node, ROOT, None));
        }
        let spared = self.post.filter(|_| !force);
        self.due.clear();
        self.queue.retain(|id| Some(*id) == spared);
        let mut ids = Vec::new();
        for id in (0..self.instances.len()).map(StepIndex).filter(|id| Some(*id) != spared) {
            let instance = self.instances.get_mut(id);
            match instance.state {
                State::Waiting | State::Ready | State::Resolving => self.leave(id, NodeEnd::Cancelled, effects),
                State::Running | State::Stopping if force => {
                    instance.state = State::Killing;
                    ids.push(id);
                }
                State::Running => {
                    instance.state = State::Stopping;
                    ids.push(id);
                }
                State::Open | State::Closing | State::Stopping | State::Killing | State::Ended(_) => {}
            }
        }
        if !ids.is_empty() {
            effects.push(Effect::Stop { ids, force });
        }
    }
}
