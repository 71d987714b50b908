//! From a command line and an environment to a checked [`LaunchSpec`], or to all errors.
//!
//! Paddle parses twice: its current launcher first and, on an unknown flag, the legacy one from the start. Here one
//! parse uses the union of both tables, and the flags found decide the generation. So a legacy flag with a separate
//! value does not hide the flags after it, as it does in Paddle's first parse: a `--master` there counts too.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;

use super::arguments::{Arguments, Source};
use super::checks::{Checks, Issues};
use super::environment::{self, Announced};
use super::flags::{self, FLAGS, Owner, ValueKind};
use super::mode::Kind;
use super::{Compat, LaunchSpec, Spelling, cloud, elastic, help, mode, name, old, own, pod, ports, stranger, torchrun};
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse::{self, ArgError, Item, Line, Matching, Opt, Outcome, Takes};
use crate::mask;
use crate::model::{
    Backend, CommandRequest, Crew, Generation, Mode, Nodes, PaddleHabits, PaddleVariables, Port, PortRequest,
    Processes, Proxies, Request, ScriptKind, ServerMode, StoreHost,
};
use crate::quote::{python, shell};

/// What a launch command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// `-h`: the text to print.
    Help(String),
    Launch(Box<LaunchSpec>),
}

/// Parses the arguments after the launcher's name.
pub fn parse(spelling: Spelling, argv: &[OsString], env: &BTreeMap<String, String>) -> Result<Parsed, Vec<Diagnostic>> {
    if spelling.is_torch() { torchrun::parse(spelling, argv, env) } else { parse_paddle(spelling, argv, env) }
}

