//! SIGKILL at any moment, on either of two hosts.

use umiak_sys::descend;
use umiak_testkit::components::Component::Netns;
use umiak_testkit::components::trials;
use umiak_testkit::suite::Suite;

use super::super::WAIT;
use super::super::expect_cause;
use super::super::kill::{Chance, SIGKILL, actions, expect_either, expect_killed, find, try_all};
use super::faults::FLAGS;
use crate::nodes::{Cluster, finish};

pub(crate) fn register(suite: &mut Suite) {
    suite.test("servers::kill::on_two_nodes", &[Netns], on_two_nodes).test(
        "servers::kill::when_the_trainers_of_two_nodes_end",
        &[Netns],
        at_the_end,
    );
}

/// Clusters in parallel.
const WORKERS: usize = 3;

fn on_two_nodes() {
    try_all(WORKERS, trials(50), || (), |(), index, chance| trial(index, chance));
}

/// `TOGETHER` has all roles on both hosts; `APART` has the servers on the first, and all others on the second.
const TOGETHER: &str = "--servers 192.168.0.1:6170,192.168.0.2:6170 --workers 192.168.0.1:6171,192.168.0.2:6171 \
     --heter_workers 192.168.0.1:6172,192.168.0.2:6172 --heter_devices cpu --grace 300ms";
const APART: &str = "--servers 192.168.0.1:6170,192.168.0.1:6171 --workers 192.168.0.2:6170,192.168.0.2:6171 \
     --heter_workers 192.168.0.2:6172,192.168.0.2:6173 --heter_devices cpu --grace 300ms";

fn trial(index: usize, chance: &mut Chance) -> String {
    let cluster = Cluster::new(2);
    let snapshot = cluster.snapshot();
    let apart = chance.coin();
    let actions = actions(chance);
    let actions: Vec<&str> = actions.iter().map(String::as_str).collect();
    let runs = cluster.launch_all(if apart { APART } else { TOGETHER }, &actions);
    let number = index / 4 % 2;
    let roles = ["pserver", "trainer", "heter_trainer"];
    let tried = if let Some(role) = roles.get(index % 4) {
        let name = format!("{role}-{number}");
        let host = if apart { usize::from(*role != "pserver") } else { number };
        let victim = find(&runs[host], &cluster.sandboxes[host], &name);
        chance.pause();
        descend::signal(victim, SIGKILL);
        for outcome in finish(runs) {
            outcome.expect_code(137);
            expect_cause(&outcome, &name, 2, "was killed by SIGKILL (killed) after");
        }
        format!("{name} on host {host}")
    } else {
        // Waits for both nodes: before all have joined, a node may leave and join again.
        find(&runs[0], &cluster.sandboxes[0], "pserver-0");
        let (host, other) = if apart { (1, "trainer-0") } else { (1, "pserver-1") };
        find(&runs[host], &cluster.sandboxes[host], other);
        chance.pause();
        runs[number].signal(SIGKILL);
        let outcomes = finish(runs);
        expect_killed(&outcomes[number]);
        let words = if number == 0 { "the coordinator was lost" } else { "its umiak was killed" };
        outcomes[1 - number].expect_code(123).expect_err(words);
        format!("front of host {number}")
    };
    snapshot.assert_as_before();
    tried
}

/// A server that dies while the last trainers end is a failure or not, but the same on all nodes.
fn at_the_end() {
    try_all(
        WORKERS,
        trials(50),
        || (),
        |(), index, chance| {
            let cluster = Cluster::new(2);
            let snapshot = cluster.snapshot();
            let host = index % 2;
            let name = format!("pserver-{host}");
            let stubborn = if chance.coin() { "pserver:stubborn" } else { "*:pid" };
            let actions = ["*:pid", stubborn, &format!("pserver:listen;{WAIT}"), "trainer:reach;await go"];
            let runs = cluster.launch_all(&FLAGS.replace("--grace 1s", "--grace 100ms"), &actions);
            for (place, run) in runs.iter().enumerate() {
                find(run, &cluster.sandboxes[place], &format!("trainer-{place}"));
            }
            let victim = find(&runs[host], &cluster.sandboxes[host], &name);
            cluster.go();
            chance.pause_within(0.05);
            descend::signal(victim, SIGKILL);
            let outcomes = finish(runs);
            for outcome in &outcomes {
                expect_either(outcome, &name);
            }
            let codes = [outcomes[0].code(), outcomes[1].code()];
            let said = || format!("{}\n---\n{}", outcomes[0].err(), outcomes[1].err());
            assert!(codes[0] == codes[1], "{name}: codes {codes:?}\n{}", said());
            snapshot.assert_as_before();
            format!("{name}: code {}", codes[0])
        },
    );
}
