//! The request of a launched job, independent of its nodes: the result of parsing a launcher's command line. Each
//! `source` is the flag or variable that the value comes from, for messages.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeviceKind, Endpoint, EtcdOptions, ExitCodes, Generation, JobId, Part, Policy, Port, StreamRules};

/// A launched job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub job_id: JobId,
    /// The name of the run: the job's id if one is given, else the script's stem.
    pub name: String,
    /// The whole command line, quoted for a shell, secrets masked.
    pub line: String,
    pub mode: Mode,
    pub nodes: Nodes,
    /// Present if a scheduler names the nodes, and which of them this is.
    pub placement: Option<Placement>,
    /// Present if the nodes may come and go.
    pub elastic: Option<Elastic>,
    /// The address given for this node. The legacy generation uses it only with several nodes: it takes a single node's
    /// address from `--ips`.
    pub host: Option<IpAddr>,
    /// With one node: the address in `--ips`, or the platform's. `None` if it was not given, also in the legacy
    /// generation, whose default is 127.0.0.1.
    pub ip: Option<IpAddr>,
    /// This node's rank, if one was given. It is in range, and orders the nodes of [`Nodes::Master`] and [`Nodes::Auto`];
    /// otherwise it only shifts the ports of `FLAGS_FIXED_PORT`, which has been done already.
    pub node_rank: Option<u32>,
    /// Nodes that use a master are ordered by address.
    pub sort_ip: bool,
    /// Nodes may have different numbers of processes.
    pub uneven: bool,
    /// `None` for all devices.
    pub devices: Option<DeviceRequest>,
    /// Several processes may use one device.
    pub share_devices: bool,
    /// On each node.
    pub processes: Processes,
    /// Processes are bound to the CPUs near their devices.
    pub numa: bool,
    pub backend: Backend,
    pub ports: PortRequest,
    pub logs: LogRequest,
    pub omp: Omp,
    pub command: CommandRequest,
    pub policy: Policy,
    pub exit_codes: ExitCodes,
    /// `--server-timeout`: a server that does not listen within this time has failed; with zero, trainers do not wait.
    /// Without it trainers wait for [`SERVER_PATIENCE`], and then start.
    pub server_timeout: Option<Duration>,
    /// Which process hosts torch's store.
    pub store: StoreHost,
    /// Ranks reach the store of Paddle's rank 0 through a relay of umiak.
    pub store_relay: bool,
    /// Present if umiak replaces one of Paddle's launchers.
    pub paddle: Option<PaddleHabits>,
    /// Present if umiak replaces `torchrun`.
    pub torch: Option<TorchHabits>,
}

/// How long trainers wait for servers that do not listen on their ports, by default.
pub const SERVER_PATIENCE: Duration = Duration::from_secs(30);

impl Request {
    /// True if trainers wait until servers listen.
    pub fn waits_for_servers(&self) -> bool {
        self.server_timeout != Some(Duration::ZERO)
    }

    /// True if nodes may have different numbers of processes. In parameter-server jobs they usually do, and with a master
    /// Paddle allows it.
    pub fn may_be_uneven(&self) -> bool {
        let by_master = matches!(self.nodes, Nodes::Master { .. } | Nodes::Auto { .. } | Nodes::Etcd { .. });
        self.uneven || by_master || matches!(self.mode, Mode::Servers(_))
    }

    /// The default first port of ranks on several nodes: the same as in Paddle's launchers, for which firewalls between
    /// nodes are opened.
    pub fn usual_port(&self) -> Option<u16> {
        let generation = self.paddle.as_ref().filter(|_| self.nodes != Nodes::One)?.variables.generation;
        Some(match generation {
            Generation::Current => 6070,
            Generation::Legacy => 6170,
        })
    }

    /// The launcher to follow where Paddle's two launchers differ.
    pub fn generation(&self) -> Generation {
        self.paddle.as_ref().map_or(Generation::Current, |paddle| paddle.variables.generation)
    }
}

/// The log files of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRequest {
    pub dir: PathBuf,
    pub names: LogNames,
    /// The output of earlier jobs is removed.
    pub overwrite: bool,
    /// Size limit and number of pieces kept.
    pub rotation: Option<Rotation>,
}

/// The number of processes on each node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processes {
    Number(u32),
    /// One for each device that is requested, or that the node has.
    PerDevice,
    /// One for each CPU.
    PerCpu,
    /// One for each device of this kind; a node without them cannot take part.
    Per(DeviceKind),
    /// One for each device of the node; one for each CPU if it has none.
    PerDeviceOrCpu,
}

