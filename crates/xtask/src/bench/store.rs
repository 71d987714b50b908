//! `cargo xtask bench store`: the store beside torch's own, which uses libuv, and beside a server that reads and writes
//! and does nothing else.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use umiak_testkit::components::environment;

use super::floor::WORD;
use super::model::{Metric, Sample, Series};
use super::rounds::{Contestant, Rounds, say};
use super::rows::Setting;
use super::rows::restart::{Restarter, measure};
use super::store_load::{Load, perform};
use super::{beside, build, publish, verdict};

const NAME: &str = "store";
/// Connections and requests of each, where rates are measured.
pub(crate) const CONNECTIONS: u32 = 16;
const EACH: u64 = 5000;
pub(crate) const CROWD: u32 = 4096;
pub(crate) const RANKS: u32 = 256;
/// Ranks that are restarted.
pub(crate) const RESTARTED: u32 = 64;

/// Torch's server, alone.
const LIBUV: &str = "import sys, time
import torch.distributed as dist
store = dist.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False, use_libuv=True)
print(store.port, flush=True)
sys.stdin.read()
";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of rounds
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Measure this binary instead of building one
    #[arg(long)]
    umiak: Option<PathBuf>,
    /// Write all measurements to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Update the tables in docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

/// A server on the first CPU; it ends when this is dropped.
#[derive(Debug)]
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(program: &OsStr, arguments: &[&OsStr]) -> anyhow::Result<Self> {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().context("`taskset` cannot be started")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("stdout is a pipe")?).read_line(&mut line)?;
        let port = line.trim().parse().with_context(|| format!("{} does not listen", program.display()))?;
        Ok(Self { child, port })
    }

    /// CPU time of all its threads so far, in nanoseconds.
    fn cpu_nanos(&self) -> anyhow::Result<u64> {
        let mut total = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            total += text.split(' ').next().context("schedstat is empty")?.parse::<u64>()?;
        }
        Ok(total)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures and reports.
pub(crate) fn store(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let binaries = build(root)?;
    let (xtask, umiak) = (binaries.join("xtask"), options.umiak.clone().unwrap_or_else(|| binaries.join("umiak")));
    raise_limit()?;
    let floor = Server::start(xtask.as_os_str(), &[WORD.as_ref(), "store-floor".as_ref()])?;
    let words = ["store", "--port", "0", "--output", "quiet"].map(OsStr::new);
    let ours = Server::start(umiak.as_os_str(), &words)?;
    let mut absent = Vec::new();
    let libuv = environment().map(|environment| libuv(&environment)).transpose()?;
    if libuv.is_none() {
        absent.push("torch".to_owned());
    }
    let rounds = Rounds { fast: options.rounds, slow: options.rounds };
    let mut series = Vec::new();
    for load in Load::ALL {
        let (metrics, clients, each) = match load {
            Load::Add => (&[Metric::StoreAdd, Metric::StoreAddTime][..], CONNECTIONS, EACH),
            Load::Get => (&[Metric::StoreGet, Metric::StoreGetTime][..], CONNECTIONS, 2 * EACH),
            Load::Barrier => (&[Metric::StoreBarrier][..], CROWD, 0),
            Load::AddWait => (&[Metric::StoreAddWait][..], CROWD, 0),
            Load::Gloo => (&[Metric::StoreGloo][..], RANKS, 0),
        };
        say(&format!("{}, {clients} connections", load.name()))?;
        let mut contestants = vec![beside(verdict::UMIAK, false, &ours)];
        contestants.extend(libuv.iter().map(|libuv| beside(verdict::LIBUV, false, libuv)));
        if load == Load::Add {
            contestants.push(beside("recv + send", true, &floor));
        }
        series.extend(rounds.run(&contestants, metrics, clients, |server, round| {
            let before = server.cpu_nanos()?;
            let words = [load.name(), &server.port.to_string(), &clients.to_string(), &each.to_string()];
            let mut command = Command::new("taskset");
            command.args(["-c", "1"]).arg(&xtask).args([WORD, "store-load"]).args(words).arg(round.to_string());
            let said = command.output()?;
            if !said.status.success() {
                return Ok(Err(String::from_utf8_lossy(&said.stderr).into_owned()));
            }
            let nanos: f64 = String::from_utf8_lossy(&said.stdout).trim().parse()?;
            let requests = load.requests(clients.into(), each) as f64;
            let micros = (server.cpu_nanos()? - before) as f64 / 1e3 / requests;
            let values = metrics.iter().map(|metric| match metric {
                Metric::StoreAddTime | Metric::StoreGetTime => (*metric, micros),
                // A get of the API is two requests.
                Metric::StoreGet => (*metric, requests / 2.0 / (nanos / 1e9)),
                Metric::StoreAdd => (*metric, requests / (nanos / 1e9)),
                _ => (*metric, nanos / 1e6),
            });
            Ok(Ok(Sample { values: values.collect(), cpu_ms: None, remark: None }))
        })?);
    }
    // A restart has ended when no process is left.
    drop((floor, ours, libuv));
    series.extend(restarts(&rounds, &umiak, &xtask)?);
    let settings = format!(
        "{} rounds; servers on one CPU, clients (one thread) on the other; {EACH} requests per connection",
        options.rounds
    );
    let verdicts = verdict::of_store(&series);
    let report = super::report(&[], absent, settings, series, verdicts);
    publish(root, NAME, &report, options.json.as_deref(), options.write)
}

