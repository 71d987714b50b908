//! What agents and the coordinator say to each other. An agent tells its *state*, never a command: each message
//! replaces the one before, so that after a reconnection the last one is simply said again.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::diagnose;
use crate::facts::{Outcome, StopReason, Verdict};
use crate::machine::job::{Decided, NODE_LOST};
use crate::model::{Device, DeviceKind, Endpoint, Part, Port};

/// From an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromAgent {
    /// The first message on every connection,
    Join(Box<Join>),
    /// unless it carries logs: then the messages of [`super::logs`] follow.
    Logs(super::logs::Hello),
    Standing(Standing),
    /// We are here.
    Beat,
    /// The decision has arrived; nothing more will be said.
    Bye,
}

/// A node that joins, or comes back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Random, of this start of umiak on this node: tells a node that comes back from a second job.
    pub launch: u64,
    /// Of the script and its arguments: what all nodes of one job have in common.
    pub command: u64,
    pub address: IpAddr,
    pub host: String,
    pub expects: Expects,
    /// `--rank`.
    pub rank: Option<u32>,
    /// `--uneven`: nodes may have different numbers of processes.
    pub uneven: bool,
    /// `--gather-logs`: it will send its ranks' logs.
    pub logs: bool,
    pub standing: Standing,
}

/// Which nodes a node thinks there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expects {
    /// These, in this order: `--ips`.
    List(Vec<IpAddr>),
    /// So many, whoever they are: `--master` and `--nnodes`.
    Count { nodes: u32, sort_ip: bool },
}

impl Expects {
    pub fn nodes(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Count { nodes, .. } => *nodes as usize,
        }
    }
}

/// How things stand on one node, in one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    pub attempt: u32,
    pub stage: Stage,
    /// All servers of this node listen, or have ended well. The agent keeps it: the front tells it once.
    #[serde(default, skip_serializing_if = "is_default")]
    pub listens: bool,
}

impl Standing {
    pub fn new(attempt: u32, stage: Stage) -> Self {
        Self { attempt, stage, listens: false }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Everything is at hand to start this attempt.
    Ready(Offer),
    Running,
    /// All ranks of this node that decide have ended well, or it has none; others still run, for the sake of other nodes.
    Serving,
    /// All ranks of this node have ended well.
    Succeeded,
    /// A rank has ended badly; the others of this node are being stopped.
    Failed,
    /// The settle window of this node is closed: how its ranks ended.
    Told(Vec<Told>),
    /// umiak was asked to stop here: by this signal, or by `umiak stop`.
    Interrupted {
        signal: Option<i32>,
        kill: bool,
    },
    /// This attempt cannot be started here.
    Unable {
        why: String,
    },
}

/// What a node brings to an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// One for each process, by local rank; servers come first.
    pub processes: Vec<NodeProcess>,
    /// For the stores of Paddle and of torch, which the first node hosts.
    pub stores: [Port; 2],
    pub device_kind: Option<DeviceKind>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeProcess {
    pub port: Port,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub part: Part,
    /// Of heterogeneous jobs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stage: u32,
}

impl NodeProcess {
    /// A rank of a collective job.
    pub fn trainer(port: Port, devices: Vec<Device>) -> Self {
        Self { port, devices, part: Part::Trainer, stage: 0 }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The end of a rank, and where people find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub end: diagnose::End,
    pub place: RankPlace,
}

/// Where a rank was, in the words that are shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct RankPlace {
    pub rank: u32,
    pub host: String,
    pub pid: Option<u32>,
    pub devices: String,
    pub log: String,
}

/// To an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
pub enum ToAgent {
    Welcome,
    Refused(Refusal),
    Waiting(Waiting),
    Start(Start),
    Stop(Stop),
    Decision(Box<Decision>),
    Servers(Servers),
    /// Nodes that have not been heard of for a while; all others are well.
    Suspects {
        nodes: Vec<NodeName>,
    },
    Beat,
}

impl Serialize for ToAgent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// What follows the type is usually kept aside until the type is known. [`Start`] is too long for that: it is read as it
/// comes, where its type comes first, as ours does.
impl<'de> Deserialize<'de> for ToAgent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ToAgentVisitor)
    }
}

struct ToAgentVisitor;

impl<'de> Visitor<'de> for ToAgentVisitor {
    type Value = ToAgent;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a message with a type")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ToAgent, A::Error> {
        let mut aside = serde_json::Map::new();
        if let Some((key, value)) = map.next_entry::<String, serde_json::Value>()? {
            if key == "type" && value == "start" {
                return Start::deserialize(MapAccessDeserializer::new(map)).map(ToAgent::Start);
            }
            aside.insert(key, value);
        }
        while let Some((key, value)) = map.next_entry::<String, serde_json::Value>()? {
            if aside.insert(key, value).is_some() {
                return Err(de::Error::custom("a field is there twice"));
            }
        }
        ToAgent::deserialize(serde_json::Value::Object(aside)).map_err(de::Error::custom)
    }
}

/// A node as people know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeName {
    pub node: u32,
    pub address: IpAddr,
    pub host: String,
}

