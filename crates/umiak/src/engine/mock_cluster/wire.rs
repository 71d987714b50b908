//! The lines that engine and cluster send each other: JSON, one message each, with a version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Exit, Instance, StopHow};

use super::super::EngineNews;
use super::super::actors::ended;
use super::render::Manifest;

/// An engine and a cluster of different versions do not understand each other.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Line<T> {
    v: u32,
    say: T,
}

/// From the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Answered without attempts.
    Hello {},
    /// A gang. The same unit is taken once.
    Submit(Manifest),
    /// What is there of these is told from the beginning; what the unit has beside them is ended.
    Adopt {
        unit: String,
        live: Vec<AttemptId>,
    },
    Stop {
        how: StopHow,
        targets: Vec<AttemptId>,
    },
    AwaitReady {
        id: AttemptId,
    },
    /// Ends and forgets all units.
    Forget {},
    /// The cluster itself ends.
    End {},
}

/// From the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// To [`Order::Hello`] and [`Order::Adopt`].
    Answer {
        attempts: Vec<AttemptId>,
    },
    Pending {
        reason: String,
    },
    Started {
        id: AttemptId,
        instance: Instance,
    },
    /// From this byte on.
    Output {
        id: AttemptId,
        at: u64,
        text: String,
    },
    Ready {
        id: AttemptId,
    },
    Ended {
        id: AttemptId,
        exit: Exit,
    },
}

impl Told {
    /// What the engine passes on; the attempts of an answer.
    pub(super) fn news(self) -> Result<EngineNews, Vec<AttemptId>> {
        Ok(match self {
            Self::Answer { attempts } => return Err(attempts),
            Self::Pending { reason } => EngineNews::Pending { reason },
            Self::Started { id, instance } => EngineNews::Started { id, instance },
            Self::Output { id, at, text } => EngineNews::Output { id, at, bytes: text.into_bytes() },
            Self::Ready { id } => EngineNews::Ready { id },
            Self::Ended { id, exit } => ended(id, exit),
        })
    }
}

pub(super) fn line<T: Serialize>(say: &T) -> String {
    let text = serde_json::to_string(&Line { v: VERSION, say }).expect("messages are plain data");
    text + "\n"
}

/// Nothing where it is no line of this version.
pub(super) fn read<T: DeserializeOwned>(line: &str) -> Option<T> {
    serde_json::from_str::<Line<T>>(line).ok().filter(|line| line.v == VERSION).map(|line| line.say)
}
