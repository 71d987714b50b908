//! Results of steps that later runs may use: one file for each first fingerprint, below `$UMIAK_HOME/cache`, with one line
//! for each result. The files are derived: without them, steps run again.
//!
//! Several umiak processes use them at once. A line is appended with one write; a file is rewritten by renaming a new one
//! over it. A line that is lost between the two, torn or damaged is a result that is not found.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use umiak_sys::regular;

use super::index::append_line;
use super::{Home, RunDir, RunId, artifact, ids, replace};

/// The version of the lines; others are not read.
const VERSION: u32 = 1;
/// A file with more lines than this is reduced to the newest half.
const MAX_LINES: usize = 64;

/// A result of a step that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cached {
    pub run: RunId,
    /// The name of the instance in that run.
    pub step: String,
    /// The second fingerprint; none if only the first counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<String>,
    /// When it was recorded, in microseconds since the Unix epoch.
    pub at: u64,
    /// It is not used any more when it is older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_micros: Option<u64>,
    /// Paths on this host, by the names of the artifacts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<(String, Vec<String>)>,
}

impl Cached {
    /// Limits the age of a result.
    #[must_use]
    pub fn with_max_age(self, max_age: Option<Duration>) -> Self {
        let micros = |age: Duration| u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        Self { max_age_micros: max_age.map(micros), ..self }
    }

    fn is_fresh(&self, now: u64) -> bool {
        self.max_age_micros.is_none_or(|age| now.saturating_sub(self.at) < age)
    }

    fn is_complete(&self) -> bool {
        artifact::missing(&self.outputs).is_none()
    }
}

/// A line of a file.
#[derive(Serialize, Deserialize)]
struct Line<T> {
    v: u32,
    #[serde(flatten)]
    cached: T,
}

/// Finds the newest result with these fingerprints that is not too old, whose run still exists, and whose artifacts do.
pub fn lookup(home: &Home, first: &str, second: Option<&str>, now: u64) -> Option<Cached> {
    let mut found = read(&path_of(home, first)?);
    found.retain(|cached| cached.second.as_deref() == second && cached.is_fresh(now));
    found.sort_by_key(|cached| cached.at);
    let exists = |cached: &Cached| RunDir::open(home, cached.run).is_ok() && cached.is_complete();
    found.into_iter().rev().find(exists)
}

/// Records the result of a step that has succeeded.
pub fn record(home: &Home, first: &str, cached: &Cached) -> io::Result<()> {
    let path = path_of(home, first).ok_or_else(|| io::Error::other("a fingerprint has 64 hexadecimal digits"))?;
    DirBuilder::new().recursive(true).mode(0o700).create(directory(home))?;
    append_line(&path, line(cached))?;
    let mut found = read(&path);
    if found.len() > MAX_LINES {
        found.sort_by_key(|cached| cached.at);
        write(&path, &found[found.len() - MAX_LINES / 2..])?;
    }
    Ok(())
}

/// Drops results of runs that do not exist any more.
pub fn sweep(home: &Home) -> io::Result<()> {
    let files = match fs::read_dir(directory(home)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        files => files?,
    };
    let runs: BTreeSet<RunId> = ids(home).map_err(io::Error::other)?.into_iter().collect();
    for file in files.flatten() {
        let path = file.path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let mut found = read(&path);
        let before = found.len();
        found.retain(|cached| runs.contains(&cached.run));
        if found.is_empty() {
            fs::remove_file(&path)?;
        } else if found.len() < before {
            write(&path, &found)?;
        }
    }
    Ok(())
}

fn directory(home: &Home) -> PathBuf {
    home.path().join("cache")
}

fn path_of(home: &Home, first: &str) -> Option<PathBuf> {
    let is_fingerprint = first.len() == 64 && first.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_fingerprint.then(|| directory(home).join(format!("{first}.jsonl")))
}

fn line(cached: &Cached) -> Vec<u8> {
    let mut line = serde_json::to_vec(&Line { v: VERSION, cached }).expect("a result is JSON");
    line.push(b'\n');
    line
}

/// The lines that can be read.
fn read(path: &Path) -> Vec<Cached> {
    let bytes = regular::read(path).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Line<Cached>>(line).ok());
    lines.filter(|line| line.v == VERSION).map(|line| line.cached).collect()
}

