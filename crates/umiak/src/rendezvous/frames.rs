//! Reads frames from a socket.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use umiak_core::wire::frame::{Decoder, Frame, FrameError};

/// Size of one read.
const CHUNK: usize = 16 << 10;
/// A first frame of this length fits into what every new connection may use.
const SHORT: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct Frames {
    half: OwnedReadHalf,
    decoder: Decoder,
    ready: VecDeque<Frame>,
}

impl Frames {
    /// `rest` holds bytes that have already been read.
    pub(super) fn new(half: OwnedReadHalf, decoder: Decoder, rest: &[u8]) -> io::Result<Self> {
        let mut frames = Self { half, decoder, ready: VecDeque::new() };
        frames.understand(rest)?;
        Ok(frames)
    }

    /// Returns the next frame. Fails if no byte arrives within this time.
    pub(super) async fn next(&mut self, within: Duration) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Ok(frame);
            }
            timeout(within, self.half.readable()).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            self.read()?;
        }
    }

    /// Reads once what is available. The buffer is local, so that idle connections hold none.
    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; CHUNK];
        match self.half.try_read(&mut buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.understand(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn understand(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(frame) = self.decoder.next(&mut bytes).map_err(broken)? {
            self.ready.push_back(frame);
        }
        Ok(())
    }
}

/// The first frame of a connection.
#[derive(Debug)]
pub(super) struct First {
    pub(super) frame: Frame,
    /// Bytes read after it.
    pub(super) rest: Vec<u8>,
    /// Its share of the memory for first frames; a short one needs none.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// Returns the first frame. A long one waits until there is room for it, a permit for each byte.
pub(super) async fn first(
    half: &mut OwnedReadHalf,
    decoder: &mut Decoder,
    rest: Vec<u8>,
    all_room: &Arc<Semaphore>,
) -> io::Result<First> {
    let mut bytes = rest;
    let mut room = None;
    loop {
        let mut input = bytes.as_slice();
        if let Some(frame) = decoder.next(&mut input).map_err(broken)? {
            return Ok(First { frame, rest: input.to_vec(), room });
        }
        if let (None, Some(length)) = (&room, decoder.begun().filter(|length| *length > SHORT)) {
            room = Arc::clone(all_room).acquire_many_owned(length as u32).await.ok();
        }
        half.readable().await?;
        bytes = some(half)?;
    }
}

fn some(half: &OwnedReadHalf) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 4 << 10];
    match half.try_read(&mut buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(buffer[..count].to_vec()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn broken(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
