//! Every flag of the launch command line: one table, from which the parser, `-h`, completions, the man page and
//! the reference page come.
//!
//! The rows are the union of both generations of Paddle's launcher and our own flags. A row describes the
//! flag; the parser's checks decide what it means for a job.

use crate::model::Generation;

/// One flag and its aliases.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// With dashes, as in Paddle's documents: `--log_dir`. Umiak's own flags are kebab-case.
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// The name in Paddle's configuration block and warnings: `log_dir`, `devices`.
    pub attribute: &'static str,
    pub owner: Owner,
    pub value: ValueKind,
    /// What `-h` shows in the value's place; empty for a switch.
    pub metavar: &'static str,
    /// As Python prints it: `None`, `log`, `-1`. For a shared flag, the current generation's.
    pub default: &'static str,
    /// The legacy generation's, where it differs.
    pub legacy_default: Option<&'static str>,
    /// The variable that overrides the flag in the current generation.
    pub variable: Option<Variable>,
    pub heading: Heading,
    pub help: &'static str,
    pub support: Support,
}

/// The launchers that have the flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Only `paddle.distributed.fleet.launch`: its presence selects the legacy generation.
    Legacy,
    /// Only `paddle.distributed.launch` of 2.3 and later.
    Current,
    Both,
    /// Launchers before 2.0, and command lines from other launchers: unknown to both generations, so it selects the
    /// legacy one. Never abbreviated.
    Old,
    /// `torchrun`, which has a table of its own.
    Torch,
    /// Umiak only: never abbreviated, unknown to the launchers that it replaces.
    Umiak,
}

impl Owner {
    pub fn has(self, generation: Generation) -> bool {
        match self {
            Self::Legacy => generation == Generation::Legacy,
            Self::Current => generation == Generation::Current,
            Self::Both => true,
            Self::Old | Self::Torch | Self::Umiak => false,
        }
    }
}

/// What a flag's value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    /// Need not be UTF-8.
    Path,
    Int,
    /// y/yes/t/true/on/1 or n/no/f/false/off/0.
    BoolText,
    /// Any text, true unless empty: what `type=bool` does in Python.
    AnyTextIsTrue,
    /// No value at all.
    Switch,
    /// No value, or a truth value that is ignored.
    Ignored,
    /// No value; the number of occurrences counts, `-vv` as two.
    Count,
    Choice(&'static [&'static str]),
    /// `5s`, `500ms`, `2m`.
    Duration,
    /// `100M`, `1G`, `64K`.
    Size,
    /// From 1 to 65535.
    Port,
    /// `auto`, or a number from 1 up.
    Threads,
}

/// A variable that replaces a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    pub name: &'static str,
    /// Paddle announces overrides in the order of its own list, which is not the order of its help.
    pub order: u8,
}

/// The group in `-h`, as in the user's guide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heading {
    Base,
    Collective,
    ParameterServer,
    Elastic,
    /// Flags of `torchrun`.
    Workers,
    Rendezvous,
    Program,
    Logs,
    Umiak,
}

impl Heading {
    pub const ALL: [Self; 9] = [
        Self::Base,
        Self::Collective,
        Self::ParameterServer,
        Self::Elastic,
        Self::Workers,
        Self::Rendezvous,
        Self::Program,
        Self::Logs,
        Self::Umiak,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Base => "Base Parameters",
            Self::Collective => "Collective Parameters",
            Self::ParameterServer => "Parameter-Server Parameters",
            Self::Elastic => "Elastic Parameters",
            Self::Workers => "Workers",
            Self::Rendezvous => "Rendezvous",
            Self::Program => "Program",
            Self::Logs => "Logs",
            Self::Umiak => "Umiak",
        }
    }
}

