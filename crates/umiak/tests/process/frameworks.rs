//! Real training: Paddle and PyTorch over gloo on CPU, with only the environment that the launcher sets.

mod relay;
mod servers;

use std::path::{Path, PathBuf};

use umiak_testkit::components::Component::{Paddle, Torch};
use umiak_testkit::components::environment;
use umiak_testkit::net::Host;
use umiak_testkit::sandbox::{Outcome, Run, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("frameworks::paddle_trains_on_two_ranks", &[Paddle], || trains_in_paddles_words("paddle_train.py"))
        .test("frameworks::paddle_trains_on_four_ranks", &[Paddle], || trains_in_our_words("paddle_train.py"))
        // Rank 0 serves the store, so its peers fail in a different way when it ends.
        .test("frameworks::paddle_rank_0_is_the_cause", &[Paddle], || {
            names_the_cause("paddle_fails.py", &["0", "slowly"]);
        })
        .test("frameworks::paddle_rank_1_is_the_cause", &[Paddle], || names_the_cause("paddle_fails.py", &["1"]))
        .test("frameworks::torch_trains_on_two_ranks", &[Torch], || trains_in_paddles_words("torch_ddp.py"))
        .test("frameworks::torch_trains_on_four_ranks", &[Torch], || trains_in_our_words("torch_ddp.py"))
        .test("frameworks::torch_rank_1_is_the_cause", &[Torch], || names_the_cause("torch_fails.py", &["1"]));
    relay::register(suite);
    servers::register(suite);
}

pub(crate) fn virtual_environment() -> PathBuf {
    environment().expect("the suite has checked that it is here")
}

pub(crate) fn example(name: &str) -> String {
    format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Path of a script that fails in a certain way.
pub(crate) fn support(name: &str) -> String {
    format!("{}/tests/process/support/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Frameworks keep caches in the home and temporary directories; only files of umiak must be gone.
pub(crate) fn train(sandbox: &Sandbox, words: &[&str]) -> Outcome {
    train_on(None, sandbox, words, &[])
}

/// The same on a host, with more variables.
pub(crate) fn train_on(host: Option<&Host>, sandbox: &Sandbox, words: &[&str], env: &[(&str, &str)]) -> Outcome {
    let run = prepared(sandbox, &virtual_environment(), words);
    let run = env.iter().fold(run, |run, (name, value)| run.env(name, value));
    let outcome = if let Some(host) = host { run.on(host) } else { run }.finish();
    assert_only_caches(sandbox);
    outcome
}

/// `umiak` with these words in an active virtual environment, and with directories for the caches of frameworks.
pub(crate) fn prepared<'a>(sandbox: &'a Sandbox, environment: &Path, words: &[&str]) -> Run<'a> {
    let (home, temporary) = (sandbox.path().join("home"), sandbox.path().join("caches"));
    std::fs::create_dir_all(&temporary).expect("the sandbox can be written");
    sandbox.umiak(words).env("HOME", home).env("TMPDIR", temporary).env("VIRTUAL_ENV", environment)
}

/// Fails if umiak left files in the temporary directory of [`prepared`].
pub(crate) fn assert_only_caches(sandbox: &Sandbox) {
    let left: Vec<String> = sandbox.list("caches").into_iter().filter(|name| name.starts_with("umiak-")).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Torch 2.15 sometimes aborts at interpreter exit, also under torchrun. Such a run is repeated.
pub(crate) fn watched(run: impl Fn() -> Outcome) -> Outcome {
    let is_torchs_end = |outcome: &Outcome| outcome.err().contains("terminate called without an active exception");
    let again = || Some(run()).filter(|outcome| !is_torchs_end(outcome));
    again().or_else(again).unwrap_or_else(&run)
}

/// Uses the interpreter in front of `-m`.
fn trains_in_paddles_words(script: &str) {
    let python = virtual_environment().join("bin/python");
    let python = python.to_str().expect("a path in UTF-8");
    let module = [python, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"];
    let script = example(script);
    let words = [module.as_slice(), &[&script, "--steps", "60"]].concat();
    has_learned(&watched(|| train(&Sandbox::new(), &words)), 2);
}

/// Uses the interpreter of the active virtual environment.
fn trains_in_our_words(script: &str) {
    let words = ["launch", "--nproc_per_node", "4", &example(script), "--steps", "60"];
    has_learned(&watched(|| train(&Sandbox::new(), &words)), 4);
}

/// Checks the last line of rank 0: `rank 0/2  done in 0.4 s: loss 1.2 -> 0.3, weights identical on all 2 ranks`.
pub(crate) fn has_learned(outcome: &Outcome, ranks: u32) {
    outcome.expect_code(0);
    let text = outcome.out();
    // The console may show other ranks too.
    let first = format!("rank 0/{ranks} ");
    let is_last = |line: &&str| line.starts_with(&first) && line.contains("done in");
    let last = text.lines().find(is_last).unwrap_or_else(|| panic!("no last line of rank 0:\n{text}"));
    assert!(last.ends_with(&format!("weights identical on all {ranks} ranks")), "{last}");
    has_fallen(last);
}

/// Checks `… loss 1.2 -> 0.3`, which may be followed by a comma and more.
fn has_fallen(line: &str) {
    let losses = line.split_once("loss ").and_then(|(_, rest)| rest.split(',').next()).unwrap_or_default();
    let (first, last) = losses.split_once(" -> ").unwrap_or_else(|| panic!("no losses: {line}"));
    let number = |text: &str| text.parse::<f64>().unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(number(last) < number(first), "the loss did not fall: {losses}");
}

/// The peer ignores SIGTERM and dies of the lost connection. Its error is real but not the cause, even if the failing
/// rank exits slowly and the peer is gone first.
fn names_the_cause(script: &str, arguments: &[&str]) {
    let sandbox = Sandbox::new();
    let script = support(script);
    let words = ["launch", "--nproc_per_node", "2", "--grace", "3s", &script];
    let failing = arguments[0];
    let outcome = train(&sandbox, &[words.as_slice(), arguments].concat());
    outcome
        .expect_code(1)
        .expect_err(&format!("rank=[{failing}] was aborted"))
        .expect_err(&format!("✗ rank {failing} on "))
        .expect_err("ValueError: label 17 is out of range");
    assert_eq!(outcome.err().matches("✗ rank").count(), 1, "others were blamed:\n{}", outcome.err());
}
