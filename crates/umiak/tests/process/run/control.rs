//! The control socket: requests are obeyed, and other input has no effect.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use umiak_core::facts::{Fact, Outcome};
use umiak_core::model::StopHow;
use umiak_core::status::State;
use umiak_testkit::components::trials;
use umiak_testkit::suite::Suite;

use super::house::{House, Unwatched as _, wait_for};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run::control::noise_disturbs_nobody", &[], noise)
        .test("run::control::slow_clients_hold_up_nobody", &[], slow_clients)
        .test("run::control::stacks_are_read_for_one_client_at_a_time", &[], stacks_at_once)
        .test("run::control::stop_twice_kills", &[], stop_twice)
        .test("run::control::stop_kill", &[], stop_kill)
        .test("run::control::stop_as_it_begins", &[], stop_as_it_begins)
        .test("run::control::ctrl_c_while_leftovers_are_stopped", &[], ctrl_c_in_between)
        .test("run::control::the_last_sweep_is_hurried", &[], last_sweep)
        .test("run::control::long_homes", &[], long_homes);
}

const WAITS: &str =
    "umiak: v1\nroles:\n  trainer: {command: \"LEDGER; touch up; until test -e go; do sleep 0.01; done\"}\n";
const STUBBORN: &str = "umiak: v1\npolicy: {grace: 60s}\nroles:\n  trainer: {replicas: 2, command: \"LEDGER; trap '' TERM; touch up-$UMIAK_INDEX; while :; do sleep 0.01; done\"}\n";

impl House {
    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.run().control()).expect("a listening supervisor")
    }

    fn ask(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        // The supervisor may close the connection before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

fn noise() {
    let house = House::with(WAITS);
    let run = house.umiak("run job.yaml").start();
    house.wait_for_file("up");
    assert_eq!(house.ask(b"{\"ping\":{}}\n"), "{\"ok\":true}\n");
    for junk in [
        &b"\n"[..],
        b"junk\n",
        b"{\"stop\":{}}\n",
        b"{\"stop\":{\"kill\":1}}\n",
        b"{\"halt\":{}}\n",
        b"[[[[[[[[\n",
        b"\xff\xfe\0\0\n",
        &vec![b'x'; 1 << 20],
        &vec![b'['; 100_000],
    ] {
        let answer = house.ask(junk);
        assert!(answer.is_empty() || answer.starts_with("{\"ok\":false"), "{answer}");
    }
    // Clients that send nothing, and clients that are already gone.
    let silent: Vec<UnixStream> = (0..300).map(|_| house.connect()).collect();
    for _ in 0..300 {
        drop(house.connect());
    }
    assert_eq!(house.ask(b"{\"ping\":{}}\n"), "{\"ok\":true}\n");
    assert!(!house.records().iter().any(|record| matches!(record.fact, Fact::Stopping { .. })));
    house.touch("go");
    run.finish().expect_code(0);
    drop(silent);
    house.check_ended();
}

/// Clients that send a byte now and then do not delay other requests or the end of a rank.
fn slow_clients() {
    let house = House::with(WAITS);
    let run = house.umiak("run job.yaml").start();
    house.wait_for_file("up");
    let mut slow: Vec<UnixStream> = (0..8).map(|_| house.connect()).collect();
    let asked = Instant::now();
    for _ in 0..10 {
        for stream in &mut slow {
            stream.write_all(b" ").expect("it still listens");
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(house.ask(b"{\"ping\":{}}\n"), "{\"ok\":true}\n");
    }
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    let asked = Instant::now();
    house.touch("go");
    run.finish().expect_code(0);
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    house.check_ended();
}

/// Orders that arrive together are received in one turn: the first is being answered when the others are refused.
fn stacks_at_once() {
    const SIGSTOP: i32 = 19;
    const SIGCONT: i32 = 18;
    let house = House::with(WAITS);
    let run = house.umiak("run job.yaml").start();
    house.wait_for_file("up");
    run.signal(SIGSTOP);
    let mut clients: Vec<UnixStream> = (0..20).map(|_| house.connect()).collect();
    for client in &mut clients {
        client.write_all(b"{\"stacks\":{}}\n").expect("the order is buffered");
    }
    run.signal(SIGCONT);
    let answers: Vec<String> = clients
        .iter_mut()
        .map(|client| {
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("an answer");
            answer
        })
        .collect();
    assert!(answers[0].starts_with("{\"ok\":true,\"live\":1,\"replicas\":[{"), "{answers:?}");
    let refusal = "{\"ok\":false,\"error\":\"another `umiak stacks` is running\"}\n";
    assert!(answers.iter().any(|answer| answer == refusal), "{answers:?}");
    // After the end of an answer the next order is accepted.
    for _ in 0..5 {
        assert!(house.ask(b"{\"stacks\":{}}\n").starts_with("{\"ok\":true"));
    }
    house.touch("go");
    run.finish().expect_code(0);
    house.check_ended();
}

fn stop_twice() {
    let house = House::with(STUBBORN);
    let run = house.umiak("run job.yaml").start();
    house.wait_for_file("up-0");
    house.wait_for_file("up-1");
    let outcome = house.umiak("stop 1 --no-wait").finish_unwatched();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), "run-000001 is stopping\n");
    wait_for("the stop to be recorded", || {
        house.records().iter().any(|record| matches!(record.fact, Fact::StopSent { how: StopHow::Terminate, .. }))
    });
    let outcome = house.umiak("stop 1").finish_unwatched();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), "run-000001 stopped\n");
    run.finish().expect_code(3);
    assert_eq!(house.status().state, State::Finished { outcome: Outcome::Stopped, exit_code: 3 });
    house.check_ended();
}

