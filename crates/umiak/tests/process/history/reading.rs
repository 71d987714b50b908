//! `show`, `events`, `explain`.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use umiak::history::Supervisor;
use umiak_testkit::suite::Suite;

use super::{Runs, first, fixture, unsealed};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("history::show_tells_everything", &[], show)
        .test("history::show_folds_many_replicas", &[], folds)
        .test("history::show_as_json_keeps_to_its_schema", &[], json)
        .test("history::a_torn_end_does_not_matter", &[], torn)
        .test("history::damage_is_named_and_what_is_before_it_is_shown", &[], damage)
        .test("history::a_journal_that_is_empty_or_no_file_is_named", &[], odd)
        .test("history::newer_journals_are_shown_as_far_as_they_go", &[], newer)
        .test("history::events_are_the_journals_own_bytes", &[], events)
        .test("history::events_follow_until_the_end", &[], follow)
        .test("history::events_end_when_nobody_reads", &[], nobody_reads)
        .test("history::events_end_when_the_supervisor_is_lost", &[], lost)
        .test("history::explain_has_all_the_evidence", &[], explain)
        .test("history::explain_names_the_one_reason", &[], reasons)
        .test("history::explain_and_show_name_the_nodes", &[], several_nodes)
        .test("history::explain_of_codes", &[], codes);
}

fn show() {
    let runs = Runs::new();
    runs.fixture("v1-launch-failed");
    runs.fixture("v1-replica-retry");
    let text = runs.out("show 1");
    for part in [
        "✗ run-000001 default failed with 1\n",
        "  roles       trainer 3\n",
        "  directory   HOME/runs/run-000001\n",
        "trainer-1  1     ✗ exited with 1",
        "trainer-2  2     ⊘ stopped by us (SIGTERM)  12 s  127.0.0.1:6172  gpu 2    /home/li/log/workerlog.2\n",
        "· the first cause\n  ValueError: batch 17 holds NaN\n    train.py:88 in step  loss.backward()\n",
        "followed       rank 0 exited with 1 (a peer closed the connection)\n",
    ] {
        assert!(text.contains(part), "lacks {part:?}:\n{text}");
    }
    let retried = runs.out("show 2");
    assert!(retried.contains("2 (1: was killed by SIGKILL (killed))"), "{retried}");
    assert_eq!(runs.out("show 2 --output quiet"), "succeeded\n");
    let made = umiak::history::RunDir::create(&runs.home).expect("made");
    assert!(runs.out("show 3").starts_with("? run-000003 lost\n"), "a run without records");
    drop(made);
}

fn folds() {
    let runs = Runs::new();
    let line = |seq: u32, rest: String| format!("{{\"v\":1,\"seq\":{seq},\"at\":{},{rest}}}\n", 1_000_000 + seq);
    let mut journal = String::new();
    for replica in 0..60 {
        let subject = format!("\"subject\":{{\"replica\":\"trainer-{replica}\",\"rank\":{replica},\"attempt\":1}}");
        journal += &line(2 * replica, format!("\"type\":\"starting\",{subject}"));
        let code = u32::from(replica == 41);
        let exit = format!("\"exit\":{{\"kind\":\"code\",\"code\":{code}}},\"by_us\":false,\"order\":{replica}");
        journal += &line(2 * replica + 1, format!("\"type\":\"ended\",{subject},{exit}"));
    }
    runs.with_journal(&journal);
    let text = runs.out("show 1");
    assert!(text.contains("trainer  ✓ 59  ✗ 1\n"), "{text}");
    assert!(text.contains("trainer-41  ✗ exited with 1") && !text.contains("trainer-40"), "{text}");
    assert!(text.contains("60 replicas; `--all` lists them\n"));
    assert!(runs.out("show 1 --all").contains("trainer-40"));
}

