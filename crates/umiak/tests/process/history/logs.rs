//! `logs`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::ChildStdout;

use umiak_core::facts::{Fact, Outcome, Subject};
use umiak_core::model::{Blame, Exit, Instance, Rank, Scope};
use umiak_testkit::sandbox::Running;
use umiak_testkit::suite::Suite;

use super::{Runs, first, fixture};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("history::logs_begin_with_the_cause", &[], cause)
        .test("history::logs_of_a_restarted_job_are_of_its_last_attempt", &[], restarted)
        .test("history::logs_of_several_carry_names", &[], several)
        .test("history::logs_of_the_newest_run", &[], newest)
        .test("history::logs_of_roles_ranks_and_ranges", &[], whose)
        .test("history::logs_of_several_stand_in_the_order_of_their_times", &[], times)
        .test("history::logs_since_a_time", &[], since)
        .test("history::logs_with_times_before_lines", &[], timestamps)
        .test("history::logs_follow_several_until_the_end_of_the_run", &[], follow_several)
        .test("history::logs_from_either_end", &[], ends)
        .test("history::logs_of_attempts", &[], attempts)
        .test("history::logs_of_launch_are_parts_of_files", &[], pointers)
        .test("history::logs_are_bytes", &[], bytes)
        .test("history::logs_that_are_not_there", &[], missing)
        .test("history::logs_that_were_cut_by_size", &[], cut)
        .test("history::logs_follow_a_replica_until_its_end", &[], follow)
        .test("history::logs_follow_the_next_attempt", &[], follow_attempts)
        .test("history::logs_follow_attempts_that_nobody_saw_begin", &[], follow_fast_attempts)
        .test("history::logs_end_when_nobody_reads", &[], nobody_reads)
        .test("history::logs_of_a_huge_file_begin_at_once", &[], huge);
}

/// Number of the first attempt in the fixtures.
const FIRST: u32 = 1;

fn cause() {
    let runs = Runs::new();
    let failed = runs.fixture("v1-job-restart");
    Runs::log(&failed, "worker-0", 1, "first\n");
    Runs::log(&failed, "worker-0", 2, "second\n");
    Runs::log(&failed, "worker-1", 2, "other\n");
    assert_eq!(runs.out("logs 1"), "second\n");
    let well = runs.fixture("v1-success");
    Runs::log(&well, "pserver-0", 1, "server\n");
    Runs::log(&well, "trainer-0", 1, "trainer\n");
    assert_eq!(runs.out("logs 2"), "trainer\n", "the first that decides");
    assert_eq!(runs.out("logs 2 rank 0"), "server\n");
    assert_eq!(runs.out("logs 2 pserver-0"), "server\n");
    let text = runs.err("logs 2 pserve", 2);
    assert!(text.contains("error[L0001]: `run-000002` has no role or replica `pserve`"), "{text}");
    assert!(text.contains("did you mean `pserver`?") && text.contains("pserver, trainer"), "{text}");
    assert!(runs.err("logs 2 rank 9", 2).contains("`rank 9`"));
}

fn restarted() {
    let runs = Runs::new();
    let (run, live) = runs.live("v1-job-restart", 14);
    for (attempt, text) in [(1, "first\n"), (2, "second\n")] {
        Runs::log(&run, "worker-0", attempt, text);
    }
    assert_eq!(runs.out("logs 1"), "second\n", "the attempt that runs, not the one that failed");
    assert_eq!(runs.out("logs 1 --attempt 1"), "first\n");
    drop(live);
}

fn several() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    Runs::log(&run, "trainer-0", 1, "a\nb\n");
    Runs::log(&run, "trainer-1", 1, "c\nno end");
    assert_eq!(runs.out("logs 1 trainer"), "trainer-0 | a\ntrainer-0 | b\ntrainer-1 | c\ntrainer-1 | no end\n");
    assert_eq!(runs.out("logs 1 trainer --output quiet -n 1"), "b\nno end");
    let coloured = runs.umiak("logs 1 trainer").env("CLICOLOR_FORCE", "1").finish();
    assert!(coloured.out().starts_with("\u{1b}[32mtrainer-0 |\u{1b}[0m a\n"), "{:?}", coloured.out());
    let json = runs.out("logs 1 trainer --output json");
    let last: serde_json::Value = serde_json::from_str(json.lines().last().expect("lines")).expect("JSON");
    assert_eq!(
        last,
        serde_json::json!({"v": 1, "run": "run-000001", "replica": "trainer-1", "attempt": 1, "text": "no end"})
    );
}

