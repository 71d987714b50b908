//! The world around the machines: time, faults, and the record of a round.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use umiak_core::facts::Outcome;
use umiak_core::machine::exit_code::CodeStyle;
use umiak_core::machine::job::{Event, Machine, NODE_LOST};
use umiak_core::machine::round::agent::{self, Agent};
use umiak_core::machine::round::coordinator::{self, Coordinator, Options};
use umiak_core::machine::round::messages::{Decision, JobKind, Join, Servers, Stage, Standing, Start, ToAgent};
use umiak_core::model::{
    ElasticLevel, ExitCodes, FIRST_ATTEMPT, Generation, Job, JobId, Policy, Restart, StopPolicy, Timestamp,
};

use super::guest::TELLING;
use super::journal::Entry;
use super::judge::{self, Violation};
use super::network::{Conn, Packet};
use super::node::Fate;
use super::scenario::{ABANDON, Fault, GRACE, SETTLE, Scenario, Way};
use crate::simulate::Death;

/// More steps than this mean that a machine is woken repeatedly without need.
const STEPS: u64 = 400_000;
/// Added to the window by [`Sabotage::LongWindow`].
const LONGER: Duration = Duration::from_secs(4);

/// A driver that is broken in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Stops are not sent.
    DropStops,
    DropDecisions,
    /// Agents send no heartbeats.
    DropBeats,
    /// The coordinator gets no ticks.
    NoTicks,
    /// Each node receives a different order of nodes.
    TurnStarts,
    /// Ranks start before the coordinator's start message.
    Hasty,
    /// Evidence of a lost peer and of an own failure are swapped.
    SwapEvidence,
    /// SIGTERM and SIGKILL are not sent.
    NoSignals,
    /// The job does not learn that no other node can be reached.
    NeverAlone,
    /// Once one server on another node listens, trainers are told that all do.
    OneForAll,
    /// Deaths of servers are not reported.
    HideServers,
    /// A node whose trainers are done takes that for the end of the job.
    OwnEnds,
    /// Ranks that are told to end count as ended, although some live on.
    ForgetRanks,
    /// The coordinator is given a larger budget of restarts.
    MoreRestarts,
    /// The coordinator is given a longer window for other nodes.
    LongWindow,
    /// Members keep the names of their first ranks.
    NoRename,
    /// Members do not report that they are ready again.
    DropReady,
    /// The guardian's last message and the end of a connection are not reported.
    HideLosses,
    /// Nodes are ordered by launch id.
    SortStarts,
    /// Starts do not say what the last attempt was.
    ForgetLast,
    /// Decisions do not reach nodes that never took part.
    DropSpares,
    /// Each start is sent twice.
    RepeatStarts,
}

/// What will happen at some time.
#[derive(Debug, Clone)]
pub(super) enum Item {
    Come(usize),
    Fault(Fault),
    CoordinatorTick(u64),
    AgentTick(usize, u64),
    Coordinator(coordinator::Event),
    /// `up`: to the coordinator.
    Arrive {
        conn: usize,
        up: bool,
        packet: Packet,
    },
    /// A side detects that a connection broke.
    Notice {
        conn: usize,
        up: bool,
    },
    Connect {
        node: usize,
        tried: u64,
        began: Timestamp,
    },
    Job(usize, Event),
    Stand(usize, Standing),
    /// A node that cannot start has tried to say so for long enough.
    GiveUp(usize),
    /// A server opens its port.
    Open {
        node: usize,
        attempt: u32,
        rank: usize,
    },
    Death {
        node: usize,
        attempt: u32,
        rank: usize,
        fate: Fate,
    },
}

/// One node and its record.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) agent: Agent,
    pub(super) machine: Machine,
    /// True until the first start, in an elastic job: the machine is made for that attempt.
    pub(super) is_waiting: bool,
    pub(super) state: State,
    pub(super) vanished: bool,
    pub(super) paused: Timestamp,
    held: Vec<Item>,
    /// Until when messages from the coordinator, and to it, are held back.
    pub(super) partition: [Timestamp; 2],
    pub(super) conn: Option<usize>,
    pub(super) tries: u64,
    tick: u64,
    pub(super) alive: Vec<bool>,
    /// The last message about servers of other nodes.
    pub(super) servers: Option<Servers>,
    pub(super) attempt: u32,
    pub(super) first_rank: u32,
    pub(super) run: NodeRun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Absent,
    Here,
    Dead,
    Left,
}

