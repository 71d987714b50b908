//! umiak: defines, launches, schedules and supervises distributed training jobs.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`cli`] | argument types, commands, exit codes |
//! | `front` | the doors that jobs come in through: launch command lines, documents |
//! | `driver` | the one loop: gathers events, asks the machine, records, performs |
//! | [`engine`] | where replicas run: on this host, or only on paper |
//! | `log` | what umiak tells about itself when it is asked to |
//! | [`history`] | recorded runs: their directories, journals and index |
//! | `rendezvous` | the nodes of a job come together: coordinator and agents on the network |
//! | [`views`] | recorded runs as people and programs see them: tables, words, JSON |
//! | [`screen`] | everything a person sees while it runs: mirror, status line, summary |
//! | `host` | what only this host knows: inventory, logs, kernel |
//! | `network` | the one thread that carries network work |
//! | `clock`, [`variables`] | time for the machines and for people; environment variables of ours |

pub mod cli;
mod clock;
mod driver;
pub mod engine;
mod front;
pub mod history;
mod host;
mod log;
mod network;
mod rendezvous;
pub mod screen;
pub mod variables;
pub mod views;

#[doc(hidden)]
pub use rendezvous::bench as rendezvous_bench;
