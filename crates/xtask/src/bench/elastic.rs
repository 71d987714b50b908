//! `cargo xtask bench elastic`: nodes that come and go, beside torchrun with the c10d backend.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::model::Series;
use super::options::{Field, Shared};
use super::peers::{Kind, Peer};
use super::rounds::{Contestant, Rounds, say};
use super::rows::Setting;
use super::rows::agents::{CHANGE_METRICS, measure_change};
use super::rows::elastic::{Change, Hosts};
use super::{beside, contestant, publish, verdict};

const NAME: &str = "elastic";
/// Numbers of nodes in the requirements.
pub(crate) const FEW: u32 = 100;
pub(crate) const MANY: u32 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Row {
    Failure,
    Killed,
    Vanished,
    Silent,
    Joined,
    Agents,
}

impl Row {
    const CHANGES: [(Self, Change); 5] = [
        (Self::Failure, Change::Failure),
        (Self::Killed, Change::Killed),
        (Self::Vanished, Change::Vanished),
        (Self::Silent, Change::Silent),
        (Self::Joined, Change::Joined),
    ];
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    shared: Shared<Row>,
    /// Numbers of nodes for `agents`
    #[arg(long, value_delimiter = ',', default_values_t = [FEW, MANY])]
    n: Vec<u32>,
    /// Ranks on each of these nodes
    #[arg(long, default_value_t = 1)]
    ranks: u16,
}

/// Measures and reports. Fails if something could not be measured at all or is worse than with `--against`, not if it
/// is slow.
pub(crate) fn elastic(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let shared = &options.shared;
    let takes_part = |kind: Kind| matches!(kind, Kind::Fork | Kind::Umiak | Kind::Torchrun);
    let Field { floor, peers, mut absent } = shared.field(root, takes_part)?;
    let setting = Setting::new(floor, Duration::from_secs(shared.limit));
    let rounds = shared.rounds();
    let mut series = Vec::new();
    let changes: Vec<Change> =
        Row::CHANGES.into_iter().filter(|(row, _)| shared.wants(row)).map(|(_, change)| change).collect();
    if umiak_testkit::net::version().is_some() {
        let hosts = Hosts::new();
        for change in changes {
            series.extend(measure(&hosts, &setting, &peers, change, rounds)?);
        }
    } else if !changes.is_empty() {
        say("several hosts need root, iproute2, nsenter and iptables: skipping all rows but `agents`")?;
        absent.push("several hosts (network namespaces)".to_owned());
    }
    if shared.wants(&Row::Agents) {
        for &nodes in &options.n {
            say(&format!("{nodes} agents"))?;
            series.extend(rounds.run(&[beside(verdict::UMIAK, false, &())], &CHANGE_METRICS, nodes, |(), _| {
                measure_change(&setting, nodes, options.ranks)
            })?);
        }
    }
    let settings = format!(
        "{} rounds, {} for peers that need more than two seconds and where a whole time-out passes; {} ranks on each of many nodes; a limit of {} s",
        rounds.fast, rounds.slow, options.ranks, shared.limit
    );
    let verdicts = verdict::of_elastic(&series);
    let report = super::report(&peers, absent, settings, series, verdicts);
    publish(root, NAME, &report, shared.json.as_deref(), shared.write)
}

fn measure(
    hosts: &Hosts,
    setting: &Setting,
    peers: &[Peer],
    change: Change,
    rounds: Rounds,
) -> anyhow::Result<Vec<Series>> {
    say(&format!("{change:?}").to_lowercase())?;
    // Only a start has a floor: the others are mostly time-outs.
    let takes_part = |peer: &&Peer| change == Change::Failure || !peer.kind.is_floor();
    let contestants: Vec<Contestant<'_, Peer>> = peers.iter().filter(takes_part).map(contestant).collect();
    let rounds = if change == Change::Vanished { Rounds { fast: rounds.slow, ..rounds } } else { rounds };
    rounds.run(&contestants, &[change.metric()], change.ranks(), |peer, round| {
        hosts.measure(setting, peer, change, round)
    })
}