/// What one node received, and how it ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeRun {
    pub starts: Vec<(Timestamp, Start)>,
    pub stops: Vec<(u32, Timestamp)>,
    pub decisions: Vec<(Timestamp, Decision)>,
    /// The message that ended the round for it, if it was no decision.
    pub other_end: Option<String>,
    /// When it was ready, by attempt.
    pub ready: Vec<(u32, Timestamp)>,
    /// The first rank number and the ends of its ranks, by attempt.
    pub deaths: Vec<(u32, Vec<Option<Death>>)>,
    pub spawned: Vec<(u32, Timestamp)>,
    /// When trainers were started, by attempt.
    pub trained: Vec<(u32, Timestamp)>,
    /// When its servers began to listen: attempt, rank, when.
    pub answers: Vec<(u32, u32, Timestamp)>,
    /// When it reported that it only serves, by attempt.
    pub served: Vec<(u32, Timestamp)>,
    /// When its ranks were signalled, by attempt.
    pub signals: Vec<(u32, Timestamp)>,
    /// Attempts whose verdict was shown.
    pub reports: Vec<u32>,
    /// How often trainers started although a server did not listen.
    pub unready: usize,
    /// How many servers exceeded their limit.
    pub late: usize,
    pub finished: Option<(Timestamp, Outcome, u8)>,
    /// How many decisions it had received by then.
    pub known: usize,
    pub left: Option<Timestamp>,
    pub died: Option<Timestamp>,
    /// Ranks that are live when it leaves, and were not abandoned.
    pub survivors: usize,
    /// How often it heard of a start that did without it, before it took part.
    pub spare: usize,
}

/// A whole round.
#[derive(Debug)]
pub struct Run {
    pub scenario: Scenario,
    pub nodes: Vec<NodeRun>,
    pub coordinator_over: Option<Timestamp>,
    pub refusals: u64,
    /// In elastic jobs, everything that the judge replays.
    pub journal: Vec<(Timestamp, Entry)>,
    /// How many messages of each kind were sent to or by each node, by attempt where they have one.
    pub traffic: BTreeMap<(usize, &'static str, u32), u32>,
    pub steps: u64,
    /// True if a machine was woken repeatedly without need.
    pub spun: bool,
    /// What happened, as text; only recorded for display.
    pub log: Vec<String>,
}

pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) sabotage: Option<Sabotage>,
    pub(super) rng: Rng,
    pub(super) now: Timestamp,
    queue: BinaryHeap<Reverse<(Timestamp, usize)>>,
    items: Vec<Option<Item>>,
    pub(super) coordinator: Option<Coordinator>,
    coordinator_tick: u64,
    pub(super) coordinator_over: Option<Timestamp>,
    pub(super) nodes: Vec<Node>,
    pub(super) conns: Vec<Conn>,
    pub(super) refusals: u64,
    pub(super) journal: Vec<(Timestamp, Entry)>,
    pub(super) traffic: BTreeMap<(usize, &'static str, u32), u32>,
    steps: u64,
    loud: bool,
    log: Vec<String>,
}

pub(super) fn run(scenario: Scenario, sabotage: Option<Sabotage>) -> Run {
    play(scenario, sabotage, false)
}

fn play(scenario: Scenario, sabotage: Option<Sabotage>, loud: bool) -> Run {
    let rng = Rng::with_seed(scenario.seed ^ 0x5eed);
    let nodes = (0..scenario.nodes.len()).map(|node| new_node(&scenario, node)).collect();
    let mut world = World {
        scenario,
        sabotage,
        rng,
        now: Timestamp::default(),
        queue: BinaryHeap::new(),
        items: Vec::new(),
        coordinator: None,
        coordinator_tick: 0,
        coordinator_over: None,
        nodes,
        conns: Vec::new(),
        refusals: 0,
        journal: Vec::new(),
        traffic: BTreeMap::new(),
        steps: 0,
        loud,
        log: Vec::new(),
    };
    world.play();
    Run {
        spun: world.steps >= STEPS,
        scenario: world.scenario,
        nodes: world.nodes.into_iter().map(|node| node.run).collect(),
        coordinator_over: world.coordinator_over,
        refusals: world.refusals,
        journal: world.journal,
        traffic: world.traffic,
        steps: world.steps,
        log: world.log,
    }
}

