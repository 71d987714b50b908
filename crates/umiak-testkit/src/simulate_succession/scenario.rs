//! The scenario of a seed: nodes, what their ranks will do, and faults of nodes, of the network and of etcd.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use fastrand::Rng;
use umiak_core::machine::round::limits::{ANSWER, GOODBYE, Limits, REFUSED, TELL_WHY};
use umiak_core::model::{Restart, Timestamp};

/// How long ends are collected after a failure.
pub(super) const SETTLE: Duration = Duration::from_millis(300);
/// From SIGKILL to abandoning; ranks die before.
pub(super) const ABANDON: Duration = Duration::from_secs(1);
/// Time limit of a handshake.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);
/// No fault begins before, and none lasts beyond, in milliseconds.
const FAULTS: std::ops::Range<u64> = 1500..24_000;
/// Time of a node to leave the network, and then etcd.
pub(super) const LEAVING: Duration = Duration::from_secs(6);
/// The clocks of nodes run at so many thousandths of the true rate.
const RATES: std::ops::RangeInclusive<u64> = 950..=1050;

/// A job, and everything that will happen to it.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    /// The range of nodes on all command lines.
    pub min: u32,
    pub max: u32,
    pub limits: Limits,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    pub lease: Duration,
    pub restart: Restart,
    pub window: Duration,
    /// How long the ranks of an attempt work.
    pub work: Duration,
    /// The rate of each host's clock, in thousandths.
    pub rates: Vec<u64>,
    pub fronts: Vec<FrontScript>,
    pub faults: Vec<(Timestamp, Fault)>,
    /// The longest delay of a message between nodes, and to etcd, in microseconds.
    pub delay: u64,
    pub etcd_delay: u64,
    /// Of so many answers of etcd, one is lost; 0 if none is.
    pub lossy: u32,
    /// When all is well again.
    pub quiet: Timestamp,
}

/// One launch of umiak on a host.
#[derive(Debug, Clone)]
pub struct FrontScript {
    pub host: usize,
    pub comes: Timestamp,
    pub processes: usize,
    /// How long preparing the next attempt takes.
    pub prepare: Duration,
    /// When a rank fails, by attempt, after its start.
    pub fails: Vec<Option<Duration>>,
}

/// A fault. Hosts are numbered; the launch that is there is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No message gets from the hosts of the first set to those of the second; sets of bits.
    Cut { from: u32, to: u32, lasts: Duration },
    /// The connections of this host break.
    Break { host: usize },
    /// This host does not reach etcd, or is not reached by it.
    CutEtcd { host: usize, to: bool, from: bool, lasts: Duration },
    /// etcd does not work, for all hosts. Leases then last for their whole time again, or are as old as they are.
    EtcdAway { lasts: Duration, renews: bool },
    /// The front is killed; the guardian stops the ranks.
    Kill { host: usize },
    /// The host disappears without closing its connections.
    Vanish { host: usize },
    /// SIGTERM.
    Signal { host: usize },
    /// The number of nodes is changed in etcd.
    Scale { min: u32, max: u32 },
}

impl Fault {
    pub fn lasts(self) -> Duration {
        match self {
            Self::Cut { lasts, .. } | Self::CutEtcd { lasts, .. } | Self::EtcdAway { lasts, .. } => lasts,
            _ => Duration::ZERO,
        }
    }
}

