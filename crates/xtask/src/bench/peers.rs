//! The launchers that are measured: umiak, other installed launchers, and floors.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use super::floor::RANK_VARIABLES;
use super::model::title;

/// Executes a command in its place, for a launcher that only starts Python scripts.
const EXECUTE: &str = "import os, sys\nos.execv(sys.argv[1], sys.argv[1:])\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Fork,
    Spawn,
    Umiak,
    Mpirun,
    Torchrun,
    Paddle,
    Fleet,
    Torchx,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] =
        [Self::Fork, Self::Spawn, Self::Umiak, Self::Mpirun, Self::Torchrun, Self::Paddle, Self::Fleet, Self::Torchx];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork + exec",
            Self::Spawn => "posix_spawn",
            Self::Umiak => super::verdict::UMIAK,
            Self::Mpirun => "mpirun",
            Self::Torchrun => "torchrun",
            Self::Paddle => "paddle.distributed.launch",
            Self::Fleet => "fleet.launch",
            Self::Torchx => "torchx",
        }
    }

    pub(crate) fn is_floor(self) -> bool {
        matches!(self, Self::Fork | Self::Spawn)
    }

    /// True for a program that runs jobs instead of launching ranks.
    pub(crate) fn is_runner(self) -> bool {
        self == Self::Torchx
    }

    /// True for those in a requirement: the floors and umiak.
    pub(crate) fn is_compared(self) -> bool {
        self.is_floor() || self == Self::Umiak
    }
}

/// Where the output of a rank goes. Umiak and Paddle always do both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// The launcher's default.
    Usual,
    /// To a file and to the launcher's stdout.
    Both,
}

/// An installed launcher.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) kind: Kind,
    program: PathBuf,
    pub(crate) version: String,
    /// True for the binary of `--against`.
    pub(crate) is_old: bool,
}

/// Finds the installed launchers, and the missing ones.
pub(crate) fn find(umiak: &Path, floor: &Path, version: &str) -> (Vec<Peer>, Vec<Kind>) {
    let environment = environment("UMIAK_E2E_VENV", "e2e");
    let python = environment.as_ref().map(|directory| directory.join("bin/python"));
    let package = |name: &str| environment.as_deref().and_then(|directory| distribution(directory, name));
    let mut absent = Vec::new();
    let peers = Kind::ALL
        .into_iter()
        .filter_map(|kind| {
            let found = match kind {
                Kind::Fork | Kind::Spawn => Some((floor.to_owned(), String::new())),
                Kind::Umiak => Some((umiak.to_owned(), version.to_owned())),
                Kind::Mpirun => on_path("mpirun").map(|path| (path.clone(), mpi_version(&path))),
                Kind::Torchrun => python.clone().zip(package("torch")),
                Kind::Paddle | Kind::Fleet => python.clone().zip(package("paddlepaddle")),
                Kind::Torchx => python.clone().zip(package("torchx")).or_else(torchx),
            };
            if found.is_none() {
                absent.push(kind);
            }
            found.map(|(program, version)| Peer { kind, program, version, is_old: false })
        })
        .collect();
    (peers, absent)
}

impl Peer {
    /// Another umiak, measured beside the one that is built.
    pub(crate) fn old(umiak: &Path) -> anyhow::Result<Self> {
        let said = Command::new(umiak).arg("--version").output();
        let said = said.with_context(|| format!("`{}` cannot be started", umiak.display()))?;
        ensure!(said.status.success(), "`{}` is not an umiak binary", umiak.display());
        let version = last_word(&said.stdout);
        Ok(Self { kind: Kind::Umiak, program: std::path::absolute(umiak)?, version, is_old: true })
    }

