//! The variables that the operator of Kubernetes sets for the pods of a PyTorchJob, and torchrun's: a script that is run
//! directly is a rank, and a `torchrun` inside a replica is one node.

use super::{Member, Variable, View, torch};

pub fn variables(view: &View<'_>, member: &Member) -> Vec<Variable> {
    let topology = view.group;
    let mut variables = torch::variables(view, member);
    // The defaults of torchrun's options.
    let of_nodes = [
        ("PET_NNODES", topology.nodes.len().to_string()),
        ("PET_NODE_RANK", member.node.0.to_string()),
        ("PET_NPROC_PER_NODE", member.devices.len().max(1).to_string()),
        ("PET_MASTER_ADDR", topology.torch_store.address.to_string()),
        ("PET_MASTER_PORT", topology.torch_store.port.get().to_string()),
    ];
    variables.extend(of_nodes.map(|(name, value)| (name.to_owned(), value)));
    variables
}
