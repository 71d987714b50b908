//! One node: what its front does for its agent and its job, and what its ranks do.

use std::time::Duration;

use umiak_core::diagnose;
use umiak_core::facts::{Evidence, Fact, Outcome};
use umiak_core::machine::job::{self, AttemptId, Event, Gathered, Stand};
use umiak_core::machine::round::agent::{self, News};
use umiak_core::machine::round::messages::{
    Decision, FromAgent, NodeProcess, Offer, RankPlace, Stage, Standing, Start, Told,
};
use umiak_core::model::{Exit, FIRST_ATTEMPT, Instance, Part, Port, Rank, Slot, StepIndex, StopHow};

use super::journal::Entry;
use super::network::Packet;
use super::scenario::{Scenario, code, killed_by};
use super::world::{Item, Sabotage, State, World};
use crate::simulate::{Death, Why, Words};

/// How a rank is about to end.
#[derive(Debug, Clone)]
pub(super) struct Fate {
    pub(super) exit: Exit,
    pub(super) why: Why,
    pub(super) words: Words,
}

impl Scenario {
    /// The state of a node before an attempt.
    pub(super) fn standing(&self, node: usize, attempt: u32) -> Standing {
        let script = &self.nodes[node];
        let port = |number: usize| Port::new(6000 + attempt as u16 * 100 + number as u16).expect("not 0");
        let stage = if script.unable.is_some_and(|unable| attempt >= unable) {
            Stage::Unable { why: "no ports".to_owned() }
        } else {
            Stage::Ready(Offer {
                processes: (0..script.ranks[0].len())
                    .map(|rank| NodeProcess { part: script.part(rank), ..NodeProcess::trainer(port(rank), vec![]) })
                    .collect(),
                stores: [port(50), port(51)],
                device_kind: None,
            })
        };
        Standing::new(attempt, stage)
    }
}

impl World {
    pub(super) fn note_ready(&mut self, node: usize, standing: &Standing) {
        if let Stage::Ready(_) = standing.stage {
            self.nodes[node].run.ready.push((standing.attempt, self.now));
        }
    }

    /// The front reports the state to its agent.
    pub(super) fn stand(&mut self, node: usize, standing: Standing) {
        self.note_ready(node, &standing);
        self.agent(node, agent::Event::Standing(standing));
    }

    pub(super) fn perform_agent(&mut self, node: usize, effect: agent::Effect) {
        match effect {
            agent::Effect::Connect { .. } => self.connect(node),
            agent::Effect::Disconnect => {
                if let Some(conn) = self.nodes[node].conn.take() {
                    self.transmit(conn, true, Packet::Fin);
                }
            }
            agent::Effect::Send(message) => {
                let dropped = self.sabotage == Some(Sabotage::DropBeats) && matches!(message, FromAgent::Beat { .. });
                if let Some(conn) = self.nodes[node].conn.filter(|_| !dropped) {
                    self.transmit(conn, true, Packet::FromAgent(message));
                }
            }
            agent::Effect::Tell(news) => self.tell(node, news),
        }
    }

    fn tell(&mut self, node: usize, news: News) {
        if !matches!(news, News::Waiting(_) | News::Suspects(_)) {
            self.note(|| format!("node {node} hears {news:?}"));
        }
        if self.nodes[node].is_waiting && !matches!(news, News::Start(_)) {
            return self.tell_waiting(node, news);
        }
        match news {
            News::Start(start) => self.start(node, *start),
            News::Stop(stop) => {
                self.nodes[node].run.stops.push((stop.attempt, self.now));
                self.job(node, Event::StoppedElsewhere(stop.reason()));
            }
            News::Decision(decision) => {
                self.nodes[node].run.decisions.push((self.now, (*decision).clone()));
                self.job(node, Event::Decided(Box::new(decision.decided())));
            }
            News::Refused(_)
            | News::TurnedAway(_)
            | News::TimeUp(_)
            | News::Alone { .. }
            | News::Lost(_)
            | News::Moved(_) => {
                self.nodes[node].run.other_end = Some(format!("{news:?}"));
                if self.sabotage != Some(Sabotage::NeverAlone) {
                    self.job(node, Event::Alone);
                }
            }
            News::Servers(servers) => self.hear_servers(node, &servers),
            News::Spare { .. }
            | News::Unreached(_)
            | News::Waiting(_)
            | News::Suspects(_)
            | News::Quiet
            | News::Back => {}
        }
    }

