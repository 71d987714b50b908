//! Commands from other terminals on runs (attach, stop, resume), and their output.

use umiak_testkit::schema::violation;
use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::Session;

use super::house::{House, Unwatched as _, wait_for};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run::orders::attach_follows_to_the_end", &[], attach)
        .test("run::orders::attach_shows_every_role", &[], attach_roles)
        .test("run::orders::ctrl_c_leaves_an_attached_run_alone", &[], leave)
        .test("run::orders::attach_ends_without_a_reader", &[], unread)
        .test("run::orders::stop_all_and_only", &[], stop_all)
        .test("run::orders::stop_says_how_it_ended", &[], stopped_meanwhile)
        .test("run::orders::taken_up_again_detached", &[], detached)
        .test("run::orders::a_launch_goes_on_detached", &[], launched)
        .test("run::orders::retry_with_other_parameters", &[], parameters)
        .test("run::orders::three_failures_are_not_made_good", &[], three_failures)
        .test("run::orders::tolerated_failures_are_shown", &[], tolerated)
        .test("run::orders::json_keeps_to_its_schemas", &[], schemas)
        .test("run::orders::words_of_other_tools", &[], other_words)
        .test("run::orders::completion", &[], completion);
}

const WAITS: &str = "umiak: v1\nname: waits\nroles:\n  trainer: {command: \"LEDGER; echo hello; touch up; until test -e go; do sleep 0.01; done; echo bye; exit 7\"}\n";

fn attach() {
    let house = House::with(WAITS);
    house.umiak("attach").finish_unwatched().expect_code(2).expect_err("there are no runs yet");
    house.umiak("run -d job.yaml").finish_unwatched().expect_code(0).expect_err("umiak attach run-000001");
    house.wait_for_file("up");
    let session = Session::of(house.umiak("attach"), (80, 20));
    session.wait_for("the console", |screen| screen.iter().any(|line| line == "hello"));
    house.touch("go");
    for line in ["Attached run-000001 · waits · 1 running", "bye", "run-000001 waits failed with 7"] {
        session.wait_for(line, |screen| screen.iter().any(|other| other.ends_with(line)));
    }
    house.wait_until_free();
    assert_eq!(session.finish().0.code(), Some(7));
    let ended = house.umiak("attach waits").finish_unwatched();
    ended.expect_code(2).expect_err("error[J0025]: run-000001 has ended").expect_err("`umiak logs run-000001`");
    house.check_ended();
}

fn attach_roles() {
    let house = House::with(
        "umiak: v1\nname: two\nroles:\n  server: {command: \"LEDGER; echo up; until test -e go; do sleep 0.01; done\"}\n  trainer: {replicas: 2, command: \"LEDGER; echo hello; touch up.$UMIAK_INDEX; until test -e go; do sleep 0.01; done\"}\n",
    );
    house.umiak("run -d job.yaml").finish_unwatched().expect_code(0);
    for index in 0..2 {
        house.wait_for_file(&format!("up.{index}"));
    }
    let shows = |line: &str, wanted: &[&str]| {
        let session = Session::of(house.umiak(line), (80, 20));
        session.wait_for(line, |screen| wanted.iter().all(|wanted| screen.iter().any(|line| line == wanted)));
        session
    };
    let all = shows("attach", &["server-0  | up", "trainer-0 | hello", "trainer-1 | hello"]);
    let one = shows("attach 1 trainer-1", &["hello"]);
    house.umiak("attach 1 trainer-2").finish_unwatched().expect_code(2).expect_err("no role or replica `trainer-2`");
    house.touch("go");
    house.wait_until_free();
    for session in [all, one] {
        session.wait_for("the end", |screen| screen.iter().any(|line| line.ends_with("run-000001 two succeeded")));
        assert_eq!(session.finish().0.code(), Some(0));
    }
    house.check_ended();
}

