//! Runs the probe under one launcher and records everything observable about the run. Names that change from run to run
//! (directories, ports, pids, pods, times) are replaced by placeholders.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use umiak_core::contract::differences::Jobs;
use umiak_core::model::Generation;
use umiak_testkit::components;
use umiak_testkit::sandbox::{Outcome, Run, Running, Sandbox};

use super::names::Names;
use super::{Case, Original};
use crate::nodes::Cluster;

const PROBE: &str = include_str!("../support/probe.py");

/// The launcher that starts the probe.
#[derive(Debug, Clone, Copy)]
pub(super) enum Launcher {
    /// The real one.
    Original,
    /// Umiak with the same command line, and these flags of its own.
    Umiak { flags: &'static [&'static str] },
}

/// Everything observed about a run.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) code: i32,
    /// Sorted by name.
    pub(super) ranks: Vec<Rank>,
    /// Files of the log directory, by name. Torchrun's has directories, whose names end with a slash.
    pub(super) files: BTreeMap<String, LogFile>,
    /// Lines of stdout, sorted.
    pub(super) stdout: Vec<String>,
    /// Lines of stdout and stderr, and the lines of the pod log beyond Paddle's own two.
    pub(super) console: BTreeSet<String>,
}

/// One rank, as reported by itself.
#[derive(Debug)]
pub(super) struct Rank {
    /// The rank number (`0`). In a job with servers, trainers have a number and other roles a name such as `pserver-0`.
    pub(super) name: String,
    pub(super) variables: BTreeMap<String, String>,
    /// Other properties of the process.
    pub(super) process: BTreeMap<&'static str, String>,
}

#[derive(Debug)]
pub(super) struct LogFile {
    pub(super) mode: u32,
    pub(super) text: String,
}

impl LogFile {
    /// True for lines 1 and 2 of Paddle's pod log: the launcher's environment and the list of peers.
    pub(super) fn is_own_line_of_pod_log(line: &str) -> bool {
        ["environ({", "[{'name': ", "[['"].iter().any(|start| line.starts_with(start))
    }
}

/// True for `<job>.<pod>.log`, after its pod name was replaced.
pub(super) fn is_pod_log(name: &str) -> bool {
    name.ends_with(">.log")
}

/// Returns one observation for each run of the case, all in one directory, or for each node.
pub(super) fn observe(case: &Case, launcher: Launcher) -> Vec<Observation> {
    if case.jobs == Jobs::SeveralNodes {
        return observe_nodes(case, launcher);
    }
    let sandbox = Sandbox::new();
    furnish(&sandbox);
    let mut names = Names::new(case.original, &sandbox);
    let mut observe_run = |run| {
        let running = command(case, launcher, &sandbox, 0).start();
        let pid = running.pid();
        if let Some(signal) = case.signal {
            running.wait_for_file("out/probe.0.json");
            running.wait_for_file("out/probe.1.json");
            running.signal(signal);
        }
        let outcome = finish(running, launcher);
        let reports = reports(&sandbox, &outcome);
        names.learn(run, &reports);
        record(&sandbox, &names, run, &outcome, &reports, pid)
    };
    (1..=case.runs).map(&mut observe_run).collect()
}

/// Runs the line on two hosts, each with its own file system.
fn observe_nodes(case: &Case, launcher: Launcher) -> Vec<Observation> {
    let cluster = Cluster::new(2);
    let start = |(node, sandbox)| {
        furnish(sandbox);
        command(case, launcher, sandbox, node).on(cluster.network.host(node)).start()
    };
    let running: Vec<Running<'_>> = cluster.sandboxes.iter().enumerate().map(start).collect();
    let ended: Vec<(u32, Outcome)> =
        running.into_iter().map(|running| (running.pid(), finish(running, launcher))).collect();
    let record = |(sandbox, (pid, outcome)): (&Sandbox, &(u32, Outcome))| {
        let reports = reports(sandbox, outcome);
        let mut names = Names::new(case.original, sandbox);
        names.learn(1, &reports);
        record(sandbox, &names, 1, outcome, &reports, *pid)
    };
    cluster.sandboxes.iter().zip(&ended).map(record).collect()
}

