//! The guide's lines for two nodes in two Podman containers: umiak is PID 1 of each, with default capabilities.

use umiak_testkit::components::Component;
use umiak_testkit::podman::Podman;
use umiak_testkit::sandbox::{Outcome, Running, Sandbox};
use umiak_testkit::suite::Suite;

use super::{WAIT, finish};

pub(crate) fn register(suite: &mut Suite) {
    let needs = &[Component::Podman];
    suite
        .test("nodes::containers::ranks", needs, ranks)
        .test("nodes::containers::one_master", needs, master)
        .test("nodes::containers::a_failure_on_one_ends_both", needs, failure)
        .test("nodes::containers::an_interrupt_of_one_ends_both", needs, interrupt);
}

/// Two containers with a directory each.
struct Pair {
    podman: Podman,
    sandboxes: [Sandbox; 2],
}

impl Pair {
    fn new() -> Self {
        Self { podman: Podman::new(), sandboxes: [Sandbox::new(), Sandbox::new()] }
    }

    /// Starts the same line in both; `$IPS` is the list of their addresses, `$FIRST` the first of them.
    fn start(&self, flags: &str, actions: &[&str]) -> Vec<Running<'_>> {
        let flags = flags.replace("$IPS", &Podman::ips(2)).replace("$FIRST", &Podman::ip(0).to_string());
        let start = |node: usize| self.podman.run(node, self.sandboxes[node].launch_toy(&flags, actions)).start();
        vec![start(0), start(1)]
    }

    /// Waits for the end; no process or container may be left.
    fn finish(&self, runs: Vec<Running<'_>>) -> Vec<Outcome> {
        let outcomes = finish(runs);
        self.podman.assert_nothing_left();
        outcomes
    }
}

const HELLO: &[&str] = &["*:env env;print hello"];

#[track_caller]
fn expect_ranks(pair: &Pair) {
    let list: Vec<String> =
        (0..2).map(Podman::ip).flat_map(|ip| [6070, 6071].map(|port| format!("{ip}:{port}"))).collect();
    for rank in 0..4 {
        let text = pair.sandboxes[rank / 2].read(&format!("env.{rank}"));
        let seen: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(seen["PADDLE_TRAINERS_NUM"], "4");
        assert_eq!(seen["PADDLE_TRAINER_ID"], rank.to_string());
        assert_eq!(seen["PADDLE_CURRENT_ENDPOINT"], list[rank]);
        assert_eq!(seen["PADDLE_TRAINER_ENDPOINTS"], list.join(","));
        assert_eq!(seen["GLOO_SOCKET_IFNAME"], "eth0");
        assert!(pair.sandboxes[rank / 2].read(&format!("log/workerlog.{rank}")).contains("hello"));
    }
}

fn ranks() {
    let pair = Pair::new();
    for outcome in pair.finish(pair.start("--ips=$IPS --nproc_per_node 2", HELLO)) {
        outcome.expect_code(0).expect_err("4 ranks on 2 nodes");
    }
    expect_ranks(&pair);
}

fn master() {
    let pair = Pair::new();
    for outcome in pair.finish(pair.start("--master $FIRST:6768 --nnodes 2 --nproc_per_node 2", HELLO)) {
        outcome.expect_code(0).expect_err("4 ranks on 2 nodes");
    }
    expect_ranks(&pair);
}

fn failure() {
    let pair = Pair::new();
    let actions = ["3:err ValueError: bad batch;exit 7", &format!("*:child;daemon;{WAIT}")];
    for outcome in pair.finish(pair.start("--ips=$IPS --nproc_per_node 2 --grace 1s", &actions)) {
        outcome.expect_code(7).expect_err("with rank=[3] was aborted").expect_err("ValueError: bad batch");
    }
}

fn interrupt() {
    for node in 0..2 {
        let pair = Pair::new();
        let actions =
            ["*:child;daemon", &format!("0:touch up;{WAIT}"), &format!("2:touch up;{WAIT}"), &format!("*:{WAIT}")];
        let runs = pair.start("--ips=$IPS --nproc_per_node 2 --grace 1s", &actions);
        for run in &runs {
            run.wait_for_file("up");
        }
        pair.podman.signal(node, "INT");
        for outcome in pair.finish(runs) {
            outcome.expect_code(130).expect_err("stopped by SIGINT");
        }
    }
}
