//! `retry`: runs the failed parts of an ended run again.

use std::fs;
use std::path::Path;

use umiak_core::facts::{Fact, Outcome};
use umiak_core::status::State;
use umiak_testkit::suite::Suite;

use super::house::{House, Unwatched as _};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run::retry::what_failed_runs_again", &[], what_failed)
        .test("run::retry::all_runs_again_when_asked", &[], all)
        .test("run::retry::budgets_are_new", &[], budgets)
        .test("run::retry::secrets_are_asked_again", &[], secrets)
        .test("run::retry::secrets_of_parameters_are_in_no_file", &[], secret_parameters)
        .test("run::retry::a_graceful_exit_is_no_success", &[], graceful)
        .test("run::retry::settings_are_beside_the_document", &[], settings)
        .test("run::retry::killed_and_resumed", &[], killed_and_resumed);
}

/// The second of three replicas fails until the file `good` exists.
const FAILS: &str = "umiak: v1\nname: fails\npolicy: {settle: 10ms}\nroles:\n  trainer: {replicas: 3, command: \"LEDGER; test $UMIAK_INDEX = 1 || exit 0; until test -s ledger/trainer-2; do sleep 0.01; done; sleep 0.1; test -e good\"}\n";

fn succeeded() -> State {
    State::Finished { outcome: Outcome::Succeeded, exit_code: 0 }
}

fn what_failed() {
    let house = House::with(FAILS);
    house.umiak("run job.yaml").finish().expect_code(1);
    house.umiak("retry 1").finish().expect_code(1);
    assert_eq!(house.ledger()["trainer-1"], [1, 2]);
    house.touch("good");
    house.umiak("retry 1").finish().expect_code(0);
    let ledger = house.ledger();
    assert_eq!((&ledger["trainer-0"], &ledger["trainer-1"]), (&vec![1], &vec![1, 2, 3]));
    assert_eq!(house.status().state, succeeded());
    house.check_ended();
    house.umiak("retry 1").finish().expect_code(2).expect_err("J0025").expect_err("has succeeded").expect_err("--all");
    house.check_ended();
}

fn all() {
    let house = House::with(FAILS);
    house.touch("good");
    house.umiak("run job.yaml").finish().expect_code(0);
    house.umiak("retry --all 1").finish().expect_code(0);
    assert!(house.ledger().values().all(|lines| *lines == [1, 2]), "{:?}", house.ledger());
    house.check_ended();
}

fn budgets() {
    let house = House::with(
        "umiak: v1\nname: budget\npolicy: {settle: 10ms}\nroles:\n  trainer: {command: \"LEDGER; exit 7\", restarts: {max: 2, backoff: 1ms}}\n",
    );
    house.umiak("run job.yaml").finish().expect_code(7);
    assert_eq!(house.ledger()["trainer-0"], [1, 2, 3]);
    house.umiak("retry 1").finish().expect_code(7);
    assert_eq!(house.ledger()["trainer-0"], [1, 2, 3, 4, 5, 6]);
    house.check_ended();
}

/// Must not appear in any file.
const SECRET: &str = "hunter2-and-more";

fn secrets() {
    let house = House::with(&format!(
        "umiak: v1\nname: secret\nroles:\n  trainer: {{command: \"LEDGER; test $API_TOKEN = {SECRET}x && exit 7; test $API_TOKEN = other\", env: {{API_TOKEN: {SECRET}x}}}}\n"
    ));
    // The secret comes from a parameter: the contents of the document itself are not hidden.
    house.document("umiak: v1\nname: secret\nparams: {token: none}\nroles:\n  trainer: {command: \"LEDGER; test -e good || exit 7; test $API_TOKEN = other\", env: {API_TOKEN: \"{{ token }}\"}}\n");
    let outcome =
        house.sandbox.umiak(["run", "job.yaml", "-p", &format!("token={SECRET}")]).env("UMIAK_HOME", house.home.path());
    outcome.finish().expect_code(7);
    assert_eq!(holders(house.home.path(), SECRET), [""; 0]);
    let outcome = house.umiak("retry 1").finish();
    outcome.expect_code(2).expect_err("error[J0025]").expect_err("API_TOKEN (role trainer)");
    house.check_ended();
    house.touch("good");
    house.umiak("retry 1").env("API_TOKEN", "other").finish().expect_code(0);
    assert_eq!(house.ledger()["trainer-0"], [1, 2]);
    house.check_ended();
    // A retry that cannot start leaves no secrets behind.
    let house = House::with("umiak: v1\nroles:\n  trainer: {command: \"LEDGER; exit 7\"}\n");
    house.umiak("run job.yaml").finish().expect_code(7);
    let plan = fs::read_to_string(house.run().plan()).expect("a plan");
    let many = plan.replacen("\"gpus\":0", "\"gpus\":4", 1);
    assert_ne!(plan, many, "{plan}");
    fs::write(house.run().plan(), many).expect("the sandbox can be written");
    house.umiak("retry 1").finish().expect_code(125).expect_err("J0020");
    house.check_ended();
}

