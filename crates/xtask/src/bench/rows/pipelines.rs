//! Pipelines of steps that do nothing: the time of all of them, the memory that finished ones take, and plans.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::idle::own_memory;
use super::{Setting, documents};
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};
use crate::bench::peers::Peer;
use crate::bench::verdict::UMIAK;

/// Something that runs commands, two at a time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    Umiak(PathBuf),
    Ninja,
    Make,
}

impl Tool {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Umiak(_) => UMIAK,
            Self::Ninja => "ninja -j 2",
            Self::Make => "make -j 2",
        }
    }

    /// Runs this many steps. Each of them is `sh -c true`; `make` needs the semicolon: without it, it runs
    /// `true` without a shell.
    fn command(&self, directory: &Path, steps: u32) -> anyhow::Result<Command> {
        let names = |word: &str| (0..steps).fold(String::new(), |all, step| all + word + &step.to_string());
        let mut command = match self {
            Self::Umiak(program) => return documents::run(program, directory, &document(steps)),
            Self::Ninja => {
                let mut text = "rule step\n  command = true\n".to_owned();
                for step in 0..steps {
                    let _ = writeln!(text, "build step{step}: step");
                }
                fs::write(directory.join("build.ninja"), text)?;
                Command::new("ninja")
            }
            Self::Make => {
                let mut text = format!(".PHONY: all{0}\nall:{0}\n", names(" step"));
                for step in 0..steps {
                    let _ = writeln!(text, "step{step}:\n\t@true;");
                }
                fs::write(directory.join("Makefile"), text)?;
                Command::new("make")
            }
        };
        command.args(["-j", "2"]).current_dir(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }
}

fn document(steps: u32) -> String {
    let mut text = "name: many\nparallelism: 2\nentry_points:\n".to_owned();
    for step in 0..steps {
        let _ = writeln!(text, "  step{step}: {{command: 'true'}}");
    }
    text
}

/// From before the start until everything is gone.
pub(crate) fn run(setting: &Setting, tool: &Tool, steps: u32) -> anyhow::Result<Result<Sample, String>> {
    let mut command = tool.command(&setting.directory()?, steps)?;
    let running = Running::start(&mut command, setting.limit)?;
    let began = running.began;
    let ended = running.end()?;
    Ok(match ended.trouble(setting.limit, |code| code == 0) {
        Some(trouble) => Err(trouble),
        None => Ok(Sample::new(Metric::Steps, millis(began, ended.gone), ended.cpu_ms)),
    })
}

/// The memory of our processes while the last step waits, less that while the first one did, per step in between.
pub(crate) fn memory(setting: &Setting, peer: &Peer, steps: u32) -> anyhow::Result<Result<Sample, String>> {
    let directory = setting.directory()?;
    let text = document(steps).replace("entry_points:\n", &format!("entry_points:\n  first: {{command: {GATE}}}\n"));
    let text = text.replace(": {command: 'true'}", ": {deps: first, command: 'true'}");
    let all: Vec<String> = (0..steps).map(|step| format!("step{step}")).collect();
    let text = format!("{text}  last: {{deps: '{}', command: {GATE}}}\n", all.join(","));
    let mut command = documents::run(peer.program(), &directory, &text)?;
    let ends = ["first", "last"];
    let gate = |step| directory.join(format!("go-{step}"));
    for step in ends {
        mkfifo(&gate(step), Mode::S_IRWXU)?;
    }
    let running = Running::start(&mut command, setting.limit)?;
    let mut bytes = Vec::new();
    for step in ends {
        let here = directory.join(format!("here-{step}"));
        while !here.exists() {
            if !Path::new(&format!("/proc/{}/task", running.pid)).exists() {
                let trouble = running.end()?.trouble(setting.limit, |_| false);
                return Ok(Err(trouble.unwrap_or_default()));
            }
            std::thread::sleep(SETTLE / 10);
        }
        std::thread::sleep(SETTLE);
        let rank: u32 = fs::read_to_string(&here)?.trim().parse().context("no process id")?;
        bytes.push(own_memory(running.pid, &[rank]));
        fs::write(gate(step), "")?;
    }
    let ended = running.end()?;
    if let Some(trouble) = ended.trouble(setting.limit, |code| code == 0) {
        return Ok(Err(trouble));
    }
    let each = (bytes[1] - bytes[0]) / f64::from(steps);
    Ok(Ok(Sample { cpu_ms: None, ..Sample::new(Metric::StepMemory, each, 0.0) }))
}

/// Says that it is there, and waits until it may go.
const GATE: &str = "'echo $$ > here.$$; mv here.$$ here-$UMIAK_STEP; read go < go-$UMIAK_STEP || true'";
const SETTLE: Duration = Duration::from_millis(500);

/// `umiak plan` of a document, without printing it.
pub(crate) fn plan(setting: &Setting, peer: &Peer, file: &Path) -> anyhow::Result<Result<Sample, String>> {
    let mut command = Command::new(peer.program());
    command.arg("plan").arg(file).args(["--output", "quiet"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running::start(&mut command, setting.limit)?;
    let began = running.began;
    let ended = running.end()?;
    Ok(match ended.trouble(setting.limit, |code| code == 0) {
        Some(trouble) => Err(trouble),
        None => Ok(Sample { cpu_ms: None, ..Sample::new(Metric::Planning, millis(began, ended.gone), 0.0) }),
    })
}
