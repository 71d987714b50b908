//! `docs/reference/environment.md`: variables that umiak reads, and those it sets for ranks. The latter are computed by
//! the planner for a few sample machines.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;

use umiak::variables::{AGENT_VARIABLES, VARIABLES};
use umiak_core::contract::torch;
use umiak_core::formats::launch::flags::FLAGS;
use umiak_core::formats::launch::{Parsed, Spelling, allocation, parse};
use umiak_core::mask::Known;
use umiak_core::model::{
    ClusterOptions, Contract, FIRST_ATTEMPT, Host, Job, JobId, Part, Policy, Port, Role, RoleName, Workload,
};
use umiak_core::plan::command::Resolved;
use umiak_core::plan::document::{self, Chosen, Granted, RunPlace, SUBMISSION_VERSION, Submission};
use umiak_core::plan::{Gpu, Inventory, Plan, Ports, Run, STORES, Share, Wishes, finish, layout};

use super::HEADER;
use crate::markdown::{code, table};

pub(super) fn page() -> String {
    let mut text = format!("{HEADER}# Environment variables\n\n## Read by umiak\n\n");
    text += &table(
        &["variable", "meaning"],
        VARIABLES.iter().map(|variable| [code(variable.name), variable.text.to_owned()]),
    );
    text += "\n### Paddle's variables for flags\n\nThe environment overrides the command line, as in Paddle, with a notice. Current generation only.\n\n";
    text += &table(&["variable", "flag"], overrides());
    text += "\n### Paddle's other variables\n\n";
    text += &table(&["variable", "meaning"], OTHERS.map(|(name, meaning)| [code(name), meaning.to_owned()]));
    text += SCHEDULERS;
    text += &table(
        &["variable", "meaning"],
        allocation::VARIABLES.iter().map(|(name, text)| [code(name), (*text).to_owned()]),
    );
    text += AGENTS;
    text += &table(
        &["variable", "meaning"],
        AGENT_VARIABLES.iter().map(|variable| [code(variable.name), variable.text.to_owned()]),
    );
    text += RANKS;
    let given = given();
    let is_torch = |name: &str| torch::NAMES.contains(&name);
    text += &variables(given.iter().filter(|(name, _)| !is_torch(name)));
    text += "\n### torch's variables\n\nThe variables that `torchrun` sets for its workers, so that scripts of either framework work.\n\n";
    text += &variables(given.iter().filter(|(name, _)| is_torch(name)));
    text += SERVERS;
    text += &table(&["variable", "sample", "set for"], of_servers());
    text += MEMBERS;
    for sample in &DISTRIBUTED {
        text += "\n### ";
        text += sample.title;
        text += "\n\n";
        text += &table(&["variable", "sample", "set for"], of_members(sample));
    }
    text
}

const SCHEDULERS: &str = "
### Variables of Slurm and MPI

Read if the command line does not name the nodes ([Slurm](../guide/slurm.md)).

";

const AGENTS: &str = "
## Set for agents

umiak sets these for its agents on the nodes of [Slurm](../guide/slurm.md). They are not for users.

";

const SERVERS: &str = "
### Parameter-server jobs

These variables replace those of the ranks above. The values are from a sample job with all kinds of processes: from its first server, or from the first process with the
variable. In a PaddleCloud pod, variables set by the platform are kept.

";

const MEMBERS: &str = "
## Distributed jobs

The roles of a document that have a `part` are one group of ranks, in which the operators of Kubernetes are the model. The replicas also have the variables that every replica of a document has. The values are from a sample job: from its first replica, or from the first one with the variable.
";

const RANKS: &str = "
## Set for the ranks

A rank inherits the environment of `umiak`, plus these. The values are those of rank 1 of a sample job; the last column
says if a variable is set only with certain flags or devices. `umiak launch --dry-run …` shows the values of a real job.

If a proxy is set, the addresses of the nodes are added to `no_proxy`, and to `NO_PROXY` if it is set. Only
`--compat paddle` renames `http_proxy` and `https_proxy` to `http_proxy_original` and `https_proxy_original`, as Paddle
does.

With several nodes, `GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME` and `TP_SOCKET_IFNAME` name the interface that
has this node's address, unless they are already set. `UMIAK_TOKEN` and `UMIAK_ETCD_PASSWORD` are never passed on.

