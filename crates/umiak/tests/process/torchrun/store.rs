//! Umiak hosts torch's store.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;

use serde_json::{Value, json};
use umiak_testkit::components::Component::{Torch, Torch22};
use umiak_testkit::components::torch22_environment;
use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

use super::{script, torchrun_in};
use crate::frameworks::{assert_only_caches, prepared, train, virtual_environment, watched};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("torchrun::collectives_of_torch", &[Torch], || collectives(&virtual_environment()))
        .test("torchrun::collectives_of_torch_2_2", &[Torch22], || {
            collectives(&torch22_environment().expect("the suite has checked that it is here"));
        })
        .test("torchrun::held_ranks_are_named", &[Torch], held_ranks)
        .test("torchrun::launch_lets_a_script_choose_its_store", &[Torch], own_store)
        .test("torchrun::launch_with_an_agent_store", &[Torch], agent_store)
        .test("torchrun::documents_with_agent_stores", &[Torch], documents);
}

/// Each rank prints one line.
#[track_caller]
fn assert_all_agree(outcome: &Outcome, ranks: u32, hosted: &str) {
    outcome.expect_code(0);
    let sum = ranks * ranks * (ranks - 1) / 2;
    for rank in 0..ranks {
        let is_its = |line: &&str| line.starts_with(&format!("rank {rank}/{ranks}: torch "));
        let text = outcome.out();
        let line = text.lines().find(is_its).unwrap_or_else(|| panic!("no line of rank {rank}:\n{text}"));
        assert!(line.ends_with(&format!(", sum {sum}, hosted {hosted}")), "{line}");
    }
}

fn collectives(environment: &Path) {
    let outcome = watched(|| {
        let sandbox = Sandbox::new();
        let outcome = torchrun_in(environment, &sandbox, "--nproc-per-node 3", "collectives.py", &[]).finish();
        assert_only_caches(&sandbox);
        outcome
    });
    assert_all_agree(&outcome, 3, "True");
}

/// Ranks 3 and 6 have not reached the store: both are named while the others wait, and the job goes on when they come.
fn held_ranks() {
    let run = |flags: &str, is_named: &dyn Fn(&str) -> bool| {
        let sandbox = Sandbox::new();
        let script = script("held.py");
        let words = ["torchrun", "--nproc-per-node", "8"].into_iter().chain(flags.split_whitespace());
        let words: Vec<&str> = words.chain([script.as_str(), "3", "6"]).collect();
        let mut run = prepared(&sandbox, &virtual_environment(), &words);
        // Read while the job runs.
        let console = |name: &str| File::create(sandbox.path().join(name)).expect("the sandbox can be written");
        run.command.stdout(console("stdout")).stderr(console("stderr"));
        let running = run.start();
        running.wait_until("both ranks are named", || is_named(&(sandbox.read("stdout") + &sandbox.read("stderr"))));
        sandbox.write("go", "");
        let outcome = running.finish();
        assert_only_caches(&sandbox);
        assert_eq!(outcome.status.code(), Some(0), "{}", sandbox.read("stderr"));
        (sandbox.read("stdout"), sandbox.read("stderr"))
    };
    let (stdout, _) = run("", &|text| text.contains("ranks 3, 6 have not reached the store; others wait"));
    for rank in 0..8 {
        assert!(stdout.contains(&format!("rank {rank}: 8 ranks\n")), "{stdout}");
    }
    let waits = |text: &str| -> Vec<Value> {
        let facts = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        facts.filter(|fact| fact["type"] == "store_waits").collect()
    };
    let is_named = |fact: &Value| fact["missing"] == json!([3, 6]) && fact["absent"] == true;
    let (stdout, _) = run("--output json", &|text| waits(text).iter().any(is_named));
    let last = waits(&stdout).pop().expect("at least one");
    assert_eq!(last["clients"], 0, "the waiting is over: {last}");
}

/// Rank 0 hosts the store at the script's own address.
fn own_store() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|door| door.local_addr()).expect("a free port").port();
    let port = format!("MASTER_PORT={port}");
    let script = script("collectives.py");
    let words = ["launch", "--nproc_per_node", "2", "--show", "all", &script, "MASTER_ADDR=127.0.0.1", &port];
    let outcome = watched(|| train(&Sandbox::new(), &words));
    outcome.expect_code(0).expect_out("rank 0/2: torch ");
    assert!(outcome.out().contains("sum 2, hosted False"), "{}", outcome.out());
}

fn agent_store() {
    let script = script("collectives.py");
    let words = ["launch", "--agent-store", "--nproc_per_node", "2", &script];
    let outcome = watched(|| train(&Sandbox::new(), &words));
    outcome.expect_code(0).expect_out("sum 2, hosted True");
}

/// Two groups of a job have a store each, which is empty again after a restart; so have steps that run at once.
fn documents() {
    let python = virtual_environment().join("bin/python");
    let command = |name: &str| format!("[{}, {}]", python.display(), script(name));
    let role = |name: &str| format!("{{replicas: 2, contracts: torch, command: {}}}", command(name));
    let job = format!(
        "umiak: v1\nname: both\nstore: agent\npolicy: {{restarts: 1, backoff: 1ms}}\nroles:\n  left: {}\n  right: {}\n",
        role("late.py"),
        role("late.py")
    );
    let step = format!("{{store: agent, contracts: torch, replicas: 2, command: {}}}", command("collectives.py"));
    let steps = format!("umiak: v1\nname: steps\nsteps:\n  one: {step}\n  two: {step}\n");
    let run = |document: &str| {
        let sandbox = Sandbox::new();
        sandbox.write("job.yaml", document);
        let outcome = watched(|| train(&sandbox, &["run", "job.yaml"]));
        outcome.expect_code(0);
        sandbox
    };
    let sandbox = run(&job);
    for role in ["left", "right"] {
        for rank in 0..2 {
            let log = sandbox.read(&format!("state/runs/run-000001/tasks/{role}-{rank}/attempt-2/log"));
            assert!(log.contains(&format!("rank {rank}: sum 1 in attempt 2")), "{log}");
        }
    }
    let sandbox = run(&steps);
    for step in ["one", "two"] {
        let log = sandbox.read(&format!("state/runs/run-000001/tasks/{step}/main-0/attempt-1/log"));
        assert!(log.contains("sum 2, hosted True"), "{log}");
    }
}
