//! Signals to umiak, closed streams and terminals, ranks that ignore signals, and umiak as process 1.

use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use umiak_sys::descend::{children, descendants, signal};
use umiak_testkit::components::Component::{Freezer as FreezerComponent, Namespaces, Python};
use umiak_testkit::freezer::Freezer;
use umiak_testkit::sandbox::{Running, Sandbox, binary, toy};
use umiak_testkit::suite::Suite;
use umiak_testkit::toy::family::read_register;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("signals::first_asks_and_waits_for_the_grace", &[], first_asks)
        .test("signals::ctrl_c_is_an_interrupt_to_the_ranks", &[Python], ctrl_c_interrupts)
        .test("signals::an_interrupt_that_is_ignored_becomes_sigterm", &[], ignored_interrupt)
        .test("signals::second_kills_at_once", &[], second_kills)
        .test("signals::third_returns_the_terminal", &[], third_returns_the_terminal)
        .test("signals::every_signal_that_ends_us_stops_the_ranks", &[], every_signal)
        .test("signals::pause_and_continue", &[], pause_and_continue)
        .test("signals::stop_while_paused", &[], stop_while_paused)
        .test("signals::hangup_is_ignored_under_nohup", &[], nohup)
        .test("signals::a_terminal_that_goes_away_stops_the_job", &[], terminal_goes_away)
        .test("signals::closed_input_and_a_closed_pipe", &[], closed_streams)
        .test("signals::nobody_reads_while_nodes_are_awaited", &[], nobody_reads)
        .test("signals::interrupted_before_it_is_detached", &[], not_yet_detached)
        .test("signals::a_family_that_ignores_sigterm_is_gone", &[], stubborn_family)
        .test("signals::process_one_reaps_and_passes_the_code_on", &[Namespaces], process_one)
        .test("signals::process_one_stops_by_a_signal", &[Namespaces], process_one_is_stopped)
        .test("signals::a_rank_that_cannot_be_killed_is_abandoned", &[FreezerComponent], abandoned);
}

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
const SIGTSTP: i32 = 20;
const WAIT: &str = "sleep 60000";

/// Returns the state letter of a process from `/proc`, if it exists.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns the process ids of the ranks, once all have created `up.RANK`.
fn ranks(run: &Running<'_>, count: usize) -> Vec<u32> {
    for rank in 0..count {
        run.wait_for_file(&format!("up.{rank}"));
    }
    let guardian = children(run.pid())[0];
    children(guardian)
}

fn first_asks() {
    let sandbox = Sandbox::new();
    let actions = ["0:on-term 0;touch up.0;sleep 60000", "1:on-term 3;touch up.1;sleep 60000"];
    let run = sandbox.launch_toy("--nproc_per_node 2 --grace 60s", &actions).start();
    ranks(&run, 2);
    run.signal(SIGTERM);
    let outcome = run.finish();
    outcome
        .expect_code(143)
        .expect_err("stopping ranks 0-1 with SIGTERM; a second signal kills")
        .expect_err("stopped by SIGTERM: 2 ranks");
    for rank in 0..2 {
        assert_eq!(sandbox.read(&format!("log/workerlog.{rank}")), "caught SIGTERM\n");
    }
}

/// Ctrl-C in Python programs: `except KeyboardInterrupt` and `finally` run, and their own exit code is not a failure.
fn ctrl_c_interrupts() {
    let sandbox = Sandbox::new();
    let script = "import os, sys, time\nrank = os.environ['PADDLE_TRAINER_ID']\ntry:\n    open(f'up.{rank}', 'w')\n    \
        time.sleep(60)\nexcept KeyboardInterrupt:\n    print('interrupted', flush=True)\n    if rank == '1':\n        \
        sys.exit(7)\n    raise\nfinally:\n    print('cleaned up', flush=True)\n";
    sandbox.write("train.py", script);
    let run = sandbox.umiak(["launch", "--nproc_per_node", "2", "--grace", "60s", "train.py"]).start();
    ranks(&run, 2);
    run.signal(SIGINT);
    let outcome = run.finish();
    outcome
        .expect_code(130)
        .expect_err("stopping ranks 0-1 with SIGINT; press Ctrl-C again to kill")
        .expect_err("stopped by SIGINT: 2 ranks");
    assert!(!outcome.err().contains("ABORT"), "no rank is to blame:\n{}", outcome.err());
    for rank in 0..2 {
        let log = sandbox.read(&format!("log/workerlog.{rank}"));
        assert!(log.starts_with("interrupted\ncleaned up\n"), "{log}");
    }
}

