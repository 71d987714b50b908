//! Jobs for Kubernetes without a cluster: objects against the schemas of their kinds, and the script of a pod in real shells.

mod schemas;
mod shells;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use umiak_core::cluster::kubernetes::{Names, Shipped, Unit, planned, render};
use umiak_core::diag::{Diagnostic, Source};
use umiak_core::formats::settings::Settings;
use umiak_core::formats::{Given, parse};
use umiak_core::mask::Known;
use umiak_core::model::{ClusterOptions, Job, KubernetesOptions, Workload};
use umiak_core::plan::document::{Chosen, RunPlace, SUBMISSION_VERSION, Submission};
use umiak_core::plan::{Plan, Wishes};

/// A job as it would be given to a cluster.
struct Rendered {
    plan: Plan,
    names: Names,
    objects: Vec<Value>,
}

fn rendered(job: &Job, options: &KubernetesOptions, known: &Known, files: &[Shipped]) -> Result<Rendered, Diagnostic> {
    let submission = Submission {
        v: SUBMISSION_VERSION,
        work: Workload::Job(Box::new(job.clone())),
        params: Vec::new(),
        chosen: Chosen::default(),
        repeats: None,
        engine: "kubernetes".into(),
        wishes: Wishes::default(),
        cluster: ClusterOptions { kubernetes: options.clone(), ..ClusterOptions::default() },
        known: known.clone(),
        directory: "/home/li".into(),
        document: "/home/li/job.yaml".into(),
        environment: BTreeMap::new(),
        programs: Vec::new(),
    };
    let run = RunPlace {
        run: "run-000001".into(),
        step: None,
        user: "li".into(),
        cpus: 8,
        tasks: PathBuf::new(),
        scratch: PathBuf::new(),
        attached: false,
    };
    let programs: Vec<PathBuf> = job.roles.iter().map(|role| role.work.command[0].clone().into()).collect();
    let (plan, names) = planned(&submission, job, &programs, run, "li@here")?;
    let objects = render(&plan, &names, &Unit { attempt: 1, files, known })?;
    Ok(Rendered { plan, names, objects })
}

/// The job of a document without errors.
fn job(text: &str) -> (Job, Known) {
    let document = parse(&Source::new("job.yaml", text.to_owned()), &Given::new(&[], &Settings::default()));
    let document = document.unwrap_or_else(|errors| {
        panic!("{}", errors.iter().map(Diagnostic::to_plain).collect::<String>());
    });
    (document.job().expect("one job").clone(), document.secrets)
}

/// The pod templates of objects, by the label of their role.
fn templates(objects: &[Value]) -> BTreeMap<String, Value> {
    let lists = ["/spec/tasks", "/spec/replicatedJobs"];
    let in_lists = objects.iter().flat_map(|object| lists.iter().filter_map(|list| object.pointer(list)?.as_array()));
    let of_item = |item: &Value| item.pointer("/template/spec/template").or(item.get("template")).cloned();
    let alone = objects.iter().filter(|object| object["apiVersion"] == "batch/v1");
    let alone = alone.filter_map(|object| object.pointer("/spec/template").cloned());
    let all = in_lists.flatten().filter_map(of_item).chain(alone);
    all.map(|template| {
        (template["metadata"]["labels"]["umiak.dev/role"].as_str().unwrap_or_default().to_owned(), template)
    })
    .collect()
}
