//! From a job with roles and leased resources to a plan: the address, ports and command of each replica.
//!
//! [`needs`] computes what to lease; the caller leases it; [`place`] assigns it. The plan is valid for the whole run,
//! because replicas use each other's endpoints.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::contract::{Lazy, Member, Node, Options, Topology, umiak};
use crate::mask::Known;
use crate::model::{
    Device, DeviceKind, Endpoint, FIRST_ATTEMPT, Host, Job, NodeIndex, Part, Port, PortNeed, Rank, Role, Slot,
};

use super::command::Resolved;
use super::ports::STORES;
use super::process::{threads, unbuffered};
use super::value::{VERSION, contracts};
use super::{LogLayout, Membership, Plan, Replica, Wishes};

/// The resources of a host that all replicas of a job need together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    pub addresses: u32,
    pub ports: u32,
    pub gpus: u32,
    /// Whole CPUs, if replicas are bound to CPUs.
    pub cpus: u32,
}

/// Returns the resources to lease before a job can be placed.
pub fn needs(job: &Job) -> Needs {
    let mut needs = Needs::default();
    for role in &job.roles {
        needs.addresses += role.replicas;
        needs.gpus = needs.gpus.saturating_add(role.replicas.saturating_mul(role.work.resources.gpus));
        needs.cpus = needs.cpus.saturating_add(role.replicas.saturating_mul(role.work.resources.whole_cpus()));
        needs.ports = needs.ports.saturating_add(role.replicas.saturating_mul(free_ports(role)));
        if is_group(job, role) {
            needs.ports = needs.ports.saturating_add(role.replicas + u32::from(STORES));
        }
    }
    needs
}

/// Number of ports of one replica that are not fixed.
fn free_ports(role: &Role) -> u32 {
    role.work.ports.iter().filter(|need| need.fixed.is_none()).map(|need| u32::from(need.count)).sum()
}

fn is_group(job: &Job, role: &Role) -> bool {
    !contracts(job, role).is_empty()
}

/// The leased resources.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Granted {
    /// One for each replica, in the order of the roles.
    pub hosts: Vec<Host>,
    pub ports: Vec<Port>,
}

/// The hosts of a job whose replicas have names before they run: `ctr-trainer-0`.
pub fn names(job: &Job) -> Vec<Host> {
    let of_role = |role: &Role| {
        let prefix = format!("{}-{}", job.name, role.name);
        (0..role.replicas).map(move |index| Host::Name(format!("{prefix}-{index}")))
    };
    job.roles.iter().flat_map(of_role).collect()
}

/// The version of a [`Submission`].
pub const SUBMISSION_VERSION: u32 = 1;

/// A job as submitted, with everything that a later supervisor needs. Its file, `secrets.json`, is readable by its owner
/// only.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Submission {
    /// The version of that file.
    pub v: u32,
    pub job: Job,
    /// The parameters given on the command line.
    #[serde(default)]
    pub params: Vec<(String, String)>,
    pub engine: String,
    #[serde(default)]
    pub wishes: Wishes,
    /// Secrets that are masked in everything that is written.
    #[serde(default)]
    pub known: Known,
    /// Directory where it was submitted.
    pub directory: PathBuf,
    /// The file of the document; its settings are beside it.
    pub document: PathBuf,
    /// The environment that the replicas inherit.
    pub environment: BTreeMap<String, String>,
    /// The resolved program of each role.
    pub programs: Vec<PathBuf>,
}

/// The properties of a run that its plan needs.
#[derive(Debug, Clone)]
pub struct RunPlace {
    pub run: String,
    /// The name of the user.
    pub user: String,
    /// CPUs of the host.
    pub cpus: usize,
    /// Parent of the attempts' directories.
    pub tasks: PathBuf,
    /// Scratch directory of the whole run, removed at its end.
    pub scratch: PathBuf,
    /// True if a replica may inherit stdin from a terminal or a pipe.
    pub attached: bool,
}

