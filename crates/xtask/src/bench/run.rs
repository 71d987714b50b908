//! `cargo xtask bench run`: jobs from documents, and what is recorded of them.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::model::{Metric, Series};
use super::options::{Field, Shared};
use super::peers::{Kind, Peer};
use super::rounds::{Contestant, Rounds, say};
use super::rows::documents::{self, line};
use super::rows::recorded::{self, How, Recorded};
use super::rows::{Setting, directory};
use super::{contestant, publish, verdict};

const NAME: &str = "run";
/// What the requirements name.
pub(crate) const REPLICAS: u32 = 1000;
pub(crate) const RUNS: u32 = 10_000;
pub(crate) const LOG_GIGABYTES: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Row {
    Replicas,
    Ls,
    Logs,
    FirstLine,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    shared: Shared<Row>,
    /// Numbers of replicas for `replicas`
    #[arg(long, value_delimiter = ',', default_values_t = [REPLICAS])]
    n: Vec<u32>,
    /// Recorded runs for `ls`
    #[arg(long, default_value_t = RUNS)]
    runs: u32,
    /// Size of the log for `logs`, in GB; it has holes where the disk has no room for it
    #[arg(long, default_value_t = LOG_GIGABYTES)]
    gigabytes: u32,
}

/// Measures and reports. It fails when something could not be measured at all, not when it is slow.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let shared = &options.shared;
    let takes_part = |kind: Kind| kind.is_floor() || kind == Kind::Umiak || kind.is_runner();
    let Field { floor, peers, absent } = shared.field(root, takes_part)?;
    let setting = Setting { floor, limit: Duration::from_secs(shared.limit), watch: Duration::ZERO, bytes: 0 };
    let rounds = shared.rounds();
    let mut series = Vec::new();
    if shared.wants(&Row::Replicas) {
        let everybody: Vec<Contestant<'_, Peer>> = peers.iter().map(contestant).collect();
        for &replicas in &options.n {
            say(&format!("{replicas} replicas"))?;
            let mut kept = Vec::new();
            series.extend(rounds.run(&everybody, &[Metric::Replicas], replicas, |peer, _| {
                documents::measure(&setting, peer, replicas, &mut kept)
            })?);
        }
    }
    let umiak = peers.iter().find(|peer| peer.kind == Kind::Umiak).context("umiak is left out")?;
    if shared.wants(&Row::Ls) {
        say(&format!("ls, {} runs", options.runs))?;
        let home = directory()?;
        recorded::make_runs(home.path(), options.runs)?;
        // Once for the caches; not counted.
        let _ = recorded::list(&setting, umiak.program(), home.path())?;
        let contestants = [contestant(umiak)];
        series.extend(rounds.run(&contestants, &[Metric::Listing], options.runs, |peer, _| {
            recorded::list(&setting, peer.program(), home.path())
        })?);
    }
    let mut log = String::new();
    if shared.wants(&Row::Logs) {
        say(&format!("logs, {} GB", options.gigabytes))?;
        let recorded = Recorded::make(&setting, umiak.program(), u64::from(options.gigabytes) * 1_000_000_000)?;
        log = format!(
            "; a log of {} GB{}",
            options.gigabytes,
            if recorded.has_holes { ", most of it holes" } else { "" }
        );
        series.extend(measure_logs(&setting, umiak, &recorded, options.gigabytes, rounds)?);
    }
    if shared.wants(&Row::FirstLine) {
        say("first line")?;
        series.extend(measure_lines(&setting, &peers, rounds)?);
    }
    let settings = format!(
        "{} rounds, {} for peers that need more than two seconds{log}; a limit of {} s",
        rounds.fast, rounds.slow, shared.limit
    );
    let verdicts = verdict::of_runs(&series);
    let report = super::report(&peers, absent, settings, series, verdicts);
    publish(root, NAME, &report, shared.json.as_deref(), shared.write)?;
    Ok(ExitCode::SUCCESS)
}

fn measure_logs(
    setting: &Setting,
    umiak: &Peer,
    recorded: &Recorded,
    gigabytes: u32,
    rounds: Rounds,
) -> anyhow::Result<Vec<Series>> {
    let ways = [
        ("cat", How::Cat),
        ("tail -n 10", How::Tail),
        (verdict::UMIAK_LOGS, How::Logs),
        (verdict::UMIAK_TAIL, How::LogsTail),
    ];
    let contestants: Vec<_> =
        ways.iter().map(|(name, what)| Contestant { name, is_floor: false, is_compared: true, what }).collect();
    rounds.run(&contestants, &[Metric::LogFirst], gigabytes, |how, _| {
        recorded.first_bytes(setting, umiak.program(), *how)
    })
}

fn measure_lines(setting: &Setting, peers: &[Peer], rounds: Rounds) -> anyhow::Result<Vec<Series>> {
    let runners: Vec<Option<&Peer>> = peers.iter().filter(|peer| !peer.kind.is_floor()).map(Some).collect();
    let bare = None;
    let mut contestants = vec![Contestant { name: "bare command", is_floor: true, is_compared: true, what: &bare }];
    contestants.extend(runners.iter().map(|peer| Contestant {
        name: peer.map_or("", |peer| peer.kind.name()),
        is_floor: false,
        is_compared: peer.is_some_and(|peer| peer.kind.is_compared()),
        what: peer,
    }));
    rounds.run(&contestants, &[Metric::RunLine], 1, |peer, _| line(setting, *peer))
}
