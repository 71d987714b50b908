//! A thousand nodes connect to one coordinator: from the first connection to the last start message. And a tenth of the
//! nodes of an elastic job is replaced: from there to the last start message of the next attempt.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use umiak_testkit::floor::monotonic_nanos;

use super::Setting;
use crate::bench::crowd::LATE;
use crate::bench::floor::WORD;
use crate::bench::harness::millis;
use crate::bench::model::{Metric, Sample};

pub(crate) const METRICS: [Metric; 3] = [Metric::Agents, Metric::AgentsMemory, Metric::AgentsTime];
pub(crate) const CHANGE_METRICS: [Metric; 3] =
    [Metric::ElasticAgents, Metric::ElasticAttempts, Metric::ElasticMessages];

/// Paddle's own server; its cost is counted from when it listens.
const KV_SERVER: &str = "
import resource, sys
from paddle.distributed.launch.utils.kv_server import KVServer
def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int((usage.ru_utime + usage.ru_stime) * 1e6)
server = KVServer(0)
server.start()
before = cpu()
print(server.server_address[1], flush=True)
sys.stdin.read()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, cpu() - before, flush=True)
server.stop()
";

/// The server that the nodes connect to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Whom<'a> {
    /// Listens before the nodes start. Both are in this program.
    Umiak(&'a Path),
    /// Its process and the nodes are started at the same moment, and time runs from there.
    UmiakAtOnce(&'a Path),
    /// The HTTP master, in this Python.
    Paddle(&'a Path),
}

impl Whom<'_> {
    /// True if it is in this program.
    pub(crate) fn is_of(&self, other: &Path) -> bool {
        matches!(self, Self::Umiak(program) | Self::UmiakAtOnce(program) if *program == other)
    }
}

pub(crate) fn measure(
    setting: &Setting,
    whom: &Whom<'_>,
    nodes: u32,
    ranks: u16,
) -> anyhow::Result<Result<Sample, String>> {
    let at_once = matches!(whom, Whom::UmiakAtOnce(_));
    let port = if at_once { free_port()? } else { 0 };
    let [nodes, ranks] = [nodes.to_string(), ranks.to_string()];
    let (mut server, program, word) = match *whom {
        Whom::Umiak(program) | Whom::UmiakAtOnce(program) => {
            let mut server = Command::new(program);
            server.args([WORD, "host", &port.to_string(), &nodes, &ranks]);
            (server, program, "agents")
        }
        Whom::Paddle(python) => {
            let mut server = Command::new(python);
            server.args(["-c", KV_SERVER]).stderr(Stdio::null());
            (server, setting.floor.as_path(), "clients")
        }
    };
    let started = monotonic_nanos();
    let mut server = Server::start(&mut server)?;
    let port = if at_once { port } else { server.line()?.parse().context("the server printed no port")? };
    let limit = setting.limit.as_secs().to_string();
    let crowd = Command::new(program)
        .args([WORD, word, &port.to_string(), &nodes, &ranks, &limit])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let said = String::from_utf8_lossy(&crowd.stdout).into_owned();
    let [began, ended] = match numbers(&said) {
        Some([began, ended]) => [if at_once { started } else { began }, ended],
        None => return Ok(Err(trouble(&said, &limit))),
    };
    if at_once {
        server.line()?;
    }
    let cost = server.end()?;
    let [memory, time] = numbers(&cost).with_context(|| format!("unexpected output of the server: `{cost}`"))?;
    let values = [millis(began, ended), memory as f64 * 1024.0 / 1e6, time as f64 / 1e3];
    Ok(Ok(Sample { values: METRICS.into_iter().zip(values).collect(), cpu_ms: None, remark: None }))
}

/// One node in ten leaves, and as many others join, at the same moment.
pub(crate) fn measure_change(setting: &Setting, nodes: u32, ranks: u16) -> anyhow::Result<Result<Sample, String>> {
    let changed = nodes / 10;
    let [fewest, changed, nodes_word, ranks] =
        [nodes / 2, changed, nodes, ranks.into()].map(|number| number.to_string());
    let mut host = Command::new(&setting.floor);
    host.args([WORD, "host", "0", &nodes_word, &ranks, &fewest]);
    let mut server = Server::start(&mut host)?;
    let port = server.line()?;
    let limit = setting.limit.as_secs().to_string();
    let crowd = Command::new(&setting.floor)
        .args([WORD, "members", &port, &nodes_word, &ranks, &limit, &fewest, &changed])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let said = String::from_utf8_lossy(&crowd.stdout).into_owned();
    let Some([began, ended, attempts, messages]) = numbers(&said) else {
        let missing = said.trim().strip_prefix(LATE).unwrap_or("the nodes failed");
        return Ok(Err(format!("after {limit} s: {}", missing.trim())));
    };
    let values = [millis(began, ended), attempts as f64, messages as f64 / f64::from(nodes)];
    Ok(Ok(Sample { values: CHANGE_METRICS.into_iter().zip(values).collect(), cpu_ms: None, remark: None }))
}

fn trouble(said: &str, limit: &str) -> String {
    match said.trim().strip_prefix(LATE) {
        Some(waiting) => format!("{} had not started after {limit} s", waiting.trim()),
        None => "the nodes failed".to_owned(),
    }
}

fn numbers<const N: usize>(line: &str) -> Option<[u64; N]> {
    let numbers: Option<Vec<u64>> = line.split_whitespace().take(N).map(|word| word.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// A port that is free now, and probably until we use it.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("0.0.0.0", 0))?.local_addr()?.port())
}

/// The server of the nodes; killed when dropped.
struct Server {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(child.stdout.take().context("no pipe")?);
        Ok(Self { child, stdout })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Ends it and returns its last line.
    fn end(mut self) -> anyhow::Result<String> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.stdout.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
