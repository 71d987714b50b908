//! A job that only runs costs nothing: nobody of ours wakes up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite.test("idle::nobody_wakes_up_in_ten_seconds", &[], nobody_wakes_up);
}

fn nobody_wakes_up() {
    let sandbox = Sandbox::new();
    let run = sandbox.launch_toy("--nproc_per_node 64", &["*:print up;sleep 600000"]).start();
    let is_up = |rank: usize| {
        std::fs::read(sandbox.path().join(format!("log/workerlog.{rank}"))).is_ok_and(|log| !log.is_empty())
    };
    run.wait_until("64 ranks", || (0..64).all(is_up));
    let guardian = umiak_sys::descend::children(run.pid())[0];
    let count = || switches(&[run.pid(), guardian]);
    // The last lines about the start may still be on their way: quiet begins with a second without any.
    let mut last = count();
    let mut since = Instant::now();
    run.wait_until("a quiet second", || {
        let now = count();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_secs(1)
    });
    let before = count();
    assert!(before.len() >= 3, "front, screen and guardian: {before:?}");
    std::thread::sleep(Duration::from_secs(10));
    let after = count();
    assert_eq!(before, after, "context switches by thread");
    run.signal(15);
    run.finish().expect_code(143);
}

/// Context switches of every thread of these: a thread that was never scheduled has not woken up.
fn switches(pids: &[u32]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for pid in pids {
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            let count = status
                .lines()
                .filter(|line| line.contains("ctxt_switches"))
                .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
                .sum();
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            counts.insert(format!("{} {}", name.trim_end(), task.file_name().to_string_lossy()), count);
        }
    }
    counts
}
