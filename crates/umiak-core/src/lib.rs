//! What umiak decides, without side effects.
//!
//! Every module here is a function of its arguments: no clock, no file, no environment, no
//! randomness, no process. `clippy.toml` in this crate enforces that rule. The crate `umiak` gathers
//! the arguments and performs the results.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`model`] | jobs, roles, replicas, policies, exits: the types that every other module uses |
//! | [`facts`] | what is recorded about a run: one versioned format for the journal and for `--output json` |
//! | [`status`] | the state of a run, computed from its facts |
//! | [`diag`] | diagnostics, hints, and the register of error codes |
//! | [`mask`] | masks secrets in anything umiak writes |
//! | `quote` | quoting for Python and the shell |
//! | [`formats`] | front ends: text in, model and diagnostics out |
//! | [`contract`] | environment dialects: (view of a plan, replica) to variables |
//! | [`pipeline`] | values of a running pipeline: templates, conditions, loops, artifacts, fingerprints |
//! | [`plan`] | job plus inventory to one plan: ranks, devices, endpoints, commands and files |
//! | [`machine`] | the state machines of attempt, role and job |
//! | [`diagnose`] | evidence from logs, signatures, and the ranking of causes |
//! | [`cluster`] | jobs on clusters: what is submitted, and the files between supervisor and agents |
//! | [`wire`] | the protocol between the nodes of a job: handshake, proofs, frames |

pub mod cluster;
pub mod contract;
pub mod diag;
pub mod diagnose;
pub mod facts;
pub mod formats;
pub mod machine;
pub mod mask;
pub mod model;
pub mod pipeline;
pub mod plan;
pub(crate) mod quote;
pub mod status;
pub mod wire;
