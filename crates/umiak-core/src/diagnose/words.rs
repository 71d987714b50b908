//! Clues and snapshots in words.

use super::python;
use crate::diag::shown;
use crate::facts::{Clue, ProcessState, Snapshot, StackFrame};

impl Clue {
    /// A description for users, to follow the name of the rank.
    pub fn describe(&self) -> String {
        let others = |count: u32| if count == 1 { "another rank".to_owned() } else { format!("{count} others") };
        match self {
            Self::Suspended => "was suspended".to_owned(),
            Self::Signalled => "received a termination signal that umiak did not send".to_owned(),
            Self::WrongRank { rank } => format!("waited for rank {rank}, which this job does not have"),
            Self::NotListening { listening: 0 } => "listened, but not on its own endpoint".to_owned(),
            Self::NotListening { listening } => {
                format!("did not listen on its own endpoint, as {} did", others(*listening))
            }
            Self::Named { by } => format!("is the peer that {} lost or missed", list(by)),
            Self::EndedEarly { running } => format!("exited with 0 too early, while {} ran", others(*running)),
            Self::WrongAddress { address } => {
                format!("tried to connect to {address}, which is no address of this job")
            }
            Self::NotConnected { connected } => format!("had closed its connections to {}", others(*connected)),
            Self::Elsewhere => "did not reach the operation that the others were waiting in".to_owned(),
            Self::Unresponsive => "did not respond, and others timed out".to_owned(),
        }
    }
}

fn list(names: &[String]) -> String {
    match names {
        [first, second, third, rest @ ..] if !rest.is_empty() => {
            format!("{first}, {second}, {third} and {} more", rest.len())
        }
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

impl Snapshot {
    /// What it was doing, in one line: `at train.py:88 in step; sleeping in futex_wait_queue, 1.2 s CPU, 4 connections`.
    pub fn describe(&self) -> String {
        let mut parts = vec![match (self.state, &self.waits_in) {
            (ProcessState::Running, _) => "running".to_owned(),
            (ProcessState::Sleeping, Some(function)) => format!("sleeping in {function}"),
            (ProcessState::Sleeping, None) => "sleeping".to_owned(),
            (ProcessState::Blocked, Some(function)) => format!("blocked in {function}"),
            (ProcessState::Blocked, None) => "blocked in the kernel".to_owned(),
            (ProcessState::Suspended, _) => "suspended".to_owned(),
            (ProcessState::Exiting, _) => "exiting".to_owned(),
        }];
        parts.push(format!("{:.1} s CPU", self.cpu_micros as f64 / 1e6));
        parts.extend(self.quiet_micros.map(|micros| format!("last output {:.1} s ago", micros as f64 / 1e6)));
        parts.extend(self.connections.map(|count| match count {
            0 => "no connection".to_owned(),
            1 => "1 connection".to_owned(),
            _ => format!("{count} connections"),
        }));
        let place = self.place().map(|frame| format!("at {}; ", frame.describe())).unwrap_or_default();
        format!("{place}{}", parts.join(", "))
    }

    /// The innermost frame of the user's code; the innermost at all if there is none.
    pub fn place(&self) -> Option<&StackFrame> {
        self.stack.iter().find(|frame| python::is_users(&frame.file)).or(self.stack.first())
    }
}

impl StackFrame {
    /// `train.py:88 in step`.
    pub fn describe(&self) -> String {
        format!("{}:{} in {}", shown(&self.file), self.line, shown(&self.function))
    }
}
