//! The documents of `docs/guide/slurm.md`, `docs/guide/mpi.md` and `examples/jobs`, run as they are printed there.

use std::path::{Path, PathBuf};

use umiak_testkit::components::Component::Python;
use umiak_testkit::sandbox::Outcome;
use umiak_testkit::suite::Suite;

use super::{Engine, Site};

pub(super) fn register(suite: &mut Suite) {
    for engine in Engine::USUAL {
        let (title, needs) = (engine.needs().name(), engine.needs());
        suite
            .test(&format!("{title}: the documents of the guide run"), &[needs], move || guide(&Site::new(engine)))
            .test(&format!("{title}: the example runs"), &[needs, Python], move || example(&Site::new(engine)));
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Fenced blocks of a kind.
fn blocks<'a>(text: &'a str, kind: &str) -> Vec<&'a str> {
    let fence = format!("```{kind}\n");
    text.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// A line without the time in front, and without durations and numbers of jobs.
fn neutral(line: &str) -> String {
    let is_time = |word: &str| word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
    let mut words: Vec<&str> = line.split_whitespace().filter(|word| !is_time(word)).collect();
    for at in 1..words.len() {
        if ["ms", "s", "ms,", "s,"].contains(&words[at]) && words[at - 1].parse::<f64>().is_ok() {
            words[at - 1] = "N";
            words[at] = words[at].trim_start_matches('m');
        }
        if words[..at].ends_with(&["Slurm", "job"]) {
            words[at] = "N";
        }
    }
    words.join(" ")
}

/// Runs the first document with the first command line, and the pipeline of Slurm's guide.
fn guide(site: &Site) {
    let path = root().join("docs/guide").join(format!("{}.md", site.engine.word()));
    let guide = std::fs::read_to_string(path).expect("the guide");
    let guide = guide.split("\n## Inside an allocation").next().expect("a part about documents");
    let documents: Vec<&str> = blocks(guide, "yaml");
    let console = blocks(guide, "console");
    let mut lines = console[0].lines();
    let command = lines.next().and_then(|line| line.strip_prefix("$ umiak ")).expect("a command line");
    site.sandbox.write("job.yaml", documents[0]);
    let outcome = site.umiak(command).finish();
    outcome.expect_code(0);
    // A queue that is empty may have no wait to show, and the number of the run depends on those before.
    let is_shown = |line: &String| !line.starts_with("waiting ");
    let expected: Vec<String> =
        lines.map(|line| neutral(line).replace("run-000002", "run-000001")).filter(is_shown).collect();
    let shown = outcome.out() + &outcome.err();
    let mut seen: Vec<String> = shown.lines().map(neutral).filter(is_shown).collect();
    let mut sorted = expected.clone();
    sorted.sort();
    seen.sort();
    assert_eq!(seen, sorted, "{shown}");
    let expected = if site.engine == Engine::Slurm { 2 } else { 1 };
    assert_eq!(documents.len(), expected, "documents of the guide");
    for document in &documents[1..] {
        site.sandbox.write("steps.yaml", document);
        site.umiak("run steps.yaml").finish().expect_code(0);
        let log = |path: &str| site.sandbox.read(&format!("state/runs/run-000002/tasks/{path}/attempt-1/log"));
        assert_eq!((log("train/trainer-0"), log("evaluate/main-0")), ("7 on n1\n".into(), "evaluated\n".into()));
    }
    let others: Vec<&str> = console[1..].iter().flat_map(|text| text.lines()).collect();
    for line in others.iter().filter_map(|line| line.strip_prefix("$ umiak ")) {
        // Only planned: it asks for hours.
        site.sandbox.write("job.yaml", documents[0]);
        let line = line.replacen("run ", "plan ", 1);
        site.umiak(&line).finish().expect_code(0).expect_out("#SBATCH --time=04:00:00");
    }
    site.assert_nothing_left();
}

/// `examples/jobs/on-slurm.yaml`, as the guides name it.
fn example(site: &Site) {
    let document = "examples/jobs/on-slurm.yaml";
    let guide = std::fs::read_to_string(root().join("docs/guide").join(format!("{}.md", site.engine.word())));
    assert!(guide.expect("the guide").contains(document), "the guide does not mention the example");
    let flags =
        if site.engine == Engine::Slurm { site.two_nodes() } else { format!("--engine mpi {}", site.two_nodes()) };
    let outcome: Outcome = site.umiak(&format!("run {document} -p trainers=3 {flags}")).current_dir(root()).finish();
    outcome.expect_code(0).expect_err(&format!("engine {}", site.engine.word()));
    for trainer in 0..3 {
        assert_eq!(site.log(&format!("trainer-{trainer}"), 1), format!("trainer {trainer} reached all servers\n"));
    }
    site.assert_nothing_left();
}