fn leave() {
    let house = House::with(WAITS);
    house.umiak("run -d job.yaml").finish_unwatched().expect_code(0);
    house.wait_for_file("up");
    let mut session = Session::of(house.umiak("attach 1"), (80, 20));
    session.wait_for("the console", |screen| screen.iter().any(|line| line == "hello"));
    session.type_keys(b"\x03");
    session.wait_for("how to come back", |screen| {
        screen.iter().any(|line| line.contains("detached; run-000001 is still running: `umiak attach run-000001`"))
    });
    assert_eq!(house.umiak("show 1 --output quiet").finish_unwatched().out(), "running\n");
    house.touch("go");
    house.umiak("wait 1").finish_unwatched().expect_code(7);
    house.wait_until_free();
    let (status, _) = session.finish();
    assert_eq!(status.code(), Some(130));
    house.check_ended();
}

fn unread() {
    let house = House::with(WAITS);
    house.umiak("run -d job.yaml").finish_unwatched().expect_code(0);
    house.wait_for_file("up");
    let umiak = umiak_testkit::sandbox::binary().display();
    for (redirection, code, err) in [("| head -1", 0, ""), (">/dev/full", 125, "umiak could not write its output")] {
        let line = format!("set -o pipefail; {umiak} attach {redirection}");
        let attached = house.sandbox.program("/bin/bash".as_ref(), ["-c", &line]).env("UMIAK_HOME", house.home.path());
        attached.finish_unwatched().expect_code(code).expect_err(err);
        assert_eq!(house.umiak("show 1 --output quiet").finish_unwatched().out(), "running\n");
    }
    house.touch("go");
    house.umiak("wait 1").finish_unwatched().expect_code(7);
    house.wait_until_free();
    house.check_ended();
}

fn stop_all() {
    let house = House::with(WAITS);
    let nothing = house.umiak("stop --all").finish_unwatched();
    nothing.expect_code(0).expect_err("no live runs");
    house.umiak("stop").finish_unwatched().expect_code(2).expect_err("error[J0025]: no live runs");
    for _ in 0..2 {
        house.umiak("run -d job.yaml").finish_unwatched().expect_code(0);
    }
    house.wait_for_file("up");
    house.umiak("stop").finish_unwatched().expect_code(2).expect_err("several runs are running");
    let outcome = house.umiak("stop --all").finish_unwatched();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), "run-000001 stopped\nrun-000002 stopped\n");
    house.umiak("stop --all 1").finish_unwatched().expect_code(2);
    house.sandbox.assert_nothing_left();
}

/// The stop arrives after the replica has succeeded, while leftovers are being stopped.
fn stopped_meanwhile() {
    let house = House::with(
        "umiak: v1\npolicy: {grace: 60s}\nroles:\n  trainer: {command: \"LEDGER; setsid sh -c 'trap : TERM; touch up; while :; do sleep 0.01; done' & until test -e up; do sleep 0.01; done\"}\n",
    );
    house.umiak("run -d job.yaml").finish_unwatched().expect_code(0);
    house.wait_for_file("up");
    let is_sweeping =
        || house.records().iter().any(|record| matches!(record.fact, umiak_core::facts::Fact::Ended { .. }));
    wait_for("the replica's end", is_sweeping);
    let outcome = house.umiak("stop --kill").finish_unwatched();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), "run-000001 had succeeded before it could be stopped\n");
    house.check_ended();
}

