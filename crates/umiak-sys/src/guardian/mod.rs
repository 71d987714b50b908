//! The guardian: a small, single-threaded process that forks every rank.
//!
//! It is forked before the front has a thread or a plan, so that fork stays cheap and so that the
//! parent-death signal of the ranks, which follows the forking *thread*, hangs on a thread that lives as
//! long as the process. It sits in its own session (Ctrl-C does not reach it), is a subreaper, and holds
//! port leases and temporary directories. When the front goes away it stops the ranks by itself:
//! SIGTERM, grace, SIGKILL. When the guardian goes away the kernel kills the ranks, and the front, a
//! subreaper too, stops what they left.
//!
//! | module | in one sentence |
//! |---|---|
//! | `handle` | the front's end: starting the guardian, commands, notices |
//! | `birth` | the fork that makes the guardian, and what its process is like |
//! | `service` | the guardian's loop: exits and commands, one after the other |
//! | `ranks` | starting ranks, and what is kept of each |
//! | `leftovers` | signals, and what dead ranks left behind |
//! | `leases` | ports, addresses and GPUs, held for each job |
//! | `end` | stopping and removing everything |

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
