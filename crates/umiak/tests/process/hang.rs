//! Jobs that hang: noticed only if no rank makes progress, the odd rank is named, and stacks can be read at any time.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use umiak_testkit::components::Component::Netns;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::schema::violation;
use umiak_testkit::suite::Suite;

use crate::nodes::Cluster;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("hang::odd_rank_is_named", &[], odd_rank_is_named)
        .test("hang::restarts_as_the_policy_says", &[], restarts)
        .test("hang::output_or_data_of_one_rank_is_progress", &[], progress)
        .test("hang::waiting_for_input_is_no_hang", &[], waiting_for_input)
        .test("hang::server_is_not_the_odd_one", &[], server)
        .test("hang::all_nodes_are_without_progress", &[Netns], two_nodes)
        .test("hang::processor_time_is_no_progress", &[], spinning)
        .test("hang::stacks_of_a_live_run", &[], stacks)
        .test("hang::stacks_of_children_and_reasons", &[], children)
        .test("hang::signals_are_heard_while_stacks_are_read", &[], interrupted)
        .test("hang::early_end_is_the_cause", &[], early_end)
        .test("hang::suspended_rank_is_the_cause", &[], suspended);
}

/// All ranks but the last wait in one function, the last in another.
const SCRIPT: &str = "\
import os, sys, threading, time

def reduce():
    threading.Event().wait()

def load():
    while not os.path.exists('go'):
        time.sleep(0.01)

open('up-' + os.environ['PADDLE_TRAINER_ID'], 'w').close()
if os.environ['PADDLE_TRAINER_ID'] == '2' or len(sys.argv) > 1:
    load()
else:
    reduce()
";

fn script(sandbox: &Sandbox) {
    std::fs::write(sandbox.path().join("train.py"), SCRIPT).expect("the sandbox can be written to");
}

fn odd_rank_is_named() {
    let sandbox = Sandbox::new();
    // The loop of the third rank would be progress if it were seen: it reads nothing and writes nothing.
    let blocked = SCRIPT.replace("time.sleep(0.01)", "time.sleep(600)");
    std::fs::write(sandbox.path().join("train.py"), blocked).expect("the sandbox can be written to");
    let words = "launch --nproc_per_node 3 --hang-timeout 300ms --show none train.py";
    let outcome = sandbox.umiak(words.split(' ')).finish();
    outcome.expect_code(124).expect_err("the job hangs").expect_err("✗ rank 2 on ");
    outcome.expect_err("did not reach the operation that the others were waiting in").expect_err("train.py:8 in load");
    let explained = sandbox.umiak(["explain"]).finish();
    explained.expect_code(0).expect_out("train.py:4 in reduce").expect_out("train.py:8 in load");
    // The others waited for it.
    let shown = sandbox.umiak(["show"]).finish();
    shown.expect_code(0).expect_out("✗ hung").expect_out("⊘ stopped by us (SIGTERM)");
    assert_eq!(shown.out().matches("✗ hung").count(), 1, "{}", shown.out());
    sandbox.assert_nothing_left();
}

fn restarts() {
    let sandbox = Sandbox::new();
    let flags = "--nproc_per_node 2 --hang-timeout 300ms --max_restart 1 --restart-backoff 0s";
    let outcome = sandbox.launch_toy(flags, &["*@1:sleep 60000", "*@2:print done"]).finish();
    outcome.expect_code(0).expect_err("the job hangs").expect_out("done");
}

/// Rank 1 sends a byte to rank 0 now and then. Neither writes or reads anything else.
const SENDING: &str = "\
import os, socket, time

if os.environ['PADDLE_TRAINER_ID'] == '0':
    server = socket.create_server(('127.0.0.1', 0))
    with open('port.new', 'w') as file:
        file.write(str(server.getsockname()[1]))
    os.rename('port.new', 'port')
    peer, _ = server.accept()
    while peer.recv(1):
        pass
else:
    while not os.path.exists('port'):
        time.sleep(0.01)
    peer = socket.create_connection(('127.0.0.1', int(open('port').read())))
    for _ in range(35):
        peer.send(b'x')
        time.sleep(0.2)
";

