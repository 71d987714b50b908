//! Journals that were changed: what `resume`, `retry` and `stop` do.

use std::fs;

use umiak_core::facts::Fact;
use umiak_testkit::suite::Suite;

use super::house::{House, Unwatched as _, wait_for};

const SIGKILL: i32 = 9;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run::damage::resume_refuses_and_accepts", &[], resume)
        .test("run::damage::doubled_records_run_nothing_again", &[], doubled)
        .test("run::damage::an_ended_run_is_retried_from_before_it", &[], retry)
        .test("run::damage::a_live_run_is_stopped_all_the_same", &[], stop)
        .test("run::damage::a_live_run_is_not_resumed", &[], replaced)
        .test("run::damage::an_empty_journal_is_named", &[], empty)
        .test("run::damage::missing_secrets_are_named", &[], no_secrets);
}

/// The first ends at once, the second waits for `go`.
const TWO: &str = "umiak: v1\nname: two\nroles:\n  done: {command: LEDGER, completes: false}\n  trainer: {command: \"LEDGER; touch up; until test -e go; do sleep 0.01; done\"}\n";

fn has(house: &House, is_it: impl Fn(&Fact) -> bool) -> bool {
    house.records().iter().any(|record| is_it(&record.fact))
}

/// Starts it, and returns when one replica has ended and the other runs.
fn running(house: &House) -> umiak_testkit::sandbox::Running<'_> {
    let run = house.umiak("run job.yaml").start();
    house.wait_for_file("up");
    wait_for("`done-0` to be done", || has(house, |fact| matches!(fact, Fact::Ended { .. })));
    wait_for("`trainer-0` to be running", || {
        has(house, |fact| matches!(fact, Fact::Started { subject, .. } if subject.replica == "trainer-0"))
    });
    run
}

/// As it is after its supervisor was killed.
fn lost() -> House {
    let house = House::with(TWO);
    let run = running(&house);
    run.signal(SIGKILL);
    run.finish_unchecked();
    house.wait_until_free();
    house
}

fn lines(house: &House) -> Vec<String> {
    let text = fs::read_to_string(house.run().journal()).expect("a journal");
    text.split_inclusive('\n').map(str::to_owned).collect()
}

fn write(house: &House, lines: &[String]) {
    fs::write(house.run().journal(), lines.concat()).expect("the sandbox can be written");
}

fn position(lines: &[String], fact: &str) -> usize {
    lines.iter().position(|line| line.contains(&format!("\"type\":\"{fact}\""))).unwrap_or_else(|| panic!("{lines:?}"))
}

fn copies(house: &House) -> Vec<String> {
    let names = house.sandbox.list("state/runs/run-000001");
    names.into_iter().filter(|name| name.contains("damaged")).collect()
}

fn resume() {
    let house = lost();
    let mut lines = lines(&house);
    let ended = position(&lines, "ended");
    lines[ended] = lines[ended].replace("\"code\":0", "\"code\":1");
    write(&house, &lines);
    let damaged = lines.concat();
    for line in ["resume 1", "resume -d 1", "retry 1", "retry --all 1"] {
        let outcome = house.umiak(line).finish();
        let (record, byte) = (ended + 1, lines[..ended].concat().len());
        outcome
            .expect_code(125)
            .expect_err(&format!("error[J0004]: the journal of run-000001 is damaged at record {record} (byte {byte})"))
            .expect_err("the record was changed")
            .expect_err("`umiak resume --accept-damage run-000001` continues from the records before it");
        assert_eq!(fs::read_to_string(house.run().journal()).expect("a journal"), damaged, "{line}");
    }
    house.touch("go");
    let outcome = house.umiak("resume --accept-damage 1").finish();
    outcome.expect_code(0).expect_err("notice[J0004]").expect_err("journal.damaged-1.jsonl");
    assert_eq!(copies(&house), ["journal.damaged-1.jsonl"]);
    assert_eq!(house.sandbox.read("state/runs/run-000001/journal.damaged-1.jsonl"), damaged);
    assert!(has(&house, |fact| matches!(fact, Fact::Noticed { code, .. } if code == "J0004")));
    house.umiak("explain 1").finish().expect_code(0).expect_out("damaged at record");
    house.check_ended();
    house.umiak("resume --accept-damage 1").finish().expect_code(2).expect_err("J0025");
}

