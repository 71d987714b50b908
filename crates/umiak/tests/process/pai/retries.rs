//! The decision tables of OpenPAI's retries, row by row.

use serde_json::Value;
use umiak_testkit::sandbox::Sandbox;

use super::{HEAD, NEEDS};

/// Only the first instance fails.
const FIRST: &str = "[ $PAI_TASK_INDEX = 0 ] || exit 0;";

/// What a row expects.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    state: String,
    code: i64,
    /// Retries of the job, by who caused them.
    user: u64,
    platform: u64,
    /// Retries of the first instance, and those that count.
    task: (u64, u64),
}

fn shown(sandbox: &Sandbox) -> (Shown, Value) {
    let outcome = sandbox.umiak(["show", "--as", "pai", "--output", "json"]).start().finish_unchecked();
    let job: Value = serde_json::from_str(&outcome.expect_code(0).out()).expect("it is JSON");
    let status = &job["jobStatus"];
    let task = &job["taskRoles"]["w"]["taskStatuses"][0];
    let number = |value: &Value| value.as_u64().expect("a number");
    let shown = Shown {
        state: status["state"].as_str().expect("a state").to_owned(),
        code: status["appExitCode"].as_i64().unwrap_or(i64::MIN),
        user: number(&status["retryDetails"]["user"]),
        platform: number(&status["retryDetails"]["platform"]),
        task: (number(&task["retries"]), number(&task["accountableRetries"])),
    };
    (shown, job)
}

fn document(job: &str, role: &str, commands: &str) -> String {
    format!("{HEAD}{job}\ntaskRoles:\n  w: {{instances: 2, {NEEDS}, {role} commands: ['{commands}']}}\n")
}

/// Jobs that start together: an instance is never repeated alone.
pub(super) fn of_jobs() {
    for (what, retries, commands, expected) in [
        ("success", 3, "true", ("SUCCEEDED", 0, 0, 0)),
        ("unknown, none left", 0, "exit 1", ("FAILED", 255, 0, 0)),
        ("unknown, all used", 2, "exit 1", ("FAILED", 255, 2, 0)),
        ("unknown, then success", 2, "[ $FC_FRAMEWORK_ATTEMPT_ID = 1 ]", ("SUCCEEDED", 0, 1, 0)),
        ("a crash is unknown", 1, "kill -SEGV $$", ("FAILED", 139, 1, 0)),
        ("transient does not count", 0, "[ $FC_FRAMEWORK_ATTEMPT_ID = 1 ] || kill -KILL $$", ("SUCCEEDED", 0, 0, 1)),
        ("transient as a code of the shell", 0, "[ $FC_FRAMEWORK_ATTEMPT_ID = 1 ] || exit 143", ("SUCCEEDED", 0, 0, 1)),
        ("permanent by a signal", 3, "kill -ILL $$", ("FAILED", 132, 0, 0)),
        ("permanent by the log", 3, "echo ImportError: no; exit 1", ("FAILED", 232, 0, 0)),
        ("a command that is not there", 3, "no-such-command", ("FAILED", 220, 0, 0)),
        ("a signal before a text", 1, "echo ImportError: no; kill -SEGV $$", ("FAILED", 139, 1, 0)),
        (
            "transient, unknown, permanent",
            5,
            "case $FC_FRAMEWORK_ATTEMPT_ID in 0) kill -KILL $$;; 1) exit 1;; *) echo core dumped; exit 2;; esac",
            ("FAILED", 235, 1, 1),
        ),
    ] {
        let sandbox = Sandbox::new();
        sandbox.write("job.yaml", document(&format!("jobRetryCount: {retries}"), "", &format!("{FIRST}{commands}")));
        sandbox.umiak(["run", "job.yaml"]).finish();
        let (state, code, user, platform) = expected;
        let expected = Shown { state: state.to_owned(), code, user, platform, task: (0, 0) };
        let (shown, job) = shown(&sandbox);
        assert_eq!(shown, expected, "{what}\n{job:#}");
        let past = job["jobStatus"]["pastAttempts"].as_array().expect("a list");
        assert_eq!(past.len() as u64, user + platform, "{what}");
        assert!(past.iter().all(|past| past["exitSpec"]["phrase"].is_string()), "{what}\n{job:#}");
    }
}

