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
    Mpi,
    MpiFailure,
}

impl Row {
    /// The row of jobs that succeed, and the one of jobs in which a rank fails.
    fn of(engine: Engine) -> [Self; 2] {
        match engine {
            Engine::Slurm => [Self::Slurm, Self::SlurmFailure],
            Engine::Mpi => [Self::Mpi, Self::MpiFailure],
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
        let wanted = Row::of(engine).map(|row| shared.wants(&row));
        if wanted == [false; 2] {
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
        let place = Place::new(engine)?;
        let [succeeds, fails] = wanted;
        if succeeds {
            series.extend(measure(&place, &setting, &peers, options.n, rounds)?);
        }
        if fails {
            series.extend(measure_failure(&place, &setting, &peers, options.n, rounds)?);
        }
    }
    let settings = format!(
        "{}; {} rounds, {} for peers that need more than two seconds; Slurm with {NODES} nodes on this host; a limit of {} s",
        launchers.join(", "),
        rounds.fast,
        rounds.slow,
        shared.limit
    );
    let verdicts = verdict::of_clusters(&series, options.n);
    let report = super::report(&peers, absent, settings, series, verdicts);
    publish(root, NAME, &report, shared.json.as_deref(), shared.write)
}

/// The peers that take part with an engine. Its own launcher is the floor.
fn peers_of<'a>(engine: Engine, peers: &'a [Peer]) -> Vec<(&'a Peer, Way<'a>)> {
    let with_way = |peer: &'a Peer| {
        let way = match (engine, peer.kind) {
            (_, Kind::Umiak) => Way::Umiak(peer),
            (Engine::Slurm, Kind::Torchx) => Way::Torchx(peer),
            _ => return None,
        };
        Some((peer, way))
    };
    peers.iter().filter_map(with_way).collect()
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
    let peers = peers_of(place.engine, peers);
    let metrics = place.engine.parts();
    let mut series =
        rounds.run(&contestants(place.engine, &peers), &metrics, ranks, |way, _| place.measure(setting, way, ranks))?;
    // Of a peer that runs without an end of its own only the whole is known.
    let is_measured = |one: &Series| !one.values.is_empty() || one.metric == place.engine.whole();
    series.retain(is_measured);
    Ok(series)
}

fn measure_failure(
    place: &Place,
    setting: &Setting,
    peers: &[Peer],
    ranks: u32,
    rounds: Rounds,
) -> anyhow::Result<Vec<Series>> {
    say(&format!("{}, one of {ranks} ranks fails", place.engine.word()))?;
    let mut peers = peers_of(place.engine, peers);
    peers.retain(|(peer, _)| peer.kind == Kind::Umiak);
    let metrics: [Metric; 2] = place.engine.failure();
    rounds.run(&contestants(place.engine, &peers), &metrics, ranks, |way, round| {
        place.measure_failure(setting, way, ranks, round)
    })
}
