//! N sleeping ranks, one of which exits with 7: until everything is stopped and the launcher has exited.

use std::fs::{self, OpenOptions};
use std::time::Duration;

use anyhow::Context as _;

use super::{Setting, sleepers};
use crate::bench::floor;
use crate::bench::harness::millis;
use crate::bench::model::{Metric, Sample};
use crate::bench::peers::{Kind, Peer};

pub(crate) fn measure(
    setting: &Setting,
    peer: &Peer,
    ranks: u32,
    round: usize,
) -> anyhow::Result<Result<Sample, String>> {
    let directory = setting.directory()?;
    let fails = ranks / 2;
    let running = match sleepers(setting, peer, ranks, fails, &directory)? {
        Ok(running) => running,
        Err(trouble) => return Ok(Err(trouble)),
    };
    std::thread::sleep(settle(round));
    let stamps = directory.join("ranks");
    OpenOptions::new().write(true).open(floor::go_file(&stamps))?;
    let ended = running.end()?;
    let is_expected = |code| code != 0 && (peer.kind != Kind::Umiak || code == i32::from(floor::FAILURE));
    if let Some(trouble) = ended.trouble(setting.limit, is_expected) {
        return Ok(Err(trouble));
    }
    let failed = fs::read_to_string(floor::stamp_file(&stamps, fails))?;
    let failed = failed.parse().with_context(|| format!("the failing rank has written `{failed}`"))?;
    Ok(Ok(Sample { cpu_ms: None, ..Sample::new(Metric::Crash, millis(failed, ended.gone), 0.0) }))
}

/// Time for ranks and launcher to settle. Spread over a second, so that the crash hits a polling launcher at different
/// points of its interval.
pub(super) fn settle(round: usize) -> Duration {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    Duration::from_millis(300) + Duration::from_secs_f64((round as f64 * GOLDEN).fract())
}