/// A replica that saves its state on SIGTERM and exits with 0 has not done its work.
fn graceful() {
    let house = House::with(
        "umiak: v1\nroles:\n  trainer: {replicas: 2, command: \"LEDGER; trap 'exit 0' TERM; touch up.$UMIAK_INDEX; test -e again && exit 0; while :; do sleep 0.01; done\"}\n",
    );
    house.umiak("run -d job.yaml").finish_unwatched().expect_code(0);
    for index in 0..2 {
        house.wait_for_file(&format!("up.{index}"));
    }
    house.umiak("stop 1").finish_unwatched().expect_code(0);
    let text = house.umiak("show 1").finish_unwatched().out();
    assert_eq!(text.matches("⊘ stopped by us, exited with 0").count(), 2, "{text}");
    house.touch("again");
    house.umiak("retry 1").finish().expect_code(0);
    let text = house.umiak("show 1").finish_unwatched().out();
    assert_eq!(text.matches("✓ exited with 0").count(), 2, "{text}");
    assert_eq!(house.umiak("logs 1 --attempt 2").finish_unwatched().code(), 0);
    house.check_ended();
}

/// With another parameter the document is read again, with the settings beside it.
fn settings() {
    let house = House::new();
    fs::create_dir(house.sandbox.path().join("jobs")).expect("the sandbox can be written");
    house.sandbox.write("jobs/umiak.toml", "[flavour.tiny]\ncpu = 1\n");
    house.sandbox.write(
        "jobs/a.yaml",
        "umiak: v1\nparams: {code: 7}\nroles:\n  trainer: {flavour: tiny, command: \"exit {{ code }}\"}\n",
    );
    house.umiak("run jobs/a.yaml").finish().expect_code(7);
    house.umiak("retry 1 -p code=0").finish().expect_code(0);
}

/// Secrets in commands, in variables with harmless names, and in labels.
fn secret_parameters() {
    let (token, label) = (format!("token={SECRET}"), "api_key=xyz-label");
    let house = House::with(
        "umiak: v1\nname: secret\nparams: {token: }\nroles:\n  trainer: {command: \"LEDGER; test $HEADER = a-{{token}} || exit 3; exit 7\", env: {HEADER: \"a-{{token}}\", DB: \"redis://:pw-of-db@host\"}}\n",
    );
    let hidden = [SECRET, "xyz-label", "pw-of-db"];
    let line = |verb, output| {
        let words = [verb, "job.yaml", "-p", &token, "--label", label, "--output", output];
        house.sandbox.umiak(words).env("UMIAK_HOME", house.home.path()).finish()
    };
    for output in ["human", "json"] {
        let plan = line("plan", output);
        plan.expect_code(0);
        let text = plan.out() + &plan.err();
        assert!(text.contains("********") && !hidden.iter().any(|secret| text.contains(secret)), "{text}");
    }
    line("run", "human").expect_code(7);
    for secret in hidden {
        assert_eq!(holders(house.home.path(), secret), [""; 0]);
    }
    let command = fs::read_to_string(house.run().attempt(None, "trainer-0", 1).join("command")).expect("a command");
    assert!(command.contains("# `********` replaces a secret"), "{command}");
    let outcome = house.umiak("retry 1").env("HEADER", "x").env("DB", "x").finish();
    outcome.expect_code(2).expect_err("error[J0025]").expect_err("command (role trainer)");
    outcome.expect_err("give them with `-p NAME=VALUE`");
    let outcome = house.umiak("retry 1").finish();
    outcome.expect_code(2).expect_err("HEADER (role trainer), DB (role trainer)");
    house.check_ended();
    // The new value of a masked variable is a secret too, even if its name is harmless.
    let house = House::with(
        "umiak: v1\nname: secret\nparams: {token: }\nroles:\n  trainer: {command: \"LEDGER; test ${#HEADER} = 14\", env: {HEADER: \"{{token}}\"}}\n",
    );
    let run = house.sandbox.umiak(["run", "job.yaml", "-p", &token]).env("UMIAK_HOME", house.home.path());
    run.finish().expect_code(1);
    house.umiak("retry 1").env("HEADER", "another-secret").finish().expect_code(0);
    assert_eq!(holders(house.home.path(), "another-secret"), [""; 0]);
    house.check_ended();
    // Asterisks written by the user are not a masked secret.
    let house = House::with("umiak: v1\nroles:\n  trainer: {command: \"LEDGER; : '********'; test -e good\"}\n");
    house.umiak("run job.yaml").finish().expect_code(1);
    house.touch("good");
    house.umiak("retry 1").finish().expect_code(0);
    house.check_ended();
}

/// Returns the files below a directory that contain this text.
fn holders(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holders(&path, text));
        } else if fs::read(&path).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text)) {
            found.push(path.display().to_string());
        }
    }
    found
}

/// A retry that lost its supervisor resumes as a retry: earlier failures do not count.
fn killed_and_resumed() {
    for line in ["retry 1", "retry --all 1"] {
        let usual = House::with(FAILS);
        usual.umiak("run job.yaml").finish().expect_code(1);
        let before = usual.records().len();
        usual.touch("good");
        usual.umiak(line).finish().expect_code(0);
        let after = usual.records().len();
        for at in before + 1..after {
            let house = House::with(FAILS);
            house.umiak("run job.yaml").finish().expect_code(1);
            house.touch("good");
            let die = (house.records().len() + at - before).to_string();
            house.umiak(line).env("UMIAK_TEST_JOURNAL_DIE", die).finish_unwatched();
            house.wait_until_free();
            if !house.status().is_finished() {
                house.umiak("resume 1").finish().expect_code(0);
            }
            assert_eq!(house.status().state, succeeded(), "{line}, record {at}");
            let starts = house.records().iter().filter(|record| matches!(record.fact, Fact::Starting { .. })).count();
            assert!(starts >= 4, "{line}, record {at}");
            house.umiak("resume 1").finish().expect_code(2);
            house.check_ended();
        }
    }
}
