//! `umiak store`: torch's own clients, and clients that do not behave.

mod crowd;
mod frameworks;

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use umiak_testkit::sandbox::{Outcome, Running, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("store::says_where_it_listens_and_ends_on_sigterm", &[], says_where_it_listens)
        .test("store::a_port_in_use_is_an_error", &[], a_port_in_use)
        .test("store::junk_is_closed_and_harms_no_client", &[], junk)
        .test("store::an_old_torch_is_named", &[], old_torch)
        .test("store::clients_that_die_in_a_request", &[], dying_clients);
    crowd::register(suite);
    frameworks::register(suite);
}

/// First message, and a ping.
pub(crate) const HELLO: [u8; 10] = [0, 0xCE, 0xF7, 0x85, 0x3C, 13, 7, 0, 0, 0];
const SIGTERM: i32 = 15;
/// Tests fail after this long instead of hanging.
const LIMIT: Duration = Duration::from_secs(120);

/// A store on a port that the kernel chose.
pub(crate) struct Server<'a> {
    pub(crate) running: Running<'a>,
    pub(crate) port: u16,
}

impl<'a> Server<'a> {
    pub(crate) fn start(sandbox: &'a Sandbox) -> Self {
        let mut running = sandbox.umiak(["store", "--port", "0", "--output", "quiet"]).start_unread();
        let mut line = String::new();
        BufReader::new(running.take_stdout()).read_line(&mut line).expect("text");
        Self { running, port: line.trim().parse().expect("a port") }
    }

    /// Ends it, and returns what it said.
    pub(crate) fn end(self) -> Outcome {
        self.running.signal(SIGTERM);
        let outcome = self.running.finish();
        outcome.expect_code(143);
        outcome
    }

    /// Resident memory in kB.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(crate) fn plain(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("the store listens");
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    pub(crate) fn client(&self) -> TcpStream {
        let mut stream = self.plain();
        stream.write_all(&HELLO).unwrap();
        assert_eq!(receive::<4>(&mut stream), [7, 0, 0, 0]);
        stream
    }
}

pub(crate) fn receive<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).expect("an answer");
    bytes
}

/// True if the store has closed the connection.
pub(crate) fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

pub(crate) fn set(key: &[u8], value: &[u8]) -> Vec<u8> {
    [vec![1], string(key), string(value)].concat()
}

/// Waits for several keys.
pub(crate) fn wait(keys: &[String]) -> Vec<u8> {
    let strings = keys.iter().flat_map(|key| string(key.as_bytes()));
    [6].into_iter().chain((keys.len() as u64).to_le_bytes()).chain(strings).collect()
}

/// Asks for the number of keys.
pub(crate) fn count(stream: &mut TcpStream) -> i64 {
    stream.write_all(&[7]).unwrap();
    i64::from_le_bytes(receive(stream))
}

fn says_where_it_listens() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.umiak(["store", "--host", "127.0.0.1", "--port", "0", "--output", "json"]).start_unread();
    let mut stdout = BufReader::new(running.take_stdout());
    let mut text = String::new();
    while !text.ends_with("}\n") {
        assert_ne!(stdout.read_line(&mut text).unwrap(), 0, "{text}");
    }
    let said: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&said["v"], &said["host"]), (&1.into(), &"127.0.0.1".into()));
    let port = u16::try_from(said["port"].as_u64().unwrap()).unwrap();
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    client.write_all(&HELLO).unwrap();
    receive::<4>(&mut client);
    running.signal(SIGTERM);
    running.finish().expect_code(143);
    assert!(is_closed(&mut client));
}

fn a_port_in_use() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let outcome = sandbox.umiak(["store", "--port", &server.port.to_string()]).start().finish_unchecked();
    outcome.expect_code(125).expect_err("R0020").expect_err("the store cannot listen on port").expect_err("in use");
    server.end();
}

fn junk() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let mut client = server.client();
    let hello = &HELLO[..5];
    let cases: [&[u8]; 9] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        &vec![0xff; 100_000],
        &[0; 100],
        &[hello, &[19]].concat(),
        &[hello, hello].concat(),
        &[hello, &[3], &[0xff; 8]].concat(),
        &[hello, &[6], &131_073_u64.to_le_bytes()].concat(),
        &[hello, &set(b"/text", b"abc"), &[4], &string(b"/text"), &[1; 8]].concat(),
    ];
    for case in cases {
        let mut stream = server.plain();
        // The store may close it before everything is written.
        let _ = stream.write_all(case);
        assert!(is_closed(&mut stream), "{:?}", &case[..case.len().min(40)]);
        assert!(count(&mut client) <= 1);
    }
    // Connections that send nothing, or stop in the middle of a request.
    let _silent: Vec<TcpStream> = (0..100).map(|_| server.plain()).collect();
    let slow: Vec<TcpStream> = (0..100)
        .map(|at| {
            let mut stream = server.plain();
            let request = [&HELLO[..], &set(b"/slow", &[0; 100])].concat();
            stream.write_all(&request[..=at]).unwrap();
            stream
        })
        .collect();
    assert_eq!(count(&mut client), 1);
    drop(slow);
    assert_eq!(count(&mut client), 1);
    let outcome = server.end();
    assert_eq!(outcome.err(), "", "junk is not talked about");
}

fn old_torch() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let mut stream = server.plain();
    // The first request of torch 2.1: ADD of `init/`.
    stream.write_all(&[&[3][..], &string(b"init/"), &1_i64.to_le_bytes()].concat()).unwrap();
    assert!(is_closed(&mut stream));
    server.end().expect_err("R0021").expect_err("torch 2.1 or older").expect_err("127.0.0.1:");
}

fn dying_clients() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let mut watcher = server.client();
    let request = [&HELLO[..], &set(b"/large", &vec![7; 1 << 20]), &wait(&["/never".to_owned()])].concat();
    for at in [3, 7, 12, 40, 1000, 500_000, request.len() - 1, request.len()] {
        let mut stream = server.plain();
        stream.write_all(&request[..at]).unwrap();
        // With an unread reply, closing would reset the connection, and the server would lose what it has not read yet.
        if at >= HELLO.len() {
            receive::<4>(&mut stream);
        }
        drop(stream);
        assert!(count(&mut watcher) <= 1);
    }
    watcher.write_all(&[set(b"/never", b""), vec![7]].concat()).unwrap();
    receive::<8>(&mut watcher);
    // Only whole requests count.
    server.running.wait_until("two keys", || count(&mut watcher) == 2);
    server.end();
}
