//! How jobs of one node end: what decides the result, and what counts as the cause.

use umiak_testkit::sandbox::{Running, Sandbox};
use umiak_testkit::suite::Suite;

use super::one_node::free_ports;
use super::{SERVERS, TRAINERS, WAIT, expect_cause, expect_well, logs};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("servers::a_trainer_fails", &[], trainer_fails)
        .test("servers::a_server_ends_before_the_trainers_start", &[], server_ends_early)
        .test("servers::a_server_ends_while_trainers_run", &[], server_ends_late)
        .test("servers::a_heterogeneous_trainer_fails", &[], heter_trainer_fails)
        .test("servers::a_coordinator_fails", &[], coordinator_fails)
        .test("servers::a_server_that_never_listens", &[], silent_server)
        .test("servers::trainers_start_when_a_server_listens_elsewhere", &[], listens_elsewhere)
        .test("servers::a_server_that_accepts_one_connection", &[], one_connection)
        .test("servers::a_server_that_ends_well_is_no_failure", &[], server_ends_well)
        .test("servers::servers_that_do_not_go_are_killed", &[], stubborn_servers)
        .test("servers::servers_that_fail_when_stopped_are_no_failures", &[], servers_fail_when_stopped)
        .test("servers::who_loses_a_server_is_not_blamed", &[], victims)
        .test("servers::interrupt_while_servers_are_waited_for", &[], interrupt_the_wait)
        .test("servers::interrupt_while_trainers_run", &[], interrupt)
        .test("servers::second_interrupt_kills", &[], second_interrupt)
        .test("servers::restart_is_of_everybody", &[], restart)
        .test("servers::a_server_that_was_late_is_waited_for_again", &[], restart_of_a_late_server)
        .test("servers::somebody_elses_signal_is_a_failure", &[], somebody_elses_signal)
        .test("servers::a_port_that_is_taken", &[], taken_port)
        .test("servers::two_jobs_at_once", &[], two_jobs)
        .test("servers::logs_are_cut_by_size", &[], cut_logs)
        .test("servers::old_exit_codes_on_request", &[], old_exit_codes);
}

const TWO_AND_TWO: &str = "--server_num 2 --worker_num 2 --grace 1s";
const HETER: &str = "--server_num 2 --worker_num 2 --heter_worker_num 2 --heter_devices cpu --grace 1s";

fn trainer_fails() {
    for flags in [TWO_AND_TWO, "--run_mode ps --server_num 2 --trainer_num 2"] {
        let sandbox = Sandbox::new();
        let actions = [SERVERS, "1:reach;err ValueError: bad batch;exit 7", &format!("0:{WAIT}")];
        let outcome = sandbox.launch_toy(flags, &actions).finish();
        outcome
            .expect_code(7)
            .expect_err("ValueError: bad batch")
            .expect_err("log ./log/workerlog.1")
            .expect_err("stopped by us  pserver 0-1, trainer-0 (SIGTERM");
        expect_cause(&outcome, "trainer-1", 2, "exited with 7 after");
    }
}

fn server_ends_early() {
    // The server exits or is killed, possibly before umiak has recorded its start.
    for (end, code, how) in
        [("exit 3", 3, "exited with 3 after"), ("signal 9", 137, "was killed by SIGKILL (killed) after")]
    {
        let sandbox = Sandbox::new();
        let actions = ["pserver-0:listen;sleep 60000", &format!("pserver-1:{end}"), "trainer:touch started"];
        let outcome = sandbox.launch_toy(TWO_AND_TWO, &actions).finish();
        outcome.expect_code(code).expect_err("log ./log/serverlog.1");
        expect_cause(&outcome, "pserver-1", 2, how);
        assert!(!sandbox.path().join("started").exists(), "no trainer starts without its servers");
    }
}

fn server_ends_late() {
    for (end, code, how) in
        [("exit 3", 3, "exited with 3 after"), ("signal 9", 137, "was killed by SIGKILL (killed) after")]
    {
        let sandbox = Sandbox::new();
        let dies = format!("pserver-0:listen;await up.0;await up.1;err MemoryError;{end}");
        let actions = [&dies, SERVERS, "0:reach;touch up.0", "1:reach;touch up.1", &format!("trainer:{WAIT}")];
        let outcome = sandbox.launch_toy(TWO_AND_TWO, &actions).finish();
        outcome.expect_code(code).expect_err("stopped by us  pserver-1, trainer 0-1 (SIGTERM");
        expect_cause(&outcome, "pserver-0", 2, how);
    }
}

