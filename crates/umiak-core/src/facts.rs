//! The facts recorded about a run: the contents of the journal and of `--output json`, in one versioned
//! format with one schema (`schemas/facts.v1.json`).
//!
//! Compatibility: a reader skips unknown fact types and fields; a field is never renamed or given
//! another meaning within a version.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::model::{Blame, Classed, Exit, ExitClass, Instance, Rank, Scope, StepName, StopHow, Value};

mod pipeline;

pub use pipeline::{NodeEnd, NodeValues, PlannedPipeline, SkipReason};

/// The version written by this build.
pub const VERSION: u32 = 1;

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// The run, in the output of commands; omitted in the run's own journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Format version, [`VERSION`].
    pub v: u32,
    /// Position in the run, from 0, without gaps.
    pub seq: u64,
    /// Microseconds since the Unix epoch.
    pub at: u64,
    /// The number of the supervisor that wrote it, from 0. Records that an old one writes after a new one has begun are
    /// ignored.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,
    /// The step of the run, if the run has several jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepName>,
    #[serde(flatten)]
    pub fact: Fact,
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_user(blame: &Blame) -> bool {
    *blame == Blame::User
}

/// One attempt of a replica. It tells events of old attempts apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// `trainer-3`.
    pub replica: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    pub attempt: u32,
}

impl Fact {
    /// The values of a pipeline that it has.
    pub fn values(&mut self) -> Vec<&mut Value> {
        match self {
            Self::Resolved(values) => values.values(),
            Self::Looping { items } => items.iter_mut().collect(),
            _ => Vec::new(),
        }
    }

    /// The texts that come from elsewhere: from command lines, programs, their logs and other nodes. Without
    /// [`Self::values`].
    pub fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::Planned(planned) => vec![&mut planned.command],
            Self::Pending { reason } | Self::Refused { reason } => vec![reason],
            Self::Accepted { name } => vec![name],
            Self::Cancelled { by } => vec![by],
            Self::StoreWaits(waits) => waits.keys.iter_mut().map(|key| &mut key.key).collect(),
            Self::Ended { exit, .. } => exit.texts(),
            Self::Observed { replicas } => replicas.iter_mut().flat_map(Observed::texts).collect(),
            Self::Diagnosed(verdict) => {
                verdict.causes.iter_mut().chain(&mut verdict.victims).flat_map(Finding::texts).collect()
            }
            Self::AttemptFailed(finding) => finding.texts(),
            Self::Noticed { message, .. } => vec![message],
            Self::Resolved(values) => values.texts(),
            Self::Ignored { event, state } => vec![event, state],
            // Names that umiak gives or checks, and numbers.
            Self::Supervised(_)
            | Self::Starting { .. }
            | Self::Submitted { .. }
            | Self::Started { .. }
            | Self::Ready { .. }
            | Self::TimedOut { .. }
            | Self::Hung { .. }
            | Self::CollectiveTimeout { .. }
            | Self::Stopping { .. }
            | Self::StopSent { .. }
            | Self::Paused
            | Self::Continued
            | Self::EngineLost { .. }
            | Self::Abandoned { .. }
            | Self::Swept { .. }
            | Self::Retrying { .. }
            | Self::Restarting { .. }
            | Self::Resizing { .. }
            | Self::Spares { .. }
            | Self::Pipeline(_)
            | Self::Looping { .. }
            | Self::Skipped { .. }
            | Self::Cached { .. }
            | Self::Entered
            | Self::Left { .. }
            | Self::Finished { .. } => Vec::new(),
        }
    }
}

impl Finding {
    fn texts(&mut self) -> Vec<&mut String> {
        let mut texts = self.exit.texts();
        texts.extend(self.clue.iter_mut().flat_map(Clue::texts));
        texts.extend(self.evidence.iter_mut().flat_map(Evidence::texts));
        texts.extend(self.snapshot.iter_mut().flat_map(Snapshot::texts));
        texts
    }
}

impl Clue {
    fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::WrongAddress { address } => vec![address],
            Self::Suspended
            | Self::Signalled
            | Self::Named { .. }
            | Self::EndedEarly { .. }
            | Self::WrongRank { .. }
            | Self::NotListening { .. }
            | Self::NotConnected { .. }
            | Self::Remaining { .. }
            | Self::Elsewhere
            | Self::Unresponsive => Vec::new(),
        }
    }
}

