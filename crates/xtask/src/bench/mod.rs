//! `cargo xtask bench`: umiak compared with its peers and the kernel's floor, in one run. `launch` covers one node and
//! is in this module, `rendezvous` several nodes, `run` documents and recorded runs, `machine` the job's state machine,
//! `lint` hostile documents, `pipeline` pipelines, `store` the store, `elastic` elastic jobs,
//! `cluster` the engines of Slurm and MPI.
//!
//! | module | in one sentence |
//! |---|---|
//! | `statistics` | medians and spread |
//! | `model` | metrics, contestants and comparisons |
//! | `verdict` | umiak's numbers against requirements and goals |
//! | `report` | Markdown, JSON and the page |
//! | `against` | umiak compared with an older binary of itself |
//! | `host` | the machine of a measurement |
//! | `options` | options of all benchmarks |
//! | `peers` | the launchers that are measured |
//! | `floor` | the small programs that are started: floors and ranks |
//! | `crowd` | two more of them: a coordinator, and a thousand nodes |
//! | `harness` | starting a command and waiting until everything is gone |
//! | `rows` | the rows that are measured |
//! | `rounds` | all contestants in turn, round by round |
//! | `rendezvous` | several nodes |
//! | `elastic` | several nodes that come and go, beside torchrun's |
//! | `cluster` | the engines of Slurm and MPI, beside their launchers alone |
//! | `run` | documents and recorded runs |
//! | `machine` | the state machine of a job, without a process |
//! | `lint` | documents made to exhaust time |
//! | `pipeline` | pipelines, beside ninja and `make` |
//! | `store` | the store, beside torch's |
//! | `store_load` | its clients |

mod against;
pub(crate) mod cluster;
mod crowd;
pub(crate) mod elastic;
pub(crate) mod floor;
mod harness;
mod host;
pub(crate) mod lint;
pub(crate) mod machine;
mod model;
mod options;
mod peers;
pub(crate) mod pipeline;
pub(crate) mod rendezvous;
mod report;
mod rounds;
mod rows;
pub(crate) mod run;
mod statistics;
pub(crate) mod store;
mod store_load;
mod verdict;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};

use model::{Metric, Series};
use options::{Field, Shared};
use peers::Peer;
use rounds::{Contestant, Rounds, say};
use rows::log::Route;
use rows::{Setting, crash, first_line, idle, log, start};

const PAGE: &str = "docs/benchmarks.md";
const IDLE_RANKS: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Row {
    Start,
    Crash,
    Idle,
    Log,
    FirstLine,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    shared: Shared<Row>,
    /// Numbers of ranks for `start` and `crash`
    #[arg(long, value_delimiter = ',')]
    n: Vec<u32>,
    /// Size of the log in bytes
    #[arg(long)]
    bytes: Option<u64>,
}

impl Options {
    fn ranks(&self) -> Vec<u32> {
        match (self.n.as_slice(), self.shared.quick) {
            ([], true) => vec![1, 64],
            ([], false) => vec![1, 4, 16, 64, 256],
            (some, _) => some.to_vec(),
        }
    }

    /// `/bin/true` can be started in larger numbers than sleeping ranks.
    fn started(&self) -> Vec<u32> {
        let most = (self.n.is_empty() && !self.shared.quick).then_some(verdict::MOST_RANKS);
        self.ranks().into_iter().chain(most).collect()
    }
}

/// Measures and reports. Fails if a launcher could not be measured at all or is worse than the binary of `--against`,
/// not if one is slow.
pub(crate) fn launch(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let shared = &options.shared;
    let Field { floor, peers, absent } = shared.field(root, |kind| !kind.is_runner())?;
    let setting = Setting {
        watch: Duration::from_secs(if shared.quick { 3 } else { 10 }),
        bytes: options.bytes.unwrap_or(if shared.quick { 65_000_000 } else { 1_000_000_000 }),
        ..Setting::new(floor, Duration::from_secs(shared.limit))
    };
    let rounds = shared.rounds();
    let series = measure(options, &setting, &peers, rounds)?;
    let settings = format!(
        "{} rounds, {} for peers that need more than two seconds; a log of {} MB; idle for {} s; a limit of {} s",
        rounds.fast,
        rounds.slow,
        setting.bytes / 1_000_000,
        setting.watch.as_secs(),
        setting.limit.as_secs()
    );
    let verdicts = verdict::verdicts(&series);
    let report = report(&peers, absent, settings, series, verdicts);
    publish(root, "launch", &report, shared.json.as_deref(), shared.write)
}

/// Collects the measurements, with the machine and the launchers.
fn report(
    peers: &[Peer],
    absent: Vec<String>,
    settings: String,
    series: Vec<Series>,
    verdicts: Vec<verdict::Verdict>,
) -> report::Report {
    report::Report {
        date: today(),
        machine: host::words(),
        kernel: host::kernel(),
        peers: peers.iter().filter(|peer| !peer.kind.is_floor()).map(Peer::title).collect(),
        absent,
        settings,
        against: against::comparisons(&series),
        series,
        verdicts,
    }
}

