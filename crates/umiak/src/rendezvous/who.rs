//! Finds out what holds a port that we cannot bind.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use umiak_core::model::JobId;
use umiak_core::wire::auth::Key;
use umiak_core::wire::handshake::{AgentHandshake, HandshakeError};

/// The process behind a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A coordinator of a job with our id and our key.
    SameJob,
    /// A coordinator of a job with another id; its description of itself.
    OtherJob(String),
    /// A coordinator of a job with our id and another key.
    OtherToken,
    /// Not umiak, or an incompatible version.
    SomebodyElse,
}

/// Connects, starts the handshake and disconnects.
pub(crate) fn who_holds(address: SocketAddr, job_id: &JobId, key: &Key) -> Holder {
    ask(address, job_id, key).unwrap_or(Holder::SomebodyElse)
}

fn ask(address: SocketAddr, job_id: &JobId, key: &Key) -> std::io::Result<Holder> {
    let patience = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let mut send = Vec::new();
    let mut handshake = AgentHandshake::new(job_id.clone(), umiak_sys::net::random()?, key.clone(), &mut send);
    loop {
        stream.write_all(&std::mem::take(&mut send))?;
        let mut buffer = [0; 2048];
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(Holder::SomebodyElse);
        }
        match handshake.feed(&mut &buffer[..count], &mut send) {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(Holder::SameJob),
            Err(HandshakeError::OtherJob { text }) => return Ok(Holder::OtherJob(text)),
            Err(HandshakeError::WrongToken) => return Ok(Holder::OtherToken),
            Err(_) => return Ok(Holder::SomebodyElse),
        }
    }
}
