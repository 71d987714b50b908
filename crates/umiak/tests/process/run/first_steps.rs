//! First steps with `umiak run`: mistakes, Ctrl-C, pipes, terminals.

use std::io::{BufRead as _, BufReader};
use std::path::Path;

use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::Session;

use super::{Stage, stories};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run: first steps: mistakes", &[], mistakes)
        .test("run: first steps: a home that cannot be written", &[], no_home)
        .test("run: first steps: outputs", &[], outputs)
        .test("run: first steps: a reader that goes away", &[], head)
        .test("run: first steps: nothing starts in a plan", &[], plans)
        .test("run: first steps: a terminal, also a narrow one", &[], terminals)
        .test("run: first steps: Ctrl-C twice on a terminal", &[], twice)
        .test("run: first steps: three signals", &[], three_times)
        .test("run: first steps: pause and go on", &[], pause)
        .test("run: first steps: stop what is not there", &[], stop_nothing)
        .test("run: first steps: what Python prints is seen at once", &[], unbuffered)
        .test("run: first steps: secrets of a command line are in no file", &[], secrets);
}

const HELLO: &str = "umiak: v1\nroles: {w: {command: [actor, print=hello]}}";

/// Each error says what is wrong and what to do.
fn mistakes() {
    let stage = Stage::new("local");
    stage.sandbox.write("job.yaml", HELLO);
    stage.sandbox.write("empty.yaml", "");
    stage.sandbox.write("nothing.yaml", "umiak: v1\nroles: {w: {replicas: 2}}");
    stage.sandbox.write("train.py", "print(1)\n");
    stage.sandbox.write("train.sh", "#!/bin/sh\necho one\n");
    stage.sandbox.write("script.yaml", "umiak: v1\nroles: {w: {command: [./train.sh]}}");
    stage.sandbox.write("bare.yaml", "umiak: v1\nroles: {w: {command: [train.sh]}}");
    stage.sandbox.write("lost.yaml", "umiak: v1\nroles: {w: {command: 'true', dir: nowhere}}");
    for (line, code, words) in [
        ("run", 2, &["<FILE>", "usage: `umiak run"][..]),
        ("run no-such.yaml", 2, &["error[F0001]", "there is no file `no-such.yaml`"]),
        ("run tmp", 2, &["error[F0001]", "`tmp` is a directory", "hint: "]),
        ("run empty.yaml", 2, &["`empty.yaml` is empty", "hint: a native document starts with `umiak: v1`"]),
        ("run nothing.yaml", 2, &["role `w` has no `command`", "nothing.yaml:2:9"]),
        ("run lost.yaml", 127, &["the directory of role `w` does not exist", "hint: "]),
        ("run train.py", 2, &["`train.py` is a script, not a document", "hint: run it with `umiak launch train.py`"]),
        ("run train.sh", 2, &["hint: run it with `umiak launch train.sh`"]),
        (
            "launch train.sh",
            126,
            &["`train.sh` has no executable bit", "hint: `chmod +x train.sh`", "`umiak launch sh train.sh`"],
        ),
        (
            "run script.yaml",
            126,
            &["it has no executable bit", "hint: `chmod +x ./train.sh`", "`command: [sh, ./train.sh]`"],
        ),
        ("run bare.yaml", 127, &["hint: there is a file of that name: `chmod +x train.sh` and write `./train.sh`"]),
        ("job.yaml", 2, &["there is no command `job.yaml`", "hint: to run a document, write `umiak run job.yaml`"]),
        ("run job.yaml --engine mok", 2, &["hint: did you mean `mock`?"]),
        ("run job.yaml --engine container", 2, &["the engine `container` is not supported yet"]),
        ("run job.yaml --engin mock", 2, &["--engine"]),
        ("run job.yaml -p epochs=3", 2, &["has no parameter `epochs`"]),
        ("run job.yaml -p epochs", 2, &["write NAME=VALUE"]),
        ("plan no-such.yaml", 2, &["there is no file `no-such.yaml`"]),
        ("resume 1", 2, &["hint: "]),
    ] {
        let outcome = stage.umiak(line).finish();
        outcome.expect_code(code);
        for word in words {
            outcome.expect_err(word);
        }
        assert_eq!(outcome.out(), "", "{line}");
    }
    assert!(!stage.run_dir().exists(), "no run was recorded");
}