impl Scenario {
    pub fn new(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed ^ 0x5acc_e550);
        let hosts = rng.usize(3..=6);
        let min = rng.u32(1..hosts as u32);
        let max = rng.u32(min..=hosts as u32);
        let limits = Limits {
            rendezvous: Duration::from_secs(60),
            silence: Duration::from_secs([3, 4, 6][rng.usize(..3)]),
            reconnect: Duration::from_secs(rng.u64(3..=8)),
        };
        let grace = Duration::from_millis([400, 700, 1000][rng.usize(..3)]);
        // As the front chooses it.
        let lease = (limits.silence / 3).max(grace * 3).max(Duration::from_secs(rng.u64(2..=4)));
        let rates = if rng.u32(..4) == 0 { 1000..=1000 } else { RATES };
        let mut scenario = Self {
            seed,
            min,
            max,
            limits,
            grace,
            lease,
            restart: Restart {
                max: rng.u32(..=4),
                backoff: Duration::from_millis([0, 300, 1500][rng.usize(..3)]),
                max_backoff: Duration::from_secs(2),
                ..Restart::default()
            },
            window: Duration::from_millis([0, 500, 2000][rng.usize(..3)]),
            work: Duration::from_millis(rng.u64(3000..14_000)),
            rates: (0..hosts).map(|_| rng.u64(rates.clone())).collect(),
            fronts: Vec::new(),
            faults: Vec::new(),
            delay: [500, 5000, 50_000, 200_000][rng.usize(..4)],
            etcd_delay: [2000, 10_000, 100_000][rng.usize(..3)],
            lossy: [0, 0, 10, 30][rng.usize(..4)],
            quiet: Timestamp::default(),
        };
        let late = rng.f64() * 0.4;
        for host in 0..hosts {
            let comes = if rng.f64() < late { rng.u64(..FAULTS.end / 2) } else { rng.u64(..800) };
            scenario.come(rng, host, comes);
        }
        for _ in 0..rng.usize(..=6) {
            let begins = rng.u64(FAULTS);
            scenario.go_wrong(rng, begins);
        }
        scenario.faults.sort_by_key(|(at, _)| *at);
        let ends = scenario.faults.iter().map(|(at, fault)| *at + fault.lasts());
        let comes = scenario.fronts.iter().map(|front| front.comes);
        scenario.quiet = ends.chain(comes).max().unwrap_or_default();
        scenario
    }

    fn come(&mut self, rng: &mut Rng, host: usize, comes: u64) {
        let share = if rng.u32(..3) == 0 { 0.3 } else { 0.0 };
        let fails = |rng: &mut Rng| (rng.f64() < share).then(|| Duration::from_millis(rng.u64(200..3000)));
        self.fronts.push(FrontScript {
            host,
            comes: at(comes),
            processes: rng.usize(1..=2),
            prepare: Duration::from_millis(if rng.u32(..8) == 0 { rng.u64(..2000) } else { rng.u64(..150) }),
            fails: (0..5).map(|_| fails(rng)).collect(),
        });
    }

    fn go_wrong(&mut self, rng: &mut Rng, begins: u64) {
        let hosts = self.rates.len();
        let host = rng.usize(..hosts);
        let (silence, lease) = (self.limits.silence.as_millis() as u64, self.lease.as_millis() as u64);
        let longest = [1000, lease, 2 * lease, silence, 3 * silence][rng.usize(..5)];
        let lasts = Duration::from_millis(rng.u64(1..longest).min(FAULTS.end - begins));
        let all = (1u32 << hosts) - 1;
        let fault = match rng.u32(..16) {
            0..=3 => {
                let some = if rng.bool() { 1 << host } else { rng.u32(1..all) };
                let (from, to) = if rng.bool() { (some, all & !some) } else { (all & !some, some) };
                if rng.bool() {
                    self.faults.push((at(begins), Fault::Cut { from: to, to: from, lasts }));
                }
                Fault::Cut { from, to, lasts }
            }
            4 => Fault::Break { host },
            5..=7 => {
                let (to, from) = [(true, true), (true, false), (false, true)][rng.usize(..3)];
                Fault::CutEtcd { host, to, from, lasts }
            }
            8 => Fault::EtcdAway { lasts, renews: rng.bool() },
            9..=10 => Fault::Kill { host },
            11 => Fault::Vanish { host },
            12..=13 => Fault::Signal { host },
            14 => {
                let min = rng.u32(1..=self.min);
                Fault::Scale { min, max: rng.u32(self.min..=hosts as u32) }
            }
            // A host without both.
            _ => {
                let (from, to) = (1 << host, all & !(1 << host));
                self.faults.push((at(begins), Fault::Cut { from, to, lasts }));
                self.faults.push((at(begins), Fault::Cut { from: to, to: from, lasts }));
                Fault::CutEtcd { host, to: true, from: true, lasts }
            }
        };
        self.faults.push((at(begins), fault));
        let goes = matches!(fault, Fault::Kill { .. } | Fault::Vanish { .. } | Fault::Signal { .. });
        if goes && rng.u32(..3) > 0 {
            let comes = begins + [500, 4000, 10_000].map(|longest| rng.u64(1..longest))[rng.usize(..3)];
            self.come(rng, host, comes);
        }
        // Several at once.
        if rng.u32(..3) == 0 && begins + 1000 < FAULTS.end {
            let soon = begins + rng.u64(..1000);
            self.go_wrong(rng, soon);
        }
    }

    /// Time limit of a request to etcd, over all its members.
    pub(super) fn call(&self) -> Duration {
        (self.lease / 2).clamp(Duration::from_secs(2), Duration::from_secs(10))
    }

    /// The lease as etcd grants it: in whole seconds.
    pub(super) fn granted(&self) -> Duration {
        Duration::from_secs(self.lease.as_secs() + u64::from(self.lease.subsec_nanos() > 0))
    }

    /// The longest time from losing a coordinator to ranks under the next one.
    pub(super) fn succession(&self) -> Duration {
        let prepare = self.fronts.iter().map(|front| front.prepare).max().unwrap_or_default();
        let stop = SETTLE + TELL_WHY + self.grace + ABANDON + prepare;
        let limits = &self.limits;
        let notice = limits.lost() + limits.reconnect + REFUSED + ANSWER + HANDSHAKE;
        let elected = self.granted() + self.call() + GOODBYE + LEAVING * 2;
        notice + stop + elected + limits.fence() + self.grace + self.window + self.restart.max_backoff
    }

    /// The time by which every node has left, when all is well from [`Scenario::quiet`] on.
    pub fn bound(&self) -> Timestamp {
        // Each node may still be found lost, or join.
        let attempts = self.fronts.len() as u32 + self.restart.max + 1;
        self.quiet + self.limits.rendezvous + (self.succession() + self.work) * attempts
    }

    pub(super) fn address(host: usize) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, host as u8 + 1))
    }
}

/// This many milliseconds after the start.
fn at(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_000_000 + millis * 1000)
}
