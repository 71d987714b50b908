//! Homes that cannot be written, full disks, files that were changed.

use std::fs;

use umiak_core::facts::{Fact, Outcome};
use umiak_core::status::State;
use umiak_testkit::components::Component::Namespaces;
use umiak_testkit::sandbox::{Running, binary};
use umiak_testkit::suite::Suite;

use super::house::{House, Unwatched as _, wait_for};

const SIGKILL: i32 = 9;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run::disk::full_before_the_start", &[Namespaces], full_before_the_start)
        .test("run::disk::full_while_running_and_freed", &[Namespaces], full_and_freed)
        .test("run::disk::full_until_the_end", &[Namespaces], full_until_the_end)
        .test("run::disk::room_is_waited_for_by_starts", &[Namespaces], starts_wait)
        .test("run::disk::read_only_home", &[Namespaces], read_only)
        .test("run::disk::homes_that_are_none", &[], no_homes)
        .test("run::disk::home_of_somebody_else", &[Namespaces], not_owned)
        .test("run::disk::newer_versions_are_left_alone", &[], newer)
        .test("run::disk::damaged_files_are_named", &[], damaged)
        .test("run::disk::directory_removed_while_running", &[], removed)
        .test("run::disk::facts_are_lost_after_a_third_signal_too", &[], removed_and_left)
        .test("run::disk::facts_come_before_what_follows", &[], facts_first)
        .test("run::disk::index_of_garbage", &[], garbage);
}

const TWO: &str = "umiak: v1\nname: two\nroles:\n  trainer: {replicas: 2, command: \"LEDGER; touch up-$UMIAK_INDEX; until test -e go; do sleep 0.01; done\"}\n";
const DONE: &str = "umiak: v1\nname: done\nroles:\n  trainer: {command: \"LEDGER\"}\n";
const FAILS: &str = "umiak: v1\nname: fails\nroles:\n  trainer: {command: \"LEDGER; exit 7\"}\n";

impl House {
    /// Runs shell lines with a small file system mounted at `state`.
    fn on_a_small_disk(&self, size: &str, lines: &str) -> Running<'_> {
        fs::create_dir_all(self.home.path()).expect("the sandbox can be written");
        let umiak = binary().display();
        self.sandbox.write(
            "lines",
            format!("mount -t tmpfs -o size={size} tmpfs state || exit 99\numiak() {{ {umiak} \"$@\"; }}\n{lines}\n"),
        );
        let mut words = vec!["--user", "--map-root-user", "--mount"];
        words.extend(["sh", "lines"]);
        self.sandbox.program("unshare".as_ref(), words).env("UMIAK_HOME", self.home.path()).env("USER", "li").start()
    }

    fn kept(&self) -> umiak::history::RunDir {
        umiak::history::RunDir::at(
            &umiak::history::Home::at(self.sandbox.path().join("kept")),
            "run-000001".parse().expect("an id"),
        )
    }
}

/// Fills the file system.
const FILL: &str = "head -c 10M /dev/zero > state/fill 2> /dev/null; head -c 10M /dev/zero >> state/fill 2> /dev/null";

