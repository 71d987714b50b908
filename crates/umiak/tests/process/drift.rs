//! `launch` and `run` behave alike. Each test covers one point in which they once differed.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use umiak_sys::descend::{children, signal};
use umiak_testkit::components::Component::{Namespaces, Netns};
use umiak_testkit::sandbox::{Outcome, Run, Running, Sandbox, binary};
use umiak_testkit::suite::Suite;

use crate::nodes::{Cluster, finish};
use crate::signals::state;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("drift::ctrl_c_hurries_the_last_sweep_of_a_launch", &[], sweep_hurried_by_signals)
        .test("drift::ctrl_c_after_stop_says_what_it_does", &[], ctrl_c_after_stop)
        .test("drift::ctrl_c_hurries_the_sweep_after_an_interrupt", &[], sweep_hurried_after_interrupt)
        .test("drift::stop_kill_hurries_the_last_sweep_of_a_launch", &[], sweep_hurried_by_stop)
        .test("drift::finished_is_recorded_after_the_sweep", &[], finished_after_sweep)
        .test("drift::a_disarmed_timer_does_not_fire", &[], disarmed_timer)
        .test("drift::a_cause_is_not_among_the_others_of_a_launch", &[], || causes_apart(launched_failure))
        .test("drift::a_cause_is_not_among_the_others_of_a_run", &[], || causes_apart(document_failure))
        .test("drift::ctrl_z_while_the_coordinator_awaits_nodes", &[Netns], || pause_while_awaiting(0))
        .test("drift::ctrl_z_while_a_node_awaits_the_coordinator", &[Netns], || pause_while_awaiting(1))
        .test("drift::ctrl_z_while_logs_are_sent", &[Netns], pause_while_sending)
        .test("drift::stop_ends_a_launched_run", &[], stop_launched)
        .test("drift::stop_kill_and_a_second_stop_kill_a_launched_run", &[], stop_kills)
        .test("drift::stop_ends_a_launched_run_on_all_nodes", &[Netns], || stop_on_all_nodes(true))
        .test("drift::stop_kill_ends_a_launched_run_on_all_nodes", &[Netns], || stop_on_all_nodes(false))
        .test("drift::stop_on_another_node_names_the_one_that_records", &[Namespaces], stop_elsewhere)
        .test("drift::stop_on_a_node_without_the_run", &[Netns], stop_without_run)
        .test("drift::wait_and_show_follow_a_launched_run", &[], wait_and_show);
}

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
const SIGTSTP: i32 = 20;

/// Well below the grace period of these tests.
const SOON: Duration = Duration::from_secs(20);
/// Time for an unwanted event to occur.
const MOMENT: Duration = Duration::from_millis(300);
/// The rank exits and leaves behind a process that ignores SIGTERM.
const LEAVES_A_DAEMON: &str = "0:stubborn;daemon;touch left";

/// Returns the records of the sandbox's first run so far, without a record that is still being written.
fn journal(sandbox: &Sandbox) -> Vec<Value> {
    let text = sandbox.read_if_there("state/runs/run-000001/journal.jsonl").unwrap_or_default();
    text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

fn position(sandbox: &Sandbox, kind: &str) -> Option<usize> {
    journal(sandbox).iter().position(|fact| fact["type"] == kind)
}

fn is_recorded(sandbox: &Sandbox, kind: &str) -> bool {
    position(sandbox, kind).is_some()
}

/// Runs a command while other processes of the sandbox are alive.
fn ask(run: Run<'_>) -> Outcome {
    run.start().finish_unchecked()
}

fn umiak<'a>(sandbox: &'a Sandbox, line: &str) -> Run<'a> {
    sandbox.umiak(line.split_whitespace())
}

#[track_caller]
fn assert_soon(asked: Instant, outcome: &Outcome) {
    assert!(asked.elapsed() < SOON, "it waited for the grace period: {:?}\n{}", asked.elapsed(), outcome.err());
}

/// Starts a job whose only rank has ended, and returns while the sweep waits for the process left behind.
fn sweeping(sandbox: &Sandbox) -> Running<'_> {
    let run = sandbox.launch_toy("--nproc_per_node 1 --grace 50s", &[LEAVES_A_DAEMON]).start();
    run.wait_until("the rank's end", || is_recorded(sandbox, "ended"));
    run
}

