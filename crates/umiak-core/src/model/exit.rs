//! How an attempt ended. Exit code, signal, core dump, spawn error, eviction and lost node are kept apart.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Blame;

/// The end of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Exit {
    /// It exited with a code.
    Code { code: i32 },
    /// A signal ended it.
    Signal { signal: i32, core_dumped: bool },
    /// It could not be started.
    Spawn(SpawnError),
    /// It was not started: the role that it starts after did not reach the required state.
    Unmet { role: String, reason: String },
    /// The platform removed it: the node ran out of memory or disk, or was drained.
    Evicted { reason: String },
    /// The platform replaced it with work of higher priority.
    Preempted { reason: String },
    /// The time that the platform had given to the job was over.
    TimeLimit { reason: String },
    /// Its node was lost.
    NodeLost { node: String },
    /// It was not started: the platform had no room for all replicas in time.
    NoRoom { reason: String },
    /// Unknown: the process that could have reported it has ended.
    Lost,
}

/// What a table of exits says about a failed end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Classed {
    /// The code of the table, which is not the exit code.
    pub code: i32,
    pub name: String,
    pub class: ExitClass,
}

/// Whether a failed attempt is repeated, from never to always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitClass {
    /// Never: it would fail again.
    Permanent,
    /// As often as the user permits.
    Unknown,
    /// The program did not cause it: as often as the budget for that permits.
    Transient,
    /// The same after a long random delay: jobs that wait for each other's resources must not meet again.
    Conflict,
}

/// A system call that failed between fork and exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpawnError {
    /// The step that failed.
    pub doing: SpawnStage,
    pub errno: i32,
    /// The errno in words.
    pub reason: String,
}

/// A step in starting a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpawnStage {
    MakeDirectory,
    Fork,
    OpenLog,
    OpenStdin,
    ChangeDirectory,
    LimitMemory,
    BindCpus,
    Mount,
    Execute,
    /// The scheduler of a cluster did not take the job.
    Submit,
    /// The agent of its node could not run.
    Agent,
}

const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

impl SpawnError {
    /// True if another start may succeed: the host was short of something.
    pub fn is_temporary(&self) -> bool {
        [EAGAIN, ENOMEM, ENFILE, EMFILE].contains(&self.errno)
    }
}

impl Classed {
    /// Describes it: `OpenPAI 255 PAIRuntimeUnknownFailed, unknown`.
    pub fn describe(&self) -> String {
        format!("OpenPAI {} {}, {}", self.code, self.name, self.class.word())
    }
}

impl ExitClass {
    pub fn word(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::Unknown => "unknown",
            Self::Transient => "transient",
            Self::Conflict => "transient conflict",
        }
    }

    /// Whether the program or the platform caused it.
    pub fn blame(self) -> Blame {
        match self {
            Self::Permanent | Self::Unknown => Blame::User,
            Self::Transient | Self::Conflict => Blame::Platform,
        }
    }
}

impl SpawnStage {
    pub fn words(self) -> &'static str {
        match self {
            Self::MakeDirectory => "create its directory",
            Self::Fork => "fork",
            Self::OpenLog => "open log",
            Self::OpenStdin => "open /dev/null",
            Self::ChangeDirectory => "change directory",
            Self::LimitMemory => "limit its memory",
            Self::BindCpus => "bind it to its CPUs",
            Self::Mount => "mount its directories",
            Self::Execute => "execute",
            Self::Submit => "submit the job",
            Self::Agent => "start the agent of its node",
        }
    }
}

/// A node was lost, or the platform removed the attempt, and no rank failed by itself.
const PLATFORM: u8 = 123;

