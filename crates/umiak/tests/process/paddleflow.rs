//! Pipelines of PaddleFlow.

use std::fmt::Write as _;
use std::path::Path;

use umiak_core::diag::Severity;
use umiak_core::formats::document::decode;
use umiak_core::formats::settings::Settings;
use umiak_core::formats::{Given, check};
use umiak_core::model::{Body, Node, NodeId, Pipeline, Workload};
use umiak_testkit::components::Component::Corpus;
use umiak_testkit::components::corpus;
use umiak_testkit::suite::Suite;

use crate::pai::{find, reason};

pub(crate) fn register(suite: &mut Suite) {
    suite.test("paddleflow::documents_of_the_corpus", &[Corpus], documents_of_the_corpus);
}

/// Every document, with the shape of its pipeline or the reasons of its refusal.
fn documents_of_the_corpus() {
    let root = corpus().expect("the suite has checked that it is here").join("paddleflow");
    let mut paths = Vec::new();
    find(&root, &mut paths);
    paths.sort();
    let settings = Settings::default();
    let given = Given { dir: Path::new("/here"), ..Given::new(&[], &settings) };
    let mut text = String::new();
    for path in paths {
        let name = path.strip_prefix(&root).expect("below the root").display().to_string();
        let source = decode(&name, &std::fs::read(&path).expect("it can be read")).expect("it is a text");
        let checked = check(&source, &given);
        let dialect = checked.dialect.map(|dialect| format!(", {dialect:?}"));
        let _ = writeln!(text, "{name}{}", dialect.unwrap_or_default());
        if let Some(Workload::Pipeline(pipeline)) = &checked.work {
            text += &shape(pipeline);
        }
        for one in &checked.diagnostics {
            let line = reason(one);
            text += &if one.severity == Severity::Error { line } else { line.replacen("refused", "notice", 1) };
        }
    }
    insta::with_settings!({ prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("paddleflow_corpus", text);
    });
}

fn shape(pipeline: &Pipeline) -> String {
    let mut text = format!("  parallelism {}, {:?}\n", pipeline.parallelism, pipeline.on_failure);
    for (id, node) in pipeline.iter().skip(1) {
        let _ = writeln!(text, "  {}", line(pipeline, id, node));
    }
    text
}

fn line(pipeline: &Pipeline, id: NodeId, node: &Node) -> String {
    let mut parts = vec![pipeline.path(id)];
    let mut part = |word: &str, list: Vec<String>| {
        if !list.is_empty() {
            parts.push(format!("{word} {}", list.join(" ")));
        }
    };
    part("after", node.deps.iter().map(|dep| pipeline.path(*dep)).collect());
    part("parameters", node.parameters.iter().map(|one| one.name.clone()).collect());
    part("inputs", node.inputs.iter().map(|one| one.name.clone()).collect());
    part("outputs", node.outputs.iter().map(|one| one.name.clone()).collect());
    part("loop", node.items.iter().map(|_| String::new()).collect());
    part("condition", node.condition.iter().map(|_| String::new()).collect());
    part("disabled", std::iter::repeat_n(String::new(), usize::from(node.disabled)).collect());
    part("post", std::iter::repeat_n(String::new(), usize::from(pipeline.post == Some(id))).collect());
    match &node.body {
        Body::Dag { children } => parts.push(format!("dag of {}", children.len())),
        Body::Step(step) => {
            part("texts", vec![step.texts.len().to_string()]);
            for role in &step.job.roles {
                let work = &role.work;
                let (dir, cpus) = (work.dir.as_deref().unwrap_or(Path::new("-")), work.resources.whole_cpus());
                let gpus = work.resources.gpus;
                let mounts: Vec<String> = work.mounts.iter().map(|mount| mount.path.display().to_string()).collect();
                parts.push(format!(
                    "{} × {} in {}, cpu {cpus}, gpu {gpus}, mounts [{}]",
                    role.name,
                    role.replicas,
                    dir.display(),
                    mounts.join(" ")
                ));
            }
        }
    }
    parts.iter().map(|part| part.trim_end()).collect::<Vec<_>>().join("; ")
}
