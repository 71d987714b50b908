//! Documents: `run`, `resume`, `retry`, and the supervisor that outlives its terminal.
//!
//! | part | in one sentence |
//! |---|---|
//! | [`submit`] | makes a run directory from a document |
//! | [`begin`] | makes a driver from a run directory: lock, engine, places, journal |
//! | [`site`] | places a job on a host: leases and plans |
//! | [`needs`] | leases the addresses and ports of a job |
//! | [`results`] | results of earlier runs that a step may use |
//! | [`mounts`] | checks the directories that replicas see at other paths |
//! | [`steps`] | the jobs of a pipeline, as its machine decides |
//! | [`door`] | what only documents have: task directories, devices that replicas take turns with |
//! | [`tasks`] | the directories of attempts |
//! | [`detach`] | a supervisor that outlives its terminal |

pub(crate) mod begin;
pub(crate) mod detach;
mod door;
pub(crate) mod mounts;
pub(crate) mod needs;
mod results;
pub(in crate::front) mod site;
mod steps;
pub(crate) mod submit;
pub(in crate::front) mod tasks;
