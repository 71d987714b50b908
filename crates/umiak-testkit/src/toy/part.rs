//! The processes of a parameter-server job: servers that listen, and trainers that connect to them.

use std::fmt;
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

/// Open until the process exits.
static LISTENERS: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());
static CONNECTIONS: Mutex<Vec<TcpStream>> = Mutex::new(Vec::new());

const SERVERS: &str = "PADDLE_PSERVERS_IP_PORT_LIST";

/// Which process of the job this is, from the launcher's variables.
pub(super) struct Part {
    role: &'static str,
    index: String,
}

impl Part {
    pub(super) fn own() -> Self {
        let id = || std::env::var("PADDLE_TRAINER_ID").ok();
        let (role, index) = match std::env::var("TRAINING_ROLE").as_deref() {
            Ok("PSERVER") => ("pserver", place_in(SERVERS)),
            Ok("HETER_TRAINER") => ("heter_trainer", place_in("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST")),
            Ok("COORDINATOR") => ("coordinator", id()),
            // Outside a launcher it is the only process.
            _ => ("trainer", id().or_else(|| Some("0".to_owned()))),
        };
        Self { role, index: index.unwrap_or_else(|| "?".to_owned()) }
    }

    /// True if a list contains it: by name, by role, by number for a trainer, or by `*`.
    pub(super) fn is_in(&self, list: &str) -> bool {
        let is_named = |word: &str| {
            word == "*" || word == self.role || word == self.to_string() || self.role == "trainer" && word == self.index
        };
        list.split(',').any(is_named)
    }

    /// The number alone for a trainer, otherwise the name.
    pub(super) fn file_ending(&self) -> String {
        if self.role == "trainer" { self.index.clone() } else { self.to_string() }
    }

    /// Writes `pid.NAME` atomically.
    pub(super) fn write_pid(&self) {
        let (path, new) = (format!("pid.{self}"), format!("new-pid.{self}"));
        std::fs::write(&new, std::process::id().to_string()).expect("can be written");
        std::fs::rename(new, path).expect("can be renamed");
    }

    /// True on the first attempt in this directory.
    pub(super) fn fails_first(&self) -> bool {
        std::fs::File::create_new(format!("failed.{self}")).is_ok()
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.role, self.index)
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by the launcher"))
}

fn own_endpoint() -> String {
    format!("{}:{}", variable("POD_IP"), variable("PADDLE_PORT"))
}

fn place_in(list: &str) -> Option<String> {
    let (list, own) = (variable(list), own_endpoint());
    list.split(',').position(|endpoint| endpoint == own).map(|place| place.to_string())
}

/// Listens at its own endpoint.
pub(super) fn listen() {
    listen_at(&own_endpoint());
}

/// A server that accepts one connection and no other.
pub(super) fn listen_once() {
    let endpoint = own_endpoint();
    let listener = TcpListener::bind(&endpoint).unwrap_or_else(|error| panic!("{endpoint}: {error}"));
    say(&format!("listening at {endpoint}"));
    let (_peer, from) = listener.accept().unwrap_or_else(|error| panic!("{endpoint}: {error}"));
    say(&format!("accepted {from}"));
}

/// Listens as the first server, where gloo's processes rendezvous.
pub(super) fn listen_for_gloo() {
    listen_at(&variable("PADDLE_GLOO_HTTP_ENDPOINT"));
}

fn listen_at(endpoint: &str) {
    let listener = TcpListener::bind(endpoint).unwrap_or_else(|error| panic!("{endpoint}: {error}"));
    LISTENERS.lock().expect("one thread").push(listener);
    say(&format!("listening at {endpoint}"));
}

/// Connects to every server, once: fails if it was started too early.
pub(super) fn reach() {
    connect(|endpoint| TcpStream::connect(endpoint).unwrap_or_else(|error| panic!("{endpoint}: {error}")));
}

/// Connects to every server once it listens.
pub(super) fn seek() {
    connect(super::ring::dial);
}

fn connect(dial: impl Fn(&str) -> TcpStream) {
    for endpoint in variable(SERVERS).split(',') {
        CONNECTIONS.lock().expect("one thread").push(dial(endpoint));
        say(&format!("reached {endpoint}"));
    }
}

fn say(text: &str) {
    super::write_out(&mut std::io::stdout(), format!("{text}\n").as_bytes());
}