impl Processes {
    /// The number, if it does not depend on the node.
    pub fn number(self) -> Option<u32> {
        match self {
            Self::Number(number) => Some(number),
            Self::PerDevice | Self::PerCpu | Self::Per(_) | Self::PerDeviceOrCpu => None,
        }
    }
}

/// Which process hosts the key-value store at which torch's ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreHost {
    /// Rank 0, as in scripts that set `MASTER_PORT` themselves.
    Rank0,
    /// Umiak on the coordinator's node: it listens before the first rank starts, and every rank is a client. On one node
    /// the endpoint may be given: `--master-addr`, `--master-port`.
    Agent { host: Option<String>, port: Option<Port> },
}

/// Behaviour of `torchrun`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchHabits {
    pub variables: TorchVariables,
    /// The job's id is random: `--standalone`, and one node without a rendezvous.
    pub random_id: bool,
    pub logs: TorchLogs,
    pub streams: StreamRules,
}

/// Where `torchrun` keeps the output of its workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TorchLogs {
    /// In the directory of the run.
    InRun,
    /// Nowhere: `--log-dir /dev/null`. Umiak needs them while the job runs.
    Dropped,
    /// `--log-dir`.
    Dir(PathBuf),
}

/// When logs are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rotation {
    pub max_bytes: u64,
    pub keep: u32,
}

/// What each process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRequest {
    /// The interpreter named on the command line; `None` for the first one found.
    pub interpreter: Option<Interpreter>,
    /// The training script or program, and its arguments, untouched.
    pub script: OsString,
    pub args: Vec<OsString>,
    /// The script runs under `coverage`.
    pub with_coverage: bool,
    /// `run_check`: the script is Paddle's own check, located by the interpreter.
    pub is_check: bool,
    /// What the script is, if its name does not tell.
    pub kind: ScriptKind,
    /// `${local_rank}` in arguments stands for the local rank, as in `torchrun`.
    pub substitutes: bool,
    /// Why the word that was taken for the script may not be one, for the message if it does not exist.
    pub misread: Option<String>,
}

/// What the script of a launcher is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptKind {
    /// A Python file or a program, as its name and its permissions tell.
    ByName,
    /// A Python file, whatever its name is.
    Python,
    /// A Python module: `-m`.
    Module,
    /// A program: `--no-python`.
    Program,
}

/// How a command line names the interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interpreter {
    /// By its name or path: the word before `-m`.
    Named(OsString),
    /// By a launcher that is a Python script, such as `/venv/bin/fleetrun`: the interpreter in its first line.
    OfScript(OsString),
}

/// Behaviour of Paddle's launchers: their lines, files and variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaddleHabits {
    pub variables: PaddleVariables,
    /// Upper case: `INFO`.
    pub log_level: String,
    /// Lines about overrides, resets and compatible mode, in order. `<ts>` stands for Paddle's time stamp. An entry may
    /// have several lines.
    pub lines: Vec<String>,
    /// The configuration block: `name: value`, sorted by name, of this generation.
    pub configuration: Vec<(String, String)>,
    /// The flags that select a parameter-server job, as the legacy launcher names them.
    pub server_flags: Vec<String>,
    pub proxies: Proxies,
    /// `<job_id>.gpu.log` is requested.
    pub gpu_log: bool,
}

/// How `http_proxy` and `https_proxy` are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxies {
    /// Ranks keep them, and `no_proxy` lists the nodes, so that ranks reach each other directly.
    Kept,
    /// Renamed, as by Paddle's current launcher (`http_proxy_original`).
    PutAside,
    /// Removed, as by Paddle's legacy launcher.
    Removed,
}

/// `OMP_NUM_THREADS` of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Omp {
    /// 1, unless the variable is set. Paddle does the same, and warns at import if there are more.
    OneUnlessSet,
    /// The same if this node has several ranks, as in `torchrun`; a single rank may use all CPUs.
    OneIfSeveral,
    /// The CPUs available to umiak, divided among the ranks of this node.
    Share,
    Count(u32),
}

/// Options for the variables of Paddle's launchers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PaddleVariables {
    pub generation: Generation,
    /// Lists of at least this many characters are omitted (`PADDLE_ENV_LIMIT_LEN`); the framework reads them from a
    /// backup file. Without a limit nothing is omitted, and there is no backup file.
    pub env_limit: Option<usize>,
    /// Exported as `PADDLE_AUTO_CLUSTER`.
    pub auto_cluster: bool,
    /// Paths given to the script's environment.
    pub auto_parallel_config: Option<String>,
    pub cluster_topo_path: Option<String>,
    pub rank_mapping_path: Option<String>,
}

