//! A job of N ranks on a cluster, through its own launcher and through an engine of umiak: the times before, between
//! and after what the scheduler does; and one of the ranks fails.
//!
//! Times are taken by the processes themselves, which append them to one file: `sbatch` and `mpirun` on `PATH` are small
//! scripts that take the time and execute the real one, the batch script takes it before its first line (`BASH_ENV`), and
//! ranks when they begin and before they exit. All contestants pay for it alike.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::wait::{WaitPidFlag, waitpid};
use tempfile::TempDir;
use umiak_testkit::floor::monotonic_nanos;
use umiak_testkit::slurm::{self, Slurm};

use super::crash::settle;
use super::{Setting, directory, documents, pids, rank_command};
use crate::bench::floor::{FAILURE, WORD, go_file, stamp_file};
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};
use crate::bench::peers::{Kind, Peer, on_path};

/// Nodes of the cluster, where nothing else is said.
pub(crate) const NODES: usize = 2;
/// How long a rank lives. Open MPI may hang when many exit at once.
const LIFE: Duration = Duration::from_millis(300);
/// The file with the times, in a variable that all processes of a job inherit.
const STAMPS: &str = "BENCH_STAMPS";
/// This binary, and `sbatch` or `mpirun`, for the scripts.
const PROGRAM: &str = "BENCH_PROGRAM";
const REAL: &str = "BENCH_REAL";

/// The events whose times are taken.
const SUBMIT: &str = "submit";
const UNIT: &str = "unit";
const BEGIN: &str = "begin";
const END: &str = "end";
const LAUNCHER_END: &str = "launcher-end";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Slurm,
    Mpi,
}

impl Engine {
    pub(crate) const ALL: [Self; 2] = [Self::Slurm, Self::Mpi];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Mpi => "mpi",
        }
    }

    /// The launcher alone.
    pub(crate) fn bare(self) -> &'static str {
        match self {
            Self::Slurm => "sbatch + srun",
            Self::Mpi => "mpirun",
        }
    }

    /// The launcher and its version, if it can be used here.
    pub(crate) fn version(self, peers: &[Peer]) -> Option<String> {
        match self {
            Self::Slurm => Some(format!("Slurm {}", slurm::version()?)),
            Self::Mpi => peers.iter().find(|peer| peer.kind == Kind::Mpirun).map(Peer::title),
        }
    }

    /// Before the submission, from the start of the unit to the last rank, after the last rank; and the whole.
    pub(crate) fn parts(self) -> [Metric; 4] {
        match self {
            Self::Slurm => [Metric::SlurmBefore, Metric::SlurmStart, Metric::SlurmEnd, self.whole()],
            Self::Mpi => [Metric::MpiBefore, Metric::MpiStart, Metric::MpiEnd, self.whole()],
        }
    }

    pub(crate) fn whole(self) -> Metric {
        match self {
            Self::Slurm => Metric::SlurmWhole,
            Self::Mpi => Metric::MpiWhole,
        }
    }

    /// After a failure: until its cause is known, and until nothing is left.
    pub(crate) fn failure(self) -> [Metric; 2] {
        match self {
            Self::Slurm => [Metric::SlurmCause, Metric::SlurmGone],
            Self::Mpi => [Metric::MpiCause, Metric::MpiGone],
        }
    }

    /// What is started for a unit.
    fn submits(self) -> &'static str {
        match self {
            Self::Slurm => "sbatch",
            Self::Mpi => "mpirun",
        }
    }
}

/// How the ranks are started.
#[derive(Debug)]
pub(crate) enum Way<'a> {
    /// By the launcher alone.
    Bare,
    Umiak(&'a Peer),
    Torchx(&'a Peer),
}

/// Milliseconds of the parts of a job.
#[derive(Debug)]
struct Times {
    before: f64,
    start: f64,
    end: f64,
    whole: f64,
}

/// What all jobs of an engine share.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) engine: Engine,
    nodes: usize,
    slurm: Option<Slurm>,
    /// Scripts that take the time, and execute the launcher.
    programs: TempDir,
    /// `sbatch` or `mpirun` itself.
    real: PathBuf,
}