Ranks of elastic jobs also get `UMIAK_ATTEMPT`, and after the first attempt `UMIAK_RESTART_REASON` and
`UMIAK_PREVIOUS_WORLD_SIZE` ([elastic jobs](../guide/elastic.md)).

### Paddle's variables

";

/// Sorted in Paddle's own order, in which overrides are announced.
fn overrides() -> Vec<[String; 2]> {
    let mut rows: Vec<_> = FLAGS.iter().filter_map(|flag| Some((flag.variable?, flag.name))).collect();
    rows.sort_by_key(|(variable, _)| variable.order);
    rows.into_iter().map(|(variable, flag)| [code(variable.name), code(flag)]).collect()
}

/// Variables of Paddle's launchers that are not in the table of flags. A test keeps this list complete.
const OTHERS: [(&str, &str); 26] = [
    ("PADDLE_TRAINER_ID", "Rank of this node, from 0; replaces `--rank`."),
    (
        "PADDLE_TRAINER_ENDPOINTS",
        "Current generation: a platform's list of endpoints; sets master and number of nodes.",
    ),
    (
        "DISTRIBUTED_TRAINER_ENDPOINTS",
        "The same; on PaddleCloud the endpoints of all nodes, the same number for each: this node's first one sets the first port of its ranks.",
    ),
    ("PADDLE_LAUNCH_WITH_ARGS", "Not 0: a list of endpoints sets the number of nodes only, not the master."),
    ("PADDLE_TRAINERS", "PaddleCloud, legacy generation: addresses of the nodes."),
    ("TRAINER_PORTS_NUM", "PaddleCloud, legacy generation: number of ports of each node."),
    ("PADDLE_TRAINERS_NUM", "PaddleCloud: number of trainers; in collective jobs in the legacy generation only."),
    (
        "PADDLE_PORT",
        "PaddleCloud: port of this server; in the legacy generation the first of the ranks' ports, with several nodes and enough ports.",
    ),
    (
        "TRAINING_ROLE",
        "PaddleCloud, parameter-server jobs: `PSERVER` or `TRAINER`. With the list below and no conflicting flag, this command is one process of such a job; the coordinator runs beside the first server.",
    ),
    (
        "PADDLE_PSERVERS_IP_PORT_LIST",
        "PaddleCloud, parameter-server jobs: `host:port` of all servers. A server finds its own entry by `POD_IP` and `PADDLE_PORT`.",
    ),
    ("FLAGS_START_PORT", "First of the ranks' consecutive ports."),
    ("FLAGS_FIXED_PORT", "The same, with the node's rank added."),
    ("PORT_RANGE", "Two ports, `35100:64000`: free ports are chosen between them."),
    ("PADDLE_DISTRI_BACKEND", "Legacy generation: replaces `--backend`."),
    (
        "PADDLE_ENV_LIMIT_LEN",
        "Endpoint lists of this many characters or more are omitted from the environment. Default 48000.",
    ),
    ("WITH_COVERAGE", "`ON`: Python scripts run under `coverage`."),
    (
        "PADDLE_ELASTIC_SERVER",
        "Legacy generation: addresses of etcd, as `--elastic_server`. Variables make a job elastic only if the server, the job id and the number of nodes are all given, by flags or variables.",
    ),
    ("PADDLE_ELASTIC_JOB_ID", "Legacy generation, elastic jobs: replaces `--job_id`."),
    ("PADDLE_ELASTIC_NP", "Legacy generation, elastic jobs: the number of nodes or a range, as `--np`."),
    ("PADDLE_ELASTIC_SCALE", "Legacy generation, elastic jobs: as `--scale`."),
    ("PADDLE_ELASTIC_FORCE", "Legacy generation, elastic jobs: as `--force`."),
    (
        "PADDLE_ELASTIC_TIMEOUT",
        "Legacy generation, elastic jobs: seconds to wait for more nodes once the minimum has joined. Default 120. In the current generation it replaces `--elastic_timeout`.",
    ),
    (
        "PADDLE_ELASTIC_TTL",
        "Legacy generation, elastic jobs: the coordinator's lease in etcd, in seconds. When unset, it follows from `--node-timeout`.",
    ),
    (
        "PADDLE_ELASTIC_ETCD_SERVICE_HOST",
        "Legacy generation, elastic jobs: the address of etcd as Kubernetes sets it for a service, if `PADDLE_ELASTIC_SERVER` is not set.",
    ),
    ("PADDLE_ELASTIC_ETCD_SERVICE_PORT", "The port of that service."),
    ("CUDA_VISIBLE_DEVICES", "Limits the devices; also `XPU_VISIBLE_DEVICES`, `ASCEND_RT_VISIBLE_DEVICES`."),
];

