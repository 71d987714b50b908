//! A relay in front of a server that starts late: clients connect at once, and are passed on when the server listens.
//!
//! Bytes are copied both ways and not looked at. Clients may write a request in several short pieces, each of which waits
//! for the acknowledgement of the last one: the relay acknowledges at once, and sends without delay. An idle connection
//! has no buffer, and one whose receiver is slow holds one chunk.
//!
//! All of it runs on the network thread, which has little else to do.

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;
use tracing::debug;

use crate::network;

/// Largest number of bytes that are copied at once.
const CHUNK: usize = 16 << 10;
/// The shortest and the longest time between two attempts to reach the server.
const RETRY: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// Wait after a failed accept: the usual reason is that no descriptors are left.
const SHORTAGE: Duration = Duration::from_millis(100);

/// A running relay. When it is dropped, the port and all connections are closed.
#[derive(Debug)]
pub(crate) struct Relay(AbortHandle);

impl Relay {
    /// Passes the clients of `listener` on to `server`, which need not listen yet. Raises the limit of open files: each
    /// client needs two.
    pub(crate) fn start(listener: std::net::TcpListener, server: SocketAddr) -> io::Result<Self> {
        umiak_sys::limits::raise();
        let handle = network::handle()?;
        listener.set_nonblocking(true)?;
        let listener = {
            let _runtime = handle.enter();
            TcpListener::from_std(listener)?
        };
        Ok(Self(handle.spawn(accept(listener, server)).abort_handle()))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr) {
    // One client at a time looks for the server: hundreds that try every few milliseconds would slow its start.
    let turn = Arc::new(Mutex::new(()));
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, peer)) => {
                debug!(%peer, "relay: a client has connected");
                connections.spawn(serve(client, server, Arc::clone(&turn)));
            }
            Err(_) => sleep(SHORTAGE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one client until both sides have closed, or one of them fails.
async fn serve(client: TcpStream, server: SocketAddr, turn: Arc<Mutex<()>>) {
    let _ = client.set_nodelay(true);
    // What the client sends before the server listens stays in the kernel, but is acknowledged.
    umiak_sys::net::acknowledge_promptly(client.as_fd());
    let looking = turn.lock().await;
    let server = reach(server).await;
    drop(looking);
    let _ = server.set_nodelay(true);
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    both(copy(from_client, to_server, true), copy(from_server, to_client, false)).await;
}

/// Connects to the server as soon as it listens.
async fn reach(server: SocketAddr) -> TcpStream {
    let (mut wait, longest) = RETRY;
    loop {
        if let Ok(stream) = connect(server).await {
            debug!(%server, "relay: passed a client on");
            return stream;
        }
        sleep(wait).await;
        wait = (wait * 3 / 2).min(longest);
    }
}

async fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    // On one host, connecting to a closed port can connect a socket to itself. It must not keep the port from the server.
    if stream.local_addr()? == stream.peer_addr()? {
        stream.set_zero_linger()?;
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// Copies until the sender has finished, and passes that on. With `prompt`, acknowledges at once.
async fn copy(from: OwnedReadHalf, to: OwnedWriteHalf, prompt: bool) -> io::Result<()> {
    loop {
        from.readable().await?;
        if prompt {
            umiak_sys::net::acknowledge_promptly(from.as_ref().as_fd());
        }
        match pass(&from, &to)? {
            Passed::All => {}
            Passed::Some(rest) => write_all(&to, &rest).await?,
            // Dropping the half closes that direction.
            Passed::End => return Ok(()),
        }
    }
}

enum Passed {
    /// What had arrived, if anything.
    All,
    /// The receiver has no room for these bytes.
    Some(Vec<u8>),
    /// The sender has finished.
    End,
}

/// Passes on what has arrived. The buffer does not outlive the call.
fn pass(from: &OwnedReadHalf, to: &OwnedWriteHalf) -> io::Result<Passed> {
    let mut buffer = [0; CHUNK];
    let bytes = match from.try_read(&mut buffer) {
        Ok(0) => return Ok(Passed::End),
        Ok(count) => &buffer[..count],
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Passed::All),
        Err(error) => return Err(error),
    };
    let written = match to.try_write(bytes) {
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    Ok(if written == bytes.len() { Passed::All } else { Passed::Some(bytes[written..].to_vec()) })
}

async fn write_all(to: &OwnedWriteHalf, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until both have succeeded, or one has failed.
async fn both(one: impl Future<Output = io::Result<()>> + Send, other: impl Future<Output = io::Result<()>> + Send) {
    let (one, other) = (pin!(one), pin!(other));
    let mut halves: [Option<Pin<&mut (dyn Future<Output = io::Result<()>> + Send)>>; 2] = [Some(one), Some(other)];
    poll_fn(|context| {
        for half in &mut halves {
            match half.as_mut().map(|future| future.as_mut().poll(context)) {
                Some(Poll::Ready(Err(_))) => return Poll::Ready(()),
                Some(Poll::Ready(Ok(()))) => *half = None,
                Some(Poll::Pending) | None => {}
            }
        }
        if halves.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
