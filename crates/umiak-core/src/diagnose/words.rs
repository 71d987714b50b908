//! Clues and snapshots in words.

use super::python;
use crate::diag::shown;
use crate::facts::{Clue, Snapshot, StackFrame};

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
            Self::Remaining { lost } => format!("is the only rank that did not lose a peer, as {} did", others(*lost)),
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
