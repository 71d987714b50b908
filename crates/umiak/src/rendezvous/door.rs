//! The handshake, from a connection to a session: the coordinator's side, to which any process can connect, and the
//! agent's. Also probes of addresses from which no node has joined.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, timeout, timeout_at};
use umiak_core::machine::round::messages::{Answer, FromAgent};
use umiak_core::model::JobId;
use umiak_core::wire::auth::Key;
use umiak_core::wire::frame::{Frame, read_first};
use umiak_core::wire::handshake::{
    AgentHandshake, CoordinatorHandshake, HandshakeError, MAGIC, MAX_FROM_AGENT, MAX_TEXT,
};
use umiak_core::wire::{AFTER_JOIN, Session};

use super::events::NetEvent;
use super::frames::{self, First};
use super::link::{Halves, Parts, write_all};
use super::{SEND_BUFFER, StoreDoor, Target};

/// Time for the whole handshake, on both sides.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);
/// Memory for the first messages of agents that have not joined: one of the longest, and many usual ones.
const ROOM: usize = 16 << 20;
/// Time for a rejected peer to read the reason.
const HEAR_WHY: Duration = Duration::from_secs(1);
const PROBE: Duration = Duration::from_secs(2);

/// What the handshake proves.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) job_id: JobId,
    pub(super) key: Key,
    /// Sent to agents of other jobs.
    pub(super) describe: String,
    /// Torch's store at the same port.
    pub(super) store: Option<StoreDoor>,
    /// Memory for the first messages of agents, in bytes.
    room: Arc<Semaphore>,
}

impl Identity {
    pub(super) fn new(job_id: JobId, key: Key, describe: String) -> Self {
        Self { job_id, key, describe, store: None, room: Arc::new(Semaphore::new(ROOM)) }
    }

    pub(super) fn with_store(self, store: Option<StoreDoor>) -> Self {
        Self { store, ..self }
    }
}

