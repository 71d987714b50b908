//! Parameter servers: which nodes have some, what they will do, and which nodes learn that they listen.

use std::time::Duration;

use fastrand::Rng;
use umiak_core::machine::job::{AttemptId, Event};
use umiak_core::machine::round::messages::{NodeShare, Servers, Start};
use umiak_core::model::{Exit, Part, Role, RoleName, Slot, StartAfter, StepIndex, When};

use super::node::Fate;
use super::scenario::{ABANDON, GRACE, Kind, LIFE, NodeScript, RankScript, Scenario, code, good, spoil};
use super::world::{Item, Sabotage, World};
use crate::simulate::{Why, Words};

/// How long servers may take to listen, or trainers wait for that.
const START: Duration = Duration::from_millis(1500);
/// Extra time for servers on other nodes.
const ELSEWHERE: Duration = Duration::from_secs(5);

/// What one server will do, in addition to its rank script.
#[derive(Debug, Clone)]
pub struct ServerScript {
    /// From its start until it listens; `None` if it never does.
    pub answers: Option<Duration>,
    /// How it ends, this long after the last trainer of the job has succeeded.
    pub after_all: Option<(Duration, Exit)>,
}

impl Scenario {
    /// Turns it into a job with servers. Nodes keep their trainers, or have only servers.
    pub(super) fn serve(&mut self, rng: &mut Rng) {
        self.uneven = true;
        self.server_timeout = Some(if rng.u32(..12) == 0 { Duration::ZERO } else { START });
        self.patient = rng.bool();
        let count = self.nodes.len();
        let (server, trainer) = (rng.usize(..count), rng.usize(..count));
        for (index, node) in self.nodes.iter_mut().enumerate() {
            // At least one node serves, and at least one trains.
            let (serves, trains) = match rng.u32(..4) {
                0 => (index == server, true),
                1 => (true, index == trainer),
                _ => (true, true),
            };
            node.servers = if serves { rng.usize(1..=2) } else { 0 };
            for ranks in &mut node.ranks {
                if !trains {
                    ranks.clear();
                }
                for _ in 0..node.servers {
                    ranks.insert(0, healthy(rng));
                }
            }
        }
        if self.kind != Kind::OneDies && rng.f64() < 0.6 {
            // In some rounds the trainers do not fail.
            if rng.bool() {
                let trainers = self.nodes.iter_mut().flat_map(|node| node.ranks.iter_mut().flatten());
                trainers.for_each(|rank| (rank.end, rank.words) = (code(0), Words::Silence));
            }
            self.spoil_servers(rng);
        }
    }

    fn spoil_servers(&mut self, rng: &mut Rng) {
        let attempts = self.nodes[0].ranks.len();
        for attempt in 0..rng.usize(1..=attempts) {
            for _ in 0..rng.usize(1..=2) {
                let node = rng.usize(..self.nodes.len());
                let servers = self.nodes[node].servers;
                if servers > 0 {
                    let server = rng.usize(..servers);
                    spoil_server(rng, &mut self.nodes[node].ranks[attempt][server]);
                }
            }
        }
    }

    /// How long trainers may wait for servers, and late servers take to end.
    pub(super) fn start_up(&self) -> Duration {
        let waits = |timeout: Duration| timeout + ELSEWHERE + GRACE + ABANDON;
        self.server_timeout.map_or(Duration::ZERO, waits)
    }

    /// True if trainers wait until servers listen.
    pub(super) fn waits(&self) -> bool {
        self.server_timeout.is_some_and(|timeout| !timeout.is_zero())
    }

    pub(super) fn roles(&self, node: usize) -> Vec<Role> {
        let script = &self.nodes[node];
        let Some(timeout) = self.server_timeout else {
            return vec![Role::new(RoleName::new("trainer").expect("a plain name"), script.ranks[0].len() as u32)];
        };
        let mut servers = Part::Server.as_role(script.servers as u32);
        let limit = Some(timeout).filter(|timeout| !timeout.is_zero());
        if self.patient {
            servers.timeouts.start = limit;
        } else {
            servers.timeouts.patience = limit;
        }
        let mut trainers = Part::Trainer.as_role((script.ranks[0].len() - script.servers) as u32);
        let when = if timeout.is_zero() { When::Started } else { When::Ready };
        trainers.start_after = vec![StartAfter { role: 0, when }];
        vec![servers, trainers]
    }

    /// The index of a replica among the ranks of its node.
    pub(super) fn local(&self, node: usize, slot: Slot) -> usize {
        slot.index as usize + if slot.role == 1 { self.nodes[node].servers } else { 0 }
    }

    pub(super) fn slot(&self, node: usize, rank: usize) -> Slot {
        let servers = self.nodes[node].servers;
        if self.server_timeout.is_some() && rank >= servers {
            Slot { role: 1, index: (rank - servers) as u32 }
        } else {
            Slot { role: 0, index: rank as u32 }
        }
    }
}

impl NodeScript {
    pub fn part(&self, rank: usize) -> Part {
        if rank < self.servers { Part::Server } else { Part::Trainer }
    }
}

fn healthy(rng: &mut Rng) -> RankScript {
    let server = ServerScript { answers: Some(Duration::from_millis(rng.u64(..1000))), after_all: None };
    RankScript { life: None, server: Some(server), ..good(rng, false) }
}

