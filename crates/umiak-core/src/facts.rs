//! What is recorded about a run. These facts are the journal, and they are what `--output json` prints:
//! one versioned format with one schema (`schemas/facts.v1.json`).
//!
//! Compatibility: a reader skips fact types and fields it does not know; a field is never renamed or
//! given another meaning within a version.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{Exit, Rank};

/// The version written by this build.
pub const VERSION: u32 = 1;

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// Format version, [`VERSION`].
    pub v: u32,
    /// Position in the run, from 0, without gaps.
    pub seq: u64,
    /// Microseconds since the Unix epoch.
    pub at: u64,
    #[serde(flatten)]
    pub fact: Fact,
}

/// A replica and which start of it is meant. Old attempts' events are fenced by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// `trainer-3`.
    pub replica: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    pub attempt: u32,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Fact {
    /// The job as it will be run; once for each attempt, whose endpoints and offsets are its own.
    Planned(Planned),
    /// An attempt is about to be started; written before it is.
    Starting { subject: Subject },
    /// The process exists.
    Started { subject: Subject, pid: u32 },
    /// The attempt is over.
    Ended {
        subject: Subject,
        exit: Exit,
        /// Whether our own signal ended it: then it is a victim, never a cause.
        by_us: bool,
        /// Position in the kernel's order of exits.
        order: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
    /// We decided to stop what is still running.
    Stopping { reason: StopReason },
    /// Signals are about to be sent.
    Signalled { signal: i32, replicas: Vec<String> },
    /// Ranks and launcher are stopped (Ctrl-Z) until they are continued.
    Paused,
    /// They run again.
    Continued,
    /// Which ranks caused the failure, and the evidence.
    Diagnosed(Verdict),
    /// Something worth knowing that changes nothing.
    Noticed { code: String, message: String },
    /// An event that does not fit the state: counted, kept, not acted on.
    Ignored { event: String, state: String },
    /// The processes named here did not go even after SIGKILL.
    Abandoned { replicas: Vec<String> },
    /// Processes that a rank left behind and that were stopped at the end.
    Swept { pids: Vec<u32> },
    /// The attempt has failed and is over; all replicas will be started again.
    Restarting {
        /// The attempt that will be started, numbered from 0 as in every subject.
        attempt: u32,
        /// How many attempts there are at most; not known where the budget is one per time window.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<u32>,
        /// How long it is waited before.
        delay_micros: u64,
    },
    /// The run is over.
    Finished { outcome: Outcome, exit_code: u8 },
}

/// The plan in the form that readers of the journal need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Planned {
    pub job: String,
    /// Which attempt of the whole group this is, from 0.
    #[serde(default)]
    pub attempt: u32,
    pub umiak: String,
    pub world_size: u32,
    pub log_dir: String,
    pub replicas: Vec<PlannedReplica>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedReplica {
    pub replica: String,
    pub rank: Rank,
    pub node: String,
    pub endpoint: String,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub devices: Vec<String>,
    /// Where its output goes, and the offset at which this attempt's part begins.
    pub log: String,
    pub log_start: u64,
}

/// What a process used, from the kernel's account of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    pub user_micros: u64,
    pub system_micros: u64,
    pub max_rss_kib: u64,
}

/// Why ranks were stopped; a stronger reason replaces a weaker one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum StopReason {
    /// The deciding roles have ended well.
    Completed,
    /// Another rank failed.
    PeerFailed,
    /// A node of the job is gone, or could not start.
    NodeLost,
    /// Another node's umiak received this signal.
    SignalElsewhere { signal: i32 },
    /// We received this signal.
    Signal { signal: i32 },
    /// We received a second one.
    SecondSignal { signal: i32 },
}

/// How the run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    Failed,
    Interrupted,
}

/// The ranking of everything that ended badly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The first causes, best first: never empty when a rank ended badly.
    pub causes: Vec<Finding>,
    /// Ranks that ended badly because of the causes.
    pub victims: Vec<Finding>,
}

/// One rank that ended badly, with what speaks for and against it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    pub subject: Subject,
    pub exit: Exit,
    /// How long it ran.
    pub ran_micros: u64,
    pub weight: Weight,
    /// It had failed by its own account, and our signal ended it before it was done ending.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub stopped_while_ending: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub evidence: Option<Evidence>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub usage: Option<Usage>,
}

/// How strongly a bad end speaks for being the cause; the order is the ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// A kernel fact, a refused start, or an unhandled error of its own.
    Certain,
    /// Ended badly before our first signal, without saying why.
    Likely,
    /// Ended badly after our first signal, but not by it, without saying why.
    Possible,
    /// Its own words say that a peer went first, or our signal ended it.
    Victim,
}

/// What a rank's log, and the kernel, say about its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
pub struct Evidence {
    /// The one line to show: the error itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub headline: Option<Line>,
    /// Innermost frame in the user's code, if there is a traceback: `train.py:88 in step  loss.backward()`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub place: Option<String>,
    /// The last traceback or C++ abort, as printed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub traceback: Vec<String>,
    /// The last lines of its output.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub last_lines: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signature: Option<SignatureMatch>,
    /// What the kernel says, where we may ask it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub kernel: Vec<KernelFact>,
}

/// What the kernel knows about the end of a process. Addresses are hexadecimal text, `0x7f0012`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum KernelFact {
    /// Killed because there was no memory.
    OomKilled {
        scope: OomScope,
        /// The kernel's log names the process; else its cgroup's count of kills has risen, and it ended by SIGKILL.
        named: bool,
        /// What it held when it was killed.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        resident_kib: Option<u64>,
        /// The limit that was reached.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        limit_kib: Option<u64>,
        /// The cgroup that reached it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        cgroup: Option<String>,
    },
    /// Processes of our cgroup were killed for memory during the run, and nothing says whether this was one of them.
    MemoryKills { count: u64 },
    /// An instruction could not be completed.
    Fault {
        kind: FaultKind,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        address: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        instruction: Option<String>,
        /// The library or program that the instruction belongs to.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        object: Option<String>,
        /// The thread, when it was not the main one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        thread: Option<u32>,
    },
    /// A core was dumped: to this file, if it could be found, by this `core_pattern`.
    CoreDumped {
        pattern: String,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        path: Option<String>,
    },
    /// Shared memory has no room left: touching a page of it ends a process with SIGBUS.
    SharedMemoryFull { path: String, free_bytes: u64 },
    /// A file system has no room left.
    DiskFull { path: String, free_bytes: u64 },
}

/// Whose memory was at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OomScope {
    Host,
    /// A cgroup's, by its limit.
    Cgroup,
    /// That of the NUMA nodes that it may use.
    Nodes,
}

/// What an instruction did wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    Segmentation,
    GeneralProtection,
    InvalidOpcode,
    Divide,
    /// The memory itself is broken.
    HardwareMemory,
    Other,
}

/// A line of a log and where it stands (counted from 1, in the whole file when that is known).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub number: Option<u64>,
}

/// A known signature found in a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignatureMatch {
    /// `U3102`.
    pub code: String,
    pub title: String,
    /// Whether the words say "a peer went first".
    pub victim: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
}
