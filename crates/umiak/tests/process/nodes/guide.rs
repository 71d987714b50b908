//! The user guide's lines for two nodes, typed after `umiak` unchanged, and the lines of umiak's own guide.

use serde_json::Value;
use umiak_testkit::components::Component::{Netns, Python};
use umiak_testkit::net::Network;
use umiak_testkit::sandbox::{Outcome, Running};
use umiak_testkit::suite::Suite;

use crate::shell::Shell;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("nodes::the_guides_lines_for_two_nodes", &[Netns, Python], the_guides_lines)
        .test("nodes::other_cards_on_each_node", &[Netns, Python], other_cards)
        .test("nodes::on_paddlecloud_ips_may_be_omitted", &[Netns, Python], paddlecloud)
        .test("nodes::our_guides_lines", &[Netns], our_guide)
        .test("nodes::the_lines_of_the_guide_to_torchrun", &[Netns], torchrun);
}

/// Writes its arguments and environment to `seen.RANK`.
const TRAIN: &str = r#"
import json, os, sys
rank = os.environ["PADDLE_TRAINER_ID"]
with open("seen." + rank, "w") as file:
    json.dump({"argv": sys.argv[1:], "env": dict(os.environ)}, file)
print("output of rank", rank)
"#;

const GPUS: u32 = 8;

