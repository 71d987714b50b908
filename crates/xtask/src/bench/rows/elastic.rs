//! An elastic job on several hosts: from a change to the last rank of the attempt that follows it. The floor starts as
//! many ranks, and stops nothing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::Signal;
use umiak_sys::descend::{descendants, signal};
use umiak_testkit::floor::monotonic_nanos;
use umiak_testkit::net::{Host, Network};

use super::Setting;
use super::crash::settle;
use super::nodes::on;
use crate::bench::floor::{FAILURE, WORD, go_file};
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};
use crate::bench::peers::{Kind, Output, Peer};

/// Ranks of each node.
const RANKS: u32 = 4;
/// The node to which it happens.
const LAST: usize = 2;
/// Time for signals to arrive.
const ARRIVE: Duration = Duration::from_millis(20);
/// Time for a job to end after its measurement.
const END: Duration = Duration::from_secs(10);

/// What happens to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// A rank of the second node exits with 7.
    Failure,
    /// The launcher of the third node is killed. Umiak's guardian survives it and announces the loss.
    Killed,
    /// Launcher, guardian and ranks of the third node are killed at the same moment. Its host still answers.
    Vanished,
    /// All packets from and to the third host are dropped.
    Silent,
    /// A third node is started.
    Joined,
}

impl Change {
    pub(crate) fn metric(self) -> Metric {
        match self {
            Self::Failure => Metric::ElasticFailure,
            Self::Killed => Metric::ElasticKilled,
            Self::Vanished => Metric::ElasticVanished,
            Self::Silent => Metric::ElasticSilent,
            Self::Joined => Metric::ElasticJoined,
        }
    }

    /// `--nnodes`. With room for a fourth node the window for joiners is not cut short.
    fn range(self) -> &'static str {
        match self {
            Self::Failure => "1:2",
            Self::Killed | Self::Vanished | Self::Silent => "2:3",
            Self::Joined => "2:4",
        }
    }

    fn nodes_before(self) -> usize {
        match self {
            Self::Failure | Self::Joined => 2,
            Self::Killed | Self::Vanished | Self::Silent => 3,
        }
    }

    /// The number of ranks after it.
    pub(crate) fn ranks(self) -> u32 {
        match self {
            Self::Failure | Self::Killed | Self::Vanished | Self::Silent => 2 * RANKS,
            Self::Joined => 3 * RANKS,
        }
    }
}

/// Three hosts, and a new port for each job.
#[derive(Debug)]
pub(crate) struct Hosts {
    network: Network,
    last_port: Cell<u16>,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        Self { network: Network::new(3), last_port: Cell::new(22_000) }
    }

    pub(crate) fn measure(
        &self,
        setting: &Setting,
        peer: &Peer,
        change: Change,
        round: usize,
    ) -> anyhow::Result<Result<Sample, String>> {
        let directory = setting.directory()?;
        nix::unistd::mkfifo(&go_file(&directory), nix::sys::stat::Mode::S_IRWXU)?;
        let rank = [setting.floor.clone().into(), WORD.into(), "elastic-rank".into(), directory.clone().into()];
        let (running, from) = if peer.kind.is_floor() {
            let mut command = peer.command(change.ranks(), &directory, Output::Usual, &rank);
            let running = Running::start(command.env("WORLD_SIZE", change.ranks().to_string()), setting.limit * 2)?;
            let began = running.began;
            (running, began)
        } else {
            let port = self.last_port.get() + 1;
            self.last_port.set(port);
            let mut commands: Vec<Command> = (0..self.network.hosts().len())
                .map(|host| self.command(peer, change, host, port, &directory, &rank))
                .collect::<anyhow::Result<_>>()?;
            let running = Running::start(&mut commands[0], setting.limit * 2 + settle(round) + END)?;
            let mut pids = vec![running.pid];
            // Reaped with everything else.
            for command in &mut commands[1..change.nodes_before()] {
                pids.push(command.spawn()?.id());
            }
            let ranks = change.nodes_before() as u32 * RANKS;
            if await_ranks(&directory, 0, ranks, setting.limit).is_none() {
                running.stop(Duration::ZERO)?;
                return Ok(Err(format!("{ranks} ranks had not started after {} s", setting.limit.as_secs())));
            }
            std::thread::sleep(settle(round));
            let from = self.happen(change, &pids, &directory, &mut commands)?;
            (running, from)
        };
        let last = await_ranks(&directory, from, change.ranks(), setting.limit);
        if change == Change::Silent {
            self.others().for_each(|host| host.join(self.network.host(LAST)));
        }
        running.stop(if peer.kind == Kind::Umiak { END } else { Duration::ZERO })?;
        let Some(last) = last else {
            return Ok(Err(format!("no new attempt within {} s", setting.limit.as_secs())));
        };
        let from = match change {
            Change::Failure if !peer.kind.is_floor() => fs::read_to_string(failed_file(&directory))?.parse()?,
            _ => from,
        };
        Ok(Ok(Sample { cpu_ms: None, ..Sample::new(change.metric(), millis(from, last), 0.0) }))
    }

    fn others(&self) -> impl Iterator<Item = &Host> {
        self.network.hosts()[..LAST].iter()
    }

    /// Makes it happen, and returns when that began.
    fn happen(&self, change: Change, pids: &[u32], directory: &Path, commands: &mut [Command]) -> anyhow::Result<u64> {
        let kill = |pid: u32| signal(pid, Signal::SIGKILL as i32);
        let began;
        match change {
            Change::Failure => {
                began = monotonic_nanos();
                OpenOptions::new().write(true).open(go_file(directory))?;
            }
            Change::Killed => {
                began = monotonic_nanos();
                kill(pids[LAST]);
            }
            Change::Vanished => {
                let below = descendants(pids[LAST]);
                let all = || std::iter::once(pids[LAST]).chain(below.iter().copied());
                // None of them sees another one die.
                all().for_each(|pid| signal(pid, Signal::SIGSTOP as i32));
                std::thread::sleep(ARRIVE);
                began = monotonic_nanos();
                all().for_each(kill);
            }
            Change::Silent => {
                began = monotonic_nanos();
                self.others().for_each(|host| host.cut(self.network.host(LAST)));
            }
            Change::Joined => {
                began = monotonic_nanos();
                commands[LAST].spawn()?;
            }
        }
        Ok(began)
    }

    fn command(
        &self,
        peer: &Peer,
        change: Change,
        host: usize,
        port: u16,
        directory: &Path,
        rank: &[OsString],
    ) -> anyhow::Result<Command> {
        let directory = directory.join(host.to_string());
        fs::create_dir(&directory)?;
        let master = self.network.host(0).at(port).to_string();
        let own = self.network.host(host).ip().to_string();
        // Elsewhere the job starts when all are there, however slow the start of a launcher is.
        let window = if change == Change::Joined { 1 } else { 30 };
        let conf = format!("is_host={},last_call_timeout={window}", u8::from(host == 0));
        let local = RANKS.to_string();
        let mut command = Command::new(peer.program());
        match peer.kind {
            Kind::Umiak => command.arg("torchrun"),
            _ => command.args(["-m", "torch.distributed.run"]),
        };
        command.args(["--nnodes", change.range(), "--nproc-per-node", &local, "--max-restarts", "3"]);
        command.args(["--rdzv-backend", "c10d", "--rdzv-id", "bench", "--rdzv-endpoint", &master]);
        command.args(["--rdzv-conf", &conf, "--local-addr", &own]);
        if change == Change::Silent && peer.kind == Kind::Umiak {
            command.args(["--node-timeout", "3s"]);
        }
        command.arg("--no-python").args(rank).current_dir(&directory).env("TMPDIR", &directory);
        command.env("UMIAK_HOME", directory.join("home")).env("OMP_NUM_THREADS", "1");
        Ok(on(self.network.host(host), &command))
    }
}

