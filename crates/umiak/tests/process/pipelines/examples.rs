//! `examples/pipelines`: every document is well-formed, and runs with what it is for.

use std::path::Path;

use umiak_testkit::components::Component::{PaddlePs, Python, Torch};
use umiak_testkit::components::ps_environment;
use umiak_testkit::suite::Suite;

use super::Place;
use crate::frameworks::{example, virtual_environment};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pipelines::examples::every_document_is_fine", &[], every_document_is_fine)
        .test("pipelines::examples::servers", &[Python], || servers(Path::new("python3"), "tiny_ps.py", "1.0"))
        .test("pipelines::examples::servers_of_paddle", &[PaddlePs], || {
            let python = ps_environment().expect("the suite has checked that it is here").join("bin/python");
            servers(&python, "ctr_ps.py", "0.68");
        })
        .test("pipelines::examples::torch", &[Torch], torch);
}

fn every_document_is_fine() {
    let place = Place::default();
    let entries = std::fs::read_dir(example("pipelines")).expect("the examples are there");
    let paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    assert!(paths.len() > 1, "{paths:?}");
    for path in paths {
        place.sandbox.umiak(["lint".as_ref(), path.as_os_str()]).finish().expect_code(0);
    }
}

/// Runs an example twice in the sandbox. The first run's nodes end so, and the second takes the results of these from the
/// first. Frameworks keep caches in the home and temporary directories.
fn run_twice(name: &str, parameters: &[String], ends: &str, cached: &[&str]) -> Place {
    let place = Place::default();
    let document = std::fs::read_to_string(example(&format!("pipelines/{name}.yaml"))).expect("the example is there");
    let flags: Vec<&str> = parameters.iter().flat_map(|parameter| ["-p", parameter.as_str()]).collect();
    let caches = place.sandbox.path().join("caches");
    std::fs::create_dir(&caches).expect("the sandbox can be written");
    for _ in 0..2 {
        let run = place.run(&document, &flags).env("HOME", place.sandbox.path().join("home")).env("TMPDIR", &caches);
        run.finish().expect_code(0);
    }
    place.expect_ends(ends);
    let again = cached
        .iter()
        .fold(ends.to_owned(), |ends, step| ends.replace(&format!(", {step} succeeded"), &format!(", {step} cached")));
    place.expect_ends_of("run-000002", &again);
    let left: Vec<String> =
        place.sandbox.list("caches").into_iter().filter(|name| name.starts_with("umiak-")).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    place
}

fn servers(python: &Path, script: &str, limit: &str) {
    let script = example(script);
    let place = run_twice(
        "servers",
        &[format!("python={}", python.display()), format!("script={script}"), format!("limit={limit}")],
        "succeeded, preprocess succeeded, train succeeded, evaluate succeeded, evaluate.0 succeeded, evaluate.1 succeeded, \
         compare succeeded, accept succeeded, reject skipped: condition, finally succeeded",
        &["preprocess", "train"],
    );
    assert!(place.log("accept").starts_with("accepted, loss 0."), "{}", place.log("accept"));
}

fn torch() {
    let python = virtual_environment().join("bin/python");
    run_twice(
        "pytorch",
        &[format!("python={}", python.display()), format!("script={}", example("torch_ddp.py"))],
        "succeeded, preprocess succeeded, search succeeded, search.0 succeeded, search.1 succeeded, search.0.train succeeded, \
         search.0.evaluate succeeded, search.1.train succeeded, search.1.evaluate succeeded, compare succeeded, \
         accept succeeded",
        &["preprocess", "search.0.train", "search.1.train"],
    );
}
