//! `ls`, and how runs are selected.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use umiak_testkit::components::Component;
use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::Session;
use unicode_width::UnicodeWidthStr as _;

use super::{Runs, first, fixture};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("history::ls_lists_the_newest_first", &[], newest_first)
        .test("history::ls_chooses", &[], chooses)
        .test("history::ls_of_nothing_is_empty", &[], nothing)
        .test("history::ls_says_what_is_live_and_what_was_lost", &[], live_and_lost)
        .test("history::ls_survives_a_damaged_index_and_damaged_runs", &[], damaged)
        .test("history::a_home_that_cannot_be_written", &[Component::Namespaces], read_only)
        .test("history::a_home_that_cannot_be_read", &[], unreadable)
        .test("history::homes_that_cannot_be_used", &[], bad_homes)
        .test("history::runs_are_found_by_id_number_and_name", &[], found)
        .test("history::a_name_means_its_live_run", &[], live_first)
        .test("history::without_a_name_the_newest_run_is_meant", &[], newest_run)
        .test("history::tables_fit_the_terminal", &[], fits)
        .test("history::runs_that_are_not_found", &[], not_found);
}

fn newest_first() {
    let runs = Runs::new();
    for name in ["v1-success", "v1-job-restart", "v1-stopped"] {
        runs.fixture(name);
    }
    let text = runs.out("ls");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("run         status       name     started"), "{text}");
    for (line, words) in lines[1..].iter().zip([
        ["run-000003", "⊘ stopped", "sweep-3", "14 s", "trainer 2", "3"],
        ["run-000002", "✗ failed", "bert-ft", "18 s", "worker 2", "3"],
        ["run-000001", "✓ succeeded", "ctr-dnn", "3m12s", "pserver 2, trainer 2", "0"],
    ]) {
        assert!(words.iter().all(|word| line.contains(word)), "{line:?} lacks one of {words:?}");
    }
    assert_eq!(runs.out("ls"), text, "the same with and without an index");
    assert!(runs.out("ls --ascii").is_ascii());
    let json: serde_json::Value = serde_json::from_str(&runs.out("ls --output json")).expect("JSON");
    assert_eq!(json["v"], 1);
    assert_eq!(json["runs"][1]["status"], "failed");
    assert_eq!(json["runs"][1]["code"], 3);
    assert_eq!(json["runs"][2]["roles"][1]["role"], "trainer");
}

fn chooses() {
    let runs = Runs::new();
    for name in ["v1-success", "v1-job-restart", "v1-stopped", "v1-timed-out"] {
        runs.fixture(name);
    }
    // Labels are stored in the plan.
    let labelled = runs.fixture("v1-success");
    fs::write(labelled.plan(), r#"{"engine":"local","job":{"labels":{"team":"nlp"}}}"#).expect("written");
    let quiet =
        |flags: &str| runs.out(&format!("ls --output quiet {flags}")).replace("run-00000", "").replace('\n', "");
    assert_eq!(quiet(""), "54321");
    assert_eq!(quiet("--status failed"), "42");
    assert_eq!(quiet("--status failed,stopped"), "432");
    assert_eq!(quiet("--name *-*"), "5321");
    assert_eq!(quiet("--name eval"), "4");
    assert_eq!(quiet("-n 2"), "54");
    assert_eq!(quiet("--label team=nlp"), "5");
    assert_eq!(quiet("--label team"), "5");
    assert_eq!(quiet("--label team=cv"), "");
    assert_eq!(quiet("--until 2020-01-01"), "");
    assert_eq!(quiet("--since 2020-01-01"), "54321");
    assert!(runs.err("ls --since yesterday", 2).contains("as in `2d`"));
    assert!(runs.err("ls --status well", 2).contains("well"));
}

fn nothing() {
    let runs = Runs::new();
    let outcome = runs.umiak("ls").finish();
    outcome.expect_code(0);
    assert_eq!((outcome.out(), outcome.err()), (String::new(), "no runs yet\n".to_owned()));
    assert_eq!(runs.out("ls --output quiet"), "");
    assert!(runs.out("ls --output json").contains("\"runs\": []"));
    assert!(!runs.home.path().exists(), "reading commands create no files");
}

fn live_and_lost() {
    let runs = Runs::new();
    let (run, mut live) = runs.live("v1-success", 10);
    runs.with_journal(&first(&fixture("v1-success"), 10));
    let states = || runs.out("ls").lines().skip(1).map(|line| line[12..23].trim().to_owned()).collect::<Vec<_>>();
    assert_eq!(states(), ["? lost", "▸ running"]);
    // On another machine that shares the home, the state is unknown.
    let mut supervisor = run.read_supervisor().expect("it was written");
    (supervisor.host, supervisor.boot_id) = ("node-z".to_owned(), "another".to_owned());
    let elsewhere = runs.with_journal(&first(&fixture("v1-success"), 9));
    elsewhere.write_supervisor(&supervisor).expect("written");
    assert!(runs.out("ls").contains("? on node-z"), "{}", runs.out("ls"));
    assert!(runs.out("show 3").contains("on node-z shows whether it is running"));
    live.go_on(99);
    drop(live);
    assert!(runs.out("ls --status succeeded").contains("run-000001"));
}

fn damaged() {
    let runs = Runs::new();
    runs.fixture("v1-success");
    runs.fixture("v1-stopped");
    runs.out("ls");
    let text = fs::read_to_string(runs.home.index()).expect("the index");
    fs::write(runs.home.index(), text.replace("run-000001", "run-\0")).expect("written");
    let broken = runs.with_journal("no journal\nat all\n");
    fs::create_dir(runs.home.runs().join("lost+found")).expect("made");
    let text = runs.out("ls");
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.contains("ctr-dnn") && text.contains(&broken.id().to_string()));
    assert!(
        runs.err("show 3", 125).contains("error[J0004]: the journal of run-000003 is damaged at record 1 (byte 0)")
    );
}

