//! Messages between agents and the coordinator. An agent sends its *state*, never a command: each message replaces the
//! one before, so after a reconnection the last one is sent again.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::bounds::{Bounded, HOST, OneLine, TEXT, listed};
use crate::diagnose;
use crate::facts::{Outcome, Resize, StopReason, Verdict};
use crate::machine::job::{Decided, NODE_LOST};
use crate::model::{Device, DeviceKind, Endpoint, Mode, Part, Port, Request, StoreHost, Timestamp, shown};

/// From an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromAgent {
    /// The first message on every connection,
    Join(Box<Join>),
    /// unless the connection carries logs: then the messages of [`super::logs`] follow.
    Logs(super::logs::Hello),
    Standing(Standing),
    /// The processes of this node's ranks in this attempt, by local rank: torch's store knows its clients by them.
    Started {
        attempt: u32,
        pids: Vec<u32>,
    },
    /// Heartbeat, sent at this time of the agent's clock.
    Beat {
        sent: Timestamp,
    },
    /// The decision has arrived; nothing more follows.
    Bye,
}

/// A node that joins or reconnects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Random number of this start of umiak on this node: tells a reconnecting node from a second job.
    pub launch: u64,
    /// When this connection was made, by the clock of the agent: an earlier one may arrive after a later one.
    pub connected: Timestamp,
    /// Hash of the script and its arguments, equal on all nodes of one job.
    pub command: u64,
    /// The same as displayed, without secrets.
    #[serde(default, skip_serializing_if = "is_default", with = "OneLine::<TEXT>")]
    pub line: String,
    pub address: IpAddr,
    #[serde(with = "OneLine::<HOST>")]
    pub host: String,
    pub expects: Expects,
    /// Equal on all nodes.
    pub kind: JobKind,
    /// `--rank`.
    pub rank: Option<u32>,
    /// `--uneven`: nodes may have different numbers of processes.
    pub uneven: bool,
    /// `--gather-logs`: the node will send the logs of its ranks.
    pub logs: bool,
    /// In an elastic job: a port of this node that is open as long as umiak or its guardian runs here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive: Option<Port>,
    pub standing: Standing,
}

/// The kind of job: `--run_mode`, or implied by other flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    Collective,
    /// Umiak hosts torch's store.
    CollectiveStore,
    /// Umiak relays to Paddle's store.
    CollectiveRelay,
    /// Both.
    CollectiveStoreAndRelay,
    Rpc,
    Servers,
    Torchrun,
}

impl JobKind {
    pub fn of(request: &Request) -> Self {
        match (&request.mode, &request.store) {
            _ if request.torch.is_some() => Self::Torchrun,
            (Mode::Collective, StoreHost::Rank0) if request.store_relay => Self::CollectiveRelay,
            (Mode::Collective, StoreHost::Rank0) => Self::Collective,
            (Mode::Collective, StoreHost::Agent { .. }) if request.store_relay => Self::CollectiveStoreAndRelay,
            (Mode::Collective, StoreHost::Agent { .. }) => Self::CollectiveStore,
            (Mode::Rpc, _) => Self::Rpc,
            (Mode::Servers(_), _) => Self::Servers,
        }
    }

    /// The value of `--run_mode`, or the flag or command that makes it another kind.
    pub fn word(self) -> &'static str {
        match self {
            Self::Collective => "collective",
            Self::CollectiveStore => "collective with `--agent-store`",
            Self::CollectiveRelay => "collective with `--store-relay`",
            Self::CollectiveStoreAndRelay => "collective with `--agent-store` and `--store-relay`",
            Self::Rpc => "rpc",
            Self::Servers => "ps",
            Self::Torchrun => "torchrun",
        }
    }
}

/// The nodes that a node expects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expects {
    /// These, in this order: `--ips`.
    List(#[serde(deserialize_with = "listed")] Vec<IpAddr>),
    /// This many, at any address: `--master` and `--nnodes`.
    Count { nodes: u32, sort_ip: bool },
    /// An elastic job: its members may change between attempts. More than `max` may join; the others are spares.
    Range { min: u32, max: u32 },
}

impl Expects {
    /// The number of nodes, or the largest one.
    pub fn nodes(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Count { nodes, .. } => *nodes as usize,
            Self::Range { max, .. } => *max as usize,
        }
    }
}