fn variables<'a>(variables: impl Iterator<Item = &'a (String, Given)>) -> String {
    table(
        &["variable", "rank 1 of the sample", "set"],
        variables.map(|(name, given)| [code(name), code(&given.value), given.when.clone()]),
    )
}

/// Every variable of a heterogeneous job with coordinators, which has all variables of other jobs, and the processes
/// that get it.
fn of_servers() -> Vec<[String; 3]> {
    let names_of = |sample: &Sample| -> BTreeSet<String> {
        let plan = plan(sample);
        plan.replicas.iter().flat_map(|replica| plan.known_variables(replica)).map(|(name, _)| name).collect()
    };
    let [heter, legacy, current] = &SERVER_SAMPLES;
    let (legacy, current) = (names_of(legacy), names_of(current));
    let mut found: Vec<(String, String, Vec<Part>)> = Vec::new();
    let plan = plan(heter);
    for replica in plan.replicas.iter().filter(|replica| replica.index == 0) {
        let Some((_, member)) = plan.member(replica) else { continue };
        for (name, value) in plan.known_variables(replica) {
            match found.iter_mut().find(|(other, ..)| *other == name) {
                Some((.., parts)) => parts.push(member.part),
                None => found.push((name, value, vec![member.part])),
            }
        }
    }
    let all = plan.topology().parts().len();
    let row = |(name, value, parts): (String, String, Vec<Part>)| {
        let roles: Vec<String> = parts.iter().map(|part| code(part.role())).collect();
        let who = if parts.len() == all { "all".to_owned() } else { roles.join(", ") };
        let when = match (legacy.contains(&name), current.contains(&name)) {
            (false, _) => ", in `ps-heter`",
            (true, false) => ", legacy generation",
            (true, true) => "",
        };
        [code(&name), code(&value), who + when]
    };
    found.into_iter().map(row).collect()
}

/// All kinds of processes; and the same job without stages, in either generation.
const SERVER_SAMPLES: [Sample; 3] = [
    Sample {
        words: &[
            "--server_num",
            "2",
            "--worker_num",
            "2",
            "--coordinator_num",
            "1",
            "--heter_worker_num",
            "1;1",
            "--heter_devices",
            "cpu;gpu",
            "train.py",
        ],
        gpus: 0,
        env: &[],
        when: "",
    },
    Sample {
        words: &["--server_num", "2", "--worker_num", "2", "--coordinator_num", "1", "train.py"],
        gpus: 0,
        env: &[],
        when: "",
    },
    Sample {
        words: &["--run_mode", "ps", "--server_num", "2", "--trainer_num", "2", "train.py"],
        gpus: 0,
        env: &[],
        when: "",
    },
];

/// A distributed job.
struct Distributed {
    title: &'static str,
    contract: Contract,
    roles: &'static [(&'static str, Part)],
}

const DISTRIBUTED: [Distributed; 5] = [
    Distributed {
        title: "`paddle-job` with servers",
        contract: Contract::PaddleJob,
        roles: &[("pserver", Part::Server), ("worker", Part::Trainer)],
    },
    Distributed {
        title: "`paddle-job` without servers",
        contract: Contract::PaddleJob,
        roles: &[("worker", Part::Trainer)],
    },
    Distributed {
        title: "`pytorch-job`",
        contract: Contract::PytorchJob,
        roles: &[("master", Part::Leader), ("worker", Part::Trainer)],
    },
    Distributed {
        title: "`tensorflow`",
        contract: Contract::Tensorflow,
        roles: &[("ps", Part::Server), ("worker", Part::Trainer)],
    },
    Distributed {
        title: "`mpi`",
        contract: Contract::Mpi,
        roles: &[("launcher", Part::Leader), ("worker", Part::Trainer)],
    },
];