/// Runs the line in a mount namespace in which the home is read-only, also for root.
fn frozen<'a>(runs: &'a Runs, line: &str) -> umiak_testkit::sandbox::Run<'a> {
    let binary = umiak_testkit::sandbox::binary().display();
    let script = format!("mount --bind state state && mount -o remount,ro,bind state && exec {binary} {line}");
    let arguments = ["-rm", "sh", "-c", &script];
    runs.sandbox.program(Path::new("unshare"), arguments).env("UMIAK_HOME", runs.home.path())
}

fn read_only() {
    let runs = Runs::new();
    runs.fixture("v1-success");
    let outcome = frozen(&runs, "ls --output quiet").finish();
    outcome.expect_code(0);
    assert_eq!((outcome.out(), outcome.err()), ("run-000001\n".to_owned(), String::new()));
    assert!(!runs.home.index().exists());
    frozen(&runs, "show 1").finish().expect_code(0);
    frozen(&runs, "wait 1").finish().expect_code(0);
    let refused = frozen(&runs, "rm 1").finish();
    refused.expect_code(125).expect_err("read-only file system");
    assert_eq!(runs.sandbox.list("state/runs"), ["run-000001"]);
}

/// Files that the user cannot read. Root can read everything, so as root the command runs as user 65534.
fn unreadable() {
    let runs = Runs::new();
    let run = runs.fixture("v1-success");
    let binary = runs.sandbox.path().join("umiak");
    fs::copy(umiak_testkit::sandbox::binary(), &binary).expect("a copy");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    mode(runs.sandbox.path(), 0o755);
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let ask = |line: &str| {
        let words = line.split_whitespace();
        let run = if is_root {
            let setpriv = ["--reuid=65534", "--regid=65534", "--clear-groups"].into_iter().chain(binary.to_str());
            runs.sandbox.program(Path::new("setpriv"), setpriv.chain(words))
        } else {
            runs.sandbox.program(&binary, words)
        };
        run.env("UMIAK_HOME", runs.home.path()).finish()
    };
    mode(&runs.home.runs(), 0);
    ask("ls").expect_code(125).expect_err("error[J0001]: cannot read").expect_err("permission denied");
    ask("show 1").expect_code(125).expect_err("permission denied");
    mode(&runs.home.runs(), 0o755);
    mode(runs.home.path(), 0o755);
    mode(run.path(), 0o755);
    mode(&run.journal(), 0);
    ask("show 1").expect_code(125).expect_err("error[J0004]: cannot read").expect_err("permission denied");
    ask("ls").expect_code(0);
    mode(&run.journal(), 0o644);
    ask("show 1").expect_code(0);
}

fn bad_homes() {
    let runs = Runs::new();
    runs.sandbox.write("file", "");
    let file = runs.sandbox.path().join("file");
    let outcome = runs.umiak("ls").env("UMIAK_HOME", &file).finish();
    outcome.expect_code(125).expect_err("error[J0001]: cannot read");
    outcome.expect_err("not a directory");
    outcome.expect_err("hint: free the path, or set `UMIAK_HOME` to another directory");
    let mut homeless = runs.umiak("ls");
    homeless.command.env_remove("UMIAK_HOME").env_remove("HOME").env_remove("XDG_STATE_HOME");
    homeless.finish().expect_code(125).expect_err("error[J0001]: no directory for recorded runs");
    let mut state = runs.umiak("ls").env("XDG_STATE_HOME", runs.sandbox.path());
    state.command.env_remove("UMIAK_HOME");
    state.finish().expect_code(0);
}

