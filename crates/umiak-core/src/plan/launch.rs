//! A launch command line plus this host's inventory, to the plan of one node.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::contract::{Member, Topology, Variable, paddle, rpc, servers, torch};
use crate::diag::{Code, Diagnostic};
use crate::formats::launch::{
    Backend, Compat, Crew, LaunchSpec, LogNames, Mode, Nodes, PortRequest, ServerMode, Spelling,
};
use crate::model::{
    Contract, Device, DeviceKind, Endpoint, Job, NodeIndex, Part, Policy, Port, Rank, Restart, Slot, StartAfter,
    StopPolicy, When,
};

use super::command::Resolved;
use super::devices::{self, Assignment};
use super::files::{self, FilePlan};
use super::seats::{self, Seat};
use super::share::Share;
use super::{Address, Inventory, nodes, numa};

/// What is known before ports are: how many processes, on which address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub assignment: Assignment,
    /// This node's, as far as it is known: with a master and without `--host` it is the one that reaches the master.
    pub address: Option<IpAddr>,
    /// This node's processes, with the devices of each in the assignment.
    pub seats: Vec<Seat>,
    /// The first store's port, where the command line says it: gloo's processes meet there.
    pub store: Option<Port>,
    /// Ports for the frameworks' stores.
    pub stores: u16,
}

/// Ports that were leased for a [`Layout`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    /// One for each seat.
    pub endpoints: Vec<Port>,
    pub stores: Vec<Port>,
}

/// What is particular to this run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Six letters, as Paddle names its pods.
    pub pod_name: String,
    /// A directory of ours that is removed at the end.
    pub scratch: PathBuf,
    /// Absolute.
    pub log_dir: PathBuf,
    pub command: Resolved,
    /// Which start of the whole group, from 0.
    pub attempt: u32,
}

impl Run {
    /// Where gloo's processes of this attempt meet: what an old attempt left there would mislead them.
    pub fn gloo_dir(&self) -> PathBuf {
        self.scratch.join(format!("gloo.{}", self.attempt))
    }
}

/// What will be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub job: Job,
    /// All nodes, all ranks.
    pub topology: Topology,
    pub log_dir: PathBuf,
    pub pod_name: String,
    /// This node's, by rank. The index in a slot is the position here; the rank counts over all nodes.
    pub replicas: Vec<ReplicaPlan>,
    /// Taken out of every rank's environment.
    pub unset: Vec<String>,
    /// Put into every rank's environment.
    pub common: Vec<Variable>,
    /// Servers on other nodes that must answer before trainers start here.
    pub awaited: Vec<Awaited>,
    /// Written before the first rank starts, or soon after.
    pub files: Vec<FilePlan>,
    pub notices: Vec<Diagnostic>,
}

/// A server that must answer before trainers start: at its own port, or at one that it opens first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awaited {
    /// `host:port`, as people know it.
    pub name: String,
    /// Any of these: `host:port`.
    pub at: Vec<String>,
}

/// One rank of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaPlan {
    pub slot: Slot,
    pub rank: Rank,
    pub part: Part,
    /// Among those of its part, over all nodes: `trainer-3`.
    pub index: u32,
    pub node: IpAddr,
    pub endpoint: Endpoint,
    pub devices: Vec<Device>,
    pub program: PathBuf,
    pub argv: Vec<OsString>,
    pub env: Vec<Variable>,
    pub log: PathBuf,
    /// Where it answers when it is ready, if somebody waits for that.
    pub answers: Option<Awaited>,
    /// Where torch may leave its error.
    pub error_file: PathBuf,
    pub inherit_stdin: bool,
    /// Where it may run; empty for anywhere.
    pub cpus: Vec<u32>,
}

impl Plan {
    /// The lowest rank of this node: its others follow.
    pub fn first_rank(&self) -> Rank {
        self.replicas.first().map_or(Rank(0), |replica| replica.rank)
    }

    /// The plan of the rank, if it is one of this node's.
    pub fn replica(&self, rank: Rank) -> Option<&ReplicaPlan> {
        self.replicas.get(rank.0.checked_sub(self.first_rank().0)? as usize)
    }

    /// The plan of one of this node's. They stand in the order of the roles.
    pub fn at(&self, slot: Slot) -> Option<&ReplicaPlan> {
        let lower: u32 = self.job.roles.get(..slot.role as usize)?.iter().map(|role| role.replicas).sum();
        self.replicas.get((lower + slot.index) as usize).filter(|replica| replica.slot == slot)
    }

    /// What the replicas of each role are numbered, in the order of their slots.
    pub fn numbers(&self) -> Vec<Vec<u32>> {
        let mut numbers = vec![Vec::new(); self.job.roles.len()];
        for replica in &self.replicas {
            numbers[replica.slot.role as usize].push(replica.index);
        }
        numbers
    }

