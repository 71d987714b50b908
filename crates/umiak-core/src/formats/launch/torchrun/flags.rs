//! Every flag of `torchrun`, up to version 2.15, with the flags of umiak that apply to it.

use std::sync::LazyLock;

use crate::formats::launch::flags::{FLAGS, Flag, Heading, Owner, ValueKind};

use Heading::{Logs, Program, Rendezvous, Workers};
use ValueKind::{Choice, Int, Path, Switch, Text};

/// Flags of umiak that do not apply: they are about Paddle's launchers, or `torchrun` has its own.
const NOT_HERE: [&str; 14] = [
    "agent-store",
    "compat",
    "gather-logs",
    "grace",
    "log-keep",
    "log-max-size",
    "log-names",
    "numa",
    "rdzv-port",
    "restart-backoff",
    "restart-window",
    "server-timeout",
    "share-devices",
    "store-relay",
];

/// The table: the rows of `torchrun`, then those of umiak.
pub static TORCH_FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(|| {
    let is_here =
        |flag: &&Flag| flag.owner == Owner::Umiak && !NOT_HERE.contains(&flag.attribute) && flag.attribute != "uneven";
    ROWS.iter().chain(FLAGS.iter().filter(is_here)).copied().collect()
});

const fn row(
    heading: Heading,
    name: &'static str,
    attribute: &'static str,
    value: ValueKind,
    metavar: &'static str,
    help: &'static str,
) -> Flag {
    Flag::new(Owner::Torch, heading, name, attribute, value, metavar, help)
}

const fn own(name: &'static str, attribute: &'static str, metavar: &'static str, help: &'static str) -> Flag {
    Flag::new(Owner::Umiak, Heading::Umiak, name, attribute, ValueKind::Duration, metavar, help)
}

const NO_POLL: &str = "umiak does not poll";
const NO_EVENTS: &str = "`--output json` prints the events of a run";

