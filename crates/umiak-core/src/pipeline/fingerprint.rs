//! Fingerprints of steps: equal ones have the same result.
//!
//! The first covers what the step does, the second the contents that it reads. Two runs of one document have equal first
//! fingerprints unless the document uses values of the run, such as `PF_RUN_ID` in a command. Under
//! [`CachePolicy::Aggressive`] there is no second, so the first covers the paths of the inputs: they differ as soon as a
//! step before it has run again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::scope::{ARTIFACTS, Fill, Scope, View, root};
use super::{Tree, text};
use crate::model::{Contract, Part, Pipeline, StepIndex, Store, SystemParameter, Work};

/// Changes with everything that changes fingerprints: old results are then not found.
const VERSION: u32 = 1;

/// What must be equal for a result to be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CachePolicy {
    /// What the step does, and the contents that it reads.
    #[default]
    Conservative,
    /// What the step does, and the paths of its inputs.
    Aggressive,
}

/// What the first fingerprint covers. Policies, queues and priorities are left out: they do not change results.
#[derive(Serialize)]
struct First<'a> {
    version: u32,
    policy: CachePolicy,
    pipeline: &'a str,
    step: String,
    contracts: &'a [Contract],
    roles: Vec<(&'a str, Option<Part>, u32, Work)>,
    item: Option<String>,
    parameters: BTreeMap<String, String>,
    inputs: BTreeMap<String, Vec<String>>,
    outputs: BTreeSet<&'a str>,
    store: Option<&'a Store>,
}

/// A file or directory whose content the second fingerprint covers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Content {
    /// What it is to the step.
    pub label: String,
    pub path: PathBuf,
}

/// The first fingerprint of a resolved step.
pub fn first(
    scope: &Scope,
    pipeline: &Pipeline,
    tree: &dyn Tree,
    id: StepIndex,
    policy: CachePolicy,
) -> Result<String, String> {
    let view = View { scope, pipeline, tree };
    let node = view.node(id);
    let is_conservative = policy == CachePolicy::Conservative;
    let job = view.filled(id, Fill::Keep { inputs: is_conservative })?;
    let values = scope.values(pipeline, tree, id)?;
    let store = pipeline.store.as_ref();
    let identity = |path: String| if is_conservative { without_run(store, path) } else { path };
    let inputs = values.inputs.into_iter().map(|(name, paths)| (name, paths.into_iter().map(identity).collect()));
    let roles = job.roles.iter().map(|role| {
        let mut work = Work { queue: None, priority: None, ..role.work.clone() };
        work.env.retain(|(name, _)| SystemParameter::ALL.into_iter().all(|parameter| parameter.name() != name));
        work.env.sort();
        (role.name.as_str(), role.part, role.replicas, work)
    });
    let first = First {
        version: VERSION,
        policy,
        pipeline: pipeline.name.as_str(),
        step: pipeline.path(tree.node(id)),
        contracts: &job.contracts,
        roles: roles.collect(),
        item: values.item.as_ref().map(text::print),
        parameters: values.parameters.iter().map(|(name, value)| (name.clone(), text::print(value))).collect(),
        inputs: inputs.collect(),
        outputs: node.outputs.iter().map(|output| output.name.as_str()).collect(),
        store,
    };
    let bytes = serde_json::to_vec(&first).map_err(|error| format!("the step has no fingerprint: {error}"))?;
    Ok(hexadecimal(&Sha256::digest(bytes)))
}

/// The path of an artifact without the run that made it.
fn without_run(store: Option<&Store>, path: String) -> String {
    let below = store.and_then(|store| Path::new(&path).strip_prefix(root(store).join(ARTIFACTS)).ok());
    let rest = below.and_then(|below| {
        let mut parts = below.components();
        matches!(parts.next(), Some(Component::Normal(_))).then(|| parts.as_path().to_string_lossy().into_owned())
    });
    rest.unwrap_or(path)
}

/// The files and directories whose contents the second fingerprint of a resolved step covers.
pub fn contents(scope: &Scope, pipeline: &Pipeline, tree: &dyn Tree, id: StepIndex) -> Result<Vec<Content>, String> {
    let view = View { scope, pipeline, tree };
    let mut contents = Vec::new();
    for input in &view.node(id).inputs {
        for (position, path) in view.input(id, &input.name)?.into_iter().enumerate() {
            contents.push(Content { label: format!("input {} {position}", input.name), path: path.into() });
        }
    }
    let scope = view.step(id)?.cache.iter().flat_map(|cache| &cache.scope);
    contents.extend(scope.map(|path| Content { label: format!("scope {}", path.display()), path: path.clone() }));
    Ok(contents)
}

