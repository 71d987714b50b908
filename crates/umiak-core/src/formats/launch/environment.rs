//! Applies the environment to the flags, in the order of Paddle's current launcher: node rank, the variables
//! that replace flags, then its plugins. Each step adds the line that Paddle would print.
//!
//! Paddle does this before it chooses the generation, so a variable can affect that choice.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use super::arguments::{Arguments, Source, Value};
use super::flags::{FLAGS, Flag};
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse;
use crate::model::Generation;
use crate::quote::python;

/// The environment of the caller.
pub(super) type Environment = BTreeMap<String, String>;

/// Lines and notices from applying the environment.
#[derive(Debug, Default)]
pub(super) struct Announced {
    /// Paddle's lines.
    pub(super) lines: Vec<String>,
    /// Flags of the command line that a variable with another value replaced.
    pub(super) notices: Vec<Diagnostic>,
}

/// The script name that means Paddle's own check of a distributed environment.
pub(super) const CHECK: &str = "run_check";

/// Severity of a line in Python's `logging`.
pub(super) const INFO: u8 = 20;
pub(super) const WARNING: u8 = 30;

/// The level names of `logging`. `NOTSET` falls back to the root logger's level.
const LEVELS: [(&str, u8); 8] = [
    ("CRITICAL", 50),
    ("FATAL", 50),
    ("ERROR", 40),
    ("WARNING", WARNING),
    ("WARN", WARNING),
    ("INFO", INFO),
    ("DEBUG", 10),
    ("NOTSET", WARNING),
];

/// The level in upper case.
pub(super) fn log_level(arguments: &Arguments) -> Result<&'static str, Diagnostic> {
    let Some(text) = arguments.text("log_level") else { return Ok("INFO") };
    // Before 2.0 the level was a number.
    let is_it =
        |(name, number): &&(&str, u8)| name.eq_ignore_ascii_case(text) || argparse::int(text) == Some((*number).into());
    LEVELS.iter().find(is_it).map(|(name, _)| *name).ok_or_else(|| {
        let names = LEVELS.map(|(name, _)| name);
        let message = format!("`{}` takes {}, not `{text}`", arguments.name("log_level"), super::words::either(&names));
        arguments.wrong_value("log_level", message)
    })
}

/// A line of Paddle's logger, unless the level hides it. The runtime fills in the time.
pub(super) fn log_line(arguments: &Arguments, severity: u8, message: &str) -> Option<String> {
    let level = log_level(arguments).unwrap_or("INFO");
    let limit = LEVELS.iter().find(|(name, _)| *name == level).map_or(INFO, |(_, limit)| *limit);
    let word = if severity == INFO { "INFO" } else { "WARNING" };
    (severity >= limit).then(|| format!("LAUNCH {word} <ts> {message}"))
}

/// Applies the environment to the flags.
pub(super) fn apply(
    arguments: &mut Arguments,
    script: &OsStr,
    env: &Environment,
    errors: &mut Vec<Diagnostic>,
) -> Announced {
    let mut announced = Announced::default();
    node_rank(arguments, env, errors);
    overrides(arguments, env, errors, &mut announced);
    let mut log = |arguments: &Arguments, severity, message: &str| {
        announced.lines.extend(log_line(arguments, severity, message));
    };
    if script == CHECK {
        log(arguments, INFO, "Paddle Distributed Test begin...");
        // Paddle turns `--nnodes 1` into two nodes as well; here an explicit 1 stays 1.
        if arguments.source("nnodes").is_none() {
            arguments.put("nnodes", Value::Text("2".into()), Source::Flag(CHECK));
        }
    }
    let keeps_arguments = match env.get("PADDLE_LAUNCH_WITH_ARGS").map(|text| argparse::int(text)) {
        None => false,
        Some(Some(number)) => number != 0,
        Some(None) => {
            errors.push(bad_number("PADDLE_LAUNCH_WITH_ARGS", env));
            false
        }
    };
    for variable in ["PADDLE_TRAINER_ENDPOINTS", "DISTRIBUTED_TRAINER_ENDPOINTS"] {
        if let Some(list) = env.get(variable) {
            let endpoints: Vec<&str> = list.split(',').collect();
            reset_by_endpoints(arguments, variable, &endpoints, keeps_arguments);
            let shown = python::list(endpoints.iter().map(OsStr::new));
            log(arguments, INFO, &format!("args reset by env {variable}\n{shown}"));
        }
    }
    if let Some(host) = arguments.text("host").filter(|host| host.contains(['.', ':'])) {
        log(arguments, WARNING, &format!("Host ip reset to {host}"));
    }
    announced
}

