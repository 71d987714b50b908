//! The two processes of the `agents` rows, in this same binary: a coordinator, and all the nodes that connect to it.
//! Also the clients of Paddle's HTTP master, which behave like Paddle's own.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use umiak::rendezvous_bench::{Agents, Coordinator, Job, Members, bind};
use umiak_testkit::floor::monotonic_nanos;

/// Printed by the nodes when not all could start.
pub(crate) const LATE: &str = "late";

/// Polling interval of a client.
const POLL: Duration = Duration::from_millis(500);
/// Delay after a failed request.
const AGAIN: Duration = Duration::from_millis(100);
/// How long an elastic job runs before its members change.
const SETTLE: Duration = Duration::from_millis(500);

/// `PORT NODES RANKS [FEWEST]`: listens, prints its address, and when its stdin is closed prints its cost: its peak
/// resident memory in kB, and its CPU time in µs since it listened.
pub(crate) fn host(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let listener = bind(number(words, 0)?)?;
    let port = listener.local_addr()?.port();
    let fewest = if words.len() > 3 { Some(number(words, 3)?) } else { None };
    let job = Job { port, nodes: number(words, 1)?, ranks: number(words, 2)?, fewest };
    let mut coordinator = Coordinator::start(job, listener)?;
    let before = cpu_micros()?;
    say(&port.to_string())?;
    if fewest.is_some() {
        coordinator.serve(std::io::stdin())?;
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    say(&format!("{} {}", getrusage(UsageWho::RUSAGE_SELF)?.max_rss(), cpu_micros()? - before))?;
    drop(coordinator);
    Ok(ExitCode::SUCCESS)
}

/// `PORT NODES RANKS SECONDS`: all nodes except the coordinator's, until each has received its start.
pub(crate) fn agents(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let job = Job { port: number(words, 0)?, nodes: number(words, 1)?, ranks: number(words, 2)?, fewest: None };
    let patience = Duration::from_secs(number(words, 3)?);
    let began = monotonic_nanos();
    let waiting = Agents::start(job)?.await_start(patience);
    tell(began, waiting)
}

/// `PORT NODES RANKS SECONDS FEWEST CHANGED`: the same for an elastic job. When it runs, this many nodes leave and as many
/// others join. Prints when that began, when the last node was told to start, the number of attempts in between, and the
/// number of messages.
pub(crate) fn members(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let fewest = Some(number(words, 4)?);
    let job = Job { port: number(words, 0)?, nodes: number(words, 1)?, ranks: number(words, 2)?, fewest };
    let patience = Duration::from_secs(number(words, 3)?);
    let changed: u32 = number(words, 5)?;
    let mut members = Members::start(job)?;
    let Some(first) = members.await_start(0, patience)? else { return late(&members) };
    std::thread::sleep(SETTLE);
    let before = members.messages();
    let began = monotonic_nanos();
    members.leave(changed as usize);
    members.join(changed)?;
    let Some(last) = members.await_start(first, patience)? else { return late(&members) };
    let ended = monotonic_nanos();
    say(&format!("{began} {ended} {} {}", last - first, members.messages() - before))?;
    Ok(ExitCode::SUCCESS)
}

fn late(members: &Members) -> anyhow::Result<ExitCode> {
    say(&format!("{LATE} {}", members.missing()))?;
    Ok(ExitCode::SUCCESS)
}

/// The same with Paddle's master.
pub(crate) fn clients(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let (port, nodes, ranks): (u16, usize, u16) = (number(words, 0)?, number(words, 1)?, number(words, 2)?);
    let patience = Duration::from_secs(number(words, 3)?);
    umiak_sys::limits::raise();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let began = monotonic_nanos();
    let waiting = runtime.block_on(async {
        let mut waiting = nodes;
        let mut all = JoinSet::new();
        for node in 0..nodes {
            all.spawn(client(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), node, nodes, ranks));
        }
        let everybody = async {
            while all.join_next().await.is_some() {
                waiting -= 1;
            }
        };
        let _ = tokio::time::timeout(patience, everybody).await;
        waiting
    });
    tell(began, waiting)
}

/// One Paddle node: waits for the master, registers, and polls until all nodes are registered.
async fn client(master: SocketAddr, node: usize, nodes: usize, ranks: u16) {
    while !matches!(request(master, "GET /healthy HTTP/1.1\r\n\r\n").await, Ok(body) if !body.is_empty()) {
        sleep(AGAIN).await;
    }
    let [.., high, low] = node.to_be_bytes();
    let endpoints: Vec<String> = (0..ranks).map(|rank| format!("10.128.{high}.{low}:{}", 6170 + rank)).collect();
    let record = format!(
        r#"{{"name": "n{node:05}", "rank": -1, "replicas": {ranks}, "dtype": "gpu", "candidate": "{}", "endpoints": "{}"}}"#,
        endpoints.first().map_or("", String::as_str),
        endpoints.join(",")
    );
    let put = format!(
        "POST /bench/info/n{node:05}/-1 HTTP/1.1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{record}",
        record.len()
    );
    loop {
        if request(master, &put).await.is_err() {
            sleep(AGAIN).await;
            continue;
        }
        let all = request(master, "GET /bench/info HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap_or_default();
        let there = serde_json::from_slice::<HashMap<String, String>>(&all).map_or(0, |records| records.len());
        if there == nodes {
            return;
        }
        sleep(POLL).await;
    }
}

/// Sends a request on a new connection, as Paddle does, and returns the body of the answer.
async fn request(master: SocketAddr, text: &str) -> std::io::Result<Vec<u8>> {
    let stream = TcpStream::connect(master).await?;
    let mut left = text.as_bytes();
    while !left.is_empty() {
        stream.writable().await?;
        match stream.try_write(left) {
            Ok(count) => left = &left[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let mut answer = Vec::new();
    loop {
        stream.readable().await?;
        let mut buffer = [0; 16 << 10];
        match stream.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    Ok(answer.split_off(head + 4))
}

/// Prints when they began and when the last one started, or that not all did.
fn tell(began: u64, waiting: usize) -> anyhow::Result<ExitCode> {
    let ended = monotonic_nanos();
    say(&if waiting == 0 { format!("{began} {ended}") } else { format!("{LATE} {waiting}") })?;
    Ok(ExitCode::SUCCESS)
}

fn say(line: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

fn number<N: FromStr>(words: &[OsString], place: usize) -> anyhow::Result<N> {
    let word = words.get(place).and_then(|word| word.to_str());
    word.and_then(|word| word.parse().ok()).context("a number is missing")
}

/// User and system time of this process.
pub(crate) fn cpu_micros() -> anyhow::Result<u64> {
    let micros = |time: TimeVal| time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64;
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok(micros(usage.user_time()) + micros(usage.system_time()))
}
