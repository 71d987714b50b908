//! Detached runs, and commands from other processes.

use std::fs;

use umiak_core::facts::Outcome;
use umiak_core::status::State;
use umiak_sys::descend;
use umiak_testkit::components::trials;
use umiak_testkit::sandbox::{Running, binary};
use umiak_testkit::suite::Suite;

use super::house::{House, Unwatched as _, wait_for};

const SIGKILL: i32 = 9;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run::detach::others_follow_it_to_its_end", &[], others_follow)
        .test("run::detach::outlives_its_terminal", &[], outlives_its_terminal)
        .test("run::detach::errors_come_back_to_the_caller", &[], errors_come_back)
        .test("run::detach::notices_are_told_and_recorded", &[], notices)
        .test("run::detach::logs_to_its_own_file", &[], logs_to_its_own_file)
        .test("run::detach::killed_as_it_begins", &[], killed_as_it_begins)
        .test("run::detach::one_of_two_that_resume", &[], one_of_two)
        .test("run::detach::runs_of_other_hosts", &[], other_hosts)
        .test("run::detach::lost_run_is_closed", &[], lost_run_is_closed);
}

const WAITS: &str = "umiak: v1\nname: waits\nlabels: {team: ads}\nroles:\n  trainer: {replicas: 2, command: \"LEDGER; echo hello from $UMIAK_INDEX; touch up; until test -e go; do sleep 0.01; done\"}\n";

impl House {
    fn supervisor(&self) -> u32 {
        self.run().read_supervisor().expect("a supervisor").pid
    }

    /// A house whose run has lost its supervisor.
    fn lost(document: &str) -> Self {
        let house = Self::with(document);
        house.umiak("run -d job.yaml").finish_unwatched().expect_code(0);
        house.wait_for_file("up");
        descend::signal(house.supervisor(), SIGKILL);
        house.wait_until_free();
        house
    }
}

/// Logging flags apply to the detached supervisor, and do not reach its replicas.
fn logs_to_its_own_file() {
    let house = House::with("umiak: v1\nroles:\n  trainer: {command: \"LEDGER; echo [$UMIAK_LOG]\"}\n");
    let outcome = house.umiak("run -d -vv job.yaml").finish_unwatched();
    outcome.expect_code(0).expect_err("command=\"run\"\n");
    house.umiak("wait 1").finish_unwatched().expect_code(0);
    house.wait_until_free();
    let log = fs::read_to_string(house.run().supervisor_log()).expect("its log");
    assert!(log.contains("command=\"supervise\"\n") && log.contains("engine started"), "{log}");
    assert_eq!(house.umiak("logs 1").finish_unwatched().out(), "[]\n");
    house.check_ended();
}

fn others_follow() {
    let house = House::with(WAITS);
    let outcome = house.umiak("run -d job.yaml").finish_unwatched();
    outcome.expect_code(0).expect_err("umiak logs -f run-000001");
    assert_eq!(outcome.out(), "run-000001\n");
    house.wait_for_file("up");
    let followers: Vec<_> = ["wait 1", "logs -f 1", "events -f 1"].map(|line| house.umiak(line).start()).into();
    assert_eq!(house.umiak("show 1").finish_unwatched().expect_code(0).status.code(), Some(0));
    house.touch("go");
    let outcomes: Vec<_> = followers.into_iter().map(Running::finish_unchecked).collect();
    for outcome in &outcomes {
        outcome.expect_code(0);
    }
    assert!(outcomes[1].out().contains("hello from 0"), "{}", outcomes[1].out());
    assert!(outcomes[2].out().contains("succeeded"), "{}", outcomes[2].out());
    house.wait_until_free();
    let log = fs::read_to_string(house.run().supervisor_log()).expect("its log");
    assert!(log.contains("finished") && log.contains("2 replicas"), "{log}");
    assert!(!log.contains("hello"), "output of replicas is not in the supervisor's log: {log}");
    house.check_ended();
    // Quiet and JSON output, and the exit code of `wait`.
    let house = House::with("umiak: v1\nroles:\n  trainer: {command: \"exit 7\"}\n");
    let outcome = house.umiak("run -d job.yaml --output quiet").finish_unwatched();
    assert_eq!((outcome.out().as_str(), outcome.err().as_str()), ("run-000001\n", ""));
    house.umiak("wait 1").finish_unwatched().expect_code(7);
    let outcome = house.umiak("run -d job.yaml --output json").finish_unwatched();
    let said: serde_json::Value = serde_json::from_str(&outcome.out()).expect("JSON");
    assert_eq!(said, serde_json::json!({ "v": 1, "run": "run-000002" }));
    house.umiak("wait 2").finish().expect_code(7);
}

