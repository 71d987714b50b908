//! Submissions to PaddleCloud: a directory with the files that `umiak-core` made and copies of the user's, and a call of
//! the platform's client. The platform runs the job: there is no run of umiak to follow.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::paddlerec::cloud::{CLIENT, CONFIG, Cloud, JOB, call};

use super::glob::matches;
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
    write(cloud, &copies, Path::new(&folder))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    if inventory::on_path(CLIENT.as_ref(), &path).is_none() {
        return Err(Diagnostic::error(Code::E0101, format!("`{CLIENT}`, the client of PaddleCloud, was not found"))
            .row("files", format!("{folder}/"))
            .row("PATH", path.to_string_lossy())
            .hint(format!("install it, and run `{}`", call(&folder))));
    }
    let failed = |error: Diagnostic| {
        error.row("files", format!("{folder}/")).hint(format!("correct it and run `{}`", call(&folder)))
    };
    let mut command = Command::new("bash");
    command.arg(JOB).current_dir(&folder).stdin(Stdio::null()).stderr(Stdio::inherit());
    // As PaddleRec does: the platform is inside the site.
    command.env_remove("http_proxy").env_remove("https_proxy");
    let output = command.output().map_err(|error| {
        let message = format!("`{folder}/{JOB}` could not be run");
        failed(Diagnostic::error(Code::E0102, message).row("reason", error.to_string()))
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

/// A file, directory or link, and its path in the submission.
struct Copy {
    from: PathBuf,
    to: PathBuf,
    kind: Kind,
}

enum Kind {
    File,
    Directory,
    /// Its target.
    Link(PathBuf),
}

/// All that is copied, directories before what is in them.
fn copies(cloud: &Cloud, config: &Path) -> Result<Vec<Copy>, Diagnostic> {
    let mut copies = Vec::new();
    for (path, name) in chosen(cloud, config)? {
        walk(path, name.into(), true, &mut copies).map_err(|(path, error)| failed("read", &path, &error))?;
    }
    Ok(copies)
}

/// The files and directories that the patterns match, each with its name in the submission, and `config.yaml`.
fn chosen(cloud: &Cloud, config: &Path) -> Result<Vec<(PathBuf, OsString)>, Diagnostic> {
    let wrong = |code: Code, message: String, hint: &str| {
        Err(Diagnostic::error(code, message).label(cloud.files_at.clone()).hint(hint))
    };
    let here = fs::canonicalize(".").map_err(|error| failed("read", Path::new("."), &error))?;
    let mut chosen: Vec<(PathBuf, OsString)> = Vec::new();
    for pattern in &cloud.patterns {
        let found = matching(pattern);
        if found.is_empty() {
            let message = format!("`submit.files`: no file matches `{pattern}`");
            return wrong(Code::F0013, message, "patterns are relative to the current directory");
        }
        for path in found {
            let Some(name) = path.file_name().map(OsStr::to_owned) else {
                let message = format!("`submit.files`: `{pattern}` has no name that a copy could have");
                return wrong(Code::F0013, message, "name the files in it, as in `./*.py`");
            };
            if fs::canonicalize(&path).is_ok_and(|path| here.starts_with(path)) {
                let message = format!("`submit.files`: `{}` contains the current directory", path.display());
                return wrong(Code::F0013, message, "the directory of the submission is made there: name other files");
            }
            if cloud.files.iter().any(|file| file.name == name) {
                let message =
                    format!("`submit.files` contains `{}`, which the submission makes itself", path.display());
                return wrong(Code::F0018, message, "rename it, or name the other files");
            }
            match chosen.iter().find(|(_, other)| *other == name) {
                // Two patterns may match one file.
                Some((other, _)) if is_same(other, &path) => {}
                Some((other, _)) => {
                    return wrong(Code::F0018, one_name(other, &path), "rename one of them");
                }
                None => chosen.push((path, name)),
            }
        }
    }
    match chosen.iter().find(|(_, name)| name == CONFIG) {
        Some((path, _)) if is_same(path, config) => {}
        Some((path, _)) => {
            let hint = format!("`{}` becomes `{CONFIG}` there: rename the other one", config.display());
            return wrong(Code::F0018, one_name(config, path), &hint);
        }
        None => chosen.push((config.to_owned(), CONFIG.into())),
    }
    Ok(chosen)
}

fn one_name(one: &Path, other: &Path) -> String {
    format!("`{}` and `{}` would have one name in the submission", one.display(), other.display())
}

fn is_same(one: &Path, other: &Path) -> bool {
    one == other || matches!((fs::canonicalize(one), fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::error(Code::E0103, format!("`{}` cannot be {what}", path.display())).row("reason", error.to_string())
}

/// The files that a pattern of the shell matches: `*` and `?` in any part of the path. Sorted, without earlier
/// submissions.
fn matching(pattern: &str) -> Vec<PathBuf> {
    let start = if pattern.starts_with('/') { PathBuf::from("/") } else { PathBuf::new() };
    let parts = pattern.split('/').filter(|part| !part.is_empty() && *part != ".");
    let mut found = parts.fold(vec![start], |found, part| {
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
                (!name.starts_with('.') || part.starts_with('.')) && matches(part, &name)
            };
            let mut names: Vec<OsString> = names.filter(is_meant).collect();
            names.sort();
            next.extend(names.into_iter().map(|name| directory.join(name)));
        }
        next
    });
    found.retain(|path| !is_submission(path));
    found
}

/// True for the directory of an earlier submission: its `job.sh` has secrets.
fn is_submission(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let time = name.rsplit_once('_').map_or("", |(_, time)| time);
    time.len() == 14 && time.bytes().all(|byte| byte.is_ascii_digit()) && path.join(JOB).is_file()
}

/// Adds a file, or a directory with all that is in it. Links to directories below it stay links: they may lead back.
fn walk(from: PathBuf, to: PathBuf, is_top: bool, copies: &mut Vec<Copy>) -> Result<(), (PathBuf, io::Error)> {
    let at = |error: io::Error| (from.clone(), error);
    let about = fs::metadata(&from).map_err(at)?;
    if !about.is_dir() {
        if !about.is_file() {
            return Err(at(io::Error::other("it is neither a file nor a directory")));
        }
        copies.push(Copy { from, to, kind: Kind::File });
        return Ok(());
    }
    if !is_top && from.is_symlink() {
        let target = fs::read_link(&from).map_err(at)?;
        copies.push(Copy { from, to, kind: Kind::Link(target) });
        return Ok(());
    }
    let entries = fs::read_dir(&from).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(at)?;
    let mut names: Vec<OsString> = entries.into_iter().map(|entry| entry.file_name()).collect();
    names.sort();
    copies.push(Copy { from: from.clone(), to: to.clone(), kind: Kind::Directory });
    for name in names {
        let path = from.join(&name);
        if !is_submission(&path) {
            walk(path, to.join(&name), false, copies)?;
        }
    }
    Ok(())
}

/// Makes the directory, which only its owner can read: `job.sh` and `config.ini` have secrets.
fn write(cloud: &Cloud, copies: &[Copy], folder: &Path) -> Result<(), Diagnostic> {
    DirBuilder::new().mode(0o700).create(folder).map_err(|error| failed("written", folder, &error))?;
    for Copy { from, to, kind } in copies {
        let to = folder.join(to);
        match kind {
            Kind::Directory => fs::create_dir(&to),
            Kind::Link(target) => symlink(target, &to),
            Kind::File => {
                File::open(from).map_err(|error| failed("read", from, &error))?;
                fs::copy(from, &to).map(drop)
            }
        }
        .map_err(|error| failed("written", &to, &error))?;
    }
    for file in &cloud.files {
        let path = folder.join(file.name);
        let mode = if Path::new(file.name).extension() == Some(OsStr::new("sh")) { 0o700 } else { 0o600 };
        let open = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path);
        let written = open.and_then(|mut open| open.write_all(file.text.as_bytes()));
        written.map_err(|error| failed("written", &path, &error))?;
    }
    Ok(())
}
