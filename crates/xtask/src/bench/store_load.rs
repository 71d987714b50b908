//! Clients of a store, for `cargo xtask bench store`: one thread, blocking sockets.
//!
//! Each connection has one request in progress, as torch's clients have. The thread takes the connections in turn:
//! it receives a reply and sends the next request, so all other connections keep the server busy meanwhile.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

/// Length of the blob that a gloo rank publishes.
const BLOB: usize = 170;

/// What the clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Each adds to one counter of its own, again and again.
    Add,
    /// Each reads one key, as the API does: WAIT, then GET.
    Get,
    /// All connect and add to `init/`, then meet at a barrier of the server.
    Barrier,
    /// All connect and add to `init/`, then meet as older clients do: ADD, the last one SETs, all WAIT.
    AddWait,
    /// Each publishes a blob and reads those of all others: WAIT, WAIT, GET.
    Gloo,
}

impl Load {
    pub(crate) const ALL: [Self; 5] = [Self::Add, Self::Get, Self::Barrier, Self::AddWait, Self::Gloo];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Get => "get",
            Self::Barrier => "barrier",
            Self::AddWait => "add-wait",
            Self::Gloo => "gloo",
        }
    }

    /// Number of answered requests when `clients` do it; `each` is the number per client of the first two.
    pub(crate) fn requests(self, clients: u64, each: u64) -> u64 {
        match self {
            Self::Add | Self::Get => clients * each,
            Self::Barrier => 3 * clients,
            Self::AddWait => 4 * clients,
            Self::Gloo => 3 * clients * clients,
        }
    }
}

/// Does it once, and returns the time in nanoseconds. Keys carry `round`, so that rounds do not see each other's.
pub(crate) fn perform(load: Load, port: u16, clients: usize, each: u64, round: u64) -> std::io::Result<u64> {
    match load {
        Load::Add => {
            let mut clients = connect(port, clients)?;
            let requests: Vec<Vec<u8>> =
                (0..clients.len()).map(|at| with_number(4, &format!("/add/{at}"), 1)).collect();
            rolling(&mut clients, each, |client, _| (&requests[client], 8))
        }
        Load::Get => {
            let mut clients = connect(port, clients)?;
            let key = format!("/get/{round}");
            clients[0].write_all(&with_value(1, &key, &[7; BLOB]))?;
            let (wait, get) = (with_keys(6, &key), with_key(3, &key));
            rolling(&mut clients, each, |_, turn| if turn.is_multiple_of(2) { (&wait, 1) } else { (&get, 8 + BLOB) })
        }
        Load::Barrier | Load::AddWait => {
            let began = Instant::now();
            let hello = [&hello()[..], &with_number(4, "init/", 1)].concat();
            let mut clients: Vec<TcpStream> = Vec::with_capacity(clients);
            for _ in 0..clients.capacity() {
                let mut client = TcpStream::connect(("127.0.0.1", port))?;
                client.set_nodelay(true)?;
                client.write_all(&hello)?;
                clients.push(client);
            }
            let mut reply = [0; 12];
            for client in &mut clients {
                client.read_exact(&mut reply)?;
            }
            let key = format!("/barrier/{round}");
            let all = clients.len() as i64;
            if load == Load::Barrier {
                let barrier = with_number(18, &key, all);
                each_and_reply(&mut clients, &barrier, 1)?;
            } else {
                each_and_reply(&mut clients, &with_number(4, &key, 1), 8)?;
                let last = format!("{key}/last");
                if let Some(client) = clients.last_mut() {
                    client.write_all(&with_value(1, &last, b"1"))?;
                }
                each_and_reply(&mut clients, &with_keys(6, &last), 1)?;
            }
            Ok(began.elapsed().as_nanos() as u64)
        }
        Load::Gloo => {
            let mut connections = connect(port, clients)?;
            let keys: Vec<String> = (0..clients).map(|at| format!("/default_pg/0//cpu//{round}/0/{at}")).collect();
            let began = Instant::now();
            for (client, key) in connections.iter_mut().zip(&keys) {
                client.write_all(&with_value(1, key, &[7; BLOB]))?;
            }
            let waits: Vec<Vec<u8>> = keys.iter().map(|key| with_keys(6, key)).collect();
            let gets: Vec<Vec<u8>> = keys.iter().map(|key| with_key(3, key)).collect();
            rolling(&mut connections, 3 * clients as u64, |client, turn| {
                let key = (client + turn as usize / 3) % clients;
                if turn % 3 < 2 { (&waits[key], 1) } else { (&gets[key], 8 + BLOB) }
            })?;
            Ok(began.elapsed().as_nanos() as u64)
        }
    }
}

/// Sends a request on all connections, then receives all replies.
fn each_and_reply(clients: &mut [TcpStream], request: &[u8], length: usize) -> std::io::Result<()> {
    for client in clients.iter_mut() {
        client.write_all(request)?;
    }
    let mut reply = vec![0; length];
    clients.iter_mut().try_for_each(|client| client.read_exact(&mut reply))
}

/// `each` requests on every connection, chosen by connection and turn, with the lengths of their replies.
fn rolling<'a>(
    clients: &mut [TcpStream],
    each: u64,
    request: impl Fn(usize, u64) -> (&'a Vec<u8>, usize),
) -> std::io::Result<u64> {
    let mut reply = [0; 8 + BLOB];
    let began = Instant::now();
    for (at, client) in clients.iter_mut().enumerate() {
        client.write_all(request(at, 0).0)?;
    }
    for turn in 0..each {
        for (at, client) in clients.iter_mut().enumerate() {
            client.read_exact(&mut reply[..request(at, turn).1])?;
            if turn + 1 < each {
                client.write_all(request(at, turn + 1).0)?;
            }
        }
    }
    Ok(began.elapsed().as_nanos() as u64)
}

fn connect(port: u16, clients: usize) -> std::io::Result<Vec<TcpStream>> {
    (0..clients)
        .map(|_| {
            let mut client = TcpStream::connect(("127.0.0.1", port))?;
            client.set_nodelay(true)?;
            client.write_all(&hello())?;
            client.read_exact(&mut [0; 4])?;
            Ok(client)
        })
        .collect()
}

/// VALIDATE and PING.
fn hello() -> [u8; 10] {
    [0, 0xCE, 0xF7, 0x85, 0x3C, 13, 1, 0, 0, 0]
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn with_key(opcode: u8, key: &str) -> Vec<u8> {
    [&[opcode], &string(key.as_bytes())[..]].concat()
}

fn with_keys(opcode: u8, key: &str) -> Vec<u8> {
    [&[opcode], &1_u64.to_le_bytes()[..], &string(key.as_bytes())].concat()
}

fn with_value(opcode: u8, key: &str, value: &[u8]) -> Vec<u8> {
    [with_key(opcode, key), string(value)].concat()
}

fn with_number(opcode: u8, key: &str, number: i64) -> Vec<u8> {
    [&with_key(opcode, key)[..], &number.to_le_bytes()].concat()
}