fn detached() {
    let house = House::with("umiak: v1\nroles:\n  trainer: {command: \"LEDGER; test -e good\"}\n");
    house.umiak("run job.yaml").finish().expect_code(1);
    let outcome = house.umiak("retry -d --output json").finish_unwatched();
    outcome.expect_code(0);
    let said: serde_json::Value = serde_json::from_str(&outcome.out()).expect("JSON");
    assert_eq!(said, serde_json::json!({ "v": 1, "run": "run-000001" }));
    house.umiak("wait").finish_unwatched().expect_code(1);
    house.wait_until_free();
    house.touch("good");
    house.umiak("retry -d 1").finish_unwatched().expect_code(0).expect_err("umiak attach run-000001");
    house.umiak("wait").finish_unwatched().expect_code(0);
    house.wait_until_free();
    assert_eq!(house.ledger()["trainer-0"].len(), 3);
    house.umiak("retry -d").finish_unwatched().expect_code(2).expect_err("has succeeded");
    house.umiak("resume -d").finish_unwatched().expect_code(2).expect_err("`umiak retry --all run-000001`");
    house.check_ended();
}

fn launched() {
    let house = House::new();
    house.sandbox.write(
        "train.sh",
        "echo hello $PADDLE_TRAINER_ID [$UMIAK_DETACHED]; touch up; until test -e go; do sleep 0.01; done; exit 6\n",
    );
    let outcome = house.umiak("launch -d --nproc_per_node 2 /bin/sh train.sh").finish_unwatched();
    outcome.expect_code(0).expect_err("`umiak attach run-000001`");
    assert_eq!(outcome.out(), "run-000001\n");
    house.wait_for_file("up");
    assert_eq!(house.umiak("show train --output quiet").finish_unwatched().out(), "running\n");
    house.touch("go");
    house.umiak("wait train").finish_unwatched().expect_code(6);
    house.wait_until_free();
    let logs = house.umiak("logs 1 trainer-0").finish_unwatched();
    assert_eq!(logs.out(), "hello 0 []\n");
    let log = std::fs::read_to_string(house.run().supervisor_log()).expect("its log");
    assert!(log.contains("ABORT!!!") && !log.lines().any(|line| line.starts_with("hello")), "{log}");
    house.sandbox.assert_nothing_left();
    assert!(!house.sandbox.list("state").iter().any(|name| name.starts_with("detached-")));
    let refused = house.umiak("launch -d --nproc_per_node 2 nothing.py").finish_unwatched();
    refused.expect_code(127).expect_err("nothing.py");
    house
        .umiak("launch -d --no-record train.sh")
        .finish_unwatched()
        .expect_code(2)
        .expect_err("cannot be used with `--no-record`");
    assert_eq!(house.runs().len(), 1);
}

fn parameters() {
    let house = House::with(
        "umiak: v1\nparams: {code: 3, n: 1}\nroles:\n  trainer: {replicas: \"{{n}}\", command: \"LEDGER; exit {{code}}\"}\n",
    );
    house.umiak("run job.yaml -p code=4").finish().expect_code(4);
    house.umiak("retry 1").finish().expect_code(4);
    house.umiak("retry -p n=2").finish().expect_code(2).expect_err("change the roles of the run");
    house.umiak("retry -p speed=2").finish().expect_code(2).expect_err("speed");
    house.umiak("retry -p code=0 1").finish().expect_code(0);
    house.check_ended();
}

fn three_failures() {
    let house = House::with(
        "umiak: v1\npolicy: {settle: 10ms}\nroles:\n  trainer: {command: \"LEDGER; echo 'ValueError: bad batch' >&2; exit 7\", restarts: {max: 2, backoff: 1ms}}\n",
    );
    house.umiak("run job.yaml").finish().expect_code(7);
    let text = house.umiak("explain").finish_unwatched().out();
    assert!(!text.contains("succeeded"), "{text}");
    assert_eq!(text.matches(" failed too\n").count(), 2, "{text}");
    assert_eq!(text.matches("why it ").count(), 1, "{text}");
    let json = house.umiak("explain --output json").finish_unwatched().out();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["attempts"][0]["next"], &json["attempts"][1]["next"]), (&"failed".into(), &"failed".into()));
    house.document("umiak: v1\nroles:\n  trainer: {command: \"test -e again || { touch again; exit 7; }\", restarts: {max: 2, backoff: 1ms}}\n");
    house.umiak("run job.yaml").finish().expect_code(0);
    let text = house.umiak("explain").finish_unwatched().out();
    assert!(text.contains("of trainer-0 failed, attempt 2 succeeded\n"), "{text}");
}