    /// The one whose output is on the console: the first trainer, if there is one here.
    pub fn mirrored(&self) -> Option<&ReplicaPlan> {
        self.replicas.iter().find(|replica| replica.part == Part::Trainer)
    }
}

/// Paddle's store and torch's.
const STORES: u16 = 2;

/// Processes on one node.
const MOST: usize = 20_000;

/// Where gloo's processes meet.
const GLOO: &str = "PADDLE_GLOO_HTTP_ENDPOINT";

/// What nodes prove to each other is no business of the ranks.
const TOKEN: &str = "UMIAK_TOKEN";

/// How many processes and ports, and on which address.
pub fn layout(spec: &LaunchSpec, inventory: &Inventory) -> Result<Layout, Diagnostic> {
    let address = address(spec, &inventory.addresses)?;
    let (assignment, seats) = match &spec.mode {
        Mode::Collective | Mode::Rpc => {
            let assignment = devices::assign(spec, inventory)?;
            let seats = seats::seats(spec, address, assignment.processes.len());
            (assignment, seats)
        }
        Mode::Servers(_) => {
            let seats = seats::seats(spec, address, 0);
            (devices::assign_to(spec, inventory, &seats)?, seats)
        }
    };
    let processes = seats.len();
    if processes > MOST {
        let message = format!("{processes} processes on one node need more ports than there are");
        return Err(Diagnostic::error(Code::L0010, message).hint("start fewer processes with `--nproc_per_node`"));
    }
    let store = match &spec.mode {
        Mode::Servers(mode) => mode.gloo_port.filter(|_| may_host_gloo(mode, address, &seats)),
        Mode::Collective | Mode::Rpc => None,
    };
    Ok(Layout { assignment, address, seats, store, stores: STORES })
}

/// The first server hosts gloo's rendezvous. Where servers are only counted, it is not known yet which node has that one.
fn may_host_gloo(mode: &ServerMode, address: Option<IpAddr>, seats: &[Seat]) -> bool {
    match &mode.servers {
        Crew::Listed(list) if mode.pod.is_none() => list.first().map(|first| first.address) == address,
        _ => seats.first().is_some_and(|seat| seat.part == Part::Server),
    }
}

/// The address of this node: `--ips`, `--host`; for one node else loopback.
fn address(spec: &LaunchSpec, own: &[Address]) -> Result<Option<IpAddr>, Diagnostic> {
    match &spec.nodes {
        Nodes::One => {}
        Nodes::List { addresses, source } => {
            return nodes::own_index(addresses, source, own, spec.host).map(|index| Some(addresses[index]));
        }
        Nodes::Master { .. } | Nodes::Auto { .. } => return Ok(spec.host),
    }
    let Some(listed) = spec.ip else { return Ok(Some(spec.host.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)))) };
    let source = if matches!(spec.mode, Mode::Servers(_)) { "--servers" } else { "--ips" };
    let is_own = listed.is_loopback() || own.iter().any(|address| address.ip == listed);
    if is_own || spec.host == Some(listed) { Ok(Some(listed)) } else { Err(nodes::not_listed(&[listed], source, own)) }
}

/// The plan of this node, now that everybody's place is known.
pub fn finish(spec: &LaunchSpec, inventory: &Inventory, layout: Layout, share: Share, run: &Run) -> Plan {
    let Layout { assignment, .. } = layout;
    let (topology, you) = share.into_parts();
    let address = topology.nodes[you.0 as usize].address;
    let contract = ContractOptions { spec, inventory, run, topology: &topology };
    let parts = topology.parts();
    let role_of = |part: Part| parts.iter().position(|other| *other == part).unwrap_or(0) as u16;
    let gloo = vec![(GLOO.to_owned(), topology.paddle_store.to_string())];
    let gloo = as_placed(spec, inventory, gloo).remove(0).1;
    let mut taken = vec![0; parts.len()];
    let sole = topology.members.len() == 1;
    let cpus = if spec.own.numa {
        numa::bind(inventory, &assignment.processes)
    } else {
        vec![Vec::new(); assignment.processes.len()]
    };
    let replicas: Vec<ReplicaPlan> = topology
        .members
        .iter()
        .filter(|member| member.node == you)
        .map(|member| {
            let role = role_of(member.part);
            let slot = Slot { role, index: taken[role as usize] };
            taken[role as usize] += 1;
            let number = match spec.own.log_names {
                LogNames::Global => member.index,
                LogNames::Local => slot.index,
            };
            ReplicaPlan {
                slot,
                rank: member.rank,
                part: member.part,
                index: member.index,
                node: address,
                endpoint: member.endpoint,
                devices: member.devices.clone(),
                program: run.command.program.clone(),
                argv: run.command.argv.clone(),
                env: contract.variables(member),
                log: run.log_dir.join(format!("{}.{number}", member.part.log_stem())),
                answers: (member.part == Part::Server)
                    .then(|| answers_at(spec, &gloo, member.endpoint.to_string(), member.index)),
                error_file: contract.error_file(member),
                inherit_stdin: sole,
                cpus: cpus[member.local_rank as usize].clone(),
            }
        })
        .collect();
    let mut unset = vec!["http_proxy".to_owned(), "https_proxy".to_owned()];
    let has_endpoints = |replica: &ReplicaPlan| replica.env.iter().any(|(name, _)| name == "PADDLE_TRAINER_ENDPOINTS");
    if spec.mode != Mode::Rpc && replicas.first().is_some_and(|first| !has_endpoints(first)) {
        unset.push("PADDLE_TRAINER_ENDPOINTS".to_owned());
    }
    if inventory.env.contains_key(TOKEN) {
        unset.push(TOKEN.to_owned());
    }
    let mut common = common(spec, inventory, &assignment);
    let mut notices = spec.notices.clone();
    notices.extend(assignment.notices.clone());
    if spec.own.numa && inventory.numa_nodes.len() < 2 {
        notices.push(Diagnostic::notice(Code::L0023, "`--numa` has no effect: this host has one NUMA node"));
    }
    if topology.nodes.len() > 1 {
        match nodes::interface(address, inventory) {
            Ok(variables) => common.extend(variables),
            Err(notice) => notices.push(notice),
        }
    }
    let mut plan = Plan {
        job: job(spec, &parts, &taken),
        awaited: awaited(spec, &topology, you, &gloo),
        topology,
        log_dir: run.log_dir.clone(),
        pod_name: run.pod_name.clone(),
        replicas,
        unset,
        common,
        files: Vec::new(),
        notices,
    };
    plan.files = files::all(spec, &plan);
    plan
}