fn spoil_server(rng: &mut Rng, rank: &mut RankScript) {
    let Some(server) = &mut rank.server else { return };
    match rng.u32(..16) {
        0 | 2 => server.answers = None,
        1 => server.answers = Some(START + Duration::from_millis(rng.u64(..1000))),
        // By itself and successfully: a trainer may have told it to.
        3 => rank.life = Some(Duration::from_millis(rng.u64(..4000))),
        4 | 5 => server.after_all = Some((Duration::from_millis(rng.u64(..400)), code(0))),
        6..=8 => {
            spoil(rng, rank);
            if let Some(server) = &mut rank.server {
                // Usually before the trainers' last report has reached all nodes.
                let longest = [0, 50, 400][rng.usize(..3)];
                let after = Duration::from_millis(rng.u64(..=longest));
                server.after_all = Some((after, std::mem::replace(&mut rank.end, code(0))));
            }
        }
        9 => {
            spoil(rng, rank);
            rank.life = Some(Duration::from_millis(rng.u64(..1000)));
        }
        _ => {
            spoil(rng, rank);
            rank.life = Some(Duration::from_millis(rng.u64(..LIFE.as_millis() as u64 + 1000)));
        }
    }
}

/// The ranks of all servers or all trainers.
pub(super) fn ranks_of(start: &Start, part: Part) -> Vec<u32> {
    let parts = start.nodes.iter().flat_map(|share| share.processes.iter().map(|process| process.part));
    (0..).zip(parts).filter(|(_, other)| *other == part).map(|(rank, _)| rank).collect()
}

/// The ranks of one of the nodes.
pub(super) fn own_ranks(start: &Start, node: u32) -> std::ops::Range<u32> {
    let size = |share: &NodeShare| share.processes.len() as u32;
    let first = start.nodes.iter().take(node as usize).map(size).sum();
    first..first + start.nodes.get(node as usize).map_or(0, size)
}

impl World {
    /// Before each attempt: sets which servers on other nodes are awaited here.
    pub(super) fn expect_elsewhere(&mut self, node: usize, start: &Start) {
        let own = own_ranks(start, start.you);
        let somebody_waits = ranks_of(start, Part::Trainer).iter().any(|rank| own.contains(rank));
        let others: Vec<String> = ranks_of(start, Part::Server)
            .into_iter()
            .filter(|rank| !own.contains(rank))
            .map(|rank| rank.to_string())
            .collect();
        if self.scenario.waits() && somebody_waits && !others.is_empty() {
            self.nodes[node].machine.expect_elsewhere(0, others);
        }
    }

    /// At the start of an attempt: repeats what was received before.
    pub(super) fn await_elsewhere(&mut self, node: usize, attempt: u32) {
        if let Some(servers) = self.nodes[node].servers.clone().filter(|servers| servers.attempt == attempt) {
            self.hear_servers(node, &servers);
        }
    }

    /// A server starts to listen, if it is alive.
    pub(super) fn open(&mut self, node: usize, attempt: u32, rank: usize) {
        let front = &mut self.nodes[node];
        if front.attempt != attempt || !front.alive[rank] {
            return;
        }
        let number = front.first_rank + rank as u32;
        front.run.answers.push((attempt, number, self.now));
        self.note(|| format!("    server {rank} of node {node} listens"));
        let id = AttemptId { step: StepIndex(0), slot: self.scenario.slot(node, rank), attempt };
        self.job(node, Event::Ready { id });
    }

    /// A node learns which nodes have servers that do not listen yet.
    pub(super) fn hear_servers(&mut self, node: usize, servers: &Servers) {
        let attempt = servers.attempt;
        self.nodes[node].servers = Some(servers.clone());
        let Some((_, start)) = self.nodes[node].run.starts.last().filter(|(_, start)| start.attempt == attempt) else {
            return;
        };
        let missing = |rank: &u32| {
            let mut missing = servers.missing.iter().filter(|other| **other != start.you);
            missing.any(|other| own_ranks(start, *other).contains(rank))
        };
        let mut missing: Vec<u32> = ranks_of(start, Part::Server).into_iter().filter(missing).collect();
        if self.sabotage == Some(Sabotage::OneForAll) {
            missing.clear();
        }
        let missing = missing.iter().map(ToString::to_string).collect();
        if self.nodes[node].machine.attempt() == attempt && !self.nodes[node].machine.missing_elsewhere(0).is_empty() {
            self.job(node, Event::AnsweredElsewhere { role: 0, attempt, missing });
        }
    }

    /// A trainer has succeeded. Some servers end once all have.
    pub(super) fn trained(&mut self, node: usize, attempt: u32) {
        let Some((_, start)) = self.nodes[node].run.starts.last() else { return };
        let trainers = ranks_of(start, Part::Trainer).len();
        let mut ended = 0;
        for (script, front) in self.scenario.nodes.iter().zip(&self.nodes).filter(|(_, front)| front.attempt == attempt)
        {
            let deaths = front.run.deaths.last().map_or(&[][..], |(_, deaths)| deaths);
            let deaths = deaths.iter().skip(script.servers).flatten();
            ended += deaths.filter(|death| death.exit.is_success() && death.why == Why::Own).count();
        }
        if ended < trainers {
            return;
        }
        for node in 0..self.nodes.len() {
            for rank in 0..self.scenario.nodes[node].servers {
                let script = &self.scenario.nodes[node].script(attempt)[rank];
                let (words, server) = (script.words, script.server.as_ref());
                if let Some((after, exit)) = server.and_then(|server| server.after_all.clone()) {
                    let words = if exit.is_success() { Words::Silence } else { words };
                    let fate = Fate { exit, why: Why::Own, words };
                    self.plan(self.now + after, Item::Death { node, attempt, rank, fate });
                }
            }
        }
    }
}
