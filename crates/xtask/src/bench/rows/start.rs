//! Start N × `/bin/true` and end.

use super::Setting;
use crate::bench::harness::{Running, millis};
use crate::bench::model::{Metric, Sample};
use crate::bench::peers::{Output, Peer};

pub(crate) fn measure(setting: &Setting, peer: &Peer, ranks: u32) -> anyhow::Result<Result<Sample, String>> {
    let directory = setting.directory()?;
    let mut command = peer.command(ranks, &directory, Output::Usual, &["/bin/true".into()]);
    let running = Running::start(&mut command, setting.limit)?;
    let began = running.began;
    let ended = running.end()?;
    Ok(match ended.trouble(setting.limit, |code| code == 0) {
        Some(trouble) => Err(trouble),
        None => Ok(Sample::new(Metric::Start, millis(began, ended.gone), ended.cpu_ms)),
    })
}