fn json() {
    let runs = Runs::new();
    runs.fixture("v1-lost-and-resumed");
    let shown: serde_json::Value = serde_json::from_str(&runs.out("show 1 --output json")).expect("JSON");
    assert_eq!((&shown["v"], &shown["status"], &shown["code"]), (&3.into(), &"succeeded".into(), &0.into()));
    assert_eq!(shown["epoch"], 1);
    assert_eq!(shown["replicas"][1]["past"][0]["exit"]["kind"], "lost");
    assert_eq!(shown["replicas"][1]["stage"]["status"], "ended");
}

fn torn() {
    let runs = Runs::new();
    let whole = fixture("v1-success");
    runs.with_journal(&whole);
    runs.with_journal(&format!("{whole}{{\"v\":1,\"seq\":99,\"a"));
    let ends = |run: u32| runs.out(&format!("show {run}")).replace(&format!("run-00000{run}"), "RUN");
    assert_eq!(ends(1), ends(2));
    assert_eq!(runs.out("events 2 --output json"), of_run(2, &whole));
}

/// What is before the damage is shown, and the damage is named.
fn damage() {
    let runs = Runs::new();
    let text = fixture("v1-launch-failed");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let run = runs.fixture("v1-launch-failed");
    let offset = lines[..4].concat().len();
    let changed = lines[4].replacen("\"at\":1", "\"at\":2", 1);
    for (what, fifth, found) in [
        ("garbage", vec!["\u{0}\u{0}\u{0}oops\n"], "oops"),
        ("changed", vec![changed.as_str()], "the record was changed"),
        ("removed", vec![], "`seq` is 5 instead of 4: records before it were removed or moved"),
        ("doubled", vec![lines[3], lines[4]], "`seq` is 3 instead of 4: the record was repeated or moved"),
        ("without its checksum", vec!["{\"v\":1,\"seq\":4,\"at\":9,\"type\":\"paused\"}\n"], "no checksum"),
    ] {
        let journal = lines[..4].concat() + &fifth.concat() + &lines[5..].concat();
        fs::write(run.journal(), journal).expect("the sandbox can be written");
        for command in ["show", "logs", "explain", "wait", "events", "attach", "events -f", "logs -f", "resume", "stop"]
        {
            let outcome = runs.umiak(&format!("{command} 1")).finish();
            if command == "resume" {
                // A launched run has no document.
                outcome.expect_code(2).expect_err("J0028");
                continue;
            }
            outcome.expect_code(125);
            outcome
                .expect_err(&format!("error[J0004]: the journal of run-000001 is damaged at record 5 (byte {offset})"));
            outcome.expect_err(found).expect_err("`umiak rm run-000001` removes the run");
            match command {
                "events" | "events -f" => assert_eq!(outcome.out().lines().count(), 4, "{what}: {}", outcome.out()),
                "show" | "explain" => assert!(outcome.out().contains("damaged"), "{what}: {}", outcome.out()),
                _ => {}
            }
        }
        assert!(runs.out("ls").contains("? damaged"), "{}", runs.out("ls"));
        assert!(runs.out("ls --status damaged --output quiet").contains("run-000001"));
    }
}

/// A journal that is no file, or has no record: the run can still be shown and removed.
fn odd() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    let supervisor = Supervisor { start: 0, ..Supervisor::here(0, Path::new("")) };
    run.write_supervisor(&supervisor).expect("the sandbox can be written");
    for bytes in ["", "{\"v\":1,\"se"] {
        fs::write(run.journal(), bytes).expect("the sandbox can be written");
        for command in ["show", "stop", "explain", "logs"] {
            let text = runs.err(&format!("{command} 1"), 125);
            assert!(text.contains("damaged at record 1 (byte 0)") && text.contains("no record"), "{command}: {text}");
        }
    }
    fs::remove_file(run.journal()).expect("removed");
    fs::create_dir(run.journal()).expect("made");
    assert!(runs.err("show 1", 125).contains("error[J0004]: cannot read `HOME/runs/run-000001/journal.jsonl`"));
    assert!(runs.err("show 1", 125).contains("it is not a regular file"));
    runs.out("ls");
    runs.out("rm 1");
    assert!(!run.path().exists());
}

