//! Every time-out of the rendezvous; `docs/design/rendezvous.md` has the table.

use std::time::Duration;

/// Limits that a user can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `--rdzv-timeout`: until all nodes have joined.
    pub rendezvous: Duration,
    /// `--node-timeout`: silence until a node counts as lost.
    pub silence: Duration,
    /// `--reconnect-window`: how long a broken connection may take to come back.
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
    /// Silence until a node is suspect, which is displayed.
    pub fn suspect(&self) -> Duration {
        self.silence / 6
    }

    /// Silence until a node is lost, counted from the last message: the next one was due a heartbeat later, and a cut
    /// begins after the last message.
    pub fn lost(&self) -> Duration {
        self.silence + self.beat().min(Duration::from_millis(500))
    }

    /// Time until a node of an elastic job stops its ranks, counted from when its last message was sent that the
    /// coordinator has answered: before it is given up.
    pub fn fence(&self) -> Duration {
        self.silence * 2 / 3
    }

    /// Silence until an agent tries a second connection.
    pub fn second(&self) -> Duration {
        self.silence / 3
    }

    /// Time for one attempt at a second connection, and the interval between them.
    pub fn attempt(&self) -> Duration {
        (self.silence / 20).clamp(Duration::from_millis(250), Duration::from_secs(1))
    }

    /// Interval between heartbeats.
    pub fn beat(&self) -> Duration {
        (self.silence / 10).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }
}

/// Time until an address has accepted a connection. Longer for the first one than for later ones, which are repeated
/// more often.
pub const CONNECT: Duration = Duration::from_secs(5);
/// Connections refused for this long mean that the peer is gone: an agent's to the coordinator, and the coordinator's to
/// the port that a node of an elastic job keeps open.
pub const REFUSED: Duration = Duration::from_secs(2);
/// Interval between connections to that port: while they are refused, and the longest one otherwise.
pub const KNOCK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How long the ends of ranks are collected, counted from the stop, after the settle window.
pub const TELL: Duration = Duration::from_secs(1);
/// The same for a node that has reported a failed rank of its own.
pub const TELL_WHY: Duration = Duration::from_secs(10);
/// An agent that has reported its ends and gets no answer decides alone after this time.
pub const ANSWER: Duration = Duration::from_secs(5);
/// How long to wait for the goodbye of each node.
pub const GOODBYE: Duration = Duration::from_secs(5);
/// Trainers that end are progress: after those of one node have ended, the time without progress counts anew, and is at
/// least this long, so that the other nodes can report that they move again.
pub const RECHECK: Duration = Duration::from_secs(1);
/// Interval between `waiting` messages.
pub const NEWS: Duration = Duration::from_secs(1);
/// Interval between probes of the addresses of missing nodes.
pub const PROBE: Duration = Duration::from_secs(3);
/// Interval between connection attempts: the first and the longest.
pub const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