/// The state of one node in one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    pub attempt: u32,
    pub stage: Stage,
    /// All servers of this node listen, or have ended well. The agent repeats it: the front reports it once.
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
    /// Ready to start this attempt.
    Ready(Offer),
    Running,
    /// All deciding ranks of this node have succeeded, or it has none; others still run, for other nodes.
    Serving,
    /// All ranks of this node have succeeded.
    Succeeded,
    /// No rank of this node makes progress.
    Hung,
    /// A rank has failed; the others of this node are being stopped.
    Failed {
        /// Its log ends with a time-out: the cause may be a rank of another node that does not respond.
        waited: bool,
    },
    /// The settle window of this node is closed: how its ranks ended.
    Told(Vec<Told>),
    /// A stop was requested on this node: by this signal, or by `umiak stop`.
    Interrupted {
        signal: Option<i32>,
        kill: bool,
    },
    /// This attempt cannot start on this node.
    Unable {
        #[serde(with = "Bounded::<TEXT>")]
        why: String,
    },
}

impl Stage {
    /// True if ranks were started in this attempt.
    pub(super) fn has_ranks(&self) -> bool {
        match self {
            Self::Running | Self::Serving | Self::Hung | Self::Succeeded | Self::Failed { .. } | Self::Told(_) => true,
            Self::Ready(_) | Self::Interrupted { .. } | Self::Unable { .. } => false,
        }
    }
}

/// Resources that a node provides for an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// One per process, by local rank; servers come first.
    pub processes: Vec<NodeProcess>,
    /// For the stores of Paddle and torch, which the first node hosts.
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
    /// For heterogeneous jobs.
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

/// The end of a rank, and where to find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub end: diagnose::End,
    pub place: RankPlace,
}

/// The place of a rank, as displayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct RankPlace {
    pub rank: u32,
    #[serde(with = "OneLine::<HOST>")]
    pub host: String,
    pub pid: Option<u32>,
    #[serde(with = "OneLine::<TEXT>")]
    pub devices: String,
    #[serde(with = "OneLine::<TEXT>")]
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
    /// Nodes that have been silent for a while; all others are well.
    Suspects {
        nodes: Vec<NodeName>,
    },
    /// The answer to the heartbeat that was sent at this time.
    Beat {
        sent: Timestamp,
    },
}

impl Serialize for ToAgent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// A derived implementation buffers all fields until the type is known. [`Start`] is too long for that: if its type
/// comes first, as it does in our messages, it is read directly.
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
                return Err(de::Error::custom("duplicate field"));
            }
        }
        ToAgent::deserialize(serde_json::Value::Object(aside)).map_err(de::Error::custom)
    }
}

/// A node, as displayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeName {
    pub node: u32,
    pub address: IpAddr,
    #[serde(with = "OneLine::<HOST>")]
    pub host: String,
}

/// `192.168.0.2 (gpu-b)`.
impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.host)
    }
}

/// Why a node is refused. Both sides display it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The lists of nodes differ.
    OtherNodes { ours: Expects, theirs: Expects },
    /// The kinds of job differ.
    Kinds { ours: JobKind, theirs: JobKind, first: NodeName },
    /// Its address is not in the list.
    NotListed { address: IpAddr, list: Vec<IpAddr> },
    /// Another live node has that place, or that address from another source; with another command it is probably a
    /// second job. `from` is where that node connected from, if its address does not say so.
    Taken { by: NodeName, from: Option<IpAddr>, same_command: bool },
    /// `--rank` is a duplicate or out of range.
    Rank { rank: u32, nodes: u32, by: Option<NodeName> },
    /// Only some of the nodes use `--rank`.
    MixedRanks,
    /// Different numbers of processes.
    Processes { ours: u32, theirs: u32, first: NodeName },
    /// All nodes have joined already.
    Full { nodes: u32 },
    /// The job has started without it, or is over.
    TooLate,
    /// It was lost for too long, and an elastic job has gone on without it.
    GivenUp,
}

impl Refusal {
    /// True if the command lines of the nodes contradict each other, so that waiting does not help. Otherwise the node
    /// is just not needed.
    pub fn is_contradiction(&self) -> bool {
        match self {
            Self::OtherNodes { .. }
            | Self::Kinds { .. }
            | Self::Rank { .. }
            | Self::MixedRanks
            | Self::Processes { .. } => true,
            Self::NotListed { .. } | Self::Taken { .. } | Self::Full { .. } | Self::TooLate | Self::GivenUp => false,
        }
    }

