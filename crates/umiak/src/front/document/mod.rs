//! Documents: `run`, `resume`, `retry`, and the supervisor that outlives its terminal.
//!
//! | part | in one sentence |
//! |---|---|
//! | [`submit`] | a document becomes a run directory |
//! | [`begin`] | a run directory becomes a driver: lock, engine, places, journal |
//! | [`needs`] | what a job needs of a host is leased |
//! | [`door`] | what only documents have: task directories, devices that replicas take turns with |
//! | [`tasks`] | the directories of attempts |
//! | [`detach`] | a supervisor that outlives its terminal |

pub(crate) mod begin;
pub(crate) mod detach;
mod door;
pub(crate) mod needs;
pub(crate) mod submit;
mod tasks;
