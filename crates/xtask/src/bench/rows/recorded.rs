//! What is asked of runs that were recorded: a list of many, and the first bytes of a long log.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use tempfile::TempDir;
use umiak::history::index::{self, IndexEntry};
use umiak::history::journal::Writer;
use umiak::history::{Home, RunDir, RunId};
use umiak_core::facts::{Began, Fact, Outcome, Planned, PlannedReplica, PlannedRole, Subject, Supervised};
use umiak_core::model::{Exit, Instance, Rank, Timestamp};
use umiak_testkit::floor::monotonic_nanos;

use super::documents::run;
use super::{Setting, directory};
use crate::bench::floor::WORD;
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};

/// Replicas of each made-up run.
const REPLICAS: u32 = 4;
/// Between the beginnings of two of them.
const APART: u64 = 60_000_000;
/// What must stay free on the disk beside the log.
const ROOM: u64 = 5_000_000_000;

/// Runs that have ended, one in seven of them badly: journals and index as a supervisor leaves them.
pub(crate) fn make_runs(home: &Path, count: u32) -> anyhow::Result<()> {
    let home = Home::at(home);
    home.make()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64;
    for number in 1..=u64::from(count) {
        let run = RunDir::at(&home, RunId::new(number));
        std::fs::create_dir(run.path())?;
        let began = now.saturating_sub((u64::from(count) - number + 1) * APART);
        let mut journal = Writer::create(&run)?;
        let records = journal.number(Timestamp::from_micros(began), facts(number));
        journal.append(&records)?;
        index::append(&home, &IndexEntry::new(run.id(), journal.status()))?;
    }
    Ok(())
}

fn facts(number: u64) -> Vec<Fact> {
    let fails = number.is_multiple_of(7);
    let supervised = Supervised {
        why: Began::Submitted,
        host: "node-a".to_owned(),
        pid: 4000,
        umiak: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let subject = |rank: u32| Subject { replica: format!("trainer-{rank}"), rank: Some(Rank(rank)), attempt: 0 };
    let replica = |rank: u32| PlannedReplica {
        replica: format!("trainer-{rank}"),
        rank: Rank(rank),
        node: format!("127.1.0.{rank}"),
        endpoint: format!("127.1.0.{rank}"),
        devices: Vec::new(),
        log: format!("tasks/trainer-{rank}/attempt-0/log"),
        log_start: 0,
    };
    let planned = Planned {
        job: format!("job-{}", number % 40),
        attempt: 0,
        umiak: env!("CARGO_PKG_VERSION").to_owned(),
        world_size: REPLICAS,
        log_dir: "tasks".to_owned(),
        roles: vec![PlannedRole { role: "trainer".to_owned(), replicas: REPLICAS, decides: true }],
        replicas: (0..REPLICAS).map(replica).collect(),
    };
    let ended = |rank: u32| Fact::Ended {
        subject: subject(rank),
        exit: Exit::Code { code: i32::from(fails) },
        by_us: false,
        order: u64::from(rank),
        usage: None,
        log_end: None,
    };
    let (outcome, exit_code) = if fails { (Outcome::Failed, 1) } else { (Outcome::Succeeded, 0) };
    let mut facts = vec![Fact::Supervised(supervised), Fact::Planned(planned)];
    facts.extend((0..REPLICAS).map(|rank| Fact::Starting { subject: subject(rank) }));
    facts.extend(
        (0..REPLICAS).map(|rank| Fact::Started { subject: subject(rank), instance: Instance::of_pid(4001 + rank) }),
    );
    facts.extend((0..REPLICAS).map(ended));
    facts.push(Fact::Finished { outcome, exit_code });
    facts
}

/// From the start of `umiak ls` to its end, with a reader that takes everything.
pub(crate) fn list(setting: &Setting, umiak: &Path, home: &Path) -> anyhow::Result<Result<Sample, String>> {
    let mut command = asking(umiak, home, &["ls"]);
    let (mut reader, writer) = std::io::pipe()?;
    command.stdout(writer);
    let running = Running::start(&mut command, setting.limit)?;
    drop(command);
    let mut said = Vec::new();
    reader.read_to_end(&mut said)?;
    let began = running.began;
    let ended = running.end()?;
    let lines = said.split(|byte| *byte == b'\n').count() - 1;
    Ok(match ended.trouble(setting.limit, |code| code == 0) {
        Some(trouble) => Err(trouble),
        None if lines < 2 => Err(format!("it has listed {lines} lines")),
        None => Ok(Sample { cpu_ms: None, ..Sample::new(Metric::Listing, millis(began, ended.gone), 0.0) }),
    })
}

/// How a log is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    Cat,
    Tail,
    Logs,
    LogsTail,
}

