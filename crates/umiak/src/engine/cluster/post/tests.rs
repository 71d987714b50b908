use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umiak_core::cluster::Beat;
use umiak_core::model::Connect;
use umiak_sys::wait::Waker;

use super::super::files;
use super::courier::{Call, Courier};
use super::office::Office;

/// The directories of a run, and of an agent that does not see them.
struct Place {
    _directory: tempfile::TempDir,
    run: PathBuf,
    unit: PathBuf,
    agent: PathBuf,
    /// Where the agent is woken.
    socket: UdpSocket,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("run");
        let (unit, agent) = (run.join("units/0.1"), directory.path().join("agent"));
        fs::create_dir_all(&unit).unwrap();
        fs::create_dir_all(agent.join("tasks/trainer-0/attempt-1")).unwrap();
        fs::write(unit.join(files::UNIT), "the unit").unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { _directory: directory, run, unit, agent, socket }
    }

    fn open(&self) -> Office {
        let connect = Connect { host: Some("127.0.0.1".to_owned()), port: None };
        Office::open(&self.unit, &self.run, &connect, Arc::new(Waker::new().unwrap())).unwrap()
    }

    fn start(&self, office: &Office) -> Courier {
        let port = self.socket.local_addr().unwrap().port();
        Courier::start(call(office), &self.agent, None, 0, port).unwrap()
    }
}

fn call(office: &Office) -> Call {
    let [(_, addresses), (_, key)] = office.variables() else { panic!("two variables") };
    Call::new(addresses, key).unwrap()
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn files_are_copied_in_both_directions() {
    let place = Place::new();
    fs::write(place.unit.join(files::ORDERS), "one\n").unwrap();
    files::replace(&place.unit.join(files::SUPERVISOR), &Beat { count: 7, wake: Vec::new() }).unwrap();
    let office = place.open();
    assert_eq!(call(&office).fetch().unwrap(), b"the unit");
    let courier = place.start(&office);
    place.socket.recv(&mut [0; 16]).expect("the agent is woken");
    wait("orders", || text(&place.agent.join(files::ORDERS)) == "one\n");
    // The agent wakes the thread, not the supervisor.
    wait("a sign of life", || {
        files::read::<Beat>(&place.agent.join(files::SUPERVISOR))
            .is_ok_and(|beat| beat.count == 7 && !beat.wake.is_empty())
    });
    fs::write(place.unit.join(files::ORDERS), "one\ntwo\n").unwrap();
    office.look();
    wait("another order", || text(&place.agent.join(files::ORDERS)) == "one\ntwo\n");
    // More than a window, and then the report of the end.
    let log = "0123456789abcde\n".repeat(200_000);
    fs::write(place.agent.join("tasks/trainer-0/attempt-1/log"), &log).unwrap();
    fs::write(place.agent.join("tasks/trainer-0/attempt-1/command"), "#!/bin/sh\n").unwrap();
    fs::write(files::of_agent(&place.agent, 0), "ended\n").unwrap();
    wait("the report", || text(&files::of_agent(&place.unit, 0)) == "ended\n");
    assert_eq!(text(&place.run.join("tasks/trainer-0/attempt-1/log")).len(), log.len(), "the log is there before");
    courier.finish();
    assert_eq!(text(&place.run.join("tasks/trainer-0/attempt-1/log")), log);
    assert_eq!(text(&place.run.join("tasks/trainer-0/attempt-1/command")), "#!/bin/sh\n");
}

#[test]
fn another_supervisor_continues_with_the_same_keys() {
    let place = Place::new();
    let office = place.open();
    let courier = place.start(&office);
    let log = place.agent.join("tasks/trainer-0/attempt-1/log");
    fs::write(&log, "one\n").unwrap();
    wait("the first line", || text(&place.run.join("tasks/trainer-0/attempt-1/log")) == "one\n");
    let before = office.variables().to_vec();
    drop(office);
    fs::write(&log, "one\ntwo\n").unwrap();
    let mut again = None;
    wait("the port is free", || {
        let connect = Connect { host: Some("127.0.0.1".to_owned()), port: None };
        again = Office::open(&place.unit, &place.run, &connect, Arc::new(Waker::new().unwrap())).ok();
        again.is_some()
    });
    let again = again.expect("it was opened");
    assert_eq!(again.variables(), before);
    courier.finish();
    assert_eq!(text(&place.run.join("tasks/trainer-0/attempt-1/log")), "one\ntwo\n");
}

/// A scheduler starts the unit again on another node: the agent there has new files, and the supervisor the old ones.
#[test]
fn another_start_adds_to_what_is_there() {
    let place = Place::new();
    let log = place.run.join("tasks/trainer-0/attempt-1/log");
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    fs::write(&log, "before\n").unwrap();
    fs::write(files::of_agent(&place.unit, 0), "left\n").unwrap();
    let office = place.open();
    fs::write(files::of_agent(&place.agent, 0), "again\n").unwrap();
    fs::write(place.agent.join("tasks/trainer-0/attempt-1/log"), "after\n").unwrap();
    let courier = place.start(&office);
    wait("agent 0 sees the files of all", || {
        text(&place.agent.join(files::OTHERS).join("agent-0.jsonl")).starts_with("left\n")
    });
    courier.finish();
    assert_eq!(text(&log), "before\nafter\n");
    assert_eq!(text(&files::of_agent(&place.unit, 0)), "left\nagain\n");
}

#[test]
fn others_get_nothing() {
    let place = Place::new();
    let office = place.open();
    let [(_, addresses), (_, key)] = office.variables() else { panic!("two variables") };
    let (public, token) = key.split_once(':').unwrap();
    let other = Place::new().open();
    let others = other.variables()[1].1.split_once(':').unwrap().0;
    for wrong in [format!("{public}:{}", "0".repeat(token.len())), format!("{others}:{token}")] {
        let call = Call::new(addresses, &wrong).unwrap();
        assert!(call.fetch_within(Duration::ZERO).is_err(), "{wrong}");
    }
    assert!(Call::new(addresses, "zz:1").is_err());
    assert_eq!(call(&office).fetch().unwrap(), b"the unit", "it still answers");
}
