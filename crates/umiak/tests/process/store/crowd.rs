//! Many clients at once: bounded memory, and no client starves.

use std::io::Write as _;
use std::net::TcpStream;

use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

use super::{Server, count, receive, set, wait};

const CLIENTS: usize = 10_000;
const KEYS: usize = 10;
/// Of the store; half of it would do.
const MEMORY_KB: u64 = 128 << 10;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("store::ten_thousand_clients_wait_for_ten_keys_each", &[], crowd)
        .test("store::a_flood_does_not_starve_others", &[], flood)
        .test("store::a_client_that_does_not_read_is_not_read_from", &[], unread);
}

fn crowd() {
    umiak_sys::limits::raise();
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let mut pinger = server.client();
    let keys = |client: usize| (0..KEYS).map(|key| format!("/rank/{client}/{key}")).collect::<Vec<_>>();
    let mut clients: Vec<TcpStream> = Vec::with_capacity(CLIENTS);
    for at in 0..CLIENTS {
        let mut client = server.client();
        client.write_all(&wait(&keys(at))).unwrap();
        clients.push(client);
        if at.is_multiple_of(100) {
            assert_eq!(count(&mut pinger), 0);
        }
    }
    let memory = server.memory();
    assert!(memory < MEMORY_KB, "{memory} kB");
    for at in 0..CLIENTS {
        let sets: Vec<u8> = keys(at).iter().flat_map(|key| set(key.as_bytes(), b"1")).collect();
        pinger.write_all(&sets).unwrap();
    }
    assert_eq!(count(&mut pinger), (CLIENTS * KEYS) as i64);
    for client in &mut clients {
        assert_eq!(receive::<1>(client), [0]);
    }
    let memory = server.memory();
    assert!(memory < MEMORY_KB, "{memory} kB");
    drop(clients);
    server.end();
}

fn flood() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let mut stream = server.client();
    let mut drain = stream.try_clone().unwrap();
    // One-byte requests with long replies, in one long write.
    let keys: Vec<u8> = (0..1000).flat_map(|key| set(format!("/key/{key}").as_bytes(), b"")).collect();
    stream.write_all(&keys).unwrap();
    assert_eq!(count(&mut stream), 1000);
    let flooding = std::thread::spawn(move || {
        let _ = stream.write_all(&vec![17; 100_000]);
    });
    let mut pinger = server.client();
    for _ in 0..1000 {
        assert_eq!(count(&mut pinger), 1000);
    }
    let memory = server.memory();
    assert!(memory < MEMORY_KB, "{memory} kB");
    receive::<8>(&mut drain);
    drain.shutdown(std::net::Shutdown::Both).unwrap();
    flooding.join().unwrap();
    server.end();
}

fn unread() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let mut stream = server.client();
    stream.write_all(&set(b"/k", &vec![7; 1 << 20])).unwrap();
    assert_eq!(count(&mut stream), 1);
    let get = [vec![3], super::string(b"/k")].concat();
    // Twenty gigabytes, if all of it were answered.
    stream.write_all(&get.repeat(20_000)).unwrap();
    let mut pinger = server.client();
    for _ in 0..100 {
        assert_eq!(count(&mut pinger), 1);
    }
    let memory = server.memory();
    assert!(memory < MEMORY_KB, "{memory} kB");
    drop(stream);
    server.end();
}