fn full_before_the_start() {
    for (line, name) in [("umiak run job.yaml", "foreground"), ("umiak run -d job.yaml", "detached")] {
        let house = House::with(DONE);
        let lines = format!("{FILL}\n{line}\ncode=$?\nls state state/runs > left\nexit $code");
        let outcome = house.on_a_small_disk("64k", &lines).finish();
        outcome.expect_code(125);
        assert!(
            outcome.err().contains("No space left on device") || outcome.err().contains("no space left"),
            "{name}: {}",
            outcome.err()
        );
        assert!(!house.sandbox.read("left").contains("run-"), "{name}: {}", house.sandbox.read("left"));
        assert!(house.ledger().is_empty());
    }
    // Some files fit, but not all: either there is no run, or it waits for space.
    for free in [4, 8, 12, 16, 20, 24] {
        let house = House::with(DONE);
        let size = 128 - free;
        let lines = format!(
            "head -c {size}k /dev/zero > state/fill\n(umiak run job.yaml; echo $? > code) 2> said &\nuntil test -s code || grep -q J0003 said; do sleep 0.01; done\nrm state/fill\nwait\ncat said >&2\nls state/runs > left\nexit $(cat code)"
        );
        let outcome = house.on_a_small_disk("128k", &lines).finish();
        let left = house.sandbox.read("left");
        match outcome.code() {
            0 => assert_eq!(house.ledger()["trainer-0"], [1]),
            125 => assert!(left.is_empty() && house.ledger().is_empty(), "{free}: {left}{}", outcome.err()),
            other => panic!("{free}: code {other}\n{}", outcome.err()),
        }
    }
}

/// So many replicas that recording their ends needs a new page on the disk.
const MANY: &str = "umiak: v1\nname: many\nroles:\n  trainer: {replicas: 30, command: \"LEDGER; test $UMIAK_INDEX = 0 && go=later; until test -e ${go:-go}; do sleep 0.05; done\"}\n";
const ALL_UP: &str = "until test $(ls ledger | wc -l) = 30; do sleep 0.02; done; sleep 0.2";

/// Running replicas are not affected by a full disk; once there is space, everything is recorded.
fn full_and_freed() {
    let house = House::with(MANY);
    let lines = format!(
        "umiak run job.yaml 2> said & run=$!\n{ALL_UP}\n{FILL}\ntouch go\nuntil grep -q 'notice.J0003' said; do sleep 0.01; done\nrm state/fill\nuntil grep -q 'is writable again' said; do sleep 0.01; done\ntouch later\nwait $run\ncode=$?\ncp -r state kept\nexit $code"
    );
    let outcome = house.on_a_small_disk("1m", &lines).finish();
    let said = house.sandbox.read("said");
    assert_eq!(outcome.code(), 0, "{said}");
    let status = umiak::history::journal::replay(&house.kept()).expect("a journal that can be read").status;
    assert_eq!(status.state, State::Finished { outcome: Outcome::Succeeded, exit_code: 0 }, "{said}");
    assert!(house.ledger().values().all(|lines| *lines == [1]));
}

fn full_until_the_end() {
    let house = House::with(MANY);
    let lines = format!(
        "umiak run job.yaml 2> said & run=$!\n{ALL_UP}\n{FILL}\ntouch go later\nwait $run\ncode=$?\nrm state/fill\numiak resume run-000001 2> again || exit 98\ncp -r state kept\nexit $code"
    );
    let outcome = house.on_a_small_disk("1m", &lines).finish();
    let said = house.sandbox.read("said");
    assert!(outcome.status.code() == Some(125), "{:?}\n{said}\n{}", outcome.status, house.sandbox.read("again"));
    assert!(said.contains("error[J0003]: events of the run could not be written"), "{said}");
    assert!(said.contains("ended with code 0"), "{said}");
    // Facts that could not be written are lost, and `resume` runs those replicas again.
    let status = umiak::history::journal::replay(&house.kept()).expect("a journal that can be read").status;
    assert_eq!(status.state, State::Finished { outcome: Outcome::Succeeded, exit_code: 0 });
    assert!(house.ledger().values().any(|lines| *lines == [1, 2]));
}

