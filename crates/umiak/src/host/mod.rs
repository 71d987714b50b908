//! Facts about this host: its inventory, the logs of its processes, and what its kernel reports about their ends.

pub(crate) mod evidence;
pub(crate) mod inventory;
pub(crate) mod kernel;
pub(crate) mod log_end;
pub(crate) mod observe;
pub(crate) mod stacks;

pub(crate) use inventory::environment;