fn newest() {
    let runs = Runs::new();
    assert!(runs.err("logs", 2).contains("error["));
    for text in ["old\n", "new\n"] {
        let run = runs.fixture("v1-success");
        Runs::log(&run, "pserver-0", FIRST, format!("server of {text}"));
        Runs::log(&run, "trainer-0", FIRST, text);
    }
    assert_eq!(runs.out("logs"), "new\n");
    assert_eq!(runs.out("logs 1"), "old\n", "a number is a run");
    assert_eq!(runs.out("logs pserver-0"), "server of new\n");
    assert_eq!(runs.out("logs rank 0"), "server of new\n");
    assert_eq!(runs.out("logs 0-0 -n 1"), "server of new\n");
    assert!(runs.err("logs nothing", 2).contains("`nothing`"));
}

fn whose() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    for replica in ["pserver-0", "pserver-1", "trainer-0", "trainer-1"] {
        Runs::log(&run, replica, FIRST, format!("of {replica}\n"));
    }
    let line = |name: &str| format!("{name:<9} | of {name}\n");
    let (servers, first, second) = (line("pserver-0") + &line("pserver-1"), line("trainer-0"), line("trainer-1"));
    for (words, expected) in [
        ("all", format!("{servers}{first}{second}")),
        ("trainer pserver", format!("{servers}{first}{second}")),
        ("pserver trainer-1", format!("{servers}{second}")),
        ("0,3", format!("{}{second}", line("pserver-0"))),
        ("2-3", format!("{first}{second}")),
        ("trainer-0-1", format!("{first}{second}")),
        ("3", "of trainer-1\n".to_owned()),
    ] {
        assert_eq!(runs.out(&format!("logs 1 {words}")), expected, "{words}");
    }
    assert!(runs.err("logs 1 trainer 7-9", 2).contains("no role or replica `ranks 7-9`"));
}

/// Lines with a timestamp are sorted; a line without one stays after the line before it.
fn times() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    Runs::log(&run, "trainer-0", FIRST, "begin\n2036-11-15 03:00:01,5 a1\n  more\n2036-11-15 03:00:03 a3\n");
    Runs::log(&run, "trainer-1", FIRST, "I1115 03:00:00 b0\n[2036-11-15 03:00:02] b2\n2036-11-15 03:00:04 b4");
    let out = runs.out("logs 1 trainer --output quiet");
    let order: Vec<&str> = out.lines().map(|line| line.rsplit(' ').next().expect("a word")).collect();
    assert_eq!(order, ["begin", "b0", "a1", "more", "b2", "a3", "b4"]);
}

fn since() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    Runs::log(&run, "trainer-0", FIRST, "2036-11-15 03:00:01 old\n  more\n2036-11-15 03:00:03 young\n  more\n");
    assert_eq!(runs.sandbox.umiak(["logs", "1", "--since", "2036-11-15 03:00:02"]).finish().out(), "");
    // Sets a later modification time, so that the file is not skipped.
    let log = run.attempt(None, "trainer-0", FIRST).join("log");
    let later = std::time::UNIX_EPOCH + std::time::Duration::from_secs(2_200_000_000);
    fs::File::options().append(true).open(&log).expect("the log").set_modified(later).expect("a time");
    let outcome = runs.sandbox.umiak(["logs", "1", "--since", "2036-11-15 03:00:02"]).finish();
    assert_eq!(outcome.out(), "2036-11-15 03:00:03 young\n  more\n", "{}", outcome.err());
    let log = Runs::log(&run, "trainer-1", FIRST, "no times\n");
    fs::File::options().append(true).open(&log).expect("the log").set_modified(later).expect("a time");
    let outcome = runs.sandbox.umiak(["logs", "1", "trainer-1", "--since", "2036-11-15 03:00:02"]).finish();
    outcome.expect_code(0).expect_err("notice[J0013]: `--since` does not apply to logs without times");
    assert_eq!(outcome.out(), "no times\n");
    assert_eq!(runs.out("logs 1 --since 1h"), runs.out("logs 1"));
    runs.umiak("logs 1 --since yesterday").finish().expect_code(2);
}

fn timestamps() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    Runs::log(&run, "trainer-0", FIRST, "2036-11-15 03:00:01 one\n  more\n");
    assert_eq!(
        runs.out("logs 1 --timestamps"),
        "2036-11-15 03:00:01  2036-11-15 03:00:01 one\n2036-11-15 03:00:01~   more\n"
    );
    let json = runs.out("logs 1 -t --output json");
    let last: serde_json::Value = serde_json::from_str(json.lines().last().expect("lines")).expect("JSON");
    assert_eq!((&last["exact"], last["at"].is_u64()), (&serde_json::json!(false), true), "{json}");
}

