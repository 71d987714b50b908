//! A TCP relay that adds a delay in each direction, for kernels without `tc netem`.
//!
//! Each direction of a connection has one thread that reads and one that writes what is old enough. Data in flight is
//! bounded, so a slow receiver slows the sender, but the bound is far above what a delay needs.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::Host;
use super::helper::{Helper, say, work};

pub(super) const MODE: &str = "net-relay";

/// Longest read.
const CHUNK: usize = 64 << 10;

/// Most chunks in flight.
const ON_ITS_WAY: usize = 1024;

/// A relay on a host; killed with all its connections when dropped.
#[derive(Debug)]
pub struct Relay {
    _helper: Helper,
    address: SocketAddr,
}

impl Relay {
    /// Relays from `listen`, an address of `host`, to `to`, with `delay` each way. Returns once it listens.
    pub fn start(host: &Host, listen: SocketAddr, to: SocketAddr, delay: Duration) -> Self {
        let arguments = [listen.to_string(), to.to_string(), delay.as_millis().to_string()];
        let mut helper = Helper::start(host, MODE, &arguments);
        let address = helper.line().parse().expect("it prints its address");
        Self { _helper: helper, address }
    }

    /// Where it listens, with the actual port if 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

pub(super) fn run(arguments: &[String]) -> u8 {
    let [listen, to, delay] = arguments else { panic!("LISTEN TO MILLISECONDS") };
    let to: SocketAddr = to.parse().expect("an address");
    let delay = Duration::from_millis(delay.parse().expect("milliseconds"));
    let listener = TcpListener::bind(listen).unwrap_or_else(|error| panic!("{listen}: {error}"));
    work(move || {
        say(&listener.local_addr().expect("it is bound").to_string());
        for stream in listener.incoming().flatten() {
            start_thread(move || relay(stream, to, delay));
        }
        0
    })
}

/// Without a thread the connection is closed.
fn start_thread(job: impl FnOnce() + Send + 'static) {
    let _ = thread::Builder::new().stack_size(64 << 10).spawn(job);
}

fn relay(near: TcpStream, to: SocketAddr, delay: Duration) {
    // If nothing listens, the client sees its connection close at once.
    let Ok(far) = TcpStream::connect_timeout(&to, Duration::from_secs(30)) else { return };
    let _ = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
    let (near, far) = (Arc::new(near), Arc::new(far));
    for (from, to) in [(near.clone(), far.clone()), (far, near)] {
        let (sender, receiver) = sync_channel(ON_ITS_WAY);
        let source = from.clone();
        start_thread(move || read(&source, &sender));
        start_thread(move || write(&from, &to, &receiver, delay));
    }
}

/// Data in flight, with the time it was read.
#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// The sender has closed its side.
    End,
    /// The connection broke.
    Broken,
}

fn read(mut from: &TcpStream, sender: &SyncSender<(Instant, Piece)>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let piece = match from.read(&mut buffer) {
            Ok(0) => Piece::End,
            Ok(length) => Piece::Bytes(buffer[..length].to_vec()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => Piece::Broken,
        };
        let is_last = !matches!(piece, Piece::Bytes(_));
        if sender.send((Instant::now(), piece)).is_err() || is_last {
            return;
        }
    }
}

fn write(from: &TcpStream, mut to: &TcpStream, receiver: &Receiver<(Instant, Piece)>, delay: Duration) {
    for (read_at, piece) in receiver {
        thread::sleep((read_at + delay).saturating_duration_since(Instant::now()));
        let is_over = match piece {
            Piece::Bytes(bytes) => to.write_all(&bytes).is_err(),
            Piece::End => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Piece::Broken => true,
        };
        if is_over {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
}
