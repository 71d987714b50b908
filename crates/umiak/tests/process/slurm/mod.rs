//! umiak inside allocations of real Slurm.

mod cluster;

use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    cluster::register(suite);
}