/// One run with a long log; gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Recorded {
    directory: TempDir,
    /// The disk has no room for all of it.
    pub(crate) has_holes: bool,
}

impl Recorded {
    /// A replica writes it; where there is no room it writes a line, and the file is drawn out.
    pub(crate) fn make(setting: &Setting, umiak: &Path, bytes: u64) -> anyhow::Result<Self> {
        let directory = directory()?;
        let free = nix::sys::statvfs::statvfs(directory.path())?;
        let has_holes = free.blocks_available() * free.fragment_size() < bytes + ROOM;
        let written = if has_holes { 65 } else { bytes };
        let stamps = directory.path().join("stamps");
        let words = [
            setting.floor.as_os_str(),
            WORD.as_ref(),
            "write".as_ref(),
            written.to_string().as_ref(),
            stamps.as_os_str(),
        ]
        .map(|word: &std::ffi::OsStr| word.to_string_lossy().into_owned());
        let document =
            format!("umiak: v1\nname: long\nroles:\n  one: {{command: {}}}\n", serde_json::to_string(&words)?);
        let mut command = run(umiak, directory.path(), &document)?;
        // Without a mirror, which would have to be read.
        command.args(["--output", "json"]);
        let ended = Running::start(&mut command, setting.limit * 10)?.end()?;
        if let Some(trouble) = ended.trouble(setting.limit * 10, |code| code == 0) {
            anyhow::bail!("the long log could not be made: {trouble}");
        }
        let recorded = Self { directory, has_holes };
        if has_holes {
            let mut log = OpenOptions::new().append(true).open(recorded.log())?;
            log.set_len(bytes)?;
            for number in 0..20 {
                writeln!(log, "\nline {number}")?;
            }
        }
        File::open(recorded.log()).context("the run has no log")?;
        Ok(recorded)
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn log(&self) -> PathBuf {
        RunDir::at(&Home::at(self.home()), RunId::new(1)).attempt("one-0", 0).join("log")
    }

    /// Until the first bytes have come; then nobody reads on.
    pub(crate) fn first_bytes(
        &self,
        setting: &Setting,
        umiak: &Path,
        how: How,
    ) -> anyhow::Result<Result<Sample, String>> {
        let mut command = match how {
            How::Cat => words("cat", &[]),
            How::Tail => words("tail", &["-n", "10"]),
            How::Logs => asking(umiak, &self.home(), &["logs", "long"]),
            How::LogsTail => asking(umiak, &self.home(), &["logs", "-n", "10", "long"]),
        };
        if matches!(how, How::Cat | How::Tail) {
            command.arg(self.log());
        }
        let (mut reader, writer) = std::io::pipe()?;
        command.stdout(writer);
        let running = Running::start(&mut command, setting.limit)?;
        drop(command);
        let count = reader.read(&mut [0; 4096])?;
        let came = monotonic_nanos();
        drop(reader);
        let began = running.began;
        let ended = running.end()?;
        // Whoever has more to say ends by the broken pipe, each in its own way.
        Ok(match (ended.is_late, count) {
            (true, _) => Err(format!("no end within {} s", setting.limit.as_secs())),
            (false, 0) => Err("nothing came".to_owned()),
            (false, _) => Ok(Sample { cpu_ms: None, ..Sample::new(Metric::LogFirst, millis(began, came), 0.0) }),
        })
    }
}

fn asking(umiak: &Path, home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(umiak);
    command.args(arguments).env("UMIAK_HOME", home);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn words(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    command
}