/// How this version treats the flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    Full,
    /// Accepted without effect, with the reason.
    NoEffect(&'static str),
    /// Refused, with the missing feature.
    NotYet(&'static str),
}

impl Flag {
    pub(super) const fn new(
        owner: Owner,
        heading: Heading,
        name: &'static str,
        attribute: &'static str,
        value: ValueKind,
        metavar: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            aliases: &[],
            attribute,
            owner,
            value,
            metavar,
            default: "None",
            legacy_default: None,
            variable: None,
            heading,
            help,
            support: Support::Full,
        }
    }

    /// A switch of umiak.
    const fn switch(name: &'static str, attribute: &'static str, help: &'static str) -> Self {
        Self::new(Owner::Umiak, Heading::Umiak, name, attribute, ValueKind::Switch, "", help).default("False")
    }

    pub(super) const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    pub(super) const fn default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    const fn legacy_default(mut self, default: &'static str) -> Self {
        self.legacy_default = Some(default);
        self
    }

    pub(super) const fn variable(mut self, order: u8, name: &'static str) -> Self {
        self.variable = Some(Variable { name, order });
        self
    }

    pub(super) const fn no_effect(mut self, why: &'static str) -> Self {
        self.support = Support::NoEffect(why);
        self
    }

    pub(super) const fn not_yet(mut self, what: &'static str) -> Self {
        self.support = Support::NotYet(what);
        self
    }

    /// The name and the aliases.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    pub fn takes_value(&self) -> bool {
        !matches!(self.value, ValueKind::Switch | ValueKind::Count | ValueKind::Ignored)
    }

    /// True if its value must never be shown.
    pub fn is_secret(&self) -> bool {
        self.attribute == "token"
    }

    /// As Python prints it in that generation's configuration block.
    pub fn default_in(&self, generation: Generation) -> &'static str {
        match (generation, self.legacy_default) {
            (Generation::Legacy, Some(default)) => default,
            _ => self.default,
        }
    }
}

