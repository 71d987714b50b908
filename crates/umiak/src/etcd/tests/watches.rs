//! Watches over all that can end a connection.

use umiak_core::wire::etcd::{Event, Revision};
use umiak_testkit::etcd::Cluster;

use super::super::{Etcd, EtcdError, Watch, WatchNews};
use super::{client, is_missing, options, patient, short, wait};

/// The next changes, as `key=value` or `-key`; other news as their names.
async fn next(watch: &mut Watch) -> Vec<String> {
    let shown = |event: Event| match event {
        Event::Put(entry) => format!("{}={}", entry.key, String::from_utf8_lossy(&entry.value)),
        Event::Deleted { key, .. } => format!("-{key}"),
    };
    match watch.next().await {
        Some(WatchNews::Changed(events)) => events.into_iter().map(shown).collect(),
        Some(WatchNews::Resync(listing)) => {
            let all = listing.entries.into_iter().map(|entry| shown(Event::Put(entry)));
            std::iter::once("resync".to_owned()).chain(all).collect()
        }
        Some(WatchNews::Lost(error)) => vec![format!("lost: {error}")],
        Some(WatchNews::Regained) => vec!["regained".to_owned()],
        Some(WatchNews::Failed(error)) => vec![format!("failed: {error}")],
        None => vec!["ended".to_owned()],
    }
}

/// Changes until this one.
async fn until(watch: &mut Watch, last: &str) -> Vec<String> {
    let mut all = Vec::new();
    while all.last().is_none_or(|seen| seen != last) {
        all.extend(next(watch).await);
    }
    all
}

#[test]
fn changes_in_order_from_a_revision() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(1);
    let etcd = client(&cluster);
    wait(async {
        etcd.put("/n/0", b"old", None).await.unwrap();
        let listing = etcd.list("/n/").await.unwrap();
        etcd.put("/n/1", b"a", None).await.unwrap();
        etcd.put("/other", b"x", None).await.unwrap();
        let mut watch = etcd.watch("/n/", listing.revision.next()).unwrap();
        etcd.put("/n/1", b"b", None).await.unwrap();
        etcd.delete_tree("/n").await.unwrap();
        let seen = until(&mut watch, "-/n/1").await;
        assert_eq!(seen, ["/n/1=a", "/n/1=b", "-/n/0", "-/n/1"]);
    });
}

/// More changes than wait in the channel, and long ones.
#[test]
fn many_changes() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(1);
    let etcd = client(&cluster);
    wait(async {
        let mut watch = etcd.watch("/n/", Revision(1)).unwrap();
        let long = vec![b'x'; 1 << 20];
        for number in 0..300 {
            let value = if number % 50 == 0 { long.as_slice() } else { b"" };
            etcd.put(&format!("/n/{number:03}"), value, None).await.unwrap();
        }
        let seen = until(&mut watch, "/n/299=").await;
        let keys: Vec<&str> = seen.iter().map(|change| &change[..6]).collect();
        assert_eq!(keys, (0..300).map(|number| format!("/n/{number:03}")).collect::<Vec<_>>());
    });
}

/// Every member is killed once; no change is lost or reported twice.
#[test]
fn members_are_killed() {
    if is_missing() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let etcd = client(&cluster);
    let mut watch = etcd.watch("/n/", Revision(1)).unwrap();
    let mut expected = Vec::new();
    for index in 0..3 {
        for number in 0..10 {
            let key = format!("/n/{index}-{number}");
            wait(etcd.put(&key, b"", None)).unwrap();
            expected.push(format!("{key}="));
            if number == 5 {
                cluster.kill(index);
            }
        }
        cluster.restart(index);
    }
    assert_eq!(wait(until(&mut watch, expected.last().unwrap())), expected);
}