/// Options for the variables of `torchrun`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TorchVariables {
    /// `ROLE_NAME`.
    pub role: String,
    /// `TORCHELASTIC_SIGNALS_TO_HANDLE`.
    pub signals: String,
    /// Every rank has `LOCAL_RANK` 0 and sees one device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub virtual_local_rank: bool,
    /// There is no error file: `--log-dir /dev/null`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_error_file: bool,
}

impl TorchVariables {
    /// Signals that are passed on to ranks.
    pub const SIGNALS: [&str; 4] = ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"];

    pub(crate) fn are_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for TorchVariables {
    fn default() -> Self {
        Self {
            role: "default".to_owned(),
            signals: Self::SIGNALS.join(","),
            virtual_local_rank: false,
            no_error_file: false,
        }
    }
}

/// The maximum number of nodes of a job.
pub const MAX_NODES: u32 = 16_384;

/// The nodes of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nodes {
    /// This one: `--ips` with one address, or nothing.
    One,
    /// `--ips a,b,…` or the platform's list: at least two, all different.
    List { addresses: Vec<IpAddr>, source: String },
    /// `--master` and `--nnodes`, at least 2. An IPv6 host is without brackets.
    Master { host: String, port: Port, nodes: u32, source: String },
    /// `--nnodes`, at least 2, without the others: this node becomes the master and prints the command for the other nodes.
    Auto { nodes: u32, source: String },
    /// Those that join the job in etcd, at most so many. They elect the coordinator.
    Etcd { at: Box<EtcdPlace>, nodes: u32, source: String },
}

/// What a scheduler says about this node of [`Nodes::Master`]. Its rank is [`Request::node_rank`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// For messages: `Slurm step 12.0`.
    pub by: String,
    /// True on the node that coordinates. If it is unknown, the node with the master's address does.
    pub leads: Option<bool>,
}

/// Where in etcd the nodes of a job meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdPlace {
    pub etcd: EtcdOptions,
    /// The parent of the job's keys, without a slash at its end: `/paddle/job1`.
    pub root: String,
    /// After this time without a sign of life etcd forgets a node. By default it follows from other limits.
    pub lease: Option<Duration>,
    pub scaling: Scaling,
}

/// How the number of nodes on the command line relates to the one in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scaling {
    /// Both must be the same.
    #[default]
    Same,
    /// The one in etcd changes by this much: `--scale`.
    By(i64),
    /// The one in etcd is replaced: `--force`.
    Replace,
}

impl Nodes {
    /// The number of nodes.
    pub fn count(&self) -> u32 {
        match self {
            Self::One => 1,
            Self::List { addresses, .. } => addresses.len() as u32,
            Self::Master { nodes, .. } | Self::Auto { nodes, .. } | Self::Etcd { nodes, .. } => *nodes,
        }
    }
}

/// A job whose nodes come and go: at most [`Nodes::count`] take part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elastic {
    /// The fewest nodes that train.
    pub min: u32,
    /// How long others are awaited once these are there.
    pub window: Duration,
    pub level: ElasticLevel,
    /// A command for the shell, run on each node before its ranks start.
    pub pre_hook: Option<String>,
}

impl Elastic {
    pub fn new(min: u32, window: Duration) -> Self {
        Self { min, window, level: ElasticLevel::default(), pre_hook: None }
    }
}

/// What an elastic job survives: `--elastic_level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ElasticLevel {
    /// Nothing: a failed rank or a lost node ends it.
    Off,
    /// Lost nodes. A node whose rank fails ends, and the others go on without it.
    Nodes,
    /// Failed ranks too: all ranks start again, as often as the policy allows.
    #[default]
    Ranks,
}

/// The window of both Paddle's current launcher and torchrun.
pub const ELASTIC_WINDOW: Duration = Duration::from_secs(30);

/// The kind of job: `--run_mode`, or implied by other flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// All ranks have the same role.
    Collective,
    /// The same, with the variables of `paddle.distributed.rpc`.
    Rpc,
    /// Servers, trainers, coordinators and heterogeneous trainers: `ps` and `ps-heter`.
    Servers(Box<ServerMode>),
}

/// The processes of a parameter-server job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerMode {
    pub servers: Crew,
    pub trainers: Crew,
    pub coordinators: Crew,
    /// `ps-heter`: the stages after the first, which is the trainers'. Empty in `ps`.
    pub stages: Vec<HeterStage>,
    /// `--http_port`, or `--gloo_port` where it applies: the port of gloo's rendezvous, on the first server's host. If
    /// absent, a free port is used.
    pub gloo_port: Option<Port>,
    /// `PADDLE_WITH_GLOO`.
    pub with_gloo: String,
    /// On PaddleCloud this node is one process, and the crews are ignored.
    pub pod: Option<Pod>,
}

