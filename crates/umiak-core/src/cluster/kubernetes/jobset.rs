//! A JobSet: an Indexed Job for each role.

use serde_json::{Map, Value, json};

use super::Render;
use super::jobs::{QUEUE, spec};
use crate::model::Success;

pub(super) fn object(render: &Render<'_>, templates: &[(usize, Value)]) -> Value {
    let job = &render.plan.job;
    let mut object = render.object("jobset.x-k8s.io/v1alpha2", "JobSet", render.names.stem(), None);
    if let Some(queue) = render.queue() {
        object["metadata"]["labels"][QUEUE] = json!(queue);
    }
    let mut set = Map::new();
    set.insert(
        "network".to_owned(),
        json!({"enableDNSHostnames": true, "subdomain": render.names.stem(), "publishNotReadyAddresses": true}),
    );
    let deciding: Vec<&str> = templates
        .iter()
        .filter(|(position, _)| job.roles[*position].completion.decides)
        .map(|(position, _)| render.names.role(*position))
        .collect();
    let is_all = job.policy.success == Success::All;
    if !deciding.is_empty() && (deciding.len() < templates.len() || !is_all) {
        let operator = if is_all { "All" } else { "Any" };
        set.insert("successPolicy".to_owned(), json!({"operator": operator, "targetReplicatedJobs": deciding}));
    }
    if job.policy.exits.is_none() && job.policy.restart.max > 0 {
        let restarts = job.policy.restart.max.min(i32::MAX as u32);
        set.insert("failurePolicy".to_owned(), json!({"maxRestarts": restarts}));
    }
    let replicated = |(position, template): &(usize, Value)| {
        let mut job = render.metadata(Some(*position));
        job = Map::from_iter([("metadata".to_owned(), Value::Object(job))]);
        job.insert("spec".to_owned(), spec(&render.plan.job.roles[*position], 0, template));
        json!({"name": render.names.role(*position), "replicas": 1, "template": job})
    };
    set.insert("replicatedJobs".to_owned(), templates.iter().map(replicated).collect());
    object.insert("spec".to_owned(), Value::Object(set));
    Value::Object(object)
}
