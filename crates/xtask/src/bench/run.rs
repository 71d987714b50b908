//! `cargo xtask bench run`: jobs from documents, and recorded runs.

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
use super::{beside, contestant, of_peer, publish, verdict};

const NAME: &str = "run";
/// Sizes in the requirements.
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
    /// Number of recorded runs for `ls`
    #[arg(long, default_value_t = RUNS)]
    runs: u32,
    /// Size of the log for `logs`, in GB; sparse if the disk is too small
    #[arg(long, default_value_t = LOG_GIGABYTES)]
    gigabytes: u32,
}

/// Measures and reports. Fails if something could not be measured at all or is worse than with `--against`, not if it
/// is slow.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let shared = &options.shared;
    let takes_part = |kind: Kind| kind.is_floor() || kind == Kind::Umiak || kind.is_runner();
    let Field { floor, peers, absent } = shared.field(root, takes_part)?;
    let setting = Setting::new(floor, Duration::from_secs(shared.limit));
    let rounds = shared.rounds();
    let mut series = Vec::new();
    if shared.wants(&Row::Replicas) {
        let everybody: Vec<Contestant<'_, Peer>> = peers.iter().map(contestant).collect();
        for &replicas in &options.n {
            say(&format!("{replicas} replicas"))?;
            series.extend(rounds.run(&everybody, &[Metric::Replicas], replicas, |peer, _| {
                documents::measure(&setting, peer, replicas)
            })?);
        }
    }
    // The new binary, and the old one if given.
    let umiaks: Vec<&Peer> = peers.iter().filter(|peer| peer.kind == Kind::Umiak).collect();
    if shared.wants(&Row::Ls) {
        say(&format!("ls, {} runs", options.runs))?;
        series.extend(measure_listing(&setting, &umiaks, options.runs, rounds)?);
    }
    let mut log = String::new();
    if shared.wants(&Row::Logs) {
        say(&format!("logs, {} GB", options.gigabytes))?;
        let umiak = umiaks.first().context("umiak is excluded")?;
        let long = Recorded::make(&setting, umiak.program(), u64::from(options.gigabytes) * 1_000_000_000)?;
        let holes = if long.has_holes { ", mostly sparse" } else { "" };
        log = format!("; a log of {} GB{holes}", options.gigabytes);
        series.extend(measure_logs(&setting, &umiaks, long, options.gigabytes, rounds)?);
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
    publish(root, NAME, &report, shared.json.as_deref(), shared.write)
}

/// Each binary lists its own runs: the format may have changed in between.
fn measure_listing(setting: &Setting, umiaks: &[&Peer], runs: u32, rounds: Rounds) -> anyhow::Result<Vec<Series>> {
    let mut homes = Vec::new();
    for peer in umiaks {
        let home = directory()?;
        recorded::make_runs(setting, peer.program(), home.path(), runs)?;
        // Once to warm the caches; not counted.
        let _ = recorded::list(setting, peer.program(), home.path())?;
        homes.push((peer.program(), home));
    }
    let contestants: Vec<_> = umiaks.iter().zip(&homes).map(|(peer, what)| of_peer(peer, what)).collect();
    rounds.run(&contestants, &[Metric::Listing], runs, |(umiak, home), _| recorded::list(setting, umiak, home.path()))
}

fn measure_logs(
    setting: &Setting,
    umiaks: &[&Peer],
    long: Recorded,
    gigabytes: u32,
    rounds: Rounds,
) -> anyhow::Result<Vec<Series>> {
    let mut recorded = vec![long];
    for peer in &umiaks[1..] {
        recorded.push(recorded[0].again(setting, peer.program())?);
    }
    let mut ways = vec![("cat", false, (How::Cat, &recorded[0])), ("tail -n 10", false, (How::Tail, &recorded[0]))];
    for (peer, recorded) in umiaks.iter().zip(&recorded) {
        ways.push((verdict::UMIAK_LOGS, peer.is_old, (How::Logs(peer.program()), recorded)));
        ways.push((verdict::UMIAK_TAIL, peer.is_old, (How::LogsTail(peer.program()), recorded)));
    }
    let contestants: Vec<_> =
        ways.iter().map(|(name, is_old, what)| Contestant { is_old: *is_old, ..beside(name, false, what) }).collect();
    rounds.run(&contestants, &[Metric::LogFirst], gigabytes, |(how, recorded), _| recorded.first_bytes(setting, *how))
}

fn measure_lines(setting: &Setting, peers: &[Peer], rounds: Rounds) -> anyhow::Result<Vec<Series>> {
    let runners: Vec<&Peer> = peers.iter().filter(|peer| !peer.kind.is_floor()).collect();
    let some: Vec<Option<&Peer>> = runners.iter().copied().map(Some).collect();
    let bare = None;
    let mut contestants = vec![beside("bare command", true, &bare)];
    contestants.extend(runners.iter().zip(&some).map(|(peer, what)| of_peer(peer, what)));
    rounds.run(&contestants, &[Metric::RunLine], 1, |peer, _| line(setting, *peer))
}