/// The directory of the artifacts of all runs. It changes with every run, so it counts in no content that contains it.
pub fn artifacts(pipeline: &Pipeline) -> Option<PathBuf> {
    pipeline.store.as_ref().map(|store| root(store).join(ARTIFACTS))
}

/// The second fingerprint: the digests of these contents.
pub fn second(digests: &[(Content, String)]) -> String {
    let digests: BTreeSet<(&str, &str)> =
        digests.iter().map(|(content, digest)| (content.label.as_str(), digest.as_str())).collect();
    let bytes = serde_json::to_vec(&(VERSION, digests)).expect("texts are JSON");
    hexadecimal(&Sha256::digest(bytes))
}

/// A digest as text.
pub fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a String takes text");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{
        Instances, ROOT, add, constant, given, input, line, output, pipeline, resolve, step, step_of, unroll,
    };
    use super::*;
    use crate::model::{Cache, Items, JobId, Mount, NodeId, Store, Value};

    type Change = fn(&mut Pipeline);

    const MAKE: NodeId = NodeId(1);
    const TAKE: NodeId = NodeId(2);

    /// `make` writes what `take` reads.
    fn document() -> Pipeline {
        let mut pipeline = pipeline("p");
        add(&mut pipeline, Pipeline::ROOT, "make", step(line("make $>x")), |node| node.outputs = vec![output("x")]);
        add(&mut pipeline, Pipeline::ROOT, "take", step(line("take $n $<x ; $>y")), |node| {
            node.parameters = vec![constant("n", Value::Int(1))];
            node.inputs = vec![input("x", "1:x")];
            node.outputs = vec![output("y")];
        });
        step_of(&mut pipeline, TAKE).job.roles[0].work.env =
            vec![("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())];
        pipeline
    }

    /// The fingerprint of `take` in a run; `made` is the run whose result of `make` is used.
    fn take(pipeline: &Pipeline, run: &str, made: Option<&str>, policy: CachePolicy) -> String {
        let mut scope = Scope::new(run, "ann");
        let mut tree = Instances::new();
        let make = tree.add(ROOT, MAKE, None);
        let id = tree.add(ROOT, TAKE, None);
        if let Some(other) = made {
            let outputs = Scope::new(other, "ann").values(pipeline, &tree, make).unwrap().outputs;
            scope.reuse(make, outputs);
        }
        resolve(&mut scope, pipeline, &tree, id).unwrap();
        first(&scope, pipeline, &tree, id, policy).unwrap()
    }

    fn conservative(pipeline: &Pipeline) -> String {
        take(pipeline, "run-000001", None, CachePolicy::Conservative)
    }

    #[test]
    fn two_runs_of_a_document_have_one_fingerprint() {
        let document = document();
        let of = |run, made| take(&document, run, made, CachePolicy::Conservative);
        let expected = of("run-000001", None);
        assert_eq!(expected.len(), 64);
        assert_eq!(of("run-000002", None), expected);
        assert_eq!(of("run-000002", Some("run-000001")), expected);
        // Without contents, the paths of inputs count.
        let of = |run, made| take(&document, run, made, CachePolicy::Aggressive);
        assert_ne!(of("run-000001", None), expected);
        assert_ne!(of("run-000001", None), of("run-000002", None));
        assert_eq!(of("run-000001", None), of("run-000002", Some("run-000001")));
    }

    #[test]
    fn a_step_that_uses_the_run_differs() {
        let mut document = document();
        document.nodes[TAKE.0 as usize].parameters = vec![given("n", "$run")];
        let of = |run| take(&document, run, None, CachePolicy::Conservative);
        assert_ne!(of("run-000001"), of("run-000002"));
    }

    #[test]
    fn what_changes_the_result_changes_the_fingerprint() {
        let expected = conservative(&document());
        let changes: [(&str, Change); 15] = [
            ("command", |p| step_of(p, TAKE).job.roles[0].work.command[1] = "-ec".to_owned()),
            ("text", |p| step_of(p, TAKE).texts[0].1 = line("take $n $<x ;")),
            ("variable", |p| step_of(p, TAKE).job.roles[0].work.env[0].1 = "2".to_owned()),
            ("image", |p| step_of(p, TAKE).job.roles[0].work.image = Some("x".to_owned())),
            ("memory", |p| step_of(p, TAKE).job.roles[0].work.resources.memory_bytes = Some(1)),
            ("replicas", |p| step_of(p, TAKE).job.roles[0].replicas = 2),
            ("contracts", |p| step_of(p, TAKE).job.contracts = vec![Contract::Paddle]),
            ("parameter", |p| p.nodes[TAKE.0 as usize].parameters = vec![constant("n", Value::Int(2))]),
            ("unused parameter", |p| p.nodes[TAKE.0 as usize].parameters.push(constant("m", Value::Int(2)))),
            ("output", |p| p.nodes[TAKE.0 as usize].outputs.push(output("z"))),
            ("name", |p| p.nodes[TAKE.0 as usize].name = "other".to_owned()),
            ("part", |p| step_of(p, TAKE).job.roles[0].part = Some(Part::Server)),
            ("pipeline", |p| p.name = JobId::new("q").unwrap()),
            ("mount", |p| {
                let mount = Mount { name: "d".to_owned(), dir: "/d".into(), path: "/e".into(), read_only: true };
                step_of(p, TAKE).job.roles[0].work.mounts = vec![mount];
            }),
            ("store", |p| {
                p.store = Some(Store { name: "q".to_owned(), dir: "/q".into(), sub_path: None, mount_path: None });
            }),
        ];
        for (what, change) in changes {
            let mut changed = document();
            change(&mut changed);
            assert_ne!(conservative(&changed), expected, "{what}");
        }
        let changes: [(&str, Change); 5] = [
            ("queue", |p| step_of(p, TAKE).job.roles[0].work.queue = Some("fast".to_owned())),
            ("priority", |p| step_of(p, TAKE).job.roles[0].work.priority = Some("high".to_owned())),
            ("retries", |p| step_of(p, TAKE).job.policy.restart.max = 3),
            ("order of variables", |p| step_of(p, TAKE).job.roles[0].work.env.reverse()),
            ("system parameter", |p| {
                step_of(p, TAKE).job.roles[0].work.env.push(("PF_RUN_ID".to_owned(), "x".to_owned()));
            }),
        ];
        for (what, change) in changes {
            let mut changed = document();
            change(&mut changed);
            assert_eq!(conservative(&changed), expected, "{what}");
        }
    }

    /// Also if only `$PF_LOOP_ARGUMENT` in the environment tells them apart.
    #[test]
    fn items_of_a_loop_differ() {
        let mut pipeline = pipeline("p");
        let node = add(&mut pipeline, Pipeline::ROOT, "each", step(line("same")), |node| {
            node.items = Some(Items::List(vec![Value::Int(1), Value::Int(2)]));
        });
        let (mut scope, mut tree) = (Scope::new("run-000001", "ann"), Instances::new());
        let ids = unroll(&mut scope, &pipeline, &mut tree, ROOT, node);
        let of = |id| first(&scope, &pipeline, &tree, id, CachePolicy::Conservative).unwrap();
        assert_ne!(of(ids[0]), of(ids[1]));
    }

    #[test]
    fn contents_are_the_inputs_and_the_scope() {
        let mut document = document();
        step_of(&mut document, TAKE).cache = Some(Cache { max_age: None, scope: vec!["/code".into()] });
        let mut tree = Instances::new();
        tree.add(ROOT, MAKE, None);
        let id = tree.add(ROOT, TAKE, None);
        let scope = Scope::new("run-000001", "ann");
        let contents = contents(&scope, &document, &tree, id).unwrap();
        let labels: Vec<_> = contents.iter().map(|content| content.label.as_str()).collect();
        assert_eq!(labels, ["input x 0", "scope /code"]);
        assert!(contents[0].path.starts_with("/ppl/.pipeline/run-000001/p") && contents[0].path.ends_with("x"));
        assert_eq!(artifacts(&document).unwrap(), PathBuf::from("/ppl/.pipeline"));

        let with = |digests: [&str; 2]| contents.iter().cloned().zip(digests.map(str::to_owned)).collect::<Vec<_>>();
        let expected = second(&with(["a", "b"]));
        assert_eq!(second(&with(["a", "b"]).into_iter().rev().collect::<Vec<_>>()), expected);
        assert_ne!(second(&with(["b", "a"])), expected);
        assert_ne!(second(&with(["a", "b"])[..1]), expected);
    }
}
