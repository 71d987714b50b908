//! Real sockets between ranks, as in a collective library: each rank connects to its two neighbours.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The open sockets.
static NEIGHBOURS: Mutex<Vec<TcpStream>> = Mutex::new(Vec::new());

/// Connects to the next rank, accepts the previous one, and sends each a few bytes that are never read: closing a
/// socket with unread bytes resets the connection, as when a process dies in the middle of its work.
pub(super) fn connect() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by the launcher"));
    let endpoints = variable("PADDLE_TRAINER_ENDPOINTS");
    let endpoints: Vec<&str> = endpoints.split(',').collect();
    let rank: usize = variable("PADDLE_TRAINER_ID").parse().expect("a rank");
    let listener = TcpListener::bind(endpoints[rank]).expect("the leased port is free");
    let next = dial(endpoints[(rank + 1) % endpoints.len()]);
    let (previous, _) = listener.accept().expect("the previous rank connects");
    let mut neighbours = NEIGHBOURS.lock().expect("one thread");
    for mut stream in [next, previous] {
        stream.write_all(b"gradients").expect("the neighbour lives");
        neighbours.push(stream);
    }
}

/// Retries, since the neighbour may not listen yet.
pub(super) fn dial(endpoint: &str) -> TcpStream {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match TcpStream::connect(endpoint) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < deadline, "{endpoint}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Closes the sockets; the process keeps running.
pub(super) fn close() {
    NEIGHBOURS.lock().expect("one thread").clear();
}

/// Reads until a neighbour is lost, and prints the error of gloo.
pub(super) fn wait_for_loss() {
    let (sender, receiver) = mpsc::channel();
    for mut stream in NEIGHBOURS.lock().expect("one thread").drain(..) {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok(1..) = stream.read(&mut buffer) {}
            let peer = stream.peer_addr().map_or_else(|_| "its peer".to_owned(), |peer| peer.to_string());
            let _ = sender.send(peer);
        });
    }
    let peer = receiver.recv().expect("a thread for each neighbour");
    let text = format!(
        "Traceback (most recent call last):\n  File \"train.py\", line 12, in <module>\n    dist.all_reduce(tensor)\nRuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [{peer}]: Connection reset by peer\n"
    );
    let _ = std::io::stderr().write_all(text.as_bytes());
}
