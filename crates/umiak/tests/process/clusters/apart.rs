//! Nodes that do not see the directory of the run: agents connect to the host that submits (`--slurm-connect`).

use std::cell::RefCell;

use umiak_testkit::components::Component::Slurm as Needed;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

use super::{Engine, Site};

pub(super) fn register(suite: &mut Suite) {
    let mut test = |name: &str, run: fn(&Site)| {
        suite.test(&format!("slurm: without a shared directory: {name}"), &[Needed], move || run(&site()));
    };
    test("logs and ends arrive", arrive);
    test("the cause of a failure is named", failure);
    test("restarts and servers", restart);
    test("a lost supervisor is resumed", resumed);
    test("a requeued job goes on", requeued);
    test("a dead supervisor's job is stopped", orphan);
    test("without the flag, the node says why", unseen);
    suite.test("slurm: a copy of umiak is used where nodes have none", &[Needed], copied);
}

const FLAGS: &str = "--slurm nodes=2 --slurm-connect=127.0.0.1";

fn site() -> Site {
    let sandbox = Sandbox::new();
    let state = sandbox.path().join("state");
    std::fs::create_dir_all(&state).expect("the sandbox can be written");
    let slurm = Some(RefCell::new(Slurm::start_hiding(3, Some(&state))));
    Site { sandbox, slurm, hosts: None, engine: Engine::Slurm }
}

/// Neither the state nor the keys of the connection stay.
fn assert_nothing_left(site: &Site) {
    site.assert_nothing_left();
    for unit in site.sandbox.list("state/runs/run-000001/units") {
        let files = site.sandbox.list(&format!("state/runs/run-000001/units/{unit}"));
        assert!(!files.contains(&"post.json".to_owned()), "keys are left: {files:?}");
    }
    assert_eq!(site.sandbox.list("tmp"), Vec::<String>::new(), "directories of agents");
}

fn arrive(site: &Site) {
    let document = "umiak: v1\nname: apart\ncontracts: [torch]\nroles: {trainer: {replicas: 4, command: 'ls \"$UMIAK_HOME\" 2>/dev/null; env | grep -c ^UMIAK_CONNECT; echo $RANK of $WORLD_SIZE at $MASTER_ADDR; seq 20000; echo end'}}\n";
    let outcome = site.run_with(document, FLAGS).finish();
    outcome.expect_code(0).expect_err("finished 4 replicas");
    for rank in 0..4 {
        let log = site.log(&format!("trainer-{rank}"), 1);
        assert!(log.starts_with(&format!("0\n{rank} of 4 at ")), "{}", &log[..200.min(log.len())]);
        assert!(log.ends_with("20000\nend\n"), "{} bytes", log.len());
    }
    let command = site.sandbox.read("state/runs/run-000001/tasks/trainer-0/attempt-1/command");
    assert!(command.starts_with("#!/bin/sh\n"), "{command}");
    assert_nothing_left(site);
}

fn failure(site: &Site) {
    let document = "umiak: v1\nname: fail\ncontracts: [torch]\nroles:\n  trainer:\n    replicas: 4\n    command: 'echo up; if [ $RANK = 2 ]; then sleep 0.3; echo \"ValueError: bad sample\" >&2; exit 7; fi; sleep 1000'\n";
    let outcome = site.run_with(document, FLAGS).finish();
    outcome.expect_code(7).expect_err("✗ trainer-2 on n").expect_err("ValueError: bad sample");
    assert_nothing_left(site);
}

fn restart(site: &Site) {
    let document = "umiak: v1\nname: again\npolicy: {restarts: 1, backoff: 10ms}\nroles:\n  server: {ports: {rpc: 1}, completes: false, command: [python3, -c, \"import os, socket, time\\ns = socket.socket()\\ns.bind(('', int(os.environ['UMIAK_PORT_RPC'])))\\ns.listen()\\ntime.sleep(1000)\"]}\n  trainer: {replicas: 2, start_after: server, command: 'echo attempt $UMIAK_ATTEMPT; [ $UMIAK_ATTEMPT = 2 ]'}\n";
    site.run_with(document, FLAGS).finish().expect_code(0);
    assert_eq!([site.log("trainer-1", 1), site.log("trainer-1", 2)], ["attempt 1\n", "attempt 2\n"]);
    assert_nothing_left(site);
}