/// Drift: only `run` let signals shorten the last sweep. The job is over; leftovers keep their grace period after the
/// first signal and lose it after the second.
fn sweep_hurried_by_signals() {
    let sandbox = Sandbox::new();
    let mut run = sweeping(&sandbox);
    let asked = Instant::now();
    run.signal(SIGINT);
    std::thread::sleep(MOMENT);
    assert!(run.is_running(), "leftovers keep their grace period after the first signal");
    // A different signal, because the kernel merges two equal signals if the first is still pending.
    run.signal(SIGTERM);
    let outcome = run.finish();
    outcome.expect_code(0);
    assert_soon(asked, &outcome);
    outcome.expect_err("stopping processes left behind by ranks after SIGINT; press Ctrl-C again to kill");
    outcome.expect_err("stopping processes left behind by ranks with SIGKILL after SIGTERM");
}

/// Drift: a Ctrl-C while the run was already stopping printed nothing.
fn ctrl_c_after_stop() {
    let sandbox = Sandbox::new();
    let actions = &["0:ignore 15;ignore 2;touch up-0;sleep 60000", "1:ignore 15;ignore 2;touch up-1;sleep 60000"];
    let run = sandbox.launch_toy("--nproc_per_node 2 --grace 50s", actions).start();
    run.wait_for_file("up-0");
    run.wait_for_file("up-1");
    ask(umiak(&sandbox, "stop 1 --no-wait")).expect_code(0);
    run.wait_until("the stop", || is_recorded(&sandbox, "stopping"));
    let stops = |count: usize| journal(&sandbox).iter().filter(|fact| fact["type"] == "stopping").count() == count;
    run.signal(SIGINT);
    run.wait_until("the first Ctrl-C", || stops(2));
    run.signal(SIGINT);
    let outcome = run.finish();
    outcome.expect_err("stopping ranks 0-1 already; press Ctrl-C again to kill");
    outcome.expect_err("stopping ranks 0-1 with SIGKILL; press Ctrl-C again to return to the shell");
}

/// Drift: as above, for a job stopped by a signal: one more signal is enough.
fn sweep_hurried_after_interrupt() {
    let sandbox = Sandbox::new();
    // The daemon inherits the ignored signals; the rank itself ends on SIGKILL or when `go` appears.
    let actions = &["0:stubborn;daemon;touch left;await go", "1:touch up;sleep 60000"];
    let mut run = sandbox.launch_toy("--nproc_per_node 2 --grace 50s", actions).start();
    run.wait_for_file("left");
    run.wait_for_file("up");
    run.signal(SIGINT);
    run.wait_until("the stop", || is_recorded(&sandbox, "stopping"));
    sandbox.write("go", "");
    let ended = || journal(&sandbox).iter().filter(|fact| fact["type"] == "ended").count();
    run.wait_until("both ends", || ended() == 2);
    let asked = Instant::now();
    std::thread::sleep(MOMENT);
    assert!(run.is_running(), "leftovers keep their grace period");
    run.signal(SIGTERM);
    let outcome = run.finish();
    outcome.expect_code(130);
    assert_soon(asked, &outcome);
}

/// Drift: as above, with `umiak stop --kill`.
fn sweep_hurried_by_stop() {
    let sandbox = Sandbox::new();
    let run = sweeping(&sandbox);
    let asked = Instant::now();
    let stopped = ask(umiak(&sandbox, "stop 1 --kill"));
    stopped.expect_code(0);
    let outcome = run.finish();
    outcome.expect_code(0);
    assert_soon(asked, &outcome);
}

/// Drift: `launch` recorded `finished` before its sweep, so `wait` returned while processes of the run were alive.
fn finished_after_sweep() {
    let sandbox = Sandbox::new();
    let run = sweeping(&sandbox);
    let mut wait = umiak(&sandbox, "wait 1").start();
    std::thread::sleep(MOMENT);
    assert!(!is_recorded(&sandbox, "finished"), "recorded while the sweep goes on: {:#?}", journal(&sandbox));
    assert!(wait.is_running(), "`wait` has returned while the sweep goes on");
    let shown = ask(umiak(&sandbox, "show 1 --output json"));
    shown.expect_code(0);
    let shown: Value = serde_json::from_str(&shown.out()).expect("JSON");
    assert_ne!(shown["status"], "succeeded", "{shown:#}");
    for (pid, line) in sandbox.processes() {
        if line.starts_with("sleep ") {
            signal(pid, SIGKILL);
        }
    }
    run.finish_unchecked().expect_code(0);
    wait.finish().expect_code(0);
    let last = journal(&sandbox).len() - 1;
    assert_eq!(position(&sandbox, "finished"), Some(last), "nothing follows: {:#?}", journal(&sandbox));
}

