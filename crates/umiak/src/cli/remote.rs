//! `umiak rsh` and `umiak rshd`: the remote shell of jobs under `mpirun`. Each worker is run by `rshd`; the launcher's
//! `rsh`, a script in the directory of its attempt, calls the first one as it would call ssh.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use umiak_core::contract::mpi::worker_dir;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::model::Host;
use umiak_sys::remote;

use super::fail;

/// Workers start together with the launcher.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of ssh, if there is no connection.
const NO_CONNECTION: u8 = 255;
/// Options of ssh that have a value.
const WITH_VALUE: &[u8] = b"BbcDEeFIiJLlmOopQRSWw";

#[derive(Debug, Args)]
pub(super) struct Rsh {
    /// The hosts that can be reached
    #[arg(long)]
    hosts: PathBuf,
    /// The directory of the workers' sockets
    #[arg(long)]
    sockets: PathBuf,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
    words: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(super) struct Rshd {
    /// The directory of the socket
    #[arg(long)]
    sockets: PathBuf,
    /// The name of this host
    #[arg(long)]
    host: Host,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    words: Vec<OsString>,
}

/// Runs a command on a worker. The exit code is that of the command.
pub(super) fn rsh(arguments: &Rsh) -> ExitCode {
    let Some((host, line)) = called(&arguments.words) else {
        let error = Diagnostic::error(Code::L0001, "a host and a command are expected: `rsh HOST COMMAND…`");
        return failed(&[error]);
    };
    let hosts = std::fs::read_to_string(&arguments.hosts).unwrap_or_default();
    let known: Vec<&str> = hosts.lines().filter_map(|line| line.split(' ').next()).collect();
    if !known.contains(&host.as_str()) {
        let error = Diagnostic::error(Code::L0001, format!("no worker of this job has the address `{host}`"));
        return failed(&[error.row("workers", known.join(", "))]);
    }
    match remote::run(&arguments.sockets, &host, line.as_bytes(), PATIENCE) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(NO_CONNECTION)),
        Err(error) => failed(&[Diagnostic::failed(&format!("run a command on worker {host}"), &error)]),
    }
}

fn failed(errors: &[Diagnostic]) -> ExitCode {
    fail(errors);
    ExitCode::from(NO_CONNECTION)
}

/// The host and the line for its shell, from the arguments of ssh. Options are ignored: they are about the connection.
fn called(words: &[OsString]) -> Option<(String, OsString)> {
    let mut words = words.iter();
    let host = loop {
        let word = words.next()?;
        match word.as_bytes() {
            [b'-', b'-'] => break words.next()?,
            [b'-', letters @ ..] if !letters.is_empty() => {
                // The value is the rest of the word, or the next one.
                let at = letters.iter().position(|letter| WITH_VALUE.contains(letter));
                if at == Some(letters.len() - 1) {
                    words.next()?;
                }
            }
            _ => break word,
        }
    };
    let host = host.to_string_lossy();
    let host = host.rsplit_once('@').map_or(&*host, |(_, host)| host).to_owned();
    let line: Vec<&[u8]> = words.map(|word| word.as_bytes()).collect();
    (!line.is_empty()).then(|| (host, OsString::from_vec(line.join(&b' '))))
}

/// Runs a worker: its own command, and those of the launcher until it is stopped. It ends by itself only if its own
/// command fails.
pub(super) fn rshd(arguments: &Rshd) -> ExitCode {
    let Rshd { sockets, host, words } = arguments;
    if let Err(error) = umiak_sys::files::make_directory(&worker_dir(sockets, host)) {
        return fail(&[Diagnostic::failed("create a directory for shared memory", &error)]);
    }
    let (directory, name) = (sockets.clone(), host.to_string());
    let server = std::thread::spawn(move || remote::serve(&directory, &name));
    match own(&words[0], &words[1..]) {
        Ok(0) => {}
        Ok(code) => return ExitCode::from(u8::try_from(code).unwrap_or(NO_CONNECTION)),
        Err(error) => return fail(&[Diagnostic::failed("run the program", &error)]),
    }
    match server.join() {
        Ok(Err(error)) => fail(&[Diagnostic::failed("accept commands of the launcher", &error)]),
        _ => ExitCode::FAILURE,
    }
}

fn own(program: &OsStr, words: &[OsString]) -> std::io::Result<i32> {
    Command::new(Path::new(program)).args(words).status().map(remote::code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn called_as_launchers_call_ssh() {
        for (words, expected) in [
            (&["127.1.0.1", "orted -x \"a b\""][..], Some(("127.1.0.1", "orted -x \"a b\""))),
            (&["-x", "h", "a", "b c"], Some(("h", "a b c"))),
            (&["-o", "A=b", "-p22", "-qTl", "me", "you@h", "a"], Some(("h", "a"))),
            (&["--", "h", "-a"], Some(("h", "-a"))),
            (&["h"], None),
            (&["-x"], None),
        ] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let seen = called(&words).map(|(host, line)| (host, line.into_string().unwrap()));
            assert_eq!(seen, expected.map(|(host, line)| (host.to_owned(), line.to_owned())), "{words:?}");
        }
    }
}