impl Observed {
    fn texts(&mut self) -> Vec<&mut String> {
        let children = self.children.iter_mut().flat_map(Child::texts);
        self.snapshot.texts().into_iter().chain(children).collect()
    }
}

impl Child {
    pub fn texts(&mut self) -> Vec<&mut String> {
        std::iter::once(&mut self.name).chain(self.snapshot.texts()).collect()
    }
}

impl Snapshot {
    /// The names that the process has chosen.
    pub fn texts(&mut self) -> Vec<&mut String> {
        self.stack.iter_mut().flat_map(|frame| [&mut frame.function, &mut frame.file]).collect()
    }
}

impl Evidence {
    /// The texts that come from logs and error files.
    pub fn texts(&mut self) -> Vec<&mut String> {
        let headline = self.headline.iter_mut().map(|line| &mut line.text);
        let hint = self.signature.iter_mut().filter_map(|signature| signature.hint.as_mut());
        headline.chain(&mut self.place).chain(&mut self.traceback).chain(&mut self.last_lines).chain(hint).collect()
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Fact {
    /// A supervisor begins. The first record of each epoch.
    Supervised(Supervised),
    /// The job as it will be run. Written for each attempt, which has its own endpoints and offsets.
    Planned(Planned),
    /// An attempt is about to be started. Written before the start.
    Starting { subject: Subject },
    /// The engine has accepted the job, or a part of it, under this name. It outlives the supervisor.
    Submitted { handle: String },
    /// The scheduler's own name of the unit: `Slurm job 73`.
    Accepted { name: String },
    /// Why nothing runs yet, as reported by the engine.
    Pending { reason: String },
    /// The job was cancelled in the cluster itself. A stop follows.
    Cancelled { by: String },
    /// The process exists.
    Started {
        subject: Subject,
        #[serde(flatten)]
        instance: Instance,
    },
    /// It listens on all its ports.
    Ready { subject: Subject },
    /// The attempt exceeded a time limit: it has failed and will be stopped.
    TimedOut { subject: Subject, what: Limit, limit_micros: u64 },
    /// No replica has made progress for this long: the job hangs.
    Hung { limit_micros: u64 },
    /// Ranks have waited for a while at torch's store, which umiak hosts. Written when it changes; without clients that wait
    /// when it is over.
    StoreWaits(StoreWaits),
    /// A rank reported at torch's store that a collective operation timed out: the first one of this attempt.
    CollectiveTimeout {
        /// `None` if it is unknown which rank it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rank: Option<Rank>,
    },
    /// The attempt is over.
    Ended {
        subject: Subject,
        exit: Exit,
        /// What the job's table of exits says about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        classed: Option<Classed>,
        /// True if our own signal ended it. It is then a victim and never a cause, unless it had timed out.
        by_us: bool,
        /// Position in the kernel's order of exits.
        order: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        /// Where its output ends, in a log shared with other attempts and other runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        log_end: Option<LogEnd>,
    },
    /// The processes that are still running will be stopped.
    Stopping { reason: StopReason },
    /// These replicas are about to be interrupted, terminated or killed.
    StopSent { how: StopHow, replicas: Vec<String> },
    /// Ranks and launcher are suspended (Ctrl-Z).
    Paused,
    /// Ranks and launcher run again.
    Continued,
    /// What these replicas were doing when the first signal of a stop was about to be sent.
    Observed { replicas: Vec<Observed> },
    /// Which ranks caused the failure, and the evidence.
    Diagnosed(Verdict),
    /// A notice; it does not affect the run.
    Noticed { code: String, message: String },
    /// An event that is not expected in this state: recorded, and not acted on.
    Ignored { event: String, state: String },
    /// The process that runs the replicas (on `local`, the guardian) was killed from outside, and the live replicas
    /// with it. A failure of the platform.
    EngineLost {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
    },
    /// These replicas did not exit even after SIGKILL.
    Abandoned { replicas: Vec<String> },
    /// Processes that ranks left running, stopped at the end.
    Swept { pids: Vec<u32> },
    /// Why an attempt failed that is followed by another.
    AttemptFailed(Box<Finding>),
    /// These replicas will be restarted while the others keep running.
    Retrying {
        scope: Scope,
        /// With the number of the next attempt.
        subjects: Vec<Subject>,
        /// Whether the program or the platform failed: each has its own restart budget.
        blame: Blame,
        /// The size of that budget.
        max: u32,
        /// The delay before the restart.
        delay_micros: u64,
    },
    /// The attempt has failed and is over; all replicas will be restarted.
    Restarting {
        /// The attempt that will be started, numbered from 1 as in every subject.
        attempt: u32,
        /// The maximum number of attempts; absent if the budget is per time window.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<u32>,
        /// The delay before the restart.
        delay_micros: u64,
        /// Whether the program or the platform failed: each has its own restart budget.
        #[serde(default, skip_serializing_if = "is_user")]
        blame: Blame,
        /// The replica whose failure decided on the restart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
    },
    /// The members of an elastic job change: all replicas are stopped, and started again in the next attempt.
    Resizing {
        /// The attempt that will be started.
        attempt: u32,
        #[serde(flatten)]
        change: Resize,
    },
    /// Nodes that have joined an elastic job and do not take part in this attempt.
    Spares { nodes: Vec<String> },
    /// The pipeline as it will be run. Its nodes have records of their own.
    Pipeline(Box<PlannedPipeline>),
    /// The values of a node that is about to start.
    Resolved(Box<NodeValues>),
    /// A loop is about to start, with these items.
    Looping { items: Vec<Value> },
    /// A DAG begins.
    Entered,
    /// A node does not run, although its turn has come.
    Skipped { why: SkipReason },
    /// The result of this step of an earlier run is used.
    Cached { from_run: String, from_step: String },
    /// A node failed before it could start, or the outputs of a DAG cannot be determined.
    Refused { reason: String },
    /// A DAG or a loop has ended, or a step that was never started.
    Left { end: NodeEnd },
    /// The run is over, or one of its steps.
    Finished {
        #[serde(rename = "status")]
        outcome: Outcome,
        #[serde(rename = "code")]
        exit_code: u8,
    },
}

/// Where the output of an attempt ends in a shared log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogEnd {
    /// The length of the file at the end of the attempt.
    pub at: u64,
    /// The number of the last file that rotation had finished by then; 0 if there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rotated: u64,
    /// Digest of the first and last bytes of the attempt's output. It differs if the file was rewritten.
    pub digest: String,
}

impl LogEnd {
    pub fn digest(first: &[u8], last: &[u8]) -> String {
        let digest = Sha256::new().chain_update(first).chain_update(last).finalize();
        let number = digest.iter().take(8).fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
        format!("{number:016x}")
    }
}

/// The supervisor of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Supervised {
    pub why: Began,
    pub host: String,
    pub pid: u32,
    pub umiak: String,
}

