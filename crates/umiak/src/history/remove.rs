//! Taking runs away.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::{Error, Home, RunDir, RunId, index, journal};

/// Names of directories that are being removed begin so; nobody takes them for runs.
const GOING: &str = ".removed-";

/// Removes runs that nobody holds. Each is gone for everybody at once, by a rename, before its files go. The index is
/// written anew at the end; the runs that were removed until something failed stay removed.
pub fn remove(home: &Home, runs: &[RunDir]) -> Result<(), Error> {
    let mut gone: Vec<RunId> = Vec::new();
    let result = runs.iter().try_for_each(|run| {
        remove_one(home, run)?;
        gone.push(run.id());
        Ok(())
    });
    if !gone.is_empty() {
        index::forget(home, &gone)?;
    }
    result
}

fn remove_one(home: &Home, run: &RunDir) -> Result<(), Error> {
    let path = run.journal();
    // Held until it is renamed: a supervisor that wants it at this moment is refused.
    let _lock = match File::options().write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
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

/// Removes what an earlier removal could not finish.
pub fn sweep(home: &Home) {
    for entry in fs::read_dir(home.runs()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(GOING) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// How much room a directory takes on the disk.
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
