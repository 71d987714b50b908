//! Hooks with which tests stop or delay umiak. Without the feature `test-hooks`, which only the tests of `umiak`
//! enable, nothing here reads the environment, and the compiler removes the hooks.

use std::time::Duration;

/// How long a rank waits between fork and exec: `UMIAK_TEST_PAUSE_BEFORE_EXEC`, in milliseconds.
pub(crate) fn pause_before_exec() -> Duration {
    Duration::from_millis(variable("PAUSE_BEFORE_EXEC").and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Interval of the heartbeat in the log: a minute, or `UMIAK_TEST_HEARTBEAT` in milliseconds.
pub fn heartbeat() -> Duration {
    let millis = variable("HEARTBEAT").and_then(|text| text.parse().ok());
    millis.map_or(Duration::from_secs(60), Duration::from_millis)
}

/// Time without a sign of its supervisor after which an agent does not wait for it: a minute, or `UMIAK_TEST_FORSAKEN` in
/// milliseconds.
pub fn forsaken() -> Duration {
    let millis = variable("FORSAKEN").and_then(|text| text.parse().ok());
    millis.map_or(Duration::from_secs(60), Duration::from_millis)
}

/// Where a supervisor is killed while it writes its journal. `UMIAK_TEST_JOURNAL_DIE` is `N` for right after the first
/// N records, or `N.k` for after k bytes of the next one.
#[derive(Debug, Clone, Copy)]
pub struct JournalDeath {
    records: u64,
    bytes: Option<usize>,
}

impl JournalDeath {
    pub fn asked_for() -> Option<Self> {
        let text = variable("JOURNAL_DIE")?;
        let (records, bytes) = text.split_once('.').map_or((text.as_str(), None), |(n, k)| (n, Some(k)));
        Some(Self { records: records.parse().ok()?, bytes: bytes.and_then(|bytes| bytes.parse().ok()) })
    }

    /// How many bytes of this record are written before the kill, if it happens in this record.
    pub fn within(self, seq: u64, length: usize) -> Option<usize> {
        match self.bytes {
            None if seq + 1 == self.records => Some(length),
            Some(bytes) if seq == self.records => Some(bytes.min(length)),
            _ => None,
        }
    }
}

/// Waits forever at a path that ends with `UMIAK_TEST_HANG_AT`, as if its file system hung; at `stacks`, where stacks are read.
pub fn hang_at(path: &std::path::Path) {
    if variable("HANG_AT").is_some_and(|end| path.ends_with(end)) {
        loop {
            std::thread::park();
        }
    }
}

/// True for a path that ends with `UMIAK_TEST_UNREPORTED`: the kernel reports no writes, as if another host made them.
pub(crate) fn is_unreported(path: &std::path::Path) -> bool {
    variable("UNREPORTED").is_some_and(|end| path.ends_with(end))
}

/// Kills this process with SIGKILL.
pub fn die() -> ! {
    loop {
        crate::descend::signal(std::process::id(), libc::SIGKILL);
        std::thread::park();
    }
}

#[cfg(feature = "test-hooks")]
fn variable(name: &str) -> Option<String> {
    std::env::var(format!("UMIAK_TEST_{name}")).ok()
}

#[cfg(not(feature = "test-hooks"))]
fn variable(_name: &str) -> Option<String> {
    None
}
