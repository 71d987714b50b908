//! Parameter servers and RPC of a real Paddle, on CPU.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use serde_json::Value;
use umiak_testkit::components::Component::PaddlePs;
use umiak_testkit::components::ps_environment;
use umiak_testkit::sandbox::{Run, Sandbox};
use umiak_testkit::suite::Suite;

use super::{example, has_fallen, support};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("frameworks::paddle_serves_parameters_under_its_own_launcher", &[PaddlePs], under_paddle)
        .test("frameworks::paddle_serves_parameters", &[PaddlePs], || {
            train(&["--server_num", "2", "--worker_num", "2"], "0");
        })
        // The first server opens its port only after the trainers have met, so trainers must not wait for it.
        .test("frameworks::paddle_serves_parameters_with_gloo", &[PaddlePs], || {
            train(&["--run_mode", "ps", "--server_num", "2", "--trainer_num", "2"], "");
        })
        .test("frameworks::paddle_serves_parameters_with_gloo_at_a_port", &[PaddlePs], || {
            let port = free_port().to_string();
            train(&["--server_num", "2", "--worker_num", "2", "--http_port", &port], "1");
        })
        .test("frameworks::paddle_serves_parameters_to_members_of_a_job", &[PaddlePs], members)
        .test("frameworks::a_killed_server_is_the_cause", &[PaddlePs], killed_at_work)
        .test("frameworks::a_killed_server_leaves_no_rendezvous", &[PaddlePs], killed_as_a_host)
        .test("frameworks::paddle_calls_procedures", &[PaddlePs], calls);
}

const STEPS: [&str; 2] = ["--steps", "200"];

/// Runs the example under Paddle's launcher, which exits with 0 even if a worker failed.
fn under_paddle() {
    let sandbox = Sandbox::new();
    let python = ps_environment().expect("the suite has checked that it is here").join("bin/python");
    let words = ["-m", "paddle.distributed.launch", "--server_num", "2", "--worker_num", "2", &example("ctr_ps.py")];
    let outcome = sandbox.program(&python, words).env("HOME", sandbox.path().join("home")).start().finish_unchecked();
    outcome.expect_code(0);
    all_have_learned(&sandbox);
}

/// Runs umiak with the caches of frameworks in directories of their own.
fn run<'a>(sandbox: &'a Sandbox, words: &[&str]) -> Run<'a> {
    let (home, temporary) = (sandbox.path().join("home"), sandbox.path().join("caches"));
    std::fs::create_dir(&temporary).expect("the sandbox can be written");
    let environment = ps_environment().expect("the suite has checked that it is here");
    sandbox.umiak(words).env("HOME", home).env("TMPDIR", temporary).env("VIRTUAL_ENV", environment)
}

/// Servers never exit by themselves: stopping them after the trainers is not a failure. `gloo` is the value of
/// `PADDLE_WITH_GLOO`; empty leaves it unset.
fn train(flags: &[&str], gloo: &str) {
    let sandbox = Sandbox::new();
    let run = run(&sandbox, &[&["launch"], flags, &[&example("ctr_ps.py")], &STEPS].concat());
    let run = if gloo.is_empty() { run } else { run.env("PADDLE_WITH_GLOO", gloo) };
    let outcome = run.finish();
    outcome.expect_code(0).expect_err("finished 2 servers and 2 trainers");
    assert!(!outcome.err().contains('✗'), "{}", outcome.err());
    all_have_learned(&sandbox);
    let with_gloo = if gloo == "0" { "0" } else { "1" };
    assert!(
        sandbox.read("log/envlog.0").contains(&format!("PADDLE_WITH_GLOO={with_gloo}\n")),
        "set as requested, or by default"
    );
    let words = "gloo initialized done";
    assert_eq!(
        sandbox.read("log/workerlog.0").contains(words),
        gloo != "0",
        "trainers meet over gloo only if it is on"
    );
    let ended = journal(&sandbox).into_iter().filter(|fact| fact["type"] == "ended");
    let by_us = ended.map(|fact| (fact["subject"]["replica"].clone(), fact["by_us"] == true));
    for (replica, by_us) in by_us {
        assert_eq!(replica.as_str().unwrap_or_default().starts_with("pserver"), by_us, "{replica}");
    }
}

