//! What umiak decides, without touching anything.
//!
//! Every module here is a function of its arguments: no clock, no file, no environment, no
//! randomness, no process. `clippy.toml` beside this crate turns that rule into a compiler
//! message. The crate `umiak` gathers the arguments and performs what comes out.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`model`] | jobs, roles, replicas, policies, exits: the types every other module speaks |
//! | [`facts`] | what is recorded about a run: one versioned format for the journal and for `--output json` |
//! | [`status`] | where a run stands: what its facts add up to |
//! | [`diag`] | diagnostics, hints, and the register of error codes |
//! | [`mask`] | secrets in anything we write |
//! | `quote` | words in the quotes of another language |
//! | [`formats`] | front doors: text in, model and diagnostics out |
//! | [`contract`] | environment dialects: (view of a plan, replica) to variables |
//! | [`plan`] | job plus inventory to one plan: ranks, devices, endpoints, commands and files |
//! | [`machine`] | the state machines of attempt, role and job |
//! | [`diagnose`] | evidence from logs, signatures, and the ranking of causes |
//! | [`wire`] | the bytes between the nodes of a job: handshake, proofs, frames |

pub mod contract;
pub mod diag;
pub mod diagnose;
pub mod facts;
pub mod formats;
pub mod machine;
pub mod mask;
pub mod model;
pub mod plan;
pub(crate) mod quote;
pub mod status;
pub mod wire;
