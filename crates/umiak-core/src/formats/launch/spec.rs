//! What a launch command line asks for, checked and complete, before anything is known of the machine.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::{DeviceKind, Endpoint, ExitCodes, Generation, JobId, Part, Port};

/// How the command was written: decides usage text, dispatch and interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spelling {
    /// `umiak launch …`
    Launch,
    /// `umiak fleetrun …`, or the binary called `fleetrun`.
    Fleetrun,
    /// `umiak python -m paddle.distributed.launch …`; the word in front of `-m` is the interpreter.
    PaddleModule { interpreter: OsString },
    /// `umiak python -m paddle.distributed.fleet.launch …`
    FleetModule { interpreter: OsString },
}

/// A checked launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchSpec {
    pub spelling: Spelling,
    pub generation: Generation,
    pub job_id: JobId,
    /// The training script or program, and its arguments, untouched.
    pub script: OsString,
    pub script_args: Vec<OsString>,
    pub log_dir: PathBuf,
    /// Upper case: `INFO`.
    pub log_level: String,
    pub log_overwrite: bool,
    /// `--gpus 2,3` and its aliases; `None` when omitted.
    pub devices: Option<DeviceRequest>,
    pub nproc_per_node: Option<u32>,
    pub mode: Mode,
    /// Who takes part.
    pub nodes: Nodes,
    /// `--host` or `POD_IP`. The legacy generation has it with several nodes only: it takes a single node's address
    /// from `--ips`.
    pub host: Option<IpAddr>,
    /// With one node: the address in `--ips`, or the platform's. `None` when it was not given, in the legacy generation
    /// too, whose default is 127.0.0.1.
    pub ip: Option<IpAddr>,
    /// `--rank`, `PADDLE_RANK` or `PADDLE_TRAINER_ID`: this node's rank, when one was given. It orders the nodes of
    /// [`Nodes::Master`] and [`Nodes::Auto`], in range; otherwise it only moves the ports of `FLAGS_FIXED_PORT`, and
    /// that is done already.
    pub node_rank: Option<u32>,
    /// `--sort_ip`: nodes that meet at a master are ordered by address.
    pub sort_ip: bool,
    pub backend: Backend,
    pub ports: PortRequest,
    /// `--max_restart` or its variable, when it was given: Paddle's default of 3 asks for nothing.
    pub max_restart: Option<u32>,
    /// Only when asked for on the command line.
    pub enable_gpu_log: bool,
    /// `--auto_cluster_config`, exported as `PADDLE_AUTO_CLUSTER`.
    pub auto_cluster: bool,
    /// `--auto_parallel_config`: path given to the script's environment.
    pub auto_parallel_config: Option<String>,
    /// Legacy pass-through: `--cluster_topo_path`, `--rank_mapping_path`, `--enable_auto_mapping`.
    pub cluster_topo_path: Option<String>,
    pub rank_mapping_path: Option<String>,
    /// `WITH_COVERAGE=ON`: the script runs under `coverage`.
    pub with_coverage: bool,
    /// `PADDLE_ENV_LIMIT_LEN`: lists at least this long are left out of the environment.
    pub env_limit: usize,
    /// Paddle's own lines about overrides, resets and compatible mode, in order. Where Paddle puts a time stamp there
    /// is the word `<ts>`. An entry may have several lines.
    pub paddle_lines: Vec<String>,
    /// Paddle's configuration block: `name: value`, sorted by name, of this generation.
    pub configuration: Vec<(String, String)>,
    /// Notices for our console.
    pub notices: Vec<crate::diag::Diagnostic>,
    pub own: OwnFlags,
    /// The words behind the launcher's name as a shell reads them, for the command that other nodes are to run. The
    /// token is not in it.
    pub command_line: String,
}

impl LaunchSpec {
    /// Nodes may have different numbers of processes: where parts are spread over them they mostly do.
    pub fn may_be_uneven(&self) -> bool {
        self.own.uneven || matches!(self.mode, Mode::Servers(_))
    }
}

/// The most nodes that a job may have.
pub const MAX_NODES: u32 = 16_384;

/// The nodes of a job. Each `source` is the flag or variable that says so, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nodes {
    /// This one: `--ips` with one address, or nothing.
    One,
    /// `--ips a,b,…` or the platform's list: at least two, no two alike.
    List { addresses: Vec<IpAddr>, source: String },
    /// `--master` and `--nnodes`, at least 2. An IPv6 host stands without its brackets.
    Master { host: String, port: Port, nodes: u32, source: String },
    /// `--nnodes`, at least 2, with neither: this node becomes the master and prints the command for the others.
    Auto { nodes: u32, source: String },
}

impl Nodes {
    /// How many there are.
    pub fn count(&self) -> u32 {
        match self {
            Self::One => 1,
            Self::List { addresses, .. } => addresses.len() as u32,
            Self::Master { nodes, .. } | Self::Auto { nodes, .. } => *nodes,
        }
    }
}

