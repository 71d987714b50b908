//! Failing jobs: the report names the cause, the other ranks are stopped, the exit code is right, and nothing is left
//! behind.

use std::path::Path;
use std::time::Duration;

use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("failure::exit_code_is_the_causes", &[], exit_code_is_the_causes)
        .test("failure::signal_is_told_in_words", &[], signal_is_told_in_words)
        .test("failure::seed_logs_explain_themselves", &[], seed_logs_explain_themselves)
        .test("failure::old_log_is_not_evidence", &[], old_log_is_not_evidence)
        .test("failure::stubborn_rank_is_killed_after_the_grace", &[], stubborn_rank_is_killed)
        .test("failure::leftovers_of_ranks_are_swept", &[], leftovers_are_swept)
        .test("failure::a_program_behind_a_shell_is_asked_once", &[], asked_once)
        .test("failure::old_exit_codes_on_request", &[], old_exit_codes)
        .test("failure::interrupt_stops_everything", &[], interrupt_stops_everything)
        .test("failure::second_interrupt_kills", &[], second_interrupt_kills)
        .test("failure::killed_front_takes_its_ranks", &[], killed_front_takes_its_ranks)
        .test("failure::killed_guardian_takes_its_ranks", &[], killed_guardian_takes_its_ranks)
        .test("failure::abort_has_a_line_of_its_own", &[], abort_has_a_line_of_its_own)
        .test("failure::lost_facts_are_a_failure", &[], lost_facts_are_a_failure)
        .test("failure::a_file_without_a_first_line_is_explained", &[], a_file_without_a_first_line_is_explained)
        .test("failure::identical_tracebacks_are_told_once", &[], identical_tracebacks)
        .test("failure::a_traceback_on_the_console_is_not_repeated", &[], traceback_above)
        .test("failure::quiet_tells_only_the_cause", &[], quiet)
        .test("failure::json_tells_the_verdict", &[], json_tells_the_verdict);
}

/// A traceback as Python prints it.
const TRACEBACK: &str = "err Traceback (most recent call last):\\n  File \"train.py\", line 3, in <module>\\n    step()\\nValueError: bad batch";

fn identical_tracebacks() {
    let sandbox = Sandbox::new();
    // All four ranks are causes: they ignore signals and wait for each other before they fail.
    let fails = format!("*:await r0;await r1;await r2;await r3;{TRACEBACK};exit 7");
    let actions = ["*:ignore 15;ignore 2", "0:touch r0", "1:touch r1", "2:touch r2", "3:touch r3", &fails];
    let outcome = sandbox.launch_toy("--nproc_per_node 4 --show none", &actions).finish();
    outcome.expect_code(7).expect_err("✗ ranks 0-3 on ").expect_err("ValueError: bad batch");
    assert_eq!(tracebacks(&outcome.err()), 1, "{}", outcome.err());
}

fn tracebacks(text: &str) -> usize {
    text.lines().filter(|line| line.ends_with("Traceback (most recent call last):")).count()
}

/// When stdout and stderr go to the same place, the traceback in rank 0's output is not repeated.
fn traceback_above() {
    for redirect in ["2>&1", "2>&1 >/dev/null", ">out 2>err; cat err"] {
        let sandbox = Sandbox::new();
        let launch =
            sandbox.launch_toy("--nproc_per_node 2", &[&format!("0:{TRACEBACK};exit 7"), &format!("1:{WAIT}")]);
        let line = format!("{} {redirect}", launch.line());
        let outcome = sandbox.program(Path::new("/bin/sh"), ["-c", &line]).finish();
        let text = outcome.out();
        assert_eq!(tracebacks(&text), 1, "{redirect}:\n{text}");
        assert_eq!(text.contains("the traceback is above, in the output of rank 0"), redirect == "2>&1", "{text}");
        assert!(text.contains("  ValueError: bad batch"), "{text}");
    }
}

fn quiet() {
    let sandbox = Sandbox::new();
    let actions = [format!("1:{TRACEBACK};exit 7"), format!("*:{WAIT}")];
    let outcome = sandbox.launch_toy("--nproc_per_node 2 --output quiet", &[&actions[0], &actions[1]]).finish();
    outcome.expect_code(7);
    let text = outcome.err();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("✗ rank 1 on ") && lines[0].contains(" exited with 7 after "), "{text}");
    assert_eq!(lines[1], "  ValueError: bad batch");
    assert!(lines[2].starts_with("    train.py:3 in <module>"), "{text}");
}

const WAIT: &str = "sleep 60000";

