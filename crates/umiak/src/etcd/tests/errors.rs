//! Servers that do not do what they should.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use umiak_testkit::etcd::{Cluster, Setup};

use super::super::Etcd;
use super::{is_missing, options, short, wait};

fn told(etcd: &Etcd) -> String {
    wait(etcd.put("/a", b"1", None)).unwrap_err().diagnostic().to_plain()
}

/// A server that answers every connection with these bytes and closes it.
fn server(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
        }
    });
    address
}

#[test]
fn nothing_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = listener.local_addr().unwrap().to_string();
    drop(listener);
    let start = Instant::now();
    let told = told(&Etcd::new(options(&format!("{free},no-such-host.invalid:1"))).unwrap());
    assert!(told.starts_with("error[R0030]: etcd cannot be reached\n"), "{told}");
    assert!(told.contains("connection refused") && told.contains("the name is unknown"), "{told}");
    assert!(start.elapsed() < Duration::from_secs(11), "{:?}", start.elapsed());
}

#[test]
fn servers_that_are_not_etcd() {
    for (answer, text) in [
        (&b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\nnot found\n"[..], "HTTP status 404: not found"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP status 200: {}"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "it does not speak HTTP"),
    ] {
        let told = told(&Etcd::with_limits(options(&server(answer)), short()).unwrap());
        assert!(told.starts_with("error[R0036]: the server is not etcd\n") && told.contains(text), "{told}");
    }
    let told = told(&Etcd::with_limits(options(&server(b"")), short()).unwrap());
    assert!(told.starts_with("error[R0030]: etcd cannot be reached\n") && told.contains("lost"), "{told}");
}

/// Answers are read up to a limit.
#[test]
fn an_answer_without_an_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(&[b' '; 1 << 13]).is_ok() {}
        }
    });
    let told = told(&Etcd::new(options(&address)).unwrap());
    assert!(told.starts_with("error[R0037]: the answer of etcd for keys below `/a` is too long"), "{told}");
}

/// A server that says nothing is given up after the time of the call.
#[test]
fn silence() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let start = Instant::now();
    let told = told(&Etcd::with_limits(options(&address), short()).unwrap());
    assert!(told.contains("no answer within 2 s"), "{told}");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[test]
fn no_quorum() {
    if is_missing() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let etcd = Etcd::with_limits(options(&cluster.addresses()), short()).unwrap();
    wait(etcd.put("/a", b"1", None)).unwrap();
    cluster.kill(0);
    cluster.kill(2);
    let told = told(&etcd);
    assert!(told.starts_with("error[R0034]: etcd has no leader, and accepts no requests\n"), "{told}");
    assert!(told.contains(&format!("{}  connection refused", cluster.address(0))), "{told}");
    // One is enough again.
    cluster.restart(2);
    wait(etcd.put("/a", b"2", None)).unwrap();
}

#[test]
fn the_storage_is_full() {
    if is_missing() {
        return;
    }
    let arguments = ["--quota-backend-bytes", "262144"].map(str::to_owned).to_vec();
    let cluster = Cluster::with(1, &Setup { arguments, ..Setup::default() });
    let etcd = Etcd::new(options(&cluster.address(0))).unwrap();
    let error = wait(async {
        for number in 0..100 {
            if let Err(error) = etcd.put(&format!("/n/{number}"), &vec![0; 60_000], None).await {
                return error;
            }
        }
        panic!("the quota is smaller");
    });
    let told = error.diagnostic().to_plain();
    assert!(told.starts_with("error[R0035]: the storage of etcd is full\n"), "{told}");
    // Deletions are still accepted, and leases are not.
    assert!(wait(etcd.delete_tree("/n")).unwrap() > 0);
    assert!(wait(etcd.grant(Duration::from_secs(5))).unwrap_err().diagnostic().to_plain().contains("R0035"));
}
