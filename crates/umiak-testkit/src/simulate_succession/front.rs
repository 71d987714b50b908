//! What the front of a node does when it leads, follows, loses its coordinator, and leaves. As `umiak::front::launch` does.

use umiak_core::facts::Outcome;
use umiak_core::machine::job::{Decided, Event, Machine, NODE_LOST};
use umiak_core::machine::round::agent::{self, News};
use umiak_core::machine::round::coordinator::{self, Options, Past, Succession};
use umiak_core::machine::round::election::Reign;
use umiak_core::machine::round::limits::ANSWER;
use umiak_core::machine::round::messages::{AttemptEnd, Decision, Loss, NodeName, Refusal, Stage, Standing, Start};
use umiak_core::model::{ElasticLevel, Endpoint, FIRST_ATTEMPT, Port, Restart};

use super::candidate::Report;
use super::etcd::{Ask, End};
use super::journal::Entry;
use super::scenario::{LEAVING, SETTLE, Scenario};
use super::world::{Item, Sabotage, State, World};

impl World {
    pub(super) fn come(&mut self, front: usize) {
        let host = self.scenario.fronts[front].host;
        let is_taken = self.on_host(host).is_some();
        let is_ending =
            (0..self.fronts.len()).any(|other| self.scenario.fronts[other].host == host && self.has_ranks(other));
        // The ports and devices of the last one are not free.
        if is_taken || is_ending {
            return;
        }
        let now = self.local(front);
        let launch = self.new_launch(front);
        let ready = self.offer(front, FIRST_ATTEMPT);
        let node = &mut self.fronts[front];
        (node.state, node.launch, node.ready) = (State::Waiting, launch, ready);
        node.election = umiak_core::machine::round::election::Election::new(self.scenario.lease, now);
        node.candidate.renew_at = now;
        self.record(Entry::Came { front });
        self.ask(front, Ask::List);
    }

    fn new_launch(&mut self, front: usize) -> u64 {
        let launch = self.rng.u64(1..);
        self.launches.insert(launch, front);
        launch
    }

    /// The launch that is on this host.
    pub(super) fn on_host(&self, host: usize) -> Option<usize> {
        (0..self.fronts.len())
            .find(|front| self.scenario.fronts[*front].host == host && self.fronts[*front].state.is_here())
    }

    pub(super) fn reported(&mut self, front: usize, report: Report) {
        let is_waiting = self.fronts[front].state == State::Waiting;
        if !is_waiting && self.fronts[front].state != State::Running {
            return;
        }
        match report {
            Report::Lead(reign) => self.lead(front, reign),
            Report::Follow(reign) => self.follow(front, reign),
            Report::Vacated if is_waiting => self.look_again(front),
            Report::Vacated => self.lose_coordinator(front, Loss::Fenced),
            Report::Fence => {
                self.order(front, coordinator::Event::Fenced(Loss::Fenced));
                if is_waiting {
                    self.look_again(front);
                } else {
                    self.lose_coordinator(front, Loss::Fenced);
                }
            }
            Report::Scaled { min, max } => self.order(front, coordinator::Event::Scaled { min, max }),
            Report::Over(end) if is_waiting => self.close(front, end.outcome, end.code),
            Report::Over(End { outcome, code, .. }) => {
                let Some(machine) = &self.fronts[front].machine else { return };
                let attempt = machine.attempt() + u32::from(machine.is_pausing());
                let decided = Decided {
                    attempt,
                    outcome,
                    verdict: None,
                    signal: None,
                    kill: false,
                    code: Some(code),
                    restart: None,
                    change: None,
                };
                self.job(front, Event::Decided(Box::new(decided)));
            }
            Report::Failed if is_waiting => self.close(front, Outcome::Failed, NODE_LOST),
            Report::Failed => self.job(front, Event::Alone),
        }
    }

    /// An order for the coordinator beside this node.
    fn order(&mut self, front: usize, event: coordinator::Event) {
        if let Some(net) = self.fronts[front].net {
            self.coordinator(net, event);
        }
    }

