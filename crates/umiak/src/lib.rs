//! umiak: defines, launches, schedules and supervises distributed training jobs.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`cli`] | argument types, commands, exit codes |
//! | [`runtime`] | the loop: gather events, ask the machine, record, perform |
//! | `clock` | time for the machines and for people |
//! | `rendezvous` | the nodes of a job come together: coordinator and agents on the network |
//! | [`screen`] | everything a person sees while it runs: mirror, status line, summary |

pub mod cli;
mod clock;
mod rendezvous;
pub mod runtime;
pub mod screen;
pub mod variables;

#[doc(hidden)]
pub use rendezvous::bench as rendezvous_bench;
