//! From a launched job and this host's inventory to the plan of one node.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::contract::{Lazy, Member, Options, Topology, Variable, paddle};
use crate::diag::{Code, Diagnostic};
use crate::machine::round::messages::LastAttempt;
use crate::model::{
    ClusterOptions, Contract, Crew, DeviceKind, Job, LogNames, Mode, NodeIndex, Nodes, Omp, PaddleHabits, Part, Port,
    Proxies, Request, SERVER_PATIENCE, ServerMode, Slot, StartAfter, When,
};

use super::command::Resolved;
use super::devices::{self, Assignment};
use super::seats::{self, Seat};
use super::share::Share;
use super::value::VERSION;
use super::{
    Address, Awaited, AwaitedElsewhere, Inventory, Log, LogLayout, Membership, Plan, Replica, Wishes, files, nodes,
    numa, process,
};

/// The processes and the address of this node, before ports are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub assignment: Assignment,
    /// This node's address, if known: with a master and without `--host`, it is found by connecting to the master.
    pub address: Option<IpAddr>,
    /// This node's processes, with the devices of each in the assignment.
    pub seats: Vec<Seat>,
    /// The first store's port, if the command line sets it: gloo's rendezvous port.
    pub store: Option<Port>,
}

/// Properties of this run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Six letters, as Paddle names its pods.
    pub pod_name: String,
    /// Scratch directory, removed at the end.
    pub scratch: PathBuf,
    /// Directory where umiak was started.
    pub directory: PathBuf,
    /// Absolute.
    pub log_dir: PathBuf,
    pub command: Resolved,
    /// The attempt of the whole group, from 1.
    pub attempt: u32,
    /// The one before, in a job on several nodes.
    pub last: Option<LastAttempt>,
}

/// Tells a script of an elastic job which attempt this is, and what has changed since the last one.
fn attempt_variables(run: &Run) -> Vec<(String, String)> {
    let mut variables = vec![("UMIAK_ATTEMPT".to_owned(), run.attempt.to_string())];
    if let Some(last) = run.last {
        variables.push(("UMIAK_RESTART_REASON".to_owned(), last.end.word().to_owned()));
        variables.push(("UMIAK_PREVIOUS_WORLD_SIZE".to_owned(), last.world.to_string()));
    }
    variables
}

/// Maximum number of processes on one node.
const MOST: usize = 20_000;

/// The variable with gloo's rendezvous endpoint.
const GLOO: &str = "PADDLE_GLOO_HTTP_ENDPOINT";

/// The variable with the trainers' endpoints.
const ENDPOINTS: &str = "PADDLE_TRAINER_ENDPOINTS";

/// The token is for nodes only; ranks do not get it.
pub const TOKEN: &str = "UMIAK_TOKEN";
/// The password is for umiak's own connections to etcd; ranks do not get it.
pub const ETCD_PASSWORD: &str = "UMIAK_ETCD_PASSWORD";
/// Marks the launch process that continues without its terminal.
pub const DETACHED: &str = "UMIAK_DETACHED";

/// Variables that Paddle removes from the ranks' environment.
const PROXIES: [&str; 2] = ["http_proxy", "https_proxy"];

/// All variables that set a proxy.
const ALL_PROXIES: [&str; 6] = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

/// Computes the processes, ports and address of this node.
pub fn layout(request: &Request, inventory: &Inventory) -> Result<Layout, Diagnostic> {
    let address = address(request, &inventory.addresses)?;
    let (assignment, seats) = match &request.mode {
        Mode::Collective | Mode::Rpc => {
            let assignment = devices::assign(request, inventory)?;
            let seats = seats::seats(request, address, assignment.processes.len());
            (assignment, seats)
        }
        Mode::Servers(_) => {
            let seats = seats::seats(request, address, 0);
            (devices::assign_to(request, inventory, &seats)?, seats)
        }
    };
    let processes = seats.len();
    if processes > MOST {
        let message = format!("{processes} processes on one node need more ports than a host has");
        return Err(Diagnostic::error(Code::L0010, message).hint("start fewer processes with `--nproc_per_node`"));
    }
    let store = match &request.mode {
        Mode::Servers(mode) => mode.gloo_port.filter(|_| may_host_gloo(mode, address, &seats)),
        Mode::Collective | Mode::Rpc => None,
    };
    Ok(Layout { assignment, address, seats, store })
}

/// True if this node may run the first server, which hosts gloo's rendezvous. If servers are only counted, the node of
/// the first one is not known yet.
fn may_host_gloo(mode: &ServerMode, address: Option<IpAddr>, seats: &[Seat]) -> bool {
    match &mode.servers {
        Crew::Listed(list) if mode.pod.is_none() => list.first().map(|first| first.address) == address,
        _ => seats.first().is_some_and(|seat| seat.part == Part::Server),
    }
}

