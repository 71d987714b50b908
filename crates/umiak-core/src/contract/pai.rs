//! The variables of OpenPAI's runtime. Counts and policies are by the names of task roles as written, addresses and
//! ports by their internal names too: lower-case letters and digits only, which OpenPAI alone uses there.

use super::{RolePlaces, Variable, View};
use crate::model::{FIRST_ATTEMPT, MinSucceeded, Role, pai_name};

/// The port label of which lists of hosts have the port.
const HTTP: &str = "http";

pub fn variables(view: &View<'_>) -> Vec<Variable> {
    let mut variables = of_job(view);
    for (role, places) in view.job.roles.iter().zip(view.roles) {
        variables.extend(policies(role));
        variables.extend(addresses(places));
    }
    variables.extend(own(view));
    variables
}

fn named(list: Vec<(&str, String)>) -> impl Iterator<Item = Variable> {
    list.into_iter().map(|(name, value)| (name.to_owned(), value))
}

fn of_job(view: &View<'_>) -> Vec<Variable> {
    let (roles, options) = (&view.job.roles, view.options);
    let job = format!("{}~{}", options.user, view.job.name);
    let names: Vec<&str> = roles.iter().map(|role| role.name.as_str()).collect();
    let (names, count) = (names.join(","), roles.len().to_string());
    let tasks: u32 = roles.iter().map(|role| role.replicas).sum();
    let cluster = roles.iter().find_map(|role| role.work.queue.clone()).unwrap_or_else(|| "default".to_owned());
    let instances = view.roles.iter().flat_map(|places| {
        let name = pai_name(places.name.as_str());
        (0..places.hosts.len()).map(move |index| format!("{name}:{index}"))
    });
    let instances = instances.collect::<Vec<_>>().join(",");
    named(vec![
        ("PAI_FRAMEWORK_NAME", job.clone()),
        ("PAI_JOB_NAME", job),
        ("PAI_USER_NAME", options.user.clone()),
        ("PAI_USERNAME", options.user.clone()),
        ("PAI_VIRTUAL_CLUSTER", cluster),
        ("PAI_DEFAULT_FS_URI", String::new()),
        ("PAI_TASK_ROLE_COUNT", count.clone()),
        ("PAI_TASK_ROLES_NUM", count.clone()),
        ("PAI_JOB_TASK_ROLE_COUNT", count),
        ("PAI_TASK_ROLE_LIST", names.clone()),
        ("PAI_JOB_TASK_ROLE_LIST", names),
        ("PAI_TASKS_NUM", tasks.to_string()),
        ("PAI_JOB_TASK_COUNT", tasks.to_string()),
        ("PAI_TASK_ROLE_INSTANCES", instances),
    ])
    .collect()
}

/// Counts and policies of one role. -1 means never.
fn policies(role: &Role) -> Vec<Variable> {
    let resources = &role.work.resources;
    let mib = |bytes: Option<u64>| bytes.unwrap_or(0) >> 20;
    let min_failed = if role.completion.min_failed == 0 { -1 } else { i64::from(role.completion.min_failed) };
    let min_succeeded = match role.completion.min_succeeded {
        MinSucceeded::All => i64::from(role.replicas),
        MinSucceeded::Count(count) => i64::from(count),
        MinSucceeded::Never => -1,
    };
    let resources = format!(
        "{},{},{},{}",
        resources.gpus,
        resources.whole_cpus(),
        mib(resources.memory_bytes),
        mib(resources.shm_bytes)
    );
    vec![
        (format!("PAI_TASK_ROLE_TASK_COUNT_{}", role.name), role.replicas.to_string()),
        (format!("PAI_RESOURCE_{}", role.name), resources),
        (format!("PAI_MIN_FAILED_TASK_COUNT_{}", role.name), min_failed.to_string()),
        (format!("PAI_MIN_SUCCEEDED_TASK_COUNT_{}", role.name), min_succeeded.to_string()),
    ]
}