fn no_home() {
    let stage = Stage::new("local");
    stage.sandbox.write("job.yaml", HELLO);
    stage.sandbox.write("file", "");
    for home in ["file", "/proc/nothing"] {
        let outcome = stage.umiak("run job.yaml").env("UMIAK_HOME", home).finish();
        outcome.expect_code(125).expect_err("error[J0001]").expect_err("UMIAK_HOME");
    }
    let outcome = stage.umiak("run job.yaml --output json").env("UMIAK_HOME", "file").finish();
    assert_eq!(outcome.facts()[0]["error"]["code"], "J0001");
}

/// stdout holds the first replica's output or facts; umiak's own lines go to stderr, or are off.
fn outputs() {
    let stage = Stage::new("local");
    stage.sandbox.write("job.yaml", HELLO);
    let human = stage.umiak("run job.yaml").finish();
    assert_eq!((human.code(), human.out()), (0, "hello\n".to_owned()));
    human.expect_err("run-000001").expect_err("finished");
    let quiet = stage.umiak("run job.yaml --output quiet").finish();
    assert_eq!((quiet.code(), quiet.out(), quiet.err()), (0, "hello\n".to_owned(), String::new()));
    let json = stage.umiak("run job.yaml --output json").finish();
    assert_eq!((json.code(), json.err()), (0, String::new()));
    assert_eq!(stories(&json.facts())["w-0"], "starting@1 started@1 ended@1=0");
    let mirrored = stage.umiak("run job.yaml --output json --mirror").finish();
    assert_eq!((mirrored.code(), mirrored.err()), (0, "hello\n".to_owned()));
    let piped = std::fs::File::open(stage.sandbox.path().join("job.yaml")).expect("it was written");
    let stdin = stage.umiak("run -").stdin(piped).finish();
    assert_eq!((stdin.code(), stdin.out()), (0, "hello\n".to_owned()));
}

/// `umiak run job.yaml | head -1`: the job continues and determines the exit code.
fn head() {
    for flags in ["", "--output json"] {
        let stage = Stage::new("local");
        let words: Vec<String> = (0..50).map(|line| format!("print={line}")).collect();
        let words = words.join(", ");
        let document =
            format!("umiak: v1\nroles: {{w: {{command: [actor, {words}, sleep=300ms, print=late, exit=4]}}}}");
        stage.sandbox.write("job.yaml", document);
        let mut running = stage.umiak(&format!("run job.yaml {flags}")).start_unread();
        let mut first = String::new();
        BufReader::with_capacity(1, running.take_stdout()).read_line(&mut first).expect("a line");
        running.finish().expect_code(4);
        assert!(stage.log("w-0", 1).ends_with("late\n"));
        stage.assert_nothing_left();
    }
}

fn plans() {
    let stage = Stage::new("local");
    let document = "umiak: v1\nname: ctr\nroles:\n  ps: {replicas: 2, command: [actor, ready], ports: {rpc: 1}, completes: false}\n  w: {command: [actor], start_after: ps, env: {API_TOKEN: hidden, LR: 0.1}, restarts: 2}\n";
    stage.sandbox.write("job.yaml", document);
    for line in ["plan job.yaml", "run job.yaml --dry-run"] {
        let outcome = stage.umiak(line).finish();
        outcome.expect_code(0);
        let text = outcome.out();
        for words in [
            "job ctr",
            "role ps, 2 replicas",
            "role w, 1 replica\n",
            "starts after ps, when it listens on its ports",
            "restarts 2 per replica",
            "ps-1     1",
            "LR=0.1",
            "UMIAK_ENDPOINTS_PS_RPC=127.",
        ] {
            assert!(text.contains(words), "{line} lacks {words:?}:\n{text}");
        }
        assert!(!text.contains("hidden"), "{text}");
    }
    let json = stage.umiak("plan job.yaml --output json").finish();
    let plan: serde_json::Value = serde_json::from_str(&json.out()).expect("JSON");
    assert_eq!(plan["replicas"][2]["replica"], "w-0");
    assert_eq!(plan["replicas"][2]["env"]["LR"], "0.1");
    assert!(plan["common"]["UMIAK_HOSTS_PS"].as_str().is_some_and(|hosts| hosts.contains(',')), "{plan}");
    // Thousands of replicas are planned quickly, because shared variables are stored once.
    stage.sandbox.write("big.yaml", "umiak: v1\nroles: {w: {replicas: 20000, command: [actor], ports: {rpc: 1}}}");
    let big = stage.umiak("plan big.yaml").finish();
    assert!(big.code() == 0 || big.err().contains("error[J0020]"), "{}", big.err());
    // A variable that is too long prevents any start.
    let long = "x".repeat(128 << 10);
    stage.sandbox.write("long.yaml", format!("umiak: v1\nroles: {{w: {{command: [actor], env: {{BIG: {long}}}}}}}"));
    let outcome = stage.umiak("plan long.yaml").finish();
    outcome
        .expect_code(125)
        .expect_err("error[J0020]: the environment variable `BIG` is too long")
        .expect_err("131077 bytes");
    assert!(!stage.sandbox.path().join("state").exists(), "a plan records nothing");
    stage
        .umiak("run long.yaml")
        .finish()
        .expect_code(125)
        .expect_err("error[J0020]: the environment variable `BIG` is too long");
    assert!(!stage.run_dir().exists(), "a refused run is not recorded");
}