    fn start(&mut self, node: usize, start: Start) {
        let lower = start.nodes.iter().take(start.you as usize);
        self.nodes[node].first_rank = lower.map(|share| share.processes.len() as u32).sum();
        let attempt = start.attempt;
        let is_first = if self.scenario.is_elastic() { self.name(node, attempt) } else { attempt == FIRST_ATTEMPT };
        self.expect_elsewhere(node, &start);
        self.nodes[node].run.starts.push((self.now, start));
        let event = if is_first { Event::Start } else { Event::Prepared { attempt, ready: true } };
        self.job(node, event);
    }

    pub(super) fn job(&mut self, node: usize, event: Event) {
        if self.nodes[node].state != State::Here {
            return;
        }
        if self.nodes[node].is_waiting {
            return;
        }
        self.note(|| format!("  job {node} ← {event:?}"));
        let effects = self.nodes[node].machine.step(event, self.now);
        for effect in effects {
            self.perform_job(node, effect);
        }
        if self.nodes[node].machine.is_finished() && !self.nodes[node].agent.is_over() {
            self.agent(node, agent::Event::Ended);
        }
        self.leave_if_over(node);
    }

    fn perform_job(&mut self, node: usize, effect: job::Effect) {
        use job::Effect;
        match effect {
            Effect::Spawn(ids) => self.spawn(node, &ids),
            Effect::Stop { how, targets } => {
                for id in targets.into_iter().filter(|_| self.sabotage != Some(Sabotage::NoSignals)).collect::<Vec<_>>()
                {
                    self.stop(node, how, self.scenario.local(node, id.slot));
                }
            }
            Effect::ArmTimer { timer, attempt, at } => self.plan(at, Item::Job(node, Event::Timer(timer, attempt))),
            Effect::Gather { ended, stopped, .. } => {
                let found = |slot| Gathered { evidence: self.evidence(node, slot), ..Gathered::nothing(slot) };
                let found = ended.into_iter().chain(stopped).map(found).collect();
                let at = self.now + self.scenario.nodes[node].gather;
                self.plan(at, Item::Job(node, Event::Gathered(found)));
            }
            Effect::Prepare { attempt } => {
                let at = self.now + self.scenario.nodes[node].prepare;
                self.plan(at, Item::Stand(node, self.scenario.standing(node, attempt)));
            }
            Effect::Stand(stand) => {
                // Between two attempts, messages are about the next one.
                let machine = &self.nodes[node].machine;
                let attempt = machine.attempt() + u32::from(machine.is_pausing());
                let stage = match stand {
                    Stand::Serving => Stage::Serving,
                    Stand::Succeeded => Stage::Succeeded,
                    Stand::Hung => Stage::Hung,
                    Stand::Moves => Stage::Running,
                    Stand::Failed => Stage::Failed { waited: false },
                    Stand::Told(ends) => Stage::Told(ends.into_iter().map(|end| self.told(node, end)).collect()),
                    Stand::Interrupted { signal, kill } => Stage::Interrupted { signal, kill },
                };
                self.note(|| format!("  job {node} stands {stage:?}"));
                let is_serving = stage == Stage::Serving;
                self.stand(node, Standing::new(attempt, stage));
                if is_serving {
                    self.serve(node, attempt);
                }
            }
            Effect::Finish { outcome, code } => {
                self.note(|| format!("  job {node} ends: {outcome:?}, {code}"));
                let survivors = self.nodes[node].alive.iter().filter(|alive| **alive).count();
                let run = &mut self.nodes[node].run;
                run.finished = Some((self.now, outcome, code));
                run.known = run.decisions.len();
                run.survivors = survivors;
            }
            Effect::AwaitElsewhere { attempt, .. } => self.await_elsewhere(node, attempt),
            Effect::TellReady { attempt } => self.agent(node, agent::Event::Listening { attempt }),
            Effect::Report(_) => {
                let attempt = self.nodes[node].machine.attempt();
                self.nodes[node].run.reports.push(attempt);
            }
            Effect::StartUnready { .. } => self.nodes[node].run.unready += 1,
            Effect::Record(Fact::TimedOut { .. }) => self.nodes[node].run.late += 1,
            Effect::Record(_)
            | Effect::ReturnTerminal
            | Effect::DisarmTimer(_)
            | Effect::Await(_)
            | Effect::Inspect(_)
            | Effect::Observe(_)
            | Effect::Release { .. }
            | Effect::Forsake(_)
            | Effect::TellFailed(_) => {}
        }
    }