/// Drift: `launch` fired a timer that an earlier timer of the same round had disarmed. No timer of a launched job
/// disarms another, so a document tests it: its timeout expires while a replica waits to restart. The supervisor is
/// paused until both timers are due.
fn disarmed_timer() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "job.yaml",
        "umiak: v1\npolicy: {timeout: 1500ms}\nroles:\n  a: {restarts: {max: 1, backoff: 1s, max_backoff: 1s}, command: [\"false\"]}\n  b: {command: [sleep, \"60\"]}\n",
    );
    let run = umiak(&sandbox, "run job.yaml").start();
    run.wait_until("a replica that waits to start again", || is_recorded(&sandbox, "retrying"));
    run.signal(SIGSTOP);
    std::thread::sleep(Duration::from_millis(2500));
    run.signal(SIGCONT);
    run.finish().expect_code(124);
    assert!(!is_recorded(&sandbox, "ignored"), "{:#?}", journal(&sandbox));
}

/// A failure caused by replica 0, which printed its error and was stopped by umiak before it ended. Replica 1 ended
/// first, without output. Replicas 2 and 3 are healthy; with `stubborn`, 3 outlives the report.
type Failure = fn(&Sandbox, stubborn: bool) -> Outcome;

/// Drift: `launch` listed a cause under "stopped by us", and `run` listed one under "still going".
fn causes_apart(fail: Failure) {
    for (stubborn, head) in [(false, "stopped by us"), (true, "stopping")] {
        let sandbox = Sandbox::new();
        let outcome = fail(&sandbox, stubborn);
        let err = outcome.err();
        assert!(err.contains("ValueError: bad batch"), "the cause is shown:\n{err}");
        let line = err.lines().find(|line| line.trim_start().starts_with(head));
        let line = line.unwrap_or_else(|| panic!("no line {head:?}:\n{err}"));
        let names = line.trim_start().trim_start_matches(head).trim_start().split(" (").next().unwrap_or_default();
        let expected = if stubborn { ["rank 3", "worker-3"] } else { ["ranks 2-3", "worker 2-3"] };
        assert!(expected.contains(&names), "{names:?} instead of {expected:?}:\n{err}");
    }
}

fn launched_failure(sandbox: &Sandbox, stubborn: bool) -> Outcome {
    let error = "Traceback (most recent call last):\\n  File \"t.py\", line 1, in <module>\\nValueError: bad batch";
    let last = if stubborn { "3:stubborn;touch up;sleep 60000" } else { "3:touch up;sleep 60000" };
    let actions =
        [&format!("0:err {error};touch told;sleep 60000"), "1:await told;await up;exit 1", "2:sleep 60000", last];
    let outcome = sandbox.launch_toy("--nproc_per_node 4 --grace 1s", &actions).finish();
    outcome.expect_code(1).expect_err("rank=[0]");
    outcome
}

fn document_failure(sandbox: &Sandbox, stubborn: bool) -> Outcome {
    let last =
        if stubborn { "trap '' TERM; touch up; while :; do sleep 0.02; done" } else { "touch up; exec sleep 60" };
    sandbox.write(
        "work.sh",
        format!(
            "case $UMIAK_INDEX in\n0) printf 'Traceback (most recent call last):\\n  File \"t.py\", line 1, in <module>\\nValueError: bad batch\\n' >&2; touch told; exec sleep 60;;\n1) until test -e told -a -e up; do sleep 0.02; done; exit 1;;\n2) exec sleep 60;;\n3) {last};;\nesac\n"
        ),
    );
    sandbox
        .write("job.yaml", "umiak: v1\npolicy: {grace: 1s}\nroles:\n  worker: {replicas: 4, command: [sh, work.sh]}\n");
    let outcome = umiak(sandbox, "run job.yaml").finish();
    outcome.expect_code(1).expect_err("worker-0");
    outcome
}

/// Drift: Ctrl-Z was dropped while waiting for nodes. `first` starts alone, is stopped and continued, and keeps
/// waiting.
fn pause_while_awaiting(first: usize) {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let launch = |host| cluster.launch(host, "--ips $IPS --nproc_per_node 1", &["*:print hello"]);
    let mut run = launch(first);
    // After one second it prints that it waits.
    std::thread::sleep(Duration::from_millis(1500));
    for _ in 0..2 {
        run.signal(SIGTSTP);
        run.wait_until("it stops", || state(run.pid()) == Some('T'));
        run.signal(SIGCONT);
        run.wait_until("it continues", || state(run.pid()).is_some_and(|state| state != 'T'));
    }
    std::thread::sleep(MOMENT);
    assert!(run.is_running(), "it keeps waiting");
    for outcome in finish(vec![run, launch(1 - first)]) {
        outcome.expect_code(0);
    }
    snapshot.assert_as_before();
}

