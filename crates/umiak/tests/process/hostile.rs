//! Documents made to exhaust memory: each is answered, in bounded memory and with a bounded number of messages.

use umiak_testkit::hostile::{documents, measured};
use umiak_testkit::sandbox::{Outcome, Sandbox, binary, toy};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite.test("hostile::memory_of_lint_is_bounded", &[], lint);
    suite.test("hostile::memory_of_run_plan_and_convert_is_bounded", &[], run_and_plan);
    suite.test("hostile::more_errors_are_counted", &[], counted);
    suite.test("hostile::one_budget_for_aliases_and_parameters", &[], expansion);
}

const MIB: u64 = 1 << 20;

/// Runs `umiak WORDS job.yaml` and checks its peak memory.
fn bounded(sandbox: &Sandbox, name: &str, text: &str, words: &[&str]) -> Outcome {
    sandbox.write("job.yaml", text);
    let words = [words, &["job.yaml"]].concat();
    let binary = binary().to_string_lossy();
    let run = sandbox.program(toy().as_ref(), measured("peak", &binary, &words)).finish();
    let peak: u64 = sandbox.read("peak").parse().expect("a number");
    let limit = 32 * MIB + 100 * text.len() as u64 + 64 * MIB;
    assert!(peak <= limit, "{name}, {words:?}: {peak} of {limit} bytes");
    assert!(matches!(run.code(), 0 | 2), "{name}, {words:?}: code {}\n{}", run.code(), run.err());
    run
}

fn lint() {
    let sandbox = Sandbox::new();
    for document in documents(60_000) {
        let run = bounded(&sandbox, document.name, &document.text, &["lint"]);
        let heads = run.err().lines().filter(|line| line.starts_with("error[") || line.starts_with("notice[")).count();
        assert!(heads <= 51, "{}: {heads} messages", document.name);
        assert!(run.err().len() < 100_000, "{}: {} bytes of messages", document.name, run.err().len());
    }
}

fn run_and_plan() {
    let sandbox = Sandbox::new();
    for document in documents(20_000) {
        for words in [&["plan"][..], &["convert"], &["run", "--engine", "mock"]] {
            bounded(&sandbox, document.name, &document.text, words);
        }
    }
}

fn counted() {
    let sandbox = Sandbox::new();
    let keys: Vec<String> = (0..1060).map(|key| format!(", k{key}: 1")).collect();
    sandbox.write("job.yaml", format!("{{umiak: v1, roles: {{main: {{command: x{}}}}}}}", keys.concat()));
    let run = sandbox.umiak(["lint", "job.yaml"]).finish();
    run.expect_code(2)
        .expect_err("error[F0007]: and 1010 more errors\n")
        .expect_err("more than 50 errors in 1 of 1 files");
    assert_eq!(run.err().matches("error[F0010]").count(), 50);
    assert!(run.err().lines().all(|line| line.chars().count() < 400), "lines are cut around the mark");
    let text = sandbox.read("job.yaml");
    let run = bounded(&sandbox, "unknown keys", &text, &["lint", "--output", "json"]);
    let report: serde_json::Value = serde_json::from_str(&run.out()).unwrap();
    let diagnostics = report["files"][0]["diagnostics"].as_array().unwrap();
    assert_eq!(diagnostics.len(), 51);
    assert_eq!(
        (&diagnostics[50]["code"], &diagnostics[50]["message"]),
        (&"F0007".into(), &"and 1010 more errors".into())
    );
    for command in ["run", "plan"] {
        let run = sandbox.umiak([command, "job.yaml"]).finish();
        run.expect_code(2).expect_err("error[F0007]: and 1010 more errors\n");
    }
    let run = sandbox.umiak(["run", "--output", "json", "job.yaml"]).finish();
    assert_eq!(run.facts()[50]["error"]["message"], "and 1010 more errors");
    // Notices too.
    let env: Vec<String> = (0..1060).map(|name| format!("A{name}: $HOME")).collect();
    sandbox.write(
        "job.yaml",
        format!("{{umiak: v1, roles: {{main: {{command: \"true\", env: {{{}}}}}}}}}", env.join(", ")),
    );
    let run = sandbox.umiak(["lint", "job.yaml"]).finish();
    run.expect_code(0).expect_err("notice[F0007]: and 1010 more notices\n");
    assert_eq!(run.err().matches("notice[F0052]").count(), 50);
}

fn expansion() {
    let sandbox = Sandbox::new();
    let list = |entry: &str, count: usize| vec![entry; count].join(", ");
    let document =
        |head: &str, command: &str| format!("umiak: v1\n{head}\nroles: {{main: {{command: [{command}]}}}}\n");
    let (long, short) = ("s".repeat(100_000), "t".repeat(1000));
    // 100 KB used 2 000 times, beside a parameter that is used more often and adds less.
    let params = format!("params: {{big: {long}, small: {short}}}");
    let text = document(&params, &[list("\"{{ small }}\"", 3000), list("\"{{big}}\"", 2000)].join(", "));
    for words in [&["lint"][..], &["plan"], &["run"]] {
        let run = bounded(&sandbox, "parameters", &text, words);
        run.expect_code(2)
            .expect_err("error[F0008]: aliases and parameters expand the document too far\n")
            .expect_err("`{{ big }}` is used 2000 times and adds the most: 190.7 MiB\n")
            .expect_err("job.yaml:3:");
    }
    let text = document(&format!("x-a: &a {long}"), &list("*a", 2000));
    let run = bounded(&sandbox, "aliases", &text, &["lint"]);
    run.expect_code(2).expect_err("error[F0008]").expect_err("written here\n").expect_err("job.yaml:3:");
    // Neither is too much alone.
    let head = format!("params: {{big: {long}}}\nx-a: &a {long}");
    for (command, code) in
        [(list("*a", 50), 0), (list("\"{{big}}\"", 45), 0), ([list("*a", 50), list("\"{{big}}\"", 45)].join(", "), 2)]
    {
        let run = bounded(&sandbox, "both", &document(&head, &command), &["lint"]);
        run.expect_code(code);
        assert_eq!(
            run.err().contains("`*a` is used 50 times and adds the most: 4.8 MiB\n"),
            code == 2,
            "{}",
            run.err()
        );
    }
}
