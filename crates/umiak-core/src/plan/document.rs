//! A job of roles plus what a host grants it, to places: each replica's address, ports, command and variables.
//!
//! The order is: [`needs`] says what to lease; the caller leases it; [`place`] gives it out; [`Placement::process`] is one
//! attempt, ready to be started. The placement holds for the whole run, because replicas know each other's endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::contract::{Member, Node, Topology, Variable, paddle, torch};
use crate::model::{Contract, Device, DeviceKind, Endpoint, Generation, Job, NodeIndex, Part, Port, Rank, Role, Slot};

/// The version of `plan.json` that this build writes.
pub const VERSION: u32 = 1;

/// Paddle's store and torch's, of each group of ranks.
const STORES: u32 = 2;

/// What a job needs of a host, all replicas together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    pub addresses: u32,
    pub ports: u32,
    pub gpus: u32,
    /// Whole ones, for when replicas are bound to them.
    pub cpus: u32,
}

/// What a job needs before it can be placed.
pub fn needs(job: &Job) -> Needs {
    let mut needs = Needs::default();
    for role in &job.roles {
        needs.addresses += role.replicas;
        needs.gpus = needs.gpus.saturating_add(role.replicas.saturating_mul(role.work.resources.gpus));
        needs.cpus = needs.cpus.saturating_add(role.replicas.saturating_mul(role.work.resources.whole_cpus()));
        needs.ports = needs.ports.saturating_add(role.replicas.saturating_mul(free_ports(role)));
        if is_group(job, role) {
            needs.ports = needs.ports.saturating_add(role.replicas + STORES);
        }
    }
    needs
}

/// Ports of one replica that are chosen for it.
fn free_ports(role: &Role) -> u32 {
    role.work.ports.iter().filter(|need| need.fixed.is_none()).map(|need| u32::from(need.count)).sum()
}

/// The dialects that replicas of a role are given: the role's own, else the job's where the role decides.
fn contracts<'a>(job: &'a Job, role: &'a Role) -> &'a [Contract] {
    let nobody_decides = job.roles.iter().all(|role| !role.completion.decides);
    match &role.work.contracts {
        Some(own) => own,
        None if role.completion.decides || nobody_decides => &job.contracts,
        None => &[],
    }
}

fn is_group(job: &Job, role: &Role) -> bool {
    !contracts(job, role).is_empty()
}

/// What is asked of a run beside its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Wishes {
    /// A PID namespace of its own.
    #[serde(default)]
    pub isolate: bool,
    /// Replicas are bound to CPUs of their own, and what cannot be enforced is an error.
    #[serde(default)]
    pub strict_resources: bool,
}

/// Where everything of a run is: `plan.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub v: u32,
    pub umiak: String,
    pub run: String,
    pub engine: String,
    /// Where it was submitted.
    pub directory: PathBuf,
    #[serde(default)]
    pub wishes: Wishes,
    pub job: Job,
    /// Nothing in the job was masked: asterisks in it are its own.
    #[serde(default)]
    pub whole: bool,
    /// The program of each role, found.
    pub programs: Vec<PathBuf>,
    /// By rank, through the roles in their order.
    pub replicas: Vec<Placed>,
    /// The stores of each role whose replicas are ranks of one group.
    pub stores: Vec<Option<Stores>>,
}

/// One replica's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    pub replica: String,
    pub slot: Slot,
    pub rank: Rank,
    pub host: IpAddr,
    /// In the order of the document.
    pub ports: Vec<(String, Vec<Port>)>,
    /// As a rank of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
}

/// Where the frameworks' stores of a group listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stores {
    pub paddle: Endpoint,
    pub torch: Endpoint,
}

/// What was leased.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Granted {
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<Port>,
}

/// What is known of a run before it has places.
#[derive(Debug, Clone)]
pub struct Submission {
    pub run: String,
    pub umiak: String,
    pub engine: String,
    pub directory: PathBuf,
    pub wishes: Wishes,
    pub programs: Vec<PathBuf>,
}

