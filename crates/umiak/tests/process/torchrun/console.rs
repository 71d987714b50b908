//! Which output of the ranks the console shows.

use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("torchrun::console_shows_all_ranks_without_prefix", &[], all_ranks)
        .test("torchrun::tee_adds_prefixes", &[], tee)
        .test("torchrun::redirects_hide_output", &[], redirects)
        .test("torchrun::ranks_filter", &[], ranks_filter);
}

/// Writes a line to each stream.
const TALK: &str = "#!/bin/sh\necho \"out $RANK\"\necho \"err $RANK\" >&2\n";

/// Runs two ranks of [`TALK`].
fn talk(flags: &str) -> (Sandbox, Outcome) {
    let sandbox = Sandbox::new();
    sandbox.write("talk.sh", TALK);
    let words: Vec<&str> = ["torchrun", "--nproc-per-node", "2", "--no-python"]
        .into_iter()
        .chain(flags.split_whitespace())
        .chain(["sh", "talk.sh"])
        .collect();
    let outcome = sandbox.umiak(words).finish();
    outcome.expect_code(0);
    (sandbox, outcome)
}

/// The lines of the ranks on each stream, sorted. All of stdout is theirs.
fn shown(outcome: &Outcome) -> (Vec<String>, Vec<String>) {
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let is_theirs = |line: &String| line.contains("err ") || line.contains("out ");
    (sorted(outcome.out()), sorted(outcome.err()).into_iter().filter(is_theirs).collect())
}

/// Names and contents of the files below the directory of the run, which has a random name.
fn files(sandbox: &Sandbox) -> Vec<(String, String)> {
    let [run] = &sandbox.list("log")[..] else { panic!("not one directory: {:?}", sandbox.list("log")) };
    let mut found = Vec::new();
    for rank in sandbox.list(&format!("log/{run}/attempt_0")) {
        for name in sandbox.list(&format!("log/{run}/attempt_0/{rank}")) {
            let text = sandbox.read(&format!("log/{run}/attempt_0/{rank}/{name}"));
            found.push((format!("{rank}/{name}"), text));
        }
    }
    found
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn all_ranks() {
    let (_, outcome) = talk("");
    let (out, err) = shown(&outcome);
    assert_eq!(out, ["out 0", "out 1"]);
    assert_eq!(err, ["err 0", "err 1"]);
}

fn tee() {
    let (sandbox, outcome) = talk("--log-dir log -t 3 --role reader");
    let (out, err) = shown(&outcome);
    assert_eq!(out, ["[reader0]:out 0", "[reader1]:out 1"]);
    assert_eq!(err, ["[reader0]:err 0", "[reader1]:err 1"]);
    let expected = [
        ("0/stderr.log", "err 0\n"),
        ("0/stdout.log", "out 0\n"),
        ("1/stderr.log", "err 1\n"),
        ("1/stdout.log", "out 1\n"),
    ];
    assert_eq!(files(&sandbox), pairs(&expected));
    let (_, outcome) = talk("-t 0:1 --log-line-prefix-template ${rank}|$role_name|");
    let (out, err) = shown(&outcome);
    assert_eq!(out, ["0|default|out 0", "out 1"]);
    assert_eq!(err, ["err 0", "err 1"]);
}

fn redirects() {
    let (sandbox, outcome) = talk("--log-dir log -r 3");
    assert_eq!(outcome.out(), "");
    assert_eq!(shown(&outcome).1, [""; 0]);
    assert_eq!(files(&sandbox).len(), 4, "{:?}", files(&sandbox));
    let (_, outcome) = talk("--log-dir log -r 0:1,1:2");
    let (out, err) = shown(&outcome);
    assert_eq!(out, ["out 1"]);
    assert_eq!(err, ["err 0"]);
}

fn ranks_filter() {
    let (_, outcome) = talk("--local-ranks-filter 0");
    let (out, err) = shown(&outcome);
    assert_eq!(out, ["out 0"]);
    assert_eq!(err, ["err 0"]);
    let (sandbox, outcome) = talk("--local-ranks-filter 0 --log-dir log -t 1");
    let (out, err) = shown(&outcome);
    assert_eq!(out, ["[default0]:out 0"]);
    assert_eq!(err, ["err 0"]);
    assert!(files(&sandbox).contains(&("1/stdout.log".to_owned(), "out 1\n".to_owned())), "{:?}", files(&sandbox));
}
