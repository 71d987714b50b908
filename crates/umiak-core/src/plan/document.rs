//! From a job with roles and leased resources to a plan: the address, ports and command of each replica.
//!
//! [`needs`] computes what to lease; the caller leases it; [`place`] assigns it. The plan is valid for the whole run,
//! because replicas use each other's endpoints.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::contract::{Lazy, Member, Node, Options, Topology, umiak};
use crate::mask::Known;
use crate::model::{
    ClusterOptions, Device, DeviceKind, Endpoint, FIRST_ATTEMPT, Host, Job, NodeIndex, Part, Port, PortNeed, Rank,
    Role, Slot, StepName, Workload,
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
    }
    for group in groups(job) {
        let shares_port = job.roles[group[0]].part.is_some();
        let replicas = group.iter().map(|role| job.roles[*role].replicas);
        let endpoints = if shares_port { 1 } else { replicas.sum() };
        needs.ports = needs.ports.saturating_add(endpoints + u32::from(STORES));
    }
    needs
}

/// Number of ports of one replica that are not fixed.
fn free_ports(role: &Role) -> u32 {
    role.work.ports.iter().filter(|need| need.fixed.is_none()).map(|need| u32::from(need.count)).sum()
}

/// The groups of ranks: the roles of each, by position. The group whose last role comes first is first.
fn groups(job: &Job) -> Vec<Vec<usize>> {
    let is_member = |position: &usize| !contracts(job, &job.roles[*position]).is_empty();
    let members: Vec<usize> = (0..job.roles.len()).filter(is_member).collect();
    let (joined, alone): (Vec<usize>, Vec<usize>) =
        members.into_iter().partition(|position| job.roles[*position].part.is_some());
    let joined = Some(joined).filter(|joined| !joined.is_empty());
    let mut groups: Vec<Vec<usize>> = alone.into_iter().map(|role| vec![role]).chain(joined).collect();
    groups.sort_by_key(|group| group.last().copied());
    groups
}

/// The leased resources.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Granted {
    /// One for each replica, in the order of the roles.
    pub hosts: Vec<Host>,
    pub ports: Vec<Port>,
    /// Replicas may have the same host, so members of a group have different ports. The ports are those of [`port_owners`].
    pub by_owner: bool,
}

/// The replica, by rank, on whose host each port of [`Granted`] must be free, if replicas may have the same host.
pub fn port_owners(job: &Job) -> Vec<u32> {
    port_uses(job, true).into_iter().map(|(owner, _)| owner).collect()
}

/// What a port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PortUse {
    /// Of the replica itself.
    Own,
    /// Of all members of a group of several roles.
    Shared,
    /// Of a store of its group.
    Store,
}

/// The first port of replicas that each have an address, which is that of Paddle, and the first one of stores, which is that
/// of torch.
const FIRST_OWN: u16 = 6170;
const FIRST_STORE: u16 = 29500;

/// The ports of [`Granted`] for replicas that each have an address of their own: all replicas of a role have the same. `None`
/// if there are too few of them.
pub fn fixed_ports(job: &Job) -> Option<Vec<Port>> {
    let uses = port_uses(job, false);
    let mut taken: Vec<u16> =
        job.roles.iter().flat_map(|role| &role.work.ports).filter_map(|need| need.fixed).collect();
    let free = |first: u16, taken: &[u16]| (first..=u16::MAX).find(|port| !taken.contains(port));
    let shared = free(FIRST_OWN, &taken)?;
    if uses.iter().any(|(_, of)| *of == PortUse::Shared) {
        taken.push(shared);
    }
    let mut next: BTreeMap<(u32, PortUse), u16> = BTreeMap::new();
    let port = |(owner, of): (u32, PortUse)| {
        let first = match of {
            PortUse::Shared => return Port::new(shared),
            PortUse::Own => FIRST_OWN,
            PortUse::Store => FIRST_STORE,
        };
        let next = next.entry((owner, of)).or_insert(first);
        let port = free(*next, &taken).filter(|port| of == PortUse::Store || *port < FIRST_STORE)?;
        *next = port.checked_add(1)?;
        Port::new(port)
    };
    uses.into_iter().map(port).collect()
}

