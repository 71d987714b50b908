//! umiak inside allocations of real Slurm.
//!
//! | file | in one sentence |
//! |---|---|
//! | `cluster` | the cluster itself: faults, and what is left of it |
//! | `lists` | node lists, compared with `scontrol show hostnames` |
//! | `steps` | `srun umiak launch` and `srun umiak torchrun`: nodes, failures, several steps, signals |
//! | `elsewhere` | batch scripts, several tasks on a node, `mpirun` |
//! | `guide` | the job scripts of the guide |

mod cluster;
mod elsewhere;
mod guide;
mod lists;
mod steps;

use std::os::unix::fs::PermissionsExt as _;

use umiak_testkit::sandbox::{Run, Sandbox, binary};
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    cluster::register(suite);
    lists::register(suite);
    steps::register(suite);
    elsewhere::register(suite);
    guide::register(suite);
}

/// Writes a shell script that ranks run.
fn script(sandbox: &Sandbox, name: &str, text: &str) {
    let path = sandbox.write(name, format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("our own file");
}

/// `srun FLAGS… umiak WORDS…`, both split at spaces; each line of output has the number of its task in front.
fn srun<'a>(slurm: &Slurm, sandbox: &'a Sandbox, flags: &str, words: &str) -> Run<'a> {
    let umiak = binary().display().to_string();
    let line = ["--label"].into_iter().chain(flags.split_whitespace()).chain([umiak.as_str()]);
    slurm.run(sandbox, "srun", line.chain(words.split_whitespace()))
}
