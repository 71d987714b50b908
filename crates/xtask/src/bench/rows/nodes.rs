//! Two hosts: until the first line of a rank, and from a crash on one host until everything is gone from both.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use umiak_testkit::net::{Host, Network};

use super::crash::settle;
use super::first_line::until_line;
use super::{Setting, await_sleepers, crash, rank_command};
use crate::bench::floor;
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};
use crate::bench::peers::{Kind, Output, Peer};

/// Printed by a rank, but not contained in any command line: it is assembled.
const LINE: &str = "a-rank-is-here";
const WORDS: [&str; 3] = ["/usr/bin/printf", "%s-rank-is-here\\n", "a"];

/// How a launcher reaches both hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// All ranks on the first host: the baseline.
    OneNode,
    /// By a list of the hosts.
    Ips,
    /// By the first host's address. For torchrun the c10d backend there.
    Master,
    /// No launcher: the floors, without hosts.
    Floor,
}

/// A contestant in a row.
#[derive(Debug)]
pub(crate) struct Team<'a> {
    pub(crate) name: &'static str,
    pub(crate) peer: &'a Peer,
    pub(crate) way: Way,
}

/// Both hosts, and a new port for each rendezvous.
#[derive(Debug)]
pub(crate) struct Hosts {
    network: Network,
    last_port: Cell<u16>,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        Self { network: Network::new(2), last_port: Cell::new(21_000) }
    }

    /// The launcher command of each host, with `ranks` in total.
    fn commands(&self, team: &Team<'_>, ranks: u32, directory: &Path, command: &[OsString]) -> Vec<Command> {
        let port = self.last_port.get() + 1;
        self.last_port.set(port);
        let hosts = self.network.hosts();
        let master = hosts[0].at(port).to_string();
        let hosts = if team.way == Way::OneNode { &hosts[..1] } else { hosts };
        hosts
            .iter()
            .map(|host| {
                let flags: Vec<String> = match (team.way, team.peer.kind) {
                    (Way::OneNode | Way::Floor, _) => Vec::new(),
                    (Way::Ips, _) => words(&["--ips", &self.network.ips()]),
                    (Way::Master, Kind::Torchrun) => {
                        let is_host = format!("is_host={}", u8::from(host.index() == 0));
                        let own = host.ip().to_string();
                        let meeting = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "bench"];
                        let place = ["--rdzv-endpoint", &master, "--rdzv-conf", &is_host, "--local-addr", &own];
                        words(&[meeting, place].concat())
                    }
                    (Way::Master, _) => {
                        words(&["--master", &master, "--nnodes", "2", "--host", &host.ip().to_string()])
                    }
                };
                let local = ranks / hosts.len() as u32;
                let directory = directory.join(host.index().to_string());
                let _ = fs::create_dir(&directory);
                on(host, &team.peer.command_with(&flags, local, &directory, Output::Usual, command))
            })
            .collect()
    }

    /// Until the first line of a rank has passed the first host's launcher.
    pub(crate) fn start(
        &self,
        setting: &Setting,
        team: &Team<'_>,
        ranks: u32,
    ) -> anyhow::Result<Result<Sample, String>> {
        let directory = setting.directory()?;
        let commands = self.commands(team, ranks, &directory, &WORDS.map(OsString::from));
        let line = until_line(setting, commands, LINE)?;
        Ok(line.map(|line| Sample::new(Metric::NodesStart, line.millis, line.cpu_ms)))
    }

    /// A rank of the second host exits with 7.
    pub(crate) fn crash(
        &self,
        setting: &Setting,
        team: &Team<'_>,
        ranks: u32,
        round: usize,
    ) -> anyhow::Result<Result<Sample, String>> {
        if team.way == Way::Floor {
            let sample = crash::measure(setting, team.peer, ranks, round)?;
            return Ok(sample.map(|sample| Sample {
                values: sample.values.into_iter().map(|(_, value)| (Metric::NodesCrash, value)).collect(),
                ..sample
            }));
        }
        let directory = setting.directory()?;
        let fails = ranks / 2;
        let stamps = directory.join("ranks");
        let mut commands = self.commands(team, ranks, &directory, &rank_command(setting, &stamps, fails)?);
        let running = Running::start_all(&mut commands, setting.limit)?;
        let running = match await_sleepers(setting, running, &stamps, ranks)? {
            Ok(running) => running,
            Err(trouble) => return Ok(Err(trouble)),
        };
        std::thread::sleep(settle(round));
        OpenOptions::new().write(true).open(floor::go_file(&stamps))?;
        let ended = running.end()?;
        let is_expected = |code| code != 0 && (team.peer.kind != Kind::Umiak || code == i32::from(floor::FAILURE));
        if let Some(trouble) = ended.trouble(setting.limit, is_expected) {
            return Ok(Err(trouble));
        }
        let failed = fs::read_to_string(floor::stamp_file(&stamps, fails))?;
        let failed = failed.parse().with_context(|| format!("the failing rank has written `{failed}`"))?;
        Ok(Ok(Sample { cpu_ms: None, ..Sample::new(Metric::NodesCrash, millis(failed, ended.gone), 0.0) }))
    }
}

/// The same command on that host.
pub(super) fn on(host: &Host, command: &Command) -> Command {
    let mut there = host.command(command.get_program());
    there.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => there.env(name, value),
            None => there.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        there.current_dir(directory);
    }
    there.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    there
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
