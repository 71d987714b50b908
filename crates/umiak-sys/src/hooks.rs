//! Where tests stop or slow umiak. Without the feature `test-hooks`, which only the tests of `umiak` turn on, nothing
//! here reads the environment, and the compiler drops what depends on it.

use std::time::Duration;

/// How long a rank rests between fork and exec: `UMIAK_TEST_PAUSE_BEFORE_EXEC`, in milliseconds.
pub(crate) fn pause_before_exec() -> Duration {
    Duration::from_millis(variable("PAUSE_BEFORE_EXEC").and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// How often a log says that its run goes on: a minute, or `UMIAK_TEST_HEARTBEAT` in milliseconds.
pub fn heartbeat() -> Duration {
    let millis = variable("HEARTBEAT").and_then(|text| text.parse().ok());
    millis.map_or(Duration::from_secs(60), Duration::from_millis)
}

/// Where in its journal a supervisor is killed, for tests of what it leaves behind. `UMIAK_TEST_JOURNAL_DIE` is `N` for
/// right after the first N records are in the file, `N.k` for when k bytes of the next one are too.
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

    /// How many bytes of this record's line are written before the kill, if it is the one.
    pub fn within(self, seq: u64, length: usize) -> Option<usize> {
        match self.bytes {
            None if seq + 1 == self.records => Some(length),
            Some(bytes) if seq == self.records => Some(bytes.min(length)),
            _ => None,
        }
    }
}

/// Kills this process as the kernel or another user would.
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