/// The job of a node, before its start.
pub(super) fn new_machine(scenario: &Scenario, node: usize) -> Machine {
    let job = Job {
        name: JobId::new("simulated").expect("a plain name"),
        labels: std::collections::BTreeMap::new(),
        agent_store: false,
        contracts: vec![],
        roles: scenario.roles(node),
        policy: Policy {
            restart: scenario.restart,
            stop: StopPolicy { grace: GRACE, abandon: ABANDON },
            settle: SETTLE,
            hang: None,
            ..Policy::default()
        },
    };
    let style = CodeStyle { codes: ExitCodes::Umiak, generation: Generation::Current, document: false, etcd: None };
    let mut machine = Machine::new(job, style, scenario.seed);
    machine.share();
    machine
}

fn new_node(scenario: &Scenario, node: usize) -> Node {
    let script = &scenario.nodes[node];
    let processes = script.ranks[0].len();
    let join = Join {
        connected: Timestamp::default(),
        launch: script.launch,
        command: 1,
        line: String::new(),
        address: script.address,
        host: script.host(),
        expects: script.expects.clone(),
        kind: JobKind::Collective,
        rank: script.rank,
        uneven: scenario.uneven,
        logs: false,
        alive: None,
        standing: scenario.standing(node, FIRST_ATTEMPT),
    };
    Node {
        agent: Agent::new(join, scenario.limits, script.comes.unwrap_or_default()),
        machine: new_machine(scenario, node),
        is_waiting: scenario.is_elastic(),
        state: State::Absent,
        vanished: false,
        paused: Timestamp::default(),
        held: Vec::new(),
        partition: [Timestamp::default(); 2],
        conn: None,
        tries: 0,
        tick: 0,
        alive: vec![false; processes],
        servers: None,
        attempt: FIRST_ATTEMPT,
        first_rank: 0,
        run: NodeRun::default(),
    }
}

impl World {
    fn play(&mut self) {
        for node in 0..self.nodes.len() {
            if let Some(comes) = self.scenario.nodes[node].comes {
                self.plan(comes, Item::Come(node));
            }
        }
        for (at, fault) in self.scenario.faults.clone() {
            self.plan(at, Item::Fault(fault));
        }
        // A little longer than anything may take, so that the judge sees what is late.
        let end = self.scenario.bound() + Duration::from_secs(60);
        while let Some(Reverse((at, index))) = self.queue.pop() {
            if at > end || self.steps >= STEPS {
                break;
            }
            self.now = self.now.max(at);
            let item = self.items[index].take().expect("planned once");
            self.happen(item);
        }
    }