/// What kind of job it is: `--run_mode`, or what its other flags imply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Ranks that are all alike.
    Collective,
    /// The same, with the variables of `paddle.distributed.rpc`.
    Rpc,
    /// Servers, trainers, and what stands between them: `ps` and `ps-heter`.
    Servers(Box<ServerMode>),
}

/// Who takes part in a parameter-server job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerMode {
    pub servers: Crew,
    pub trainers: Crew,
    pub coordinators: Crew,
    /// `ps-heter`: the stages behind the trainers', which are the first. Empty in `ps`.
    pub stages: Vec<HeterStage>,
    /// `--http_port`, or `--gloo_port` where it counts: where gloo's processes meet, on the first server's host. A free
    /// one when it was not given.
    pub gloo_port: Option<Port>,
    /// `PADDLE_WITH_GLOO`.
    pub with_gloo: String,
    /// On PaddleCloud this node is one of them, and the crews are not looked at.
    pub pod: Option<Pod>,
}

/// The processes of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Crew {
    /// So many on each node.
    Each(u32),
    /// These, wherever they are.
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

/// One process that a platform has placed, and what it says of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub part: Part,
    /// Its place among those of its part.
    pub index: u32,
    /// `PADDLE_PSERVERS_IP_PORT_LIST`: names or addresses, with ports.
    pub servers: Vec<String>,
    /// `PADDLE_TRAINERS_NUM`.
    pub trainers: u32,
    /// `PADDLE_PORT`.
    pub port: Option<Port>,
}

/// A list of devices as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// As the user wrote it, for messages: `--gpus`, `PADDLE_DEVICES`.
    pub source: String,
    /// `None` for `--devices`, whose kind follows the machine.
    pub kind: Option<DeviceKind>,
    pub ids: Vec<String>,
}

/// `--backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
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
}

/// Where the ranks' ports come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortRequest {
    /// Free ports, where the kernel leaves room.
    Free,
    /// Free ports inside a range (`PORT_RANGE=35100:64000`).
    Range { low: u16, high: u16, source: String },
    /// Consecutive ports from here, each of which must be free.
    Fixed { start: u16, source: String },
}

/// Flags that Paddle's launcher does not have. All kebab-case, never abbreviated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnFlags {
    pub output: OutputMode,
    /// `--mirror`: with `--output json`, the first rank's output goes to stderr.
    pub mirror: bool,
    pub dry_run: bool,
    pub compat: Compat,
    pub exit_codes: ExitCodes,
    pub share_devices: bool,
    pub log_names: LogNames,
    pub no_progress: bool,
    pub ascii: bool,
    /// A PID namespace for the job.
    pub isolate: bool,
    /// Leave no run behind.
    pub no_record: bool,
    /// Bind processes to CPUs.
    pub numa: bool,
    /// Cut logs at this size.
    pub log_max_size: Option<u64>,
    pub log_keep: u32,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// Before the first restart.
    pub restart_backoff: Duration,
    /// Restarts older than this do not count; `None` for the whole run.
    pub restart_window: Option<Duration>,
    /// `--token`, else `UMIAK_TOKEN`: what nodes prove to each other that they know.
    pub token: Option<Token>,
    /// `--rdzv-port`, else `UMIAK_PORT`: where the nodes of a list meet.
    pub rdzv_port: Option<Port>,
    /// Until all nodes are there.
    pub rdzv_timeout: Duration,
    /// Silence until a node is lost.
    pub node_timeout: Duration,
    /// A broken connection may come back for so long.
    pub reconnect_window: Duration,
    /// Nodes may have different numbers of processes.
    pub uneven: bool,
    /// The logs of all nodes are copied to the first.
    pub gather_logs: bool,
    /// Trainers wait so long until all servers answer; not at all when it is zero.
    pub server_timeout: Duration,
    /// How often `-v` was given.
    pub verbose: u8,
}

/// A secret. It is never shown, not even by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// `None` for an empty one, which would protect nothing.
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// The secret itself, to make a key of.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(********)")
    }
}

impl Default for OwnFlags {
    fn default() -> Self {
        Self {
            output: OutputMode::Human,
            mirror: false,
            dry_run: false,
            compat: Compat::None,
            exit_codes: ExitCodes::Umiak,
            share_devices: false,
            log_names: LogNames::Global,
            no_progress: false,
            ascii: false,
            isolate: false,
            no_record: false,
            numa: false,
            log_max_size: None,
            log_keep: 5,
            grace: Duration::from_secs(5),
            restart_backoff: Duration::from_secs(1),
            restart_window: None,
            token: None,
            rdzv_port: None,
            rdzv_timeout: Duration::from_secs(600),
            node_timeout: Duration::from_secs(30),
            reconnect_window: Duration::from_secs(60),
            uneven: false,
            gather_logs: false,
            server_timeout: Duration::from_secs(600),
            verbose: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    Human,
    Json,
    Quiet,
}

/// `--compat paddle`: unknown flags are ignored, `OMP_NUM_THREADS` is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compat {
    None,
    Paddle,
}

/// `--log-names`: the number in `workerlog.<n>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogNames {
    Global,
    Local,
}