/// The processes of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Crew {
    /// This many on each node.
    Each(u32),
    /// These endpoints, on any node.
    Listed(Vec<Endpoint>),
}

impl Crew {
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Each(count) => *count == 0,
            Self::Listed(list) => list.is_empty(),
        }
    }
}

/// One stage of heterogeneous trainers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeterStage {
    pub crew: Crew,
    /// `cpu`, `gpu`: `--heter_devices`.
    pub device: String,
}

/// One process placed by a platform, with the platform's data about the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub part: Part,
    /// Its index within its part.
    pub index: u32,
    /// `PADDLE_PSERVERS_IP_PORT_LIST`: names or addresses, with ports.
    pub servers: Vec<String>,
    /// `PADDLE_TRAINERS_NUM`.
    pub trainers: u32,
    /// `PADDLE_PORT`.
    pub port: Option<Port>,
}

/// The requested list of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// As the user wrote it, for messages: `--gpus`, `PADDLE_DEVICES`.
    pub source: String,
    /// `None` for `--devices`, whose kind depends on the machine.
    pub kind: Option<DeviceKind>,
    pub ids: Vec<String>,
}

/// The communication backend: `--backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    #[default]
    Auto,
    Nccl,
    Gloo,
    Bkcl,
    Cncl,
    Hccl,
    Xccl,
    Heter,
}

impl Backend {
    pub const ALL: [(&'static str, Self); 8] = [
        ("auto", Self::Auto),
        ("nccl", Self::Nccl),
        ("gloo", Self::Gloo),
        ("bkcl", Self::Bkcl),
        ("cncl", Self::Cncl),
        ("hccl", Self::Hccl),
        ("xccl", Self::Xccl),
        ("heter", Self::Heter),
    ];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(word, _)| *word == text).map(|(_, backend)| *backend)
    }

    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, backend)| *backend == self).map_or("auto", |(word, _)| word)
    }

    /// The message of Paddle's launcher for an unknown backend.
    pub fn unknown(word: &str) -> String {
        format!(
            "ValueError: paddle.distributed initialize error, backend argument can only be one of 'nccl', 'gloo', 'bkcl', 'auto', 'heter', 'xccl' but got {word}"
        )
    }

    /// The message of Paddle's launcher for a backend that the build does not have.
    pub fn not_compiled(self) -> String {
        let device = match self {
            Self::Bkcl => "xpu",
            Self::Hccl => "npu",
            Self::Cncl => "mlu",
            _ => "cuda",
        };
        let word = self.as_str();
        format!(
            "ValueError: paddle.distributed initialize error, your paddle is not compiled with {device} but you assign '{word}' as backend."
        )
    }
}

/// How the ranks' ports are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortRequest {
    /// Free ports, outside the kernel's ephemeral range if possible.
    Free,
    /// Free ports inside a range (`PORT_RANGE=35100:64000`).
    Range { low: u16, high: u16, source: String },
    /// Consecutive ports from here, each of which must be free.
    Fixed { start: u16, source: String },
}

/// `--log-names`: the number in `workerlog.<n>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogNames {
    Global,
    Local,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `umiak launch train.py`.
    pub(crate) fn request() -> Request {
        Request {
            job_id: JobId::new("default").unwrap(),
            name: "train".to_owned(),
            line: "umiak launch train.py".to_owned(),
            mode: Mode::Collective,
            nodes: Nodes::One,
            placement: None,
            elastic: None,
            host: None,
            ip: None,
            node_rank: None,
            sort_ip: false,
            uneven: false,
            devices: None,
            share_devices: false,
            processes: Processes::PerDevice,
            numa: false,
            backend: Backend::Auto,
            ports: PortRequest::Free,
            logs: LogRequest { dir: "log".into(), names: LogNames::Global, overwrite: false, rotation: None },
            omp: Omp::OneUnlessSet,
            command: CommandRequest {
                interpreter: None,
                script: "train.py".into(),
                args: vec![],
                with_coverage: false,
                is_check: false,
                kind: ScriptKind::ByName,
                substitutes: false,
                misread: None,
            },
            policy: Policy::default(),
            exit_codes: ExitCodes::Umiak,
            server_timeout: None,
            store: StoreHost::Rank0,
            store_relay: false,
            torch: None,
            paddle: Some(PaddleHabits {
                variables: PaddleVariables { env_limit: Some(48_000), ..PaddleVariables::default() },
                log_level: "INFO".into(),
                lines: vec![],
                configuration: vec![],
                server_flags: vec![],
                proxies: Proxies::Kept,
                gpu_log: false,
            }),
        }
    }
}
