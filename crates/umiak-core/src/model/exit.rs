//! How a process ended, with its truth kept: code, signal, core, spawn error are different things.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The end of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Exit {
    /// It called exit.
    Code { code: i32 },
    /// A signal ended it.
    Signal { signal: i32, core_dumped: bool },
    /// It never ran.
    Spawn(SpawnError),
    /// We no longer know: the process that could have told us is gone.
    Lost,
}

/// A refused system call on the way from fork to exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpawnError {
    /// What was being done: `fork`, `open log`, `change directory`, `limit its memory`, `execute`.
    pub doing: String,
    pub errno: i32,
    /// The errno in words.
    pub reason: String,
}

impl Exit {
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Code { code: 0 })
    }

    /// The signal that ended it, also when a shell passes it on as 128 + n.
    pub fn signal(&self) -> Option<i32> {
        match self {
            Self::Signal { signal, .. } => Some(*signal),
            // SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM.
            Self::Code { code } => [4, 6, 7, 8, 9, 11, 15].into_iter().find(|signal| 128 + signal == *code),
            Self::Spawn(_) | Self::Lost => None,
        }
    }

    /// The code a shell would show: the exit code, or 128 + n for a signal.
    pub fn shell_code(&self) -> u8 {
        match self {
            Self::Code { code } => *code as u8,
            Self::Signal { signal, .. } => 128u8.wrapping_add(*signal as u8),
            // 126: found but not executable; 127: not found; else our own failure.
            Self::Spawn(error) if error.doing == "execute" && error.errno == 2 => 127,
            Self::Spawn(error) if error.doing == "execute" => 126,
            Self::Spawn(_) | Self::Lost => 125,
        }
    }

    /// In words: `exited with 1`, `was killed by SIGKILL`.
    pub fn describe(&self) -> String {
        match self {
            Self::Code { code } => format!("exited with {code}"),
            Self::Signal { signal, core_dumped } => {
                let core = if *core_dumped { ", core dumped" } else { "" };
                format!("was killed by {}{core}", signal_name(*signal))
            }
            Self::Spawn(error) => format!("could not be started: {}: {}", error.doing, error.reason),
            Self::Lost => "was lost".to_owned(),
        }
    }
}

/// `SIGSEGV (segmentation fault)` for the ones people meet, the bare name or number for the rest.
pub fn signal_name(signal: i32) -> String {
    let (name, words) = match signal {
        1 => ("SIGHUP", "terminal gone"),
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
        let spawn = |doing: &str, errno| {
            Exit::Spawn(SpawnError { doing: doing.into(), errno, reason: String::new() }).shell_code()
        };
        assert_eq!(Exit::Code { code: 7 }.shell_code(), 7);
        assert_eq!(Exit::Signal { signal: 9, core_dumped: false }.shell_code(), 137);
        assert_eq!(spawn("execute", 2), 127);
        assert_eq!(spawn("execute", 13), 126);
        assert_eq!(spawn("fork", 11), 125);
    }
}
