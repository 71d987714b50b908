//! One rank that writes a lot: to a file, and through the launcher to a reader.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{PipeReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use umiak_testkit::floor::monotonic_nanos;

use super::{Setting, directory};
use crate::bench::floor::WORD;
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};
use crate::bench::peers::{Output, Peer, on_path};

/// More than the slow reader can keep up with.
const SLOW_BYTES: u64 = 64_000_000;
/// How long a rank behind a slow reader may take.
const SLOW_PATIENCE: Duration = Duration::from_secs(20);
const NEEDED: &str = "`openssl` or `sha256sum` is required";
const GRACE: Duration = Duration::from_secs(15);

/// What copies the lines.
#[derive(Debug, Clone)]
pub(crate) enum Route<'a> {
    /// The launcher, mirroring to a checksumming reader.
    Launcher(&'a Peer),
    /// `writer | cat > file`
    Cat,
    /// `writer | tee file | checksum`
    Tee,
}

fn writer(setting: &Setting, bytes: u64, stamps: &Path) -> [OsString; 5] {
    [setting.floor.clone().into(), WORD.into(), "write".into(), bytes.to_string().into(), stamps.into()]
}

/// The expected checksum.
pub(crate) fn expected(setting: &Setting) -> anyhow::Result<String> {
    let directory = directory()?;
    let [program, words @ ..] = writer(setting, setting.bytes, &directory.path().join("stamps"));
    let (reader, end) = std::io::pipe()?;
    let mut writer = Command::new(program).args(words).stdout(end).spawn()?;
    let sum = checksummer().stdin(reader).output().context(NEEDED)?;
    writer.wait()?;
    Ok(sum_in(&String::from_utf8_lossy(&sum.stdout)))
}

/// Bytes per second, from the writer's first byte until everything is over.
pub(crate) fn measure(setting: &Setting, path: &Route<'_>, expected: &str) -> anyhow::Result<Result<Sample, String>> {
    let directory = directory()?;
    let stamps = directory.path().join("stamps");
    let writer = writer(setting, setting.bytes, &stamps);
    let copy = directory.path().join("copy");
    let shell = |script: &str| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).arg(&copy).args(&writer).stdin(Stdio::null());
        shell
    };
    let (mut said, end) = std::io::pipe()?;
    let mut command = match path {
        Route::Cat => shell("\"$@\" | cat > \"$0\""),
        Route::Tee => shell(&format!("\"$@\" | tee \"$0\" | {}", checksum_words().join(" "))),
        Route::Launcher(peer) => peer.command(1, directory.path(), Output::Both, &writer),
    };
    if let Route::Launcher(_) = path {
        let (reader, mirror) = std::io::pipe()?;
        // Waited for with everything else.
        checksummer().stdin(reader).stdout(end).spawn().context(NEEDED)?;
        command.stdout(mirror);
    } else {
        command.stdout(end);
    }
    let running = Running::start(&mut command, setting.limit)?;
    drop(command);
    let ended = running.end()?;
    if let Some(trouble) = ended.trouble(setting.limit, |code| code == 0) {
        return Ok(Err(trouble));
    }
    let (began, _) = read_stamps(&stamps)?.context("the writer recorded no time")?;
    let speed = setting.bytes as f64 / 1e6 / (millis(began, ended.gone) / 1e3);
    let mut sample = Sample::new(Metric::Log, speed, ended.cpu_ms);
    let mut sum = String::new();
    said.read_to_string(&mut sum)?;
    let log = match path {
        Route::Launcher(peer) => peer.log(directory.path()),
        Route::Cat | Route::Tee => Some(copy),
    };
    let mut wrong = Vec::new();
    if !matches!(path, Route::Cat) && sum_in(&sum) != expected {
        wrong.push("the reader got other bytes");
    }
    if let Some(log) = log
        && checksum(&log)? != expected
    {
        wrong.push("the file has other bytes");
    }
    if !wrong.is_empty() {
        sample.remark = Some(wrong.join(", "));
    }
    Ok(Ok(sample))
}

/// The rank's writing time with a reader of 1 MB/s, relative to a fast reader.
pub(crate) fn slow_reader(setting: &Setting, peer: &Peer) -> anyhow::Result<Result<Sample, String>> {
    let mut took = Vec::new();
    for pause in [Duration::ZERO, Duration::from_millis(100)] {
        let directory = directory()?;
        let stamps = directory.path().join("stamps");
        let (reader, mirror) = std::io::pipe()?;
        let mut command = peer.command(1, directory.path(), Output::Both, &writer(setting, SLOW_BYTES, &stamps));
        command.stdout(mirror);
        let running = Running::start(&mut command, setting.limit + SLOW_PATIENCE)?;
        drop(command);
        std::thread::spawn(move || read_slowly(reader, pause));
        let time = wait_for_writer(&stamps, setting.limit)?;
        running.stop(GRACE)?;
        match time {
            Some(time) => took.push(time),
            None => {
                return Ok(Err(format!(
                    "the rank had not written {} MB after {} s",
                    SLOW_BYTES / 1_000_000,
                    SLOW_PATIENCE.as_secs()
                )));
            }
        }
    }
    let values = vec![(Metric::SlowReader, took[1] / took[0])];
    Ok(Ok(Sample { values, cpu_ms: None, remark: None }))
}

/// Reads 100 kB, pauses, and repeats until the end.
fn read_slowly(mut reader: PipeReader, pause: Duration) {
    let mut buffer = vec![0; 100_000];
    while reader.read_exact(&mut buffer).is_ok() {
        std::thread::sleep(pause);
    }
}

/// Milliseconds from the writer's first byte to its last.
fn wait_for_writer(stamps: &Path, to_start: Duration) -> anyhow::Result<Option<f64>> {
    let asked = monotonic_nanos();
    loop {
        let now = monotonic_nanos();
        match read_stamps(stamps)? {
            Some((began, Some(ended))) => return Ok(Some(millis(began, ended))),
            Some((began, None)) if now.saturating_sub(began) > SLOW_PATIENCE.as_nanos() as u64 => return Ok(None),
            None if now - asked > to_start.as_nanos() as u64 => return Ok(None),
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// When the writer began, and when it was done.
fn read_stamps(path: &Path) -> anyhow::Result<Option<(u64, Option<u64>)>> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(None) };
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(|line| line.trim().parse());
    let Some(began) = lines.next().transpose()? else { return Ok(None) };
    Ok(Some((began, lines.next().transpose()?)))
}

fn checksum(path: &Path) -> anyhow::Result<String> {
    let sum = checksummer().stdin(File::open(path)?).output().context(NEEDED)?;
    Ok(sum_in(&String::from_utf8_lossy(&sum.stdout)))
}

/// OpenSSL's if installed: coreutils' does not use the CPU's sha instructions and would dominate the measurement.
fn checksum_words() -> &'static [&'static str] {
    if on_path("openssl").is_some() { &["openssl", "dgst", "-sha256", "-r"] } else { &["sha256sum"] }
}

fn checksummer() -> Command {
    let words = checksum_words();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// The checksum, which both tools print first.
fn sum_in(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().to_owned()
}
