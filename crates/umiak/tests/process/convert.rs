//! `umiak convert`: the native document plans and does the same.

use std::path::{Path, PathBuf};

use serde_json::Value;
use umiak_testkit::components::Component::Corpus;
use umiak_testkit::components::corpus;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

use crate::pai::find;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("convert::the_corpus_plans_the_same", &[Corpus], the_corpus)
        .test("convert::own_documents_plan_the_same", &[], own_documents)
        .test("convert::the_same_happens", &[], the_same_happens)
        .test("convert::errors_are_those_of_lint", &[], errors)
        .test("convert::native_documents_stay", &[], native);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lines of the plan of a document, with addresses and ports by their order: each plan leases its own.
fn plan(sandbox: &Sandbox, document: &Path, params: &[&str]) -> Vec<String> {
    let document = document.to_str().expect("UTF-8");
    let outcome = sandbox.umiak([&["plan", "--output", "json", document], params].concat()).finish();
    outcome.expect_code(0);
    let mut plan: Value = serde_json::from_str(&outcome.out()).expect("a plan is JSON");
    let mut leased = Vec::new();
    for replica in plan["replicas"].as_array().expect("a list") {
        leased.push(replica["host"].as_str().expect("an address").to_owned());
        let ports = replica["ports"].as_array().into_iter().flatten().filter_map(|named| named[1].as_array()).flatten();
        leased.extend(ports.chain([&replica["endpoint"]["port"]]).map(Value::to_string));
    }
    for group in plan["groups"].as_array().into_iter().flatten() {
        leased.extend(["paddle_store", "torch_store"].map(|store| group[store]["port"].to_string()));
    }
    // Not the job, whose numbers may be equal by chance.
    for part in ["replicas", "groups", "common"] {
        let text = by_order(&plan[part].to_string(), &leased);
        plan[part] = serde_json::from_str(&text).expect("the places of numbers became texts");
    }
    plan.as_object_mut().expect("an object").retain(|key, _| !["document", "params"].contains(&key.as_str()));
    let text = serde_json::to_string_pretty(&plan).expect("it was JSON");
    // A whole address is a secret of the native document; and an empty value may leave a blank at the end.
    let text = text.replace("https://li:********@host/", "********").replace("\\necho \"", "\\necho\"");
    text.lines().map(str::to_owned).collect()
}

/// Replaces words that are leased addresses or ports.
fn by_order(text: &str, leased: &[String]) -> String {
    let mut ordered = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        ordered += &rest[..start];
        rest = &rest[start..];
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        match leased.iter().position(|known| *known == rest[..end]) {
            Some(at) => ordered += &at.to_string(),
            None => ordered += &rest[..end],
        }
        rest = &rest[end..];
    }
    ordered + rest
}

/// Converts a document, and compares the plans. The secrets of the original and of the result are given as parameters.
fn compare(sandbox: &Sandbox, path: &Path, original: &[&str], result: &[&str]) -> String {
    let outcome = sandbox.umiak([Path::new("convert"), path]).finish();
    outcome.expect_code(0);
    assert_eq!(outcome.err(), "", "{}", path.display());
    let native = sandbox.write("native.yaml", outcome.out());
    let (one, other) = (plan(sandbox, path, original), plan(sandbox, &native, result));
    for (one, other) in one.iter().zip(&other) {
        assert_eq!(one, other, "{}\n{}", path.display(), outcome.out());
    }
    assert_eq!(one.len(), other.len(), "{}", path.display());
    let lint = sandbox.umiak([Path::new("lint"), &native]).finish();
    lint.expect_code(0);
    let is_about_queue = |line: &&str| line.starts_with("notice[F0050]");
    assert!(lint.err().lines().filter(|line| line.contains("[F")).all(|line| is_about_queue(&line)), "{}", lint.err());
    outcome.out()
}

fn the_corpus() {
    let root = corpus().expect("the suite has checked that it is here").join("openpai");
    let mut paths = Vec::new();
    find(&root, &mut paths);
    let sandbox = Sandbox::new();
    let mut compared = 0;
    for path in &paths {
        let lint = sandbox.umiak([Path::new("lint"), path]).finish();
        if lint.code() == 0 {
            compare(&sandbox, path, &[], &[]);
            compared += 1;
        } else {
            let refused = sandbox.umiak([Path::new("convert"), path]).finish();
            refused.expect_code(lint.code());
            assert!(refused.out().is_empty() && lint.err().starts_with(&refused.err()), "{}", refused.err());
        }
    }
    assert!(compared > 40, "{compared} of {}", paths.len());
}