/// A short grace period sends SIGTERM after its first half, and SIGKILL at its end.
fn ignored_interrupt() {
    let sandbox = Sandbox::new();
    let actions = [
        "0:ignore 2;on-term 0;touch up.0;sleep 60000",
        "1:stubborn;touch up.1;sleep 60000",
        "2:ignore 2;on-term 3;touch up.2;sleep 60000",
    ];
    let run = sandbox.launch_toy("--nproc_per_node 3 --grace 300ms --output json", &actions).start();
    ranks(&run, 3);
    run.signal(SIGINT);
    let outcome = run.finish();
    outcome.expect_code(130);
    for rank in [0, 2] {
        assert_eq!(sandbox.read(&format!("log/workerlog.{rank}")), "caught SIGTERM\n");
    }
    let facts = outcome.facts();
    let sent: Vec<&str> = facts.iter().filter_map(|fact| fact["how"].as_str()).collect();
    assert_eq!(sent, ["interrupt", "terminate", "kill"]);
}

fn second_kills() {
    let sandbox = Sandbox::new();
    let stubborn = ["0:stubborn;touch up.0;sleep 60000", "1:stubborn;touch up.1;sleep 60000"];
    let run = sandbox.launch_toy("--nproc_per_node 2 --grace 600s", &stubborn).start();
    let ranks = ranks(&run, 2);
    run.signal(SIGINT);
    // The kernel merges two pending signals of the same kind.
    run.wait_until("the first signal read", || has_read_signals(&run));
    assert!(ranks.iter().all(|pid| state(*pid).is_some()), "the first signal does not kill");
    run.signal(SIGINT);
    run.finish().expect_code(130).expect_err("2 ranks killed within");
}

/// True if the front has no pending signals.
fn has_read_signals(run: &Running<'_>) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", run.pid())).unwrap_or_default();
    let pending = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
    };
    pending("SigPnd:") == Some(0) && pending("ShdPnd:") == Some(0)
}

/// The front finds three signals at once: it exits immediately, and the guardian finishes.
fn third_returns_the_terminal() {
    let sandbox = Sandbox::new();
    let stubborn = ["0:stubborn;daemon;touch up.0;sleep 60000", "1:stubborn;touch up.1;sleep 60000"];
    let run = sandbox.launch_toy("--nproc_per_node 2 --grace 300ms", &stubborn).start();
    let ranks = ranks(&run, 2);
    run.signal(SIGSTOP);
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        run.signal(signal);
    }
    run.signal(SIGCONT);
    let outcome = run.finish_unchecked();
    // Pending signals are read in the order of their numbers.
    outcome.expect_code(128 + SIGTERM);
    assert!(
        !outcome.err().contains("stopped by"),
        "the end of the ranks was reported without waiting for it:\n{}",
        outcome.err()
    );
    let deadline = Instant::now() + Duration::from_secs(60);
    while ranks.iter().any(|pid| !matches!(state(*pid), None | Some('Z' | 'X'))) {
        assert!(Instant::now() < deadline, "the guardian did not finish");
        std::thread::sleep(Duration::from_millis(5));
    }
    sandbox.assert_nothing_left();
}

fn every_signal() {
    for (number, name) in [(1, "SIGHUP"), (2, "SIGINT"), (3, "SIGQUIT"), (15, "SIGTERM")] {
        let sandbox = Sandbox::new();
        let actions = [format!("0:child;daemon;touch up.0;{WAIT}"), format!("1:touch up.1;{WAIT}")];
        let run = sandbox.launch_toy("--nproc_per_node 2", &actions.each_ref().map(String::as_str)).start();
        ranks(&run, 2);
        run.signal(number);
        run.finish().expect_code(128 + number).expect_err(&format!("stopped by {name}"));
    }
}

fn nohup() {
    let sandbox = Sandbox::new();
    let mut words = vec![binary().display().to_string(), "launch".into(), toy(), "toy".into()];
    words.push("0:touch up.0;await go;print done".into());
    let run = sandbox.program(std::path::Path::new("nohup"), words).start();
    let ranks = ranks(&run, 1);
    run.signal(SIGHUP);
    // The rank inherits the ignored SIGHUP, as it would without umiak.
    signal(ranks[0], SIGHUP);
    sandbox.write("go", "");
    let outcome = run.finish();
    outcome.expect_code(0).expect_err("finished 1 rank");
    assert_eq!(outcome.out(), "done\n");
}

