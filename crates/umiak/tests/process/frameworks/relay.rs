//! `--store-relay`: Paddle's ranks reach the store of rank 0 through umiak.

use std::collections::BTreeSet;

use serde_json::Value;
use umiak_testkit::components::Component::Paddle;
use umiak_testkit::sandbox::{Running, Sandbox};
use umiak_testkit::suite::Suite;

use super::{example, has_learned, support, train, virtual_environment};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("frameworks::relay::ranks_connect_before_rank_0_listens", &[Paddle], rank_0_is_last)
        .test("frameworks::relay::a_restart_has_a_new_one", &[Paddle], restart)
        .test("frameworks::relay::two_nodes_use_that_of_the_first", &[Paddle], two_nodes)
        .test("frameworks::relay::paddle_trains", &[Paddle], trains)
        .test("frameworks::relay::a_dry_run_shows_both_addresses", &[], dry_run)
        .test("frameworks::relay::modes_without_the_store_say_so", &[], other_modes);
}

/// The script waits until all connections are there. Without the relay they would not be.
fn rank_0_is_last() {
    let sandbox = Sandbox::new();
    train(&sandbox, &["launch", "--nproc_per_node", "4", "--store-relay", &support("paddle_relay.py")])
        .expect_code(0)
        .expect_out("rank 0: sum 6 in attempt 0");
}

fn restart() {
    let sandbox = Sandbox::new();
    let words = ["launch", "--nproc_per_node", "4", "--store-relay", "--max_restart", "1", "--restart-backoff", "10ms"];
    let script = support("paddle_relay.py");
    train(&sandbox, &[words.as_slice(), &[&script, "2"]].concat())
        .expect_code(0)
        .expect_out("rank 0: sum 6 in attempt 1");
    assert_ne!(sandbox.read("store.0.1"), sandbox.read("store.1.1"), "the relay of the first attempt was used again");
}

/// Both on this host, in one directory: rank 0 sees the connections of all ranks. They restart once.
fn two_nodes() {
    let sandbox = Sandbox::new();
    let caches = sandbox.path().join("caches");
    std::fs::create_dir(&caches).expect("the sandbox can be written");
    let script = support("paddle_relay.py");
    let runs = ["127.0.0.2", "127.0.0.3"].map(|host| {
        let words = ["launch", "--ips", "127.0.0.2,127.0.0.3", "--host", host, "--job_id", "relay", "--log_dir", host];
        let flags = ["--nproc_per_node", "2", "--store-relay", "--max_restart", "1", "--restart-backoff", "10ms"];
        let run = sandbox.umiak([words.as_slice(), &flags, &[&script, "2"]].concat());
        run.env("HOME", &caches).env("TMPDIR", &caches).env("VIRTUAL_ENV", virtual_environment()).start()
    });
    let [first, second] = runs.map(Running::finish_unchecked);
    first.expect_code(0).expect_out("rank 0: sum 6 in attempt 1");
    second.expect_code(0);
    sandbox.assert_nothing_left();
    assert_ne!(sandbox.read("store.0.3"), sandbox.read("store.1.3"), "the relay of the first attempt was used again");
}

fn trains() {
    let words = ["launch", "--nproc_per_node", "2", "--store-relay", &example("paddle_train.py"), "--steps", "60"];
    has_learned(&train(&Sandbox::new(), &words), 2);
}

/// `PADDLE_MASTER` of each rank.
fn masters(flags: &str) -> Vec<String> {
    let flags = format!("--dry-run --output json --nproc_per_node 3 {flags}");
    let plan = Sandbox::new().launch_toy(&flags, &["*:exit 0"]).finish().facts().remove(0);
    let ranks = plan["replicas"].as_array().expect("a list").iter();
    let master = |rank: &Value| rank["env"]["PADDLE_MASTER"].as_str().expect("a variable").to_owned();
    ranks.map(master).collect()
}

fn dry_run() {
    for flags in ["--store-relay", "--store-relay --ips 127.0.0.1", "--store-relay --agent-store"] {
        let masters = masters(flags);
        assert!(masters[0] != masters[1] && masters[1] == masters[2], "{flags}: {masters:?}");
    }
    let without = masters("");
    assert_eq!(without.iter().collect::<BTreeSet<_>>().len(), 1, "{without:?}");
}

fn other_modes() {
    for (flags, mode) in [("--run_mode rpc --nproc_per_node 2", "rpc"), ("--server_num 1 --trainer_num 1", "ps")] {
        let sandbox = Sandbox::new();
        let flags = format!("--dry-run --store-relay {flags}");
        let outcome = sandbox.launch_toy(&flags, &["*:exit 0"]).finish();
        outcome.expect_code(0).expect_err(&format!("`--store-relay` has no effect: the mode is `{mode}`"));
    }
}
