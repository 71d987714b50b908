//! Queries of recorded runs: a list of many, and the first bytes of a long log.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use tempfile::TempDir;
use umiak::history::journal::sealed;
use umiak::history::{Home, RunDir, RunId};
use umiak_testkit::floor::monotonic_nanos;

use super::documents::run;
use super::{Setting, directory};
use crate::bench::floor::{LINE, WORD};
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};

/// Replicas of each run.
const REPLICAS: u32 = 4;
/// One run in this many has failed.
const FAILED: u64 = 7;
/// Free space to keep on the disk beside the log.
const ROOM: u64 = 5_000_000_000;

/// Creates finished runs, one in seven of them failed: two real ones, and copies of their journals and index lines.
/// Independent of the format, so that every umiak can be measured with its own runs.
pub(crate) fn make_runs(setting: &Setting, umiak: &Path, home: &Path, count: u32) -> anyhow::Result<()> {
    let models = [("true", 0), ("false", 1)].map(|(program, code)| Model::make(setting, umiak, program, code));
    let [well, badly] = models;
    let (well, badly) = (well?, badly?);
    let home = Home::at(home);
    home.make()?;
    let mut index = String::new();
    for number in 1..=u64::from(count) {
        let run = RunDir::at(&home, RunId::new(number));
        let model = if number.is_multiple_of(FAILED) { &badly } else { &well };
        std::fs::create_dir(run.path())?;
        std::fs::write(run.journal(), sealed(run.id(), &model.journal))?;
        index.push_str(&model.index.replace(&RunId::new(1).to_string(), &run.id().to_string()));
    }
    std::fs::write(home.index(), index)?;
    Ok(())
}

/// A run that others are copied from.
struct Model {
    journal: String,
    /// Its lines in the index.
    index: String,
}

impl Model {
    fn make(setting: &Setting, umiak: &Path, program: &str, code: i32) -> anyhow::Result<Self> {
        let directory = directory()?;
        let document = format!("umiak: v1\nroles:\n  one: {{replicas: {REPLICAS}, command: [{program}]}}\n");
        let ended = Running::start(&mut run(umiak, directory.path(), &document)?, setting.limit)?.end()?;
        if let Some(trouble) = ended.trouble(setting.limit, |seen| seen == code) {
            anyhow::bail!("a run of `{program}` could not be recorded: {trouble}");
        }
        let home = Home::at(directory.path().join("home"));
        let journal =
            std::fs::read_to_string(RunDir::at(&home, RunId::new(1)).journal()).context("the run has no journal")?;
        let index = std::fs::read_to_string(home.index()).context("the run is in no index")?;
        Ok(Self { journal, index })
    }
}

/// From the start of `umiak ls` to its end, with a fast reader.
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
        None if lines < 2 => Err(format!("it listed {lines} lines")),
        None => Ok(Sample { cpu_ms: None, ..Sample::new(Metric::Listing, millis(began, ended.gone), 0.0) }),
    })
}

/// How a log is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How<'a> {
    Cat,
    Tail,
    /// With this umiak.
    Logs(&'a Path),
    LogsTail(&'a Path),
}

/// One run with a long log; removed when dropped.
#[derive(Debug)]
pub(crate) struct Recorded {
    directory: TempDir,
    log: PathBuf,
    /// True if the disk has no room for all of it.
    pub(crate) has_holes: bool,
}

impl Recorded {
    /// A replica writes the log; if there is no room it writes one line, and the file is extended.
    pub(crate) fn make(setting: &Setting, umiak: &Path, bytes: u64) -> anyhow::Result<Self> {
        let directory = directory()?;
        let free = nix::sys::statvfs::statvfs(directory.path())?;
        let has_holes = free.blocks_available() * free.fragment_size() < bytes + ROOM;
        let recorded = Self::write(setting, umiak, directory, if has_holes { LINE } else { bytes })?;
        if has_holes {
            let mut log = OpenOptions::new().append(true).open(&recorded.log)?;
            log.set_len(bytes)?;
            for number in 0..20 {
                writeln!(log, "\nline {number}")?;
            }
        }
        Ok(Self { has_holes, ..recorded })
    }

    /// The same log in a run of another umiak: a hard link.
    pub(crate) fn again(&self, setting: &Setting, umiak: &Path) -> anyhow::Result<Self> {
        let recorded = Self::write(setting, umiak, directory()?, LINE)?;
        std::fs::remove_file(&recorded.log)?;
        std::fs::hard_link(&self.log, &recorded.log)?;
        Ok(Self { has_holes: self.has_holes, ..recorded })
    }

    fn write(setting: &Setting, umiak: &Path, directory: TempDir, bytes: u64) -> anyhow::Result<Self> {
        let stamps = directory.path().join("stamps");
        let words = [
            setting.floor.as_os_str(),
            WORD.as_ref(),
            "write".as_ref(),
            bytes.to_string().as_ref(),
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
        let log = find_log(&directory.path().join("home")).context("the run has no log")?;
        Ok(Self { directory, log, has_holes: false })
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// Until the first bytes have arrived; the rest is not read.
    pub(crate) fn first_bytes(&self, setting: &Setting, how: How<'_>) -> anyhow::Result<Result<Sample, String>> {
        let mut command = match how {
            How::Cat => words("cat", &[]),
            How::Tail => words("tail", &["-n", "10"]),
            How::Logs(umiak) => asking(umiak, &self.home(), &["logs", "long"]),
            How::LogsTail(umiak) => asking(umiak, &self.home(), &["logs", "-n", "10", "long"]),
        };
        if matches!(how, How::Cat | How::Tail) {
            command.arg(&self.log);
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
        // A program with more output ends by the broken pipe, each in its own way.
        Ok(match (ended.is_late, count) {
            (true, _) => Err(format!("did not finish within {} s", setting.limit.as_secs())),
            (false, 0) => Err("no output".to_owned()),
            (false, _) => Ok(Sample { cpu_ms: None, ..Sample::new(Metric::LogFirst, millis(began, came), 0.0) }),
        })
    }
}

/// The only file of that name, wherever that umiak put it.
fn find_log(directory: &Path) -> Option<PathBuf> {
    std::fs::read_dir(directory)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .find_map(|path| if path.is_dir() { find_log(&path) } else { path.ends_with("log").then_some(path) })
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