/// Why a supervisor began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Began {
    /// The run is new.
    Submitted,
    /// The last supervisor died.
    Resumed,
    /// The run had ended; what has not succeeded is run again.
    Retried,
    /// The run had ended; all of it is run again.
    RetriedAll,
}

/// The time limit that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The time until it listens on its ports.
    Start,
    /// The run time of the attempt.
    Run,
    /// The time without progress of any replica.
    Hang,
}

/// The plan, as recorded in the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Planned {
    pub job: String,
    /// The name of the run, if it is not the job's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The command line of a launch, secrets masked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The number of this attempt of the whole group, from 1.
    pub attempt: u32,
    pub umiak: String,
    pub world_size: u32,
    pub log_dir: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<PlannedRole>,
    /// The replicas of this node.
    pub replicas: Vec<PlannedReplica>,
    /// The placement of all replicas, if the job has several nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<PlannedNode>,
}

/// Which ranks wait at torch's store, and which are missing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StoreWaits {
    /// Number of clients that wait; 0 if it is over.
    pub clients: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Rank>,
    /// The ranks that the others may be waiting for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Rank>,
    /// True if the missing ranks have not connected to the store. Otherwise they have, and do not wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// The keys that they wait for, the most wanted first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<StoreKey>,
    /// The longest of the waits.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub longest_micros: u64,
}

/// A key that does not exist yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreKey {
    pub key: String,
    /// Number of clients that wait for it.
    pub clients: u32,
}