/// The address of this node: `--ips` or `--host`; otherwise loopback for one node.
fn address(request: &Request, own: &[Address]) -> Result<Option<IpAddr>, Diagnostic> {
    match &request.nodes {
        Nodes::One => {}
        Nodes::List { addresses, source } => {
            return nodes::own_index(addresses, source, own, request.host).map(|index| Some(addresses[index]));
        }
        Nodes::Master { .. } | Nodes::Auto { .. } | Nodes::Etcd { .. } => return Ok(request.host),
    }
    let Some(listed) = request.ip else { return Ok(Some(request.host.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)))) };
    let source = if matches!(request.mode, Mode::Servers(_)) { "--servers" } else { "--ips" };
    let is_own = listed.is_loopback() || own.iter().any(|address| address.ip == listed);
    if is_own || request.host == Some(listed) {
        Ok(Some(listed))
    } else {
        Err(nodes::not_listed(&[listed], source, own))
    }
}

/// The plan of this node, once the ranks of all nodes are known.
pub fn finish(request: &Request, inventory: &Inventory, layout: Layout, share: Share, run: &Run) -> Plan {
    let Layout { assignment, .. } = layout;
    let Share { topology, you } = share;
    let address = topology.nodes[you.0 as usize].address.address();
    let parts = topology.parts();
    let (replicas, counts) = replicas(request, inventory, &assignment, &topology, you, run);
    let mut common = common(request, inventory, &assignment, &topology);
    if request.elastic.is_some() {
        common.extend(attempt_variables(run));
    }
    let mut notices = assignment.notices;
    if request.numa && inventory.numa_nodes.len() < 2 {
        let flag = if request.torch.is_some() { "--numa-binding" } else { "--numa" };
        let message = format!("`{flag}` has no effect: this host has one NUMA node");
        notices.push(Diagnostic::notice(Code::L0023, message));
    }
    if let Some(address) = address.filter(|_| topology.nodes.len() > 1) {
        match nodes::interface(address, inventory) {
            Ok(variables) => common.extend(variables),
            Err(notice) => notices.push(notice),
        }
    }
    let mut plan = Plan {
        v: VERSION,
        dry_run: false,
        umiak: env!("CARGO_PKG_VERSION").to_owned(),
        run: None,
        step: None,
        name: request.name.clone(),
        line: request.line.clone(),
        params: Vec::new(),
        engine: "local".to_owned(),
        directory: run.directory.clone(),
        document: None,
        wishes: Wishes::default(),
        cluster: ClusterOptions::default(),
        attempt: run.attempt,
        job: job(request, &parts, &counts),
        whole: true,
        commands: vec![run.command.clone(); parts.len()],
        replicas,
        logs: match &request.torch {
            Some(_) => LogLayout::Streams { dir: run.log_dir.clone() },
            None => LogLayout::Files { dir: run.log_dir.clone(), rotation: request.logs.rotation },
        },
        streams: request.torch.as_ref().map(|torch| torch.streams.clone()),
        substitutes: request.command.substitutes,
        scratch: run.scratch.clone(),
        inherit_stdin: topology.members.len() == 1,
        threads: None,
        unset: Vec::new(),
        common,
        options: options(request, inventory, run),
        groups: vec![topology],
        awaited: Vec::new(),
        files: Vec::new(),
        manifests: Vec::new(),
        notices,
        script: None,
        places: Lazy::default(),
    };
    if matches!(&request.mode, Mode::Servers(mode) if mode.pod.is_some()) {
        plan.options.said = said(&plan, inventory);
    }
    plan.unset = unset(request, inventory, &plan);
    plan.awaited = awaited(request, plan.topology(), you);
    if request.paddle.is_some() {
        plan.files = files::all(request.logs.overwrite, &plan);
    }
    plan
}

/// This node's processes, and the number of each part.
fn replicas(
    request: &Request,
    inventory: &Inventory,
    assignment: &Assignment,
    topology: &Topology,
    you: NodeIndex,
    run: &Run,
) -> (Vec<Replica>, Vec<u32>) {
    let parts = topology.parts();
    let mut counts = vec![0; parts.len()];
    let mut cpus = if request.numa { numa::bind(inventory, &assignment.processes) } else { Vec::new() };
    let own = topology.members.iter().enumerate().filter(|(_, member)| member.node == you);
    let replica = |(position, member): (usize, &Member)| {
        let role = parts.iter().position(|part| *part == member.part).unwrap_or(0);
        let slot = Slot { role: role as u16, index: counts[role] };
        counts[role] += 1;
        let number = match request.logs.names {
            LogNames::Global => member.index,
            LogNames::Local => slot.index,
        };
        let path = run.log_dir.join(format!("{}.{number}", member.part.log_stem()));
        Replica {
            name: format!("{}-{}", member.part.role(), member.index),
            slot,
            index: member.index,
            rank: member.rank,
            host: topology.nodes[you.0 as usize].address.clone(),
            endpoint: Some(member.endpoint.clone()),
            ports: Vec::new(),
            devices: member.devices.clone(),
            cpus: cpus.get_mut(member.local_rank as usize).map(std::mem::take).unwrap_or_default(),
            log: request.torch.is_none().then(|| Log::new(path)),
            member: Some(Membership { group: 0, member: position as u32 }),
            env: Vec::new(),
        }
    };
    let replicas = own.map(replica).collect();
    (replicas, counts)
}