/// No line exceeds the width, and the last line is shown.
fn terminals() {
    for columns in [100, 40, 20] {
        let stage = Stage::new("local");
        stage
            .sandbox
            .write("job.yaml", "umiak: v1\nroles: {w: {replicas: 2, command: [actor, '0:print=up', sleep=500ms]}}");
        let session = Session::of(stage.umiak("run job.yaml"), (columns, 24));
        session.wait_for("the replica's output", |screen| screen.iter().any(|line| line.contains("up")));
        let (status, bytes) = session.finish();
        assert_eq!(status.code(), Some(0), "{}", String::from_utf8_lossy(&bytes));
        let screen = umiak_testkit::terminal::render(&bytes, (columns, 24)).join("\n");
        assert!(screen.to_lowercase().contains("finished"), "{screen}");
    }
}

/// On a terminal, the first Ctrl-C stops and the second kills.
fn twice() {
    let stage = Stage::new("local");
    let document = "umiak: v1\npolicy: {grace: 1m}\nroles: {w: {command: [actor, ignore-term, print=up, sleep=60]}}";
    stage.sandbox.write("job.yaml", document);
    let mut session = Session::of(stage.umiak("run job.yaml"), (100, 24));
    session.wait_for("the replica's output", |screen| screen.iter().any(|line| line.contains("up")));
    session.type_keys(b"\x03");
    session.wait_for("what a second one does", |screen| screen.iter().any(|line| line.contains("again to kill")));
    session.type_keys(b"\x03");
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(130), "{}", String::from_utf8_lossy(&bytes));
    stage.assert_nothing_left();
}

/// The third signal returns to the shell at once; remaining processes end on their own, and the run is recorded as
/// ended.
fn three_times() {
    let stage = Stage::new("local");
    let document =
        "umiak: v1\npolicy: {grace: 1m}\nroles: {w: {replicas: 2, command: [actor, ignore-term, print=up, sleep=60]}}";
    let running = stage.run(document).start();
    for replica in ["w-0", "w-1"] {
        stage.wait_for_log(&running, replica, 1, "up");
    }
    // All three signals are pending together, and read in the order of their numbers: SIGHUP, SIGINT, SIGTERM.
    running.signal(19);
    for signal in [1, 2, 15] {
        running.signal(signal);
    }
    running.signal(18);
    let outcome = running.finish();
    outcome.expect_code(143);
    assert_eq!(stories(&stage.journal())["run"].split(' ').next_back(), Some("finished:interrupted=143"));
    stage.assert_nothing_left();
    let shown = stage.umiak("show 1").finish();
    assert!(shown.out().contains("interrupted with 143"), "{}", shown.out());
}

/// Ctrl-Z also stops replicas, and no timeout runs meanwhile.
fn pause() {
    let stage = Stage::new("local");
    let document = "umiak: v1\npolicy: {timeout: 3s}\nroles: {w: {command: [actor, print=up, sleep=1]}}";
    let running = stage.run(document).start();
    stage.wait_for_log(&running, "w-0", 1, "up");
    let state = |pid: u64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next())
    };
    let pid = stage.journal().iter().find_map(|fact| fact["pid"].as_u64().filter(|_| fact["type"] == "started"));
    let pid = pid.expect("a process");
    running.signal(20);
    running.wait_until("both have stopped", || state(pid) == Some('T') && state(u64::from(running.pid())) == Some('T'));
    // Longer than the run's timeout.
    std::thread::sleep(std::time::Duration::from_millis(3500));
    running.signal(18);
    let outcome = running.finish();
    outcome.expect_code(0);
    assert_eq!(stories(&outcome.facts())["run"], "submitted paused continued finished:succeeded=0");
}