/// Gives out what was leased for [`needs`]; it must be that much.
pub fn place(job: Job, submission: Submission, granted: Granted) -> Placement {
    let mut addresses = granted.addresses.into_iter();
    let mut ports = granted.ports.into_iter();
    let mut take = |count: u32| ports.by_ref().take(count as usize).collect::<Vec<Port>>();
    let (mut replicas, mut stores) = (Vec::new(), Vec::new());
    for (position, role) in job.roles.iter().enumerate() {
        let group = is_group(&job, role);
        let first = replicas.len();
        for index in 0..role.replicas {
            let host = addresses.next().expect("as many addresses as replicas");
            let of_name = |need: &crate::model::PortNeed| match need.fixed.and_then(Port::new) {
                Some(port) => (need.name.clone(), vec![port]),
                None => (need.name.clone(), take(u32::from(need.count))),
            };
            let own = role.work.ports.iter().map(of_name).collect();
            let endpoint = group.then(|| Endpoint { address: host, port: take(1)[0] });
            replicas.push(Placed {
                replica: format!("{}-{index}", role.name),
                slot: Slot { role: position as u16, index },
                rank: Rank(replicas.len() as u32),
                host,
                ports: own,
                endpoint,
            });
        }
        let host = replicas.get(first).map(|placed: &Placed| placed.host);
        stores.push(host.filter(|_| group).map(|address| {
            let ports = take(STORES);
            Stores { paddle: Endpoint { address, port: ports[0] }, torch: Endpoint { address, port: ports[1] } }
        }));
    }
    let Submission { run, umiak, engine, directory, wishes, programs } = submission;
    Placement { v: VERSION, umiak, run, engine, directory, wishes, job, whole: true, programs, replicas, stores }
}

/// Which attempt of a replica, and what it is given only for that.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub slot: Slot,
    /// Of the replica, from 0.
    pub number: u32,
    /// Of the whole job, from 0.
    pub of_job: u32,
    pub devices: &'a [Device],
    /// Its directory: logs and all.
    pub dir: &'a Path,
}

/// What all attempts have in common.
#[derive(Debug)]
pub struct Surroundings {
    /// The environment that theirs is put on top of.
    pub inherited: BTreeMap<String, String>,
    /// CPUs of the host.
    pub cpus: usize,
    /// Of the whole run, removed at its end.
    pub scratch: PathBuf,
    /// Of each role whose replicas are ranks of one group: made once, for all of them.
    topologies: Vec<Option<Topology>>,
}

impl Surroundings {
    pub fn new(placement: &Placement, inherited: BTreeMap<String, String>, cpus: usize, scratch: PathBuf) -> Self {
        let topologies = (0..placement.job.roles.len()).map(|role| placement.topology(role)).collect();
        Self { inherited, cpus, scratch, topologies }
    }
}

/// What the kernel takes as one variable, its name and the NUL behind it included (`MAX_ARG_STRLEN`): with a longer one
/// no program can be started.
pub const MAX_VARIABLE: usize = 128 << 10;

/// A variable with which no replica could be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLong {
    pub name: String,
    pub bytes: usize,
}

/// An attempt, ready to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub program: PathBuf,
    pub argv: Vec<String>,
    pub env: Vec<Variable>,
    pub dir: PathBuf,
    pub log: PathBuf,
    /// Where torch may leave its error.
    pub error_file: PathBuf,
}

impl Placement {
    pub fn placed(&self, slot: Slot) -> &Placed {
        let lower: u32 = self.job.roles[..slot.role as usize].iter().map(|role| role.replicas).sum();
        &self.replicas[(lower + slot.index) as usize]
    }

    fn of_role(&self, role: usize) -> impl Iterator<Item = &Placed> {
        self.replicas.iter().filter(move |placed| placed.slot.role as usize == role)
    }

    pub fn role(&self, slot: Slot) -> &Role {
        &self.job.roles[slot.role as usize]
    }

