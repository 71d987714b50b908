//! The client against real etcd, each test with a cluster of its own. Skipped if etcd is missing.

mod errors;
mod members;
mod security;
mod watches;

use std::future::Future;
use std::time::{Duration, Instant};

use umiak_core::model::EtcdOptions;
use umiak_core::wire::etcd::{KeyValue, Refusal, Revision};
use umiak_testkit::components::{Component, is_present};
use umiak_testkit::etcd::Cluster;

use super::{Created, Etcd, EtcdError, Lease, Limits, Replaced};
use crate::network;

/// Tests fail after this long instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a future on the network's thread, as the product does.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let limited = async { tokio::time::timeout(PATIENCE, future).await.expect("it ends in time") };
    network::handle().unwrap().block_on(limited)
}

fn is_missing() -> bool {
    !is_present(Component::Etcd)
}

fn options(servers: &str) -> EtcdOptions {
    let endpoints = servers.split(',').map(|server| server.parse().unwrap()).collect();
    EtcdOptions { endpoints, tls: None, user: None }
}

fn client(cluster: &Cluster) -> Etcd {
    Etcd::new(options(&cluster.addresses())).unwrap()
}

fn short() -> Limits {
    Limits { request: Duration::from_secs(1), call: Duration::from_secs(3), quiet: Duration::from_millis(300) }
}

/// For calls that must succeed on a busy machine, whatever happens to members.
fn patient() -> Limits {
    Limits { call: Duration::from_secs(60), ..short() }
}

fn shown(entry: Option<KeyValue>) -> Option<String> {
    entry.map(|entry| String::from_utf8(entry.value).unwrap())
}

#[test]
fn keys() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(1);
    let etcd = client(&cluster);
    wait(async {
        assert_eq!(etcd.get("/a").await.unwrap(), None);
        let first = etcd.put("/a", b"1", None).await.unwrap();
        let second = etcd.put("/a/b", b"\xff\0", None).await.unwrap();
        assert_eq!(second, first.next());
        let listing = etcd.list("/a").await.unwrap();
        assert_eq!(listing.revision, second);
        assert_eq!(listing.entries[1].value, b"\xff\0");
        assert_eq!(shown(etcd.get("/a").await.unwrap()).as_deref(), Some("1"));

        let Created::Created(created) = etcd.create("/c", b"me", None, &[]).await.unwrap() else { panic!("it is new") };
        let Created::Taken(found) = etcd.create("/c", b"me", None, &[]).await.unwrap() else { panic!("it is there") };
        assert_eq!((found.value.as_slice(), found.modified), (&b"me"[..], created));
        let Replaced::Replaced(changed) = etcd.replace("/c", created, b"2", None).await.unwrap() else { panic!() };
        let Replaced::Changed(Some(found)) = etcd.replace("/c", created, b"3", None).await.unwrap() else { panic!() };
        assert_eq!((found.value.as_slice(), found.modified), (&b"2"[..], changed));
        assert!(etcd.delete("/c").await.unwrap() && !etcd.delete("/c").await.unwrap());
        assert_eq!(etcd.replace("/c", changed, b"3", None).await.unwrap(), Replaced::Changed(None));

        for key in ["/job1", "/job1/np", "/job1/nodes/x", "/job10/np", "/job1x"] {
            etcd.put(key, b"", None).await.unwrap();
        }
        assert_eq!(etcd.delete_tree("/job1").await.unwrap(), 3);
        assert_eq!(etcd.list("/job1").await.unwrap().entries.len(), 2);
    });
}

#[test]
fn leases() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(1);
    let etcd = client(&cluster);
    wait(async {
        let lease = etcd.grant(Duration::from_secs(2)).await.unwrap();
        etcd.put("/mine", b"1", Some(lease)).await.unwrap();
        let entry = etcd.get("/mine").await.unwrap().unwrap();
        assert_eq!(entry.lease, Some(lease));
        // Kept alive for longer than its time.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            assert_eq!(etcd.keep_alive(lease).await.unwrap(), Lease::Alive(Duration::from_secs(2)));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert!(etcd.get("/mine").await.unwrap().is_some());
        // Not kept alive any more.
        let mut watch = etcd.watch("/mine", entry.modified.next()).unwrap();
        let gone = watch.next().await.unwrap();
        assert!(format!("{gone:?}").contains("Deleted { key: \"/mine\""), "{gone:?}");
        assert_eq!(etcd.keep_alive(lease).await.unwrap(), Lease::Expired);
        let error = etcd.put("/mine", b"1", Some(lease)).await.unwrap_err();
        assert!(matches!(error, EtcdError::Refused { refusal: Refusal::NoLease, .. }), "{error:?}");
        etcd.revoke(lease).await.unwrap();

        let lease = etcd.grant(Duration::from_millis(100)).await.unwrap();
        etcd.put("/mine", b"2", Some(lease)).await.unwrap();
        etcd.revoke(lease).await.unwrap();
        assert_eq!(etcd.get("/mine").await.unwrap(), None);
    });
}

/// Two clients compete for a key.
#[test]
fn one_of_many_creates_a_key() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(1);
    wait(async {
        let mut tasks = Vec::new();
        for number in 0..16_u8 {
            let etcd = client(&cluster);
            tasks.push(tokio::spawn(async move { etcd.create("/leader", &[number], None, &[]).await.unwrap() }));
        }
        let mut created = Vec::new();
        for task in tasks {
            if let Created::Created(Revision(revision)) = task.await.unwrap() {
                created.push(revision);
            }
        }
        assert_eq!(created.len(), 1);
    });
}