    /// The launcher, or the Python that runs it.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn title(&self) -> String {
        format!("{} {}", title(self.kind.name(), self.is_old), self.version).trim_end().to_owned()
    }

    /// The command that starts `ranks` × `command`, with the launcher's files in `directory`.
    pub(crate) fn command(&self, ranks: u32, directory: &Path, output: Output, command: &[OsString]) -> Command {
        self.command_with(&[], ranks, directory, output, command)
    }

    /// The same with additional flags of the launcher.
    pub(crate) fn command_with(
        &self,
        flags: &[String],
        ranks: u32,
        directory: &Path,
        output: Output,
        command: &[OsString],
    ) -> Command {
        let logs = directory.join("log");
        let mut launcher = Command::new(&self.program);
        let (count, ranks) = (ranks, ranks.to_string());
        match self.kind {
            Kind::Fork => launcher.args([super::floor::WORD, "fork", &ranks]),
            Kind::Spawn => launcher.args([super::floor::WORD, "spawn", &ranks]),
            Kind::Umiak => launcher.args(["launch", "--nproc_per_node", &ranks, "--log_dir"]).arg(logs),
            Kind::Mpirun => {
                launcher.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks]);
                match output {
                    Output::Usual => &mut launcher,
                    Output::Both => launcher.arg("--output-filename").arg(logs),
                }
            }
            Kind::Torchrun => {
                launcher.args(["-m", "torch.distributed.run", "--nproc-per-node", &ranks]);
                if output == Output::Both {
                    launcher.args(["--tee", "3", "--log-dir"]).arg(logs);
                }
                launcher.arg("--no-python")
            }
            Kind::Paddle => {
                launcher.args(["-m", "paddle.distributed.launch", "--nproc_per_node", &ranks, "--log_dir"]).arg(logs)
            }
            Kind::Torchx => {
                launcher.args(["-m", "torchx.cli.main", "run", "-s", "local_cwd", "utils.sh", "--num_replicas", &ranks])
            }
            Kind::Fleet => {
                let script = directory.join("execute.py");
                let _ = std::fs::write(&script, EXECUTE);
                launcher
                    .args(["-m", "paddle.distributed.fleet.launch", "--nproc_per_node", &ranks, "--log_dir"])
                    .arg(logs)
                    .arg(script)
            }
        };
        launcher.args(flags);
        for name in RANK_VARIABLES {
            launcher.env_remove(name);
        }
        if self.kind.is_floor() {
            launcher.envs(same_environment(count));
        }
        launcher.args(command).current_dir(directory).env("TMPDIR", directory).env("OMP_NUM_THREADS", "1");
        launcher.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        launcher
    }

    /// The file with the output of a single rank, if its format can be compared.
    pub(crate) fn log(&self, directory: &Path) -> Option<PathBuf> {
        match self.kind {
            Kind::Umiak | Kind::Paddle | Kind::Fleet => Some(directory.join("log/workerlog.0")),
            Kind::Mpirun => Some(directory.join("log/1/rank.0/stdout")),
            Kind::Torchrun | Kind::Torchx | Kind::Fork | Kind::Spawn => None,
        }
    }
}

/// As many and as long variables as umiak sets for each rank: executing a program copies its environment, and the lists
/// of endpoints and devices grow with the number of ranks.
fn same_environment(ranks: u32) -> Vec<(String, String)> {
    let list = |of: &dyn Fn(u32) -> String| (0..ranks).map(of).collect::<Vec<_>>().join(",");
    let mut variables = vec![
        ("PADDLE_TRAINER_ENDPOINTS".to_owned(), list(&|rank| format!("127.0.0.1:{}", 10_000 + rank))),
        ("PADDLE_WORLD_DEVICE_IDS".to_owned(), list(&|_| String::new())),
    ];
    variables.extend((0..36).map(|number| (format!("FLOOR_VARIABLE_{number:02}"), "/tmp/a-usual-value".to_owned())));
    variables
}

/// The virtual environment of the tests with real frameworks, or another one beside it.
fn environment(name: &str, usual: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let directory = variable(name)
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("umiak").join(usual)))
        .or_else(|| Some(variable("HOME")?.join(".cache/umiak").join(usual)))?;
    directory.join("bin/python").exists().then_some(directory)
}

/// Torchx without the frameworks, in an environment of its own.
fn torchx() -> Option<(PathBuf, String)> {
    let directory = environment("UMIAK_TORCHX_VENV", "torchx")?;
    Some((directory.join("bin/python"), distribution(&directory, "torchx")?))
}

fn distribution(environment: &Path, name: &str) -> Option<String> {
    let prefix = format!("{name}-");
    std::fs::read_dir(environment.join("lib")).ok()?.flatten().find_map(|python| {
        std::fs::read_dir(python.path().join("site-packages")).ok()?.flatten().find_map(|package| {
            let file = package.file_name().into_string().ok()?;
            Some(file.strip_prefix(&prefix)?.strip_suffix(".dist-info")?.to_owned())
        })
    })
}

pub(crate) fn on_path(program: impl AsRef<OsStr>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program.as_ref())).find(|file| file.is_file())
}

fn mpi_version(mpirun: &Path) -> String {
    let said = Command::new(mpirun).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    last_word(&said)
}

/// The last word of the first line.
fn last_word(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    text.lines().next().and_then(|line| line.split_whitespace().last()).unwrap_or_default().to_owned()
}