fn tolerated() {
    let house = House::with(
        "umiak: v1\nroles:\n  trainer: {replicas: 3, command: \"LEDGER; test $UMIAK_INDEX != 1 || { echo $$ > pid; echo 'ValueError: bad shard' >&2; exit 5; }; until test -s pid && ! kill -0 $(cat pid) 2>/dev/null; do sleep 0.01; done\", completion: {min_failed: 3, min_succeeded: 2}}\n",
    );
    house.umiak("run job.yaml").finish().expect_code(0);
    let shown = house.umiak("show").finish_unwatched().out();
    assert!(shown.contains("  tolerated   trainer-1 exited with 5\n"), "{shown}");
    let text = house.umiak("explain").finish_unwatched().out();
    assert!(text.contains("tolerated: the run continued without trainer-1\n"), "{text}");
    assert!(text.contains("ValueError: bad shard") && text.contains("it succeeded\n"), "{text}");
    let json = house.umiak("show --output json").finish_unwatched().out();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["tolerated"], serde_json::json!(["trainer-1"]));
    house.check_ended();
}

fn schemas() {
    let house = House::with(
        "umiak: v1\nname: fails\nlabels: {team: ads}\nroles:\n  trainer: {replicas: 2, command: \"LEDGER; echo here; test $UMIAK_INDEX = 0 || exit 7\", ports: {rpc: 1}, restarts: {max: 1, backoff: 1ms}}\n",
    );
    let printed = house.umiak("run job.yaml --output json").finish();
    let schema = |name: &str| -> serde_json::Value {
        serde_json::from_str(&house.umiak(&format!("schema {name}")).finish_unwatched().out()).expect("a schema")
    };
    let keeps = |name: &str, text: &str| {
        let value: serde_json::Value =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        assert_eq!(violation(&schema(name), &value), None, "{name}: {text}");
        value
    };
    for line in printed.out().lines() {
        assert_eq!(keeps("facts", line)["run"], "run-000001");
    }
    house
        .sandbox
        .write("waits.yaml", "umiak: v1\nroles:\n  trainer: {command: \"until test -e go; do sleep 0.01; done\"}\n");
    keeps("detached", &house.umiak("run -d waits.yaml --output json").finish_unwatched().out());
    for (name, line) in [
        ("ls", "ls"),
        ("show", "show 1"),
        ("show", "show 2"),
        ("explain", "explain 1"),
        ("code", "explain U1104"),
        ("code", "explain J0010"),
        ("error", "launch nosuch.sh"),
        ("error", "run nosuch.yaml"),
        ("wait", "wait 1"),
        ("wait", "wait 2 --timeout 1ms"),
        ("stop", "stop 2"),
        ("plan", "plan job.yaml"),
        ("plan", "run job.yaml --dry-run"),
        ("plan", "launch --dry-run /bin/true"),
        ("lint", "lint job.yaml nothing.yaml"),
        ("removed", "gc --older-than 0s --dry-run"),
        ("removed", "rm 2"),
    ] {
        // Flags of a launch precede its script.
        let flag = " --output json";
        let line = match line.strip_prefix("launch") {
            Some(rest) => format!("launch{flag}{rest}"),
            None => format!("{line}{flag}"),
        };
        let value = keeps(name, &house.umiak(&line).finish_unwatched().out());
        assert_eq!(value["dry_run"] == true, line.contains("dry-run") || name == "plan", "{line}");
    }
    for line in house.umiak("events 1 --output json").finish_unwatched().out().lines() {
        keeps("facts", line);
    }
    for flags in ["", " --timestamps"] {
        let printed = house.umiak(&format!("logs 1 all --output json{flags}")).finish_unwatched().out();
        assert_eq!(printed.lines().filter(|line| keeps("logs", line)["run"] == "run-000001").count(), 2, "{printed}");
    }
    let names = house.umiak("schema").finish_unwatched().out();
    assert!(names.lines().all(|name| schema(name)["$schema"].is_string()) && names.lines().count() > 11, "{names}");
}