/// Why a handshake ended.
enum Failure {
    Io(io::Error),
    Handshake(HandshakeError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The coordinator's side. A silent peer costs a socket, a timer and this task.
pub(super) async fn greet(link: u64, stream: TcpStream, identity: Arc<Identity>, events: Sender<NetEvent>) {
    let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else {
        let _ = events.send(NetEvent::Left { link }).await;
        return;
    };
    let address = peer.ip().to_canonical();
    let is_here = address.is_loopback() || address == local.ip().to_canonical();
    let source = (!is_here).then_some(address);
    let _ = stream.set_nodelay(true);
    let Some(stream) = unless_client(stream, identity.store.as_ref()).await else {
        let _ = events.send(NetEvent::Left { link }).await;
        return;
    };
    let mut halves = stream.into_split();
    match timeout(HANDSHAKE, prove(&mut halves, &identity)).await {
        Ok(Ok((session, rest))) => {
            if let Ok(Some(event)) =
                timeout(HANDSHAKE, welcome(link, source, halves, *session, rest, &identity.room)).await
            {
                let _ = events.send(event).await;
                return;
            }
        }
        Ok(Err(Failure::Handshake(error))) => {
            let answer = match error {
                HandshakeError::OtherVersion { version } => Some(Answer::OtherVersion { version }),
                HandshakeError::WrongToken => Some(Answer::OtherToken),
                HandshakeError::OtherJob { text } => Some(Answer::OtherJob { text: format!("job `{text}`") }),
                _ => None,
            };
            if let Some(answer) = answer {
                let _ = events.send(NetEvent::TurnedAway { address, answer }).await;
                let (mut reader, writer) = halves;
                // Closing with unread bytes would reset the connection and discard our answer.
                drop(writer);
                let _ = timeout(HEAR_WHY, drain(&mut reader)).await;
            }
        }
        Ok(Err(Failure::Io(_))) | Err(_) => {}
    }
    let _ = events.send(NetEvent::Left { link }).await;
}

/// Passes a client of torch's store on to it: its first byte is not that of an agent. A peer that sends nothing is closed.
async fn unless_client(stream: TcpStream, store: Option<&StoreDoor>) -> Option<TcpStream> {
    let Some(store) = store else { return Some(stream) };
    let (epoch, mut first) = (store.epoch(), [0]);
    match timeout(HANDSHAKE, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first[0] == MAGIC[0] => Some(stream),
        Ok(Ok(1)) => {
            if let Ok(stream) = stream.into_std() {
                store.adopt(stream, epoch);
            }
            None
        }
        _ => None,
    }
}

/// Reads the first message of an authenticated peer, which says what the connection is for.
async fn welcome(
    link: u64,
    source: Option<IpAddr>,
    mut halves: Halves,
    mut session: Session,
    rest: Vec<u8>,
    room: &Arc<Semaphore>,
) -> Option<NetEvent> {
    let First { frame, rest, room } = frames::first(&mut halves.0, &mut session.decoder, rest, room).await.ok()?;
    let Frame::Message(payload) = frame else { return None };
    match read_first(&payload).ok()? {
        FromAgent::Join(join) => {
            session.decoder.set_limit(AFTER_JOIN);
            let parts = Box::new(Parts { halves, session, rest });
            Some(NetEvent::Joined { link, parts, join, source, room })
        }
        FromAgent::Logs(hello) => {
            Some(NetEvent::Logs { link, parts: Box::new(Parts { halves, session, rest }), hello })
        }
        FromAgent::Standing(_) | FromAgent::Started { .. } | FromAgent::Beat { .. } | FromAgent::Bye => None,
    }
}

async fn prove((reader, writer): &mut Halves, identity: &Identity) -> Result<(Box<Session>, Vec<u8>), Failure> {
    let mut room = MAX_FROM_AGENT;
    let mut handshake = None;
    let mut send = Vec::new();
    loop {
        reader.readable().await?;
        let Some(result) = hear(reader, room, |mut bytes| {
            room -= bytes.len();
            let handshake = match &mut handshake {
                Some(handshake) => handshake,
                None => handshake.insert(Box::new(CoordinatorHandshake::new(
                    identity.job_id.clone(),
                    umiak_sys::net::random()?,
                    identity.key.clone(),
                    identity.describe.clone(),
                ))),
            };
            let result = handshake.feed(&mut bytes, &mut send).map_err(Failure::Handshake);
            result.map(|session| session.map(|session| (Box::new(session), bytes.to_vec())))
        })?
        else {
            continue;
        };
        if !send.is_empty() {
            write_all(writer, &std::mem::take(&mut send)).await?;
        }
        match result {
            Ok(Some(proven)) => return Ok(proven),
            Ok(None) if room == 0 => return Err(Failure::Handshake(HandshakeError::Malformed)),
            Ok(None) => {}
            Err(failure) => return Err(failure),
        }
    }
}

/// Passes the available bytes to `take`; `None` if there are none yet. The buffer does not outlive the call.
fn hear<T>(reader: &mut OwnedReadHalf, room: usize, take: impl FnOnce(&[u8]) -> T) -> io::Result<Option<T>> {
    let mut buffer = [0; 2 * MAX_TEXT];
    let room = room.min(buffer.len());
    match reader.try_read(&mut buffer[..room]) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(Some(take(&buffer[..count]))),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

async fn drain(reader: &mut OwnedReadHalf) -> io::Result<()> {
    let mut room = 64usize << 10;
    while room > 0 {
        reader.readable().await?;
        hear(reader, usize::MAX, |bytes| room = room.saturating_sub(bytes.len()))?;
    }
    Ok(())
}

/// The agent's side: resolves, connects and authenticates.
/// Each address must accept `within` this time.
pub(super) async fn reach(target: Target, identity: Arc<Identity>, within: Duration) -> Result<Box<Parts>, Answer> {
    let until = Instant::now() + HANDSHAKE;
    let addresses = match target {
        Target::Address(address) => vec![address],
        Target::Name { host, port } => resolve(&host, port, until).await?,
    };
    let mut answer = Answer::Unknown;
    let mut left = addresses.len() as u32;
    for address in addresses {
        // A silent address leaves time for the others.
        let now = Instant::now();
        let share = within.min(until.saturating_duration_since(now) / left);
        left -= 1;
        let stream = match timeout(share, connect(address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                answer = told_by(&error);
                continue;
            }
            Err(_) => {
                answer = Answer::Silent;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let mut halves = stream.into_split();
        return match timeout_at(until, introduce(&mut halves, &identity)).await {
            Ok(Ok((session, rest))) => Ok(Box::new(Parts { halves, session: *session, rest })),
            Ok(Err(Failure::Handshake(error))) => Err(match error {
                HandshakeError::OtherVersion { version } => Answer::OtherVersion { version },
                HandshakeError::WrongToken => Answer::OtherToken,
                HandshakeError::OtherJob { text } => Answer::OtherJob { text },
                other => Answer::Failed { why: other.to_string() },
            }),
            Ok(Err(Failure::Io(error))) => Err(match error.kind() {
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                    Answer::Failed { why: "the connection was closed during the handshake".to_owned() }
                }
                _ => told_by(&error),
            }),
            Err(_) => Err(Answer::Silent),
        };
    }
    Err(answer)
}

async fn resolve(host: &str, port: u16, until: Instant) -> Result<Vec<SocketAddr>, Answer> {
    let failed = |why: &str| Answer::Failed { why: format!("`{host}` cannot be resolved: {why}") };
    match timeout_at(until, lookup_host((host, port))).await {
        Ok(Ok(addresses)) => match addresses.collect::<Vec<_>>() {
            none if none.is_empty() => Err(failed("it has no address")),
            some => Ok(some),
        },
        Ok(Err(error)) => Err(failed(&error.to_string())),
        Err(_) => Err(failed("no answer")),
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    let stream = socket.connect(address).await?;
    // On one host, connecting to a closed port can connect a socket to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

async fn introduce((reader, writer): &mut Halves, identity: &Identity) -> Result<(Box<Session>, Vec<u8>), Failure> {
    let mut send = Vec::new();
    let nonce = umiak_sys::net::random()?;
    let mut handshake = AgentHandshake::new(identity.job_id.clone(), nonce, identity.key.clone(), &mut send);
    loop {
        if !send.is_empty() {
            write_all(writer, &std::mem::take(&mut send)).await?;
        }
        reader.readable().await?;
        let result = hear(reader, usize::MAX, |mut bytes| {
            let session = handshake.feed(&mut bytes, &mut send).map_err(Failure::Handshake)?;
            Ok(session.map(|session| (Box::new(session), bytes.to_vec())))
        })?;
        match result {
            Some(Ok(Some(proven))) => return Ok(proven),
            Some(Err(failure)) => return Err(failure),
            Some(Ok(None)) | None => {}
        }
    }
}

/// Probes an address from which no node has joined.
pub(super) async fn probe(address: IpAddr, port: u16, events: Sender<NetEvent>) {
    let answer = match timeout(PROBE, connect(SocketAddr::from((address, port)))).await {
        Ok(Ok(_)) => Answer::Failed { why: format!("port {port} is open, but the node has not joined") },
        Ok(Err(error)) => told_by(&error),
        Err(_) => Answer::Silent,
    };
    let _ = events.send(NetEvent::Probed { address, answer }).await;
}

/// Connects to a port that a node keeps open, and closes the connection.
pub(super) async fn knock(at: SocketAddr) -> Result<(), Answer> {
    match timeout(PROBE, connect(at)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(told_by(&error)),
        Err(_) => Err(Answer::Silent),
    }
}

fn told_by(error: &io::Error) -> Answer {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Answer::Refused,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Answer::NoRoute,
        io::ErrorKind::TimedOut => Answer::Silent,
        _ => Answer::Failed { why: error.to_string() },
    }
}
