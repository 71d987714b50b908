//! What a launch command line asks for, checked and complete, before anything is known of the machine.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::{DeviceKind, ExitCodes, Generation, JobId};

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
    /// `--host` or `POD_IP`. Never in the legacy generation, which takes a single node's address from `--ips`.
    pub host: Option<IpAddr>,
    /// `--ips` with exactly one address (several are refused until several nodes are built), or the platform's.
    /// `None` when it was not given, in the legacy generation too, whose default is 127.0.0.1.
    pub ip: Option<IpAddr>,
    /// `--rank`, `PADDLE_RANK` or `PADDLE_TRAINER_ID`: this node's rank, when one was given. With one node it only
    /// moves the ports of `FLAGS_FIXED_PORT`, and that is done already.
    pub node_rank: Option<u32>,
    pub backend: Backend,
    pub ports: PortRequest,
    /// `--max_restart` or its variable, when it was given.
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
    /// Bind processes to CPUs.
    pub numa: bool,
    /// Cut logs at this size.
    pub log_max_size: Option<u64>,
    pub log_keep: u32,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
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
            numa: false,
            log_max_size: None,
            log_keep: 5,
            grace: Duration::from_secs(5),
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
