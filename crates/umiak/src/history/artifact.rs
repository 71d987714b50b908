//! Artifacts of steps: reads small ones, and hashes any. Programs of users make them, so they may be anything.

use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest as _, Sha256};
use umiak_core::pipeline::Preparation;
use umiak_core::pipeline::fingerprint::{self, Content, hexadecimal};
use umiak_sys::regular;

/// The largest trees that are hashed.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Files, directories and links.
    pub entries: u32,
    pub bytes: u64,
    /// Directories inside each other.
    pub depth: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 100_000, bytes: 16 << 30, depth: 200 }
    }
}

/// Reads a text file of at most `limit` bytes.
pub fn read(path: &Path, limit: usize) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = regular::open_to_read(path).map_err(|error| unreadable(path, &error))?;
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    if bytes.len() > limit {
        return Err(format!("`{}` is larger than {limit} bytes", path.display()));
    }
    String::from_utf8(bytes).map_err(|_| format!("`{}` is not UTF-8 text", path.display()))
}

/// The first of these artifacts that does not exist.
pub fn missing(outputs: &[(String, Vec<String>)]) -> Option<&str> {
    outputs.iter().flat_map(|(_, paths)| paths).map(String::as_str).find(|path| fs::metadata(path).is_err())
}

/// Removes what an earlier start of a step has made, and creates the directories of its artifacts.
pub fn make_room(preparation: &Preparation) -> Result<(), (PathBuf, io::Error)> {
    for path in &preparation.remove {
        let removed = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
            _ => fs::remove_file(path),
        };
        removed.map_err(|error| (path.clone(), error))?;
    }
    for directory in &preparation.create {
        fs::create_dir_all(directory).map_err(|error| (directory.clone(), error))?;
    }
    Ok(())
}

/// The second fingerprint of a step that is about to start: hashes what it reads. Of a directory, names, modes, contents
/// and the targets of links count; nothing in `skipped` does. Fails if something cannot be read or has no content, beyond
/// the limits, and once `stop` is set: the step is then not looked up and not recorded.
pub fn fingerprint(
    contents: Vec<Content>,
    skipped: &[PathBuf],
    limits: Limits,
    stop: &AtomicBool,
) -> Result<String, String> {
    let skipped = skipped.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    let mut walk = Walk { skipped, limits, stop, entries: 0, bytes: 0, buffer: vec![0; 128 * 1024] };
    let digests = contents.into_iter().map(|content| {
        let digest = walk.digest(&content.path)?;
        Ok((content, digest))
    });
    Ok(fingerprint::second(&digests.collect::<Result<Vec<_>, String>>()?))
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("cannot read `{}`: {error}", path.display())
}

