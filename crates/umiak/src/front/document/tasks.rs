//! The directory of an attempt: its command, environment and exit. `./command` runs it again by hand.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use serde::Serialize;
use umiak_core::contract::{Variable, mpi};
use umiak_core::facts::Usage;
use umiak_core::mask::{self, Known};
use umiak_core::model::Exit;
use umiak_core::plan::{Process, Remote};

/// The first line of `env`. It reads the variables of all replicas, which [`environment`] writes once to the run's
/// directory, three levels up (`tasks/trainer-0/attempt-1`). `$0` is `command`.
const COMMON: &str = ". \"$(dirname \"$0\")/../../../common.env\"\n";

/// A directory with more entries is not linked: it is not one for a job.
const MAX_LINKS: usize = 10_000;

/// Makes the directory, with `command` and `env`. Attempt numbers are unique, so it is empty. `common` are the variables
/// of all replicas of a step; those of a run's only job are in a file of their own.
pub(in crate::front) fn make(
    dir: &Path,
    process: &Process,
    common: Option<&[Variable]>,
    known: &Known,
) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let common = common.map_or_else(|| COMMON.to_owned(), |common| environment(common, known));
    write(&dir.join("env"), 0o600, (common + &environment(&process.env, known)).as_bytes())?;
    write(&dir.join("command"), 0o700, command(process, known).as_bytes())?;
    if let Some(Remote::Launcher { sockets, slots }) = &process.remote {
        for (name, hosts) in mpi::host_files(slots) {
            write(&dir.join(name), 0o600, hosts.as_bytes())?;
        }
        write(&dir.join(mpi::REMOTE_SHELL), 0o700, remote_shell(dir, sockets).as_bytes())?;
    }
    match (&process.dir, &process.linked) {
        (Some(own), Some(linked)) => link(own, linked),
        _ => Ok(()),
    }
}

/// Makes a working directory with links to the entries of another.
fn link(own: &Path, linked: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(own)?;
    for (count, entry) in std::fs::read_dir(linked)?.enumerate() {
        if count == MAX_LINKS {
            return Err(io::Error::other(format!("`{}` has more than {MAX_LINKS} entries", linked.display())));
        }
        let entry = entry?;
        symlink(entry.path(), own.join(entry.file_name()))?;
    }
    Ok(())
}

fn write(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(bytes)
}

/// The script that a launcher calls as it would call ssh. Open MPI and Hydra accept a path without arguments.
fn remote_shell(dir: &Path, sockets: &Path) -> String {
    let umiak = std::env::current_exe().unwrap_or_else(|_| "umiak".into());
    let [umiak, hosts, sockets] =
        [&umiak, &dir.join(mpi::HOST_FILE), sockets].map(|path: &Path| quoted(&path.to_string_lossy()));
    format!(
        "#!/bin/sh\n# Runs a command on a worker of this job: rsh HOST COMMAND...\nexec {umiak} rsh --hosts {hosts} --sockets {sockets} -- \"$@\"\n"
    )
}

/// Variables in shell syntax. Secrets are not written: set them before running the command by hand.
pub(super) fn environment(variables: &[(String, String)], known: &Known) -> String {
    let mut text = String::new();
    for (name, value) in variables {
        if mask::is_secret(name) || known.masked(name, value) != *value {
            let _ = writeln!(text, "# {name} is a secret: set it before running");
        } else if is_plain_name(name) {
            let _ = writeln!(text, "export {name}={}", quoted(value));
        }
    }
    text
}

fn command(process: &Process, known: &Known) -> String {
    let mut is_whole = true;
    let mut shown = |text: &str| {
        let masked = known.masked("", text);
        is_whole &= masked == text;
        quoted(&masked)
    };
    let dir = shown(&process.dir.as_deref().unwrap_or(Path::new(".")).to_string_lossy());
    let mut line = "exec ".to_owned();
    if !process.mounts.is_empty() {
        line += &mounted(process, &mut shown);
    }
    line += &shown(&process.program.to_string_lossy());
    let words = known.words(&process.argv);
    for word in words.iter().skip(1) {
        line += " ";
        line += &quoted(&word.to_string_lossy());
    }
    let is_whole = is_whole && words == process.argv;
    let note = if is_whole {
        String::new()
    } else {
        format!("# `{}` replaces a secret: put it back before running this.\n", mask::MASK)
    };
    // A directory of a mount is entered there.
    let enter = if process.mounts.is_empty() { format!("cd {dir} || exit\n") } else { String::new() };
    format!(
        "#!/bin/sh\n# The command of this attempt. Its variables are added to those of the submitter.\n{note}. \"$(dirname \"$0\")/env\"\n{enter}{line}\n"
    )
}

