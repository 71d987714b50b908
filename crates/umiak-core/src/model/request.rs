//! What a job asks of the nodes it is launched on, before anything is known of them: what the front end of a launcher
//! lowers its command line into. Each `source` is the flag or variable that says so, for messages.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DeviceKind, Endpoint, ExitCodes, Generation, JobId, Part, Policy, Port};

/// A launched job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub job_id: JobId,
    /// What the run is called: the job's id where one is given, else the script's stem.
    pub name: String,
    /// The whole command line for a shell, secrets masked.
    pub line: String,
    pub mode: Mode,
    pub nodes: Nodes,
    /// The address that this node is said to have. The legacy generation has it with several nodes only: it takes a
    /// single node's address from `--ips`.
    pub host: Option<IpAddr>,
    /// With one node: the address in `--ips`, or the platform's. `None` when it was not given, in the legacy generation
    /// too, whose default is 127.0.0.1.
    pub ip: Option<IpAddr>,
    /// This node's rank, when one was given. It orders the nodes of [`Nodes::Master`] and [`Nodes::Auto`], in range;
    /// otherwise it only moves the ports of `FLAGS_FIXED_PORT`, and that is done already.
    pub node_rank: Option<u32>,
    /// Nodes that meet at a master are ordered by address.
    pub sort_ip: bool,
    /// Nodes may have different numbers of processes.
    pub uneven: bool,
    /// `None` for those that there are.
    pub devices: Option<DeviceRequest>,
    /// Several processes may use one device.
    pub share_devices: bool,
    /// On each node; `None` for one per device.
    pub processes: Option<u32>,
    /// Processes are bound to the CPUs near their devices.
    pub numa: bool,
    pub backend: Backend,
    pub ports: PortRequest,
    pub logs: LogRequest,
    pub omp: Omp,
    pub command: CommandRequest,
    pub policy: Policy,
    pub exit_codes: ExitCodes,
    /// `--server-timeout`: servers that do not listen by then have failed; when it is zero, trainers wait for none. Without
    /// it trainers wait for [`SERVER_PATIENCE`], and then start.
    pub server_timeout: Option<Duration>,
    /// Where it stands in for one of Paddle's launchers.
    pub paddle: Option<PaddleHabits>,
}

/// How long trainers wait for servers that do not listen at their ports, where the user does not say.
pub const SERVER_PATIENCE: Duration = Duration::from_secs(30);

impl Request {
    /// Trainers start when servers listen, not at once.
    pub fn waits_for_servers(&self) -> bool {
        self.server_timeout != Some(Duration::ZERO)
    }

    /// Nodes may have different numbers of processes: where parts are spread over them they mostly do, and over a master
    /// Paddle allows it.
    pub fn may_be_uneven(&self) -> bool {
        let by_master = matches!(self.nodes, Nodes::Master { .. } | Nodes::Auto { .. });
        self.uneven || by_master || matches!(self.mode, Mode::Servers(_))
    }

    /// The first port of ranks on several nodes, where the user names none: firewalls between nodes are opened for what
    /// Paddle's launchers take.
    pub fn usual_port(&self) -> Option<u16> {
        let generation = self.paddle.as_ref().filter(|_| self.nodes != Nodes::One)?.variables.generation;
        Some(match generation {
            Generation::Current => 6070,
            Generation::Legacy => 6170,
        })
    }

    /// Whose habits to keep where Paddle's two launchers differ.
    pub fn generation(&self) -> Generation {
        self.paddle.as_ref().map_or(Generation::Current, |paddle| paddle.variables.generation)
    }
}

/// The log files of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRequest {
    pub dir: PathBuf,
    pub names: LogNames,
    /// What an earlier job wrote is cut away.
    pub overwrite: bool,
    /// Logs are cut at this size, and so many pieces kept.
    pub rotation: Option<Rotation>,
}

/// When logs are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rotation {
    pub max_bytes: u64,
    pub keep: u32,
}

/// What each process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRequest {
    /// What the command line says of it; `None` for the first that is found.
    pub interpreter: Option<Interpreter>,
    /// The training script or program, and its arguments, untouched.
    pub script: OsString,
    pub args: Vec<OsString>,
    /// The script runs under `coverage`.
    pub with_coverage: bool,
    /// `run_check`: the script is Paddle's own check, wherever the interpreter has it.
    pub is_check: bool,
    /// Why the word that was read as the script may be none, for the message when it is not there.
    pub misread: Option<String>,
}

/// How a command line names the interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interpreter {
    /// By its name or path: the word before `-m`.
    Named(OsString),
    /// By a launcher that is a Python script, such as `/venv/bin/fleetrun`: the interpreter in its first line.
    OfScript(OsString),
}

/// What only Paddle's launchers do: their lines, files and variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaddleHabits {
    pub variables: PaddleVariables,
    /// Upper case: `INFO`.
    pub log_level: String,
    /// Lines about overrides, resets and compatible mode, in order. Where Paddle puts a time stamp there is the word
    /// `<ts>`. An entry may have several lines.
    pub lines: Vec<String>,
    /// The configuration block: `name: value`, sorted by name, of this generation.
    pub configuration: Vec<(String, String)>,
    /// The flags that make it a job with servers, as the legacy launcher names them.
    pub server_flags: Vec<String>,
    pub proxies: Proxies,
    /// `<job_id>.gpu.log` is asked for.
    pub gpu_log: bool,
}

/// What becomes of `http_proxy` and `https_proxy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxies {
    /// Ranks have them, and reach each other without them: `no_proxy` names the nodes.
    Kept,
    /// As Paddle's current launcher: they are kept under another name (`http_proxy_original`).
    PutAside,
    /// As Paddle's legacy launcher.
    Removed,
}

/// `OMP_NUM_THREADS` of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Omp {
    /// 1, unless the variable is set: what Paddle does, which warns at import where there are more.
    OneUnlessSet,
    /// The CPUs that umiak may use, divided among the ranks of this node.
    Share,
    Count(u32),
}

/// What the variables of Paddle's launchers depend on, beside who takes part.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PaddleVariables {
    pub generation: Generation,
    /// Lists of at least this many characters are left out (`PADDLE_ENV_LIMIT_LEN`); the framework reads them from a
    /// backup file. Without a limit nothing is left out, and there is no such file.
    pub env_limit: Option<usize>,
    /// Exported as `PADDLE_AUTO_CLUSTER`.
    pub auto_cluster: bool,
    /// Paths given to the script's environment.
    pub auto_parallel_config: Option<String>,
    pub cluster_topo_path: Option<String>,
    pub rank_mapping_path: Option<String>,
}

/// The most nodes that a job may have.
pub const MAX_NODES: u32 = 16_384;

/// The nodes of a job.
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

/// What processes talk to each other with: `--backend`.
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

    /// What Paddle's launcher says of a word that is none of them.
    pub fn unknown(word: &str) -> String {
        format!(
            "ValueError: paddle.distributed initialize error, backend argument can only be one of 'nccl', 'gloo', 'bkcl', 'auto', 'heter', 'xccl' but got {word}"
        )
    }

    /// What it says of one that the build does not have.
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
            host: None,
            ip: None,
            node_rank: None,
            sort_ip: false,
            uneven: false,
            devices: None,
            share_devices: false,
            processes: None,
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
                misread: None,
            },
            policy: Policy::default(),
            exit_codes: ExitCodes::Umiak,
            server_timeout: None,
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