fn follow_several() {
    let runs = Runs::new();
    let (run, mut live) = runs.live("v1-replica-retry", 6);
    let log = Runs::log(&run, "trainer-0", FIRST, "one\nha");
    Runs::log(&run, "trainer-1", FIRST, "two\n");
    let mut follower = Follower::start(&runs, "logs all -f");
    follower.expect("trainer-0 | one\ntrainer-1 | two\n");
    let mut file = fs::File::options().append(true).open(&log).expect("the log");
    file.write_all(b"lf\n").expect("written");
    follower.expect("trainer-0 | half\n");
    live.write(ended("trainer-0", FIRST, 0));
    live.go_on(3);
    Runs::log(&run, "trainer-1", FIRST + 1, "again\n");
    live.go_on(2);
    follower.expect("trainer-1 | again\n");
    live.write(ended("trainer-1", FIRST + 1, 1));
    live.write(Fact::Finished { outcome: Outcome::Failed, exit_code: 1 });
    follower.expect_end("");
}

fn ends() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    let text: String = (0..50_000).flat_map(|n| ["line ".to_owned(), n.to_string(), "\n".to_owned()]).collect();
    Runs::log(&run, "trainer-0", 1, &text);
    assert_eq!(runs.out("logs 1"), text);
    assert_eq!(runs.out("logs 1 -n 2"), "line 49998\nline 49999\n");
    assert_eq!(runs.out("logs 1 --tail 0"), "");
    assert_eq!(runs.out("logs 1 --head 2"), "line 0\nline 1\n");
    assert_eq!(runs.out("logs 1 --head 6 --bytes"), "line 0");
    assert_eq!(runs.out("logs 1 -n 6 --bytes"), "49999\n");
    assert_eq!(runs.out("logs 1 -n 99999"), text);
    assert_eq!(runs.out("logs 1 --head 99999"), text);
    runs.umiak("logs 1 --head 1 --tail 1").finish().expect_code(2);
}

fn attempts() {
    let runs = Runs::new();
    let run = runs.fixture("v1-replica-retry");
    Runs::log(&run, "trainer-1", 1, "first\n");
    Runs::log(&run, "trainer-1", 2, "second\n");
    assert_eq!(runs.out("logs 1 trainer-1"), "second\n");
    assert_eq!(runs.out("logs 1 trainer-1 --attempt 1"), "first\n");
    assert_eq!(runs.out("logs 1 trainer-1 --attempt all"), "trainer-1 | first\ntrainer-1 | second\n");
    let text = runs.err("logs 1 trainer-1 --attempt 8", 2);
    assert!(text.contains("error[L0001]: `trainer-1` of `run-000001` has no attempt 8"), "{text}");
    assert!(text.contains("attempts  1, 2"), "{text}");
    assert!(runs.err("logs 1 all --attempt 8", 2).contains("`run-000001` has no attempt 8"));
    assert!(runs.err("logs 1 trainer-1 --attempt last", 2).contains("or `all`"));
}

/// A launched run with two attempts that share a log file and begin at these offsets.
fn launched(runs: &Runs, starts: [u64; 2]) -> std::path::PathBuf {
    let log = runs.sandbox.path().join("workerlog.0");
    let planned = |seq: u64, attempt: u64| {
        let replica = serde_json::json!({"replica": "trainer-0", "rank": 0, "node": "a", "endpoint": "127.0.0.1:6170",
            "log": log, "log_start": starts[attempt as usize - 1]});
        serde_json::json!({"v": 1, "seq": seq, "at": 5, "type": "planned", "job": "default", "attempt": attempt,
            "umiak": "0.1.0", "world_size": 1, "log_dir": "", "replicas": [replica]})
    };
    let subject = |attempt: u64| serde_json::json!({"replica": "trainer-0", "rank": 0, "attempt": attempt});
    let ended = |seq: u64, attempt: u64| {
        serde_json::json!({"v": 1, "seq": seq, "at": 6, "type": "ended", "subject": subject(attempt),
            "exit": {"kind": "code", "code": 0}, "by_us": false, "order": attempt})
    };
    let starting = |seq: u64, attempt: u64| serde_json::json!({"v": 1, "seq": seq, "at": 5, "type": "starting", "subject": subject(attempt)});
    let end = serde_json::json!({"v": 1, "seq": 6, "at": 9, "type": "finished", "status": "succeeded", "code": 0});
    let records = [planned(0, 1), starting(1, 1), ended(2, 1), planned(3, 2), starting(4, 2), ended(5, 2), end];
    runs.with_journal(&records.iter().flat_map(|record| [record.to_string(), "\n".to_owned()]).collect::<String>());
    log
}