fn terminal_goes_away() {
    let sandbox = Sandbox::new();
    let (mut master, slave) = umiak_sys::terminal::open_pty(100, 24).expect("a pseudo-terminal");
    let stream = || Stdio::from(slave.try_clone().expect("a descriptor"));
    let mut run = sandbox.program(std::path::Path::new("setsid"), ["--ctty", "--wait"]);
    run.command.arg(binary()).args(["launch", "--nproc_per_node", "2", &toy(), "toy"]);
    run.command.args(["0:touch up.0;print up;sleep 60000", "1:touch up.1;sleep 60000"]);
    run.command.stdin(stream()).stdout(stream()).stderr(stream());
    let run = run.start();
    drop(slave);
    let mut screen = Vec::new();
    let mut buffer = [0; 1024];
    while !String::from_utf8_lossy(&screen).contains("2/2") {
        let count = master.read(&mut buffer).expect("the terminal is there");
        screen.extend_from_slice(&buffer[..count]);
    }
    drop(master);
    run.finish().expect_code(128 + SIGHUP);
}

fn closed_streams() {
    let sandbox = Sandbox::new();
    let line = format!("exec '{}' launch '{}' toy '0:stdin;print end' <&-", binary().display(), toy());
    let outcome = sandbox.program(std::path::Path::new("/bin/sh"), ["-c", &line]).finish();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), "stdin \"\"\nend\n");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut run = sandbox.launch_toy("--nproc_per_node 2 --log_dir other", &["*:print text"]);
    run.command.stdout(writer);
    run.finish().expect_code(0).expect_err("finished 2 ranks");
    assert_eq!(sandbox.read("other/workerlog.0"), "text\n");
}

/// stderr cannot be written: the first signal ends the wait for nodes, another one the wait for pending output.
/// A launch that waits for nodes is not detached yet: Ctrl-C ends it.
fn not_yet_detached() {
    for signal in [SIGINT, SIGTERM] {
        let sandbox = Sandbox::new();
        let flags = "-d --nnodes 2 --rank 0 --host 127.0.0.2 --master 127.0.0.1:24118 --rdzv-timeout 1m";
        let run = sandbox.launch_toy(flags, &["*:print text"]).start();
        let listens = || std::net::TcpStream::connect("127.0.0.1:24118").is_ok();
        run.wait_until("it waits for nodes", listens);
        run.signal(signal);
        let outcome = run.finish();
        let name = if signal == SIGINT { "SIGINT" } else { "SIGTERM" };
        outcome.expect_code(128 + signal).expect_err(&format!("stopped by {name} before it was detached"));
        assert!(!listens(), "nothing waits any more");
    }
}

fn nobody_reads() {
    let sandbox = Sandbox::new();
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    // The capacity of a pipe.
    writer.write_all(&vec![b'.'; 64 << 10]).expect("room for that");
    let flags = "--nnodes 2 --rank 0 --host 127.0.0.2 --master 127.0.0.1:24117 --rdzv-timeout 1m";
    let mut run = sandbox.launch_toy(flags, &["*:print text"]);
    run.command.stderr(writer);
    let run = run.start();
    run.wait_until("it waits", || !children(run.pid()).is_empty());
    std::thread::sleep(Duration::from_secs(2));
    run.wait_until("it exits", || {
        run.signal(SIGTERM);
        std::thread::sleep(Duration::from_millis(100));
        matches!(state(run.pid()), None | Some('Z'))
    });
    run.finish().expect_code(143);
    drop(reader);
}

fn stubborn_family() {
    let sandbox = Sandbox::new();
    let action = format!("*:stubborn;family;{WAIT}");
    let run = sandbox.launch_toy("--nproc_per_node 2 --grace 200ms", &[&action]).start();
    let family = || read_register(sandbox.path());
    run.wait_until("two families", || {
        let count = |name: &str| family().iter().filter(|(other, ..)| other == name).count();
        ["toy-complete", "toy-child", "toy-daemon"].into_iter().all(|name| count(name) == 2)
    });
    let members = descendants(run.pid());
    assert_eq!(members.len(), 1 + 2 * 3, "guardian, ranks, grandchildren: {members:?}");
    run.signal(SIGTERM);
    run.finish().expect_code(143);
    for (name, pid, started) in family() {
        assert!(umiak_sys::descend::start_time(pid) != Some(started), "{name} {pid} lives");
    }
}

