//! `umiak lint`: valid, invalid and missing files, standard input, JSON, and `umiak.toml` beside the document.

use std::fs::File;

use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite.test("lint::one_line_for_each_good_file", &[], good);
    suite.test("lint::all_errors_of_all_files", &[], bad);
    suite.test("lint::what_is_no_document", &[], no_document);
    suite.test("lint::umiak_toml_beside_the_document", &[], settings);
    suite.test("lint::parameters_that_must_be_given", &[], parameters);
    suite.test("lint::anchors_and_variables", &[], anchors);
}

const GOOD: &str = "umiak: v1\nroles: {main: {command: \"true\", replicas: 2}}\n";

fn good() {
    let sandbox = Sandbox::new();
    let path = sandbox.write("a.yaml", GOOD);
    sandbox.write("b.yaml", "umiak: v1\nparams: {n: }\nroles: {main: {command: \"echo {{ n }}\"}}\n");
    let run = sandbox.umiak(["lint", "a.yaml", "b.yaml", "-p", "n=1"]).finish();
    run.expect_code(2).expect_err("`a.yaml` has no parameter `n`");
    assert_eq!(run.out(), "b.yaml: ok, 1 role, 1 replica\n");
    let run = sandbox.umiak(["lint", "a.yaml", "-"]).stdin(File::open(path).unwrap()).finish();
    run.expect_code(0);
    assert_eq!(run.out(), "a.yaml: ok, 1 role, 2 replicas\n<stdin>: ok, 1 role, 2 replicas\n");
    assert_eq!(run.err(), "");
}

fn bad() {
    let sandbox = Sandbox::new();
    sandbox.write("a.yaml", "umiak: v1\nroles: {main: {comand: \"true\", replicas: 0}}\n");
    sandbox.write("b.yaml", GOOD);
    let run = sandbox.umiak(["lint", "a.yaml", "b.yaml"]).finish();
    run.expect_code(2)
        .expect_err("a.yaml:2:16")
        .expect_err("did you mean `command`?")
        .expect_err("a.yaml:2:42")
        .expect_err("2 errors in 1 of 2 files");
    assert_eq!(run.out(), "b.yaml: ok, 1 role, 2 replicas\n");
    let run = sandbox.umiak(["lint", "--output", "json", "a.yaml", "b.yaml"]).finish();
    run.expect_code(2);
    let report: serde_json::Value = serde_json::from_str(&run.out()).unwrap();
    assert_eq!(report["files"][0]["diagnostics"][0]["labels"][0]["column"], 16);
    assert_eq!(report["files"][1]["ok"], true);
    let run = sandbox.umiak(["lint", "--output", "quiet", "a.yaml"]).finish();
    run.expect_code(2);
    assert_eq!((run.out(), run.err()), (String::new(), String::new()));
}

fn no_document() {
    let sandbox = Sandbox::new();
    sandbox.write("binary", b"\x7fELF\0");
    sandbox.write("latin", b"umiak: v1\nname: \xe9\n");
    let run = sandbox.umiak(["lint", "absent.yaml", ".", "binary", "latin", "/dev/zero"]).finish();
    run.expect_code(2)
        .expect_err("error[F0001]: there is no file `absent.yaml`\n")
        .expect_err("error[F0001]: `.` is a directory\n")
        .expect_err("error[F0001]: `binary` is not a text file\n")
        .expect_err("error[F0001]: `latin` is not UTF-8\n")
        .expect_err("error[F0001]: `/dev/zero` is not a text file\n");
}

fn parameters() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "a.yaml",
        "umiak: v1\nparams: {n: }\nroles: {main: {command: \"echo {{ n }}\", replicas: \"{{ n }}\"}}\n",
    );
    let run = sandbox.umiak(["lint", "a.yaml"]).finish();
    run.expect_code(0);
    assert_eq!((run.out(), run.err()), ("a.yaml: ok, requires `-p n=…`\n".to_owned(), String::new()));
    let run = sandbox.umiak(["lint", "--output", "json", "a.yaml"]).finish();
    let report: serde_json::Value = serde_json::from_str(&run.out()).unwrap();
    assert_eq!((&report["files"][0]["ok"], &report["files"][0]["needed"][0]), (&true.into(), &"n".into()));
    let run = sandbox.umiak(["run", "a.yaml"]).finish();
    run.expect_code(2).expect_err("error[F0034]: parameter `n` has no value").expect_err("hint: set it with `-p n=…`");
    sandbox.umiak(["run", "a.yaml", "-p", "n=2"]).finish().expect_code(0);
}

fn anchors() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "a.yaml",
        "umiak: v1\nx-env: &env {OUT: $HOME/out}\nroles: {main: {command: 'echo \"$OUT\"', env: *env}}\n",
    );
    let run = sandbox.umiak(["lint", "a.yaml"]).finish();
    run.expect_code(0)
        .expect_err("notice[F0052]: `$HOME` in `env` is not expanded")
        .expect_err("hint: expand it in `command`, which a shell runs if it is a string");
    let run = sandbox.umiak(["run", "a.yaml"]).finish();
    run.expect_code(0);
    assert_eq!(run.out(), "$HOME/out\n");
}

fn settings() {
    let sandbox = Sandbox::new();
    sandbox.write("a.yaml", "umiak: v1\nroles: {main: {command: \"true\", flavour: large}}\n");
    sandbox.umiak(["lint", "a.yaml"]).finish().expect_code(2).expect_err("unknown flavour `large`");
    sandbox.write("umiak.toml", "[flavour.large]\ncpu = 8\n");
    sandbox.umiak(["lint", "a.yaml"]).finish().expect_code(0);
    sandbox.write("umiak.toml", "[flavour.large]\ncpus = 8\n");
    sandbox.umiak(["lint", "a.yaml", "a.yaml"]).finish().expect_code(2).expect_err("umiak.toml:2:1");
}
