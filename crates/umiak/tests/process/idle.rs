//! A job that only runs costs nothing: umiak does not wake up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite.test("idle::nobody_wakes_up_in_ten_seconds", &[], nobody_wakes_up).test(
        "idle::the_last_sweep_waits_without_waking_up",
        &[],
        sweep_sleeps,
    );
}

/// The timers of a failed attempt are still armed when the job is over; none is due during the grace period of
/// leftovers.
fn sweep_sleeps() {
    let sandbox = Sandbox::new();
    let actions = &["0:stubborn;daemon;touch left;exit 3", "1:sleep 600000"];
    let run = sandbox.launch_toy("--nproc_per_node 2 --grace 30s", actions).start();
    run.wait_for_file("left");
    let journal = || sandbox.read_if_there("state/runs/run-000001/journal.jsonl").unwrap_or_default();
    let is_told = || String::from_utf8_lossy(&journal()).contains("\"diagnosed\"");
    run.wait_until("the verdict", is_told);
    // The timer of the settle window has expired.
    std::thread::sleep(Duration::from_secs(1));
    // Only the driver thread counts: the screen regularly checks for output of leftovers.
    let driver =
        || switches(&[run.pid()]).into_iter().filter(|(name, _)| name.starts_with("umiak ")).collect::<Vec<_>>();
    let before = driver();
    assert_eq!(before.len(), 1, "{before:?}");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(before, driver(), "context switches of the driver");
    run.signal(15);
    run.signal(2);
    run.finish().expect_code(3);
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
    // Lines about the start may still be printed, so the count starts after one quiet second.
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

/// Context switches of every thread of these processes. A thread that was not scheduled did not wake up.
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
