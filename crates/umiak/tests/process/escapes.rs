//! Text from documents, command lines and logs cannot control the terminal: whatever umiak prints about it shows control
//! characters as symbols.

use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite.test("escapes::in_every_field_of_a_document", &[], fields);
    suite.test("escapes::in_command_lines_and_file_names", &[], lines);
    suite.test("escapes::in_the_evidence_of_a_failure", &[], evidence);
    suite.test("escapes::beside_our_own_colours", &[], colours);
}

/// A colour, a bell, a carriage return, C1's control sequence introducer, DEL, a line feed, and a direction mark.
const HOSTILE: &str = "\x1b[44mH\x07\r\u{9b}2J\x7f\n\u{202e}x";
/// The same in a YAML string.
const YAML: &str = r"\e[44mH\a\r\u009b2J\x7f\n\u202ex";

/// Documents with this text in one field each.
const FIELDS: &[&str] = &[
    r#"umiak: "v1@""#,
    r#"name: "a@""#,
    r#"labels: {team: "@"}"#,
    r#"labels: {"@": ads}"#,
    r#"params: {p: "@"}"#,
    r#"params: {"@": 1}"#,
    r#"contracts: ["@"]"#,
    r#"policy: {timeout: "@"}"#,
    r#"policy: {"@": 1}"#,
    r#""@": 1"#,
    r#""x-@": "@""#,
    r#"roles: {"@": {command: "true"}}"#,
    r#"roles: {main: {"@": 1, command: "true"}}"#,
    r#"roles: {main: {command: "echo '@'"}}"#,
    r#"roles: {main: {command: ["true", "@"]}}"#,
    r#"roles: {main: {command: ["@"]}}"#,
    r#"roles: {main: {command: "true", env: {A: "@"}}}"#,
    r#"roles: {main: {command: "true", env: {A: "$HOME @"}}}"#,
    r#"roles: {main: {command: "true", env: {"@": a}}}"#,
    r#"roles: {main: {command: "true", dir: "@"}}"#,
    r#"roles: {main: {command: "true", image: "@"}}"#,
    r#"roles: {main: {command: "true", queue: "@"}}"#,
    r#"roles: {main: {command: "true", priority: "@"}}"#,
    r#"roles: {main: {command: "true", flavour: "@"}}"#,
    r#"roles: {main: {command: "true", ports: {"@": 1}}}"#,
    r#"roles: {main: {command: "true", start_after: "@"}}"#,
    r#"roles: {main: {command: "true", replicas: "@"}}"#,
    r#"roles: {main: {command: "true {{ @ }}"}}"#,
];

/// Fails if the output has a control character other than a line feed, or a direction mark.
#[track_caller]
fn expect_plain(what: &str, run: &Outcome) {
    for (stream, text) in [("stdout", run.out()), ("stderr", run.err())] {
        let is_odd = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!text.contains(is_odd), "{what}, {stream}: {text:?}");
    }
}

fn fields() {
    let sandbox = Sandbox::new();
    for field in FIELDS {
        let roles = if field.starts_with("roles") { "" } else { "\nroles: {main: {command: \"true\"}}" };
        let head = if field.starts_with("umiak") { "" } else { "umiak: v1\n" };
        sandbox.write("job.yaml", format!("{head}{}{roles}\n", field.replace('@', YAML)));
        for words in [
            &["lint", "job.yaml"][..],
            &["lint", "--output", "json", "job.yaml"],
            &["plan", "job.yaml"],
            &["plan", "--output", "json", "job.yaml"],
            &["run", "--engine", "mock", "--show", "none", "job.yaml"],
        ] {
            let run = sandbox.umiak(words).finish();
            expect_plain(&format!("{field}, {words:?}"), &run);
        }
    }
    // Of the last run that was accepted.
    sandbox.write(
        "job.yaml",
        format!(
            "umiak: v1\nlabels: {{team: \"{YAML}\"}}\nroles: {{main: {{command: \"true\", env: {{A: \"{YAML}\"}}}}}}\n"
        ),
    );
    expect_plain("run", sandbox.umiak(["run", "job.yaml"]).finish().expect_code(0));
    for words in [
        &["ls"][..],
        &["ls", "--output", "json"],
        &["show"],
        &["show", "--output", "json"],
        &["events"],
        &["events", "--output", "json"],
        &["explain"],
        &["explain", "--output", "json"],
    ] {
        let run = sandbox.umiak(words).finish();
        expect_plain(&format!("{words:?}"), run.expect_code(0));
        assert!(*words != ["show"] || run.out().contains("team=␛[44mH␇␍"), "{}", run.out());
    }
}

fn lines() {
    let sandbox = Sandbox::new();
    let good = "umiak: v1\nparams: {p: 1}\nroles: {main: {command: \"true {{ p }}\"}}\n";
    let file = format!("{HOSTILE}.yaml");
    sandbox.write(&file, good);
    sandbox.write("job.yaml", good);
    let (param, other) = (format!("p={HOSTILE}"), format!("{HOSTILE}=1"));
    for words in [
        &["lint", file.as_str()][..],
        &["lint", HOSTILE],
        &["plan", &file],
        &["plan", "job.yaml", "-p", &param],
        &["plan", "job.yaml", "-p", &other],
        &["run", "job.yaml", "--name", HOSTILE],
        &["run", "job.yaml", "--label", &other],
        &["run", "job.yaml", "--engine", HOSTILE],
        &["show", HOSTILE],
        &["ls", "--label", &other],
        &["ls"],
        &["show"],
        &[HOSTILE],
        &["launch", HOSTILE],
        &["launch", "--dry-run", "/bin/echo", HOSTILE],
        &["launch", "--dry-run", "--output", "json", "/bin/echo", HOSTILE],
        &["launch", "--job_id", HOSTILE, "/bin/true"],
        &["launch", "--log_dir", HOSTILE, "/bin/true"],
        &["-v", "launch", "--log_dir", HOSTILE, "/bin/false"],
        &["show"],
        &["explain"],
        &["explain", HOSTILE],
    ] {
        let run = sandbox.umiak(words).finish();
        expect_plain(&format!("{words:?}"), &run);
    }
}

fn evidence() {
    let sandbox = Sandbox::new();
    let print = r#"printf 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: \033[44mH\007\302\2332J\n' >&2; exit 3"#;
    sandbox.write("train.sh", print);
    let run = sandbox.umiak(["launch", "--show", "none", "/bin/sh", "train.sh"]).finish();
    // Evidence is quoted without escape sequences.
    expect_plain("launch", run.expect_code(3).expect_err("ValueError: H"));
    for words in
        [&["show"][..], &["explain"], &["explain", "--output", "json"], &["events"], &["events", "--output", "json"]]
    {
        expect_plain(&format!("{words:?}"), sandbox.umiak(words).finish().expect_code(0));
    }
    // The output itself is the user's.
    let run = sandbox.umiak(["logs"]).finish();
    assert!(run.out().contains("\x1b[44mH"), "{}", run.out());
}

fn colours() {
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", format!("umiak: v1\n\"{YAML}\": 1\nlabels: {{team: \"{YAML}\"}}\n"));
    let run = sandbox.umiak(["lint", "job.yaml"]).env("CLICOLOR_FORCE", "1").finish();
    run.expect_code(2).expect_err("\x1b[1m\x1b[31merror[F0010]\x1b[0m: unknown key `␛[44mH");
    assert!(!run.err().contains("\x1b[44m"), "{}", run.err());
}
