use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use umiak_core::wire::store::Violation;
use umiak_sys::wait::readable;

use super::*;

const VALIDATE: [u8; 5] = [0, 0xCE, 0xF7, 0x85, 0x3C];
/// Tests fail after this long instead of hanging.
const LIMIT: Duration = Duration::from_secs(60);

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn set(key: &str, value: &str) -> Vec<u8> {
    [vec![1], string(key), string(value)].concat()
}

fn get(key: &str) -> Vec<u8> {
    [vec![3], string(key)].concat()
}

fn wait(key: &str) -> Vec<u8> {
    [vec![6], 1_u64.to_le_bytes().to_vec(), string(key)].concat()
}

struct Fixture {
    stores: Stores,
    store: StoreId,
    port: u16,
}

impl Fixture {
    fn new() -> Self {
        let stores = Stores::start().unwrap();
        let store = stores.open();
        let listener = bind(Some(Ipv4Addr::LOCALHOST.into()), 0).unwrap();
        let port = listener.local_addr().unwrap().port();
        stores.listen(store, listener);
        Self { stores, store, port }
    }

    fn plain(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// A client that has said hello with this process id.
    fn client(&self, pid: u32) -> TcpStream {
        let mut stream = self.plain();
        greet(&mut stream, pid);
        stream
    }

    /// Waits until something is reported.
    fn news(&mut self) -> Vec<StoreNews> {
        assert_eq!(readable(&[self.stores.as_fd()], Some(LIMIT)).unwrap(), [true], "no news");
        self.stores.news()
    }
}

fn greet(stream: &mut TcpStream, pid: u32) {
    stream.write_all(&[&VALIDATE[..], &[13], &pid.to_le_bytes()].concat()).unwrap();
    assert_eq!(receive::<4>(stream), pid.to_le_bytes());
}

fn receive<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// True if the other side has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_renewed_store_is_empty_and_has_no_clients() {
    let fixture = Fixture::new();
    let mut old = fixture.client(1);
    old.write_all(&[set("/k", "old"), get("/k")].concat()).unwrap();
    assert_eq!(&receive::<11>(&mut old)[8..], b"old");
    // Not accepted for sure when the store is renewed: its bytes must not count either.
    let mut late = fixture.plain();
    late.write_all(&[&VALIDATE[..], &set("/late", "old")].concat()).unwrap();
    fixture.stores.renew(fixture.store);
    assert!(is_closed(&mut old));
    let mut new = fixture.client(2);
    new.write_all(&[get("/k"), get("/late"), vec![7]].concat()).unwrap();
    assert_eq!(receive::<24>(&mut new), [0; 24]);
    assert!(is_closed(&mut late));
    fixture.stores.close(fixture.store);
    assert!(is_closed(&mut new));
    bind(Some(Ipv4Addr::LOCALHOST.into()), fixture.port).unwrap();
}

#[test]
fn stores_do_not_see_each_other_and_adopt_connections() {
    let fixture = Fixture::new();
    let other = fixture.stores.open();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut adopted = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    adopted.set_read_timeout(Some(LIMIT)).unwrap();
    fixture.stores.adopt(other, listener.accept().unwrap().0);
    greet(&mut adopted, 1);
    let mut client = fixture.client(2);
    client.write_all(&[set("/k", "v"), get("/k")].concat()).unwrap();
    receive::<9>(&mut client);
    adopted.write_all(&get("/k")).unwrap();
    assert_eq!(receive::<8>(&mut adopted), [0; 8]);
}

#[test]
fn waiting_clients_are_reported_until_none_waits() {
    let mut fixture = Fixture::new();
    let mut clients: Vec<TcpStream> = (0..3).map(|pid| fixture.client(100 + pid)).collect();
    for client in &mut clients[..2] {
        client.write_all(&wait("/rank/2")).unwrap();
    }
    let pids = |clients: &[Client]| clients.iter().map(|client| client.pid.unwrap()).collect::<Vec<_>>();
    let news = fixture.news();
    let [StoreNews::Waiting { store, connected, waiting, keys }] = news.as_slice() else { panic!("{news:?}") };
    assert_eq!(*store, fixture.store);
    assert_eq!(pids(connected), [100, 101, 102]);
    assert_eq!(waiting.iter().map(|(client, _)| client.pid).collect::<Vec<_>>(), [Some(100), Some(101)]);
    assert!(waiting.iter().any(|(_, time)| *time >= patience::PATIENCE));
    assert_eq!(keys, &[(b"/rank/2".to_vec(), 2)]);
    // Another one joins them.
    clients[2].write_all(&wait("/other")).unwrap();
    let news = fixture.news();
    let [StoreNews::Waiting { waiting, keys, .. }] = news.as_slice() else { panic!("{news:?}") };
    assert_eq!((waiting.len(), keys.len()), (3, 2));
    let mut setter = fixture.client(200);
    setter.write_all(&[set("/rank/2", ""), set("/other", "")].concat()).unwrap();
    for client in &mut clients {
        assert_eq!(receive::<1>(client), [0]);
    }
    while fixture.news() != [StoreNews::Flowing { store: fixture.store }] {}
}

#[test]
fn what_the_driver_hears_of() {
    let mut fixture = Fixture::new();
    let mut client = fixture.client(7);
    let dump = set("/default_pg/0//cuda//exception_dump", "1");
    client.write_all(&[dump.clone(), dump].concat()).unwrap();
    let news = fixture.news();
    let [StoreNews::ExceptionDump { client: told, .. }] = news.as_slice() else { panic!("{news:?}") };
    assert_eq!(told.pid, Some(7));
    let mut old = fixture.plain();
    let own: SocketAddr = old.local_addr().unwrap();
    old.write_all(&[vec![3], string("init/"), 1_i64.to_le_bytes().to_vec()].concat()).unwrap();
    assert!(is_closed(&mut old));
    let news = fixture.news();
    let [StoreNews::Refused { client, why, .. }] = news.as_slice() else { panic!("{news:?}") };
    assert_eq!((client.peer, *why), (own, Violation::Torch22));
    let mut junk = fixture.plain();
    junk.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(is_closed(&mut junk));
    assert!(fixture.stores.news().is_empty());
}

#[test]
fn long_replies_reach_clients_that_read_late() {
    let fixture = Fixture::new();
    let mut client = fixture.client(1);
    let value = "x".repeat(8 << 20);
    client.write_all(&set("/k", &value)).unwrap();
    let keys = string("/k").repeat(20);
    let request = [&[10][..], &20_u64.to_le_bytes(), &keys, &get("/k")].concat();
    client.write_all(&request).unwrap();
    assert_eq!(receive::<8>(&mut client), (value.len() as u64).to_le_bytes());
    // Others are served meanwhile.
    let mut other = fixture.client(2);
    other.write_all(&[7]).unwrap();
    assert_eq!(receive::<8>(&mut other), 1_i64.to_le_bytes());
    let mut received = vec![0; value.len() + 8];
    for _ in 0..20 {
        client.read_exact(&mut received).unwrap();
        assert!(received[..value.len()] == *value.as_bytes());
    }
    client.read_exact(&mut received[8..]).unwrap();
    assert!(received[8..] == *value.as_bytes());
}
