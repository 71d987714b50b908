//! `--max_restart`: the whole group restarts as a new attempt that shares only the logs with the old one.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;
use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("restart::never_unless_asked_for", &[], never_unless_asked_for)
        .test("restart::until_success", &[], until_success)
        .test("restart::budget_is_spent", &[], budget_is_spent)
        .test("restart::every_attempt_has_its_own_surroundings", &[], own_surroundings)
        .test("restart::fixed_ports_stay", &[], fixed_ports_stay)
        .test("restart::backoff_comes_between", &[], backoff_comes_between)
        .test("restart::no_backoff_stays_none", &[], no_backoff_stays_none)
        .test("restart::only_the_window_counts", &[], only_the_window_counts)
        .test("restart::a_signal_ends_the_wait", &[], a_signal_ends_the_wait)
        .test("restart::a_killed_front_in_the_wait_leaves_nothing", &[], killed_in_the_wait)
        .test("restart::a_guardian_lost_in_the_wait_is_replaced", &[], guardian_lost_in_the_wait)
        .test("restart::lost_guardians_are_replaced_within_the_budget", &[], lost_guardians_are_replaced)
        .test("restart::a_refused_start_is_final", &[], a_refused_start_is_final)
        .test("restart::leftovers_go_before_the_next_attempt", &[], leftovers_go_first)
        .test("restart::old_words_are_not_evidence", &[], old_words_are_not_evidence)
        .test("restart::logs_are_appended", &[], logs_are_appended);
}

/// No waiting between attempts.
const QUICK: &str = "--restart-backoff 1ms --grace 1s";
const WAIT: &str = "sleep 60000";

/// Returns the indices of the facts of this type.
fn places(facts: &[Value], kind: &str) -> Vec<usize> {
    (0..facts.len()).filter(|index| facts[*index]["type"] == kind).collect()
}

fn restarts(outcome: &Outcome) -> usize {
    places(&outcome.facts(), "restarting").len()
}

