//! `umiak torchrun`: the command line of `torchrun`, and of the older `torch.distributed.launch`.
//!
//! Variables `PET_…` stand for flags, and flags win. Nothing here inspects the machine.

mod conf;
mod flags;
mod nodes;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

pub use flags::TORCH_FLAGS;

use super::arguments::{Arguments, Source, Value};
use super::checks::Issues;
use super::flags::{Flag, Owner, Support, ValueKind};
use super::parse::{command_line, shown_line, usage_error};
use super::{LaunchSpec, Parsed, Spelling, help, name, own, words};
use crate::diag::{Code, Diagnostic, nearest};
use crate::formats::argparse::{self, Item, Line, Matching, Opt, Outcome, Takes};
use crate::model::{
    Backend, CommandRequest, DeviceKind, LogNames, LogRequest, Mode, Nodes, Omp, Policy, PortRequest, Processes,
    Request, Restart, ScriptKind, StopPolicy, StreamMap, StreamRules, TorchHabits, TorchLogs, TorchVariables,
};

use nodes::Meeting;

/// Time from the first signal to SIGKILL.
const GRACE: Duration = Duration::from_secs(30);

/// Parses the arguments after the launcher's name.
pub(super) fn parse(
    spelling: Spelling,
    argv: &[OsString],
    env: &BTreeMap<String, String>,
) -> Result<Parsed, Vec<Diagnostic>> {
    let line = match argparse::parse(&options(), argv) {
        Ok(Outcome::Help) => return Ok(Parsed::Help(help::help(&spelling))),
        Ok(Outcome::Line(line)) => line,
        Err(errors) => return Err(errors.iter().map(usage_error).collect()),
    };
    let mut issues = Issues::default();
    let mut arguments = Arguments::of(&TORCH_FLAGS);
    from_environment(&mut arguments, env, &mut issues);
    for item in &line.items {
        let given = match item {
            Item::Known(given) => arguments.give(&TORCH_FLAGS[given.key], given),
            Item::Unknown(token) => Err(unknown(token)),
        };
        issues.errors.extend(given.err());
    }
    let mut own = own::lower(&arguments);
    issues.errors.extend(own::check(&arguments));
    issues.errors.extend(own::fill(&mut own, env).err());
    let mut reading = Reading { spelling: &spelling, arguments: &arguments, env, issues: &mut issues };
    reading.refuse();
    let Meeting {
        nodes,
        placement,
        elastic,
        store,
        job_id,
        is_named,
        random_id,
        host,
        node_rank,
        timeout,
        node_timeout,
    } = reading.meeting(own.rdzv_port);
    if let Some(timeout) = timeout.filter(|_| arguments.text("rdzv-timeout").is_none()) {
        own.rdzv_timeout = timeout;
    }
    if let Some(timeout) = node_timeout.filter(|_| arguments.text("node-timeout").is_none()) {
        own.node_timeout = timeout;
    }
    let script = reading.script(&line);
    let mut args = line.script_args.clone();
    if matches!(spelling, Spelling::TorchLaunch { .. }) && !arguments.is_switched_on("use_env") {
        args.insert(0, "--local-rank=${local_rank}".into());
    }
    let kind = reading.kind();
    let module = |text: &str| text.rsplit('.').next().unwrap_or(text).to_owned();
    let stem = match kind {
        ScriptKind::Module => name::of(OsStr::new(&module(&script.to_string_lossy())), &[]),
        _ => name::of(&script, &line.script_args),
    };
    let command_line = command_line(argv, line.script_args.len());
    let logs = reading.logs();
    let request = Request {
        name: if is_named { job_id.to_string() } else { stem },
        line: shown_line(&spelling, argv, line.script_args.len()),
        job_id,
        mode: Mode::Collective,
        host,
        ip: None,
        node_rank,
        sort_ip: false,
        uneven: true,
        devices: None,
        share_devices: false,
        processes: reading.processes(),
        numa: reading.numa(),
        backend: Backend::Auto,
        ports: PortRequest::Free,
        logs: LogRequest {
            dir: if let TorchLogs::Dir(dir) = &logs { dir.clone() } else { PathBuf::new() },
            names: LogNames::Local,
            overwrite: false,
            rotation: None,
        },
        omp: match own::omp(&arguments) {
            Omp::OneUnlessSet => Omp::OneIfSeveral,
            given => given,
        },
        command: CommandRequest {
            interpreter: env
                .get("PYTHON_EXEC")
                .filter(|word| !word.is_empty())
                .map_or_else(|| spelling.interpreter(), |word| Some(crate::model::Interpreter::Named(word.into()))),
            script,
            args,
            with_coverage: false,
            is_check: false,
            kind,
            substitutes: true,
            misread: None,
        },
        policy: reading.policy(),
        exit_codes: own::exit_codes(&arguments),
        server_timeout: None,
        store,
        store_relay: false,
        paddle: None,
        torch: Some(TorchHabits {
            variables: TorchVariables {
                role: arguments.text("role").unwrap_or("default").to_owned(),
                signals: reading.signals(),
                virtual_local_rank: arguments.is_switched_on("virtual_local_rank"),
                no_error_file: logs == TorchLogs::Dropped,
            },
            random_id,
            streams: reading.streams(),
            logs,
        }),
        nodes,
        placement,
        elastic,
    };
    reading.idle(&request);
    if !issues.errors.is_empty() {
        return Err(issues.errors);
    }
    let notices = issues.into_notices();
    Ok(Parsed::Launch(Box::new(LaunchSpec { spelling, request, notices, own, command_line })))
}