/// A restart under torchrun's flags, beside torchrun.
fn restarts(rounds: &Rounds, umiak: &Path, xtask: &Path) -> anyhow::Result<Vec<Series>> {
    say(&format!("restart, {RESTARTED} ranks"))?;
    let setting = Setting::new(xtask.to_owned(), Duration::from_secs(60));
    let ours = Restarter::Launcher(vec![umiak.into(), "torchrun".into()]);
    let theirs = environment().map(|it| Restarter::Launcher(vec![it.join("bin/torchrun").into()]));
    let mut contestants = vec![beside(verdict::UMIAK, false, &ours), beside("fork + exec", true, &Restarter::Floor)];
    contestants
        .extend(theirs.iter().map(|theirs| Contestant { is_compared: false, ..beside("torchrun", false, theirs) }));
    let rounds = Rounds { slow: rounds.slow.min(5), ..*rounds };
    rounds.run(&contestants, &[Metric::Restart], RESTARTED, |who, _| measure(&setting, who, RESTARTED))
}

/// Torch's server looks up the name of every client. Where that is possible it is answered by files alone: otherwise
/// the time of the resolver would be measured.
fn libuv(environment: &Path) -> anyhow::Result<Server> {
    let python = environment.join("bin/python");
    let switch = std::env::temp_dir().join(format!("umiak-bench-nsswitch-{}", std::process::id()));
    fs::write(&switch, "hosts: files\n")?;
    let script = "mount --bind \"$0\" /etc/nsswitch.conf && exec \"$@\"";
    let words: [&OsStr; 7] = [
        "--mount".as_ref(),
        "sh".as_ref(),
        "-c".as_ref(),
        script.as_ref(),
        switch.as_os_str(),
        python.as_os_str(),
        "-c".as_ref(),
    ];
    let isolated = Server::start("unshare".as_ref(), &[&words[..], &[LIBUV.as_ref()]].concat());
    let server = isolated.or_else(|_| Server::start(python.as_os_str(), &["-c".as_ref(), LIBUV.as_ref()]));
    fs::remove_file(&switch)?;
    server
}

/// Each client is a descriptor, here and in torch's server.
fn raise_limit() -> anyhow::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    ensure!(most > u64::from(2 * CROWD), "the limit of open files is {most}");
    Ok(())
}

/// Does a load once and prints its time in nanoseconds.
pub(crate) fn load(name: &OsStr, numbers: [u64; 4]) -> anyhow::Result<ExitCode> {
    let load = Load::ALL.into_iter().find(|load| name == load.name()).context("no such load")?;
    let [port, clients, each, round] = numbers;
    let nanos = perform(load, u16::try_from(port)?, usize::try_from(clients)?, each, round)?;
    writeln!(std::io::stdout(), "{nanos}")?;
    Ok(ExitCode::SUCCESS)
}

/// The least that a server can do for `add`: receives, and sends eight bytes. The greeting gets four.
pub(crate) fn floor() -> anyhow::Result<ExitCode> {
    const LISTENER: Token = Token(usize::MAX);
    let mut poll = Poll::new()?;
    let mut listener = mio::net::TcpListener::bind("127.0.0.1:0".parse()?)?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?.port())?;
    let (mut events, mut streams): (Events, Vec<Option<TcpStream>>) = (Events::with_capacity(1024), Vec::new());
    let mut buffer = vec![0; 64 << 10];
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    poll.registry().register(&mut stream, Token(streams.len()), Interest::READABLE)?;
                    streams.push(Some(stream));
                }
                continue;
            }
            let Some(stream) = &mut streams[event.token().0] else { continue };
            match stream.read(&mut buffer) {
                Ok(10) => stream.write_all(&buffer[6..10])?,
                Ok(length) if length > 0 => stream.write_all(&buffer[..8])?,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => streams[event.token().0] = None,
            }
        }
    }
}