/// The words that run a program with the mounts of an attempt, in its directory.
fn mounted(process: &Process, shown: &mut impl FnMut(&str) -> String) -> String {
    let umiak = std::env::current_exe().unwrap_or_else(|_| "umiak".into());
    let mut words = format!("{} mounted", shown(&umiak.to_string_lossy()));
    if let Some(dir) = &process.dir {
        let _ = write!(words, " --dir {}", shown(&dir.to_string_lossy()));
    }
    for mount in &process.mounts {
        let flag = if mount.read_only { "--read-only" } else { "--bind" };
        let [dir, path] = [&mount.dir, &mount.path].map(|path| shown(&path.to_string_lossy()));
        let _ = write!(words, " {flag} {dir} {path}");
    }
    words + " -- "
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// In single quotes, unless no character is special in a shell.
fn quoted(text: &str) -> String {
    let harmless = |letter: char| letter.is_ascii_alphanumeric() || "_-./:=,@%+".contains(letter);
    if !text.is_empty() && text.chars().all(harmless) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// `exit.json`.
#[derive(Debug, Serialize)]
pub(super) struct EndRecord<'a> {
    pub(super) v: u32,
    pub(super) replica: &'a str,
    pub(super) attempt: u32,
    pub(super) exit: &'a Exit,
    pub(super) by_us: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Usage>,
}

/// The path of `exit.json`, and its text.
pub(super) fn end_file(dir: &Path, end: &EndRecord<'_>) -> Option<(PathBuf, String)> {
    let text = serde_json::to_string(end).ok()?;
    Some((dir.join("exit.json"), text + "\n"))
}

/// Writes it. Errors are ignored: the journal records the end too.
pub(super) fn write_end(path: &Path, text: &str) {
    let _ = write(path, 0o644, text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use umiak_core::plan::Log;

    use super::*;

    #[test]
    fn words_survive_the_shell() {
        for (text, expected) in [("train.py", "train.py"), ("a b", "'a b'"), ("it's", "'it'\\''s'"), ("", "''")] {
            assert_eq!(quoted(text), expected);
        }
    }

    fn process(dir: &Path) -> Process {
        Process {
            program: PathBuf::new(),
            argv: Vec::new(),
            is_secret: false,
            env: Vec::new(),
            dir: Some("/".into()),
            linked: None,
            log: Log::new(dir.join("log")),
            error_file: dir.join("error.json"),
            inherit_stdin: false,
            cpus: Vec::new(),
            memory: None,
            mounts: Vec::new(),
            remote: None,
        }
    }

    #[test]
    fn a_command_can_be_run_by_hand() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("tasks/w-0/attempt-1");
        let process = Process {
            program: "/bin/sh".into(),
            argv: vec!["sh".into(), "-c".into(), "echo \"$A $B\" it\\'s; pwd".into()],
            env: vec![("A".into(), "1 'two'".into()), ("DB_PASSWORD".into(), "hidden".into())],
            ..process(&dir)
        };
        let known = Known::default();
        let common = environment(&[("A".into(), "common".into()), ("B".into(), "x\ny".into())], &known);
        fs::write(root.path().join("common.env"), common).unwrap();
        make(&dir, &process, None, &known).unwrap();
        let by_path = std::process::Command::new(dir.join("command")).output().unwrap();
        let beside = std::process::Command::new("./command").current_dir(&dir).output().unwrap();
        let by_shell = std::process::Command::new("sh").arg("command").current_dir(&dir).output().unwrap();
        for output in [by_path, beside, by_shell] {
            assert_eq!(String::from_utf8_lossy(&output.stdout), "1 'two' x\ny it's\n/\n");
        }
        assert!(!fs::read_to_string(dir.join("env")).unwrap().contains("hidden"));
        assert!(!fs::read_to_string(dir.join("command")).unwrap().contains("secret"));
    }

    #[test]
    fn secrets_are_in_no_file() {
        let root = tempfile::tempdir().unwrap();
        let process = Process {
            program: "/bin/echo".into(),
            argv: vec!["echo".into(), "--token=abc".into(), "redis://:pw@host".into()],
            env: vec![("HEADER".into(), "Bearer abc".into())],
            ..process(root.path())
        };
        let mut known = Known::default();
        known.add("abc");
        make(root.path(), &process, None, &known).unwrap();
        let read = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        let (command, env) = (read("command"), read("env"));
        assert!(command.ends_with("exec /bin/echo '--token=********' 'redis://:********@host'\n"), "{command}");
        assert!(command.contains("\n# `********` replaces a secret"), "{command}");
        assert!(env.contains("# HEADER is a secret: set it before running\n"), "{env}");
        assert!(!env.contains("abc"), "{env}");
    }
}