/// A start that cannot be recorded waits until there is space. The journal may have space where the attempt's directory
/// has none. The failure is reported once, however often writing is retried.
fn starts_wait() {
    let house = House::with(
        "umiak: v1\nname: later\nroles:\n  first: {command: \"LEDGER; touch up; until test -e go; do sleep 0.01; done\"}\n  second: {command: \"LEDGER\", start_after: {role: first, when: succeeded}}\n",
    );
    let lines = format!(
        "umiak run job.yaml 2> said & run=$!\nuntil test -e up; do sleep 0.01; done\n{FILL}\ntouch go\nuntil grep -q 'but none are started' said; do sleep 0.01; done\nsleep 2.3\ntest -e ledger/second-0 && exit 97\nrm state/fill\nwait $run\ncode=$?\ncp -r state kept\nexit $code"
    );
    let outcome = house.on_a_small_disk("1m", &lines).finish();
    assert!(outcome.status.code() == Some(0), "{:?} {}\n{}", outcome.status, outcome.err(), house.sandbox.read("said"));
    let said = house.sandbox.read("said");
    for words in ["cannot write to the run's directory: replicas keep running", "the run's directory is writable again"]
    {
        assert_eq!(said.matches(words).count(), 1, "{said}");
    }
    let status = umiak::history::journal::replay(&house.kept()).expect("a journal that can be read").status;
    assert_eq!(status.state, State::Finished { outcome: Outcome::Succeeded, exit_code: 0 });
    assert_eq!(house.ledger()["second-0"], [1]);
}

fn read_only() {
    let house = House::with(DONE);
    let lines = "mkdir state/runs; mount -o remount,ro state || exit 99\numiak run job.yaml; a=$?\numiak run -d job.yaml; b=$?\numiak ls; c=$?\nexit $((a == 125 && b == 125 && c == 0 ? 0 : 1))";
    let outcome = house.on_a_small_disk("64k", lines).finish();
    outcome.expect_code(0);
    let said = house.neutral(&outcome.err());
    let error = "error[J0001]: cannot create `DIR/state/runs/run-000001`\n  reason  read-only file system\nhint: free the path, or set `UMIAK_HOME` to another directory\n";
    assert_eq!(said, format!("{error}{error}no runs yet\n"));
    assert!(house.ledger().is_empty());
}

fn no_homes() {
    let house = House::with(DONE);
    house.touch("file");
    for (home, message) in [
        ("file", "error[J0001]: cannot create `DIR/file`\n  reason  not a directory\n"),
        ("file/below", "error[J0001]: cannot create `DIR/file`\n  reason  not a directory\n"),
        ("/proc/nowhere", "error[J0001]: cannot create `/proc/nowhere`\n  reason  no such file or directory\n"),
    ] {
        for line in ["run job.yaml", "run -d job.yaml"] {
            let path = house.sandbox.path().join(home);
            let outcome = house.umiak(line).env("UMIAK_HOME", path).finish();
            outcome.expect_code(125);
            assert!(house.neutral(&outcome.err()).starts_with(message), "{home}: {}", house.neutral(&outcome.err()));
        }
    }
    let mut run = house.umiak("run job.yaml");
    run.command.env_remove("UMIAK_HOME").env_remove("HOME").env_remove("XDG_STATE_HOME");
    let outcome = run.finish();
    outcome.expect_code(125);
    assert_eq!(
        outcome.err(),
        "error[J0001]: no directory for recorded runs: neither `UMIAK_HOME`, `XDG_STATE_HOME` nor `HOME` is set\nhint: set `UMIAK_HOME` to a directory\n"
    );
    assert!(house.ledger().is_empty());
}

/// Runs as a user without access to the home.
fn not_owned() {
    let house = House::with(DONE);
    fs::create_dir_all(house.home.runs()).expect("the sandbox can be written");
    let umiak = binary().display().to_string();
    // Without capabilities, even the owner cannot enter a directory of mode 0.
    house.sandbox.write(
        "lines",
        format!("chmod 0 state/runs\nsetpriv --bounding-set=-all --inh-caps=-all {umiak} run job.yaml\ncode=$?\nchmod 700 state/runs\nexit $code\n"),
    );
    let words = ["--user", "--map-root-user", "sh", "lines"];
    let run = house.sandbox.program("unshare".as_ref(), words).env("UMIAK_HOME", house.home.path());
    let outcome = run.finish_unwatched();
    outcome.expect_code(125).expect_err("error[J0001]").expect_err("permission denied");
    assert!(house.ledger().is_empty());
}

