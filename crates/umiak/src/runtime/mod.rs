//! The loop: gather events, ask the machine, record, perform.
//!
//! The front is one thread that waits on descriptors, and the screen's. There is no async runtime here: a
//! launcher waits for a handful of descriptors, must not wake up while nothing happens, and must be small
//! when it forks (`docs/design/0001-launch-on-one-node.md`).

pub(crate) mod console;
mod dry_run;
pub(crate) mod evidence;
mod front;
mod gpu_log;
pub(crate) mod inventory;
pub(crate) mod kernel;
mod knock;
pub mod launch;
mod pod_log;
pub(crate) mod prepare;
mod record;
mod several;

pub(crate) use console::{diagnostic as render, write_data};
pub(crate) use inventory::environment;