fn options(request: &Request, inventory: &Inventory, run: &Run) -> Options {
    let (with_gloo, stages) = match &request.mode {
        Mode::Servers(mode) => {
            // The trainers are the first stage.
            let first = (!mode.stages.is_empty()).then(|| "cpu".to_owned());
            let stages = first.into_iter().chain(mode.stages.iter().map(|stage| stage.device.clone()));
            (Some(mode.with_gloo.clone()), stages.collect())
        }
        Mode::Collective | Mode::Rpc => (inventory.env.get("PADDLE_WITH_GLOO").cloned(), Vec::new()),
    };
    Options {
        paddle: request.paddle.as_ref().map(|paddle| paddle.variables.clone()).unwrap_or_default(),
        torch: request.torch.as_ref().map(|torch| torch.variables.clone()).unwrap_or_default(),
        backend: request.backend,
        with_gloo,
        stages,
        pod_name: Some(run.pod_name.clone()),
        async_error_handling_is_set: inventory.env.contains_key("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ..Options::default()
    }
}

/// Variables of this pod's process that the platform has already set.
fn said(plan: &Plan, inventory: &Inventory) -> Vec<Variable> {
    let told = plan.replicas.first().map(|pod| plan.known_variables(pod)).unwrap_or_default();
    told.into_iter().filter_map(|(name, _)| inventory.env.get(&name).cloned().map(|value| (name, value))).collect()
}

/// The job with its roles on all nodes and the number of replicas on this node.
fn job(request: &Request, parts: &[Part], replicas: &[u32]) -> Job {
    let contracts = match (&request.mode, &request.paddle) {
        (_, None) => vec![Contract::Torch],
        (Mode::Collective, _) => vec![Contract::Paddle, Contract::Torch],
        (Mode::Rpc, _) => vec![Contract::PaddleRpc, Contract::Torch],
        (Mode::Servers(_), _) => vec![Contract::PaddleServers],
    };
    let servers = parts.iter().position(|part| *part == Part::Server);
    let roles = parts.iter().zip(replicas).map(|(part, replicas)| {
        let mut role = part.as_role(*replicas);
        role.work.contracts = Some(contracts.clone());
        match servers {
            Some(_) if *part == Part::Server => {
                role.timeouts.start = request.server_timeout.filter(|time| !time.is_zero());
                role.timeouts.patience = request.server_timeout.is_none().then_some(SERVER_PATIENCE);
            }
            // All other parts wait for all servers.
            Some(servers) => {
                let when = if request.waits_for_servers() { When::Ready } else { When::Started };
                role.start_after = vec![StartAfter { role: servers as u16, when }];
            }
            None => {}
        }
        role
    });
    let roles = roles.collect();
    Job {
        name: request.job_id.clone(),
        labels: BTreeMap::new(),
        agent_store: false,
        contracts,
        roles,
        policy: request.policy,
    }
}

/// Servers on other nodes, if a process here waits for servers.
fn awaited(request: &Request, topology: &Topology, you: NodeIndex) -> Vec<AwaitedElsewhere> {
    let waits = topology.members.iter().any(|member| member.node == you && member.part != Part::Server);
    if !waits || !request.waits_for_servers() {
        return Vec::new();
    }
    // A platform's list may contain host names.
    let names = match &request.mode {
        Mode::Servers(mode) => mode.pod.as_ref().map(|pod| &pod.servers),
        Mode::Collective | Mode::Rpc => None,
    };
    let elsewhere = topology.members.iter().filter(|member| member.part == Part::Server && member.node != you);
    let awaited = |member: &Member| {
        let name = names.and_then(|names| names.get(member.index as usize)).cloned();
        AwaitedElsewhere { node: member.node, name: name.unwrap_or_else(|| member.endpoint.to_string()) }
    };
    elsewhere.map(awaited).collect()
}

/// The endpoints that a server listens on. With gloo, the first server hosts the rendezvous and opens its own port only
/// after all trainers have joined, so waiting for that port alone would never end.
pub(super) fn answers_at(options: &Options, topology: &Topology, name: String, index: u32) -> Awaited {
    let with_gloo = options.with_gloo.as_deref().is_some_and(|with| with != "0");
    let gloo = (with_gloo && index == 0).then(|| options.placed(GLOO, topology.paddle_store.to_string()));
    Awaited { at: [name.clone()].into_iter().chain(gloo).collect(), name }
}

/// Variables that Paddle's launchers and umiak remove from the ranks' environment.
fn unset(request: &Request, inventory: &Inventory, plan: &Plan) -> Vec<String> {
    let mut unset = Vec::new();
    if let Some(paddle) = &request.paddle {
        if paddle.proxies != Proxies::Kept {
            unset.extend(PROXIES);
        }
        if request.mode != Mode::Rpc && paddle::is_too_long(&plan.options, plan.topology().endpoint_list()) {
            unset.push(ENDPOINTS);
        }
    }
    unset.extend([TOKEN, ETCD_PASSWORD, DETACHED].into_iter().filter(|name| inventory.env.contains_key(*name)));
    unset.into_iter().map(str::to_owned).collect()
}

/// Proxy variables that are kept under another name.
pub(super) fn put_aside(paddle: &PaddleHabits, inventory: &Inventory) -> Vec<&'static str> {
    let is_put_aside = |name: &&str| paddle.proxies == Proxies::PutAside && inventory.env.contains_key(*name);
    PROXIES.into_iter().filter(is_put_aside).collect()
}