/// Assigns the leased resources. `granted` must cover [`needs`].
pub fn place(submission: &Submission, place: RunPlace, granted: Granted) -> Plan {
    let Submission { job, params, engine, wishes, directory, document, environment, programs, .. } = submission;
    let mut hosts = granted.hosts.into_iter();
    let mut ports = granted.ports.into_iter();
    let mut take = |count: u16| ports.by_ref().take(count as usize).collect::<Vec<Port>>();
    let (mut replicas, mut groups) = (Vec::new(), Vec::new());
    for (position, role) in job.roles.iter().enumerate() {
        let group = is_group(job, role).then_some(groups.len() as u16);
        let first = replicas.len();
        for index in 0..role.replicas {
            let host = hosts.next().expect("as many hosts as replicas");
            let of_name = |need: &PortNeed| match need.fixed.and_then(Port::new) {
                Some(port) => (need.name.clone(), vec![port]),
                None => (need.name.clone(), take(need.count)),
            };
            let own = role.work.ports.iter().map(of_name).collect();
            replicas.push(Replica {
                name: format!("{}-{index}", role.name),
                slot: Slot { role: position as u16, index },
                index,
                rank: Rank(replicas.len() as u32),
                endpoint: group.map(|_| Endpoint { address: host.clone(), port: take(1)[0] }),
                host,
                ports: own,
                devices: Vec::new(),
                cpus: Vec::new(),
                log: None,
                member: group.map(|group| Membership { group, member: index }),
                env: Vec::new(),
            });
        }
        if let (Some(_), Some(host)) = (group, replicas.get(first).map(|replica: &Replica| replica.host.clone())) {
            let ports = take(STORES);
            let store = |port: usize| Endpoint { address: host.clone(), port: ports[port] };
            groups.push(topology(job, role, &replicas[first..], (store(0), store(1))));
        }
    }
    let RunPlace { run, user, cpus, tasks, scratch, attached } = place;
    let argv = job.roles.iter().map(|role| role.work.command.iter().map(OsString::from).collect());
    let commands = programs.iter().cloned().zip(argv).map(|(program, argv)| Resolved { program, argv });
    let mut plan = Plan {
        v: VERSION,
        dry_run: false,
        umiak: env!("CARGO_PKG_VERSION").to_owned(),
        run: Some(run),
        name: job.name.to_string(),
        line: String::new(),
        params: params.clone(),
        engine: engine.clone(),
        directory: directory.clone(),
        document: Some(document.clone()),
        wishes: *wishes,
        attempt: FIRST_ATTEMPT,
        commands: commands.collect(),
        job: job.clone(),
        whole: true,
        groups,
        logs: LogLayout::Attempts { dir: tasks },
        scratch,
        inherit_stdin: attached && replicas.len() == 1,
        threads: threads(environment, cpus, replicas.len()),
        replicas,
        unset: Vec::new(),
        common: Vec::new(),
        options: Options {
            with_gloo: environment.get("PADDLE_WITH_GLOO").cloned(),
            user,
            async_error_handling_is_set: environment.contains_key("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
            ..Options::default()
        },
        awaited: Vec::new(),
        files: Vec::new(),
        notices: Vec::new(),
        places: Lazy::default(),
    };
    let common = umiak::common(plan.run.as_deref().unwrap_or_default(), &plan.job.name, plan.places());
    plan.common = unbuffered(environment).into_iter().chain(common).collect();
    plan
}

/// The ranks of a role, each on its own host.
fn topology(job: &Job, role: &Role, replicas: &[Replica], stores: (Endpoint<Host>, Endpoint<Host>)) -> Topology {
    let gpus = role.work.resources.gpus;
    let member = |replica: &Replica| {
        Some(Member {
            rank: Rank(replica.index),
            node: NodeIndex(replica.index),
            local_rank: 0,
            part: Part::Trainer,
            index: replica.index,
            stage: 0,
            endpoint: replica.endpoint.clone()?,
            // Frameworks number devices by position, and each replica sees only its own.
            devices: (0..gpus).map(|position| Device { label: position.to_string(), position }).collect(),
        })
    };
    let node = |replica: &Replica| Node { address: replica.host.clone(), host: replica.name.clone(), size: 1 };
    let nodes = replicas.iter().map(node).collect();
    let kind = (gpus > 0).then_some(DeviceKind::Gpu);
    Topology::new(job.name.clone(), nodes, replicas.iter().filter_map(member).collect(), stores, kind)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::{Contract, JobId, Policy, Resources, RoleName};
    use crate::plan::pool::Given;
    use crate::plan::{Attempt, MAX_VARIABLE};

    fn job() -> Job {
        let role = |name: &str, replicas| Role::new(RoleName::new(name).unwrap(), replicas);
        let mut servers = role("param-server", 2);
        servers.completion.decides = false;
        servers.work.ports = vec![
            PortNeed { name: "rpc".into(), count: 2, fixed: None },
            PortNeed { name: "http".into(), count: 1, fixed: Some(8080) },
        ];
        let mut trainers = role("trainer", 2);
        trainers.work.command = vec!["python".into(), "train.py".into()];
        trainers.work.env = vec![("LR".into(), "0.1".into())];
        trainers.work.dir = Some("work".into());
        trainers.work.resources = Resources { cpu_millis: Some(1500), memory_bytes: None, gpus: 1, shm_bytes: None };
        Job {
            name: JobId::new("ctr").unwrap(),
            labels: BTreeMap::new(),
            contracts: vec![Contract::Paddle, Contract::Torch],
            roles: vec![servers, trainers],
            policy: Policy::default(),
        }
    }

    fn placed(job: Job, programs: &[&str], granted: Granted) -> Plan {
        let submission = Submission {
            v: SUBMISSION_VERSION,
            params: Vec::new(),
            job,
            engine: "local".into(),
            wishes: Wishes::default(),
            known: Known::default(),
            directory: "/home/li".into(),
            document: "/home/li/job.yaml".into(),
            environment: BTreeMap::new(),
            programs: programs.iter().map(PathBuf::from).collect(),
        };
        let (run, tasks, scratch) = ("run-000007".into(), "/r/tasks".into(), "/r/scratch".into());
        place(&submission, RunPlace { run, user: "li".into(), cpus: 8, tasks, scratch, attached: true }, granted)
    }

    pub(in crate::plan) fn plan() -> Plan {
        let needs = needs(&job());
        assert_eq!(needs, Needs { addresses: 4, ports: 2 * 2 + 2 + 2, gpus: 2, cpus: 2 * 2 });
        let granted = Granted {
            hosts: (1..=4).map(|last| Host::from([127, 3, 0, last])).collect(),
            ports: (0..needs.ports as u16).map(|port| Port::new(20_000 + port).unwrap()).collect(),
        };
        placed(job(), &["/bin/sh", "/usr/bin/python"], granted)
    }

    fn variables(plan: &Plan, slot: Slot) -> BTreeMap<String, String> {
        let device = Device { label: "3".into(), position: 0 };
        let given = Given { devices: vec![device], cpus: Vec::new() };
        let process = plan.process(&Attempt { slot, number: 2, of_job: 1, retries: 1, given: &given });
        plan.common.iter().cloned().chain(process.env).collect()
    }

    #[test]
    fn everybody_knows_where_everybody_is() {
        let plan = plan();
        let trainer = variables(&plan, Slot { role: 1, index: 1 });
        for (name, value) in [
            ("UMIAK_HOSTS_PARAM_SERVER", "127.3.0.1,127.3.0.2"),
            ("UMIAK_ENDPOINTS_PARAM_SERVER_RPC", "127.3.0.1:20000,127.3.0.1:20001,127.3.0.2:20002,127.3.0.2:20003"),
            ("UMIAK_ENDPOINTS_PARAM_SERVER_HTTP", "127.3.0.1:8080,127.3.0.2:8080"),
            ("UMIAK_HOST", "127.3.0.4"),
            ("POD_IP", "127.3.0.4"),
            ("UMIAK_RANK", "3"),
            ("UMIAK_INDEX", "1"),
            ("UMIAK_ATTEMPT", "2"),
            ("LR", "0.1"),
            ("OMP_NUM_THREADS", "2"),
            ("PYTHONUNBUFFERED", "1"),
            ("CUDA_VISIBLE_DEVICES", "3"),
            ("FLAGS_selected_gpus", "0"),
            ("PADDLE_TRAINER_ID", "1"),
            ("PADDLE_TRAINER_ENDPOINTS", "127.3.0.3:20004,127.3.0.4:20005"),
            ("PADDLE_MASTER", "127.3.0.3:20006"),
            ("MASTER_ADDR", "127.3.0.3"),
            ("MASTER_PORT", "20007"),
            ("RANK", "1"),
            ("LOCAL_RANK", "0"),
            ("GROUP_WORLD_SIZE", "2"),
        ] {
            assert_eq!(trainer.get(name).map(String::as_str), Some(value), "{name}");
        }
        let server = variables(&plan, Slot { role: 0, index: 1 });
        assert_eq!(server["UMIAK_PORT_RPC"], "20002");
        assert_eq!(server["UMIAK_PORTS_RPC"], "20002,20003");
        assert_eq!(server["UMIAK_PORT_HTTP"], "8080");
        assert!(!server.contains_key("RANK"), "not a rank of a group");
    }

    #[test]
    fn what_we_set_is_not_overridden() {
        let mut plan = plan();
        let names: Vec<String> = variables(&plan, Slot { role: 1, index: 1 }).into_keys().collect();
        let is_ours = |name: &str| name.starts_with("UMIAK_") || name == "POD_IP";
        let ours: Vec<String> = names.into_iter().filter(|name| is_ours(name)).collect();
        assert!(ours.len() > 10, "{ours:?}");
        let free = ["RANK", "UMIAK_HOME", "UMIAK_PORT", "UMIAK_PORT_OTHER"].map(str::to_owned);
        let own = ours.iter().chain(&free).map(|name| (name.clone(), "theirs".to_owned()));
        plan.job.roles[1].work.env = own.collect();
        let seen = variables(&plan, Slot { role: 1, index: 1 });
        let theirs: Vec<&String> = seen.iter().filter(|(_, value)| *value == "theirs").map(|(name, _)| name).collect();
        assert_eq!(theirs, free.iter().collect::<Vec<_>>());
        let work = &plan.job.roles[1].work;
        assert!(ours.iter().all(|name| work.is_given(name)) && !free.iter().any(|name| work.is_given(name)));
    }

    #[test]
    fn the_longest_variable_is_found() {
        let mut plan = plan();
        let check = Plan::too_long;
        assert_eq!(check(&plan), None);
        let mut with = |length: usize| {
            plan.job.roles[1].work.env = vec![("NAME".into(), "x".repeat(length))];
            check(&plan)
        };
        assert_eq!(with(MAX_VARIABLE - "NAME=".len() - 1), None);
        assert_eq!(with(MAX_VARIABLE - "NAME=".len()), Some(("NAME".into(), MAX_VARIABLE + 1)));
        let mut role = Role::new(RoleName::new("w").unwrap(), 12_000);
        role.work.command = vec!["true".into()];
        let job = Job { contracts: Vec::new(), roles: vec![role], ..job() };
        let hosts = (0..12_000u32).map(|index| Host::from((0x7f03_0000 + index).to_be_bytes())).collect();
        let plan = placed(job, &["/bin/true"], Granted { hosts, ports: Vec::new() });
        assert_eq!(check(&plan).map(|(name, _)| name), Some("UMIAK_HOSTS_W".to_owned()));
    }

    #[test]
    fn plans_are_read_back() {
        let plan = plan();
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}