/// What a platform has said of the pod stays as it is: names of hosts, for one, are better than the addresses behind them.
/// It is given, and not only left alone: what nobody is given may be taken away.
fn as_placed(spec: &LaunchSpec, inventory: &Inventory, mut variables: Vec<Variable>) -> Vec<Variable> {
    if matches!(&spec.mode, Mode::Servers(mode) if mode.pod.is_some()) {
        for (name, value) in &mut variables {
            if let Some(said) = inventory.env.get(name) {
                value.clone_from(said);
            }
        }
    }
    variables
}

/// The roles that the job has on any node, with as many replicas as there are here.
fn job(spec: &LaunchSpec, parts: &[Part], replicas: &[u32]) -> Job {
    let servers = parts.iter().position(|part| *part == Part::Server);
    let roles = parts.iter().zip(replicas).map(|(part, replicas)| {
        let mut role = part.as_role(*replicas);
        match servers {
            Some(_) if *part == Part::Server => {
                role.timeouts.start = Some(spec.own.server_timeout).filter(|time| !time.is_zero());
            }
            // Whoever needs servers waits for all of them.
            Some(servers) => {
                let when = if spec.own.server_timeout.is_zero() { When::Started } else { When::Ready };
                role.start_after = vec![StartAfter { role: servers as u16, when }];
            }
            None => {}
        }
        role
    });
    Job {
        name: spec.job_id.clone(),
        labels: BTreeMap::new(),
        contracts: match spec.mode {
            Mode::Servers(_) => vec![Contract::Paddle],
            Mode::Collective | Mode::Rpc => vec![Contract::Paddle, Contract::Torch],
        },
        roles: roles.collect(),
        policy: policy(spec),
    }
}

/// Servers on other nodes, where somebody here waits for servers.
fn awaited(spec: &LaunchSpec, topology: &Topology, you: NodeIndex, gloo: &str) -> Vec<Awaited> {
    let somebody_waits = topology.members.iter().any(|member| member.node == you && member.part != Part::Server);
    if !somebody_waits || spec.own.server_timeout.is_zero() {
        return Vec::new();
    }
    if let Mode::Servers(mode) = &spec.mode
        && let Some(pod) = &mode.pod
    {
        let servers = pod.servers.iter().zip(0..);
        return servers.map(|(server, index)| answers_at(spec, gloo, server.clone(), index)).collect();
    }
    let elsewhere = topology.members.iter().filter(|member| member.part == Part::Server && member.node != you);
    elsewhere.map(|member| answers_at(spec, gloo, member.endpoint.to_string(), member.index)).collect()
}

/// Where a server answers. With gloo the first of them hosts its rendezvous, and opens its own port only when all trainers
/// have been there: waiting for that would never end.
fn answers_at(spec: &LaunchSpec, gloo: &str, name: String, index: u32) -> Awaited {
    let with_gloo = match &spec.mode {
        Mode::Servers(mode) => mode.with_gloo != "0",
        Mode::Collective | Mode::Rpc => false,
    };
    let gloo = (with_gloo && index == 0).then(|| gloo.to_owned());
    Awaited { at: [name.clone()].into_iter().chain(gloo).collect(), name }
}

/// What a command line says about stopping and starting again.
pub fn policy(spec: &LaunchSpec) -> Policy {
    Policy {
        restart: restart(spec),
        stop: StopPolicy { grace: spec.own.grace, ..StopPolicy::default() },
        ..Policy::default()
    }
}

