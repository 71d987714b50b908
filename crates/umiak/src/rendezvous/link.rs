//! An authenticated connection: one task reads, one writes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::de::DeserializeOwned;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use umiak_core::wire::Session;
use umiak_core::wire::frame::{Decoder, Frame, Payload, Sealer, read_message};

use super::events::NetEvent;

/// Limit on bytes queued for a slow peer.
const MAX_QUEUED: usize = 24 << 20;
/// Size of one read.
const CHUNK: usize = 16 << 10;

/// Both halves of a socket. Dropping the writer alone signals the end to the peer.
pub(super) type Halves = (OwnedReadHalf, OwnedWriteHalf);

/// A connection and its session.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) halves: Halves,
    pub(super) session: Session,
    /// Bytes that arrived after the handshake.
    pub(super) rest: Vec<u8>,
}

/// What a connection delivers.
#[derive(Debug)]
pub(super) enum Said<M> {
    Message(M),
    Gone,
    /// Always the last.
    Closed,
}

/// What a connection sends.
#[derive(Debug)]
pub(super) enum Outgoing {
    Payload(Arc<Payload>),
    /// Sealed in advance.
    Frame(Vec<u8>),
}

impl Outgoing {
    fn length(&self) -> usize {
        match self {
            Self::Payload(payload) => payload.frame_length(),
            Self::Frame(frame) => frame.len(),
        }
    }
}

/// How the messages of a peer are delivered.
#[derive(Debug)]
pub(super) struct Ear<M> {
    /// Id of the connection, part of every event.
    pub(super) id: u64,
    pub(super) wrap: fn(u64, Said<M>) -> NetEvent,
    /// True if the message is allowed here.
    pub(super) accepts: fn(&M) -> bool,
    pub(super) events: Sender<NetEvent>,
}

/// The loop's end of a connection. Dropping it closes the connection at once.
#[derive(Debug)]
pub(super) struct PeerLink {
    /// `None` while closing.
    queue: Option<UnboundedSender<Outgoing>>,
    queued: Arc<AtomicUsize>,
    /// True if what arrives is discarded.
    deaf: Arc<AtomicBool>,
    tasks: [AbortHandle; 2],
}

impl PeerLink {
    pub(super) fn open<M: DeserializeOwned + Send + 'static>(parts: Parts, ear: Ear<M>) -> Self {
        let Parts { halves: (read_half, write_half), session, rest } = parts;
        let (queue, outgoing) = unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let closed = (ear.events.clone(), (ear.wrap)(ear.id, Said::Closed));
        let writer = tokio::spawn(write(write_half, session.sealer, outgoing, Arc::clone(&queued), closed));
        let deaf = Arc::new(AtomicBool::new(false));
        let reader = Reader { half: read_half, decoder: session.decoder, ear, deaf: Arc::clone(&deaf) };
        let reader = tokio::spawn(reader.run(rest));
        Self { queue: Some(queue), queued, deaf, tasks: [writer.abort_handle(), reader.abort_handle()] }
    }

    /// Queues data. Returns false if the peer is too slow: the caller drops the link.
    #[must_use]
    pub(super) fn send(&self, outgoing: Outgoing) -> bool {
        let Some(queue) = &self.queue else { return true };
        let length = outgoing.length();
        // A writer that has ended has already reported it, or its reader has.
        let _ = queue.send(outgoing);
        self.queued.fetch_add(length, Ordering::Relaxed) + length <= MAX_QUEUED
    }

    /// Closes our direction after what is queued. The connection ends when the peer closes its own.
    pub(super) fn close(&mut self) {
        self.queue = None;
    }

    /// Closes it, and discards everything that the peer still sends.
    pub(super) fn dismiss(&mut self) {
        self.deaf.store(true, Ordering::Relaxed);
        self.close();
    }

    pub(super) fn is_open(&self) -> bool {
        self.queue.is_some()
    }
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn write(
    half: OwnedWriteHalf,
    mut sealer: Sealer,
    mut outgoing: UnboundedReceiver<Outgoing>,
    queued: Arc<AtomicUsize>,
    (events, closed): (Sender<NetEvent>, NetEvent),
) {
    while let Some(next) = outgoing.recv().await {
        let length = next.length();
        let written = match next {
            // All links share one payload, even in the middle of a write.
            Outgoing::Payload(payload) => {
                let (head, tag) = sealer.seal_around(&payload);
                write_pieces(&half, [&head, payload.bytes(), &tag]).await
            }
            Outgoing::Frame(frame) => write_all(&half, &frame).await,
        };
        if written.is_err() {
            let _ = events.send(closed).await;
            return;
        }
        queued.fetch_sub(length, Ordering::Relaxed);
    }
}

/// Writes in one piece where the socket has room.
pub(super) async fn write_all(half: &OwnedWriteHalf, bytes: &[u8]) -> io::Result<()> {
    write_pieces(half, [bytes]).await
}

/// Like `write_all`, from several slices.
async fn write_pieces<const N: usize>(half: &OwnedWriteHalf, pieces: [&[u8]; N]) -> io::Result<()> {
    let mut slices = pieces.map(IoSlice::new);
    let mut left = &mut slices[..];
    // Skips empty slices.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match half.try_write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut left, count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => half.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

struct Reader<M> {
    half: OwnedReadHalf,
    decoder: Decoder,
    ear: Ear<M>,
    deaf: Arc<AtomicBool>,
}

impl<M: DeserializeOwned> Reader<M> {
    async fn run(mut self, rest: Vec<u8>) {
        let mut said = VecDeque::new();
        let mut goes_on = self.understand(&rest, &mut said);
        loop {
            for said in said.drain(..) {
                let _ = self.ear.events.send((self.ear.wrap)(self.ear.id, said)).await;
            }
            if !goes_on {
                break;
            }
            goes_on = self.half.readable().await.is_ok() && self.read(&mut said);
        }
        let _ = self.ear.events.send((self.ear.wrap)(self.ear.id, Said::Closed)).await;
    }

    /// Reads once what is available. The buffer is local, so that thousands of idle links hold none.
    fn read(&mut self, said: &mut VecDeque<Said<M>>) -> bool {
        let mut buffer = [0; CHUNK];
        match self.half.try_read(&mut buffer) {
            Ok(0) => false,
            Ok(_) if self.deaf.load(Ordering::Relaxed) => true,
            Ok(count) => self.understand(&buffer[..count], said),
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    /// Returns false if the connection has sent something invalid.
    fn understand(&mut self, mut bytes: &[u8], said: &mut VecDeque<Said<M>>) -> bool {
        loop {
            match self.decoder.next(&mut bytes) {
                Ok(Some(Frame::Message(payload))) => {
                    let Ok(message) = read_message::<M>(&payload) else { return false };
                    if !(self.ear.accepts)(&message) {
                        return false;
                    }
                    said.push_back(Said::Message(message));
                }
                Ok(Some(Frame::Gone)) => said.push_back(Said::Gone),
                Ok(None) => return true,
                Ok(Some(Frame::Log(_))) | Err(_) => return false,
            }
        }
    }
}