fn outlives_its_terminal() {
    let house = House::with(WAITS);
    let line = format!("{} run -d job.yaml; kill -HUP 0; sleep 10", binary().display());
    let shell = house.sandbox.program("setsid".as_ref(), ["--wait", "sh", "-c", &line]);
    shell.env("UMIAK_HOME", house.home.path()).finish_unwatched();
    house.wait_for_file("up");
    let supervisor = house.supervisor();
    let stat = fs::read_to_string(format!("/proc/{supervisor}/stat")).expect("it lives");
    let session = stat.rsplit_once(')').expect("a name").1.split_whitespace().nth(3).expect("a session").to_owned();
    assert_eq!(session, supervisor.to_string(), "it has a session of its own");
    house.touch("go");
    house.umiak("wait 1").finish_unwatched().expect_code(0);
    house.wait_until_free();
    house.check_ended();
}

fn errors_come_back() {
    for (document, code, message) in [
        (
            "umiak: v1\nroles:\n  trainer: {command: \"LEDGER\", resources: {gpu: 1}}\n",
            125,
            "error[J0020]: too few GPUs",
        ),
        (
            "umiak: v1\nroles:\n  trainer: {command: [no-such-program]}\n",
            127,
            "error[J0021]: the command of role `trainer`",
        ),
        ("umiak: v1\nroles:\n  trainer: {comand: x}\n", 2, "comand"),
    ] {
        for line in ["run -d job.yaml", "run job.yaml"] {
            let house = House::with(document);
            let outcome = house.umiak(line).finish();
            outcome.expect_code(code).expect_err(message);
            assert_eq!(outcome.out(), "");
            assert_eq!(house.runs(), [""; 0], "{line} of {document}");
            assert_eq!(house.umiak("ls --output quiet").finish().out(), "");
            assert!(house.ledger().is_empty());
            let outcome = house.umiak(&format!("{line} --output json")).finish();
            outcome.expect_code(code).expect_err(message);
            let said: serde_json::Value = serde_json::from_str(&outcome.out()).expect("JSON");
            assert_eq!(said["error"]["severity"], "error", "{line} of {document}: {said}");
        }
    }
    // A strict limit may not be enforceable here.
    let house = House::with("umiak: v1\nroles:\n  trainer: {command: \"LEDGER\", resources: {memory: 1Gi}}\n");
    let outcome = house.umiak("run -d job.yaml --strict-resources").finish();
    if outcome.status.code() != Some(0) {
        outcome.expect_code(125).expect_err("J0020");
        assert_eq!(house.runs(), [""; 0]);
    }
}

/// Notices of the document and of the supervisor.
fn notices() {
    let document =
        "umiak: v1\nroles:\n  trainer: {command: \"LEDGER\", image: \"python:3.12\", env: {UMIAK_RANK: 7}}\n";
    let told =
        ["notice[F0051]: umiak sets `UMIAK_RANK` itself", "notice[J0023]: `image` is not used on engine `local`"];
    for line in ["run job.yaml", "run -d job.yaml"] {
        let house = House::with(document);
        let outcome = house.umiak(line).finish_unwatched();
        outcome.expect_code(0);
        house.umiak("wait 1").finish_unwatched().expect_code(0);
        let (events, explained) =
            (house.umiak("events 1").finish_unwatched(), house.umiak("explain 1").finish_unwatched());
        for text in [outcome.err(), events.out(), explained.out()] {
            for notice in told {
                assert_eq!(text.matches(notice).count(), 1, "{line}: {notice}\n{text}");
            }
        }
        house.wait_until_free();
        house.check_ended();
        let outcome = house.umiak("run -d job.yaml --output quiet").finish_unwatched();
        assert_eq!((outcome.out().as_str(), outcome.err().as_str()), ("run-000002\n", ""));
        house.umiak("wait 2").finish_unwatched().expect_code(0);
    }
}

