//! Removes runs.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::{Error, Home, RunDir, RunId, cache, index, journal};

/// Prefix of directories that are being removed; they do not count as runs.
const GOING: &str = ".removed-";

/// Removes runs that are not running. A rename hides each run before its files are deleted. The index is rewritten at
/// the end; if one removal fails, earlier ones remain.
pub fn remove(home: &Home, runs: &[RunDir]) -> Result<(), Error> {
    let mut gone: Vec<RunId> = Vec::new();
    let result = runs.iter().try_for_each(|run| {
        remove_one(home, run)?;
        gone.push(run.id());
        Ok(())
    });
    if !gone.is_empty() {
        index::forget(home, &gone)?;
        // Their results are not used any more, whether or not they are still listed.
        let _ = cache::sweep(home);
    }
    result
}

fn remove_one(home: &Home, run: &RunDir) -> Result<(), Error> {
    let path = run.journal();
    // Held until the rename: a supervisor that opens the run at this moment is refused.
    let _lock = match journal::open(run, File::options().write(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        // A supervisor locks only a regular file.
        Err(_) if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) => None,
        Err(source) => return Err(Error::Journal { doing: "open", path, source }),
        Ok(file) => {
            journal::lock(&file, run)?;
            Some(file)
        }
    };
    let going = home.runs().join(format!("{GOING}{}", run.id()));
    let remove = |source| Error::Home { doing: "remove", path: run.path().to_owned(), source };
    let _ = fs::remove_dir_all(&going);
    fs::rename(run.path(), &going).map_err(remove)?;
    fs::remove_dir_all(&going).map_err(remove)
}

/// Completes interrupted removals.
pub fn sweep(home: &Home) {
    for entry in fs::read_dir(home.runs()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(GOING) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes logs of detached launches that have no run here, unless they were written after `limit` or are in use.
pub fn sweep_detached(home: &Home, limit: u64) {
    let limit = UNIX_EPOCH + Duration::from_micros(limit);
    for entry in fs::read_dir(home.path()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_log = name.to_str().is_some_and(|name| name.starts_with("detached-"));
        let is_old = || entry.metadata().and_then(|metadata| metadata.modified()).is_ok_and(|changed| changed < limit);
        if is_log && is_old() && !is_stderr(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// True if a process of this host has the file as its stderr.
fn is_stderr(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|process| process.path().join("fd/2")).any(|fd| fs::read_link(fd).is_ok_and(|link| link == path))
}

/// Returns the disk space that a directory uses.
pub fn size(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    let below = if metadata.is_dir() {
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size(&entry.path())).sum()
    } else {
        0
    };
    below + metadata.blocks() * 512
}