    /// All deciding ranks of this node are done.
    fn serve(&mut self, node: usize, attempt: u32) {
        self.nodes[node].run.served.push((attempt, self.now));
        if self.sabotage == Some(Sabotage::OwnEnds) {
            let success = Decision {
                attempt,
                outcome: Outcome::Succeeded,
                why: None,
                verdict: None,
                places: Vec::new(),
                restart: None,
                alone: false,
            };
            self.plan(self.now, Item::Job(node, Event::Decided(Box::new(success.decided()))));
        }
    }

    /// Converts to rank numbers over all nodes.
    fn told(&self, node: usize, mut end: diagnose::End) -> Told {
        let host = self.scenario.nodes[node].host();
        if self.scenario.is_elastic() {
            // The machine knows its ranks.
            let rank = end.subject.rank.map_or(0, |rank| rank.0);
            return Told { end, place: RankPlace { rank, host, ..RankPlace::default() } };
        }
        let local = end.subject.rank.map_or(0, |rank| rank.0);
        let rank = self.nodes[node].first_rank + local;
        end.subject.rank = Some(Rank(rank));
        end.subject.replica = format!("{}-{rank}", self.scenario.nodes[node].part(local as usize).role());
        Told { end, place: RankPlace { rank, host, ..RankPlace::default() } }
    }

    fn spawn(&mut self, node: usize, ids: &[AttemptId]) {
        let attempt = ids.first().map_or(FIRST_ATTEMPT, |id| id.attempt);
        let count = self.nodes[node].alive.len();
        let front = &mut self.nodes[node];
        front.attempt = attempt;
        // Trainers start after servers.
        if front.run.spawned.last().is_none_or(|(last, _)| *last != attempt) {
            front.run.spawned.push((attempt, self.now));
            front.run.deaths.push((front.first_rank, vec![None; count]));
            self.record(Entry::Spawned { node, attempt });
        }
        for id in ids {
            let rank = self.scenario.local(node, id.slot);
            let script = self.scenario.nodes[node].script(attempt)[rank].clone();
            if let Exit::Spawn(_) = script.end {
                self.refuse_spawn(node, attempt, rank, &script);
                continue;
            }
            self.nodes[node].alive[rank] = true;
            self.plan(
                self.now,
                Item::Job(node, Event::Started { id: *id, instance: Instance::of_pid(1000 + rank as u32) }),
            );
            let fate = Fate { exit: script.end, why: Why::Own, words: script.words };
            if let Some(life) = script.life {
                self.plan(self.now + life, Item::Death { node, attempt, rank, fate });
            }
            match script.server {
                Some(server) => {
                    if let Some(after) = server.answers {
                        self.plan(self.now + after, Item::Open { node, attempt, rank });
                    }
                }
                None => self.nodes[node].run.trained.push((attempt, self.now)),
            }
        }
        if !self.nodes[node].alive.contains(&true) {
            self.record(Entry::Ended { node, attempt });
        }
    }

    fn stop(&mut self, node: usize, how: StopHow, rank: usize) {
        let attempt = self.nodes[node].attempt;
        self.nodes[node].run.signals.push((attempt, self.now));
        let script = &self.scenario.nodes[node].script(attempt)[rank];
        let reaction = match how {
            StopHow::Interrupt => script.on_interrupt.clone(),
            StopHow::Terminate => script.on_term.clone(),
            StopHow::Kill => script.on_kill.map(|after| (after, killed_by(9))),
        };
        if self.sabotage == Some(Sabotage::ForgetRanks) && self.nodes[node].alive[rank] {
            let id = AttemptId { step: StepIndex(0), slot: self.scenario.slot(node, rank), attempt };
            let exited = Event::Exited { id, exit: killed_by(15), classed: None, usage: None };
            return self.plan(self.now, Item::Job(node, exited));
        }
        if let Some((after, exit)) = reaction {
            let fate = Fate { exit, why: Why::Ours, words: Words::Silence };
            self.plan(self.now + after, Item::Death { node, attempt, rank, fate });
        }
    }