fn furnish(sandbox: &Sandbox) {
    let probe = sandbox.write("probe.py", PROBE);
    std::fs::set_permissions(probe, Permissions::from_mode(0o755)).expect("a mode");
    sandbox.write("stdin.txt", "");
    std::fs::create_dir(sandbox.path().join("reply")).expect("the sandbox can be written");
}

fn finish(running: Running<'_>, launcher: Launcher) -> Outcome {
    match launcher {
        // Processes and files that the original leaves behind are not checked.
        Launcher::Original => running.finish_unchecked(),
        Launcher::Umiak { .. } => running.finish(),
    }
}

fn command<'a>(case: &Case, launcher: Launcher, sandbox: &'a Sandbox, node: usize) -> Run<'a> {
    let binaries = environment().join("bin");
    let in_environment = |name: &str| binaries.join(name).to_str().expect("a path in UTF-8").to_owned();
    let mut words = match case.original {
        Original::Torchrun => vec![in_environment("torchrun")],
        Original::TorchLaunch => vec![in_environment("python"), "-m".to_owned(), "torch.distributed.launch".to_owned()],
        Original::Paddle { generation, is_handed_over } => {
            let module: &[&str] = match (generation, case.jobs) {
                (Generation::Current, _) => &["paddle.distributed.launch"],
                (Generation::Legacy, Jobs::All | Jobs::SeveralNodes | Jobs::Elastic) => {
                    &["paddle.distributed.fleet.launch", "--backend", "gloo"]
                }
                // The current launcher hands over to the legacy one.
                (Generation::Legacy, Jobs::Servers) if is_handed_over => &["paddle.distributed.launch"],
                (Generation::Legacy, Jobs::Servers) => &["paddle.distributed.fleet.launch"],
            };
            let module = module.iter().map(|word| (*word).to_owned());
            [in_environment("python"), "-m".to_owned()].into_iter().chain(module).collect()
        }
    };
    if let Launcher::Umiak { flags } = launcher {
        // Behind the name of the launcher.
        let at = if case.original == Original::Torchrun { 1 } else { 3 };
        words.splice(at..at, flags.iter().map(|flag| (*flag).to_owned()));
        if case.original == Original::Torchrun {
            "torchrun".clone_into(&mut words[0]);
        }
    }
    let placeholders = [
        ("$NODE", node.to_string()),
        ("$PROCESSES", (node + 1).to_string()),
        ("$ADDRESS", format!("192.168.0.{}", node + 1)),
        ("$IS_HOST", u8::from(node == 0).to_string()),
    ];
    let fill = |flag: &&str| placeholders.iter().fold((*flag).to_owned(), |flag, (name, to)| flag.replace(name, to));
    words.extend(case.flags.iter().map(fill));
    words.extend([case.script, "--lr", "0.1", "a b"].map(str::to_owned));
    let mut run = match launcher {
        Launcher::Original => {
            let program = words.remove(0);
            sandbox.program(Path::new(&program), words)
        }
        Launcher::Umiak { .. } => sandbox.umiak(words),
    };
    // Stdin is a file, which shows which ranks inherit it.
    run = run.stdin(File::open(sandbox.path().join("stdin.txt")).expect("just written"));
    if case.original.is_torch() {
        // An active environment, in which umiak finds the interpreter.
        let path = std::env::var("PATH").unwrap_or_default();
        run = run.env("PATH", format!("{}:{path}", binaries.display())).env("VIRTUAL_ENV", environment());
    }
    for (name, value) in [("PYTHONDONTWRITEBYTECODE", "1")].iter().chain(case.env) {
        run = run.env(name, value.replace("$DIRECTORY", &sandbox.path().to_string_lossy()));
    }
    run.env("HOME", sandbox.path().join("home")).env("UMIAK_PROBE_OUT", sandbox.path().join("out"))
}

pub(super) fn environment() -> PathBuf {
    components::environment().expect("the suite has checked that it is here")
}