/// Runs `umiak` as the first process of a PID namespace, as in a container.
fn as_process_one<'a>(sandbox: &'a Sandbox, actions: &[&str]) -> Running<'a> {
    let mut run = sandbox.program(std::path::Path::new("unshare"), ["--user", "--map-root-user"]);
    run.command.args(["--pid", "--fork", "--mount-proc"]).arg(binary());
    run.command.args(["launch", "--nproc_per_node", "2", "--grace", "500ms", &toy(), "toy"]).args(actions);
    run.start()
}

fn process_one() {
    let sandbox = Sandbox::new();
    as_process_one(&sandbox, &["*:child;daemon;exit 0"]).finish().expect_code(0);
    let outcome = as_process_one(&sandbox, &["1:child;daemon;exit 9", "0:sleep 60000"]).finish();
    outcome.expect_code(9).expect_err("rank=[1] was aborted");
}

fn process_one_is_stopped() {
    let sandbox = Sandbox::new();
    let run = as_process_one(&sandbox, &["0:daemon;touch up.0;sleep 60000", "1:touch up.1;sleep 60000"]);
    run.wait_for_file("up.0");
    run.wait_for_file("up.1");
    signal(children(run.pid())[0], SIGTERM);
    run.finish().expect_code(143).expect_err("stopped by SIGTERM");
}

fn abandoned() {
    let sandbox = Sandbox::new();
    let actions = ["0:touch up.0;sleep 60000", "1:touch up.1;sleep 60000"];
    let run = sandbox.launch_toy("--output json --nproc_per_node 2 --grace 200ms", &actions).start();
    let ranks = ranks(&run, 2);
    let freezer = Freezer::new("abandoned").expect("the test says that it needs one");
    freezer.freeze(&ranks[..1]);
    run.signal(SIGTERM);
    // `finish_unchecked` fails if it waits forever.
    let outcome = run.finish_unchecked();
    let frozen_lives = state(ranks[0]).is_some();
    freezer.thaw();
    sandbox.assert_nothing_left();
    outcome.expect_code(143);
    assert!(frozen_lives, "the frozen rank must still exist");
    let facts = outcome.facts();
    let fact = facts.iter().find(|fact| fact["type"] == "abandoned").expect("it is reported");
    assert_eq!(fact["replicas"], serde_json::json!(["trainer-0"]));
}

/// The front stops the process groups of the ranks, then itself.
fn pause_and_continue() {
    let sandbox = Sandbox::new();
    let action = "0:touch up.0;await go;print done";
    let run = sandbox.launch_toy("--nproc_per_node 2", &[action, "1:touch up.1;await go"]).start();
    let ranks = ranks(&run, 2);
    let everybody = || ranks.iter().copied().chain([run.pid()]);
    for _ in 0..2 {
        run.signal(SIGTSTP);
        run.wait_until("all processes stopped", || everybody().all(|pid| state(pid) == Some('T')));
        run.signal(SIGCONT);
        run.wait_until("all processes running", || everybody().all(|pid| state(pid).is_some_and(|state| state != 'T')));
    }
    // Events during the pause are handled afterwards.
    run.signal(SIGTSTP);
    run.wait_until("all processes stopped", || everybody().all(|pid| state(pid) == Some('T')));
    sandbox.write("go", "");
    run.signal(SIGCONT);
    let outcome = run.finish();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), "done\n");
}

fn stop_while_paused() {
    let sandbox = Sandbox::new();
    let actions = ["0:touch up.0;sleep 60000", "1:touch up.1;sleep 60000"];
    let run = sandbox.launch_toy("--nproc_per_node 2", &actions).start();
    let ranks = ranks(&run, 2);
    run.signal(SIGTSTP);
    run.wait_until("the ranks stopped", || ranks.iter().all(|pid| state(*pid) == Some('T')));
    run.wait_until("the front stopped", || state(run.pid()) == Some('T'));
    run.signal(SIGTERM);
    run.signal(SIGCONT);
    run.finish().expect_code(143).expect_err("stopped by SIGTERM");
}