fn stop_kill() {
    let house = House::with(STUBBORN);
    house.umiak("run -d job.yaml").finish_unwatched().expect_code(0);
    house.wait_for_file("up-0");
    house.wait_for_file("up-1");
    house.umiak("stop 1 --kill --output json").finish_unwatched().expect_code(0);
    // The lock is released when `stop` returns.
    house.umiak("retry 1 --output quiet").start().stop_soon(&house);
    house.check_ended();
}

trait StopSoon {
    fn stop_soon(self, house: &House);
}

impl StopSoon for umiak_testkit::sandbox::Running<'_> {
    fn stop_soon(self, house: &House) {
        wait_for("a second attempt", || house.ledger().values().all(|lines| lines.len() == 2));
        house.umiak("stop 1 --kill").finish_unwatched().expect_code(0);
        self.finish().expect_code(3);
    }
}

/// The supervisor takes the lock before it listens; `stop` waits in between.
fn stop_as_it_begins() {
    for _ in 0..trials(50).min(100) {
        let house = House::with(WAITS);
        let run = house.umiak("run job.yaml").start();
        wait_for("a lock", || umiak::history::is_held(&house.run()).unwrap_or(false));
        house.umiak("stop 1").finish_unwatched().expect_code(0);
        run.finish().expect_code(3);
        house.check_ended();
    }
}

/// Leftovers of the first attempt are stopped before the restart; signals work meanwhile.
fn ctrl_c_in_between() {
    let house = House::with(
        "umiak: v1\npolicy: {grace: 20s, settle: 10ms, restarts: {max: 1, backoff: 10ms}}\nroles:\n  trainer: {command: \"LEDGER; (trap '' TERM; while :; do sleep 0.02; done) & exit 7\"}\n",
    );
    let run = house.umiak("run job.yaml").start();
    wait_for("a restart", || house.records().iter().any(|record| matches!(record.fact, Fact::Restarting { .. })));
    let asked = Instant::now();
    run.signal(2);
    std::thread::sleep(Duration::from_millis(100));
    run.signal(2);
    std::thread::sleep(Duration::from_millis(100));
    run.signal(2);
    let outcome = run.finish_unchecked();
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}\n{}", asked.elapsed(), outcome.err());
    // The guardian finishes on its own.
    wait_for("the guardian to be done", || house.sandbox.processes().is_empty());
}

/// After the job only leftovers are awaited: a second Ctrl-C or `stop --kill` ends that.
fn last_sweep() {
    for by_signal in [true, false] {
        let house = House::with(
            "umiak: v1\npolicy: {grace: 60s}\nroles:\n  trainer: {command: \"LEDGER; (trap '' TERM; while :; do sleep 0.02; done) & exit 0\"}\n",
        );
        let run = house.umiak("run job.yaml").start();
        wait_for("the end", || house.records().iter().any(|record| matches!(record.fact, Fact::Ended { .. })));
        let asked = Instant::now();
        if by_signal {
            run.signal(2);
            std::thread::sleep(Duration::from_millis(200));
            assert!(
                !matches!(house.status().state, State::Finished { .. }),
                "leftovers keep their grace period after the first signal"
            );
            run.signal(2);
        } else {
            house.umiak("stop 1 --kill").finish_unwatched();
        }
        run.finish().expect_code(0);
        assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
        house.check_ended();
    }
}

fn long_homes() {
    let house = House::with(WAITS);
    let long = house.sandbox.path().join("a-home-of-a-name-with-many-letters/".repeat(4));
    let umiak = |line: &str| house.umiak(line).env("UMIAK_HOME", &long);
    umiak("run -d job.yaml").finish_unwatched().expect_code(0);
    house.wait_for_file("up");
    umiak("stop 1").finish().expect_code(0);
    umiak("wait 1").finish().expect_code(3);
}
