//! N sleeping ranks, one of which exits with 7: until all ranks of the next attempt have begun. The floor starts N ranks, and
//! stops nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use umiak_testkit::floor::monotonic_nanos;

use super::Setting;
use crate::bench::floor::{FAILURE, WORD};
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};

/// Who starts the ranks.
#[derive(Debug)]
pub(crate) enum Restarter {
    /// A launcher with torchrun's flags.
    Launcher(Vec<std::ffi::OsString>),
    /// Fork and exec.
    Floor,
}

pub(crate) fn measure(setting: &Setting, who: &Restarter, ranks: u32) -> anyhow::Result<Result<Sample, String>> {
    let directory = setting.directory()?;
    let rank = [setting.floor.as_os_str(), WORD.as_ref(), "restart-rank".as_ref(), directory.as_os_str()];
    let number = ranks.to_string();
    let (mut command, attempt) = match who {
        Restarter::Launcher(words) => {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).args(["--nproc-per-node", &number, "--max-restarts", "1", "--no-python"]);
            (command, 1)
        }
        Restarter::Floor => {
            let mut command = Command::new(&setting.floor);
            command.args([WORD, "fork", &number]).env("TORCHELASTIC_RESTART_COUNT", "1");
            (command, 1)
        }
    };
    command.args(rank).arg(&number).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running::start(&mut command, setting.limit)?;
    let began = running.began;
    let ended = running.end()?;
    if let Some(trouble) = ended.trouble(setting.limit, |code| code == 0) {
        return Ok(Err(trouble));
    }
    let from = match who {
        Restarter::Launcher(_) => stamp(&directory.join("failed"))?,
        Restarter::Floor => began,
    };
    let stamps: Vec<u64> =
        (0..ranks).map(|rank| stamp(&stamp_file(&directory, attempt, rank))).collect::<anyhow::Result<_>>()?;
    let last = stamps.into_iter().max().context("there are ranks")?;
    Ok(Ok(Sample { cpu_ms: None, ..Sample::new(Metric::Restart, millis(from, last), 0.0) }))
}

fn stamp_file(directory: &Path, attempt: u32, rank: u32) -> std::path::PathBuf {
    directory.join(format!("{attempt}.{rank}"))
}

fn stamp(path: &Path) -> anyhow::Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("{} is missing", path.display()))?;
    Ok(text.parse()?)
}

/// One rank: the first attempt waits until all have begun, and the last of them fails; the second ends at once.
pub(crate) fn be_rank(directory: &Path, ranks: u32) -> anyhow::Result<ExitCode> {
    let variable = |name: &str| -> anyhow::Result<u32> {
        Ok(std::env::var(name).with_context(|| format!("{name} is not set"))?.parse()?)
    };
    let (rank, attempt) = (variable("RANK")?, variable("TORCHELASTIC_RESTART_COUNT")?);
    fs::write(stamp_file(directory, attempt, rank), monotonic_nanos().to_string())?;
    if attempt > 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if rank + 1 != ranks {
        std::thread::sleep(Duration::from_secs(600));
        return Ok(ExitCode::SUCCESS);
    }
    while !(0..ranks).all(|rank| stamp_file(directory, 0, rank).exists()) {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(300));
    fs::write(directory.join("failed"), monotonic_nanos().to_string())?;
    Ok(ExitCode::from(FAILURE))
}