    pub fn kind(&self) -> RefusalKind {
        match self {
            Self::OtherNodes { .. } | Self::NotListed { .. } => RefusalKind::OtherNodes,
            Self::Kinds { .. } => RefusalKind::Kinds,
            Self::Taken { .. } => RefusalKind::Taken,
            Self::Rank { .. } | Self::MixedRanks => RefusalKind::Rank,
            Self::Processes { .. } => RefusalKind::Processes,
            Self::Full { .. } | Self::TooLate | Self::GivenUp => RefusalKind::TooLate,
        }
    }
}

/// A [`Refusal`] without its details, which may be long and come from a stranger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    OtherNodes,
    Kinds,
    Taken,
    Rank,
    Processes,
    TooLate,
}

/// Which nodes have joined, and which are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub joined: u32,
    /// The number of nodes; in an elastic job the smallest one.
    pub of: u32,
    pub missing: Vec<Missing>,
    /// In an elastic job, the largest number of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u32>,
    /// In an elastic job with enough nodes, for how long others are awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Duration>,
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
    /// Not probed yet.
    Unknown,
    /// The host is up, but the port is closed.
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
    /// It connected, and was refused for this reason.
    TurnedAway(RefusalKind),
    /// It had joined and left.
    Left,
    Failed {
        why: String,
    },
}

/// All nodes are ready: which node has which ranks, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub attempt: u32,
    /// By node.
    pub nodes: Vec<NodeShare>,
    pub paddle_store: Endpoint,
    pub torch_store: Endpoint,
    /// The coordinator's `--max_restart`, which applies to all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u32>,
    /// The attempt before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastAttempt>,
    /// In an elastic job whose nodes were started with different commands: the coordinator's, then the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<NodeCommand>,
    /// The receiving node. Not sent, so that all nodes receive the same bytes: an agent finds itself by its launch id.
    #[serde(skip)]
    pub you: u32,
}

/// The script of a node and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCommand {
    pub node: u32,
    #[serde(with = "OneLine::<TEXT>")]
    pub line: String,
}

/// How large the last attempt was, and why it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastAttempt {
    pub world: u32,
    pub end: AttemptEnd,
    /// How many attempts ended because nodes came or went.
    pub changes: u32,
    /// How many restarts count against the budget: those within `--restart-window`.
    pub counted: u32,
}

/// Why an attempt was followed by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    RankFailed,
    Hung,
    NodeLost,
    NodeLeft,
    NodeJoined,
    Scaled,
}

impl AttemptEnd {
    /// The value of `UMIAK_RESTART_REASON`.
    pub fn word(self) -> &'static str {
        match self {
            Self::RankFailed => "rank_failed",
            Self::Hung => "hung",
            Self::NodeLost => "node_lost",
            Self::NodeLeft => "node_left",
            Self::NodeJoined => "node_joined",
            Self::Scaled => "scaled",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeShare {
    pub launch: u64,
    pub address: IpAddr,
    #[serde(with = "OneLine::<HOST>")]
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

/// Stop all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    pub attempt: u32,
    pub why: Why,
}

/// Why an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    RankFailed {
        node: NodeName,
        /// As its node reported it.
        waited: bool,
    },
    NodeLost {
        node: NodeName,
        how: Loss,
    },
    /// Other nodes join an elastic job.
    Joined {
        nodes: Vec<NodeName>,
    },
    /// The number of nodes was changed in etcd.
    Scaled {
        min: u32,
        max: u32,
    },
    /// No rank of any node made progress.
    Hung,
    Interrupted {
        node: NodeName,
        signal: Option<i32>,
        kill: bool,
    },
    Unable {
        node: NodeName,
        why: String,
    },
    /// A node was refused, and the job is incomplete without it.
    Refused {
        node: NodeName,
        refusal: Refusal,
    },
    /// Not all nodes joined in time.
    TimeUp {
        waiting: Waiting,
    },
    /// The coordinator can no longer be reached; decided by the agent itself.
    CoordinatorLost {
        how: Loss,
    },
}

