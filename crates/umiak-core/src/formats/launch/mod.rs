//! `umiak launch`: the command line of both generations of `paddle.distributed.launch`, and that of [`torchrun`].
//!
//! ```text
//! argv ──► parse (flags table, argparse rules) ──► environment overrides ──► checks ──► LaunchSpec
//! ```
//!
//! Nothing here inspects the machine: the plan finds devices and ports.

pub mod allocation;
mod arguments;
mod checks;
mod cloud;
mod elastic;
mod endpoints;
mod environment;
pub mod flags;
mod help;
mod mode;
mod name;
mod nodes;
mod old;
mod own;
mod parse;
mod pod;
mod ports;
mod servers;
mod spec;
mod stranger;
pub mod torchrun;
mod words;

pub use help::help;
pub(in crate::formats) use parse::usage_error;
pub use parse::{Parsed, parse};
pub use spec::{Compat, LaunchSpec, OwnFlags, Spelling, Token};
