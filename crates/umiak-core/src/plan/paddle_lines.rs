//! The lines that Paddle's launchers print, in their own words: tools and people look for them. They go to
//! Paddle's own `<job_id>.<pod>.log`; the console is ours, but for the few that programs grep for.
//!
//! `<ts>` stands for the time; who writes the line fills it in.

mod servers;

use std::ffi::OsStr;

use crate::contract::Topology;
use crate::facts::{Outcome, Verdict};
use crate::formats::launch::python::{list, quoted};
use crate::formats::launch::{ExitCodes, Generation, LaunchSpec, Mode, Nodes};
use crate::machine::job::AttemptId;
use crate::model::{DeviceKind, Endpoint, Exit};

use super::launch::kept_proxies;
use super::nodes::command_for_others;
use super::{Inventory, Plan, ReplicaPlan, mask};

/// Levels below the one asked for are not written.
fn is_shown(spec: &LaunchSpec, level: &str) -> bool {
    let weight = |level: &str| match level {
        "DEBUG" => 10,
        "INFO" => 20,
        "WARNING" | "WARN" => 30,
        "ERROR" => 40,
        "CRITICAL" | "FATAL" => 50,
        _ => 0,
    };
    weight(level) >= weight(&spec.log_level)
}

fn launch_line(spec: &LaunchSpec, level: &str, text: &str) -> Option<String> {
    is_shown(spec, level).then(|| format!("LAUNCH {level} <ts> {text}"))
}

/// A warning, if the level that was asked for shows it.
pub fn warning(spec: &LaunchSpec, text: &str) -> Option<String> {
    launch_line(spec, "WARNING", text)
}

/// Lines that Paddle writes on the console and that programs read there: overrides by the environment.
pub fn on_console(spec: &LaunchSpec) -> &[String] {
    &spec.paddle_lines
}

/// Before the first rank: the environment, the peers, the configuration.
pub fn at_start(spec: &LaunchSpec, inventory: &Inventory, plan: &Plan) -> Vec<String> {
    let mut lines = vec![environ(inventory, plan), peers(spec, plan)];
    lines.extend(kept_proxies(spec, inventory).into_iter().map(|name| {
        format!(
            "UserWarning: Unset '{name}' to ensure stable NCCL communication in distributed training (backed up as '{name}_original')."
        )
    }));
    lines.extend(spec.paddle_lines.iter().cloned());
    match spec.generation {
        Generation::Current => {
            let mut log = |level: &str, text: &str| lines.extend(launch_line(spec, level, text));
            let (controller, mode) = match spec.mode {
                Mode::Collective => ("CollectiveController", "collective"),
                Mode::Rpc => ("RpcController", "rpc"),
                Mode::Servers(_) => ("PSController", "ps"),
            };
            log("DEBUG", &format!("{controller} enabled"));
            let mut say = |text: &str| log("INFO", text);
            say("-----------  Configuration  ----------------------");
            for (name, value) in &spec.configuration {
                say(&format!("{name}: {value}"));
            }
            say(&"-".repeat(50));
            let nodes = nodes_flag(spec);
            say(&format!("Job: {}, mode {mode}, replicas {nodes}[{nodes}:{nodes}], elastic False", spec.job_id));
            if let Some(exchanged) = exchanged(spec, plan) {
                log("DEBUG", &format!("sync peers done {exchanged}"));
            }
            log("INFO", &format!("Run Pod: {}, replicas {}, status ready", plan.pod_name, plan.replicas.len()));
            log("DEBUG", &container(spec, &plan.replicas[0], "uninit", -1));
        }
        Generation::Legacy => {
            lines.push("-----------  Configuration Arguments -----------".to_owned());
            lines.extend(spec.configuration.iter().map(|(name, value)| format!("{name}: {value}")));
            lines.push("-".repeat(48));
            if let Mode::Servers(_) = spec.mode {
                lines.extend(servers::at_start(spec, inventory, plan));
                return lines;
            }
            if plan.topology.device_kind.is_none() {
                lines.push(legacy("WARNING", "launch.py", "launch start with CPUONLY mode"));
            }
            lines.push(mode_line(plan.topology.device_kind).to_owned());
            let ports: Vec<String> =
                plan.replicas.iter().map(|replica| replica.endpoint.port.get().to_string()).collect();
            lines.push(legacy("INFO", "launch.py", &format!("find free ports:[{}]", ports.join(", "))));
            lines.push(legacy("INFO", "launch_utils.py", &environment_table(plan)));
            let log_dir = spec.log_dir.display();
            let details = format!(
                "Details about PADDLE_TRAINER_ENDPOINTS can be found in {log_dir}/endpoints.log, and detail running logs may be found in {log_dir}/workerlog.0"
            );
            lines.push(legacy("INFO", "launch_utils.py", &details));
        }
    }
    lines
}

