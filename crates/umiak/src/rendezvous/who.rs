//! Who has a port that we wanted.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use umiak_core::model::JobId;
use umiak_core::wire::auth::Key;
use umiak_core::wire::handshake::{AgentHandshake, HandshakeError};

/// What is behind a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A coordinator of a job of our name, with our key.
    SameJob,
    /// Of another name: its own words.
    OtherJob(String),
    /// Of our name, with another key.
    OtherToken,
    /// No umiak, or none that we understand.
    SomebodyElse,
}

/// Knocks, and goes away.
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