/// Drift: besides the main loop, Ctrl-Z worked only while logs were sent. A node is cut off after its ranks have ended,
/// so the rest of their logs waits for the network.
fn pause_while_sending() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let (first, second) = (cluster.network.host(0), cluster.network.host(1));
    let flags = "--ips $IPS --nproc_per_node 1 --gather-logs --node-timeout 60s";
    let mut runs = cluster.launch_all(flags, &["*:print hello;touch up;sleep 60000"]);
    for run in &runs {
        run.wait_for_file("up");
    }
    let copied = || cluster.sandboxes[0].read_if_there("log/workerlog.1").is_some_and(|copy| copy == b"hello\n");
    runs[0].wait_until("a copy of the other node's log", copied);
    first.cut(second);
    let node = &mut runs[1];
    node.signal(SIGINT);
    node.wait_until("the guardian's end", || children(node.pid()).is_empty());
    for _ in 0..2 {
        node.signal(SIGTSTP);
        node.wait_until("it stops", || state(node.pid()) == Some('T'));
        node.signal(SIGCONT);
        node.wait_until("it continues", || state(node.pid()).is_some_and(|state| state != 'T'));
    }
    std::thread::sleep(MOMENT);
    assert!(node.is_running(), "it keeps sending");
    first.join(second);
    for outcome in finish(runs) {
        outcome.expect_code(130);
        assert!(!outcome.err().contains("R0010"), "all logs are complete:\n{}", outcome.err());
    }
    snapshot.assert_as_before();
}

/// Fails unless the last fact says that a user stopped the run.
#[track_caller]
fn assert_stopped(sandbox: &Sandbox) {
    let facts = journal(sandbox);
    let last = facts.last().expect("facts");
    let seen = (&last["type"], &last["status"], &last["code"]);
    assert_eq!(seen, (&"finished".into(), &"stopped".into(), &3.into()), "{facts:#?}");
    assert!(!sandbox.path().join("state/runs/run-000001/control.sock").exists(), "the control socket is left");
}

/// Drift: `umiak stop` refused launched runs.
fn stop_launched() {
    let sandbox = Sandbox::new();
    let actions = &["0:child;daemon;touch up.0;sleep 60000", "1:touch up.1;sleep 60000"];
    let run = sandbox.launch_toy("--nproc_per_node 2", actions).start();
    run.wait_for_file("up.0");
    run.wait_for_file("up.1");
    let stopped = ask(umiak(&sandbox, "stop 1"));
    stopped.expect_code(0);
    assert_eq!(stopped.out(), "run-000001 stopped\n");
    run.finish().expect_code(3);
    assert_stopped(&sandbox);
    umiak(&sandbox, "wait 1").finish().expect_code(3);
    umiak(&sandbox, "stop 1").finish().expect_code(2).expect_err("error[J0025]: run-000001 has already ended");
}

/// Drift: as above, for ranks that ignore SIGTERM: `--kill` or a second `stop` skips the grace period.
fn stop_kills() {
    for orders in [&["stop 1 --kill"][..], &["stop 1 --no-wait", "stop 1"]] {
        let sandbox = Sandbox::new();
        let stubborn = &["0:stubborn;touch up.0;sleep 60000", "1:stubborn;touch up.1;sleep 60000"];
        let run = sandbox.launch_toy("--nproc_per_node 2 --grace 600s", stubborn).start();
        run.wait_for_file("up.0");
        run.wait_for_file("up.1");
        let asked = Instant::now();
        for order in orders {
            ask(umiak(&sandbox, order)).expect_code(0);
        }
        let outcome = run.finish();
        outcome.expect_code(3);
        assert_soon(asked, &outcome);
        assert_stopped(&sandbox);
    }
}

