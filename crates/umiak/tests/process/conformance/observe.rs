//! Runs the probe under one launcher and records everything observable about the run. Names that change from run to run
//! (directories, ports, pids, pods, times) are replaced by placeholders.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use regex::{Captures, Regex};
use serde_json::Value;
use umiak_core::contract::differences::Jobs;
use umiak_core::model::Generation;
use umiak_testkit::components;
use umiak_testkit::sandbox::{Outcome, Run, Sandbox};

use super::Case;

/// Ports chosen by a launcher are at or above this one.
const FREE_PORTS: u16 = 10_000;
const PROBE: &str = include_str!("../support/probe.py");

/// The launcher that starts the probe.
#[derive(Debug, Clone, Copy)]
pub(super) enum Launcher {
    /// Paddle's launcher.
    Paddle,
    /// Umiak with the same command line, and these flags of its own.
    Umiak { flags: &'static [&'static str] },
}

/// Everything observed about a run.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) code: i32,
    /// Sorted by name.
    pub(super) ranks: Vec<Rank>,
    /// Files of the log directory, by name.
    pub(super) files: BTreeMap<String, LogFile>,
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

/// Returns one observation for each run of the case; all runs share one directory.
pub(super) fn observe(case: &Case, launcher: Launcher) -> Vec<Observation> {
    let sandbox = Sandbox::new();
    sandbox.write("probe.py", PROBE);
    sandbox.write("stdin.txt", "");
    let mut names = Names::new(&sandbox);
    let mut observe_run = |run| {
        let running = command(case, launcher, &sandbox).start();
        let pid = running.pid();
        let outcome = match launcher {
            // Processes that Paddle leaves behind are not checked.
            Launcher::Paddle => running.finish_unchecked(),
            Launcher::Umiak { .. } => running.finish(),
        };
        let reports = reports(&sandbox, &outcome);
        names.learn(run, &reports);
        record(&sandbox, &names, run, &outcome, &reports, pid)
    };
    (1..=case.runs).map(&mut observe_run).collect()
}

fn command<'a>(case: &Case, launcher: Launcher, sandbox: &'a Sandbox) -> Run<'a> {
    let python = environment().join("bin/python");
    let mut words: Vec<&str> = vec!["-m"];
    words.extend(match (case.generation, case.jobs) {
        (Generation::Current, _) => ["paddle.distributed.launch"].as_slice(),
        (Generation::Legacy, Jobs::All | Jobs::SeveralNodes) => {
            &["paddle.distributed.fleet.launch", "--backend", "gloo"]
        }
        // The current launcher hands over to the legacy one.
        (Generation::Legacy, Jobs::Servers) if case.is_handed_over => &["paddle.distributed.launch"],
        (Generation::Legacy, Jobs::Servers) => &["paddle.distributed.fleet.launch"],
    });
    if let Launcher::Umiak { flags } = launcher {
        words.splice(2..2, flags.iter().copied());
    }
    words.extend(case.flags);
    words.extend(["probe.py", "--lr", "0.1", "a b"]);
    let mut run = match launcher {
        Launcher::Paddle => sandbox.program(&python, words),
        Launcher::Umiak { .. } => {
            words.insert(0, python.to_str().expect("a path in UTF-8"));
            sandbox.umiak(words)
        }
    };
    // Stdin is a file, which shows which ranks inherit it.
    run = run.stdin(File::open(sandbox.path().join("stdin.txt")).expect("just written"));
    for (name, value) in [("PYTHONDONTWRITEBYTECODE", "1")].iter().chain(case.env) {
        run = run.env(name, value);
    }
    run.env("HOME", sandbox.path().join("home")).env("UMIAK_PROBE_OUT", sandbox.path().join("out"))
}