struct Walk<'a> {
    skipped: Vec<PathBuf>,
    limits: Limits,
    stop: &'a AtomicBool,
    entries: u32,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Walk<'_> {
    /// Hashes a file or directory. The path itself may be a link to it.
    fn digest(&mut self, path: &Path) -> Result<String, String> {
        let real = match fs::canonicalize(path) {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok("missing".to_owned()),
            Err(error) => return Err(unreadable(path, &error)),
        };
        let metadata = fs::metadata(&real).map_err(|error| unreadable(&real, &error))?;
        let (kind, digest) = self.hash(&real, &metadata, 0)?;
        Ok(format!("{kind} {}", hexadecimal(&digest)))
    }

    fn hash(&mut self, path: &Path, metadata: &Metadata, depth: u32) -> Result<(&'static str, [u8; 32]), String> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(format!("more than {} files to compare, at `{}`", self.limits.entries, path.display()));
        }
        if metadata.is_file() {
            Ok(("file", self.file(path)?))
        } else if metadata.is_symlink() {
            let target = fs::read_link(path).map_err(|error| unreadable(path, &error))?;
            Ok(("link", Sha256::digest(target.as_os_str().as_bytes()).into()))
        } else if metadata.is_dir() {
            Ok(("directory", self.directory(path, depth)?))
        } else {
            Err(format!("`{}` is neither a file nor a directory", path.display()))
        }
    }

    fn file(&mut self, path: &Path) -> Result<[u8; 32], String> {
        let mut file = regular::open_to_read(path).map_err(|error| unreadable(path, &error))?;
        let mut digest = Sha256::new();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err("the comparison of files was stopped".to_owned());
            }
            let read = match file.read(&mut self.buffer) {
                Ok(0) => return Ok(digest.finalize().into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(unreadable(path, &error)),
            };
            self.bytes += read as u64;
            if self.bytes > self.limits.bytes {
                return Err(format!("more than {} bytes to compare, at `{}`", self.limits.bytes, path.display()));
            }
            digest.update(&self.buffer[..read]);
        }
    }

    fn directory(&mut self, path: &Path, depth: u32) -> Result<[u8; 32], String> {
        if depth == self.limits.depth {
            return Err(format!("directories are nested more than {depth} deep, at `{}`", path.display()));
        }
        let wrong = |error: io::Error| unreadable(path, &error);
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(wrong)? {
            names.push(entry.map_err(wrong)?.file_name());
            if names.len() > self.limits.entries as usize {
                return Err(format!("more than {} files to compare, at `{}`", self.limits.entries, path.display()));
            }
        }
        names.sort();
        let mut digest = Sha256::new();
        for name in names {
            let path = path.join(&name);
            if self.skipped.contains(&path) {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).map_err(|error| unreadable(&path, &error))?;
            let (kind, content) = self.hash(&path, &metadata, depth + 1)?;
            // The mode of a link has no meaning.
            let mode = if metadata.is_symlink() { 0 } else { metadata.permissions().mode() & 0o7777 };
            digest.update(format!("{kind} {mode:o} {} ", name.len()));
            digest.update(name.as_bytes());
            digest.update(content);
        }
        Ok(digest.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn digest(path: &Path, skipped: &[PathBuf], limits: Limits, stop: bool) -> Result<String, String> {
        let content = Content { label: "x".to_owned(), path: path.to_owned() };
        fingerprint(vec![content], skipped, limits, &AtomicBool::new(stop))
    }

    fn of(path: &Path) -> Result<String, String> {
        digest(path, &[], Limits::default(), false)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn missing_artifacts_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| directory.path().join(name).to_string_lossy().into_owned());
        let outputs = [("x".to_owned(), paths.to_vec())];
        fs::write(&paths[0], "").unwrap();
        assert_eq!(missing(&outputs), Some(paths[1].as_str()));
        fs::create_dir(&paths[1]).unwrap();
        assert_eq!(missing(&outputs), None);
    }

    #[test]
    fn small_texts_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        assert!(read(&path, 4).unwrap_err().contains("No such file"));
        fs::write(&path, "1234").unwrap();
        assert_eq!(read(&path, 4).unwrap(), "1234");
        assert_eq!(read(&path, 3).unwrap_err(), format!("`{}` is larger than 3 bytes", path.display()));
        fs::write(&path, [0xff]).unwrap();
        assert!(read(&path, 4).unwrap_err().ends_with("is not UTF-8 text"));
        assert!(read(directory.path(), 4).unwrap_err().contains("it is a directory"));
        // A device without an end, and a pipe without a writer.
        assert!(read(Path::new("/dev/zero"), 4).unwrap_err().contains("it is a device"));
    }

    #[test]
    fn contents_count_and_times_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        for root in [&a, &b] {
            fs::create_dir_all(root.join("sub/empty")).unwrap();
            fs::write(root.join("sub/file"), "content").unwrap();
            fs::write(root.join("script"), "echo").unwrap();
            symlink("script", root.join("link")).unwrap();
        }
        let same = of(&a).unwrap();
        assert_eq!(of(&b).unwrap(), same);
        assert_eq!(of(&a.join("sub/file")).unwrap(), of(&b.join("sub/file")).unwrap());
        // The path itself may be a link.
        symlink(&a, directory.path().join("c")).unwrap();
        assert_eq!(of(&directory.path().join("c")).unwrap(), same);

        let changes: [(&str, &dyn Fn()); 6] = [
            ("content", &|| fs::write(b.join("sub/file"), "Content").unwrap()),
            ("mode", &|| set_mode(&b.join("script"), 0o755)),
            ("target", &|| {
                fs::remove_file(b.join("link")).unwrap();
                symlink("elsewhere", b.join("link")).unwrap();
            }),
            ("name", &|| fs::rename(b.join("script"), b.join("other")).unwrap()),
            ("new directory", &|| fs::create_dir(b.join("more")).unwrap()),
            ("file becomes directory", &|| {
                fs::remove_file(b.join("sub/file")).unwrap();
                fs::create_dir(b.join("sub/file")).unwrap();
            }),
        ];
        let mut seen = vec![same];
        for (what, change) in changes {
            change();
            let changed = of(&b).unwrap();
            assert!(!seen.contains(&changed), "{what}");
            seen.push(changed);
        }
        let missing = of(&directory.path().join("none")).unwrap();
        assert_eq!(of(&directory.path().join("neither")).unwrap(), missing);
        assert_ne!(of(&a.join("sub/empty")).unwrap(), missing);
    }

    #[test]
    fn what_is_skipped_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join(".pipeline/run-000001")).unwrap();
        fs::write(root.join("code"), "1").unwrap();
        let skipped = [root.join("../").join(root.file_name().unwrap()).join(".pipeline")];
        let of = || digest(root, &skipped, Limits::default(), false).unwrap();
        let before = of();
        fs::create_dir_all(root.join(".pipeline/run-000002")).unwrap();
        assert_eq!(of(), before);
        fs::write(root.join("code"), "2").unwrap();
        assert_ne!(of(), before);
    }

    #[test]
    fn what_cannot_be_compared_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let limits = Limits { entries: 3, bytes: 10, depth: 2 };
        let limited = |path: &Path| digest(path, &[], limits, false);
        fs::write(root.join("a"), "12345").unwrap();
        fs::write(root.join("b"), "12345").unwrap();
        assert!(limited(root).is_ok());
        fs::write(root.join("b"), "123456").unwrap();
        assert!(limited(root).unwrap_err().contains("more than 10 bytes"));
        fs::write(root.join("b"), "").unwrap();
        fs::write(root.join("c"), "").unwrap();
        assert!(limited(root).unwrap_err().contains("more than 3 files"));
        let deep = root.join("d");
        fs::create_dir_all(deep.join("1/2")).unwrap();
        assert!(limited(&deep).unwrap_err().contains("nested more than 2 deep"));
        // Together, too.
        let twice = ["a", "b"].map(|label| Content { label: label.to_owned(), path: root.join("a") });
        let limits = Limits { bytes: 9, ..Limits::default() };
        let together = fingerprint(twice.to_vec(), &[], limits, &AtomicBool::new(false));
        assert!(together.unwrap_err().contains("more than 9 bytes"));
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let message = of(root).unwrap_err();
        assert!(message.ends_with("/socket` is neither a file nor a directory"), "{message}");
        assert!(of(Path::new("/dev/zero")).is_err());
        let stopped = digest(&root.join("a"), &[], Limits::default(), true);
        assert_eq!(stopped.unwrap_err(), "the comparison of files was stopped");
    }
}