/// Waits until as many ranks as the world has have started after this time, and returns when the last one did.
fn await_ranks(directory: &Path, after: u64, world: u32, patience: Duration) -> Option<u64> {
    let deadline = monotonic_nanos() + patience.as_nanos() as u64;
    while monotonic_nanos() < deadline {
        if let Some(last) = last_start(&fs::read_to_string(starts_file(directory)).unwrap_or_default(), after, world) {
            return Some(last);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

/// The start of the last rank of the first attempt after this time that has this many ranks, once it is complete.
fn last_start(lines: &str, after: u64, world: u32) -> Option<u64> {
    let mut starts = BTreeMap::new();
    for line in lines.lines() {
        let mut words = line.split(' ').map(|word| word.parse::<u64>().ok());
        let (Some(Some(time)), Some(Some(rank)), Some(Some(of))) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if time > after && of == u64::from(world) {
            starts.entry(rank).or_insert(time);
        }
    }
    if starts.len() == world as usize { starts.into_values().max() } else { None }
}

fn starts_file(directory: &Path) -> PathBuf {
    directory.join("starts")
}

fn failed_file(directory: &Path) -> PathBuf {
    directory.join("failed")
}

/// One rank: writes when it started, and sleeps. The one in the middle waits for the go file and fails.
pub(crate) fn be_rank(directory: &Path) -> anyhow::Result<ExitCode> {
    let variable = |name: &str| -> anyhow::Result<u32> {
        Ok(std::env::var(name).with_context(|| format!("{name} is not set"))?.parse()?)
    };
    let (rank, world) = (variable("RANK")?, variable("WORLD_SIZE")?);
    let line = format!("{} {rank} {world}\n", monotonic_nanos());
    // One write, so that lines of several ranks do not mix.
    OpenOptions::new().create(true).append(true).open(starts_file(directory))?.write_all(line.as_bytes())?;
    if rank != world / 2 {
        std::thread::sleep(Duration::from_secs(600));
        return Ok(ExitCode::SUCCESS);
    }
    fs::File::open(go_file(directory))?.read_to_end(&mut Vec::new())?;
    fs::write(failed_file(directory), monotonic_nanos().to_string())?;
    Ok(ExitCode::from(FAILURE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_start_is_that_of_a_whole_world() {
        let lines = "10 0 2\n11 1 2\n20 0 3\n22 1 3\n21 2 3\n30 0 2\n";
        assert_eq!(last_start(lines, 0, 2), Some(11));
        assert_eq!(last_start(lines, 11, 2), None, "one of two");
        assert_eq!(last_start(lines, 11, 3), Some(22));
        assert_eq!(last_start("10 0 2\n11 1", 0, 2), None, "a line that is being written");
    }
}