fn exit_code_is_the_causes() {
    let sandbox = Sandbox::new();
    let outcome = sandbox
        .launch_toy("--nproc_per_node 4", &["2:sleep 50;err ValueError: bad batch;exit 7", &format!("*:{WAIT}")])
        .finish();
    outcome
        .expect_code(7)
        .expect_err(
            "ABORT!!! Out of all 4 trainers, the trainer process with rank=[2] was aborted. Please check its log.",
        )
        .expect_err("Container failed !!!")
        .expect_err("✗ rank 2 on ")
        .expect_err("exited with 7 after")
        .expect_err("ValueError: bad batch")
        .expect_err("log ./log/workerlog.2")
        .expect_err("stopped by us  ranks 0-1, 3 (SIGTERM, all gone within");
}

fn signal_is_told_in_words() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy("--nproc_per_node 2", &["1:signal 9", &format!("0:{WAIT}")]).finish();
    outcome.expect_code(137).expect_err("rank 1").expect_err("was killed by SIGKILL (killed)");
}

/// The user guide's case: `workerlog.0` holds a SIGTERM notice, `workerlog.4` an input/output error.
fn seed_logs_explain_themselves() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/logs");
    let (victim, cause) = (format!("{fixtures}/seed-workerlog.0.log"), format!("{fixtures}/seed-workerlog.4.log"));
    // The order in which ranks exit does not decide which one is the cause.
    for (delay_0, delay_4) in [(0, 100), (100, 0)] {
        let sandbox = Sandbox::new();
        let outcome = sandbox
            .launch_toy(
                "--nproc_per_node 8",
                &[
                    &format!("0:stubborn;touch ready.0;await ready.4;sleep {delay_0};cat {victim};exit 1"),
                    &format!("4:stubborn;touch ready.4;await ready.0;sleep {delay_4};cat {cause};exit 1"),
                    &format!("*:{WAIT}"),
                ],
            )
            .finish();
        outcome
            .expect_code(1)
            .expect_err("rank=[4] was aborted")
            .expect_err("✗ rank 4 on")
            .expect_err("Input/output error");
        assert!(!outcome.err().contains("✗ rank 0"), "{}", outcome.err());
    }
}

fn old_log_is_not_evidence() {
    let sandbox = Sandbox::new();
    sandbox.launch_toy("--nproc_per_node 1", &["*:err OSError: [Errno 28] No space left on device;exit 1"]).finish();
    let outcome = sandbox.launch_toy("--nproc_per_node 1", &["*:exit 3"]).finish();
    outcome.expect_code(3);
    assert!(!outcome.err().contains("No space left"), "{}", outcome.err());
}

fn stubborn_rank_is_killed() {
    let sandbox = Sandbox::new();
    // Each run needs its own file: an existing one would let rank 1 exit before rank 0 ignores signals.
    let stubborn = |file: &str| [format!("0:stubborn;touch {file};{WAIT}"), format!("1:await {file};exit 5")];
    let launch = |grace: &str, [first, second]: [String; 2]| {
        sandbox.launch_toy(&format!("--nproc_per_node 2 --grace {grace}"), &[&first, &second]).finish()
    };
    let outcome = launch("300ms", stubborn("up"));
    outcome.expect_code(5).expect_err("rank=[1]");
    std::fs::remove_file(sandbox.path().join("up")).expect("the first run has made it");
    // Longer than the settle window: the report comes first, and the end of rank 0 is printed afterwards.
    let slow = launch("1s", stubborn("again"));
    slow.expect_code(5).expect_err("(SIGTERM, then SIGKILL after 1.0 s)").expect_err("all stopped by SIGKILL after");
    assert!(outcome.elapsed >= Duration::from_millis(300), "killed before the grace was over: {:?}", outcome.elapsed);
}

fn leftovers_are_swept() {
    let sandbox = Sandbox::new();
    // `finish` fails if a process is left.
    let outcome = sandbox.launch_toy("--nproc_per_node 2 --grace 1s", &["*:child;daemon;exit 0"]).finish();
    outcome.expect_code(0).expect_err("notice[L0025]: ranks left processes behind, which were stopped");
    sandbox
        .launch_toy("--nproc_per_node 2 --grace 1s", &["0:child;daemon;exit 9", &format!("1:child;daemon;{WAIT}")])
        .finish()
        .expect_code(9);
}

/// The shell ends with its SIGTERM, while its child still writes its checkpoint.
fn asked_once() {
    for background in ["", "& wait"] {
        let sandbox = Sandbox::new();
        let child = "trap 'echo asked >> asked' TERM; touch up; n=0; \
                     while [ $n -lt 20 ]; do sleep 0.02; [ -e asked ] && n=$((n+1)); done; touch saved";
        sandbox.write("child.sh", child);
        let program = format!(
            "case $RANK in 1) sh child.sh {background};; *) while [ ! -e up ]; do sleep 0.01; done; exit 9;; esac; :"
        );
        sandbox.write("rank.sh", program);
        let launch = ["launch", "--nproc_per_node", "2", "--grace", "10s", "sh", "rank.sh"];
        let outcome = sandbox.umiak(launch).finish();
        outcome.expect_code(9);
        assert!(!outcome.err().contains("L0025"), "{background:?}\n{}", outcome.err());
        let read = |name| std::fs::read_to_string(sandbox.path().join(name)).unwrap_or_default();
        assert_eq!(read("asked"), "asked\n", "{background:?}");
        assert!(sandbox.path().join("saved").exists(), "{background:?}: killed before it had saved");
    }
}