impl Place {
    /// Starts a cluster with so many nodes, if the engine needs one.
    pub(crate) fn new(engine: Engine, nodes: usize) -> anyhow::Result<Self> {
        let programs = directory()?;
        let name = engine.submits();
        let real = on_path(name).with_context(|| format!("`{name}` is not on PATH"))?;
        let script = programs.path().join(name);
        fs::write(&script, format!("#!/bin/sh\nexec \"${PROGRAM}\" {WORD} pass {SUBMIT} \"${REAL}\" \"$@\"\n"))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        fs::write(programs.path().join("bashenv"), format!("\"${PROGRAM}\" {WORD} stamp {UNIT}\n"))?;
        let slurm = (engine == Engine::Slurm).then(|| Slurm::start(nodes));
        Ok(Self { engine, nodes, slurm, programs, real })
    }

    /// All parts of a job that succeeds; the inner `Err` says why they do not count.
    pub(crate) fn measure(
        &self,
        setting: &Setting,
        way: &Way<'_>,
        ranks: u32,
    ) -> anyhow::Result<Result<Sample, String>> {
        let times = self.times(setting, way, ranks)?;
        let [before, start, end, whole] = self.engine.parts();
        Ok(times.map(|times| {
            let values = vec![(before, times.before), (start, times.start), (end, times.end), (whole, times.whole)];
            Sample { values, cpu_ms: None, remark: None }
        }))
    }

    /// The same with a node for each rank: only what is known of torchx, which does not wait for its jobs here.
    pub(crate) fn measure_spread(
        &self,
        setting: &Setting,
        way: &Way<'_>,
        ranks: u32,
    ) -> anyhow::Result<Result<Sample, String>> {
        let times = self.times(setting, way, ranks)?;
        Ok(times.map(|times| {
            let values = vec![(Metric::SpreadBefore, times.before), (Metric::SpreadWhole, times.whole)];
            Sample { values, cpu_ms: None, remark: None }
        }))
    }

    fn times(&self, setting: &Setting, way: &Way<'_>, ranks: u32) -> anyhow::Result<Result<Times, String>> {
        let directory = setting.directory()?;
        let rank = [setting.floor.clone().into(), WORD.into(), "cluster-rank".into()];
        let mut command = self.command(setting, way, ranks, &directory, &rank)?;
        let running = Running::start_beside(&mut command, setting.limit)?;
        let began = running.began;
        let ended = running.exit()?;
        // After the submission, torchx asks `sacct` for the state of the job, and fails where there is no accounting.
        let is_expected = |code| code == 0 || matches!((way, code), (Way::Torchx(_), 1));
        let mut trouble = ended.trouble(setting.limit, is_expected);
        // `sbatch` and torchx submit and exit.
        let is_complete = || {
            let stamps = Stamps::read(&directory);
            let has_ended =
                !matches!((self.engine, way), (Engine::Slurm, Way::Bare)) || stamps.first(LAUNCHER_END).is_some();
            has_ended && stamps.all(END).count() >= ranks as usize
        };
        if trouble.is_none() && !until(began, setting.limit, Duration::from_millis(20), is_complete) {
            let count = Stamps::read(&directory).all(END).count();
            trouble = Some(format!("{count} of {ranks} ranks ended within {} s", setting.limit.as_secs()));
        }
        self.rest(trouble.is_some());
        if let Some(trouble) = trouble {
            return Ok(Err(trouble));
        }
        let stamps = Stamps::read(&directory);
        let last = |what: &str| stamps.all(what).max().with_context(|| format!("no time of `{what}`"));
        let first = |what: &str| stamps.first(what).with_context(|| format!("no time of `{what}`"));
        let (submitted, all_began, all_ended) = (first(SUBMIT)?, last(BEGIN)?, last(END)?);
        // `mpirun` is the unit.
        let unit = if self.engine == Engine::Slurm { first(UNIT)? } else { submitted };
        let over = if let (Engine::Slurm, Way::Bare) = (self.engine, way) { first(LAUNCHER_END)? } else { ended.gone };
        Ok(Ok(Times {
            before: millis(began, submitted),
            start: millis(unit, all_began),
            end: millis(all_ended, over),
            whole: millis(began, all_ended),
        }))
    }

