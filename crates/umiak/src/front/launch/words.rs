//! A launched job, in words.

use umiak_core::model::Part;
use umiak_core::plan::{Plan, ReplicaPlan};

use crate::screen::Style;
use crate::screen::style::ranges;
use crate::screen::summary::Crowd;

use crate::clock::time_of_day;

pub(super) fn planned(plan: &Plan, log_dir: &str, run: Option<String>) -> Vec<String> {
    let nodes = plan.topology.nodes.len();
    let mut parts = vec![format!("{} on {nodes} node{}", everybody(plan), plural(nodes))];
    if nodes > 1 {
        parts.push(format!("here {}", crowd(plan, &plan.replicas.iter().collect::<Vec<_>>()).names));
    }
    if let Some(kind) = plan.topology.device_kind.filter(|_| !devices(plan).is_empty()) {
        parts.push(format!("{} {}", kind.word(), devices(plan)));
    }
    parts.push(endpoints(plan));
    parts.push(format!("logs {log_dir}"));
    parts.extend(run);
    parts
}

/// `8 ranks`; `2 servers and 4 trainers` where there are several parts.
fn everybody(plan: &Plan) -> String {
    let parts: Vec<(Part, u32)> =
        plan.topology.parts().into_iter().map(|part| (part, plan.topology.count(part))).collect();
    counted(&parts, has_parts(plan))
}

/// The same for some of this node's.
pub(super) fn some(plan: &Plan, replicas: &[&ReplicaPlan]) -> String {
    let count = |part: &Part| replicas.iter().filter(|replica| replica.part == *part).count() as u32;
    let parts = plan.topology.parts().into_iter().map(|part| (part, count(&part))).filter(|(_, count)| *count > 0);
    counted(&parts.collect::<Vec<_>>(), has_parts(plan))
}

fn counted(parts: &[(Part, u32)], has_parts: bool) -> String {
    let word = |part: Part| match part {
        _ if !has_parts => "rank",
        Part::Server => "server",
        Part::Trainer => "trainer",
        Part::Coordinator => "coordinator",
        Part::HeterTrainer => "heterogeneous trainer",
    };
    let words: Vec<String> =
        parts.iter().map(|(part, count)| format!("{count} {}{}", word(*part), plural(*count as usize))).collect();
    match words.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Where there are several parts, numbers alone say little.
pub(super) fn has_parts(plan: &Plan) -> bool {
    plan.topology.members.iter().any(|member| member.part != Part::Trainer)
}

/// Some of this node's, in words.
pub(super) fn crowd(plan: &Plan, replicas: &[&ReplicaPlan]) -> Crowd {
    if has_parts(plan) {
        Crowd::replicas(replicas.iter().map(|replica| (replica.part.role(), replica.index)))
    } else {
        Crowd::ranks(&replicas.iter().map(|replica| replica.rank.0).collect::<Vec<_>>())
    }
}

fn devices(plan: &Plan) -> String {
    let labels = plan.replicas.iter().flat_map(|replica| &replica.devices).map(|device| device.label.as_str());
    labels.collect::<Vec<_>>().join(",")
}

/// `127.0.0.1:6170-6173`.
fn endpoints(plan: &Plan) -> String {
    let ports: Vec<u32> = plan.replicas.iter().map(|replica| u32::from(replica.endpoint.port.get())).collect();
    let host = plan.replicas[0].endpoint.to_string();
    let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
    format!("{host}:{}", ranges(&ports).replace(", ", ","))
}

/// About other nodes.
pub(super) fn nodes(style: &Style, text: &str) -> String {
    style.progress("Nodes", &[text.to_owned()], &time_of_day())
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