/// Runs one line on each of two nodes, and returns what each rank received.
#[track_caller]
fn on_two_nodes(lines: [&str; 2], env: impl Fn(usize) -> Vec<(&'static str, String)>) -> Vec<Value> {
    let network = Network::new(2);
    let shells = [(); 2].map(|()| Shell::with_python().with_gpus(GPUS));
    let tmp: Vec<_> = shells.iter().map(|shell| shell.sandbox.path().join("tmp")).collect();
    let snapshot = network.snapshot(&[&tmp[0], &tmp[1]]);
    let runs: Vec<_> = (0..2)
        .map(|node| {
            let shell = &shells[node];
            shell.sandbox.write("train.py", TRAIN);
            shell.sandbox.write("train_script", TRAIN);
            let run = shell.line(lines[node]);
            let run = env(node).into_iter().fold(run, |run, (name, value)| run.env(name, value));
            run.on(network.host(node)).start()
        })
        .collect();
    let outcomes: Vec<_> = runs.into_iter().map(Running::finish).collect();
    for (line, outcome) in lines.iter().zip(&outcomes) {
        assert_eq!(outcome.code(), 0, "{line}\n{}", outcome.err());
    }
    snapshot.assert_as_before();
    let mut seen = Vec::new();
    for (node, (shell, outcome)) in shells.iter().zip(&outcomes).enumerate() {
        let sandbox = &shell.sandbox;
        let here = sandbox.list(".").iter().filter(|name| name.starts_with("seen.")).count();
        let first = seen.len();
        assert_eq!(outcome.out(), format!("output of rank {first}\n"), "node {node} mirrors its first rank");
        for rank in first..first + here {
            seen.push(serde_json::from_str(&sandbox.read(&format!("seen.{rank}"))).expect("JSON"));
            assert!(sandbox.list("log").contains(&format!("workerlog.{rank}")), "logs count through all nodes");
        }
        let endpoints = sandbox.read("log/endpoints.log");
        assert_eq!(endpoints, shells[0].sandbox.read("log/endpoints.log"), "the same on every node");
    }
    check_variables(&seen, &shells[0].sandbox.read("log/endpoints.log"));
    seen
}

/// Checks the variables that every rank must have, for any line.
#[track_caller]
fn check_variables(seen: &[Value], endpoints_log: &str) {
    let variable = |rank: usize, name: &str| seen[rank]["env"][name].as_str().unwrap_or_default().to_owned();
    let endpoints: Vec<&str> = endpoints_log.lines().skip(1).collect();
    assert_eq!(endpoints.len(), seen.len());
    let half = seen.len() / 2;
    for rank in 0..seen.len() {
        let (node, local) = (rank / half, rank % half);
        for (name, value) in [
            ("PADDLE_TRAINERS_NUM", seen.len().to_string()),
            ("PADDLE_TRAINER_ENDPOINTS", endpoints.join(",")),
            ("PADDLE_CURRENT_ENDPOINT", endpoints[rank].to_owned()),
            ("PADDLE_LOCAL_RANK", local.to_string()),
            ("PADDLE_NNODES", "2".to_owned()),
            ("PADDLE_LOCAL_SIZE", half.to_string()),
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", seen.len().to_string()),
            ("LOCAL_RANK", local.to_string()),
            ("GROUP_RANK", node.to_string()),
            ("MASTER_ADDR", "192.168.0.1".to_owned()),
            ("GLOO_SOCKET_IFNAME", "eth0".to_owned()),
            ("NCCL_SOCKET_IFNAME", "eth0".to_owned()),
        ] {
            assert_eq!(variable(rank, name), value, "{name} of rank {rank}");
        }
        assert!(endpoints[rank].starts_with(&format!("192.168.0.{}:", node + 1)), "{endpoints:?}");
    }
    let distinct: std::collections::BTreeSet<&&str> = endpoints.iter().collect();
    assert_eq!(distinct.len(), endpoints.len());
}

fn nothing(_: usize) -> Vec<(&'static str, String)> {
    Vec::new()
}

fn the_guides_lines() {
    for (line, ranks, arguments) in [
        (r#"umiak python -m paddle.distributed.launch --ips="192.168.0.1,192.168.0.2" train_script"#, 16, vec![]),
        (
            r#"umiak python -m paddle.distributed.launch --gpus=0,1,2,3 --ips="192.168.0.1,192.168.0.2" train_script"#,
            8,
            vec![],
        ),
        (
            r#"umiak python -m paddle.distributed.launch --gpus="0,1,2,3,4,5,6,7" --ips="192.168.0.1,192.168.0.2" train.py --batch_size=64"#,
            16,
            vec!["--batch_size=64"],
        ),
        (
            r#"umiak python -m paddle.distributed.launch --gpus="0,1" --ips="192.168.0.1,192.168.0.2" train.py"#,
            4,
            vec![],
        ),
    ] {
        let seen = on_two_nodes([line, line], nothing);
        assert_eq!(seen.len(), ranks, "{line}");
        for rank in &seen {
            assert_eq!(rank["argv"], serde_json::json!(arguments), "{line}");
        }
    }
}

/// Different cards on each node, the same number of them.
fn other_cards() {
    let seen = on_two_nodes(
        [
            r#"umiak python -m paddle.distributed.launch --gpus=0,1 --ips="192.168.0.1,192.168.0.2" train.py --batch_size=64"#,
            r#"umiak python -m paddle.distributed.launch --gpus=2,3 --ips="192.168.0.1,192.168.0.2" train.py --batch_size=64"#,
        ],
        nothing,
    );
    for (rank, visible) in [(0, "0,1"), (1, "0,1"), (2, "2,3"), (3, "2,3")] {
        assert_eq!(seen[rank]["env"]["CUDA_VISIBLE_DEVICES"], visible);
        assert_eq!(seen[rank]["env"]["FLAGS_selected_gpus"], (rank % 2).to_string());
    }
}

/// The platform's variables replace `--ips`, for both generations.
fn paddlecloud() {
    let platform = |node: usize| {
        vec![
            ("PADDLE_TRAINERS", "192.168.0.1,192.168.0.2".to_owned()),
            ("POD_IP", format!("192.168.0.{}", node + 1)),
            ("PADDLE_TRAINER_ID", node.to_string()),
            ("PADDLE_TRAINERS_NUM", "2".to_owned()),
            ("TRAINER_PORTS_NUM", "2".to_owned()),
            ("PADDLE_PORT", "6270".to_owned()),
        ]
    };
    let legacy = "umiak python -m paddle.distributed.fleet.launch --gpus=0,1 train.py";
    let seen = on_two_nodes([legacy, legacy], platform);
    assert_eq!(seen[3]["env"]["PADDLE_CURRENT_ENDPOINT"], "192.168.0.2:6271", "the platform's ports");
    let endpoints = |node: usize| {
        let mut all = platform(node);
        all.push(("PADDLE_TRAINER_ENDPOINTS", "192.168.0.1:6170,192.168.0.2:6170".to_owned()));
        all
    };
    let current = "umiak python -m paddle.distributed.launch --gpus=0,1 train.py";
    assert_eq!(on_two_nodes([current, current], endpoints).len(), 4);
}

/// Runs the lines of the guide to torchrun that are for two nodes.
fn torchrun() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/torchrun.md");
    let guide = std::fs::read_to_string(guide).expect("the guide is there");
    let blocks = guide.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let blocks: Vec<&str> = blocks.filter(|block| block.contains("--nnodes 2")).collect();
    assert_eq!(blocks.len(), 2, "one block for each backend");
    for block in blocks {
        let lines: Vec<&str> = block.lines().collect();
        let cluster = super::Cluster::new(2);
        let snapshot = cluster.snapshot();
        let shells = [(); 2].map(|()| Shell::with_decoy());
        let start = |node: usize| {
            let path = shells[node].sandbox.write("hello.sh", "#!/bin/sh\necho \"rank $RANK of $WORLD_SIZE\"\n");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(path, mode).expect("a mode");
            shells[node].line(lines[node % lines.len()]).on(cluster.network.host(node)).start()
        };
        let outcomes = super::finish((0..2).map(start).collect());
        let mut seen: Vec<String> = Vec::new();
        for outcome in &outcomes {
            assert_eq!(outcome.code(), 0, "{block}\n{}", outcome.err());
            seen.extend(outcome.out().lines().map(str::to_owned));
        }
        seen.sort();
        assert_eq!(seen, [0, 1, 2, 3].map(|rank| format!("rank {rank} of 4")), "{block}");
        snapshot.assert_as_before();
    }
}

/// Runs every `sh` block of the guide to several nodes on two nodes. A block of two lines has one for each node.
fn our_guide() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/multi-node.md");
    let guide = std::fs::read_to_string(guide).expect("the guide is there");
    let blocks: Vec<&str> = guide.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 3, "the guide has examples");
    for block in blocks {
        let lines: Vec<&str> = block.lines().collect();
        let pair = if lines.len() == 2 { [lines[0], lines[1]] } else { [block, block] };
        let cluster = super::Cluster::new(2);
        let snapshot = cluster.snapshot();
        let script = "#!/bin/sh\necho \"rank $PADDLE_TRAINER_ID of $PADDLE_TRAINERS_NUM\"\n";
        let shells = [(); 2].map(|()| Shell::with_decoy().with_gpus(4));
        let runs: Vec<_> = (0..2)
            .map(|node| {
                let shell = &shells[node];
                let path = shell.sandbox.write("evaluate.sh", script);
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                std::fs::set_permissions(path, mode).expect("a mode");
                shell.line(pair[node]).on(cluster.network.host(node)).start()
            })
            .collect();
        let outcomes = super::finish(runs);
        for outcome in &outcomes {
            assert_eq!(outcome.code(), 0, "{block}\n{}", outcome.err());
        }
        let first: std::collections::BTreeSet<String> = outcomes.iter().map(Outcome::out).collect();
        assert_eq!(first.into_iter().collect::<String>(), "rank 0 of 4\nrank 2 of 4\n", "{block}");
        snapshot.assert_as_before();
    }
}
