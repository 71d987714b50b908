//! The scenario of an elastic job: nodes that come late, in crowds, too many or again, and leave in every way.

use std::time::Duration;

use fastrand::Rng;
use umiak_core::machine::round::limits::{ANSWER, GOODBYE, Limits, REFUSED, TELL_WHY};
use umiak_core::machine::round::messages::Expects;
use umiak_core::model::{Exit, Restart, SpawnError, SpawnStage};

use super::scenario::{
    ABANDON, Fault, GRACE, HANDSHAKE, Kind, NodeScript, RankScript, SETTLE, Scenario, Way, address, at, death, good,
    spoil,
};

/// The longest life of a rank.
const LIFE: Duration = Duration::from_secs(20);
/// When the last node comes and the last fault begins, at the latest, in milliseconds.
const HAPPENS: u64 = 18_000;
/// How many attempts differ; the last one repeats.
const ATTEMPTS: usize = 6;

/// Which ranks fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failing {
    None,
    /// Any rank, in some of the first attempts.
    Anywhere,
    /// A rank of one node, in every attempt.
    OneNode,
    /// The ranks of one node cannot be started.
    Spawn,
}

impl Scenario {
    /// The world of an elastic job.
    pub fn elastic(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed ^ 0xe1a5_71c0);
        let is_large = rng.u32(..400) == 0;
        let min = if is_large { 16 } else { rng.u32(1..=4).min(rng.u32(1..=4)) };
        let max = if is_large { 48 } else { min + rng.u32(..=3) };
        let count = if is_large { 64 } else { rng.usize(min.max(2) as usize..=max as usize + 3) };
        let expects = Expects::Range { min, max };
        let coupled = rng.f64() < 0.6;
        let window = Duration::from_millis([0, 500, 1500, 4000][rng.usize(..4)]);
        // All ranks of an attempt do the same work.
        let lives: Vec<u64> =
            (0..ATTEMPTS).map(|_| if rng.u32(..4) == 0 { rng.u64(200..3000) } else { rng.u64(4000..16_000) }).collect();
        let crowd = rng.u64(..HAPPENS / 2);
        let mut scenario = Self {
            seed,
            kind: Kind::Elastic,
            uneven: true,
            server_timeout: None,
            patient: false,
            limits: Limits {
                rendezvous: Duration::from_secs(rng.u64(12..=20)),
                silence: Duration::from_secs([3, 3, 5][rng.usize(..3)]),
                reconnect: Duration::from_secs(rng.u64(3..=8)),
            },
            restart: Restart {
                max: rng.u32(..=4),
                backoff: Duration::from_millis(rng.u64(..400)),
                max_backoff: Duration::from_millis(800),
                ..Restart::default()
            },
            nodes: Vec::new(),
            faults: Vec::new(),
            delay: [0, 5, 50, 200][rng.usize(..4)],
            flaky: rng.u32(..4) == 0,
            window,
            expects,
        };
        let late = rng.f64() * 0.8;
        for node in 0..count {
            let comes = match rng.f64() {
                _ if node == 0 => rng.u64(..300),
                share if share > late => rng.u64(..1500),
                share if share > late / 2.0 => crowd + rng.u64(..100),
                _ => rng.u64(..HAPPENS),
            };
            let node = scenario.node(rng, &lives, coupled, node, comes);
            scenario.nodes.push(node);
        }
        scenario.fail(rng);
        for _ in 0..rng.usize(..=8) {
            let begins = rng.u64(..HAPPENS);
            scenario.go_wrong(rng, &lives, coupled, begins);
        }
        if rng.u32(..20) == 0 {
            // It was started for another job of this name.
            let node = rng.usize(1..scenario.nodes.len());
            scenario.nodes[node].expects = Expects::Range { min, max: max + 1 };
        }
        if rng.u32(..8) == 0 {
            let node = rng.usize(..scenario.nodes.len());
            scenario.nodes[node].unable = Some(rng.u32(..5));
        }
        scenario.faults.sort_by_key(|(at, _)| *at);
        scenario
    }

    fn node(&self, rng: &mut Rng, lives: &[u64], coupled: bool, number: usize, comes: u64) -> NodeScript {
        let processes = rng.usize(1..=if self.nodes.len() > 12 { 1 } else { 3 });
        let rank = |rng: &mut Rng, life: u64| {
            let spread = if rng.u32(..6) == 0 { 3000 } else { 200 };
            RankScript { life: Some(Duration::from_millis(life + rng.u64(..spread))), ..good(rng, coupled) }
        };
        NodeScript {
            address: address(number),
            launch: rng.u64(..) | 1,
            rank: None,
            expects: self.expects.clone(),
            comes: Some(at(comes)),
            unable: None,
            prepare: Duration::from_millis(if rng.u32(..10) == 0 { rng.u64(..2500) } else { rng.u64(..200) }),
            gather: Duration::from_millis(rng.u64(..100)),
            servers: 0,
            ranks: lives.iter().map(|life| (0..processes).map(|_| rank(rng, *life)).collect()).collect(),
        }
    }

    fn fail(&mut self, rng: &mut Rng) {
        let kinds =
            [Failing::None, Failing::None, Failing::Anywhere, Failing::Anywhere, Failing::OneNode, Failing::Spawn];
        let failing = kinds[rng.usize(..kinds.len())];
        let one = rng.usize(..self.nodes.len());
        let early = |rng: &mut Rng| Some(Duration::from_millis(rng.u64(..4000)));
        match failing {
            Failing::None => {}
            Failing::Anywhere => {
                for _ in 0..rng.usize(1..=4) {
                    let (node, attempt) = (rng.usize(..self.nodes.len()), rng.usize(..ATTEMPTS - 1));
                    let ranks = &mut self.nodes[node].ranks[attempt];
                    let rank = rng.usize(..ranks.len());
                    spoil(rng, &mut ranks[rank]);
                    ranks[rank].life = early(rng);
                }
            }
            Failing::OneNode => {
                for ranks in &mut self.nodes[one].ranks {
                    let rank = rng.usize(..ranks.len());
                    spoil(rng, &mut ranks[rank]);
                    ranks[rank].life = early(rng);
                }
            }
            Failing::Spawn => {
                let error = SpawnError { doing: SpawnStage::Execute, errno: 2, reason: "not found".to_owned() };
                let from = rng.usize(..3);
                for rank in self.nodes[one].ranks.iter_mut().skip(from).flatten() {
                    rank.end = Exit::Spawn(error.clone());
                }
            }
        }
    }

    /// One fault, or a node that goes and comes again.
    fn go_wrong(&mut self, rng: &mut Rng, lives: &[u64], coupled: bool, begins: u64) {
        let node = rng.usize(..self.nodes.len());
        // The job ends with the coordinator's node.
        if node == 0 && rng.u32(..3) > 0 {
            return;
        }
        let Limits { silence, reconnect, .. } = self.limits;
        let (silence, reconnect) = (silence.as_millis() as u64, reconnect.as_millis() as u64);
        let lasts = Duration::from_millis(match rng.u32(..4) {
            0 => rng.u64(1..silence),
            1 => rng.u64(silence..silence + reconnect + 1000),
            2 => rng.u64(silence + reconnect..2 * (silence + reconnect)),
            _ => rng.u64(1..1000),
        });
        let way = [Way::Both, Way::ToCoordinator, Way::FromCoordinator][rng.usize(..3)];
        let signal = [2, 15][rng.usize(..2)];
        let fault = match rng.u32(..15) {
            0..=1 if node > 0 => Fault::Break { node },
            2 if node > 0 => Fault::BreakLate { node, late: lasts },
            3..=5 if node > 0 => Fault::Partition { node, lasts, way },
            6..=7 => Fault::Pause { node, lasts },
            8..=9 => Fault::Signal { node, signal },
            10 => Fault::Stop { node },
            11 => Fault::GuardianLost { node },
            _ => death(rng, node),
        };
        self.faults.push((at(begins), fault));
        let goes = matches!(
            fault,
            Fault::Signal { .. } | Fault::KillFront { .. } | Fault::KillBoth { .. } | Fault::Vanish { .. }
        );
        if goes && node > 0 && rng.bool() {
            let comes = begins + [500, 5000, 15_000].map(|longest| rng.u64(1..longest))[rng.usize(..3)];
            let mut again = self.node(rng, lives, coupled, 0, comes);
            again.address = self.nodes[node].address;
            self.nodes.push(again);
        }
        // Several at once.
        if rng.u32(..5) == 0 {
            let soon = begins + rng.u64(..1500);
            self.go_wrong(rng, lives, coupled, soon);
        }
    }

    pub fn is_elastic(&self) -> bool {
        matches!(self.expects, Expects::Range { .. })
    }

    /// The range of nodes of an elastic job.
    pub(super) fn range(&self) -> (usize, usize) {
        match self.expects {
            Expects::Range { min, max } => (min as usize, max as usize),
            _ => (self.expects.nodes(), self.expects.nodes()),
        }
    }

    /// How many attempts there can be after the last fault of an elastic job: each node may still be lost, join, and be
    /// left out.
    pub(super) fn attempts_left(&self) -> Option<u32> {
        self.is_elastic().then(|| self.restart.max + 3 * self.nodes.len() as u32 + 1)
    }

    /// From the stop of an attempt until each node that it reaches has ended its ranks and is prepared for the next.
    pub(super) fn stop_time(&self) -> Duration {
        let prepare = self.nodes.iter().map(|node| node.prepare + node.gather).max().unwrap_or_default();
        SETTLE + TELL_WHY + GRACE + ABANDON + prepare + self.ways() + Duration::from_secs(1)
    }

    pub(super) fn ways(&self) -> Duration {
        Duration::from_millis(self.delay * 6)
    }

    pub(super) fn longest_attempt(&self) -> Duration {
        LIFE + self.window + self.stop_time() + self.restart.max_backoff
    }

    /// From the end of the job, or the loss of the coordinator, until each node has noticed and ended.
    pub(super) fn farewell(&self) -> Duration {
        self.limits.lost() + HANDSHAKE * 2 + self.limits.reconnect + REFUSED + ANSWER * 2 + GOODBYE + self.stop_time()
    }
}