/// Jobs whose instances start alone: each is repeated by itself, and then the job.
pub(super) fn of_instances() {
    for (what, (job, task), commands, expected) in [
        ("unknown, all used", (0, 2), "exit 1", ("FAILED", 255, 0, (2, 2))),
        ("unknown, then success", (0, 1), "[ $FC_TASK_ATTEMPT_ID = 1 ]", ("SUCCEEDED", 0, 0, (1, 1))),
        ("negative is without a limit", (0, -1), "[ $FC_TASK_ATTEMPT_ID = 4 ]", ("SUCCEEDED", 0, 0, (4, 4))),
        (
            "transient does not count",
            (0, 0),
            "[ $FC_TASK_ATTEMPT_ID = 1 ] || kill -KILL $$",
            ("SUCCEEDED", 0, 0, (1, 0)),
        ),
        ("permanent", (0, 5), "echo IndexError: list index out of range; exit 1", ("FAILED", 233, 0, (0, 0))),
        // The job starts again when an instance has none left, and its instances begin anew.
        (
            "first the instance, then the job",
            (1, 1),
            "[ $FC_FRAMEWORK_ATTEMPT_ID$FC_TASK_ATTEMPT_ID = 11 ]",
            ("SUCCEEDED", 0, 1, (1, 1)),
        ),
    ] {
        let sandbox = Sandbox::new();
        let job = format!("jobRetryCount: {job}\nextras: {{gangAllocation: false}}");
        let role = format!("taskRetryCount: {task},");
        sandbox.write("job.yaml", document(&job, &role, &format!("{FIRST}{commands}")));
        sandbox.umiak(["run", "job.yaml"]).finish();
        let (state, code, user, task) = expected;
        let expected = Shown { state: state.to_owned(), code, user, platform: 0, task };
        let (shown, job) = shown(&sandbox);
        assert_eq!(shown, expected, "{what}\n{job:#}");
        let past = job["taskRoles"]["w"]["taskStatuses"][0]["pastAttempts"].as_array().expect("a list").len();
        assert_eq!(past as u64, task.0, "{what}\n{job:#}");
    }
}

/// The cause decides, not an instance whose failures do not count, nor one that was stopped.
pub(super) fn of_the_cause() {
    let sandbox = Sandbox::new();
    let role = |name: &str, completion: &str, commands: &str| {
        format!("  {name}: {{{NEEDS}, completion: {{{completion}}}, commands: ['{commands}']}}\n")
    };
    let aux = role("aux", "minFailedInstances: -1, minSucceededInstances: -1", "echo ImportError: no; exit 1");
    let worker = role("w", "", "sleep 0.8; [ $FC_FRAMEWORK_ATTEMPT_ID = 1 ] || kill -KILL $$");
    sandbox.write("job.yaml", format!("{HEAD}taskRoles:\n{aux}{worker}"));
    sandbox.umiak(["run", "job.yaml"]).finish();
    let (first, job) = shown(&sandbox);
    assert_eq!((first.state.as_str(), first.user, first.platform), ("SUCCEEDED", 0, 1), "{job:#}");
    assert_eq!(job["jobStatus"]["pastAttempts"][0]["exitSpec"]["code"], 137, "{job:#}");
    // It hangs after its own error; the other one loses it. Our SIGTERM is no failure of the platform.
    let hangs = "echo Traceback; echo ValueError: bad batch; sleep 60";
    let loses = "sleep 0.3; echo RuntimeError: Connection closed by peer; exit 1";
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", document("", "", &format!("if [ $PAI_TASK_INDEX = 0 ]; then {hangs}; else {loses}; fi")));
    sandbox.umiak(["run", "job.yaml"]).finish();
    let (second, job) = shown(&sandbox);
    assert_eq!((second.state.as_str(), second.user, second.platform), ("FAILED", 0, 0), "{job:#}");
    // What an instance says about its stop is not its failure.
    let stopped = "trap \"echo ImportError: late; exit 9\" TERM; touch $UMIAK_SUBMIT_DIR/up; sleep 60 & wait";
    let fails = "while [ ! -e $UMIAK_SUBMIT_DIR/up ]; do sleep 0.02; done; exit 3";
    let sandbox = Sandbox::new();
    sandbox
        .write("job.yaml", document("", "", &format!("if [ $PAI_TASK_INDEX = 1 ]; then {stopped}; else {fails}; fi")));
    sandbox.umiak(["run", "job.yaml"]).finish();
    let (third, job) = shown(&sandbox);
    assert_eq!((third.state.as_str(), third.code), ("FAILED", 255), "{job:#}");
    let task = &job["taskRoles"]["w"]["taskStatuses"][1];
    assert_eq!((&task["taskState"], &task["containerExitCode"]), (&"STOPPED".into(), &(-220).into()), "{job:#}");
}

