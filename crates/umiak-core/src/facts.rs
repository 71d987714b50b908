//! What is recorded about a run. These facts are the journal, and they are what `--output json` prints:
//! one versioned format with one schema (`schemas/facts.v1.json`).
//!
//! Compatibility: a reader skips fact types and fields it does not know; a field is never renamed or
//! given another meaning within a version.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::model::{Blame, Exit, Instance, Rank, Scope, StepName, StopHow};

/// The version written by this build.
pub const VERSION: u32 = 1;

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// Which run it is of, in what commands print; in the journal of a run it goes without saying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Format version, [`VERSION`].
    pub v: u32,
    /// Position in the run, from 0, without gaps.
    pub seq: u64,
    /// Microseconds since the Unix epoch.
    pub at: u64,
    /// Which supervisor wrote it, from 0. What an old one still writes after a new one has begun does not count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,
    /// Which step of the run it speaks of, where a run has several jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepName>,
    #[serde(flatten)]
    pub fact: Fact,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(epoch: &u32) -> bool {
    *epoch == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_user(blame: &Blame) -> bool {
    *blame == Blame::User
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
    /// A supervisor begins. The first record of each epoch.
    Supervised(Supervised),
    /// The job as it will be run; once for each attempt, whose endpoints and offsets are its own.
    Planned(Planned),
    /// An attempt is about to be started; written before it is.
    Starting { subject: Subject },
    /// The engine has taken the job, or a part of it, under this name. What it stands for survives the supervisor.
    Submitted { handle: String },
    /// Why nothing runs yet, in the engine's words.
    Pending { reason: String },
    /// The process exists.
    Started {
        subject: Subject,
        #[serde(flatten)]
        instance: Instance,
    },
    /// All its ports answer.
    Ready { subject: Subject },
    /// It took longer than it may: it will be stopped, and has failed.
    TimedOut { subject: Subject, what: Limit, limit_micros: u64 },
    /// The attempt is over.
    Ended {
        subject: Subject,
        exit: Exit,
        /// Whether our own signal ended it: then it is a victim, never a cause, unless it had timed out.
        by_us: bool,
        /// Position in the kernel's order of exits.
        order: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        /// Where its output ends, in a log that it shares with other attempts and other runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        log_end: Option<LogEnd>,
    },
    /// We decided to stop what is still running.
    Stopping { reason: StopReason },
    /// These are about to be interrupted, asked to end, or killed.
    StopSent { how: StopHow, replicas: Vec<String> },
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
    /// Why an attempt failed that will be made good by another.
    AttemptFailed(Box<Finding>),
    /// These will be started again while the others go on.
    Retrying {
        scope: Scope,
        /// As they will be: with the number of the next attempt.
        subjects: Vec<Subject>,
        /// Whether the failure was the program's, and spends its budget.
        blame: Blame,
        /// How many restarts that budget has.
        max: u32,
        /// How long it is waited before.
        delay_micros: u64,
    },
    /// The attempt has failed and is over; all replicas will be started again.
    Restarting {
        /// The attempt that will be started, numbered from 1 as in every subject.
        attempt: u32,
        /// How many attempts there are at most; not known where the budget is one per time window.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<u32>,
        /// How long it is waited before.
        delay_micros: u64,
        /// Whose failure it was, and whose budget it spends.
        #[serde(default, skip_serializing_if = "is_user")]
        blame: Blame,
    },
    /// The run is over.
    Finished { outcome: Outcome, exit_code: u8 },
}

/// Where the output of an attempt ends in a shared log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogEnd {
    /// The length of the file at that time.
    pub at: u64,
    /// Of the first and the last bytes of the attempt's output. A file that was written anew has another.
    pub digest: String,
}

impl LogEnd {
    pub fn digest(first: &[u8], last: &[u8]) -> String {
        let digest = Sha256::new().chain_update(first).chain_update(last).finalize();
        let number = digest.iter().take(8).fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
        format!("{number:016x}")
    }
}

/// Who supervises a run.
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
    /// The last supervisor was lost.
    Resumed,
    /// The run had ended, and what has not succeeded is tried again.
    Retried,
    /// The run had ended, and all of it is run again.
    RetriedAll,
}

/// What took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Its ports did not answer.
    Start,
    /// The attempt itself.
    Run,
}

/// The plan in the form that readers of the journal need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Planned {
    pub job: String,
    /// What the run is called, where that is not the job's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The command line of a launch, secrets masked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Which attempt of the whole group this is, from 1.
    pub attempt: u32,
    pub umiak: String,
    pub world_size: u32,
    pub log_dir: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<PlannedRole>,
    /// This node's.
    pub replicas: Vec<PlannedReplica>,
    /// Where all replicas are, when the job has several nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<PlannedNode>,
}

/// A node of a job that has several.
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
    /// Whether its end decides the job's.
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
    /// The run took longer than it may.
    Timeout,
    /// `umiak stop`.
    User,
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
    /// umiak received a signal.
    Interrupted,
    /// By `umiak stop`.
    Stopped,
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
    /// It took longer than it may, and our signal ended it for that.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timed_out: Option<Limit>,
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
    /// That of the replica, by the limit that its role sets.
    Replica,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{SpawnError, SpawnStage};

    /// One of each, those without a test of their own included.
    fn samples() -> Vec<Fact> {
        let subject = Subject { replica: "trainer-3".into(), rank: Some(Rank(3)), attempt: 2 };
        let finding = Finding {
            subject: subject.clone(),
            exit: Exit::Lost,
            ran_micros: 5,
            weight: Weight::Certain,
            timed_out: Some(Limit::Start),
            stopped_while_ending: true,
            evidence: Some(Evidence::default()),
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
        let restarting = |blame| Fact::Restarting { attempt: 1, of: Some(3), delay_micros: 9, blame };
        let mut samples: Vec<Fact> = began.into_iter().map(supervised).collect();
        samples.extend([Blame::User, Blame::Platform].map(restarting));
        samples.extend([
            Fact::Planned(planned),
            Fact::Starting { subject: subject.clone() },
            Fact::Submitted { handle: "job-7".into() },
            Fact::Pending { reason: "no node has 8 GPUs".into() },
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
                by_us: false,
                order: 1,
                usage: None,
                log_end: Some(LogEnd { at: 70, digest: LogEnd::digest(b"loss 0.1\n", b"") }),
            },
            Fact::Stopping { reason: StopReason::Timeout },
            Fact::Stopping { reason: StopReason::Signal { signal: 2 } },
            Fact::StopSent { how: StopHow::Terminate, replicas: vec!["trainer-3".into()] },
            Fact::Paused,
            Fact::Continued,
            Fact::Diagnosed(verdict),
            Fact::Noticed { code: "U1".into(), message: "words".into() },
            Fact::Ignored { event: "Start".into(), state: "attempt 1".into() },
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
            Fact::Finished { outcome: Outcome::Stopped, exit_code: 3 },
        ]);
        samples
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
        let old: Record = serde_json::from_str(old).expect("written before there was blame, or an epoch");
        assert_eq!(old.fact, Fact::Restarting { attempt: 1, of: None, delay_micros: 9, blame: Blame::User });
    }
}