fn resumed(site: &Site) {
    let document = "umiak: v1\nname: resumed\nroles: {trainer: {replicas: 2, command: 'echo up; until [ -e go ]; do sleep 0.05; done; echo done'}}\n";
    let running = site.run_with(document, FLAGS).start();
    running.wait_until("both run", || site.log("trainer-0", 1) == "up\n" && site.log("trainer-1", 1) == "up\n");
    running.signal(9);
    running.finish_unchecked();
    site.sandbox.write("go", "");
    site.umiak("resume").finish().expect_code(0).expect_err("adopted 2 replicas");
    assert_eq!(site.log("trainer-0", 1), "up\ndone\n");
    assert_eq!(site.log("trainer-0", 2), "", "one attempt");
    assert_nothing_left(site);
}

fn requeued(site: &Site) {
    let command = "trap 'sleep 0.2; echo saved; touch saved.$RANK; exit 0' TERM; if [ -e saved.$RANK ]; then echo restored; exit 0; fi; echo up; while :; do sleep 0.05; done";
    let document = format!(
        "umiak: v1\nname: requeue\npolicy: {{grace: 2s}}\ncontracts: [torch]\nroles: {{trainer: {{replicas: 2, command: {}}}}}\n",
        serde_json::to_string(command).expect("a string")
    );
    site.run_with(&document, &format!("{FLAGS} --slurm time=1 --slurm-warning 55s --slurm-requeue"))
        .finish()
        .expect_code(0);
    for replica in ["trainer-0", "trainer-1"] {
        let log = site.log(replica, 1);
        let reports = site.sandbox.read("state/runs/run-000001/units/0.1/agent-0.jsonl");
        assert!(log.starts_with("up\n") && log.ends_with("saved\nrestored\n"), "{log}\n{reports}");
    }
    assert_nothing_left(site);
}

fn orphan(site: &Site) {
    let document = "umiak: v1\nname: orphan\nroles: {trainer: {replicas: 2, command: 'trap \"echo saved; exit 0\" TERM; echo up; while :; do sleep 0.05; done'}}\n";
    let running = site.run_with(document, FLAGS).start();
    running.wait_until("both run", || site.log("trainer-0", 1) == "up\n" && site.log("trainer-1", 1) == "up\n");
    running.signal(9);
    running.finish_unchecked();
    site.umiak("stop 1").finish().expect_code(0);
    assert!(site.log("trainer-0", 1).ends_with("saved\n"));
    assert_nothing_left(site);
}

fn unseen(site: &Site) {
    let document = "umiak: v1\nname: unseen\nroles: {trainer: {command: ['true']}}\n";
    site.run_with(document, "").finish().expect_code(125).expect_err("--slurm-connect");
}

/// The nodes do not see the directory where umiak is installed.
fn copied() {
    let sandbox = Sandbox::new();
    let installed = sandbox.path().join("opt");
    std::fs::create_dir(&installed).expect("the sandbox can be written");
    let slurm = RefCell::new(Slurm::start_hiding(2, Some(&installed)));
    std::fs::copy(umiak_testkit::sandbox::binary(), installed.join("umiak")).expect("the sandbox can be written");
    let document = "umiak: v1\nname: copied\nroles: {trainer: {replicas: 2, command: 'echo $SLURMD_NODENAME'}}\n";
    sandbox.write("job.yaml", document);
    sandbox
        .program(&installed.join("umiak"), "run job.yaml --engine slurm --slurm nodes=2".split_whitespace())
        .env("SLURM_CONF", slurm.borrow().conf())
        .finish()
        .expect_code(0);
    let site = Site { sandbox, slurm: Some(slurm), hosts: None, engine: Engine::Slurm };
    assert_eq!([site.log("trainer-0", 1), site.log("trainer-1", 1)], ["n1\n", "n2\n"]);
    assert!(!site.sandbox.list("state/runs/run-000001/units/0.1").contains(&"umiak".to_owned()), "the copy is removed");
    site.assert_nothing_left();
}
