//! The scenario of a seed: nodes, what their ranks will do, and faults.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use fastrand::Rng;
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::messages::Expects;
use umiak_core::model::{Exit, FIRST_ATTEMPT, Restart, Timestamp};

use super::servers::ServerScript;
use crate::simulate::Words;

/// How long ends are collected after a failure; longer than any notification takes.
pub(super) const SETTLE: Duration = Duration::from_millis(500);
/// From SIGTERM to SIGKILL, and from there to abandoning.
pub(super) const GRACE: Duration = Duration::from_millis(800);
pub(super) const ABANDON: Duration = Duration::from_secs(1);
/// The longest time from a death to its notification.
pub(super) const NOTICE: Duration = Duration::from_millis(200);
/// The longest life of a rank.
pub(super) const LIFE: Duration = Duration::from_secs(4);
/// Time limit of a handshake.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// A round, and everything that will happen in it.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub kind: Kind,
    /// The nodes that the coordinator expects.
    pub expects: Expects,
    pub uneven: bool,
    /// How long servers may take to listen; zero if trainers do not wait; `None` without servers.
    pub server_timeout: Option<Duration>,
    /// If true, servers that do not listen in time have failed; otherwise trainers start anyway.
    pub patient: bool,
    pub limits: Limits,
    pub restart: Restart,
    /// The first is the coordinator's own.
    pub nodes: Vec<NodeScript>,
    pub faults: Vec<(Timestamp, Fault)>,
    /// The longest delay of a message, in milliseconds.
    pub delay: u64,
    /// Some connections are refused for no reason.
    pub flaky: bool,
    /// How long an elastic job waits for more nodes than it needs.
    pub window: Duration,
}

/// The kind of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// No faults of nodes and connections.
    Calm,
    /// Only faults that must not change the result: short partitions and pauses, broken connections.
    Gentle,
    /// One node dies.
    OneDies,
    /// Nodes do not join, or do not fit.
    Forming,
    /// A stop is requested, or a node cannot start.
    Asked,
    /// All faults.
    Rough,
    /// The number of nodes is a range: they come and go. With all faults.
    Elastic,
}

/// One node.
#[derive(Debug, Clone)]
pub struct NodeScript {
    pub address: IpAddr,
    pub launch: u64,
    pub rank: Option<u32>,
    pub expects: Expects,
    /// When it joins, if it does.
    pub comes: Option<Timestamp>,
    /// The first attempt that it cannot start.
    pub unable: Option<u32>,
    /// How long preparing the next attempt takes, and reading the evidence.
    pub prepare: Duration,
    pub gather: Duration,
    /// How many of its ranks, from the first, are servers.
    pub servers: usize,
    /// By attempt; the last one repeats.
    pub ranks: Vec<Vec<RankScript>>,
}

/// What one rank will do.
#[derive(Debug, Clone)]
pub struct RankScript {
    /// `None`: until it is stopped.
    pub life: Option<Duration>,
    pub end: Exit,
    pub words: Words,
    /// From its death to the notification.
    pub reported: Duration,
    /// `None` if it ignores the signal.
    pub on_interrupt: Option<(Duration, Exit)>,
    pub on_term: Option<(Duration, Exit)>,
    pub on_kill: Option<Duration>,
    /// When it dies after a peer's death.
    pub on_lost_peer: Option<Duration>,
    pub server: Option<ServerScript>,
}

/// A fault of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its connection breaks.
    Break {
        node: usize,
    },
    /// The agent loses its connection. What it has sent arrives this much later, behind its next messages.
    BreakLate {
        node: usize,
        late: Duration,
    },
    /// No message gets through for this long.
    Partition {
        node: usize,
        lasts: Duration,
        way: Way,
    },
    /// Its umiak is suspended for this long.
    Pause {
        node: usize,
        lasts: Duration,
    },
    KillFront {
        node: usize,
    },
    /// The front and the guardian are killed.
    KillBoth {
        node: usize,
    },
    /// The host disappears without closing its connections.
    Vanish {
        node: usize,
    },
    Signal {
        node: usize,
        signal: i32,
    },
    /// `umiak stop`.
    Stop {
        node: usize,
    },
    GuardianLost {
        node: usize,
    },
}