fn other_words() {
    let house = House::new();
    for (line, hint) in [
        ("status", "hint: use `umiak show`"),
        ("status train", "hint: use `umiak show train`"),
        ("kill --kill 3", "hint: use `umiak stop --kill 3`"),
        ("ps", "hint: use `umiak ls`"),
        ("list", "hint: use `umiak ls`"),
        ("help nosuch", "there is no command `nosuch`"),
    ] {
        house.umiak(line).finish_unwatched().expect_code(2).expect_err(hint);
    }
    let help = house.umiak("--help").finish_unwatched().out();
    assert!(!help.contains("  kill") && !help.contains("  complete ") && help.contains("  attach"), "{help}");
    let silent = house.umiak("ls --help").finish_unwatched().out();
    assert!(!silent.contains("--verbose"), "{silent}");
}

/// Runs in a real shell that has sourced the script.
fn completion() {
    let house = House::with(
        "umiak: v1\nname: quick\nroles:\n  server: {command: \"true\"}\n  trainer: {replicas: 2, command: \"true\"}\n",
    );
    house.umiak("run job.yaml").finish().expect_code(0);
    let binary = umiak_testkit::sandbox::binary().parent().expect("a directory").display().to_string();
    let ask = |words: &str| {
        let script = format!(
            "PATH={binary}:$PATH; source <(umiak completions bash); COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _umiak_runs umiak; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let run =
            house.sandbox.program(std::path::Path::new("bash"), ["-c", &script]).env("UMIAK_HOME", house.home.path());
        let outcome = run.finish_unwatched();
        outcome.out().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ask("umiak show q"), ["quick"]);
    assert_eq!(ask("umiak rm run-"), ["run-000001"]);
    assert_eq!(ask("umiak retry q"), ["quick"]);
    for command in ["stop", "attach", "resume"] {
        assert!(!ask(&format!("umiak {command} q")).contains(&"quick".to_owned()), "{command}: it has ended");
    }
    assert_eq!(ask("umiak logs quick tr"), ["trainer", "trainer-0", "trainer-1"]);
    assert_eq!(ask("umiak run jo"), ["job.yaml"]);
    assert!(ask("umiak show --ou").contains(&"--output".to_owned()));
    assert!(ask("umiak sh").contains(&"show".to_owned()));
    // Names and files are never expanded by the shell.
    house.sandbox.write("$(touch bad).yaml", "");
    assert!(ask("umiak run ''").contains(&"\\$\\(touch\\ bad\\).yaml".to_owned()));
    assert!(!house.sandbox.path().join("bad").exists());
    let launch = house.sandbox.umiak(["launch", "-d", "--job_id", "my waits", "sleep", "60"]);
    launch.env("UMIAK_HOME", house.home.path()).finish_unwatched().expect_code(0);
    assert_eq!(ask("umiak stop ''"), ["my\\ waits", "run-000002"]);
    assert_eq!(ask("umiak rm ''"), ["quick", "run-000001"]);
    house.umiak("stop --kill").finish_unwatched().expect_code(0);
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = house.umiak(&format!("completions {shell}")).finish_unwatched().out();
        let is_offered = |word: &str| {
            let words = script.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            words.clone().any(|other| other == word)
        };
        assert!(is_offered("stop") && !is_offered("supervise"), "{shell}\n{script}");
    }
    for shell in ["zsh", "fish"] {
        let script = house.umiak(&format!("completions {shell}")).finish_unwatched().out();
        assert!(script.contains("umiak complete "), "{script}");
    }
}