fn heter_trainer_fails() {
    let sandbox = Sandbox::new();
    let actions = [SERVERS, "heter_trainer-1:reach;exit 5", &format!("heter_trainer,trainer:{WAIT}")];
    let outcome = sandbox.launch_toy(HETER, &actions).finish();
    outcome.expect_code(5).expect_err("log ./log/heterlog.1");
    expect_cause(&outcome, "heter_trainer-1", 2, "exited with 5 after");
    assert_eq!(logs(&sandbox).len(), 6);
}

fn coordinator_fails() {
    let sandbox = Sandbox::new();
    let actions = [SERVERS, "coordinator:exit 6", &format!("trainer:{WAIT}")];
    let outcome = sandbox.launch_toy(&format!("{TWO_AND_TWO} --coordinator_num 1"), &actions).finish();
    outcome.expect_code(6).expect_err("log ./log/coordinator.0");
    expect_cause(&outcome, "coordinator-0", 1, "exited with 6 after");
}

fn silent_server() {
    let sandbox = Sandbox::new();
    let actions = ["pserver-0:listen", &format!("pserver:{WAIT}"), "trainer:touch started"];
    let outcome = sandbox.launch_toy(&format!("{TWO_AND_TWO} --server-timeout 3s"), &actions).finish();
    outcome.expect_code(124);
    expect_cause(&outcome, "pserver-1", 2, "it did not listen on its ports within its `--server-timeout`");
    assert!(!sandbox.path().join("started").exists());
    // The other server listened at its endpoint.
    let endpoint = sandbox.read("log/serverlog.0");
    assert!(endpoint.starts_with("listening at "), "{endpoint}");
}

/// Nothing guarantees that a server listens at its own port. Trainers start anyway, with a recorded notice.
fn listens_elsewhere() {
    let sandbox = Sandbox::new();
    let actions = ["pserver-0:listen", &format!("pserver:{WAIT}"), "trainer:touch started"];
    let outcome = sandbox.launch_toy(TWO_AND_TWO, &actions).finish();
    expect_well(&outcome);
    outcome
        .expect_err("notice[L0034]: no server listens at 127.0.0.1:")
        .expect_err("after 30 s; starting trainers anyway");
    assert_eq!(outcome.err().matches("L0034").count(), 1, "{}", outcome.err());
    assert!(sandbox.path().join("started").exists());
    let events = sandbox.umiak(["events", "1"]).finish();
    assert!(events.expect_code(0).out().contains("L0034"), "{}", events.out());
}

/// Umiak must not test the port with a connection, which would take the trainer's place.
fn one_connection() {
    let sandbox = Sandbox::new();
    let actions = [&format!("pserver:listen-once;touch served;{WAIT}"), "trainer:reach;await served"];
    let outcome = sandbox.launch_toy("--server_num 1 --worker_num 1 --grace 1s", &actions).finish();
    expect_well(&outcome);
    assert!(outcome.out().contains("reached"), "{}", outcome.out());
}

fn server_ends_well() {
    // Immediately, without listening, which prints a notice; and while trainers run.
    for (server, is_told) in [("pserver-1:exit 0", true), ("pserver-1:listen;await up;exit 0", false)] {
        let sandbox = Sandbox::new();
        let trainer = "trainer:touch up;sleep 200";
        let outcome = sandbox.launch_toy(TWO_AND_TWO, &[server, SERVERS, trainer]).finish();
        expect_well(&outcome);
        let notice = "notice[L0031]: pserver-1 exited with 0 before it listened on 127.0.0.1:";
        assert_eq!(outcome.err().contains(notice), is_told, "{}", outcome.err());
    }
}

fn stubborn_servers() {
    let sandbox = Sandbox::new();
    let actions = ["pserver,heter_trainer:stubborn;child;daemon", SERVERS, "heter_trainer:touch up;sleep 60000"];
    let flags = HETER.replace("1s", "300ms");
    let outcome =
        sandbox.launch_toy(&flags, &[actions[0], actions[1], actions[2], "trainer:await up", TRAINERS]).finish();
    expect_well(&outcome);
}