/// Why a node may not take part. Both sides show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The lists of nodes differ.
    OtherNodes { ours: Expects, theirs: Expects },
    /// Its address is not in the list.
    NotListed { address: IpAddr, list: Vec<IpAddr> },
    /// That place is taken by a node that lives; with another command it is most likely a second job.
    Taken { by: NodeName, same_command: bool },
    /// `--rank` was given twice, or does not fit.
    Rank { rank: u32, nodes: u32, by: Option<NodeName> },
    /// Only some of the nodes have given `--rank`.
    MixedRanks,
    /// Unequal numbers of processes.
    Processes { ours: u32, theirs: u32, first: NodeName },
    /// All nodes are there already.
    Full { nodes: u32 },
    /// The job has started without it, or is over.
    TooLate,
}

impl Refusal {
    /// The command lines of the nodes do not fit together: waiting does not help. Else a node came that is not needed.
    pub fn is_contradiction(&self) -> bool {
        match self {
            Self::OtherNodes { .. } | Self::Rank { .. } | Self::MixedRanks | Self::Processes { .. } => true,
            Self::NotListed { .. } | Self::Taken { .. } | Self::Full { .. } | Self::TooLate => false,
        }
    }
}

/// Who is there, and who is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub joined: u32,
    pub of: u32,
    pub missing: Vec<Missing>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub address: IpAddr,
    pub answer: Answer,
}

/// How an address answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Nobody has asked yet.
    Unknown,
    /// The host is there, and nobody listens.
    Refused,
    NoRoute,
    Silent,
    OtherVersion {
        version: u16,
    },
    OtherToken,
    OtherJob {
        text: String,
    },
    /// It came, and was refused for this.
    TurnedAway(Box<Refusal>),
    /// It was here.
    Left,
    Failed {
        why: String,
    },
}

/// All nodes are ready: who has which rank, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub attempt: u32,
    /// By node.
    pub nodes: Vec<NodeShare>,
    pub paddle_store: Endpoint,
    pub torch_store: Endpoint,
    /// Which of the nodes is spoken to. Not sent, so that all nodes are sent the same bytes: an agent finds itself by
    /// its launch id.
    #[serde(skip)]
    pub you: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeShare {
    pub launch: u64,
    pub address: IpAddr,
    pub host: String,
    pub processes: Vec<NodeProcess>,
    pub device_kind: Option<DeviceKind>,
}

/// Which nodes have servers that do not listen yet; none when trainers may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Servers {
    pub attempt: u32,
    pub missing: Vec<u32>,
}

/// Stop what runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    pub attempt: u32,
    pub why: Why,
}

/// What ended an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    RankFailed {
        node: NodeName,
    },
    NodeLost {
        node: NodeName,
        how: Loss,
    },
    Interrupted {
        node: NodeName,
        signal: Option<i32>,
        kill: bool,
    },
    Unable {
        node: NodeName,
        why: String,
    },
    /// A node was refused, and the job is not complete without it.
    Refused {
        node: NodeName,
        refusal: Refusal,
    },
    /// Not all nodes came in time.
    TimeUp {
        waiting: Waiting,
    },
    /// The coordinator cannot be reached any more; decided by the agent itself.
    CoordinatorLost {
        how: Loss,
    },
}

/// How a node was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Its umiak was killed.
    Killed,
    /// Nothing was heard of it for so long.
    Silent { after: Duration },
    /// Its connection broke and did not come back.
    Disconnected { after: Duration },
    /// Nobody listens at its address any more.
    Refused,
}

/// How an attempt ends, for all nodes alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub attempt: u32,
    pub outcome: Outcome,
    /// What ended it, where it did not succeed.
    pub why: Option<Why>,
    /// Over the ends of all nodes, where ranks have failed.
    pub verdict: Option<Verdict>,
    /// Of the ranks in the verdict.
    pub places: Vec<RankPlace>,
    /// All nodes start again.
    pub restart: Option<Restart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    pub attempt: u32,
    pub delay: Duration,
}

impl Decision {
    /// True if the nodes cannot form a job: one that arrives later must learn it too.
    pub fn is_refusal(&self) -> bool {
        matches!(self.why, Some(Why::Refused { .. } | Why::Unable { .. }))
    }

    /// For the job's own machine.
    pub fn decided(&self) -> Decided {
        let nobody = self.verdict.as_ref().is_none_or(|verdict| verdict.causes.is_empty());
        let (signal, kill) = match &self.why {
            Some(Why::Interrupted { signal, kill, .. }) => (*signal, *kill),
            _ => (None, false),
        };
        Decided {
            attempt: self.attempt,
            outcome: self.outcome,
            verdict: self.verdict.clone(),
            signal,
            kill,
            code: (nobody && self.outcome == Outcome::Failed).then_some(NODE_LOST),
            restart: self.restart.map(|restart| restart.delay),
        }
    }
}

impl Stop {
    /// For the job's own machine.
    pub fn reason(&self) -> StopReason {
        match self.why {
            Why::RankFailed { .. } => StopReason::PeerFailed,
            Why::Interrupted { signal: Some(signal), .. } => StopReason::SignalElsewhere { signal },
            Why::Interrupted { signal: None, .. } => StopReason::User,
            Why::NodeLost { .. }
            | Why::Unable { .. }
            | Why::Refused { .. }
            | Why::TimeUp { .. }
            | Why::CoordinatorLost { .. } => StopReason::NodeLost,
        }
    }
}
