//! OpenPAI's table of exits: from the exit code and the end of the log to a code, its name, and whether another attempt
//! may succeed.
//!
//! Rows are tried in their order, and the first that matches decides: rows of exit codes come before those of log texts,
//! so that a warning in the log does not hide a signal.

use std::sync::LazyLock;

use regex::bytes::RegexSet;

use crate::model::{Classed, Exit, ExitClass, SpawnError, SpawnStage};

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub code: i32,
    pub name: &'static str,
    pub kind: Kind,
    pub class: ExitClass,
    pub by: By,
}

/// Where the cause lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    User,
    Platform,
    Resources,
    Unknown,
}

impl Kind {
    /// OpenPAI's word.
    pub fn word(self) -> &'static str {
        match self {
            Self::User => "USER_FAILURE",
            Self::Platform => "PLATFORM_FAILURE",
            Self::Resources => "RESOURCE_ALLOCATION_TIMEOUT",
            Self::Unknown => "UNKNOWN_FAILURE",
        }
    }
}

/// How a row recognises an exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The exit code of the commands; 128 + n for a signal n.
    Code(i32),
    /// A text in the log: a regular expression without regard to case.
    Log(&'static str),
    /// Both.
    CodeAndLog(i32, &'static str),
    /// What umiak or the platform reports, in words.
    Report(&'static str),
}

use By::{Code, CodeAndLog, Log, Report};
use ExitClass::{Conflict, Permanent, Transient, Unknown};

const fn row(code: i32, name: &'static str, kind: Kind, class: ExitClass, by: By) -> Row {
    Row { code, name, kind, class, by }
}

const OVER_LIMIT: Row =
    row(-1200, "UserContainerDockerOOMKilled", Kind::User, Permanent, Report("killed for using more than `memoryMB`"));
const REMOVED: Row =
    row(-101, "PodExternalDeleted", Kind::Platform, Transient, Report("lost while umiak was not running"));
const EVICTED: Row = row(-1000, "PodEvicted", Kind::Platform, Transient, Report("evicted by the cluster"));
const NODE_LOST: Row = row(-1001, "PodNodeLost", Kind::Platform, Transient, Report("lost with its node"));
const SHORT: Row = row(
    -1002,
    "PodScheduledToInsufficientResourceNode",
    Kind::Platform,
    Transient,
    Report("no memory or process slot to start it"),
);
const PREEMPTED: Row =
    row(-1003, "PodPreemptedForCriticalPod", Kind::Platform, Transient, Report("pre-empted by the cluster"));
const CANNOT_START: Row =
    row(-1201, "ContainerDockerCreationError", Kind::Unknown, Unknown, Report("could not be started"));
const NOT_EXECUTABLE: Row = row(
    -1202,
    "ContainerDockerStartCmdPermissionDenied",
    Kind::Platform,
    Permanent,
    Report("the shell cannot be executed"),
);
const NOT_FOUND: Row =
    row(-1203, "ContainerDockerStartCmdNotFound", Kind::Platform, Permanent, Report("the shell was not found"));
const NO_ROOM: Row = row(
    251,
    "JobGangAllocationTimeout",
    Kind::Resources,
    Conflict,
    Report("the cluster had no room for all instances in time"),
);
const OTHER: Row = row(255, "PAIRuntimeUnknownFailed", Kind::Unknown, Unknown, Report("any other failure"));

/// The table. Texts that OpenPAI's expressions were meant to match, but could not because of unescaped brackets, match
/// here. Added to its texts, because today's programs say the same in these words: `modulenotfounderror:`,
/// `cuda out of memory` and `unrecognized arguments:`.
pub static ROWS: &[Row] = &[
    OVER_LIMIT,
    REMOVED,
    EVICTED,
    NODE_LOST,
    SHORT,
    PREEMPTED,
    CANNOT_START,
    NOT_EXECUTABLE,
    NOT_FOUND,
    NO_ROOM,
    row(130, "ContainerSigIntReceived", Kind::Platform, Transient, Code(130)),
    row(131, "ContainerSigQuitReceived", Kind::Platform, Transient, Code(131)),
    row(132, "ContainerSigIllReceived", Kind::User, Permanent, Code(132)),
    row(134, "ContainerSigAbrtReceived", Kind::Unknown, Unknown, Code(134)),
    row(135, "ContainerSigBusReceived", Kind::User, Permanent, Code(135)),
    row(136, "ContainerSigFpeReceived", Kind::User, Permanent, Code(136)),
    row(137, "ContainerSigKillReceived", Kind::Platform, Transient, Code(137)),
    row(139, "ContainerSigSegvReceived", Kind::Unknown, Unknown, Code(139)),
    row(141, "ContainerSigPipeReceived", Kind::User, Permanent, Code(141)),
    row(143, "ContainerSigTermReceived", Kind::Platform, Transient, Code(143)),
    row(220, "UserCommandExitWithError", Kind::User, Permanent, CodeAndLog(127, "command not found")),
    row(
        221,
        "ContainerTensorflowOOMKilled",
        Kind::User,
        Permanent,
        Log(r"resourceexhaustederror.*\boom\b|ran out of memory trying to allocate"),
    ),
    row(222, "ContainerMPISegvFault", Kind::User, Permanent, Log("signal code: address not mapped")),
    row(223, "ContainerCudaUncorrectableECCError", Kind::Platform, Transient, Log("cuda_error_ecc_uncorrectable")),
    row(
        224,
        "ContainerCudaVersionMismatch",
        Kind::User,
        Permanent,
        Log("driver version is insufficient for cuda runtime version"),
    ),
    row(
        225,
        "ContainerCudaDnnVersionMismatch",
        Kind::User,
        Permanent,
        Log("dropout (descriptor )?(needs|requires).{0,40}cudnn"),
    ),
    row(
        226,
        "ContainerCudaOOMKilled",
        Kind::User,
        Permanent,
        Log(r"cuda runtime error \(2\)\s*:\s*out of memory|cuda out of memory|cuda_error_out_of_memory"),
    ),
    row(
        228,
        "ContainerIncorrectParameterError",
        Kind::User,
        Permanent,
        Log(r"unknown option|invalid argument:|bad argument #2 to|unrecognized arguments:"),
    ),
    row(
        229,
        "ContainerIncorrectDataModelError",
        Kind::User,
        Permanent,
        Log(r"\[errno 2\] no such file or directory|filenotfounderror:|unicodedecodeerror:|eoferror:"),
    ),
    row(230, "ContainerInvalidSavePath", Kind::User, Permanent, Log("restore called with invalid save path")),
    row(
        231,
        "ContainerSyntaxError",
        Kind::User,
        Permanent,
        Log(r"syntaxerror:|unpicklingerror:|attributeerror:.*has no attribute|nameerror:.*is not defined"),
    ),
    row(232, "ContainerImportError", Kind::User, Permanent, Log("importerror:|modulenotfounderror:")),
    row(233, "ContainerIndexOutOfRange", Kind::User, Permanent, Log("indexerror:.*index out of range")),
    row(234, "ContainerSigvFault", Kind::User, Permanent, Log("segmentation fault")),
    row(235, "ContainerEngineCoreDump", Kind::User, Permanent, Log("core dumped")),
    OTHER,
];

/// How much of the log's end is searched.
pub const SEARCHED: u64 = 10 << 20;

static PATTERNS: LazyLock<RegexSet> = LazyLock::new(|| {
    let pattern = |row: &Row| match row.by {
        Log(pattern) | CodeAndLog(_, pattern) => format!("(?i-u){pattern}"),
        // Matches nothing.
        Code(_) | Report(_) => "[^\\s\\S]".to_owned(),
    };
    RegexSet::new(ROWS.iter().map(pattern)).expect("a test uses it")
});

/// Classes a failed exit. `log` reads the end of what the commands wrote, if the exit itself does not decide.
pub fn classify(exit: &Exit, over_limit: bool, log: impl FnOnce() -> Vec<u8>) -> Classed {
    let reported = match exit {
        _ if over_limit => Some(&OVER_LIMIT),
        Exit::Spawn(error) if error.is_temporary() => Some(&SHORT),
        Exit::Spawn(SpawnError { doing: SpawnStage::Execute, errno: 2, .. }) => Some(&NOT_FOUND),
        Exit::Spawn(SpawnError { doing: SpawnStage::Execute, .. }) => Some(&NOT_EXECUTABLE),
        Exit::Spawn(_) | Exit::Unmet { .. } => Some(&CANNOT_START),
        Exit::Lost => Some(&REMOVED),
        Exit::Evicted { .. } | Exit::TimeLimit { .. } => Some(&EVICTED),
        Exit::Preempted { .. } => Some(&PREEMPTED),
        Exit::NodeLost { .. } => Some(&NODE_LOST),
        Exit::NoRoom { .. } => Some(&NO_ROOM),
        Exit::Code { .. } | Exit::Signal { .. } => None,
    };
    let code = i32::from(exit.shell_code());
    let row = reported.or_else(|| ROWS.iter().find(|row| row.by == Code(code))).unwrap_or_else(|| by_log(code, &log()));
    Classed { code: row.code, name: row.name.to_owned(), class: row.class }
}

fn by_log(code: i32, log: &[u8]) -> &'static Row {
    let matched = PATTERNS.matches(log);
    let found =
        matched.iter().map(|at| &ROWS[at]).find(|row| !matches!(row.by, CodeAndLog(wanted, _) if wanted != code));
    found.unwrap_or(&OTHER)
}

/// The row of a code.
pub fn row_of(code: i32) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.code == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(exit: &Exit, log: &str) -> (i32, ExitClass) {
        let classed = classify(exit, false, || log.as_bytes().to_vec());
        (classed.code, classed.class)
    }

    #[test]
    fn codes_and_texts() {
        for (code, log, expected) in [
            (1, "", (255, Unknown)),
            (1, "loss 0.1", (255, Unknown)),
            (137, "", (137, Transient)),
            (143, "CUDA out of memory", (143, Transient)),
            (127, "bash: line 3: trian: command not found", (220, Permanent)),
            (1, "bash: line 3: trian: command not found", (255, Unknown)),
            (127, "", (255, Unknown)),
            (1, "E ResourceExhaustedError: OOM when allocating tensor", (221, Permanent)),
            (1, "RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu", (226, Permanent)),
            (1, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate", (226, Permanent)),
            (2, "train.py: error: unrecognized arguments: --lrr", (228, Permanent)),
            (1, "FileNotFoundError: [Errno 2] No such file or directory: 'x'", (229, Permanent)),
            (1, "NameError: name 'x' is not defined", (231, Permanent)),
            (1, "NameError: \nname 'x' is not defined", (255, Unknown)),
            (1, "ModuleNotFoundError: No module named 'torch'", (232, Permanent)),
            (1, "IndexError: list index out of range", (233, Permanent)),
            (1, "CUDA_ERROR_ECC_UNCORRECTABLE", (223, Transient)),
            (139, "Segmentation fault (core dumped)", (139, Unknown)),
            (1, "Segmentation fault (core dumped)", (234, Permanent)),
        ] {
            assert_eq!(class(&Exit::Code { code }, log), expected, "{code} {log}");
        }
        // The first row decides, not the first text.
        assert_eq!(class(&Exit::Code { code: 1 }, "core dumped\nImportError: x").0, 232);
        // Any bytes.
        let bytes = || b"\xff\xfe importerror:".to_vec();
        assert_eq!(classify(&Exit::Code { code: 1 }, false, bytes).code, 232);
    }

    #[test]
    fn what_the_platform_reports() {
        let reason = String::new;
        let spawn = |doing, errno| Exit::Spawn(SpawnError { doing, errno, reason: reason() });
        for (exit, expected) in [
            (Exit::Signal { signal: 9, core_dumped: false }, (137, Transient)),
            (Exit::Signal { signal: 11, core_dumped: true }, (139, Unknown)),
            (Exit::Lost, (-101, Transient)),
            (Exit::Evicted { reason: reason() }, (-1000, Transient)),
            (Exit::NodeLost { node: reason() }, (-1001, Transient)),
            (Exit::Preempted { reason: reason() }, (-1003, Transient)),
            (Exit::NoRoom { reason: reason() }, (251, Conflict)),
            (spawn(SpawnStage::Execute, 2), (-1203, Permanent)),
            (spawn(SpawnStage::Execute, 13), (-1202, Permanent)),
            (spawn(SpawnStage::Fork, 11), (-1002, Transient)),
            (spawn(SpawnStage::ChangeDirectory, 13), (-1201, Unknown)),
        ] {
            let classed = classify(&exit, false, || unreachable!("the exit decides"));
            assert_eq!((classed.code, classed.class), expected, "{exit:?}");
            assert_eq!(row_of(classed.code).unwrap().name, classed.name);
        }
        let killed = Exit::Signal { signal: 9, core_dumped: false };
        assert_eq!(classify(&killed, true, Vec::new).code, -1200);
    }

    #[test]
    fn every_code_is_there_once() {
        let mut codes: Vec<i32> = ROWS.iter().map(|row| row.code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), ROWS.len());
    }
}
