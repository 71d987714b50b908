//! umiak: defines, launches, schedules and supervises distributed training jobs.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`cli`] | argument types, commands, exit codes |
//! | [`runtime`] | the loop: gather events, ask the machine, record, perform |
//! | [`screen`] | everything a person sees while it runs: mirror, status line, summary |

pub mod cli;
pub mod runtime;
pub mod screen;
pub mod variables;
