//! The first line of one command, through a launcher and directly.

use std::io::Read as _;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use umiak_testkit::floor::monotonic_nanos;

use super::Setting;
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};
use crate::bench::peers::{Output, Peer};

const PROGRAM: &str = "/bin/echo";
const LINE: &str = "the first line";

/// The command itself without a peer.
pub(crate) fn measure(setting: &Setting, peer: Option<&Peer>) -> anyhow::Result<Result<Sample, String>> {
    let directory = setting.directory()?;
    let command = if let Some(peer) = peer {
        peer.command(1, &directory, Output::Usual, &[PROGRAM.into(), LINE.into()])
    } else {
        bare(LINE)
    };
    let line = until_line(setting, vec![command], LINE)?;
    Ok(line.map(|line| Sample { cpu_ms: None, ..Sample::new(Metric::FirstLine, line.millis, 0.0) }))
}

/// The command without a launcher.
pub(crate) fn bare(line: &str) -> Command {
    let mut bare = Command::new(PROGRAM);
    bare.arg(line).stdin(Stdio::null()).stderr(Stdio::null());
    bare
}

/// A line that arrived, from commands that succeeded.
#[derive(Debug)]
pub(crate) struct Line {
    /// From the start until it was read.
    pub(crate) millis: f64,
    /// User and system time of everything until its end.
    pub(crate) cpu_ms: f64,
}

/// Starts all of these and reads the stdout of the first to its end; the inner `Err` says why `line` does not count.
pub(crate) fn until_line(
    setting: &Setting,
    mut commands: Vec<Command>,
    line: &str,
) -> anyhow::Result<Result<Line, String>> {
    let (mut reader, writer) = std::io::pipe()?;
    commands.first_mut().context("nothing to start")?.stdout(writer);
    let running = Running::start_all(&mut commands, setting.limit)?;
    // Drops our write end of the pipe; otherwise the read would never end.
    drop(commands);
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    let mut came = None;
    loop {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        said.extend_from_slice(&buffer[..count]);
        if came.is_none() && contains(&said, line.as_bytes()) {
            came = Some(monotonic_nanos());
        }
    }
    let began = running.began;
    let ended = running.end()?;
    Ok(match (ended.trouble(setting.limit, |code| code == 0), came) {
        (Some(trouble), _) => Err(trouble),
        (None, None) => Err("the line did not arrive".to_owned()),
        (None, Some(came)) => Ok(Line { millis: millis(began, came), cpu_ms: ended.cpu_ms }),
    })
}

fn contains(text: &[u8], line: &[u8]) -> bool {
    text.windows(line.len()).any(|window| window == line)
}
