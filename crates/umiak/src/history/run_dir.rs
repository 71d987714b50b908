//! One run: its number, its files, and its supervisor.

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::debug;
use twox_hash::XxHash3_64;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::model::StepName;

use super::{Error, Home, index};

/// `run-000032`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct RunId(u64);

impl RunId {
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run-{:06}", self.0)
    }
}

impl FromStr for RunId {
    type Err = &'static str;

    /// Accepts only the canonical form: other names in the directory are not runs.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("run-").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let id = digits.and_then(|digits| digits.parse().ok()).map(Self);
        id.filter(|id| id.to_string() == text).ok_or("expected an id like `run-000032`")
    }
}

impl TryFrom<String> for RunId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.to_string()
    }
}

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    id: RunId,
    path: PathBuf,
}

impl RunDir {
    /// Creates a run with the next number, and the home if it is missing.
    ///
    /// The tail of the index has the highest number; the directory is read only without an index. `mkdir` resolves
    /// races with other processes: on a conflict the next number is tried.
    pub fn create(home: &Home) -> Result<Self, Error> {
        home.make()?;
        let mut id = match index::highest(home) {
            Some(highest) => highest.number() + 1,
            None => ids(home)?.into_iter().max().map_or(1, |highest| highest.number() + 1),
        };
        loop {
            let run = Self::at(home, RunId(id));
            match DirBuilder::new().mode(0o700).create(&run.path) {
                Ok(()) => {
                    debug!(run = %run.id, path = ?run.path, "run directory created");
                    return Ok(run);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => id += 1,
                Err(source) => return Err(Error::Home { doing: "create", path: run.path, source }),
            }
        }
    }

    /// Opens an existing run.
    pub fn open(home: &Home, id: RunId) -> Result<Self, Error> {
        let run = Self::at(home, id);
        match fs::metadata(&run.path) {
            Ok(metadata) if metadata.is_dir() => Ok(run),
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(Error::Home { doing: "access", path: run.path, source })
            }
            _ => Err(Error::NoRun { word: id.to_string(), near: None, home: home.path().to_owned() }),
        }
    }

    /// Returns the run without checking that it exists.
    pub fn at(home: &Home, id: RunId) -> Self {
        Self { id, path: home.runs().join(id.to_string()) }
    }

    pub fn home(&self) -> Home {
        Home::at(self.path.ancestors().nth(2).unwrap_or(&self.path))
    }

    pub fn id(&self) -> RunId {
        self.id
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn document(&self) -> PathBuf {
        self.path.join("document.yaml")
    }

    pub fn secrets(&self) -> PathBuf {
        self.path.join("secrets.json")
    }

    pub fn plan(&self) -> PathBuf {
        self.path.join("plan.json")
    }

    /// Variables of all replicas, to run one by hand.
    pub fn common(&self) -> PathBuf {
        self.path.join("common.env")
    }

    pub fn journal(&self) -> PathBuf {
        self.path.join("journal.jsonl")
    }

    pub fn supervisor(&self) -> PathBuf {
        self.path.join("supervisor.json")
    }

    /// The file name of [`RunDir::control`].
    pub const CONTROL: &str = "control.sock";

    pub fn control(&self) -> PathBuf {
        self.path.join(Self::CONTROL)
    }

    /// Scratch space shared by the replicas of the run's only job, or of one of its steps; removed at the end of the run.
    pub fn scratch(&self, step: Option<&StepName>) -> PathBuf {
        let scratch = self.path.join("scratch");
        step.map_or(scratch.clone(), |step| scratch.join(&*file_name(step.as_str())))
    }

    /// Directories of attempts: of the run's only job, or of one of its steps.
    pub fn tasks(&self, step: Option<&StepName>) -> PathBuf {
        let tasks = self.path.join("tasks");
        step.map_or(tasks.clone(), |step| tasks.join(&*file_name(step.as_str())))
    }

    pub fn supervisor_log(&self) -> PathBuf {
        self.path.join("supervisor.log")
    }

    /// Files of one attempt of one replica: `command`, `env`, `log`, `exit.json`.
    pub fn attempt(&self, step: Option<&StepName>, replica: &str, attempt: u32) -> PathBuf {
        self.tasks(step).join(replica).join(format!("attempt-{attempt}"))
    }

    /// The log in the directory of an attempt, unless the plan names a file elsewhere.
    pub fn own_log(
        &self,
        step: Option<&StepName>,
        replica: &str,
        attempt: u32,
        planned: Option<&Path>,
    ) -> Option<PathBuf> {
        let own = self.attempt(step, replica, attempt).join("log");
        let is_own = planned.is_none_or(|planned| self.path.join(planned).starts_with(self.tasks(None)));
        (is_own || own.exists()).then_some(own)
    }

    /// Removes temporary files of processes that were killed while replacing a file: they may contain secrets.
    pub fn drop_unfinished(&self) {
        for path in fs::read_dir(&self.path).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "next") {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Writes the file about the supervisor atomically.
    pub fn write_supervisor(&self, supervisor: &Supervisor) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(supervisor)?;
        text.push(b'\n');
        replace(&self.supervisor(), &text)
    }

    /// Returns the current or last supervisor of the run; `None` if it is not recorded, not a regular
    /// file, or not readable by this version.
    pub fn read_supervisor(&self) -> Option<Supervisor> {
        serde_json::from_slice(&umiak_sys::regular::read(&self.supervisor()).ok()?).ok()
    }
}

/// The name of a step as a file name. Names of deeply nested steps are too long for one: they end with a checksum.
fn file_name(name: &str) -> Cow<'_, str> {
    const MOST: usize = 200;
    if name.len() <= MOST {
        return name.into();
    }
    let sum = format!("-{:016x}", XxHash3_64::oneshot(name.as_bytes()));
    let fits = |at: &usize| name.is_char_boundary(*at);
    let begin = (0..=MOST - sum.len()).rev().find(fits).unwrap_or_default();
    format!("{}{sum}", &name[..begin]).into()
}

