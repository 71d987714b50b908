//! Variables for replicas of documents: the endpoints of all roles, and the identity of this replica.

use crate::model::{Endpoint, Host, JobId, Port, Rank, StepName};

use super::{NamedPorts, RolePlaces, Variable};

/// The variables that all replicas share, sorted by name.
pub fn common(run: &str, job: &JobId, roles: &[RolePlaces]) -> Vec<Variable> {
    let world: usize = roles.iter().map(|role| role.hosts.len()).sum();
    let mut common = vec![
        ("UMIAK_RUN".to_owned(), run.to_owned()),
        ("UMIAK_JOB".to_owned(), job.to_string()),
        ("UMIAK_WORLD_SIZE".to_owned(), world.to_string()),
    ];
    for role in roles {
        let name = variable(role.name.as_str());
        let hosts: Vec<String> = role.hosts.iter().map(ToString::to_string).collect();
        common.push((format!("UMIAK_HOSTS_{name}"), hosts.join(",")));
        for named in &role.ports {
            common.push((format!("UMIAK_ENDPOINTS_{name}_{}", variable(&named.name)), endpoints(role, named)));
        }
    }
    common.sort();
    common
}

fn endpoints(role: &RolePlaces, named: &NamedPorts) -> String {
    let hosts = role.hosts.iter().flat_map(|host| std::iter::repeat_n(host, named.each));
    let endpoint = |(host, port): (&Host, &Port)| Endpoint { address: host.clone(), port: *port }.to_string();
    let endpoints = hosts.zip(&named.ports).map(endpoint);
    endpoints.collect::<Vec<_>>().join(",")
}

/// True if a variable of this name is one of [`common`], which nothing else sets.
pub fn is_common(name: &str) -> bool {
    matches!(name, "UMIAK_RUN" | "UMIAK_JOB" | "UMIAK_WORLD_SIZE")
        || name.starts_with("UMIAK_HOSTS_")
        || name.starts_with("UMIAK_ENDPOINTS_")
}

/// The variables of one replica, the `index`-th of its role.
pub fn variables(step: Option<&StepName>, role: &RolePlaces, index: u32, rank: Rank, attempt: u32) -> Vec<Variable> {
    let host = role.hosts[index as usize].to_string();
    let mut variables = vec![
        ("POD_IP".to_owned(), host.clone()),
        ("UMIAK_ROLE".to_owned(), role.name.to_string()),
        ("UMIAK_INDEX".to_owned(), index.to_string()),
        ("UMIAK_REPLICAS".to_owned(), role.hosts.len().to_string()),
        ("UMIAK_RANK".to_owned(), rank.0.to_string()),
        ("UMIAK_ATTEMPT".to_owned(), attempt.to_string()),
        ("UMIAK_HOST".to_owned(), host),
    ];
    variables.extend(step.map(|step| ("UMIAK_STEP".to_owned(), step.to_string())));
    for named in &role.ports {
        let name = variable(&named.name);
        let first = named.of(index).first().map(|port| port.get().to_string()).unwrap_or_default();
        variables.push((format!("UMIAK_PORT_{name}"), first));
        variables.push((format!("UMIAK_PORTS_{name}"), named.list(index)));
    }
    variables
}

/// `PARAM_SERVER` for `param-server`.
pub fn variable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}