/// A member that hangs is noticed by its silence.
#[test]
fn a_member_hangs() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(3);
    let writer = Etcd::new(options(&cluster.address(2))).unwrap();
    let servers = [cluster.address(0), cluster.address(1)].join(",");
    let etcd = Etcd::with_limits(options(&servers), patient()).unwrap();
    let mut watch = etcd.watch("/n/", Revision(1)).unwrap();
    for index in 0..2 {
        wait(writer.put("/n/a", b"1", None)).unwrap();
        assert_eq!(wait(until(&mut watch, "/n/a=1")).last().unwrap(), "/n/a=1");
        cluster.pause(index);
        wait(writer.put("/n/b", b"2", None)).unwrap();
        assert_eq!(wait(until(&mut watch, "/n/b=2")).last().unwrap(), "/n/b=2");
        cluster.resume(index);
    }
}

/// The only member is down while another client's changes are compacted; the watch goes on from a new list.
#[test]
fn compaction_while_the_watch_is_down() {
    if is_missing() {
        return;
    }
    let mut cluster = Cluster::start(3);
    // The watch knows one member only.
    let etcd = Etcd::with_limits(options(&cluster.address(0)), short()).unwrap();
    let writer = Etcd::new(options(&[cluster.address(1), cluster.address(2)].join(","))).unwrap();
    let mut watch = etcd.watch("/n/", Revision(1)).unwrap();
    wait(writer.put("/n/a", b"1", None)).unwrap();
    wait(writer.put("/n/b", b"1", None)).unwrap();
    assert_eq!(wait(until(&mut watch, "/n/b=1")), ["/n/a=1", "/n/b=1"]);
    cluster.kill(0);
    let lost = wait(next(&mut watch));
    assert_eq!(lost, ["lost: etcd cannot be reached"]);
    wait(writer.delete("/n/a")).unwrap();
    let Revision(now) = wait(writer.put("/n/c", b"2", None)).unwrap();
    let leader = cluster.leader();
    cluster.post(leader, "/v3/kv/compaction", &format!(r#"{{"revision":"{now}"}}"#), None);
    cluster.restart(0);
    let mut seen = wait(next(&mut watch));
    if seen == ["regained"] {
        seen = wait(next(&mut watch));
    }
    assert_eq!(seen, ["resync", "/n/b=1", "/n/c=2"]);
    wait(writer.put("/n/d", b"3", None)).unwrap();
    assert_eq!(wait(next(&mut watch)), ["/n/d=3"]);
}

/// The cluster was replaced by an empty one: its revisions begin again.
#[test]
fn a_cluster_that_was_reset() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(1);
    let etcd = client(&cluster);
    wait(async {
        etcd.put("/n/a", b"1", None).await.unwrap();
        let mut watch = etcd.watch("/n/", Revision(1000)).unwrap();
        assert_eq!(next(&mut watch).await, ["resync", "/n/a=1"]);
        etcd.put("/n/b", b"2", None).await.unwrap();
        assert_eq!(next(&mut watch).await, ["/n/b=2"]);
    });
}

#[test]
fn the_leader_is_lost_for_a_while() {
    if is_missing() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let etcd = Etcd::with_limits(options(&cluster.address(0)), short()).unwrap();
    wait(etcd.put("/n/a", b"1", None)).unwrap();
    let mut watch = etcd.watch("/n/", Revision(1)).unwrap();
    assert_eq!(wait(next(&mut watch)), ["/n/a=1"]);
    cluster.kill(1);
    cluster.kill(2);
    let news = wait(watch.next()).unwrap();
    assert!(matches!(&news, WatchNews::Lost(EtcdError::Members { .. })), "{news:?}");
    assert!(format!("{news:?}").contains("NoLeader"), "{news:?}");
    cluster.restart(1);
    assert_eq!(wait(next(&mut watch)), ["regained"]);
    wait(etcd.put("/n/b", b"2", None)).unwrap();
    assert_eq!(wait(next(&mut watch)), ["/n/b=2"]);
}
