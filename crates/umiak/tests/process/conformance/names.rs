//! Placeholders for the names that change from run to run.

use std::collections::BTreeMap;

use regex::{Captures, Regex};
use serde_json::Value;
use umiak_testkit::sandbox::Sandbox;

use super::Original;
use super::observe::environment;

/// Ports chosen by a launcher are at or above this one.
const FREE_PORTS: u16 = 10_000;

/// The names, and what replaces them.
#[derive(Debug)]
pub(super) struct Names {
    original: Original,
    /// Literal strings, longest first.
    texts: Vec<(String, String)>,
    /// `host:port`.
    endpoints: BTreeMap<String, String>,
    ports: BTreeMap<String, String>,
    pids: BTreeMap<String, String>,
}

impl Names {
    pub(super) fn new(original: Original, sandbox: &Sandbox) -> Self {
        let mark = sandbox.environment()[std::ffi::OsStr::new("UMIAK_TEST_MARK")].clone();
        let texts = [
            (sandbox.path().display().to_string(), "<cwd>"),
            (environment().display().to_string(), "<venv>"),
            (mark.to_string_lossy().into_owned(), "<mark>"),
        ];
        let texts = texts.map(|(text, name)| (text, name.to_owned())).to_vec();
        Self { original, texts, endpoints: BTreeMap::new(), ports: BTreeMap::new(), pids: BTreeMap::new() }
    }

    /// The launcher whose names they are.
    pub(super) fn original(&self) -> Original {
        self.original
    }

    /// Collects the names of one run from the reports of its ranks.
    pub(super) fn learn(&mut self, run: usize, reports: &[Value]) {
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
            if self.original.is_torch() {
                self.learn_torch(run, report);
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

    /// The store's port, the run's id and the directories of the logs, from torch's variables.
    fn learn_torch(&mut self, run: usize, report: &Value) {
        let variable = |name: &str| report["env"][name].as_str().unwrap_or_default().to_owned();
        let (address, port) = (variable("MASTER_ADDR"), variable("MASTER_PORT"));
        self.learn_endpoint(&format!("{address}:{port}"), format!("<torch store {run}>"));
        let id = variable("TORCHELASTIC_RUN_ID");
        if Regex::new("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$").expect("a constant pattern").is_match(&id) {
            self.texts.push((id, format!("<uuid {run}>")));
        }
        // `DIR/ID_random/attempt_0/0/error.json`, and `DIR` may be `/tmp/torchelastic_random`.
        let path = variable("TORCHELASTIC_ERROR_FILE");
        let directories: Vec<&str> = path.split("/attempt_").next().unwrap_or_default().split('/').collect();
        let is_random = Regex::new("_[a-z0-9_]{8}$").expect("a constant pattern");
        for (directory, name) in directories.iter().rev().zip(["run", "temporary"]) {
            if is_random.is_match(directory) {
                self.texts.push(((*directory).to_owned(), format!("<{name} {run}>")));
            }
        }
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
    pub(super) fn value(&self, name: &str, value: &str) -> String {
        let line = self.text(&format!("{name}={value}"));
        line.split_once('=').map_or_else(|| value.to_owned(), |(_, value)| value.to_owned())
    }

    pub(super) fn text(&self, text: &str) -> String {
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
        replace(r"(MASTER_PORT=)([0-9]+)", &|found| format!("{}{}", &found[1], known(&self.ports, &found[2])));
        replace(r#"(PADDLE_PORT|gloo_port)([ ='":]+)([0-9]+)"#, &|found| {
            format!("{}{}{}", &found[1], &found[2], known(&self.ports, &found[3]))
        });
        replace(r#"(POD_IP[ ='":]+)[0-9.]+"#, &|found| format!("{}<host>", &found[1]));
        replace(r"(proc_id:|gid:)([0-9]+)", &|found| format!("{}{}", &found[1], known(&self.pids, &found[2])));
        replace(r"(pid: |process |PID )([0-9]+)", &|found| format!("{}{}", &found[1], known(&self.pids, &found[2])));
        replace(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", &|_| "<ts>".to_owned());
        replace(r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", &|_| "<ts>".to_owned());
        replace(r"pipe:\[\d+\]", &|_| "<pipe>".to_owned());
        // Log lines of torch's C++ code.
        replace(r"(?m)^\[([IWE])\d{4} [0-9:.]{18} (\w+\.cpp):\d+\]", &|found| {
            format!("[{}<ts> {}]", &found[1], &found[2])
        });
        // Torch's log lines, with the launcher's process id and the place in the source.
        replace(r"(?m)^([IWE])\d{4} [0-9:.]{15} \d+ (torch/\S+\.py):\d+\]", &|found| {
            format!("{}<ts> {}]", &found[1], &found[2])
        });
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

    pub(super) fn lines(&self, text: &str) -> Vec<String> {
        self.text(text).lines().map(str::to_owned).collect()
    }
}