fn own_documents() {
    let sandbox = Sandbox::new();
    compare(&sandbox, &root().join("examples/jobs/openpai.yaml"), &[], &[]);
    let secrets = [
        "api_key=Param0-s3cret",
        "mirror=https://li:Mirror0-s3cret@host/",
        "fills=Fills0-s3cret",
        "secret_lr=Other0-s3cret",
        "odd_name=Odd0-s3cret",
        "token=Token0-s3cret",
        "p=Mysql0-s3cret",
        "wandb_api_key=Wandb0-s3cret",
        "access_key=Data0-s3cret",
    ];
    let params: Vec<&str> = secrets.iter().flat_map(|secret| ["-p", secret]).collect();
    let text = compare(&sandbox, &root().join("fixtures/documents/openpai/everything.yaml"), &[], &params);
    assert!(!text.contains("s3cret"), "{text}");
    // A parameter that is given is the new default, and a secret that is given is not written.
    let path = root().join("fixtures/documents/openpai/everything.yaml");
    let words = ["convert", path.to_str().expect("UTF-8"), "-p", "lr=7", "-p", "secrets.token=New0-s3cret"];
    let outcome = sandbox.umiak(words).finish();
    outcome.expect_code(0).expect_out("  lr: 7\n");
    assert!(!outcome.out().contains("s3cret") && outcome.err().is_empty(), "{}", outcome.out());
}

/// Commands, plugins, variables, parameters and secrets of a job that runs.
fn the_same_happens() {
    let sandbox = Sandbox::new();
    let document = "protocolVersion: 2\nname: job\ntype: job\nprerequisites: [{type: dockerimage, name: i, uri: a/b}]\nparameters: {greeting: hello}\nsecrets: {word: Swordfish-42}\ntaskRoles:\n  some_role: {dockerImage: i, resourcePerInstance: {cpu: 1, memoryMB: 64, gpu: 0, ports: {SynPort: 1}}, commands: ['W=<% $secrets.word %>', 'echo <% $parameters.greeting %> ${#W} $PAI_TASK_INDEX $PAI_JOB_NAME {{ ${PAI_somerole_0_SynPort_PORT:+port} }}', 'echo ''quoted''', exit 0]}\nextras: {com.microsoft.pai.runtimeplugin: [{plugin: cmd, parameters: {preCommands: [echo 'pre'], postCommands: [echo post]}}]}\n";
    sandbox.write("pai.yaml", document);
    let converted = sandbox.umiak(["convert", "pai.yaml"]).finish();
    assert!(!converted.out().contains("Swordfish"), "{}", converted.out());
    sandbox.write("native.yaml", converted.out());
    let original = sandbox.umiak(["run", "pai.yaml"]).finish();
    original.expect_code(0).expect_out("hello 12 0 ").expect_out("~job {{ port }}\nquoted\npost\n");
    let result = sandbox.umiak(["run", "native.yaml", "-p", "word=Swordfish-42"]).finish();
    result.expect_code(0);
    assert_eq!(result.out(), original.out());
    let other = sandbox.umiak(["run", "native.yaml", "-p", "word=x", "-p", "greeting=hi"]).finish();
    other.expect_code(0).expect_out("hi 1 0 ");
    sandbox.umiak(["run", "native.yaml"]).finish().expect_code(2).expect_err("parameter `word` has no value");
}

fn errors() {
    let sandbox = Sandbox::new();
    sandbox.write("script.py", "print()\n");
    sandbox.write("twice.yaml", "protocolVersion: 2\nname: a b\ntype: jb\ntaskRols: {}\n");
    sandbox.write("native.yaml", "umiak: v1\nroles: {main: {comand: x}}\n");
    sandbox.write("flow.yaml", "entry_points: {}\n");
    sandbox.write("bad.yaml", "taskRoles: [\n");
    for file in ["script.py", "twice.yaml", "native.yaml", "flow.yaml", "bad.yaml", "absent.yaml"] {
        let (lint, convert) = (sandbox.umiak(["lint", file]).finish(), sandbox.umiak(["convert", file]).finish());
        lint.expect_code(2);
        convert.expect_code(2);
        let told = lint.err();
        assert_eq!(
            convert.err(),
            told.split_once(" errors in ").map_or(told.as_str(), |(told, _)| told.trim_end_matches(char::is_numeric)),
            "{file}"
        );
        assert_eq!(convert.out(), "", "{file}");
    }
}

fn native() {
    let sandbox = Sandbox::new();
    let text = "# Mine.\numiak: v1\nx-env: &env {A: 1}\nroles: {main: {command: 'true', env: *env}} # all\n";
    sandbox.write("job.yaml", text);
    let outcome = sandbox.umiak(["convert", "job.yaml"]).finish();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), text);
    assert_eq!(outcome.err(), "job.yaml is a native document already; it is printed unchanged\n");
}