    pub(super) fn plan(&mut self, at: Timestamp, item: Item) {
        self.queue.push(Reverse((at, self.items.len())));
        self.items.push(Some(item));
    }

    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        if self.loud {
            let micros = self.now.as_micros();
            self.log.push(format!("{:>8}.{:03} {}", micros / 1000, micros % 1000, text()));
        }
    }

    /// The node whose umiak this is for.
    fn whose(&self, item: &Item) -> Option<usize> {
        match item {
            Item::CoordinatorTick(_) | Item::Coordinator(_) => Some(0),
            Item::Arrive { conn, up, .. } | Item::Notice { conn, up } => {
                Some(if *up { 0 } else { self.conns[*conn].node })
            }
            Item::AgentTick(node, _)
            | Item::Connect { node, .. }
            | Item::Job(node, _)
            | Item::Stand(node, _)
            | Item::GiveUp(node)
            | Item::Fault(Fault::Signal { node, .. } | Fault::Stop { node } | Fault::GuardianLost { node }) => {
                Some(*node)
            }
            Item::Come(_) | Item::Death { .. } | Item::Open { .. } | Item::Fault(_) => None,
        }
    }

    fn happen(&mut self, item: Item) {
        self.steps += 1;
        if let Some(node) = self.whose(&item) {
            if self.now < self.nodes[node].paused {
                return self.nodes[node].held.push(item);
            }
            if self.nodes[node].state != State::Here {
                return;
            }
        }
        match item {
            Item::Come(node) => self.come(node),
            Item::Fault(fault) => self.fault(fault),
            Item::CoordinatorTick(tick) if tick == self.coordinator_tick => self.coordinator(coordinator::Event::Tick),
            // A front that has left no longer wakes its agent.
            Item::AgentTick(node, _) if self.has_left_waiting(node) => {}
            Item::AgentTick(node, tick) if tick == self.nodes[node].tick => self.agent(node, agent::Event::Tick),
            Item::CoordinatorTick(_) | Item::AgentTick(..) => {}
            Item::Coordinator(event) => self.coordinator(event),
            Item::Arrive { conn, up, packet } => self.arrive(conn, up, packet),
            Item::Notice { conn, up: true } => self.deliver_up(conn, Packet::Fin),
            Item::Notice { conn, up: false } => self.closed_here(self.conns[conn].node, conn),
            Item::Connect { node, tried, began } => self.connected(node, tried, began),
            Item::Job(node, event) => self.job(node, event),
            Item::Stand(node, standing) => self.prepared(node, standing),
            Item::GiveUp(node) => self.leave_waiting(node, Outcome::Failed, NODE_LOST),
            Item::Open { node, attempt, rank } => self.open(node, attempt, rank),
            Item::Death { node, attempt, rank, fate } => self.die(node, attempt, rank, fate),
        }
    }

    fn come(&mut self, node: usize) {
        self.nodes[node].state = State::Here;
        if node == 0 {
            let scenario = &self.scenario;
            let options = Options {
                expects: scenario.expects.clone(),
                launch: scenario.nodes[0].launch,
                uneven: scenario.uneven,
                limits: scenario.limits,
                settle: SETTLE,
                hang: None,
                restart: Restart {
                    max: scenario.restart.max + if self.sabotage == Some(Sabotage::MoreRestarts) { 2 } else { 0 },
                    ..scenario.restart
                },
                window: scenario.window
                    + if self.sabotage == Some(Sabotage::LongWindow) { LONGER } else { Duration::ZERO },
                level: ElasticLevel::Ranks,
                succession: None,
                seed: scenario.seed,
            };
            self.coordinator = Some(Coordinator::new(options, self.now));
            self.coordinator(coordinator::Event::Tick);
        }
        if self.sabotage == Some(Sabotage::Hasty) && node % 3 == 1 {
            self.job(node, Event::Start);
        }
        self.record(Entry::Came { node });
        let standing = self.scenario.standing(node, FIRST_ATTEMPT);
        self.note_ready(node, &standing);
        if self.nodes[node].is_waiting && matches!(standing.stage, Stage::Unable { .. }) {
            self.plan(self.now + TELLING, Item::GiveUp(node));
        }
        self.agent(node, agent::Event::Tick);
    }

    fn fault(&mut self, fault: Fault) {
        self.note(|| format!("{fault:?}"));
        if self.nodes[fault.node()].state == State::Here {
            self.record(Entry::Fault(fault));
        }
        match fault {
            Fault::Break { node } => self.break_link(node),
            Fault::BreakLate { node, late } => self.break_late(node, late),
            Fault::Partition { node, lasts, way } => {
                let until = self.now + lasts;
                let [down, up] = &mut self.nodes[node].partition;
                if way != Way::ToCoordinator {
                    *down = until.max(*down);
                }
                if way != Way::FromCoordinator {
                    *up = until.max(*up);
                }
            }
            Fault::Pause { node, lasts } => {
                let until = self.now + lasts;
                if until > self.nodes[node].paused && self.nodes[node].state == State::Here {
                    self.nodes[node].paused = until;
                    self.plan(until, Item::Fault(Fault::Pause { node, lasts: Duration::ZERO }));
                } else if self.now >= self.nodes[node].paused {
                    for item in std::mem::take(&mut self.nodes[node].held) {
                        self.happen(item);
                    }
                }
            }
            Fault::KillFront { node } => self.kill(node, true, true),
            Fault::KillBoth { node } => self.kill(node, false, true),
            Fault::Vanish { node } => self.kill(node, false, false),
            Fault::Signal { node, signal } if self.nodes[node].is_waiting => self.signal_waiting(node, signal),
            Fault::Stop { node } | Fault::GuardianLost { node } if self.nodes[node].is_waiting => {
                self.leave_waiting(node, Outcome::Failed, NODE_LOST);
            }
            Fault::Signal { node, signal } => self.job(node, Event::Signalled { signal }),
            Fault::Stop { node } => self.job(node, Event::StopAsked { kill: false }),
            Fault::GuardianLost { node } => self.guardian_lost(node),
        }
    }

    /// A node dies, with or without a last message, and its connections are closed or not.
    fn kill(&mut self, node: usize, gone: bool, closes: bool) {
        if self.nodes[node].state != State::Here {
            return;
        }
        if let Some(conn) = self.nodes[node].conn.filter(|_| closes) {
            if gone {
                self.transmit(conn, true, Packet::Gone);
            }
            self.transmit(conn, true, Packet::Fin);
        }
        let dead = &mut self.nodes[node];
        (dead.state, dead.vanished) = (State::Dead, !closes);
        dead.run.died = Some(self.now);
        dead.conn = None;
        self.record(Entry::Died { node });
        self.bury_all(node);
        if node == 0 && closes {
            self.end_coordinator();
        } else if node == 0 {
            self.coordinator = None;
        }
    }

    pub(super) fn coordinator_later(&mut self, event: coordinator::Event) {
        let at = self.now + Duration::from_millis(self.rng.u64(..50));
        self.plan(at, Item::Coordinator(event));
    }

    pub(super) fn coordinator(&mut self, event: coordinator::Event) {
        let Some(coordinator) = &mut self.coordinator else { return };
        let quiet = matches!(event, coordinator::Event::Tick | coordinator::Event::Beat { .. });
        let text = (self.loud && !quiet).then(|| format!("coordinator ← {event:?}"));
        let effects = coordinator.step(event, self.now);
        if let Some(text) = text {
            self.note(|| text);
        }
        for effect in effects {
            self.perform_coordinator(effect);
        }
        let Some(coordinator) = &self.coordinator else { return };
        if let Some(deadline) = coordinator.deadline().filter(|_| self.sabotage != Some(Sabotage::NoTicks)) {
            self.coordinator_tick += 1;
            self.plan(deadline.max(self.now), Item::CoordinatorTick(self.coordinator_tick));
        }
    }

    pub(super) fn agent(&mut self, node: usize, event: agent::Event) {
        let quiet = match &event {
            agent::Event::Tick => true,
            agent::Event::Heard(message) => matches!(**message, ToAgent::Beat { .. }),
            _ => false,
        };
        if !quiet {
            self.note(|| format!("agent {node} ← {event:?}"));
        }
        let effects = self.nodes[node].agent.step(event, self.now);
        for effect in effects {
            self.perform_agent(node, effect);
        }
        if self.nodes[node].state != State::Here {
            return;
        }
        if let Some(deadline) = self.nodes[node].agent.deadline() {
            self.nodes[node].tick += 1;
            let tick = self.nodes[node].tick;
            self.plan(deadline.max(self.now), Item::AgentTick(node, tick));
        }
        self.leave_if_over(node);
    }

    /// A front exits when its job and its part in the round are over; the coordinator's also waits for the coordinator.
    pub(super) fn leave_if_over(&mut self, node: usize) {
        let front = &self.nodes[node];
        let ended = self.has_left_waiting(node) || front.machine.is_finished() && front.agent.is_over();
        let over = ended && (node > 0 || self.coordinator.is_none());
        if !over || front.state != State::Here {
            return;
        }
        self.note(|| format!("node {node} leaves"));
        let front = &mut self.nodes[node];
        front.state = State::Left;
        front.run.left = Some(self.now);
        self.record(Entry::Left { node });
        if let Some(conn) = self.nodes[node].conn.take() {
            self.transmit(conn, true, Packet::Fin);
        }
    }
}