fn newer() {
    let runs = Runs::new();
    runs.fixture("future-minor");
    runs.fixture("future-major");
    let minor = runs.umiak("show 1").finish();
    minor.expect_code(0).expect_err("notice[J0011]: `run-000001` has 2 events that this version does not know");
    assert!(minor.out().contains("✓ run-000001 llama-sft succeeded"));
    let major = runs.umiak("show 2").finish();
    major.expect_code(0).expect_err("notice[J0005]: `run-000002` was written by a newer umiak");
    major.expect_err("version 2");
    assert!(major.out().contains("✓ run-000002 llama-sft succeeded"));
    assert!(runs.out("events 2").contains("ignored started: not known here"));
}

/// Adds the run to each line of a journal, as `events` prints it.
fn of_run(run: u32, journal: &str) -> String {
    unsealed(journal)
        .lines()
        .fold(String::new(), |text, line| text + &format!("{{\"run\":\"run-{run:06}\",{}\n", &line[1..]))
}

fn events() {
    let runs = Runs::new();
    runs.fixture("v1-job-restart");
    assert_eq!(runs.out("events 1 --output json"), of_run(1, &fixture("v1-job-restart")));
    assert_eq!(runs.out("events 1 --output quiet"), "");
    runs.fixture("v1-lost-and-resumed");
    assert!(runs.out("events 2").contains("terminating: trainer-1 (ignored: written by a replaced supervisor)\n"));
    let text = runs.out("events 1");
    for part in [
        "  submitted: supervised by pid 4100 on node-a, umiak 0.1.0\n",
        "  worker-0 started, pid 4121\n",
        "  worker-1 was killed by SIGTERM (terminate), stopped by us\n",
        "  restarting everything in 2.0 s: attempt 2 of 2\n",
        "  worker-0 (attempt 2) exited with 3\n",
        "  failed, code 3\n",
    ] {
        assert!(text.contains(part), "lacks {part:?}:\n{text}");
    }
}

fn follow() {
    let runs = Runs::new();
    let (run, mut live) = runs.live("v1-replica-retry", 3);
    let mut running = runs.umiak(&format!("events -f --output json {}", run.id())).start_unread();
    let mut stdout = running.take_stdout();
    let whole = of_run(1, &fixture("v1-replica-retry"));
    let mut seen = vec![0; whole.lines().take(3).map(|line| line.len() + 1).sum()];
    stdout.read_exact(&mut seen).expect("the first three");
    while !live.later.is_empty() {
        live.go_on(4);
    }
    stdout.read_to_end(&mut seen).expect("the rest");
    assert_eq!(String::from_utf8_lossy(&seen), whole);
    assert_eq!(running.finish().code(), 0);
}

fn nobody_reads() {
    let runs = Runs::new();
    let (run, live) = runs.live("v1-success", 8);
    let mut running = runs.umiak(&format!("events -f {}", run.id())).start_unread();
    let mut stdout = running.take_stdout();
    stdout.read_exact(&mut [0]).expect("a byte");
    drop(stdout);
    // It exits even though nothing more is written.
    assert_eq!(running.finish().code(), 0);
    drop(live);
}

fn lost() {
    let runs = Runs::new();
    let (run, live) = runs.live("v1-success", 8);
    let mut running = runs.umiak(&format!("events -f {}", run.id())).start_unread();
    let mut stdout = running.take_stdout();
    stdout.read_exact(&mut [0]).expect("a byte");
    drop(live);
    stdout.read_to_end(&mut Vec::new()).expect("the rest");
    running.finish().expect_code(125).expect_err("error[J0007]: `run-000001` did not finish");
}