/// How a node was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Its umiak process was killed.
    Killed,
    /// Its umiak and its guardian are dead: connections to the port that they kept open were refused for this long.
    Vanished { after: Duration },
    /// No message came from it for this long.
    Silent { after: Duration },
    /// Its connection broke and did not come back.
    Disconnected { after: Duration },
    /// Its address refuses connections.
    Refused,
    /// It was stopped there, or could not go on: an elastic job continues without it.
    Left,
    /// Its ranks alone have failed in this many attempts in a row.
    LeftOut { failures: u32 },
    /// It was the coordinator, and its lease in etcd was about to expire.
    Fenced,
    /// It was the coordinator, and its key in etcd is gone.
    Deposed,
    /// It is the coordinator, and has gone on without this node.
    GaveUp,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed => f.write_str("its umiak was killed"),
            Self::Vanished { after } => {
                write!(f, "umiak is no longer running there (connections refused for {})", shown(*after))
            }
            Self::Silent { after } => write!(f, "no message from it for {}", shown(*after)),
            Self::Disconnected { after } => {
                write!(f, "its connection broke and was not restored within {}", shown(*after))
            }
            Self::Refused => f.write_str("nothing listens there anymore"),
            Self::Left => f.write_str("it was stopped there"),
            Self::Fenced => f.write_str("it could not renew its lease in etcd"),
            Self::Deposed => f.write_str("its key in etcd was deleted or has expired"),
            Self::GaveUp => f.write_str("it has gone on without this node"),
            Self::LeftOut { failures: 0 } => f.write_str("its ranks cannot start"),
            Self::LeftOut { failures: 1 } => f.write_str("a rank failed there"),
            Self::LeftOut { failures } => write!(f, "only its ranks failed in {failures} attempts in a row"),
        }
    }
}

/// How an attempt ends, the same for all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub attempt: u32,
    pub outcome: Outcome,
    /// The reason, unless it succeeded.
    pub why: Option<Why>,
    /// Over the ends of all nodes, if ranks have failed.
    pub verdict: Option<Verdict>,
    /// Of the ranks in the verdict.
    pub places: Vec<RankPlace>,
    /// All nodes start again.
    pub restart: Option<Restart>,
    /// It is about the receiving node alone: an elastic job goes on without it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub alone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    pub attempt: u32,
    pub delay: Duration,
    /// Under another coordinator.
    #[serde(default, skip_serializing_if = "is_default")]
    pub moves: bool,
}

impl Decision {
    /// True if the nodes cannot form a job: one that arrives later must learn it too.
    pub fn is_refusal(&self) -> bool {
        matches!(self.why, Some(Why::Refused { .. } | Why::Unable { .. }))
    }

    /// How the members of an elastic job change, if they do.
    fn change(&self) -> Option<Resize> {
        Some(match self.why.as_ref()? {
            Why::Joined { nodes } => Resize::Joined { nodes: nodes.iter().map(NodeName::to_string).collect() },
            Why::Scaled { min, max } => Resize::Scaled { min: *min, max: *max },
            Why::NodeLost { node, how } => {
                let node = node.to_string();
                match how {
                    Loss::Left => Resize::Left { node },
                    Loss::LeftOut { failures } => Resize::LeftOut { node, failures: *failures },
                    Loss::Fenced => Resize::Fenced { node },
                    Loss::GaveUp => Resize::GivenUp { by: node },
                    _ => Resize::Lost { node, reason: how.to_string() },
                }
            }
            _ => return None,
        })
    }

    /// The coordinator of an elastic job is lost, as a node that loses it sees it: the job goes on under another one.
    pub fn coordinator_lost(attempt: u32, node: NodeName, how: Loss) -> Self {
        let restart = Some(Restart { attempt: attempt + 1, delay: Duration::ZERO, moves: true });
        let why = Some(Why::NodeLost { node, how });
        Self { attempt, outcome: Outcome::Failed, why, verdict: None, places: Vec::new(), restart, alone: false }
    }

    /// True if the job goes on under another coordinator.
    pub fn moves(&self) -> bool {
        self.restart.is_some_and(|restart| restart.moves)
    }

    /// The decision for the job's machine.
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
            change: self.restart.and_then(|_| self.change()),
        }
    }
}

impl Stop {
    /// The stop reason for the job's machine.
    pub fn reason(&self) -> StopReason {
        match self.why {
            Why::RankFailed { .. } => StopReason::PeerFailed,
            Why::Hung => StopReason::Hung,
            Why::Joined { .. } | Why::Scaled { .. } | Why::NodeLost { how: Loss::Left | Loss::LeftOut { .. }, .. } => {
                StopReason::Resized
            }
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
