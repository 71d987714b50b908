//! The world around the machines: time, clocks, faults, and the journal of a job.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use umiak_core::facts::Outcome;
use umiak_core::machine::job::{Event, Machine};
use umiak_core::machine::round::agent::News;
use umiak_core::machine::round::election::{Election, Reign};
use umiak_core::machine::round::messages::{Expects, Stage, Standing, Start};
use umiak_core::model::{Exit, FIRST_ATTEMPT, Timestamp};

use super::candidate::{Candidate, Report};
use super::etcd::{Ask, Etcd, LeaseId, Reply, Watch};
use super::journal::Entry;
use super::judge::{self, Violation};
use super::network::{Conn, Net};
use super::scenario::{Fault, Scenario};

/// More steps than this mean that a machine is woken repeatedly without need.
const STEPS: u64 = 300_000;

/// A driver that is broken in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A coordinator does not hear that it must stop being one.
    NeverFence,
    /// It hears it when its lease is over.
    LateFence,
    /// A new coordinator does not wait for nodes whose ranks may still run.
    NoPatience,
    /// A new coordinator knows nothing of the job so far.
    ForgetPast,
    /// Heartbeats of nodes that the coordinator does not hear are answered.
    FalseAnswers,
    /// Nodes that lose their coordinator do not look for another.
    NeverLook,
    /// SIGTERM and SIGKILL are not sent.
    NoSignals,
    /// Coordinators are given a larger budget of restarts.
    MoreRestarts,
}

/// What will happen at some time.
#[derive(Debug, Clone)]
pub(super) enum Item {
    Comes(usize),
    Fault(Fault),
    EtcdReturns {
        renews: bool,
    },
    CandidateTick(usize, u64),
    Asked {
        call: u64,
        front: usize,
        ask: Ask,
    },
    Answered {
        call: u64,
        reply: Reply,
    },
    Expires(LeaseId),
    Watched(usize),
    Reported(usize, Report),
    AgentTick(usize),
    HostTick(usize),
    /// `up`: to the coordinator.
    Arrives {
        conn: usize,
        up: bool,
    },
    /// A side detects that a connection broke.
    Notices {
        conn: usize,
        up: bool,
    },
    Connects {
        net: usize,
        tried: u64,
        given_up: Timestamp,
    },
    News {
        net: usize,
        news: News,
    },
    Job(usize, Event),
    Prepared(usize, u32),
    Dies {
        front: usize,
        attempt: u32,
        rank: usize,
        exit: Exit,
    },
    /// A node has waited for the network for long enough, and leaves.
    Leaves(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Absent,
    /// Before its first start.
    Waiting,
    Running,
    /// It leaves the network, and then etcd.
    Leaving,
    Finishing,
    Left,
    Dead,
}

/// One launch of umiak.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) state: State,
    pub(super) has_vanished: bool,
    pub(super) election: Election,
    pub(super) candidate: Candidate,
    /// When the renewal that is under way was sent.
    pub(super) asked: Timestamp,
    pub(super) watch: Watch,
    /// The id under which this node joins.
    pub(super) launch: u64,
    /// The current coordinator, or the last.
    pub(super) reign: Option<Reign>,
    /// The state in which this node joins the next one.
    pub(super) ready: Standing,
    /// The last start of the job that this node has heard of.
    pub(super) start: Option<Box<Start>>,
    pub(super) net: Option<usize>,
    /// The connections of the last coordinator, until their messages are delivered.
    pub(super) old: Option<usize>,
    pub(super) machine: Option<Machine>,
    /// True if it has offered its ports for the next attempt.
    pub(super) next: bool,
    /// True from the start of an attempt until its ranks start, after a back-off.
    pub(super) is_named: bool,
    /// True once the job has ended for all nodes.
    pub(super) is_over: bool,
    pub(super) outcome: Option<(Outcome, u8)>,
    pub(super) attempt: u32,
    pub(super) alive: Vec<bool>,
}

/// A whole job.
#[derive(Debug)]
pub struct Run {
    pub scenario: Scenario,
    pub journal: Vec<(Timestamp, Entry)>,
    pub steps: u64,
    /// True if a machine was woken repeatedly without need.
    pub spun: bool,
    sabotage: Option<Sabotage>,
    log: Vec<String>,
}

pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) sabotage: Option<Sabotage>,
    pub(super) rng: Rng,
    pub(super) now: Timestamp,
    queue: BinaryHeap<Reverse<(Timestamp, usize)>>,
    items: Vec<Option<Item>>,
    pub(super) etcd: Etcd,
    pub(super) fronts: Vec<Front>,
    pub(super) nets: Vec<Net>,
    pub(super) conns: Vec<Conn>,
    /// Until when nothing gets from one host to the other.
    pub(super) cut: Vec<Vec<Timestamp>>,
    /// The same to etcd, and from it.
    pub(super) etcd_cut: Vec<[Timestamp; 2]>,
    pub(super) launches: BTreeMap<u64, usize>,
    pub(super) last_port: u16,
    pub(super) journal: Vec<(Timestamp, Entry)>,
    steps: u64,
    pub(super) loud: bool,
    log: Vec<String>,
}

pub(super) fn run(scenario: Scenario, sabotage: Option<Sabotage>) -> Run {
    play(scenario, sabotage, false)
}

fn play(scenario: Scenario, sabotage: Option<Sabotage>, loud: bool) -> Run {
    let hosts = scenario.rates.len();
    let fronts = scenario.fronts.iter().map(|script| new_front(&scenario, script.processes)).collect();
    let mut world = World {
        rng: Rng::with_seed(scenario.seed ^ 0x5eed),
        sabotage,
        now: Timestamp::default(),
        queue: BinaryHeap::new(),
        items: Vec::new(),
        etcd: Etcd::default(),
        fronts,
        nets: Vec::new(),
        conns: Vec::new(),
        cut: vec![vec![Timestamp::default(); hosts]; hosts],
        etcd_cut: vec![[Timestamp::default(); 2]; hosts],
        launches: BTreeMap::new(),
        last_port: 7000,
        journal: Vec::new(),
        steps: 0,
        loud,
        log: Vec::new(),
        scenario,
    };
    world.play();
    Run {
        spun: world.steps >= STEPS,
        scenario: world.scenario,
        journal: world.journal,
        steps: world.steps,
        sabotage,
        log: world.log,
    }
}

fn new_front(scenario: &Scenario, processes: usize) -> Front {
    let now = Timestamp::default();
    Front {
        state: State::Absent,
        has_vanished: false,
        election: Election::new(scenario.lease, now),
        candidate: Candidate {
            begun: false,
            lease: None,
            renewing: false,
            renew_at: now,
            port: None,
            job: None,
            end: None,
            looking: None,
            is_leading: false,
            tick: 0,
        },
        asked: now,
        watch: Watch::default(),
        launch: 0,
        reign: None,
        ready: Standing::new(FIRST_ATTEMPT, Stage::Running),
        start: None,
        net: None,
        old: None,
        machine: None,
        next: false,
        is_named: false,
        is_over: false,
        outcome: None,
        attempt: 0,
        alive: vec![false; processes],
    }
}

impl Scenario {
    pub(super) fn expects(&self) -> Expects {
        Expects::Range { min: self.min, max: self.max }
    }
}

impl World {
    fn play(&mut self) {
        for front in 0..self.fronts.len() {
            self.plan(self.scenario.fronts[front].comes, Item::Comes(front));
        }
        for (at, fault) in self.scenario.faults.clone() {
            self.plan(at, Item::Fault(fault));
        }
        let (quiet, end) = (self.scenario.quiet, self.scenario.bound());
        while let Some(Reverse((at, index))) = self.queue.pop() {
            let is_over = at > quiet && (0..self.fronts.len()).all(|front| self.is_gone(front));
            if at > end || is_over || self.steps >= STEPS {
                break;
            }
            self.now = self.now.max(at);
            self.steps += 1;
            let item = self.items[index].take().expect("planned once");
            self.happen(item);
        }
    }

    fn is_gone(&self, front: usize) -> bool {
        !self.fronts[front].state.is_here() && !self.has_ranks(front)
    }

    pub(super) fn plan(&mut self, at: Timestamp, item: Item) {
        self.queue.push(Reverse((at, self.items.len())));
        self.items.push(Some(item));
    }