fn script(sandbox: &Sandbox, text: &str) {
    let path = sandbox.write("train.sh", format!("#!/bin/sh\n{text}"));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn never_unless_asked_for() {
    // Paddle's default of 3 is part of its configuration block and does not request restarts.
    for (flags, variable, expected) in
        [("", None, 0), ("--max_restart 0", None, 0), ("", Some("1"), 1), ("--max_restart 2", Some("1"), 1)]
    {
        let sandbox = Sandbox::new();
        let mut run = sandbox.launch_toy(&format!("--output json {QUICK} {flags}"), &["*:exit 3"]);
        if let Some(value) = variable {
            run = run.env("PADDLE_MAX_RESTART", value);
        }
        let outcome = run.finish();
        outcome.expect_code(3);
        assert_eq!(restarts(&outcome), expected, "{flags} {variable:?}");
    }
}

fn until_success() {
    let sandbox = Sandbox::new();
    script(&sandbox, "[ $RANK = 0 ] && exec sleep 0.2\necho x >> count\n[ $(wc -l < count) = 3 ] || exit 5\n");
    let outcome =
        sandbox.umiak(format!("launch --nproc_per_node 2 --max_restart 5 {QUICK} ./train.sh").split(' ')).finish();
    outcome
        .expect_code(0)
        .expect_err("attempt 1 of 6 failed")
        .expect_err("attempt 2 of 6 failed")
        .expect_err("finished 2 ranks in ")
        .expect_err(", attempt 3 of 6\n");
    assert_eq!(sandbox.read("count").lines().count(), 3);
}

fn budget_is_spent() {
    let sandbox = Sandbox::new();
    let actions = ["1@3:exit 9", "1:exit 7", &format!("0:{WAIT}")];
    let outcome = sandbox.launch_toy(&format!("--nproc_per_node 2 --max_restart 2 {QUICK}"), &actions).finish();
    outcome.expect_code(9).expect_err("  attempt 3 of 3\n");
    assert_eq!(outcome.err().matches("ABORT!!!").count(), 3, "{}", outcome.err());
    assert_eq!(outcome.err().matches("restarting in").count(), 2, "{}", outcome.err());
    let log = sandbox.list("log").into_iter().find(|name| name.starts_with("default.")).expect("Paddle's own log");
    let log = sandbox.read(&format!("log/{log}"));
    for part in ["Restart Pod: ", "replicas 2, attempt 2\n", "replicas 2, attempt 3\n", "Exit code 9\n"] {
        assert!(log.contains(part), "no {part:?} in\n{log}");
    }
}

fn variable(sandbox: &Sandbox, file: &str, name: &str) -> String {
    let environment: Value = serde_json::from_str(&sandbox.read(file)).unwrap();
    environment[name].as_str().unwrap_or_else(|| panic!("no {name}")).to_owned()
}

fn own_surroundings() {
    let sandbox = Sandbox::new();
    let actions = ["1@1:env a;exit 1", "1@2:env b;touch seen;exit 0", &format!("0@1:{WAIT}"), "0@2:await seen"];
    let flags = format!("--nproc_per_node 2 --max_restart 3 --output json {QUICK}");
    let outcome = sandbox.launch_toy(&flags, &actions).finish();
    outcome.expect_code(0);
    for name in [
        "MASTER_PORT",
        "PADDLE_MASTER",
        "PADDLE_CURRENT_ENDPOINT",
        "PADDLE_TRAINER_ENDPOINTS",
        "PADDLE_GLOO_FS_PATH",
        "TORCHELASTIC_ERROR_FILE",
    ] {
        let (first, second) = (variable(&sandbox, "a.1", name), variable(&sandbox, "b.1", name));
        assert_ne!(first, second, "{name}");
    }
    for (file, count) in [("a.1", "0"), ("b.1", "1")] {
        assert_eq!(variable(&sandbox, file, "TORCHELASTIC_RESTART_COUNT"), count);
        assert_eq!(variable(&sandbox, file, "TORCHELASTIC_MAX_RESTARTS"), "3");
    }
    let endpoints = variable(&sandbox, "b.1", "PADDLE_TRAINER_ENDPOINTS").replace(',', "\n");
    assert_eq!(sandbox.read("log/endpoints.log"), format!("PADDLE_TRAINER_ENDPOINTS: \n{endpoints}"));
    let facts = outcome.facts();
    let planned: Vec<&Value> = places(&facts, "planned").into_iter().map(|index| &facts[index]).collect();
    assert_eq!(planned.iter().map(|fact| fact["attempt"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2)]);
    assert_eq!(planned[1]["replicas"][1]["endpoint"], variable(&sandbox, "b.1", "PADDLE_CURRENT_ENDPOINT"));
}

/// Ports fixed by the user are kept, even while old connections prevent binding them again.
fn fixed_ports_stay() {
    let sandbox = Sandbox::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let flags = format!("--max_restart 1 --start_port {port} {QUICK}");
    sandbox.launch_toy(&flags, &["*@1:env a;exit 1", "*@2:env b"]).finish().expect_code(0);
    for file in ["a.0", "b.0"] {
        assert_eq!(variable(&sandbox, file, "PADDLE_CURRENT_ENDPOINT"), format!("127.0.0.1:{port}"));
    }
    assert_ne!(variable(&sandbox, "a.0", "MASTER_PORT"), variable(&sandbox, "b.0", "MASTER_PORT"));
}

fn backoff_comes_between() {
    let sandbox = Sandbox::new();
    let flags = "--nproc_per_node 2 --max_restart 1 --restart-backoff 80ms --output json";
    let outcome = sandbox.launch_toy(flags, &["1@1:exit 4", &format!("0@1:{WAIT}"), "*@2:exit 0"]).finish();
    outcome.expect_code(0);
    let facts = outcome.facts();
    let restarting = places(&facts, "restarting")[0];
    let fact = &facts[restarting];
    assert_eq!((fact["attempt"].as_u64(), fact["of"].as_u64()), (Some(2), Some(2)));
    assert_eq!(facts[restarting - 1]["type"], "diagnosed");
    let second: Vec<usize> =
        places(&facts, "starting").into_iter().filter(|index| facts[*index]["subject"]["attempt"] == 2).collect();
    assert_eq!(second.len(), 2, "both ranks start again");
    let planned = places(&facts, "planned")[1];
    assert!(restarting < planned && planned < second[0], "{facts:?}");
    let last_of_first = facts.iter().rposition(|fact| fact["subject"]["attempt"] == 1).unwrap();
    assert!(last_of_first < restarting, "the old attempt is over before the new one is announced");
    // A fact is stamped when it is written, slightly after the decision that starts the wait.
    let at = |index: usize| facts[index]["at"].as_u64().unwrap();
    assert!(at(second[0]) - at(last_of_first) >= fact["delay_micros"].as_u64().unwrap(), "{facts:?}");
}

fn no_backoff_stays_none() {
    let sandbox = Sandbox::new();
    let flags = "--max_restart 35 --restart-backoff 0s --output json";
    let outcome = sandbox.launch_toy(flags, &["*:exit 4"]).finish();
    outcome.expect_code(4);
    let facts = outcome.facts();
    let delays: Vec<u64> =
        places(&facts, "restarting").iter().map(|index| facts[*index]["delay_micros"].as_u64().unwrap()).collect();
    assert_eq!(delays, [0; 35]);
}

fn only_the_window_counts() {
    for (window, code, expected) in [("1ms", 0, 3), ("1h", 6, 1)] {
        let sandbox = Sandbox::new();
        let flags = format!("--max_restart 1 --restart-window {window} --restart-backoff 5ms --output json");
        let outcome = sandbox.launch_toy(&flags, &["*@4:exit 0", "*:exit 6"]).finish();
        outcome.expect_code(code);
        assert_eq!(restarts(&outcome), expected, "{window}");
        let facts = outcome.facts();
        assert_eq!(facts[places(&facts, "restarting")[0]]["of"], Value::Null, "there is no last attempt");
    }
}

/// Starts a run, and returns when it has failed and waits to restart.
fn waiting(sandbox: &Sandbox) -> umiak_testkit::sandbox::Running<'_> {
    waiting_for(sandbox, "60s")
}

