//! A running attempt as the engine identifies it, and how one is stopped.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Exit;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A running attempt as the engine identifies it: by pid on a host, by name and node in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Instance {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its name in the cluster: a pod, a task of a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its node, if not this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl Instance {
    /// A process of this host.
    pub fn of_pid(pid: u32) -> Self {
        Self { pid: Some(pid), ..Self::default() }
    }

    /// Describes the instance: `pid 7`, `trainer-0 on gpu-12`; empty if nothing is known.
    pub fn describe(&self) -> String {
        let pid = self.pid.map(|pid| format!("pid {pid}"));
        let node = self.node.as_ref().map(|node| format!("on {node}"));
        [self.name.clone(), pid, node].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// How an attempt is stopped. The engine chooses the signal or request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopHow {
    /// Interrupts it, as Ctrl-C on its own terminal does. SIGTERM follows if it does not exit.
    Interrupt,
    /// Asks it to exit, with time to do so.
    Terminate,
    /// Ends it at once.
    Kill,
}

/// The first and the strongest stop sent to an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSent {
    pub first: StopHow,
    pub last: StopHow,
}

impl StopSent {
    pub fn new(how: StopHow) -> Self {
        Self { first: how, last: how }
    }

    /// Adds another stop, which may be weaker.
    #[must_use]
    pub fn and(self, how: StopHow) -> Self {
        Self { last: self.last.max(how), ..self }
    }

    /// True if the stop caused this exit. A handler of SIGTERM may save its state and exit with 0. An interrupted program
    /// may exit with any code: Python's is that of an unhandled exception, and a handler chooses its own.
    pub fn caused(self, exit: &Exit) -> bool {
        match exit {
            Exit::Code { code } => *code == 0 || self.first == StopHow::Interrupt,
            Exit::Signal { signal: SIGTERM, .. } => true,
            Exit::Signal { signal: SIGKILL, .. } => self.last == StopHow::Kill || self.first == StopHow::Interrupt,
            Exit::Signal { .. } => self.first == StopHow::Interrupt,
            _ => false,
        }
    }
}
