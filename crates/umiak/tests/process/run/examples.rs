//! `examples/jobs`: every document is well-formed, and those that need no framework run.

use std::path::{Path, PathBuf};

use umiak_testkit::components::Component::Python;
use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run::examples::every_document_is_fine", &[], every_document_is_fine)
        .test("run::examples::ring", &[Python], || {
            says(&run("ring", &[]), "identical on all 3 ranks");
        })
        .test("run::examples::server_and_workers", &[Python], || {
            says(&run("server-and-workers", &[]), "worker 0: 200, ");
        })
        .test("run::examples::one_after_the_other", &[], one_after_the_other)
        .test("run::examples::tries_again", &[], || {
            let outcome = run("tries-again", &[]);
            says(&outcome, "worker 0, attempt 1");
            outcome.expect_err("worker-1 restarts in ");
            assert_eq!(outcome.err().matches("✗ worker-1").count(), 2, "{}", outcome.err());
        });
}

/// Includes the documents that `nested.rs` runs.
fn every_document_is_fine() {
    let sandbox = Sandbox::new();
    let mut words = vec![PathBuf::from("lint")];
    let entries = std::fs::read_dir(root().join("examples/jobs")).expect("the examples are there");
    words.extend(entries.flatten().map(|entry| entry.path()));
    assert!(words.len() > 5, "{words:?}");
    sandbox.umiak(&words).finish().expect_code(0);
}

fn one_after_the_other() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dir = work.path().join("work");
    run("one-after-the-other", &["-p", &format!("dir={}", dir.display())]).expect_code(0);
    let part = |index: u32| std::fs::read_to_string(dir.join(format!("part-{index}"))).expect("it was made");
    assert_eq!((part(0), part(1)), ("2550\n".to_owned(), "2500\n".to_owned()));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a document from the root of the repository.
fn run(name: &str, more: &[&str]) -> Outcome {
    let sandbox = Sandbox::new();
    let document = format!("examples/jobs/{name}.yaml");
    let words = [&["run", document.as_str()], more].concat();
    sandbox.umiak(words).current_dir(root()).finish()
}

fn says(outcome: &Outcome, text: &str) {
    outcome.expect_code(0);
    assert!(outcome.out().contains(text), "stdout lacks {text:?}:\n{}", outcome.out());
}