fn servers_fail_when_stopped() {
    let sandbox = Sandbox::new();
    let actions = ["pserver,heter_trainer:on-term 9", SERVERS, "heter_trainer:touch up;sleep 60000"];
    let outcome =
        sandbox.launch_toy(HETER, &[actions[0], actions[1], actions[2], "trainer:await up", TRAINERS]).finish();
    expect_well(&outcome);
}

/// Trainers that report a lost server are victims, regardless of the order of the reports.
fn victims() {
    let sandbox = Sandbox::new();
    let lost = "err RuntimeError: Connection reset by peer";
    let actions = [
        SERVERS.replace("pserver:", "pserver-1:"),
        "*:stubborn".to_owned(),
        "pserver-0:listen;await up.0;await up.1;touch dying;sleep 100;err ValueError: bad row;exit 3".to_owned(),
        format!("0:touch up.0;await dying;{lost};exit 1"),
        format!("1:touch up.1;await dying;{lost};exit 1"),
    ];
    let actions: Vec<&str> = actions.iter().map(String::as_str).collect();
    let outcome = sandbox.launch_toy("--server_num 2 --worker_num 2 --grace 2s", &actions[1..]).finish();
    outcome.expect_code(3).expect_err("ValueError: bad row").expect_err("followed       trainer 0-1");
    expect_cause(&outcome, "pserver-0", 2, "exited with 3 after");
}

/// Launches the toy and returns when all files exist.
fn start<'a>(sandbox: &'a Sandbox, flags: &str, actions: &[&str], files: &[&str]) -> Running<'a> {
    let run = sandbox.launch_toy(flags, actions).start();
    for file in files {
        run.wait_for_file(file);
    }
    run
}

fn interrupt_the_wait() {
    let sandbox = Sandbox::new();
    let actions = ["pserver-0:listen", &format!("pserver:pid;{WAIT}"), "trainer:touch started"];
    let run = start(&sandbox, TWO_AND_TWO, &actions, &["pid.pserver-0", "pid.pserver-1"]);
    run.signal(2);
    let outcome = run.finish();
    outcome.expect_code(130).expect_err("stopped by SIGINT");
    assert!(!outcome.err().contains("ABORT"), "an interrupt is not a failure:\n{}", outcome.err());
    assert!(!sandbox.path().join("started").exists());
}

fn interrupt() {
    for signal in [2, 15] {
        let sandbox = Sandbox::new();
        let actions = [SERVERS, &format!("heter_trainer,trainer:pid;{WAIT}")];
        let files = ["pid.trainer-0", "pid.trainer-1", "pid.heter_trainer-0", "pid.heter_trainer-1"];
        let run = start(&sandbox, HETER, &actions, &files);
        run.signal(signal);
        let outcome = run.finish();
        outcome.expect_code(128 + signal).expect_err("stopped by SIG").expect_err("within");
        assert!(!outcome.err().contains("ABORT"), "an interrupt is not a failure:\n{}", outcome.err());
    }
}

fn second_interrupt() {
    let sandbox = Sandbox::new();
    let actions = [&format!("pserver:stubborn;pid;{WAIT}"), "trainer:exit 0"];
    let mut run = sandbox.launch_toy("--server_num 2 --worker_num 2 --grace 600s", &actions);
    run.command.stderr(std::fs::File::create(sandbox.path().join("console")).expect("the sandbox can be written"));
    let run = run.start();
    for file in ["pid.pserver-0", "pid.pserver-1"] {
        run.wait_for_file(file);
    }
    run.signal(2);
    run.wait_until("the first signal was handled", || sandbox.read("console").contains("with SIGINT"));
    run.signal(2);
    run.finish().expect_code(130);
    let console = sandbox.read("console");
    assert!(console.contains("stopped by SIGINT") && console.contains("killed within"), "{console}");
}

