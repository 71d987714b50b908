//! `torchrun`, and `python -m torch.distributed.launch`.

use std::sync::OnceLock;

use umiak_core::contract::differences::{FROM_TORCHRUN, Jobs};
use umiak_testkit::components::Component::Torch;
use umiak_testkit::suite::Suite;

use super::{Case, Original, Result, Table};

pub(super) fn register(suite: &mut Suite) {
    TABLE.register("conformance::torchrun", suite, &[Torch]);
}

const fn case(name: &'static str, flags: &'static [&'static str]) -> Case {
    Case::new(name, Original::Torchrun, flags)
}

const fn module(name: &'static str, flags: &'static [&'static str]) -> Case {
    Case::new(name, Original::TorchLaunch, flags)
}

const fn nodes(name: &'static str, flags: &'static [&'static str]) -> Case {
    case(name, flags).of(Jobs::SeveralNodes)
}

/// Rank 1 exits with 7; rank 0 waits to be stopped.
const FAILURE: &[(&str, &str)] = &[("UMIAK_PROBE_EXIT", "1:7")];
/// The same in the first attempt only.
const FAILURE_ONCE: &[(&str, &str)] = &[("UMIAK_PROBE_EXIT", "1:7@0")];
/// A signal ends rank 1.
const CRASH: &[(&str, &str)] = &[("UMIAK_PROBE_EXIT", "1:-11")];
/// Both ranks wait to be stopped.
const WAIT: &[(&str, &str)] = &[("UMIAK_PROBE_EXIT", "2:0")];
/// Rank 1 writes an error file, as the `record` decorator does, and the launcher has one too.
const REPLY: &[(&str, &str)] = &[
    ("UMIAK_PROBE_EXIT", "1:1"),
    ("UMIAK_PROBE_ERROR", "1"),
    ("TORCHELASTIC_ERROR_FILE", "$DIRECTORY/reply/error.json"),
];
const SURROUNDINGS: &[(&str, &str)] = &[
    ("OMP_NUM_THREADS", "3"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
    ("CUDA_VISIBLE_DEVICES", "4,5"),
    ("http_proxy", "http://proxy.example:3128"),
    ("no_proxy", "localhost"),
    ("PET_NPROC_PER_NODE", "2"),
    ("PET_MAX_RESTARTS", "3"),
    ("PET_LOG_DIR", "log"),
    ("PET_REDIRECTS", "3"),
];

const STATIC: &[&str] = &[
    "--nnodes",
    "2",
    "--node-rank",
    "$NODE",
    "--master-addr",
    "192.168.0.1",
    "--master-port",
    "29500",
    "--nproc-per-node",
    "$PROCESSES",
    "--log-dir",
    "log",
    "-t",
    "3",
];
/// The hosts share the machine's name, so each line names its address and whether it hosts the store.
const C10D: &[&str] = &[
    "--nnodes",
    "2",
    "--rdzv-backend",
    "c10d",
    "--rdzv-endpoint",
    "192.168.0.1:29400",
    "--rdzv-id",
    "job7",
    "--rdzv-conf",
    "is_host=$IS_HOST",
    "--local-addr",
    "$ADDRESS",
    "--nproc-per-node",
    "$PROCESSES",
    "--log-dir",
    "log",
    "-r",
    "3",
];

const CASES: [Case; 28] = [
    case("plain", &["--nproc-per-node", "2"]),
    case("sole_rank", &[]),
    case("one_rank", &["--nproc-per-node", "1"]),
    case("standalone", &["--standalone", "--nproc-per-node", "2"]),
    case("static_port", &["--master-port", "9555", "--nproc-per-node", "2"]),
    case("c10d_endpoint", &["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:9556", "--rdzv-id", "job7"]),
    case("local_address", &["--local-addr", "127.0.0.1"]),
    case("module", &["-m"]).script("probe"),
    case("no_python", &["--no-python", "--nproc-per-node", "2"]).script("./probe.py"),
    case("redirects", &["--nproc-per-node", "2", "--log-dir", "log", "-r", "3"]),
    case("tee", &["--nproc-per-node", "2", "--log-dir", "log", "-t", "3"]),
    case("maps", &["--nproc-per-node", "3", "--log-dir", "log", "-r", "0:1,1:3", "-t", "2:2"]),
    case("prefix", &["--nproc-per-node", "2", "-t", "3", "--log-line-prefix-template", "${role_name}-${rank}: "]),
    case("ranks_filter", &["--nproc-per-node", "2", "--log-dir", "log", "-t", "1", "--local-ranks-filter", "1"]),
    case("role", &["--nproc-per-node", "2", "--role", "reader", "--log-dir", "log", "-t", "1"]),
    case("virtual_local_rank", &["--nproc-per-node", "2", "--virtual-local-rank"]),
    case("surroundings", &[]).with(SURROUNDINGS),
    case("failure", &["--nproc-per-node", "2"]).with(FAILURE),
    case("crash", &["--nproc-per-node", "2"]).with(CRASH),
    case("restart", &["--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", "log", "-r", "3"])
        .with(FAILURE_ONCE),
    case("error_file", &["--nproc-per-node", "2", "--log-dir", "log"]).with(REPLY),
    case("interrupt", &["--nproc-per-node", "2"]).with(WAIT).signalled(2),
    case("termination", &["--nproc-per-node", "2"]).with(WAIT).signalled(15),
    module("launch_module", &["--nproc-per-node", "2"]),
    module("launch_module_use_env", &["--use-env", "--nproc-per-node", "2"]),
    module("launch_module_use_env_old", &["--nproc_per_node=1", "--use_env"]),
    nodes("static_nodes", STATIC),
    nodes("c10d_nodes", C10D),
];

static RESULTS: [OnceLock<Result>; CASES.len()] = [const { OnceLock::new() }; CASES.len()];

static TABLE: Table = Table { cases: &CASES, results: &RESULTS, list: FROM_TORCHRUN };