/// The command line of Paddle's launchers.
fn parse_paddle(
    spelling: Spelling,
    argv: &[OsString],
    env: &BTreeMap<String, String>,
) -> Result<Parsed, Vec<Diagnostic>> {
    let line = match argparse::parse(&options(&spelling), argv) {
        Ok(Outcome::Help) => return Ok(Parsed::Help(help::help(&spelling))),
        Ok(Outcome::Line(line)) => line,
        Err(errors) => return Err(errors.iter().map(usage_error).collect()),
    };
    let mut issues = Issues::default();
    let mut given = Arguments::of(FLAGS);
    for item in &line.items {
        if let Item::Known(known) = item
            && let Err(error) = given.give(&FLAGS[known.key], known)
        {
            issues.errors.push(error);
        }
    }
    let mut own = own::lower(&given);
    issues.errors.extend(own::check(&given));
    issues.errors.extend(own::fill(&mut own, env).err());
    let compat = if spelling == Spelling::Launch { own.compat } else { Compat::Paddle };
    let script = find_script(&line, compat, &mut issues);
    issues.errors.extend(old::lower(&mut given));
    issues.notices.extend(stranger::behind_script(&line, &given));

    let (mut arguments, mut announced) = (given.clone(), Announced::default());
    let is_fleet = matches!(spelling, Spelling::FleetModule { .. });
    if !is_fleet {
        announced = environment::apply(&mut arguments, &script, env, &mut issues.errors);
    }
    let strangers = strangers(&line);
    let generation = if is_fleet || arguments.is_switched_on("legacy") {
        Generation::Legacy
    } else if arguments.text("master").is_some() || strangers.is_empty() {
        Generation::Current
    } else {
        let message = format!("Compatible mode enable with args {}", python::list(strangers));
        announced.lines.extend(environment::log_line(&arguments, environment::WARNING, &message));
        Generation::Legacy
    };
    match generation {
        Generation::Current => issues.notices.append(&mut announced.notices),
        // Paddle's legacy launcher parses the command line again, so the announced variables have no effect.
        Generation::Legacy => {
            arguments = given;
            backend_from_environment(&mut arguments, env, &mut issues);
        }
    }
    // Paddle prints its flags without the variables of elastic jobs.
    let printed = arguments.clone();
    if generation == Generation::Legacy {
        issues.errors.extend(elastic::from_environment(&mut arguments, env));
    }
    let command_line = command_line(argv, line.script_args.len());
    let shown_line = shown_line(&spelling, argv, line.script_args.len());
    let program = spelling.program();
    let mut checks = Checks {
        arguments: &arguments,
        generation,
        compat,
        kind: Kind::Collective,
        env,
        issues: &mut issues,
        rdzv_port: own.rdzv_port,
        program: &program,
        allocation: None,
    };
    checks.not_in_this_version(&script);
    checks.kind = checks.choose_kind();
    let kind = checks.kind;
    let configuration = configuration(&printed, generation, kind, &script, &line.script_args);
    let in_etcd = checks.is_in_etcd();
    let platform = match generation {
        // Nodes that come and go do not match the platform's list, but its ports are open between nodes.
        Generation::Legacy if in_etcd => {
            let platform = cloud::read(env, processes(&arguments)).ok().flatten();
            Some(cloud::Platform { ports: platform.and_then(|platform| platform.ports), ..Default::default() })
        }
        Generation::Legacy if !kind.has_servers() => checks.report(cloud::read(env, processes(&arguments))).flatten(),
        _ => None,
    }
    .unwrap_or_default();
    let job_id = checks.job_id();
    // Errors about the backend come before errors about the mode.
    let backend = checks.backend();
    let (mode, nodes, ip) = match kind {
        _ if in_etcd => (Mode::Collective, checks.etcd(&job_id), None),
        Kind::Collective | Kind::Rpc => {
            let (nodes, ip) = checks.nodes(&platform.nodes);
            (if kind == Kind::Rpc { Mode::Rpc } else { Mode::Collective }, nodes, ip)
        }
        // A backend with servers is already reported.
        Kind::Servers | Kind::Heter if backend != Backend::Auto => (Mode::Collective, Nodes::One, None),
        Kind::Servers | Kind::Heter => with_crews(&mut checks),
        Kind::Pod => in_pod(&mut checks, job_id.as_str(), own.rdzv_port),
    };
    let allocation = checks.allocation.clone();
    let job_id = match &allocation {
        Some(allocation) if !arguments.is_set("job_id") => allocation.job_id.clone(),
        _ => job_id,
    };
    let elastic = checks.elastic(&nodes);
    checks.without_effect(&line, &nodes, ip, elastic.is_some());
    if let (Nodes::Auto { .. }, Some(0..)) = (&nodes, arguments.int("rank")) {
        let message = "--rank set in the command may not compatible in auto mode";
        announced.lines.extend(environment::log_line(&arguments, environment::WARNING, message));
    }
    let ports = checks.report(ports::request(&arguments, generation, env, platform.ports));
    let log_level = checks.report(environment::log_level(&arguments));
    let log_dir = checks.log_dir();
    let variables = PaddleVariables {
        generation,
        env_limit: Some(checks.env_limit()),
        auto_cluster: arguments.is_switched_on("auto_cluster_config"),
        auto_parallel_config: arguments.text("auto_parallel_config").map(str::to_owned),
        cluster_topo_path: arguments.text("cluster_topo_path").map(str::to_owned),
        rank_mapping_path: arguments.text("rank_mapping_path").map(str::to_owned),
    };
    let paddle = PaddleHabits {
        variables,
        log_level: log_level.unwrap_or("INFO").to_owned(),
        lines: announced.lines,
        configuration,
        server_flags: mode::legacy_flags(&command_line),
        proxies: match own.compat {
            Compat::None => Proxies::Kept,
            // Paddle's legacy module only removes them.
            Compat::Paddle if is_fleet => Proxies::Removed,
            Compat::Paddle => Proxies::PutAside,
        },
        gpu_log: arguments.is_switched_on("enable_gpu_log"),
    };
    let max_restart = checks.max_restart(&nodes);
    let given_name = arguments.text("job_id").map(|_| job_id.to_string());
    let request = Request {
        name: given_name.unwrap_or_else(|| name::of(&script, &line.script_args)),
        line: shown_line,
        job_id,
        host: checks.host(&nodes, ip, platform.host),
        ip,
        node_rank: match &mode {
            Mode::Servers(mode) if mode.pod.is_some() => mode.pod.as_ref().map(pod::rank),
            _ => checks.node_rank(&nodes),
        },
        // The platform sets the ranks, and nodes in etcd get theirs when they join.
        sort_ip: arguments.is_switched_on("sort_ip") && kind != Kind::Pod && !in_etcd && allocation.is_none(),
        uneven: arguments.is_switched_on("uneven"),
        elastic,
        mode,
        nodes,
        placement: allocation.map(|allocation| allocation.placement),
        devices: checks.devices(),
        share_devices: arguments.is_switched_on("share-devices"),
        processes: checks.nproc_per_node().map_or(Processes::PerDevice, Processes::Number),
        numa: arguments.is_switched_on("numa"),
        backend,
        ports: ports.unwrap_or(PortRequest::Free),
        logs: own::logs(&arguments, log_dir, arguments.is_switched_on("log_overwrite")),
        omp: own::omp(&arguments),
        command: CommandRequest {
            interpreter: spelling.interpreter(),
            with_coverage: env.get("WITH_COVERAGE").is_some_and(|text| text == "ON"),
            is_check: generation == Generation::Current && script == environment::CHECK,
            kind: ScriptKind::ByName,
            substitutes: false,
            misread: stranger::before_script(&line),
            script,
            args: line.script_args,
        },
        policy: own::policy(&arguments, max_restart),
        exit_codes: own::exit_codes(&arguments),
        server_timeout: own::server_timeout(&arguments),
        store: if arguments.is_switched_on("agent-store") {
            StoreHost::Agent { host: None, port: None }
        } else {
            StoreHost::Rank0
        },
        store_relay: kind == Kind::Collective && arguments.is_switched_on("store-relay"),
        paddle: Some(paddle),
        torch: None,
    };
    let spec = LaunchSpec { spelling, request, notices: Vec::new(), own, command_line };
    if issues.errors.is_empty() {
        let notices = issues.into_notices();
        Ok(Parsed::Launch(Box::new(LaunchSpec { notices, ..spec })))
    } else {
        Err(issues.errors)
    }
}

