//! umiak: defines, launches, schedules and supervises distributed training jobs.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`cli`] | argument types, commands, exit codes |
//! | [`history`] | recorded runs: their directories, journals and index |
//! | [`runtime`] | the loop: gather events, ask the machine, record, perform |
//! | [`engine`] | where replicas run: on this host, or only on paper |
//! | `supervisor` | the loop of `run`: engine, machine, journal, control socket |
//! | `clock` | time for the machines and for people |
//! | `log` | what umiak tells about itself when it is asked to |
//! | `rendezvous` | the nodes of a job come together: coordinator and agents on the network |
//! | [`screen`] | everything a person sees while it runs: mirror, status line, summary |

pub mod cli;
mod clock;
pub mod engine;
pub mod history;
mod log;
mod rendezvous;
pub mod runtime;
pub mod screen;
mod supervisor;
pub mod variables;

#[doc(hidden)]
pub use rendezvous::bench as rendezvous_bench;
