//! Each replica has its own address.

use std::collections::BTreeSet;

use serde_json::Value;
use umiak_testkit::suite::Suite;

use super::{Stage, text};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run: addresses: one fixed port for all replicas", &[], fixed_port)
        .test("run: addresses: a fixed port that somebody else has", &[], taken_port)
        .test("run: addresses: two runs share none", &[], two_runs)
        .test("run: addresses: kept for the whole run", &[], kept);
}

const ALL_ON_8080: &str = "umiak: v1\nroles:\n  web: {replicas: 2, ports: {http: {port: 8080}}, command: [actor, ready, variable=UMIAK_HOST, variable=UMIAK_HOSTS_WEB, reach=UMIAK_ENDPOINTS_WEB_HTTP, print=met, sleep=60], completes: false}\n  client: {command: [actor, reach=UMIAK_ENDPOINTS_WEB_HTTP], start_after: web}\n";

/// Both replicas listen on 8080, and all replicas reach both.
fn fixed_port() {
    let stage = Stage::new("local");
    let document = ALL_ON_8080.replace("client: {", "client: {timeout: 60s, ");
    let running = stage.run(&document).start();
    for replica in ["web-0", "web-1"] {
        stage.wait_for_log(&running, replica, 1, "met");
    }
    running.finish().expect_code(0);
    let hosts = hosts(&stage.journal());
    let endpoints: Vec<String> = hosts[..2].iter().map(|host| format!("{host}:8080")).collect();
    let reached = format!("reached {}\n", endpoints.join("\nreached "));
    for (index, replica) in ["web-0", "web-1"].into_iter().enumerate() {
        let own = format!("UMIAK_HOST={}\nUMIAK_HOSTS_WEB={}\n", hosts[index], hosts[..2].join(","));
        assert_eq!(stage.log(replica, 1), format!("{own}{reached}met\n"));
    }
    assert_eq!(stage.log("client-0", 1), reached);
    stage.assert_nothing_left();
}

/// A process that holds the port on all addresses would answer for the replica, which would seem ready.
fn taken_port() {
    let stage = Stage::new("local");
    let other = std::net::TcpListener::bind("0.0.0.0:0").expect("a port of all addresses");
    let port = other.local_addr().expect("it is bound").port();
    let document = format!(
        "umiak: v1\nroles: {{s: {{ports: {{http: {{port: {port}}}}}, command: [actor, sleep=60]}}, w: {{command: [actor], start_after: s}}}}"
    );
    let outcome = stage.run(&document).finish();
    outcome.expect_code(125).expect_err("error[J0020]").expect_err(&format!("port {port} (`http` of role `s`)"));
    assert!(!stage.run_dir().exists(), "no run was recorded");
    // Two names for one port fail in the same way.
    let twice = "umiak: v1\nroles: {s: {ports: {a: {port: 8080}, b: {port: 8080}}, command: [actor]}}";
    stage.run(twice).finish().expect_code(125).expect_err("the role names it twice");
}

/// Two runs of the same document do not share addresses or ports.
fn two_runs() {
    let document = "umiak: v1\nroles: {web: {replicas: 2, ports: {http: {port: 8080}, rpc: 2}, command: [actor, ready, print=up, sleep=60]}}";
    let stages = [Stage::new("local"), Stage::new("local")];
    let running: Vec<_> = stages.iter().map(|stage| stage.run(document).start()).collect();
    for (stage, running) in stages.iter().zip(&running) {
        for replica in ["web-0", "web-1"] {
            stage.wait_for_log(running, replica, 1, "up");
        }
    }
    let all: Vec<String> = stages.iter().flat_map(|stage| hosts(&stage.journal())).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 4, "{all:?}");
    for (stage, running) in stages.iter().zip(running) {
        running.signal(2);
        running.finish().expect_code(130);
        stage.assert_nothing_left();
    }
}

/// Replicas have each other's endpoints, so a restarted replica keeps its address.
fn kept() {
    let stage = Stage::new("local");
    let document = "umiak: v1\nroles: {w: {ports: {rpc: 1}, restarts: {max: 1, backoff: 10ms}, command: [actor, ready, variable=UMIAK_ENDPOINTS_W_RPC, '@1:exit=1']}}";
    stage.run(document).finish().expect_code(0);
    assert_eq!(stage.log("w-0", 1), stage.log("w-0", 2));
    assert!(stage.log("w-0", 1).starts_with("UMIAK_ENDPOINTS_W_RPC=127."), "{}", stage.log("w-0", 1));
}

/// Returns the addresses of the replicas by rank.
fn hosts(facts: &[Value]) -> Vec<String> {
    let planned = facts.iter().find(|fact| fact["type"] == "planned").expect("a plan");
    let replicas = planned["replicas"].as_array().expect("replicas").iter();
    replicas.map(|replica| text(&replica["node"]).to_owned()).collect()
}
