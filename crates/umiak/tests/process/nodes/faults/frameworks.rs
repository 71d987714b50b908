//! Real training over two hosts: Paddle and PyTorch over gloo, two ranks on each.

use umiak_testkit::components::Component::{Netns, Paddle, Torch};
use umiak_testkit::sandbox::Outcome;
use umiak_testkit::suite::Suite;

use super::{Cluster, finish};
use crate::frameworks::{example, has_learned, support, virtual_environment, watched};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("nodes::faults::paddle_trains_on_two_hosts", &[Netns, Paddle], || trains(&[], "paddle_train.py"))
        .test("nodes::faults::paddle_trains_on_two_hosts_with_a_relay", &[Netns, Paddle], || {
            trains(&["--store-relay"], "paddle_train.py");
        })
        .test("nodes::faults::torch_trains_on_two_hosts", &[Netns, Torch], || trains(&[], "torch_ddp.py"))
        .test("nodes::faults::paddle_rank_of_the_second_host_is_the_cause", &[Netns, Paddle], || {
            names_the_cause("paddle_fails.py", "3");
        })
        .test("nodes::faults::paddle_rank_of_the_first_host_is_the_cause", &[Netns, Paddle], || {
            names_the_cause("paddle_fails.py", "0");
        })
        .test("nodes::faults::torch_rank_of_the_second_host_is_the_cause", &[Netns, Torch], || {
            names_the_cause("torch_fails.py", "3");
        });
}

/// Frameworks keep caches in the home and temporary directories; only files of umiak must be gone.
fn train(cluster: &Cluster, words: &[&str]) -> Vec<Outcome> {
    let snapshot = cluster.snapshot();
    let ips = cluster.network.ips();
    let words = [&["launch", "--ips", &ips, "--nproc_per_node", "2", "--grace", "3s"], words].concat();
    let mut runs = Vec::new();
    for (sandbox, host) in cluster.sandboxes.iter().zip(cluster.network.hosts()) {
        let (home, temporary) = (sandbox.path().join("home"), sandbox.path().join("caches"));
        std::fs::create_dir(&temporary).expect("the sandbox can be written");
        let run = sandbox.umiak(&words).env("HOME", home).env("TMPDIR", temporary);
        runs.push(run.env("VIRTUAL_ENV", virtual_environment()).on(host).start());
    }
    let outcomes = finish(runs);
    for sandbox in &cluster.sandboxes {
        let left: Vec<String> = sandbox.list("caches").into_iter().filter(|name| name.starts_with("umiak-")).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
    snapshot.assert_as_before();
    outcomes
}

fn trains(flags: &[&str], script: &str) {
    let first = watched(|| {
        let script = example(script);
        let words = [flags, &[&script, "--steps", "60"]].concat();
        let mut outcomes = train(&Cluster::new(2), &words);
        outcomes[1].expect_code(outcomes[0].code());
        outcomes.swap_remove(0)
    });
    has_learned(&first, 4);
}

fn names_the_cause(script: &str, failing: &str) {
    let cluster = Cluster::new(2);
    let outcomes = train(&cluster, &[&support(script), failing]);
    for outcome in outcomes {
        outcome
            .expect_code(1)
            .expect_err(" after ")
            .expect_err(&format!("Out of all 4 trainers, the trainer process with rank=[{failing}] was aborted"))
            .expect_err(&format!("✗ rank {failing} on "))
            .expect_err("ValueError: label 17 is out of range");
        assert_eq!(outcome.err().matches("✗ rank").count(), 1, "others were blamed:\n{}", outcome.err());
    }
}