/// A house whose supervisor was killed.
fn lost(document: &str) -> House {
    let house = House::with(document);
    let run = house.umiak("run job.yaml").start();
    house.wait_for_file("up-1");
    wait_for("both to have started", || {
        house.records().iter().filter(|record| matches!(record.fact, Fact::Started { .. })).count() == 2
    });
    run.signal(SIGKILL);
    run.finish_unchecked();
    house.wait_until_free();
    house
}

fn newer() {
    // The journal is newer.
    let house = lost(TWO);
    let journal = fs::read_to_string(house.run().journal()).expect("a journal");
    let next = house.status().next_seq;
    let later = format!("{journal}{{\"v\":2,\"seq\":{next},\"at\":9,\"type\":\"dreamt\",\"of\":1}}\n");
    fs::write(house.run().journal(), &later).expect("the sandbox can be written");
    for line in ["resume 1", "stop 1"] {
        let outcome = house.umiak(line).finish();
        outcome.expect_code(125).expect_err("error[J0005]").expect_err("version 2").expect_err("up to version 1");
    }
    assert_eq!(fs::read_to_string(house.run().journal()).expect("a journal"), later, "the journal is unchanged");
    for line in ["ls", "show 1", "events 1"] {
        house.umiak(line).finish().expect_code(0);
    }
    // The secrets are newer.
    fs::write(house.run().journal(), &journal).expect("the sandbox can be written");
    let secrets = fs::read_to_string(house.run().secrets()).expect("secrets");
    let later = secrets.replacen("{\"v\":1", "{\"v\":2", 1);
    assert_ne!(secrets, later);
    fs::write(house.run().secrets(), &later).expect("the sandbox can be written");
    let outcome = house.umiak("resume 1").finish();
    outcome.expect_code(125).expect_err("error[J0005]").expect_err("secrets.json").expect_err("version 2");
    fs::write(house.run().secrets(), &secrets).expect("the sandbox can be written");
    house.touch("go");
    house.umiak("resume 1").finish().expect_code(0);
    house.check_ended();
    // The plan, read only by `retry`, is newer.
    let house = House::with(FAILS);
    house.umiak("run job.yaml").finish().expect_code(7);
    let plan = fs::read_to_string(house.run().plan()).expect("a plan");
    fs::write(house.run().plan(), plan.replacen("{\"v\":1", "{\"v\":2", 1)).expect("the sandbox can be written");
    let outcome = house.umiak("retry 1").finish();
    outcome.expect_code(125).expect_err("error[J0005]").expect_err("plan.json").expect_err("version 2");
    house.check_ended();
}

fn damaged() {
    let house = lost(TWO);
    let secrets = fs::read(house.run().secrets()).expect("secrets");
    for damage in [&b""[..], b"{", b"{\"v\":1}", b"\xff\xff", &secrets[..secrets.len() / 2]] {
        fs::write(house.run().secrets(), damage).expect("the sandbox can be written");
        let outcome = house.umiak("resume 1").finish();
        outcome.expect_code(125).expect_err("error[J0004]").expect_err("secrets.json` is damaged");
        assert!(!outcome.err().contains("PATH"), "{}", outcome.err());
    }
    house.umiak("stop 1").finish().expect_code(0);
    house.check_ended();
    let house = House::with(FAILS);
    house.umiak("run job.yaml").finish().expect_code(7);
    fs::write(house.run().plan(), "{").expect("the sandbox can be written");
    house.umiak("retry 1").finish().expect_code(125).expect_err("error[J0004]").expect_err("plan.json` is damaged");
    house.umiak("ls").finish().expect_code(0);
    house.check_ended();
}