fn stop_nothing() {
    let stage = Stage::new("mock");
    stage.umiak("stop 1").finish().expect_code(2).expect_err("hint: ");
    stage.run(HELLO).finish().expect_code(0);
    let again = stage.umiak("stop 1").finish();
    again.expect_code(2).expect_err("run-000001 has already ended").expect_err("`umiak show run-000001`");
    let resumed = stage.umiak("resume 1").finish();
    resumed.expect_code(2).expect_err("`umiak retry --all run-000001`");
    let retried = stage.umiak("retry 1").finish();
    retried.expect_code(2).expect_err("--all");
    stage.umiak("retry 1 --all --output json").finish().expect_code(0);
    assert_eq!(stories(&stage.journal())["w-0"], "starting@1 started@1 ended@1=0 starting@2 started@2 ended@2=0");
}

/// Python buffers output to a file; without `PYTHONUNBUFFERED`, the output of a killed replica would be lost.
fn unbuffered() {
    let stage = Stage::new("local");
    let script =
        "import os, signal\nprint('before', os.environ['PYTHONUNBUFFERED'])\nos.kill(os.getpid(), signal.SIGKILL)\n";
    stage.sandbox.write("train.py", script);
    let role = |more: &str| format!("umiak: v1\nroles: {{w: {{command: [python3, train.py]{more}}}}}\n");
    stage.sandbox.write("job.yaml", role(""));
    stage.sandbox.write("own.yaml", role(", env: {PYTHONUNBUFFERED: x}"));
    for (line, printed) in [
        ("run job.yaml", "before 1\n"),
        ("run own.yaml", "before x\n"),
        ("launch --nproc_per_node 1 python3 train.py", "before 1\n"),
    ] {
        let outcome = stage.umiak(line).finish();
        outcome.expect_code(137);
        assert_eq!(outcome.out(), printed, "{line}");
    }
    let outcome = stage.umiak("run job.yaml").env("PYTHONUNBUFFERED", "yes").finish();
    assert_eq!(outcome.out(), "before yes\n");
}

/// Secrets of a launch and of a document appear in no file that umiak writes and not on the console, also after a
/// failure.
fn secrets() {
    let stage = Stage::new("local");
    let home = stage.run_dir().parent().and_then(Path::parent).expect("a home").to_owned();
    let arguments = "--token=verysecret --password verysecret API_KEY=verysecret http://li:verysecret@host/?sig=verysecret \
        --passphrase verysecret --credentials verysecret Bearer verysecret {\\\"password\\\":\\\"verysecret\\\"}";
    let words = arguments.replace(' ', "', '");
    // The script does not print them; a replica's output is not masked.
    stage.sandbox.write("train.sh", "echo $#; exit 3\n");
    stage.sandbox.write(
        "job.yaml",
        format!(
            "umiak: v1\nroles:\n  a: {{command: [sh, train.sh, '{words}']}}\n  b: {{command: \"sh train.sh {arguments}\"}}\n"
        ),
    );
    let launch = format!("launch --nproc_per_node 1 --log_level DEBUG sh train.sh {arguments}");
    let lines = [launch.as_str(), "run job.yaml"];
    let looks = [
        "ls --output json",
        "show 1",
        "show 2 --output json",
        "plan job.yaml",
        "plan job.yaml --output json",
        "explain 1",
    ];
    for line in lines.into_iter().chain(looks) {
        let outcome = stage.umiak(line).finish();
        assert_eq!(outcome.code() != 0, lines.contains(&line), "{line}\n{}", outcome.err());
        for text in [outcome.out(), outcome.err()] {
            assert!(!text.contains("verysecret"), "{line}\n{text}");
        }
    }
    let mut looked = 0;
    let mut folders = vec![home, stage.sandbox.path().join("log")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a directory").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if let Ok(bytes) = std::fs::read(&entry) {
                looked += 1;
                assert!(!String::from_utf8_lossy(&bytes).contains("verysecret"), "{}", entry.display());
            }
        }
    }
    assert!(looked > 15, "{looked} files only");
}