/// The table in the form of the parser. `torchrun` may be abbreviated, umiak's own flags not.
fn options() -> Vec<Opt> {
    let rows = TORCH_FLAGS.iter().enumerate();
    rows.flat_map(|(key, flag)| {
        let takes = if flag.takes_value() { Takes::Value } else { Takes::Nothing };
        let matching = match flag.owner {
            Owner::Torch => Matching::Abbreviated { tier: 0 },
            _ => Matching::Whole,
        };
        flag.names().map(move |name| Opt { name, key, takes, matching })
    })
    .collect()
}

/// Sets flags from variables. An empty variable is not set.
fn from_environment(arguments: &mut Arguments, env: &BTreeMap<String, String>, issues: &mut Issues) {
    for flag in TORCH_FLAGS.iter().filter(|flag| flag.owner == Owner::Torch) {
        let Some(variable) = flag.variable else { continue };
        let Some(text) = env.get(variable.name).filter(|text| !text.is_empty()) else { continue };
        let source = Source::Variable(variable.name);
        if flag.value == ValueKind::Switch {
            if let Some(number) = argparse::int(text) {
                arguments.put(flag.attribute, Value::Bool(number != 0), source);
            } else {
                let message = format!("`{}` takes a whole number, not `{text}`", variable.name);
                let error = Diagnostic::error(Code::L0009, message);
                issues.errors.push(error.hint(format!("a number other than 0 sets `{}`", flag.name)));
            }
        } else {
            issues.errors.extend(arguments.set(flag, source, OsStr::new(text)).err());
        }
    }
}

fn unknown(token: &OsStr) -> Diagnostic {
    let text = token.to_string_lossy();
    let word = text.split('=').next().unwrap_or(&text);
    let error = Diagnostic::error(Code::L0001, format!("unknown flag `{word}`"));
    match nearest(&word.replace('_', "-"), TORCH_FLAGS.iter().flat_map(Flag::names)) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("`-h` lists all flags; the script's own flags come after the script"),
    }
}

/// The flags of one command line, and what is wrong with them.
struct Reading<'a> {
    spelling: &'a Spelling,
    arguments: &'a Arguments,
    env: &'a BTreeMap<String, String>,
    issues: &'a mut Issues,
}