const ROWS: &[Flag] = &[
    row(Workers, "--nnodes", "nnodes", Text, "N[:MAX]", "Number of nodes. With a range, nodes may come and go.")
        .default("1:1")
        .variable(0, "PET_NNODES"),
    row(Workers, "--nproc-per-node", "nproc_per_node", Text, "N", "Processes on this node: a number, `gpu`, `xpu`, `cpu`, or `auto` (one for each device, else one for each CPU).")
        .default("1")
        .variable(0, "PET_NPROC_PER_NODE"),
    row(Workers, "--max-restarts", "max_restarts", Int, "N", "Restart all processes after a failure, at most N times.")
        .default("0")
        .variable(0, "PET_MAX_RESTARTS"),
    row(Workers, "--role", "role", Text, "NAME", "Name of the role, in `ROLE_NAME` and in prefixes.").default("default").variable(0, "PET_ROLE"),
    row(Workers, "--shutdown-timeout", "shutdown_timeout", Int, "SECONDS", "Time from the first signal to SIGKILL. When omitted, `TORCH_ELASTIC_SHUTDOWN_TIMEOUT`, or 30 s.")
        .variable(0, "PET_SHUTDOWN_TIMEOUT"),
    row(Workers, "--signals-to-handle", "signals_to_handle", Text, "LIST", "Signals that stop the job: of SIGTERM, SIGINT, SIGHUP and SIGQUIT. All four always do.")
        .default("SIGTERM,SIGINT,SIGHUP,SIGQUIT")
        .variable(0, "PET_SIGNALS_TO_HANDLE"),
    row(Workers, "--virtual-local-rank", "virtual_local_rank", Switch, "", "Every process has `LOCAL_RANK` 0 and sees one device.")
        .default("False")
        .variable(0, "PET_VIRTUAL_LOCAL_RANK"),
    row(Workers, "--numa-binding", "numa_binding", Choice(&["node", "socket", "exclusive", "core-complex"]), "MODE", "Bind each process to the CPUs nearest to its device. Only `node` is supported."),
    row(Workers, "--monitor-interval", "monitor_interval", Text, "SECONDS", "Accepted.")
        .default("0.1")
        .variable(0, "PET_MONITOR_INTERVAL")
        .no_effect(NO_POLL),
    row(Workers, "--start-method", "start_method", Choice(&["spawn", "fork", "forkserver"]), "METHOD", "Accepted.")
        .default("spawn")
        .variable(0, "PET_START_METHOD")
        .no_effect("processes are programs"),
    row(Workers, "--event-log-handler", "event_log_handler", Text, "NAME", "Accepted.")
        .default("null")
        .variable(0, "PET_EVENT_LOG_HANDLER")
        .no_effect(NO_EVENTS),
    row(Rendezvous, "--standalone", "standalone", Switch, "", "One node, with a random id and a free port.")
        .default("False")
        .variable(0, "PET_STANDALONE"),
    row(Rendezvous, "--rdzv-backend", "rdzv_backend", Text, "NAME", "`static`: nodes are ordered by `--node-rank`. `c10d`: in the order in which they join. `etcd`, `etcd-v2`: the same, and they meet in etcd.")
        .default("static")
        .variable(0, "PET_RDZV_BACKEND"),
    row(Rendezvous, "--rdzv-endpoint", "rdzv_endpoint", Text, "HOST[:PORT]", "Where the nodes meet: an address of one of them, or the members of etcd, separated by commas. The port is 29400 with `c10d` and 2379 with `etcd` when omitted.")
        .default("")
        .variable(0, "PET_RDZV_ENDPOINT"),
    row(Rendezvous, "--rdzv-id", "rdzv_id", Text, "ID", "Name of the job, the same on every node.").default("none").variable(0, "PET_RDZV_ID"),
    row(Rendezvous, "--rdzv-conf", "rdzv_conf", Text, "K=V,…", "Options of the rendezvous. In seconds: `join_timeout` or `timeout`, `last_call_timeout`, `keep_alive_interval`, which is multiplied by `keep_alive_max_attempt`. For etcd: `protocol`, `cacert`, `cert`, `key`, `etcd_prefix`.")
        .default("")
        .variable(0, "PET_RDZV_CONF"),
    row(Rendezvous, "--node-rank", "node_rank", Int, "N", "Rank of this node, with `static`.").default("0").variable(0, "PET_NODE_RANK"),
    row(Rendezvous, "--master-addr", "master_addr", Text, "HOST", "Address of the node with rank 0, with `static`.")
        .default("127.0.0.1")
        .variable(0, "PET_MASTER_ADDR"),
    row(Rendezvous, "--master-port", "master_port", Int, "PORT", "Port on that node. When omitted, 29500 on several nodes, a free one on one node.")
        .variable(0, "PET_MASTER_PORT"),
    row(Rendezvous, "--local-addr", "local_addr", Text, "HOST", "Address of this node.").variable(0, "PET_LOCAL_ADDR"),
    row(Program, "-m", "module", Switch, "", "The script is a Python module.").aliases(&["--module"]).default("False").variable(0, "PET_MODULE"),
    row(Program, "--no-python", "no_python", Switch, "", "The script is a program, not a Python script.")
        .default("False")
        .variable(0, "PET_NO_PYTHON"),
    row(Program, "--run-path", "run_path", Switch, "", "Start the script with Python, whatever its name is.")
        .default("False")
        .variable(0, "PET_RUN_PATH"),
    row(Program, "--use-env", "use_env", Switch, "", "With `torch.distributed.launch`: do not add `--local-rank=N` to the script's arguments. `torchrun` never adds it.")
        .default("False"),
    row(Logs, "--log-dir", "log_dir", Path, "DIR", "Directory below which each run makes its own. When omitted, logs are kept with the recorded run.")
        .variable(0, "PET_LOG_DIR"),
    row(Logs, "-r", "redirects", Text, "STREAMS", "Streams that are written to the log only: 0 none, 1 stdout, 2 stderr, 3 both; or for each local rank, as in `0:3,1:2`.")
        .aliases(&["--redirects"])
        .default("0")
        .variable(0, "PET_REDIRECTS"),
    row(Logs, "-t", "tee", Text, "STREAMS", "Streams that are written to the log and, with a prefix, to the console.")
        .aliases(&["--tee"])
        .default("0")
        .variable(0, "PET_TEE"),
    row(Logs, "--log-line-prefix-template", "log_line_prefix_template", Text, "TEXT", "Prefix with `-t`; may contain `${role_name}`, `${local_rank}`, `${rank}` and `${hostname}`. When omitted, `TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE`, or `[${role_name}${local_rank}]:`.")
        .default("")
        .variable(0, "PET_LOG_LINE_PREFIX_TEMPLATE"),
    row(Logs, "--local-ranks-filter", "local_ranks_filter", Text, "LIST", "Local ranks whose output the console shows.")
        .default("")
        .variable(0, "PET_LOCAL_RANKS_FILTER"),
    row(Logs, "--duplicate-stdout-filters", "duplicate_stdout_filters", Text, "LIST", "Copy lines with these texts to a common file.")
        .default("")
        .variable(0, "PET_DUPLICATE_STDOUT_FILTERS")
        .not_yet("filtered copies of output"),
    row(Logs, "--duplicate-stderr-filters", "duplicate_stderr_filters", Text, "LIST", "Copy lines with these texts to a common file.")
        .default("")
        .variable(0, "PET_DUPLICATE_STDERR_FILTERS")
        .not_yet("filtered copies of output"),
    row(Logs, "--logs-specs", "logs_specs", Text, "NAME", "A plug-in for logs.").not_yet("plug-ins for logs"),
    row(Program, "--print-completion", "print_completion", Text, "SHELL", "Use `umiak completions SHELL`.").not_yet("completions by `torchrun`"),
    own("--grace", "grace", "TIME", "The same as `--shutdown-timeout`, with a unit: `5s`, `500ms`, `2m`."),
    own("--restart-backoff", "restart-backoff", "TIME", "Wait before the first restart; doubled for each further one, up to 30 s.").default("0s"),
    own("--restart-window", "restart-window", "TIME", "Count only restarts of the last TIME against `--max-restarts`; `0s` counts those of the whole run.").default("0s"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_variables_follow_the_attribute() {
        let mut seen = BTreeSet::new();
        for flag in TORCH_FLAGS.iter() {
            for name in flag.names() {
                assert!(seen.insert(name), "{name} twice");
                assert!(!name.contains('_'), "{name}");
            }
            if let Some(variable) = flag.variable.filter(|_| flag.owner == Owner::Torch) {
                assert_eq!(variable.name, format!("PET_{}", flag.attribute.to_uppercase()));
            }
            assert_eq!(flag.metavar.is_empty(), !flag.takes_value(), "{}", flag.name);
        }
        for attribute in NOT_HERE {
            assert!(FLAGS.iter().any(|flag| flag.attribute == attribute), "no flag sets `{attribute}`");
        }
    }
}