/// Records that say that a finished replica is about to start, again.
fn doubled() {
    let house = lost();
    let mut lines = lines(&house);
    let (first, last) = (position(&lines, "starting"), position(&lines, "started"));
    let range: Vec<String> = lines[first..=last].to_vec();
    let length = lines.len() as u64;
    lines.extend(range);
    write(&house, &lines);
    house.umiak("resume 1").finish().expect_code(125).expect_err(&format!("damaged at record {} ", length + 1));
    house.touch("go");
    house.umiak("resume --accept-damage -d 1").finish_unwatched().expect_code(0);
    house.umiak("wait 1").finish_unwatched().expect_code(0);
    house.wait_until_free();
    assert_eq!(house.ledger()["done-0"], [1]);
    house.check_ended();
}

fn retry() {
    let house = House::with("umiak: v1\nname: fails\nroles:\n  trainer: {command: \"LEDGER; test -e go\"}\n");
    house.umiak("run job.yaml").finish().expect_code(1);
    let mut lines = lines(&house);
    lines.remove(position(&lines, "ended"));
    write(&house, &lines);
    house.umiak("show 1").finish().expect_code(125).expect_err("`umiak retry --accept-damage run-000001`");
    // The list has the end that was recorded before.
    house.umiak("ls").finish().expect_code(0).expect_out("failed");
    house.umiak("retry --all --accept-damage 1").finish().expect_code(2).expect_err("had not ended before the damage");
    // The secrets of an ended run are not kept.
    house.umiak("resume --accept-damage 1").finish().expect_code(125).expect_err("secrets.json` is missing");
    assert!(copies(&house).is_empty());
    house.touch("go");
    house.umiak("retry --accept-damage 1").finish().expect_code(0).expect_err("notice[J0004]");
    assert_eq!(copies(&house).len(), 1);
    house.check_ended();
}

fn stop() {
    for kill in ["stop 1", "stop --kill 1", "stop"] {
        let house = House::with(TWO);
        let run = running(&house);
        let mut lines = lines(&house);
        lines.remove(2);
        write(&house, &lines);
        house.umiak("show 1").finish_unwatched().expect_code(125).expect_err("`umiak stop run-000001` stops it");
        let outcome = house.umiak(kill).finish_unwatched();
        outcome.expect_code(0).expect_out("run-000001 stopped").expect_err("notice[J0004]");
        run.finish().expect_code(3);
        house.umiak("stop 1").finish().expect_code(125).expect_err("damaged at record 3");
        house.umiak("rm 1").finish().expect_code(0);
    }
}

/// The file was replaced, as by an editor: the lock of the supervisor is on the old one.
fn replaced() {
    let house = House::with(TWO);
    let run = running(&house);
    let lines = lines(&house);
    fs::remove_file(house.run().journal()).expect("removed");
    write(&house, &lines);
    for line in ["resume 1", "resume --accept-damage 1", "rm 1"] {
        house.umiak(line).finish_unwatched().expect_code(2).expect_err("still running");
    }
    house.umiak("stop 1").finish_unwatched().expect_code(0);
    // What followed could not be recorded.
    run.finish().expect_code(125);
    assert_eq!(house.ledger()["trainer-0"], [1]);
}

fn empty() {
    let house = lost();
    for bytes in ["", "{\"v\":1"] {
        fs::write(house.run().journal(), bytes).expect("the sandbox can be written");
        for line in ["resume 1", "stop 1", "show 1", "retry 1"] {
            let outcome = house.umiak(line).finish();
            outcome.expect_code(125).expect_err("damaged at record 1 (byte 0)").expect_err("--accept-damage");
        }
    }
    fs::remove_dir_all(house.sandbox.path().join("ledger")).expect("removed");
    fs::create_dir(house.sandbox.path().join("ledger")).expect("made");
    house.touch("go");
    house.umiak("resume --accept-damage 1").finish().expect_code(0);
    house.check_ended();
}

fn no_secrets() {
    let house = lost();
    fs::remove_file(house.run().secrets()).expect("removed");
    let outcome = house.umiak("resume 1").finish();
    outcome.expect_code(125).expect_err("error[J0004]").expect_err("secrets.json` is missing");
    outcome.expect_err("`umiak stop run-000001` records its end; then `umiak retry run-000001`");
    house.umiak("stop 1").finish().expect_code(0);
    house.touch("go");
    house.umiak("retry 1").finish().expect_code(0);
    house.check_ended();
}
