//! `umiak launch`: the command line of both generations of `paddle.distributed.launch`.
//!
//! ```text
//! argv ──► parse (flags table, argparse rules) ──► environment overrides ──► checks ──► LaunchSpec
//! ```

mod spec;

pub use spec::{
    Backend, Compat, DeviceRequest, ExitCodes, Generation, LaunchSpec, LogNames, OutputMode, OwnFlags, PortRequest,
    Spelling,
};