/// Where the instances of one role are, under both names of the role.
fn addresses(places: &RolePlaces) -> Vec<Variable> {
    let mut names = vec![places.name.to_string()];
    let short = pai_name(places.name.as_str());
    if short != names[0] {
        names.push(short);
    }
    let mut variables = Vec::new();
    for name in names {
        for (index, host) in (0u32..).zip(&places.hosts) {
            variables.push((format!("PAI_HOST_IP_{name}_{index}"), host.to_string()));
            for ports in &places.ports {
                let (label, list) = (&ports.name, ports.list(index));
                variables.push((format!("PAI_PORT_LIST_{name}_{index}_{label}"), list.clone()));
                variables.push((format!("PAI_{name}_{index}_{label}_PORT"), list));
            }
        }
        let hosts = (0u32..).zip(&places.hosts).map(|(index, host)| format!("{host}:{}", first(places, HTTP, index)));
        variables.push((format!("PAI_TASK_ROLE_{name}_HOST_LIST"), hosts.collect::<Vec<_>>().join(",")));
    }
    variables
}

/// The first port of a label; empty if the role does not have it.
fn first(places: &RolePlaces, label: &str, index: u32) -> String {
    let ports = places.ports.iter().find(|ports| ports.name.eq_ignore_ascii_case(label));
    ports.and_then(|ports| ports.of(index).first()).map(|port| port.get().to_string()).unwrap_or_default()
}

/// The variables that only this instance has.
fn own(view: &View<'_>) -> Vec<Variable> {
    let (places, index) = (&view.roles[view.slot.role as usize], view.slot.index);
    let role = &view.job.roles[view.slot.role as usize];
    let host = places.hosts[index as usize].to_string();
    let all = places.ports.iter().fold(String::new(), |all, ports| all + &ports.name + ":" + &ports.list(index) + ";");
    let mut variables: Vec<Variable> = named(vec![
        ("PAI_CURRENT_TASK_ROLE_NAME", role.name.to_string()),
        ("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", index.to_string()),
        ("PAI_TASK_INDEX", index.to_string()),
        ("PAI_CURRENT_CONTAINER_IP", host.clone()),
        ("PAI_CONTAINER_HOST_IP", host),
        ("PAI_CURRENT_CONTAINER_PORT", first(places, HTTP, index)),
        ("PAI_CONTAINER_HOST_PORT", first(places, HTTP, index)),
        ("PAI_CONTAINER_SSH_PORT", first(places, "ssh", index)),
        ("PAI_CONTAINER_HOST_PORT_LIST", all),
    ])
    .chain(controlled(view, &pai_name(role.name.as_str())))
    .collect();
    for ports in &places.ports {
        variables.push((format!("PAI_CONTAINER_HOST_{}_PORT_LIST", ports.name), ports.list(index)));
    }
    if role.work.resources.gpus == 0 {
        variables.push(("NVIDIA_VISIBLE_DEVICES".to_owned(), "none".to_owned()));
        variables.push(("CUDA_VISIBLE_DEVICES".to_owned(), String::new()));
    }
    variables
}

/// The variables of OpenPAI's controller. Its ids are made of the run, the attempt of the job, and the instance.
fn controlled(view: &View<'_>, role: &str) -> impl Iterator<Item = Variable> {
    let (job, run, index) = (view.job.name.as_str(), view.run, view.slot.index);
    let (of_job, of_task) = (view.job_attempt - FIRST_ATTEMPT, view.retries);
    let attempt = format!("{run}-{of_job}");
    let task = format!("{attempt}-{role}-{index}");
    let pod = format!("{task}-{of_task}");
    named(vec![
        ("FC_FRAMEWORK_NAMESPACE", "default".to_owned()),
        ("FC_FRAMEWORK_NAME", job.to_owned()),
        ("FC_FRAMEWORK_UID", run.to_owned()),
        ("FC_FRAMEWORK_ATTEMPT_ID", of_job.to_string()),
        ("FC_FRAMEWORK_ATTEMPT_INSTANCE_UID", format!("{of_job}_{attempt}")),
        ("FC_CONFIGMAP_NAME", format!("{job}-attempt")),
        ("FC_CONFIGMAP_UID", attempt.clone()),
        ("FC_TASKROLE_NAME", role.to_owned()),
        ("FC_TASKROLE_UID", format!("{attempt}-{role}")),
        ("FC_TASK_INDEX", index.to_string()),
        ("FC_TASK_UID", task),
        ("FC_TASK_ATTEMPT_ID", of_task.to_string()),
        ("FC_TASK_ATTEMPT_INSTANCE_UID", format!("{of_task}_{pod}")),
        ("FC_POD_NAME", format!("{job}-{role}-{index}")),
        ("FC_POD_UID", pod),
    ])
}