fn restart(spec: &LaunchSpec) -> Restart {
    let default = Restart::default();
    Restart {
        max: spec.max_restart.unwrap_or(default.max),
        backoff: spec.own.restart_backoff,
        // Who asks for a longer first wait than the limit gets it.
        max_backoff: default.max_backoff.max(spec.own.restart_backoff),
        window: spec.own.restart_window,
        ..default
    }
}

/// Proxies that are put aside under another name. The legacy launcher, called directly, only drops them.
pub(super) fn kept_proxies(spec: &LaunchSpec, inventory: &Inventory) -> Vec<&'static str> {
    if matches!(spec.spelling, Spelling::FleetModule { .. }) {
        return Vec::new();
    }
    ["http_proxy", "https_proxy"].into_iter().filter(|name| inventory.env.contains_key(*name)).collect()
}

/// Variables that are the same for all ranks.
fn common(spec: &LaunchSpec, inventory: &Inventory, assignment: &Assignment) -> Vec<Variable> {
    let mut common = Vec::new();
    let mut set = |name: &str, value: String| common.push((name.to_owned(), value));
    let is_set = |name: &str| inventory.env.contains_key(name);
    for name in kept_proxies(spec, inventory) {
        set(&format!("{name}_original"), inventory.env[name].clone());
    }
    if !is_set("OMP_NUM_THREADS") {
        let share = match spec.own.compat {
            Compat::Paddle => 1,
            Compat::None => (inventory.cpus / assignment.processes.len()).max(1),
        };
        set("OMP_NUM_THREADS", share.to_string());
    }
    // A side effect of Paddle's launcher being a program that imports the framework; scripts may look at it.
    if !is_set("CUSTOM_DEVICE_ROOT") {
        set("CUSTOM_DEVICE_ROOT", String::new());
    }
    if let (Some(kind), Some(visible)) = (assignment.kind, &assignment.visible) {
        set(kind.visible_variable(), visible.clone());
    }
    // Our numbers are by PCI address; without this CUDA would count by speed.
    if assignment.kind == Some(DeviceKind::Gpu) && !is_set("CUDA_DEVICE_ORDER") {
        set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
    }
    common
}

struct ContractOptions<'a> {
    spec: &'a LaunchSpec,
    inventory: &'a Inventory,
    run: &'a Run,
    topology: &'a Topology,
}