/// The replica and the use of each port, in the order in which [`place`] takes them.
fn port_uses(job: &Job, by_owner: bool) -> Vec<(u32, PortUse)> {
    let firsts: Vec<u32> = job
        .roles
        .iter()
        .scan(0, |next, role| {
            let first = *next;
            *next += role.replicas;
            Some(first)
        })
        .collect();
    let grouped = groups(job);
    let group_of = |position: usize| grouped.iter().position(|group| group.contains(&position));
    let stores = |owner: u32| std::iter::repeat_n((owner, PortUse::Store), STORES as usize);
    let mut owners = Vec::new();
    let mut is_joined = false;
    for (position, role) in job.roles.iter().enumerate() {
        let group = group_of(position);
        let is_part = group.is_some() && role.part.is_some();
        if is_part && !is_joined {
            is_joined = true;
            // The first rank of the group hosts its stores.
            let first = group.into_iter().flat_map(|group| &grouped[group]).min_by_key(|role| job.roles[**role].part);
            let owner = first.map_or(firsts[position], |role| firsts[*role]);
            owners.extend(stores(owner));
            owners.extend((!by_owner).then_some((owner, PortUse::Shared)));
        }
        for index in 0..role.replicas {
            let owner = firsts[position] + index;
            let own = free_ports(role) + u32::from(group.is_some() && (by_owner || !is_part));
            owners.extend(std::iter::repeat_n((owner, PortUse::Own), own as usize));
        }
        if !is_part && group.is_some_and(|group| grouped[group].last() == Some(&position)) {
            owners.extend(stores(firsts[position]));
        }
    }
    owners
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
    pub work: Workload,
    /// The parameters given on the command line.
    #[serde(default)]
    pub params: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Chosen::is_empty")]
    pub chosen: Chosen,
    /// The run of a pipeline whose finished steps are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<String>,
    pub engine: String,
    #[serde(default)]
    pub wishes: Wishes,
    /// Of engines that give the job to another scheduler.
    #[serde(default, skip_serializing_if = "ClusterOptions::is_default")]
    pub cluster: ClusterOptions,
    /// Secrets that are masked in everything that is written.
    #[serde(default)]
    pub known: Known,
    /// Directory where it was submitted.
    pub directory: PathBuf,
    /// The file of the document; its settings are beside it.
    pub document: PathBuf,
    /// The environment that the replicas inherit.
    pub environment: BTreeMap<String, String>,
    /// The resolved program of each role of the job. Those of a pipeline's steps are found when they start.
    pub programs: Vec<PathBuf>,
}

/// What the command line says about a document, beside its parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Chosen {
    /// Steps that are skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disabled: Vec<String>,
    /// Directories of file systems, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filesystems: Vec<(String, String)>,
    /// Resources of flavours, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flavours: Vec<(String, String)>,
}