/// A node of a job with several nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedNode {
    /// Its address.
    pub node: String,
    /// By name: `trainer-3`.
    pub replicas: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedRole {
    pub role: String,
    pub replicas: u32,
    /// True if the end of this role decides the end of the job.
    pub decides: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedReplica {
    pub replica: String,
    pub rank: Rank,
    pub node: String,
    pub endpoint: String,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub devices: Vec<String>,
    /// The log file, and the offset at which the output of this attempt begins.
    pub log: String,
    pub log_start: u64,
    /// The number of the last file of the log that rotation had finished by then; 0 if there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub log_rotated: u64,
    /// The log of stderr, if it has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

/// The resource usage of a process, as reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    pub user_micros: u64,
    pub system_micros: u64,
    pub max_rss_kib: u64,
}

/// How the members of an elastic job change. Nodes have their address and host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Resize {
    /// They wait to take part.
    Joined { nodes: Vec<String> },
    /// It cannot be reached.
    Lost { node: String, reason: String },
    /// It was stopped there.
    Left { node: String },
    /// Only its ranks have failed in this many attempts in a row; the job goes on without it.
    LeftOut { node: String, failures: u32 },
    /// The number of nodes was changed in etcd.
    Scaled { min: u32, max: u32 },
    /// This node was the coordinator, and its lease in etcd was about to expire.
    Fenced { node: String },
    /// The coordinator `by` has gone on without the node that records this.
    GivenUp { by: String },
}

/// Why ranks were stopped; a stronger reason replaces a weaker one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum StopReason {
    /// The deciding roles have succeeded.
    Completed,
    /// Another rank failed.
    PeerFailed,
    /// Nodes join or leave an elastic job, or their number was changed: the next attempt has other ranks.
    Resized,
    /// A node of the job was lost, or could not start.
    NodeLost,
    /// No replica made progress for the time that the policy allows.
    Hung,
    /// The run exceeded its time limit.
    Timeout,
    /// Another step of the pipeline failed.
    StepFailed,
    /// `umiak stop`.
    User,
    /// Another node's umiak received this signal.
    SignalElsewhere { signal: i32 },
    /// We received this signal.
    Signal { signal: i32 },
    /// We received a second signal.
    SecondSignal { signal: i32 },
}

/// How the run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    Failed,
    /// umiak received a signal.
    Interrupted,
    /// Stopped by `umiak stop`.
    Stopped,
}

/// The ranking of all failed ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The causes, most likely first. Not empty if a rank failed.
    pub causes: Vec<Finding>,
    /// Ranks that failed because of the causes.
    pub victims: Vec<Finding>,
}

/// One rank that failed, with the evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    pub subject: Subject,
    pub exit: Exit,
    /// What the job's table of exits says about it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub classed: Option<Classed>,
    /// Run time.
    pub ran_micros: u64,
    pub weight: Weight,
    /// The time limit that it exceeded and was stopped for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timed_out: Option<Limit>,
    /// Our signal ended it: what shows that it caused the failure is older.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub stopped_while_ending: bool,
    /// Why it is named although its log has no error of its own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub clue: Option<Clue>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub evidence: Option<Evidence>,
    /// What it was doing before our first signal, if it was still running.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub snapshot: Option<Snapshot>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub usage: Option<Usage>,
}

impl Finding {
    /// Whether the failure may be repeated.
    pub fn class(&self) -> ExitClass {
        self.exit.class(self.classed.as_ref())
    }
}

/// Why a rank is named as the cause when every rank that failed blames a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "clue", rename_all = "snake_case")]
pub enum Clue {
    /// Its process was suspended, by SIGSTOP or a debugger.
    Suspended,
    /// It was told to end from outside, before our first signal.
    Signalled,
    /// The messages of these replicas name it.
    Named { by: Vec<String> },
    /// The only rank that did not lose a peer; this many did.
    Remaining { lost: u32 },
    /// It ended with 0 before the first failure, while this many others were running.
    EndedEarly { running: u32 },
    /// It tried to connect to an address that no rank of this job has.
    WrongAddress { address: String },
    /// It waited for a rank that the job does not have.
    WrongRank { rank: u32 },
    /// It did not listen on its own endpoint; this many others did.
    NotListening { listening: u32 },
    /// It had no connection; this many others had.
    NotConnected { connected: u32 },
    /// It was not in the operation that others were waiting in.
    Elsewhere,
    /// All other ranks had failed because a peer did not respond.
    Unresponsive,
}

/// A replica, and what it was doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Observed {
    pub subject: Subject,
    #[serde(flatten)]
    pub snapshot: Snapshot,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub children: Vec<Child>,
}