    /// Variables that are the same for all replicas: who is where.
    pub fn common(&self) -> Vec<Variable> {
        let mut common = vec![
            ("UMIAK_RUN".to_owned(), self.run.clone()),
            ("UMIAK_JOB".to_owned(), self.job.name.to_string()),
            ("UMIAK_WORLD_SIZE".to_owned(), self.replicas.len().to_string()),
        ];
        for (position, role) in self.job.roles.iter().enumerate() {
            let name = variable(role.name.as_str());
            let hosts: Vec<String> = self.of_role(position).map(|placed| placed.host.to_string()).collect();
            common.push((format!("UMIAK_HOSTS_{name}"), hosts.join(",")));
            for (number, need) in role.work.ports.iter().enumerate() {
                let endpoints = self.of_role(position).flat_map(|placed| {
                    let ports = placed.ports[number].1.iter();
                    ports.map(|port| Endpoint { address: placed.host, port: *port }.to_string())
                });
                let list = endpoints.collect::<Vec<_>>().join(",");
                common.push((format!("UMIAK_ENDPOINTS_{name}_{}", variable(&need.name)), list));
            }
        }
        common
    }

    /// The longest variable of any replica, where it is longer than the kernel takes.
    pub fn too_long(&self, around: &Surroundings) -> Option<TooLong> {
        // The first of each role stands for the others: lists of peers are what grows, and those are the same for all.
        let first = self.replicas.iter().filter(|placed| placed.slot.index == 0).flat_map(|placed| {
            let dir = Path::new("");
            let attempt = Attempt { slot: placed.slot, number: 0, of_job: 0, devices: &[], dir };
            self.process(attempt, around).env
        });
        let sized = self.common().into_iter().chain(first).map(|(name, value)| {
            // `NAME=value` and the NUL behind it.
            let bytes = name.len() + value.len() + 2;
            TooLong { name, bytes }
        });
        sized.filter(|variable| variable.bytes > MAX_VARIABLE).max_by_key(|variable| variable.bytes)
    }

    /// One attempt.
    pub fn process(&self, attempt: Attempt<'_>, around: &Surroundings) -> Process {
        let inherited = &around.inherited;
        let role = self.role(attempt.slot);
        let placed = self.placed(attempt.slot);
        let error_file = attempt.dir.join("error.json");
        let mut env = self.contract_variables(attempt, &error_file, around);
        let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
        if !inherited.contains_key("OMP_NUM_THREADS") {
            let share = (around.cpus / self.replicas.len().max(1)).max(1);
            let asked = role.work.resources.whole_cpus() as usize;
            set("OMP_NUM_THREADS", if asked > 0 { asked } else { share }.to_string());
        }
        if role.work.resources.gpus > 0 {
            let labels: Vec<&str> = attempt.devices.iter().map(|device| device.label.as_str()).collect();
            set(DeviceKind::Gpu.visible_variable(), labels.join(","));
            // Our numbers are by PCI address, whatever the submitter's were.
            set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
        }
        for (name, value) in role.work.env.iter().filter(|(name, _)| !is_common(name)) {
            set(name, value.clone());
        }
        set("POD_IP", placed.host.to_string());
        set("UMIAK_ROLE", role.name.to_string());
        set("UMIAK_INDEX", attempt.slot.index.to_string());
        set("UMIAK_REPLICAS", role.replicas.to_string());
        set("UMIAK_RANK", placed.rank.0.to_string());
        set("UMIAK_ATTEMPT", attempt.number.to_string());
        set("UMIAK_HOST", placed.host.to_string());
        for (name, ports) in &placed.ports {
            let name = variable(name);
            let list: Vec<String> = ports.iter().map(|port| port.get().to_string()).collect();
            set(&format!("UMIAK_PORT_{name}"), list.first().cloned().unwrap_or_default());
            set(&format!("UMIAK_PORTS_{name}"), list.join(","));
        }
        Process {
            program: self.programs[attempt.slot.role as usize].clone(),
            argv: role.work.command.clone(),
            env,
            dir: role.work.dir.as_ref().map_or_else(|| self.directory.clone(), |dir| self.directory.join(dir)),
            log: attempt.dir.join("log"),
            error_file,
        }
    }