    fn lead(&mut self, front: usize, reign: Reign) {
        let node = &mut self.fronts[front];
        let coordinator = node.reign.map_or(0, |reign| reign.leader.launch);
        node.reign = Some(reign);
        let scenario = &self.scenario;
        let patience = match self.sabotage {
            Some(Sabotage::NoPatience) => std::time::Duration::ZERO,
            _ => scenario.limits.fence() + scenario.grace,
        };
        let start = node.start.clone().filter(|_| self.sabotage != Some(Sabotage::ForgetPast));
        let is_unknown = start.is_none() && self.journal.iter().any(|(_, entry)| matches!(entry, Entry::Leads { .. }));
        let unknown = is_unknown.then_some(patience);
        let past = start.map(|start| Past { start, coordinator, end: AttemptEnd::NodeLost, patience });
        let port = Port::new(reign.leader.at.port()).expect("not 0");
        let more = if self.sabotage == Some(Sabotage::MoreRestarts) { 2 } else { 0 };
        let options = Options {
            expects: scenario.expects(),
            launch: node.launch,
            uneven: true,
            limits: scenario.limits,
            settle: SETTLE,
            hang: None,
            restart: Restart { max: scenario.restart.max + more, ..scenario.restart },
            window: scenario.window,
            level: ElasticLevel::Ranks,
            succession: Some(Succession {
                at: Endpoint { address: reign.leader.at.ip(), port },
                has_store: false,
                past,
                unknown,
            }),
            seed: scenario.seed,
        };
        let known = self.fronts[front].start.as_ref();
        let restarts = known.and_then(|start| start.last).map_or(0, |last| last.counted);
        self.record(Entry::Leads { front, revision: reign.revision, restarts });
        self.begin_net(front, port.get(), Some(options));
    }

    fn follow(&mut self, front: usize, reign: Reign) {
        self.fronts[front].reign = Some(reign);
        self.begin_net(front, reign.leader.at.port(), None);
    }

    /// The coordinator is lost, or has left. Messages to other nodes are still delivered.
    fn forget_coordinator(&mut self, front: usize) {
        if let Some(net) = self.fronts[front].net.take() {
            if let Some(old) = self.fronts[front].old.replace(net) {
                self.drop_net(old, false);
            }
            self.leave_net(net);
        }
    }

    fn look_again(&mut self, front: usize) {
        self.forget_coordinator(front);
        self.look(front);
    }

    pub(super) fn hear(&mut self, net: usize, news: News) {
        let front = self.nets[net].front;
        if self.fronts[front].net != Some(net) {
            return;
        }
        if matches!(news, News::Waiting(_) | News::Start(_) | News::Spare(_)) {
            self.fronts[front].candidate.looking = None;
        }
        if !matches!(news, News::Waiting(_) | News::Suspects(_)) {
            self.note(|| format!("{front} hears {news:?}"));
        }
        match self.fronts[front].state {
            State::Waiting => self.hear_waiting(front, news),
            State::Running => self.hear_running(front, news),
            State::Absent | State::Leaving | State::Finishing | State::Left | State::Dead => {}
        }
    }

    fn hear_waiting(&mut self, front: usize, news: News) {
        match news {
            News::Spare(start) => self.fronts[front].start = Some(start),
            News::Start(start) => {
                self.fronts[front].start = Some(start.clone());
                self.fronts[front].state = State::Running;
                self.first_start(front, &start);
            }
            News::Moved(_) | News::Lost(_) | News::TimeUp(_) | News::Refused(Refusal::TooLate | Refusal::GivenUp) => {
                self.look_again(front);
            }
            News::Refused(_) | News::TurnedAway(_) => self.close(front, Outcome::Failed, NODE_LOST),
            News::Decision(decision) => {
                let code = if decision.outcome == Outcome::Succeeded { 0 } else { NODE_LOST };
                self.close(front, decision.outcome, code);
            }
            News::Stop(_)
            | News::Alone { .. }
            | News::Servers(_)
            | News::Suspects(_)
            | News::Unreached(_)
            | News::Waiting(_)
            | News::Quiet
            | News::Back => {}
        }
    }

    fn hear_running(&mut self, front: usize, news: News) {
        match news {
            News::Start(start) => {
                self.fronts[front].start = Some(start.clone());
                self.start_next(front, &start);
            }
            News::Spare(start) => self.fronts[front].start = Some(start),
            News::Stop(stop) => self.job(front, Event::StoppedElsewhere(stop.reason())),
            News::Decision(decision) => {
                self.fronts[front].is_over |= decision.restart.is_none() && !decision.alone;
                self.job(front, Event::Decided(Box::new(decision.decided())));
            }
            News::Moved(decision) => self.move_on(front, *decision),
            News::Alone { .. } => self.lose_coordinator(front, Loss::Silent { after: ANSWER }),
            News::Lost(how) => self.lose_coordinator(front, how),
            News::Refused(_) | News::TurnedAway(_) | News::TimeUp(_) => self.lose_coordinator(front, Loss::Refused),
            News::Servers(_) | News::Suspects(_) | News::Unreached(_) | News::Waiting(_) | News::Quiet | News::Back => {
            }
        }
    }