fn restart() {
    for (fails, code) in [("trainer-1:reach;fail-once 7", 7), ("pserver-1:fail-once 3", 3)] {
        let sandbox = Sandbox::new();
        let flags = format!("{TWO_AND_TWO} --max_restart 1 --restart-backoff 1ms");
        let outcome = sandbox.launch_toy(&flags, &["*:name", fails, SERVERS, TRAINERS]).finish();
        outcome.expect_code(0).expect_err("estarting").expect_err(&format!("exited with {code} after"));
        assert_eq!(outcome.err().matches("ABORT!!!").count(), 1, "{}", outcome.err());
        let begun = |log: &str| sandbox.read(&format!("log/{log}")).matches("I am ").count();
        assert!(begun("serverlog.0") >= 2, "servers restart too");
        // Fails in every attempt, until the budget is used up.
        let fails = fails.replace("fail-once", "exit");
        let outcome = sandbox.launch_toy(&flags, &[&fails, SERVERS, TRAINERS]).finish();
        outcome.expect_code(code);
        assert_eq!(outcome.err().matches("ABORT!!!").count(), 2, "once for each attempt:\n{}", outcome.err());
    }
}

fn restart_of_a_late_server() {
    let sandbox = Sandbox::new();
    // The server is late in the first attempt only; later ones have enough time on a busy machine.
    let late = "pserver-1:fail-once 3;await up.0;listen;sleep 60000";
    let flags = format!("{TWO_AND_TWO} --max_restart 1 --restart-backoff 1ms --server-timeout 60s");
    let outcome = sandbox.launch_toy(&flags, &["pserver-0:touch up.0", late, SERVERS, TRAINERS]).finish();
    outcome.expect_code(0).expect_err("estarting");
    assert!(outcome.out().contains("reached"), "{}", outcome.out());
}

/// SIGTERM ends servers after the job. Before that, the signal is not umiak's and counts as a failure.
fn somebody_elses_signal() {
    let sandbox = Sandbox::new();
    let actions = ["pserver:pid", SERVERS, &format!("trainer:pid;{WAIT}")];
    let run = start(&sandbox, TWO_AND_TWO, &actions, &["pid.trainer-0", "pid.trainer-1"]);
    let server: u32 = sandbox.read("pid.pserver-1").parse().expect("a process id");
    umiak_sys::descend::signal(server, 15);
    let outcome = run.finish();
    outcome.expect_code(143);
    expect_cause(&outcome, "pserver-1", 2, "SIGTERM");
}

/// A foreign listener would answer in the server's place.
fn taken_port() {
    let sandbox = Sandbox::new();
    let ports = free_ports(2);
    let stranger = std::net::TcpListener::bind(("127.0.0.1", ports[0])).expect("it was free");
    let flags = format!("--servers 127.0.0.1:{} --workers 127.0.0.1:{}", ports[0], ports[1]);
    let outcome = sandbox.launch_toy(&flags, &["*:touch started", SERVERS, TRAINERS]).finish();
    assert_ne!(outcome.code(), 0, "{}", outcome.err());
    outcome.expect_err(&ports[0].to_string());
    assert!(!sandbox.path().join("started").exists(), "nothing was started:\n{}", outcome.err());
    drop(stranger);
}

fn two_jobs() {
    let [first, second] = [Sandbox::new(), Sandbox::new()];
    let actions = [SERVERS, "trainer:reach;pid;await go"];
    let runs = [&first, &second].map(|sandbox| start(sandbox, TWO_AND_TWO, &actions, &["pid.trainer-0"]));
    for sandbox in [&first, &second] {
        sandbox.write("go", "");
    }
    for run in runs {
        expect_well(&run.finish());
    }
}

fn cut_logs() {
    let sandbox = Sandbox::new();
    let flags = format!("{TWO_AND_TWO} --log-max-size 64K --log-keep 1000");
    let outcome = sandbox.launch_toy(&flags, &["*:flood 300000", SERVERS, TRAINERS]).finish();
    expect_well(&outcome);
    for stem in ["serverlog.1", "workerlog.1"] {
        let parts = logs(&sandbox).into_iter().filter(|name| name.starts_with(stem)).count();
        assert!(parts > 3, "{stem}: {:?}", logs(&sandbox));
    }
}

fn old_exit_codes() {
    // Each generation of Paddle's launcher has its own exit codes.
    let current = "--run_mode ps --server_num 2 --trainer_num 2 --exit-codes paddle";
    let legacy = |codes: &str| format!("{TWO_AND_TWO} --exit-codes {codes}");
    for (flags, code) in [(current, 241), (&legacy("paddle"), 1), (&legacy("torch"), 1), (&legacy("umiak"), 3)] {
        let sandbox = Sandbox::new();
        sandbox.launch_toy(flags, &["pserver-1:exit 3", SERVERS, TRAINERS]).finish().expect_code(code);
    }
}
