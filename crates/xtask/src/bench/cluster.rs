//! `cargo xtask bench cluster`: the engines of Slurm and MPI, beside bare `sbatch` + `srun` and bare `mpirun`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::model::{Metric, Series};
use super::options::{Field, Shared};
use super::peers::{Kind, Peer};
use super::rounds::{Contestant, Rounds, say};
use super::rows::Setting;
use super::rows::cluster::{Engine, NODES, Place, Way};
use super::{beside, of_peer, publish, verdict};

const NAME: &str = "cluster";
/// The number of ranks in the requirements.
pub(crate) const RANKS: u32 = 16;
const ROUNDS: usize = 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Row {
    Slurm,
    SlurmFailure,
    Spread,
    Mpi,
    MpiFailure,
}

impl Row {
    /// Jobs that succeed, jobs in which a rank fails, and jobs with a node for each rank.
    fn of(engine: Engine) -> (Self, Self, Option<Self>) {
        match engine {
            Engine::Slurm => (Self::Slurm, Self::SlurmFailure, Some(Self::Spread)),
            Engine::Mpi => (Self::Mpi, Self::MpiFailure, None),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    shared: Shared<Row>,
    /// Number of ranks
    #[arg(long, default_value_t = RANKS)]
    n: u32,
}

/// Measures and reports. Fails if something could not be measured at all or is worse than with `--against`, not if it
/// is slow.
pub(crate) fn cluster(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let shared = &options.shared;
    let takes_part = |kind: Kind| matches!(kind, Kind::Umiak | Kind::Mpirun | Kind::Torchx);
    let Field { floor, peers, mut absent } = shared.field(root, takes_part)?;
    let setting = Setting::new(floor, Duration::from_secs(shared.limit));
    let rounds = shared.rounds_or(ROUNDS);
    let mut series = Vec::new();
    let mut launchers = Vec::new();
    for engine in Engine::ALL {
        let (succeeds, fails, spread) = Row::of(engine);
        let (succeeds, fails) = (shared.wants(&succeeds), shared.wants(&fails));
        let is_spread = spread.is_some_and(|row| shared.wants(&row));
        if !succeeds && !fails && !is_spread {
            continue;
        }
        let Some(version) = engine.version(&peers) else {
            // A peer that is not installed has been named already.
            if engine == Engine::Slurm {
                say("a cluster of Slurm needs root, munged, slurmctld, slurmd and its clients: skipping its rows")?;
                absent.push("Slurm".to_owned());
            }
            continue;
        };
        launchers.push(version);
        if succeeds || fails {
            let place = Place::new(engine, NODES)?;
            if succeeds {
                series.extend(measure(&place, &setting, &peers, options.n, rounds)?);
            }
            if fails {
                series.extend(measure_failure(&place, &setting, &peers, options.n, rounds)?);
            }
        }
        if is_spread {
            series.extend(measure_spread(&setting, &peers, options.n, rounds)?);
        }
    }
    let settings = format!(
        "{}; {} rounds, {} for peers that need more than two seconds; Slurm with {NODES} nodes on this host, or one for each rank; a limit of {} s",
        launchers.join(", "),
        rounds.fast,
        rounds.slow,
        shared.limit
    );
    let verdicts = verdict::of_clusters(&series, options.n);
    let report = super::report(&peers, absent, settings, series, verdicts);
    publish(root, NAME, &report, shared.json.as_deref(), shared.write)
}

/// The peers that take part with an engine, besides its own launcher.
fn peers_of(peers: &[Peer]) -> Vec<(&Peer, Way<'_>)> {
    let ours = peers.iter().filter(|peer| peer.kind == Kind::Umiak);
    ours.map(|peer| (peer, Way::Umiak(peer))).collect()
}

/// All contestants: the bare launcher, and the peers.
fn contestants<'a>(engine: Engine, peers: &'a [(&'a Peer, Way<'a>)]) -> Vec<Contestant<'a, Way<'a>>> {
    let bare = beside(engine.bare(), true, &Way::Bare);
    std::iter::once(bare).chain(peers.iter().map(|(peer, way)| of_peer(peer, way))).collect()
}

fn measure(
    place: &Place,
    setting: &Setting,
    peers: &[Peer],
    ranks: u32,
    rounds: Rounds,
) -> anyhow::Result<Vec<Series>> {
    say(&format!("{}, {ranks} ranks", place.engine.word()))?;
    let peers = peers_of(peers);
    let metrics = place.engine.parts();
    rounds.run(&contestants(place.engine, &peers), &metrics, ranks, |way, _| place.measure(setting, way, ranks))
}

/// Torchx makes each replica a part of a heterogeneous job, and Slurm gives no node to two parts.
fn measure_spread(setting: &Setting, peers: &[Peer], ranks: u32, rounds: Rounds) -> anyhow::Result<Vec<Series>> {
    say(&format!("slurm, {ranks} ranks on as many nodes"))?;
    let place = Place::new(Engine::Slurm, ranks as usize)?;
    let mut all = peers_of(peers);
    let torchx = peers.iter().filter(|peer| peer.kind == Kind::Torchx);
    all.extend(torchx.map(|peer| (peer, Way::Torchx(peer))));
    let metrics = [Metric::SpreadBefore, Metric::SpreadWhole];
    rounds.run(&contestants(Engine::Slurm, &all), &metrics, ranks, |way, _| place.measure_spread(setting, way, ranks))
}

fn measure_failure(
    place: &Place,
    setting: &Setting,
    peers: &[Peer],
    ranks: u32,
    rounds: Rounds,
) -> anyhow::Result<Vec<Series>> {
    say(&format!("{}, one of {ranks} ranks fails", place.engine.word()))?;
    let peers = peers_of(peers);
    let metrics = place.engine.failure();
    rounds.run(&contestants(place.engine, &peers), &metrics, ranks, |way, round| {
        place.measure_failure(setting, way, ranks, round)
    })
}