    fn lose_coordinator(&mut self, front: usize, how: Loss) {
        let Some(attempt) = self.fronts[front].machine.as_ref().map(Machine::attempt) else { return };
        let node = NodeName { node: 0, address: Scenario::address(0), host: "coordinator".to_owned() };
        self.move_on(front, Decision::coordinator_lost(attempt, node, how));
    }

    /// The job goes on under another coordinator: ranks are stopped, and this node looks for it when it is ready.
    fn move_on(&mut self, front: usize, mut decision: Decision) {
        self.forget_coordinator(front);
        let Some(machine) = &self.fronts[front].machine else { return };
        // One that is in its back-off before an attempt that has been started misses that attempt.
        if machine.is_pausing() && !self.fronts[front].is_named {
            if self.fronts[front].next {
                self.look(front);
            }
            return;
        }
        decision.attempt = machine.attempt() + u32::from(machine.is_pausing());
        self.job(front, Event::Decided(Box::new(decision.decided())));
    }

    fn start_next(&mut self, front: usize, start: &Start) {
        if self.fronts[front].outcome.is_some() {
            return;
        }
        let ready = std::mem::take(&mut self.fronts[front].next);
        if ready {
            self.name_ranks(front, start);
            self.fronts[front].is_named = true;
        }
        self.job(front, Event::Prepared { attempt: start.attempt, ready });
    }

    /// Reports the state of this node. One that is ready looks for a coordinator, if there is none.
    pub(super) fn stand(&mut self, front: usize, standing: Standing) {
        if let Stage::Ready(_) = standing.stage {
            self.fronts[front].ready = standing.clone();
            if self.fronts[front].net.is_none() {
                return self.look(front);
            }
        }
        if let Some(net) = self.fronts[front].net {
            self.agent(net, agent::Event::Standing(standing));
        }
    }

    pub(super) fn signal(&mut self, front: usize) {
        match self.fronts[front].state {
            State::Waiting => {
                let stage = Stage::Interrupted { signal: Some(15), kill: false };
                self.stand(front, Standing::new(FIRST_ATTEMPT, stage));
                self.close(front, Outcome::Interrupted, 143);
            }
            State::Running => {
                self.record(Entry::Leaves { front });
                self.job(front, Event::Signalled { signal: 15 });
            }
            State::Absent | State::Leaving | State::Finishing | State::Left | State::Dead => {}
        }
    }

    /// The job has ended here: the node leaves the network, then etcd.
    pub(super) fn close(&mut self, front: usize, outcome: Outcome, code: u8) {
        if !matches!(self.fronts[front].state, State::Waiting | State::Running) {
            return;
        }
        self.record(Entry::Leaves { front });
        let node = &mut self.fronts[front];
        (node.state, node.outcome) = (State::Leaving, Some((outcome, code)));
        self.plan(self.now + LEAVING, Item::Leaves(front));
        match self.fronts[front].net {
            Some(net) => self.leave_net(net),
            None => self.leave_etcd(front),
        }
    }

    /// The network is left, or took too long.
    pub(super) fn leave_etcd(&mut self, front: usize) {
        let node = &mut self.fronts[front];
        if node.state != State::Leaving {
            return;
        }
        node.state = State::Finishing;
        // Before its key is free.
        for net in (0..self.nets.len()).filter(|net| self.nets[*net].front == front).collect::<Vec<_>>() {
            self.drop_net(net, false);
        }
        let node = &mut self.fronts[front];
        let candidate = &mut node.candidate;
        let end = node.outcome.zip(candidate.job).filter(|_| node.is_over && candidate.is_leading);
        let end = end.map(|((outcome, code), job)| End { job, outcome, code });
        let lease = candidate.lease.take();
        self.ask(front, Ask::Finish(end, lease));
    }

    pub(super) fn exit(&mut self, front: usize) {
        if self.fronts[front].state != State::Finishing {
            return;
        }
        let outcome = self.fronts[front].outcome.map_or(Outcome::Failed, |(outcome, _)| outcome);
        self.fronts[front].state = State::Left;
        self.fronts[front].watch.is_open = false;
        self.record(Entry::Left { front, outcome });
    }

    /// The front is killed, or its whole host is gone.
    pub(super) fn kill(&mut self, front: usize, vanishes: bool) {
        let node = &mut self.fronts[front];
        (node.state, node.has_vanished, node.watch.is_open) = (State::Dead, vanishes, false);
        self.record(Entry::Died { front });
        for net in (0..self.nets.len()).filter(|net| self.nets[*net].front == front).collect::<Vec<_>>() {
            if vanishes {
                self.vanish_net(net);
            } else {
                self.drop_net(net, true);
            }
        }
        self.bury(front, vanishes);
    }
}
