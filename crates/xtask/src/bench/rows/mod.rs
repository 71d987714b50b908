//! The rows that are measured, one module each.

pub(crate) mod agents;
pub(crate) mod cluster;
pub(crate) mod crash;
pub(crate) mod documents;
pub(crate) mod elastic;
pub(crate) mod first_line;
pub(crate) mod idle;
pub(crate) mod log;
pub(crate) mod nodes;
pub(crate) mod pipelines;
pub(crate) mod recorded;
pub(crate) mod restart;
pub(crate) mod start;

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;
use umiak_testkit::floor::monotonic_nanos;

use super::floor::{self, WORD};
use super::harness::Running;
use super::peers::{Output, Peer};

/// Settings that every row needs.
#[derive(Debug)]
pub(crate) struct Setting {
    /// This binary, built like umiak.
    pub(crate) floor: PathBuf,
    pub(crate) limit: Duration,
    pub(crate) watch: Duration,
    pub(crate) bytes: u64,
    pub(crate) kept: RefCell<Vec<TempDir>>,
}

impl Setting {
    pub(crate) fn new(floor: PathBuf, limit: Duration) -> Self {
        Self { floor, limit, watch: Duration::ZERO, bytes: 0, kept: RefCell::default() }
    }

    /// A directory that stays until everything is measured: ext4 searches long for inodes where many were freed
    /// recently, so removed files would slow down contestants that create files.
    fn directory(&self) -> anyhow::Result<PathBuf> {
        let directory = directory()?;
        let path = directory.path().to_owned();
        self.kept.borrow_mut().push(directory);
        Ok(path)
    }
}

/// A temporary directory; removed when dropped.
pub(crate) fn directory() -> anyhow::Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("umiak-bench-").tempdir()?)
}

/// Starts sleeping ranks and waits until all have started; the inner `Err` says why they did not.
pub(crate) fn sleepers(
    setting: &Setting,
    peer: &Peer,
    ranks: u32,
    fails: u32,
    directory: &Path,
) -> anyhow::Result<Result<Running, String>> {
    let stamps = directory.join("ranks");
    let command = rank_command(setting, &stamps, fails)?;
    let running = Running::start(&mut peer.command(ranks, directory, Output::Usual, &command), setting.limit)?;
    await_sleepers(setting, running, &stamps, ranks)
}

/// A rank that sleeps; rank `fails` waits for the go file.
fn rank_command(setting: &Setting, stamps: &Path, fails: u32) -> anyhow::Result<[OsString; 5]> {
    fs::create_dir(stamps)?;
    nix::unistd::mkfifo(&floor::go_file(stamps), nix::sys::stat::Mode::S_IRWXU)?;
    Ok([setting.floor.clone().into(), WORD.into(), "rank".into(), stamps.into(), fails.to_string().into()])
}

fn await_sleepers(
    setting: &Setting,
    running: Running,
    stamps: &Path,
    ranks: u32,
) -> anyhow::Result<Result<Running, String>> {
    let deadline = running.began + setting.limit.as_nanos() as u64;
    let is_there = |rank: u32| fs::metadata(stamps.join(rank.to_string())).is_ok_and(|file| file.len() > 0);
    let mut there = 0;
    while there < ranks {
        if is_there(there) {
            there += 1;
            continue;
        }
        if monotonic_nanos() > deadline || !Path::new(&format!("/proc/{}/task", running.pid)).exists() {
            let ended = running.end()?;
            let trouble = ended.trouble(setting.limit, |_| false);
            return Ok(Err(format!("{there} of {ranks} ranks started: {}", trouble.unwrap_or_default())));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(Ok(running))
}

/// The process ids of the ranks of [`sleepers`].
pub(crate) fn pids(directory: &Path, ranks: u32) -> anyhow::Result<Vec<u32>> {
    (0..ranks)
        .map(|rank| {
            let text = fs::read_to_string(directory.join("ranks").join(rank.to_string()))?;
            text.parse().with_context(|| format!("rank {rank} has written `{text}`"))
        })
        .collect()
}
