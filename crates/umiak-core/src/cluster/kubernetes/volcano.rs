//! A Volcano Job: a task for each role.

use serde_json::{Map, Value, json};

use super::Render;
use super::check::priority;
use super::pod::whole_seconds;
use crate::model::{Job, MinSucceeded, Role, Success};

pub(super) fn object(render: &Render<'_>, templates: &[(usize, Value)]) -> Value {
    let job = &render.plan.job;
    let mut object = render.object("batch.volcano.sh/v1alpha1", "Job", render.names.stem(), None);
    let mut spec = Map::new();
    let mut set = |key: &str, value: Value| drop(spec.insert(key.to_owned(), value));
    set("schedulerName", json!("volcano"));
    set("minAvailable", json!(job.roles.iter().map(|role| role.replicas).sum::<u32>()));
    if let Some(queue) = render.queue() {
        set("queue", json!(queue));
    }
    if let Some(class) = job.roles.iter().find_map(|role| priority(role, render.options)) {
        set("priorityClassName", json!(class));
    }
    set("maxRetry", json!(max_retry(job)));
    if let [(only, _)] = templates
        && let MinSucceeded::Count(count) = job.roles[*only].completion.min_succeeded
    {
        set("minSuccess", json!(count));
    }
    // Flags that older versions do not know are last: those before them have an effect.
    let service = ["--publish-not-ready-addresses=true", "--disable-network-policy=true", "--inject-hosts-env=false"];
    set("plugins", json!({"env": [], "svc": service}));
    let task = |(position, template): &(usize, Value)| {
        let role = &job.roles[*position];
        let mut task = json!({
            "name": render.names.role(*position),
            "replicas": role.replicas,
            "minAvailable": role.replicas,
        });
        let policies = policies(job, role);
        if !policies.is_empty() {
            task["policies"] = Value::Array(policies);
        }
        task["template"] = template.clone();
        task
    };
    set("tasks", templates.iter().map(task).collect());
    object.insert("spec".to_owned(), Value::Object(spec));
    Value::Object(object)
}

/// Volcano counts starts; 0 would be 3 of them.
fn max_retry(job: &Job) -> u32 {
    let restart = &job.policy.restart;
    let restarts = match restart.max {
        _ if job.policy.exits.is_some() => 0,
        0 => restart.max_platform,
        max => max,
    };
    restarts.saturating_add(1).min(i32::MAX as u32)
}

/// What the cluster does about the ends of pods. What is not here the supervisor decides.
fn policies(job: &Job, role: &Role) -> Vec<Value> {
    let mut policies = Vec::new();
    let restart = &job.policy.restart;
    if job.policy.exits.is_none() && role.completion.min_failed == 1 {
        match (restart.max, restart.max_platform) {
            (0, 0) => policies.push(json!({"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"})),
            (0, _) => {
                policies.push(json!({"event": "PodEvicted", "action": "RestartJob"}));
                policies.push(json!({"event": "PodFailed", "action": "TerminateJob"}));
            }
            _ => policies.push(json!({"events": ["PodFailed", "PodEvicted"], "action": "RestartJob"})),
        }
    }
    let deciding = job.roles.iter().filter(|role| role.completion.decides && role.replicas > 0).count();
    let is_last = match job.policy.success {
        Success::All => deciding == 1,
        Success::First => true,
        Success::End => false,
    };
    let has_others = job.roles.iter().filter(|role| role.replicas > 0).count() > 1;
    if is_last && has_others && role.completion.decides && role.completion.min_succeeded == MinSucceeded::All {
        let mut policy = json!({"event": "TaskCompleted", "action": "CompleteJob"});
        if let Some(linger) = job.policy.linger.filter(|linger| !linger.is_zero()) {
            policy["timeout"] = json!(format!("{}s", whole_seconds(linger)));
        }
        policies.push(policy);
    }
    policies
}