fn environment() -> PathBuf {
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
    let files: BTreeMap<String, LogFile> = sandbox
        .list("log")
        .into_iter()
        .map(|name| {
            let path = sandbox.path().join("log").join(&name);
            let mode = std::fs::metadata(&path).expect("just listed").permissions().mode() & 0o777;
            let text = names.text(&sandbox.read(&format!("log/{name}")));
            (names.text(&name), LogFile { mode, text })
        })
        .collect();
    let mut console: BTreeSet<String> =
        [outcome.out(), outcome.err()].iter().flat_map(|text| names.lines(text)).collect();
    for (_, file) in files.iter().filter(|(name, _)| name.ends_with(&format!(".<pod {run}>.log"))) {
        console.extend(names.lines(&file.text).into_iter().filter(|line| !LogFile::is_own_line_of_pod_log(line)));
    }
    let ranks = reports.iter().map(|report| rank(names, report, pid)).collect();
    Observation { code: outcome.code(), ranks, files, console }
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

/// Placeholders for the names that change from run to run.
#[derive(Debug)]
struct Names {
    /// Literal strings, longest first.
    texts: Vec<(String, String)>,
    /// `host:port`.
    endpoints: BTreeMap<String, String>,
    ports: BTreeMap<String, String>,
    pids: BTreeMap<String, String>,
}

impl Names {
    fn new(sandbox: &Sandbox) -> Self {
        let mark = sandbox.environment()[std::ffi::OsStr::new("UMIAK_TEST_MARK")].clone();
        let texts = [
            (sandbox.path().display().to_string(), "<cwd>"),
            (environment().display().to_string(), "<venv>"),
            (mark.to_string_lossy().into_owned(), "<mark>"),
        ];
        let texts = texts.map(|(text, name)| (text, name.to_owned())).to_vec();
        Self { texts, endpoints: BTreeMap::new(), ports: BTreeMap::new(), pids: BTreeMap::new() }
    }

    /// Collects the names of one run from the reports of its ranks.
    fn learn(&mut self, run: usize, reports: &[Value]) {
        for report in reports {
            let rank = report["rank"].as_str().expect("a name");
            let variable = |name: &str| report["env"][name].as_str().unwrap_or_default().to_owned();
            // The host address is not compared: Paddle resolves the host name, umiak uses the loopback address.
            for (name, port) in [
                ("PADDLE_MASTER", format!("<store {run}>")),
                ("PADDLE_MASTER_ENDPOINT", format!("<store {run}>")),
                ("PADDLE_GLOO_HTTP_ENDPOINT", format!("<gloo port {run}>")),
                ("PADDLE_CURRENT_ENDPOINT", format!("<port {run}.{rank}>")),
                ("PADDLE_WORKER_ENDPOINT", format!("<port {run}.{rank}>")),
            ] {
                self.learn_endpoint(&variable(name), port);
            }
            for (name, part) in [
                ("PADDLE_PSERVERS_IP_PORT_LIST", "server"),
                ("PADDLE_TRAINER_ENDPOINTS", "trainer"),
                ("PADDLE_COORDINATOR_ENDPOINTS", "coordinator"),
                ("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", "heter"),
            ] {
                // Without roles, endpoints are learned from each rank's own variables above.
                let list = if variable("TRAINING_ROLE").is_empty() { String::new() } else { variable(name) };
                for (index, endpoint) in list.split(',').enumerate() {
                    self.learn_endpoint(endpoint, format!("<{part} {run}.{index}>"));
                }
            }
            self.pids.insert(report["pid"].to_string(), format!("<pid {run}.{rank}>"));
            for (name, placeholder) in
                [("POD_NAME", format!("<pod {run}>")), ("PADDLE_GLOO_FS_PATH", format!("<gloo {run}>"))]
            {
                if !variable(name).is_empty() {
                    self.texts.push((variable(name), placeholder));
                }
            }
        }
        self.texts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        self.texts.dedup();
    }

    /// Ports below [`FREE_PORTS`] come from the command line and are not replaced.
    fn learn_endpoint(&mut self, endpoint: &str, name: String) {
        let Some((_, port)) = endpoint.rsplit_once(':') else { return };
        if port.parse::<u16>().is_ok_and(|port| port >= FREE_PORTS) {
            self.endpoints.insert(endpoint.to_owned(), format!("<host>:{name}"));
            self.ports.insert(port.to_owned(), name);
        }
    }

    /// Replaces names in a value; some are recognised only by the variable's name.
    fn value(&self, name: &str, value: &str) -> String {
        let line = self.text(&format!("{name}={value}"));
        line.split_once('=').map_or_else(|| value.to_owned(), |(_, value)| value.to_owned())
    }

    fn text(&self, text: &str) -> String {
        let mut text = self.texts.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        let known = |table: &BTreeMap<String, String>, key: &str| table.get(key).cloned().unwrap_or(key.to_owned());
        let mut replace = |pattern: &str, with: &dyn Fn(&Captures<'_>) -> String| {
            let pattern = Regex::new(pattern).expect("a constant pattern");
            text = pattern.replace_all(&text, with).into_owned();
        };
        replace(r"[0-9.]+:[0-9]+", &|found| known(&self.endpoints, &found[0]));
        replace(r"(free ports:\[)([0-9, ]+)", &|found| {
            let ports: Vec<String> = found[2].split(", ").map(|port| known(&self.ports, port)).collect();
            format!("{}{}", &found[1], ports.join(", "))
        });
        replace(r#"(PADDLE_PORT|gloo_port)([ ='":]+)([0-9]+)"#, &|found| {
            format!("{}{}{}", &found[1], &found[2], known(&self.ports, &found[3]))
        });
        replace(r#"(POD_IP[ ='":]+)[0-9.]+"#, &|found| format!("{}<host>", &found[1]));
        replace(r"(proc_id:|gid:)([0-9]+)", &|found| format!("{}{}", &found[1], known(&self.pids, &found[2])));
        replace(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", &|_| "<ts>".to_owned());
        // Line numbers in Paddle's source do not matter.
        replace(r"(launch|launch_utils)\.py:\d+", &|found| format!("{}.py", &found[1]));
        replace(r"(?m)^\S+/args_envs\.py:\d+: ", &|_| String::new());
        // The status depends on whether a rank has already ended.
        replace(r"(Watching Pod: .*), status (ready|running)", &|found| format!("{}, status …", &found[1]));
        // The table's width depends on the port numbers.
        replace(r"(?m)^    \|.*$", &|found| found[0].split_whitespace().collect::<Vec<_>>().join(" "));
        // These values depend on path lengths, or are cut off inside an endpoint.
        replace(r"(?m)^(\| PADDLE_GLOO_FS_PATH)\b.*$", &|found| format!("{} <path> |", &found[1]));
        replace(r"(?m)^(\| .*\.\.\.) [^, ]*", &|found| found[1].to_owned());
        text
    }

    fn lines(&self, text: &str) -> Vec<String> {
        self.text(text).lines().map(str::to_owned).collect()
    }
}
