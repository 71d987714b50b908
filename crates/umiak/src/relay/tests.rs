//! The relay between plain sockets.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use umiak_sys::ports::{LeaseRequest, PortLease, PortRange};

use super::Relay;

const PATIENCE: Duration = Duration::from_secs(20);

/// A relay, its address, and a port on which nothing listens yet, leased while the relay lives.
fn relay() -> ((Relay, Vec<PortLease>), SocketAddr, SocketAddr) {
    let listener = umiak_sys::net::listen_promptly(Some(Ipv4Addr::LOCALHOST.into()), 0).unwrap();
    let at = listener.local_addr().unwrap();
    let request = LeaseRequest { count: 1, range: PortRange::Anywhere, address: None, seed: fastrand::u64(..) };
    let (leased, leases) = umiak_sys::ports::lease(&request).unwrap();
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, leased.ports[0]));
    ((Relay::start(listener, server).unwrap(), leases), at, server)
}

fn client(at: SocketAddr) -> TcpStream {
    patient(TcpStream::connect(at).unwrap())
}

fn serve(at: SocketAddr) -> TcpListener {
    TcpListener::bind(at).unwrap()
}

fn accepted(server: &TcpListener) -> TcpStream {
    patient(server.accept().unwrap().0)
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn read<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// True if the peer has closed the connection, in whichever way.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn clients_connect_and_send_before_the_server_listens() {
    let (_relay, at, server) = relay();
    let mut clients: Vec<TcpStream> = (0..8).map(|_| client(at)).collect();
    for (number, client) in (0..).zip(&mut clients) {
        client.write_all(&[number]).unwrap();
    }
    let server = serve(server);
    for _ in 0..clients.len() {
        let mut connection = accepted(&server);
        let [number] = read(&mut connection);
        connection.write_all(&[number, 7]).unwrap();
        assert_eq!(read(&mut clients[usize::from(number)]), [number, 7]);
    }
}

#[test]
fn a_half_that_is_closed_leaves_the_other_open() {
    let (_relay, at, server) = relay();
    let server = serve(server);
    let mut client = client(at);
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut connection = accepted(&server);
    let mut question = String::new();
    connection.read_to_string(&mut question).unwrap();
    connection.write_all(b"answer").unwrap();
    drop(connection);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!((question.as_str(), answer.as_str()), ("question", "answer"));
}

#[test]
fn more_than_fits_into_buffers_arrives_whole() {
    const LENGTH: usize = 16 << 20;
    let (_relay, at, server) = relay();
    let server = serve(server);
    let mut client = client(at);
    let sender = std::thread::spawn(move || {
        let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
        client.write_all(&bytes).unwrap();
        client
    });
    let mut connection = accepted(&server);
    // All buffers on the way are full before the first byte is read.
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until && !sender.is_finished() {
        std::thread::yield_now();
    }
    let mut received = vec![0; LENGTH];
    connection.read_exact(&mut received).unwrap();
    assert!(received.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
    drop(sender.join().unwrap());
}

#[test]
fn hundreds_of_clients_are_served() {
    const CLIENTS: u16 = 300;
    let (_relay, at, server) = relay();
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| client(at)).collect();
    for (number, client) in (0..).zip(&mut clients) {
        client.write_all(&u16::to_le_bytes(number)).unwrap();
    }
    let server = serve(server);
    // Accepted as they come: the backlog of this listener is shorter.
    let connections: Vec<TcpStream> = clients.iter().map(|_| accepted(&server)).collect();
    for mut connection in connections {
        let number = read::<2>(&mut connection);
        connection.write_all(&number).unwrap();
        assert_eq!(read::<2>(&mut clients[usize::from(u16::from_le_bytes(number))]), number);
    }
}

#[test]
fn the_end_of_a_client_reaches_the_server_and_no_other_client() {
    let (_relay, at, server) = relay();
    let server = serve(server);
    let mut lives = client(at);
    let mut with_it = accepted(&server);
    let dies = client(at);
    let mut with_the_dead = accepted(&server);
    drop(dies);
    assert!(is_closed(&mut with_the_dead));
    with_it.write_all(b"!").unwrap();
    assert_eq!(read(&mut lives), *b"!");
}

#[test]
fn the_end_of_the_server_reaches_its_clients() {
    let (_relay, at, address) = relay();
    let server = serve(address);
    let mut first = client(at);
    drop((accepted(&server), server));
    assert!(is_closed(&mut first));
    // Another one may take its place.
    let mut second = client(at);
    second.write_all(b"again").unwrap();
    let server = serve(address);
    assert_eq!(read(&mut accepted(&server)), *b"again");
}

#[test]
fn a_relay_that_is_dropped_closes_everything() {
    let (relay, at, server) = relay();
    let server = serve(server);
    let mut served = client(at);
    let mut connection = accepted(&server);
    drop(relay);
    assert!(is_closed(&mut served) && is_closed(&mut connection));
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(at).is_ok() {
        assert!(Instant::now() < until, "the port is still open");
        std::thread::yield_now();
    }
}

/// A client that writes a request in two pieces waits for the acknowledgement of the first one, which the kernel delays by
/// 40 ms on a connection with answers.
#[test]
fn requests_in_several_pieces_are_not_delayed() {
    const REQUESTS: u32 = 20;
    let (_relay, at, server) = relay();
    let server = serve(server);
    let mut client = client(at);
    let mut connection = accepted(&server);
    connection.set_nodelay(true).unwrap();
    let answering = std::thread::spawn(move || {
        for _ in 0..REQUESTS {
            let request: [u8; 12] = read(&mut connection);
            connection.write_all(&request).unwrap();
        }
    });
    let began = Instant::now();
    for _ in 0..REQUESTS {
        for piece in ["ADD ", "key ", "one "] {
            client.write_all(piece.as_bytes()).unwrap();
        }
        assert_eq!(read(&mut client), *b"ADD key one ");
    }
    answering.join().unwrap();
    assert!(began.elapsed() < Duration::from_millis(40) * REQUESTS, "{:?}", began.elapsed());
}