fn legacy(level: &str, file: &str, text: &str) -> String {
    format!("{level} <ts> {file}] {text}")
}

fn mode_line(kind: Option<DeviceKind>) -> &'static str {
    match kind {
        Some(DeviceKind::Gpu) => "launch train in GPU mode!",
        Some(DeviceKind::Xpu) => "launch train in XPU mode",
        Some(DeviceKind::Npu) => "launch train in ascend npu mode!",
        None => "launch train in CPU mode",
    }
}

/// The launcher's environment as Python prints it, secrets masked: with what the launcher changes in it for all.
fn environ(inventory: &Inventory, plan: &Plan) -> String {
    let mut environment = inventory.env.clone();
    environment.retain(|name, _| !plan.unset.contains(name));
    environment.extend(plan.common.iter().cloned());
    let pairs: Vec<String> = environment
        .iter()
        .map(|(name, value)| {
            format!("{}: {}", quoted(OsStr::new(name)), quoted(OsStr::new(&mask::masked(name, value))))
        })
        .collect();
    format!("environ({{{}}})", pairs.join(", "))
}

/// What Paddle takes for the number of nodes: `--nnodes`, which beside `--ips` is 1 unless given.
fn nodes_flag(spec: &LaunchSpec) -> u32 {
    let given = spec.configuration.iter().find(|(name, _)| name == "nnodes");
    given.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(1)
}

/// Who takes part: a record for each node, or with a static list of several nodes the endpoints.
fn peers(spec: &LaunchSpec, plan: &Plan) -> String {
    let topology = &plan.topology;
    if let Mode::Servers(mode) = &spec.mode {
        return servers::peers(spec, mode, plan);
    }
    if let Nodes::List { .. } = spec.nodes {
        let endpoints: Vec<String> = topology.members.iter().map(|member| member.endpoint.to_string()).collect();
        return list(endpoints.iter().map(OsStr::new));
    }
    let own = plan.first_rank();
    let mut first = 0;
    let records = topology.nodes.iter().enumerate().map(|(index, node)| {
        let members = &topology.members[first..first + node.size as usize];
        first += node.size as usize;
        let is_own = members.iter().any(|member| member.rank == own);
        let endpoints: Vec<String> = members.iter().map(|member| member.endpoint.to_string()).collect();
        // Other pods keep their names to themselves, and only the first node's candidate is ever used.
        let candidate = if index == 0 { topology.paddle_store } else { members[0].endpoint };
        format!(
            "{{'name': {}, 'rank': {}, 'replicas': {}, 'dtype': '{}', 'candidate': '{candidate}', 'endpoints': '{}'}}",
            quoted(OsStr::new(if is_own { &plan.pod_name } else { &node.host })),
            node_rank(spec, topology, index),
            node.size,
            topology.device_kind.map_or("cpu", DeviceKind::word),
            endpoints.join(","),
        )
    });
    format!("[{}]", records.collect::<Vec<_>>().join(", "))
}

/// A node that is alone is not given a place.
fn node_rank(spec: &LaunchSpec, topology: &Topology, index: usize) -> i64 {
    if topology.nodes.len() == 1 { spec.node_rank.map_or(-1, i64::from) } else { index as i64 }
}