    /// A rank is dead; its notification and the consequences for its peers follow.
    pub(super) fn die(&mut self, node: usize, attempt: u32, rank: usize, fate: Fate) {
        let front = &mut self.nodes[node];
        if front.attempt != attempt || !std::mem::replace(&mut front.alive[rank], false) {
            return;
        }
        let Fate { exit, why, words } = fate;
        self.note(|| format!("    rank {rank} of node {node} dies: {exit:?}, {why:?}"));
        let death = Death { at: self.now, exit: exit.clone(), why, words };
        if let Some((_, deaths)) = self.nodes[node].run.deaths.last_mut() {
            deaths[rank] = Some(death);
        }
        if !self.nodes[node].alive.contains(&true) {
            self.record(Entry::Ended { node, attempt });
        }
        let reported = self.scenario.nodes[node].script(attempt)[rank].reported;
        let id = AttemptId { step: StepIndex(0), slot: self.scenario.slot(node, rank), attempt };
        let bad = !exit.is_success();
        let is_server = self.scenario.nodes[node].part(rank) == Part::Server;
        let hidden = is_server && bad && why == Why::Own && self.sabotage == Some(Sabotage::HideServers);
        if why != Why::Guardian && !hidden {
            self.plan(self.now + reported, Item::Job(node, Event::Exited { id, exit, classed: None, usage: None }));
        }
        if bad && matches!(why, Why::Own | Why::Guardian) {
            self.lose_peer(attempt);
        }
        if !bad && !is_server && self.scenario.server_timeout.is_some() {
            self.trained(node, attempt);
        }
    }

    /// Affects all ranks that were connected to a dead one.
    fn lose_peer(&mut self, attempt: u32) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].attempt != attempt {
                continue;
            }
            for rank in 0..self.nodes[node].alive.len() {
                let script = &self.scenario.nodes[node].script(attempt)[rank];
                if let Some(after) = script.on_lost_peer.filter(|_| self.nodes[node].alive[rank]) {
                    let exit = if rank.is_multiple_of(2) { code(1) } else { killed_by(6) };
                    let fate = Fate { exit, why: Why::Peer, words: Words::LostPeer };
                    self.plan(self.now + after, Item::Death { node, attempt, rank, fate });
                }
            }
        }
    }

    /// The node or its guardian is dead, and all ranks with it.
    pub(super) fn bury_all(&mut self, node: usize) {
        let attempt = self.nodes[node].attempt;
        for rank in 0..self.nodes[node].alive.len() {
            let fate = Fate { exit: Exit::Lost, why: Why::Guardian, words: Words::Silence };
            self.die(node, attempt, rank, fate);
        }
    }

    pub(super) fn guardian_lost(&mut self, node: usize) {
        self.bury_all(node);
        self.job(node, Event::EngineLost { again: false });
    }

    /// The log of this rank, as evidence.
    fn evidence(&self, node: usize, slot: Slot) -> Option<Evidence> {
        // A rank that never started has left nothing.
        let run = &self.nodes[node].run;
        run.spawned.last().filter(|(attempt, _)| *attempt == self.nodes[node].machine.attempt())?;
        let (_, deaths) = run.deaths.last()?;
        let words = deaths[self.scenario.local(node, slot)].as_ref()?.words;
        let words = match (self.sabotage, words) {
            (Some(Sabotage::SwapEvidence), Words::OwnError) => Words::LostPeer,
            (Some(Sabotage::SwapEvidence), Words::LostPeer) => Words::OwnError,
            (_, words) => words,
        };
        let signature = |code| diagnose::explain(code).map(diagnose::Signature::to_match);
        match words {
            Words::OwnError => Some(Evidence {
                traceback: vec!["Traceback (most recent call last):".into(), "OSError: [Errno 5]".into()],
                ..Evidence::default()
            }),
            Words::LostPeer => Some(Evidence { signature: signature("U9202"), ..Evidence::default() }),
            Words::Terminated | Words::Silence => None,
        }
    }
}

/// From a death to its earliest consequence.
pub(super) const REACTION: Duration = Duration::from_millis(150);
