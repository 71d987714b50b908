//! `TF_CONFIG`, as the operator of Kubernetes sets it for the pods of a TFJob.

use serde_json::{Map, json};

use super::{Member, Variable, View};
use crate::model::Part;

/// The parts that TensorFlow knows, with its names for them.
const TASKS: [(Part, &str); 3] = [(Part::Leader, "chief"), (Part::Server, "ps"), (Part::Trainer, "worker")];

pub fn variables(view: &View<'_>, member: &Member) -> Vec<Variable> {
    let present = TASKS.into_iter().filter(|(part, _)| view.group.count(*part) > 0);
    let endpoints = |part: Part| view.group.endpoints(part).split(',').collect::<Vec<_>>();
    let cluster: Map<_, _> = present.map(|(part, name)| (name.to_owned(), json!(endpoints(part)))).collect();
    let name = TASKS.iter().find(|(part, _)| *part == member.part).map_or("worker", |(_, name)| name);
    let task = json!({"type": name, "index": member.index});
    let config = json!({"cluster": cluster, "task": task, "environment": "cloud"});
    vec![("TF_CONFIG".to_owned(), config.to_string())]
}
