//! What the engine `mpi` relies on: real launchers with the command lines that umiak writes, and the keeper that runs them.
//!
//! | file | in one sentence |
//! |---|---|
//! | `keep` | `umiak keep`: a program that must not outlive its supervisor |
//! | `launchers` | Open MPI 4 and 5 and MPICH: ranks, hosts, paths, and ends |

mod keep;
mod launchers;

use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    keep::register(suite);
    launchers::register(suite);
}