/// A parameter-server job by its flags.
fn with_crews(checks: &mut Checks<'_>) -> (Mode, Nodes, Option<IpAddr>) {
    let Some(crews) = checks.crews() else {
        return (Mode::Collective, Nodes::One, None);
    };
    let (nodes, ip) = if crews.addresses.is_empty() { checks.nodes(&[]) } else { checks.nodes_of(&crews) };
    checks.is_whole(&crews.mode, &nodes);
    (Mode::Servers(Box::new(crews.mode)), nodes, ip)
}

/// One process of a parameter-server job, by the platform's variables.
fn in_pod(checks: &mut Checks<'_>, job: &str, rdzv_port: Option<Port>) -> (Mode, Nodes, Option<IpAddr>) {
    let pod = pod::read(checks.env).and_then(|pod| Ok((pod::nodes(&pod, job, rdzv_port)?, pod)));
    let Some((nodes, pod)) = checks.report(pod) else {
        return (Mode::Collective, Nodes::One, None);
    };
    let mode = ServerMode {
        servers: Crew::Each(0),
        trainers: Crew::Each(0),
        coordinators: Crew::Each(0),
        stages: Vec::new(),
        gloo_port: checks.gloo_port_said(),
        with_gloo: checks.with_gloo(),
        pod: Some(pod),
    };
    (Mode::Servers(Box::new(mode)), nodes, None)
}

/// The table in the form of the parser: a key is a row. Abbreviations resolve first in the generation that the
/// command's name selects.
fn options(spelling: &Spelling) -> Vec<Opt> {
    let first = match spelling {
        Spelling::FleetModule { .. } => Generation::Legacy,
        _ => Generation::Current,
    };
    let rows = FLAGS.iter().enumerate();
    rows.flat_map(|(key, flag)| {
        let takes = match flag.value {
            ValueKind::Ignored => Takes::Truth,
            _ if flag.takes_value() => Takes::Value,
            _ => Takes::Nothing,
        };
        let matching = match flag.owner {
            Owner::Umiak | Owner::Old | Owner::Torch => Matching::Whole,
            owner => Matching::Abbreviated { tier: u8::from(!owner.has(first)) },
        };
        flag.names().map(move |name| Opt { name, key, takes, matching })
    })
    .collect()
}

pub(in crate::formats) fn usage_error(error: &ArgError) -> Diagnostic {
    match error {
        ArgError::Ambiguous { token, candidates } => {
            let short = token.split('=').next().unwrap_or(token);
            Diagnostic::error(
                Code::L0001,
                format!("`{short}` is ambiguous: it could be {}", super::words::either(candidates)),
            )
            .hint("write the whole flag")
        }
        ArgError::MissingValue { name } => Diagnostic::error(Code::L0001, format!("`{name}` needs a value"))
            .hint(format!("a value that begins with a dash is written `{name}=VALUE`")),
        ArgError::UnwantedValue { name, value } => {
            Diagnostic::error(Code::L0001, format!("`{name}` takes no value, but was given `{value}`"))
        }
    }
}

/// The script; reports an error and returns an empty name if there is none.
fn find_script(line: &Line, compat: Compat, issues: &mut Issues) -> OsString {
    // argparse reads an unknown flag with a space in its value as a word, which would be the script.
    let disguised =
        line.script.as_ref().filter(|script| !line.separated && script.as_encoded_bytes().starts_with(b"--"));
    if compat == Compat::None {
        issues.errors.extend(stranger::unknown(line).chain(disguised).map(|token| stranger::error(token)));
    }
    match &line.script {
        Some(script) if !script.is_empty() => return script.clone(),
        Some(_) => issues.errors.push(Diagnostic::error(Code::L0001, "the name of the training script is empty")),
        None => issues.errors.push(missing_script(line, compat)),
    }
    OsString::new()
}

