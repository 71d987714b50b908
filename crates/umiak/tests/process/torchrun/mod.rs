//! `umiak torchrun` with real torch: training, the store, several nodes; and its console.
//!
//! | file | in one sentence |
//! |---|---|
//! | `training` | jobs whose ranks are killed or late learn the same as undisturbed ones |
//! | `store` | every rank is a client of umiak's store, which names the ranks that are missing |
//! | `console` | which output the console shows, and which is written to files |
//! | `nodes` | two nodes, with both backends of the rendezvous |
//! | `scripts/` | the training scripts; they run under `torchrun` too |

mod console;
mod nodes;
mod store;
mod training;

use std::path::Path;

use umiak_testkit::sandbox::{Run, Sandbox};
use umiak_testkit::suite::Suite;

use crate::frameworks::{prepared, virtual_environment};

pub(crate) fn register(suite: &mut Suite) {
    training::register(suite);
    store::register(suite);
    console::register(suite);
    nodes::register(suite);
}

/// Path of a training script.
fn script(name: &str) -> String {
    format!("{}/tests/process/torchrun/scripts/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// `umiak torchrun FLAGS… SCRIPT ARGUMENTS…` with the torch of the test environment.
fn torchrun<'a>(sandbox: &'a Sandbox, flags: &str, script: &str, arguments: &[&str]) -> Run<'a> {
    torchrun_in(&virtual_environment(), sandbox, flags, script, arguments)
}

/// The same with the torch of this environment.
fn torchrun_in<'a>(environment: &Path, sandbox: &'a Sandbox, flags: &str, name: &str, arguments: &[&str]) -> Run<'a> {
    let script = script(name);
    let words: Vec<&str> = ["torchrun"].into_iter().chain(flags.split_whitespace()).chain([script.as_str()]).collect();
    prepared(sandbox, environment, &[&words, arguments].concat())
}