/// The variables of a contract, and the roles that get them; two replicas of each.
fn of_members(sample: &Distributed) -> Vec<[String; 3]> {
    let role = |(name, part): &(&str, Part)| Role {
        part: Some(*part),
        ..Role::new(RoleName::new(*name).expect("a sample name"), 2)
    };
    let job = Job {
        agent_store: false,
        name: JobId::new("ctr").expect("a sample name"),
        labels: BTreeMap::new(),
        contracts: vec![sample.contract],
        roles: sample.roles.iter().map(role).collect(),
        policy: Policy::default(),
    };
    let needs = document::needs(&job);
    let granted = Granted {
        hosts: (1..=needs.addresses as u8).map(|last| Host::from([127, 3, 0, last])).collect(),
        ports: (20_000..).take(needs.ports as usize).filter_map(Port::new).collect(),
        by_owner: false,
    };
    let submission = Submission {
        v: SUBMISSION_VERSION,
        params: Vec::new(),
        chosen: Chosen::default(),
        repeats: None,
        engine: "local".to_owned(),
        wishes: Wishes::default(),
        cluster: ClusterOptions::default(),
        known: Known::default(),
        directory: "/home/li".into(),
        document: "/home/li/job.yaml".into(),
        environment: BTreeMap::from([("OMP_NUM_THREADS".to_owned(), String::new())]),
        programs: vec!["/bin/true".into(); job.roles.len()],
        work: Workload::Job(Box::new(job.clone())),
    };
    let place = RunPlace {
        step: None,
        run: "run-000007".to_owned(),
        user: "li".to_owned(),
        cpus: 8,
        tasks: "/run-000007/tasks".into(),
        scratch: "/run-000007/scratch".into(),
        attached: false,
    };
    let plan = document::place(&submission, &job, &submission.programs, place, granted);
    let mut found: Vec<(String, String, Vec<String>)> = Vec::new();
    for replica in plan.replicas.iter().filter(|replica| replica.index == 0) {
        let role = code(plan.role(replica.slot).name.as_str());
        for (name, value) in plan.known_variables(replica) {
            match found.iter_mut().find(|(other, ..)| *other == name) {
                Some((.., roles)) if roles.contains(&role) => {}
                Some((.., roles)) => roles.push(role.clone()),
                None => found.push((name, value, vec![role.clone()])),
            }
        }
    }
    let is_of_contract = |(name, ..): &(String, String, Vec<String>)| !name.starts_with("UMIAK_");
    let row = |(name, value, roles): (String, String, Vec<String>)| {
        let who = if roles.len() == sample.roles.len() { "all".to_owned() } else { roles.join(", ") };
        [code(&name), code(&value), who]
    };
    found.into_iter().filter(is_of_contract).map(row).collect()
}

/// A variable of a rank.
struct Given {
    value: String,
    when: String,
}

/// Variables of rank 1 in every sample, each with its first value and the samples that have it.
fn given() -> Vec<(String, Given)> {
    let mut found: Vec<(String, String, Vec<&str>)> = Vec::new();
    for sample in SAMPLES {
        let plan = plan(sample);
        for (name, value) in plan.common.iter().chain(&plan.known_variables(&plan.replicas[1])) {
            match found.iter_mut().find(|(other, ..)| other == name) {
                Some((.., whens)) => whens.push(sample.when),
                None => found.push((name.clone(), value.clone(), vec![sample.when])),
            }
        }
    }
    found.into_iter().map(|(name, value, whens)| (name, Given { value, when: when(&whens) })).collect()
}

/// Empty for a variable in every sample. If it depends on the kind of machine, flags are not mentioned.
fn when(whens: &[&'static str]) -> String {
    if whens.len() == SAMPLES.len() {
        return String::new();
    }
    let machines: Vec<&str> = whens.iter().copied().filter(|when| when.starts_with("on ")).collect();
    if machines.is_empty() { whens[0].to_owned() } else { machines.join(", ") }
}

/// A command line on a machine.
#[derive(Debug, Clone, Copy)]
struct Sample {
    words: &'static [&'static str],
    gpus: u32,
    env: &'static [(&'static str, &'static str)],
    /// Condition for variables that not every sample has.
    when: &'static str,
}