fn missing_script(line: &Line, compat: Compat) -> Diagnostic {
    let error = Diagnostic::error(Code::L0001, "the training script is missing");
    let error = match line.items.last() {
        Some(Item::Known(last)) if last.is_separate && !FLAGS[last.key].is_secret() => {
            let value = last.value.as_deref().unwrap_or_default().to_string_lossy();
            error.hint(format!("`{value}` was read as the value of `{}`; the script comes after it", last.name))
        }
        _ => error.hint("the script comes after the flags: `umiak launch --gpus 0,1 train.py`"),
    };
    // Otherwise unknown flags are separate errors.
    match stranger::beside_missing_script(line).filter(|_| compat == Compat::Paddle) {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// The flags of this line that Paddle's current launcher does not have: legacy and unknown flags, up to the first with
/// a separate value, which that launcher reads as the script.
fn strangers(line: &Line) -> Vec<&OsStr> {
    let mut found: Vec<&OsStr> = Vec::new();
    for item in &line.items {
        match item {
            Item::Unknown(token) => found.push(token),
            Item::Known(given) if matches!(FLAGS[given.key].owner, Owner::Legacy | Owner::Old) => {
                found.push(&given.token);
                if given.is_separate {
                    break;
                }
            }
            Item::Known(_) => {}
        }
    }
    found
}

/// The legacy launcher's default of `--backend` is a variable.
fn backend_from_environment(arguments: &mut Arguments, env: &BTreeMap<String, String>, issues: &mut Issues) {
    const VARIABLE: &str = "PADDLE_DISTRI_BACKEND";
    if let (None, Some(value), Some(flag)) =
        (arguments.source("backend"), env.get(VARIABLE), flags::by_attribute(FLAGS, "backend"))
        && let Err(error) = arguments.set(flag, Source::Variable(VARIABLE), OsStr::new(value))
    {
        issues.errors.push(error);
    }
}

/// The number of processes on the command line, if given.
fn processes(arguments: &Arguments) -> Option<i64> {
    let listed = || arguments.text("devices").map(|list| list.split(',').count() as i64);
    arguments.int("nproc_per_node").filter(|count| *count != 0).or_else(listed)
}

/// The whole line, quoted for a shell. A token is replaced by the variable that holds it on other nodes.
pub(super) fn command_line(argv: &[OsString], script_args: usize) -> String {
    let mut words = Vec::with_capacity(argv.len());
    let own = argv.len().saturating_sub(script_args);
    let mut is_token = false;
    for (index, word) in argv.iter().enumerate() {
        let is_value = std::mem::replace(&mut is_token, index < own && word == "--token");
        words.push(if is_value {
            "\"$UMIAK_TOKEN\"".to_owned()
        } else if index < own && word.as_encoded_bytes().starts_with(b"--token=") {
            "--token=\"$UMIAK_TOKEN\"".to_owned()
        } else {
            shell::quoted(word)
        });
    }
    words.join(" ")
}

/// The line with its launcher, masked so that it may be recorded and shown.
pub(super) fn shown_line(spelling: &Spelling, argv: &[OsString], script_args: usize) -> String {
    format!("{} {}", spelling.program(), command_line(&mask::words(argv), script_args))
}

/// Paddle's configuration block of this generation, in a build with GPU support.
fn configuration(
    arguments: &Arguments,
    generation: Generation,
    kind: Kind,
    script: &OsStr,
    script_args: &[OsString],
) -> Vec<(String, String)> {
    let mut block = BTreeMap::from([
        ("training_script", script.to_string_lossy().into_owned()),
        ("training_script_args", python::list(mask::words(script_args).iter().map(OsString::as_os_str))),
    ]);
    for flag in FLAGS.iter().filter(|flag| flag.owner.has(generation)) {
        let name = match (generation, flag.attribute) {
            // The current launcher has one attribute for all kinds of devices, the legacy one has one for each.
            (Generation::Legacy, "devices") => match arguments.name("devices") {
                "--xpus" | "--selected_xpus" => "xpus",
                "--npus" | "--selected_npus" => "npus",
                "--mlus" | "--selected_mlus" => "mlus",
                _ => "gpus",
            },
            (_, attribute) => attribute,
        };
        block.insert(name, arguments.printed(flag, generation));
    }
    if generation == Generation::Current {
        // The block is printed after the mode was chosen.
        block.insert("run_mode", kind.word().to_owned());
    }
    block.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests;
