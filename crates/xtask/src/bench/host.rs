//! The machine of a measurement.

use std::fs;

/// CPU model and number of usable CPUs.
pub(crate) fn words() -> String {
    let processor = fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?.to_owned();
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{processor}, {count} CPUs")
}

pub(crate) fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", release.trim())
}