fn found() {
    let runs = Runs::new();
    for _ in 0..12 {
        runs.fixture("v1-stopped");
    }
    let newest = runs.fixture("v1-timed-out");
    let show = |word: &str| runs.out(&format!("show {word}")).lines().next().unwrap_or_default().to_owned();
    for (word, run) in
        [("run-000002", "run-000002"), ("2", "run-000002"), ("000012", "run-000012"), ("12", "run-000012")]
    {
        assert!(show(word).contains(run), "{word}");
    }
    assert!(show("sweep-3").contains("run-000012"), "the newest of that name");
    assert!(show("eval").contains(&newest.id().to_string()));
}

fn live_first() {
    let runs = Runs::new();
    let (first, one) = runs.live("v1-success", 10);
    runs.fixture("v1-success");
    let shown = || runs.out("show ctr-dnn --output json").contains(&first.id().to_string());
    assert!(shown(), "the newer one has ended");
    let (_second, two) = runs.live("v1-success", 10);
    for command in ["show", "wait", "events", "stop"] {
        let text = runs.err(&format!("{command} ctr-dnn"), 2);
        assert!(text.contains("error[J0002]: several runs named `ctr-dnn` are running"), "{text}");
        assert!(text.contains("run-000003") && text.contains("run-000001") && !text.contains("run-000002"), "{text}");
    }
    drop(two);
    assert!(shown(), "a lost run is not live");
    drop(one);
}

fn newest_run() {
    let runs = Runs::new();
    assert!(runs.err("show", 2).contains("error[J0002]: there are no runs yet"));
    runs.fixture("v1-success");
    runs.fixture("v1-stopped");
    for command in ["show", "explain"] {
        assert!(runs.out(command).starts_with("⊘ run-000002 sweep-3 stopped"), "{command}");
    }
    assert_eq!(runs.out("events"), runs.out("events 2"));
    assert!(runs.err("ls --name nothing", 0).contains("no run matches"));
}

/// At any width, no line is longer than the terminal and the most important columns remain.
fn fits() {
    let runs = Runs::new();
    let wide = fixture("v1-launch-failed").replace("\"job\":\"default\"", "\"job\":\"大规模语言模型微调实验第七次\"");
    let wide = wide
        .replace("\"job\":", "\"command\":\"umiak launch --nproc_per_node 8 训练.py --learning-rate 0.001\",\"job\":");
    runs.with_journal(&wide);
    runs.fixture("v1-success");
    runs.fixture("v1-replica-retry");
    for columns in [60, 80, 120] {
        for (line, part) in
            [("ls", "run-000001"), ("show 1", "trainer-1"), ("show 2", "pserver-0"), ("show 3", "trainer-1")]
        {
            let run = runs.umiak(line);
            let session = Session::of(run, (columns, 60));
            let (status, bytes) = session.finish();
            assert!(status.success());
            let text: Vec<String> = String::from_utf8_lossy(&bytes).lines().map(plain).collect();
            let table = text.iter().skip_while(|line| !line.starts_with("replica") && !line.starts_with("run   "));
            let table: Vec<&String> = table.take_while(|line| !line.is_empty()).collect();
            assert!(table.iter().any(|line| line.contains(part)), "{columns} {line}\n{text:#?}");
            for line in &table {
                assert!(line.width() <= usize::from(columns), "{columns}: {line:?}");
            }
        }
    }
}

/// Strips colours.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line.trim_end();
    while let Some((head, tail)) = rest.split_once('\u{1b}') {
        text += head;
        rest = tail.split_once('m').map_or("", |(_, rest)| rest);
    }
    text + rest
}

fn not_found() {
    let runs = Runs::new();
    let empty = runs.err("show 1", 2);
    assert!(empty.contains("error[J0002]: there is no run `1`") && empty.contains("HOME"), "{empty}");
    for _ in 0..21 {
        runs.fixture("v1-stopped");
    }
    for run in ["run-000001", "run-000002"] {
        runs.umiak(&format!("rm {run}")).finish().expect_code(0);
    }
    let ambiguous = runs.err("show 1", 2);
    assert!(ambiguous.contains("error[J0002]: `1` matches several runs"), "{ambiguous}");
    assert!(ambiguous.contains("run-000011, run-000021"), "{ambiguous}");
    assert!(runs.err("rm 11 3 1", 2).contains("error[J0002]: there is no run `1`"), "and nothing is removed");
    runs.umiak("rm run-000021").finish().expect_code(0);
    assert!(runs.err("rm 1", 2).contains("did you mean `run-000011`?"), "numbers are whole here");
    assert!(runs.err("show sweep-4", 2).contains("did you mean `sweep-3`?"));
    assert!(runs.err("show run-00003", 2).contains("did you mean `run-0000"));
    for word in ["../runs/run-000003", "run-000003/", ".", "..", "/etc", "run-000003/../run-000004", "\u{1}"] {
        assert!(runs.err(&format!("show {word}"), 2).contains("error[J0002]"), "{word}");
    }
}