fn write(path: &Path, found: &[Cached]) -> io::Result<()> {
    replace(path, &found.iter().flat_map(line).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use crate::history::remove::remove;

    const FIRST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn home() -> (tempfile::TempDir, Home) {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path().join("home"));
        (directory, home)
    }

    fn cached(run: &RunDir, second: &str, at: u64) -> Cached {
        Cached {
            run: run.id(),
            step: "train".to_owned(),
            second: Some(second.to_owned()),
            at,
            max_age_micros: None,
            outputs: Vec::new(),
        }
    }

    #[test]
    fn the_newest_result_is_found() {
        let (_directory, home) = home();
        assert_eq!(lookup(&home, FIRST, Some("x"), 10), None);
        let (one, two) = (RunDir::create(&home).unwrap(), RunDir::create(&home).unwrap());
        for (run, second, at) in [(&two, "x", 3), (&one, "x", 2), (&one, "y", 4)] {
            record(&home, FIRST, &cached(run, second, at)).unwrap();
        }
        assert_eq!(lookup(&home, FIRST, Some("x"), 10), Some(cached(&two, "x", 3)));
        assert_eq!(lookup(&home, FIRST, Some("y"), 10), Some(cached(&one, "y", 4)));
        assert_eq!(lookup(&home, FIRST, Some("z"), 10), None);
        // A result of one policy is not one of the other.
        assert_eq!(lookup(&home, FIRST, None, 10), None);
        let aggressive = Cached { second: None, ..cached(&one, "", 1) };
        record(&home, FIRST, &aggressive).unwrap();
        assert_eq!(lookup(&home, FIRST, None, 10), Some(aggressive));
        assert_eq!(lookup(&home, &FIRST.replace('0', "1"), Some("x"), 10), None);
        assert_eq!(lookup(&home, "../../x", Some("x"), 10), None);
        assert!(record(&home, "../../x", &cached(&one, "x", 1)).is_err());
    }

    #[test]
    fn old_results_are_not_used() {
        let (_directory, home) = home();
        let run = RunDir::create(&home).unwrap();
        let old = cached(&run, "x", 1_000_000).with_max_age(Some(Duration::from_secs(2)));
        record(&home, FIRST, &old).unwrap();
        assert_eq!(lookup(&home, FIRST, Some("x"), 2_999_999), Some(old.clone()));
        assert_eq!(lookup(&home, FIRST, Some("x"), 3_000_000), None);
        // A clock that was set back.
        assert_eq!(lookup(&home, FIRST, Some("x"), 0), Some(old));
    }

    #[test]
    fn artifacts_and_runs_must_exist() {
        let (directory, home) = home();
        let (one, two) = (RunDir::create(&home).unwrap(), RunDir::create(&home).unwrap());
        let paths: Vec<_> = ["a", "b"].map(|name| directory.path().join(name).to_string_lossy().into_owned()).into();
        let with = |run, at| Cached { outputs: vec![("x".to_owned(), paths.clone())], ..cached(run, "x", at) };
        record(&home, FIRST, &cached(&one, "x", 1)).unwrap();
        record(&home, FIRST, &with(&two, 2)).unwrap();
        fs::write(&paths[0], "").unwrap();
        assert_eq!(lookup(&home, FIRST, Some("x"), 10), Some(cached(&one, "x", 1)), "`b` is missing");
        fs::write(&paths[1], "").unwrap();
        assert_eq!(lookup(&home, FIRST, Some("x"), 10), Some(with(&two, 2)));
        remove(&home, std::slice::from_ref(&two)).unwrap();
        assert_eq!(lookup(&home, FIRST, Some("x"), 10), Some(cached(&one, "x", 1)));
        assert_eq!(read(&path_of(&home, FIRST).unwrap()).len(), 1);
        remove(&home, &[one]).unwrap();
        assert_eq!(fs::read_dir(home.path().join("cache")).unwrap().count(), 0);
    }

    #[test]
    fn damaged_lines_are_ignored() {
        let (_directory, home) = home();
        let run = RunDir::create(&home).unwrap();
        record(&home, FIRST, &cached(&run, "x", 1)).unwrap();
        let path = path_of(&home, FIRST).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let newer =
            String::from_utf8(bytes.clone()).unwrap().replace("\"v\":1", "\"v\":2").replace("\"at\":1", "\"at\":9");
        bytes.extend(newer.bytes().chain(*b"\xff\n{}\n{\"v\":1,\"run\":\"run-0"));
        fs::write(&path, bytes).unwrap();
        record(&home, FIRST, &cached(&run, "x", 2)).unwrap();
        let ats: Vec<_> = read(&path).iter().map(|cached| cached.at).collect();
        assert_eq!(ats, [1, 2]);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(lookup(&home, FIRST, Some("x"), 10), None);
    }

    #[test]
    fn files_stay_small() {
        let (_directory, home) = home();
        let run = RunDir::create(&home).unwrap();
        for at in 0..200 {
            record(&home, FIRST, &cached(&run, "x", at)).unwrap();
        }
        let found = read(&path_of(&home, FIRST).unwrap());
        assert!(found.len() <= MAX_LINES && found.last().unwrap().at == 199, "{}", found.len());
    }

    #[test]
    fn several_processes_record_at_once() {
        let (_directory, home) = home();
        let run = RunDir::create(&home).unwrap();
        thread::scope(|scope| {
            for writer in 0..4 {
                let (home, run) = (&home, &run);
                scope.spawn(move || {
                    for number in 0..10 {
                        record(home, FIRST, &cached(run, &format!("{writer}-{number}"), number)).unwrap();
                    }
                });
            }
        });
        for writer in 0..4 {
            for number in 0..10 {
                let second = format!("{writer}-{number}");
                assert!(lookup(&home, FIRST, Some(&second), 100).is_some(), "{second}");
            }
        }
    }

    proptest! {
        /// Any bytes in a file are results or not.
        #[test]
        fn any_file_is_read(bytes: Vec<u8>) {
            let (_directory, home) = home();
            home.make().unwrap();
            fs::create_dir(directory(&home)).unwrap();
            fs::write(path_of(&home, FIRST).unwrap(), bytes).unwrap();
            prop_assert_eq!(lookup(&home, FIRST, None, 0), None);
            sweep(&home).unwrap();
        }
    }
}