/// Prints the report, and writes it to the requested files. Fails if the old binary was better in a row.
fn publish(
    root: &Path,
    bench: &str,
    report: &report::Report,
    json: Option<&Path>,
    writes: bool,
) -> anyhow::Result<ExitCode> {
    let text = report::markdown(report);
    std::io::stdout().write_all(text.as_bytes())?;
    if let Some(path) = json {
        fs::write(path, serde_json::to_string_pretty(report)? + "\n")?;
    }
    if writes {
        let page = root.join(PAGE);
        let before = fs::read_to_string(&page).unwrap_or_else(|_| "# Benchmarks\n".to_owned());
        fs::write(&page, report::replaced(&before, bench, &text)).with_context(|| format!("cannot write `{PAGE}`"))?;
    }
    let worse = report.against.iter().filter(|row| !row.is_not_worse).count();
    if worse > 0 {
        say(&format!("worse than the old binary in {worse} of {} rows", report.against.len()))?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds both in the release profile: an unoptimised floor would flatter umiak.
fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let me = std::env::current_exe()?;
    let target = me.ancestors().nth(2).context("this binary lies in no target directory")?;
    for package in ["umiak", "xtask"] {
        say(&format!("building {package}"))?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["build", "--quiet", "--release", "--package", package, "--target-dir"])
            .arg(target)
            .current_dir(root)
            .status()?;
        ensure!(status.success(), "`{package}` cannot be built");
    }
    Ok(target.join("release"))
}

fn measure(options: &Options, setting: &Setting, peers: &[Peer], rounds: Rounds) -> anyhow::Result<Vec<Series>> {
    let mut series = Vec::new();
    let everybody: Vec<Contestant<'_, Peer>> = peers.iter().map(contestant).collect();
    let few = Rounds { fast: rounds.fast.min(5), slow: rounds.slow };
    if options.shared.wants(&Row::Start) {
        for ranks in options.started() {
            say(&format!("start, {ranks} ranks"))?;
            series.extend(
                rounds.run(&everybody, &[Metric::Start], ranks, |peer, _| start::measure(setting, peer, ranks))?,
            );
        }
    }
    if options.shared.wants(&Row::Crash) {
        for ranks in options.ranks() {
            say(&format!("crash, {ranks} ranks"))?;
            series.extend(
                rounds.run(&everybody, &[Metric::Crash], ranks, |peer, round| {
                    crash::measure(setting, peer, ranks, round)
                })?,
            );
        }
    }
    let launchers: Vec<&Peer> = peers.iter().filter(|peer| !peer.kind.is_floor()).collect();
    if options.shared.wants(&Row::Idle) {
        say("idle")?;
        let contestants: Vec<_> = launchers.iter().copied().map(contestant).collect();
        let once = Rounds { fast: rounds.slow, slow: rounds.slow };
        series.extend(once.run(&contestants, &[Metric::Memory, Metric::WakeUps], IDLE_RANKS, |peer, _| {
            idle::measure(setting, peer, IDLE_RANKS)
        })?);
        if !options.shared.quick {
            let ours: Vec<_> =
                launchers.iter().copied().filter(|peer| peer.kind == peers::Kind::Umiak).map(contestant).collect();
            let ranks = verdict::MOST_RANKS;
            let metrics = [Metric::Memory, Metric::WakeUps];
            series.extend(once.run(&ours, &metrics, ranks, |peer, _| idle::measure(setting, peer, ranks))?);
        }
    }
    if options.shared.wants(&Row::Log) {
        series.extend(measure_logs(setting, &launchers, few)?);
    }
    if options.shared.wants(&Row::FirstLine) {
        say("first line")?;
        let bare = None;
        let peers: Vec<Option<&Peer>> = launchers.iter().copied().map(Some).collect();
        let mut contestants = vec![beside("bare command", true, &bare)];
        contestants.extend(launchers.iter().zip(&peers).map(|(peer, what)| of_peer(peer, what)));
        series
            .extend(rounds.run(&contestants, &[Metric::FirstLine], 1, |peer, _| first_line::measure(setting, *peer))?);
    }
    Ok(series)
}

fn measure_logs(setting: &Setting, launchers: &[&Peer], rounds: Rounds) -> anyhow::Result<Vec<Series>> {
    say("log")?;
    let expected = log::expected(setting)?;
    let routes: Vec<Route<'_>> = launchers.iter().map(|peer| Route::Launcher(peer)).collect();
    let mut contestants = vec![
        beside("writer | cat > file", true, &Route::Cat),
        beside("writer | tee file | sha256", false, &Route::Tee),
    ];
    contestants.extend(launchers.iter().zip(&routes).map(|(peer, what)| of_peer(peer, what)));
    let mut series = rounds.run(&contestants, &[Metric::Log], 1, |route, _| log::measure(setting, route, &expected))?;
    say("log, slow reader")?;
    let contestants: Vec<_> = launchers.iter().copied().map(contestant).collect();
    series.extend(rounds.run(&contestants, &[Metric::SlowReader], 1, |peer, _| log::slow_reader(setting, peer))?);
    Ok(series)
}

fn contestant(peer: &Peer) -> Contestant<'_, Peer> {
    of_peer(peer, peer)
}

/// A peer as a contestant in a row.
fn of_peer<'a, What>(peer: &Peer, what: &'a What) -> Contestant<'a, What> {
    let kind = peer.kind;
    let (is_floor, is_compared) = (kind.is_floor(), kind.is_compared());
    Contestant { name: kind.name(), is_floor, is_compared, is_old: peer.is_old, what }
}

/// A contestant that is not a peer and takes part in all rounds.
fn beside<'a, What>(name: &'static str, is_floor: bool, what: &'a What) -> Contestant<'a, What> {
    Contestant { name, is_floor, is_compared: true, is_old: false, what }
}

fn today() -> String {
    let now = umiak_sys::clock::local_now();
    format!("{}-{:02}-{:02}", now.year, now.month, now.day)
}