/// The messages that a partition holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Both,
    ToCoordinator,
    FromCoordinator,
}

impl Fault {
    /// How long the fault lasts.
    pub fn lasts(self) -> Duration {
        match self {
            Self::Partition { lasts, .. } | Self::Pause { lasts, .. } => lasts,
            Self::BreakLate { late, .. } => late,
            _ => Duration::ZERO,
        }
    }

    pub fn node(self) -> usize {
        match self {
            Self::Break { node }
            | Self::BreakLate { node, .. }
            | Self::Partition { node, .. }
            | Self::Pause { node, .. }
            | Self::KillFront { node }
            | Self::KillBoth { node }
            | Self::Vanish { node }
            | Self::Signal { node, .. }
            | Self::Stop { node }
            | Self::GuardianLost { node } => node,
        }
    }
}

impl Scenario {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let rng = &mut rng;
        let kinds = [Kind::Calm, Kind::Gentle, Kind::OneDies, Kind::Forming, Kind::Asked, Kind::Rough, Kind::Rough];
        let kind = kinds[rng.usize(..kinds.len())];
        let count = if rng.u32(..250) == 0 { 64 } else { rng.usize(2..=8).min(rng.usize(2..=8)) };
        let uneven = rng.f64() < 0.2;
        let expects = expects(rng, count);
        let ranked = matches!(expects, Expects::Count { .. }) && rng.bool();
        let mut order: Vec<u32> = (0..count as u32).collect();
        rng.shuffle(&mut order);
        let processes = rng.usize(1..=if count > 8 { 1 } else { 3 });
        // The dead node must be the only cause.
        let bad = if kind == Kind::OneDies || rng.f64() < 0.4 { 0.0 } else { 1.0 };
        let coupled = rng.f64() < 0.6;
        let attempts = rng.usize(1..=4);
        let mut nodes: Vec<NodeScript> = (0..count)
            .map(|node| {
                let processes = if uneven { rng.usize(1..=3) } else { processes };
                NodeScript {
                    address: address(node),
                    launch: rng.u64(..) | 1,
                    rank: ranked.then(|| order[node]),
                    expects: expects.clone(),
                    comes: Some(at(rng.u64(..3000))),
                    unable: None,
                    prepare: Duration::from_millis(rng.u64(..300)),
                    gather: Duration::from_millis(rng.u64(..100)),
                    servers: 0,
                    ranks: (0..attempts).map(|_| (0..processes).map(|_| good(rng, coupled)).collect()).collect(),
                }
            })
            .collect();
        if bad > 0.0 {
            for attempt in 0..rng.usize(1..=attempts) {
                for _ in 0..rng.usize(1..=2) {
                    let node = rng.usize(..count);
                    let ranks = &mut nodes[node].ranks[attempt];
                    let rank = rng.usize(..ranks.len());
                    spoil(rng, &mut ranks[rank]);
                }
            }
        }
        let limits = Limits {
            rendezvous: Duration::from_secs(20),
            silence: Duration::from_secs([3, 3, 6, 10][rng.usize(..4)]),
            reconnect: Duration::from_secs(rng.u64(6..=12)),
        };
        let mut scenario = Self {
            seed,
            kind,
            expects,
            uneven,
            server_timeout: None,
            patient: false,
            limits,
            restart: Restart {
                max: rng.u32(..=3),
                backoff: Duration::from_millis(rng.u64(..400)),
                max_backoff: Duration::from_millis(800),
                ..Restart::default()
            },
            nodes,
            faults: Vec::new(),
            delay: [0, 5, 50, 300][rng.usize(..4)],
            flaky: kind == Kind::Rough,
            window: Duration::ZERO,
        };
        scenario.trouble(rng);
        if seed % 3 == 2 {
            scenario.serve(rng);
        }
        scenario.faults.sort_by_key(|(at, _)| *at);
        scenario
    }

    fn trouble(&mut self, rng: &mut Rng) {
        let count = self.nodes.len();
        match self.kind {
            Kind::Calm | Kind::Elastic => {}
            Kind::Gentle => {
                let mut begins = rng.u64(..3000);
                for _ in 0..rng.usize(1..=3) {
                    let node = rng.usize(..count);
                    let lasts = Duration::from_millis(rng.u64(1..1200));
                    let fault = match rng.u32(..3) {
                        0 if node > 0 => Fault::Break { node },
                        1 if node > 0 => Fault::Partition { node, lasts, way: Way::Both },
                        _ => Fault::Pause { node, lasts },
                    };
                    self.faults.push((at(begins), fault));
                    begins += 1500 + rng.u64(..3000);
                }
            }
            Kind::OneDies => {
                // Once all have joined and run.
                self.nodes.iter_mut().for_each(|node| node.comes = Some(at(rng.u64(..200))));
                self.nodes.iter_mut().flat_map(|node| &mut node.ranks[0]).for_each(|rank| rank.life = Some(LIFE));
                let node = rng.usize(1..count);
                self.faults.push((at(rng.u64(1500..3500)), death(rng, node)));
            }
            Kind::Forming => self.misfits(rng),
            Kind::Asked => {
                let node = rng.usize(..count);
                if rng.bool() {
                    for _ in 0..rng.usize(1..=3) {
                        let signal = [2, 15][rng.usize(..2)];
                        let node = if rng.bool() { node } else { rng.usize(..count) };
                        let fault =
                            if rng.u32(..3) == 0 { Fault::Stop { node } } else { Fault::Signal { node, signal } };
                        self.faults.push((at(rng.u64(..9000)), fault));
                    }
                } else {
                    self.nodes[node].unable = Some(rng.u32(..3));
                }
            }
            Kind::Rough => {
                if rng.f64() < 0.2 {
                    self.misfits(rng);
                }
                if rng.f64() < 0.1 {
                    self.nodes[rng.usize(..count)].unable = Some(rng.u32(..3));
                }
                for _ in 0..rng.usize(1..=6) {
                    let node = rng.usize(..count);
                    let longest = [1000, 8000, 25_000][rng.usize(..3)];
                    let lasts = Duration::from_millis(rng.u64(1..longest));
                    let fault = match rng.u32(..12) {
                        0..=2 if node > 0 => Fault::Break { node },
                        3..=5 if node > 0 => Fault::Partition { node, lasts, way: Way::Both },
                        6 => death(rng, node),
                        7 => Fault::Signal { node, signal: [2, 15][rng.usize(..2)] },
                        8 => Fault::GuardianLost { node },
                        _ => Fault::Pause { node, lasts },
                    };
                    self.faults.push((at(rng.u64(..12_000)), fault));
                }
            }
        }
    }

    /// Nodes that are late, missing or do not fit; never the coordinator's own.
    fn misfits(&mut self, rng: &mut Rng) {
        let count = self.nodes.len();
        for _ in 0..rng.usize(1..=2) {
            let node = rng.usize(1..count);
            let script = &mut self.nodes[node];
            match rng.u32(..8) {
                0 => script.comes = None,
                1 => script.comes = Some(at(rng.u64(..40_000))),
                2 => script.address = address(rng.usize(..count)),
                3 => script.address = address(200),
                4 => script.ranks.iter_mut().for_each(|ranks| ranks.push(good(rng, false))),
                5 => {
                    script.expects = match &script.expects {
                        Expects::List(list) => Expects::List(list.iter().rev().copied().collect()),
                        Expects::Count { nodes, sort_ip } => Expects::Count { nodes: nodes + 1, sort_ip: *sort_ip },
                        Expects::Range { min, max } => Expects::Range { min: *min, max: max + 1 },
                    }
                }
                6 => script.rank = Some(rng.u32(..=count as u32)),
                _ => {
                    // One node too many.
                    let mut extra = script.clone();
                    extra.launch = rng.u64(..) | 1;
                    self.nodes.push(extra);
                }
            }
        }
    }

    /// When the last scheduled event has happened.
    pub fn quiet_from(&self) -> Timestamp {
        let comes = self.nodes.iter().filter_map(|node| node.comes);
        let faults = self.faults.iter().map(|(at, fault)| *at + fault.lasts());
        comes.chain(faults).max().unwrap_or_default()
    }

    /// The time by which every round is over: the sum of all limits.
    pub fn bound(&self) -> Timestamp {
        use umiak_core::machine::round::limits::{ANSWER, GOODBYE, REFUSED, TELL};
        if let Some(attempts) = self.attempts_left() {
            return self.quiet_from() + self.limits.rendezvous + self.longest_attempt() * attempts + self.farewell();
        }
        let limits = &self.limits;
        let ways = Duration::from_millis(self.delay * 6);
        let stop = SETTLE + TELL + GRACE + ABANDON + ways;
        let attempt = self.start_up() + LIFE + stop + self.restart.max_backoff + Duration::from_secs(1);
        let round = attempt * (self.restart.max + 1);
        self.quiet_from()
            + limits.rendezvous
            + round
            + limits.lost()
            + HANDSHAKE
            + limits.reconnect
            + REFUSED
            + stop
            + ANSWER
            + GOODBYE
            + ways
    }
}

