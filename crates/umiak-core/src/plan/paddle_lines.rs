//! The lines that Paddle's launchers print, word for word, because tools and people search for them. They are written to
//! Paddle's own `<job_id>.<pod>.log`; only the few that programs grep for also go to the console.
//!
//! `<ts>` is replaced by the time when the line is written. A job of another launcher has none of these lines.

mod servers;

use std::ffi::OsStr;

use crate::contract::Topology;
use crate::facts::{Outcome, Verdict};
use crate::machine::job::AttemptId;
use crate::mask;
use crate::model::{DeviceKind, Exit, ExitCodes, Generation, Mode, Nodes, PaddleHabits, Request};
use crate::quote::python::{list, quoted};

use super::launch::put_aside;
use super::{Inventory, Plan, Replica};

/// True if lines of this level are written.
fn is_shown(paddle: &PaddleHabits, level: &str) -> bool {
    let weight = |level: &str| match level {
        "DEBUG" => 10,
        "INFO" => 20,
        "WARNING" | "WARN" => 30,
        "ERROR" => 40,
        "CRITICAL" | "FATAL" => 50,
        _ => 0,
    };
    weight(level) >= weight(&paddle.log_level)
}

fn launch_line(request: &Request, level: &str, text: &str) -> Option<String> {
    let paddle = request.paddle.as_ref()?;
    is_shown(paddle, level).then(|| format!("LAUNCH {level} <ts> {text}"))
}

/// A warning, if the requested level shows it.
pub fn warning(request: &Request, text: &str) -> Option<String> {
    launch_line(request, "WARNING", text)
}

/// Paddle's console lines that programs read there: overrides by the environment, and the legacy launcher's message
/// about missing devices.
pub fn on_console(request: &Request, plan: &Plan) -> Vec<String> {
    let Some(paddle) = &request.paddle else { return Vec::new() };
    let cpu_only = cpu_only(plan).filter(|_| paddle.variables.generation == Generation::Legacy);
    paddle.lines.iter().cloned().chain(cpu_only).collect()
}

/// The legacy launcher's line on a machine without devices.
fn cpu_only(plan: &Plan) -> Option<String> {
    let is_on_cpu = plan.topology().device_kind.is_none();
    is_on_cpu.then(|| legacy("WARNING", "launch.py", "launch start with CPUONLY mode"))
}