/// What a cluster reports is transient; a conflict waits long, and a stop ends the wait.
pub(super) fn of_the_platform() {
    for (word, code) in [("evict", -1000), ("node-lost", -1001)] {
        let sandbox = Sandbox::new();
        sandbox.write("job.yaml", document("", "", &format!("@1:{word}")));
        sandbox.umiak(["run", "--engine", "mock", "job.yaml"]).finish().expect_code(0);
        let (shown, job) = shown(&sandbox);
        assert_eq!((shown.state.as_str(), shown.user, shown.platform), ("SUCCEEDED", 0, 1), "{word}");
        assert_eq!(job["jobStatus"]["pastAttempts"][0]["exitSpec"]["code"], code, "{word}");
    }
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", document("jobRetryCount: 0", "", "@1:no-room"));
    let running = sandbox.umiak(["run", "--engine", "mock", "job.yaml"]).start();
    running.wait_until("it waits", || {
        let outcome = sandbox.umiak(["show", "--as", "pai", "--output", "json"]).start().finish_unchecked();
        let job = serde_json::from_str::<Value>(&outcome.out());
        job.is_ok_and(|job| job["jobStatus"]["retryDelayTime"].is_u64())
    });
    let (shown, job) = self::shown(&sandbox);
    let delay = job["jobStatus"]["retryDelayTime"].as_u64().expect("a number");
    assert!((60..=900).contains(&delay), "{delay} s");
    assert_eq!((shown.state.as_str(), shown.platform), ("RUNNING", 1));
    let waits = job["jobStatus"]["waitsFor"].as_str().expect("a text");
    assert!(waits.starts_with("the next attempt, at ") && waits.contains("JobGangAllocationTimeout"), "{waits}");
    sandbox.umiak(["stop"]).start().finish_unchecked().expect_code(0);
    running.finish();
    let (shown, _) = self::shown(&sandbox);
    assert_eq!((shown.state.as_str(), shown.code), ("STOPPED", -210));
}

/// A stopped job is not repeated.
pub(super) fn of_a_stop() {
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", document("jobRetryCount: 5", "", "touch $UMIAK_SUBMIT_DIR/up; sleep 60"));
    let running = sandbox.umiak(["run", "job.yaml"]).start();
    running.wait_for_file("up");
    let (shown, _) = shown(&sandbox);
    assert_eq!(shown.state, "RUNNING");
    sandbox.umiak(["stop"]).start().finish_unchecked().expect_code(0);
    running.finish();
    let (shown, job) = self::shown(&sandbox);
    assert_eq!((shown.state.as_str(), shown.code, shown.user, shown.platform), ("STOPPED", -210, 0, 0));
    let task = &job["taskRoles"]["w"]["taskStatuses"][0];
    assert_eq!((&task["taskState"], &task["containerExitCode"]), (&"STOPPED".into(), &(-220).into()));
}

/// The two rules that `--pai-strict` restores.
pub(super) fn strict() {
    let never = "completion: {minFailedInstances: -1},";
    let often = "[ $FC_FRAMEWORK_ATTEMPT_ID -ge 12 ] || kill -KILL $$";
    for (what, flag, role, commands, expected) in [
        ("all failed", "", never, "exit 1", ("FAILED", 255, 0)),
        ("all failed", "--pai-strict", never, "exit 1", ("SUCCEEDED", 0, 0)),
        ("more than 10 transient failures", "--pai-strict", "", often, ("SUCCEEDED", 0, 12)),
    ] {
        let sandbox = Sandbox::new();
        sandbox.write("job.yaml", document("", role, commands));
        let flags: Vec<&str> = ["run", flag, "job.yaml"].into_iter().filter(|flag| !flag.is_empty()).collect();
        sandbox.umiak(flags).finish();
        let (shown, job) = shown(&sandbox);
        let (state, code, platform) = expected;
        assert_eq!((shown.state.as_str(), shown.code, shown.platform), (state, code, platform), "{what}\n{job:#}");
    }
    let sandbox = Sandbox::new();
    sandbox.write("own.yaml", "umiak: v1\nroles: {a: {command: \"true\"}}\n");
    let outcome = sandbox.umiak(["run", "--pai-strict", "own.yaml"]).finish();
    outcome.expect_code(2).expect_err("`--pai-strict` needs an OpenPAI document, or `policy.exits: pai`");
}
