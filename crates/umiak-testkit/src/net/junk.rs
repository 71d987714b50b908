//! Hostile connections: half of them slow, the others with data that is not our protocol.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use umiak_core::wire::VERSION;

use super::Host;
use super::helper::{Helper, say, work};

pub(super) const MODE: &str = "net-junk";

/// Connections open at a time.
const OPEN: usize = 2_000;

/// Connections made between two polls of the open ones.
const BURST: usize = 100;

/// How long a connection waits for an answer after it has sent its data.
const PATIENCE: Duration = Duration::from_secs(1);

/// Consecutive timeouts after which the peer counts as gone.
const TIMEOUTS: usize = 10;

/// The start of a connection to a coordinator: magic and version, see `docs/design/rendezvous.md`.
const GREETING: &[u8] = {
    let [low, high] = VERSION.to_le_bytes();
    &[b'U', b'M', b'I', b'A', b'K', 0, low, high]
};

/// Hostile connections from a host; closed when dropped.
#[derive(Debug)]
pub struct Junk {
    helper: Helper,
}

/// The result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Connections made.
    pub made: usize,
    /// Connections refused or timed out.
    pub failed: usize,
    /// Connections closed by the other side; we closed the rest.
    pub closed_by_peer: usize,
}

impl Junk {
    /// Makes `count` connections to an address, at most 2 000 at a time. Slow ones stay open for up to `hold`.
    pub fn start(host: &Host, to: SocketAddr, count: usize, hold: Duration) -> Self {
        let arguments = [to.to_string(), count.to_string(), hold.as_millis().to_string()];
        Self { helper: Helper::start(host, MODE, &arguments) }
    }

    /// Waits until all are closed.
    pub fn finish(mut self) -> Report {
        let line = self.helper.line();
        let value: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let number = |name: &str| value[name].as_u64().expect("a number") as usize;
        Report { made: number("made"), failed: number("failed"), closed_by_peer: number("closed_by_peer") }
    }
}

pub(super) fn run(arguments: &[String]) -> u8 {
    let [to, count, hold] = arguments else { panic!("TO COUNT MILLISECONDS") };
    let to = to.parse().expect("an address");
    let count = count.parse().expect("a number");
    let hold = Duration::from_millis(hold.parse().expect("milliseconds"));
    work(move || {
        let report = bother(to, count, hold);
        let (made, failed, closed) = (report.made, report.failed, report.closed_by_peer);
        say(&json!({ "made": made, "failed": failed, "closed_by_peer": closed }).to_string());
        0
    })
}

fn bother(to: SocketAddr, count: usize, hold: Duration) -> Report {
    let mut random = fastrand::Rng::with_seed(count as u64);
    let mut report = Report { made: 0, failed: 0, closed_by_peer: 0 };
    let mut open: Vec<Connection> = Vec::new();
    let mut timeouts = 0;
    loop {
        for _ in 0..BURST {
            let index = report.made + report.failed;
            if index == count || open.len() == OPEN {
                break;
            }
            match TcpStream::connect_timeout(&to, Duration::from_secs(5)) {
                Ok(stream) => {
                    report.made += 1;
                    timeouts = 0;
                    open.extend(Connection::new(stream, index, hold, &mut random));
                }
                Err(error) => {
                    report.failed += 1;
                    timeouts = if error.kind() == ErrorKind::TimedOut { timeouts + 1 } else { 0 };
                }
            }
            if timeouts == TIMEOUTS {
                report.failed = count - report.made;
            }
        }
        let now = Instant::now();
        open.retain_mut(|connection| match connection.look(now) {
            Look::Open => true,
            Look::Over => false,
            Look::ClosedByPeer => {
                report.closed_by_peer += 1;
                false
            }
        });
        let all_made = report.made + report.failed == count;
        if all_made && open.is_empty() {
            return report;
        }
        if all_made || open.len() == OPEN {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// An open connection.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// Sent at one byte a second.
    slowly: Vec<u8>,
    next: Instant,
    until: Instant,
}

enum Look {
    Open,
    Over,
    ClosedByPeer,
}

impl Connection {
    /// `None` if it was closed right after sending.
    fn new(mut stream: TcpStream, index: usize, hold: Duration, random: &mut fastrand::Rng) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        let now = Instant::now();
        match index % 4 {
            0 => Some(Self { stream, slowly: Vec::new(), next: now, until: now + hold }),
            2 => {
                let mut slowly = [GREETING, b"\x07default", &[0; 16]].concat();
                slowly.reverse();
                Some(Self { stream, slowly, next: now, until: now + hold })
            }
            _ => {
                // Data that the other side does not accept at once does not matter.
                let _ = stream.write(&words(index / 2, random));
                let stays = random.u8(..3) > 0;
                stays.then(|| Self { stream, slowly: Vec::new(), next: now, until: now + PATIENCE.min(hold) })
            }
        }
    }

    fn look(&mut self, now: Instant) -> Look {
        match self.stream.read(&mut [0; 4096]) {
            Ok(0) => return Look::ClosedByPeer,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return Look::ClosedByPeer,
        }
        if now >= self.until {
            return Look::Over;
        }
        if now >= self.next {
            if let Some(byte) = self.slowly.pop() {
                let _ = self.stream.write(&[byte]);
            }
            self.next = now + Duration::from_secs(1);
        }
        Look::Open
    }
}

/// Data that is not our protocol, or only starts like it.
fn words(kind: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut rubbish = |length: usize| -> Vec<u8> { std::iter::repeat_with(|| random.u8(..)).take(length).collect() };
    match kind % 7 {
        0 => rubbish(1 + kind % 4096),
        1 => b"GET /metrics HTTP/1.1\r\nHost: umiak\r\nAccept: */*\r\n\r\n".to_vec(),
        // Lengths of 4 GiB, 2 GiB and 4 MiB + 1, for a peer that allocates before it reads.
        2 => [u32::MAX, i32::MAX as u32, (4 << 20) + 1].iter().flat_map(|length| length.to_le_bytes()).collect(),
        3 => [GREETING, &rubbish(300)].concat(),
        // A valid greeting with an invalid proof.
        4 => [GREETING, b"\x07default", &rubbish(16), &rubbish(32)].concat(),
        // A name longer than the data, in an unknown version.
        5 => [&b"UMIAK\0\xff\xff\xff"[..], &rubbish(20)].concat(),
        _ => [GREETING, &rubbish(64 << 10)].concat(),
    }
}