/// One rank that writes now and then keeps the others from being called hung; so do two that exchange data.
fn progress() {
    let sandbox = Sandbox::new();
    let writes = format!("1:{}touch over", "print step;sleep 200;".repeat(35));
    let flags = "--nproc_per_node 2 --hang-timeout 1s --show none";
    sandbox.launch_toy(flags, &[&writes, "0:await over"]).finish().expect_code(0);
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("train.py"), SENDING).expect("the sandbox can be written to");
    sandbox.umiak(format!("launch {flags} train.py").split(' ')).finish().expect_code(0);
}

/// As in a debugger: the user may think for longer than the limit and both samples take together.
fn waiting_for_input() {
    let sandbox = Sandbox::new();
    sandbox.write("train.py", "import os, time\nif os.environ['PADDLE_TRAINER_ID'] == '0':\n    open(input(), 'w')\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n");
    let typing = Command::new("sh").args(["-c", "sleep 8; echo go"]).stdout(Stdio::piped()).spawn();
    let mut typing = typing.expect("sh can be started");
    let words = "launch --nproc_per_node 2 --stdin 0 --hang-timeout 300ms --show none train.py";
    let run = sandbox.umiak(words.split(' ')).stdin(typing.stdout.take().expect("its stdout is a pipe"));
    run.finish().expect_code(0);
    typing.wait().expect("it has ended");
}

/// It waits for requests, and not where the trainers wait.
fn server() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "serve.py",
        "import socket\n\ndef serve():\n    socket.create_server(('127.0.0.1', 0)).accept()\n\nserve()\n",
    );
    sandbox.write("train.py", "import threading\n\ndef reduce():\n    threading.Event().wait()\n\nreduce()\n");
    sandbox.write(
        "job.yaml",
        "\
umiak: v1
name: ps
policy: {hang: 300ms}
roles:
  server: {command: exec python3 serve.py, completes: false}
  trainer: {replicas: 2, command: exec python3 train.py}
",
    );
    let outcome = sandbox.umiak(["run", "job.yaml"]).finish();
    outcome.expect_code(124).expect_err("the job hangs").expect_err("waited         trainer 0-1 at ");
    outcome
        .expect_err("train.py:4 in reduce")
        .expect_err("waited         server-0 at ")
        .expect_err("serve.py:4 in serve");
    assert!(!outcome.err().contains("did not reach the operation"), "{}", outcome.err());
    let explained = sandbox.umiak(["explain"]).finish();
    explained.expect_code(0).expect_out("serve.py:4 in serve").expect_out("train.py:4 in reduce");
}

fn two_nodes() {
    let cluster = Cluster::new(2);
    for outcome in cluster.run("--ips $IPS --hang-timeout 300ms --show none --grace 1s", &["*:sleep 60000"]) {
        outcome.expect_code(124).expect_err("the job hangs");
    }
}

fn spinning() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy("--nproc_per_node 1 --hang-timeout 300ms", &["*:burn 60000"]).finish();
    outcome.expect_code(124).expect_err("the job hangs");
}

fn stacks() {
    let sandbox = Sandbox::new();
    script(&sandbox);
    let ask = |words: &str| sandbox.umiak(words.split(' ')).start().finish_unchecked();
    let running = sandbox.umiak("launch --nproc_per_node 3 train.py waits".split(' ')).start();
    for rank in 0..3 {
        running.wait_for_file(&format!("up-{rank}"));
    }
    // A rank that is up may not have entered the function yet, or may be looking for the file.
    let begin = Instant::now();
    let text = loop {
        let text = ask("stacks");
        if text.out().contains("trainer 0-2 at ") || begin.elapsed() > Duration::from_secs(60) {
            break text;
        }
    };
    text.expect_code(0).expect_out("trainer 0-2 at ").expect_out("train.py:8 in load").expect_out("<module>");
    let data: Value = serde_json::from_str(&ask("stacks --output json").out()).expect("JSON");
    let schema: Value = serde_json::from_str(&ask("schema stacks").out()).expect("a schema");
    assert_eq!(violation(&schema, &data), None, "{data}");
    assert_eq!(data["replicas"].as_array().map(Vec::len), Some(3), "{data}");
    std::fs::write(sandbox.path().join("go"), "").expect("the sandbox can be written to");
    // The ranks were not disturbed.
    running.finish().expect_code(0);
    ask("stacks 1").expect_code(2).expect_err("run-000001 is not running");
}