/// Writes a temporary file and renames it to `path`: readers see the old content or the new. Mode 0600.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.next", std::process::id()));
    let next = path.with_file_name(name);
    let written = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&next)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&next, path));
    if written.is_err() {
        let _ = fs::remove_file(&next);
    }
    written
}

/// The error for a file of a run that cannot be written.
pub(crate) fn cannot_write(path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::error(Code::J0029, format!("`{}` cannot be written", path.display()))
        .row("reason", error.to_string())
        .hint("free space there, or set `UMIAK_HOME` to another directory")
}

/// Returns the runs in the directory, unordered. A missing home has none.
pub fn ids(home: &Home) -> Result<Vec<RunId>, Error> {
    let entries = match fs::read_dir(home.runs()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(home.unusable("read", source)),
    };
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The supervisor of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Supervisor {
    pub v: u32,
    pub host: String,
    /// Boot id of the host.
    pub boot_id: String,
    pub pid: u32,
    /// Start time of that process, in kernel ticks: pids are reused.
    pub start: u64,
    pub epoch: u32,
    /// Path of its socket; empty if it has none.
    #[serde(default)]
    pub control: String,
    pub umiak: String,
}

impl Supervisor {
    /// Describes this process.
    pub fn here(epoch: u32, control: &Path) -> Self {
        let pid = std::process::id();
        Self {
            v: 1,
            host: umiak_sys::host::name(),
            boot_id: umiak_sys::hold::boot_id(),
            pid,
            start: umiak_sys::hold::process_start(pid).unwrap_or(0),
            epoch,
            control: control.to_string_lossy().into_owned(),
            umiak: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// True if its process still runs on this host.
    pub fn is_alive(&self) -> bool {
        self.is_of_this_boot()
            && umiak_sys::hold::process_start(self.pid) == Some(self.start)
            && !umiak_sys::hold::is_zombie(self.pid)
    }

    /// True if it runs on another host. False after a reboot of this host: then it does not run at all.
    pub fn is_elsewhere(&self) -> bool {
        !self.is_of_this_boot() && self.host != umiak_sys::host::name()
    }

    /// True if it was started since the last boot of this host.
    pub fn is_of_this_boot(&self) -> bool {
        let here = umiak_sys::hold::boot_id();
        if here.is_empty() || self.boot_id.is_empty() {
            return self.host == umiak_sys::host::name();
        }
        self.boot_id == here
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Home) {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path().join("state"));
        (directory, home)
    }

    #[test]
    fn ids_are_read_only_as_they_are_written() {
        assert_eq!("run-000032".parse(), Ok(RunId(32)));
        assert_eq!("run-1000032".parse(), Ok(RunId(1_000_032)));
        for wrong in ["run-32", "run-0000032", "run-", "run-00003x", "run-+00032", "000032", "run-99999999999999999999"]
        {
            assert!(wrong.parse::<RunId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn directories_of_steps_have_names_that_file_systems_accept() {
        let (_directory, home) = home();
        let run = RunDir::create(&home).unwrap();
        let tasks = |name: &str| run.tasks(Some(&StepName::new(name).unwrap()));
        assert!(tasks("dag.3.child").ends_with("tasks/dag.3.child"));
        let deep = "é-very-long-name.".repeat(40);
        let (one, other) = (tasks(&format!("{deep}a")), tasks(&format!("{deep}b")));
        assert_ne!(one, other);
        fs::create_dir_all(&one).unwrap();
        assert!(one.parent().unwrap().ends_with("tasks"), "one directory");
    }

    #[test]
    fn numbers_go_up_whoever_asks() {
        let (_directory, home) = home();
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let home = home.clone();
                std::thread::spawn(move || (0..20).map(|_| RunDir::create(&home).unwrap().id()).collect::<Vec<_>>())
            })
            .collect();
        let mut all: Vec<u64> =
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).map(RunId::number).collect();
        all.sort_unstable();
        assert_eq!(all, (1..=160).collect::<Vec<_>>());
    }

    #[test]
    fn the_supervisor_is_read_back() {
        let (_directory, home) = home();
        let run = RunDir::create(&home).unwrap();
        assert_eq!(run.read_supervisor(), None);
        let supervisor = Supervisor::here(2, &run.control());
        run.write_supervisor(&supervisor).unwrap();
        assert_eq!(run.read_supervisor(), Some(supervisor.clone()));
        assert!(supervisor.is_of_this_boot());
        fs::write(run.supervisor(), "{").unwrap();
        assert_eq!(run.read_supervisor(), None);
    }
}
