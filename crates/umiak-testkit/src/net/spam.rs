//! Joins by a stranger that knows the job id: without a token, its connections are authentic.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use umiak_core::machine::round::messages::{Expects, FromAgent, JobKind, Join, Stage, Standing};
use umiak_core::model::{FIRST_ATTEMPT, JobId, Timestamp};
use umiak_core::wire::Session;
use umiak_core::wire::auth::Key;
use umiak_core::wire::frame::Payload;
use umiak_core::wire::handshake::AgentHandshake;

use super::Host;
use super::helper::{Helper, say, work};

pub(super) const MODE: &str = "net-spam";

const PATIENCE: Duration = Duration::from_secs(20);

/// What a stranger does.
#[derive(Debug, Clone, Copy)]
pub enum Stranger {
    /// Joins under this address, with a host name of so many bytes, and waits for the answer.
    Joins { address: IpAddr, name: usize },
    /// Sends all but the last byte of a first message of so many bytes, and waits.
    Stalls { bytes: usize },
}

/// Many strangers on one host; their connections are closed when it is dropped.
#[derive(Debug)]
pub struct Spam {
    helper: Helper,
}

impl Spam {
    /// Makes `count` connections, one after the other. Those that stall stay open until the end.
    pub fn start(host: &Host, to: SocketAddr, count: usize, stranger: Stranger) -> Self {
        let words = match stranger {
            Stranger::Joins { address, name } => [address.to_string(), name.to_string()],
            Stranger::Stalls { bytes } => ["stalls".to_owned(), bytes.to_string()],
        };
        let arguments = [[to.to_string(), count.to_string()], words].concat();
        Self { helper: Helper::start(host, MODE, &arguments) }
    }

    /// Waits until all are made, and returns how many got an answer or could send all they wanted.
    pub fn made(&mut self) -> usize {
        self.helper.line().parse().expect("a number")
    }
}

pub(super) fn run(arguments: &[String]) -> u8 {
    let [to, count, kind, size] = arguments else { panic!("TO COUNT (ADDRESS|stalls) SIZE") };
    let (to, count) = (to.parse().expect("an address"), count.parse().expect("a number"));
    let size = size.parse().expect("a number");
    let stranger = match kind.parse() {
        Ok(address) => Stranger::Joins { address, name: size },
        Err(_) => Stranger::Stalls { bytes: size },
    };
    work(move || {
        let message = message(stranger);
        let open: Vec<TcpStream> = (0..count).filter_map(|_: usize| come(to, &message).ok()).collect();
        say(&open.len().to_string());
        std::thread::park();
        drop(open);
        0
    })
}

/// The whole message, or the beginning of its frame.
enum Message {
    Whole(Payload),
    Begun(Vec<u8>),
}

fn message(stranger: Stranger) -> Message {
    let (address, name) = match stranger {
        Stranger::Joins { address, name } => (address, name),
        Stranger::Stalls { bytes } => {
            // Length and kind of a message; a byte is missing.
            let length = u32::try_from(bytes).expect("a length").to_le_bytes();
            return Message::Begun([&length[..], &[0], &vec![b' '; bytes - 2]].concat());
        }
    };
    let join = Join {
        connected: Timestamp::default(),
        launch: 7,
        command: 7,
        line: String::new(),
        address,
        host: String::new(),
        expects: Expects::Count { nodes: 3, sort_ip: false },
        kind: JobKind::Collective,
        rank: None,
        uneven: true,
        logs: false,
        alive: None,
        standing: Standing::new(FIRST_ATTEMPT, Stage::Running),
    };
    // A field that umiak itself would cut.
    let mut message = serde_json::to_value(FromAgent::Join(Box::new(join))).expect("a message is JSON");
    message["host"] = "x".repeat(name).into();
    Message::Whole(Payload::message(&message).expect("a message"))
}

fn come(to: SocketAddr, message: &Message) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut session = introduce(&mut stream)?;
    match message {
        Message::Whole(payload) => {
            stream.write_all(&session.sealer.seal(payload))?;
            // The answer, or the end of the connection.
            stream.read_exact(&mut [0])?;
        }
        Message::Begun(bytes) => {
            // What the other side does not take waits in the kernel.
            stream.set_nonblocking(true)?;
            let _ = stream.write(bytes);
        }
    }
    Ok(stream)
}

fn introduce(stream: &mut TcpStream) -> io::Result<Session> {
    let job_id = JobId::new("default").map_err(io::Error::other)?;
    let key = Key::from_job_id(&job_id);
    let mut send = Vec::new();
    let mut handshake = AgentHandshake::new(job_id, [7; 16], key, &mut send);
    loop {
        stream.write_all(&std::mem::take(&mut send))?;
        let mut buffer = [0; 2048];
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(session) = handshake.feed(&mut &buffer[..count], &mut send).map_err(io::Error::other)? {
            return Ok(session);
        }
    }
}