fn pointers() {
    let runs = Runs::new();
    let log = launched(&runs, [4, 10]);
    fs::write(&log, "old\nfirst\nsecond\n").expect("written");
    assert_eq!(runs.out("logs 1"), "second\n");
    assert_eq!(runs.out("logs 1 --attempt 1"), "first\n");
    assert_eq!(runs.out("logs 1 --attempt 1 -n 9"), "first\n");
    fs::write(&log, "new\n").expect("written");
    let outcome = runs.umiak("logs 1").finish();
    outcome.expect_code(0).expect_err("notice[J0010]: the log of `trainer-0`, attempt 2 was truncated");
    assert_eq!(outcome.out(), "new\n");
}

fn bytes() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    let odd = b"\xff\xfe\0 50%\r 100%\r\n\x1b[31mred\n\xc3";
    Runs::log(&run, "trainer-0", 1, odd);
    Runs::log(&run, "trainer-1", 1, "x\n");
    assert_eq!(runs.umiak("logs 1").finish().stdout, odd);
    let named = runs.umiak("logs 1 trainer").finish().stdout;
    assert!(named.starts_with(
        b"trainer-0 | \xff\xfe\0 50%\r 100%\r\ntrainer-0 | \x1b[31mred\ntrainer-0 | \xc3\ntrainer-1 | x\n"
    ));
}

fn missing() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    let text = runs.err("logs 1", 125);
    assert!(text.contains("error[J0009]: the log of `trainer-0`, attempt 1, cannot be shown"), "{text}");
    assert!(
        text.contains("HOME/runs/run-000001/tasks/trainer-0/attempt-1/log") && text.contains("no such file"),
        "{text}"
    );
    Runs::log(&run, "trainer-1", 1, "here\n");
    let some = runs.umiak("logs 1 trainer").finish();
    some.expect_code(0).expect_err("error[J0009]");
    assert_eq!(some.out(), "trainer-1 | here\n");
    runs.with_journal("");
    assert!(runs.err("logs 2", 125).contains("error[J0009]: `run-000002` has no replicas yet"));
    let waiting: String = first(&fixture("v1-success"), 2);
    runs.with_journal(&waiting);
    assert!(runs.err("logs 3", 125).contains("`trainer-0` of `run-000003` has not been started"));
}

fn cut() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    let log = Runs::log(&run, "trainer-0", 1, "e\nf\n");
    fs::write(log.with_file_name("log.3"), "a\nb\n").expect("written");
    fs::write(log.with_file_name("log.4"), "c\nd\n").expect("written");
    let outcome = runs.umiak("logs 1").finish();
    outcome.expect_code(0).expect_err("notice[J0010]: the log of `trainer-0`, attempt 1 was rotated");
    assert_eq!(outcome.out(), "a\nb\nc\nd\ne\nf\n");
    assert_eq!(runs.out("logs 1 -n 3"), "d\ne\nf\n");
    assert_eq!(runs.out("logs 1 --head 3"), "a\nb\nc\n");
}

fn subject(replica: &str, attempt: u32) -> Subject {
    let index: u32 = replica.rsplit_once('-').and_then(|(_, index)| index.parse().ok()).expect("an index");
    Subject { replica: replica.to_owned(), rank: Some(Rank(index)), attempt }
}

fn ended(replica: &str, attempt: u32, code: i32) -> Fact {
    Fact::Ended {
        subject: subject(replica, attempt),
        exit: Exit::Code { code },
        classed: None,
        by_us: false,
        order: 0,
        usage: None,
        log_end: None,
    }
}

/// A running `umiak logs -f` and its stdout.
struct Follower<'a> {
    running: Running<'a>,
    stdout: ChildStdout,
}

impl<'a> Follower<'a> {
    fn start(runs: &'a Runs, line: &str) -> Self {
        let mut running = runs.umiak(line).start_unread();
        let stdout = running.take_stdout();
        Self { running, stdout }
    }