const SAMPLES: &[Sample] = &[
    Sample {
        words: &["--nproc_per_node", "2", "train.py"],
        gpus: 0,
        env: &[],
        when: "on CPU (legacy generation: always)",
    },
    Sample { words: &["train.py"], gpus: 2, env: &[], when: "on GPUs" },
    Sample { words: &["--gpus", "2,3", "train.py"], gpus: 4, env: &[], when: "with `--gpus`, on GPUs" },
    Sample { words: &["--xpus", "0,1", "train.py"], gpus: 0, env: &[], when: "on XPUs" },
    Sample { words: &["--npus", "0,1", "train.py"], gpus: 0, env: &[], when: "on NPUs" },
    Sample {
        words: &["--nproc_per_node", "2", "--auto_parallel_config", "auto.json", "train.py"],
        gpus: 0,
        env: &[],
        when: "with `--auto_parallel_config`",
    },
    Sample {
        words: &["--nproc_per_node", "2", "--cluster_topo_path", "topology.json", "train.py"],
        gpus: 0,
        env: &[],
        when: "with `--cluster_topo_path`",
    },
    Sample {
        words: &["--nproc_per_node", "2", "--rank_mapping_path", "mapping.json", "train.py"],
        gpus: 0,
        env: &[],
        when: "with `--rank_mapping_path`",
    },
    Sample {
        words: &["--nproc_per_node", "2", "train.py"],
        gpus: 0,
        env: &[("http_proxy", "http://proxy:8080"), ("https_proxy", "http://proxy:8080")],
        when: "if `umiak` runs with a proxy",
    },
];

/// The plan of a sample on a machine with eight CPUs.
fn plan(sample: &Sample) -> Plan {
    let env: BTreeMap<String, String> =
        sample.env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let words: Vec<OsString> = sample.words.iter().map(OsString::from).collect();
    let Ok(Parsed::Launch(spec)) = parse(Spelling::Launch, &words, &env) else {
        panic!("a sample that does not parse: {sample:?}")
    };
    let gpus = (0..sample.gpus)
        .map(|index| Gpu { index, name: String::new(), uuid: String::new(), numa_node: None, minor: index })
        .collect();
    let inventory = Inventory {
        gpus,
        idle_gpus: Vec::new(),
        cpus: 8,
        addresses: Vec::new(),
        numa_nodes: Vec::new(),
        hostname: "node-a".to_owned(),
        env: env.clone(),
    };
    let layout = layout(&spec.request, &inventory).expect("the samples fit their machines");
    let port = |number: u16| Port::new(number).expect("a sample port");
    let ports = Ports {
        endpoints: (0..layout.seats.len() as u16).map(|index| port(6170 + index)).collect(),
        stores: (0..STORES).map(|index| port(6180 + index)).collect(),
    };
    let run = Run {
        pod_name: "abcdef".to_owned(),
        scratch: PathBuf::from("/tmp/umiak-XXXXXX"),
        directory: PathBuf::from("/home/li"),
        log_dir: PathBuf::from("/home/li/log"),
        command: Resolved { program: PathBuf::from("/usr/bin/python3"), argv: words },
        attempt: FIRST_ATTEMPT,
        last: None,
    };
    let share = Share::without_others(&spec.request, &inventory, &layout, &ports).expect("one node needs no other");
    finish(&spec.request, &inventory, layout, share, &run)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Quoted upper-case names in the sources that read the environment.
    fn names_in(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_name = |word: &&str| {
            word.contains('_') && word.chars().all(|c| c.is_ascii_uppercase() || c == '_') && !word.starts_with('_')
        };
        code.split('"').skip(1).step_by(2).filter(is_name).map(str::to_owned).collect()
    }

    #[test]
    fn every_variable_that_the_parser_reads_is_on_the_page() {
        let page = page();
        let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../umiak-core/src/formats/launch");
        for file in ["environment.rs", "cloud.rs", "elastic.rs", "ports.rs", "checks.rs", "parse.rs"] {
            for name in names_in(&formats.join(file)) {
                assert!(page.contains(&format!("`{name}`")), "{file} reads {name}: add it to `OTHERS`");
            }
        }
        assert!(names_in(&formats.join("ports.rs")).contains(&"PORT_RANGE".to_owned()), "the search finds names");
    }

    #[test]
    fn every_variable_of_agents_is_on_the_page() {
        let page = page();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = 0;
        for file in
            ["umiak/src/front/agent/mod.rs", "umiak/src/front/agent/place.rs", "umiak/src/engine/cluster/post/mod.rs"]
        {
            for name in names_in(&crates.join(file)).iter().filter(|name| name.starts_with("UMIAK_")) {
                assert!(page.contains(&format!("`{name}`")), "{file} has {name}: add it to `AGENT_VARIABLES`");
                found += 1;
            }
        }
        assert!(found >= AGENT_VARIABLES.len(), "the search finds names");
    }

    #[test]
    fn every_torch_variable_is_on_the_page() {
        let page = page();
        for name in torch::NAMES {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
