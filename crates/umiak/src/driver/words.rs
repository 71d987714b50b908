//! Names for groups of replicas: `8 ranks`, `2 servers and 4 trainers`, `3 replicas`.

use umiak_core::contract::Node;
use umiak_core::facts::{Fact, Planned, PlannedNode, PlannedReplica, PlannedRole};
use umiak_core::machine::job::Machine;
use umiak_core::model::{Part, Slot};
use umiak_core::plan::pool::Pool;
use umiak_core::plan::{Log, Plan, Replica};

use crate::screen::Activity;
use crate::screen::StatusLine;
use crate::screen::summary::Crowd;

use super::Core;
use crate::views::store;

/// The plural noun for replicas of this plan.
pub(super) fn noun(plan: &Plan) -> &'static str {
    if plan.is_document() { "replicas" } else { "ranks" }
}

/// Counts all replicas of a launched job, on every node.
pub(crate) fn everywhere(plan: &Plan) -> String {
    let topology = plan.topology();
    let parts: Vec<(Part, u32)> = topology.parts().into_iter().map(|part| (part, topology.count(part))).collect();
    counted_parts(&parts, has_parts(plan))
}

/// Counts replicas of this node.
pub(super) fn counted(plan: &Plan, slots: &[Slot]) -> String {
    if plan.is_document() {
        return format!("{} replica{}", slots.len(), plural(slots.len()));
    }
    let part_of = |slot: &Slot| Some(plan.member(plan.at(*slot)?)?.1.part);
    let parts: Vec<Part> = slots.iter().filter_map(part_of).collect();
    let count = |part: Part| parts.iter().filter(|other| **other == part).count() as u32;
    let counts = plan.topology().parts().into_iter().map(|part| (part, count(part))).filter(|(_, count)| *count > 0);
    counted_parts(&counts.collect::<Vec<_>>(), has_parts(plan))
}

fn counted_parts(parts: &[(Part, u32)], has_parts: bool) -> String {
    let word = |part: Part| match part {
        _ if !has_parts => "rank",
        Part::Leader => "leader",
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

/// True if a launched job has parts other than trainers, so that a rank number alone is ambiguous.
pub(crate) fn has_parts(plan: &Plan) -> bool {
    !plan.is_document() && plan.job.roles.iter().any(|role| role.name.as_str() != Part::Trainer.role())
}

/// Lists replicas of this node, by name or by rank.
pub(crate) fn crowd(plan: &Plan, slots: &[Slot]) -> Crowd {
    let replicas = slots.iter().filter_map(|slot| plan.at(*slot));
    if plan.is_document() || has_parts(plan) {
        Crowd::replicas(replicas.map(|replica| (plan.role(replica.slot).name.as_str(), replica.index)))
    } else {
        Crowd::ranks(&replicas.map(|replica| replica.rank.0).collect::<Vec<_>>())
    }
}

/// The status line of a running job.
pub(super) fn status(core: &Core<'_>) -> StatusLine {
    let plan = &core.job.plan;
    let stopping = core.job.now.stopping.is_some();
    let doing = if let Some(at) = &core.job.now.pause {
        Activity::Waiting(format!("attempt {} starts at {at}", core.job.machine.attempt() + 1))
    } else if let Some(waits) = core.job.store_waits().filter(|_| !stopping) {
        Activity::Waiting(store::missing(waits))
    } else if plan.is_document() || has_parts(plan) {
        let roles = plan.job.roles.iter().enumerate().filter(|(_, role)| role.replicas > 0);
        let live = |(position, role): (usize, &umiak_core::model::Role)| {
            let (live, all) = core.job.machine.live_of(position as u16);
            (role.name.to_string(), live, all)
        };
        Activity::Roles { roles: roles.map(live).collect(), stopping }
    } else {
        let (live, total) = core.job.machine.live();
        Activity::Ranks { live, total, stopping }
    };
    let run = core.run.recorder.run_name().filter(|_| plan.is_document()).map(|run| format!("{run} "));
    let job = format!("{}{}", run.unwrap_or_default(), plan.name);
    StatusLine { job, since: core.run.clock.started(), doing }
}

/// The plan as a fact for the journal.
pub(super) fn fact(plan: &Plan, machine: &Machine, pool: &Pool) -> Fact {
    let places = plan.places().iter();
    let role = |place: &umiak_core::contract::RolePlaces| PlannedRole {
        role: place.name.to_string(),
        replicas: place.hosts.len() as u32,
        decides: plan.job.roles.iter().any(|role| role.name == place.name && role.completion.decides),
    };
    let replica = |replica: &Replica| {
        // A launched job has a plan for each attempt, before the machine counts it.
        let attempt = if plan.is_document() { machine.number(replica.slot) } else { plan.attempt };
        let Log { path, start, rotated, stderr } = plan.log(replica, attempt);
        let devices = replica.devices.iter().chain(pool.devices_of(replica.slot));
        PlannedReplica {
            replica: replica.name.clone(),
            rank: replica.rank,
            node: replica.host.to_string(),
            endpoint: replica.endpoint.as_ref().map_or_else(|| replica.host.to_string(), ToString::to_string),
            devices: devices.map(|device| device.label.clone()).collect(),
            log: path.to_string_lossy().into_owned(),
            log_start: start,
            log_rotated: rotated,
            stderr: stderr.map(|path| path.to_string_lossy().into_owned()),
        }
    };
    Fact::Planned(Planned {
        job: plan.job.name.to_string(),
        name: if plan.name == plan.job.name.as_str() { String::new() } else { plan.name.clone() },
        command: plan.line.clone(),
        attempt: if plan.is_document() { machine.attempt() } else { plan.attempt },
        umiak: env!("CARGO_PKG_VERSION").to_owned(),
        world_size: places.clone().map(|place| place.hosts.len() as u32).sum(),
        log_dir: plan.logs.dir().to_string_lossy().into_owned(),
        // Roles are omitted if all ranks are trainers.
        roles: if plan.is_document() || has_parts(plan) { places.map(role).collect() } else { Vec::new() },
        replicas: plan.replicas.iter().map(replica).collect(),
        nodes: if plan.is_document() { Vec::new() } else { nodes(plan) },
    })
}

/// Lists all replicas of a launched job by node, if there are several nodes.
fn nodes(plan: &Plan) -> Vec<PlannedNode> {
    let topology = plan.topology();
    if topology.nodes.len() < 2 {
        return Vec::new();
    }
    let named = |node: usize| {
        let members = topology.members.iter().filter(move |member| member.node.0 as usize == node);
        members.map(|member| format!("{}-{}", member.part.role(), member.index)).collect()
    };
    let node = |(index, node): (usize, &Node)| PlannedNode { node: node.address.to_string(), replicas: named(index) };
    topology.nodes.iter().enumerate().map(node).collect()
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
