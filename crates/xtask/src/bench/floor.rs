//! The small programs that a benchmark starts, in this same binary: minimal launchers, and ranks. They are dispatched
//! before the command line is parsed, so that parsing does not slow down a floor.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;
use umiak_testkit::floor::{fork_exec, monotonic_nanos};

use super::rows::{cluster, elastic, restart};
use super::{crowd, machine, pipeline, store};

/// The first argument.
pub(crate) const WORD: &str = "floor";

/// Variables in which launchers pass the rank, the most specific first.
pub(crate) const RANK_VARIABLES: [&str; 5] =
    ["UMIAK_RANK", "OMPI_COMM_WORLD_RANK", "PADDLE_TRAINER_ID", "RANK", "SLURM_PROCID"];

/// Exit code of the failing rank.
pub(crate) const FAILURE: u8 = 7;

/// Length of a line, with the newline.
pub(crate) const LINE: u64 = 65;
/// Length of a write.
const WRITE: usize = 64 << 10;

/// Runs one of the programs if this process was started as one.
pub(crate) fn main() -> anyhow::Result<Option<ExitCode>> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [first, what, rest @ ..] = words.as_slice() else { return Ok(None) };
    if first != WORD {
        return Ok(None);
    }
    let number = |word: &OsStr| -> anyhow::Result<u64> { Ok(word.to_str().context("no number")?.parse()?) };
    match (what.to_str(), rest) {
        (Some("fork"), [ranks, command @ ..]) => supervise(number(ranks)? as u32, |rank| fork_exec(command, rank)),
        (Some("spawn"), [ranks, program, arguments @ ..]) => supervise(number(ranks)? as u32, |rank| {
            Command::new(program).args(arguments).env("RANK", rank.to_string()).spawn().map(|child| child.id())
        }),
        (Some("rank"), [directory, fails]) => be_rank(Path::new(directory), number(fails)? as u32),
        (Some("restart-rank"), [directory, ranks]) => restart::be_rank(Path::new(directory), number(ranks)? as u32),
        (Some("elastic-rank"), [directory]) => elastic::be_rank(Path::new(directory)),
        (Some("cluster-rank"), []) => cluster::be_rank(),
        (Some("stamp"), [event]) => cluster::stamp(&event.to_string_lossy()),
        (Some("pass"), [event, program, rest @ ..]) => cluster::pass(&event.to_string_lossy(), program, rest),
        (Some("write"), [bytes, stamps]) => write_lines(number(bytes)?, Path::new(stamps)),
        (Some("host"), words) => crowd::host(words),
        (Some("agents"), words) => crowd::agents(words),
        (Some("members"), words) => crowd::members(words),
        (Some("clients"), words) => crowd::clients(words),
        (Some("machine"), [story, replicas]) => machine::perform(story, number(replicas)? as u32),
        (Some("schedule"), [shape, steps]) => pipeline::schedule(shape, number(steps)? as u32),
        (Some("store-floor"), []) => store::floor(),
        (Some("store-load"), [load, port, clients, each, round]) => {
            store::load(load, [number(port)?, number(clients)?, number(each)?, number(round)?])
        }
        _ => bail!("`{WORD}` is only used by benchmarks"),
    }
    .map(Some)
}

/// Starts all ranks and waits for all; when one fails, kills the others. A minimal launcher.
fn supervise(ranks: u32, start: impl Fn(u32) -> std::io::Result<u32>) -> anyhow::Result<ExitCode> {
    let mut live: Vec<u32> = (0..ranks).map(start).collect::<Result<_, _>>()?;
    let mut failed = false;
    loop {
        let (pid, success) = match wait() {
            Ok(WaitStatus::Exited(pid, code)) => (pid, code == 0),
            Ok(WaitStatus::Signaled(pid, ..)) => (pid, false),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => return Ok(ExitCode::from(u8::from(failed))),
            Err(error) => return Err(error.into()),
        };
        live.retain(|other| *other != pid.as_raw() as u32);
        if !success && !failed {
            failed = true;
            for other in &live {
                kill(Pid::from_raw(*other as i32), Signal::SIGTERM)?;
            }
        }
    }
}

/// Registers its process id and sleeps; rank `fails` waits for the go file, records the time and exits.
fn be_rank(directory: &Path, fails: u32) -> anyhow::Result<ExitCode> {
    let rank: u32 = RANK_VARIABLES
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .context("no launcher has set the rank")?
        .parse()?;
    let mut stamp = OpenOptions::new().write(true).create(true).truncate(true).open(stamp_file(directory, fails))?;
    fs::write(directory.join(rank.to_string()), std::process::id().to_string())?;
    if rank != fails {
        return Err(Command::new("/bin/sleep").arg("600").exec().into());
    }
    File::open(go_file(directory))?.read_to_end(&mut Vec::new())?;
    write!(stamp, "{}", monotonic_nanos())?;
    Ok(ExitCode::from(FAILURE))
}

/// A FIFO: opening it for writing and closing it makes the failing rank exit.
pub(crate) fn go_file(directory: &Path) -> std::path::PathBuf {
    directory.join("go")
}

/// Contains the time in nanoseconds at which rank `fails` exited.
pub(crate) fn stamp_file(directory: &Path, fails: u32) -> std::path::PathBuf {
    directory.join(format!("stamp.{fails}"))
}

/// Writes this many bytes in lines, and records when it began and when it was done.
fn write_lines(bytes: u64, stamps: &Path) -> anyhow::Result<ExitCode> {
    // A whole number of lines fills a whole number of writes, so lines are at all offsets within writes.
    let block: Vec<u8> =
        (0..WRITE).flat_map(|number| format!("{number:0>width$}\n", width = LINE as usize - 1).into_bytes()).collect();
    let mut stdout = File::from(std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned()?);
    let began = monotonic_nanos();
    // The start time can be read while the write is still running.
    fs::write(stamps, format!("{began}\n"))?;
    let mut left = bytes;
    for part in block.chunks(WRITE).cycle() {
        let part = &part[..part.len().min(usize::try_from(left)?)];
        if part.is_empty() {
            break;
        }
        stdout.write_all(part)?;
        left -= part.len() as u64;
    }
    let ended = monotonic_nanos();
    fs::write(stamps, format!("{began}\n{ended}\n"))?;
    Ok(ExitCode::SUCCESS)
}