/// Adds the nodes' addresses to the user's `no_proxy` lists, so that ranks connect to each other directly.
fn without_proxy(inventory: &Inventory, topology: &Topology) -> Vec<Variable> {
    let value = |name: &str| inventory.env.get(name).map(String::as_str).filter(|text| !text.is_empty());
    if !ALL_PROXIES.iter().any(|name| value(name).is_some()) {
        return Vec::new();
    }
    let with_nodes = |list: &str| {
        let mut entries: Vec<String> = list.split(',').filter(|entry| !entry.is_empty()).map(str::to_owned).collect();
        for node in &topology.nodes {
            let address = node.address.to_string();
            if !entries.iter().any(|entry| entry.trim() == "*" || entry.trim() == address) {
                entries.push(address);
            }
        }
        entries.join(",")
    };
    // Programs that find the lowercase variable ignore the other.
    let small = value("no_proxy").or(value("NO_PROXY")).unwrap_or_default();
    let large = value("NO_PROXY").map(|list| ("NO_PROXY".to_owned(), with_nodes(list)));
    [("no_proxy".to_owned(), with_nodes(small))].into_iter().chain(large).collect()
}

/// Variables that are the same for all ranks.
fn common(request: &Request, inventory: &Inventory, assignment: &Assignment, topology: &Topology) -> Vec<Variable> {
    let is_kept = request.paddle.as_ref().is_none_or(|paddle| paddle.proxies == Proxies::Kept);
    let mut common = if is_kept { without_proxy(inventory, topology) } else { Vec::new() };
    let mut set = |name: &str, value: String| common.push((name.to_owned(), value));
    let is_set = |name: &str| inventory.env.contains_key(name);
    for name in request.paddle.iter().flat_map(|paddle| put_aside(paddle, inventory)) {
        set(&format!("{name}_original"), inventory.env[name].clone());
    }
    let threads = match request.omp {
        Omp::OneIfSeveral if assignment.processes.len() < 2 => None,
        Omp::OneUnlessSet | Omp::OneIfSeveral => (!is_set("OMP_NUM_THREADS")).then_some(1),
        Omp::Share => Some(process::share(inventory.cpus, assignment.processes.len())),
        Omp::Count(count) => Some(count),
    };
    if let Some(threads) = threads {
        set("OMP_NUM_THREADS", threads.to_string());
    }
    if let Some((name, value)) = process::unbuffered(&inventory.env) {
        set(&name, value);
    }
    // Paddle's launcher sets this by importing the framework; scripts may read it.
    if request.paddle.is_some() && !is_set("CUSTOM_DEVICE_ROOT") {
        set("CUSTOM_DEVICE_ROOT", String::new());
    }
    if let (Some(kind), Some(visible)) = (assignment.kind, &assignment.visible) {
        set(kind.visible_variable(), visible.clone());
    }
    // Umiak numbers devices by PCI address; CUDA would sort them by speed.
    if request.torch.is_none() && assignment.kind == Some(DeviceKind::Gpu) && !is_set("CUDA_DEVICE_ORDER") {
        set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
    }
    common
}

#[cfg(test)]
pub(super) mod tests;