/// What the nodes have told each other.
fn exchanged(spec: &LaunchSpec, plan: &Plan) -> Option<String> {
    match &spec.mode {
        Mode::Servers(mode) => servers::exchanged(spec, mode, plan),
        Mode::Collective | Mode::Rpc => Some(peers(spec, plan)),
    }
}

/// What this node shows when it has become the master: the command for the others, between two lines.
pub fn copy_to_others(spec: &LaunchSpec, master: Endpoint) -> String {
    let line = "-".repeat(80);
    let command = command_for_others(spec, master);
    format!("Copy the following command to other nodes to run.\n{line}\n{command}\n{line}")
}

/// What the legacy launcher shows of the first rank.
fn environment_table(plan: &Plan) -> String {
    const NAMES: [&str; 7] = [
        "PADDLE_TRAINER_ID",
        "PADDLE_CURRENT_ENDPOINT",
        "PADDLE_TRAINERS_NUM",
        "PADDLE_TRAINER_ENDPOINTS",
        "PADDLE_RANK_IN_NODE",
        "PADDLE_LOCAL_DEVICE_IDS",
        "PADDLE_WORLD_DEVICE_IDS",
    ];
    let first = &plan.replicas[0];
    let value = |name: &str| first.env.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str());
    table("Local start", plan.replicas.len(), &NAMES.map(|name| (name, value(name))))
}

/// The legacy launcher's table of a process's variables: keys at the right of 40 cells or more, values centred in 45.
fn table(heading: &str, processes: usize, rows: &[(&str, &str)]) -> String {
    let keys = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(40);
    let row = |name: &str, value: &str| {
        let shown = match value.chars().count() {
            0..45 => value.to_owned(),
            length => format!("... {}", value.chars().skip(length - 41).collect::<String>()),
        };
        format!("    |{name:>keys$}  {shown:^45}|")
    };
    let border = |line: &str| format!("    +{}+", line.repeat(keys + 47));
    let mut lines = vec![
        format!("{heading} {processes} processes. First process distributed environment info (Only For Debug): "),
        border("="),
        row("Distributed Envs", "Value"),
        border("-"),
    ];
    lines.extend(rows.iter().map(|(name, value)| row(name, value)));
    lines.push(border("="));
    lines.push(String::new());
    lines.join("\n")
}

/// Once the last ranks have been started.
pub fn at_spawn(spec: &LaunchSpec, plan: &Plan, started: &[AttemptId]) -> Option<String> {
    let last = plan.replicas.last()?.slot;
    if !started.iter().any(|id| id.slot == last) {
        return None;
    }
    let text = format!("Watching Pod: {}, replicas {}, status running", plan.pod_name, plan.replicas.len());
    (spec.generation == Generation::Current).then(|| launch_line(spec, "INFO", &text)).flatten()
}

/// For each rank, once its process exists.
pub fn at_started(spec: &LaunchSpec, index: u32, pid: u32) -> Option<String> {
    tells_processes(spec).then(|| format!("launch proc_id:{pid} idx:{index}"))
}

/// When a rank is stopped by us.
pub fn at_stop(spec: &LaunchSpec, pid: u32) -> Option<String> {
    tells_processes(spec).then(|| legacy("INFO", "launch_utils.py", &format!("terminate process group gid:{pid}")))
}

/// Whether each process has lines of its own.
fn tells_processes(spec: &LaunchSpec) -> bool {
    spec.generation == Generation::Legacy && !matches!(spec.mode, Mode::Servers(_))
}

/// When a signal asks the launcher to stop.
pub fn at_signal(spec: &LaunchSpec, signal: i32) -> Option<String> {
    match spec.generation {
        Generation::Current => launch_line(spec, "INFO", &format!("Terminating with signal {signal}")),
        Generation::Legacy => Some(legacy("WARNING", "launch.py", "Terminating... exit")),
    }
}