impl ContractOptions<'_> {
    fn variables(&self, member: &Member) -> Vec<Variable> {
        if let Mode::Servers(mode) = &self.spec.mode {
            let variables = servers::variables(self.topology, member, &self.servers(mode, member));
            return as_placed(self.spec, self.inventory, variables);
        }
        let mut variables = match self.spec.mode {
            Mode::Rpc => rpc::variables(self.topology, member, &self.paddle(member)),
            _ => paddle::variables(self.topology, member, &self.paddle(member)),
        };
        variables.extend(torch::variables(self.topology, member, &self.torch(member)));
        variables
    }

    fn paddle(&self, member: &Member) -> paddle::Options {
        paddle_options(self.spec, self.inventory, self.topology, self.run, member)
    }

    fn servers(&self, mode: &ServerMode, member: &Member) -> servers::Options {
        let paddle = self.paddle(member);
        let stages = match mode.stages.as_slice() {
            [] => Vec::new(),
            stages => ["cpu"].into_iter().chain(stages.iter().map(|stage| stage.device.as_str())).collect(),
        };
        servers::Options {
            generation: paddle.generation,
            pod_name: paddle.pod_name,
            log_dir: paddle.log_dir,
            gloo_dir: paddle.gloo_dir,
            backup_env_path: paddle.backup_env_path,
            env_limit: paddle.env_limit,
            with_gloo: mode.with_gloo.clone(),
            stages: stages.into_iter().map(str::to_owned).collect(),
        }
    }

    fn error_file(&self, member: &Member) -> PathBuf {
        self.run.scratch.join(format!("error.{}.{}.json", self.run.attempt, member.rank.0))
    }

    fn torch(&self, member: &Member) -> torch::Options {
        torch::Options {
            attempt: self.run.attempt,
            max_restarts: self.spec.max_restart.unwrap_or(0),
            error_file: self.error_file(member).to_string_lossy().into_owned(),
            async_error_handling_is_set: self.inventory.env.contains_key("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        }
    }
}

fn paddle_options(
    spec: &LaunchSpec,
    inventory: &Inventory,
    topology: &Topology,
    run: &Run,
    member: &Member,
) -> paddle::Options {
    let backend = match (spec.backend, topology.device_kind) {
        (Backend::Auto, None) => "gloo",
        (Backend::Auto, Some(DeviceKind::Gpu)) => "nccl",
        (Backend::Auto, Some(DeviceKind::Xpu)) => "bkcl",
        (Backend::Auto, Some(DeviceKind::Npu)) => "hccl",
        (explicit, _) => explicit.as_str(),
    };
    let backup = run.log_dir.join(format!("backup_env.{}.json", member.index));
    paddle::Options {
        generation: spec.generation,
        backend: backend.to_owned(),
        pod_name: run.pod_name.clone(),
        log_dir: run.log_dir.to_string_lossy().into_owned(),
        gloo_dir: run.gloo_dir().to_string_lossy().into_owned(),
        backup_env_path: backup.to_string_lossy().into_owned(),
        auto_cluster: spec.auto_cluster,
        auto_parallel_config: spec.auto_parallel_config.clone(),
        cluster_topo_path: spec.cluster_topo_path.clone(),
        rank_mapping_path: spec.rank_mapping_path.clone(),
        env_limit: spec.env_limit,
        with_gloo: inventory.env.get("PADDLE_WITH_GLOO").cloned(),
    }
}

/// The error for ports that could not be had.
pub fn too_few_ports(
    request: &PortRequest,
    wanted: u16,
    found: u16,
    (low, high): (u16, u16),
    taken: &[(u16, bool)],
) -> Diagnostic {
    match request {
        PortRequest::Fixed { start, source } if taken.is_empty() => {
            Diagnostic::error(Code::L0010, format!("ports that `{source}` asks for go beyond 65535"))
                .row("start", start.to_string())
                .row("needed", wanted.to_string())
                .hint(format!("choose a lower start, or leave `{source}` out to get free ones"))
        }
        PortRequest::Fixed { start, source } => {
            let list = taken
                .iter()
                .map(|(port, ours)| if *ours { format!("{port} (another umiak job)") } else { port.to_string() })
                .collect::<Vec<_>>()
                .join(", ");
            let last = u32::from(*start) + u32::from(wanted) - 1;
            Diagnostic::error(Code::L0010, format!("ports that `{source}` asks for are taken"))
                .row("asked for", if wanted == 1 { start.to_string() } else { format!("{start}-{last}") })
                .row("taken", list)
                .hint(if is_list(source) {
                    format!("end what uses them, or give others in `{source}`, on all nodes")
                } else {
                    format!("end what uses them, choose another start, or leave `{source}` out to get free ones")
                })
        }
        PortRequest::Range { source, .. } => {
            Diagnostic::error(Code::L0010, format!("too few free ports in the range that `{source}` gives"))
                .row("needed", needed(wanted))
                .row("free", format!("{found} between {low} and {high}"))
                .hint(format!("widen `{source}`, or leave it out"))
        }
        PortRequest::Free => Diagnostic::error(Code::L0010, "too few free ports on this host")
            .row("needed", needed(wanted))
            .row("free", format!("{found} between {low} and {high}"))
            .hint("end what uses them, or start fewer processes"),
    }
}

/// Ports that were named one by one.
fn is_list(source: &str) -> bool {
    ["--servers", "--workers", "--trainers", "--coordinators", "--heter_workers"].contains(&source)
}

/// More than one for each process, which wants explaining.
fn needed(wanted: u16) -> String {
    match wanted.checked_sub(STORES) {
        Some(processes @ 1..) => format!("{wanted}: {processes} for processes, {STORES} for stores"),
        _ => wanted.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::formats::launch::{Generation, OwnFlags};
    use crate::machine::round::messages::{NodeShare, Process, Start};
    use crate::model::JobId;

    pub(in crate::plan) fn spec() -> LaunchSpec {
        LaunchSpec {
            spelling: Spelling::Launch,
            generation: Generation::Current,
            job_id: JobId::new("default").unwrap(),
            script: "train.py".into(),
            script_args: vec![],
            log_dir: "log".into(),
            log_level: "INFO".into(),
            log_overwrite: false,
            devices: None,
            nproc_per_node: None,
            mode: Mode::Collective,
            nodes: Nodes::One,
            host: None,
            ip: None,
            node_rank: None,
            sort_ip: false,
            backend: Backend::Auto,
            ports: PortRequest::Free,
            max_restart: None,
            enable_gpu_log: false,
            auto_cluster: false,
            auto_parallel_config: None,
            cluster_topo_path: None,
            rank_mapping_path: None,
            with_coverage: false,
            env_limit: 48_000,
            paddle_lines: vec![],
            configuration: vec![],
            notices: vec![],
            own: OwnFlags::default(),
            command_line: "train.py".into(),
        }
    }

    fn run() -> Run {
        Run {
            pod_name: "abcdef".into(),
            scratch: "/tmp/umiak-x".into(),
            log_dir: "/w/log".into(),
            command: Resolved { program: "/usr/bin/python3".into(), argv: vec!["python3".into()] },
            attempt: 0,
        }
    }

    pub(in crate::plan) fn plan(spec: &LaunchSpec, inventory: &Inventory) -> Plan {
        let layout = layout(spec, inventory).unwrap();
        let port = |port: u16| Port::new(port).unwrap();
        let ports = Ports {
            endpoints: (0..layout.seats.len() as u16).map(|i| port(6170 + i)).collect(),
            stores: vec![port(7001), port(7002)],
        };
        let share = Share::alone(spec, inventory, &layout, &ports);
        finish(spec, inventory, layout, share, &run())
    }

    fn get<'a>(variables: &'a [Variable], name: &str) -> Option<&'a str> {
        variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn four_ranks_on_cpu() {
        let spec = LaunchSpec { nproc_per_node: Some(4), ..spec() };
        let plan = plan(&spec, &Inventory { cpus: 10, ..Inventory::default() });
        assert_eq!(plan.replicas.len(), 4);
        assert_eq!(plan.job.policy.stop.grace, Duration::from_secs(5));
        let last = &plan.replicas[3];
        assert_eq!(last.log, PathBuf::from("/w/log/workerlog.3"));
        assert_eq!(get(&last.env, "PADDLE_MASTER"), Some("127.0.0.1:7001"));
        assert_eq!(get(&last.env, "MASTER_PORT"), Some("7002"));
        assert_eq!(get(&last.env, "PADDLE_CURRENT_ENDPOINT"), Some("127.0.0.1:6173"));
        assert_eq!(get(&plan.common, "OMP_NUM_THREADS"), Some("2"));
        assert!(!last.inherit_stdin);
    }

    #[test]
    fn threads_as_the_user_or_paddle_says() {
        let mut inventory = Inventory { cpus: 10, ..Inventory::default() };
        let compat = LaunchSpec { own: OwnFlags { compat: Compat::Paddle, ..OwnFlags::default() }, ..spec() };
        assert_eq!(get(&plan(&compat, &inventory).common, "OMP_NUM_THREADS"), Some("1"));
        inventory.env.insert("OMP_NUM_THREADS".into(), "3".into());
        assert_eq!(get(&plan(&spec(), &inventory).common, "OMP_NUM_THREADS"), None);
    }

    #[test]
    fn proxies_are_put_aside_or_by_the_legacy_module_dropped() {
        let env = [("http_proxy".to_owned(), "http://p:1".to_owned())].into();
        let inventory = Inventory { env, cpus: 1, ..Inventory::default() };
        let module = LaunchSpec { spelling: Spelling::FleetModule { interpreter: "python".into() }, ..spec() };
        for (spec, kept) in [(spec(), Some("http://p:1")), (module, None)] {
            let plan = plan(&spec, &inventory);
            assert!(plan.unset.contains(&"http_proxy".to_owned()));
            assert_eq!(get(&plan.common, "http_proxy_original"), kept);
        }
    }

    #[test]
    fn a_subset_is_exported_and_counted_by_position() {
        let spec = LaunchSpec {
            devices: Some(crate::formats::launch::DeviceRequest {
                source: "--gpus".into(),
                kind: Some(DeviceKind::Gpu),
                ids: vec!["2".into(), "3".into()],
            }),
            ..spec()
        };
        let gpus = (0..8)
            .map(|index| crate::plan::Gpu {
                index,
                name: String::new(),
                uuid: String::new(),
                numa_node: None,
                minor: index,
            })
            .collect();
        let plan = plan(&spec, &Inventory { gpus, cpus: 8, ..Inventory::default() });
        assert_eq!(get(&plan.common, "CUDA_VISIBLE_DEVICES"), Some("2,3"));
        assert_eq!(get(&plan.common, "CUDA_DEVICE_ORDER"), Some("PCI_BUS_ID"));
        assert_eq!(get(&plan.replicas[1].env, "FLAGS_selected_gpus"), Some("1"));
        assert_eq!(get(&plan.replicas[1].env, "LOCAL_RANK"), Some("1"));
    }

    #[test]
    fn an_address_that_is_not_ours() {
        let foreign = LaunchSpec { ip: Some("192.168.0.1".parse().unwrap()), ..spec() };
        let own = Address { interface: "eth0".into(), ip: "10.0.0.7".parse().unwrap() };
        let inventory = Inventory { addresses: vec![own], ..Inventory::default() };
        let diagnostic = layout(&foreign, &inventory).unwrap_err();
        assert_eq!(diagnostic.code, Code::L0004);
        assert!(diagnostic.to_plain().contains("10.0.0.7 (eth0)"), "{}", diagnostic.to_plain());
        let vouched = LaunchSpec { host: foreign.ip, ..foreign };
        assert!(layout(&vouched, &inventory).is_ok());
    }

    #[test]
    fn with_a_static_list_the_first_endpoint_is_the_store() {
        let spec = LaunchSpec { ip: Some("127.0.0.1".parse().unwrap()), ..spec() };
        let plan = plan(&spec, &Inventory::default());
        assert_eq!(get(&plan.replicas[0].env, "PADDLE_MASTER"), Some("127.0.0.1:6170"));
    }

    /// Three nodes with two, three and one process; this is the one in the middle.
    fn three_nodes(spec: &LaunchSpec, inventory: &Inventory) -> Plan {
        let start = start();
        let layout = layout(spec, inventory).unwrap();
        let share = Share::of(spec, &layout, &start).unwrap();
        finish(spec, inventory, layout, share, &run())
    }

    fn start() -> Start {
        let endpoint = |port: u16| Endpoint { address: "10.0.0.1".parse().unwrap(), port: Port::new(port).unwrap() };
        let process = |port: u16| Process::trainer(Port::new(port).unwrap(), vec![]);
        let node = |last: u16, count: u16| NodeShare {
            launch: u64::from(last),
            address: format!("10.0.0.{last}").parse().unwrap(),
            host: format!("node-{last}"),
            processes: (0..count).map(|local| process(6170 + 10 * last + local)).collect(),
            device_kind: None,
        };
        Start {
            attempt: 0,
            nodes: vec![node(1, 2), node(2, 3), node(3, 1)],
            paddle_store: endpoint(7001),
            torch_store: endpoint(7002),
            you: 1,
        }
    }

    fn second() -> (LaunchSpec, Inventory) {
        let master = Nodes::Master {
            host: "10.0.0.1".into(),
            port: Port::new(6768).unwrap(),
            nodes: 3,
            source: "--master".into(),
        };
        let own = Address { interface: "eth0".into(), ip: "10.0.0.2".parse().unwrap() };
        let inventory = Inventory { cpus: 6, addresses: vec![own], hostname: "node-2".into(), ..Inventory::default() };
        (LaunchSpec { nodes: master, nproc_per_node: Some(3), ..spec() }, inventory)
    }

    #[test]
    fn one_of_three_nodes() {
        let (spec, inventory) = second();
        let plan = three_nodes(&spec, &inventory);
        let all = "10.0.0.1:6180,10.0.0.1:6181,10.0.0.2:6190,10.0.0.2:6191,10.0.0.2:6192,10.0.0.3:6200";
        assert_eq!(plan.topology.endpoint_list(), all);
        assert_eq!(plan.job.roles[0].replicas, 3);
        assert_eq!(plan.first_rank(), Rank(2));
        assert_eq!((plan.replica(Rank(1)), plan.replica(Rank(5))), (None, None));
        assert_eq!(get(&plan.common, "OMP_NUM_THREADS"), Some("2"));
        for (local, replica) in plan.replicas.iter().enumerate() {
            let rank = 2 + local as u32;
            assert_eq!(replica.slot, Slot { role: 0, index: local as u32 });
            assert_eq!((replica.rank, plan.replica(Rank(rank))), (Rank(rank), Some(replica)));
            assert_eq!(replica.log, PathBuf::from(format!("/w/log/workerlog.{rank}")));
            assert!(!replica.inherit_stdin);
            for (name, value) in [
                ("PADDLE_TRAINER_ID", rank.to_string()),
                ("PADDLE_LOCAL_RANK", local.to_string()),
                ("PADDLE_LOCAL_SIZE", "3".to_owned()),
                ("PADDLE_TRAINERS_NUM", "6".to_owned()),
                ("PADDLE_NNODES", "3".to_owned()),
                ("PADDLE_CURRENT_ENDPOINT", format!("10.0.0.2:{}", 6190 + local)),
                ("PADDLE_TRAINER_ENDPOINTS", all.to_owned()),
                ("PADDLE_MASTER", "10.0.0.1:7001".to_owned()),
                ("RANK", rank.to_string()),
                ("GROUP_RANK", "1".to_owned()),
                ("GROUP_WORLD_SIZE", "3".to_owned()),
                ("LOCAL_WORLD_SIZE", "3".to_owned()),
                ("MASTER_ADDR", "10.0.0.1".to_owned()),
                ("MASTER_PORT", "7002".to_owned()),
            ] {
                assert_eq!(get(&replica.env, name), Some(value.as_str()), "{name}");
            }
        }
        let files: Vec<String> = plan.files.iter().map(|file| file.path.display().to_string()).collect();
        for rank in 2..5 {
            assert!(files.contains(&format!("/w/log/envlog.{rank}")), "{files:?}");
            assert!(files.contains(&format!("/w/log/backup_env.{rank}.json")), "{files:?}");
        }
        assert_eq!(files.len(), 7);
        let endpoints = files::Author::new(&inventory, &plan).text(files::Content::Endpoints);
        assert_eq!(endpoints, format!("PADDLE_TRAINER_ENDPOINTS: \n{}", all.replace(',', "\n")));
    }

    #[test]
    fn interfaces_are_named_with_several_nodes_only() {
        let (spec, inventory) = second();
        let several = three_nodes(&spec, &inventory);
        let alone = plan(&LaunchSpec { nodes: Nodes::One, ..spec.clone() }, &inventory);
        for name in nodes::INTERFACE_VARIABLES {
            assert_eq!((get(&several.common, name), get(&alone.common, name)), (Some("eth0"), None));
        }
        let elsewhere = three_nodes(&spec, &Inventory { addresses: vec![], ..inventory });
        assert_eq!(get(&elsewhere.common, "NCCL_SOCKET_IFNAME"), None);
        assert_eq!(elsewhere.notices.iter().map(|notice| notice.code).collect::<Vec<_>>(), [Code::L0029]);
    }

    #[test]
    fn with_a_list_of_nodes_the_first_endpoint_is_the_store() {
        let (spec, inventory) = second();
        let addresses: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|it| it.parse().unwrap()).to_vec();
        let spec = LaunchSpec { nodes: Nodes::List { addresses: addresses.clone(), source: "--ips".into() }, ..spec };
        assert_eq!(layout(&spec, &inventory).unwrap().address, Some(addresses[1]));
        for (generation, store) in [(Generation::Current, "10.0.0.1:6180"), (Generation::Legacy, "10.0.0.1:7001")] {
            let plan = three_nodes(&LaunchSpec { generation, ..spec.clone() }, &inventory);
            assert_eq!(get(&plan.replicas[0].env, "PADDLE_MASTER"), Some(store));
        }
        let elsewhere = Inventory { addresses: vec![], ..inventory };
        assert_eq!(layout(&spec, &elsewhere).unwrap_err().code, Code::L0004);
    }

    #[test]
    fn with_a_master_the_address_may_be_open() {
        let (spec, inventory) = second();
        assert_eq!(layout(&spec, &inventory).unwrap().address, None);
        let host = "10.9.9.9".parse().ok();
        assert_eq!(layout(&LaunchSpec { host, ..spec }, &inventory).unwrap().address, host);
    }

    #[test]
    fn orders_that_make_no_sense() {
        let (spec, inventory) = second();
        let layout = layout(&spec, &inventory).unwrap();
        let changes: [fn(&mut Start); 4] = [
            |start| start.you = 3,
            |start| start.you = 0,
            |start| start.nodes.clear(),
            |start| start.nodes[2].processes.clear(),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut start = start();
            change(&mut start);
            let error = Share::of(&spec, &layout, &start).map(|_| ()).unwrap_err();
            assert_eq!(error.code, Code::L0016, "{index}");
        }
    }

    #[test]
    fn what_a_node_offers() {
        let (spec, inventory) = second();
        let layout = layout(&spec, &inventory).unwrap();
        let port = |port: u16| Port::new(port).unwrap();
        let ports = Ports { endpoints: vec![port(1), port(2), port(3)], stores: vec![port(8), port(9)] };
        let offer = crate::plan::offer(&layout, &ports);
        assert_eq!(offer.processes.iter().map(|process| process.port.get()).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((offer.stores.map(Port::get), offer.device_kind), ([8, 9], None));
    }

    #[test]
    fn the_token_is_kept_from_the_ranks() {
        let env = [("UMIAK_TOKEN".to_owned(), "open sesame".to_owned())].into();
        let plan = plan(&spec(), &Inventory { env, cpus: 1, ..Inventory::default() });
        assert!(plan.unset.contains(&"UMIAK_TOKEN".to_owned()));
    }

    #[test]
    fn paddles_lines_for_several_nodes() {
        use crate::plan::paddle_lines;
        let (spec, inventory) = second();
        let spec = LaunchSpec { configuration: vec![("nnodes".into(), "3".into())], ..spec };
        let lines = paddle_lines::at_start(&spec, &inventory, &three_nodes(&spec, &inventory));
        assert_eq!(
            lines[1],
            "[{'name': 'node-1', 'rank': 0, 'replicas': 2, 'dtype': 'cpu', 'candidate': '10.0.0.1:7001', 'endpoints': '10.0.0.1:6180,10.0.0.1:6181'}, {'name': 'abcdef', 'rank': 1, 'replicas': 3, 'dtype': 'cpu', 'candidate': '10.0.0.2:6190', 'endpoints': '10.0.0.2:6190,10.0.0.2:6191,10.0.0.2:6192'}, {'name': 'node-3', 'rank': 2, 'replicas': 1, 'dtype': 'cpu', 'candidate': '10.0.0.3:6200', 'endpoints': '10.0.0.3:6200'}]"
        );
        let job = "LAUNCH INFO <ts> Job: default, mode collective, replicas 3[3:3], elastic False";
        assert!(lines.iter().any(|line| line == job), "{lines:#?}");
        let master = Endpoint { address: "10.0.0.2".parse().unwrap(), port: Port::new(4321).unwrap() };
        let dashes = "-".repeat(80);
        assert_eq!(
            paddle_lines::copy_to_others(&spec, master),
            format!(
                "Copy the following command to other nodes to run.\n{dashes}\numiak launch --master 10.0.0.2:4321 train.py\n{dashes}"
            )
        );
    }
}