/// Running replicas continue, nothing new is started, and the final error says what is missing.
fn removed() {
    let house = House::with(
        "umiak: v1\nname: gone\nroles:\n  trainer: {replicas: 2, command: \"LEDGER; touch up-$UMIAK_INDEX; until test -e go; do sleep 0.01; done; touch done-$UMIAK_INDEX; exit $UMIAK_INDEX\", restarts: {max: 3, backoff: 10ms}}\n",
    );
    let run = house.umiak("run job.yaml").start();
    house.wait_for_file("up-0");
    house.wait_for_file("up-1");
    wait_for("both to have started", || {
        house.records().iter().filter(|record| matches!(record.fact, Fact::Started { .. })).count() == 2
    });
    fs::remove_dir_all(house.run().path()).expect("it can be removed");
    house.touch("go");
    let outcome = run.finish();
    outcome.expect_code(125).expect_err("error[J0003]").expect_err("the run's directory was removed");
    assert!(house.sandbox.path().join("done-0").exists() && house.sandbox.path().join("done-1").exists());
    assert_eq!(house.ledger()["trainer-1"], [1], "nothing new is started");
    assert_eq!(house.runs(), [""; 0], "the directory is not created again");
    assert_eq!(house.umiak("ls --output quiet").finish().out(), "");
}

/// The third signal does not wait for the replicas, and missing facts are still reported.
fn removed_and_left() {
    let house = House::with(
        "umiak: v1\npolicy: {grace: 1m}\nroles:\n  trainer: {command: \"trap '' TERM; touch up; until test -e go; do sleep 0.01; done\"}\n",
    );
    let run = house.umiak("run job.yaml").start();
    house.wait_for_file("up");
    wait_for("its start to be recorded", || {
        house.records().iter().any(|record| matches!(record.fact, Fact::Started { .. }))
    });
    fs::remove_dir_all(house.run().path()).expect("it can be removed");
    // All three signals are pending together, and read in the order of their numbers: SIGHUP, SIGINT, SIGTERM.
    for signal in [19, 1, 2, 15, 18] {
        run.signal(signal);
    }
    let outcome = run.finish();
    outcome.expect_code(125).expect_err("error[J0003]").expect_err("ended with code 143");
    assert_eq!(house.umiak("ls --output quiet").finish().out(), "");
}

/// An end is in the journal before `exit.json` exists.
fn facts_first() {
    let usual = House::with(DONE);
    usual.umiak("run job.yaml").finish().expect_code(0);
    let ended = usual.records().iter().position(|record| matches!(record.fact, Fact::Ended { .. })).expect("an end");
    assert!(usual.run().attempt(None, "trainer-0", 1).join("exit.json").exists());
    let house = House::with(DONE);
    let outcome = house.umiak("run job.yaml").env("UMIAK_TEST_JOURNAL_DIE", format!("{ended}.0")).start();
    outcome.finish_unchecked();
    house.wait_until_free();
    assert_eq!(house.records().len(), ended);
    assert!(!house.run().attempt(None, "trainer-0", 1).join("exit.json").exists());
    house.umiak("resume 1").finish().expect_code(0);
    house.check_ended();
}

fn garbage() {
    let house = House::with(DONE);
    house.umiak("run job.yaml").finish().expect_code(0);
    for garbage in [&b"\xff\xfe\0garbage"[..], b"{}\n[]\nnull\n", b"{\"run\":\"run-000001\"", b""] {
        fs::write(house.home.index(), garbage).expect("the sandbox can be written");
        house.check_ended();
    }
    fs::write(house.home.index(), b"garbage").expect("the sandbox can be written");
    let outcome = house.umiak("run job.yaml --output quiet").finish();
    outcome.expect_code(0);
    assert_eq!(house.umiak("ls --output quiet").finish().out().lines().count(), 2);
    // A supervisor works without a writable index.
    fs::remove_file(house.home.index()).expect("it can be removed");
    fs::create_dir(house.home.index()).expect("the sandbox can be written");
    house.umiak("run job.yaml").finish().expect_code(0);
}
