//! The variables that `torchrun` sets for its workers. `TORCHELASTIC_USE_AGENT_STORE` tells rank 0 whether it hosts the
//! store, or is a client of umiak's as all others are.
//!
//! Paddle reads `MASTER_ADDR` and `MASTER_PORT` too, before its own `PADDLE_MASTER`, and splits them at the colon. It
//! does not connect to them, so a separate port for torch works. An IPv6 address does not, but it does not work in
//! `PADDLE_MASTER` either: with `--host ::1` torch trains and Paddle 3.3 cannot, whatever a launcher sets.

use super::{Member, Variable, View};
use crate::model::{Device, FIRST_ATTEMPT};
use crate::quote::python;

pub fn variables(view: &View<'_>, member: &Member) -> Vec<Variable> {
    let topology = view.group;
    let world = topology.world_size().get().to_string();
    let local = topology.local_size(member).to_string();
    let torch = &view.options.torch;
    let local_rank = if torch.virtual_local_rank { 0 } else { member.local_rank };
    let error_file = if torch.no_error_file { String::new() } else { view.error_file.to_string_lossy().into_owned() };
    let mut variables = vec![
        ("LOCAL_RANK", local_rank.to_string()),
        ("RANK", member.rank.0.to_string()),
        ("GROUP_RANK", member.node.0.to_string()),
        ("ROLE_RANK", member.rank.0.to_string()),
        ("ROLE_NAME", torch.role.clone()),
        ("ROLE_WORLD_SIZE", world.clone()),
        ("LOCAL_WORLD_SIZE", local),
        ("WORLD_SIZE", world),
        ("GROUP_WORLD_SIZE", topology.nodes.len().to_string()),
        ("MASTER_ADDR", topology.torch_store.address.to_string()),
        ("MASTER_PORT", topology.torch_store.port.get().to_string()),
        ("TORCHELASTIC_RESTART_COUNT", (view.attempt - FIRST_ATTEMPT).saturating_sub(topology.changes).to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", view.max_restarts.to_string()),
        ("TORCHELASTIC_RUN_ID", topology.job_id.to_string()),
        ("TORCHELASTIC_USE_AGENT_STORE", python::truth(topology.agent_store).to_owned()),
        ("TORCHELASTIC_ERROR_FILE", error_file),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", torch.signals.clone()),
    ];
    if !view.options.async_error_handling_is_set {
        variables.push(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".to_owned()));
    }
    if torch.virtual_local_rank
        && let Some(kind) = topology.device_kind
    {
        variables.push((kind.visible_variable(), Device::labels(&member.devices)));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Every variable that this contract may set, for the list of differences and the reference page.
pub const NAMES: &[&str] = &[
    "LOCAL_RANK",
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Options;
    use crate::contract::paddle::tests::{topology, view};

    #[test]
    fn names_are_all_of_them_and_ranks_count() {
        let topology = topology(&[2, 1], None);
        let variables = variables(&view(&topology, &Options::default()), &topology.members[2]);
        let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, NAMES);
        let get = |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap();
        assert_eq!((get("RANK"), get("LOCAL_RANK"), get("GROUP_RANK")), ("2", "0", "1"));
        assert_eq!((get("WORLD_SIZE"), get("LOCAL_WORLD_SIZE"), get("GROUP_WORLD_SIZE")), ("3", "1", "2"));
    }
}
