//! One client: its socket, the part of a request that has arrived, and replies that did not fit into the socket.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write as _};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use mio::net::TcpStream;
use umiak_core::machine::store::Reply;
use umiak_core::wire::store::Reader;

use super::news::Client;

/// A client with more unread bytes than this is closed. Shared values do not count: they are held only once. The longest
/// reply to one request has about half as many.
pub(super) const MAX_UNREAD: usize = 128 << 20;
/// Pieces in one call.
const PIECES: usize = 64;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    /// Index of its store.
    pub(super) store: usize,
    /// Tells connections apart that had the same place one after the other.
    pub(super) serial: u64,
    pub(super) client: Client,
    pub(super) reader: Reader,
    /// Received and, from `start`, not yet processed.
    pub(super) input: Vec<u8>,
    pub(super) start: usize,
    /// `input` may begin with a whole request.
    pub(super) has_requests: bool,
    /// The socket may have bytes to read.
    pub(super) is_readable: bool,
    /// The client sends nothing more: read until the end, for which no further event comes.
    pub(super) is_finished: bool,
    /// It is in the list of connections to continue with.
    pub(super) is_queued: bool,
    /// Replies that did not fit; while there are any, no request is processed.
    pub(super) unsent: Option<Box<Unsent>>,
    pub(super) wait: Option<Waiting>,
}

/// Its place among the clients of its store that wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) since: Instant,
    pub(super) previous: Option<usize>,
    pub(super) next: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Unsent {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have been sent.
    sent: usize,
    own: usize,
}

#[derive(Debug)]
enum Piece {
    Own(Vec<u8>),
    Shared(Rc<Vec<u8>>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// What became of bytes to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    /// The socket is full; the rest follows when it is writable.
    Later,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, store: usize, peer: SocketAddr, serial: u64) -> Self {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        Self {
            stream,
            store,
            serial,
            client: Client { pid: None, peer },
            reader: Reader::default(),
            input: Vec::new(),
            start: 0,
            has_requests: false,
            is_readable: false,
            is_finished: false,
            is_queued: false,
            unsent: None,
            wait: None,
        }
    }

    /// Sends a reply and empties it.
    pub(super) fn send(&mut self, reply: &mut Reply) -> io::Result<Sent> {
        if reply.is_empty() {
            return Ok(Sent::All);
        }
        if self.unsent.is_none() && reply.shared.is_empty() {
            let sent = self.write(&reply.bytes)?;
            if sent < reply.bytes.len() {
                self.keep(Piece::Own(reply.bytes[sent..].to_vec()));
            }
            reply.bytes.clear();
            return Ok(if self.unsent.is_some() { Sent::Later } else { Sent::All });
        }
        let mut at = 0;
        for (before, value) in reply.shared.drain(..) {
            self.keep(Piece::Own(reply.bytes[at..before].to_vec()));
            self.keep(Piece::Shared(value));
            at = before;
        }
        self.keep(Piece::Own(reply.bytes[at..].to_vec()));
        reply.bytes.clear();
        self.flush()
    }

    /// Sends one byte.
    pub(super) fn send_byte(&mut self, byte: u8) -> io::Result<Sent> {
        if self.unsent.is_some() || self.write(&[byte])? == 0 {
            self.keep(Piece::Own(vec![byte]));
            return Ok(Sent::Later);
        }
        Ok(Sent::All)
    }

    /// Continues with what did not fit.
    pub(super) fn flush(&mut self) -> io::Result<Sent> {
        let Some(unsent) = &mut self.unsent else { return Ok(Sent::All) };
        while !unsent.pieces.is_empty() {
            let mut slices: [IoSlice<'_>; PIECES] = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&unsent.pieces) {
                *slice = IoSlice::new(&piece.bytes()[if count == 0 { unsent.sent } else { 0 }..]);
                count += 1;
            }
            match self.stream.write_vectored(&slices[..count]) {
                Ok(sent) => unsent.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Later),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent = None;
        Ok(Sent::All)
    }

    /// True if the client has left too much unread.
    pub(super) fn is_stuffed(&self) -> bool {
        self.unsent.as_ref().is_some_and(|unsent| unsent.own > MAX_UNREAD)
    }

    /// How much the socket took.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn keep(&mut self, piece: Piece) {
        if piece.bytes().is_empty() {
            return;
        }
        let unsent = self.unsent.get_or_insert_default();
        unsent.own += size_of::<Piece>() + if let Piece::Own(bytes) = &piece { bytes.len() } else { 0 };
        unsent.pieces.push_back(piece);
    }
}

impl Unsent {
    fn advance(&mut self, mut sent: usize) {
        while let Some(first) = self.pieces.front() {
            let left = first.bytes().len() - self.sent;
            if sent < left {
                self.sent += sent;
                return;
            }
            sent -= left;
            self.sent = 0;
            self.pieces.pop_front();
        }
    }
}