    pub(super) fn record(&mut self, entry: Entry) {
        self.note(|| format!("* {entry:?}"));
        self.journal.push((self.now, entry));
    }

    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        if self.loud {
            let micros = self.now.as_micros();
            self.log.push(format!("{:>8}.{:03} {}", micros / 1000, micros % 1000, text()));
        }
    }

    /// The time on the clock of this node.
    pub(super) fn local(&self, front: usize) -> Timestamp {
        let host = self.scenario.fronts[front].host;
        Timestamp::from_micros(self.now.as_micros() * self.scenario.rates[host] / 1000)
    }

    /// The true time at which that clock shows this one.
    pub(super) fn global(&self, front: usize, local: Timestamp) -> Timestamp {
        let host = self.scenario.fronts[front].host;
        Timestamp::from_micros((local.as_micros() * 1000).div_ceil(self.scenario.rates[host]))
    }

    fn happen(&mut self, item: Item) {
        match item {
            Item::Comes(front) => self.come(front),
            Item::Fault(fault) => self.fault(fault),
            Item::EtcdReturns { renews } => self.etcd_returns(renews),
            Item::CandidateTick(front, tick) => self.candidate_tick(front, tick),
            Item::Asked { call, front, ask } => self.asked(call, front, ask),
            Item::Answered { call, reply } => self.answered(call, reply),
            Item::Expires(lease) => self.expires(lease),
            Item::Watched(front) => self.watched(front),
            Item::Reported(front, report) => self.reported(front, report),
            Item::AgentTick(net) => self.agent_tick(net),
            Item::HostTick(net) => self.host_tick(net),
            Item::Arrives { conn, up } => self.arrives(conn, up),
            Item::Notices { conn, up } => self.notices(conn, up),
            Item::Connects { net, tried, given_up } => self.connects(net, tried, given_up),
            Item::News { net, news } => self.hear(net, news),
            Item::Job(front, event) => self.job(front, event),
            Item::Prepared(front, attempt) => self.prepared(front, attempt),
            Item::Dies { front, attempt, rank, exit } => self.dies(front, attempt, rank, exit),
            Item::Leaves(front) => self.leave_etcd(front),
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.record(Entry::Fault(fault));
        let until = self.now + fault.lasts();
        match fault {
            Fault::Cut { from, to, .. } => {
                let hosts = self.cut.len();
                let pairs = (0..hosts).flat_map(|a| (0..hosts).map(move |b| (a, b)));
                for (a, b) in pairs.filter(|(a, b)| from >> a & 1 == 1 && to >> b & 1 == 1) {
                    self.cut[a][b] = self.cut[a][b].max(until);
                }
            }
            Fault::Break { host } => self.break_links(host),
            Fault::CutEtcd { host, to, from, .. } => {
                for (way, _) in [to, from].into_iter().enumerate().filter(|(_, is_cut)| *is_cut) {
                    self.etcd_cut[host][way] = self.etcd_cut[host][way].max(until);
                }
            }
            Fault::EtcdAway { renews, .. } => {
                self.etcd.away = self.etcd.away.max(until);
                self.plan(until, Item::EtcdReturns { renews });
            }
            Fault::Kill { host } | Fault::Vanish { host } => {
                if let Some(front) = self.on_host(host) {
                    self.kill(front, matches!(fault, Fault::Vanish { .. }));
                }
            }
            Fault::Signal { host } => {
                if let Some(front) = self.on_host(host) {
                    self.signal(front);
                }
            }
            Fault::Scale { min, max } => self.scale(min, max),
        }
    }
}

impl Run {
    /// Everything that is wrong with the job.
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

    /// The time for which ranks of this launch may take after they were told to stop.
    pub(super) fn grace(&self, front: usize) -> Duration {
        let rate = self.scenario.rates[self.scenario.fronts[front].host];
        self.scenario.grace * 1000 / rate as u32 + Duration::from_millis(50)
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { seed, min, max, limits, grace, lease, restart, window, work, rates, .. } = &self.scenario;
        writeln!(f, "seed {seed}: {min}:{max} nodes, {limits:?}, grace {grace:?}, lease {lease:?}")?;
        writeln!(f, "  {} restarts, window {window:?}, work {work:?}, clocks {rates:?}", restart.max)?;
        for (front, script) in self.scenario.fronts.iter().enumerate() {
            writeln!(f, "  launch {front} on host {}: {script:?}", script.host)?;
        }
        let log = play(self.scenario.clone(), self.sabotage, true).log;
        log.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
