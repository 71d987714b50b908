//! Members that are killed, paused or no longer lead, in the middle of calls.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use umiak_testkit::etcd::Cluster;

use super::super::{Created, Etcd, Replaced};
use super::{client, is_missing, options, wait};

/// Increments a key in the background, each time only if it is as before: lost or doubled requests show.
struct Counter {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    longest: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<u64>,
}

impl Counter {
    fn start(etcd: Etcd) -> Self {
        let (stop, done, longest) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::default());
        let (stopped, count, slowest) = (stop.clone(), done.clone(), Arc::<AtomicU64>::clone(&longest));
        let task = crate::network::handle().unwrap().spawn(async move {
            let mut at = etcd.put("/count", b"0", None).await.unwrap();
            let mut number = 0_u64;
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                number += 1;
                let replaced = etcd.replace("/count", at, number.to_string().as_bytes(), None).await.unwrap();
                let Replaced::Replaced(now) = replaced else { panic!("{number}: {replaced:?}") };
                at = now;
                // A key for each: the second request for one that exists must find itself.
                let name = format!("/keys/{number}");
                let created = etcd.create(&name, name.as_bytes(), None, &[]).await.unwrap();
                assert!(matches!(created, Created::Created(_)), "{created:?}");
                slowest.fetch_max(start.elapsed().as_millis() as u64, Ordering::Relaxed);
                count.store(number, Ordering::Relaxed);
            }
            number
        });
        Self { stop, done, longest, task }
    }

    /// Waits for some more.
    fn go_on(&self) {
        let (before, deadline) = (self.done.load(Ordering::Relaxed), Instant::now() + Duration::from_secs(90));
        while self.done.load(Ordering::Relaxed) < before + 20 {
            assert!(Instant::now() < deadline && !self.task.is_finished(), "no progress after {before}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it; returns the number of increments and the longest time of one in milliseconds.
    fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        (wait(self.task).unwrap(), self.longest.load(Ordering::Relaxed))
    }
}

#[expect(clippy::print_stderr, reason = "numbers for the reader")]
fn check(etcd: &Etcd, counter: Counter) {
    let (count, longest) = counter.end();
    eprintln!("{count} rounds of two writes, the longest took {longest} ms");
    assert_eq!(super::shown(wait(etcd.get("/count")).unwrap()), Some(count.to_string()));
    assert_eq!(wait(etcd.list("/keys/")).unwrap().entries.len() as u64, count);
}

#[test]
fn a_member_is_killed() {
    if is_missing() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let etcd = Etcd::with_limits(options(&cluster.addresses()), super::patient()).unwrap();
    let counter = Counter::start(etcd.clone());
    for index in [0, 1, 2, 0] {
        counter.go_on();
        cluster.kill(index);
        counter.go_on();
        cluster.restart(index);
    }
    counter.go_on();
    check(&etcd, counter);
}

#[test]
fn the_leader_moves_and_is_killed() {
    if is_missing() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let etcd = Etcd::with_limits(options(&cluster.addresses()), super::patient()).unwrap();
    let counter = Counter::start(etcd.clone());
    for _ in 0..3 {
        counter.go_on();
        cluster.move_leader((cluster.leader() + 1) % 3);
    }
    counter.go_on();
    cluster.kill(cluster.leader());
    counter.go_on();
    check(&etcd, counter);
}

/// A member that accepts connections and does not answer.
#[test]
fn a_member_hangs() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(3);
    let etcd = Etcd::with_limits(options(&cluster.addresses()), super::patient()).unwrap();
    let counter = Counter::start(etcd.clone());
    for index in 0..3 {
        counter.go_on();
        cluster.pause(index);
        counter.go_on();
        cluster.resume(index);
    }
    check(&etcd, counter);
}

/// Requests that were performed although their answer was lost are not performed again.
#[test]
fn leases_survive_the_loss_of_the_leader() {
    if is_missing() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let etcd = client(&cluster);
    let lease = wait(etcd.grant(Duration::from_secs(10))).unwrap();
    wait(etcd.put("/mine", b"1", Some(lease))).unwrap();
    cluster.kill(cluster.leader());
    let start = Instant::now();
    let kept = wait(etcd.keep_alive(lease)).unwrap();
    assert_eq!(kept, super::Lease::Alive(Duration::from_secs(10)), "after {:?}", start.elapsed());
    assert!(wait(etcd.grant(Duration::from_secs(10))).is_ok());
}

/// A server in front of etcd that loses the answer to every other request: each was performed.
fn forgetful(etcd: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&etcd).unwrap());
            let mut bytes = vec![0; 1 << 16];
            let count = client.read(&mut bytes).unwrap();
            server.write_all(&bytes[..count]).unwrap();
            let count = server.read(&mut bytes).unwrap();
            // Closed after one answer, so that every request has a connection of its own.
            if number % 2 == 1 {
                client.write_all(&bytes[..count]).unwrap();
            }
        }
    });
    address
}

#[test]
fn answers_are_lost() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(1);
    let etcd = Etcd::new(options(&forgetful(cluster.address(0)))).unwrap();
    let direct = client(&cluster);
    wait(async {
        // The second request finds the lease of the first.
        let lease = etcd.grant(Duration::from_secs(60)).await.unwrap();
        let Created::Created(revision) = etcd.create("/a", b"me", Some(lease), &[]).await.unwrap() else {
            panic!("ours")
        };
        let Replaced::Replaced(now) = etcd.replace("/a", revision, b"2", Some(lease)).await.unwrap() else {
            panic!("ours")
        };
        assert_eq!(now, revision.next());
        // What another client put there is not ours.
        direct.put("/b", b"other", None).await.unwrap();
        let taken = etcd.create("/b", b"me", None, &[]).await.unwrap();
        assert!(matches!(&taken, Created::Taken(found) if found.value == b"other"), "{taken:?}");
        etcd.revoke(lease).await.unwrap();
        assert_eq!(direct.list("").await.unwrap().entries.len(), 1);
        let leases = cluster.post(0, "/v3/lease/leases", "{}", None);
        assert!(leases.get("leases").is_none(), "{leases}");
    });
}