/// `PADDLE_TRAINER_ID` from 0 up sets this node's rank, without a line.
fn node_rank(arguments: &mut Arguments, env: &Environment, errors: &mut Vec<Diagnostic>) {
    const VARIABLE: &str = "PADDLE_TRAINER_ID";
    match env.get(VARIABLE).map(|text| argparse::int(text)) {
        Some(Some(rank)) if rank >= 0 => arguments.put("rank", Value::Int(rank), Source::Variable(VARIABLE)),
        Some(None) => errors.push(bad_number(VARIABLE, env)),
        _ => {}
    }
}

fn overrides(arguments: &mut Arguments, env: &Environment, errors: &mut Vec<Diagnostic>, announced: &mut Announced) {
    let mut rows: Vec<(&'static Flag, _)> =
        FLAGS.iter().filter_map(|flag| flag.variable.map(|variable| (flag, variable))).collect();
    rows.sort_by_key(|(_, variable)| variable.order);
    for (flag, variable) in rows {
        let Some(value) = env.get(variable.name) else { continue };
        announced.lines.push(format!(
            "LAUNCH WARNING args {} will be overridden by env: {} value: {value}",
            flag.attribute, variable.name
        ));
        let printed = |arguments: &Arguments| arguments.printed(flag, Generation::Current);
        let (source, before) = (arguments.source(flag.attribute), printed(arguments));
        if let Err(error) = arguments.set(flag, Source::Variable(variable.name), OsStr::new(value)) {
            errors.push(error);
        } else if let Some(Source::Flag(name)) = source
            && before != printed(arguments)
        {
            announced.notices.push(
                Diagnostic::notice(Code::L0024, format!("`{}` overrides `{name}`", variable.name))
                    .row(name, before)
                    .row(variable.name, value),
            );
        }
    }
}

/// The platform's list of endpoints replaces the master and the number of nodes.
fn reset_by_endpoints(arguments: &mut Arguments, variable: &'static str, endpoints: &[&str], keeps_arguments: bool) {
    let first = endpoints.first().copied().unwrap_or_default();
    if keeps_arguments {
        arguments.clear("master");
    } else {
        // Only the older variable's entries may lack a port.
        let lacks_port = variable == "PADDLE_TRAINER_ENDPOINTS" && !first.contains(':');
        let master = if lacks_port { format!("{first}:6768") } else { first.to_owned() };
        arguments.put("master", Value::Text(master.into()), Source::Variable(variable));
    }
    let hosts: std::collections::BTreeSet<&str> = endpoints.iter().map(|endpoint| host_of(endpoint)).collect();
    arguments.put("nnodes", Value::Int(hosts.len() as i64), Source::Variable(variable));
}

/// The part before the port; `[::1]:6170` has its colons inside brackets.
fn host_of(endpoint: &str) -> &str {
    match endpoint.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, _)) => host,
        None => endpoint.split(':').next().unwrap_or(endpoint),
    }
}

/// The error for a variable that is not a whole number.
pub(super) fn bad_number(variable: &str, env: &Environment) -> Diagnostic {
    let value = env.get(variable).map_or("", String::as_str);
    Diagnostic::error(Code::L0009, format!("`{variable}` takes a whole number, not `{value}`"))
        .hint(format!("correct `{variable}`, or unset it"))
}