fn explain() {
    let runs = Runs::new();
    for name in ["v1-launch-failed", "v1-job-restart", "v1-replica-retry", "v1-timed-out", "v1-stopped", "v1-success"] {
        runs.fixture(name);
    }
    let explained = |run: u32, parts: &[&str]| {
        let text = runs.out(&format!("explain {run}"));
        for part in parts {
            assert!(text.contains(part), "lacks {part:?}:\n{text}");
        }
    };
    explained(
        1,
        &[
            "✗ run-000001 default failed with 1\n",
            "  │ Traceback (most recent call last):\n",
            "why it is the cause: its log ends with an error of its own\n",
            "followed trainer-0: exited with 1, a peer closed the connection [U9001]\n    RuntimeError: Connection closed by peer",
            "stopped by us\n  trainer-2 stopped by us (SIGTERM)\n",
        ],
    );
    explained(2, &["a failure, followed by a restart: attempt ", "restarting everything in 2.0 s", " the failure\n"]);
    explained(3, &["of trainer-1 failed, attempt 2 succeeded\n", "the OOM killer killed it", "it succeeded\n"]);
    explained(4, &["judge-0 ran longer than 30 s\n", "why it is the cause: it ran longer than its time limit\n"]);
    explained(5, &["it was stopped: by `umiak stop`\n"]);
    explained(6, &["it succeeded\n"]);
    // A restart recovered from the failure, so the failure is not why the run ended.
    let failed = fixture("v1-job-restart");
    let mended = first(&failed, 17)
        + &fixture("v1-success").lines().last().expect("a line").replace("\"seq\":18", "\"seq\":17")
        + "\n";
    runs.with_journal(&mended);
    explained(7, &["a failure, followed by a restart: attempt ", "it succeeded\n"]);
    assert!(!runs.out("show 7").contains("cause"));
    assert_eq!(runs.out("explain 7 --output quiet"), "");
    assert_eq!(runs.out("explain 1 --output quiet"), "trainer-1\n");
    let json: serde_json::Value = serde_json::from_str(&runs.out("explain 2 --output json")).expect("JSON");
    assert_eq!(json["verdicts"].as_array().map(Vec::len), Some(2));
}

/// A run in which `trainer-0` exited early with 0, and its peer lost the connection.
const LEFT_EARLY: &str = r#"{"v":1,"seq":0,"at":1000000,"type":"starting","subject":{"replica":"trainer-0","rank":0,"attempt":1}}
{"v":1,"seq":1,"at":1000001,"type":"starting","subject":{"replica":"trainer-1","rank":1,"attempt":1}}
{"v":1,"seq":2,"at":2000000,"type":"ended","subject":{"replica":"trainer-0","rank":0,"attempt":1},"exit":{"kind":"code","code":0},"by_us":false,"order":0}
{"v":1,"seq":3,"at":3000000,"type":"ended","subject":{"replica":"trainer-1","rank":1,"attempt":1},"exit":{"kind":"code","code":1},"by_us":false,"order":1}
{"v":1,"seq":4,"at":3000001,"type":"diagnosed","causes":[{"subject":{"replica":"trainer-1","rank":1,"attempt":1},"exit":{"kind":"code","code":1},"ran_micros":5,"weight":"possible","evidence":{"signature":{"code":"U9001","title":"a peer closed the connection","victim":true}}}],"victims":[]}
{"v":1,"seq":5,"at":3000002,"type":"finished","status":"failed","code":1}
"#;

fn reasons() {
    let runs = Runs::new();
    runs.with_journal(LEFT_EARLY);
    let text = runs.out("explain");
    let why = "why it may be the cause: its log reports a lost peer, but no peer failed; trainer-0 had exited with 0 before\n";
    assert!(text.contains(why), "{text}");
    assert!(!text.contains("tolerated"), "{text}");
    for (from, to, why) in [
        ("\"victim\":true", "\"victim\":false", "its log says: a peer closed the connection\n"),
        (
            "\"weight\":\"possible\"",
            "\"weight\":\"possible\",\"timed_out\":\"start\"",
            "it did not listen on its ports in time\n",
        ),
    ] {
        runs.with_journal(&LEFT_EARLY.replace(from, to));
        let text = runs.out("explain");
        assert!(text.contains(why), "{text}");
        assert_eq!(text.matches("why it ").count(), 1, "{text}");
    }
    // The only evidence is that it ended first.
    let silent = LEFT_EARLY.replace(
        r#","evidence":{"signature":{"code":"U9001","title":"a peer closed the connection","victim":true}}"#,
        "",
    );
    runs.with_journal(&silent.replace("possible", "likely"));
    let text = runs.out("explain");
    assert!(
        text.contains("why it is the cause: it failed before any other was stopped; no error was found in its log\n"),
        "{text}"
    );
    let headline = r#""weight":"likely","evidence":{"headline":{"text":"OSError: disk","number":1}}"#;
    runs.with_journal(&silent.replace("\"weight\":\"possible\"", headline));
    let text = runs.out("explain");
    assert!(text.contains("it failed before any other was stopped; the error above is from its log\n"), "{text}");
}