impl Reading<'_> {
    fn error(&mut self, error: Diagnostic) {
        self.issues.errors.push(error);
    }

    /// Reports a value that the flag does not take.
    fn wrong(&mut self, attribute: &str, expected: &str, text: &str) {
        let message = format!("`{}` takes {expected}, not `{text}`", self.arguments.name(attribute));
        self.error(self.arguments.wrong_value(attribute, message));
    }

    /// Reports what this version does not have.
    fn not_yet(&mut self, message: impl Into<String>) {
        self.error(Diagnostic::error(Code::L0003, message));
    }

    /// Refuses flags of this version of `torchrun` that umiak does not have.
    fn refuse(&mut self) {
        for flag in TORCH_FLAGS.iter() {
            if let Support::NotYet(what) = flag.support
                && self.arguments.is_set(flag.attribute)
            {
                let name = self.arguments.name(flag.attribute);
                self.not_yet(format!("`{name}` needs {what}, which are not supported"));
            }
        }
        if self.arguments.is_switched_on("use_env") && !matches!(self.spelling, Spelling::TorchLaunch { .. }) {
            let error = Diagnostic::error(Code::L0001, "`--use-env` is a flag of `torch.distributed.launch`");
            self.error(error.hint("leave it out: `torchrun` always sets `LOCAL_RANK`, and adds no argument"));
        }
    }

    /// The script; reports an error and returns an empty name if there is none.
    fn script(&mut self, line: &Line) -> OsString {
        match &line.script {
            Some(script) if !script.is_empty() => return script.clone(),
            Some(_) => self.error(Diagnostic::error(Code::L0001, "the name of the training script is empty")),
            None => {
                let error = Diagnostic::error(Code::L0001, "the training script is missing");
                let hint = "the script comes after the flags: `umiak torchrun --nproc-per-node 4 train.py`";
                self.error(error.hint(hint));
            }
        }
        OsString::new()
    }

    fn kind(&mut self) -> ScriptKind {
        let [module, no_python, run_path] =
            ["module", "no_python", "run_path"].map(|attribute| self.arguments.is_switched_on(attribute));
        if module && no_python {
            let error = Diagnostic::error(Code::L0002, "`-m` cannot be combined with `--no-python`");
            self.error(error.hint("leave one of them out"));
        }
        if no_python
            && matches!(self.spelling, Spelling::TorchLaunch { .. })
            && !self.arguments.is_switched_on("use_env")
        {
            let message = "`--no-python` needs `--use-env` with `torch.distributed.launch`";
            self.error(Diagnostic::error(Code::L0002, message));
        }
        if run_path {
            ScriptKind::Python
        } else if module {
            ScriptKind::Module
        } else if no_python {
            ScriptKind::Program
        } else {
            ScriptKind::Python
        }
    }

    fn processes(&mut self) -> Processes {
        let Some(text) = self.arguments.text("nproc_per_node") else { return Processes::Number(1) };
        match text {
            "cpu" => return Processes::PerCpu,
            "gpu" => return Processes::Per(DeviceKind::Gpu),
            "xpu" => return Processes::Per(DeviceKind::Xpu),
            "auto" => return Processes::PerDeviceOrCpu,
            _ => {}
        }
        // There cannot be more processes than ports.
        let number = argparse::int(text).and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0);
        number.map_or_else(
            || {
                self.wrong("nproc_per_node", "a number from 1 to 65535, `gpu`, `xpu`, `cpu` or `auto`", text);
                Processes::Number(1)
            },
            |number| Processes::Number(number.into()),
        )
    }

    fn numa(&mut self) -> bool {
        match self.arguments.text("numa_binding") {
            None => false,
            Some("node") => true,
            Some(mode) => {
                self.not_yet(format!("`--numa-binding {mode}` is not supported yet; `node` is"));
                false
            }
        }
    }

    /// Signals are passed on to ranks as [`TorchVariables::SIGNALS`] are, whether listed or not.
    fn signals(&mut self) -> String {
        let default = TorchVariables::default().signals;
        let Some(text) = self.arguments.text("signals_to_handle") else { return default };
        for name in text.split(',').map(str::trim) {
            if !TorchVariables::SIGNALS.contains(&name) {
                let known = words::either(&TorchVariables::SIGNALS);
                self.not_yet(format!("`--signals-to-handle` takes {known}; `{name}` is not supported yet"));
            }
        }
        text.to_owned()
    }

    fn logs(&mut self) -> TorchLogs {
        match self.arguments.raw("log_dir").filter(|dir| !dir.is_empty()) {
            None => TorchLogs::InRun,
            Some(dir) if dir == "/dev/null" => TorchLogs::Dropped,
            Some(dir) => TorchLogs::Dir(dir.into()),
        }
    }

    fn streams(&mut self) -> StreamRules {
        let filter = self.arguments.text("local_ranks_filter").map(str::to_owned).map(|text| {
            let ranks: Option<BTreeSet<u32>> = text.split(',').map(|rank| rank.trim().parse().ok()).collect();
            ranks.unwrap_or_else(|| {
                self.wrong("local_ranks_filter", "local ranks separated by commas, as in `0,1`", &text);
                BTreeSet::new()
            })
        });
        let given = self.arguments.text("log_line_prefix_template").map(str::to_owned);
        let template = given.or_else(|| self.env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").cloned());
        StreamRules { redirects: self.stream_map("redirects"), tee: self.stream_map("tee"), filter, template }
    }

    fn stream_map(&mut self, attribute: &str) -> StreamMap {
        let Some(text) = self.arguments.text(attribute) else { return StreamMap::default() };
        StreamMap::parse(text).unwrap_or_else(|| {
            self.wrong(attribute, "0, 1, 2 or 3, or a list as in `0:3,1:2`", text);
            StreamMap::default()
        })
    }

    fn policy(&mut self) -> Policy {
        let number = self.arguments.int("max_restarts").unwrap_or(0);
        let max = u32::try_from(number).unwrap_or_else(|_| {
            self.wrong("max_restarts", &format!("a number from 0 to {}", u32::MAX), &number.to_string());
            0
        });
        let policy = own::policy(self.arguments, Some(max));
        let grace = if self.arguments.text("grace").is_some() { policy.stop.grace } else { self.shutdown_timeout() };
        // torchrun restarts at once.
        let backoff = match self.arguments.text("restart-backoff") {
            Some(_) => policy.restart.backoff,
            None => Duration::ZERO,
        };
        let restart = Restart { backoff, ..policy.restart };
        Policy { restart, stop: StopPolicy { grace, ..policy.stop }, ..policy }
    }

    fn shutdown_timeout(&mut self) -> Duration {
        const VARIABLE: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
        let seconds = |number: i64| u64::try_from(number).ok().filter(|seconds| *seconds <= 1 << 32);
        if let Some(number) = self.arguments.int("shutdown_timeout") {
            return seconds(number).map_or_else(
                || {
                    self.wrong("shutdown_timeout", "a number of seconds", &number.to_string());
                    GRACE
                },
                Duration::from_secs,
            );
        }
        let Some(text) = self.env.get(VARIABLE).filter(|text| !text.is_empty()) else { return GRACE };
        argparse::int(text).and_then(seconds).map_or_else(
            || {
                let message = format!("`{VARIABLE}` takes a number of seconds, not `{text}`");
                self.error(Diagnostic::error(Code::L0009, message).hint("correct or unset it"));
                GRACE
            },
            Duration::from_secs,
        )
    }

    /// Reports flags without effect, unless they are in many scripts and change nothing that a user would notice.
    fn idle(&mut self, request: &Request) {
        if self.arguments.text("event_log_handler").is_some_and(|name| name != "null") {
            self.issues.idle("--event-log-handler", "`--output json` prints the events of a run");
        }
        let is_given = |attribute: &str| matches!(self.arguments.source(attribute), Some(Source::Flag(_)));
        let mut idle = Vec::new();
        if request.nodes == Nodes::One {
            let several = ["token", "token-file", "rdzv-timeout", "node-timeout", "reconnect-window"];
            let given = several.into_iter().filter(|attribute| is_given(attribute));
            idle.extend(given.map(|attribute| (attribute, "the job has one node")));
        }
        if request.policy.restart.max == 0 {
            let about = ["restart-backoff", "restart-window"].into_iter().filter(|attribute| is_given(attribute));
            idle.extend(about.map(|attribute| (attribute, "nothing is restarted without `--max-restarts`")));
        }
        for (attribute, why) in idle {
            self.issues.idle(&format!("--{attribute}"), why);
        }
    }
}

#[cfg(test)]
mod tests;
