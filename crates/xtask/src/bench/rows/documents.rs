//! A job from a document: one command per replica, and the first line of a single one.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Setting;
use super::first_line::{bare, until_line};
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};
use crate::bench::peers::{Kind, Output, Peer};

const LINE: &str = "the first line";

/// From before the start of the runner until everything is gone.
pub(crate) fn measure(setting: &Setting, peer: &Peer, replicas: u32) -> anyhow::Result<Result<Sample, String>> {
    let mut command = command(peer, replicas, &setting.directory()?, &["/bin/true"])?;
    let running = Running::start(&mut command, setting.limit)?;
    let began = running.began;
    let ended = running.end()?;
    Ok(match ended.trouble(setting.limit, |code| code == 0) {
        Some(trouble) => Err(trouble),
        None => Ok(Sample::new(Metric::Replicas, millis(began, ended.gone), ended.cpu_ms)),
    })
}

/// The command itself without a peer.
pub(crate) fn line(setting: &Setting, peer: Option<&Peer>) -> anyhow::Result<Result<Sample, String>> {
    let directory = setting.directory()?;
    let command = match peer {
        Some(peer) => command(peer, 1, &directory, &["/bin/echo", LINE])?,
        None => bare(LINE),
    };
    let line = until_line(setting, vec![command], LINE)?;
    Ok(line.map(|line| Sample { cpu_ms: None, ..Sample::new(Metric::RunLine, line.millis, 0.0) }))
}

/// Umiak from a document; the floors as for ranks; torchx from its own component.
fn command(peer: &Peer, replicas: u32, directory: &Path, words: &[&str]) -> anyhow::Result<Command> {
    let argv: Vec<_> = words.iter().map(Into::into).collect();
    Ok(match peer.kind {
        Kind::Umiak => {
            let words = serde_json::to_string(words)?;
            let document = format!("umiak: v1\nroles:\n  one: {{replicas: {replicas}, command: {words}}}\n");
            run(peer.program(), directory, &document)?
        }
        Kind::Torchx => {
            // It shows the output of replicas on stderr.
            let inner = peer.command(replicas, directory, Output::Usual, &argv);
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(inner.get_program()).args(inner.get_args());
            shell.current_dir(directory).env("TMPDIR", directory);
            shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            shell
        }
        _ => peer.command(replicas, directory, Output::Usual, &argv),
    })
}

/// `umiak run` of a document, with its home in the same directory.
pub(super) fn run(umiak: &Path, directory: &Path, document: &str) -> anyhow::Result<Command> {
    let file = directory.join("job.yaml");
    std::fs::write(&file, document)?;
    let mut command = Command::new(umiak);
    command.arg("run").arg(file).current_dir(directory).env("TMPDIR", directory);
    command.env("UMIAK_HOME", directory.join("home")).env("OMP_NUM_THREADS", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}