fn old_exit_codes() {
    for (flags, code) in [("--exit-codes paddle", 241), ("--exit-codes torch", 1), ("--exit-codes umiak", 7)] {
        let sandbox = Sandbox::new();
        let actions = ["1:exit 7", &format!("0:{WAIT}")];
        sandbox.launch_toy(&format!("--nproc_per_node 2 {flags}"), &actions).finish().expect_code(code);
    }
}

fn interrupt_stops_everything() {
    for signal in [1, 2, 3, 15] {
        let sandbox = Sandbox::new();
        let run =
            sandbox.launch_toy("--nproc_per_node 2", &[&format!("0:touch up;{WAIT}"), &format!("1:{WAIT}")]).start();
        run.wait_for_file("up");
        run.signal(signal);
        let outcome = run.finish();
        outcome.expect_code(128 + signal).expect_err("stopped by SIG");
        assert!(!outcome.err().contains("ABORT"), "an interrupt is not a failure:\n{}", outcome.err());
    }
}

fn second_interrupt_kills() {
    let sandbox = Sandbox::new();
    let actions = [format!("0:stubborn;touch up-0;{WAIT}"), format!("1:stubborn;touch up-1;{WAIT}")];
    let run = sandbox.launch_toy("--nproc_per_node 2 --grace 60s", &[&actions[0], &actions[1]]).start();
    run.wait_for_file("up-0");
    run.wait_for_file("up-1");
    std::thread::sleep(Duration::from_millis(100));
    run.signal(2);
    std::thread::sleep(Duration::from_millis(100));
    run.signal(2);
    let outcome = run.finish();
    outcome.expect_code(130);
    assert!(outcome.elapsed < Duration::from_secs(30), "the grace was not cut short: {:?}", outcome.elapsed);
}

fn killed_front_takes_its_ranks() {
    let sandbox = Sandbox::new();
    let run = sandbox.launch_toy("--nproc_per_node 4", &[&format!("*:child;daemon;touch up;{WAIT}")]).start();
    run.wait_for_file("up");
    run.signal(9);
    // `finish` waits for the remaining processes to exit, and fails if they do not.
    let outcome = run.finish();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&outcome.status), Some(9));
}

fn killed_guardian_takes_its_ranks() {
    let sandbox = Sandbox::new();
    let run = sandbox.launch_toy("--nproc_per_node 4", &[&format!("*:child;daemon;touch up;{WAIT}")]).start();
    run.wait_for_file("up");
    let guardian = umiak_sys::descend::children(run.pid())[0];
    umiak_sys::descend::signal(guardian, 9);
    let outcome = run.finish();
    outcome.expect_code(125).expect_err("error[L0017]");
}

fn json_tells_the_verdict() {
    let sandbox = Sandbox::new();
    let outcome = sandbox
        .launch_toy("--output json --nproc_per_node 2", &["1:err KeyError: 'x';exit 7", &format!("0:{WAIT}")])
        .finish();
    outcome.expect_code(7);
    let facts = outcome.facts();
    let verdict = facts.iter().find(|fact| fact["type"] == "diagnosed").expect("a verdict");
    assert_eq!(verdict["causes"][0]["subject"]["rank"], 1);
    let last = facts.last().unwrap();
    assert_eq!((last["status"].as_str(), last["code"].as_u64()), (Some("failed"), Some(7)));
}

/// Regression test: the user's last line has no line feed, and both streams go to one pipe.
fn abort_has_a_line_of_its_own() {
    let sandbox = Sandbox::new();
    let umiak = umiak_testkit::sandbox::binary().display().to_string();
    let toy = umiak_testkit::sandbox::toy();
    let line = format!("{umiak} launch {toy} toy '*:partial unfinished;exit 3' 2>&1 | cat");
    let outcome = sandbox.program(std::path::Path::new("/bin/sh"), ["-c", &line]).finish();
    let out = outcome.out();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines.contains(&"unfinished") && lines.iter().any(|line| line.starts_with("ABORT!!!")), "{out}");
}

fn lost_facts_are_a_failure() {
    let sandbox = Sandbox::new();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut run = sandbox.launch_toy("--output json", &["*:exit 0"]);
    run.command.stdout(full());
    run.finish().expect_code(125).expect_err("events of the run could not be written");
}

fn a_file_without_a_first_line_is_explained() {
    use std::os::unix::fs::PermissionsExt as _;
    let sandbox = Sandbox::new();
    let script = sandbox.write("train", "no program at all\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = sandbox.umiak(["launch", "./train"]).finish();
    outcome.expect_code(126).expect_err("could not be started").expect_err("hint: this machine cannot execute it");
}