impl Run {
    /// Everything that is wrong with the round.
    pub fn violations(&self) -> Vec<Violation> {
        judge::check(self)
    }

    /// Panics with the whole log if anything is wrong.
    pub fn assert_valid(&self) {
        let violations = self.violations();
        let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
        let seed = self.scenario.seed;
        assert!(violations.is_empty(), "{self}\n{}\nreplay with UMIAK_SEED={seed}", list.join("\n"));
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { seed, kind, expects, limits, restart, faults, delay, .. } = &self.scenario;
        writeln!(f, "seed {seed}: {kind:?}, {expects:?}, {limits:?}, {} restarts, up to {delay} ms", restart.max)?;
        for (at, fault) in faults {
            writeln!(f, "  {} ms {fault:?}", at.as_micros() / 1000)?;
        }
        let log = play(self.scenario.clone(), None, true).log;
        log.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        for (index, (script, node)) in self.scenario.nodes.iter().zip(&self.nodes).enumerate() {
            writeln!(
                f,
                "node {index} {} launch {} comes {:?}: finished {:?}, left {:?}, died {:?}, {:?}",
                script.address, script.launch, script.comes, node.finished, node.left, node.died, node.other_end
            )?;
            for (first, deaths) in &node.deaths {
                for (local, death) in deaths.iter().enumerate() {
                    writeln!(f, "    rank {}: {death:?}", *first as usize + local)?;
                }
            }
        }
        Ok(())
    }
}