/// Lines before the first rank: the environment, the peers, the configuration.
pub fn at_start(request: &Request, inventory: &Inventory, plan: &Plan) -> Vec<String> {
    let Some(paddle) = &request.paddle else { return Vec::new() };
    let mut lines = vec![environ(inventory, plan), peers(request, plan)];
    lines.extend(put_aside(paddle, inventory).into_iter().map(|name| {
        format!(
            "UserWarning: Unset '{name}' to ensure stable NCCL communication in distributed training (backed up as '{name}_original')."
        )
    }));
    lines.extend(paddle.lines.iter().cloned());
    match paddle.variables.generation {
        Generation::Current => {
            let mut log = |level: &str, text: &str| lines.extend(launch_line(request, level, text));
            let (controller, mode) = match request.mode {
                Mode::Collective => ("CollectiveController", "collective"),
                Mode::Rpc => ("RpcController", "rpc"),
                Mode::Servers(_) => ("PSController", "ps"),
            };
            log("DEBUG", &format!("{controller} enabled"));
            let mut say = |text: &str| log("INFO", text);
            say("-----------  Configuration  ----------------------");
            for (name, value) in &paddle.configuration {
                say(&format!("{name}: {value}"));
            }
            say(&"-".repeat(50));
            say(&format!("Job: {}, mode {mode}, {}", request.job_id, replicas(paddle)));
            if let Some(exchanged) = exchanged(request, plan) {
                log("DEBUG", &format!("sync peers done {exchanged}"));
            }
            log("INFO", &format!("Run Pod: {}, replicas {}, status ready", pod_name(plan), plan.replicas.len()));
            log("DEBUG", &container(request, plan, &plan.replicas[0], "uninit", -1));
        }
        Generation::Legacy => {
            lines.push("-----------  Configuration Arguments -----------".to_owned());
            lines.extend(paddle.configuration.iter().map(|(name, value)| format!("{name}: {value}")));
            lines.push("-".repeat(48));
            if let Mode::Servers(_) = request.mode {
                lines.extend(servers::at_start(request, inventory, plan));
                return lines;
            }
            lines.extend(cpu_only(plan));
            lines.push(mode_line(plan.topology().device_kind).to_owned());
            let endpoints = plan.replicas.iter().filter_map(|replica| replica.endpoint.as_ref());
            let ports: Vec<String> = endpoints.map(|endpoint| endpoint.port.get().to_string()).collect();
            lines.push(legacy("INFO", "launch.py", &format!("find free ports:[{}]", ports.join(", "))));
            lines.push(legacy("INFO", "launch_utils.py", &environment_table(plan)));
            let log_dir = request.logs.dir.display();
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
        Some(DeviceKind::Mlu) => "launch train in MLU mode",
        None => "launch train in CPU mode",
    }
}

/// The launcher's environment as Python prints it, with secrets masked and with the changes for all ranks.
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

/// The number of nodes as Paddle shows it: the most, then the range. Only a range makes a job elastic, etcd does not.
fn replicas(paddle: &PaddleHabits) -> String {
    let given = paddle.configuration.iter().find(|(name, _)| name == "nnodes").map_or("1", |(_, value)| value.as_str());
    let number = |text: &str| text.trim().parse().unwrap_or(1_u32);
    let (min, max, elastic) = match given.split_once(':') {
        Some((min, max)) => (number(min), number(max), "True"),
        None => (number(given), number(given), "False"),
    };
    format!("replicas {max}[{min}:{max}], elastic {elastic}")
}

/// Paddle's name for the processes of this node.
fn pod_name(plan: &Plan) -> &str {
    plan.options.pod_name.as_deref().unwrap_or_default()
}

/// The peers: a record for each node, or the endpoints with a static list of several nodes.
fn peers(request: &Request, plan: &Plan) -> String {
    let topology = plan.topology();
    if let Mode::Servers(mode) = &request.mode {
        return servers::peers(request, mode, plan);
    }
    if let Nodes::List { .. } = request.nodes {
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
        // The names of other pods are not known, and only the first node's candidate is ever used.
        let candidate = if index == 0 { &topology.paddle_store } else { &members[0].endpoint };
        format!(
            "{{'name': {}, 'rank': {}, 'replicas': {}, 'dtype': '{}', 'candidate': '{candidate}', 'endpoints': '{}'}}",
            quoted(OsStr::new(if is_own { pod_name(plan) } else { &node.host })),
            node_rank(request, topology, index),
            node.size,
            topology.device_kind.map_or("cpu", DeviceKind::word),
            endpoints.join(","),
        )
    });
    format!("[{}]", records.collect::<Vec<_>>().join(", "))
}

/// The rank of a node; a single node has -1 unless given.
fn node_rank(request: &Request, topology: &Topology, index: usize) -> i64 {
    if topology.nodes.len() == 1 { request.node_rank.map_or(-1, i64::from) } else { index as i64 }
}

/// The records that the nodes have exchanged.
fn exchanged(request: &Request, plan: &Plan) -> Option<String> {
    match &request.mode {
        Mode::Servers(mode) => servers::exchanged(request, mode, plan),
        Mode::Collective | Mode::Rpc => Some(peers(request, plan)),
    }
}

/// The master's output: the command for the other nodes, between two lines.
pub fn copy_to_others(command: &str) -> String {
    let line = "-".repeat(80);
    format!("Copy the following command to other nodes to run.\n{line}\n{command}\n{line}")
}

/// The legacy launcher's table of the first rank.
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
    let first = plan.known_variables(&plan.replicas[0]);
    let value = |name: &str| first.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str());
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

/// The line after the last ranks have started.
pub fn at_spawn(request: &Request, plan: &Plan, started: &[AttemptId]) -> Option<String> {
    let last = plan.replicas.last()?.slot;
    if !started.iter().any(|id| id.slot == last) {
        return None;
    }
    let text = format!("Watching Pod: {}, replicas {}, status running", pod_name(plan), plan.replicas.len());
    (request.generation() == Generation::Current).then(|| launch_line(request, "INFO", &text)).flatten()
}

/// The line for each rank, once its process exists.
pub fn at_started(request: &Request, index: u32, pid: u32) -> Option<String> {
    tells_processes(request).then(|| format!("launch proc_id:{pid} idx:{index}"))
}

