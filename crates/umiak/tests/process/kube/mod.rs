//! Real Kubernetes.
//!
//! | file | in one sentence |
//! |---|---|
//! | `cluster` | the cluster itself: what runs on it, its faults, and what is left of it |

mod cluster;

use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    cluster::register(suite);
}
