//! Every time-out of the rendezvous; `docs/design/rendezvous.md` has the table.

use std::time::Duration;

/// What a user may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `--rdzv-timeout`: all nodes are there.
    pub rendezvous: Duration,
    /// `--node-timeout`: silence until a node is lost.
    pub silence: Duration,
    /// `--reconnect-window`: a broken connection may come back.
    pub reconnect: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rendezvous: Duration::from_secs(600),
            silence: Duration::from_secs(30),
            reconnect: Duration::from_secs(60),
        }
    }
}

impl Limits {
    /// Silence until a node is suspect, which is only shown.
    pub fn suspect(&self) -> Duration {
        self.silence / 6
    }

    /// Between two beats.
    pub fn beat(&self) -> Duration {
        (self.silence / 10).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }
}

/// A reconnection that is refused for so long means that nobody is there.
pub const REFUSED: Duration = Duration::from_secs(2);
/// Ends that were not told by then are not waited for; counted from the stop, after the settle window.
pub const TELL: Duration = Duration::from_secs(1);
/// The same for a node that has said that a rank of its own failed.
pub const TELL_WHY: Duration = Duration::from_secs(10);
/// An agent that has told its ends and hears nothing decides alone.
pub const ANSWER: Duration = Duration::from_secs(5);
/// Nodes that have not said goodbye by then are not waited for.
pub const GOODBYE: Duration = Duration::from_secs(5);
/// Between two `waiting` messages.
pub const NEWS: Duration = Duration::from_secs(1);
/// Between two looks at the addresses of missing nodes.
pub const PROBE: Duration = Duration::from_secs(3);
/// Between two tries to connect: the first, and the longest.
pub const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
