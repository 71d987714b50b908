//! What an engine knows of an attempt that runs, and how one is stopped.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Exit;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A running attempt, as the engine knows it: a process of a host has a number, one of a cluster a name and a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Instance {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its name in the cluster: a pod, a task of a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it runs, if not on this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl Instance {
    /// A process of this host.
    pub fn of_pid(pid: u32) -> Self {
        Self { pid: Some(pid), ..Self::default() }
    }

    /// In words: `pid 7`, `trainer-0 on gpu-12`; empty where nothing is known.
    pub fn describe(&self) -> String {
        let pid = self.pid.map(|pid| format!("pid {pid}"));
        let node = self.node.as_ref().map(|node| format!("on {node}"));
        [self.name.clone(), pid, node].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// How an attempt is stopped. Which signal or request that is, is the engine's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopHow {
    /// It is interrupted, as by Ctrl-C on its own terminal. SIGTERM follows when it does not end.
    Interrupt,
    /// It is asked to end, and has time for that. Older journals say `graceful`.
    #[serde(alias = "graceful")]
    Terminate,
    /// It is ended.
    Kill,
}

/// What was sent to an attempt that is being stopped: the first and the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSent {
    pub first: StopHow,
    pub last: StopHow,
}

impl StopSent {
    pub fn new(how: StopHow) -> Self {
        Self { first: how, last: how }
    }

    /// With this one too, which may be weaker.
    #[must_use]
    pub fn and(self, how: StopHow) -> Self {
        Self { last: self.last.max(how), ..self }
    }

    /// True for an end that the stop brought about. An interrupted program may end with any code: Python's own is that of
    /// an unhandled exception, and a handler chooses its own.
    pub fn caused(self, exit: &Exit) -> bool {
        match exit {
            Exit::Code { code } => *code != 0 && self.first == StopHow::Interrupt,
            Exit::Signal { signal: SIGTERM, .. } => true,
            Exit::Signal { signal: SIGKILL, .. } => self.last == StopHow::Kill || self.first == StopHow::Interrupt,
            Exit::Signal { .. } => self.first == StopHow::Interrupt,
            _ => false,
        }
    }
}
