//! Submissions to PaddleCloud: a directory with the files that `umiak-core` made and copies of the user's, and a call of
//! the platform's client. The platform runs the job: there is no run of umiak to follow.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::paddlerec::cloud::{CLIENT, CONFIG, Cloud, JOB};

use crate::host::inventory;

/// A submission that the client has accepted.
pub(crate) struct Outcome {
    pub(crate) folder: String,
    /// What the client printed.
    pub(crate) said: String,
}

/// The name of the directory. PaddleRec's has no seconds: two submissions in one minute have one name there.
pub(crate) fn folder(name: &str) -> String {
    let time = umiak_sys::clock::local_now();
    format!(
        "{name}_{:04}{:02}{:02}{:02}{:02}{:02}",
        time.year, time.month, time.day, time.hour, time.minute, time.second
    )
}

/// Writes the files, and runs `job.sh` if the client is there. `config` is the path of `config.yaml`.
pub(crate) fn perform(cloud: &Cloud, config: &Path) -> Result<Outcome, Diagnostic> {
    let copies = copies(cloud, config)?;
    let folder = folder(&cloud.name);
    write(cloud, &copies, Path::new(&folder)).map_err(|(path, error)| {
        Diagnostic::error(Code::E0103, format!("`{}` cannot be written", path.display()))
            .row("reason", error.to_string())
    })?;
    let script = format!("{folder}/{JOB}");
    let path = std::env::var_os("PATH").unwrap_or_default();
    if inventory::on_path(CLIENT.as_ref(), &path).is_none() {
        return Err(Diagnostic::error(Code::E0101, format!("`{CLIENT}`, the client of PaddleCloud, was not found"))
            .row("files", format!("{folder}/"))
            .row("PATH", path.to_string_lossy())
            .hint(format!("install it, and run `bash {script}`")));
    }
    let failed = |error: Diagnostic| {
        error.row("files", format!("{folder}/")).hint(format!("correct it and run `bash {script}`"))
    };
    let mut command = Command::new("bash");
    command.arg(JOB).current_dir(&folder).stdin(Stdio::null()).stderr(Stdio::inherit());
    // As PaddleRec does: the platform is inside the site.
    command.env_remove("http_proxy").env_remove("https_proxy");
    let output = command.output().map_err(|error| {
        failed(Diagnostic::error(Code::E0102, format!("`{script}` could not be run")).row("reason", error.to_string()))
    })?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let error = Diagnostic::error(Code::E0102, "PaddleCloud did not accept the job")
            .row("client", output.status.to_string());
        let error = if said.trim().is_empty() { error } else { error.row("it said", said.trim()) };
        return Err(failed(error));
    }
    Ok(Outcome { folder, said })
}

/// A file or directory, and its name in the submission.
type Copy = (PathBuf, OsString);

fn copies(cloud: &Cloud, config: &Path) -> Result<Vec<Copy>, Diagnostic> {
    let mut copies: Vec<Copy> = Vec::new();
    for pattern in &cloud.patterns {
        let found = matching(pattern);
        if found.is_empty() {
            return Err(Diagnostic::error(Code::E0103, format!("`submit.files`: no file matches `{pattern}`")));
        }
        for path in found {
            let name = path.file_name().unwrap_or(OsStr::new("")).to_owned();
            if cloud.files.iter().any(|file| file.name == name) {
                let message =
                    format!("`submit.files` contains `{}`, which the submission makes itself", path.display());
                return Err(Diagnostic::error(Code::E0103, message).hint("rename it, or name the other files"));
            }
            match copies.iter().find(|(_, other)| *other == name) {
                // Two patterns may match one file.
                Some((other, _)) if *other == path => {}
                Some((other, _)) => {
                    let message =
                        format!("`{}` and `{}` would have one name in the submission", other.display(), path.display());
                    return Err(Diagnostic::error(Code::E0103, message).hint("rename one of them"));
                }
                None => copies.push((path, name)),
            }
        }
    }
    if copies.iter().all(|(_, name)| name != CONFIG) {
        copies.push((config.to_owned(), CONFIG.into()));
    }
    Ok(copies)
}

/// The files that a pattern of the shell matches: `*` and `?` in any part of the path. Sorted.
fn matching(pattern: &str) -> Vec<PathBuf> {
    let start = if pattern.starts_with('/') { PathBuf::from("/") } else { PathBuf::new() };
    let parts = pattern.split('/').filter(|part| !part.is_empty() && *part != ".");
    parts.fold(vec![start], |found, part| {
        let mut next = Vec::new();
        for directory in found {
            if !part.contains(['*', '?']) {
                next.extend(Some(directory.join(part)).filter(|path| path.exists()));
                continue;
            }
            let here = if directory.as_os_str().is_empty() { Path::new(".") } else { &directory };
            let names = fs::read_dir(here).into_iter().flatten().flatten().map(|entry| entry.file_name());
            let is_meant = |name: &OsString| {
                let name = name.to_string_lossy();
                (!name.starts_with('.') || part.starts_with('.')) && matches(part.as_bytes(), name.as_bytes())
            };
            let mut names: Vec<OsString> = names.filter(is_meant).collect();
            names.sort();
            next.extend(names.into_iter().map(|name| directory.join(name)));
        }
        next
    })
}

fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches(rest, name) || name.split_first().is_some_and(|(_, name)| matches(pattern, name))
        }
        (Some((b'?', rest)), Some((_, name))) => matches(rest, name),
        (Some((one, rest)), Some((other, name))) => one == other && matches(rest, name),
        _ => false,
    }
}

/// Makes the directory, which only its owner can read: `job.sh` and `config.ini` have secrets.
fn write(cloud: &Cloud, copies: &[Copy], folder: &Path) -> Result<(), (PathBuf, io::Error)> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| (path, error)
    };
    DirBuilder::new().mode(0o700).create(folder).map_err(at(folder))?;
    for (path, name) in copies {
        copy(path, &folder.join(name)).map_err(at(path))?;
    }
    for file in &cloud.files {
        let path = folder.join(file.name);
        let mode = if Path::new(file.name).extension() == Some(OsStr::new("sh")) { 0o700 } else { 0o600 };
        let open = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
        open.and_then(|mut open| open.write_all(file.text.as_bytes())).map_err(at(&path))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        return fs::copy(from, to).map(drop);
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_the_shell() {
        for (pattern, name, expected) in [
            ("*.py", "model.py", true),
            ("*.py", "model.pyc", false),
            ("m?del*", "model.py", true),
            ("*", "", true),
            ("a*b*c", "abbbc", true),
            ("a*b*c", "abbb", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