/// The record that the current launcher's users look for: two lines, one time stamp.
pub fn container_failed(spec: &LaunchSpec, plan: &Plan, verdict: &Verdict) -> Option<String> {
    let cause = verdict.causes.first()?;
    let replica = plan.replicas.iter().find(|replica| Some(replica.rank) == cause.subject.rank)?;
    let code = match &cause.exit {
        Exit::Code { code } => *code,
        Exit::Signal { signal, .. } => -signal,
        exit => i32::from(exit.shell_code()),
    };
    let text = format!("Container failed !!!\n{}", container(spec, replica, "failed", code));
    (spec.generation == Generation::Current).then(|| launch_line(spec, "ERROR", &text)).flatten()
}

fn container(spec: &LaunchSpec, replica: &ReplicaPlan, status: &str, code: i32) -> String {
    let log = spec.log_dir.join(replica.log.file_name().unwrap_or_default());
    format!(
        "Container rank {} status {status} cmd {} code {code} log {}",
        replica.rank.0,
        list(replica.argv.iter().map(std::ffi::OsString::as_os_str)),
        log.display()
    )
}

/// The verdict, in Paddle's words. `abort` is the line of the user's guide.
pub fn at_failure(spec: &LaunchSpec, plan: &Plan, verdict: &Verdict, abort: &str) -> Vec<String> {
    match spec.generation {
        Generation::Current => {
            let mut lines: Vec<String> = launch_line(spec, "INFO", "Pod failed").into_iter().collect();
            lines.extend(container_failed(spec, plan, verdict));
            lines.push(abort.to_owned());
            lines
        }
        // It says nothing of the kind, which is no reason to do likewise.
        Generation::Legacy if matches!(spec.mode, Mode::Servers(_)) => {
            vec![legacy("ERROR", "launch_utils.py", abort)]
        }
        Generation::Legacy => {
            vec![
                legacy("INFO", "launch_utils.py", "terminate all the procs"),
                legacy("ERROR", "launch_utils.py", abort),
                legacy("WARNING", "launch.py", "Terminating... exit"),
            ]
        }
    }
}

/// Before another attempt, which `attempt` counts from 1.
pub fn at_restart(spec: &LaunchSpec, plan: &Plan, attempt: u32) -> Option<String> {
    let text = format!("Restart Pod: {}, replicas {}, attempt {attempt}", plan.pod_name, plan.replicas.len());
    match spec.generation {
        Generation::Current => launch_line(spec, "INFO", &text),
        Generation::Legacy => Some(legacy("INFO", "launch.py", &text)),
    }
}

/// The end. `first_failed` is how the lowest-numbered rank ended that did not succeed.
pub fn at_end(
    spec: &LaunchSpec,
    plan: &Plan,
    outcome: Outcome,
    signal: Option<i32>,
    code: u8,
    first_failed: Option<&Exit>,
) -> Vec<String> {
    let code = match (spec.own.exit_codes, first_failed) {
        // Paddle says -15 and exits with what is left of it in a byte.
        (ExitCodes::Paddle, Some(Exit::Signal { signal, .. })) => -signal,
        _ => i32::from(code),
    };
    match (spec.generation, outcome) {
        (Generation::Current, _) => {
            let completed = if outcome == Outcome::Succeeded { Some("Pod completed".to_owned()) } else { None };
            let exit = match (outcome, signal) {
                (Outcome::Interrupted, Some(signal)) => format!("Exit with signal {signal}"),
                _ => format!("Exit code {code}"),
            };
            completed.into_iter().chain([exit]).filter_map(|text| launch_line(spec, "INFO", &text)).collect()
        }
        (Generation::Legacy, _) if matches!(spec.mode, Mode::Servers(_)) => servers::at_end(plan),
        (Generation::Legacy, Outcome::Succeeded) => {
            vec![legacy("INFO", "launch.py", "Local processes completed.")]
        }
        (Generation::Legacy, Outcome::Failed | Outcome::Interrupted | Outcome::Stopped) => Vec::new(),
    }
}