/// The roles of a document as the operators of Kubernetes start them: all at once, gloo on.
fn members() {
    let sandbox = Sandbox::new();
    let python = ps_environment().expect("the suite has checked that it is here").join("bin/python");
    let command = format!("[{}, {}, --steps, 200]", python.display(), example("ctr_ps.py"));
    let document = format!(
        "umiak: v1\nname: ctr\ncontracts: paddle-job\nroles:\n  pserver: {{part: server, replicas: 2, completes: false, command: {command}}}\n  worker: {{part: trainer, replicas: 2, command: {command}}}\n"
    );
    sandbox.write("job.yaml", &document);
    run(&sandbox, &["run", "job.yaml"]).finish().expect_code(0);
    for rank in 0..2 {
        let text = sandbox.read(&format!("state/runs/run-000001/tasks/worker-{rank}/attempt-1/log"));
        has_learned(&text, rank);
        assert!(text.contains("gloo initialized done"), "{text}");
    }
}

fn all_have_learned(sandbox: &Sandbox) {
    for rank in 0..2 {
        has_learned(&sandbox.read(&format!("log/workerlog.{rank}")), rank);
    }
}

fn has_learned(log: &str, rank: u32) {
    let last = log.lines().find(|line| line.starts_with(&format!("worker {rank}/2  done in ")));
    has_fallen(last.unwrap_or_else(|| panic!("no last line:\n{log}")));
}

/// Trainers do not exit when a server dies: they would wait for it forever.
fn killed_at_work() {
    let trains = |sandbox: &Sandbox, _| {
        let log = sandbox.read_if_there("log/workerlog.1").unwrap_or_default();
        String::from_utf8_lossy(&log).contains("worker 1/2  step   1")
    };
    let facts = killed(1, trains);
    // The report names only those that were still live when it was printed.
    let sent = facts.iter().find(|fact| fact["type"] == "stop_sent").expect("the others were stopped");
    assert_eq!(sent["how"], "terminate");
    assert_eq!(sent["replicas"], serde_json::json!(["pserver-0", "trainer-0", "trainer-1"]));
}

/// With gloo, the first server hosts a rendezvous in child processes before it serves; these must be stopped too.
fn killed_as_a_host() {
    killed(0, |_, server| umiak_sys::descend::children(server).len() >= 2);
}

/// Kills a server once `is_time` returns true, and returns the recorded facts.
fn killed(index: u32, is_time: impl Fn(&Sandbox, u32) -> bool) -> Vec<Value> {
    let sandbox = Sandbox::new();
    let flags = ["launch", "--run_mode", "ps", "--server_num", "2", "--trainer_num", "2"];
    let script = example("ctr_ps.py");
    let run = run(&sandbox, &[flags.as_slice(), &[&script, "--steps", "1000000"]].concat()).start();
    let name = format!("pserver-{index}");
    let mut server = None;
    run.wait_until("the server is started", || {
        let is_started = |fact: &&Value| fact["type"] == "started" && fact["subject"]["replica"] == *name;
        server = journal(&sandbox).iter().find(is_started).and_then(|fact| fact["pid"].as_u64());
        server.is_some()
    });
    let server = server.expect("it was waited for") as u32;
    // Two waits, because each has its own time limit and Paddle is slow on a busy machine.
    run.wait_until("the first log or the right moment", || {
        is_time(&sandbox, server) || sandbox.path().join("log/workerlog.1").exists()
    });
    run.wait_until("the right moment", || is_time(&sandbox, server));
    umiak_sys::descend::signal(server, 9);
    let outcome = run.finish();
    outcome
        .expect_code(137)
        .expect_err(&format!("Out of all 2 pservers, the pserver process with rank=[{index}] was aborted."))
        .expect_err(&format!("✗ {name} on "))
        .expect_err("was killed by SIGKILL");
    assert_eq!(outcome.err().matches("✗ ").count(), 1, "others were blamed:\n{}", outcome.err());
    journal(&sandbox)
}

fn calls() {
    let sandbox = Sandbox::new();
    let script = support("paddle_rpc.py");
    let line = ["launch", "--run_mode", "rpc", "--nproc_per_node", "2", "--log_overwrite", "true", &script];
    let start = || run(&sandbox, &line).start();
    let mut running = start();
    // Paddle picks a free port, releases it and binds it later, and its calls have no timeout: if another process takes
    // the port in between, both ranks wait forever. Such a run is repeated once.
    let deadline = Instant::now() + Duration::from_secs(60);
    while running.is_running() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    if running.is_running() {
        running.signal(15);
        running.finish().expect_code(143);
        running = start();
    }
    running.finish().expect_code(0);
    for rank in 0..2 {
        let text = sandbox.read(&format!("log/workerlog.{rank}"));
        let answer = format!("worker {rank} of ['worker0', 'worker1']: 42");
        assert!(text.lines().any(|line| line == answer), "{text}");
    }
}

/// Returns the facts of the only run so far.
fn journal(sandbox: &Sandbox) -> Vec<Value> {
    let bytes = sandbox.read_if_there("state/runs/run-000001/journal.jsonl").unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("it is bound").port()
}
