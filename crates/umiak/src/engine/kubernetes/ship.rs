//! Reads files that pods get.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use umiak_core::cluster::kubernetes::{MAX_SHIPPED, Shipped};
use umiak_core::diag::{Code, Diagnostic};

/// Names that are made again where they are needed.
const LEFT_OUT: [&str; 2] = [".git", "__pycache__"];
/// More files are not shipped by mistake only.
const MAX_FILES: usize = 1000;
/// Directories in directories; links may lead around in a circle.
const MAX_DEPTH: usize = 20;
/// Directories in all, for the same reason.
const MAX_DIRECTORIES: usize = 1000;

/// The files of these paths. Those of a directory are relative to it; a file keeps its name. A later one replaces an
/// earlier one of the same name.
pub(super) fn files(paths: impl Iterator<Item = PathBuf>) -> Result<Vec<Shipped>, Diagnostic> {
    let mut files = Vec::new();
    let mut size = 0;
    let mut directories = 0;
    for path in paths {
        let cannot = |error: &io::Error| {
            Diagnostic::error(Code::E0302, format!("`{}` cannot be shipped", path.display()))
                .row("reason", error.to_string())
                .hint("`--kube-ship` names a file, or a directory with files")
        };
        let metadata = std::fs::metadata(&path).map_err(|error| cannot(&error))?;
        if metadata.is_dir() {
            walk(&path, "", &mut files, &mut size, &mut directories).map_err(|error| cannot(&error))?;
        } else {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.ok_or_else(|| cannot(&io::Error::other("its name is not UTF-8")))?;
            add(&path, name.to_owned(), &mut files, &mut size).map_err(|error| cannot(&error))?;
        }
    }
    Ok(files)
}

/// Adds the files below a directory, by name.
fn walk(
    directory: &Path,
    prefix: &str,
    files: &mut Vec<Shipped>,
    size: &mut usize,
    directories: &mut usize,
) -> io::Result<()> {
    *directories += 1;
    if *directories > MAX_DIRECTORIES || prefix.matches('/').count() > MAX_DEPTH {
        let reason = "there are too many directories, or a link leads to a directory that contains it";
        return Err(io::Error::other(format!("{reason}: `{}`", directory.display())));
    }
    let mut entries = std::fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else {
            return Err(io::Error::other(format!("the name of `{}` is not UTF-8", path.display())));
        };
        // Links are followed: what they lead to is not in the pod.
        match std::fs::metadata(&path)?.is_dir() {
            true if LEFT_OUT.contains(&name.as_str()) => {}
            true => walk(&path, &format!("{prefix}{name}/"), files, size, directories)?,
            false => add(&path, format!("{prefix}{name}"), files, size)?,
        }
    }
    Ok(())
}

fn add(path: &Path, name: String, files: &mut Vec<Shipped>, size: &mut usize) -> io::Result<()> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other(format!("`{}` is not a file", path.display())));
    }
    *size += usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    if *size > MAX_SHIPPED || files.len() >= MAX_FILES {
        let limit = MAX_SHIPPED >> 10;
        return Err(io::Error::other(format!("there are more than {MAX_FILES} files, or more than {limit} KiB")));
    }
    let bytes = umiak_sys::regular::read(path)?;
    files.retain(|file| file.path != name);
    files.push(Shipped { path: name, bytes, executable: metadata.permissions().mode() & 0o100 != 0 });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let (train, other) = (write("src/train.sh", "a"), write("other/train.sh", "b"));
        write("src/deep/er/x.py", "c");
        write("src/__pycache__/x.pyc", "d");
        std::fs::set_permissions(&train, std::fs::Permissions::from_mode(0o755)).unwrap();
        let shown = |paths: &[PathBuf]| {
            let files = files(paths.iter().cloned()).unwrap();
            let shown = files
                .iter()
                .map(|file| format!("{} {} {}", file.path, String::from_utf8_lossy(&file.bytes), file.executable));
            shown.collect::<Vec<_>>().join(", ")
        };
        let src = directory.path().join("src");
        assert_eq!(shown(std::slice::from_ref(&src)), "deep/er/x.py c false, train.sh a true");
        assert_eq!(shown(&[src.clone(), other]), "deep/er/x.py c false, train.sh b false");
        write("src/large", &"x".repeat(MAX_SHIPPED));
        let error = files([src, directory.path().join("none")].into_iter()).unwrap_err();
        assert!(error.to_plain().contains("more than 900 KiB"), "{}", error.to_plain());
        assert!(files([directory.path().join("none")].into_iter()).is_err());
        let round = directory.path().join("round");
        std::fs::create_dir(&round).unwrap();
        for name in ["a", "b"] {
            std::os::unix::fs::symlink(".", round.join(name)).unwrap();
        }
        let error = files([round].into_iter()).unwrap_err();
        assert!(error.to_plain().contains("a link leads to"), "{}", error.to_plain());
    }
}