impl Chosen {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The properties of a run, and of a step, that its plan needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunPlace {
    pub run: String,
    /// The step, if the run has several jobs.
    pub step: Option<StepName>,
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

/// Assigns the leased resources to a job: the submitted one, or a step's. `granted` must cover [`needs`].
pub fn place(submission: &Submission, job: &Job, programs: &[PathBuf], place: RunPlace, granted: Granted) -> Plan {
    let Submission { params, engine, wishes, cluster, directory, document, environment, .. } = submission;
    let mut hosts = granted.hosts.into_iter();
    let mut ports = granted.ports.into_iter();
    let mut take = |count: u16| ports.by_ref().take(count as usize).collect::<Vec<Port>>();
    let mut replicas: Vec<Replica> = Vec::new();
    let grouped = groups(job);
    let mut groups = Vec::new();
    // Members of several roles have one port: a program may expect that of the addresses in a list.
    let mut joined: Option<(Vec<Port>, Option<Port>)> = None;
    for (position, role) in job.roles.iter().enumerate() {
        let group = grouped.iter().position(|group| group.contains(&position));
        if group.is_some() && role.part.is_some() && joined.is_none() {
            joined = Some((take(STORES), (!granted.by_owner).then(|| take(1)[0])));
        }
        for index in 0..role.replicas {
            let host = hosts.next().expect("as many hosts as replicas");
            let of_name = |need: &PortNeed| match need.fixed.and_then(Port::new) {
                Some(port) => (need.name.clone(), vec![port]),
                None => (need.name.clone(), take(need.count)),
            };
            let own = role.work.ports.iter().map(of_name).collect();
            let shared = joined.as_ref().filter(|_| role.part.is_some()).and_then(|(_, port)| *port);
            let endpoint =
                group.map(|_| Endpoint { address: host.clone(), port: shared.unwrap_or_else(|| take(1)[0]) });
            replicas.push(Replica {
                name: format!("{}-{index}", role.name),
                slot: Slot { role: position as u16, index },
                index,
                rank: Rank(replicas.len() as u32),
                endpoint,
                host,
                ports: own,
                devices: Vec::new(),
                cpus: Vec::new(),
                log: None,
                member: None,
                env: Vec::new(),
            });
        }
        if let Some(group) = group.filter(|group| grouped[*group].last() == Some(&position)) {
            let stores = match &joined {
                Some((stores, _)) if role.part.is_some() => stores.clone(),
                _ => take(STORES),
            };
            groups.push(topology(job, &mut replicas, (group, &grouped[group]), &stores));
        }
    }
    let RunPlace { run, step, user, cpus, tasks, scratch, attached } = place;
    let argv = job.roles.iter().map(|role| role.work.command.iter().map(OsString::from).collect());
    let commands = programs.iter().cloned().zip(argv).map(|(program, argv)| Resolved { program, argv });
    let mut plan = Plan {
        v: VERSION,
        dry_run: false,
        umiak: env!("CARGO_PKG_VERSION").to_owned(),
        run: Some(run),
        step,
        name: job.name.to_string(),
        line: String::new(),
        params: params.clone(),
        engine: engine.clone(),
        directory: directory.clone(),
        document: Some(document.clone()),
        wishes: *wishes,
        cluster: cluster.clone(),
        attempt: FIRST_ATTEMPT,
        commands: commands.collect(),
        job: job.clone(),
        whole: true,
        groups,
        logs: LogLayout::Attempts { dir: tasks },
        streams: None,
        substitutes: false,
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
        manifests: Vec::new(),
        notices: Vec::new(),
        script: None,
        places: Lazy::default(),
    };
    let common = umiak::common(plan.run.as_deref().unwrap_or_default(), &plan.job.name, plan.places());
    plan.common = unbuffered(environment).into_iter().chain(common).collect();
    plan
}

/// The ranks of some roles, each on its own host: by part, then in the order of the roles. The first one hosts the stores.
fn topology(job: &Job, replicas: &mut [Replica], (group, roles): (usize, &[usize]), stores: &[Port]) -> Topology {
    let part = |replica: &Replica| job.roles[replica.slot.role as usize].part.unwrap_or_default();
    let mut ranks: Vec<&mut Replica> =
        replicas.iter_mut().filter(|replica| roles.contains(&(replica.slot.role as usize))).collect();
    ranks.sort_by_key(|replica| part(replica));
    let mut counts = [0; Part::ALL.len()];
    let (mut nodes, mut members) = (Vec::new(), Vec::new());
    for (rank, replica) in (0..).zip(&mut ranks) {
        replica.member = Some(Membership { group: group as u16, member: rank });
        let Some(endpoint) = replica.endpoint.clone() else { continue };
        let count = &mut counts[part(replica) as usize];
        let index = *count;
        *count += 1;
        let gpus = job.roles[replica.slot.role as usize].work.resources.gpus;
        nodes.push(Node { address: replica.host.clone(), host: replica.name.clone(), size: 1 });
        members.push(Member {
            rank: Rank(rank),
            node: NodeIndex(rank),
            local_rank: 0,
            part: part(replica),
            index,
            stage: 0,
            endpoint,
            // Frameworks number devices by position, and each replica sees only its own.
            devices: (0..gpus).map(|position| Device { label: position.to_string(), position }).collect(),
        });
    }
    let kind = members.iter().any(|member| !member.devices.is_empty()).then_some(DeviceKind::Gpu);
    let host = nodes.first().map(|node| node.address.clone()).expect("a role has at least one replica");
    let store = |port: usize| Endpoint { address: host.clone(), port: stores[port] };
    let topology = Topology::new(job.name.clone(), nodes, members, (store(0), store(1)), kind);
    if job.agent_store { topology.with_agent_store(store(1)) } else { topology }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::path::Path;

    use crate::contract::mpi;
    use crate::model::{Contract, Framework, JobId, Mount, Policy, Resources, RoleName};
    use crate::plan::Remote;
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
        trainers.work.resources =
            Resources { cpu_millis: Some(1500), memory_bytes: None, gpus: 1, shm_bytes: None, storage_bytes: None };
        Job {
            name: JobId::new("ctr").unwrap(),
            labels: BTreeMap::new(),
            agent_store: false,
            contracts: vec![Contract::Paddle, Contract::Torch],
            roles: vec![servers, trainers],
            policy: Policy::default(),
        }
    }

