//! The guardian: a small, single-threaded process that forks every rank.
//!
//! It is forked before the front has threads or a plan. So forks stay cheap, and the parent-death signal of the ranks,
//! which follows the forking *thread*, is tied to a thread that lives as long as the process. It runs in its own
//! session (Ctrl-C does not reach it), is a subreaper, and holds port leases and temporary directories. If the front
//! dies, it stops the ranks by itself: SIGTERM, grace, SIGKILL. If the guardian dies, the kernel kills the ranks, and
//! the front, also a subreaper, stops what they left.
//!
//! | module | in one sentence |
//! |---|---|
//! | `handle` | the front's end: starting the guardian, commands, notices |
//! | `asked` | what has received a termination signal |
//! | `birth` | forking the guardian, and setting up its process |
//! | `service` | the guardian's loop: exits and commands, one after the other |
//! | `ranks` | starting ranks, and the state of each |
//! | `leftovers` | signals, and leftovers of dead ranks |
//! | `leases` | ports, addresses and GPUs, held for each job |
//! | `end` | stopping leftovers and cleaning up |

mod asked;
mod birth;
mod end;
mod handle;
mod leases;
mod leftovers;
mod ranks;
mod service;
#[cfg(test)]
mod tests;

pub use crate::spawn::describe_errno;
pub use handle::{Guardian, GuardianOptions};
pub use service::serve_executed;