    /// Fails unless this text comes next.
    fn expect(&mut self, text: &str) {
        let mut seen = vec![0; text.len()];
        self.stdout.read_exact(&mut seen).expect("it continues");
        assert_eq!(String::from_utf8_lossy(&seen), text);
    }

    /// Fails unless this text comes next and the command then exits.
    fn expect_end(mut self, text: &str) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("until the end");
        assert_eq!(rest, text);
        assert_eq!(self.running.finish().code(), 0);
    }
}

fn follow() {
    let runs = Runs::new();
    let (run, mut live) = runs.live("v1-replica-retry", 6);
    let log = Runs::log(&run, "trainer-0", 1, "one\ntwo\n");
    let mut follower = Follower::start(&runs, "logs 1 trainer-0 -f -n 1");
    follower.expect("two\n");
    let mut file = fs::File::options().append(true).open(&log).expect("the log");
    file.write_all(b"half").expect("written");
    follower.expect("half");
    file.write_all(b" done\n").expect("written");
    live.write(ended("trainer-0", 1, 0));
    follower.expect_end(" done\n");
    drop(live);
}

fn follow_attempts() {
    let runs = Runs::new();
    let (run, mut live) = runs.live("v1-replica-retry", 6);
    Runs::log(&run, "trainer-1", 1, "first\n");
    let mut follower = Follower::start(&runs, "logs 1 trainer-1 -f");
    follower.expect("first\n");
    // The replica fails and is restarted.
    live.go_on(3);
    Runs::log(&run, "trainer-1", 2, "second\n");
    live.go_on(2);
    live.write(ended("trainer-1", 2, 1));
    live.write(Fact::Finished { outcome: Outcome::Failed, exit_code: 1 });
    follower.expect_end("second\n");
}

/// Several attempts begin and end between two reads.
fn follow_fast_attempts() {
    let runs = Runs::new();
    let (run, mut live) = runs.live("v1-replica-retry", 6);
    Runs::log(&run, "trainer-1", 1, "first\n");
    let mut follower = Follower::start(&runs, "logs 1 trainer-1 -f");
    follower.expect("first\n");
    follower.running.signal(19);
    Runs::log(&run, "trainer-1", 2, "second\n");
    Runs::log(&run, "trainer-1", 3, "third\n");
    live.go_on(5);
    live.write(ended("trainer-1", 2, 1));
    live.write(Fact::Retrying {
        scope: Scope::Replica,
        subjects: vec![subject("trainer-1", 3)],
        blame: Blame::User,
        max: 3,
        delay_micros: 0,
    });
    live.write(Fact::Starting { subject: subject("trainer-1", 3) });
    live.write(Fact::Started { subject: subject("trainer-1", 3), instance: Instance::of_pid(4191) });
    follower.running.signal(18);
    follower.expect("second\nthird\n");
    live.write(ended("trainer-1", 3, 0));
    live.write(Fact::Finished { outcome: Outcome::Succeeded, exit_code: 0 });
    follower.expect_end("");
}

fn nobody_reads() {
    let runs = Runs::new();
    let (run, live) = runs.live("v1-replica-retry", 6);
    Runs::log(&run, "trainer-0", 1, "one\n");
    for command in ["logs 1 -f", "logs 1 -f trainer-0"] {
        let mut follower = Follower::start(&runs, command);
        follower.expect("one\n");
        drop(follower.stdout);
        assert_eq!(follower.running.finish().code(), 0);
    }
    let big = Runs::log(&run, "trainer-0", 1, vec![b'x'; 4 << 20]);
    let mut running = runs.umiak("logs 1").start_unread();
    running.take_stdout().read_exact(&mut [0; 4]).expect("some bytes");
    let outcome = running.finish();
    assert_eq!((outcome.code(), outcome.err()), (0, String::new()));
    drop((live, big));
}

fn huge() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    let log = Runs::log(&run, "trainer-0", 1, "first\n");
    // A sparse file of 10 GiB.
    let file = fs::File::options().write(true).open(&log).expect("the log");
    file.set_len(10 << 30).expect("a sparse file");
    let mut end = fs::File::options().append(true).open(&log).expect("the log");
    end.write_all(b"\nlast\n").expect("written");
    for (line, text) in [("logs 1 -n 1", "last\n"), ("logs 1 --head 1", "first\n")] {
        let outcome = runs.umiak(line).finish();
        outcome.expect_code(0);
        assert_eq!(outcome.out(), text);
        assert!(outcome.elapsed.as_millis() < 1000, "{line} took {:?}", outcome.elapsed);
    }
}