/// Reads and removes the reports of the ranks, sorted by name.
fn reports(sandbox: &Sandbox, outcome: &Outcome) -> Vec<Value> {
    let names = sandbox.list("out").into_iter().filter(|name| name.starts_with("probe."));
    let read = |name: String| sandbox.read(&format!("out/{name}"));
    let mut reports: Vec<Value> =
        names.map(|name| serde_json::from_str(&read(name)).expect("the probe writes JSON")).collect();
    reports.sort_by_key(|report| report["rank"].as_str().expect("a name").to_owned());
    let _ = std::fs::remove_dir_all(sandbox.path().join("out"));
    assert!(!reports.is_empty(), "no rank came up\nstdout:\n{}\nstderr:\n{}", outcome.out(), outcome.err());
    reports
}

fn record(sandbox: &Sandbox, names: &Names, run: usize, outcome: &Outcome, reports: &[Value], pid: u32) -> Observation {
    let mut files: BTreeMap<String, LogFile> = BTreeMap::new();
    // Paddle's are always in `log`; torchrun has a temporary directory without `--log-dir`.
    list(&sandbox.path().join("log"), "", names, &mut files);
    if names.original().is_torch() {
        list(&sandbox.path().join("tmp"), "tmp/", names, &mut files);
        list(&sandbox.path().join("reply"), "reply/", names, &mut files);
    }
    let mut stdout = names.lines(&outcome.out());
    stdout.sort();
    let mut console: BTreeSet<String> =
        [outcome.out(), outcome.err()].iter().flat_map(|text| names.lines(text)).collect();
    for (_, file) in files.iter().filter(|(name, _)| name.ends_with(&format!(".<pod {run}>.log"))) {
        console.extend(names.lines(&file.text).into_iter().filter(|line| !LogFile::is_own_line_of_pod_log(line)));
    }
    let ranks = reports.iter().map(|report| rank(names, report, pid)).collect();
    Observation { code: outcome.code(), ranks, files, stdout, console }
}

/// Collects files and directories below this one.
fn list(directory: &Path, prefix: &str, names: &Names, files: &mut BTreeMap<String, LogFile>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        // A cache of torch, which torchrun itself makes in some runs.
        if name.starts_with("tmp/torchinductor_") {
            continue;
        }
        let mode = std::fs::metadata(&path).expect("just listed").permissions().mode() & 0o777;
        if path.is_dir() {
            let name = format!("{name}/");
            list(&path, &name, names, files);
            files.insert(names.text(&name), LogFile { mode, text: String::new() });
        } else {
            let text = names.text(&String::from_utf8_lossy(&std::fs::read(&path).expect("just listed")));
            files.insert(names.text(&name), LogFile { mode, text });
        }
    }
}

fn rank(names: &Names, report: &Value, launcher: u32) -> Rank {
    let variables = report["env"].as_object().expect("the probe's environment");
    let mut process: BTreeMap<&'static str, String> = [
        "argv",
        "command",
        "executable",
        "python_flags",
        "unbuffered",
        "cwd",
        "umask",
        "is_session_leader",
        "stdin",
        "stdout",
        "stderr",
        "nofile",
        "cpus",
    ]
    .into_iter()
    .map(|fact| (fact, names.text(&report[fact].to_string())))
    .collect();
    for (mask, value) in report["signals"].as_object().expect("a table") {
        let bits = u64::from_str_radix(value.as_str().expect("a mask"), 16).expect("hexadecimal digits");
        // The C library uses signals 32 and 33 itself; their bits depend on whether the process has threads.
        let shown = format!("{:x}", bits & !(0b11 << 31));
        let name = ["SigBlk", "SigIgn", "SigCgt"].into_iter().find(|known| known == mask).expect("a known mask");
        process.insert(name, shown);
    }
    let descriptors: Vec<&String> = report["descriptors"].as_object().expect("a table").keys().collect();
    process.insert("descriptors", format!("{descriptors:?}"));
    process.insert("leads its group", (report["pgid"] == report["pid"]).to_string());
    process.insert("parent is the launcher", (report["ppid"] == launcher).to_string());
    let variables = variables
        .iter()
        .map(|(name, value)| (name.clone(), names.value(name, value.as_str().expect("a variable's value"))))
        .collect();
    Rank { name: report["rank"].as_str().expect("a name").to_owned(), variables, process }
}