/// The row that sets `attribute`; the current flag where an old one sets it too.
pub(super) fn by_attribute(table: &'static [Flag], attribute: &str) -> Option<&'static Flag> {
    let mut rows = table.iter().filter(|flag| flag.attribute == attribute);
    let first = rows.next();
    first.filter(|flag| flag.owner != Owner::Old).or_else(|| rows.next()).or(first)
}

use Heading::{Base, Collective, Elastic, ParameterServer};
use Owner::{Both, Current, Legacy, Old, Umiak};
use ValueKind::{AnyTextIsTrue, BoolText, Choice, Count, Duration, Ignored, Int, Path, Port, Size, Text, Threads};

/// The table.
pub const FLAGS: &[Flag] = &[
    Flag::new(Current, Base, "--master", "master", Text, "IP:PORT", "Where the nodes meet, with `--nnodes`: an address of one of them, or `etcd://HOST:PORT`; several members of etcd are separated by commas. An address is not used with one node.")
        .variable(1, "PADDLE_MASTER"),
    Flag::new(Current, Base, "--legacy", "legacy", BoolText, "BOOL", "Behave as Paddle's legacy launcher.").default("False"),
    Flag::new(Current, Base, "--rank", "rank", Int, "N", "Rank of this node among those that meet at `--master`; -1 assigns one automatically.")
        .default("-1")
        .variable(10, "PADDLE_RANK"),
    Flag::new(Current, Base, "--log_level", "log_level", Text, "LEVEL", "Level of the launcher's own log lines.")
        .default("INFO")
        .variable(5, "PADDLE_LOG_LEVEL"),
    Flag::new(Current, Base, "--log_overwrite", "log_overwrite", BoolText, "BOOL", "Truncate log files instead of appending to them.")
        .default("False")
        .variable(6, "PADDLE_LOG_OVERWRITE"),
    Flag::new(Current, Base, "--sort_ip", "sort_ip", BoolText, "BOOL", "Order the nodes that meet at `--master` by address.")
        .default("False")
        .variable(7, "PADDLE_SORT_IP"),
    Flag::new(Current, Base, "--enable_gpu_log", "enable_gpu_log", BoolText, "BOOL", "Write `<job_id>.gpu.log`. Off unless given.")
        .default("True"),
    Flag::new(Current, Base, "--nnodes", "nnodes", Text, "N[:MAX]", "Number of nodes. Without `--master` and `--ips`, the command for the other nodes is printed. With a range, nodes may come and go.")
        .default("1")
        .variable(3, "PADDLE_NNODES"),
    Flag::new(Both, Base, "--nproc_per_node", "nproc_per_node", Int, "N", "Processes on this node; one for each device when omitted.")
        .variable(8, "PADDLE_NPROC_PER_NODE"),
    Flag::new(Both, Base, "--log_dir", "log_dir", Path, "DIR", "Directory of the log files.")
        .default("log")
        .variable(11, "PADDLE_LOG_DIR"),
    Flag::new(Both, Base, "--run_mode", "run_mode", Text, "MODE", "`collective`, `ps`, `ps-heter` or `rpc`. When omitted, the other flags imply it.")
        .variable(4, "PADDLE_RUN_MODE"),
    Flag::new(Both, Base, "--gpus", "devices", Text, "LIST", "Devices of this node, one process for each: `--gpus 0,1,2,3`. Physical numbers or labels, separated by commas.")
        .aliases(&["--devices", "--npus", "--xpus"])
        .variable(2, "PADDLE_DEVICES"),
    Flag::new(Legacy, Base, "--selected_gpus", "devices", Text, "LIST", "The same as `--gpus`, `--xpus` and `--npus`.")
        .aliases(&["--selected_xpus", "--selected_npus"]),
    Flag::new(Legacy, Base, "--mlus", "devices", Text, "LIST", "Cambricon devices of this node, one process for each.")
        .aliases(&["--selected_mlus"]),
    Flag::new(Legacy, Base, "--backend", "backend", Text, "NAME", "`auto`, `nccl`, `gloo`, `bkcl`, `cncl`, `hccl`, `xccl` or `heter`. When omitted, `PADDLE_DISTRI_BACKEND`.")
        .default("auto"),
    Flag::new(Current, Base, "--start_port", "start_port", Int, "PORT", "First of the processes' consecutive ports; free ports when omitted.")
        .default("6070")
        .variable(21, "PADDLE_START_PORT"),
    Flag::new(Current, Base, "--auto_parallel_config", "auto_parallel_config", Text, "FILE", "JSON file for automatic parallelism, passed to the script.")
        .variable(23, "PADDLE_AUTO_PARALLEL_CONFIG"),
    Flag::new(Current, Base, "--auto_cluster_config", "auto_cluster_config", BoolText, "BOOL", "Passed to the script as `PADDLE_AUTO_CLUSTER`.")
        .default("0")
        .variable(24, "PADDLE_AUTO_CLUSTER"),
    Flag::new(Current, Base, "--auto_tuner_json", "auto_tuner_json", Text, "FILE", "Search for the best configuration.").not_yet("the auto-tuner"),
    Flag::new(Both, Collective, "--ips", "ips", Text, "LIST", "Addresses of all nodes, separated by commas, in the same order everywhere. The first node coordinates.")
        .legacy_default("127.0.0.1")
        .variable(22, "PADDLE_IPS"),
    Flag::new(Legacy, Collective, "--cluster_topo_path", "cluster_topo_path", Text, "FILE", "Topology of the cluster, passed to the script."),
    Flag::new(Legacy, Collective, "--rank_mapping_path", "rank_mapping_path", Text, "FILE", "Mapping of processes to machines, passed to the script."),
    Flag::new(Legacy, Collective, "--enable_auto_mapping", "enable_auto_mapping", AnyTextIsTrue, "BOOL", "Start once to find the mapping, then again with it.")
        .default("False")
        .not_yet("auto mapping"),
    Flag::new(Old, Collective, "--cluster_node_ips", "ips", Text, "LIST", "The same as `--ips`, in Paddle before 2.0."),
    Flag::new(Old, Collective, "--node_ip", "host", Text, "IP", "The same as `--host`, in Paddle before 2.0.").aliases(&["--current_node_ip"]),
    Flag::new(Old, Collective, "--hosts", "hosts", Text, "LIST", "Several addresses set `--ips`, one sets `--host`."),
    Flag::new(Old, Collective, "--started_port", "start_port", Int, "PORT", "The same as `--start_port`, in Paddle before 2.0."),
    Flag::new(Old, Collective, "--use_paddlecloud", "use_paddlecloud", Ignored, "", "The platform is recognised by its variables.")
        .no_effect("the platform is recognised by its variables"),
    Flag::new(Old, Collective, "--print_config", "print_config", Ignored, "", "The configuration is always written to the pod log.")
        .no_effect("the configuration is always written to the pod log"),
    Flag::new(Old, Collective, "--use_env", "use_env", Ignored, "", "Ranks always get their environment variables.").no_effect("ranks always get their environment variables"),
    Flag::new(Old, Collective, "--endpoints", "endpoints", Text, "LIST", "`ip:port` of all servers, in Paddle before 2.0; without servers, of all nodes."),
    Flag::new(Both, ParameterServer, "--servers", "servers", Text, "LIST", "`ip:port` of all servers, separated by commas. The nodes are the addresses of this list and the lists below.")
        .default("")
        .variable(17, "PADDLE_SERVERS_ENDPOINTS"),
    Flag::new(Legacy, ParameterServer, "--workers", "workers", Text, "LIST", "`ip:port` of all trainers; without ports, they use ports from 6170 up, after the servers' ports.")
        .default(""),
    Flag::new(Current, ParameterServer, "--trainers", "trainers", Text, "LIST", "`ip:port` of all trainers.")
        .default("")
        .variable(18, "PADDLE_TRAINERS_ENDPOINTS"),
    Flag::new(Legacy, ParameterServer, "--heter_workers", "heter_workers", Text, "LIST", "`ip:port` of all heterogeneous workers, stages separated by `;`.")
        .default(""),
    Flag::new(Legacy, ParameterServer, "--heter_devices", "heter_devices", Text, "LIST", "Kind of device in each stage: `gpu;cpu`. Optional with one stage.")
        .default(""),
    Flag::new(Legacy, ParameterServer, "--coordinators", "coordinators", Text, "LIST", "`ip:port` of all coordinators of a federated job.")
        .default(""),
    Flag::new(Both, ParameterServer, "--server_num", "server_num", Int, "N", "Number of servers on each node.")
        .variable(15, "PADDLE_SERVER_NUM"),
    Flag::new(Legacy, ParameterServer, "--worker_num", "worker_num", Int, "N", "Number of trainers on each node."),
    Flag::new(Current, ParameterServer, "--trainer_num", "trainer_num", Int, "N", "Number of trainers on each node.")
        .variable(16, "PADDLE_TRAINER_NUM"),
    Flag::new(Legacy, ParameterServer, "--heter_worker_num", "heter_worker_num", Text, "LIST", "Number of heterogeneous workers on each node, stages separated by `;`."),
    Flag::new(Legacy, ParameterServer, "--coordinator_num", "coordinator_num", Int, "N", "Number of coordinators on each node."),
    Flag::new(Legacy, ParameterServer, "--http_port", "http_port", Int, "PORT", "Gloo's rendezvous port on the first server's host; a free port when omitted."),
    Flag::new(Current, ParameterServer, "--gloo_port", "gloo_port", Int, "PORT", "Gloo's rendezvous port when servers and trainers are listed; otherwise a free port.")
        .default("6767")
        .variable(19, "PADDLE_GLOO_PORT"),
    Flag::new(Current, ParameterServer, "--with_gloo", "with_gloo", Text, "N", "Passed to the processes as `PADDLE_WITH_GLOO`.")
        .default("1")
        .variable(20, "PADDLE_WITH_GLOO"),
    Flag::new(Legacy, Elastic, "--elastic_server", "elastic_server", Text, "HOST:PORT", "Members of etcd, separated by commas, where the nodes meet; needs `--job_id` and `--np`. When omitted, `PADDLE_ELASTIC_SERVER`, or `PADDLE_ELASTIC_ETCD_SERVICE_HOST` and `PADDLE_ELASTIC_ETCD_SERVICE_PORT`."),
    Flag::new(Both, Elastic, "--job_id", "job_id", Text, "ID", "Name of the job, also used in log file names. In etcd its keys are below `/paddle/ID`.")
        .default("default")
        .legacy_default("None")
        .variable(9, "PADDLE_JOB_ID"),
    Flag::new(Legacy, Elastic, "--np", "np", Text, "N[:MAX]", "Number of nodes, with `--elastic_server` or `--ips`. With a range, which needs etcd, nodes may come and go. When omitted, `PADDLE_ELASTIC_NP`."),
    Flag::new(Legacy, Elastic, "--scale", "scale", Int, "N", "Change the number of nodes that the job has in etcd by N, with `--elastic_server` or `--master etcd://`. When omitted, `PADDLE_ELASTIC_SCALE`.").default("0"),
    Flag::new(Both, Elastic, "--host", "host", Text, "IP", "Address of this node.").variable(0, "POD_IP"),
    Flag::new(Legacy, Elastic, "--force", "force", AnyTextIsTrue, "BOOL", "Replace the number of nodes that the job has in etcd by the one of this command line. When omitted, `PADDLE_ELASTIC_FORCE`.")
        .default("False"),
    Flag::new(Legacy, Elastic, "--elastic_pre_hook", "elastic_pre_hook", Text, "COMMAND", "Shell command that each node of an elastic job runs before its processes start."),
    Flag::new(Current, Elastic, "--max_restart", "max_restart", Int, "N", "Restart all processes after a failure, at most N times. When omitted, 3 with etcd, otherwise 0.")
        .default("3")
        .variable(12, "PADDLE_MAX_RESTART"),
    Flag::new(Current, Elastic, "--elastic_level", "elastic_level", Int, "N", "What a job with etcd or a range of nodes survives: -1 nothing; 0 the loss of nodes, and a node whose process fails leaves; 1 failed processes too, all of which start again. When omitted, 1.")
        .default("-1")
        .variable(13, "PADDLE_ELASTIC_LEVEL"),
    Flag::new(Current, Elastic, "--elastic_timeout", "elastic_timeout", Int, "SECONDS", "With a range of nodes, time to wait for more than the fewest. With `--elastic_server`, 120 when omitted.")
        .default("30")
        .variable(14, "PADDLE_ELASTIC_TIMEOUT"),
    Flag::new(Umiak, Heading::Umiak, "--output", "output", Choice(&["human", "json", "quiet"]), "MODE", "What the console shows; `json` writes the run's facts to stdout.")
        .default("human"),
    Flag::switch("--mirror", "mirror", "With `--output json`, show the first rank's output on stderr."),
    Flag::new(Umiak, Heading::Umiak, "--show", "show", Text, "REPLICAS", "Replicas whose output the console shows: `first`, `all`, `none`, a role, or ranks as in `0-3`. With several replicas, each line starts with the replica's name."),
    Flag::new(Umiak, Heading::Umiak, "--stdin", "stdin", Text, "RANK", "Connect the caller's stdin to this rank and show its output, for `breakpoint()` and `input()`. A single rank always has stdin."),
    Flag::switch("--dry-run", "dry-run", "Print the plan and start nothing."),
    Flag::new(Umiak, Heading::Umiak, "--compat", "compat", Choice(&["paddle"]), "LAUNCHER", "Ignore unknown flags and remove `http_proxy` and `https_proxy`, as Paddle does."),
    Flag::new(Umiak, Heading::Umiak, "--exit-codes", "exit-codes", Choice(&["umiak", "paddle", "torch"]), "SCHEME", "Exit codes: that of the rank that caused the failure, or those of Paddle's or torch's launcher.")
        .default("umiak"),
    Flag::new(Umiak, Heading::Umiak, "--omp", "omp", Threads, "N|auto", "`OMP_NUM_THREADS` of each rank; `auto` divides the CPUs that umiak may use among the ranks of this node. When omitted, the value of the variable, or 1 as in Paddle.")
        .default("1"),
    Flag::switch("--share-devices", "share-devices", "Let several processes use one device."),
    Flag::new(Umiak, Heading::Umiak, "--log-names", "log-names", Choice(&["global", "local"]), "WHICH", "The number in `workerlog.<n>`: global rank, or index on this node.")
        .default("global"),
    Flag::switch("--no-progress", "no-progress", "Hide the status line."),
    Flag::switch("--ascii", "ascii", "Print ASCII characters only."),
    Flag::switch("--no-record", "no-record", "Do not record the run: `umiak ls`, `show` and `explain` will not find it."),
    Flag::switch("--detach", "detach", "Return once the ranks are planned; the run continues without this terminal. `umiak attach` follows it.")
        .aliases(&["-d"]),
    Flag::switch("--isolate", "isolate", "Run the job in a PID namespace: when its guardian exits, the kernel kills all processes of the job."),
    Flag::switch("--numa", "numa", "Bind each process to the CPUs nearest to its device, or spread them over the NUMA nodes."),
    Flag::new(Umiak, Heading::Umiak, "--log-max-size", "log-max-size", Size, "SIZE", "Rotate log files at this size: `100M`, `1G`. Rotated files are numbered: `workerlog.0.1`."),
    Flag::new(Umiak, Heading::Umiak, "--log-keep", "log-keep", Int, "N", "Rotated files to keep for each log, with `--log-max-size`.").default("5"),
    Flag::new(Umiak, Heading::Umiak, "--hang-timeout", "hang-timeout", Duration, "TIME", "Declare the job hung if for TIME no rank writes, reads or sends anything and no stack changes: record all stacks (`umiak explain`), name the odd rank, stop or restart the job. When omitted, a job may hang."),
    Flag::new(Umiak, Heading::Umiak, "--grace", "grace", Duration, "TIME", "Time from the first signal to SIGKILL: `5s`, `500ms`, `2m`.").default("5s"),
    Flag::new(Umiak, Heading::Umiak, "--restart-backoff", "restart-backoff", Duration, "TIME", "Wait before the first restart; doubled for each further one, up to 30 s.")
        .default("1s"),
    Flag::new(Umiak, Heading::Umiak, "--restart-window", "restart-window", Duration, "TIME", "Count only restarts of the last TIME against `--max_restart`; `0s` counts those of the whole run.")
        .default("0s"),
    Flag::new(Umiak, Heading::Umiak, "--token", "token", Text, "TEXT", "Secret shared by all nodes; a node without it cannot join. It is removed from what `ps` shows, but a shell may keep it in its history: prefer `--token-file` or `UMIAK_TOKEN`."),
    Flag::new(Umiak, Heading::Umiak, "--token-file", "token-file", Path, "FILE", "File with the token, in one line. When omitted, `UMIAK_TOKEN`."),
    Flag::new(Umiak, Heading::Umiak, "--rdzv-port", "rdzv-port", Port, "PORT", "Port on the first listed node where the nodes meet. When omitted, `UMIAK_PORT`, or a port from 7168 up that depends on the job and the list."),
    Flag::new(Umiak, Heading::Umiak, "--rdzv-timeout", "rdzv-timeout", Duration, "TIME", "Longest wait for all nodes to join.").default("10m"),
    Flag::new(Umiak, Heading::Umiak, "--node-timeout", "node-timeout", Duration, "TIME", "A node that is silent for this long is lost.").default("30s"),
    Flag::new(Umiak, Heading::Umiak, "--reconnect-window", "reconnect-window", Duration, "TIME", "Time to restore a broken connection between nodes while ranks keep running.")
        .default("60s"),
    Flag::switch("--agent-store", "agent-store", "Umiak hosts torch's store, and every rank is a client of it. When omitted, rank 0 hosts it. Not for scripts that set `MASTER_PORT` themselves."),
    Flag::switch("--store-relay", "store-relay", "Ranks reach the store of Paddle's rank 0 through umiak, which listens before any rank starts. When omitted, they connect to rank 0, and again every 3 s until it listens."),
    Flag::switch("--uneven", "uneven", "Allow nodes with different numbers of processes."),
    Flag::new(Umiak, Heading::Umiak, "--server-timeout", "server-timeout", Duration, "TIME", "End the job with code 124 if a server does not listen on its port after TIME; `0s` starts trainers at once. When omitted, trainers wait at most 30 s and then start."),
    Flag::new(Umiak, Heading::Umiak, "--verbose", "verbose", Count, "", "Log what umiak does to stderr; `-vv` logs more. When omitted, `UMIAK_LOG`.")
        .aliases(&["-v"])
        .default("0"),
    Flag::switch("--gather-logs", "gather-logs", "Copy the logs of all nodes to the first node's log directory."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut seen = BTreeSet::new();
        for flag in FLAGS {
            for name in flag.names() {
                assert!(seen.insert(name), "{name} twice");
                let body = name.strip_prefix("--").or_else(|| name.strip_prefix('-').filter(|body| body.len() == 1));
                let body = body.unwrap_or_else(|| panic!("{name} without dashes"));
                let foreign = if flag.owner == Owner::Umiak { '_' } else { '-' };
                assert!(!body.contains(foreign), "{name}");
            }
            assert_eq!(flag.metavar.is_empty(), !flag.takes_value(), "{}", flag.name);
            assert!(flag.help.ends_with('.'), "{}", flag.name);
        }
    }

    #[test]
    fn every_variable_of_paddle_has_its_place() {
        let mut variables: Vec<Variable> = FLAGS.iter().filter_map(|flag| flag.variable).collect();
        variables.sort_by_key(|variable| variable.order);
        assert_eq!(variables.iter().map(|variable| variable.order).collect::<Vec<_>>(), (0..25).collect::<Vec<u8>>());
    }

    #[test]
    fn each_generation_has_paddles_names() {
        let attributes = |generation| {
            let mut names: Vec<_> = FLAGS.iter().filter(|f| f.owner.has(generation)).map(|f| f.attribute).collect();
            names.sort_unstable();
            names.dedup();
            names.join(" ")
        };
        assert_eq!(
            attributes(Generation::Current),
            "auto_cluster_config auto_parallel_config auto_tuner_json devices elastic_level elastic_timeout enable_gpu_log gloo_port host ips job_id legacy log_dir log_level log_overwrite master max_restart nnodes nproc_per_node rank run_mode server_num servers sort_ip start_port trainer_num trainers with_gloo"
        );
        assert_eq!(
            attributes(Generation::Legacy),
            "backend cluster_topo_path coordinator_num coordinators devices elastic_pre_hook elastic_server enable_auto_mapping force heter_devices heter_worker_num heter_workers host http_port ips job_id log_dir np nproc_per_node rank_mapping_path run_mode scale server_num servers worker_num workers"
        );
    }
}