/// What a running process is doing, as the kernel and its interpreter show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
pub struct Snapshot {
    /// The state of its main thread.
    pub state: ProcessState,
    /// The kernel function in which its main thread waits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub waits_in: Option<String>,
    /// CPU time used.
    pub cpu_micros: u64,
    /// Time since the last output.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub quiet_micros: Option<u64>,
    /// Open TCP connections; absent if there was no time to count them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connections: Option<u32>,
    /// True if it listens on its own endpoint; absent if it has none, or its sockets were not read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub listens: Option<bool>,
    /// TCP ports on which it listens; absent if its sockets were not read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub listeners: Option<u32>,
    /// True if its main thread waits for its standard input.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub awaits_input: bool,
    /// The Python stack of its main thread, innermost frame first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub stack: Vec<StackFrame>,
    /// Outer frames that are not in `stack`.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub more_frames: u32,
    /// Why there is no stack, if it was looked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub no_stack: Option<NoStack>,
}

/// Why the stack of a process could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoStack {
    /// It runs no Python interpreter.
    NotPython,
    /// It has ended in the meantime.
    Ended,
    /// Its memory may not be read.
    NotPermitted,
    /// There was not enough time.
    NotInTime,
    /// Its interpreter is just starting, or its version is unknown.
    Unreadable,
}

/// A Python process that a replica has started: a worker of a data loader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Child {
    pub pid: u32,
    /// Its name for the kernel.
    pub name: String,
    #[serde(flatten)]
    pub snapshot: Snapshot,
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    Running,
    #[default]
    Sleeping,
    /// In an operation of the kernel that signals do not interrupt, usually I/O.
    Blocked,
    /// By SIGSTOP or a debugger.
    Suspended,
    /// Exiting, or has exited.
    Exiting,
}

/// One frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StackFrame {
    pub function: String,
    pub file: String,
    pub line: u32,
}

/// How likely a failed rank is the cause, most likely first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// A kernel fact, a failed start, or its own unhandled error.
    Certain,
    /// Failed before our first signal, without a message.
    Likely,
    /// Failed after our first signal, but not because of it, without a message; or a clue points to it.
    Possible,
    /// Its message shows that a peer failed first, or our signal ended it.
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
    /// True if the lines are from stderr, which has a log of its own.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub stderr: bool,
    /// Facts from the kernel, where they can be read.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub kernel: Vec<KernelFact>,
}

/// A fact from the kernel about the end of a process. Addresses are hexadecimal text, `0x7f0012`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum KernelFact {
    /// Killed by the OOM killer.
    OomKilled {
        scope: OomScope,
        /// True if the kernel's log names the process. Otherwise it ended by SIGKILL and its cgroup's count of kills has
        /// risen.
        named: bool,
        /// The memory it used when it was killed.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        resident_kib: Option<u64>,
        /// The limit that was reached.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        limit_kib: Option<u64>,
        /// The cgroup that reached it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        cgroup: Option<String>,
    },
    /// The OOM killer killed processes of our cgroup during the run; it is unknown whether this was one of them.
    MemoryKills { count: u64 },
    /// The processor stopped an instruction.
    Fault {
        kind: FaultKind,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        address: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        instruction: Option<String>,
        /// The library or program that contains the instruction.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        object: Option<String>,
        /// The thread, if it was not the main thread.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        thread: Option<u32>,
    },
    /// A core was dumped with this `core_pattern`, to this file if it was found.
    CoreDumped {
        pattern: String,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        path: Option<String>,
    },
    /// Shared memory is full: accessing a new page ends a process with SIGBUS.
    SharedMemoryFull { path: String, free_bytes: u64 },
    /// A file system is full.
    DiskFull { path: String, free_bytes: u64 },
}

/// Where memory was exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OomScope {
    Host,
    /// In a cgroup, at its limit.
    Cgroup,
    /// In the replica, at the limit set by its role.
    Replica,
    /// On the NUMA nodes that it may use.
    Nodes,
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    Segmentation,
    GeneralProtection,
    InvalidOpcode,
    Divide,
    /// The memory hardware failed.
    HardwareMemory,
    Other,
}