fn killed_as_it_begins() {
    let house = House::with(WAITS);
    for die in ["0.10", "1", "2"] {
        let outcome = house.umiak("run -d job.yaml").env("UMIAK_TEST_JOURNAL_DIE", die).finish_unwatched();
        if die == "0.10" {
            // Nothing was recorded, so there is no run.
            outcome.expect_code(125).expect_err("J0007");
            wait_for("the guardian to exit", || house.sandbox.processes().is_empty());
            assert_eq!(house.runs(), [""; 0], "{}", outcome.err());
            continue;
        }
        outcome.expect_code(125).expect_err("error[J0007]").expect_err("umiak resume run-");
        break;
    }
    house.wait_until_free();
    house.touch("go");
    house.umiak("resume 1").finish().expect_code(0);
    house.check_ended();
}

/// Of two `resume` commands, only one becomes the supervisor.
fn one_of_two() {
    let house = House::lost(WAITS);
    let count = trials(50);
    for trial in 0..count {
        let mut both = [house.umiak("resume 1").start(), house.umiak("resume 1").start()];
        wait_for("one of the two to give up", || both.iter_mut().any(|one| !one.is_running()));
        let loser = usize::from(both[0].is_running());
        let [first, second] = both;
        let (mut winner, loser) = if loser == 0 { (second, first) } else { (first, second) };
        loser.finish_unchecked().expect_code(2).expect_err("J0006");
        assert!(winner.is_running());
        wait_for("a supervisor", || house.status().epoch as usize == trial + 1 && house.status().counts_live() == 2);
        winner.signal(SIGKILL);
        winner.finish_unchecked();
        house.wait_until_free();
    }
    house.touch("go");
    house.umiak("resume 1").finish().expect_code(0);
    assert_eq!(house.status().epoch as usize, count + 1);
    house.check_ended();
}

trait Live {
    fn counts_live(&self) -> u32;
}

impl Live for umiak_core::status::Status {
    fn counts_live(&self) -> u32 {
        Self::counts(&self.replicas).live
    }
}

fn other_hosts() {
    let house = House::lost(WAITS);
    let path = house.run().supervisor();
    let ours = fs::read_to_string(&path).expect("a supervisor");
    let mut other: serde_json::Value = serde_json::from_str(&ours).expect("JSON");
    other["host"] = "gpu-7".into();
    fs::write(&path, other.to_string()).expect("the sandbox can be written");
    // Another host name with the same boot id is this machine, so its locks are visible.
    assert!(house.umiak("ls").finish().out().contains("lost"));
    other["boot_id"] = "00000000-0000-0000-0000-000000000000".into();
    fs::write(&path, other.to_string()).expect("the sandbox can be written");
    for command in ["resume", "stop", "retry"] {
        let outcome = house.umiak(&format!("{command} 1")).finish();
        outcome.expect_code(125).expect_err("error[J0008]: run-000001 belongs to host `gpu-7`");
        outcome.expect_err(&format!("ssh gpu-7 umiak {command} run-000001"));
    }
    let before = house.records().len();
    other["host"] = serde_json::from_str::<serde_json::Value>(&ours).expect("JSON")["host"].clone();
    // This host after a reboot: no supervisor can be alive.
    fs::write(&path, other.to_string()).expect("the sandbox can be written");
    assert_eq!(house.records().len(), before, "the journal did not grow");
    house.touch("go");
    house.umiak("resume 1").finish().expect_code(0);
    house.check_ended();
}

fn lost_run_is_closed() {
    let house = House::lost(WAITS);
    house.umiak("wait 1").finish().expect_code(125).expect_err("J0007");
    let outcome = house.umiak("stop 1").finish();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), "run-000001 had lost its supervisor; recorded as stopped\n");
    assert_eq!(house.status().state, State::Finished { outcome: Outcome::Stopped, exit_code: 3 });
    house.umiak("stop 1").finish().expect_code(2).expect_err("J0025");
    assert_eq!(house.umiak("ls --label team=ads --output quiet").finish().out(), "run-000001\n", "its labels stay");
    house.check_ended();
    // A run that is only a directory.
    let house = House::with(WAITS);
    let run = umiak::history::RunDir::create(&house.home).expect("the sandbox can be written");
    house.umiak("resume 1").finish().expect_code(2).expect_err("never began");
    house.umiak("stop 1").finish().expect_code(0);
    assert!(run.journal().exists());
    assert!(house.status().is_finished());
}
