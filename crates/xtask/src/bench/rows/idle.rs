//! Memory and wake-ups of the launcher's own processes beside sleeping ranks.

use std::fs;
use std::time::Duration;

use umiak_sys::descend;

use super::{Setting, pids, sleepers};
use crate::bench::model::{Metric, Sample};
use crate::bench::peers::Peer;

/// Wait after the last rank has started.
const SETTLE: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(15);

pub(crate) fn measure(setting: &Setting, peer: &Peer, ranks: u32) -> anyhow::Result<Result<Sample, String>> {
    let directory = setting.directory()?;
    // No rank has this number: none fails.
    let running = match sleepers(setting, peer, ranks, ranks, &directory)? {
        Ok(running) => running,
        Err(trouble) => return Ok(Err(trouble)),
    };
    std::thread::sleep(SETTLE);
    let ranks_pids = pids(&directory, ranks)?;
    let own = own(running.pid, &ranks_pids);
    let before = switches(&own);
    std::thread::sleep(setting.watch);
    let after = switches(&own);
    let bytes = memory(&own);
    let ended = running.stop(GRACE)?;
    if ended.is_late {
        return Ok(Err(format!("did not finish within {} s", setting.limit.as_secs())));
    }
    let in_ten_seconds = (after - before) as f64 * 10.0 / setting.watch.as_secs_f64();
    let values = vec![(Metric::Memory, bytes / 1e6), (Metric::WakeUps, in_ten_seconds)];
    Ok(Ok(Sample { values, cpu_ms: None, remark: None }))
}

/// The launcher and everything below it that is no rank.
fn own(launcher: u32, ranks: &[u32]) -> Vec<u32> {
    let mut own = descend::descendants(launcher);
    own.push(launcher);
    own.retain(|pid| !ranks.contains(pid));
    own
}

/// The memory of a launcher's own processes.
pub(super) fn own_memory(launcher: u32, ranks: &[u32]) -> f64 {
    memory(&own(launcher, ranks))
}

fn memory(pids: &[u32]) -> f64 {
    let kib: u64 = pids.iter().filter_map(|pid| pss_kib(*pid)).sum();
    kib as f64 * 1024.0
}

fn pss_kib(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    field(&text, "Pss:")
}

/// How often any thread of these left the CPU, which equals the number of wake-ups.
fn switches(pids: &[u32]) -> u64 {
    let tasks = pids.iter().filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok()).flatten().flatten();
    tasks
        .filter_map(|task| {
            let text = fs::read_to_string(task.path().join("status")).ok()?;
            Some(field(&text, "voluntary_ctxt_switches:")? + field(&text, "nonvoluntary_ctxt_switches:")?)
        })
        .sum()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}