/// A line of a log and its number (from 1, in the whole file if that is known).
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
    /// True if the message shows that a peer failed first.
    pub victim: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{SpawnError, SpawnStage};

    /// One of each, including those without their own test.
    fn samples() -> Vec<Fact> {
        let subject = Subject { replica: "trainer-3".into(), rank: Some(Rank(3)), attempt: 2 };
        let finding = Finding {
            subject: subject.clone(),
            exit: Exit::Lost,
            classed: None,
            ran_micros: 5,
            weight: Weight::Certain,
            timed_out: Some(Limit::Start),
            stopped_while_ending: true,
            clue: Some(Clue::Named { by: vec!["trainer-0".into()] }),
            evidence: Some(Evidence::default()),
            snapshot: Some(Snapshot {
                stack: vec![StackFrame { function: "step".into(), file: "train.py".into(), line: 88 }],
                ..Snapshot::default()
            }),
            usage: None,
        };
        let verdict = Verdict { causes: vec![finding.clone()], victims: vec![] };
        let place = PlannedReplica {
            replica: "trainer-3".into(),
            rank: Rank(3),
            node: "here".into(),
            endpoint: "127.0.0.1:1".into(),
            devices: vec!["0".into()],
            log: "log".into(),
            log_start: 7,
            log_rotated: 0,
            stderr: None,
        };
        let planned = Planned {
            job: "job".into(),
            name: "train".into(),
            command: "umiak launch train.py".into(),
            attempt: 1,
            umiak: "0".into(),
            world_size: 1,
            log_dir: "log".into(),
            roles: vec![PlannedRole { role: "trainer".into(), replicas: 1, decides: true }],
            replicas: vec![place],
            nodes: vec![PlannedNode { node: "10.0.0.2".into(), replicas: vec!["trainer-4".into()] }],
        };
        let refused = Exit::Spawn(SpawnError { doing: SpawnStage::Fork, errno: 11, reason: "no room".into() });
        let began = [Began::Submitted, Began::Resumed, Began::Retried, Began::RetriedAll];
        let supervised = |why| Fact::Supervised(Supervised { why, host: "here".into(), pid: 1, umiak: "0".into() });
        let restarting = |blame| Fact::Restarting {
            attempt: 1,
            of: Some(3),
            delay_micros: 9,
            blame,
            cause: Some("worker-0".to_owned()),
        };
        let mut samples: Vec<Fact> = began.into_iter().map(supervised).collect();
        samples.extend([Blame::User, Blame::Platform].map(restarting));
        let node = || "10.0.0.2 (b)".to_owned();
        let changes = [
            Resize::Joined { nodes: vec![node()] },
            Resize::Lost { node: node(), reason: "silent".to_owned() },
            Resize::Left { node: node() },
            Resize::LeftOut { node: node(), failures: 3 },
            Resize::Scaled { min: 2, max: 4 },
            Resize::Fenced { node: node() },
            Resize::GivenUp { by: node() },
        ];
        samples.extend(changes.map(|change| Fact::Resizing { attempt: 2, change }));
        samples.push(Fact::Spares { nodes: vec![node()] });
        samples.extend([
            Fact::Planned(planned),
            Fact::Starting { subject: subject.clone() },
            Fact::Submitted { handle: "job-7".into() },
            Fact::Accepted { name: "Slurm job 73".into() },
            Fact::Pending { reason: "no node has 8 GPUs".into() },
            Fact::Cancelled { by: "`scancel`".into() },
            Fact::Started { subject: subject.clone(), instance: Instance::of_pid(4) },
            Fact::Started {
                subject: subject.clone(),
                instance: Instance { pid: None, name: Some("pod".into()), node: Some("gpu-12".into()) },
            },
            Fact::Ready { subject: subject.clone() },
            Fact::TimedOut { subject: subject.clone(), what: Limit::Run, limit_micros: 5 },
            Fact::Ended {
                subject: subject.clone(),
                exit: refused,
                classed: None,
                by_us: false,
                order: 1,
                usage: None,
                log_end: Some(LogEnd { at: 70, rotated: 0, digest: LogEnd::digest(b"loss 0.1\n", b"") }),
            },
            Fact::Hung { limit_micros: 5 },
            Fact::StoreWaits(StoreWaits {
                clients: 1,
                waiting: vec![Rank(0)],
                missing: vec![Rank(1)],
                absent: true,
                keys: vec![StoreKey { key: "default_pg/0//cpu//0/1".into(), clients: 1 }],
                longest_micros: 4_000_000,
            }),
            Fact::CollectiveTimeout { rank: Some(Rank(3)) },
            Fact::Stopping { reason: StopReason::Timeout },
            Fact::Stopping { reason: StopReason::Signal { signal: 2 } },
            Fact::StopSent { how: StopHow::Terminate, replicas: vec!["trainer-3".into()] },
            Fact::Paused,
            Fact::Continued,
            Fact::Observed {
                replicas: vec![Observed { subject: subject.clone(), snapshot: Snapshot::default(), children: vec![] }],
            },
            Fact::Diagnosed(verdict),
            Fact::Noticed { code: "U1".into(), message: "words".into() },
            Fact::Ignored { event: "Start".into(), state: "attempt 1".into() },
            Fact::EngineLost { pid: Some(7) },
            Fact::EngineLost { pid: None },
            Fact::Abandoned { replicas: vec![] },
            Fact::Swept { pids: vec![1] },
            Fact::AttemptFailed(Box::new(finding)),
            Fact::Retrying {
                scope: Scope::Role,
                subjects: vec![subject],
                blame: Blame::Platform,
                max: 10,
                delay_micros: 9,
            },
            Fact::Pipeline(Box::new(PlannedPipeline {
                pipeline: "p".into(),
                name: "n".into(),
                umiak: "0.1.0".into(),
                steps: 3,
                parallelism: 2,
                on_failure: crate::model::OnFailure::Continue,
                repeats: Some("run-000001".into()),
            })),
            Fact::Resolved(Box::new(NodeValues {
                parameters: vec![("p".into(), Value::Text("x".into()))],
                inputs: vec![("i".into(), vec!["x".into()])],
                outputs: vec![("o".into(), vec!["x".into()])],
                item: Some(Value::List(vec![Value::Int(1), Value::Text("x".into())])),
            })),
            Fact::Looping { items: vec![Value::Float(crate::model::Float(0.5)), Value::Text("x".into())] },
            Fact::Entered,
            Fact::Skipped { why: SkipReason::NoItems },
            Fact::Cached { from_run: "run-000001".into(), from_step: "train".into() },
            Fact::Refused { reason: "x".into() },
            Fact::Left { end: NodeEnd::Cancelled },
            Fact::Finished { outcome: Outcome::Stopped, exit_code: 3 },
        ]);
        samples
    }

    #[test]
    fn texts_are_all_that_programs_choose() {
        let secret = || "hunter2".to_owned();
        let snapshot =
            Snapshot { stack: vec![StackFrame { function: secret(), file: secret(), line: 1 }], ..Snapshot::default() };
        let subject = Subject { replica: "trainer-3".into(), rank: Some(Rank(3)), attempt: 2 };
        let evidence = Evidence {
            headline: Some(Line { text: secret(), number: None }),
            place: Some(secret()),
            traceback: vec![secret()],
            last_lines: vec![secret()],
            ..Evidence::default()
        };
        let finding = Finding {
            subject: subject.clone(),
            exit: Exit::Evicted { reason: secret() },
            classed: None,
            ran_micros: 5,
            weight: Weight::Likely,
            timed_out: None,
            stopped_while_ending: false,
            clue: Some(Clue::WrongAddress { address: secret() }),
            evidence: Some(evidence),
            snapshot: Some(snapshot.clone()),
            usage: None,
        };
        for mut fact in [
            Fact::Observed {
                replicas: vec![Observed {
                    subject,
                    snapshot: snapshot.clone(),
                    children: vec![Child { pid: 1, name: secret(), snapshot }],
                }],
            },
            Fact::Diagnosed(Verdict { causes: vec![finding.clone()], victims: vec![finding.clone()] }),
            Fact::AttemptFailed(Box::new(finding)),
        ] {
            fact.texts().into_iter().for_each(|text| *text = "***".to_owned());
            let written = serde_json::to_string(&fact).expect("plain data");
            assert!(!written.contains("hunter2") && written.contains("***"), "{written}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for (seq, fact) in (0..).zip(samples()) {
            for epoch in [0, 4] {
                let step = (epoch > 0).then(|| StepName::new("train").expect("a plain name"));
                let record = Record { run: None, v: VERSION, seq, at: 1, epoch, step, fact: fact.clone() };
                let text = serde_json::to_string(&record).expect("plain data");
                assert_eq!(serde_json::from_str::<Record>(&text).ok(), Some(record), "{text}");
            }
        }
        let old = r#"{"v":1,"seq":0,"at":1,"type":"restarting","attempt":1,"delay_micros":9}"#;
        let old: Record = serde_json::from_str(old).expect("a record from before `blame` and `epoch` existed");
        assert_eq!(
            old.fact,
            Fact::Restarting { attempt: 1, of: None, delay_micros: 9, blame: Blame::User, cause: None }
        );
    }
}