/// Drift: as above, on several nodes: `stop` on the node that records the run ends it on all of them. `--kill` skips
/// the grace period on each.
fn stop_on_all_nodes(gentle: bool) {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let ranks = if gentle { "*:daemon;touch up;sleep 60000" } else { "*:stubborn;touch up;sleep 60000" };
    let grace = if gentle { "" } else { "--grace 600s" };
    let runs = cluster.launch_all(&format!("--ips $IPS --nproc_per_node 1 {grace}"), &[ranks]);
    for run in &runs {
        run.wait_for_file("up");
    }
    let asked = Instant::now();
    let line = if gentle { "stop 1" } else { "stop 1 --kill" };
    let stopped = ask(umiak(&cluster.sandboxes[0], line).on(cluster.network.host(0)));
    stopped.expect_code(0);
    for outcome in finish(runs) {
        outcome.expect_code(3);
        assert!(!outcome.err().contains("ABORT"), "a stop is no failure:\n{}", outcome.err());
        assert_soon(asked, &outcome);
    }
    assert_stopped(&cluster.sandboxes[0]);
    snapshot.assert_as_before();
}

/// Runs a command as on another host that shares a directory: with another host name and boot id.
fn on_another_host<'a>(sandbox: &'a Sandbox, home: &Path, line: &str) -> Run<'a> {
    sandbox.write("boot", "00000000-0000-0000-0000-000000000000\n");
    let become_host = "hostname gpu-b && mount --bind boot /proc/sys/kernel/random/boot_id && exec \"$@\"";
    let words = ["--user", "--map-root-user", "--uts", "--mount", "sh", "-c", become_host, "sh"];
    let mut run = sandbox.program(Path::new("unshare"), words).env("UMIAK_HOME", home);
    run.command.arg(binary()).args(line.split_whitespace());
    run
}

/// Drift: as above, from another node that shares the home: the error names the node that records the run. Locks on a
/// shared file system may or may not be visible there.
fn stop_elsewhere() {
    let sandbox = Sandbox::new();
    let run = sandbox.launch_toy("--nproc_per_node 1", &["0:touch up;await go"]).start();
    run.wait_for_file("up");
    run.wait_for_file("state/runs/run-000001/supervisor.json");
    // The copy has no locks.
    let copied = sandbox.program(Path::new("cp"), ["-r", "state", "unlocked"]);
    ask(copied).expect_code(0);
    let here = umiak_sys::host::name();
    for home in ["unlocked", "state"] {
        for line in ["stop 1", "stop 1 --kill"] {
            let refused = ask(on_another_host(&sandbox, &sandbox.path().join(home), line));
            refused.expect_code(125).expect_err(&format!("error[J0008]: run-000001 belongs to host `{here}`"));
            refused.expect_err(&format!("ssh {here} umiak stop run-000001"));
        }
    }
    assert!(!is_recorded(&sandbox, "stopping"), "the refused stop had an effect");
    sandbox.write("go", "");
    run.finish().expect_code(0);
}

/// Drift: as above, from another node with its own home, which has no such run.
fn stop_without_run() {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let runs = cluster.launch_all("--ips $IPS --nproc_per_node 1", &["*:touch up;await go"]);
    for run in &runs {
        run.wait_for_file("up");
    }
    let refused = ask(umiak(&cluster.sandboxes[1], "stop 1").on(cluster.network.host(1)));
    refused.expect_code(2).expect_err("error[J0002]");
    cluster.go();
    for outcome in finish(runs) {
        outcome.expect_code(0);
    }
    snapshot.assert_as_before();
}

/// Drift: `show` and `wait` of a launched run depended on when it recorded its end. A live run is shown as running, and
/// `wait` returns its code after the end.
fn wait_and_show() {
    for (order, code, status) in [(None, 7, "failed"), (Some("stop 1"), 3, "stopped")] {
        let sandbox = Sandbox::new();
        let run = sandbox.launch_toy("--nproc_per_node 1", &["0:touch up;await go;exit 7"]).start();
        run.wait_for_file("up");
        let mut wait = umiak(&sandbox, "wait 1 --output json").start();
        let show = || {
            let shown = ask(umiak(&sandbox, "show 1 --output json"));
            shown.expect_code(0);
            serde_json::from_str::<Value>(&shown.out()).expect("JSON")["status"].clone()
        };
        run.wait_until("a run that is shown as running", || show() == "running");
        assert!(wait.is_running());
        match order {
            Some(line) => {
                ask(umiak(&sandbox, line)).expect_code(0);
            }
            None => {
                sandbox.write("go", "");
            }
        }
        run.finish_unchecked().expect_code(code);
        let waited = wait.finish();
        waited.expect_code(code);
        let waited: Value = serde_json::from_str(&waited.out()).expect("JSON");
        assert_eq!(waited["runs"][0]["status"], status, "{waited:#}");
        assert_eq!(show(), status);
    }
}
