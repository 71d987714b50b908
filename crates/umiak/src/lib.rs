//! umiak: defines, launches, schedules and supervises distributed training jobs.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`cli`] | argument types, commands, exit codes |
//! | `front` | the commands that start jobs: launch command lines, documents |
//! | `driver` | the main loop: gathers events, asks the machine, records, performs |
//! | `etcd` | a client of etcd, where elastic jobs meet |
//! | [`engine`] | where replicas run: on this host, or simulated |
//! | `log` | diagnostic logging of umiak itself, on request |
//! | [`history`] | recorded runs: their directories, journals and index |
//! | `rendezvous` | joins the nodes of a job: coordinator and agents on the network |
//! | [`views`] | recorded runs for display: tables, text, JSON |
//! | [`screen`] | console output of a run: mirror, status line, summary |
//! | `host` | facts about this host: inventory, logs, kernel |
//! | `network` | the thread that carries all network work |
//! | `store` | the key-value store that torch's ranks use to find each other |
//! | `secrets` | the secrets that this process knows, masked in all that it writes |
//! | `clock`, [`variables`] | time for the machines and for display; umiak's environment variables |

pub mod cli;
mod clock;
mod driver;
pub mod engine;
mod etcd;
mod front;
pub mod history;
mod host;
mod log;
mod network;
mod relay;
mod rendezvous;
pub mod screen;
mod secrets;
mod store;
pub mod variables;
pub mod views;

#[doc(hidden)]
pub use rendezvous::bench as rendezvous_bench;