fn several_nodes() {
    let runs = Runs::new();
    let nodes = r#""nodes":[{"node":"10.0.0.1","replicas":["trainer-0","trainer-1"]},{"node":"10.0.0.2","replicas":["trainer-2","trainer-3"]}],"#;
    let planned = format!(
        "{{\"v\":1,\"seq\":0,\"at\":999999,\"type\":\"planned\",\"job\":\"default\",\"attempt\":1,\"umiak\":\"0.1.0\",\"world_size\":4,\"log_dir\":\"log\",{nodes}\"replicas\":[]}}\n"
    );
    let elsewhere = LEFT_EARLY.replace(
        "\"diagnosed\",\"causes\":[{\"subject\":{\"replica\":\"trainer-1\",\"rank\":1",
        "\"diagnosed\",\"causes\":[{\"subject\":{\"replica\":\"trainer-3\",\"rank\":3",
    );
    let run = runs.with_journal(&(planned + &elsewhere));
    for rank in 0..2 {
        Runs::log(&run, &format!("trainer-{rank}"), 1, format!("rank {rank}\n"));
    }
    for command in ["show", "explain"] {
        let text = runs.out(command);
        assert!(text.contains("10.0.0.1  trainer 0-1, recorded here\n"), "{text}");
        assert!(text.contains("10.0.0.2  trainer 2-3: states and logs are on that node\n"), "{text}");
        assert!(text.contains("rank 3 on 10.0.0.2"), "{text}");
        assert!(!text.contains("  log :"), "{text}");
    }
    for words in ["trainer-3", "3"] {
        let text = runs.err(&format!("logs 1 {words}"), 125);
        let expected =
            "error[J0009]: `trainer-3` ran on node 10.0.0.2; its log is on that node\nhint: let all nodes use";
        assert!(text.starts_with(expected) && text.contains("`--gather-logs` copies"), "{text}");
    }
    assert!(runs.err("logs 1 4", 2).contains("  ranks  0 to 3\n"));
    for (line, out, notice) in [
        ("logs", "rank 0\n", "`trainer-3` ran on node 10.0.0.2; its log is on that node"),
        (
            "logs 1 all",
            "trainer-0 | rank 0\ntrainer-1 | rank 1\n",
            "`trainer 2-3` ran on node 10.0.0.2; their logs are on that node",
        ),
    ] {
        let outcome = runs.umiak(line).finish();
        outcome.expect_code(0).expect_err(notice);
        assert_eq!(outcome.out(), out);
    }
    let own = runs.umiak("logs 1 trainer-1").finish();
    assert_eq!((own.out(), own.err()), ("rank 1\n".to_owned(), String::new()));
    assert!(runs.out("show").contains("  roles       trainer 4\n"), "{}", runs.out("show"));
    let json: serde_json::Value = serde_json::from_str(&runs.out("show --output json")).expect("JSON");
    assert_eq!(json["roles"], serde_json::json!([{"role": "trainer", "replicas": 4, "decides": true}]));
}

fn codes() {
    let runs = Runs::new();
    assert!(runs.out("explain J0007").starts_with("J0007: the supervisor died\nexit code 125\n"));
    assert!(runs.out("explain u3102").starts_with("U3102"));
    assert!(runs.err("explain L9999", 2).contains("error[L0001]: there is no error code and no run `L9999`"));
    assert!(runs.err("explain nothing", 2).contains("there is no error code and no run `nothing`"));
}
