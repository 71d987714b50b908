//! Two nodes, with one rank on the first and two on the second.

use umiak_testkit::components::Component::{Netns, Torch};
use umiak_testkit::sandbox::Outcome;
use umiak_testkit::suite::Suite;

use super::torchrun;
use crate::nodes::{Cluster, finish};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("torchrun::nodes_meet_by_rank", &[Netns, Torch], || collectives(STATIC))
        .test("torchrun::nodes_meet_by_c10d", &[Netns, Torch], || collectives(C10D))
        .test("torchrun::nodes_restart_together", &[Netns], restart)
        .test("torchrun::failure_of_the_second_node_is_on_both_consoles", &[Netns], failure);
}

const STATIC: &str =
    "--nnodes 2 --node-rank $NODE --master-addr 192.168.0.1 --master-port 29500 --nproc-per-node $PROCESSES";
const C10D: &str =
    "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 192.168.0.1 --rdzv-id job7 --nproc-per-node $PROCESSES";

fn flags(flags: &str, node: usize) -> String {
    flags.replace("$NODE", &node.to_string()).replace("$PROCESSES", &(node + 1).to_string())
}

fn collectives(line: &str) {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let start = |node: usize| {
        let run = torchrun(&cluster.sandboxes[node], &flags(line, node), "collectives.py", &[]);
        run.on(cluster.network.host(node)).start()
    };
    let outcomes = finish((0..2).map(start).collect());
    snapshot.assert_as_before();
    for (node, ranks) in [(0, vec![0]), (1, vec![1, 2])] {
        outcomes[node].expect_code(0);
        for rank in ranks {
            outcomes[node].expect_out(&format!("rank {rank}/3: torch "));
        }
        outcomes[node].expect_out(", sum 9, hosted True\n");
    }
}

/// Runs this shell script on both nodes.
fn shell(line: &str, script: &str) -> Vec<Outcome> {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let start = |node: usize| {
        let sandbox = &cluster.sandboxes[node];
        sandbox.write("train.sh", script);
        let flags = flags(line, node);
        let words = ["torchrun", "--no-python"].into_iter().chain(flags.split(' ')).chain(["sh", "train.sh"]);
        sandbox.umiak(words).on(cluster.network.host(node)).start()
    };
    let outcomes = finish((0..2).map(start).collect());
    snapshot.assert_as_before();
    outcomes
}

fn restart() {
    let script = "
echo \"rank $RANK restart $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS\"
[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0
[ $RANK = 2 ] && exit 5
exec sleep 60000
";
    for line in [STATIC, C10D] {
        let outcomes = shell(&format!("{line} --max-restarts 1"), script);
        for (node, ranks) in [(0, vec![0]), (1, vec![1, 2])] {
            outcomes[node].expect_code(0);
            for rank in ranks {
                outcomes[node].expect_out(&format!("rank {rank} restart 1 of 1\n"));
            }
        }
    }
}

fn failure() {
    let script = "
[ $RANK = 2 ] || exec sleep 60000
echo 'ValueError: bad batch' >&2
exit 7
";
    for outcome in shell(STATIC, script) {
        outcome.expect_err("rank 2 on ").expect_err("exited with 7").expect_err("ValueError: bad batch");
        assert_ne!(outcome.code(), 0);
    }
}