impl NodeScript {
    pub fn script(&self, attempt: u32) -> &[RankScript] {
        self.ranks.get((attempt - FIRST_ATTEMPT) as usize).or(self.ranks.last()).map_or(&[], Vec::as_slice)
    }

    pub fn host(&self) -> String {
        format!("host{}", self.launch % 1000)
    }
}

fn expects(rng: &mut Rng, count: usize) -> Expects {
    if rng.bool() {
        return Expects::Count { nodes: count as u32, sort_ip: rng.bool() };
    }
    let mut list: Vec<IpAddr> = (0..count).map(address).collect();
    rng.shuffle(&mut list[1..]);
    Expects::List(list)
}

pub(super) fn death(rng: &mut Rng, node: usize) -> Fault {
    match rng.u32(..3) {
        0 => Fault::KillFront { node },
        1 => Fault::KillBoth { node },
        _ => Fault::Vanish { node },
    }
}

pub(super) fn good(rng: &mut Rng, coupled: bool) -> RankScript {
    let stuck = rng.u32(..150) == 0;
    let exit = [killed_by(15), killed_by(15), code(143), code(0), code(1)][rng.usize(..5)].clone();
    let slow = if rng.u32(..10) == 0 { 1500 } else { 20 };
    RankScript {
        life: Some(Duration::from_millis(rng.u64(..LIFE.as_millis() as u64))),
        end: code(0),
        words: Words::Silence,
        reported: Duration::from_millis(rng.u64(..5)),
        on_interrupt: (!stuck && rng.u32(..4) > 0).then(|| {
            let exit = [killed_by(2), killed_by(2), code(130), code(0), code(1)][rng.usize(..5)].clone();
            (Duration::from_millis(rng.u64(..slow)), exit)
        }),
        on_term: (!stuck && rng.u32(..12) > 0).then(|| (Duration::from_millis(rng.u64(..slow)), exit)),
        on_kill: (!stuck).then(|| Duration::from_millis(rng.u64(..5))),
        on_lost_peer: (coupled && !stuck && rng.f64() < 0.8).then(|| Duration::from_millis(rng.u64(1..150))),
        server: None,
    }
}

pub(super) fn spoil(rng: &mut Rng, rank: &mut RankScript) {
    rank.end = [code(1), code(7), killed_by(9), killed_by(11)][rng.usize(..4)].clone();
    rank.words = if rng.u32(..5) == 0 { Words::Silence } else { Words::OwnError };
    rank.reported = Duration::from_millis(rng.u64(..NOTICE.as_millis() as u64));
}

pub(super) fn address(node: usize) -> IpAddr {
    // Addresses are not in node order.
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, (node * 37 % 211) as u8 + 1))
}

/// This many milliseconds after the start.
pub(super) fn at(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_000_000 + millis * 1000)
}

pub(super) fn code(code: i32) -> Exit {
    Exit::Code { code }
}

pub(super) fn killed_by(signal: i32) -> Exit {
    Exit::Signal { signal, core_dumped: false }
}
