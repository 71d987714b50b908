//! Messages between engine and cluster: one JSON line each, with a version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Exit, Instance, StepIndex, StopHow};

use super::super::EngineNews;
use super::super::actors::ended;
use super::render::Manifest;

/// Engine and cluster must have the same version.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Line<T> {
    v: u32,
    say: T,
}

/// A message from the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Answered with no attempts.
    Hello {},
    /// Submits a gang. A known unit is ignored.
    Submit(Manifest),
    /// Replays the state of these attempts from the beginning; other attempts of the unit are ended.
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
    /// Ends the cluster.
    End {},
}

/// A message from the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// Answers [`Order::Hello`] and [`Order::Adopt`].
    Answer {
        attempts: Vec<AttemptId>,
    },
    Pending {
        step: StepIndex,
        reason: String,
    },
    Started {
        id: AttemptId,
        instance: Instance,
    },
    /// Output from this byte on.
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
    /// Converts to news; `Err` holds the attempts of an answer.
    pub(super) fn news(self) -> Result<EngineNews, Vec<AttemptId>> {
        Ok(match self {
            Self::Answer { attempts } => return Err(attempts),
            Self::Pending { step, reason } => EngineNews::Pending { step, reason },
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

/// Returns `None` if the line is not a message of this version.
pub(super) fn read<T: DeserializeOwned>(line: &str) -> Option<T> {
    serde_json::from_str::<Line<T>>(line).ok().filter(|line| line.v == VERSION).map(|line| line.say)
}
