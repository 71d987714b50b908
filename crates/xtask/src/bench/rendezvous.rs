//! `cargo xtask bench rendezvous`: several nodes, compared with other launchers for several nodes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::model::{Metric, Series};
use super::options::{Field, Shared};
use super::peers::{Kind, Peer};
use super::rounds::{Contestant, Rounds, say};
use super::rows::Setting;
use super::rows::agents::{self, Whom};
use super::rows::nodes::{Hosts, Team, Way};
use super::{publish, verdict};

const NAME: &str = "rendezvous";
/// Ranks on both nodes together.
pub(crate) const START_RANKS: u32 = 4;
pub(crate) const CRASH_RANKS: u32 = 16;
/// Largest number of nodes for Paddle's master.
const MOST_OF_PADDLE: u32 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Row {
    Start,
    Crash,
    Agents,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    shared: Shared<Row>,
    /// Numbers of nodes for `agents`
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 4096])]
    n: Vec<u32>,
    /// Ranks on each of these nodes
    #[arg(long, default_value_t = 1)]
    ranks: u16,
}

/// Measures and reports. Fails if something could not be measured at all or is worse than with `--against`, not if it
/// is slow.
pub(crate) fn rendezvous(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let shared = &options.shared;
    let takes_part = |kind: Kind| !matches!(kind, Kind::Mpirun | Kind::Fleet) && !kind.is_runner();
    let Field { floor, peers, mut absent } = shared.field(root, takes_part)?;
    let limit = Duration::from_secs(shared.limit);
    let setting = Setting::new(floor, limit);
    let rounds = shared.rounds();
    let mut series = Vec::new();
    if options.shared.wants(&Row::Start) || options.shared.wants(&Row::Crash) {
        if umiak_testkit::net::version().is_some() {
            series.extend(measure_hosts(options, &setting, &peers, rounds)?);
        } else {
            say("two hosts need root, iproute2, nsenter and iptables: skipping `start` and `crash`")?;
            absent.push("two hosts (network namespaces)".to_owned());
        }
    }
    if options.shared.wants(&Row::Agents) {
        series.extend(measure_agents(options, &setting, &peers, rounds)?);
    }
    let settings = format!(
        "{} rounds, {} for peers that need more than two seconds; {} ranks on each of many nodes; a limit of {} s",
        rounds.fast, rounds.slow, options.ranks, shared.limit
    );
    let verdicts = verdict::of_nodes(&series);
    let report = super::report(&peers, absent, settings, series, verdicts);
    publish(root, NAME, &report, shared.json.as_deref(), shared.write)
}

fn measure_hosts(options: &Options, setting: &Setting, peers: &[Peer], rounds: Rounds) -> anyhow::Result<Vec<Series>> {
    let hosts = Hosts::new();
    let mut series = Vec::new();
    // The old umiak comes right after the new one.
    let team = |kind: Kind, way: Way, name: &'static str| {
        peers.iter().filter(move |peer| peer.kind == kind).map(move |peer| Team { name, peer, way })
    };
    let ips = || team(Kind::Umiak, Way::Ips, verdict::UMIAK_IPS);
    let master = || team(Kind::Umiak, Way::Master, verdict::UMIAK_MASTER);
    let torchrun = || team(Kind::Torchrun, Way::Master, "torchrun, c10d");
    let paddle = || team(Kind::Paddle, Way::Master, "paddle.distributed.launch, HTTP");
    if options.shared.wants(&Row::Start) {
        say("start of two nodes")?;
        let one = team(Kind::Umiak, Way::OneNode, "umiak, one node");
        let teams: Vec<Team<'_>> = one.chain(ips()).chain(master()).chain(torchrun()).chain(paddle()).collect();
        series.extend(rounds.run(&contestants(&teams), &[Metric::NodesStart], START_RANKS, |team, _| {
            hosts.start(setting, team, START_RANKS)
        })?);
    }
    if options.shared.wants(&Row::Crash) {
        say("crash on one of two nodes")?;
        let floors = [Kind::Fork, Kind::Spawn].into_iter().flat_map(|kind| team(kind, Way::Floor, kind.name()));
        let teams: Vec<Team<'_>> = floors.chain(ips()).chain(master()).chain(torchrun()).chain(paddle()).collect();
        series.extend(rounds.run(&contestants(&teams), &[Metric::NodesCrash], CRASH_RANKS, |team, round| {
            hosts.crash(setting, team, CRASH_RANKS, round)
        })?);
    }
    Ok(series)
}

fn contestants<'a>(teams: &'a [Team<'a>]) -> Vec<Contestant<'a, Team<'a>>> {
    let contestant = |team: &'a Team<'a>| Contestant {
        name: team.name,
        is_floor: matches!(team.way, Way::OneNode | Way::Floor) && !team.peer.is_old,
        is_compared: team.peer.kind.is_compared(),
        is_old: team.peer.is_old,
        what: team,
    };
    teams.iter().map(contestant).collect()
}

fn measure_agents(options: &Options, setting: &Setting, peers: &[Peer], rounds: Rounds) -> anyhow::Result<Vec<Series>> {
    let mut series = Vec::new();
    let python = peers.iter().find(|peer| peer.kind == Kind::Paddle).map(Peer::program);
    let old = match peers.iter().find(|peer| peer.is_old) {
        Some(peer) => old_agents(peer)?,
        None => None,
    };
    for &nodes in &options.n {
        say(&format!("{nodes} agents"))?;
        let mut whom = Vec::new();
        for program in std::iter::once(&setting.floor).chain(&old) {
            whom.push((verdict::UMIAK, Whom::Umiak(program)));
            whom.push((verdict::UMIAK_AT_ONCE, Whom::UmiakAtOnce(program)));
        }
        whom.extend(
            python.filter(|_| nodes <= MOST_OF_PADDLE).map(|python| (verdict::HTTP_MASTER, Whom::Paddle(python))),
        );
        let contestants: Vec<_> = whom
            .iter()
            .map(|(name, what)| Contestant {
                name,
                is_floor: false,
                is_compared: *name != verdict::HTTP_MASTER,
                is_old: old.as_deref().is_some_and(|old| what.is_of(old)),
                what,
            })
            .collect();
        series.extend(rounds.run(&contestants, &agents::METRICS, nodes, |whom, _| {
            agents::measure(setting, whom, nodes, options.ranks)
        })?);
    }
    Ok(series)
}

/// Agents are umiak's library in this program: those of an old umiak are in the `xtask` built with it.
fn old_agents(old: &Peer) -> anyhow::Result<Option<PathBuf>> {
    let program = old.program().with_file_name("xtask");
    if program.is_file() {
        return Ok(Some(program));
    }
    say("the old binary has no `xtask` beside it: skipping its agents")?;
    Ok(None)
}