    fn placed(job: &Job, programs: &[&str], granted: Granted) -> Plan {
        let submission = Submission {
            v: SUBMISSION_VERSION,
            params: Vec::new(),
            chosen: Chosen::default(),
            repeats: None,
            work: Workload::Job(Box::new(job.clone())),
            engine: "local".into(),
            wishes: Wishes::default(),
            cluster: ClusterOptions::default(),
            known: Known::default(),
            directory: "/home/li".into(),
            document: "/home/li/job.yaml".into(),
            environment: BTreeMap::new(),
            programs: programs.iter().map(PathBuf::from).collect(),
        };
        let programs = submission.programs.clone();
        let (run, tasks, scratch) = ("run-000007".into(), "/r/tasks".into(), "/r/scratch".into());
        let step = None;
        place(
            &submission,
            job,
            &programs,
            RunPlace { run, step, user: "li".into(), cpus: 8, tasks, scratch, attached: true },
            granted,
        )
    }

    pub(in crate::plan) fn plan() -> Plan {
        let needs = needs(&job());
        assert_eq!(needs, Needs { addresses: 4, ports: 2 * 2 + 2 + 2, gpus: 2, cpus: 2 * 2 });
        let granted = Granted {
            hosts: (1..=4).map(|last| Host::from([127, 3, 0, last])).collect(),
            ports: (0..needs.ports as u16).map(|port| Port::new(20_000 + port).unwrap()).collect(),
            by_owner: false,
        };
        placed(&job(), &["/bin/sh", "/usr/bin/python"], granted)
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
    fn roles_with_parts_are_one_group() {
        let role =
            |name: &str, replicas, part| Role { part: Some(part), ..Role::new(RoleName::new(name).unwrap(), replicas) };
        let mut servers = role("pserver", 1, Part::Server);
        servers.completion.decides = false;
        servers.work.ports = vec![PortNeed { name: "rpc".into(), count: 1, fixed: None }];
        let mut alone = Role::new(RoleName::new("eval").unwrap(), 1);
        alone.work.contracts = Some(vec![Contract::Torch]);
        let more = Role { name: RoleName::new("pserver-2").unwrap(), ..servers.clone() };
        let roles = vec![role("worker", 2, Part::Trainer), servers, alone, more];
        let job = Job { contracts: vec![Contract::PaddleJob], roles, ..job() };
        // One port for all members, two for their stores, one for each server; the role on its own has three.
        assert_eq!(needs(&job).ports, 1 + 2 + 2 + 3);
        let granted = Granted {
            hosts: (1..=5).map(|last| Host::from([127, 3, 0, last])).collect(),
            ports: (20_000..20_008).filter_map(Port::new).collect(),
            by_owner: false,
        };
        let plan = placed(&job, &["/bin/true"; 4], granted);
        let ranks = |group: usize| -> Vec<(u32, Part, u32, String)> {
            let member = |member: &Member| (member.rank.0, member.part, member.index, member.endpoint.to_string());
            plan.groups[group].members.iter().map(member).collect()
        };
        assert_eq!(ranks(0), [(0, Part::Trainer, 0, "127.3.0.4:20004".to_owned())]);
        let at = |last| format!("127.3.0.{last}:20002");
        assert_eq!(
            ranks(1),
            [
                (0, Part::Server, 0, at(3)),
                (1, Part::Server, 1, at(5)),
                (2, Part::Trainer, 0, at(1)),
                (3, Part::Trainer, 1, at(2)),
            ]
        );
        for (role, index, expected) in [
            (0, 1, ["TRAINER", "1", "127.3.0.2"]),
            (1, 0, ["PSERVER", "0", "127.3.0.3"]),
            (3, 0, ["PSERVER", "1", "127.3.0.5"]),
        ] {
            let seen = variables(&plan, Slot { role, index });
            assert_eq!(["TRAINING_ROLE", "PADDLE_TRAINER_ID", "POD_IP"].map(|name| &seen[name]), expected);
            for (name, value) in [
                ("PADDLE_PSERVERS_IP_PORT_LIST", "127.3.0.3:20002,127.3.0.5:20002"),
                ("PADDLE_TRAINER_ENDPOINTS", "127.3.0.1:20002,127.3.0.2:20002"),
                ("PADDLE_TRAINERS", "127.3.0.1,127.3.0.2"),
                ("PADDLE_TRAINERS_NUM", "2"),
                ("PADDLE_NNODES", "4"),
                ("PADDLE_PORT", "20002"),
                ("PADDLE_WITH_GLOO", "1"),
                ("PADDLE_GLOO_RENDEZVOUS", "3"),
                ("PADDLE_GLOO_HTTP_ENDPOINT", "127.3.0.3:20000"),
                ("PADDLE_MASTER", "127.3.0.3:20001"),
            ] {
                assert_eq!(seen.get(name).map(String::as_str), Some(value), "{name}");
            }
            let counts = ["PADDLE_SERVER_NUM", "PADDLE_TRAINER_NUM"].map(|name| seen.contains_key(name));
            assert_eq!(counts, [role != 0, role == 0]);
        }
    }

    /// The plan of a distributed job with a role for each word.
    fn distributed(framework: Framework, roles: &[(&str, u32)]) -> Plan {
        let role = |(word, replicas): &(&str, u32)| Role {
            part: framework.part(word),
            ..Role::new(RoleName::new(*word).unwrap(), *replicas)
        };
        let mut job = Job { roles: roles.iter().map(role).collect(), ..job() };
        framework.arrange(&mut job);
        let needs = needs(&job);
        let granted = Granted {
            hosts: (1..=needs.addresses as u8).map(|last| Host::from([127, 3, 0, last])).collect(),
            ports: (20_000..).take(needs.ports as usize).filter_map(Port::new).collect(),
            by_owner: false,
        };
        let programs = vec!["/bin/true"; job.roles.len()];
        placed(&job, &programs, granted)
    }

    #[test]
    fn the_master_of_a_pytorch_job_is_rank_0() {
        // Without a master, the first worker is.
        for (roles, slots) in [
            (&[("worker", 2), ("master", 1)][..], &[(1, 0), (0, 0), (0, 1)][..]),
            (&[("worker", 1), ("pworker", 2)], &[(0, 0), (1, 0), (1, 1)]),
        ] {
            let plan = distributed(Framework::Pytorch, roles);
            let master = plan.at(Slot { role: slots[0].0, index: 0 }).unwrap().host.to_string();
            for (rank, (role, index)) in slots.iter().enumerate() {
                let seen = variables(&plan, Slot { role: *role, index: *index });
                let port = plan.groups[0].torch_store.port.get().to_string();
                for (name, value) in [
                    ("RANK", rank.to_string()),
                    ("WORLD_SIZE", "3".to_owned()),
                    ("LOCAL_RANK", "0".to_owned()),
                    ("MASTER_ADDR", master.clone()),
                    ("MASTER_PORT", port.clone()),
                    ("PET_NNODES", "3".to_owned()),
                    ("PET_NODE_RANK", rank.to_string()),
                    ("PET_NPROC_PER_NODE", "1".to_owned()),
                    ("PET_MASTER_ADDR", master.clone()),
                    ("PET_MASTER_PORT", port.clone()),
                ] {
                    assert_eq!(seen[name], value, "{name} of {roles:?} {rank}");
                }
            }
        }
    }

    #[test]
    fn tensorflow_has_its_cluster_in_one_variable() {
        let plan = distributed(Framework::Tensorflow, &[("worker", 2), ("pserver", 1), ("master", 1)]);
        assert_eq!(
            variables(&plan, Slot { role: 2, index: 0 })["TF_CONFIG"],
            r#"{"cluster":{"ps":["127.3.0.3:20002","127.3.0.4:20002"],"worker":["127.3.0.1:20002","127.3.0.2:20002"]},"task":{"type":"ps","index":1},"environment":"cloud"}"#
        );
        assert!(variables(&plan, Slot { role: 0, index: 1 })["TF_CONFIG"].contains(r#"{"type":"worker","index":1}"#));
    }

    #[test]
    fn the_launcher_of_mpi_finds_its_workers() {
        let mut plan = distributed(Framework::Mpi, &[("master", 1), ("worker", 2), ("pworker", 1)]);
        plan.job.roles[1].work.resources.gpus = 4;
        plan.job.roles[2].work.resources.cpu_millis = Some(1500);
        let given = Given::default();
        let process = |role, index| {
            let slot = Slot { role, index };
            plan.process(&crate::plan::Attempt { slot, number: 1, of_job: 1, retries: 0, given: &given })
        };
        let launcher = process(0, 0);
        let Some(Remote::Launcher { sockets, slots }) = &launcher.remote else { panic!("{launcher:?}") };
        let [open, hydra] = mpi::host_files(slots);
        assert_eq!(open.1, "127.3.0.2 slots=4\n127.3.0.3 slots=4\n127.3.0.4 slots=2\n");
        assert_eq!(hydra.1, "127.3.0.2:4\n127.3.0.3:4\n127.3.0.4:2\n");
        let seen = variables(&plan, Slot { role: 0, index: 0 });
        let attempt = plan.attempt_dir(&plan.replicas[0], 2).unwrap();
        for (name, file) in [
            ("OMPI_MCA_orte_default_hostfile", open.0),
            ("PRTE_MCA_prte_default_hostfile", open.0),
            ("HYDRA_HOST_FILE", hydra.0),
            ("OMPI_MCA_plm_rsh_agent", mpi::REMOTE_SHELL),
        ] {
            assert_eq!(seen[name], attempt.join(file).to_str().unwrap(), "{name}");
        }
        let worker = Remote::Worker { sockets: sockets.clone(), host: Host::from([127, 3, 0, 4]) };
        assert_eq!(process(2, 0).remote, Some(worker));
        let seen = variables(&plan, Slot { role: 1, index: 1 });
        assert!(!seen.contains_key("OMPI_MCA_plm_rsh_agent"));
        assert!(seen["OMPI_MCA_btl_vader_backing_directory"].ends_with("/127.3.0.3.tmp"), "{seen:?}");
    }

    #[test]
    fn members_that_decide() {
        let decides = |framework, roles: &[(&str, u32)]| -> Vec<bool> {
            distributed(framework, roles).job.roles.iter().map(|role| role.completion.decides).collect()
        };
        assert_eq!(decides(Framework::Paddle, &[("pserver", 2), ("pworker", 2)]), [false, true]);
        assert_eq!(decides(Framework::Pytorch, &[("worker", 2), ("master", 1)]), [false, true]);
        assert_eq!(decides(Framework::Pytorch, &[("worker", 2), ("worker", 1)]), [true, true]);
        assert_eq!(decides(Framework::Tensorflow, &[("pserver", 1), ("worker", 2)]), [false, true]);
        assert_eq!(Framework::Paddle.part("master"), None, "refused, as by the operator");
    }

    #[test]
    fn paths_of_mounts_are_found_on_the_host() {
        let mount =
            |dir: &str, path: &str| Mount { name: String::new(), dir: dir.into(), path: path.into(), read_only: false };
        let mut work = job().roles.remove(1).work;
        work.mounts = vec![mount("data", "/d"), mount("/in", "/d/e"), mount("/later", "/d")];
        for (path, expected) in [("/d/x", "/later/x"), ("/d/e/x", "/in/x"), ("/dd", "/dd"), ("/d", "/later/")] {
            assert_eq!(work.on_host(Path::new(path), Path::new("/home")), Path::new(expected), "{path}");
        }
        work.mounts.truncate(2);
        assert_eq!(work.on_host(Path::new("/d/x"), Path::new("/home")), Path::new("/home/data/x"));
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
        let plan = placed(&job, &["/bin/true"], Granted { hosts, ..Granted::default() });
        assert_eq!(check(&plan).map(|(name, _)| name), Some("UMIAK_HOSTS_W".to_owned()));
    }

    #[test]
    fn plans_are_read_back() {
        let plan = plan();
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}