    fn contract_variables(&self, attempt: Attempt<'_>, error_file: &Path, around: &Surroundings) -> Vec<Variable> {
        let Some(topology) = &around.topologies[attempt.slot.role as usize] else { return Vec::new() };
        let role = self.role(attempt.slot);
        let member = &topology.members[attempt.slot.index as usize];
        let mut variables = Vec::new();
        for contract in contracts(&self.job, role) {
            match contract {
                Contract::Paddle => variables.extend(self.paddle(topology, member, attempt, around)),
                Contract::Torch => {
                    let options = torch::Options {
                        attempt: attempt.number,
                        max_restarts: role.restart.rule.max.max(self.job.policy.restart.max),
                        error_file: error_file.to_string_lossy().into_owned(),
                        async_error_handling_is_set: around.inherited.contains_key("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
                    };
                    variables.extend(torch::variables(topology, member, &options));
                }
            }
        }
        variables
    }

    fn paddle(
        &self,
        topology: &Topology,
        member: &Member,
        attempt: Attempt<'_>,
        around: &Surroundings,
    ) -> Vec<Variable> {
        let role = self.role(attempt.slot);
        let options = paddle::Options {
            generation: Generation::Current,
            backend: if topology.device_kind.is_some() { "nccl" } else { "gloo" }.to_owned(),
            pod_name: self.placed(attempt.slot).replica.clone(),
            log_dir: attempt.dir.to_string_lossy().into_owned(),
            gloo_dir: gloo_dir(&around.scratch, role, attempt.of_job).to_string_lossy().into_owned(),
            backup_env_path: String::new(),
            auto_cluster: false,
            auto_parallel_config: None,
            cluster_topo_path: None,
            rank_mapping_path: None,
            // Nothing is left out, so there is nothing to look up elsewhere.
            env_limit: usize::MAX,
            with_gloo: around.inherited.get("PADDLE_WITH_GLOO").cloned(),
        };
        let mut variables = paddle::variables(topology, member, &options);
        variables.retain(|(name, _)| name != "PADDLE_BACKUP_ENV_PATH");
        variables
    }

    /// The ranks of a role: each is a host of its own.
    fn topology(&self, role: usize) -> Option<Topology> {
        let stores = self.stores[role]?;
        let gpus = self.job.roles[role].work.resources.gpus;
        let members: Vec<Member> = self
            .of_role(role)
            .filter_map(|placed| {
                Some(Member {
                    rank: Rank(placed.slot.index),
                    node: NodeIndex(placed.slot.index),
                    local_rank: 0,
                    part: Part::Trainer,
                    index: placed.slot.index,
                    stage: 0,
                    endpoint: placed.endpoint?,
                    // Frameworks count by position, and each replica sees only its own.
                    devices: (0..gpus).map(|position| Device { label: position.to_string(), position }).collect(),
                })
            })
            .collect();
        let nodes = self
            .of_role(role)
            .map(|placed| Node { address: placed.host, host: placed.replica.clone(), size: 1 })
            .collect();
        let kind = (gpus > 0).then_some(DeviceKind::Gpu);
        Some(Topology::new(self.job.name.clone(), nodes, members, (stores.paddle, stores.torch), kind))
    }
}

/// Where gloo's processes of one group meet.
pub fn gloo_dir(scratch: &Path, role: &Role, of_job: u32) -> PathBuf {
    scratch.join(format!("gloo.{}.{of_job}", role.name))
}

/// Whether a variable of this name is one of [`Placement::common`], which nobody else sets.
fn is_common(name: &str) -> bool {
    matches!(name, "UMIAK_RUN" | "UMIAK_JOB" | "UMIAK_WORLD_SIZE")
        || name.starts_with("UMIAK_HOSTS_")
        || name.starts_with("UMIAK_ENDPOINTS_")
}

/// `PARAM_SERVER` for `param-server`.
pub fn variable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{JobId, Policy, PortNeed, Resources, RoleName};

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
        trainers.work.resources = Resources { cpu_millis: Some(1500), memory_bytes: None, gpus: 1 };
        Job {
            name: JobId::new("ctr").unwrap(),
            labels: BTreeMap::new(),
            contracts: vec![Contract::Paddle, Contract::Torch],
            roles: vec![servers, trainers],
            policy: Policy::default(),
        }
    }

    fn placement() -> Placement {
        let needs = needs(&job());
        assert_eq!(needs, Needs { addresses: 4, ports: 2 * 2 + 2 + 2, gpus: 2, cpus: 2 * 2 });
        let granted = Granted {
            addresses: (1..=4).map(|last| IpAddr::from([127, 3, 0, last])).collect(),
            ports: (0..needs.ports as u16).map(|port| Port::new(20_000 + port).unwrap()).collect(),
        };
        let submission = Submission {
            run: "run-000007".into(),
            umiak: "0".into(),
            engine: "local".into(),
            directory: "/home/li".into(),
            wishes: Wishes::default(),
            programs: vec!["/bin/sh".into(), "/usr/bin/python".into()],
        };
        place(job(), submission, granted)
    }

    fn variables(placement: &Placement, slot: Slot) -> BTreeMap<String, String> {
        let device = Device { label: "3".into(), position: 0 };
        let attempt =
            Attempt { slot, number: 2, of_job: 1, devices: &[device], dir: Path::new("/r/tasks/x/attempt-2") };
        let around = Surroundings::new(placement, BTreeMap::new(), 8, "/r/scratch".into());
        let process = placement.process(attempt, &around);
        placement.common().into_iter().chain(process.env).collect()
    }

    #[test]
    fn everybody_knows_where_everybody_is() {
        let placement = placement();
        let trainer = variables(&placement, Slot { role: 1, index: 1 });
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
        let server = variables(&placement, Slot { role: 0, index: 1 });
        assert_eq!(server["UMIAK_PORT_RPC"], "20002");
        assert_eq!(server["UMIAK_PORTS_RPC"], "20002,20003");
        assert_eq!(server["UMIAK_PORT_HTTP"], "8080");
        assert!(!server.contains_key("RANK"), "it is a rank of no group");
    }

    #[test]
    fn what_we_set_is_not_overridden() {
        let mut placement = placement();
        let names: Vec<String> = variables(&placement, Slot { role: 1, index: 1 }).into_keys().collect();
        let is_ours = |name: &str| name.starts_with("UMIAK_") || name == "POD_IP";
        let ours: Vec<String> = names.into_iter().filter(|name| is_ours(name)).collect();
        assert!(ours.len() > 10, "{ours:?}");
        let free = ["RANK", "UMIAK_HOME", "UMIAK_PORT", "UMIAK_PORT_OTHER"].map(str::to_owned);
        let own = ours.iter().chain(&free).map(|name| (name.clone(), "theirs".to_owned()));
        placement.job.roles[1].work.env = own.collect();
        let seen = variables(&placement, Slot { role: 1, index: 1 });
        let theirs: Vec<&String> = seen.iter().filter(|(_, value)| *value == "theirs").map(|(name, _)| name).collect();
        assert_eq!(theirs, free.iter().collect::<Vec<_>>());
        let work = &placement.job.roles[1].work;
        assert!(ours.iter().all(|name| work.is_given(name)) && !free.iter().any(|name| work.is_given(name)));
    }

    #[test]
    fn the_longest_variable_is_found() {
        let mut placement = placement();
        let check = |placement: &Placement| {
            placement.too_long(&Surroundings::new(placement, BTreeMap::new(), 8, "/r/scratch".into()))
        };
        assert_eq!(check(&placement), None);
        let mut with = |length: usize| {
            placement.job.roles[1].work.env = vec![("NAME".into(), "x".repeat(length))];
            check(&placement)
        };
        assert_eq!(with(MAX_VARIABLE - "NAME=".len() - 1), None);
        assert_eq!(with(MAX_VARIABLE - "NAME=".len()), Some(TooLong { name: "NAME".into(), bytes: MAX_VARIABLE + 1 }));
        let mut role = Role::new(RoleName::new("w").unwrap(), 12_000);
        role.work.command = vec!["true".into()];
        let job = Job { contracts: Vec::new(), roles: vec![role], ..job() };
        let addresses = (0..12_000u32).map(|index| IpAddr::from((0x7f03_0000 + index).to_be_bytes())).collect();
        let submission = Submission {
            run: String::new(),
            umiak: String::new(),
            engine: String::new(),
            directory: PathBuf::new(),
            wishes: Wishes::default(),
            programs: vec![PathBuf::new()],
        };
        let placement = place(job, submission, Granted { addresses, ports: Vec::new() });
        assert_eq!(check(&placement).map(|variable| variable.name), Some("UMIAK_HOSTS_W".to_owned()));
    }

    #[test]
    fn plans_are_read_back() {
        let placement = placement();
        let text = serde_json::to_string(&placement).unwrap();
        assert_eq!(serde_json::from_str::<Placement>(&text).unwrap(), placement);
    }
}