    /// From the exit of one rank to its mention, and until nothing is left of the job.
    pub(crate) fn measure_failure(
        &self,
        setting: &Setting,
        way: &Way<'_>,
        ranks: u32,
        round: usize,
    ) -> anyhow::Result<Result<Sample, String>> {
        let directory = setting.directory()?;
        let fails = ranks / 2;
        let stamps = directory.join("ranks");
        let rank = rank_command(setting, &stamps, fails)?;
        let mut command = self.command(setting, way, ranks, &directory, &rank)?;
        // `sbatch` writes the output of the script and of `srun` to a file of its own.
        let said = directory.join("said");
        command.stderr(File::create(directory.join("stderr"))?);
        let said =
            if matches!((self.engine, way), (Engine::Slurm, Way::Bare)) { said } else { directory.join("stderr") };
        let running = Running::start_beside(&mut command, setting.limit)?;
        let began = running.began;
        let is_there = |rank: u32| fs::metadata(stamps.join(rank.to_string())).is_ok_and(|file| file.len() > 0);
        let are_there = until(began, setting.limit, Duration::from_millis(5), || (0..ranks).all(is_there));
        let mut cause = None;
        if are_there {
            std::thread::sleep(settle(round));
            OpenOptions::new().write(true).open(go_file(&stamps))?;
            let word = self.names_cause(way);
            let is_named = || fs::read_to_string(&said).unwrap_or_default().contains(word);
            cause = until(monotonic_nanos(), setting.limit, Duration::from_millis(1), is_named).then(monotonic_nanos);
        }
        let ended = running.exit()?;
        let is_expected =
            |code| code == i32::from(FAILURE) || matches!((self.engine, way, code), (Engine::Slurm, Way::Bare, 0));
        let mut trouble = ended.trouble(setting.limit, is_expected);
        if !are_there {
            trouble = Some("not all ranks started".to_owned());
        } else if cause.is_none() {
            trouble = Some("the cause was not named".to_owned());
        }
        if trouble.is_none() {
            let pids = pids(&directory, ranks)?;
            let are_gone = || {
                // What a launcher leaves behind becomes our child.
                while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_some()) {}
                !pids.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists())
            };
            if !until(monotonic_nanos(), setting.limit, Duration::from_millis(2), are_gone) {
                trouble = Some("ranks were left behind".to_owned());
            }
        }
        self.rest(trouble.is_some());
        let gone = monotonic_nanos();
        let (Some(cause), None) = (cause, &trouble) else { return Ok(Err(trouble.unwrap_or_default())) };
        let failed = fs::read_to_string(stamp_file(&stamps, fails))?;
        let failed = failed.parse().with_context(|| format!("the failing rank has written `{failed}`"))?;
        let [named, left] = self.engine.failure();
        let values = vec![(named, millis(failed, cause)), (left, millis(failed, gone))];
        Ok(Ok(Sample { values, cpu_ms: None, remark: None }))
    }

    /// What each says about the failed rank.
    fn names_cause(&self, way: &Way<'_>) -> &'static str {
        match (self.engine, way) {
            (_, Way::Umiak(_) | Way::Torchx(_)) => "exited with 7",
            (Engine::Slurm, Way::Bare) => "Exited with exit code 7",
            (Engine::Mpi, Way::Bare) => "Exit code:",
        }
    }

    /// Waits until Slurm has nothing left of the job.
    fn rest(&self, is_cancelled: bool) {
        let Some(slurm) = &self.slurm else { return };
        if is_cancelled {
            slurm.ask("scancel", &["--me"]);
        }
        slurm.wait_until_idle();
    }

    fn command(
        &self,
        setting: &Setting,
        way: &Way<'_>,
        ranks: u32,
        directory: &Path,
        rank: &[OsString],
    ) -> anyhow::Result<Command> {
        let number = ranks.to_string();
        let nodes = self.nodes.to_string();
        let mut command = match (self.engine, way) {
            (engine, Way::Umiak(peer)) => {
                let words: Vec<&str> =
                    rank.iter().map(|word| word.to_str().context("a path in UTF-8")).collect::<Result<_, _>>()?;
                let words = serde_json::to_string(&words)?;
                let document = format!("umiak: v1\nroles:\n  one: {{replicas: {ranks}, command: {words}}}\n");
                let mut command = documents::run(peer.program(), directory, &document)?;
                command.args(["--engine", engine.word()]);
                if engine == Engine::Slurm {
                    command.args(["--slurm", &format!("nodes={nodes}")]);
                }
                command
            }
            (Engine::Slurm, Way::Bare) => {
                let script = directory.join("script");
                fs::write(&script, bare_script())?;
                let mut command = Command::new(self.programs.path().join("sbatch"));
                command.args(["--nodes", &nodes, "--ntasks", &number, "--output"]).arg(directory.join("said"));
                command.arg(script).args(rank);
                command
            }
            (_, Way::Torchx(peer)) => {
                let mut command = Command::new(peer.program());
                command.args(["-m", "torchx.cli.main", "run", "-s", "slurm", "utils.sh", "--memMB", "1"]);
                command.args(["--num_replicas", &number]).args(rank).env("HOME", directory);
                command
            }
            (Engine::Mpi, Way::Bare) => {
                let mut command = Command::new(self.programs.path().join("mpirun"));
                command.args(["--allow-run-as-root", "--oversubscribe", "-n", &number]).args(rank);
                command
            }
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(self.programs.path().to_owned()).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(path)?).current_dir(directory).env("TMPDIR", directory);
        command.env(STAMPS, stamps_of(directory)).env(PROGRAM, &setting.floor).env(REAL, &self.real);
        if let Some(slurm) = &self.slurm {
            command.env("SLURM_CONF", slurm.conf()).env("BASH_ENV", self.programs.path().join("bashenv"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }
}

/// What users of Slurm write. A rank that fails ends the others, as with umiak.
fn bare_script() -> String {
    format!("#!/bin/bash\nsrun --kill-on-bad-exit=1 \"$@\"\n\"${PROGRAM}\" {WORD} stamp {LAUNCHER_END}\n")
}

/// Checks a condition until it is true; false if it has not become so within `limit` of `from`.
fn until(from: u64, limit: Duration, pause: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = from + limit.as_nanos() as u64;
    loop {
        if condition() {
            return true;
        }
        if monotonic_nanos() > deadline {
            return false;
        }
        std::thread::sleep(pause);
    }
}

fn stamps_of(directory: &Path) -> PathBuf {
    directory.join("stamps")
}

/// The times that the processes of a job have taken.
#[derive(Debug)]
struct Stamps(Vec<(String, u64)>);

impl Stamps {
    fn read(directory: &Path) -> Self {
        Self::parse(&fs::read_to_string(stamps_of(directory)).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let stamp = |line: &str| {
            let (what, time) = line.split_once(' ')?;
            Some((what.to_owned(), time.parse().ok()?))
        };
        Self(whole.lines().filter_map(stamp).collect())
    }

    fn all(&self, what: &str) -> impl Iterator<Item = u64> {
        self.0.iter().filter(move |(other, _)| other == what).map(|(_, time)| *time)
    }

    fn first(&self, what: &str) -> Option<u64> {
        self.all(what).min()
    }
}

/// Adds the time of an event.
pub(crate) fn stamp(what: &str) -> anyhow::Result<ExitCode> {
    let now = monotonic_nanos();
    let path = std::env::var_os(STAMPS).with_context(|| format!("{STAMPS} is not set"))?;
    // One write, so that lines of several processes do not mix.
    let line = format!("{what} {now}\n");
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Adds the time of an event, and executes a program. A question for its version is not an event.
pub(crate) fn pass(what: &str, program: &OsStr, arguments: &[OsString]) -> anyhow::Result<ExitCode> {
    if arguments != ["--version"] {
        stamp(what)?;
    }
    Err(Command::new(program).args(arguments).exec().into())
}

/// One rank that succeeds.
pub(crate) fn be_rank() -> anyhow::Result<ExitCode> {
    stamp(BEGIN)?;
    std::thread::sleep(LIFE);
    stamp(END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_an_event_are_found_in_any_order() {
        let stamps = Stamps::parse("submit 10\nbegin 31\nbegin 30\nend 4");
        assert_eq!(stamps.first("begin"), Some(30));
        assert_eq!(stamps.all("begin").max(), Some(31));
        assert_eq!(stamps.first("end"), None, "a line that is being written");
        assert_eq!(stamps.first("unit"), None);
        assert_eq!(Stamps::parse("").first("begin"), None);
    }
}
