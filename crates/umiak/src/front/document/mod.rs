//! Documents: `run`, `resume`, `retry`, and the supervisor that outlives its terminal.
//!
//! | part | in one sentence |
//! |---|---|
//! | [`submit`] | makes a run directory from a document |
//! | [`begin`] | makes a driver from a run directory: lock, engine, places, journal |
//! | [`needs`] | leases the addresses and ports of a job |
//! | [`door`] | what only documents have: task directories, devices that replicas take turns with |
//! | [`tasks`] | the directories of attempts |
//! | [`detach`] | a supervisor that outlives its terminal |

pub(crate) mod begin;
pub(crate) mod detach;
mod door;
pub(crate) mod needs;
pub(crate) mod submit;
mod tasks;