fn waiting_for<'a>(sandbox: &'a Sandbox, backoff: &str) -> umiak_testkit::sandbox::Running<'a> {
    let flags = format!("--nproc_per_node 2 --max_restart 3 --restart-backoff {backoff}");
    let run =
        sandbox.launch_toy(&flags, &["1@1:child;daemon;exit 4", &format!("0@1:{WAIT}"), "*@2:print again"]).start();
    run.wait_until("the back-off", || {
        let Ok(entries) = std::fs::read_dir(sandbox.path().join("log")) else { return false };
        let mut logs = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("default."));
        logs.any(|log| std::fs::read_to_string(log.path()).is_ok_and(|text| text.contains("Restart Pod")))
    });
    run
}

fn a_signal_ends_the_wait() {
    for signal in [2, 15] {
        let sandbox = Sandbox::new();
        let run = waiting(&sandbox);
        run.signal(signal);
        let outcome = run.finish();
        outcome.expect_code(128 + signal).expect_err("before the restart\n");
    }
}

fn killed_in_the_wait() {
    let sandbox = Sandbox::new();
    let run = waiting(&sandbox);
    run.signal(9);
    // `finish` fails if a process or a scratch directory is left.
    run.finish();
}

fn guardian_lost_in_the_wait() {
    let sandbox = Sandbox::new();
    let run = waiting_for(&sandbox, "4s");
    umiak_sys::descend::signal(umiak_sys::descend::children(run.pid())[0], 9);
    // Nothing is lost in the wait: another guardian starts the next attempt.
    run.finish().expect_code(0).expect_err("error[L0017]");
    assert_eq!(sandbox.read("log/workerlog.0"), "again\n");
}