impl Exit {
    /// The texts that come from the platform.
    pub fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::Spawn(SpawnError { reason, .. })
            | Self::Unmet { reason, .. }
            | Self::Evicted { reason }
            | Self::Preempted { reason }
            | Self::TimeLimit { reason }
            | Self::NoRoom { reason } => vec![reason],
            Self::Code { .. } | Self::Signal { .. } | Self::NodeLost { .. } | Self::Lost => Vec::new(),
        }
    }

    pub fn is_success(&self) -> bool {
        matches!(self, Self::Code { code: 0 })
    }

    /// The class of a bad end: as the job's table says, or by its kind.
    pub fn class(&self, classed: Option<&Classed>) -> ExitClass {
        if let Some(classed) = classed {
            return classed.class;
        }
        match self {
            Self::NoRoom { .. } => ExitClass::Conflict,
            Self::Evicted { .. } | Self::Preempted { .. } | Self::NodeLost { .. } | Self::Lost => ExitClass::Transient,
            Self::Spawn(error) if error.is_temporary() => ExitClass::Transient,
            // Another attempt would get the same time.
            Self::Spawn(_) | Self::TimeLimit { .. } => ExitClass::Permanent,
            Self::Unmet { .. } | Self::Code { .. } | Self::Signal { .. } => ExitClass::Unknown,
        }
    }

    /// The signal that ended it, also if a shell reports it as 128 + n.
    pub fn signal(&self) -> Option<i32> {
        match self {
            Self::Signal { signal, .. } => Some(*signal),
            // SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM.
            Self::Code { code } => [4, 6, 7, 8, 9, 11, 15].into_iter().find(|signal| 128 + signal == *code),
            Self::Spawn(_)
            | Self::Unmet { .. }
            | Self::Evicted { .. }
            | Self::Preempted { .. }
            | Self::TimeLimit { .. }
            | Self::NodeLost { .. }
            | Self::NoRoom { .. }
            | Self::Lost => None,
        }
    }

    /// The code that a shell would show: the exit code, or 128 + n for a signal.
    pub fn shell_code(&self) -> u8 {
        match self {
            Self::Code { code } => *code as u8,
            Self::Signal { signal, .. } => 128u8.wrapping_add(*signal as u8),
            // 126: found but not executable; 127: not found; else our own failure.
            Self::Spawn(SpawnError { doing: SpawnStage::Execute, errno: 2, .. }) => 127,
            Self::Spawn(SpawnError { doing: SpawnStage::Execute, .. }) => 126,
            Self::Spawn(_) | Self::Unmet { .. } | Self::Lost => 125,
            Self::Evicted { .. }
            | Self::Preempted { .. }
            | Self::TimeLimit { .. }
            | Self::NodeLost { .. }
            | Self::NoRoom { .. } => PLATFORM,
        }
    }

    /// Describes the end: `exited with 1`, `was killed by SIGKILL`.
    pub fn describe(&self) -> String {
        match self {
            Self::Code { code } => format!("exited with {code}"),
            Self::Signal { signal, core_dumped } => {
                let core = if *core_dumped { ", core dumped" } else { "" };
                format!("was killed by {}{core}", signal_name(*signal))
            }
            Self::Spawn(error) => format!("could not be started: {}: {}", error.doing.words(), error.reason),
            Self::Unmet { role, reason } => format!("could not be started: wait for `{role}`: {reason}"),
            Self::Evicted { reason } => format!("was evicted: {reason}"),
            Self::Preempted { reason } => format!("was pre-empted: {reason}"),
            Self::TimeLimit { reason } => format!("was ended by a time limit: {reason}"),
            Self::NodeLost { node } => format!("was lost with its node `{node}`"),
            Self::NoRoom { reason } => format!("could not be started: {reason}"),
            Self::Lost => "was lost".to_owned(),
        }
    }
}

/// `SIGSEGV (segmentation fault)` for common signals, the bare name or number for the rest.
pub fn signal_name(signal: i32) -> String {
    let (name, words) = match signal {
        1 => ("SIGHUP", "hangup"),
        2 => ("SIGINT", "interrupt"),
        3 => ("SIGQUIT", "quit"),
        4 => ("SIGILL", "illegal instruction"),
        5 => ("SIGTRAP", "trap"),
        6 => ("SIGABRT", "abort"),
        7 => ("SIGBUS", "bus error"),
        8 => ("SIGFPE", "arithmetic error"),
        9 => ("SIGKILL", "killed"),
        10 => ("SIGUSR1", ""),
        11 => ("SIGSEGV", "segmentation fault"),
        12 => ("SIGUSR2", ""),
        13 => ("SIGPIPE", "broken pipe"),
        14 => ("SIGALRM", "alarm"),
        15 => ("SIGTERM", "terminate"),
        24 => ("SIGXCPU", "CPU time limit"),
        25 => ("SIGXFSZ", "file size limit"),
        31 => ("SIGSYS", "bad system call"),
        other => return format!("signal {other}"),
    };
    if words.is_empty() { name.to_owned() } else { format!("{name} ({words})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_codes() {
        let spawn = |doing, errno| Exit::Spawn(SpawnError { doing, errno, reason: String::new() }).shell_code();
        let reason = String::new;
        assert_eq!(Exit::Code { code: 7 }.shell_code(), 7);
        assert_eq!(Exit::Signal { signal: 9, core_dumped: false }.shell_code(), 137);
        assert_eq!(spawn(SpawnStage::Execute, 2), 127);
        assert_eq!(spawn(SpawnStage::Execute, 13), 126);
        assert_eq!(spawn(SpawnStage::Fork, 11), 125);
        assert_eq!(Exit::Unmet { role: "server".into(), reason: reason() }.shell_code(), 125);
        assert_eq!(Exit::Lost.shell_code(), 125);
        for gone in [
            Exit::Evicted { reason: reason() },
            Exit::Preempted { reason: reason() },
            Exit::NoRoom { reason: reason() },
            Exit::NodeLost { node: "gpu-12".into() },
        ] {
            assert_eq!(gone.shell_code(), 123, "{gone:?}");
        }
    }
}