/// The line when umiak stops a rank.
pub fn at_stop(request: &Request, pid: u32) -> Option<String> {
    tells_processes(request).then(|| legacy("INFO", "launch_utils.py", &format!("terminate process group gid:{pid}")))
}

/// True if each process has its own lines.
fn tells_processes(request: &Request) -> bool {
    request.generation() == Generation::Legacy && !matches!(request.mode, Mode::Servers(_))
}

/// The line when a signal stops the launcher.
pub fn at_signal(request: &Request, signal: i32) -> Option<String> {
    match request.generation() {
        Generation::Current => launch_line(request, "INFO", &format!("Terminating with signal {signal}")),
        Generation::Legacy => Some(legacy("WARNING", "launch.py", "Terminating... exit")),
    }
}

/// The record that users of the current launcher search for: two lines, one timestamp.
pub fn container_failed(request: &Request, plan: &Plan, verdict: &Verdict) -> Option<String> {
    let cause = verdict.causes.first()?;
    let replica = plan.replicas.iter().find(|replica| Some(replica.rank) == cause.subject.rank)?;
    let code = match &cause.exit {
        Exit::Code { code } => *code,
        Exit::Signal { signal, .. } => -signal,
        exit => i32::from(exit.shell_code()),
    };
    let text = format!("Container failed !!!\n{}", container(request, plan, replica, "failed", code));
    (request.generation() == Generation::Current).then(|| launch_line(request, "ERROR", &text)).flatten()
}

fn container(request: &Request, plan: &Plan, replica: &Replica, status: &str, code: i32) -> String {
    let name = replica.log.as_ref().and_then(|log| log.path.file_name());
    let log = request.logs.dir.join(name.unwrap_or_default());
    let command = &plan.commands[replica.slot.role as usize];
    format!(
        "Container rank {} status {status} cmd {} code {code} log {}",
        replica.rank.0,
        list(mask::words(&command.argv).iter().map(std::ffi::OsString::as_os_str)),
        log.display()
    )
}

/// The verdict, in Paddle's words. `abort` is the line of the user's guide.
pub fn at_failure(request: &Request, plan: &Plan, verdict: &Verdict, abort: &str) -> Vec<String> {
    match request.generation() {
        _ if request.paddle.is_none() => Vec::new(),
        Generation::Current => {
            let mut lines: Vec<String> = launch_line(request, "INFO", "Pod failed").into_iter().collect();
            lines.extend(container_failed(request, plan, verdict));
            lines.push(abort.to_owned());
            lines
        }
        // Paddle prints nothing here; umiak does.
        Generation::Legacy if matches!(request.mode, Mode::Servers(_)) => {
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

/// The line before another attempt, counted from 1.
pub fn at_restart(request: &Request, plan: &Plan, attempt: u32) -> Option<String> {
    let text = format!("Restart Pod: {}, replicas {}, attempt {attempt}", pod_name(plan), plan.replicas.len());
    match request.generation() {
        Generation::Current => launch_line(request, "INFO", &text),
        Generation::Legacy => Some(legacy("INFO", "launch.py", &text)),
    }
}

/// The last lines. `first_failed` is the exit of the lowest rank that failed.
pub fn at_end(
    request: &Request,
    plan: &Plan,
    outcome: Outcome,
    signal: Option<i32>,
    code: u8,
    first_failed: Option<&Exit>,
) -> Vec<String> {
    let code = match (request.exit_codes, first_failed) {
        // Paddle prints -15 and exits with its low byte.
        (ExitCodes::Paddle, Some(Exit::Signal { signal, .. })) => -signal,
        _ => i32::from(code),
    };
    match (request.generation(), outcome) {
        (Generation::Current, _) => {
            let completed = if outcome == Outcome::Succeeded { Some("Pod completed".to_owned()) } else { None };
            let exit = match (outcome, signal) {
                (Outcome::Interrupted, Some(signal)) => format!("Exit with signal {signal}"),
                _ => format!("Exit code {code}"),
            };
            completed.into_iter().chain([exit]).filter_map(|text| launch_line(request, "INFO", &text)).collect()
        }
        (Generation::Legacy, _) if matches!(request.mode, Mode::Servers(_)) => servers::at_end(plan),
        (Generation::Legacy, Outcome::Succeeded) => {
            vec![legacy("INFO", "launch.py", "Local processes completed.")]
        }
        (Generation::Legacy, Outcome::Failed | Outcome::Interrupted | Outcome::Stopped) => Vec::new(),
    }
}
