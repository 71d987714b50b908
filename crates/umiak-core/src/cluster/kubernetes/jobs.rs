//! An Indexed Job for each role, and the Service that gives their pods addresses.

use serde_json::{Map, Value, json};

use super::{Render, UNIT};
use crate::model::{MinSucceeded, Role};

/// The label that gives an object to a queue of Kueue.
pub(super) const QUEUE: &str = "kueue.x-k8s.io/queue-name";

pub(super) fn objects(render: &Render<'_>, templates: &[(usize, Value)]) -> Vec<Value> {
    let (job, names) = (&render.plan.job, render.names);
    let mut service = render.object("v1", "Service", names.stem(), None);
    let selector = json!({UNIT: names.stem()});
    service.insert(
        "spec".to_owned(),
        json!({"clusterIP": "None", "publishNotReadyAddresses": true, "selector": selector}),
    );
    let is_alone = job.roles.iter().map(|role| role.replicas).sum::<u32>() == 1 && job.policy.exits.is_none();
    let restarts = if is_alone { job.policy.restart.max } else { 0 };
    let of_role = |(position, template): &(usize, Value)| {
        let mut object = render.object("batch/v1", "Job", &names.job(*position), Some(*position));
        if let Some(queue) = render.queue() {
            object["metadata"]["labels"][QUEUE] = json!(queue);
        }
        object.insert("spec".to_owned(), spec(&job.roles[*position], restarts, template));
        Value::Object(object)
    };
    [Value::Object(service)].into_iter().chain(templates.iter().map(of_role)).collect()
}

/// The spec of a role's Job, whose pods are numbered and never restarted in place.
pub(super) fn spec(role: &Role, restarts: u32, template: &Value) -> Value {
    let mut spec = Map::new();
    let mut set = |key: &str, value: Value| drop(spec.insert(key.to_owned(), value));
    set("completionMode", json!("Indexed"));
    set("completions", json!(role.replicas));
    set("parallelism", json!(role.replicas));
    match role.completion.min_failed {
        1 => set("backoffLimit", json!(restarts.min(i32::MAX as u32))),
        // The others go on.
        enough => {
            set("backoffLimitPerIndex", json!(0));
            if let Some(fewer) = enough.checked_sub(1) {
                set("maxFailedIndexes", json!(fewer.min(role.replicas)));
            }
        }
    }
    if let MinSucceeded::Count(count) = role.completion.min_succeeded {
        set("successPolicy", json!({"rules": [{"succeededCount": count}]}));
    }
    set("template", template.clone());
    Value::Object(spec)
}