/// A rank with two workers, and one that runs no Python.
fn children() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "train.py",
        "\
import multiprocessing, os, time

def deep(depth):
    while depth == 0 and not os.path.exists('go'):
        time.sleep(0.01)
    depth and deep(depth - 1)

def load(depth):
    open('up-%d' % os.getpid(), 'w').close()
    deep(depth)

if __name__ == '__main__':
    context = multiprocessing.get_context('fork')
    workers = [context.Process(target=load, args=(60,)) for _ in range(2)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
",
    );
    sandbox.write(
        "job.yaml",
        "umiak: v1\nname: load\nroles:\n  trainer:\n    command: exec python3 train.py\n  other:\n    command: exec sleep 600\n    completes: false\n",
    );
    let ask = |words: &str| sandbox.umiak(words.split(' ')).start().finish_unchecked();
    let running = sandbox.umiak(["run", "job.yaml"]).start();
    running.wait_until("both workers", || sandbox.list(".").iter().filter(|name| name.starts_with("up-")).count() == 2);
    let begin = Instant::now();
    let text = loop {
        let text = ask("stacks");
        if text.out().contains("2 child processes") || begin.elapsed() > Duration::from_secs(60) {
            break text;
        }
    };
    text.expect_code(0).expect_out(" run-000001 load  ").expect_out("  trainer-0 at ").expect_out("(pids ");
    text.expect_out("train.py:5 in deep\n").expect_out("\n      … ").expect_out(" more\n");
    text.expect_out("  other-0 sleeps for a set time (").expect_out("; no stack: it runs no Python interpreter");
    let data: Value = serde_json::from_str(&ask("stacks --output json").out()).expect("JSON");
    let schema: Value = serde_json::from_str(&ask("schema stacks").out()).expect("a schema");
    assert_eq!(violation(&schema, &data), None, "{data}");
    let trainer =
        data["replicas"].as_array().and_then(|all| all.iter().find(|it| it["subject"]["replica"] == "trainer-0"));
    assert_eq!(trainer.and_then(|it| it["children"].as_array()).map(Vec::len), Some(2), "{data}");
    sandbox.write("go", "");
    running.finish().expect_code(0);
}

/// Reading stacks never returns here.
fn interrupted() {
    let sandbox = Sandbox::new();
    let flags = "--nproc_per_node 2 --hang-timeout 300ms";
    let run = sandbox.launch_toy(flags, &["*:sleep 60000"]).env("UMIAK_TEST_HANG_AT", "stacks").start();
    run.wait_until("the reading of stacks", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", run.pid())).into_iter().flatten().flatten();
        // The first thread has the name of the program. It reads no stacks.
        let mut others = tasks.filter(|task| task.file_name() != run.pid().to_string().as_str());
        others.any(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "stacks\n"))
    });
    run.signal(15);
    run.finish().expect_code(143);
    sandbox.assert_nothing_left();
}

const LOST: &str = "err Traceback (most recent call last):\\n  File \"train.py\", line 3, in <module>\\n    step()\\nConnectionResetError: [Errno 104] Connection reset by peer";

fn early_end() {
    let sandbox = Sandbox::new();
    let victim = format!("0:await-end pid.trainer-1;{LOST};exit 1");
    let actions = ["1:print step 7;pid;exit 0", &victim, "2:sleep 60000"];
    let outcome = sandbox.launch_toy("--nproc_per_node 3 --show none", &actions).finish();
    outcome.expect_code(1).expect_err("✗ rank 1 on ").expect_err("exited with 0 too early, while 2 others ran");
    outcome.expect_err("│ step 7").expect_err("followed       rank 0 exited with 1");
}

fn suspended() {
    let sandbox = Sandbox::new();
    let timeout = LOST.replace("ConnectionResetError: [Errno 104] Connection reset by peer", "TimeoutError: timed out");
    let victim = format!("0:await-suspended pid.trainer-1;{timeout};exit 1");
    let actions = ["1:pid;signal 19;sleep 60000", &victim, "2:sleep 60000"];
    let outcome = sandbox.launch_toy("--nproc_per_node 3 --show none --grace 60s", &actions).finish();
    // It continues in order to receive SIGTERM.
    outcome.expect_code(1).expect_err("✗ rank 1 on ").expect_err("was suspended");
    sandbox.assert_nothing_left();
}
