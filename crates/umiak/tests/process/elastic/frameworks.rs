//! Real training that goes on while nodes come and go: its result is that of an undisturbed run.

use std::path::Path;
use std::time::{Duration, SystemTime};

use umiak_testkit::components::Component::{Etcd, Netns, Paddle, Torch};
use umiak_testkit::components::trials;
use umiak_testkit::etcd;
use umiak_testkit::sandbox::{Outcome, Running, Sandbox};
use umiak_testkit::suite::Suite;

use super::{SIGKILL, SIGTERM};
use crate::frameworks::{example, prepared, train, virtual_environment, watched};
use crate::nodes::Cluster;

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("elastic::torch_trains_through_changes", &[Netns, Torch], || through_changes(TORCH, &[], trials(20) / 5))
        .test("elastic::paddle_trains_through_changes", &[Netns, Paddle], || {
            through_changes(PADDLE, &["--framework", "paddle"], trials(20) / 10);
        })
        .test("elastic::etcd::paddle_trains_through_changes", &[Netns, Paddle, Etcd], || {
            through_changes(PADDLE_ETCD, &["--framework", "paddle"], trials(20) / 10);
        });
}

const TORCH: &str = "torchrun --nnodes 1:3 --rdzv-backend c10d --rdzv-endpoint 192.168.0.1:29400 --rdzv-conf last_call_timeout=1 --max-restarts 100 --grace 2s --nproc-per-node 1";
const PADDLE: &str =
    "launch --nnodes 1:3 --master 192.168.0.1:6768 --elastic_timeout 1 --max_restart 100 --grace 2s --nproc_per_node 1";
const PADDLE_ETCD: &str = "launch --elastic_server=ETCD --job_id=job1 --np=1:3 --elastic_timeout 1 --max_restart 100 --grace 2s --nproc_per_node 1";
/// Steps for each change, and at the end.
const STEPS: usize = 30;

/// The third node joins, is killed, joins again, is stopped, and so on.
fn through_changes(line: &str, framework: &[&str], changes: usize) {
    let steps = (STEPS * (changes + 1)).to_string();
    let script = example("elastic_train.py");
    let expected = undisturbed(&script, &steps);
    let cluster = Cluster::new(4);
    let member = [cluster.network.host(3)];
    let etcd = line.contains("ETCD").then(|| etcd::Cluster::on(&member));
    let line = etcd.as_ref().map_or(line.to_owned(), |etcd| line.replace("ETCD", &etcd.address(0)));
    let snapshot = cluster.snapshot();
    let checkpoint = cluster.sandboxes[0].path().join("checkpoint");
    let start = |host: usize| {
        let path = checkpoint.to_str().expect("a path in UTF-8");
        let arguments = [&[script.as_str(), path, "--steps", &steps, "--pause", "0.05"], framework].concat();
        let words: Vec<&str> = line.split(' ').chain(arguments).collect();
        let run = prepared(&cluster.sandboxes[host], &virtual_environment(), &words);
        run.on(cluster.network.host(host)).start()
    };
    let mut first = start(0);
    let second = start(1);
    let mut third = None;
    let mut done = 0;
    while done < changes && trains_on(&mut first, &checkpoint) {
        match third.take() {
            None => third = Some(start(2)),
            Some(run) => end(run, if done % 4 == 1 { SIGKILL } else { SIGTERM }),
        }
        done += 1;
    }
    assert!(done * 4 >= changes * 3, "it ended after {done} of {changes} changes");
    let outcome = first.finish();
    outcome.expect_code(0).expect_out(&expected);
    second.finish().expect_code(0);
    let _ = third.map(Running::finish);
    snapshot.assert_as_before();
}

fn end(run: Running<'_>, signal: i32) {
    run.signal(signal);
    let _ = run.finish();
}

/// `done: loss 0.0123 after 100 steps`.
fn undisturbed(script: &str, steps: &str) -> String {
    let outcome: Outcome = watched(|| {
        let sandbox = Sandbox::new();
        train(&sandbox, &["torchrun", script, "checkpoint", "--steps", steps])
    });
    outcome.expect_code(0);
    let text = outcome.out();
    let line = text.lines().find(|line| line.contains("done: ")).expect("a last line");
    line[line.find("done: ").expect("just found")..].to_owned()
}

/// Waits until two more checkpoints are written. False if the run ends first.
fn trains_on(run: &mut Running<'_>, checkpoint: &Path) -> bool {
    let written = || checkpoint.metadata().and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let (mut last, mut times) = (written(), 0);
    while times < 2 {
        if !run.is_running() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
        let now = written();
        times += usize::from(now != last);
        last = now;
    }
    true
}
