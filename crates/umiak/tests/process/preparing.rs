//! Until the first rank starts: special files are refused, signals are heard, and a path that hangs is named.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use umiak_testkit::sandbox::{Run, Running, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("preparing::special_files_are_refused", &[], special_files)
        .test("preparing::pipes_in_the_place_of_files_do_not_block", &[], pipes)
        .test("preparing::signals_are_heard_while_a_path_hangs", &[], signals)
        .test("preparing::a_path_that_hangs_is_named", &[], named)
        .test("preparing::messages_are_coloured_and_plain", &[], coloured)
        .test("preparing::a_signal_leaves_no_run_that_never_began", &[], never_begun);
}

const JOB: &str = "umiak: v1\nname: ctr\nroles: {trainer: {replicas: 1, command: \"sleep 60\", env: {API_TOKEN: x}}}\n";

type Make = fn(&Path);

fn special_files() {
    let kinds: [(&str, Make); 3] = [
        ("a named pipe", |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success())),
        ("a socket", |path| drop(UnixListener::bind(path).unwrap())),
        ("a device", |path| std::os::unix::fs::symlink("/dev/null", path).unwrap()),
    ];
    // Shown on the console, not shown, written before the start, and written later.
    for name in ["workerlog.0", "workerlog.1", "endpoints.log", "envlog.1", "backup_env.0.json"] {
        for (kind, make) in kinds {
            let sandbox = Sandbox::new();
            std::fs::create_dir(sandbox.path().join("log")).unwrap();
            make(&sandbox.path().join("log").join(name));
            let outcome = sandbox.launch_toy("--nproc_per_node 2", &["*:print never"]).finish();
            outcome
                .expect_code(125)
                .expect_err("error[L0014]: `")
                .expect_err(&format!("log/{name}` cannot be written"));
            outcome.expect_err(&format!("it is {kind}, not a regular file"));
            assert_eq!(sandbox.read_if_there("state/runs/run-000001/journal.jsonl"), None);
        }
    }
}

fn make_pipe(path: &Path) {
    let _ = std::fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn pipes() {
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", JOB.replace("sleep 60", "echo hello"));
    sandbox.umiak(["run", "job.yaml"]).finish().expect_code(0);
    let run = sandbox.path().join("state/runs/run-000001");
    // Views do without these files.
    for name in ["supervisor.json", "plan.json"] {
        make_pipe(&run.join(name));
        for command in ["show 1", "explain 1", "ls", "wait 1", "logs 1", "events 1"] {
            sandbox.umiak(command.split(' ')).finish().expect_code(0);
        }
    }
    sandbox
        .umiak(["retry", "--all", "1"])
        .finish()
        .expect_err("plan.json` cannot be read")
        .expect_err("it is a named pipe");
    make_pipe(&run.join("tasks/trainer-0/attempt-1/log"));
    sandbox.umiak(["logs", "1"]).finish().expect_err("it is a named pipe");
    make_pipe(&sandbox.path().join("state/index.jsonl"));
    sandbox.umiak(["ls"]).finish().expect_err("index.jsonl").expect_err("it is a named pipe");
    make_pipe(&sandbox.path().join("umiak.toml"));
    for command in ["lint job.yaml", "run job.yaml", "plan job.yaml"] {
        let outcome = sandbox.umiak(command.split(' ')).finish();
        outcome.expect_code(2).expect_err("`umiak.toml` cannot be read").expect_err("it is a named pipe");
    }
}

/// Waits until its preparation hangs.
fn await_watch(run: &Running<'_>) {
    run.wait_until("the thread that reads signals", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", run.pid())).into_iter().flatten().flatten();
        tasks
            .map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default())
            .any(|name| name == "signals\n")
    });
}

fn hanging<'a>(run: Run<'a>, at: &str) -> Run<'a> {
    run.env("UMIAK_TEST_HANG_AT", at)
}

fn signals() {
    for (at, signal, code) in
        [("log", 2, 130), ("log/workerlog.0", 15, 143), ("state", 1, 129), ("endpoints.log", 3, 131)]
    {
        let sandbox = Sandbox::new();
        let run = hanging(sandbox.launch_toy("--nproc_per_node 1", &["*:print never"]), at).start();
        await_watch(&run);
        run.signal(signal);
        run.finish().expect_code(code).expect_err("while the job was prepared");
    }
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", JOB);
    for at in ["state", "run-000001"] {
        let run = hanging(sandbox.umiak(["run", "job.yaml"]), at).start();
        await_watch(&run);
        run.signal(2);
        run.finish().expect_code(130).expect_err("stopped by SIGINT while the job was prepared");
        assert!(!sandbox.path().join("state/runs/run-000001").exists());
    }
}

fn named() {
    let sandbox = Sandbox::new();
    let mut run = hanging(sandbox.launch_toy("--nproc_per_node 1", &["*:print never"]), "log/workerlog.0");
    run.command.stderr(std::fs::File::create(sandbox.path().join("console")).unwrap());
    let run = run.start();
    run.wait_until("the notice", || sandbox.read("console").contains("notice[L0035]: preparing the job takes long"));
    assert!(sandbox.read("console").contains("log/workerlog.0"), "{}", sandbox.read("console"));
    run.signal(15);
    run.finish().expect_code(143);
}

/// Control characters in a path do not reach the terminal.
fn coloured() {
    let sandbox = Sandbox::new();
    let run =
        sandbox.launch_toy("--nproc_per_node 1 --log_dir lo\u{7}g", &["*:print never"]).env("CLICOLOR_FORCE", "1");
    let mut run = hanging(run, "workerlog.0");
    run.command.stderr(std::fs::File::create(sandbox.path().join("console")).unwrap());
    let run = run.start();
    run.wait_until("the notice", || sandbox.read("console").contains("workerlog.0"));
    run.signal(15);
    run.finish().expect_code(143);
    let console = sandbox.read("console");
    assert!(console.contains("while the job was prepared") && console.contains("\x1b[1m"), "{console:?}");
    let is_raw = |c: char| matches!(c, '\u{fdd0}'..='\u{fddf}' | '\u{7}');
    assert!(!console.contains(is_raw), "{console:?}");
}

/// At any moment of the first milliseconds, and once the job runs.
fn never_begun() {
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", JOB);
    let (mut begun, mut never) = (0, 0);
    for step in 0..=40 {
        let before = runs(&sandbox);
        let run = sandbox.umiak(["run", "job.yaml", "--output", "quiet"]).start();
        if step == 40 {
            let journal = |run: &PathBuf| std::fs::read_to_string(run.join("journal.jsonl")).unwrap_or_default();
            let is_started = |run: &PathBuf| !before.contains(run) && journal(run).contains("\"started\"");
            run.wait_until("the job runs", || runs(&sandbox).iter().any(is_started));
        }
        let until = Instant::now() + Duration::from_micros(500) * (step % 40);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        run.signal(2);
        run.finish();
        let after = runs(&sandbox);
        *if after.len() > before.len() { &mut begun } else { &mut never } += 1;
        for run in after {
            let journal = std::fs::read_to_string(run.join("journal.jsonl")).unwrap_or_default();
            assert!(journal.contains("\"finished\""), "{}: {journal}", run.display());
            assert!(!run.join("secrets.json").exists(), "{}", run.display());
        }
    }
    assert!(begun > 0 && never > 0, "{begun} had begun, {never} had not");
}

fn runs(sandbox: &Sandbox) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(sandbox.path().join("state/runs")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