/// A lost guardian is a failure of the platform: another one is started as often as restarts are permitted.
fn lost_guardians_are_replaced() {
    let sandbox = Sandbox::new();
    let line = "--nproc_per_node 2 --max_restart 2 --restart-backoff 1ms";
    let actions =
        ["0@1:touch up1;sleep 60000", "0@2:touch up2;sleep 60000", "0@3:touch up3;sleep 60000", "1:sleep 60000"];
    let run = sandbox.launch_toy(line, &actions).start();
    let mut guardians = Vec::new();
    let mut cgroups = Vec::new();
    for file in ["up1", "up2", "up3"] {
        run.wait_for_file(file);
        let guardian = umiak_sys::descend::children(run.pid())[0];
        guardians.push(guardian);
        cgroups.extend(cgroup_of(guardian));
        umiak_sys::descend::signal(guardian, 9);
    }
    guardians.dedup();
    assert_eq!(guardians.len(), 3);
    run.finish().expect_code(125).expect_err("error[L0017]");
    assert_eq!(cgroups.into_iter().find(|cgroup| cgroup.exists()), None);
    let explained = sandbox.umiak(["explain"]).finish();
    for guardian in &guardians {
        let words = format!("the guardian (pid {guardian}), which runs the replicas, was killed from outside");
        assert!(explained.out().contains(&words), "{}", explained.out());
    }
    let words = format!("the failure: the guardian (pid {}) was lost", guardians[2]);
    assert!(explained.out().contains(&words) && !explained.out().contains("the cause"), "{}", explained.out());
    let explained = sandbox.umiak("explain --output json".split(' ')).finish().out();
    let explained: serde_json::Value = serde_json::from_str(&explained).unwrap();
    assert_eq!(explained["engine_losses"].as_array().map(Vec::len), Some(3), "{explained}");
}

/// The cgroup that umiak has created for a job, if it could.
fn cgroup_of(guardian: u32) -> Option<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let mount = mounts.lines().find_map(|line| line.strip_prefix("cgroup2 ")?.split(' ').next())?;
    let own = std::fs::read_to_string(format!("/proc/{guardian}/cgroup")).ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).filter(|own| own.contains("umiak-"))?;
    Some(std::path::Path::new(mount).join(own))
}

fn a_refused_start_is_final() {
    let sandbox = Sandbox::new();
    let script = sandbox.write("train", "no program at all\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = sandbox.umiak("launch --output json --max_restart 3 ./train".split(' ')).finish();
    outcome.expect_code(126);
    assert_eq!(restarts(&outcome), 0);
}

/// A grandchild in its own session ignores SIGTERM; the second attempt checks that it is gone.
fn leftovers_go_first() {
    let sandbox = Sandbox::new();
    script(
        &sandbox,
        "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then\n\
           setsid sh -c 'trap \"\" TERM; echo $$ > left.new; mv left.new left; exec sleep 60' &\n\
           while [ ! -e left ]; do sleep 0.01; done\n\
           exit 3\n\
         fi\n\
         kill -0 $(cat left) 2>/dev/null && exit 9\n\
         exit 0\n",
    );
    let line = "launch --output json --max_restart 1 --restart-backoff 1ms --grace 100ms ./train.sh";
    let outcome = sandbox.umiak(line.split(' ')).finish();
    outcome.expect_code(0);
    let facts = outcome.facts();
    let (swept, planned) = (places(&facts, "swept"), places(&facts, "planned"));
    assert!(swept.len() == 1 && swept[0] < planned[1], "{facts:?}");
    assert_eq!(facts[swept[0]]["pids"][0].to_string(), sandbox.read("left").trim());
}

fn old_words_are_not_evidence() {
    let sandbox = Sandbox::new();
    let actions = ["*@1:err OSError: [Errno 28] No space left on device;exit 1", "*@2:exit 3"];
    let outcome = sandbox.launch_toy(&format!("--max_restart 1 --output json {QUICK}"), &actions).finish();
    outcome.expect_code(3);
    let facts = outcome.facts();
    let verdicts: Vec<String> = places(&facts, "diagnosed").into_iter().map(|index| facts[index].to_string()).collect();
    assert_eq!(verdicts.len(), 2);
    assert!(verdicts[0].contains("No space left") && !verdicts[1].contains("No space left"), "{verdicts:?}");
}

fn logs_are_appended() {
    for overwrite in ["", "--log_overwrite true"] {
        let sandbox = Sandbox::new();
        let actions = ["*@1:print first;exit 1", "*@2:print second"];
        let outcome = sandbox.launch_toy(&format!("--max_restart 1 {QUICK} {overwrite}"), &actions).finish();
        outcome.expect_code(0);
        assert_eq!(sandbox.read("log/workerlog.0"), "first\nsecond\n", "{overwrite}");
        assert_eq!(outcome.out(), "first\nsecond\n", "the console shows both attempts");
    }
}
